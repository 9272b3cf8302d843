/* The attention kernels against a float64 reference that stores all scores, its gradient by formula and by
 * finite differences; batch, heads and queries split over meshes. */
#include "kernels_testing.h"

struct attention_case {
    const char *name;
    int64_t batch, seq_q, seq_k, heads, head_dim;
    bool causal, masked, in_evaluation;
    float dropout;
    int n_axes, sizes[3];
    unsigned split_batch, split_q, split_heads;
};

static const struct attention_case cases[] = {
    {"one", 1, 1, 1, 1, 1, false, false, false, 0, 1, {1}, 0, 0, 0},
    {"odd", 2, 31, 33, 3, 5, false, false, false, 0, 1, {1}, 0, 0, 0},
    {"causal", 2, 33, 33, 2, 8, true, false, false, 0, 1, {1}, 0, 0, 0},
    {"masked", 3, 17, 19, 2, 8, false, true, false, 0, 1, {1}, 0, 0, 0},
    {"causal and masked", 3, 33, 33, 2, 3, true, true, false, 0, 1, {1}, 0, 0, 0},
    {"dropout", 2, 31, 31, 3, 4, true, true, false, 0.3f, 1, {1}, 0, 0, 0},
    {"no dropout in evaluation", 2, 31, 31, 3, 4, true, true, true, 0.3f, 1, {1}, 0, 0, 0},
    {"many tiles", 1, 300, 1100, 1, 16, false, true, false, 0.1f, 1, {1}, 0, 0, 0},
    {"many tiles, causal", 1, 1100, 1100, 1, 8, true, false, false, 0, 1, {1}, 0, 0, 0},
    {"257 keys", 2, 257, 257, 1, 32, true, true, false, 0, 1, {1}, 0, 0, 0},
    {"heads split", 2, 9, 9, 5, 4, true, true, false, 0.2f, 1, {3}, 0, 0, 1},
    {"batch split", 5, 9, 9, 2, 4, false, true, false, 0.2f, 1, {4}, 1, 0, 0},
    {"queries split", 2, 33, 33, 2, 4, true, true, false, 0.2f, 1, {4}, 0, 1, 0},
    {"all split", 3, 33, 33, 3, 4, true, true, false, 0.2f, 3, {2, 2, 2}, 1, 2, 4},
    {"over three axes", 2, 35, 35, 2, 4, true, false, false, 0, 3, {2, 3, 2}, 0, 7, 0},
    {"empty ranks", 2, 5, 5, 3, 4, true, true, false, 0, 2, {4, 3}, 2, 0, 1},
};

struct attention_data {
    const struct attention_case *c;
    struct shape q_shape, k_shape, lse_shape, mask_shape;
    int64_t n_q, n_k;
    float *q, *k, *v, *dy, scale;
    int32_t *mask;
    double *qd, *kd, *vd; /* moved by finite differences */
    double *y, *lse, *dq, *dk, *dv, *probability, *factor; /* [batch, heads, seq_q, seq_k] */
};

enum { DROPOUT_OP = 77 };

static int64_t at_q(const struct attention_data *t, int64_t b, int64_t i, int64_t h)
{
    return ((b * t->c->seq_q + i) * t->c->heads + h) * t->c->head_dim;
}

static int64_t at_k(const struct attention_data *t, int64_t b, int64_t j, int64_t h)
{
    return ((b * t->c->seq_k + j) * t->c->heads + h) * t->c->head_dim;
}

static bool sees(const struct attention_data *t, int64_t b, int64_t i, int64_t j)
{
    return !(t->c->causal && j > i) && !(t->c->masked && !t->mask[b * t->c->seq_k + j]);
}

/* One query of one head: probabilities and output, from the doubles. */
static void reference_row(struct attention_data *t, int64_t b, int64_t h, int64_t i)
{
    int64_t nk = t->c->seq_k, d = t->c->head_dim, row = (b * t->c->heads + h) * t->c->seq_q + i;
    double *p = t->probability + row * nk, *y = t->y + at_q(t, b, i, h), sum = 0;
    for (int64_t j = 0; j < nk; j++) {
        double s = 0;
        for (int64_t e = 0; e < d; e++)
            s += t->qd[at_q(t, b, i, h) + e] * t->kd[at_k(t, b, j, h) + e];
        p[j] = sees(t, b, i, j) ? exp((double)t->scale * s) : 0;
        sum += p[j];
    }
    t->lse[row] = sum > 0 ? log(sum) : 0;
    memset(y, 0, (size_t)d * sizeof *y);
    for (int64_t j = 0; j < nk; j++) {
        p[j] = sum > 0 ? p[j] / sum : 0;
        for (int64_t e = 0; e < d; e++)
            y[e] += p[j] * t->factor[row * nk + j] * t->vd[at_k(t, b, j, h) + e];
    }
}

static void reference_forward(struct attention_data *t)
{
    for (int64_t b = 0; b < t->c->batch; b++)
        for (int64_t h = 0; h < t->c->heads; h++)
            for (int64_t i = 0; i < t->c->seq_q; i++)
                reference_row(t, b, h, i);
}

static double attention_loss(void *arg)
{
    struct attention_data *t = arg;
    double loss = 0;
    reference_forward(t);
    for (int64_t i = 0; i < t->n_q; i++)
        loss += t->y[i] * (double)t->dy[i];
    return loss;
}

static void reference_backward(struct attention_data *t)
{
    int64_t nq = t->c->seq_q, nk = t->c->seq_k, d = t->c->head_dim;
    double *dp = doubles(nk);
    for (int64_t row = 0; row < t->c->batch * t->c->heads * nq; row++) {
        int64_t b = row / nq / t->c->heads, h = row / nq % t->c->heads, i = row % nq, q = at_q(t, b, i, h);
        const double *p = t->probability + row * nk, *f = t->factor + row * nk;
        double dot = 0;
        for (int64_t j = 0; j < nk; j++) {
            dp[j] = 0;
            for (int64_t e = 0; e < d; e++) {
                dp[j] += (double)t->dy[q + e] * t->vd[at_k(t, b, j, h) + e] * f[j];
                t->dv[at_k(t, b, j, h) + e] += p[j] * f[j] * (double)t->dy[q + e];
            }
            dot += p[j] * dp[j];
        }
        for (int64_t j = 0; j < nk; j++)
            for (int64_t e = 0; e < d; e++) {
                double ds = p[j] * (dp[j] - dot) * (double)t->scale;
                t->dq[q + e] += ds * t->kd[at_k(t, b, j, h) + e];
                t->dk[at_k(t, b, j, h) + e] += ds * t->qd[q + e];
            }
    }
    free(dp);
}

static void draw_factors(struct attention_data *t)
{
    struct mpp_rank r = {.seed = 0x123456789abcdefu, .step = 3}; /* as run_mesh sets them */
    const struct attention_case *c = t->c;
    int64_t first_sample = 32, n = c->heads * c->seq_q * c->seq_k;
    for (int64_t i = 0; i < c->batch * n; i++) {
        float u = mpp_uniform(&r, DROPOUT_OP, (uint64_t)(first_sample * n + i));
        bool keeps = u >= c->dropout || c->in_evaluation;
        t->factor[i] = !keeps ? 0 : c->in_evaluation ? 1 : 1 / (1 - (double)c->dropout);
    }
}

static struct attention_data data_of(const struct attention_case *c)
{
    struct attention_data t = {.c = c, .scale = 1 / sqrtf((float)c->head_dim)};
    t.q_shape = (struct shape){4, {c->batch, c->seq_q, c->heads, c->head_dim}, {c->split_batch, c->split_q, c->split_heads, 0}};
    t.k_shape = (struct shape){4, {c->batch, c->seq_k, c->heads, c->head_dim}, {c->split_batch, 0, c->split_heads, 0}};
    t.lse_shape = (struct shape){3, {c->batch, c->heads, c->seq_q}, {c->split_batch, c->split_heads, c->split_q}};
    t.mask_shape = (struct shape){2, {c->batch, c->seq_k}, {c->split_batch, 0}};
    t.n_q = shape_size(&t.q_shape);
    t.n_k = shape_size(&t.k_shape);
    t.q = random_floats(1, t.n_q), t.k = random_floats(2, t.n_k), t.v = random_floats(3, t.n_k);
    t.dy = random_floats(4, t.n_q);
    t.mask = malloc((size_t)(c->batch * c->seq_k) * sizeof *t.mask);
    uint64_t seed = 5;
    for (int64_t i = 0; i < c->batch * c->seq_k; i++) /* sample 1 sees nothing at all */
        t.mask[i] = i / c->seq_k == 1 ? 0 : random_below(&seed, 4) > 0 || i % c->seq_k == 2;
    t.qd = widened(t.q, t.n_q), t.kd = widened(t.k, t.n_k), t.vd = widened(t.v, t.n_k);
    int64_t n_scores = shape_size(&t.lse_shape) * c->seq_k;
    t.y = doubles(t.n_q), t.dq = doubles(t.n_q), t.dk = doubles(t.n_k), t.dv = doubles(t.n_k);
    t.lse = doubles(shape_size(&t.lse_shape));
    t.probability = doubles(n_scores), t.factor = doubles(n_scores);
    draw_factors(&t);
    return t;
}

static void free_data(struct attention_data *t)
{
    free(t->q), free(t->k), free(t->v), free(t->dy), free(t->mask), free(t->qd), free(t->kd), free(t->vd);
    free(t->y), free(t->lse), free(t->dq), free(t->dk), free(t->dv), free(t->probability), free(t->factor);
}

/* A few elements of each gradient of the reference against central differences. */
static void check_differences(struct attention_data *t)
{
    double *x[3] = {t->qd, t->kd, t->vd}, *gradient[3] = {t->dq, t->dk, t->dv};
    uint64_t seed = 6;
    for (int which = 0; which < 3; which++)
        for (int i = 0; i < 6; i++) {
            int64_t at = random_below(&seed, which ? t->n_k : t->n_q);
            double want = difference(attention_loss, t, &x[which][at]);
            check(fabs(want - gradient[which][at]) < 1e-7 * fmax(1, fabs(want)), "reference by differences");
        }
    reference_forward(t);
}

static bool all_finite(const float *x, int64_t n)
{
    bool ok = true;
    for (int64_t i = 0; i < n; i++)
        ok = ok && isfinite(x[i]);
    return ok;
}

static void body(struct mpp_rank *r, void *arg)
{
    struct attention_data *t = arg;
    const struct attention_case *c = t->c;
    struct mpp_attention a = {.batch = extent_at(r, &t->q_shape, 0), .seq_q = extent_at(r, &t->q_shape, 1),
                              .seq_k = extent_at(r, &t->k_shape, 1), .heads = extent_at(r, &t->q_shape, 2),
                              .head_dim = c->head_dim, .scale = t->scale, .dropout = c->dropout, .causal = c->causal,
                              .op = DROPOUT_OP};
    int64_t n_q = local_size(r, &t->q_shape), n_k = local_size(r, &t->k_shape), n_lse = local_size(r, &t->lse_shape);
    float *q = cut(r, &t->q_shape, t->q), *k = cut(r, &t->k_shape, t->k), *v = cut(r, &t->k_shape, t->v);
    float *dy = cut(r, &t->q_shape, t->dy), *y = floats(n_q), *lse = floats(n_lse);
    float *dq = floats(n_q), *dk = floats(n_k), *dv = floats(n_k);
    int32_t *mask = c->masked ? cut_ints(r, &t->mask_shape, t->mask) : NULL;
    int64_t bytes = mpp_attention_workspace(&a);
    r->workspace = malloc((size_t)bytes);
    memset(r->workspace, 0xff, (size_t)bytes); /* NaNs */
    r->training = !c->in_evaluation;
    check(bytes <= 2 * 4 * 129 * 512, "the workspace is bounded");
    mpp_attention_forward(r, &a, q, k, v, mask, y, lse);
    check_block(c->name, r, &t->q_shape, y, t->y, 2e-6);
    check_block(c->name, r, &t->lse_shape, lse, t->lse, 1e-6);
    mpp_attention_backward(r, &a, q, k, v, mask, y, lse, dy, dq, dk, dv);
    check(all_finite(y, n_q) && all_finite(dq, n_q) && all_finite(dk, n_k) && all_finite(dv, n_k), "finite padding");
    if (c->split_q) {
        mpp_all_reduce(r, c->split_q, dk, n_k, MPP_REDUCE_SUM);
        mpp_all_reduce(r, c->split_q, dv, n_k, MPP_REDUCE_SUM);
    }
    check_block(c->name, r, &t->q_shape, dq, t->dq, 3e-6);
    check_block(c->name, r, &t->k_shape, dk, t->dk, 3e-6);
    check_block(c->name, r, &t->k_shape, dv, t->dv, 3e-6);
    free(q), free(k), free(v), free(dy), free(y), free(lse), free(dq), free(dk), free(dv), free(mask);
    free(r->workspace);
}

int main(void)
{
    for (int i = 0; i < COUNT(cases); i++) {
        struct attention_data t = data_of(&cases[i]);
        reference_forward(&t);
        reference_backward(&t);
        if (t.n_q + t.n_k < 10000)
            check_differences(&t);
        run_mesh(t.c->n_axes, t.c->sizes, body, &t);
        free_data(&t);
    }
    return report();
}
