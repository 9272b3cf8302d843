/* fit.h - a plan whose memory, once it is laid out, fits the devices, and its local programs.
 *
 *     struct mpp_fitted f;
 *     MPP_TRY(mpp_fit_plan(arena, diag, graph, cluster, &options, NULL, true, &f));
 *     ... f.plan, f.transfers, f.progs[stage] ...
 */
#ifndef MPP_FIT_H
#define MPP_FIT_H

#include "codegen/program.h"

struct mpp_fitted {
    struct mpp_plan *plan;        /* derived, each stage's memory filled in */
    struct mpp_transfers *transfers;
    struct mpp_lprog **progs;     /* [stages]: NULL where there are several and none was asked for */
    double plan_s, lower_s;       /* what that took, on the clock */
};

/* Plan GRAPH (before "fuse") on CLUSTER as OPTIONS say (capacity and room are set here), or read the decisions of the file
 * FROM_PLAN (NULL: search), and lower all stages; KEEP: also the programs of several stages. A plan whose arena exceeds the
 * device is planned again with less room; if none of these fits, the first plan that a quick search finds may. *OUT lives in ARENA. MPP_INFEASIBLE
 * with a diagnostic where nothing fits, without one if OPTIONS are quiet; else as
 * mpp_plan_pipeline and mpp_plan_read_json. */
enum mpp_status mpp_fit_plan(struct mpp_arena *arena, struct mpp_diag *diag, struct mpp_graph *graph,
                             const struct mpp_cluster *cluster, const struct mpp_plan_options *options, const char *from_plan,
                             bool keep, struct mpp_fitted *out) MPP_CHECKED;

#endif
