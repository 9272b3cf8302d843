/* words.h - how things lie, in words, the same in all answers.
 *
 *     mpp_words_split(arena, group, &stage->mesh, stage->split[i]);      // "batch over data (8), ffn over model (4)"
 */
#ifndef MPP_INSPECT_WORDS_H
#define MPP_INSPECT_WORDS_H

#include "planner/plan.h"

/* What each axis does to GROUP: "batch over data (8), partial sums over model (4)"; "whole". All texts live in ARENA. */
const char *mpp_words_split(struct mpp_arena *arena, const struct mpp_group *group, const struct mpp_mesh *mesh, struct mpp_split split);
/* The same of a tensor. */
const char *mpp_words_sharding(struct mpp_arena *arena, const struct mpp_gtensor *t, const struct mpp_mesh *mesh, struct mpp_sharding s);
/* NAME of layer INDEX of REPEAT with its number as "*": "h.*.mlp.c_fc". */
const char *mpp_words_any_layer(struct mpp_arena *arena, const char *name, const char *repeat, int index);
/* "data 2 x model 4"; "one device" */
const char *mpp_words_mesh(struct mpp_arena *arena, const struct mpp_mesh *mesh);
/* "+1.2 ms", "-310 us", "0" */
const char *mpp_words_signed_time(struct mpp_arena *arena, int64_t ps);
const char *mpp_words_time(struct mpp_arena *arena, int64_t ps);
/* "+1.2 GiB" */
const char *mpp_words_signed_bytes(struct mpp_arena *arena, int64_t bytes);

#endif
