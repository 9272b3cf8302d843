/* Threads of a rank: every kernel gives the same bits for any number of threads (products, which a BLAS cuts up
 * differently, the same up to rounding, and the same bits each time), the pool runs each share once, and a rank
 * gets the threads that the environment and the cores allow. */
#include "kernels_testing.h"
#include "team.h"
#include "host/threads.h"

#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

enum { ROWS = 300, COLS = 410, N = ROWS * COLS, MAX_OUT = 4 * N };

static const int counts[] = {1, 2, 3, 7};

static struct mpp_rank rank_with(int n_threads)
{
    struct mpp_rank r = {.n_ranks = 1, .step = 3, .micro_batch = 1, .micro_batches = 2, .seed = 77, .training = true,
                         .program = &test_program,
                         .hyper = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .momentum = 0.9}};
    r.workspace = aligned_alloc(64, MPP_SCRATCH_BYTES);
    check(mpp_threads_begin(&r, n_threads, 1), "threads begin");
    return r;
}

static void end_rank(struct mpp_rank *r)
{
    mpp_threads_end(r);
    free(r->workspace);
}

/* ---- kernels -------------------------------------------------------------------------------------------- */

/* Inputs of all cases; OUT of MAX_OUT floats starts as zeros. */
struct data {
    float *x, *y, *row, *row2, *stats;
    int32_t *ids;
};

static const struct mpp_extent cols = {COLS, COLS, COLS, 0};
static const struct mpp_space rows = {2, {10, 30}, {10, 29}};

static void run_layernorm(struct mpp_rank *r, const struct data *d, float *out)
{
    float *mean = out + 2 * N, *rstd = mean + ROWS, *dgamma = rstd + ROWS, *dbeta = dgamma + COLS;
    mpp_layernorm_forward(r, 0, ROWS, cols, 1e-5f, d->x, d->row, d->row2, out, mean, rstd);
    mpp_layernorm_backward(r, 0, &rows, cols, d->x, d->row, mean, rstd, d->y, out + N, dgamma, dbeta);
}

static void run_softmax(struct mpp_rank *r, const struct data *d, float *out)
{
    mpp_softmax_forward(r, 0, ROWS, cols, d->x, out);
    mpp_softmax_backward(r, 0, ROWS, cols, out, d->y, out + N);
}

static void run_cross_entropy(struct mpp_rank *r, const struct data *d, float *out)
{
    float one = 1, scale = 0.5f;
    mpp_cross_entropy_forward(r, 0, &rows, cols, 3, d->x, d->ids, &scale, out + N, out + N + ROWS);
    mpp_cross_entropy_backward(r, &rows, cols, 3, d->x, d->ids, out + N, &scale, &one, out);
}

static void run_embedding(struct mpp_rank *r, const struct data *d, float *out)
{
    struct mpp_extent vocabulary = {250, 250, 250, 0}, types = {5, 5, 5, 0};
    mpp_embedding_forward(r, &rows, cols, COLS, d->ids, d->x, out);
    mpp_embedding_backward(r, &rows, vocabulary, COLS, d->ids, d->y, 0, out + N);
    mpp_embedding_backward(r, &rows, types, COLS, d->ids, d->y, 0, out + 2 * N);
}

static void run_optimizers(struct mpp_rank *r, const struct data *d, float *out)
{
    struct mpp_space whole = {2, {ROWS, COLS}, {ROWS, COLS}}, cut_rows = {2, {ROWS, COLS}, {ROWS, COLS - 1}};
    memcpy(out, d->x, N * sizeof *out);
    mpp_adamw(r, N, 0.1f, d->row, d->y, out, out + N, out + 2 * N);
    mpp_sgd(r, N, 0.1f, d->row, d->y, out, out + N);
    mpp_sgd(r, N, 0.1f, d->row, d->y, out, NULL);
    mpp_square_sum(r, &whole, d->x, out + 3 * N);
    mpp_square_sum(r, &cut_rows, d->x, out + 3 * N + 1);
}

static void run_attention(struct mpp_rank *r, const struct data *d, float *out)
{
    /* two samples, 140 queries, 140 keys, 5 heads of 8; all in the first N elements */
    struct mpp_extent two = {2, 2, 2, 0}, heads = {5, 5, 5, 0}, seq = {140, 140, 139, 0};
    struct mpp_attention a = {.batch = two, .seq_q = seq, .seq_k = seq, .heads = heads, .head_dim = 8, .scale = 0.4f,
                              .dropout = 0.1f, .causal = true, .op = 5};
    int64_t n = 2 * 140 * 5 * 8;
    const float *q = d->x, *k = d->x + n, *v = d->x + 2 * n, *dy = d->y;
    float *y = out, *lse = out + n, *dq = lse + 2 * 5 * 140, *dk = dq + n, *dv = dk + n;
    mpp_attention_forward(r, &a, q, k, v, NULL, y, lse);
    mpp_attention_backward(r, &a, q, k, v, NULL, y, lse, dy, dq, dk, dv);
}

static void run_einsum(struct mpp_rank *r, const struct data *d, float *out)
{
    /* a small product per sample and head, enough of them to be shared; then loops without any product */
    int64_t q[4] = {5, 70, 6, 13}, s[4] = {5, 6, 70, 70}, valid[5] = {5, 70, 5, 13, 69}, list[2] = {ROWS, COLS};
    mpp_einsum(r, "bqnd,bknd->bnqk", d->x, q, d->y, q, 0, out, s, valid);
    mpp_einsum(r, "ij,ij->ij", d->x, list, d->y, list, 0, out + 2 * N, list, list);
}

static void run_gemm(struct mpp_rank *r, const struct data *d, float *out)
{
    mpp_gemm(r, false, false, 290, 310, 390, d->x, COLS, d->y, 311, 0, out, COLS);
    mpp_gemm(r, false, true, 290, 310, 390, d->x, 395, d->y, 393, 0, out + N, COLS);
    mpp_gemm(r, true, false, 7, 400, 300, d->x, COLS, d->y, COLS, 0, out + 2 * N, COLS);
    mpp_gemm(r, true, false, 400, 5, 300, d->x, COLS, d->y, COLS, 0, out + 3 * N, 300);
    mpp_gemm(r, true, true, 400, 290, 300, d->x, COLS, d->y, 301, 1, out + 3 * N, 300);
}

static void run_after(struct mpp_rank *r, const struct data *d, float *out)
{
    mpp_gemm_add(r, false, false, 290, 310, 390, d->x, COLS, d->y, 311, d->row, d->y, out, COLS);
    mpp_gemm_gelu(r, false, true, 290, 310, 390, d->x, 395, d->y, 393, d->row2, out + N, out + 2 * N, COLS);
}

static const struct {
    const char *name;
    void (*run)(struct mpp_rank *r, const struct data *d, float *out);
    bool same_bits;
} cases[] = {
    {"layernorm", run_layernorm, true},   {"softmax", run_softmax, true}, {"cross entropy", run_cross_entropy, true},
    {"embedding", run_embedding, true},   {"optimisers", run_optimizers, true}, {"attention", run_attention, true},
    {"einsum", run_einsum, true},         {"gemm", run_gemm, false},
    {"gemm and what follows", run_after, false},
};

static void test_kernels(void)
{
    struct data d = {.x = random_floats(1, N), .y = random_floats(2, N), .row = random_floats(3, COLS),
                     .row2 = random_floats(4, COLS), .ids = calloc(ROWS, sizeof(int32_t))};
    float *first = floats(MAX_OUT), *again = floats(MAX_OUT), *got = floats(MAX_OUT);
    uint64_t seed = 9;
    for (int i = 0; i < ROWS; i++)
        d.ids[i] = (int32_t)random_below(&seed, i % 2 ? 5 : 250);
    for (int c = 0; c < COUNT(cases); c++)
        for (int k = 0; k < COUNT(counts); k++) {
            struct mpp_rank r = rank_with(counts[k]);
            float *out = k == 0 ? first : got;
            memset(out, 0, MAX_OUT * sizeof *out);
            memset(again, 0, MAX_OUT * sizeof *again);
            cases[c].run(&r, &d, out);
            cases[c].run(&r, &d, again);
            check(memcmp(out, again, MAX_OUT * sizeof *out) == 0, cases[c].name);
            if (cases[c].same_bits)
                check(memcmp(out, first, MAX_OUT * sizeof *out) == 0, cases[c].name);
            double *want = widened(first, MAX_OUT);
            check_close(cases[c].name, out, want, MAX_OUT, 2e-6);
            free(want);
            end_rank(&r);
        }
    free(d.x), free(d.y), free(d.row), free(d.row2), free(d.ids), free(first), free(again), free(got);
}

/* ---- the pool --------------------------------------------------------------------------------------------- */

/* Loops of few and many iterations, one after another: each iteration runs once, shares differ while they run. */
static void test_loops(void)
{
    enum { ITERATIONS = 500 };
    for (int k = 0; k < COUNT(counts); k++) {
        struct mpp_rank r = rank_with(counts[k]);
        int times[ITERATIONS] = {0}, wanted[ITERATIONS] = {0};
        atomic_int busy[8] = {0}, shared_twice = 0;
        for (int region = 0; region < 3000; region++) {
            int64_t n = region % 7 == 0 ? ITERATIONS : region % 9;
            MPP_PARALLEL(&r, MPP_PARALLEL_WORK)
            for (int64_t i = 0; i < n; i++) {
                int share = mpp_team_share();
                if (share >= counts[k] || atomic_fetch_add(&busy[share], 1) > 0)
                    atomic_fetch_add(&shared_twice, 1);
                times[i]++;
                atomic_fetch_sub(&busy[share], 1);
            }
            for (int64_t i = 0; i < n; i++)
                wanted[i]++;
        }
        check(memcmp(times, wanted, sizeof times) == 0, "each iteration once");
        check(shared_twice == 0, "a share has one thread");
        check(mpp_team_share() == 0, "share outside a loop");
        end_rank(&r);
    }
}

/* A loop inside a shared one is not shared again, and a short one not at all. */
static void test_inner_loops(void)
{
    struct mpp_rank r = rank_with(3);
    int sums[6] = {0}, alone = 0;
    MPP_PARALLEL(&r, MPP_PARALLEL_WORK)
    for (int64_t i = 0; i < 6; i++) {
        MPP_PARALLEL(&r, MPP_PARALLEL_WORK)
        for (int64_t j = 0; j < 100; j++)
            sums[i] += (int)j;
    }
    for (int i = 0; i < 6; i++)
        check(sums[i] == 4950, "an inner loop stays with its thread");
    pthread_t self = pthread_self();
    MPP_PARALLEL(&r, MPP_PARALLEL_WORK - 1)
    for (int64_t i = 0; i < 100; i++)
        alone += pthread_equal(self, pthread_self()) != 0;
    check(alone == 100, "a short loop wakes nobody");
    end_rank(&r);
}

/* ---- how many ------------------------------------------------------------------------------------------------ */

static void test_share(void)
{
    bool built = mpp_threads_built();
    setenv("OMP_NUM_THREADS", "3", 1);
    check(mpp_threads_share(4, false) == (built ? 3 : 1), "OMP_NUM_THREADS");
    setenv("OMP_NUM_THREADS", "5,2", 1);
    check(mpp_threads_share(1, true) == (built ? 5 : 1), "the first number of OMP_NUM_THREADS");
    setenv("OMP_NUM_THREADS", "999999", 1);
    check(mpp_threads_share(1, false) <= MPP_MAX_THREADS, "no more than there may be");
    unsetenv("OMP_NUM_THREADS");
    int all = mpp_threads_share(1, false);
    check(all >= 1 && all <= (int)sysconf(_SC_NPROCESSORS_ONLN), "no more than processors");
    check(mpp_threads_share(100000, false) == 1, "one where ranks are many");
    check(mpp_threads_share(2, false) <= (all > 1 ? all / 2 : 1), "ranks share the cores");
    cpu_set_t before, one;
    sched_getaffinity(0, sizeof before, &before);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &before))
            CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    check(mpp_threads_share(1, false) == 1, "bound to one CPU");
    check(mpp_threads_share(1, true) == 1, "bound to one CPU by mpirun");
    sched_setaffinity(0, sizeof before, &before);
}

int main(void)
{
    mpp_blas_alone();
    test_kernels();
    test_loops();
    test_inner_loops();
    test_share();
    return report();
}
