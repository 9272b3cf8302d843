/* parts.c - cuts as parts of equal size, packed by a kernel where they aren't. */
#include "cuda/parts.h"

#include "core/transport.h"
#include "cuda/cuda_internal.h"
#include "cuda/kernels_copy.h"

struct mpp_parts mpp_parts_of(const struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, int64_t bytes)
{
    int64_t offset, valid;
    struct mpp_parts c = {.outer = outer, .extent = extent, .inner = inner, .bytes = bytes, .n = mpp_mesh_group_size(r, mask)};
    c.block = mpp_mesh_block(r, mask, 0, extent, &offset, &valid);
    c.even = outer == 1 && c.block * c.n == extent;
    return c;
}

void mpp_parts_move(struct mpp_rank *r, cudaStream_t stream, unsigned mask, const struct mpp_parts *c, bool to_parts, void *whole,
                    void *parts)
{
    for (int i = 0; i < c->n; i++) {
        int64_t offset, valid;
        (void)mpp_mesh_block(r, mask, i, c->extent, &offset, &valid);
        char *at = (char *)whole + c->bytes * offset * c->inner, *part = (char *)parts + c->bytes * i * mpp_part_elements(c);
        int64_t wide = c->extent * c->inner, narrow = c->block * c->inner;
        struct mpp_box box = {.n_dims = 1, .n = {c->outer}, .src_stride = {to_parts ? wide : narrow},
                              .dst_stride = {to_parts ? narrow : wide}, .run = valid * c->inner, .bytes = c->bytes};
        if (valid > 0)
            mpp_cuda_copy_box(r, stream, &box, to_parts ? at : part, to_parts ? part : at);
    }
}

void mpp_parts_pack(struct mpp_rank *r, cudaStream_t stream, unsigned mask, const struct mpp_parts *c, const void *src, void *packed)
{
    MPP_CUDA_CHECK(r, cudaMemsetAsync(packed, 0, (size_t)(c->n * mpp_part_elements(c) * c->bytes), stream));
    mpp_parts_move(r, stream, mask, c, true, (void *)(uintptr_t)src, packed);
}
