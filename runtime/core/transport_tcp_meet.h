/* transport_tcp_meet.h - how the processes of a job find each other over TCP.
 *
 *     struct mpp_tcp_meeting *m;
 *     code = mpp_tcp_meet(&place, mark, timeout_s, &m, &error);          // all are there, and alike
 *     ... mpp_tcp_meeting_hosts(m)[rank] ...
 *     code = mpp_tcp_meeting_connect(m, code, links, n_links, &error);   // a connection for each link
 *     mpp_tcp_meeting_free(m);
 *
 * All three are collective. Rank 0 listens on one port; the others come to it, each with the port on which it listens itself,
 * and get the list of all and a number that only this job knows. Whoever connects and does not say what ranks say is sent away.
 * The way of failures is the same: every rank tells rank 0 how it went, and rank 0 tells all. */
#ifndef MPP_TRANSPORT_TCP_MEET_H
#define MPP_TRANSPORT_TCP_MEET_H

#include <stdint.h>

#include "fail.h"
#include "transport_tcp_place.h"
#include "watch.h"

enum { MPP_TCP_MAIN = -1, MPP_TCP_WATCH = -2 };

/* A connection with PEER. Both sides ask for it. */
struct mpp_tcp_link {
    int peer;
    int use; /* MPP_TCP_MAIN, MPP_TCP_WATCH, or the number of a transfer */
    int fd;  /* set by connect: the caller's; -1 before */
};

struct mpp_tcp_meeting;

/* MARK: what must be alike (alike.h), or NULL. TIMEOUT_S: for all to come; 0: for ever. Every process gets the same code; the
 * message is rank 0's to print, but for those that rank 0 does not know of: they print it, and ERROR's text is empty. */
int mpp_tcp_meet(const struct mpp_tcp_place *place, const uint64_t *mark, double timeout_s, struct mpp_tcp_meeting **out,
                 struct mpp_error *error) MPP_RT_CHECKED;

/* [size] names of machines; they live as long as the meeting. */
const char (*mpp_tcp_meeting_hosts(const struct mpp_tcp_meeting *m))[MPP_HOST_NAME];

/* CODE, ERROR: how this rank's preparations for it went. Every pair of ranks has one link of use MAIN. */
int mpp_tcp_meeting_connect(struct mpp_tcp_meeting *m, int code, struct mpp_tcp_link *links, int n_links, struct mpp_error *error)
    MPP_RT_CHECKED;

/* NULL is fine. */
void mpp_tcp_meeting_free(struct mpp_tcp_meeting *m);

#endif
