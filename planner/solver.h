/* solver.h - the integer program of one stage: choose one strategy per node, at least cost, in memory.
 *
 *     struct mpp_solver_settings set = mpp_solver_defaults();
 *     struct mpp_solver *s;
 *     MPP_TRY(mpp_solver_setup(&problem, &set, &s));
 *     enum mpp_status st = mpp_solver_solve(s, choice, &info);   // info: status, objective, bound, gap
 *     mpp_solver_free(s);
 *
 * The problem. Nodes i choose one of their choices k: cost c_i[k], and for each of the node's usages
 * bytes b[k] during the live interval [first, last]. A value is made by one producer node and read by
 * consumer nodes; the producer's choice makes it in form out[k], consumer c's choice k wants it in form
 * in[c][k]. Each *distinct* wanted form t that differs from the made form s is one copy: it costs
 * convert[s * n_forms + t] once, however many consumers share it, and bytes copy_bytes[t] during
 * [copy_first, copy_last]. At every time the bytes of all live usages and copies stay within capacity.
 *
 *     minimise   sum_i c_i x_i + sum_v sum_{s != t} convert_v[s,t] y_v[s,t]
 *     subject to sum_k x_i[k] = 1,   y_v[s,t] >= f_v,c[s,t],
 *                sum_t f_v,c[s,t] = sum of producer x with out = s,  sum_s f_v,c[s,t] = sum of consumer x with in = t,
 *                for every time: sum bytes x + sum copy_bytes y <= capacity
 *
 * It is the integer program of Alpa (Zheng et al., OSDI 2022, eq. 1-4) with the copies shared.
 * Costs are integers (picoseconds), so that equal input gives equal answers on any machine. */
#ifndef MPP_SOLVER_H
#define MPP_SOLVER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "ir/arena.h"
#include "ir/status.h"

/* A conversion that is impossible. */
#define MPP_SOLVER_FORBIDDEN INT64_MAX
/* Costs at or above this count as forbidden: about two weeks, in picoseconds. */
#define MPP_SOLVER_INF ((int64_t)1 << 60)

struct mpp_solver_usage {
    int32_t first, last;          /* live interval, inclusive */
    const int64_t *bytes;         /* [n_choices], >= 0 */
    int32_t tag;                  /* whose bytes these are, for messages: from 1 on; 0: not said */
};

struct mpp_solver_node {
    const char *name;             /* for dumps and messages: the model's name of the thing */
    int32_t n_choices;            /* >= 1 */
    const char *const *choice_names; /* [n_choices] or NULL */
    const int64_t *cost;          /* [n_choices], >= 0 */
    int32_t n_usages;
    const struct mpp_solver_usage *usages;
};

struct mpp_solver_value {
    const char *name;
    int32_t n_forms;
    int32_t producer;             /* node index */
    const int32_t *out;           /* [producer's n_choices], form index */
    int32_t n_consumers;          /* >= 1 */
    const int32_t *consumers;     /* [n_consumers] node indices, none twice, none the producer */
    const int32_t *const *in;     /* [n_consumers][consumer's n_choices], form index */
    const int64_t *convert;       /* [n_forms * n_forms], >= 0 or MPP_SOLVER_FORBIDDEN; diagonal ignored (0) */
    const int64_t *copy_bytes;    /* [n_forms] or NULL (all zero) */
    int32_t copy_first, copy_last;
};

struct mpp_solver_problem {
    int32_t n_nodes, n_values;
    const struct mpp_solver_node *nodes;
    const struct mpp_solver_value *values;
    int64_t capacity_bytes;       /* INT64_MAX: no limit */
    const struct mpp_arena *arena; /* of the run whose guard the solver is under; NULL: none */
};

struct mpp_solver_settings {
    double gap;                   /* stop when (objective - bound) <= gap * objective; default 0 (proven optimal) */
    int64_t table_limit;          /* largest elimination table, entries; default 1 << 24. More: all together 8 times that,
                                   * which is for when memory is no matter */
    int64_t work_limit;           /* units of counted work (table entries, simplex pivots x rows); 0: default */
    int64_t upper_bound;          /* only what costs less is of use, 0: anything is. When nothing can be within
                                   * the gap below it: MPP_LIMIT, and info.bound says so */
    int64_t enough;               /* stop once prices on memory have raised the bound above that; 0: never */
    bool quick;                   /* stop after the bound without memory and the first test of memory */
    FILE *log;                    /* one line per phase; NULL: silent */
    const char *dump_full;        /* CPLEX LP file to write before solving: the whole problem; NULL: none */
    const char *dump_reduced;     /* the same when all is done: what nothing as cheap as the answer can have is out and
                                   * what is settled folded away, so the optimum stays; takes its own time. NULL: none */
    volatile int *interrupt;      /* becomes non-zero on Ctrl-C; NULL: none */
};

enum mpp_solver_status {
    MPP_SOLVER_OPTIMAL,           /* proven within settings.gap */
    MPP_SOLVER_FEASIBLE,          /* a plan with a known gap: a limit was reached */
    MPP_SOLVER_INFEASIBLE,        /* proven: no choice is within capacity and without forbidden conversions */
    MPP_SOLVER_NO_ANSWER,         /* a limit was reached before any feasible choice */
};

struct mpp_solver_info {
    enum mpp_solver_status status;
    int64_t objective;            /* of the returned choice, re-evaluated exactly */
    int64_t bound;                /* no choice costs less */
    double gap;                   /* (objective - bound) / max(objective, 1) */
    int64_t work;
    int32_t nodes_full, values_full, choices_full;
    int32_t nodes_reduced, values_reduced, choices_reduced; /* what was left for GLPK; 0: nothing was */
    int32_t glpk_rows, glpk_cols; /* 0: GLPK was not needed */
    const char *glpk_status;      /* "not needed", "optimal", "feasible", "limit", ... (static) */
    int64_t peak_bytes;           /* of the returned choice */
    int32_t peak_time;            /* when */
    /* When infeasible for memory: a lower bound on the least peak any choice can reach, and when; mostly close,
     * but the first to pass capacity when an upper bound was set. */
    int64_t least_peak_bytes;
    int32_t least_peak_time;
};

struct mpp_solver;

/* Defaults as documented at the fields. */
struct mpp_solver_settings mpp_solver_defaults(void);

/* Check PROBLEM (which must outlive the solver) and prepare. MPP_INVALID if it breaks a rule written
 * at the structs (a bug of the caller; *OUT is NULL). Free with mpp_solver_free. */
enum mpp_status mpp_solver_setup(const struct mpp_solver_problem *problem, const struct mpp_solver_settings *settings,
                                 struct mpp_solver **out) MPP_CHECKED;

/* Solve. CHOICE [n_nodes] and *OUT_INFO are the caller's. MPP_OK with info.status optimal or feasible;
 * MPP_INFEASIBLE; MPP_LIMIT without any answer; MPP_IO when a dump could not be written. */
enum mpp_status mpp_solver_solve(struct mpp_solver *solver, int32_t *out_choice,
                                 struct mpp_solver_info *out_info) MPP_CHECKED;

void mpp_solver_free(struct mpp_solver *solver);

/* The exact objective of CHOICE (MPP_SOLVER_FORBIDDEN if it uses a forbidden conversion or its cost
 * overflows), and through OUT_PEAK_BYTES / OUT_PEAK_TIME (may be NULL) its peak memory and when. */
int64_t mpp_solver_evaluate(const struct mpp_solver_problem *problem, const int32_t *choice,
                            int64_t *out_peak_bytes, int32_t *out_peak_time);

#endif
