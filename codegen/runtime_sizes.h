/* runtime_sizes.h - what plans count of the CUDA runtime's memory. The runtime stands alone and has its own names for these in
 * cuda/cuda_internal.h; tests/cuda/test_sums.c compiles where both say the same. */
#ifndef MPP_CODEGEN_RUNTIME_SIZES_H
#define MPP_CODEGEN_RUNTIME_SIZES_H

enum {
    MPP_SIZES_BLAS_BYTES = 32 << 20,  /* cuBLASLt's workspace */
    MPP_SIZES_SMALL_BYTES = 64,       /* struct mpp_step_factors, and struct mpp_step_values where passes are CUDA graphs */
    MPP_SIZES_BUCKET_BYTES = 8 << 20, /* of begun sums that are packed together */
    MPP_SIZES_HALF_PART = 1 << 25,    /* elements of an all-reduce of 16-bit floats at a time, */
    MPP_SIZES_HALF_ALIGNED = 64,      /* and what ranks' shares are multiples of */
};

#endif
