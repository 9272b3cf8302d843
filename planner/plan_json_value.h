/* plan_json_value.h - JSON values that are surely there: memory that is out ends the run by its guard. Internal to
 * plan_json*.c.
 *
 *     json_t *o = mpp_json_own(arena, json_object());
 *     mpp_json_put(arena, o, "devices", json_integer(8));
 */
#ifndef MPP_PLAN_JSON_VALUE_H
#define MPP_PLAN_JSON_VALUE_H

#include <jansson.h>
#include <stddef.h>

#include "ir/arena.h"

struct mpp_beside;

/* JSON itself, which lives until ARENA is freed besides whatever it is put into; NULL is memory that is out. */
json_t *mpp_json_own(struct mpp_arena *arena, json_t *json);

/* OBJECT[KEY] = VALUE, which is taken over. */
void mpp_json_put(struct mpp_arena *arena, json_t *object, const char *key, json_t *value);

/* VALUE, which is taken over, at the end of ARRAY. */
void mpp_json_append(struct mpp_arena *arena, json_t *array, json_t *value);

/* What a GPU holds beside its arena, bytes by kind; it lives as JSON of mpp_json_own does. */
json_t *mpp_json_beside(struct mpp_arena *arena, const struct mpp_beside *b);

/* JSON as text by jansson's FLAGS; it lives until ARENA is freed. */
const char *mpp_json_text(struct mpp_arena *arena, const json_t *json, size_t flags);

#endif
