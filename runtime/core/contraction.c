/* Contractions of two tensors: which letters of an equation become the m, n and k of a matrix product, and loops over the rest.
 *
 * The letters of "bsh,htnd->bstnd" fall into four classes: batch (in a, b and c), m (a, c), n (b, c) and
 * k (a, b). Neighbouring letters of a class merge into one where memory allows. Then one letter each of m,
 * n, k becomes the product, chosen so that every matrix has a unit stride; loops run over the others. */
#include "contraction.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* ---- letters and their classes ------------------------------------------------------------------ */

enum { A = MPP_OPERAND_A, B = MPP_OPERAND_B, C = MPP_RESULT, SMALL_PRODUCT = 64 };

static struct mpp_factor *factor_of(struct mpp_contraction *e, char letter)
{
    for (int i = 0; i < e->n_factors; i++)
        if (e->factor[i].letter == letter)
            return &e->factor[i];
    assert(e->n_factors < MPP_MAX_LETTERS);
    struct mpp_factor *f = &e->factor[e->n_factors++];
    *f = (struct mpp_factor){.letter = letter};
    return f;
}

static void read_term(struct mpp_contraction *e, const char *term, int n_letters, int tensor,
                      const int64_t *dims)
{
    int64_t stride = 1;
    assert(n_letters <= MPP_MAX_DIMS);
    for (int d = n_letters - 1; d >= 0; d--) {
        struct mpp_factor *f = factor_of(e, term[d]);
        assert(!(f->tensors >> tensor & 1) && "a letter stands once in a term");
        assert((!f->tensors || f->padded == dims[d]) && "extents of a letter agree");
        f->padded = dims[d];
        f->stride[tensor] = stride;
        f->tensors |= 1u << tensor;
        stride *= dims[d];
    }
}

/* Reads the equation; extents in the order of first appearance come from VALID. */
static struct mpp_contraction letters_of(const char *equation, const int64_t *a_dims, const int64_t *b_dims,
                                        const int64_t *c_dims, const int64_t *valid)
{
    struct mpp_contraction e = {0};
    const char *comma = strchr(equation, ','), *arrow = strstr(equation, "->");
    assert(comma && arrow && comma < arrow);
    for (const char *p = equation; p < arrow; p++) /* fixes the order of the letters */
        if (p != comma)
            factor_of(&e, *p);
    read_term(&e, equation, (int)(comma - equation), A, a_dims);
    read_term(&e, comma + 1, (int)(arrow - comma - 1), B, b_dims);
    int n_letters = e.n_factors;
    read_term(&e, arrow + 2, (int)strlen(arrow + 2), C, c_dims);
    assert(e.n_factors == n_letters && "a letter of the result is in an operand");
    int kept = 0;
    for (int i = 0; i < n_letters; i++) {
        struct mpp_factor f = e.factor[i];
        f.extent = valid[i];
        assert(f.extent <= f.padded);
        if (f.extent == 1)
            continue; /* index 0 everywhere */
        assert(f.tensors == MPP_CLASS_K || f.tensors == MPP_CLASS_M || f.tensors == MPP_CLASS_N || f.tensors == MPP_CLASS_BATCH);
        e.factor[kept++] = f;
    }
    e.n_factors = kept;
    return e;
}

/* Can OUTER and INNER be walked as one dimension, in all tensors that have them? */
static bool merges(const struct mpp_factor *outer, const struct mpp_factor *inner)
{
    if (outer->tensors != inner->tensors || inner->extent != inner->padded)
        return false;
    for (int t = A; t <= C; t++)
        if ((outer->tensors >> t & 1) && outer->stride[t] != inner->stride[t] * inner->padded)
            return false;
    return true;
}

static bool merge_once(struct mpp_contraction *e)
{
    for (int i = 0; i < e->n_factors; i++)
        for (int j = 0; j < e->n_factors; j++) {
            struct mpp_factor *outer = &e->factor[i], *inner = &e->factor[j];
            if (i == j || !merges(outer, inner))
                continue;
            outer->extent *= inner->padded;
            outer->padded *= inner->padded;
            memcpy(outer->stride, inner->stride, sizeof outer->stride);
            *inner = e->factor[--e->n_factors];
            return true;
        }
    return false;
}

struct mpp_contraction mpp_contraction_read(const char *equation, const int64_t *a_dims, const int64_t *b_dims, const int64_t *c_dims,
                                            const int64_t *valid)
{
    struct mpp_contraction e = letters_of(equation, a_dims, b_dims, c_dims, valid);
    while (merge_once(&e))
        ;
    return e;
}

/* ---- the choice of one product ------------------------------------------------------------------- */

int64_t mpp_contraction_extent(const struct mpp_contraction *e, int i)
{
    return i < 0 ? 1 : e->factor[i].extent;
}

/* The matrix [row, col] of tensor T: has it a unit stride? */
static bool matrix_of(const struct mpp_contraction *e, int row, int col, int t, bool may_trans,
                      struct mpp_matrix *out)
{
    const struct mpp_factor *rf = row < 0 ? NULL : &e->factor[row], *cf = col < 0 ? NULL : &e->factor[col];
    int64_t rows = mpp_contraction_extent(e, row), cols = mpp_contraction_extent(e, col);
    if (!cf || cf->stride[t] == 1) {
        *out = (struct mpp_matrix){.trans = false, .ld = rf ? rf->stride[t] : cols};
        return out->ld >= cols;
    }
    if (may_trans && (!rf || rf->stride[t] == 1)) {
        *out = (struct mpp_matrix){.trans = true, .ld = cf->stride[t]};
        return out->ld >= rows;
    }
    return false;
}

static bool is_class(const struct mpp_contraction *e, int i, unsigned wanted)
{
    return i < 0 || e->factor[i].tensors == wanted;
}

/* Rough time of all calls, in multiply-adds: small sides waste sgemm's blocking, a call has a price. */
static double cost_of(const struct mpp_contraction *e, const struct mpp_choice *x)
{
    double calls = 1;
    for (int i = 0; i < e->n_factors; i++)
        if (i != x->m && i != x->n && i != x->k)
            calls *= (double)e->factor[i].extent;
    double m = (double)mpp_contraction_extent(e, x->m), n = (double)mpp_contraction_extent(e, x->n), k = (double)mpp_contraction_extent(e, x->k);
    return calls * (4000 + (m + 4) * (n + 8) * (k + 16));
}

/* The cheapest product there is. */
static bool choose(const struct mpp_contraction *e, struct mpp_choice *out)
{
    *out = (struct mpp_choice){.cost = INFINITY};
    for (int swap = 0; swap < 2; swap++)
        for (int m = -1; m < e->n_factors; m++)
            for (int n = -1; n < e->n_factors; n++)
                for (int k = -1; k < e->n_factors; k++) {
                    struct mpp_choice x = {.m = m, .n = n, .k = k, .swap = swap};
                    if (!is_class(e, m, swap ? MPP_CLASS_N : MPP_CLASS_M) || !is_class(e, n, swap ? MPP_CLASS_M : MPP_CLASS_N) ||
                        !is_class(e, k, MPP_CLASS_K))
                        continue;
                    if (!matrix_of(e, m, k, swap ? B : A, true, &x.a) ||
                        !matrix_of(e, k, n, swap ? A : B, true, &x.b) || !matrix_of(e, m, n, C, false, &x.c))
                        continue;
                    x.cost = cost_of(e, &x);
                    if (x.cost < out->cost)
                        *out = x;
                }
    return out->cost < INFINITY;
}

bool mpp_contraction_choose(const struct mpp_contraction *e, struct mpp_choice *out)
{
    for (int i = 0; i < e->n_factors; i++)
        if (e->factor[i].tensors == MPP_CLASS_K && e->factor[i].extent <= 0)
            return false;
    return choose(e, out) &&
           mpp_contraction_extent(e, out->m) * mpp_contraction_extent(e, out->n) * mpp_contraction_extent(e, out->k) >= SMALL_PRODUCT;
}

/* ---- loops ---------------------------------------------------------------------------------------- */

void mpp_loops_add(struct mpp_loops *loops, const struct mpp_factor *f)
{
    loops->factor[loops->n++] = f;
}

int64_t mpp_loops_count(const struct mpp_loops *loops)
{
    int64_t n = 1;
    for (int i = 0; i < loops->n; i++)
        n *= loops->factor[i]->extent > 0 ? loops->factor[i]->extent : 0;
    return n;
}

void mpp_loops_seek(struct mpp_loops *loops, int64_t i)
{
    for (int l = loops->n - 1; l >= 0; l--) {
        const struct mpp_factor *f = loops->factor[l];
        loops->at[l] = i % f->extent;
        i /= f->extent;
        for (int t = A; t <= C; t++)
            loops->offset[t] += loops->at[l] * f->stride[t];
    }
}

bool mpp_loops_step(struct mpp_loops *loops)
{
    for (int i = loops->n - 1; i >= 0; i--) {
        const struct mpp_factor *f = loops->factor[i];
        bool carry = ++loops->at[i] == f->extent;
        int64_t by = carry ? 1 - f->extent : 1;
        for (int t = A; t <= C; t++)
            loops->offset[t] += by * f->stride[t];
        if (!carry)
            return true;
        loops->at[i] = 0;
    }
    return false;
}
