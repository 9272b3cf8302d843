/* pipeline_pass.c - what stages cost, asked for once, and the dynamic program over (stages to come, devices, layers). */
#include <string.h>

#include "planner/pipeline_internal.h"

enum { POOL = 1024, FROM = -2, TO = -1, HEAD = 2, NOTHING = 1 };

static int64_t add(int64_t a, int64_t b)
{
    int64_t c;
    return __builtin_add_overflow(a, b, &c) ? INT64_MAX : c;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t mpp_pipe_bound(const struct mpp_pipe *q, int64_t sum_ps, int64_t longest_ps, int64_t once_ps)
{
    return mpp_schedule_time_of(&q->schedule, most(sum_ps, longest_ps), longest_ps, once_ps);
}

static bool interrupted(const struct mpp_pipe *q)
{
    return q->p->interrupt && *q->p->interrupt;
}

/* ---- options ------------------------------------------------------------------------------ */

/* By t, then once; of equals those that are sure come first. */
static bool comes_after(const struct mpp_pipeline_option *a, const struct mpp_pipeline_option *b)
{
    if (a->t_ps != b->t_ps)
        return a->t_ps > b->t_ps;
    return a->once_ps != b->once_ps ? a->once_ps > b->once_ps : b->sure && !a->sure;
}

/* Sort OUT's N options by t, drop those that another is no worse than, and return how many are left. */
static int pareto(struct mpp_pipeline_option *o, int n)
{
    for (int i = 1; i < n; i++) {
        struct mpp_pipeline_option x = o[i];
        int k = i;
        for (; k > 0 && comes_after(&o[k - 1], &x); k--)
            o[k] = o[k - 1];
        o[k] = x;
    }
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (kept == 0 || o[i].once_ps < o[kept - 1].once_ps)
            o[kept++] = o[i];
    return kept;
}

/* A list of those of N options that may be part of a plan below the upper bound. */
static struct mpp_pipe_list list_of(struct mpp_pipe *q, const struct mpp_pipeline_option *option, int n, bool exact)
{
    if (n < 0)
        n = 0;
    if ((size_t)n > q->pool_left) {
        q->pool_left = n > POOL ? (size_t)n : POOL;
        q->pool = mpp_arena_array(q->scratch, q->pool_left, struct mpp_pipeline_option);
    }
    int kept = 0;
    int64_t lowest = MPP_PIPE_NEVER;
    for (int i = 0; i < n; i++) {
        int64_t bound = mpp_pipe_bound(q, option[i].t_ps, option[i].t_ps, option[i].once_ps);
        if (bound < q->upper_ps)
            q->pool[kept++] = option[i];
        lowest = least(lowest, bound);
    }
    kept = pareto(q->pool, kept);
    struct mpp_pipe_list l = {.option = q->pool, .n = kept, .exact = exact, .bound_ps = lowest};
    if (kept > 0) {
        l.t_ps = q->pool[0].t_ps;
        l.once_ps = q->pool[0].once_ps;
        l.least_once_ps = q->pool[kept - 1].once_ps;
    }
    q->pool += kept;
    q->pool_left -= (size_t)kept;
    return l;
}

int32_t mpp_pipe_add_list(struct mpp_pipe *q)
{
    size_t block = q->n_lists / MPP_PIPE_BLOCK;
    if (q->n_lists++ % MPP_PIPE_BLOCK == 0) {
        q->lists = mpp_arena_grow(q->scratch, q->lists, &q->cap_blocks, block + 1, sizeof *q->lists);
        q->lists[block] = mpp_arena_array(q->scratch, MPP_PIPE_BLOCK, struct mpp_pipe_list);
    }
    return (int32_t)q->n_lists;
}

static int32_t *alike_of(struct mpp_pipe *q, const struct mpp_pipeline_key *key)
{
    int number = q->p->alike ? q->p->alike(q->p->context, key) : -1;
    if (number < 0)
        return NULL;
    if ((size_t)number >= q->n_alike)
        q->alike = mpp_arena_grow(q->scratch, q->alike, &q->n_alike, (size_t)number + 1, sizeof *q->alike);
    return &q->alike[number];
}

/* The number, 1 or more, of KEY's list; asked for if need be. */
static int32_t ask(struct mpp_pipe *q, const struct mpp_pipeline_key *key)
{
    int32_t *alike = alike_of(q, key);
    if (alike && *alike)
        return *alike;
    const struct mpp_pipeline_option *option = NULL;
    bool exact = true;
    int n = q->p->options(q->p->context, key, false, &option, &exact);
    q->answer.asked++;
    struct mpp_pipe_list l = list_of(q, option, n, exact);
    int32_t number = NOTHING;
    if (l.n > 0) {
        number = mpp_pipe_add_list(q);
        *mpp_pipe_list(q, number) = l;
    }
    if (alike)
        *alike = number;
    return number;
}

void mpp_pipe_ask_exact(struct mpp_pipe *q, int32_t list, const struct mpp_pipeline_key *key)
{
    const struct mpp_pipeline_option *option = NULL;
    bool exact = true;
    int n = q->p->options(q->p->context, key, true, &option, &exact);
    q->answer.asked_exact++;
    int asked = mpp_pipe_list(q, list)->asked + 1;
    *mpp_pipe_list(q, list) = list_of(q, option, n, exact);
    mpp_pipe_list(q, list)->asked = asked;
}

/* ---- states and spans ---------------------------------------------------------------------- */

static size_t state_of(const struct mpp_pipe *q, const struct mpp_pipe_family *f, int r, int place, int l)
{
    return ((size_t)r * (size_t)f->places + (size_t)place) * (size_t)(q->n_layers + 1) + (size_t)l;
}

static int device_of(const struct mpp_pipe *q, const struct mpp_pipe_family *f, int r, int place)
{
    return f->places == 1 ? q->n_devices - r * f->size[0] : place;
}

static void clear_states(struct mpp_pipe *q, const struct mpp_pipe_family *f)
{
    size_t n = state_of(q, f, f->max_stages + 1, 0, 0);
    if (n > q->n_states) {
        q->sum = mpp_arena_array(q->scratch, n, int64_t);
        q->longest = mpp_arena_array(q->scratch, n, int64_t);
        q->once = mpp_arena_array(q->scratch, n, int64_t);
        q->last = mpp_arena_array(q->scratch, n, int16_t);
        q->size = mpp_arena_array(q->scratch, n, int16_t);
        q->n_states = n;
    }
    for (size_t i = 0; i < n; i++)
        q->sum[i] = q->longest[i] = q->once[i] = MPP_PIPE_NEVER;
    size_t end = state_of(q, f, 0, f->places - 1, q->n_layers);
    q->sum[end] = q->longest[end] = q->once[end] = 0;
}

/* First and last l of states with R stages to come on DEVICE. */
static void layers_of(const struct mpp_pipe *q, const struct mpp_pipe_family *f, int r, int device, int *out_from, int *out_to)
{
    *out_from = device == 0 ? 0 : f->alone ? f->max_stages - r : 1;
    *out_to = device == 0 ? 0 : q->n_layers - r;
    if ((f->alone || r == f->max_stages) && (r == f->max_stages) != (device == 0))
        *out_to = -1;             /* only the first stage begins with the first device */
}

/* The lists of stages that begin with layer L, for R stages to come, from PLACE on, of the J-th size; indexed by how many
 * layers follow L. NULL: never asked for (MAKE false). */
static int32_t *spans_of(struct mpp_pipe *q, const struct mpp_pipe_family *f, int r, int place, int j, int l, bool make)
{
    int width = q->n_layers - (f->windows ? f->max_stages - 1 : 0), x = l - (f->windows ? f->max_stages - r : 0);
    int32_t **s = &f->table->spans[(size_t)f->row[r] * (size_t)f->table->n_ranges
                                   + (f->windows ? 0 : (size_t)place * (size_t)f->n_sizes + (size_t)j)];
    if (!*s && !make)
        return NULL;
    if (!*s)
        *s = mpp_arena_array(q->scratch, (int64_t)width * (width + 1) / 2 + (int64_t)HEAD * width, int32_t);
    return *s + (ptrdiff_t)x * (width + HEAD) - (ptrdiff_t)x * (x - 1) / 2 + HEAD;
}

/* The number of the list at SPANS[I], asked for if need be. */
static int32_t asked(struct mpp_pipe *q, const struct mpp_pipeline_key *key, int32_t *spans, int i)
{
    spans[i] = ask(q, key);
    if (spans[i] != NOTHING && spans[TO] == 0) {
        spans[FROM] = i;
        spans[TO] = i + 1;
    } else if (spans[i] != NOTHING) {
        spans[FROM] = i < spans[FROM] ? i : spans[FROM];
        spans[TO] = i + 1 > spans[TO] ? i + 1 : spans[TO];
    }
    return spans[i];
}

/* The list at SPANS[I]; NULL: of no use. What cannot be part of a better plan is forgotten. */
static const struct mpp_pipe_list *useful(const struct mpp_pipe *q, int32_t *spans, int i)
{
    if (spans[i] > NOTHING) {
        const struct mpp_pipe_list *x = mpp_pipe_list(q, spans[i]);
        if (x->n > 0 && x->bound_ps < q->upper_ps)
            return x;
        spans[i] = NOTHING;
    }
    if (i == spans[FROM])
        spans[FROM]++;
    return NULL;
}

/* The place after a stage of the J-th size; -1: there is none. */
static int next_place(const struct mpp_pipe *q, const struct mpp_pipe_family *f, int r, int place, int j)
{
    int device = device_of(q, f, r, place) + f->size[j];
    if (device > q->n_devices || (r == 1) != (device == q->n_devices))
        return -1;
    return f->places == 1 ? 0 : device;
}

static struct mpp_pipeline_key key_of(const struct mpp_pipe *q, const struct mpp_pipe_family *f, int r, int place, int j,
                                      int l, int last)
{
    int device = device_of(q, f, r, place);
    int before = f->alone ? f->max_stages - r : device > 0;
    return (struct mpp_pipeline_key){
        .first_layer = l * q->layer_unit, .last_layer = (last + 1) * q->layer_unit - 1,
        .first_device = device * q->device_unit, .n_devices = f->size[j] * q->device_unit,
        .stage = before, .n_stages = before + r, .in_flight = f->in_flight[r],
    };
}

/* ---- exploring ----------------------------------------------------------------------------- */

/* The list of SPANS for a stage of layers L..LAST, asked for if need be; NULL: nothing fits. */
static const struct mpp_pipe_list *list_at(struct mpp_pipe *q, const struct mpp_pipe_family *f, int r, int place, int j,
                                           int l, int last, int32_t *spans)
{
    int32_t number = spans[last - l];
    if (!number) {
        struct mpp_pipeline_key key = key_of(q, f, r, place, j, l, last);
        number = asked(q, &key, spans, last - l);
    }
    const struct mpp_pipe_list *x = mpp_pipe_list(q, number);
    return x->n > 0 ? x : NULL;
}

/* The least sum, longest t and once (each by itself) of R stages from layer L and PLACE on. LIMIT: for each size the last
 * layer that is worth a question; what does not fit lowers it for the longer spans that follow, if that is promised. */
static void explore_state(struct mpp_pipe *q, const struct mpp_pipe_family *f, int r, int place, int l, int *limit)
{
    size_t at = state_of(q, f, r, place, l);
    for (int j = 0; j < f->n_sizes; j++) {
        int next = next_place(q, f, r, place, j);
        if (next < 0)
            continue;
        int32_t *spans = spans_of(q, f, r, place, j, l, true);
        size_t after = state_of(q, f, r - 1, next, 0);
        for (int last = r == 1 ? q->n_layers - 1 : l; last <= limit[j]; last++) {
            size_t rest = after + (size_t)last + 1;
            if (q->sum[rest] == MPP_PIPE_NEVER)
                continue;
            const struct mpp_pipe_list *x = list_at(q, f, r, place, j, l, last, spans);
            if (!x && q->p->longer_is_worse)
                limit[j] = last - 1;
            if (!x)
                continue;
            int64_t sum = add(x->t_ps, q->sum[rest]), longest = most(x->t_ps, q->longest[rest]);
            int64_t once = most(x->least_once_ps, q->once[rest]);
            if (mpp_pipe_bound(q, sum, longest, once) >= q->upper_ps)
                continue;
            q->sum[at] = least(q->sum[at], sum);
            q->longest[at] = least(q->longest[at], longest);
            q->once[at] = least(q->once[at], once);
        }
    }
}

/* REACH[r]: the first layer that the stages before the last R cannot have passed by, where longer spans are worse and each
 * number of stages is alone with one size: the greediest go furthest. */
static void reach_forward(struct mpp_pipe *q, const struct mpp_pipe_family *f, int *reach)
{
    for (int r = f->max_stages; r >= 0; r--)
        reach[r] = q->n_layers;
    if (!q->p->longer_is_worse || f->places > 1)
        return;
    reach[f->max_stages] = 0;
    for (int r = f->max_stages; r > 1 && !interrupted(q); r--) {
        int l = reach[r], last = l;
        if (l < f->max_stages - r) { /* not even a layer each */
            reach[r - 1] = 0;
            continue;
        }
        int32_t *spans = spans_of(q, f, r, 0, 0, l, true);
        while (last <= q->n_layers - r && list_at(q, f, r, 0, 0, l, last, spans))
            last++;
        reach[r - 1] = last;
    }
}

bool mpp_pipe_explore(struct mpp_pipe *q, struct mpp_pipe_family *f, int64_t *out_bound_ps,
                      int64_t *out_longest_ps, int64_t *out_once_ps)
{
    *out_bound_ps = *out_longest_ps = *out_once_ps = MPP_PIPE_NEVER;
    int *limit = mpp_arena_array(q->scratch, f->n_sizes, int);
    int *reach = mpp_arena_array(q->scratch, f->max_stages + 1, int);
    clear_states(q, f);
    reach_forward(q, f, reach);
    if (interrupted(q))
        return false;
    for (int r = 1; r <= f->max_stages; r++)
        for (int place = 0; place < f->places; place++) {
            int from, to;
            layers_of(q, f, r, device_of(q, f, r, place), &from, &to);
            for (int j = 0; j < f->n_sizes; j++)
                limit[j] = q->n_layers - r;
            for (int l = to < reach[r] ? to : reach[r]; l >= from; l--) {
                if (interrupted(q))
                    return false;
                explore_state(q, f, r, place, l, limit);
            }
        }
    for (int r = 1; r <= f->max_stages; r++) {
        size_t at = state_of(q, f, r, 0, 0);
        if (!f->wanted[r] || q->sum[at] == MPP_PIPE_NEVER)
            continue;
        *out_bound_ps = least(*out_bound_ps, mpp_pipe_bound(q, q->sum[at], q->longest[at], q->once[at]));
        *out_longest_ps = least(*out_longest_ps, q->longest[at]);
        *out_once_ps = least(*out_once_ps, q->once[at]);
    }
    f->sum = q->sum;
    f->longest = q->longest;
    f->once = q->once;
    q->n_states = 0;              /* they are the family's now */
    return true;
}

/* Pass on what the stages before state AT take (in q->sum, longest, once) to the states after it. */
static void spread_state(struct mpp_pipe *q, const struct mpp_pipe_family *f, int r, int place, int l, size_t at)
{
    for (int j = 0; j < f->n_sizes; j++) {
        int next = next_place(q, f, r, place, j);
        int32_t *spans = next < 0 ? NULL : spans_of(q, f, r, place, j, l, false);
        if (!spans)
            continue;
        size_t after = state_of(q, f, r - 1, next, 0) + (size_t)l + 1;
        int to = q->n_layers - r - l + 1;
        for (int i = spans[FROM]; i < to && i < spans[TO]; i++) {
            size_t rest = after + (size_t)i;
            if (f->sum[rest] == MPP_PIPE_NEVER || spans[i] <= NOTHING)
                continue;
            const struct mpp_pipe_list *x = mpp_pipe_list(q, spans[i]);
            if (x->n == 0 || x->bound_ps >= q->upper_ps)
                continue;
            q->sum[rest] = least(q->sum[rest], add(q->sum[at], x->t_ps));
            q->longest[rest] = least(q->longest[rest], most(q->longest[at], x->t_ps));
            q->once[rest] = least(q->once[rest], most(q->once[at], x->least_once_ps));
        }
    }
}

/* Bound the plans through each state by what is before and what is to come. */
static void bound_states(struct mpp_pipe *q, struct mpp_pipe_family *f)
{
    f->bound = mpp_arena_array(q->scratch, state_of(q, f, f->max_stages + 1, 0, 0), int64_t);
    clear_states(q, f);
    q->sum[state_of(q, f, 0, f->places - 1, q->n_layers)] = MPP_PIPE_NEVER;
    for (int r = f->max_stages; r > 0; r--) {
        size_t start = state_of(q, f, r, 0, 0);
        if (f->wanted[r])
            q->sum[start] = q->longest[start] = q->once[start] = 0;
        for (int place = 0; place < f->places; place++) {
            int from, to;
            layers_of(q, f, r, device_of(q, f, r, place), &from, &to);
            for (int l = from; l <= to; l++) {
                size_t at = state_of(q, f, r, place, l);
                f->bound[at] = MPP_PIPE_NEVER;
                if (q->sum[at] == MPP_PIPE_NEVER || f->sum[at] == MPP_PIPE_NEVER)
                    continue;
                f->bound[at] = mpp_pipe_bound(q, add(q->sum[at], f->sum[at]), most(q->longest[at], f->longest[at]),
                                              most(q->once[at], f->once[at]));
                if (f->bound[at] < q->upper_ps)
                    spread_state(q, f, r, place, l, at);
            }
        }
    }
}

/* ---- a pass -------------------------------------------------------------------------------- */

/* The option of the least t within the limits; NULL: none. Those of less t take more once. */
static const struct mpp_pipeline_option *option_within(const struct mpp_pipe_list *x, int64_t t_ps, int64_t once_ps)
{
    for (int i = 0; i < x->n && x->option[i].t_ps <= t_ps; i++)
        if (x->option[i].once_ps <= once_ps)
            return &x->option[i];
    return NULL;
}

/* The least sum of R stages from layer L and PLACE on within the limits; of equal ones that of the shorter longest. */
static void pass_state(struct mpp_pipe *q, const struct mpp_pipe_family *f, int r, int place, int l, int64_t t_ps,
                       int64_t once_ps)
{
    size_t at = state_of(q, f, r, place, l);
    int64_t best = MPP_PIPE_NEVER, best_longest = MPP_PIPE_NEVER;
    for (int j = 0; j < f->n_sizes; j++) {
        int next = next_place(q, f, r, place, j);
        int32_t *spans = next < 0 ? NULL : spans_of(q, f, r, place, j, l, false);
        if (!spans)
            continue;
        size_t after = state_of(q, f, r - 1, next, 0) + (size_t)l + 1;
        const int64_t *rest = q->sum + after, *rest_longest = q->longest + after;
        int i = r == 1 ? q->n_layers - 1 - l : 0, to = q->n_layers - r - l + 1;
        for (i = i > spans[FROM] ? i : spans[FROM], to = to < spans[TO] ? to : spans[TO]; i < to; i++) {
            if (rest[i] > best || rest[i] == MPP_PIPE_NEVER)
                continue;
            const struct mpp_pipe_list *x = useful(q, spans, i);
            if (!x || x->t_ps > t_ps || x->least_once_ps > once_ps)
                continue;
            int64_t t = x->t_ps;
            if (x->once_ps > once_ps) {
                const struct mpp_pipeline_option *o = option_within(x, t_ps, once_ps);
                if (!o)
                    continue;
                t = o->t_ps;
            }
            int64_t sum = add(t, rest[i]), longest = most(t, rest_longest[i]);
            if (sum < best || (sum == best && longest < best_longest)) {
                best = sum;
                best_longest = longest;
                q->last[at] = (int16_t)(l + i);
                q->size[at] = (int16_t)j;
            }
        }
    }
    q->sum[at] = best;
    q->longest[at] = best_longest;
}

static struct mpp_pipe_plan *plan_of(struct mpp_pipe *q, const struct mpp_pipe_family *f, int n_stages, int64_t t_ps,
                                     int64_t once_ps)
{
    struct mpp_pipe_plan *plan = mpp_arena_array(q->scratch, 1, struct mpp_pipe_plan);
    plan->n_stages = n_stages;
    plan->stage = mpp_arena_array(q->scratch, n_stages, struct mpp_pipeline_stage);
    plan->list = mpp_arena_array(q->scratch, n_stages, int32_t);
    plan->asked = mpp_arena_array(q->scratch, n_stages, int);
    plan->exact = mpp_arena_array(q->scratch, n_stages, bool);
    int place = 0, l = 0;
    for (int i = 0; i < n_stages; i++) {
        int r = n_stages - i;
        size_t at = state_of(q, f, r, place, l);
        int j = q->size[at], last = q->last[at];
        plan->list[i] = spans_of(q, f, r, place, j, l, false)[last - l];
        const struct mpp_pipe_list *x = mpp_pipe_list(q, plan->list[i]);
        plan->asked[i] = x->asked;
        plan->stage[i].key = key_of(q, f, r, place, j, l, last);
        plan->stage[i].key.stage = i;
        plan->stage[i].key.n_stages = n_stages;
        plan->stage[i].option = *option_within(x, t_ps, once_ps);
        plan->exact[i] = x->exact || plan->stage[i].option.sure;
        plan->sum_ps = add(plan->sum_ps, plan->stage[i].option.t_ps);
        plan->longest_ps = most(plan->longest_ps, plan->stage[i].option.t_ps);
        plan->once_ps = most(plan->once_ps, plan->stage[i].option.once_ps);
        place = next_place(q, f, r, place, j);
        l = last + 1;
    }
    return plan;
}

bool mpp_pipe_pass(struct mpp_pipe *q, struct mpp_pipe_family *f, int64_t t_ps, int64_t once_ps,
                   struct mpp_pipe_plan **out)
{
    *out = NULL;
    q->answer.passes++;
    if (f->passes++ == 1)         /* what it takes pays from the second pass on, and the first leaves something to beat */
        bound_states(q, f);
    clear_states(q, f);
    for (int r = 1; r <= f->max_stages; r++)
        for (int place = 0; place < f->places; place++) {
            int from, to;
            if (interrupted(q))
                return false;
            layers_of(q, f, r, device_of(q, f, r, place), &from, &to);
            for (int l = from; l <= to; l++)
                if (!f->bound || f->bound[state_of(q, f, r, place, l)] < q->upper_ps)
                    pass_state(q, f, r, place, l, t_ps, once_ps);
        }
    int best = 0;
    int64_t lowest = MPP_PIPE_NEVER;
    for (int r = 1; r <= f->max_stages; r++) {
        int64_t sum = q->sum[state_of(q, f, r, 0, 0)];
        if (f->wanted[r] && sum < lowest) {
            lowest = sum;
            best = r;
        }
    }
    if (best)
        *out = plan_of(q, f, best, t_ps, once_ps);
    return true;
}
