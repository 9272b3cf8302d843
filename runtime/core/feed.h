/* feed.h - one rank's inputs, read ahead: while a step runs, a thread prepares the next.
 *
 *     struct mpp_feed *f;
 *     int code = mpp_feed_start(r, data, first_step, last_step, &f, &error);
 *     for each step:
 *         code = mpp_feed_wait(f, step, &error);        // the step's inputs are there, or why not
 *         mpp_feed_place(f, r, micro_batch, false);     // into the arena, any number of times
 *         mpp_feed_release(f);
 *     mpp_feed_stop(f); */
#ifndef MPP_FEED_H
#define MPP_FEED_H

#include <stdbool.h>
#include <stdint.h>

#include "data.h"

struct mpp_feed;

/* Prepare steps FIRST .. LAST - 1 (indices from 0). R and DATA outlive the feed. */
int mpp_feed_start(const struct mpp_rank *r, const struct mpp_data *data, int64_t first, int64_t last,
                   struct mpp_feed **feed_out, struct mpp_error *error) MPP_RT_CHECKED;
void mpp_feed_stop(struct mpp_feed *feed);

int mpp_feed_wait(struct mpp_feed *feed, int64_t step, struct mpp_error *error) MPP_RT_CHECKED;
/* SLOTTED: the inputs of r->chunk that have a place for each slot, to that of r->slot; else those that have one place. */
void mpp_feed_place(const struct mpp_feed *feed, struct mpp_rank *r, int micro_batch, bool slotted);
void mpp_feed_release(struct mpp_feed *feed);

#endif
