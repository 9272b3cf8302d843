/* Reverse-mode differentiation: the forward ops from last to first, each appending its gradient's ops.
 *
 * A value's gradient is the sum of what its consumers contribute. The sum is appended with the last contribution,
 * so that everything appended while one layer is walked belongs to that layer, and the backward ops of a layer are
 * contiguous. */
#include <assert.h>

#include "ir/graph_edit.h"
#include "ir/op.h"
#include "ir/pass.h"

struct contributions {
    int n;
    size_t cap;
    mpp_id *id;
};

struct walk {
    struct mpp_graph *g;
    struct mpp_diag *diag;
    struct mpp_arena *arena;      /* scratch */
    int n_ops;                    /* of the forward graph */
    bool *needed;                 /* [tensor] depends on a parameter through ops with gradients */
    bool *live;                   /* [op] a gradient flows through it */
    mpp_id *first;                /* [tensor] its first live consumer: the last to contribute; -1: none */
    struct contributions *sum;    /* [tensor] so far */
    mpp_id *gradient;             /* [tensor] finished */
};

static bool wants(const struct walk *w, const struct mpp_gop *op, int k)
{
    return op->in[k] >= 0 && w->needed[op->in[k]];
}

/* Which tensors depend on parameters, which ops lead from those to the loss, and who contributes last. */
static void mark(struct walk *w)
{
    struct mpp_graph *g = w->g;
    bool *reaches = mpp_arena_array(w->arena, g->n_tensors, bool);
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        w->needed[t] = g->tensors[t].role == MPP_ROLE_PARAM;
        w->first[t] = w->gradient[t] = -1;
    }
    for (mpp_id o = 0; o < w->n_ops; o++) {
        const struct mpp_gop *op = &g->ops[o];
        bool any = false;
        for (int k = 0; k < op->n_in; k++)
            any = any || wants(w, op, k);
        for (int k = 0; k < op->n_out && any && mpp_op_info(op->kind)->grad; k++)
            w->needed[op->out[k]] = mpp_dtype_is_float(g->tensors[op->out[k]].dtype);
    }
    reaches[g->loss] = true;
    for (mpp_id o = w->n_ops - 1; o >= 0; o--) {
        const struct mpp_gop *op = &g->ops[o];
        for (int k = 0; k < op->n_out; k++)
            w->live[o] = w->live[o] || (reaches[op->out[k]] && w->needed[op->out[k]]);
        for (int k = 0; k < op->n_in && w->live[o]; k++)
            if (wants(w, op, k)) {
                reaches[op->in[k]] = true;
                w->first[op->in[k]] = o;
            }
    }
}

/* Append an op that sums VALUES in the layer of op AT (-1: in none); returns its output. */
static mpp_id append(struct walk *w, int kind, mpp_id at, enum mpp_phase phase, const char *name, int n,
                     const mpp_id *values, struct mpp_attrs attrs)
{
    struct mpp_graph *g = w->g;
    struct mpp_gop proto = {.scope = "", .repeat = -1, .index = -1, .forward = -1};
    if (at >= 0) {
        proto = g->ops[at];
        proto.item_type = NULL;
        proto.forward = phase == MPP_PHASE_BACKWARD ? at : -1;
    }
    proto.phase = phase;
    proto.name = name;
    mpp_id op = mpp_graph_add_op(g, w->diag, kind, &proto, n, values, attrs, NULL);
    return op < 0 ? -1 : g->ops[op].out[0];
}

/* A parameter's contributions, summed over the step; tied weights have several. */
static enum mpp_status accumulate(struct walk *w, mpp_id param, mpp_id at)
{
    struct mpp_graph *g = w->g;
    const char *name = mpp_arena_printf(g->arena, "%s.grad", g->tensors[param].name);
    mpp_id t = append(w, MPP_OP_ACCUMULATE, at, MPP_PHASE_BACKWARD, name, w->sum[param].n, w->sum[param].id,
                      (struct mpp_attrs){0});
    if (t < 0)
        return MPP_INVALID;
    g->tensors[t].role = MPP_ROLE_ACCUM;
    g->tensors[t].param = param;
    g->tensors[param].info->gradient = t;
    return MPP_OK;
}

/* A contribution to the gradient of T. */
static void contribute(struct walk *w, mpp_id t, mpp_id contribution)
{
    struct contributions *s = &w->sum[t];
    s->id = mpp_arena_grow(w->arena, s->id, &s->cap, (size_t)s->n + 1, sizeof *s->id);
    s->id[s->n++] = contribution;
}

/* All consumers of T have contributed, the op AT as the last. */
static enum mpp_status finish(struct walk *w, mpp_id t, mpp_id at)
{
    struct mpp_graph *g = w->g;
    struct contributions *s = &w->sum[t];
    if (s->n == 0)
        return MPP_OK;
    if (g->tensors[t].role == MPP_ROLE_PARAM)
        return accumulate(w, t, at);
    if (s->n == 1) {
        w->gradient[t] = s->id[0];
        return MPP_OK;
    }
    const char *name = mpp_arena_printf(g->arena, "%s.grad", g->tensors[t].name);
    w->gradient[t] = append(w, s->n == 2 ? MPP_OP_ADD : MPP_OP_SUM, at, MPP_PHASE_BACKWARD, name, s->n, s->id,
                            (struct mpp_attrs){0});
    return w->gradient[t] < 0 ? MPP_INVALID : MPP_OK;
}

/* A gradient has the shape of its value. */
static bool same_shape(const struct mpp_gtensor *a, const struct mpp_gtensor *b)
{
    bool same = a->n_dims == b->n_dims;
    for (int d = 0; same && d < a->n_dims; d++)
        same = a->dims[d].size == b->dims[d].size && a->dims[d].per_batch == b->dims[d].per_batch;
    return same;
}

/* Append the gradient of the forward op O. */
static enum mpp_status differentiate(struct walk *w, mpp_id o)
{
    struct mpp_graph *g = w->g;
    int n_in = g->ops[o].n_in, n_out = g->ops[o].n_out;
    mpp_id *dout = mpp_arena_array(w->arena, n_out, mpp_id), *din = mpp_arena_array(w->arena, n_in, mpp_id);
    bool *want = mpp_arena_array(w->arena, n_in, bool), flows = false;
    for (int k = 0; k < n_out; k++) {
        dout[k] = w->gradient[g->ops[o].out[k]];
        flows = flows || dout[k] >= 0;
    }
    for (int k = 0; k < n_in; k++) {
        want[k] = wants(w, &g->ops[o], k);
        din[k] = -1;
    }
    struct mpp_grad_in in = {.g = g, .diag = w->diag, .op = o, .dout = dout, .want = want, .din = din};
    if (flows)
        MPP_TRY(mpp_op_info(g->ops[o].kind)->grad(&in));
    for (int k = 0; k < n_in; k++) {
        if (!want[k] || din[k] < 0)
            continue;
        assert(same_shape(&g->tensors[g->ops[o].in[k]], &g->tensors[din[k]]));
        contribute(w, g->ops[o].in[k], din[k]);
    }
    for (int k = 0; k < n_in; k++) {
        mpp_id t = g->ops[o].in[k];
        bool again = false; /* the same tensor twice */
        for (int j = 0; j < k; j++)
            again = again || g->ops[o].in[j] == t;
        if (want[k] && !again && w->first[t] == o)
            MPP_TRY(finish(w, t, o));
    }
    return MPP_OK;
}

/* The step's loss, and the 1 that its gradient starts from. */
static enum mpp_status seed(struct walk *w)
{
    struct mpp_graph *g = w->g;
    const char *name = g->tensors[g->loss].name;
    mpp_id at = g->tensors[g->loss].op;
    g->loss_total = append(w, MPP_OP_ACCUMULATE, -1, MPP_PHASE_FORWARD, mpp_arena_printf(g->arena, "%s.total", name), 1,
                           &g->loss, (struct mpp_attrs){0});
    if (g->loss_total < 0)
        return MPP_INVALID;
    g->tensors[g->loss_total].role = MPP_ROLE_ACCUM;
    struct mpp_attrs one = MPP_ATTRS(g->arena, mpp_attr_dims("shape", 0, NULL), mpp_attr_float("value", 1));
    w->gradient[g->loss] = append(w, MPP_OP_CONSTANT, at, MPP_PHASE_BACKWARD, mpp_arena_printf(g->arena, "%s.grad", name),
                                  0, NULL, one);
    return w->gradient[g->loss] < 0 ? MPP_INVALID : MPP_OK;
}

static enum mpp_status run(struct walk *w)
{
    struct mpp_graph *g = w->g;
    mark(w);
    MPP_TRY(seed(w));
    for (mpp_id o = w->n_ops - 1; o >= 0; o--)
        if (w->live[o])
            MPP_TRY(differentiate(w, o));
    bool all = true;
    for (mpp_id t = 0; t < g->n_tensors; t++)
        if (g->tensors[t].role == MPP_ROLE_PARAM && g->tensors[t].info->gradient < 0) {
            struct mpp_loc loc = g->model ? g->model->training.loc : (struct mpp_loc){0};
            for (mpp_id o = 0; o < w->n_ops; o++)
                for (int k = 0; k < g->ops[o].n_in; k++)
                    if (g->ops[o].in[k] == t)
                        loc = g->ops[o].loc;
            mpp_diag_error(w->diag, loc, "parameter %s does not influence the loss %s", g->tensors[t].info->published,
                           g->tensors[g->loss].name);
            all = false;
        }
    return all ? MPP_OK : MPP_INVALID;
}

enum mpp_status mpp_pass_autodiff(struct mpp_pass_ctx *ctx, struct mpp_graph *g)
{
    if (g->loss < 0 || g->tensors[g->loss].op < 0) {
        mpp_diag_error(ctx->diag, (struct mpp_loc){0}, "the graph has no op that makes a loss");
        return MPP_INVALID;
    }
    struct mpp_arena *scratch = mpp_arena_scratch(ctx->arena);
    struct walk w = {
        .g = g, .diag = ctx->diag, .arena = scratch, .n_ops = g->n_ops,
        .needed = mpp_arena_array(scratch, g->n_tensors, bool),
        .live = mpp_arena_array(scratch, g->n_ops, bool),
        .first = mpp_arena_array(scratch, g->n_tensors, mpp_id),
        .sum = mpp_arena_array(scratch, g->n_tensors, struct contributions),
        .gradient = mpp_arena_array(scratch, g->n_tensors, mpp_id),
    };
    enum mpp_status st = MPP_OK;
    const struct mpp_gtensor *loss = &g->tensors[g->loss];
    if (loss->n_dims > 0 || loss->dtype != MPP_F32) {
        mpp_diag_error(ctx->diag, g->ops[loss->op].loc, "the loss %s must be a scalar of type f32", loss->name);
        st = MPP_INVALID;
    }
    if (st == MPP_OK)
        st = run(&w);
    mpp_arena_free(scratch);
    return st;
}
