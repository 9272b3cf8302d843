/* exhaustive.c - see exhaustive.h. */
#include "tests/exhaustive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/reshard.h"

enum { MAX_NODES = 96, MAX_FLOWS = 400, MAX_TIMES = 160 };
static const int64_t TOO_MANY = 2000000; /* visits of the search in depth */
enum { MOST_STATES = 40000 };

/* ---- what a choice of all nodes costs and needs ---- */

/* A tensor on its way from its maker to its readers of one phase. */
struct flow {
    mpp_id tensor;
    int maker, n_readers;         /* nodes */
    int reader[MAX_NODES];
    int operand[MAX_NODES], group[MAX_NODES]; /* per reader: which operand of which group; group -1: a resting parameter */
    int made_group, made_operand; /* -1: an input or a parameter */
    bool step;                    /* of prologue, forward, backward: a kept parameter is found in its kept form too */
    int64_t times;
    int first, last;              /* a copy lives so long */
    bool free_bytes, hidden;      /* hidden: of a collective that may go on beside kernels */
    int ready;                    /* position in the order at which all its nodes are decided */
};

struct world {
    struct mpp_arena *arena;
    const struct mpp_graph *g;
    const struct mpp_cluster *cluster;
    const struct mpp_mesh *mesh;
    const struct mpp_stage_problem *p;
    int n_nodes, n_flows, n_times;
    int order[MAX_NODES];
    struct flow flow[MAX_FLOWS];
    int n_ready[MAX_NODES], *ready[MAX_NODES]; /* by position: flows */
    int64_t *cost[MAX_NODES];     /* [choices] */
    int64_t **way;                /* [n_tensors], by both shardings: cost + 1; 0: not asked for yet */
    int node_of_group[MAX_TIMES], place_of_group[MAX_TIMES];
    int64_t capacity;
    double hidden;                /* of what may go on beside kernels, the share that costs nothing */
    bool no_limit;                /* whatever is chosen fits */
    int64_t limit;                /* what costs more is of no interest */
    int64_t rest[MAX_NODES + 1];  /* the least that the nodes from a position on cost by themselves, */
    int64_t rest_mem[MAX_NODES + 1][MAX_TIMES]; /* and need */
};

static struct mpp_sharding operand_sharding(const struct world *w, int group, int operand, const int *choice)
{
    int node = w->node_of_group[group];
    struct mpp_split split = w->p->node[node].split[w->place_of_group[group]][choice[node]];
    return mpp_split_operand(w->g->groups[group].rule, split, operand);
}

/* The cost of bringing T from one sharding to another, INT64_MAX: there is no way. Looked up once. */
static int64_t way(const struct world *w, mpp_id t, struct mpp_sharding from, struct mpp_sharding to)
{
    const struct mpp_gtensor *x = &w->g->tensors[t];
    int n = mpp_reshard_n_states(w->mesh, x->n_dims);
    if (!w->way[t])
        w->way[t] = mpp_arena_array(w->arena, n * n, int64_t);
    int64_t *at = &w->way[t][mpp_reshard_state(w->mesh, x->n_dims, from) * n + mpp_reshard_state(w->mesh, x->n_dims, to)];
    if (*at == 0) {
        struct mpp_reshard_step steps[MPP_RESHARD_MAX_STEPS];
        int steps_n = mpp_reshard_path(w->cluster, w->mesh, x, from, to, steps, at);
        *at = steps_n < 0 ? INT64_MAX : *at + 1;
    }
    return *at == INT64_MAX ? INT64_MAX : *at - 1;
}

static int64_t unhidden(const struct world *w, int64_t cost)
{
    return cost - (int64_t)(w->hidden * (double)cost);
}

static void occupy(int64_t *mem, int first, int last, int64_t bytes)
{
    for (int t = first; t <= last; t++)
        mem[t] += bytes;
}

static bool has_partial(struct mpp_sharding s, struct mpp_sharding *out_whole)
{
    bool any = false;
    *out_whole = s;
    for (int a = 0; a < MPP_MAX_AXES; a++)
        if (s.axis[a] == MPP_PARTIAL) {
            any = true;
            out_whole->axis[a] = MPP_WHOLE;
        }
    return any;
}

/* May some choice of F's maker leave partial sums of which TO is the all-reduced form? The planner lets gradients be
 * reduced in place. */
static bool in_place(const struct world *w, const struct flow *f, struct mpp_sharding to)
{
    if (w->g->tensors[f->tensor].role != MPP_ROLE_ACCUM || f->made_group < 0)
        return false;
    const struct mpp_stage_node *node = &w->p->node[f->maker];
    for (int k = 0; k < node->n_choices; k++) {
        struct mpp_sharding whole, s = mpp_split_operand(w->g->groups[f->made_group].rule,
                                                         node->split[w->place_of_group[f->made_group]][k], f->made_operand);
        if (has_partial(s, &whole) && mpp_sharding_equal(whole, to))
            return true;
    }
    return false;
}

/* What F costs under CHOICE; its copies are added to MEM. INT64_MAX: impossible. */
static int64_t flow_cost(const struct world *w, const struct flow *f, const int *choice, int64_t *mem)
{
    const struct mpp_stage_node *maker = &w->p->node[f->maker];
    struct mpp_sharding made, seen[MAX_NODES];
    int n_seen = 0;
    int64_t sum = 0;
    bool kept = false;
    if (f->made_group >= 0) {
        made = operand_sharding(w, f->made_group, f->made_operand, choice);
    } else {
        made = maker->rest[choice[f->maker]];
        kept = f->step && !mpp_sharding_equal(made, maker->gather[choice[f->maker]]);
    }
    for (int r = 0; r < f->n_readers; r++) {
        struct mpp_sharding want = f->group[r] < 0 ? w->p->node[f->reader[r]].rest[choice[f->reader[r]]]
                                                   : operand_sharding(w, f->group[r], f->operand[r], choice);
        bool had = mpp_sharding_equal(want, made);
        for (int i = 0; i < n_seen; i++)
            had = had || mpp_sharding_equal(want, seen[i]);
        if (had)
            continue;
        if (kept) {
            if (!mpp_sharding_equal(want, maker->gather[choice[f->maker]]))
                return INT64_MAX;
            continue;
        }
        int64_t cost = way(w, f->tensor, made, want);
        if (cost == INT64_MAX)
            return INT64_MAX;
        seen[n_seen++] = want;
        sum += f->times * (f->hidden ? unhidden(w, cost) : cost);
        if (!f->free_bytes && w->g->tensors[f->tensor].n_dims > 0 && !in_place(w, f, want))
            occupy(mem, f->first, f->last, mpp_sharding_bytes(&w->g->tensors[f->tensor], w->mesh, want));
    }
    return sum;
}

/* What NODE's own tensors need under its choice K. */
static void node_memory(const struct world *w, int node, int k, int64_t *mem)
{
    const struct mpp_graph *g = w->g;
    const struct mpp_stage_node *x = &w->p->node[node];
    int end = w->n_times - 1;
    if (x->kind != MPP_NODE_GROUPS) {
        occupy(mem, 0, end, mpp_sharding_bytes(&g->tensors[x->tensor], w->mesh, x->rest[k]));
        if (!mpp_sharding_equal(x->rest[k], x->gather[k]))
            occupy(mem, 0, end, mpp_sharding_bytes(&g->tensors[x->tensor], w->mesh, x->gather[k]));
    }
    for (int i = 0; i < x->n_groups; i++) {
        const struct mpp_group *group = &g->groups[x->groups[i]];
        for (int o = 0; o < group->n_in + group->n_out; o++) {
            mpp_id id = o < group->n_in ? group->in[o] : group->out[o - group->n_in];
            if (id < 0 || g->tensors[id].n_dims == 0)
                continue;
            const struct mpp_gtensor *t = &g->tensors[id];
            int64_t bytes = mpp_sharding_bytes(t, w->mesh, mpp_split_operand(group->rule, x->split[i][k], o));
            if (o < group->n_in) {
                if (t->role == MPP_ROLE_STATE)
                    occupy(mem, 0, end, bytes);
            } else if (t->role == MPP_ROLE_ACCUM) {
                occupy(mem, 0, end, bytes);
            } else if (t->updates < 0) {
                int last = x->groups[i];
                for (int r = 0; r < g->n_groups; r++)
                    for (int q = 0; q < g->groups[r].n_in; q++)
                        last = g->groups[r].in[q] == id ? r : last;
                occupy(mem, x->groups[i], last, bytes);
            }
        }
    }
}

/* ---- setting up ---- */

static void add_reader(struct flow *f, int node, int group, int operand)
{
    f->reader[f->n_readers] = node;
    f->group[f->n_readers] = group;
    f->operand[f->n_readers++] = operand;
}

/* Returns false where there are too many. */
static bool add_flow(struct world *w, struct flow *f)
{
    if (f->n_readers == 0)
        return true;
    if (w->n_flows == MAX_FLOWS)
        return false;
    w->flow[w->n_flows++] = *f;
    return true;
}

static bool flows_of(struct world *w, mpp_id t, int maker, int made_group, int made_operand)
{
    const struct mpp_graph *g = w->g;
    enum mpp_role role = g->tensors[t].role;
    bool ok = true;
    for (int phase = MPP_PHASE_PROLOGUE; phase <= MPP_PHASE_UPDATE; phase++) {
        struct flow f = {.tensor = t, .maker = maker, .made_group = made_group, .made_operand = made_operand,
                         .step = phase != MPP_PHASE_UPDATE, .first = -1,
                         .times = phase == MPP_PHASE_UPDATE ? 1 : g->global_batch / g->batch};
        f.hidden = role == MPP_ROLE_ACCUM ? phase == MPP_PHASE_UPDATE && g->tensors[t].param >= 0
                   : role == MPP_ROLE_PARAM && (phase == MPP_PHASE_FORWARD || phase == MPP_PHASE_BACKWARD);
        for (int i = 0; i < g->n_groups; i++)
            for (int o = 0; o < g->groups[i].n_in && (int)g->groups[i].phase == phase; o++) {
                if (g->groups[i].in[o] != t)
                    continue;
                if (f.n_readers == MAX_NODES)
                    return false;
                add_reader(&f, w->node_of_group[i], i, o);
                if (w->node_of_group[i] != maker) { /* those planned with the maker read it as it is made */
                    f.first = f.first < 0 ? i : f.first;
                    f.last = i;
                }
            }
        ok = ok && add_flow(w, &f);
    }
    mpp_id param = g->tensors[t].updates;
    for (int n = 0; n < w->n_nodes && param >= 0 && made_group >= 0; n++)
        if (w->p->node[n].kind != MPP_NODE_GROUPS && w->p->node[n].tensor == param) {
            struct flow f = {.tensor = t, .maker = maker, .made_group = made_group, .made_operand = made_operand,
                             .times = 1, .free_bytes = true};
            add_reader(&f, n, -1, 0);
            ok = ok && add_flow(w, &f);
        }
    return ok;
}

static bool touches(const struct flow *f, int node)
{
    bool has = f->maker == node;
    for (int r = 0; r < f->n_readers; r++)
        has = has || f->reader[r] == node;
    return has;
}

static bool are_near(const struct world *w, int a, int b)
{
    for (int i = 0; i < w->n_flows; i++)
        if (touches(&w->flow[i], a) && touches(&w->flow[i], b))
            return true;
    return false;
}

/* What must be decided to be done with NODE: the logarithm of the choices. *OUT_BEGUN: something near is decided. */
static double left_around(const struct world *w, const int *place, int node, bool *out_begun)
{
    double left = 0;
    *out_begun = false;
    for (int n = 0; n < w->n_nodes; n++) {
        if (w->p->node[n].n_choices == 1 || (n != node && !are_near(w, node, n)))
            continue;
        *out_begun = *out_begun || place[n] >= 0;
        left += place[n] < 0 ? log(w->p->node[n].n_choices) + 0.01 : 0;
    }
    return left;
}

/* Nodes in an order that keeps few open questions: those without a choice, then again and again all around the one that
 * is done with soonest. */
static void find_order(struct world *w)
{
    int place[MAX_NODES], at = 0;
    for (int n = 0; n < w->n_nodes; n++) {
        place[n] = w->p->node[n].n_choices == 1 ? at : -1;
        if (place[n] >= 0)
            w->order[at++] = n;
    }
    for (int first = at; at < w->n_nodes;) {
        int best = -1;
        double least = 0;
        for (int n = 0; n < w->n_nodes; n++) {
            bool begun;
            double left = left_around(w, place, n, &begun);
            if (left > 0 && !begun && at > first)
                left += 1000;     /* nothing near is decided: only where nothing else is left */
            if (left > 0 && (best < 0 || left < least)) {
                best = n;
                least = left;
            }
        }
        for (int n = 0; n < w->n_nodes; n++)
            if (place[n] < 0 && (n == best || are_near(w, best, n))) {
                place[n] = at;
                w->order[at++] = n;
            }
    }
    for (int i = 0; i < w->n_flows; i++) {
        struct flow *f = &w->flow[i];
        f->ready = place[f->maker];
        for (int r = 0; r < f->n_readers; r++)
            f->ready = place[f->reader[r]] > f->ready ? place[f->reader[r]] : f->ready;
    }
    for (int k = 0; k < w->n_nodes; k++) {
        w->ready[k] = mpp_arena_array(w->arena, w->n_flows + 1, int);
        for (int i = 0; i < w->n_flows; i++)
            if (w->flow[i].ready == k)
                w->ready[k][w->n_ready[k]++] = i;
    }
}

static void find_costs(struct world *w)
{
    int64_t most[MAX_TIMES] = {0}, all = 0;
    for (int n = 0; n < w->n_nodes; n++) {
        const struct mpp_stage_node *x = &w->p->node[n];
        int64_t largest = 0;
        w->cost[n] = mpp_arena_array(w->arena, x->n_choices, int64_t);
        for (int k = 0; k < x->n_choices; k++) {
            int64_t mem[MAX_TIMES] = {0}, internal;
            if (x->kind != MPP_NODE_GROUPS && !mpp_sharding_equal(x->rest[k], x->gather[k]))
                w->cost[n][k] = unhidden(w, way(w, x->tensor, x->rest[k], x->gather[k]));
            for (int i = 0; i < x->n_groups; i++) {
                const struct mpp_group *group = &w->g->groups[x->groups[i]];
                int64_t times = group->phase == MPP_PHASE_UPDATE ? 1 : w->g->global_batch / w->g->batch;
                int64_t cost = mpp_price_group(w->g, w->cluster, w->mesh, group, x->split[i][k], &internal);
                w->cost[n][k] += times * (cost + internal);
            }
            node_memory(w, n, k, mem);
            for (int t = 0; t < w->n_times; t++)
                largest = mem[t] > largest ? mem[t] : largest;
        }
        most[0] += largest;
    }
    for (int i = 0; i < w->n_flows; i++) /* each reader at most a whole copy */
        all += w->flow[i].n_readers * mpp_tensor_bytes(&w->g->tensors[w->flow[i].tensor]);
    w->no_limit = w->capacity > most[0] + all;
}

static void find_rest(struct world *w)
{
    for (int at = w->n_nodes - 1; at >= 0; at--) {
        int64_t cost = INT64_MAX, mem[MAX_TIMES];
        int node = w->order[at];
        for (int k = 0; k < w->p->node[node].n_choices; k++) {
            int64_t now[MAX_TIMES] = {0};
            node_memory(w, node, k, now);
            cost = w->cost[node][k] < cost ? w->cost[node][k] : cost;
            for (int t = 0; t < w->n_times; t++)
                mem[t] = k == 0 || now[t] < mem[t] ? now[t] : mem[t];
        }
        w->rest[at] = w->rest[at + 1] + cost;
        for (int t = 0; t < w->n_times; t++)
            w->rest_mem[at][t] = w->rest_mem[at + 1][t] + mem[t];
    }
}

/* False where it is too large. */
static bool world_new(struct world *w, struct mpp_arena *arena, const struct mpp_stage_problem *p,
                      const struct mpp_cluster *cluster, const struct mpp_mesh *mesh, double hidden, int64_t capacity)
{
    const struct mpp_graph *g = p->graph;
    *w = (struct world){.arena = arena, .g = g, .cluster = cluster, .mesh = mesh, .p = p, .n_nodes = p->solver.n_nodes,
                        .n_times = g->n_groups, .capacity = capacity};
    w->hidden = cluster->kind == MPP_LINK_SHARED && cluster->n_nodes == 1 ? 0 : hidden;
    if (w->n_nodes > MAX_NODES || g->n_groups > MAX_TIMES)
        return false;
    w->way = mpp_arena_array(arena, g->n_tensors, int64_t *);
    for (int n = 0; n < w->n_nodes; n++)
        for (int i = 0; i < p->node[n].n_groups; i++) {
            w->node_of_group[p->node[n].groups[i]] = n;
            w->place_of_group[p->node[n].groups[i]] = i;
        }
    bool ok = true;
    for (int n = 0; n < w->n_nodes; n++)
        if (p->node[n].kind != MPP_NODE_GROUPS)
            ok = ok && flows_of(w, p->node[n].tensor, n, -1, 0);
    for (int i = 0; i < g->n_groups; i++)
        for (int o = 0; o < g->groups[i].n_out; o++)
            ok = ok && flows_of(w, g->groups[i].out[o], w->node_of_group[i], i, g->groups[i].n_in + o);
    if (!ok)
        return false;
    find_order(w);
    find_costs(w);
    find_rest(w);
    return true;
}

/* Decide position AT as CHOICE says: what that costs (INT64_MAX: impossible), and its bytes into MEM. */
static int64_t settle(const struct world *w, int at, const int *choice, int64_t *mem)
{
    int node = w->order[at];
    int64_t cost = w->cost[node][choice[node]];
    if (!w->no_limit)
        node_memory(w, node, choice[node], mem);
    for (int i = 0; i < w->n_ready[at]; i++) {
        int64_t c = flow_cost(w, &w->flow[w->ready[at][i]], choice, mem);
        if (c == INT64_MAX)
            return INT64_MAX;
        cost += c;
    }
    for (int t = 0; t < w->n_times && !w->no_limit; t++)
        if (mem[t] + w->rest_mem[at + 1][t] > w->capacity)
            return INT64_MAX;
    return cost;
}

/* ---- one: depth first ---- */

struct depth {
    const struct world *w;
    int choice[MAX_NODES];
    int64_t best, visits;
};

static void descend(struct depth *d, int at, int64_t cost, const int64_t *mem)
{
    const struct world *w = d->w;
    if (at == w->n_nodes) {
        d->best = cost < d->best ? cost : d->best;
        return;
    }
    for (int k = 0; k < w->p->node[w->order[at]].n_choices && d->visits < TOO_MANY; k++) {
        int64_t now[MAX_TIMES];
        memcpy(now, mem, sizeof *now * (size_t)w->n_times);
        d->choice[w->order[at]] = k;
        d->visits++;
        int64_t more = settle(w, at, d->choice, now);
        if (more < INT64_MAX && cost + more + w->rest[at + 1] < d->best && cost + more + w->rest[at + 1] <= w->limit)
            descend(d, at + 1, cost + more, now);
    }
}

/* The least cost, INT64_MAX where nothing fits; -1: too many combinations to try. */
static int64_t search_deep(const struct world *w)
{
    struct depth d = {.w = w, .best = INT64_MAX};
    int64_t mem[MAX_TIMES] = {0};
    descend(&d, 0, 0, mem);
    return d.visits < TOO_MANY ? d.best : -1;
}

/* ---- two: in breadth ---- */

struct state {
    int64_t cost;
    int n_key;
    unsigned char choice[MAX_NODES], key[MAX_NODES]; /* key: of the nodes that what is undecided still asks about */
    int64_t mem[MAX_TIMES];
};

/* All states after a position, by key. */
struct level {
    int n;
    struct state **state;
    int64_t *rest;                /* the least that what follows costs, as far as memory does not matter */
};

static int by_key_and_cost(const void *a, const void *b)
{
    const struct state *x = *(struct state *const *)a, *y = *(struct state *const *)b;
    int c = memcmp(x->key, y->key, (size_t)x->n_key);
    return c ? c : (x->cost > y->cost) - (x->cost < y->cost);
}

static bool no_worse(const struct world *w, const struct state *x, const struct state *y)
{
    if (memcmp(x->key, y->key, (size_t)x->n_key) != 0 || x->cost > y->cost)
        return false;
    for (int t = 0; t < w->n_times && !w->no_limit; t++)
        if (x->mem[t] > y->mem[t])
            return false;
    return true;
}

/* Does a flow that is ready after AT touch NODE? */
static bool still_asked(const struct world *w, int node, int at)
{
    for (int i = 0; i < w->n_flows; i++)
        if (w->flow[i].ready > at && touches(&w->flow[i], node))
            return true;
    return false;
}

/* Sort STATE by key and drop what another is no worse than; returns how many are left. */
static int drop_worse(const struct world *w, struct state **state, int n)
{
    int kept = 0, run = 0;
    qsort(state, (size_t)n, sizeof *state, by_key_and_cost);
    for (int i = 0; i < n; i++) {
        bool worse = false;
        if (kept == run || memcmp(state[run]->key, state[i]->key, (size_t)state[i]->n_key) != 0)
            run = kept;
        for (int k = run; k < kept && !worse; k++)
            worse = no_worse(w, state[k], state[i]);
        if (!worse)
            state[kept++] = state[i];
    }
    return kept;
}

/* What follows the state of S's key in LEVEL costs; INT64_MAX: it is not there. */
static int64_t rest_of(const struct level *level, const struct state *s)
{
    int low = 0, high = level->n;
    while (low < high) {
        int mid = (low + high) / 2;
        if (memcmp(level->state[mid]->key, s->key, (size_t)s->n_key) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low < level->n && memcmp(level->state[low]->key, s->key, (size_t)s->n_key) == 0 ? level->rest[low] : INT64_MAX;
}

/* All states after position AT, from those in NOW; -1 when there are too many. *OUT lives in ARENA. */
static int expand(const struct world *w, int at, struct state *const *now, int n, const struct level *guide,
                  struct mpp_arena *arena, struct state ***out)
{
    int node = w->order[at], n_next = 0, n_key = 0, asked[MAX_NODES], choice[MAX_NODES];
    for (int i = 0; i <= at; i++)
        if (still_asked(w, w->order[i], at))
            asked[n_key++] = w->order[i];
    struct state **next = mpp_arena_array(arena, MOST_STATES, struct state *);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < w->p->node[node].n_choices; k++) {
            struct state s = *now[i];
            s.choice[node] = (unsigned char)k;
            for (int j = 0; j < w->n_nodes; j++)
                choice[j] = s.choice[j];
            int64_t more = settle(w, at, choice, s.mem), rest = w->rest[at + 1];
            s.n_key = n_key;
            for (int j = 0; j < n_key; j++)
                s.key[j] = s.choice[asked[j]];
            if (more < INT64_MAX && guide)
                rest = rest_of(&guide[at], &s);
            if (more == INT64_MAX || rest == INT64_MAX || s.cost + more + rest > w->limit)
                continue;
            s.cost += more;
            if (n_next == MOST_STATES)
                n_next = drop_worse(w, next, n_next);
            if (n_next > MOST_STATES - MOST_STATES / 8)
                return -1;
            next[n_next++] = mpp_arena_memdup(arena, &s, sizeof s);
        }
    *out = next;
    return drop_worse(w, next, n_next);
}

/* Without memory: all states of all positions, and the least that what follows each costs. False: too many. */
static bool make_guide(const struct world *w, struct mpp_arena *arena, struct level *out)
{
    struct world *free = mpp_arena_memdup(arena, w, sizeof *w);
    struct state *first = mpp_arena_array(arena, 1, struct state);
    int choice[MAX_NODES];
    int64_t mem[MAX_TIMES];
    free->no_limit = true;
    for (int at = 0; at < w->n_nodes; at++) {
        out[at].n = expand(free, at, at ? out[at - 1].state : &first, at ? out[at - 1].n : 1, NULL, arena, &out[at].state);
        if (out[at].n < 0)
            return false;
        out[at].rest = mpp_arena_array(arena, out[at].n, int64_t);
    }
    for (int at = w->n_nodes - 2; at >= 0; at--)
        for (int i = 0; i < out[at].n; i++) {
            struct state s = *out[at].state[i];
            int node = w->order[at + 1], n_key = 0, asked[MAX_NODES];
            out[at].rest[i] = INT64_MAX;
            for (int j = 0; j <= at + 1; j++)
                if (still_asked(w, w->order[j], at + 1))
                    asked[n_key++] = w->order[j];
            s.n_key = n_key;
            for (int k = 0; k < w->p->node[node].n_choices; k++) {
                s.choice[node] = (unsigned char)k;
                for (int j = 0; j < w->n_nodes; j++)
                    choice[j] = s.choice[j];
                for (int j = 0; j < n_key; j++)
                    s.key[j] = s.choice[asked[j]];
                int64_t more = settle(free, at + 1, choice, mem), rest = rest_of(&out[at + 1], &s);
                if (more < INT64_MAX && rest < INT64_MAX && more + rest < out[at].rest[i])
                    out[at].rest[i] = more + rest;
            }
        }
    return true;
}

/* As search_deep. */
static int64_t search_wide(const struct world *w)
{
    struct mpp_arena *arena = mpp_arena_new(), *fresh;
    struct level *guide = mpp_arena_array(arena, w->n_nodes, struct level);
    struct state *first = mpp_arena_array(arena, 1, struct state), **now = &first;
    int n = 1;
    if (w->limit > INT64_MAX / 4 || !make_guide(w, arena, guide))
        guide = NULL;
    struct mpp_arena *last = NULL;
    for (int at = 0; at < w->n_nodes && n >= 0; at++) {
        fresh = mpp_arena_new();
        n = expand(w, at, now, n, guide, fresh, &now);
        if (last)
            mpp_arena_free(last);
        last = fresh;
    }
    int64_t best = INT64_MAX;
    for (int i = 0; i < n; i++)
        best = now[i]->cost < best ? now[i]->cost : best;
    if (last)
        mpp_arena_free(last);
    mpp_arena_free(arena);
    return n < 0 ? -1 : best;
}

/* ---- both ---- */

int64_t exhaustive_least(const struct mpp_stage_problem *p, const struct mpp_cluster *cluster, const struct mpp_mesh *mesh,
                         double hidden, int64_t capacity, int64_t limit, bool *out_agree)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct world *w = mpp_arena_array(arena, 1, struct world);
    int64_t wide = -1, deep = -1;
    if (world_new(w, arena, p, cluster, mesh, hidden, capacity)) {
        w->limit = limit;
        wide = search_wide(w);
        deep = wide >= 0 ? search_deep(w) : -1;
    }
    *out_agree = deep < 0 || deep == wide;
    mpp_arena_free(arena);
    return wide;
}
