/* Losses: one number per micro-batch, already divided by the step's global count. */
#include <string.h>

#include "ir/build.h"

static const struct mpp_attrs none = {0, NULL};

static bool is_mean(const struct mpp_attrs *attrs)
{
    return strcmp(mpp_attrs_string(attrs, "reduction", "mean"), "mean") == 0;
}

static bool makes(const struct mpp_gop *op, const bool *wanted)
{
    for (int k = 0; k < op->n_out; k++) {
        if (wanted[op->out[k]])
            return true;
    }
    return false;
}

/* LABELS for the present phase, the prologue: the ops that make them of inputs stand in the forward phase, and again here. */
static mpp_id remade(struct mpp_builder *b, mpp_id labels)
{
    struct mpp_graph *g = b->g;
    struct mpp_arena *scratch = mpp_arena_scratch(b->arena);
    int n_ops = g->n_ops, n_tensors = g->n_tensors;
    bool *wanted = mpp_arena_array(scratch, n_tensors, bool);
    mpp_id *copy = mpp_arena_array(scratch, n_tensors, mpp_id), in[MPP_BUILD_MAX_IO], first = 0;
    wanted[labels] = true;
    for (int o = n_ops - 1; o >= 0; o--) {
        for (int k = 0; makes(&g->ops[o], wanted) && k < g->ops[o].n_in; k++)
            wanted[g->ops[o].in[k]] = true;
    }
    for (mpp_id t = 0; t < n_tensors; t++)
        copy[t] = t;
    for (int o = 0; o < n_ops && first >= 0; o++) {
        if (!makes(&g->ops[o], wanted))
            continue;
        for (int k = 0; k < g->ops[o].n_in; k++)
            in[k] = copy[g->ops[o].in[k]];
        first = mpp_build_op(b, g->ops[o].kind, "labels", "labels", g->ops[o].n_in, in, g->ops[o].attrs);
        for (int k = 0; first >= 0 && k < g->ops[o].n_out; k++)
            copy[g->ops[o].out[k]] = g->ops[g->tensors[first].op].out[k];
    }
    mpp_id made = first < 0 ? first : copy[labels];
    mpp_arena_free(scratch);
    return made;
}

/* 1 / (labels that count in the whole step): counted per micro-batch in the prologue. */
static mpp_id counted_scale(struct mpp_builder *b, mpp_id labels, struct mpp_attrs ignore)
{
    b->phase = MPP_PHASE_PROLOGUE;
    labels = remade(b, labels);
    mpp_id count = mpp_build_op(b, MPP_OP_COUNT_LABELS, "count", "count", 1, &labels, ignore);
    mpp_id total = mpp_build_op(b, MPP_OP_ACCUMULATE, "count_total", "count_total", 1, &count, none);
    b->phase = MPP_PHASE_FORWARD;
    if (total < 0)
        return total;
    b->g->tensors[total].role = MPP_ROLE_ACCUM;
    mpp_id one = mpp_build_constant(b, "one", 1);
    mpp_id at_least = mpp_build_op(b, MPP_OP_MAX, "count_max", "count_max", 2, (mpp_id[]){total, one}, none);
    return mpp_build_op(b, MPP_OP_RECIPROCAL, "scale", "scale", 1, &at_least, none);
}

enum mpp_status mpp_layer_cross_entropy(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in,
                                        const mpp_id *in, int *out_n, mpp_id *out)
{
    (void)n_in;
    (void)out_n;
    const struct mpp_attr *ignore = mpp_attrs_find(attrs, "ignore_index");
    const struct mpp_gtensor *labels = mpp_build_tensor(b, in[1]);
    struct mpp_attrs passed = ignore ? MPP_ATTRS(b->arena, mpp_attr_int("ignore_index", ignore->i)) : none;
    mpp_id scale;
    if (labels->dtype == MPP_I32 && ignore && is_mean(attrs)) {
        scale = counted_scale(b, in[1], passed);
    } else {
        int64_t rows = mpp_build_global_count(b, labels->dims, labels->n_dims);
        scale = mpp_build_constant(b, "scale", is_mean(attrs) ? 1 / (double)rows : 1);
    }
    mpp_id operands[3] = {in[0], in[1], scale};
    static const char *const extra[] = {"lse", NULL};
    out[0] = mpp_build_final(b, MPP_OP_CROSS_ENTROPY, NULL, 3, operands, passed, extra);
    return mpp_build_status(out[0]);
}

/* A loss that broadcasts is almost always a mistake. */
static bool same_shapes(struct mpp_builder *b, mpp_id x, mpp_id target)
{
    const struct mpp_gtensor *s = mpp_build_tensor(b, x), *t = mpp_build_tensor(b, target);
    bool same = s->n_dims == t->n_dims;
    for (int d = 0; same && d < s->n_dims; d++)
        same = s->dims[d].size == t->dims[d].size;
    if (!same)
        mpp_build_error(b, "%s %s and %s %s have different shapes; reshape one of them", s->name,
                        mpp_dims_text(b->arena, s), t->name, mpp_dims_text(b->arena, t));
    return same;
}

enum mpp_status mpp_layer_mean_squared_error(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in,
                                             const mpp_id *in, int *out_n, mpp_id *out)
{
    (void)out_n;
    if (!same_shapes(b, in[0], in[1]))
        return MPP_INVALID;
    mpp_id diff = mpp_build_op(b, MPP_OP_SUB, "difference", "difference", n_in, in, none);
    mpp_id square = mpp_build_op(b, MPP_OP_MUL, "square", "square", 2, (mpp_id[]){diff, diff}, none);
    if (square < 0)
        return MPP_INVALID;
    const struct mpp_gtensor *t = mpp_build_tensor(b, square);
    int64_t axes[MPP_GRAPH_MAX_DIMS], count = mpp_build_global_count(b, t->dims, t->n_dims);
    for (int d = 0; d < t->n_dims; d++)
        axes[d] = d;
    struct mpp_attrs all = MPP_ATTRS(b->arena, mpp_attr_ints("axes", t->n_dims, axes), mpp_attr_bool("keepdims", false));
    if (!is_mean(attrs))
        return mpp_build_status(out[0] = mpp_build_final(b, MPP_OP_REDUCE_SUM, NULL, 1, &square, all, NULL));
    mpp_id sum = mpp_build_op(b, MPP_OP_REDUCE_SUM, "sum", "sum", 1, &square, all);
    struct mpp_attrs scale = MPP_ATTRS(b->arena, mpp_attr_float("value", 1 / (double)count));
    return mpp_build_status(out[0] = mpp_build_final(b, MPP_OP_SCALE, "scale", 1, &sum, scale, NULL));
}
