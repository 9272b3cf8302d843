#include "planner/front.h"

#include <string.h>

/* Weights stay below, and so low that what costs twice as much as the best is not taken for impossible; and how much more t
 * may weigh than in any plan. */
enum { MOST_WEIGHT = 1 << 16, LEXICOGRAPHIC = 1 << 12 };
static const int64_t WORK = 20000000; /* for one program */

struct finder {
    struct mpp_arena *arena;      /* of the points */
    const struct mpp_fold *fold;
    int64_t micro_batches;
    volatile int *interrupt;
    struct mpp_front *out;
    size_t cap;
    int64_t most_weight;          /* of t and of once */
};

/* ---- one program ---- */

static const int64_t *weighted(struct mpp_arena *arena, const int64_t *cost, int64_t n, int64_t weight)
{
    int64_t *x = mpp_arena_array(arena, n, int64_t);
    for (int64_t i = 0; i < n; i++)
        if (__builtin_mul_overflow(cost[i], weight, &x[i]))
            x[i] = cost[i] == 0 ? 0 : MPP_SOLVER_FORBIDDEN;
    return x;
}

/* FOLD's program with every cost per micro-batch T times, every cost once per step ONCE times. */
static struct mpp_solver_problem weigh(struct mpp_arena *arena, const struct mpp_fold *fold, int64_t t, int64_t once)
{
    struct mpp_solver_problem p = fold->solver;
    struct mpp_solver_node *node = mpp_arena_memdup(arena, p.nodes, sizeof *node * (size_t)p.n_nodes);
    struct mpp_solver_value *value = mpp_arena_memdup(arena, p.values, sizeof *value * (size_t)p.n_values);
    for (int i = 0; i < p.n_nodes; i++)
        node[i].cost = weighted(arena, node[i].cost, node[i].n_choices, fold->node_once[i] ? once : t);
    for (int i = 0; i < p.n_values; i++)
        value[i].convert = weighted(arena, value[i].convert, (int64_t)value[i].n_forms * value[i].n_forms,
                                    fold->value_once[i] ? once : t);
    p.nodes = node;
    p.values = value;
    return p;
}

/* The least choice of P below UPPER (0: any) as a point; false: there is none. */
static bool solve(struct finder *f, const struct mpp_solver_problem *p, int64_t upper, struct mpp_front_point *out)
{
    struct mpp_solver_settings set = mpp_solver_defaults();
    struct mpp_solver_info info;
    struct mpp_solver *solver;
    int32_t *choice = mpp_arena_array(f->arena, p->n_nodes, int32_t);
    set.interrupt = f->interrupt;
    set.work_limit = WORK;
    set.upper_bound = upper;
    f->out->solved++;
    if (mpp_solver_setup(p, &set, &solver) != MPP_OK) {
        f->out->given_up = true;
        return false;
    }
    enum mpp_status st = mpp_solver_solve(solver, choice, &info);
    mpp_solver_free(solver);
    bool proven = st == MPP_OK ? info.status == MPP_SOLVER_OPTIMAL
                               : st == MPP_INFEASIBLE || (upper > 0 && info.bound >= upper);
    f->out->given_up = f->out->given_up || !proven;
    if (st != MPP_OK)
        return false;
    out->choice = choice;
    mpp_fold_times(f->fold, choice, f->micro_batches, &out->t_ps, &out->once_ps);
    return true;
}

/* Put X into the front unless a point is no worse; points that X is no worse than go. False: X was no news. */
static bool add_point(struct finder *f, struct mpp_front_point x)
{
    struct mpp_front *o = f->out;
    int n = 0, at = 0;
    for (int i = 0; i < o->n; i++)
        if (o->point[i].t_ps <= x.t_ps && o->point[i].once_ps <= x.once_ps)
            return false;
    for (int i = 0; i < o->n; i++)
        if (o->point[i].t_ps < x.t_ps || o->point[i].once_ps < x.once_ps)
            o->point[n++] = o->point[i];
    o->point = mpp_arena_grow(f->arena, o->point, &f->cap, (size_t)n + 1, sizeof *o->point);
    while (at < n && o->point[at].t_ps < x.t_ps)
        at++;
    memmove(&o->point[at + 1], &o->point[at], sizeof *o->point * (size_t)(n - at));
    o->point[at] = x;
    o->n = n + 1;
    return true;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* INT64_MAX: at least as much. */
static int64_t value_of(const struct finder *f, struct mpp_front_point x, int64_t t, int64_t once)
{
    int64_t a, b, sum;
    bool over = __builtin_mul_overflow(t * f->micro_batches, x.t_ps, &a) || __builtin_mul_overflow(once, x.once_ps, &b)
                || __builtin_add_overflow(a, b, &sum);
    return over ? INT64_MAX : sum;
}

/* The least point under weights of B t and once, into the front; false: no news. */
static bool find_least(struct finder *f, int64_t t, int64_t once, int64_t upper)
{
    struct mpp_arena *scratch = mpp_arena_scratch(f->arena);
    struct mpp_solver_problem p = weigh(scratch, f->fold, t, once);
    struct mpp_front_point x;
    bool found = solve(f, &p, upper, &x) && add_point(f, x);
    mpp_arena_free(scratch);
    return found;
}

/* All least points between A and B, under weights at which both are equal. */
static void find_between(struct finder *f, struct mpp_front_point a, struct mpp_front_point b)
{
    int64_t t = a.once_ps - b.once_ps, once = f->micro_batches * (b.t_ps - a.t_ps);
    while ((t > f->most_weight || once > f->most_weight) && (t > 1 || once > 1)) {
        t = (t + 1) / 2;
        once = (once + 1) / 2;
    }
    int64_t va = value_of(f, a, t, once), vb = value_of(f, b, t, once);
    if (!find_least(f, t, once, va < vb ? va : vb))
        return;
    for (int i = 0; i < f->out->n; i++) {
        struct mpp_front_point x = f->out->point[i];
        if (x.t_ps > a.t_ps && x.t_ps < b.t_ps) {
            find_between(f, a, x);
            find_between(f, x, b);
            return;
        }
    }
}

void mpp_front_find(struct mpp_arena *arena, const struct mpp_fold *fold, int64_t micro_batches, int chunks, int64_t upper_ps,
                    volatile int *interrupt, struct mpp_front *out)
{
    struct finder f = {.arena = arena, .fold = fold, .micro_batches = micro_batches, .interrupt = interrupt, .out = out};
    *out = (struct mpp_front){0};
    if (!find_least(&f, 1, 1, upper_ps == INT64_MAX ? 0 : upper_ps)) /* t weighs B times as much */
        return;
    f.most_weight = least(MOST_WEIGHT, MPP_SOLVER_INF / 2 / (value_of(&f, out->point[0], 1, 1) + 1));
    f.most_weight = f.most_weight > 1 ? f.most_weight : 1;
    int64_t most = least(micro_batches * chunks, f.most_weight), first = least(LEXICOGRAPHIC, f.most_weight);
    find_least(&f, first, 1, value_of(&f, out->point[0], first, 1));
    if (fold->solver.capacity_bytes == INT64_MAX) /* a little less t for much more once */
        find_least(&f, 1, 0, value_of(&f, out->point[0], 1, 0));
    if (most > 1)                 /* as much as once, or less */
        find_least(&f, 1, most, value_of(&f, out->point[out->n - 1], 1, most));
    if (out->n < 2)
        return;
    int n = out->n;
    struct mpp_front_point *seed = mpp_arena_memdup(arena, out->point, sizeof *seed * (size_t)n);
    for (int i = 0; i + 1 < n; i++)
        find_between(&f, seed[i], seed[i + 1]);
}
