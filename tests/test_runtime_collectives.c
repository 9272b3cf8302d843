/* Collectives against their definition, on threads (meshes of 1 to 3 axes, 2 to 8 ranks) or, started as 2, 4 or 8 processes by
 * mpirun or with RANK and so on, over MPI or TCP (argument: cut into calls of at most so many elements). Every value is a function of (rank, place), so that each rank
 * knows what the others hold. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mpp_rt.h"
#include "core/half.h"
#include "core/job.h"
#include "host/kernels_internal.h"
#include "core/transport.h"
#include "core/transport_tcp_place.h"

struct tally {
    int passed, failed;
};

static void expect(struct tally *t, bool ok, const char *what, const struct mpp_rank *r, unsigned mask)
{
    if (ok) {
        t->passed++;
        return;
    }
    t->failed++;
    fprintf(stderr, "failed: %s, rank %d of %d, mask %u\n", what, r->rank, r->n_ranks, mask);
}

/* Ranks of the group, by looking at everyone's coordinates. */
static int members(const struct mpp_rank *r, unsigned mask, int out[])
{
    int n = 0;
    for (int other = 0; other < r->n_ranks; other++) {
        int coord[MPP_MAX_AXES], rest = other;
        bool same = true;
        for (int a = r->n_axes - 1; a >= 0; a--) {
            coord[a] = rest % r->axis_size[a];
            rest /= r->axis_size[a];
        }
        for (int a = 0; a < r->n_axes; a++)
            same = same && ((mask >> a & 1) || coord[a] == r->coord[a]);
        if (same)
            out[n++] = other;
    }
    return n;
}

/* Index range of a member's block, by cutting the range axis after axis. Returns the padded extent. */
static int64_t cut(const struct mpp_rank *r, unsigned mask, int rank, int64_t extent, int64_t *begin, int64_t *end)
{
    int coord[MPP_MAX_AXES];
    for (int a = r->n_axes - 1; a >= 0; a--) {
        coord[a] = rank % r->axis_size[a];
        rank /= r->axis_size[a];
    }
    *begin = 0;
    *end = extent;
    int64_t padded = extent;
    for (int a = 0; a < r->n_axes; a++)
        if (mask >> a & 1) {
            padded = (padded + r->axis_size[a] - 1) / r->axis_size[a];
            int64_t b = *begin + coord[a] * padded, e = b + padded;
            *begin = b < *end ? b : *end;
            *end = e < *end ? e : *end;
        }
    return padded;
}

static float value(int rank, int64_t at)
{
    return (float)((rank * 37 + at * 11) % 101) - 50.0f;
}

static float *fill(int rank, int64_t count)
{
    float *x = malloc((size_t)(count + 1) * sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = value(rank, i);
    return x;
}

static void check_all_reduce(struct mpp_rank *r, unsigned mask, int64_t count, struct tally *t)
{
    int group[64], n = members(r, mask, group);
    for (int op = 0; op < 2; op++) {
        float *x = fill(r->rank, count);
        mpp_all_reduce(r, mask, x, count, op == 0 ? MPP_REDUCE_SUM : MPP_REDUCE_MAX);
        bool ok = true;
        for (int64_t i = 0; i < count; i++) {
            float want = value(group[0], i);
            for (int m = 1; m < n; m++) {
                float v = value(group[m], i);
                want = op == 0 ? want + v : v > want ? v : want;
            }
            ok = ok && x[i] == want;
        }
        expect(t, ok, op == 0 ? "all_reduce sum" : "all_reduce max", r, mask);
        free(x);
    }
}

/* More sums than may be begun at a time, or deferred. */
static void check_many(struct mpp_rank *r, struct tally *t)
{
    enum { MANY = 1500, N = 5 };
    static const int64_t extent = 3;
    unsigned all = (1u << r->n_axes) - 1;
    int group[64], n = members(r, all, group);
    float *x = malloc(MANY * N * sizeof *x), *src = malloc(MANY * N * sizeof *src), *dst = calloc(MANY * N, sizeof *dst);
    for (int i = 0; i < MANY; i++) {
        for (int k = 0; k < N; k++)
            x[i * N + k] = src[i * N + k] = value(r->rank, i + k);
        mpp_all_reduce_begin(r, all, x + i * N, N);
        mpp_reduce_scatter_begin(r, all, 1, extent, 1, src + i * N, dst + i * N);
    }
    mpp_wait(r);
    int64_t begin, end;
    (void)cut(r, all, r->rank, extent, &begin, &end);
    bool ok = true;
    for (int i = 0; i < MANY; i++)
        for (int k = 0; k < N; k++) {
            float want = 0;
            for (int m = 0; m < n; m++)
                want += value(group[m], i + k);
            ok = ok && x[i * N + k] == want && (k < begin || k >= end || dst[i * N + k - begin] == want);
        }
    expect(t, ok, "many sums begun", r, all);
    free(x);
    free(src);
    free(dst);
}

/* Sums in several groups that were all begun before the first is waited for; work in between moves them on. */
static void check_begin(struct mpp_rank *r, struct tally *t)
{
    enum { N = 6 };
    int64_t count[N] = {1, 17, 70001, 1000, 3, 4096};
    float *x[N];
    unsigned n_masks = 1u << r->n_axes;
    for (int i = 0; i < N; i++) {
        x[i] = fill(r->rank, count[i]);
        mpp_all_reduce_begin(r, (unsigned)i % n_masks, x[i], count[i]);
        mpp_rank_moves(r);
    }
    static const int64_t extents[N] = {8, 5, 1, 33, 70000, 16};
    float *src[N], *dst[N];
    for (int i = 0; i < N; i++) {
        src[i] = fill(r->rank, extents[i] * 3);
        dst[i] = calloc((size_t)extents[i] * 3, sizeof **dst);
        mpp_reduce_scatter_begin(r, (unsigned)(N - i) % n_masks, 1, extents[i], 3, src[i], dst[i]);
        mpp_rank_moves(r);
    }
    mpp_wait(r);
    mpp_wait(r); /* nothing is left */
    for (int i = 0; i < N; i++) {
        unsigned mask = (unsigned)(N - i) % n_masks;
        int group[64], n = members(r, mask, group);
        int64_t begin, end;
        (void)cut(r, mask, r->rank, extents[i], &begin, &end);
        bool ok = true;
        for (int64_t k = begin * 3; k < end * 3; k++) {
            float want = 0;
            for (int m = 0; m < n; m++)
                want += value(group[m], k);
            ok = ok && dst[i][k - begin * 3] == want;
        }
        expect(t, ok, "reduce_scatter_begin", r, mask);
        free(src[i]);
        free(dst[i]);
    }
    for (int i = 0; i < N; i++) {
        int group[64], n = members(r, (unsigned)i % n_masks, group);
        bool ok = true;
        for (int64_t k = 0; k < count[i]; k++) {
            float want = 0;
            for (int m = 0; m < n; m++)
                want += value(group[m], k);
            ok = ok && x[i][k] == want;
        }
        expect(t, ok && r->pending == 0, "all_reduce_begin", r, (unsigned)i % n_masks);
        free(x[i]);
    }
}

/* Gathers in several groups, of floats and of 16 bits, all begun before the first is awaited; each is whole once no more are
 * under way than were begun after it. */
static void check_begin_gathers(struct mpp_rank *r, struct tally *t)
{
    enum { N = 40 }; /* more than a GPU's rank has events */
    static const int64_t extents[] = {8, 5, 1, 33, 2400, 16};
    unsigned n_masks = 1u << r->n_axes;
    float *src[N], *dst[N];
    uint16_t *half[N];
    for (int i = 0; i < N; i++) {
        unsigned mask = (unsigned)i % n_masks;
        int64_t outer = 1 + (i % 5 == 4), extent = extents[i % 6], b, e, block = cut(r, mask, r->rank, extent, &b, &e);
        src[i] = fill(r->rank, outer * block * 3);
        dst[i] = calloc((size_t)(outer * extent * 3), 4);
        half[i] = calloc((size_t)(outer * extent * 3), 2);
        if (i % 3)
            mpp_all_gather_begin(r, mask, outer, extent, 3, src[i], dst[i]);
        else
            mpp_all_gather_begin_half(r, mask, outer, extent, 3, src[i], half[i]); /* the first half of its bytes */
        mpp_rank_moves(r);
    }
    for (int i = 0; i < N; i++) {
        unsigned mask = (unsigned)i % n_masks;
        int group[64], n = members(r, mask, group);
        int64_t outer = 1 + (i % 5 == 4), extent = extents[i % 6];
        bool ok = true;
        mpp_gather_wait(r, N - 1 - i);
        for (int m = 0; m < n; m++) {
            int64_t b, e, block = cut(r, mask, group[m], extent, &b, &e);
            for (int64_t o = 0; o < outer; o++)
                for (int64_t k = b * 3; k < e * 3; k++) {
                    int64_t from = o * block * 3 + k - b * 3, to = o * extent * 3 + k;
                    float pair = value(group[m], from / 2);
                    uint16_t part[2];
                    memcpy(part, &pair, sizeof pair);
                    ok = ok && (i % 3 ? dst[i][to] == value(group[m], from) : half[i][to] == part[from % 2]);
                }
        }
        expect(t, ok, i % 3 ? "all_gather_begin" : "all_gather_begin_half", r, mask);
    }
    mpp_gather_wait(r, 0);
    expect(t, r->pending == 0, "no gather is left", r, 0);
    for (int i = 0; i < N; i++) {
        free(src[i]);
        free(dst[i]);
        free(half[i]);
    }
}

static void check_cut(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, struct tally *t)
{
    int group[64], n = members(r, mask, group);
    int64_t begin, end;
    int64_t block = cut(r, mask, r->rank, extent, &begin, &end);
    float *small = fill(r->rank, outer * block * inner), *big = fill(r->rank, outer * extent * inner);
    float *gathered = calloc((size_t)(outer * extent * inner), 4), *part = calloc((size_t)(outer * block * inner), 4);

    mpp_all_gather(r, mask, outer, extent, inner, small, gathered);
    bool ok = true;
    for (int m = 0; m < n; m++) {
        int64_t b, e;
        cut(r, mask, group[m], extent, &b, &e);
        for (int64_t o = 0; o < outer; o++)
            for (int64_t k = b; k < e; k++)
                for (int64_t i = 0; i < inner; i++)
                    ok = ok && gathered[(o * extent + k) * inner + i] == value(group[m], (o * block + k - b) * inner + i);
    }
    expect(t, ok, "all_gather", r, mask);

    mpp_reduce_scatter(r, mask, outer, extent, inner, big, part);
    ok = true;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t k = begin; k < end; k++)
            for (int64_t i = 0; i < inner; i++) {
                float want = 0;
                for (int m = 0; m < n; m++)
                    want += value(group[m], (o * extent + k) * inner + i);
                ok = ok && part[(o * block + k - begin) * inner + i] == want;
            }
    expect(t, ok, "reduce_scatter", r, mask);

    mpp_slice(r, mask, outer, extent, inner, big, part);
    ok = true;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t k = begin; k < end; k++)
            for (int64_t i = 0; i < inner; i++)
                ok = ok && part[(o * block + k - begin) * inner + i] == big[(o * extent + k) * inner + i];
    expect(t, ok, "slice", r, mask);
    free(small);
    free(big);
    free(gathered);
    free(part);
}

/* ---- 16 bits: the f32 results, rounded ---- */

enum { WORKSPACE = 1 << 23 };

static uint16_t *rounded(enum mpp_type type, const float *x, int64_t n)
{
    uint16_t *y = malloc((size_t)(n + 1) * sizeof *y);
    mpp_half_write(type, x, n, y);
    return y;
}

/* Nothing is written past the workspace that is asked for. */
static void guard(struct mpp_rank *r, int64_t bytes, bool check, struct tally *t)
{
    char intact[64];
    memset(intact, 90, sizeof intact);
    if (check)
        expect(t, memcmp(r->workspace + bytes, intact, sizeof intact) == 0, "a sum in 16 bits stays in its workspace", r, 0);
    else
        memcpy(r->workspace + bytes, intact, sizeof intact);
}

static void check_half_reduce(struct mpp_rank *r, unsigned mask, enum mpp_type type, int64_t count, struct tally *t)
{
    float *x = fill(r->rank, count);
    uint16_t *y = rounded(type, x, count);
    guard(r, 0, false, t);
    mpp_all_reduce_half(r, mask, type, y, count);
    guard(r, 0, true, t);
    mpp_all_reduce(r, mask, x, count, MPP_REDUCE_SUM);
    bool ok = true;
    for (int64_t i = 0; i < count; i++)
        ok = ok && y[i] == mpp_half_of(type, x[i]);
    expect(t, ok, "all_reduce_half", r, mask);
    free(x);
    free(y);
}

/* Fractions, of which a sum's bits depend on its order. */
static float fraction(int rank, int64_t at)
{
    uint32_t h = (uint32_t)at * 2654435761u ^ (uint32_t)rank * 40503u * 65537u;
    return (float)(h >> 12) / 977.0f - 500.0f;
}

/* The f32 sum, in rank order, of what each rank rounds, rounded once: to the bit, whatever carries it. */
static void check_half_bits(struct mpp_rank *r, unsigned mask, enum mpp_type type, int64_t count, struct tally *t)
{
    int group[64], n = members(r, mask, group);
    int64_t begin, end, block = cut(r, mask, r->rank, count, &begin, &end);
    uint16_t *x = calloc((size_t)count + 1, sizeof *x), *part = calloc((size_t)block + 1, sizeof *part);
    bool whole = true, own = true;
    for (int64_t i = 0; i < count; i++)
        x[i] = mpp_half_of(type, fraction(r->rank, i));
    mpp_reduce_scatter_half(r, mask, type, 1, count, 1, x, part);
    mpp_all_reduce_half(r, mask, type, x, count);
    for (int64_t i = 0; i < count; i++) {
        float sum = 0;
        for (int m = 0; m < n; m++)
            sum += mpp_half_float(type, mpp_half_of(type, fraction(group[m], i)));
        whole = whole && x[i] == mpp_half_of(type, sum);
        own = own && (i < begin || i >= end || part[i - begin] == mpp_half_of(type, sum));
    }
    expect(t, whole, "the bits of all_reduce_half", r, mask);
    expect(t, own, "the bits of reduce_scatter_half", r, mask);
    free(x);
    free(part);
}

/* The rows BEGIN .. END - 1 of each block of GOT against those of WANT. */
static bool rows_equal(enum mpp_type type, const uint16_t *got, const float *want, int64_t outer, int64_t extent, int64_t rows,
                       int64_t inner)
{
    bool ok = true;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < rows * inner; i++)
            ok = ok && got[o * extent * inner + i] == mpp_half_of(type, want[o * extent * inner + i]);
    return ok;
}

static void check_half_cut(struct mpp_rank *r, unsigned mask, enum mpp_type type, int64_t outer, int64_t extent,
                           int64_t inner, struct tally *t)
{
    int64_t begin, end, block = cut(r, mask, r->rank, extent, &begin, &end);
    int64_t n_small = outer * block * inner, n_big = outer * extent * inner;
    float *small = fill(r->rank, n_small), *big = fill(r->rank, n_big), *want = calloc((size_t)n_big + 1, 4);
    uint16_t *half_small = rounded(type, small, n_small), *half_big = rounded(type, big, n_big);
    uint16_t *got = calloc((size_t)n_big + 1, 2);
    mpp_all_gather(r, mask, outer, extent, inner, small, want);
    mpp_all_gather_half(r, mask, outer, extent, inner, half_small, got);
    expect(t, rows_equal(type, got, want, outer, extent, extent, inner), "all_gather_half", r, mask);

    int64_t bytes = mpp_reduce_scatter_half_workspace(outer, extent, inner);
    guard(r, bytes, false, t);
    mpp_reduce_scatter_half(r, mask, type, outer, extent, inner, half_big, got);
    guard(r, bytes, true, t);
    mpp_reduce_scatter(r, mask, outer, extent, inner, big, want);
    expect(t, rows_equal(type, got, want, outer, block, end - begin, inner), "reduce_scatter_half", r, mask);

    mpp_slice(r, mask, outer, extent, inner, big, want);
    mpp_slice_half(r, mask, outer, extent, inner, half_big, got);
    expect(t, rows_equal(type, got, want, outer, block, end - begin, inner), "slice_half", r, mask);

    mpp_to_partial(r, mask, big, want, n_big);
    mpp_to_partial_half(r, mask, half_big, got, n_big);
    expect(t, rows_equal(type, got, want, 1, n_big, n_big, 1), "to_partial_half", r, mask);
    free(small);
    free(big);
    free(want);
    free(half_small);
    free(half_big);
    free(got);
}

static void check_half_exchange(struct mpp_rank *r, unsigned mask, enum mpp_type type, const int64_t dims[4], int gather,
                                int split, struct tally *t)
{
    int64_t src_dims[4], dst_count = 1, src_count = 1, b, e, padded = cut(r, mask, r->rank, dims[split], &b, &e);
    memcpy(src_dims, dims, sizeof src_dims);
    src_dims[gather] = cut(r, mask, r->rank, dims[gather], &b, &e);
    for (int d = 0; d < 4; d++) {
        src_count *= src_dims[d];
        dst_count *= d == split ? padded : dims[d];
    }
    float *src = fill(r->rank, src_count), *want = calloc((size_t)dst_count + 1, 4);
    uint16_t *half_src = rounded(type, src, src_count), *got = calloc((size_t)dst_count + 1, 2);
    mpp_all_to_all(r, mask, 4, src_dims, gather, dims[gather], split, src, want); /* padding stays 0 in both */
    mpp_all_to_all_half(r, mask, 4, src_dims, gather, dims[gather], split, half_src, got);
    expect(t, rows_equal(type, got, want, 1, dst_count, dst_count, 1), "all_to_all_half", r, mask);
    free(src);
    free(want);
    free(half_src);
    free(got);
}

static void check_half(struct mpp_rank *r, unsigned mask, int64_t large, struct tally *t)
{
    static const int64_t extents[] = {1, 5, 8, 33}, dims[4] = {3, 10, 2, 9};
    for (enum mpp_type type = MPP_TYPE_BF16; type <= MPP_TYPE_F16; type++) {
        check_half_reduce(r, mask, type, 17, t);
        check_half_reduce(r, mask, type, large, t);
        check_half_bits(r, mask, type, 333, t);
        check_half_bits(r, mask, type, 5003, t);
        for (int i = 0; i < 4; i++)
            for (int inner = 1; inner <= 5; inner += 2) /* odd: blocks of 2 bytes begin anywhere */
                check_half_cut(r, mask, type, 1 + i % 3, extents[i], inner, t);
        check_half_cut(r, mask, type, 1, large, 1, t);
        check_half_cut(r, mask, type, 3, 7, large / 21, t);
        check_half_cut(r, mask, type, large / 35, 7, 5, t);
        for (int gather = 0; gather < 4; gather++)
            check_half_exchange(r, mask, type, dims, gather, (gather + 1 + (int)type % 3) % 4, t);
    }
}

static int64_t flat(int n, const int64_t *dims, const int64_t *at)
{
    int64_t i = 0;
    for (int d = 0; d < n; d++)
        i = i * dims[d] + at[d];
    return i;
}

/* dims: the whole tensor, whole in both dimensions. */
static void check_all_to_all(struct mpp_rank *r, unsigned mask, const int64_t dims[4], int gather, int split,
                             struct tally *t)
{
    int group[64], n = members(r, mask, group);
    int64_t src_dims[4], dst_dims[4], b, e, sb, se;
    memcpy(src_dims, dims, sizeof src_dims);
    memcpy(dst_dims, dims, sizeof dst_dims);
    src_dims[gather] = cut(r, mask, r->rank, dims[gather], &b, &e);
    dst_dims[split] = cut(r, mask, r->rank, dims[split], &sb, &se);
    int64_t src_count = src_dims[0] * src_dims[1] * src_dims[2] * src_dims[3];
    int64_t dst_count = dst_dims[0] * dst_dims[1] * dst_dims[2] * dst_dims[3];
    float *src = fill(r->rank, src_count), *dst = calloc((size_t)dst_count + 1, 4);
    mpp_all_to_all(r, mask, 4, src_dims, gather, dims[gather], split, src, dst);
    bool ok = true;
    for (int m = 0; m < n; m++) {
        int64_t gb, ge, at[4];
        cut(r, mask, group[m], dims[gather], &gb, &ge);
        for (at[0] = 0; at[0] < dst_dims[0]; at[0]++)
            for (at[1] = 0; at[1] < dst_dims[1]; at[1]++)
                for (at[2] = 0; at[2] < dst_dims[2]; at[2]++)
                    for (at[3] = 0; at[3] < dst_dims[3]; at[3]++) {
                        if (at[gather] < gb || at[gather] >= ge || at[split] >= se - sb)
                            continue;
                        int64_t from[4] = {at[0], at[1], at[2], at[3]};
                        from[gather] -= gb;
                        from[split] += sb;
                        ok = ok && dst[flat(4, dst_dims, at)] == value(group[m], flat(4, src_dims, from));
                    }
    }
    expect(t, ok, "all_to_all", r, mask);
    free(src);
    free(dst);
}

static void check_rest(struct mpp_rank *r, unsigned mask, struct tally *t)
{
    int group[64];
    members(r, mask, group);
    float src[5] = {1, 2, 3, 4, 5}, dst[5] = {9, 9, 9, 9, 9};
    mpp_to_partial(r, mask, src, dst, 5);
    expect(t, dst[4] == (group[0] == r->rank ? 5.0f : 0.0f), "to_partial", r, mask);

    /* a ring: even ranks send first */
    const struct mpp_transport_ops *ops = r->transport->ops;
    int next = (r->rank + 1) % r->n_ranks, before = (r->rank + r->n_ranks - 1) % r->n_ranks;
    float *out = fill(r->rank, 1000), *in = calloc(1000, 4);
    if (r->rank % 2 == 0)
        ops->send(r, next, out, 4000);
    ops->receive(r, before, in, 4000);
    if (r->rank % 2 != 0)
        ops->send(r, next, out, 4000);
    expect(t, in[999] == value(before, 999), "send and receive", r, mask);
    free(out);
    free(in);
}

static void check_rank(struct mpp_rank *r, struct tally *t)
{
    static const int64_t extents[] = {1, 2, 5, 7, 8, 16, 33};
    static const int64_t dims[4] = {3, 10, 2, 9};
    check_begin(r, t);
    check_many(r, t);
    check_begin_gathers(r, t);
    for (unsigned mask = 0; mask < 1u << r->n_axes; mask++) {
        static const int64_t counts[] = {1, 3, 17, 1000, 70001};
        for (int i = 0; i < 5; i++)
            check_all_reduce(r, mask, counts[i], t);
        for (int i = 0; i < 7; i++)
            for (int outer = 1; outer <= 3; outer += 2)
                for (int inner = 1; inner <= 5; inner += 4)
                    check_cut(r, mask, outer, extents[i], inner, t);
        for (int gather = 0; gather < 4; gather++)
            for (int split = 0; split < 4; split++)
                if (gather != split)
                    check_all_to_all(r, mask, dims, gather, split, t);
        if (r->n_ranks > 1 && r->n_ranks % 2 == 0)
            check_rest(r, mask, t);
    }
}

#define LARGE 600001 /* past the buffers through which processes of one host share memory */

static void check_large(struct mpp_rank *r, int64_t size, struct tally *t)
{
    for (unsigned mask = 0; mask < 1u << r->n_axes; mask++) {
        check_all_reduce(r, mask, size, t);
        check_cut(r, mask, 1, size, 1, t);
        check_cut(r, mask, 2, 10, size / 20, t); /* packed in the workspace: 2.4 MB */
        check_half(r, mask, size, t);
    }
}

struct job_rank {
    struct mpp_rank r;
    struct mpp_local local;
    struct tally tally;
    char *workspace;
};

/* A program of one stage. */
struct one {
    struct mpp_stage stage;
    const struct mpp_stage *stages[1];
    struct mpp_program program;
};

static const struct mpp_program *set_mesh(struct one *one, int n_axes, const int sizes[3])
{
    *one = (struct one){.stage = {.n_axes = n_axes, .axis_size = {sizes[0], sizes[1], sizes[2]}}};
    one->stages[0] = &one->stage;
    one->program = (struct mpp_program){.n_stages = 1, .stages = one->stages};
    return &one->program;
}

static void set_up(struct job_rank *j, const struct mpp_program *p, struct mpp_transport *transport, int rank)
{
    *j = (struct job_rank){.r = {.transport = transport, .impl = &j->local}};
    mpp_mesh_place(&j->r, p, rank);
    j->r.workspace = j->workspace = malloc(WORKSPACE);
}

static void *thread_main(void *arg)
{
    struct job_rank *j = arg;
    if (setjmp(j->local.leave) == 0) {
        check_rank(&j->r, &j->tally);
        check_large(&j->r, LARGE / 10, &j->tally);
    }
    return NULL;
}

static void run_threads(const struct mpp_program *p, struct tally *total)
{
    struct mpp_error error;
    int n = mpp_mesh_ranks(p);
    struct mpp_transport *transport = mpp_transport_threads_new(p, &error);
    struct job_rank *ranks = calloc((size_t)n, sizeof *ranks);
    pthread_t *threads = calloc((size_t)n, sizeof *threads);
    for (int i = 0; i < n; i++)
        set_up(&ranks[i], p, transport, i);
    for (int i = 0; i < n; i++)
        pthread_create(&threads[i], NULL, thread_main, &ranks[i]);
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        total->passed += ranks[i].tally.passed;
        total->failed += ranks[i].tally.failed;
        free(ranks[i].workspace);
    }
    free(ranks);
    free(threads);
    transport->ops->free(transport);
}

/* One rank fails while the others wait: all come back with its code. */
static void *failing_main(void *arg)
{
    struct job_rank *j = arg;
    float x = 1;
    if (setjmp(j->local.leave) == 0) {
        if (j->r.rank == 2)
            mpp_fail(&j->r, 2, "this message is expected");
        mpp_all_reduce(&j->r, 3, &x, 1, MPP_REDUCE_SUM);
    }
    return NULL;
}

static void check_failure(struct tally *total)
{
    struct one one;
    const struct mpp_program *p = set_mesh(&one, 2, (const int[]){2, 2, 0});
    struct mpp_error error;
    struct mpp_transport *transport = mpp_transport_threads_new(p, &error);
    static struct job_rank ranks[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        set_up(&ranks[i], p, transport, i);
        pthread_create(&threads[i], NULL, failing_main, &ranks[i]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        expect(total, ranks[i].local.exit_code == 2, "a failure reaches all", &ranks[i].r, 0);
        free(ranks[i].workspace);
    }
    transport->ops->free(transport);
}

static void leave_process(void *user, int code)
{
    (void)user;
    _exit(code);
}

/* PLACE NULL: over MPI. */
static int run_process(int n, const struct mpp_tcp_place *place, int64_t call_elements)
{
    struct one one;
    const struct mpp_program *p = set_mesh(&one, n == 8 ? 3 : n == 4 ? 2 : 1, (const int[]){2, 2, 2});
    struct mpp_error error = {0};
    struct mpp_transport_settings settings = {.watch = {.silence_s = 15, .leave = leave_process},
                                              .call_elements = call_elements};
    int rank = place != NULL ? place->rank : 0;
    static struct job_rank j;
    struct mpp_transport *transport = place != NULL ? mpp_transport_tcp_new(p, &settings, place, &error) : NULL;
#ifdef MPP_WITH_MPI
    if (place == NULL)
        transport = mpp_transport_mpi_new(p, &settings, &rank, &error);
#endif
    if (transport == NULL) {
        fprintf(stderr, "error: %s\n", error.text);
        return 1;
    }
    set_up(&j, p, transport, rank);
    if (setjmp(j.local.leave) == 0) {
        check_rank(&j.r, &j.tally);
        check_large(&j.r, call_elements == 0 ? LARGE : LARGE / 1000, &j.tally);
    }
    float sums[2] = {(float)j.tally.passed, (float)j.tally.failed};
    mpp_all_reduce(&j.r, MPP_WORLD, sums, 2, MPP_REDUCE_SUM);
    if (rank == 0)
        printf("%d passed, %d failed\n", (int)sums[0], (int)sums[1]);
    free(j.workspace);
    transport->ops->free(transport);
    return sums[1] > 0;
}

int main(int argc, char **argv)
{
    struct mpp_tcp_place place;
    struct mpp_error error;
    int64_t call_elements = argc > 1 ? atoi(argv[1]) : 0;
    if (mpp_tcp_started(false))
        return mpp_tcp_place_read(&place, &error) != MPP_EXIT_OK || run_process(place.size, &place, call_elements);
#ifdef MPP_WITH_MPI
    const char *size = getenv("OMPI_COMM_WORLD_SIZE") ? getenv("OMPI_COMM_WORLD_SIZE") : getenv("PMI_SIZE");
    if (size != NULL)
        return run_process(atoi(size), NULL, call_elements);
#endif
    static const int meshes[][4] = {{0},       {1, 1},    {1, 2},       {1, 3},       {1, 8},
                                    {2, 2, 2}, {2, 3, 2}, {2, 1, 4},    {3, 2, 2, 2}, {3, 1, 2, 3}};
    struct tally total = {0, 0};
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        struct one one;
        run_threads(set_mesh(&one, meshes[i][0], meshes[i] + 1), &total);
    }
    check_failure(&total);
    printf("%d passed, %d failed\n", total.passed, total.failed);
    return total.failed != 0;
}
