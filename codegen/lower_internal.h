/* lower_internal.h - what lower.c hands to roll.c and memory.c: the flat program of a stage. */
#ifndef MPP_LOWER_INTERNAL_H
#define MPP_LOWER_INTERNAL_H

#include "codegen/program.h"

/* An instruction with its place: bufrefs name flat buffers (layer -1). */
struct mpp_flat {
    struct mpp_instr instr;
    enum mpp_phase phase;
    int repeat, index;            /* layer; -1: outside */
    int moved;                    /* runs right after flat moved - 1; 0: where it stands */
};

struct mpp_flat_program {
    struct mpp_arena *arena;
    const struct mpp_graph *g;
    const struct mpp_stage *stage;
    int64_t micro_batches;
    size_t cap_buffers, cap_flats;
    int n_buffers, n_flats;
    struct mpp_buffer *buffers;   /* every layer's buffers stand here one by one */
    int *repeat, *index;          /* [n_buffers] the layer a buffer belongs to; -1 */
    size_t cap_layers;            /* of repeat and index */
    struct mpp_flat *flats;       /* execution order */
    int loss, grad_norm;
    int *resting;                 /* [n_tensors] flat buffer of PARAM, STATE, INPUT; -1 */
    int *gradient;                /* [n_tensors] PARAM: flat buffer of its final gradient; -1 */
};

/* lower.c: the flat program of PLAN's stage STAGE, in ARENA. OVERLAP: sums whose result takes memory of its own begin in the
 * backward pass, too. */
void mpp_lower_flat(struct mpp_arena *arena, const struct mpp_graph *graph, const struct mpp_plan *plan, int stage,
                    bool overlap, struct mpp_flat_program *out);

/* roll.c: find the layers that are alike and write PROG's buffers, classes, bodies and sections. */
void mpp_roll(const struct mpp_flat_program *flat, struct mpp_lprog *prog);

/* memory.c: give every buffer of PROG its place in the arena. */
void mpp_memory_plan(const struct mpp_graph *g, const struct mpp_stage *stage, int64_t micro_batches,
                     struct mpp_lprog *prog);

/* Follow aliases to the buffer that owns the memory. In memory.c. */
int mpp_buffer_root(const struct mpp_buffer *buffers, int b);

#endif
