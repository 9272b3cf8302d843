/* attention.cuh - what kernels of attention share: which head a block has, which keys a query sees, which probabilities are dropped.
 *
 *     struct mpp_attention_task t = mpp_attention_task_of(r, a);       // on the host, given to the kernel by value
 *     const struct mpp_head h = mpp_head_of(t.a);                      // in the kernel: blockIdx.y is batch x heads
 *     for (int64_t j = 0; j < mpp_visible_end(t.a, i); j++)
 *         p *= mpp_attention_factor(t, h, i, j);                       // the same whatever the tiling */
#ifndef MPP_ATTENTION_CUH
#define MPP_ATTENTION_CUH

#include "cuda/rows.cuh"

/* Everything a kernel needs beside the tensors. */
struct mpp_attention_task {
    struct mpp_attention a;
    uint64_t seed;
    struct mpp_now now;
    int64_t first_sample;
    bool drops;
};

static struct mpp_attention_task mpp_attention_task_of(const struct mpp_rank *r, const struct mpp_attention *a)
{
    struct mpp_attention_task t = {};
    t.a = *a;
    t.drops = r->training && a->dropout > 0.0f;
    if (t.drops) {
        t.seed = r->seed;
        t.now = mpp_now_of(r);
        t.first_sample = mpp_first_sample(r);
    }
    return t;
}

/* One head of one sample, from blockIdx.y. */
struct mpp_head {
    int64_t batch, head, first_q, first_k, first_lse, stride;
    bool valid;
};

static __device__ struct mpp_head mpp_head_of(const struct mpp_attention &a)
{
    struct mpp_head h;
    h.batch = blockIdx.y / a.heads.padded;
    h.head = blockIdx.y % a.heads.padded;
    h.stride = a.heads.padded * a.head_dim;
    h.first_q = h.batch * a.seq_q.padded * h.stride + h.head * a.head_dim;
    h.first_k = h.batch * a.seq_k.padded * h.stride + h.head * a.head_dim;
    h.first_lse = (h.batch * a.heads.padded + h.head) * a.seq_q.padded;
    h.valid = h.batch < a.batch.valid && h.head < a.heads.valid;
    return h;
}

/* Keys before this one (of this rank) are visible to query I: all valid ones, or those up to itself. */
static __host__ __device__ int64_t mpp_visible_end(const struct mpp_attention &a, int64_t i)
{
    if (!a.causal)
        return a.seq_k.valid;
    int64_t end = a.seq_q.offset + i + 1 - a.seq_k.offset;
    return end < 0 ? 0 : end < a.seq_k.valid ? end : a.seq_k.valid;
}

/* The first query that sees key K. */
static __device__ int64_t mpp_first_query(const struct mpp_attention &a, int64_t k)
{
    int64_t first = a.causal ? a.seq_k.offset + k - a.seq_q.offset : 0;
    return first < 0 ? 0 : first;
}

/* Dropout's factor for query I and key J. */
static __device__ float mpp_attention_factor(const struct mpp_attention_task &t, const struct mpp_head &h, int64_t i, int64_t j)
{
    if (!t.drops)
        return 1.0f;
    uint64_t element = (uint64_t)(t.first_sample + t.a.batch.offset + h.batch) * (uint64_t)t.a.heads.global +
                       (uint64_t)(t.a.heads.offset + h.head);
    element = element * (uint64_t)t.a.seq_q.global + (uint64_t)(t.a.seq_q.offset + i);
    element = element * (uint64_t)t.a.seq_k.global + (uint64_t)(t.a.seq_k.offset + j);
    return mpp_dropout_factor(mpp_uniform_at(t.seed, mpp_now_step(t.now), t.a.op, (uint32_t)element, (uint32_t)(element >> 32)),
                              t.a.dropout);
}

/* ---- on tensor cores (kernels_attention_mma.cu) ------------------------------------------------------------- */

/* Are 16-bit tensors of A's heads left to tensor cores by rank R? */
bool mpp_attention_mma_takes(const struct mpp_rank *r, const struct mpp_attention *a);

/* As mpp_attention_forward_half and mpp_attention_backward_half; DOT [batch, heads, seq_q]: the sums of dy y of each query. */
void mpp_attention_mma_forward(struct mpp_rank *r, enum mpp_type type, const struct mpp_attention *a, const void *q, const void *k,
                               const void *v, const int32_t *mask, void *y, float *lse);
void mpp_attention_mma_backward(struct mpp_rank *r, enum mpp_type type, const struct mpp_attention *a, const void *q, const void *k,
                                const void *v, const int32_t *mask, const float *lse, const float *dot, const void *dy, void *dq,
                                void *dk, void *dv);

#endif
