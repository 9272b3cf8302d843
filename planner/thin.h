/* thin.h - leave out choices that are no better than another one of their node, whatever their neighbours do.
 *
 *     struct mpp_thin t;
 *     mpp_thin_make(arena, &problem, &t);
 *     ... solve t.solver without a memory limit ...
 *     mpp_thin_choice(&t, thin_choice, choice);
 *
 * The least cost stays as it is; memory is not looked at, so it is for programs without a limit. Internal to planner/. */
#ifndef MPP_THIN_H
#define MPP_THIN_H

#include "planner/solver.h"

struct mpp_thin {
    struct mpp_solver_problem solver;
    int32_t **kept;               /* [n_nodes][its choices that are left] by number in the whole problem */
};

void mpp_thin_make(struct mpp_arena *arena, const struct mpp_solver_problem *problem, struct mpp_thin *out);

/* CHOICE of the thin problem as choice of the whole one. */
void mpp_thin_choice(const struct mpp_thin *t, const int32_t *choice, int32_t *out_choice);

#endif
