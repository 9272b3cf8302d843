/* pairwise_internal.h - what the solver's files share; nobody outside solver/ and its test includes it.
 *
 *     pairwise.c   settings, the driver
 *     problem.c    checks, exact evaluation
 *     graph.c      the problem as presolve changes it, and the way back
 *     presolve.c   the rules
 *     times.c      memory rows: which times can bind, which imply others
 *     relax.c      the dual bound: message passing under prices, reduced costs
 *     descent.c    good choices: trees of nodes settled at once, under prices and within memory
 *     blocks.c     the same for most of the problem at once, while prices follow
 *     bucket.c     most of a problem settled at once (bucket.h)
 *     restart.c    many starts of small, dense problems (restart.h)
 *     window.c     part of a problem, all else held
 *     exact.c      GLPK on what is left
 *     glpk_env.c   GLPK's environment
 *
 * Costs in here are the problem's, shifted right by cost_shift where their sum would not fit 56 bits. */
#ifndef MPP_PAIRWISE_INTERNAL_H
#define MPP_PAIRWISE_INTERNAL_H

#include "solver/pairwise.h"

/* Costs at or above MPP_PW_BIG are forbidden; all finite ones together stay below 2^56. */
#define MPP_PW_INF ((int64_t)1 << 60)
#define MPP_PW_BIG ((int64_t)1 << 59)

/* ---- the problem (problem.c) ---------------------------------------------------------------------------- */

/* Does it keep to the rules in pairwise.h? */
bool mpp_pw_problem_valid(const struct mpp_pairwise_problem *p);

/* By how much costs below FORBIDDEN are shifted right, so that all together stay below 2^56. */
int mpp_pw_problem_shift(const struct mpp_pairwise_problem *p, int64_t forbidden);

/* ---- the graph (graph.c) -------------------------------------------------------------------------- */

/* Bytes per choice while the rows lo <= t < hi pass; a node's segments are disjoint and ascending. */
struct mpp_pw_segment {
    int32_t lo, hi;
    int64_t *bytes;
};

/* Where a usage begins (sign 1) or ends (-1); choice k takes bytes[choice[k]], or bytes[k] where CHOICE is NULL. */
struct mpp_pw_change {
    int32_t row, sign;
    const int64_t *bytes;
    const int32_t *choice;
};

struct mpp_pw_node {
    bool gone;                    /* settled, merged or eliminated */
    int32_t n;                    /* choices */
    int64_t *cost;
    int32_t n_edges;              /* incident ones; some may be gone */
    size_t edge_cap;
    int32_t *edges;
    int32_t n_segments;
    struct mpp_pw_segment *segments;
};

struct mpp_pw_edge {
    bool gone;
    int32_t a, b;
    int64_t *cost;                /* [choices of a][choices of b] */
};

/* What presolve did, in order; replayed backwards to get a choice of the whole problem. */
enum mpp_pw_step_kind {
    MPP_PW_KEPT,                  /* NODE's choice k was choice map[k] before */
    MPP_PW_SETTLED,               /* NODE takes map[0] */
    MPP_PW_FOLLOWS,               /* NODE takes map[choice of by[0]] */
    MPP_PW_BETWEEN,               /* NODE takes map[choice of by[0] * width + choice of by[1]] */
};

struct mpp_pw_step {
    enum mpp_pw_step_kind kind;
    int32_t node, by[2];
    int32_t width;                /* kept: choices left; between: choices of by[1] */
    int32_t *map;
};

struct mpp_pw_graph {
    struct mpp_arena *arena;      /* of nodes and edges; mpp_pw_graph_compact makes it anew */
    struct mpp_arena *history;    /* of steps */
    int32_t n_nodes, n_edges;
    size_t edge_cap;
    struct mpp_pw_node *nodes;
    struct mpp_pw_edge *edges;
    int32_t n_rows;               /* memory rows: times that may bind */
    int64_t *capacity;            /* [n_rows] what is left beside what every choice takes */
    int32_t *row_time, *row_first; /* [n_rows] the problem's time; the row's number at the start */
    int64_t constant;             /* cost of what is settled */
    size_t n_steps, step_cap;
    struct mpp_pw_step *steps;
    bool infeasible;
    int32_t conflict_time, conflict_node;
    int64_t conflict_bytes;
    unsigned rules;
    int32_t most_choices;         /* of any node at the start */
    int64_t work;
};

static inline int64_t mpp_pw_add(int64_t a, int64_t b)
{
    int64_t c = a + b;
    return a >= MPP_PW_BIG || b >= MPP_PW_BIG || c > MPP_PW_INF ? MPP_PW_INF : c;
}

/* The cost of edge E where its node NODE takes K and the other one L. */
static inline int64_t *mpp_pw_entry(const struct mpp_pw_graph *g, const struct mpp_pw_edge *e, int32_t node, int32_t k,
                                    int32_t l)
{
    return &e->cost[node == e->a ? (int64_t)k * g->nodes[e->b].n + l : (int64_t)l * g->nodes[e->b].n + k];
}

static inline int32_t mpp_pw_other(const struct mpp_pw_edge *e, int32_t node)
{
    return e->a == node ? e->b : e->a;
}

/* How a cost of the problem becomes one of the graph: shifted right, or forbidden from this one on. */
struct mpp_pw_costs {
    int shift;
    int64_t forbidden;
};

/* The problem as a graph; ARENA's run owns it. */
struct mpp_pw_graph *mpp_pw_graph_new(const struct mpp_pairwise_problem *problem, struct mpp_pw_costs costs, unsigned rules,
                                      struct mpp_arena *arena);
void mpp_pw_graph_free(struct mpp_pw_graph *g);

/* Disjoint ascending segments of N_CHOICES that the changes (which are sorted) add up to; returns how many. */
int32_t mpp_pw_graph_profile(struct mpp_pw_graph *g, struct mpp_pw_change *change, int32_t n_changes, int32_t n_choices,
                             struct mpp_pw_segment **out);

/* A copy that goes its own way; G's history must outlive it. */
struct mpp_pw_graph *mpp_pw_graph_clone(const struct mpp_pw_graph *g, struct mpp_arena *arena);

/* Move what is left to a fresh arena. */
void mpp_pw_graph_compact(struct mpp_pw_graph *g);
struct mpp_pairwise_size mpp_pw_graph_size(const struct mpp_pw_graph *g);

/* Only the N choices KEPT (ascending) of NODE remain. */
void mpp_pw_graph_keep(struct mpp_pw_graph *g, int32_t node, const int32_t *kept, int32_t n);

/* Add COST, owned by the graph's arena, as an edge of A and B, or onto the one they have. */
void mpp_pw_graph_join(struct mpp_pw_graph *g, int32_t a, int32_t b, int64_t *cost);
void mpp_pw_graph_forget_gone(struct mpp_pw_graph *g, int32_t node); /* edges that are gone leave NODE's list */
void mpp_pw_graph_note(struct mpp_pw_graph *g, struct mpp_pw_step step);

/* CHOICE [n_nodes] holds the choices of nodes that remain; the others are filled in, and all become the problem's. */
void mpp_pw_graph_replay(const struct mpp_pw_graph *g, int32_t *choice);

/* The same back to before step FROM only. */
void mpp_pw_graph_replay_from(const struct mpp_pw_graph *g, size_t from, int32_t *choice);

/* CHOICE, of the nodes as they were before step FROM, becomes one of those that remain; false if a choice of it is gone. */
bool mpp_pw_graph_follow(const struct mpp_pw_graph *g, size_t from, int32_t *choice);

/* ---- presolve (presolve.c, times.c) ----------------------------------------------------------------- */

/* Apply the rules until none changes anything; g->infeasible is set when nothing can be left. */
void mpp_pw_presolve(struct mpp_pw_graph *g);

/* What every choice of NODE takes leaves its segments and the capacity; equal neighbours join. */
void mpp_pw_times_normalise(struct mpp_pw_graph *g, int32_t node);

/* Rows that cannot bind, or are implied by a neighbouring one, go. True if any did. */
bool mpp_pw_times_reduce(struct mpp_pw_graph *g);

/* ---- the relaxation (relax.c) ------------------------------------------------------------------------ */

/* Numbers are doubles that hold integers below 2^53, so that sums are exact and loops vectorise; forbidden is HUGE_VAL. */
struct mpp_pw_link {
    int32_t a, b, n_a, n_b;       /* a < b: vertices */
    int32_t edge;                 /* in the graph */
    double *cost, *flipped;       /* [a][b] and [b][a], times 2^scale_bits */
    double *to_a, *to_b;          /* moved from the edge to its ends so far */
};

struct mpp_pw_vertex {
    int32_t node, n;              /* in the graph; choices */
    double *cost;                 /* [n] own, times 2^scale_bits */
    double *priced;               /* [n] floor of the price of its bytes, in the same unit */
    double *theta;                /* [n] what lies at the vertex now: cost + priced + what came from edges */
    int32_t n_before, n_after;    /* links to lower and to higher vertices */
    int32_t *before, *after;
    int32_t n_segments;
    const struct mpp_pw_segment *segments;
};

struct mpp_pw_relax {
    struct mpp_arena *arena;
    struct mpp_pw_graph *g;
    int32_t n, n_links, n_rows;
    struct mpp_pw_vertex *vertex;
    struct mpp_pw_link *link;
    int scale_bits, price_bits;   /* costs are times 2^scale_bits, prices 2^price_bits of that per byte */
    int64_t *price;               /* [n_rows] >= 0 */
    int64_t *sum;                 /* [n_rows + 1] scratch: sums of prices */
    int64_t *usage;               /* [n_rows + 1] bytes of the choice last looked at */
    double rent;                  /* price of all capacity, rounded up */
    double *scratch;              /* [most choices] */
    int64_t work;
};

struct mpp_pw_relax *mpp_pw_relax_new(struct mpp_pw_graph *g, struct mpp_arena *parent);
void mpp_pw_relax_free(struct mpp_pw_relax *r);

/* One sweep, upward or downward. CHOICE [n], may be NULL, becomes what reading it greedily gives. Returns a bound without
 * g->constant, times 2^scale_bits (mpp_pw_relax_bound proves it). */
double mpp_pw_relax_sweep(struct mpp_pw_relax *r, bool upward, int32_t *choice);

/* Prices per byte in units of (scaled cost) * 2^-price_bits; they are scaled down where they would be too large. */
void mpp_pw_relax_set_prices(struct mpp_pw_relax *r, const int64_t *price);

/* The bound that costs, prices and messages prove, in exact integers: graph cost units, rounded up, constant not included. */
int64_t mpp_pw_relax_bound(const struct mpp_pw_relax *r);

/* Forbid, in the graph, choices and pairs that nothing cheaper than UPPER (graph cost units, without the constant) can
 * hold; returns how many. The relaxation is stale then. */
int64_t mpp_pw_relax_fix(struct mpp_pw_relax *r, int64_t upper);

/* Cost of CHOICE [n] in graph cost units (MPP_PW_INF: forbidden) without the constant; and its bytes, into r->usage:
 * the most over capacity, negative where none is. */
int64_t mpp_pw_relax_cost(const struct mpp_pw_relax *r, const int32_t *choice);
int64_t mpp_pw_relax_excess(struct mpp_pw_relax *r, const int32_t *choice);

/* ---- good choices (descent.c) ------------------------------------------------------------------------- */

struct mpp_pw_random {
    uint64_t state;
};

/* Marsaglia's xorshift64; a number below N. */
int32_t mpp_pw_draw_below(struct mpp_pw_random *random, int32_t n);

/* Stop? Asked often. */
struct mpp_pw_watch {
    bool (*expired)(void *context);
    void *context;
};

/* Improve CHOICE (within memory if its excess is 0; else the excess is brought down first) for about WORK entries. */
struct mpp_pw_descent;
struct mpp_pw_descent *mpp_pw_descent_new(struct mpp_pw_relax *r, const int32_t *choice, struct mpp_pw_random *random);
void mpp_pw_descent_free(struct mpp_pw_descent *d);
void mpp_pw_descent_run(struct mpp_pw_descent *d, int64_t work, const struct mpp_pw_watch *watch);
const int32_t *mpp_pw_descent_best(const struct mpp_pw_descent *d); /* [r->n], NULL: nothing fitted yet */

/* ---- large blocks (blocks.c) ----------------------------------------------------------------------------- */

/* Choices and prices follow each other, from CHOICE and the relaxation's prices. */
struct mpp_pw_blocks;
struct mpp_pw_blocks *mpp_pw_blocks_new(struct mpp_pw_relax *r, const int32_t *choice, struct mpp_pw_random *random);
void mpp_pw_blocks_free(struct mpp_pw_blocks *b);
void mpp_pw_blocks_offer(struct mpp_pw_blocks *b, const int32_t *choice); /* go on from there if it is better */
void mpp_pw_blocks_run(struct mpp_pw_blocks *b, int64_t work, const struct mpp_pw_watch *watch); /* about WORK entries */
const int32_t *mpp_pw_blocks_best(const struct mpp_pw_blocks *b); /* [r->n], NULL: nothing fitted yet */

/* ---- windows (window.c) ---------------------------------------------------------------------------------- */

struct mpp_pw_window {
    struct mpp_arena *arena;
    struct mpp_pw_relax *r;
    const int32_t *choice;        /* [r->n] what is held */
    int32_t most_choices, n_members;
    int32_t *member;              /* [n_members] vertices */
    int32_t *number;              /* [r->n] place among the members, -1: held */
    int32_t **kept, *n_kept;      /* [r->n] a member's choices in the problem, the present one first */
    int64_t *held;                /* [n_rows] bytes of what is held */
    struct mpp_pairwise_problem problem; /* its last node stands for what is held */
};

/* About PAIRS pairs around a random place, at most MOST_CHOICES choices each. Free it before R. */
struct mpp_pw_window *mpp_pw_window_new(struct mpp_pw_relax *r, const int32_t *choice, int64_t pairs, int32_t most_choices,
                                        struct mpp_pw_random *random);
int64_t mpp_pw_window_cost(const struct mpp_pw_window *w); /* of the present choices */
void mpp_pw_window_apply(const struct mpp_pw_window *w, const int32_t *answer, int32_t *choice);
void mpp_pw_window_free(struct mpp_pw_window *w);

/* ---- GLPK (exact.c) -------------------------------------------------------------------------------------- */

enum mpp_pw_exact_status { MPP_PW_EXACT_OPTIMAL, MPP_PW_EXACT_NONE, MPP_PW_EXACT_LIMIT, MPP_PW_EXACT_FAILED };

struct mpp_pw_exact {
    int64_t upper;                /* in: only what costs less is of use; without the constant */
    const struct mpp_pw_watch *watch;
    enum mpp_pw_exact_status status; /* optimal: CHOICE costs COST; none: nothing costs less than upper */
    int64_t cost, bound;
    bool found;
    int32_t *choice;              /* [n_nodes] of the graph */
    double *price;                /* [n_rows] of the root's memory rows, cost per byte; NULL: not wanted */
    int32_t mixed;                /* node whose choices the root's solution mixes most; -1: none */
    bool root_only;               /* in: stop after the root's linear program */
    int32_t rows, cols;
    int64_t work_limit;           /* in; 0: none */
    int64_t work;                 /* rows x simplex steps */
};

/* Branch and cut on what is left of the graph. */
void mpp_pw_exact_solve(struct mpp_pw_graph *g, struct mpp_pw_exact *x);

#endif
