/* Whether the loss of a step is the sum of the losses of its micro-batches.
 *
 * A step that accumulates gradients over micro-batches adds up what each of them gives. That is the gradient of the
 * whole batch only if the loss is a sum of terms of one sample each. Every value is one of: */
#include "ir/graph_edit.h"
#include "ir/op.h"

enum spread {
    FIXED,                        /* the same in every micro-batch: parameters, constants, totals over the step */
    ROWS,                         /* its entries along the batch depend on that sample alone */
    TERMS,                        /* a sum of terms of one sample each */
    MIXED,                        /* anything else: a mean minus, a root of a sum, a softmax over the batch */
};

/* The one factor of RULE that is the batch; -1: none; -2: there are several, so that samples meet. */
static int batch_factor(const struct mpp_rule *rule)
{
    int found = -1;
    for (int f = 0; f < rule->n_factors; f++) {
        if (rule->factor[f].size.per_batch)
            found = found == -1 ? f : -2;
    }
    return found;
}

static bool operand_has(const struct mpp_rule_operand *o, int factor)
{
    for (int d = 0; d < o->n_dims; d++) {
        for (int k = 0; k < o->dim[d].n; k++) {
            if (o->dim[d].factor[k] == factor)
                return true;
        }
    }
    return false;
}

static enum spread spread_of(const struct mpp_gop *op, int out, const enum spread *tensor, bool total)
{
    const struct mpp_rule *rule = op->rule;
    int batch = batch_factor(rule), n_given = 0, n_terms = 0;
    for (int k = 0; k < op->n_in; k++) {
        if (op->in[k] < 0)
            continue;
        if (tensor[op->in[k]] == MIXED)
            return MIXED;
        n_given++;
        n_terms += tensor[op->in[k]] == TERMS;
    }
    if (n_terms > 0) {
        bool adds = n_terms == n_given && batch == -1;
        return !adds || !rule->linear ? MIXED : total ? FIXED : TERMS;
    }
    if (batch == -1)
        return total ? MIXED : FIXED;
    if (batch < 0 || total)
        return MIXED;
    enum mpp_factor_kind kind = rule->factor[batch].kind;
    if (kind != MPP_FACTOR_FREE && kind != MPP_FACTOR_SUM)
        return MIXED;
    if (operand_has(&rule->operand[rule->n_in + out], batch))
        return ROWS;
    return kind == MPP_FACTOR_SUM ? TERMS : MIXED;
}

bool mpp_graph_is_additive(const struct mpp_graph *g, mpp_id value)
{
    struct mpp_arena *scratch = mpp_arena_scratch(g->arena);
    enum spread *tensor = mpp_arena_array(scratch, g->n_tensors, enum spread);
    for (mpp_id t = 0; t < g->n_tensors; t++)
        tensor[t] = g->tensors[t].role == MPP_ROLE_INPUT ? ROWS : FIXED;
    for (mpp_id o = 0; o < g->n_ops; o++) {
        const struct mpp_gop *op = &g->ops[o];
        for (int k = 0; k < op->n_out; k++)
            tensor[op->out[k]] = spread_of(op, k, tensor, g->tensors[op->out[k]].role == MPP_ROLE_ACCUM);
    }
    bool additive = tensor[value] == TERMS;
    mpp_arena_free(scratch);
    return additive;
}
