/* rule_text.h - the written form of an index rule, as rows of ir/ops.def hold it (private to ir/).
 *
 *     struct mpp_rule_text t;
 *     if (!mpp_rule_text_parse("i32 *i, v+ h -> *i h", &t)) ...   // a malformed rule
 *
 * Beyond rule.h's notation: an operand that begins with `i32` holds integers; an operand in [] may be left
 * out, and an output in [] exists only when every input in [] is given. `f32` begins an operand that is f32
 * whatever the op computes in; all others have one floating-point type. */
#ifndef MPP_RULE_TEXT_H
#define MPP_RULE_TEXT_H

#include "ir/rule.h"

enum { MPP_TEXT_MAX_OPERANDS = 12 };

struct mpp_text_dim {
    bool star;                    /* any number of dimensions */
    int n;                        /* letters, outermost first; 0: a dimension of size 1 */
    int8_t letter[3];             /* index into mpp_rule_text.letter */
};

struct mpp_text_operand {
    bool i32, f32, optional;
    int n_dims;
    struct mpp_text_dim dim[MPP_GRAPH_MAX_DIMS];
};

struct mpp_rule_text {
    int n_letters;
    char letter[MPP_MAX_FACTORS];
    enum mpp_factor_kind kind[MPP_MAX_FACTORS];
    int n_in, n_out;
    struct mpp_text_operand operand[MPP_TEXT_MAX_OPERANDS];
};

bool mpp_rule_text_parse(const char *text, struct mpp_rule_text *out);

#endif
