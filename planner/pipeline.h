/* pipeline.h - which layers and devices make a stage: dynamic programming over (layers, devices, stages).
 *
 *     struct mpp_pipeline_problem p = {.n_layers = 24, .n_devices = 16, .n_sizes = 3, .sizes = sizes, .max_stages = 16,
 *                                      .kind = MPP_SCHEDULE_1F1B, .chunks = 1, .micro_batches = 32,
 *                                      .upper_bound_ps = INT64_MAX, .options = cost_of_a_stage, .context = mine};
 *     enum mpp_status st = mpp_pipeline_solve(arena, &p, &answer);   // answer.n_stages == 0: nothing fits
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

/* A stage problem. What it costs may depend on its layers, its devices and what is in flight; on its place only through
 * that, so that stages of other places with the same three need not be asked for again. */
struct mpp_pipeline_key {
    int first_layer, last_layer;
    int first_device, n_devices;
    int stage, n_stages;          /* its place (in a question: one of the places where it may be) */
    int64_t in_flight;            /* mpp_schedule_held of it */
};

struct mpp_pipeline_option {      /* one way to run a stage; those worse in both times than another are passed over */
    int64_t t_ps;                 /* of one micro-batch: forward and backward; >= 0 */
    int64_t once_ps;              /* >= 0 */
    int id;                       /* the callback's own */
    bool sure;                    /* among bounds: this one is exact */
};

struct mpp_pipeline_stage {       /* of the answer */
    struct mpp_pipeline_key key;
    struct mpp_pipeline_option option;
};

/* mpp_schedule_time of N_STAGES with these options, whatever S says of stages; saturates. */
int64_t mpp_pipeline_time(const struct mpp_schedule *s, const struct mpp_pipeline_stage *stage, int n_stages);

struct mpp_pipeline_problem {
    int n_layers, n_devices;
    int n_sizes;
    const int *sizes;             /* numbers of devices that a stage may have, ascending */
    int max_stages;
    const int *stages;            /* NULL: 1..max_stages all; else a 0-terminated list of stage counts to try */
    bool equal_sizes;             /* all stages have the same number of devices */
    enum mpp_schedule_kind kind;
    int chunks;                   /* interleaved: stages must have a multiple of this many layers, and only numbers of
                                     stages that divide micro_batches are tried; else 1 */
    int64_t micro_batches;
    int64_t upper_bound_ps;       /* plans that take at least so long are of no interest; INT64_MAX: all are (a time
                                     that saturates at INT64_MAX is no plan) */
    /* Options of KEY into *OUT (valid until the next call), their number; 0: nothing fits. EXACT false: bounds will do;
     * *OUT_EXACT says what they are. Bounds: for each exact option there is one that is no worse in either time, or with
     * which no plan takes longer; those that are sure are exact options themselves. Asked for exact ones it may still return
     * better bounds, and is asked again, but only finitely often. Answers are remembered here: without better ones nothing
     * is asked twice per (layers, devices, in flight) and EXACT. */
    int (*options)(void *context, const struct mpp_pipeline_key *key, bool exact,
                   const struct mpp_pipeline_option **out, bool *out_exact);
    /* May be NULL. Keys for which it returns equal numbers >= 0 have the same options, so only one of them is asked for
     * (and exact options of one are those of all); -1: KEY is like no other. Small numbers, please: there is a table. */
    int (*alike)(void *context, const struct mpp_pipeline_key *key);
    /* A promise: of two stages on the same devices with as much in flight, for every exact option of the one whose layers
     * contain the other's the other has one that is no worse in either time. Saves most questions below an upper bound. */
    bool longer_is_worse;
    void *context;
    volatile int *interrupt;      /* may be NULL; not 0: stop */
};

struct mpp_pipeline_answer {
    int n_stages;                 /* 0: no plan below upper_bound_ps */
    struct mpp_pipeline_stage *stage;
    int64_t time_ps;              /* mpp_schedule_time of it; INT64_MAX without one */
    int64_t bound_ps;             /* no plan takes less (at most time_ps and upper_bound_ps) */
    int64_t asked, asked_exact;   /* calls of the callback */
    int64_t passes;               /* of the dynamic program */
};

/* Minimise mpp_schedule_time over all contiguous partitions of layers and devices, stage by stage in order, all devices
 * used, with one option for each stage. The dynamic program minimises the sum of t under limits on t and once; the limits
 * are searched best bound first, so that most are never tried. *OUT lives in ARENA. MPP_LIMIT: interrupted (with the
 * best so far, if any). Equal input gives an equal answer. */
enum mpp_status mpp_pipeline_solve(struct mpp_arena *arena, const struct mpp_pipeline_problem *problem,
                                   struct mpp_pipeline_answer *out) MPP_CHECKED;

#endif
