/* space.h - walking the valid rows of a padded space, on the host.
 *
 *     struct mpp_row_walk walk = mpp_rows_begin(space);
 *     int64_t rows[BLOCK], n;
 *     while ((n = mpp_rows_take(&walk, rows, BLOCK)) > 0)
 *         for (int64_t i = 0; i < n; i++)
 *             work(x + rows[i] * stride); */
#ifndef MPP_SPACE_H
#define MPP_SPACE_H

#include <stdbool.h>
#include <stdint.h>

#include "mpp_rt.h"

struct mpp_row_walk {
    struct mpp_space space;
    int64_t at[MPP_MAX_DIMS];
    bool done;
};

struct mpp_row_walk mpp_rows_begin(const struct mpp_space *space);

/* Valid rows of SPACE. */
int64_t mpp_rows_count(const struct mpp_space *space);

/* Up to MAX numbers (row-major over the padded extents) of the next valid rows; 0 at the end. */
int64_t mpp_rows_take(struct mpp_row_walk *walk, int64_t *out_rows, int64_t max);

static inline int64_t mpp_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t mpp_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

#endif
