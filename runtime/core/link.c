/* link.c - sockets of the watch. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "link.h"

static void add_address(struct mpp_link_offer *offer, int family, const void *bytes, size_t n)
{
    if (offer->n == MPP_LINK_ADDRESSES)
        return;
    struct mpp_link_address *a = &offer->address[offer->n++];
    a->family = family;
    memcpy(a->bytes, bytes, n);
}

/* Where this host can be reached: its addresses of every network, IPv4 first. */
static void add_interfaces(struct mpp_link_offer *offer, int family)
{
    struct ifaddrs *all;
    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK))
            continue;
        if (family == AF_INET) {
            const struct sockaddr_in *in = (const void *)i->ifa_addr;
            add_address(offer, family, &in->sin_addr, sizeof in->sin_addr);
        } else {
            const struct sockaddr_in6 *in = (const void *)i->ifa_addr;
            if (!IN6_IS_ADDR_LINKLOCAL(&in->sin6_addr))
                add_address(offer, family, &in->sin6_addr, sizeof in->sin6_addr);
        }
    }
    freeifaddrs(all);
}

static int bind_any(int family)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), no = 0;
    if (fd < 0)
        return -1;
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    bool ok = family == AF_INET ? bind(fd, (const void *)&v4, sizeof v4) == 0
                                : setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) == 0
                                      && bind(fd, (const void *)&v6, sizeof v6) == 0;
    if (ok && listen(fd, SOMAXCONN) == 0)
        return fd;
    close(fd);
    return -1;
}

int mpp_link_listen(struct mpp_link_offer *offer_out)
{
    *offer_out = (struct mpp_link_offer){0};
    int fd = bind_any(AF_INET6);
    bool both = fd >= 0;
    if (fd < 0)
        fd = bind_any(AF_INET);
    struct sockaddr_storage name = {0};
    socklen_t size = sizeof name;
    if (fd < 0 || getsockname(fd, (void *)&name, &size) != 0
        || getrandom(&offer_out->nonce, sizeof offer_out->nonce, 0) != sizeof offer_out->nonce)
        return fd;
    offer_out->port = both ? ntohs(((const struct sockaddr_in6 *)(const void *)&name)->sin6_port)
                           : ntohs(((const struct sockaddr_in *)(const void *)&name)->sin_port);
    struct in_addr loopback = {htonl(INADDR_LOOPBACK)};
    add_address(offer_out, AF_INET, &loopback, sizeof loopback);
    add_interfaces(offer_out, AF_INET);
    if (both)
        add_interfaces(offer_out, AF_INET6);
    return fd;
}

static void set_options(int fd, double silence_s)
{
    int yes = 1;
    unsigned ms = (unsigned)(silence_s * 1000);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
#ifdef TCP_USER_TIMEOUT
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
#else
    (void)ms;
#endif
}

bool mpp_link_connect(const struct mpp_link_offer *offer, int address, double silence_s, struct mpp_line *line_out)
{
    const struct mpp_link_address *a = &offer->address[address];
    *line_out = (struct mpp_line){.fd = socket(a->family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    if (line_out->fd < 0)
        return false;
    set_options(line_out->fd, silence_s);
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)offer->port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)offer->port)};
    memcpy(&v4.sin_addr, a->bytes, sizeof v4.sin_addr);
    memcpy(&v6.sin6_addr, a->bytes, sizeof v6.sin6_addr);
    int rc = a->family == AF_INET ? connect(line_out->fd, (const void *)&v4, sizeof v4)
                                  : connect(line_out->fd, (const void *)&v6, sizeof v6);
    if (rc == 0 || errno == EINPROGRESS)
        return true;
    mpp_link_close(line_out);
    return false;
}

struct mpp_line mpp_link_of(int fd, double silence_s)
{
    set_options(fd, silence_s);
    return (struct mpp_line){.fd = fd};
}

bool mpp_link_connected(const struct mpp_line *line)
{
    int error = 0;
    socklen_t size = sizeof error;
    return getsockopt(line->fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

bool mpp_link_accept(int listener, double silence_s, struct mpp_line *line_out)
{
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return false;
    *line_out = mpp_link_of(fd, silence_s);
    return true;
}

bool mpp_link_send(struct mpp_line *line, const struct mpp_packet *packet)
{
    ssize_t n = send(line->fd, packet, sizeof *packet, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0 && n < (ssize_t)sizeof *packet) { /* what comes next would be read as its end */
        errno = EPIPE;
        return false;
    }
    return n >= 0 || errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

int mpp_link_receive(struct mpp_line *line, struct mpp_packet *packet_out)
{
    ssize_t n = recv(line->fd, (char *)&line->in + line->have, sizeof line->in - (size_t)line->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    if (n == 0)
        errno = 0;
    if (n <= 0)
        return -1;
    line->have += (int)n;
    if (line->have < (int)sizeof line->in)
        return 0;
    line->have = 0;
    *packet_out = line->in;
    return 1;
}

void mpp_link_close(struct mpp_line *line)
{
    if (line->fd >= 0)
        close(line->fd);
    line->fd = -1;
}
