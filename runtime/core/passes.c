/* passes.c - mpp_forward and mpp_backward, and what comes before and around them. */
#include <stdlib.h>

#include "device.h"
#include "feed.h"
#include "job.h"
#include "passes.h"
#include "trace.h"

#define STATE_ALIGN 64

static struct mpp_local *local_of(const struct mpp_rank *r)
{
    return r->impl;
}

static size_t state_stride(const struct mpp_rank *r)
{
    return (r->stage->plan_state_bytes + STATE_ALIGN) / STATE_ALIGN * STATE_ALIGN;
}

int mpp_passes_new(struct mpp_rank *r, struct mpp_error *error)
{
    size_t n = 0;
    for (int c = 0; c < r->stage->n_chunks; c++)
        n += (size_t)r->stage->chunks[c].slots;
    local_of(r)->states = calloc(n, state_stride(r));
    if (local_of(r)->states == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: out of memory", r->rank);
    r->plan = local_of(r)->states;
    return MPP_EXIT_OK;
}

void mpp_passes_free(struct mpp_rank *r)
{
    free(local_of(r)->states);
    local_of(r)->states = NULL;
    r->plan = NULL;
}

/* What runs next on R is of this chunk and slot. States stand in the order of chunks, then slots. */
static void enter(struct mpp_rank *r, int chunk, int slot)
{
    int before = slot;
    for (int c = 0; c < chunk; c++)
        before += r->stage->chunks[c].slots;
    r->chunk = chunk;
    r->slot = slot;
    r->plan = local_of(r)->states + (size_t)before * state_stride(r);
}

void mpp_passes_set_up(struct mpp_rank *r)
{
    for (int c = 0; c < r->stage->n_chunks; c++)
        for (int s = 0; s < r->stage->chunks[c].slots; s++) {
            enter(r, c, s);
            r->stage->setup(r);
        }
    enter(r, 0, 0);
}

/* Inputs with one place hold those of micro-batch local->placed. */
static void place_inputs(struct mpp_rank *r, int micro_batch, bool forward)
{
    struct mpp_local *local = local_of(r);
    if (forward)
        mpp_feed_place(local->feed, r, micro_batch, true);
    if (local->placed != micro_batch)
        mpp_feed_place(local->feed, r, micro_batch, false);
    local->placed = micro_batch;
}

void mpp_forward(struct mpp_rank *r, int chunk, int micro_batch)
{
    enter(r, chunk, micro_batch % r->stage->chunks[chunk].slots);
    r->micro_batch = micro_batch;
    double begun_s = mpp_trace_begin(r), cpu_s = mpp_trace_cpu(r);
    place_inputs(r, micro_batch, true);
    mpp_device_pass(r, MPP_PASS_FORWARD, r->stage->chunks[chunk].forward);
    mpp_trace_end_pass(r, begun_s, cpu_s, MPP_TRACE_FORWARD, chunk, micro_batch);
}

void mpp_backward(struct mpp_rank *r, int chunk, int micro_batch)
{
    if (!r->training)
        return;
    enter(r, chunk, micro_batch % r->stage->chunks[chunk].slots);
    r->micro_batch = micro_batch;
    double begun_s = mpp_trace_begin(r), cpu_s = mpp_trace_cpu(r);
    place_inputs(r, micro_batch, false);
    mpp_device_pass(r, MPP_PASS_BACKWARD, r->stage->chunks[chunk].backward);
    mpp_trace_end_pass(r, begun_s, cpu_s, MPP_TRACE_BACKWARD, chunk, micro_batch);
}

void mpp_passes_run(struct mpp_rank *r)
{
    local_of(r)->placed = -1;
    for (int m = 0; r->stage->prologue != NULL && m < r->micro_batches; m++) {
        enter(r, 0, 0);
        r->micro_batch = m;
        double begun_s = mpp_trace_begin(r);
        place_inputs(r, m, true);
        mpp_device_pass(r, MPP_PASS_PROLOGUE, r->stage->prologue);
        mpp_trace_end(r, begun_s, MPP_TRACE_PROLOGUE, 0, m, 0);
    }
    r->stage->step(r);
    enter(r, 0, 0);
}
