/* trainer.h - one rank's training, from its arena to the last step.
 *
 *     mpp_trainer_rank(r);       // on the rank's own thread; comes back whatever happens
 *     code = local->exit_code;
 *     mpp_trainer_clean(r);      // once no rank runs any more: peers read each other's arenas */
#ifndef MPP_TRAINER_H
#define MPP_TRAINER_H

#include "job.h"
#include "mpp_rt.h"

/* R has its coordinates, transport and impl (a struct mpp_local). */
void mpp_trainer_rank(struct mpp_rank *r);
void mpp_trainer_clean(struct mpp_rank *r);

/* Learning rate of step STEP (from 1): linear warm-up to PEAK over the first W = warmup_steps, then
 *   constant  PEAK
 *   linear    PEAK + (final - PEAK) (t - W) / (N - W)
 *   cosine    final + (PEAK - final) (1 + cos(pi (t - W) / (N - W))) / 2
 * and `final` from step N = total_steps on (STEPS where the program gives none). */
double mpp_trainer_lr(const struct mpp_program *program, double peak, int64_t steps, int64_t step);

#endif
