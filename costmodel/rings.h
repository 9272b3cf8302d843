/* rings.h - what point-to-point links give to each subset of a node's devices.
 *
 *     mpp_rings_table(arena, links, 8, &cluster->subsets);
 *
 * NCCL runs a collective over rings, each through every device of the group and none sharing a link with
 * another, so the bandwidth is that of a link times the number of such rings. */
#ifndef MPP_RINGS_H
#define MPP_RINGS_H

#include <stdint.h>

#include "costmodel/costmodel.h"

/* Most link-disjoint directed Hamiltonian cycles over the devices of MASK, where LINKS[i][j] links join i
 * and j and each carries one ring per direction. Exhaustive within a limit of work (never reached by a
 * machine that we know of), past which it is the best found. Fewer than two devices: 0. */
int mpp_rings_count(const uint8_t links[][MPP_CLUSTER_MESH_DEVICES], int n, unsigned mask);

/* The table of all 2^N subsets, in ARENA. */
const struct mpp_subset_links *mpp_rings_table(struct mpp_arena *arena,
                                               const uint8_t links[][MPP_CLUSTER_MESH_DEVICES], int n);

#endif
