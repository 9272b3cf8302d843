/* rows.cuh - kernels whose blocks each take a row of a padded array.
 *
 *     struct mpp_valid_rows rows = mpp_valid_rows_of(space);
 *     MPP_LAUNCH(r, kernel, mpp_row_grid(rows.n), mpp_row_block(cols), MPP_ROW_SHARED, rows, ...);
 *     // in the kernel: MPP_EACH_ROW(b, rows.n) { int64_t row = mpp_row_at(rows, b); ... }                                     */
#ifndef MPP_ROWS_CUH
#define MPP_ROWS_CUH

#include "cuda/launch.cuh"

/* The valid rows of a space, which kernels take by value. */
struct mpp_valid_rows {
    int64_t n;
    bool dense; /* the first N rows are the valid ones */
    struct mpp_space space;
};

static inline struct mpp_valid_rows mpp_valid_rows_of(const struct mpp_space *space)
{
    struct mpp_valid_rows rows;
    rows.n = 1;
    rows.dense = true;
    rows.space = *space;
    for (int d = 0; d < space->n_dims; d++) {
        rows.n *= space->valid[d] > 0 ? space->valid[d] : 0;
        rows.dense = rows.dense && (d == 0 || space->valid[d] == space->padded[d]);
    }
    return rows;
}

/* N rows, one after the other. */
static inline struct mpp_valid_rows mpp_all_rows(int64_t n)
{
    struct mpp_valid_rows rows = {};
    rows.n = n;
    rows.dense = true;
    return rows;
}

/* The number of valid row K over the padded extents. */
__device__ __forceinline__ int64_t mpp_row_at(const struct mpp_valid_rows &rows, int64_t k)
{
    if (rows.dense)
        return k;
    int64_t at = 0, stride = 1;
    for (int d = rows.space.n_dims - 1; d >= 0; d--) {
        at += k % rows.space.valid[d] * stride;
        k /= rows.space.valid[d];
        stride *= rows.space.padded[d];
    }
    return at;
}

#define MPP_EACH_ROW(b, n) for (int64_t b = blockIdx.x; b < (n); b += gridDim.x)
#define MPP_ROW_SHARED (MPP_WARP * sizeof(double)) /* for the block's sums */

static inline unsigned mpp_row_grid(int64_t n)
{
    return mpp_grid(n, 1);
}

/* Threads of a block for rows of COLS elements. */
static inline unsigned mpp_row_block(int64_t cols)
{
    unsigned threads = MPP_WARP;
    while (threads < MPP_BLOCK && (int64_t)threads * 4 < cols)
        threads *= 2;
    return threads;
}

/* Calls FUNCTION<TYPE>(...) for the 16-bit type TYPE. */
#define MPP_BY_HALF(type, function, ...)                                                                        \
    do {                                                                                                        \
        if ((type) == MPP_TYPE_BF16)                                                                            \
            function<MPP_TYPE_BF16>(__VA_ARGS__);                                                               \
        else                                                                                                    \
            function<MPP_TYPE_F16>(__VA_ARGS__);                                                                \
    } while (0)

#endif
