/* Attention as systems without a fused kernel run it: every step a kernel that reads and writes device memory, the
 * scores [batch, heads, queries, keys] among what backward keeps. (Vaswani et al. 2017; Megatron-LM's and PyTorch's
 * eager modules of 2020 to 2022: batched product, mask and scale, softmax, dropout, batched product, heads merged.) */
#include "ir/graph_edit.h"
#include "ir/op.h"
#include "ir/pass.h"

/* What a hidden key's score becomes; softmax makes 0 of it (Megatron-LM's masks). */
static const double hidden_score = -10000;

struct unfuse {
    struct mpp_graph *g;
    struct mpp_diag *diag;
    mpp_id op;                    /* the Attention */
    bool failed;
};

static struct mpp_attrs equation(struct unfuse *u, const char *text)
{
    return MPP_ATTRS(u->g->arena, mpp_attr_string("equation", text));
}

/* Append a step "<attention>.<name>"; returns its output. */
static mpp_id step(struct unfuse *u, int kind, const char *name, int n_in, const mpp_id *in, struct mpp_attrs attrs)
{
    struct mpp_graph *g = u->g;
    struct mpp_gop proto = g->ops[u->op];
    proto.name = mpp_arena_printf(g->arena, "%s.%s", proto.name, name);
    mpp_id op = u->failed ? -1 : mpp_graph_add_op(g, u->diag, kind, &proto, n_in, in, attrs, NULL);
    u->failed = op < 0;
    return op < 0 ? -1 : g->ops[op].out[0];
}

/* The scores, scaled, of keys that may be seen. */
static mpp_id masked_scores(struct unfuse *u, mpp_id scores, mpp_id mask, const struct mpp_attrs *own)
{
    double scale = mpp_attrs_float(own, "scale", 1);
    bool causal = mpp_attrs_int(own, "causal", 0) != 0;
    if (mask < 0 && !causal)
        return step(u, MPP_OP_SCALE, "scale", 1, &scores, MPP_ATTRS(u->g->arena, mpp_attr_float("value", scale)));
    mpp_id in[] = {scores, mask};
    return step(u, MPP_OP_MASKED_SCORES, "mask", 2, in,
                MPP_ATTRS(u->g->arena, mpp_attr_bool("causal", causal), mpp_attr_float("scale", scale),
                          mpp_attr_float("fill", hidden_score)));
}

/* The steps before the last, which are appended to the graph; returns [batch, heads, queries, head_dim]. */
static mpp_id steps(struct unfuse *u)
{
    struct mpp_attrs own = u->g->ops[u->op].attrs;
    mpp_id q = u->g->ops[u->op].in[0], k = u->g->ops[u->op].in[1], v = u->g->ops[u->op].in[2], mask = u->g->ops[u->op].in[3];
    double dropout = mpp_attrs_float(&own, "dropout", 0);
    mpp_id x = step(u, MPP_OP_EINSUM, "scores", 2, (mpp_id[]){q, k}, equation(u, "bsnd,btnd->bnst"));
    x = masked_scores(u, x, mask, &own);
    x = step(u, MPP_OP_SOFTMAX, "softmax", 1, &x, MPP_ATTRS(u->g->arena, mpp_attr_int("axis", 3)));
    if (dropout > 0)
        x = step(u, MPP_OP_DROPOUT, "dropout", 1, &x,
                 MPP_ATTRS(u->g->arena, mpp_attr_float("ratio", dropout),
                           mpp_attr_int("stream", mpp_attrs_int(&own, "stream", 0))));
    return step(u, MPP_OP_EINSUM, "context", 2, (mpp_id[]){x, v}, equation(u, "bnst,btne->bnse"));
}

/* Make the Attention itself the last step, which merges the heads again. CONTEXT, the newest tensor, takes the place of
 * the log-sum-exp, which nobody makes now. */
static enum mpp_status replace(struct unfuse *u, mpp_id context)
{
    static const int64_t perm[] = {0, 2, 1, 3};
    struct mpp_graph *g = u->g;
    struct mpp_gop *op = &g->ops[u->op];
    mpp_id unused = op->out[1];
    g->ops[g->tensors[context].op].out[0] = unused;
    g->tensors[unused] = g->tensors[context];
    g->n_tensors--;
    op->kind = MPP_OP_TRANSPOSE;
    op->n_in = op->n_out = 1;
    op->in = mpp_arena_memdup(g->arena, &unused, sizeof unused);
    op->attrs = MPP_ATTRS(g->arena, mpp_attr_ints("perm", 4, perm));
    struct mpp_rule *rule;
    enum mpp_dtype dtype[64];
    MPP_TRY(mpp_graph_infer(g, u->diag, op, &rule, dtype));
    op->rule = rule;
    return MPP_OK;
}

enum mpp_status mpp_pass_unfuse(struct mpp_pass_ctx *ctx, struct mpp_graph *g)
{
    struct unfuse u = {.g = g, .diag = ctx->diag};
    int n_ops = g->n_ops, n = 0;
    mpp_id *until = mpp_arena_array(g->arena, n_ops, mpp_id); /* appended ops that belong before this one: up to here */
    for (u.op = 0; u.op < n_ops; u.op++) {
        if (g->ops[u.op].kind == MPP_OP_ATTENTION) {
            mpp_id context = steps(&u);
            if (context < 0)
                return MPP_INVALID;
            MPP_TRY(replace(&u, context));
        }
        until[u.op] = g->n_ops;
    }
    mpp_id *order = mpp_arena_array(g->arena, g->n_ops, mpp_id);
    for (mpp_id o = 0, appended = n_ops; o < n_ops; o++) {
        while (appended < until[o])
            order[n++] = appended++;
        order[n++] = o;
    }
    mpp_graph_order(g, order);
    g->unfused = true;
    return MPP_OK;
}
