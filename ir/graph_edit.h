/* graph_edit.h - making and rearranging graphs (private to ir/).
 *
 *     struct mpp_graph *g = mpp_graph_new(arena, model, 512);
 *     mpp_graph_order(g, order);                     // order[i]: the op that comes i-th */
#ifndef MPP_GRAPH_EDIT_H
#define MPP_GRAPH_EDIT_H

#include "ir/graph.h"
#include "ir/rule.h"

/* An empty graph; MODEL may be NULL (a parsed graph). */
struct mpp_graph *mpp_graph_new(struct mpp_arena *arena, const struct mpp_model *model, int64_t global_batch);

/* Rearrange the ops: ORDER [n_ops] lists the present ids in their new order. Fixes all ids that name ops. */
void mpp_graph_order(struct mpp_graph *g, const mpp_id *order);

/* Stable sort of the ops by phase. */
void mpp_graph_order_phases(struct mpp_graph *g);

/* Run shape inference for OP (kind, inputs, attributes, name and loc set): its rule, and a dtype per output
 * (OUT_DTYPE holds at least 64). Faults are reported to DIAG. */
enum mpp_status mpp_graph_infer(struct mpp_graph *g, struct mpp_diag *diag, const struct mpp_gop *op,
                                struct mpp_rule **out_rule, enum mpp_dtype *out_dtype) MPP_CHECKED;

/* Is the scalar VALUE of the forward graph a sum of terms that depend on one sample each, so that the gradients of
 * micro-batches add up to that of the batch? (ir/additive.c; errs towards no.) */
bool mpp_graph_is_additive(const struct mpp_graph *g, mpp_id value);

/* Give each input of the forward graph that holds ids or labels, and states no limit, the one that fits its tables and
 * classes; a limit beyond them is reported to DIAG. (ir/limits.c) */
void mpp_graph_limit_inputs(struct mpp_graph *g, struct mpp_diag *diag);

/* The extent at batch B. */
struct mpp_size mpp_size_at(struct mpp_size s, int64_t batch);

/* ---- attributes made by code ---- */
struct mpp_attr mpp_attr_int(const char *name, int64_t value);
struct mpp_attr mpp_attr_bool(const char *name, bool value);
struct mpp_attr mpp_attr_float(const char *name, double value);
struct mpp_attr mpp_attr_string(const char *name, const char *value);
struct mpp_attr mpp_attr_ints(const char *name, int n, const int64_t *values);          /* values are kept, not copied */
struct mpp_attr mpp_attr_dims(const char *name, int n, const struct mpp_size *values);  /* the same */
/* Copies of N attributes (and of their arrays) in ARENA. */
struct mpp_attrs mpp_attrs_make(struct mpp_arena *arena, int n, const struct mpp_attr *attrs);
#define MPP_ATTRS(arena, ...)                                                             \
    mpp_attrs_make((arena), (int)(sizeof((struct mpp_attr[]){__VA_ARGS__}) / sizeof(struct mpp_attr)), \
                   (struct mpp_attr[]){__VA_ARGS__})

#endif
