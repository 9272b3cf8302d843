/* runtime_parts.h - what the runtime makes of a message between stages, for tests of the planner's side. The runtime's headers and
 * the planner's do not go together, so this is in numbers alone. */
#ifndef RUNTIME_PARTS_H
#define RUNTIME_PARTS_H

#include <stdbool.h>
#include <stdint.h>

/* A stage: its devices' mesh. */
struct parts_mesh {
    int n_axes;
    const int *size;
};

/* A tensor of N_DIMS that goes from stage 0 to stage 1, and the axes that split its dimensions on either side. */
struct parts_line {
    int n_dims, depth, bytes;     /* of an element: 2 or 4 */
    const int64_t *dims;
    const unsigned *from_split, *to_split;
};

/* Of device INDEX of the sender's stage, or the receiver's: how many it exchanges parts with, and the bytes in which a CUDA trainer
 * packs them. Returns false where memory is out. */
bool parts_of_device(const struct parts_mesh mesh[2], const struct parts_line *line, bool sends, int index, int *n_out, int64_t *bytes_out);

#endif
