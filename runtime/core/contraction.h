/* contraction.h - how a contraction of two tensors becomes matrix products.
 *
 *     struct mpp_contraction e = mpp_contraction_read("bsh,hd->bsd", a_dims, b_dims, c_dims, valid);
 *     struct mpp_choice x;
 *     if (mpp_contraction_choose(&e, &x))
 *         // c [m, n] = a [m, k] b [k, n] with m, n, k of x, once for every index of the letters that x leaves out
 *
 * Letters of extent 1 are left out, and neighbours merged. Strides are in elements. */
#ifndef MPP_CONTRACTION_H
#define MPP_CONTRACTION_H

#include <stdbool.h>
#include <stdint.h>

#include "mpp_rt.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MPP_OPERAND_A, MPP_OPERAND_B, MPP_RESULT };

/* Of a letter, by the tensors it is in. */
enum {
    MPP_CLASS_K = 1 << MPP_OPERAND_A | 1 << MPP_OPERAND_B,
    MPP_CLASS_M = 1 << MPP_OPERAND_A | 1 << MPP_RESULT,
    MPP_CLASS_N = 1 << MPP_OPERAND_B | 1 << MPP_RESULT,
    MPP_CLASS_BATCH = 7,
};

enum { MPP_MAX_LETTERS = 3 * MPP_MAX_DIMS };

struct mpp_factor {
    char letter;
    unsigned tensors; /* MPP_CLASS_*, once the equation is read */
    int64_t extent;   /* valid */
    int64_t padded;
    int64_t stride[3];
};

struct mpp_contraction {
    int n_factors;
    struct mpp_factor factor[MPP_MAX_LETTERS];
};

struct mpp_matrix {
    bool trans;
    int64_t ld;
};

struct mpp_choice {
    int m, n, k; /* factors, -1: none, extent 1 */
    bool swap;   /* compute the transpose: b plays a's part */
    struct mpp_matrix a, b, c;
    double cost;
};

/* The arguments of mpp_einsum; they must agree (asserted). */
struct mpp_contraction mpp_contraction_read(const char *equation, const int64_t *a_dims, const int64_t *b_dims, const int64_t *c_dims,
                                            const int64_t *valid);

/* False: no unit strides, nothing to sum, or products too small for a call each; the sums are formed without. */
bool mpp_contraction_choose(const struct mpp_contraction *e, struct mpp_choice *out);

/* Of factor I of E; 1 where I is -1. */
int64_t mpp_contraction_extent(const struct mpp_contraction *e, int i);

/* ---- loops over what a product leaves out -------------------------------------------------------------- */

/* An odometer over some factors, with the element offset in each tensor. */
struct mpp_loops {
    int n;
    const struct mpp_factor *factor[MPP_MAX_LETTERS];
    int64_t at[MPP_MAX_LETTERS], offset[3];
};

void mpp_loops_add(struct mpp_loops *loops, const struct mpp_factor *f);
int64_t mpp_loops_count(const struct mpp_loops *loops);
/* To index number I of the loops at their start. */
void mpp_loops_seek(struct mpp_loops *loops, int64_t i);
/* To the next index, the last factor fastest; false, and at the start again, after the last. */
bool mpp_loops_step(struct mpp_loops *loops);

#ifdef __cplusplus
}
#endif

#endif
