/* Layers that own parameters, and those that draw random numbers. */
#include <math.h>
#include <string.h>

#include "ir/build.h"

static const struct mpp_attrs none = {0, NULL};

static int64_t product(const struct mpp_size *dims, int n)
{
    int64_t p = 1;
    for (int d = 0; d < n; d++)
        p *= dims[d].size;
    return p;
}

/* The one size that attribute NAME gives; false after a diagnostic. */
static bool one_size(struct mpp_builder *b, const struct mpp_attrs *attrs, const char *name, struct mpp_size *out)
{
    const struct mpp_attr *a = mpp_attrs_find(attrs, name);
    if (a->n != 1) {
        mpp_build_error(b, "%s is one size, not %d", name, a->n);
        return false;
    }
    *out = a->dims[0];
    return true;
}

/* ---- Linear ---- */

struct linear {
    const struct mpp_attr *units;
    int contract, lead;           /* dimensions of x that are contracted, and those before them */
    bool in_out;
    struct mpp_size contracted[MPP_GRAPH_MAX_DIMS];
    int64_t fan_in, fan_out;
};

static bool linear_read(struct mpp_builder *b, const struct mpp_attrs *attrs, mpp_id x, struct linear *l)
{
    const struct mpp_gtensor *t = mpp_build_tensor(b, x);
    l->units = mpp_attrs_find(attrs, "units");
    int64_t contract = mpp_attrs_int(attrs, "contract", 1);
    l->in_out = strcmp(mpp_attrs_string(attrs, "weight_layout", "out_in"), "in_out") == 0;
    if (contract < 1 || contract > t->n_dims) {
        mpp_build_error(b, "contract=\"%lld\", but x is %s %s", (long long)contract, t->name,
                        mpp_dims_text(b->arena, t));
        return false;
    }
    l->contract = (int)contract;
    l->lead = t->n_dims - l->contract;
    if (l->contract + l->units->n > MPP_GRAPH_MAX_DIMS || l->lead + l->units->n > MPP_GRAPH_MAX_DIMS) {
        mpp_build_error(b, "the weight or the result has more than %d dimensions", MPP_GRAPH_MAX_DIMS);
        return false;
    }
    memcpy(l->contracted, t->dims + l->lead, (size_t)l->contract * sizeof l->contracted[0]);
    l->fan_in = product(l->contracted, l->contract);
    l->fan_out = product(l->units->dims, l->units->n);
    return true;
}

/* The weight's dimensions in factor form: units and contracted ones, in the layout's order. */
static int linear_weight_dims(const struct linear *l, struct mpp_size *dims)
{
    int n_units = l->units->n;
    memcpy(dims + (l->in_out ? l->contract : 0), l->units->dims, (size_t)n_units * sizeof *dims);
    memcpy(dims + (l->in_out ? 0 : n_units), l->contracted, (size_t)l->contract * sizeof *dims);
    return n_units + l->contract;
}

/* An existing weight must have the units where the layout puts them (the product checks the rest). */
static bool linear_tied_fits(struct mpp_builder *b, const struct linear *l, mpp_id weight)
{
    const struct mpp_gtensor *t = mpp_build_tensor(b, weight);
    int first = l->in_out ? l->contract : 0;
    bool fits = t->n_dims == l->contract + l->units->n;
    for (int i = 0; fits && i < l->units->n; i++)
        fits = mpp_size_equal(t->dims[first + i], l->units->dims[i]);
    if (!fits) {
        struct mpp_gtensor want = {.n_dims = 0};
        want.n_dims = linear_weight_dims(l, want.dims);
        mpp_build_error(b, "weight %s is %s, but %s is wanted", t->name, mpp_dims_text(b->arena, t),
                        mpp_dims_text(b->arena, &want));
    }
    return fits;
}

static mpp_id linear_weight(struct mpp_builder *b, const struct mpp_attrs *attrs, const struct linear *l)
{
    const char *tied = mpp_attrs_string(attrs, "weight", NULL);
    if (tied) {
        mpp_id weight = mpp_build_tied(b, tied);
        return weight >= 0 && !linear_tied_fits(b, l, weight) ? MPP_BUILD_FAILED : weight;
    }
    struct mpp_size dims[MPP_GRAPH_MAX_DIMS];
    struct mpp_param_spec spec = {
        .suffix = "weight",
        .published = mpp_attrs_string(attrs, "weight_name", NULL),
        .n_dims = linear_weight_dims(l, dims),
        .dims = dims,
        .n_published = 2,
        .published_dims = {l->in_out ? l->fan_in : l->fan_out, l->in_out ? l->fan_out : l->fan_in},
        .init = mpp_attrs_string(attrs, "init", "kaiming_uniform"),
        .fan_in = l->fan_in,
    };
    return mpp_build_param(b, &spec);
}

/* "bsh,hnd->bsnd" */
static const char *linear_equation(struct mpp_builder *b, const struct linear *l)
{
    static const char lead[] = "bstuvw", contracted[] = "hijklm", units[] = "nopqrx";
    const char *weight = l->in_out
                             ? mpp_arena_printf(b->arena, "%.*s%.*s", l->contract, contracted, l->units->n, units)
                             : mpp_arena_printf(b->arena, "%.*s%.*s", l->units->n, units, l->contract, contracted);
    return mpp_arena_printf(b->arena, "%.*s%.*s,%s->%.*s%.*s", l->lead, lead, l->contract, contracted, weight, l->lead,
                            lead, l->units->n, units);
}

/* The activation named by the attribute, as the item's output. */
static mpp_id linear_activation(struct mpp_builder *b, const char *name, mpp_id x)
{
    static const struct {
        const char *name;
        int kind;
        const char *approximate;
    } forms[] = {
        {"relu", MPP_OP_RELU, NULL}, {"gelu", MPP_OP_GELU, "none"}, {"gelu_tanh", MPP_OP_GELU, "tanh"},
        {"tanh", MPP_OP_TANH, NULL}, {"sigmoid", MPP_OP_SIGMOID, NULL},
    };
    size_t i = 0;
    while (strcmp(forms[i].name, name) != 0)
        i++;
    struct mpp_attrs attrs = none;
    if (forms[i].approximate)
        attrs = MPP_ATTRS(b->arena, mpp_attr_string("approximate", forms[i].approximate));
    return mpp_build_final(b, forms[i].kind, "activation", 1, &x, attrs, NULL);
}

enum mpp_status mpp_layer_linear(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                 int *out_n, mpp_id *out)
{
    (void)n_in;
    (void)out_n;
    struct linear l;
    if (!linear_read(b, attrs, in[0], &l))
        return MPP_INVALID;
    bool bias = mpp_attrs_int(attrs, "bias", 1);
    const char *activation = mpp_attrs_string(attrs, "activation", NULL);
    struct mpp_attrs einsum = MPP_ATTRS(b->arena, mpp_attr_string("equation", linear_equation(b, &l)));
    mpp_id pair[2] = {in[0], linear_weight(b, attrs, &l)};
    if (!bias && !activation)
        return mpp_build_status(out[0] = mpp_build_final(b, MPP_OP_EINSUM, NULL, 2, pair, einsum, NULL));
    mpp_id y = mpp_build_op(b, MPP_OP_EINSUM, NULL, "product", 2, pair, einsum);
    if (bias) {
        struct mpp_param_spec spec = {
            .suffix = "bias",
            .published = mpp_attrs_string(attrs, "bias_name", NULL),
            .n_dims = l.units->n,
            .dims = l.units->dims,
            .n_published = 1,
            .published_dims = {l.fan_out},
            .init = mpp_attrs_string(attrs, "bias_init", "zeros"),
            .fan_in = l.fan_in,
        };
        mpp_id sum[2] = {y, mpp_build_param(b, &spec)};
        y = activation ? mpp_build_op(b, MPP_OP_ADD, "bias", "sum", 2, sum, none)
                       : mpp_build_final(b, MPP_OP_ADD, "bias", 2, sum, none, NULL);
    }
    out[0] = activation ? linear_activation(b, activation, y) : y;
    return mpp_build_status(out[0]);
}

/* ---- tables ---- */

/* The table of ROWS x COLUMNS entries named by the two attributes, new or shared. */
static mpp_id table(struct mpp_builder *b, const struct mpp_attrs *attrs, const char *rows, const char *columns)
{
    struct mpp_size dims[2];
    if (!one_size(b, attrs, rows, &dims[0]) || !one_size(b, attrs, columns, &dims[1]))
        return MPP_BUILD_FAILED;
    const char *tied = mpp_attrs_string(attrs, "weight", NULL);
    if (tied) {
        mpp_id id = mpp_build_tied(b, tied);
        if (id < 0)
            return id;
        const struct mpp_gtensor *t = mpp_build_tensor(b, id);
        if (t->n_dims != 2 || !mpp_size_equal(t->dims[0], dims[0]) || !mpp_size_equal(t->dims[1], dims[1])) {
            mpp_build_error(b, "weight %s is %s, but [%s %lld, %s %lld] is wanted", t->name, mpp_dims_text(b->arena, t),
                            rows, (long long)dims[0].size, columns, (long long)dims[1].size);
            return MPP_BUILD_FAILED;
        }
        return id;
    }
    struct mpp_param_spec spec = {
        .suffix = "weight",
        .published = mpp_attrs_string(attrs, "weight_name", NULL),
        .n_dims = 2,
        .dims = dims,
        .n_published = 2,
        .published_dims = {dims[0].size, dims[1].size},
        .init = mpp_attrs_string(attrs, "init", "normal(0,1)"),
        .fan_in = dims[1].size,
    };
    return mpp_build_param(b, &spec);
}

enum mpp_status mpp_layer_embedding(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                    int *out_n, mpp_id *out)
{
    (void)n_in;
    (void)out_n;
    mpp_id pair[2] = {in[0], table(b, attrs, "num_embeddings", "embedding_dim")};
    return mpp_build_status(out[0] = mpp_build_final(b, MPP_OP_EMBEDDING, NULL, 2, pair, none, NULL));
}

/* Rows 0 .. length - 1 of the table, where length is the last dimension of the ids. */
enum mpp_status mpp_layer_position_embedding(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in,
                                             const mpp_id *in, int *out_n, mpp_id *out)
{
    (void)n_in;
    (void)out_n;
    const struct mpp_gtensor *ids = mpp_build_tensor(b, in[0]);
    if (ids->n_dims < 1) {
        mpp_build_error(b, "%s has no dimension to take the length from", ids->name);
        return MPP_INVALID;
    }
    struct mpp_size length = ids->dims[ids->n_dims - 1];
    mpp_id rows = table(b, attrs, "max_positions", "embedding_dim");
    struct mpp_attrs a = MPP_ATTRS(b->arena, mpp_attr_dims("length", 1, &length));
    return mpp_build_status(out[0] = mpp_build_final(b, MPP_OP_POSITION, NULL, 1, &rows, a, NULL));
}

/* ---- normalisation ---- */

/* One parameter as long as the last dimension of x. */
static mpp_id row_param(struct mpp_builder *b, const struct mpp_attrs *attrs, mpp_id x, const char *suffix,
                        const char *name_attr, const char *init)
{
    const struct mpp_gtensor *t = mpp_build_tensor(b, x);
    struct mpp_size dim = t->dims[t->n_dims - 1];
    struct mpp_param_spec spec = {
        .suffix = suffix,
        .published = mpp_attrs_string(attrs, name_attr, NULL),
        .n_dims = 1,
        .dims = &dim,
        .n_published = 1,
        .published_dims = {dim.size},
        .init = init,
    };
    return mpp_build_param(b, &spec);
}

static bool has_rows(struct mpp_builder *b, mpp_id x)
{
    const struct mpp_gtensor *t = mpp_build_tensor(b, x);
    if (t->n_dims < 1)
        mpp_build_error(b, "%s has no dimension to normalise over", t->name);
    return t->n_dims >= 1;
}

enum mpp_status mpp_layer_layer_normalization(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in,
                                              const mpp_id *in, int *out_n, mpp_id *out)
{
    (void)n_in;
    (void)out_n;
    static const char *const extra[] = {"mean", "rstd", NULL};
    if (!has_rows(b, in[0]))
        return MPP_INVALID;
    mpp_id operands[3] = {in[0], -1, -1};
    bool affine = mpp_attrs_int(attrs, "affine", 1);
    if (affine)
        operands[1] = row_param(b, attrs, in[0], "weight", "weight_name", "ones");
    if (affine && mpp_attrs_int(attrs, "bias", 1))
        operands[2] = row_param(b, attrs, in[0], "bias", "bias_name", "zeros");
    struct mpp_attrs a = MPP_ATTRS(b->arena, mpp_attr_float("epsilon", mpp_attrs_float(attrs, "epsilon", 1e-5)));
    return mpp_build_status(out[0] = mpp_build_final(b, MPP_OP_LAYERNORM, NULL, 3, operands, a, extra));
}

/* x / sqrt(mean(x^2) + epsilon) weight (Zhang & Sennrich 2019). */
enum mpp_status mpp_layer_rms_normalization(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in,
                                            const mpp_id *in, int *out_n, mpp_id *out)
{
    (void)n_in;
    (void)out_n;
    if (!has_rows(b, in[0]))
        return MPP_INVALID;
    mpp_id x = in[0];
    int64_t last = mpp_build_tensor(b, x)->n_dims - 1;
    bool affine = mpp_attrs_int(attrs, "affine", 1);
    mpp_id y = mpp_build_op(b, MPP_OP_MUL, "square", "square", 2, (mpp_id[]){x, x}, none);
    y = mpp_build_op(b, MPP_OP_REDUCE_MEAN, "mean_square", "mean_square", 1, &y,
                     MPP_ATTRS(b->arena, mpp_attr_ints("axes", 1, &last), mpp_attr_bool("keepdims", true)));
    mpp_id epsilon = mpp_build_constant(b, "epsilon", mpp_attrs_float(attrs, "epsilon", 1e-6));
    y = mpp_build_op(b, MPP_OP_ADD, "mean_square_eps", "mean_square_eps", 2, (mpp_id[]){y, epsilon}, none);
    y = mpp_build_op(b, MPP_OP_SQRT, "rms", "rms", 1, &y, none);
    mpp_id pair[2] = {x, y};
    if (!affine)
        return mpp_build_status(out[0] = mpp_build_final(b, MPP_OP_DIV, NULL, 2, pair, none, NULL));
    y = mpp_build_op(b, MPP_OP_DIV, NULL, "normalised", 2, pair, none);
    mpp_id scaled[2] = {y, row_param(b, attrs, x, "weight", "weight_name", "ones")};
    return mpp_build_status(out[0] = mpp_build_final(b, MPP_OP_MUL, "weight", 2, scaled, none, NULL));
}

/* ---- attention, dropout ---- */

static bool probability(struct mpp_builder *b, const char *name, double p)
{
    if (p >= 0 && p < 1)
        return true;
    mpp_build_error(b, "%s is %g; it must be at least 0 and below 1", name, p);
    return false;
}

enum mpp_status mpp_layer_attention(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                    int *out_n, mpp_id *out)
{
    (void)out_n;
    static const char *const extra[] = {"lse", NULL};
    const struct mpp_gtensor *q = mpp_build_tensor(b, in[0]);
    if (q->n_dims != 4) {
        mpp_build_error(b, "%s is %s; [batch, seq, heads, head_dim] is wanted", q->name, mpp_dims_text(b->arena, q));
        return MPP_INVALID;
    }
    double scale = mpp_attrs_float(attrs, "scale", 1 / sqrt((double)q->dims[3].size));
    double dropout = mpp_attrs_float(attrs, "dropout", 0);
    if (!probability(b, "dropout", dropout))
        return MPP_INVALID;
    mpp_id operands[4] = {in[0], in[1], in[2], n_in > 3 ? in[3] : -1};
    struct mpp_attrs a = MPP_ATTRS(b->arena, mpp_attr_bool("causal", mpp_attrs_int(attrs, "causal", 0)),
                                   mpp_attr_float("scale", scale), mpp_attr_float("dropout", dropout),
                                   mpp_attr_int("stream", dropout > 0 ? ++b->streams : 0));
    return mpp_build_status(out[0] = mpp_build_final(b, MPP_OP_ATTENTION, NULL, 4, operands, a, extra));
}

enum mpp_status mpp_layer_dropout(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                  int *out_n, mpp_id *out)
{
    (void)n_in;
    (void)out_n;
    double ratio = mpp_attrs_float(attrs, "ratio", 0.5);
    if (!probability(b, "ratio", ratio))
        return MPP_INVALID;
    out[0] = in[0];
    if (ratio == 0)
        return MPP_OK;
    struct mpp_attrs a = MPP_ATTRS(b->arena, mpp_attr_float("ratio", ratio), mpp_attr_int("stream", ++b->streams));
    return mpp_build_status(out[0] = mpp_build_final(b, MPP_OP_DROPOUT, NULL, 1, in, a, NULL));
}

enum mpp_status mpp_layer_parameter(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                    int *out_n, mpp_id *out)
{
    (void)n_in;
    (void)in;
    (void)out_n;
    const struct mpp_attr *shape = mpp_attrs_find(attrs, "shape");
    if (shape->n > MPP_GRAPH_MAX_DIMS) {
        mpp_build_error(b, "shape has more than %d dimensions", MPP_GRAPH_MAX_DIMS);
        return MPP_INVALID;
    }
    struct mpp_param_spec spec = {
        .published = mpp_attrs_string(attrs, "published", b->item->name),
        .n_dims = shape->n,
        .dims = shape->dims,
        .n_published = shape->n,
        .init = mpp_attrs_string(attrs, "init", "zeros"),
        .fan_in = shape->n ? shape->dims[shape->n - 1].size : 1,
    };
    for (int d = 0; d < shape->n; d++)
        spec.published_dims[d] = shape->dims[d].size;
    return mpp_build_status(out[0] = mpp_build_param(b, &spec));
}
