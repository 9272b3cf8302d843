/* pipeline.h - which layers and devices make a stage: dynamic programming over (layers, devices, stages).
 *
 * What a stage costs comes from a callback, so that this module knows nothing of ops and shardings. It may return
 * bounds first: `exact` false means that the option's times are lower bounds; the search then asks again for the exact
 * options of stages that lie on a best plan, until the best plan holds exact ones only. That plan is optimal, and its
 * time is proven. */
#ifndef MPP_PIPELINE_H
#define MPP_PIPELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "ir/arena.h"
#include "ir/status.h"
#include "planner/schedule.h"

struct mpp_pipeline_key {         /* a stage problem */
    int first_layer, last_layer;
    int first_device, n_devices;
    int stage, n_stages;          /* its place: what is in flight follows */
};

struct mpp_pipeline_option {      /* one way to run a stage; none of a list is worse in both times than another */
    int64_t t_ps;                 /* of one micro-batch: forward and backward */
    int64_t once_ps;
    int id;                       /* the callback's own */
};

struct mpp_pipeline_stage {       /* of the answer */
    struct mpp_pipeline_key key;
    struct mpp_pipeline_option option;
};

struct mpp_pipeline_problem {
    int n_layers, n_devices;
    int n_sizes;
    const int *sizes;             /* numbers of devices that a stage may have, ascending */
    int max_stages;
    const int *stages;            /* NULL: 1..max_stages all; else a 0-terminated list of stage counts to try */
    bool equal_sizes;             /* all stages have the same number of devices */
    enum mpp_schedule_kind kind;
    int chunks;                   /* interleaved: stages must have a multiple of this many layers */
    int64_t micro_batches;
    int64_t upper_bound_ps;       /* plans that take at least so long are of no interest; INT64_MAX: all are */
    /* Options of KEY into *OUT (valid until the next call), their number; 0: nothing fits. EXACT false: bounds will do;
     * *OUT_EXACT says what they are. Called at most once per key and kind: answers are remembered here. */
    int (*options)(void *context, const struct mpp_pipeline_key *key, bool exact,
                   const struct mpp_pipeline_option **out, bool *out_exact);
    void *context;
    volatile int *interrupt;
};

struct mpp_pipeline_answer {
    int n_stages;                 /* 0: no plan below upper_bound_ps */
    struct mpp_pipeline_stage *stage;
    int64_t time_ps;              /* mpp_schedule_time of it */
    int64_t bound_ps;             /* no plan takes less (at most time_ps) */
    int64_t asked, asked_exact;   /* calls of the callback */
};

/* Minimise mpp_schedule_time over all contiguous partitions of layers and devices, stage by stage in order, all devices
 * used. max t and max once are enumerated in order and pruned. *OUT lives in ARENA. MPP_LIMIT: interrupted (with the
 * best so far, if any). */
enum mpp_status mpp_pipeline_solve(struct mpp_arena *arena, const struct mpp_pipeline_problem *problem,
                                   struct mpp_pipeline_answer *out) MPP_CHECKED;

#endif
