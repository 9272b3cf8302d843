/* megatron.c - is it a transformer of Megatron's kind, and of which sizes? */
#include "inspect/megatron.h"

#include <string.h>

#include "ir/model.h"
#include "ir/op.h"

static bool is_forward(const struct mpp_gop *op, int kind)
{
    return op->phase == MPP_PHASE_FORWARD && op->kind == kind;
}

static const struct mpp_gtensor *operand(const struct mpp_graph *g, const struct mpp_gop *op, int k)
{
    return k < op->n_in && op->in[k] >= 0 ? &g->tensors[op->in[k]] : NULL;
}

/* The first operand of OP that is a parameter. */
static const struct mpp_gtensor *weight_of(const struct mpp_graph *g, const struct mpp_gop *op)
{
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] >= 0 && g->tensors[op->in[k]].role == MPP_ROLE_PARAM)
            return &g->tensors[op->in[k]];
    return NULL;
}

/* Attentions, one per layer. */
static void read_layers(struct mpp_arena *arena, const struct mpp_graph *g, struct mpp_megatron_model *m)
{
    bool causal = true, alike = true;
    m->layer_repeat = mpp_arena_array(arena, g->n_ops, int);
    m->layer_index = mpp_arena_array(arena, g->n_ops, int);
    for (mpp_id o = 0; o < g->n_ops; o++) {
        const struct mpp_gop *op = &g->ops[o];
        const struct mpp_gtensor *q = is_forward(op, MPP_OP_ATTENTION) ? operand(g, op, 0) : NULL;
        if (!q || q->n_dims != 4)
            continue;
        for (int i = 0; i < m->layers; i++)
            alike = alike && (m->layer_repeat[i] != op->repeat || m->layer_index[i] != op->index);
        m->layer_repeat[m->layers] = op->repeat;
        m->layer_index[m->layers++] = op->index;
        alike = alike && op->repeat >= 0 && (m->heads == 0 || m->heads == q->dims[2].size);
        m->seq = q->dims[1].size;
        m->heads = q->dims[2].size;
        m->hidden = q->dims[2].size * q->dims[3].size;
        m->attention_dropout = mpp_attrs_float(&op->attrs, "dropout", 0);
        causal = causal && mpp_attrs_int(&op->attrs, "causal", 0);
    }
    m->program = m->layers == 0 || !alike ? NULL : causal ? "pretrain_gpt.py" : "pretrain_bert.py";
    m->why = m->layers == 0 ? "the model has no attention" : "its layers are not of one attention each, all of the same size";
}

static void read_tables(const struct mpp_graph *g, struct mpp_megatron_model *m)
{
    const struct mpp_gtensor *table = NULL;
    for (mpp_id o = 0; o < g->n_ops; o++) {
        const struct mpp_gop *op = &g->ops[o];
        const struct mpp_gtensor *w = weight_of(g, op);
        if (!w || w->n_dims < 1)
            continue;
        if (is_forward(op, MPP_OP_EMBEDDING) && w->dims[0].size > m->vocab) {
            m->vocab = w->dims[0].size;
            table = w;
        }
        if (is_forward(op, MPP_OP_POSITION))
            m->positions = w->dims[0].size;
    }
    for (mpp_id o = 0; o < g->n_ops; o++)
        m->tied = m->tied || (table && is_forward(&g->ops[o], MPP_OP_EINSUM) && weight_of(g, &g->ops[o]) == table);
    if (m->program && (!table || m->positions == 0)) {
        m->program = NULL;
        m->why = "it has no table of tokens, or none of positions";
    }
}

/* In a layer: weights of two dimensions, of which one is the model's width, are the feed-forward layer's. */
static void read_widths(const struct mpp_graph *g, struct mpp_megatron_model *m)
{
    for (mpp_id o = 0; o < g->n_ops; o++) {
        const struct mpp_gop *op = &g->ops[o];
        const struct mpp_gtensor *w = is_forward(op, MPP_OP_EINSUM) ? weight_of(g, op) : NULL;
        if (is_forward(op, MPP_OP_DROPOUT))
            m->hidden_dropout = mpp_attrs_float(&op->attrs, "ratio", 0);
        if (!w || w->n_dims != 2 || op->repeat < 0)
            continue;
        if (w->dims[0].size == m->hidden)
            m->ffn = w->dims[1].size > m->ffn ? w->dims[1].size : m->ffn;
        else if (w->dims[1].size == m->hidden)
            m->ffn = w->dims[0].size > m->ffn ? w->dims[0].size : m->ffn;
    }
}

void mpp_megatron_read_model(struct mpp_arena *arena, const struct mpp_graph *g, struct mpp_megatron_model *out)
{
    *out = (struct mpp_megatron_model){0};
    read_layers(arena, g, out);
    read_tables(g, out);
    if (out->layers > 0)
        read_widths(g, out);
}

/* ---- parts of the pipeline ---- */

static int layer_number(const struct mpp_megatron_model *m, const struct mpp_gop *op)
{
    for (int i = 0; i < m->layers; i++)
        if (m->layer_repeat[i] == op->repeat && m->layer_index[i] == op->index && op->repeat >= 0)
            return i;
    return -1;
}

const char *mpp_megatron_parts(struct mpp_arena *arena, const struct mpp_plan *plan, int chunks, const struct mpp_megatron_model *m,
                               int *out_count)
{
    int *part_of = mpp_arena_array(arena, m->layers, int);
    const char *why = NULL;
    for (int i = 0; i < m->layers; i++)
        part_of[i] = -1;
    for (int s = 0; s < plan->n_stages; s++) {
        const struct mpp_graph *g = plan->stages[s].graph;
        for (mpp_id o = 0; o < g->n_ops; o++) {
            const struct mpp_gop *op = &g->ops[o];
            int layer = layer_number(m, op), part = op->chunk * plan->n_stages + s;
            if (op->phase != MPP_PHASE_FORWARD)
                continue;
            if (is_forward(op, MPP_OP_EMBEDDING) && part != 0)
                why = "the table of tokens is read by another stage than the first";
            if (is_forward(op, MPP_OP_CROSS_ENTROPY) && part != chunks * plan->n_stages - 1)
                why = "the loss is computed by another stage than the last";
            if (layer < 0 || op->kind == MPP_OP_RECV || op->kind == MPP_OP_SEND)
                continue;
            if (part_of[layer] >= 0 && part_of[layer] != part)
                why = mpp_arena_printf(arena, "layer %d is cut in two: stage %d has a part of it", layer, s);
            out_count[part] += part_of[layer] < 0;
            part_of[layer] = part_of[layer] < 0 ? part : part_of[layer];
        }
    }
    return m->layers == 0 && !why ? "its stages are not made of transformer layers" : why;
}
