/* fold.h - the integer program of many layers that are alike, as small as that of a few.
 *
 *     struct mpp_fold f;
 *     mpp_fold_make(arena, problem, &run, 4, &f);          // 4 micro-batches in flight
 *     ... mpp_solver_setup(&f.solver, ...) ... mpp_solver_solve(..., choice, &info) ...
 *     mpp_fold_times(&f, choice, &t_ps, &once_ps);
 *
 * The interior layers of a run decide alike: their nodes are one, with the costs of all; its first and last layer are
 * free, for they meet other neighbours. What such a plan costs in the unfolded program is what it costs here.
 * Internal to planner/. */
#ifndef MPP_FOLD_H
#define MPP_FOLD_H

#include "planner/stage.h"

/* The interior of a run: iterations FIRST and LAST of REPEAT, which stand beside each other in the problem's graph, stand
 * for LAYERS (>= 2) of them. LAYERS 0: nothing is folded. */
struct mpp_fold_run {
    int repeat, first, last;
    int64_t layers;
};

struct mpp_fold {
    struct mpp_solver_problem solver;
    const struct mpp_stage_problem *p;
    int32_t *from;                /* [solver.n_nodes] the problem's node that each stands for */
    int64_t *layers;              /* [solver.n_nodes] in so many layers; usages' tags are the problem's tensors */
    bool *node_once, *value_once; /* costs that arise once per step, not per micro-batch */
};

/* The program of P with RUN folded and IN_FLIGHT micro-batches' activations alive. *OUT lives in ARENA and refers to P.
 * False where the layers of RUN are not alike. */
bool mpp_fold_make(struct mpp_arena *arena, const struct mpp_stage_problem *p, const struct mpp_fold_run *run,
                   int64_t in_flight, struct mpp_fold *out);

/* What the copies of one of F's values cost under CHOICE. */
int64_t mpp_fold_copies(const struct mpp_fold *f, int value, const int32_t *choice);

/* The parts of F's objective under CHOICE: per micro-batch (of MICRO_BATCHES that the costs count), and once per step. */
void mpp_fold_times(const struct mpp_fold *f, const int32_t *choice, int64_t micro_batches, int64_t *out_t_ps,
                    int64_t *out_once_ps);

/* The same split into forward, backward (the rest of what mpp_fold_times has per micro-batch), once per step, and of that
 * what waits for the norm of all gradients, as a plan's stage has them. */
struct mpp_stage_time mpp_fold_stage_time(const struct mpp_fold *f, const int32_t *choice, int64_t micro_batches);

/* What CHOICE of F decides in REAL, the program of the whole span, into OUT_CHOICE [real->solver.n_nodes]: layer by
 * layer, the interior ones alike. False where REAL does not have these choices. */
bool mpp_fold_expand(const struct mpp_fold *f, const struct mpp_fold_run *run, const int32_t *choice,
                     const struct mpp_stage_problem *real, int32_t *out_choice);

#endif
