/* graph.h - the training step as a graph: tensors, ops, phases.
 *
 *     struct mpp_graph *g;
 *     MPP_TRY(mpp_graph_build(arena, diag, model, &g));          // forward ops from the model file
 *     MPP_TRY(mpp_passes_run(&ctx, g));                          // autodiff, optimiser, fusion (pass.h)
 *     for (mpp_id i = 0; i < g->n_ops; i++) ... g->ops[i] ...    // in execution order
 *
 * Tensors and ops are named by typed indices. Shapes are symbolic in the batch: mpp_graph_set_batch
 * instantiates the micro-batch. A tensor is written once (SSA); an op that updates state in place has an
 * output tensor whose `updates` names the state tensor that it replaces. */
#ifndef MPP_GRAPH_H
#define MPP_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "ir/arena.h"
#include "ir/diag.h"
#include "ir/model.h"
#include "ir/status.h"

typedef int32_t mpp_id;           /* of a tensor, an op or a group, by context; -1: none */

#define MPP_GRAPH_MAX_DIMS 6

enum mpp_dtype { MPP_F32, MPP_I32, MPP_BF16, MPP_F16, MPP_N_DTYPES };
int mpp_dtype_bytes(enum mpp_dtype t);
const char *mpp_dtype_name(enum mpp_dtype t); /* "f32", "i32", "bf16", "f16" */
static inline bool mpp_dtype_is_float(enum mpp_dtype t)
{
    return t != MPP_I32;
}

enum mpp_phase {
    MPP_PHASE_PROLOGUE,           /* per micro-batch, before the first forward of the step */
    MPP_PHASE_FORWARD,            /* per micro-batch */
    MPP_PHASE_BACKWARD,           /* per micro-batch */
    MPP_PHASE_UPDATE,             /* once per step */
};

enum mpp_role {
    MPP_ROLE_VALUE,               /* made and consumed within the step */
    MPP_ROLE_INPUT,               /* data of a micro-batch */
    MPP_ROLE_PARAM,               /* lives across steps */
    MPP_ROLE_STATE,               /* optimiser state; lives across steps */
    MPP_ROLE_ACCUM,               /* output of Accumulate: a sum over micro-batches, live until the update */
};

struct mpp_param {                /* of a tensor with role PARAM (and, by `param`, of its state and gradient) */
    const char *published;        /* "h.0.attn.c_attn.weight" */
    int n_published;
    int64_t published_dims[MPP_GRAPH_MAX_DIMS]; /* the same elements in the same order */
    const char *init;             /* "normal", "uniform", "zeros", "ones", "constant" */
    double init_a, init_b;        /* mean, std; low, high; value */
    double weight_decay;
    mpp_id gradient;              /* its ACCUM tensor after autodiff; -1: none (then the scale of the loss, or a count) */
    mpp_id master;                /* the STATE tensor that holds it in f32, where it is rounded for use; -1: itself */
};

struct mpp_gtensor {
    const char *name;             /* unique: "h.0.attn.c_attn", "h.0.attn.c_attn.grad" */
    enum mpp_dtype dtype;
    enum mpp_role role;
    int n_dims;
    struct mpp_size dims[MPP_GRAPH_MAX_DIMS];
    mpp_id op, out_index;         /* producer; -1: none (inputs, parameters, state) */
    mpp_id updates;               /* the PARAM or STATE tensor this replaces at the end of the step; -1 */
    mpp_id param;                 /* the PARAM tensor this belongs to (itself, its ACCUM, its STATE); -1 */
    struct mpp_param *info;       /* role PARAM only */
    const struct mpp_model_input *input; /* role INPUT only */
    int repeat, index;            /* layer it belongs to, from its op or parameter's first use; -1 */
};

struct mpp_rule;                  /* rule.h */
struct mpp_names;                 /* names.h */

struct mpp_gop {
    int kind;                     /* enum mpp_op_kind (op.h) */
    const char *name;             /* "h.0.attn.c_attn", backward "h.0.attn.c_attn.grad_x" */
    const char *scope;
    struct mpp_loc loc;
    const char *path;             /* call path for messages */
    const char *item_type;        /* type of the model file's element, "Linear"; NULL: made by a pass */
    enum mpp_phase phase;
    int repeat, index;            /* outermost repeat and iteration; -1: none */
    int chunk;                    /* forward and backward, of a stage that runs several parts of the model in turns: which; 0 */
    const char *repeat_name;
    int n_in, n_out;
    mpp_id *in, *out;             /* in may hold -1 (optional operand left out) */
    struct mpp_attrs attrs;
    const struct mpp_rule *rule;  /* factors and how operands index them; made by shape inference */
    mpp_id forward;               /* backward ops: the forward op; -1 */
};

/* Ops that run as one kernel and are planned as one node: elementwise chains with their broadcasts and
 * reductions. Every op is in exactly one group; most groups hold one op. Made by the pass "fuse". */
struct mpp_group {
    int n_ops;
    mpp_id *ops;                  /* execution order */
    enum mpp_phase phase;
    int n_in, n_out;
    mpp_id *in, *out;             /* tensors that cross the group's border: each once in fused groups; a kernel's
                                   * group has its op's own operands (in may hold -1, or a tensor twice) */
    const struct mpp_rule *rule;  /* of the whole group: operands are in[], then out[] */
};

struct mpp_graph {
    struct mpp_arena *arena;
    const struct mpp_model *model;
    int64_t global_batch, batch;  /* batch: of the micro-batch that sizes refer to now */
    int n_tensors, n_ops, n_groups;
    size_t cap_tensors, cap_ops;
    struct mpp_gtensor *tensors;
    struct mpp_gop *ops;          /* execution order: prologue, forward, backward, update */
    struct mpp_group *groups;     /* execution order; NULL before "fuse" */
    mpp_id loss;                  /* scalar of one micro-batch, already normalised by the step's global count */
    mpp_id loss_total;            /* ACCUM of it; -1 before autodiff */
    mpp_id grad_norm;             /* scalar in the update; -1 */
    mpp_id loss_scale;            /* PARAM: what gradients are multiplied by until the update; -1: 1 */
    int64_t tokens_per_sample;    /* elements per sample of the first input; 1 where it holds no tokens (f32) */
    bool whole_batch;             /* the loss is no sum over samples: a step must be one micro-batch (ir/additive.c) */
    bool unfused;                 /* every op is a kernel of its own: "fuse" joins none (mpp_pass_unfuse) */
    struct mpp_names *tensor_names, *op_names; /* taken: of all tensors; of the ops up to the forward phase */
};

/* Build the forward graph of MODEL in ARENA, with shapes, rules and parameters. Reports every fault. */
enum mpp_status mpp_graph_build(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_model *model,
                                struct mpp_graph **out) MPP_CHECKED;

/* Is T a parameter of the model? (The precision pass adds some that hold the loss's scale and counts.) */
bool mpp_graph_is_weight(const struct mpp_graph *g, mpp_id t);

/* Elements of all parameters, as published: 124,439,808 for GPT-2 small. */
int64_t mpp_graph_param_count(const struct mpp_graph *g);

/* Instantiate a micro-batch of BATCH samples: rewrites the sizes of all tensors and rule factors that depend on it. */
void mpp_graph_set_batch(struct mpp_graph *g, int64_t batch);

/* Append a tensor of role VALUE; dims are copied. Where NAME is taken it is called NAME_2, NAME_3, ... Returns its id.
 * (Invalidates pointers into g->tensors.) */
mpp_id mpp_graph_add_tensor(struct mpp_graph *g, const char *name, enum mpp_dtype dtype, int n_dims,
                            const struct mpp_size *dims);

/* Append an op of KIND with inputs IN and attributes, infer its rule and output shapes, make its output
 * tensors (named NAME, or NAME:k for k > 0 when OUT_NAMES is NULL). PROTO gives name, scope, loc, path, phase,
 * repeat, index, forward; up to the forward phase a name that is taken is numbered. Conflicts are reported to DIAG;
 * then -1 is returned. */
mpp_id mpp_graph_add_op(struct mpp_graph *g, struct mpp_diag *diag, int kind, const struct mpp_gop *proto, int n_in,
                        const mpp_id *in, struct mpp_attrs attrs, const char *const *out_names);

/* Elements and bytes of a tensor at the present batch (global shape). */
int64_t mpp_tensor_count(const struct mpp_gtensor *t);
int64_t mpp_tensor_bytes(const struct mpp_gtensor *t);

/* Check every invariant (SSA, order, shapes against rules, phases, state updated once). A violation is a bug:
 * it is reported with the pass's NAME and MPP_INVALID returned. */
enum mpp_status mpp_graph_verify(const struct mpp_graph *g, struct mpp_diag *diag, const char *pass) MPP_CHECKED;

/* Print the graph; mpp_graph_parse reads exactly this form back (docs/ir.md). */
void mpp_graph_print(const struct mpp_graph *g, FILE *out);
enum mpp_status mpp_graph_parse(struct mpp_arena *arena, struct mpp_diag *diag, const char *name, const char *text,
                                size_t size, struct mpp_graph **out) MPP_CHECKED;

#endif
