/* exact.c - GLPK on what presolve and reduced costs have left.
 *
 * Columns: x[i,k], binary, a choice; y[e,k,l] >= 0, a pair. Rows: one choice per node; per edge and choice of either end,
 * its pairs sum to it. Memory rows come as solutions violate them, first around the linear program, then in the tree.
 *
 * GLPK works in doubles with fixed tolerances: the objective is scaled so that UPPER is about 1e6, memory rows to 1e3, and
 * every answer is evaluated again in integers. A bound is taken a little low (whole_bound) and says so. */
#include <glpk.h>
#include <math.h>
#include <string.h>

#include "solver/glpk_env.h"
#include "solver/pairwise_internal.h"

enum { ROWS_AT_ONCE = 20, APART = 50, MOST_ROUNDS = 200 };
enum { STEPS_PER_TRY = 200, WORK_PER_STEP = 8 };
static const double VIOLATED = 1e-7, VIOLATED_IN_TREE = 1e-6; /* relative; the latter above what GLPK lets pass */

struct exact {
    struct mpp_pw_graph *g;
    struct mpp_pw_exact *x;
    struct mpp_arena *scratch;
    glp_prob *lp;
    double scale;
    int64_t limit;                /* what costs as much by itself is in nothing of use; it would spoil GLPK's numbers */
    int32_t *first_col;           /* [n_nodes] of x[i,0], 1-based */
    bool in_tree;
    bool *has_row;                /* [n_rows] is in the root's program, and so in all; a row of the tree is in one part of it */
    int32_t *glpk_row;            /* [n_rows] where */
    double *usage;                /* [n_rows + 1] */
    int *index;
    double *value;                /* [columns + 1] */
    int32_t *trial;               /* [n_nodes] */
    double tree_bound;
    int steps;                    /* of the simplex method that are in work */
    bool stopped, misjudged;
    jmp_buf escape;
};

/* ---- the program ---------------------------------------------------------------------------------------- */

static int64_t count_cols(struct exact *x)
{
    int64_t n = 0;
    for (int32_t i = 0; i < x->g->n_nodes; i++) {
        x->first_col[i] = (int32_t)n + 1;
        n += x->g->nodes[i].gone ? 0 : x->g->nodes[i].n;
    }
    return n;
}

static void add_choices(struct exact *x, int32_t n_x)
{
    glp_add_cols(x->lp, n_x);
    for (int32_t i = 0; i < x->g->n_nodes; i++) {
        const struct mpp_pw_node *v = &x->g->nodes[i];
        if (v->gone)
            continue;
        int row = glp_add_rows(x->lp, 1);
        glp_set_row_bnds(x->lp, row, GLP_FX, 1, 1);
        for (int32_t k = 0; k < v->n; k++) {
            int col = x->first_col[i] + k;
            glp_set_col_kind(x->lp, col, GLP_BV);
            if (v->cost[k] < x->limit)
                glp_set_obj_coef(x->lp, col, (double)v->cost[k] * x->scale);
            else
                glp_set_col_bnds(x->lp, col, GLP_FX, 0, 0);
            x->index[k + 1] = col;
            x->value[k + 1] = 1;
        }
        glp_set_mat_row(x->lp, row, v->n, x->index, x->value);
    }
}

/* Rows of E for the choices of NODE: minus the choice, plus its pairs; FIRST is the column of the first pair. */
static void add_rows_of_end(struct exact *x, const struct mpp_pw_edge *e, int32_t node, const int32_t *col)
{
    int32_t na = x->g->nodes[e->a].n, nb = x->g->nodes[e->b].n, n = x->g->nodes[node].n;
    int row = glp_add_rows(x->lp, n);
    for (int32_t k = 0; k < n; k++) {
        int len = 1;
        x->index[1] = x->first_col[node] + k;
        x->value[1] = -1;
        for (int32_t l = 0; l < (node == e->a ? nb : na); l++) {
            int32_t at = node == e->a ? k * nb + l : l * nb + k;
            if (col[at] == 0)
                continue;
            x->index[++len] = col[at];
            x->value[len] = 1;
        }
        glp_set_row_bnds(x->lp, row + k, GLP_FX, 0, 0);
        glp_set_mat_row(x->lp, row + k, len, x->index, x->value);
    }
}

static void add_pairs(struct exact *x, const struct mpp_pw_edge *e)
{
    int32_t na = x->g->nodes[e->a].n, nb = x->g->nodes[e->b].n;
    struct mpp_arena *scratch = mpp_arena_scratch(x->scratch);
    int32_t *col = mpp_arena_array(scratch, (int64_t)na * nb, int32_t);
    for (int32_t at = 0; at < na * nb; at++) {
        if (e->cost[at] >= x->limit)
            continue;
        col[at] = glp_add_cols(x->lp, 1);
        glp_set_col_bnds(x->lp, col[at], GLP_LO, 0, 0);
        glp_set_obj_coef(x->lp, col[at], (double)e->cost[at] * x->scale);
    }
    add_rows_of_end(x, e, e->a, col);
    add_rows_of_end(x, e, e->b, col);
    mpp_arena_free(scratch);
}

static void load(struct exact *x)
{
    struct mpp_pairwise_size size = mpp_pw_graph_size(x->g);
    int64_t n_x = count_cols(x), most = size.pairs + n_x + 1;
    x->index = mpp_arena_array(x->scratch, most, int);
    x->value = mpp_arena_array(x->scratch, most, double);
    x->limit = x->x->upper < MPP_PW_BIG ? x->x->upper : MPP_PW_BIG;
    x->scale = 1e6 / (double)(x->x->upper > 1 ? x->x->upper : 1);
    x->lp = glp_create_prob();
    glp_set_obj_dir(x->lp, GLP_MIN);
    add_choices(x, (int32_t)n_x);
    for (int32_t e = 0; e < x->g->n_edges; e++)
        if (!x->g->edges[e].gone)
            add_pairs(x, &x->g->edges[e]);
}

/* ---- memory rows, as they are violated ----------------------------------------------------------------------- */

static void measure(struct exact *x)
{
    int32_t n = x->g->n_rows;
    memset(x->usage, 0, (size_t)(n + 1) * sizeof *x->usage);
    for (int32_t i = 0; i < x->g->n_nodes; i++) {
        const struct mpp_pw_node *v = &x->g->nodes[i];
        for (int32_t s = 0; s < v->n_segments && !v->gone; s++) {
            double bytes = 0;
            for (int32_t k = 0; k < v->n; k++)
                bytes += glp_get_col_prim(x->lp, x->first_col[i] + k) * (double)v->segments[s].bytes[k];
            x->usage[v->segments[s].lo] += bytes;
            x->usage[v->segments[s].hi] -= bytes;
        }
    }
    for (int32_t t = 1; t < n; t++)
        x->usage[t] += x->usage[t - 1];
}

static void add_memory_row(struct exact *x, int32_t t)
{
    double capacity = (double)x->g->capacity[t], unit = 1e3 / (capacity > 1 ? capacity : 1);
    int len = 0;
    for (int32_t i = 0; i < x->g->n_nodes; i++) {
        const struct mpp_pw_node *v = &x->g->nodes[i];
        for (int32_t s = 0; s < v->n_segments && !v->gone; s++)
            for (int32_t k = 0; k < v->n && v->segments[s].lo <= t && t < v->segments[s].hi; k++)
                if (v->segments[s].bytes[k] > 0) {
                    x->index[++len] = x->first_col[i] + k;
                    x->value[len] = (double)v->segments[s].bytes[k] * unit;
                }
    }
    int row = glp_add_rows(x->lp, 1);
    glp_set_row_bnds(x->lp, row, GLP_UP, 0, capacity * unit);
    glp_set_mat_row(x->lp, row, len, x->index, x->value);
    x->has_row[t] = !x->in_tree;
    x->glpk_row[t] = row;
}

/* The worst rows of what the program's solution violates, some distance apart; how many. */
static int add_violated(struct exact *x)
{
    int added = 0;
    measure(x);
    while (added < ROWS_AT_ONCE) {
        int32_t worst = -1;
        double most = x->in_tree ? VIOLATED_IN_TREE : VIOLATED;
        for (int32_t t = 0; t < x->g->n_rows; t++) {
            double capacity = (double)x->g->capacity[t], by = (x->usage[t] - capacity) / (capacity > 1 ? capacity : 1);
            if (!x->has_row[t] && by > most) {
                most = by;
                worst = t;
            }
        }
        if (worst < 0)
            break;
        add_memory_row(x, worst);
        added++;
        for (int32_t t = worst > APART ? worst - APART : 0; t < worst + APART && t < x->g->n_rows; t++)
            x->usage[t] = 0;
    }
    return added;
}

/* ---- branch and cut ---------------------------------------------------------------------------------------------- */

/* Take what GET reads as choices: true if they fit; kept if they are the cheapest so far. */
static bool take(struct exact *x, double (*get)(glp_prob *, int))
{
    int64_t sum = 0, *bytes = mpp_arena_array(x->scratch, x->g->n_rows + 1, int64_t);
    bool fits = true;
    for (int32_t i = 0; i < x->g->n_nodes; i++) {
        const struct mpp_pw_node *v = &x->g->nodes[i];
        if (v->gone)
            continue;
        int32_t best = 0;
        for (int32_t k = 1; k < v->n; k++)
            if (get(x->lp, x->first_col[i] + k) > get(x->lp, x->first_col[i] + best))
                best = k;
        x->trial[i] = best;
        sum = mpp_pw_add(sum, v->cost[best]);
        for (int32_t s = 0; s < v->n_segments; s++) {
            bytes[v->segments[s].lo] += v->segments[s].bytes[best];
            bytes[v->segments[s].hi] -= v->segments[s].bytes[best];
        }
    }
    for (int32_t e = 0; e < x->g->n_edges; e++)
        if (!x->g->edges[e].gone) {
            const struct mpp_pw_edge *edge = &x->g->edges[e];
            sum = mpp_pw_add(sum, *mpp_pw_entry(x->g, edge, edge->a, x->trial[edge->a], x->trial[edge->b]));
        }
    for (int32_t t = 0; t < x->g->n_rows; t++) {
        bytes[t] += t > 0 ? bytes[t - 1] : 0;
        fits &= bytes[t] <= x->g->capacity[t];
    }
    if (!fits || sum >= MPP_PW_BIG)
        return false;
    if (sum < x->x->cost) {
        x->x->cost = sum;
        x->x->found = true;
        memcpy(x->x->choice, x->trial, (size_t)x->g->n_nodes * sizeof *x->trial);
    }
    return true;
}

/* A bound as an integer that is surely no more than the truth within GLPK's tolerances. */
static int64_t whole_bound(const struct exact *x, double objective)
{
    double b = ceil((objective - 1e-6 * (1 + fabs(objective))) / x->scale);
    return b < 0 ? 0 : b > 0x1p58 ? (int64_t)1 << 58 : (int64_t)b;
}

static void count_steps(struct exact *x)
{
    int steps = glp_get_it_cnt(x->lp);
    if (steps < x->steps)
        x->steps = 0;
    x->x->work += (int64_t)(steps - x->steps) * glp_get_num_rows(x->lp) * WORK_PER_STEP;
    x->steps = steps;
}

static bool spent(const struct exact *x)
{
    return x->x->watch->expired(x->x->watch->context) || (x->x->work_limit > 0 && x->x->work >= x->x->work_limit);
}

static void callback(glp_tree *tree, void *info)
{
    struct exact *x = info;
    x->lp = glp_ios_get_prob(tree);
    switch (glp_ios_reason(tree)) {
    case GLP_IROWGEN:
        (void)add_violated(x);
        break;
    case GLP_IBINGO:
        if (!take(x, glp_get_col_prim))
            x->misjudged = true;
        break;
    case GLP_ISELECT: {
        int node = glp_ios_best_node(tree);
        if (node != 0)
            x->tree_bound = glp_ios_node_bound(tree, node);
        count_steps(x);
        if (spent(x) || whole_bound(x, x->tree_bound) >= x->x->upper) {
            x->stopped = true;
            glp_ios_terminate(tree);
        }
        break;
    }
    default:
        break;
    }
}

static int step_simplex(struct exact *x, const glp_smcp *set)
{
    int code = glp_simplex(x->lp, set);
    count_steps(x);
    return code;
}

/* The linear program with every memory row it violates. False: not solved. */
static bool solve_root(struct exact *x)
{
    glp_smcp set;
    glp_init_smcp(&set);
    set.msg_lev = GLP_MSG_OFF;
    set.it_lim = STEPS_PER_TRY;
    glp_scale_prob(x->lp, GLP_SF_AUTO);
    glp_adv_basis(x->lp, 0);
    for (int round = 0; round < MOST_ROUNDS; round++) {
        int code = step_simplex(x, &set);
        while (code == GLP_EITLIM && !spent(x))
            code = step_simplex(x, &set);
        if (code != 0 || glp_get_status(x->lp) != GLP_OPT)
            return false;
        set.meth = GLP_DUALP;
        if (add_violated(x) == 0)
            return true;
    }
    return false;
}

static void read_prices(struct exact *x)
{
    for (int32_t t = 0; t < x->g->n_rows && x->x->price != NULL; t++) {
        double capacity = (double)x->g->capacity[t], unit = 1e3 / (capacity > 1 ? capacity : 1);
        double dual = x->has_row[t] ? -glp_get_row_dual(x->lp, x->glpk_row[t]) : 0;
        x->x->price[t] = dual > 0 ? dual * unit / x->scale : 0;
    }
}

/* The node whose choices the root's solution mixes most; -1: none. */
static int32_t mixed_most(const struct exact *x)
{
    double least = 1 - 1e-6;
    int32_t node = -1;
    for (int32_t i = 0; i < x->g->n_nodes; i++) {
        double most = 0;
        for (int32_t k = 0; k < x->g->nodes[i].n && !x->g->nodes[i].gone; k++)
            most = fmax(most, glp_get_col_prim(x->lp, x->first_col[i] + k));
        if (!x->g->nodes[i].gone && most < least) {
            least = most;
            node = i;
        }
    }
    return node;
}

static void branch(struct exact *x)
{
    load(x);
    x->x->status = MPP_PW_EXACT_LIMIT;
    if (!solve_root(x)) {
        if (glp_get_status(x->lp) == GLP_NOFEAS)
            x->x->status = MPP_PW_EXACT_NONE;
        return;
    }
    x->x->rows = glp_get_num_rows(x->lp);
    x->x->cols = glp_get_num_cols(x->lp);
    x->x->bound = whole_bound(x, glp_get_obj_val(x->lp));
    read_prices(x);
    x->x->mixed = mixed_most(x);
    if (x->x->root_only)
        return;
    glp_iocp set;
    glp_init_iocp(&set);
    set.msg_lev = GLP_MSG_OFF;
    set.cb_func = callback;
    set.cb_info = x;
    set.tol_obj = 1e-9;
    x->tree_bound = glp_get_obj_val(x->lp);
    x->in_tree = true;
    int code = glp_intopt(x->lp, &set), status = glp_mip_status(x->lp);
    int64_t bound = whole_bound(x, x->tree_bound);
    if (code == 0 && !x->stopped && !x->misjudged && (status == GLP_OPT || status == GLP_NOFEAS)) {
        x->x->status = x->x->found ? MPP_PW_EXACT_OPTIMAL : MPP_PW_EXACT_NONE;
        return; /* the root's bound stays: what GLPK calls optimal is so within its tolerances */
    } else if (!x->misjudged && bound >= x->x->upper) {
        x->x->status = MPP_PW_EXACT_NONE;
    }
    x->x->bound = bound > x->x->bound ? bound : x->x->bound;
}

void mpp_pw_exact_solve(struct mpp_pw_graph *g, struct mpp_pw_exact *e)
{
    struct mpp_arena *scratch = mpp_arena_scratch(g->arena);
    struct exact *x = mpp_arena_array(scratch, 1, struct exact);
    *x = (struct exact){.g = g, .x = e, .scratch = scratch};
    x->first_col = mpp_arena_array(scratch, g->n_nodes, int32_t);
    x->trial = mpp_arena_array(scratch, g->n_nodes, int32_t);
    x->has_row = mpp_arena_array(scratch, g->n_rows, bool);
    x->glpk_row = mpp_arena_array(scratch, g->n_rows, int32_t);
    x->usage = mpp_arena_array(scratch, g->n_rows + 1, double);
    e->cost = e->upper;
    e->found = false;
    e->mixed = -1;
    e->status = MPP_PW_EXACT_FAILED;
    if (mpp_glpk_begin(scratch, &x->escape) && setjmp(x->escape) == 0)
        branch(x);
    mpp_arena_free(scratch);
}
