/* reshard.c - the cheapest way from one sharding to another: Dijkstra over all shardings of a tensor. */
#include "planner/reshard.h"

#include <assert.h>
#include <stdbool.h>

/* (6 dimensions + whole + partial)^3 axes. */
#define MAX_STATES 512

struct node {
    int64_t cost;                 /* INT64_MAX: not reached */
    int steps, before;            /* state it was reached from; -1: the start */
    bool done;
    struct mpp_reshard_step by;
};

struct search {
    const struct mpp_reshard_env *env;
    const struct mpp_gtensor *t;
    int n_states, goal;           /* goal -1: reach all */
    struct node *node;            /* [n_states] */
};

const char *mpp_step_name(enum mpp_step_kind kind)
{
    static const char *const names[] = {
        [MPP_STEP_ALL_REDUCE] = "all-reduce",   [MPP_STEP_REDUCE_SCATTER] = "reduce-scatter",
        [MPP_STEP_ALL_GATHER] = "all-gather",   [MPP_STEP_ALL_TO_ALL] = "all-to-all",
        [MPP_STEP_SLICE] = "slice",             [MPP_STEP_TO_PARTIAL] = "to-partial",
    };
    return names[kind];
}

void mpp_reshard_env_init(const struct mpp_cluster *cluster, const struct mpp_mesh *mesh, int first,
                          struct mpp_reshard_env *out)
{
    out->cluster = cluster;
    out->mesh = mesh;
    out->first = first;
    out->receives = 1;
    for (unsigned mask = 1; mask < 1u << mesh->n_axes; mask++)
        mpp_groups_init(cluster, mesh, first, mask, &out->groups[mask]);
}

int mpp_reshard_n_states(const struct mpp_mesh *mesh, int n_dims)
{
    int n = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        n *= n_dims + 2;
    return n;
}

int mpp_reshard_state(const struct mpp_mesh *mesh, int n_dims, struct mpp_sharding s)
{
    int state = 0;
    for (int a = mesh->n_axes - 1; a >= 0; a--)
        state = state * (n_dims + 2) + s.axis[a] + 2;
    return state;
}

static struct mpp_sharding sharding_of(const struct mpp_mesh *mesh, int n_dims, int state)
{
    struct mpp_sharding s = mpp_sharding_whole();
    for (int a = 0; a < mesh->n_axes; a++) {
        s.axis[a] = (int8_t)(state % (n_dims + 2) - 2);
        state /= n_dims + 2;
    }
    return s;
}

static struct mpp_sharding with(struct mpp_sharding s, unsigned mask, int what)
{
    for (int a = 0; a < MPP_MAX_AXES; a++)
        if (mask >> a & 1)
            s.axis[a] = (int8_t)what;
    return s;
}

/* May the axes of MASK be cut into DIM of S: inside all axes that cut it already, and not into empty blocks? */
static bool can_cut(const struct search *q, struct mpp_sharding s, unsigned mask, int dim)
{
    unsigned there = mpp_sharding_mask(s, dim);
    int64_t parts = 1;
    if (there >= (mask & -mask))
        return false;
    for (int a = 0; a < q->env->mesh->n_axes; a++)
        if ((there | mask) >> a & 1)
            parts *= q->env->mesh->size[a];
    return q->t->dims[dim].size >= parts;
}

/* Do the axes of MASK all cut one dimension, as the innermost ones? Which? Else -1. */
static int innermost_on(struct mpp_sharding s, unsigned mask)
{
    int dim = -1;
    for (int a = 0; a < MPP_MAX_AXES; a++)
        if (mask >> a & 1) {
            if (s.axis[a] < 0 || (dim >= 0 && s.axis[a] != dim))
                return -1;
            dim = s.axis[a];
        }
    return (mpp_sharding_mask(s, dim) & ~mask) >= (mask & -mask) ? -1 : dim;
}

static bool all_are(struct mpp_sharding s, unsigned mask, int what)
{
    for (int a = 0; a < MPP_MAX_AXES; a++)
        if ((mask >> a & 1) && s.axis[a] != what)
            return false;
    return true;
}

static int64_t step_cost(const struct mpp_reshard_env *env, const struct mpp_reshard_step *step, int64_t small)
{
    static const enum mpp_collective what[] = {
        [MPP_STEP_ALL_REDUCE] = MPP_COLLECTIVE_ALL_REDUCE, [MPP_STEP_REDUCE_SCATTER] = MPP_COLLECTIVE_REDUCE_SCATTER,
        [MPP_STEP_ALL_GATHER] = MPP_COLLECTIVE_ALL_GATHER, [MPP_STEP_ALL_TO_ALL] = MPP_COLLECTIVE_ALL_TO_ALL,
    };
    if (step->kind == MPP_STEP_TO_PARTIAL && small <= 4)
        return 1;                 /* a scalar is scaled where it is added up */
    if (step->kind == MPP_STEP_SLICE || step->kind == MPP_STEP_TO_PARTIAL)
        return mpp_cost_memory(&env->cluster->device, 2.0 * (double)small);
    return mpp_cost_collective(env->cluster, &env->groups[step->mask], what[step->kind], (double)step->bytes);
}

/* Reach the sharding TO from state AT by one step, if that is cheaper. Equal costs: fewer steps, then the first found. */
static void relax(struct search *q, int at, enum mpp_step_kind kind, unsigned mask, int dim, int to_dim,
                  struct mpp_sharding from, struct mpp_sharding to)
{
    const struct mpp_mesh *mesh = q->env->mesh;
    struct node *here = &q->node[at], *there = &q->node[mpp_reshard_state(mesh, q->t->n_dims, to)];
    if (there->done || here->steps == MPP_RESHARD_MAX_STEPS)
        return;
    int64_t a = mpp_sharding_bytes(q->t, mesh, from), b = mpp_sharding_bytes(q->t, mesh, to);
    struct mpp_reshard_step step = {kind, mask, dim, to_dim, from, to, a > b ? a : b, 0};
    step.cost_ps = step_cost(q->env, &step, b);
    if (step.cost_ps >= INT64_MAX - here->cost)
        return;
    int64_t cost = here->cost + step.cost_ps;
    if (cost < there->cost || (cost == there->cost && here->steps + 1 < there->steps)) {
        there->cost = cost;
        there->steps = here->steps + 1;
        there->before = at;
        there->by = step;
    }
}

static void relax_mask(struct search *q, int at, struct mpp_sharding s, unsigned mask)
{
    int n_dims = q->t->n_dims, on = innermost_on(s, mask);
    if (all_are(s, mask, MPP_PARTIAL)) {
        relax(q, at, MPP_STEP_ALL_REDUCE, mask, -1, -1, s, with(s, mask, MPP_WHOLE));
        for (int d = 0; d < n_dims; d++)
            if (can_cut(q, s, mask, d))
                relax(q, at, MPP_STEP_REDUCE_SCATTER, mask, d, -1, s, with(s, mask, d));
    } else if (all_are(s, mask, MPP_WHOLE)) {
        for (int d = 0; d < n_dims; d++)
            if (can_cut(q, s, mask, d))
                relax(q, at, MPP_STEP_SLICE, mask, d, -1, s, with(s, mask, d));
        if (mpp_dtype_is_float(q->t->dtype))
            relax(q, at, MPP_STEP_TO_PARTIAL, mask, -1, -1, s, with(s, mask, MPP_PARTIAL));
    } else if (on >= 0) {
        relax(q, at, MPP_STEP_ALL_GATHER, mask, on, -1, s, with(s, mask, MPP_WHOLE));
        for (int d = 0; d < n_dims; d++)
            if (d != on && can_cut(q, s, mask, d))
                relax(q, at, MPP_STEP_ALL_TO_ALL, mask, on, d, s, with(s, mask, d));
    }
}

static void search(struct search *q, struct mpp_sharding from)
{
    const struct mpp_mesh *mesh = q->env->mesh;
    for (int i = 0; i < q->n_states; i++)
        q->node[i] = (struct node){.cost = INT64_MAX, .before = -1};
    q->node[mpp_reshard_state(mesh, q->t->n_dims, from)].cost = 0;
    for (;;) {
        int at = -1;
        for (int i = 0; i < q->n_states; i++)
            if (!q->node[i].done && q->node[i].cost < INT64_MAX && (at < 0 || q->node[i].cost < q->node[at].cost))
                at = i;
        if (at < 0 || at == q->goal)
            return;
        q->node[at].done = true;
        struct mpp_sharding s = sharding_of(mesh, q->t->n_dims, at);
        for (unsigned mask = 1; mask < 1u << mesh->n_axes; mask++) {
            bool used = true;
            for (int a = 0; a < mesh->n_axes; a++)
                used = used && (!(mask >> a & 1) || mesh->size[a] > 1);
            if (used)
                relax_mask(q, at, s, mask);
        }
    }
}

int mpp_reshard_path_in(const struct mpp_reshard_env *env, const struct mpp_gtensor *t, struct mpp_sharding from,
                        struct mpp_sharding to, struct mpp_reshard_step *out_steps, int64_t *out_cost_ps)
{
    struct node node[MAX_STATES];
    struct search q = {.env = env, .t = t, .node = node};
    *out_cost_ps = 0;
    if (mpp_sharding_equal(from, to))
        return 0;
    q.n_states = mpp_reshard_n_states(env->mesh, t->n_dims);
    q.goal = mpp_reshard_state(env->mesh, t->n_dims, to);
    assert(q.n_states <= MAX_STATES);
    search(&q, from);
    if (node[q.goal].cost == INT64_MAX)
        return -1;
    int n = node[q.goal].steps;
    *out_cost_ps = node[q.goal].cost;
    for (int i = n - 1, at = q.goal; i >= 0; i--, at = node[at].before)
        out_steps[i] = node[at].by;
    return n;
}

int mpp_reshard_path(const struct mpp_cluster *cluster, const struct mpp_mesh *mesh, const struct mpp_gtensor *t,
                     struct mpp_sharding from, struct mpp_sharding to, struct mpp_reshard_step *out_steps,
                     int64_t *out_cost_ps)
{
    struct mpp_reshard_env env;
    mpp_reshard_env_init(cluster, mesh, 0, &env);
    return mpp_reshard_path_in(&env, t, from, to, out_steps, out_cost_ps);
}

void mpp_reshard_costs_from(const struct mpp_reshard_env *env, const struct mpp_gtensor *t, struct mpp_sharding from,
                            int64_t *out_cost_ps)
{
    struct node node[MAX_STATES];
    struct search q = {.env = env, .t = t, .goal = -1, .node = node};
    q.n_states = mpp_reshard_n_states(env->mesh, t->n_dims);
    assert(q.n_states <= MAX_STATES);
    search(&q, from);
    for (int i = 0; i < q.n_states; i++)
        out_cost_ps[i] = node[i].cost;
}
