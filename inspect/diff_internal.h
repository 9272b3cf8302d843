/* diff_internal.h - what diff.c and diff_decisions.c share; nobody else includes it.
 *
 *     int n;
 *     const struct mpp_decision *d = mpp_diff_decisions(arena, &a, &b, &n);
 *     ... d[i].what, d[i].names[...], d[i].a, d[i].b ...
 */
#ifndef MPP_INSPECT_DIFF_INTERNAL_H
#define MPP_INSPECT_DIFF_INTERNAL_H

#include "inspect/plandir.h"

/* Things that one plan decides alike, and the other too, but otherwise. */
struct mpp_decision {
    const char *what;             /* "kernels", "weights at rest", "weights kept gathered" */
    const char *a, *b;            /* "batch over 8", "ffn over 8"; "" where the plan has no such thing */
    int n_names;
    const char **names;           /* [n_names] layers' numbers as *: "h.*.mlp.c_fc" */
    size_t cap;
    double weight;                /* how much work or how many bytes this is about; they come in the order of it */
};

/* What plans of one model decide otherwise; in ARENA. */
const struct mpp_decision *mpp_diff_decisions(struct mpp_arena *arena, const struct mpp_plandir *a, const struct mpp_plandir *b,
                                              int *out_n);

#endif
