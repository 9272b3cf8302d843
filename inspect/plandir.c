/* plandir.c - graph.ir and plan.json of a directory, read and lowered. */
#include "inspect/plandir.h"

enum mpp_status mpp_plandir_read(struct mpp_arena *arena, struct mpp_diag *diag, const char *dir, const char *cluster, bool keep,
                                 struct mpp_plandir *out)
{
    const char *name;
    int64_t n;
    *out = (struct mpp_plandir){.dir = dir};
    MPP_TRY(mpp_report_graph_read(arena, diag, mpp_arena_printf(arena, "%s/graph.ir", dir), &out->graph, &name, &n));
    MPP_TRY(mpp_cluster_load(arena, diag, cluster ? cluster : name, n, &out->cluster));
    return mpp_fit_plan(arena, diag, out->graph, out->cluster, &(struct mpp_plan_options){0},
                        mpp_arena_printf(arena, "%s/plan.json", dir), keep, &out->fitted);
}

const struct mpp_lprog *mpp_plandir_program(const struct mpp_plandir *d)
{
    return d->fitted.plan->n_stages == 1 ? d->fitted.progs[0] : NULL;
}
