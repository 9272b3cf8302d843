/* What follows a product, in one pass over it: bias, GELU. */
#include "cuda/fused.cuh"
#include "cuda/kernels_epilogue.h"

/* As it lies in memory, and as a float. */
template <int TYPE> struct number : mpp_half<TYPE> {};

template <> struct number<MPP_TYPE_F32> {
    static __device__ __forceinline__ float wide(float x) { return x; }
    static __device__ __forceinline__ float bits(float x) { return x; }
};

template <int TYPE, int W>
__global__ void epilogue_kernel(int64_t rows, int64_t cols, int64_t ld, const typename mpp_element<TYPE>::stored *x,
                                const typename mpp_element<TYPE>::stored *bias, bool gelu, typename mpp_element<TYPE>::stored *pre,
                                typename mpp_element<TYPE>::stored *y)
{
    typedef typename mpp_element<TYPE>::stored stored;
    const int64_t packs = cols / W;
    MPP_EACH(at, rows * packs) {
        const int64_t i = mpp_quotient(at, packs), j = (at - i * packs) * W;
        mpp_pack<stored, W> from = mpp_read_pack<W>(x, i * ld + j), to, added = {};
        if (bias != NULL)
            added = mpp_read_common_pack<W>(bias, j);
        for (int k = 0; k < W; k++) {
            const float v = number<TYPE>::wide(from.at[k]) + (bias != NULL ? number<TYPE>::wide(added.at[k]) : 0.0f);
            from.at[k] = number<TYPE>::bits(v);
            to.at[k] = gelu ? number<TYPE>::bits(mpp_gelu_tanh(v)) : from.at[k];
        }
        if (pre != NULL)
            mpp_write_pack<W>(pre, i * ld + j, from);
        mpp_write_pack<W>(y, i * ld + j, to);
    }
}

template <int TYPE, int W>
static void epilogue(struct mpp_rank *r, int64_t rows, int64_t cols, int64_t ld, const void *x, const void *bias, bool gelu, void *pre,
                     void *y)
{
    typedef typename mpp_element<TYPE>::stored stored;
    const stored *in = (const stored *)x, *added = (const stored *)bias;
    stored *of = (stored *)pre, *to = (stored *)y;
    if (cols % W == 0 && ld % W == 0 && mpp_aligned16(in, added, of, to))
        MPP_LAUNCH(r, (epilogue_kernel<TYPE, W>), mpp_grid(rows * (cols / W), MPP_BLOCK), MPP_BLOCK, 0, rows, cols, ld, in, added, gelu, of, to);
    else
        MPP_LAUNCH(r, (epilogue_kernel<TYPE, 1>), mpp_grid(rows * cols, MPP_BLOCK), MPP_BLOCK, 0, rows, cols, ld, in, added, gelu, of, to);
}

void mpp_cuda_epilogue(struct mpp_rank *r, enum mpp_type type, int64_t rows, int64_t cols, int64_t ld, const void *x, const void *bias,
                       bool gelu, void *pre, void *y)
{
    if (type == MPP_TYPE_F32)
        epilogue<MPP_TYPE_F32, 4>(r, rows, cols, ld, x, bias, gelu, pre, y);
    else if (type == MPP_TYPE_BF16)
        epilogue<MPP_TYPE_BF16, 8>(r, rows, cols, ld, x, bias, gelu, pre, y);
    else
        epilogue<MPP_TYPE_F16, 8>(r, rows, cols, ld, x, bias, gelu, pre, y);
}
