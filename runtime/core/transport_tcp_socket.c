/* transport_tcp_socket.c - names, addresses and bytes. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "progress.h"
#include "transport_tcp_socket.h"

static socklen_t size_of(const struct mpp_tcp_address *a)
{
    return a->at.any.sa_family == AF_INET ? sizeof a->at.v4 : sizeof a->at.v6;
}

/* ---- addresses --------------------------------------------------------------------------------------------- */

static struct mpp_tcp_address plain(struct mpp_tcp_address a)
{
    if (a.at.any.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&a.at.v6.sin6_addr))
        return a;
    struct mpp_tcp_address v4 = {.at.v4 = {.sin_family = AF_INET, .sin_port = a.at.v6.sin6_port}};
    memcpy(&v4.at.v4.sin_addr, &a.at.v6.sin6_addr.s6_addr[12], 4);
    return v4;
}

int mpp_tcp_resolve(const char *host, int port, struct mpp_tcp_address *out, int max, const char **why_out, bool *passing_out)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *all = NULL;
    int n = 0, code = getaddrinfo(host, NULL, &hints, &all);
    *passing_out = code == EAI_AGAIN;
    if (code != 0) {
        *why_out = gai_strerror(code);
        return 0;
    }
    for (const struct addrinfo *i = all; i != NULL && n < max; i = i->ai_next) {
        if ((i->ai_family != AF_INET && i->ai_family != AF_INET6) || i->ai_addrlen > sizeof out->at)
            continue;
        out[n] = (struct mpp_tcp_address){0};
        memcpy(&out[n].at, i->ai_addr, i->ai_addrlen);
        mpp_tcp_set_port(&out[n++], port);
    }
    freeaddrinfo(all);
    *why_out = "it has no address";
    return n;
}

struct mpp_tcp_address mpp_tcp_any(bool v6, int port)
{
    struct mpp_tcp_address a = {.at.any.sa_family = v6 ? AF_INET6 : AF_INET};
    mpp_tcp_set_port(&a, port);
    return a;
}

struct mpp_tcp_address mpp_tcp_own(int fd)
{
    struct mpp_tcp_address a = {0};
    socklen_t size = sizeof a.at;
    (void)getsockname(fd, &a.at.any, &size);
    return plain(a);
}

struct mpp_tcp_address mpp_tcp_peer(int fd)
{
    struct mpp_tcp_address a = {0};
    socklen_t size = sizeof a.at;
    (void)getpeername(fd, &a.at.any, &size);
    return plain(a);
}

bool mpp_tcp_is_own(const struct mpp_tcp_address *a)
{
    struct mpp_tcp_address any_port = *a;
    int fd = socket(a->at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    mpp_tcp_set_port(&any_port, 0);
    bool own = bind(fd, &any_port.at.any, size_of(a)) == 0;
    close(fd);
    return own;
}

bool mpp_tcp_is_loopback(const struct mpp_tcp_address *a)
{
    if (a->at.any.sa_family == AF_INET)
        return ntohl(a->at.v4.sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&a->at.v6.sin6_addr);
}

int mpp_tcp_port(const struct mpp_tcp_address *a)
{
    return ntohs(a->at.any.sa_family == AF_INET ? a->at.v4.sin_port : a->at.v6.sin6_port);
}

void mpp_tcp_set_port(struct mpp_tcp_address *a, int port)
{
    if (a->at.any.sa_family == AF_INET)
        a->at.v4.sin_port = htons((uint16_t)port);
    else
        a->at.v6.sin6_port = htons((uint16_t)port);
}

const char *mpp_tcp_show(const struct mpp_tcp_address *a, char *text, size_t n)
{
    char host[INET6_ADDRSTRLEN] = "?";
    const void *bytes = a->at.any.sa_family == AF_INET ? (const void *)&a->at.v4.sin_addr : (const void *)&a->at.v6.sin6_addr;
    (void)inet_ntop(a->at.any.sa_family, bytes, host, sizeof host);
    (void)snprintf(text, n, "%s port %d", host, mpp_tcp_port(a));
    return text;
}

/* ---- connections -------------------------------------------------------------------------------------------- */

int mpp_tcp_listen(const struct mpp_tcp_address *a)
{
    int fd = socket(a->at.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), yes = 1, no = 0;
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes); /* a port whose job has just ended is free */
    if (a->at.any.sa_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    if (bind(fd, &a->at.any, size_of(a)) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

int mpp_tcp_wait_ms(double deadline_s)
{
    double left_s = deadline_s - mpp_clock_s();
    return left_s <= 0 ? 0 : left_s > 1 ? 1000 : (int)(left_s * 1000) + 1;
}

/* Until FD is ready for EVENTS; false: the deadline has passed, and errno is ETIMEDOUT. */
static bool wait_for(int fd, short events, double deadline_s)
{
    struct pollfd p = {.fd = fd, .events = events};
    for (int ms; (ms = mpp_tcp_wait_ms(deadline_s)) > 0;)
        if (poll(&p, 1, ms) > 0)
            return true;
    errno = ETIMEDOUT;
    return false;
}

int mpp_tcp_connect(const struct mpp_tcp_address *a, double deadline_s)
{
    int fd = socket(a->at.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), why = 0;
    socklen_t size = sizeof why;
    if (fd < 0)
        return -1;
    if (connect(fd, &a->at.any, size_of(a)) == 0)
        return fd;
    if (errno != EINPROGRESS || !wait_for(fd, POLLOUT, deadline_s))
        why = errno;
    else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &size) == 0 && why == 0)
        return fd;
    close(fd);
    errno = why;
    return -1;
}

static bool passing(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

bool mpp_tcp_send(int fd, const void *data, size_t bytes, double deadline_s)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && (!passing() || !wait_for(fd, POLLOUT, deadline_s)))
            return false;
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        }
    }
    return true;
}

bool mpp_tcp_receive(int fd, void *data, size_t bytes, double deadline_s)
{
    char *at = data;
    while (bytes > 0) {
        ssize_t n = recv(fd, at, bytes, 0);
        if (n == 0) {
            errno = 0;
            return false;
        }
        if (n < 0 && (!passing() || !wait_for(fd, POLLIN, deadline_s)))
            return false;
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        }
    }
    return true;
}
