/* watch.c - heartbeats, and what follows when they stop. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "mpp_rt.h"
#include "progress.h"
#include "signals.h"
#include "waits.h"
#include "watch.h"

#define BEAT_S 1.0
#define JOIN_S 6.0     /* to connect with the centres */
#define ENDED_S 2.0    /* for the launcher to end a job of which a process ended; then rank 0 speaks */
#define DEPUTY_S 3.0   /* for the deputy to speak when rank 0 is lost */
#define TELL_S 5.0     /* for the watch's thread to tell that this process ends */
#define STOPPED_S 0.5  /* for a signal to reach rank 0, too */
#define SPEAK_S 0.5    /* for a message to come out: mpirun ends a job with its first process */
#define LAUNCHER_S 1.5 /* the same, before the launcher is ended */
#define LEAVE_S 4.0    /* others end after those who speak */
#define ALONE_S 1.0    /* the same where no launcher takes part */

struct peer {
    struct mpp_line line;
    bool up, bye;
    uint64_t ticks, waits;
    double heard_s, moved_s; /* when a packet came, when one last told of work */
};

struct attempt {
    struct mpp_line line;
    int centre;
    bool greeted;
};

enum state { STARTING, ALONE, JOINING, WATCHING };

struct mpp_watch {
    struct mpp_watch_settings settings;
    pthread_t thread;
    pthread_mutex_t lock; /* of state, joined, stop, followed */
    pthread_cond_t changed;
    enum state state;
    bool joined, stop;
    const struct mpp_rank *followed;
    atomic_bool failing;
    int wake;
    atomic_int stopped_by; /* a signal that ends this process, of which the others are to know */
    atomic_int exit_code;  /* of the job that ends */
    pid_t launcher;

    /* set before the thread looks: JOINING */
    int rank, n_ranks, centre[MPP_WATCH_CENTRES];
    const char (*hosts)[MPP_HOST_NAME];
    bool leads_host; /* the lowest rank of its host */
    struct mpp_link_offer offer[MPP_WATCH_CENTRES];
    int listener;
    struct peer *peers;        /* [n_ranks] those with a line to this process */
    struct attempt *attempts;  /* [MPP_WATCH_CENTRES * MPP_LINK_ADDRESSES] lines this process opens */
    struct mpp_line *callers;  /* [n_callers] lines that have not said who they are */
    int n_callers, max_callers;
    struct pollfd *polls;
    struct mpp_watched *watched; /* [n_ranks] */

    /* the thread's own */
    double begun_s, beat_s;
    int lost_rank;         /* not yet spoken of */
    double lost_s;         /* since when; 0: none is */
    bool lost_host;
    bool stopping;         /* this process is, and has said so */
    int stopped_rank, stopped_number; /* rank 0: another one is, not yet spoken of */
    double stopped_s;      /* since when; 0: none is */
};

static bool is_centre(const struct mpp_watch *w)
{
    return w->rank == w->centre[0] || w->rank == w->centre[1];
}

static bool same_host(const struct mpp_watch *w, int a, int b)
{
    return strcmp(w->hosts[a], w->hosts[b]) == 0;
}

/* ---- ends ------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 1, 2))) static void speak(const char *fmt, ...)
{
    char text[768];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    n = n < (int)sizeof text ? n : (int)sizeof text - 1;
    (void)!write(STDERR_FILENO, text, (size_t)n); /* not stdio: the rank's thread may hold its lock */
}

static void pause_s(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static void send_all(struct mpp_watch *w, enum mpp_packet_kind kind)
{
    struct mpp_packet packet = {.kind = kind, .rank = w->rank, .ticks = (uint64_t)atomic_load(&w->exit_code),
                                .waits = (uint64_t)atomic_load(&w->stopped_by)};
    for (int i = 0; w->peers != NULL && i < w->n_ranks; i++)
        if (w->peers[i].up)
            (void)mpp_link_send(&w->peers[i].line, &packet);
}

/* A launcher of MPI that waits for the daemon of a lost host would do so for a quarter of an hour. */
static bool launcher_waits(pid_t pid)
{
    static const char *const names[] = {"mpirun", "mpiexec", "orterun", "orted", "mpiexec.hydra", "hydra_pmi_proxy"};
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *f = fopen(path, "r");
    if (f == NULL)
        return false;
    bool known = fscanf(f, "%31s", name) == 1;
    fclose(f);
    for (size_t i = 0; known && i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* End this process, with the others. Does not return where settings.leave does not. */
static void leave(struct mpp_watch *w, bool spoke, bool host_lost)
{
    if (host_lost && w->leads_host && launcher_waits(w->launcher) && getppid() == w->launcher) {
        pause_s(LAUNCHER_S);
        kill(w->launcher, SIGKILL);
    } else {
        double end_s = mpp_clock_s() + (spoke ? SPEAK_S : w->settings.unwatched ? ALONE_S : LEAVE_S);
        while (mpp_clock_s() < end_s && (spoke || getppid() == w->launcher))
            pause_s(0.1);
    }
    w->settings.leave(w->settings.user, atomic_load(&w->exit_code));
}

/* ---- packets ------------------------------------------------------------------------------------------- */

/* Does this process watch over RANK? Rank 0 over all, the others over rank 0. */
static bool watches(const struct mpp_watch *w, int rank)
{
    return w->rank == w->centre[0] || rank == w->centre[0];
}

static void tell(struct mpp_watch *w, int rank, bool host_lost)
{
    if (is_centre(w) || w->leads_host) {
        if (host_lost)
            speak("error: rank %d on %s does not answer any more (nothing heard for %g s; its host or the network is down): "
                  "rank %d on %s ends the job\n", rank, w->hosts[rank], w->settings.silence_s, w->rank, w->hosts[w->rank]);
        else
            speak("error: rank %d on %s has ended without a word (killed, or out of memory?): rank %d on %s ends the job\n",
                  rank, w->hosts[rank], w->rank, w->hosts[w->rank]);
    }
    send_all(w, host_lost ? MPP_PACKET_END_LOST_HOST : MPP_PACKET_END);
    leave(w, is_centre(w) || w->leads_host, host_lost);
}

/* The line to RANK has ended, WHY is errno (0: it was closed). */
static void lose(struct mpp_watch *w, int rank, int why)
{
    struct peer *p = &w->peers[rank];
    bool host_lost = why != 0 && why != ECONNRESET && why != EPIPE;
    mpp_link_close(&p->line);
    p->up = false;
    if (p->bye || !watches(w, rank))
        return;
    if (host_lost && is_centre(w))
        tell(w, rank, host_lost);
    if (w->lost_s > 0)
        return;
    w->lost_rank = rank;
    w->lost_s = mpp_clock_s();
    w->lost_host = host_lost;
}

/* Launchers end a job of which a process was killed, and say so; this is for when they do not. */
static void look_for_lost(struct mpp_watch *w, double now_s)
{
    double patience_s = w->lost_host ? DEPUTY_S : w->rank == 0 ? ENDED_S : is_centre(w) ? ENDED_S + 1 : ENDED_S + DEPUTY_S;
    if (w->lost_s > 0 && now_s - w->lost_s > patience_s)
        tell(w, w->lost_rank, w->lost_host);
}

/* RANK is stopped by a signal. Where all are, each ends by its own. */
static void take_stopped(struct mpp_watch *w, int rank, int number)
{
    w->peers[rank].bye = true;
    if (w->stopping || w->stopped_s > 0)
        return;
    atomic_store(&w->exit_code, 128 + number);
    if (rank == w->centre[0])
        leave(w, false, false);
    w->stopped_rank = rank;
    w->stopped_number = number;
    w->stopped_s = w->rank == w->centre[0] ? mpp_clock_s() : 0;
}

static void look_for_stopped(struct mpp_watch *w, double now_s)
{
    if (w->stopping || w->stopped_s <= 0 || now_s - w->stopped_s < STOPPED_S)
        return;
    speak("error: rank %d on %s was stopped by %s: the job ends\n", w->stopped_rank, w->hosts[w->stopped_rank],
          mpp_signals_name(w->stopped_number));
    send_all(w, MPP_PACKET_END);
    leave(w, true, false);
}

static void take(struct mpp_watch *w, int rank, const struct mpp_packet *packet)
{
    struct peer *p = &w->peers[rank];
    p->heard_s = mpp_clock_s();
    if (packet->kind == MPP_PACKET_BYE) {
        p->bye = true;
    } else if (packet->kind == MPP_PACKET_BEAT) {
        if (packet->ticks != p->ticks || packet->waits != p->waits)
            p->moved_s = p->heard_s;
        p->ticks = packet->ticks;
        p->waits = packet->waits;
    } else if (packet->kind == MPP_PACKET_STOPPED) {
        take_stopped(w, rank, (int)packet->waits);
    } else if (packet->kind == MPP_PACKET_END || packet->kind == MPP_PACKET_END_LOST_HOST) {
        p->bye = true;
        if (w->stopping) /* its signal ends it, and is what its parent is to see */
            return;
        atomic_store(&w->exit_code, (int)packet->ticks);
        if (is_centre(w)) /* a rank has spoken: tell the others */
            send_all(w, (enum mpp_packet_kind)packet->kind);
        leave(w, false, packet->kind == MPP_PACKET_END_LOST_HOST);
    }
}

static void hear(struct mpp_watch *w, int rank)
{
    struct mpp_packet packet;
    int got;
    while (w->peers[rank].up && (got = mpp_link_receive(&w->peers[rank].line, &packet)) != 0) {
        if (got < 0) {
            lose(w, rank, errno);
            return;
        }
        take(w, rank, &packet);
    }
}

static void meet(struct mpp_watch *w, int rank, struct mpp_line *line)
{
    double now_s = mpp_clock_s();
    w->peers[rank] = (struct peer){.line = *line, .up = true, .heard_s = now_s, .moved_s = now_s};
    line->fd = -1;
}

static int own_offer(const struct mpp_watch *w)
{
    return w->rank == w->centre[0] ? 0 : 1;
}

/* A caller says who it is; whoever does not know the job's number is sent away. */
static void hear_caller(struct mpp_watch *w, int i)
{
    struct mpp_packet packet;
    struct mpp_line *line = &w->callers[i];
    int got = mpp_link_receive(line, &packet);
    if (got == 0)
        return;
    uint64_t nonce = w->offer[own_offer(w)].nonce;
    bool known = got > 0 && packet.kind == MPP_PACKET_HELLO && packet.nonce == nonce && packet.rank >= 0
                 && packet.rank < w->n_ranks && packet.rank != w->rank && !w->peers[packet.rank].up;
    struct mpp_packet hello = {.kind = MPP_PACKET_HELLO, .rank = w->rank, .nonce = nonce};
    if (known && mpp_link_send(line, &hello))
        meet(w, packet.rank, line);
    mpp_link_close(line);
    w->callers[i] = w->callers[--w->n_callers];
}

static void hear_attempt(struct mpp_watch *w, struct attempt *a)
{
    uint64_t nonce = w->offer[a->centre].nonce;
    struct mpp_packet packet = {.kind = MPP_PACKET_HELLO, .rank = w->rank, .nonce = nonce};
    int rank = w->centre[a->centre];
    if (!a->greeted) {
        a->greeted = true;
        if (!mpp_link_connected(&a->line) || !mpp_link_send(&a->line, &packet))
            mpp_link_close(&a->line);
        return;
    }
    int got = mpp_link_receive(&a->line, &packet);
    if (got == 0)
        return;
    if (got > 0 && packet.kind == MPP_PACKET_HELLO && packet.nonce == nonce && packet.rank == rank && !w->peers[rank].up)
        meet(w, rank, &a->line);
    mpp_link_close(&a->line);
}

/* ---- coming together -------------------------------------------------------------------------------------- */

static void call_centres(struct mpp_watch *w)
{
    for (int c = 0; c < MPP_WATCH_CENTRES; c++) {
        if (w->centre[c] < 0 || w->centre[c] == w->rank || (c == 1 && w->rank == w->centre[0]))
            continue; /* the deputy calls rank 0, not the other way round */
        bool near = same_host(w, w->rank, w->centre[c]);
        for (int a = near ? 0 : 1; a < w->offer[c].n; a++) {
            struct attempt *x = &w->attempts[c * MPP_LINK_ADDRESSES + a];
            x->centre = c;
            (void)mpp_link_connect(&w->offer[c], a, w->settings.silence_s, &x->line);
        }
    }
}

/* Ranks that this process should have a line to and has not; *FIRST_OUT is one of them. */
static int missing(const struct mpp_watch *w, int *first_out)
{
    int n = 0;
    for (int i = w->n_ranks - 1; i >= 0; i--) {
        bool expected = i != w->rank && (is_centre(w) || i == w->centre[0] || i == w->centre[1]);
        if (!expected || w->peers[i].up || w->peers[i].bye)
            continue;
        n++;
        *first_out = i;
    }
    return n;
}

static void finish_joining(struct mpp_watch *w, int n_missing, int first)
{
    if (w->rank == 0 && n_missing > 0)
        speak("note: no TCP connection between rank 0 on %s and %d other rank%s (rank %d on %s): if one is lost, only MPI will "
              "notice\n", w->hosts[0], n_missing, n_missing == 1 ? "" : "s", first, w->hosts[first]);
    for (int i = 0; i < MPP_WATCH_CENTRES * MPP_LINK_ADDRESSES; i++)
        mpp_link_close(&w->attempts[i].line);
    for (int i = 0; i < w->n_callers; i++)
        mpp_link_close(&w->callers[i]);
    w->n_callers = 0;
    if (w->listener >= 0)
        close(w->listener);
    w->listener = -1;
    pthread_mutex_lock(&w->lock);
    w->state = WATCHING;
    w->joined = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* Wait up to MS for any line, and hear all that have something. */
static void poll_lines(struct mpp_watch *w, enum state state, int ms)
{
    struct pollfd *p = w->polls;
    int n = 0, n_callers = w->n_callers;
    uint64_t wakes;
    p[n++] = (struct pollfd){.fd = w->wake, .events = POLLIN};
    p[n++] = (struct pollfd){.fd = state == JOINING ? w->listener : -1, .events = POLLIN};
    int peers = n;
    for (int i = 0; i < w->n_ranks; i++)
        p[n++] = (struct pollfd){.fd = w->peers[i].up ? w->peers[i].line.fd : -1, .events = POLLIN};
    int attempts = n;
    for (int i = 0; i < MPP_WATCH_CENTRES * MPP_LINK_ADDRESSES; i++)
        p[n++] = (struct pollfd){.fd = w->attempts[i].line.fd, .events = w->attempts[i].greeted ? POLLIN : POLLOUT};
    int callers = n;
    for (int i = 0; i < n_callers; i++)
        p[n++] = (struct pollfd){.fd = w->callers[i].fd, .events = POLLIN};
    if (poll(p, (nfds_t)n, ms) <= 0)
        return;
    if (p[0].revents != 0)
        (void)!read(w->wake, &wakes, sizeof wakes);
    for (int i = n_callers - 1; i >= 0; i--) /* the last takes the place of one that goes */
        if (p[callers + i].revents != 0)
            hear_caller(w, i);
    for (int i = 0; i < MPP_WATCH_CENTRES * MPP_LINK_ADDRESSES; i++)
        if (p[attempts + i].revents != 0 && w->attempts[i].line.fd >= 0)
            hear_attempt(w, &w->attempts[i]);
    for (int i = 0; i < w->n_ranks; i++)
        if (p[peers + i].revents != 0)
            hear(w, i);
    while (p[1].revents != 0 && w->n_callers < w->max_callers
           && mpp_link_accept(w->listener, w->settings.silence_s, &w->callers[w->n_callers]))
        w->n_callers++;
}

/* ---- looking ------------------------------------------------------------------------------------------------ */

static void send_beats(struct mpp_watch *w, const struct mpp_rank *r)
{
    struct mpp_packet beat = {.kind = MPP_PACKET_BEAT, .rank = w->rank};
    if (r != NULL) {
        beat.ticks = __atomic_load_n(&r->ticks, __ATOMIC_RELAXED);
        beat.waits = mpp_wait_of(r);
    }
    if (r != NULL)
        take(w, w->rank, &beat);
    for (int i = 0; i < w->n_ranks; i++)
        if (i != w->rank && w->peers[i].up && !mpp_link_send(&w->peers[i].line, &beat)) {
            int why = errno;
            struct mpp_packet last; /* it may have said good-bye before */
            while (mpp_link_receive(&w->peers[i].line, &last) > 0)
                take(w, i, &last);
            lose(w, i, why);
        }
}

/* Rank 0: is a rank stuck while another waits? The deputy: is rank 0? */
static void look_for_hung(struct mpp_watch *w, const struct mpp_rank *r, double now_s)
{
    double limit_s = w->settings.timeout_s + (w->rank == 0 ? 0 : 2 * BEAT_S);
    char text[640];
    int stuck;
    if (!is_centre(w) || w->settings.timeout_s <= 0)
        return;
    for (int i = 0; i < w->n_ranks; i++) {
        const struct peer *p = &w->peers[i];
        w->watched[i] = (struct mpp_watched){.absent = (i != w->rank && !p->up) || p->bye, .idle = now_s - p->moved_s > limit_s,
                                             .silent = now_s - p->heard_s > limit_s, .waits = p->waits, .host = w->hosts[i]};
    }
    if (!mpp_hang_find(r->program, w->n_ranks, w->watched, w->settings.timeout_s, &stuck, text, sizeof text)
        || (w->rank != 0 && stuck != 0))
        return;
    speak("error: %s\n", text);
    send_all(w, MPP_PACKET_END);
    leave(w, true, false);
}

static void look(struct mpp_watch *w, enum state state, const struct mpp_rank *r)
{
    double now_s = mpp_clock_s();
    if (now_s - w->beat_s < BEAT_S)
        return;
    w->beat_s = now_s;
    if (getppid() != w->launcher && !w->settings.unwatched) {
        if (w->settings.first)
            speak("error: the launcher (mpirun) has gone; the job ends\n");
        leave(w, true, false);
    }
    if (state == STARTING && w->settings.timeout_s > 0 && now_s - w->begun_s > w->settings.timeout_s) {
        if (w->settings.first)
            speak("error: MPI has not started for %g s: a host cannot be reached, or is stuck (--timeout sets how long)\n",
                  w->settings.timeout_s);
        leave(w, w->settings.first, false);
    }
    if (state == WATCHING) {
        send_beats(w, r);
        if (r != NULL)
            look_for_hung(w, r, mpp_clock_s());
        look_for_lost(w, mpp_clock_s());
    }
}

/* This process ends, and says why by itself; its peers end too. */
static void tell_own_end(struct mpp_watch *w)
{
    bool fails = atomic_load(&w->failing), stops = atomic_load(&w->stopped_by) != 0;
    w->stopping = w->stopping || stops;
    if (fails || stops) {
        send_all(w, fails ? MPP_PACKET_END : MPP_PACKET_STOPPED);
        for (int i = 0; i < w->n_ranks; i++)
            w->peers[i].bye = true;
    }
    if (stops)
        atomic_store(&w->stopped_by, 0);
    if (fails)
        atomic_store(&w->failing, false);
    look_for_stopped(w, mpp_clock_s());
}

static void *watch_main(void *arg)
{
    struct mpp_watch *w = arg;
    double joining_s = 0;
    for (;;) {
        pthread_mutex_lock(&w->lock);
        enum state state = w->state;
        const struct mpp_rank *r = w->followed;
        bool stop = w->stop;
        pthread_mutex_unlock(&w->lock);
        if (stop)
            return NULL;
        if (state < JOINING) {
            struct pollfd p = {.fd = w->wake, .events = POLLIN};
            uint64_t wakes;
            if (poll(&p, 1, 250) > 0)
                (void)!read(w->wake, &wakes, sizeof wakes);
        } else {
            poll_lines(w, state, 250);
        }
        if (state == WATCHING)
            tell_own_end(w);
        if (state == JOINING) {
            int first = -1;
            if (joining_s <= 0) {
                joining_s = mpp_clock_s();
                call_centres(w);
            }
            int n = missing(w, &first);
            if (n == 0 || mpp_clock_s() - joining_s > JOIN_S)
                finish_joining(w, n, first);
        }
        look(w, state, r);
    }
}

/* ---- what the transport calls --------------------------------------------------------------------------------- */

static void wake(struct mpp_watch *w)
{
    uint64_t one = 1;
    (void)!write(w->wake, &one, sizeof one);
}

static void destroy(struct mpp_watch *w)
{
    if (w->wake >= 0)
        close(w->wake);
    if (w->listener >= 0)
        close(w->listener);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    free(w->peers);
    free(w->attempts);
    free(w->callers);
    free(w->polls);
    free(w->watched);
    free(w);
}

struct mpp_watch *mpp_watch_new(const struct mpp_watch_settings *settings, struct mpp_error *error)
{
    struct mpp_watch *w = calloc(1, sizeof *w);
    if (w == NULL) {
        (void)mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
        return NULL;
    }
    w->settings = *settings;
    atomic_init(&w->exit_code, MPP_EXIT_SYSTEM);
    w->listener = -1;
    w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    w->launcher = getppid();
    w->begun_s = mpp_clock_s();
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    sigset_t all, before; /* signals are the main thread's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool ok = w->wake >= 0 && pthread_create(&w->thread, NULL, watch_main, w) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!ok) {
        (void)mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory, or the system gives no more threads");
        destroy(w);
        return NULL;
    }
    return w;
}

void mpp_watch_place(struct mpp_watch *w, int rank, int n_ranks, const char (*hosts)[MPP_HOST_NAME])
{
    w->rank = rank;
    w->n_ranks = n_ranks;
    w->hosts = hosts;
    w->centre[0] = 0;
    w->centre[1] = n_ranks > 1 ? 1 : -1;
    for (int i = n_ranks - 1; i > 0; i--)
        if (!same_host(w, i, 0))
            w->centre[1] = i;
    w->leads_host = true;
    for (int i = 0; i < rank; i++)
        w->leads_host = w->leads_host && !same_host(w, i, rank);
}

int mpp_watch_centre(const struct mpp_watch *w, int centre)
{
    return w->centre[centre];
}

void mpp_watch_offer(struct mpp_watch *w, struct mpp_link_offer *offer_out)
{
    w->listener = mpp_link_listen(offer_out);
}

/* Room for all lines; false: out of memory. */
static bool make_lines(struct mpp_watch *w)
{
    int n_attempts = MPP_WATCH_CENTRES * MPP_LINK_ADDRESSES;
    w->max_callers = 2 * w->n_ranks + 16;
    w->peers = calloc((size_t)w->n_ranks, sizeof *w->peers);
    w->attempts = calloc((size_t)n_attempts, sizeof *w->attempts);
    w->callers = calloc((size_t)w->max_callers, sizeof *w->callers);
    w->polls = calloc((size_t)(2 + w->n_ranks + n_attempts + w->max_callers), sizeof *w->polls);
    for (int i = 0; w->peers != NULL && i < w->n_ranks; i++)
        w->peers[i] = (struct peer){.line.fd = -1, .heard_s = mpp_clock_s(), .moved_s = mpp_clock_s()};
    w->watched = calloc((size_t)w->n_ranks, sizeof *w->watched);
    for (int i = 0; w->attempts != NULL && i < n_attempts; i++)
        w->attempts[i].line.fd = -1;
    return w->peers != NULL && w->attempts != NULL && w->callers != NULL && w->polls != NULL
           && w->watched != NULL;
}

bool mpp_watch_begin(struct mpp_watch *w, const int *fds)
{
    if (!make_lines(w))
        return false;
    for (int i = 0; i < w->n_ranks; i++)
        if (fds[i] >= 0) {
            struct mpp_line line = mpp_link_of(fds[i], w->settings.silence_s);
            meet(w, i, &line);
        }
    pthread_mutex_lock(&w->lock);
    w->state = WATCHING;
    pthread_mutex_unlock(&w->lock);
    wake(w);
    return true;
}

void mpp_watch_join(struct mpp_watch *w, const struct mpp_link_offer offer[MPP_WATCH_CENTRES])
{
    memcpy(w->offer, offer, sizeof w->offer);
    if (w->n_ranks < 2 || !make_lines(w))
        goto alone;
    pthread_mutex_lock(&w->lock);
    w->state = JOINING;
    wake(w);
    while (!w->joined)
        pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
    return;
alone:
    pthread_mutex_lock(&w->lock);
    w->state = ALONE;
    pthread_mutex_unlock(&w->lock);
}

void mpp_watch_follow(struct mpp_watch *w, const struct mpp_rank *r)
{
    pthread_mutex_lock(&w->lock);
    w->followed = r;
    pthread_mutex_unlock(&w->lock);
}

static bool is_watching(struct mpp_watch *w)
{
    pthread_mutex_lock(&w->lock);
    bool is = w->state == WATCHING;
    pthread_mutex_unlock(&w->lock);
    return is;
}

void mpp_watch_failing(struct mpp_watch *w, int code)
{
    atomic_store(&w->exit_code, code);
    atomic_store(&w->failing, true);
    wake(w);
    while (atomic_load(&w->failing) && is_watching(w))
        pause_s(0.01);
}

void mpp_watch_stopped(struct mpp_watch *w, int number)
{
    atomic_store(&w->stopped_by, number);
    wake(w);
    double end_s = mpp_clock_s() + TELL_S;
    while (atomic_load(&w->stopped_by) != 0 && is_watching(w) && mpp_clock_s() < end_s)
        pause_s(0.01);
}

void mpp_watch_free(struct mpp_watch *w)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_mutex_unlock(&w->lock);
    wake(w);
    pthread_join(w->thread, NULL);
    if (w->state == WATCHING)
        send_all(w, MPP_PACKET_BYE);
    for (int i = 0; w->peers != NULL && i < w->n_ranks; i++)
        mpp_link_close(&w->peers[i].line);
    destroy(w);
}
