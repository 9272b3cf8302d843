/* groups.c - NCCL's communicators: one for each group of ranks that meets. */
#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "core/fail.h"
#include "core/progress.h"
#include "core/transport.h"
#include "cuda/cuda_internal.h"
#include "cuda/parts.h"

ncclResult_t mpp_comm_settle(const struct mpp_rank *r, ncclComm_t comm, ncclResult_t code)
{
    for (int turn = 0; code == ncclInProgress && comm != NULL;) {
        mpp_cuda_leave_if_failed(r);
        mpp_cuda_nap(&turn);
        if (ncclCommGetAsyncError(comm, &code) != ncclSuccess)
            return ncclInternalError;
    }
    return code;
}

ncclResult_t mpp_comm_join(const struct mpp_rank *r, int n, ncclUniqueId id, int index, ncclComm_t *comm)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t code = ncclCommInitRankConfig(comm, n, id, index, &config);
    return mpp_comm_settle(r, *comm, code == ncclSuccess ? ncclInProgress : code);
}

void mpp_cuda_meets(struct mpp_rank *r, enum mpp_wait kind, int what)
{
    mpp_cuda_mark(r, 0);
    r->device->last = mpp_wait_word(kind, what);
    r->device->meets = true;
    mpp_wait_begin(r, kind, what);
}

void mpp_cuda_has_met(struct mpp_rank *r)
{
    mpp_wait_end(r);
    if (r->device == NULL || !r->device->meets || r->device->bundles)
        return;
    r->device->meets = false;
    mpp_cuda_mark(r, r->device->last);
}

void mpp_cuda_await(struct mpp_rank *r, cudaEvent_t event, enum mpp_wait kind, int what)
{
    mpp_cuda_mark(r, 0);
    MPP_CUDA_CHECK(r, cudaStreamWaitEvent(r->device->compute, event, 0));
    mpp_cuda_mark(r, mpp_wait_word(kind, what));
}

void mpp_comm_let_explain(const struct mpp_rank *r, ncclResult_t code)
{
    enum { EXPLAIN_S = 6 };
    double end_s = mpp_clock_s() + EXPLAIN_S + (r->rank < 8 ? r->rank : 8); /* else one rank speaks */
    if (code != ncclRemoteError || r->transport->ops->failed != NULL)
        return;
    while (mpp_clock_s() < end_s) /* signals end a nap */
        usleep(100000);
}

void mpp_nccl_check(const struct mpp_rank *r, unsigned mask, ncclComm_t comm, ncclResult_t code, const char *call)
{
    code = mpp_comm_settle(r, comm, code);
    if (code == ncclSuccess) {
        mpp_cuda_has_met((struct mpp_rank *)(uintptr_t)r);
        return;
    }
    mpp_cuda_leave_if_failed(r);
    mpp_comm_let_explain(r, code);
    const char *more = ncclGetLastError(NULL);
    mpp_fail((struct mpp_rank *)(uintptr_t)r, MPP_EXIT_SYSTEM, "rank %d, GPU %d, member %d of %d of group %u: %s: %s%s%s", r->rank,
             r->device->ordinal, mpp_mesh_group_index(r, mask), mpp_mesh_group_size(r, mask), mask, call, ncclGetErrorString(code),
             more != NULL && more[0] != '\0' ? ": " : "", more != NULL ? more : "");
}

/* The first member's id reaches the others as a sum of floats, one for each byte: the others add zeros. */
static ncclUniqueId agree_on_id(struct mpp_rank *r, unsigned mask)
{
    ncclUniqueId id;
    float bytes[NCCL_UNIQUE_ID_BYTES] = {0};
    memset(&id, 0, sizeof id);
    if (mpp_mesh_group_index(r, mask) == 0) {
        MPP_NCCL_CHECK(r, mask, NULL, ncclGetUniqueId(&id));
        for (int i = 0; i < NCCL_UNIQUE_ID_BYTES; i++)
            bytes[i] = (float)(unsigned char)id.internal[i];
    }
    r->transport->ops->all_reduce(r, mask, bytes, NCCL_UNIQUE_ID_BYTES, false);
    for (int i = 0; i < NCCL_UNIQUE_ID_BYTES; i++)
        id.internal[i] = (char)(unsigned char)bytes[i];
    return id;
}

ncclComm_t mpp_cuda_group(struct mpp_rank *r, unsigned mask)
{
    if (mpp_mesh_group_size(r, mask) == 1)
        return NULL;
    assert(mask < 2 * MPP_WORLD);
    ncclComm_t *comm = &r->device->group[mask];
    if (*comm == NULL) {
        ncclUniqueId id = agree_on_id(r, mask);
        mpp_wait_begin(r, MPP_WAIT_COMMUNICATOR, (int)mask);
        mpp_nccl_check(r, mask, NULL, mpp_comm_join(r, mpp_mesh_group_size(r, mask), id, mpp_mesh_group_index(r, mask), comm),
                       "joining a communicator");
    }
    return *comm;
}

/* ---- beside the compute stream ---- */

cudaStream_t mpp_cuda_beside(struct mpp_rank *r)
{
    struct mpp_device *d = r->device;
    MPP_CUDA_CHECK(r, cudaEventRecord(d->computed, d->compute));
    MPP_CUDA_CHECK(r, cudaStreamWaitEvent(d->communication, d->computed, 0));
    return d->communication;
}

void mpp_cuda_bundle_begin(struct mpp_rank *r, unsigned mask, ncclComm_t comm)
{
    MPP_NCCL_CHECK(r, mask, comm, ncclGroupStart());
    r->device->bundles = true;
}

void mpp_cuda_bundle_end(struct mpp_rank *r, unsigned mask, ncclComm_t comm)
{
    r->device->bundles = false; /* whatever comes of it */
    MPP_NCCL_CHECK(r, mask, comm, ncclGroupEnd());
}

void mpp_cuda_bundle_drop(struct mpp_rank *r)
{
    if (r->device->bundles)
        (void)ncclGroupEnd(); /* what it begins ends with its communicators */
    r->device->bundles = false;
}

/* Uneven parts go to scratch memory, which becomes the sum's src. There is room for a full bucket from the first on: what a bucket holds
 * may differ from pass to pass, and no memory can be made while a pass is captured. */
static void pack_bucket(struct mpp_rank *r, cudaStream_t stream, struct mpp_bucket *b)
{
    size_t bytes = (size_t)b->packed * sizeof(float), room = bytes > MPP_BUCKET_BYTES ? bytes : MPP_BUCKET_BYTES;
    float *packed = bytes > 0 ? mpp_cuda_scratch(r, MPP_SCRATCH_BESIDE, room) : NULL;
    for (int i = 0; i < b->n; i++) {
        struct mpp_begun *s = &b->sums[i];
        if (s->packed == 0)
            continue;
        struct mpp_parts c = mpp_parts_of(r, b->mask, 1, s->extent, s->inner, sizeof *packed);
        mpp_parts_pack(r, stream, b->mask, &c, s->src, packed);
        s->src = packed;
        packed += s->packed;
    }
}

void mpp_cuda_empty_bucket(struct mpp_rank *r)
{
    struct mpp_bucket *b = &r->device->bucket;
    if (b->n == 0)
        return;
    ncclComm_t comm = mpp_cuda_group(r, b->mask);
    cudaStream_t stream = mpp_cuda_beside(r);
    enum mpp_wait kind = MPP_WAIT_ALL_REDUCE;
    pack_bucket(r, stream, b);
    mpp_cuda_bundle_begin(r, b->mask, comm);
    for (int i = 0; i < b->n; i++) {
        const struct mpp_begun *s = &b->sums[i];
        kind = s->dst != NULL ? MPP_WAIT_REDUCE_SCATTER : MPP_WAIT_ALL_REDUCE;
        mpp_cuda_meets(r, kind, (int)b->mask);
        if (s->dst != NULL)
            MPP_NCCL_CHECK(r, b->mask, comm, ncclReduceScatter(s->src, s->dst, (size_t)s->count, ncclFloat32, ncclSum, comm, stream));
        else
            MPP_NCCL_CHECK(r, b->mask, comm, ncclAllReduce(s->src, s->src, (size_t)s->count, ncclFloat32, ncclSum, comm, stream));
    }
    mpp_cuda_meets(r, kind, (int)b->mask);
    mpp_cuda_bundle_end(r, b->mask, comm);
    b->n = 0;
    b->bytes = b->packed = 0;
}

void mpp_cuda_join(struct mpp_rank *r)
{
    struct mpp_device *d = r->device;
    mpp_cuda_empty_bucket(r);
    if (d->n_begun == 0 && d->n_gathered == d->n_gathers)
        return;
    MPP_CUDA_CHECK(r, cudaEventRecord(d->communicated, d->communication));
    mpp_cuda_await(r, d->communicated, MPP_WAIT_BEGUN, (1 << r->n_axes) - 1);
    d->n_begun = 0;
    d->n_gathered = d->n_gathers;
}

/* ---- ends ---- */

/* In a job all ranks have done their work by then (core/trainer.c), or it has failed. Ranks that tests make end when they like. */
void mpp_comm_end(const struct mpp_rank *r, ncclComm_t comm)
{
    if (r->impl != NULL)
        (void)ncclCommAbort(comm);
    else
        (void)ncclCommDestroy(comm);
}

void mpp_groups_free(struct mpp_rank *r)
{
    for (unsigned mask = 0; mask < 2 * MPP_WORLD; mask++)
        if (r->device->group[mask] != NULL)
            mpp_comm_end(r, r->device->group[mask]);
    memset(r->device->group, 0, sizeof r->device->group);
}
