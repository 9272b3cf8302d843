/* inspect.h - the questions that mpplan answers about plans: start here.
 *
 *     MPP_TRY(mpp_inspect_diff(arena, diag, "tp8/", "dp8/", NULL, &(struct mpp_inspect_out){stdout, false}));
 */
#ifndef MPP_INSPECT_H
#define MPP_INSPECT_H

#include <stdbool.h>
#include <stdio.h>

#include "ir/arena.h"
#include "ir/diag.h"
#include "ir/status.h"

/* Where an answer goes, and as what. */
struct mpp_inspect_out {
    FILE *out;
    bool json;                    /* one object (docs/plan.md), else for people */
};

/* What differs between the plan directories A and B, and why one is faster. CLUSTER: a file where the cluster is no built-in
 * one; NULL. MPP_INVALID: one is no plan directory. */
enum mpp_status mpp_inspect_diff(struct mpp_arena *arena, struct mpp_diag *diag, const char *a, const char *b, const char *cluster,
                                 const struct mpp_inspect_out *to) MPP_CHECKED;

#endif
