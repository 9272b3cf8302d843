/* data.h - what a step's inputs hold: a function of (seed, global sample), never of the plan.
 *
 *     struct mpp_data *d;
 *     int code = mpp_data_open("tokens:train_*.bin", program, seed, &d, &error);   // one per process
 *     code = mpp_data_fill(d, r, step, micro_batch, input, local, &error);         // each rank, its own block
 *     mpp_data_close(d);
 *
 *   text:FILE    bytes as token ids
 *   tokens:GLOB  token shards (tokens.h)
 *   npy:DIR      DIR/NAME.npy per input, in stored order: with one dimension more than the input it holds
 *                batches (step mod n), else samples (consecutive, wrapping)
 *   synthetic    random ids below the limits, normal floats
 *
 * Ids outside an input's limits are an error that names file, index and value. */
#ifndef MPP_DATA_H
#define MPP_DATA_H

#include <stdint.h>

#include "fail.h"
#include "mpp_rt.h"

struct mpp_data;

int mpp_data_open(const char *spec, const struct mpp_program *program, uint64_t seed, struct mpp_data **data_out,
                  struct mpp_error *error) MPP_RT_CHECKED;
void mpp_data_close(struct mpp_data *data);
/* The step with index STEP begins with global sample SAMPLE; later steps follow on. Without it, with sample STEP * batch. */
void mpp_data_continue(struct mpp_data *data, int64_t step, int64_t sample);

/* How many tokens the files hold, or samples and batches of all arrays; synthetic data: 0. */
int64_t mpp_data_size(const struct mpp_data *data);

/* The sources that can fill the program's inputs, as words: "npy:DIR or synthetic". */
void mpp_data_choices(const struct mpp_program *program, char *out, int out_bytes);

/* Fill LOCAL, the padded local array of input INPUT of the rank's stage, for micro-batch MICRO_BATCH of the step with index STEP (from 0).
 * Padding is left as it is. Safe to call from several threads. */
int mpp_data_fill(const struct mpp_data *data, const struct mpp_rank *r, int64_t step, int micro_batch, int input,
                  void *local, struct mpp_error *error) MPP_RT_CHECKED;

#endif
