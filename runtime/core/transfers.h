/* transfers.h - who sends what to whom when a tensor goes from one stage to another.
 *
 *     struct mpp_part *parts; int n;
 *     code = mpp_transfer_parts(program, transfer, rank, &parts, &n, &error);   // of a sender or a receiver
 *     for (int i = 0; i < n; i++)
 *         mpp_part_copy(&parts[i], bytes, ring_place_of_sender, x_of_receiver);
 *     free(parts);
 *
 * A part is a box that lies in one block of the sender's and one of the receiver's. */
#ifndef MPP_TRANSFERS_H
#define MPP_TRANSFERS_H

#include <stdbool.h>
#include <stdint.h>

#include "fail.h"
#include "mpp_rt.h"

struct mpp_part {
    int peer;                         /* the other rank */
    int n_dims;
    int64_t n[MPP_MAX_DIMS];          /* extents of the box, all above 0 */
    int64_t from_dims[MPP_MAX_DIMS], from_at[MPP_MAX_DIMS]; /* padded extents of the sender's local array; where the box begins */
    int64_t to_dims[MPP_MAX_DIMS], to_at[MPP_MAX_DIMS];     /* and of the receiver's */
};

/* The parts that RANK, of the transfer's `from` or `to` stage, sends or receives, by peer. *PARTS_OUT is the caller's. */
int mpp_transfer_parts(const struct mpp_program *program, const struct mpp_transfer *transfer, int rank,
                       struct mpp_part **parts_out, int *n_out, struct mpp_error *error) MPP_RT_CHECKED;

/* PART as rows of *RUN_BYTES_OUT bytes that lie side by side on both sides: how many, and where row ROW begins in the whole local
 * array of the sender or the receiver. Elements are of BYTES. */
int64_t mpp_part_rows(const struct mpp_part *part, int64_t bytes, int64_t *run_bytes_out);
int64_t mpp_part_row(const struct mpp_part *part, int64_t bytes, int64_t row, bool of_sender);

/* Of the box; and whether it lies in one run of the sender's or the receiver's local array. */
int64_t mpp_part_elements(const struct mpp_part *part);
bool mpp_part_is_run(const struct mpp_part *part, bool of_sender);

/* FROM and TO are whole local arrays of elements of BYTES. */
void mpp_part_copy(const struct mpp_part *part, int64_t bytes, const void *from, void *to);

int64_t mpp_type_bytes(enum mpp_type type);
/* Of a place of the ring: the padded local array of a sender. */
int64_t mpp_transfer_bytes(const struct mpp_program *program, const struct mpp_transfer *transfer);
/* Of what R has of it, without padding, where its dimensions are cut by SPLIT: from_split or to_split. */
int64_t mpp_transfer_local_bytes(const struct mpp_rank *r, const struct mpp_transfer *transfer, const unsigned *split);

#endif
