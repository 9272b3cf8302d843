/* Gradient norm, clipping, AdamW and SGD. */
#include "kernels_internal.h"

enum { SUM_CHUNK = 16384 };
#define LARGEST_SCALE 16777216.0f

/* The sum of x^2 over N runs of RUN elements at ROWS [n] * STRIDE: in chunks, which any thread may add up. */
static double square_sum_of(const struct mpp_rank *r, const int64_t *rows, int64_t n, int64_t stride, int64_t run,
                            const float *x)
{
    double part[MPP_ROW_BLOCK], total = 0;
    int64_t chunks = mpp_max_i64(1, (run + SUM_CHUNK - 1) / SUM_CHUNK);
    for (int64_t first = 0; first < n * chunks; first += MPP_ROW_BLOCK) {
        int64_t parts = mpp_min_i64(MPP_ROW_BLOCK, n * chunks - first);
        MPP_PARALLEL(r, parts * mpp_min_i64(run, SUM_CHUNK))
        for (int64_t i = 0; i < parts; i++) {
            int64_t from = (first + i) % chunks * SUM_CHUNK;
            const float *at = x + rows[(first + i) / chunks] * stride + from;
            part[i] = mpp_row_dot(at, at, mpp_min_i64(SUM_CHUNK, run - from));
        }
        for (int64_t i = 0; i < parts; i++)
            total += part[i];
    }
    return total;
}

void mpp_square_sum(struct mpp_rank *r, const struct mpp_space *space, const float *x, float *sum)
{
    /* Trailing dimensions without padding form one contiguous run. */
    struct mpp_space outer = *space;
    int64_t run = 1, stride = 1;
    while (outer.n_dims > 0) {
        int d = --outer.n_dims;
        run = stride * outer.valid[d];
        stride *= outer.padded[d];
        if (run != stride)
            break;
    }
    struct mpp_row_walk walk = mpp_rows_begin(&outer);
    int64_t rows[MPP_ROW_BLOCK], n;
    double total = 0;
    while ((n = mpp_rows_take(&walk, rows, MPP_ROW_BLOCK)) > 0)
        total += square_sum_of(r, rows, n, stride, run, x);
    *sum = (float)total;
}

void mpp_clip_scale(struct mpp_rank *r, const float *square_sum, float *norm, float *scale)
{
    double n = sqrt((double)*square_sum), limit = r->hyper.clip_norm;
    *scale = limit > 0 && n > limit ? (float)(limit / n) : 1.0f;
    if (norm)
        *norm = (float)n;
}

void mpp_loss_scale(struct mpp_rank *r, bool dynamic, int64_t every, const float *square_sum, float *norm, float *grad_scale,
                    float *loss_scale, float *good, float *skipped)
{
    double scale = (double)*loss_scale, true_sum = (double)*square_sum / scale / scale;
    double n = sqrt(true_sum), limit = r->hyper.clip_norm;
    bool finite = isfinite(*square_sum);
    *norm = (float)n;
    *grad_scale = !finite ? 0.0f : limit > 0 && n > limit ? (float)(limit / n / scale) : (float)(1 / scale);
    *good = finite ? *good + 1.0f : 0.0f;
    *skipped += finite ? 0.0f : 1.0f;
    if (dynamic && finite && *good >= (float)every) {
        *loss_scale = fminf(2.0f * *loss_scale, fmaxf(*loss_scale, LARGEST_SCALE));
        *good = 0.0f;
    } else if (dynamic && !finite) {
        *loss_scale = fminf(*loss_scale, fmaxf(0.5f * *loss_scale, 1.0f));
    }
    r->skipped = (int64_t)*skipped;
}

void mpp_adamw(struct mpp_rank *r, int64_t count, float weight_decay, const float *grad_scale, const float *grad,
               float *param, float *m, float *v)
{
    const struct mpp_hyper *h = &r->hyper;
    double taken = (double)(r->step - r->skipped);
    float scale = grad_scale ? *grad_scale : 1.0f;
    if (scale == 0.0f)
        return;
    double correct1 = 1 - pow(h->beta1, taken), correct2 = 1 - pow(h->beta2, taken);
    float decay = (float)(h->lr * weight_decay), epsilon = (float)h->epsilon;
    float keep1 = (float)h->beta1, take1 = (float)(1 - h->beta1);
    float keep2 = (float)h->beta2, take2 = (float)(1 - h->beta2);
    /* lr (m / c1) / (sqrt(v / c2) + eps) */
    float step = (float)(h->lr / correct1), root = (float)(1 / sqrt(correct2));
    MPP_PARALLEL_SIMD(r, count)
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * scale, w = param[i];
        float m1 = MPP_FMAF(keep1, m[i], take1 * g);
        float v1 = MPP_FMAF(keep2, v[i], take2 * g * g);
        m[i] = m1;
        v[i] = v1;
        float update = step * m1 / MPP_FMAF(sqrtf(v1), root, epsilon);
        param[i] = w - MPP_FMAF(decay, w, update);
    }
}

void mpp_sgd(struct mpp_rank *r, int64_t count, float weight_decay, const float *grad_scale, const float *grad,
             float *param, float *velocity)
{
    const struct mpp_hyper *h = &r->hyper;
    float scale = grad_scale ? *grad_scale : 1.0f;
    float lr = (float)h->lr, momentum = (float)h->momentum;
    if (scale == 0.0f)
        return;
    if (!velocity) {
        MPP_PARALLEL_SIMD(r, count)
        for (int64_t i = 0; i < count; i++)
            param[i] -= lr * MPP_FMAF(weight_decay, param[i], grad[i] * scale);
        return;
    }
    float keep = r->step - r->skipped == 1 ? 0.0f : momentum; /* v = g at step 1 */
    float along = h->nesterov ? momentum : 1.0f, direct = h->nesterov ? 1.0f : 0.0f;
    MPP_PARALLEL_SIMD(r, count)
    for (int64_t i = 0; i < count; i++) {
        float g = MPP_FMAF(weight_decay, param[i], grad[i] * scale);
        float v1 = MPP_FMAF(keep, velocity[i], g);
        velocity[i] = v1;
        param[i] -= lr * MPP_FMAF(along, v1, direct * g);
    }
}
