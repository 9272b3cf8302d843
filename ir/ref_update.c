/* Gradient norm, clipping and the optimisers, once per step. */
#include "ir/ref.h"

#include <math.h>

void mpp_ref_square_sum(const struct mpp_ref_in *in)
{
    int64_t n = mpp_ref_count(&in->in[0]);
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += in->in[0].data[i] * in->in[0].data[i];
    in->out[0].data[0] = sum;
}

/* norm, and the factor that brings it down to clip_norm (0: never). */
void mpp_ref_clip_scale(const struct mpp_ref_in *in)
{
    double norm = sqrt(in->in[0].data[0]);
    in->out[0].data[0] = norm;
    in->out[1].data[0] = in->clip_norm > 0 && norm > in->clip_norm ? in->clip_norm / norm : 1;
}

/* See mpp_loss_scale of the runtime: norm and factor of the gradients without their scale, and the scale anew. */
void mpp_ref_loss_scale(const struct mpp_ref_in *in)
{
    double sum = in->in[0].data[0], scale = in->in[1].data[0], good = in->in[2].data[0], skipped = in->in[3].data[0];
    bool dynamic = mpp_attrs_int(&in->op->attrs, "dynamic", 1) != 0, finite = isfinite(sum);
    double norm = sqrt(sum) / scale, every = (double)mpp_attrs_int(&in->op->attrs, "every", 2000);
    double clip = in->clip_norm > 0 && norm > in->clip_norm ? in->clip_norm / norm : 1;
    bool grows = dynamic && finite && good + 1 >= every;
    in->out[0].data[0] = norm;
    in->out[1].data[0] = finite ? clip / scale : 0;
    in->out[2].data[0] = grows ? fmin(2 * scale, fmax(scale, 0x1p24)) : dynamic && !finite ? fmin(scale, fmax(scale / 2, 1)) : scale;
    in->out[3].data[0] = finite && !grows ? good + 1 : 0;
    in->out[4].data[0] = skipped + !finite;
}

/* Loshchilov & Hutter 2019, bias-corrected: w *= 1 - lr wd; w -= lr (m / c1) / (sqrt(v / c2) + epsilon). */
void mpp_ref_adamw(const struct mpp_ref_in *in)
{
    const double *w = in->in[0].data, *m = in->in[1].data, *v = in->in[2].data, *grad = in->in[3].data;
    double decay = mpp_attrs_float(&in->op->attrs, "weight_decay", 0), scale = in->in[4].data[0];
    double c1 = 1 - pow(in->beta1, (double)in->step), c2 = 1 - pow(in->beta2, (double)in->step);
    int64_t n = mpp_ref_count(&in->out[0]);
    for (int64_t i = 0; i < n; i++) {
        double g = grad[i] * scale;
        double m1 = in->beta1 * m[i] + (1 - in->beta1) * g, v1 = in->beta2 * v[i] + (1 - in->beta2) * g * g;
        in->out[0].data[i] = w[i] * (1 - in->lr * decay) - in->lr * (m1 / c1) / (sqrt(v1 / c2) + in->epsilon);
        in->out[1].data[i] = m1;
        in->out[2].data[i] = v1;
    }
}

/* g += wd w; velocity = momentum velocity + g (g at step 1); w -= lr velocity, or lr g without one. */
void mpp_ref_sgd(const struct mpp_ref_in *in)
{
    const double *w = in->in[0].data, *grad = in->in[1].data, *velocity = in->in[3].data;
    double decay = mpp_attrs_float(&in->op->attrs, "weight_decay", 0), scale = in->in[2].data[0];
    int64_t n = mpp_ref_count(&in->out[0]);
    for (int64_t i = 0; i < n; i++) {
        double g = grad[i] * scale + decay * w[i];
        double v1 = velocity && in->step > 1 ? in->momentum * velocity[i] + g : g;
        double along = velocity && in->nesterov ? g + in->momentum * v1 : v1;
        in->out[0].data[i] = w[i] - in->lr * along;
        if (in->op->n_out > 1 && in->out[1].data)
            in->out[1].data[i] = v1;
    }
}
