/* What sums over ranks ask of NCCL: how often it is called, where begun sums wait for each other, and how many bytes leave a rank. NCCL's
 * functions are wrapped by the linker (meson.build); three and four ranks are threads. */
#include <assert.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/runtime_sizes.h"
#include "core/half.h"
#include "core/job.h"
#include "core/transport.h"
#include "cuda/cuda_internal.h"

enum { MOST = 4 };

_Static_assert((int)MPP_SIZES_BUCKET_BYTES == (int)MPP_BUCKET_BYTES && (int)MPP_SIZES_HALF_PART == (int)MPP_HALF_PART &&
                   (int)MPP_SIZES_HALF_ALIGNED == (int)MPP_HALF_ALIGNED && MPP_SIZES_BLAS_BYTES == MPP_BLAS_WORKSPACE_BYTES &&
                   sizeof(struct mpp_step_factors) + sizeof(struct mpp_step_values) <= MPP_SIZES_SMALL_BYTES,
               "what codegen/beside.c counts is what the runtime takes");

static atomic_int passed, failed;

static void expect(bool ok, const char *what, const struct mpp_rank *r, double found, double wanted)
{
    atomic_fetch_add(ok ? &passed : &failed, 1);
    if (!ok)
        fprintf(stderr, "failed: %s, rank %d of %d: %.0f instead of %.0f\n", what, r->rank, r->n_ranks, found, wanted);
}

/* ---- what a rank asked of NCCL ---- */

static _Thread_local int depth, launches;
static _Thread_local double sent; /* bytes that leave the rank where all go round a ring */

static void launched(void)
{
    launches += depth == 0;
}

ncclResult_t __real_ncclGroupStart(void);
ncclResult_t __real_ncclGroupEnd(void);
ncclResult_t __real_ncclAllReduce(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                  cudaStream_t stream);
ncclResult_t __real_ncclReduceScatter(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                      cudaStream_t stream);
ncclResult_t __real_ncclAllGather(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream);
ncclResult_t __real_ncclSend(const void *src, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t __wrap_ncclGroupStart(void);
ncclResult_t __wrap_ncclGroupEnd(void);
ncclResult_t __wrap_ncclAllReduce(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                  cudaStream_t stream);
ncclResult_t __wrap_ncclReduceScatter(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                      cudaStream_t stream);
ncclResult_t __wrap_ncclAllGather(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream);
ncclResult_t __wrap_ncclSend(const void *src, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);

static _Thread_local int members; /* of the group that a test's sums are over */

ncclResult_t __wrap_ncclGroupStart(void)
{
    depth++;
    return __real_ncclGroupStart();
}

ncclResult_t __wrap_ncclGroupEnd(void)
{
    depth--;
    launched();
    return __real_ncclGroupEnd();
}

ncclResult_t __wrap_ncclAllReduce(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                  cudaStream_t stream)
{
    launched();
    sent += 2.0 * 4.0 * (double)count * (members - 1) / members;
    return __real_ncclAllReduce(src, dst, count, type, op, comm, stream);
}

ncclResult_t __wrap_ncclReduceScatter(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                      cudaStream_t stream)
{
    launched();
    sent += 4.0 * (double)count * (members - 1);
    return __real_ncclReduceScatter(src, dst, count, type, op, comm, stream);
}

ncclResult_t __wrap_ncclAllGather(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)
{
    launched();
    assert(type == ncclInt8);
    sent += (double)count * (members - 1);
    return __real_ncclAllGather(src, dst, count, type, comm, stream);
}

ncclResult_t __wrap_ncclSend(const void *src, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    launched();
    assert(type == ncclInt8);
    sent += (double)count;
    return __real_ncclSend(src, count, type, peer, comm, stream);
}

/* ---- begun sums ---- */

static float *ones(int64_t n, float x)
{
    float *y = malloc((size_t)(n + 1) * sizeof *y);
    for (int64_t i = 0; i < n; i++)
        y[i] = x;
    return y;
}

enum { SUMS = 6 };
struct sum {
    unsigned mask;
    int64_t extent; /* of a reduce-scatter over [extent, 3] */
    int64_t count;  /* of an all-reduce */
    float *src, *dst;
};

static void begin(struct mpp_rank *r, struct sum *s)
{
    s->src = ones(s->count + 3 * s->extent, (float)(r->rank + 1));
    s->dst = ones(3 * s->extent, -1);
    if (s->extent > 0)
        mpp_reduce_scatter_begin(r, s->mask, 1, s->extent, 3, s->src, s->dst);
    else
        mpp_all_reduce_begin(r, s->mask, s->src, s->count);
}

static bool ended_well(struct mpp_rank *r, const struct sum *s)
{
    float want = 0;
    struct mpp_extent mine = mpp_extent_of(r, s->extent, s->mask);
    int64_t n = s->extent > 0 ? 3 * mine.valid : s->count;
    bool ok = true;
    for (int m = 0; m < mpp_mesh_group_size(r, s->mask); m++)
        want += (float)(mpp_mesh_member(r, s->mask, m) + 1);
    for (int64_t i = 0; i < n; i++)
        ok = ok && (s->extent > 0 ? s->dst[i] : s->src[i]) == want;
    return ok;
}

/* N sums are begun, of which BEGIN go to NCCL at once, and AT_END launches later all are there. */
static void check_begun(struct mpp_rank *r, const char *what, struct sum *sums, int n, int at_once, int in_all)
{
    launches = 0;
    for (int i = 0; i < n; i++)
        begin(r, &sums[i]);
    expect(launches == at_once, what, r, launches, at_once);
    mpp_wait(r);
    expect(launches == in_all, what, r, launches, in_all);
    for (int i = 0; i < n; i++) {
        expect(ended_well(r, &sums[i]), what, r, i, -1);
        free(sums[i].src);
        free(sums[i].dst);
    }
}

static void check_buckets(struct mpp_rank *r)
{
    struct sum small[SUMS] = {{1, 0, 5, NULL, NULL}, {1, 12, 0, NULL, NULL}, {1, 7, 0, NULL, NULL}, {1, 0, 70, NULL, NULL},
                              {1, 1, 0, NULL, NULL}, {1, 11, 0, NULL, NULL}};
    check_begun(r, "small sums, split or not, even or not, are one call", small, SUMS, 0, 1);
    expect(r->device->scratch_bytes[MPP_SCRATCH_BESIDE] == MPP_BUCKET_BYTES, "the first bucket has room for a full one", r,
           (double)r->device->scratch_bytes[MPP_SCRATCH_BESIDE], MPP_BUCKET_BYTES);
    struct sum large[2] = {{1, 0, 3, NULL, NULL}, {1, MPP_BUCKET_BYTES / 12 + 12, 0, NULL, NULL}};
    check_begun(r, "a large one waits for no others", large, 2, 1, 1);
    expect(r->device->scratch_bytes[MPP_SCRATCH_BESIDE] > MPP_BUCKET_BYTES, "it was packed", r,
           (double)r->device->scratch_bytes[MPP_SCRATCH_BESIDE], MPP_BUCKET_BYTES);
    size_t held = r->device->scratch_bytes[MPP_SCRATCH_BESIDE];
    struct sum two[2] = {{1, MPP_BUCKET_BYTES / 24 + 1, 0, NULL, NULL}, {1, MPP_BUCKET_BYTES / 24 + 1, 0, NULL, NULL}};
    check_begun(r, "what is packed together stays below the bucket's bytes", two, 2, 1, 2);
    expect(r->device->scratch_bytes[MPP_SCRATCH_BESIDE] == held, "scratch memory of the largest", r,
           (double)r->device->scratch_bytes[MPP_SCRATCH_BESIDE], (double)held);
}

static void check_groups(struct mpp_rank *r)
{
    struct sum sums[4] = {{1, 0, 5, NULL, NULL}, {1, 6, 0, NULL, NULL}, {2, 0, 5, NULL, NULL}, {2, 7, 0, NULL, NULL}};
    check_begun(r, "one call for each group", sums, 4, 1, 2);
}

/* ---- 16 bits ---- */

/* 2 bytes of each element leave a rank twice in an all-reduce, once in a reduce-scatter, but for its own share. */
static void check_halves(struct mpp_rank *r, int64_t count)
{
    int n = mpp_mesh_group_size(r, 1);
    int64_t share = (count + n * MPP_HALF_ALIGNED - 1) / (n * MPP_HALF_ALIGNED) * MPP_HALF_ALIGNED;
    uint16_t *x = malloc((size_t)(count + 1) * sizeof *x), *dst = malloc((size_t)(count + 1) * sizeof *dst);
    members = n;
    for (int64_t i = 0; i < count; i++)
        x[i] = mpp_half_of(MPP_TYPE_BF16, 2);
    struct mpp_extent mine = mpp_extent_of(r, count, 1);
    sent = 0;
    mpp_reduce_scatter_half(r, 1, MPP_TYPE_BF16, 1, count, 1, x, dst);
    double one = 2.0 * (double)mine.padded * (n - 1);
    expect(sent <= one && sent >= one - 2.0 * (double)(n * mine.padded - count), "a reduce-scatter's bytes", r, sent, one);
    sent = 0;
    mpp_all_reduce_half(r, 1, MPP_TYPE_BF16, x, count);
    double most = 2 * 2.0 * (double)share * (n - 1), least = most - 2.0 * (double)(n * share - count);
    expect(sent <= most && sent >= least, "an all-reduce's bytes", r, sent, most);
    bool ok = true;
    for (int64_t i = 0; i < count; i++)
        ok = ok && x[i] == mpp_half_of(MPP_TYPE_BF16, (float)(2 * n)) && (i >= mine.valid || dst[i] == x[i]);
    expect(ok, "sums in bf16", r, 0, 0);
    free(x);
    free(dst);
}

/* ---- ranks ---- */

struct job_rank {
    struct mpp_rank r;
    struct mpp_local local;
};

static void *rank_main(void *arg)
{
    struct job_rank *j = arg;
    if (setjmp(j->local.leave) != 0) {
        expect(false, "a rank has left", &j->r, 0, 0);
        return NULL;
    }
    (void)mpp_test_device(&j->r);
    members = 1;
    if (j->r.n_axes == 2)
        check_groups(&j->r);
    else
        check_buckets(&j->r);
    check_halves(&j->r, 1);
    check_halves(&j->r, 3 * 4 * MPP_HALF_ALIGNED * 5);
    check_halves(&j->r, 10007);
    return NULL;
}

static void run(int n_axes, const int *sizes)
{
    struct mpp_stage stage = {.n_axes = n_axes, .axis_size = {sizes[0], n_axes > 1 ? sizes[1] : 0}};
    const struct mpp_stage *stages[] = {&stage};
    struct mpp_program program = {.n_stages = 1, .stages = stages};
    struct mpp_error error;
    struct mpp_transport *transport = mpp_transport_threads_new(&program, &error);
    static struct job_rank ranks[MOST];
    pthread_t threads[MOST];
    int n = n_axes > 1 ? sizes[0] * sizes[1] : sizes[0];
    assert(transport != NULL && n <= MOST);
    for (int i = 0; i < n; i++) {
        ranks[i] = (struct job_rank){.r = {.transport = transport}};
        ranks[i].r.impl = &ranks[i].local;
        mpp_mesh_place(&ranks[i].r, &program, i);
        pthread_create(&threads[i], NULL, rank_main, &ranks[i]);
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    transport->ops->free(transport);
}

int main(void)
{
    run(1, (const int[]){3});
    run(2, (const int[]){2, 2});
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
