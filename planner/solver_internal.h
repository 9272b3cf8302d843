/* solver_internal.h - what the solver's files share; nobody outside planner/solver*.c and its test includes it.
 *
 *     solver.c         settings, checks, exact evaluation, the driver
 *     solver_reduce.c  time rows, dominated choices, form classes
 *     solver_index.c   byte strings to numbers, so that what is alike is computed once
 *     solver_plan.c    variables and factors, and the order in which they are eliminated
 *     solver_elim.c    the elimination itself, its solution and its min-marginals
 *     solver_price.c   memory prices: bound, fixing
 *     solver_search.c  what costs little more than the bound, exactly
 *     pairwise_form.c  what is alive as a program for the pairwise solver
 *     solver_mip.c     the integer program as rows and columns
 *     solver_lp.c      the integer program as a CPLEX LP file
 *     solver_glpk.c    the only user of GLPK */
#ifndef MPP_SOLVER_INTERNAL_H
#define MPP_SOLVER_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "ir/arena.h"
#include "planner/solver.h"

/* Prices are integers: picoseconds per byte, times 2^MPP_SOLVER_PRICE_BITS. */
#define MPP_SOLVER_PRICE_BITS 24

/* Where a node meets a value: slot -1 is the producer, else the consumer's index. */
struct mpp_solver_incidence {
    int32_t value, slot;
};

/* The rows [lo, hi) during which something is live. */
struct mpp_solver_span {
    int32_t lo, hi;
};

/* For tests: leave out a method, to see that the others give the same answers. */
struct mpp_solver_tuning {
    bool no_dominance, no_elimination, no_prices, no_split, force_split;
};

/* Prices that outlast a round, by time. */
struct mpp_solver_prices {
    int32_t n, *time;
    int64_t *price;
};

struct mpp_solver {
    const struct mpp_solver_problem *p;
    struct mpp_solver_settings set;
    struct mpp_solver_tuning tune;
    struct mpp_arena *arena;
    int32_t *choice_first;                   /* [n_nodes + 1] a node's choices, numbered through */
    uint8_t *alive;                          /* [all choices] not ruled out yet */
    int32_t *inc_first;                      /* [n_nodes + 1] */
    struct mpp_solver_incidence *inc;
    int32_t *usage_first;                    /* [n_nodes + 1] a node's usages, numbered through */
    struct mpp_solver_span *usage_span;      /* [all usages] */
    struct mpp_solver_span *copy_span;       /* [n_values] */
    int32_t n_rows, *row_time;               /* times at which memory could bind, ascending */
    bool free_cost;                          /* eliminate as if costs were 0: the least memory */
    int64_t work;
    struct mpp_solver_prices last;
    int32_t *consumer_first;                 /* [n_values + 1] a value's consumers, numbered through */
    const uint8_t **pair;                    /* [all consumers] bits [made][wanted] of what is not ruled out, NULL: all.
                                              * NULL unless mpp_solver_fix was called */
    int32_t *best;                           /* [n_nodes] the best choice so far */
    bool found, fits;                        /* there is one; something fits, whatever it costs */
    int64_t least_peak;                      /* no choice's peak is lower; 0: not known */
    int32_t least_peak_time;
    int64_t upper, bound;                    /* its cost, or what is to be undercut; no choice costs less */
};

/* Choices of a node that agree in every form; the elimination sees classes only. */
struct mpp_solver_classes {
    int32_t *first;      /* [n_nodes + 1] a node's classes, numbered through */
    int32_t *of_choice;  /* [all choices] class within the node, -1: ruled out */
    int32_t *member;     /* [all classes] some choice of the class */
};

/* A shift is what the copies of a variable of several buckets pay each other: their sum is 0. */
enum mpp_solver_factor_kind { MPP_FACTOR_UNARY, MPP_FACTOR_VALUE, MPP_FACTOR_SPLIT, MPP_FACTOR_LINK, MPP_FACTOR_SHIFT };

/* A term of the objective over a few variables; its table is row-major in the order of SCOPE. */
struct mpp_solver_factor {
    enum mpp_solver_factor_kind kind;
    int32_t index;       /* node, value, value, value, shift */
    int32_t slot;        /* split: the consumer; link: the incidence's slot */
    int32_t n_scope, *scope, *slots; /* slots: where each variable meets the value */
    int64_t size;
    int32_t shape;       /* values alike share one; -1: none */
};

/* A variable: a node's class, or the form in which a node meets a value. */
struct mpp_solver_var {
    int32_t node, value, slot;  /* value -1: the node's class */
    int32_t size;
    const int32_t *forms;       /* [size] of a form variable */
};

/* One elimination: the sum of the inputs, minimised over VAR, is a table over SCOPE. */
struct mpp_solver_bucket {
    int32_t var, n_in, *in;     /* inputs: factors, or n_factors + the bucket that made it */
    int32_t n_scope, *scope;
    int64_t size;               /* of the table over SCOPE */
    int64_t *stride;            /* [n_in][n_scope + 1], the variable's last */
    int32_t pattern;            /* buckets of equal dims and strides share one */
    int32_t parent;             /* the bucket that reads the table, -1: none */
    int32_t *owner;             /* [n_scope] the bucket above that decides the variable */
    int32_t twin;               /* the next bucket of the same variable, -1: none */
    int32_t shift;              /* its shift, -1: none */
    bool is_twin;               /* not the first of its variable */
};

struct mpp_solver_plan {
    struct mpp_arena *arena;
    struct mpp_solver_classes classes;
    int32_t n_vars, n_factors, n_buckets;
    struct mpp_solver_var *vars;
    struct mpp_solver_factor *factors;
    struct mpp_solver_bucket *buckets;
    int32_t *node_var;          /* [n_nodes] -1: the node has one class */
    uint8_t *split;             /* [n_values] copies priced per consumer (a relaxation) */
    int64_t **share;            /* [n_values] [n_consumers][n_forms * n_forms] of a split value */
    int32_t first_shift, n_shifts, max_shifts; /* factors set aside for shifts, used, in all */
    int64_t **shift;            /* [max_shifts] over the bucket's variable, NULL: not used */
    int32_t n_split, n_patterns, n_shapes; /* n_split: values split and variables with twins */
    double entries, largest;    /* of all joins; of the largest one */
    int64_t constant;           /* values whose forms are all settled; INF: impossible */
};

/* The outcome of one elimination under prices. Tables are stored once per content. */
struct mpp_solver_eval {
    struct mpp_arena *arena;
    int64_t **table;                       /* by number in INDEX */
    int32_t *factor_table, *message_table; /* [n_factors], [n_buckets] */
    int64_t *shift;                        /* [n_buckets] what normalising took out of a message */
    int64_t value;                         /* least priced cost; INF: impossible */
    int32_t *assign;                       /* [n_vars] */
    int64_t *unary_price;                  /* prefix sums of prices over rows [n_rows + 1], or NULL */
    struct mpp_solver_index *index, *memo;
    int32_t *memo_table;                   /* per memo: the message's table, and its shift */
    int64_t *memo_shift;
    size_t memo_cap, table_cap;
};

/* solver_index.c: number byte strings in the order of their first appearance. With COPY the index keeps
 * a copy of a new KEY, else the pointer. *OUT_NEW (may be NULL): it was new. */
struct mpp_solver_index;
struct mpp_solver_index *mpp_solver_index_new(struct mpp_arena *arena);
int32_t mpp_solver_index_add(struct mpp_solver_index *ix, const void *key, size_t len, bool copy, bool *out_new);
int32_t mpp_solver_index_count(const struct mpp_solver_index *ix);
const void *mpp_solver_index_key(const struct mpp_solver_index *ix, int32_t id);

/* All choices are alive, all rows are there. */
void mpp_solver_prepare(struct mpp_solver *s);

/* solver_reduce.c */
void mpp_solver_rows_build(struct mpp_solver *s);
int mpp_solver_rows_drop_slack(struct mpp_solver *s);
int32_t mpp_solver_dominance(struct mpp_solver *s, bool with_memory);
struct mpp_solver_classes mpp_solver_classes_build(const struct mpp_solver *s, struct mpp_arena *arena);
int32_t mpp_solver_form(const struct mpp_solver *s, int32_t value, int32_t slot, int32_t choice);
void mpp_solver_row_bytes(const struct mpp_solver *s, const int32_t *choice, int64_t *out_bytes);

/* solver_plan.c: a plan for what is alive. Where tables would pass the limit, values are split, then variables;
 * NULL when that is not allowed. The caller frees it. */
struct mpp_solver_plan *mpp_solver_plan_new(struct mpp_solver *s, double max_entries);
void mpp_solver_plan_free(struct mpp_solver_plan *plan);

/* How many entries the tables of an elimination without memory may have. */
double mpp_solver_room(const struct mpp_solver *s);

/* solver_elim.c */
struct mpp_solver_eval *mpp_solver_eval_new(struct mpp_solver *s, struct mpp_solver_plan *plan, const int64_t *prices);
void mpp_solver_eval_free(struct mpp_solver_eval *ev);
/* The priced optimum as choices. */
void mpp_solver_eval_choices(struct mpp_solver *s, struct mpp_solver_plan *plan, struct mpp_solver_eval *ev,
                             int32_t *out_choice);
/* The priced optimum where every bucket decides for itself: [n_buckets]. */
void mpp_solver_eval_copies(struct mpp_solver_plan *plan, struct mpp_solver_eval *ev, int32_t *out_value);
/* The bytes of the copies per entry of a whole value's table. */
void mpp_solver_copy_bytes(const struct mpp_solver *s, const struct mpp_solver_plan *plan,
                           const struct mpp_solver_factor *f, int64_t *out);
/* Least priced cost over all solutions with a class, minus the optimum: [all classes]. With OUT_OUTSIDE
 * [n_buckets], also per bucket the same for each entry of its message (tables of EV's arena); with
 * OUT_FACTOR [n_factors] likewise for each entry of a value's table. What is more than LIMIT may come out as INF. */
void mpp_solver_eval_marginals(struct mpp_solver *s, struct mpp_solver_plan *plan, struct mpp_solver_eval *ev,
                               int64_t limit, int64_t *out_class, int64_t **out_outside, int64_t **out_factor);
/* Set the bits of the pairs of forms, made and wanted by consumer C, that some entry of F's table below or at LIMIT has:
 * F is a value's factor, TABLE its OUT_FACTOR. */
void mpp_solver_factor_pairs(const struct mpp_solver *s, const struct mpp_solver_plan *plan,
                             const struct mpp_solver_factor *f, const int64_t *table, int64_t limit, int32_t c,
                             uint8_t *out_bits);
/* A choice's cost and the price of its bytes; PRICE_SUM are prefix sums over the rows, or NULL. */
int64_t mpp_solver_priced_cost(const struct mpp_solver *s, const int64_t *price_sum, int32_t node, int32_t choice);

/* Within settings.gap, or proven impossible. */
bool mpp_solver_closed(const struct mpp_solver *s);
bool mpp_solver_stopped(const struct mpp_solver *s);
/* Take CHOICE when it is within capacity and better; returns its cost (FORBIDDEN: not possible). */
int64_t mpp_solver_offer(struct mpp_solver *s, const int32_t *choice, bool *out_fits);

/* solver_price.c: prices on memory rows and shares of copies: a better bound. */
void mpp_solver_price(struct mpp_solver *s);
/* Rule out every choice and pair of forms that nothing as cheap as the best choice can have, as far as prices show it:
 * for a dump, when all else is done. Nothing that costs at most s->upper is lost, save what something no dearer replaces. */
void mpp_solver_fix(struct mpp_solver *s);
/* A lower bound on every choice's peak, each usage at its least, and the row that shows it. */
int64_t mpp_solver_floor(const struct mpp_solver *s, int32_t *out_row);
/* Raise s->least_peak; offers the choices on the way and stops at the first that fits. Rules out choices that
 * cannot fit and returns how many went. */
int32_t mpp_solver_least_peak(struct mpp_solver *s);

/* ceil(sum of price * capacity) in picoseconds, at most INF. */
int64_t mpp_solver_capacity_value(const struct mpp_solver *s, const int64_t *price);

/* solver_search.c: the optimum among what is alive, by the pairwise solver; raises the bound. */
void mpp_solver_search(struct mpp_solver *s, struct mpp_solver_info *info);

/* solver_mip.c: the alive choices as an integer program. */
enum mpp_solver_col_kind { MPP_COL_ONE, MPP_COL_X, MPP_COL_F, MPP_COL_Y };

struct mpp_solver_col {
    enum mpp_solver_col_kind kind;
    int32_t a, b, c, d;         /* x: node, choice; f: value, consumer, from, to; y: value, -, from, to */
    int64_t cost;
};

struct mpp_solver_term {
    int32_t col;
    int64_t coef;
};

struct mpp_solver_row {
    char sense;                 /* 'E', 'G', 'L' */
    bool memory;
    int64_t rhs;
    int32_t first, n;           /* terms */
    int32_t a, b, c;            /* for the name */
};

struct mpp_solver_mip {
    struct mpp_arena *arena;
    int32_t n_cols, n_rows, n_terms;
    struct mpp_solver_col *cols;
    struct mpp_solver_row *rows;
    struct mpp_solver_term *terms;
    size_t col_cap, row_cap, term_cap;
    int64_t constant;           /* the cost of column 0, which is fixed at 1 */
    bool impossible;            /* a node without choices */
};

struct mpp_solver_mip *mpp_solver_mip_new(const struct mpp_solver *s);
void mpp_solver_mip_free(struct mpp_solver_mip *mip);
/* The value of every column under CHOICE. */
void mpp_solver_mip_point(const struct mpp_solver *s, const struct mpp_solver_mip *mip, const int32_t *choice,
                          double *out_x);

/* solver_lp.c: write the alive choices as a CPLEX LP file, TITLE (lines of comment) first. Reduced: with what is
 * settled folded away, which wants mpp_solver_drop_lonely first. */
enum mpp_status mpp_solver_lp_write(const struct mpp_solver *s, bool reduced, const char *path, const char *title);
/* Rule out the choices whose forms go with no alive choice at the other end; returns how many went. */
int32_t mpp_solver_drop_lonely(struct mpp_solver *s);

/* solver_glpk.c: the prices of Dantzig and Wolfe's master program: the cheapest mix of the N solutions, and of one that
 * costs DUMMY and just fits, with each row within CAPACITY. PEAK: the least greatest row instead.
 * COST [n], BYTES [n][n_rows]; OUT_PRICE [n_rows] in cost per byte. Returns the mix's cost. */
double mpp_solver_glpk_master(const struct mpp_solver *s, int32_t n, int32_t n_rows, const double *cost,
                              const double *bytes, double capacity, double dummy, bool peak, double *out_price);

#endif
