/* stage.h - one stage's integer program: strategies of its groups, choices of its tensors, and their prices.
 *
 *     struct mpp_stage_problem *p;
 *     if (!mpp_stage_problem_build(arena, cluster, rules, MPP_STAGE_ALONE, capacity, &p, &reason)) ...
 *     ... mpp_solver_setup(&p->solver, ...) ... mpp_solver_solve(..., choice, &info) ...
 *     mpp_stage_decide(p, choice, &stage);
 *
 * Shared by strategy.c, price.c, problem*.c, pins*.c, search.c, derive.c and plan_json*.c; nobody else includes it.
 *
 * Nodes: a group, or the update groups of one parameter tied to one split; a parameter (its resting sharding, and
 * in which form it is kept gathered, if at all); an input (its resting sharding). Values: a tensor and the consumers
 * of one phase. What recurs (groups, tensors and values of repeated layers) is built once and shared. */
#ifndef MPP_STAGE_H
#define MPP_STAGE_H

#include "planner/pins.h"
#include "planner/plan.h"
#include "planner/reshard.h"
#include "planner/solver.h"

/* ---- strategy_memo.c: byte strings to numbers ---- */

struct mpp_memo;
struct mpp_memo *mpp_memo_new(struct mpp_arena *arena);
/* The number of KEY in order of first appearance; *OUT_NEW: it was not there before. */
int mpp_memo_add(struct mpp_memo *m, const void *key, size_t size, bool *out_new);

/* A key that is being written. */
struct mpp_key {
    struct mpp_arena *arena;
    unsigned char *bytes;
    size_t size, cap;
};
void mpp_key_add(struct mpp_key *key, const void *p, size_t size);
void mpp_key_int(struct mpp_key *key, int64_t v);
void mpp_key_text(struct mpp_key *key, const char *s);

/* ---- interleave.c ---- */

/* Has S several chunks, as which stages can run GRAPH (mpp_span_can_chunk), and that are like the neighbouring layers which
 * are planned for them? */
bool mpp_interleave_possible(const struct mpp_graph *graph, const struct mpp_layering *layering, const struct mpp_schedule *s);

/* The graph of the chunks that stage NUMBER runs under S. */
enum mpp_status mpp_interleave_extract(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                                       const struct mpp_layering *layering, const struct mpp_schedule *s, int number,
                                       enum mpp_recompute recompute, struct mpp_graph **out) MPP_CHECKED;

/* STAGE, the NUMBER-th under S, planned as neighbouring layers of GRAPH: its graph and decisions become those of the chunks that
 * it runs. */
enum mpp_status mpp_interleave_stage(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                                     const struct mpp_layering *layering, const struct mpp_schedule *s, int number,
                                     struct mpp_stage *stage) MPP_CHECKED;

/* ---- price.c ---- */

/* As mpp_price_group, with what mpp_reshard_env_init prepared. */
int64_t mpp_price_group_in(const struct mpp_graph *g, const struct mpp_reshard_env *env, const struct mpp_group *group,
                           struct mpp_split split, int64_t *out_internal_ps);
/* Does GROUP receive from another stage? And the bytes that each device then gets at a time. */
bool mpp_price_is_receive(const struct mpp_graph *g, const struct mpp_group *group);
int64_t mpp_price_receive_bytes(const struct mpp_graph *g, const struct mpp_reshard_env *env, const struct mpp_group *group);
/* The axes that split ~ factors of GROUP. */
unsigned mpp_price_internal_mask(const struct mpp_group *group, struct mpp_split split);

/* How often per step groups of PHASE run. */
int64_t mpp_phase_count(const struct mpp_graph *g, enum mpp_phase phase);
static inline int64_t mpp_micro_batches(const struct mpp_graph *g)
{
    return g->batch > 0 ? g->global_batch / g->batch : 1;
}

/* ---- strategy.c ---- */

/* What groups that are alike share. */
struct mpp_group_class {
    int n_choices;
    struct mpp_split *split;      /* [n_choices] */
    int64_t *cost;                /* [n_choices] picoseconds per step */
    int n_operands;
    int32_t **state;              /* [n_operands][n_choices] sharding by number (mpp_reshard_state) */
    int64_t **bytes;              /* [n_operands][n_choices] */
};

/* What the whole graph says about splitting a tensor. */
struct mpp_strategy_facts {
    uint8_t *never;               /* [n_tensors] mask of dimensions that are never split */
    uint8_t *may_be_partial;      /* [n_tensors] may some strategy of its maker leave partial sums? */
};
void mpp_strategy_note(struct mpp_arena *arena, const struct mpp_graph *g, struct mpp_strategy_facts *out);

/* All splits of GROUP worth a thought on the mesh of PINS, and that PINS allow; returns how many. *OUT lives in ARENA. */
int mpp_strategy_list(struct mpp_arena *arena, const struct mpp_graph *g, const struct mpp_group *group,
                      const struct mpp_pin_rules *pins, struct mpp_split **out);

/* May an axis of SIZE split FACTOR of GROUP, as far as its rule and FACTS go? */
bool mpp_strategy_can_split(const struct mpp_strategy_facts *facts, const struct mpp_group *group, int factor, int size);

/* ---- problem.c ---- */

/* Who makes a tensor and who reads it. */
struct mpp_stage_uses {
    int *producer;                /* [n_tensors] group; -1: none */
    int *first_use;               /* [n_tensors + 1]; readers of t: use[first_use[t]] to use[first_use[t + 1] - 1], */
    int *use, *use_operand;       /* groups and which input, in execution order */
    mpp_id *updated_by;           /* [n_tensors] what replaces it at the end of a step; -1 */
};
void mpp_stage_note_uses(struct mpp_arena *arena, const struct mpp_graph *g, struct mpp_stage_uses *out);

enum mpp_stage_node_kind { MPP_NODE_GROUPS, MPP_NODE_PARAM, MPP_NODE_INPUT };

struct mpp_stage_node {
    enum mpp_stage_node_kind kind;
    mpp_id tensor;                /* PARAM, INPUT */
    int n_groups;
    const mpp_id *groups;         /* GROUPS */
    int n_choices;
    struct mpp_split *const *split; /* GROUPS: [n_groups][n_choices] */
    const struct mpp_sharding *rest, *gather; /* PARAM, INPUT: [n_choices]; equal: not kept gathered */
};

struct mpp_stage_problem {
    const struct mpp_graph *graph;
    struct mpp_reshard_env env;
    struct mpp_solver_problem solver;
    struct mpp_stage_node *node;  /* [solver.n_nodes] */
    const mpp_id *value_tensor;   /* [solver.n_values] */
};

/* Where a stage runs: the first device of its mesh, and how often per micro-batch it receives (struct mpp_reshard_env). HIDDEN:
 * of what can go on beside kernels (sums of gradients, gathers of parameters) this share is not paid. With 1 - MPP_COST_BESIDE no
 * plan takes less (codegen/overlap.h); 0: all is paid. */
struct mpp_stage_site {
    int first_device, receives;
    double hidden;
};
#define MPP_STAGE_ALONE ((struct mpp_stage_site){0, 1, 0})

/* *OUT lives in ARENA and refers to the rules' graph at its present batch and to their mesh. False with *OUT_REASON
 * when PINS leave a group or tensor without any choice. */
bool mpp_stage_problem_build(struct mpp_arena *arena, const struct mpp_cluster *cluster,
                             const struct mpp_pin_rules *pins, struct mpp_stage_site site, int64_t capacity_bytes,
                             struct mpp_stage_problem **out, const char **out_reason);

/* What recurs in problems of one cluster, one mesh, one micro-batch and the same pins (classes of groups and values, their
 * prices): worked out once for all that are built from one book. Where their first devices differ, links must be alike. */
struct mpp_stage_book;
struct mpp_stage_book *mpp_stage_book_new(struct mpp_arena *arena);

/* The same; what BOOK knows is not worked out again. *OUT refers to BOOK's arena too. */
bool mpp_stage_problem_build_from(struct mpp_arena *arena, struct mpp_stage_book *book, const struct mpp_cluster *cluster,
                                  const struct mpp_pin_rules *pins, struct mpp_stage_site site, int64_t capacity_bytes,
                                  struct mpp_stage_problem **out, const char **out_reason);

/* CHOICE as splits and resting shardings; the arrays of OUT are the caller's. */
void mpp_stage_decide(const struct mpp_stage_problem *p, const int32_t *choice, struct mpp_stage *out);

/* Bytes alive at TIME under CHOICE: parameters and their kept copies, gradients, optimiser state, the rest. */
void mpp_stage_bytes_at(const struct mpp_stage_problem *p, const int32_t *choice, int32_t time,
                        struct mpp_memory *out);

/* axes.c: call each axis of the decided stage S of G by what it splits ("data", "model2"; "a" where that is not clear),
 * unless it has such a name already. */
void mpp_stage_name_axes(const struct mpp_graph *g, struct mpp_stage *s);

/* uniform.c: the layer (repeat and index; -1: none) that NODE belongs to. */
void mpp_stage_layer_of(const struct mpp_stage_problem *p, int node, int *out_repeat, int *out_index);
/* The choice of node Y that decides what CHOICE does for node X, perhaps of another problem; -1: there is none. */
int32_t mpp_stage_same_choice(const struct mpp_stage_node *x, int32_t choice, const struct mpp_stage_node *y);

/* uniform.c: make all layers of a repeat decide alike where that fits P's capacity and stays within GAP of
 * INFO->bound; CHOICE and INFO then describe that plan. */
void mpp_stage_make_uniform(const struct mpp_stage_problem *p, double gap, int32_t *choice, struct mpp_solver_info *info);

/* export.c: the program within CAPACITY_BYTES as DIR/NAME.json, a problem of the intra-operator parallelism contest
 * (solver/iopddl.h), and what its nodes stand for as DIR/NAME.txt. P stays as it is. MPP_IO with errno. */
enum mpp_status mpp_stage_export(const struct mpp_stage_problem *p, int64_t capacity_bytes, const char *dir,
                                 const char *name) MPP_CHECKED;

/* Give the solver's choices names, for dumps. */
void mpp_stage_name_choices(struct mpp_arena *arena, struct mpp_stage_problem *p);

#endif
