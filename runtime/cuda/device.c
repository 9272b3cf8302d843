/* device.c - a GPU for a rank: its arena, streams and handles; copies; what failed calls say. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/device.h"
#include "core/job.h"
#include "core/options.h"
#include "core/transport.h"
#include "cuda/cuda_internal.h"

/* ---- failures -------------------------------------------------------------------------------------------- */

static int gpu_of(const struct mpp_rank *r)
{
    return r->device != NULL ? r->device->ordinal : 0;
}

void mpp_cuda_leave_if_failed(const struct mpp_rank *r)
{
    struct mpp_rank *self = (struct mpp_rank *)(uintptr_t)r;
    int code = r->transport != NULL && r->transport->ops->failed != NULL ? r->transport->ops->failed(self) : 0;
    if (code != 0)
        mpp_leave(self, code);
}

void mpp_cuda_check(const struct mpp_rank *r, cudaError_t code, const char *call)
{
    if (code == cudaSuccess)
        return;
    mpp_cuda_leave_if_failed(r);
    mpp_fail((struct mpp_rank *)(uintptr_t)r, MPP_EXIT_SYSTEM, "rank %d, GPU %d: %s: %s (%s)", r->rank, gpu_of(r), call,
             cudaGetErrorString(code), cudaGetErrorName(code));
}

void mpp_blas_check(const struct mpp_rank *r, cublasStatus_t code, const char *call)
{
    if (code != CUBLAS_STATUS_SUCCESS)
        mpp_fail((struct mpp_rank *)(uintptr_t)r, MPP_EXIT_SYSTEM, "rank %d, GPU %d: %s: %s", r->rank, gpu_of(r), call,
                 cublasLtGetStatusString(code));
}

/* ---- the process ------------------------------------------------------------------------------------------- */

bool mpp_device_has_threads(void)
{
    return false;
}

int mpp_device_threads(int ranks_here, bool under_mpi)
{
    (void)ranks_here;
    (void)under_mpi;
    return 1;
}

/* Kernels of several communicators run beside each other: none may stand behind another's in a queue that both streams share, and
 * all ranks start them in one order (newer NCCL). */
void mpp_device_prepare(void)
{
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    (void)setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
}

/* Is there a driver that this toolkit's code runs with? A machine without one fails every call alike, with a text that tells of
 * an old driver; only the driver's version tells the two apart. */
static int check_driver(const struct mpp_rank *r, struct mpp_error *error)
{
    int driver = 0, runtime = 0;
    cudaError_t code = cudaDriverGetVersion(&driver);
    if (code != cudaSuccess || driver == 0)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: no NVIDIA driver is installed on this machine (a trainer of "
                             "`make BACKEND=host` needs none)", r->rank);
    code = cudaRuntimeGetVersion(&runtime);
    if (code != cudaSuccess || driver / 1000 < runtime / 1000)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: the NVIDIA driver supports CUDA %d.%d, and this trainer was built with "
                             "CUDA %d.%d: update the driver, or build with a toolkit of CUDA %d", r->rank, driver / 1000,
                             driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10, driver / 1000);
    return MPP_EXIT_OK;
}

/* The rank's number among those of its machine, and how many they are. */
static void place_here(const struct mpp_rank *r, int *index_out, int *count_out)
{
    const struct mpp_local *local = r->impl;
    *index_out = r->rank;
    *count_out = r->n_ranks;
    if (r->transport->ops->place_here != NULL)
        r->transport->ops->place_here(r, index_out, count_out);
    if (local->job->place_here >= 0)
        *index_out = local->job->place_here;
}

/* One GPU a rank. */
static int choose_gpu(const struct mpp_rank *r, int *ordinal_out, struct mpp_error *error)
{
    char host[64] = "";
    int n = 0, index, count;
    cudaError_t code = cudaGetDeviceCount(&n);
    place_here(r, &index, &count);
    if (code == cudaErrorNoDevice || (code == cudaSuccess && n == 0))
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: no GPU on this machine (or CUDA_VISIBLE_DEVICES hides them)", r->rank);
    if (code != cudaSuccess)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: cudaGetDeviceCount: %s", r->rank, cudaGetErrorString(code));
    bool alone = n == 1 && count > 1 && getenv("CUDA_VISIBLE_DEVICES") != NULL && index > 0; /* the launcher gave each its own */
    (void)gethostname(host, sizeof host - 1);
    if (index >= n && !(alone && r->transport->ops->place_here != NULL))
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: %s has %d GPU%s for %d rank%s; plan for fewer devices, or start fewer ranks "
                             "there", r->rank, host, n, n == 1 ? "" : "s", count, count == 1 ? "" : "s");
    *ordinal_out = index < n ? index : 0;
    return MPP_EXIT_OK;
}

/* ---- opening and closing ------------------------------------------------------------------------------------- */

/* One of cuBLASLt's or CUDA's calls that make things. */
static int made(const struct mpp_rank *r, bool ok, const char *call, struct mpp_error *error)
{
    if (ok)
        return MPP_EXIT_OK;
    return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d, GPU %d: %s failed", r->rank, r->device->ordinal, call);
}

static int make_handles(struct mpp_rank *r, struct mpp_error *error)
{
    struct mpp_device *d = r->device;
    int code = made(r, cudaStreamCreateWithFlags(&d->compute, cudaStreamNonBlocking) == cudaSuccess &&
                       cudaStreamCreateWithFlags(&d->communication, cudaStreamNonBlocking) == cudaSuccess &&
                       cudaEventCreateWithFlags(&d->computed, cudaEventDisableTiming) == cudaSuccess &&
                       cudaEventCreateWithFlags(&d->communicated, cudaEventDisableTiming) == cudaSuccess,
                    "making streams and events", error);
    for (int i = 0; i < MPP_GATHERS && code == MPP_EXIT_OK; i++)
        code = made(r, cudaEventCreateWithFlags(&d->gathered[i], cudaEventDisableTiming) == cudaSuccess, "making events", error);
    if (code == MPP_EXIT_OK)
        code = made(r, mpp_cuda_marks_open(&d->marks), "making events", error);
    if (code == MPP_EXIT_OK)
        code = made(r, cublasLtCreate(&d->blas) == CUBLAS_STATUS_SUCCESS, "cublasLtCreate", error);
    d->products = mpp_products_new(d->ordinal);
    if (code == MPP_EXIT_OK)
        code = made(r, d->products != NULL, "making a table of products", error);
    if (code == MPP_EXIT_OK)
        code = mpp_cuda_allocate(r, &d->blas_workspace, MPP_BLAS_WORKSPACE_BYTES, "cuBLASLt's workspace", error);
    if (code == MPP_EXIT_OK)
        code = mpp_cuda_allocate(r, (void **)&d->factors, sizeof *d->factors, "a step's factors", error);
    d->outside_bytes = MPP_BLAS_WORKSPACE_BYTES + (int64_t)sizeof *d->factors;
    return code;
}

int mpp_device_attach(struct mpp_rank *r, int ordinal, struct mpp_error *error)
{
    struct cudaDeviceProp about;
    struct mpp_device *d = calloc(1, sizeof *d);
    if (d == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: out of memory", r->rank);
    r->device = d;
    d->ordinal = ordinal;
    cudaError_t code = cudaGetDeviceProperties(&about, ordinal);
    if (code == cudaSuccess)
        (void)snprintf(d->name, sizeof d->name, "%s", about.name);
    if (code == cudaSuccess && r->impl != NULL) /* before this process has anything there */
        mpp_cuda_note_others(r);
    if (code == cudaSuccess)
        code = cudaSetDevice(ordinal);
    if (code != cudaSuccess)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d, GPU %d: %s", r->rank, ordinal, cudaGetErrorString(code));
    d->attention = mpp_attention_path_here();
    return make_handles(r, error);
}

int mpp_device_open(struct mpp_rank *r, struct mpp_error *error)
{
    size_t bytes = r->stage->arena_bytes > 0 ? (size_t)r->stage->arena_bytes : 64;
    int ordinal = 0, code = check_driver(r, error);
    if (code == MPP_EXIT_OK)
        code = choose_gpu(r, &ordinal, error);
    if (code == MPP_EXIT_OK)
        code = mpp_device_attach(r, ordinal, error);
    if (code == MPP_EXIT_OK)
        code = mpp_graphs_open(r, error);
    if (code == MPP_EXIT_OK)
        code = mpp_cuda_allocate(r, (void **)&r->arena, bytes, "an arena", error);
    if (code != MPP_EXIT_OK)
        return code;
    r->n_threads = 1;
    r->workspace = r->arena + r->stage->workspace_offset;
    code = made(r, cudaMemsetAsync(r->arena, 0, bytes, r->device->compute) == cudaSuccess, "clearing the arena", error);
    return code;
}

void mpp_device_detach(struct mpp_rank *r)
{
    struct mpp_device *d = r->device;
    if (d == NULL)
        return;
    (void)cudaSetDevice(d->ordinal);
    mpp_graphs_free(r);
    mpp_groups_free(r);
    mpp_channels_free(r);
    if (d->compute != NULL)
        (void)cudaStreamSynchronize(d->compute); /* for nobody: its communicators have ended */
    for (int i = 0; i < MPP_N_SCRATCH; i++)
        (void)cudaFree(d->scratch[i]);
    for (int i = 0; i < d->n_outgrown; i++)
        (void)cudaFree(d->outgrown[i]);
    (void)cudaFree(d->factors);
    (void)cudaFree(d->values);
    (void)cudaFree(d->blas_workspace);
    free(d->products);
    if (d->blas != NULL)
        (void)cublasLtDestroy(d->blas);
    if (d->computed != NULL)
        (void)cudaEventDestroy(d->computed);
    if (d->communicated != NULL)
        (void)cudaEventDestroy(d->communicated);
    for (int i = 0; i < MPP_GATHERS; i++)
        if (d->gathered[i] != NULL)
            (void)cudaEventDestroy(d->gathered[i]);
    mpp_cuda_marks_close(&d->marks);
    if (d->compute != NULL)
        (void)cudaStreamDestroy(d->compute);
    if (d->communication != NULL)
        (void)cudaStreamDestroy(d->communication);
    free(d);
    r->device = NULL;
}

void mpp_device_close(struct mpp_rank *r)
{
    if (r->device != NULL)
        (void)cudaSetDevice(r->device->ordinal);
    void *arena = r->arena;
    mpp_device_detach(r);
    (void)cudaFree(arena);
    r->arena = NULL;
}

void mpp_device_abandon(struct mpp_rank *r)
{
    if (r->device == NULL)
        return;
    mpp_cuda_bundle_drop(r);
    mpp_graphs_free(r);
    mpp_groups_free(r);
    mpp_channels_free(r);
}

void mpp_cuda_nap(int *turn)
{
    enum { TURNS = 1000, NAP_US = 50 };
    if (++*turn < TURNS)
        sched_yield();
    else
        usleep(NAP_US);
}

void mpp_cuda_wait_for(struct mpp_rank *r, cudaStream_t stream)
{
    cudaError_t code;
    for (int turn = 0; (code = cudaStreamQuery(stream)) == cudaErrorNotReady;) {
        uint64_t word;
        bool passed = mpp_cuda_passed(r, &word);
        if (turn == 0 || passed)
            mpp_wait_begin_gpu(r, stream == r->device->compute ? word : r->device->last);
        mpp_cuda_leave_if_failed(r);
        mpp_cuda_nap(&turn);
    }
    mpp_cuda_check(r, code, "cudaStreamQuery");
    mpp_wait_end(r);
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* From memory that is not pinned: CUDA has read FROM when the call returns. What is longer than its staging buffers waits for the stream:
 * here, where marks that are passed are moves and a rank leaves with its job, and not in the driver. */
void mpp_device_put(struct mpp_rank *r, void *to_device, const void *from, size_t bytes)
{
    enum { STAGED_BYTES = 64 << 10 };
    uint64_t word = 0;
    if (r->device != NULL && bytes > STAGED_BYTES)
        mpp_cuda_wait_for(r, r->device->compute);
    if (r->device != NULL)
        (void)mpp_cuda_passed(r, &word);
    mpp_wait_begin_gpu(r, word);
    MPP_CUDA_CHECK(r, cudaMemcpyAsync(to_device, from, bytes, cudaMemcpyHostToDevice, mpp_stream(r)));
    mpp_wait_end(r);
}

void mpp_device_get(struct mpp_rank *r, void *to, const void *from_device, size_t bytes)
{
    mpp_cuda_wait_for(r, mpp_stream(r));
    MPP_CUDA_CHECK(r, cudaMemcpyAsync(to, from_device, bytes, cudaMemcpyDeviceToHost, mpp_stream(r)));
    mpp_cuda_wait_for(r, mpp_stream(r));
}

void mpp_copy(struct mpp_rank *r, void *dst, const void *src, size_t bytes)
{
    if (dst != src && bytes > 0)
        MPP_CUDA_CHECK(r, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, mpp_stream(r)));
}

void mpp_zero(struct mpp_rank *r, void *x, size_t bytes)
{
    if (bytes > 0)
        MPP_CUDA_CHECK(r, cudaMemsetAsync(x, 0, bytes, mpp_stream(r)));
}

void mpp_device_synchronize(struct mpp_rank *r)
{
    if (r->device == NULL)
        return;
    mpp_cuda_wait_for(r, r->device->compute);
    mpp_cuda_tidy(r);
}

const char *mpp_device_describe(const struct mpp_rank *r, char *text, size_t n)
{
    static const char *const attention[] = {
        [MPP_ATTENTION_MMA] = ", attention of bf16 and fp16 on tensor cores",
        [MPP_ATTENTION_NO_MMA] = ", attention without tensor cores (MPP_ATTENTION=mma takes a GPU, and CUDA_ARCH, of sm_80 or later)",
    };
    const char *path = attention[r->device->attention];
    (void)snprintf(text, n, "%s each%s%s%s", r->device->name,
                   mpp_products_tf32(r->device->products) ? ", products of f32 in TF32" : "", path != NULL ? path : "",
                   r->device->graphs != NULL ? ", CUDA graphs" : "");
    return text;
}
