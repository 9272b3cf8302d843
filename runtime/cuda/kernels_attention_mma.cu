/* Attention of bf16 and f16 tensors on tensor cores, after FlashAttention-2 (Dao 2023): what kernels_attention.cu computes, and
 * by the same formulas, with products of 16-bit numbers summed in f32 (mma.cuh). Off unless MPP_ATTENTION=mma is in the environment.
 *
 * A block has ROWS queries (of the forward, and for dq) or keys (for dk and dv), a warp 16 of them; it walks the keys or queries on the
 * other side in tiles of STEP, which lie in shared memory as they do in global memory. A warp multiplies its rows with a tile, so that
 * its lanes have 16 x STEP scores in registers; from there, rounded to 16 bits, they go into the next product as its left
 * operand. So beside inputs and outputs these are rounded to the tensors' type: probabilities (times dropout's factors), and ds.
 *
 *     forward      s = q k'     y += (p o f) v                          registers: q, y, s
 *     dq           s = q k'     dp = dy v'    dq += ds k                q, dy, dq, s, dp
 *     dk, dv       s' = k q'    dp' = v dy'   dv += (p o f)' dy         v, dk, dv, s', dp'; shared: k
 *                                             dk += ds' q
 *
 * Heads are padded with zeros to DIM (32, 64 or 128) in shared memory; longer ones are left to kernels_attention.cu. */
#include <stdlib.h>
#include <string.h>

#include "cuda/attention.cuh"
#include "cuda/mma.cuh"

#define LOG2_E 1.44269504088896341f
#define LN_2 0.693147180559945309f

enum {
    WARPS = 4,
    THREADS = WARPS * MPP_WARP,
    WARP_ROWS = 16,          /* of an mma */
    ROWS = WARPS * WARP_ROWS,
    MOST_DIM = 128,
    PACK = 8,                /* elements of 16 bytes */
};

/* Rows of a tile are 16 bytes longer than their elements: the 8 rows that ldmatrix reads at once lie in different banks. */
template <int DIM> struct sizes {
    enum {
        PITCH = DIM + PACK,
        SLICES = DIM / 16,   /* of a product over head dimensions */
        COLUMNS = DIM / 8,   /* pieces of 8 columns that sums over positions have */
        FORWARD_STEP = 64,
        BACKWARD_STEP = DIM > 64 ? 32 : 64, /* registers have no room for more */
    };
};

static __device__ __forceinline__ int lane_of(void)
{
    return threadIdx.x % MPP_WARP;
}

/* A lane's first row of its block, of two that are 8 apart, and its first column of 8, of two neighbours. */
static __device__ __forceinline__ int own_row(void)
{
    return threadIdx.x / MPP_WARP * WARP_ROWS + lane_of() / 4;
}

static __device__ __forceinline__ int own_column(void)
{
    return lane_of() % 4 * 2;
}

/* ---- tiles ------------------------------------------------------------------------------------------------- */

/* A tensor's rows of one head: positions below END count. PACKS: 16 bytes at a time. */
struct rows {
    const uint16_t *x;
    int64_t stride, head_dim, end;
    bool packs;
};

/* Begins to bring N positions from P0 on, zeros where there are none, in a group of its own. All threads call. */
template <int DIM, int N> static __device__ __forceinline__ void begin_tile(const struct rows &r, int64_t p0, uint16_t *tile)
{
    for (int e = threadIdx.x; e < N * (DIM / PACK); e += THREADS) {
        const int row = e / (DIM / PACK), d = e % (DIM / PACK) * PACK;
        const int64_t at = (p0 + row) * r.stride + d;
        uint16_t *to = tile + row * sizes<DIM>::PITCH + d;
        if (r.packs && p0 + row < r.end && d < r.head_dim) {
            mpp_copy_beside(to, r.x + at);
        } else {
            mpp_pack<uint16_t, PACK> piece;
            for (int k = 0; k < PACK; k++)
                piece.at[k] = p0 + row < r.end && d + k < r.head_dim ? mpp_read(r.x, at + k) : (uint16_t)0;
            *reinterpret_cast<mpp_pack<uint16_t, PACK> *>(to) = piece;
        }
    }
    mpp_copies_commit();
}

/* Tiles but the last OPEN that were begun are there, for all threads. */
template <int OPEN> static __device__ __forceinline__ void end_tiles(void)
{
    mpp_copies_wait<OPEN>();
    __syncthreads();
}

/* A warp's 16 rows as left operand of products over head dimensions: SLICE of 16 of them. ROWS: the warp's first row. */
template <int DIM> static __device__ __forceinline__ void load_left(const uint16_t *rows, int slice, uint32_t *a)
{
    mpp_load_matrices(a, rows + lane_of() % 16 * sizes<DIM>::PITCH + slice * 16 + lane_of() / 16 * PACK);
}

/* Left operands in registers, or read from a tile at each use. */
template <int DIM> struct kept_rows {
    uint32_t a[sizes<DIM>::SLICES][4];
    __device__ __forceinline__ void get(int slice, uint32_t *out) const
    {
        MPP_UNROLL
        for (int k = 0; k < 4; k++)
            out[k] = a[slice][k];
    }
};

template <int DIM> struct shared_rows {
    const uint16_t *rows;
    __device__ __forceinline__ void get(int slice, uint32_t *out) const { load_left<DIM>(rows, slice, out); }
};

/* The block's ROWS of a tensor, brought through TILE, which has room for them and is free again after it. */
template <int DIM>
static __device__ __forceinline__ void keep_rows(const struct rows &r, int64_t p0, uint16_t *tile, struct kept_rows<DIM> *out)
{
    begin_tile<DIM, ROWS>(r, p0, tile);
    end_tiles<0>();
    MPP_UNROLL
    for (int slice = 0; slice < sizes<DIM>::SLICES; slice++)
        load_left<DIM>(tile + threadIdx.x / MPP_WARP * WARP_ROWS * sizes<DIM>::PITCH, slice, out->a[slice]);
    __syncthreads();
}

/* ---- products ----------------------------------------------------------------------------------------------- */

template <int N> static __device__ __forceinline__ void clear(float (*sum)[4])
{
    MPP_UNROLL
    for (int n = 0; n < N; n++)
        sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
}

/* S [16 x N] = the warp's rows times the transpose of a tile of N positions. */
template <int TYPE, int DIM, int N, class Left>
static __device__ __forceinline__ void scores(const Left &left, const uint16_t *tile, float (*s)[4])
{
    const uint16_t *row = tile + (lane_of() % 8 + lane_of() / 16 * 8) * sizes<DIM>::PITCH + lane_of() / 8 % 2 * PACK;
    clear<N / 8>(s);
    MPP_UNROLL
    for (int slice = 0; slice < sizes<DIM>::SLICES; slice++) {
        uint32_t a[4], b[4];
        left.get(slice, a);
        MPP_UNROLL
        for (int n = 0; n < N / 16; n++) {
            mpp_load_matrices(b, row + n * 16 * sizes<DIM>::PITCH + slice * 16);
            mpp_multiply<TYPE>(s[2 * n], a, b);
            mpp_multiply<TYPE>(s[2 * n + 1], a, b + 2);
        }
    }
}

/* SUM [16 x DIM] += P [16 x N], rounded, times a tile of N positions. */
template <int TYPE, int DIM, int N>
static __device__ __forceinline__ void add_weighted(const float (*p)[4], const uint16_t *tile, float (*sum)[4])
{
    const uint16_t *row = tile + lane_of() % 16 * sizes<DIM>::PITCH + lane_of() / 16 * PACK;
    MPP_UNROLL
    for (int slice = 0; slice < N / 16; slice++) {
        const float *left = p[2 * slice], *right = p[2 * slice + 1];
        const uint32_t a[4] = {mpp_two_halves<TYPE>(left[0], left[1]), mpp_two_halves<TYPE>(left[2], left[3]),
                               mpp_two_halves<TYPE>(right[0], right[1]), mpp_two_halves<TYPE>(right[2], right[3])};
        MPP_UNROLL
        for (int n = 0; n < DIM / 16; n++) {
            uint32_t b[4];
            mpp_load_matrices_turned(b, row + slice * 16 * sizes<DIM>::PITCH + n * 16);
            mpp_multiply<TYPE>(sum[2 * n], a, b);
            mpp_multiply<TYPE>(sum[2 * n + 1], a, b + 2);
        }
    }
}

/* ---- which scores count --------------------------------------------------------------------------------------- */

/* Columns of a tile that the lane's two rows see: from FIRST to before END, and of the lane's own ones those of BITS. */
struct window {
    int first[2], end[2];
    uint32_t bits;
};

static __device__ __forceinline__ int within(int64_t position, int64_t tile, int step)
{
    const int64_t at = position - tile;
    return at < 0 ? 0 : at > step ? step : (int)at;
}

/* Element E of four of piece N. */
static __device__ __forceinline__ bool counts(const struct window &w, int n, int e)
{
    const int column = n * 8 + own_column() + e % 2;
    return column >= w.first[e / 2] && column < w.end[e / 2] && (w.bits >> (2 * n + e % 2) & 1u) != 0;
}

/* Rows are queries, from Q0 on, columns are keys. */
template <int STEP>
static __device__ __forceinline__ struct window keys_seen(const struct mpp_attention &a, const struct mpp_head &h, const int32_t *mask,
                                                          int64_t q0, int64_t k0)
{
    struct window w;
    MPP_UNROLL
    for (int half = 0; half < 2; half++) {
        const int64_t i = q0 + own_row() + half * 8;
        w.first[half] = 0;
        w.end[half] = i < a.seq_q.valid ? within(mpp_visible_end(a, i), k0, STEP) : 0;
    }
    w.bits = 0xffffffffu;
    for (int c = 0; c < STEP / 4 && mask != NULL; c++) {
        const int64_t j = k0 + c / 2 * 8 + own_column() + c % 2;
        if (j >= a.seq_k.valid || mpp_read(mask, h.batch * a.seq_k.padded + j) == 0)
            w.bits &= ~(1u << c);
    }
    return w;
}

/* Of a query of the block that begins with Q0, and has any that counts: keys before it are seen by one. */
static __device__ __forceinline__ int64_t last_seen(const struct mpp_attention &a, const struct mpp_head &h, int64_t q0)
{
    const int64_t last = q0 + ROWS < a.seq_q.valid ? q0 + ROWS : a.seq_q.valid;
    return h.valid && q0 < a.seq_q.valid ? mpp_visible_end(a, last - 1) : 0;
}

/* ---- results --------------------------------------------------------------------------------------------------- */

/* The warp's rows of a block's from P0 on, times FACTOR of the lane's two; those from VALID on to before PADDED become 0. */
template <int TYPE, int DIM>
static __device__ __forceinline__ void store_rows(uint16_t *x, const struct rows &like, int64_t p0, int64_t valid, int64_t padded,
                                                  const float (*sum)[4], const float *factor)
{
    MPP_UNROLL
    for (int half = 0; half < 2; half++) {
        const int64_t p = p0 + own_row() + half * 8;
        MPP_UNROLL
        for (int n = 0; n < DIM / 8; n++) {
            const int d = n * 8 + own_column();
            const float low = p < valid ? sum[n][2 * half] * factor[half] : 0.0f;
            const float high = p < valid ? sum[n][2 * half + 1] * factor[half] : 0.0f;
            const uint32_t both = mpp_two_halves<TYPE>(low, high);
            mpp_pack<uint16_t, 2> pair;
            pair.at[0] = (uint16_t)both;
            pair.at[1] = (uint16_t)(both >> 16);
            if (p >= padded)
                continue;
            if (like.packs && d < like.head_dim)
                mpp_write_pack<2>(x, p * like.stride + d, pair);
            else if (!like.packs && d < like.head_dim) {
                mpp_write(x, p * like.stride + d, pair.at[0]);
                if (d + 1 < like.head_dim)
                    mpp_write(x, p * like.stride + d + 1, pair.at[1]);
            }
        }
    }
}

/* ---- forward ---------------------------------------------------------------------------------------------------- */

/* What the four lanes of a row have. */
template <class Op> static __device__ __forceinline__ float over_row(float x, Op op)
{
    x = op(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return op(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* Running maxima (of scores times log2 e) and sums of the lane's two rows; a lane sums its own columns. */
struct softmax {
    float max[2], total[2];
};

/* Scores to e^(score - maximum), 0 where they do not count. RESCALE: what earlier sums are to be multiplied by. */
template <int N>
static __device__ __forceinline__ void add_scores(struct softmax *state, const struct window &w, float scale, float (*s)[4], float *rescale)
{
    float shift[2];
    MPP_UNROLL
    for (int n = 0; n < N / 8; n++)
        MPP_UNROLL
        for (int e = 0; e < 4; e++)
            s[n][e] = counts(w, n, e) ? s[n][e] * (scale * LOG2_E) : -INFINITY;
    MPP_UNROLL
    for (int half = 0; half < 2; half++) {
        const float before = state->max[half];
        float m = before;
        MPP_UNROLL
        for (int n = 0; n < N / 8; n++)
            m = mpp_larger()(mpp_larger()(m, s[n][2 * half]), s[n][2 * half + 1]);
        m = over_row(m, mpp_larger());
        shift[half] = m == -INFINITY ? 0.0f : m; /* nothing is seen yet */
        rescale[half] = exp2f(before - shift[half]);
        state->max[half] = m;
        state->total[half] *= rescale[half];
    }
    MPP_UNROLL
    for (int n = 0; n < N / 8; n++)
        MPP_UNROLL
        for (int e = 0; e < 4; e++) {
            s[n][e] = exp2f(s[n][e] - shift[e / 2]);
            state->total[e / 2] += s[n][e];
        }
}

template <int TYPE, int DIM>
__global__ void __launch_bounds__(THREADS)
    mma_attention_kernel(struct mpp_attention_task t, bool packs, const uint16_t *q, const uint16_t *k, const uint16_t *v,
                         const int32_t *mask, uint16_t *y, float *lse)
{
    enum { STEP = sizes<DIM>::FORWARD_STEP, COLUMNS = sizes<DIM>::COLUMNS };
    MPP_SHARED(uint16_t, k_tile);
    uint16_t *v_tile = k_tile + STEP * sizes<DIM>::PITCH;
    const struct mpp_attention &a = t.a;
    const struct mpp_head h = mpp_head_of(a);
    const int64_t q0 = (int64_t)blockIdx.x * ROWS, end = last_seen(a, h, q0);
    const struct rows q_rows = {q + h.first_q, h.stride, a.head_dim, h.valid ? a.seq_q.valid : 0, packs};
    const struct rows k_rows = {k + h.first_k, h.stride, a.head_dim, end, packs};
    const struct rows v_rows = {v + h.first_k, h.stride, a.head_dim, end, packs};
    struct kept_rows<DIM> queries;
    struct softmax state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    float sum[COLUMNS][4], s[STEP / 8][4], factor[2];
    clear<COLUMNS>(sum);
    keep_rows<DIM>(q_rows, q0, k_tile, &queries);
    begin_tile<DIM, STEP>(k_rows, 0, k_tile);
    for (int64_t k0 = 0; k0 < end; k0 += STEP) {
        float rescale[2];
        begin_tile<DIM, STEP>(v_rows, k0, v_tile); /* comes while scores are computed, the next keys while they are used */
        end_tiles<1>();
        scores<TYPE, DIM, STEP>(queries, k_tile, s);
        __syncthreads();
        begin_tile<DIM, STEP>(k_rows, k0 + STEP, k_tile);
        add_scores<STEP>(&state, keys_seen<STEP>(a, h, mask, q0, k0), a.scale, s, rescale);
        MPP_UNROLL
        for (int n = 0; n < STEP / 8; n++)
            MPP_UNROLL
            for (int e = 0; e < 4 && t.drops; e++)
                s[n][e] *= mpp_attention_factor(t, h, q0 + own_row() + e / 2 * 8, k0 + n * 8 + own_column() + e % 2);
        MPP_UNROLL
        for (int n = 0; n < COLUMNS; n++)
            MPP_UNROLL
            for (int e = 0; e < 4; e++)
                sum[n][e] *= rescale[e / 2];
        end_tiles<1>();
        add_weighted<TYPE, DIM, STEP>(s, v_tile, sum);
        __syncthreads();
    }
    mpp_copies_wait<0>();
    MPP_UNROLL
    for (int half = 0; half < 2; half++) {
        const float total = over_row(state.total[half], mpp_plus());
        const int64_t i = q0 + own_row() + half * 8;
        factor[half] = total == 0.0f ? 0.0f : 1.0f / total;
        if (own_column() == 0 && i < a.seq_q.padded)
            mpp_write(lse, h.first_lse + i, total == 0.0f ? 0.0f : (state.max[half] + log2f(total)) * LN_2);
    }
    store_rows<TYPE, DIM>(y + h.first_q, q_rows, q0, a.seq_q.valid, a.seq_q.padded, sum, factor);
}

/* ---- backward --------------------------------------------------------------------------------------------------- */

struct mma_gradients {
    const uint16_t *q, *k, *v, *dy;
    const int32_t *mask;
    const float *lse, *dot;
    uint16_t *dq, *dk, *dv;
    bool packs;
};

/* Of a score S and dp of a pair with dropout's factor F, which counts: p f to *S, ds without scale to *DP. */
static __device__ __forceinline__ void pair_gradients(float scale, float shift, float less, float f, float *s, float *dp)
{
    const float p = exp2f(*s * (scale * LOG2_E) - shift);
    *dp = p * (f * *dp - less);
    *s = p * f;
}

template <int TYPE, int DIM>
__global__ void __launch_bounds__(THREADS) mma_query_gradient_kernel(struct mpp_attention_task t, struct mma_gradients g)
{
    enum { STEP = sizes<DIM>::BACKWARD_STEP, COLUMNS = sizes<DIM>::COLUMNS };
    MPP_SHARED(uint16_t, k_tile);
    uint16_t *v_tile = k_tile + STEP * sizes<DIM>::PITCH;
    const struct mpp_attention &a = t.a;
    const struct mpp_head h = mpp_head_of(a);
    const int64_t q0 = (int64_t)blockIdx.x * ROWS, end = last_seen(a, h, q0), q_end = h.valid ? a.seq_q.valid : 0;
    const struct rows q_rows = {g.q + h.first_q, h.stride, a.head_dim, q_end, g.packs};
    const struct rows dy_rows = {g.dy + h.first_q, h.stride, a.head_dim, q_end, g.packs};
    const struct rows k_rows = {g.k + h.first_k, h.stride, a.head_dim, end, g.packs};
    const struct rows v_rows = {g.v + h.first_k, h.stride, a.head_dim, end, g.packs};
    const float factor[2] = {a.scale, a.scale};
    struct kept_rows<DIM> queries, gradients;
    float sum[COLUMNS][4], s[STEP / 8][4], dp[STEP / 8][4], shift[2], less[2];
    clear<COLUMNS>(sum);
    keep_rows<DIM>(q_rows, q0, k_tile, &queries);
    keep_rows<DIM>(dy_rows, q0, k_tile, &gradients);
    MPP_UNROLL
    for (int half = 0; half < 2; half++) {
        const int64_t i = q0 + own_row() + half * 8;
        shift[half] = i < q_end ? mpp_read(g.lse, h.first_lse + i) * LOG2_E : 0.0f;
        less[half] = i < q_end ? mpp_read(g.dot, h.first_lse + i) : 0.0f;
    }
    for (int64_t k0 = 0; k0 < end; k0 += STEP) {
        begin_tile<DIM, STEP>(k_rows, k0, k_tile);
        begin_tile<DIM, STEP>(v_rows, k0, v_tile);
        end_tiles<1>();
        scores<TYPE, DIM, STEP>(queries, k_tile, s);
        end_tiles<0>();
        scores<TYPE, DIM, STEP>(gradients, v_tile, dp);
        const struct window w = keys_seen<STEP>(a, h, g.mask, q0, k0);
        MPP_UNROLL
        for (int n = 0; n < STEP / 8; n++)
            MPP_UNROLL
            for (int e = 0; e < 4; e++) {
                const bool seen = counts(w, n, e);
                const float f = seen ? mpp_attention_factor(t, h, q0 + own_row() + e / 2 * 8, k0 + n * 8 + own_column() + e % 2) : 0.0f;
                pair_gradients(a.scale, shift[e / 2], less[e / 2], f, &s[n][e], &dp[n][e]);
                dp[n][e] = seen ? dp[n][e] : 0.0f;
            }
        add_weighted<TYPE, DIM, STEP>(dp, k_tile, sum);
        __syncthreads();
    }
    store_rows<TYPE, DIM>(g.dq + h.first_q, q_rows, q0, q_end, a.seq_q.padded, sum, factor);
}

/* Columns are queries, from Q0 on, of which STEP have numbers in SHIFT and LESS; rows are keys, from K0 on: scores to
 * probabilities times dropout's factors, and dp to ds without scale, where they count; else 0. */
template <int STEP>
static __device__ __forceinline__ void key_pairs(const struct mpp_attention_task &t, const struct mpp_head &h, const int32_t *mask,
                                                 int64_t k0, int64_t q0, const float *shift, const float *less, float (*s)[4],
                                                 float (*dp)[4])
{
    const struct mpp_attention &a = t.a;
    struct window w;
    MPP_UNROLL
    for (int half = 0; half < 2; half++) {
        const int64_t j = k0 + own_row() + half * 8;
        const bool key = j < a.seq_k.valid && (mask == NULL || mpp_read(mask, h.batch * a.seq_k.padded + j) != 0);
        w.first[half] = within(mpp_first_query(a, j), q0, STEP);
        w.end[half] = key ? within(a.seq_q.valid, q0, STEP) : 0;
    }
    w.bits = 0xffffffffu;
    MPP_UNROLL
    for (int n = 0; n < STEP / 8; n++)
        MPP_UNROLL
        for (int e = 0; e < 4; e++) {
            const int column = n * 8 + own_column() + e % 2;
            const bool seen = counts(w, n, e);
            const float f = seen ? mpp_attention_factor(t, h, q0 + column, k0 + own_row() + e / 2 * 8) : 0.0f;
            pair_gradients(a.scale, shift[column], less[column], f, &s[n][e], &dp[n][e]);
            s[n][e] = seen ? s[n][e] : 0.0f;
            dp[n][e] = seen ? dp[n][e] : 0.0f;
        }
}

template <int TYPE, int DIM>
__global__ void __launch_bounds__(THREADS) mma_key_gradient_kernel(struct mpp_attention_task t, struct mma_gradients g)
{
    enum { STEP = sizes<DIM>::BACKWARD_STEP, COLUMNS = sizes<DIM>::COLUMNS, PITCH = sizes<DIM>::PITCH };
    MPP_SHARED(uint16_t, k_tile);
    uint16_t *q_tile = k_tile + ROWS * PITCH, *dy_tile = q_tile + STEP * PITCH;
    float *shift = reinterpret_cast<float *>(dy_tile + STEP * PITCH), *less = shift + STEP;
    const struct mpp_attention &a = t.a;
    const struct mpp_head h = mpp_head_of(a);
    const int64_t k0 = (int64_t)blockIdx.x * ROWS, k_end = h.valid ? a.seq_k.valid : 0, end = k0 < k_end ? a.seq_q.valid : 0;
    const struct rows q_rows = {g.q + h.first_q, h.stride, a.head_dim, a.seq_q.valid, g.packs};
    const struct rows dy_rows = {g.dy + h.first_q, h.stride, a.head_dim, a.seq_q.valid, g.packs};
    const struct rows k_rows = {g.k + h.first_k, h.stride, a.head_dim, k_end, g.packs};
    const struct rows v_rows = {g.v + h.first_k, h.stride, a.head_dim, k_end, g.packs};
    const struct shared_rows<DIM> keys = {k_tile + threadIdx.x / MPP_WARP * WARP_ROWS * PITCH};
    const float k_factor[2] = {a.scale, a.scale}, v_factor[2] = {1.0f, 1.0f};
    struct kept_rows<DIM> values;
    float k_sum[COLUMNS][4], v_sum[COLUMNS][4], s[STEP / 8][4], dp[STEP / 8][4];
    clear<COLUMNS>(k_sum);
    clear<COLUMNS>(v_sum);
    keep_rows<DIM>(v_rows, k0, q_tile, &values);
    begin_tile<DIM, ROWS>(k_rows, k0, k_tile);
    for (int64_t q0 = mpp_first_query(a, k0) / STEP * STEP; q0 < end; q0 += STEP) {
        begin_tile<DIM, STEP>(q_rows, q0, q_tile);
        begin_tile<DIM, STEP>(dy_rows, q0, dy_tile);
        if (threadIdx.x < STEP) {
            const bool valid = q0 + threadIdx.x < a.seq_q.valid;
            shift[threadIdx.x] = valid ? mpp_read(g.lse, h.first_lse + q0 + threadIdx.x) * LOG2_E : 0.0f;
            less[threadIdx.x] = valid ? mpp_read(g.dot, h.first_lse + q0 + threadIdx.x) : 0.0f;
        }
        end_tiles<1>();
        scores<TYPE, DIM, STEP>(keys, q_tile, s);
        end_tiles<0>();
        scores<TYPE, DIM, STEP>(values, dy_tile, dp);
        key_pairs<STEP>(t, h, g.mask, k0, q0, shift, less, s, dp);
        add_weighted<TYPE, DIM, STEP>(s, dy_tile, v_sum);
        add_weighted<TYPE, DIM, STEP>(dp, q_tile, k_sum);
        __syncthreads();
    }
    mpp_copies_wait<0>();
    store_rows<TYPE, DIM>(g.dk + h.first_k, k_rows, k0, k_end, a.seq_k.padded, k_sum, k_factor);
    store_rows<TYPE, DIM>(g.dv + h.first_k, v_rows, k0, k_end, a.seq_k.padded, v_sum, v_factor);
}

/* ---- launches ------------------------------------------------------------------------------------------------------ */

static dim3 grid_of(const struct mpp_attention *a, int64_t positions)
{
    return dim3((unsigned)((positions + ROWS - 1) / ROWS), (unsigned)(a->batch.padded * a->heads.padded), 1);
}

static bool in_packs(const struct mpp_attention *a, const void *const *tensors, int n)
{
    bool ok = a->head_dim % PACK == 0;
    for (int i = 0; i < n; i++)
        ok = ok && (uintptr_t)tensors[i] % 16 == 0;
    return ok;
}

template <int TYPE, int DIM>
static void launch_forward(struct mpp_rank *r, const struct mpp_attention *a, bool packs, const uint16_t *q, const uint16_t *k,
                           const uint16_t *v, const int32_t *mask, uint16_t *y, float *lse)
{
    const size_t bytes = 2 * sizes<DIM>::FORWARD_STEP * sizes<DIM>::PITCH * sizeof *q;
    MPP_LAUNCH(r, (mma_attention_kernel<TYPE, DIM>), grid_of(a, a->seq_q.padded), THREADS, bytes, mpp_attention_task_of(r, a), packs, q, k,
               v, mask, y, lse);
}

template <int TYPE, int DIM> static void launch_backward(struct mpp_rank *r, const struct mpp_attention *a, struct mma_gradients g)
{
    const size_t step = sizes<DIM>::BACKWARD_STEP, row = sizes<DIM>::PITCH * sizeof *g.q;
    const struct mpp_attention_task t = mpp_attention_task_of(r, a);
    MPP_LAUNCH(r, (mma_query_gradient_kernel<TYPE, DIM>), grid_of(a, a->seq_q.padded), THREADS, 2 * step * row, t, g);
    MPP_LAUNCH(r, (mma_key_gradient_kernel<TYPE, DIM>), grid_of(a, a->seq_k.padded), THREADS,
               (ROWS + 2 * step) * row + 2 * step * sizeof(float), t, g);
}

template <int TYPE>
static void forward(struct mpp_rank *r, const struct mpp_attention *a, bool packs, const uint16_t *q, const uint16_t *k,
                    const uint16_t *v, const int32_t *mask, uint16_t *y, float *lse)
{
    if (a->head_dim <= 32)
        launch_forward<TYPE, 32>(r, a, packs, q, k, v, mask, y, lse);
    else if (a->head_dim <= 64)
        launch_forward<TYPE, 64>(r, a, packs, q, k, v, mask, y, lse);
    else
        launch_forward<TYPE, MOST_DIM>(r, a, packs, q, k, v, mask, y, lse);
}

template <int TYPE> static void backward(struct mpp_rank *r, const struct mpp_attention *a, const struct mma_gradients &g)
{
    if (a->head_dim <= 32)
        launch_backward<TYPE, 32>(r, a, g);
    else if (a->head_dim <= 64)
        launch_backward<TYPE, 64>(r, a, g);
    else
        launch_backward<TYPE, MOST_DIM>(r, a, g);
}

void mpp_attention_mma_forward(struct mpp_rank *r, enum mpp_type type, const struct mpp_attention *a, const void *q, const void *k,
                               const void *v, const int32_t *mask, void *y, float *lse)
{
    const void *const tensors[] = {q, k, v, y};
    MPP_BY_HALF(type, forward, r, a, in_packs(a, tensors, 4), (const uint16_t *)q, (const uint16_t *)k, (const uint16_t *)v, mask,
                (uint16_t *)y, lse);
}

void mpp_attention_mma_backward(struct mpp_rank *r, enum mpp_type type, const struct mpp_attention *a, const void *q, const void *k,
                                const void *v, const int32_t *mask, const float *lse, const float *dot, const void *dy, void *dq,
                                void *dk, void *dv)
{
    const void *const tensors[] = {q, k, v, dy, dq, dk, dv};
    const struct mma_gradients g = {(const uint16_t *)q, (const uint16_t *)k, (const uint16_t *)v, (const uint16_t *)dy, mask, lse, dot,
                                    (uint16_t *)dq, (uint16_t *)dk, (uint16_t *)dv, in_packs(a, tensors, 7)};
    MPP_BY_HALF(type, backward, r, a, g);
}

/* ---- is it used? ------------------------------------------------------------------------------------------------------ */

bool mpp_attention_mma_takes(const struct mpp_rank *r, const struct mpp_attention *a)
{
    return r->device != NULL && r->device->attention == MPP_ATTENTION_MMA && a->head_dim <= MOST_DIM;
}

enum mpp_attention_path mpp_attention_path_here(void)
{
    const char *asked = getenv("MPP_ATTENTION");
    struct cudaFuncAttributes about;
    if (asked == NULL || strcmp(asked, "mma") != 0)
        return MPP_ATTENTION_SIMT;
    /* What the kernel was compiled from: an older GPU cannot load sm_80's, and a newer one may have been given an older one's. */
    if (cudaFuncGetAttributes(&about, mma_attention_kernel<MPP_TYPE_BF16, MOST_DIM>) != cudaSuccess || about.ptxVersion < 80) {
        (void)cudaGetLastError();
        return MPP_ATTENTION_NO_MMA;
    }
    return MPP_ATTENTION_MMA;
}
