#include "ir/ref.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t mpp_ref_span(const struct mpp_ref_tensor *t, int from, int to)
{
    int64_t n = 1;
    for (int d = from; d < to; d++)
        n *= t->dims[d];
    return n;
}

int64_t mpp_ref_count(const struct mpp_ref_tensor *t)
{
    return mpp_ref_span(t, 0, t->n_dims);
}

void mpp_ref_strides(const struct mpp_ref_tensor *t, int64_t *stride)
{
    int64_t s = 1;
    for (int d = t->n_dims - 1; d >= 0; d--) {
        stride[d] = s;
        s *= t->dims[d];
    }
}

void mpp_ref_broadcast(const struct mpp_ref_tensor *t, const struct mpp_ref_tensor *out, int64_t *stride)
{
    int64_t own[MPP_GRAPH_MAX_DIMS];
    mpp_ref_strides(t, own);
    for (int d = 0; d < out->n_dims; d++) {
        int e = d - (out->n_dims - t->n_dims);
        stride[d] = e < 0 || t->global[e] == 1 ? 0 : own[e];
    }
}

bool mpp_ref_next(const struct mpp_ref_tensor *t, int64_t *idx)
{
    for (int d = t->n_dims - 1; d >= 0; d--) {
        if (++idx[d] < t->dims[d])
            return true;
        idx[d] = 0;
    }
    return false;
}

int64_t mpp_ref_global_index(const struct mpp_ref_tensor *t, const int64_t *idx)
{
    int64_t i = 0;
    for (int d = 0; d < t->n_dims; d++)
        i = i * t->global[d] + t->offset[d] + idx[d];
    return i;
}

void mpp_ref_all_reduce(const struct mpp_ref_in *in, double *x, int64_t n, bool max)
{
    if (in->internal.all_reduce)
        in->internal.all_reduce(in->internal.ctx, x, n, max);
}

double *mpp_ref_scratch(int64_t n)
{
    double *x = calloc((size_t)(n > 0 ? n : 1), sizeof *x);
    if (!x) {
        fputs("out of memory\n", stderr);
        _Exit(3);
    }
    return x;
}

static int64_t dot(const int64_t *idx, const int64_t *stride, int n)
{
    int64_t at = 0;
    for (int d = 0; d < n; d++)
        at += idx[d] * stride[d];
    return at;
}

/* Recv and Send: whoever runs the stages hands the data over. */
void mpp_ref_nothing(const struct mpp_ref_in *in)
{
    (void)in;
}

/* ---- layout ---- */

void mpp_ref_transpose(const struct mpp_ref_in *in)
{
    const struct mpp_attr *perm = mpp_attrs_find(&in->op->attrs, "perm");
    const struct mpp_ref_tensor *x = &in->in[0], *y = &in->out[0];
    int64_t own[MPP_GRAPH_MAX_DIMS], stride[MPP_GRAPH_MAX_DIMS], idx[MPP_GRAPH_MAX_DIMS] = {0};
    mpp_ref_strides(x, own);
    for (int d = 0; d < y->n_dims; d++)
        stride[d] = own[perm->ints[d]];
    int64_t n = mpp_ref_count(y);
    for (int64_t i = 0; i < n; i++, mpp_ref_next(y, idx))
        y->data[i] = x->data[dot(idx, stride, y->n_dims)];
}

/* The same elements in the same global order; a shard of y lies within the same shard of x. */
void mpp_ref_reshape(const struct mpp_ref_in *in)
{
    const struct mpp_ref_tensor *x = &in->in[0], *y = &in->out[0];
    int64_t stride[MPP_GRAPH_MAX_DIMS], idx[MPP_GRAPH_MAX_DIMS] = {0};
    mpp_ref_strides(x, stride);
    int64_t n = mpp_ref_count(y);
    for (int64_t i = 0; i < n; i++, mpp_ref_next(y, idx)) {
        int64_t rest = mpp_ref_global_index(y, idx), at = 0;
        for (int d = x->n_dims - 1; d >= 0; d--) {
            int64_t local = rest % x->global[d] - x->offset[d];
            assert(local >= 0 && local < x->dims[d]);
            at += local * stride[d];
            rest /= x->global[d];
        }
        y->data[i] = x->data[at];
    }
}

void mpp_ref_expand(const struct mpp_ref_in *in)
{
    const struct mpp_ref_tensor *x = &in->in[0], *y = &in->out[0];
    int64_t stride[MPP_GRAPH_MAX_DIMS], idx[MPP_GRAPH_MAX_DIMS] = {0};
    mpp_ref_broadcast(x, y, stride);
    int64_t n = mpp_ref_count(y);
    for (int64_t i = 0; i < n; i++, mpp_ref_next(y, idx))
        y->data[i] = x->data[dot(idx, stride, y->n_dims)];
}

static int axis_of(const struct mpp_ref_in *in, int n_dims)
{
    int64_t axis = mpp_attrs_int(&in->op->attrs, "axis", 0);
    return (int)(axis < 0 ? axis + n_dims : axis);
}

/* Copy the part of WHOLE at FROM along AXIS to or from PART; PART may lack the axis (a single entry). */
static void copy_part(struct mpp_ref_tensor whole, struct mpp_ref_tensor part, int axis, int64_t from, bool to_whole)
{
    int64_t outer = mpp_ref_span(&whole, 0, axis), inner = mpp_ref_span(&whole, axis + 1, whole.n_dims);
    int64_t extent = part.n_dims == whole.n_dims ? part.dims[axis] : 1;
    size_t bytes = (size_t)(extent * inner) * sizeof(double);
    for (int64_t o = 0; o < outer && bytes > 0; o++) {
        double *w = whole.data + (o * whole.dims[axis] + from) * inner, *p = part.data + o * extent * inner;
        memcpy(to_whole ? w : p, to_whole ? p : w, bytes);
    }
}

void mpp_ref_split(const struct mpp_ref_in *in)
{
    int axis = axis_of(in, in->in[0].n_dims);
    int64_t from = 0;
    for (int k = 0; k < in->op->n_out; k++) {
        copy_part(in->in[0], in->out[k], axis, from, false);
        from += in->out[k].n_dims == in->in[0].n_dims ? in->out[k].dims[axis] : 1;
    }
}

void mpp_ref_concat(const struct mpp_ref_in *in)
{
    int axis = axis_of(in, in->out[0].n_dims);
    int64_t from = 0;
    for (int k = 0; k < in->op->n_in; k++) {
        copy_part(in->out[0], in->in[k], axis, from, true);
        from += in->in[k].n_dims == in->out[0].n_dims ? in->in[k].dims[axis] : 1;
    }
}

/* ---- reductions ---- */

void mpp_ref_reduce(const struct mpp_ref_in *in)
{
    const struct mpp_ref_tensor *x = &in->in[0], *y = &in->out[0];
    const struct mpp_attr *axes = mpp_attrs_find(&in->op->attrs, "axes");
    bool keep = mpp_attrs_int(&in->op->attrs, "keepdims", 0) != 0, max = in->op->kind == MPP_OP_REDUCE_MAX;
    bool gone[MPP_GRAPH_MAX_DIMS] = {0};
    int64_t own[MPP_GRAPH_MAX_DIMS], stride[MPP_GRAPH_MAX_DIMS] = {0}, idx[MPP_GRAPH_MAX_DIMS] = {0};
    double count = 1;
    for (int i = 0; i < axes->n; i++)
        gone[axes->ints[i] < 0 ? axes->ints[i] + x->n_dims : axes->ints[i]] = true;
    mpp_ref_strides(y, own);
    for (int d = 0, e = 0; d < x->n_dims; d++) {
        if (gone[d])
            count *= (double)x->global[d];
        else
            stride[d] = own[e];
        e += !gone[d] || keep;
    }
    int64_t n = mpp_ref_count(x), m = mpp_ref_count(y);
    for (int64_t i = 0; i < m; i++)
        y->data[i] = max ? -INFINITY : 0;
    for (int64_t i = 0; i < n; i++, mpp_ref_next(x, idx)) {
        double *out = &y->data[dot(idx, stride, x->n_dims)];
        *out = max ? fmax(*out, x->data[i]) : *out + x->data[i];
    }
    if (max)
        mpp_ref_all_reduce(in, y->data, m, true);
    if (in->op->kind == MPP_OP_REDUCE_MEAN)
        for (int64_t i = 0; i < m; i++)
            y->data[i] /= count;
}

/* ---- contractions ---- */

struct contraction {
    int n;                                  /* letters: those of the output first */
    char letter[2 * MPP_GRAPH_MAX_DIMS];
    int64_t extent[2 * MPP_GRAPH_MAX_DIMS]; /* and strides with which a, b, c are walked */
    int64_t stride[3][2 * MPP_GRAPH_MAX_DIMS];
};

static void add_operand(struct contraction *c, int operand, const struct mpp_ref_tensor *t, const char **text)
{
    int64_t own[MPP_GRAPH_MAX_DIMS];
    mpp_ref_strides(t, own);
    int d = 0;
    for (; **text && **text != ',' && **text != '-'; (*text)++) {
        if (**text == ' ')
            continue;
        int i = 0;
        while (i < c->n && c->letter[i] != **text)
            i++;
        if (i == c->n) {
            c->letter[c->n++] = **text;
            c->extent[i] = t->dims[d];
        }
        assert(c->extent[i] == t->dims[d]);
        c->stride[operand][i] += own[d++];
    }
    assert(d == t->n_dims);
}

/* c += a b over the letters from LEVEL on; the last one is a plain loop. */
static void contract(const struct contraction *e, int level, const double *a, const double *b, double *c)
{
    int64_t n = level < e->n ? e->extent[level] : 1;
    int64_t sa = level < e->n ? e->stride[0][level] : 0, sb = level < e->n ? e->stride[1][level] : 0;
    int64_t sc = level < e->n ? e->stride[2][level] : 0;
    if (level + 1 < e->n) {
        for (int64_t i = 0; i < n; i++)
            contract(e, level + 1, a + i * sa, b + i * sb, c + i * sc);
    } else if (sc == 0) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += a[i * sa] * b[i * sb];
        *c += sum;
    } else {
        for (int64_t i = 0; i < n; i++)
            c[i * sc] += a[i * sa] * b[i * sb];
    }
}

void mpp_ref_einsum(const struct mpp_ref_in *in)
{
    struct contraction e = {0};
    const char *equation = mpp_attrs_string(&in->op->attrs, "equation", ""), *result = strchr(equation, '>') + 1;
    add_operand(&e, 2, &in->out[0], &result);
    add_operand(&e, 0, &in->in[0], &equation);
    equation += *equation == ',';
    add_operand(&e, 1, &in->in[1], &equation);
    /* The innermost loop walks c or b without gaps where there is such a letter. */
    for (int i = 0; i < e.n; i++)
        if (e.stride[1][i] == 1 && (e.stride[2][i] == 1 || e.stride[0][i] == 1) && e.extent[i] > 1) {
            int last = e.n - 1;
            int64_t extent = e.extent[i];
            e.extent[i] = e.extent[last];
            e.extent[last] = extent;
            for (int o = 0; o < 3; o++) {
                int64_t s = e.stride[o][i];
                e.stride[o][i] = e.stride[o][last];
                e.stride[o][last] = s;
            }
            break;
        }
    memset(in->out[0].data, 0, (size_t)mpp_ref_count(&in->out[0]) * sizeof(double));
    for (int i = 0; i < e.n; i++)
        if (e.extent[i] == 0)
            return;
    contract(&e, 0, in->in[0].data, in->in[1].data, in->out[0].data);
}
