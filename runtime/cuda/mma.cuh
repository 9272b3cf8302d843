/* mma.cuh - products of 16-bit matrices on tensor cores, by a warp: what PTX has instructions for, and no more.
 *
 *     uint32_t a[4], b[4];                            // a warp's piece of A, 16 x 16, and two of B, 16 x 8 each
 *     mpp_load_matrices(a, rows + lane % 16 * pitch + lane / 16 * 8);
 *     mpp_load_matrices_turned(b, ...);
 *     mpp_multiply<MPP_TYPE_BF16>(c, a, b);           // c [16 x 8] in f32 += A B
 *
 * All 32 lanes of a warp call each function together. Which lane has which elements ("fragments") is told in the PTX ISA, "Matrix
 * Fragments for mma.m16n8k16 with floating point type" and "ldmatrix"; with g = lane / 4 and t = lane % 4:
 *
 *     A [16 x 16]   a[0] = row g, columns 2t, 2t+1;  a[1] = row g+8;  a[2], a[3] = the same of columns 2t+8, 2t+9
 *     B [16 x 8]    b[0] = rows 2t, 2t+1 of column g;  b[1] = rows 2t+8, 2t+9
 *     C [16 x 8]    c[0], c[1] = row g, columns 2t, 2t+1;  c[2], c[3] = row g+8
 *
 * of two 16-bit elements the first one in the lower half. sm_80 and later; code for older GPUs compiles, and traps where it runs. On
 * a processor tests/cuda/include/shim_mma.h exchanges the same fragments. */
#ifndef MPP_MMA_CUH
#define MPP_MMA_CUH

#include "cuda/launch.cuh"

#ifdef MPP_CUDA_SHIM
#include <shim_mma.h>
#define MPP_UNROLL
#else
#define MPP_UNROLL _Pragma("unroll")

#if defined __CUDA_ARCH__ && __CUDA_ARCH__ < 800
#define MPP_MMA_ASM(...) __trap()
#else
#define MPP_MMA_ASM(...) asm volatile(__VA_ARGS__)
#endif

/* c += a b. */
template <int TYPE> __device__ __forceinline__ void mpp_multiply(float *c, const uint32_t *a, const uint32_t *b)
{
    if (TYPE == MPP_TYPE_BF16)
        MPP_MMA_ASM("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        MPP_MMA_ASM("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Four matrices of 8 rows of 8 elements each. Lane 8i + r tells where row R of matrix I lies: 16 bytes of shared memory, aligned.
 * out[I] = row g, columns 2t and 2t+1 of matrix I. */
__device__ __forceinline__ void mpp_load_matrices(uint32_t *out, const uint16_t *row)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    MPP_MMA_ASM("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(at) : "memory");
}

/* The same of the matrices' transposes: out[I] = rows 2t and 2t+1, column g of matrix I. */
__device__ __forceinline__ void mpp_load_matrices_turned(uint32_t *out, const uint16_t *row)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    MPP_MMA_ASM("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(at) : "memory");
}

/* Two numbers rounded to nearest, LOW in the lower half. */
template <int TYPE> __device__ __forceinline__ uint32_t mpp_two_halves(float low, float high)
{
    uint32_t out = 0;
    if (TYPE == MPP_TYPE_BF16)
        MPP_MMA_ASM("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    else
        MPP_MMA_ASM("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

/* 16 bytes, aligned, from global to shared memory: there for this thread after mpp_copies_wait, for others after a barrier. */
__device__ __forceinline__ void mpp_copy_beside(uint16_t *shared, const uint16_t *global)
{
    MPP_COUNT(16, 0);
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    MPP_MMA_ASM("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(at), "l"(global) : "memory");
}

/* What was begun since the last call is a group. */
__device__ __forceinline__ void mpp_copies_commit(void)
{
    MPP_MMA_ASM("cp.async.commit_group;" : : : "memory");
}

/* This thread waits for all groups but the last OPEN. */
template <int OPEN> __device__ __forceinline__ void mpp_copies_wait(void)
{
    MPP_MMA_ASM("cp.async.wait_group %0;" : : "n"(OPEN) : "memory");
}
#endif

#endif
