/* passes.h - the passes of a step on one rank: the places of its micro-batches, and who calls the emitted code.
 *
 *     code = mpp_passes_new(r, &error);      // states of all slots of all chunks
 *     mpp_passes_set_up(r);                  // the emitted setup, once for each
 *     mpp_passes_run(r);                     // a step's prologue, forward and backward passes
 *     mpp_passes_free(r); */
#ifndef MPP_PASSES_H
#define MPP_PASSES_H

#include "fail.h"
#include "mpp_rt.h"

/* R has its stage and impl; its arena is there before set_up. */
int mpp_passes_new(struct mpp_rank *r, struct mpp_error *error) MPP_RT_CHECKED;
void mpp_passes_set_up(struct mpp_rank *r);
/* The inputs of R's step are in its feed. */
void mpp_passes_run(struct mpp_rank *r);
void mpp_passes_free(struct mpp_rank *r);

#endif
