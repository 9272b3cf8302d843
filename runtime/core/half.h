/* half.h - arrays of 16-bit floats as arrays of floats, and back. TYPE is MPP_TYPE_BF16 or MPP_TYPE_F16.
 *
 *     mpp_half_read(type, x, n, buffer);      // n elements
 *     mpp_half_write(type, buffer, n, y);     // rounds */
#ifndef MPP_HALF_H
#define MPP_HALF_H

#include <stdint.h>

#include "mpp_math.h"
#include "mpp_rt.h"

static inline void mpp_half_read(enum mpp_type type, const uint16_t *restrict x, int64_t n, float *restrict y)
{
    if (type == MPP_TYPE_BF16) {
        for (int64_t i = 0; i < n; i++)
            y[i] = mpp_from_bf16(x[i]);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        y[i] = mpp_from_f16(x[i]);
}

static inline void mpp_half_write(enum mpp_type type, const float *restrict x, int64_t n, uint16_t *restrict y)
{
    if (type == MPP_TYPE_BF16) {
        for (int64_t i = 0; i < n; i++)
            y[i] = mpp_to_bf16(x[i]);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        y[i] = mpp_to_f16(x[i]);
}

/* One element. */
static inline float mpp_half_float(enum mpp_type type, uint16_t x)
{
    return type == MPP_TYPE_BF16 ? mpp_from_bf16(x) : mpp_from_f16(x);
}

static inline uint16_t mpp_half_of(enum mpp_type type, float x)
{
    return type == MPP_TYPE_BF16 ? mpp_to_bf16(x) : mpp_to_f16(x);
}

#endif
