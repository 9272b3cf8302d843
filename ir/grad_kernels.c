/* Gradients of ops whose backward is a kernel of its own. */
#include "ir/grad.h"

/* The backward op: output K is the gradient of input K, "<forward>.grad_<LABEL[K]>". */
static enum mpp_status backward(struct mpp_grad_in *in, int kind, int n_in, const mpp_id *operands,
                                struct mpp_attrs attrs, int n_out, const char *const *label)
{
    struct mpp_graph *g = in->g;
    struct mpp_gop proto = g->ops[in->op];
    const char *names[3];
    for (int k = 0; k < n_out; k++)
        names[k] = mpp_arena_printf(g->arena, "%s.grad_%s", proto.name, label[k]);
    proto.phase = MPP_PHASE_BACKWARD;
    proto.forward = in->op;
    proto.item_type = NULL;
    proto.name = mpp_arena_printf(g->arena, "%s.backward", proto.name);
    mpp_id op = mpp_graph_add_op(g, in->diag, kind, &proto, n_in, operands, attrs, names);
    for (int k = 0; k < n_out && op >= 0; k++)
        if (in->want[k])
            in->din[k] = g->ops[op].out[k];
    return op < 0 ? MPP_INVALID : MPP_OK;
}

enum mpp_status mpp_grad_layernorm(struct mpp_grad_in *in)
{
    mpp_id operands[] = {mpp_gradient_x(in, 0), mpp_gradient_x(in, 1), mpp_gradient_y(in, 1), mpp_gradient_y(in, 2),
                         in->dout[0]};
    static const char *const label[] = {"x", "weight", "bias"};
    return backward(in, MPP_OP_LAYERNORM_GRAD, 5, operands, mpp_attrs_none(), 3, label);
}

enum mpp_status mpp_grad_attention(struct mpp_grad_in *in)
{
    mpp_id operands[] = {mpp_gradient_x(in, 0), mpp_gradient_x(in, 1), mpp_gradient_x(in, 2), mpp_gradient_x(in, 3),
                         mpp_gradient_y(in, 0), mpp_gradient_y(in, 1), in->dout[0]};
    static const char *const label[] = {"q", "k", "v"};
    return backward(in, MPP_OP_ATTENTION_GRAD, 7, operands, mpp_attrs_of(in), 3, label);
}

enum mpp_status mpp_grad_softmax(struct mpp_grad_in *in)
{
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    mpp_id y = mpp_gradient_y(in, 0);
    return mpp_gradient_end(&gr, mpp_gradient_op2(&gr, MPP_OP_SOFTMAX_GRAD, y, in->dout[0], mpp_attrs_none()));
}

/* What is hidden passes no gradient: the same op with 0 for it. */
enum mpp_status mpp_grad_masked_scores(struct mpp_grad_in *in)
{
    struct mpp_attrs own = mpp_attrs_of(in);
    struct mpp_attrs attrs = MPP_ATTRS(in->g->arena, mpp_attr_bool("causal", mpp_attrs_int(&own, "causal", 0)),
                                       mpp_attr_float("scale", mpp_attrs_float(&own, "scale", 1)), mpp_attr_float("fill", 0));
    mpp_id operands[] = {in->dout[0], mpp_gradient_x(in, 1)};
    static const char *const label[] = {"x"};
    return backward(in, MPP_OP_MASKED_SCORES, 2, operands, attrs, 1, label);
}

enum mpp_status mpp_grad_cross_entropy(struct mpp_grad_in *in)
{
    mpp_id operands[] = {mpp_gradient_x(in, 0), mpp_gradient_x(in, 1), mpp_gradient_y(in, 1), mpp_gradient_x(in, 2),
                         in->dout[0]};
    static const char *const label[] = {"logits"};
    return backward(in, MPP_OP_CROSS_ENTROPY_GRAD, 5, operands, mpp_attrs_of(in), 1, label);
}

enum mpp_status mpp_grad_embedding(struct mpp_grad_in *in)
{
    struct mpp_gradient gr = mpp_gradient_begin(in, 1);
    struct mpp_size entries = in->g->tensors[mpp_gradient_x(in, 1)].dims[0];
    struct mpp_attrs attrs = MPP_ATTRS(in->g->arena, mpp_attr_dims("num_embeddings", 1, &entries));
    mpp_id ids = mpp_gradient_x(in, 0);
    return mpp_gradient_end(&gr, mpp_gradient_op2(&gr, MPP_OP_EMBEDDING_GRAD, ids, in->dout[0], attrs));
}

enum mpp_status mpp_grad_position(struct mpp_grad_in *in)
{
    struct mpp_gradient gr = mpp_gradient_begin(in, 0);
    struct mpp_size positions = in->g->tensors[mpp_gradient_x(in, 0)].dims[0];
    struct mpp_attrs attrs = MPP_ATTRS(in->g->arena, mpp_attr_dims("positions", 1, &positions));
    return mpp_gradient_end(&gr, mpp_gradient_op1(&gr, MPP_OP_POSITION_GRAD, in->dout[0], attrs));
}
