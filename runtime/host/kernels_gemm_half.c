/* Products of 16-bit matrices: tiles are converted to f32 and multiplied by sgemm. A tile of C is summed over all of K in
 * f32 and rounded once. What can't be one product is converted whole. */
#include "core/half.h"
#include "core/transport.h"
#include "kernels_internal.h"
#include "team.h"

#include <string.h>

enum { TILE_M = 192, TILE_N = 192, TILE_K = 240, LEAST_TILE = 64, PIECE = 16384 };
_Static_assert((TILE_M * TILE_K + TILE_K * TILE_N + TILE_M * TILE_N) * (int)sizeof(float) <= MPP_SCRATCH_BYTES,
               "three tiles in a thread's scratch");

void mpp_half_read_all(const struct mpp_rank *r, enum mpp_type type, const void *x, int64_t n, float *y)
{
    MPP_PARALLEL(r, n)
    for (int64_t i = 0; i < n; i += PIECE)
        mpp_half_read(type, (const uint16_t *)x + i, mpp_min_i64(PIECE, n - i), y + i);
}

void mpp_half_write_all(const struct mpp_rank *r, enum mpp_type type, const float *x, int64_t n, void *y)
{
    MPP_PARALLEL(r, n)
    for (int64_t i = 0; i < n; i += PIECE)
        mpp_half_write(type, x + i, mpp_min_i64(PIECE, n - i), (uint16_t *)y + i);
}

struct product {
    enum mpp_type type, c_type;
    bool trans_a, trans_b;
    int64_t k, lda, ldb, ldc;
    const uint16_t *a, *b;
    void *c;
    float beta;
    bool follows;                 /* something follows the product */
    const uint16_t *bias, *residual; /* added to it; NULL: nothing */
    bool activates;               /* C is GELU of that, PRE what it is of; NULL: not wanted */
    uint16_t *pre;
};

/* ROWS x COLS elements at X, LD apart, as a dense matrix. */
static void read_tile(enum mpp_type type, const uint16_t *x, int64_t ld, int64_t rows, int64_t cols, float *out)
{
    for (int64_t i = 0; i < rows; i++)
        mpp_half_read(type, x + i * ld, cols, out + i * cols);
}

static void add_half(enum mpp_type type, const uint16_t *x, int64_t n, float *sum)
{
    for (int64_t l = 0; l < n; l++)
        sum[l] += mpp_half_float(type, x[l]);
}

/* The sums of N columns of a row, from column J on, are done: they go to element AT of C. A product that something follows is rounded
 * first, as it is in plans where ranks sum it up: plans agree. */
static void end_row(const struct product *p, float *sum, int64_t n, int64_t at, int64_t j)
{
    uint16_t *y = (uint16_t *)p->c + at, product[TILE_N];
    if (p->beta != 0.0f)
        add_half(p->type, y, n, sum);
    if (p->follows) {
        mpp_half_write(p->type, sum, n, product);
        mpp_half_read(p->type, product, n, sum);
    }
    if (p->bias != NULL)
        add_half(p->type, p->bias + j, n, sum);
    if (p->residual != NULL)
        add_half(p->type, p->residual + at, n, sum);
    if (p->pre != NULL)
        mpp_half_write(p->type, sum, n, p->pre + at);
    if (p->activates) {
        MPP_IVDEP
        for (int64_t l = 0; l < n; l++)
            sum[l] = mpp_gelu_tanh(sum[l]);
    }
    mpp_half_write(p->type, sum, n, y);
}

/* C [I .. I + M, J .. J + N] in the tiles at WORK. */
static void multiply_tile(const struct product *p, int64_t i, int64_t j, int64_t m, int64_t n, float *work)
{
    float *a = work, *b = a + TILE_M * TILE_K, *sum = b + TILE_K * TILE_N;
    bool wide = p->c_type == MPP_TYPE_F32;
    float *c = wide ? (float *)p->c + i * p->ldc + j : sum;
    int64_t ldc = wide ? p->ldc : n;
    float keep = wide ? p->beta : 0.0f;
    if (p->k <= 0)
        mpp_sgemm(false, false, m, n, 0, 1.0f, a, 1, b, 1, keep, c, ldc);
    for (int64_t k = 0; k < p->k; k += TILE_K) {
        int64_t part = mpp_min_i64(TILE_K, p->k - k);
        if (p->trans_a)
            read_tile(p->type, p->a + k * p->lda + i, p->lda, part, m, a);
        else
            read_tile(p->type, p->a + i * p->lda + k, p->lda, m, part, a);
        if (p->trans_b)
            read_tile(p->type, p->b + j * p->ldb + k, p->ldb, n, part, b);
        else
            read_tile(p->type, p->b + k * p->ldb + j, p->ldb, part, n, b);
        mpp_sgemm(p->trans_a, p->trans_b, m, n, part, 1.0f, a, p->trans_a ? m : part, b, p->trans_b ? part : n, keep, c, ldc);
        keep = 1.0f;
    }
    for (int64_t row = 0; row < m && !wide; row++)
        end_row(p, sum + row * n, n, (i + row) * p->ldc + j, j);
}

static void multiply(struct mpp_rank *r, const struct product *p, int64_t m, int64_t n)
{
    mpp_rank_moves(r);
    int64_t rows = TILE_M, cols = TILE_N;
    while ((m + rows - 1) / rows * ((n + cols - 1) / cols) < r->n_threads && (rows > LEAST_TILE || cols > LEAST_TILE)) {
        if (rows >= cols)
            rows /= 2;
        else
            cols /= 2;
    }
    int64_t across = (n + cols - 1) / cols, tiles = (m + rows - 1) / rows * across;
    int64_t work = (int64_t)fmin((double)m * (double)n * (double)mpp_max_i64(p->k, 1) / 8, MPP_PARALLEL_WORK);
    MPP_PARALLEL(r, work)
    for (int64_t t = 0; t < tiles; t++) {
        int64_t i = t / across * rows, j = t % across * cols;
        int share = mpp_team_share();
        char *at = share == 0 ? r->workspace : r->scratch + (int64_t)(share - 1) * MPP_SCRATCH_BYTES;
        multiply_tile(p, i, j, mpp_min_i64(rows, m - i), mpp_min_i64(cols, n - j), (float *)(void *)at);
    }
}

void mpp_gemm_half(struct mpp_rank *r, enum mpp_type type, enum mpp_type c_type, bool trans_a, bool trans_b, int64_t m,
                   int64_t n, int64_t k, const void *a, int64_t lda, const void *b, int64_t ldb, float beta, void *c,
                   int64_t ldc)
{
    multiply(r, &(struct product){.type = type, .c_type = c_type, .trans_a = trans_a, .trans_b = trans_b, .k = k, .lda = lda,
                                  .ldb = ldb, .ldc = ldc, .a = a, .b = b, .c = c, .beta = beta}, m, n);
}

void mpp_gemm_add_half(struct mpp_rank *r, enum mpp_type type, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
                       const void *a, int64_t lda, const void *b, int64_t ldb, const void *bias, const void *residual,
                       void *y, int64_t ldy)
{
    multiply(r, &(struct product){.type = type, .c_type = type, .trans_a = trans_a, .trans_b = trans_b, .k = k, .lda = lda,
                                  .ldb = ldb, .ldc = ldy, .a = a, .b = b, .c = y, .follows = true, .bias = bias,
                                  .residual = residual}, m, n);
}

void mpp_gemm_gelu_half(struct mpp_rank *r, enum mpp_type type, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
                        const void *a, int64_t lda, const void *b, int64_t ldb, const void *bias, void *pre, void *y,
                        int64_t ldy)
{
    multiply(r, &(struct product){.type = type, .c_type = type, .trans_a = trans_a, .trans_b = trans_b, .k = k, .lda = lda,
                                  .ldb = ldb, .ldc = ldy, .a = a, .b = b, .c = y, .follows = true, .bias = bias,
                                  .activates = true, .pre = pre}, m, n);
}

static int64_t count_of(const char *letters, const char *end, const int64_t *dims)
{
    int64_t n = 1;
    for (int64_t d = 0; d < end - letters; d++)
        n *= dims[d];
    return n;
}

void mpp_einsum_half(struct mpp_rank *r, enum mpp_type type, enum mpp_type c_type, const char *equation, const void *a,
                     const int64_t *a_dims, const void *b, const int64_t *b_dims, float beta, void *c,
                     const int64_t *c_dims, const int64_t *valid)
{
    const char *comma = strchr(equation, ','), *arrow = strstr(equation, "->");
    int64_t n_a = count_of(equation, comma, a_dims), n_b = count_of(comma + 1, arrow, b_dims);
    int64_t n_c = count_of(arrow + 2, arrow + strlen(arrow), c_dims);
    float *wide_a = (float *)(void *)r->workspace, *wide_b = wide_a + n_a, *wide_c = wide_b + n_b;
    mpp_half_read_all(r, type, a, n_a, wide_a);
    mpp_half_read_all(r, type, b, n_b, wide_b);
    if (c_type == MPP_TYPE_F32) {
        mpp_einsum(r, equation, wide_a, a_dims, wide_b, b_dims, beta, c, c_dims, valid);
        return;
    }
    mpp_half_read_all(r, type, c, n_c, wide_c); /* what is not written, its padding, is kept */
    mpp_einsum(r, equation, wide_a, a_dims, wide_b, b_dims, beta, wide_c, c_dims, valid);
    mpp_half_write_all(r, type, wide_c, n_c, c);
}
