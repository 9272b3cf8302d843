/* init.h - where a rank's parameters and optimiser state come from.
 *
 * Random: element i of tensor NAME is a function of (seed, FNV-1a hash of NAME, i), so that ranks draw their
 * own blocks and a plan changes nothing.
 * From files: by published names; shapes must be the published ones. */
#ifndef MPP_INIT_H
#define MPP_INIT_H

#include "fail.h"
#include "mpp_rt.h"

/* All tensors of KIND, this rank's blocks. */
int mpp_init_random(struct mpp_rank *r, enum mpp_tensor_kind kind, struct mpp_error *error) MPP_RT_CHECKED;
/* NOTE (one line, may be NULL): tensors of the file that the model lacks. */
int mpp_init_load(struct mpp_rank *r, enum mpp_tensor_kind kind, const char *path, const char *const *strip,
                  char *note, int note_bytes, struct mpp_error *error) MPP_RT_CHECKED;

#endif
