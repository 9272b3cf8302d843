/* transport_tcp_streams.h - messages between two processes, one after the other, on a connection.
 *
 *     mpp_tcp_post(&line->out, data, bytes, tag);                  // the other side posts as many bytes with the tag
 *     while ((state = mpp_tcp_push(line)) == MPP_TCP_MOVED) ...    // and the same with `in` and pull
 *
 * and of the parts of a transfer, which lie in rows: those of a sender leave its ring in order.
 * Nothing here waits or allocates inside a step. */
#ifndef MPP_TRANSPORT_TCP_STREAMS_H
#define MPP_TRANSPORT_TCP_STREAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "mpp_rt.h"
#include "transfers.h"

enum mpp_tcp_state { MPP_TCP_IDLE, MPP_TCP_STUCK, MPP_TCP_MOVED, MPP_TCP_LOST, MPP_TCP_ODD };

/* Before each message. */
struct mpp_tcp_head {
    int64_t tag, bytes;
};

/* One direction of a line. */
struct mpp_tcp_message {
    char *data;
    struct mpp_tcp_head head; /* to be sent; what came */
    struct mpp_tcp_head due;  /* of a message to come */
    int64_t left;             /* bytes of the head and the data to go */
};

struct mpp_tcp_line {
    int fd; /* -1: none */
    struct mpp_tcp_message out, in;
};

/* A part of a transfer, on a connection of its own. */
struct mpp_tcp_flow {
    int fd, peer, transfer;
    bool sends;
    struct mpp_part part;
    int64_t bytes;        /* of an element */
    int64_t rows, run;    /* rows of run bytes */
    const char *ring;     /* a sender's; a place every STRIDE bytes */
    int64_t stride, depth;
    int64_t posted, done; /* messages */
    int64_t at;           /* bytes of the message under way: head, then rows */
    struct mpp_tcp_head head;
    char *to;             /* a receiver's array */
};

void mpp_tcp_post(struct mpp_tcp_message *m, const void *data, int64_t bytes, int64_t tag);

/* As much as goes without waiting. STUCK: nothing did; LOST: the connection has ended, errno says why (0: it was closed);
 * ODD: another message came than was expected (in.head, in.due). */
enum mpp_tcp_state mpp_tcp_push(struct mpp_tcp_line *line);
enum mpp_tcp_state mpp_tcp_pull(struct mpp_tcp_line *line);

struct mpp_tcp_flow mpp_tcp_flow_of(const struct mpp_program *program, int transfer, const struct mpp_part *part, bool sends);
enum mpp_tcp_state mpp_tcp_flow_push(struct mpp_tcp_flow *f);
enum mpp_tcp_state mpp_tcp_flow_pull(struct mpp_tcp_flow *f);

#endif
