/* stages_solve.c - the integer programs of stages: without a memory limit, and within it. */
#include "planner/stages_internal.h"

static const double STAGE_GAP = 0.003;
/* A layer of the free optimum may take a little more than one of another choice. */
static const double SLOPE = 0.99;
static const int64_t STAGE_WORK = 10000000;

/* ---- programs ---- */

/* The least cost of PROBLEM whatever memory it takes; -1: there is no choice at all. */
int64_t mpp_stages_solve_free(struct mpp_stages *s, struct mpp_solver_problem problem, int32_t *choice, struct mpp_solver_info *info)
{
    struct mpp_solver_settings set = mpp_solver_defaults();
    struct mpp_solver *solver;
    problem.capacity_bytes = INT64_MAX;
    set.quick = true;
    set.interrupt = s->interrupt;
    s->solved++;
    if (mpp_solver_setup(&problem, &set, &solver) != MPP_OK)
        return -1;
    enum mpp_status st = mpp_solver_solve(solver, choice, info);
    mpp_solver_free(solver);
    return st == MPP_OK ? info->objective : -1;
}

enum mpp_status mpp_stages_solve_within(struct mpp_stages *s, const struct mpp_solver_problem *problem, int64_t upper,
                                        int32_t *choice, struct mpp_solver_info *info)
{
    struct mpp_solver_settings set = mpp_solver_defaults();
    struct mpp_solver *solver;
    set.gap = STAGE_GAP;
    set.work_limit = STAGE_WORK;
    set.upper_bound = upper == INT64_MAX ? 0 : upper;
    set.interrupt = s->interrupt;
    *info = (struct mpp_solver_info){.bound = 0};
    if (s->budget == 0)
        return MPP_LIMIT;
    s->budget--;
    s->solved++;
    s->within++;
    enum mpp_status st = mpp_solver_setup(problem, &set, &solver);
    if (st == MPP_OK)
        st = mpp_solver_solve(solver, choice, info);
    mpp_solver_free(solver);
    return st;
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
    f->known = true;              /* unless it was stopped */
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
            c->layer_ps = (int64_t)(SLOPE * (f->t_slope * (double)s->schedule.micro_batches + f->once_slope));
        }
    }
    f->known = !mpp_stages_interrupted(s);
    mpp_arena_free(scratch);
    return f;
}

int64_t mpp_stages_at_layers(double base, double slope, int64_t layers)
{
    double x = base + slope * (double)layers;
    return x < 0 ? 0 : (int64_t)x;
}

/* What is known of X: more in flight and more layers take more memory, and each layer more takes what it takes freely. */
static int64_t proven(const struct mpp_stages_case *x)
{
    int64_t least = 0;
    for (int i = 0; i < x->config->n_proven; i++) {
        int64_t more = x->layers - x->config->proven[i].layers;
        if (more < 0 || x->config->proven[i].in_flight > x->in_flight)
            continue;
        int64_t ps, known = x->config->proven[i].least;
        if (__builtin_add_overflow(known, more * x->config->layer_ps, &ps)) /* nothing fitted, at whatever cost */
            ps = INT64_MAX;
        least = ps > least ? ps : least;
    }
    return least;
}

static void prove(const struct mpp_stages *s, struct mpp_stages_case *x, int64_t least)
{
    struct mpp_stages_config *c = x->config;
    x->least = least > x->least ? least : x->least;
    if (s->shrunk)
        return;
    int at = c->n_proven < MPP_STAGES_PROVEN ? c->n_proven++ : MPP_STAGES_PROVEN - 1;
    c->proven[at].layers = x->layers;
    c->proven[at].in_flight = x->in_flight;
    c->proven[at].least = least;
}

/* X may have options that are not known. */
static void give_up(struct mpp_stages *s, const struct mpp_stages_case *x)
{
    double step = (double)x->least * s->share + s->others_ps;
    int64_t ps = step > 9e18 ? INT64_MAX : (int64_t)step;
    s->gave_up = true;
    s->unproven_ps = ps < s->unproven_ps ? ps : s->unproven_ps;
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
    x->fold.solver.capacity_bytes = s->capacity;
    if (mpp_stages_too_large(s, x, arena))
        return;
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
    enum mpp_status st = mpp_stages_solve_within(s, &x->fold.solver, upper, choice, &info);
    prove(s, x, st == MPP_INFEASIBLE ? upper : info.bound);
    if (st == MPP_INFEASIBLE)
        mpp_stages_overflows(s, x, info.least_peak_bytes);
    if ((double)((st == MPP_OK ? info.objective : upper) - x->least) > STAGE_GAP * (double)upper)
        give_up(s, x);
    if (st != MPP_OK)
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

void mpp_stages_close(struct mpp_solver_info *info)
{
    info->bound = info->bound < info->objective ? info->bound : info->objective;
    double over = (double)(info->objective - info->bound);
    info->gap = over / (info->objective > 1 ? (double)info->objective : 1);
    info->status = info->gap <= STAGE_GAP ? MPP_SOLVER_OPTIMAL : MPP_SOLVER_FEASIBLE;
}
