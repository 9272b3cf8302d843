/* layers.h - what may stand in a model file's <graph>, and how it becomes ops of the table.
 *
 *     int n;
 *     const struct mpp_layer *layers = mpp_layers(&n);          // for schemas, hints and docs
 *
 * A layer owns its weights ("<name>.weight") and may expand into several ops; the rest are ops of
 * ir/ops.def under the same name. */
#ifndef MPP_LAYERS_H
#define MPP_LAYERS_H

#include "ir/graph.h"

struct mpp_builder;

/* Append the ops of the builder's present item. IN [n_in] are its inputs (-1: left out); fill OUT [*out_n]. */
typedef enum mpp_status mpp_layer_fn(struct mpp_builder *b, const struct mpp_attrs *attrs, int n_in, const mpp_id *in,
                                     int *out_n, mpp_id *out);

struct mpp_layer {
    const char *type;             /* "Linear" */
    const char *attrs;            /* in the notation of mpp_attrs_read */
    int min_in, max_in;
    mpp_layer_fn *build;
};

/* All of them, by name. */
const struct mpp_layer *mpp_layers(int *out_n);

#endif
