/* schedule.h - pipeline schedules: in what order a stage runs its micro-batches, and how long a step takes.
 *
 *     int64_t k = mpp_schedule_in_flight(&s, stage);                  // micro-batches whose activations are alive
 *     int64_t t = mpp_schedule_time(&s, stage_times);                 // the model that the search minimises
 *     int64_t e = mpp_schedule_simulate(arena, &s, stage_times, &events, &n); // event by event
 *
 * B micro-batches pass S stages; interleaved, each stage runs V chunks of its layers, chunk c of stage i holding
 * the (c * S + i)-th part of the model. All times are picoseconds and saturate at INT64_MAX.
 *
 * Every stage does its forwards and backwards in numbered order: W forwards (the warm-up), then one forward and one
 * backward in turns, then the backwards that are left. GPipe warms up with all; 1F1B with S - i - 1; interleaved (Narayanan
 * et al., Efficient Large-Scale Language Model Training on GPU Clusters, SC21, and its program) with 2 (S - i - 1) +
 * (V - 1) S chunks, numbered by S micro-batches of a chunk, the same S of the next chunk, and so on. */
#ifndef MPP_SCHEDULE_H
#define MPP_SCHEDULE_H

#include <stdbool.h>
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

/* Is S what the comments above ask for? */
bool mpp_schedule_valid(const struct mpp_schedule *s);

struct mpp_stage_time {
    int64_t forward_ps, backward_ps; /* of one micro-batch through all of the stage's layers, what it receives included */
    int64_t once_ps;              /* after its last backward: reductions of gradients, update */
    int64_t update_ps;            /* of once_ps, what waits for all stages' reductions (norm, overflow); simulation only */
};

/* Forwards (interleaved: of chunks) that STAGE runs before its first backward may run: W, at most B V. */
int64_t mpp_schedule_warm_up(const struct mpp_schedule *s, int stage);

/* Most micro-batches (interleaved: chunks of them, over V, rounded up) whose activations STAGE holds at once: GPipe B;
 * 1F1B min(S - i, B); interleaved min(W + 1, B V) / V. */
int64_t mpp_schedule_in_flight(const struct mpp_schedule *s, int stage);

/* Micro-batches for whose activations STAGE has memory: interleaved each chunk has places of its own, as many as it ever holds at
 * once, which is more than all chunks hold at any one time; their sum over V, rounded up. Else as mpp_schedule_in_flight. */
int64_t mpp_schedule_held(const struct mpp_schedule *s, int stage);

/* sum_i t_i + (B - 1) max_j t_j + max_i once_i with t = forward + backward; interleaved:
 * B max_j t_j + (sum_i t_i - max_j t_j) / V + max_i once_i. For stages that are all alike this is the simulated time
 * (interleaved: if V divides their times). Unlike stages may take more (the longest forward and the longest backward are
 * in different stages; GPipe never takes less) or less (short stages hide behind a long one's warm-up). */
int64_t mpp_schedule_time(const struct mpp_schedule *s, const struct mpp_stage_time *stage);

/* The same from its three figures: the sum and the maximum of t, the maximum of once. */
int64_t mpp_schedule_time_of(const struct mpp_schedule *s, int64_t sum_ps, int64_t max_ps, int64_t once_ps);

/* One piece of work of the simulated step. */
struct mpp_schedule_event {
    int stage, chunk;
    int64_t micro_batch;
    enum { MPP_EVENT_FORWARD, MPP_EVENT_BACKWARD, MPP_EVENT_ONCE, MPP_EVENT_UPDATE } what;
    int64_t begin_ps, end_ps;
};

/* What STAGE does as its INDEX-th of 2 B V pieces of forward and backward (times 0). */
struct mpp_schedule_event mpp_schedule_work(const struct mpp_schedule *s, int stage, int64_t index);

/* The time of a step in which every stage runs its own list of work in order, each piece as soon as what it needs is
 * there; then its once_ps less update_ps, and when all stages have done that, its update_ps. OUT_EVENTS (may be NULL,
 * OUT_N too) gets the pieces in order of their beginning, in ARENA, and *OUT_N how many. Takes 16 S V B bytes meanwhile. */
int64_t mpp_schedule_simulate(struct mpp_arena *arena, const struct mpp_schedule *s,
                              const struct mpp_stage_time *stage, const struct mpp_schedule_event **out_events,
                              int64_t *out_n);

#endif
