/* link.h - small packets between processes over TCP, beside their work: what a watch speaks through.
 *
 *     struct mpp_link_offer offer;
 *     int listener = mpp_link_listen(&offer);           // one process; the others get the offer by other means
 *     mpp_link_connect(&offer, i, 15, &line);           // address I of the offer; completes later
 *     mpp_link_send(&line, &packet);
 *     while ((got = mpp_link_receive(&line, &packet)) > 0)
 *         use(&packet);
 *
 * Nothing here blocks. Sends beyond what the system buffers are dropped: heartbeats may be. A line to a host that
 * acknowledges nothing for as long as asked ends with ETIMEDOUT, whatever its process does. */
#ifndef MPP_LINK_H
#define MPP_LINK_H

#include <stdbool.h>
#include <stdint.h>

enum { MPP_LINK_ADDRESSES = 12 };

enum mpp_packet_kind { MPP_PACKET_HELLO = 1, MPP_PACKET_BEAT, MPP_PACKET_BYE, MPP_PACKET_END, MPP_PACKET_END_LOST_HOST,
                       MPP_PACKET_STOPPED };

struct mpp_packet {
    uint32_t kind;
    int32_t rank;      /* of the sender */
    uint64_t nonce;    /* of the job: the offer's */
    uint64_t ticks;    /* BEAT: work begun so far; END: the exit status of the job */
    uint64_t waits;    /* BEAT: what it waits in (waits.h); STOPPED: the signal that ends it */
};

struct mpp_link_address {
    int32_t family; /* AF_INET or AF_INET6 */
    unsigned char bytes[16];
};

/* Plain bytes, to be sent as they are. */
struct mpp_link_offer {
    uint64_t nonce;
    int32_t port, n;
    struct mpp_link_address address[MPP_LINK_ADDRESSES]; /* the first is the loopback, for processes of the same host */
};

struct mpp_line {
    int fd; /* -1: none */
    int have;
    struct mpp_packet in;
};

/* A listening socket, -1 (errno) where there can be none. The caller closes it. */
int mpp_link_listen(struct mpp_link_offer *offer_out);

/* Begin to connect; false (errno) where it cannot. Writable means done: mpp_link_connected. */
bool mpp_link_connect(const struct mpp_link_offer *offer, int address, double silence_s, struct mpp_line *line_out);
bool mpp_link_connected(const struct mpp_line *line);
/* A line of FD, a connection that exists and is the line's from here on. */
struct mpp_line mpp_link_of(int fd, double silence_s);

/* The next process that came to LISTENER; false: none. */
bool mpp_link_accept(int listener, double silence_s, struct mpp_line *line_out);

/* False (errno) when the line is broken. */
bool mpp_link_send(struct mpp_line *line, const struct mpp_packet *packet);

/* 1: a packet; 0: none yet; -1: the line has ended, errno says why (0: closed by the other side). */
int mpp_link_receive(struct mpp_line *line, struct mpp_packet *packet_out);

void mpp_link_close(struct mpp_line *line);

#endif
