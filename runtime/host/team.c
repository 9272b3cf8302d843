/* team.c - a pool of threads under gcc's OpenMP calls.
 *
 * A region is FN called once for each share 0 .. n - 1. `claim` holds the region's number, n, and the next share that
 * nobody took; who increments it owns that share. A thread that comes late, with the function of a region that has
 * ended, fails to increment. Threads that sleep are counted, so that waking costs nothing where none does. */
#include "team.h"

#if defined(_OPENMP) && !defined(__clang__)

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "core/pause.h"

enum { SPIN_NS = 30000, SPINS_PER_LOOK = 64 };

typedef void region_fn(void *data);

struct mpp_team {
    int n, started;
    bool spins;
    pthread_t *thread; /* [n - 1] */
    _Alignas(64) _Atomic uint64_t claim; /* region << 32 | shares << 16 | next share */
    _Atomic(region_fn *) fn;
    _Atomic(void *) data;
    _Alignas(64) _Atomic unsigned unfinished; /* shares of the region */
    atomic_int sleepers;
    atomic_bool owner_sleeps, stop;
    pthread_mutex_t lock;
    pthread_cond_t begun, finished;
};

/* OpenMP's calls name no team: a thread knows its own, and the share it works on. */
static _Thread_local struct mpp_team *own_team;
static _Thread_local int own_share, own_shares = 1;

int mpp_team_share(void)
{
    return own_share;
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static unsigned region_of(uint64_t claim)
{
    return (unsigned)(claim >> 32);
}

static void call(region_fn *fn, void *data, int share, int shares)
{
    int share_before = own_share, shares_before = own_shares;
    own_share = share;
    own_shares = shares;
    fn(data);
    own_share = share_before;
    own_shares = shares_before;
}

/* Takes shares of the running region until none is left. */
static void take_shares(struct mpp_team *t)
{
    for (;;) {
        uint64_t claim = atomic_load(&t->claim);
        region_fn *fn = atomic_load(&t->fn);
        void *data = atomic_load(&t->data);
        unsigned share = claim & 0xffff, shares = claim >> 16 & 0xffff;
        if (share >= shares)
            return;
        if (!atomic_compare_exchange_strong(&t->claim, &claim, claim + 1))
            continue;
        call(fn, data, (int)share, (int)shares);
        if (atomic_fetch_sub(&t->unfinished, 1) == 1 && atomic_load(&t->owner_sleeps)) {
            pthread_mutex_lock(&t->lock);
            pthread_cond_signal(&t->finished);
            pthread_mutex_unlock(&t->lock);
        }
    }
}

static bool has_begun(struct mpp_team *t, unsigned after)
{
    return region_of(atomic_load(&t->claim)) != after || atomic_load(&t->stop);
}

static bool has_finished(struct mpp_team *t)
{
    return atomic_load(&t->unfinished) == 0;
}

/* True where the event came while this spun: a region after number AFTER, or (OWNER) the end of the running one. */
static bool spin(struct mpp_team *t, bool owner, unsigned after)
{
    if (!t->spins)
        return false;
    int64_t until = now_ns() + SPIN_NS;
    do
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (owner ? has_finished(t) : has_begun(t, after))
                return true;
            mpp_pause();
        }
    while (now_ns() < until);
    return false;
}

static void *worker(void *arg)
{
    struct mpp_team *t = arg;
    unsigned region = 0;
    for (;;) {
        if (!spin(t, false, region)) {
            pthread_mutex_lock(&t->lock);
            atomic_fetch_add(&t->sleepers, 1);
            while (!has_begun(t, region))
                pthread_cond_wait(&t->begun, &t->lock);
            atomic_fetch_sub(&t->sleepers, 1);
            pthread_mutex_unlock(&t->lock);
        }
        if (atomic_load(&t->stop))
            return NULL;
        region = region_of(atomic_load(&t->claim));
        take_shares(t);
    }
}

static void wait_for_shares(struct mpp_team *t)
{
    if (has_finished(t) || spin(t, true, 0))
        return;
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->owner_sleeps, true);
    while (!has_finished(t))
        pthread_cond_wait(&t->finished, &t->lock);
    atomic_store(&t->owner_sleeps, false);
    pthread_mutex_unlock(&t->lock);
}

static void wake_workers(struct mpp_team *t)
{
    if (atomic_load(&t->sleepers) == 0)
        return;
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->begun);
    pthread_mutex_unlock(&t->lock);
}

/* ---- what gcc calls ------------------------------------------------------------------------------------ */

#define HIDDEN __attribute__((visibility("hidden"))) /* a BLAS that uses libgomp goes on doing so */
HIDDEN void GOMP_parallel(region_fn *fn, void *data, unsigned n, unsigned flags);
HIDDEN int omp_get_thread_num(void);
HIDDEN int omp_get_num_threads(void);

void GOMP_parallel(region_fn *fn, void *data, unsigned n, unsigned flags)
{
    struct mpp_team *t = own_team;
    (void)flags; /* how threads are bound */
    if (n <= 1 || t == NULL || own_shares > 1) {
        call(fn, data, 0, 1);
        return;
    }
    unsigned region = region_of(atomic_load(&t->claim)) + 1;
    atomic_store(&t->fn, fn);
    atomic_store(&t->data, data);
    atomic_store(&t->unfinished, n);
    atomic_store(&t->claim, (uint64_t)region << 32 | (uint64_t)n << 16);
    wake_workers(t);
    take_shares(t);
    wait_for_shares(t);
}

int omp_get_thread_num(void)
{
    return own_share;
}

int omp_get_num_threads(void)
{
    return own_shares;
}

/* ---- life ------------------------------------------------------------------------------------------------ */

void mpp_team_free(struct mpp_team *t)
{
    if (t == NULL)
        return;
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->stop, true);
    pthread_cond_broadcast(&t->begun);
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; i < t->started; i++)
        pthread_join(t->thread[i], NULL);
    if (own_team == t)
        own_team = NULL;
    pthread_cond_destroy(&t->finished);
    pthread_cond_destroy(&t->begun);
    pthread_mutex_destroy(&t->lock);
    free(t->thread);
    free(t);
}

struct mpp_team *mpp_team_new(int n, bool spins)
{
    sigset_t all, before;
    struct mpp_team *t = aligned_alloc(64, (sizeof *t + 63) / 64 * 64);
    if (t == NULL)
        return NULL;
    *t = (struct mpp_team){.n = n, .spins = spins, .thread = calloc((size_t)n, sizeof *t->thread)};
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->begun, NULL);
    pthread_cond_init(&t->finished, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads that know them */
    while (t->thread != NULL && t->started < n - 1 && pthread_create(&t->thread[t->started], NULL, worker, t) == 0)
        t->started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (t->started < n - 1) {
        mpp_team_free(t);
        return NULL;
    }
    own_team = t;
    return t;
}

#else

#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
extern void kmp_set_blocktime(int ms) __attribute__((weak));
#endif

struct mpp_team {
    char unused; /* libomp starts its threads itself, or there are none */
};

struct mpp_team *mpp_team_new(int n, bool spins)
{
    (void)n;
    (void)spins;
#ifdef _OPENMP
    if (kmp_set_blocktime != NULL)
        kmp_set_blocktime(0); /* idle threads sleep */
#endif
    return malloc(sizeof(struct mpp_team));
}

void mpp_team_free(struct mpp_team *team)
{
    free(team);
}

int mpp_team_share(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

#endif
