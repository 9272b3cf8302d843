/* start.h - where a run begins: at a checkpoint or at step 0, and with which samples.
 *
 *     code = mpp_start_prepare(&job, speaks, &error);     // fills job's seed, first step, resume and data
 *     mpp_start_clean(&job); */
#ifndef MPP_START_H
#define MPP_START_H

#include <stdbool.h>

#include "fail.h"
#include "job.h"

/* SPEAKS: of several processes, the one that prints notes. */
int mpp_start_prepare(struct mpp_job *job, bool speaks, struct mpp_error *error) MPP_RT_CHECKED;
void mpp_start_clean(struct mpp_job *job);

/* Collective, before anything of the job is used: all ranks begin where rank 0 does. It looks once more, with the folder of
 * --save locked: until then a trainer that was killed may still save, and a shared file system may show processes different
 * checkpoints. On failure all ranks leave. */
void mpp_start_agree(struct mpp_rank *r);

#endif
