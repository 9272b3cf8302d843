/* Kernels on 16-bit floats against float64 on the same, already rounded operands: what they store is the exact result but
 * for its rounding and f32's. Rows and vocabularies split over meshes, padding that no kernel may look at, several threads'
 * worth of tiles, and not a byte past the workspace that is asked for. */
#include "kernels_testing.h"

#include "core/half.h"
#include "host/kernels_internal.h"

enum { CANARY = 64 };

struct type {
    const char *name;
    enum mpp_type type;
    double unit;                  /* the largest error of rounding, relative */
};

static const struct type types[] = {{"bf16", MPP_TYPE_BF16, 0x1p-8}, {"f16", MPP_TYPE_F16, 0x1p-11}};

static uint16_t *halves(const struct type *t, const float *x, int64_t n)
{
    uint16_t *y = malloc((size_t)(n + 1) * sizeof *y);
    mpp_half_write(t->type, x, n, y);
    return y;
}

/* X as what it is rounded to. */
static void round_all(const struct type *t, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = mpp_half_float(t->type, mpp_half_of(t->type, x[i]));
}

static float *rounded_floats(const struct type *t, uint64_t seed, int64_t n)
{
    float *x = random_floats(seed, n);
    round_all(t, x, n);
    return x;
}

static float *read(const struct type *t, const uint16_t *x, int64_t n)
{
    float *y = floats(n);
    mpp_half_read(t->type, x, n, y);
    return y;
}

static void begin_workspace(struct mpp_rank *r, int64_t bytes)
{
    r->workspace = aligned_alloc(64, (size_t)((bytes + CANARY + 63) / 64 * 64));
    memset(r->workspace, 0xff, (size_t)bytes); /* NaN */
    memset(r->workspace + bytes, 90, CANARY);
}

static void end_workspace(struct mpp_rank *r, int64_t bytes, const char *what)
{
    char intact[CANARY];
    memset(intact, 90, sizeof intact);
    check(memcmp(r->workspace + bytes, intact, sizeof intact) == 0, what);
    free(r->workspace);
    r->workspace = NULL;
}

static void check_rounded(const char *what, const struct type *t, const uint16_t *got, const double *want, int64_t n, double f32)
{
    float *y = read(t, got, n);
    char name[128];
    double wrong = 0;
    for (int64_t i = 0; i < n; i++) {
        double allowed = fabs(want[i]) * t->unit * (1 + 1e-6) + f32, off = fabs((double)y[i] - want[i]);
        wrong = off <= allowed ? wrong : fmax(wrong, isnan(off) ? 1e30 : off);
    }
    (void)snprintf(name, sizeof name, "%s, %s: off by %.3g", what, t->name, wrong);
    check(!(wrong > 0), name);
    free(y);
}

/* ---- products ------------------------------------------------------------------------------------------- */

struct gemm_case {
    int64_t m, n, k;
    bool trans_a, trans_b, wide;
    float beta;
};

static void run_gemm(const struct type *t, const struct gemm_case *c)
{
    int64_t lda = (c->trans_a ? c->m : c->k) + 3, ldb = (c->trans_b ? c->k : c->n) + 1, ldc = c->n + 5;
    int64_t n_a = (c->trans_a ? c->k : c->m) * lda, n_b = (c->trans_b ? c->n : c->k) * ldb, n_c = c->m * ldc;
    float *a = rounded_floats(t, 1, n_a), *b = rounded_floats(t, 2, n_b), *c0 = rounded_floats(t, 3, n_c);
    uint16_t *ha = halves(t, a, n_a), *hb = halves(t, b, n_b), *hc = halves(t, c0, n_c);
    double *want = doubles(c->m * c->n);
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < c->n; j++) {
            double sum = c->beta != 0.0f ? (double)c0[i * ldc + j] : 0;
            for (int64_t k = 0; k < c->k; k++)
                sum += (double)(c->trans_a ? a[k * lda + i] : a[i * lda + k]) * (double)(c->trans_b ? b[j * ldb + k] : b[k * ldb + j]);
            want[i * c->n + j] = sum;
        }
    struct mpp_rank r = {.n_ranks = 1, .n_threads = 1};
    begin_workspace(&r, MPP_GEMM_HALF_WORKSPACE);
    mpp_gemm_half(&r, t->type, c->wide ? MPP_TYPE_F32 : t->type, c->trans_a, c->trans_b, c->m, c->n, c->k, ha, lda, hb, ldb, c->beta,
                  c->wide ? (void *)c0 : hc, ldc);
    end_workspace(&r, MPP_GEMM_HALF_WORKSPACE, "a product stays in its workspace");
    double error = 3e-6 * sqrt((double)c->k + 1) * 4;
    for (int64_t i = 0; i < c->m; i++) {
        if (!c->wide)
            check_rounded("gemm", t, hc + i * ldc, want + i * c->n, c->n, error);
        for (int64_t j = 0; j < c->n && c->wide; j++)
            if (fabs((double)c0[i * ldc + j] - want[i * c->n + j]) > error)
                check(false, "gemm into f32");
    }
    check(true, "gemm");
    free(a);
    free(b);
    free(c0);
    free(ha);
    free(hb);
    free(hc);
    free(want);
}

static void test_gemm(const struct type *t)
{
    static const struct gemm_case cases[] = {
        {1, 1, 1, false, false, false, 0}, {3, 5, 7, true, false, false, 0}, {5, 3, 0, false, false, false, 0},
        {193, 195, 241, false, false, false, 0}, {200, 97, 500, true, true, false, 1}, {97, 400, 33, false, true, true, 0},
        {64, 65, 300, true, false, true, 1}, {7, 9, 0, false, false, true, 1}, {2, 200, 481, false, true, false, 1},
    };
    for (int i = 0; i < COUNT(cases); i++)
        run_gemm(t, &cases[i]);
}

/* Padded, batched: no single product. */
static void test_einsum(const struct type *t)
{
    static const int64_t a_dims[] = {3, 4, 5}, b_dims[] = {3, 6, 5}, c_dims[] = {3, 4, 6}, valid[] = {3, 3, 4, 5};
    float *a = rounded_floats(t, 4, 60), *b = rounded_floats(t, 5, 90), *before = rounded_floats(t, 6, 72);
    for (int wide = 0; wide < 2; wide++) {
        uint16_t *ha = halves(t, a, 60), *hb = halves(t, b, 90), *hc = halves(t, before, 72);
        float *c = floats(72);
        memcpy(c, before, 72 * sizeof *c);
        struct mpp_rank r = {.n_ranks = 1, .n_threads = 1};
        begin_workspace(&r, 4 * (60 + 90 + 72));
        mpp_einsum_half(&r, t->type, wide ? MPP_TYPE_F32 : t->type, "bij,bkj->bik", ha, a_dims, hb, b_dims, 1.0f,
                        wide ? (void *)c : hc, c_dims, (const int64_t[]){valid[0], valid[1], valid[3], valid[2]});
        end_workspace(&r, 4 * (60 + 90 + 72), "a general product stays in its workspace");
        for (int64_t x = 0; x < 3; x++)
            for (int64_t i = 0; i < 4; i++)
                for (int64_t k = 0; k < 6; k++) {
                    int64_t at = (x * 4 + i) * 6 + k;
                    double want = (double)before[at];
                    for (int64_t j = 0; j < 5 && i < 3 && k < 4; j++)
                        want += (double)a[(x * 4 + i) * 5 + j] * (double)b[(x * 6 + k) * 5 + j];
                    if (wide && i < 3 && k < 4)
                        check(fabs((double)c[at] - want) < 1e-5, "einsum into f32");
                    else if (!wide)
                        check_rounded("einsum", t, hc + at, &want, 1, 1e-5);
                }
        free(ha);
        free(hb);
        free(hc);
        free(c);
    }
    free(a);
    free(b);
    free(before);
}

/* ---- rows, split over a mesh ----------------------------------------------------------------------------- */

struct rows {
    const struct type *t;
    int64_t outer, inner, cols;
    int n_axes, sizes[3];
    unsigned split_outer, split_inner, split_cols;
    struct shape s, row, col;
    float *x, *dy, *gamma, *beta;
    int32_t *labels;
    double *y, *dx, *dgamma, *dbeta, *soft, *dsoft, *lse, loss, *dlogits;
};

enum { IGNORED = 2 };

static void reference_rows(struct rows *t)
{
    int64_t n = t->outer * t->inner, c = t->cols;
    double scale = 0.125;
    for (int64_t i = 0; i < n; i++) {
        const float *x = t->x + i * c, *dy = t->dy + i * c;
        double mean = 0, var = 0, g1 = 0, g2 = 0, max = -INFINITY, sum = 0, dot = 0;
        for (int64_t j = 0; j < c; j++) {
            mean += (double)x[j] / (double)c;
            max = fmax(max, (double)x[j]);
        }
        for (int64_t j = 0; j < c; j++) {
            var += ((double)x[j] - mean) * ((double)x[j] - mean) / (double)c;
            sum += exp((double)x[j] - max);
        }
        double rstd = 1 / sqrt(var + 1e-5);
        for (int64_t j = 0; j < c; j++) {
            double hat = ((double)x[j] - mean) * rstd, g = (double)dy[j] * (double)t->gamma[j];
            g1 += g / (double)c;
            g2 += g * hat / (double)c;
            t->y[i * c + j] = hat * (double)t->gamma[j] + (double)t->beta[j];
            t->dgamma[j] += (double)dy[j] * hat;
            t->dbeta[j] += (double)dy[j];
            t->soft[i * c + j] = exp((double)x[j] - max) / sum;
            dot += (double)dy[j] * (double)x[j];
        }
        t->lse[i] = max + log(sum);
        bool counts = t->labels[i] != IGNORED;
        t->loss += counts ? (t->lse[i] - (double)x[t->labels[i]]) * scale : 0;
        for (int64_t j = 0; j < c; j++) {
            double hat = ((double)x[j] - mean) * rstd;
            t->dx[i * c + j] = ((double)dy[j] * (double)t->gamma[j] - g1 - hat * g2) * rstd;
            t->dsoft[i * c + j] = (double)x[j] * ((double)dy[j] - dot); /* x standing for a softmax's result */
            t->dlogits[i * c + j] = counts ? (t->soft[i * c + j] - (j == t->labels[i])) * scale * 2 : 0;
        }
    }
}

static uint16_t *cut_halves(const struct rows *t, const struct mpp_rank *r, const float *global)
{
    float *x = cut(r, &t->s, global);
    uint16_t *y = halves(t->t, x, local_size(r, &t->s));
    free(x);
    return y;
}

/* The valid part of a rank's block. */
static void check_half_block(const char *what, const struct rows *t, const struct mpp_rank *r, const uint16_t *got,
                             const double *want, double f32)
{
    int64_t n = local_size(r, &t->s), kept = 0;
    uint16_t *mine = malloc((size_t)(n + 1) * sizeof *mine);
    double *wanted = doubles(n);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = global_index(r, &t->s, i);
        if (at < 0)
            continue;
        mine[kept] = got[i];
        wanted[kept++] = want[at];
    }
    check_rounded(what, t->t, mine, wanted, kept, f32);
    free(mine);
    free(wanted);
}

static void layernorm_rows(struct mpp_rank *r, struct rows *t)
{
    int64_t n = local_size(r, &t->s), n_rows = local_size(r, &t->row), bytes = mpp_rows_half_workspace(extent_at(r, &t->s, 2).padded);
    struct mpp_extent cols = extent_at(r, &t->s, 2);
    struct mpp_space space = local_space(r, &t->s, 2);
    uint16_t *x = cut_halves(t, r, t->x), *dy = cut_halves(t, r, t->dy), *y = calloc((size_t)n, 2);
    float *gamma = cut(r, &t->col, t->gamma), *beta = cut(r, &t->col, t->beta), *mean = floats(n_rows), *rstd = floats(n_rows);
    float *dgamma = floats(cols.padded), *dbeta = floats(cols.padded);
    begin_workspace(r, bytes);
    mpp_layernorm_forward_half(r, t->t->type, t->split_cols, n_rows, cols, 1e-5f, x, gamma, beta, y, mean, rstd);
    check_half_block("layernorm", t, r, y, t->y, 1e-5);
    mpp_layernorm_backward_half(r, t->t->type, t->split_cols, &space, cols, x, gamma, mean, rstd, dy, dy, dgamma, dbeta);
    check_half_block("layernorm's dx", t, r, dy, t->dx, 1e-5);
    mpp_all_reduce(r, t->split_outer | t->split_inner, dgamma, cols.padded, MPP_REDUCE_SUM);
    mpp_all_reduce(r, t->split_outer | t->split_inner, dbeta, cols.padded, MPP_REDUCE_SUM);
    check_block("layernorm's dgamma", r, &t->col, dgamma, t->dgamma, 1e-5);
    check_block("layernorm's dbeta", r, &t->col, dbeta, t->dbeta, 1e-5);
    end_workspace(r, bytes, "layernorm stays in its workspace");
    void *all[] = {x, dy, y, gamma, beta, mean, rstd, dgamma, dbeta};
    for (int i = 0; i < COUNT(all); i++)
        free(all[i]);
}

static void softmax_rows(struct mpp_rank *r, struct rows *t)
{
    int64_t n = local_size(r, &t->s), n_rows = local_size(r, &t->row), bytes = mpp_rows_half_workspace(extent_at(r, &t->s, 2).padded);
    struct mpp_extent cols = extent_at(r, &t->s, 2);
    uint16_t *x = cut_halves(t, r, t->x), *dy = cut_halves(t, r, t->dy), *y = calloc((size_t)n, 2), *dx = calloc((size_t)n, 2);
    begin_workspace(r, bytes);
    mpp_softmax_forward_half(r, t->t->type, t->split_cols, n_rows, cols, x, y);
    check_half_block("softmax", t, r, y, t->soft, 1e-6);
    mpp_softmax_backward_half(r, t->t->type, t->split_cols, n_rows, cols, x, dy, dx);
    check_half_block("softmax's gradient", t, r, dx, t->dsoft, 1e-4);
    end_workspace(r, bytes, "softmax stays in its workspace");
    free(x);
    free(dy);
    free(y);
    free(dx);
}

static void loss_rows(struct mpp_rank *r, struct rows *t)
{
    int64_t n_rows = local_size(r, &t->row), bytes = mpp_rows_half_workspace(extent_at(r, &t->s, 2).padded);
    struct mpp_extent cols = extent_at(r, &t->s, 2);
    struct mpp_space space = local_space(r, &t->s, 2);
    uint16_t *x = cut_halves(t, r, t->x);
    int32_t *labels = cut_ints(r, &t->row, t->labels);
    float *lse = floats(n_rows), loss = NAN, scale = 0.125f, dloss = 2;
    begin_workspace(r, bytes);
    mpp_cross_entropy_forward_half(r, t->t->type, t->split_cols, &space, cols, IGNORED, x, labels, &scale, lse, &loss);
    check_block("log of the sum", r, &t->row, lse, t->lse, 1e-6);
    mpp_all_reduce(r, (1u << r->n_axes) - 1, &loss, 1, MPP_REDUCE_SUM);
    double want = t->loss;
    for (int a = 0; a < r->n_axes; a++)
        want *= (t->split_outer | t->split_inner | t->split_cols) >> a & 1 ? 1 : r->axis_size[a];
    check_close("loss", &loss, &want, 1, 1e-5);
    mpp_cross_entropy_backward_half(r, t->t->type, &space, cols, IGNORED, x, labels, lse, &scale, &dloss, x);
    check_half_block("loss's gradient", t, r, x, t->dlogits, 1e-6);
    end_workspace(r, bytes, "the loss stays in its workspace");
    free(x);
    free(labels);
    free(lse);
}

static void rows_body(struct mpp_rank *r, void *arg)
{
    layernorm_rows(r, arg);
    softmax_rows(r, arg);
    loss_rows(r, arg);
}

static void test_rows(const struct type *type)
{
    static const struct rows cases[] = {
        {.outer = 3, .inner = 5, .cols = 7, .n_axes = 1, .sizes = {1}},
        {.outer = 1, .inner = 2100, .cols = 33, .n_axes = 1, .sizes = {1}},
        {.outer = 2, .inner = 2, .cols = 70001, .n_axes = 1, .sizes = {1}},
        {.outer = 5, .inner = 7, .cols = 37, .n_axes = 2, .sizes = {2, 3}, .split_outer = 1, .split_inner = 2},
        {.outer = 3, .inner = 4, .cols = 37, .n_axes = 2, .sizes = {2, 4}, .split_outer = 1, .split_cols = 2},
        {.outer = 2, .inner = 3, .cols = 9, .n_axes = 1, .sizes = {5}, .split_cols = 1},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        struct rows t = cases[i];
        int64_t n = t.outer * t.inner, size = n * t.cols;
        t.t = type;
        t.s = (struct shape){3, {t.outer, t.inner, t.cols}, {t.split_outer, t.split_inner, t.split_cols}};
        t.row = (struct shape){2, {t.outer, t.inner}, {t.split_outer, t.split_inner}};
        t.col = (struct shape){1, {t.cols}, {t.split_cols}};
        t.x = rounded_floats(type, 7, size);
        t.dy = rounded_floats(type, 8, size);
        t.gamma = random_floats(9, t.cols);
        t.beta = random_floats(10, t.cols);
        t.labels = malloc((size_t)n * sizeof *t.labels);
        uint64_t state = 11;
        for (int64_t k = 0; k < n; k++)
            t.labels[k] = (int32_t)random_below(&state, t.cols);
        double **made[] = {&t.y, &t.dx, &t.soft, &t.dsoft, &t.dlogits};
        for (int k = 0; k < COUNT(made); k++)
            *made[k] = doubles(size);
        t.lse = doubles(n);
        t.dgamma = doubles(t.cols);
        t.dbeta = doubles(t.cols);
        reference_rows(&t);
        run_mesh(t.n_axes, t.sizes, rows_body, &t);
        void *all[] = {t.x, t.dy, t.gamma, t.beta, t.labels, t.y, t.dx, t.soft, t.dsoft, t.dlogits, t.lse, t.dgamma, t.dbeta};
        for (int k = 0; k < COUNT(all); k++)
            free(all[k]);
    }
}

/* ---- tables ------------------------------------------------------------------------------------------------ */

static void test_tables(const struct type *t)
{
    enum { ROWS = 1500, VOCAB = 11, WIDTH = 65 };
    struct mpp_extent vocab = {.global = 20, .padded = VOCAB, .valid = VOCAB, .offset = 5};
    struct mpp_space space = {.n_dims = 2, .padded = {2, ROWS / 2}, .valid = {2, ROWS / 2 - 1}};
    float *table = rounded_floats(t, 12, VOCAB * WIDTH), *dy = rounded_floats(t, 13, ROWS * WIDTH);
    uint16_t *half_table = halves(t, table, VOCAB * WIDTH), *half_dy = halves(t, dy, ROWS * WIDTH), *y = calloc(ROWS * WIDTH, 2);
    int32_t *ids = malloc(ROWS * sizeof *ids);
    uint64_t state = 14;
    for (int i = 0; i < ROWS; i++)
        ids[i] = (i + 1) % (ROWS / 2) ? (int32_t)random_below(&state, 20) : INT32_MAX; /* padding */
    struct mpp_rank r = {.n_ranks = 1, .n_threads = 1};
    int64_t bytes = mpp_rows_half_workspace(WIDTH);
    float *dtable = random_floats(15, VOCAB * WIDTH);
    double *want = widened(dtable, VOCAB * WIDTH);
    bool ok = true;
    mpp_embedding_forward_half(&r, &space, vocab, WIDTH, ids, half_table, y);
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t j = 0; j < WIDTH && ids[i] != INT32_MAX; j++) {
            int64_t id = ids[i] - 5;
            bool here = id >= 0 && id < VOCAB;
            ok = ok && y[i * WIDTH + j] == (here ? half_table[id * WIDTH + j] : 0);
            if (here)
                want[id * WIDTH + j] += (double)dy[i * WIDTH + j];
        }
    check(ok, "embedding copies rows");
    begin_workspace(&r, bytes);
    mpp_embedding_backward_half(&r, t->type, &space, vocab, WIDTH, ids, half_dy, 1.0f, dtable);
    end_workspace(&r, bytes, "a table's gradient stays in its workspace");
    check_close("a table's gradient", dtable, want, VOCAB * WIDTH, 1e-5);
    void *all[] = {table, dy, half_table, half_dy, y, ids, dtable, want};
    for (int i = 0; i < COUNT(all); i++)
        free(all[i]);
}

/* ---- attention: the f32 kernel, which has tests of its own, on the same numbers --------------------------- */

static void test_attention(const struct type *t)
{
    struct mpp_attention a = {.batch = {5, 3, 2, 3}, .seq_q = {40, 20, 19, 20}, .seq_k = {40, 40, 40, 0}, .heads = {6, 3, 3, 3},
                              .head_dim = 8, .scale = 0.35f, .dropout = 0.2f, .causal = true, .op = 5};
    enum { NQ = 3 * 20 * 3 * 8, NK = 3 * 40 * 3 * 8, NL = 3 * 3 * 20 };
    static const struct mpp_program program = {.batch = 10, .micro_batches = 2};
    struct mpp_rank r = {.n_ranks = 1, .n_threads = 1, .step = 2, .micro_batch = 1, .micro_batches = 2, .seed = 9, .training = true,
                         .program = &program};
    float *in[] = {rounded_floats(t, 16, NQ), rounded_floats(t, 17, NK), rounded_floats(t, 18, NK), rounded_floats(t, 19, NQ)};
    int64_t n[] = {NQ, NK, NK, NQ};
    uint16_t *half[4], *out[4];
    float *wide[4], *lse = floats(NL), *half_lse = floats(NL);
    int32_t mask[3 * 40];
    for (int i = 0; i < 4; i++) {
        half[i] = halves(t, in[i], n[i]);
        out[i] = calloc((size_t)n[i], 2);
        wide[i] = floats(n[i]);
    }
    for (int i = 0; i < 3 * 40; i++)
        mask[i] = i % 7 != 3;
    int64_t bytes = mpp_attention_workspace(&a);
    begin_workspace(&r, bytes);
    mpp_attention_forward(&r, &a, in[0], in[1], in[2], mask, wide[3], lse);
    round_all(t, wide[3], NQ); /* the backward reads y as it is stored */
    mpp_attention_backward(&r, &a, in[0], in[1], in[2], mask, wide[3], lse, in[3], wide[0], wide[1], wide[2]);
    end_workspace(&r, bytes, "f32 attention stays in its workspace");
    bytes = mpp_attention_half_workspace(&a, false);
    begin_workspace(&r, bytes);
    mpp_attention_forward_half(&r, t->type, &a, half[0], half[1], half[2], mask, out[3], half_lse);
    end_workspace(&r, bytes, "attention stays in its workspace");
    bytes = mpp_attention_half_workspace(&a, true);
    begin_workspace(&r, bytes);
    mpp_attention_backward_half(&r, t->type, &a, half[0], half[1], half[2], mask, out[3], half_lse, half[3], out[0], out[1], out[2]);
    end_workspace(&r, bytes, "attention's gradient stays in its workspace");
    check(memcmp(lse, half_lse, NL * sizeof *lse) == 0, "attention: the logs of the sums");
    for (int i = 0; i < 4; i++) {
        double *want = widened(wide[i], n[i]);
        check_rounded("attention", t, out[i], want, n[i], 1e-6);
        free(want);
        free(in[i]);
        free(half[i]);
        free(out[i]);
        free(wide[i]);
    }
    free(lse);
    free(half_lse);
}

/* ---- the update -------------------------------------------------------------------------------------------- */

static void test_loss_scale(void)
{
    struct mpp_rank r = {.n_ranks = 1, .n_threads = 1, .step = 7, .hyper = {.clip_norm = 1, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8}};
    float sum = 64, norm, factor, scale = 4, good = 1, skipped = 2;
    mpp_loss_scale(&r, true, 3, &sum, &norm, &factor, &scale, &good, &skipped);
    check(norm == 2.0f && factor == 0.125f, "the true norm, and the limit over it, over the scale");
    check(scale == 4.0f && good == 2.0f && skipped == 2.0f && r.skipped == 2, "a good step is counted");
    mpp_loss_scale(&r, true, 3, &sum, &norm, &factor, &scale, &good, &skipped);
    check(scale == 8.0f && good == 0.0f, "so many double the scale");
    const float bad[] = {INFINITY, NAN};
    for (int i = 0; i < 2; i++) {
        good = 2;
        mpp_loss_scale(&r, true, 3, &bad[i], &norm, &factor, &scale, &good, &skipped);
        check(factor == 0.0f && scale == (i ? 2.0f : 4.0f) && good == 0.0f && skipped == 3.0f + (float)i && r.skipped == 3 + i,
              "an overflow halves it and is counted");
    }
    scale = 1;
    mpp_loss_scale(&r, true, 3, &bad[0], &norm, &factor, &scale, &good, &skipped);
    check(scale == 1.0f, "down to 1");
    scale = 0x1p24f;
    good = 2;
    mpp_loss_scale(&r, true, 3, &sum, &norm, &factor, &scale, &good, &skipped);
    check(scale == 0x1p24f && good == 0.0f, "up to 2^24");
    scale = 0.25f;
    mpp_loss_scale(&r, false, 1, &bad[0], &norm, &factor, &scale, &good, &skipped);
    check(factor == 0.0f && scale == 0.25f, "a fixed scale stays");

    float w[3] = {1, 2, 3}, m[3] = {0.5f, 0, -1}, v[3] = {1, 2, 0}, g[3] = {NAN, INFINITY, 1}, zero = 0, half = 0.5f;
    float before[9];
    memcpy(before, w, sizeof w);
    memcpy(before + 3, m, sizeof m);
    memcpy(before + 6, v, sizeof v);
    mpp_adamw(&r, 3, 0.1f, &zero, g, w, m, v);
    mpp_sgd(&r, 3, 0.1f, &zero, g, w, m);
    check(!memcmp(before, w, sizeof w) && !memcmp(before + 3, m, sizeof m) && !memcmp(before + 6, v, sizeof v),
          "a factor of 0 changes nothing, whatever the gradient");
    struct mpp_rank other = r; /* step 7 with 5 skipped is the second that is taken */
    float w2[3] = {1, 2, 3}, m2[3] = {0.5f, 0, -1}, v2[3] = {1, 2, 0}, ok[3] = {1, -2, 3};
    r.skipped = 5;
    other.step = 2;
    other.skipped = 0;
    mpp_adamw(&r, 3, 0.1f, &half, ok, w, m, v);
    mpp_adamw(&other, 3, 0.1f, &half, ok, w2, m2, v2);
    check(!memcmp(w, w2, sizeof w), "bias correction counts the steps that were taken");
}

int main(void)
{
    for (int i = 0; i < COUNT(types); i++) {
        test_gemm(&types[i]);
        test_einsum(&types[i]);
        test_rows(&types[i]);
        test_tables(&types[i]);
        test_attention(&types[i]);
    }
    test_loss_scale();
    return report();
}
