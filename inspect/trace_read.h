/* trace_read.h - a trainer's trace as events: the complete ones ("ph": "X"), with what this project's traces say of them.
 *
 *     struct mpp_trace_events t;
 *     MPP_TRY(mpp_trace_read(arena, diag, "trace.json", &t));
 *
 * Read as a stream, so a trace of gigabytes takes the memory of its events alone. Internal to inspect/. */
#ifndef MPP_TRACE_READ_H
#define MPP_TRACE_READ_H

#include <stdbool.h>
#include <stdint.h>

#include "ir/arena.h"
#include "ir/diag.h"
#include "ir/rule.h"
#include "ir/status.h"

struct mpp_trace_read_event {
    const char *name;             /* equal names are one pointer */
    int stage, rank;              /* pid, tid */
    double begin_s, end_s;
    int64_t bytes;                /* 0: none is said */
    bool kernel;                  /* of category "kernel": a predicted trace's */
};

struct mpp_trace_events {
    int64_t n;
    struct mpp_trace_read_event *event; /* in the file's order */
};

/* Axes of MESH as traces name them, "data 2 x model 4". */
const char *mpp_trace_axes(struct mpp_arena *arena, const struct mpp_mesh *mesh, unsigned mask);

enum mpp_status mpp_trace_read(struct mpp_arena *arena, struct mpp_diag *diag, const char *path, struct mpp_trace_events *out) MPP_CHECKED;

#endif
