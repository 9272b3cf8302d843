/* parts.h - the parts of a cut dimension, one for each member of a group, as NCCL wants them: of equal size, one after the other.
 *
 *     struct mpp_parts c = mpp_parts_of(r, mask, outer, extent, inner, 4);
 *     if (!c.even)
 *         mpp_parts_pack(r, stream, mask, &c, src, packed);       // c.n * mpp_part_elements(&c) elements */
#ifndef MPP_PARTS_H
#define MPP_PARTS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "mpp_rt.h"

/* [outer, extent, inner] in parts of [outer, block, inner], of BYTES an element. */
struct mpp_parts {
    int64_t outer, extent, inner, block, bytes;
    int n;        /* members */
    bool even;    /* the parts lie side by side as they are: outer is 1 and no block is short */
};

struct mpp_parts mpp_parts_of(const struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, int64_t bytes);

static inline int64_t mpp_part_elements(const struct mpp_parts *c)
{
    return c->outer * c->block * c->inner;
}

/* Between the whole array and its parts; what is missing of short ones is left alone. */
void mpp_parts_move(struct mpp_rank *r, cudaStream_t stream, unsigned mask, const struct mpp_parts *c, bool to_parts, void *whole,
                    void *parts);
/* The parts of SRC at PACKED, short ones filled with zeros. */
void mpp_parts_pack(struct mpp_rank *r, cudaStream_t stream, unsigned mask, const struct mpp_parts *c, const void *src, void *packed);

#endif
