/* outdir.h - a plan directory that appears whole or not at all.
 *
 *     MPP_TRY(mpp_outdir_check(arena, diag, "plan/"));            // before hours of planning
 *     const char *tmp;
 *     MPP_TRY(mpp_outdir_begin(arena, diag, "plan/", &tmp));      // a fresh directory on the same file system
 *     ... write files into tmp ...
 *     MPP_TRY(mpp_outdir_commit(arena, diag, tmp, "plan/"));      // or mpp_outdir_abandon(tmp)
 *
 * Commit moves every file and folder into place. What a user keeps in the directory besides (checkpoints, a built
 * trainer) stays. A directory that exists, is not empty and holds no plan.json is refused. */
#ifndef MPP_OUTDIR_H
#define MPP_OUTDIR_H

#include "ir/arena.h"
#include "ir/diag.h"
#include "ir/status.h"

/* Can DIR be written? Leaves nothing behind. */
enum mpp_status mpp_outdir_check(struct mpp_arena *arena, struct mpp_diag *diag, const char *dir) MPP_CHECKED;

/* Check DIR and make a temporary directory, inside it where it exists, else beside it; *OUT_TMP is its path, in ARENA. */
enum mpp_status mpp_outdir_begin(struct mpp_arena *arena, struct mpp_diag *diag, const char *dir,
                                 const char **out_tmp) MPP_CHECKED;

/* Move TMP's entries into DIR (made if missing) and remove TMP. On failure TMP is removed. */
enum mpp_status mpp_outdir_commit(struct mpp_arena *arena, struct mpp_diag *diag, const char *tmp,
                                  const char *dir) MPP_CHECKED;

/* Remove TMP and all in it. */
void mpp_outdir_abandon(const char *tmp);

#endif
