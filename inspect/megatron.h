/* megatron.h - what of a model and a plan Megatron-LM's arguments speak of.
 *
 *     struct mpp_megatron_model m;
 *     mpp_megatron_read_model(arena, graph, &m);
 *     if (m.program) ... m.layers, m.hidden ...
 *
 * Found by the graph's structure, not by names. Internal to inspect/. */
#ifndef MPP_MEGATRON_H
#define MPP_MEGATRON_H

#include "planner/plan.h"

struct mpp_megatron_model {
    const char *program;          /* that builds such models: "pretrain_gpt.py"; NULL: none does, and WHY */
    const char *why;
    int layers;                   /* of attention and a feed-forward layer; 0: it is no transformer */
    int *layer_repeat, *layer_index; /* [layers] which iterations of which <repeat> */
    int64_t hidden, ffn, heads, seq, vocab, positions;
    double attention_dropout, hidden_dropout;
    bool tied;                    /* the head is the table of tokens */
};

void mpp_megatron_read_model(struct mpp_arena *arena, const struct mpp_graph *g, struct mpp_megatron_model *out);

/* How many layers each part of the pipeline has, to OUT_COUNT [CHUNKS * stages], chunk by chunk. NULL, or why Megatron cannot have
 * them so: a cut inside a layer, an embedding that is not in the first part. */
const char *mpp_megatron_parts(struct mpp_arena *arena, const struct mpp_plan *plan, int chunks, const struct mpp_megatron_model *m,
                               int *out_count);

#endif
