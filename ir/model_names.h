/* model_names.h - the names that expansion meets: a hash table from (table, name) to a value's name.
 *
 *     mpp_model_names_put(&names, frame_id, "attn", "h.3.attn.dropout");
 *     const char *value = mpp_model_names_get(&names, frame_id, "attn");
 *
 * Table 0 holds full names ("h.3.attn.c_attn"), table 1 the inputs, further ones each a scope's own names. */
#ifndef MPP_MODEL_NAMES_H
#define MPP_MODEL_NAMES_H

#include <stddef.h>
#include <stdint.h>

#include "ir/arena.h"

enum { MPP_MODEL_NAMES_FULL = 0, MPP_MODEL_NAMES_INPUTS = 1, MPP_MODEL_NAMES_FIRST_SCOPE = 2 };

struct mpp_model_name {
    int table;
    const char *name, *value; /* name NULL: a free slot */
    int line;                 /* of the element that made it */
    int count;                /* how many ops took their name from it, for numbering */
};

struct mpp_model_names {
    struct mpp_arena *arena;
    size_t n, cap;            /* cap: a power of two, or 0 */
    struct mpp_model_name *slot;
};

/* The entry of NAME in TABLE, or NULL; valid until the next put. */
struct mpp_model_name *mpp_model_names_find(const struct mpp_model_names *names, int table, const char *name);

/* Its value, or NULL. */
const char *mpp_model_names_get(const struct mpp_model_names *names, int table, const char *name);

/* Add or replace an entry; the strings are kept, not copied. */
struct mpp_model_name *mpp_model_names_put(struct mpp_model_names *names, int table, const char *name, const char *value,
                                           int line);

#endif
