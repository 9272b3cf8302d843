/* kernels_internal.h - what the kernels of the host runtime share: sums and maxima of a row in vector lanes, and sgemm on
 * 64-bit sizes. Rows are walked by core/space.h, in blocks of MPP_ROW_BLOCK.
 *
 * Lane i of a sum takes the elements i, i + MPP_LANES, ...: the loops vectorise without -ffast-math, the
 * order is fixed, and errors grow with n / MPP_LANES only. Sums are kept in double. */
#ifndef MPP_KERNELS_INTERNAL_H
#define MPP_KERNELS_INTERNAL_H

#include <math.h>
#include <stdint.h>

#include "core/space.h"
#include "mpp_math.h"
#include "mpp_rt.h"

enum {
    MPP_LANES = 32,
    MPP_CHUNK = 256,      /* floats in an on-stack buffer of a row */
    MPP_ROW_BLOCK = 1024, /* rows whose sums travel in one all-reduce */
};

/* core/half.h, for long arrays, on the threads of R. TYPE is MPP_TYPE_BF16 or MPP_TYPE_F16. */
void mpp_half_read_all(const struct mpp_rank *r, enum mpp_type type, const void *x, int64_t n, float *y);
void mpp_half_write_all(const struct mpp_rank *r, enum mpp_type type, const float *x, int64_t n, void *y);

/* C = alpha op(A) op(B) + beta C, row-major, sizes possibly 0. */
void mpp_sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
               int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

static inline double mpp_fold_lanes(double *lane)
{
    for (int width = MPP_LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lane[j] += lane[j + width];
    return lane[0];
}

/* Defines a function that sums TERM (an expression of i) over 0 <= i < n in lanes. */
#define MPP_DEFINE_ROW_SUM(name, parameters, term)                                                                    \
    static inline double name parameters                                                                              \
    {                                                                                                                 \
        double lane[MPP_LANES] = {0};                                                                                 \
        int64_t base = 0;                                                                                             \
        for (; base + MPP_LANES <= n; base += MPP_LANES)                                                              \
            for (int j = 0; j < MPP_LANES; j++) {                                                                     \
                int64_t i = base + j;                                                                                 \
                lane[j] += (term);                                                                                    \
            }                                                                                                         \
        for (int64_t i = base; i < n; i++)                                                                            \
            lane[i - base] += (term);                                                                                 \
        return mpp_fold_lanes(lane);                                                                                  \
    }

MPP_DEFINE_ROW_SUM(mpp_row_sum, (const float *x, int64_t n), (double)x[i])
MPP_DEFINE_ROW_SUM(mpp_row_dot, (const float *x, const float *y, int64_t n), (double)x[i] * (double)y[i])
MPP_DEFINE_ROW_SUM(mpp_row_square_deviation, (const float *x, double mean, int64_t n),
                   ((double)x[i] - mean) * ((double)x[i] - mean))

/* -Inf for an empty row; NaNs are passed over. */
static inline float mpp_row_max(const float *x, int64_t n)
{
    float lane[MPP_LANES];
    for (int j = 0; j < MPP_LANES; j++)
        lane[j] = -INFINITY;
    int64_t base = 0;
    for (; base + MPP_LANES <= n; base += MPP_LANES)
        for (int j = 0; j < MPP_LANES; j++)
            lane[j] = x[base + j] > lane[j] ? x[base + j] : lane[j];
    for (int64_t i = base; i < n; i++)
        lane[i - base] = x[i] > lane[i - base] ? x[i] : lane[i - base];
    for (int width = MPP_LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lane[j] = lane[j + width] > lane[j] ? lane[j + width] : lane[j];
    return lane[0];
}

/* y = e^(x - shift), y may be x; returns the sum. */
static inline double mpp_row_exp(const float *x, float shift, int64_t n, float *y)
{
    MPP_IVDEP
    for (int64_t i = 0; i < n; i++)
        y[i] = mpp_expf(x[i] - shift);
    return mpp_row_sum(y, n);
}

#endif
