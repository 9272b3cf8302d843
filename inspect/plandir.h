/* plandir.h - the plan that lies in a directory.
 *
 *     struct mpp_plandir d;
 *     MPP_TRY(mpp_plandir_read(arena, diag, "plan", NULL, false, &d));
 *     ... d.graph, d.cluster, d.fitted.plan, mpp_plandir_program(&d) ...
 */
#ifndef MPP_PLANDIR_H
#define MPP_PLANDIR_H

#include "codegen/fit.h"

struct mpp_plandir {
    const char *dir;
    struct mpp_graph *graph;      /* the whole training step, before "fuse" */
    struct mpp_cluster *cluster;
    struct mpp_fitted fitted;     /* derived and lowered */
};

/* Read DIR's graph.ir and plan.json and lower them, into ARENA; KEEP: keep the programs of several stages too. CLUSTER: a name or
 * file to load instead of the cluster that graph.ir names, which must be called the same; NULL: that one. Each fault is reported
 * once, with file and line. */
enum mpp_status mpp_plandir_read(struct mpp_arena *arena, struct mpp_diag *diag, const char *dir, const char *cluster, bool keep,
                                 struct mpp_plandir *out) MPP_CHECKED;

/* What reports take as their program: the only stage's; NULL where there are several. */
const struct mpp_lprog *mpp_plandir_program(const struct mpp_plandir *d);

#endif
