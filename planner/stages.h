/* stages.h - what a pipeline stage costs: its integer program over all meshes and ways to recompute, remembered.
 *
 *     struct mpp_stages *s = mpp_stages_new(arena, diag, graph, layering, cluster, options);
 *     mpp_stages_set(s, &schedule, false, INT64_MAX, INT_MAX);                      // micro-batches, schedule: a new round of questions
 *     struct mpp_pipeline_problem p = {..., .options = mpp_stages_options, .context = s};
 *     ... mpp_pipeline_solve(arena, &p, &answer) ...
 *     MPP_TRY(mpp_stages_decide(s, &answer.stage[i], &plan->stages[i]));
 *
 * Spans of layers that are alike have one program, runs of like layers are folded (fold.h). What a span takes at least,
 * about, is the sum of what its layers take in one program of the whole model without a memory limit and without
 * recomputation. Internal to planner/. */
#ifndef MPP_STAGES_H
#define MPP_STAGES_H

#include "planner/pipeline.h"
#include "planner/stage.h"

struct mpp_stages;

/* GRAPH: the training step before "fuse". Everything lives in ARENA; the arguments must outlive it. */
struct mpp_stages *mpp_stages_new(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                                  const struct mpp_layering *layering, const struct mpp_cluster *cluster,
                                  const struct mpp_plan_options *options);

/* From here on answer all that is asked, interrupted or not: what a search has found is finished. */
void mpp_stages_go_on(struct mpp_stages *s);

/* Before any question: meshes a x b and b x a are two, even where all links are alike (blocks nest in the order of axes). */
void mpp_stages_try_both_orders(struct mpp_stages *s);

/* The schedule of the questions that follow, whether all stages have equally many
 * devices, that plans of UPPER_PS and more are of no interest, and how many programs may be solved within memory (then
 * configs that would need more have no options: mpp_stages_gave_up). Forgets programs of another micro-batch. */
void mpp_stages_set(struct mpp_stages *s, const struct mpp_schedule *schedule, bool even, int64_t upper_ps, int budget);
bool mpp_stages_gave_up(const struct mpp_stages *s);
/* Did memory keep a stage from what is cheapest without a limit? */
bool mpp_stages_memory_bound(const struct mpp_stages *s);
/* Given up: no plan with an option that is missing takes less than this. */
int64_t mpp_stages_unproven(const struct mpp_stages *s);

/* No plan of the present schedule takes less, as far as surveys tell, with stages of these numbers of devices. From here on
 * no stage may take more than leaves room for the others below the upper bound. */
int64_t mpp_stages_bound(struct mpp_stages *s, int n_sizes, const int *sizes);

/* As struct mpp_pipeline_problem wants it; CONTEXT is a struct mpp_stages. */
int mpp_stages_options(void *context, const struct mpp_pipeline_key *key, bool exact,
                       const struct mpp_pipeline_option **out, bool *out_exact);

/* As struct mpp_pipeline_problem wants it. */
int mpp_stages_alike(void *context, const struct mpp_pipeline_key *key);

/* The same with every layer as it is, and all that stages can trade of time per micro-batch for work per step: takes a
 * program for every span, range, mesh and way to recompute. Bounds hold. gave_up: some program was too hard. */
int mpp_stages_exact_options(void *context, const struct mpp_pipeline_key *key, bool exact,
                             const struct mpp_pipeline_option **out, bool *out_exact);
int mpp_stages_exact_alike(void *context, const struct mpp_pipeline_key *key);

/* The stage that an option of mpp_stages_options stands for: its graph, mesh, recomputation and every decision, in
 * S's arena. MPP_LIMIT where its program cannot be solved again. */
enum mpp_status mpp_stages_decide(struct mpp_stages *s, const struct mpp_pipeline_stage *stage,
                                  struct mpp_stage *out) MPP_CHECKED;

/* What is known of the option with number ID. */
struct mpp_stages_facts {
    struct mpp_stage_time time;
    struct mpp_mesh mesh;         /* its axes have no names */
    enum mpp_recompute recompute;
};
const struct mpp_stages_facts *mpp_stages_facts(const struct mpp_stages *s, int id);
/* Less room for all stages, from here on. */
void mpp_stages_set_capacity(struct mpp_stages *s, int64_t capacity_bytes);

/* Another option for STAGE whose program takes at most CAPACITY_BYTES, in its place: the best there is; false: none. */
bool mpp_stages_shrink(struct mpp_stages *s, struct mpp_pipeline_stage *stage, int64_t capacity_bytes);

/* Programs solved so far; and of those within memory. */
int64_t mpp_stages_solved(const struct mpp_stages *s, int64_t *out_within);

/* The stage problem that came nearest to fitting, and did not. */
enum { MPP_STAGES_LARGEST = 3 };
struct mpp_stages_large {
    const char *name;
    int64_t bytes;                /* per device, of all layers alike */
};
struct mpp_stages_nearest {
    int64_t bytes;                /* that a device needs at least; 0: nothing was too large */
    struct mpp_pipeline_key stage;
    struct mpp_schedule schedule;
    enum mpp_recompute recompute;
    struct mpp_memory memory;     /* by kind, each value at its least, at the fullest moment */
    int n_largest;
    struct mpp_stages_large largest[MPP_STAGES_LARGEST]; /* of what is alive then */
};
const struct mpp_stages_nearest *mpp_stages_nearest(const struct mpp_stages *s);

#endif
