/* transport_threads.c - all ranks are threads of one process and read each other's memory.
 *
 * A collective publishes a pointer, meets the group at a barrier, reads what the others published, and
 * meets again so that no one overwrites what is still read. Sums are taken in rank order, so that every
 * member has the same bits and every run gives the same result. What is published may lie on a rank's stack, so a rank that
 * leaves a failed job takes its offers back, or waits until nobody reads them. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flows.h"
#include "mpp_rt.h"
#include "packed.h"
#include "pause.h"
#include "progress.h"
#include "sums.h"
#include "trace.h"
#include "transport.h"
#include "waits.h"

#define MASKS (MPP_WORLD + 1) /* sets of axes, and all ranks */
#define TILE 2048 /* floats summed at a time: in the nearest cache */
#define SPIN_S 100e-6 /* waking a thread takes 15 to 50 us, and makes it late for the next meeting too */

struct group {
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_uint generation;
    atomic_int reading; /* members between the two meetings of a collective */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int n;
    const void **published; /* one per member */
};

/* One direction between two ranks. */
struct channel {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    const void *data; /* non-NULL: offered by the sender, not yet taken */
    int64_t bytes;
};

struct threads {
    struct mpp_transport base;
    const struct mpp_program *program;
    int n_ranks;
    bool spins;
    atomic_int failed; /* exit code, once */
    struct group *groups[MASKS]; /* [n_ranks]; only the entries of group bases are used */
    struct channel *channels;    /* [n_ranks * n_ranks] */
    struct mpp_flows *flows;     /* between stages */
};

static struct threads *threads_of(const struct mpp_rank *r)
{
    return (struct threads *)r->transport;
}

static struct group *group_of(const struct mpp_rank *r, unsigned mask)
{
    struct threads *t = threads_of(r);
    return &t->groups[mask][mpp_mesh_group_base(t->program, r->rank, mask)];
}

static int threads_failed(struct mpp_rank *r)
{
    return atomic_load(&threads_of(r)->failed);
}

static void leave_if_failed(struct mpp_rank *r)
{
    int code = atomic_load(&threads_of(r)->failed);
    if (code != 0)
        mpp_leave(r, code);
}

/* Wait a moment for the group to pass GENERATION; whoever waits for this core, perhaps the one to come, gets it. */
static void spin_briefly(const struct group *g, unsigned generation)
{
    double begun_s = mpp_clock_s();
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(&g->generation, memory_order_acquire) != generation)
                return;
            mpp_pause();
        }
        sched_yield();
    } while (mpp_clock_s() - begun_s < SPIN_S);
}

/* Who reads said so before it asked whether the job has failed (group_publish), and does not wait for anybody meanwhile. */
static void leave_group_if_failed(struct mpp_rank *r, struct group *g)
{
    if (atomic_load(&threads_of(r)->failed) == 0)
        return;
    while (atomic_load(&g->reading) > 0)
        sched_yield();
    leave_if_failed(r);
}

static void group_meet(struct mpp_rank *r, struct group *g)
{
    struct threads *t = threads_of(r);
    unsigned generation = atomic_load(&g->generation);
    if ((int)atomic_fetch_add(&g->arrived, 1) + 1 == g->n) {
        atomic_store(&g->arrived, 0);
        pthread_mutex_lock(&g->lock);
        atomic_fetch_add(&g->generation, 1);
        pthread_cond_broadcast(&g->wake);
        pthread_mutex_unlock(&g->lock);
    } else {
        if (t->spins)
            spin_briefly(g, generation);
        if (atomic_load(&g->generation) == generation) {
            pthread_mutex_lock(&g->lock);
            while (atomic_load(&g->generation) == generation && atomic_load(&t->failed) == 0)
                pthread_cond_wait(&g->wake, &g->lock);
            pthread_mutex_unlock(&g->lock);
        }
    }
    leave_group_if_failed(r, g);
}

/* Publish X for a collective of KIND, and wait until all have; then the members read, until group_part. */
static struct group *group_publish(struct mpp_rank *r, enum mpp_wait kind, unsigned mask, const void *x)
{
    struct group *g = group_of(r, mask);
    double begun_s = mpp_trace_begin(r);
    mpp_wait_begin(r, kind, (int)mask);
    g->published[mpp_mesh_group_index(r, mask)] = x;
    group_meet(r, g);
    atomic_fetch_add(&g->reading, 1);
    if (atomic_load(&threads_of(r)->failed) != 0) {
        atomic_fetch_sub(&g->reading, 1);
        leave_group_if_failed(r, g);
    }
    mpp_trace_end(r, begun_s, MPP_TRACE_WAIT, 0, 0, 0);
    return g;
}

/* Nothing that others published is read any more. */
static void group_part(struct mpp_rank *r, struct group *g)
{
    atomic_fetch_sub(&g->reading, 1);
    group_meet(r, g);
    mpp_wait_end(r);
}

static void threads_barrier(struct mpp_rank *r, unsigned mask)
{
    mpp_wait_begin(r, MPP_WAIT_BARRIER, (int)mask);
    group_meet(r, group_of(r, mask));
    mpp_wait_end(r);
}

/* Where the elements begin that member M sums, and where they end; shares are multiples of UNIT. */
static int64_t share_of(const struct group *g, int m, int64_t count, int64_t unit, int64_t *end_out)
{
    int64_t share = (count + g->n - 1) / g->n;
    share = (share + unit - 1) / unit * unit;
    int64_t begin = m * share;
    int64_t end = begin + share < count ? begin + share : count;
    *end_out = end;
    return begin;
}

static void threads_all_reduce(struct mpp_rank *r, unsigned mask, float *x, int64_t count, bool maximum)
{
    struct group *g = group_publish(r, MPP_WAIT_ALL_REDUCE, mask, x);
    float acc[TILE];
    int64_t end, begin = share_of(g, mpp_mesh_group_index(r, mask), count, MPP_SUM_LANES, &end);
    for (int64_t i = begin; i < end; i += TILE) {
        int64_t n = end - i < TILE ? end - i : TILE;
        memcpy(acc, (const float *)g->published[0] + i, (size_t)n * sizeof *acc);
        for (int m = 1; m < g->n; m++) {
            const float *from = (const float *)g->published[m] + i;
            if (maximum)
                mpp_max_to(acc, from, n);
            else
                mpp_add_to(acc, from, n);
        }
        /* No other member touches these elements until the barrier. */
        for (int m = 0; m < g->n; m++)
            memcpy((float *)(uintptr_t)g->published[m] + i, acc, (size_t)n * sizeof *acc);
    }
    group_part(r, g);
}

static void threads_all_gather(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, const void *src,
                               void *dst)
{
    struct group *g = group_publish(r, MPP_WAIT_ALL_GATHER, mask, src);
    for (int m = 0; m < g->n; m++) {
        int64_t offset, valid;
        mpp_mesh_block(r, mask, m, cut->extent, &offset, &valid);
        if (valid == 0)
            continue;
        struct mpp_piece piece = {
            .n = {1, 1, cut->outer},
            .src_stride = {0, 0, cut->block * cut->inner},
            .dst_stride = {0, 0, cut->extent * cut->inner},
            .run = valid * cut->inner,
            .bytes = cut->bytes,
        };
        mpp_piece_copy(&piece, g->published[m], (char *)dst + cut->bytes * offset * cut->inner);
    }
    group_part(r, g);
}

static void threads_reduce_scatter(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, const float *src,
                                   float *dst)
{
    struct group *g = group_publish(r, MPP_WAIT_REDUCE_SCATTER, mask, src);
    int64_t offset, valid;
    mpp_mesh_block(r, mask, mpp_mesh_group_index(r, mask), cut->extent, &offset, &valid);
    int64_t run = valid * cut->inner;
    for (int64_t o = 0; o < cut->outer; o++) {
        int64_t from = (o * cut->extent + offset) * cut->inner;
        float *to = dst + o * cut->block * cut->inner;
        for (int64_t i = 0; i < run; i += TILE) {
            int64_t n = run - i < TILE ? run - i : TILE;
            memcpy(to + i, (const float *)g->published[0] + from + i, (size_t)n * sizeof *to);
            for (int m = 1; m < g->n; m++)
                mpp_add_to(to + i, (const float *)g->published[m] + from + i, n);
        }
    }
    group_part(r, g);
}

/* What all members published, from an element on. */
struct published {
    const struct group *group;
    int64_t from;
};

static const uint16_t *half_published(const void *of, int m)
{
    const struct published *x = of;
    return (const uint16_t *)x->group->published[m] + x->from;
}

static void sum_halves(const struct group *g, enum mpp_type type, int64_t from, int64_t count, uint16_t *to)
{
    mpp_packed_sum_halves(type, g->n, half_published, &(struct published){g, from}, count, to);
}

static void threads_all_reduce_half(struct mpp_rank *r, unsigned mask, enum mpp_type type, uint16_t *x, int64_t count)
{
    struct group *g = group_publish(r, MPP_WAIT_ALL_REDUCE, mask, x);
    uint16_t done[TILE];
    int64_t end, begin = share_of(g, mpp_mesh_group_index(r, mask), count, 2 * MPP_SUM_LANES, &end);
    for (int64_t i = begin; i < end; i += TILE) {
        int64_t n = end - i < TILE ? end - i : TILE;
        sum_halves(g, type, i, n, done);
        /* No other member touches these elements until the barrier. */
        for (int m = 0; m < g->n; m++)
            memcpy((uint16_t *)(uintptr_t)g->published[m] + i, done, (size_t)n * sizeof *x);
    }
    group_part(r, g);
}

static void threads_reduce_scatter_half(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, enum mpp_type type,
                                        const uint16_t *src, uint16_t *dst)
{
    struct group *g = group_publish(r, MPP_WAIT_REDUCE_SCATTER, mask, src);
    int64_t offset, valid;
    mpp_mesh_block(r, mask, mpp_mesh_group_index(r, mask), cut->extent, &offset, &valid);
    for (int64_t o = 0; o < cut->outer; o++)
        sum_halves(g, type, (o * cut->extent + offset) * cut->inner, valid * cut->inner, dst + o * cut->block * cut->inner);
    group_part(r, g);
}

static void threads_all_to_all(struct mpp_rank *r, unsigned mask, const struct mpp_exchange *x, const void *src,
                               void *dst)
{
    struct group *g = group_publish(r, MPP_WAIT_ALL_TO_ALL, mask, src);
    int self = mpp_mesh_group_index(r, mask);
    for (int m = 0; m < g->n; m++) {
        int64_t from, to;
        struct mpp_piece piece;
        if (mpp_exchange_piece(r, mask, x, m, self, &from, &to, &piece))
            mpp_piece_copy(&piece, (const char *)g->published[m] + x->bytes * from, (char *)dst + x->bytes * to);
    }
    group_part(r, g);
}

/* ---- point to point: the receiver copies, the sender waits until it has ------------------------- */

static void channel_wait(struct mpp_rank *r, struct channel *c, bool until_full)
{
    while ((c->data != NULL) != until_full) {
        if (atomic_load(&threads_of(r)->failed) != 0) {
            c->data = NULL; /* a sender's own offer: its memory goes with it */
            pthread_mutex_unlock(&c->lock);
            leave_if_failed(r);
        }
        pthread_cond_wait(&c->wake, &c->lock);
    }
}

static void threads_send(struct mpp_rank *r, int to, const void *data, int64_t bytes)
{
    struct channel *c = &threads_of(r)->channels[r->rank * r->n_ranks + to];
    mpp_wait_begin(r, MPP_WAIT_SEND, to);
    pthread_mutex_lock(&c->lock);
    c->data = data;
    c->bytes = bytes;
    pthread_cond_broadcast(&c->wake);
    channel_wait(r, c, false);
    pthread_mutex_unlock(&c->lock);
    mpp_wait_end(r);
}

static void threads_receive(struct mpp_rank *r, int from, void *data, int64_t bytes)
{
    struct channel *c = &threads_of(r)->channels[from * r->n_ranks + r->rank];
    mpp_wait_begin(r, MPP_WAIT_RECEIVE, from);
    pthread_mutex_lock(&c->lock);
    channel_wait(r, c, true);
    bool fits = c->bytes == bytes;
    int64_t offered = c->bytes;
    if (fits && bytes > 0)
        memcpy(data, c->data, (size_t)bytes);
    c->data = NULL;
    pthread_cond_broadcast(&c->wake);
    pthread_mutex_unlock(&c->lock);
    mpp_wait_end(r);
    if (!fits)
        mpp_fail(r, MPP_EXIT_SYSTEM, "rank %d expects %lld bytes from rank %d, which sends %lld", r->rank,
                 (long long)bytes, from, (long long)offered);
}

static void threads_transfer_send(struct mpp_rank *r, int transfer, const void *x)
{
    mpp_wait_begin(r, MPP_WAIT_HAND_OVER, transfer);
    if (!mpp_flows_send(threads_of(r)->flows, r, transfer, x))
        leave_if_failed(r);
    mpp_wait_end(r);
}

static void threads_transfer_receive(struct mpp_rank *r, int transfer, void *x)
{
    mpp_wait_begin(r, MPP_WAIT_TAKE_OVER, transfer);
    if (!mpp_flows_receive(threads_of(r)->flows, r, transfer, x))
        leave_if_failed(r);
    mpp_wait_end(r);
}

/* ---- life ---------------------------------------------------------------------------------------- */

static void wake_all(struct threads *t)
{
    for (unsigned m = 0; m < MASKS; m++)
        for (int i = 0; i < t->n_ranks; i++) {
            struct group *g = t->groups[m] != NULL ? &t->groups[m][i] : NULL;
            if (g == NULL || g->n == 0)
                continue;
            pthread_mutex_lock(&g->lock);
            pthread_cond_broadcast(&g->wake);
            pthread_mutex_unlock(&g->lock);
        }
    for (int i = 0; i < t->n_ranks * t->n_ranks; i++) {
        pthread_mutex_lock(&t->channels[i].lock);
        pthread_cond_broadcast(&t->channels[i].wake);
        pthread_mutex_unlock(&t->channels[i].lock);
    }
    mpp_flows_wake(t->flows);
}

static void threads_abort(struct mpp_rank *r, int code, const char *message)
{
    struct threads *t = threads_of(r);
    int none = 0;
    if (!atomic_compare_exchange_strong(&t->failed, &none, code))
        return;
    fprintf(stderr, "error: %s\n", message);
    fflush(stderr); /* the process may end without more ado (guard.h) */
    wake_all(t);
}

static void threads_free(struct mpp_transport *base)
{
    struct threads *t = (struct threads *)base;
    for (unsigned m = 0; m < MASKS; m++) {
        for (int i = 0; t->groups[m] != NULL && i < t->n_ranks; i++) {
            struct group *g = &t->groups[m][i];
            if (g->n == 0)
                continue;
            pthread_mutex_destroy(&g->lock);
            pthread_cond_destroy(&g->wake);
            free(g->published);
        }
        free(t->groups[m]);
    }
    for (int i = 0; t->channels != NULL && i < t->n_ranks * t->n_ranks; i++) {
        pthread_mutex_destroy(&t->channels[i].lock);
        pthread_cond_destroy(&t->channels[i].wake);
    }
    free(t->channels);
    mpp_flows_free(t->flows);
    free(t);
}

static const struct mpp_transport_ops threads_ops = {
    .name = "threads",
    .free = threads_free,
    .barrier = threads_barrier,
    .all_reduce = threads_all_reduce,
    .all_gather = threads_all_gather,
    .reduce_scatter = threads_reduce_scatter,
    .all_reduce_half = threads_all_reduce_half,
    .reduce_scatter_half = threads_reduce_scatter_half,
    .all_to_all = threads_all_to_all,
    .send = threads_send,
    .receive = threads_receive,
    .transfer_send = threads_transfer_send,
    .transfer_receive = threads_transfer_receive,
    .failed = threads_failed,
    .abort = threads_abort,
};

static bool make_groups(struct threads *t, unsigned mask)
{
    size_t bytes = (size_t)t->n_ranks * sizeof *t->groups[mask];
    t->groups[mask] = aligned_alloc(_Alignof(struct group), bytes);
    if (t->groups[mask] == NULL)
        return false;
    memset(t->groups[mask], 0, bytes);
    for (int i = 0; i < t->n_ranks; i++) {
        struct group *g = &t->groups[mask][i];
        struct mpp_rank base = {0};
        if (mpp_mesh_group_base(t->program, i, mask) != i)
            continue;
        mpp_mesh_place(&base, t->program, i);
        int n = mpp_mesh_group_size(&base, mask);
        g->published = calloc((size_t)n, sizeof *g->published);
        if (g->published == NULL)
            return false;
        pthread_mutex_init(&g->lock, NULL);
        pthread_cond_init(&g->wake, NULL);
        g->n = n;
    }
    return true;
}

struct mpp_transport *mpp_transport_threads_new(const struct mpp_program *program, struct mpp_error *error)
{
    struct threads *t = calloc(1, sizeof *t);
    if (t == NULL) {
        (void)mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
        return NULL;
    }
    t->base.ops = &threads_ops;
    t->program = program;
    t->n_ranks = mpp_mesh_ranks(program);
    /* Where every rank has a core of its own, waiting a moment is cheaper than sleeping. */
    cpu_set_t cores;
    t->spins = sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) >= t->n_ranks;
    bool ok = true;
    for (unsigned mask = 0; ok && mask < MASKS; mask++)
        ok = make_groups(t, mask);
    int pairs = t->n_ranks * t->n_ranks;
    t->channels = ok ? calloc((size_t)pairs, sizeof *t->channels) : NULL;
    if (t->channels == NULL)
        (void)mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    else
        t->flows = mpp_flows_new(program, &t->failed, t->spins, error);
    if (t->flows == NULL) {
        threads_free(&t->base);
        return NULL;
    }
    for (int i = 0; i < pairs; i++) {
        pthread_mutex_init(&t->channels[i].lock, NULL);
        pthread_cond_init(&t->channels[i].wake, NULL);
    }
    return &t->base;
}
