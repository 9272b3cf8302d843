/* source.c - from a model file and options to a graph and a cluster. */
#include "inspect/source.h"

#include "ir/pass.h"

enum mpp_status mpp_source_read(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_source *s, struct mpp_graph **out_graph,
                                struct mpp_cluster **out_cluster)
{
    struct mpp_model *model;
    MPP_TRY(mpp_model_read(arena, diag, s->model, &s->model_options, &model));
    MPP_TRY(mpp_graph_build(arena, diag, model, out_graph));
    struct mpp_pass_ctx ctx = {.arena = arena, .diag = diag, .unfused = s->unfused, .before_fuse = true};
    MPP_TRY(mpp_passes_run(&ctx, *out_graph));
    return mpp_cluster_load(arena, diag, s->cluster ? s->cluster : "host", s->gpus ? s->gpus : s->cluster ? 0 : 1, out_cluster);
}
