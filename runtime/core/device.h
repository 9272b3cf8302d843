/* device.h - where a rank's tensors lie and its kernels run: what runtime/core asks of runtime/host or runtime/cuda.
 *
 *     mpp_device_prepare();                                        // the process, before its ranks start
 *     code = mpp_device_open(r, &error);                           // on the rank's thread
 *     mpp_device_put(r, r->arena + offset, from, bytes);
 *     mpp_device_get(r, to, r->arena + offset, bytes);
 *     mpp_device_close(r);                                         // on any thread, once the rank's has ended
 *
 * r->arena is an address on the device: nothing in core reads or writes through it. Ranks of one process call at the same time. */
#ifndef MPP_DEVICE_H
#define MPP_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "fail.h"
#include "mpp_rt.h"

enum { MPP_MAX_THREADS = 1024, MPP_DEVICE_PART = 1 << 14 /* elements that code here puts or gets at a time */ };

/* What `--threads N` is checked against and defaults to: can a device have several threads? how many does each of RANKS_HERE
 * ranks of this machine get (1 .. MPP_MAX_THREADS)? UNDER_MPI: they are processes, which the launcher may have bound. */
bool mpp_device_has_threads(void);
int mpp_device_threads(int ranks_here, bool under_mpi);

/* Once per process. */
void mpp_device_prepare(void);

/* Sets r->device, r->arena (stage->arena_bytes, zeroed), r->workspace, and r->n_threads to what job->options->threads says.
 * MPP_EXIT_SYSTEM and one message where the device or its memory is not there. What was made is mpp_device_close's, even then. */
int mpp_device_open(struct mpp_rank *r, struct mpp_error *error) MPP_RT_CHECKED;
/* Nothing happens where R was never opened. */
void mpp_device_close(struct mpp_rank *r);

/* R leaves a job that failed: what others wait for on R's device ends. Nothing happens where R was never opened. */
void mpp_device_abandon(struct mpp_rank *r);

/* Copies BYTES between the host and the arena, in order with the rank's work so far; on return FROM may be reused, TO read. */
void mpp_device_put(struct mpp_rank *r, void *to_device, const void *from, size_t bytes);
void mpp_device_get(struct mpp_rank *r, void *to, const void *from_device, size_t bytes);

/* A step begins: r->step and r->hyper are set. */
void mpp_device_step(struct mpp_rank *r);

/* Runs WORK, a pass of R's step (forward, backward and prologue: of r->chunk and r->micro_batch), on the rank's thread. From its
 * second time on a device may launch again what it launched then, without a call of WORK. */
enum mpp_pass { MPP_PASS_FORWARD, MPP_PASS_BACKWARD, MPP_PASS_PROLOGUE, MPP_PASS_UPDATE };
void mpp_device_pass(struct mpp_rank *r, enum mpp_pass pass, void (*work)(struct mpp_rank *r));

/* Waits until all that R has begun is done: before clocks are read and ranks told of it. */
void mpp_device_synchronize(struct mpp_rank *r);

/* All ranks call after the last step: what their devices took, for the trainer's last lines. False: there is nothing to tell. */
bool mpp_device_conclude(struct mpp_rank *r, char *text, size_t n);

/* For the trainer's first lines, of every rank alike: "2 threads each". Returns TEXT. */
const char *mpp_device_describe(const struct mpp_rank *r, char *text, size_t n);

#endif
