#include "tests/shards.h"

#include <math.h>
#include <stdlib.h>

#include "tests/op_examples.h"

void mpp_shard_coordinates(const struct mpp_mesh *mesh, int rank, int *coord)
{
    for (int a = mesh->n_axes - 1; a >= 0; a--) {
        coord[a] = rank % mesh->size[a];
        rank /= mesh->size[a];
    }
}

int mpp_shard_number(const struct mpp_mesh *mesh, const int *coord, unsigned mask)
{
    int n = 0;
    for (int a = 0; a < mesh->n_axes; a++)
        if (mask >> a & 1)
            n = n * mesh->size[a] + coord[a];
    return n;
}

int mpp_shard_extent(const struct mpp_mesh *mesh, unsigned mask)
{
    int n = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        n *= mask >> a & 1 ? mesh->size[a] : 1;
    return n;
}

struct mpp_ref_tensor mpp_shard_block(const struct mpp_ref_tensor *t, const struct mpp_mesh *mesh,
                                      struct mpp_sharding s, const int *coord)
{
    struct mpp_ref_tensor b = *t;
    for (int d = 0; d < t->n_dims; d++)
        b.dims[d] = mpp_block_valid(mesh, t->dims[d], mpp_sharding_mask(s, d), coord, &b.offset[d]);
    b.data = mpp_ref_scratch(mpp_ref_count(&b));
    return b;
}

/* Term PLACE of N that add up to VALUE. */
static double term(double value, int64_t element, int place, int n)
{
    double sum = 0, own = 0;
    for (int p = 0; p < n; p++) {
        uint64_t state = (uint64_t)element * 64 + (uint64_t)p;
        double v = p < n - 1 ? 2 * example_random(&state) - 1 : value - sum;
        sum += v;
        own = p == place ? v : own;
    }
    return own;
}

static double difference(const double *x, const double *y, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs(x[i] - y[i]) / (1 + fabs(y[i]));
        worst = d > worst || isnan(d) ? d : worst;
    }
    return worst;
}

void mpp_shard_fill(const struct mpp_ref_tensor *t, const struct mpp_mesh *mesh, struct mpp_sharding s,
                    const int *coord, struct mpp_ref_tensor *b)
{
    unsigned partial = mpp_sharding_mask(s, MPP_PARTIAL);
    int place = mpp_shard_number(mesh, coord, partial), places = mpp_shard_extent(mesh, partial);
    int64_t idx[MPP_GRAPH_MAX_DIMS] = {0}, n = mpp_ref_count(b);
    for (int64_t i = 0; i < n; i++, mpp_ref_next(b, idx)) {
        int64_t at = mpp_ref_global_index(b, idx);
        b->data[i] = term(t->data[at], at, place, places);
    }
}

double mpp_shard_compare(const struct mpp_ref_tensor *t, const struct mpp_mesh *mesh, struct mpp_sharding s,
                         int n_ranks, const struct mpp_ref_tensor *const *blocks)
{
    unsigned used = 0;
    for (int a = 0; a < mesh->n_axes; a++)
        used |= s.axis[a] != MPP_WHOLE ? 1u << a : 0;
    double *sum = mpp_ref_scratch(mpp_ref_count(t)), worst = 0;
    for (int rank = 0; rank < n_ranks; rank++) {
        const struct mpp_ref_tensor *b = blocks[rank];
        int coord[MPP_MAX_AXES] = {0}, first[MPP_MAX_AXES];
        mpp_shard_coordinates(mesh, rank, coord);
        for (int a = 0; a < MPP_MAX_AXES; a++)
            first[a] = used >> a & 1 ? coord[a] : 0;
        int original = mpp_shard_number(mesh, first, ~0u);
        int64_t idx[MPP_GRAPH_MAX_DIMS] = {0}, n = mpp_ref_count(b);
        if (original != rank)
            worst = fmax(worst, difference(b->data, blocks[original]->data, n));
        for (int64_t i = 0; i < n && original == rank; i++, mpp_ref_next(b, idx))
            sum[mpp_ref_global_index(b, idx)] += b->data[i];
    }
    double d = difference(sum, t->data, mpp_ref_count(t));
    free(sum);
    return isnan(d) ? d : fmax(worst, d);
}
