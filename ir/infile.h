/* infile.h - a regular file of bounded size, read whole.
 *
 *     const char *why;
 *     size_t size;
 *     char *text = mpp_infile_read(arena, path, 64, &size, &why);
 *     if (!text) ... why ...
 *
 * What would not end or would block is refused: directories, devices, pipes and sockets. */
#ifndef MPP_INFILE_H
#define MPP_INFILE_H

#include <stddef.h>

#include "ir/arena.h"

/* The bytes of PATH in ARENA, with a '\0' behind them; NULL with *OUT_WHY when it cannot be read or is over MOST_MIB. */
char *mpp_infile_read(struct mpp_arena *arena, const char *path, int most_mib, size_t *out_size, const char **out_why);

#endif
