/* pins.h - what --fix means for one candidate mesh: which splits and resting shardings are allowed.
 *
 *     MPP_TRY(mpp_pins_check(diag, graph, n_devices, &pins));
 *     for each candidate (mesh and the roles of its axes):
 *         if (!mpp_pins_resolve(arena, graph, &candidate, &pins, &rules, &reason)) ... reason ...
 *         if (mpp_pins_allow_split(rules, group, split)) ...
 *
 * Internal to planner/. */
#ifndef MPP_PINS_H
#define MPP_PINS_H

#include <stdbool.h>
#include <stdint.h>

#include "planner/plan.h"

/* A mesh to try, and what its axes are for. */
struct mpp_candidate {
    struct mpp_mesh mesh;
    int data_axis;                /* splits the batch wherever it stands; no other axis does. -1: none is told */
    int model_axis;               /* never splits the batch; -1: none is told */
    bool no_data;                 /* dp=1: no axis splits the batch */
    bool loose_data;              /* other axes may split the batch too */
};

/* The axis of a <shard> that names none: the model axis, or the mesh's last. */
#define MPP_PIN_ANY_AXIS "any"

/* What pins mean for a candidate, and facts about the graph that they speak of. */
struct mpp_pin_rules {
    const struct mpp_graph *graph;
    struct mpp_candidate c;
    const struct mpp_pins *pins;
    const struct mpp_strategy_facts *facts; /* what can be split at all (stage.h) */
    bool any;                     /* false: everything legal is allowed */
    int n_shards;                 /* of --fix and of the model file */
    const struct mpp_pin_tensor *shard;
    const int8_t *shard_axis;     /* [n_shards] */
    const uint64_t *matched;      /* [n_tensors] which of them speak of the tensor */
    const uint64_t *split_by;     /* [n_groups] which of them speak of the group's ops; NULL: none does of any */
    const uint8_t *weight_gradient; /* [n_tensors] summed into a parameter's gradient */
    const char *vocab, *sequence; /* names of dimensions; NULL: the model has none */
    int n_residual;               /* the residual stream's dimensions, by name; 0: none */
    const char *residual[MPP_GRAPH_MAX_DIMS];
};

/* Contradictions that need no mesh to be seen: one error each. */
enum mpp_status mpp_pins_check(struct mpp_diag *diag, const struct mpp_graph *graph, int n_devices,
                               const struct mpp_pins *pins) MPP_CHECKED;

/* The meshes that PINS leave for N_DEVICES; HOMOGENEOUS: axes may be swapped without a change. Returns how many;
 * *OUT lives in ARENA. */
int mpp_pins_candidates(struct mpp_arena *arena, int n_devices, bool homogeneous, const struct mpp_pins *pins,
                        struct mpp_candidate **out);

/* The same of what has nothing to do with the devices: no other number of them would help. */
enum mpp_status mpp_pins_check_model(struct mpp_diag *diag, const struct mpp_graph *graph, const struct mpp_pins *pins) MPP_CHECKED;

/* The axis of C's mesh that a shard pin calls NAME; -1: none. */
int mpp_pins_axis(const struct mpp_candidate *c, const char *name);

/* What PINS (and <shard> elements of the model file) mean for C. False with *OUT_REASON when they cannot hold. */
bool mpp_pins_resolve(struct mpp_arena *arena, const struct mpp_graph *graph, const struct mpp_candidate *c,
                      const struct mpp_pins *pins, struct mpp_pin_rules **out, const char **out_reason);

/* Does a legal SPLIT of GROUP agree with the pins? */
bool mpp_pins_allow_split(const struct mpp_pin_rules *r, const struct mpp_group *group, struct mpp_split split);

/* May PARAM or INPUT tensor T rest as S? */
bool mpp_pins_allow_rest(const struct mpp_pin_rules *r, mpp_id t, struct mpp_sharding s);
/* May parameters be kept gathered for the whole step? */
bool mpp_pins_allow_kept(const struct mpp_pin_rules *r);

/* Why nothing is left of GROUP's splits, or of T's resting shardings. */
const char *mpp_pins_explain(struct mpp_arena *arena, const struct mpp_pin_rules *r, const struct mpp_group *group);
const char *mpp_pins_explain_rest(struct mpp_arena *arena, const struct mpp_pin_rules *r, mpp_id t);

/* "shard", "rest", "split" */
const char *mpp_pins_kind_word(enum mpp_pin_kind kind);

/* What NAME says of T: a dimension, MPP_WHOLE, MPP_PARTIAL; -3: T has no such dimension. The same of a rule's factors. */
int mpp_pins_find_dim(const struct mpp_gtensor *t, const char *name);
int mpp_pins_find_factor(const struct mpp_rule *rule, const char *name);

/* PINS as normalised text, "" when there are none. */
const char *mpp_pins_text(struct mpp_arena *arena, const struct mpp_pins *pins);

#endif
