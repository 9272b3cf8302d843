/* measure.cuh - how long each of a source file's kernels takes, or how many bytes it reads and writes, on a GPU. In test builds
 * alone, where launch.cuh includes it: it waits for every kernel, so that MPP_KERNELS keeps passes from being CUDA graphs (graph.c).
 *
 *     make BACKEND=cuda KERNEL_FLAGS=-DMPP_MEASURE_KERNELS     # times of the emitted kernels; with -DMPP_COUNT_BYTES also: bytes
 *     MPP_KERNELS=FILE ./trainer ...                           # a line for each at the end: launches, ms, bytes, name
 *
 * Counted are launches after the second step; with -DMPP_COUNT_BYTES bytes are right and times are not. Operands that many threads
 * read (mpp_read_common) are not counted, which leaves out a bias beside what it is added to. */
#ifndef MPP_MEASURE_CUH
#define MPP_MEASURE_CUH

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MPP_MEASURED_KERNELS = 512, MPP_MEASURE_AFTER_STEP = 2 };

struct mpp_measured {
    const char *kernel;
    long long launches;
    double ms, bytes;
};

/* One writer: trainers of one rank are measured. */
static struct mpp_measured mpp_measured[MPP_MEASURED_KERNELS];

#ifdef MPP_COUNT_BYTES
static __device__ unsigned long long mpp_counted_bytes;
static __device__ __forceinline__ void mpp_measure_count(int64_t bytes)
{
    atomicAdd(&mpp_counted_bytes, (unsigned long long)bytes);
}
#endif

static void mpp_measure_write(void)
{
    FILE *f = fopen(getenv("MPP_KERNELS"), "w");
    for (int i = 0; f != NULL && i < MPP_MEASURED_KERNELS && mpp_measured[i].kernel != NULL; i++)
        fprintf(f, "%lld %.6f %.0f %s\n", mpp_measured[i].launches, mpp_measured[i].ms, mpp_measured[i].bytes, mpp_measured[i].kernel);
    if (f != NULL)
        fclose(f);
}

struct mpp_measure {
    cudaEvent_t begun, done;
    cudaStream_t stream;
    bool wanted;
};

static inline struct mpp_measure mpp_measure_begin(const struct mpp_rank *r, cudaStream_t stream)
{
    static const bool asked = getenv("MPP_KERNELS") != NULL && atexit(mpp_measure_write) == 0;
    struct mpp_measure m = {NULL, NULL, stream, asked && r->step > MPP_MEASURE_AFTER_STEP};
    if (!m.wanted)
        return m;
#ifdef MPP_COUNT_BYTES
    const unsigned long long none = 0;
    mpp_cuda_check(r, cudaStreamSynchronize(stream), "measuring");
    mpp_cuda_check(r, cudaMemcpyToSymbol(mpp_counted_bytes, &none, sizeof none), "measuring");
#endif
    mpp_cuda_check(r, cudaEventCreate(&m.begun), "measuring");
    mpp_cuda_check(r, cudaEventCreate(&m.done), "measuring");
    mpp_cuda_check(r, cudaEventRecord(m.begun, stream), "measuring");
    return m;
}

static inline void mpp_measure_end(const struct mpp_rank *r, struct mpp_measure m, const char *kernel)
{
    float ms = 0;
    unsigned long long bytes = 0;
    int i = 0;
    if (!m.wanted)
        return;
    mpp_cuda_check(r, cudaEventRecord(m.done, m.stream), "measuring");
    mpp_cuda_check(r, cudaEventSynchronize(m.done), "measuring");
    mpp_cuda_check(r, cudaEventElapsedTime(&ms, m.begun, m.done), "measuring");
#ifdef MPP_COUNT_BYTES
    mpp_cuda_check(r, cudaMemcpyFromSymbol(&bytes, mpp_counted_bytes, sizeof bytes), "measuring");
#endif
    (void)cudaEventDestroy(m.begun);
    (void)cudaEventDestroy(m.done);
    while (i < MPP_MEASURED_KERNELS && mpp_measured[i].kernel != NULL && strcmp(mpp_measured[i].kernel, kernel) != 0)
        i++;
    if (i == MPP_MEASURED_KERNELS)
        return;
    mpp_measured[i].kernel = kernel;
    mpp_measured[i].launches++;
    mpp_measured[i].ms += (double)ms;
    mpp_measured[i].bytes += (double)bytes;
}

#endif
