/* checkpoint.h - global tensors on disk, and coming back to exactly where training was.
 *
 *     code = mpp_checkpoint_claim("ckpt", &lock, &error);          // rank 0, before training
 *     mpp_checkpoint_load(r, &found);                              // collective; found as in state.h
 *     mpp_checkpoint_save(r, "ckpt");                              // collective: ckpt/step-<r->step>/
 *
 * A step's folder holds model.safetensors (parameters), optimizer.safetensors and state.json. It is written as
 * .part-step-N: every rank writes and flushes the blocks that it owns, so that any plan can read the tensors; rank 0
 * writes and flushes state.json and the folder, renames it and flushes DIR. What is called step-N is complete, after
 * a power cut too. */
#ifndef MPP_CHECKPOINT_H
#define MPP_CHECKPOINT_H

#include "fail.h"
#include "mpp_rt.h"

struct mpp_checkpoint;

/* One rank, before training: make DIR, keep other trainers out of it until the descriptor is closed, and remove
 * what a killed trainer left unfinished there. */
int mpp_checkpoint_claim(const char *dir, int *lock_out, struct mpp_error *error) MPP_RT_CHECKED;
/* One rank, before training: can a file be written at PATH? */
int mpp_checkpoint_check_file(const char *path, struct mpp_error *error) MPP_RT_CHECKED;
/* After a failure: remove what this rank left unfinished (struct mpp_local). */
void mpp_checkpoint_discard(struct mpp_rank *r);

/* Collective over all ranks; on failure all ranks leave (fail.h). What was loaded is what was saved: sums are compared. */
void mpp_checkpoint_load(struct mpp_rank *r, const struct mpp_checkpoint *from);
/* Of the steps up to this one the newest program->save_keep (0: all) stay. */
void mpp_checkpoint_save(struct mpp_rank *r, const char *dir);
/* All tensors of KIND as one file, which appears complete or not at all. Collective. */
void mpp_checkpoint_write(struct mpp_rank *r, enum mpp_tensor_kind kind, const char *path);

#endif
