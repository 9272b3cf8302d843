/* solver_glpk.c - the master program of memory prices, by GLPK.
 *
 * GLPK works in doubles with fixed tolerances, so the objective is scaled to about 1e6 and memory rows to 1e3. After a failed
 * assertion or allocation inside GLPK (glpk_env.h) the solver goes on without prices. */
#include <glpk.h>
#include <math.h>
#include <setjmp.h>

#include "planner/solver_internal.h"
#include "solver/glpk_env.h"

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
