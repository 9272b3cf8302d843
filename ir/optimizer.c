/* The update: gradient norm over all parameters, clipping, AdamW or SGD per parameter, what the step reports. */
#include <math.h>

#include "ir/graph_edit.h"
#include "ir/op.h"
#include "ir/pass.h"

struct update {
    struct mpp_graph *g;
    struct mpp_diag *diag;
    mpp_id scale;                 /* what gradients are multiplied by */
};

static struct mpp_gop proto_of(const char *name, int repeat, int index)
{
    return (struct mpp_gop){.name = name, .scope = "", .phase = MPP_PHASE_UPDATE, .repeat = repeat, .index = index,
                            .forward = -1};
}

/* A prototype in the layer of parameter P. */
static struct mpp_gop proto_for(const struct mpp_graph *g, mpp_id p, const char *suffix)
{
    const struct mpp_gtensor *t = &g->tensors[p];
    struct mpp_gop proto = proto_of(mpp_arena_printf(g->arena, "%s.%s", t->name, suffix), t->repeat, t->index);
    const struct mpp_gop *accumulate = &g->ops[g->tensors[t->info->gradient].op];
    if (accumulate->repeat == t->repeat)
        proto.repeat_name = accumulate->repeat_name;
    proto.scope = accumulate->scope;
    proto.loc = accumulate->loc;
    proto.path = accumulate->path;
    return proto;
}

/* Sum of squares per parameter, the norm and the clipping factor. */
static enum mpp_status norm(struct update *u)
{
    struct mpp_graph *g = u->g;
    struct mpp_attrs none = {0};
    int n = 0, n_tensors = g->n_tensors;
    mpp_id *square = mpp_arena_array(g->arena, n_tensors, mpp_id);
    for (mpp_id p = 0; p < n_tensors; p++) {
        if (g->tensors[p].role != MPP_ROLE_PARAM)
            continue;
        struct mpp_gop proto = proto_for(g, p, "square_sum");
        mpp_id op = mpp_graph_add_op(g, u->diag, MPP_OP_SQUARE_SUM, &proto, 1, &g->tensors[p].info->gradient, none, NULL);
        if (op < 0)
            return MPP_INVALID;
        square[n++] = g->ops[op].out[0];
    }
    struct mpp_gop proto = proto_of("grad_square_sum", -1, -1);
    mpp_id sum = mpp_graph_add_op(g, u->diag, MPP_OP_SUM, &proto, n, square, none, NULL);
    if (sum < 0)
        return MPP_INVALID;
    proto.name = "grad_norm";
    mpp_id clip = mpp_graph_add_op(g, u->diag, MPP_OP_CLIP_SCALE, &proto, 1, &g->ops[sum].out[0], none,
                                   (const char *const[]){"grad_norm", "grad_scale"});
    if (clip < 0)
        return MPP_INVALID;
    g->grad_norm = g->ops[clip].out[0];
    u->scale = g->ops[clip].out[1];
    return MPP_OK;
}

/* The weight decay of a parameter: the first group that matches its name, else by its published rank. */
static double weight_decay(const struct mpp_training *t, const struct mpp_param *info)
{
    for (int i = 0; i < t->n_groups; i++)
        if (mpp_glob(t->groups[i].match, info->published))
            return t->groups[i].weight_decay;
    return info->n_published <= 1 && !isnan(t->weight_decay_1d) ? t->weight_decay_1d : t->weight_decay;
}

/* The optimiser's state of parameter P, "m.h.0.attn.c_attn.weight". */
static mpp_id add_state(struct update *u, const char *prefix, mpp_id p)
{
    struct mpp_graph *g = u->g;
    struct mpp_gtensor like = g->tensors[p];
    const char *name = mpp_arena_printf(g->arena, "%s.%s", prefix, like.info->published);
    mpp_id t = mpp_graph_add_tensor(g, name, MPP_F32, like.n_dims, like.dims);
    g->tensors[t].role = MPP_ROLE_STATE;
    g->tensors[t].param = p;
    g->tensors[t].repeat = like.repeat;
    g->tensors[t].index = like.index;
    return t;
}

static enum mpp_status step(struct update *u, mpp_id p, bool adamw, bool velocity)
{
    struct mpp_graph *g = u->g;
    struct mpp_param *info = g->tensors[p].info;
    info->weight_decay = weight_decay(&g->model->training, info);
    struct mpp_attrs attrs = MPP_ATTRS(g->arena, mpp_attr_float("weight_decay", info->weight_decay));
    struct mpp_gop proto = proto_for(g, p, "new");
    mpp_id m = adamw ? add_state(u, "m", p) : -1, v = adamw || velocity ? add_state(u, "v", p) : -1;
    mpp_id adamw_in[] = {p, m, v, info->gradient, u->scale}, sgd_in[] = {p, info->gradient, u->scale, v};
    mpp_id op = adamw ? mpp_graph_add_op(g, u->diag, MPP_OP_ADAMW, &proto, 5, adamw_in, attrs, NULL)
                      : mpp_graph_add_op(g, u->diag, MPP_OP_SGD, &proto, 4, sgd_in, attrs, NULL);
    if (op < 0)
        return MPP_INVALID;
    mpp_id replaced[] = {p, adamw ? m : v, v};
    for (int k = 0; k < g->ops[op].n_out; k++) {
        struct mpp_gtensor *t = &g->tensors[g->ops[op].out[k]];
        t->updates = replaced[k];
        t->param = p;
    }
    return MPP_OK;
}

static enum mpp_status report(struct update *u, mpp_id value, const char *name)
{
    struct mpp_gop proto = proto_of(name, -1, -1);
    mpp_id op = mpp_graph_add_op(u->g, u->diag, MPP_OP_OUTPUT, &proto, 1, &value, (struct mpp_attrs){0}, NULL);
    return op < 0 ? MPP_INVALID : MPP_OK;
}

enum mpp_status mpp_pass_optimizer(struct mpp_pass_ctx *ctx, struct mpp_graph *g)
{
    struct update u = {.g = g, .diag = ctx->diag, .scale = -1};
    const struct mpp_training *t = &g->model->training;
    bool adamw = t->optimizer[0] == 'a';
    MPP_TRY(norm(&u));
    int n_tensors = g->n_tensors;
    for (mpp_id p = 0; p < n_tensors; p++)
        if (g->tensors[p].role == MPP_ROLE_PARAM)
            MPP_TRY(step(&u, p, adamw, t->momentum != 0));
    MPP_TRY(report(&u, g->loss_total, "report.loss"));
    return report(&u, g->grad_norm, "report.grad_norm");
}
