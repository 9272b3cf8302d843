/* op.h - the op table: ir/ops.def as data.
 *
 *     const struct mpp_op_info *info = mpp_op_info(op->kind);
 *     if (info->cls == MPP_CLASS_ELEMENTWISE) ...
 *
 * No code outside the functions named in a row looks at an op's kind, except to build one. */
#ifndef MPP_OP_H
#define MPP_OP_H

#include <stdbool.h>

#include "ir/graph.h"
#include "ir/rule.h"

enum mpp_op_kind {
#define MPP_OP(ID, ...) MPP_OP_##ID,
#include "ir/ops.def"
#undef MPP_OP
    MPP_OP_COUNT
};

enum mpp_op_class { MPP_CLASS_ELEMENTWISE, MPP_CLASS_LAYOUT, MPP_CLASS_REDUCE, MPP_CLASS_CONTRACTION, MPP_CLASS_KERNEL };

/* What an op computes in where the step is not all in f32. */
enum mpp_op_compute { MPP_COMPUTE_AS_IS, MPP_COMPUTE_NARROW, MPP_COMPUTE_LOW, MPP_COMPUTE_WIDE };

/* ---- shape inference: the op's inputs -> its rule ---- */
struct mpp_shape_in {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const struct mpp_graph *g;
    const struct mpp_gop *op;     /* name, loc, path, attrs, inputs (for messages and shapes) */
    const char *text;             /* the row's rule */
};
/* Make *OUT (all factors sized, every operand filled, outputs included) and OUT_DTYPE per output. A conflict
 * names the factor and both operands. */
typedef enum mpp_status mpp_shape_fn(const struct mpp_shape_in *in, struct mpp_rule *out, enum mpp_dtype *out_dtype);

/* ---- gradient: append backward ops ---- */
struct mpp_grad_in {
    struct mpp_graph *g;
    struct mpp_diag *diag;
    mpp_id op;                    /* the forward op */
    const mpp_id *dout;           /* [n_out] gradient of each output; -1: none flows */
    const bool *want;             /* [n_in] is a gradient of this input wanted? */
    mpp_id *din;                  /* [n_in] out: gradient tensors; -1 where none */
};
typedef enum mpp_status mpp_grad_fn(struct mpp_grad_in *in);

/* ---- reference: float64, dense row-major, whole or a shard ---- */
struct mpp_ref_tensor {
    int n_dims;
    int64_t dims[MPP_GRAPH_MAX_DIMS];   /* valid local extents */
    int64_t offset[MPP_GRAPH_MAX_DIMS]; /* global index of the first element per dimension (0 when whole) */
    int64_t global[MPP_GRAPH_MAX_DIMS];
    double *data;                       /* integers are stored as doubles */
};
struct mpp_ref_reduce {           /* how a shard finishes a ~ factor: the test runs all shards in lock step */
    void (*all_reduce)(void *ctx, double *x, int64_t n, bool max);
    void *ctx;                    /* NULL function: not split */
};
struct mpp_ref_in {
    const struct mpp_gop *op;
    const struct mpp_ref_tensor *in;    /* [n_in]; data NULL: left out */
    struct mpp_ref_tensor *out;         /* [n_out], data allocated by the caller */
    struct mpp_ref_reduce internal;     /* over the axes that split ~ factors */
    uint64_t seed;                      /* for Dropout */
    double lr, beta1, beta2, epsilon, momentum, clip_norm; /* for the update ops */
    bool nesterov;
    int64_t step;
};
typedef void mpp_ref_fn(const struct mpp_ref_in *in);

struct mpp_op_info {
    const char *id, *name;
    enum mpp_op_class cls;
    const char *attrs, *rule;
    mpp_shape_fn *shape;
    bool linear;
    double flops_per_point;
    const char *expr;
    mpp_grad_fn *grad;            /* NULL: no gradient flows */
    mpp_ref_fn *ref;
    const char *emit;             /* name of the emitter: "fused" for what runs in fused loops */
    enum mpp_op_compute compute;
};

const struct mpp_op_info *mpp_op_info(int kind);
int mpp_op_find(const char *name); /* -1: no such op */

/* FLOPs of the op at the present batch over its whole (unsplit) iteration space. */
double mpp_op_flops(const struct mpp_graph *g, const struct mpp_gop *op);

/* ---- internal collectives of a split ~ factor, for pricing and reports ---- */
struct mpp_internal {             /* one all-reduce over the axes that split the factor */
    int64_t elements;             /* f32 elements per device: rows x values per row */
    bool max;
    const char *what;             /* "row maximum", "row sums" */
};
/* Fill at most MAX entries for OP when one of its ~ factors is split and its other factors are split by SPLIT on MESH;
 * returns how many there are (0 when no ~ factor is split). */
int mpp_op_internal(const struct mpp_graph *g, const struct mpp_gop *op, const struct mpp_mesh *mesh,
                    struct mpp_split split, struct mpp_internal *out, int max);

#endif
