/* source.h - what is planned, and plans of it.
 *
 *     struct mpp_source s = {.model = "models/gpt.xml", .cluster = "dgx-a100", .gpus = 8, .plan = {.pins = mpp_pins_none()}};
 *     MPP_TRY(mpp_source_read(arena, diag, &s, &graph, &cluster));
 */
#ifndef MPP_INSPECT_SOURCE_H
#define MPP_INSPECT_SOURCE_H

#include "codegen/fit.h"
#include "ir/model.h"

struct mpp_source {
    const char *model;            /* a file */
    struct mpp_model_options model_options;
    const char *cluster;          /* NULL: this host */
    int64_t gpus;                 /* 0: one node, of the host one device */
    bool unfused;
    struct mpp_plan_options plan;
};

/* The training step before its ops are grouped, and the devices; both in ARENA. Faults are reported. */
enum mpp_status mpp_source_read(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_source *s, struct mpp_graph **out_graph,
                                struct mpp_cluster **out_cluster) MPP_CHECKED;

#endif
