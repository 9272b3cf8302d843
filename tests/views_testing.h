/* views_testing.h - for the conformance tests: every entry point of mpp_rt.h, in f32 and 16 bits, with odd sizes and an even one, on arrays that
 * begin at a multiple of 64 bytes or one element further, with intact bytes around them. tests/house.py looks for
 * CALL(..., entry, ...) of each entry point.
 *
 *     for (int i = 0; i < N_TRIALS; i++) {
 *         struct trial t = trial_at(i);               // t.k, t.n, t.shift: 6 sizes, 2 places, 3 types
 *         double *x = numbers_of(&t, t.k, 1, t.n);
 *         void *in = stored(&t, t.k, x, t.n), *out = room(&t, t.k, t.n);
 *         CALL(&t, mpp_copy, &r, out, in, (size_t)(t.n * t.k->bytes));
 *         check_stored(&t, "copy", t.k, out, x, t.n, 0);
 *         end_trial(&t);                              // looks around all arrays and frees them
 *     }
 *     return report_coverage();                       // fails where an entry point was not called with all sizes and places */
#ifndef MPP_VIEWS_TESTING_H
#define MPP_VIEWS_TESTING_H

#include "core/half.h"
#include "kernels_testing.h"

struct kind {
    const char *name;
    enum mpp_type type;
    int64_t bytes;
    double unit; /* the largest error of rounding, relative */
};

static const struct kind all_kinds[] = {
    {"f32", MPP_TYPE_F32, 4, 0}, {"bf16", MPP_TYPE_BF16, 2, 0x1p-8}, {"f16", MPP_TYPE_F16, 2, 0x1p-11}};
static const struct kind *const wide = &all_kinds[0];
static const int64_t sizes_tried[] = {1, 3, 31, 33, 64, 257}; /* odd ones, and one that is walked in packs where arrays are aligned */

enum { GUARD = 64, MOST_BLOCKS = 64, MOST_ENTRIES = 96, N_SIZES = 6, N_KINDS = 3, ALL_SEEN = (1 << 2 * N_SIZES) - 1 };

struct trial {
    const struct kind *k;
    int64_t n;
    int size, shift; /* size: of sizes_tried; shift: elements that arrays begin after a multiple of 64 bytes */
    int n_blocks;
    struct {
        unsigned char *base;
        size_t lead, bytes; /* guarded before and after */
    } block[MOST_BLOCKS];
    int n_numbers;
    double *numbers[MOST_BLOCKS];
};

/* ---- what was called ---------------------------------------------------------------------------------- */

static struct {
    const char *entry;
    unsigned seen[N_KINDS]; /* bit: 2 size + shift */
} coverage[MOST_ENTRIES];

static inline void note(const struct trial *t, const char *entry)
{
    pthread_mutex_lock(&check_lock);
    int i = 0;
    while (i < MOST_ENTRIES - 1 && coverage[i].entry && strcmp(coverage[i].entry, entry) != 0)
        i++;
    coverage[i].entry = entry;
    coverage[i].seen[t->k - all_kinds] |= 1u << (2 * t->size + t->shift);
    pthread_mutex_unlock(&check_lock);
}

#define CALL(t, entry, ...) (note(t, #entry), entry(__VA_ARGS__))

static inline int report_coverage(void)
{
    for (int i = 0; i < MOST_ENTRIES && coverage[i].entry; i++) {
        bool half = strstr(coverage[i].entry, "_half") != NULL, ok = true;
        for (int k = half ? 1 : 0; k < (half ? N_KINDS : 1); k++)
            ok = ok && coverage[i].seen[k] == ALL_SEEN;
        if (!ok)
            printf("%s: not with all sizes, places and types\n", coverage[i].entry);
        check(ok, "coverage");
    }
    return report();
}

/* ---- arrays ------------------------------------------------------------------------------------------- */

/* BYTES of which the first is SHIFT elements after a multiple of 64, NaN in every type. */
static inline void *bytes_at(struct trial *t, int64_t bytes, int64_t shift_bytes)
{
    assert(t->n_blocks < MOST_BLOCKS);
    size_t lead = GUARD + (size_t)shift_bytes, all = (lead + (size_t)bytes + GUARD + 63) / 64 * 64;
    unsigned char *base = aligned_alloc(64, all);
    memset(base, 0x5a, all);
    memset(base + lead, 0xff, (size_t)bytes);
    t->block[t->n_blocks].base = base;
    t->block[t->n_blocks].lead = lead;
    t->block[t->n_blocks++].bytes = (size_t)bytes;
    return base + lead;
}

static inline void *room(struct trial *t, const struct kind *k, int64_t n)
{
    return bytes_at(t, n * k->bytes, t->shift * k->bytes);
}

/* The rank's workspace, which begins at a multiple of 64 bytes. */
static inline char *workspace_of(struct trial *t, int64_t bytes)
{
    return bytes_at(t, bytes, 0);
}

static inline double rounded_to(const struct kind *k, double x)
{
    return (double)(k->type == MPP_TYPE_F32 ? (float)x : mpp_half_float(k->type, mpp_half_of(k->type, (float)x)));
}

static inline double *zeros(struct trial *t, int64_t n)
{
    assert(t->n_numbers < MOST_BLOCKS);
    return t->numbers[t->n_numbers++] = doubles(n);
}

/* About normal, as type K can store them. */
static inline double *numbers_of(struct trial *t, const struct kind *k, uint64_t seed, int64_t n)
{
    double *x = zeros(t, n);
    for (int64_t i = 0; i < n; i++)
        x[i] = rounded_to(k, (double)random_normal(&seed));
    return x;
}

static inline void store_at(const struct kind *k, void *x, int64_t i, double value)
{
    if (k->type == MPP_TYPE_F32)
        ((float *)x)[i] = (float)value;
    else
        ((uint16_t *)x)[i] = mpp_half_of(k->type, (float)value);
}

static inline double load_at(const struct kind *k, const void *x, int64_t i)
{
    return (double)(k->type == MPP_TYPE_F32 ? ((const float *)x)[i] : mpp_half_float(k->type, ((const uint16_t *)x)[i]));
}

static inline void *stored(struct trial *t, const struct kind *k, const double *x, int64_t n)
{
    void *out = room(t, k, n);
    for (int64_t i = 0; i < n; i++)
        store_at(k, out, i, x[i]);
    return out;
}

static inline int32_t *stored_ints(struct trial *t, const int32_t *x, int64_t n)
{
    int32_t *out = bytes_at(t, n * 4, t->shift * 4);
    memcpy(out, x, (size_t)n * sizeof *x);
    return out;
}

/* GOT is WANT, rounded to K, give or take TOLERANCE of the largest, which counts as 1 at least. WANT NaN: whatever it is. */
static inline void check_stored(const struct trial *t, const char *what, const struct kind *k, const void *got, const double *want,
                                int64_t n, double tolerance)
{
    double size = 1, worst = 0;
    for (int64_t i = 0; i < n; i++)
        size = isnan(want[i]) ? size : fmax(size, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) {
        double off = fabs(load_at(k, got, i) - want[i]), allowed = fabs(want[i]) * k->unit * (1 + 1e-6) + tolerance * size;
        allowed += k->type == MPP_TYPE_F16 ? 0x1p-25 : 0; /* below its normal numbers */
        if (!isnan(want[i]) && !(off <= allowed))
            worst = isnan(off) ? 1e30 : fmax(worst, off);
    }
    if (worst > 0)
        printf("%s, %s, size %d, %s: off by %.3g of %.3g\n", what, k->name, (int)t->n, t->shift ? "unaligned" : "aligned", worst, size);
    check(!(worst > 0), what);
}

static inline void end_trial(struct trial *t)
{
    bool ok = true;
    for (int i = 0; i < t->n_blocks; i++) {
        const unsigned char *base = t->block[i].base;
        size_t end = t->block[i].lead + t->block[i].bytes;
        for (size_t b = 0; b < t->block[i].lead; b++)
            ok = ok && base[b] == 0x5a;
        for (size_t b = end; b < end + GUARD; b++)
            ok = ok && base[b] == 0x5a;
        free(t->block[i].base);
    }
    for (int i = 0; i < t->n_numbers; i++)
        free(t->numbers[i]);
    t->n_blocks = t->n_numbers = 0;
    check(ok, "nothing is written beside an array");
}

/* The I-th of all trials. */
static inline struct trial trial_at(int i)
{
    int size = i / (2 * N_KINDS);
    return (struct trial){.k = &all_kinds[i / 2 % N_KINDS], .n = sizes_tried[size], .size = size, .shift = i % 2};
}

enum { N_TRIALS = 2 * N_KINDS * N_SIZES };

#endif
