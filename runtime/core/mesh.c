/* mesh.c - coordinates, groups and nested blocks: the arithmetic that transports share. */
#include <assert.h>
#include <string.h>

#include "mpp_rt.h"
#include "transport.h"

void mpp_rank_moves(struct mpp_rank *r)
{
    __atomic_store_n(&r->ticks, r->ticks + 1, __ATOMIC_RELAXED); /* the watch reads it from its own thread */
    if (r->pending > 0)
        r->transport->ops->look(r);
}

int mpp_mesh_stage_ranks(const struct mpp_stage *stage)
{
    int n = 1;
    for (int a = 0; a < stage->n_axes; a++)
        n *= stage->axis_size[a];
    return n;
}

int mpp_mesh_ranks(const struct mpp_program *program)
{
    int n = 0;
    for (int s = 0; s < program->n_stages; s++)
        n += mpp_mesh_stage_ranks(program->stages[s]);
    return n;
}

int mpp_mesh_stage_of(const struct mpp_program *program, int rank)
{
    int s = program->n_stages - 1;
    while (s > 0 && program->stages[s]->first_rank > rank)
        s--;
    return s;
}

void mpp_mesh_place(struct mpp_rank *r, const struct mpp_program *program, int rank)
{
    r->program = program;
    r->rank = rank;
    r->n_ranks = mpp_mesh_ranks(program);
    r->stage_index = mpp_mesh_stage_of(program, rank);
    r->stage = program->stages[r->stage_index];
    r->n_axes = r->stage->n_axes;
    int index = rank - r->stage->first_rank;
    for (int a = r->n_axes - 1; a >= 0; a--) {
        r->axis_size[a] = r->stage->axis_size[a];
        r->coord[a] = index % r->axis_size[a];
        index /= r->axis_size[a];
    }
}

int mpp_mesh_group_size(const struct mpp_rank *r, unsigned mask)
{
    if (mask == MPP_WORLD)
        return r->n_ranks;
    int n = 1;
    for (int a = 0; a < r->n_axes; a++)
        if (mask >> a & 1)
            n *= r->axis_size[a];
    return n;
}

int mpp_mesh_group_index(const struct mpp_rank *r, unsigned mask)
{
    if (mask == MPP_WORLD)
        return r->rank;
    int index = 0;
    for (int a = 0; a < r->n_axes; a++)
        if (mask >> a & 1)
            index = index * r->axis_size[a] + r->coord[a];
    return index;
}

int mpp_mesh_member(const struct mpp_rank *r, unsigned mask, int index)
{
    if (mask == MPP_WORLD)
        return index;
    int rank = r->rank, stride = 1;
    for (int a = r->n_axes - 1; a >= 0; a--) {
        if (mask >> a & 1) {
            rank += (index % r->axis_size[a] - r->coord[a]) * stride;
            index /= r->axis_size[a];
        }
        stride *= r->axis_size[a];
    }
    return rank;
}

int mpp_mesh_group_base(const struct mpp_program *program, int rank, unsigned mask)
{
    if (mask == MPP_WORLD)
        return 0;
    const struct mpp_stage *stage = program->stages[mpp_mesh_stage_of(program, rank)];
    if (mask >> stage->n_axes != 0)
        return -1;
    int stride = 1, base = rank, index = rank - stage->first_rank;
    for (int a = stage->n_axes - 1; a >= 0; a--) {
        if (mask >> a & 1)
            base -= index / stride % stage->axis_size[a] * stride;
        stride *= stage->axis_size[a];
    }
    return base;
}

int64_t mpp_mesh_block(const struct mpp_rank *r, unsigned mask, int index, int64_t extent, int64_t *offset_out,
                       int64_t *valid_out)
{
    int stride = mpp_mesh_group_size(r, mask);
    int64_t offset = 0, valid = extent, padded = extent;
    for (int a = 0; a < r->n_axes; a++) {
        if (!(mask >> a & 1))
            continue;
        int64_t k = r->axis_size[a];
        stride /= (int)k;
        int64_t block = (padded + k - 1) / k;
        int64_t skip = index / stride % k * block;
        offset += skip;
        valid = valid <= skip ? 0 : valid - skip < block ? valid - skip : block;
        padded = block;
    }
    *offset_out = valid > 0 ? offset : 0;
    *valid_out = valid;
    return padded;
}

void mpp_piece_copy(const struct mpp_piece *piece, const void *src, void *dst)
{
    const char *from = src;
    char *to = dst;
    int64_t bytes = piece->bytes;
    size_t run_bytes = (size_t)(piece->run * bytes);
    for (int64_t i = 0; i < piece->n[0]; i++)
        for (int64_t j = 0; j < piece->n[1]; j++)
            for (int64_t k = 0; k < piece->n[2]; k++)
                memcpy(to + bytes * (i * piece->dst_stride[0] + j * piece->dst_stride[1] + k * piece->dst_stride[2]),
                       from + bytes * (i * piece->src_stride[0] + j * piece->src_stride[1] + k * piece->src_stride[2]),
                       run_bytes);
}

struct mpp_exchange mpp_exchange_of(const struct mpp_rank *r, unsigned mask, int n_dims, const int64_t *src_dims, int gather_dim,
                                    int64_t gather_extent, int split_dim)
{
    assert(gather_dim != split_dim);
    int first = gather_dim < split_dim ? gather_dim : split_dim;
    int second = gather_dim < split_dim ? split_dim : gather_dim;
    int64_t offset, valid;
    struct mpp_exchange x = {.d0 = 1, .d2 = 1, .d4 = 1, .gather_first = gather_dim < split_dim, .gather_extent = gather_extent,
                             .split_extent = src_dims[split_dim]};
    for (int d = 0; d < n_dims; d++) {
        if (d < first)
            x.d0 *= src_dims[d];
        else if (d > first && d < second)
            x.d2 *= src_dims[d];
        else if (d > second)
            x.d4 *= src_dims[d];
    }
    x.gather_block = mpp_mesh_block(r, mask, 0, gather_extent, &offset, &valid);
    x.split_block = mpp_mesh_block(r, mask, 0, x.split_extent, &offset, &valid);
    assert(x.gather_block == src_dims[gather_dim]);
    return x;
}

bool mpp_exchange_piece(const struct mpp_rank *r, unsigned mask, const struct mpp_exchange *x, int from, int to,
                        int64_t *src_offset_out, int64_t *dst_offset_out, struct mpp_piece *piece_out)
{
    int64_t gather_offset, gather_valid, split_offset, split_valid;
    mpp_mesh_block(r, mask, from, x->gather_extent, &gather_offset, &gather_valid);
    mpp_mesh_block(r, mask, to, x->split_extent, &split_offset, &split_valid);
    if (gather_valid == 0 || split_valid == 0 || x->d0 == 0 || x->d2 == 0 || x->d4 == 0)
        return false;

    /* src [d0, s1, d2, s2, d4], dst [d0, t1, d2, t2, d4]; of each pair one side is the block. */
    int64_t s1 = x->gather_first ? x->gather_block : x->split_extent;
    int64_t s2 = x->gather_first ? x->split_extent : x->gather_block;
    int64_t t1 = x->gather_first ? x->gather_extent : x->split_block;
    int64_t t2 = x->gather_first ? x->split_block : x->gather_extent;
    int64_t n1 = x->gather_first ? gather_valid : split_valid;
    int64_t n2 = x->gather_first ? split_valid : gather_valid;
    int64_t src1 = x->gather_first ? 0 : split_offset, src2 = x->gather_first ? split_offset : 0;
    int64_t dst1 = x->gather_first ? gather_offset : 0, dst2 = x->gather_first ? 0 : gather_offset;

    *piece_out = (struct mpp_piece){
        .n = {x->d0, n1, x->d2},
        .src_stride = {s1 * x->d2 * s2 * x->d4, x->d2 * s2 * x->d4, s2 * x->d4},
        .dst_stride = {t1 * x->d2 * t2 * x->d4, x->d2 * t2 * x->d4, t2 * x->d4},
        .run = n2 * x->d4,
        .bytes = x->bytes,
    };
    *src_offset_out = (src1 * x->d2 * s2 + src2) * x->d4;
    *dst_offset_out = (dst1 * x->d2 * t2 + dst2) * x->d4;
    return true;
}
