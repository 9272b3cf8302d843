/* layering_join.c - layers joined to larger ones. */
#include <assert.h>

#include "ir/span_internal.h"

struct mpp_layering *mpp_layering_join(struct mpp_arena *arena, const struct mpp_graph *graph,
                                       const struct mpp_layering *layering, int n, const int *first)
{
    struct mpp_arena *scratch = mpp_arena_scratch(arena);
    struct mpp_layering *out = mpp_arena_array(arena, 1, struct mpp_layering);
    struct mpp_layering_index *index = mpp_arena_array(arena, 1, struct mpp_layering_index);
    int *to = mpp_arena_array(scratch, layering->n_layers, int);
    assert(n >= 1 && n <= layering->n_layers && first[0] == 0);
    *out = (struct mpp_layering){
        .n_layers = n, .layer_of = mpp_arena_array(arena, graph->n_ops, int), .name = mpp_arena_array(arena, n, const char *),
        .cls = mpp_arena_array(arena, n, int), .flops = mpp_arena_array(arena, n, double), .index = index};
    for (int k = 0; k < n; k++) {
        int end = k + 1 < n ? first[k + 1] : layering->n_layers;
        assert(first[k] < end);
        out->name[k] = end - first[k] == 1 ? layering->name[first[k]]
                       : mpp_arena_printf(arena, "%s..%s", layering->name[first[k]], layering->name[end - 1]);
        for (int l = first[k]; l < end; l++) {
            to[l] = k;
            out->flops[k] += layering->flops[l];
        }
    }
    for (mpp_id o = 0; o < graph->n_ops; o++)
        out->layer_of[o] = layering->layer_of[o] < 0 ? -1 : to[layering->layer_of[o]];
    index->unit_of = layering->index->unit_of;
    mpp_layering_index(arena, scratch, graph, out, index);
    mpp_layering_classify(arena, scratch, graph, out);
    mpp_arena_free(scratch);
    return out;
}
