/* Scaled dot-product attention by tiles of Q_BLOCK queries x K_BLOCK keys, after FlashAttention (Dao et al.
 * 2022; the backward of Dao 2023): the forward keeps a running maximum and sum per query, the backward
 * recomputes the probabilities of a tile from lse. One tile (backward: two) is all the workspace of a thread;
 * threads take blocks of queries of a head, backward whole heads.
 *
 *     s = scale q k'     p = e^(s - lse)     y = (p o f) v          f: dropout's factors
 *     dp = dy v'         ds = p o (f o dp - dy.y)
 *     dv = (p o f)' dy   dq = scale ds k     dk = scale ds' q
 *
 * A query that sees no key gets y = 0 and lse = 0. */
#include "core/transport.h"
#include "kernels_internal.h"
#include "team.h"

#include <string.h>

enum { Q_BLOCK = 128, K_BLOCK = 512 };
_Static_assert(2 * (Q_BLOCK + 1) * K_BLOCK * sizeof(float) <= MPP_SCRATCH_BYTES, "two tiles in a thread's scratch");

/* One head of one sample: first elements, and the strides of a position. */
struct head {
    const struct mpp_rank *r;
    const struct mpp_attention *a;
    int64_t batch, head;
    int64_t first_q, first_k; /* element offsets into q, y and into k, v */
    int64_t stride;           /* of a position */
    const int32_t *mask;      /* of this sample's keys, or NULL */
    bool drops;
};

struct tile {
    int64_t q0, nq, k0, nk;
    float *s; /* [nq, ld] */
    int64_t ld;
};

static int64_t tile_width(const struct mpp_attention *a)
{
    return (mpp_min_i64(K_BLOCK, a->seq_k.padded) + 15) / 16 * 16;
}

static int64_t tile_floats(const struct mpp_attention *a)
{
    return (mpp_min_i64(Q_BLOCK, a->seq_q.padded) + 1) * tile_width(a);
}

int64_t mpp_attention_workspace(const struct mpp_attention *a)
{
    return 2 * tile_floats(a) * (int64_t)sizeof(float);
}

/* The tiles of the share of a loop that runs this. */
static float *tiles_of(const struct mpp_rank *r)
{
    int share = mpp_team_share();
    return (float *)(share == 0 ? r->workspace : r->scratch + (int64_t)(share - 1) * MPP_SCRATCH_BYTES);
}

/* Rough, in elements of a plain loop. */
static int64_t work_of(const struct mpp_attention *a)
{
    double pairs = (double)a->batch.valid * (double)a->heads.valid * (double)a->seq_q.valid * (double)a->seq_k.valid;
    return (int64_t)fmin(pairs * (4 + (double)a->head_dim / 8), MPP_PARALLEL_WORK);
}

static struct head head_of(const struct mpp_rank *r, const struct mpp_attention *a, int64_t batch, int64_t head,
                           const int32_t *mask)
{
    int64_t stride = a->heads.padded * a->head_dim;
    return (struct head){
        .r = r, .a = a, .batch = batch, .head = head,
        .first_q = batch * a->seq_q.padded * stride + head * a->head_dim,
        .first_k = batch * a->seq_k.padded * stride + head * a->head_dim,
        .stride = stride,
        .mask = mask ? mask + batch * a->seq_k.padded : NULL,
        .drops = r->training && a->dropout > 0.0f,
    };
}

/* Keys before this one (of this rank) are visible to query I: all valid ones, or those up to itself. */
static int64_t visible_end(const struct mpp_attention *a, int64_t i)
{
    if (!a->causal)
        return a->seq_k.valid;
    return mpp_max_i64(0, mpp_min_i64(a->seq_k.valid, a->seq_q.offset + i + 1 - a->seq_k.offset));
}

/* s = scale q k' on the tile, -Inf where the padding mask hides a key; causality is left to visible_end. */
static void tile_scores(const struct head *h, const struct tile *t, const float *q, const float *k)
{
    mpp_sgemm(false, true, t->nq, t->nk, h->a->head_dim, h->a->scale, q + h->first_q + t->q0 * h->stride, h->stride,
              k + h->first_k + t->k0 * h->stride, h->stride, 0.0f, t->s, t->ld);
    if (!h->mask)
        return;
    const int32_t *mask = h->mask + t->k0;
    for (int64_t i = 0; i < t->nq; i++) {
        float *row = t->s + i * t->ld;
        MPP_IVDEP
        for (int64_t j = 0; j < t->nk; j++)
            row[j] = mask[j] ? row[j] : -INFINITY;
    }
}

/* Dropout's factors for query I (local) and N keys from K0. */
static void dropout_row(const struct head *h, int64_t i, int64_t k0, int64_t n, float *out)
{
    const struct mpp_attention *a = h->a;
    uint64_t sample = (uint64_t)(mpp_first_sample(h->r) + a->batch.offset + h->batch);
    uint64_t element = sample * (uint64_t)a->heads.global + (uint64_t)(a->heads.offset + h->head);
    element = element * (uint64_t)a->seq_q.global + (uint64_t)(a->seq_q.offset + i);
    element = element * (uint64_t)a->seq_k.global + (uint64_t)(a->seq_k.offset + k0);
    mpp_uniform_row(h->r->seed, h->r->step, a->op, element, n, out);
    float p = a->dropout;
    for (int64_t j = 0; j < n; j++)
        out[j] = mpp_dropout_factor(out[j], p);
}

/* Zeros from FROM to TO in a row of floats. */
static void clear(float *row, int64_t from, int64_t to)
{
    if (from < to)
        memset(row + from, 0, (size_t)(to - from) * sizeof *row);
}

static bool has_padding(const struct mpp_attention *a)
{
    return a->batch.valid < a->batch.padded || a->heads.valid < a->heads.padded || a->seq_q.valid < a->seq_q.padded ||
           a->seq_k.valid < a->seq_k.padded;
}

/* ---- forward --------------------------------------------------------------------------------------- */

struct running {
    float max[Q_BLOCK];
    double sum[Q_BLOCK];
};

/* Scores -> e^(score - running maximum), dropped out; what was summed before (y included) is rescaled. */
static void tile_probabilities(const struct head *h, const struct tile *t, struct running *run, float *y)
{
    float factor[K_BLOCK];
    for (int64_t i = 0; i < t->nq; i++) {
        float *row = t->s + i * t->ld;
        int64_t n = mpp_max_i64(0, mpp_min_i64(t->nk, visible_end(h->a, t->q0 + i) - t->k0));
        clear(row, n, t->nk);
        float max = mpp_row_max(row, n);
        if (max > run->max[i]) {
            float rescale = mpp_expf(run->max[i] - max);
            float *yr = y + h->first_q + (t->q0 + i) * h->stride;
            run->max[i] = max;
            run->sum[i] *= (double)rescale;
            for (int64_t d = 0; d < h->a->head_dim && t->k0 > 0; d++)
                yr[d] *= rescale;
        }
        run->sum[i] += mpp_row_exp(row, run->max[i] == -INFINITY ? 0.0f : run->max[i], n, row);
        if (!h->drops)
            continue;
        dropout_row(h, t->q0 + i, t->k0, n, factor);
        for (int64_t j = 0; j < n; j++)
            row[j] *= factor[j];
    }
}

/* y and lse of up to Q_BLOCK queries. */
static void forward_block(const struct head *h, int64_t q0, int64_t nq, const float *q, const float *k,
                          const float *v, float *s, float *y, float *lse)
{
    const struct mpp_attention *a = h->a;
    struct running run;
    for (int64_t i = 0; i < nq; i++) {
        run.max[i] = -INFINITY;
        run.sum[i] = 0;
    }
    float *y0 = y + h->first_q + q0 * h->stride;
    int64_t end = visible_end(a, q0 + nq - 1);
    if (end == 0)
        mpp_sgemm(false, false, nq, a->head_dim, 0, 1.0f, s, 1, v, 1, 0.0f, y0, h->stride);
    for (int64_t k0 = 0; k0 < end; k0 += K_BLOCK) {
        struct tile t = {.q0 = q0, .nq = nq, .k0 = k0, .nk = mpp_min_i64(K_BLOCK, end - k0), .s = s, .ld = tile_width(a)};
        tile_scores(h, &t, q, k);
        tile_probabilities(h, &t, &run, y);
        mpp_sgemm(false, false, nq, a->head_dim, t.nk, 1.0f, s, t.ld, v + h->first_k + k0 * h->stride, h->stride,
                  k0 > 0 ? 1.0f : 0.0f, y0, h->stride);
    }
    for (int64_t i = 0; i < nq; i++) {
        bool sees = run.sum[i] != 0;
        float inverse = sees ? (float)(1 / run.sum[i]) : 0.0f, *yr = y0 + i * h->stride;
        lse[q0 + i] = sees ? (float)((double)run.max[i] + log(run.sum[i])) : 0.0f;
        for (int64_t d = 0; d < a->head_dim; d++)
            yr[d] *= inverse;
    }
}

void mpp_attention_forward(struct mpp_rank *r, const struct mpp_attention *a, const float *q, const float *k,
                           const float *v, const int32_t *mask, float *y, float *lse)
{
    mpp_rank_moves(r);
    int64_t rows = a->batch.padded * a->heads.padded * a->seq_q.padded;
    if (has_padding(a)) {
        clear(y, 0, rows * a->head_dim);
        clear(lse, 0, rows);
    }
    int64_t q_blocks = (a->seq_q.valid + Q_BLOCK - 1) / Q_BLOCK;
    MPP_PARALLEL_NEST(r, work_of(a), 3)
    for (int64_t b = 0; b < a->batch.valid; b++)
        for (int64_t n = 0; n < a->heads.valid; n++)
            for (int64_t block = 0; block < q_blocks; block++) {
                struct head h = head_of(r, a, b, n, mask);
                int64_t q0 = block * Q_BLOCK;
                forward_block(&h, q0, mpp_min_i64(Q_BLOCK, a->seq_q.valid - q0), q, k, v, tiles_of(r), y,
                              lse + (b * a->heads.padded + n) * a->seq_q.padded);
            }
}

/* ---- backward -------------------------------------------------------------------------------------- */

/* Scores -> dropped-out probabilities in t->s; dp -> ds. DOT and LSE: of the tile's first query on. */
static void tile_gradients(const struct head *h, const struct tile *t, const float *lse, const float *dot, float *dp)
{
    float factor[K_BLOCK];
    for (int64_t i = 0; i < t->nq; i++) {
        float *p = t->s + i * t->ld, *ds = dp + i * t->ld, shift = lse[i], less = dot[i];
        int64_t n = mpp_max_i64(0, mpp_min_i64(t->nk, visible_end(h->a, t->q0 + i) - t->k0));
        clear(p, n, t->nk);
        clear(ds, n, t->nk);
        if (h->drops) {
            dropout_row(h, t->q0 + i, t->k0, n, factor);
            MPP_IVDEP
            for (int64_t j = 0; j < n; j++) {
                float e = mpp_expf(p[j] - shift);
                ds[j] = e * (factor[j] * ds[j] - less);
                p[j] = e * factor[j];
            }
        } else {
            MPP_IVDEP
            for (int64_t j = 0; j < n; j++) {
                float e = mpp_expf(p[j] - shift);
                ds[j] = e * (ds[j] - less);
                p[j] = e;
            }
        }
    }
}

struct gradients {
    const float *q, *k, *v, *y, *dy, *lse; /* lse: of this head */
    float *dq, *dk, *dv;
};

/* Adds what up to Q_BLOCK queries give to dk and dv; computes their dq. */
static void backward_block(const struct head *h, const struct gradients *g, int64_t q0, int64_t nq, float *workspace)
{
    const struct mpp_attention *a = h->a;
    int64_t st = h->stride, hd = a->head_dim, at_q = h->first_q + q0 * st;
    float dot[Q_BLOCK], *s = workspace, *dp = workspace + tile_floats(a);
    for (int64_t i = 0; i < nq; i++)
        dot[i] = (float)mpp_row_dot(g->dy + at_q + i * st, g->y + at_q + i * st, hd);
    int64_t end = visible_end(a, q0 + nq - 1);
    if (end == 0)
        mpp_sgemm(false, false, nq, hd, 0, 1.0f, s, 1, g->k, 1, 0.0f, g->dq + at_q, st);
    for (int64_t k0 = 0; k0 < end; k0 += K_BLOCK) {
        int64_t nk = mpp_min_i64(K_BLOCK, end - k0), at_k = h->first_k + k0 * st;
        struct tile t = {.q0 = q0, .nq = nq, .k0 = k0, .nk = nk, .s = s, .ld = tile_width(a)};
        tile_scores(h, &t, g->q, g->k);
        mpp_sgemm(false, true, nq, nk, hd, 1.0f, g->dy + at_q, st, g->v + at_k, st, 0.0f, dp, t.ld);
        tile_gradients(h, &t, g->lse + q0, dot, dp);
        mpp_sgemm(true, false, nk, hd, nq, 1.0f, s, t.ld, g->dy + at_q, st, 1.0f, g->dv + at_k, st);
        mpp_sgemm(false, false, nq, hd, nk, a->scale, dp, t.ld, g->k + at_k, st, k0 > 0 ? 1.0f : 0.0f, g->dq + at_q,
                  st);
        mpp_sgemm(true, false, nk, hd, nq, a->scale, dp, t.ld, g->q + at_q, st, 1.0f, g->dk + at_k, st);
    }
}

void mpp_attention_backward(struct mpp_rank *r, const struct mpp_attention *a, const float *q, const float *k,
                            const float *v, const int32_t *mask, const float *y, const float *lse, const float *dy,
                            float *dq, float *dk, float *dv)
{
    mpp_rank_moves(r);
    int64_t per_position = a->batch.padded * a->heads.padded * a->head_dim;
    clear(dk, 0, a->seq_k.padded * per_position);
    clear(dv, 0, a->seq_k.padded * per_position);
    if (has_padding(a))
        clear(dq, 0, a->seq_q.padded * per_position);
    MPP_PARALLEL_NEST(r, work_of(a), 2)
    for (int64_t b = 0; b < a->batch.valid; b++)
        for (int64_t n = 0; n < a->heads.valid; n++) {
            struct head h = head_of(r, a, b, n, mask);
            struct gradients g = {.q = q, .k = k, .v = v, .y = y, .dy = dy, .dq = dq, .dk = dk, .dv = dv,
                                  .lse = lse + (b * a->heads.padded + n) * a->seq_q.padded};
            for (int64_t q0 = 0; q0 < a->seq_q.valid; q0 += Q_BLOCK)
                backward_block(&h, &g, q0, mpp_min_i64(Q_BLOCK, a->seq_q.valid - q0), tiles_of(r));
        }
}
