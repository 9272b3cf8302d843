/* exhaustive.h - the least cost of a stage's program by trying all combinations of what it offers.
 *
 *     int64_t least = exhaustive_least(problem, cluster, &mesh, 0, capacity_bytes, INT64_MAX / 2, &agree);
 *
 * Of the problem only the offered splits and resting shardings are read. What a decision costs and needs is worked out
 * anew, from mpp_price_group, mpp_reshard_path and mpp_sharding_bytes, with an own account of copies, of how often they
 * are made and of how long things live. Two searches that share nothing with the solver: depth first, and position by
 * position, keeping of the states that look alike to what follows those that no other beats in cost and in memory at
 * every time. */
#ifndef MPP_TESTS_EXHAUSTIVE_H
#define MPP_TESTS_EXHAUSTIVE_H

#include "planner/stage.h"

/* HIDDEN: of sums of gradients and gathers of parameters, the share that is not paid where kernels can run beside them.
 * The least cost within CAPACITY, as far as it is at most LIMIT; INT64_MAX: nothing is; -1: too many combinations to try.
 * *OUT_AGREE: the search in depth, where it came to an end, found the same. */
int64_t exhaustive_least(const struct mpp_stage_problem *p, const struct mpp_cluster *cluster, const struct mpp_mesh *mesh,
                         double hidden, int64_t capacity, int64_t limit, bool *out_agree);

#endif
