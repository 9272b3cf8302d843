/* Copies, conversions, and the small sums that several files share. */
#include "core/contraction.h"
#include "cuda/kernels_copy.h"
#include "cuda/launch.cuh"

/* ---- columns' parts (launch.cuh) ------------------------------------------------------------------------ */

__global__ void columns_finish_kernel(int64_t cols, int64_t n_parts, const double *parts, bool add, float *y)
{
    MPP_EACH(j, cols) {
        double sum = add ? (double)mpp_read(y, j) : 0.0;
        for (int64_t k = 0; k < n_parts; k++)
            sum += parts[k * cols + j];
        mpp_write(y, j, (float)sum);
    }
}

void mpp_columns_finish(struct mpp_rank *r, int64_t rows, int64_t cols, const double *parts, bool add, float *y)
{
    MPP_LAUNCH(r, columns_finish_kernel, mpp_grid(cols, MPP_BLOCK), MPP_BLOCK, 0, cols, mpp_column_parts(rows, cols), parts, add, y);
}

/* ---- boxes ------------------------------------------------------------------------------------------------ */

template <class T> __global__ void box_kernel(struct mpp_box box, int64_t n, const T *src, T *dst)
{
    MPP_EACH(i, n) {
        int64_t k = i / box.run, from = i % box.run, to = from;
        for (int d = box.n_dims - 1; d >= 0; d--) {
            from += k % box.n[d] * box.src_stride[d];
            to += k % box.n[d] * box.dst_stride[d];
            k /= box.n[d];
        }
        mpp_write(dst, to, mpp_read(src, from));
    }
}

void mpp_cuda_copy_box(struct mpp_rank *r, cudaStream_t stream, const struct mpp_box *box, const void *src, void *dst)
{
    int64_t n = box->run;
    for (int d = 0; d < box->n_dims; d++)
        n *= box->n[d];
    if (box->bytes == 4)
        MPP_LAUNCH_ON(r, stream, box_kernel<uint32_t>, mpp_grid(n, MPP_BLOCK), MPP_BLOCK, 0, *box, n, (const uint32_t *)src,
                      (uint32_t *)dst);
    else
        MPP_LAUNCH_ON(r, stream, box_kernel<uint16_t>, mpp_grid(n, MPP_BLOCK), MPP_BLOCK, 0, *box, n, (const uint16_t *)src,
                      (uint16_t *)dst);
}

/* ---- small sums -------------------------------------------------------------------------------------------- */

template <int TYPE, int W> __global__ void sum_halves_kernel(struct mpp_half_terms t, uint16_t *y)
{
    MPP_EACH(i, t.count / W) {
        float sum[W] = {};
        for (int m = 0; m < t.n; m++) {
            mpp_pack<uint16_t, W> x = mpp_read_pack<W>(m == t.own ? t.mine : t.theirs + m * t.stride, i * W);
            for (int k = 0; k < W; k++)
                sum[k] = m == 0 ? mpp_half<TYPE>::wide(x.at[k]) : sum[k] + mpp_half<TYPE>::wide(x.at[k]);
        }
        mpp_pack<uint16_t, W> rounded;
        for (int k = 0; k < W; k++)
            rounded.at[k] = mpp_half<TYPE>::bits(sum[k]);
        mpp_write_pack<W>(y, i * W, rounded);
    }
}

void mpp_cuda_sum_halves(struct mpp_rank *r, cudaStream_t stream, enum mpp_type type, const struct mpp_half_terms *terms, void *y)
{
    const struct mpp_half_terms t = *terms;
    uint16_t *to = (uint16_t *)y;
    const bool packs = mpp_packs(t.count) && mpp_packs(t.stride) && mpp_aligned(t.mine, t.theirs, (const uint16_t *)to);
    const unsigned grid = mpp_grid(packs ? t.count / 4 : t.count, MPP_BLOCK);
    if (packs && type == MPP_TYPE_BF16)
        MPP_LAUNCH_ON(r, stream, (sum_halves_kernel<MPP_TYPE_BF16, 4>), grid, MPP_BLOCK, 0, t, to);
    else if (packs)
        MPP_LAUNCH_ON(r, stream, (sum_halves_kernel<MPP_TYPE_F16, 4>), grid, MPP_BLOCK, 0, t, to);
    else if (type == MPP_TYPE_BF16)
        MPP_LAUNCH_ON(r, stream, (sum_halves_kernel<MPP_TYPE_BF16, 1>), grid, MPP_BLOCK, 0, t, to);
    else
        MPP_LAUNCH_ON(r, stream, (sum_halves_kernel<MPP_TYPE_F16, 1>), grid, MPP_BLOCK, 0, t, to);
}

__global__ void add_terms_kernel(int n, const float *terms, float *x)
{
    float sum = mpp_read(terms, 0);
    for (int i = 1; i < n; i++)
        sum += mpp_read(terms, i);
    mpp_write(x, 0, sum);
}

void mpp_cuda_add_terms(struct mpp_rank *r, int n, const float *terms, float *x)
{
    MPP_LAUNCH(r, add_terms_kernel, 1, 1, 0, n, terms, x);
}

/* ---- contractions without matrix products -------------------------------------------------------------------- */

/* Letters of the result and letters summed over, each with its strides. */
struct plain {
    int n_outer, n_inner;
    int64_t outer, inner; /* indices of each */
    int64_t extent[2 * MPP_MAX_DIMS + MPP_MAX_DIMS], stride[3][2 * MPP_MAX_DIMS + MPP_MAX_DIMS];
};

template <int TYPE, int C_TYPE>
__global__ void plain_kernel(struct plain p, const typename mpp_element<TYPE>::stored *a, const typename mpp_element<TYPE>::stored *b,
                             float beta, typename mpp_element<C_TYPE>::stored *c)
{
    MPP_EACH(i, p.outer) {
        int64_t k = i, at_a = 0, at_b = 0, at_c = 0;
        for (int d = p.n_outer - 1; d >= 0; d--) {
            int64_t x = k % p.extent[d];
            k /= p.extent[d];
            at_a += x * p.stride[0][d];
            at_b += x * p.stride[1][d];
            at_c += x * p.stride[2][d];
        }
        double sum = beta != 0.0f ? (double)mpp_element<C_TYPE>::load(c, at_c) : 0.0;
        for (int64_t j = 0; j < p.inner; j++) {
            int64_t rest = j, u = at_a, v = at_b;
            for (int d = p.n_outer + p.n_inner - 1; d >= p.n_outer; d--) {
                int64_t x = rest % p.extent[d];
                rest /= p.extent[d];
                u += x * p.stride[0][d];
                v += x * p.stride[1][d];
            }
            sum += (double)mpp_element<TYPE>::load(a, u) * (double)mpp_element<TYPE>::load(b, v);
        }
        mpp_element<C_TYPE>::store(c, at_c, (float)sum);
    }
}

static void add_letter(struct plain *p, int at, const struct mpp_factor *f)
{
    p->extent[at] = f->extent;
    for (int t = 0; t < 3; t++)
        p->stride[t][at] = f->stride[t];
}

static struct plain plain_of(const struct mpp_contraction *e)
{
    struct plain p = {};
    p.outer = p.inner = 1;
    for (int summed = 0; summed < 2; summed++)
        for (int i = 0; i < e->n_factors; i++) {
            const struct mpp_factor *f = &e->factor[i];
            if ((f->tensors == MPP_CLASS_K) != (summed != 0))
                continue;
            add_letter(&p, p.n_outer + p.n_inner, f);
            (summed ? p.n_inner : p.n_outer)++;
            (summed ? p.inner : p.outer) *= f->extent > 0 ? f->extent : 0;
        }
    return p;
}

template <int TYPE, int C_TYPE>
static void plain(struct mpp_rank *r, const struct plain *p, const void *a, const void *b, float beta, void *c)
{
    typedef typename mpp_element<TYPE>::stored stored;
    typedef typename mpp_element<C_TYPE>::stored c_stored;
    MPP_LAUNCH(r, (plain_kernel<TYPE, C_TYPE>), mpp_grid(p->outer, MPP_BLOCK), MPP_BLOCK, 0, *p, (const stored *)a, (const stored *)b,
               beta, (c_stored *)c);
}

void mpp_cuda_plain_contraction(struct mpp_rank *r, const struct mpp_contraction *e, enum mpp_type type, enum mpp_type c_type,
                                const void *a, const void *b, float beta, void *c)
{
    const struct plain p = plain_of(e);
    if (type == MPP_TYPE_F32)
        plain<MPP_TYPE_F32, MPP_TYPE_F32>(r, &p, a, b, beta, c);
    else if (type == MPP_TYPE_BF16 && c_type == MPP_TYPE_F32)
        plain<MPP_TYPE_BF16, MPP_TYPE_F32>(r, &p, a, b, beta, c);
    else if (type == MPP_TYPE_BF16)
        plain<MPP_TYPE_BF16, MPP_TYPE_BF16>(r, &p, a, b, beta, c);
    else if (c_type == MPP_TYPE_F32)
        plain<MPP_TYPE_F16, MPP_TYPE_F32>(r, &p, a, b, beta, c);
    else
        plain<MPP_TYPE_F16, MPP_TYPE_F16>(r, &p, a, b, beta, c);
}
