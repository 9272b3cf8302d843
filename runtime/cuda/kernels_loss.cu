/* Cross entropy over rows of logits (the vocabulary may be split), label counts. */
#include "cuda/rows.cuh"

/* LABEL's column in this shard, or -1. */
static __device__ __forceinline__ int64_t column_of(int32_t label, const struct mpp_extent &cols)
{
    int64_t column = label - cols.offset;
    return column >= 0 && column < cols.valid ? column : -1;
}

/* ---- cross entropy ---------------------------------------------------------------------------------- */

template <int TYPE> static __device__ float largest(const typename mpp_element<TYPE>::stored *x, int64_t n, float *shared)
{
    float max = -INFINITY;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        max = mpp_larger()(max, mpp_element<TYPE>::load(x, i));
    return mpp_block_max(max, shared);
}

template <int TYPE>
static __device__ double sum_of_exp(const typename mpp_element<TYPE>::stored *x, int64_t n, float shift, double *shared)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += (double)mpp_expf(mpp_element<TYPE>::load(x, i) - shift);
    return mpp_block_sum(sum, shared);
}

template <int TYPE>
__global__ void label_max_kernel(struct mpp_valid_rows rows, struct mpp_extent cols, const typename mpp_element<TYPE>::stored *x,
                                 float *max)
{
    MPP_SHARED(double, shared);
    MPP_EACH_ROW(b, rows.n) {
        float m = largest<TYPE>(x + mpp_row_at(rows, b) * cols.padded, cols.valid, (float *)shared);
        if (threadIdx.x == 0)
            mpp_write(max, b, m);
    }
}

template <int TYPE>
__global__ void label_sum_kernel(struct mpp_valid_rows rows, struct mpp_extent cols, const typename mpp_element<TYPE>::stored *x,
                                 const float *max, float *sum)
{
    MPP_SHARED(double, shared);
    MPP_EACH_ROW(b, rows.n) {
        double s = sum_of_exp<TYPE>(x + mpp_row_at(rows, b) * cols.padded, cols.valid, mpp_read(max, b), shared);
        if (threadIdx.x == 0)
            mpp_write(sum, b, (float)s);
    }
}

/* lse of each row and its term of the loss; the row's maximum and sum are formed here where MAX is NULL. */
template <int TYPE>
__global__ void row_loss_kernel(struct mpp_valid_rows rows, struct mpp_extent cols, int32_t ignore_index,
                                const typename mpp_element<TYPE>::stored *logits, const int32_t *labels, const float *max,
                                const float *sum, float *lse, double *terms)
{
    MPP_SHARED(double, shared);
    MPP_EACH_ROW(b, rows.n) {
        int64_t row = mpp_row_at(rows, b);
        const typename mpp_element<TYPE>::stored *x = logits + row * cols.padded;
        float m = max != NULL ? mpp_read(max, b) : largest<TYPE>(x, cols.valid, (float *)shared);
        double s = sum != NULL ? (double)mpp_read(sum, b) : sum_of_exp<TYPE>(x, cols.valid, m, shared);
        if (threadIdx.x == 0) {
            int32_t label = mpp_read(labels, row);
            int64_t column = column_of(label, cols);
            double log_sum = (double)m + log(s);
            mpp_write(lse, row, (float)log_sum);
            mpp_write(terms, b,
                      label != ignore_index && column >= 0 ? log_sum - (double)mpp_element<TYPE>::load(x, column) : 0.0);
        }
    }
}

/* *out = the sum of N terms times *scale. One block. */
__global__ void sum_terms_kernel(int64_t n, const double *terms, const float *scale, float *out)
{
    MPP_SHARED(double, shared);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += mpp_read(terms, i);
    sum = mpp_block_sum(sum, shared);
    if (threadIdx.x == 0)
        mpp_write(out, 0, (float)(sum * (double)mpp_read(scale, 0)));
}

template <int TYPE>
static void cross_entropy_forward(struct mpp_rank *r, unsigned mask, const struct mpp_space *space, struct mpp_extent cols,
                                  int32_t ignore_index, const void *logits, const int32_t *labels, const float *scale, float *lse,
                                  float *loss)
{
    typedef typename mpp_element<TYPE>::stored stored;
    const struct mpp_valid_rows rows = mpp_valid_rows_of(space);
    const unsigned grid = mpp_row_grid(rows.n), block = mpp_row_block(cols.valid);
    double *terms = (double *)mpp_cuda_scratch(r, MPP_SCRATCH_ROWS, (size_t)(rows.n + 1) * (sizeof *terms + 2 * sizeof(float)));
    float *max = NULL, *sum = NULL;
    if (mask != 0 && rows.n > 0) {
        max = (float *)(terms + rows.n);
        sum = max + rows.n;
        MPP_LAUNCH(r, label_max_kernel<TYPE>, grid, block, MPP_ROW_SHARED, rows, cols, (const stored *)logits, max);
        mpp_all_reduce(r, mask, max, rows.n, MPP_REDUCE_MAX);
        MPP_LAUNCH(r, label_sum_kernel<TYPE>, grid, block, MPP_ROW_SHARED, rows, cols, (const stored *)logits, max, sum);
        mpp_all_reduce(r, mask, sum, rows.n, MPP_REDUCE_SUM);
    }
    MPP_LAUNCH(r, row_loss_kernel<TYPE>, grid, block, MPP_ROW_SHARED, rows, cols, ignore_index, (const stored *)logits, labels, max, sum,
               lse, terms);
    MPP_LAUNCH(r, sum_terms_kernel, 1, MPP_BLOCK, MPP_ROW_SHARED, rows.n, terms, scale, loss);
}

/* (softmax - onehot) * *scale * *dloss, 0 where the label is ignored. dlogits may be logits. */
template <int TYPE>
__global__ void loss_gradient_kernel(struct mpp_valid_rows rows, struct mpp_extent cols, int32_t ignore_index,
                                     const typename mpp_element<TYPE>::stored *logits, const int32_t *labels, const float *lse,
                                     const float *scale, const float *dloss, typename mpp_element<TYPE>::stored *dlogits)
{
    typedef mpp_element<TYPE> element;
    const float factor = mpp_read(scale, 0) * mpp_read(dloss, 0);
    MPP_EACH_ROW(b, rows.n) {
        int64_t row = mpp_row_at(rows, b), at = row * cols.padded;
        int32_t label = mpp_read(labels, row);
        int64_t column = column_of(label, cols);
        float shift = mpp_read(lse, row);
        for (int64_t i = threadIdx.x; i < cols.valid; i += blockDim.x) {
            float p = label == ignore_index ? 0.0f : mpp_expf(element::load(logits + at, i) - shift);
            float d = i == column && label != ignore_index ? p - 1.0f : p;
            element::store(dlogits + at, i, label == ignore_index ? 0.0f : d * factor);
        }
    }
}

template <int TYPE>
static void cross_entropy_backward(struct mpp_rank *r, const struct mpp_space *space, struct mpp_extent cols, int32_t ignore_index,
                                   const void *logits, const int32_t *labels, const float *lse, const float *scale, const float *dloss,
                                   void *dlogits)
{
    typedef typename mpp_element<TYPE>::stored stored;
    const struct mpp_valid_rows rows = mpp_valid_rows_of(space);
    MPP_LAUNCH(r, loss_gradient_kernel<TYPE>, mpp_row_grid(rows.n), mpp_row_block(cols.valid), 0, rows, cols, ignore_index,
               (const stored *)logits, labels, lse, scale, dloss, (stored *)dlogits);
}

__global__ void count_labels_kernel(struct mpp_valid_rows rows, int32_t ignore_index, const int32_t *labels, float *count)
{
    MPP_SHARED(double, shared);
    double n = 0;
    for (int64_t b = threadIdx.x; b < rows.n; b += blockDim.x)
        n += mpp_read(labels, mpp_row_at(rows, b)) != ignore_index ? 1 : 0;
    n = mpp_block_sum(n, shared);
    if (threadIdx.x == 0)
        mpp_write(count, 0, (float)n);
}

void mpp_count_labels(struct mpp_rank *r, const struct mpp_space *rows, int32_t ignore_index, const int32_t *labels, float *count)
{
    MPP_LAUNCH(r, count_labels_kernel, 1, MPP_BLOCK, MPP_ROW_SHARED, mpp_valid_rows_of(rows), ignore_index, labels, count);
}

/* ---- entry points ----------------------------------------------------------------------------------- */

void mpp_cross_entropy_forward(struct mpp_rank *r, unsigned mask, const struct mpp_space *rows, struct mpp_extent cols,
                               int32_t ignore_index, const float *logits, const int32_t *labels, const float *scale, float *lse,
                               float *loss)
{
    cross_entropy_forward<MPP_TYPE_F32>(r, mask, rows, cols, ignore_index, logits, labels, scale, lse, loss);
}

void mpp_cross_entropy_forward_half(struct mpp_rank *r, enum mpp_type type, unsigned mask, const struct mpp_space *rows,
                                    struct mpp_extent cols, int32_t ignore_index, const void *logits, const int32_t *labels,
                                    const float *scale, float *lse, float *loss)
{
    MPP_BY_HALF(type, cross_entropy_forward, r, mask, rows, cols, ignore_index, logits, labels, scale, lse, loss);
}

void mpp_cross_entropy_backward(struct mpp_rank *r, const struct mpp_space *rows, struct mpp_extent cols, int32_t ignore_index,
                                const float *logits, const int32_t *labels, const float *lse, const float *scale, const float *dloss,
                                float *dlogits)
{
    cross_entropy_backward<MPP_TYPE_F32>(r, rows, cols, ignore_index, logits, labels, lse, scale, dloss, dlogits);
}

void mpp_cross_entropy_backward_half(struct mpp_rank *r, enum mpp_type type, const struct mpp_space *rows, struct mpp_extent cols,
                                     int32_t ignore_index, const void *logits, const int32_t *labels, const float *lse,
                                     const float *scale, const float *dloss, void *dlogits)
{
    MPP_BY_HALF(type, cross_entropy_backward, r, rows, cols, ignore_index, logits, labels, lse, scale, dloss, dlogits);
}
