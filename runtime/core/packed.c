/* packed.c - packing blocks and pieces for the way, and unpacking them: the same whatever carries them. */
#include <string.h>

#include "half.h"
#include "mpp_rt.h"
#include "packed.h"
#include "sums.h"

int64_t mpp_packed_block(const struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, int m, int64_t *count_out)
{
    int64_t offset, valid;
    mpp_mesh_block(r, mask, m, cut->extent, &offset, &valid);
    *count_out = valid * cut->outer * cut->inner;
    return offset * cut->outer * cut->inner;
}

void mpp_packed_all_gather(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, const void *src, void *dst,
                           mpp_packed_gather *gather)
{
    int n = mpp_mesh_group_size(r, mask), self = mpp_mesh_group_index(r, mask);
    int64_t count, place = mpp_packed_block(r, mask, cut, self, &count);
    if (cut->outer == 1) {
        if (count > 0)
            memcpy((char *)dst + cut->bytes * place, src, (size_t)(count * cut->bytes));
        gather(r, mask, cut, dst);
        return;
    }
    for (int m = 0; m <= n; m++) { /* first pack our own block, then unpack all */
        int who = m == 0 ? self : m - 1;
        int64_t offset, valid;
        mpp_mesh_block(r, mask, who, cut->extent, &offset, &valid);
        char *packed = r->workspace + cut->bytes * mpp_packed_block(r, mask, cut, who, &count);
        struct mpp_piece piece = {.n = {1, 1, cut->outer}, .run = valid * cut->inner, .bytes = cut->bytes};
        if (m == 0) {
            piece.src_stride[2] = cut->block * cut->inner;
            piece.dst_stride[2] = valid * cut->inner;
            mpp_piece_copy(&piece, src, packed);
            gather(r, mask, cut, r->workspace);
        } else {
            piece.src_stride[2] = valid * cut->inner;
            piece.dst_stride[2] = cut->extent * cut->inner;
            mpp_piece_copy(&piece, packed, (char *)dst + cut->bytes * offset * cut->inner);
        }
    }
}

const void *mpp_packed_blocks(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, const void *src)
{
    if (cut->outer == 1)
        return src;
    for (int m = 0; m < mpp_mesh_group_size(r, mask); m++) {
        int64_t offset, valid, count;
        mpp_mesh_block(r, mask, m, cut->extent, &offset, &valid);
        struct mpp_piece piece = {
            .n = {1, 1, cut->outer},
            .src_stride = {0, 0, cut->extent * cut->inner},
            .dst_stride = {0, 0, valid * cut->inner},
            .run = valid * cut->inner,
            .bytes = cut->bytes,
        };
        mpp_piece_copy(&piece, (const char *)src + cut->bytes * offset * cut->inner,
                       r->workspace + cut->bytes * mpp_packed_block(r, mask, cut, m, &count));
    }
    return r->workspace;
}

/* The last row first. */
void mpp_packed_spread(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, void *dst)
{
    int64_t offset, valid;
    mpp_mesh_block(r, mask, mpp_mesh_group_index(r, mask), cut->extent, &offset, &valid);
    if (valid < cut->block)
        for (int64_t o = cut->outer - 1; o > 0; o--)
            memmove((char *)dst + cut->bytes * o * cut->block * cut->inner, (char *)dst + cut->bytes * o * valid * cut->inner,
                    (size_t)(cut->bytes * valid * cut->inner));
}

void mpp_packed_scatter_half(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, enum mpp_type type, const uint16_t *src,
                             uint16_t *dst, mpp_packed_sum *sum)
{
    struct mpp_cut piece = *cut;
    piece.outer = mpp_packed_half_rows(cut->outer, cut->extent, cut->inner);
    for (int64_t o = 0; o < cut->outer; o += piece.outer) {
        piece.outer = piece.outer < cut->outer - o ? piece.outer : cut->outer - o;
        uint16_t *to = dst + o * cut->block * cut->inner;
        sum(r, mask, &piece, type, mpp_packed_blocks(r, mask, &piece, src + o * cut->extent * cut->inner), to);
        mpp_packed_spread(r, mask, &piece, to);
    }
}

void mpp_packed_sum_halves(enum mpp_type type, int n, mpp_packed_term *term, const void *of, int64_t count, uint16_t *to)
{
    enum { TILE = 2048 };
    float acc[TILE], more[TILE];
    for (int64_t i = 0; i < count; i += TILE) {
        int64_t some = count - i < TILE ? count - i : TILE;
        for (int m = 0; m < n; m++) {
            mpp_half_read(type, term(of, m) + i, some, m == 0 ? acc : more);
            if (m > 0)
                mpp_add_to(acc, more, some);
        }
        mpp_half_write(type, acc, some, to + i);
    }
}

const uint16_t *mpp_packed_term_of(const void *of, int m)
{
    const struct mpp_packed_terms *t = of;
    return m == t->own ? t->mine : t->theirs + m * t->stride;
}

/* Elements of PIECE; the strides of STRIDE, of one side, become those of its packed form. */
static int64_t pack(const struct mpp_piece *piece, int64_t stride[3])
{
    stride[2] = piece->run;
    stride[1] = piece->n[2] * piece->run;
    stride[0] = piece->n[1] * piece->n[2] * piece->run;
    return piece->n[0] * stride[0];
}

void mpp_packed_all_to_all(struct mpp_rank *r, unsigned mask, const struct mpp_exchange *x, const void *src, void *dst,
                           mpp_packed_swap *swap)
{
    int n = mpp_mesh_group_size(r, mask), self = mpp_mesh_group_index(r, mask);
    int64_t largest = x->d0 * x->d2 * x->d4 * x->gather_block * x->split_block;
    char *out = r->workspace, *in = r->workspace + x->bytes * largest;
    for (int round = 0; round < n; round++) {
        int to = (self + round) % n, from = (self + n - round) % n;
        int64_t src_offset, dst_offset, send_count = 0, receive_count = 0;
        struct mpp_piece piece;
        if (mpp_exchange_piece(r, mask, x, self, to, &src_offset, &dst_offset, &piece)) {
            if (to == self) {
                mpp_piece_copy(&piece, (const char *)src + x->bytes * src_offset, (char *)dst + x->bytes * dst_offset);
                continue;
            }
            send_count = pack(&piece, piece.dst_stride);
            mpp_piece_copy(&piece, (const char *)src + x->bytes * src_offset, out);
        }
        if (to == self)
            continue;
        bool some = mpp_exchange_piece(r, mask, x, from, self, &src_offset, &dst_offset, &piece);
        if (some)
            receive_count = pack(&piece, piece.src_stride);
        swap(r, mask, x->bytes, to, out, send_count, from, in, receive_count);
        if (some)
            mpp_piece_copy(&piece, in, (char *)dst + x->bytes * dst_offset);
    }
}
