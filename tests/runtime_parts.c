/* runtime_parts.c - asks the runtime. */
#include <stdbool.h>
#include <stdlib.h>

#include "mpp_rt.h"
#include "core/transfers.h"
#include "runtime_parts.h"

static struct mpp_stage stage_of(const struct parts_mesh *mesh, int first_rank)
{
    struct mpp_stage s = {.first_rank = first_rank, .n_axes = mesh->n_axes};
    for (int a = 0; a < mesh->n_axes; a++)
        s.axis_size[a] = mesh->size[a];
    return s;
}

bool parts_of_device(const struct parts_mesh mesh[2], const struct parts_line *line, bool sends, int index, int *n_out, int64_t *bytes_out)
{
    struct mpp_stage from = stage_of(&mesh[0], 0), to = stage_of(&mesh[1], 0);
    to.first_rank = 1;
    for (int a = 0; a < from.n_axes; a++)
        to.first_rank *= from.axis_size[a];
    const struct mpp_stage *stages[] = {&from, &to};
    struct mpp_transfer t = {.type = line->bytes == 2 ? MPP_TYPE_F16 : MPP_TYPE_F32, .from = 0, .to = 1, .n_dims = line->n_dims,
                             .depth = line->depth};
    for (int d = 0; d < line->n_dims; d++) {
        t.dims[d] = line->dims[d];
        t.from_split[d] = line->from_split[d];
        t.to_split[d] = line->to_split[d];
    }
    struct mpp_program program = {.n_stages = 2, .stages = stages, .n_transfers = 1, .transfers = &t};
    struct mpp_part *parts;
    struct mpp_error error;
    if (mpp_transfer_parts(&program, &t, (sends ? 0 : to.first_rank) + index, &parts, n_out, &error) != MPP_EXIT_OK)
        return false;
    *bytes_out = 0;
    for (int i = 0; i < *n_out; i++)
        if (!mpp_part_is_run(&parts[i], sends))
            *bytes_out += mpp_part_elements(&parts[i]) * line->bytes * (sends ? line->depth : 1);
    free(parts);
    return true;
}
