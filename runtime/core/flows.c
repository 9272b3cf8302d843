/* flows.c - rings of messages in the senders' arenas.
 *
 * Message n of a sender lies in place n % depth of its ring. The sender counts what it has sent; each of the n_parts
 * receivers waits for the count, copies, and takes one off the place's readers; the sender writes to a place without readers.
 * No other thread writes to a ring, and receivers count their messages themselves. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "flows.h"
#include "pause.h"
#include "progress.h"
#include "trace.h"
#include "transfers.h"
#include "transport.h"

#define SPIN_S 100e-6 /* waking a thread takes 15 to 50 us */

/* What one rank knows of one transfer: a sender's ring, or a receiver's place in all of them. */
struct flow {
    _Alignas(64) atomic_llong sent; /* messages that receivers may read */
    _Alignas(64) atomic_int *readers; /* [depth], who have not read the place yet */
    pthread_mutex_t lock; /* for sleeping only */
    pthread_cond_t wake;
    bool made;
    const char *ring;    /* set before the first message counts as sent */
    long long done;      /* the rank's own: messages sent, or received */
    int n_parts;
    struct mpp_part *parts;
};

struct mpp_flows {
    const struct mpp_program *program;
    const atomic_int *failed;
    bool spins;
    int n_ranks;
    struct flow *flows; /* [n_transfers * n_ranks] */
};

static struct flow *flow_of(const struct mpp_flows *f, int transfer, int rank)
{
    return &f->flows[(size_t)transfer * (size_t)f->n_ranks + (size_t)rank];
}

/* ---- waiting ------------------------------------------------------------------------------------------ */

/* For message N to be there, or, where PLACE >= 0, for the place to have no readers. */
static bool is_ready(const struct flow *q, long long n, int place)
{
    return place >= 0 ? atomic_load_explicit(&q->readers[place], memory_order_acquire) == 0
                      : atomic_load_explicit(&q->sent, memory_order_acquire) > n;
}

static bool spin_briefly(const struct flow *q, long long n, int place)
{
    double begun_s = mpp_clock_s();
    do {
        for (int i = 0; i < 64; i++) {
            if (is_ready(q, n, place))
                return true;
            mpp_pause();
        }
        sched_yield();
    } while (mpp_clock_s() - begun_s < SPIN_S);
    return false;
}

/* False: the job has failed. */
static bool wait_until(const struct mpp_flows *f, struct mpp_rank *r, struct flow *q, long long n, int place)
{
    if (is_ready(q, n, place))
        return atomic_load(f->failed) == 0;
    double begun_s = mpp_trace_begin(r);
    if (!f->spins || !spin_briefly(q, n, place)) {
        pthread_mutex_lock(&q->lock);
        while (!is_ready(q, n, place) && atomic_load(f->failed) == 0)
            pthread_cond_wait(&q->wake, &q->lock);
        pthread_mutex_unlock(&q->lock);
    }
    mpp_trace_end(r, begun_s, MPP_TRACE_WAIT, 0, 0, 0);
    return atomic_load(f->failed) == 0;
}

static void wake(struct flow *q)
{
    pthread_mutex_lock(&q->lock);
    pthread_cond_broadcast(&q->wake);
    pthread_mutex_unlock(&q->lock);
}

void mpp_flows_wake(struct mpp_flows *flows)
{
    for (int i = 0; i < flows->program->n_transfers * flows->n_ranks; i++)
        if (flows->flows[i].made)
            wake(&flows->flows[i]);
}

/* ---- messages -------------------------------------------------------------------------------------------- */

bool mpp_flows_send(struct mpp_flows *flows, struct mpp_rank *r, int transfer, const void *x)
{
    const struct mpp_transfer *t = &r->program->transfers[transfer];
    struct flow *q = flow_of(flows, transfer, r->rank);
    int place = (int)(q->done % t->depth);
    char *to = r->arena + t->offset + place * t->stride;
    if (!wait_until(flows, r, q, 0, place))
        return false;
    memcpy(to, x, (size_t)mpp_transfer_bytes(r->program, t));
    if (q->done == 0)
        q->ring = r->arena + t->offset;
    atomic_store_explicit(&q->readers[place], q->n_parts, memory_order_relaxed);
    pthread_mutex_lock(&q->lock);
    atomic_store_explicit(&q->sent, ++q->done, memory_order_release);
    pthread_cond_broadcast(&q->wake);
    pthread_mutex_unlock(&q->lock);
    return true;
}

bool mpp_flows_receive(struct mpp_flows *flows, struct mpp_rank *r, int transfer, void *x)
{
    const struct mpp_transfer *t = &r->program->transfers[transfer];
    struct flow *own = flow_of(flows, transfer, r->rank);
    int place = (int)(own->done % t->depth);
    for (int i = 0; i < own->n_parts; i++) {
        struct flow *q = flow_of(flows, transfer, own->parts[i].peer);
        if (!wait_until(flows, r, q, own->done, -1))
            return false;
        mpp_part_copy(&own->parts[i], mpp_type_bytes(t->type), q->ring + place * t->stride, x);
        if (atomic_fetch_sub_explicit(&q->readers[place], 1, memory_order_acq_rel) == 1)
            wake(q);
    }
    own->done++;
    return true;
}

/* ---- life ------------------------------------------------------------------------------------------------ */

static int make_flow(struct mpp_flows *f, int transfer, int rank, struct mpp_error *error)
{
    const struct mpp_transfer *t = &f->program->transfers[transfer];
    struct flow *q = flow_of(f, transfer, rank);
    q->readers = calloc((size_t)t->depth, sizeof *q->readers);
    if (q->readers == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->wake, NULL);
    q->made = true;
    return mpp_transfer_parts(f->program, t, rank, &q->parts, &q->n_parts, error);
}

struct mpp_flows *mpp_flows_new(const struct mpp_program *program, const atomic_int *failed, bool spins,
                                struct mpp_error *error)
{
    struct mpp_flows *f = calloc(1, sizeof *f);
    int code = MPP_EXIT_OK;
    if (f == NULL) {
        (void)mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
        return NULL;
    }
    *f = (struct mpp_flows){.program = program, .failed = failed, .spins = spins, .n_ranks = mpp_mesh_ranks(program)};
    size_t bytes = (size_t)(program->n_transfers * f->n_ranks) * sizeof *f->flows;
    f->flows = bytes > 0 ? aligned_alloc(_Alignof(struct flow), bytes) : NULL;
    if (f->flows != NULL)
        memset(f->flows, 0, bytes);
    else if (bytes > 0)
        code = mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    for (int i = 0; code == MPP_EXIT_OK && i < program->n_transfers; i++)
        for (int side = 0; code == MPP_EXIT_OK && side < 2; side++) {
            const struct mpp_stage *s = program->stages[side == 0 ? program->transfers[i].from : program->transfers[i].to];
            for (int k = 0; code == MPP_EXIT_OK && k < mpp_mesh_stage_ranks(s); k++)
                code = make_flow(f, i, s->first_rank + k, error);
        }
    if (code == MPP_EXIT_OK)
        return f;
    mpp_flows_free(f);
    return NULL;
}

void mpp_flows_free(struct mpp_flows *flows)
{
    if (flows == NULL)
        return;
    for (int i = 0; flows->flows != NULL && i < flows->program->n_transfers * flows->n_ranks; i++) {
        struct flow *q = &flows->flows[i];
        if (q->made) {
            pthread_mutex_destroy(&q->lock);
            pthread_cond_destroy(&q->wake);
        }
        free(q->readers);
        free(q->parts);
    }
    free(flows->flows);
    free(flows);
}
