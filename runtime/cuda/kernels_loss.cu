/* Cross entropy over rows of logits (the vocabulary may be split), label counts, embedding tables. */
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

/* ---- embedding -------------------------------------------------------------------------------------- */

/* Threads take packs of W columns. */
template <class T, int W>
__global__ void embedding_kernel(struct mpp_valid_rows rows, struct mpp_extent vocab, int64_t width, const int32_t *ids, const T *table,
                                 T *y)
{
    const int64_t packs = width / W;
    MPP_EACH(i, rows.n * packs) {
        int64_t row = mpp_row_at(rows, i / packs), j = i % packs * W, id = column_of(mpp_read(ids, row), vocab);
        mpp_pack<T, W> value = {};
        if (id >= 0)
            value = mpp_read_pack<W>(table, id * width + j);
        mpp_write_pack<W>(y, row * width + j, value);
    }
}

template <class T>
static void embedding_forward(struct mpp_rank *r, const struct mpp_space *space, struct mpp_extent vocab, int64_t width,
                              const int32_t *ids, const T *table, T *y)
{
    const struct mpp_valid_rows rows = mpp_valid_rows_of(space);
    if (mpp_packs(width) && mpp_aligned(table, y))
        MPP_LAUNCH(r, (embedding_kernel<T, 4>), mpp_grid(rows.n * width / 4, MPP_BLOCK), MPP_BLOCK, 0, rows, vocab, width, ids, table, y);
    else
        MPP_LAUNCH(r, (embedding_kernel<T, 1>), mpp_grid(rows.n * width, MPP_BLOCK), MPP_BLOCK, 0, rows, vocab, width, ids, table, y);
}

/* Rows of the same id as a chain in their order: next[b], or -1 at its end; next[rows.n + b] = 1 where a chain begins at b. Rows
 * outside of the shard begin none. */
__global__ void chain_kernel(struct mpp_valid_rows rows, struct mpp_extent vocab, const int32_t *ids, int32_t *next)
{
    MPP_EACH(b, rows.n) {
        int32_t id = mpp_read(ids, mpp_row_at(rows, b)), after = -1, begins = column_of(id, vocab) >= 0 ? 1 : 0;
        for (int64_t k = b + 1; k < rows.n && after < 0 && column_of(id, vocab) >= 0; k++)
            after = mpp_read(ids, mpp_row_at(rows, k)) == id ? (int32_t)k : -1;
        for (int64_t k = b - 1; k >= 0 && begins; k--)
            begins = mpp_read(ids, mpp_row_at(rows, k)) != id;
        mpp_write(next, b, after);
        mpp_write(next, rows.n + b, begins);
    }
}

/* A block for each beginning of a chain. */
template <int TYPE>
__global__ void table_gradient_kernel(struct mpp_valid_rows rows, struct mpp_extent vocab, int64_t width, const int32_t *ids,
                                      const int32_t *next, const typename mpp_element<TYPE>::stored *dy, float *dtable)
{
    MPP_EACH_ROW(b, rows.n) {
        if (!mpp_read(next, rows.n + b))
            continue;
        float *to = dtable + column_of(mpp_read(ids, mpp_row_at(rows, b)), vocab) * width;
        for (int64_t j = threadIdx.x; j < width; j += blockDim.x) {
            double sum = (double)mpp_read(to, j);
            for (int64_t k = b; k >= 0; k = mpp_read(next, k))
                sum += (double)mpp_element<TYPE>::load(dy, mpp_row_at(rows, k) * width + j);
            mpp_write(to, j, (float)sum);
        }
    }
}

/* The parts of the sums of the rows that have ID. */
template <int TYPE>
__global__ void one_id_kernel(struct mpp_valid_rows rows, int32_t id, int64_t width, const int32_t *ids,
                              const typename mpp_element<TYPE>::stored *dy, double *parts)
{
    MPP_SHARED(double, shared);
    const int64_t j = mpp_column(), end = mpp_end_row(rows.n);
    double sum = 0;
    for (int64_t i = mpp_first_row(rows.n); i < end && j < width; i += MPP_COLUMN_THREADS) {
        int64_t row = mpp_row_at(rows, i);
        if (mpp_read(ids, row) == id)
            sum += (double)mpp_element<TYPE>::load(dy, row * width + j);
    }
    mpp_column_sum(sum, shared, width, parts);
}

enum { SMALL_TABLE = 8 }; /* a table of few rows has long chains: sums over columns instead */

template <int TYPE>
static void embedding_backward(struct mpp_rank *r, const struct mpp_space *space, struct mpp_extent vocab, int64_t width,
                               const int32_t *ids, const void *dy, float beta, float *dtable)
{
    typedef typename mpp_element<TYPE>::stored stored;
    const struct mpp_valid_rows rows = mpp_valid_rows_of(space);
    if (beta == 0.0f)
        mpp_zero(r, dtable, (size_t)(vocab.padded * width) * sizeof *dtable);
    if (rows.n == 0 || width == 0)
        return;
    if (vocab.valid <= SMALL_TABLE) {
        double *parts = mpp_column_scratch(r, rows.n, width, 1);
        for (int64_t id = 0; id < vocab.valid; id++) {
            MPP_LAUNCH(r, one_id_kernel<TYPE>, mpp_column_grid(rows.n, width), mpp_column_block(), MPP_COLUMN_SHARED, rows,
                       (int32_t)(vocab.offset + id), width, ids, (const stored *)dy, parts);
            mpp_columns_finish(r, rows.n, width, parts, true, dtable + id * width);
        }
        return;
    }
    int32_t *next = (int32_t *)mpp_cuda_scratch(r, MPP_SCRATCH_ROWS, (size_t)(2 * rows.n) * sizeof *next);
    MPP_LAUNCH(r, chain_kernel, mpp_grid(rows.n, MPP_WARP), MPP_WARP, 0, rows, vocab, ids, next);
    MPP_LAUNCH(r, table_gradient_kernel<TYPE>, mpp_row_grid(rows.n), mpp_row_block(width), 0, rows, vocab, width, ids, next,
               (const stored *)dy, dtable);
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

void mpp_embedding_forward(struct mpp_rank *r, const struct mpp_space *rows, struct mpp_extent vocab, int64_t width, const int32_t *ids,
                           const float *table, float *y)
{
    embedding_forward(r, rows, vocab, width, ids, table, y);
}

void mpp_embedding_forward_half(struct mpp_rank *r, const struct mpp_space *rows, struct mpp_extent vocab, int64_t width,
                                const int32_t *ids, const void *table, void *y)
{
    embedding_forward(r, rows, vocab, width, ids, (const uint16_t *)table, (uint16_t *)y);
}

void mpp_embedding_backward(struct mpp_rank *r, const struct mpp_space *rows, struct mpp_extent vocab, int64_t width,
                            const int32_t *ids, const float *dy, float beta, float *dtable)
{
    embedding_backward<MPP_TYPE_F32>(r, rows, vocab, width, ids, dy, beta, dtable);
}

void mpp_embedding_backward_half(struct mpp_rank *r, enum mpp_type type, const struct mpp_space *rows, struct mpp_extent vocab,
                                 int64_t width, const int32_t *ids, const void *dy, float beta, float *dtable)
{
    MPP_BY_HALF(type, embedding_backward, r, rows, vocab, width, ids, dy, beta, dtable);
}
