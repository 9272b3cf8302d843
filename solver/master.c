/* master.c - the best prices of memory where only memory joins: a linear program over ways to settle each component.
 *
 * Its columns are ways to settle one copy of a part, its rows the copies of each part and the rows of interest (Dantzig and
 * Wolfe, 1960). Prices are its duals; each part, eliminated at them, says what it would rather take, which becomes a column, and
 * together these are a bound in whole numbers, whatever GLPK's tolerances. Rows of memory join as mixtures violate them. */
#include <glpk.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "solver/glpk_env.h"
#include "solver/pack.h"

enum { MOST_STEPS = 120, MOST_ROUNDS = 12, ROWS_AT_ONCE = 3, DEARER = 64, MOST_DEARER = 3, WORK_PER_STEP = 8 };
static const double CLOSE = 1e-3, VIOLATED = 1e-9, USED = 1e-7, OBJECTIVE = 1e6, UNIT = 1e3, EXCESS = 64, MOST_RENT = 0x1p57, MOST_PRICE = 0x1p38;

struct run {
    struct mpp_pw_master *m;
    struct mpp_arena *scratch;
    glp_prob *lp;
    double scale, unit[MPP_PW_LABEL_ROWS], *base; /* base: [parts] what a copy's cost is counted from */
    double excess;                /* cost of a whole capacity too much */
    int64_t *best_price;          /* [rows of the graph] */
    double *usage;                /* [rows of the graph + 1] */
    int index[MPP_PW_LABEL_ROWS + 2];
    double value[MPP_PW_LABEL_ROWS + 2];
    jmp_buf escape;
};

/* ---- columns --------------------------------------------------------------------------------------------- */

/* Cost and bytes of CHOICE [members] of PART. */
static void measure(const struct run *r, struct mpp_pw_column *c)
{
    const struct mpp_pw_items *at = r->m->at;
    const struct mpp_pw_graph *g = at->g;
    const struct mpp_pw_part *part = at->part[c->part];
    c->cost = 0;
    memset(c->bytes, 0, sizeof c->bytes);
    for (int32_t i = 0; i < part->n; i++) {
        const struct mpp_pw_node *v = &g->nodes[part->node[i]];
        c->cost = mpp_pw_add(c->cost, v->cost[c->choice[i]]);
        for (int32_t q = 0; q < at->n_rows; q++)
            c->bytes[q] += mpp_pw_bytes_at(v, at->row[q], c->choice[i]);
        for (int32_t q = 0; q < v->n_edges; q++) {
            const struct mpp_pw_edge *e = &g->edges[v->edges[q]];
            int32_t other = at->local[mpp_pw_other(e, part->node[i])];
            if (!e->gone && other > i)
                c->cost = mpp_pw_add(c->cost, *mpp_pw_entry(g, e, part->node[i], c->choice[i], c->choice[other]));
        }
    }
}

/* A column of PART, unless there is one that chooses the same. False: there is. */
static bool add_column(struct run *r, int32_t part, const int32_t *choice)
{
    struct mpp_pw_master *m = r->m;
    size_t bytes = (size_t)m->at->part[part]->n * sizeof *choice;
    for (int32_t j = 0; j < m->n_columns; j++)
        if (m->column[j].part == part && memcmp(m->column[j].choice, choice, bytes) == 0)
            return false;
    m->column = mpp_arena_grow(m->arena, m->column, &m->column_cap, (size_t)m->n_columns + 1, sizeof *m->column);
    struct mpp_pw_column *c = &m->column[m->n_columns++];
    *c = (struct mpp_pw_column){.part = part, .choice = mpp_arena_memdup(m->arena, choice, bytes)};
    measure(r, c);
    return true;
}

/* What each part takes at the prices. True if some column is new. */
static bool add_cheapest(struct run *r)
{
    struct mpp_pw_items *at = r->m->at;
    struct mpp_arena *scratch = mpp_arena_scratch(r->scratch);
    int32_t *choice = mpp_arena_array(scratch, at->g->n_nodes, int32_t);
    bool any = false;
    for (int32_t i = 0; i < at->n_parts; i++)
        any |= mpp_pw_part_cheapest(at->part[i], at->g, choice) && add_column(r, i, choice);
    mpp_arena_free(scratch);
    return any;
}

/* Sort the components by the rows there are now; columns go on with the parts that their components are in. */
static bool sort(struct run *r)
{
    struct mpp_pw_master *m = r->m;
    int32_t n = m->n_columns, n_parts = m->at->n_parts;
    struct mpp_pw_column *old = mpp_arena_memdup(r->scratch, m->column, (size_t)n * sizeof *old);
    int32_t *was = mpp_arena_memdup(r->scratch, m->at->part_of, m->at->part_of ? (size_t)m->at->n_components * sizeof *was : 0);
    if (!mpp_pw_items_sort(m->at))
        return false;
    m->n_columns = 0;
    for (int32_t i = 0; i < m->at->n_parts && n_parts > 0; i++) {
        int32_t c = m->at->component[m->at->part[i]->node[0]];
        for (int32_t j = 0; j < n; j++)
            if (old[j].part == was[c])
                (void)add_column(r, i, old[j].choice);
    }
    return true;
}

/* ---- the program ------------------------------------------------------------------------------------------- */

static void load_column(struct run *r, int32_t j)
{
    const struct mpp_pw_column *c = &r->m->column[j];
    int32_t n_rows = r->m->at->n_rows;
    int col = glp_add_cols(r->lp, 1), len = 0;
    for (int32_t q = 0; q < n_rows; q++)
        if (c->bytes[q] > 0) {
            r->index[++len] = q + 1;
            r->value[len] = UNIT * (double)c->bytes[q] / r->unit[q];
        }
    r->index[++len] = n_rows + c->part + 1;
    r->value[len] = 1;
    glp_set_col_bnds(r->lp, col, GLP_LO, 0, 0);
    glp_set_obj_coef(r->lp, col, ((double)c->cost - r->base[c->part]) * r->scale);
    glp_set_mat_col(r->lp, col, len, r->index, r->value);
}

static void price_excess(struct run *r)
{
    for (int32_t q = 0; q < r->m->at->n_rows; q++)
        glp_set_obj_coef(r->lp, q + 1, r->excess * OBJECTIVE / UNIT);
}

/* The columns are one of each part at least. */
static void load(struct run *r)
{
    const struct mpp_pw_items *at = r->m->at;
    double least = 0;
    r->base = mpp_arena_array(r->scratch, at->n_parts, double);
    for (int32_t i = 0; i < at->n_parts; i++)
        r->base[i] = HUGE_VAL;
    for (int32_t j = 0; j < r->m->n_columns; j++)
        r->base[r->m->column[j].part] = fmin(r->base[r->m->column[j].part], (double)r->m->column[j].cost);
    for (int32_t i = 0; i < at->n_parts; i++)
        least += r->base[i] * at->part[i]->n_copies;
    r->scale = OBJECTIVE / fmax(fabs((double)r->m->upper - least), fmax(1e-6 * fabs(least), 1));
    r->lp = glp_create_prob();
    glp_set_obj_dir(r->lp, GLP_MIN);
    glp_add_rows(r->lp, at->n_rows + at->n_parts);
    glp_add_cols(r->lp, at->n_rows > 0 ? at->n_rows : 1);
    for (int32_t q = 0; q < at->n_rows; q++) {
        int row = q + 1;
        const int index[2] = {0, row};
        const double value[2] = {0, -1};
        r->unit[q] = fmax((double)at->g->capacity[at->row[q]], 1);
        glp_set_row_bnds(r->lp, row, GLP_UP, 0, UNIT * (double)at->g->capacity[at->row[q]] / r->unit[q]);
        glp_set_col_bnds(r->lp, row, GLP_LO, 0, 0);
        glp_set_mat_col(r->lp, row, 1, index, value);
    }
    if (at->n_rows == 0)
        glp_set_col_bnds(r->lp, 1, GLP_FX, 0, 0);
    for (int32_t i = 0; i < at->n_parts; i++)
        glp_set_row_bnds(r->lp, at->n_rows + i + 1, GLP_FX, at->part[i]->n_copies, at->part[i]->n_copies);
    price_excess(r);
    for (int32_t j = 0; j < r->m->n_columns; j++)
        load_column(r, j);
}

/* The program's cost in the graph's units; HUGE_VAL: GLPK did not solve it. */
static double solve_program(struct run *r)
{
    const struct mpp_pw_items *at = r->m->at;
    glp_smcp set;
    glp_init_smcp(&set);
    set.msg_lev = GLP_MSG_OFF;
    set.it_lim = 20000;
    int before = glp_get_it_cnt(r->lp);
    if (glp_simplex(r->lp, &set) != 0 || glp_get_status(r->lp) != GLP_OPT)
        return HUGE_VAL;
    r->m->work += (int64_t)WORK_PER_STEP * (glp_get_it_cnt(r->lp) - before + 1) * (at->n_rows + at->n_parts);
    double sum = glp_get_obj_val(r->lp) / r->scale;
    for (int32_t i = 0; i < at->n_parts; i++)
        sum += r->base[i] * at->part[i]->n_copies;
    return sum;
}

/* The duals as prices. False: they are beyond counting. */
static bool take_duals(struct run *r)
{
    struct mpp_pw_items *at = r->m->at;
    double rent = 0;
    for (int32_t q = 0; q < at->n_rows; q++) {
        double x = fmax(-glp_get_row_dual(r->lp, q + 1), 0) / r->scale * UNIT / r->unit[q];
        rent += x * (double)at->g->capacity[at->row[q]];
        if (!(rent < MOST_RENT) || !(x < MOST_PRICE))
            return false;
        at->price[at->row[q]] = (int64_t)(x * (double)((int64_t)1 << MPP_PW_PRICE_BITS) + 0.5);
    }
    return true;
}

static bool in_excess(const struct run *r)
{
    for (int32_t q = 0; q < r->m->at->n_rows; q++)
        if (glp_get_col_prim(r->lp, q + 1) > USED)
            return true;
    return false;
}

/* ---- prices --------------------------------------------------------------------------------------------------- */

static void note_bound(struct run *r)
{
    struct mpp_pw_master *m = r->m;
    if (m->at->bound > m->bound || r->best_price == NULL) {
        m->bound = m->at->bound;
        r->best_price = mpp_arena_memdup(m->arena, m->at->price, (size_t)m->at->g->n_rows * sizeof *r->best_price);
    }
}

static void price(struct run *r)
{
    mpp_pw_items_price(r->m->at);
    for (int32_t i = 0; i < r->m->at->n_parts; i++)
        r->m->work += r->m->at->part[i]->entries;
    note_bound(r);
}

/* Prices of the rows there are, until columns bring nothing. False: GLPK failed, or time is up. */
static bool find_prices(struct run *r)
{
    struct mpp_pw_master *m = r->m;
    int dearer = 0;
    load(r);
    for (int step = 0; step < MOST_STEPS && m->bound < m->upper; step++) {
        double cost = solve_program(r);
        if (cost == HUGE_VAL || !take_duals(r) || m->watch->expired(m->watch->context))
            return false;
        m->steps++;
        price(r);
        int32_t n = m->n_columns;
        bool close = cost - (double)m->bound <= CLOSE * fabs((double)m->upper - (double)m->bound);
        if (close || !add_cheapest(r)) {
            if (!in_excess(r) || ++dearer > MOST_DEARER)
                break;
            r->excess *= DEARER;
            price_excess(r);
        }
        for (int32_t j = n; j < m->n_columns; j++)
            load_column(r, j);
    }
    return true;
}

/* Bytes of the mixture at all rows: copies of a part take each of its columns to the same share. */
static void mix(struct run *r)
{
    const struct mpp_pw_items *at = r->m->at;
    const struct mpp_pw_graph *g = at->g;
    memset(r->usage, 0, (size_t)(g->n_rows + 1) * sizeof *r->usage);
    for (int32_t j = 0; j < r->m->n_columns; j++) {
        struct mpp_pw_column *c = &r->m->column[j];
        const struct mpp_pw_part *part = at->part[c->part];
        c->share = glp_get_col_prim(r->lp, (at->n_rows > 0 ? at->n_rows : 1) + j + 1);
        for (int32_t i = 0; i < part->n_copies && c->share > USED; i++)
            for (int32_t q = 0; q < part->n; q++) {
                const struct mpp_pw_node *v = &g->nodes[part->copy[i][q]];
                for (int32_t s = 0; s < v->n_segments; s++) {
                    double bytes = (double)v->segments[s].bytes[c->choice[q]] * c->share / part->n_copies;
                    r->usage[v->segments[s].lo] += bytes;
                    r->usage[v->segments[s].hi] -= bytes;
                }
            }
    }
    for (int32_t t = 1; t < g->n_rows; t++)
        r->usage[t] += r->usage[t - 1];
}

/* The mixture's worst rows become rows of interest. False: there is none, or no room. */
static bool add_rows(struct run *r)
{
    struct mpp_pw_items *at = r->m->at;
    const struct mpp_pw_graph *g = at->g;
    int n = 0;
    for (; n < ROWS_AT_ONCE && at->n_rows < MPP_PW_LABEL_ROWS; n++) {
        int32_t worst = -1;
        double most = 0;
        for (int32_t t = 0; t < g->n_rows; t++) {
            double over = r->usage[t] - (double)g->capacity[t];
            bool known = over <= VIOLATED * (double)g->capacity[t] + 0.5;
            for (int32_t q = 0; q < at->n_rows && !known; q++)
                known = at->row[q] == t;
            if (!known && over > most) {
                worst = t;
                most = over;
            }
        }
        if (worst < 0)
            break;
        at->row[at->n_rows++] = worst;
        for (int32_t t = worst; t >= 0 && r->usage[t] > (double)g->capacity[t]; t--)
            r->usage[t] = 0;      /* the whole hill */
        for (int32_t t = worst + 1; t < g->n_rows && r->usage[t] > (double)g->capacity[t]; t++)
            r->usage[t] = 0;
    }
    return n > 0;
}

static bool run(struct run *r)
{
    struct mpp_pw_master *m = r->m;
    for (int round = 0; round < MOST_ROUNDS; round++) {
        if (!sort(r))
            return false;
        note_bound(r);
        (void)add_cheapest(r);
        if (m->bound >= m->upper)
            return true;
        if (m->at->n_parts == 0 || !find_prices(r))
            return false;
        if (m->bound >= m->upper)
            return true;
        mix(r);
        if (!add_rows(r))
            return true;
        glp_delete_prob(r->lp);
    }
    return true;
}

bool mpp_pw_master_solve(struct mpp_pw_master *m)
{
    struct run *r = mpp_arena_array(m->arena, 1, struct run);
    *r = (struct run){.m = m, .scratch = mpp_arena_scratch(m->arena), .excess = EXCESS};
    r->usage = mpp_arena_array(r->scratch, m->at->g->n_rows + 1, double);
    m->bound = INT64_MIN;
    volatile bool done = false;
    if (mpp_glpk_begin(r->scratch, &r->escape) && setjmp(r->escape) == 0)
        done = run(r);
    if (r->best_price != NULL) {
        memcpy(m->at->price, r->best_price, (size_t)m->at->g->n_rows * sizeof *r->best_price);
        mpp_pw_items_price(m->at);
    }
    mpp_arena_free(r->scratch);
    return done;
}
