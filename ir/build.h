/* build.h - the builder that layers append ops with (private to ir/).
 *
 *     mpp_id y = mpp_build_op(b, MPP_OP_EINSUM, NULL, "product", 2, (mpp_id[]){x, w}, attrs);   // "<item>.product"
 *     out[0] = mpp_build_final(b, MPP_OP_ADD, "bias", 2, (mpp_id[]){y, bias}, none, NULL);    // the item's output
 *     return mpp_build_status(out[0]);
 *
 * Failures are passed on: an op with a failed input is not made and is a failure itself, silently. */
#ifndef MPP_BUILD_H
#define MPP_BUILD_H

#include "ir/graph_edit.h"
#include "ir/layers.h"
#include "ir/names.h"
#include "ir/op.h"
#include "ir/shape.h"

enum { MPP_BUILD_MAX_IO = 64 };
#define MPP_BUILD_MAX_ELEMENTS ((int64_t)1 << 56) /* of all tensors: bytes and sums stay far from overflow */
enum { MPP_BUILD_FAILED = -2 };  /* in place of a tensor: reported before, say no more */

struct mpp_builder {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const struct mpp_model *model;
    struct mpp_graph *g;
    struct mpp_names *values;     /* value name of the file -> tensor, or FAILED */
    struct mpp_names *params;     /* published name -> PARAM tensor */
    struct mpp_names *taken;      /* names of tensors, and of all values to come */
    struct mpp_names *taken_ops;  /* names of ops, and of all items to come */
    struct mpp_names *faulty;     /* elements of the file that were reported: not again for each repetition */
    const struct mpp_item *item;
    enum mpp_phase phase;         /* of the ops appended now */
    int64_t elements;             /* of all tensors so far */
    int64_t streams;              /* random streams handed out */
};

/* Append an op named "<item>.SUFFIX" (NULL: "<item>") whose first output is named "<item>.OUT". */
mpp_id mpp_build_op(struct mpp_builder *b, int kind, const char *suffix, const char *out, int n_in, const mpp_id *in,
                    struct mpp_attrs attrs);
/* The same, whose first output is the item's; further ones are "<item>.EXTRA[k - 1]" (EXTRA NULL: none). */
mpp_id mpp_build_final(struct mpp_builder *b, int kind, const char *suffix, int n_in, const mpp_id *in,
                       struct mpp_attrs attrs, const char *const *extra);
/* The same, all of whose outputs are the item's. */
enum mpp_status mpp_build_all(struct mpp_builder *b, int kind, int n_in, const mpp_id *in, struct mpp_attrs attrs,
                              int *out_n, mpp_id *out);
/* A scalar constant named "<item>.SUFFIX". */
mpp_id mpp_build_constant(struct mpp_builder *b, const char *suffix, double value);

static inline enum mpp_status mpp_build_status(mpp_id id)
{
    return id < 0 ? MPP_INVALID : MPP_OK;
}

/* Report a fault of the present item, with its call path. */
void mpp_build_error(struct mpp_builder *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

struct mpp_param_spec {
    const char *suffix;           /* "weight": published as "<item>.weight"; NULL: the item is the parameter */
    const char *published;        /* overrides that; NULL: no */
    int n_dims;
    const struct mpp_size *dims;  /* as the ops use it */
    int n_published;
    int64_t published_dims[MPP_GRAPH_MAX_DIMS];
    const char *init;             /* as mpp_attrs_read gives an attribute of type init: "normal(0,0.02)" */
    int64_t fan_in;               /* for kaiming_uniform */
};

/* A new parameter; -1 after a diagnostic (name taken, bad init). */
mpp_id mpp_build_param(struct mpp_builder *b, const struct mpp_param_spec *spec);
/* The existing parameter published as NAME, with a hint when there is none. */
mpp_id mpp_build_tied(struct mpp_builder *b, const char *name);

/* Tensor and dimension shorthands. */
static inline const struct mpp_gtensor *mpp_build_tensor(const struct mpp_builder *b, mpp_id id)
{
    return &b->g->tensors[id];
}
/* Elements of N dims when the batch is the global one. */
int64_t mpp_build_global_count(const struct mpp_builder *b, const struct mpp_size *dims, int n);
/* AXIS of an N-dimensional tensor from 0; -1 after a diagnostic. */
int mpp_build_axis(struct mpp_builder *b, int64_t axis, int n);

/* ---- the layers, by file ---- */
mpp_layer_fn mpp_layer_linear, mpp_layer_embedding, mpp_layer_position_embedding, mpp_layer_layer_normalization,
    mpp_layer_rms_normalization, mpp_layer_attention, mpp_layer_parameter, mpp_layer_dropout;   /* layers_weights.c */
mpp_layer_fn mpp_layer_direct, mpp_layer_constant, mpp_layer_matmul, mpp_layer_softmax, mpp_layer_reduce,
    mpp_layer_reduce_mean, mpp_layer_split, mpp_layer_concat, mpp_layer_transpose, mpp_layer_reshape,
    mpp_layer_flatten, mpp_layer_squeeze, mpp_layer_unsqueeze, mpp_layer_expand, mpp_layer_pow, mpp_layer_swish,
    mpp_layer_swiglu, mpp_layer_clip;                                                           /* layers_basic.c */
mpp_layer_fn mpp_layer_cross_entropy, mpp_layer_mean_squared_error;                             /* layers_loss.c */

#endif
