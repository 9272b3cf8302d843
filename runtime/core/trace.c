/* trace.c - recording. */
#include <stdlib.h>

#include "trace_internal.h"

int mpp_trace_new(struct mpp_rank *r, struct mpp_error *error)
{
    struct mpp_trace *t = calloc(1, sizeof *t);
    r->trace = t;
    for (int i = 0; t != NULL && i < 2; i++)
        t->part[i].events = calloc(MPP_TRACE_EVENTS, sizeof *t->part[i].events);
    if (t != NULL && t->part[0].events != NULL && t->part[1].events != NULL)
        return MPP_EXIT_OK;
    mpp_trace_free(r);
    return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: out of memory for --profile", r->rank);
}

void mpp_trace_free(struct mpp_rank *r)
{
    if (r->trace == NULL)
        return;
    free(r->trace->part[0].events);
    free(r->trace->part[1].events);
    free(r->trace);
    r->trace = NULL;
}

void mpp_trace_step(struct mpp_rank *r, int64_t step)
{
    struct mpp_trace *t = r->trace;
    if (t == NULL)
        return;
    t->now = !t->now;
    t->part[t->now].step = step;
    t->part[t->now].done = false;
    t->part[t->now].n = t->part[t->now].left_out = 0;
}

/* The last place is the step's own. What comes between two steps is none of theirs. */
void mpp_trace_add(struct mpp_rank *r, const struct mpp_trace_event *event)
{
    struct mpp_trace_part *p = &r->trace->part[r->trace->now];
    if (p->step == 0 || p->done)
        return;
    if (p->n < MPP_TRACE_EVENTS - (event->kind != MPP_TRACE_STEP))
        p->events[p->n++] = *event;
    else
        p->left_out++;
    p->done = event->kind == MPP_TRACE_STEP;
}
