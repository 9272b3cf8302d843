/* pairwise.h - integer programs with costs on nodes and pairs, and memory over time.
 *
 *     struct mpp_pairwise_settings set = mpp_pairwise_defaults();
 *     struct mpp_pairwise *s;
 *     MPP_TRY(mpp_pairwise_setup(&problem, &set, parent, &s));
 *     enum mpp_status st = mpp_pairwise_solve(s, choice, &info);   // info: status, objective, bound, gap
 *     mpp_pairwise_free(s);
 *
 * The problem. Node i takes one of its choices, x_i, at cost c_i(x_i); edge (i, j) adds e_ij(x_i, x_j). Each usage of a
 * node holds u(x_i) bytes at the times begin <= t < end. At every time the bytes of all nodes stay within capacity:
 *
 *     minimise  sum_i c_i(x_i) + sum_ij e_ij(x_i, x_j)     subject to   sum_{i live at t} u_i(x_i) <= capacity, all t
 *
 * It is the problem of the intra-operator parallelism contest (Moffitt and Fegade, ASPLOS/EuroSys 2025), of which Alpa's
 * integer program (OSDI 2022) is a case. A cost of MPP_PAIRWISE_FORBIDDEN or more rules a choice or pair out.
 *
 * How it is solved (docs/solver.md): presolve to a fixpoint; a dual bound by sequential reweighted message passing
 * (Kolmogorov, SRMP, PAMI 2015) with prices on memory; block descent on trees for good choices; reduced costs rule
 * out choices and pairs, which presolve exploits again; GLPK settles what is left. */
#ifndef MPP_PAIRWISE_H
#define MPP_PAIRWISE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "ir/arena.h"
#include "ir/status.h"

#define MPP_PAIRWISE_FORBIDDEN INT64_C(1000000000000000000)

__extension__ typedef __int128 mpp_i128;

struct mpp_pairwise_usage {
    int32_t begin, end;           /* times begin <= t < end; empty: nothing is held */
    const int64_t *bytes;         /* [n_choices], >= 0 */
};

struct mpp_pairwise_node {
    int32_t n_choices;            /* >= 1 */
    const int64_t *cost;          /* [n_choices], >= 0 */
    int32_t n_usages;
    const struct mpp_pairwise_usage *usages;
};

struct mpp_pairwise_edge {
    int32_t a, b;                 /* several edges of one pair add up; a == b: the diagonal counts */
    const int64_t *cost;          /* [n_choices of a * n_choices of b], row-major, >= 0 */
};

struct mpp_pairwise_problem {
    int32_t n_nodes, n_edges;
    const struct mpp_pairwise_node *nodes;
    const struct mpp_pairwise_edge *edges;
    int64_t capacity;             /* bytes, >= 0; INT64_MAX: no limit */
};

enum mpp_pairwise_status {
    MPP_PAIRWISE_OPTIMAL,         /* objective - bound <= gap * objective is proven */
    MPP_PAIRWISE_FEASIBLE,        /* a limit was reached: the best so far, with a true bound */
    MPP_PAIRWISE_INFEASIBLE,      /* proven; see conflict */
    MPP_PAIRWISE_NO_ANSWER,       /* a limit was reached before any choice that fits */
};

/* The presolve rules, for tests that leave some out. */
enum mpp_pairwise_rule {
    MPP_PAIRWISE_PROPAGATE = 1,   /* choices without a partner across an edge, or too large alone */
    MPP_PAIRWISE_MERGE = 2,       /* nodes joined by a one-to-one edge become one */
    MPP_PAIRWISE_ELIMINATE = 4,   /* nodes without memory and at most two neighbours */
    MPP_PAIRWISE_DOMINATE = 8,    /* a choice that another one always beats */
    MPP_PAIRWISE_TIMES = 16,      /* times that another one implies */
    MPP_PAIRWISE_REDUCED_COST = 32,
    MPP_PAIRWISE_ALL_RULES = 63,
};

struct mpp_pairwise_size {
    int32_t nodes, edges, times;
    int64_t choices, pairs;
};

struct mpp_pairwise_info {
    enum mpp_pairwise_status status;
    bool interrupted;
    bool by_glpk;                 /* optimal within GLPK's tolerances: too long to be repeated in whole numbers */
    mpp_i128 objective, bound;    /* of the returned choice, exact; no choice costs less */
    double gap;                   /* (objective - bound) / max(objective, 1) */
    double seconds;
    int64_t work;                 /* table entries read */
    int64_t peak_bytes;           /* of the returned choice */
    struct mpp_pairwise_size full, presolved, last; /* as given; after presolve; when solving ended */
    int32_t glpk_rows, glpk_cols; /* 0: GLPK was not needed */
    /* When infeasible: the time at which even the least bytes exceed capacity and by how much, or (conflict_time < 0)
     * a node none of whose choices is left, or (both < 0) the search's proof. */
    int32_t conflict_time, conflict_node;
    int64_t conflict_bytes;
};

struct mpp_pairwise_settings {
    double time_limit_s;          /* 0: none */
    int64_t work_limit;           /* 0: none; the same answer on any machine */
    double gap;                   /* relative; 0: proven optimal */
    int64_t upper;                /* only what costs less is of use; 0: anything is. When nothing does, that is infeasible */
    int64_t lower;                /* nothing costs less, as the caller knows */
    int32_t n_prices;             /* prices of memory known to be good, such as the linear program's duals: */
    const int32_t *price_time;    /* [n_prices] ascending */
    const double *price;          /* [n_prices] cost per byte at that time */
    unsigned rules;               /* of enum mpp_pairwise_rule */
    bool no_glpk, no_descent, no_windows; /* leave out a method */
    bool glance;                  /* with prices: look for a good choice where that is quick, prove nothing, and stop */
    uint64_t seed;
    volatile int *interrupt;      /* becomes non-zero on Ctrl-C; NULL: none */
    /* Called whenever bound or objective improved, and at most every half second otherwise; NULL: none. */
    void (*progress)(void *context, const struct mpp_pairwise_info *info);
    void *context;
    FILE *log;                    /* one line per phase; NULL: silent */
};

struct mpp_pairwise;

struct mpp_pairwise_settings mpp_pairwise_defaults(void);

/* Check PROBLEM (which must outlive the solver) and prepare, in an arena of PARENT's run. MPP_INVALID if it
 * breaks a rule written at the structs: a bug of the caller; *OUT is NULL. */
enum mpp_status mpp_pairwise_setup(const struct mpp_pairwise_problem *problem,
                                   const struct mpp_pairwise_settings *settings, struct mpp_arena *parent,
                                   struct mpp_pairwise **out) MPP_CHECKED;

/* Solve. CHOICE [n_nodes] and *OUT_INFO are the caller's. MPP_OK with info.status optimal or feasible; MPP_INFEASIBLE;
 * MPP_LIMIT without any answer. */
enum mpp_status mpp_pairwise_solve(struct mpp_pairwise *solver, int32_t *out_choice,
                                   struct mpp_pairwise_info *out_info) MPP_CHECKED;

void mpp_pairwise_free(struct mpp_pairwise *solver);

/* The exact objective of CHOICE, and its peak bytes; scratch memory is of PARENT's run. False if it uses something
 * forbidden. */
bool mpp_pairwise_evaluate(const struct mpp_pairwise_problem *problem, const int32_t *choice, struct mpp_arena *parent,
                           mpp_i128 *out_objective, int64_t *out_peak_bytes);

#endif
