/* profile.c - the events of a step added up by stage, and the plan's pieces beside them. */
#include "inspect/profile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/report_html.h"
#include "inspect/trace_read.h"
#include "planner/timeline.h"

static const double SLACK_S = 2e-9; /* traces are written to the nanosecond */
/* A miss is worth words from this part of the step on; and so many are told. */
static const double MATTERS = 0.02;
enum { MOST_MISSES = 5 };

struct summing {
    struct mpp_arena *arena;
    struct mpp_profile *p;
    const struct mpp_plan *plan;
    size_t cap_rows, cap_passes;
    int *ranks, *first_rank;      /* [stages] how many ranks are in the trace, and the lowest */
};

/* The row of that name and size, which is made if need be. */
static struct mpp_profile_row *row_of(struct summing *s, int stage, enum mpp_profile_kind kind, const char *name, int64_t bytes)
{
    struct mpp_profile *p = s->p;
    for (int i = 0; i < p->n_rows; i++) {
        struct mpp_profile_row *r = &p->rows[i];
        if (r->stage == stage && r->kind == kind && r->bytes == bytes && strcmp(r->name, name) == 0)
            return r;
    }
    p->rows = mpp_arena_grow(s->arena, p->rows, &s->cap_rows, (size_t)p->n_rows + 1, sizeof *p->rows);
    p->rows[p->n_rows] = (struct mpp_profile_row){.stage = stage, .kind = kind, .name = name, .bytes = bytes};
    return &p->rows[p->n_rows++];
}

/* ---- what was planned ---- */

static void plan_piece(struct summing *s, int stage, const struct mpp_piece *piece)
{
    const struct mpp_stage *st = &s->plan->stages[stage];
    bool pass = piece->part == MPP_PART_FORWARD || piece->part == MPP_PART_BACKWARD;
    double times = pass ? (double)s->plan->micro_batches : 1;
    if (piece->n_comms == 0) {
        row_of(s, stage, pass ? MPP_PROFILE_KERNELS : MPP_PROFILE_UPDATE, pass ? "kernels" : "update", 0)->planned_s +=
            times * (double)piece->cost_ps * 1e-12;
        return;
    }
    for (int k = 0; k < piece->n_comms; k++) {
        const struct mpp_comm *c = &st->collectives[piece->comm + k];
        bool receive = piece->kind == MPP_PIECE_RECEIVE;
        const char *name = receive ? mpp_arena_printf(s->arena, "receive %s", c->tensor)
                           : mpp_arena_printf(s->arena, "%s over %s", c->kind, mpp_trace_axes(s->arena, &st->mesh, c->mask));
        struct mpp_profile_row *r = row_of(s, stage, receive ? MPP_PROFILE_RECEIVE : MPP_PROFILE_COLLECTIVE, name, receive ? 0 : c->bytes);
        r->mask = c->mask;
        r->planned_count += c->count;
        r->planned_s += (double)c->count * (double)c->cost_ps * 1e-12;
    }
}

static void add_planned(struct summing *s)
{
    for (int i = 0; i < s->plan->n_stages; i++) {
        int n;
        const struct mpp_piece *piece = mpp_plan_timeline(s->arena, s->p->dir->cluster, s->plan, i, &n);
        row_of(s, i, MPP_PROFILE_KERNELS, "kernels", 0);
        row_of(s, i, MPP_PROFILE_UPDATE, "update", 0);
        for (int k = 0; k < n; k++)
            plan_piece(s, i, &piece[k]);
    }
}

/* ---- what was seen ---- */

enum seen_kind { STEP, PASS, UPDATE, COLLECTIVE, RECEIVE, WAIT, OTHER };

static bool starts(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

static enum seen_kind kind_of(const struct mpp_trace_read_event *e)
{
    static const char *const collectives[] = {"all-reduce over ", "all-gather over ", "reduce-scatter over ", "all-to-all over ",
                                              "sums of gradients", "sum over stages"};
    const char *name = e->name;
    if (e->kernel)
        return OTHER;
    for (size_t i = 0; i < sizeof collectives / sizeof *collectives; i++)
        if (starts(name, collectives[i]))
            return COLLECTIVE;
    return starts(name, "step ") ? STEP : starts(name, "forward ") || starts(name, "backward ") || starts(name, "prologue ") ? PASS
           : strcmp(name, "update") == 0 ? UPDATE : starts(name, "receive ") || starts(name, "send ") ? RECEIVE
           : strcmp(name, "wait") == 0 ? WAIT : OTHER;
}

struct open {                     /* an event that later ones may lie in */
    const struct mpp_trace_read_event *e;
    enum seen_kind kind;
    double inside_s;              /* of what lies right inside, and is told by itself */
    double waits_s;               /* of all waits inside, at any depth */
};

static void close_event(struct summing *s, const struct open *o, double step_begin_s)
{
    const struct mpp_trace_read_event *e = o->e;
    double own_s = e->end_s - e->begin_s - o->inside_s;
    if (o->kind == WAIT)
        s->p->wait_s[e->stage] += e->end_s - e->begin_s;
    if (o->kind == COLLECTIVE || o->kind == RECEIVE) {
        bool receive = o->kind == RECEIVE;
        struct mpp_profile_row *r = row_of(s, e->stage, receive ? MPP_PROFILE_RECEIVE : MPP_PROFILE_COLLECTIVE, e->name, receive ? 0 : e->bytes);
        r->seen_count++;
        r->seen_s += own_s;
    }
    if (o->kind != PASS && o->kind != UPDATE)
        return;
    bool pass = o->kind == PASS;
    row_of(s, e->stage, pass ? MPP_PROFILE_KERNELS : MPP_PROFILE_UPDATE, pass ? "kernels" : "update", 0)->seen_s += own_s;
    if (e->rank != s->first_rank[e->stage] || starts(e->name, "prologue"))
        return;
    struct mpp_profile *p = s->p;
    p->passes = mpp_arena_grow(s->arena, p->passes, &s->cap_passes, (size_t)p->n_passes + 1, sizeof *p->passes);
    p->passes[p->n_passes++] = (struct mpp_profile_pass){e->stage, pass ? starts(e->name, "backward") : 2, e->begin_s - step_begin_s,
                                                         e->end_s - step_begin_s, o->waits_s};
}

/* The innermost event that is open ends: what it took is told by itself, or is its parent's own time. */
static void pop(struct summing *s, struct open *stack, int *n, double step_begin_s)
{
    struct open *o = &stack[--*n];
    double whole_s = o->e->end_s - o->e->begin_s;
    close_event(s, o, step_begin_s);
    if (*n == 0)
        return;
    struct open *parent = &stack[*n - 1];
    parent->inside_s += o->kind == OTHER ? o->inside_s : whole_s;
    parent->waits_s += o->kind == WAIT ? whole_s : o->waits_s;
}

/* By rank; of a rank by beginning, the longer first. */
static int by_place(const void *a, const void *b)
{
    const struct mpp_trace_read_event *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->begin_s != y->begin_s)
        return x->begin_s < y->begin_s ? -1 : 1;
    return x->end_s > y->end_s ? -1 : x->end_s < y->end_s;
}

/* The last step of the N events of a rank; -1: none. */
static int64_t last_step(const struct mpp_trace_read_event *e, int64_t n)
{
    int64_t found = -1;
    for (int64_t i = 0; i < n; i++)
        if (kind_of(&e[i]) == STEP && (found < 0 || e[i].begin_s >= e[found].begin_s))
            found = i;
    return found;
}

static void add_rank(struct summing *s, const struct mpp_trace_read_event *e, int64_t n, int64_t step)
{
    enum { DEEP = 64 };
    struct open stack[DEEP];
    int depth = 0;
    double begin_s = e[step].begin_s, end_s = e[step].end_s;
    struct mpp_profile *p = s->p;
    p->step_s = end_s - begin_s > p->step_s ? end_s - begin_s : p->step_s;
    p->step = strtoll(e[step].name + strlen("step "), NULL, 10);
    p->n_ranks++;
    for (int64_t i = 0; i < n; i++) {
        enum seen_kind kind = kind_of(&e[i]);
        if (kind == STEP || e[i].kernel || e[i].begin_s < begin_s - SLACK_S || e[i].end_s > end_s + SLACK_S)
            continue;
        while (depth > 0 && (stack[depth - 1].e->end_s <= e[i].begin_s + SLACK_S || depth == DEEP))
            pop(s, stack, &depth, begin_s);
        stack[depth++] = (struct open){.e = &e[i], .kind = kind};
    }
    while (depth > 0)
        pop(s, stack, &depth, begin_s);
}

/* ---- both ---- */

/* A collective of another size than planned (padding), where no other of that name and number is left. */
static void join_sizes(struct summing *s)
{
    struct mpp_profile *p = s->p;
    for (int i = 0; i < p->n_rows; i++)
        for (int k = 0; k < p->n_rows; k++) {
            struct mpp_profile_row *a = &p->rows[i], *b = &p->rows[k];
            bool same = a->stage == b->stage && a->kind == b->kind && strcmp(a->name, b->name) == 0;
            if (i == k || !same || a->planned_count == 0 || a->seen_count != 0 || b->planned_count != 0
                || b->seen_count != a->planned_count)
                continue;
            a->seen_count = b->seen_count;
            a->seen_s = b->seen_s;
            b->seen_count = 0;
            b->seen_s = 0;
        }
    int n = 0;
    for (int i = 0; i < p->n_rows; i++) {
        const struct mpp_profile_row *r = &p->rows[i];
        if (r->kind <= MPP_PROFILE_UPDATE || r->planned_count > 0 || r->seen_count > 0)
            p->rows[n++] = *r;
    }
    p->n_rows = n;
}

static int by_stage(const void *a, const void *b)
{
    const struct mpp_profile_row *x = a, *y = b;
    if (x->stage != y->stage)
        return x->stage - y->stage;
    if (x->kind != y->kind)
        return (int)x->kind - (int)y->kind;
    if (x->planned_s != y->planned_s)
        return x->planned_s > y->planned_s ? -1 : 1;
    int name = strcmp(x->name, y->name);
    return name ? name : x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static void find_misses(struct summing *s)
{
    struct mpp_profile *p = s->p;
    p->miss = mpp_arena_array(s->arena, MOST_MISSES, int);
    for (int n = 0; n < MOST_MISSES; n++) {
        int best = -1;
        double off = 0;
        for (int i = 0; i < p->n_rows; i++) {
            bool told = false;
            for (int k = 0; k < n; k++)
                told = told || p->miss[k] == i;
            double d = fabs(p->rows[i].seen_s - p->rows[i].planned_s);
            if (!told && d > off) {
                off = d;
                best = i;
            }
        }
        if (best < 0 || off < MATTERS * p->step_s)
            return;
        p->miss[p->n_misses++] = best;
    }
}

static enum mpp_status add_seen(struct summing *s, struct mpp_diag *diag, struct mpp_trace_events *t)
{
    struct mpp_profile *p = s->p;
    if (t->n > 0)
        qsort(t->event, (size_t)t->n, sizeof *t->event, by_place);
    for (int64_t i = 0; i < t->n; i++) {
        const struct mpp_trace_read_event *e = &t->event[i];
        if (e->stage >= s->plan->n_stages || e->rank < s->plan->stages[e->stage].first_device
            || e->rank >= s->plan->stages[e->stage].first_device + s->plan->stages[e->stage].n_devices) {
            mpp_diag_error(diag, (struct mpp_loc){p->path, 0}, "this is a trace of another plan: rank %d in stage %d; this one has %d stage%s on %d devices",
                           e->rank, e->stage, s->plan->n_stages, s->plan->n_stages == 1 ? "" : "s", p->dir->cluster->n_devices);
            return MPP_INVALID;
        }
        if (s->ranks[e->stage] == 0 || e->rank < s->first_rank[e->stage])
            s->first_rank[e->stage] = e->rank;
        if (i == 0 || e->rank != e[-1].rank)
            s->ranks[e->stage]++;
    }
    for (int64_t i = 0, end; i < t->n; i = end) {
        for (end = i; end < t->n && t->event[end].rank == t->event[i].rank;)
            end++;
        int64_t step = last_step(t->event + i, end - i);
        if (step < 0) {
            mpp_diag_error(diag, (struct mpp_loc){p->path, 0}, "rank %d has no whole step in this trace", t->event[i].rank);
            return MPP_INVALID;
        }
        add_rank(s, t->event + i, end - i, step);
    }
    for (int i = 0; i < s->plan->n_stages; i++)
        if (s->ranks[i] == 0) {
            mpp_diag_error(diag, (struct mpp_loc){p->path, 0}, "this is a trace of another plan: it has nothing of stage %d", i);
            return MPP_INVALID;
        }
    return MPP_OK;
}

enum mpp_status mpp_profile_read(struct mpp_arena *arena, struct mpp_diag *diag, const char *path, const struct mpp_plandir *dir,
                                 struct mpp_profile **out)
{
    struct mpp_trace_events t;
    MPP_TRY(mpp_trace_read(arena, diag, path, &t));
    struct mpp_profile *p = mpp_arena_array(arena, 1, struct mpp_profile);
    const struct mpp_plan *plan = dir->fitted.plan;
    struct summing s = {.arena = arena, .p = p, .plan = plan, .ranks = mpp_arena_array(arena, plan->n_stages, int),
                        .first_rank = mpp_arena_array(arena, plan->n_stages, int)};
    *p = (struct mpp_profile){.path = path, .dir = dir, .planned_step_s = (double)plan->simulated_ps * 1e-12,
                              .wait_s = mpp_arena_array(arena, plan->n_stages, double)};
    add_planned(&s);
    MPP_TRY(add_seen(&s, diag, &t));
    for (int i = 0; i < p->n_rows; i++) {
        struct mpp_profile_row *r = &p->rows[i];
        r->seen_s /= s.ranks[r->stage];
        r->seen_count = (r->seen_count + s.ranks[r->stage] / 2) / s.ranks[r->stage];
    }
    for (int i = 0; i < plan->n_stages; i++)
        p->wait_s[i] /= s.ranks[i];
    join_sizes(&s);
    qsort(p->rows, (size_t)p->n_rows, sizeof *p->rows, by_stage);
    find_misses(&s);
    *out = p;
    return MPP_OK;
}
