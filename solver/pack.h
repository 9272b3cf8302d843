/* pack.h - what items.c (components), part.c (labels of one), label.c and rest.c (sums of labels), pack.c (components put together),
 * master.c (prices) and branch.c (the tree) share. */
#ifndef MPP_PACK_H
#define MPP_PACK_H

#include "solver/pairwise_internal.h"

enum { MPP_PW_LABEL_ROWS = 24, MPP_PW_PRICE_BITS = 24 };

/* ---- labels (label.c) --------------------------------------------------------------------------------- */

/* A way to settle some nodes. */
struct mpp_pw_label {
    int64_t cost, over;           /* over: priced cost above the least there is */
    int32_t prev, sub;            /* the labels it was joined from; -1: none */
    int32_t node, choice;         /* what it settles itself: a member of the part; -1: nothing */
};

struct mpp_pw_list {
    int32_t n, *id;               /* by cost */
};

/* Along one row of memory (rest.c): every part's hull, and what those of a sum's rest add up to. */
struct mpp_pw_piece;
struct mpp_pw_rest {
    double *first_bytes, *first_over; /* [parts] where each hull begins */
    int32_t n_pieces, n;
    struct mpp_pw_piece *piece;   /* [n_pieces] of all hulls, by slope */
    double *x, *over;             /* [n] the rest's hull */
    double at_least, price;       /* its bytes where it costs least; of a byte that is left free */
    double loose_least, loose_most; /* bytes of what belongs to no known part, which may take any of them for nothing */
};

struct mpp_pw_labels {
    struct mpp_arena *arena;
    int32_t n_rows;
    const int32_t *row;           /* [n_rows] in the graph */
    int64_t capacity[MPP_PW_LABEL_ROWS], price[MPP_PW_LABEL_ROWS];
    int64_t all_least[MPP_PW_LABEL_ROWS], all_most[MPP_PW_LABEL_ROWS]; /* bytes if each node takes its least, its most */
    int64_t rest_least[MPP_PW_LABEL_ROWS], rest_most[MPP_PW_LABEL_ROWS]; /* at least, at most of what a sum does not hold */
    struct mpp_pw_rest rest[MPP_PW_LABEL_ROWS + 1];
    int32_t n_parts;
    int64_t known_least[MPP_PW_LABEL_ROWS], known_most[MPP_PW_LABEL_ROWS]; /* bytes of all copies of the known parts */
    bool knows_rest;              /* rest is that of the sums to come */
    int64_t slack;                /* priced cost above the bound that is still of use */
    struct mpp_pw_label *label;
    int64_t *bytes;               /* [n][n_rows] */
    size_t n, label_cap, bytes_cap;
    int32_t *cur;                 /* scratch list */
    size_t n_cur, cur_cap;
    int32_t beam;                 /* keep so many labels of a sum, those that promise most; 0: all */
    bool cut;                     /* some of use were not kept */
    int64_t most_work;
    const struct mpp_pw_watch *watch; /* NULL: none */
    bool full;                    /* no room for more: what follows is not complete */
    int64_t work;
};

struct mpp_pw_labels *mpp_pw_labels_new(const struct mpp_pw_graph *g, const int32_t *row, int32_t n_rows,
                                        const int64_t *price, int64_t slack, struct mpp_arena *arena);
/* Add SIGN times the least and most bytes of V at each row. */
void mpp_pw_labels_range(const struct mpp_pw_labels *l, const struct mpp_pw_node *v, int32_t sign, int64_t *least, int64_t *most);

static inline int64_t *mpp_pw_label_bytes(const struct mpp_pw_labels *l, int32_t id)
{
    return l->bytes + (size_t)id * (size_t)l->n_rows;
}

/* A label with nothing in it, appended to the current list; -1: no room. */
int32_t mpp_pw_labels_add(struct mpp_pw_labels *l);

/* With a beam only so many of the current list's labels from FROM on stay, in their order: the most promising. */
void mpp_pw_labels_narrow(struct mpp_pw_labels *l, size_t from, int32_t most);

/* Join the current list's part [FROM, end) with SUB: sums of no use beside the rest are left out, and those over LIMIT. */
void mpp_pw_labels_extend(struct mpp_pw_labels *l, size_t from, const struct mpp_pw_list *sub, int64_t limit);

/* Labels of the current list's part [FROM, end) that others make needless go; what is left is sorted by cost. */
void mpp_pw_labels_filter(struct mpp_pw_labels *l, size_t from);

/* Sums of two lists that are of use beside the rest (rest_least, rest_most). */
struct mpp_pw_list mpp_pw_labels_join(struct mpp_pw_labels *l, const struct mpp_pw_list *a, const struct mpp_pw_list *b);

/* The cheapest sum of a label of A and one of B (empty: A alone) within capacity that costs less than UPPER, as OUT. False:
 * none. */
bool mpp_pw_labels_best(struct mpp_pw_labels *l, const struct mpp_pw_list *a, const struct mpp_pw_list *b, int64_t upper,
                        int32_t out[2]);

/* ---- one component (part.c) ------------------------------------------------------------------------------ */

struct mpp_pw_bucket;

/* Components that are alike. */
struct mpp_pw_part {
    int32_t n, *node;             /* its members, of the first of them */
    int32_t n_copies;
    int32_t **copy;               /* [n_copies][n] members */
    size_t copy_cap;
    int64_t *const *priced;       /* [nodes of the graph][choices] cost and price of bytes */
    int64_t least;                /* its least priced cost */
    int64_t entries;              /* that its tables' sums read */
    struct mpp_pw_list list;      /* its labels */
    struct mpp_pw_bucket *bucket; /* [n] in the order of elimination */
    struct mpp_arena *arena;
};

/* Bytes of choice K while ROW passes. */
int64_t mpp_pw_bytes_at(const struct mpp_pw_node *v, int32_t row, int32_t k);

/* Cost and floor of the price of the bytes of each choice of NODE; the same into OUT. */
int64_t *mpp_pw_priced(const struct mpp_pw_graph *g, int32_t node, const int64_t *price, struct mpp_arena *arena);
void mpp_pw_priced_again(const struct mpp_pw_graph *g, int32_t node, const int64_t *price, struct mpp_arena *arena, int64_t *out);

/* The component of the N nodes NODE, in the order in which they are to be eliminated; LOCAL [nodes of the graph] is a node's
 * place among them. NULL: its tables would be too large. */
struct mpp_pw_part *mpp_pw_part_new(const struct mpp_pw_graph *g, int32_t *node, int32_t n, const int32_t *local,
                                    struct mpp_arena *arena);

/* Its tables and the least that it costs, at PRICED [nodes of the graph], which must outlive it. */
void mpp_pw_part_price(struct mpp_pw_part *part, const struct mpp_pw_graph *g, int64_t *const *priced);

/* What costs that, as CHOICE [n] of its members. False: everything is forbidden. */
bool mpp_pw_part_cheapest(const struct mpp_pw_part *part, const struct mpp_pw_graph *g, int32_t *choice);

/* How much more than the least each choice of its members costs at least, as OUT_OVER [nodes of the graph][choices] of ARENA. */
void mpp_pw_part_marginals(struct mpp_pw_part *part, const struct mpp_pw_graph *g, struct mpp_arena *arena, int64_t **out_over);

/* Its list of labels. False: no room. */
bool mpp_pw_part_labels(struct mpp_pw_part *part, const struct mpp_pw_graph *g, struct mpp_pw_labels *l);

/* What LABEL of the list settles, into CHOICE of the graph's nodes: NODE are the members of one copy. */
void mpp_pw_part_read(const struct mpp_pw_labels *l, int32_t label, const int32_t *node, int32_t *choice);

/* ---- the rest (rest.c) --------------------------------------------------------------------------------------- */

/* Take in the lists of these parts. */
void mpp_pw_rest_know(struct mpp_pw_labels *l, struct mpp_pw_part *const *part, int32_t n_parts);

/* The sums to come leave COPIES [n_parts] of each part. */
void mpp_pw_rest_set(struct mpp_pw_labels *l, const int64_t *copies);

/* The same of all of them, where rest_least and rest_most hold others' bytes too. */
void mpp_pw_rest_loosen(struct mpp_pw_labels *l);

/* At least what that rest costs above its least, beside a sum that holds BYTES [n_rows]; the rows' free bytes are paid for. */
double mpp_pw_rest_least(const struct mpp_pw_labels *l, const int64_t *bytes);

/* ---- all components (items.c) ------------------------------------------------------------------------------------ */

struct mpp_pw_items {
    const struct mpp_pw_graph *g;
    struct mpp_arena *arena, *trial; /* trial: of the parts */
    int64_t *price;               /* [rows of the graph] per byte, times 2^PRICE_BITS */
    int32_t n_rows, *row;         /* the rows of interest, at most MPP_PW_LABEL_ROWS */
    int32_t n_components, *component, *first, *member; /* [nodes]; members by component */
    int32_t *local;               /* [nodes] place among the component's members */
    int32_t n_parts, *part_of;    /* [components] */
    struct mpp_pw_part **part;    /* components that are alike at the rows of interest and in what their bytes cost */
    int64_t **priced;             /* [nodes][choices] */
    int64_t bound;                /* nothing costs less */
};

struct mpp_pw_items *mpp_pw_items_new(const struct mpp_pw_graph *g, struct mpp_arena *arena);
void mpp_pw_items_free(struct mpp_pw_items *p);

/* PRICE [rows of the graph], cost per byte. False: it is beyond counting. */
bool mpp_pw_items_take(struct mpp_pw_items *p, const double *price);

/* The rows of interest become those that have the dearest prices. */
void mpp_pw_items_choose_rows(struct mpp_pw_items *p);

/* Which components are alike, and the bound at the prices. False: one is too large. */
bool mpp_pw_items_sort(struct mpp_pw_items *p);

/* The bound at other prices, of the rows of interest only, without sorting again. */
void mpp_pw_items_price(struct mpp_pw_items *p);

/* ---- the whole (pack.c, master.c, branch.c) ------------------------------------------------------------------------- */

struct mpp_pw_pack {
    const double *price;          /* in: [n_rows] cost per byte */
    int64_t lower, upper;         /* in: nothing costs less, only what costs less is of use; without the constant */
    bool glance;                  /* in: only look for a good choice */
    int64_t most_work, work_limit; /* in: of one search for labels (0: the usual); of all (0: none) */
    const struct mpp_pw_watch *watch;
    int32_t *best;                /* in: [n_nodes]; out: the choice, where found */
    enum mpp_pw_exact_status status; /* optimal: BEST; none: nothing costs less than upper; limit: BEST may still be new */
    bool found;
    int64_t cost, bound, reach;
    int32_t *choice;              /* scratch */
    int32_t components, parts, rows; /* parts: different ones */
    int64_t work;
};

/* A node with few choices that very many others hang on, so that it is worth looking at its choices one by one; -1: none. */
int32_t mpp_pw_pack_hub(const struct mpp_pw_graph *g);

/* What lies near the bound of prices, put together from labels: from small distances to wider ones. */
void mpp_pw_pack_near(struct mpp_pw_items *at, struct mpp_pw_pack *x);

/* A way to settle one copy of a part, and how many copies take it in the linear program. */
struct mpp_pw_column {
    int32_t part, *choice;        /* [members of the part] */
    int64_t cost, bytes[MPP_PW_LABEL_ROWS];
    double share;
};

struct mpp_pw_master {
    struct mpp_pw_items *at;      /* in: prices to begin with, rows of interest; out: those that give the best bound */
    int64_t upper;                /* in: bounds as high as that are high enough */
    const struct mpp_pw_watch *watch;
    struct mpp_arena *arena;      /* of the columns */
    int32_t n_columns;
    size_t column_cap;
    struct mpp_pw_column *column;
    int64_t bound, work;
    int steps;
};

/* The best prices, by columns as they are needed. False: a component is too large, or GLPK failed. */
bool mpp_pw_master_solve(struct mpp_pw_master *m);

/* Everything, exactly where the work allows it. */
void mpp_pw_pack_solve(struct mpp_pw_graph *g, struct mpp_pw_pack *x);

#endif
