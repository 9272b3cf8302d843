/* program.h - the local programs of a plan's stages: what every rank runs, on local arrays, with explicit collectives.
 *
 *     struct mpp_transfers *t;
 *     MPP_TRY(mpp_transfers_plan(arena, diag, plan, &t));              // transfers.c: what crosses the borders of stages
 *     MPP_TRY(mpp_pipeline_verify(arena, diag, plan, t));              // verify_pipeline.c: no rank waits for ever
 *     MPP_TRY(mpp_lower(arena, graph, plan, 0, t, capacity_bytes, &p)); // of each stage: lower*.c, roll.c, prefetch.c, memory.c
 *     MPP_TRY(mpp_emit(arena, diag, graph, cluster, plan, t, progs, "plan/"));
 *
 * Repeated layers that are planned alike are rolled: their instructions stand once, in a loop over layers, and
 * their buffers stand once, with a rule for the address in iteration i. STEP all-reduce works in place: where its
 * in and out are different memory the bytes are copied first. */
#ifndef MPP_PROGRAM_H
#define MPP_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "ir/graph.h"
#include "planner/plan.h"

enum mpp_buffer_kind { MPP_BUF_PARAM, MPP_BUF_STATE, MPP_BUF_ACCUM, MPP_BUF_INPUT, MPP_BUF_VALUE, MPP_BUF_COPY,
                       MPP_BUF_RING /* places of what is on its way to another stage; no instruction names it */ };

/* How a layered buffer's address depends on the layer i of its loop class. */
enum mpp_buffer_address {
    MPP_ADDR_FIXED,               /* offset (not layered, or a place that all layers share) */
    MPP_ADDR_STRIDED,             /* offset + (i - first) * stride */
    MPP_ADDR_PINGPONG,            /* offset + ((i - first) & 1) * stride */
    MPP_ADDR_CARRIED,             /* another layer's buffer, or one from outside the loop: no memory of its own */
};

/* A buffer seen from an instruction: LAYER -1 inside a loop body (this iteration) or for plain buffers;
 * else the buffer of that layer (absolute index). */
struct mpp_bufref {
    int buffer, layer;
};

struct mpp_buffer {
    const char *name;             /* C identifier, unique among its class's (or the plain) buffers: "attn_c_attn" */
    mpp_id tensor;                /* graph tensor; -1: none */
    struct mpp_sharding sharding;
    enum mpp_dtype dtype;
    int n_dims;
    int64_t padded[MPP_GRAPH_MAX_DIMS]; /* local extents */
    unsigned split[MPP_GRAPH_MAX_DIMS]; /* axes per dimension */
    int64_t bytes;                /* rounded up to 64 */
    int64_t slots;                /* micro-batches in flight, where each has its own (BYTES apart); of a ring its depth; else 1 */
    enum mpp_buffer_kind kind;
    int cls;                      /* layer class, -1: plain */
    enum mpp_buffer_address address;
    int64_t offset, stride;       /* in the arena */
    int alias;                    /* buffer whose memory this is (reshape, in place); -1 */
    int alias_layer;              /* where `alias` is another layer's buffer: that layer; -1 */
    /* CARRIED: layer i of the class sees buffer `carry_from` (of the same class) of layer i + carry_step, where
     * carry_step is -1 or +1; the layer at that end of the class (the first for -1, the last for +1) sees `carry_in`. */
    struct mpp_bufref carry_in;
    int carry_from, carry_step;
};

enum mpp_instr_kind {
    MPP_INSTR_COMPUTE,            /* run a group */
    MPP_INSTR_STEP,               /* one step of a copy */
    MPP_INSTR_ACCUMULATE,         /* out[0] = or += in[0], by mode[0] */
    MPP_INSTR_ADD_SCALAR,         /* out[0] += in[0], one float */
    MPP_INSTR_ZERO,               /* out[0] = 0 */
    MPP_INSTR_SEND,               /* in[0] to another stage, by `transfer` */
    MPP_INSTR_RECEIVE,            /* out[0] from another stage, by `transfer` */
    MPP_INSTR_AWAIT,              /* in[]: what gathers that were begun have made */
    MPP_INSTR_SUM_STAGES,         /* out[0], one float: its sum over all stages; n_out 0: this stage has no term of it */
};

enum mpp_write_mode { MPP_WRITE, MPP_WRITE_ADD, MPP_WRITE_ADD_LATER /* add unless this is the step's first micro-batch */ };

struct mpp_instr {
    enum mpp_instr_kind kind;
    mpp_id group;                 /* COMPUTE: the (first layer's) group */
    mpp_id epilogue;              /* COMPUTE: the group that runs as the epilogue of this contraction (epilogue.c), on the same block; -1 */
    struct mpp_split split;       /* COMPUTE */
    int n_in, n_out;
    struct mpp_bufref *in, *out;  /* COMPUTE: in the order of the group's in and out; a left-out one: buffer -1. With an epilogue: what the
                                   * contraction reads, then what the epilogue does (the product: buffer -1); what the epilogue makes */
    enum mpp_write_mode *mode;    /* [n_out] */
    const struct mpp_reshard_step *step; /* STEP */
    const char *reason;           /* STEP: why */
    int transfer;                 /* SEND, RECEIVE: line of the plan's transfers; else -1 */
    bool gradient;                /* UPDATE phase: part of reduce_gradients; these come first in their section */
    bool begins;                  /* BACKWARD: a sum of gradients that only begins here, in the last micro-batch; the UPDATE
                                   * section waits for it first */
    bool prefetch;                /* FORWARD, BACKWARD: a gather that only begins here; an AWAIT names its result */
    int ahead;                    /* prefetch, in a loop: its buffers are those so many layers further on; at the end there are none */
    int under_way, under_way_last; /* AWAIT: of the gathers begun so far, how many of the last it need not wait for; and in the
                                   * loop's last iteration, in which none begins for a next one */
    bool once;                    /* FORWARD: runs in the step's first micro-batch only (kept parameters) */
    int64_t stream_step;          /* COMPUTE in a loop: what the `stream` attribute grows by from layer to layer */
};

/* A sequence of instructions and loops over the layers of a class. */
struct mpp_pitem {
    bool loop;
    int chunk;                    /* FORWARD, BACKWARD: of the stage's work; 0 unless the schedule is interleaved */
    struct mpp_instr instr;       /* !loop */
    int cls, body;                /* loop: class, index of the body in `bodies` */
    bool descending;              /* loop: from the last layer to the first */
};
struct mpp_body {                 /* a function of one layer */
    const char *name;             /* "h_forward" */
    int cls;
    enum mpp_phase phase;
    int n_instrs;
    struct mpp_instr *instrs;
};
struct mpp_layer_class {          /* layers first .. first + count - 1 of one <repeat>, planned alike */
    const char *name;             /* "h", or "h_a", "h_b" where layers differ */
    int repeat, first, count;
};
struct mpp_section {
    enum mpp_phase phase;
    int n_items;
    struct mpp_pitem *items;
};

struct mpp_lprog {
    int n_buffers;
    struct mpp_buffer *buffers;
    int n_classes;
    struct mpp_layer_class *classes;
    int n_bodies;
    struct mpp_body *bodies;
    struct mpp_section section[4]; /* by phase; the items of a chunk stand together */
    int n_chunks;
    int64_t *slots;               /* [n_chunks] micro-batches in flight: micro-batch m of chunk c runs in slot m % slots[c] */
    int64_t workspace_bytes, workspace_offset, arena_bytes;
    bool overlap;                 /* reduce-scatters of gradients begin in the backward pass, too */
    int prefetch;                 /* gathers of parameters begin early: 0 none, 1 within their layer, 2 in the layer before, too */
    int loss, grad_norm;          /* buffers of the Output ops */
    int *param_buffer;            /* [graph->n_tensors]: PARAM and STATE: the resting buffer; -1 */
    int *param_layer;             /* its absolute layer, -1 */
    int *gradient_buffer;         /* [graph->n_tensors]: PARAM: its final gradient (after reduction, before clipping); -1 */
    int n_rings, *ring;           /* [n_rings]: [transfers->n] of what this stage sends, the buffer whose places (`slots` of
                                   * them, `bytes` apart from `offset` on) are its ring; else -1 */
    struct mpp_memory memory;
};

/* ---- what crosses the borders of stages ---- */

/* A tensor on its way from one stage to another: of each micro-batch, or once per step. */
struct mpp_transfer_line {
    const char *name;             /* of the tensor */
    mpp_id from_tensor, to_tensor; /* in the graphs of the two stages */
    int from, to;                 /* stages */
    int from_chunk, to_chunk;     /* of their work, that sends and that receives it */
    enum mpp_phase phase;         /* FORWARD, BACKWARD; UPDATE: a tied parameter's gradient, once per step */
    bool once;                    /* UPDATE */
    bool adds;                    /* UPDATE: the receiver adds it to its own; else it is the sum, which replaces it */
    enum mpp_dtype dtype;
    int n_dims;
    int64_t dims[MPP_GRAPH_MAX_DIMS]; /* of the whole tensor, at the micro-batch */
    struct mpp_sharding from_sharding, to_sharding; /* on the sender's and on the receiver's mesh; never partial */
    unsigned from_split[MPP_GRAPH_MAX_DIMS], to_split[MPP_GRAPH_MAX_DIMS]; /* the same: axes that split each dimension */
    struct mpp_reshard_step gather; /* what the receiver does then; mask 0: nothing */
    int depth;                    /* places of the sender's ring */
};

struct mpp_transfers {
    int n;
    struct mpp_transfer_line *line; /* those of micro-batches by receiver; then the exchange of tied gradients in its order */
};

/* All transfers of PLAN (derived), of depth 1; none where it has one stage. *OUT lives in ARENA. Tensors are matched by
 * name; one that no stage or several send is an internal error. */
enum mpp_status mpp_transfers_plan(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_plan *plan,
                                   struct mpp_transfers **out) MPP_CHECKED;

/* The forwards and backwards of a stage, in its order, and in how many places its activations lie. */
struct mpp_pipeline_list {
    int64_t n;
    const struct mpp_schedule_event *work; /* [n]; times do not count */
    int n_chunks;
    const int64_t *slots;         /* [n_chunks] micro-batch m of chunk c leaves them in place m % slots[c] */
};

/* Most micro-batches of each chunk that STAGE has in flight under S, to OUT [s->chunks]. */
void mpp_pipeline_slots(const struct mpp_schedule *s, int stage, int64_t *out);

/* Run all stages' lists [N_STAGES] with their sends and receives, then the exchange of tied gradients, as the ranks will: a
 * receive waits, a send waits while its ring is full. Proves that all come to their end, that every receive gets what was
 * sent for its micro-batch, that nothing is left on its way, and that no micro-batch overwrites what backward still needs. (The
 * ranks of a stage run one program and meet in its collectives; each rank waits for a part of those that its stage waits
 * for, so that it comes as far.) What is wrong is reported as an internal error: who waits for whom. */
enum mpp_status mpp_pipeline_run(struct mpp_arena *arena, struct mpp_diag *diag, int n_stages,
                                 const struct mpp_pipeline_list *list, const struct mpp_transfers *transfers) MPP_CHECKED;

/* Choose the depth of each ring: as many places as the sender can be ahead, or one more than there are borders between the
 * two stages if that is less, so that it rarely waits. If that stops the pipeline, more. Then prove PLAN (derived) with it. */
enum mpp_status mpp_pipeline_verify(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_plan *plan,
                                    struct mpp_transfers *transfers) MPP_CHECKED;

/* Lower stage STAGE of PLAN (derived), whose graph is GRAPH, to the rolled local program with its memory planned, for as
 * many micro-batches in flight as the stage has; *OUT lives in ARENA. TRANSFERS: the plan's; the rings of what the stage sends
 * are part of its arena. Sums of gradients begin in the backward pass, and gathers of parameters before they are needed, where
 * the arena stays within CAPACITY_BYTES and grows little by each. */
enum mpp_status mpp_lower(struct mpp_arena *arena, const struct mpp_graph *graph, const struct mpp_plan *plan,
                          int stage, const struct mpp_transfers *transfers, int64_t capacity_bytes,
                          struct mpp_lprog **out) MPP_CHECKED;

/* The same, but nothing begins early: with the smallest arena. */
enum mpp_status mpp_lower_least(struct mpp_arena *arena, const struct mpp_graph *graph, const struct mpp_plan *plan, int stage,
                                const struct mpp_transfers *transfers, struct mpp_lprog **out) MPP_CHECKED;

/* What a GPU takes beside the arena of stage STAGE, whose program is PROG: bounds from shapes, and how many communicators (beside.c).
 * mpp_lower has called it. ARENA: for scratch. */
void mpp_beside_plan(struct mpp_arena *arena, const struct mpp_plan *plan, int stage, const struct mpp_transfers *transfers,
                     const struct mpp_lprog *prog, struct mpp_beside *out);
/* Adds what CLUSTER says of it: NCCL's buffers and the driver's context. */
void mpp_beside_price(const struct mpp_cluster *cluster, struct mpp_beside *b);
/* Bytes by which B (priced) exceeds the part of a device's memory that no plan may fill: so much less room has an arena. */
int64_t mpp_beside_over(const struct mpp_cluster *cluster, const struct mpp_beside *b);

/* The buffer that owns the memory REF means (through aliases and neighbours), with its layer; -1 where it is plain.
 * REF names a layer where its buffer is layered. In memory.c. */
struct mpp_bufref mpp_buffer_owner(const struct mpp_lprog *prog, struct mpp_bufref ref);

/* Its offset in the arena. */
int64_t mpp_buffer_offset(const struct mpp_lprog *prog, struct mpp_bufref ref);

/* Workspace bytes of one compute group on the host (attention blocks, ...). In emit_ops.c. */
int64_t mpp_emit_workspace(const struct mpp_graph *graph, const struct mpp_mesh *mesh, const struct mpp_group *group,
                           struct mpp_split split);

/* Workspace bytes of a reduce-scatter of 16-bit floats [OUTER, EXTENT, INNER] on the host. In memory.c. */
int64_t mpp_memory_half_scatter(int64_t outer, int64_t extent, int64_t inner);

/* May the group's single op write output OUT_INDEX in a mode other than MPP_WRITE? (emit_ops.c: contractions, table
 * gradients and fused reductions can.) */
bool mpp_emit_can_accumulate(const struct mpp_graph *graph, const struct mpp_group *group, int out_index);

/* Write the trainer into DIR (exists, empty): stage0.c, stage0.h, stage0_tables.c, ... for each stage, plan.h, plan.c,
 * kernels.c, kernels.h, Makefile, runtime/. GRAPH: the whole training step; PROGS: [plan->n_stages]. */
enum mpp_status mpp_emit(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                         const struct mpp_cluster *cluster, const struct mpp_plan *plan, const struct mpp_transfers *transfers,
                         struct mpp_lprog *const *progs, const char *dir) MPP_CHECKED;

/* report.txt. GRAPH: the whole training step; PROG: the local program of a plan of one stage, else NULL. */
enum mpp_status mpp_report_write(struct mpp_diag *diag, const struct mpp_graph *graph, const struct mpp_cluster *cluster,
                                 const struct mpp_plan *plan, const struct mpp_lprog *prog, FILE *out) MPP_CHECKED;
/* report.html, of the same: one page with everything in it (docs/reading-a-report.md). */
enum mpp_status mpp_report_html(struct mpp_diag *diag, const struct mpp_graph *graph, const struct mpp_cluster *cluster,
                                const struct mpp_plan *plan, const struct mpp_lprog *prog, FILE *out) MPP_CHECKED;
/* The same page with MEASURED, a JSON object of what a trainer's profile says beside it (inspect/profile.h); NULL: without. */
enum mpp_status mpp_report_html_measured(struct mpp_diag *diag, const struct mpp_graph *graph, const struct mpp_cluster *cluster,
                                         const struct mpp_plan *plan, const struct mpp_lprog *prog, const char *measured,
                                         FILE *out) MPP_CHECKED;
/* graph.ir: the training step as text (docs/ir.md) and what reports say besides. Read back from PATH, what it is for as well: the
 * cluster's name and how many devices. Its model has what reports need: names, precision, optimiser, pins. */
enum mpp_status mpp_report_graph(struct mpp_diag *diag, const struct mpp_graph *graph, const struct mpp_cluster *cluster,
                                 const struct mpp_plan *plan, const struct mpp_lprog *prog, FILE *out) MPP_CHECKED;
enum mpp_status mpp_report_graph_read(struct mpp_arena *arena, struct mpp_diag *diag, const char *path, struct mpp_graph **out,
                                      const char **out_cluster, int64_t *out_devices) MPP_CHECKED;
/* Of report.txt, what a step takes in time and memory. */
enum mpp_status mpp_report_predict(struct mpp_diag *diag, const struct mpp_graph *graph, const struct mpp_cluster *cluster,
                                   const struct mpp_plan *plan, const struct mpp_lprog *prog, FILE *out) MPP_CHECKED;

#endif
