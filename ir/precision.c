/* The pass "precision" (precision.h): casts, f32 masters, loss scaling. */
#include "ir/precision.h"

#include <string.h>

#include "ir/graph_edit.h"
#include "ir/op.h"
#include "ir/rule_text.h"

#define FIRST_SCALE 65536.0       /* of the loss, where it is dynamic (torch.amp.GradScaler's) */

/* Where an added op stands, relative to one that was there. */
enum place { BEFORE, ITSELF, AFTER, N_PLACES };

struct precision {
    struct mpp_graph *g;
    struct mpp_diag *diag;
    struct mpp_arena *arena;      /* scratch */
    enum mpp_dtype low;
    int n_ops, n_tensors;         /* before the pass */
    mpp_id *cast[2];              /* [n_tensors] in f32; in LOW; -1: none yet */
    int *first_use, *use, *use_operand; /* readers of tensor t: use[first_use[t]] .. use[first_use[t + 1] - 1] */
    struct mpp_rule_text *text;   /* [MPP_OP_COUNT] of the rows that have one */
    size_t cap_rank;
    int *rank;                    /* [n_ops] N_PLACES * op + place: ops are sorted by it */
};

bool mpp_precision_read(const char *word, enum mpp_dtype *out)
{
    static const struct {
        const char *word;
        enum mpp_dtype dtype;
    } words[] = {{"f32", MPP_F32}, {"fp32", MPP_F32}, {"bf16", MPP_BF16}, {"f16", MPP_F16}, {"fp16", MPP_F16}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(word, words[i].word) == 0) {
            *out = words[i].dtype;
            return true;
        }
    }
    return false;
}

/* ---- what is known before ---- */

static void note_uses(struct precision *p)
{
    const struct mpp_graph *g = p->g;
    p->first_use = mpp_arena_array(p->arena, p->n_tensors + 1, int);
    for (mpp_id o = 0; o < p->n_ops; o++)
        for (int k = 0; k < g->ops[o].n_in; k++)
            if (g->ops[o].in[k] >= 0)
                p->first_use[g->ops[o].in[k] + 1]++;
    for (mpp_id t = 0; t < p->n_tensors; t++)
        p->first_use[t + 1] += p->first_use[t];
    int total = p->first_use[p->n_tensors], *fill = mpp_arena_memdup(p->arena, p->first_use, sizeof(int) * ((size_t)p->n_tensors + 1));
    p->use = mpp_arena_array(p->arena, total, int);
    p->use_operand = mpp_arena_array(p->arena, total, int);
    for (mpp_id o = 0; o < p->n_ops; o++)
        for (int k = 0; k < g->ops[o].n_in; k++) {
            mpp_id t = g->ops[o].in[k];
            if (t < 0)
                continue;
            p->use[fill[t]] = o;
            p->use_operand[fill[t]++] = k;
        }
}

static void read_rules(struct precision *p)
{
    p->text = mpp_arena_array(p->arena, MPP_OP_COUNT, struct mpp_rule_text);
    for (int kind = 0; kind < MPP_OP_COUNT; kind++)
        if (!mpp_rule_text_parse(mpp_op_info(kind)->rule, &p->text[kind]))
            p->text[kind] = (struct mpp_rule_text){0};
}

/* Must operand K of OP be f32 whatever the op computes in? */
static bool is_wide_operand(const struct precision *p, const struct mpp_gop *op, int k)
{
    const struct mpp_rule_text *text = &p->text[op->kind];
    return mpp_op_info(op->kind)->compute == MPP_COMPUTE_WIDE || (k < text->n_in && text->operand[k].f32);
}

static bool is_float(const struct precision *p, mpp_id t)
{
    return t >= 0 && mpp_dtype_is_float(p->g->tensors[t].dtype);
}

static void set_rank(struct precision *p, mpp_id op, mpp_id beside, enum place place)
{
    p->rank = mpp_arena_grow(p->arena, p->rank, &p->cap_rank, (size_t)op + 1, sizeof *p->rank);
    p->rank[op] = N_PLACES * beside + (int)place;
}

/* ---- casts ---- */

/* Append a Cast of T to DTYPE in the layer and phase of op BESIDE; returns its output, or -1. */
static mpp_id add_cast(struct precision *p, mpp_id t, enum mpp_dtype dtype, mpp_id beside, enum place place)
{
    struct mpp_graph *g = p->g;
    struct mpp_gop proto = g->ops[beside];
    const char *word = mpp_dtype_name(dtype);
    proto.item_type = NULL;
    proto.name = mpp_arena_printf(g->arena, "%s.%s", g->tensors[t].name, word);
    mpp_id op = mpp_graph_add_op(g, p->diag, MPP_OP_CAST, &proto, 1, &t, MPP_ATTRS(g->arena, mpp_attr_string("to", word)), NULL);
    if (op < 0)
        return -1;
    set_rank(p, op, beside, place);
    return g->ops[op].out[0];
}

/* T in DTYPE for its reader O: right after what makes it, so that all readers share it; a parameter or input is cast
 * before its first reader. */
static mpp_id as_dtype(struct precision *p, mpp_id t, enum mpp_dtype dtype, mpp_id o)
{
    if (p->g->tensors[t].dtype == dtype)
        return t;
    mpp_id *known = &p->cast[dtype == p->low][t], maker = p->g->tensors[t].op;
    if (*known < 0)
        *known = maker >= 0 ? add_cast(p, t, dtype, maker, AFTER) : add_cast(p, t, dtype, o, BEFORE);
    return *known;
}

/* The type of those operands of OP that aren't f32 in any case. */
static enum mpp_dtype operand_type(const struct precision *p, const struct mpp_gop *op)
{
    enum mpp_op_compute compute = mpp_op_info(op->kind)->compute;
    enum mpp_dtype widest = p->low;
    for (int k = 0; k < op->n_in; k++)
        if (is_float(p, op->in[k]) && !is_wide_operand(p, op, k) && p->g->tensors[op->in[k]].dtype == MPP_F32)
            widest = MPP_F32;
    return compute == MPP_COMPUTE_LOW ? p->low : compute == MPP_COMPUTE_WIDE ? MPP_F32 : widest;
}

/* Do all readers want T in f32, so that a product should leave it so? Gradients of parameters, above all. */
static bool is_wanted_wide(const struct precision *p, mpp_id t)
{
    for (int u = p->first_use[t]; u < p->first_use[t + 1]; u++)
        if (!is_wide_operand(p, &p->g->ops[p->use[u]], p->use_operand[u]))
            return false;
    return p->first_use[t] < p->first_use[t + 1];
}

static void widen_product(struct precision *p, mpp_id o)
{
    struct mpp_gop *op = &p->g->ops[o];
    if (mpp_op_info(op->kind)->cls != MPP_CLASS_CONTRACTION || !is_wanted_wide(p, op->out[0]))
        return;
    struct mpp_attr *attr = mpp_arena_array(p->arena, op->attrs.n + 1, struct mpp_attr);
    memcpy(attr, op->attrs.attr, (size_t)op->attrs.n * sizeof *attr);
    attr[op->attrs.n] = mpp_attr_bool("wide", true);
    op->attrs = mpp_attrs_make(p->g->arena, op->attrs.n + 1, attr);
}

/* Infer op O again: its operands' types are known now. */
static enum mpp_status infer_types(struct precision *p, mpp_id o)
{
    struct mpp_gop *op = &p->g->ops[o];
    struct mpp_rule *rule;
    enum mpp_dtype dtype[64];
    MPP_TRY(mpp_graph_infer(p->g, p->diag, op, &rule, dtype));
    op->rule = rule;
    for (int k = 0; k < op->n_out; k++)
        p->g->tensors[op->out[k]].dtype = dtype[k];
    return MPP_OK;
}

/* Elementwise ops read any types; the others get theirs. */
static enum mpp_status convert_op(struct precision *p, mpp_id o)
{
    const struct mpp_op_info *info = mpp_op_info(p->g->ops[o].kind);
    enum mpp_dtype type = operand_type(p, &p->g->ops[o]);
    bool mixes = info->cls == MPP_CLASS_ELEMENTWISE && info->compute != MPP_COMPUTE_WIDE;
    for (int k = 0; k < p->g->ops[o].n_in && !mixes; k++) {
        mpp_id t = p->g->ops[o].in[k];
        if (!is_float(p, t))
            continue;
        mpp_id cast = as_dtype(p, t, is_wide_operand(p, &p->g->ops[o], k) ? MPP_F32 : type, o);
        if (cast < 0)
            return MPP_INVALID;
        p->g->ops[o].in[k] = cast;
    }
    widen_product(p, o);
    return infer_types(p, o);
}

/* ---- parameters ---- */

/* Is there a reader, up to the update, that may take parameter T in 16 bits? */
static bool is_read_low(const struct precision *p, mpp_id t)
{
    for (int u = p->first_use[t]; u < p->first_use[t + 1]; u++) {
        const struct mpp_gop *op = &p->g->ops[p->use[u]];
        if (op->phase != MPP_PHASE_UPDATE && !is_wide_operand(p, op, p->use_operand[u]))
            return true;
    }
    return false;
}

static mpp_id add_master(struct precision *p, mpp_id param)
{
    struct mpp_graph *g = p->g;
    struct mpp_gtensor like = g->tensors[param];
    mpp_id t = mpp_graph_add_tensor(g, mpp_arena_printf(g->arena, "master.%s", like.info->published), MPP_F32, like.n_dims,
                                    like.dims);
    g->tensors[t].role = MPP_ROLE_STATE;
    g->tensors[t].param = param;
    g->tensors[t].repeat = like.repeat;
    g->tensors[t].index = like.index;
    like.info->master = t;
    return t;
}

/* The update of PARAM works on a master in f32; then the parameter is rounded from it. */
static enum mpp_status round_parameter(struct precision *p, mpp_id param)
{
    struct mpp_graph *g = p->g;
    mpp_id master = add_master(p, param);
    g->tensors[param].dtype = p->low;
    for (int u = p->first_use[param]; u < p->first_use[param + 1]; u++) {
        mpp_id o = p->use[u];
        if (g->ops[o].phase != MPP_PHASE_UPDATE)
            continue;
        g->ops[o].in[p->use_operand[u]] = master;
        for (int k = 0; k < g->ops[o].n_out; k++) {
            mpp_id made = g->ops[o].out[k];
            if (g->tensors[made].updates != param)
                continue;
            g->tensors[made].updates = master;
            mpp_id rounded = add_cast(p, made, p->low, o, AFTER);
            if (rounded < 0)
                return MPP_INVALID;
            g->tensors[rounded].updates = g->tensors[rounded].param = param;
        }
    }
    return MPP_OK;
}

/* ---- loss scaling ---- */

/* A number that lives across steps, is saved with the optimiser's state and begins as VALUE. */
static mpp_id add_scalar(struct mpp_graph *g, const char *name, double value)
{
    mpp_id t = mpp_graph_add_tensor(g, name, MPP_F32, 0, NULL);
    struct mpp_param *info = mpp_arena_array(g->arena, 1, struct mpp_param);
    *info = (struct mpp_param){.published = g->tensors[t].name, .n_published = 1, .published_dims = {1}, .init = "constant",
                               .init_a = value, .gradient = -1, .master = -1};
    g->tensors[t].role = MPP_ROLE_PARAM;
    g->tensors[t].param = t;
    g->tensors[t].info = info;
    return t;
}

/* The backward pass begins with the scale instead of 1. */
static enum mpp_status scale_loss(struct precision *p)
{
    struct mpp_graph *g = p->g;
    for (mpp_id o = 0; o < p->n_ops; o++) {
        struct mpp_gop *op = &g->ops[o];
        if (op->phase != MPP_PHASE_BACKWARD || op->n_in > 0 || op->forward != g->tensors[g->loss].op)
            continue;
        op->kind = MPP_OP_IDENTITY;
        op->n_in = 1;
        op->in = mpp_arena_memdup(g->arena, &g->loss_scale, sizeof g->loss_scale);
        op->attrs = (struct mpp_attrs){0};
        return infer_types(p, o);
    }
    return MPP_OK;
}

/* What made the norm and the clipping factor also judges the step, and makes the scale anew. */
static enum mpp_status judge_step(struct precision *p, const struct mpp_training *t)
{
    struct mpp_graph *g = p->g;
    mpp_id o = g->tensors[g->grad_norm].op, state[3], made[5];
    state[0] = g->loss_scale;
    state[1] = add_scalar(g, "loss_scale.good_steps", 0);
    state[2] = add_scalar(g, "loss_scale.skipped_steps", 0);
    memcpy(made, g->ops[o].out, 2 * sizeof made[0]);
    for (int k = 0; k < 3; k++) {
        made[2 + k] = mpp_graph_add_tensor(g, mpp_arena_printf(g->arena, "%s.new", g->tensors[state[k]].name), MPP_F32, 0, NULL);
        struct mpp_gtensor *x = &g->tensors[made[2 + k]];
        x->op = o;
        x->out_index = 2 + k;
        x->updates = x->param = state[k];
    }
    mpp_id in[4] = {g->ops[o].in[0], state[0], state[1], state[2]};
    struct mpp_gop *op = &g->ops[o];
    op->kind = MPP_OP_LOSS_SCALE;
    op->attrs = MPP_ATTRS(g->arena, mpp_attr_bool("dynamic", !(t->loss_scale > 0)), mpp_attr_int("every", t->loss_scale_every));
    op->n_in = 4;
    op->in = mpp_arena_memdup(g->arena, in, sizeof in);
    op->n_out = 5;
    op->out = mpp_arena_memdup(g->arena, made, sizeof made);
    return infer_types(p, o);
}

/* ---- the pass ---- */

static void order(struct precision *p)
{
    struct mpp_graph *g = p->g;
    int n_ranks = N_PLACES * p->n_ops, n = 0;
    mpp_id *first = mpp_arena_array(p->arena, n_ranks, mpp_id), *next = mpp_arena_array(p->arena, g->n_ops, mpp_id);
    mpp_id *placed = mpp_arena_array(p->arena, g->n_ops, mpp_id);
    for (int r = 0; r < n_ranks; r++)
        first[r] = -1;
    for (mpp_id o = g->n_ops - 1; o >= 0; o--) {
        next[o] = first[p->rank[o]];
        first[p->rank[o]] = o;
    }
    for (int r = 0; r < n_ranks; r++)
        for (mpp_id o = first[r]; o >= 0; o = next[o])
            placed[n++] = o;
    mpp_graph_order(g, placed);
}

static enum mpp_status run(struct precision *p)
{
    struct mpp_graph *g = p->g;
    const struct mpp_training *t = &g->model->training;
    for (mpp_id o = 0; o < p->n_ops; o++)
        set_rank(p, o, o, ITSELF);
    for (mpp_id i = 0; i < p->n_tensors; i++)
        p->cast[0][i] = p->cast[1][i] = -1;
    note_uses(p);
    read_rules(p);
    for (mpp_id i = 0; i < p->n_tensors; i++)
        if (g->tensors[i].role == MPP_ROLE_PARAM && is_read_low(p, i))
            MPP_TRY(round_parameter(p, i));
    if (p->low == MPP_F16) {
        g->loss_scale = add_scalar(g, "loss_scale", t->loss_scale > 0 ? t->loss_scale : FIRST_SCALE);
        MPP_TRY(scale_loss(p));
        MPP_TRY(judge_step(p, t));
    }
    for (mpp_id o = 0; o < p->n_ops; o++)
        if (g->ops[o].phase != MPP_PHASE_UPDATE)
            MPP_TRY(convert_op(p, o));
    order(p);
    return MPP_OK;
}

enum mpp_status mpp_pass_precision(struct mpp_pass_ctx *ctx, struct mpp_graph *g)
{
    enum mpp_dtype low = MPP_F32;
    if (!g->model || !mpp_precision_read(g->model->training.precision, &low) || low == MPP_F32)
        return MPP_OK;
    struct mpp_arena *scratch = mpp_arena_scratch(ctx->arena);
    struct precision p = {
        .g = g, .diag = ctx->diag, .arena = scratch, .low = low, .n_ops = g->n_ops, .n_tensors = g->n_tensors,
        .cast = {mpp_arena_array(scratch, g->n_tensors, mpp_id), mpp_arena_array(scratch, g->n_tensors, mpp_id)},
    };
    enum mpp_status st = run(&p);
    mpp_arena_free(scratch);
    return st;
}
