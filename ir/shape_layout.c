/* Shape functions of broadcasting ops, layouts, reductions, contractions and tables. */
#include <string.h>

#include "ir/shape.h"

enum { MAX_DIMS = MPP_GRAPH_MAX_DIMS };

static bool too_many(const struct mpp_shape_in *in, int n_dims)
{
    if (n_dims <= MAX_DIMS)
        return false;
    mpp_shape_error(in, "%d dimensions are more than the %d that are supported", n_dims, MAX_DIMS);
    return true;
}

/* A factor for SIZE, or -1 (no factor) where it is 1. False when the rule is full. */
static bool factor_for(const struct mpp_shape_in *in, struct mpp_rule *rule, struct mpp_size size,
                       enum mpp_factor_kind kind, int *out)
{
    *out = -1;
    if (mpp_size_is_one(size))
        return true;
    *out = mpp_rule_add(in, rule, size, kind);
    return *out >= 0;
}

/* The sizes of a dims attribute; 0 of them when it is absent. */
static const struct mpp_attr *dims_attr(const struct mpp_shape_in *in, const char *name)
{
    return mpp_attrs_find(&in->op->attrs, name);
}

enum mpp_status mpp_shape_constant(const struct mpp_shape_in *in, struct mpp_rule *out, enum mpp_dtype *out_dtype)
{
    const struct mpp_attr *shape = dims_attr(in, "shape");
    mpp_rule_begin(in, 1, out);
    out_dtype[0] = MPP_F32;
    if (shape && too_many(in, shape->n))
        return MPP_INVALID;
    for (int d = 0; shape && d < shape->n; d++) {
        int f;
        if (!factor_for(in, out, shape->dims[d], MPP_FACTOR_FREE, &f))
            return MPP_INVALID;
        mpp_rule_put(&out->operand[out->n_in], f);
    }
    return MPP_OK;
}

/* What another stage hands over: any sharding will do, as of a constant. */
enum mpp_status mpp_shape_recv(const struct mpp_shape_in *in, struct mpp_rule *out, enum mpp_dtype *out_dtype)
{
    const char *wanted = mpp_attrs_string(&in->op->attrs, "dtype", "f32");
    MPP_TRY(mpp_shape_constant(in, out, out_dtype));
    for (int known = 0; known < MPP_N_DTYPES; known++) {
        if (strcmp(mpp_dtype_name((enum mpp_dtype)known), wanted) == 0) {
            out_dtype[0] = (enum mpp_dtype)known;
            return MPP_OK;
        }
    }
    mpp_shape_error(in, "there is no type \"%s\"", wanted);
    return MPP_INVALID;
}

enum mpp_status mpp_shape_send(const struct mpp_shape_in *in, struct mpp_rule *out, enum mpp_dtype *out_dtype)
{
    (void)out_dtype;
    mpp_rule_begin(in, 0, out);
    if (in->op->n_in != 1 || in->op->in[0] < 0) {
        mpp_shape_error(in, "takes one operand");
        return MPP_INVALID;
    }
    const struct mpp_gtensor *t = mpp_shape_input(in, 0);
    for (int d = 0; d < t->n_dims; d++) {
        int f;
        if (!factor_for(in, out, t->dims[d], MPP_FACTOR_FREE, &f))
            return MPP_INVALID;
        mpp_rule_put(&out->operand[0], f);
    }
    return MPP_OK;
}

/* numpy broadcasting: dimensions are aligned at the right; one factor per dimension of the result. */
enum mpp_status mpp_shape_broadcast(const struct mpp_shape_in *in, struct mpp_rule *out, enum mpp_dtype *out_dtype)
{
    const struct mpp_gop *op = in->op;
    const char *expr = mpp_op_info(op->kind)->expr;
    bool computes = !expr || strcmp(expr, "a") != 0; /* else it only hands the value on */
    if (computes)
        MPP_TRY(mpp_shape_mixed(in, out_dtype));
    else
        MPP_TRY(mpp_shape_same_dtype(in, false, 1, out_dtype));
    mpp_rule_begin(in, 1, out);
    int n_dims = 0, factor[MAX_DIMS];
    for (int k = 0; k < op->n_in; k++)
        n_dims = mpp_shape_input(in, k)->n_dims > n_dims ? mpp_shape_input(in, k)->n_dims : n_dims;
    for (int d = 0; d < n_dims; d++)
        factor[d] = -1;
    for (int k = 0; k < op->n_in; k++) {
        const struct mpp_gtensor *t = mpp_shape_input(in, k);
        for (int d = 0; d < t->n_dims; d++) {
            int to = n_dims - t->n_dims + d, f = -1;
            if (!mpp_size_is_one(t->dims[d])) {
                if (factor[to] < 0 && !factor_for(in, out, t->dims[d], MPP_FACTOR_FREE, &factor[to]))
                    return MPP_INVALID;
                f = factor[to];
                if (!mpp_shape_agrees(in, out, f, k, d))
                    return MPP_INVALID;
            }
            mpp_rule_put(&out->operand[k], f);
        }
    }
    for (int d = 0; d < n_dims; d++)
        mpp_rule_put(&out->operand[op->n_in], factor[d]);
    mpp_shape_set_linear(in, out);
    return MPP_OK;
}

/* Its operand in another floating-point type. */
enum mpp_status mpp_shape_cast(const struct mpp_shape_in *in, struct mpp_rule *out, enum mpp_dtype *out_dtype)
{
    MPP_TRY(mpp_shape_same_dtype(in, true, 1, out_dtype));
    MPP_TRY(mpp_shape_broadcast(in, out, out_dtype));
    const char *to = mpp_attrs_string(&in->op->attrs, "to", "");
    out_dtype[0] = strcmp(to, "bf16") == 0 ? MPP_BF16 : strcmp(to, "f16") == 0 ? MPP_F16 : MPP_F32;
    out->linear = out->linear && out_dtype[0] == MPP_F32; /* else it rounds */
    return MPP_OK;
}

/* One factor per dimension of input 0, which gets them; FACTOR [n_dims]. */
static bool free_factors(const struct mpp_shape_in *in, struct mpp_rule *rule, int *factor)
{
    const struct mpp_gtensor *t = mpp_shape_input(in, 0);
    for (int d = 0; d < t->n_dims; d++) {
        if (!factor_for(in, rule, t->dims[d], MPP_FACTOR_FREE, &factor[d]))
            return false;
        mpp_rule_put(&rule->operand[0], factor[d]);
    }
    return true;
}

enum mpp_status mpp_shape_transpose(const struct mpp_shape_in *in, struct mpp_rule *out, enum mpp_dtype *out_dtype)
{
    MPP_TRY(mpp_shape_same_dtype(in, false, 1, out_dtype));
    mpp_rule_begin(in, 1, out);
    const struct mpp_attr *perm = mpp_attrs_find(&in->op->attrs, "perm");
    int factor[MAX_DIMS], n = mpp_shape_input(in, 0)->n_dims;
    bool seen[MAX_DIMS] = {false}, ok = perm && perm->n == n;
    for (int d = 0; ok && d < n; d++) {
        ok = perm->ints[d] >= 0 && perm->ints[d] < n && !seen[perm->ints[d]];
        if (ok)
            seen[perm->ints[d]] = true;
    }
    if (!ok) {
        mpp_shape_error(in, "perm must list each of 0 to %d once", n - 1);
        return MPP_INVALID;
    }
    if (!free_factors(in, out, factor))
        return MPP_INVALID;
    for (int d = 0; d < n; d++)
        mpp_rule_put(&out->operand[1], factor[perm->ints[d]]);
    mpp_shape_set_linear(in, out);
    return MPP_OK;
}

enum mpp_status mpp_shape_expand(const struct mpp_shape_in *in, struct mpp_rule *out, enum mpp_dtype *out_dtype)
{
    MPP_TRY(mpp_shape_same_dtype(in, false, 1, out_dtype));
    mpp_rule_begin(in, 1, out);
    const struct mpp_gtensor *t = mpp_shape_input(in, 0);
    const struct mpp_attr *shape = dims_attr(in, "shape");
    int n = shape ? shape->n : 0, factor[MAX_DIMS];
    if (too_many(in, n))
        return MPP_INVALID;
    if (n < t->n_dims) {
        mpp_shape_error(in, "%s %s has more dimensions than shape, %d", t->name, mpp_dims_text(in->arena, t), n);
        return MPP_INVALID;
    }
    for (int d = 0; d < n; d++) {
        if (!factor_for(in, out, shape->dims[d], MPP_FACTOR_FREE, &factor[d]))
            return MPP_INVALID;
        mpp_rule_put(&out->operand[1], factor[d]);
    }
    for (int d = 0; d < t->n_dims; d++) {
        int f = mpp_size_is_one(t->dims[d]) ? -1 : factor[n - t->n_dims + d];
        if (f < 0 && !mpp_size_is_one(t->dims[d])) {
            mpp_shape_error(in, "dimension %d of %s %s cannot become 1", d, t->name, mpp_dims_text(in->arena, t));
            return MPP_INVALID;
        }
        if (f >= 0 && !mpp_shape_agrees(in, out, f, 0, d))
            return MPP_INVALID;
        mpp_rule_put(&out->operand[0], f);
    }
    mpp_shape_set_linear(in, out);
    return MPP_OK;
}

/* Slices of the given SIZES: whole factors, one per operand (equal sizes share one). */
static enum mpp_status split_slices(const struct mpp_shape_in *in, struct mpp_rule *out, int axis, int n_out,
                                    const struct mpp_size *sizes, const int *factor)
{
    const struct mpp_gtensor *t = mpp_shape_input(in, 0);
    int slice[MPP_MAX_FACTORS], n_slices = 0;
    for (int k = 0; k < n_out; k++) {
        int f = -1;
        for (int i = 0; i < n_slices; i++) {
            if (out->factor[slice[i]].size.size == sizes[k].size)
                f = slice[i];
        }
        if (f < 0 && !mpp_size_is_one(sizes[k])) {
            if ((f = mpp_rule_add(in, out, sizes[k], MPP_FACTOR_WHOLE)) < 0)
                return MPP_INVALID;
            slice[n_slices++] = f;
        }
        for (int d = 0; d < t->n_dims; d++)
            mpp_rule_put(&out->operand[1 + k], d == axis ? f : factor[d]);
    }
    return MPP_OK;
}

/* The sizes along the split axis: of attribute `sizes`, or num_outputs equal parts. */
static const struct mpp_size *split_sizes(const struct mpp_shape_in *in, int axis, int *out_n)
{
    const struct mpp_gtensor *t = mpp_shape_input(in, 0);
    const struct mpp_attr *sizes = mpp_attrs_find(&in->op->attrs, "sizes");
    int64_t extent = t->dims[axis].size, n = mpp_attrs_int(&in->op->attrs, "num_outputs", 0), total = 0;
    if (sizes)
        n = sizes->n;
    if (t->dims[axis].per_batch || n < 1 || n > 64 || (!sizes && extent % n != 0)) {
        mpp_shape_error(in, "%s %s cannot be split into %lld parts along dimension %d", t->name,
                        mpp_dims_text(in->arena, t), (long long)n, axis);
        return NULL;
    }
    struct mpp_size *out = mpp_arena_array(in->arena, n, struct mpp_size);
    for (int k = 0; k < n; k++) {
        int64_t size = sizes ? sizes->ints[k] : extent / n;
        out[k] = (struct mpp_size){size, 0, mpp_arena_printf(in->arena, "%lld", (long long)size)};
        if (size < 1 || __builtin_add_overflow(total, size, &total))
            total = -1;
    }
    if (total != extent) {
        mpp_shape_error(in, "sizes must be positive and add up to %lld, dimension %d of %s %s", (long long)extent, axis,
                        t->name, mpp_dims_text(in->arena, t));
        return NULL;
    }
    *out_n = (int)n;
    return out;
}

/* A dimension split into single entries (num_outputs == its extent) is dropped; else slices keep it. */
enum mpp_status mpp_shape_split(const struct mpp_shape_in *in, struct mpp_rule *out, enum mpp_dtype *out_dtype)
{
    MPP_TRY(mpp_shape_same_dtype(in, false, 0, out_dtype));
    const struct mpp_gtensor *t = mpp_shape_input(in, 0);
    int n_out, factor[MAX_DIMS], axis = mpp_shape_axis(in, mpp_attrs_int(&in->op->attrs, "axis", 0), t->n_dims);
    const struct mpp_size *sizes = axis < 0 ? NULL : split_sizes(in, axis, &n_out);
    if (!sizes)
        return MPP_INVALID;
    mpp_rule_begin(in, n_out, out);
    if (!free_factors(in, out, factor))
        return MPP_INVALID;
    for (int k = 0; k < n_out; k++)
        out_dtype[k] = t->dtype;
    mpp_shape_set_linear(in, out);
    bool unit = !mpp_attrs_find(&in->op->attrs, "sizes") && n_out == t->dims[axis].size;
    if (factor[axis] >= 0)
        out->factor[factor[axis]].kind = unit ? MPP_FACTOR_NEVER : MPP_FACTOR_WHOLE;
    if (!unit)
        return split_slices(in, out, axis, n_out, sizes, factor);
    for (int k = 0; k < n_out; k++) {
        for (int d = 0; d < t->n_dims; d++) {
            if (d != axis)
                mpp_rule_put(&out->operand[1 + k], factor[d]);
        }
    }
    return MPP_OK;
}

/* Dimension D of input K is FACTOR (-1: 1 everywhere). */
static bool same_dim(const struct mpp_shape_in *in, struct mpp_rule *rule, int factor, int k, int d)
{
    const struct mpp_gtensor *t = mpp_shape_input(in, k), *first = mpp_shape_input(in, 0);
    if (factor >= 0)
        return mpp_shape_agrees(in, rule, factor, k, d);
    if (mpp_size_is_one(t->dims[d]))
        return true;
    mpp_shape_error(in, "dimension %d is 1 in %s %s and %lld in %s %s", d, first->name, mpp_dims_text(in->arena, first),
                    (long long)t->dims[d].size, t->name, mpp_dims_text(in->arena, t));
    return false;
}

static enum mpp_status concat_stack(const struct mpp_shape_in *in, struct mpp_rule *out, int axis)
{
    const struct mpp_gop *op = in->op;
    const struct mpp_gtensor *t = mpp_shape_input(in, 0);
    const char *name = mpp_arena_printf(in->arena, "%d", op->n_in);
    int factor[MAX_DIMS], entry;
    if (!free_factors(in, out, factor) ||
        !factor_for(in, out, (struct mpp_size){op->n_in, 0, name}, MPP_FACTOR_NEVER, &entry))
        return MPP_INVALID;
    for (int k = 1; k < op->n_in; k++) {
        for (int d = 0; d < t->n_dims; d++) {
            if (!same_dim(in, out, factor[d], k, d))
                return MPP_INVALID;
            mpp_rule_put(&out->operand[k], factor[d]);
        }
    }
    for (int d = 0; d <= t->n_dims; d++)
        mpp_rule_put(&out->operand[op->n_in], d == axis ? entry : factor[d - (d > axis)]);
    return MPP_OK;
}

static enum mpp_status concat_slices(const struct mpp_shape_in *in, struct mpp_rule *out, int axis)
{
    const struct mpp_gop *op = in->op;
    const struct mpp_gtensor *first = mpp_shape_input(in, 0);
    int factor[MAX_DIMS], total;
    struct mpp_size size = {0, 0, NULL};
    for (int k = 0; k < op->n_in; k++) {
        struct mpp_size s = mpp_shape_input(in, k)->dims[axis];
        if (s.per_batch) {
            mpp_shape_error(in, "the batch dimension cannot be concatenated");
            return MPP_INVALID;
        }
        size.size += s.size;
    }
    size.name = mpp_arena_printf(in->arena, "%lld", (long long)size.size);
    for (int d = 0; d < first->n_dims; d++) {
        if (d != axis && !factor_for(in, out, first->dims[d], MPP_FACTOR_FREE, &factor[d]))
            return MPP_INVALID;
    }
    if (!factor_for(in, out, size, MPP_FACTOR_WHOLE, &total))
        return MPP_INVALID;
    for (int k = 0; k < op->n_in; k++) {
        const struct mpp_gtensor *t = mpp_shape_input(in, k);
        for (int d = 0; d < t->n_dims; d++) {
            int f = d == axis ? -1 : factor[d];
            if (d == axis ? !factor_for(in, out, t->dims[d], MPP_FACTOR_WHOLE, &f) : !same_dim(in, out, f, k, d))
                return MPP_INVALID;
            mpp_rule_put(&out->operand[k], f);
        }
    }
    for (int d = 0; d < first->n_dims; d++)
        mpp_rule_put(&out->operand[op->n_in], d == axis ? total : factor[d]);
    return MPP_OK;
}

enum mpp_status mpp_shape_concat(const struct mpp_shape_in *in, struct mpp_rule *out, enum mpp_dtype *out_dtype)
{
    MPP_TRY(mpp_shape_same_dtype(in, false, 1, out_dtype));
    mpp_rule_begin(in, 1, out);
    const struct mpp_gtensor *first = mpp_shape_input(in, 0);
    bool stack = mpp_attrs_int(&in->op->attrs, "stack", 0);
    if (too_many(in, first->n_dims + stack))
        return MPP_INVALID;
    int axis = mpp_shape_axis(in, mpp_attrs_int(&in->op->attrs, "axis", 0), first->n_dims + stack);
    if (axis < 0)
        return MPP_INVALID;
    for (int k = 1; k < in->op->n_in; k++) {
        const struct mpp_gtensor *t = mpp_shape_input(in, k);
        if (t->n_dims != first->n_dims) {
            mpp_shape_error(in, "%s %s and %s %s have different numbers of dimensions", first->name,
                            mpp_dims_text(in->arena, first), t->name, mpp_dims_text(in->arena, t));
            return MPP_INVALID;
        }
    }
    mpp_shape_set_linear(in, out);
    return stack ? concat_stack(in, out, axis) : concat_slices(in, out, axis);
}

/* Reduced factors are summed across shards by REDUCE ops and whole in the others. */
enum mpp_status mpp_shape_reduce(const struct mpp_shape_in *in, struct mpp_rule *out, enum mpp_dtype *out_dtype)
{
    MPP_TRY(mpp_shape_same_dtype(in, true, 1, out_dtype));
    mpp_rule_begin(in, 1, out);
    const struct mpp_attr *axes = mpp_attrs_find(&in->op->attrs, "axes");
    bool keep = mpp_attrs_int(&in->op->attrs, "keepdims", 0), reduced[MAX_DIMS] = {false};
    int factor[MAX_DIMS], n = mpp_shape_input(in, 0)->n_dims;
    for (int i = 0; axes && i < axes->n; i++) {
        int axis = mpp_shape_axis(in, axes->ints[i], n);
        if (axis < 0)
            return MPP_INVALID;
        reduced[axis] = true;
    }
    if (!free_factors(in, out, factor))
        return MPP_INVALID;
    bool sums = mpp_op_info(in->op->kind)->cls == MPP_CLASS_REDUCE;
    if (sums)
        out_dtype[0] = MPP_F32;
    for (int d = 0; d < n; d++) {
        if (reduced[d] && factor[d] >= 0)
            out->factor[factor[d]].kind = sums ? MPP_FACTOR_SUM : MPP_FACTOR_WHOLE;
        if (!reduced[d] || keep)
            mpp_rule_put(&out->operand[1], reduced[d] ? -1 : factor[d]);
    }
    mpp_shape_set_linear(in, out);
    return MPP_OK;
}

/* "bsh,hnd->bsnd": one factor per letter; letters that the output lacks are summed. */
static bool einsum_operand(const struct mpp_shape_in *in, struct mpp_rule *rule, int k, const char *letters, size_t n)
{
    const struct mpp_gtensor *t = mpp_shape_input(in, k);
    if ((size_t)t->n_dims != n) {
        mpp_shape_error(in, "%s %s has %d dimensions; \"%s\" gives it %zu", t->name, mpp_dims_text(in->arena, t),
                        t->n_dims, mpp_attrs_string(&in->op->attrs, "equation", ""), n);
        return false;
    }
    for (size_t d = 0; d < n; d++) {
        int f = 0;
        while (f < rule->n_factors && rule->factor[f].letter != letters[d])
            f++;
        if (memchr(letters, letters[d], d)) {
            mpp_shape_error(in, "the letter %c stands twice in one operand", letters[d]);
            return false;
        }
        if (f == rule->n_factors) {
            if (mpp_rule_add(in, rule, t->dims[d], MPP_FACTOR_SUM) < 0)
                return false;
            rule->factor[f].letter = letters[d];
        } else if (!mpp_shape_agrees(in, rule, f, k, (int)d)) {
            return false;
        }
        mpp_rule_put(&rule->operand[k], f);
    }
    return true;
}

enum mpp_status mpp_shape_einsum(const struct mpp_shape_in *in, struct mpp_rule *out, enum mpp_dtype *out_dtype)
{
    MPP_TRY(mpp_shape_same_dtype(in, true, 1, out_dtype));
    if (mpp_attrs_int(&in->op->attrs, "wide", 0))
        out_dtype[0] = MPP_F32;
    mpp_rule_begin(in, 1, out);
    const char *eq = mpp_attrs_string(&in->op->attrs, "equation", "");
    const char *comma = strchr(eq, ','), *arrow = strstr(eq, "->");
    const char *letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    bool ok = comma && arrow && comma < arrow && in->op->n_in == 2;
    ok = ok && comma + 1 + strspn(comma + 1, letters) == arrow && strspn(eq, letters) == (size_t)(comma - eq) &&
         arrow[2 + strspn(arrow + 2, letters)] == '\0';
    if (!ok) {
        mpp_shape_error(in, "\"%s\" is not an equation of two operands, like \"bsh,hn->bsn\"", eq);
        return MPP_INVALID;
    }
    if (!einsum_operand(in, out, 0, eq, (size_t)(comma - eq)) ||
        !einsum_operand(in, out, 1, comma + 1, (size_t)(arrow - comma - 1)))
        return MPP_INVALID;
    for (const char *p = arrow + 2; *p; p++) {
        int f = 0;
        while (f < out->n_factors && out->factor[f].letter != *p)
            f++;
        if (f == out->n_factors || memchr(arrow + 2, *p, (size_t)(p - arrow - 2))) {
            mpp_shape_error(in, "the letter %c of the result must stand in an operand, and once in the result", *p);
            return MPP_INVALID;
        }
        if (too_many(in, out->operand[2].n_dims + 1))
            return MPP_INVALID;
        out->factor[f].kind = MPP_FACTOR_FREE;
        mpp_rule_put(&out->operand[2], f);
    }
    mpp_shape_set_linear(in, out);
    return MPP_OK;
}

/* ---- reshape ---- */

struct reshape {
    const struct mpp_shape_in *in;
    struct mpp_rule *rule;
    const struct mpp_size *from, *to;
};

/* One whole factor per dimension of SIZES: no dimension of the other side matches it. */
static bool reshape_whole(struct reshape *r, int operand, const struct mpp_size *sizes, int n)
{
    for (int i = 0; i < n; i++) {
        int f = mpp_rule_add(r->in, r->rule, sizes[i], MPP_FACTOR_WHOLE);
        if (f < 0)
            return false;
        mpp_rule_put(&r->rule->operand[operand], f);
    }
    return true;
}

/* Dimensions FROM[from ..] and TO[to ..], N and M of them, hold the same elements: give them factors. */
static bool reshape_block(struct reshape *r, int from, int n, int to, int m)
{
    bool merges = m == 1;                                        /* else n == 1: splits */
    const struct mpp_size *parts = merges ? r->from + from : r->to + to;
    int n_parts = merges ? n : m;
    if ((n != 1 && m != 1) || n_parts > 3)
        return reshape_whole(r, 0, r->from + from, n) && reshape_whole(r, 1, r->to + to, m);
    struct mpp_rule_operand *fine = &r->rule->operand[merges ? 0 : 1], *coarse = &r->rule->operand[merges ? 1 : 0];
    struct mpp_rule_dim *composite = &coarse->dim[coarse->n_dims++];
    for (int i = 0; i < n_parts; i++) {
        int f = mpp_rule_add(r->in, r->rule, parts[i], i == 0 ? MPP_FACTOR_FREE : MPP_FACTOR_WHOLE);
        if (f < 0)
            return false;
        r->rule->factor[f].even_only = i == 0 && n_parts > 1;
        mpp_rule_put(fine, f);
        composite->factor[composite->n++] = (int8_t)f;
    }
    return true;
}

/* From the left, the shortest runs of dimensions with equal products. */
static bool reshape_match(struct reshape *r, int n_from, int n_to)
{
    int i = 0, j = 0;
    while (i < n_from || j < n_to) {
        if (i < n_from && mpp_size_is_one(r->from[i])) {
            mpp_rule_put(&r->rule->operand[0], -1);
            i++;
            continue;
        }
        if (j < n_to && mpp_size_is_one(r->to[j])) {
            mpp_rule_put(&r->rule->operand[1], -1);
            j++;
            continue;
        }
        if (i == n_from || j == n_to)
            return false;
        int n = 1, m = 1;
        for (;;) {
            struct mpp_size a = mpp_size_product(r->in->arena, r->from + i, n);
            struct mpp_size b = mpp_size_product(r->in->arena, r->to + j, m);
            if (mpp_size_equal(a, b))
                break;
            if (a.size < b.size || (a.size == b.size && i + n < n_from)) {
                if (i + n++ >= n_from)
                    return false;
            } else if (j + m++ >= n_to) {
                return false;
            }
        }
        if (!reshape_block(r, i, n, j, m))
            return false;
        i += n;
        j += m;
    }
    return true;
}

enum mpp_status mpp_shape_reshape(const struct mpp_shape_in *in, struct mpp_rule *out, enum mpp_dtype *out_dtype)
{
    MPP_TRY(mpp_shape_same_dtype(in, false, 1, out_dtype));
    mpp_rule_begin(in, 1, out);
    const struct mpp_gtensor *t = mpp_shape_input(in, 0);
    const struct mpp_attr *shape = dims_attr(in, "shape");
    int n = shape ? shape->n : 0;
    if (too_many(in, n))
        return MPP_INVALID;
    struct mpp_size from = mpp_size_product(in->arena, t->dims, t->n_dims);
    struct mpp_size to = n ? mpp_size_product(in->arena, shape->dims, n) : (struct mpp_size){1, 0, "1"};
    if (!mpp_size_equal(from, to)) {
        mpp_shape_error(in, "%s %s has %lld elements, the new shape %lld%s", t->name, mpp_dims_text(in->arena, t),
                        (long long)from.size, (long long)to.size,
                        from.size == to.size ? "; only one of them grows with the batch" : "");
        return MPP_INVALID;
    }
    struct reshape r = {in, out, t->dims, shape ? shape->dims : NULL};
    mpp_shape_set_linear(in, out);
    if (reshape_match(&r, t->n_dims, n))
        return MPP_OK;
    out->n_factors = out->operand[0].n_dims = out->operand[1].n_dims = 0;
    bool ok = reshape_whole(&r, 0, t->dims, t->n_dims) && reshape_whole(&r, 1, r.to, n);
    return ok ? MPP_OK : MPP_INVALID;
}

/* ---- tables ---- */

/* ids dy -> dtable: "i32 *i+, *i h -> f32 v h" */
enum mpp_status mpp_shape_embedding_grad(const struct mpp_shape_in *in, struct mpp_rule *out,
                                         enum mpp_dtype *out_dtype)
{
    struct mpp_shape_in text = *in;
    text.text = "i32 *i+, *i h -> f32 h";
    MPP_TRY(mpp_shape_text(&text, out, out_dtype));
    const struct mpp_attr *rows = dims_attr(in, "num_embeddings");
    int v = rows && rows->n == 1 ? mpp_rule_add(in, out, rows->dims[0], MPP_FACTOR_FREE) : -1;
    if (v < 0)
        return MPP_INVALID;
    struct mpp_rule_operand *o = &out->operand[out->n_in];
    int h = o->dim[0].factor[0];
    o->n_dims = 0;
    mpp_rule_put(o, v);
    mpp_rule_put(o, h);
    return MPP_OK;
}

/* table -> its first rows: "p! h -> s h" */
enum mpp_status mpp_shape_position(const struct mpp_shape_in *in, struct mpp_rule *out, enum mpp_dtype *out_dtype)
{
    struct mpp_shape_in text = *in;
    text.text = "p! h -> h";
    MPP_TRY(mpp_shape_text(&text, out, out_dtype));
    const struct mpp_attr *length = dims_attr(in, "length");
    if (!length || length->n != 1 || length->dims[0].per_batch) {
        mpp_shape_error(in, "length must be one dimension that doesn't change with the batch");
        return MPP_INVALID;
    }
    if (length->dims[0].size > out->factor[0].size.size) {
        const struct mpp_gtensor *t = mpp_shape_input(in, 0);
        mpp_shape_error(in, "%lld positions are wanted and %s %s holds %lld", (long long)length->dims[0].size, t->name,
                        mpp_dims_text(in->arena, t), (long long)out->factor[0].size.size);
        return MPP_INVALID;
    }
    int s = mpp_rule_add(in, out, length->dims[0], MPP_FACTOR_FREE);
    struct mpp_rule_operand *o = &out->operand[1];
    int h = o->dim[0].factor[0];
    o->n_dims = 0;
    mpp_rule_put(o, s);
    mpp_rule_put(o, h);
    return MPP_OK;
}

/* dy -> dtable: "s+ h -> f32 p! h" */
enum mpp_status mpp_shape_position_grad(const struct mpp_shape_in *in, struct mpp_rule *out, enum mpp_dtype *out_dtype)
{
    struct mpp_shape_in text = *in;
    text.text = "s+ h -> f32 h";
    MPP_TRY(mpp_shape_text(&text, out, out_dtype));
    const struct mpp_attr *positions = dims_attr(in, "positions");
    int p = positions && positions->n == 1 ? mpp_rule_add(in, out, positions->dims[0], MPP_FACTOR_WHOLE) : -1;
    if (p < 0)
        return MPP_INVALID;
    struct mpp_rule_operand *o = &out->operand[1];
    int h = o->dim[0].factor[0];
    o->n_dims = 0;
    mpp_rule_put(o, p);
    mpp_rule_put(o, h);
    return MPP_OK;
}
