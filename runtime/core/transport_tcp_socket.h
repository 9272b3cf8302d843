/* transport_tcp_socket.h - TCP connections by address, until a deadline.
 *
 *     struct mpp_tcp_address a[8];
 *     int n = mpp_tcp_resolve("node1", 29500, a, 8, &why, &passing);
 *     int fd = mpp_tcp_connect(&a[0], deadline_s);             // -1: errno says why; the caller closes it
 *     if (!mpp_tcp_send(fd, &hello, sizeof hello, deadline_s) || !mpp_tcp_receive(fd, &answer, sizeof answer, deadline_s))
 *         give_up(errno);                                      // 0: the other side has closed it
 *
 * Sockets do not block and are not inherited; deadlines are times of mpp_clock_s, INFINITY for none. */
#ifndef MPP_TRANSPORT_TCP_SOCKET_H
#define MPP_TRANSPORT_TCP_SOCKET_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

/* IPv4 addresses within IPv6 stand as IPv4. */
struct mpp_tcp_address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } at;
};

/* Addresses of HOST, at most MAX; 0: none, *WHY_OUT says why, *PASSING_OUT whether another time there may be. */
int mpp_tcp_resolve(const char *host, int port, struct mpp_tcp_address *out, int max, const char **why_out, bool *passing_out);
/* As every address of this machine, of both families where it has them. */
struct mpp_tcp_address mpp_tcp_any(bool v6, int port);
/* Of FD's own side or the other one. */
struct mpp_tcp_address mpp_tcp_own(int fd);
struct mpp_tcp_address mpp_tcp_peer(int fd);
/* Has this machine A? */
bool mpp_tcp_is_own(const struct mpp_tcp_address *a);
bool mpp_tcp_is_loopback(const struct mpp_tcp_address *a);
int mpp_tcp_port(const struct mpp_tcp_address *a);
void mpp_tcp_set_port(struct mpp_tcp_address *a, int port);
/* "10.0.0.1 port 29500"; returns TEXT. */
const char *mpp_tcp_show(const struct mpp_tcp_address *a, char *text, size_t n);

/* -1: errno says why. Port 0: any. */
int mpp_tcp_listen(const struct mpp_tcp_address *a);
int mpp_tcp_connect(const struct mpp_tcp_address *a, double deadline_s);
bool mpp_tcp_send(int fd, const void *data, size_t bytes, double deadline_s);
bool mpp_tcp_receive(int fd, void *data, size_t bytes, double deadline_s);

/* For poll: up to 1 s, as far as the deadline lets; 0 when it has passed. */
int mpp_tcp_wait_ms(double deadline_s);

#endif
