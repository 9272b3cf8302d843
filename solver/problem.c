/* problem.c - a problem as it is given: checks, how large its costs are, exact evaluation. */
#include <stdlib.h>

#include "solver/pairwise_internal.h"

static const double MOST_COST_SUM = 0x1p56;

/* ---- checks -------------------------------------------------------------------------------------------- */

/* The largest of N costs below FORBIDDEN, 0: none. */
static int64_t largest(const int64_t *cost, int64_t n, int64_t forbidden)
{
    int64_t most = 0;
    for (int64_t i = 0; i < n; i++)
        most = cost[i] < forbidden && cost[i] > most ? cost[i] : most;
    return most;
}

static int64_t pairs_of(const struct mpp_pairwise_problem *p, const struct mpp_pairwise_edge *e)
{
    return (int64_t)p->nodes[e->a].n_choices * p->nodes[e->b].n_choices;
}

/* No choice of costs below FORBIDDEN costs more. */
static mpp_i128 most_cost(const struct mpp_pairwise_problem *p, int64_t forbidden)
{
    mpp_i128 sum = 0;
    for (int32_t i = 0; i < p->n_nodes; i++)
        sum += largest(p->nodes[i].cost, p->nodes[i].n_choices, forbidden);
    for (int32_t e = 0; e < p->n_edges; e++)
        sum += largest(p->edges[e].cost, pairs_of(p, &p->edges[e]), forbidden);
    return sum;
}

int mpp_pw_problem_shift(const struct mpp_pairwise_problem *p, int64_t forbidden)
{
    mpp_i128 most = most_cost(p, forbidden);
    int shift = 0;
    while ((double)(most >> shift) >= MOST_COST_SUM)
        shift++;
    return shift;
}

static bool node_valid(const struct mpp_pairwise_node *n, mpp_i128 *bytes_sum)
{
    if (n->n_choices < 1 || n->cost == NULL || n->n_usages < 0)
        return false;
    for (int32_t k = 0; k < n->n_choices; k++)
        if (n->cost[k] < 0)
            return false;
    for (int32_t u = 0; u < n->n_usages; u++) {
        const struct mpp_pairwise_usage *x = &n->usages[u];
        int64_t most = 0;
        if (x->begin < 0 || x->begin > x->end || x->bytes == NULL)
            return false;
        for (int32_t k = 0; k < n->n_choices; k++) {
            if (x->bytes[k] < 0)
                return false;
            most = x->bytes[k] > most ? x->bytes[k] : most;
        }
        *bytes_sum += x->begin < x->end ? most : 0;
    }
    return true;
}

static bool edge_valid(const struct mpp_pairwise_problem *p, const struct mpp_pairwise_edge *e)
{
    if (e->a < 0 || e->a >= p->n_nodes || e->b < 0 || e->b >= p->n_nodes || e->cost == NULL)
        return false;
    for (int64_t i = 0; i < pairs_of(p, e); i++)
        if (e->cost[i] < 0)
            return false;
    return true;
}

bool mpp_pw_problem_valid(const struct mpp_pairwise_problem *p)
{
    mpp_i128 bytes = 0;
    if (p->n_nodes < 0 || p->n_edges < 0 || p->capacity < 0)
        return false;
    for (int32_t i = 0; i < p->n_nodes; i++)
        if (!node_valid(&p->nodes[i], &bytes))
            return false;
    for (int32_t e = 0; e < p->n_edges; e++)
        if (!edge_valid(p, &p->edges[e]))
            return false;
    return bytes <= INT64_MAX / 2;
}

/* ---- evaluation ------------------------------------------------------------------------------------------ */

struct change {
    int32_t time;
    int64_t bytes;
};

/* Ends before begins. */
static int by_time(const void *a, const void *b)
{
    const struct change *x = a, *y = b;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int64_t peak_of(const struct mpp_pairwise_problem *p, const int32_t *choice, struct mpp_arena *scratch)
{
    int64_t n = 0, now = 0, peak = 0;
    for (int32_t i = 0; i < p->n_nodes; i++)
        n += 2 * (int64_t)p->nodes[i].n_usages;
    struct change *change = mpp_arena_array(scratch, n, struct change);
    n = 0;
    for (int32_t i = 0; i < p->n_nodes; i++)
        for (int32_t u = 0; u < p->nodes[i].n_usages; u++) {
            const struct mpp_pairwise_usage *x = &p->nodes[i].usages[u];
            if (x->begin >= x->end)
                continue;
            change[n++] = (struct change){x->begin, x->bytes[choice[i]]};
            change[n++] = (struct change){x->end, -x->bytes[choice[i]]};
        }
    qsort(change, (size_t)n, sizeof *change, by_time);
    for (int64_t i = 0; i < n; i++) {
        now += change[i].bytes;
        peak = now > peak ? now : peak;
    }
    return peak;
}

bool mpp_pairwise_evaluate(const struct mpp_pairwise_problem *problem, const int32_t *choice, struct mpp_arena *parent,
                           mpp_i128 *out_objective, int64_t *out_peak_bytes)
{
    mpp_i128 sum = 0;
    bool allowed = true;
    for (int32_t i = 0; i < problem->n_nodes; i++) {
        sum += problem->nodes[i].cost[choice[i]];
        allowed &= problem->nodes[i].cost[choice[i]] < MPP_PAIRWISE_FORBIDDEN;
    }
    for (int32_t i = 0; i < problem->n_edges; i++) {
        const struct mpp_pairwise_edge *e = &problem->edges[i];
        int64_t c = e->cost[(int64_t)choice[e->a] * problem->nodes[e->b].n_choices + choice[e->b]];
        sum += c;
        allowed &= c < MPP_PAIRWISE_FORBIDDEN;
    }
    *out_objective = sum;
    struct mpp_arena *scratch = mpp_arena_scratch(parent);
    *out_peak_bytes = peak_of(problem, choice, scratch);
    mpp_arena_free(scratch);
    return allowed;
}
