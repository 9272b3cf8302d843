/* transport_tcp_meet.c - rank 0 gathers the others; then each connects with all. */
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "alike.h"
#include "progress.h"
#include "transport_tcp_file.h"
#include "transport_tcp_meet.h"
#include "transport_tcp_socket.h"

#define MAGIC 0x32706d706c616e00u /* the other byte order is another job's */
#define TRY_S 5.0      /* for one address of rank 0 */
#define AGAIN_S 0.1    /* between attempts to find it, at first */
#define RARELY_S 1.0   /* and later */
#define ANSWER_S 30.0  /* for a process to answer that is there */
#define CONNECT_S 60.0 /* for all connections, once all are there */
#define MORE_S 5.0     /* both are at most so much more than --timeout */
#define HELLO_S 10.0   /* for a caller to say who it is */
#define STRANGE_S 5.0  /* for another program at rank 0's port to go */
#define NAME_S 5.0     /* for names to be known where they are not for now */
#define FAILED_S 5.0   /* for others to read in the file that rank 0 has failed */
#define TOLD_S 5.0     /* until those who wait say so; then after twice as long, and so on */

enum { PROBE = -3, CALLERS = 64, CANDIDATES = 64 };

struct hello {
    uint64_t magic, job, nonce; /* nonce: 0 before the job has one */
    int32_t rank, size, use, port;
    double timeout_s, left_s; /* of this rank's --timeout; no rank waits longer than any */
    char host[MPP_HOST_NAME];
    uint64_t mark[MPP_ALIKE_PARTS];
};

/* What rank 0 tells. */
struct verdict {
    uint64_t magic, nonce;
    int32_t code;
    char text[sizeof((struct mpp_error *)0)->text];
};

/* A connection that has not said who it is. */
struct caller {
    int fd;
    size_t have;
    double since_s;
    struct hello hello;
};

struct mpp_tcp_meeting {
    struct mpp_tcp_place place;
    uint64_t job, nonce, mark[MPP_ALIKE_PARTS];
    double timeout_s, deadline_s; /* rank 0: of the rank that waits no longer */
    double begun_s, told_s;
    int listener;
    int *main;                    /* [size] rank 0: the others'; else the one with rank 0 */
    bool *given;                  /* [size] to the caller of connect */
    char (*hosts)[MPP_HOST_NAME]; /* [size] */
    struct mpp_tcp_address *seats; /* [size] where each listens, as rank 0 sees it */
    struct hello *hellos;         /* [size] rank 0 */
    int n_callers, n_strangers;
    struct caller callers[CALLERS];
};

static void pause_s(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static double soon(double deadline_s, double seconds)
{
    double then_s = mpp_clock_s() + seconds;
    return then_s < deadline_s ? then_s : deadline_s;
}

static double capped_s(const struct mpp_tcp_meeting *m, double seconds)
{
    return m->timeout_s > 0 && m->timeout_s + MORE_S < seconds ? m->timeout_s + MORE_S : seconds;
}

/* Is it time to say that this rank waits? On each machine one or two do. */
static bool is_note_due(struct mpp_tcp_meeting *m)
{
    if (mpp_clock_s() < m->told_s)
        return false;
    m->told_s += m->told_s - m->begun_s;
    return m->place.local_rank <= 1 || m->place.rank == 0;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void own_host(char host[MPP_HOST_NAME])
{
    memset(host, 0, MPP_HOST_NAME);
    (void)gethostname(host, MPP_HOST_NAME - 1);
}

static struct hello own_hello(const struct mpp_tcp_meeting *m, int use)
{
    struct hello h = {.magic = MAGIC, .job = m->job, .nonce = m->nonce, .rank = m->place.rank, .size = m->place.size, .use = use,
                      .timeout_s = m->timeout_s, .left_s = m->deadline_s - mpp_clock_s()};
    own_host(h.host);
    memcpy(h.mark, m->mark, sizeof h.mark);
    if (m->listener >= 0) {
        struct mpp_tcp_address own = mpp_tcp_own(m->listener);
        h.port = mpp_tcp_port(&own);
    }
    return h;
}

static bool send_verdict(const struct mpp_tcp_meeting *m, int fd, int code, const char *text)
{
    struct verdict v = {.magic = MAGIC, .nonce = m->nonce, .code = code};
    (void)snprintf(v.text, sizeof v.text, "%s", text);
    return mpp_tcp_send(fd, &v, sizeof v, mpp_clock_s() + capped_s(m, ANSWER_S));
}

/* A fault of which rank 0 does not know: this process speaks. */
static int speak_alone(int code, struct mpp_error *error)
{
    fprintf(stderr, "error: %s\n", error->text);
    error->text[0] = '\0';
    return code;
}

/* ---- callers ------------------------------------------------------------------------------------------------- */

static void drop_caller(struct mpp_tcp_meeting *m, int i)
{
    m->callers[i] = m->callers[--m->n_callers];
}

/* Reads on. 1: a hello; 0: not yet; -1: not one of ours. */
static int hear(struct caller *c)
{
    ssize_t n = recv(c->fd, (char *)&c->hello + c->have, sizeof c->hello - c->have, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    if (n <= 0)
        return -1;
    c->have += (size_t)n;
    if (c->have >= sizeof c->hello.magic && c->hello.magic != MAGIC)
        return -1;
    c->hello.host[MPP_HOST_NAME - 1] = '\0';
    return c->have == sizeof c->hello;
}

static void accept_callers(struct mpp_tcp_meeting *m)
{
    int fd;
    while (m->n_callers < CALLERS && (fd = accept4(m->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
        m->callers[m->n_callers++] = (struct caller){.fd = fd, .since_s = mpp_clock_s()};
}

/* The connection of the next caller that says hello as ranks do; -1: none has until the deadline. */
static int next_caller(struct mpp_tcp_meeting *m, double deadline_s, struct hello *hello_out)
{
    for (int ms; (ms = mpp_tcp_wait_ms(deadline_s)) > 0;) {
        struct pollfd p[CALLERS + 1] = {{.fd = m->n_callers < CALLERS ? m->listener : -1, .events = POLLIN}};
        for (int i = 0; i < m->n_callers; i++)
            p[1 + i] = (struct pollfd){.fd = m->callers[i].fd, .events = POLLIN};
        if (poll(p, (nfds_t)m->n_callers + 1, ms) < 0)
            continue;
        for (int i = m->n_callers - 1; i >= 0; i--) { /* the last takes the place of one that goes */
            struct caller c = m->callers[i];
            int said = p[1 + i].revents != 0 ? hear(&m->callers[i]) : 0;
            if (said > 0) {
                *hello_out = m->callers[i].hello;
                drop_caller(m, i);
                return c.fd;
            }
            if (said == 0 && mpp_clock_s() - c.since_s < HELLO_S)
                continue;
            m->n_strangers++;
            close(c.fd);
            drop_caller(m, i);
        }
        if (p[0].revents != 0)
            accept_callers(m);
    }
    return -1;
}

/* ---- rank 0 --------------------------------------------------------------------------------------------------- */

/* An earlier connection of a rank whose process has gone is no longer in the way. */
static bool has_gone(int fd)
{
    char byte;
    ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* Why the caller has no place here; NULL: it has. */
static const char *refusal(const struct mpp_tcp_meeting *m, const struct hello *h, char *text, size_t n)
{
    const char *by = m->place.file != NULL ? "MPP_RENDEZVOUS" : "MASTER_PORT";
    if (h->use != MPP_TCP_MAIN || h->job != m->job || h->nonce != 0)
        (void)snprintf(text, n, "rank %d on %s has come to another job; give each job its own %s", h->rank, h->host, by);
    else if (h->rank <= 0 || h->rank >= m->place.size)
        (void)snprintf(text, n, "RANK %d on %s has no place in a job of WORLD_SIZE %d", h->rank, h->host, m->place.size);
    else if (m->main[h->rank] >= 0 && !has_gone(m->main[h->rank]))
        (void)snprintf(text, n, "rank %d on %s is there twice: two processes have this RANK, or two jobs one %s", h->rank, h->host, by);
    else
        return NULL;
    return text;
}

static void seat(struct mpp_tcp_meeting *m, int fd, const struct hello *h)
{
    char text[256];
    const char *why = refusal(m, h, text, sizeof text);
    if (!send_verdict(m, fd, why != NULL ? MPP_EXIT_INPUT : MPP_EXIT_OK, why != NULL ? why : "") || why != NULL) {
        close(fd);
        return;
    }
    close_fd(&m->main[h->rank]);
    m->main[h->rank] = fd;
    m->hellos[h->rank] = *h;
    memcpy(m->hosts[h->rank], h->host, MPP_HOST_NAME);
    m->seats[h->rank] = mpp_tcp_peer(fd);
    mpp_tcp_set_port(&m->seats[h->rank], h->port);
    if (mpp_clock_s() + h->left_s < m->deadline_s) {
        m->deadline_s = mpp_clock_s() + h->left_s;
        m->timeout_s = h->timeout_s;
    }
}

static int count_missing(const struct mpp_tcp_meeting *m)
{
    int n = 0;
    for (int i = 1; i < m->place.size; i++)
        n += m->main[i] < 0;
    return n;
}

/* "1, 3 to 5" of the ranks that are there, or not. */
static void list_ranks(const struct mpp_tcp_meeting *m, bool there, char *text, size_t n)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0, end; i < m->place.size && at + 40 < n; i = end + 1) {
        for (end = i; end < m->place.size && (end == 0 || m->main[end] >= 0) == there; end++)
            ;
        const char *comma = at > 0 ? ", " : "";
        if (end - i == 1)
            at += (size_t)snprintf(text + at, n - at, "%s%d", comma, i);
        else if (end > i)
            at += (size_t)snprintf(text + at, n - at, "%s%d to %d", comma, i, end - 1);
    }
}

static int tell_missing(const struct mpp_tcp_meeting *m, int missing, struct mpp_error *error)
{
    char absent[200], present[200], strangers[80] = "", where[64];
    struct mpp_tcp_address own = mpp_tcp_own(m->listener);
    list_ranks(m, false, absent, sizeof absent);
    list_ranks(m, true, present, sizeof present);
    if (m->n_strangers > 0)
        (void)snprintf(strangers, sizeof strangers, "; %d connection%s of strangers", m->n_strangers, m->n_strangers == 1 ? "" : "s");
    return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank%s %s of %d ha%s not come to rank 0 on %s (%s) for %g s, but %s ha%s%s (--timeout "
                         "sets how long)", missing == 1 ? "" : "s", absent, m->place.size, missing == 1 ? "s" : "ve", m->hosts[0],
                         mpp_tcp_show(&own, where, sizeof where), m->timeout_s, present,
                         m->place.size - missing == 1 ? "s" : "ve", strangers);
}

static void note_missing(const struct mpp_tcp_meeting *m, int missing)
{
    char absent[200], where[64];
    struct mpp_tcp_address own = mpp_tcp_own(m->listener);
    list_ranks(m, false, absent, sizeof absent);
    mpp_note("rank 0 on %s (%s) has waited %.0f s for rank%s %s of %d", m->hosts[0], mpp_tcp_show(&own, where, sizeof where),
             mpp_clock_s() - m->begun_s, missing == 1 ? "" : "s", absent, m->place.size);
}

/* Of all that came: are they of one job? */
static int check_alike(const struct mpp_tcp_meeting *m, struct mpp_error *error)
{
    for (int i = 1; i < m->place.size; i++) {
        const struct hello *h = &m->hellos[i];
        if (h->size != m->place.size)
            return mpp_error_set(error, MPP_EXIT_INPUT, "rank %d on %s was started with WORLD_SIZE %d, rank 0 with %d; give all ranks the "
                                 "same", i, h->host, h->size, m->place.size);
        int part = mpp_alike_compare(h->mark, m->mark);
        if (part >= 0)
            return mpp_alike_refuse(part, i, h->host, error);
    }
    return MPP_EXIT_OK;
}

static int gather(struct mpp_tcp_meeting *m, struct mpp_error *error)
{
    struct hello h;
    int missing, code = MPP_EXIT_OK;
    while ((missing = count_missing(m)) > 0) {
        int fd = next_caller(m, m->told_s < m->deadline_s ? m->told_s : m->deadline_s, &h);
        if (fd >= 0)
            seat(m, fd, &h);
        else if (mpp_clock_s() >= m->deadline_s)
            break;
        else if (is_note_due(m))
            note_missing(m, missing);
    }
    code = missing > 0 ? tell_missing(m, missing, error) : check_alike(m, error);
    if (code == MPP_EXIT_OK && getrandom(&m->nonce, sizeof m->nonce, 0) != sizeof m->nonce)
        code = mpp_error_set(error, MPP_EXIT_SYSTEM, "getrandom: %s", strerror(errno));
    for (int i = 1; i < m->place.size; i++)
        if (m->main[i] >= 0 && send_verdict(m, m->main[i], code, code == MPP_EXIT_OK ? "" : error->text) && code == MPP_EXIT_OK) {
            double end_s = mpp_clock_s() + capped_s(m, ANSWER_S); /* who does not read this is missed when all connect */
            if (mpp_tcp_send(m->main[i], m->hosts, (size_t)m->place.size * sizeof *m->hosts, end_s))
                (void)mpp_tcp_send(m->main[i], m->seats, (size_t)m->place.size * sizeof *m->seats, end_s);
        }
    return code;
}

/* ---- where rank 0 listens --------------------------------------------------------------------------------------- */

/* A name may mean another address to other machines (Debian's 127.0.1.1); a number is an address of this one. */
static bool is_number(const char *address)
{
    unsigned char bytes[16];
    return inet_pton(AF_INET, address, bytes) == 1 || inet_pton(AF_INET6, address, bytes) == 1;
}

/* The first port that is free at A. */
static int listen_at(const struct mpp_tcp_place *place, struct mpp_tcp_address a)
{
    for (int i = 0; i < place->n_ports; i++) {
        mpp_tcp_set_port(&a, place->port + i);
        int fd = mpp_tcp_listen(&a);
        if (fd >= 0 || errno != EADDRINUSE)
            return fd;
    }
    return -1;
}

static bool is_here(const struct mpp_tcp_address *a, int n)
{
    for (int i = 0; i < n; i++)
        if (mpp_tcp_is_own(&a[i]))
            return true;
    return false;
}

/* Where MASTER_ADDR is, *N_OUT addresses. What is wrong with it all ranks see by themselves. */
static int find_address(const struct mpp_tcp_meeting *m, struct mpp_tcp_address *a, int max, int *n_out, struct mpp_error *error)
{
    const struct mpp_tcp_place *place = &m->place;
    double end_s = soon(m->deadline_s, NAME_S);
    const char *why;
    bool passing;
    while ((*n_out = mpp_tcp_resolve(place->address, place->port, a, max, &why, &passing)) == 0 && passing && mpp_clock_s() < end_s)
        pause_s(RARELY_S);
    if (*n_out == 0)
        return mpp_error_set(error, MPP_EXIT_INPUT, "MASTER_ADDR=%s: %s", place->address, why);
    if (place->one_machine && !is_here(a, *n_out))
        return mpp_error_set(error, MPP_EXIT_INPUT, "MASTER_ADDR=%s is no address of this machine, on which all ranks are (LOCAL_WORLD_SIZE "
                             "is WORLD_SIZE)", place->address);
    return MPP_EXIT_OK;
}

static int listen_once(const struct mpp_tcp_place *place, const struct mpp_tcp_address *a, int n)
{
    bool exact = place->one_machine || is_number(place->address);
    int fd = -1, why = EADDRNOTAVAIL;
    for (int i = 0; exact && fd < 0 && i < n; i++) {
        fd = listen_at(place, a[i]);
        why = fd < 0 ? errno : 0;
    }
    if (fd < 0 && why == EADDRNOTAVAIL) { /* an address that a router translates */
        fd = listen_at(place, mpp_tcp_any(true, 0));
        if (fd < 0 && errno != EADDRINUSE)
            fd = listen_at(place, mpp_tcp_any(false, 0));
    } else {
        errno = why;
    }
    return fd;
}

static int listen_on_port(struct mpp_tcp_meeting *m, struct mpp_error *error)
{
    const struct mpp_tcp_place *place = &m->place;
    struct mpp_tcp_address a[CANDIDATES];
    int n, code = find_address(m, a, CANDIDATES, &n, error);
    if (code != MPP_EXIT_OK)
        return code;
    double end_s = soon(m->deadline_s, 1); /* it may be in use for a moment yet */
    while ((m->listener = listen_once(place, a, n)) < 0 && errno == EADDRINUSE && mpp_clock_s() < end_s)
        pause_s(AGAIN_S);
    if (m->listener >= 0) {
        if (!is_here(a, n))
            mpp_note("MASTER_ADDR=%s is no address of this machine, %s, on which rank 0 is: rank 0 listens at all that it has; right where "
                     "a router or container translates it", place->address, m->hosts[0]);
        return MPP_EXIT_OK;
    }
    if (errno == EADDRINUSE)
        return mpp_error_set(error, MPP_EXIT_INPUT, "MASTER_PORT %d is in use on this machine, perhaps by another job; give another",
                             place->port);
    return mpp_error_set(error, MPP_EXIT_INPUT, "rank 0 cannot listen at MASTER_ADDR=%s, MASTER_PORT=%d: %s", place->address,
                         place->port, strerror(errno));
}

static int addresses_of(const struct mpp_link_offer *offer, struct mpp_tcp_address *out)
{
    for (int i = 0; i < offer->n; i++) {
        out[i] = mpp_tcp_any(offer->address[i].family == AF_INET6, offer->port);
        if (offer->address[i].family == AF_INET)
            memcpy(&out[i].at.v4.sin_addr, offer->address[i].bytes, sizeof out[i].at.v4.sin_addr);
        else
            memcpy(&out[i].at.v6.sin6_addr, offer->address[i].bytes, sizeof out[i].at.v6.sin6_addr);
    }
    return offer->n;
}

/* Is a job coming together where the file says? */
static bool is_met_at(const struct mpp_tcp_meeting *m, const struct mpp_link_offer *offer)
{
    struct mpp_tcp_address a[MPP_LINK_ADDRESSES];
    struct hello h = own_hello(m, PROBE);
    struct verdict v = {0};
    bool met = false;
    double end_s = soon(m->deadline_s, ANSWER_S);
    h.job = offer->nonce;
    for (int i = 0, n = addresses_of(offer, a); !met && i < n; i++) {
        int fd = mpp_tcp_connect(&a[i], soon(end_s, TRY_S));
        met = fd >= 0 && mpp_tcp_send(fd, &h, sizeof h, end_s) && mpp_tcp_receive(fd, &v, sizeof v, end_s) && v.magic == MAGIC;
        close_fd(&fd);
    }
    return met;
}

/* On one machine all ranks see whether it can be written. */
static int check_file(const struct mpp_tcp_meeting *m, bool *writable_out, struct timespec *now_out, struct mpp_error *error)
{
    int code = mpp_tcp_file_check(m->place.file, writable_out, now_out, error);
    return code == MPP_EXIT_OK && !*writable_out && (m->place.rank == 0 || m->place.one_machine) ? error->code : code;
}

/* mpp_tcp_file_write; one that tells of an earlier failure makes way. */
static int write_file(const struct mpp_tcp_meeting *m, const struct mpp_link_offer *offer, const struct mpp_error *failure,
                      bool *taken_out, struct mpp_error *error)
{
    struct mpp_tcp_file old;
    int code = mpp_tcp_file_write(m->place.file, offer, failure, taken_out, error);
    if (code != MPP_EXIT_OK || !*taken_out || !mpp_tcp_file_read(m->place.file, &old) || old.failure.code == MPP_EXIT_OK)
        return code;
    mpp_tcp_file_remove(m->place.file, old.offer.nonce);
    return mpp_tcp_file_write(m->place.file, offer, failure, taken_out, error);
}

/* To whoever looks within a moment. Not where another job comes together. */
static int tell_failure(const struct mpp_tcp_meeting *m, int code, const struct mpp_error *failure)
{
    struct mpp_link_offer own = {0};
    struct mpp_error why;
    bool taken;
    if (getrandom(&own.nonce, sizeof own.nonce, 0) == sizeof own.nonce
        && write_file(m, &own, failure, &taken, &why) == MPP_EXIT_OK && !taken) {
        pause_s(soon(m->deadline_s, FAILED_S) - mpp_clock_s());
        mpp_tcp_file_remove(m->place.file, own.nonce); /* not what has replaced it meanwhile */
    }
    return code;
}

static int listen_by_file(struct mpp_tcp_meeting *m, struct mpp_error *error)
{
    struct mpp_link_offer offer = {0};
    struct mpp_tcp_file other;
    struct timespec now;
    bool taken, writable;
    int code = check_file(m, &writable, &now, error);
    if (code != MPP_EXIT_OK)
        return code;
    m->listener = mpp_link_listen(&offer);
    if (m->listener >= 0 && m->place.one_machine) { /* then as the loopback only */
        struct mpp_tcp_address a;
        offer.port = 0;
        offer.n = 1;
        (void)addresses_of(&offer, &a);
        close_fd(&m->listener);
        m->listener = mpp_tcp_listen(&a);
        a = m->listener >= 0 ? mpp_tcp_own(m->listener) : a;
        offer.port = mpp_tcp_port(&a);
    }
    if (m->listener < 0 || offer.nonce == 0)
        return tell_failure(m, mpp_error_set(error, MPP_EXIT_SYSTEM, "rank 0 on %s cannot listen: %s", m->hosts[0], strerror(errno)), error);
    code = write_file(m, &offer, NULL, &taken, error);
    if (code == MPP_EXIT_OK && taken && mpp_tcp_file_read(m->place.file, &other)) {
        if (other.failure.code == MPP_EXIT_OK && is_met_at(m, &other.offer))
            return mpp_error_set(error, MPP_EXIT_INPUT, "MPP_RENDEZVOUS: another job is coming together by %s; give each job its own file",
                                 m->place.file);
        mpp_tcp_file_remove(m->place.file, other.offer.nonce); /* of a job that was killed */
        code = mpp_tcp_file_write(m->place.file, &offer, NULL, &taken, error);
    }
    if (code == MPP_EXIT_OK && taken)
        code = mpp_error_set(error, MPP_EXIT_INPUT, "MPP_RENDEZVOUS: %s is there already, and no such file of an earlier job; name another",
                             m->place.file);
    m->job = offer.nonce;
    return code;
}

static int host_meeting(struct mpp_tcp_meeting *m, struct mpp_error *error)
{
    int code = m->place.file != NULL ? listen_by_file(m, error) : listen_on_port(m, error);
    if (code != MPP_EXIT_OK)
        return code;
    code = gather(m, error);
    if (m->place.file != NULL)
        mpp_tcp_file_remove(m->place.file, m->job);
    return code;
}

/* ---- the others ------------------------------------------------------------------------------------------------- */

/* Listen where the others reach this machine as rank 0 does. */
static bool listen_beside(struct mpp_tcp_meeting *m, int fd)
{
    struct mpp_tcp_address own = mpp_tcp_own(fd);
    close_fd(&m->listener);
    if (mpp_tcp_is_loopback(&own) && !m->place.one_machine)
        for (int v6 = 1; v6 >= 0 && m->listener < 0; v6--)
            m->listener = mpp_tcp_listen((struct mpp_tcp_address[]){mpp_tcp_any(v6 == 1, 0)});
    mpp_tcp_set_port(&own, 0);
    if (m->listener < 0)
        m->listener = mpp_tcp_listen(&own);
    return m->listener >= 0;
}

enum greeted { SEATED, NOBODY, REFUSED, STRANGER };

/* FD is connected with something. Is it rank 0? *WHY_OUT: why not. */
static enum greeted greet(struct mpp_tcp_meeting *m, int fd, const char **why_out, struct mpp_error *error)
{
    struct mpp_tcp_address own = mpp_tcp_own(fd), peer = mpp_tcp_peer(fd);
    struct verdict v = {0};
    double end_s = soon(m->deadline_s, ANSWER_S);
    *why_out = strerror(ECONNREFUSED);
    if (memcmp(&own, &peer, sizeof own) == 0 || !listen_beside(m, fd)) /* a port of one's own can meet itself */
        return NOBODY;
    struct hello h = own_hello(m, MPP_TCP_MAIN);
    bool heard = mpp_tcp_send(fd, &h, sizeof h, end_s) && mpp_tcp_receive(fd, &v, sizeof v, end_s);
    if (v.magic != MAGIC && (heard || v.magic != 0)) {
        *why_out = "what answers there is another program";
        return STRANGER;
    }
    if (!heard) { /* what forwards connections may do so, too, before rank 0 is there */
        *why_out = errno == ETIMEDOUT ? "what is there does not answer" : "what is there ends the connection";
        return m->place.one_machine && v.magic == 0 ? STRANGER : NOBODY;
    }
    v.text[sizeof v.text - 1] = '\0';
    if (v.code == MPP_EXIT_OK)
        return SEATED;
    (void)mpp_error_set(error, v.code, "%s", v.text);
    return REFUSED;
}

/* The search for rank 0. */
struct search {
    struct mpp_tcp_address a[CANDIDATES], last;
    int n; /* addresses at MASTER_ADDR, the same for each port */
    const char *why;
    double pause_s, strange_s; /* since when nothing but other programs was met; 0: not */
    bool dated;                /* is BEGUN known? */
    struct timespec begun;     /* when this rank came, by the clock of the file's folder */
    char failed[sizeof((struct mpp_error *)0)->text + 64]; /* what is known of a rank 0 that failed before */
};

/* A file that tells of a failure. Ends the search, but where it was there before this rank: the job was started again, and its rank 0 is to
 * replace the file. */
static void take_failure(struct search *s, const struct mpp_tcp_file *file, struct mpp_error *failure_out)
{
    const struct timespec *a = &file->written, *b = &s->begun;
    if (s->dated && (a->tv_sec != b->tv_sec ? a->tv_sec < b->tv_sec : a->tv_nsec < b->tv_nsec)) {
        (void)snprintf(s->failed, sizeof s->failed, "a rank 0 failed before this rank was there: %s", file->failure.text);
        s->why = s->failed;
        return;
    }
    *failure_out = file->failure;
    if (s->dated) /* rank 0 prints it */
        failure_out->text[0] = '\0';
}

/* Where rank 0 may be; 0: not known yet. */
static int find_candidates(struct mpp_tcp_meeting *m, struct search *s, struct mpp_error *failure_out)
{
    struct mpp_tcp_file file;
    bool passing;
    if (m->place.file != NULL) {
        s->why = access(m->place.file, F_OK) == 0 ? "there is no such file of a job yet"
                 : s->failed[0] != '\0' ? s->failed : "the file is not there";
        if (!mpp_tcp_file_read(m->place.file, &file))
            return 0;
        if (file.failure.code != MPP_EXIT_OK) {
            take_failure(s, &file, failure_out);
            return 0;
        }
        m->job = file.offer.nonce;
        return addresses_of(&file.offer, s->a);
    }
    int n = mpp_tcp_resolve(m->place.address, m->place.port, s->a, CANDIDATES / MPP_TCP_AGENT_PORTS, &s->why, &passing);
    for (int i = n; i < n * m->place.n_ports; i++) {
        s->a[i] = s->a[i % n];
        mpp_tcp_set_port(&s->a[i], m->place.port + i / n);
    }
    return n * m->place.n_ports;
}

/* One attempt at all places. */
static enum greeted try_all(struct mpp_tcp_meeting *m, struct search *s, struct mpp_error *error)
{
    bool strange = false;
    error->code = MPP_EXIT_OK;
    int n = find_candidates(m, s, error);
    if (error->code != MPP_EXIT_OK)
        return REFUSED;
    for (int i = 0; i < n; i++) {
        s->last = s->a[i];
        int fd = mpp_tcp_connect(&s->a[i], soon(m->deadline_s, TRY_S));
        s->why = fd >= 0 ? "" : strerror(errno);
        enum greeted greeted = fd >= 0 ? greet(m, fd, &s->why, error) : NOBODY;
        if (greeted == SEATED)
            m->main[0] = fd;
        else
            close_fd(&fd);
        if (greeted == SEATED || greeted == REFUSED)
            return greeted;
        strange = strange || greeted == STRANGER;
    }
    s->strange_s = !strange || m->place.n_ports > 1 ? 0 : s->strange_s > 0 ? s->strange_s : mpp_clock_s();
    return s->strange_s > 0 && mpp_clock_s() - s->strange_s >= STRANGE_S ? STRANGER : NOBODY;
}

/* "MASTER_ADDR=node1 (10.0.0.1 port 29500)" */
static const char *show_place(const struct mpp_tcp_meeting *m, const struct search *s, char *text, size_t n)
{
    char where[64];
    if (m->place.file != NULL)
        (void)snprintf(text, n, "MPP_RENDEZVOUS=file://%s", m->place.file);
    else
        (void)snprintf(text, n, "MASTER_ADDR=%s (%s)", m->place.address, mpp_tcp_show(&s->last, where, sizeof where));
    return text;
}

static void note_search(const struct mpp_tcp_meeting *m, const struct search *s)
{
    char place[512];
    bool writable = true;
    struct timespec now;
    struct mpp_error why = {0};
    if (m->place.file != NULL)
        (void)!mpp_tcp_file_check(m->place.file, &writable, &now, &why);
    mpp_note("rank %d on %s has waited %.0f s for rank 0 at %s: %s%s%s", m->place.rank, m->hosts[m->place.rank], mpp_clock_s() - m->begun_s,
             show_place(m, s, place, sizeof place), s->why, writable ? "" : "; nor could this rank make it: ", writable ? "" : why.text);
}

static int go_to_rank_0(struct mpp_tcp_meeting *m, struct mpp_error *error)
{
    struct search s = {.why = "", .pause_s = AGAIN_S};
    char place[512];
    enum greeted greeted;
    int code = m->place.file != NULL ? check_file(m, &s.dated, &s.begun, error)
                                     : find_address(m, s.a, CANDIDATES / MPP_TCP_AGENT_PORTS, &s.n, error);
    if (code != MPP_EXIT_OK)
        return speak_alone(code, error);
    s.last = s.a[0];
    while ((greeted = try_all(m, &s, error)) == NOBODY && mpp_clock_s() < m->deadline_s) {
        if (is_note_due(m))
            note_search(m, &s);
        pause_s(s.pause_s);
        s.pause_s = s.pause_s * 1.2 < RARELY_S ? s.pause_s * 1.2 : RARELY_S;
    }
    if (greeted == SEATED)
        return MPP_EXIT_OK;
    if (greeted == STRANGER)
        code = mpp_error_set(error, MPP_EXIT_INPUT, "rank %d on %s: MASTER_PORT %d at %s is in use: %s; give another", m->place.rank,
                             m->hosts[m->place.rank], m->place.port, m->place.address, s.why);
    else if (greeted == NOBODY)
        code = mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d on %s: rank 0 has not answered at %s for %g s: %s (--timeout sets how long)",
                             m->place.rank, m->hosts[m->place.rank], show_place(m, &s, place, sizeof place), m->timeout_s, s.why);
    return error->text[0] != '\0' ? speak_alone(error->code, error) : error->code;
}

/* What rank 0 says; lost where it says nothing. */
static int hear_verdict(struct mpp_tcp_meeting *m, double deadline_s, struct verdict *v, struct mpp_error *error)
{
    if (mpp_tcp_receive(m->main[0], v, sizeof *v, deadline_s) && v->magic == MAGIC) {
        v->text[sizeof v->text - 1] = '\0';
        return v->code == MPP_EXIT_OK ? MPP_EXIT_OK : mpp_error_set(error, v->code, "%s", v->text);
    }
    int code = mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d on %s: rank 0 %s while the ranks came together", m->place.rank,
                             m->hosts[m->place.rank], errno == ETIMEDOUT ? "did not answer" : "ended");
    return speak_alone(code, error);
}

static int join_meeting(struct mpp_tcp_meeting *m, struct mpp_error *error)
{
    struct verdict v;
    int code = go_to_rank_0(m, error);
    if (code != MPP_EXIT_OK)
        return code;
    double end_s = m->deadline_s + capped_s(m, ANSWER_S); /* rank 0 waits no longer than any rank does */
    code = hear_verdict(m, end_s, &v, error);
    if (code != MPP_EXIT_OK)
        return code;
    m->nonce = v.nonce;
    if (mpp_tcp_receive(m->main[0], m->hosts, (size_t)m->place.size * sizeof *m->hosts, end_s)
        && mpp_tcp_receive(m->main[0], m->seats, (size_t)m->place.size * sizeof *m->seats, end_s))
        return MPP_EXIT_OK;
    return speak_alone(mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: rank 0 ended while the ranks came together", m->place.rank), error);
}

/* ---- connections of all with all ------------------------------------------------------------------------------------ */

/* Rank 0 and each other rank have one already. */
static bool is_there(const struct mpp_tcp_meeting *m, const struct mpp_tcp_link *l)
{
    return l->use == MPP_TCP_MAIN && (m->place.rank == 0 || l->peer == 0);
}

static int call(struct mpp_tcp_meeting *m, struct mpp_tcp_link *l, double deadline_s, struct mpp_error *error)
{
    struct mpp_tcp_address a = m->seats[l->peer];
    char where[64];
    bool elsewhere = strcmp(m->hosts[l->peer], m->hosts[m->place.rank]) != 0;
    if (l->peer == 0 || (elsewhere && mpp_tcp_is_loopback(&a))) { /* rank 0's machine, as it is seen from here */
        int port = mpp_tcp_port(&a);
        a = mpp_tcp_peer(m->main[0]);
        mpp_tcp_set_port(&a, l->peer == 0 ? mpp_tcp_port(&a) : port);
    }
    struct hello h = own_hello(m, l->use);
    l->fd = mpp_tcp_connect(&a, deadline_s);
    if (l->fd >= 0 && mpp_tcp_send(l->fd, &h, sizeof h, deadline_s))
        return MPP_EXIT_OK;
    return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d on %s does not reach rank %d on %s (%s): %s; every port is to be open between "
                         "the machines", m->place.rank, m->hosts[m->place.rank], l->peer, m->hosts[l->peer],
                         mpp_tcp_show(&a, where, sizeof where), strerror(errno));
}

static struct mpp_tcp_link *find_link(struct mpp_tcp_link *links, int n, int peer, int use)
{
    for (int i = 0; i < n; i++)
        if (links[i].peer == peer && links[i].use == use)
            return &links[i];
    return NULL;
}

static int hear_callers(struct mpp_tcp_meeting *m, struct mpp_tcp_link *links, int n, double deadline_s, struct mpp_error *error)
{
    for (int i = 0; i < n; i++)
        while (links[i].fd < 0) {
            struct hello h;
            int fd = next_caller(m, deadline_s, &h);
            if (fd < 0)
                return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d on %s has not reached rank %d on %s for %g s", links[i].peer,
                                     m->hosts[links[i].peer], m->place.rank, m->hosts[m->place.rank], capped_s(m, CONNECT_S));
            struct mpp_tcp_link *l = find_link(links, n, h.rank, h.use);
            if (l != NULL && l->fd < 0 && h.nonce == m->nonce)
                l->fd = fd;
            else
                close(fd);
        }
    return MPP_EXIT_OK;
}

/* All ranks get the code and message of the lowest that failed. */
static int conclude(struct mpp_tcp_meeting *m, int code, double end_s, struct mpp_error *error)
{
    struct verdict v;
    if (m->place.rank > 0) {
        if (send_verdict(m, m->main[0], code, code == MPP_EXIT_OK ? "" : error->text))
            return hear_verdict(m, end_s, &v, error);
        return speak_alone(mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: rank 0 ended while the ranks came together", m->place.rank), error);
    }
    for (int i = 1; i < m->place.size; i++) {
        bool heard = mpp_tcp_receive(m->main[i], &v, sizeof v, end_s);
        v.text[sizeof v.text - 1] = '\0';
        if (code == MPP_EXIT_OK && !heard)
            code = mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d on %s %s while the ranks came together", i, m->hosts[i],
                                 errno == ETIMEDOUT ? "did not answer" : "ended");
        else if (code == MPP_EXIT_OK && v.code != MPP_EXIT_OK)
            code = mpp_error_set(error, v.code, "%s", v.text);
    }
    for (int i = 1; i < m->place.size; i++)
        (void)send_verdict(m, m->main[i], code, code == MPP_EXIT_OK ? "" : error->text);
    return code;
}

int mpp_tcp_meeting_connect(struct mpp_tcp_meeting *m, int code, struct mpp_tcp_link *links, int n_links, struct mpp_error *error)
{
    double end_s = mpp_clock_s() + capped_s(m, CONNECT_S);
    for (int i = 0; i < n_links; i++)
        links[i].fd = is_there(m, &links[i]) ? m->main[links[i].peer] : -1;
    for (int i = 0; code == MPP_EXIT_OK && i < n_links; i++)
        if (links[i].peer < m->place.rank && links[i].fd < 0)
            code = call(m, &links[i], end_s, error);
    if (code == MPP_EXIT_OK)
        code = hear_callers(m, links, n_links, end_s, error);
    code = conclude(m, code, end_s + capped_s(m, ANSWER_S), error);
    close_fd(&m->listener); /* whoever comes now is of no job */
    for (int i = 0; i < n_links; i++)
        if (is_there(m, &links[i]))
            m->given[links[i].peer] = code == MPP_EXIT_OK;
        else if (code != MPP_EXIT_OK)
            close_fd(&links[i].fd);
    return code;
}

/* ---- life ------------------------------------------------------------------------------------------------------------ */

const char (*mpp_tcp_meeting_hosts(const struct mpp_tcp_meeting *m))[MPP_HOST_NAME]
{
    return (const char (*)[MPP_HOST_NAME])m->hosts;
}

void mpp_tcp_meeting_free(struct mpp_tcp_meeting *m)
{
    if (m == NULL)
        return;
    for (int i = 0; m->main != NULL && m->given != NULL && i < m->place.size; i++)
        if (!m->given[i])
            close_fd(&m->main[i]);
    for (int i = 0; i < m->n_callers; i++)
        close_fd(&m->callers[i].fd);
    close_fd(&m->listener);
    free(m->main);
    free(m->given);
    free(m->hosts);
    free(m->seats);
    free(m->hellos);
    free(m);
}

static struct mpp_tcp_meeting *make_meeting(const struct mpp_tcp_place *place)
{
    struct mpp_tcp_meeting *m = calloc(1, sizeof *m);
    size_t n = (size_t)place->size;
    if (m == NULL)
        return NULL;
    m->place = *place;
    m->listener = -1;
    m->main = malloc(n * sizeof *m->main);
    m->given = calloc(n, sizeof *m->given);
    m->hosts = calloc(n, sizeof *m->hosts);
    m->seats = calloc(n, sizeof *m->seats);
    m->hellos = calloc(n, sizeof *m->hellos);
    for (size_t i = 0; m->main != NULL && i < n; i++)
        m->main[i] = -1;
    if (m->main != NULL && m->given != NULL && m->hosts != NULL && m->seats != NULL && m->hellos != NULL)
        return m;
    mpp_tcp_meeting_free(m);
    return NULL;
}

/* A connection takes a descriptor; systems give 1024 to begin with, and more to those that ask. */
static void ask_for_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int mpp_tcp_meet(const struct mpp_tcp_place *place, const uint64_t *mark, double timeout_s, struct mpp_tcp_meeting **out,
                 struct mpp_error *error)
{
    struct mpp_tcp_meeting *m = make_meeting(place);
    *out = NULL;
    if (m == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    m->job = place->job;
    m->timeout_s = timeout_s;
    m->begun_s = mpp_clock_s();
    m->told_s = m->begun_s + TOLD_S;
    m->deadline_s = timeout_s > 0 ? m->begun_s + timeout_s : INFINITY;
    if (mark != NULL)
        memcpy(m->mark, mark, sizeof m->mark);
    own_host(m->hosts[place->rank]);
    ask_for_descriptors();
    int code = place->rank == 0 ? host_meeting(m, error) : join_meeting(m, error);
    if (code != MPP_EXIT_OK)
        mpp_tcp_meeting_free(m);
    else
        *out = m;
    return code;
}
