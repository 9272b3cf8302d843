/* finalists.h - the best plans of each schedule that was searched, priced once more event by event.
 *
 *     struct mpp_finalists *f = mpp_finalists_new(arena);
 *     mpp_finalists_add(f, &finalist);                             // again and again; sets simulated_ps of its copy
 *     const struct mpp_finalist *best = mpp_finalists_best(f);
 *     plan->n_others = mpp_finalists_others(f, best, arena, &plan->others);
 *
 * The search minimises a formula, which for stages that are not alike is a model of the schedule (schedule.h). What the
 * schedule really takes decides between the best of them. Internal to planner/. */
#ifndef MPP_FINALISTS_H
#define MPP_FINALISTS_H

#include "planner/pipeline.h"
#include "planner/plan.h"
#include "planner/stages.h"

struct mpp_finalist {
    const struct mpp_layering *layering;
    struct mpp_stages *stages;    /* that its options' numbers are of */
    struct mpp_schedule schedule;
    bool equal;                   /* stages of equally many devices */
    struct mpp_pipeline_answer answer; /* n_stages > 0 */
    int64_t simulated_ps;         /* of a step; that of the formula where there would be too many events */
    bool dropped;                 /* it does not fit once its memory is laid out */
};

struct mpp_finalists;
struct mpp_finalists *mpp_finalists_new(struct mpp_arena *arena);
void mpp_finalists_add(struct mpp_finalists *f, const struct mpp_finalist *x);

/* Look at every plan of PROBLEM whose time by the formula is below its upper bound and that may take less, simulated, than
 * the best so far; add those that do. PROBLEM's options that are sure, for one number of stages (its list's first), on any
 * devices: as many as a small model has. LIKE: the rest of what they are. */
void mpp_finalists_look_around(struct mpp_finalists *f, const struct mpp_pipeline_problem *problem, const struct mpp_finalist *like);

/* The least simulated time, of equals the least by the formula, then the first; NULL: there is none. Valid until the next
 * is added. */
const struct mpp_finalist *mpp_finalists_best(const struct mpp_finalists *f);

/* The one whose answer has these stages; NULL: there is none. Valid until the next is added. */
const struct mpp_finalist *mpp_finalists_find(const struct mpp_finalists *f, const struct mpp_pipeline_stage *stage);

/* Its options have become others: it takes TIME_PS by the formula now. */
void mpp_finalists_change(struct mpp_finalists *f, const struct mpp_pipeline_stage *stage, int64_t time_ps);

/* The plan whose answer has these stages is none of the finalists any more. */
void mpp_finalists_drop(struct mpp_finalists *f, const struct mpp_pipeline_stage *stage);
void mpp_finalists_restore(struct mpp_finalists *f); /* all that were dropped */

/* What else was close to BEST, by simulated time, at most 8, each unlike the best and the others, the best by the formula
 * among them: *OUT in ARENA; how many. Their times are those of the formula, as plan->objective_ps. BEST NULL: the best is
 * none of them. */
int mpp_finalists_others(const struct mpp_finalists *f, const struct mpp_finalist *best, struct mpp_arena *arena,
                         struct mpp_runner_up **out);

#endif
