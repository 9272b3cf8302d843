/* kernels_testing.h - for tests of the runtime's kernels: checks, random data, and a mesh of ranks as threads
 * with an all-reduce of its own, so that nothing else of the runtime is needed.
 *
 *     static void body(struct mpp_rank *r, void *arg) { ... check_close("what", got, want, n, 2e-6); }
 *     run_mesh(2, (int[]){2, 3}, body, &arg);
 *     return report();
 *
 * cut() copies a rank's block out of a global array and puts NaN into the padding, so that a kernel that
 * looks there shows. */
#ifndef MPP_KERNELS_TESTING_H
#define MPP_KERNELS_TESTING_H

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpp_rt.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

enum { MAX_RANKS = 16, MAX_MASKS = 1 << MPP_MAX_AXES };

struct mesh {
    int n_ranks;
    struct mpp_rank rank[MAX_RANKS];
    void *slot[MAX_RANKS];
    pthread_barrier_t barrier[MAX_MASKS][MAX_RANKS]; /* by mask and first rank of the group */
    void (*body)(struct mpp_rank *r, void *arg);
    void *arg;
};

static pthread_mutex_t check_lock = PTHREAD_MUTEX_INITIALIZER;
static int n_passed, n_failed;

static inline void check(bool ok, const char *what)
{
    pthread_mutex_lock(&check_lock);
    if (ok)
        n_passed++;
    else if (n_failed++ < 40)
        printf("FAILED: %s\n", what);
    pthread_mutex_unlock(&check_lock);
}

static inline int report(void)
{
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed > 0;
}

/* The largest error, relative to the largest of the wanted values, is at most TOLERANCE. */
static inline void check_close(const char *what, const float *got, const double *want, int64_t n, double tolerance)
{
    double error = 0, size = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        double e = fabs((double)got[i] - want[i]);
        error = e <= error ? error : e; /* keeps a NaN */
        size = fmax(size, fabs(want[i]));
    }
    if (!(error <= tolerance * size))
        printf("%s: error %.3g of %.3g\n", what, error, size);
    check(error <= tolerance * size, what);
}

/* ---- data ------------------------------------------------------------------------------------------- */

static inline uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = *state ^ (*state >> 29);
    return (uint32_t)((x * 0xbf58476d1ce4e5b9u) >> 32);
}

static inline int64_t random_below(uint64_t *state, int64_t n)
{
    return (int64_t)(((uint64_t)next_random(state) * (uint64_t)n) >> 32);
}

/* About normal: the sum of four uniform numbers. */
static inline float random_normal(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += next_random(state) / 4294967296.0 - 0.5;
    return (float)(sum * 1.7320508);
}

static inline float *floats(int64_t n)
{
    float *x = malloc((size_t)(n ? n : 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = NAN;
    return x;
}

static inline double *doubles(int64_t n)
{
    return calloc((size_t)(n ? n : 1), sizeof(double));
}

static inline float *random_floats(uint64_t seed, int64_t n)
{
    float *x = floats(n);
    for (int64_t i = 0; i < n; i++)
        x[i] = random_normal(&seed);
    return x;
}

static inline double *widened(const float *x, int64_t n)
{
    double *y = doubles(n);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i];
    return y;
}

/* ---- blocks of global arrays -------------------------------------------------------------------------- */

struct shape {
    int n_dims;
    int64_t dims[MPP_MAX_DIMS];
    unsigned split[MPP_MAX_DIMS];
};

static inline int64_t shape_size(const struct shape *s)
{
    int64_t n = 1;
    for (int d = 0; d < s->n_dims; d++)
        n *= s->dims[d];
    return n;
}

static inline struct mpp_extent extent_at(const struct mpp_rank *r, const struct shape *s, int d)
{
    return mpp_extent_of(r, s->dims[d], s->split[d]);
}

static inline int64_t local_size(const struct mpp_rank *r, const struct shape *s)
{
    int64_t n = 1;
    for (int d = 0; d < s->n_dims; d++)
        n *= extent_at(r, s, d).padded;
    return n;
}

static inline struct mpp_space local_space(const struct mpp_rank *r, const struct shape *s, int n_dims)
{
    struct mpp_space space = {.n_dims = n_dims};
    for (int d = 0; d < n_dims; d++) {
        space.padded[d] = extent_at(r, s, d).padded;
        space.valid[d] = extent_at(r, s, d).valid;
    }
    return space;
}

/* The global index of local element I, or -1 in the padding. */
static inline int64_t global_index(const struct mpp_rank *r, const struct shape *s, int64_t i)
{
    int64_t index = 0, stride = 1;
    for (int d = s->n_dims - 1; d >= 0; d--) {
        struct mpp_extent e = extent_at(r, s, d);
        int64_t at = i % e.padded;
        i /= e.padded;
        if (at >= e.valid)
            return -1;
        index += (e.offset + at) * stride;
        stride *= s->dims[d];
    }
    return index;
}

static inline float *cut(const struct mpp_rank *r, const struct shape *s, const float *global)
{
    int64_t n = local_size(r, s);
    float *x = floats(n);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = global_index(r, s, i);
        if (at >= 0)
            x[i] = global[at];
    }
    return x;
}

static inline int32_t *cut_ints(const struct mpp_rank *r, const struct shape *s, const int32_t *global)
{
    int64_t n = local_size(r, s);
    int32_t *x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = global_index(r, s, i);
        x[i] = at >= 0 ? global[at] : INT32_MAX;
    }
    return x;
}

/* The valid part of a rank's block against the global values. */
static inline void check_block(const char *what, const struct mpp_rank *r, const struct shape *s, const float *local,
                               const double *global, double tolerance)
{
    int64_t n = local_size(r, s), kept = 0;
    float *got = floats(n);
    double *want = doubles(n), size = 0;
    for (int64_t i = 0; i < shape_size(s); i++)
        size = fmax(size, fabs(global[i]));
    for (int64_t i = 0; i < n; i++) {
        int64_t at = global_index(r, s, i);
        if (at < 0)
            continue;
        got[kept] = local[i];
        want[kept++] = global[at];
    }
    double own = 1e-30;
    for (int64_t i = 0; i < kept; i++)
        own = fmax(own, fabs(want[i]));
    check_close(what, got, want, kept, tolerance * fmax(1, size / own));
    free(got);
    free(want);
}

#ifndef MPP_TESTING_TRANSPORT /* else the test's ranks have the runtime's own collectives */
/* ---- ranks as threads ----------------------------------------------------------------------------------- */

static inline int group_first(const struct mpp_rank *r, unsigned mask)
{
    int first = 0;
    for (int a = 0; a < r->n_axes; a++)
        first = first * r->axis_size[a] + (mask >> a & 1 ? 0 : r->coord[a]);
    return first;
}

void mpp_all_reduce(struct mpp_rank *r, unsigned mask, float *x, int64_t count, enum mpp_reduce op)
{
    struct mesh *mesh = r->impl;
    int first = group_first(r, mask);
    pthread_barrier_t *barrier = &mesh->barrier[mask][first];
    float *sum = floats(count);
    mesh->slot[r->rank] = x;
    pthread_barrier_wait(barrier);
    for (int64_t i = 0; i < count; i++) {
        double total = op == MPP_REDUCE_SUM ? 0 : -INFINITY;
        for (int k = 0; k < mesh->n_ranks; k++) {
            if (group_first(&mesh->rank[k], mask) != first)
                continue;
            double value = ((float *)mesh->slot[k])[i];
            total = op == MPP_REDUCE_SUM ? total + value : fmax(total, value);
        }
        sum[i] = (float)total;
    }
    pthread_barrier_wait(barrier);
    memcpy(x, sum, (size_t)count * sizeof *x);
    pthread_barrier_wait(barrier);
    free(sum);
}

static inline void *rank_thread(void *arg)
{
    struct mpp_rank *r = arg;
    struct mesh *mesh = r->impl;
    mesh->body(r, mesh->arg);
    return NULL;
}

static const struct mpp_program test_program = {.batch = 64, .micro_batches = 2};

/* BODY on every rank of a mesh; step 3, the second micro-batch of two, training. */
static inline void run_mesh(int n_axes, const int *sizes, void (*body)(struct mpp_rank *, void *), void *arg)
{
    struct mesh *mesh = calloc(1, sizeof *mesh);
    pthread_t thread[MAX_RANKS];
    mesh->n_ranks = 1;
    mesh->body = body;
    mesh->arg = arg;
    for (int a = 0; a < n_axes; a++)
        mesh->n_ranks *= sizes[a];
    assert(mesh->n_ranks <= MAX_RANKS);
    for (int k = 0; k < mesh->n_ranks; k++) {
        struct mpp_rank *r = &mesh->rank[k];
        *r = (struct mpp_rank){.rank = k, .n_ranks = mesh->n_ranks, .n_axes = n_axes, .step = 3, .micro_batch = 1,
                               .micro_batches = 2, .seed = 0x123456789abcdefu, .training = true,
                               .program = &test_program, .impl = mesh};
        for (int a = n_axes - 1, rest = k; a >= 0; a--) {
            r->axis_size[a] = sizes[a];
            r->coord[a] = rest % sizes[a];
            rest /= sizes[a];
        }
    }
    for (unsigned mask = 0; mask < 1u << n_axes; mask++)
        for (int first = 0; first < mesh->n_ranks; first++) {
            unsigned members = 0;
            for (int k = 0; k < mesh->n_ranks; k++)
                members += group_first(&mesh->rank[k], mask) == first;
            if (members)
                pthread_barrier_init(&mesh->barrier[mask][first], NULL, members);
        }
    for (int k = 0; k < mesh->n_ranks; k++)
        pthread_create(&thread[k], NULL, rank_thread, &mesh->rank[k]);
    for (int k = 0; k < mesh->n_ranks; k++)
        pthread_join(thread[k], NULL);
    free(mesh);
}

#endif

/* d/dx[i] of the sum of f(x) dy, by central differences in double. */
static inline double difference(double (*f)(void *arg), void *arg, double *x)
{
    double at = *x, h = 1e-5;
    *x = at + h;
    double above = f(arg);
    *x = at - h;
    double below = f(arg);
    *x = at;
    return (above - below) / (2 * h);
}

#endif
