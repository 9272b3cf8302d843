/* outfile.h - a file that is written whole or removed.
 *
 *     struct mpp_outfile *f = mpp_outfile_create(arena, path);      // NULL: errno says why
 *     fprintf(mpp_outfile_stream(f), ...);
 *     if (!mpp_outfile_close(f)) ... errno ...                   // all has been written, or the file is gone
 *
 * When the arena is freed before the file is closed, it is closed and removed as well. */
#ifndef MPP_OUTFILE_H
#define MPP_OUTFILE_H

#include <stdbool.h>
#include <stdio.h>

#include "ir/arena.h"

struct mpp_outfile;

/* Create PATH, or empty it. NULL on failure, with errno. */
struct mpp_outfile *mpp_outfile_create(struct mpp_arena *arena, const char *path);

/* The same, but beside PATH, which it becomes when it is closed: until then, and if that fails, PATH stays as it is. A PATH that is
 * no regular file is written where it is. */
struct mpp_outfile *mpp_outfile_replace(struct mpp_arena *arena, const char *path);

FILE *mpp_outfile_stream(const struct mpp_outfile *file);

/* False where something could not be written, with errno; then a regular file is removed. FILE is not usable afterwards. */
bool mpp_outfile_close(struct mpp_outfile *file);

#endif
