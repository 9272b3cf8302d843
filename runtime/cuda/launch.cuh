/* launch.cuh - what kernels are written with, the runtime's and the emitted ones.
 *
 *     template <int W> __global__ void add_kernel(int64_t n, const float *a, const float *b, float *y)
 *     {
 *         MPP_EACH(i, n / W) {                                          // a grid-stride loop over packs of W elements
 *             mpp_pack<float, W> u = mpp_read_pack<W>(a, i * W), v = mpp_read_pack<W>(b, i * W), sum;
 *             for (int k = 0; k < W; k++)
 *                 sum.at[k] = u.at[k] + v.at[k];
 *             mpp_write_pack<W>(y, i * W, sum);
 *         }
 *     }
 *     extern "C" void add(struct mpp_rank *r, int64_t n, const float *a, const float *b, float *y)
 *     {
 *         if (mpp_packs(n) && mpp_aligned(a, b, y))
 *             MPP_LAUNCH(r, add_kernel<4>, mpp_grid(n / 4, MPP_BLOCK), MPP_BLOCK, 0, n, a, b, y);
 *         else
 *             MPP_LAUNCH(r, add_kernel<1>, mpp_grid(n, MPP_BLOCK), MPP_BLOCK, 0, n, a, b, y);
 *     }
 *
 * Kernels go to the rank's compute stream. They use barriers, warp shuffles and dynamic shared memory, and nothing that
 * could not run on a processor (tests/cuda). All sums are formed in a fixed order: no atomics on floats. Memory is read and
 * written by mpp_read and mpp_write, which tests/cuda counts where it is asked to. 16-bit floats are uint16_t in memory:
 * mpp_from_bf16, mpp_to_f16 and so on of mpp_math.h. */
#ifndef MPP_LAUNCH_CUH
#define MPP_LAUNCH_CUH

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#include "cuda/cuda_internal.h"
#include "mpp_math.h"
#include "mpp_rt.h"

/* ---- launches ------------------------------------------------------------------------------------- */

enum {
    MPP_WARP = 32,
    MPP_BLOCK = 256,        /* threads of a block where nothing asks for another number */
    MPP_COLUMN_THREADS = 8, /* rows at a time of a block of 32 columns (mpp_column_block) */
#ifdef MPP_CUDA_SHIM
    MPP_MAX_BLOCKS = 8,     /* loops go on by strides of the grid: a loop is cheaper there than a thread */
#else
    MPP_MAX_BLOCKS = 1 << 20,
#endif
};

/* KERNEL, in parentheses where it has a comma, on the rank's compute stream; nothing where the grid is empty. */
#define MPP_LAUNCH(r, kernel, grid, block, shared_bytes, ...) \
    MPP_LAUNCH_ON(r, mpp_stream(r), kernel, grid, block, shared_bytes, __VA_ARGS__)

#if defined MPP_MEASURE_KERNELS && !defined MPP_CUDA_SHIM
#include "cuda/measure.cuh"
#define MPP_MEASURE_BEGIN(r, stream) struct mpp_measure mpp_the_measure = mpp_measure_begin(r, stream)
#define MPP_MEASURE_END(r, kernel) mpp_measure_end(r, mpp_the_measure, kernel)
#else
#define MPP_MEASURE_BEGIN(r, stream) (void)0
#define MPP_MEASURE_END(r, kernel) (void)0
#endif

#ifdef MPP_CUDA_SHIM
#define MPP_LAUNCH_ON(r, stream, kernel, grid, block, shared_bytes, ...)                                              \
    mpp_cuda_check(r, mpp_shim_launch(stream, #kernel, dim3(grid), dim3(block), shared_bytes, kernel, __VA_ARGS__), #kernel)
#define MPP_SHARED(type, name) type *name = (type *)mpp_shim_shared()
#else
#define MPP_LAUNCH_ON(r, stream, kernel, grid, block, shared_bytes, ...)                                              \
    do {                                                                                                              \
        const dim3 mpp_the_grid(grid);                                                                                \
        if (mpp_the_grid.x > 0 && mpp_the_grid.y > 0 && mpp_the_grid.z > 0) {                                         \
            MPP_MEASURE_BEGIN(r, stream);                                                                             \
            (kernel)<<<mpp_the_grid, block, shared_bytes, stream>>>(__VA_ARGS__);                                     \
            mpp_cuda_check(r, cudaGetLastError(), #kernel);                                                           \
            MPP_MEASURE_END(r, #kernel);                                                                              \
        }                                                                                                             \
    } while (0)
/* The block's dynamic shared memory, 16-byte aligned. */
#define MPP_SHARED(type, name)                               \
    extern __shared__ __align__(16) unsigned char mpp_shared_bytes[]; \
    type *name = reinterpret_cast<type *>(mpp_shared_bytes)
#endif

/* The running step, for kernels that draw random numbers. A graph is launched again in later steps, where KEPT on the device tells. */
struct mpp_now {
    int64_t step;
    const int64_t *kept; /* NULL: STEP */
};

static inline struct mpp_now mpp_now_of(const struct mpp_rank *r)
{
    const struct mpp_step_values *kept = mpp_kept_values(r);
    struct mpp_now now;
    now.step = r->step;
    now.kept = kept != NULL ? &kept->step : NULL;
    return now;
}

static __device__ __forceinline__ int64_t mpp_now_step(struct mpp_now now)
{
    return now.kept != NULL ? *now.kept : now.step;
}

/* for (int64_t i = this thread's number of all; i < n; ...) */
#define MPP_EACH(i, n)                                                                                  \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, mpp_end_##i = (n); i < mpp_end_##i; \
         i += (int64_t)gridDim.x * blockDim.x)

/* Blocks for N items, PER_BLOCK of them each, at most MPP_MAX_BLOCKS. */
static inline unsigned mpp_grid(int64_t n, int64_t per_block)
{
    int64_t blocks = (n + per_block - 1) / per_block;
    return (unsigned)(blocks < (int64_t)MPP_MAX_BLOCKS ? blocks : (int64_t)MPP_MAX_BLOCKS);
}

/* ---- memory --------------------------------------------------------------------------------------- */

#ifdef MPP_CUDA_SHIM
#define MPP_COUNT(read, written) (mpp_shim_counts ? mpp_shim_count((int64_t)(read), (int64_t)(written)) : (void)0)
#define MPP_ALIGNED(at, bytes) ((uintptr_t)(at) % ((bytes) < 16 ? (bytes) : 16) ? mpp_shim_unaligned() : (void)0)
#else
#if defined MPP_MEASURE_KERNELS && defined MPP_COUNT_BYTES
#define MPP_COUNT(read, written) mpp_measure_count((int64_t)(read) + (int64_t)(written))
#else
#define MPP_COUNT(read, written) (void)0
#endif
#define MPP_ALIGNED(at, bytes) (void)0
#endif

template <class T> __device__ __forceinline__ T mpp_read(const T *x, int64_t i)
{
    MPP_COUNT(sizeof(T), 0);
    return x[i];
}

template <class T> __device__ __forceinline__ void mpp_write(T *y, int64_t i, T value)
{
    MPP_COUNT(0, sizeof(T));
    y[i] = value;
}

/* W elements side by side: one access of up to 16 bytes. */
template <class T, int W> struct __align__(sizeof(T) * W < 16 ? sizeof(T) * W : 16) mpp_pack {
    T at[W];
};

template <int W, class T> __device__ __forceinline__ mpp_pack<T, W> mpp_read_pack(const T *x, int64_t i)
{
    MPP_COUNT(sizeof(T) * W, 0);
    MPP_ALIGNED(x + i, sizeof(T) * W);
    return *reinterpret_cast<const mpp_pack<T, W> *>(x + i);
}

template <int W, class T> __device__ __forceinline__ void mpp_write_pack(T *y, int64_t i, const mpp_pack<T, W> &value)
{
    MPP_COUNT(0, sizeof(T) * W);
    MPP_ALIGNED(y + i, sizeof(T) * W);
    *reinterpret_cast<mpp_pack<T, W> *>(y + i) = value;
}

/* Host: may rows of N elements be walked in packs of four; do all pointers allow it? */
static inline bool mpp_packs(int64_t n)
{
    return n % 4 == 0;
}

template <class... P> static inline bool mpp_aligned(const P *...pointers)
{
    uintptr_t all = 0;
    (void)(int[]){0, (all |= (uintptr_t)(const void *)pointers % (4 * sizeof(P) < 16 ? 4 * sizeof(P) : 16), 0)...};
    return all == 0;
}

/* 16-bit floats by type: mpp_half<MPP_TYPE_BF16>::wide(bits), ::bits(float). */
template <int TYPE> struct mpp_half;

template <> struct mpp_half<MPP_TYPE_BF16> {
    static __device__ __forceinline__ float wide(uint16_t x) { return mpp_from_bf16(x); }
    static __device__ __forceinline__ uint16_t bits(float x) { return mpp_to_bf16(x); }
};

template <> struct mpp_half<MPP_TYPE_F16> {
    static __device__ __forceinline__ float wide(uint16_t x) { return mpp_from_f16(x); }
    static __device__ __forceinline__ uint16_t bits(float x) { return mpp_to_f16(x); }
};

/* How the runtime's kernels, written once, load and store: mpp_element<MPP_TYPE_F32> has float in memory. */
template <int TYPE> struct mpp_element {
    typedef uint16_t stored;
    static __device__ __forceinline__ float load(const uint16_t *x, int64_t i) { return mpp_half<TYPE>::wide(mpp_read(x, i)); }
    static __device__ __forceinline__ void store(uint16_t *y, int64_t i, float v) { mpp_write(y, i, mpp_half<TYPE>::bits(v)); }
};

template <> struct mpp_element<MPP_TYPE_F32> {
    typedef float stored;
    static __device__ __forceinline__ float load(const float *x, int64_t i) { return mpp_read(x, i); }
    static __device__ __forceinline__ void store(float *y, int64_t i, float v) { mpp_write(y, i, v); }
};

/* ---- sums over a warp and a block, in a fixed order ------------------------------------------------- */

struct mpp_plus {
    template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};

struct mpp_larger { /* a NaN in b is passed over */
    template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return b > a ? b : a; }
};

template <class Op, class T> __device__ __forceinline__ T mpp_warp_fold(T x, Op op)
{
    for (int step = MPP_WARP / 2; step > 0; step /= 2)
        x = op(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* All threads call and all get the result. blockDim.x is a multiple of 32, y and z are 1; SHARED has room for 32 of T. */
template <class Op, class T> __device__ __forceinline__ T mpp_block_fold(T x, T *shared, T nothing, Op op)
{
    const int warps = (int)blockDim.x / MPP_WARP, lane = (int)threadIdx.x % MPP_WARP;
    x = mpp_warp_fold(x, op);
    if (warps == 1)
        return x;
    if (lane == 0)
        shared[threadIdx.x / MPP_WARP] = x;
    __syncthreads();
    x = mpp_warp_fold(lane < warps ? shared[lane] : nothing, op);
    __syncthreads(); /* SHARED may be used again */
    return x;
}

template <class T> __device__ __forceinline__ T mpp_block_sum(T x, T *shared)
{
    return mpp_block_fold(x, shared, (T)0, mpp_plus());
}

__device__ __forceinline__ float mpp_block_max(float x, float *shared)
{
    return mpp_block_fold(x, shared, -INFINITY, mpp_larger());
}

/* ---- sums over columns ------------------------------------------------------------------------------ */

/* Blocks of 32 columns; the rows are divided into mpp_column_parts parts (gridDim.y), whose sums a second kernel adds in order:
 *
 *     __global__ void sum_kernel(int64_t rows, int64_t cols, const float *x, double *parts)
 *     {
 *         MPP_SHARED(double, shared);
 *         const int64_t j = mpp_column();
 *         double sum = 0;
 *         for (int64_t i = mpp_first_row(rows), end = mpp_end_row(rows); i < end && j < cols; i += MPP_COLUMN_THREADS)
 *             sum += (double)mpp_read(x, i * cols + j);
 *         mpp_column_sum(sum, shared, cols, parts);
 *     }
 *     double *parts = mpp_column_scratch(r, rows, cols, 1);
 *     MPP_LAUNCH(r, sum_kernel, mpp_column_grid(rows, cols), mpp_column_block(), MPP_COLUMN_SHARED, rows, cols, x, parts);
 *     mpp_columns_finish(r, rows, cols, parts, add, y);                 // y = (add ? y : 0) + the sums
 *
 * Several sums of one kernel take parts + k * mpp_column_size(rows, cols), k = 0, 1, ... */

#define MPP_COLUMN_SHARED (MPP_WARP * MPP_COLUMN_THREADS * sizeof(double))

static inline int64_t mpp_column_parts(int64_t rows, int64_t cols)
{
    int64_t tiles = (cols + MPP_WARP - 1) / MPP_WARP, most = (rows + 63) / 64, wanted = (512 + tiles - 1) / (tiles > 0 ? tiles : 1);
    return most < 1 ? 1 : wanted < most ? wanted : most;
}

static inline int64_t mpp_column_size(int64_t rows, int64_t cols)
{
    return mpp_column_parts(rows, cols) * cols;
}

static inline double *mpp_column_scratch(struct mpp_rank *r, int64_t rows, int64_t cols, int64_t sums)
{
    return (double *)mpp_cuda_scratch(r, MPP_SCRATCH_SUMS, (size_t)(sums * mpp_column_size(rows, cols)) * sizeof(double));
}

static inline dim3 mpp_column_grid(int64_t rows, int64_t cols)
{
    return dim3((unsigned)((cols + MPP_WARP - 1) / MPP_WARP), (unsigned)mpp_column_parts(rows, cols), 1);
}

static inline dim3 mpp_column_block(void)
{
    return dim3(MPP_WARP, MPP_COLUMN_THREADS, 1);
}

__device__ __forceinline__ int64_t mpp_column(void)
{
    return (int64_t)blockIdx.x * MPP_WARP + threadIdx.x;
}

__device__ __forceinline__ int64_t mpp_first_row(int64_t rows)
{
    return rows * (int64_t)blockIdx.y / gridDim.y + threadIdx.y;
}

__device__ __forceinline__ int64_t mpp_end_row(int64_t rows)
{
    return rows * ((int64_t)blockIdx.y + 1) / gridDim.y;
}

/* All threads of the block call. */
__device__ __forceinline__ void mpp_column_sum(double sum, double *shared, int64_t cols, double *parts)
{
    shared[threadIdx.y * MPP_WARP + threadIdx.x] = sum;
    __syncthreads();
    const int64_t j = mpp_column();
    if (threadIdx.y == 0 && j < cols) {
        double total = 0;
        for (int k = 0; k < MPP_COLUMN_THREADS; k++)
            total += shared[k * MPP_WARP + threadIdx.x];
        parts[(int64_t)blockIdx.y * cols + j] = total;
    }
    __syncthreads(); /* SHARED may be used again */
}

#endif
