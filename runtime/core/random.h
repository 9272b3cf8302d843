/* random.h - the runtime's own counter-based random streams.
 *
 * Every draw is Philox 4x32-10 of (seed, stream, two 64-bit counters), so that it depends on what is drawn
 * (a sample, an element of a tensor) and never on who draws it. */
#ifndef MPP_RANDOM_H
#define MPP_RANDOM_H

#include <stdint.h>

#include "mpp_math.h"

enum mpp_stream {
    MPP_STREAM_INIT = 0x1d872b41,      /* (element / 4, hash of the name) */
    MPP_STREAM_WINDOW = 0x2f6c0a95,    /* (sample, 0): where a sample starts */
    MPP_STREAM_MASK = 0x3a91c6d3,      /* (position, sample): masked language models */
    MPP_STREAM_SYNTHETIC = 0x4be7510f, /* (position / 4, sample), tokens; inputs add their number */
};

static inline void mpp_random_block(uint64_t seed, uint32_t stream, uint64_t a, uint64_t b, uint32_t out[4])
{
    out[0] = (uint32_t)a;
    out[1] = (uint32_t)(a >> 32);
    out[2] = (uint32_t)b;
    out[3] = (uint32_t)(b >> 32);
    mpp_philox(out, (uint32_t)seed, (uint32_t)(seed >> 32) ^ stream);
}

/* In [0, 1), 24 bits. */
static inline float mpp_random_unit(uint32_t word)
{
    return (float)(int32_t)(word >> 8) * 0x1p-24f;
}

/* Two standard normal numbers of two words (Box and Muller 1958). */
void mpp_random_normal(uint32_t a, uint32_t b, float *x_out, float *y_out);

#endif
