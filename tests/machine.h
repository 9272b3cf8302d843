/* machine.h - all stages of a plan, run side by side on one thread.
 *
 *     struct machine *m = machine_new(arena, plan, transfers, NULL, progs);    // or flat programs
 *     machine_fill(m);
 *     machine_step(m, seed);                                                  // as the schedule orders it
 *     const struct value *v = machine_rest(m, stage, tensor);
 *     machine_free(m);
 *
 * Every stage stands for all its ranks: a value is a whole tensor, however it is split, so that a collective changes no number.
 * It is a hash of how it was computed and, where NUMBERS are wanted, its elements by the reference kernels. Flat programs give
 * each buffer memory of its own and run micro-batch after micro-batch. Rolled programs run their loops on real arena addresses,
 * in the schedule's order, where a write destroys whatever it overlaps and a read must find exactly what was written there;
 * what is on its way lies in the sender's ring until the receiver takes it. */
#ifndef MPP_MACHINE_H
#define MPP_MACHINE_H

#include "codegen/lower_internal.h"

struct value {
    uint64_t hash;
    int64_t n;
    double *x;                    /* [n]; NULL: only the hash is known */
};

struct machine;

/* Of PLAN (derived), with one of FLATS [n_stages] and PROGS [n_stages]. They must outlive it. */
struct machine *machine_new(struct mpp_arena *arena, const struct mpp_plan *plan, const struct mpp_transfers *transfers,
                            const struct mpp_flat_program *flats, struct mpp_lprog *const *progs, bool numbers);
void machine_free(struct machine *m);

/* Random parameters and zeroed state, the same for tensors of one name whichever stage has them. */
void machine_fill(struct machine *m);

/* The elements that machine_fill and machine_step give to tensor T, of which N are there; inputs: of the whole step's batch. */
void machine_elements(const struct mpp_gtensor *t, int64_t n, double *out);

/* A whole step. Whose turn it is, of those that need not wait, is random; false: nobody can go on. */
bool machine_step(struct machine *m, uint64_t *state);

/* What lies in the resting buffer of a PARAM or STATE of STAGE, as the loss, as the gradient norm; NULL: nothing whole, or no
 * such buffer. */
const struct value *machine_rest(struct machine *m, int stage, mpp_id t);
const struct value *machine_loss(struct machine *m, int stage);
const struct value *machine_norm(struct machine *m, int stage);

/* Something was read that was not written as one value. */
bool machine_stale(const struct machine *m);
/* Micro-batches of STAGE that were in flight at once, at most. */
int64_t machine_in_flight(const struct machine *m, int stage);

#endif
