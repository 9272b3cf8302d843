/* collectives.c - the collectives of mpp_rt.h, on top of a transport. */
#include <assert.h>
#include <string.h>

#include "core/job.h"
#include "core/packed.h"
#include "core/trace.h"
#include "core/transport.h"
#include "kernels_internal.h"
#include "mpp_rt.h"

static struct mpp_cut cut_of(const struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner)
{
    int64_t offset, valid;
    struct mpp_cut cut = {.outer = outer, .extent = extent, .inner = inner, .bytes = 4};
    cut.block = mpp_mesh_block(r, mask, 0, extent, &offset, &valid);
    return cut;
}

static void copy(void *dst, const void *src, int64_t bytes)
{
    if (dst != src && bytes > 0)
        memmove(dst, src, (size_t)bytes);
}

void mpp_all_reduce(struct mpp_rank *r, unsigned mask, float *x, int64_t count, enum mpp_reduce op)
{
    if (mpp_mesh_group_size(r, mask) == 1 || count <= 0)
        return;
    double begun_s = mpp_trace_begin(r);
    r->transport->ops->all_reduce(r, mask, x, count, op == MPP_REDUCE_MAX);
    mpp_trace_end(r, begun_s, MPP_TRACE_ALL_REDUCE, (int)mask, 0, 4 * count);
}

/* Which sums go on beside the work differs between the ranks of a group, where their other groups lie on different hosts.
 * So whether there is room to defer one is told by all that were begun: every rank counts the same. */

void mpp_all_reduce_begin(struct mpp_rank *r, unsigned mask, float *x, int64_t count)
{
    const struct mpp_transport_ops *ops = r->transport->ops;
    struct mpp_local *local = r->impl;
    local->n_begun++;
    if (mpp_mesh_group_size(r, mask) == 1 || count <= 0)
        return;
    if (ops->all_reduce_begin != NULL && ops->all_reduce_begin(r, mask, x, count))
        return;
    if (local->n_begun > MPP_MAX_DEFERRED)
        ops->all_reduce(r, mask, x, count, false);
    else
        local->deferred[local->n_deferred++] = (struct mpp_deferred){.mask = mask, .x = x, .count = count};
}

void mpp_reduce_scatter_begin(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, float *src,
                              float *dst)
{
    const struct mpp_transport_ops *ops = r->transport->ops;
    struct mpp_local *local = r->impl;
    assert(outer == 1);
    local->n_begun++;
    if (mpp_mesh_group_size(r, mask) == 1) {
        copy(dst, src, 4 * extent * inner);
        return;
    }
    struct mpp_cut cut = cut_of(r, mask, outer, extent, inner);
    if (ops->reduce_scatter_begin != NULL && ops->reduce_scatter_begin(r, mask, &cut, src, dst))
        return;
    if (local->n_begun > MPP_MAX_DEFERRED)
        ops->reduce_scatter(r, mask, &cut, src, dst);
    else
        local->deferred[local->n_deferred++] = (struct mpp_deferred){.mask = mask, .cut = cut, .src = src, .dst = dst};
}

void mpp_wait(struct mpp_rank *r)
{
    struct mpp_local *local = r->impl;
    double begun_s = mpp_trace_begin(r);
    if (r->pending > 0)
        r->transport->ops->wait(r);
    for (int i = 0; i < local->n_deferred; i++) {
        const struct mpp_deferred *d = &local->deferred[i];
        double sum_s = mpp_trace_begin(r);
        if (d->x != NULL)
            r->transport->ops->all_reduce(r, d->mask, d->x, d->count, false);
        else
            r->transport->ops->reduce_scatter(r, d->mask, &d->cut, d->src, d->dst);
        mpp_trace_end(r, sum_s, d->x != NULL ? MPP_TRACE_ALL_REDUCE : MPP_TRACE_REDUCE_SCATTER, (int)d->mask, 0,
                      4 * (d->x != NULL ? d->count : d->cut.extent * d->cut.inner));
    }
    if (local->n_begun > 0)
        mpp_trace_end(r, begun_s, MPP_TRACE_SUMS, 0, 0, 0);
    local->n_deferred = local->n_begun = 0;
}

static void gather(struct mpp_rank *r, int64_t bytes, unsigned mask, int64_t outer, int64_t extent, int64_t inner,
                   const void *src, void *dst)
{
    if (mpp_mesh_group_size(r, mask) == 1) {
        copy(dst, src, bytes * outer * extent * inner);
        return;
    }
    struct mpp_cut cut = cut_of(r, mask, outer, extent, inner);
    cut.bytes = bytes;
    double begun_s = mpp_trace_begin(r);
    r->transport->ops->all_gather(r, mask, &cut, src, dst);
    mpp_trace_end(r, begun_s, MPP_TRACE_ALL_GATHER, (int)mask, 0, bytes * outer * extent * inner);
}

void mpp_all_gather(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, const void *src,
                    void *dst)
{
    gather(r, 4, mask, outer, extent, inner, src, dst);
}

void mpp_all_gather_half(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner,
                         const void *src, void *dst)
{
    gather(r, 2, mask, outer, extent, inner, src, dst);
}

static void gather_begin(struct mpp_rank *r, int64_t bytes, unsigned mask, int64_t outer, int64_t extent, int64_t inner,
                         const void *src, void *dst)
{
    const struct mpp_transport_ops *ops = r->transport->ops;
    struct mpp_local *local = r->impl;
    int64_t number = local->n_gathers++;
    struct mpp_cut cut = cut_of(r, mask, outer, extent, inner);
    cut.bytes = bytes;
    double begun_s = mpp_trace_begin(r);
    if (mpp_mesh_group_size(r, mask) > 1 && ops->all_gather_begin != NULL && ops->all_gather_begin(r, mask, &cut, src, dst, number))
        mpp_trace_end(r, begun_s, MPP_TRACE_ALL_GATHER, (int)mask, 0, bytes * outer * extent * inner);
    else
        gather(r, bytes, mask, outer, extent, inner, src, dst);
}

void mpp_all_gather_begin(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, const void *src,
                          void *dst)
{
    gather_begin(r, 4, mask, outer, extent, inner, src, dst);
}

void mpp_all_gather_begin_half(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner,
                               const void *src, void *dst)
{
    gather_begin(r, 2, mask, outer, extent, inner, src, dst);
}

void mpp_gather_wait(struct mpp_rank *r, int64_t under_way)
{
    const struct mpp_local *local = r->impl;
    if (r->pending > 0 && r->transport->ops->gather_wait != NULL)
        r->transport->ops->gather_wait(r, local->n_gathers - under_way);
}

void mpp_reduce_scatter(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner,
                        const float *src, float *dst)
{
    if (mpp_mesh_group_size(r, mask) == 1) {
        copy(dst, src, 4 * outer * extent * inner);
        return;
    }
    struct mpp_cut cut = cut_of(r, mask, outer, extent, inner);
    double begun_s = mpp_trace_begin(r);
    r->transport->ops->reduce_scatter(r, mask, &cut, src, dst);
    mpp_trace_end(r, begun_s, MPP_TRACE_REDUCE_SCATTER, (int)mask, 0, 4 * outer * extent * inner);
}

static void slice(struct mpp_rank *r, int64_t bytes, unsigned mask, int64_t outer, int64_t extent, int64_t inner,
                  const void *src, void *dst)
{
    int64_t offset, valid;
    int64_t block = mpp_mesh_block(r, mask, mpp_mesh_group_index(r, mask), extent, &offset, &valid);
    if (block == extent) {
        copy(dst, src, bytes * outer * extent * inner);
        return;
    }
    for (int64_t o = 0; o < outer; o++) /* dst may begin where src does */
        copy((char *)dst + bytes * o * block * inner, (const char *)src + bytes * (o * extent + offset) * inner,
             bytes * valid * inner);
}

void mpp_slice(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, const void *src,
               void *dst)
{
    slice(r, 4, mask, outer, extent, inner, src, dst);
}

void mpp_slice_half(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, const void *src,
                    void *dst)
{
    slice(r, 2, mask, outer, extent, inner, src, dst);
}

static void exchange(struct mpp_rank *r, int64_t bytes, unsigned mask, int n_dims, const int64_t *src_dims, int gather_dim,
                     int64_t gather_extent, int split_dim, const void *src, void *dst)
{
    int64_t count = 1;
    for (int d = 0; d < n_dims; d++)
        count *= src_dims[d];
    if (mpp_mesh_group_size(r, mask) == 1) {
        copy(dst, src, bytes * count);
        return;
    }
    struct mpp_exchange x = mpp_exchange_of(r, mask, n_dims, src_dims, gather_dim, gather_extent, split_dim);
    x.bytes = bytes;
    double begun_s = mpp_trace_begin(r);
    r->transport->ops->all_to_all(r, mask, &x, src, dst);
    mpp_trace_end(r, begun_s, MPP_TRACE_ALL_TO_ALL, (int)mask, 0, bytes * count);
}

void mpp_all_to_all(struct mpp_rank *r, unsigned mask, int n_dims, const int64_t *src_dims, int gather_dim,
                    int64_t gather_extent, int split_dim, const void *src, void *dst)
{
    exchange(r, 4, mask, n_dims, src_dims, gather_dim, gather_extent, split_dim, src, dst);
}

void mpp_all_to_all_half(struct mpp_rank *r, unsigned mask, int n_dims, const int64_t *src_dims, int gather_dim,
                         int64_t gather_extent, int split_dim, const void *src, void *dst)
{
    exchange(r, 2, mask, n_dims, src_dims, gather_dim, gather_extent, split_dim, src, dst);
}

static void to_partial(struct mpp_rank *r, unsigned mask, const void *src, void *dst, int64_t bytes)
{
    if (mpp_mesh_group_index(r, mask) == 0)
        copy(dst, src, bytes);
    else
        memset(dst, 0, (size_t)bytes);
}

void mpp_to_partial(struct mpp_rank *r, unsigned mask, const float *src, float *dst, int64_t count)
{
    to_partial(r, mask, src, dst, 4 * count);
}

void mpp_to_partial_half(struct mpp_rank *r, unsigned mask, const void *src, void *dst, int64_t count)
{
    to_partial(r, mask, src, dst, 2 * count);
}

/* ---- sums of 16-bit floats ------------------------------------------------------------------------------- */

void mpp_all_reduce_half(struct mpp_rank *r, unsigned mask, enum mpp_type type, void *x, int64_t count)
{
    if (mpp_mesh_group_size(r, mask) == 1 || count <= 0)
        return;
    double begun_s = mpp_trace_begin(r);
    r->transport->ops->all_reduce_half(r, mask, type, x, count);
    mpp_trace_end(r, begun_s, MPP_TRACE_ALL_REDUCE, (int)mask, 0, 2 * count);
}

void mpp_reduce_scatter_half(struct mpp_rank *r, unsigned mask, enum mpp_type type, int64_t outer, int64_t extent,
                             int64_t inner, const void *src, void *dst)
{
    if (mpp_mesh_group_size(r, mask) == 1) {
        copy(dst, src, 2 * outer * extent * inner);
        return;
    }
    struct mpp_cut cut = cut_of(r, mask, outer, extent, inner);
    cut.bytes = 2;
    double begun_s = mpp_trace_begin(r);
    r->transport->ops->reduce_scatter_half(r, mask, &cut, type, src, dst);
    mpp_trace_end(r, begun_s, MPP_TRACE_REDUCE_SCATTER, (int)mask, 0, 2 * outer * extent * inner);
}

int64_t mpp_reduce_scatter_half_workspace(int64_t outer, int64_t extent, int64_t inner)
{
    int64_t rows = mpp_packed_half_rows(outer, extent, inner);
    return rows > 1 ? 2 * rows * extent * inner : 0;
}

int64_t mpp_all_gather_workspace(int64_t outer, int64_t extent, int64_t inner)
{
    return outer > 1 ? outer * extent * inner * 4 : 0;
}

int64_t mpp_reduce_scatter_workspace(int64_t outer, int64_t extent, int64_t inner)
{
    return mpp_all_gather_workspace(outer, extent, inner);
}

int64_t mpp_all_to_all_workspace(int n_dims, const int64_t *src_dims, int split_dim)
{
    int64_t count = 2 * 4; /* one block that leaves and one that comes */
    for (int d = 0; d < n_dims; d++)
        count *= d == split_dim ? (src_dims[d] + 1) / 2 : src_dims[d];
    return count;
}
