/* Ranks that are held up: by a peer that has failed, in the middle of calls of NCCL or in a wait for a GPU that does not go on, and by
 * a GPU that takes long, which is no hang. The GPU's pace is set here (shim_capture.h). */
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/device.h"
#include "core/job.h"
#include "core/transfers.h"
#include "core/transport.h"
#include "core/waits.h"
#include "cuda/cuda_internal.h"

void mpp_shim_pace(long long works);

enum { RANKS = 2, N = 6000, ARENA = 1 << 17, NONE = -1 };

static int passed, failed;

static void expect(bool ok, const char *what)
{
    passed += ok;
    failed += !ok;
    if (!ok)
        fprintf(stderr, "failed: %s\n", what);
}

/* ---- a job of two ranks: one stage, or two and a transfer between them ------------------------------------------------------- */

static struct mpp_stage whole = {.n_axes = 1, .axis_size = {RANKS}, .axis_name = {"data"}}, half[2] = {{.first_rank = 0}, {.first_rank = 1}};
static const struct mpp_stage *one_stage[] = {&whole}, *two_stages[] = {&half[0], &half[1]};
static struct mpp_transfer message = {.name = "h", .type = MPP_TYPE_F32, .from = 0, .to = 1, .n_dims = 1, .dims = {64}, .depth = 4,
                                      .stride = 256};
static const struct mpp_program summing = {.n_stages = 1, .stages = one_stage, .micro_batches = 1},
                                sending = {.n_stages = 2, .stages = two_stages, .n_transfers = 1, .transfers = &message,
                                           .micro_batches = 1};

struct one {
    struct mpp_rank r;
    struct mpp_local local;
    void (*work)(struct one *self);
    struct one *other;
    float *x, *y; /* [N] on the device */
    atomic_bool has_left, goes_on;
};

static void *rank_main(void *arg)
{
    struct one *self = arg;
    struct mpp_error error;
    if (setjmp(self->local.leave) == 0) {
        if (mpp_device_attach(&self->r, self->r.rank, &error) != MPP_EXIT_OK)
            mpp_fail(&self->r, MPP_EXIT_SYSTEM, "%s", error.text);
        self->work(self);
    }
    atomic_store(&self->has_left, true);
    return NULL;
}

/* Each rank's work on a thread of its own; their exit codes are as WANTED. */
static void run(const struct mpp_program *p, void (*work)(struct one *), void (*work_1)(struct one *), int wanted, const char *what)
{
    struct mpp_error error;
    struct mpp_transport *t = mpp_transport_threads_new(p, &error);
    static struct one ranks[RANKS];
    pthread_t threads[RANKS];
    memset(ranks, 0, sizeof ranks);
    for (int i = 0; i < RANKS; i++) {
        struct one *o = &ranks[i];
        *o = (struct one){.r = {.transport = t, .impl = &o->local}, .work = i == 0 ? work : work_1, .other = &ranks[1 - i]};
        mpp_mesh_place(&o->r, p, i);
        o->r.arena = aligned_alloc(64, ARENA);
        o->x = calloc(N, sizeof *o->x);
        o->y = calloc(N, sizeof *o->y);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_create(&threads[i], NULL, rank_main, &ranks[i]);
    for (int i = 0; i < RANKS; i++)
        pthread_join(threads[i], NULL);
    mpp_shim_pace(-1);
    for (int i = 0; i < RANKS; i++) {
        expect(ranks[i].local.exit_code == wanted, what);
        mpp_device_detach(&ranks[i].r);
        free(ranks[i].r.arena);
        free(ranks[i].x);
        free(ranks[i].y);
    }
    t->ops->free(t);
}

static void wait_until(const atomic_bool *flag)
{
    while (!atomic_load(flag))
        usleep(1000);
}

/* ---- a peer that has failed ------------------------------------------------------------------------------------------------- */

static const int64_t dims[] = {2, 4};

static void communicate(struct one *self)
{
    mpp_all_reduce_begin(&self->r, 1, self->x, 8);
    mpp_all_reduce_begin(&self->r, 1, self->y, 8);
    mpp_wait(&self->r);
    mpp_all_to_all(&self->r, 1, 2, dims, 0, 4, 1, self->x, self->y);
}

/* With communicators made. */
static void fail_later(struct one *self)
{
    communicate(self);
    mpp_fail(&self->r, MPP_EXIT_INPUT, "this message is expected");
}

static void sum_later(struct one *self)
{
    communicate(self);
    wait_until(&self->other->has_left);
    mpp_all_reduce_begin(&self->r, 1, self->x, 8);
    mpp_all_reduce_begin(&self->r, 1, self->y, 8);
    mpp_wait(&self->r);
    expect(false, "sums with a rank that has left");
}

static void exchange_later(struct one *self)
{
    communicate(self);
    wait_until(&self->other->has_left);
    mpp_all_to_all(&self->r, 1, 2, dims, 0, 4, 1, self->x, self->y);
    expect(false, "an exchange with a rank that has left");
}

/* The first rank's GPU does nothing any more; the other rank fails meanwhile. */
static void fail_when_waited_for(struct one *self)
{
    while (mpp_wait_of(&self->other->r) == 0)
        usleep(1000);
    mpp_fail(&self->r, MPP_EXIT_INPUT, "this message is expected");
}

static void grow_scratch(struct one *self)
{
    (void)mpp_cuda_scratch(&self->r, MPP_SCRATCH_PACK, 100);
    mpp_shim_pace(0);
    mpp_zero(&self->r, self->x, sizeof *self->x);
    (void)mpp_cuda_scratch(&self->r, MPP_SCRATCH_PACK, 1000);
    expect(false, "memory that a stuck GPU uses is replaced");
}

static void get(struct one *self)
{
    float x;
    mpp_shim_pace(0);
    mpp_zero(&self->r, self->x, sizeof *self->x);
    mpp_device_get(&self->r, &x, self->x, sizeof x);
    expect(false, "a stuck GPU is read from");
}

static void put(struct one *self)
{
    static const char from[ARENA]; /* more than is staged */
    mpp_shim_pace(0);
    mpp_zero(&self->r, self->x, sizeof *self->x);
    mpp_device_put(&self->r, self->r.arena, from, sizeof from);
    expect(false, "a large array goes to a stuck GPU");
}

/* ---- a send that nobody takes yet ----------------------------------------------------------------------------------------------- */

static void take(struct one *self)
{
    mpp_receive(&self->r, 0, self->x);
    wait_until(&self->other->goes_on);
    mpp_receive(&self->r, 0, self->x);
}

/* cudaFree would wait for it. */
static void grow_beside_send(struct one *self)
{
    struct mpp_device *d = self->r.device;
    char *before = mpp_cuda_scratch(&self->r, MPP_SCRATCH_BESIDE, 100);
    mpp_send(&self->r, 0, self->x);
    mpp_shim_pace(1);
    mpp_send(&self->r, 0, self->x); /* a copy into the ring, which is done, and the send, which is not */
    expect(mpp_channels_busy(&self->r) != NULL && cudaStreamQuery(d->compute) == cudaSuccess, "a send is under way");
    int64_t bytes = d->outside_bytes;
    char *after = mpp_cuda_scratch(&self->r, MPP_SCRATCH_BESIDE, 1000);
    expect(after != before && d->n_outgrown == 1 && d->outside_bytes == bytes + 1000, "both memories are there");
    mpp_device_synchronize(&self->r);
    expect(d->n_outgrown == 1, "while the send is");
    mpp_shim_pace(-1);
    atomic_store(&self->goes_on, true);
    mpp_device_synchronize(&self->r);
    expect(d->n_outgrown == 0 && d->outside_bytes == bytes + 900, "the old one goes when the GPU is idle");
}

/* ---- a GPU that takes long --------------------------------------------------------------------------------------------------------- */

static bool says(const struct mpp_rank *ranks, const uint64_t *words, const char *wanted)
{
    struct mpp_watched watched[RANKS] = {{.idle = true, .waits = words[0]}, {.idle = true, .waits = words[1]}};
    char text[640] = "";
    int stuck;
    bool hung = mpp_hang_find(ranks[0].program, RANKS, watched, 3, &stuck, text, sizeof text);
    bool ok = hung == (wanted != NULL) && (wanted == NULL || strstr(text, wanted) != NULL);
    if (!ok)
        fprintf(stderr, "said: %s\n", text);
    return ok;
}

struct waiting {
    struct one *self;
    atomic_bool done;
};

static void *wait_main(void *arg)
{
    struct waiting *w = arg;
    mpp_device_synchronize(&w->self->r);
    atomic_store(&w->done, true);
    return NULL;
}

/* The rank moves before two minutes are over. */
static bool moves(const struct mpp_rank *r, uint64_t *ticks)
{
    uint64_t before = *ticks;
    for (int i = 0; i < 12000 && *ticks == before; i++) {
        usleep(i < 1000 ? 100 : 10000);
        *ticks = __atomic_load_n(&r->ticks, __ATOMIC_RELAXED);
    }
    return *ticks != before;
}

/* Each of PRODUCTS products is a work, and so is each sum after GROUP of them; the GPU does one after the other. */
static void step_slowly(struct one *self, int products, int group)
{
    struct mpp_rank *r = &self->r;
    struct waiting w = {.self = self};
    pthread_t thread;
    int works = 0;
    mpp_device_synchronize(r);
    mpp_shim_pace(0);
    for (int i = 1; i <= products; i++) {
        mpp_gemm(r, false, false, 2, 2, 2, self->x, 2, self->x + 4, 2, 0, self->y, 2);
        works++;
        if (i % group == 0) {
            mpp_all_reduce(r, 1, self->y, 4, MPP_REDUCE_SUM);
            works++;
        }
    }
    int apart = r->device->marks.every;
    expect(r->device->marks.n <= MPP_MARKS && (apart > 1) == (works > MPP_MARKS), "marks are as far apart as is needed");
    pthread_create(&thread, NULL, wait_main, &w);
    while (mpp_wait_of(r) == 0 && !atomic_load(&w.done))
        usleep(100);
    uint64_t ticks = __atomic_load_n(&r->ticks, __ATOMIC_RELAXED), in = (uint64_t)1 << 63 | mpp_wait_word(MPP_WAIT_ALL_REDUCE, 1);
    uint64_t own = (uint64_t)1 << 63 | mpp_wait_word(MPP_WAIT_GPU, 0);
    for (int i = 1; i < works; i++) {
        mpp_shim_pace(i);
        if (i % (2 * apart) != 0)
            continue;
        expect(moves(r, &ticks), "a GPU that goes on is a rank that moves");
        uint64_t word = mpp_wait_of(r);
        expect(word == in || word == own, "it is told what the GPU is at");
    }
    for (int i = 0; products == group && i < 12000 && mpp_wait_of(r) != in; i++) /* the word comes after the move */
        usleep(10000);
    expect(products > group || mpp_wait_of(r) == in, "the GPU is in a sum");
    mpp_shim_pace(-1);
    pthread_join(thread, NULL);
    expect(mpp_wait_of(r) == 0, "then it is done");
}

static void follow(struct one *self)
{
    for (int i = 0; i < 1 + 1 + 40; i++)
        mpp_all_reduce(&self->r, 1, self->y, 4, MPP_REDUCE_SUM);
}

static void lead(struct one *self)
{
    mpp_all_reduce(&self->r, 1, self->y, 4, MPP_REDUCE_SUM);
    step_slowly(self, 6, 6);
    step_slowly(self, 400, 10);
}

static void test_words(void)
{
    struct mpp_rank ranks[RANKS] = {{0}};
    const uint64_t gpu = (uint64_t)1 << 63, own = gpu | mpp_wait_word(MPP_WAIT_GPU, 0), sum = gpu | mpp_wait_word(MPP_WAIT_ALL_REDUCE, 1);
    const uint64_t output = mpp_wait_word(MPP_WAIT_OUTPUT, 0);
    for (int i = 0; i < RANKS; i++)
        mpp_mesh_place(&ranks[i], &summing, i);
    expect(says(ranks, (uint64_t[]){sum, sum}, "all ranks have waited for each other for 3 s (rank 0 and 1 more for its GPU, which is in an "
                                               "all-reduce over data (ranks 0, 1))"), "GPUs that wait for each other");
    expect(says(ranks, (uint64_t[]){sum, own}, "rank 1 has not moved for 3 s while others wait for it (rank 0 for its GPU, which is in an "
                                               "all-reduce over data (ranks 0, 1)): its GPU is stuck"), "a GPU that works too long");
    expect(says(ranks, (uint64_t[]){own, own}, NULL), "GPUs that all work wait for nobody");
    expect(says(ranks, (uint64_t[]){output, sum}, NULL) && says(ranks, (uint64_t[]){output, output}, NULL),
           "who waits for a reader holds up others, and is no hang");
    expect(says(ranks, (uint64_t[]){sum, 0}, "rank 1 has not moved for 3 s while others wait for it (rank 0 for its GPU, which is in an "
                                             "all-reduce over data (ranks 0, 1)): stopped, or stuck"), "a rank that is stuck");
}

int main(void)
{
    test_words();
    run(&summing, sum_later, fail_later, MPP_EXIT_INPUT, "sums end with the job");
    run(&summing, exchange_later, fail_later, MPP_EXIT_INPUT, "an exchange ends with the job");
    run(&summing, grow_scratch, fail_when_waited_for, MPP_EXIT_INPUT, "a wait for a stuck GPU ends with the job");
    run(&summing, get, fail_when_waited_for, MPP_EXIT_INPUT, "and so does one to read from it");
    run(&summing, put, fail_when_waited_for, MPP_EXIT_INPUT, "and one to write to it");
    run(&sending, grow_beside_send, take, MPP_EXIT_OK, "memory grows beside a send");
    run(&summing, lead, follow, MPP_EXIT_OK, "a slow GPU is waited for");
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
