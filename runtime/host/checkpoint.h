/* checkpoint.h - global tensors on disk, and coming back to exactly where training was.
 *
 *     code = mpp_checkpoint_find("ckpt", &found, &error);          // DIR/step-N of the highest N
 *     mpp_checkpoint_load(r, &found);                              // collective
 *     mpp_checkpoint_save(r, "ckpt", data);                        // collective: ckpt/step-<r->step>/
 *
 * A step's folder holds model.safetensors (parameters), optimizer.safetensors and state.json. It is written
 * under another name, flushed, and renamed: what is called step-N is complete. Every global tensor is
 * written by the ranks that hold its blocks, so that any plan can read it. */
#ifndef MPP_CHECKPOINT_H
#define MPP_CHECKPOINT_H

#include <stdint.h>

#include "fail.h"
#include "mpp_rt.h"

struct mpp_checkpoint {
    char path[4096]; /* of the step's folder */
    int64_t step;    /* steps done */
    uint64_t seed;
    int64_t batch;   /* samples per step; 0: not recorded */
};

/* The newest complete step of DIR, or DIR itself where it is one. */
int mpp_checkpoint_find(const char *dir, struct mpp_checkpoint *found_out, struct mpp_error *error) MPP_RT_CHECKED;

/* One rank, before training: make DIR, keep other trainers out of it until the descriptor is closed, and remove
 * what a killed trainer left unfinished there. */
int mpp_checkpoint_claim(const char *dir, int *lock_out, struct mpp_error *error) MPP_RT_CHECKED;
/* The highest step of DIR, -1 where there is none. */
int64_t mpp_checkpoint_newest(const char *dir);
/* One rank, before training: can a file be written at PATH? */
int mpp_checkpoint_check_file(const char *path, struct mpp_error *error) MPP_RT_CHECKED;
/* After a failure: remove what this rank left unfinished (struct mpp_local). */
void mpp_checkpoint_discard(struct mpp_rank *r);

/* Collective over all ranks; on failure all ranks leave (fail.h). */
void mpp_checkpoint_load(struct mpp_rank *r, const char *step_dir);
/* DATA is recorded; of the steps up to this one the newest program->save_keep (0: all) stay. */
void mpp_checkpoint_save(struct mpp_rank *r, const char *dir, const char *data);
/* All tensors of KIND as one file, which appears complete or not at all. Collective. */
void mpp_checkpoint_write(struct mpp_rank *r, enum mpp_tensor_kind kind, const char *path);

#endif
