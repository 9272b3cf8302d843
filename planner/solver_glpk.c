/* solver_glpk.c - GLPK's branch and cut.
 *
 * GLPK works in doubles with fixed tolerances, so the objective is scaled to about 1e6 and memory rows
 * to 1e3, the feasibility pump and its preprocessor stay off, and every answer is evaluated again in
 * integers by the caller's rules.
 *
 * After a failed assertion or allocation inside GLPK (glpk_env.h) the solver goes on with what it has. An arena that fails in
 * a callback leaves past GLPK to the run's guard, which ends the environment the same way. */
#include <glpk.h>
#include <math.h>
#include <setjmp.h>
#include <string.h>

#include "planner/solver_internal.h"
#include "solver/glpk_env.h"

struct glpk_run {
    struct mpp_solver *s;
    const struct mpp_solver_mip *mip;
    const double *start;         /* a point to begin with, 1-based, or NULL */
    int64_t work, work_limit;
    int32_t *choice, *trial;     /* best so far; scratch */
    int64_t best, bound;         /* integers, constant included */
    double scale, tree_bound;
    bool stopped, told, misjudged;
    jmp_buf escape;
};

/* ---- branch and cut ------------------------------------------------------------------------ */

/* Take X (1-based) as choices where it is better and, in integers, within capacity. */
static bool take(struct glpk_run *g, double (*get)(glp_prob *, int), glp_prob *lp)
{
    const struct mpp_solver_mip *m = g->mip;
    memset(g->trial, 0, sizeof *g->trial * (size_t)g->s->p->n_nodes);
    for (int32_t c = 0; c < m->n_cols; c++)
        if (m->cols[c].kind == MPP_COL_X && get(lp, c + 1) > 0.5)
            g->trial[m->cols[c].a] = m->cols[c].b;
    int64_t peak, cost = mpp_solver_evaluate(g->s->p, g->trial, &peak, NULL);
    if (cost >= MPP_SOLVER_INF || peak > g->s->p->capacity_bytes)
        return false;
    if (cost < g->best) {
        g->best = cost;
        memcpy(g->choice, g->trial, sizeof *g->trial * (size_t)g->s->p->n_nodes);
    }
    return true;
}

static void callback(glp_tree *tree, void *info)
{
    struct glpk_run *g = info;
    glp_prob *lp = glp_ios_get_prob(tree);
    switch (glp_ios_reason(tree)) {
    case GLP_IHEUR:
        if (!g->told && g->start)
            glp_ios_heur_sol(tree, g->start);
        g->told = true;
        break;
    case GLP_IBINGO:
        if (!take(g, glp_get_col_prim, lp))
            g->misjudged = true;
        break;
    case GLP_ISELECT: {
        int node = glp_ios_best_node(tree);
        if (node)
            g->tree_bound = glp_ios_node_bound(tree, node);
        g->work += (int64_t)g->mip->n_rows * 8;
        g->s->work += (int64_t)g->mip->n_rows * 8;
        if (g->work > g->work_limit || (g->s->set.interrupt && *g->s->set.interrupt)) {
            g->stopped = true;
            glp_ios_terminate(tree);
        }
        break;
    }
    default:
        break;
    }
}

static double row_scale(const struct mpp_solver_mip *m, const struct mpp_solver_row *r)
{
    double most = (double)r->rhs;
    for (int32_t t = 0; t < r->n && r->memory; t++)
        most = fmax(most, fabs((double)m->terms[r->first + t].coef));
    return r->memory && most > 0 ? 1e3 / most : 1;
}

static glp_prob *load(struct glpk_run *g, struct mpp_arena *scratch)
{
    const struct mpp_solver_mip *m = g->mip;
    glp_prob *lp = glp_create_prob();
    int64_t most = 1;
    int32_t widest = 0;
    glp_set_obj_dir(lp, GLP_MIN);
    glp_add_cols(lp, m->n_cols);
    for (int32_t c = 1; c < m->n_cols; c++)
        most = m->cols[c].cost > most ? m->cols[c].cost : most;
    g->scale = 1e6 / (double)most;
    for (int32_t c = 0; c < m->n_cols; c++) {
        bool one = m->cols[c].kind == MPP_COL_ONE;
        glp_set_col_bnds(lp, c + 1, one ? GLP_FX : GLP_DB, one ? 1 : 0, 1);
        glp_set_obj_coef(lp, c + 1, one ? 0 : (double)m->cols[c].cost * g->scale);
        if (m->cols[c].kind == MPP_COL_X)
            glp_set_col_kind(lp, c + 1, GLP_BV);
    }
    for (int32_t r = 0; r < m->n_rows; r++)
        widest = m->rows[r].n > widest ? m->rows[r].n : widest;
    int *ind = mpp_arena_array(scratch, widest + 1, int);
    double *val = mpp_arena_array(scratch, widest + 1, double);
    if (m->n_rows)
        glp_add_rows(lp, m->n_rows);
    for (int32_t r = 0; r < m->n_rows; r++) {
        const struct mpp_solver_row *row = &m->rows[r];
        double scale = row_scale(m, row), rhs = (double)row->rhs * scale;
        glp_set_row_bnds(lp, r + 1, row->sense == 'E' ? GLP_FX : row->sense == 'G' ? GLP_LO : GLP_UP, rhs, rhs);
        for (int32_t t = 0; t < row->n; t++) {
            ind[t + 1] = m->terms[row->first + t].col + 1;
            val[t + 1] = (double)m->terms[row->first + t].coef * scale;
        }
        glp_set_mat_row(lp, r + 1, row->n, ind, val);
    }
    return lp;
}

/* The tree's bound as an integer that is surely no more than the truth. */
static int64_t whole_bound(const struct glpk_run *g, double x)
{
    double b = floor((x - 1e-6 * (1 + fabs(x))) / g->scale);
    return b < 0 ? g->mip->constant : g->mip->constant + (int64_t)b;
}

static const char *branch(struct glpk_run *g, struct mpp_arena *scratch)
{
    glp_prob *lp = load(g, scratch);
    glp_smcp sm;
    glp_init_smcp(&sm);
    sm.msg_lev = GLP_MSG_OFF;
    sm.meth = GLP_DUALP;
    sm.it_lim = (int)(g->work_limit / (g->mip->n_rows + 1) < 2000000 ? g->work_limit / (g->mip->n_rows + 1) : 2000000);
    glp_scale_prob(lp, GLP_SF_EQ);
    glp_adv_basis(lp, 0);
    int rc = glp_simplex(lp, &sm);
    g->work += (int64_t)glp_get_it_cnt(lp) * g->mip->n_rows;
    g->s->work += (int64_t)glp_get_it_cnt(lp) * g->mip->n_rows;
    if (rc != 0)
        return "limit";
    if (glp_get_status(lp) == GLP_NOFEAS) {
        g->bound = MPP_SOLVER_INF;
        return "infeasible";
    }
    if (glp_get_status(lp) != GLP_OPT)
        return "failed";
    g->bound = whole_bound(g, glp_get_obj_val(lp));
    glp_iocp io;
    glp_init_iocp(&io);
    io.msg_lev = GLP_MSG_OFF;
    io.cb_func = callback;
    io.cb_info = g;
    io.mir_cuts = GLP_ON;
    io.cov_cuts = GLP_ON;
    io.tol_obj = 1e-9;
    g->tree_bound = glp_get_obj_val(lp);
    rc = glp_intopt(lp, &io);
    int status = glp_mip_status(lp);
    if (rc == 0 && !g->stopped && !g->misjudged && (status == GLP_OPT || status == GLP_NOFEAS)) {
        if (status == GLP_OPT && !take(g, glp_mip_col_val, lp))
            return "limit";
        g->bound = g->best;
        return status == GLP_OPT || g->best < MPP_SOLVER_INF ? "optimal" : "infeasible";
    }
    if (rc == 0 || rc == GLP_ESTOP) {
        int64_t b = whole_bound(g, g->tree_bound);
        if (g->stopped && !g->misjudged)
            g->bound = b > g->bound ? b : g->bound;
    }
    return g->best < MPP_SOLVER_INF ? "feasible" : "limit";
}

const char *mpp_solver_glpk_run(struct mpp_solver *s, const struct mpp_solver_mip *mip, int64_t work_limit,
                                int32_t *choice, int64_t *upper, int64_t *out_bound)
{
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    struct glpk_run *g = mpp_arena_array(scratch, 1, struct glpk_run);
    const char *volatile word = "failed";
    *g = (struct glpk_run){.s = s, .mip = mip, .work_limit = work_limit, .choice = choice, .best = *upper};
    g->trial = mpp_arena_array(scratch, s->p->n_nodes, int32_t);
    g->bound = mip->impossible ? MPP_SOLVER_INF : mip->constant;
    if (s->found) {
        double *x = mpp_arena_array(scratch, mip->n_cols + 1, double);
        mpp_solver_mip_point(s, mip, choice, x + 1);
        g->start = x;
    }
    if (mip->impossible) {
        word = "infeasible";
    } else if (mpp_glpk_begin(scratch, &g->escape)) {
        if (setjmp(g->escape) == 0)
            word = branch(g, scratch);
    }
    s->found |= g->best < *upper;
    *upper = g->best;
    *out_bound = g->bound;
    mpp_arena_free(scratch);
    return word;
}

/* ---- the master program of memory prices -------------------------------------------------- */

static double master_solve(int32_t n, int32_t n_rows, const double *cost, const double *bytes, double capacity,
                           double dummy, bool peak, double *out_price, struct mpp_arena *scratch)
{
    glp_prob *lp = glp_create_prob();
    double low = cost[0], high = 1, unit = capacity > 1 ? capacity : 1, base;
    int *ind = mpp_arena_array(scratch, n_rows + 2, int);
    double *val = mpp_arena_array(scratch, n_rows + 2, double);
    for (int32_t j = 0; j < n; j++)
        low = fmin(low, cost[j]);
    for (int32_t j = 0; j < n; j++)
        high = fmax(high, cost[j] - low);
    double scale = 1e6 / fmax(high, dummy - low);
    base = peak ? 0 : low;
    glp_set_obj_dir(lp, GLP_MIN);
    glp_add_rows(lp, n_rows + 1);
    glp_set_row_bnds(lp, 1, GLP_FX, 1, 1);
    for (int32_t r = 0; r < n_rows; r++)
        glp_set_row_bnds(lp, r + 2, GLP_UP, 0, peak ? 0 : 1e3 * capacity / unit);
    glp_add_cols(lp, n + 1);
    for (int32_t j = 0; j <= n; j++) {
        int len = 0;
        bool extra = j == n;
        glp_set_col_bnds(lp, j + 1, GLP_LO, 0, 0);
        glp_set_obj_coef(lp, j + 1, peak ? (extra ? 1 : 0) : ((extra ? dummy : cost[j]) - low) * scale);
        if (!(peak && extra)) {
            ind[++len] = 1;
            val[len] = 1;
        }
        for (int32_t r = 0; r < n_rows; r++) {
            double x = 1e3 * (extra ? capacity : bytes[(int64_t)j * n_rows + r]) / unit;
            x = extra && peak ? -1 : x;
            if (x != 0) {
                ind[++len] = r + 2;
                val[len] = x;
            }
        }
        glp_set_mat_col(lp, j + 1, len, ind, val);
    }
    glp_smcp sm;
    glp_init_smcp(&sm);
    sm.msg_lev = GLP_MSG_OFF;
    sm.it_lim = 20000;
    glp_simplex(lp, &sm);
    for (int32_t r = 0; r < n_rows; r++) {
        double d = -glp_get_row_dual(lp, r + 2);
        out_price[r] = d > 0 ? (peak ? d : d / scale * 1e3 / unit) : 0;
    }
    double obj = glp_get_obj_val(lp);
    glp_delete_prob(lp);
    return peak ? obj * unit / 1e3 : base + obj / scale;
}

double mpp_solver_glpk_master(const struct mpp_solver *s, int32_t n, int32_t n_rows, const double *cost,
                              const double *bytes, double capacity, double dummy, bool peak, double *out_price)
{
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    jmp_buf *escape = mpp_arena_alloc(scratch, sizeof *escape);
    volatile double obj = 0;
    volatile bool done = false;
    if (mpp_glpk_begin(scratch, escape) && setjmp(*escape) == 0) {
        obj = master_solve(n, n_rows, cost, bytes, capacity, dummy, peak, out_price, scratch);
        done = true;
    }
    for (int32_t r = 0; r < n_rows && !done; r++)
        out_price[r] = 0;         /* without prices the caller's bound and choices stay right, if weaker */
    mpp_arena_free(scratch);
    return done ? obj : 0;
}
