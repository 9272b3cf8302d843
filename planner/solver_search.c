/* solver_search.c - what costs little more than the bound, exactly.
 *
 * The optimum is mostly close to the bound that prices give. So a guess is made: on a copy of the program everything that
 * nothing cheaper than the guess can have is ruled out, by min-marginals (mpp_solver_fix), and what is left goes to the
 * pairwise solver. Either it has the optimum, or nothing costs less than the guess, which is a new bound. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "planner/pairwise_form.h"
#include "planner/solver_internal.h"

/* PROOF_: where the optimum is asked for, and near (within PROOF_NEAR of it). Else a first failure tells enough, and the work is
 * better spent on other programs. */
enum { WIDER = 2, NEAR = 16, GLANCES = 2, MOST_FAILED = 1, PROOF_FAILED = 5 };
static const int64_t PAIRWISE_WORK = 500000000, GLANCE_WORK = 60000000, PROOF_GLANCE_WORK = 150000000;
static const double FIRST_REACH = 5e-6, CLOSE = 0.03, PROOF_NEAR = 0.005;

/* The prices of the last ascent, at the rows that are left. */
static void give_prices(const struct mpp_solver *s, struct mpp_pairwise_settings *set, struct mpp_arena *arena)
{
    int32_t *time = mpp_arena_array(arena, s->n_rows, int32_t), at = 0;
    double *price = mpp_arena_array(arena, s->n_rows, double);
    for (int32_t r = 0; r < s->n_rows; r++) {
        while (at < s->last.n && s->last.time[at] < s->row_time[r])
            at++;
        if (at == s->last.n || s->last.time[at] != s->row_time[r] || s->last.price[at] == 0)
            continue;
        time[set->n_prices] = r;
        price[set->n_prices++] = (double)s->last.price[at] / (double)((int64_t)1 << MPP_SOLVER_PRICE_BITS);
    }
    set->price_time = time;
    set->price = price;
}

static bool any_alive(const struct mpp_solver *s)
{
    for (int32_t i = 0; i < s->p->n_nodes; i++)
        if (!memchr(s->alive + s->choice_first[i], 1, (size_t)s->p->nodes[i].n_choices))
            return false;
    return true;
}

/* What is alive, for a cost below s->upper: the best of it is offered. True if nothing better is left in it. */
static bool solve_alive(struct mpp_solver *s, bool glance, struct mpp_solver_info *info)
{
    if (s->bound >= s->upper || !any_alive(s))
        return true;
    if (mpp_solver_stopped(s))
        return false;
    struct mpp_arena *a = mpp_arena_scratch(s->arena);
    struct mpp_pairwise_form *f = mpp_pairwise_form_new(s, a);
    struct mpp_pairwise_settings set = mpp_pairwise_defaults();
    struct mpp_pairwise_info x = {0};
    struct mpp_pairwise *solver;
    int32_t *answer = mpp_arena_array(a, f->problem.n_nodes, int32_t), *choice = mpp_arena_array(a, s->p->n_nodes, int32_t);
    bool settled = false;
    set.upper = s->upper < MPP_SOLVER_INF ? s->upper : 0;
    set.lower = s->bound;
    set.interrupt = s->set.interrupt;
    set.work_limit = !glance ? PAIRWISE_WORK : s->set.gap > 0 ? GLANCE_WORK : PROOF_GLANCE_WORK;
    set.work_limit = s->set.work_limit - s->work < set.work_limit ? s->set.work_limit - s->work : set.work_limit;
    set.log = s->set.log;
    set.glance = glance;
    give_prices(s, &set, a);
    if (mpp_pairwise_setup(&f->problem, &set, a, &solver) == MPP_OK) {
        enum mpp_status st = mpp_pairwise_solve(solver, answer, &x);
        mpp_pairwise_free(solver);
        settled = st == MPP_INFEASIBLE || x.status == MPP_PAIRWISE_OPTIMAL;
        if (st == MPP_OK) {
            mpp_pairwise_form_choice(f, answer, choice);
            (void)mpp_solver_offer(s, choice, NULL);
        }
        s->work += x.work;
        info->nodes_reduced = x.presolved.nodes;
        info->values_reduced = x.presolved.edges;
        info->choices_reduced = (int32_t)x.presolved.choices;
        info->glpk_rows = x.glpk_rows;
        info->glpk_cols = x.glpk_cols;
        info->glpk_status = x.glpk_cols == 0 ? "not needed" : settled ? "optimal" : "limit";
    }
    mpp_arena_free(a);
    return settled;
}

/* A copy whose choices, rows and prices go their own way. */
static struct mpp_solver *fork_solver(const struct mpp_solver *s)
{
    struct mpp_arena *a = mpp_arena_scratch(s->arena);
    struct mpp_solver *f = mpp_arena_memdup(a, s, sizeof *s);
    size_t n = (size_t)s->p->n_nodes;
    f->arena = a;
    f->alive = mpp_arena_memdup(a, s->alive, (size_t)s->choice_first[n]);
    f->usage_span = mpp_arena_memdup(a, s->usage_span, (size_t)s->usage_first[n] * sizeof *s->usage_span);
    f->copy_span = mpp_arena_memdup(a, s->copy_span, (size_t)s->p->n_values * sizeof *s->copy_span);
    f->row_time = mpp_arena_memdup(a, s->row_time, (size_t)s->n_rows * sizeof *s->row_time);
    f->last.time = mpp_arena_array(a, s->n_rows, int32_t);
    f->last.price = mpp_arena_array(a, s->n_rows, int64_t);
    memcpy(f->last.time, s->last.time, (size_t)s->last.n * sizeof *s->last.time);
    memcpy(f->last.price, s->last.price, (size_t)s->last.n * sizeof *s->last.price);
    f->best = mpp_arena_array(a, s->p->n_nodes, int32_t);
    f->found = false;
    return f;
}

/* Look for what costs less than TARGET; with GLANCE only where that is quick. True if that is settled: the optimum is found, or nothing does. */
static bool search_below(struct mpp_solver *s, int64_t target, bool glance, struct mpp_solver_info *info)
{
    struct mpp_solver *f = fork_solver(s);
    f->upper = target;
    if (!s->tune.no_prices)
        mpp_solver_fix(f);
    bool settled = solve_alive(f, glance, info);
    int64_t below = f->upper; /* the best of the copy's, or TARGET */
    s->work = f->work;
    s->fits |= f->fits;
    if (f->found)
        (void)mpp_solver_offer(s, f->best, NULL);
    if (settled && below > s->bound)
        s->bound = below;
    else if (f->bound > s->bound)
        s->bound = f->bound < below ? f->bound : below;
    if (s->set.log)
        fprintf(s->set.log, "solver: below %" PRId64 ": %s, bound %" PRId64 "\n", target,
                settled ? (f->found ? "optimal" : "nothing") : "limit", s->bound);
    mpp_arena_free(f->arena);
    return settled;
}

/* A good choice first, which is quick: it spares the search what lies beyond. */
static void glance(struct mpp_solver *s, double reach, struct mpp_solver_info *info)
{
    int64_t before = s->upper;
    bool settled = false;
    for (int trial = 0; (trial < GLANCES || (settled && s->set.gap <= 0)) && s->upper == before && !mpp_solver_closed(s) && !mpp_solver_stopped(s); reach *= WIDER * WIDER, trial++) {
        double target = (double)s->bound + reach;
        bool all = target >= (double)s->upper || target >= (double)(MPP_SOLVER_INF / 2);
        settled = search_below(s, all ? s->upper : (int64_t)target, true, info);
        if (all)
            break;
    }
}

static int most_failed(const struct mpp_solver *s)
{
    bool near = (double)(s->upper - s->bound) <= PROOF_NEAR * (double)s->upper;
    return s->set.gap > 0 || !near ? MOST_FAILED : PROOF_FAILED;
}

void mpp_solver_search(struct mpp_solver *s, struct mpp_solver_info *info)
{
    int64_t begun = s->bound;
    double reach = FIRST_REACH * (double)(s->bound > 0 ? s->bound : 1) + 1, most = HUGE_VAL; /* most: what was too much to search */
    glance(s, reach * WIDER, info);
    for (int failed = 0; failed < most_failed(s) && !mpp_solver_closed(s) && !mpp_solver_stopped(s);) {
        double target = most < HUGE_VAL ? ((double)s->bound + fmin(most, (double)s->upper)) / 2 : (double)begun + reach;
        bool all = most == HUGE_VAL ? (double)begun + NEAR * reach >= (double)s->upper || target >= (double)(MPP_SOLVER_INF / 2)
                                    : (double)(s->upper - s->bound) < CLOSE * (double)(s->upper - begun);
        reach *= WIDER;
        if (!all && (int64_t)target <= s->bound && most < HUGE_VAL)
            break; /* nothing is left between the bound and what was too much */
        if (!all && (int64_t)target <= s->bound)
            continue;
        bool settled = search_below(s, all ? s->upper : (int64_t)target, false, info);
        if (all && s->bound >= s->upper && !s->found && s->upper >= MPP_SOLVER_INF)
            s->bound = MPP_SOLVER_INF;
        if (settled && all)
            break;
        if (!settled) {
            failed++;
            most = all ? (double)s->upper : target;
        }
    }
}
