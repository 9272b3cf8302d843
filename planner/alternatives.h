/* alternatives.h - what else could be decided for one thing of a plan, and the pins that force it.
 *
 *     struct mpp_pins held = mpp_alternatives_hold(arena, plan, &pins);     // stages, mesh, micro-batches as they are
 *     struct mpp_alternative *a;
 *     int n = mpp_alternatives_list(arena, cluster, plan, &held, &thing, &a);
 *     struct mpp_pins forced = mpp_alternatives_pin(arena, &held, &a[0]);   // planned so, the rest is optimised again
 */
#ifndef MPP_ALTERNATIVES_H
#define MPP_ALTERNATIVES_H

#include "planner/plan.h"

enum mpp_thing_kind {
    MPP_THING_OP,                 /* a kernel's split */
    MPP_THING_VALUE,              /* how a value is made */
    MPP_THING_REST,               /* how a parameter or an input rests */
};

struct mpp_thing {
    enum mpp_thing_kind kind;
    int stage;
    int id;                       /* OP: a group of the stage's graph; else a tensor */
    const char *glob;             /* what pins call it: of the op, or of the tensor; perhaps of several layers */
};

struct mpp_alternative {
    struct mpp_split split;       /* OP */
    struct mpp_sharding sharding; /* VALUE, REST */
    bool chosen;                  /* the plan's own */
    int n_pins;
    struct mpp_pin_tensor pin[MPP_MAX_AXES]; /* one per axis of several devices */
    int64_t least_ps;             /* of the stage per step: no plan that does so takes less, whatever memory it takes */
};

/* PINS with the stages, schedule, micro-batches and recomputation of PLAN, and its mesh where all stages have the same. */
struct mpp_pins mpp_alternatives_hold(struct mpp_arena *arena, const struct mpp_plan *plan, const struct mpp_pins *pins);

/* PINS and those of A. */
struct mpp_pins mpp_alternatives_pin(struct mpp_arena *arena, const struct mpp_pins *pins, const struct mpp_alternative *a);

/* What PINS leave for THING of PLAN (derived), in *OUT of ARENA by least_ps; what no plan can do is left out. Returns how many. */
int mpp_alternatives_list(struct mpp_arena *arena, const struct mpp_cluster *cluster, const struct mpp_plan *plan,
                          const struct mpp_pins *pins, const struct mpp_thing *thing, struct mpp_alternative **out);

#endif
