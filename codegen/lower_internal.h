/* lower_internal.h - what lower.c hands to roll.c and memory.c: the flat program of a stage. */
#ifndef MPP_LOWER_INTERNAL_H
#define MPP_LOWER_INTERNAL_H

#include "codegen/program.h"

/* An instruction with its place: bufrefs name flat buffers (layer -1). */
struct mpp_flat {
    struct mpp_instr instr;
    enum mpp_phase phase;
    int repeat, index;            /* layer; -1: outside */
    int chunk;
    int moved;                    /* runs right after flat moved - 1; 0: where it stands */
};

struct mpp_flat_program {
    struct mpp_arena *arena;
    const struct mpp_graph *g;
    const struct mpp_stage *stage;
    int64_t micro_batches;
    int n_chunks;
    int64_t *slots;               /* [n_chunks] */
    const struct mpp_transfers *transfers;
    int *ring;                    /* [transfers->n] flat buffer of the ring of what this stage sends; -1 */
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
                    const struct mpp_transfers *transfers, bool overlap, struct mpp_flat_program *out);

/* ---- while it is made: shared by lower.c, lower_copy.c and lower_transfer.c ---- */

struct mpp_lowering {
    struct mpp_flat_program *p;
    const struct mpp_graph *g;
    const struct mpp_stage *stage;
    const struct mpp_transfers *transfers;
    int number;                   /* of the stage */
    int chunk;                    /* of what is appended */
    int n_stages;
    int *home;                    /* [n_tensors] buffer that holds the value as produced; -1: not made yet */
    struct mpp_sharding *made;    /* [n_tensors] its sharding */
    int *producer;                /* [n_tensors] group; -1 */
    int *first_use;               /* [n_tensors + 1] into `use`: the groups that read a tensor, as it is or copied */
    int *use, *use_operand;       /* in execution order */
    int *copy_buffer;             /* [n_copies] final buffer */
    int *copy_of, *next_of;       /* [n_tensors] the first copy of a tensor, [n_copies] the next of the same; -1 */
    int *copy_at, *next_at;       /* [n_groups] the first copy made for a group, [n_copies] the next; -1 */
    const char **repeat_name;     /* [by repeat] */
    int *direct;                  /* [n_tensors] ACCUM buffer that the producer of this value writes to; -1 */
    enum mpp_write_mode *direct_mode;
    int *scalar_sum;              /* [n_tensors] Sum group that adds this scalar up right after it is made; -1 */
    int *sum_buffer;              /* [n_groups] running total of such a group; -1 */
    bool overlap;                 /* sums that take memory beside their operand begin in the backward pass too */
    int *last_touch;              /* [buffers before the update] the last flat of the backward pass that names it; -1 */
};

/* lower.c */
int mpp_lower_buffer(struct mpp_lowering *l, mpp_id tensor, struct mpp_sharding s, enum mpp_buffer_kind kind, int repeat,
                     int index, const char *suffix);
/* Append an instruction whose operands are still -1; what it returns is good until the next is appended. */
struct mpp_flat *mpp_lower_append(struct mpp_lowering *l, enum mpp_instr_kind kind, enum mpp_phase phase, int repeat, int index,
                                  int n_in, int n_out);
const struct mpp_gop *mpp_lower_first_op(const struct mpp_lowering *l, int group);
/* The sharding of operand OPERAND (inputs, then outputs) of GROUP. */
struct mpp_sharding mpp_lower_wanted(const struct mpp_lowering *l, int group, int operand);
/* The buffer in which groups of PHASE read tensor T in sharding S. */
int mpp_lower_find(const struct mpp_lowering *l, mpp_id t, enum mpp_phase phase, struct mpp_sharding s);

/* lower_copy.c: emit the steps of copy C at position POS (a group index) in the layer of that group. TARGET >= 0: the last
 * step writes that buffer. GRADIENT: part of reduce_gradients. Returns the buffer that holds the result. */
int mpp_lower_copy(struct mpp_lowering *l, int c, int pos, int src, int target, bool gradient);
bool mpp_lower_is_gradient(const struct mpp_lowering *l, const struct mpp_copy *c);
/* Gradients are reduced before the rest of the update, so that they can be read on their own. */
void mpp_lower_gradients(struct mpp_lowering *l);

/* lower_transfer.c: a Send or Recv op; false: group I is none. */
bool mpp_lower_transfer(struct mpp_lowering *l, int group);
/* After all gradients are reduced: those of tied parameters are exchanged. */
void mpp_lower_exchange(struct mpp_lowering *l);
/* Is group I the term of the gradient norm of a parameter that another stage counts? Nothing runs then. */
bool mpp_lower_counted_elsewhere(const struct mpp_lowering *l, int group);
/* Right before group I: where it makes the gradient norm, the sum of squares is summed over all stages. */
void mpp_lower_sum_stages(struct mpp_lowering *l, int group);
/* At the end of the update, where the stage has no parameters: it takes part in that sum nevertheless. */
void mpp_lower_no_term(struct mpp_lowering *l);

/* epilogue.c: a contraction whose result only a bias, a residual or GELU follows becomes one instruction with that. */
void mpp_lower_epilogues(struct mpp_flat_program *p);

/* What group EPILOGUE makes of the product of contraction PRODUCT (both groups of G): operands of the group, -1: none. False: something
 * that is no epilogue of a product. */
struct mpp_epilogue {
    int bias, residual;           /* of its `in`: added to the product */
    bool gelu;                    /* in its tanh form, of product and bias */
    int y, pre;                   /* of its `out`: the result, and what GELU is of */
};
bool mpp_epilogue_read(const struct mpp_graph *g, mpp_id product, mpp_id epilogue, struct mpp_epilogue *out);

/* roll.c: find the layers that are alike and write PROG's buffers, classes, bodies and sections. */
void mpp_roll(const struct mpp_flat_program *flat, struct mpp_lprog *prog);

/* prefetch.c: gathers of parameters of the rolled PROG begin before they are needed; AHEAD: in the layer before, too. What is
 * new lives in ARENA. False: there are none. */
bool mpp_prefetch(const struct mpp_graph *g, struct mpp_arena *arena, bool ahead, struct mpp_lprog *prog);

/* memory.c: give every buffer of PROG its place in the arena. */
void mpp_memory_plan(const struct mpp_graph *g, const struct mpp_stage *stage, int64_t micro_batches,
                     struct mpp_lprog *prog);

/* Follow aliases to the buffer that owns the memory. In memory.c. */
int mpp_buffer_root(const struct mpp_buffer *buffers, int b);

#endif
