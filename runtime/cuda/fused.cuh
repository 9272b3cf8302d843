/* fused.cuh - what the kernels of emitted kernels.cu use beside launch.cuh: indices, operands that many threads read, sums of
 * rows and of columns in parts.
 *
 * A sum over many points for few results is formed in parts, a block (gridDim.y of them) for each, that a second kernel adds
 * up in order:
 *     const int64_t points = 1, walked = n, parts = mpp_row_parts(points, walked);
 *     double *sums = mpp_parts_scratch(r, parts * points, parts);       // NULL where there is one part
 *     MPP_LAUNCH(r, kernel<4>, mpp_row_grid(points, parts), mpp_row_block(walked / 4), MPP_ROW_SHARED, n, a, y, points, walked, sums); */
#ifndef MPP_FUSED_CUH
#define MPP_FUSED_CUH

#include "cuda/launch.cuh"

/* a / b of numbers from 0 on, b > 0; a GPU has no fast division of 64 bits. */
__device__ __forceinline__ int64_t mpp_quotient(int64_t a, int64_t b)
{
    return (uint64_t)(a | b) >> 32 == 0 ? (int64_t)((uint32_t)a / (uint32_t)b) : a / b;
}

/* Do all pointers allow 16-byte accesses? */
template <class... P> static inline bool mpp_aligned16(const P *...pointers)
{
    uintptr_t all = 0;
    (void)(int[]){0, (all |= (uintptr_t)(const void *)pointers, 0)...};
    return all % 16 == 0;
}

/* ---- operands that do not run with all loops: many threads read the same elements, from a cache but for the first ---- */

#ifdef MPP_CUDA_SHIM
#define MPP_COUNT_COMMON(at, bytes) (mpp_shim_counts ? mpp_shim_count_common(at, (int64_t)(bytes)) : (void)0)
#define MPP_COUNT_PARTS(read, written) (mpp_shim_counts ? mpp_shim_count_parts((int64_t)(read), (int64_t)(written)) : (void)0)
#else
#define MPP_COUNT_COMMON(at, bytes) (void)0
#define MPP_COUNT_PARTS(read, written) (void)0
#endif

template <class T> __device__ __forceinline__ T mpp_read_common(const T *x, int64_t i)
{
    MPP_COUNT_COMMON(x + i, sizeof(T));
    return x[i];
}

template <int W, class T> __device__ __forceinline__ mpp_pack<T, W> mpp_read_common_pack(const T *x, int64_t i)
{
    MPP_COUNT_COMMON(x + i, sizeof(T) * W);
    MPP_ALIGNED(x + i, sizeof(T) * W);
    return *reinterpret_cast<const mpp_pack<T, W> *>(x + i);
}

/* ---- parts ------------------------------------------------------------------------------------------- */

/* Of N points this block's part. */
__device__ __forceinline__ int64_t mpp_part_begin(int64_t n)
{
    return n * (int64_t)blockIdx.y / gridDim.y;
}

__device__ __forceinline__ int64_t mpp_part_end(int64_t n)
{
    return n * ((int64_t)blockIdx.y + 1) / gridDim.y;
}

/* Element I of the parts: written by the kernel that forms them, read by the one that adds them up. Counted apart. */
__device__ __forceinline__ void mpp_write_part(double *sums, int64_t i, double value)
{
    MPP_COUNT_PARTS(0, sizeof value);
    sums[i] = value;
}

__device__ __forceinline__ double mpp_read_part(const double *sums, int64_t i)
{
    MPP_COUNT_PARTS(sizeof(double), 0);
    return sums[i];
}

static inline double *mpp_parts_scratch(struct mpp_rank *r, int64_t sums, int64_t parts)
{
    return parts > 1 ? (double *)mpp_cuda_scratch(r, MPP_SCRATCH_SUMS, (size_t)sums * sizeof(double)) : NULL;
}

/* ---- a block for each row ---------------------------------------------------------------------------- */

enum { MPP_ENOUGH_BLOCKS = 512, MPP_POINTS_OF_PART = 8192 };

#define MPP_ROW_SHARED (MPP_WARP * sizeof(double))

/* POINTS results, each the sum of WALKED points. */
static inline int64_t mpp_row_parts(int64_t points, int64_t walked)
{
    int64_t most = (walked + MPP_POINTS_OF_PART - 1) / MPP_POINTS_OF_PART;
    int64_t wanted = points > 0 ? (MPP_ENOUGH_BLOCKS + points - 1) / points : 1, parts = wanted < most ? wanted : most;
    return parts > 1 ? parts : 1;
}

static inline dim3 mpp_row_grid(int64_t points, int64_t parts)
{
    return dim3(mpp_grid(points, 1), (unsigned)parts, 1);
}

/* Threads for rows of N packs. */
static inline unsigned mpp_row_block(int64_t n)
{
    return n >= 1024 ? 256 : n >= 256 ? 128 : n >= 64 ? 64 : 32;
}

/* ---- blocks of 32 W columns ---------------------------------------------------------------------------- */

static inline dim3 mpp_columns_grid(int64_t packs, int64_t parts, int64_t before)
{
    return dim3((unsigned)((packs + MPP_WARP - 1) / MPP_WARP), (unsigned)parts, (unsigned)(before < 65535 ? before : 65535));
}

/* The W sums of a thread become those of its column, for threadIdx.y 0. All threads of the block call; SHARED has room for
 * W * MPP_WARP * MPP_COLUMN_THREADS. */
template <int W, class Op> __device__ __forceinline__ void mpp_column_fold(double *sum, double *shared, Op op)
{
    for (int k = 0; k < W; k++)
        shared[((int)threadIdx.y * W + k) * MPP_WARP + threadIdx.x] = sum[k];
    __syncthreads();
    for (int k = 0; k < W && threadIdx.y == 0; k++)
        for (int y = 1; y < MPP_COLUMN_THREADS; y++)
            sum[k] = op(sum[k], shared[(y * W + k) * MPP_WARP + threadIdx.x]);
    __syncthreads(); /* SHARED may be used again */
}

#endif
