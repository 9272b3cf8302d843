/* mpp_math.h - elementary functions and random numbers for loops that a compiler can vectorise.
 *
 *     MPP_IVDEP
 *     for (int64_t i = 0; i < n; i++)
 *         y[i] = mpp_gelu_tanh(x[i]);          // y may be x itself
 *
 * Everything is branch-free on floats and 32-bit integers, within about 2 units in the last place of the
 * exact value, and gives what the limits say at +-Inf; a NaN stays a NaN. Written for -O3 -fno-math-errno;
 * not for -ffast-math, which breaks the rounding trick of mpp_expf. */
#ifndef MPP_MATH_H
#define MPP_MATH_H

#include <stdint.h>
#include <string.h>

/* Kernels of a GPU call these functions too. */
#if defined(__CUDACC__)
#define MPP_MATH static __host__ __device__ __forceinline__
#else
#define MPP_MATH static inline
#endif

/* Before a loop whose iterations are independent, also when it works in place. */
#if defined(__CUDACC__)
#define MPP_IVDEP
#elif defined(__clang__)
#define MPP_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#pragma clang diagnostic ignored "-Wpass-failed" /* a permission, not a demand */
#elif defined(__GNUC__)
#define MPP_IVDEP _Pragma("GCC ivdep")
#else
#define MPP_IVDEP
#endif

#if defined(__CUDA_ARCH__)
#define MPP_FMAF(a, b, c) fmaf((a), (b), (c))
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define MPP_FMAF(a, b, c) __builtin_fmaf((a), (b), (c))
#else
#define MPP_FMAF(a, b, c) ((a) * (b) + (c))
#endif

MPP_MATH uint32_t mpp_float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

MPP_MATH float mpp_bits_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

MPP_MATH float mpp_absf(float x)
{
    return mpp_bits_float(mpp_float_bits(x) & 0x7fffffffu);
}

/* |x| with the sign of s. */
MPP_MATH float mpp_with_sign(float x, float s)
{
    return mpp_bits_float((mpp_float_bits(x) & 0x7fffffffu) | (mpp_float_bits(s) & 0x80000000u));
}

/* x within [low, high]; a NaN passes. */
MPP_MATH float mpp_clampf(float x, float low, float high)
{
    float y = x > high ? high : x;
    return y < low ? low : y;
}

/* ---- elementary functions ----------------------------------------------------------------------- */

/* e^x = 2^n e^r with |r| <= ln(2)/2; coefficients of Cephes' expf (S. Moshier). */
MPP_MATH float mpp_expf(float x)
{
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
    float c = mpp_clampf(x, -104.0f, 89.0f);
    float shifted = MPP_FMAF(c, 1.44269504f, round);
    float n = shifted - round;
    float r = MPP_FMAF(n, -0.693359375f, c);
    r = MPP_FMAF(n, 2.12194440e-4f, r);
    float p = MPP_FMAF(1.9875691500e-4f, r, 1.3981999507e-3f);
    p = MPP_FMAF(p, r, 8.3334519073e-3f);
    p = MPP_FMAF(p, r, 4.1665795894e-2f);
    p = MPP_FMAF(p, r, 1.6666665459e-1f);
    p = MPP_FMAF(p, r, 5.0000001201e-1f);
    float y = MPP_FMAF(r * r, p, r) + 1.0f;
    int32_t k = (int32_t)(mpp_float_bits(shifted) - mpp_float_bits(round));
    int32_t half = k >> 1; /* in two steps: 2^k itself may be out of range */
    return y * mpp_bits_float((uint32_t)(half + 127) << 23) * mpp_bits_float((uint32_t)(k - half + 127) << 23);
}

MPP_MATH float mpp_sigmoidf(float x)
{
    float e = mpp_expf(-mpp_absf(x));
    float upper = 1.0f / (1.0f + e);
    float lower = e * upper;
    return x < 0.0f ? lower : upper;
}

/* Near 0 the odd polynomial of Cephes' tanhf, else 1 - 2 / (e^2|x| + 1). */
MPP_MATH float mpp_tanhf(float x)
{
    float z = mpp_absf(x), s = x * x;
    float p = MPP_FMAF(-5.70498872745e-3f, s, 2.06390887954e-2f);
    p = MPP_FMAF(p, s, -5.37397155531e-2f);
    p = MPP_FMAF(p, s, 1.33314422036e-1f);
    p = MPP_FMAF(p, s, -3.33332819422e-1f);
    float near = MPP_FMAF(p * s, x, x);
    float far = mpp_with_sign(1.0f - 2.0f / (mpp_expf(2.0f * z) + 1.0f), x);
    return z < 0.625f ? near : far;
}

/* Minimax fits of N. Juffa: x + x p(x^2) near 0, else 1 - e^-q(|x|). */
MPP_MATH float mpp_erff(float x)
{
    float t = mpp_absf(x), s = x * x;
    float r = MPP_FMAF(-1.72853470e-5f, t, 3.83197126e-4f);
    float u = MPP_FMAF(-3.88396438e-3f, t, 2.42546219e-2f);
    r = MPP_FMAF(r, s, u);
    r = MPP_FMAF(r, t, -1.06777877e-1f);
    r = MPP_FMAF(r, t, -6.34846687e-1f);
    r = MPP_FMAF(r, t, -1.28717512e-1f);
    r = MPP_FMAF(r, t, -t);
    float far = mpp_with_sign(1.0f - mpp_expf(r), x);
    float p = MPP_FMAF(-5.96761703e-4f, s, 4.99119423e-3f);
    p = MPP_FMAF(p, s, -2.67681349e-2f);
    p = MPP_FMAF(p, s, 1.12819925e-1f);
    p = MPP_FMAF(p, s, -3.76125336e-1f);
    p = MPP_FMAF(p, s, 1.28379166e-1f);
    float near = MPP_FMAF(p, x, x);
    return t > 0.927734375f ? far : near;
}

/* ---- 16-bit floats: stored so, computed with as floats -------------------------------------------- */

/* Rounding is to nearest, ties to even; what is too large becomes infinite; a NaN stays one, made quiet. */

MPP_MATH float mpp_from_bf16(uint16_t x)
{
    return mpp_bits_float((uint32_t)x << 16);
}

MPP_MATH uint16_t mpp_to_bf16(float x)
{
    uint32_t u = mpp_float_bits(x);
    uint32_t nearest = (u + 0x7fffu + (u >> 16 & 1u)) >> 16, quiet = u >> 16 | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : nearest);
}

/* After F. Giesen, "half to float done quick": subnormal numbers by a subtraction, which no processor is slow at. */
MPP_MATH float mpp_from_f16(uint16_t x)
{
    uint32_t sign = (x & 0x8000u) << 16, body = (x & 0x7fffu) << 13, exponent = body & 0x0f800000u;
    uint32_t tiny = mpp_float_bits(mpp_bits_float(body + 0x38800000u) - 0x1p-14f);
    uint32_t u = body + (exponent == 0x0f800000u ? 0x70000000u : 0x38000000u);
    return mpp_bits_float((exponent == 0 ? tiny : u) | sign);
}

MPP_MATH uint16_t mpp_to_f16(float x)
{
    uint32_t u = mpp_float_bits(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    uint32_t normal = (a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13;
    uint32_t tiny = mpp_float_bits(mpp_bits_float(a) + 0.5f) - 0x3f000000u; /* the last bit of 0.5 is worth 2^-24 */
    uint32_t y = a < 0x38800000u ? tiny : normal;
    y = a >= 0x47800000u ? 0x7c00u : y;
    y = a > 0x7f800000u ? 0x7e00u | (a >> 13 & 0x1ffu) : y;
    return (uint16_t)(y | sign);
}

/* ---- GELU (Hendrycks & Gimpel 2016) -------------------------------------------------------------- */

/* 0.5 x (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3). Below -20 the value is 0. */
MPP_MATH float mpp_gelu_tanh(float x)
{
    float c = x < -20.0f ? -20.0f : x;
    float two_u = c * MPP_FMAF(0.0713548163f, c * c, 1.59576912f);
    return c / (1.0f + mpp_expf(-two_u));
}

/* s + x s (1 - s) (2u)', s = sigmoid(2u); s (1 - s) = e / (1 + e)^2 with e = e^-|2u| loses no digits. */
MPP_MATH float mpp_gelu_tanh_grad(float x)
{
    float c = mpp_clampf(x, -20.0f, 20.0f), s = c * c;
    float two_u = c * MPP_FMAF(0.0713548163f, s, 1.59576912f);
    float slope = MPP_FMAF(0.214064449f, s, 1.59576912f);
    float e = mpp_expf(-mpp_absf(two_u));
    float upper = 1.0f / (1.0f + e), lower = e * upper;
    float sigmoid = c < 0.0f ? lower : upper;
    return MPP_FMAF(c * slope, upper * lower, sigmoid);
}

/* x Phi(x) = 0.5 x (1 + erf(x / sqrt 2)). */
MPP_MATH float mpp_gelu_erf(float x)
{
    float c = x < -20.0f ? -20.0f : x;
    float h = 0.5f * c;
    return MPP_FMAF(h, mpp_erff(0.707106781f * c), h);
}

/* Phi(x) + x phi(x). */
MPP_MATH float mpp_gelu_erf_grad(float x)
{
    float c = mpp_clampf(x, -20.0f, 20.0f);
    float cdf = MPP_FMAF(0.5f, mpp_erff(0.707106781f * c), 0.5f);
    float pdf = 0.398942280f * mpp_expf(-0.5f * c * c);
    return MPP_FMAF(c, pdf, cdf);
}

/* As models spell it: approximate="none". */
MPP_MATH float mpp_gelu_none(float x)
{
    return mpp_gelu_erf(x);
}

MPP_MATH float mpp_gelu_none_grad(float x)
{
    return mpp_gelu_erf_grad(x);
}

/* ---- random numbers ------------------------------------------------------------------------------ */

/* Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), in place. */
MPP_MATH void mpp_philox(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    uint32_t c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p = (uint64_t)0xD2511F53u * c0, q = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(q >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)q;
        c3 = (uint32_t)p;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    c[0] = c0;
    c[1] = c1;
    c[2] = c2;
    c[3] = c3;
}

/* Uniform in [0, 1), of 24 bits: key = seed, counter = (element, op, step). */
MPP_MATH float mpp_uniform_at(uint64_t seed, int64_t step, uint32_t op, uint32_t low, uint32_t high)
{
    uint32_t c[4] = {low, high, op, (uint32_t)step};
    mpp_philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
    return (float)(int32_t)(c[0] >> 8) * 0x1p-24f;
}

/* out[i] = the uniform number of element ELEMENT + i, for i < n < 2^31. */
MPP_MATH void mpp_uniform_row(uint64_t seed, int64_t step, uint32_t op, uint64_t element, int64_t n, float *out)
{
    uint32_t low = (uint32_t)element, high = (uint32_t)(element >> 32);
    MPP_IVDEP
    for (int32_t i = 0; i < (int32_t)n; i++) {
        uint32_t at = low + (uint32_t)i;
        out[i] = mpp_uniform_at(seed, step, op, at, high + (at < low ? 1u : 0u));
    }
}

/* What dropout multiplies by: 0 with probability p, else 1 / (1 - p). */
MPP_MATH float mpp_dropout_factor(float uniform, float p)
{
    float keep = 1.0f / (1.0f - p);
    return uniform >= p ? keep : 0.0f;
}

#endif
