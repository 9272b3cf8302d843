/* mpp_rt.h - what a generated trainer calls. One header for all machines: runtime/host implements it on processors, runtime/cuda on GPUs;
 * runtime/core is what both share.
 *
 *     static const struct mpp_program program = { .model = "gpt", ... };   // emitted in plan.c
 *     int main(int argc, char **argv) { return mpp_main(argc, argv, &program); }
 *
 * One struct mpp_rank per device. The devices are divided into the stages of a pipeline, in order of rank; one stage is a
 * plan without a pipeline. Those of a stage form a logical mesh of up to three axes; they are numbered row-major over it (the
 * last axis fastest) from the stage's first rank on. A set of axes is a bit mask (bit a = axis a); the group of a mask is the
 * ranks of a stage that share all other coordinates, ordered row-major over the mask's axes. MPP_WORLD is all ranks of the job.
 *
 * A dimension of global extent n that is split over axes a0 < a1 < ... is cut by nested blocks: first
 * ceil(n / k0) over a0, then ceil of that block over a1, and so on; last blocks may be short or empty.
 * Local tensors are dense row-major arrays of *padded* extents (the first rank's block). What lies in the
 * padding is unspecified; every kernel that sums over a dimension, or uses values as indices, takes the
 * *valid* extent too. All kernels of one rank are called from that rank's thread, which shares long loops with
 * n_threads - 1 others. Nothing here allocates inside a step. A failure (transport, disk) ends the job on all
 * ranks with one message, exit status 1; wrong input (data, weights, options) with exit status 2. */
#ifndef MPP_RT_H
#define MPP_RT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MPP_MAX_AXES 3
#define MPP_MAX_DIMS 6
#define MPP_WORLD (1u << MPP_MAX_AXES)

enum mpp_type { MPP_TYPE_F32, MPP_TYPE_I32, MPP_TYPE_BF16, MPP_TYPE_F16 };
enum mpp_reduce { MPP_REDUCE_SUM, MPP_REDUCE_MAX };

/* 16 bits of a float; mpp_math.h converts. */
typedef uint16_t mpp_bf16, mpp_f16;

/* ---- extents ---------------------------------------------------------------------------------- */

struct mpp_extent {
    int64_t global;   /* of the whole dimension */
    int64_t padded;   /* of every rank's local array */
    int64_t valid;    /* of this rank's block, 0 <= valid <= padded */
    int64_t offset;   /* global index of this rank's first element */
};

/* An iteration space of up to MPP_MAX_DIMS dimensions, row-major: sizes as stored, and as valid. */
struct mpp_space {
    int n_dims;
    int64_t padded[MPP_MAX_DIMS], valid[MPP_MAX_DIMS];
};

/* ---- the rank --------------------------------------------------------------------------------- */

struct mpp_device; /* where a rank's tensors lie (core/device.h) */
struct mpp_team;
struct mpp_trace;
struct mpp_transport; /* threads or MPI */

struct mpp_hyper {
    double lr, beta1, beta2, epsilon, momentum; /* lr: of this step, after the schedule; double, for the
                                                 * digits of 1 - beta2 */
    bool nesterov;
    double clip_norm;                          /* 0: none */
};

struct mpp_rank {
    int rank, n_ranks;          /* of the job */
    int stage_index;
    const struct mpp_stage *stage; /* program->stages[stage_index] */
    int n_axes, axis_size[MPP_MAX_AXES], coord[MPP_MAX_AXES]; /* of the stage's mesh */
    char *arena;                /* stage->arena_bytes, 64-byte aligned */
    char *workspace;            /* stage->workspace_bytes: inside the arena */
    struct mpp_device *device;  /* the runtime's own; NULL on the host */
    int n_threads;              /* that share this rank's loops, its own included; 0 is 1 */
    char *scratch;              /* MPP_SCRATCH_BYTES for each of them but the first */
    struct mpp_team *team;      /* the others */
    int64_t step;               /* from 1 */
    int64_t skipped;            /* of the steps so far: those that changed no weight; optimisers count the others */
    int micro_batch, micro_batches;
    int chunk, slot;            /* what runs: its chunk of the stage's layers, and the place of what this micro-batch keeps */
    uint64_t seed;
    struct mpp_hyper hyper;
    bool training;              /* false in evaluation: dropout is the identity */
    const struct mpp_program *program;
    void *plan;                 /* the emitted code's own state of this chunk and slot (pointers, extents) */
    struct mpp_transport *transport;
    void *impl;                 /* the runtime's own */
    uint64_t ticks;             /* grows with every collective and contraction: the rank works */
    uint64_t waits;             /* what it waits in, for the watch; 0: it works */
    struct mpp_trace *trace;    /* what --profile records; NULL: nothing */
    int pending;                /* sums and gathers that go on beside the rank's work, and want a look now and then */
};

/* ---- threads of a rank -------------------------------------------------------------------------- */

/* Before a for loop whose iterations write different elements and add nothing up: the rank's threads share it where
 * WORK, about the elements it touches, is worth waking them. _NEST: so many loops, one right inside the other, as
 * one. _SIMD: an innermost loop, which is vectorised as well. Who computes what changes no result. */
#ifndef MPP_PARALLEL_WORK
#define MPP_PARALLEL_WORK 32768 /* -D: another */
#endif
#define MPP_SCRATCH_BYTES 528384 /* what mpp_attention_workspace can come to */

static inline int mpp_team(const struct mpp_rank *r, int64_t work)
{
    return r->n_threads > 1 && work >= MPP_PARALLEL_WORK ? r->n_threads : 1;
}

#ifdef _OPENMP
#define MPP_OMP(...) _Pragma(#__VA_ARGS__)
#define MPP_PARALLEL(r, work) MPP_OMP(omp parallel for schedule(static) num_threads(mpp_team(r, work)))
#define MPP_PARALLEL_NEST(r, work, loops) \
    MPP_OMP(omp parallel for collapse(loops) schedule(static) num_threads(mpp_team(r, work)))
#define MPP_PARALLEL_SIMD(r, work) MPP_OMP(omp parallel for simd schedule(static) num_threads(mpp_team(r, work)))
#else
#define MPP_PARALLEL(r, work) (void)(r), (void)(work);
#define MPP_PARALLEL_NEST(r, work, loops) (void)(r), (void)(work);
#define MPP_PARALLEL_SIMD(r, work) \
    (void)(r), (void)(work);       \
    MPP_IVDEP
#endif

/* The block of this rank when a dimension of extent GLOBAL is split over the axes of MASK (0: whole). */
struct mpp_extent mpp_extent_of(const struct mpp_rank *r, int64_t global, unsigned mask);

/* ---- what the plan declares ------------------------------------------------------------------- */

/* ROUNDED: a parameter as the step reads it, where the one of its name and kind PARAMETER is its f32 master. */
enum mpp_tensor_kind { MPP_KIND_PARAMETER, MPP_KIND_GRADIENT, MPP_KIND_OPTIMIZER, MPP_KIND_INPUT, MPP_KIND_ROUNDED };
enum mpp_init { MPP_INIT_ZEROS, MPP_INIT_ONES, MPP_INIT_NORMAL, MPP_INIT_UNIFORM, MPP_INIT_CONSTANT };

/* A tensor that the world outside sees. Where COUNT > 0 it stands for COUNT tensors of a repeated layer:
 * NAME holds one %d, and number i lies at offset + i * stride of the arena. */
struct mpp_tensor {
    const char *name;                     /* published name, or the input's; optimiser state: "m.<name>", "v.<name>" */
    enum mpp_tensor_kind kind;
    enum mpp_type type;
    int first, count;                     /* %d runs over first .. first + count - 1; count 0: one tensor */
    int64_t offset, stride;               /* bytes in the arena */
    int64_t slot_stride;                  /* an input's: bytes from one slot's place to the next; 0: one place */
    int n_dims;
    int64_t dims[MPP_MAX_DIMS];           /* global; an input's batch dimension is that of one micro-batch */
    unsigned split[MPP_MAX_DIMS];         /* axes that split each dimension */
    int n_published;
    int64_t published[MPP_MAX_DIMS];      /* the published shape: the same elements in the same order */
    enum mpp_init init;
    double init_a, init_b;                /* normal: mean, std; uniform: low, high; constant: value */
};

enum mpp_schedule { MPP_SCHEDULE_CONSTANT, MPP_SCHEDULE_LINEAR, MPP_SCHEDULE_COSINE };

/* How an input is filled from a token stream. */
enum mpp_role {
    MPP_ROLE_NONE,        /* only npy and synthetic data fill it */
    MPP_ROLE_TOKENS,      /* the tokens of the window */
    MPP_ROLE_NEXT_TOKENS, /* the same, one further */
    MPP_ROLE_MASKED_TOKENS, /* the tokens, a share of them replaced (80 % mask id, 10 % random, 10 % kept) */
    MPP_ROLE_MASKED_LABELS, /* the original token where one was chosen, ignore_index elsewhere */
    MPP_ROLE_ZEROS, MPP_ROLE_ONES,
};

struct mpp_input {
    int tensor;                            /* index into the stage's tensors */
    enum mpp_role role;
    int64_t limit;                         /* integer inputs: valid values are 0 .. limit - 1 (0: unchecked) */
    int64_t also_valid;                    /* and this one (ignore_index); else equal to 0 */
    bool batched;                          /* its first dimension is the batch */
    int chunk;                             /* where it has a place for each slot: the chunk that reads it */
};

/* ---- stages ----------------------------------------------------------------------------------- */

/* Part of a stage's layers, whose forward and backward pass run on their own. A stage has one, unless the schedule is
 * interleaved. */
struct mpp_chunk {
    void (*forward)(struct mpp_rank *r);   /* of r->micro_batch, in r->slot */
    void (*backward)(struct mpp_rank *r);  /* the same; gradients accumulate over the micro-batches of a step */
    int slots;                             /* micro-batches that may be between their forward and their backward pass */
};

/* What the plan expects a device of a stage to spend in a step on collectives of a kind over the same axes, or on what it
 * receives from other stages: for --profile to compare with. */
struct mpp_forecast {
    const char *kind;                      /* "all-reduce", "all-gather", "reduce-scatter", "all-to-all"; "receive" */
    unsigned mask;                         /* receive: 0 */
    int64_t count;
    double seconds;                        /* all of them */
};

/* What the ranks of one stage run. All of them have an arena of the same layout. */
struct mpp_stage {
    int first_rank;
    int n_axes, axis_size[MPP_MAX_AXES];   /* the mesh of its devices */
    const char *axis_name[MPP_MAX_AXES];
    int64_t arena_bytes, workspace_offset, workspace_bytes;
    int64_t beside_bytes;                  /* what a GPU's trainer allocates beside the arena, at most; 0: not known */
    int n_tensors;
    const struct mpp_tensor *tensors;
    int n_inputs;
    const struct mpp_input *inputs;        /* those its own operators read */
    int64_t loss_offset, grad_norm_offset; /* f32 scalars in the arena, whole on every rank of the stage after update; < 0: not
                                            * computed here. One stage has the loss */
    int64_t loss_term_offset;              /* of the stage with the loss: this rank's term of it once the forward passes are done, */
    unsigned loss_axes;                    /* and the axes over which terms are summed; offset < 0: there is no such, nor --eval */
    int64_t loss_scale_offset;             /* where program->scales_loss: the scale, alike in every stage, */
    int64_t skipped_offset;                /* and how many steps were skipped (f32) */
    void (*setup)(struct mpp_rank *r);     /* once for each slot of each chunk: fills r->plan, with r->chunk and r->slot set */
    size_t plan_state_bytes;               /* of one slot: r->plan points at so many zeroed bytes */
    void (*prologue)(struct mpp_rank *r);  /* per micro-batch, before the first forward of the step, in slot 0 of chunk 0;
                                            * NULL: none */
    int n_chunks;
    const struct mpp_chunk *chunks;
    void (*step)(struct mpp_rank *r);      /* the forward and backward passes of all micro-batches, in the order of the stage's
                                            * schedule: calls of mpp_forward and mpp_backward */
    void (*update)(struct mpp_rank *r);    /* once per step: reductions, clipping, optimiser */
    void (*reduce_gradients)(struct mpp_rank *r); /* once, instead of update, for --dump-grads; gradients of
                                            * MPP_KIND_GRADIENT tensors are final afterwards. In all stages or none */
    double forward_s, backward_s, once_s;  /* expected of a micro-batch, and after the last backward pass; 0: not known */
    int n_forecasts;
    const struct mpp_forecast *forecasts;
};

/* A tensor of a micro-batch (or, once per step, a gradient) that goes from one stage to another. Both sides may split it
 * differently: each receiver gets its block, from senders whose blocks meet it. Where several senders hold the same block,
 * receivers take turns: the one with index i in its stage takes from the i-th of them, modulo their number. */
struct mpp_transfer {
    const char *name;
    enum mpp_type type;
    int from, to;                          /* stages */
    int n_dims;
    int64_t dims[MPP_MAX_DIMS];            /* global */
    unsigned from_split[MPP_MAX_DIMS];     /* axes of the sender's mesh that split each dimension */
    unsigned to_split[MPP_MAX_DIMS];       /* and of the receiver's */
    int depth;                             /* messages that may be under way: places of the ring they are sent from */
    int64_t offset, stride;                /* of the ring in the sender's arena; a place is the sender's padded local array */
};

struct mpp_program {
    const char *model, *plan_version;
    int n_stages;
    const struct mpp_stage *const *stages; /* in the order of their ranks, of which none is left out */
    int n_transfers;
    const struct mpp_transfer *transfers;
    const char *pipeline;                  /* the schedule: "1F1B", "GPipe", "interleaved 1F1B"; one stage: "accumulate" */
    double step_s;                         /* expected of a step; 0: not known */
    int64_t batch;                         /* global samples per step */
    int micro_batches;
    int64_t tokens_per_sample;             /* for tokens/s; 1: samples/s */
    bool scales_loss;                      /* gradients are multiplied by the f32 scalar at loss_scale_offset until the
                                            * update; mpp_loss_scale makes it anew */
    struct mpp_hyper hyper;                /* defaults; lr is the peak */
    enum mpp_schedule schedule;
    int64_t warmup_steps, total_steps;
    double final_lr;                       /* absolute */
    double mask_share;                     /* masked language models: share of tokens chosen */
    int64_t mask_id, ignore_index;
    const char *data;                      /* default for --data, e.g. "text:FILE"; NULL: none */
    int64_t steps, seed;                   /* defaults */
    const char *weights;                   /* default for --init; NULL: random */
    const char *const *strip_prefixes;     /* removed from names in weight files, NULL-terminated; may be NULL */
    int64_t save_every, save_keep;         /* 0: only at the end */
    const char *built;                     /* what else the plan was built with, for checkpoints to tell: "heads 4, pdrop
                                            * 0.1"; NULL: not known */
};

/* Parse the command line, start the ranks, train. Returns the process's exit status. */
int mpp_main(int argc, char **argv, const struct mpp_program *program);

/* ---- passes and transfers ---------------------------------------------------------------------- */

/* Called by stage->step. A pass of CHUNK for MICRO_BATCH, in slot MICRO_BATCH modulo the chunk's slots: sets r->chunk, slot,
 * micro_batch and plan, copies the micro-batch's inputs to their places (those that have one place for all slots before any
 * pass, where another micro-batch's lie in it; the others before their chunk's forward pass), and runs the chunk's function. Backward does nothing in evaluation. */
void mpp_forward(struct mpp_rank *r, int chunk, int micro_batch);
void mpp_backward(struct mpp_rank *r, int chunk, int micro_batch);

/* X: this rank's padded local array of program->transfers[TRANSFER]; called by all ranks of the stage it comes from, and as
 * often by all of the stage it goes to. Send copies X to the ring and goes on, after a wait where the last message of
 * its place has not left yet. Receive waits for the message; it leaves the padding as it is. Messages of
 * one transfer arrive in the order they are sent. */
void mpp_send(struct mpp_rank *r, int transfer, const void *x);
void mpp_receive(struct mpp_rank *r, int transfer, void *x);

/* X NULL: this stage has no term. *X, alike on all ranks of a stage, becomes its sum over the stages, added in their order: the same bits on every rank.
 * Called by all ranks of the job. */
void mpp_sum_over_stages(struct mpp_rank *r, float *x);

/* ---- bytes -------------------------------------------------------------------------------------- */

/* In the arena, in order with the rank's work. DST and SRC overlap nowhere, or are the same. */
void mpp_copy(struct mpp_rank *r, void *dst, const void *src, size_t bytes);
void mpp_zero(struct mpp_rank *r, void *x, size_t bytes);

/* ---- collectives ------------------------------------------------------------------------------ */

/* In place over the group of MASK (which may be MPP_WORLD), COUNT floats. */
void mpp_all_reduce(struct mpp_rank *r, unsigned mask, float *x, int64_t count, enum mpp_reduce op);

/* Along one dimension seen as [outer, extent, inner]: EXTENT is the padded extent of the larger side; the
 * smaller side has the padded nested block of EXTENT over MASK. Element size is 4 bytes.
 * all_gather: src [outer, block, inner] -> dst [outer, extent, inner].
 * reduce_scatter: src [outer, extent, inner], summed -> dst [outer, block, inner].
 * slice: src [outer, extent, inner] -> this rank's dst [outer, block, inner], no communication. */
void mpp_all_gather(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner,
                    const void *src, void *dst);
void mpp_reduce_scatter(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner,
                        const float *src, float *dst);
void mpp_slice(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner,
               const void *src, void *dst);

/* Sums that may go on while the rank works: x, src and dst are neither read nor written until mpp_wait, which ends all
 * that were begun, in any groups; src is spent. OUTER is 1. Sums of groups within one host are all done in mpp_wait. */
void mpp_all_reduce_begin(struct mpp_rank *r, unsigned mask, float *x, int64_t count);
void mpp_reduce_scatter_begin(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner,
                              float *src, float *dst);
void mpp_wait(struct mpp_rank *r);

/* Gathers that may go on while the rank works: src is not written, dst neither read nor written until mpp_gather_wait, which
 * returns once all that were begun are done but for the last UNDER_WAY. Those of groups within one host are done at once. */
void mpp_all_gather_begin(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner,
                          const void *src, void *dst);
void mpp_gather_wait(struct mpp_rank *r, int64_t under_way);

/* Gather dimension GATHER_DIM (to padded GATHER_EXTENT) while splitting SPLIT_DIM, over MASK.
 * SRC_DIMS [n_dims] are the padded local extents of src. */
void mpp_all_to_all(struct mpp_rank *r, unsigned mask, int n_dims, const int64_t *src_dims, int gather_dim,
                    int64_t gather_extent, int split_dim, const void *src, void *dst);

/* A whole value becomes one term of a sum over MASK: kept where all of MASK's coordinates are 0, else zero. */
void mpp_to_partial(struct mpp_rank *r, unsigned mask, const float *src, float *dst, int64_t count);

/* Bytes of workspace a collective of these arguments needs on the host transports. */
int64_t mpp_all_gather_workspace(int64_t outer, int64_t extent, int64_t inner);
int64_t mpp_reduce_scatter_workspace(int64_t outer, int64_t extent, int64_t inner);
int64_t mpp_all_to_all_workspace(int n_dims, const int64_t *src_dims, int split_dim);

/* ---- contractions ----------------------------------------------------------------------------- */

/* c [m, n] (leading dimension ldc) = op(a) op(b) + beta c, row-major; op(a) is [m, k]. beta is 0 or 1. */
void mpp_gemm(struct mpp_rank *r, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
              const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

/* Any contraction of two tensors: letters of EQUATION ("bsh,htnd->bstnd") name factors; A_DIMS, B_DIMS,
 * C_DIMS are padded extents per dimension; VALID is the valid extent per letter, in order of first
 * appearance. Sums run over valid extents; other letters over valid ones too (padding of c is untouched
 * or garbage). beta 0 or 1. Maps to one or more sgemm calls without copying. */
void mpp_einsum(struct mpp_rank *r, const char *equation, const float *a, const int64_t *a_dims,
                const float *b, const int64_t *b_dims, float beta, float *c, const int64_t *c_dims,
                const int64_t *valid);

/* A product and what follows it element by element, in one. BIAS [n] is added to every row, RESIDUAL like y to every element;
 * either may be NULL. y [m, n], residual and pre have the leading dimension ldy; what they hold beyond n is neither read nor written.
 * y may be residual; else nothing overlaps.
 * add:  y = op(a) op(b) + bias + residual.
 * gelu: pre = op(a) op(b) + bias, y = gelu(pre) in its tanh form; pre NULL: not wanted. */
void mpp_gemm_add(struct mpp_rank *r, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                  const float *b, int64_t ldb, const float *bias, const float *residual, float *y, int64_t ldy);
void mpp_gemm_gelu(struct mpp_rank *r, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                   const float *b, int64_t ldb, const float *bias, float *pre, float *y, int64_t ldy);

/* ---- kernels with a row structure -------------------------------------------------------------- */

/* Sums over a split row (MASK != 0) are finished by an all-reduce inside: the declared internal
 * collectives. COLS is the extent of a row: padded = stride, valid = summed, global = divided by. */

/* y = gamma (x - mean) rstd + beta; gamma, beta may be NULL. mean, rstd: one per row. All padded rows are computed. */
void mpp_layernorm_forward(struct mpp_rank *r, unsigned mask, int64_t rows, struct mpp_extent cols, float epsilon,
                           const float *x, const float *gamma, const float *beta, float *y, float *mean, float *rstd);
/* dx from dy; then dgamma, dbeta (NULL: not wanted) summed over the valid rows. */
void mpp_layernorm_backward(struct mpp_rank *r, unsigned mask, const struct mpp_space *rows, struct mpp_extent cols,
                            const float *x, const float *gamma, const float *mean, const float *rstd,
                            const float *dy, float *dx, float *dgamma, float *dbeta);

void mpp_softmax_forward(struct mpp_rank *r, unsigned mask, int64_t rows, struct mpp_extent cols,
                         const float *x, float *y);
void mpp_softmax_backward(struct mpp_rank *r, unsigned mask, int64_t rows, struct mpp_extent cols,
                          const float *y, const float *dy, float *dx);

/* loss (one float, this rank's part of the sum) = sum over valid rows whose label is not IGNORE_INDEX of
 * (lse - logit[label]) * *scale; lse: one per row. SCALE points at one float (1 / count of the step).
 * With MASK != 0 the columns are a vocabulary shard: loss is counted on the shard that holds the label, so that
 * the sum over MASK is the loss. */
void mpp_cross_entropy_forward(struct mpp_rank *r, unsigned mask, const struct mpp_space *rows, struct mpp_extent cols,
                               int32_t ignore_index, const float *logits, const int32_t *labels, const float *scale,
                               float *lse, float *loss);
/* dlogits = (softmax - onehot) * *scale * *dloss, 0 where the label is IGNORE_INDEX. May be in place. */
void mpp_cross_entropy_backward(struct mpp_rank *r, const struct mpp_space *rows, struct mpp_extent cols,
                                int32_t ignore_index, const float *logits, const int32_t *labels, const float *lse,
                                const float *scale, const float *dloss, float *dlogits);

/* count (one float) = number of valid rows whose label is not IGNORE_INDEX. */
void mpp_count_labels(struct mpp_rank *r, const struct mpp_space *rows, int32_t ignore_index, const int32_t *labels,
                      float *count);

/* y [rows, width] = table [vocab.padded, width] [ids - vocab.offset], zero outside this shard. */
void mpp_embedding_forward(struct mpp_rank *r, const struct mpp_space *rows, struct mpp_extent vocab, int64_t width,
                           const int32_t *ids, const float *table, float *y);
/* dtable = (beta dtable) + rows of dy summed where ids hits the shard. beta is 0 or 1. */
void mpp_embedding_backward(struct mpp_rank *r, const struct mpp_space *rows, struct mpp_extent vocab, int64_t width,
                            const int32_t *ids, const float *dy, float beta, float *dtable);

/* Scaled dot-product attention without a stored score matrix. Shapes (padded, dense): q, y, dq, dy [batch, seq_q,
 * heads, head_dim]; k, v, dk, dv [batch, seq_k, heads, head_dim]; mask [batch, seq_k] (int32, 0 = masked) or NULL;
 * lse [batch, heads, seq_q]. Query i (global index q.offset + i) sees keys <= its own index when causal; keys run over
 * seq_k.valid. Dropout uses the counter of (step, op, global batch, head, query, key). */
struct mpp_attention {
    struct mpp_extent batch, seq_q, seq_k, heads;
    int64_t head_dim;
    float scale, dropout;
    bool causal;
    uint32_t op;                           /* dropout stream */
};
void mpp_attention_forward(struct mpp_rank *r, const struct mpp_attention *a, const float *q, const float *k,
                           const float *v, const int32_t *mask, float *y, float *lse);
void mpp_attention_backward(struct mpp_rank *r, const struct mpp_attention *a, const float *q, const float *k,
                            const float *v, const int32_t *mask, const float *y, const float *lse, const float *dy,
                            float *dq, float *dk, float *dv);
int64_t mpp_attention_workspace(const struct mpp_attention *a);

/* ---- optimisers -------------------------------------------------------------------------------- */

/* *sum = sum of x^2 over the valid elements of SPACE. */
void mpp_square_sum(struct mpp_rank *r, const struct mpp_space *space, const float *x, float *sum);

/* *scale = min(1, clip_norm / sqrt(*square_sum)) (1 when clip_norm is 0), *norm = sqrt(*square_sum). */
void mpp_clip_scale(struct mpp_rank *r, const float *square_sum, float *norm, float *scale);

/* Judges a step by SQUARE_SUM, of all gradients times the loss's *LOSS_SCALE. Finite: *norm and *grad_scale are what
 * mpp_clip_scale gives for the true gradients, the latter divided by the loss's scale, and *good counts one step more; where
 * DYNAMIC, EVERY good steps in a row double the scale (up to 2^24). Else *grad_scale is 0, which skips the step, *skipped
 * counts it, and a dynamic scale is halved (down to 1). On the
 * host r->skipped becomes *skipped at once, else after the step. */
void mpp_loss_scale(struct mpp_rank *r, bool dynamic, int64_t every, const float *square_sum, float *norm, float *grad_scale,
                    float *loss_scale, float *good, float *skipped);

/* One step on COUNT elements, in place, gradient times *grad_scale (NULL: 1; where that is 0 nothing changes). AdamW as Loshchilov & Hutter 2019 with
 * bias correction by steps not skipped: w *= 1 - lr wd first. SGD: g += wd w; v = momentum v + g (v = g at step 1);
 * w -= lr (nesterov ? g + momentum v : v); velocity NULL: w -= lr g. */
void mpp_adamw(struct mpp_rank *r, int64_t count, float weight_decay, const float *grad_scale, const float *grad,
               float *param, float *m, float *v);
void mpp_sgd(struct mpp_rank *r, int64_t count, float weight_decay, const float *grad_scale, const float *grad,
             float *param, float *velocity);

/* ---- 16-bit floats ------------------------------------------------------------------------------- */

/* As the functions above without _half, with what stands as void pointers, and tables, in TYPE (bf16 or f16), computed in
 * f32 and rounded when stored; the rest is f32. They use the workspace. Sums over ranks: 16 bits travel; what they stand for is added in
 * f32, in the order of the group's members, and rounded once, so that all runtimes give the same bits. */
void mpp_all_reduce_half(struct mpp_rank *r, unsigned mask, enum mpp_type type, void *x, int64_t count);
void mpp_all_gather_half(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner,
                         const void *src, void *dst);
void mpp_all_gather_begin_half(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner,
                               const void *src, void *dst);
void mpp_reduce_scatter_half(struct mpp_rank *r, unsigned mask, enum mpp_type type, int64_t outer, int64_t extent,
                             int64_t inner, const void *src, void *dst);
void mpp_slice_half(struct mpp_rank *r, unsigned mask, int64_t outer, int64_t extent, int64_t inner,
                    const void *src, void *dst);
void mpp_all_to_all_half(struct mpp_rank *r, unsigned mask, int n_dims, const int64_t *src_dims, int gather_dim,
                         int64_t gather_extent, int split_dim, const void *src, void *dst);
void mpp_to_partial_half(struct mpp_rank *r, unsigned mask, const void *src, void *dst, int64_t count);

/* a and b in TYPE, c in C_TYPE: TYPE or f32. */
void mpp_gemm_half(struct mpp_rank *r, enum mpp_type type, enum mpp_type c_type, bool trans_a, bool trans_b, int64_t m,
                   int64_t n, int64_t k, const void *a, int64_t lda, const void *b, int64_t ldb, float beta, void *c,
                   int64_t ldc);
void mpp_einsum_half(struct mpp_rank *r, enum mpp_type type, enum mpp_type c_type, const char *equation, const void *a,
                     const int64_t *a_dims, const void *b, const int64_t *b_dims, float beta, void *c,
                     const int64_t *c_dims, const int64_t *valid);
/* All in TYPE. The product may be rounded before what follows: the host's is, CUDA's where no epilogue does it. */
void mpp_gemm_add_half(struct mpp_rank *r, enum mpp_type type, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
                       const void *a, int64_t lda, const void *b, int64_t ldb, const void *bias, const void *residual, void *y,
                       int64_t ldy);
void mpp_gemm_gelu_half(struct mpp_rank *r, enum mpp_type type, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
                        const void *a, int64_t lda, const void *b, int64_t ldb, const void *bias, void *pre, void *y, int64_t ldy);

void mpp_layernorm_forward_half(struct mpp_rank *r, enum mpp_type type, unsigned mask, int64_t rows,
                                struct mpp_extent cols, float epsilon, const void *x, const float *gamma,
                                const float *beta, void *y, float *mean, float *rstd);
void mpp_layernorm_backward_half(struct mpp_rank *r, enum mpp_type type, unsigned mask, const struct mpp_space *rows,
                                 struct mpp_extent cols, const void *x, const float *gamma, const float *mean,
                                 const float *rstd, const void *dy, void *dx, float *dgamma, float *dbeta);
void mpp_softmax_forward_half(struct mpp_rank *r, enum mpp_type type, unsigned mask, int64_t rows,
                              struct mpp_extent cols, const void *x, void *y);
void mpp_softmax_backward_half(struct mpp_rank *r, enum mpp_type type, unsigned mask, int64_t rows,
                               struct mpp_extent cols, const void *y, const void *dy, void *dx);
void mpp_cross_entropy_forward_half(struct mpp_rank *r, enum mpp_type type, unsigned mask, const struct mpp_space *rows,
                                    struct mpp_extent cols, int32_t ignore_index, const void *logits,
                                    const int32_t *labels, const float *scale, float *lse, float *loss);
void mpp_cross_entropy_backward_half(struct mpp_rank *r, enum mpp_type type, const struct mpp_space *rows,
                                     struct mpp_extent cols, int32_t ignore_index, const void *logits,
                                     const int32_t *labels, const float *lse, const float *scale, const float *dloss,
                                     void *dlogits);
void mpp_embedding_forward_half(struct mpp_rank *r, const struct mpp_space *rows, struct mpp_extent vocab,
                                int64_t width, const int32_t *ids, const void *table, void *y);
void mpp_embedding_backward_half(struct mpp_rank *r, enum mpp_type type, const struct mpp_space *rows,
                                 struct mpp_extent vocab, int64_t width, const int32_t *ids, const void *dy, float beta,
                                 float *dtable);
void mpp_attention_forward_half(struct mpp_rank *r, enum mpp_type type, const struct mpp_attention *a, const void *q,
                                const void *k, const void *v, const int32_t *mask, void *y, float *lse);
void mpp_attention_backward_half(struct mpp_rank *r, enum mpp_type type, const struct mpp_attention *a, const void *q,
                                 const void *k, const void *v, const int32_t *mask, const void *y, const float *lse,
                                 const void *dy, void *dq, void *dk, void *dv);

/* Bytes of workspace: of products (mpp_gemm_half; mpp_einsum_half: 4 for each element of a, b and c), kernels over rows of
 * COLS elements, attention, sums over ranks of COUNT elements, and reduce-scatters. */
#define MPP_GEMM_HALF_WORKSPACE MPP_SCRATCH_BYTES
int64_t mpp_rows_half_workspace(int64_t cols);
int64_t mpp_attention_half_workspace(const struct mpp_attention *a, bool backward);
int64_t mpp_reduce_scatter_half_workspace(int64_t outer, int64_t extent, int64_t inner);

/* ---- random numbers ----------------------------------------------------------------------------- */

/* Philox 4x32-10 (Salmon et al., SC 2011) on (seed, step, op, element): uniform in [0, 1). The element
 * index is global, so that a plan changes nothing. OP's low 32 bits name the drawing op. */
float mpp_uniform(const struct mpp_rank *r, uint32_t op, uint64_t element);

/* Global index of the first sample of the running micro-batch within the step: micro_batch * (batch / micro_batches). */
int64_t mpp_first_sample(const struct mpp_rank *r);

#ifdef __cplusplus
}
#endif

#endif
