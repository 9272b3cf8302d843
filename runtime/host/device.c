/* device.c - a rank's tensors in the memory of the process, its kernels on threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/device.h"
#include "core/job.h"
#include "core/options.h"
#include "threads.h"

bool mpp_device_has_threads(void)
{
    return mpp_threads_built();
}

int mpp_device_threads(int ranks_here, bool under_mpi)
{
    return mpp_threads_share(ranks_here, under_mpi);
}

void mpp_device_prepare(void)
{
    mpp_blas_alone();
}

int mpp_device_open(struct mpp_rank *r, struct mpp_error *error)
{
    const struct mpp_stage *s = r->stage;
    const struct mpp_job *job = ((struct mpp_local *)r->impl)->job;
    void *arena = NULL;
    if (posix_memalign(&arena, 64, (size_t)(s->arena_bytes > 0 ? s->arena_bytes : 64)) != 0)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: out of memory: an arena of %lld bytes", r->rank,
                             (long long)s->arena_bytes);
    memset(arena, 0, (size_t)s->arena_bytes); /* first touched by the rank's own thread */
    r->arena = arena;
    r->workspace = r->arena + s->workspace_offset;
    if (!mpp_threads_begin(r, (int)job->options->threads, job->local_ranks))
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: out of memory, or no more threads", r->rank);
    return MPP_EXIT_OK;
}

void mpp_device_close(struct mpp_rank *r)
{
    mpp_threads_end(r);
    free(r->arena);
    r->arena = NULL;
}

void mpp_device_abandon(struct mpp_rank *r)
{
    (void)r; /* who waits looks whether the job has failed */
}

void mpp_device_put(struct mpp_rank *r, void *to_device, const void *from, size_t bytes)
{
    (void)r;
    memcpy(to_device, from, bytes);
}

void mpp_device_get(struct mpp_rank *r, void *to, const void *from_device, size_t bytes)
{
    (void)r;
    memcpy(to, from_device, bytes);
}

void mpp_copy(struct mpp_rank *r, void *dst, const void *src, size_t bytes)
{
    (void)r;
    if (dst != src && bytes > 0)
        memcpy(dst, src, bytes);
}

void mpp_zero(struct mpp_rank *r, void *x, size_t bytes)
{
    (void)r;
    if (bytes > 0)
        memset(x, 0, bytes);
}

void mpp_device_step(struct mpp_rank *r)
{
    (void)r;
}

void mpp_device_pass(struct mpp_rank *r, enum mpp_pass pass, void (*work)(struct mpp_rank *r))
{
    (void)pass;
    work(r);
}

void mpp_device_synchronize(struct mpp_rank *r)
{
    (void)r;
}

bool mpp_device_conclude(struct mpp_rank *r, char *text, size_t n)
{
    (void)r;
    (void)text;
    (void)n;
    return false;
}

const char *mpp_device_describe(const struct mpp_rank *r, char *text, size_t n)
{
    (void)snprintf(text, n, "%d thread%s each", r->n_threads, r->n_threads == 1 ? "" : "s");
    return text;
}
