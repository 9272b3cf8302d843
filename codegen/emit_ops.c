/* emit_ops.c - one emitter per name in the `emit` column of ir/ops.def. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "codegen/emit_internal.h"
#include "ir/op.h"

struct emitter {
    void (*emit)(struct mpp_emit *e, const struct mpp_instr *in);
    int (*accumulates)(const struct mpp_graph *g, const struct mpp_group *group, int out); /* NULL: never */
    int64_t (*workspace)(const struct mpp_graph *g, const struct mpp_mesh *mesh, const struct mpp_group *group,
                         struct mpp_split split); /* NULL: none */
};

/* ---- what emitters ask about their instruction ---- */

static const struct mpp_group *group_of(const struct mpp_emit *e, const struct mpp_instr *in)
{
    return &e->g->groups[in->group];
}

static const struct mpp_gop *op_of(const struct mpp_emit *e, const struct mpp_instr *in)
{
    return &e->g->ops[group_of(e, in)->ops[0]];
}

static const char *arg(struct mpp_emit *e, const struct mpp_instr *in, int k)
{
    return k < in->n_in ? mpp_emit_ptr(e, in->in[k]) : "NULL";
}

static const char *result(struct mpp_emit *e, const struct mpp_instr *in, int k)
{
    return k < in->n_out ? mpp_emit_ptr(e, in->out[k]) : "NULL";
}

static struct mpp_size size_of(const struct mpp_emit *e, const struct mpp_buffer *b, int d)
{
    return e->g->tensors[b->tensor].dims[d];
}

static const char *dim(struct mpp_emit *e, const struct mpp_buffer *b, int d)
{
    return mpp_emit_dim(e, size_of(e, b, d), b->split[d]);
}

/* The first N dimensions of B as a struct mpp_space. */
static const char *space(struct mpp_emit *e, const struct mpp_buffer *b, int n)
{
    struct mpp_text padded = {.arena = e->arena}, valid = {.arena = e->arena};
    if (n == 0)
        return "&(const struct mpp_space){.n_dims = 0}";
    for (int d = 0; d < n; d++) {
        mpp_text_add(&padded, "%s%lld", d ? ", " : "", (long long)b->padded[d]);
        mpp_text_add(&valid, "%s%s", d ? ", " : "", mpp_emit_valid(e, size_of(e, b, d), b->split[d]));
    }
    return mpp_arena_printf(e->arena, "&(const struct mpp_space){%d, {%s}, {%s}}", n, padded.data, valid.data);
}

static long long count(const struct mpp_buffer *b)
{
    return (long long)mpp_emit_span(b, 0, b->n_dims);
}

static const char *note_op(struct mpp_emit *e, const struct mpp_instr *in, const struct mpp_buffer *b)
{
    const char *name = mpp_emit_op_name(e, op_of(e, in));
    mpp_emit_note(e, "%s: %s", name, mpp_emit_shape(e, b));
    return name;
}

static const char *ignore_index(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_attr *a = mpp_attrs_find(&op_of(e, in)->attrs, "ignore_index");
    return a ? mpp_arena_printf(e->arena, "%lld", (long long)a->i) : "INT32_MIN";
}

static int always(const struct mpp_graph *g, const struct mpp_group *group, int out)
{
    (void)g;
    (void)group;
    return out == 0;
}

/* As mpp_rows_half_workspace of the host runtime: rows of the first 16-bit operand, two blocks of 65,536 elements or one row. */
static int64_t rows_workspace(const struct mpp_graph *g, const struct mpp_mesh *mesh, const struct mpp_group *group,
                              struct mpp_split split)
{
    for (int o = 0; o < group->n_in; o++) {
        mpp_id t = group->in[o];
        if (t < 0 || !mpp_emit_is_half(g->tensors[t].dtype) || g->tensors[t].n_dims == 0)
            continue;
        int last = g->tensors[t].n_dims - 1;
        struct mpp_sharding s = mpp_split_operand(group->rule, split, o);
        int64_t cols = mpp_block_padded(mesh, g->tensors[t].dims[last].size, mpp_sharding_mask(s, last));
        return (2 * (cols < 65536 ? 65536 : cols) + 2 * cols) * 4;
    }
    return 0;
}

/* ---- fused loops, layouts ---- */

static int is_sum(const struct mpp_graph *g, const struct mpp_group *group, int out)
{
    mpp_id op = g->tensors[group->out[out]].op;
    return op >= 0 && mpp_op_info(g->ops[op].kind)->cls == MPP_CLASS_REDUCE;
}

static const struct emitter emit_fused = {mpp_emit_fused, is_sum, NULL};
static const struct emitter emit_reduce_max = {mpp_emit_fused, NULL, NULL};

/* Usually a reshaped array is the same bytes and there is no instruction at all. */
static void write_reshape(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_buffer *x = mpp_emit_buffer(e, in->in[0]), *y = mpp_emit_buffer(e, in->out[0]);
    note_op(e, in, y);
    mpp_emit_line(e, "mpp_copy(r, %s, %s, %lld * sizeof(%s));", result(e, in, 0), arg(e, in, 0),
                  count(x) < count(y) ? count(x) : count(y), mpp_emit_type(y->dtype));
}
static const struct emitter emit_reshape = {write_reshape, NULL, NULL};

static const char *accumulate_kernel(struct mpp_emit *e, enum mpp_dtype dtype)
{
    const char *x = mpp_emit_load(e->arena, dtype, "x[i]");
    const char *params = mpp_arena_printf(e->arena, "struct mpp_rank *r, int64_t n, bool add, const %s *restrict x, "
                                                    "float *restrict y", mpp_emit_type(dtype));
    const char *body = mpp_arena_printf(e->arena, "    MPP_PARALLEL_SIMD(r, n)\n"
                                                  "    for (int64_t i = 0; i < n; i++)\n"
                                                  "        y[i] = add ? y[i] + %s : %s;\n", x, x);
    return mpp_emit_kernel(e, mpp_emit_is_half(dtype) ? "accumulate_half" : "accumulate", params, body,
                           mpp_emit_accumulate_cuda(e, dtype), "sums over micro-batches");
}

static void write_accumulate(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_buffer *b = mpp_emit_buffer(e, in->out[0]);
    mpp_emit_line(e, "%s(r, %lld, %s, %s, %s);", accumulate_kernel(e, MPP_F32), count(b), mpp_emit_add(e, in->mode[0]), arg(e, in, 0),
                  result(e, in, 0));
}
static const struct emitter emit_accumulate = {write_accumulate, NULL, NULL};

/* What is planned, priced and reported only: mpplan.c writes no trainer then, so that none of these gets here. */
static void write_none(struct mpp_emit *e, const struct mpp_instr *in)
{
    (void)e;
    (void)in;
    assert(!"an op that no trainer holds");
}
static const struct emitter emit_none = {write_none, NULL, NULL};

static const struct emitter emit_einsum = {mpp_emit_einsum, always, mpp_emit_einsum_workspace};

/* ---- tables ---- */

static void write_embedding(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_buffer *ids = mpp_emit_buffer(e, in->in[0]), *table = mpp_emit_buffer(e, in->in[1]);
    note_op(e, in, mpp_emit_buffer(e, in->out[0]));
    const char *over = space(e, ids, ids->n_dims), *rows = dim(e, table, 0);
    mpp_emit_line(e, "mpp_embedding_forward%s(r, %s, %s, %lld, %s, %s, %s);", mpp_emit_half(table->dtype), over, rows,
                  (long long)mpp_emit_span(table, 1, table->n_dims), arg(e, in, 0), arg(e, in, 1), result(e, in, 0));
}
static const struct emitter emit_embedding = {write_embedding, NULL, NULL};

static void write_embedding_grad(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_buffer *ids = mpp_emit_buffer(e, in->in[0]), *table = mpp_emit_buffer(e, in->out[0]);
    enum mpp_dtype dtype = mpp_emit_buffer(e, in->in[1])->dtype;
    note_op(e, in, table);
    const char *over = space(e, ids, ids->n_dims), *rows = dim(e, table, 0);
    mpp_emit_line(e, "mpp_embedding_backward%s(r, %s%s, %s, %lld, %s, %s, %s, %s);", mpp_emit_half(dtype), mpp_emit_type_arg(dtype), over, rows,
                  (long long)mpp_emit_span(table, 1, table->n_dims), arg(e, in, 0), arg(e, in, 1),
                  mpp_emit_beta(e, in->mode[0]), result(e, in, 0));
}
static const struct emitter emit_embedding_grad = {write_embedding_grad, always, rows_workspace};

/* Row s of y is row s of the table: this rank's rows begin where its block does. */
static const char *rows_from(struct mpp_emit *e, const char *table, const struct mpp_buffer *rows, long long width)
{
    return rows->split[0] ? mpp_arena_printf(e->arena, "%s + %s.offset * %lld", table, dim(e, rows, 0), width) : table;
}

static const char *rows_count(struct mpp_emit *e, const struct mpp_buffer *rows, long long width)
{
    return mpp_emit_uneven(e, size_of(e, rows, 0), rows->split[0])
               ? mpp_arena_printf(e->arena, "(%s * %lld)", mpp_emit_valid(e, size_of(e, rows, 0), rows->split[0]), width)
               : mpp_arena_printf(e->arena, "%lld", (long long)rows->padded[0] * width);
}

static void write_position(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_buffer *y = mpp_emit_buffer(e, in->out[0]);
    long long width = (long long)mpp_emit_span(y, 1, y->n_dims);
    note_op(e, in, y);
    const char *from = rows_from(e, arg(e, in, 0), y, width), *n = rows_count(e, y, width);
    mpp_emit_line(e, "mpp_copy(r, %s, %s, (size_t)%s * sizeof(%s));", result(e, in, 0), from, n, mpp_emit_type(y->dtype));
}
static const struct emitter emit_position = {write_position, NULL, NULL};

static void write_position_grad(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_buffer *dy = mpp_emit_buffer(e, in->in[0]), *table = mpp_emit_buffer(e, in->out[0]);
    long long width = (long long)mpp_emit_span(dy, 1, dy->n_dims);
    note_op(e, in, table);
    const char *add = mpp_emit_add(e, in->mode[0]);
    bool later = !strcmp(add, "later");
    if (later)
        mpp_emit_line(e, "if (!later)");
    if (strcmp(add, "true") != 0)
        mpp_emit_line(e, "%smpp_zero(r, %s, %lld * sizeof(float));", later ? "    " : "", result(e, in, 0), count(table));
    const char *n = rows_count(e, dy, width), *to = rows_from(e, result(e, in, 0), dy, width);
    mpp_emit_line(e, "%s(r, %s, true, %s, %s);", accumulate_kernel(e, dy->dtype), n, arg(e, in, 0), to);
}
static const struct emitter emit_position_grad = {write_position_grad, always, NULL};

/* ---- rows ---- */

static void write_layernorm(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_buffer *x = mpp_emit_buffer(e, in->in[0]);
    int last = x->n_dims - 1;
    note_op(e, in, x);
    mpp_emit_line(e, "mpp_layernorm_forward%s(r, %s%s, %lld, %s, %s, %s, %s, %s, %s, %s, %s);", mpp_emit_half(x->dtype), mpp_emit_type_arg(x->dtype), mpp_emit_mask(e, x->split[last]),
                  (long long)mpp_emit_span(x, 0, last), dim(e, x, last),
                  mpp_emit_float(e->arena, mpp_attrs_float(&op_of(e, in)->attrs, "epsilon", 1e-5)), arg(e, in, 0),
                  arg(e, in, 1), arg(e, in, 2), result(e, in, 0), result(e, in, 1), result(e, in, 2));
}
static const struct emitter emit_layernorm = {write_layernorm, NULL, rows_workspace};

static void write_layernorm_grad(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_buffer *x = mpp_emit_buffer(e, in->in[0]);
    int last = x->n_dims - 1;
    note_op(e, in, x);
    const char *over = space(e, x, last), *width = dim(e, x, last);
    mpp_emit_line(e, "mpp_layernorm_backward%s(r, %s%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);", mpp_emit_half(x->dtype), mpp_emit_type_arg(x->dtype),
                  mpp_emit_mask(e, x->split[last]), over, width, arg(e, in, 0), arg(e, in, 1),
                  arg(e, in, 2), arg(e, in, 3), arg(e, in, 4), result(e, in, 0), result(e, in, 1), result(e, in, 2));
}
static const struct emitter emit_layernorm_grad = {write_layernorm_grad, NULL, rows_workspace};

static void write_softmax(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_buffer *x = mpp_emit_buffer(e, in->in[0]);
    int last = x->n_dims - 1;
    note_op(e, in, x);
    mpp_emit_line(e, "mpp_softmax_forward%s(r, %s%s, %lld, %s, %s, %s);", mpp_emit_half(x->dtype), mpp_emit_type_arg(x->dtype), mpp_emit_mask(e, x->split[last]),
                  (long long)mpp_emit_span(x, 0, last), dim(e, x, last), arg(e, in, 0), result(e, in, 0));
}
static const struct emitter emit_softmax = {write_softmax, NULL, rows_workspace};

static void write_softmax_grad(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_buffer *y = mpp_emit_buffer(e, in->in[0]);
    int last = y->n_dims - 1;
    note_op(e, in, y);
    mpp_emit_line(e, "mpp_softmax_backward%s(r, %s%s, %lld, %s, %s, %s, %s);", mpp_emit_half(y->dtype), mpp_emit_type_arg(y->dtype), mpp_emit_mask(e, y->split[last]),
                  (long long)mpp_emit_span(y, 0, last), dim(e, y, last), arg(e, in, 0), arg(e, in, 1), result(e, in, 0));
}
static const struct emitter emit_softmax_grad = {write_softmax_grad, NULL, rows_workspace};

static void write_cross_entropy(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_buffer *x = mpp_emit_buffer(e, in->in[0]);
    int last = x->n_dims - 1;
    unsigned mask = x->split[last];
    note_op(e, in, x);
    const char *over = space(e, x, last), *width = dim(e, x, last);
    mpp_emit_line(e, "mpp_cross_entropy_forward%s(r, %s%s, %s, %s, %s, %s, %s, %s, %s, %s);", mpp_emit_half(x->dtype), mpp_emit_type_arg(x->dtype), mpp_emit_mask(e, mask),
                  over, width, ignore_index(e, in), arg(e, in, 0), arg(e, in, 1), arg(e, in, 2),
                  result(e, in, 1), result(e, in, 0));
    if (!mask)
        return;
    mpp_emit_note(e, "Sum over %s: each label's loss was counted on the shard that holds its logit. 4 bytes.",
                  mpp_emit_axis_words(e, mask));
    mpp_emit_line(e, "mpp_all_reduce(r, %s, %s, 1, MPP_REDUCE_SUM);", mpp_emit_mask(e, mask), result(e, in, 0));
}
static const struct emitter emit_cross_entropy = {write_cross_entropy, NULL, rows_workspace};

static void write_cross_entropy_grad(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_buffer *x = mpp_emit_buffer(e, in->in[0]);
    int last = x->n_dims - 1;
    note_op(e, in, x);
    const char *over = space(e, x, last), *width = dim(e, x, last);
    mpp_emit_line(e, "mpp_cross_entropy_backward%s(r, %s%s, %s, %s, %s, %s, %s, %s, %s, %s);", mpp_emit_half(x->dtype), mpp_emit_type_arg(x->dtype), over, width,
                  ignore_index(e, in), arg(e, in, 0), arg(e, in, 1), arg(e, in, 2), arg(e, in, 3), arg(e, in, 4),
                  result(e, in, 0));
}
static const struct emitter emit_cross_entropy_grad = {write_cross_entropy_grad, NULL, rows_workspace};

static void write_count_labels(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_buffer *x = mpp_emit_buffer(e, in->in[0]);
    note_op(e, in, x);
    mpp_emit_line(e, "mpp_count_labels(r, %s, %s, %s, %s);", space(e, x, x->n_dims), ignore_index(e, in), arg(e, in, 0),
                  result(e, in, 0));
}
static const struct emitter emit_count_labels = {write_count_labels, NULL, NULL};

/* ---- attention ---- */

/* q [batch, seq, heads, head_dim], k [batch, keys, ...] as a struct mpp_attention. */
static const char *attention(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_gop *op = op_of(e, in);
    const struct mpp_buffer *q = mpp_emit_buffer(e, in->in[0]), *k = mpp_emit_buffer(e, in->in[1]);
    double scale = mpp_attrs_float(&op->attrs, "scale", 1 / sqrt((double)size_of(e, q, 3).size));
    double dropout = mpp_attrs_float(&op->attrs, "dropout", 0);
    struct mpp_text s = {.arena = e->arena};
    const char *batch = dim(e, q, 0), *seq_q = dim(e, q, 1), *seq_k = dim(e, k, 1), *heads = dim(e, q, 2); /* named in this order */
    mpp_text_add(&s, "&(const struct mpp_attention){.batch = %s, .seq_q = %s, .seq_k = %s, .heads = %s, .head_dim = %lld, "
                     ".scale = %s", batch, seq_q, seq_k, heads, (long long)q->padded[3],
                 mpp_emit_float(e->arena, scale));
    if (mpp_attrs_int(&op->attrs, "causal", 0))
        mpp_text_add(&s, ", .causal = true");
    if (dropout > 0)
        mpp_text_add(&s, ", .dropout = %s, .op = %s", mpp_emit_float(e->arena, dropout),
                     mpp_emit_stream(e, mpp_attrs_int(&op->attrs, "stream", 0), in->stream_step));
    mpp_text_add(&s, "}");
    return s.data;
}

static enum mpp_dtype type_of(const struct mpp_emit *e, const struct mpp_instr *in)
{
    return mpp_emit_buffer(e, in->in[0])->dtype;
}

static void write_attention(struct mpp_emit *e, const struct mpp_instr *in)
{
    note_op(e, in, mpp_emit_buffer(e, in->in[0]));
    mpp_emit_line(e, "mpp_attention_forward%s(r, %s%s, %s, %s, %s, %s, %s, %s);", mpp_emit_half(type_of(e, in)), mpp_emit_type_arg(type_of(e, in)), attention(e, in), arg(e, in, 0), arg(e, in, 1),
                  arg(e, in, 2), arg(e, in, 3), result(e, in, 0), result(e, in, 1));
}

static void write_attention_grad(struct mpp_emit *e, const struct mpp_instr *in)
{
    note_op(e, in, mpp_emit_buffer(e, in->in[0]));
    mpp_emit_line(e, "mpp_attention_backward%s(r, %s%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);", mpp_emit_half(type_of(e, in)), mpp_emit_type_arg(type_of(e, in)), attention(e, in), arg(e, in, 0),
                  arg(e, in, 1), arg(e, in, 2), arg(e, in, 3), arg(e, in, 4), arg(e, in, 5), arg(e, in, 6), result(e, in, 0),
                  result(e, in, 1), result(e, in, 2));
}

/* The local extent of dimension DIM of operand O. */
static int64_t local_extent(const struct mpp_mesh *mesh, const struct mpp_group *group, struct mpp_split split, int o, int d)
{
    int factor = group->rule->operand[o].dim[d].n ? group->rule->operand[o].dim[d].factor[0] : -1;
    unsigned mask = 0;
    for (int a = 0; a < mesh->n_axes; a++)
        mask |= split.axis[a] == factor && factor >= 0 ? 1u << a : 0;
    return factor < 0 ? 1 : mpp_block_padded(mesh, group->rule->factor[factor].size.size, mask);
}

/* As mpp_attention_workspace of the host runtime: two tiles of 128 queries x 512 keys; in 16 bits, OF_EACH of q and of k of
 * one sample in f32 behind them. */
static int64_t attention_bytes(const struct mpp_graph *g, const struct mpp_mesh *mesh, const struct mpp_group *group,
                               struct mpp_split split, int of_each)
{
    int64_t q = local_extent(mesh, group, split, 0, 1), k = local_extent(mesh, group, split, 1, 1);
    int64_t width = ((k < 512 ? k : 512) + 15) / 16 * 16, height = (q < 128 ? q : 128) + 1, tiles = 2 * height * width * 4;
    if (!mpp_emit_is_half(g->tensors[group->in[0]].dtype))
        return tiles;
    int64_t position = local_extent(mesh, group, split, 0, 2) * local_extent(mesh, group, split, 0, 3);
    return (tiles + 63) / 64 * 64 + of_each * (q + k) * position * 4;
}

static int64_t attention_workspace(const struct mpp_graph *g, const struct mpp_mesh *mesh, const struct mpp_group *group,
                                   struct mpp_split split)
{
    return attention_bytes(g, mesh, group, split, 2);
}
static const struct emitter emit_attention = {write_attention, NULL, attention_workspace};

static int64_t attention_grad_workspace(const struct mpp_graph *g, const struct mpp_mesh *mesh, const struct mpp_group *group,
                                        struct mpp_split split)
{
    return attention_bytes(g, mesh, group, split, 4);
}
static const struct emitter emit_attention_grad = {write_attention_grad, NULL, attention_grad_workspace};

/* ---- the update ---- */

static void write_square_sum(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_buffer *x = mpp_emit_buffer(e, in->in[0]);
    mpp_emit_line(e, "mpp_square_sum(r, %s, %s, %s);", space(e, x, x->n_dims), arg(e, in, 0), result(e, in, 0));
}
static const struct emitter emit_square_sum = {write_square_sum, NULL, NULL};

static void write_clip_scale(struct mpp_emit *e, const struct mpp_instr *in)
{
    mpp_emit_note(e, "The norm of all gradients, and what they are multiplied by so that it stays below the limit");
    mpp_emit_line(e, "mpp_clip_scale(r, %s, %s, %s);", arg(e, in, 0), result(e, in, 0), result(e, in, 1));
}
static const struct emitter emit_clip_scale = {write_clip_scale, NULL, NULL};

static void write_loss_scale(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_attrs *a = &op_of(e, in)->attrs;
    mpp_emit_note(e, "Gradients that are not finite skip the step; else their norm, and what they are multiplied by: the limit "
                     "on the norm, over the loss's scale. Then the scale of the next step");
    mpp_emit_line(e, "mpp_loss_scale(r, %s, %lld, %s, %s, %s, %s, %s, %s);", mpp_attrs_int(a, "dynamic", 1) ? "true" : "false",
                  (long long)mpp_attrs_int(a, "every", 2000), arg(e, in, 0), result(e, in, 0), result(e, in, 1), result(e, in, 2),
                  result(e, in, 3), result(e, in, 4));
}
static const struct emitter emit_loss_scale = {write_loss_scale, NULL, NULL};

static const char *weight_decay(struct mpp_emit *e, const struct mpp_instr *in)
{
    return mpp_emit_float(e->arena, mpp_attrs_float(&op_of(e, in)->attrs, "weight_decay", 0));
}

static void write_adamw(struct mpp_emit *e, const struct mpp_instr *in)
{
    mpp_emit_line(e, "mpp_adamw(r, %lld, %s, %s, %s, %s, %s, %s);", count(mpp_emit_buffer(e, in->in[0])),
                  weight_decay(e, in), arg(e, in, 4), arg(e, in, 3), arg(e, in, 0), arg(e, in, 1), arg(e, in, 2));
}
static const struct emitter emit_adamw = {write_adamw, NULL, NULL};

static void write_sgd(struct mpp_emit *e, const struct mpp_instr *in)
{
    mpp_emit_line(e, "mpp_sgd(r, %lld, %s, %s, %s, %s, %s);", count(mpp_emit_buffer(e, in->in[0])), weight_decay(e, in),
                  arg(e, in, 2), arg(e, in, 1), arg(e, in, 0), arg(e, in, 3));
}
static const struct emitter emit_sgd = {write_sgd, NULL, NULL};

/* ---- the table ---- */

static const struct emitter *const table[MPP_OP_COUNT] = {
#define MPP_OP(ID, name, cls, attrs, rule, shape, linear, flops, expr, grad, ref, emit, precision) [MPP_OP_##ID] = &emit_##emit,
#include "ir/ops.def"
#undef MPP_OP
};

static const struct emitter *emitter_of(const struct mpp_graph *g, const struct mpp_group *group)
{
    return group->n_ops > 1 ? &emit_fused : table[g->ops[group->ops[0]].kind];
}

int64_t mpp_emit_workspace(const struct mpp_graph *graph, const struct mpp_mesh *mesh, const struct mpp_group *group,
                           struct mpp_split split)
{
    const struct emitter *em = emitter_of(graph, group);
    return em->workspace ? em->workspace(graph, mesh, group, split) : 0;
}

bool mpp_emit_can_accumulate(const struct mpp_graph *graph, const struct mpp_group *group, int out_index)
{
    const struct emitter *em = emitter_of(graph, group);
    return em->accumulates && em->accumulates(graph, group, out_index);
}

void mpp_emit_instr(struct mpp_emit *e, const struct mpp_instr *in)
{
    switch (in->kind) {
    case MPP_INSTR_COMPUTE:
        emitter_of(e->g, group_of(e, in))->emit(e, in);
        break;
    case MPP_INSTR_STEP:
        mpp_emit_step(e, in);
        break;
    case MPP_INSTR_ACCUMULATE:
        write_accumulate(e, in);
        break;
    case MPP_INSTR_ADD_SCALAR:
        mpp_emit_line(e, "%s(r, 1, true, %s, %s);", accumulate_kernel(e, MPP_F32), arg(e, in, 0), result(e, in, 0));
        break;
    case MPP_INSTR_ZERO:
        mpp_emit_line(e, "mpp_zero(r, %s, %lld * sizeof(float));", result(e, in, 0), count(mpp_emit_buffer(e, in->out[0])));
        break;
    case MPP_INSTR_AWAIT:
        mpp_emit_await(e, in);
        break;
    case MPP_INSTR_SEND:
    case MPP_INSTR_RECEIVE:
    case MPP_INSTR_SUM_STAGES:
        mpp_emit_transfer(e, in);
        break;
    }
}
