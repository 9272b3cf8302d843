/* problem_internal.h - what problem.c, problem_tie.c and problem_value.c share. */
#ifndef MPP_PROBLEM_INTERNAL_H
#define MPP_PROBLEM_INTERNAL_H

#include "planner/stage.h"

/* Tensors of one shape: they convert alike. */
struct mpp_shape_class {
    struct mpp_gtensor rep;
    int64_t **row;                /* [n_states] costs from that state; NULL: not asked for yet */
};

/* Parameters (or inputs) that are read alike. */
struct mpp_rest_class {
    int n_choices;
    struct mpp_sharding *rest, *gather;
    int64_t *cost, *bytes;        /* bytes: of the resting form and of the kept one */
    int32_t *state;               /* resting form by number */
    int32_t *source;              /* what readers of the step find: the state, or n_states * (1 + rest) + kept form */
};

/* Groups tied to one choice (or a single one). */
struct mpp_tie_class {
    int n_groups, n_choices;
    struct mpp_split **split;     /* [n_groups][n_choices] */
    int64_t *cost;
    int32_t ***state;             /* [n_groups][operand][n_choices] */
    int64_t ***bytes;
};

/* A value's arrays. */
struct mpp_value_class {
    int n_forms;
    int32_t *out, **in;
    int64_t *convert, *copy_bytes;
};

/* What recurs, by number. */
struct mpp_stage_book {
    struct mpp_arena *arena;
    struct mpp_memo *shapes, *groups, *ties, *rests, *values;
    struct mpp_shape_class **shape;
    struct mpp_group_class **group;
    struct mpp_tie_class **tie;
    struct mpp_rest_class **rest;
    struct mpp_value_class **value;
    size_t cap_shape, cap_group, cap_tie, cap_rest, cap_value;
};

struct mpp_build {
    struct mpp_arena *arena;
    struct mpp_stage_book *book;
    const struct mpp_graph *g;
    const struct mpp_pin_rules *pins;
    struct mpp_stage_problem *p;
    struct mpp_stage_uses uses;
    int *shape_of, *group_class_of; /* [n_tensors], [n_groups] */
    int *node_of_group, *place_in_node, *node_of_tensor;
    int *class_of_node;           /* tie or rest class */
    struct mpp_solver_node *nodes;
    struct mpp_solver_value *vals;
    size_t cap_nodes, cap_snodes, cap_cls, cap_vals, cap_vt;
    int n_nodes, n_vals;
    mpp_id *value_tensor;         /* [n_vals] */
    int last_time;
    const char *reason;           /* why there is no problem */
};

/* The class of T's shape, and the cost of moving it from state FROM to state TO. */
int mpp_build_shape(struct mpp_build *b, mpp_id t);
int64_t mpp_build_convert(struct mpp_build *b, int shape, int from, int to);
/* What of COST_PS is to be paid of a collective that may go on beside kernels (struct mpp_stage_site). */
int64_t mpp_build_hidden(const struct mpp_build *b, int64_t cost_ps);
struct mpp_sharding mpp_build_sharding(const struct mpp_build *b, int n_dims, int state);

/* problem_tie.c: which group leads the node that a group belongs to: [n_groups], itself for most. */
int *mpp_build_leaders(struct mpp_build *b);
/* The tie class of GROUPS, whose first leads. */
int mpp_build_tie(struct mpp_build *b, int n, const int *groups);

/* The solver's values for what all nodes make. */
void mpp_build_values(struct mpp_build *b);

#endif
