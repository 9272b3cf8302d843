/* Kernels over rows (the last dimension) and over table entries. */
#include "ir/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct rows {
    int64_t n, cols;              /* valid rows and columns of this shard */
    int64_t offset;               /* global index of the first column */
    double global;                /* columns of the whole row */
};

static struct rows rows_of(const struct mpp_ref_tensor *t)
{
    int last = t->n_dims - 1;
    return (struct rows){mpp_ref_span(t, 0, last), t->dims[last], t->offset[last], (double)t->global[last]};
}

/* ---- normalisation ---- */

/* y = gamma (x - mean) rstd + beta (Ba, Kiros & Hinton 2016), the variance about the mean. */
void mpp_ref_layernorm(const struct mpp_ref_in *in)
{
    struct rows r = rows_of(&in->in[0]);
    const double *x = in->in[0].data, *gamma = in->in[1].data, *beta = in->in[2].data;
    double *y = in->out[0].data, *mean = in->out[1].data, *rstd = in->out[2].data;
    double epsilon = mpp_attrs_float(&in->op->attrs, "epsilon", 1e-5);
    memset(mean, 0, (size_t)r.n * sizeof *mean);
    memset(rstd, 0, (size_t)r.n * sizeof *rstd);
    for (int64_t i = 0; i < r.n * r.cols; i++)
        mean[i / r.cols] += x[i] / r.global;
    mpp_ref_all_reduce(in, mean, r.n, false);
    for (int64_t i = 0; i < r.n * r.cols; i++) {
        double d = x[i] - mean[i / r.cols];
        rstd[i / r.cols] += d * d / r.global;
    }
    mpp_ref_all_reduce(in, rstd, r.n, false);
    for (int64_t i = 0; i < r.n; i++)
        rstd[i] = 1 / sqrt(rstd[i] + epsilon);
    for (int64_t i = 0; i < r.n * r.cols; i++) {
        double normal = (x[i] - mean[i / r.cols]) * rstd[i / r.cols];
        y[i] = normal * (gamma ? gamma[i % r.cols] : 1) + (beta ? beta[i % r.cols] : 0);
    }
}

/* dx = rstd (g - mean(g) - normal mean(g normal)), g = gamma dy. */
void mpp_ref_layernorm_grad(const struct mpp_ref_in *in)
{
    struct rows r = rows_of(&in->in[0]);
    const double *x = in->in[0].data, *gamma = in->in[1].data, *mean = in->in[2].data, *rstd = in->in[3].data;
    const double *dy = in->in[4].data;
    double *dx = in->out[0].data, *dgamma = in->out[1].data, *dbeta = in->out[2].data;
    double *sums = mpp_ref_scratch(2 * r.n);
    memset(dgamma, 0, (size_t)r.cols * sizeof *dgamma);
    memset(dbeta, 0, (size_t)r.cols * sizeof *dbeta);
    for (int64_t i = 0; i < r.n * r.cols; i++) {
        int64_t row = i / r.cols, c = i % r.cols;
        double normal = (x[i] - mean[row]) * rstd[row], g = dy[i] * (gamma ? gamma[c] : 1);
        sums[2 * row] += g / r.global;
        sums[2 * row + 1] += g * normal / r.global;
        dgamma[c] += dy[i] * normal;
        dbeta[c] += dy[i];
    }
    mpp_ref_all_reduce(in, sums, 2 * r.n, false);
    for (int64_t i = 0; i < r.n * r.cols; i++) {
        int64_t row = i / r.cols;
        double normal = (x[i] - mean[row]) * rstd[row], g = dy[i] * (gamma ? gamma[i % r.cols] : 1);
        dx[i] = rstd[row] * (g - sums[2 * row] - normal * sums[2 * row + 1]);
    }
    free(sums);
}

/* ---- softmax and cross entropy ---- */

/* max[i] and the sum of e^(x - max) of each whole row. */
static void row_sums(const struct mpp_ref_in *in, struct rows r, const double *x, double *max, double *sum)
{
    for (int64_t i = 0; i < r.n; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    for (int64_t i = 0; i < r.n * r.cols; i++)
        max[i / r.cols] = fmax(max[i / r.cols], x[i]);
    mpp_ref_all_reduce(in, max, r.n, true);
    for (int64_t i = 0; i < r.n * r.cols; i++)
        sum[i / r.cols] += exp(x[i] - max[i / r.cols]);
    mpp_ref_all_reduce(in, sum, r.n, false);
}

void mpp_ref_softmax(const struct mpp_ref_in *in)
{
    struct rows r = rows_of(&in->in[0]);
    const double *x = in->in[0].data;
    double *max = mpp_ref_scratch(2 * r.n), *sum = max + r.n;
    row_sums(in, r, x, max, sum);
    for (int64_t i = 0; i < r.n * r.cols; i++)
        in->out[0].data[i] = exp(x[i] - max[i / r.cols]) / sum[i / r.cols];
    free(max);
}

/* dx = y (dy - sum(y dy)). */
void mpp_ref_softmax_grad(const struct mpp_ref_in *in)
{
    struct rows r = rows_of(&in->in[0]);
    const double *y = in->in[0].data, *dy = in->in[1].data;
    double *sum = mpp_ref_scratch(r.n);
    for (int64_t i = 0; i < r.n * r.cols; i++)
        sum[i / r.cols] += y[i] * dy[i];
    mpp_ref_all_reduce(in, sum, r.n, false);
    for (int64_t i = 0; i < r.n * r.cols; i++)
        in->out[0].data[i] = y[i] * (dy[i] - sum[i / r.cols]);
    free(sum);
}

static bool ignored(const struct mpp_ref_in *in, double label)
{
    const struct mpp_attr *a = mpp_attrs_find(&in->op->attrs, "ignore_index");
    return a && label == (double)a->i;
}

/* loss = scale * the sum of lse - x[label] over rows that count; on a vocabulary shard the sum is finished inside. */
void mpp_ref_cross_entropy(const struct mpp_ref_in *in)
{
    struct rows r = rows_of(&in->in[0]);
    const double *x = in->in[0].data, *label = in->in[1].data;
    double *loss = in->out[0].data, *lse = in->out[1].data, *max = mpp_ref_scratch(2 * r.n), *sum = max + r.n;
    row_sums(in, r, x, max, sum);
    *loss = 0;
    for (int64_t i = 0; i < r.n; i++) {
        int64_t col = (int64_t)label[i] - r.offset;
        lse[i] = max[i] + log(sum[i]);
        if (!ignored(in, label[i]) && col >= 0 && col < r.cols)
            *loss += (lse[i] - x[i * r.cols + col]) * in->in[2].data[0];
    }
    mpp_ref_all_reduce(in, loss, 1, false);
    free(max);
}

void mpp_ref_cross_entropy_grad(const struct mpp_ref_in *in)
{
    struct rows r = rows_of(&in->in[0]);
    const double *x = in->in[0].data, *label = in->in[1].data, *lse = in->in[2].data;
    double factor = in->in[3].data[0] * in->in[4].data[0];
    for (int64_t i = 0; i < r.n * r.cols; i++) {
        int64_t row = i / r.cols, col = i % r.cols + r.offset;
        double p = exp(x[i] - lse[row]) - (col == (int64_t)label[row]);
        in->out[0].data[i] = ignored(in, label[row]) ? 0 : p * factor;
    }
}

void mpp_ref_count_labels(const struct mpp_ref_in *in)
{
    int64_t n = mpp_ref_count(&in->in[0]);
    double count = 0;
    for (int64_t i = 0; i < n; i++)
        count += !ignored(in, in->in[0].data[i]);
    in->out[0].data[0] = count;
}

/* ---- tables ---- */

/* Rows of the table's shard; zero where the id lies in another one. */
void mpp_ref_embedding(const struct mpp_ref_in *in)
{
    const struct mpp_ref_tensor *ids = &in->in[0], *table = &in->in[1];
    int64_t n = mpp_ref_count(ids), width = mpp_ref_span(table, 1, table->n_dims);
    for (int64_t i = 0; i < n; i++) {
        int64_t id = (int64_t)ids->data[i] - table->offset[0];
        bool here = id >= 0 && id < table->dims[0];
        for (int64_t j = 0; j < width; j++)
            in->out[0].data[i * width + j] = here ? table->data[id * width + j] : 0;
    }
}

void mpp_ref_embedding_grad(const struct mpp_ref_in *in)
{
    const struct mpp_ref_tensor *ids = &in->in[0], *table = &in->out[0];
    int64_t n = mpp_ref_count(ids), width = mpp_ref_span(table, 1, table->n_dims);
    memset(table->data, 0, (size_t)mpp_ref_count(table) * sizeof(double));
    for (int64_t i = 0; i < n; i++) {
        int64_t id = (int64_t)ids->data[i] - table->offset[0];
        for (int64_t j = 0; j < width && id >= 0 && id < table->dims[0]; j++)
            table->data[id * width + j] += in->in[1].data[i * width + j];
    }
}

/* Position s of y is row s of the table. */
void mpp_ref_position(const struct mpp_ref_in *in)
{
    const struct mpp_ref_tensor *table = &in->in[0], *y = &in->out[0];
    int64_t width = mpp_ref_span(y, 1, y->n_dims), from = y->offset[0] - table->offset[0];
    if (mpp_ref_count(y) > 0)
        memcpy(y->data, table->data + from * width, (size_t)mpp_ref_count(y) * sizeof(double));
}

void mpp_ref_position_grad(const struct mpp_ref_in *in)
{
    const struct mpp_ref_tensor *dy = &in->in[0], *table = &in->out[0];
    int64_t width = mpp_ref_span(dy, 1, dy->n_dims), at = dy->offset[0] - table->offset[0];
    memset(table->data, 0, (size_t)mpp_ref_count(table) * sizeof(double));
    if (mpp_ref_count(dy) > 0)
        memcpy(table->data + at * width, dy->data, (size_t)mpp_ref_count(dy) * sizeof(double));
}
