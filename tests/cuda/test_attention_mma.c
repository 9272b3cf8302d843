/* Attention on tensor cores (runtime/cuda/kernels_attention_mma.cu) against float64 and against the kernels without them.
 *
 * What an element may be off by is told by the roundings on its way: a sum of terms whose left factor was rounded to the tensors' type, of
 * unit U, is off by U of the sum of the terms' magnitudes; so are y and dv by their probabilities, dq and dk by their ds. An
 * operation in f32 adds 2^-23 of what it works on: a unit more than rounding to nearest, since tensor cores cut sums off. In f16
 * what is below its normal numbers is off by 2^-25 instead.
 *
 *     cuda_attention_mma                      a sample: every length, head size, type, alignment, form
 *     MPP_TEST_FULL=1 cuda_attention_mma      all of lengths x head sizes x forms */
#include "views_testing.h"

#include "cuda/cuda_internal.h"

enum { OP = 41, LEFT_OVER = 3 }; /* LEFT_OVER: rows, heads and samples of padding */

struct form {
    const char *name;
    bool causal, masked, padded; /* padded: a rank's part of the queries of all, with padding everywhere */
    float dropout;
};

static const struct form forms[] = {
    {"plain", false, false, false, 0},           {"causal", true, false, false, 0},
    {"masked", false, true, false, 0},           {"dropout", false, false, false, 0.25f},
    {"causal, masked, dropout", true, true, false, 0.25f}, {"padded", false, true, true, 0.25f},
    {"causal, padded", true, true, true, 0.25f},
};

/* Tensors of one head after the other, as [batch, seq, heads, dim] with padding, NaN in it. */
struct problem {
    struct mpp_attention a;
    const struct form *form;
    int64_t n_q, n_k, n_lse; /* elements */
    double *q, *k, *v, *dy, *y, *dq, *dk, *dv, *lse;
    double *y_off, *dq_off, *dk_off, *dv_off, *lse_off; /* that they may be off by, before they are stored */
    int32_t *mask;
};

static const double e32 = 0x1p-23;

static double tiny(const struct trial *t)
{
    return t->k->type == MPP_TYPE_F16 ? 0x1p-25 : 0;
}

/* ---- float64 ------------------------------------------------------------------------------------------------ */

struct row { /* a query */
    int64_t b, h, i, at; /* at: of its first element */
    double *p, *f, *dp, *dp_terms; /* of its keys; F: dropout's factors */
    double exponent_off, lse, dot, dot_terms;
};

static int64_t key_at(const struct problem *s, const struct row *r, int64_t j)
{
    return ((r->b * s->a.seq_k.padded + j) * s->a.heads.padded + r->h) * s->a.head_dim;
}

static void draw_factors(const struct mpp_rank *rank, const struct problem *s, const struct row *r)
{
    const struct mpp_attention *a = &s->a;
    int64_t sample = mpp_first_sample(rank) + a->batch.offset + r->b, head = sample * a->heads.global + a->heads.offset + r->h;
    for (int64_t j = 0; j < a->seq_k.valid; j++) {
        int64_t element = (head * a->seq_q.global + a->seq_q.offset + r->i) * a->seq_k.global + a->seq_k.offset + j;
        float u = mpp_uniform(rank, OP, (uint64_t)element);
        r->f[j] = a->dropout == 0.0f ? 1 : u >= a->dropout ? 1 / (1 - (double)a->dropout) : 0;
    }
}

/* Probabilities; EXPONENT_OFF: what exponents of them may be off by. */
static void probabilities(const struct problem *s, struct row *r)
{
    const struct mpp_attention *a = &s->a;
    double sum = 0, terms = 0, dim = (double)a->head_dim;
    for (int64_t j = 0; j < a->seq_k.valid; j++) {
        double score = 0, size = 0;
        for (int64_t e = 0; e < a->head_dim; e++) {
            score += s->q[r->at + e] * s->k[key_at(s, r, j) + e];
            size += fabs(s->q[r->at + e] * s->k[key_at(s, r, j) + e]);
        }
        bool seen = !(a->causal && a->seq_k.offset + j > a->seq_q.offset + r->i) &&
                    !(s->form->masked && s->mask[r->b * a->seq_k.padded + j] == 0);
        r->p[j] = seen ? exp((double)a->scale * score) : 0;
        terms = seen ? fmax(terms, size * (double)a->scale) : terms;
        sum += r->p[j];
    }
    for (int64_t j = 0; j < a->seq_k.valid; j++)
        r->p[j] = sum > 0 ? r->p[j] / sum : 0;
    r->lse = sum > 0 ? log(sum) : 0;
    r->exponent_off = e32 * ((dim + 6) * terms + 4 * (terms + log((double)a->seq_k.valid)) + 8);
}

static void forward_row(const struct trial *t, struct problem *s, const struct row *r)
{
    const struct mpp_attention *a = &s->a;
    double sums = e32 * (double)(a->seq_k.valid + 16);
    int64_t at_lse = (r->b * a->heads.padded + r->h) * a->seq_q.padded + r->i;
    s->lse[at_lse] = r->lse;
    s->lse_off[at_lse] = r->exponent_off + sums + 4 * e32 * fabs(r->lse);
    for (int64_t e = 0; e < a->head_dim; e++)
        s->y[r->at + e] = s->y_off[r->at + e] = 0;
    for (int64_t j = 0; j < a->seq_k.valid; j++)
        for (int64_t e = 0; e < a->head_dim; e++) {
            double v = s->v[key_at(s, r, j) + e], term = r->p[j] * r->f[j] * fabs(v);
            s->y[r->at + e] += r->p[j] * r->f[j] * v;
            s->y_off[r->at + e] += term * (t->k->unit + 2 * r->exponent_off + 2 * sums) + tiny(t) * fabs(v);
        }
}

/* DOT_OFF, LSE_OFF: what the given y and lse are off by, as far as they matter. */
static void backward_row(const struct trial *t, struct problem *s, const struct row *r, double dot_off, double lse_off)
{
    const struct mpp_attention *a = &s->a;
    double scale = (double)a->scale, n = (double)(a->seq_k.valid + a->seq_q.valid), dim = (double)a->head_dim;
    for (int64_t j = 0; j < a->seq_k.valid; j++) {
        int64_t at = key_at(s, r, j);
        double p_off = r->exponent_off + lse_off + e32 * (n + 16), pf = r->p[j] * r->f[j];
        double ds = r->p[j] * (r->f[j] * r->dp[j] - r->dot), terms = r->p[j] * (r->f[j] * r->dp_terms[j] + r->dot_terms);
        double ds_off = t->k->unit * fabs(ds) + terms * (p_off + e32 * (dim + 8)) + r->p[j] * dot_off + tiny(t);
        for (int64_t e = 0; e < a->head_dim && r->p[j] > 0; e++) {
            s->dv[at + e] += pf * s->dy[r->at + e];
            s->dv_off[at + e] += (pf * (t->k->unit + p_off) + tiny(t)) * fabs(s->dy[r->at + e]);
            s->dq[r->at + e] += scale * ds * s->k[at + e];
            s->dq_off[r->at + e] += scale * ds_off * fabs(s->k[at + e]);
            s->dk[at + e] += scale * ds * s->q[r->at + e];
            s->dk_off[at + e] += scale * ds_off * fabs(s->q[r->at + e]);
        }
    }
}

/* EXACT: the backward is given the true y, rounded to its type, and lse; else those that some kernel computed. */
static void reference(struct trial *t, const struct mpp_rank *rank, struct problem *s, bool exact)
{
    const struct mpp_attention *a = &s->a;
    struct row r = {.p = zeros(t, a->seq_k.valid), .f = zeros(t, a->seq_k.valid), .dp = zeros(t, a->seq_k.valid),
                    .dp_terms = zeros(t, a->seq_k.valid)};
    for (int64_t k = 0; k < a->batch.valid * a->heads.valid * a->seq_q.valid; k++) {
        r.b = k / a->seq_q.valid / a->heads.valid, r.h = k / a->seq_q.valid % a->heads.valid, r.i = k % a->seq_q.valid;
        r.at = ((r.b * a->seq_q.padded + r.i) * a->heads.padded + r.h) * a->head_dim;
        draw_factors(rank, s, &r);
        probabilities(s, &r);
        forward_row(t, s, &r);
        double dot_off = 0, lse_off = s->lse_off[(r.b * a->heads.padded + r.h) * a->seq_q.padded + r.i];
        r.dot = r.dot_terms = 0;
        for (int64_t e = 0; e < a->head_dim; e++) {
            double y = exact ? rounded_to(t->k, s->y[r.at + e]) : s->y[r.at + e], dy = s->dy[r.at + e];
            r.dot += dy * y;
            r.dot_terms += fabs(dy * y);
            dot_off += fabs(dy) * (fabs(y) * t->k->unit + s->y_off[r.at + e] + tiny(t));
        }
        for (int64_t j = 0; j < a->seq_k.valid; j++) {
            r.dp[j] = r.dp_terms[j] = 0;
            for (int64_t e = 0; e < a->head_dim; e++) {
                r.dp[j] += s->dy[r.at + e] * s->v[key_at(s, &r, j) + e];
                r.dp_terms[j] += fabs(s->dy[r.at + e] * s->v[key_at(s, &r, j) + e]);
            }
        }
        backward_row(t, s, &r, exact ? 0 : dot_off * (1 + t->k->unit), exact ? e32 * fabs(r.lse) : lse_off);
    }
}

/* ---- problems ------------------------------------------------------------------------------------------------- */

/* Which elements of a [batch, SEQ, heads, dim] tensor are valid; others of X become WITH. */
static void fill_padding(const struct problem *s, struct mpp_extent seq, double *x, double with)
{
    const struct mpp_attention *a = &s->a;
    for (int64_t row = 0; row < a->batch.padded * seq.padded * a->heads.padded; row++) {
        bool valid = row % a->heads.padded < a->heads.valid && row / a->heads.padded % seq.padded < seq.valid &&
                     row / a->heads.padded / seq.padded < a->batch.valid;
        for (int64_t e = 0; e < a->head_dim && !valid; e++)
            x[row * a->head_dim + e] = with;
    }
}

/* N valid; PADDED: a part of a longer dimension, from OFFSET on. */
static struct mpp_extent extent(int64_t n, bool padded, int64_t offset)
{
    return padded ? (struct mpp_extent){n + offset + 5, n + LEFT_OVER, n, offset} : (struct mpp_extent){n, n, n, 0};
}

static struct problem problem_of(struct trial *t, const struct form *form, int64_t dim)
{
    struct problem s = {.form = form};
    int64_t n_k = form->padded ? t->n + 2 : t->n;
    s.a = (struct mpp_attention){extent(t->n > 200 ? 1 : 2, form->padded && t->n < 200, 1), extent(t->n, form->padded, t->n / 2),
                                 extent(n_k, form->padded, 0), extent(t->n > 200 ? 1 : 2, form->padded && t->n < 200, 3), dim,
                                 (float)(1 / sqrt((double)dim)), form->dropout, form->causal, OP};
    const struct mpp_attention *a = &s.a;
    s.n_q = a->batch.padded * a->seq_q.padded * a->heads.padded * dim, s.n_k = a->batch.padded * a->seq_k.padded * a->heads.padded * dim;
    s.n_lse = a->batch.padded * a->heads.padded * a->seq_q.padded;
    double **of_q[] = {&s.y, &s.dq, &s.y_off, &s.dq_off}, **of_k[] = {&s.dk, &s.dv, &s.dk_off, &s.dv_off};
    for (int i = 0; i < 4; i++)
        *of_q[i] = zeros(t, s.n_q), *of_k[i] = zeros(t, s.n_k);
    s.lse = zeros(t, s.n_lse), s.lse_off = zeros(t, s.n_lse);
    s.q = numbers_of(t, t->k, 1, s.n_q), s.dy = numbers_of(t, t->k, 2, s.n_q);
    s.k = numbers_of(t, t->k, 3, s.n_k), s.v = numbers_of(t, t->k, 4, s.n_k);
    s.mask = malloc((size_t)(a->batch.padded * a->seq_k.padded) * sizeof *s.mask);
    for (int64_t i = 0; i < a->batch.padded * a->seq_k.padded; i++) /* the first keys are hidden: with causal, some see none */
        s.mask[i] = i % a->seq_k.padded >= 2 && i % 5 != 3;
    return s;
}

/* ---- kernels --------------------------------------------------------------------------------------------------- */

struct given {
    void *q, *k, *v, *dy;
    int32_t *mask;
};

struct found {
    void *y, *dq, *dk, *dv;
    float *lse;
};

static struct found rooms(struct trial *t, const struct problem *s)
{
    return (struct found){room(t, t->k, s->n_q), room(t, t->k, s->n_q), room(t, t->k, s->n_k), room(t, t->k, s->n_k),
                          room(t, wide, s->n_lse)};
}

static void run_forward(struct mpp_rank *r, enum mpp_attention_path path, struct trial *t, const struct problem *s, const struct given *g,
                        struct found *f)
{
    mpp_test_device(r)->device->attention = path;
    mpp_attention_forward_half(r, t->k->type, &s->a, g->q, g->k, g->v, g->mask, f->y, f->lse);
}

static void run_backward(struct mpp_rank *r, enum mpp_attention_path path, struct trial *t, const struct problem *s, const struct given *g,
                         const void *y, const float *lse, struct found *f)
{
    mpp_test_device(r)->device->attention = path;
    mpp_attention_backward_half(r, t->k->type, &s->a, g->q, g->k, g->v, g->mask, y, lse, g->dy, f->dq, f->dk, f->dv);
}

/* GOT is WANT, rounded, give or take OFF; WITHOUT, where there is any, as much of both and its own rounding. */
static void check_within(const struct trial *t, const struct problem *s, const char *what, const struct kind *k, const void *got,
                         const void *without, const double *want, const double *off, int64_t n)
{
    double worst = 0, apart = 0;
    for (int64_t i = 0; i < n; i++) {
        double unit = k->unit > 0 ? k->unit : e32, x = load_at(k, got, i);
        double allowed = fmax(unit * (fabs(want[i]) + off[i]) + off[i] + (k->type == MPP_TYPE_F16 ? 0x1p-25 : 0), 1e-300);
        double over = fabs(x - want[i]) / allowed, beside = without ? fabs(x - load_at(k, without, i)) / (2 * allowed) : 0;
        worst = isnan(over) ? 1e30 : fmax(worst, over);
        apart = isnan(beside) ? 1e30 : fmax(apart, beside);
    }
    if (!(worst <= 1 && apart <= 1))
        printf("%s, %s, %s, %d x %d, %s: %.3g of what it may be off by, %.3g beside the kernels without tensor cores\n", what, t->k->name,
               s->form->name, (int)t->n, (int)s->a.head_dim, t->shift ? "unaligned" : "aligned", worst, apart);
    check(worst <= 1, what);
    check(apart <= 1, "with and without tensor cores");
}

static void check_gradients(const struct trial *t, const struct problem *s, const struct found *f, const struct found *without)
{
    check_within(t, s, "dq", t->k, f->dq, without ? without->dq : NULL, s->dq, s->dq_off, s->n_q);
    check_within(t, s, "dk", t->k, f->dk, without ? without->dk : NULL, s->dk, s->dk_off, s->n_k);
    check_within(t, s, "dv", t->k, f->dv, without ? without->dv : NULL, s->dv, s->dv_off, s->n_k);
}

static bool same_bits(const struct trial *t, const struct problem *s, const struct found *f, const struct found *g)
{
    return memcmp(f->dq, g->dq, (size_t)(s->n_q * t->k->bytes)) == 0 && memcmp(f->dk, g->dk, (size_t)(s->n_k * t->k->bytes)) == 0 &&
           memcmp(f->dv, g->dv, (size_t)(s->n_k * t->k->bytes)) == 0;
}

static struct mpp_rank rank_of(void)
{
    return (struct mpp_rank){.n_ranks = 1, .n_threads = 1, .step = 3, .micro_batch = 1, .micro_batches = 2, .seed = 0x123456789abcdefu,
                             .training = true, .program = &test_program};
}

static struct given given_of(struct trial *t, const struct problem *s)
{
    const struct mpp_attention *a = &s->a;
    double *tensors[] = {s->q, s->k, s->v, s->dy};
    for (int i = 0; i < 4; i++)
        fill_padding(s, i == 1 || i == 2 ? a->seq_k : a->seq_q, tensors[i], (double)NAN);
    int32_t *mask = s->form->masked ? stored_ints(t, s->mask, a->batch.padded * a->seq_k.padded) : NULL;
    return (struct given){stored(t, t->k, s->q, s->n_q), stored(t, t->k, s->k, s->n_k), stored(t, t->k, s->v, s->n_k),
                          stored(t, t->k, s->dy, s->n_q), mask};
}

/* Given the true y and lse; what is computed twice has the same bits. Returns whether tensor cores rounded anything otherwise. */
static bool run_exact(struct trial *t, const struct form *form, int64_t dim)
{
    struct mpp_rank rank = rank_of();
    struct problem s = problem_of(t, form, dim);
    reference(t, &rank, &s, true);
    const struct given g = given_of(t, &s);
    struct found mma = rooms(t, &s), simt = rooms(t, &s), again = rooms(t, &s);
    const void *y = stored(t, t->k, s.y, s.n_q);
    const float *lse = stored(t, wide, s.lse, s.n_lse);
    run_forward(&rank, MPP_ATTENTION_MMA, t, &s, &g, &mma);
    run_backward(&rank, MPP_ATTENTION_MMA, t, &s, &g, y, lse, &mma);
    run_forward(&rank, MPP_ATTENTION_SIMT, t, &s, &g, &simt);
    run_backward(&rank, MPP_ATTENTION_SIMT, t, &s, &g, y, lse, &simt);
    if (t->n < 50) {
        run_backward(&rank, MPP_ATTENTION_MMA, t, &s, &g, y, lse, &again);
        check(same_bits(t, &s, &mma, &again), "the same bits again");
    }
    check_within(t, &s, "y", t->k, mma.y, simt.y, s.y, s.y_off, s.n_q);
    check_within(t, &s, "lse", wide, mma.lse, simt.lse, s.lse, s.lse_off, s.n_lse);
    check_gradients(t, &s, &mma, &simt);
    bool differs = memcmp(mma.y, simt.y, (size_t)(s.n_q * t->k->bytes)) != 0 && !same_bits(t, &s, &mma, &simt);
    free(s.mask);
    end_trial(t);
    return differs;
}

/* Each backward after the other's forward. */
static void run_mixed(struct trial *t, const struct form *form, int64_t dim)
{
    static const enum mpp_attention_path paths[] = {MPP_ATTENTION_SIMT, MPP_ATTENTION_MMA};
    struct mpp_rank rank = rank_of();
    struct problem s = problem_of(t, form, dim);
    reference(t, &rank, &s, false);
    const struct given g = given_of(t, &s);
    for (int i = 0; i < 2; i++) {
        struct found f = rooms(t, &s);
        run_forward(&rank, paths[i], t, &s, &g, &f);
        run_backward(&rank, paths[1 - i], t, &s, &g, f.y, f.lse, &f);
        check_gradients(t, &s, &f, NULL);
    }
    free(s.mask);
    end_trial(t);
}

/* A head that is too long goes the other way, to the bit. */
static void run_long(struct trial *t)
{
    struct mpp_rank rank = rank_of();
    struct problem s = problem_of(t, &forms[1], 136);
    const struct given g = given_of(t, &s);
    struct found mma = rooms(t, &s), simt = rooms(t, &s);
    run_forward(&rank, MPP_ATTENTION_MMA, t, &s, &g, &mma);
    run_forward(&rank, MPP_ATTENTION_SIMT, t, &s, &g, &simt);
    check(memcmp(mma.y, simt.y, (size_t)(s.n_q * t->k->bytes)) == 0, "heads of 136");
    free(s.mask);
    end_trial(t);
}

/* An infinity on its way shows in y and in the gradients, so that a step that overflowed is seen. */
static void run_overflow(struct trial *t)
{
    struct mpp_rank rank = rank_of();
    struct problem s = problem_of(t, &forms[0], 16);
    s.q[0] = (double)INFINITY;
    const struct given g = given_of(t, &s);
    struct found f = rooms(t, &s);
    run_forward(&rank, MPP_ATTENTION_MMA, t, &s, &g, &f);
    run_backward(&rank, MPP_ATTENTION_MMA, t, &s, &g, f.y, f.lse, &f);
    check(!isfinite(load_at(t->k, f.y, 0)) && !isfinite(load_at(t->k, f.dq, 0)) && !isfinite(load_at(t->k, f.dk, 0)), "an overflow shows");
    free(s.mask);
    end_trial(t);
}

static void run_all(bool full)
{
    static const int64_t dims[] = {8, 16, 40, 64, 80, 128, 1, 33, 100};
    bool differs[N_KINDS] = {false, false, false};
    unsigned seen_sizes = 0, seen_dims = 0, seen_forms = 0;
    for (int i = 0; i < N_TRIALS; i++) {
        struct trial t = trial_at(i);
        for (int k = 0; k < COUNT(dims) * COUNT(forms) && t.k != wide; k++) {
            int d = k % COUNT(dims), f = k / COUNT(dims);
            if (!full && (i * 5 + k) % (t.n > 200 ? 46 : 23) != 0)
                continue;
            differs[t.k - all_kinds] = run_exact(&t, &forms[f], dims[d]) || differs[t.k - all_kinds];
            if (t.n < 50 || full)
                run_mixed(&t, &forms[f], dims[d]);
            seen_sizes |= 1u << t.size, seen_dims |= 1u << d, seen_forms |= 1u << f;
        }
        if (t.k != wide && t.size < 2) {
            run_long(&t);
            run_overflow(&t);
        }
    }
    check(differs[1] && differs[2], "tensor cores were used");
    check(seen_sizes == (1u << N_SIZES) - 1 && seen_dims == (1u << COUNT(dims)) - 1 && seen_forms == (1u << COUNT(forms)) - 1,
          "all lengths, head sizes and forms");
}

int main(void)
{
    const char *full = getenv("MPP_TEST_FULL");
    struct mpp_rank r = rank_of();
    setenv("MPP_ATTENTION", "mma", 1);
    if (mpp_test_device(&r)->device->attention != MPP_ATTENTION_MMA) {
        printf("this GPU is older than sm_80\n0 passed, 0 failed, 1 skipped\n");
        return 0;
    }
    run_all(full != NULL && strcmp(full, "1") == 0);
    return report();
}
