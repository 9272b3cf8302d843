/* flows.h - transfers between threads of one process: each receiver copies its parts out of the senders' rings.
 *
 *     struct mpp_flows *f = mpp_flows_new(program, &failed, &error);   // one for all ranks; FAILED: not 0 once the job has failed
 *     if (!mpp_flows_send(f, r, transfer, x)) leave                    // false: the job has failed
 *     if (!mpp_flows_receive(f, r, transfer, x)) leave
 *     mpp_flows_wake(f);                                               // after FAILED is set
 *     mpp_flows_free(f); */
#ifndef MPP_FLOWS_H
#define MPP_FLOWS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "fail.h"
#include "mpp_rt.h"

struct mpp_flows;

/* SPINS: waiting ranks keep their cores for a moment. NULL and ERROR: out of memory. */
struct mpp_flows *mpp_flows_new(const struct mpp_program *program, const atomic_int *failed, bool spins,
                                struct mpp_error *error);
void mpp_flows_free(struct mpp_flows *flows);
void mpp_flows_wake(struct mpp_flows *flows);

bool mpp_flows_send(struct mpp_flows *flows, struct mpp_rank *r, int transfer, const void *x);
bool mpp_flows_receive(struct mpp_flows *flows, struct mpp_rank *r, int transfer, void *x);

#endif
