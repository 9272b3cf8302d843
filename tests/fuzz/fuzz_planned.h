/* fuzz_planned.h - a model and a cluster, read once, for targets that plan: the fused step of models/mlp.xml in its preset
 * "tiny" on four devices. The working directory is the root of the repository. */
#ifndef FUZZ_PLANNED_H
#define FUZZ_PLANNED_H

#include "costmodel/costmodel.h"
#include "fuzz_promises.h"
#include "ir/graph.h"
#include "ir/model.h"
#include "ir/pass.h"
#include "planner/plan.h"

static struct mpp_graph *fuzz_graph;
static struct mpp_cluster *fuzz_cluster;

static inline void fuzz_set_up(const char *file, int n_devices)
{
    static struct mpp_arena *arena;
    if (arena)
        return;
    arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(stderr);
    struct mpp_model_options options = {.preset = "tiny", .n_defines = 1, .defines = (const char *[]){"layers=3"}};
    struct mpp_model *model;
    struct mpp_pass_ctx ctx = {.arena = arena, .diag = diag};
    bool ok = mpp_model_read(arena, diag, file, &options, &model) == MPP_OK &&
              mpp_graph_build(arena, diag, model, &fuzz_graph) == MPP_OK && mpp_passes_run(&ctx, fuzz_graph) == MPP_OK &&
              mpp_cluster_load(arena, diag, "host", n_devices, &fuzz_cluster) == MPP_OK;
    fuzz_must(ok, "the model and the cluster are good");
    mpp_diag_free(diag);
}

#endif
