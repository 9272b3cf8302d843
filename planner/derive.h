/* derive.h - the words for why a collective is there. Internal to planner/.
 *
 *     copy->reason = mpp_reason_copy(arena, graph, stage, copy, producer);
 */
#ifndef MPP_DERIVE_H
#define MPP_DERIVE_H

#include "planner/plan.h"

/* "c_proj sums over heads, which are split over model"; names are without their layer's prefix. PRODUCER
 * [n_tensors]: the group that makes a tensor, -1 for parameters and inputs. */
const char *mpp_reason_copy(struct mpp_arena *arena, const struct mpp_graph *g, const struct mpp_stage *stage,
                            const struct mpp_copy *copy, const int *producer);

/* The same for its step I alone. */
const char *mpp_reason_step(struct mpp_arena *arena, const struct mpp_graph *g, const struct mpp_stage *stage,
                            const struct mpp_copy *copy, int i, const int *producer);

/* "row sums of ln_1, whose hidden is split over model" */
const char *mpp_reason_internal(struct mpp_arena *arena, const struct mpp_graph *g, const struct mpp_mesh *mesh,
                                const struct mpp_group *group, struct mpp_split split, const char *what);

/* NAME without the prefix of the layer that OP stands in. */
const char *mpp_reason_local_name(struct mpp_arena *arena, const struct mpp_gop *op, const char *name);

/* The axes of MASK, joined by +: "data+model". */
const char *mpp_reason_axes(struct mpp_arena *arena, const struct mpp_mesh *mesh, unsigned mask);

#endif
