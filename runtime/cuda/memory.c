/* memory.c - what a rank allocates on its GPU, what is said where there is not enough, and what it came to beside the arena. */
#include <stdio.h>
#include <string.h>

#include "core/device.h"
#include "core/job.h"
#include "core/options.h"
#include "core/progress.h"
#include "core/transport.h"
#include "cuda/cuda_internal.h"
#include "cuda/nvml.h"

/* "the plan counts on 1.2 GB for the arena and 40.1 MB beside it"; nothing for ranks that tests make. */
static void tell_plan(const struct mpp_rank *r, char *text, size_t n)
{
    const struct mpp_stage *s = r->stage;
    char arena[32], beside[32];
    text[0] = '\0';
    if (s == NULL)
        return;
    mpp_bytes_print(s->arena_bytes, arena, sizeof arena);
    mpp_bytes_print(s->beside_bytes, beside, sizeof beside);
    int at = snprintf(text, n, "; the plan's report counts an arena of %lld bytes (%s)", (long long)s->arena_bytes, arena);
    if (s->beside_bytes > 0)
        (void)snprintf(text + at, n - (size_t)at, " and %lld bytes (%s) beside it", (long long)s->beside_bytes, beside);
}

int mpp_cuda_allocate(struct mpp_rank *r, void **out, size_t bytes, const char *what, struct mpp_error *error)
{
    cudaError_t code = cudaMalloc(out, bytes);
    if (code == cudaSuccess)
        return MPP_EXIT_OK;
    const struct mpp_device *d = r->device;
    size_t available = 0, total = 0;
    char wanted[32], left[32], all[32], plan[192];
    (void)cudaGetLastError();
    (void)cudaMemGetInfo(&available, &total);
    mpp_bytes_print((int64_t)bytes, wanted, sizeof wanted);
    mpp_bytes_print((int64_t)available, left, sizeof left);
    mpp_bytes_print((int64_t)total, all, sizeof all);
    tell_plan(r, plan, sizeof plan);
    return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d, GPU %d (%s): out of memory: %s of %zu bytes (%s) where %zu bytes (%s) of %s "
                         "are free%s%s%s: %s", r->rank, d->ordinal, d->name, what, bytes, wanted, available, left, all, plan,
                         d->others[0] != '\0' ? "; on this GPU " : "", d->others, cudaGetErrorString(code));
}

void mpp_cuda_tidy(struct mpp_rank *r)
{
    struct mpp_device *d = r->device;
    if (d->n_outgrown == 0 || cudaStreamQuery(d->compute) != cudaSuccess || cudaStreamQuery(d->communication) != cudaSuccess ||
        mpp_channels_busy(r) != NULL)
        return;
    for (int i = 0; i < d->n_outgrown; i++)
        MPP_CUDA_CHECK(r, cudaFree(d->outgrown[i]));
    d->outside_bytes -= d->outgrown_bytes;
    d->outgrown_bytes = d->n_outgrown = 0;
}

/* The same, once the GPU is done. */
static void wait_and_tidy(struct mpp_rank *r)
{
    for (cudaStream_t busy; (busy = mpp_channels_busy(r)) != NULL;)
        mpp_cuda_wait_for(r, busy);
    mpp_cuda_tidy(r);
}

/* A step that needs more than the ones before: what it holds already is freed later, or where memory is short. */
static void outgrow(struct mpp_rank *r, enum mpp_scratch kind)
{
    struct mpp_device *d = r->device;
    mpp_cuda_wait_for(r, d->communication);
    mpp_cuda_wait_for(r, d->compute);
    mpp_graphs_forget(r);
    if (d->n_outgrown == MPP_OUTGROWN)
        wait_and_tidy(r);
    if (d->scratch[kind] == NULL)
        return;
    d->outgrown[d->n_outgrown++] = d->scratch[kind];
    d->outgrown_bytes += (int64_t)d->scratch_bytes[kind];
    d->scratch[kind] = NULL;
    d->scratch_bytes[kind] = 0;
    mpp_cuda_tidy(r);
}

void *mpp_cuda_scratch(struct mpp_rank *r, enum mpp_scratch kind, size_t bytes)
{
    struct mpp_device *d = r->device;
    if (bytes <= d->scratch_bytes[kind])
        return d->scratch[kind];
    struct mpp_error error;
    outgrow(r, kind);
    int code = mpp_cuda_allocate(r, &d->scratch[kind], bytes, "room for sums and messages", &error);
    if (code != MPP_EXIT_OK && d->n_outgrown > 0) {
        wait_and_tidy(r);
        code = mpp_cuda_allocate(r, &d->scratch[kind], bytes, "room for sums and messages", &error);
    }
    if (code != MPP_EXIT_OK)
        mpp_fail(r, code, "%s", error.text);
    d->scratch_bytes[kind] = bytes;
    d->outside_bytes += (int64_t)bytes;
    return d->scratch[kind];
}

void mpp_cuda_note_others(struct mpp_rank *r)
{
    struct mpp_device *d = r->device;
    if (mpp_nvml_others(d->ordinal, d->others, sizeof d->others))
        mpp_note("rank %d, GPU %d (%s) is not free: %s", r->rank, d->ordinal, d->name, d->others);
}

bool mpp_device_conclude(struct mpp_rank *r, char *text, size_t n)
{
    const struct mpp_device *d = r->device;
    int64_t planned = r->stage->beside_bytes;
    wait_and_tidy(r);
    /* In MB, which floats hold well enough to be read. */
    float told[3] = {(float)((double)d->outside_bytes / 1e6), (float)((double)planned / 1e6), d->outside_bytes > planned};
    r->transport->ops->all_reduce(r, MPP_WORLD, told, 3, true);
    char power[64];
    int at = snprintf(text, n, "beside its arena a GPU holds at most %.1f MB of the trainer's", (double)told[0]);
    if (told[1] > 0 && at < (int)n)
        at += snprintf(text + at, n - (size_t)at, "; the plan counts %.1f MB%s", (double)told[1],
                       told[2] > 0 ? ", which is not enough for all of them" : "");
    if (((const struct mpp_local *)r->impl)->job->options->profile != NULL && mpp_nvml_power(d->ordinal, power, sizeof power) && at < (int)n)
        (void)snprintf(text + at, n - (size_t)at, "; GPU %d: %s", d->ordinal, power);
    return true;
}
