/* cuda_internal.h - what the CUDA runtime keeps for a rank, and how its calls fail.
 *
 *     MPP_CUDA_CHECK(r, cudaMemsetAsync(x, 0, bytes, mpp_stream(r)));   // leaves the rank with a message where it fails
 *     float *sums = mpp_cuda_scratch(r, MPP_SCRATCH_SUMS, bytes);       // device memory, until the next call of its kind
 *
 * All of it is the rank's own: only its thread calls. */
#ifndef MPP_CUDA_INTERNAL_H
#define MPP_CUDA_INTERNAL_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/waits.h"
#include "mpp_rt.h"

#ifdef __cplusplus
extern "C" {
#endif

struct mpp_error;
struct mpp_products; /* chosen algorithms of cuBLASLt (gemm.c) */
struct mpp_channels; /* communicators of transfers (transfers.c) */
struct mpp_graphs;   /* passes that are launched as graphs (graph.c) */

/* Device memory beside the arena, by use. Each grows to what is asked of it, which the first step does; later steps
 * allocate nothing. */
enum mpp_scratch {
    MPP_SCRATCH_SUMS,    /* partial sums of kernels */
    MPP_SCRATCH_ROWS,    /* values of rows that travel between ranks */
    MPP_SCRATCH_PACK,    /* what a collective sends, packed */
    MPP_SCRATCH_UNPACK,  /* and what it receives */
    MPP_SCRATCH_BESIDE,  /* of sums and gathers that go on beside the rank's work */
    MPP_N_SCRATCH,
};

enum { MPP_GATHERS = 32, MPP_BUCKET_SUMS = 64, MPP_OUTGROWN = 64, MPP_MARKS = 64 };

/* Of begun sums that wait for each other: where a sum takes several times as long as it takes to begin one, 8 MiB at 100 GB/s are 80 us. */
enum { MPP_BUCKET_BYTES = 8 << 20 };

/* Of an all-reduce of 16-bit floats: elements at a time, and what each rank's share of them is a multiple of. */
enum { MPP_HALF_PART = 1 << 25, MPP_HALF_ALIGNED = 64 };

/* A sum that was begun: of COUNT floats at SRC in place, or a reduce-scatter to COUNT of DST. */
struct mpp_begun {
    float *src, *dst;        /* dst NULL: in place */
    int64_t count;
    int64_t extent, inner;   /* of a reduce-scatter; where parts are uneven, */
    int64_t packed;          /* the floats of all of them, packed; else 0 */
};

/* Sums of one group that were begun and are not yet given to NCCL, which does them as one. */
struct mpp_bucket {
    unsigned mask;
    int n;
    struct mpp_begun sums[MPP_BUCKET_SUMS];
    int64_t bytes, packed;
};

/* Where the compute stream has come to (marks.c). */
struct mpp_mark {
    cudaEvent_t event;
    uint64_t word; /* what took other ranks since the mark before (core/waits.h); 0: nothing, the GPU had work of its own */
};

struct mpp_marks {
    int first, n;           /* those that the GPU has not passed */
    int every, passed_over; /* places between two of them */
    uint64_t word;          /* of the mark to come */
    struct mpp_mark marks[MPP_MARKS];
};

/* What an update takes from the count of steps that were not skipped (AdamW's bias correction, SGD's first velocity). */
struct mpp_step_factors {
    double correct1, root; /* 1 - beta1^t, 1 / sqrt(1 - beta2^t) */
    bool first;
};

/* What kernels are given that changes from step to step. Kernels of a graph find it on the device. */
struct mpp_step_values {
    int64_t step;
    double lr;
    struct mpp_step_factors factors; /* of steps that skip nothing; where the loss is scaled, mpp_device.factors tells */
};

/* How attention of 16-bit tensors is computed (kernels_attention_mma.cu). */
enum mpp_attention_path {
    MPP_ATTENTION_SIMT,
    MPP_ATTENTION_MMA,    /* on tensor cores, up to a head size: MPP_ATTENTION=mma asked for it */
    MPP_ATTENTION_NO_MMA, /* it did, of a GPU, or code, older than sm_80 */
};

struct mpp_device {
    int ordinal;                          /* of the GPU */
    char name[256];
    cudaStream_t compute, communication;
    cudaEvent_t computed, communicated;   /* what the other stream waits for */
    cudaEvent_t gathered[MPP_GATHERS];    /* the ends of the last gathers beside the rank's work, in turns */
    int64_t n_gathers, n_gathered;        /* that were begun so far; the first ones, for which the compute stream waits already */
    struct mpp_bucket bucket;
    bool bundles;                         /* between mpp_cuda_bundle_begin and its end */
    uint64_t last;                        /* what it was last given that takes other ranks (core/waits.h); 0: nothing */
    bool meets;                           /* it is being given that */
    struct mpp_marks marks;
    int n_begun;                          /* sums on the communication stream since the last mpp_wait */
    cublasLtHandle_t blas;
    void *blas_workspace;
    struct mpp_products *products;
    enum mpp_attention_path attention;
    ncclComm_t group[2 * MPP_WORLD];      /* by mask; NULL: not made yet, or of one rank */
    struct mpp_channels *channels;
    void *scratch[MPP_N_SCRATCH];
    size_t scratch_bytes[MPP_N_SCRATCH];
    void *outgrown[MPP_OUTGROWN];         /* scratch memory that became too small, until the GPU is idle */
    int n_outgrown;
    int64_t outgrown_bytes;
    struct mpp_step_factors *factors;     /* on the device; made by mpp_loss_scale */
    struct mpp_graphs *graphs;            /* NULL: every pass launches its kernels itself */
    struct mpp_step_values *values;       /* of the running step, on the device; NULL where there are no graphs */
    const struct mpp_step_values *kept;   /* the same while a graph is captured; else NULL */
    const float *skipped;                 /* the device's count of skipped steps; NULL: r->skipped tells */
    int64_t outside_bytes;                /* allocated beside the arena */
    char others[192];                     /* that held memory of the GPU when this rank came (nvml.h) */
};

/* The rank's stream of kernels; the default stream where it has no device. */
static inline cudaStream_t mpp_stream(const struct mpp_rank *r)
{
    return r->device != NULL ? r->device->compute : (cudaStream_t)0;
}

/* Where kernels that are launched now find a step's values; NULL: in their arguments. */
static inline const struct mpp_step_values *mpp_kept_values(const struct mpp_rank *r)
{
    return r->device != NULL ? r->device->kept : NULL;
}

/* What r->step's update takes from the steps before (kernels_optimizer.cu). */
struct mpp_step_factors mpp_step_factors_of(const struct mpp_rank *r);

/* A turn of a wait, the first of them with TURN 0: soon a nap, so that others get on. */
void mpp_cuda_nap(int *turn);

/* core/mesh.c */
void mpp_rank_moves(struct mpp_rank *r);

/* marks.c. The rank works, and its GPU after what it was given so far: called where a contraction, an attention or a collective
 * begins. */
void mpp_cuda_moves(struct mpp_rank *r);
/* The compute stream was last given something that takes other ranks, as WORD tells; 0: work of its own. */
void mpp_cuda_mark(struct mpp_rank *r, uint64_t word);
/* Has the GPU passed marks since the last call? *WORD_OUT: what it is at. */
bool mpp_cuda_passed(struct mpp_rank *r, uint64_t *word_out);
bool mpp_cuda_marks_open(struct mpp_marks *marks);
void mpp_cuda_marks_close(struct mpp_marks *marks);

/* The rank gives its GPU work that takes other ranks, and waits until it has; MPP_NCCL_CHECK of that call ends the wait by
 * mpp_cuda_has_met. */
void mpp_cuda_meets(struct mpp_rank *r, enum mpp_wait kind, int what);
void mpp_cuda_has_met(struct mpp_rank *r);
/* The compute stream waits for EVENT, which takes other ranks. */
void mpp_cuda_await(struct mpp_rank *r, cudaEvent_t event, enum mpp_wait kind, int what);

/* Leaves where the job has failed: a call that fails then has nothing to add. */
void mpp_cuda_leave_if_failed(const struct mpp_rank *r);

/* A failed call ends the job: "rank R, GPU G: CALL: text of CODE". */
void mpp_cuda_check(const struct mpp_rank *r, cudaError_t code, const char *call);
void mpp_blas_check(const struct mpp_rank *r, cublasStatus_t code, const char *call);
void mpp_nccl_check(const struct mpp_rank *r, unsigned mask, ncclComm_t comm, ncclResult_t code, const char *call);
#define MPP_CUDA_CHECK(r, call) mpp_cuda_check(r, call, #call)
#define MPP_BLAS_CHECK(r, call) mpp_blas_check(r, call, #call)
#define MPP_NCCL_CHECK(r, mask, comm, call) mpp_nccl_check(r, mask, comm, call, #call)

/* Device memory as *OUT: MPP_EXIT_SYSTEM and what was wanted, what is free and what the plan counts, where there is not enough. */
struct mpp_error;
int mpp_cuda_allocate(struct mpp_rank *r, void **out, size_t bytes, const char *what, struct mpp_error *error);

/* A note of other processes on the rank's GPU; errors repeat it. */
void mpp_cuda_note_others(struct mpp_rank *r);

/* At least BYTES of device memory, valid until the next call with this KIND; aligned as cudaMalloc's. */
void *mpp_cuda_scratch(struct mpp_rank *r, enum mpp_scratch kind, size_t bytes);
/* Frees what scratch memory has outgrown, where all of the GPU's streams are done: cudaFree waits for them, and a send among
 * them for its receiver. */
void mpp_cuda_tidy(struct mpp_rank *r);

/* y [cols] = (add ? y : 0) + the sums over the parts of mpp_column_parts(rows, cols) (launch.cuh). */
void mpp_columns_finish(struct mpp_rank *r, int64_t rows, int64_t cols, const double *parts, bool add, float *y);

/* cuBLASLt's own memory. */
#define MPP_BLAS_WORKSPACE_BYTES ((int64_t)32 << 20)

/* Polls until STREAM has done its work; a rank whose job has failed leaves. Meanwhile the rank moves as its GPU does. */
void mpp_cuda_wait_for(struct mpp_rank *r, cudaStream_t stream);

/* groups.c. The communication stream goes on once the compute stream has done what it was given. */
cudaStream_t mpp_cuda_beside(struct mpp_rank *r);
/* Sums that wait in r->device->bucket begin. */
void mpp_cuda_empty_bucket(struct mpp_rank *r);
/* What NCCL is called for between the two begins at the end, as one. A rank that leaves in between closes the bundle first
 * (mpp_cuda_bundle_drop): else communicators that it aborts would wait for the end, too. */
void mpp_cuda_bundle_begin(struct mpp_rank *r, unsigned mask, ncclComm_t comm);
void mpp_cuda_bundle_end(struct mpp_rank *r, unsigned mask, ncclComm_t comm);
void mpp_cuda_bundle_drop(struct mpp_rank *r);
/* What the compute stream is given next comes after all sums and gathers that were begun beside it. */
void mpp_cuda_join(struct mpp_rank *r);

/* graph.c. mpp_graphs_open: r->device->graphs where MPP_GRAPHS=1 asks for them. mpp_graphs_forget: memory that graphs use is
 * about to go; they are captured anew. mpp_graphs_free: before communicators go, waits for nothing; nothing where there are none. */
int mpp_graphs_open(struct mpp_rank *r, struct mpp_error *error);
void mpp_graphs_forget(struct mpp_rank *r);
void mpp_graphs_free(struct mpp_rank *r);
/* Around what no graph can hold, a message to or from another stage: where a pass is being captured, the graph ends, and after
 * it another one begins. */
void mpp_graphs_pause(struct mpp_rank *r, bool sends, int transfer, const void *x);
void mpp_graphs_resume(struct mpp_rank *r);

/* gemm.c: for GPU ORDINAL; NULL: out of memory; freed by free(). */
struct mpp_products *mpp_products_new(int ordinal);
bool mpp_products_tf32(const struct mpp_products *p);

/* kernels_attention_mma.cu: what the environment asks for and the thread's GPU can. */
enum mpp_attention_path mpp_attention_path_here(void);

/* GPU ORDINAL with all but an arena and communicators: r->device. What was made is mpp_device_detach's, after a failure too. */
int mpp_device_attach(struct mpp_rank *r, int ordinal, struct mpp_error *error);
void mpp_device_detach(struct mpp_rank *r);

/* groups.c, transfers.c: communicators. mpp_groups_free and mpp_channels_free end the rank's; nothing where there are none. */
void mpp_comm_end(const struct mpp_rank *r, ncclComm_t comm);
/* Member INDEX of N joins the communicator of ID: its peers are awaited, unless the job fails meanwhile. Calls with *COMM may
 * return ncclInProgress: mpp_comm_settle gives their result. */
ncclResult_t mpp_comm_join(const struct mpp_rank *r, int n, ncclUniqueId id, int index, ncclComm_t *comm);
ncclResult_t mpp_comm_settle(const struct mpp_rank *r, ncclComm_t comm, ncclResult_t code);
/* After a CODE that says that a peer is gone: where ranks are processes, a moment for the watch, or mpirun, to say which and to end
 * this process too. */
void mpp_comm_let_explain(const struct mpp_rank *r, ncclResult_t code);
void mpp_groups_free(struct mpp_rank *r);
void mpp_channels_free(struct mpp_rank *r);
/* Has all that the rank sent left? Then NULL, else a stream that is at it. */
cudaStream_t mpp_channels_busy(const struct mpp_rank *r);

/* The communicator of the rank's group of MASK; all of its members call. NULL: a group of one. */
ncclComm_t mpp_cuda_group(struct mpp_rank *r, unsigned mask);

#ifdef __cplusplus
}
#endif

#endif
