/* solver_local.c - a good choice where even the relaxed problem is too wide to eliminate.
 *
 * Each node keeps its few choices that look best beside its neighbours' present ones, and elimination solves
 * that exactly; the answer's neighbourhood comes next. It gives no bound. */
#include <string.h>

#include "planner/solver_internal.h"

enum { FIRST_KEEP = 8, MAX_PASSES = 12 };
static const double LOCAL_ENTRIES = 2e7;

/* The cost of the copies of VALUE under CHOICE. */
static int64_t value_cost(const struct mpp_solver_value *v, const int32_t *choice)
{
    int32_t made = v->out[choice[v->producer]];
    int64_t sum = 0;
    for (int32_t c = 0; c < v->n_consumers && sum < MPP_SOLVER_INF; c++) {
        int32_t t = v->in[c][choice[v->consumers[c]]];
        bool seen = t == made;
        for (int32_t d = 0; d < c && !seen; d++)
            seen = v->in[d][choice[v->consumers[d]]] == t;
        int64_t x = seen ? 0 : v->convert[(int64_t)made * v->n_forms + t];
        sum = x >= MPP_SOLVER_INF || sum + x > MPP_SOLVER_INF ? MPP_SOLVER_INF : sum + x;
    }
    return sum;
}

/* The least conversion between a form met by SLOT and any that the other side may have. */
static int64_t hopeful(const struct mpp_solver *s, const uint8_t *all, const struct mpp_solver_value *v, int32_t slot,
                       int32_t form)
{
    int64_t sum = 0;
    for (int32_t c = slot < 0 ? 0 : slot; c < v->n_consumers; c++) {
        int32_t other = slot < 0 ? v->consumers[c] : v->producer;
        int64_t least = MPP_SOLVER_INF;
        for (int32_t k = 0; k < s->p->nodes[other].n_choices && least > 0; k++) {
            int32_t from = slot < 0 ? form : v->out[k], to = slot < 0 ? v->in[c][k] : form;
            int64_t x = from == to ? 0 : v->convert[(int64_t)from * v->n_forms + to];
            if (all[s->choice_first[other] + k] && x < least)
                least = x;
        }
        sum = sum + least > MPP_SOLVER_INF ? MPP_SOLVER_INF : sum + least;
        if (slot >= 0)
            break;
    }
    return sum;
}

/* What choice K of NODE would cost with its neighbours as they are, or at best when nothing is chosen yet. */
static int64_t score(const struct mpp_solver *s, const uint8_t *all, int32_t node, int32_t k, int32_t *choice,
                     bool chosen)
{
    int32_t was = choice[node];
    int64_t sum = s->p->nodes[node].cost[k];
    choice[node] = k;
    for (int32_t e = s->inc_first[node]; e < s->inc_first[node + 1] && sum < MPP_SOLVER_INF; e++) {
        const struct mpp_solver_value *v = &s->p->values[s->inc[e].value];
        int32_t slot = s->inc[e].slot;
        int64_t x = chosen ? value_cost(v, choice) : hopeful(s, all, v, slot, slot < 0 ? v->out[k] : v->in[slot][k]);
        sum = sum + x > MPP_SOLVER_INF ? MPP_SOLVER_INF : sum + x;
    }
    choice[node] = was;
    return sum;
}

/* Of ALL, keep each node's KEEP best choices alive, and its present one. */
static void keep_best(struct mpp_solver *s, const uint8_t *all, int32_t keep, int32_t *choice, bool chosen,
                      int64_t *scratch)
{
    for (int32_t i = 0; i < s->p->n_nodes; i++) {
        int32_t first = s->choice_first[i], n = s->p->nodes[i].n_choices;
        for (int32_t k = 0; k < n; k++) {
            scratch[k] = all[first + k] ? score(s, all, i, k, choice, chosen) : INT64_MAX;
            s->alive[first + k] = 0;
        }
        for (int32_t q = 0; q < keep; q++) {
            int32_t best = -1;
            for (int32_t k = 0; k < n; k++)
                if (all[first + k] && !s->alive[first + k] && (best < 0 || scratch[k] < scratch[best]))
                    best = k;
            if (best < 0)
                break;
            s->alive[first + best] = 1;
        }
        if (chosen)
            s->alive[first + choice[i]] = 1;
    }
}

/* Solve what is alive exactly into CHOICE; false when it is too wide or impossible. */
static bool solve_alive(struct mpp_solver *s, int32_t *choice, bool *out_wide)
{
    struct mpp_solver_plan *plan = mpp_solver_plan_new(s, LOCAL_ENTRIES);
    *out_wide = plan == NULL;
    if (!plan)
        return false;
    struct mpp_solver_eval *ev = mpp_solver_eval_new(s, plan, NULL);
    bool ok = ev->value < MPP_SOLVER_INF && !mpp_solver_stopped(s);
    if (ok)
        mpp_solver_eval_choices(s, plan, ev, choice);
    mpp_solver_eval_free(ev);
    mpp_solver_plan_free(plan);
    return ok;
}

void mpp_solver_local(struct mpp_solver *s)
{
    struct mpp_arena *a = mpp_arena_scratch(s->arena);
    size_t n = (size_t)s->choice_first[s->p->n_nodes];
    uint8_t *all = mpp_arena_memdup(a, s->alive, n);
    int32_t *choice = mpp_arena_array(a, s->p->n_nodes, int32_t), most = 1, keep = FIRST_KEEP;
    for (int32_t i = 0; i < s->p->n_nodes; i++)
        most = s->p->nodes[i].n_choices > most ? s->p->nodes[i].n_choices : most;
    int64_t *scratch = mpp_arena_array(a, most, int64_t), last = INT64_MAX;
    bool chosen = false, no_split = s->tune.no_split;
    s->tune.no_split = true;
    for (int pass = 0; pass < MAX_PASSES && keep > 0 && !mpp_solver_stopped(s); pass++) {
        bool wide;
        memcpy(s->alive, all, n);
        keep_best(s, all, keep, choice, chosen, scratch);
        if (!solve_alive(s, choice, &wide)) {
            keep = wide ? keep - 1 - keep / 4 : keep + 4;
            continue;
        }
        int64_t cost = mpp_solver_offer(s, choice, NULL);
        if (chosen && cost >= last)
            break;
        chosen = true;
        last = cost;
    }
    s->tune.no_split = no_split;
    memcpy(s->alive, all, n);
    mpp_arena_free(a);
}
