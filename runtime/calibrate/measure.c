/* measure.c - what one device of this machine does: the program that `mpplan --calibrate` builds with the runtime and runs.
 *
 *     ./trainer SECONDS CORES          about so long in all, on so many cores
 *
 * Prints one line per measurement: its name, its sizes, seconds. Kernels run on every core at once, as they do in
 * training, each thread on data of its own, and are timed by the first thread's CPU time, so that other processes count
 * little; collectives by the clock. A figure is the lower quartile of many runs: what else a machine does only adds time. */
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/job.h"
#include "core/transport.h"
#include "host/threads.h"
#include "mpp_math.h"
#include "mpp_rt.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))
#define LARGEST ((int64_t)1 << 25) /* floats of an array */

enum { MAX_BATCHES = 400, MAX_RANKS = 64, MEASUREMENTS = 60 };

struct worker {
    struct mpp_rank r;
    struct mpp_local local;
    struct bench *bench;
    float *x, *y, *z;
    double seconds[MAX_BATCHES];
};

struct bench {
    int n;                        /* workers */
    double each_s;                /* for one measurement */
    pthread_barrier_t start;
    struct mpp_stage stage;
    const struct mpp_stage *stages[1];
    struct mpp_program program;
    struct worker *worker;
    double took[2];               /* of the batch before; what worker 0 says goes for all */
};

static double clock_s(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quartile(double *seconds, int n)
{
    qsort(seconds, (size_t)n, sizeof *seconds, by_size);
    return seconds[n / 4];
}

/* ---- kernels ------------------------------------------------------------------------------------ */

struct shape {
    int64_t a, b, c, d;           /* as the kernel reads them */
};
typedef void kernel(struct worker *w, struct shape s);

static void run_gemm(struct worker *w, struct shape s)
{
    /* Forward, the gradient of the input and that of the weights differ in what is transposed. */
    bool trans_a = s.d == 2, trans_b = s.d == 1;
    mpp_gemm(&w->r, trans_a, trans_b, s.a, s.b, s.c, w->x, trans_a ? s.a : s.c, w->y, trans_b ? s.c : s.b, 0.0f, w->z, s.b);
}

static void run_memory(struct worker *w, struct shape s)
{
    float *restrict y = w->y;
    const float *restrict x = w->x;
    for (int64_t i = 0; i < s.a; i++)
        y[i] += 0.5f * x[i];
}

static void run_gelu(struct worker *w, struct shape s)
{
    float *restrict y = w->y;
    const float *restrict x = w->x;
    for (int64_t i = 0; i < s.a; i++)
        y[i] = mpp_gelu_tanh(x[i]);
}

static void run_gelu_grad(struct worker *w, struct shape s)
{
    float *restrict y = w->y;
    const float *restrict x = w->x;
    for (int64_t i = 0; i < s.a; i++)
        y[i] = mpp_gelu_tanh_grad(x[i]) * x[i];
}

static struct mpp_extent whole(int64_t n)
{
    return (struct mpp_extent){n, n, n, 0};
}

static struct mpp_attention attention_of(struct shape s)
{
    return (struct mpp_attention){.batch = whole(s.a), .seq_q = whole(s.b), .seq_k = whole(s.b), .heads = whole(s.c),
                                  .head_dim = s.d, .scale = 0.125f, .causal = true};
}

static void run_attention(struct worker *w, struct shape s)
{
    struct mpp_attention a = attention_of(s);
    int64_t n = s.a * s.b * s.c * s.d;
    mpp_attention_forward(&w->r, &a, w->x, w->x + n, w->x + 2 * n, NULL, w->y, w->y + n);
}

static void run_attention_grad(struct worker *w, struct shape s)
{
    struct mpp_attention a = attention_of(s);
    int64_t n = s.a * s.b * s.c * s.d;
    mpp_attention_backward(&w->r, &a, w->x, w->x + n, w->x + 2 * n, NULL, w->y, w->y + n, w->x, w->z, w->z + n, w->z + 2 * n);
}

static void run_layernorm(struct worker *w, struct shape s)
{
    mpp_layernorm_forward(&w->r, 0, s.a, whole(s.b), 1e-5f, w->x, NULL, NULL, w->y, w->z, w->z + s.a);
}

/* Runs until the time is up; all workers run as many batches of as many calls as the first. */
static void measure(struct worker *w, const char *name, int n_sizes, kernel *fn, struct shape s)
{
    struct bench *b = w->bench;
    int64_t calls = 1;
    int n = 0;
    double begun = clock_s(CLOCK_MONOTONIC);
    for (bool warm = false; n < MAX_BATCHES;) {
        pthread_barrier_wait(&b->start);
        double cpu = clock_s(CLOCK_THREAD_CPUTIME_ID);
        for (int64_t i = 0; i < calls; i++)
            fn(w, s);
        w->seconds[n] = (clock_s(CLOCK_THREAD_CPUTIME_ID) - cpu) / (double)calls;
        if (w->r.rank == 0) {
            b->took[0] = w->seconds[n] * (double)calls;
            b->took[1] = clock_s(CLOCK_MONOTONIC) - begun;
        }
        pthread_barrier_wait(&b->start);
        if (!warm && b->took[0] < 1e-3 && calls < 1 << 20)
            calls *= 4;
        else if (!warm)
            warm = true;
        else if (++n >= 5 && b->took[1] > b->each_s)
            break;
    }
    if (w->r.rank != 0)
        return;
    const int64_t sizes[] = {s.a, s.b, s.c, s.d};
    printf("%s", name);
    for (int i = 0; i < n_sizes; i++)
        printf(" %lld", (long long)sizes[i]);
    printf(" %.9g\n", quartile(w->seconds, n));
    fflush(stdout);
}

static void *kernels_main(void *arg)
{
    static const struct shape gemms[] = {
        {2048, 1024, 1024, 0}, {512, 512, 512, 0}, {512, 2048, 512, 1}, {512, 512, 2048, 2}, {256, 256, 256, 0},
        {256, 1024, 256, 1}, {1024, 256, 64, 0}, {64, 1024, 256, 1}, {128, 128, 512, 2}, {64, 64, 1024, 0},
        {32, 768, 256, 1}, {128, 4096, 128, 1}, {2048, 64, 256, 0}, {64, 64, 64, 0}, {16, 512, 512, 1},
        {256, 192, 64, 2}, {96, 384, 96, 0}, {512, 128, 32, 2}, {1024, 32, 256, 0}, {8, 256, 1024, 1}};
    static const int64_t passes[] = {4 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20};
    struct worker *w = arg;
    measure(w, "launch", 0, run_gemm, (struct shape){4, 4, 4, 0});
    for (int i = 0; i < COUNT(gemms); i++)
        measure(w, "gemm", 4, run_gemm, gemms[i]);
    for (int i = 0; i < COUNT(passes); i++)
        measure(w, "memory", 1, run_memory, (struct shape){.a = passes[i]});
    static const struct shape attentions[] = {{2, 64, 4, 32}, {2, 256, 4, 64}};
    for (int i = 0; i < COUNT(attentions); i++) {
        measure(w, "attention", 4, run_attention, attentions[i]);
        measure(w, "attention_grad", 4, run_attention_grad, attentions[i]);
    }
    measure(w, "gelu", 1, run_gelu, (struct shape){.a = 64 << 10});
    measure(w, "gelu_grad", 1, run_gelu_grad, (struct shape){.a = 64 << 10});
    measure(w, "layernorm", 2, run_layernorm, (struct shape){.a = 256, .b = 256});
    return NULL;
}

/* ---- collectives -------------------------------------------------------------------------------- */

static void measure_all_reduce(struct worker *w, int64_t count)
{
    struct bench *b = w->bench;
    double begun = clock_s(CLOCK_MONOTONIC);
    int n = 0;
    for (bool more = true; more;) {
        for (int64_t k = 0; k < count; k += 16) /* in the writer's cache, as after a kernel; sums stay finite */
            w->x[k] = 0.5f;
        w->r.transport->ops->barrier(&w->r, 1);
        double start = clock_s(CLOCK_MONOTONIC);
        mpp_all_reduce(&w->r, 1, w->x, count, MPP_REDUCE_SUM);
        double end = clock_s(CLOCK_MONOTONIC);
        w->seconds[n++] = end - start;
        if (w->r.rank == 0)
            b->took[0] = n >= MAX_BATCHES || (n >= 5 && end - begun > b->each_s) ? 0 : 1;
        w->r.transport->ops->barrier(&w->r, 1);
        more = b->took[0] > 0;
        w->r.transport->ops->barrier(&w->r, 1);
    }
    if (w->r.rank == 0)
        printf("all_reduce %d %lld %.9g\n", b->n, (long long)count * 4, quartile(w->seconds, n));
    fflush(stdout);
}

static void *collectives_main(void *arg)
{
    static const int64_t counts[] = {1, 1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20};
    struct worker *w = arg;
    if (setjmp(w->local.leave) != 0)
        return NULL;
    for (int i = 0; i < COUNT(counts); i++)
        measure_all_reduce(w, counts[i]);
    return NULL;
}

/* ---- threads ------------------------------------------------------------------------------------ */

static bool set_up(struct bench *b, int n, double each_s, struct mpp_transport *transport)
{
    b->n = n;
    b->each_s = each_s;
    b->worker = calloc((size_t)n, sizeof *b->worker);
    for (int i = 0; b->worker != NULL && i < n; i++) {
        struct worker *w = &b->worker[i];
        w->r = (struct mpp_rank){.n_threads = 1, .transport = transport, .impl = &w->local};
        mpp_mesh_place(&w->r, &b->program, i);
        w->bench = b;
        w->x = malloc((size_t)LARGEST * sizeof *w->x);
        w->y = malloc((size_t)LARGEST * sizeof *w->y);
        w->z = malloc((size_t)LARGEST * sizeof *w->z);
        w->r.workspace = malloc(MPP_SCRATCH_BYTES);
        if (w->x == NULL || w->y == NULL || w->z == NULL || w->r.workspace == NULL)
            return false;
        for (int64_t k = 0; k < LARGEST; k++) {
            w->x[k] = (float)(k % 13) / 16.0f - 0.4f;
            w->y[k] = (float)(k % 7) / 8.0f - 0.4f;
            w->z[k] = 0.0f;
        }
    }
    return b->worker != NULL;
}

static void tear_down(struct bench *b)
{
    for (int i = 0; b->worker != NULL && i < b->n; i++) {
        free(b->worker[i].x);
        free(b->worker[i].y);
        free(b->worker[i].z);
        free(b->worker[i].r.workspace);
    }
    free(b->worker);
}

/* MAIN on N threads at once; false: the system has no memory or threads for that. */
static bool run(int n, double each_s, void *(*thread_main)(void *), bool talk)
{
    struct bench b = {.stage = {.n_axes = 1, .axis_size = {n}}, .program = {.n_stages = 1}};
    b.stages[0] = &b.stage;
    b.program.stages = b.stages;
    struct mpp_error error = {0};
    struct mpp_transport *transport = talk ? mpp_transport_threads_new(&b.program, &error) : NULL;
    pthread_t threads[MAX_RANKS];
    bool fine = (transport != NULL || !talk) && set_up(&b, n, each_s, transport);
    if (fine)
        pthread_barrier_init(&b.start, NULL, (unsigned)n);
    for (int i = 0; fine && i < n; i++)
        if (pthread_create(&threads[i], NULL, thread_main, &b.worker[i]) != 0) {
            fprintf(stderr, "the system gives no more than %d threads\n", i);
            return false;         /* those that run wait for this one, until the process ends */
        }
    for (int i = 0; fine && i < n; i++)
        pthread_join(threads[i], NULL);
    tear_down(&b);
    if (transport != NULL)
        transport->ops->free(transport);
    if (!fine)
        fprintf(stderr, "out of memory\n");
    return fine;
}

int main(int argc, char **argv)
{
    double each_s = (argc > 1 ? atof(argv[1]) : 30.0) / MEASUREMENTS;
    int cores = argc > 2 ? atoi(argv[2]) : 1;
    cores = cores < 1 ? 1 : cores > MAX_RANKS ? MAX_RANKS : cores;
    mpp_blas_alone();
    return run(cores, each_s, kernels_main, false) && run(2, each_s, collectives_main, true)
           && run(4, each_s, collectives_main, true) ? 0 : 1;
}
