/* plan_json.h - what writing and reading plan.json share: layers, and how splits are spelled. Internal to planner/.
 *
 *     json_object_set_new(record, "split", mpp_json_split(...));
 */
#ifndef MPP_PLAN_JSON_H
#define MPP_PLAN_JSON_H

#include "planner/plan.h"

/* NAME of layer INDEX of the repeat REPEAT_NAME as a template: "h.3.attn.c_attn" -> "h.*.attn.c_attn". NULL when the
 * name does not start with the layer's prefix. */
const char *mpp_json_template(struct mpp_arena *arena, const char *name, const char *repeat_name, int index);

/* The name of each <repeat>, [number of repeats] by its id; *OUT_N how many. */
const char **mpp_json_repeats(struct mpp_arena *arena, const struct mpp_graph *g, int *out_n);

/* The first layer of each <repeat> that G holds, [number of repeats] by its id: plan.json counts layers from there. INT_MAX
 * where there is none. */
int *mpp_json_first_layers(struct mpp_arena *arena, const struct mpp_graph *g, int n_repeats);

/* NAME with the number of its layer, of whichever repeat of REPEAT_NAME [N_REPEATS], changed by SIGN times FIRST of that:
 * "h.11.x" and first 12, sign -1 -> "h.-1.x". NAME itself where it has none. */
const char *mpp_json_shifted(struct mpp_arena *arena, const char *name, const char *const *repeat_name, const int *first,
                             int n_repeats, int sign);

/* How plan.json names FACTOR of RULE: its dimension's name where that is the only one, else "#" and its letter. */
const char *mpp_json_factor(struct mpp_arena *arena, const struct mpp_rule *rule, int factor);
/* The same for a dimension of a tensor: its name, else "#" and its place from 0 on. */
const char *mpp_json_dim(struct mpp_arena *arena, const struct mpp_gtensor *t, int dim);

/* "prologue", "forward", "backward", "update" */
const char *mpp_json_phase(enum mpp_phase phase);

#endif
