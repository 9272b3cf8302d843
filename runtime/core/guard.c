/* guard.c - a thread that looks at the others. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "guard.h"
#include "mpp_rt.h"
#include "progress.h"
#include "transport.h"
#include "waits.h"

#define LOOK_S 0.25
#define LEAVE_S 2.0 /* for released ranks to end by themselves; what they compute then is of no use, however long it takes */

/* What was seen of a rank. */
struct seen {
    uint64_t ticks, waits;
    double idle_s; /* since when that has not changed, in seconds in which the guard looked */
};

struct mpp_guard {
    struct mpp_rank *ranks;
    int n;
    double timeout_s;
    void (*leave)(void *user, int code);
    void *user;
    pthread_t thread;
    pthread_mutex_t lock; /* of stop */
    pthread_cond_t changed;
    bool stop;
    struct seen *seen;           /* [n] */
    struct mpp_watched *watched; /* [n] */
};

/* PASSED_S: since the last look. */
static void look(struct mpp_guard *g, double passed_s)
{
    for (int i = 0; i < g->n; i++) {
        struct seen *s = &g->seen[i];
        uint64_t ticks = __atomic_load_n(&g->ranks[i].ticks, __ATOMIC_RELAXED), waits = mpp_wait_of(&g->ranks[i]);
        s->idle_s = ticks == s->ticks && waits == s->waits ? s->idle_s + passed_s : 0;
        s->ticks = ticks;
        s->waits = waits;
        g->watched[i] = (struct mpp_watched){.idle = s->idle_s > g->timeout_s, .waits = waits};
    }
}

/* Waits a moment; false: the guard is to stop. *PASSED_S_OUT: how long it was, as far as it counts. */
static bool wait_briefly(struct mpp_guard *g, double *passed_s_out)
{
    double begun_s = mpp_clock_s();
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_nsec += (long)(LOOK_S * 1e9);
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    pthread_mutex_lock(&g->lock);
    while (!g->stop && pthread_cond_timedwait(&g->changed, &g->lock, &end) == 0)
        continue;
    bool stop = g->stop;
    pthread_mutex_unlock(&g->lock);
    double passed_s = mpp_clock_s() - begun_s;
    *passed_s_out = passed_s < 2 * LOOK_S ? passed_s : LOOK_S;
    return !stop;
}

static void *guard_main(void *arg)
{
    struct mpp_guard *g = arg;
    const struct mpp_transport_ops *ops = g->ranks[0].transport->ops;
    double passed_s, failed_s = 0;
    char text[640];
    int stuck;
    while (wait_briefly(g, &passed_s)) {
        int code = ops->failed(&g->ranks[0]);
        look(g, passed_s);
        if (code == 0 && g->timeout_s > 0 && mpp_hang_find(g->ranks[0].program, g->n, g->watched, g->timeout_s, &stuck, text, sizeof text)) {
            ops->abort(&g->ranks[0], MPP_EXIT_SYSTEM, text);
            code = MPP_EXIT_SYSTEM;
        }
        failed_s += code != 0 ? passed_s : 0;
        if (failed_s > LEAVE_S)
            g->leave(g->user, code);
    }
    return NULL;
}

static void destroy(struct mpp_guard *g)
{
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->changed);
    free(g->seen);
    free(g->watched);
    free(g);
}

int mpp_guard_new(struct mpp_rank *ranks, int n, double timeout_s, void (*leave)(void *user, int code), void *user,
                  struct mpp_guard **guard_out, struct mpp_error *error)
{
    *guard_out = NULL;
    if (n < 2)
        return MPP_EXIT_OK;
    struct mpp_guard *g = calloc(1, sizeof *g);
    if (g == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    *g = (struct mpp_guard){.ranks = ranks, .n = n, .timeout_s = timeout_s, .leave = leave, .user = user,
                            .seen = calloc((size_t)n, sizeof *g->seen), .watched = calloc((size_t)n, sizeof *g->watched)};
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, &clock);
    pthread_condattr_destroy(&clock);
    sigset_t all, before; /* signals are the main thread's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool ok = g->seen != NULL && g->watched != NULL && pthread_create(&g->thread, NULL, guard_main, g) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!ok) {
        destroy(g);
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory, or the system gives no more threads");
    }
    *guard_out = g;
    return MPP_EXIT_OK;
}

void mpp_guard_free(struct mpp_guard *g)
{
    if (g == NULL)
        return;
    pthread_mutex_lock(&g->lock);
    g->stop = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    pthread_join(g->thread, NULL);
    destroy(g);
}
