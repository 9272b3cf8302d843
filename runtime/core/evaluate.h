/* evaluate.h - the loss on data that is not trained on (--eval), and what forward passes must not leave changed.
 *
 *     loss = mpp_evaluate(r);        // all ranks, between two steps; on rank 0 the mean over --eval-steps batches
 *
 *     code = mpp_keep_tensors(r, MPP_KEEP_ALL, &buffer, &error);    // a copy; the buffer is the caller's
 *     mpp_keep_restore(r, MPP_KEEP_ALL, buffer); */
#ifndef MPP_EVALUATE_H
#define MPP_EVALUATE_H

#include "fail.h"
#include "mpp_rt.h"

/* ALL: parameters and optimiser state. UNTRAINED: parameters without a gradient, as running statistics are, which forward
 * passes change. */
enum mpp_keep { MPP_KEEP_ALL, MPP_KEEP_UNTRAINED };

int mpp_keep_tensors(struct mpp_rank *r, enum mpp_keep which, char **buffer_out, struct mpp_error *error) MPP_RT_CHECKED;
void mpp_keep_restore(struct mpp_rank *r, enum mpp_keep which, const char *buffer);

/* The same batches each time: the first of the data. Weights, state and what is reported of the last step stay as they are.
 * Dropout is the identity. Where something is wrong with the data all ranks leave. */
double mpp_evaluate(struct mpp_rank *r);

#endif
