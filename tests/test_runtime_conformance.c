/* Every kernel of mpp_rt.h against float64, in f32, bf16 and f16, with sizes 1, 3, 31, 33, 64 and 257 in each of its dimensions, on
 * arrays that are aligned and that are not. The host's kernels, and, compiled by tests/cuda, CUDA's. */
#include "views_testing.h"

#include "core/device.h"

static bool is_wide(const struct trial *t)
{
    return t->k->type == MPP_TYPE_F32;
}

static struct mpp_extent whole(int64_t n)
{
    return (struct mpp_extent){n, n, n, 0};
}

/* ---- contractions ---------------------------------------------------------------------------------------- */

struct product {
    int64_t m, n, k, lda, ldb, ldc;
    bool trans_a, trans_b, wide_c;
    double beta;
};

static void run_product(struct trial *t, const struct product *p)
{
    struct mpp_rank r = {.n_ranks = 1, .n_threads = 1};
    const struct kind *kc = p->wide_c ? wide : t->k;
    int64_t n_a = (p->trans_a ? p->k : p->m) * p->lda, n_b = (p->trans_b ? p->n : p->k) * p->ldb, n_c = p->m * p->ldc;
    double *a = numbers_of(t, t->k, 1, n_a), *b = numbers_of(t, t->k, 2, n_b), *c = numbers_of(t, kc, 3, n_c);
    void *va = stored(t, t->k, a, n_a), *vb = stored(t, t->k, b, n_b), *vc = stored(t, kc, c, n_c);
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            double sum = p->beta * c[i * p->ldc + j];
            for (int64_t k = 0; k < p->k; k++)
                sum += (p->trans_a ? a[k * p->lda + i] : a[i * p->lda + k]) * (p->trans_b ? b[j * p->ldb + k] : b[k * p->ldb + j]);
            c[i * p->ldc + j] = sum;
        }
    if (is_wide(t)) {
        CALL(t, mpp_gemm, &r, p->trans_a, p->trans_b, p->m, p->n, p->k, va, p->lda, vb, p->ldb, (float)p->beta, vc, p->ldc);
    } else {
        r.workspace = workspace_of(t, MPP_GEMM_HALF_WORKSPACE);
        CALL(t, mpp_gemm_half, &r, t->k->type, kc->type, p->trans_a, p->trans_b, p->m, p->n, p->k, va, p->lda, vb, p->ldb,
             (float)p->beta, vc, p->ldc);
    }
    check_stored(t, "gemm", kc, vc, c, n_c, 4e-6);
    end_trial(t);
}

static void test_gemm(struct trial *t)
{
    const int64_t dims[3][3] = {{t->n, 33, 31}, {3, t->n, 33}, {31, 3, t->n}};
    for (int d = 0; d < 3; d++)
        for (int form = 0; form < 4; form++) {
            struct product p = {.m = dims[d][0], .n = dims[d][1], .k = dims[d][2], .trans_a = form & 1, .trans_b = form >> 1,
                                .wide_c = (d + form) % 2, .beta = (d + form / 2) % 2};
            p.lda = (p.trans_a ? p.m : p.k) + form;
            p.ldb = (p.trans_b ? p.k : p.n) + d;
            p.ldc = p.n + (form + d) % 2;
            run_product(t, &p);
        }
}

/* In 16 bits, where the product is rounded before what follows, and GELU is up to 1.13 times as steep. */
static const double TWICE_ROUNDED = 1.2;

enum { WITH_BIAS = 1, WITH_RESIDUAL = 2, IN_PLACE = 4, WITH_GELU = 8, WITH_PRE = 16 };

static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

/* Y and PRE where the product is [m, n]; what lies beyond N in a row stays. */
static void wanted_after(const struct product *p, int form, const double *a, const double *b, const double *bias, const double *residual,
                         double *pre, double *y)
{
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            double x = form & WITH_BIAS ? bias[j] : 0;
            for (int64_t k = 0; k < p->k; k++)
                x += (p->trans_a ? a[k * p->lda + i] : a[i * p->lda + k]) * (p->trans_b ? b[j * p->ldb + k] : b[k * p->ldb + j]);
            if (form & (WITH_RESIDUAL | IN_PLACE))
                x += residual[i * p->ldc + j];
            pre[i * p->ldc + j] = x;
            y[i * p->ldc + j] = form & WITH_GELU ? gelu_tanh(x) : x;
        }
}

static void run_after(struct trial *t, const struct product *p, int form)
{
    struct mpp_rank r = {.n_ranks = 1, .n_threads = 1};
    int64_t n_a = (p->trans_a ? p->k : p->m) * p->lda, n_b = (p->trans_b ? p->n : p->k) * p->ldb, n_y = p->m * p->ldc;
    double *a = numbers_of(t, t->k, 1, n_a), *b = numbers_of(t, t->k, 2, n_b), *bias = numbers_of(t, t->k, 3, p->n);
    double *residual = numbers_of(t, t->k, 4, n_y), *y = numbers_of(t, t->k, form & IN_PLACE ? 4 : 5, n_y), *pre = numbers_of(t, t->k, 6, n_y);
    void *va = stored(t, t->k, a, n_a), *vb = stored(t, t->k, b, n_b), *v_bias = form & WITH_BIAS ? stored(t, t->k, bias, p->n) : NULL;
    void *vy = stored(t, t->k, y, n_y), *v_pre = form & WITH_PRE ? stored(t, t->k, pre, n_y) : NULL;
    void *v_residual = form & IN_PLACE ? vy : form & WITH_RESIDUAL ? stored(t, t->k, residual, n_y) : NULL;
    wanted_after(p, form, a, b, bias, residual, pre, y);
    r.workspace = is_wide(t) ? NULL : workspace_of(t, MPP_GEMM_HALF_WORKSPACE);
    if (is_wide(t) && (form & WITH_GELU))
        CALL(t, mpp_gemm_gelu, &r, p->trans_a, p->trans_b, p->m, p->n, p->k, va, p->lda, vb, p->ldb, v_bias, v_pre, vy, p->ldc);
    else if (is_wide(t))
        CALL(t, mpp_gemm_add, &r, p->trans_a, p->trans_b, p->m, p->n, p->k, va, p->lda, vb, p->ldb, v_bias, v_residual, vy, p->ldc);
    else if (form & WITH_GELU)
        CALL(t, mpp_gemm_gelu_half, &r, t->k->type, p->trans_a, p->trans_b, p->m, p->n, p->k, va, p->lda, vb, p->ldb, v_bias, v_pre, vy,
             p->ldc);
    else
        CALL(t, mpp_gemm_add_half, &r, t->k->type, p->trans_a, p->trans_b, p->m, p->n, p->k, va, p->lda, vb, p->ldb, v_bias, v_residual, vy,
             p->ldc);
    double tolerance = is_wide(t) ? 4e-6 : TWICE_ROUNDED * t->k->unit + 4e-6;
    check_stored(t, "gemm and what follows", t->k, vy, y, n_y, tolerance);
    if (v_pre != NULL)
        check_stored(t, "gemm, what GELU is of", t->k, v_pre, pre, n_y, tolerance);
    end_trial(t);
}

/* CUDA's: by an epilogue, and where the shim's cuBLASLt has none; it says so when it is asked (unaligned arrays) or when it multiplies. */
static void test_after(struct trial *t)
{
    static const int forms[] = {WITH_BIAS, WITH_RESIDUAL, WITH_BIAS | WITH_RESIDUAL, WITH_BIAS | IN_PLACE, IN_PLACE, 0, WITH_GELU,
                                WITH_GELU | WITH_BIAS, WITH_GELU | WITH_PRE, WITH_GELU | WITH_BIAS | WITH_PRE};
    const int64_t dims[4][3] = {{t->n, 33, 31}, {3, t->n, 33}, {31, 3, t->n}, {t->n, 8, 0}};
    for (int refused = t->shift; refused < 2; refused++) {
        if (refused)
            setenv("MPP_SHIM_EPILOGUES", "0", 1);
        for (int f = 0; f < COUNT(forms); f++)
            for (int d = 0; d < 4; d++) {
                struct product p = {.m = dims[d][0], .n = dims[d][1], .k = dims[d][2], .trans_a = f & 1, .trans_b = f >> 1 & 1};
                p.lda = (p.trans_a ? p.m : p.k) + 1;
                p.ldb = (p.trans_b ? p.k : p.n) + d;
                p.ldc = p.n + ((f + d) % 3 == 2); /* else a multiple of 8 now and then, as cuBLASLt wants it of PRE */
                run_after(t, &p, forms[f]);
            }
        unsetenv("MPP_SHIM_EPILOGUES");
    }
}

/* "bij,bkj->bki": no single product; one more is stored of J and K than is valid. */
static void run_einsum(struct trial *t, int64_t nb, int64_t ni, int64_t nj, int64_t nk, bool wide_c)
{
    const int64_t a_dims[] = {nb, ni, nj + 1}, b_dims[] = {nb, nk + 1, nj + 1}, c_dims[] = {nb, nk + 1, ni}, valid[] = {nb, ni, nj, nk};
    int64_t n_a = nb * ni * (nj + 1), n_b = nb * (nk + 1) * (nj + 1), n_c = nb * (nk + 1) * ni;
    const struct kind *kc = wide_c ? wide : t->k;
    struct mpp_rank r = {.n_ranks = 1, .n_threads = 1};
    double *a = numbers_of(t, t->k, 4, n_a), *b = numbers_of(t, t->k, 5, n_b), *c = numbers_of(t, kc, 6, n_c);
    for (int64_t i = 0; i < n_a; i++)
        a[i] = i % (nj + 1) == nj ? (double)NAN : a[i];
    for (int64_t i = 0; i < n_b; i++)
        b[i] = i % (nj + 1) == nj || i / (nj + 1) % (nk + 1) == nk ? (double)NAN : b[i];
    void *va = stored(t, t->k, a, n_a), *vb = stored(t, t->k, b, n_b), *vc = stored(t, kc, c, n_c);
    for (int64_t i = 0; i < n_c; i++) {
        int64_t at_b = i / ni / (nk + 1), at_k = i / ni % (nk + 1), at_i = i % ni;
        if (at_k == nk)
            c[i] = (double)NAN;
        for (int64_t j = 0; j < nj && at_k < nk; j++)
            c[i] += a[(at_b * ni + at_i) * (nj + 1) + j] * b[(at_b * (nk + 1) + at_k) * (nj + 1) + j];
    }
    if (is_wide(t)) {
        CALL(t, mpp_einsum, &r, "bij,bkj->bki", va, a_dims, vb, b_dims, 1.0f, vc, c_dims, valid);
    } else {
        r.workspace = workspace_of(t, 4 * (n_a + n_b + n_c));
        CALL(t, mpp_einsum_half, &r, t->k->type, kc->type, "bij,bkj->bki", va, a_dims, vb, b_dims, 1.0f, vc, c_dims, valid);
    }
    check_stored(t, "einsum", kc, vc, c, n_c, 4e-6);
    end_trial(t);
}

static void test_einsum(struct trial *t)
{
    run_einsum(t, t->n, 3, 5, 3, false);
    run_einsum(t, 3, t->n, 5, 31, true);
    run_einsum(t, 1, 33, t->n, 3, false);
    run_einsum(t, 3, 1, 31, t->n, true);
}

/* ---- rows: norms, softmax, cross entropy, whole or with columns split over ranks --------------------------- */

enum { IGNORED = -7 };

struct rows {
    struct trial t; /* each rank has its own copy */
    int64_t rows, cols;
    unsigned mask;
    double *x, *dy, *gamma, *beta, *mean, *rstd, *y, *dx, *dgamma, *dbeta; /* norm */
    double *soft, *soft_stored, *dsoft, *lse, *dlogits, loss, n_labels;
    int32_t *labels;
};

static void reference_norm(struct rows *s)
{
    for (int64_t i = 0; i < s->rows; i++) {
        const double *x = s->x + i * s->cols, *dy = s->dy + i * s->cols;
        double n = (double)s->cols, mean = 0, var = 0, g1 = 0, g2 = 0;
        for (int64_t j = 0; j < s->cols; j++)
            mean += x[j] / n;
        for (int64_t j = 0; j < s->cols; j++)
            var += (x[j] - mean) * (x[j] - mean) / n;
        double rstd = 1 / sqrt(var + 1e-2);
        for (int64_t j = 0; j < s->cols; j++) {
            double hat = (x[j] - mean) * rstd, g = dy[j] * s->gamma[j];
            g1 += g / n;
            g2 += g * hat / n;
            s->y[i * s->cols + j] = hat * s->gamma[j] + s->beta[j];
            s->dgamma[j] += dy[j] * hat;
            s->dbeta[j] += dy[j];
        }
        for (int64_t j = 0; j < s->cols; j++)
            s->dx[i * s->cols + j] = (dy[j] * s->gamma[j] - g1 - (x[j] - mean) * rstd * g2) * rstd;
        s->mean[i] = mean;
        s->rstd[i] = rstd;
    }
}

static void reference_softmax(struct rows *s)
{
    for (int64_t i = 0; i < s->rows; i++) {
        const double *x = s->x + i * s->cols;
        double sum = 0, dot = 0;
        bool counts = s->labels[i] != IGNORED;
        for (int64_t j = 0; j < s->cols; j++)
            sum += exp(x[j]);
        s->lse[i] = log(sum);
        s->loss += counts ? 0.125 * (s->lse[i] - x[s->labels[i]]) : 0;
        s->n_labels += counts;
        for (int64_t j = 0; j < s->cols; j++) {
            int64_t at = i * s->cols + j;
            s->soft[at] = exp(x[j]) / sum;
            s->soft_stored[at] = rounded_to(s->t.k, s->soft[at]);
            s->dlogits[at] = counts ? (s->soft[at] - (j == s->labels[i])) * 0.125 * 0.75 : 0;
            dot += s->soft_stored[at] * s->dy[at];
        }
        for (int64_t j = 0; j < s->cols; j++)
            s->dsoft[i * s->cols + j] = s->soft_stored[i * s->cols + j] * (s->dy[i * s->cols + j] - dot);
    }
}

/* This rank's columns of the rows X, FILL beside them. */
static void *columns(struct trial *t, const struct kind *k, const struct mpp_extent *c, int64_t rows, const double *x, double fill)
{
    void *out = room(t, k, rows * c->padded);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < c->padded; j++)
            store_at(k, out, i * c->padded + j, j < c->valid ? x[i * c->global + c->offset + j] : fill);
    return out;
}

static void check_columns(struct trial *t, const char *what, const struct kind *k, const struct mpp_extent *c, int64_t rows,
                          const void *got, const double *want, double tolerance)
{
    double *local = zeros(t, rows * c->padded);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < c->padded; j++)
            local[i * c->padded + j] = j < c->valid ? want[i * c->global + c->offset + j] : (double)NAN;
    check_stored(t, what, k, got, local, rows * c->padded, tolerance);
}

static void norm_rows(struct mpp_rank *r, const struct rows *s, struct trial *t, struct mpp_extent c)
{
    const struct kind *k = t->k;
    struct mpp_space space = {1, {s->rows}, {s->rows}};
    void *x = columns(t, k, &c, s->rows, s->x, (double)NAN), *dy = columns(t, k, &c, s->rows, s->dy, (double)NAN);
    void *y = room(t, k, s->rows * c.padded), *dx = room(t, k, s->rows * c.padded);
    float *gamma = columns(t, wide, &c, 1, s->gamma, 0), *beta = columns(t, wide, &c, 1, s->beta, 0);
    float *mean = room(t, wide, s->rows), *rstd = room(t, wide, s->rows);
    float *dgamma = room(t, wide, c.padded), *dbeta = room(t, wide, c.padded);
    if (is_wide(t)) {
        CALL(t, mpp_layernorm_forward, r, s->mask, s->rows, c, 1e-2f, x, gamma, beta, y, mean, rstd);
        CALL(t, mpp_layernorm_backward, r, s->mask, &space, c, x, gamma, mean, rstd, dy, dx, dgamma, dbeta);
    } else {
        r->workspace = workspace_of(t, CALL(t, mpp_rows_half_workspace, c.padded));
        CALL(t, mpp_layernorm_forward_half, r, k->type, s->mask, s->rows, c, 1e-2f, x, gamma, beta, y, mean, rstd);
        CALL(t, mpp_layernorm_backward_half, r, k->type, s->mask, &space, c, x, gamma, mean, rstd, dy, dx, dgamma, dbeta);
    }
    check_columns(t, "layernorm", k, &c, s->rows, y, s->y, 4e-6);
    check_stored(t, "layernorm's means", wide, mean, s->mean, s->rows, 1e-6);
    check_stored(t, "layernorm's deviations", wide, rstd, s->rstd, s->rows, 4e-6);
    check_columns(t, "layernorm's dx", k, &c, s->rows, dx, s->dx, 1e-5);
    check_columns(t, "layernorm's dgamma", wide, &c, 1, dgamma, s->dgamma, 1e-5);
    check_columns(t, "layernorm's dbeta", wide, &c, 1, dbeta, s->dbeta, 4e-6);
    end_trial(t);
}

static void softmax_rows(struct mpp_rank *r, const struct rows *s, struct trial *t, struct mpp_extent c)
{
    const struct kind *k = t->k;
    void *x = columns(t, k, &c, s->rows, s->x, 3e4), *dy = columns(t, k, &c, s->rows, s->dy, (double)NAN);
    void *y = room(t, k, s->rows * c.padded), *dx = room(t, k, s->rows * c.padded);
    void *soft = columns(t, k, &c, s->rows, s->soft_stored, (double)NAN);
    if (is_wide(t)) {
        CALL(t, mpp_softmax_forward, r, s->mask, s->rows, c, x, y);
        CALL(t, mpp_softmax_backward, r, s->mask, s->rows, c, soft, dy, dx);
    } else {
        r->workspace = workspace_of(t, mpp_rows_half_workspace(c.padded));
        CALL(t, mpp_softmax_forward_half, r, k->type, s->mask, s->rows, c, x, y);
        CALL(t, mpp_softmax_backward_half, r, k->type, s->mask, s->rows, c, soft, dy, dx);
    }
    check_columns(t, "softmax", k, &c, s->rows, y, s->soft, 1e-6);
    check_columns(t, "softmax's gradient", k, &c, s->rows, dx, s->dsoft, 2e-6);
    end_trial(t);
}

static void loss_rows(struct mpp_rank *r, const struct rows *s, struct trial *t, struct mpp_extent c)
{
    const struct kind *k = t->k;
    struct mpp_space space = {1, {s->rows}, {s->rows}};
    void *x = columns(t, k, &c, s->rows, s->x, 3e4), *dx = room(t, k, s->rows * c.padded);
    float *lse = room(t, wide, s->rows), *loss = room(t, wide, 1), *count = room(t, wide, 1);
    float *scale = stored(t, wide, (const double[]){0.125}, 1), *dloss = stored(t, wide, (const double[]){0.75}, 1);
    int32_t *labels = stored_ints(t, s->labels, s->rows);
    CALL(t, mpp_count_labels, r, &space, IGNORED, labels, count);
    if (is_wide(t)) {
        CALL(t, mpp_cross_entropy_forward, r, s->mask, &space, c, IGNORED, x, labels, scale, lse, loss);
        CALL(t, mpp_cross_entropy_backward, r, &space, c, IGNORED, x, labels, lse, scale, dloss, dx);
    } else {
        r->workspace = workspace_of(t, mpp_rows_half_workspace(c.padded));
        CALL(t, mpp_cross_entropy_forward_half, r, k->type, s->mask, &space, c, IGNORED, x, labels, scale, lse, loss);
        CALL(t, mpp_cross_entropy_backward_half, r, k->type, &space, c, IGNORED, x, labels, lse, scale, dloss, dx);
    }
    if (s->mask)
        mpp_all_reduce(r, s->mask, loss, 1, MPP_REDUCE_SUM);
    check_stored(t, "labels", wide, count, &s->n_labels, 1, 0);
    check_stored(t, "loss", wide, loss, &s->loss, 1, 1e-6);
    check_stored(t, "logs of sums", wide, lse, s->lse, s->rows, 1e-6);
    check_columns(t, "loss's gradient", k, &c, s->rows, dx, s->dlogits, 1e-6);
    end_trial(t);
}

static void rows_body(struct mpp_rank *r, void *arg)
{
    const struct rows *s = arg;
    struct trial t = s->t;
    struct mpp_extent c = mpp_extent_of(r, s->cols, s->mask);
    t.n_blocks = t.n_numbers = 0;
    norm_rows(r, s, &t, c);
    softmax_rows(r, s, &t, c);
    loss_rows(r, s, &t, c);
}

static void run_rows(struct trial *t, int64_t rows, int64_t cols, int ranks)
{
    struct rows s = {.t = *t, .rows = rows, .cols = cols, .mask = ranks > 1};
    int64_t n = rows * cols;
    double **of_all[] = {&s.y, &s.dx, &s.soft, &s.soft_stored, &s.dsoft, &s.dlogits};
    for (int i = 0; i < COUNT(of_all); i++)
        *of_all[i] = zeros(t, n);
    s.x = numbers_of(t, t->k, 7, n), s.dy = numbers_of(t, t->k, 8, n);
    s.gamma = numbers_of(t, wide, 9, cols), s.beta = numbers_of(t, wide, 10, cols);
    s.dgamma = zeros(t, cols), s.dbeta = zeros(t, cols);
    s.mean = zeros(t, rows), s.rstd = zeros(t, rows), s.lse = zeros(t, rows);
    s.labels = malloc((size_t)rows * sizeof *s.labels);
    uint64_t seed = 11;
    for (int64_t i = 0; i < rows; i++)
        s.labels[i] = i % 5 == 3 ? IGNORED : (int32_t)random_below(&seed, cols);
    reference_norm(&s);
    reference_softmax(&s);
    run_mesh(1, &ranks, rows_body, &s);
    free(s.labels);
    end_trial(t);
}

static void test_rows(struct trial *t)
{
    run_rows(t, t->n, 33, 1);
    run_rows(t, 3, t->n, 1);
    run_rows(t, 5, t->n, 3); /* the vocabulary is split */
}

/* ---- tables ------------------------------------------------------------------------------------------------ */

struct table {
    struct trial t;
    int64_t rows, vocab, width;
    unsigned mask;
    int32_t *ids;
    double *table, *dy, *y, *dtable;
};

static void table_body(struct mpp_rank *r, void *arg)
{
    const struct table *s = arg;
    struct trial own = s->t, *t = &own;
    const struct kind *k = t->k;
    struct mpp_extent c = mpp_extent_of(r, s->vocab, s->mask);
    struct mpp_space space = {1, {s->rows}, {s->rows}};
    int64_t n = s->rows * s->width;
    t->n_blocks = t->n_numbers = 0;
    int32_t *ids = stored_ints(t, s->ids, s->rows);
    void *table = room(t, k, c.padded * s->width), *dy = stored(t, k, s->dy, n), *y = room(t, k, n);
    double *want_y = zeros(t, n), *want_d = zeros(t, c.padded * s->width);
    for (int64_t i = 0; i < c.padded * s->width; i++) {
        bool valid = i / s->width < c.valid;
        store_at(k, table, i, valid ? s->table[c.offset * s->width + i] : (double)NAN);
        want_d[i] = valid ? 2 * s->dtable[c.offset * s->width + i] : (double)NAN;
    }
    for (int64_t i = 0; i < n; i++)
        want_y[i] = s->ids[i / s->width] >= c.offset && s->ids[i / s->width] < c.offset + c.valid ? s->y[i] : 0;
    float *dtable = room(t, wide, c.padded * s->width);
    if (is_wide(t)) {
        CALL(t, mpp_embedding_forward, r, &space, c, s->width, ids, table, y);
        CALL(t, mpp_embedding_backward, r, &space, c, s->width, ids, dy, 0.0f, dtable);
        mpp_embedding_backward(r, &space, c, s->width, ids, dy, 1.0f, dtable);
    } else {
        r->workspace = workspace_of(t, mpp_rows_half_workspace(s->width));
        CALL(t, mpp_embedding_forward_half, r, &space, c, s->width, ids, table, y);
        CALL(t, mpp_embedding_backward_half, r, k->type, &space, c, s->width, ids, dy, 0.0f, dtable);
        mpp_embedding_backward_half(r, k->type, &space, c, s->width, ids, dy, 1.0f, dtable);
    }
    check_stored(t, "table's rows", k, y, want_y, n, 0);
    check_stored(t, "table's gradient", wide, dtable, want_d, c.padded * s->width, 4e-6);
    end_trial(t);
}

static void run_table(struct trial *t, int64_t rows, int64_t vocab, int64_t width, int ranks)
{
    struct table s = {.t = *t, .rows = rows, .vocab = vocab, .width = width, .mask = ranks > 1};
    s.table = numbers_of(t, t->k, 12, vocab * width), s.dy = numbers_of(t, t->k, 13, rows * width);
    s.y = zeros(t, rows * width), s.dtable = zeros(t, vocab * width);
    s.ids = malloc((size_t)rows * sizeof *s.ids);
    uint64_t seed = 14;
    for (int64_t i = 0; i < rows; i++) {
        s.ids[i] = (int32_t)random_below(&seed, vocab);
        for (int64_t j = 0; j < width; j++) {
            s.y[i * width + j] = s.table[s.ids[i] * width + j];
            s.dtable[s.ids[i] * width + j] += s.dy[i * width + j];
        }
    }
    run_mesh(1, &ranks, table_body, &s);
    free(s.ids);
    end_trial(t);
}

static void test_table(struct trial *t)
{
    run_table(t, t->n, 33, 3, 1);
    run_table(t, 31, t->n, 3, 3);
    run_table(t, 5, 3, t->n, 1);
}

/* ---- attention ---------------------------------------------------------------------------------------------- */

struct scores {
    int64_t batch, n, heads, dim;
    bool causal;
    double scale, *q, *k, *v, *dy, *y, *y_stored, *lse, *dq, *dk, *dv, *p;
    int32_t *mask;
};

static void reference_row(const struct kind *kind, struct scores *s, int64_t b, int64_t h, int64_t i)
{
    int64_t stride = s->heads * s->dim, first = b * s->n * stride + h * s->dim, at_i = first + i * stride;
    double sum = 0, dot = 0, *p = s->p;
    for (int64_t j = 0; j < s->n; j++) {
        double score = 0;
        for (int64_t e = 0; e < s->dim; e++)
            score += s->q[at_i + e] * s->k[first + j * stride + e];
        p[j] = (s->causal && j > i) || !s->mask[b * s->n + j] ? 0 : exp(s->scale * score);
        sum += p[j];
    }
    s->lse[(b * s->heads + h) * s->n + i] = log(sum);
    for (int64_t j = 0; j < s->n; j++) {
        p[j] /= sum;
        for (int64_t e = 0; e < s->dim; e++)
            s->y[at_i + e] += p[j] * s->v[first + j * stride + e];
    }
    for (int64_t e = 0; e < s->dim; e++) {
        s->y_stored[at_i + e] = rounded_to(kind, s->y[at_i + e]);
        dot += s->dy[at_i + e] * s->y_stored[at_i + e]; /* as the kernels, which keep no probabilities */
    }
    for (int64_t j = 0; j < s->n; j++) {
        double dp = 0;
        for (int64_t e = 0; e < s->dim; e++) {
            dp += s->dy[at_i + e] * s->v[first + j * stride + e];
            s->dv[first + j * stride + e] += p[j] * s->dy[at_i + e];
        }
        for (int64_t e = 0; e < s->dim; e++) {
            s->dq[at_i + e] += p[j] * (dp - dot) * s->scale * s->k[first + j * stride + e];
            s->dk[first + j * stride + e] += p[j] * (dp - dot) * s->scale * s->q[at_i + e];
        }
    }
}

static void run_attention(struct trial *t, int64_t dim, bool causal)
{
    struct scores s = {.batch = t->n < 100 ? 2 : 1, .n = t->n, .heads = t->n < 100 ? 3 : 1, .dim = dim, .causal = causal,
                       .scale = (double)(float)(1 / sqrt((double)dim))};
    struct mpp_rank r = {.n_ranks = 1, .n_threads = 1, .step = 1, .micro_batches = 1, .program = &test_program};
    struct mpp_attention a = {whole(s.batch), whole(s.n), whole(s.n), whole(s.heads), dim, (float)s.scale, 0, causal, 3};
    const struct kind *k = t->k;
    int64_t size = s.batch * s.n * s.heads * dim, rows = s.batch * s.heads * s.n;
    double **given[] = {&s.q, &s.k, &s.v, &s.dy}, **found[] = {&s.y, &s.y_stored, &s.dq, &s.dk, &s.dv};
    for (int i = 0; i < COUNT(given); i++)
        *given[i] = numbers_of(t, k, 15 + (uint64_t)i, size);
    for (int i = 0; i < COUNT(found); i++)
        *found[i] = zeros(t, size);
    s.lse = zeros(t, rows), s.p = zeros(t, s.n);
    s.mask = malloc((size_t)(s.batch * s.n) * sizeof *s.mask);
    for (int64_t i = 0; i < s.batch * s.n; i++)
        s.mask[i] = i % s.n == 0 || i % 7 != 3;
    for (int64_t row = 0; row < rows; row++)
        reference_row(k, &s, row / s.n / s.heads, row / s.n % s.heads, row % s.n);
    void *q = stored(t, k, s.q, size), *keys = stored(t, k, s.k, size), *v = stored(t, k, s.v, size), *dy = stored(t, k, s.dy, size);
    void *y = room(t, k, size), *dq = room(t, k, size), *dk = room(t, k, size), *dv = room(t, k, size);
    void *y_stored = stored(t, k, s.y_stored, size);
    float *lse = room(t, wide, rows), *lse_exact = stored(t, wide, s.lse, rows);
    int32_t *mask = stored_ints(t, s.mask, s.batch * s.n);
    if (is_wide(t)) {
        r.workspace = workspace_of(t, CALL(t, mpp_attention_workspace, &a));
        CALL(t, mpp_attention_forward, &r, &a, q, keys, v, mask, y, lse);
        CALL(t, mpp_attention_backward, &r, &a, q, keys, v, mask, y_stored, lse_exact, dy, dq, dk, dv);
    } else {
        r.workspace = workspace_of(t, CALL(t, mpp_attention_half_workspace, &a, false));
        CALL(t, mpp_attention_forward_half, &r, k->type, &a, q, keys, v, mask, y, lse);
        r.workspace = workspace_of(t, mpp_attention_half_workspace(&a, true));
        CALL(t, mpp_attention_backward_half, &r, k->type, &a, q, keys, v, mask, y_stored, lse_exact, dy, dq, dk, dv);
    }
    check_stored(t, "attention", k, y, s.y, size, 4e-6);
    check_stored(t, "attention's logs of sums", wide, lse, s.lse, rows, 2e-6);
    check_stored(t, "attention's dq", k, dq, s.dq, size, 1e-5);
    check_stored(t, "attention's dk", k, dk, s.dk, size, 1e-5);
    check_stored(t, "attention's dv", k, dv, s.dv, size, 1e-5);
    free(s.mask);
    end_trial(t);
}

/* Each size of heads beside another length; the longest with short heads, for its time. */
static void test_attention(struct trial *t)
{
    static const int64_t dims[N_SIZES] = {31, 33, 257, 1, 64, 3};
    run_attention(t, dims[t->size], false);
    run_attention(t, dims[t->size], true);
    run_attention(t, 8, true);
}

/* ---- optimisers and bytes: f32 alone, and any type -------------------------------------------------------- */

static void test_adamw(struct trial *t)
{
    struct mpp_rank r = {.n_ranks = 1, .n_threads = 1, .hyper = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8}};
    int64_t n = t->n;
    double *w = numbers_of(t, wide, 21, n), *m = zeros(t, n), *v = zeros(t, n);
    float *vw = stored(t, wide, w, n), *vm = stored(t, wide, m, n), *vv = stored(t, wide, v, n);
    float *scale = stored(t, wide, (const double[]){0.5}, 1);
    for (r.step = 1; r.step <= 4; r.step++) {
        double *g = numbers_of(t, wide, 22 + (uint64_t)r.step, n);
        bool scaled = r.step % 2;
        CALL(t, mpp_adamw, &r, n, 0.1f, scaled ? scale : NULL, stored(t, wide, g, n), vw, vm, vv);
        for (int64_t i = 0; i < n; i++) {
            double grad = g[i] * (scaled ? 0.5 : 1);
            w[i] *= 1 - 0.01 * (double)0.1f;
            m[i] = 0.9 * m[i] + 0.1 * grad;
            v[i] = 0.99 * v[i] + 0.01 * grad * grad;
            w[i] -= 0.01 * (m[i] / (1 - pow(0.9, (double)r.step))) / (sqrt(v[i] / (1 - pow(0.99, (double)r.step))) + 1e-8);
        }
    }
    check_stored(t, "adamw's parameters", wide, vw, w, n, 1e-6);
    check_stored(t, "adamw's m", wide, vm, m, n, 1e-6);
    check_stored(t, "adamw's v", wide, vv, v, n, 1e-6);
    end_trial(t);
}

static void test_sgd(struct trial *t)
{
    int64_t n = t->n;
    for (int form = 0; form < 3; form++) { /* plain, momentum, Nesterov */
        struct mpp_rank r = {.n_ranks = 1, .n_threads = 1, .hyper = {.lr = 0.1, .momentum = 0.9, .nesterov = form == 2}};
        double *w = numbers_of(t, wide, 31, n), *v = zeros(t, n);
        float *vw = stored(t, wide, w, n), *vv = stored(t, wide, v, n), *scale = stored(t, wide, (const double[]){0.25}, 1);
        for (r.step = 1; r.step <= 3; r.step++) {
            double *g = numbers_of(t, wide, 32 + (uint64_t)r.step, n);
            CALL(t, mpp_sgd, &r, n, 0.01f, scale, stored(t, wide, g, n), vw, form ? vv : NULL);
            for (int64_t i = 0; i < n; i++) {
                double grad = g[i] * 0.25 + (double)0.01f * w[i];
                v[i] = 0.9 * v[i] + grad;
                w[i] -= 0.1 * (form == 0 ? grad : form == 1 ? v[i] : grad + 0.9 * v[i]);
            }
        }
        check_stored(t, "sgd's parameters", wide, vw, w, n, 1e-6);
        if (form)
            check_stored(t, "sgd's velocity", wide, vv, v, n, 1e-6);
        end_trial(t);
    }
}

static void test_norms(struct trial *t)
{
    struct mpp_rank r = {.n_ranks = 1, .n_threads = 1, .hyper = {.clip_norm = 0.25}};
    struct mpp_space space = {2, {3, t->n + 1}, {3, t->n}}; /* padded */
    double *x = numbers_of(t, wide, 41, 3 * (t->n + 1)), square = 0;
    for (int64_t i = 0; i < 3 * (t->n + 1); i++) {
        if (i % (t->n + 1) == t->n)
            x[i] = (double)NAN;
        else
            square += x[i] * x[i];
    }
    float *vx = stored(t, wide, x, 3 * (t->n + 1)), *sum = room(t, wide, 1), *norm = room(t, wide, 1), *factor = room(t, wide, 1);
    CALL(t, mpp_square_sum, &r, &space, vx, sum);
    CALL(t, mpp_clip_scale, &r, sum, norm, factor);
    const double root = sqrt(square), limit = fmin(1, 0.25 / root);
    check_stored(t, "sum of squares", wide, sum, &square, 1, 1e-6);
    check_stored(t, "norm", wide, norm, &root, 1, 1e-6);
    check_stored(t, "clipping", wide, factor, &limit, 1, 1e-6);

    float *scale = stored(t, wide, (const double[]){4}, 1), *good = stored(t, wide, (const double[]){1}, 1);
    float *skipped = stored(t, wide, (const double[]){2}, 1);
    const double true_norm = root / 4, scaled_limit = fmin(1, 0.25 / true_norm) / 4, want[] = {8, 0, 2};
    CALL(t, mpp_loss_scale, &r, true, 2, sum, norm, factor, scale, good, skipped);
    check_stored(t, "the true norm", wide, norm, &true_norm, 1, 1e-6);
    check_stored(t, "clipping under a scale", wide, factor, &scaled_limit, 1, 1e-6);
    check_stored(t, "the scale", wide, scale, &want[0], 1, 0);
    check_stored(t, "good steps", wide, good, &want[1], 1, 0);
    check_stored(t, "skipped steps", wide, skipped, &want[2], 1, 0);
    check(r.skipped == 2, "skipped steps of the rank");
    end_trial(t);
}

static void test_bytes(struct trial *t)
{
    struct mpp_rank r = {.n_ranks = 1, .n_threads = 1};
    double *x = numbers_of(t, t->k, 51, t->n), *nothing = zeros(t, t->n);
    void *from = stored(t, t->k, x, t->n), *to = room(t, t->k, t->n), *gone = stored(t, t->k, x, t->n);
    CALL(t, mpp_copy, &r, to, from, (size_t)(t->n * t->k->bytes));
    CALL(t, mpp_zero, &r, gone, (size_t)(t->n * t->k->bytes));
    mpp_copy(&r, from, from, (size_t)(t->n * t->k->bytes));
    void *there = room(t, t->k, t->n), *back = room(t, t->k, t->n);
    CALL(t, mpp_device_put, &r, there, from, (size_t)(t->n * t->k->bytes));
    CALL(t, mpp_device_get, &r, back, there, (size_t)(t->n * t->k->bytes));
    CALL(t, mpp_device_synchronize, &r);
    check_stored(t, "put and got", t->k, back, x, t->n, 0);
    check_stored(t, "copy", t->k, to, x, t->n, 0);
    check_stored(t, "copy onto itself", t->k, from, x, t->n, 0);
    check_stored(t, "zero", t->k, gone, nothing, t->n, 0);
    end_trial(t);
}

int main(void)
{
#ifndef MPP_CONFORMANCE_GPU
    setenv("MPP_GELU_EPILOGUE", "1", 1); /* where PRE allows it; elsewhere GELU follows the epilogue of the bias */
#endif
    for (int i = 0; i < N_TRIALS; i++) {
        struct trial t = trial_at(i);
        test_gemm(&t);
        test_after(&t);
        test_einsum(&t);
        test_rows(&t);
        test_table(&t);
        test_attention(&t);
        test_bytes(&t);
        if (is_wide(&t)) {
            test_adamw(&t);
            test_sgd(&t);
            test_norms(&t);
        }
    }
    return report_coverage();
}
