/* names.h - from names to ids (private to ir/).
 *
 *     struct mpp_names *n = mpp_names_new(arena);
 *     mpp_names_put(n, "h.0.attn", id);              // false: the name is taken
 *     mpp_id id = mpp_names_get(n, "h.0.attn", -1);  // -1: unknown */
#ifndef MPP_NAMES_H
#define MPP_NAMES_H

#include "ir/graph.h"

struct mpp_names;

struct mpp_names *mpp_names_new(struct mpp_arena *arena);
/* Make room for N names in a table that holds none yet. */
void mpp_names_reserve(struct mpp_names *names, size_t n);
/* NAME is kept, not copied. */
bool mpp_names_put(struct mpp_names *names, const char *name, mpp_id id);
/* Put NAME, or NAME_2, NAME_3, ... where that is taken; returns what was put. */
const char *mpp_names_take(struct mpp_names *names, const char *name, mpp_id id);
mpp_id mpp_names_get(const struct mpp_names *names, const char *name, mpp_id fallback);

#endif
