/* Ids stay below the rows of the table they choose from, labels below the classes.
 *
 * The trainer refuses data that reach an input's limit. So the limits must fit what the ids are for, and an input that
 * states none gets the tightest that does. Ids may pass ops on their way that only hand them on. */
#include <string.h>

#include "ir/graph_edit.h"
#include "ir/op.h"

/* Operand IDS of KIND chooses among the entries of dimension DIM (-1: the last) of operand OF. */
static const struct use {
    int kind, ids, of, dim;
    const char *one, *many;
} uses[] = {
    {MPP_OP_EMBEDDING, 0, 1, 0, "row", "rows"},
    {MPP_OP_CROSS_ENTROPY, 1, 0, -1, "class", "classes"},
};

struct bound {                    /* of a tensor */
    int64_t below;                /* its ids must be below; 0: no op says */
    mpp_id op;                    /* the one that says so */
    const struct use *use;
};

static void tighten(struct bound *b, struct bound other)
{
    if (other.below && (!b->below || other.below < b->below))
        *b = other;
}

static void note_op(const struct mpp_graph *g, mpp_id o, struct bound *tensor)
{
    const struct mpp_gop *op = &g->ops[o];
    for (size_t i = 0; i < sizeof uses / sizeof uses[0]; i++) {
        const struct use *u = &uses[i];
        if (op->kind != u->kind)
            continue;
        const struct mpp_gtensor *of = &g->tensors[op->in[u->of]];
        tighten(&tensor[op->in[u->ids]], (struct bound){of->dims[u->dim < 0 ? of->n_dims - 1 : u->dim].size, o, u});
    }
    for (int k = 0; k < op->n_out; k++) {
        for (int i = 0; i < op->n_in && g->tensors[op->out[k]].dtype == MPP_I32; i++) {
            if (op->in[i] >= 0)
                tighten(&tensor[op->in[i]], tensor[op->out[k]]);
        }
    }
}

static bool has_role(const struct mpp_model_input *in, const char *role)
{
    return in->role && strcmp(in->role, role) == 0;
}

/* Input T against B, which some op says. */
static void check_input(struct mpp_graph *g, struct mpp_diag *diag, mpp_id t, struct bound b)
{
    const struct mpp_model_input *in = g->tensors[t].input;
    const struct mpp_gop *op = &g->ops[b.op];
    const char *type = op->item_type ? op->item_type : mpp_op_info(op->kind)->name;
    const char *what = b.below == 1 ? b.use->one : b.use->many;
    if (in->limit > b.below) {
        mpp_diag_error(diag, in->loc, "input \"%s\" has a limit of %lld, but %s \"%s\" (%s:%d) has %lld %s; a limit of %lld fits",
                       in->name, (long long)in->limit, type, op->name, op->loc.file, op->loc.line, (long long)b.below, what,
                       (long long)b.below);
    } else if (has_role(in, "ones") && b.below == 1) {
        mpp_diag_error(diag, in->loc, "input \"%s\" holds ones, but %s \"%s\" (%s:%d) has 1 %s, which is number 0", in->name,
                       type, op->name, op->loc.file, op->loc.line, what);
    } else if (has_role(in, "masked_labels") && !mpp_attrs_find(&op->attrs, "ignore_index")) {
        mpp_diag_error(diag, in->loc, "input \"%s\" holds -100 where no token is hidden, but %s \"%s\" (%s:%d) has no "
                       "ignore_index; give it ignore_index=\"-100\"", in->name, type, op->name, op->loc.file, op->loc.line);
    } else if (!in->limit) {
        struct mpp_model_input *limited = mpp_arena_memdup(g->arena, in, sizeof *in);
        limited->limit = b.below;
        g->tensors[t].input = limited;
    }
}

/* The id that stands for hidden tokens is an id too. */
static void check_mask(const struct mpp_graph *g, struct mpp_diag *diag, const struct mpp_model_input *in)
{
    for (int i = 0; has_role(in, "masked_tokens") && i < g->model->n_datasets; i++) {
        const struct mpp_dataset *d = &g->model->datasets[i];
        if (in->limit && d->mask_id >= in->limit)
            mpp_diag_error(diag, d->loc, "mask_id is %lld, but input \"%s\" takes ids below %lld", (long long)d->mask_id,
                           in->name, (long long)in->limit);
    }
}

void mpp_graph_limit_inputs(struct mpp_graph *g, struct mpp_diag *diag)
{
    struct mpp_arena *scratch = mpp_arena_scratch(g->arena);
    struct bound *tensor = mpp_arena_array(scratch, g->n_tensors, struct bound);
    for (mpp_id o = g->n_ops - 1; o >= 0; o--)
        note_op(g, o, tensor);
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        int before = mpp_diag_errors(diag);
        if (g->tensors[t].role == MPP_ROLE_INPUT && tensor[t].below)
            check_input(g, diag, t, tensor[t]);
        if (g->tensors[t].role == MPP_ROLE_INPUT && mpp_diag_errors(diag) == before)
            check_mask(g, diag, g->tensors[t].input);
    }
    mpp_arena_free(scratch);
}
