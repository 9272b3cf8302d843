/* sums.h - elementwise sums and maxima: inner loops of fixed length, which compilers turn into vector code. */
#ifndef MPP_SUMS_H
#define MPP_SUMS_H

#include <stdint.h>

enum { MPP_SUM_LANES = 16 };

static inline void mpp_add_to(float *restrict acc, const float *restrict x, int64_t count)
{
    int64_t i = 0;
    for (; i + MPP_SUM_LANES <= count; i += MPP_SUM_LANES)
        for (int k = 0; k < MPP_SUM_LANES; k++)
            acc[i + k] += x[i + k];
    for (; i < count; i++)
        acc[i] += x[i];
}

static inline void mpp_max_to(float *restrict acc, const float *restrict x, int64_t count)
{
    int64_t i = 0;
    for (; i + MPP_SUM_LANES <= count; i += MPP_SUM_LANES)
        for (int k = 0; k < MPP_SUM_LANES; k++)
            acc[i + k] = acc[i + k] > x[i + k] ? acc[i + k] : x[i + k];
    for (; i < count; i++)
        acc[i] = acc[i] > x[i] ? acc[i] : x[i];
}

#endif
