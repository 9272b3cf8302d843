/* shim_queues.h - streams whose work is done late, in the worst order that CUDA allows (queues.cpp): MPP_SHIM_STREAMS.
 *
 *     std::shared_ptr<mpp_shim_queue> q = mpp_shim_queue_new(device);  // NULL: streams work in the call
 *     mpp_shim_queue_give(q, work);
 *     mpp_shim_point here = mpp_shim_queue_here(q);                    // an event: all that was given so far
 *     mpp_shim_queue_wait(other, here);                                // what OTHER is given next comes after it
 *     while (!mpp_shim_point_done(here, true))
 *         ;
 *     mpp_shim_queue_end(q);                                           // what it was given is still done
 */
#ifndef MPP_SHIM_QUEUES_H
#define MPP_SHIM_QUEUES_H

#include <memory>
#include <shim_capture.h>
#include <stdint.h>

struct mpp_shim_queue;

/* In the call; the stream that a device's others work beside (its first one) as early as it may and the others when something
 * that waits needs them; the other way round. */
enum mpp_shim_streams { MPP_SHIM_AT_ONCE, MPP_SHIM_LATE, MPP_SHIM_EARLY };
enum mpp_shim_streams mpp_shim_streams(void);

/* The first NUMBER works of QUEUE; QUEUE NULL: none. */
struct mpp_shim_point {
    std::shared_ptr<mpp_shim_queue> queue;
    uint64_t number;
};

std::shared_ptr<mpp_shim_queue> mpp_shim_queue_new(int device);
void mpp_shim_queue_end(const std::shared_ptr<mpp_shim_queue> &q);
void mpp_shim_queue_give(const std::shared_ptr<mpp_shim_queue> &q, const mpp_shim_work &w);
mpp_shim_point mpp_shim_queue_here(const std::shared_ptr<mpp_shim_queue> &q);
void mpp_shim_queue_wait(const std::shared_ptr<mpp_shim_queue> &q, const mpp_shim_point &point);
/* Is it done? Where it is WANTED it will be. */
bool mpp_shim_point_done(const mpp_shim_point &point, bool wanted);
/* Returns when it is. */
void mpp_shim_point_await(const mpp_shim_point &point);
/* Returns when all that the streams of DEVICE were given so far is done. */
void mpp_shim_device_await(int device);
/* The calling thread's device (runtime.cpp). */
int mpp_shim_device(void);

/* ---- operations that are done in the order in which they were given, on whatever streams: those of a communicator ---- */

/* URGENT: they are done as soon as they may be, since who waits for them cannot tell. */
std::shared_ptr<mpp_shim_turns> mpp_shim_turns_new(void);
void mpp_shim_turns_hurry(const std::shared_ptr<mpp_shim_turns> &t);
/* Returns when all of them are done. */
void mpp_shim_turns_await(const std::shared_ptr<mpp_shim_turns> &t);

/* Around a wait inside of a work, for what others do: other streams go on meanwhile. FOR: whose next operation ends it, NULL: nobody
 * knows. Nothing happens on threads that are no queue's. */
void mpp_shim_blocks_begin(const std::shared_ptr<mpp_shim_turns> &others);
void mpp_shim_blocks_end(const std::shared_ptr<mpp_shim_turns> &others);

#endif
