/* collectives.c - the collectives of mpp_rt.h by NCCL, one communicator for each group of ranks.
 *
 * NCCL moves equal, contiguous parts. A cut that is not one (inner dimensions, last blocks that are short) is packed into parts of
 * equal size first, or unpacked afterwards, by a kernel on the same stream. Sums that go on beside the rank's work are on the
 * communication stream, which waits for what the compute stream has done so far; mpp_wait makes the compute stream wait for it. */
#include <assert.h>

#include "core/trace.h"
#include "core/transport.h"
#include "cuda/cuda_internal.h"
#include "cuda/kernels_copy.h"
#include "cuda/parts.h"

static void copy(struct mpp_rank *r, void *dst, const void *src, int64_t bytes)
{
    mpp_copy(r, dst, src, (size_t)bytes);
}

/* ---- sums ------------------------------------------------------------------------------------------------------- */

void mpp_all_reduce(struct mpp_rank *r, unsigned mask, float *x, int64_t count, enum mpp_reduce op)
{
    if (mpp_mesh_group_size(r, mask) == 1 || count <= 0)
        return;
    double begun_s = mpp_trace_begin(r);
    ncclComm_t comm = mpp_cuda_group(r, mask);
    mpp_cuda_meets(r, MPP_WAIT_ALL_REDUCE, (int)mask);
    MPP_NCCL_CHECK(r, mask, comm, ncclAllReduce(x, x, (size_t)count, ncclFloat32, op == MPP_REDUCE_MAX ? ncclMax : ncclSum, comm,
                                          r->device->compute));
    mpp_trace_end(r, begun_s, MPP_TRACE_ALL_REDUCE, (int)mask, 0, 4 * count);
}

/* Sums SRC, whose parts may be packed, into DST on STREAM. */
static void scatter_sums(struct mpp_rank *r, cudaStream_t stream, enum mpp_scratch kind, unsigned mask, const struct mpp_parts *c,
                         const float *src, float *dst)
{
    const float *parts = src;
    ncclComm_t comm = mpp_cuda_group(r, mask);
    if (!c->even) {
        float *packed = mpp_cuda_scratch(r, kind, (size_t)(c->n * mpp_part_elements(c)) * sizeof *packed);
        mpp_parts_pack(r, stream, mask, c, src, packed);
        parts = packed;
    }
    mpp_cuda_meets(r, MPP_WAIT_REDUCE_SCATTER, (int)mask);
    MPP_NCCL_CHECK(r, mask, comm, ncclReduceScatter(parts, dst, (size_t)mpp_part_elements(c), ncclFloat32, ncclSum, comm, stream));
}

void mpp_reduce_scatter(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, const float *src, float *dst)
{
    struct mpp_parts c = mpp_parts_of(r, mask, outer, extent, inner, 4);
    if (c.n == 1) {
        copy(r, dst, src, 4 * outer * extent * inner);
        return;
    }
    double begun_s = mpp_trace_begin(r);
    scatter_sums(r, r->device->compute, MPP_SCRATCH_PACK, mask, &c, src, dst);
    mpp_trace_end(r, begun_s, MPP_TRACE_REDUCE_SCATTER, (int)mask, 0, 4 * outer * extent * inner);
}

/* ---- beside the rank's work ----------------------------------------------------------------------------------------- */

/* Small sums wait for others, so that a layer's biases and norms, split or not, cost one call; at the latest until mpp_wait. What is
 * packed at a time is no more than MPP_BUCKET_BYTES, or one sum's (codegen/beside.c). */
static void add_to_bucket(struct mpp_rank *r, unsigned mask, int64_t bytes, struct mpp_begun sum)
{
    struct mpp_bucket *b = &r->device->bucket;
    if (b->mask != mask || (b->packed > 0 && 4 * (b->packed + sum.packed) > MPP_BUCKET_BYTES))
        mpp_cuda_empty_bucket(r);
    r->device->n_begun++;
    b->mask = mask;
    b->sums[b->n++] = sum;
    b->bytes += bytes;
    b->packed += sum.packed;
    if (b->n == MPP_BUCKET_SUMS || b->bytes >= MPP_BUCKET_BYTES)
        mpp_cuda_empty_bucket(r);
}

void mpp_all_reduce_begin(struct mpp_rank *r, unsigned mask, float *x, int64_t count)
{
    if (mpp_mesh_group_size(r, mask) == 1 || count <= 0)
        return;
    add_to_bucket(r, mask, 4 * count, (struct mpp_begun){.src = x, .count = count});
}

void mpp_reduce_scatter_begin(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, float *src, float *dst)
{
    struct mpp_parts c = mpp_parts_of(r, mask, outer, extent, inner, 4);
    assert(outer == 1);
    if (c.n == 1) {
        copy(r, dst, src, 4 * extent * inner);
        return;
    }
    int64_t all = c.n * mpp_part_elements(&c);
    add_to_bucket(r, mask, 4 * all, (struct mpp_begun){.src = src, .dst = dst, .count = mpp_part_elements(&c), .extent = extent, .inner = inner,
                                                       .packed = c.even ? 0 : all});
}

void mpp_wait(struct mpp_rank *r)
{
    struct mpp_device *d = r->device;
    if (d == NULL || d->n_begun == 0)
        return;
    double begun_s = mpp_trace_begin(r);
    mpp_cuda_join(r);
    mpp_trace_end(r, begun_s, MPP_TRACE_SUMS, 0, 0, 0);
}

/* ---- gathers and slices ------------------------------------------------------------------------------------------------ */

static void gather(struct mpp_rank *r, cudaStream_t stream, enum mpp_scratch kind, int64_t bytes, unsigned mask, int64_t outer,
                   int64_t extent, int64_t inner, const void *src, void *dst)
{
    struct mpp_parts c = mpp_parts_of(r, mask, outer, extent, inner, bytes);
    if (c.n == 1) {
        copy(r, dst, src, bytes * outer * extent * inner);
        return;
    }
    double begun_s = mpp_trace_begin(r);
    ncclComm_t comm = mpp_cuda_group(r, mask);
    void *parts = c.even ? dst : mpp_cuda_scratch(r, kind, (size_t)(c.n * mpp_part_elements(&c) * bytes));
    mpp_cuda_meets(r, MPP_WAIT_ALL_GATHER, (int)mask);
    MPP_NCCL_CHECK(r, mask, comm, ncclAllGather(src, parts, (size_t)(mpp_part_elements(&c) * bytes), ncclInt8, comm, stream));
    if (!c.even)
        mpp_parts_move(r, stream, mask, &c, false, dst, parts);
    mpp_trace_end(r, begun_s, MPP_TRACE_ALL_GATHER, (int)mask, 0, bytes * outer * extent * inner);
}

void mpp_all_gather(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, const void *src, void *dst)
{
    gather(r, r->device->compute, MPP_SCRATCH_UNPACK, 4, mask, outer, extent, inner, src, dst);
}

void mpp_all_gather_half(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, const void *src, void *dst)
{
    gather(r, r->device->compute, MPP_SCRATCH_UNPACK, 2, mask, outer, extent, inner, src, dst);
}

/* Those of the communication stream end in the order in which they begin. */
static void gather_beside(struct mpp_rank *r, int64_t bytes, unsigned mask, int64_t outer, int64_t extent, int64_t inner,
                          const void *src, void *dst)
{
    struct mpp_device *d = r->device;
    gather(r, mpp_cuda_beside(r), MPP_SCRATCH_BESIDE, bytes, mask, outer, extent, inner, src, dst);
    MPP_CUDA_CHECK(r, cudaEventRecord(d->gathered[d->n_gathers++ % MPP_GATHERS], d->communication));
}

void mpp_all_gather_begin(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, const void *src, void *dst)
{
    gather_beside(r, 4, mask, outer, extent, inner, src, dst);
}

void mpp_all_gather_begin_half(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, const void *src,
                               void *dst)
{
    gather_beside(r, 2, mask, outer, extent, inner, src, dst);
}

/* Where more are under way than there are events, a later one's end is awaited. */
void mpp_gather_wait(struct mpp_rank *r, int64_t under_way)
{
    struct mpp_device *d = r->device;
    int64_t last = d->n_gathers - under_way - 1;
    if (last < d->n_gathered)
        return;
    mpp_cuda_await(r, d->gathered[last % MPP_GATHERS], MPP_WAIT_BEGUN, (1 << r->n_axes) - 1);
    d->n_gathered = last + 1;
}

/* dst may lie in src. */
static void slice(struct mpp_rank *r, int64_t bytes, unsigned mask, int64_t outer, int64_t extent, int64_t inner, const void *src,
                  void *dst)
{
    int64_t offset, valid;
    int64_t block = mpp_mesh_block(r, mask, mpp_mesh_group_index(r, mask), extent, &offset, &valid);
    if (block == extent) {
        copy(r, dst, src, bytes * outer * extent * inner);
        return;
    }
    struct mpp_box box = {.n_dims = 1, .n = {outer}, .src_stride = {extent * inner}, .dst_stride = {block * inner},
                          .run = valid * inner, .bytes = bytes};
    const char *from = (const char *)src + bytes * offset * inner;
    int64_t dst_bytes = bytes * outer * block * inner;
    bool apart = (uintptr_t)dst + (uintptr_t)dst_bytes <= (uintptr_t)src ||
                 (uintptr_t)src + (uintptr_t)(bytes * outer * extent * inner) <= (uintptr_t)dst;
    if (valid == 0 || outer == 0)
        return;
    if (apart) {
        mpp_cuda_copy_box(r, mpp_stream(r), &box, from, dst);
        return;
    }
    void *aside = mpp_cuda_scratch(r, MPP_SCRATCH_PACK, (size_t)dst_bytes);
    box.dst_stride[0] = valid * inner;
    mpp_cuda_copy_box(r, mpp_stream(r), &box, from, aside);
    box.src_stride[0] = valid * inner;
    box.dst_stride[0] = block * inner;
    mpp_cuda_copy_box(r, mpp_stream(r), &box, aside, dst);
}

void mpp_slice(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, const void *src, void *dst)
{
    slice(r, 4, mask, outer, extent, inner, src, dst);
}

void mpp_slice_half(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner, const void *src, void *dst)
{
    slice(r, 2, mask, outer, extent, inner, src, dst);
}

/* ---- exchanges ----------------------------------------------------------------------------------------------------------- */

static struct mpp_box box_of(const struct mpp_piece *p)
{
    struct mpp_box box = {.n_dims = 3, .run = p->run, .bytes = p->bytes};
    for (int d = 0; d < 3; d++) {
        box.n[d] = p->n[d];
        box.src_stride[d] = p->src_stride[d];
        box.dst_stride[d] = p->dst_stride[d];
    }
    return box;
}

static void dense(const struct mpp_box *box, int64_t *stride)
{
    int64_t n = box->run;
    for (int d = box->n_dims - 1; d >= 0; d--) {
        stride[d] = n;
        n *= box->n[d];
    }
}

static int64_t elements(const struct mpp_piece *p)
{
    return p->n[0] * p->n[1] * p->n[2] * p->run;
}

/* Each member's piece is packed, exchanged and unpacked. ROOM: elements of the largest piece. */
static void exchange_pieces(struct mpp_rank *r, unsigned mask, const struct mpp_exchange *x, int64_t room, const char *src, char *dst)
{
    int n = mpp_mesh_group_size(r, mask), own = mpp_mesh_group_index(r, mask);
    int64_t from, to, bytes = x->bytes;
    struct mpp_piece p;
    cudaStream_t stream = r->device->compute;
    ncclComm_t comm = mpp_cuda_group(r, mask);
    char *out = mpp_cuda_scratch(r, MPP_SCRATCH_PACK, (size_t)(n * room * bytes));
    char *in = mpp_cuda_scratch(r, MPP_SCRATCH_UNPACK, (size_t)(n * room * bytes));
    for (int i = 0; i < n; i++)
        if (mpp_exchange_piece(r, mask, x, own, i, &from, &to, &p)) {
            struct mpp_box box = box_of(&p);
            dense(&box, box.dst_stride);
            mpp_cuda_copy_box(r, stream, &box, src + bytes * from, out + bytes * i * room);
        }
    mpp_cuda_bundle_begin(r, mask, comm);
    for (int i = 0; i < n; i++) {
        if (mpp_exchange_piece(r, mask, x, own, i, &from, &to, &p))
            MPP_NCCL_CHECK(r, mask, comm, ncclSend(out + bytes * i * room, (size_t)(elements(&p) * bytes), ncclInt8, i, comm, stream));
        if (mpp_exchange_piece(r, mask, x, i, own, &from, &to, &p))
            MPP_NCCL_CHECK(r, mask, comm, ncclRecv(in + bytes * i * room, (size_t)(elements(&p) * bytes), ncclInt8, i, comm, stream));
    }
    mpp_cuda_meets(r, MPP_WAIT_ALL_TO_ALL, (int)mask);
    mpp_cuda_bundle_end(r, mask, comm);
    for (int i = 0; i < n; i++)
        if (mpp_exchange_piece(r, mask, x, i, own, &from, &to, &p)) {
            struct mpp_box box = box_of(&p);
            dense(&box, box.src_stride);
            mpp_cuda_copy_box(r, stream, &box, in + bytes * i * room, dst + bytes * to);
        }
}

static void exchange(struct mpp_rank *r, int64_t bytes, unsigned mask, int n_dims, const int64_t *src_dims, int gather_dim,
                     int64_t gather_extent, int split_dim, const void *src, void *dst)
{
    int64_t count = 1;
    for (int d = 0; d < n_dims; d++)
        count *= src_dims[d];
    if (mpp_mesh_group_size(r, mask) == 1) {
        copy(r, dst, src, bytes * count);
        return;
    }
    struct mpp_exchange x = mpp_exchange_of(r, mask, n_dims, src_dims, gather_dim, gather_extent, split_dim);
    x.bytes = bytes;
    double begun_s = mpp_trace_begin(r);
    mpp_cuda_moves(r);
    exchange_pieces(r, mask, &x, x.d0 * x.gather_block * x.d2 * x.split_block * x.d4, src, dst);
    mpp_trace_end(r, begun_s, MPP_TRACE_ALL_TO_ALL, (int)mask, 0, bytes * count);
}

void mpp_all_to_all(struct mpp_rank *r, unsigned mask, int n_dims, const int64_t *src_dims, int gather_dim, int64_t gather_extent,
                    int split_dim, const void *src, void *dst)
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
        copy(r, dst, src, bytes);
    else
        mpp_zero(r, dst, (size_t)bytes);
}

void mpp_to_partial(struct mpp_rank *r, unsigned mask, const float *src, float *dst, int64_t count)
{
    to_partial(r, mask, src, dst, 4 * count);
}

void mpp_to_partial_half(struct mpp_rank *r, unsigned mask, const void *src, void *dst, int64_t count)
{
    to_partial(r, mask, src, dst, 2 * count);
}

/* ---- sums of 16-bit floats: 16 bits travel, sums are formed in f32 ------------------------------------------------------------ */

/* Of WHOLE elements in shares of STRIDE, how many are member M's. */
static int64_t share_of(int64_t whole, int64_t stride, int m)
{
    int64_t left = whole - m * stride;
    return left < 0 ? 0 : left < stride ? left : stride;
}

/* Share m of PARTS goes to member m, and the sum of what this one gets, and has, to OUT. IN [n, stride]: room for what comes. */
static void sum_parts(struct mpp_rank *r, unsigned mask, enum mpp_type type, const uint16_t *parts, int64_t stride, int64_t whole, uint16_t *in,
                      uint16_t *out)
{
    cudaStream_t stream = r->device->compute;
    ncclComm_t comm = mpp_cuda_group(r, mask);
    int n = mpp_mesh_group_size(r, mask), own = mpp_mesh_group_index(r, mask);
    int64_t count = share_of(whole, stride, own);
    mpp_cuda_bundle_begin(r, mask, comm);
    for (int m = 0; m < n; m++) {
        int64_t theirs = share_of(whole, stride, m);
        if (m != own && theirs > 0)
            MPP_NCCL_CHECK(r, mask, comm, ncclSend(parts + m * stride, (size_t)(2 * theirs), ncclInt8, m, comm, stream));
        if (m != own && count > 0)
            MPP_NCCL_CHECK(r, mask, comm, ncclRecv(in + m * stride, (size_t)(2 * count), ncclInt8, m, comm, stream));
    }
    mpp_cuda_meets(r, MPP_WAIT_REDUCE_SCATTER, (int)mask);
    mpp_cuda_bundle_end(r, mask, comm);
    struct mpp_half_terms t = {.n = n, .own = own, .count = count, .stride = stride, .mine = parts + own * stride, .theirs = in};
    mpp_cuda_sum_halves(r, stream, type, &t, out);
}

/* X [count] becomes its sum. Each member sums a share, which the others get; the last ones may be short, and go through scratch memory. */
static void sum_shares(struct mpp_rank *r, unsigned mask, enum mpp_type type, uint16_t *x, int64_t count)
{
    int n = mpp_mesh_group_size(r, mask), own = mpp_mesh_group_index(r, mask);
    int64_t share = (count + n * MPP_HALF_ALIGNED - 1) / (n * MPP_HALF_ALIGNED) * MPP_HALF_ALIGNED;
    uint16_t *in = mpp_cuda_scratch(r, MPP_SCRATCH_UNPACK, (size_t)(n * share) * sizeof *in), *all = x;
    if (n * share != count)
        all = mpp_cuda_scratch(r, MPP_SCRATCH_PACK, (size_t)(n * share) * sizeof *all);
    sum_parts(r, mask, type, x, share, count, in, all + own * share);
    ncclComm_t comm = mpp_cuda_group(r, mask);
    mpp_cuda_meets(r, MPP_WAIT_ALL_GATHER, (int)mask);
    MPP_NCCL_CHECK(r, mask, comm, ncclAllGather(all + own * share, all, (size_t)(2 * share), ncclInt8, comm, r->device->compute));
    if (all != x)
        copy(r, x, all, 2 * count);
}

void mpp_all_reduce_half(struct mpp_rank *r, unsigned mask, enum mpp_type type, void *x, int64_t count)
{
    if (mpp_mesh_group_size(r, mask) == 1 || count <= 0)
        return;
    double begun_s = mpp_trace_begin(r);
    for (int64_t i = 0; i < count; i += MPP_HALF_PART)
        sum_shares(r, mask, type, (uint16_t *)x + i, count - i < MPP_HALF_PART ? count - i : MPP_HALF_PART);
    mpp_trace_end(r, begun_s, MPP_TRACE_ALL_REDUCE, (int)mask, 0, 2 * count);
}

void mpp_reduce_scatter_half(struct mpp_rank *r, unsigned mask, enum mpp_type type, int64_t outer, int64_t extent, int64_t inner,
                             const void *src, void *dst)
{
    struct mpp_parts c = mpp_parts_of(r, mask, outer, extent, inner, 2);
    int64_t part = mpp_part_elements(&c), all = c.n * part;
    if (c.n == 1) {
        copy(r, dst, src, 2 * part);
        return;
    }
    double begun_s = mpp_trace_begin(r);
    const uint16_t *parts = src;
    uint16_t *in = mpp_cuda_scratch(r, MPP_SCRATCH_UNPACK, (size_t)all * sizeof *in);
    if (!c.even) {
        void *packed = mpp_cuda_scratch(r, MPP_SCRATCH_PACK, (size_t)all * sizeof *parts);
        mpp_parts_pack(r, r->device->compute, mask, &c, src, packed);
        parts = packed;
    }
    sum_parts(r, mask, type, parts, part, all, in, dst);
    mpp_trace_end(r, begun_s, MPP_TRACE_REDUCE_SCATTER, (int)mask, 0, 2 * outer * extent * inner);
}

/* ---- what the plan's workspace has to hold: nothing, where scratch memory is the device's own ---------------------------------- */

int64_t mpp_reduce_scatter_half_workspace(int64_t outer, int64_t extent, int64_t inner)
{
    (void)outer;
    (void)extent;
    (void)inner;
    return 0;
}

int64_t mpp_all_gather_workspace(int64_t outer, int64_t extent, int64_t inner)
{
    (void)outer;
    (void)extent;
    (void)inner;
    return 0;
}

int64_t mpp_reduce_scatter_workspace(int64_t outer, int64_t extent, int64_t inner)
{
    return mpp_all_gather_workspace(outer, extent, inner);
}

int64_t mpp_all_to_all_workspace(int n_dims, const int64_t *src_dims, int split_dim)
{
    (void)n_dims;
    (void)src_dims;
    (void)split_dim;
    return 0;
}
