/* reshard.h - from one sharding of a tensor to another: the cheapest sequence of collectives.
 *
 *     struct mpp_reshard_step steps[MPP_RESHARD_MAX_STEPS];
 *     int64_t cost_ps;
 *     int n = mpp_reshard_path(&env, tensor, from, to, steps, &cost_ps);   // -1: impossible
 *
 * Found by Dijkstra over the shardings of the tensor, whose edges are single collectives over sets of axes.
 * Blocks are nested in axis order, so only the innermost axes of a dimension can be gathered or cut. */
#ifndef MPP_RESHARD_H
#define MPP_RESHARD_H

#include <stdint.h>

#include "costmodel/costmodel.h"
#include "ir/graph.h"
#include "ir/rule.h"

#define MPP_RESHARD_MAX_STEPS 8

enum mpp_step_kind {
    MPP_STEP_ALL_REDUCE,          /* partial over mask -> whole */
    MPP_STEP_REDUCE_SCATTER,      /* partial over mask -> split at dim */
    MPP_STEP_ALL_GATHER,          /* split at dim over mask -> whole */
    MPP_STEP_ALL_TO_ALL,          /* split at dim over mask -> split at to_dim */
    MPP_STEP_SLICE,               /* whole over mask -> split at dim; local */
    MPP_STEP_TO_PARTIAL,          /* whole over mask -> partial; local */
};

struct mpp_reshard_step {
    enum mpp_step_kind kind;
    unsigned mask;
    int dim, to_dim;
    struct mpp_sharding from, to;
    int64_t bytes;                /* of the larger side per device: what the cost model is asked */
    int64_t cost_ps;
};

/* What all paths on one mesh share: the links that each set of axes sees. */
struct mpp_reshard_env {
    const struct mpp_cluster *cluster;
    const struct mpp_mesh *mesh;
    int first;                    /* device that the mesh is laid from */
    int receives;                 /* how often per micro-batch a Recv runs: 1, chunks of the interleaved schedule */
    double hidden;                /* of sums of gradients and gathers of parameters: not to be paid (struct mpp_stage_site) */
    struct mpp_groups groups[1 << MPP_MAX_AXES]; /* by mask */
};

/* Prepare *OUT for MESH laid on CLUSTER from device FIRST on; both must outlive it. */
void mpp_reshard_env_init(const struct mpp_cluster *cluster, const struct mpp_mesh *mesh, int first,
                          struct mpp_reshard_env *out);

/* "all-reduce", "reduce-scatter", ... */
const char *mpp_step_name(enum mpp_step_kind kind);

/* The steps from FROM to TO (at most MPP_RESHARD_MAX_STEPS) of tensor T on MESH of CLUSTER; *OUT_COST_PS their cost.
 * Returns how many; 0 when equal; -1 when there is no way. i32 tensors cannot be partial. Deterministic. */
int mpp_reshard_path(const struct mpp_cluster *cluster, const struct mpp_mesh *mesh, const struct mpp_gtensor *t,
                     struct mpp_sharding from, struct mpp_sharding to, struct mpp_reshard_step *out_steps,
                     int64_t *out_cost_ps);

/* The same with what mpp_reshard_env_init prepared. */
int mpp_reshard_path_in(const struct mpp_reshard_env *env, const struct mpp_gtensor *t, struct mpp_sharding from,
                        struct mpp_sharding to, struct mpp_reshard_step *out_steps, int64_t *out_cost_ps);

/* Every sharding of a tensor of N_DIMS has a number below mpp_reshard_n_states on the mesh. */
int mpp_reshard_n_states(const struct mpp_mesh *mesh, int n_dims);
int mpp_reshard_state(const struct mpp_mesh *mesh, int n_dims, struct mpp_sharding s);

/* The costs of all paths from FROM: OUT_COST_PS [mpp_reshard_n_states], INT64_MAX where there is no way. */
void mpp_reshard_costs_from(const struct mpp_reshard_env *env, const struct mpp_gtensor *t, struct mpp_sharding from,
                            int64_t *out_cost_ps);

#endif
