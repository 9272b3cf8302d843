/* queues.cpp - streams that work late, in the worst order that CUDA allows.
 *
 *     MPP_SHIM_STREAMS=late     the first stream of a device works as early as its waits allow, the others only when something
 *                               that waits needs what they have: the host, a stream, another rank in a collective
 *     MPP_SHIM_STREAMS=early    the other way round: they work before all that the first stream was given earlier and for which
 *                               they do not wait
 *
 * A stream's queue has a thread. That of an eager stream does what comes. A lazy one's goes on only as far as is wanted, and only
 * while no eager stream of its device can: what no event orders is done in the same order, the worst, however fast threads are.
 * A wait for a point of another queue wants that point, when it comes to be done; so wishes go from queue to queue.
 *
 * Work that waits for other ranks (nccl.cpp) tells, so that their part is wanted, and lets the other streams of its device go on. */
#include <deque>
#include <pthread.h>
#include <shim_queues.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

namespace {

struct device;

/* A work, or a wait for AFTER. */
struct item {
    mpp_shim_work work;
    mpp_shim_point after;
};

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

} // namespace

struct mpp_shim_queue {
    device *on;
    bool main, eager, begun, ended, blocked; /* BLOCKED: its work waits for others; BEGUN: it has a thread */
    std::deque<item> items;           /* the first one may be under way */
    uint64_t given, done, wanted;     /* items, ever */
    bool watched;                     /* by queues of other devices */
};

struct mpp_shim_turns {
    std::deque<mpp_shim_point> left; /* that are not done, in order */
    mpp_shim_point last;
    int waiting; /* who waits for the first one left */
    bool urgent;
};

namespace {

/* The queues of a device, and what wakes those who wait for them. */
struct device {
    pthread_cond_t changed;
    std::vector<std::shared_ptr<mpp_shim_queue>> queues;
};

enum { MOST_DEVICES = 1024 };
device *devices[MOST_DEVICES];
__thread mpp_shim_queue *the_queue; /* whose thread this is */

void tell(mpp_shim_queue *q)
{
    pthread_cond_broadcast(&q->on->changed);
    for (int i = 0; q->watched && i < MOST_DEVICES && devices[i] != NULL; i++)
        pthread_cond_broadcast(&devices[i]->changed);
}

bool is_done(const mpp_shim_point &point)
{
    return point.queue == NULL || point.queue->done >= point.number;
}

void want(const mpp_shim_point &point)
{
    if (is_done(point) || point.queue->wanted >= point.number)
        return;
    point.queue->wanted = point.number;
    tell(point.queue.get());
}

/* ---- turns ---- */

void press(mpp_shim_turns *t)
{
    if (!t->left.empty() && (t->waiting > 0 || t->urgent))
        want(t->left.front());
}

/* ---- what a queue does next ---- */

bool can_go_on(const mpp_shim_queue *q)
{
    return !q->items.empty() && !q->blocked && is_done(q->items.front().after);
}

bool eager_can(const device *d)
{
    for (const std::shared_ptr<mpp_shim_queue> &q : d->queues)
        if (q->eager && can_go_on(q.get()))
            return true;
    return false;
}

/* May Q's first item be done now? A wait is wanted of the other queue once this one comes to it. */
bool may_begin(mpp_shim_queue *q)
{
    if (q->items.empty() || (!q->eager && q->done >= q->wanted))
        return false;
    want(q->items.front().after);
    return can_go_on(q) && (q->eager || !eager_can(q->on));
}

void do_first(mpp_shim_queue *q)
{
    mpp_shim_work &w = q->items.front().work;
    if (w.run != NULL) {
        pthread_mutex_unlock(&lock);
        (void)w.run(w.job);
        w.forget(w.job);
        pthread_mutex_lock(&lock);
    }
    std::vector<std::shared_ptr<mpp_shim_turns>> turns = w.turns;
    q->items.pop_front();
    q->done++;
    for (const std::shared_ptr<mpp_shim_turns> &t : turns) {
        t->left.pop_front();
        press(t.get());
    }
    tell(q);
}

void leave(const std::shared_ptr<mpp_shim_queue> &q)
{
    std::vector<std::shared_ptr<mpp_shim_queue>> &all = q->on->queues;
    for (size_t i = all.size(); i-- > 0;)
        if (all[i] == q)
            all.erase(all.begin() + (long)i);
}

void *queue_main(void *arg)
{
    std::shared_ptr<mpp_shim_queue> *held = (std::shared_ptr<mpp_shim_queue> *)arg, q = *held;
    delete held;
    the_queue = q.get();
    pthread_mutex_lock(&lock);
    while (!q->ended || !q->items.empty())
        if (may_begin(q.get()))
            do_first(q.get());
        else
            pthread_cond_wait(&q->on->changed, &lock);
    leave(q);
    tell(q.get());
    pthread_mutex_unlock(&lock);
    return NULL;
}

void await(const mpp_shim_point &point)
{
    want(point);
    if (the_queue == NULL)
        while (!is_done(point))
            pthread_cond_wait(&point.queue->on->changed, &lock);
}

void begin(const std::shared_ptr<mpp_shim_queue> &q)
{
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attributes, queue_main, new std::shared_ptr<mpp_shim_queue>(q)) != 0) {
        fprintf(stderr, "CUDA shim: no thread for a stream\n");
        abort();
    }
    pthread_attr_destroy(&attributes);
    q->begun = true;
}

uint64_t append(const std::shared_ptr<mpp_shim_queue> &q, const item &i)
{
    if (!q->begun)
        begin(q);
    q->items.push_back(i);
    return ++q->given;
}

} // namespace

/* ---- queues -------------------------------------------------------------------------------------------------- */

enum mpp_shim_streams mpp_shim_streams(void)
{
    const char *text = getenv("MPP_SHIM_STREAMS");
    if (text == NULL || text[0] == '\0')
        return MPP_SHIM_AT_ONCE;
    if (strcmp(text, "late") != 0 && strcmp(text, "early") != 0) {
        fprintf(stderr, "CUDA shim: MPP_SHIM_STREAMS is late or early\n");
        abort();
    }
    return text[0] == 'l' ? MPP_SHIM_LATE : MPP_SHIM_EARLY;
}

std::shared_ptr<mpp_shim_queue> mpp_shim_queue_new(int ordinal)
{
    static const enum mpp_shim_streams order = mpp_shim_streams();
    std::shared_ptr<mpp_shim_queue> q;
    if (order == MPP_SHIM_AT_ONCE || ordinal >= MOST_DEVICES)
        return q;
    q = std::make_shared<mpp_shim_queue>();
    pthread_mutex_lock(&lock);
    for (int i = 0; i <= ordinal; i++)
        if (devices[i] == NULL) {
            devices[i] = new device();
            pthread_cond_init(&devices[i]->changed, NULL);
        }
    q->on = devices[ordinal];
    q->main = true;
    for (const std::shared_ptr<mpp_shim_queue> &other : q->on->queues)
        q->main = q->main && (other->ended || !other->main);
    q->eager = q->main == (order == MPP_SHIM_LATE);
    q->on->queues.push_back(q);
    pthread_mutex_unlock(&lock);
    return q;
}

void mpp_shim_queue_end(const std::shared_ptr<mpp_shim_queue> &q)
{
    pthread_mutex_lock(&lock);
    q->ended = true;
    q->wanted = q->given;
    if (!q->begun)
        leave(q);
    tell(q.get());
    pthread_mutex_unlock(&lock);
}

void mpp_shim_queue_give(const std::shared_ptr<mpp_shim_queue> &q, const mpp_shim_work &w)
{
    pthread_mutex_lock(&lock);
    for (const std::shared_ptr<mpp_shim_turns> &t : w.turns)
        if (t->last.queue != q && !is_done(t->last)) {
            t->last.queue->watched = t->last.queue->watched || t->last.queue->on != q->on;
            append(q, item{mpp_shim_work(), t->last});
        }
    uint64_t number = append(q, item{w, mpp_shim_point()});
    for (const std::shared_ptr<mpp_shim_turns> &t : w.turns) {
        t->last = mpp_shim_point{q, number};
        t->left.push_back(t->last);
        press(t.get());
    }
    tell(q.get());
    pthread_mutex_unlock(&lock);
}

mpp_shim_point mpp_shim_queue_here(const std::shared_ptr<mpp_shim_queue> &q)
{
    pthread_mutex_lock(&lock);
    mpp_shim_point here = {q, q->given};
    pthread_mutex_unlock(&lock);
    return here;
}

void mpp_shim_queue_wait(const std::shared_ptr<mpp_shim_queue> &q, const mpp_shim_point &point)
{
    pthread_mutex_lock(&lock);
    if (point.queue != q && !is_done(point)) {
        point.queue->watched = point.queue->watched || point.queue->on != q->on;
        append(q, item{mpp_shim_work(), point});
        tell(q.get());
    }
    pthread_mutex_unlock(&lock);
}

bool mpp_shim_point_done(const mpp_shim_point &point, bool wanted)
{
    enum { MOMENT_NS = 1000000, SECOND_NS = 1000000000 };
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += MOMENT_NS;
    end.tv_sec += end.tv_nsec / SECOND_NS;
    end.tv_nsec %= SECOND_NS;
    pthread_mutex_lock(&lock);
    if (wanted)
        want(point);
    while (wanted && !is_done(point) && pthread_cond_timedwait(&point.queue->on->changed, &lock, &end) == 0)
        ;
    bool done = is_done(point);
    pthread_mutex_unlock(&lock);
    return done;
}

void mpp_shim_point_await(const mpp_shim_point &point)
{
    pthread_mutex_lock(&lock);
    await(point);
    pthread_mutex_unlock(&lock);
}

void mpp_shim_device_await(int ordinal)
{
    pthread_mutex_lock(&lock);
    std::vector<mpp_shim_point> ends;
    if (ordinal < MOST_DEVICES && devices[ordinal] != NULL)
        for (const std::shared_ptr<mpp_shim_queue> &q : devices[ordinal]->queues)
            ends.push_back(mpp_shim_point{q, q->given});
    for (const mpp_shim_point &end : ends)
        want(end);
    for (const mpp_shim_point &end : ends)
        await(end);
    pthread_mutex_unlock(&lock);
}

/* ---- turns --------------------------------------------------------------------------------------------------- */

std::shared_ptr<mpp_shim_turns> mpp_shim_turns_new(void)
{
    return std::make_shared<mpp_shim_turns>();
}

void mpp_shim_turns_hurry(const std::shared_ptr<mpp_shim_turns> &t)
{
    pthread_mutex_lock(&lock);
    t->urgent = true;
    press(t.get());
    pthread_mutex_unlock(&lock);
}

void mpp_shim_turns_await(const std::shared_ptr<mpp_shim_turns> &t)
{
    pthread_mutex_lock(&lock);
    while (!t->left.empty()) {
        const mpp_shim_point first = t->left.front();
        await(first);
    }
    pthread_mutex_unlock(&lock);
}

void mpp_shim_blocks_begin(const std::shared_ptr<mpp_shim_turns> &others)
{
    if (the_queue == NULL)
        return;
    pthread_mutex_lock(&lock);
    the_queue->blocked = true;
    if (others != NULL) {
        others->waiting++;
        press(others.get());
    }
    tell(the_queue);
    pthread_mutex_unlock(&lock);
}

void mpp_shim_blocks_end(const std::shared_ptr<mpp_shim_turns> &others)
{
    if (the_queue == NULL)
        return;
    pthread_mutex_lock(&lock);
    the_queue->blocked = false;
    if (others != NULL)
        others->waiting--;
    pthread_mutex_unlock(&lock);
}
