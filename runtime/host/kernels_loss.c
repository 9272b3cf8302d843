/* Cross entropy over rows of logits (the vocabulary may be split), label counts, embedding tables. */
#include "kernels_internal.h"

#include <string.h>

/* The sum of e^(x - shift), by chunks that stay in the first-level cache. */
static double sum_of_exp(const float *x, float shift, int64_t n)
{
    float e[MPP_CHUNK];
    double sum = 0;
    for (int64_t base = 0; base < n; base += MPP_CHUNK)
        sum += mpp_row_exp(x + base, shift, mpp_min_i64(MPP_CHUNK, n - base), e);
    return sum;
}

/* LABEL's column in this shard, or -1. */
static int64_t column_of(int32_t label, struct mpp_extent cols)
{
    int64_t column = label - cols.offset;
    return column >= 0 && column < cols.valid ? column : -1;
}

void mpp_cross_entropy_forward(struct mpp_rank *r, unsigned mask, const struct mpp_space *rows, struct mpp_extent cols,
                               int32_t ignore_index, const float *logits, const int32_t *labels, const float *scale,
                               float *lse, float *loss)
{
    float max[MPP_ROW_BLOCK], sum[MPP_ROW_BLOCK];
    double log_sum[MPP_ROW_BLOCK], total = 0;
    int64_t block[MPP_ROW_BLOCK], n, stride = cols.padded;
    struct mpp_row_walk walk = mpp_rows_begin(rows);
    while ((n = mpp_rows_take(&walk, block, MPP_ROW_BLOCK)) > 0) {
        int64_t work = n * cols.valid;
        MPP_PARALLEL(r, work)
        for (int64_t b = 0; b < n; b++) {
            const float *x = logits + block[b] * stride;
            max[b] = mpp_row_max(x, cols.valid);
            if (!mask)
                log_sum[b] = (double)max[b] + log(sum_of_exp(x, max[b], cols.valid));
        }
        if (mask) {
            mpp_all_reduce(r, mask, max, n, MPP_REDUCE_MAX);
            MPP_PARALLEL(r, work)
            for (int64_t b = 0; b < n; b++)
                sum[b] = (float)sum_of_exp(logits + block[b] * stride, max[b], cols.valid);
            mpp_all_reduce(r, mask, sum, n, MPP_REDUCE_SUM);
            for (int64_t b = 0; b < n; b++)
                log_sum[b] = (double)max[b] + log((double)sum[b]);
        }
        for (int64_t b = 0; b < n; b++) {
            int64_t row = block[b], column = column_of(labels[row], cols);
            lse[row] = (float)log_sum[b];
            if (labels[row] != ignore_index && column >= 0)
                total += log_sum[b] - (double)logits[row * stride + column];
        }
    }
    *loss = (float)(total * (double)*scale);
}

/* dx = (softmax - onehot) * factor; COLUMN: the label's in this shard, or -1. dx may be x. */
static void row_loss_gradient(int64_t n, const float *x, float shift, float factor, int64_t column, float *dx)
{
    float at_label = column >= 0 ? (mpp_expf(x[column] - shift) - 1.0f) * factor : 0.0f;
    MPP_IVDEP
    for (int64_t i = 0; i < n; i++)
        dx[i] = mpp_expf(x[i] - shift) * factor;
    if (column >= 0)
        dx[column] = at_label;
}

void mpp_cross_entropy_backward(struct mpp_rank *r, const struct mpp_space *rows, struct mpp_extent cols,
                                int32_t ignore_index, const float *logits, const int32_t *labels, const float *lse,
                                const float *scale, const float *dloss, float *dlogits)
{
    float factor = *scale * *dloss;
    int64_t block[MPP_ROW_BLOCK], n;
    struct mpp_row_walk walk = mpp_rows_begin(rows);
    while ((n = mpp_rows_take(&walk, block, MPP_ROW_BLOCK)) > 0) {
        MPP_PARALLEL(r, n * cols.valid)
        for (int64_t b = 0; b < n; b++) {
            int64_t row = block[b];
            float *dx = dlogits + row * cols.padded;
            if (labels[row] == ignore_index)
                memset(dx, 0, (size_t)cols.valid * sizeof *dx);
            else
                row_loss_gradient(cols.valid, logits + row * cols.padded, lse[row], factor,
                                  column_of(labels[row], cols), dx);
        }
    }
}

void mpp_count_labels(struct mpp_rank *r, const struct mpp_space *rows, int32_t ignore_index, const int32_t *labels,
                      float *count)
{
    (void)r;
    int64_t block[MPP_ROW_BLOCK], n, total = 0;
    struct mpp_row_walk walk = mpp_rows_begin(rows);
    while ((n = mpp_rows_take(&walk, block, MPP_ROW_BLOCK)) > 0)
        for (int64_t b = 0; b < n; b++)
            total += labels[block[b]] != ignore_index;
    *count = (float)total;
}

/* ---- embedding -------------------------------------------------------------------------------------- */

void mpp_embedding_forward(struct mpp_rank *r, const struct mpp_space *rows, struct mpp_extent vocab, int64_t width,
                           const int32_t *ids, const float *table, float *y)
{
    int64_t block[MPP_ROW_BLOCK], n;
    struct mpp_row_walk walk = mpp_rows_begin(rows);
    while ((n = mpp_rows_take(&walk, block, MPP_ROW_BLOCK)) > 0) {
        MPP_PARALLEL(r, n * width)
        for (int64_t b = 0; b < n; b++) {
            int64_t id = column_of(ids[block[b]], vocab);
            float *to = y + block[b] * width;
            if (id >= 0)
                memcpy(to, table + id * width, (size_t)width * sizeof *to);
            else
                memset(to, 0, (size_t)width * sizeof *to);
        }
    }
}

enum { SMALL_TABLE = 8, SMALL_TABLE_COLUMNS = 128 };

/* A table of few rows takes very many terms in each: sums in double, by tiles of columns. */
static void add_to_small_table(const struct mpp_rank *r, const struct mpp_space *rows, struct mpp_extent vocab,
                               int64_t width, const int32_t *ids, const float *dy, float *dtable)
{
    MPP_PARALLEL(r, mpp_rows_count(rows) * width)
    for (int64_t base = 0; base < width; base += SMALL_TABLE_COLUMNS) {
        double sum[SMALL_TABLE][SMALL_TABLE_COLUMNS] = {{0}};
        int64_t block[MPP_ROW_BLOCK], n, part = mpp_min_i64(SMALL_TABLE_COLUMNS, width - base);
        struct mpp_row_walk walk = mpp_rows_begin(rows);
        while ((n = mpp_rows_take(&walk, block, MPP_ROW_BLOCK)) > 0)
            for (int64_t b = 0; b < n; b++) {
                int64_t id = column_of(ids[block[b]], vocab);
                const float *from = dy + block[b] * width + base;
                for (int64_t i = 0; i < part && id >= 0; i++)
                    sum[id][i] += (double)from[i];
            }
        for (int64_t id = 0; id < vocab.valid; id++)
            for (int64_t i = 0; i < part; i++)
                dtable[id * width + base + i] = (float)((double)dtable[id * width + base + i] + sum[id][i]);
    }
}

/* Columns FIRST .. LAST - 1 of dtable take what all rows of dy give them. */
static void add_columns(const struct mpp_space *rows, struct mpp_extent vocab, int64_t width, int64_t first,
                        int64_t last, const int32_t *ids, const float *dy, float *dtable)
{
    int64_t block[MPP_ROW_BLOCK], n;
    struct mpp_row_walk walk = mpp_rows_begin(rows);
    while ((n = mpp_rows_take(&walk, block, MPP_ROW_BLOCK)) > 0)
        for (int64_t b = 0; b < n; b++) {
            int64_t id = column_of(ids[block[b]], vocab);
            const float *from = dy + block[b] * width;
            if (id < 0)
                continue;
            float *to = dtable + id * width;
            for (int64_t i = first; i < last; i++)
                to[i] += from[i];
        }
}

void mpp_embedding_backward(struct mpp_rank *r, const struct mpp_space *rows, struct mpp_extent vocab, int64_t width,
                            const int32_t *ids, const float *dy, float beta, float *dtable)
{
    if (beta == 0.0f) {
        MPP_PARALLEL(r, vocab.padded * width)
        for (int64_t id = 0; id < vocab.padded; id++)
            memset(dtable + id * width, 0, (size_t)width * sizeof *dtable);
    }
    if (vocab.valid <= SMALL_TABLE) {
        add_to_small_table(r, rows, vocab, width, ids, dy, dtable);
        return;
    }
    int64_t work = mpp_rows_count(rows) * width;
    int64_t part = (width + mpp_team(r, work) - 1) / mpp_team(r, work);
    part = mpp_max_i64(16, (part + 15) / 16 * 16); /* whole cache lines */
    MPP_PARALLEL(r, work)
    for (int64_t first = 0; first < width; first += part)
        add_columns(rows, vocab, width, first, mpp_min_i64(width, first + part), ids, dy, dtable);
}
