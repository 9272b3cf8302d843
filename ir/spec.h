/* spec.h - the notation in which an op lists its attributes, taken apart.
 *
 *     struct mpp_spec *entry;
 *     int n = mpp_spec_parse(arena, "units:dims*, bias:bool=true, approximate:{none|tanh}=none", &entry);
 *
 * Types: int, float, bool, string, ints, dims, init ("normal(0, 0.02)"), and {a|b} for one of a few words. */
#ifndef MPP_SPEC_H
#define MPP_SPEC_H

#include <stdbool.h>

#include "ir/arena.h"

struct mpp_spec {
    const char *name, *type; /* type "enum" for {a|b} */
    bool required;
    const char *fallback;    /* the default as text; NULL: none */
    int n_words;
    const char **words;      /* of an enum */
};

/* Take SPEC apart in ARENA; returns the number of entries. SPEC is the program's own, not the user's. */
int mpp_spec_parse(struct mpp_arena *arena, const char *spec, struct mpp_spec **out);

#endif
