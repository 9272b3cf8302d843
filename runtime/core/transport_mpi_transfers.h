/* transport_mpi_transfers.h - transfers between stages under MPI.
 *
 *     code = mpp_mpi_transfers_new(program, rank, call_elements, &t, &error);   // collective
 *     rc = mpp_mpi_transfers_send(t, r, transfer, x);                           // MPI's codes
 *     rc = mpp_mpi_transfers_receive(t, r, transfer, x);
 *     rc = mpp_mpi_transfers_look(t, &pending);                                 // lets MPI move what is under way
 *     mpp_mpi_transfers_drain(t);                                               // before the arena goes
 *     mpp_mpi_transfers_free(t);                                                // before MPI_Finalize
 *
 * Each part is a message, or several where it has more than CALL_ELEMENTS elements, of a type of MPI that says where in the
 * local array it lies: the sender's ring and the receiver's array are all the memory that is used here. */
#ifndef MPP_TRANSPORT_MPI_TRANSFERS_H
#define MPP_TRANSPORT_MPI_TRANSFERS_H

#ifdef MPP_WITH_MPI

#include <stdbool.h>
#include <stdint.h>

#include "fail.h"
#include "mpp_rt.h"

struct mpp_mpi_transfers;

/* On failure the job is to be aborted: other processes may wait for this one. */
int mpp_mpi_transfers_new(const struct mpp_program *program, int rank, int64_t call_elements,
                          struct mpp_mpi_transfers **out, struct mpp_error *error) MPP_RT_CHECKED;
void mpp_mpi_transfers_free(struct mpp_mpi_transfers *t);

/* May SEND have to wait for a place of the ring? */
bool mpp_mpi_transfers_busy(struct mpp_mpi_transfers *t, int transfer);
int mpp_mpi_transfers_send(struct mpp_mpi_transfers *t, struct mpp_rank *r, int transfer, const void *x);
int mpp_mpi_transfers_receive(struct mpp_mpi_transfers *t, int transfer, void *x);
/* *PENDING_OUT: transfers of which something has not left. */
int mpp_mpi_transfers_look(struct mpp_mpi_transfers *t, int *pending_out);
void mpp_mpi_transfers_drain(struct mpp_mpi_transfers *t);

#endif
#endif
