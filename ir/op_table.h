/* op_table.h - the functions that rows of ir/ops.def name (private to ir/).
 *
 *     mpp_shape_<shape>() in shape.c and shape_layout.c, mpp_grad_<grad>() in grad*.c, mpp_ref_<ref>() in ref*.c */
#ifndef MPP_OP_TABLE_H
#define MPP_OP_TABLE_H

#include "ir/op.h"

#define MPP_OP(ID, name, cls, attrs, rule, shape, linear, flops, expr, grad, ref, emit, precision) \
    mpp_shape_fn mpp_shape_##shape;                                                      \
    mpp_grad_fn mpp_grad_##grad;                                                         \
    mpp_ref_fn mpp_ref_##ref;
#include "ir/ops.def"
#undef MPP_OP

#endif
