/* transport_mpi_shm.h - sums of processes on one host, through memory that they share.
 *
 *     struct mpp_mpi_shm *s = mpp_mpi_shm_new(comm);             // collective; NULL: use MPI's own
 *     if (s != NULL && count >= MPP_MPI_SHM_LEAST)
 *         mpp_mpi_shm_all_reduce(s, MPP_TYPE_F32, x, count, false);
 *     mpp_mpi_shm_free(s);                                        // collective, before MPI_Finalize
 *
 * MPI's own all-reduce of a large array moves it through memory several times (figures: docs/performance.md). Here chunks
 * go through buffers that stay in the caches. Sums are taken in rank order, so they have the bits that threads get. */
#ifndef MPP_TRANSPORT_MPI_SHM_H
#define MPP_TRANSPORT_MPI_SHM_H

#ifdef MPP_WITH_MPI

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

#include "mpp_rt.h"

#define MPP_MPI_SHM_LEAST 1024 /* elements; MPI sends less in a microsecond or two */

struct mpp_mpi_shm;

/* NULL where members are on several hosts, COMM has one, or the system has no memory to share. Borrows COMM. */
struct mpp_mpi_shm *mpp_mpi_shm_new(MPI_Comm comm);
void mpp_mpi_shm_free(struct mpp_mpi_shm *s);

/* In place, COUNT elements of TYPE; sums of 16-bit floats are formed in f32 and rounded once. */
void mpp_mpi_shm_all_reduce(struct mpp_mpi_shm *s, enum mpp_type type, void *x, int64_t count, bool maximum);

/* The sum over members of block SELF of SRC into DST; block m is COUNTS[m] elements at PLACES[m]. */
void mpp_mpi_shm_reduce_scatter(struct mpp_mpi_shm *s, enum mpp_type type, const void *src, const int *counts, const int *places, void *dst);

#endif
#endif
