/* Gradients of index maps, reductions and contractions. */
#include "ir/grad.h"

#include <ctype.h>
#include <string.h>

enum mpp_status mpp_grad_transpose(struct mpp_grad_in *in)
{
    struct mpp_attrs attrs = mpp_attrs_of(in);
    const struct mpp_attr *perm = mpp_attrs_find(&attrs, "perm");
    int64_t inverse[MPP_GRAPH_MAX_DIMS];
    for (int d = 0; d < perm->n; d++)
        inverse[perm->ints[d] < 0 ? perm->ints[d] + perm->n : perm->ints[d]] = d;
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    attrs = MPP_ATTRS(in->g->arena, mpp_attr_ints("perm", perm->n, inverse));
    return mpp_gradient_end(&gr, mpp_gradient_op1(&gr, MPP_OP_TRANSPOSE, in->dout[0], attrs));
}

/* Append a Reshape or Expand of VALUE to the shape DIMS. */
static mpp_id to_shape(struct mpp_gradient *gr, int kind, mpp_id value, int n, const struct mpp_size *dims)
{
    return mpp_gradient_op1(gr, kind, value, MPP_ATTRS(gr->in->g->arena, mpp_attr_dims("shape", n, dims)));
}

enum mpp_status mpp_grad_reshape(struct mpp_grad_in *in)
{
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    struct mpp_gtensor x = in->g->tensors[mpp_gradient_x(in, 0)];
    return mpp_gradient_end(&gr, to_shape(&gr, MPP_OP_RESHAPE, in->dout[0], x.n_dims, x.dims));
}

enum mpp_status mpp_grad_expand(struct mpp_grad_in *in)
{
    return mpp_grad_identity(in);
}

static int64_t axis_from_front(const struct mpp_attrs *attrs, int n_dims)
{
    int64_t axis = mpp_attrs_int(attrs, "axis", 0);
    return axis < 0 ? axis + n_dims : axis;
}

/* Concat of the parts' gradients; a part that nothing uses counts as zeros. */
enum mpp_status mpp_grad_split(struct mpp_grad_in *in)
{
    struct mpp_graph *g = in->g;
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    int n = g->ops[in->op].n_out, n_dims = g->tensors[mpp_gradient_x(in, 0)].n_dims;
    mpp_id *part = mpp_arena_array(g->arena, n, mpp_id);
    bool stack = g->tensors[mpp_gradient_y(in, 0)].n_dims < n_dims;
    for (int k = 0; k < n; k++) {
        part[k] = in->dout[k];
        if (part[k] >= 0)
            continue;
        struct mpp_gtensor y = g->tensors[mpp_gradient_y(in, k)];
        struct mpp_attrs zeros = MPP_ATTRS(g->arena, mpp_attr_dims("shape", y.n_dims, y.dims), mpp_attr_float("value", 0));
        mpp_id op = mpp_gradient_op(&gr, MPP_OP_CONSTANT, 0, NULL, zeros);
        if (op < 0)
            return MPP_INVALID;
        part[k] = g->ops[op].out[0];
    }
    struct mpp_attrs attrs = mpp_attrs_of(in);
    attrs = MPP_ATTRS(g->arena, mpp_attr_int("axis", axis_from_front(&attrs, n_dims)), mpp_attr_bool("stack", stack));
    mpp_id op = mpp_gradient_op(&gr, MPP_OP_CONCAT, n, part, attrs);
    return mpp_gradient_end(&gr, op < 0 ? -1 : g->ops[op].out[0]);
}

/* Split: into single entries, which drops the dimension, or into slices of the operands' extents. */
enum mpp_status mpp_grad_concat(struct mpp_grad_in *in)
{
    struct mpp_graph *g = in->g;
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    struct mpp_attrs attrs = mpp_attrs_of(in);
    int n = g->ops[in->op].n_in;
    int64_t axis = axis_from_front(&attrs, g->tensors[mpp_gradient_y(in, 0)].n_dims);
    if (mpp_attrs_int(&attrs, "stack", 0) != 0) {
        attrs = MPP_ATTRS(g->arena, mpp_attr_int("axis", axis), mpp_attr_int("num_outputs", n));
    } else {
        int64_t *sizes = mpp_arena_array(g->arena, n, int64_t);
        for (int k = 0; k < n; k++)
            sizes[k] = g->tensors[mpp_gradient_x(in, k)].dims[axis].size;
        attrs = MPP_ATTRS(g->arena, mpp_attr_int("axis", axis), mpp_attr_int("num_outputs", n),
                          mpp_attr_ints("sizes", n, sizes));
    }
    mpp_id op = mpp_gradient_op(&gr, MPP_OP_SPLIT, 1, in->dout, attrs);
    if (op < 0)
        return MPP_INVALID;
    for (int k = 0; k < n; k++)
        if (in->want[k])
            in->din[k] = g->ops[op].out[k];
    return MPP_OK;
}

/* ---- reductions ---- */

/* T (the reduced shape) with its dropped dimensions put back as extents of 1. */
static mpp_id keep_dims(struct mpp_gradient *gr, mpp_id t)
{
    struct mpp_graph *g = gr->in->g;
    struct mpp_attrs attrs = mpp_attrs_of(gr->in);
    const struct mpp_attr *axes = mpp_attrs_find(&attrs, "axes");
    struct mpp_gtensor x = g->tensors[mpp_gradient_x(gr->in, 0)];
    int leading = 0;
    for (int i = 0; i < axes->n; i++) {
        int64_t axis = axes->ints[i] < 0 ? axes->ints[i] + x.n_dims : axes->ints[i];
        x.dims[axis] = (struct mpp_size){1, 0, "1"};
        leading += axis < axes->n;
    }
    if (mpp_attrs_int(&attrs, "keepdims", 0) != 0 || leading == axes->n)
        return t; /* broadcasting aligns it as it is */
    return to_shape(gr, MPP_OP_RESHAPE, t, x.n_dims, x.dims);
}

static enum mpp_status spread(struct mpp_grad_in *in, double factor)
{
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    mpp_id t = in->dout[0];
    if (factor != 1)
        t = mpp_gradient_op1(&gr, MPP_OP_SCALE, t, MPP_ATTRS(in->g->arena, mpp_attr_float("value", factor)));
    t = t < 0 ? -1 : keep_dims(&gr, t);
    struct mpp_gtensor x = in->g->tensors[mpp_gradient_x(in, 0)];
    return mpp_gradient_end(&gr, to_shape(&gr, MPP_OP_EXPAND, t, x.n_dims, x.dims));
}

enum mpp_status mpp_grad_reduce_sum(struct mpp_grad_in *in)
{
    return spread(in, 1);
}

/* A mean over the batch is over the step's batch, not the micro-batch's. */
enum mpp_status mpp_grad_reduce_mean(struct mpp_grad_in *in)
{
    struct mpp_attrs attrs = mpp_attrs_of(in);
    const struct mpp_attr *axes = mpp_attrs_find(&attrs, "axes");
    const struct mpp_gtensor *x = &in->g->tensors[mpp_gradient_x(in, 0)];
    double count = 1;
    for (int i = 0; i < axes->n; i++) {
        struct mpp_size s = x->dims[axes->ints[i] < 0 ? axes->ints[i] + x->n_dims : axes->ints[i]];
        count *= s.per_batch > 0 ? (double)(s.per_batch * in->g->global_batch) : (double)s.size;
    }
    return spread(in, 1 / count);
}

/* Every element equal to the maximum takes an even share: m = step(x, y) is 1/2 there and 0 elsewhere. */
enum mpp_status mpp_grad_reduce_max(struct mpp_grad_in *in)
{
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    struct mpp_attrs attrs = mpp_attrs_of(in), none = mpp_attrs_none();
    const struct mpp_attr *axes = mpp_attrs_find(&attrs, "axes");
    mpp_id y = keep_dims(&gr, mpp_gradient_y(in, 0)), dy = keep_dims(&gr, in->dout[0]);
    mpp_id m = mpp_gradient_op2(&gr, MPP_OP_STEP, mpp_gradient_x(in, 0), y, none);
    bool keep = y != mpp_gradient_y(in, 0) || mpp_attrs_int(&attrs, "keepdims", 0) != 0;
    mpp_id n = mpp_gradient_op1(&gr, MPP_OP_REDUCE_SUM, m, mpp_attrs_axes(in->g->arena, axes->n, axes->ints, keep));
    mpp_id share = mpp_gradient_op2(&gr, MPP_OP_DIV, dy, n, none);
    return mpp_gradient_end(&gr, mpp_gradient_op2(&gr, MPP_OP_MUL, m, share, none));
}

/* ---- contractions ---- */

/* Letters between FROM and the next ',' or '-' (or the end), without spaces. */
static const char *letters(const char *from, char *out)
{
    while (*from && *from != ',' && *from != '-') {
        if (isalpha((unsigned char)*from))
            *out++ = *from;
        from++;
    }
    *out = 0;
    return from;
}

/* da = dy b, db = a dy, with the letters moved about. */
enum mpp_status mpp_grad_einsum(struct mpp_grad_in *in)
{
    struct mpp_attrs attrs = mpp_attrs_of(in);
    char a[2 * MPP_GRAPH_MAX_DIMS], b[2 * MPP_GRAPH_MAX_DIMS], c[2 * MPP_GRAPH_MAX_DIMS];
    const char *p = letters(mpp_attrs_string(&attrs, "equation", ""), a);
    p = letters(p + 1, b);
    letters(p + 2, c);
    struct mpp_arena *arena = in->g->arena;
    struct mpp_gradient ga = mpp_gradient_begin(in, 0), gb = mpp_gradient_begin(in, 1);
    if (in->want[0]) {
        attrs = MPP_ATTRS(arena, mpp_attr_string("equation", mpp_arena_printf(arena, "%s,%s->%s", c, b, a)));
        MPP_TRY(mpp_gradient_end(&ga, mpp_gradient_op2(&ga, MPP_OP_EINSUM, in->dout[0], mpp_gradient_x(in, 1), attrs)));
    }
    if (in->want[1]) {
        attrs = MPP_ATTRS(arena, mpp_attr_string("equation", mpp_arena_printf(arena, "%s,%s->%s", a, c, b)));
        MPP_TRY(mpp_gradient_end(&gb, mpp_gradient_op2(&gb, MPP_OP_EINSUM, mpp_gradient_x(in, 0), in->dout[0], attrs)));
    }
    return MPP_OK;
}
