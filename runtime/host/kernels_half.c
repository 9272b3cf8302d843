/* Kernels over rows, tables and attention in 16-bit floats: blocks of rows are converted, handed to the f32 kernels and
 * rounded back. */
#include "core/half.h"
#include "kernels_internal.h"

#include <string.h>

enum { BLOCK_FLOATS = 1 << 16 }; /* of a block of rows: two of them stay in the second-level cache */

/* ---- blocks of rows -------------------------------------------------------------------------------- */

static int64_t block_floats(int64_t cols)
{
    return mpp_max_i64(BLOCK_FLOATS, cols);
}

static int64_t block_rows(int64_t cols)
{
    return mpp_max_i64(1, mpp_min_i64(MPP_ROW_BLOCK, BLOCK_FLOATS / mpp_max_i64(cols, 1)));
}

/* Two blocks, and sums of two values per column. */
int64_t mpp_rows_half_workspace(int64_t cols)
{
    return (2 * block_floats(cols) + 2 * cols) * (int64_t)sizeof(float);
}

static float *block(const struct mpp_rank *r, int which, int64_t cols)
{
    return (float *)(void *)r->workspace + which * block_floats(cols);
}

static void read_rows(const struct mpp_rank *r, enum mpp_type type, const void *x, const int64_t *rows, int64_t n,
                      int64_t cols, float *out)
{
    MPP_PARALLEL(r, n * cols)
    for (int64_t i = 0; i < n; i++)
        mpp_half_read(type, (const uint16_t *)x + rows[i] * cols, cols, out + i * cols);
}

static void write_rows(const struct mpp_rank *r, enum mpp_type type, const float *x, const int64_t *rows, int64_t n,
                       int64_t cols, void *out)
{
    MPP_PARALLEL(r, n * cols)
    for (int64_t i = 0; i < n; i++)
        mpp_half_write(type, x + i * cols, cols, (uint16_t *)out + rows[i] * cols);
}

/* A block of N rows that lie side by side and are all valid. */
static struct mpp_space dense(int64_t n)
{
    return (struct mpp_space){.n_dims = 1, .padded = {n}, .valid = {n}};
}

/* ---- norms and softmax ----------------------------------------------------------------------------- */

void mpp_layernorm_forward_half(struct mpp_rank *r, enum mpp_type type, unsigned mask, int64_t rows,
                                struct mpp_extent cols, float epsilon, const void *x, const float *gamma,
                                const float *beta, void *y, float *mean, float *rstd)
{
    int64_t stride = cols.padded, most = block_rows(stride);
    float *in = block(r, 0, stride), *out = block(r, 1, stride);
    for (int64_t base = 0; base < rows; base += most) {
        int64_t n = mpp_min_i64(most, rows - base);
        mpp_half_read_all(r, type, (const uint16_t *)x + base * stride, n * stride, in);
        mpp_layernorm_forward(r, mask, n, cols, epsilon, in, gamma, beta, out, mean + base, rstd + base);
        mpp_half_write_all(r, type, out, n * stride, (uint16_t *)y + base * stride);
    }
}

/* Adds what a block gave; the first one wrote its own. */
static void add_sums(bool first, const float *part, int64_t n, float *sum)
{
    for (int64_t i = 0; i < n && !first && sum != NULL; i++)
        sum[i] += part[i];
}

void mpp_layernorm_backward_half(struct mpp_rank *r, enum mpp_type type, unsigned mask, const struct mpp_space *rows,
                                 struct mpp_extent cols, const void *x, const float *gamma, const float *mean,
                                 const float *rstd, const void *dy, void *dx, float *dgamma, float *dbeta)
{
    int64_t stride = cols.padded, at[MPP_ROW_BLOCK], n;
    float means[MPP_ROW_BLOCK], rstds[MPP_ROW_BLOCK];
    float *xs = block(r, 0, stride), *dys = block(r, 1, stride), *gammas = block(r, 2, stride), *betas = gammas + stride;
    struct mpp_row_walk walk = mpp_rows_begin(rows);
    for (bool first = true; (n = mpp_rows_take(&walk, at, block_rows(stride))) > 0 || first; first = false) {
        read_rows(r, type, x, at, n, stride, xs);
        read_rows(r, type, dy, at, n, stride, dys);
        for (int64_t i = 0; i < n; i++) {
            means[i] = mean[at[i]];
            rstds[i] = rstd[at[i]];
        }
        struct mpp_space part = dense(n);
        mpp_layernorm_backward(r, mask, &part, cols, xs, gamma, means, rstds, dys, dys, dgamma == NULL || first ? dgamma : gammas,
                               dbeta == NULL || first ? dbeta : betas);
        add_sums(first, gammas, cols.valid, dgamma);
        add_sums(first, betas, cols.valid, dbeta);
        write_rows(r, type, dys, at, n, stride, dx);
    }
}

void mpp_softmax_forward_half(struct mpp_rank *r, enum mpp_type type, unsigned mask, int64_t rows,
                              struct mpp_extent cols, const void *x, void *y)
{
    int64_t stride = cols.padded, most = block_rows(stride);
    float *in = block(r, 0, stride);
    for (int64_t base = 0; base < rows; base += most) {
        int64_t n = mpp_min_i64(most, rows - base);
        mpp_half_read_all(r, type, (const uint16_t *)x + base * stride, n * stride, in);
        mpp_softmax_forward(r, mask, n, cols, in, in);
        mpp_half_write_all(r, type, in, n * stride, (uint16_t *)y + base * stride);
    }
}

void mpp_softmax_backward_half(struct mpp_rank *r, enum mpp_type type, unsigned mask, int64_t rows,
                               struct mpp_extent cols, const void *y, const void *dy, void *dx)
{
    int64_t stride = cols.padded, most = block_rows(stride);
    float *ys = block(r, 0, stride), *dys = block(r, 1, stride);
    for (int64_t base = 0; base < rows; base += most) {
        int64_t n = mpp_min_i64(most, rows - base);
        mpp_half_read_all(r, type, (const uint16_t *)y + base * stride, n * stride, ys);
        mpp_half_read_all(r, type, (const uint16_t *)dy + base * stride, n * stride, dys);
        mpp_softmax_backward(r, mask, n, cols, ys, dys, dys);
        mpp_half_write_all(r, type, dys, n * stride, (uint16_t *)dx + base * stride);
    }
}

/* ---- cross entropy --------------------------------------------------------------------------------- */

void mpp_cross_entropy_forward_half(struct mpp_rank *r, enum mpp_type type, unsigned mask, const struct mpp_space *rows,
                                    struct mpp_extent cols, int32_t ignore_index, const void *logits,
                                    const int32_t *labels, const float *scale, float *lse, float *loss)
{
    int64_t stride = cols.padded, at[MPP_ROW_BLOCK], n;
    int32_t label[MPP_ROW_BLOCK];
    float lses[MPP_ROW_BLOCK], part, *xs = block(r, 0, stride);
    double total = 0;
    struct mpp_row_walk walk = mpp_rows_begin(rows);
    while ((n = mpp_rows_take(&walk, at, block_rows(stride))) > 0) {
        read_rows(r, type, logits, at, n, stride, xs);
        for (int64_t i = 0; i < n; i++)
            label[i] = labels[at[i]];
        struct mpp_space space = dense(n);
        mpp_cross_entropy_forward(r, mask, &space, cols, ignore_index, xs, label, scale, lses, &part);
        for (int64_t i = 0; i < n; i++)
            lse[at[i]] = lses[i];
        total += (double)part;
    }
    *loss = (float)total;
}

void mpp_cross_entropy_backward_half(struct mpp_rank *r, enum mpp_type type, const struct mpp_space *rows,
                                     struct mpp_extent cols, int32_t ignore_index, const void *logits,
                                     const int32_t *labels, const float *lse, const float *scale, const float *dloss,
                                     void *dlogits)
{
    int64_t stride = cols.padded, at[MPP_ROW_BLOCK], n;
    int32_t label[MPP_ROW_BLOCK];
    float lses[MPP_ROW_BLOCK], *xs = block(r, 0, stride);
    struct mpp_row_walk walk = mpp_rows_begin(rows);
    while ((n = mpp_rows_take(&walk, at, block_rows(stride))) > 0) {
        read_rows(r, type, logits, at, n, stride, xs);
        for (int64_t i = 0; i < n; i++) {
            label[i] = labels[at[i]];
            lses[i] = lse[at[i]];
        }
        struct mpp_space space = dense(n);
        mpp_cross_entropy_backward(r, &space, cols, ignore_index, xs, label, lses, scale, dloss, xs);
        write_rows(r, type, xs, at, n, stride, dlogits);
    }
}

/* ---- tables ----------------------------------------------------------------------------------------- */

void mpp_embedding_forward_half(struct mpp_rank *r, const struct mpp_space *rows, struct mpp_extent vocab,
                                int64_t width, const int32_t *ids, const void *table, void *y)
{
    int64_t at[MPP_ROW_BLOCK], n;
    struct mpp_row_walk walk = mpp_rows_begin(rows);
    while ((n = mpp_rows_take(&walk, at, MPP_ROW_BLOCK)) > 0) {
        MPP_PARALLEL(r, n * width)
        for (int64_t b = 0; b < n; b++) {
            int64_t id = ids[at[b]] - vocab.offset;
            uint16_t *to = (uint16_t *)y + at[b] * width;
            if (id >= 0 && id < vocab.valid)
                memcpy(to, (const uint16_t *)table + id * width, (size_t)width * sizeof *to);
            else
                memset(to, 0, (size_t)width * sizeof *to);
        }
    }
}

void mpp_embedding_backward_half(struct mpp_rank *r, enum mpp_type type, const struct mpp_space *rows,
                                 struct mpp_extent vocab, int64_t width, const int32_t *ids, const void *dy, float beta,
                                 float *dtable)
{
    int64_t at[MPP_ROW_BLOCK], n;
    int32_t id[MPP_ROW_BLOCK];
    float *dys = block(r, 0, width);
    struct mpp_row_walk walk = mpp_rows_begin(rows);
    for (bool first = true; (n = mpp_rows_take(&walk, at, block_rows(width))) > 0 || first; first = false) {
        read_rows(r, type, dy, at, n, width, dys);
        for (int64_t i = 0; i < n; i++)
            id[i] = ids[at[i]];
        struct mpp_space space = dense(n);
        mpp_embedding_backward(r, &space, vocab, width, id, dys, first ? beta : 1.0f, dtable);
    }
}

/* ---- attention: sample by sample --------------------------------------------------------------------- */

struct sample {
    struct mpp_attention a;       /* of one sample */
    int64_t n_q, n_k;             /* elements of q, y; of k, v */
    int64_t n_lse, n_mask;
    float *buffer;                /* behind the tiles */
};

static struct sample sample_of(const struct mpp_rank *r, const struct mpp_attention *a, int64_t b)
{
    struct sample s = {.a = *a};
    s.a.batch = (struct mpp_extent){.global = a->batch.global, .padded = 1, .valid = 1, .offset = a->batch.offset + b};
    s.n_q = a->seq_q.padded * a->heads.padded * a->head_dim;
    s.n_k = a->seq_k.padded * a->heads.padded * a->head_dim;
    s.n_lse = a->heads.padded * a->seq_q.padded;
    s.n_mask = a->seq_k.padded;
    s.buffer = (float *)(void *)(r->workspace + (mpp_attention_workspace(a) + 63) / 64 * 64);
    return s;
}

int64_t mpp_attention_half_workspace(const struct mpp_attention *a, bool backward)
{
    int64_t positions = a->seq_q.padded + a->seq_k.padded, of_each = backward ? 4 : 2;
    return (mpp_attention_workspace(a) + 63) / 64 * 64 + of_each * positions * a->heads.padded * a->head_dim * (int64_t)sizeof(float);
}

void mpp_attention_forward_half(struct mpp_rank *r, enum mpp_type type, const struct mpp_attention *a, const void *q,
                                const void *k, const void *v, const int32_t *mask, void *y, float *lse)
{
    for (int64_t b = 0; b < a->batch.padded; b++) {
        struct sample s = sample_of(r, a, b);
        float *qs = s.buffer, *ys = qs + s.n_q, *ks = ys + s.n_q, *vs = ks + s.n_k;
        if (b >= a->batch.valid) {
            memset((uint16_t *)y + b * s.n_q, 0, (size_t)s.n_q * sizeof(uint16_t));
            memset(lse + b * s.n_lse, 0, (size_t)s.n_lse * sizeof *lse);
            continue;
        }
        mpp_half_read_all(r, type, (const uint16_t *)q + b * s.n_q, s.n_q, qs);
        mpp_half_read_all(r, type, (const uint16_t *)k + b * s.n_k, s.n_k, ks);
        mpp_half_read_all(r, type, (const uint16_t *)v + b * s.n_k, s.n_k, vs);
        mpp_attention_forward(r, &s.a, qs, ks, vs, mask ? mask + b * s.n_mask : NULL, ys, lse + b * s.n_lse);
        mpp_half_write_all(r, type, ys, s.n_q, (uint16_t *)y + b * s.n_q);
    }
}

void mpp_attention_backward_half(struct mpp_rank *r, enum mpp_type type, const struct mpp_attention *a, const void *q,
                                 const void *k, const void *v, const int32_t *mask, const void *y, const float *lse,
                                 const void *dy, void *dq, void *dk, void *dv)
{
    for (int64_t b = 0; b < a->batch.padded; b++) {
        struct sample s = sample_of(r, a, b);
        float *qs = s.buffer, *ys = qs + s.n_q, *dys = ys + s.n_q, *dqs = dys + s.n_q;
        float *ks = dqs + s.n_q, *vs = ks + s.n_k, *dks = vs + s.n_k, *dvs = dks + s.n_k;
        if (b >= a->batch.valid) {
            memset((uint16_t *)dq + b * s.n_q, 0, (size_t)s.n_q * sizeof(uint16_t));
            memset((uint16_t *)dk + b * s.n_k, 0, (size_t)s.n_k * sizeof(uint16_t));
            memset((uint16_t *)dv + b * s.n_k, 0, (size_t)s.n_k * sizeof(uint16_t));
            continue;
        }
        mpp_half_read_all(r, type, (const uint16_t *)q + b * s.n_q, s.n_q, qs);
        mpp_half_read_all(r, type, (const uint16_t *)k + b * s.n_k, s.n_k, ks);
        mpp_half_read_all(r, type, (const uint16_t *)v + b * s.n_k, s.n_k, vs);
        mpp_half_read_all(r, type, (const uint16_t *)y + b * s.n_q, s.n_q, ys);
        mpp_half_read_all(r, type, (const uint16_t *)dy + b * s.n_q, s.n_q, dys);
        mpp_attention_backward(r, &s.a, qs, ks, vs, mask ? mask + b * s.n_mask : NULL, ys, lse + b * s.n_lse, dys, dqs, dks, dvs);
        mpp_half_write_all(r, type, dqs, s.n_q, (uint16_t *)dq + b * s.n_q);
        mpp_half_write_all(r, type, dks, s.n_k, (uint16_t *)dk + b * s.n_k);
        mpp_half_write_all(r, type, dvs, s.n_k, (uint16_t *)dv + b * s.n_k);
    }
}
