/* kernels_epilogue.h - what follows a product, where cuBLASLt has no epilogue that does it.
 *
 *     mpp_cuda_epilogue(r, type, m, n, ldy, y, bias, true, pre, y);     // after y = the product */
#ifndef MPP_KERNELS_EPILOGUE_H
#define MPP_KERNELS_EPILOGUE_H

#include <stdbool.h>
#include <stdint.h>

#include "mpp_rt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* v = X + BIAS [cols] (NULL: 0) goes to PRE (NULL: nowhere), v or, where GELU, its GELU in the tanh form to Y. X, pre and y [rows, cols]
 * have rows LD elements apart, and may be the same. All in TYPE. */
void mpp_cuda_epilogue(struct mpp_rank *r, enum mpp_type type, int64_t rows, int64_t cols, int64_t ld, const void *x, const void *bias,
                       bool gelu, void *pre, void *y);

#ifdef __cplusplus
}
#endif

#endif
