/* pipeline.c - the search over limits on the longest t and the largest once.
 *
 * T = sum + (B - 1) max t + max once. For limits (x, y) a pass finds the least sum of stages with t <= x and once <= y.
 * A box holds the plans whose max t and max once lie in two intervals: its pass, at the upper ends, together with the
 * lower ends bounds them from below. The box of the least bound comes first. If the plan that its pass found costs more
 * than the bound, one interval is cut in two; else that plan is a best one of what is known. If some of its options are
 * bounds only, the exact ones are asked for, and the box is passed again; if none is, the search is over. */
#include <assert.h>
#include <string.h>

#include "planner/pipeline_internal.h"

struct box {
    struct mpp_pipe_family *family;
    int64_t t_from, t_to, once_from, once_to; /* inclusive */
    int64_t bound_ps;
    int64_t number;               /* in order of making: decides between equals */
    const struct mpp_pipe_plan *plan; /* of its pass; NULL: none yet, or prices changed since */
    bool halve;                   /* how it is cut next */
};

struct queue {                    /* a heap: the least bound first */
    struct box *box;
    size_t n, cap;
    int64_t made;
};

/* ---- the queue ----------------------------------------------------------------------------- */

static bool before(const struct box *a, const struct box *b)
{
    return a->bound_ps != b->bound_ps ? a->bound_ps < b->bound_ps : a->number < b->number;
}

static void push(struct mpp_pipe *q, struct queue *h, struct box b)
{
    if (b.bound_ps >= q->upper_ps)
        return;
    b.number = h->made++;
    h->box = mpp_arena_grow(q->scratch, h->box, &h->cap, h->n + 1, sizeof *h->box);
    size_t i = h->n++;
    for (; i > 0 && before(&b, &h->box[(i - 1) / 2]); i = (i - 1) / 2)
        h->box[i] = h->box[(i - 1) / 2];
    h->box[i] = b;
}

static struct box pop(struct queue *h)
{
    struct box top = h->box[0], b = h->box[--h->n];
    size_t i = 0;
    for (size_t k = 1; k < h->n; k = 2 * i + 1) {
        if (k + 1 < h->n && before(&h->box[k + 1], &h->box[k]))
            k++;
        if (!before(&h->box[k], &b))
            break;
        h->box[i] = h->box[k];
        i = k;
    }
    h->box[i] = b;
    return top;
}

/* ---- families ------------------------------------------------------------------------------ */

static int divisor(int a, int b)
{
    while (b) {
        int r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Units of layers and devices; false: they do not divide what there is. */
static bool measure(struct mpp_pipe *q)
{
    const struct mpp_pipeline_problem *p = q->p;
    q->layer_unit = p->kind == MPP_SCHEDULE_INTERLEAVED ? p->chunks : 1;
    q->device_unit = 0;
    for (int j = 0; j < p->n_sizes; j++)
        q->device_unit = divisor(p->sizes[j], q->device_unit);
    if (q->device_unit < 1 || p->n_devices % q->device_unit || p->n_layers % q->layer_unit)
        return false;
    q->n_layers = p->n_layers / q->layer_unit;
    q->n_devices = p->n_devices / q->device_unit;
    return q->n_layers > 0 && q->n_devices > 0;
}

static bool size_offered(const struct mpp_pipeline_problem *p, int size)
{
    for (int j = 0; j < p->n_sizes; j++)
        if (p->sizes[j] == size)
            return true;
    return false;
}

/* The numbers of stages to try: [*OUT_MOST + 1]. */
static bool *stage_counts(const struct mpp_pipe *q, int *out_most)
{
    const struct mpp_pipeline_problem *p = q->p;
    int most = q->n_layers < q->n_devices ? q->n_layers : q->n_devices;
    most = most < p->max_stages ? most : p->max_stages;
    bool *wanted = mpp_arena_array(q->scratch, most + 1, bool);
    for (int s = 1; s <= most; s++)
        wanted[s] = !p->stages;
    for (const int *s = p->stages; s && *s; s++)
        if (*s >= 1 && *s <= most)
            wanted[*s] = true;
    for (int s = 1; s <= most; s++) {
        if (p->equal_sizes && (p->n_devices % s || !size_offered(p, p->n_devices / s)))
            wanted[s] = false;
        if (p->kind == MPP_SCHEDULE_INTERLEAVED && p->micro_batches % s)
            wanted[s] = false;
    }
    *out_most = most;
    return wanted;
}

/* FAMILY's in-flight counts, and the table's rows for them. ROW_OF: all counts that have a row, in order of rows. */
static void place_rows(struct mpp_pipe *q, struct mpp_pipe_family *f, int64_t *row_of, int *n_rows)
{
    struct mpp_schedule s = q->schedule;
    f->in_flight = mpp_arena_array(q->scratch, f->max_stages + 1, int64_t);
    f->row = mpp_arena_array(q->scratch, f->max_stages + 1, int);
    s.stages = f->max_stages;
    for (int r = 1; r <= f->max_stages; r++) {
        f->in_flight[r] = mpp_schedule_held(&s, f->max_stages - r);
        int row = 0;
        while (row < *n_rows && row_of[row] != f->in_flight[r])
            row++;
        if (row == *n_rows)
            row_of[(*n_rows)++] = f->in_flight[r];
        f->row[r] = f->windows ? r - 1 : row;
    }
}

static struct mpp_pipe_table *table_of(struct mpp_pipe *q, int n_rows, int n_ranges)
{
    struct mpp_pipe_table *t = mpp_arena_array(q->scratch, 1, struct mpp_pipe_table);
    t->n_ranges = n_ranges;
    t->spans = mpp_arena_array(q->scratch, (int64_t)n_rows * n_ranges, int32_t *);
    return t;
}

/* Free sizes; interleaved, each number of stages is a family (what is in flight depends on it), else all are one. A number that
 * is alone has fewer states: both ends of the model bound them. */
static int families_of_any_sizes(struct mpp_pipe *q, const bool *wanted, int most, struct mpp_pipe_family *family)
{
    const struct mpp_pipeline_problem *p = q->p;
    int *size = mpp_arena_array(q->scratch, p->n_sizes, int), n_rows = 0, n = 0;
    int64_t *row_of = mpp_arena_array(q->scratch, (int64_t)most * (most + 1), int64_t);
    for (int j = 0; j < p->n_sizes; j++)
        size[j] = p->sizes[j] / q->device_unit;
    int counts = 0;
    for (int s = 1; s <= most; s++)
        counts += wanted[s];
    while (most > 0 && !wanted[most])
        most--;
    bool alone = p->kind == MPP_SCHEDULE_INTERLEAVED || counts == 1;
    for (int s = alone ? 1 : most; s >= 1 && s <= most; s++) {
        if (!wanted[s])
            continue;
        struct mpp_pipe_family *f = &family[n++];
        *f = (struct mpp_pipe_family){.max_stages = s, .alone = alone, .n_sizes = p->n_sizes, .size = size,
                                      .places = q->n_devices + 1, .wanted = wanted};
        if (alone) {
            bool *only = mpp_arena_array(q->scratch, s + 1, bool);
            only[s] = true;
            f->wanted = only;
        }
        place_rows(q, f, row_of, &n_rows);
    }
    struct mpp_pipe_table *table = table_of(q, n_rows, (q->n_devices + 1) * p->n_sizes);
    for (int i = 0; i < n; i++)
        family[i].table = table;
    return n;
}

/* Equal sizes: each number of stages has its own size, so it is a family. */
static int families_of_equal_sizes(struct mpp_pipe *q, const bool *wanted, int most, struct mpp_pipe_family *family)
{
    int n = 0;
    int64_t *row_of = mpp_arena_array(q->scratch, most + 1, int64_t);
    for (int s = 1; s <= most; s++) {
        if (!wanted[s])
            continue;
        int *size = mpp_arena_array(q->scratch, 1, int), n_rows = 0;
        *size = q->n_devices / s;
        bool *only = mpp_arena_array(q->scratch, s + 1, bool);
        only[s] = true;
        family[n] = (struct mpp_pipe_family){.max_stages = s, .alone = true, .n_sizes = 1, .size = size, .places = 1,
                                             .wanted = only, .windows = true};
        place_rows(q, &family[n], row_of, &n_rows);
        family[n++].table = table_of(q, s, 1);
    }
    return n;
}

/* ---- the search ---------------------------------------------------------------------------- */

static bool all_exact(const struct mpp_pipe_plan *plan)
{
    for (int i = 0; i < plan->n_stages; i++)
        if (!plan->exact[i])
            return false;
    return true;
}

/* Has a price that PLAN was made with changed? */
static bool stale(const struct mpp_pipe *q, const struct mpp_pipe_plan *plan)
{
    for (int i = 0; i < plan->n_stages; i++)
        if (plan->asked[i] != mpp_pipe_list(q, plan->list[i])->asked)
            return true;
    return false;
}

/* Keep PLAN, whose options are all exact, if it is better than the best. */
static void keep(struct mpp_pipe *q, const struct mpp_pipe_plan *plan)
{
    int64_t time = mpp_pipe_bound(q, plan->sum_ps, plan->longest_ps, plan->once_ps);
    if (time >= q->upper_ps)
        return;
    q->upper_ps = q->answer.time_ps = time;
    q->answer.n_stages = plan->n_stages;
    q->answer.stage = mpp_arena_memdup(q->arena, plan->stage, (size_t)plan->n_stages * sizeof *plan->stage);
}

/* Ask for PLAN's exact options, and keep the plan with the shortest of them as something to beat. */
static void make_exact(struct mpp_pipe *q, const struct mpp_pipe_plan *plan)
{
    struct mpp_pipe_plan now = {.n_stages = plan->n_stages};
    now.stage = mpp_arena_memdup(q->scratch, plan->stage, (size_t)plan->n_stages * sizeof *plan->stage);
    bool fits = true;
    for (int i = 0; i < plan->n_stages; i++) {
        const struct mpp_pipe_list *x = mpp_pipe_list(q, plan->list[i]);
        if (!plan->exact[i] && x->asked == plan->asked[i]) /* else another of its stages has the same list */
            mpp_pipe_ask_exact(q, plan->list[i], &plan->stage[i].key);
        int k = 0;
        while (k < x->n && !x->exact && !x->option[k].sure)
            k++;
        fits = fits && k < x->n;
        if (!fits)
            continue;
        const struct mpp_pipeline_option *o = &x->option[k];
        now.stage[i].option = *o;
        now.sum_ps = INT64_MAX - now.sum_ps < o->t_ps ? INT64_MAX : now.sum_ps + o->t_ps;
        now.longest_ps = now.longest_ps > o->t_ps ? now.longest_ps : o->t_ps;
        now.once_ps = now.once_ps > o->once_ps ? now.once_ps : o->once_ps;
    }
    if (fits)
        keep(q, &now);
}

/* Run B's pass; false: interrupted. Puts the box back with what is known now, unless it is empty. */
static bool evaluate(struct mpp_pipe *q, struct queue *h, struct box b)
{
    struct mpp_pipe_plan *plan;
    if (!mpp_pipe_pass(q, b.family, b.t_to, b.once_to, &plan)) {
        push(q, h, b);
        return false;
    }
    if (!plan)
        return true;
    if (all_exact(plan))
        keep(q, plan);
    b.plan = plan;
    int64_t bound = mpp_pipe_bound(q, plan->sum_ps, b.t_from, b.once_from);
    b.bound_ps = bound > b.bound_ps ? bound : b.bound_ps;
    push(q, h, b);
    return true;
}

/* Cut the interval whose lower end makes B's bound the lower; B's plan costs more than its bound. In turns just below the
 * plan's figure, which is enough where there are few others, and in the middle, which is where there are many. */
static void split(struct mpp_pipe *q, struct queue *h, struct box b)
{
    const struct mpp_pipe_plan *plan = b.plan;
    int64_t t = plan->longest_ps > b.t_from ? plan->longest_ps : b.t_from;
    int64_t once = plan->once_ps > b.once_from ? plan->once_ps : b.once_from;
    int64_t without_t = mpp_pipe_bound(q, plan->sum_ps, b.t_from, once);
    int64_t without_once = mpp_pipe_bound(q, plan->sum_ps, t, b.once_from);
    b.halve = !b.halve;
    struct box low = b, high = b;
    low.plan = NULL;
    if (without_t <= without_once && t > b.t_from) {
        low.t_to = b.halve ? t - 1 : b.t_from + (t - 1 - b.t_from) / 2;
        high.t_from = low.t_to + 1;
    } else {
        low.once_to = b.halve ? once - 1 : b.once_from + (once - 1 - b.once_from) / 2;
        high.once_from = low.once_to + 1;
    }
    int64_t bound = mpp_pipe_bound(q, plan->sum_ps, high.t_from, high.once_from);
    high.bound_ps = bound > high.bound_ps ? bound : high.bound_ps;
    push(q, h, low);
    push(q, h, high);
}

/* Until no box can hold a better plan; false: interrupted. */
static bool search(struct mpp_pipe *q, struct queue *h)
{
    while (h->n > 0 && h->box[0].bound_ps < q->upper_ps) {
        q->answer.bound_ps = h->box[0].bound_ps;
        if (q->p->interrupt && *q->p->interrupt)
            return false;
        struct box b = pop(h);
        if (b.plan && stale(q, b.plan))
            b.plan = NULL;
        if (!b.plan) {
            if (!evaluate(q, h, b))
                return false;
        } else if (mpp_pipe_bound(q, b.plan->sum_ps, b.plan->longest_ps, b.plan->once_ps) > b.bound_ps) {
            split(q, h, b);
        } else {
            make_exact(q, b.plan);
            push(q, h, b);
        }
    }
    q->answer.bound_ps = q->upper_ps;
    return true;
}

int64_t mpp_pipeline_time(const struct mpp_schedule *s, const struct mpp_pipeline_stage *stage, int n_stages)
{
    int64_t sum = 0, longest = 0, once = 0;
    for (int i = 0; i < n_stages; i++) {
        const struct mpp_pipeline_option *o = &stage[i].option;
        sum = sum > INT64_MAX - o->t_ps ? INT64_MAX : sum + o->t_ps;
        longest = o->t_ps > longest ? o->t_ps : longest;
        once = o->once_ps > once ? o->once_ps : once;
    }
    return mpp_schedule_time_of(s, sum, longest, once);
}

enum mpp_status mpp_pipeline_solve(struct mpp_arena *arena, const struct mpp_pipeline_problem *problem,
                                   struct mpp_pipeline_answer *out)
{
    struct mpp_pipe q = {.arena = arena, .scratch = mpp_arena_scratch(arena), .p = problem, .upper_ps = problem->upper_bound_ps};
    struct queue h = {0};
    int most = 0, n = 0;
    bool done = true;
    q.schedule = (struct mpp_schedule){.kind = problem->kind, .stages = 1, .chunks = problem->chunks,
                                       .micro_batches = problem->micro_batches};
    assert(mpp_schedule_valid(&q.schedule));
    q.answer.time_ps = INT64_MAX;
    q.answer.bound_ps = q.upper_ps;
    mpp_pipe_add_list(&q);        /* nothing fits */
    if (measure(&q)) {
        bool *wanted = stage_counts(&q, &most);
        struct mpp_pipe_family *family = mpp_arena_array(q.scratch, most + 1, struct mpp_pipe_family);
        n = problem->equal_sizes ? families_of_equal_sizes(&q, wanted, most, family)
                                 : families_of_any_sizes(&q, wanted, most, family);
        for (int i = 0; i < n && done; i++) {
            struct box b = {.family = &family[i], .t_to = INT64_MAX, .once_to = INT64_MAX};
            done = mpp_pipe_explore(&q, &family[i], &b.bound_ps, &b.t_from, &b.once_from);
            if (done)
                push(&q, &h, b);
            else
                q.answer.bound_ps = 0; /* what was not explored is not bounded */
        }
        done = done && search(&q, &h);
    }
    *out = q.answer;
    mpp_arena_free(q.scratch);
    return done ? MPP_OK : MPP_LIMIT;
}
