/* threads.h - how many threads a rank gets, and what they need.
 *
 *     mpp_blas_alone();                                         // before the ranks start
 *     int n = mpp_threads_share(ranks_here, under_mpi);         // cores that no other rank has
 *     if (!mpp_threads_begin(r, n, ranks_in_process)) ...       // no memory, or no threads
 *     mpp_threads_end(r); */
#ifndef MPP_THREADS_H
#define MPP_THREADS_H

#include <stdbool.h>

#include "core/device.h"
#include "mpp_rt.h"

/* Was this built with OpenMP? Else every rank has one thread. */
bool mpp_threads_built(void);

/* The first number of OMP_NUM_THREADS where that is set, else the cores this process may use (its affinity and the
 * CPU quota of its control groups) over RANKS_HERE, the ranks that share them; 1 .. MPP_MAX_THREADS. UNDER_MPI: the ranks
 * are processes; the launcher may have bound each to cores of its own. */
int mpp_threads_share(int ranks_here, bool under_mpi);

/* Every call of the BLAS on the thread that makes it: OpenBLAS, MKL and BLIS. */
void mpp_blas_alone(void);

/* Gives R, on its thread, N threads and their scratch memory, which R owns until mpp_threads_end; BESIDE: ranks of this
 * process. False: no memory, or the system gives no more threads. */
bool mpp_threads_begin(struct mpp_rank *r, int n, int beside);
void mpp_threads_end(struct mpp_rank *r);

#endif
