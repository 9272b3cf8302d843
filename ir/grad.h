/* grad.h - how gradients append backward ops (private to ir/).
 *
 *     struct mpp_gradient gr = mpp_gradient_begin(in, 0);                 // gradient of input 0
 *     mpp_id t = mpp_gradient_op2(&gr, MPP_OP_MUL, dy, x, none);          // its tensor; -1 after a diagnostic
 *     return mpp_gradient_end(&gr, t);                                    // sums over broadcast dimensions
 *
 * Ops are named by mpp_gradient_name, with ".2", ".3" for further ops of the same gradient. */
#ifndef MPP_GRAD_H
#define MPP_GRAD_H

#include "ir/graph_edit.h"
#include "ir/op.h"
#include "ir/op_table.h" /* mpp_grad_<x>, one per grad column of ops.def */

struct mpp_gradient {
    struct mpp_grad_in *in;
    int input;                    /* whose gradient */
    int n_ops;                    /* appended so far */
};

/* "<forward>.grad_weight" for a parameter, "<forward>.grad_x" for an only other operand, else "<forward>.grad_b". */
const char *mpp_gradient_name(const struct mpp_grad_in *in, int input);

struct mpp_gradient mpp_gradient_begin(struct mpp_grad_in *in, int input);

/* Append an op; returns its first output, or -1 (also when an input is -1 after an earlier failure). */
mpp_id mpp_gradient_op1(struct mpp_gradient *gr, int kind, mpp_id a, struct mpp_attrs attrs);
mpp_id mpp_gradient_op2(struct mpp_gradient *gr, int kind, mpp_id a, mpp_id b, struct mpp_attrs attrs);

/* Append an op whose outputs and optional inputs are the caller's business; returns the op or -1. */
mpp_id mpp_gradient_op(struct mpp_gradient *gr, int kind, int n_in, const mpp_id *operands, struct mpp_attrs attrs);

/* VALUE becomes the gradient of the input, summed over the dimensions along which the input was broadcast. */
enum mpp_status mpp_gradient_end(struct mpp_gradient *gr, mpp_id value);

/* Appended to and fully described by IN: input tensor K, output tensor K, and its gradient. */
mpp_id mpp_gradient_x(const struct mpp_grad_in *in, int k);
mpp_id mpp_gradient_y(const struct mpp_grad_in *in, int k);

/* The empty attribute list; the forward op's own; a reduction's. Others are made by MPP_ATTRS (graph_edit.h). */
struct mpp_attrs mpp_attrs_none(void);
struct mpp_attrs mpp_attrs_of(const struct mpp_grad_in *in);
struct mpp_attrs mpp_attrs_axes(struct mpp_arena *arena, int n, const int64_t *axes, bool keepdims);

#endif
