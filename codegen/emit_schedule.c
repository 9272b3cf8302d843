/* emit_schedule.c - stageN_step: in what order a stage runs the forwards and backwards of a step. */
#include "codegen/emit_internal.h"

/* "m", "m - 2" */
static const char *before(struct mpp_emit *e, int64_t lag)
{
    return lag == 0 ? "m" : mpp_arena_printf(e->arena, "m - %lld", (long long)lag);
}

/* For micro-batches FIRST .. END - 1: a forward and then the backward of the micro-batch LAG before it, where wanted. */
static void emit_range(struct mpp_emit *e, int64_t first, int64_t end, bool forward, bool backward, int64_t lag)
{
    if (first >= end)
        return;
    bool both = forward && backward;
    if (end - first == 1) {
        if (forward)
            mpp_emit_line(e, "mpp_forward(r, 0, %lld);", (long long)first);
        if (backward)
            mpp_emit_line(e, "mpp_backward(r, 0, %lld);", (long long)(first - lag));
        return;
    }
    mpp_emit_line(e, "for (int m = %lld; m < %lld; m++)%s", (long long)first, (long long)end, both ? " {" : "");
    if (forward)
        mpp_emit_line(e, "    mpp_forward(r, 0, m);");
    if (backward)
        mpp_emit_line(e, "    mpp_backward(r, 0, %s);", before(e, lag));
    if (both)
        mpp_emit_line(e, "}");
}

void mpp_emit_schedule(struct mpp_emit *e)
{
    const struct mpp_schedule *s = &e->plan->pipeline;
    int64_t n = s->micro_batches, w = mpp_schedule_warm_up(s, e->index);
    struct mpp_text *out = &e->stage_text;
    mpp_text_add(out, "\n");
    mpp_text_comment(out, 0, e->plan->n_stages == 1 ? "A step's micro-batches, one after the other; in evaluation there are no backwards."
                             : mpp_arena_printf(e->arena, "A step's micro-batches, as %s has them in stage %d of %d: at most %lld in "
                                                "flight. In evaluation there are no backwards.", mpp_schedule_name(s->kind), e->index,
                                                e->plan->n_stages, (long long)e->stage->in_flight));
    mpp_text_add(out, "void %s_step(struct mpp_rank *r)\n{\n", e->name);
    e->body = (struct mpp_text){.arena = e->arena};
    e->indent = 4;
    emit_range(e, 0, w, true, false, 0);
    emit_range(e, w, n, true, true, w);
    emit_range(e, n - w, n, false, true, 0);
    mpp_text_add(out, "%s}\n", mpp_text_string(&e->body));
}
