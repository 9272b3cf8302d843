/* ref.h - the reference kernels: what each op computes, in float64, dense and row-major.
 *
 *     struct mpp_ref_in in = { .op = op, .in = inputs, .out = outputs };
 *     mpp_op_info(op->kind)->ref(&in);
 *
 * A kernel works on whole tensors or on one shard: dims are the shard's valid extents, offset and global say
 * where it lies. Sums over a split `+` factor give this shard's term; a split `~` factor is finished by
 * in->internal. Kernels only write out[].data, which the caller allocates for the valid extents. */
#ifndef MPP_REF_H
#define MPP_REF_H

#include <stdbool.h>
#include <stdint.h>

#include "ir/op.h"
#include "ir/op_table.h" /* mpp_ref_<x>, one per ref column of ops.def */

/* ---- helpers of the kernels ---- */

/* Number of valid elements of T, and of its dimensions FROM .. TO - 1. */
int64_t mpp_ref_count(const struct mpp_ref_tensor *t);
int64_t mpp_ref_span(const struct mpp_ref_tensor *t, int from, int to);

/* Row-major strides of T's local array. */
void mpp_ref_strides(const struct mpp_ref_tensor *t, int64_t *stride);

/* Strides with which the elements of OUT read the broadcast operand T: right-aligned, 0 where T has extent 1. */
void mpp_ref_broadcast(const struct mpp_ref_tensor *t, const struct mpp_ref_tensor *out, int64_t *stride);

/* Advance IDX over T's local block, last dimension fastest; false after the last element. */
bool mpp_ref_next(const struct mpp_ref_tensor *t, int64_t *idx);

/* Index of the local element IDX within the whole tensor, row-major. */
int64_t mpp_ref_global_index(const struct mpp_ref_tensor *t, const int64_t *idx);

/* Finish a ~ factor; nothing happens when it is not split. */
void mpp_ref_all_reduce(const struct mpp_ref_in *in, double *x, int64_t n, bool max);

/* Scratch of N zeroed doubles; ends the process when memory is out. The caller frees it. */
double *mpp_ref_scratch(int64_t n);

/* Philox 4x32-10 (Salmon et al., SC 2011): a uniform number in [0, 1) of (seed, step, op, element), equal to
 * runtime/mpp_rt.h's mpp_uniform. */
float mpp_ref_uniform(uint64_t seed, int64_t step, uint32_t op, uint64_t element);

/* What dropout of RATIO multiplies an element by. */
double mpp_ref_dropout_factor(const struct mpp_ref_in *in, double ratio, int64_t stream, uint64_t element);

#endif
