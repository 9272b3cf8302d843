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
#include "inspect/source.h"
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

/* Why NAME, an op, tensor, layer or stage, is as it is in the plan of SOURCE (of FROM_PLAN's decisions; NULL: that is searched), and what
 * each alternative would take: stages, meshes and micro-batches held, the rest optimised again. MPP_INVALID: there is no such thing. */
enum mpp_status mpp_inspect_explain(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_source *source, const char *from_plan,
                                    const char *name, const struct mpp_inspect_out *to) MPP_CHECKED;

/* A plan of SOURCE for each value of each of the N SWEEPS ("gpus=1,2,4"; also cluster, precision, batch, preset, and what -D
 * names), all with all, as a table and a chart of step time, throughput, memory and, where a device costs PRICE per hour (0: not
 * told), cost. What does not fit is marked. MPP_INVALID: a key or value is wrong. */
enum mpp_status mpp_inspect_sweep(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_source *source, int n,
                                  const char *const *sweeps, double price, const struct mpp_inspect_out *to) MPP_CHECKED;

#endif
