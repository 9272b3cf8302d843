/* cuda_runtime.h - CUDA C++ kernels as plain C++ (tests/cuda/fibers.cpp runs them).
 *
 * The threads of a block are fibers of one thread of the process: each runs until it meets a barrier, a warp shuffle or its
 * end. They run in order of threadIdx, or, with MPP_SHIM_ORDER=backward in the environment, from the last to the first, blocks
 * too. A kernel that misses a barrier reads what is not there yet in one of the two. */
#ifndef MPP_SHIM_CUDA_RUNTIME_H
#define MPP_SHIM_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>
#include <math.h>
#include <shim_capture.h>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include <utility>

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __restrict__ __restrict

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

/* What threadIdx and its like are in the fiber that runs. */
struct mpp_shim_now {
    uint3 thread, block, block_dim, grid_dim;
};
extern __thread struct mpp_shim_now mpp_shim_now;
#define threadIdx (mpp_shim_now.thread)
#define blockIdx (mpp_shim_now.block)
#define blockDim (mpp_shim_now.block_dim)
#define gridDim (mpp_shim_now.grid_dim)

/* Runs BODY(ARG) for every thread of every block. Ends the process where a real launch would fail, or a block would hang. */
void mpp_shim_blocks(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, void (*body)(const void *), const void *arg);
/* CALL, a literal, is counted among the kernels of MPP_SHIM_REPORT. */
void mpp_shim_note(const char *call);
/* The block's dynamic shared memory, filled with NaNs before each block. */
void *mpp_shim_shared(void);
/* The fiber waits for all of its block, or of its warp. */
void mpp_shim_barrier(void);
void mpp_shim_warp_barrier(void);
/* All lanes of a warp give BYTES (up to 8) at MINE, and take lane SOURCE's. */
void mpp_shim_exchange(const void *mine, size_t bytes, int source, void *out);
int mpp_shim_lane(void);
/* All 32 lanes of a warp give their own MINE; when all have, one of them calls WORK with those of lanes 0 to 31. */
void mpp_shim_together(void *mine, void (*work)(void *const *lanes));
/* BYTES that come to shared memory when the thread waits for them, in groups of which the last OPEN may be waited for later. */
void mpp_shim_copy_beside(void *to, const void *from, size_t bytes);
void mpp_shim_copies_commit(void);
void mpp_shim_copies_wait(int open);
/* A pack that does not begin at a multiple of its size: a GPU ends the kernel, and so does this. */
void mpp_shim_unaligned(void);
/* Are bytes counted (MPP_SHIM_REPORT)? */
extern const bool mpp_shim_counts;
/* Bytes that the running kernel reads and writes; of sums in parts. */
void mpp_shim_count(int64_t read_bytes, int64_t written_bytes);
void mpp_shim_count_parts(int64_t read_bytes, int64_t written_bytes);
/* Bytes at AT that many threads read: the first time in a launch they are read, then read again. */
void mpp_shim_count_common(const void *at, int64_t bytes);

/* A launch: its arguments are copied when it is made, as CUDA does. */
template <class... P> struct mpp_shim_call {
    void (*kernel)(P...);
    std::tuple<P...> args;
    const char *name;
    dim3 grid, block;
    size_t shared_bytes;
};

template <class... P, size_t... I> inline void mpp_shim_thread(const mpp_shim_call<P...> *c, std::index_sequence<I...>)
{
    c->kernel(std::get<I>(c->args)...);
}

template <class... P> inline int mpp_shim_call_run(const mpp_shim_call<P...> *c)
{
    mpp_shim_blocks(c->name, c->grid, c->block, c->shared_bytes, [](const void *x) {
        mpp_shim_thread(static_cast<const mpp_shim_call<P...> *>(x), std::index_sequence_for<P...>());
    }, c);
    return 0;
}

template <class T> struct mpp_shim_as {
    typedef T type;
};

template <class... P>
inline cudaError_t mpp_shim_launch(cudaStream_t stream, const char *name, dim3 grid, dim3 block, size_t shared_bytes,
                                   void (*kernel)(P...), typename mpp_shim_as<P>::type... args)
{
    return mpp_shim_do(stream, mpp_shim_call<P...>{kernel, std::tuple<P...>(args...), name, grid, block, shared_bytes},
                       mpp_shim_call_run<P...>);
}

/* The architecture that kernels were compiled for: MPP_SHIM_ARCH, or 80. */
struct cudaFuncAttributes {
    int ptxVersion;
};
int mpp_shim_arch(void);

template <class T> inline cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, T *)
{
    out->ptxVersion = mpp_shim_arch();
    return cudaSuccess;
}

static inline void __syncthreads(void)
{
    mpp_shim_barrier();
}

static inline void __syncwarp(unsigned = 0xffffffffu)
{
    mpp_shim_warp_barrier();
}

template <class T> inline T __shfl_sync(unsigned, T value, int lane)
{
    T out;
    mpp_shim_exchange(&value, sizeof value, lane, &out);
    return out;
}

template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int bits)
{
    return __shfl_sync(mask, value, mpp_shim_lane() ^ bits);
}

#endif
