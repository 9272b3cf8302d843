/* trace.h - what a rank did and when, for --profile: a Chrome trace (ui.perfetto.dev, chrome://tracing) and a table.
 *
 *     code = mpp_trace_new(r, &error);                  // before the steps: all memory that is used
 *     mpp_trace_step(r, step);                          // a step begins; those before the last are forgotten
 *     double begun_s = mpp_trace_begin(r);
 *     ...
 *     mpp_trace_end(r, begun_s, MPP_TRACE_FORWARD, chunk, micro_batch, 0);
 *     code = mpp_trace_write(r, "trace.json", &error);  // collective; rank 0 writes. *ERROR is rank 0's
 *     mpp_trace_free(r);
 *
 * Events of a rank are nested or apart, and stand in the order of their ends. Without --profile r->trace is NULL and an event
 * costs two comparisons. Of the last two steps each rank keeps MPP_TRACE_EVENTS events. */
#ifndef MPP_TRACE_H
#define MPP_TRACE_H

#include "device.h"
#include "fail.h"
#include "mpp_rt.h"
#include "progress.h"

enum { MPP_TRACE_EVENTS = 1 << 16 };

enum mpp_trace_kind { /* and what A and B are */
    MPP_TRACE_STEP,     /* step */
    MPP_TRACE_BEGIN,    /* inputs, and what all ranks tell each other before a step */
    MPP_TRACE_PROLOGUE, /* -, micro-batch */
    MPP_TRACE_FORWARD,  /* chunk, micro-batch */
    MPP_TRACE_BACKWARD, /* the same */
    MPP_TRACE_UPDATE,
    MPP_TRACE_REPORT,
    MPP_TRACE_SEND,     /* transfer */
    MPP_TRACE_RECEIVE,  /* the same */
    MPP_TRACE_ALL_REDUCE, /* mask; of this kind and those up to the next comment */
    MPP_TRACE_ALL_GATHER,
    MPP_TRACE_REDUCE_SCATTER,
    MPP_TRACE_ALL_TO_ALL,
    MPP_TRACE_SUMS,     /* of sums that were begun earlier, their end */
    MPP_TRACE_STAGES,   /* a sum over stages */
    MPP_TRACE_WAIT,     /* inside a send, a receive or a collective: others are not there yet */
    MPP_TRACE_KINDS
};

struct mpp_trace_event {
    double begin_s, end_s;
    int64_t bytes; /* of a collective or message, as this rank holds it; 0: none */
    int32_t kind, a, b;
    double cpu_s; /* of a pass: what the rank's own thread computed of it, whatever else its core did; else 0 */
};

int mpp_trace_new(struct mpp_rank *r, struct mpp_error *error) MPP_RT_CHECKED;
void mpp_trace_free(struct mpp_rank *r);
void mpp_trace_step(struct mpp_rank *r, int64_t step);
void mpp_trace_add(struct mpp_rank *r, const struct mpp_trace_event *event);

static inline double mpp_trace_begin(const struct mpp_rank *r)
{
    return r->trace != NULL ? mpp_clock_s() : 0;
}

static inline void mpp_trace_end(struct mpp_rank *r, double begun_s, enum mpp_trace_kind kind, int a, int b, int64_t bytes)
{
    if (r->trace == NULL)
        return;
    mpp_device_synchronize(r); /* kernels end later than the calls that start them */
    mpp_trace_add(r, &(struct mpp_trace_event){begun_s, mpp_clock_s(), bytes, kind, a, b, 0});
}

/* CPU seconds of the rank's own thread so far. */
static inline double mpp_trace_cpu(const struct mpp_rank *r)
{
    return r->trace != NULL ? mpp_thread_cpu_s() : 0;
}

/* A pass: KIND is MPP_TRACE_FORWARD or MPP_TRACE_BACKWARD. */
static inline void mpp_trace_end_pass(struct mpp_rank *r, double begun_s, double cpu_s, enum mpp_trace_kind kind, int chunk,
                                      int micro_batch)
{
    if (r->trace == NULL)
        return;
    mpp_device_synchronize(r);
    mpp_trace_add(r, &(struct mpp_trace_event){begun_s, mpp_clock_s(), 0, kind, chunk, micro_batch, mpp_thread_cpu_s() - cpu_s});
}

/* All ranks call; nothing is written where no step was taken. Rank 0 prints the table too. The caller agrees on the code. */
int mpp_trace_write(struct mpp_rank *r, const char *path, struct mpp_error *error) MPP_RT_CHECKED;

#endif
