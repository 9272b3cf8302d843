/* seeds.h - plans to begin with: of equal stages whose devices are a data axis and a model axis, as people write them.
 *
 *     struct mpp_seeds *s = mpp_seeds_new(arena, diag, graph, whole, layering, cluster, options);
 *     mpp_seeds_add(s, &schedule, bound_ps);                        // for each schedule worth a thought, the least bound first
 *     mpp_seeds_find(s, upper_ps, stop, context, &seed);            // the best of them below upper_ps
 *
 * The search over stages has many times as many choices, and where memory is short each costs much to try. These few are
 * priced quickly, and what the best of them takes is a bound that saves the search much of its work. Internal to planner/. */
#ifndef MPP_SEEDS_H
#define MPP_SEEDS_H

#include "planner/pipeline.h"
#include "planner/plan.h"
#include "planner/stages.h"

struct mpp_seed {
    struct mpp_stages *stages;    /* that its options' numbers are of, for mpp_stages_decide */
    struct mpp_schedule schedule;
    struct mpp_pipeline_answer answer; /* n_stages 0: none was found */
};

struct mpp_seeds;

/* GRAPH: before "fuse"; WHOLE: the same as one stage; LAYERING: with as many layers as a repeat has iterations, where that
 * can be. Everything lives in ARENA; the arguments must outlive it. */
struct mpp_seeds *mpp_seeds_new(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                                struct mpp_graph *whole, const struct mpp_layering *layering,
                                const struct mpp_cluster *cluster, const struct mpp_plan_options *options);

/* All ways to share the devices out under SCHEDULE; no plan of it takes less than BOUND_PS. */
void mpp_seeds_add(struct mpp_seeds *s, const struct mpp_schedule *schedule, int64_t bound_ps);

/* The best of what was added, below UPPER_PS, into *OUT: of what is likely to be good, for work is limited; of what was
 * priced, once STOP(CONTEXT) is true. */
void mpp_seeds_find(struct mpp_seeds *s, int64_t upper_ps, bool (*stop)(const void *context), const void *context, struct mpp_seed *out);

#endif
