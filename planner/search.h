/* search.h - one run over meshes and micro-batch counts. Internal to planner/: search.c and suggest.c; what
 * mpp_suggest says is also said of plans that do not fit once they are laid out (codegen/fit.c).
 *
 *     struct mpp_search_result r;
 *     enum mpp_status st = mpp_search_run(arena, graph, cluster, &options, &r);
 */
#ifndef MPP_SEARCH_H
#define MPP_SEARCH_H

#include "planner/stage.h"

enum { MPP_SEARCH_LARGEST = 3 };
struct mpp_search_large {
    const char *name;
    int64_t bytes;
};

struct mpp_search_result {
    bool found;
    struct mpp_candidate candidate;
    int64_t micro_batches;
    struct mpp_stage decided;     /* split, resting, kept */
    struct mpp_solver_info info;  /* of the chosen mesh */
    int64_t objective, bound;     /* bound: over all that was searched */
    int tried;                    /* problems solved */
    bool stopped;                 /* by an interrupt */
    /* When nothing fits: of the mesh and micro-batch count that need least. */
    int64_t least_bytes;
    struct mpp_memory at_least;   /* by kind, of a plan that needs little */
    const char *where;            /* stage, devices, micro-batches; NULL: one stage */
    int n_largest;
    struct mpp_search_large largest[MPP_SEARCH_LARGEST]; /* what fills most of it */
    const char *reason;           /* why a candidate was no candidate; NULL: none was ruled out */
};

/* MPP_OK (found), MPP_INFEASIBLE (nothing fits in capacity), MPP_INVALID (no candidate: reason), MPP_LIMIT. */
enum mpp_status mpp_search_run(struct mpp_arena *arena, struct mpp_graph *graph, const struct mpp_cluster *cluster,
                               const struct mpp_plan_options *options, struct mpp_search_result *out) MPP_CHECKED;

/* Say what overflows, and ways out that were verified by planning them (suggest.c). */
void mpp_suggest(struct mpp_diag *diag, struct mpp_graph *graph, const struct mpp_cluster *cluster,
                 const struct mpp_plan_options *options, const struct mpp_search_result *failed);

/* Do PINS and the model file leave K micro-batches (refuse.c)? */
bool mpp_search_count_allowed(const struct mpp_graph *graph, const struct mpp_pins *pins, int64_t k);
/* Say why no round does what PINS ask. MERGED: layers as interleaved stages have them; STAGES: numbers that are left, ends with 0. */
void mpp_refuse_rounds(struct mpp_diag *diag, const struct mpp_graph *graph, const struct mpp_layering *merged, int n_devices,
                       const struct mpp_pins *pins, const int *stages);

#endif
