#include "planner/front.h"

#include <string.h>

/* Weights stay below, so that weighted costs do not overflow; and how much more t may weigh than in any plan. */
enum { MOST_WEIGHT = 1 << 16, LEXICOGRAPHIC = 1 << 12 };

static const int64_t UNLIMITED = INT64_C(1) << 50; /* a device's memory is less */

struct finder {
    struct mpp_arena *arena;      /* of the points */
    const struct mpp_fold *fold;
    int64_t micro_batches;
    volatile int *interrupt;
    struct mpp_front *out;
    size_t cap;
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
static bool solve(struct finder *f, const struct mpp_solver_problem *p, int64_t upper, struct mpp_front_point *out,
                  int64_t *out_least)
{
    struct mpp_solver_settings set = mpp_solver_defaults();
    struct mpp_solver_info info;
    struct mpp_solver *solver;
    int32_t *choice = mpp_arena_array(f->arena, p->n_nodes, int32_t);
    set.interrupt = f->interrupt;
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
    out->choice = choice;         /* further nodes of P come after the fold's */
    mpp_fold_times(f->fold, choice, f->micro_batches, &out->t_ps, &out->once_ps);
    *out_least = info.objective;
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

static int64_t value_of(const struct finder *f, struct mpp_front_point x, int64_t t, int64_t once)
{
    return t * f->micro_batches * x.t_ps + once * x.once_ps;
}

/* The least point under weights of B t and once, into the front; false: no news. */
static bool find_least(struct finder *f, int64_t t, int64_t once, int64_t upper, int64_t *out_least)
{
    struct mpp_arena *scratch = mpp_arena_scratch(f->arena);
    struct mpp_solver_problem p = weigh(scratch, f->fold, t, once);
    struct mpp_front_point x;
    bool found = solve(f, &p, upper, &x, out_least) && add_point(f, x);
    mpp_arena_free(scratch);
    return found;
}

/* All least points between A and B, under weights at which both are equal. */
static void find_between(struct finder *f, struct mpp_front_point a, struct mpp_front_point b)
{
    int64_t t = a.once_ps - b.once_ps, once = f->micro_batches * (b.t_ps - a.t_ps), least;
    while (t > MOST_WEIGHT || once > MOST_WEIGHT) {
        t = (t + 1) / 2;
        once = (once + 1) / 2;
    }
    int64_t va = value_of(f, a, t, once), vb = value_of(f, b, t, once);
    if (!find_least(f, t, once, va < vb ? va : vb, &least))
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
    int64_t span = micro_batches * chunks, least = 0;
    *out = (struct mpp_front){0};
    if (!find_least(&f, 1, 1, upper_ps == INT64_MAX ? 0 : upper_ps, &least)) /* t weighs B times as much */
        return;
    find_least(&f, 1, 0, value_of(&f, out->point[0], 1, 0), &least);
    out->least_t_ps = out->point[0].t_ps;
    find_least(&f, LEXICOGRAPHIC, 1, value_of(&f, out->point[0], LEXICOGRAPHIC, 1), &least);
    if (span > 1)                 /* as much as once, or less */
        find_least(&f, 1, span < MOST_WEIGHT ? span : MOST_WEIGHT,
                   value_of(&f, out->point[out->n - 1], 1, span < MOST_WEIGHT ? span : MOST_WEIGHT), &least);
    if (out->n < 2)
        return;
    int n = out->n;
    struct mpp_front_point *seed = mpp_arena_memdup(arena, out->point, sizeof *seed * (size_t)n);
    for (int i = 0; i + 1 < n; i++)
        find_between(&f, seed[i], seed[i + 1]);
}

/* ---- what lies between ---- */

/* A value whose copies count once per step, as a node of its own: its choice is what it is made as and what its one reader
 * wants, so that its cost can fill room. */
static void make_copy_node(struct mpp_arena *arena, struct mpp_solver_value *v, int32_t number, int32_t slot, int64_t each,
                           struct mpp_solver_node *node, struct mpp_solver_value *after)
{
    int32_t n = v->n_forms, k = 0;
    int64_t *cost = mpp_arena_array(arena, n * n, int64_t), *bytes = mpp_arena_array(arena, n * n, int64_t);
    int64_t *never = mpp_arena_array(arena, n * n, int64_t), *once = mpp_arena_array(arena, n * n, int64_t);
    int32_t *from = mpp_arena_array(arena, n * n, int32_t), *to = mpp_arena_array(arena, n * n, int32_t);
    for (int32_t a = 0; a < n; a++)
        for (int32_t b = 0; b < n; b++) {
            never[a * n + b] = a == b ? 0 : MPP_SOLVER_FORBIDDEN;
            if (a != b && v->convert[a * n + b] == MPP_SOLVER_FORBIDDEN)
                continue;
            cost[k] = a == b ? 0 : v->convert[a * n + b];
            once[k] = cost[k] * each;
            bytes[k] = a == b || !v->copy_bytes ? 0 : v->copy_bytes[b];
            from[k] = a;
            to[k++] = b;
        }
    struct mpp_solver_usage *usages = mpp_arena_array(arena, 2, struct mpp_solver_usage);
    usages[0] = (struct mpp_solver_usage){v->copy_first, v->copy_last, bytes};
    usages[1] = (struct mpp_solver_usage){slot, slot, once};
    *node = (struct mpp_solver_node){.name = v->name, .n_choices = k, .cost = cost, .n_usages = 2, .usages = usages};
    *after = (struct mpp_solver_value){.name = v->name, .n_forms = n, .producer = number, .out = to, .n_consumers = 1,
                                       .consumers = v->consumers, .in = v->in, .convert = never};
    int32_t *consumers = mpp_arena_array(arena, 1, int32_t);
    const int32_t **in = mpp_arena_array(arena, 1, const int32_t *);
    *consumers = number;
    *in = from;
    v->consumers = consumers;
    v->in = in;
    v->convert = never;
    v->copy_bytes = NULL;
}

/* P with room for at most MOST of what counts once per step, as bytes at a time after all others. One capacity is that of
 * both, so one of them is counted several times. False: a copy that several read. */
static bool limit_once(struct mpp_arena *arena, const struct mpp_fold *fold, struct mpp_solver_problem *p, int64_t most)
{
    int n = p->n_nodes, m = p->n_values, slot = fold->p->graph->n_groups + 1;
    bool limited = p->capacity_bytes < UNLIMITED;
    int64_t capacity = limited ? p->capacity_bytes : most;
    int64_t many = !limited ? 0 : capacity < most ? (most + capacity - 1) / (capacity > 0 ? capacity : 1) : 1;
    int64_t each = capacity > most && most > 0 ? capacity / most : 1;
    for (int i = 0; i < m; i++)
        if (fold->value_once[i] && p->values[i].n_consumers != 1)
            return false;
    capacity = limited ? capacity * many : capacity;
    struct mpp_solver_node *node = mpp_arena_array(arena, n + m + 1, struct mpp_solver_node);
    struct mpp_solver_value *value = mpp_arena_array(arena, 2 * m, struct mpp_solver_value);
    memcpy(node, p->nodes, sizeof *node * (size_t)n);
    memcpy(value, p->values, sizeof *value * (size_t)m);
    int n_nodes = n, n_values = m;
    for (int i = 0; i < n; i++) {
        struct mpp_solver_usage *u = mpp_arena_array(arena, node[i].n_usages + 1, struct mpp_solver_usage);
        int k = 0;
        for (; limited && k < node[i].n_usages; k++) {
            u[k] = node[i].usages[k];
            u[k].bytes = weighted(arena, u[k].bytes, node[i].n_choices, many);
        }
        if (fold->node_once[i])
            u[k++] = (struct mpp_solver_usage){slot, slot, weighted(arena, fold->solver.nodes[i].cost, node[i].n_choices, each)};
        node[i].usages = u;
        node[i].n_usages = k;
    }
    for (int i = 0; i < m; i++) {
        if (value[i].copy_bytes)
            value[i].copy_bytes = limited ? weighted(arena, value[i].copy_bytes, value[i].n_forms, many) : NULL;
        if (!fold->value_once[i])
            continue;
        struct mpp_solver_value plain = value[i];
        plain.convert = fold->solver.values[i].convert;
        const int64_t *priced = value[i].convert;
        make_copy_node(arena, &plain, n_nodes, slot, each, &node[n_nodes], &value[n_values]);
        int64_t *cost = (int64_t *)node[n_nodes].cost; /* as P weighs it */
        const int32_t *from = plain.in[0], *to = value[n_values].out;
        for (int k = 0; k < node[n_nodes].n_choices; k++)
            cost[k] = from[k] == to[k] ? 0 : priced[from[k] * plain.n_forms + to[k]];
        value[i] = plain;
        n_nodes++;
        n_values++;
    }
    int64_t *zero = mpp_arena_array(arena, 1, int64_t), *filled = mpp_arena_array(arena, 1, int64_t);
    struct mpp_solver_usage *fill = mpp_arena_array(arena, 1, struct mpp_solver_usage);
    *filled = capacity - most * each;
    *fill = (struct mpp_solver_usage){slot, slot, filled};
    node[n_nodes++] = (struct mpp_solver_node){.name = "limit", .n_choices = 1, .cost = zero, .n_usages = 1, .usages = fill};
    p->nodes = node;
    p->values = value;
    p->n_nodes = n_nodes;
    p->n_values = n_values;
    p->capacity_bytes = capacity;
    return true;
}

/* What is surely less than ONCE_PS to who works in doubles. */
static int64_t below(int64_t once_ps)
{
    return once_ps - 1 - once_ps / 100000;
}

/* The least point under a weight of T beside 1 (0: none) that has less once than A and costs less than B; false: none. */
static bool find_below(struct finder *f, int64_t t, int64_t once, struct mpp_front_point a, struct mpp_front_point b,
                       struct mpp_front_point *out)
{
    struct mpp_arena *scratch = mpp_arena_scratch(f->arena);
    struct mpp_solver_problem p = weigh(scratch, f->fold, t, once);
    int64_t least;
    bool ok = limit_once(scratch, f->fold, &p, below(a.once_ps));
    f->out->given_up = f->out->given_up || !ok;
    ok = ok && solve(f, &p, value_of(f, b, t, once), out, &least) && out->t_ps < b.t_ps;
    if (ok)
        (void)add_point(f, *out);
    mpp_arena_free(scratch);
    return ok;
}

/* The points between A and B, each the one of the least t that has less once than the one before. */
static void fill_between(struct finder *f, struct mpp_front_point a, struct mpp_front_point b)
{
    while (below(a.once_ps) > b.once_ps && b.t_ps - a.t_ps > 1) {
        struct mpp_front_point x, y;
        if (!find_below(f, LEXICOGRAPHIC, 1, a, b, &x))
            return;
        while (x.t_ps - a.t_ps > 1 && find_below(f, 1, 0, a, x, &y)) /* a little less t, much more once */
            x = y;
        a = x;
    }
}

void mpp_front_fill(struct mpp_arena *arena, const struct mpp_fold *fold, int64_t micro_batches, volatile int *interrupt,
                    struct mpp_front *f)
{
    struct finder finder = {.arena = arena, .fold = fold, .micro_batches = micro_batches, .interrupt = interrupt, .out = f};
    int n = f->n;
    struct mpp_front_point *seed = mpp_arena_memdup(arena, f->point, sizeof *seed * (size_t)n);
    f->point = mpp_arena_memdup(arena, f->point, sizeof *seed * (size_t)n);
    finder.cap = (size_t)n;
    for (int i = 0; i + 1 < n; i++)
        fill_between(&finder, seed[i], seed[i + 1]);
}
