/* overlap.h - what of a stage's collectives goes on beside its kernels, and what a step takes then.
 *
 *     mpp_overlap_measure(arena, cluster, plan, i, prog, &plan->stages[i].overlap);   // of each stage, once it is lowered
 *     mpp_overlap_time(arena, plan);                                                  // plan->overlapped_ps
 */
#ifndef MPP_OVERLAP_H
#define MPP_OVERLAP_H

#include "codegen/program.h"

/* Of STAGE of PLAN, which is derived, under its program PROG. Nothing is hidden of plans that are not fused. */
void mpp_overlap_measure(struct mpp_arena *arena, const struct mpp_cluster *cluster, const struct mpp_plan *plan, int stage,
                         const struct mpp_lprog *prog, struct mpp_overlap *out);

/* PLAN's step where what is hidden costs MPP_COST_BESIDE of its time, by the formula that its objective has. */
void mpp_overlap_time(struct mpp_arena *arena, struct mpp_plan *plan);

#endif
