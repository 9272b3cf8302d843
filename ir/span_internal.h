/* span_internal.h - what span.c, layering.c and recompute.c share (private to them).
 *
 * A span is first a list of what will be its ops, in terms of the whole graph's ids; then tensors and ops are copied. */
#ifndef MPP_SPAN_INTERNAL_H
#define MPP_SPAN_INTERNAL_H

#include "ir/span.h"

/* What extraction asks of the layering: made once, so that a span costs what it holds. */
struct mpp_layering_index {
    int *unit_of;                 /* [n_ops] of forward ops: what runs again at once under MPP_RECOMPUTE_FULL; -1: never */
    bool *everywhere;             /* [n_ops] of the prologue, or made of inputs alone: run by every span that reads it */
    int *first_forward, *forward; /* of layer l: forward[first_forward[l]] .. forward[first_forward[l + 1] - 1] */
    int *first_backward, *backward;
    int *reader_min, *reader_max; /* [n_tensors] layers of the forward and backward ops that read it; max -1: none do */
    int *first_update, *update;   /* of parameter p (by tensor id): the ops of the update that are its own */
    int n_global, *global;        /* other ops of the update: of several parameters, or of none */
    mpp_id *owner;                /* [n_ops] of ops of the update: their parameter; -1: global */
};

/* Fill INDEX (unit_of is there) and LAYERING's tied parameters; give every layer its class. */
void mpp_layering_index(struct mpp_arena *arena, struct mpp_arena *scratch, const struct mpp_graph *g,
                        struct mpp_layering *layering, struct mpp_layering_index *index);
void mpp_layering_classify(struct mpp_arena *arena, struct mpp_arena *scratch, const struct mpp_graph *g,
                           struct mpp_layering *layering);

enum mpp_span_what { MPP_SPAN_OP, MPP_SPAN_AGAIN, MPP_SPAN_RECV, MPP_SPAN_SEND };

struct mpp_span_item {            /* an op of the span */
    enum mpp_span_what what;
    mpp_id id;                    /* op of the graph; of Recv and Send the tensor */
    enum mpp_phase phase;
    int chunk;                    /* 0 unless there are several */
};

struct mpp_span_list {
    int n;
    size_t cap;
    struct mpp_span_item *item;
    int chunk;                    /* of what is appended */
};

/* Which forward ops of FORWARD [n_forward] run again for BACKWARD [n_backward], both in order, under RECOMPUTE. Sets AGAIN
 * [n_tensors] of the tensors that ops of the backward phase read in their second version, and appends the backward phase
 * with the repeated ops before the first that reads of them. */
void mpp_span_recompute(struct mpp_arena *scratch, const struct mpp_graph *g, const struct mpp_layering *layering,
                        enum mpp_recompute recompute, int n_forward, const mpp_id *forward, int n_backward,
                        const mpp_id *backward, bool *again, struct mpp_span_list *list);

void mpp_span_append(struct mpp_arena *scratch, struct mpp_span_list *list, enum mpp_span_what what, mpp_id id,
                     enum mpp_phase phase);

#endif
