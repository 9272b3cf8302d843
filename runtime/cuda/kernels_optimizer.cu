/* Gradient norm, clipping, loss scaling, AdamW and SGD. What later kernels need of a step's judgement stays on the device. */
#include "cuda/rows.cuh"

#define LARGEST_SCALE 16777216.0f

/* ---- square sums ------------------------------------------------------------------------------------- */

enum { SUM_EACH = 16, MOST_SUM_BLOCKS = 1024 };

/* A part for each block: rows of RUN elements, STRIDE apart. */
__global__ void square_parts_kernel(struct mpp_valid_rows rows, int64_t stride, int64_t run, const float *x, double *parts)
{
    MPP_SHARED(double, shared);
    double sum = 0;
    MPP_EACH(i, rows.n * run) {
        float v = mpp_read(x, rows.n == 1 ? i : mpp_row_at(rows, i / run) * stride + i % run);
        sum += (double)v * (double)v;
    }
    sum = mpp_block_sum(sum, shared);
    if (threadIdx.x == 0)
        mpp_write(parts, blockIdx.x, sum);
}

__global__ void add_parts_kernel(int64_t n, const double *parts, float *out)
{
    MPP_SHARED(double, shared);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += mpp_read(parts, i);
    sum = mpp_block_sum(sum, shared);
    if (threadIdx.x == 0)
        mpp_write(out, 0, (float)sum);
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
    const struct mpp_valid_rows rows = mpp_valid_rows_of(&outer);
    int64_t blocks = (rows.n * run + MPP_BLOCK * SUM_EACH - 1) / (MPP_BLOCK * SUM_EACH);
    blocks = blocks < 1 ? 1 : blocks < (int64_t)MOST_SUM_BLOCKS ? blocks : (int64_t)MOST_SUM_BLOCKS;
    double *parts = (double *)mpp_cuda_scratch(r, MPP_SCRATCH_SUMS, (size_t)blocks * sizeof *parts);
    MPP_LAUNCH(r, square_parts_kernel, (unsigned)blocks, MPP_BLOCK, MPP_ROW_SHARED, rows, stride, run, x, parts);
    MPP_LAUNCH(r, add_parts_kernel, 1, MPP_BLOCK, MPP_ROW_SHARED, blocks, parts, sum);
}

/* ---- the judgement of a step -------------------------------------------------------------------------- */

__global__ void clip_scale_kernel(double limit, const float *square_sum, float *norm, float *scale)
{
    double n = sqrt((double)mpp_read(square_sum, 0));
    mpp_write(scale, 0, limit > 0 && n > limit ? (float)(limit / n) : 1.0f);
    if (norm != NULL)
        mpp_write(norm, 0, (float)n);
}

void mpp_clip_scale(struct mpp_rank *r, const float *square_sum, float *norm, float *scale)
{
    MPP_LAUNCH(r, clip_scale_kernel, 1, 1, 0, r->hyper.clip_norm, square_sum, norm, scale);
}

/* Factors of a step that SKIPPED steps precede. */
static __host__ __device__ struct mpp_step_factors factors_of(double beta1, double beta2, double taken)
{
    struct mpp_step_factors f;
    f.correct1 = 1 - pow(beta1, taken);
    f.root = 1 / sqrt(1 - pow(beta2, taken));
    f.first = taken == 1;
    return f;
}

__global__ void loss_scale_kernel(bool dynamic, float every, double limit, struct mpp_now now, double beta1, double beta2,
                                  const float *square_sum, float *norm, float *grad_scale, float *loss_scale, float *good,
                                  float *skipped, struct mpp_step_factors *factors)
{
    float old = mpp_read(loss_scale, 0), sum = mpp_read(square_sum, 0), scale = old;
    double n = sqrt((double)sum / (double)old / (double)old);
    bool finite = isfinite(sum);
    float in_a_row = finite ? mpp_read(good, 0) + 1.0f : 0.0f, left_out = mpp_read(skipped, 0) + (finite ? 0.0f : 1.0f);
    mpp_write(norm, 0, (float)n);
    mpp_write(grad_scale, 0,
              !finite ? 0.0f : limit > 0 && n > limit ? (float)(limit / n / (double)old) : (float)(1 / (double)old));
    if (dynamic && finite && in_a_row >= every) {
        scale = fminf(2.0f * old, fmaxf(old, LARGEST_SCALE));
        in_a_row = 0.0f;
    } else if (dynamic && !finite) {
        scale = fminf(old, fmaxf(0.5f * old, 1.0f));
    }
    mpp_write(loss_scale, 0, scale);
    mpp_write(good, 0, in_a_row);
    mpp_write(skipped, 0, left_out);
    *factors = factors_of(beta1, beta2, (double)mpp_now_step(now) - (double)left_out);
}

void mpp_loss_scale(struct mpp_rank *r, bool dynamic, int64_t every, const float *square_sum, float *norm, float *grad_scale,
                    float *loss_scale, float *good, float *skipped)
{
    const struct mpp_hyper *h = &r->hyper;
    MPP_LAUNCH(r, loss_scale_kernel, 1, 1, 0, dynamic, (float)every, h->clip_norm, mpp_now_of(r), h->beta1, h->beta2, square_sum, norm,
               grad_scale, loss_scale, good, skipped, r->device->factors);
    r->device->skipped = skipped;
}

struct mpp_step_factors mpp_step_factors_of(const struct mpp_rank *r)
{
    return factors_of(r->hyper.beta1, r->hyper.beta2, (double)(r->step - r->skipped));
}

/* Where the device has this step's; NULL: it is given them. */
static const struct mpp_step_factors *device_factors(const struct mpp_rank *r)
{
    const struct mpp_step_values *kept = mpp_kept_values(r);
    if (r->device != NULL && r->device->skipped != NULL)
        return r->device->factors;
    return kept != NULL ? &kept->factors : NULL;
}

/* The rate of this step, as the kernels take it. */
struct rate {
    double given;
    const double *kept; /* on the device; NULL: GIVEN */
};

static struct rate rate_of(const struct mpp_rank *r)
{
    const struct mpp_step_values *kept = mpp_kept_values(r);
    struct rate lr;
    lr.given = r->hyper.lr;
    lr.kept = kept != NULL ? &kept->lr : NULL;
    return lr;
}

static __device__ __forceinline__ double rate_now(struct rate lr)
{
    return lr.kept != NULL ? *lr.kept : lr.given;
}

/* ---- updates -------------------------------------------------------------------------------------------- */

struct adamw {
    struct rate lr;
    double weight_decay;
    float epsilon, keep1, take1, keep2, take2;
};

/* FACTORS where the device has them, else GIVEN. */
template <int W>
__global__ void adamw_kernel(int64_t n, struct adamw a, struct mpp_step_factors given, const struct mpp_step_factors *factors,
                             const float *grad_scale, const float *grad, float *param, float *m, float *v)
{
    const float scale = grad_scale != NULL ? mpp_read(grad_scale, 0) : 1.0f;
    const struct mpp_step_factors f = factors != NULL ? *factors : given;
    /* lr (m / c1) / (sqrt(v / c2) + eps) */
    const double lr = rate_now(a.lr);
    const float step = (float)(lr / f.correct1), root = (float)f.root, decay = (float)(lr * a.weight_decay);
    if (scale == 0.0f)
        return;
    MPP_EACH(i, n / W) {
        mpp_pack<float, W> g = mpp_read_pack<W>(grad, i * W), w = mpp_read_pack<W>(param, i * W);
        mpp_pack<float, W> m1 = mpp_read_pack<W>(m, i * W), v1 = mpp_read_pack<W>(v, i * W);
        for (int k = 0; k < W; k++) {
            float x = g.at[k] * scale;
            m1.at[k] = MPP_FMAF(a.keep1, m1.at[k], a.take1 * x);
            v1.at[k] = MPP_FMAF(a.keep2, v1.at[k], a.take2 * x * x);
            float update = step * m1.at[k] / MPP_FMAF(sqrtf(v1.at[k]), root, a.epsilon);
            w.at[k] -= MPP_FMAF(decay, w.at[k], update);
        }
        mpp_write_pack<W>(m, i * W, m1);
        mpp_write_pack<W>(v, i * W, v1);
        mpp_write_pack<W>(param, i * W, w);
    }
}

void mpp_adamw(struct mpp_rank *r, int64_t count, float weight_decay, const float *grad_scale, const float *grad, float *param, float *m,
               float *v)
{
    const struct mpp_hyper *h = &r->hyper;
    const struct mpp_step_factors given = mpp_step_factors_of(r), *factors = device_factors(r);
    struct adamw a;
    a.lr = rate_of(r);
    a.weight_decay = (double)weight_decay;
    a.epsilon = (float)h->epsilon;
    a.keep1 = (float)h->beta1;
    a.take1 = (float)(1 - h->beta1);
    a.keep2 = (float)h->beta2;
    a.take2 = (float)(1 - h->beta2);
    if (mpp_packs(count) && mpp_aligned(grad, param, m, v))
        MPP_LAUNCH(r, adamw_kernel<4>, mpp_grid(count / 4, MPP_BLOCK), MPP_BLOCK, 0, count, a, given, factors, grad_scale, grad, param, m,
                   v);
    else
        MPP_LAUNCH(r, adamw_kernel<1>, mpp_grid(count, MPP_BLOCK), MPP_BLOCK, 0, count, a, given, factors, grad_scale, grad, param, m, v);
}

struct sgd {
    struct rate lr;
    float momentum, weight_decay;
    bool nesterov;
};

__global__ void sgd_kernel(int64_t n, struct sgd s, const float *grad_scale, const float *grad, float *param)
{
    const float scale = grad_scale != NULL ? mpp_read(grad_scale, 0) : 1.0f, lr = (float)rate_now(s.lr);
    if (scale == 0.0f)
        return;
    MPP_EACH(i, n) {
        float w = mpp_read(param, i);
        mpp_write(param, i, w - lr * MPP_FMAF(s.weight_decay, w, mpp_read(grad, i) * scale));
    }
}

__global__ void momentum_kernel(int64_t n, struct sgd s, bool first, const struct mpp_step_factors *factors, const float *grad_scale,
                                const float *grad, float *param, float *velocity)
{
    const float scale = grad_scale != NULL ? mpp_read(grad_scale, 0) : 1.0f;
    const bool begins = factors != NULL ? factors->first : first;
    const float keep = begins ? 0.0f : s.momentum; /* v = g at step 1 */
    const float lr = (float)rate_now(s.lr), along = s.nesterov ? s.momentum : 1.0f, direct = s.nesterov ? 1.0f : 0.0f;
    if (scale == 0.0f)
        return;
    MPP_EACH(i, n) {
        float w = mpp_read(param, i), g = MPP_FMAF(s.weight_decay, w, mpp_read(grad, i) * scale);
        float v1 = MPP_FMAF(keep, mpp_read(velocity, i), g);
        mpp_write(velocity, i, v1);
        mpp_write(param, i, w - lr * MPP_FMAF(along, v1, direct * g));
    }
}

void mpp_sgd(struct mpp_rank *r, int64_t count, float weight_decay, const float *grad_scale, const float *grad, float *param,
             float *velocity)
{
    const struct mpp_hyper *h = &r->hyper;
    struct sgd s;
    s.lr = rate_of(r);
    s.momentum = (float)h->momentum;
    s.weight_decay = weight_decay;
    s.nesterov = h->nesterov;
    if (velocity == NULL)
        MPP_LAUNCH(r, sgd_kernel, mpp_grid(count, MPP_BLOCK), MPP_BLOCK, 0, count, s, grad_scale, grad, param);
    else
        MPP_LAUNCH(r, momentum_kernel, mpp_grid(count, MPP_BLOCK), MPP_BLOCK, 0, count, s, r->step - r->skipped == 1, device_factors(r),
                   grad_scale, grad, param, velocity);
}
