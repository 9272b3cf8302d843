/* pass.h - the passes from a forward graph to a training step, in order.
 *
 *     struct mpp_pass_ctx ctx = { .arena = arena, .diag = diag, .dump_after = "autodiff", .dump_to = stdout };
 *     MPP_TRY(mpp_passes_run(&ctx, graph));
 *
 *     build      (mpp_graph_build) forward graph
 *     autodiff   backward ops, Accumulate per parameter, loss_total
 *     optimizer  SquareSum, Sum, ClipScale, AdamW or SGD, optimiser state, Output of loss and norm
 *     precision  casts, f32 masters, loss scaling (precision.h), where the step is not all in f32
 *     fuse       groups
 * The verifier runs after each. */
#ifndef MPP_PASS_H
#define MPP_PASS_H

#include <stdbool.h>
#include <stdio.h>

#include "ir/graph.h"

struct mpp_pass_ctx {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const char *dump_after;       /* pass to print after; NULL: none. An unknown name is reported with a hint */
    FILE *dump_to;
    bool before_fuse;             /* leave "fuse" to what cuts the step into stages (span.h) */
    bool unfused;                 /* the kernels of systems without fusion: attention in parts, one group per op */
};

enum mpp_status mpp_passes_run(struct mpp_pass_ctx *ctx, struct mpp_graph *g) MPP_CHECKED;

/* Part of "build" where CTX->unfused: replaces every Attention by its products, mask, softmax and dropout, and marks G. */
enum mpp_status mpp_pass_unfuse(struct mpp_pass_ctx *ctx, struct mpp_graph *g) MPP_CHECKED;
enum mpp_status mpp_pass_autodiff(struct mpp_pass_ctx *ctx, struct mpp_graph *g) MPP_CHECKED;
enum mpp_status mpp_pass_optimizer(struct mpp_pass_ctx *ctx, struct mpp_graph *g) MPP_CHECKED;
enum mpp_status mpp_pass_fuse(struct mpp_pass_ctx *ctx, struct mpp_graph *g) MPP_CHECKED;

#endif
