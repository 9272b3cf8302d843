/* Contractions: sgemm with 64-bit sizes, and einsum as sgemm calls on the operands where they lie (core/contraction.h). The BLAS
 * runs on one thread; the threads of a rank take blocks of a large product, or whole ones of many. */
#include "core/contraction.h"
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

/* C = op(A) op(B) + beta C, and what is done to blocks of C [m, n]. */
struct product {
    bool trans_a, trans_b;
    int64_t m, n, k, lda, ldb, ldc;
    const float *a, *b;
    float beta, *c;
    bool adds, activates;         /* C begins as BIAS + RESIDUAL; BIAS is added to C in the end, and Y = gelu(C) */
    const float *bias, *residual;
    float *y;
};

/* Rows FROM .. TO - 1 and columns J .. J + N - 1 of C become BIAS + RESIDUAL. */
static void begin_rows(const struct product *p, int64_t from, int64_t to, int64_t j, int64_t n)
{
    const float *bias = p->bias != NULL ? p->bias + j : NULL;
    for (int64_t i = from; i < to; i++) {
        const float *x = p->residual != NULL ? p->residual + i * p->ldc + j : NULL;
        float *y = p->c + i * p->ldc + j;
        if (x != NULL && bias != NULL) {
            MPP_IVDEP
            for (int64_t l = 0; l < n; l++)
                y[l] = x[l] + bias[l];
        } else if (x != y && (x != NULL || bias != NULL)) {
            memcpy(y, x != NULL ? x : bias, (size_t)n * sizeof *y);
        } else if (x == NULL) {
            memset(y, 0, (size_t)n * sizeof *y);
        }
    }
}

/* C takes the bias, where there is one; Y its GELU, which may be in the place of C. */
static void end_rows(const struct product *p, int64_t from, int64_t to, int64_t j, int64_t n)
{
    const float *bias = p->bias != NULL ? p->bias + j : NULL;
    for (int64_t i = from; i < to; i++) {
        float *c = p->c + i * p->ldc + j, *y = p->y + i * p->ldc + j;
        if (bias != NULL) {
            MPP_IVDEP
            for (int64_t l = 0; l < n; l++) {
                float x = c[l] + bias[l];
                c[l] = x;
                y[l] = mpp_gelu_tanh(x);
            }
        } else {
            MPP_IVDEP
            for (int64_t l = 0; l < n; l++)
                y[l] = mpp_gelu_tanh(c[l]);
        }
    }
}

static void multiply_block(const struct product *p, int64_t i, int64_t j, int64_t m, int64_t n)
{
    if (p->adds)
        begin_rows(p, i, i + m, j, n);
    mpp_sgemm(p->trans_a, p->trans_b, m, n, p->k, 1.0f, p->a + (p->trans_a ? i : i * p->lda), p->lda,
              p->b + (p->trans_b ? j * p->ldb : j), p->ldb, p->beta, p->c + i * p->ldc + j, p->ldc);
    if (p->activates)
        end_rows(p, i, i + m, j, n);
}

static void multiply(struct mpp_rank *r, const struct product *p)
{
    mpp_rank_moves(r);
    if (r->n_threads <= 1 || (double)p->m * (double)p->n * (double)p->k < SHARED_GEMM) {
        multiply_block(p, 0, 0, p->m, p->n);
        return;
    }
    int64_t rows = p->m, cols = p->n;
    choose_blocks(p->m, p->n, r->n_threads, &rows, &cols);
    int64_t across = (p->n + cols - 1) / cols, blocks = (p->m + rows - 1) / rows * across;
    MPP_PARALLEL(r, SHARED_GEMM)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t i = block / across * rows, j = block % across * cols;
        multiply_block(p, i, j, mpp_min_i64(rows, p->m - i), mpp_min_i64(cols, p->n - j));
    }
}

void mpp_gemm(struct mpp_rank *r, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const float *a,
              int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    multiply(r, &(struct product){.trans_a = trans_a, .trans_b = trans_b, .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb,
                                  .ldc = ldc, .a = a, .b = b, .beta = beta, .c = c});
}

void mpp_gemm_add(struct mpp_rank *r, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const float *a,
                  int64_t lda, const float *b, int64_t ldb, const float *bias, const float *residual, float *y, int64_t ldy)
{
    multiply(r, &(struct product){.trans_a = trans_a, .trans_b = trans_b, .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb,
                                  .ldc = ldy, .a = a, .b = b, .beta = 1.0f, .c = y, .adds = true, .bias = bias,
                                  .residual = residual});
}

/* With the bias first, as in mpp_gemm_add, GELU would read C from memory no less, and C would be written once more. */
void mpp_gemm_gelu(struct mpp_rank *r, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const float *a,
                   int64_t lda, const float *b, int64_t ldb, const float *bias, float *pre, float *y, int64_t ldy)
{
    multiply(r, &(struct product){.trans_a = trans_a, .trans_b = trans_b, .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb,
                                  .ldc = ldy, .a = a, .b = b, .c = pre != NULL ? pre : y, .activates = true, .bias = bias, .y = y});
}

/* ---- contractions ------------------------------------------------------------------------------- */

enum { A = MPP_OPERAND_A, B = MPP_OPERAND_B, C = MPP_RESULT };

/* What a call of mpp_einsum works on. */
struct operands {
    const float *a, *b;
    float beta, *c;
};

/* Elements FROM .. TO - 1 of the outer loops without sgemm. */
static void plain_part(struct mpp_loops outer, struct mpp_loops inner, int64_t from, int64_t to, const struct operands *o)
{
    bool sums = mpp_loops_count(&inner) > 0;
    mpp_loops_seek(&outer, from);
    for (int64_t i = from; i < to; i++, (void)mpp_loops_step(&outer)) {
        double sum = 0;
        const float *x = o->a + outer.offset[A], *y = o->b + outer.offset[B];
        if (sums)
            do
                sum += (double)x[inner.offset[A]] * (double)y[inner.offset[B]];
            while (mpp_loops_step(&inner));
        float *z = o->c + outer.offset[C];
        *z = o->beta == 0.0f ? (float)sum : (float)((double)*z + sum);
    }
}

/* Products FROM .. TO - 1 of the outer loops, each on the threads of R. */
static void sgemm_part(struct mpp_rank *r, const struct mpp_contraction *e, const struct mpp_choice *x, struct mpp_loops outer,
                       struct mpp_loops inner, int64_t from, int64_t to, const struct operands *o)
{
    int64_t m = mpp_contraction_extent(e, x->m), n = mpp_contraction_extent(e, x->n), k = mpp_contraction_extent(e, x->k);
    mpp_loops_seek(&outer, from);
    for (int64_t i = from; i < to; i++, (void)mpp_loops_step(&outer)) {
        float keep = o->beta;
        do {
            const float *p = o->a + outer.offset[A] + inner.offset[A], *q = o->b + outer.offset[B] + inner.offset[B];
            mpp_gemm(r, x->a.trans, x->b.trans, m, n, k, x->swap ? q : p, x->a.ld, x->swap ? p : q, x->b.ld, keep,
                     o->c + outer.offset[C], x->c.ld);
            keep = 1.0f;
        } while (mpp_loops_step(&inner));
    }
}

/* By sgemm, or, where X is NULL, without: no unit strides, nothing to sum, or products too small for a call each. */
static void contract(struct mpp_rank *r, const struct mpp_contraction *e, const struct mpp_choice *x,
                     const struct operands *o)
{
    struct mpp_loops outer = {0}, inner = {0};
    for (int i = 0; i < e->n_factors; i++)
        if (x == NULL || (i != x->m && i != x->n && i != x->k))
            mpp_loops_add(e->factor[i].tensors == MPP_CLASS_K ? &inner : &outer, &e->factor[i]);
    int64_t calls = mpp_loops_count(&outer);
    double each = (double)mpp_max_i64(1, mpp_loops_count(&inner));
    if (x != NULL)
        each *= (double)mpp_contraction_extent(e, x->m) * (double)mpp_contraction_extent(e, x->n) * (double)mpp_contraction_extent(e, x->k);
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
    struct mpp_contraction e = mpp_contraction_read(equation, a_dims, b_dims, c_dims, valid);
    struct mpp_choice x;
    bool product = mpp_contraction_choose(&e, &x);
    contract(r, &e, product ? &x : NULL, &(struct operands){.a = a, .b = b, .beta = beta, .c = c});
}
