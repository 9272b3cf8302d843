/* timeline.h - what a device of a stage does in a micro-batch and once per step, piece by piece in order.
 *
 *     int n;
 *     const struct mpp_piece *p = mpp_plan_timeline(arena, cluster, plan, 0, &n);
 *     for (int i = 0; i < n; i++) ... p[i].part, p[i].kind, p[i].cost_ps ...
 *
 * For plans that are derived. The pieces of a part add up to what the stage's times say: forward_ps, backward_ps, once_ps less
 * update_ps, update_ps; only kernels that are not fused (--kernels unfused) also wait for the host, which is no piece. */
#ifndef MPP_TIMELINE_H
#define MPP_TIMELINE_H

#include "planner/plan.h"

enum mpp_piece_part {
    MPP_PART_FORWARD,             /* of a micro-batch, the prologue included */
    MPP_PART_BACKWARD,            /* of a micro-batch */
    MPP_PART_ONCE,                /* once per step: what needs no other stage */
    MPP_PART_UPDATE,              /* once per step: what waits for the norm of all gradients */
};

enum mpp_piece_kind {
    MPP_PIECE_COMPUTE,            /* a group's kernels */
    MPP_PIECE_INTERNAL,           /* collectives inside a group's kernels */
    MPP_PIECE_RECEIVE,            /* from another stage */
    MPP_PIECE_STEP,               /* a step of a copy: a collective, or (slice, to-partial) a local one */
};

struct mpp_piece {
    enum mpp_piece_part part;
    enum mpp_piece_kind kind;
    int group;                    /* of the stage's graph: that runs, or before which (store: after which) the copy is made */
    int copy, step;               /* STEP: of the stage's copies; else -1 */
    int comm, n_comms;            /* of the stage's collectives, those that it is; n_comms 0: none */
    int64_t cost_ps;              /* of one execution; may be 0 */
};

/* The pieces of stage STAGE in execution order, in ARENA; *OUT_N how many. */
const struct mpp_piece *mpp_plan_timeline(struct mpp_arena *arena, const struct mpp_cluster *cluster,
                                          const struct mpp_plan *plan, int stage, int *out_n);

#endif
