/* transport_tcp_place.h - where a process stands among those of its job, as its environment tells.
 *
 *     if (mpp_tcp_started()) {
 *         struct mpp_tcp_place place;
 *         code = mpp_tcp_place_read(&place, &error);
 *     }
 *
 * RANK and WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE where machines have several, and how to find rank 0: MASTER_ADDR and
 * MASTER_PORT, as torchrun sets them, or MPP_RENDEZVOUS=file:///PATH, a file that all machines see. */
#ifndef MPP_TRANSPORT_TCP_PLACE_H
#define MPP_TRANSPORT_TCP_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "fail.h"

enum { MPP_TCP_AGENT_PORTS = 8 };

struct mpp_tcp_place {
    int rank, size;
    int local_rank, local_size; /* -1 and 0: not told */
    const char *address;        /* of rank 0; NULL: it writes FILE */
    int port, n_ports;          /* rank 0 listens on the first of n_ports that it gets */
    const char *file;
    uint64_t job;               /* of processes that belong together; 0: not known */
    bool one_machine;           /* all ranks are on this one */
};

/* Was this process started as one of several that meet over TCP? Whoever was started by MPI too is MPI's, but for torchrun. */
bool mpp_tcp_started(bool by_mpi);

/* MPP_EXIT_INPUT and what is wrong with which variable. Strings are the environment's. */
int mpp_tcp_place_read(struct mpp_tcp_place *place_out, struct mpp_error *error) MPP_RT_CHECKED;

#endif
