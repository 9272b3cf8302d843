/* schedule.h - pipeline schedules: in what order a stage runs its micro-batches, and how long a step takes.
 *
 *     int k = mpp_schedule_in_flight(&s, stage);                      // micro-batches whose activations are alive
 *     int64_t t = mpp_schedule_time(&s, stage_times);                 // DESIGN's formula
 *     int64_t e = mpp_schedule_simulate(arena, &s, stage_times, trace); // event by event
 *
 * B micro-batches pass S stages; interleaved, each stage runs V chunks of its layers, chunk c of stage i holding
 * the (c * S + i)-th part of the model. All times are picoseconds. */
#ifndef MPP_SCHEDULE_H
#define MPP_SCHEDULE_H

#include <stdint.h>

#include "ir/arena.h"

enum mpp_schedule_kind { MPP_SCHEDULE_GPIPE, MPP_SCHEDULE_1F1B, MPP_SCHEDULE_INTERLEAVED };
const char *mpp_schedule_name(enum mpp_schedule_kind kind); /* "GPipe", "1F1B", "interleaved 1F1B" */

struct mpp_schedule {
    enum mpp_schedule_kind kind;
    int stages;                   /* S >= 1 */
    int chunks;                   /* V >= 1; 1 unless interleaved */
    int64_t micro_batches;        /* B >= 1; interleaved: a multiple of S */
};

struct mpp_stage_time {
    int64_t forward_ps, backward_ps; /* of one micro-batch through all of the stage's layers, what it receives included */
    int64_t once_ps;              /* after its last backward: reductions of gradients, update */
};

/* Most micro-batches (interleaved: chunks of them, over V, rounded up) whose activations STAGE holds at once: GPipe B;
 * 1F1B min(S - i, B); interleaved counted from the schedule. */
int64_t mpp_schedule_in_flight(const struct mpp_schedule *s, int stage);

/* sum_i t_i + (B - 1) max_j t_j + max_i once_i with t = forward + backward; interleaved:
 * B max_j t_j + (sum_i t_i - max_j t_j) / V + max_i once_i. Saturates at INT64_MAX. */
int64_t mpp_schedule_time(const struct mpp_schedule *s, const struct mpp_stage_time *stage);

/* One piece of work of the simulated step. */
struct mpp_schedule_event {
    int stage, chunk;
    int64_t micro_batch;
    enum { MPP_EVENT_FORWARD, MPP_EVENT_BACKWARD, MPP_EVENT_ONCE } what;
    int64_t begin_ps, end_ps;
};

/* The time of a step in which every stage runs its own list of work in order, each piece as soon as what it needs is
 * there. OUT_EVENTS (may be NULL) gets them, in order of their beginning, in ARENA, and *OUT_N how many. */
int64_t mpp_schedule_simulate(struct mpp_arena *arena, const struct mpp_schedule *s,
                              const struct mpp_stage_time *stage, const struct mpp_schedule_event **out_events,
                              int64_t *out_n);

#endif
