/* window.c - part of a problem, all else held: a problem of its own.
 *
 * What the held choices cost beside a window's choice is that choice's cost; what they take at each row is taken by a node
 * with one choice. Of a node with many choices only the present one and those cheapest in the relaxation are in it. */
#include <stdlib.h>
#include <string.h>

#include "solver/pairwise_internal.h"

struct ranked {
    double theta;
    int32_t choice;
};

static int by_theta(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->theta != y->theta)
        return x->theta < y->theta ? -1 : 1;
    return (x->choice > y->choice) - (x->choice < y->choice);
}

/* The present choice first, then the cheapest others. */
static int32_t pick_choices(struct mpp_pw_window *w, int32_t i)
{
    const struct mpp_pw_vertex *v = &w->r->vertex[i];
    struct ranked *rank = mpp_arena_array(w->arena, v->n, struct ranked);
    int32_t n = 0;
    for (int32_t k = 0; k < v->n; k++)
        rank[k] = (struct ranked){v->theta[k], k};
    qsort(rank, (size_t)v->n, sizeof *rank, by_theta);
    w->kept[i] = mpp_arena_array(w->arena, w->most_choices + 1, int32_t);
    w->kept[i][n++] = w->choice[i];
    for (int32_t k = 0; k < v->n && n < w->most_choices; k++)
        if (rank[k].choice != w->choice[i])
            w->kept[i][n++] = rank[k].choice;
    return n;
}

static const struct mpp_pw_link *link_of(const struct mpp_pw_relax *r, const struct mpp_pw_vertex *v, int32_t j, int32_t i,
                                         int32_t *far)
{
    const struct mpp_pw_link *x = &r->link[j < v->n_before ? v->before[j] : v->after[j - v->n_before]];
    *far = x->a == i ? x->b : x->a;
    return x;
}

static int64_t pair_cost(const struct mpp_pw_relax *r, const struct mpp_pw_link *x, int32_t i, int32_t k, int32_t l)
{
    const struct mpp_pw_edge *e = &r->g->edges[x->edge];
    int64_t c = *mpp_pw_entry(r->g, e, r->vertex[i].node, k, l);
    return c < MPP_PW_BIG ? c : MPP_PAIRWISE_FORBIDDEN;
}

static int64_t saturated(int64_t a, int64_t b)
{
    return a >= MPP_PAIRWISE_FORBIDDEN || b >= MPP_PAIRWISE_FORBIDDEN ? MPP_PAIRWISE_FORBIDDEN : a + b;
}

static void add_node(struct mpp_pw_window *w, int32_t i, struct mpp_pairwise_node *out)
{
    const struct mpp_pw_vertex *v = &w->r->vertex[i];
    int32_t n = w->n_kept[i];
    int64_t *cost = mpp_arena_array(w->arena, n, int64_t);
    for (int32_t k = 0; k < n; k++)
        cost[k] = w->r->g->nodes[v->node].cost[w->kept[i][k]];
    for (int32_t j = 0; j < v->n_before + v->n_after; j++) {
        int32_t y;
        const struct mpp_pw_link *x = link_of(w->r, v, j, i, &y);
        for (int32_t k = 0; k < n && w->number[y] < 0; k++)
            cost[k] = saturated(cost[k], pair_cost(w->r, x, i, w->kept[i][k], w->choice[y]));
    }
    struct mpp_pairwise_usage *usage = mpp_arena_array(w->arena, v->n_segments, struct mpp_pairwise_usage);
    for (int32_t s = 0; s < v->n_segments; s++) {
        int64_t *bytes = mpp_arena_array(w->arena, n, int64_t);
        for (int32_t k = 0; k < n; k++) {
            bytes[k] = v->segments[s].bytes[w->kept[i][k]];
        }
        usage[s] = (struct mpp_pairwise_usage){v->segments[s].lo, v->segments[s].hi, bytes};
        for (int32_t t = v->segments[s].lo; t < v->segments[s].hi; t++)
            w->held[t] -= v->segments[s].bytes[w->choice[i]];
    }
    *out = (struct mpp_pairwise_node){n, cost, v->n_segments, usage};
}

static int32_t add_edges(struct mpp_pw_window *w, int32_t i, struct mpp_pairwise_edge *out)
{
    const struct mpp_pw_vertex *v = &w->r->vertex[i];
    int32_t n = 0;
    for (int32_t j = v->n_before; j < v->n_before + v->n_after; j++) {
        int32_t y;
        const struct mpp_pw_link *x = link_of(w->r, v, j, i, &y);
        if (w->number[y] < 0)
            continue;
        int64_t *cost = mpp_arena_array(w->arena, (int64_t)w->n_kept[i] * w->n_kept[y], int64_t);
        for (int32_t k = 0; k < w->n_kept[i]; k++)
            for (int32_t l = 0; l < w->n_kept[y]; l++)
                cost[(int64_t)k * w->n_kept[y] + l] = pair_cost(w->r, x, i, w->kept[i][k], w->kept[y][l]);
        out[n++] = (struct mpp_pairwise_edge){w->number[i], w->number[y], cost};
    }
    return n;
}

/* The node that takes what the held choices take: capacities differ from row to row, the problem has one. */
static void add_held(struct mpp_pw_window *w, int64_t capacity, struct mpp_pairwise_node *out)
{
    int32_t rows = w->r->n_rows, n = 0;
    struct mpp_pairwise_usage *usage = mpp_arena_array(w->arena, rows, struct mpp_pairwise_usage);
    int64_t *bytes = mpp_arena_array(w->arena, rows, int64_t);
    for (int32_t t = 0; t < rows; t++) {
        int64_t taken = w->held[t] + capacity - w->r->g->capacity[t];
        if (n > 0 && usage[n - 1].end == t && usage[n - 1].bytes[0] == taken) {
            usage[n - 1].end = t + 1;
            continue;
        }
        bytes[n] = taken;
        usage[n] = (struct mpp_pairwise_usage){t, t + 1, &bytes[n]};
        n++;
    }
    static const int64_t none = 0;
    *out = (struct mpp_pairwise_node){1, &none, n, usage};
}

/* Random growth along links from a random vertex, or from vertices that are live at a random row. */
static void gather(struct mpp_pw_window *w, int64_t pairs, struct mpp_pw_random *random)
{
    const struct mpp_pw_relax *r = w->r;
    int32_t *frontier = mpp_arena_array(w->arena, r->n + 2 * (int64_t)r->n_links + 1, int32_t), n = 0;
    bool by_row = r->n_rows > 0 && mpp_pw_draw_below(random, 3) == 0;
    int32_t row = by_row ? mpp_pw_draw_below(random, r->n_rows) : 0;
    for (int32_t i = 0; i < r->n && by_row; i++)
        for (int32_t s = 0; s < r->vertex[i].n_segments; s++)
            if (r->vertex[i].segments[s].lo <= row && row < r->vertex[i].segments[s].hi)
                frontier[n++] = i;
    if (n == 0)
        frontier[n++] = mpp_pw_draw_below(random, r->n);
    while (n > 0 && pairs > 0) {
        int32_t at = mpp_pw_draw_below(random, n), i = frontier[at];
        const struct mpp_pw_vertex *v = &r->vertex[i];
        frontier[at] = frontier[--n];
        if (w->number[i] >= 0)
            continue;
        w->n_kept[i] = pick_choices(w, i);
        w->member[w->n_members] = i;
        w->number[i] = w->n_members++;
        pairs -= w->n_kept[i];
        for (int32_t j = 0; j < v->n_before + v->n_after; j++) {
            int32_t y;
            (void)link_of(r, v, j, i, &y);
            if (w->number[y] >= 0)
                pairs -= (int64_t)w->n_kept[i] * w->n_kept[y];
            else if (n < r->n + 2 * r->n_links)
                frontier[n++] = y;
        }
    }
}

struct mpp_pw_window *mpp_pw_window_new(struct mpp_pw_relax *r, const int32_t *choice, int64_t pairs, int32_t most_choices,
                                        struct mpp_pw_random *random)
{
    struct mpp_arena *arena = mpp_arena_scratch(r->arena);
    struct mpp_pw_window *w = mpp_arena_array(arena, 1, struct mpp_pw_window);
    int64_t capacity = 0;
    int32_t n_edges = 0;
    *w = (struct mpp_pw_window){.arena = arena, .r = r, .choice = choice, .most_choices = most_choices};
    w->member = mpp_arena_array(arena, r->n, int32_t);
    w->number = mpp_arena_array(arena, r->n, int32_t);
    w->kept = mpp_arena_array(arena, r->n, int32_t *);
    w->n_kept = mpp_arena_array(arena, r->n, int32_t);
    memset(w->number, 0xff, (size_t)r->n * sizeof *w->number);
    gather(w, pairs, random);
    (void)mpp_pw_relax_excess(r, choice);
    w->held = mpp_arena_memdup(arena, r->usage, (size_t)(r->n_rows + 1) * sizeof *w->held);
    for (int32_t t = 0; t < r->n_rows; t++)
        capacity = r->g->capacity[t] > capacity ? r->g->capacity[t] : capacity;
    struct mpp_pairwise_node *node = mpp_arena_array(arena, w->n_members + 1, struct mpp_pairwise_node);
    for (int32_t m = 0; m < w->n_members; m++) {
        add_node(w, w->member[m], &node[m]);
        n_edges += r->vertex[w->member[m]].n_after;
    }
    add_held(w, capacity, &node[w->n_members]);
    struct mpp_pairwise_edge *edge = mpp_arena_array(arena, n_edges, struct mpp_pairwise_edge);
    n_edges = 0;
    for (int32_t m = 0; m < w->n_members; m++)
        n_edges += add_edges(w, w->member[m], edge + n_edges);
    w->problem = (struct mpp_pairwise_problem){w->n_members + 1, n_edges, node, edge, capacity};
    return w;
}

int64_t mpp_pw_window_cost(const struct mpp_pw_window *w)
{
    int64_t sum = 0;
    for (int32_t i = 0; i <= w->n_members; i++)
        sum = saturated(sum, w->problem.nodes[i].cost[0]); /* the present choices are the first */
    for (int32_t e = 0; e < w->problem.n_edges; e++)
        sum = saturated(sum, w->problem.edges[e].cost[0]);
    return sum;
}

void mpp_pw_window_apply(const struct mpp_pw_window *w, const int32_t *answer, int32_t *choice)
{
    for (int32_t m = 0; m < w->n_members; m++)
        choice[w->member[m]] = w->kept[w->member[m]][answer[m]];
}

void mpp_pw_window_free(struct mpp_pw_window *w)
{
    mpp_arena_free(w->arena);
}
