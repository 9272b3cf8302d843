/* graph.c - the problem as presolve changes it: nodes, edges, memory profiles, and the way back to the problem's choices. */
#include <stdlib.h>
#include <string.h>

#include "solver/pairwise_internal.h"

/* ---- building ----------------------------------------------------------------------------------- */

static int64_t shifted(int64_t cost, const struct mpp_pw_costs *c)
{
    return cost >= c->forbidden ? MPP_PW_INF : cost >> c->shift;
}

static int by_value(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* One row per stretch of time in which nothing begins or ends. */
static void build_rows(struct mpp_pw_graph *g, const struct mpp_pairwise_problem *p)
{
    int64_t n = 0;
    for (int32_t i = 0; i < p->n_nodes; i++)
        n += 2 * (int64_t)p->nodes[i].n_usages;
    g->row_time = mpp_arena_array(g->arena, n + 1, int32_t);
    n = 0;
    for (int32_t i = 0; i < p->n_nodes; i++)
        for (int32_t u = 0; u < p->nodes[i].n_usages; u++) {
            const struct mpp_pairwise_usage *x = &p->nodes[i].usages[u];
            if (x->begin < x->end) {
                g->row_time[n++] = x->begin;
                g->row_time[n++] = x->end;
            }
        }
    qsort(g->row_time, (size_t)n, sizeof *g->row_time, by_value);
    for (int64_t i = 0; i < n; i++)
        if (g->n_rows == 0 || g->row_time[i] != g->row_time[g->n_rows - 1])
            g->row_time[g->n_rows++] = g->row_time[i];
    g->capacity = mpp_arena_array(g->arena, g->n_rows, int64_t);
    g->row_first = mpp_arena_array(g->arena, g->n_rows, int32_t);
    for (int32_t t = 0; t < g->n_rows; t++) {
        g->capacity[t] = p->capacity;
        g->row_first[t] = t;
    }
}

static int32_t row_at(const struct mpp_pw_graph *g, int32_t time)
{
    const int32_t *at = bsearch(&time, g->row_time, (size_t)g->n_rows, sizeof *at, by_value);
    return (int32_t)(at - g->row_time);
}

static int by_row(const void *a, const void *b)
{
    const struct mpp_pw_change *x = a, *y = b;
    return (x->row > y->row) - (x->row < y->row);
}

int32_t mpp_pw_graph_profile(struct mpp_pw_graph *g, struct mpp_pw_change *change, int32_t n_changes, int32_t n_choices,
                             struct mpp_pw_segment **out)
{
    size_t bytes = (size_t)n_choices * sizeof(int64_t);
    int32_t live = 0, n = 0;
    qsort(change, (size_t)n_changes, sizeof *change, by_row);
    int64_t *now = mpp_arena_alloc(g->arena, bytes);
    *out = mpp_arena_array(g->arena, n_changes, struct mpp_pw_segment);
    for (int32_t i = 0; i < n_changes;) {
        int32_t row = change[i].row;
        for (; i < n_changes && change[i].row == row; i++) {
            live += change[i].sign;
            for (int32_t k = 0; k < n_choices; k++)
                now[k] += change[i].sign * change[i].bytes[change[i].choice != NULL ? change[i].choice[k] : k];
        }
        if (i < n_changes && live > 0)
            (*out)[n++] = (struct mpp_pw_segment){row, change[i].row, mpp_arena_memdup(g->arena, now, bytes)};
    }
    return n;
}

static void build_node(struct mpp_pw_graph *g, const struct mpp_pairwise_node *from, const struct mpp_pw_costs *costs, struct mpp_pw_node *to)
{
    to->n = from->n_choices;
    to->cost = mpp_arena_array(g->arena, to->n, int64_t);
    for (int32_t k = 0; k < to->n; k++)
        to->cost[k] = shifted(from->cost[k], costs);
    struct mpp_arena *scratch = mpp_arena_scratch(g->arena);
    struct mpp_pw_change *change = mpp_arena_array(scratch, 2 * (int64_t)from->n_usages, struct mpp_pw_change);
    int32_t n = 0;
    for (int32_t u = 0; u < from->n_usages; u++) {
        const struct mpp_pairwise_usage *x = &from->usages[u];
        if (x->begin >= x->end)
            continue;
        change[n++] = (struct mpp_pw_change){row_at(g, x->begin), 1, x->bytes, NULL};
        change[n++] = (struct mpp_pw_change){row_at(g, x->end), -1, x->bytes, NULL};
    }
    to->n_segments = mpp_pw_graph_profile(g, change, n, to->n, &to->segments);
    mpp_arena_free(scratch);
}

static void build_edge(struct mpp_pw_graph *g, const struct mpp_pairwise_edge *from, const struct mpp_pw_costs *costs)
{
    int32_t na = g->nodes[from->a].n, nb = g->nodes[from->b].n;
    if (from->a == from->b) {
        for (int32_t k = 0; k < na; k++) {
            int64_t *c = &g->nodes[from->a].cost[k];
            *c = mpp_pw_add(*c, shifted(from->cost[(int64_t)k * na + k], costs));
        }
        return;
    }
    int64_t count = (int64_t)na * nb, *cost = mpp_arena_array(g->arena, count, int64_t);
    for (int64_t i = 0; i < count; i++)
        cost[i] = shifted(from->cost[i], costs);
    mpp_pw_graph_join(g, from->a, from->b, cost);
}

struct mpp_pw_graph *mpp_pw_graph_new(const struct mpp_pairwise_problem *problem, struct mpp_pw_costs costs, unsigned rules,
                                      struct mpp_arena *arena)
{
    struct mpp_arena *history = mpp_arena_scratch(arena);
    struct mpp_pw_graph *g = mpp_arena_array(history, 1, struct mpp_pw_graph);
    g->history = history;
    g->arena = mpp_arena_scratch(arena);
    g->rules = rules;
    g->conflict_time = g->conflict_node = -1;
    g->n_nodes = problem->n_nodes;
    build_rows(g, problem);
    g->nodes = mpp_arena_array(g->arena, g->n_nodes, struct mpp_pw_node);
    for (int32_t i = 0; i < g->n_nodes; i++) {
        build_node(g, &problem->nodes[i], &costs, &g->nodes[i]);
        g->most_choices = g->nodes[i].n > g->most_choices ? g->nodes[i].n : g->most_choices;
    }
    for (int32_t e = 0; e < problem->n_edges; e++)
        build_edge(g, &problem->edges[e], &costs);
    return g;
}

void mpp_pw_graph_free(struct mpp_pw_graph *g)
{
    if (g == NULL)
        return;
    mpp_arena_free(g->arena);
    mpp_arena_free(g->history);
}

/* ---- edges ---------------------------------------------------------------------------------------- */

static void list_edge(struct mpp_pw_graph *g, int32_t node, int32_t edge)
{
    struct mpp_pw_node *v = &g->nodes[node];
    v->edges = mpp_arena_grow(g->arena, v->edges, &v->edge_cap, (size_t)v->n_edges + 1, sizeof *v->edges);
    v->edges[v->n_edges++] = edge;
}

static struct mpp_pw_edge *edge_between(const struct mpp_pw_graph *g, int32_t a, int32_t b)
{
    const struct mpp_pw_node *v = &g->nodes[g->nodes[a].n_edges <= g->nodes[b].n_edges ? a : b];
    for (int32_t i = 0; i < v->n_edges; i++) {
        struct mpp_pw_edge *e = &g->edges[v->edges[i]];
        if (!e->gone && ((e->a == a && e->b == b) || (e->a == b && e->b == a)))
            return e;
    }
    return NULL;
}

void mpp_pw_graph_join(struct mpp_pw_graph *g, int32_t a, int32_t b, int64_t *cost)
{
    struct mpp_pw_edge *e = edge_between(g, a, b);
    int32_t na = g->nodes[a].n, nb = g->nodes[b].n;
    g->work += (int64_t)na * nb;
    if (e != NULL) {
        for (int32_t k = 0; k < na; k++)
            for (int32_t l = 0; l < nb; l++) {
                int64_t *x = mpp_pw_entry(g, e, a, k, l);
                *x = mpp_pw_add(*x, cost[(int64_t)k * nb + l]);
            }
        return;
    }
    g->edges = mpp_arena_grow(g->arena, g->edges, &g->edge_cap, (size_t)g->n_edges + 1, sizeof *g->edges);
    g->edges[g->n_edges] = (struct mpp_pw_edge){.a = a, .b = b, .cost = cost};
    list_edge(g, a, g->n_edges);
    list_edge(g, b, g->n_edges);
    g->n_edges++;
}

void mpp_pw_graph_forget_gone(struct mpp_pw_graph *g, int32_t node)
{
    struct mpp_pw_node *v = &g->nodes[node];
    int32_t n = 0;
    for (int32_t i = 0; i < v->n_edges; i++)
        if (!g->edges[v->edges[i]].gone)
            v->edges[n++] = v->edges[i];
    v->n_edges = n;
}

/* ---- choices ---------------------------------------------------------------------------------------- */

void mpp_pw_graph_note(struct mpp_pw_graph *g, struct mpp_pw_step step)
{
    g->steps = mpp_arena_grow(g->history, g->steps, &g->step_cap, g->n_steps + 1, sizeof *g->steps);
    g->steps[g->n_steps++] = step;
}

/* The rows (or columns, where NODE is the edge's second end) KEPT of an edge's table, in place. */
static void keep_in_edge(const struct mpp_pw_graph *g, struct mpp_pw_edge *e, int32_t node, const int32_t *kept, int32_t n)
{
    int32_t na = g->nodes[e->a].n, nb = g->nodes[e->b].n;
    if (e->a == node)
        for (int32_t k = 0; k < n; k++)
            memmove(e->cost + (int64_t)k * nb, e->cost + (int64_t)kept[k] * nb, (size_t)nb * sizeof *e->cost);
    else
        for (int32_t l = 0; l < na; l++)
            for (int32_t k = 0; k < n; k++)
                e->cost[(int64_t)l * n + k] = e->cost[(int64_t)l * nb + kept[k]];
}

void mpp_pw_graph_keep(struct mpp_pw_graph *g, int32_t node, const int32_t *kept, int32_t n)
{
    struct mpp_pw_node *v = &g->nodes[node];
    if (n == v->n)
        return;
    mpp_pw_graph_note(g, (struct mpp_pw_step){.kind = MPP_PW_KEPT, .node = node, .width = n,
                                              .map = mpp_arena_memdup(g->history, kept, (size_t)n * sizeof *kept)});
    for (int32_t i = 0; i < v->n_edges; i++)
        if (!g->edges[v->edges[i]].gone)
            keep_in_edge(g, &g->edges[v->edges[i]], node, kept, n);
    for (int32_t k = 0; k < n; k++) {
        v->cost[k] = v->cost[kept[k]];
        for (int32_t s = 0; s < v->n_segments; s++)
            v->segments[s].bytes[k] = v->segments[s].bytes[kept[k]];
    }
    v->n = n;
}

/* ---- the way back ------------------------------------------------------------------------------------ */

void mpp_pw_graph_replay_from(const struct mpp_pw_graph *g, size_t from, int32_t *choice)
{
    for (size_t i = g->n_steps; i-- > from;) {
        const struct mpp_pw_step *s = &g->steps[i];
        switch (s->kind) {
        case MPP_PW_KEPT:
            choice[s->node] = s->map[choice[s->node]];
            break;
        case MPP_PW_SETTLED:
            choice[s->node] = s->map[0];
            break;
        case MPP_PW_FOLLOWS:
            choice[s->node] = s->map[choice[s->by[0]]];
            break;
        case MPP_PW_BETWEEN:
            choice[s->node] = s->map[(int64_t)choice[s->by[0]] * s->width + choice[s->by[1]]];
            break;
        }
    }
}

void mpp_pw_graph_replay(const struct mpp_pw_graph *g, int32_t *choice)
{
    mpp_pw_graph_replay_from(g, 0, choice);
}

bool mpp_pw_graph_follow(const struct mpp_pw_graph *g, size_t from, int32_t *choice)
{
    for (size_t i = from; i < g->n_steps; i++) {
        const struct mpp_pw_step *s = &g->steps[i];
        int32_t k = 0;
        if (s->kind != MPP_PW_KEPT)
            continue;
        while (k < s->width && s->map[k] != choice[s->node])
            k++;
        if (k == s->width)
            return false;
        choice[s->node] = k;
    }
    return true;
}

/* ---- what is left ------------------------------------------------------------------------------------ */

static void copy_node(const struct mpp_pw_node *from, struct mpp_arena *arena, struct mpp_pw_node *to)
{
    size_t bytes = (size_t)from->n * sizeof(int64_t);
    *to = (struct mpp_pw_node){.n = from->n, .n_segments = from->n_segments};
    to->cost = mpp_arena_memdup(arena, from->cost, bytes);
    to->segments = mpp_arena_array(arena, from->n_segments, struct mpp_pw_segment);
    for (int32_t s = 0; s < from->n_segments; s++)
        to->segments[s] = (struct mpp_pw_segment){from->segments[s].lo, from->segments[s].hi,
                                                  mpp_arena_memdup(arena, from->segments[s].bytes, bytes)};
}

/* What remains of G, from wherever it lies, into ARENA. */
static void copy_rest(struct mpp_pw_graph *g, struct mpp_arena *arena)
{
    const struct mpp_pw_node *nodes = g->nodes;
    const struct mpp_pw_edge *edges = g->edges;
    int32_t n_edges = g->n_edges;
    g->arena = arena;
    g->nodes = mpp_arena_array(arena, g->n_nodes, struct mpp_pw_node);
    g->edges = NULL;
    g->edge_cap = 0;
    g->n_edges = 0;
    g->capacity = mpp_arena_memdup(arena, g->capacity, (size_t)g->n_rows * sizeof *g->capacity);
    g->row_time = mpp_arena_memdup(arena, g->row_time, (size_t)g->n_rows * sizeof *g->row_time);
    g->row_first = mpp_arena_memdup(arena, g->row_first, (size_t)g->n_rows * sizeof *g->row_first);
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (nodes[i].gone)
            g->nodes[i].gone = true;
        else
            copy_node(&nodes[i], arena, &g->nodes[i]);
    for (int32_t e = 0; e < n_edges; e++) {
        if (edges[e].gone)
            continue;
        size_t count = (size_t)g->nodes[edges[e].a].n * (size_t)g->nodes[edges[e].b].n;
        mpp_pw_graph_join(g, edges[e].a, edges[e].b, mpp_arena_memdup(arena, edges[e].cost, count * sizeof(int64_t)));
    }
}

void mpp_pw_graph_compact(struct mpp_pw_graph *g)
{
    struct mpp_arena *old = g->arena;
    copy_rest(g, mpp_arena_scratch(old));
    mpp_arena_free(old);
}

struct mpp_pw_graph *mpp_pw_graph_clone(const struct mpp_pw_graph *g, struct mpp_arena *arena)
{
    struct mpp_arena *history = mpp_arena_scratch(arena);
    struct mpp_pw_graph *copy = mpp_arena_memdup(history, g, sizeof *g);
    copy->history = history;
    copy->steps = mpp_arena_memdup(history, g->steps, g->n_steps * sizeof *g->steps);
    copy->step_cap = g->n_steps;
    copy_rest(copy, mpp_arena_scratch(arena));
    return copy;
}

struct mpp_pairwise_size mpp_pw_graph_size(const struct mpp_pw_graph *g)
{
    struct mpp_pairwise_size size = {.times = g->n_rows};
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (!g->nodes[i].gone) {
            size.nodes++;
            size.choices += g->nodes[i].n;
        }
    for (int32_t e = 0; e < g->n_edges; e++)
        if (!g->edges[e].gone) {
            size.edges++;
            size.pairs += (int64_t)g->nodes[g->edges[e].a].n * g->nodes[g->edges[e].b].n;
        }
    return size;
}
