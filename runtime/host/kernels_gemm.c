/* Contractions: sgemm with 64-bit sizes, and einsum as sgemm calls on the operands where they lie. The BLAS
 * runs on one thread; the threads of a rank take blocks of a large product, or whole ones of many.
 *
 * The letters of "bsh,htnd->bstnd" fall into four classes: batch (in a, b and c), m (a, c), n (b, c) and
 * k (a, b). Neighbouring letters of a class merge into one where memory allows. Then one letter each of m,
 * n, k becomes the sgemm, chosen so that every matrix has a unit stride; loops run over the others. */
#include "core/transport.h"
#include "kernels_internal.h"

#include <assert.h>
#include <cblas.h>
#include <limits.h>
#include <string.h>

void mpp_sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
               int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    if (m <= 0 || n <= 0)
        return;
    if (k <= 0) {
        for (int64_t i = 0; i < m && beta == 0.0f; i++)
            memset(c + i * ldc, 0, (size_t)n * sizeof *c);
        return;
    }
    assert(m <= INT_MAX && n <= INT_MAX && k <= INT_MAX);
    assert(lda <= INT_MAX && ldb <= INT_MAX && ldc <= INT_MAX);
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans, (int)m,
                (int)n, (int)k, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
}

/* ---- one product on several threads ------------------------------------------------------------- */

enum {
    BLOCK_ROWS = 8,    /* blocks of C are multiples of these: the tile of a BLAS's inner kernel */
    BLOCK_COLS = 16,
    COPY_COST = 16,    /* of an element of A or B that is copied into the BLAS's buffers, in multiply-adds */
    SHARED_GEMM = 32 * MPP_PARALLEL_WORK, /* multiply-adds from which on waking the threads is worth it */
};

static int64_t block_of(int64_t extent, int64_t parts, int64_t multiple)
{
    int64_t block = (extent + parts - 1) / parts;
    return (block + multiple - 1) / multiple * multiple;
}

/* Rows and columns of the blocks of C [m, n], at most one for a thread: the least work for the busiest one. */
static void choose_blocks(int64_t m, int64_t n, int threads, int64_t *rows_out, int64_t *cols_out)
{
    double best = INFINITY;
    for (int parts = 1; parts <= threads; parts++) {
        int64_t rows = block_of(m, parts, BLOCK_ROWS), cols = block_of(n, threads / parts, BLOCK_COLS);
        double cost = (double)rows * (double)cols + COPY_COST * ((double)rows + (double)cols);
        if (cost >= best)
            continue;
        best = cost;
        *rows_out = rows;
        *cols_out = cols;
    }
}

void mpp_gemm(struct mpp_rank *r, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const float *a,
              int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    mpp_rank_moves(r);
    if (r->n_threads <= 1 || (double)m * (double)n * (double)k < SHARED_GEMM) {
        mpp_sgemm(trans_a, trans_b, m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    int64_t rows = m, cols = n;
    choose_blocks(m, n, r->n_threads, &rows, &cols);
    int64_t across = (n + cols - 1) / cols, blocks = (m + rows - 1) / rows * across;
    MPP_PARALLEL(r, SHARED_GEMM)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t i = block / across * rows, j = block % across * cols;
        mpp_sgemm(trans_a, trans_b, mpp_min_i64(rows, m - i), mpp_min_i64(cols, n - j), k, 1.0f,
                  a + (trans_a ? i : i * lda), lda, b + (trans_b ? j * ldb : j), ldb, beta, c + i * ldc + j, ldc);
    }
}

/* ---- letters and their classes ------------------------------------------------------------------ */

enum tensor { A, B, C };
enum class { CLASS_K = 1 << A | 1 << B, CLASS_M = 1 << A | 1 << C, CLASS_N = 1 << B | 1 << C, CLASS_BATCH = 7 };
enum { MAX_LETTERS = 3 * MPP_MAX_DIMS, SMALL_SGEMM = 64 };

struct factor {
    char letter;
    unsigned tensors; /* enum class once the equation is read */
    int64_t extent;   /* valid */
    int64_t padded;
    int64_t stride[3];
};

struct contraction {
    int n_factors;
    struct factor factor[MAX_LETTERS];
};

static struct factor *factor_of(struct contraction *e, char letter)
{
    for (int i = 0; i < e->n_factors; i++)
        if (e->factor[i].letter == letter)
            return &e->factor[i];
    assert(e->n_factors < MAX_LETTERS);
    struct factor *f = &e->factor[e->n_factors++];
    *f = (struct factor){.letter = letter};
    return f;
}

static void read_term(struct contraction *e, const char *term, int n_letters, enum tensor tensor,
                      const int64_t *dims)
{
    int64_t stride = 1;
    assert(n_letters <= MPP_MAX_DIMS);
    for (int d = n_letters - 1; d >= 0; d--) {
        struct factor *f = factor_of(e, term[d]);
        assert(!(f->tensors >> tensor & 1) && "a letter stands once in a term");
        assert((!f->tensors || f->padded == dims[d]) && "extents of a letter agree");
        f->padded = dims[d];
        f->stride[tensor] = stride;
        f->tensors |= 1u << tensor;
        stride *= dims[d];
    }
}

/* Reads the equation; extents in the order of first appearance come from VALID. */
static struct contraction read_equation(const char *equation, const int64_t *a_dims, const int64_t *b_dims,
                                        const int64_t *c_dims, const int64_t *valid)
{
    struct contraction e = {0};
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
        struct factor f = e.factor[i];
        f.extent = valid[i];
        assert(f.extent <= f.padded);
        if (f.extent == 1)
            continue; /* index 0 everywhere */
        assert(f.tensors == CLASS_K || f.tensors == CLASS_M || f.tensors == CLASS_N || f.tensors == CLASS_BATCH);
        e.factor[kept++] = f;
    }
    e.n_factors = kept;
    return e;
}

/* Can OUTER and INNER be walked as one dimension, in all tensors that have them? */
static bool merges(const struct factor *outer, const struct factor *inner)
{
    if (outer->tensors != inner->tensors || inner->extent != inner->padded)
        return false;
    for (int t = A; t <= C; t++)
        if ((outer->tensors >> t & 1) && outer->stride[t] != inner->stride[t] * inner->padded)
            return false;
    return true;
}

static bool merge_once(struct contraction *e)
{
    for (int i = 0; i < e->n_factors; i++)
        for (int j = 0; j < e->n_factors; j++) {
            struct factor *outer = &e->factor[i], *inner = &e->factor[j];
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

/* ---- the choice of one sgemm -------------------------------------------------------------------- */

struct matrix {
    bool trans;
    int64_t ld;
};

struct choice {
    int m, n, k; /* factors, -1: none, extent 1 */
    bool swap;   /* compute the transpose: b plays a's part */
    struct matrix a, b, c;
    double cost;
};

static int64_t extent_of(const struct contraction *e, int i)
{
    return i < 0 ? 1 : e->factor[i].extent;
}

/* The matrix [row, col] of tensor T: has it a unit stride? */
static bool matrix_of(const struct contraction *e, int row, int col, enum tensor t, bool may_trans,
                      struct matrix *out)
{
    const struct factor *rf = row < 0 ? NULL : &e->factor[row], *cf = col < 0 ? NULL : &e->factor[col];
    int64_t rows = extent_of(e, row), cols = extent_of(e, col);
    if (!cf || cf->stride[t] == 1) {
        *out = (struct matrix){.trans = false, .ld = rf ? rf->stride[t] : cols};
        return out->ld >= cols;
    }
    if (may_trans && (!rf || rf->stride[t] == 1)) {
        *out = (struct matrix){.trans = true, .ld = cf->stride[t]};
        return out->ld >= rows;
    }
    return false;
}

static bool is_class(const struct contraction *e, int i, unsigned class)
{
    return i < 0 || e->factor[i].tensors == class;
}

/* Rough time of all calls, in multiply-adds: small sides waste sgemm's blocking, a call has a price. */
static double cost_of(const struct contraction *e, const struct choice *x)
{
    double calls = 1;
    for (int i = 0; i < e->n_factors; i++)
        if (i != x->m && i != x->n && i != x->k)
            calls *= (double)e->factor[i].extent;
    double m = (double)extent_of(e, x->m), n = (double)extent_of(e, x->n), k = (double)extent_of(e, x->k);
    return calls * (4000 + (m + 4) * (n + 8) * (k + 16));
}

static bool choose(const struct contraction *e, struct choice *out)
{
    *out = (struct choice){.cost = INFINITY};
    for (int swap = 0; swap < 2; swap++)
        for (int m = -1; m < e->n_factors; m++)
            for (int n = -1; n < e->n_factors; n++)
                for (int k = -1; k < e->n_factors; k++) {
                    struct choice x = {.m = m, .n = n, .k = k, .swap = swap};
                    if (!is_class(e, m, swap ? CLASS_N : CLASS_M) || !is_class(e, n, swap ? CLASS_M : CLASS_N) ||
                        !is_class(e, k, CLASS_K))
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

/* ---- loops ---------------------------------------------------------------------------------------- */

/* An odometer over some factors, with the element offset in each tensor. */
struct loops {
    int n;
    const struct factor *factor[MAX_LETTERS];
    int64_t at[MAX_LETTERS], offset[3];
};

static void add_loop(struct loops *loops, const struct factor *f)
{
    loops->factor[loops->n++] = f;
}

static int64_t count_of(const struct loops *loops)
{
    int64_t n = 1;
    for (int i = 0; i < loops->n; i++)
        n *= mpp_max_i64(0, loops->factor[i]->extent);
    return n;
}

/* To index number I of the loops at their start. */
static void seek(struct loops *loops, int64_t i)
{
    for (int l = loops->n - 1; l >= 0; l--) {
        const struct factor *f = loops->factor[l];
        loops->at[l] = i % f->extent;
        i /= f->extent;
        for (int t = A; t <= C; t++)
            loops->offset[t] += loops->at[l] * f->stride[t];
    }
}

/* To the next index, the last factor fastest; false, and at the start again, after the last. */
static bool step(struct loops *loops)
{
    for (int i = loops->n - 1; i >= 0; i--) {
        const struct factor *f = loops->factor[i];
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

/* What a call of mpp_einsum works on. */
struct operands {
    const float *a, *b;
    float beta, *c;
};

/* Elements FROM .. TO - 1 of the outer loops without sgemm. */
static void plain_part(struct loops outer, struct loops inner, int64_t from, int64_t to, const struct operands *o)
{
    bool sums = count_of(&inner) > 0;
    seek(&outer, from);
    for (int64_t i = from; i < to; i++, (void)step(&outer)) {
        double sum = 0;
        const float *x = o->a + outer.offset[A], *y = o->b + outer.offset[B];
        if (sums)
            do
                sum += (double)x[inner.offset[A]] * (double)y[inner.offset[B]];
            while (step(&inner));
        float *z = o->c + outer.offset[C];
        *z = o->beta == 0.0f ? (float)sum : (float)((double)*z + sum);
    }
}

/* Products FROM .. TO - 1 of the outer loops, each on the threads of R. */
static void sgemm_part(struct mpp_rank *r, const struct contraction *e, const struct choice *x, struct loops outer,
                       struct loops inner, int64_t from, int64_t to, const struct operands *o)
{
    int64_t m = extent_of(e, x->m), n = extent_of(e, x->n), k = extent_of(e, x->k);
    seek(&outer, from);
    for (int64_t i = from; i < to; i++, (void)step(&outer)) {
        float keep = o->beta;
        do {
            const float *p = o->a + outer.offset[A] + inner.offset[A], *q = o->b + outer.offset[B] + inner.offset[B];
            mpp_gemm(r, x->a.trans, x->b.trans, m, n, k, x->swap ? q : p, x->a.ld, x->swap ? p : q, x->b.ld, keep,
                     o->c + outer.offset[C], x->c.ld);
            keep = 1.0f;
        } while (step(&inner));
    }
}

/* By sgemm, or, where X is NULL, without: no unit strides, nothing to sum, or products too small for a call each. */
static void contract(struct mpp_rank *r, const struct contraction *e, const struct choice *x,
                     const struct operands *o)
{
    struct loops outer = {0}, inner = {0};
    for (int i = 0; i < e->n_factors; i++)
        if (x == NULL || (i != x->m && i != x->n && i != x->k))
            add_loop(e->factor[i].tensors == CLASS_K ? &inner : &outer, &e->factor[i]);
    int64_t calls = count_of(&outer);
    double each = (double)mpp_max_i64(1, count_of(&inner));
    if (x != NULL)
        each *= (double)extent_of(e, x->m) * (double)extent_of(e, x->n) * (double)extent_of(e, x->k);
    if (calls == 0)
        return;
    if (x != NULL && (calls < r->n_threads || (double)calls * each < SHARED_GEMM)) {
        sgemm_part(r, e, x, outer, inner, 0, calls, o);
        return;
    }
    int64_t parts = mpp_max_i64(1, mpp_min_i64(calls, r->n_threads));
    int64_t work = x != NULL ? SHARED_GEMM : (int64_t)fmin((double)calls * each, SHARED_GEMM);
    MPP_PARALLEL(r, work)
    for (int64_t part = 0; part < parts; part++) {
        struct mpp_rank alone = {.n_threads = 1}; /* each its own: products count as work of their rank */
        int64_t from = calls * part / parts, to = calls * (part + 1) / parts;
        if (x != NULL)
            sgemm_part(&alone, e, x, outer, inner, from, to, o);
        else
            plain_part(outer, inner, from, to, o);
    }
}

void mpp_einsum(struct mpp_rank *r, const char *equation, const float *a, const int64_t *a_dims, const float *b,
                const int64_t *b_dims, float beta, float *c, const int64_t *c_dims, const int64_t *valid)
{
    struct contraction e = read_equation(equation, a_dims, b_dims, c_dims, valid);
    while (merge_once(&e))
        ;
    bool plain = false;
    for (int i = 0; i < e.n_factors; i++)
        if (e.factor[i].tensors == CLASS_K && e.factor[i].extent <= 0)
            plain = true;
    struct choice x;
    if (!plain && choose(&e, &x))
        plain = extent_of(&e, x.m) * extent_of(&e, x.n) * extent_of(&e, x.k) < SMALL_SGEMM;
    else
        plain = true;
    contract(r, &e, plain ? NULL : &x, &(struct operands){.a = a, .b = b, .beta = beta, .c = c});
}
