/* bench_collectives.c - how long the runtime's collectives take, by threads or under MPI.
 *
 *     make -C PLAN                                     # any plan: its build/runtime/ holds the objects
 *     mpicc -std=c17 -D_GNU_SOURCE -O3 -march=native -DMPP_WITH_MPI -Iruntime \
 *         tests/bench/bench_collectives.c $(ls PLAN/build/runtime/[ch]o*/*.o | grep -v core/main.o) \
 *         -lopenblas -lpthread -lm -o bench_collectives
 *     ./bench_collectives 2                            # two ranks, threads
 *     mpirun -n 2 ./bench_collectives                  # the same, processes
 *
 * Of each size the best and the median of several calls, each begun at a barrier, as rank 0 sees them; and bytes of
 * the whole array over the median. */
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "core/job.h"
#include "core/transport.h"
#include "mpp_rt.h"

#define LARGEST ((int64_t)1 << 25) /* floats */
#define RUNS 200

struct bench_rank {
    struct mpp_rank r;
    struct mpp_local local;
    float *x, *y;
};

static double clock_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void call(struct bench_rank *b, int which, int64_t count)
{
    struct mpp_rank *r = &b->r;
    switch (which) {
    case 0: r->transport->ops->barrier(r, 1); break;
    case 1: mpp_all_reduce(r, 1, b->x, count, MPP_REDUCE_SUM); break;
    case 2: mpp_reduce_scatter(r, 1, 1, count, 1, b->x, b->y); break;
    default: mpp_all_gather(r, 1, 1, count, 1, b->y, b->x); break;
    }
}

static void measure(struct bench_rank *b, int which, const char *name, int64_t count)
{
    static const float half = 0.5f;
    double seconds[RUNS];
    int runs = count > 1 << 22 ? 20 : RUNS;
    for (int i = 0; i < runs; i++) {
        for (int64_t k = 0; k < count; k += 16) /* sums must stay finite, and be in the writer's cache as after a kernel */
            b->x[k] = half;
        b->r.transport->ops->barrier(&b->r, 1);
        double begun = clock_s();
        call(b, which, count);
        seconds[i] = clock_s() - begun;
    }
    qsort(seconds, (size_t)runs, sizeof *seconds, by_size);
    if (b->r.rank == 0)
        printf("%-15s %11lld bytes  best %9.1f us  median %9.1f us  %6.2f GB/s\n", name, (long long)count * 4,
               1e6 * seconds[0], 1e6 * seconds[runs / 2], 4e-9 * (double)count / seconds[runs / 2]);
}

static void *rank_main(void *arg)
{
    static const char *const names[] = {"barrier", "all-reduce", "reduce-scatter", "all-gather"};
    static const int64_t counts[] = {1, 512, 1 << 14, 512 * 768, 1 << 22, LARGEST};
    struct bench_rank *b = arg;
    if (setjmp(b->local.leave) != 0)
        return NULL;
    for (int which = 0; which < 4; which++)
        for (int i = 0; i < (which == 0 ? 1 : 6); i++)
            measure(b, which, names[which], which == 0 ? 0 : counts[i]);
    return NULL;
}

static float *large_array(void)
{
    float *x = aligned_alloc(1 << 21, (size_t)LARGEST * sizeof *x);
    if (x != NULL) {
        madvise(x, (size_t)LARGEST * sizeof *x, MADV_HUGEPAGE);
        memset(x, 0, (size_t)LARGEST * sizeof *x);
    }
    return x;
}

static int set_up(struct bench_rank *b, const struct mpp_program *p, struct mpp_transport *t, int rank)
{
    const struct mpp_stage *stage = p->stages[0];
    *b = (struct bench_rank){.r = {.rank = rank, .n_ranks = stage->axis_size[0], .n_axes = 1, .program = p, .stage = stage,
                                   .transport = t, .axis_size = {stage->axis_size[0]}, .coord = {rank}}};
    b->x = large_array();
    b->y = large_array();
    b->r.workspace = (char *)b->x;
    b->r.impl = &b->local;
    return b->x != NULL && b->y != NULL ? 0 : 1;
}

static int run_threads(const struct mpp_program *p)
{
    struct mpp_error error = {0};
    int n = p->stages[0]->axis_size[0], failed = 0;
    struct bench_rank *ranks = calloc((size_t)n, sizeof *ranks);
    pthread_t *threads = calloc((size_t)n, sizeof *threads);
    struct mpp_transport *t = mpp_transport_threads_new(p, &error);
    for (int i = 0; t != NULL && ranks != NULL && threads != NULL && i < n; i++)
        failed |= set_up(&ranks[i], p, t, i);
    if (t == NULL || ranks == NULL || threads == NULL || failed) {
        fprintf(stderr, "error: out of memory %s\n", error.text);
        return 1;
    }
    for (int i = 0; i < n; i++)
        pthread_create(&threads[i], NULL, rank_main, &ranks[i]);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    t->ops->free(t);
    return 0;
}

int main(int argc, char **argv)
{
    struct mpp_stage stage = {.n_axes = 1, .axis_size = {argc > 1 ? atoi(argv[1]) : 2}};
    const struct mpp_stage *const stages[] = {&stage};
    const struct mpp_program p = {.n_stages = 1, .stages = stages};
#ifdef MPP_WITH_MPI
    const char *size = getenv("OMPI_COMM_WORLD_SIZE") != NULL ? getenv("OMPI_COMM_WORLD_SIZE") : getenv("PMI_SIZE");
    if (size != NULL) {
        struct bench_rank b;
        struct mpp_error error = {0};
        struct mpp_transport_settings settings = {0};
        int rank;
        stage.axis_size[0] = atoi(size);
        struct mpp_transport *t = mpp_transport_mpi_new(&p, &settings, &rank, &error);
        if (t == NULL || set_up(&b, &p, t, rank) != 0) {
            fprintf(stderr, "error: %s\n", error.text);
            return 1;
        }
        rank_main(&b);
        t->ops->free(t);
        return 0;
    }
#endif
    return run_threads(&p);
}
