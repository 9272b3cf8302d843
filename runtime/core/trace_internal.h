/* trace_internal.h - the events of a rank, between trace.c, which records them, and trace_write.c. */
#ifndef MPP_TRACE_INTERNAL_H
#define MPP_TRACE_INTERNAL_H

#include "trace.h"

/* The events of a step. */
struct mpp_trace_part {
    int64_t step; /* 0: none */
    bool done;    /* the step has ended: its event is the last */
    int64_t n, left_out;
    struct mpp_trace_event *events; /* [MPP_TRACE_EVENTS] */
};

struct mpp_trace {
    struct mpp_trace_part part[2];
    int now; /* the part of the running step; the other is of the step before */
};

#endif
