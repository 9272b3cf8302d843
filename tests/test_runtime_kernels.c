/* The host kernels against plain float64 references: contractions, norms, softmax, cross entropy, embedding,
 * optimisers, elementary functions and random numbers; split rows over meshes of one to three axes. */
#include "kernels_testing.h"
#include "mpp_math.h"

/* ---- random numbers and elementary functions ---------------------------------------------------------- */

static void test_philox(void)
{
    static const uint32_t known[3][10] = {
        /* counter, key, result: the known answers of Random123 */
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
         0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t c[4];
        memcpy(c, known[i], sizeof c);
        mpp_philox(c, known[i][4], known[i][5]);
        check(memcmp(c, known[i] + 6, sizeof c) == 0, "philox known answer");
    }
    struct mpp_rank r = {.seed = 0x299f31d0a4093822u, .step = 0x03707344};
    float u = mpp_uniform(&r, 0x13198a2e, 0x85a308d3243f6a88u);
    check(u == (float)(0xd16cfe09u >> 8) * 0x1p-24f, "uniform of the known answer");
    float row[64];
    uint64_t start = 0x4ffffffe0u;
    double sum = 0;
    mpp_uniform_row(r.seed, r.step, 7, start, 64, row);
    for (int i = 0; i < 64; i++)
        check(row[i] == mpp_uniform(&r, 7, start + (uint64_t)i), "a row carries into the high word");
    for (int i = 0; i < 100000; i++)
        sum += mpp_uniform(&r, 7, (uint64_t)i);
    check(fabs(sum / 100000 - 0.5) < 0.004, "mean of the uniform numbers");
    struct mpp_rank s = {.program = &test_program, .micro_batch = 1};
    check(mpp_first_sample(&s) == 32, "first sample of a micro-batch");
}

static double ref_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double ref_gelu_tanh(double x)
{
    return x * ref_sigmoid(2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
}

static double ref_gelu_erf(double x)
{
    return 0.5 * x * erfc(-x / sqrt(2));
}

static double slope_of(double (*f)(double), double x)
{
    return (f(x + 1e-4) * 8 - f(x - 1e-4) * 8 - f(x + 2e-4) + f(x - 2e-4)) / 12e-4;
}

static double ref_gelu_tanh_grad(double x)
{
    return slope_of(ref_gelu_tanh, x);
}

static double ref_gelu_erf_grad(double x)
{
    return slope_of(ref_gelu_erf, x);
}

static void test_math(void)
{
    static const struct {
        const char *name;
        float (*f)(float);
        double (*ref)(double);
        float low, high, relative, absolute, at_plus, at_minus;
    } t[] = {
        {"exp", mpp_expf, exp, -87, 88.7f, 1.5e-7f, 0, INFINITY, 0},
        {"exp, subnormal", mpp_expf, exp, -103, -87, 0, 3e-45f, INFINITY, 0},
        {"tanh", mpp_tanhf, tanh, -20, 20, 2.5e-7f, 0, 1, -1},
        {"erf", mpp_erff, erf, -6, 6, 2.5e-7f, 0, 1, -1},
        {"sigmoid", mpp_sigmoidf, ref_sigmoid, -80, 80, 4e-7f, 0, 1, 0},
        {"gelu tanh", mpp_gelu_tanh, ref_gelu_tanh, -15, 15, 2.5e-7f, 1e-7f, INFINITY, 0},
        {"gelu tanh'", mpp_gelu_tanh_grad, ref_gelu_tanh_grad, -15, 15, 3e-7f, 3e-7f, 1, 0},
        {"gelu erf", mpp_gelu_erf, ref_gelu_erf, -15, 15, 2.5e-7f, 3e-7f, INFINITY, 0},
        {"gelu erf'", mpp_gelu_erf_grad, ref_gelu_erf_grad, -15, 15, 3e-7f, 3e-7f, 1, 0},
    };
    for (int k = 0; k < COUNT(t); k++) {
        bool ok = true;
        for (int i = 0; i <= 20000; i++) {
            float x = t[k].low + (t[k].high - t[k].low) * (float)i / 20000.0f;
            double want = t[k].ref(x), error = fabs((double)t[k].f(x) - want);
            ok = ok && error <= (double)t[k].relative * fabs(want) + (double)t[k].absolute;
        }
        check(ok, t[k].name);
        check(t[k].f(INFINITY) == t[k].at_plus && t[k].f(-INFINITY) == t[k].at_minus, t[k].name);
        check(isnan(t[k].f(NAN)), t[k].name);
        check(t[k].f(-3e38f) == t[k].at_minus, t[k].name);
    }
    check(mpp_expf(0) == 1 && mpp_tanhf(0) == 0 && mpp_erff(0) == 0, "exact values");
    check(mpp_expf(89) == INFINITY && mpp_expf(-200) == 0, "exp over its range");
}

/* ---- extents ------------------------------------------------------------------------------------------ */

static void test_extents(void)
{
    int sizes[3] = {3, 2, 4};
    for (int64_t n = 0; n < 60; n++)
        for (unsigned mask = 0; mask < 8; mask++) {
            int64_t total = 0, next = 0, copies = 1, widest = 0;
            bool in_order = true, equal = true;
            for (int k = 0; k < 24; k++) {
                struct mpp_rank r = {.n_axes = 3, .axis_size = {3, 2, 4}, .coord = {k / 8, k / 4 % 2, k % 4}};
                struct mpp_extent e = mpp_extent_of(&r, n, mask);
                bool first_copy = true;
                for (int a = 0; a < 3; a++)
                    if (!(mask >> a & 1) && r.coord[a] > 0)
                        first_copy = false;
                widest = k == 0 ? e.padded : widest;
                equal = equal && e.padded == widest && e.global == n && e.valid >= 0 && e.valid <= e.padded;
                if (!first_copy)
                    continue;
                in_order = in_order && (e.valid == 0 || e.offset == next);
                next += e.valid;
                total += e.valid;
                equal = equal && (k > 0 || e.valid == widest);
            }
            for (int a = 0; a < 3; a++)
                copies *= mask >> a & 1 ? 1 : sizes[a];
            check(total == n && in_order && equal && copies > 0, "blocks partition the dimension");
        }
    struct mpp_rank r = {.n_axes = 2, .axis_size = {2, 3}, .coord = {1, 1}};
    struct mpp_extent e = mpp_extent_of(&r, 10, 3); /* 5 + 5, then 2 + 2 + 1 */
    check(e.padded == 2 && e.valid == 2 && e.offset == 7, "nested blocks");
}

/* ---- contractions -------------------------------------------------------------------------------------- */

static void test_gemm(void)
{
    static const int64_t sizes[] = {0, 1, 3, 31, 33, 257};
    struct mpp_rank r = {0};
    for (int c = 0; c < 6 * 6 * 6; c++) {
        int64_t m = sizes[c / 36], n = sizes[c / 6 % 6], k = sizes[c % 6];
        bool ta = c & 1, tb = c >> 1 & 1;
        float beta = c % 3 == 0 ? 1.0f : 0.0f;
        int64_t lda = (ta ? m : k) + 3, ldb = (tb ? k : n) + 2, ldc = n + 1;
        float *a = random_floats(1, (ta ? k : m) * lda), *b = random_floats(2, (tb ? n : k) * ldb);
        float *x = beta != 0 ? random_floats(3, m * ldc) : floats(m * ldc), *got = floats(m * n);
        double *want = doubles(m * n);
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                double sum = beta != 0 ? x[i * ldc + j] : 0;
                for (int64_t l = 0; l < k; l++)
                    sum += (double)(ta ? a[l * lda + i] : a[i * lda + l]) *
                           (double)(tb ? b[j * ldb + l] : b[l * ldb + j]);
                want[i * n + j] = sum;
            }
        mpp_gemm(&r, ta, tb, m, n, k, a, lda, b, ldb, beta, x, ldc);
        for (int64_t i = 0; i < m; i++)
            memcpy(got + i * n, x + i * ldc, (size_t)n * sizeof *got);
        check_close("gemm", got, want, m * n, 2e-6);
        free(a), free(b), free(x), free(got), free(want);
    }
}

struct einsum_case {
    char equation[32];
    char letters[18];
    int n_letters, n_dims[3];
    int64_t padded[18], valid[18], dims[3][MPP_MAX_DIMS], size[3];
};

static int letter_at(const struct einsum_case *e, char letter)
{
    return (int)(strchr(e->letters, letter) - e->letters);
}

/* Reads the equation's terms; PADDED and VALID are in order of first appearance. */
static void describe(struct einsum_case *e)
{
    int term = 0;
    for (int t = 0; t < 3; t++) {
        e->size[t] = 1;
        e->n_dims[t] = 0;
    }
    for (const char *p = e->equation; *p; p++) {
        if (*p == ',' || *p == '-') {
            term++;
            p += *p == '-';
            continue;
        }
        int64_t n = e->padded[letter_at(e, *p)];
        e->dims[term][e->n_dims[term]++] = n;
        e->size[term] *= n;
    }
}

/* Offset of term T at the letters' indices AT. */
static int64_t offset_in(const struct einsum_case *e, int t, const int64_t *at)
{
    const char *p = e->equation;
    for (int term = 0; term < t; term++)
        p = strpbrk(p, ",>") + 1;
    int64_t offset = 0;
    for (; *p && *p != ',' && *p != '-'; p++)
        offset = offset * e->padded[letter_at(e, *p)] + at[letter_at(e, *p)];
    return offset;
}

/* Calls F at every valid index of all letters. */
static void reference_einsum(const struct einsum_case *e, const float *a, const float *b, double *c, bool *set)
{
    int64_t at[18] = {0};
    for (int i = 0; i < e->n_letters; i++)
        if (e->valid[i] == 0)
            return;
    for (;;) {
        int64_t z = offset_in(e, 2, at);
        c[z] += (double)a[offset_in(e, 0, at)] * (double)b[offset_in(e, 1, at)];
        set[z] = true;
        int i = e->n_letters - 1;
        while (i >= 0 && ++at[i] == e->valid[i])
            at[i--] = 0;
        if (i < 0)
            return;
    }
}

/* True where all of term T's letters are below their valid extents. */
static bool is_valid(const struct einsum_case *e, int t, int64_t i)
{
    const char *p = e->equation;
    for (int term = 0; term < t; term++)
        p = strpbrk(p, ",>") + 1;
    for (int d = e->n_dims[t] - 1; d >= 0; d--) {
        int letter = letter_at(e, p[d]);
        if (i % e->padded[letter] >= e->valid[letter])
            return false;
        i /= e->padded[letter];
    }
    return true;
}

static void check_einsum(struct einsum_case *e)
{
    struct mpp_rank r = {0};
    describe(e);
    float *x[3];
    for (int t = 0; t < 3; t++)
        x[t] = random_floats((uint64_t)t + 5, e->size[t]);
    for (int t = 0; t < 2; t++)
        for (int64_t i = 0; i < e->size[t]; i++)
            if (!is_valid(e, t, i))
                x[t][i] = NAN;
    for (int beta = 0; beta < 2; beta++) {
        double *want = doubles(e->size[2]);
        bool *set = calloc((size_t)e->size[2] + 1, sizeof *set);
        float *got = floats(e->size[2]);
        if (beta)
            memcpy(got, x[2], (size_t)e->size[2] * sizeof *got);
        reference_einsum(e, x[0], x[1], want, set);
        mpp_einsum(&r, e->equation, x[0], e->dims[0], x[1], e->dims[1], (float)beta, got, e->dims[2], e->valid);
        for (int64_t i = 0; i < e->size[2]; i++) {
            if (is_valid(e, 2, i))
                want[i] += beta ? (double)x[2][i] : 0;
            else
                got[i] = 0, want[i] = 0;
        }
        check_close(e->equation, got, want, e->size[2], 2e-6);
        free(want), free(set), free(got);
    }
    for (int t = 0; t < 3; t++)
        free(x[t]);
}

static void test_einsum_of_models(void)
{
    static const char *equations[] = {
        "bsh,hd->bsd",       "bsh,htnd->bstnd", "bsnd,ndh->bsh",    "bsd,hd->bsh",     "bsh,bsd->hd",
        "bsh,bstnd->htnd",   "bqnd,bknd->bnqk", "bnqk,bknd->bqnd",  "bnqk,bqnd->bknd", "ebch,ehf->ebcf",
        "i,i->",             "i,j->ij",         "ij,j->i",          "ij,i->j",         "bs,bs->bs",
        "shb,hdb->sdb",      "bstnd,htnd->bsh", "abcde,edfgh->abcfgh",
    };
    static const int64_t padded[] = {3, 33, 31, 5, 2, 7, 4, 3}, cuts[] = {0, 1, 1, 2, 0, 3, 0, 1};
    for (int q = 0; q < COUNT(equations); q++)
        for (int variant = 0; variant < 6; variant++) {
            struct einsum_case e = {0};
            strcpy(e.equation, equations[q]);
            for (const char *p = e.equation; *p; p++)
                if (*p >= 'a' && !strchr(e.letters, *p)) {
                    int i = e.n_letters++, from = (i + variant) % COUNT(padded);
                    e.letters[i] = *p;
                    e.padded[i] = padded[from];
                    e.valid[i] = padded[from] - (variant == 0 ? 0 : cuts[(from + variant) % COUNT(cuts)]);
                    e.valid[i] = e.valid[i] < 0 ? 0 : e.valid[i];
                }
            check_einsum(&e);
        }
}

static void test_random_einsums(void)
{
    uint64_t seed = 11;
    for (int round = 0; round < 600; round++) {
        struct einsum_case e = {0};
        char term[3][8] = {"", "", ""};
        int n = 1 + (int)random_below(&seed, 6);
        for (int i = 0; i < n; i++) {
            static const unsigned classes[4] = {3, 5, 6, 7};
            unsigned in = classes[random_below(&seed, 4)];
            for (int t = 0; t < 3; t++) {
                if (!(in >> t & 1))
                    continue;
                size_t length = strlen(term[t]), at = (size_t)random_below(&seed, (int64_t)length + 1);
                memmove(term[t] + at + 1, term[t] + at, length - at);
                term[t][at] = (char)('a' + i);
            }
        }
        snprintf(e.equation, sizeof e.equation, "%s,%s->%s", term[0], term[1], term[2]);
        for (const char *p = e.equation; *p; p++)
            if (*p >= 'a' && !strchr(e.letters, *p)) {
                int i = e.n_letters++;
                e.letters[i] = *p;
                e.padded[i] = 1 + random_below(&seed, 6);
                e.valid[i] = random_below(&seed, 3) ? e.padded[i] : random_below(&seed, e.padded[i] + 1);
            }
        check_einsum(&e);
    }
}

/* ---- rows: a [rows0, rows1, cols] array, any dimension split -------------------------------------------- */

struct row_case {
    int n_axes, sizes[3];
    struct shape shape;
};

static const struct row_case row_cases[] = {
    {1, {1}, {3, {2, 3, 1}, {0, 0, 0}}},          {1, {1}, {3, {3, 31, 257}, {0, 0, 0}}},
    {1, {3}, {3, {2, 5, 33}, {0, 0, 1}}},         {2, {2, 3}, {3, {3, 7, 31}, {1, 0, 2}}},
    {2, {2, 3}, {3, {3, 7, 257}, {0, 0, 3}}},     {3, {2, 2, 3}, {3, {2, 3, 100}, {0, 0, 7}}},
    {3, {2, 2, 3}, {3, {3, 1100, 13}, {2, 1, 4}}}, {3, {2, 2, 2}, {3, {5, 3, 3}, {1, 2, 4}}},
    {2, {4, 2}, {3, {2, 3, 5}, {2, 0, 1}}},       {2, {2, 2}, {3, {2, 1, 300}, {3, 0, 0}}},
};

struct row_data {
    const struct row_case *c;
    int64_t n, rows, cols;
    struct shape row_shape, col_shape;
    float *x, *dy, *gamma, *beta;
    double *y, *mean, *rstd, *dx, *dgamma, *dbeta;
};

static struct row_data row_data_of(const struct row_case *c)
{
    struct row_data t = {.c = c, .n = shape_size(&c->shape), .cols = c->shape.dims[2]};
    t.rows = t.n / t.cols;
    t.row_shape = c->shape;
    t.row_shape.n_dims = 2;
    t.col_shape = (struct shape){1, {t.cols}, {c->shape.split[2]}};
    t.x = random_floats(21, t.n);
    t.dy = random_floats(22, t.n);
    t.gamma = random_floats(23, t.cols);
    t.beta = random_floats(24, t.cols);
    t.y = doubles(t.n), t.dx = doubles(t.n);
    t.mean = doubles(t.rows), t.rstd = doubles(t.rows);
    t.dgamma = doubles(t.cols), t.dbeta = doubles(t.cols);
    return t;
}

static void free_row_data(struct row_data *t)
{
    free(t->x), free(t->dy), free(t->gamma), free(t->beta), free(t->y), free(t->mean), free(t->rstd);
    free(t->dx), free(t->dgamma), free(t->dbeta);
}

static void layernorm_body(struct mpp_rank *r, void *arg)
{
    struct row_data *t = arg;
    const struct shape *s = &t->c->shape;
    struct mpp_extent cols = extent_at(r, s, 2);
    struct mpp_space rows = local_space(r, s, 2);
    int64_t n_rows = local_size(r, &t->row_shape), n = local_size(r, s);
    float *x = cut(r, s, t->x), *dy = cut(r, s, t->dy), *gamma = cut(r, &t->col_shape, t->gamma);
    float *beta = cut(r, &t->col_shape, t->beta), *y = floats(n), *mean = floats(n_rows), *rstd = floats(n_rows);
    float *dgamma = floats(cols.padded), *dbeta = floats(cols.padded);
    mpp_layernorm_forward(r, s->split[2], n_rows, cols, 1e-5f, x, gamma, beta, y, mean, rstd);
    check_block("layernorm y", r, s, y, t->y, 2e-6);
    check_block("layernorm mean", r, &t->row_shape, mean, t->mean, 2e-6);
    check_block("layernorm rstd", r, &t->row_shape, rstd, t->rstd, 2e-6);
    mpp_layernorm_backward(r, s->split[2], &rows, cols, x, gamma, mean, rstd, dy, dy, dgamma, dbeta); /* in place */
    check_block("layernorm dx", r, s, dy, t->dx, 3e-6);
    unsigned others = s->split[0] | s->split[1];
    if (others) {
        mpp_all_reduce(r, others, dgamma, cols.padded, MPP_REDUCE_SUM);
        mpp_all_reduce(r, others, dbeta, cols.padded, MPP_REDUCE_SUM);
    }
    check_block("layernorm dgamma", r, &t->col_shape, dgamma, t->dgamma, 2e-6);
    check_block("layernorm dbeta", r, &t->col_shape, dbeta, t->dbeta, 2e-6);
    free(x), free(dy), free(gamma), free(beta), free(y), free(mean), free(rstd), free(dgamma), free(dbeta);
}

static void reference_layernorm(struct row_data *t)
{
    for (int64_t i = 0; i < t->rows; i++) {
        const float *x = t->x + i * t->cols, *dy = t->dy + i * t->cols;
        double mean = 0, variance = 0, m0 = 0, m1 = 0, n = (double)t->cols;
        for (int64_t j = 0; j < t->cols; j++)
            mean += x[j] / n;
        for (int64_t j = 0; j < t->cols; j++)
            variance += (x[j] - mean) * (x[j] - mean) / n;
        double rstd = 1 / sqrt(variance + 1e-5);
        for (int64_t j = 0; j < t->cols; j++) {
            double h = (x[j] - mean) * rstd, g = (double)dy[j] * (double)t->gamma[j];
            t->y[i * t->cols + j] = h * (double)t->gamma[j] + (double)t->beta[j];
            m0 += g / n;
            m1 += g * h / n;
            t->dgamma[j] += (double)dy[j] * h;
            t->dbeta[j] += (double)dy[j];
        }
        for (int64_t j = 0; j < t->cols; j++)
            t->dx[i * t->cols + j] =
                rstd * ((double)dy[j] * (double)t->gamma[j] - m0 - (x[j] - mean) * rstd * m1);
        t->mean[i] = mean;
        t->rstd[i] = rstd;
    }
}

static void softmax_body(struct mpp_rank *r, void *arg)
{
    struct row_data *t = arg;
    const struct shape *s = &t->c->shape;
    struct mpp_extent cols = extent_at(r, s, 2);
    int64_t n_rows = local_size(r, &t->row_shape), n = local_size(r, s);
    float *x = cut(r, s, t->x), *dy = cut(r, s, t->dy), *y = floats(n), *dx = floats(n);
    for (int64_t i = 0; i < n_rows; i++) /* a maximum would pass over NaN */
        for (int64_t j = cols.valid; j < cols.padded; j++)
            x[i * cols.padded + j] = 1e30f;
    mpp_softmax_forward(r, s->split[2], n_rows, cols, x, y);
    check_block("softmax y", r, s, y, t->y, 1e-6);
    mpp_softmax_backward(r, s->split[2], n_rows, cols, y, dy, dx);
    check_block("softmax dx", r, s, dx, t->dx, 2e-6);
    free(x), free(dy), free(y), free(dx);
}

static void reference_softmax(struct row_data *t)
{
    for (int64_t i = 0; i < t->rows; i++) {
        double sum = 0, dot = 0, *y = t->y + i * t->cols;
        for (int64_t j = 0; j < t->cols; j++)
            sum += exp((double)t->x[i * t->cols + j]);
        for (int64_t j = 0; j < t->cols; j++) {
            y[j] = exp((double)t->x[i * t->cols + j]) / sum;
            dot += y[j] * (double)t->dy[i * t->cols + j];
        }
        for (int64_t j = 0; j < t->cols; j++)
            t->dx[i * t->cols + j] = y[j] * ((double)t->dy[i * t->cols + j] - dot);
    }
}

static void test_rows(void)
{
    for (int k = 0; k < COUNT(row_cases); k++) {
        struct row_data t = row_data_of(&row_cases[k]);
        reference_layernorm(&t);
        run_mesh(t.c->n_axes, t.c->sizes, layernorm_body, &t);
        reference_softmax(&t);
        run_mesh(t.c->n_axes, t.c->sizes, softmax_body, &t);
        free_row_data(&t);
    }
}

/* The loss of a row kernel in double, for finite differences. */
struct row_loss {
    int64_t n;
    double *x, *gamma, *beta;
    const double *dy;
};

static double layernorm_loss(void *arg)
{
    struct row_loss *t = arg;
    double mean = 0, variance = 0, loss = 0, n = (double)t->n;
    for (int64_t j = 0; j < t->n; j++)
        mean += t->x[j] / n;
    for (int64_t j = 0; j < t->n; j++)
        variance += (t->x[j] - mean) * (t->x[j] - mean) / n;
    for (int64_t j = 0; j < t->n; j++)
        loss += t->dy[j] * ((t->x[j] - mean) / sqrt(variance + 1e-5) * t->gamma[j] + t->beta[j]);
    return loss;
}

static double softmax_loss(void *arg)
{
    struct row_loss *t = arg;
    double sum = 0, loss = 0;
    for (int64_t j = 0; j < t->n; j++)
        sum += exp(t->x[j]);
    for (int64_t j = 0; j < t->n; j++)
        loss += t->dy[j] * exp(t->x[j]) / sum;
    return loss;
}

/* The label is N / 2. */
static double cross_entropy_loss(void *arg)
{
    struct row_loss *t = arg;
    double sum = 0;
    for (int64_t j = 0; j < t->n; j++)
        sum += exp(t->x[j]);
    return log(sum) - t->x[t->n / 2];
}

static void test_differences(void)
{
    enum { N = 33 };
    struct mpp_rank r = {0};
    struct mpp_extent cols = {N, N, N, 0};
    struct mpp_space one = {1, {1}, {1}};
    float *x = random_floats(31, N), *dy = random_floats(32, N), *gamma = random_floats(33, N);
    float *beta = random_floats(34, N), y[N], dx[N], dgamma[N], dbeta[N], mean, rstd;
    double *dyd = widened(dy, N), want[3][N];
    struct row_loss t = {N, widened(x, N), widened(gamma, N), widened(beta, N), dyd};
    for (int j = 0; j < N; j++) {
        want[0][j] = difference(layernorm_loss, &t, &t.x[j]);
        want[1][j] = difference(layernorm_loss, &t, &t.gamma[j]);
        want[2][j] = difference(layernorm_loss, &t, &t.beta[j]);
    }
    mpp_layernorm_forward(&r, 0, 1, cols, 1e-5f, x, gamma, beta, y, &mean, &rstd);
    mpp_layernorm_backward(&r, 0, &one, cols, x, gamma, &mean, &rstd, dy, dx, dgamma, dbeta);
    check_close("layernorm dx by differences", dx, want[0], N, 2e-6);
    check_close("layernorm dgamma by differences", dgamma, want[1], N, 2e-6);
    check_close("layernorm dbeta by differences", dbeta, want[2], N, 2e-6);
    for (int j = 0; j < N; j++)
        want[0][j] = difference(softmax_loss, &t, &t.x[j]);
    mpp_softmax_forward(&r, 0, 1, cols, x, y);
    mpp_softmax_backward(&r, 0, 1, cols, y, dy, dx);
    check_close("softmax dx by differences", dx, want[0], N, 2e-6);
    for (int j = 0; j < N; j++)
        want[0][j] = difference(cross_entropy_loss, &t, &t.x[j]);
    float lse, loss, one_float = 1;
    int32_t label = N / 2;
    mpp_cross_entropy_forward(&r, 0, &one, cols, -1, x, &label, &one_float, &lse, &loss);
    mpp_cross_entropy_backward(&r, &one, cols, -1, x, &label, &lse, &one_float, &one_float, dx);
    check_close("cross entropy dlogits by differences", dx, want[0], N, 2e-6);
    free(x), free(dy), free(gamma), free(beta), free(dyd), free(t.x), free(t.gamma), free(t.beta);
}

static void test_row_edges(void)
{
    struct mpp_rank r = {0};
    struct mpp_extent four = {4, 4, 4, 0};
    float hidden[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, y[4];
    mpp_softmax_forward(&r, 0, 1, four, hidden, y);
    check(y[0] == 0 && y[1] == 0 && y[2] == 0 && y[3] == 0, "softmax of a hidden row is 0");
    float some[4] = {-INFINITY, 1e4f, -INFINITY, 1e4f};
    mpp_softmax_forward(&r, 0, 1, four, some, some);
    check(some[0] == 0 && some[1] == 0.5f && some[3] == 0.5f, "softmax in place of large values");
    enum { N = 1000 };
    struct mpp_extent wide = {N, N, N, 0};
    float *x = floats(N), *out = floats(N), mean, rstd;
    double *want = doubles(N);
    for (int i = 0; i < N; i++) {
        x[i] = 4096.0f + (float)(i % 2); /* exact mean 4096.5, variance 1/4 */
        want[i] = i % 2 ? 1 : -1;
    }
    mpp_layernorm_forward(&r, 0, 1, wide, 0, x, NULL, NULL, out, &mean, &rstd);
    check_close("layernorm of a large mean", out, want, N, 1e-6);
    free(x), free(out), free(want);
}

/* ---- cross entropy and embedding -------------------------------------------------------------------------- */

enum { IGNORE = -100 };

struct loss_data {
    const struct row_case *c;
    struct row_data *rows;
    int32_t *labels;
    double loss, count;
};

static double reference_loss(struct loss_data *t, float scale, float dloss)
{
    struct row_data *d = t->rows;
    t->loss = t->count = 0;
    for (int64_t i = 0; i < d->rows; i++) {
        const float *x = d->x + i * d->cols;
        double sum = 0;
        for (int64_t j = 0; j < d->cols; j++)
            sum += exp((double)x[j]);
        d->mean[i] = log(sum);
        bool counts = t->labels[i] != IGNORE;
        if (counts)
            t->loss += (log(sum) - (double)x[t->labels[i]]) * (double)scale;
        t->count += counts;
        for (int64_t j = 0; j < d->cols; j++)
            d->dx[i * d->cols + j] = counts ? (exp((double)x[j]) / sum - (j == t->labels[i])) * (double)scale *
                                                  (double)dloss : 0;
    }
    return t->loss;
}

static void loss_body(struct mpp_rank *r, void *arg)
{
    struct loss_data *t = arg;
    const struct shape *s = &t->c->shape, *rs = &t->rows->row_shape;
    struct mpp_extent cols = extent_at(r, s, 2);
    struct mpp_space rows = local_space(r, s, 2);
    float *x = cut(r, s, t->rows->x), *lse = floats(local_size(r, rs)), loss = NAN, count = NAN;
    float scale = 0.125f, dloss = 0.75f;
    int32_t *labels = cut_ints(r, rs, t->labels);
    unsigned row_axes = s->split[0] | s->split[1], all = row_axes | s->split[2];
    mpp_cross_entropy_forward(r, s->split[2], &rows, cols, IGNORE, x, labels, &scale, lse, &loss);
    mpp_count_labels(r, &rows, IGNORE, labels, &count);
    if (all)
        mpp_all_reduce(r, all, &loss, 1, MPP_REDUCE_SUM);
    if (row_axes)
        mpp_all_reduce(r, row_axes, &count, 1, MPP_REDUCE_SUM);
    check(fabs((double)loss - t->loss) <= 1e-6 * fmax(1, fabs(t->loss)), "cross entropy loss");
    check((double)count == t->count, "count of labels");
    check_block("cross entropy lse", r, rs, lse, t->rows->mean, 1e-6);
    mpp_cross_entropy_backward(r, &rows, cols, IGNORE, x, labels, lse, &scale, &dloss, x);
    check_block("cross entropy dlogits", r, s, x, t->rows->dx, 2e-6);
    free(x), free(lse), free(labels);
}

static void test_cross_entropy(void)
{
    for (int k = 0; k < COUNT(row_cases); k++) {
        struct row_data d = row_data_of(&row_cases[k]);
        struct loss_data t = {.c = &row_cases[k], .rows = &d, .labels = malloc((size_t)d.rows * sizeof(int32_t))};
        uint64_t seed = 41;
        for (int64_t i = 0; i < d.rows; i++)
            t.labels[i] = i % 5 == 3 ? IGNORE : (int32_t)random_below(&seed, d.cols);
        reference_loss(&t, 0.125f, 0.75f);
        run_mesh(t.c->n_axes, t.c->sizes, loss_body, &t);
        free(t.labels);
        free_row_data(&d);
    }
}

struct embedding_data {
    struct shape rows, y, table;
    int32_t *ids;
    float *table_values, *dy;
    double *want_y, *want_dtable;
};

static void embedding_body(struct mpp_rank *r, void *arg)
{
    struct embedding_data *t = arg;
    struct mpp_space rows = local_space(r, &t->rows, 2);
    struct mpp_extent vocab = extent_at(r, &t->table, 0);
    int64_t width = t->table.dims[1];
    int32_t *ids = cut_ints(r, &t->rows, t->ids);
    float *table = cut(r, &t->table, t->table_values), *y = floats(local_size(r, &t->y)), *dy = cut(r, &t->y, t->dy);
    mpp_embedding_forward(r, &rows, vocab, width, ids, table, y);
    if (t->table.split[0])
        mpp_all_reduce(r, t->table.split[0], y, local_size(r, &t->y), MPP_REDUCE_SUM);
    check_block("embedding y", r, &t->y, y, t->want_y, 0);
    mpp_embedding_backward(r, &rows, vocab, width, ids, dy, 0.0f, table);
    mpp_embedding_backward(r, &rows, vocab, width, ids, dy, 1.0f, table);
    if (t->rows.split[0])
        mpp_all_reduce(r, t->rows.split[0], table, local_size(r, &t->table), MPP_REDUCE_SUM);
    check_block("embedding dtable", r, &t->table, table, t->want_dtable, 2e-6);
    free(ids), free(table), free(y), free(dy);
}

static void test_embedding(void)
{
    static const int64_t vocabularies[] = {2, 7, 33, 257}, widths[] = {1, 31, 300};
    for (int k = 0; k < 12; k++) {
        int64_t vocab = vocabularies[k % 4], width = widths[k / 4];
        struct embedding_data t = {.rows = {2, {3, 31}, {1, 0}}, .y = {3, {3, 31, width}, {1, 0, 0}},
                                   .table = {2, {vocab, width}, {6, 0}}};
        int64_t n = 93;
        uint64_t seed = 51;
        t.ids = malloc((size_t)n * sizeof *t.ids);
        t.table_values = random_floats(52, vocab * width);
        t.dy = random_floats(53, n * width);
        t.want_y = doubles(n * width);
        t.want_dtable = doubles(vocab * width);
        for (int64_t i = 0; i < n; i++) {
            t.ids[i] = (int32_t)random_below(&seed, vocab);
            for (int64_t j = 0; j < width; j++) {
                t.want_y[i * width + j] = t.table_values[t.ids[i] * width + j];
                t.want_dtable[t.ids[i] * width + j] += 2 * (double)t.dy[i * width + j];
            }
        }
        run_mesh(3, (int[]){2, 2, 2}, embedding_body, &t);
        free(t.ids), free(t.table_values), free(t.dy), free(t.want_y), free(t.want_dtable);
    }
}

/* ---- optimisers --------------------------------------------------------------------------------------------- */

static void test_adamw(void)
{
    enum { N = 257, STEPS = 20 };
    struct mpp_rank r = {.hyper = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8}};
    float *w = random_floats(61, N), *m = floats(N), *v = floats(N), scale = 0.5f;
    double *wd = widened(w, N), *md = doubles(N), *vd = doubles(N);
    memset(m, 0, N * sizeof *m);
    memset(v, 0, N * sizeof *v);
    for (r.step = 1; r.step <= STEPS; r.step++) {
        float *g = random_floats((uint64_t)(70 + r.step), N);
        mpp_adamw(&r, N, 0.1f, r.step % 2 ? &scale : NULL, g, w, m, v);
        for (int i = 0; i < N; i++) {
            double grad = (double)g[i] * (r.step % 2 ? 0.5 : 1);
            wd[i] *= 1 - 0.01 * 0.1;
            md[i] = 0.9 * md[i] + 0.1 * grad;
            vd[i] = 0.999 * vd[i] + 0.001 * grad * grad;
            double mh = md[i] / (1 - pow(0.9, (double)r.step)), vh = vd[i] / (1 - pow(0.999, (double)r.step));
            wd[i] -= 0.01 * mh / (sqrt(vh) + 1e-8);
        }
        free(g);
    }
    check_close("adamw parameters", w, wd, N, 1e-6);
    check_close("adamw m", m, md, N, 1e-6);
    check_close("adamw v", v, vd, N, 1e-6);
    free(w), free(m), free(v), free(wd), free(md), free(vd);
}

static void test_sgd(void)
{
    enum { N = 33 };
    for (int kind = 0; kind < 3; kind++) { /* plain, momentum, Nesterov */
        struct mpp_rank r = {.hyper = {.lr = 0.1, .momentum = 0.9, .nesterov = kind == 2}};
        float *w = random_floats(81, N), velocity[N] = {0};
        double *wd = widened(w, N), vd[N] = {0};
        for (r.step = 1; r.step <= 5; r.step++) {
            float *g = random_floats((uint64_t)(90 + r.step), N), scale = 0.25f;
            mpp_sgd(&r, N, 0.01f, &scale, g, w, kind ? velocity : NULL);
            for (int i = 0; i < N; i++) {
                double grad = (double)g[i] * 0.25 + 0.01 * wd[i];
                vd[i] = 0.9 * vd[i] + grad;
                wd[i] -= 0.1 * (kind == 0 ? grad : kind == 1 ? vd[i] : grad + 0.9 * vd[i]);
            }
            free(g);
        }
        check_close("sgd", w, wd, N, 1e-6);
        free(w), free(wd);
    }
}

static void square_sum_body(struct mpp_rank *r, void *arg)
{
    struct row_data *t = arg;
    struct mpp_space space = local_space(r, &t->c->shape, 3);
    float *x = cut(r, &t->c->shape, t->x), sum = NAN;
    mpp_square_sum(r, &space, x, &sum);
    unsigned all = t->c->shape.split[0] | t->c->shape.split[1] | t->c->shape.split[2];
    if (all)
        mpp_all_reduce(r, all, &sum, 1, MPP_REDUCE_SUM);
    double want = 0;
    for (int64_t i = 0; i < t->n; i++)
        want += (double)t->x[i] * (double)t->x[i];
    check_close("square sum", &sum, &want, 1, 1e-6);
    free(x);
}

static void test_clipping(void)
{
    for (int k = 0; k < COUNT(row_cases); k++) {
        struct row_data t = row_data_of(&row_cases[k]);
        run_mesh(t.c->n_axes, t.c->sizes, square_sum_body, &t);
        free_row_data(&t);
    }
    struct mpp_rank r = {.hyper = {.clip_norm = 2}};
    struct mpp_space scalar = {0};
    float x = 3, square, norm, scale;
    mpp_square_sum(&r, &scalar, &x, &square);
    mpp_clip_scale(&r, &square, &norm, &scale);
    check(square == 9 && norm == 3 && fabsf(scale - 2 / 3.0f) < 1e-7f, "clipping above the limit");
    r.hyper.clip_norm = 0;
    mpp_clip_scale(&r, &square, &norm, &scale);
    check(norm == 3 && scale == 1, "no clipping");
    r.hyper.clip_norm = 5;
    mpp_clip_scale(&r, &square, &norm, &scale);
    check(norm == 3 && scale == 1, "clipping below the limit");
}

int main(void)
{
    test_philox();
    test_math();
    test_extents();
    test_gemm();
    test_einsum_of_models();
    test_random_einsums();
    test_rows();
    test_differences();
    test_row_edges();
    test_cross_entropy();
    test_embedding();
    test_adamw();
    test_sgd();
    test_clipping();
    return report();
}
