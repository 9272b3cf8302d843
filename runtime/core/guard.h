/* guard.h - watches over ranks that are threads of this process: a hang becomes a message.
 *
 *     struct mpp_guard *g;
 *     int code = mpp_guard_new(ranks, n, timeout_s, leave, user, &g, &error);   // before the threads begin
 *     ...                                                                       // all threads are joined, their devices closed
 *     mpp_guard_free(g);
 *
 * Once a rank has waited for timeout_s, during which it did not move, for one that neither waits nor moves, or all have
 * waited that long, the job fails with one message: who is missing, and who waits in what. Seconds in which the process itself
 * was stopped do not count. Whenever the job has failed ranks that wait are released, and LEAVE ends the process where one does not
 * end within moments: it may be in a long product, or its GPU's driver may wait for a peer that is gone. */
#ifndef MPP_GUARD_H
#define MPP_GUARD_H

#include "fail.h"

struct mpp_guard;
struct mpp_rank;

/* RANKS [n], which outlive the guard, are placed and have a transport. *GUARD_OUT is NULL where there is nothing to watch: one rank.
 * TIMEOUT_S 0: no wait is too long. LEAVE is called from the guard's thread and does not return. */
int mpp_guard_new(struct mpp_rank *ranks, int n, double timeout_s, void (*leave)(void *user, int code), void *user,
                  struct mpp_guard **guard_out, struct mpp_error *error) MPP_RT_CHECKED;
/* NULL is fine. */
void mpp_guard_free(struct mpp_guard *guard);

#endif
