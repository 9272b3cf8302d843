/* team.h - the threads that share a rank's loops.
 *
 *     struct mpp_team *team = mpp_team_new(4, true);     // on the rank's thread, which is one of the four
 *     MPP_PARALLEL(r, n) for (...)                        // see mpp_rt.h
 *     mpp_team_free(team);                                // on the same thread
 *
 * gcc compiles `#pragma omp parallel for` into calls of GOMP_parallel and two more functions, an ABI that it
 * documents; here is what implements them, because libgomp's threads wait for each other by spinning for
 * milliseconds, which on cores that others use too costs more than all the work. Here a share of a loop is taken
 * by whichever thread comes first: a step never waits for one that the system does not run. Idle threads spin for
 * some microseconds, then sleep. Built by clang, libomp's functions are used. */
#ifndef MPP_TEAM_H
#define MPP_TEAM_H

#include <stdbool.h>

struct mpp_team;

/* Starts n - 1 threads, n >= 2, and makes them the calling thread's team. SPINS: cores enough for all of them.
 * NULL: no memory, or the system gives no more threads. */
struct mpp_team *mpp_team_new(int n, bool spins);
void mpp_team_free(struct mpp_team *team); /* NULL: nothing happens */

/* Which share of a loop this is, inside it, from 0 on; no two at once have the same. */
int mpp_team_share(void);

#endif
