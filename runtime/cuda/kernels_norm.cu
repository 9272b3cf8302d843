/* LayerNorm and softmax over rows that may be split over ranks: a block a row; where the row is split, its sums (and its
 * maximum) are finished by all-reduces of one or two floats per row. */
#include "cuda/rows.cuh"

/* ---- LayerNorm (Ba, Kiros & Hinton 2016) ---------------------------------------------------------- */

/* The sum over a row of TERM(i), the same on all threads. */
template <class Term> static __device__ double row_sum(int64_t n, double *shared, Term term)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += term(i);
    return mpp_block_sum(sum, shared);
}

template <int TYPE> static __device__ double row_mean(const typename mpp_element<TYPE>::stored *x, int64_t n, double of, double *shared)
{
    return row_sum(n, shared, [&](int64_t i) { return (double)mpp_element<TYPE>::load(x, i); }) / of;
}

template <int TYPE>
static __device__ double row_variance(const typename mpp_element<TYPE>::stored *x, int64_t n, double of, double mean, double *shared)
{
    return row_sum(n, shared, [&](int64_t i) {
               double d = (double)mpp_element<TYPE>::load(x, i) - mean;
               return d * d;
           }) / of;
}

template <int TYPE>
__global__ void mean_kernel(int64_t rows, struct mpp_extent cols, const typename mpp_element<TYPE>::stored *x, float *mean)
{
    MPP_SHARED(double, shared);
    MPP_EACH_ROW(row, rows) {
        double m = row_mean<TYPE>(x + row * cols.padded, cols.valid, (double)cols.global, shared);
        if (threadIdx.x == 0)
            mpp_write(mean, row, (float)m);
    }
}

template <int TYPE>
__global__ void variance_kernel(int64_t rows, struct mpp_extent cols, const typename mpp_element<TYPE>::stored *x, const float *mean,
                                float *variance)
{
    MPP_SHARED(double, shared);
    MPP_EACH_ROW(row, rows) {
        double v = row_variance<TYPE>(x + row * cols.padded, cols.valid, (double)cols.global, (double)mpp_read(mean, row), shared);
        if (threadIdx.x == 0)
            mpp_write(variance, row, (float)v);
    }
}

/* WHOLE: mean and rstd are formed here; else they hold the row's mean and variance. */
template <int TYPE>
__global__ void normalise_kernel(bool whole, int64_t rows, struct mpp_extent cols, float epsilon,
                                 const typename mpp_element<TYPE>::stored *x, const float *gamma, const float *beta,
                                 typename mpp_element<TYPE>::stored *y, float *mean, float *rstd)
{
    typedef mpp_element<TYPE> element;
    MPP_SHARED(double, shared);
    MPP_EACH_ROW(row, rows) {
        const typename element::stored *from = x + row * cols.padded;
        typename element::stored *to = y + row * cols.padded;
        float m = whole ? (float)row_mean<TYPE>(from, cols.valid, (double)cols.global, shared) : mpp_read(mean, row);
        double variance = whole ? row_variance<TYPE>(from, cols.valid, (double)cols.global, (double)m, shared)
                                : (double)mpp_read(rstd, row);
        float factor = (float)(1 / sqrt(variance + (double)epsilon));
        __syncthreads(); /* all have read mean and rstd */
        if (threadIdx.x == 0) {
            mpp_write(mean, row, m);
            mpp_write(rstd, row, factor);
        }
        for (int64_t i = threadIdx.x; i < cols.valid; i += blockDim.x) {
            float hat = (element::load(from, i) - m) * factor;
            float scaled = gamma != NULL ? hat * mpp_read(gamma, i) : hat;
            element::store(to, i, beta != NULL ? scaled + mpp_read(beta, i) : scaled);
        }
    }
}

template <int TYPE>
static void layernorm_forward(struct mpp_rank *r, unsigned mask, int64_t rows, struct mpp_extent cols, float epsilon, const void *x,
                              const float *gamma, const float *beta, void *y, float *mean, float *rstd)
{
    typedef typename mpp_element<TYPE>::stored stored;
    const unsigned grid = mpp_row_grid(rows), block = mpp_row_block(cols.valid);
    if (mask != 0) {
        MPP_LAUNCH(r, mean_kernel<TYPE>, grid, block, MPP_ROW_SHARED, rows, cols, (const stored *)x, mean);
        mpp_all_reduce(r, mask, mean, rows, MPP_REDUCE_SUM);
        MPP_LAUNCH(r, variance_kernel<TYPE>, grid, block, MPP_ROW_SHARED, rows, cols, (const stored *)x, mean, rstd);
        mpp_all_reduce(r, mask, rstd, rows, MPP_REDUCE_SUM);
    }
    MPP_LAUNCH(r, normalise_kernel<TYPE>, grid, block, MPP_ROW_SHARED, mask == 0, rows, cols, epsilon, (const stored *)x, gamma, beta,
               (stored *)y, mean, rstd);
}

/* Sums of a row for its input's gradient: of g = dy gamma, and of g (x - mean) rstd. */
template <int TYPE>
static __device__ void row_moments(int64_t n, const typename mpp_element<TYPE>::stored *x, const float *gamma, float mean, float rstd,
                                   const typename mpp_element<TYPE>::stored *dy, double *shared, float *first_out, float *second_out)
{
    double first = 0, second = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        float g = mpp_element<TYPE>::load(dy, i);
        g = gamma != NULL ? g * mpp_read(gamma, i) : g;
        first += (double)g;
        second += (double)g * (double)((mpp_element<TYPE>::load(x, i) - mean) * rstd);
    }
    *first_out = (float)mpp_block_sum(first, shared);
    *second_out = (float)mpp_block_sum(second, shared);
}

template <int TYPE>
__global__ void moments_kernel(struct mpp_valid_rows rows, struct mpp_extent cols, const typename mpp_element<TYPE>::stored *x,
                               const float *gamma, const float *mean, const float *rstd, const typename mpp_element<TYPE>::stored *dy,
                               float *sums)
{
    MPP_SHARED(double, shared);
    MPP_EACH_ROW(b, rows.n) {
        int64_t row = mpp_row_at(rows, b);
        float first, second;
        row_moments<TYPE>(cols.valid, x + row * cols.padded, gamma, mpp_read(mean, row), mpp_read(rstd, row), dy + row * cols.padded,
                          shared, &first, &second);
        if (threadIdx.x == 0) {
            mpp_write(sums, 2 * b, first);
            mpp_write(sums, 2 * b + 1, second);
        }
    }
}

/* dx = rstd (dy gamma - m0 - (x - mean) rstd m1), m0 and m1 the means of the moments: formed here, or of SUMS. dx may be dy. */
template <int TYPE>
__global__ void input_gradient_kernel(struct mpp_valid_rows rows, struct mpp_extent cols, const typename mpp_element<TYPE>::stored *x,
                                      const float *gamma, const float *mean, const float *rstd,
                                      const typename mpp_element<TYPE>::stored *dy, const float *sums,
                                      typename mpp_element<TYPE>::stored *dx)
{
    typedef mpp_element<TYPE> element;
    MPP_SHARED(double, shared);
    const float per_row = (float)(1 / (double)cols.global);
    MPP_EACH_ROW(b, rows.n) {
        int64_t row = mpp_row_at(rows, b), at = row * cols.padded;
        float m = mpp_read(mean, row), factor = mpp_read(rstd, row), first, second;
        if (sums != NULL) {
            first = mpp_read(sums, 2 * b);
            second = mpp_read(sums, 2 * b + 1);
        } else {
            row_moments<TYPE>(cols.valid, x + at, gamma, m, factor, dy + at, shared, &first, &second);
        }
        for (int64_t i = threadIdx.x; i < cols.valid; i += blockDim.x) {
            float g = element::load(dy + at, i), t = (element::load(x + at, i) - m) * factor;
            g = gamma != NULL ? g * mpp_read(gamma, i) : g;
            element::store(dx + at, i, factor * (g - first * per_row - t * (second * per_row)));
        }
    }
}

/* The parts of dgamma and dbeta; a NULL is not wanted. */
template <int TYPE>
__global__ void parameter_gradient_kernel(struct mpp_valid_rows rows, struct mpp_extent cols,
                                          const typename mpp_element<TYPE>::stored *x, const float *mean, const float *rstd,
                                          const typename mpp_element<TYPE>::stored *dy, double *gamma_parts, double *beta_parts)
{
    typedef mpp_element<TYPE> element;
    MPP_SHARED(double, shared);
    const int64_t j = mpp_column(), end = mpp_end_row(rows.n);
    double gamma_sum = 0, beta_sum = 0;
    for (int64_t i = mpp_first_row(rows.n); i < end && j < cols.valid; i += MPP_COLUMN_THREADS) {
        int64_t row = mpp_row_at(rows, i), at = row * cols.padded + j;
        float d = element::load(dy, at);
        gamma_sum += (double)(d * ((element::load(x, at) - mpp_read(mean, row)) * mpp_read(rstd, row)));
        beta_sum += (double)d;
    }
    if (gamma_parts != NULL)
        mpp_column_sum(gamma_sum, shared, cols.valid, gamma_parts);
    if (beta_parts != NULL)
        mpp_column_sum(beta_sum, shared, cols.valid, beta_parts);
}

template <int TYPE>
static void layernorm_backward(struct mpp_rank *r, unsigned mask, const struct mpp_space *space, struct mpp_extent cols, const void *x,
                               const float *gamma, const float *mean, const float *rstd, const void *dy, void *dx, float *dgamma,
                               float *dbeta)
{
    typedef typename mpp_element<TYPE>::stored stored;
    const struct mpp_valid_rows rows = mpp_valid_rows_of(space);
    const unsigned grid = mpp_row_grid(rows.n), block = mpp_row_block(cols.valid);
    if (dgamma != NULL || dbeta != NULL) { /* first: dx may be dy */
        double *parts = mpp_column_scratch(r, rows.n, cols.valid, 2), *more = parts + mpp_column_size(rows.n, cols.valid);
        MPP_LAUNCH(r, parameter_gradient_kernel<TYPE>, mpp_column_grid(rows.n, cols.valid), mpp_column_block(), MPP_COLUMN_SHARED, rows,
                   cols, (const stored *)x, mean, rstd, (const stored *)dy, dgamma != NULL ? parts : NULL, dbeta != NULL ? more : NULL);
        if (dgamma != NULL)
            mpp_columns_finish(r, rows.n, cols.valid, parts, false, dgamma);
        if (dbeta != NULL)
            mpp_columns_finish(r, rows.n, cols.valid, more, false, dbeta);
    }
    float *sums = NULL;
    if (mask != 0 && rows.n > 0) {
        sums = (float *)mpp_cuda_scratch(r, MPP_SCRATCH_ROWS, (size_t)(2 * rows.n) * sizeof *sums);
        MPP_LAUNCH(r, moments_kernel<TYPE>, grid, block, MPP_ROW_SHARED, rows, cols, (const stored *)x, gamma, mean, rstd,
                   (const stored *)dy, sums);
        mpp_all_reduce(r, mask, sums, 2 * rows.n, MPP_REDUCE_SUM);
    }
    MPP_LAUNCH(r, input_gradient_kernel<TYPE>, grid, block, MPP_ROW_SHARED, rows, cols, (const stored *)x, gamma, mean, rstd,
               (const stored *)dy, sums, (stored *)dx);
}

/* ---- softmax --------------------------------------------------------------------------------------- */

/* The row's largest element; a row of -Inf alone has none to subtract: 0. */
template <int TYPE> static __device__ float row_max(const typename mpp_element<TYPE>::stored *x, int64_t n, float *shared)
{
    float max = -INFINITY;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        max = mpp_larger()(max, mpp_element<TYPE>::load(x, i));
    return mpp_block_max(max, shared);
}

static __device__ __forceinline__ float shift_of(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

template <int TYPE>
__global__ void max_kernel(int64_t rows, struct mpp_extent cols, const typename mpp_element<TYPE>::stored *x, float *max)
{
    MPP_SHARED(double, shared);
    MPP_EACH_ROW(row, rows) {
        float m = row_max<TYPE>(x + row * cols.padded, cols.valid, (float *)shared);
        if (threadIdx.x == 0)
            mpp_write(max, row, m);
    }
}

template <int TYPE>
static __device__ double row_exp_sum(const typename mpp_element<TYPE>::stored *x, int64_t n, float shift, double *shared)
{
    return row_sum(n, shared, [&](int64_t i) { return (double)mpp_expf(mpp_element<TYPE>::load(x, i) - shift); });
}

template <int TYPE>
__global__ void exp_sum_kernel(int64_t rows, struct mpp_extent cols, const typename mpp_element<TYPE>::stored *x, const float *max,
                               float *sum)
{
    MPP_SHARED(double, shared);
    MPP_EACH_ROW(row, rows) {
        double s = row_exp_sum<TYPE>(x + row * cols.padded, cols.valid, shift_of(mpp_read(max, row)), shared);
        if (threadIdx.x == 0)
            mpp_write(sum, row, (float)s);
    }
}

/* Maximum and sum of a row are formed here where MAX is NULL. y may be x. */
template <int TYPE>
__global__ void softmax_kernel(int64_t rows, struct mpp_extent cols, const typename mpp_element<TYPE>::stored *x, const float *max,
                               const float *sum, typename mpp_element<TYPE>::stored *y)
{
    typedef mpp_element<TYPE> element;
    MPP_SHARED(double, shared);
    MPP_EACH_ROW(row, rows) {
        const typename element::stored *from = x + row * cols.padded;
        float shift = shift_of(max != NULL ? mpp_read(max, row) : row_max<TYPE>(from, cols.valid, (float *)shared));
        double total = sum != NULL ? (double)mpp_read(sum, row) : row_exp_sum<TYPE>(from, cols.valid, shift, shared);
        float factor = total == 0 ? 0.0f : (float)(1 / total);
        for (int64_t i = threadIdx.x; i < cols.valid; i += blockDim.x)
            element::store(y + row * cols.padded, i, mpp_expf(element::load(from, i) - shift) * factor);
    }
}

template <int TYPE>
static void softmax_forward(struct mpp_rank *r, unsigned mask, int64_t rows, struct mpp_extent cols, const void *x, void *y)
{
    typedef typename mpp_element<TYPE>::stored stored;
    const unsigned grid = mpp_row_grid(rows), block = mpp_row_block(cols.valid);
    float *max = NULL, *sum = NULL;
    if (mask != 0 && rows > 0) {
        max = (float *)mpp_cuda_scratch(r, MPP_SCRATCH_ROWS, (size_t)(2 * rows) * sizeof *max);
        sum = max + rows;
        MPP_LAUNCH(r, max_kernel<TYPE>, grid, block, MPP_ROW_SHARED, rows, cols, (const stored *)x, max);
        mpp_all_reduce(r, mask, max, rows, MPP_REDUCE_MAX);
        MPP_LAUNCH(r, exp_sum_kernel<TYPE>, grid, block, MPP_ROW_SHARED, rows, cols, (const stored *)x, max, sum);
        mpp_all_reduce(r, mask, sum, rows, MPP_REDUCE_SUM);
    }
    MPP_LAUNCH(r, softmax_kernel<TYPE>, grid, block, MPP_ROW_SHARED, rows, cols, (const stored *)x, max, sum, (stored *)y);
}

template <int TYPE>
static __device__ double row_dot(const typename mpp_element<TYPE>::stored *x, const typename mpp_element<TYPE>::stored *y, int64_t n,
                                 double *shared)
{
    return row_sum(n, shared,
                   [&](int64_t i) { return (double)mpp_element<TYPE>::load(x, i) * (double)mpp_element<TYPE>::load(y, i); });
}

template <int TYPE>
__global__ void dot_kernel(int64_t rows, struct mpp_extent cols, const typename mpp_element<TYPE>::stored *y,
                           const typename mpp_element<TYPE>::stored *dy, float *dot)
{
    MPP_SHARED(double, shared);
    MPP_EACH_ROW(row, rows) {
        double d = row_dot<TYPE>(y + row * cols.padded, dy + row * cols.padded, cols.valid, shared);
        if (threadIdx.x == 0)
            mpp_write(dot, row, (float)d);
    }
}

/* dx = y (dy - sum of y dy), the sum formed here where DOT is NULL. dx may be dy. */
template <int TYPE>
__global__ void softmax_gradient_kernel(int64_t rows, struct mpp_extent cols, const typename mpp_element<TYPE>::stored *y,
                                        const typename mpp_element<TYPE>::stored *dy, const float *dot,
                                        typename mpp_element<TYPE>::stored *dx)
{
    typedef mpp_element<TYPE> element;
    MPP_SHARED(double, shared);
    MPP_EACH_ROW(row, rows) {
        int64_t at = row * cols.padded;
        float less = dot != NULL ? mpp_read(dot, row) : (float)row_dot<TYPE>(y + at, dy + at, cols.valid, shared);
        for (int64_t i = threadIdx.x; i < cols.valid; i += blockDim.x)
            element::store(dx + at, i, element::load(y + at, i) * (element::load(dy + at, i) - less));
    }
}

template <int TYPE>
static void softmax_backward(struct mpp_rank *r, unsigned mask, int64_t rows, struct mpp_extent cols, const void *y, const void *dy,
                             void *dx)
{
    typedef typename mpp_element<TYPE>::stored stored;
    const unsigned grid = mpp_row_grid(rows), block = mpp_row_block(cols.valid);
    float *dot = NULL;
    if (mask != 0 && rows > 0) {
        dot = (float *)mpp_cuda_scratch(r, MPP_SCRATCH_ROWS, (size_t)rows * sizeof *dot);
        MPP_LAUNCH(r, dot_kernel<TYPE>, grid, block, MPP_ROW_SHARED, rows, cols, (const stored *)y, (const stored *)dy, dot);
        mpp_all_reduce(r, mask, dot, rows, MPP_REDUCE_SUM);
    }
    MPP_LAUNCH(r, softmax_gradient_kernel<TYPE>, grid, block, MPP_ROW_SHARED, rows, cols, (const stored *)y, (const stored *)dy, dot,
               (stored *)dx);
}

/* ---- entry points ----------------------------------------------------------------------------------- */

void mpp_layernorm_forward(struct mpp_rank *r, unsigned mask, int64_t rows, struct mpp_extent cols, float epsilon, const float *x,
                           const float *gamma, const float *beta, float *y, float *mean, float *rstd)
{
    layernorm_forward<MPP_TYPE_F32>(r, mask, rows, cols, epsilon, x, gamma, beta, y, mean, rstd);
}

void mpp_layernorm_forward_half(struct mpp_rank *r, enum mpp_type type, unsigned mask, int64_t rows, struct mpp_extent cols,
                                float epsilon, const void *x, const float *gamma, const float *beta, void *y, float *mean, float *rstd)
{
    MPP_BY_HALF(type, layernorm_forward, r, mask, rows, cols, epsilon, x, gamma, beta, y, mean, rstd);
}

void mpp_layernorm_backward(struct mpp_rank *r, unsigned mask, const struct mpp_space *rows, struct mpp_extent cols, const float *x,
                            const float *gamma, const float *mean, const float *rstd, const float *dy, float *dx, float *dgamma,
                            float *dbeta)
{
    layernorm_backward<MPP_TYPE_F32>(r, mask, rows, cols, x, gamma, mean, rstd, dy, dx, dgamma, dbeta);
}

void mpp_layernorm_backward_half(struct mpp_rank *r, enum mpp_type type, unsigned mask, const struct mpp_space *rows,
                                 struct mpp_extent cols, const void *x, const float *gamma, const float *mean, const float *rstd,
                                 const void *dy, void *dx, float *dgamma, float *dbeta)
{
    MPP_BY_HALF(type, layernorm_backward, r, mask, rows, cols, x, gamma, mean, rstd, dy, dx, dgamma, dbeta);
}

void mpp_softmax_forward(struct mpp_rank *r, unsigned mask, int64_t rows, struct mpp_extent cols, const float *x, float *y)
{
    softmax_forward<MPP_TYPE_F32>(r, mask, rows, cols, x, y);
}

void mpp_softmax_forward_half(struct mpp_rank *r, enum mpp_type type, unsigned mask, int64_t rows, struct mpp_extent cols,
                              const void *x, void *y)
{
    MPP_BY_HALF(type, softmax_forward, r, mask, rows, cols, x, y);
}

void mpp_softmax_backward(struct mpp_rank *r, unsigned mask, int64_t rows, struct mpp_extent cols, const float *y, const float *dy,
                          float *dx)
{
    softmax_backward<MPP_TYPE_F32>(r, mask, rows, cols, y, dy, dx);
}

void mpp_softmax_backward_half(struct mpp_rank *r, enum mpp_type type, unsigned mask, int64_t rows, struct mpp_extent cols,
                               const void *y, const void *dy, void *dx)
{
    MPP_BY_HALF(type, softmax_backward, r, mask, rows, cols, y, dy, dx);
}

int64_t mpp_rows_half_workspace(int64_t cols)
{
    (void)cols;
    return 0;
}
