#include "ir/op.h"

#include <assert.h>
#include <string.h>

#include "ir/op_table.h"

#define mpp_grad_none NULL

static const struct mpp_op_info table[MPP_OP_COUNT] = {
#define MPP_OP(ID, op_name, op_cls, op_attrs, op_rule, shape_fn, is_linear, flops, op_expr, grad_fn, ref_fn, emit_fn, op_precision) \
    [MPP_OP_##ID] = {                                                                                                 \
        .id = #ID,                                                                                                    \
        .name = op_name,                                                                                              \
        .cls = MPP_CLASS_##op_cls,                                                                                    \
        .attrs = op_attrs,                                                                                            \
        .rule = op_rule,                                                                                              \
        .shape = mpp_shape_##shape_fn,                                                                                \
        .linear = is_linear,                                                                                          \
        .flops_per_point = flops,                                                                                     \
        .expr = op_expr,                                                                                              \
        .grad = mpp_grad_##grad_fn,                                                                                   \
        .ref = mpp_ref_##ref_fn,                                                                                      \
        .emit = #emit_fn,                                                                                             \
        .compute = MPP_COMPUTE_##op_precision,                                                                        \
    },
#include "ir/ops.def"
#undef MPP_OP
};

/* What a kernel exchanges while it runs when its ~ factor is split: one all-reduce per row of this table. */
static const struct internal_row {
    int kind;
    int per_row;              /* values per row of the iteration space; 0: one value in all */
    bool max;
    const char *what;
} internals[] = {
    {MPP_OP_LAYERNORM, 1, false, "row sums"},
    {MPP_OP_LAYERNORM, 1, false, "row square sums"},
    {MPP_OP_LAYERNORM_GRAD, 2, false, "row gradient sums"},
    {MPP_OP_SOFTMAX, 1, true, "row maximum"},
    {MPP_OP_SOFTMAX, 1, false, "row sums"},
    {MPP_OP_SOFTMAX_GRAD, 1, false, "row sums"},
    {MPP_OP_CROSS_ENTROPY, 1, true, "row maximum"},
    {MPP_OP_CROSS_ENTROPY, 1, false, "row sums"},
    {MPP_OP_CROSS_ENTROPY, 0, false, "loss"},
};

const struct mpp_op_info *mpp_op_info(int kind)
{
    assert(kind >= 0 && kind < MPP_OP_COUNT);
    return &table[kind];
}

int mpp_op_find(const char *name)
{
    for (int kind = 0; kind < MPP_OP_COUNT; kind++) {
        if (strcmp(table[kind].name, name) == 0)
            return kind;
    }
    return -1;
}

static bool in_some_input(const struct mpp_rule *rule, int factor)
{
    for (int o = 0; o < rule->n_in; o++) {
        for (int d = 0; d < rule->operand[o].n_dims; d++) {
            for (int k = 0; k < rule->operand[o].dim[d].n; k++) {
                if (rule->operand[o].dim[d].factor[k] == factor)
                    return true;
            }
        }
    }
    return false;
}

/* Points of the iteration space: the product of the factors, where
 *   - factors that only outputs have (rows of a table gradient) aren't walked;
 *   - a kernel with several ^ factors makes one pass over each (attention's two products): they add up. */
double mpp_op_flops(const struct mpp_graph *g, const struct mpp_gop *op)
{
    (void)g;
    const struct mpp_op_info *info = mpp_op_info(op->kind);
    const struct mpp_rule *rule = op->rule;
    double points = 1, passes = 0;
    for (int f = 0; f < rule->n_factors; f++) {
        double size = (double)rule->factor[f].size.size;
        bool pass = info->cls == MPP_CLASS_KERNEL && rule->factor[f].kind == MPP_FACTOR_NEVER;
        if (pass)
            passes += size;
        else if (rule->n_in == 0 || in_some_input(rule, f))
            points *= size;
    }
    return info->flops_per_point * points * (passes > 0 ? passes : 1);
}

/* The axes of MESH that SPLIT puts on FACTOR. */
static unsigned axes_on(struct mpp_split split, const struct mpp_mesh *mesh, int factor)
{
    unsigned mask = 0;
    for (int a = 0; a < mesh->n_axes; a++) {
        if (split.axis[a] == factor)
            mask |= 1u << a;
    }
    return mask;
}

int mpp_op_internal(const struct mpp_graph *g, const struct mpp_gop *op, const struct mpp_mesh *mesh,
                    struct mpp_split split, struct mpp_internal *out, int max)
{
    (void)g;
    const struct mpp_rule *rule = op->rule;
    bool split_inside = false;
    int64_t rows = 1;
    for (int f = 0; f < rule->n_factors; f++) {
        unsigned mask = axes_on(split, mesh, f);
        if (rule->factor[f].kind == MPP_FACTOR_INTERNAL)
            split_inside |= mask != 0;
        else
            rows *= mpp_block_padded(mesh, rule->factor[f].size.size, mask);
    }
    int n = 0;
    for (size_t i = 0; split_inside && i < sizeof internals / sizeof internals[0] && n < max; i++) {
        const struct internal_row *row = &internals[i];
        if (row->kind != op->kind)
            continue;
        int64_t elements = row->per_row ? rows * row->per_row : 1;
        out[n++] = (struct mpp_internal){elements, row->max, row->what};
    }
    return n;
}
