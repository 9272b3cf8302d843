/* Scaled dot-product attention by tiles of TILE queries x TILE keys in shared memory, after FlashAttention (Dao et al. 2022; the
 * backward of Dao 2023): the forward keeps a running maximum and sum per query, the backward recomputes the probabilities of a
 * tile from lse. No score leaves the chip, and no sum needs an atomic: one kernel forms dq, a block of queries each, another dk
 * and dv, a block of keys each.
 *
 *     s = scale q k'     p = e^(s - lse)     y = (p o f) v          f: dropout's factors
 *     dp = dy v'         ds = p o (f o dp - dy.y)
 *     dv = (p o f)' dy   dq = scale ds k     dk = scale ds' q
 *
 * A query that sees no key gets y = 0 and lse = 0. What lies in padding becomes 0. Everything is computed in f32. Of 16-bit tensors
 * kernels_attention_mma.cu computes the same on tensor cores, where that is asked for; either backward takes either forward's lse. */
#include "cuda/attention.cuh"

enum {
    TILE = 32,              /* queries or keys of a tile */
    THREADS = 128,
    ROW_THREADS = THREADS / TILE, /* that share a row of a tile */
    COLUMNS = TILE / ROW_THREADS, /* of a row that each of them has */
    LANES = 64,             /* most head dimensions held at a time: longer heads go in pieces */
};

/* ---- tiles ------------------------------------------------------------------------------------------------- */

/* Rows of LANES floats, one more than a power of two apart, so that a column lies in different banks. */
enum { ROW = LANES + 1, SCORE_ROW = TILE + 1 };

/* N dimensions, from D0 on, of up to TILE positions from P0 on, the rest zeros. X: the head's first element. All threads call. */
template <int TYPE>
static __device__ void load_tile(const typename mpp_element<TYPE>::stored *x, int64_t stride, int64_t p0, int64_t end, int64_t d0,
                                 int n, float *tile)
{
    for (int e = threadIdx.x; e < TILE * n; e += THREADS) {
        int64_t p = p0 + e / n;
        tile[e / n * ROW + e % n] = p < end ? mpp_element<TYPE>::load(x, p * stride + d0 + e % n) : 0.0f;
    }
}

/* Adds what N dimensions give to the products of the rows of U with those of V: this thread's part of a row of scores. */
static __device__ void add_products(const float *u, const float *v, int n, float *sum)
{
    const float *row = u + threadIdx.x / ROW_THREADS * ROW;
    for (int d = 0; d < n; d++)
        for (int c = 0; c < COLUMNS; c++)
            sum[c] += row[d] * v[(threadIdx.x % ROW_THREADS + c * ROW_THREADS) * ROW + d];
}

/* This thread's row of a tile, and its column number C. */
static __device__ __forceinline__ int own_row(void)
{
    return threadIdx.x / ROW_THREADS;
}

static __device__ __forceinline__ int own_column(int c)
{
    return threadIdx.x % ROW_THREADS + c * ROW_THREADS;
}

/* The sums over all head dimensions of u v' for the rows of a tile: U_TILE and V_TILE are rooms for pieces. */
template <int TYPE>
static __device__ void scores(const struct mpp_attention &a, const struct mpp_head &h, const typename mpp_element<TYPE>::stored *u,
                              int64_t u0, int64_t u_end, const typename mpp_element<TYPE>::stored *v, int64_t v0, int64_t v_end,
                              float *u_tile, float *v_tile, float *sum)
{
    for (int c = 0; c < COLUMNS; c++)
        sum[c] = 0.0f;
    for (int64_t d0 = 0; d0 < a.head_dim; d0 += LANES) {
        int n = (int)(a.head_dim - d0 < (int64_t)LANES ? a.head_dim - d0 : (int64_t)LANES);
        load_tile<TYPE>(u, h.stride, u0, u_end, d0, n, u_tile);
        load_tile<TYPE>(v, h.stride, v0, v_end, d0, n, v_tile);
        __syncthreads();
        add_products(u_tile, v_tile, n, sum);
        __syncthreads();
    }
}

/* Is key J, of those before END, seen by query I? */
static __device__ bool sees(const struct mpp_attention &a, const struct mpp_head &h, const int32_t *mask, int64_t i, int64_t j)
{
    return i < a.seq_q.valid && j < mpp_visible_end(a, i) && (mask == NULL || mpp_read(mask, h.batch * a.seq_k.padded + j) != 0);
}

/* ---- forward ------------------------------------------------------------------------------------------------ */

/* Shared: two tiles of positions, one of probabilities, and of each row the running maximum, sum and rescaling. y's dimensions
 * from PIECE * LANES on: a block for each piece of a long head recomputes the scores. */
enum { FORWARD_FLOATS = 2 * TILE * ROW + TILE * SCORE_ROW + 3 * TILE };

template <int TYPE>
__global__ void attention_kernel(struct mpp_attention_task t, const typename mpp_element<TYPE>::stored *q,
                                 const typename mpp_element<TYPE>::stored *k, const typename mpp_element<TYPE>::stored *v,
                                 const int32_t *mask, typename mpp_element<TYPE>::stored *y, float *lse)
{
    typedef mpp_element<TYPE> element;
    MPP_SHARED(float, shared);
    float *u_tile = shared, *v_tile = u_tile + TILE * ROW, *p = v_tile + TILE * ROW, *max = p + TILE * SCORE_ROW, *total = max + TILE,
          *rescale = total + TILE;
    const struct mpp_attention &a = t.a;
    const struct mpp_head h = mpp_head_of(a);
    const int64_t q0 = (int64_t)blockIdx.x * TILE, d0 = (int64_t)blockIdx.z * LANES;
    const int64_t n_dims = a.head_dim - d0 < (int64_t)LANES ? a.head_dim - d0 : (int64_t)LANES, last = q0 + TILE < a.seq_q.valid ? q0 + TILE : a.seq_q.valid;
    const int64_t end = h.valid && q0 < a.seq_q.valid ? mpp_visible_end(a, last - 1) : 0;
    const int row = own_row();
    float sum[LANES / ROW_THREADS];
    for (int c = 0; c < LANES / ROW_THREADS; c++)
        sum[c] = 0.0f;
    if (threadIdx.x < TILE) {
        max[threadIdx.x] = -INFINITY;
        total[threadIdx.x] = 0.0f;
    }
    for (int64_t k0 = 0; k0 < end; k0 += TILE) {
        float s[COLUMNS];
        scores<TYPE>(a, h, q + h.first_q, q0, a.seq_q.valid, k + h.first_k, k0, a.seq_k.valid, u_tile, v_tile, s);
        for (int c = 0; c < COLUMNS; c++)
            p[row * SCORE_ROW + own_column(c)] = sees(a, h, mask, q0 + row, k0 + own_column(c)) ? s[c] * a.scale : -INFINITY;
        __syncthreads();
        if (threadIdx.x < TILE) { /* the running maximum of a row */
            float before = max[threadIdx.x], m = before;
            for (int j = 0; j < TILE; j++)
                m = mpp_larger()(m, p[threadIdx.x * SCORE_ROW + j]);
            max[threadIdx.x] = m;
            rescale[threadIdx.x] = m > before ? mpp_expf(before - m) : 1.0f;
        }
        load_tile<TYPE>(v + h.first_k, h.stride, k0, a.seq_k.valid, d0, (int)n_dims, v_tile);
        __syncthreads();
        for (int c = 0; c < COLUMNS; c++) {
            float *at = &p[row * SCORE_ROW + own_column(c)];
            *at = *at == -INFINITY ? 0.0f : mpp_expf(*at - max[row]);
        }
        __syncthreads();
        if (threadIdx.x < TILE) {
            float e = 0.0f;
            for (int j = 0; j < TILE; j++)
                e += p[threadIdx.x * SCORE_ROW + j];
            total[threadIdx.x] = total[threadIdx.x] * rescale[threadIdx.x] + e;
        }
        if (t.drops) {
            __syncthreads();
            for (int c = 0; c < COLUMNS; c++)
                p[row * SCORE_ROW + own_column(c)] *= mpp_attention_factor(t, h, q0 + row, k0 + own_column(c));
            __syncthreads();
        }
        for (int c = 0; c < LANES / ROW_THREADS; c++) {
            int d = own_column(c);
            float part = 0.0f;
            for (int j = 0; j < TILE && d < n_dims; j++)
                part += p[row * SCORE_ROW + j] * v_tile[j * ROW + d];
            sum[c] = sum[c] * rescale[row] + part;
        }
        __syncthreads();
    }
    __syncthreads();
    const int64_t i = q0 + row;
    if (i >= a.seq_q.padded)
        return;
    const bool empty = total[row] == 0.0f;
    const float inverse = empty ? 0.0f : 1.0f / total[row];
    for (int c = 0; c < LANES / ROW_THREADS; c++)
        if (own_column(c) < n_dims)
            element::store(y + h.first_q, i * h.stride + d0 + own_column(c), sum[c] * inverse);
    if (own_column(0) == 0 && blockIdx.z == 0)
        mpp_write(lse, h.first_lse + i, empty ? 0.0f : max[row] + logf(total[row]));
}

static dim3 grid_of(const struct mpp_attention *a, int64_t positions)
{
    return dim3((unsigned)((positions + TILE - 1) / TILE), (unsigned)(a->batch.padded * a->heads.padded),
                (unsigned)((a->head_dim + LANES - 1) / LANES));
}

template <int TYPE>
static void attention_forward(struct mpp_rank *r, const struct mpp_attention *a, const void *q, const void *k, const void *v,
                              const int32_t *mask, void *y, float *lse)
{
    typedef typename mpp_element<TYPE>::stored stored;
    mpp_cuda_moves(r);
    if (TYPE != MPP_TYPE_F32 && mpp_attention_mma_takes(r, a)) {
        mpp_attention_mma_forward(r, (enum mpp_type)TYPE, a, q, k, v, mask, y, lse);
        return;
    }
    MPP_LAUNCH(r, attention_kernel<TYPE>, grid_of(a, a->seq_q.padded), THREADS, FORWARD_FLOATS * sizeof(float), mpp_attention_task_of(r, a),
               (const stored *)q, (const stored *)k, (const stored *)v, mask, (stored *)y, lse);
}

/* ---- backward ------------------------------------------------------------------------------------------------ */

/* dot [batch, heads, seq_q] = the sums of dy y of each query. A thread a query. */
template <int TYPE>
__global__ void attention_dot_kernel(struct mpp_attention a, const typename mpp_element<TYPE>::stored *y,
                                     const typename mpp_element<TYPE>::stored *dy, float *dot)
{
    const int64_t n = a.batch.padded * a.heads.padded * a.seq_q.padded;
    MPP_EACH(e, n) {
        int64_t i = e % a.seq_q.padded, head = e / a.seq_q.padded % a.heads.padded, batch = e / a.seq_q.padded / a.heads.padded;
        int64_t at = ((batch * a.seq_q.padded + i) * a.heads.padded + head) * a.head_dim;
        double sum = 0;
        bool valid = i < a.seq_q.valid && head < a.heads.valid && batch < a.batch.valid;
        for (int64_t d = 0; d < a.head_dim && valid; d++)
            sum += (double)mpp_element<TYPE>::load(y, at + d) * (double)mpp_element<TYPE>::load(dy, at + d);
        mpp_write(dot, e, (float)sum);
    }
}

/* Tensors of the backward. */
template <int TYPE> struct gradients {
    const typename mpp_element<TYPE>::stored *q, *k, *v, *dy;
    const int32_t *mask;
    const float *lse, *dot;
    typename mpp_element<TYPE>::stored *dq, *dk, *dv;
};

/* Of this thread's row of queries and its columns of keys: dropped-out probabilities to P, scale ds to DS, as [query][key]. */
template <int TYPE>
static __device__ void tile_gradients(const struct mpp_attention_task &t, const struct mpp_head &h, const struct gradients<TYPE> &g,
                                      int64_t q0, int64_t k0, float *u_tile, float *v_tile, float *p, float *ds)
{
    const struct mpp_attention &a = t.a;
    float s[COLUMNS], dp[COLUMNS];
    const int64_t i = q0 + own_row();
    scores<TYPE>(a, h, g.q + h.first_q, q0, a.seq_q.valid, g.k + h.first_k, k0, a.seq_k.valid, u_tile, v_tile, s);
    scores<TYPE>(a, h, g.dy + h.first_q, q0, a.seq_q.valid, g.v + h.first_k, k0, a.seq_k.valid, u_tile, v_tile, dp);
    const float shift = i < a.seq_q.valid ? mpp_read(g.lse, h.first_lse + i) : 0.0f;
    const float less = i < a.seq_q.valid ? mpp_read(g.dot, h.first_lse + i) : 0.0f;
    for (int c = 0; c < COLUMNS; c++) {
        int64_t j = k0 + own_column(c);
        int at = own_row() * SCORE_ROW + own_column(c);
        bool counts = sees(a, h, g.mask, i, j);
        float e = counts ? mpp_expf(s[c] * a.scale - shift) : 0.0f, f = counts ? mpp_attention_factor(t, h, i, j) : 0.0f;
        p[at] = e * f;
        ds[at] = a.scale * e * (f * dp[c] - less);
    }
    __syncthreads();
}

enum { BACKWARD_FLOATS = 2 * TILE * ROW + 2 * TILE * SCORE_ROW };

/* dq of TILE queries, dimensions from blockIdx.z * LANES on. */
template <int TYPE> __global__ void query_gradient_kernel(struct mpp_attention_task t, struct gradients<TYPE> g)
{
    MPP_SHARED(float, shared);
    float *u_tile = shared, *v_tile = u_tile + TILE * ROW, *p = v_tile + TILE * ROW, *ds = p + TILE * SCORE_ROW;
    const struct mpp_attention &a = t.a;
    const struct mpp_head h = mpp_head_of(a);
    const int64_t q0 = (int64_t)blockIdx.x * TILE, d0 = (int64_t)blockIdx.z * LANES;
    const int n_dims = (int)(a.head_dim - d0 < (int64_t)LANES ? a.head_dim - d0 : (int64_t)LANES);
    const int64_t last = q0 + TILE < a.seq_q.valid ? q0 + TILE : a.seq_q.valid;
    const int64_t end = h.valid && q0 < a.seq_q.valid ? mpp_visible_end(a, last - 1) : 0;
    float sum[LANES / ROW_THREADS];
    for (int c = 0; c < LANES / ROW_THREADS; c++)
        sum[c] = 0.0f;
    for (int64_t k0 = 0; k0 < end; k0 += TILE) {
        tile_gradients<TYPE>(t, h, g, q0, k0, u_tile, v_tile, p, ds);
        load_tile<TYPE>(g.k + h.first_k, h.stride, k0, a.seq_k.valid, d0, n_dims, v_tile);
        __syncthreads();
        for (int c = 0; c < LANES / ROW_THREADS; c++)
            for (int j = 0; j < TILE && own_column(c) < n_dims; j++)
                sum[c] += ds[own_row() * SCORE_ROW + j] * v_tile[j * ROW + own_column(c)];
        __syncthreads();
    }
    const int64_t i = q0 + own_row();
    for (int c = 0; c < LANES / ROW_THREADS && i < a.seq_q.padded; c++)
        if (own_column(c) < n_dims)
            mpp_element<TYPE>::store(g.dq + h.first_q, i * h.stride + d0 + own_column(c), sum[c]);
}

/* dk and dv of TILE keys, dimensions from blockIdx.z * LANES on. */
template <int TYPE> __global__ void key_gradient_kernel(struct mpp_attention_task t, struct gradients<TYPE> g)
{
    MPP_SHARED(float, shared);
    float *u_tile = shared, *v_tile = u_tile + TILE * ROW, *p = v_tile + TILE * ROW, *ds = p + TILE * SCORE_ROW;
    const struct mpp_attention &a = t.a;
    const struct mpp_head h = mpp_head_of(a);
    const int64_t k0 = (int64_t)blockIdx.x * TILE, d0 = (int64_t)blockIdx.z * LANES;
    const int n_dims = (int)(a.head_dim - d0 < (int64_t)LANES ? a.head_dim - d0 : (int64_t)LANES);
    const int64_t begin = mpp_first_query(a, k0) / TILE * TILE, end = h.valid && k0 < a.seq_k.valid ? a.seq_q.valid : 0;
    float k_sum[LANES / ROW_THREADS], v_sum[LANES / ROW_THREADS];
    for (int c = 0; c < LANES / ROW_THREADS; c++)
        k_sum[c] = v_sum[c] = 0.0f;
    for (int64_t q0 = begin; q0 < end; q0 += TILE) {
        tile_gradients<TYPE>(t, h, g, q0, k0, u_tile, v_tile, p, ds);
        load_tile<TYPE>(g.q + h.first_q, h.stride, q0, a.seq_q.valid, d0, n_dims, u_tile);
        load_tile<TYPE>(g.dy + h.first_q, h.stride, q0, a.seq_q.valid, d0, n_dims, v_tile);
        __syncthreads();
        for (int c = 0; c < LANES / ROW_THREADS; c++)
            for (int i = 0; i < TILE && own_column(c) < n_dims; i++) {
                k_sum[c] += ds[i * SCORE_ROW + own_row()] * u_tile[i * ROW + own_column(c)];
                v_sum[c] += p[i * SCORE_ROW + own_row()] * v_tile[i * ROW + own_column(c)];
            }
        __syncthreads();
    }
    const int64_t j = k0 + own_row();
    for (int c = 0; c < LANES / ROW_THREADS && j < a.seq_k.padded; c++)
        if (own_column(c) < n_dims) {
            mpp_element<TYPE>::store(g.dk + h.first_k, j * h.stride + d0 + own_column(c), k_sum[c]);
            mpp_element<TYPE>::store(g.dv + h.first_k, j * h.stride + d0 + own_column(c), v_sum[c]);
        }
}

template <int TYPE>
static void attention_backward(struct mpp_rank *r, const struct mpp_attention *a, const void *q, const void *k, const void *v,
                               const int32_t *mask, const void *y, const float *lse, const void *dy, void *dq, void *dk, void *dv)
{
    typedef typename mpp_element<TYPE>::stored stored;
    const int64_t n = a->batch.padded * a->heads.padded * a->seq_q.padded;
    float *dot = (float *)mpp_cuda_scratch(r, MPP_SCRATCH_ROWS, (size_t)(n > 0 ? n : 1) * sizeof *dot);
    const struct mpp_attention_task t = mpp_attention_task_of(r, a);
    struct gradients<TYPE> g = {(const stored *)q, (const stored *)k, (const stored *)v, (const stored *)dy, mask, lse, dot,
                                (stored *)dq, (stored *)dk, (stored *)dv};
    mpp_cuda_moves(r);
    MPP_LAUNCH(r, attention_dot_kernel<TYPE>, mpp_grid(n, MPP_BLOCK), MPP_BLOCK, 0, *a, (const stored *)y, (const stored *)dy, dot);
    if (TYPE != MPP_TYPE_F32 && mpp_attention_mma_takes(r, a)) {
        mpp_attention_mma_backward(r, (enum mpp_type)TYPE, a, q, k, v, mask, lse, dot, dy, dq, dk, dv);
        return;
    }
    MPP_LAUNCH(r, query_gradient_kernel<TYPE>, grid_of(a, a->seq_q.padded), THREADS, BACKWARD_FLOATS * sizeof(float), t, g);
    MPP_LAUNCH(r, key_gradient_kernel<TYPE>, grid_of(a, a->seq_k.padded), THREADS, BACKWARD_FLOATS * sizeof(float), t, g);
}

/* ---- entry points ----------------------------------------------------------------------------------------------- */

void mpp_attention_forward(struct mpp_rank *r, const struct mpp_attention *a, const float *q, const float *k, const float *v,
                           const int32_t *mask, float *y, float *lse)
{
    attention_forward<MPP_TYPE_F32>(r, a, q, k, v, mask, y, lse);
}

void mpp_attention_forward_half(struct mpp_rank *r, enum mpp_type type, const struct mpp_attention *a, const void *q, const void *k,
                                const void *v, const int32_t *mask, void *y, float *lse)
{
    MPP_BY_HALF(type, attention_forward, r, a, q, k, v, mask, y, lse);
}

void mpp_attention_backward(struct mpp_rank *r, const struct mpp_attention *a, const float *q, const float *k, const float *v,
                            const int32_t *mask, const float *y, const float *lse, const float *dy, float *dq, float *dk, float *dv)
{
    attention_backward<MPP_TYPE_F32>(r, a, q, k, v, mask, y, lse, dy, dq, dk, dv);
}

void mpp_attention_backward_half(struct mpp_rank *r, enum mpp_type type, const struct mpp_attention *a, const void *q, const void *k,
                                 const void *v, const int32_t *mask, const void *y, const float *lse, const void *dy, void *dq, void *dk,
                                 void *dv)
{
    MPP_BY_HALF(type, attention_backward, r, a, q, k, v, mask, y, lse, dy, dq, dk, dv);
}

int64_t mpp_attention_workspace(const struct mpp_attention *a)
{
    (void)a;
    return 0;
}

int64_t mpp_attention_half_workspace(const struct mpp_attention *a, bool backward)
{
    (void)backward;
    return mpp_attention_workspace(a);
}
