/* emit_schedule.c - stageN_step: in what order a stage runs the forwards and backwards of a step. */
#include "codegen/emit_internal.h"

/* How a pass of number or micro-batch NUMBER is called. */
static const char *call(struct mpp_emit *e, bool backward, const char *number)
{
    const char *pass = backward ? "backward" : "forward";
    return e->plan->pipeline.chunks > 1 ? mpp_arena_printf(e->arena, "%s(r, %s);", pass, number)
                                        : mpp_arena_printf(e->arena, "mpp_%s(r, 0, %s);", pass, number);
}

/* For numbers FIRST .. END - 1: a forward, and then the backward that is LAG earlier, where wanted. */
static void emit_range(struct mpp_emit *e, int64_t first, int64_t end, bool forward, bool backward, int64_t lag)
{
    const char *index = e->plan->pipeline.chunks > 1 ? "k" : "m", *from = index, *to = index;
    bool alone = end - first == 1, both = forward && backward;
    if (first >= end)
        return;
    if (alone) {
        from = mpp_arena_printf(e->arena, "%lld", (long long)first);
        to = mpp_arena_printf(e->arena, "%lld", (long long)(first - lag));
    } else if (lag > 0) {
        to = mpp_arena_printf(e->arena, "%s - %lld", index, (long long)lag);
    }
    if (!alone)
        mpp_emit_line(e, "for (int %s = %lld; %s < %lld; %s++)%s", index, (long long)first, index, (long long)end, index,
                      both ? " {" : "");
    e->indent += alone ? 0 : 4;
    if (forward)
        mpp_emit_line(e, "%s", call(e, false, from));
    if (backward)
        mpp_emit_line(e, "%s", call(e, true, to));
    e->indent -= alone ? 0 : 4;
    if (both && !alone)
        mpp_emit_line(e, "}");
}

/* Interleaved: as mpp_schedule_work numbers passes. */
static void emit_turns(struct mpp_emit *e)
{
    const struct mpp_schedule *s = &e->plan->pipeline;
    struct mpp_text *out = &e->stage_text;
    int round = s->stages * s->chunks;
    mpp_text_add(out, "\n");
    mpp_text_comment(out, 0, mpp_arena_printf(e->arena, "Passes take turns: %d micro-batches of one part of this stage's layers, the same "
                                              "of the next part, and so on; backward, the last part comes first.", s->stages));
    mpp_text_add(out, "static void forward(struct mpp_rank *r, int k)\n{\n    mpp_forward(r, k / %d %% %d, k / %d * %d + k %% %d);\n}\n",
                 s->stages, s->chunks, round, s->stages, s->stages);
    mpp_text_add(out, "\nstatic void backward(struct mpp_rank *r, int k)\n{\n    mpp_backward(r, %d - k / %d %% %d, k / %d * %d + k %% %d);\n}\n",
                 s->chunks - 1, s->stages, s->chunks, round, s->stages, s->stages);
}

void mpp_emit_schedule(struct mpp_emit *e)
{
    const struct mpp_schedule *s = &e->plan->pipeline;
    int64_t n = s->micro_batches * s->chunks, w = mpp_schedule_warm_up(s, e->index);
    struct mpp_text *out = &e->stage_text;
    if (s->chunks > 1)
        emit_turns(e);
    mpp_text_add(out, "\n");
    mpp_text_comment(out, 0, e->plan->n_stages == 1 ? "A step's micro-batches, one after the other; in evaluation there are no backwards."
                             : mpp_arena_printf(e->arena, "A step's %lld micro-batches, as %s has them in stage %d of %d: at most %lld in "
                                                "flight. In evaluation there are no backwards.", (long long)s->micro_batches,
                                                mpp_schedule_name(s->kind), e->index, e->plan->n_stages, (long long)e->stage->in_flight));
    mpp_text_add(out, "void %s_step(struct mpp_rank *r)\n{\n", e->name);
    e->body = (struct mpp_text){.arena = e->arena};
    e->indent = 4;
    emit_range(e, 0, w, true, false, 0);
    emit_range(e, w, n, true, true, w);
    emit_range(e, n - w, n, false, true, 0);
    mpp_text_add(out, "%s}\n", mpp_text_string(&e->body));
}
