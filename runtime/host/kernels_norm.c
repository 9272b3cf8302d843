/* LayerNorm and softmax over rows that may be split over ranks: the sums of a row (and its maximum) are
 * finished by all-reduces of one or two floats per row. */
#include "kernels_internal.h"

#include <string.h>

/* ---- LayerNorm (Ba, Kiros & Hinton 2016) ---------------------------------------------------------- */

static void normalise_row(int64_t n, const float *x, float mean, float rstd, const float *gamma, const float *beta,
                          float *y)
{
    if (gamma && beta) {
        MPP_IVDEP
        for (int64_t i = 0; i < n; i++)
            y[i] = MPP_FMAF((x[i] - mean) * rstd, gamma[i], beta[i]);
    } else if (gamma) {
        MPP_IVDEP
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - mean) * rstd * gamma[i];
    } else {
        MPP_IVDEP
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - mean) * rstd + (beta ? beta[i] : 0.0f);
    }
}

void mpp_layernorm_forward(struct mpp_rank *r, unsigned mask, int64_t rows, struct mpp_extent cols, float epsilon,
                           const float *x, const float *gamma, const float *beta, float *y, float *mean, float *rstd)
{
    double n = (double)cols.global;
    int64_t work = rows * cols.valid;
    if (mask) {
        MPP_PARALLEL(r, work)
        for (int64_t i = 0; i < rows; i++)
            mean[i] = (float)(mpp_row_sum(x + i * cols.padded, cols.valid) / n);
        mpp_all_reduce(r, mask, mean, rows, MPP_REDUCE_SUM);
        MPP_PARALLEL(r, work)
        for (int64_t i = 0; i < rows; i++)
            rstd[i] = (float)(mpp_row_square_deviation(x + i * cols.padded, mean[i], cols.valid) / n);
        mpp_all_reduce(r, mask, rstd, rows, MPP_REDUCE_SUM);
    }
    MPP_PARALLEL(r, work)
    for (int64_t i = 0; i < rows; i++) {
        const float *row = x + i * cols.padded;
        if (!mask)
            mean[i] = (float)(mpp_row_sum(row, cols.valid) / n);
        double variance = mask ? rstd[i] : mpp_row_square_deviation(row, mean[i], cols.valid) / n;
        rstd[i] = (float)(1 / sqrt(variance + (double)epsilon));
        normalise_row(cols.valid, row, mean[i], rstd[i], gamma, beta, y + i * cols.padded);
    }
}

/* out[0] = sum of dy gamma, out[1] = sum of dy gamma (x - mean) rstd; gamma may be NULL. */
static void row_moments(int64_t n, const float *x, const float *gamma, float mean, float rstd, const float *dy,
                        float out[2])
{
    float g[MPP_CHUNK], t[MPP_CHUNK];
    double first = 0, second = 0;
    for (int64_t base = 0; base < n; base += MPP_CHUNK) {
        int64_t part = mpp_min_i64(MPP_CHUNK, n - base);
        for (int64_t i = 0; i < part; i++) {
            g[i] = gamma ? dy[base + i] * gamma[base + i] : dy[base + i];
            t[i] = (x[base + i] - mean) * rstd;
        }
        first += mpp_row_sum(g, part);
        second += mpp_row_dot(g, t, part);
    }
    out[0] = (float)first;
    out[1] = (float)second;
}

/* dx = rstd (dy gamma - m0 - (x - mean) rstd m1). */
static void row_input_gradient(int64_t n, const float *x, const float *gamma, float mean, float rstd, const float *dy,
                               float m0, float m1, float *dx)
{
    MPP_IVDEP
    for (int64_t i = 0; i < n; i++) {
        float g = gamma ? dy[i] * gamma[i] : dy[i];
        float t = (x[i] - mean) * rstd;
        dx[i] = rstd * (g - m0 - t * m1);
    }
}

/* Adds dy (x - mean) rstd and dy of one row, from column BASE on, to the sums of PART columns. */
static void add_row(int64_t part, const float *x, const float *dy, float mean, float rstd, double *sum_gamma,
                    double *sum_beta)
{
    for (int64_t i = 0; i < part; i++) {
        sum_gamma[i] += (double)(dy[i] * ((x[i] - mean) * rstd));
        sum_beta[i] += (double)dy[i];
    }
}

/* The same for four rows: four terms in float, then one addition in double. */
static void add_four_rows(int64_t part, const float *const x[4], const float *const dy[4], const float mean[4],
                          const float rstd[4], double *sum_gamma, double *sum_beta)
{
    const float *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3], *d0 = dy[0], *d1 = dy[1], *d2 = dy[2], *d3 = dy[3];
    float m0 = mean[0], m1 = mean[1], m2 = mean[2], m3 = mean[3];
    float r0 = rstd[0], r1 = rstd[1], r2 = rstd[2], r3 = rstd[3];
    MPP_IVDEP
    for (int64_t i = 0; i < part; i++) {
        float g0 = d0[i] * ((x0[i] - m0) * r0), g1 = d1[i] * ((x1[i] - m1) * r1);
        float g2 = d2[i] * ((x2[i] - m2) * r2), g3 = d3[i] * ((x3[i] - m3) * r3);
        sum_gamma[i] += (double)((g0 + g1) + (g2 + g3));
        sum_beta[i] += (double)((d0[i] + d1[i]) + (d2[i] + d3[i]));
    }
}

static void add_rows(int64_t n, const int64_t *rows, int64_t stride, int64_t base, int64_t part, const float *x,
                     const float *mean, const float *rstd, const float *dy, double *sum_gamma, double *sum_beta)
{
    int64_t b = 0;
    for (; b + 4 <= n; b += 4) {
        const float *xs[4], *dys[4];
        float means[4], rstds[4];
        for (int j = 0; j < 4; j++) {
            int64_t row = rows[b + j];
            xs[j] = x + row * stride + base;
            dys[j] = dy + row * stride + base;
            means[j] = mean[row];
            rstds[j] = rstd[row];
        }
        add_four_rows(part, xs, dys, means, rstds, sum_gamma, sum_beta);
    }
    for (; b < n; b++)
        add_row(part, x + rows[b] * stride + base, dy + rows[b] * stride + base, mean[rows[b]], rstd[rows[b]],
                sum_gamma, sum_beta);
}

enum { TILE_COLS = 128 };

/* dgamma, dbeta by tiles of columns, so that a tile's sums over all rows stay in double on the stack. */
static void parameter_gradients(const struct mpp_rank *r, const struct mpp_space *rows, struct mpp_extent cols,
                                const float *x, const float *mean, const float *rstd, const float *dy, float *dgamma,
                                float *dbeta)
{
    MPP_PARALLEL(r, mpp_rows_count(rows) * cols.valid)
    for (int64_t base = 0; base < cols.valid; base += TILE_COLS) {
        double sum_gamma[TILE_COLS] = {0}, sum_beta[TILE_COLS] = {0};
        int64_t block[MPP_ROW_BLOCK], n, part = mpp_min_i64(TILE_COLS, cols.valid - base);
        struct mpp_row_walk walk = mpp_rows_begin(rows);
        while ((n = mpp_rows_take(&walk, block, MPP_ROW_BLOCK)) > 0)
            add_rows(n, block, cols.padded, base, part, x, mean, rstd, dy, sum_gamma, sum_beta);
        for (int64_t i = 0; i < part; i++) {
            if (dgamma)
                dgamma[base + i] = (float)sum_gamma[i];
            if (dbeta)
                dbeta[base + i] = (float)sum_beta[i];
        }
    }
}

void mpp_layernorm_backward(struct mpp_rank *r, unsigned mask, const struct mpp_space *rows, struct mpp_extent cols,
                            const float *x, const float *gamma, const float *mean, const float *rstd,
                            const float *dy, float *dx, float *dgamma, float *dbeta)
{
    if (dgamma || dbeta) /* first: dx may be dy */
        parameter_gradients(r, rows, cols, x, mean, rstd, dy, dgamma, dbeta);
    float sums[2 * MPP_ROW_BLOCK];
    int64_t block[MPP_ROW_BLOCK], n, stride = cols.padded;
    struct mpp_row_walk walk = mpp_rows_begin(rows);
    float per_row = (float)(1 / (double)cols.global);
    while ((n = mpp_rows_take(&walk, block, MPP_ROW_BLOCK)) > 0) {
        MPP_PARALLEL(r, n * cols.valid)
        for (int64_t b = 0; b < n; b++) {
            int64_t i = block[b];
            float *sum = sums + 2 * b;
            row_moments(cols.valid, x + i * stride, gamma, mean[i], rstd[i], dy + i * stride, sum);
            if (!mask)
                row_input_gradient(cols.valid, x + i * stride, gamma, mean[i], rstd[i], dy + i * stride,
                                   sum[0] * per_row, sum[1] * per_row, dx + i * stride);
        }
        if (!mask)
            continue;
        mpp_all_reduce(r, mask, sums, 2 * n, MPP_REDUCE_SUM);
        MPP_PARALLEL(r, n * cols.valid)
        for (int64_t b = 0; b < n; b++) {
            int64_t i = block[b];
            row_input_gradient(cols.valid, x + i * stride, gamma, mean[i], rstd[i], dy + i * stride,
                               sums[2 * b] * per_row, sums[2 * b + 1] * per_row, dx + i * stride);
        }
    }
}

/* ---- softmax --------------------------------------------------------------------------------------- */

/* A row of -Inf alone has no largest element to subtract; its softmax is 0 here. */
static float shift_of(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

static void scale_row(int64_t n, double sum, float *y)
{
    float factor = sum == 0 ? 0.0f : (float)(1 / sum);
    for (int64_t i = 0; i < n; i++)
        y[i] *= factor;
}

void mpp_softmax_forward(struct mpp_rank *r, unsigned mask, int64_t rows, struct mpp_extent cols, const float *x,
                         float *y)
{
    float max[MPP_ROW_BLOCK], sum[MPP_ROW_BLOCK];
    int64_t stride = cols.padded;
    if (!mask) {
        MPP_PARALLEL(r, rows * cols.valid)
        for (int64_t i = 0; i < rows; i++) {
            float shift = shift_of(mpp_row_max(x + i * stride, cols.valid));
            scale_row(cols.valid, mpp_row_exp(x + i * stride, shift, cols.valid, y + i * stride), y + i * stride);
        }
        return;
    }
    for (int64_t base = 0; base < rows; base += MPP_ROW_BLOCK) {
        int64_t n = mpp_min_i64(MPP_ROW_BLOCK, rows - base);
        MPP_PARALLEL(r, n * cols.valid)
        for (int64_t i = 0; i < n; i++)
            max[i] = mpp_row_max(x + (base + i) * stride, cols.valid);
        mpp_all_reduce(r, mask, max, n, MPP_REDUCE_MAX);
        MPP_PARALLEL(r, n * cols.valid)
        for (int64_t i = 0; i < n; i++) {
            int64_t at = (base + i) * stride;
            sum[i] = (float)mpp_row_exp(x + at, shift_of(max[i]), cols.valid, y + at);
        }
        mpp_all_reduce(r, mask, sum, n, MPP_REDUCE_SUM);
        MPP_PARALLEL(r, n * cols.valid)
        for (int64_t i = 0; i < n; i++)
            scale_row(cols.valid, sum[i], y + (base + i) * stride);
    }
}

static void softmax_input_gradient(int64_t n, const float *y, const float *dy, float dot, float *dx)
{
    MPP_IVDEP
    for (int64_t i = 0; i < n; i++)
        dx[i] = y[i] * (dy[i] - dot);
}

void mpp_softmax_backward(struct mpp_rank *r, unsigned mask, int64_t rows, struct mpp_extent cols, const float *y,
                          const float *dy, float *dx)
{
    float dot[MPP_ROW_BLOCK];
    int64_t stride = cols.padded;
    for (int64_t base = 0; base < rows; base += MPP_ROW_BLOCK) {
        int64_t n = mpp_min_i64(MPP_ROW_BLOCK, rows - base);
        MPP_PARALLEL(r, n * cols.valid)
        for (int64_t i = 0; i < n; i++) {
            int64_t at = (base + i) * stride;
            dot[i] = (float)mpp_row_dot(y + at, dy + at, cols.valid);
            if (!mask)
                softmax_input_gradient(cols.valid, y + at, dy + at, dot[i], dx + at);
        }
        if (!mask)
            continue;
        mpp_all_reduce(r, mask, dot, n, MPP_REDUCE_SUM);
        MPP_PARALLEL(r, n * cols.valid)
        for (int64_t i = 0; i < n; i++) {
            int64_t at = (base + i) * stride;
            softmax_input_gradient(cols.valid, y + at, dy + at, dot[i], dx + at);
        }
    }
}
