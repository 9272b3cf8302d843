/* watch.h - notices that a rank is lost or hung, and ends the job with one message.
 *
 *     struct mpp_watch *w = mpp_watch_new(&settings, &error);   // before MPI_Init: a thread begins to look
 *     mpp_watch_place(w, rank, n, hosts);                       // afterwards; HOSTS outlives the watch
 *     for (int c = 0; c < 2; c++) {                             // two processes are its centres
 *         if (rank == mpp_watch_centre(w, c))
 *             mpp_watch_offer(w, &offer[c]);
 *         broadcast(&offer[c], mpp_watch_centre(w, c));
 *     }
 *     mpp_watch_join(w, offer);
 *     mpp_watch_follow(w, &r);                                  // R's ticks tell that it works
 *     ...
 *     mpp_watch_free(w);                                        // after MPI_Finalize
 *
 * Every process holds a TCP line to rank 0 and to a deputy (the first rank of another host, else rank 1) and sends a
 * heartbeat each second, from a thread of its own. What is noticed:
 *   - a process that ended without saying so: at once;
 *   - a host that acknowledges nothing: after silence_s (a stopped or starved process is no such host: its kernel
 *     answers);
 *   - a rank that neither works nor waits, or whose heartbeats stay out, while others wait for it, or ranks that all wait: after
 *     timeout_s, with what they wait in (waits.h);
 *   - a rank that a signal ends: after half a second, in which the others may have got one, too;
 *   - mpirun's end: within a second.
 * Rank 0 speaks; where it is the lost one the deputy does, and on a host that reaches neither its lowest rank. All
 * processes then end. Where the network does not let processes reach each other beside MPI the watch says so once and
 * leaves those ranks to MPI. */
#ifndef MPP_WATCH_H
#define MPP_WATCH_H

#include <stdbool.h>

#include "fail.h"
#include "link.h"

enum { MPP_WATCH_CENTRES = 2, MPP_HOST_NAME = 64 };

struct mpp_watch;

struct mpp_watch_settings {
    double timeout_s;                    /* 0: a hung rank is none of our business */
    double silence_s;
    bool first;                          /* speaks where MPI itself does not start */
    bool unwatched;                      /* who started the processes may go, and need not end those that are left */
    void (*leave)(void *user, int code); /* ends the process; called from the watch's thread */
    void *user;
};

/* NULL and ERROR where there is no thread or memory. */
struct mpp_watch *mpp_watch_new(const struct mpp_watch_settings *settings, struct mpp_error *error);

void mpp_watch_place(struct mpp_watch *w, int rank, int n_ranks, const char (*hosts)[MPP_HOST_NAME]);
/* Rank of centre 0 (rank 0) or 1 (the deputy; -1: there is none). */
int mpp_watch_centre(const struct mpp_watch *w, int centre);
/* Called by that centre: listen. An offer without addresses where the system does not let it. */
void mpp_watch_offer(struct mpp_watch *w, struct mpp_link_offer *offer_out);
/* Connect with the centres, and wait until that is done or has taken too long. */
void mpp_watch_join(struct mpp_watch *w, const struct mpp_link_offer offer[MPP_WATCH_CENTRES]);

/* Instead of offers and joining: there are connections already. FDS [n_ranks], -1: none, are the watch's from here on; those
 * with the centres are needed. False: out of memory. */
bool mpp_watch_begin(struct mpp_watch *w, const int *fds);

void mpp_watch_follow(struct mpp_watch *w, const struct mpp_rank *r);
/* This rank has said what is wrong: all others are to end with CODE, without another message. */
void mpp_watch_failing(struct mpp_watch *w, int code);
/* A signal is about to end this process: rank 0 says so, and ends the others; where this is rank 0 it has said so. From any thread. */
void mpp_watch_stopped(struct mpp_watch *w, int number);
/* NULL is fine. */
void mpp_watch_free(struct mpp_watch *w);

#endif
