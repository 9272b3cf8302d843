/* interp.h - runs a whole training step on one device by the reference kernels, in float64.
 *
 *     struct mpp_interp *it = mpp_interp_new(g, batch);              // micro-batches of BATCH samples
 *     double *w = mpp_interp_data(it, param);                        // fill parameters and inputs
 *     mpp_interp_step(it, lr);
 *     printf("%.12f\n", *mpp_interp_data(it, g->loss_total));
 *     mpp_interp_free(it);
 *
 * It is the yardstick for generated programs: no sharding, no rounding to speak of. Every tensor keeps its value
 * until it is computed again; inputs hold the step's whole batch, all else that grows with the batch the last
 * micro-batch. */
#ifndef MPP_INTERP_H
#define MPP_INTERP_H

#include <stdint.h>

#include "ir/graph.h"

struct mpp_interp;

/* An interpreter of G, whose batch is set to BATCH (a divisor of the global batch; inputs have the batch as their
 * first dimension or not at all). All data is zero. Hyperparameters come from the model's <training>. G must
 * outlive it; the caller frees it. */
struct mpp_interp *mpp_interp_new(struct mpp_graph *g, int64_t batch);
void mpp_interp_free(struct mpp_interp *it);

/* The elements of tensor T, row-major, to read or write. Integers are stored as doubles. */
double *mpp_interp_data(struct mpp_interp *it, mpp_id t);

/* How many elements that is. */
int64_t mpp_interp_count(const struct mpp_interp *it, mpp_id t);

/* Random numbers of dropout: seed, and the step (from 1) that the next run is. mpp_interp_step counts on. */
void mpp_interp_seed(struct mpp_interp *it, uint64_t seed, int64_t step);

/* Prologue and forward of all micro-batches; the step's loss where G has been differentiated, else the last
 * micro-batch's. */
double mpp_interp_loss(struct mpp_interp *it);

/* The same with backward: afterwards gradients are those of the step. */
void mpp_interp_gradients(struct mpp_interp *it);

/* The same by hand, for graphs that are run in turns (stages): set all sums to 0, then run the ops of one phase for one
 * micro-batch, counted from 0. Recv and Send do nothing: who runs them copies the tensors. */
void mpp_interp_begin(struct mpp_interp *it);
void mpp_interp_run(struct mpp_interp *it, enum mpp_phase phase, int64_t micro);

/* A whole step with learning rate LR. */
void mpp_interp_step(struct mpp_interp *it, double lr);

#endif
