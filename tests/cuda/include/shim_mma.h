/* shim_mma.h - runtime/cuda/mma.cuh on a processor: a warp's lanes, which are fibers, meet, and one of them multiplies for all. What a
 * lane has of which matrix is as the PTX ISA says, written down once more and not taken from the kernels. */
#ifndef MPP_SHIM_MMA_H
#define MPP_SHIM_MMA_H

#include <cuda_runtime.h>
#include <stdint.h>

#include "cuda/launch.cuh"

/* What a lane brings to a product, or to a load of matrices. */
struct mpp_shim_product {
    float *c;
    const uint32_t *a, *b;
};

struct mpp_shim_load {
    uint32_t *out;
    const uint16_t *row;
};

static inline uint16_t mpp_shim_half(uint32_t pair, int which)
{
    return (uint16_t)(which == 0 ? pair : pair >> 16);
}

/* PTX ISA, mma.m16n8k16: of A element i of 8 is in row g or (2, 3, 6, 7) g + 8, in column 2t + (i & 1) or (from 4 on) 8 more; of B
 * element i of 4 in row 2t + (i & 1) or (from 2 on) 8 more, column g; of C element i of 4 in row g or (from 2 on) g + 8, column
 * 2t + (i & 1). */
template <int TYPE> inline void mpp_shim_multiply(void *const *lanes)
{
    float a[16][16], b[16][8], c[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const mpp_shim_product *p = (const mpp_shim_product *)lanes[lane];
        const int g = lane >> 2, t = lane & 3;
        for (int i = 0; i < 8; i++)
            a[i % 4 >= 2 ? g + 8 : g][2 * t + (i & 1) + (i >= 4 ? 8 : 0)] = mpp_half<TYPE>::wide(mpp_shim_half(p->a[i / 2], i & 1));
        for (int i = 0; i < 4; i++)
            b[2 * t + (i & 1) + (i >= 2 ? 8 : 0)][g] = mpp_half<TYPE>::wide(mpp_shim_half(p->b[i / 2], i & 1));
        for (int i = 0; i < 4; i++)
            c[i >= 2 ? g + 8 : g][2 * t + (i & 1)] = p->c[i];
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int column = 0; column < 8; column++)
                c[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            ((const mpp_shim_product *)lanes[lane])->c[i] = c[i >= 2 ? (lane >> 2) + 8 : lane >> 2][2 * (lane & 3) + (i & 1)];
}

template <int TYPE> inline void mpp_multiply(float *c, const uint32_t *a, const uint32_t *b)
{
    mpp_shim_product mine = {c, a, b};
    mpp_shim_together(&mine, mpp_shim_multiply<TYPE>);
}

/* PTX ISA, ldmatrix.x4: lane 8i + r has the address of row R of matrix I; lane L gets elements 2 (L mod 4) and one more of row L / 4,
 * with .trans of column L / 4. */
template <bool TURNED> inline void mpp_shim_matrices(void *const *lanes)
{
    uint16_t at[4][8][8];
    for (int lane = 0; lane < 32; lane++)
        memcpy(at[lane / 8][lane % 8], ((const mpp_shim_load *)lanes[lane])->row, 16);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) {
            const int one = lane / 4, two = 2 * (lane % 4);
            const uint32_t low = TURNED ? at[i][two][one] : at[i][one][two], high = TURNED ? at[i][two + 1][one] : at[i][one][two + 1];
            ((const mpp_shim_load *)lanes[lane])->out[i] = low | high << 16;
        }
}

inline void mpp_load_matrices(uint32_t *out, const uint16_t *row)
{
    mpp_shim_load mine = {out, row};
    MPP_ALIGNED(row, 16);
    mpp_shim_together(&mine, mpp_shim_matrices<false>);
}

inline void mpp_load_matrices_turned(uint32_t *out, const uint16_t *row)
{
    mpp_shim_load mine = {out, row};
    MPP_ALIGNED(row, 16);
    mpp_shim_together(&mine, mpp_shim_matrices<true>);
}

template <int TYPE> inline uint32_t mpp_two_halves(float low, float high)
{
    return mpp_half<TYPE>::bits(low) | (uint32_t)mpp_half<TYPE>::bits(high) << 16;
}

inline void mpp_copy_beside(uint16_t *shared, const uint16_t *global)
{
    MPP_COUNT(16, 0);
    mpp_shim_copy_beside(shared, global, 16);
}

inline void mpp_copies_commit(void)
{
    mpp_shim_copies_commit();
}

template <int OPEN> inline void mpp_copies_wait(void)
{
    mpp_shim_copies_wait(OPEN);
}

#endif
