/* shape.h - what shape functions share: making factors, filling operands, conflicts (private to ir/).
 *
 *     struct mpp_rule *r = mpp_rule_begin(in, n_out, out);
 *     int f = mpp_rule_add(in, r, dim_size, MPP_FACTOR_FREE);       // -1: too many, reported
 *     mpp_rule_put(&r->operand[0], f);                              // the operand's next dimension
 *
 * Dimensions of size 1 carry no factor in broadcasting and layout rules (mpp_size_is_one). */
#ifndef MPP_SHAPE_H
#define MPP_SHAPE_H

#include "ir/op.h"
#include "ir/op_table.h"

/* Clear *RULE and make its operands: inputs of IN's op (left-out ones with n_dims -1), N_OUT outputs. */
void mpp_rule_begin(const struct mpp_shape_in *in, int n_out, struct mpp_rule *rule);

/* A new factor with a free letter; -1 after a diagnostic when the rule is full. */
int mpp_rule_add(const struct mpp_shape_in *in, struct mpp_rule *rule, struct mpp_size size, enum mpp_factor_kind kind);

/* Append a dimension of one factor (-1: none, a dimension of size 1). */
void mpp_rule_put(struct mpp_rule_operand *operand, int factor);

/* The extent of dimension D of operand O, from its factors. */
struct mpp_size mpp_rule_size(struct mpp_arena *arena, const struct mpp_rule *rule, int operand, int dim);

bool mpp_size_is_one(struct mpp_size s);
bool mpp_size_equal(struct mpp_size a, struct mpp_size b);
/* Of N extents; INT64_MAX where it doesn't fit. */
struct mpp_size mpp_size_product(struct mpp_arena *arena, const struct mpp_size *dims, int n);
bool mpp_size_has_word(struct mpp_size s); /* has a name that isn't just a number */

/* The tensor of input K. */
const struct mpp_gtensor *mpp_shape_input(const struct mpp_shape_in *in, int k);

/* Does dimension D of input K have FACTOR's size? If so its better name is kept; if not the conflict is reported. */
bool mpp_shape_agrees(const struct mpp_shape_in *in, struct mpp_rule *rule, int factor, int k, int d);

/* Report a fault of the op: `file:line: error: Type "name": what`, then its call path. */
void mpp_shape_error(const struct mpp_shape_in *in, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "[batch 8, seq 1024, hidden 1600]" */
const char *mpp_dims_text(struct mpp_arena *arena, const struct mpp_gtensor *t);

/* All inputs present, of one dtype, which every output gets. FLOATS: that must be a floating-point type. */
enum mpp_status mpp_shape_same_dtype(const struct mpp_shape_in *in, bool floats, int n_out, enum mpp_dtype *out_dtype);

/* All inputs present and floating-point. *OUT: the widest type of those that have dimensions (of all, where none has); the
 * narrowest where the row says so. */
enum mpp_status mpp_shape_mixed(const struct mpp_shape_in *in, enum mpp_dtype *out);

/* Set rule->linear: the row is, and every input is given and floating-point. */
void mpp_shape_set_linear(const struct mpp_shape_in *in, struct mpp_rule *rule);

/* AXIS counted from the end where negative; -1 after a diagnostic when it is not below N. */
int mpp_shape_axis(const struct mpp_shape_in *in, int64_t axis, int n);

#endif
