/* Blocks of split dimensions, and walks over the valid part of padded spaces. */
#include "space.h"

#include <assert.h>

struct mpp_extent mpp_extent_of(const struct mpp_rank *r, int64_t global, unsigned mask)
{
    struct mpp_extent e = {.global = global, .padded = global, .valid = global, .offset = 0};
    for (int axis = 0; axis < r->n_axes; axis++) {
        if (!(mask >> axis & 1))
            continue;
        int64_t parts = r->axis_size[axis];
        e.padded = (e.padded + parts - 1) / parts;
        int64_t start = r->coord[axis] * e.padded;
        e.offset += start;
        e.valid = mpp_max_i64(0, mpp_min_i64(e.padded, e.valid - start));
    }
    return e;
}

int64_t mpp_rows_count(const struct mpp_space *space)
{
    int64_t n = 1;
    for (int d = 0; d < space->n_dims; d++)
        n *= mpp_max_i64(0, space->valid[d]);
    return n;
}

struct mpp_row_walk mpp_rows_begin(const struct mpp_space *space)
{
    assert(space->n_dims >= 0 && space->n_dims <= MPP_MAX_DIMS);
    struct mpp_row_walk walk = {.space = *space};
    for (int d = 0; d < space->n_dims; d++) {
        assert(space->valid[d] <= space->padded[d]);
        if (space->valid[d] <= 0)
            walk.done = true;
    }
    return walk;
}

/* To the next valid index of all dimensions but the last. */
static void step_outer(struct mpp_row_walk *walk)
{
    for (int d = walk->space.n_dims - 2; d >= 0; d--) {
        if (++walk->at[d] < walk->space.valid[d])
            return;
        walk->at[d] = 0;
    }
    walk->done = true;
}

int64_t mpp_rows_take(struct mpp_row_walk *walk, int64_t *out_rows, int64_t max)
{
    const struct mpp_space *s = &walk->space;
    int last = s->n_dims - 1;
    int64_t n = 0;
    while (!walk->done && n < max) {
        if (last < 0) {
            out_rows[n++] = 0;
            walk->done = true;
            break;
        }
        int64_t first = 0;
        for (int d = 0; d <= last; d++)
            first = first * s->padded[d] + walk->at[d];
        int64_t run = mpp_min_i64(max - n, s->valid[last] - walk->at[last]);
        for (int64_t i = 0; i < run; i++)
            out_rows[n++] = first + i;
        walk->at[last] += run;
        if (walk->at[last] == s->valid[last]) {
            walk->at[last] = 0;
            step_outer(walk);
        }
    }
    return n;
}
