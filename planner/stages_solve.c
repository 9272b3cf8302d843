/* stages_solve.c - the integer programs of stages: without a memory limit, and within it. */
#include "planner/stages_internal.h"

static const double STAGE_GAP = 0.001;
static const int64_t STAGE_WORK = 10000000;

/* ---- programs ---- */

/* At some time every choice of F takes more than this. */
static int64_t least_peak(struct mpp_arena *arena, const struct mpp_fold *f)
{
    int n = f->p->graph->n_groups;
    int64_t *change = mpp_arena_array(arena, n + 1, int64_t), live = 0, most = 0;
    for (int i = 0; i < f->solver.n_nodes; i++) {
        const struct mpp_solver_node *x = &f->solver.nodes[i];
        for (int u = 0; u < x->n_usages; u++) {
            int64_t least = INT64_MAX;
            for (int k = 0; k < x->n_choices; k++)
                least = x->usages[u].bytes[k] < least ? x->usages[u].bytes[k] : least;
            change[x->usages[u].first] += least;
            change[x->usages[u].last + 1] -= least;
        }
    }
    for (int i = 0; i < n; i++) {
        live += change[i];
        most = live > most ? live : most;
    }
    return most;
}

/* The least cost of PROBLEM whatever memory it takes; -1: there is no choice at all. */
int64_t mpp_stages_solve_free(struct mpp_stages *s, struct mpp_solver_problem problem, int32_t *choice, struct mpp_solver_info *info)
{
    struct mpp_solver_settings set = mpp_solver_defaults();
    struct mpp_solver *solver;
    problem.capacity_bytes = INT64_MAX;
    set.quick = true;
    s->solved++;
    if (mpp_solver_setup(&problem, &set, &solver) != MPP_OK)
        return -1;
    enum mpp_status st = mpp_solver_solve(solver, choice, info);
    mpp_solver_free(solver);
    return st == MPP_OK ? info->objective : -1;
}

/* Within memory; nothing of OBJECTIVE upper or more is wanted. */
bool mpp_stages_solve_within(struct mpp_stages *s, const struct mpp_solver_problem *problem, int64_t upper, int32_t *choice,
                         struct mpp_solver_info *info)
{
    struct mpp_solver_settings set = mpp_solver_defaults();
    struct mpp_solver *solver;
    set.gap = STAGE_GAP;
    set.work_limit = STAGE_WORK;
    set.upper_bound = upper == INT64_MAX ? 0 : upper;
    set.interrupt = s->options->interrupt;
    if (s->budget == 0) {
        s->gave_up = true;
        return false;
    }
    s->budget--;
    s->solved++;
    s->within++;
    if (mpp_solver_setup(problem, &set, &solver) != MPP_OK)
        return false;
    enum mpp_status st = mpp_solver_solve(solver, choice, info);
    mpp_solver_free(solver);
    if (st == MPP_INFEASIBLE && info->least_peak_bytes > s->capacity
        && (s->least == 0 || info->least_peak_bytes < s->least))
        s->least = info->least_peak_bytes;
    return st == MPP_OK;
}

/* The number of folded layers at which a config is looked at: the share of its devices. */
int64_t mpp_stages_typical_layers(const struct mpp_stages *s, const struct mpp_fold_run *run, int range)
{
    int64_t share = (int64_t)s->layering->n_layers * s->range[range].n / s->cluster->n_devices + 2 - s->folded;
    return run->layers == 0 ? 0 : share < 2 ? 2 : share;
}

const struct mpp_stages_freely *mpp_stages_solve_freely(struct mpp_stages *s, struct mpp_stages_config *c,
                                                        const struct mpp_fold_run *run, int range)
{
    struct mpp_stages_freely *f = &c->freely;
    if (f->known)
        return f;
    f->known = true;
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    struct mpp_fold fold, more;
    struct mpp_solver_info info;
    struct mpp_fold_run r = *run;
    r.layers = mpp_stages_typical_layers(s, run, range);
    if (!mpp_fold_make(scratch, c->problem, &r, 1, &fold)) {
        s->unlike = true;
    } else {
        int64_t t, once, t1 = 0, once1 = 0;
        f->choice = mpp_arena_array(s->round, fold.solver.n_nodes, int32_t);
        f->ok = mpp_stages_solve_free(s, fold.solver, f->choice, &info) >= 0;
        mpp_fold_times(&fold, f->choice, s->schedule.micro_batches, &t, &once);
        f->t_base = (double)t;
        f->once_base = (double)once;
        if (f->ok && r.layers > 0) {
            r.layers++;
            if (mpp_fold_make(scratch, c->problem, &r, 1, &more))
                mpp_fold_times(&more, f->choice, s->schedule.micro_batches, &t1, &once1);
            f->t_slope = (double)(t1 - t);
            f->once_slope = (double)(once1 - once);
            f->t_base -= f->t_slope * (double)(r.layers - 1);
            f->once_base -= f->once_slope * (double)(r.layers - 1);
        }
    }
    mpp_arena_free(scratch);
    return f;
}

int64_t mpp_stages_at_layers(double base, double slope, int64_t layers)
{
    double x = base + slope * (double)layers;
    return x < 0 ? 0 : (int64_t)x;
}

/* What is known of X: more in flight take more memory. */
static int64_t proven(const struct mpp_stages_case *x)
{
    int64_t least = 0;
    for (int i = 0; i < x->config->n_proven; i++)
        if (x->config->proven[i].layers == x->layers && x->config->proven[i].in_flight <= x->in_flight
            && x->config->proven[i].least > least)
            least = x->config->proven[i].least;
    return least;
}

static void prove(struct mpp_stages_case *x, int64_t least)
{
    struct mpp_stages_config *c = x->config;
    int at = c->n_proven < MPP_STAGES_PROVEN ? c->n_proven++ : MPP_STAGES_PROVEN - 1;
    c->proven[at].layers = x->layers;
    c->proven[at].in_flight = x->in_flight;
    c->proven[at].least = least;
}

static bool fits(const struct mpp_stages *s, const struct mpp_stages_case *x, const int32_t *choice, int64_t *out_objective)
{
    int64_t peak;
    int32_t when;
    *out_objective = mpp_solver_evaluate(&x->fold.solver, choice, &peak, &when);
    return peak <= s->capacity;
}

void mpp_stages_look(struct mpp_stages *s, struct mpp_stages_case *x, const struct mpp_fold_run *run, int range,
                     struct mpp_arena *arena)
{
    if (!mpp_fold_make(arena, x->config->problem, run, x->in_flight, &x->fold)) {
        s->unlike = true;
        return;
    }
    int64_t peak = least_peak(arena, &x->fold);
    if (peak > s->capacity) {
        s->least = s->least == 0 || peak < s->least ? peak : s->least;
        return;
    }
    const struct mpp_stages_freely *f = mpp_stages_solve_freely(s, x->config, run, range);
    if (!f->ok)
        return;
    x->ok = true;
    x->free_fits = fits(s, x, f->choice, &x->least);
    int64_t known = x->free_fits ? 0 : proven(x);
    x->least = known > x->least ? known : x->least;
}

const int32_t *mpp_stages_from_pool(const struct mpp_stages *s, const struct mpp_stages_case *x, int64_t *out_objective)
{
    const int32_t *best = NULL;
    for (int i = 0; i < x->config->n_pool; i++) {
        int64_t objective;
        if (fits(s, x, x->config->pool[i], &objective) && (!best || objective < *out_objective)) {
            best = x->config->pool[i];
            *out_objective = objective;
        }
    }
    return best;
}

const int32_t *mpp_stages_solve_tight(struct mpp_stages *s, struct mpp_stages_case *x, int64_t upper)
{
    struct mpp_stages_config *c = x->config;
    struct mpp_solver_info info;
    int64_t objective = INT64_MAX;
    const int32_t *known = mpp_stages_from_pool(s, x, &objective);
    if (known && (double)(objective - x->least) <= STAGE_GAP * (double)objective)
        return known;
    upper = objective < upper ? objective : upper;
    int32_t *choice = mpp_arena_array(s->round, x->fold.solver.n_nodes, int32_t);
    bool found = mpp_stages_solve_within(s, &x->fold.solver, upper, choice, &info);
    if (!found && s->gave_up)
        return known;
    prove(x, found ? info.bound : upper);
    if (!found)
        return known;
    c->pool[c->n_pool < MPP_STAGES_POOL ? c->n_pool++ : MPP_STAGES_POOL - 1] = choice;
    return choice;
}

struct mpp_stages_answer mpp_stages_answer_of(const struct mpp_stages *s, const struct mpp_stages_case *x, const int32_t *choice)
{
    struct mpp_stages_answer a = {.choice = choice, .n_nodes = x->fold.solver.n_nodes};
    a.objective = mpp_solver_evaluate(&x->fold.solver, choice, NULL, NULL);
    mpp_fold_times(&x->fold, choice, s->schedule.micro_batches, &a.t_ps, &a.once_ps);
    a.time = mpp_fold_stage_time(&x->fold, choice, s->schedule.micro_batches);
    return a;
}
