/* op_examples.h - small instances of every row of ir/ops.def, for tests that run over the whole table.
 *
 *     for (int i = 0; (ex = mpp_example(arena, kind, i)); i++) ...
 *
 * Rows with a text rule and broadcasting rows give their examples themselves: sizes are primes, one per letter;
 * optional operands given and left out; attributes as by default and otherwise. For the rest op_examples.c lists
 * some. */
#ifndef MPP_OP_EXAMPLES_H
#define MPP_OP_EXAMPLES_H

#include "ir/graph_edit.h"
#include "ir/op.h"

#define EXAMPLE_MAX_IN 8

struct example {
    const char *text;             /* for messages */
    int n_in;
    struct {
        bool given;
        enum mpp_dtype dtype;
        int n_dims;
        int64_t dims[MPP_GRAPH_MAX_DIMS];
        int64_t limit;            /* integers are below it */
    } in[EXAMPLE_MAX_IN];
    struct mpp_attrs attrs;
};

/* Example number I of KIND in ARENA; NULL: there are no more. */
struct example *mpp_example(struct mpp_arena *arena, int kind, int i);

/* A new graph in ARENA with EX's inputs (tensors 0 .. n_in - 1, role ROLE for f32 ones) and the op; NULL after a
 * diagnostic. A left-out input is a tensor too, but the op does not take it. */
struct mpp_graph *mpp_example_graph(struct mpp_arena *arena, struct mpp_diag *diag, int kind, const struct example *ex,
                                    enum mpp_role role);

/* Uniform numbers, reproducible. */
double example_random(uint64_t *state);

/* Fill X with N values for input K of EX: signed and away from 0, POSITIVE, or integers. */
void mpp_example_fill(const struct example *ex, int k, bool positive, uint64_t *state, double *x, int64_t n);

#endif
