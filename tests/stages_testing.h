/* stages_testing.h - plans of several stages made by hand, for tests of what follows from a plan. */
#ifndef MPP_STAGES_TESTING_H
#define MPP_STAGES_TESTING_H

#include <stdio.h>

#include "ir/span.h"
#include "planner/plan.h"

/* Every group of S's graph splits its batch over the data axis where it can, nothing else; all rests whole. */
__attribute__((unused)) static void split_batch(struct mpp_arena *arena, struct mpp_stage *s)
{
    const struct mpp_graph *g = s->graph;
    s->split = mpp_arena_array(arena, g->n_groups, struct mpp_split);
    s->resting = mpp_arena_array(arena, g->n_tensors, struct mpp_sharding);
    s->kept = mpp_arena_array(arena, g->n_tensors, bool);
    for (mpp_id t = 0; t < g->n_tensors; t++)
        s->resting[t] = mpp_sharding_whole();
    for (int i = 0; i < g->n_groups; i++) {
        struct mpp_split whole = {{MPP_WHOLE, MPP_WHOLE, MPP_WHOLE}};
        s->split[i] = whole;
        for (int f = 0; f < g->groups[i].rule->n_factors; f++) {
            struct mpp_split split = whole;
            split.axis[0] = (int8_t)f;
            if (s->n_devices > 1 && g->groups[i].rule->factor[f].size.per_batch > 0 && mpp_split_legal(g->groups[i].rule, &s->mesh, split))
                s->split[i] = split;
        }
    }
}

/* G (before "fuse") in N stages of equally many layers and devices of CLUSTER; NULL with a message on failure. */
__attribute__((unused)) static struct mpp_plan *plan_stages(struct mpp_arena *arena, struct mpp_diag *diag, struct mpp_graph *g,
                                                            const struct mpp_cluster *cluster, int n,
                                                            enum mpp_recompute recompute, int64_t micro_batches)
{
    struct mpp_layering *l;
    struct mpp_plan *p = mpp_arena_array(arena, 1, struct mpp_plan);
    mpp_graph_set_batch(g, g->global_batch / micro_batches);
    if (mpp_layering_make(arena, diag, g, 0, &l) != MPP_OK || l->n_layers < n)
        return NULL;
    *p = (struct mpp_plan){
        .version = MPP_PLAN_VERSION, .batch = g->global_batch, .micro_batches = micro_batches, .n_stages = n, .layering = l,
        .stages = mpp_arena_array(arena, n, struct mpp_stage), .schedule = n == 1 ? "accumulate" : "1F1B", .pins = "",
        .pipeline = {MPP_SCHEDULE_1F1B, n, 1, micro_batches}, .solver = {.glpk_status = "not needed"}};
    int each = cluster->n_devices / n;
    for (int i = 0; i < n; i++) {
        struct mpp_stage *s = &p->stages[i];
        *s = (struct mpp_stage){
            .first_device = i * each, .n_devices = each, .first_layer = i * l->n_layers / n,
            .last_layer = (i + 1) * l->n_layers / n - 1, .recompute = recompute, .solver = {.glpk_status = "not needed"},
            .mesh = {.n_axes = 1, .size = {each, 1, 1}, .name = {"data"}}};
        if (mpp_span_extract(arena, diag, g, l, s->first_layer, s->last_layer, recompute, &s->graph) != MPP_OK)
            return NULL;
        split_batch(arena, s);
    }
    return mpp_plan_derive(arena, diag, g, cluster, p) == MPP_OK ? p : NULL;
}

#endif
