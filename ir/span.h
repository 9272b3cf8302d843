/* span.h - the part of a training step that one pipeline stage runs.
 *
 *     struct mpp_layering *l;
 *     MPP_TRY(mpp_layering_make(arena, diag, graph, max_layers, &l));         // graph: before the pass "fuse"
 *     struct mpp_graph *stage;
 *     MPP_TRY(mpp_span_extract(arena, diag, graph, l, 0, 11, MPP_RECOMPUTE_FULL, &stage));
 *
 * A *layer* is a contiguous part of the forward ops, the smallest thing that is moved between stages. Every backward
 * op belongs to the layer of the forward op whose gradient it is, a parameter and its update to every layer that reads
 * it. Layers of one class are alike: their ops, shapes and connections are equal up to names. */
#ifndef MPP_SPAN_H
#define MPP_SPAN_H

#include "ir/graph.h"

enum mpp_recompute {
    MPP_RECOMPUTE_NONE,
    MPP_RECOMPUTE_SELECTIVE,      /* attention runs again in backward: a fused kernel makes its result and its row sums
                                   * anew; unfused, its result is kept, scores and what follows them are not */
    MPP_RECOMPUTE_FULL,           /* an iteration of a repeat keeps what it reads of others, and runs again in backward;
                                   * what is outside repeats (embedding, head) runs once. In a model without repeats:
                                   * the layers that mpp_layering_make(max_layers 0) makes, but the last */
};
#define MPP_RECOMPUTE_COUNT 3
const char *mpp_recompute_name(enum mpp_recompute r); /* "none", "selective", "full" */

struct mpp_layering_index;

struct mpp_layering {
    int n_layers;
    int *layer_of;                /* [graph->n_ops]: of forward and backward ops; -1: prologue and update */
    const char **name;            /* [n_layers] "h.3", "wte..drop", for reports */
    int *cls;                     /* [n_layers] layers of one class are alike; classes count up in order of appearance */
    double *flops;                /* [n_layers] forward, per sample */
    int n_tied;                   /* parameters that several layers read */
    struct mpp_tied {
        mpp_id param;             /* in the graph */
        int n_layers, *layer;     /* ascending */
    } *tied;
    const struct mpp_layering_index *index; /* for mpp_span_extract */
};

/* Cut GRAPH (after the passes up to "optimizer" or precision, before "fuse") into at most MAX_LAYERS layers (0: as
 * many as there are): the iterations of outermost repeats are layers of their own, what lies between them is clustered
 * by dynamic programming (FLOPs balanced, least bytes cut); neighbours join while there are too many. */
enum mpp_status mpp_layering_make(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                                  int max_layers, struct mpp_layering **out) MPP_CHECKED;

/* L with what stands before the first iteration of a repeat joined to it, and what comes after the last to that: so many
 * layers as iterations, which interleaved schedules divide. L itself where nothing stands there. In ARENA. */
const struct mpp_layering *mpp_layering_merge_ends(struct mpp_arena *arena, const struct mpp_graph *graph,
                                                   const struct mpp_layering *layering);

/* LAYERING with neighbours joined: layer k of the N that are left begins with layer FIRST[k]; FIRST ascends from 0. In
 * ARENA; refers to LAYERING. */
struct mpp_layering *mpp_layering_join(struct mpp_arena *arena, const struct mpp_graph *graph,
                                       const struct mpp_layering *layering, int n, const int *first);

/* The training step of layers FIRST..LAST as a graph of its own, grouped by the pass "fuse" and verified, at GRAPH's
 * present batch and with its names. A value of an earlier layer that the span reads is made by a Recv op (forward
 * phase), a gradient that comes from a later layer by a Recv op of the backward phase; what others read goes to a
 * Send op, one per tensor whoever reads it. The prologue, and what is cheaply made of inputs alone (masks), is no
 * transfer: every span that reads it makes it. The span holds the parameters it reads with their state and update; of a
 * gradient norm, the terms of its own parameters. Of a tied parameter's gradient it holds its own terms: the stages that
 * have it (layering->tied) add theirs up before they update it. What the step reports comes from the span with the loss;
 * the others' graphs have loss and loss_total -1. With RECOMPUTE, forward ops that are run again stand a second time in
 * the backward phase (recompute.c), "<op>.again" with results "<tensor>.again" and the same random numbers, right before
 * the first backward op that reads of them. The whole range without recomputation is GRAPH itself after "fuse", op for
 * op. It takes time in proportion to what the span holds, but for clearing some bytes per tensor of GRAPH. *OUT lives in
 * ARENA, is independent of GRAPH's batch from then on, and refers to GRAPH's model and texts. */
enum mpp_status mpp_span_extract(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                                 const struct mpp_layering *layering, int first, int last, enum mpp_recompute recompute,
                                 struct mpp_graph **out) MPP_CHECKED;

/* The same of a stage that runs N parts of the model in turns (an interleaved schedule's chunks): layers FIRST[c]..LAST[c]
 * each, ascending. In the forward phase chunk follows chunk, each what it receives, its ops, what it sends; in the backward
 * phase from the last to the first; ops are marked (op->chunk) and no group has ops of two. What is cheaply made of inputs
 * alone is made by every chunk that reads it ("<tensor>.chunk1"). MPP_INVALID with a message where two chunks read one
 * parameter, or one reads what another makes: then the model cannot be planned so. */
enum mpp_status mpp_span_extract_chunks(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                                        const struct mpp_layering *layering, int n, const int *first, const int *last,
                                        enum mpp_recompute recompute, struct mpp_graph **out) MPP_CHECKED;

/* Would that do for all of STAGES, to which N_PARTS parts of equally many layers go in turns? */
bool mpp_span_can_chunk(const struct mpp_graph *graph, const struct mpp_layering *layering, int n_parts, int stages);

/* The same without layers CUT_FIRST..CUT_LAST, which must lie within FIRST + 1 .. LAST - 1 and be of one class with the
 * layers beside them: those are joined as if they were neighbours. A small graph that has all kinds of places of a long
 * span; what it computes is another model. */
enum mpp_status mpp_span_extract_cut(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                                     const struct mpp_layering *layering, int first, int last, int cut_first,
                                     int cut_last, enum mpp_recompute recompute, struct mpp_graph **out) MPP_CHECKED;

#endif
