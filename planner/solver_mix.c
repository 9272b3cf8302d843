/* solver_mix.c - a choice between a cheap one that does not fit and a dear one that does.
 *
 * Models repeat a layer many times, and each layer may go either way: the cheap choice is taken for a first or a
 * last part of the nodes, as many as memory allows, and elimination settles what lies around the seam. */
#include <stdlib.h>
#include <string.h>

#include "planner/solver_internal.h"

enum { SEAM = 24, NEAR = 3 };
static const double SEAM_ENTRIES = 1e6;

struct place {
    int32_t at, node;
};

static int cmp_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return (x->node > y->node) - (x->node < y->node);
}

/* The nodes in order along the model. Weights and their updates are numbered elsewhere: each goes to its first
 * neighbour, and what then still comes after all its neighbours goes to the last of them. */
static struct place *arrange(const struct mpp_solver *s, struct mpp_arena *a)
{
    int32_t n = s->p->n_nodes;
    struct place *p = mpp_arena_array(a, n, struct place);
    int32_t *at = mpp_arena_array(a, n, int32_t), *last = mpp_arena_array(a, n, int32_t);
    for (int32_t i = 0; i < n; i++) {
        at[i] = i;
        last[i] = -1;
    }
    for (int pass = 0; pass < 2; pass++)
        for (int32_t v = 0; v < s->p->n_values; v++) {
            const struct mpp_solver_value *val = &s->p->values[v];
            for (int32_t c = 0; c < val->n_consumers; c++) {
                int32_t x = val->producer, y = val->consumers[c];
                if (s->p->nodes[x].n_choices < 2 || s->p->nodes[y].n_choices < 2)
                    continue;     /* a sum over all layers, say */
                if (pass == 0) {
                    at[x] = y < at[x] ? y : at[x];
                    at[y] = x < at[y] ? x : at[y];
                } else {
                    last[x] = at[y] > last[x] ? at[y] : last[x];
                    last[y] = at[x] > last[y] ? at[x] : last[y];
                }
            }
        }
    for (int32_t i = 0; i < n; i++)
        p[i] = (struct place){last[i] >= 0 && last[i] < at[i] ? last[i] : at[i], i};
    qsort(p, (size_t)n, sizeof *p, cmp_place);
    return p;
}

/* OUT: the first CUT nodes, or the last, as in LEAN, the rest as in FAT. */
static void cut_at(const struct mpp_solver *s, const struct place *p, int32_t cut, bool lean_first, const int32_t *fat,
                   const int32_t *lean, int32_t *out)
{
    int32_t n = s->p->n_nodes;
    for (int32_t q = 0; q < n; q++) {
        int32_t i = p[q].node;
        bool is_lean = lean_first ? q < cut : q >= n - cut;
        out[i] = is_lean ? lean[i] : fat[i];
    }
}

/* Elimination over the choices around the seam. */
static void settle_seam(struct mpp_solver *s, const struct place *p, int32_t seam, const int32_t *fat,
                        const int32_t *lean, const int64_t *price, const uint8_t *all, int32_t *choice)
{
    int32_t n = s->p->n_nodes;
    size_t total = (size_t)s->choice_first[n];
    memset(s->alive, 0, total);
    for (int32_t q = 0; q < n; q++) {
        int32_t i = p[q].node, first = s->choice_first[i];
        s->alive[first + choice[i]] = 1;
        if (q >= seam - SEAM && q < seam + SEAM)
            s->alive[first + fat[i]] = s->alive[first + lean[i]] = 1;
        if (q >= seam - NEAR && q < seam + NEAR)
            memcpy(s->alive + first, all + first, (size_t)s->p->nodes[i].n_choices);
    }
    struct mpp_solver_plan *plan = mpp_solver_plan_new(s, SEAM_ENTRIES);
    if (plan) {
        struct mpp_solver_eval *ev = mpp_solver_eval_new(s, plan, price);
        if (ev->value < MPP_SOLVER_INF && !mpp_solver_stopped(s)) {
            mpp_solver_eval_choices(s, plan, ev, choice);
            mpp_solver_offer(s, choice, NULL);
        }
        mpp_solver_eval_free(ev);
    }
    mpp_solver_plan_free(plan);
    memcpy(s->alive, all, total);
}

void mpp_solver_mix(struct mpp_solver *s, const int32_t *fat, const int32_t *lean, const int64_t *price)
{
    int32_t n = s->p->n_nodes;
    struct mpp_arena *a = mpp_arena_scratch(s->arena);
    struct place *p = arrange(s, a);
    int32_t *choice = mpp_arena_array(a, n, int32_t);
    uint8_t *all = mpp_arena_memdup(a, s->alive, (size_t)s->choice_first[n]);
    bool no_split = s->tune.no_split;
    s->tune.no_split = true;
    for (int side = 0; side < 2 && !mpp_solver_stopped(s); side++) {
        int32_t lo = 0, hi = n;   /* a cut of HI fits, one of LO does not */
        while (hi - lo > 1) {
            int32_t mid = lo + (hi - lo) / 2;
            bool fits;
            cut_at(s, p, mid, side == 0, fat, lean, choice);
            mpp_solver_offer(s, choice, &fits);
            s->work += 32 * (int64_t)n;
            *(fits ? &hi : &lo) = mid;
        }
        for (int32_t more = 0; more <= SEAM; more += SEAM / 2) {
            int32_t cut = hi + more < n ? hi + more : n;
            cut_at(s, p, cut, side == 0, fat, lean, choice);
            settle_seam(s, p, side == 0 ? cut : n - cut, fat, lean, price, all, choice);
        }
    }
    s->tune.no_split = no_split;
    mpp_arena_free(a);
}
