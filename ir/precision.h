/* precision.h - the pass "precision": a step in bf16 or fp16 with f32 where accuracy asks for it.
 *
 *     mpp_pass_precision(&ctx, graph);   // after "optimizer", before "fuse"; nothing to do where compute is f32
 *
 * As apex's O2 and Megatron train (Micikevicius et al., "Mixed precision training", ICLR 2018):
 *   - products, attention and what flows between them are in 16 bits; kernels compute in f32 and round what they store;
 *   - exponentials, roots, sums over rows and over micro-batches, statistics of norms and losses are in f32;
 *   - a parameter that is read in 16 bits is rounded anew in each update from an f32 master, which is optimiser state;
 *     a parameter that only norms read stays in f32 itself;
 *   - gradients of parameters are made in f32, and summed over micro-batches and ranks in f32;
 *   - fp16 only: the loss's gradient is multiplied by a scale, which the update divides out. A step whose gradients are not
 *     all finite changes no parameter and halves the scale; `loss_scale_every` good steps in a row double it. */
#ifndef MPP_PRECISION_H
#define MPP_PRECISION_H

#include "ir/pass.h"

/* What the step computes in, by its name in model files and on the command line ("fp16" or "f16"); false: no such. */
bool mpp_precision_read(const char *word, enum mpp_dtype *out);

enum mpp_status mpp_pass_precision(struct mpp_pass_ctx *ctx, struct mpp_graph *g) MPP_CHECKED;

#endif
