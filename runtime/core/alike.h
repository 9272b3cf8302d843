/* alike.h - were the processes of a job started alike? They run one plan with the same options on the same data, or they
 * would wait for each other for ever, or train on a mixture.
 *
 *     uint64_t mark[MPP_ALIKE_PARTS];
 *     mpp_alike_mark(&job, mark);                           // in every process, once its data are open
 *     int part = mpp_alike_compare(mark, mark_of_rank_0);   // -1: alike
 *     code = mpp_alike_refuse(part, rank, host, &error); */
#ifndef MPP_ALIKE_H
#define MPP_ALIKE_H

#include <stdint.h>

#include "fail.h"
#include "job.h"

enum { MPP_ALIKE_PARTS = 14 };

/* A hash of each part that must agree: the plan, the options, the sizes of the data. 0: not known in this process, as the
 * options where they were refused. */
void mpp_alike_mark(const struct mpp_job *job, uint64_t *mark_out);
/* The first part that both know and that differs, or -1. */
int mpp_alike_compare(const uint64_t *mark, const uint64_t *first);
/* RANK on HOST differs from rank 0 in PART: MPP_EXIT_INPUT, with what to do. */
int mpp_alike_refuse(int part, int rank, const char *host, struct mpp_error *error) MPP_RT_CHECKED;

#endif
