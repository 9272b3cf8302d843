/* Layers without weights: ops of the table, and what is written in terms of them. */
#include <math.h>
#include <string.h>

#include "ir/build.h"

static const struct mpp_attrs none = {0, NULL};

enum mpp_status mpp_layer_direct(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                 int *out_n, mpp_id *out)
{
    return mpp_build_all(b, mpp_op_find(b->item->type), n_in, in, *attrs, out_n, out);
}

enum mpp_status mpp_layer_constant(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                   int *out_n, mpp_id *out)
{
    return mpp_build_all(b, MPP_OP_CONSTANT, n_in, in, *attrs, out_n, out);
}

/* x sigmoid(alpha x) (Ramachandran et al. 2017), as op SUFFIX or as the item's output (NULL). */
static mpp_id swish(struct mpp_builder *b, const struct mpp_attrs *attrs, mpp_id x, const char *suffix)
{
    double alpha = mpp_attrs_float(attrs, "alpha", 1);
    mpp_id y = x;
    if (alpha != 1)
        y = mpp_build_op(b, MPP_OP_SCALE, "scale", "scale", 1, &y,
                         MPP_ATTRS(b->arena, mpp_attr_float("value", alpha)));
    y = mpp_build_op(b, MPP_OP_SIGMOID, "sigmoid", "sigmoid", 1, &y, none);
    mpp_id pair[2] = {x, y};
    return suffix ? mpp_build_op(b, MPP_OP_MUL, suffix, suffix, 2, pair, none)
                  : mpp_build_final(b, MPP_OP_MUL, NULL, 2, pair, none, NULL);
}

enum mpp_status mpp_layer_swish(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                int *out_n, mpp_id *out)
{
    (void)n_in;
    (void)out_n;
    return mpp_build_status(out[0] = swish(b, attrs, in[0], NULL));
}

/* swish(gate) up (Shazeer 2020). */
enum mpp_status mpp_layer_swiglu(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                 int *out_n, mpp_id *out)
{
    (void)n_in;
    (void)out_n;
    mpp_id pair[2] = {swish(b, attrs, in[0], "swish"), in[1]};
    return mpp_build_status(out[0] = mpp_build_final(b, MPP_OP_MUL, NULL, 2, pair, none, NULL));
}

/* Small whole exponents by products, halves by Sqrt, the rest as exp(e log x). */
enum mpp_status mpp_layer_pow(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                              int *out_n, mpp_id *out)
{
    (void)n_in;
    (void)out_n;
    double e = mpp_attrs_float(attrs, "exponent", 1);
    mpp_id y = in[0];
    if (e == 1 || e == 0.5 || e == -1) {
        int kind = e == 1 ? MPP_OP_IDENTITY : e == 0.5 ? MPP_OP_SQRT : MPP_OP_RECIPROCAL;
        return mpp_build_status(out[0] = mpp_build_final(b, kind, NULL, 1, in, none, NULL));
    }
    if (e == floor(e) && e >= 2 && e <= 8) {
        for (int k = 2; k < (int)e; k++) {
            const char *suffix = mpp_arena_printf(b->arena, "pow%d", k);
            y = mpp_build_op(b, MPP_OP_MUL, suffix, suffix, 2, (mpp_id[]){y, in[0]}, none);
        }
        return mpp_build_status(out[0] = mpp_build_final(b, MPP_OP_MUL, NULL, 2, (mpp_id[]){y, in[0]}, none, NULL));
    }
    y = mpp_build_op(b, MPP_OP_LOG, "log", "log", 1, &y, none);
    y = mpp_build_op(b, MPP_OP_SCALE, "scale", "scale", 1, &y, MPP_ATTRS(b->arena, mpp_attr_float("value", e)));
    return mpp_build_status(out[0] = mpp_build_final(b, MPP_OP_EXP, NULL, 1, &y, none, NULL));
}

enum mpp_status mpp_layer_clip(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                               int *out_n, mpp_id *out)
{
    (void)n_in;
    (void)out_n;
    const struct mpp_attr *low = mpp_attrs_find(attrs, "min"), *high = mpp_attrs_find(attrs, "max");
    mpp_id y = in[0];
    if (low && high)
        y = mpp_build_op(b, MPP_OP_MAX, "lower", "lower", 2,
                         (mpp_id[]){y, mpp_build_constant(b, "min", low->f)}, none);
    if (!low && !high)
        return mpp_build_status(out[0] = mpp_build_final(b, MPP_OP_IDENTITY, NULL, 1, &y, none, NULL));
    mpp_id bound = mpp_build_constant(b, high ? "max" : "min", high ? high->f : low->f);
    int kind = high ? MPP_OP_MIN : MPP_OP_MAX;
    return mpp_build_status(out[0] = mpp_build_final(b, kind, NULL, 2, (mpp_id[]){y, bound}, none, NULL));
}

/* ---- reductions ---- */

/* The reduce ops' attributes: axes from 0, all of them when none are given. */
static bool reduce_attrs(struct mpp_builder *b, const struct mpp_attrs *attrs, mpp_id x, struct mpp_attrs *out)
{
    const struct mpp_attr *axes = mpp_attrs_find(attrs, "axes");
    int n_dims = mpp_build_tensor(b, x)->n_dims, n = axes ? axes->n : n_dims;
    int64_t list[MPP_GRAPH_MAX_DIMS];
    if (n > n_dims) {
        mpp_build_error(b, "axes lists %d of %d dimensions", n, n_dims);
        return false;
    }
    for (int i = 0; i < n; i++) {
        list[i] = mpp_build_axis(b, axes ? axes->ints[i] : i, n_dims);
        if (list[i] < 0)
            return false;
    }
    *out = MPP_ATTRS(b->arena, mpp_attr_ints("axes", n, list),
                     mpp_attr_bool("keepdims", mpp_attrs_int(attrs, "keepdims", 1)));
    return true;
}

enum mpp_status mpp_layer_reduce(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                 int *out_n, mpp_id *out)
{
    struct mpp_attrs a;
    if (!reduce_attrs(b, attrs, in[0], &a))
        return MPP_INVALID;
    return mpp_build_all(b, mpp_op_find(b->item->type), n_in, in, a, out_n, out);
}

/* A mean over the batch divides by the global one, so that micro-batches' terms add up to it. */
enum mpp_status mpp_layer_reduce_mean(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                      int *out_n, mpp_id *out)
{
    struct mpp_attrs a;
    if (!reduce_attrs(b, attrs, in[0], &a))
        return MPP_INVALID;
    bool batched = false;
    int64_t count = 1;
    for (int i = 0; i < a.attr[0].n; i++) {
        const struct mpp_size *dim = &mpp_build_tensor(b, in[0])->dims[a.attr[0].ints[i]];
        batched |= dim->per_batch != 0;
        count *= mpp_build_global_count(b, dim, 1);
    }
    if (!batched)
        return mpp_build_all(b, MPP_OP_REDUCE_MEAN, n_in, in, a, out_n, out);
    mpp_id sum = mpp_build_op(b, MPP_OP_REDUCE_SUM, "sum", "sum", 1, in, a);
    struct mpp_attrs scale = MPP_ATTRS(b->arena, mpp_attr_float("value", 1 / (double)count));
    return mpp_build_status(out[0] = mpp_build_final(b, MPP_OP_SCALE, NULL, 1, &sum, scale, NULL));
}

/* Along the last axis; another one is brought there and back. */
enum mpp_status mpp_layer_softmax(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                  int *out_n, mpp_id *out)
{
    int n = mpp_build_tensor(b, in[0])->n_dims, axis = mpp_build_axis(b, mpp_attrs_int(attrs, "axis", -1), n);
    if (axis < 0)
        return MPP_INVALID;
    struct mpp_attrs last = MPP_ATTRS(b->arena, mpp_attr_int("axis", n - 1));
    if (axis == n - 1)
        return mpp_build_all(b, MPP_OP_SOFTMAX, n_in, in, last, out_n, out);
    int64_t perm[MPP_GRAPH_MAX_DIMS];
    for (int d = 0; d < n; d++)
        perm[d] = d == axis ? n - 1 : d == n - 1 ? axis : d;
    struct mpp_attrs swap = MPP_ATTRS(b->arena, mpp_attr_ints("perm", n, perm));
    mpp_id y = mpp_build_op(b, MPP_OP_TRANSPOSE, "to_last", "to_last", 1, in, swap);
    y = mpp_build_op(b, MPP_OP_SOFTMAX, NULL, "rows", 1, &y, last);
    return mpp_build_status(out[0] = mpp_build_final(b, MPP_OP_TRANSPOSE, "from_last", 1, &y, swap, NULL));
}

/* ---- layouts ---- */

enum mpp_status mpp_layer_transpose(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                    int *out_n, mpp_id *out)
{
    const struct mpp_attr *perm = mpp_attrs_find(attrs, "perm");
    int n = mpp_build_tensor(b, in[0])->n_dims;
    int64_t list[MPP_GRAPH_MAX_DIMS];
    if (perm->n != n) {
        mpp_build_error(b, "perm lists %d of %d dimensions", perm->n, n);
        return MPP_INVALID;
    }
    for (int d = 0; d < n; d++)
        list[d] = perm->ints[d] < 0 ? perm->ints[d] + n : perm->ints[d];
    struct mpp_attrs a = MPP_ATTRS(b->arena, mpp_attr_ints("perm", n, list));
    return mpp_build_all(b, MPP_OP_TRANSPOSE, n_in, in, a, out_n, out);
}

static enum mpp_status reshape_to(struct mpp_builder *b, mpp_id x, int n, const struct mpp_size *dims, mpp_id *out)
{
    struct mpp_attrs a = MPP_ATTRS(b->arena, mpp_attr_dims("shape", n, dims));
    return mpp_build_status(out[0] = mpp_build_final(b, MPP_OP_RESHAPE, NULL, 1, &x, a, NULL));
}

/* ONNX: one -1 is what remains, 0 copies the input's dimension at that place. */
enum mpp_status mpp_layer_reshape(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                  int *out_n, mpp_id *out)
{
    (void)n_in;
    (void)out_n;
    const struct mpp_attr *shape = mpp_attrs_find(attrs, "shape");
    const struct mpp_gtensor *t = mpp_build_tensor(b, in[0]);
    struct mpp_size dims[MPP_GRAPH_MAX_DIMS], rest[MPP_GRAPH_MAX_DIMS];
    int infer = -1, n_rest = 0;
    if (shape->n > MPP_GRAPH_MAX_DIMS) {
        mpp_build_error(b, "shape has more than %d dimensions", MPP_GRAPH_MAX_DIMS);
        return MPP_INVALID;
    }
    for (int d = 0; d < shape->n; d++) {
        bool copy = shape->dims[d].size == 0;
        if ((copy && d >= t->n_dims) || (shape->dims[d].size == -1 && infer >= 0)) {
            mpp_build_error(b, "shape may copy (0) dimensions that the input has and infer (-1) one of them");
            return MPP_INVALID;
        }
        dims[d] = copy ? t->dims[d] : shape->dims[d];
        if (dims[d].size == -1)
            infer = d;
        else
            rest[n_rest++] = dims[d];
    }
    if (infer >= 0) {
        struct mpp_size whole = mpp_size_product(b->arena, t->dims, t->n_dims);
        struct mpp_size known = mpp_size_product(b->arena, rest, n_rest);
        bool symbolic = whole.per_batch && !known.per_batch;
        int64_t size = known.size ? whole.size / known.size : 0;
        if (size < 1 || whole.size % known.size != 0 || (symbolic && whole.per_batch % known.size != 0)) {
            mpp_build_error(b, "%s %s doesn't divide evenly into shape", t->name, mpp_dims_text(b->arena, t));
            return MPP_INVALID;
        }
        dims[infer] = (struct mpp_size){size, symbolic ? whole.per_batch / known.size : 0,
                                        mpp_arena_printf(b->arena, "%lld", (long long)size)};
        for (int d = 0; d < t->n_dims; d++) {
            if (mpp_size_equal(t->dims[d], dims[infer]))
                dims[infer].name = t->dims[d].name;
        }
    }
    return reshape_to(b, in[0], shape->n, dims, out);
}

enum mpp_status mpp_layer_flatten(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                  int *out_n, mpp_id *out)
{
    (void)n_in;
    (void)out_n;
    const struct mpp_gtensor *t = mpp_build_tensor(b, in[0]);
    int64_t given = mpp_attrs_int(attrs, "axis", 1);
    int axis = given == t->n_dims ? t->n_dims : mpp_build_axis(b, given, t->n_dims);
    if (axis < 0)
        return MPP_INVALID;
    struct mpp_size dims[2] = {mpp_size_product(b->arena, t->dims, axis),
                               mpp_size_product(b->arena, t->dims + axis, t->n_dims - axis)};
    return reshape_to(b, in[0], 2, dims, out);
}

enum mpp_status mpp_layer_squeeze(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                  int *out_n, mpp_id *out)
{
    (void)n_in;
    (void)out_n;
    const struct mpp_attr *axes = mpp_attrs_find(attrs, "axes");
    const struct mpp_gtensor *t = mpp_build_tensor(b, in[0]);
    bool drop[MPP_GRAPH_MAX_DIMS] = {false};
    struct mpp_size dims[MPP_GRAPH_MAX_DIMS];
    int n = 0;
    for (int i = 0; i < axes->n; i++) {
        int axis = mpp_build_axis(b, axes->ints[i], t->n_dims);
        if (axis < 0)
            return MPP_INVALID;
        if (!mpp_size_is_one(t->dims[axis])) {
            mpp_build_error(b, "dimension %d of %s %s is not 1", axis, t->name, mpp_dims_text(b->arena, t));
            return MPP_INVALID;
        }
        drop[axis] = true;
    }
    for (int d = 0; d < t->n_dims; d++) {
        if (!drop[d])
            dims[n++] = t->dims[d];
    }
    return reshape_to(b, in[0], n, dims, out);
}

enum mpp_status mpp_layer_unsqueeze(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                    int *out_n, mpp_id *out)
{
    (void)n_in;
    (void)out_n;
    const struct mpp_attr *axes = mpp_attrs_find(attrs, "axes");
    const struct mpp_gtensor *t = mpp_build_tensor(b, in[0]);
    int n = t->n_dims + axes->n, from = 0;
    bool one[MPP_GRAPH_MAX_DIMS] = {false};
    struct mpp_size dims[MPP_GRAPH_MAX_DIMS];
    if (n > MPP_GRAPH_MAX_DIMS) {
        mpp_build_error(b, "the result has %d dimensions, more than %d", n, MPP_GRAPH_MAX_DIMS);
        return MPP_INVALID;
    }
    for (int i = 0; i < axes->n; i++) {
        int axis = mpp_build_axis(b, axes->ints[i], n);
        if (axis < 0)
            return MPP_INVALID;
        if (one[axis]) {
            mpp_build_error(b, "axes names dimension %d twice", axis);
            return MPP_INVALID;
        }
        one[axis] = true;
    }
    for (int d = 0; d < n; d++)
        dims[d] = one[d] ? (struct mpp_size){1, 0, "1"} : t->dims[from++];
    return reshape_to(b, in[0], n, dims, out);
}

enum mpp_status mpp_layer_expand(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                 int *out_n, mpp_id *out)
{
    return mpp_build_all(b, MPP_OP_EXPAND, n_in, in, *attrs, out_n, out);
}

enum mpp_status mpp_layer_split(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                int *out_n, mpp_id *out)
{
    const struct mpp_attr *sizes = mpp_attrs_find(attrs, "sizes"), *parts = mpp_attrs_find(attrs, "num_outputs");
    int axis = mpp_build_axis(b, mpp_attrs_int(attrs, "axis", 0), mpp_build_tensor(b, in[0])->n_dims);
    if (axis < 0)
        return MPP_INVALID;
    if (!sizes == !parts) {
        mpp_build_error(b, "give either num_outputs or sizes");
        return MPP_INVALID;
    }
    struct mpp_attr how = sizes ? *sizes : mpp_attr_int("num_outputs", parts->i);
    return mpp_build_all(b, MPP_OP_SPLIT, n_in, in, MPP_ATTRS(b->arena, mpp_attr_int("axis", axis), how), out_n, out);
}

enum mpp_status mpp_layer_concat(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                 int *out_n, mpp_id *out)
{
    bool stack = mpp_attrs_int(attrs, "stack", 0);
    int axis = mpp_build_axis(b, mpp_attrs_int(attrs, "axis", 0), mpp_build_tensor(b, in[0])->n_dims + stack);
    if (axis < 0)
        return MPP_INVALID;
    struct mpp_attrs a = MPP_ATTRS(b->arena, mpp_attr_int("axis", axis), mpp_attr_bool("stack", stack));
    return mpp_build_all(b, MPP_OP_CONCAT, n_in, in, a, out_n, out);
}

/* [.., m, k] x [.., k, n]: the leading dimensions are equal, or only one operand has them. */
enum mpp_status mpp_layer_matmul(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                 int *out_n, mpp_id *out)
{
    int n_a = mpp_build_tensor(b, in[0])->n_dims, n_b = mpp_build_tensor(b, in[1])->n_dims;
    if (n_a < 2 || n_b < 2 || (n_a != n_b && n_a > 2 && n_b > 2)) {
        const struct mpp_gtensor *x = mpp_build_tensor(b, in[0]), *y = mpp_build_tensor(b, in[1]);
        mpp_build_error(b, "%s %s and %s %s: both need two dimensions or more, and equal leading ones", x->name,
                        mpp_dims_text(b->arena, x), y->name, mpp_dims_text(b->arena, y));
        return MPP_INVALID;
    }
    const char *lead = "bcde";
    int more = n_a > n_b ? n_a : n_b;
    const char *a = mpp_attrs_int(attrs, "trans_a", 0) ? "km" : "mk";
    const char *c = mpp_attrs_int(attrs, "trans_b", 0) ? "nk" : "kn";
    const char *eq = mpp_arena_printf(b->arena, "%.*s%s,%.*s%s->%.*smn", n_a - 2, lead, a, n_b - 2, lead, c, more - 2,
                                      lead);
    return mpp_build_all(b, MPP_OP_EINSUM, n_in, in, MPP_ATTRS(b->arena, mpp_attr_string("equation", eq)), out_n, out);
}
