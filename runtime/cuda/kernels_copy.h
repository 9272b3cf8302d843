/* kernels_copy.h - copies on a rank's device, and sums of few terms.
 *
 *     mpp_cuda_copy_box(r, stream, &box, src, dst);
 *     mpp_cuda_sum_halves(r, stream, type, &terms, y); */
#ifndef MPP_KERNELS_COPY_H
#define MPP_KERNELS_COPY_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "mpp_rt.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MPP_BOX_DIMS = MPP_MAX_DIMS };

/* N [n_dims] runs of RUN elements of BYTES (2 or 4) each, strides in elements. */
struct mpp_box {
    int n_dims;
    int64_t n[MPP_BOX_DIMS], src_stride[MPP_BOX_DIMS], dst_stride[MPP_BOX_DIMS];
    int64_t run, bytes;
};

/* src and dst do not overlap. */
void mpp_cuda_copy_box(struct mpp_rank *r, cudaStream_t stream, const struct mpp_box *box, const void *src, void *dst);

/* y [count] = the sum of N arrays of 16-bit floats, formed in f32 in their order and rounded once. Array OWN is at MINE, array m of the
 * others at THEIRS + m * STRIDE. y may be MINE. */
struct mpp_half_terms {
    int n, own;
    int64_t count, stride;
    const uint16_t *mine, *theirs;
};
void mpp_cuda_sum_halves(struct mpp_rank *r, cudaStream_t stream, enum mpp_type type, const struct mpp_half_terms *terms, void *y);

/* *x = the sum of N terms, in order. */
void mpp_cuda_add_terms(struct mpp_rank *r, int n, const float *terms, float *x);
/* C [by strides] = (beta ? C : 0) + sums of products: what no matrix product can do (contraction.h). */
struct mpp_contraction;
void mpp_cuda_plain_contraction(struct mpp_rank *r, const struct mpp_contraction *e, enum mpp_type type, enum mpp_type c_type,
                                const void *a, const void *b, float beta, void *c);

#ifdef __cplusplus
}
#endif

#endif
