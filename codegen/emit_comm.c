/* emit_comm.c - one step of a copy: a collective with why it is there and how many bytes. */
#include <string.h>

#include "codegen/emit_internal.h"

/* What a step does, in words. */
static const char *words_of(struct mpp_emit *e, const struct mpp_reshard_step *s, const struct mpp_gtensor *t)
{
    const char *axes = mpp_emit_axis_words(e, s->mask);
    const char *dim = s->dim >= 0 && s->dim < t->n_dims && t->dims[s->dim].name ? t->dims[s->dim].name : "it";
    const char *to = s->to_dim >= 0 && s->to_dim < t->n_dims && t->dims[s->to_dim].name ? t->dims[s->to_dim].name : "it";
    static const char *const forms[] = {
        [MPP_STEP_ALL_REDUCE] = "Sum over %s", [MPP_STEP_REDUCE_SCATTER] = "Sum over %s, each rank keeping its part of %s",
        [MPP_STEP_ALL_GATHER] = "Gather over %s: all of %s", [MPP_STEP_ALL_TO_ALL] = "Exchange over %s: all of %s for a part of %s",
        [MPP_STEP_SLICE] = "Keep this rank's part over %s of %s", [MPP_STEP_TO_PARTIAL] = "Make one term of a sum over %s",
    };
    struct mpp_text out = {.arena = e->arena};
    const char *args[3] = {axes, dim, to};
    int n = 0;
    for (const char *c = forms[s->kind]; *c; c++)
        if (c[0] == '%' && c[1] == 's') {
            mpp_text_add(&out, "%s", args[n++]);
            c++;
        } else {
            mpp_text_add(&out, "%c", *c);
        }
    return out.data;
}

/* Dimension DIM of B as [outer, extent, inner]. */
static void emit_blocks(struct mpp_emit *e, const char *call, const struct mpp_instr *in, const struct mpp_buffer *larger)
{
    const struct mpp_reshard_step *s = in->step;
    const char *type = s->kind == MPP_STEP_REDUCE_SCATTER ? mpp_emit_type_arg(larger->dtype) : "";
    mpp_emit_line(e, "%s%s(r, %s, %s%lld, %lld, %lld, %s, %s);", call, mpp_emit_half(larger->dtype), mpp_emit_mask(e, s->mask), type,
                  (long long)mpp_emit_span(larger, 0, s->dim), (long long)larger->padded[s->dim],
                  (long long)mpp_emit_span(larger, s->dim + 1, larger->n_dims), mpp_emit_ptr(e, in->in[0]),
                  mpp_emit_ptr(e, in->out[0]));
}

static void emit_all_reduce(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_buffer *dst = mpp_emit_buffer(e, in->out[0]);
    const char *x = mpp_emit_ptr(e, in->in[0]), *y = mpp_emit_ptr(e, in->out[0]);
    long long count = (long long)mpp_emit_span(dst, 0, dst->n_dims);
    bool in_place = dst->alias == in->in[0].buffer || !strcmp(x, y);
    if (!in_place)
        mpp_emit_line(e, "mpp_copy(r, %s, %s, %lld * sizeof(%s));", y, x, count, mpp_emit_type(dst->dtype));
    if (in->begins)
        mpp_emit_line(e, "mpp_all_reduce_begin(r, %s, %s, %lld);", mpp_emit_mask(e, in->step->mask), y, count);
    else if (mpp_emit_is_half(dst->dtype))
        mpp_emit_line(e, "mpp_all_reduce_half(r, %s, %s%s, %lld);", mpp_emit_mask(e, in->step->mask), mpp_emit_type_arg(dst->dtype),
                      y, count);
    else
        mpp_emit_line(e, "mpp_all_reduce(r, %s, %s, %lld, MPP_REDUCE_SUM);", mpp_emit_mask(e, in->step->mask), y, count);
}

static void emit_all_gather(struct mpp_emit *e, const struct mpp_instr *in)
{
    emit_blocks(e, in->prefetch ? "mpp_all_gather_begin" : "mpp_all_gather", in, mpp_emit_buffer(e, in->out[0]));
}

static void emit_reduce_scatter(struct mpp_emit *e, const struct mpp_instr *in)
{
    emit_blocks(e, in->begins ? "mpp_reduce_scatter_begin" : "mpp_reduce_scatter", in, mpp_emit_buffer(e, in->in[0]));
}

static void emit_slice(struct mpp_emit *e, const struct mpp_instr *in)
{
    emit_blocks(e, "mpp_slice", in, mpp_emit_buffer(e, in->in[0]));
}

static void emit_all_to_all(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_buffer *src = mpp_emit_buffer(e, in->in[0]), *dst = mpp_emit_buffer(e, in->out[0]);
    struct mpp_text dims = {.arena = e->arena};
    for (int d = 0; d < src->n_dims; d++)
        mpp_text_add(&dims, "%s%lld", d ? ", " : "", (long long)src->padded[d]);
    mpp_emit_line(e, "mpp_all_to_all%s(r, %s, %d, (const int64_t[]){%s}, %d, %lld, %d, %s, %s);", mpp_emit_half(src->dtype),
                  mpp_emit_mask(e, in->step->mask), src->n_dims, dims.data, in->step->dim,
                  (long long)dst->padded[in->step->dim], in->step->to_dim, mpp_emit_ptr(e, in->in[0]),
                  mpp_emit_ptr(e, in->out[0]));
}

static void emit_to_partial(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_buffer *dst = mpp_emit_buffer(e, in->out[0]);
    mpp_emit_line(e, "mpp_to_partial%s(r, %s, %s, %s, %lld);", mpp_emit_half(dst->dtype), mpp_emit_mask(e, in->step->mask), mpp_emit_ptr(e, in->in[0]),
                  mpp_emit_ptr(e, in->out[0]), (long long)mpp_emit_span(dst, 0, dst->n_dims));
}

void mpp_emit_step(struct mpp_emit *e, const struct mpp_instr *in)
{
    static void (*const emit[])(struct mpp_emit *, const struct mpp_instr *) = {
        [MPP_STEP_ALL_REDUCE] = emit_all_reduce, [MPP_STEP_REDUCE_SCATTER] = emit_reduce_scatter,
        [MPP_STEP_ALL_GATHER] = emit_all_gather, [MPP_STEP_ALL_TO_ALL] = emit_all_to_all,
        [MPP_STEP_SLICE] = emit_slice, [MPP_STEP_TO_PARTIAL] = emit_to_partial,
    };
    const struct mpp_reshard_step *s = in->step;
    const struct mpp_buffer *b = mpp_emit_buffer(e, in->out[0]);
    const char *words = words_of(e, s, &e->g->tensors[b->tensor]);
    if (s->kind == MPP_STEP_SLICE || s->kind == MPP_STEP_TO_PARTIAL)
        mpp_emit_note(e, "%s%s%s. No communication.", words, in->reason ? ": " : "", in->reason ? in->reason : "");
    else
        mpp_emit_note(e, "%s%s%s%s. %s.", in->ahead ? "The next layer's. " : "", words, in->reason ? ": " : "",
                      in->reason ? in->reason : "", mpp_emit_bytes_text(e->arena, s->bytes));
    e->ahead = in->ahead;
    emit[s->kind](e, in);
    e->ahead = 0;
}

void mpp_emit_await(struct mpp_emit *e, const struct mpp_instr *in)
{
    if (e->last_layer && in->under_way != in->under_way_last)
        mpp_emit_line(e, "mpp_gather_wait(r, t == %s ? %d : %d);", e->last_layer, in->under_way_last, in->under_way);
    else
        mpp_emit_line(e, "mpp_gather_wait(r, %d);", in->under_way_last);
}
