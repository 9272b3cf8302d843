/* presolve.c - the rules that make a problem smaller and keep its optimum, applied until none changes anything.
 *
 *     propagate    A pair is forbidden where one of its choices is; a choice is where all its pairs over some edge are, or
 *                  where it alone takes more than a row has left.
 *     project      The least of each row of an edge's table moves to the choice of that row, then of each column: sums do
 *                  not change. An edge of zeros says nothing and goes; so a table a_i + b_j always does.
 *     merge        An edge whose table allows each choice one partner at most, both ways, makes two nodes one: choices of
 *                  a component of such edges correspond, costs add, and memory becomes a profile over time.
 *     settle       A node with one choice is constant cost and less capacity.
 *     eliminate    A node without memory follows its neighbours: with none it takes its cheapest choice, with one the best
 *                  for each choice of the neighbour, with two the best for each pair of theirs, which is an edge.
 *     dominate     Choice k goes if q costs no more whatever the neighbours do (cost and, per edge, the most it could lose)
 *                  and takes no more bytes in any segment: q in k's place is as cheap, and fits. */
#include <string.h>

#include "solver/pairwise_internal.h"

/* Pairs of two neighbours that an elimination may tabulate. */
enum { MOST_PAIRS = 20000, MOST_ROUNDS = 40 };

/* ---- propagate and project -------------------------------------------------------------------------- */

static int64_t take_least(int64_t *row, int32_t n, int64_t step, int64_t *cost)
{
    int64_t least = MPP_PW_INF;
    for (int32_t i = 0; i < n; i++)
        least = row[i * step] < least ? row[i * step] : least;
    *cost = mpp_pw_add(*cost, least);
    if (least > 0 && least < MPP_PW_BIG)
        for (int32_t i = 0; i < n; i++)
            if (row[i * step] < MPP_PW_BIG)
                row[i * step] -= least;
    return least;
}

/* True if the edge is left. */
static bool project_edge(struct mpp_pw_graph *g, struct mpp_pw_edge *e)
{
    struct mpp_pw_node *a = &g->nodes[e->a], *b = &g->nodes[e->b];
    bool propagates = g->rules & MPP_PAIRWISE_PROPAGATE, says = false;
    g->work += (int64_t)a->n * b->n;
    for (int32_t k = 0; k < a->n; k++) {
        int64_t *row = e->cost + (int64_t)k * b->n;
        for (int32_t l = 0; propagates && l < b->n; l++)
            if (a->cost[k] >= MPP_PW_BIG || b->cost[l] >= MPP_PW_BIG)
                row[l] = MPP_PW_INF;
        take_least(row, b->n, 1, &a->cost[k]);
    }
    for (int32_t l = 0; l < b->n; l++)
        take_least(e->cost + l, a->n, b->n, &b->cost[l]);
    for (int32_t k = 0; k < a->n; k++)
        for (int32_t l = 0; l < b->n; l++)
            says |= e->cost[(int64_t)k * b->n + l] != 0 && a->cost[k] < MPP_PW_BIG && b->cost[l] < MPP_PW_BIG;
    e->gone = !says;
    return says;
}

static void forbid_too_large(const struct mpp_pw_graph *g, struct mpp_pw_node *v)
{
    for (int32_t s = 0; s < v->n_segments; s++) {
        int64_t least = INT64_MAX;
        for (int32_t t = v->segments[s].lo; t < v->segments[s].hi; t++)
            least = g->capacity[t] < least ? g->capacity[t] : least;
        for (int32_t k = 0; k < v->n; k++)
            if (v->segments[s].bytes[k] > least)
                v->cost[k] = MPP_PW_INF;
    }
}

static bool drop_forbidden(struct mpp_pw_graph *g, int32_t node, int32_t *kept)
{
    const struct mpp_pw_node *v = &g->nodes[node];
    int32_t n = 0;
    for (int32_t k = 0; k < v->n; k++)
        if (v->cost[k] < MPP_PW_BIG)
            kept[n++] = k;
    if (n == 0 && !g->infeasible) {
        g->infeasible = true;
        g->conflict_node = node;
    }
    if (n == v->n || n == 0)
        return false;
    mpp_pw_graph_keep(g, node, kept, n);
    return true;
}

/* Until no choice is dropped any more. True if one was. */
static bool propagate(struct mpp_pw_graph *g, int32_t *kept)
{
    bool any = false, again = true;
    while (again && !g->infeasible) {
        again = false;
        for (int32_t e = 0; e < g->n_edges; e++)
            if (!g->edges[e].gone)
                project_edge(g, &g->edges[e]);
        for (int32_t i = 0; i < g->n_nodes && !g->infeasible; i++) {
            struct mpp_pw_node *v = &g->nodes[i];
            if (v->gone)
                continue;
            if (g->rules & MPP_PAIRWISE_PROPAGATE)
                forbid_too_large(g, v);
            again |= drop_forbidden(g, i, kept);
        }
        any |= again;
    }
    return any;
}

/* ---- merge ---------------------------------------------------------------------------------------------- */

static bool is_one_to_one(const struct mpp_pw_graph *g, const struct mpp_pw_edge *e, int32_t *partner)
{
    int32_t na = g->nodes[e->a].n, nb = g->nodes[e->b].n;
    for (int32_t l = 0; l < nb; l++)
        partner[l] = -1;
    for (int32_t k = 0; k < na; k++) {
        bool seen = false;
        for (int32_t l = 0; l < nb; l++) {
            if (e->cost[(int64_t)k * nb + l] >= MPP_PW_BIG)
                continue;
            if (seen || partner[l] >= 0)
                return false;
            seen = true;
            partner[l] = k;
        }
    }
    return true;
}

struct merger {
    struct mpp_pw_graph *g;
    struct mpp_arena *scratch;
    bool *one_to_one;             /* [n_edges] */
    int32_t *root;                /* [n_nodes] of the component, -1: none yet */
    int32_t **choice;             /* [n_nodes] per choice of the root, the member's own, -1: none */
    int32_t *member, n_members;
    int32_t *kept;
};

/* Walk the component of ROOT; what each member's choice is for each of the root's. */
static void collect(struct merger *m, int32_t root)
{
    struct mpp_pw_graph *g = m->g;
    int32_t n = g->nodes[root].n;
    m->choice[root] = mpp_arena_array(m->scratch, n, int32_t);
    for (int32_t k = 0; k < n; k++)
        m->choice[root][k] = k;
    m->root[root] = root;
    m->member[0] = root;
    m->n_members = 1;
    for (int32_t at = 0; at < m->n_members; at++) {
        int32_t x = m->member[at];
        for (int32_t i = 0; i < g->nodes[x].n_edges; i++) {
            int32_t id = g->nodes[x].edges[i], y = mpp_pw_other(&g->edges[id], x);
            if (g->edges[id].gone || !m->one_to_one[id] || m->root[y] >= 0)
                continue;
            m->root[y] = root;
            m->member[m->n_members++] = y;
            m->choice[y] = mpp_arena_array(m->scratch, n, int32_t);
            for (int32_t k = 0; k < n; k++) {
                m->choice[y][k] = -1;
                for (int32_t l = 0; l < g->nodes[y].n && m->choice[x][k] >= 0; l++)
                    if (*mpp_pw_entry(g, &g->edges[id], x, m->choice[x][k], l) < MPP_PW_BIG)
                        m->choice[y][k] = l;
            }
        }
    }
}

/* Choices of the root that every member can follow. */
static int32_t followed(struct merger *m, int32_t root)
{
    int32_t n = 0;
    for (int32_t k = 0; k < m->g->nodes[root].n; k++) {
        bool all = true;
        for (int32_t i = 0; i < m->n_members && all; i++) {
            int32_t l = m->choice[m->member[i]][k];
            all = l >= 0 && m->g->nodes[m->member[i]].cost[l] < MPP_PW_BIG;
        }
        if (all)
            m->kept[n++] = k;
    }
    return n;
}

/* The members' segments as one profile of the root's N choices. */
static void merge_segments(struct merger *m, int32_t root, int32_t n)
{
    struct mpp_pw_graph *g = m->g;
    int32_t n_changes = 0;
    for (int32_t i = 0; i < m->n_members; i++)
        n_changes += 2 * g->nodes[m->member[i]].n_segments;
    struct mpp_pw_change *change = mpp_arena_array(m->scratch, n_changes, struct mpp_pw_change);
    n_changes = 0;
    for (int32_t i = 0; i < m->n_members; i++) {
        const struct mpp_pw_node *v = &g->nodes[m->member[i]];
        for (int32_t s = 0; s < v->n_segments; s++) {
            const struct mpp_pw_segment *x = &v->segments[s];
            change[n_changes++] = (struct mpp_pw_change){x->lo, 1, x->bytes, m->choice[m->member[i]]};
            change[n_changes++] = (struct mpp_pw_change){x->hi, -1, x->bytes, m->choice[m->member[i]]};
        }
    }
    struct mpp_pw_node *v = &g->nodes[root];
    v->n_segments = mpp_pw_graph_profile(g, change, n_changes, n, &v->segments);
}

/* Costs, memory and history of the component; edges come later, all together. */
static bool merge_component(struct merger *m, int32_t root)
{
    struct mpp_pw_graph *g = m->g;
    int32_t n = followed(m, root);
    if (n == 0) {
        g->infeasible = true;
        g->conflict_node = root;
        return false;
    }
    for (int32_t i = 0; i < m->n_members; i++)
        for (int32_t k = 0; k < n; k++)
            m->choice[m->member[i]][k] = m->choice[m->member[i]][m->kept[k]];
    mpp_pw_graph_keep(g, root, m->kept, n);
    for (int32_t k = 0; k < n; k++)
        m->choice[root][k] = k;
    for (int32_t i = 1; i < m->n_members; i++)
        for (int32_t k = 0; k < n; k++) {
            int64_t *c = &g->nodes[root].cost[k];
            *c = mpp_pw_add(*c, g->nodes[m->member[i]].cost[m->choice[m->member[i]][k]]);
        }
    merge_segments(m, root, n);
    for (int32_t i = 1; i < m->n_members; i++) {
        int32_t *map = mpp_arena_memdup(g->history, m->choice[m->member[i]], (size_t)n * sizeof *map);
        mpp_pw_graph_note(g, (struct mpp_pw_step){.kind = MPP_PW_FOLLOWS, .node = m->member[i], .by = {root, -1}, .map = map});
    }
    return true;
}

/* Edges of members become edges of roots; within a component, costs of its choices. */
static void move_edges(struct merger *m)
{
    struct mpp_pw_graph *g = m->g;
    for (int32_t id = 0, n = g->n_edges; id < n; id++) {
        struct mpp_pw_edge e = g->edges[id];
        int32_t a = m->root[e.a] < 0 ? e.a : m->root[e.a], b = m->root[e.b] < 0 ? e.b : m->root[e.b];
        if (e.gone || (a == e.a && b == e.b))
            continue;
        const int32_t *ca = m->choice[e.a], *cb = m->choice[e.b];
        int32_t na = g->nodes[a].n, nb = g->nodes[b].n, width = g->nodes[e.b].n;
        g->edges[id].gone = true;
        if (a == b) {
            for (int32_t k = 0; k < na; k++)
                g->nodes[a].cost[k] = mpp_pw_add(g->nodes[a].cost[k], e.cost[(int64_t)ca[k] * width + cb[k]]);
            continue;
        }
        int64_t *cost = mpp_arena_array(g->arena, (int64_t)na * nb, int64_t);
        for (int32_t k = 0; k < na; k++)
            for (int32_t l = 0; l < nb; l++)
                cost[(int64_t)k * nb + l] = e.cost[(int64_t)(ca != NULL ? ca[k] : k) * width + (cb != NULL ? cb[l] : l)];
        mpp_pw_graph_join(g, a, b, cost);
    }
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (m->root[i] >= 0 && m->root[i] != i)
            g->nodes[i].gone = true;
}

static bool merge(struct mpp_pw_graph *g, int32_t *kept)
{
    struct mpp_arena *scratch = mpp_arena_scratch(g->arena);
    struct merger m = {
        .g = g, .scratch = scratch, .kept = kept,
        .one_to_one = mpp_arena_array(scratch, g->n_edges, bool),
        .root = mpp_arena_array(scratch, g->n_nodes, int32_t),
        .choice = mpp_arena_array(scratch, g->n_nodes, int32_t *),
        .member = mpp_arena_array(scratch, g->n_nodes, int32_t),
    };
    bool *starts = mpp_arena_array(scratch, g->n_nodes, bool), any = false;
    for (int32_t i = 0; i < g->n_nodes; i++)
        m.root[i] = -1;
    for (int32_t e = 0; e < g->n_edges; e++)
        if (!g->edges[e].gone && is_one_to_one(g, &g->edges[e], kept)) {
            m.one_to_one[e] = true;
            starts[g->edges[e].a] = starts[g->edges[e].b] = any = true;
        }
    for (int32_t i = 0; i < g->n_nodes && any && !g->infeasible; i++)
        if (starts[i] && m.root[i] < 0) {
            collect(&m, i);
            merge_component(&m, i);
        }
    if (any && !g->infeasible)
        move_edges(&m);
    mpp_arena_free(scratch);
    return any;
}

/* ---- settle and eliminate ------------------------------------------------------------------------------- */

static void settle(struct mpp_pw_graph *g, int32_t node, int32_t choice)
{
    struct mpp_pw_node *v = &g->nodes[node];
    if (v->cost[choice] >= MPP_PW_BIG) {
        g->infeasible = true;
        g->conflict_node = node;
        return;
    }
    g->constant += v->cost[choice];
    for (int32_t i = 0; i < v->n_edges; i++) {
        struct mpp_pw_edge *e = &g->edges[v->edges[i]];
        if (e->gone)
            continue;
        struct mpp_pw_node *w = &g->nodes[mpp_pw_other(e, node)];
        for (int32_t l = 0; l < w->n; l++)
            w->cost[l] = mpp_pw_add(w->cost[l], *mpp_pw_entry(g, e, node, choice, l));
        e->gone = true;
    }
    int32_t *map = mpp_arena_memdup(g->history, &choice, sizeof choice);
    mpp_pw_graph_note(g, (struct mpp_pw_step){.kind = MPP_PW_SETTLED, .node = node, .map = map});
    v->gone = true;
}

static int32_t cheapest(const int64_t *cost, int32_t n)
{
    int32_t best = 0;
    for (int32_t k = 1; k < n; k++)
        if (cost[k] < cost[best])
            best = k;
    return best;
}

static void eliminate_leaf(struct mpp_pw_graph *g, int32_t node)
{
    struct mpp_pw_node *v = &g->nodes[node];
    struct mpp_pw_edge *e = &g->edges[v->edges[0]];
    int32_t y = mpp_pw_other(e, node), *map = mpp_arena_array(g->history, g->nodes[y].n, int32_t);
    for (int32_t l = 0; l < g->nodes[y].n; l++) {
        int64_t best = MPP_PW_INF;
        for (int32_t k = 0; k < v->n; k++) {
            int64_t c = mpp_pw_add(v->cost[k], *mpp_pw_entry(g, e, node, k, l));
            if (c < best) {
                best = c;
                map[l] = k;
            }
        }
        g->nodes[y].cost[l] = mpp_pw_add(g->nodes[y].cost[l], best);
    }
    g->work += (int64_t)v->n * g->nodes[y].n;
    mpp_pw_graph_note(g, (struct mpp_pw_step){.kind = MPP_PW_FOLLOWS, .node = node, .by = {y, -1}, .map = map});
    e->gone = v->gone = true;
}

static void eliminate_link(struct mpp_pw_graph *g, int32_t node)
{
    struct mpp_pw_node *v = &g->nodes[node];
    struct mpp_pw_edge *e = &g->edges[v->edges[0]], *f = &g->edges[v->edges[1]];
    int32_t y = mpp_pw_other(e, node), z = mpp_pw_other(f, node), ny = g->nodes[y].n, nz = g->nodes[z].n;
    int64_t *cost = mpp_arena_array(g->arena, (int64_t)ny * nz, int64_t);
    int32_t *map = mpp_arena_array(g->history, (int64_t)ny * nz, int32_t);
    for (int32_t p = 0; p < ny; p++)
        for (int32_t q = 0; q < nz; q++) {
            int64_t best = MPP_PW_INF, at = (int64_t)p * nz + q;
            for (int32_t k = 0; k < v->n; k++) {
                int64_t c = mpp_pw_add(v->cost[k], mpp_pw_add(*mpp_pw_entry(g, e, node, k, p), *mpp_pw_entry(g, f, node, k, q)));
                if (c < best) {
                    best = c;
                    map[at] = k;
                }
            }
            cost[at] = best;
        }
    g->work += (int64_t)v->n * ny * nz;
    mpp_pw_graph_note(g, (struct mpp_pw_step){.kind = MPP_PW_BETWEEN, .node = node, .by = {y, z}, .width = nz, .map = map});
    e->gone = f->gone = v->gone = true;
    mpp_pw_graph_forget_gone(g, y);
    mpp_pw_graph_forget_gone(g, z);
    mpp_pw_graph_join(g, y, z, cost);
}

static bool eliminate(struct mpp_pw_graph *g, int32_t node)
{
    struct mpp_pw_node *v = &g->nodes[node];
    if (v->n == 1) {
        mpp_pw_times_normalise(g, node);
        settle(g, node, 0);
        return true;
    }
    if (v->n_segments > 0)
        return false;
    mpp_pw_graph_forget_gone(g, node);
    if (v->n_edges == 0)
        settle(g, node, cheapest(v->cost, v->n));
    else if (v->n_edges == 1)
        eliminate_leaf(g, node);
    else if (v->n_edges == 2 && (int64_t)g->nodes[mpp_pw_other(&g->edges[v->edges[0]], node)].n *
                                        g->nodes[mpp_pw_other(&g->edges[v->edges[1]], node)].n <= MOST_PAIRS)
        eliminate_link(g, node);
    else
        return false;
    return true;
}

static bool eliminate_all(struct mpp_pw_graph *g)
{
    bool any = false, again = true;
    while (again && !g->infeasible) {
        again = false;
        for (int32_t i = 0; i < g->n_nodes && !g->infeasible; i++)
            if (!g->nodes[i].gone && eliminate(g, i))
                again = any = true;
    }
    return any;
}

/* ---- dominate --------------------------------------------------------------------------------------------- */

/* The most that Q costs more than K over edge E, whatever the neighbour takes; MPP_PW_INF: without limit. */
static int64_t most_lost(const struct mpp_pw_graph *g, const struct mpp_pw_edge *e, int32_t node, int32_t q, int32_t k)
{
    int32_t n = g->nodes[mpp_pw_other(e, node)].n;
    int64_t step = node == e->a ? 1 : g->nodes[e->b].n, most = -MPP_PW_INF;
    const int64_t *x = mpp_pw_entry(g, e, node, q, 0), *y = mpp_pw_entry(g, e, node, k, 0);
    for (int32_t l = 0; l < n; l++) {
        if (y[l * step] >= MPP_PW_BIG)
            continue;
        if (x[l * step] >= MPP_PW_BIG)
            return MPP_PW_INF;
        int64_t lost = x[l * step] - y[l * step];
        most = lost > most ? lost : most;
    }
    return most > -MPP_PW_INF ? most : 0;
}

static bool dominates(const struct mpp_pw_graph *g, int32_t node, int32_t q, int32_t k)
{
    const struct mpp_pw_node *v = &g->nodes[node];
    int64_t lost = v->cost[q] - v->cost[k];
    for (int32_t s = 0; s < v->n_segments; s++)
        if (v->segments[s].bytes[q] > v->segments[s].bytes[k])
            return false;
    for (int32_t i = 0; i < v->n_edges && lost <= 0; i++)
        if (!g->edges[v->edges[i]].gone)
            lost += most_lost(g, &g->edges[v->edges[i]], node, q, k);
    return lost <= 0;
}

static bool drop_dominated(struct mpp_pw_graph *g, int32_t node, int32_t *kept)
{
    struct mpp_pw_node *v = &g->nodes[node];
    int32_t n = 0;
    for (int32_t k = 0; k < v->n; k++)
        kept[k] = 1;
    for (int32_t k = 0; k < v->n; k++)
        for (int32_t q = 0; q < v->n && kept[k]; q++)
            if (q != k && kept[q] && v->cost[q] <= v->cost[k] && dominates(g, node, q, k))
                kept[k] = 0;
    for (int32_t k = 0; k < v->n; k++)
        if (kept[k])
            kept[n++] = k;
    if (n == v->n)
        return false;
    mpp_pw_graph_keep(g, node, kept, n);
    return true;
}

/* ---- to a fixpoint -------------------------------------------------------------------------------------------- */

static void normalise(struct mpp_pw_graph *g)
{
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (!g->nodes[i].gone) {
            mpp_pw_graph_forget_gone(g, i);
            mpp_pw_times_normalise(g, i);
        }
}

void mpp_pw_presolve(struct mpp_pw_graph *g)
{
    struct mpp_arena *scratch = mpp_arena_scratch(g->history);
    int32_t *kept = mpp_arena_array(scratch, g->most_choices + 1, int32_t);
    bool changed = true;
    for (int round = 0; changed && round < MOST_ROUNDS && !g->infeasible; round++) {
        normalise(g);
        changed = propagate(g, kept);
        if ((g->rules & MPP_PAIRWISE_MERGE) && !g->infeasible)
            changed |= merge(g, kept);
        normalise(g);
        if ((g->rules & MPP_PAIRWISE_TIMES) && !g->infeasible)
            changed |= mpp_pw_times_reduce(g);
        normalise(g);
        if ((g->rules & MPP_PAIRWISE_ELIMINATE) && !g->infeasible)
            changed |= eliminate_all(g);
        for (int32_t i = 0; i < g->n_nodes && (g->rules & MPP_PAIRWISE_DOMINATE) && !g->infeasible; i++)
            if (!g->nodes[i].gone) {
                mpp_pw_graph_forget_gone(g, i);
                changed |= drop_dominated(g, i, kept);
            }
        if (!g->infeasible)
            mpp_pw_graph_compact(g);
    }
    mpp_arena_free(scratch);
}
