/* packed.h - blocks of a cut one after the other, without their padding: what processes send each other.
 *
 *     place = mpp_packed_block(r, mask, &cut, m, &count);          // of member M
 *     send = mpp_packed_blocks(r, mask, &cut, src);                // before a reduce-scatter
 *     mpp_packed_spread(r, mask, &cut, dst);                       // after it
 *     mpp_packed_all_gather(r, mask, &cut, src, dst, gather);      // GATHER and SWAP move bytes between processes
 *     mpp_packed_all_to_all(r, mask, &x, src, dst, swap);
 *
 * Where a cut is not the outermost dimension blocks are packed in the rank's workspace. */
#ifndef MPP_PACKED_H
#define MPP_PACKED_H

#include <stdint.h>

#include "mpp_rt.h"
#include "transport.h"

/* Where the valid block of member M begins when blocks are packed one after the other; *COUNT_OUT: its elements. */
int64_t mpp_packed_block(const struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, int m, int64_t *count_out);

/* SRC as packed blocks: itself, or in the workspace. */
const void *mpp_packed_blocks(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, const void *src);
/* DST begins with this rank's packed block: its rows go to their padded places. */
void mpp_packed_spread(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, void *dst);

/* A reduce-scatter of 16-bit floats, by as many rows of OUTER as MPP_PACKED_HALVES elements are: of several, they are packed in the
 * workspace. SUM puts the sum of the members' blocks for this one at DST. */
enum { MPP_PACKED_HALVES = 1 << 18 };
static inline int64_t mpp_packed_half_rows(int64_t outer, int64_t extent, int64_t inner)
{
    int64_t most = extent * inner > 0 ? MPP_PACKED_HALVES / (extent * inner) : outer;
    return most < 1 ? 1 : most < outer ? most : outer;
}
typedef void mpp_packed_sum(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, enum mpp_type type, const uint16_t *packed,
                            uint16_t *dst);
void mpp_packed_scatter_half(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, enum mpp_type type, const uint16_t *src,
                             uint16_t *dst, mpp_packed_sum *sum);

/* TO [count] = the sum of N members' 16-bit floats, in their order, formed in f32 and rounded once: the same bits whatever carries them.
 * Those of member M are at TERM(of, m), one of which may be TO. */
typedef const uint16_t *mpp_packed_term(const void *of, int m);
void mpp_packed_sum_halves(enum mpp_type type, int n, mpp_packed_term *term, const void *of, int64_t count, uint16_t *to);

/* Terms of which member OWN's are at MINE, member m's at THEIRS + m * STRIDE. */
struct mpp_packed_terms {
    int own;
    const uint16_t *mine, *theirs;
    int64_t stride;
};
mpp_packed_term mpp_packed_term_of;

/* Fetches all other members' packed blocks into PACKED, which has this rank's. */
typedef void mpp_packed_gather(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, char *packed);
void mpp_packed_all_gather(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, const void *src, void *dst,
                           mpp_packed_gather *gather);

/* OUT_COUNT elements of BYTES go to member TO, IN_COUNT come from member FROM; either may be 0. */
typedef void mpp_packed_swap(struct mpp_rank *r, unsigned mask, int64_t bytes, int to, const char *out, int64_t out_count, int from,
                             char *in, int64_t in_count);
/* Pairwise: in round i everyone sends to the i-th member after it. */
void mpp_packed_all_to_all(struct mpp_rank *r, unsigned mask, const struct mpp_exchange *x, const void *src, void *dst,
                           mpp_packed_swap *swap);

#endif
