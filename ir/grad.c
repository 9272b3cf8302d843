#include "ir/grad.h"

#include <math.h>
#include <string.h>

/* ---- attributes ---- */

struct mpp_attrs mpp_attrs_none(void)
{
    return (struct mpp_attrs){0};
}

struct mpp_attrs mpp_attrs_of(const struct mpp_grad_in *in)
{
    return in->g->ops[in->op].attrs;
}

struct mpp_attrs mpp_attrs_axes(struct mpp_arena *arena, int n, const int64_t *axes, bool keepdims)
{
    return MPP_ATTRS(arena, mpp_attr_ints("axes", n, axes), mpp_attr_bool("keepdims", keepdims));
}

/* ---- appending ops ---- */

mpp_id mpp_gradient_x(const struct mpp_grad_in *in, int k)
{
    return in->g->ops[in->op].in[k];
}

mpp_id mpp_gradient_y(const struct mpp_grad_in *in, int k)
{
    return in->g->ops[in->op].out[k];
}

/* What a parameter calls itself ("weight"), or NULL. */
static const char *param_label(const struct mpp_graph *g, mpp_id t)
{
    if (t < 0 || g->tensors[t].role != MPP_ROLE_PARAM)
        return NULL;
    const char *dot = strrchr(g->tensors[t].name, '.');
    return dot ? dot + 1 : g->tensors[t].name;
}

const char *mpp_gradient_name(const struct mpp_grad_in *in, int input)
{
    const struct mpp_graph *g = in->g;
    const struct mpp_gop *op = &g->ops[in->op];
    const char *label = param_label(g, op->in[input]);
    bool unique = true, only_value = !label;
    for (int k = 0; k < op->n_in; k++) {
        const char *other = k == input ? NULL : param_label(g, op->in[k]);
        unique = unique && !(label && other && strcmp(label, other) == 0);
        only_value = only_value && (k == input || other || op->in[k] < 0 || g->tensors[op->in[k]].dtype != MPP_F32);
    }
    if (label && unique && strcmp(label, "x") != 0 && label[1] != 0)
        return mpp_arena_printf(g->arena, "%s.grad_%s", op->name, label);
    if (only_value)
        return mpp_arena_printf(g->arena, "%s.grad_x", op->name);
    return mpp_arena_printf(g->arena, "%s.grad_%c", op->name, 'a' + input);
}

struct mpp_gradient mpp_gradient_begin(struct mpp_grad_in *in, int input)
{
    return (struct mpp_gradient){.in = in, .input = input};
}

mpp_id mpp_gradient_op(struct mpp_gradient *gr, int kind, int n_in, const mpp_id *operands, struct mpp_attrs attrs)
{
    struct mpp_graph *g = gr->in->g;
    struct mpp_gop proto = g->ops[gr->in->op];
    proto.phase = MPP_PHASE_BACKWARD;
    proto.forward = gr->in->op;
    proto.item_type = NULL;
    proto.name = mpp_gradient_name(gr->in, gr->input);
    if (gr->n_ops++ > 0)
        proto.name = mpp_arena_printf(g->arena, "%s.%d", proto.name, gr->n_ops);
    return mpp_graph_add_op(g, gr->in->diag, kind, &proto, n_in, operands, attrs, NULL);
}

mpp_id mpp_gradient_op2(struct mpp_gradient *gr, int kind, mpp_id a, mpp_id b, struct mpp_attrs attrs)
{
    if (a < 0 || b < 0)
        return -1;
    mpp_id op = mpp_gradient_op(gr, kind, 2, (mpp_id[]){a, b}, attrs);
    return op < 0 ? -1 : gr->in->g->ops[op].out[0];
}

mpp_id mpp_gradient_op1(struct mpp_gradient *gr, int kind, mpp_id a, struct mpp_attrs attrs)
{
    if (a < 0)
        return -1;
    mpp_id op = mpp_gradient_op(gr, kind, 1, &a, attrs);
    return op < 0 ? -1 : gr->in->g->ops[op].out[0];
}

static bool is_one(struct mpp_size s)
{
    return s.size == 1 && s.per_batch == 0;
}

enum mpp_status mpp_gradient_end(struct mpp_gradient *gr, mpp_id value)
{
    struct mpp_graph *g = gr->in->g;
    if (value < 0)
        return MPP_INVALID;
    struct mpp_gtensor x = g->tensors[mpp_gradient_x(gr->in, gr->input)], t = g->tensors[value];
    int64_t axes[MPP_GRAPH_MAX_DIMS];
    int lead = t.n_dims - x.n_dims, n = 0;
    for (; n < lead; n++)
        axes[n] = n;
    if (n > 0)
        value = mpp_gradient_op1(gr, MPP_OP_REDUCE_SUM, value, mpp_attrs_axes(g->arena, n, axes, false));
    n = 0;
    for (int d = 0; d < x.n_dims; d++)
        if (is_one(x.dims[d]) && !is_one(t.dims[d + lead]))
            axes[n++] = d;
    if (n > 0)
        value = mpp_gradient_op1(gr, MPP_OP_REDUCE_SUM, value, mpp_attrs_axes(g->arena, n, axes, true));
    gr->in->din[gr->input] = value;
    return value < 0 ? MPP_INVALID : MPP_OK;
}

/* ---- sums ---- */

enum mpp_status mpp_grad_identity(struct mpp_grad_in *in)
{
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    return mpp_gradient_end(&gr, in->dout[0]);
}

enum mpp_status mpp_grad_sum(struct mpp_grad_in *in)
{
    for (int k = 0; k < in->g->ops[in->op].n_in; k++) {
        struct mpp_gradient gr = mpp_gradient_begin(in, k);
        if (in->want[k])
            MPP_TRY(mpp_gradient_end(&gr, in->dout[0]));
    }
    return MPP_OK;
}

enum mpp_status mpp_grad_add(struct mpp_grad_in *in)
{
    return mpp_grad_sum(in);
}

enum mpp_status mpp_grad_sub(struct mpp_grad_in *in)
{
    struct mpp_gradient a = mpp_gradient_begin(in, 0), b = mpp_gradient_begin(in, 1);
    if (in->want[0])
        MPP_TRY(mpp_gradient_end(&a, in->dout[0]));
    if (in->want[1])
        MPP_TRY(mpp_gradient_end(&b, mpp_gradient_op1(&b, MPP_OP_NEG, in->dout[0], mpp_attrs_none())));
    return MPP_OK;
}

/* ---- products ---- */

enum mpp_status mpp_grad_mul(struct mpp_grad_in *in)
{
    for (int k = 0; k < 2; k++) {
        struct mpp_gradient gr = mpp_gradient_begin(in, k);
        if (in->want[k])
            MPP_TRY(mpp_gradient_end(&gr, mpp_gradient_op2(&gr, MPP_OP_MUL, in->dout[0], mpp_gradient_x(in, 1 - k),
                                                           mpp_attrs_none())));
    }
    return MPP_OK;
}

/* y = a / b: da = dy / b, db = -(dy / b) y. */
enum mpp_status mpp_grad_div(struct mpp_grad_in *in)
{
    struct mpp_attrs none = mpp_attrs_none();
    struct mpp_gradient a = mpp_gradient_begin(in, 0), b = mpp_gradient_begin(in, 1);
    if (in->want[0])
        MPP_TRY(mpp_gradient_end(&a, mpp_gradient_op2(&a, MPP_OP_DIV, in->dout[0], mpp_gradient_x(in, 1), none)));
    if (in->want[1]) {
        mpp_id t = mpp_gradient_op2(&b, MPP_OP_DIV, in->dout[0], mpp_gradient_x(in, 1), none);
        t = mpp_gradient_op2(&b, MPP_OP_MUL, t, mpp_gradient_y(in, 0), none);
        MPP_TRY(mpp_gradient_end(&b, mpp_gradient_op1(&b, MPP_OP_NEG, t, none)));
    }
    return MPP_OK;
}

/* The larger (Max) or smaller (Min) operand takes the gradient; equal ones share it. */
enum mpp_status mpp_grad_min_max(struct mpp_grad_in *in)
{
    bool max = in->g->ops[in->op].kind == MPP_OP_MAX;
    for (int k = 0; k < 2; k++) {
        struct mpp_gradient gr = mpp_gradient_begin(in, k);
        if (!in->want[k])
            continue;
        mpp_id own = mpp_gradient_x(in, k), other = mpp_gradient_x(in, 1 - k);
        mpp_id t = mpp_gradient_op2(&gr, MPP_OP_STEP, max ? own : other, max ? other : own, mpp_attrs_none());
        MPP_TRY(mpp_gradient_end(&gr, mpp_gradient_op2(&gr, MPP_OP_MUL, in->dout[0], t, mpp_attrs_none())));
    }
    return MPP_OK;
}

/* ---- functions of one operand ---- */

static enum mpp_status unary(struct mpp_grad_in *in, int kind, struct mpp_attrs attrs)
{
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    return mpp_gradient_end(&gr, mpp_gradient_op1(&gr, kind, in->dout[0], attrs));
}

/* kind(x, dy) */
static enum mpp_status of_input(struct mpp_grad_in *in, int kind, struct mpp_attrs attrs)
{
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    return mpp_gradient_end(&gr, mpp_gradient_op2(&gr, kind, mpp_gradient_x(in, 0), in->dout[0], attrs));
}

enum mpp_status mpp_grad_scale(struct mpp_grad_in *in)
{
    return unary(in, MPP_OP_SCALE, mpp_attrs_of(in));
}

enum mpp_status mpp_grad_neg(struct mpp_grad_in *in)
{
    return unary(in, MPP_OP_NEG, mpp_attrs_none());
}

/* The same stream and element draw the same number again. */
enum mpp_status mpp_grad_dropout(struct mpp_grad_in *in)
{
    return unary(in, MPP_OP_DROPOUT, mpp_attrs_of(in));
}

enum mpp_status mpp_grad_relu(struct mpp_grad_in *in)
{
    return of_input(in, MPP_OP_RELU_GRAD, mpp_attrs_none());
}

enum mpp_status mpp_grad_gelu(struct mpp_grad_in *in)
{
    return of_input(in, MPP_OP_GELU_GRAD, mpp_attrs_of(in));
}

enum mpp_status mpp_grad_exp(struct mpp_grad_in *in)
{
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    mpp_id y = mpp_gradient_y(in, 0);
    return mpp_gradient_end(&gr, mpp_gradient_op2(&gr, MPP_OP_MUL, in->dout[0], y, mpp_attrs_none()));
}

enum mpp_status mpp_grad_log(struct mpp_grad_in *in)
{
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    mpp_id x = mpp_gradient_x(in, 0);
    return mpp_gradient_end(&gr, mpp_gradient_op2(&gr, MPP_OP_DIV, in->dout[0], x, mpp_attrs_none()));
}

/* dx = dy / (2 y) */
enum mpp_status mpp_grad_sqrt(struct mpp_grad_in *in)
{
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    mpp_id t = mpp_gradient_op2(&gr, MPP_OP_DIV, in->dout[0], mpp_gradient_y(in, 0), mpp_attrs_none());
    struct mpp_attrs half = MPP_ATTRS(in->g->arena, mpp_attr_float("value", 0.5));
    return mpp_gradient_end(&gr, mpp_gradient_op1(&gr, MPP_OP_SCALE, t, half));
}

/* dx = -dy y^2 */
enum mpp_status mpp_grad_reciprocal(struct mpp_grad_in *in)
{
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    mpp_id y = mpp_gradient_y(in, 0);
    mpp_id t = mpp_gradient_op2(&gr, MPP_OP_MUL, in->dout[0], y, mpp_attrs_none());
    t = mpp_gradient_op2(&gr, MPP_OP_MUL, t, y, mpp_attrs_none());
    return mpp_gradient_end(&gr, mpp_gradient_op1(&gr, MPP_OP_NEG, t, mpp_attrs_none()));
}

/* dx = dy 2 / sqrt(pi) e^(-x^2) */
enum mpp_status mpp_grad_erf(struct mpp_grad_in *in)
{
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    mpp_id x = mpp_gradient_x(in, 0);
    mpp_id t = mpp_gradient_op2(&gr, MPP_OP_MUL, x, x, mpp_attrs_none());
    t = mpp_gradient_op1(&gr, MPP_OP_NEG, t, mpp_attrs_none());
    t = mpp_gradient_op1(&gr, MPP_OP_EXP, t, mpp_attrs_none());
    t = mpp_gradient_op1(&gr, MPP_OP_SCALE, t, MPP_ATTRS(in->g->arena, mpp_attr_float("value", M_2_SQRTPI)));
    return mpp_gradient_end(&gr, mpp_gradient_op2(&gr, MPP_OP_MUL, in->dout[0], t, mpp_attrs_none()));
}

/* dx = dy (1 - y^2) */
enum mpp_status mpp_grad_tanh(struct mpp_grad_in *in)
{
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    mpp_id y = mpp_gradient_y(in, 0);
    mpp_id t = mpp_gradient_op2(&gr, MPP_OP_MUL, in->dout[0], y, mpp_attrs_none());
    t = mpp_gradient_op2(&gr, MPP_OP_MUL, t, y, mpp_attrs_none());
    return mpp_gradient_end(&gr, mpp_gradient_op2(&gr, MPP_OP_SUB, in->dout[0], t, mpp_attrs_none()));
}

/* dx = dy y (1 - y) */
enum mpp_status mpp_grad_sigmoid(struct mpp_grad_in *in)
{
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    mpp_id y = mpp_gradient_y(in, 0);
    mpp_id t = mpp_gradient_op2(&gr, MPP_OP_MUL, in->dout[0], y, mpp_attrs_none());
    mpp_id s = mpp_gradient_op2(&gr, MPP_OP_MUL, t, y, mpp_attrs_none());
    return mpp_gradient_end(&gr, mpp_gradient_op2(&gr, MPP_OP_SUB, t, s, mpp_attrs_none()));
}
