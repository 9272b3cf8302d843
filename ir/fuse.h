/* fuse.h - may these ops run as one loop nest, and which (private to the pass "fuse").
 *
 *     struct mpp_group group = {.n_ops = n, .ops = ops};          // ascending
 *     if (mpp_fuse_group(g, arena, uses, &group)) ...              // in, out and rule are filled
 *
 * Ops fit together when every tensor passed between them is indexed the same way by both sides and all ops walk
 * the same factors. Results that lack a factor (reductions, split entries) leave the group: the loop that makes
 * them has to end before they are whole. */
#ifndef MPP_FUSE_H
#define MPP_FUSE_H

#include "ir/graph.h"
#include "ir/rule.h"

enum { MPP_FUSE_MAX_OPS = 64, MPP_FUSE_MAX_IN = 16, MPP_FUSE_MAX_OUT = 8 };

/* Is OP one that a fused loop can hold? */
bool mpp_fuse_can(const struct mpp_gop *op);

/* Fill in, out, phase and rule of GROUP from its ops; false when they don't fit (or pass the limits above). USES [tensor]
 * counts every reading operand in the graph. Results are in ARENA. */
bool mpp_fuse_group(const struct mpp_graph *g, struct mpp_arena *arena, const int *uses, struct mpp_group *group);

/* The same for any group of the graph: one that no fused loop can hold (one op) has the op's own operands and rule. */
void mpp_fuse_fill(const struct mpp_graph *g, struct mpp_arena *arena, const int *uses, struct mpp_group *group);

/* How many operands read each tensor, [n_tensors] in ARENA. */
int *mpp_fuse_uses(const struct mpp_graph *g, struct mpp_arena *arena);

#endif
