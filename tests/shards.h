/* shards.h - tensors cut into the blocks of a mesh's ranks, and put together again.
 *
 *     struct mpp_ref_tensor b = mpp_shard_block(&whole, &mesh, sharding, coord);   // allocated
 *     mpp_shard_fill(&whole, &mesh, sharding, coord, &b);
 *     ... the ranks compute ...
 *     double worst = mpp_shard_compare(&whole, &mesh, sharding, n_ranks, blocks);  // put together against WHOLE */
#ifndef MPP_SHARDS_H
#define MPP_SHARDS_H

#include "ir/ref.h"

enum { MAX_RANKS = 24 };

/* Where RANK stands: row-major, the last axis fastest. */
void mpp_shard_coordinates(const struct mpp_mesh *mesh, int rank, int *coord);

/* Number of the place at COORD within the axes of MASK (all of them: the rank), and how many places there are. */
int mpp_shard_number(const struct mpp_mesh *mesh, const int *coord, unsigned mask);
int mpp_shard_extent(const struct mpp_mesh *mesh, unsigned mask);

/* The block of T at COORD under S; its data is allocated and zero. */
struct mpp_ref_tensor mpp_shard_block(const struct mpp_ref_tensor *t, const struct mpp_mesh *mesh,
                                      struct mpp_sharding s, const int *coord);

/* T's elements into its block B; where S is partial, terms that add up to them. */
void mpp_shard_fill(const struct mpp_ref_tensor *t, const struct mpp_mesh *mesh, struct mpp_sharding s,
                    const int *coord, struct mpp_ref_tensor *b);

/* Worst difference of the ranks' BLOCKS put together (placed, partial terms summed) from T, and of copies from each
 * other; relative to 1 + the value. */
double mpp_shard_compare(const struct mpp_ref_tensor *t, const struct mpp_mesh *mesh, struct mpp_sharding s,
                         int n_ranks, const struct mpp_ref_tensor *const *blocks);

#endif
