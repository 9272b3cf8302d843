/* Scaled dot-product attention (Vaswani et al. 2017), row by row with all scores of a query:
 *     s = scale q k'   p = e^(s - lse)   y = (p f) v           f: dropout's factors
 *     ds = p (f dy v' - dy.y)   dq = scale ds k   dk = scale ds' q   dv = (p f)' dy
 * A query that sees no key gets y = 0 and lse = 0. */
#include "ir/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct attention {
    const struct mpp_ref_in *in;
    const struct mpp_ref_tensor *q, *k, *v, *mask;
    int64_t batch, seq_q, seq_k, heads, dim_k, dim_v;
    double scale, dropout;
    int64_t stream;
    bool causal;
    double *score, *factor;       /* of one query: [seq_k] */
};

static struct attention attention_of(const struct mpp_ref_in *in)
{
    const struct mpp_ref_tensor *q = &in->in[0], *k = &in->in[1], *v = &in->in[2];
    const struct mpp_attrs *attrs = &in->op->attrs;
    struct attention a = {
        .in = in, .q = q, .k = k, .v = v, .mask = &in->in[3],
        .batch = q->dims[0], .seq_q = q->dims[1], .seq_k = k->dims[1], .heads = q->dims[2],
        .dim_k = q->dims[3], .dim_v = v->dims[3],
        .scale = mpp_attrs_float(attrs, "scale", 1 / sqrt((double)q->global[3])),
        .dropout = mpp_attrs_float(attrs, "dropout", 0), .stream = mpp_attrs_int(attrs, "stream", 0),
        .causal = mpp_attrs_int(attrs, "causal", 0) != 0,
    };
    a.score = mpp_ref_scratch(2 * a.seq_k);
    a.factor = a.score + a.seq_k;
    return a;
}

/* Element [b, s, n, 0] of a tensor [batch, seq, heads, dim]. */
static double *at(const struct mpp_ref_tensor *t, int64_t b, int64_t s, int64_t n)
{
    return t->data + ((b * t->dims[1] + s) * t->dims[2] + n) * t->dims[3];
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* Scores of one query (-Inf: not seen) and dropout's factors. */
static void scores(const struct attention *a, int64_t b, int64_t s, int64_t n)
{
    for (int64_t t = 0; t < a->seq_k; t++) {
        bool hidden = a->causal && t + a->k->offset[1] > s + a->q->offset[1];
        if (a->mask->data)
            hidden = hidden || a->mask->data[b * a->seq_k + t] == 0;
        a->score[t] = hidden ? -INFINITY : a->scale * dot(at(a->q, b, s, n), at(a->k, b, t, n), a->dim_k);
        uint64_t element = (uint64_t)(b + a->q->offset[0]) * (uint64_t)a->q->global[2] + (uint64_t)(n + a->q->offset[2]);
        element = element * (uint64_t)a->q->global[1] + (uint64_t)(s + a->q->offset[1]);
        element = element * (uint64_t)a->k->global[1] + (uint64_t)(t + a->k->offset[1]);
        a->factor[t] = mpp_ref_dropout_factor(a->in, a->dropout, a->stream, element);
    }
}

void mpp_ref_masked_scores(const struct mpp_ref_in *in)
{
    const struct mpp_ref_tensor *x = &in->in[0], *mask = &in->in[1];
    const struct mpp_attrs *attrs = &in->op->attrs;
    double scale = mpp_attrs_float(attrs, "scale", 1), fill = mpp_attrs_float(attrs, "fill", 0);
    bool causal = mpp_attrs_int(attrs, "causal", 0) != 0;
    int64_t idx[MPP_GRAPH_MAX_DIMS] = {0};
    for (int64_t i = 0; i < mpp_ref_count(x); i++, mpp_ref_next(x, idx)) {
        bool hidden = causal && idx[3] + x->offset[3] > idx[2] + x->offset[2];
        if (mask->data)
            hidden = hidden || mask->data[idx[0] * x->dims[3] + idx[3]] == 0;
        in->out[0].data[i] = hidden ? fill : scale * x->data[i];
    }
}

void mpp_ref_attention(const struct mpp_ref_in *in)
{
    struct attention a = attention_of(in);
    double *lse = in->out[1].data;
    memset(in->out[0].data, 0, (size_t)mpp_ref_count(&in->out[0]) * sizeof(double));
    for (int64_t b = 0; b < a.batch; b++)
        for (int64_t n = 0; n < a.heads; n++)
            for (int64_t s = 0; s < a.seq_q; s++) {
                double max = -INFINITY, sum = 0, *y = at(&in->out[0], b, s, n);
                scores(&a, b, s, n);
                for (int64_t t = 0; t < a.seq_k; t++)
                    max = fmax(max, a.score[t]);
                for (int64_t t = 0; t < a.seq_k && max > -INFINITY; t++)
                    sum += exp(a.score[t] - max);
                lse[(b * a.heads + n) * a.seq_q + s] = sum > 0 ? max + log(sum) : 0;
                for (int64_t t = 0; t < a.seq_k && sum > 0; t++) {
                    double p = exp(a.score[t] - max) / sum * a.factor[t];
                    const double *v = at(a.v, b, t, n);
                    for (int64_t e = 0; e < a.dim_v; e++)
                        y[e] += p * v[e];
                }
            }
    free(a.score);
}

/* One query's part of dq, dk and dv. */
static void backward_row(const struct attention *a, int64_t b, int64_t s, int64_t n)
{
    const struct mpp_ref_in *in = a->in;
    const double *q = at(a->q, b, s, n), *y = at(&in->in[4], b, s, n), *dy = at(&in->in[6], b, s, n);
    double lse = in->in[5].data[(b * a->heads + n) * a->seq_q + s], less = dot(dy, y, a->dim_v);
    double *dq = at(&in->out[0], b, s, n);
    scores(a, b, s, n);
    for (int64_t t = 0; t < a->seq_k; t++) {
        const double *k = at(a->k, b, t, n), *v = at(a->v, b, t, n);
        double *dk = at(&in->out[1], b, t, n), *dv = at(&in->out[2], b, t, n);
        double p = exp(a->score[t] - lse), f = a->factor[t], ds = p * (f * dot(dy, v, a->dim_v) - less) * a->scale;
        for (int64_t e = 0; e < a->dim_v; e++)
            dv[e] += p * f * dy[e];
        for (int64_t d = 0; d < a->dim_k; d++) {
            dq[d] += ds * k[d];
            dk[d] += ds * q[d];
        }
    }
}

void mpp_ref_attention_grad(const struct mpp_ref_in *in)
{
    struct attention a = attention_of(in);
    for (int o = 0; o < 3; o++)
        memset(in->out[o].data, 0, (size_t)mpp_ref_count(&in->out[o]) * sizeof(double));
    for (int64_t b = 0; b < a.batch; b++)
        for (int64_t n = 0; n < a.heads; n++)
            for (int64_t s = 0; s < a.seq_q; s++)
                backward_row(&a, b, s, n);
    free(a.score);
}
