/* outdir.h - a plan directory that appears whole or not at all.
 *
 *     MPP_TRY(mpp_outdir_check(arena, diag, "plan/"));            // before hours of planning
 *     struct mpp_outdir *o;
 *     MPP_TRY(mpp_outdir_begin(arena, diag, "plan/", &o));        // a temporary directory on the same file system
 *     ... write files into mpp_outdir_path(o) ...
 *     MPP_TRY(mpp_outdir_commit(o));                              // or mpp_outdir_abandon(o)
 *
 * The temporary directory is .mpplan-tmp-XXXXXX in a directory that exists, NAME.mpplan-tmp-XXXXXX beside one that does
 * not. Missing folders above are made. Whatever ends early (abandon, the arena freed, a failed commit) removes both; a
 * process that is killed leaves its temporary directory, which the next begin for the same place removes: a lock tells
 * those in use from those left behind. Killed between two moves of a commit over an older plan, it leaves files of both.
 *
 * Commit moves every file and folder into place; if one cannot be moved, those before it are moved back. What a user keeps
 * in the directory besides (checkpoints, a built trainer) stays. Of several processes that commit to one directory each
 * moves all its files before the next begins. A directory that exists, is not empty and holds no plan.json is refused. */
#ifndef MPP_OUTDIR_H
#define MPP_OUTDIR_H

#include "ir/arena.h"
#include "ir/diag.h"
#include "ir/status.h"

struct mpp_outdir;

/* Can DIR be written? Leaves nothing behind. MPP_INVALID where another DIR would help, MPP_IO where the system fails. */
enum mpp_status mpp_outdir_check(struct mpp_arena *arena, struct mpp_diag *diag, const char *dir) MPP_CHECKED;

/* Check DIR and make the temporary directory. *OUT lives in ARENA; unless committed, it is abandoned when ARENA is freed. */
enum mpp_status mpp_outdir_begin(struct mpp_arena *arena, struct mpp_diag *diag, const char *dir,
                                 struct mpp_outdir **out) MPP_CHECKED;

/* Where to write. */
const char *mpp_outdir_path(const struct mpp_outdir *o);

/* Move what was written into place and remove the temporary directory. On failure nothing has changed. */
enum mpp_status mpp_outdir_commit(struct mpp_outdir *o) MPP_CHECKED;

/* Remove what was made. Needs no memory; once committed or abandoned, nothing happens. */
void mpp_outdir_abandon(struct mpp_outdir *o);

/* What it is that a file or folder cannot be written for the errno WHY: MPP_INVALID where another name would cure it, MPP_IO. */
enum mpp_status mpp_outdir_status(int why);

/* Report that PATH cannot be created for errno. */
enum mpp_status mpp_outdir_cannot_create(struct mpp_diag *diag, const char *path) MPP_CHECKED;

/* Report that PATH, which was created, cannot be written for errno: a full disk. MPP_IO. */
enum mpp_status mpp_outdir_cannot_write(struct mpp_diag *diag, const char *path) MPP_CHECKED;

/* Remove PATH, a file or a directory with all in it. Needs no memory. */
void mpp_outdir_remove(const char *path);

#endif
