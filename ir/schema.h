/* schema.h - a RELAX NG schema of the model file, for editors and for tests.
 *
 *     struct mpp_schema_op ops[] = {{"Gelu", "approximate:{none|tanh}=none"}};
 *     mpp_schema_print(arena, stdout, ops, 1);
 *
 * Values are expressions, so the schema knows which attributes an element has and which words an enumeration
 * takes, not what a number is. `mpplan` itself checks more, and says more. */
#ifndef MPP_SCHEMA_H
#define MPP_SCHEMA_H

#include <stdio.h>

struct mpp_arena;

struct mpp_schema_op {
    const char *name;  /* "Gelu" */
    const char *attrs; /* its attributes in the notation of mpp_attrs_read */
};

/* Print the schema (RELAX NG, XML syntax) of models and libraries whose ops are the N OPS. ARENA
 * takes what it needs for that. */
void mpp_schema_print(struct mpp_arena *arena, FILE *out, const struct mpp_schema_op *ops, int n);

#endif
