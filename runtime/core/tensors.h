/* tensors.h - the program's tensors as the world sees them, and this rank's part of one.
 *
 *     struct mpp_named *named; int n;
 *     mpp_named_list(r->stage, MPP_KIND_PARAMETER, &named, &n, &error);   // h.%d.w becomes h.0.w, h.1.w, ...
 *     struct mpp_block b = mpp_block_of(r, named[i].tensor);
 *     struct mpp_run run = {0};
 *     while (mpp_block_next(&b, &run))
 *         memcpy(local + run.local, global + run.global, run.count * 4); */
#ifndef MPP_TENSORS_H
#define MPP_TENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "fail.h"
#include "mpp_rt.h"

struct mpp_named {
    const struct mpp_tensor *tensor;
    char *name;
    int64_t offset; /* bytes in the arena */
    int64_t count;  /* global elements */
    int stage;      /* mpp_named_union: the first that has it, to which TENSOR and OFFSET belong */
};

/* All tensors of KIND of a stage with repeated layers written out; the caller frees with mpp_named_free. */
int mpp_named_list(const struct mpp_stage *stage, enum mpp_tensor_kind kind, struct mpp_named **named_out, int *n_out,
                   struct mpp_error *error) MPP_RT_CHECKED;
/* The same for all stages: what several have stands once. */
int mpp_named_union(const struct mpp_program *program, enum mpp_tensor_kind kind, struct mpp_named **named_out, int *n_out,
                    struct mpp_error *error) MPP_RT_CHECKED;
void mpp_named_free(struct mpp_named *named, int n);

/* This rank's block of a tensor. */
struct mpp_block {
    int n_dims;
    struct mpp_extent dim[MPP_MAX_DIMS];
    int64_t padded_count; /* elements of the local array */
    bool owner;           /* of all ranks that hold this block, the one that writes it */
};

/* TENSOR is of the rank's stage. */
struct mpp_block mpp_block_of(const struct mpp_rank *r, const struct mpp_tensor *tensor);

/* Elements that lie side by side in the local array and in the global tensor. */
struct mpp_run {
    int64_t local, global, count;
    int64_t at[MPP_MAX_DIMS]; /* private */
    bool started;
};

/* The next run of the block, in order. RUN starts zeroed; false at the end. */
bool mpp_block_next(const struct mpp_block *block, struct mpp_run *run);

#endif
