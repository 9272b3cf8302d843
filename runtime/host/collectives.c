/* collectives.c - the collectives of mpp_rt.h, on top of a transport. */
#include <assert.h>
#include <string.h>

#include "job.h"
#include "mpp_rt.h"
#include "transport.h"

static struct mpp_cut cut_of(const struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner)
{
    int64_t offset, valid;
    struct mpp_cut cut = {.outer = outer, .extent = extent, .inner = inner};
    cut.block = mpp_mesh_block(r, mask, 0, extent, &offset, &valid);
    return cut;
}

static void copy(void *dst, const void *src, int64_t count)
{
    if (dst != src && count > 0)
        memmove(dst, src, (size_t)count * 4);
}

void mpp_all_reduce(struct mpp_rank *r, unsigned mask, float *x, int64_t count, enum mpp_reduce op)
{
    if (mpp_mesh_group_size(r, mask) > 1 && count > 0)
        r->transport->ops->all_reduce(r, mask, x, count, op == MPP_REDUCE_MAX);
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
        copy(dst, src, extent * inner);
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
    if (r->pending > 0)
        r->transport->ops->wait(r);
    for (int i = 0; i < local->n_deferred; i++) {
        const struct mpp_deferred *d = &local->deferred[i];
        if (d->x != NULL)
            r->transport->ops->all_reduce(r, d->mask, d->x, d->count, false);
        else
            r->transport->ops->reduce_scatter(r, d->mask, &d->cut, d->src, d->dst);
    }
    local->n_deferred = local->n_begun = 0;
}

void mpp_all_gather(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, const void *src,
                    void *dst)
{
    if (mpp_mesh_group_size(r, mask) == 1) {
        copy(dst, src, outer * extent * inner);
        return;
    }
    struct mpp_cut cut = cut_of(r, mask, outer, extent, inner);
    r->transport->ops->all_gather(r, mask, &cut, src, dst);
}

void mpp_reduce_scatter(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner,
                        const float *src, float *dst)
{
    if (mpp_mesh_group_size(r, mask) == 1) {
        copy(dst, src, outer * extent * inner);
        return;
    }
    struct mpp_cut cut = cut_of(r, mask, outer, extent, inner);
    r->transport->ops->reduce_scatter(r, mask, &cut, src, dst);
}

void mpp_slice(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, const void *src,
               void *dst)
{
    int64_t offset, valid;
    int64_t block = mpp_mesh_block(r, mask, mpp_mesh_group_index(r, mask), extent, &offset, &valid);
    if (block == extent) {
        copy(dst, src, outer * extent * inner);
        return;
    }
    for (int64_t o = 0; o < outer; o++) /* dst may begin where src does */
        copy((char *)dst + 4 * o * block * inner, (const char *)src + 4 * (o * extent + offset) * inner, valid * inner);
}

void mpp_all_to_all(struct mpp_rank *r, unsigned mask, int n_dims, const int64_t *src_dims, int gather_dim,
                    int64_t gather_extent, int split_dim, const void *src, void *dst)
{
    assert(gather_dim != split_dim);
    int first = gather_dim < split_dim ? gather_dim : split_dim;
    int second = gather_dim < split_dim ? split_dim : gather_dim;
    struct mpp_exchange x = {.d0 = 1, .d2 = 1, .d4 = 1, .gather_first = gather_dim < split_dim};
    int64_t count = 1, offset, valid;
    for (int d = 0; d < n_dims; d++) {
        count *= src_dims[d];
        if (d < first)
            x.d0 *= src_dims[d];
        else if (d > first && d < second)
            x.d2 *= src_dims[d];
        else if (d > second)
            x.d4 *= src_dims[d];
    }
    if (mpp_mesh_group_size(r, mask) == 1) {
        copy(dst, src, count);
        return;
    }
    x.gather_extent = gather_extent;
    x.gather_block = mpp_mesh_block(r, mask, 0, gather_extent, &offset, &valid);
    x.split_extent = src_dims[split_dim];
    x.split_block = mpp_mesh_block(r, mask, 0, x.split_extent, &offset, &valid);
    assert(x.gather_block == src_dims[gather_dim]);
    r->transport->ops->all_to_all(r, mask, &x, src, dst);
}

void mpp_to_partial(struct mpp_rank *r, unsigned mask, const float *src, float *dst, int64_t count)
{
    if (mpp_mesh_group_index(r, mask) == 0)
        copy(dst, src, count);
    else
        memset(dst, 0, (size_t)count * sizeof *dst);
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
