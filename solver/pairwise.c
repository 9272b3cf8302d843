/* pairwise.c - settings, and the order in which the methods are tried. */
#include "solver/pairwise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "solver/pack.h"
#include "solver/pairwise_internal.h"
#include "solver/restart.h"

/* Pairs up to which the linear program is worth its time: for prices at once, for branch and cut with a long breath. */
static const int64_t LP_PAIRS = 20000, EXACT_PAIRS = 60000, MANY_PAIRS = 100000;
static const int64_t SEARCH_WORK = INT64_C(2000000000), RESTART_WORK = INT64_C(5000000000), WINDOW_WORK = 200000000, DESCENT_WORK = 200, START_WORK = 500000000, EXACT_WORK = INT64_C(10000000000), PROBE_WORK = INT64_C(3000000000);
enum { MOST_DENSE = 400, WINDOW_CHOICES = 16, FIRST_WINDOW_PAIRS = 3000, LEAST_WINDOW_PAIRS = 300, MOST_WINDOW_PAIRS = 15000 };
enum { ASCENT_STEPS = 300, ASCENT_STEPS_MANY = 100, PATIENCE = 10, SETTLING_SWEEPS = 20, WARMING_SWEEPS = 10, MOST_STAGES = 50, STARTS = 6, START_STEPS = 25, WIDER = 4,
       WORTH_A_STAGE = 50, EXACT_NODES = 400, MOST_HUBS = 3, LEAST_SHARE = 8 };
static const double REPORT_S = 0.5, FIRST_STEP = 1.0, AGAIN_STEP = 0.3, SHORTER = 0.7, LEAST_STEP = 1e-4,
                    FIRST_PROBE = 1e-4;

struct mpp_pairwise {
    struct mpp_arena *arena;
    const struct mpp_pairwise_problem *p;
    struct mpp_pairwise_settings set;
    struct timespec begun;
    struct mpp_pw_watch watch;
    struct mpp_pw_random random;
    struct mpp_pw_costs costs;
    struct mpp_pw_graph *g;
    bool found, exhausted;        /* a choice is known; what the graph leaves holds nothing below limit_of() */
    bool settled;                 /* the graph has no nodes left, so that nothing is there to search */
    bool given_up;                /* what the caller's prices leave is too much, and too large for other methods */
    bool probing;                 /* the graph is cut down to what costs less than cutoff */
    mpp_i128 cutoff;
    int64_t work_end;             /* of a probe; 0: none */
    int32_t *best, *trial;        /* [n_nodes] */
    bool has_local;               /* local [n_nodes] is the cheapest choice that the present graph has given */
    int32_t *local;
    mpp_i128 local_cost;
    int32_t n_times;
    double *price_at;             /* [n_times] cost per byte, of the best bound so far, by rows as they were at the start */
    mpp_i128 objective, bound;
    int64_t work;                 /* of relaxations that are freed */
    struct mpp_pw_relax *relax;
    struct mpp_pw_blocks *blocks; /* of relax; NULL: none yet */
    struct mpp_pairwise_info info;
    double reported_s;
};

struct mpp_pairwise_settings mpp_pairwise_defaults(void)
{
    return (struct mpp_pairwise_settings){.rules = MPP_PAIRWISE_ALL_RULES, .seed = 1};
}

static bool expired(void *context)
{
    struct mpp_pairwise *s = context;
    struct timespec now;
    int64_t work = s->work + s->g->work + (s->relax != NULL ? s->relax->work : 0);
    clock_gettime(CLOCK_MONOTONIC, &now);
    s->info.seconds = (double)(now.tv_sec - s->begun.tv_sec) + 1e-9 * (double)(now.tv_nsec - s->begun.tv_nsec);
    s->info.work = work;
    s->info.interrupted |= s->set.interrupt != NULL && *s->set.interrupt != 0;
    return s->info.interrupted || (s->set.time_limit_s > 0 && s->info.seconds >= s->set.time_limit_s) ||
           (s->set.work_limit > 0 && work >= s->set.work_limit) || (s->work_end > 0 && work >= s->work_end);
}

enum mpp_status mpp_pairwise_setup(const struct mpp_pairwise_problem *problem,
                                   const struct mpp_pairwise_settings *settings, struct mpp_arena *parent,
                                   struct mpp_pairwise **out)
{
    *out = NULL;
    if (!mpp_pw_problem_valid(problem))
        return MPP_INVALID;
    struct mpp_arena *arena = mpp_arena_scratch(parent);
    struct mpp_pairwise *s = mpp_arena_array(arena, 1, struct mpp_pairwise);
    *s = (struct mpp_pairwise){.arena = arena, .p = problem, .set = *settings};
    s->costs = (struct mpp_pw_costs){mpp_pw_problem_shift(problem, MPP_PAIRWISE_FORBIDDEN), MPP_PAIRWISE_FORBIDDEN};
    s->watch = (struct mpp_pw_watch){expired, s};
    s->random.state = settings->seed * UINT64_C(0x9E3779B97F4A7C15) | 1;
    s->best = mpp_arena_array(arena, problem->n_nodes, int32_t);
    s->trial = mpp_arena_array(arena, problem->n_nodes, int32_t);
    s->local = mpp_arena_array(arena, problem->n_nodes, int32_t);
    *out = s;
    return MPP_OK;
}

void mpp_pairwise_free(struct mpp_pairwise *solver)
{
    if (solver == NULL)
        return;
    mpp_pw_blocks_free(solver->blocks);
    mpp_pw_relax_free(solver->relax);
    mpp_pw_graph_free(solver->g);
    mpp_arena_free(solver->arena);
}

/* ---- what is known -------------------------------------------------------------------------------------------- */

static void tell(struct mpp_pairwise *s, bool news)
{
    (void)expired(s);
    s->info.objective = s->objective;
    s->info.bound = s->bound;
    s->info.status = s->found ? MPP_PAIRWISE_FEASIBLE : MPP_PAIRWISE_NO_ANSWER;
    double objective = (double)(s->objective > 1 ? s->objective : 1);
    s->info.gap = s->found ? (double)(s->objective - s->bound) / objective : 1;
    if (s->set.progress != NULL && (news || s->info.seconds - s->reported_s >= REPORT_S)) {
        s->reported_s = s->info.seconds;
        s->set.progress(s->set.context, &s->info);
    }
}

static void log_size(struct mpp_pairwise *s, const char *what)
{
    struct mpp_pairwise_size z = mpp_pw_graph_size(s->g);
    s->info.last = z;
    (void)expired(s);
    if (s->set.log != NULL)
        fprintf(s->set.log, "%8.2f s  %-12s %d nodes, %d edges, %lld choices, %lld pairs, %d times\n", s->info.seconds, what,
                z.nodes, z.edges, (long long)z.choices, (long long)z.pairs, z.times);
}

/* Only what costs less is of use: than the best choice, than the cutoff. */
static mpp_i128 limit_of(const struct mpp_pairwise *s)
{
    mpp_i128 limit = s->set.upper > 0 ? s->set.upper : (mpp_i128)MPP_PW_BIG << s->costs.shift;
    limit = s->found && s->objective < limit ? s->objective : limit;
    return s->probing && s->cutoff < limit ? s->cutoff : limit;
}

/* The same in the graph's units and without its constant. */
static int64_t upper_of(const struct mpp_pairwise *s)
{
    return (int64_t)((limit_of(s) - 1) >> s->costs.shift) + 1 - s->g->constant;
}

static void raise_bound(struct mpp_pairwise *s, int64_t local)
{
    mpp_i128 bound = ((mpp_i128)local + s->g->constant) * ((mpp_i128)1 << s->costs.shift);
    if (bound > limit_of(s))
        bound = limit_of(s); /* the graph holds only what is below the limit */
    if (bound > s->bound) {
        s->bound = bound;
        tell(s, true);
    }
}

/* The graph holds nothing below the limit. */
static void exhaust(struct mpp_pairwise *s)
{
    s->exhausted = true;
    if ((s->found || s->probing || s->set.upper > 0) && limit_of(s) > s->bound) {
        s->bound = limit_of(s);
        tell(s, true);
    }
}

static bool proven(const struct mpp_pairwise *s)
{
    double objective = (double)(s->objective > 1 ? s->objective : 1);
    return s->found && (double)(s->objective - s->bound) <= s->set.gap * objective;
}

static bool finished(struct mpp_pairwise *s)
{
    return s->exhausted || s->settled || s->given_up || proven(s) || expired(s);
}

/* CHOICE, of the graph's nodes, as an answer: kept if it is the best. */
static void offer(struct mpp_pairwise *s, const int32_t *choice)
{
    mpp_i128 objective;
    memcpy(s->trial, choice, (size_t)s->p->n_nodes * sizeof *choice);
    mpp_pw_graph_replay(s->g, s->trial);
    int64_t peak;
    if (!mpp_pairwise_evaluate(s->p, s->trial, s->arena, &objective, &peak) || peak > s->p->capacity)
        return;
    if (!s->has_local || objective < s->local_cost) {
        memcpy(s->local, choice, (size_t)s->p->n_nodes * sizeof *choice);
        s->local_cost = objective;
        s->has_local = true;
    }
    if ((s->found && objective >= s->objective) || (s->set.upper > 0 && objective >= s->set.upper))
        return;
    s->found = true;
    s->objective = objective;
    s->info.peak_bytes = peak;
    memcpy(s->best, s->trial, (size_t)s->p->n_nodes * sizeof *s->best);
    tell(s, true);
}

/* The same for CHOICE of the relaxation's vertices. */
static void offer_vertices(struct mpp_pairwise *s, const int32_t *choice)
{
    struct mpp_arena *scratch = mpp_arena_scratch(s->relax->arena);
    int32_t *all = mpp_arena_array(scratch, s->p->n_nodes, int32_t);
    for (int32_t i = 0; i < s->relax->n; i++)
        all[s->relax->vertex[i].node] = choice[i];
    offer(s, all);
    mpp_arena_free(scratch);
}

static void forget_relax(struct mpp_pairwise *s)
{
    s->work += s->relax != NULL ? s->relax->work : 0;
    mpp_pw_blocks_free(s->blocks);
    s->blocks = NULL;
    mpp_pw_relax_free(s->relax);
    s->relax = NULL;
}

/* ---- presolve --------------------------------------------------------------------------------------------------- */

static void presolve(struct mpp_pairwise *s)
{
    size_t from = s->g->n_steps;
    forget_relax(s);
    mpp_pw_presolve(s->g);
    s->has_local = s->has_local && !s->g->infeasible && mpp_pw_graph_follow(s->g, from, s->local);
    if (s->g->infeasible) {
        exhaust(s);
        s->info.conflict_time = s->g->conflict_time;
        s->info.conflict_node = s->g->conflict_node;
        return;
    }
    log_size(s, "presolved");
    if (s->info.last.nodes == 0) {
        offer(s, s->trial);
        raise_bound(s, 0);
        if (s->costs.shift == 0)
            exhaust(s);
        s->settled = true;
    }
}

/* ---- the bound ---------------------------------------------------------------------------------------------------- */

static void use_prices(struct mpp_pairwise *s, const double *price)
{
    struct mpp_pw_relax *r = s->relax;
    struct mpp_arena *scratch = mpp_arena_scratch(r->arena);
    int64_t *whole = mpp_arena_array(scratch, r->n_rows, int64_t);
    for (int32_t t = 0; t < r->n_rows; t++) {
        double x = ldexp(price[t], r->scale_bits + r->price_bits);
        whole[t] = x < 0x1p60 ? (int64_t)x : (int64_t)1 << 60;
    }
    mpp_pw_relax_set_prices(r, whole);
    mpp_arena_free(scratch);
}

static void set_prices_at(struct mpp_pairwise *s)
{
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    double *price = mpp_arena_array(scratch, s->g->n_rows, double);
    for (int32_t t = 0; t < s->g->n_rows; t++)
        price[t] = s->price_at[s->g->row_first[t]];
    use_prices(s, price);
    mpp_arena_free(scratch);
}

/* One step of Polyak's from the prices: towards what CHOICE takes over capacity. False: nothing is over. */
static bool step_prices(struct mpp_pairwise *s, const int32_t *choice, double bound, double target, double length, double *price)
{
    struct mpp_pw_relax *r = s->relax;
    double square = 0;
    (void)mpp_pw_relax_excess(r, choice);
    for (int32_t t = 0; t < r->n_rows; t++) {
        double over = (double)(r->usage[t] - s->g->capacity[t]);
        if (over > 0 || price[t] > 0)
            square += over * over;
    }
    if (square == 0 || target <= bound)
        return false;
    double step = length * (target - bound) / square;
    for (int32_t t = 0; t < r->n_rows; t++) {
        double over = (double)(r->usage[t] - s->g->capacity[t]);
        if (over > 0 || price[t] > 0)
            price[t] = price[t] + step * over > 0 ? price[t] + step * over : 0;
    }
    return true;
}

/* Prices by subgradient; the best ones stay in price_at. The greedy readings are offered where they fit. */
static void ascend(struct mpp_pairwise *s, int steps, double length)
{
    struct mpp_pw_relax *r = s->relax;
    struct mpp_arena *scratch = mpp_arena_scratch(r->arena);
    double *price = mpp_arena_array(scratch, r->n_rows, double), *best = mpp_arena_array(scratch, r->n_rows, double);
    int32_t *choice = mpp_arena_array(scratch, r->n, int32_t);
    double highest = -HUGE_VAL;
    int64_t cheapest = upper_of(s);
    int idle = 0;
    for (int32_t t = 0; t < r->n_rows; t++)
        price[t] = best[t] = s->price_at[s->g->row_first[t]];
    set_prices_at(s);
    for (int i = 0; i < WARMING_SWEEPS && !finished(s); i++) /* messages follow the prices first */
        (void)mpp_pw_relax_sweep(r, i % 2 == 0, NULL);
    for (int i = 0; i < steps && length > LEAST_STEP && !finished(s); i++) {
        (void)mpp_pw_relax_sweep(r, true, NULL);
        double bound = ldexp(mpp_pw_relax_sweep(r, false, choice), -r->scale_bits);
        if (mpp_pw_relax_excess(r, choice) <= 0 && mpp_pw_relax_cost(r, choice) < cheapest) {
            offer_vertices(s, choice);
            cheapest = upper_of(s);
        }
        if (bound > highest) {
            highest = bound;
            memcpy(best, price, (size_t)r->n_rows * sizeof *best);
            idle = 0;
        } else if (++idle > PATIENCE) {
            length *= SHORTER;
            idle = 0;
        }
        double target = s->found ? (double)upper_of(s) : highest + fmax(fabs(highest) * 0.05, 1000);
        if (!step_prices(s, choice, bound, target, length, price) && i > PATIENCE)
            break;
        use_prices(s, price);
        tell(s, false);
    }
    use_prices(s, best);
    for (int i = 0; i < SETTLING_SWEEPS && !finished(s); i++)
        (void)mpp_pw_relax_sweep(r, i % 2 == 0, NULL);
    for (int32_t t = 0; t < r->n_rows; t++)
        s->price_at[s->g->row_first[t]] = best[t];
    raise_bound(s, mpp_pw_relax_bound(r));
    mpp_arena_free(scratch);
}

/* ---- GLPK, and what it says in whole numbers ------------------------------------------------------------------------- */

static void log_exact(const struct mpp_pairwise *s, const char *what, const struct mpp_pw_exact *x)
{
    static const char *const word[] = {"optimal", "nothing cheaper", "limit", "failed"};
    if (s->set.log != NULL)
        fprintf(s->set.log, "%8.2f s  %-12s %d rows, %d columns: %s\n", s->info.seconds, what, x->rows, x->cols,
                word[x->status]);
}

/* The linear program's prices of memory; returns the node whose choices its solution mixes most, -1: none. */
static int32_t root_prices(struct mpp_pairwise *s)
{
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    struct mpp_pw_exact x = {.upper = upper_of(s), .watch = &s->watch, .root_only = true};
    x.choice = mpp_arena_array(scratch, s->p->n_nodes, int32_t);
    x.price = mpp_arena_array(scratch, s->g->n_rows, double);
    mpp_pw_exact_solve(s->g, &x);
    s->work += x.work;
    for (int32_t t = 0; t < s->g->n_rows && x.rows > 0; t++)
        s->price_at[s->g->row_first[t]] = x.price[t];
    mpp_arena_free(scratch);
    return x.mixed;
}

/* A node to branch on where the linear program names none: the one whose cheapest choice stands out most. */
static int32_t standing_out(const struct mpp_pw_relax *r)
{
    double most = -1;
    int32_t node = -1;
    for (int32_t i = 0; i < r->n; i++) {
        double least = HUGE_VAL, second = HUGE_VAL;
        for (int32_t k = 0; k < r->vertex[i].n; k++) {
            double x = r->vertex[i].theta[k];
            second = x < least ? least : x < second ? x : second;
            least = x < least ? x : least;
        }
        if (second - least > most) {
            most = second - least;
            node = r->vertex[i].node;
        }
    }
    return node;
}

/* Branch and bound in whole numbers on the present graph, which it uses up: true if nothing below the limit is left in it
 * (what was is offered), false when *NODES run out. Bounds are the relaxation's, at the prices of the linear program. */
static bool settle_exactly(struct mpp_pairwise *s, int *nodes)
{
    int32_t node = -1;
    for (;;) {
        presolve(s);
        bool done = s->exhausted, empty = s->settled;
        s->exhausted = s->settled = false;
        if (done)
            return true;
        if (empty)
            return false; /* shifted costs: what presolve took for equal may be cheaper */
        if (--*nodes < 0 || expired(s))
            return false;
        node = root_prices(s);
        s->relax = mpp_pw_relax_new(s->g, s->arena);
        set_prices_at(s);
        for (int i = 0; i < SETTLING_SWEEPS; i++)
            (void)mpp_pw_relax_sweep(s->relax, i % 2 == 0, NULL);
        if (mpp_pw_relax_bound(s->relax) >= upper_of(s)) {
            forget_relax(s);
            return true;
        }
        if (mpp_pw_relax_fix(s->relax, upper_of(s)) == 0)
            break;
    }
    if (node < 0)
        node = standing_out(s->relax);
    int32_t n = s->g->nodes[node].n;
    struct mpp_pw_graph *whole = s->g;
    bool all = true;
    forget_relax(s);
    for (int32_t k = 0; k < n && all; k++) {
        s->g = mpp_pw_graph_clone(whole, s->arena);
        mpp_pw_graph_keep(s->g, node, &k, 1);
        all = settle_exactly(s, nodes);
        s->work += s->g->work - whole->work;
        mpp_pw_graph_free(s->g);
    }
    s->g = whole;
    return all;
}

/* GLPK found nothing below the limit. It works with tolerances: look again in whole numbers, where that is short. */
static void confirm(struct mpp_pairwise *s)
{
    struct mpp_pw_graph *whole = s->g;
    struct mpp_pairwise_size size = s->info.last;
    FILE *log = s->set.log;
    mpp_i128 before = s->found ? s->objective : 0;
    int nodes = EXACT_NODES;
    s->set.log = NULL;
    s->g = mpp_pw_graph_clone(whole, s->arena);
    bool sure = settle_exactly(s, &nodes);
    s->work += s->g->work - whole->work;
    mpp_pw_graph_free(s->g);
    s->g = whole;
    s->set.log = log;
    s->info.last = size;
    s->has_local = false;
    if (log != NULL)
        fprintf(log, "%8.2f s  %-12s %d nodes%s\n", s->info.seconds, sure ? "confirmed" : "not confirmed", EXACT_NODES - nodes,
                s->found && s->objective != before ? ", a better choice" : "");
    s->info.by_glpk |= !sure;
    if (sure || s->objective == before)
        exhaust(s);
}

/* Branch and cut, for about WORK (0: to the end). True if nothing is left below the limit, or something better was found. */
static bool exact(struct mpp_pairwise *s, int64_t work)
{
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    struct mpp_pw_exact x = {.upper = upper_of(s), .watch = &s->watch, .work_limit = work};
    int64_t left = s->set.work_limit - s->work;
    if (s->set.work_limit > 0 && (work == 0 || work > left))
        x.work_limit = left > 1 ? left : 1;
    x.choice = mpp_arena_array(scratch, s->p->n_nodes, int32_t);
    mpp_pw_exact_solve(s->g, &x);
    s->work += x.work;
    s->info.glpk_rows = x.rows;
    s->info.glpk_cols = x.cols;
    log_exact(s, "glpk", &x);
    if (x.found)
        offer(s, x.choice);
    if (x.status != MPP_PW_EXACT_NONE)
        raise_bound(s, x.bound);
    else
        confirm(s);
    mpp_arena_free(scratch);
    return x.found || s->exhausted;
}

/* ---- components ------------------------------------------------------------------------------------------------------- */

/* The settings' prices, each at the row that stands for its time now. */
static void take_prices(struct mpp_pairwise *s, double *price)
{
    const struct mpp_pw_graph *g = s->g;
    int32_t t = 0;
    for (int32_t i = 0; i < s->set.n_prices && g->n_rows > 0; i++) {
        while (t + 1 < g->n_rows && g->row_time[t + 1] <= s->set.price_time[i])
            t++;
        bool next = t + 1 < g->n_rows && g->row_time[t + 1] - s->set.price_time[i] < s->set.price_time[i] - g->row_time[t];
        price[next ? t + 1 : t] += ldexp(s->set.price[i], -s->costs.shift);
    }
}

/* Components put together exactly. True if nothing below the limit is left in the graph; what was is offered. */
static bool pack_once(struct mpp_pairwise *s)
{
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    double *price = mpp_arena_array(scratch, s->g->n_rows, double);
    take_prices(s, price);
    struct mpp_pw_pack x = {.price = price, .lower = (int64_t)(s->bound >> s->costs.shift) - s->g->constant, .upper = upper_of(s),
                            .watch = &s->watch, .glance = s->set.glance};
    if (s->set.work_limit > 0)
        x.work_limit = s->set.work_limit > s->work ? s->set.work_limit - s->work : 1;
    x.best = mpp_arena_array(scratch, s->p->n_nodes, int32_t);
    mpp_pw_pack_solve(s->g, &x);
    s->work += x.work;
    (void)expired(s);
    if (s->set.log != NULL)
        fprintf(s->set.log, "%8.2f s  %-12s %d components, %d different, %d rows, within %lld of the bound: %s\n", s->info.seconds,
                "pack", x.components, x.parts, x.rows, (long long)x.reach,
                x.status == MPP_PW_EXACT_OPTIMAL ? "optimal" : x.status == MPP_PW_EXACT_NONE ? "nothing cheaper" : "limit");
    if (x.found)
        offer(s, x.best);
    mpp_arena_free(scratch);
    return x.status == MPP_PW_EXACT_OPTIMAL || x.status == MPP_PW_EXACT_NONE;
}

/* The same, one choice after another of the nodes that many others hang on: without these the components are small. */
static bool pack_around(struct mpp_pairwise *s, int depth)
{
    int32_t hub = depth < MOST_HUBS ? mpp_pw_pack_hub(s->g) : -1;
    if (hub < 0)
        return pack_once(s);
    struct mpp_pw_graph *whole = s->g;
    int32_t n = whole->nodes[hub].n;
    bool all = true;
    for (int32_t k = 0; k < n && (all || (s->set.glance && !s->found)) && !expired(s); k++) {
        s->g = mpp_pw_graph_clone(whole, s->arena);
        mpp_pw_graph_keep(s->g, hub, &k, 1);
        s->has_local = false;
        presolve(s);
        bool done = s->exhausted, empty = s->settled;
        s->exhausted = s->settled = false;
        done = done || (!empty && pack_around(s, depth + 1)); /* empty, costs shifted: what was taken for equal may be cheaper */
        all = all && done;
        s->work += s->g->work - whole->work;
        mpp_pw_graph_free(s->g);
        s->g = whole; /* whose work expired() counts */
    }
    s->has_local = false;
    return all && !expired(s);
}

/* Where prices are given or not needed. */
static void pack(struct mpp_pairwise *s)
{
    mpp_i128 bound = s->bound;
    struct mpp_pairwise_size size = s->info.last;
    if (finished(s) || (s->set.n_prices == 0 && s->g->n_rows > 0))
        return;
    bool all = pack_around(s, 0);
    s->info.last = size;
    s->info.conflict_time = s->info.conflict_node = -1;
    if (all)
        exhaust(s);
    else
        s->given_up = s->set.n_prices > 0 && (s->set.glance || size.pairs > LP_PAIRS);
    if (!all && s->bound > bound && !proven(s))
        s->bound = bound;         /* of part of the choices */
}

/* ---- the driver -------------------------------------------------------------------------------------------------------- */

/* Blocks from the present graph's best choice, or from what the prices say now (FRESH). */
static void descend(struct mpp_pairwise *s, int64_t work, bool fresh)
{
    struct mpp_pw_relax *r = s->relax;
    struct mpp_arena *scratch = mpp_arena_scratch(r->arena);
    int32_t *choice = mpp_arena_array(scratch, r->n, int32_t);
    (void)mpp_pw_relax_sweep(r, false, choice);
    for (int32_t i = 0; i < r->n && s->has_local && !fresh; i++)
        choice[i] = s->local[r->vertex[i].node];
    struct mpp_pw_descent *d = mpp_pw_descent_new(r, choice, &s->random);
    int64_t begun = r->work, slice = work / 20 + 1;
    while (r->work - begun < work && !finished(s)) {
        mpp_pw_descent_run(d, slice, &s->watch);
        if (mpp_pw_descent_best(d) != NULL)
            offer_vertices(s, mpp_pw_descent_best(d));
        tell(s, false);
    }
    mpp_pw_descent_free(d);
    mpp_arena_free(scratch);
}

/* Choices and prices that follow each other, until now from where they were; what is better elsewhere is taken up. */
static void follow(struct mpp_pairwise *s, int64_t work)
{
    struct mpp_pw_relax *r = s->relax;
    struct mpp_arena *scratch = mpp_arena_scratch(r->arena);
    int32_t *choice = mpp_arena_array(scratch, r->n, int32_t);
    int64_t end = r->work + work;
    (void)mpp_pw_relax_sweep(r, false, choice);
    if (s->blocks == NULL)
        s->blocks = mpp_pw_blocks_new(r, choice, &s->random);
    for (int32_t i = 0; i < r->n && s->has_local; i++)
        choice[i] = s->local[r->vertex[i].node];
    mpp_pw_blocks_offer(s->blocks, choice);
    while (r->work < end && !finished(s)) {
        mpp_pw_blocks_run(s->blocks, work / 20 + 1, &s->watch);
        if (mpp_pw_blocks_best(s->blocks) != NULL)
            offer_vertices(s, mpp_pw_blocks_best(s->blocks));
        tell(s, false);
    }
    mpp_arena_free(scratch);
}

/* Many starts, where the problem is small enough for moves that settle most of it. */
static void restart(struct mpp_pairwise *s, int64_t work)
{
    if (s->relax->n > MOST_DENSE || finished(s))
        return;
    struct mpp_pw_restart *x = mpp_pw_restart_new(s->relax, &s->random);
    int64_t end = s->relax->work + work;
    while (s->relax->work < end && !finished(s)) {
        mpp_pw_restart_run(x, work / 20 + 1, &s->watch);
        if (mpp_pw_restart_best(x) != NULL)
            offer_vertices(s, mpp_pw_restart_best(x));
        tell(s, false);
    }
    mpp_pw_restart_free(x);
}

/* One stage: bound, choices, reduced costs, and GLPK where the problem has become small. False: no progress is left. */
static bool stage(struct mpp_pairwise *s, int number)
{
    int64_t pairs = s->info.last.pairs;
    if (pairs <= LP_PAIRS && !s->set.no_glpk)
        (void)root_prices(s);
    if (finished(s))
        return false;
    s->relax = mpp_pw_relax_new(s->g, s->arena);
    ascend(s, pairs <= MANY_PAIRS ? ASCENT_STEPS : ASCENT_STEPS_MANY, FIRST_STEP);
    if (finished(s))
        return false;
    if (!s->set.no_descent && !s->probing)
        descend(s, DESCENT_WORK * (pairs + 1000) * (number + 1), false);
    if (finished(s))
        return false;
    if ((s->found || s->probing || s->set.upper > 0) && (s->set.rules & MPP_PAIRWISE_REDUCED_COST) &&
        mpp_pw_relax_fix(s->relax, upper_of(s)) > (pairs > MANY_PAIRS ? pairs / WORTH_A_STAGE : 0)) {
        presolve(s);
        return !finished(s);
    }
    return pairs <= LP_PAIRS && !s->set.no_glpk && exact(s, 0) && !finished(s); /* again around a better answer */
}

static void run_stages(struct mpp_pairwise *s)
{
    for (int i = 0; i < MOST_STAGES && !finished(s) && stage(s, i); i++)
        forget_relax(s);
    forget_relax(s);
}

/* Look for what costs less than CUTOFF on a copy of the graph that holds nothing else. True if that settled it: such a
 * choice is found and is the best, or there is none, and the bound is CUTOFF. */
static bool probe(struct mpp_pairwise *s, mpp_i128 cutoff, int64_t work)
{
    struct mpp_pw_graph *whole = s->g;
    struct mpp_pairwise_size size = s->info.last;
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    double *price = mpp_arena_memdup(scratch, s->price_at, (size_t)s->n_times * sizeof *price);
    s->probing = true;
    s->cutoff = cutoff;
    (void)expired(s);
    s->work_end = s->info.work + work;
    s->g = mpp_pw_graph_clone(whole, s->arena);
    s->has_local = false;
    if (s->set.log != NULL)
        fprintf(s->set.log, "%8.2f s  probe below  %.0f\n", s->info.seconds, (double)cutoff);
    run_stages(s);
    bool settled = s->exhausted || s->bound >= cutoff || proven(s);
    s->work += s->g->work - whole->work;
    mpp_pw_graph_free(s->g);
    s->g = whole;
    s->info.last = size;
    memcpy(s->price_at, price, (size_t)s->n_times * sizeof *price);
    s->probing = s->exhausted = s->settled = s->has_local = false;
    s->work_end = 0;
    mpp_arena_free(scratch);
    return settled;
}

/* Ever higher cutoffs, as long as what lies below them can be settled. */
static void probe_upward(struct mpp_pairwise *s)
{
    double width = FIRST_PROBE * (double)(s->bound > 1 ? s->bound : 1) + 1;
    while (!finished(s)) {
        mpp_i128 cutoff = s->bound + (mpp_i128)width + 1;
        if (s->found && cutoff >= s->objective)
            cutoff = s->objective;
        if (!probe(s, cutoff, PROBE_WORK))
            break;
        width *= WIDER;
    }
}

/* Solve a window around a random place; its size follows how hard that was. True if it found something better. */
static bool try_window(struct mpp_pairwise *s, int32_t *choice, double *pairs)
{
    struct mpp_pw_window *w = mpp_pw_window_new(s->relax, choice, (int64_t)*pairs, WINDOW_CHOICES, &s->random);
    struct mpp_pairwise_settings set = mpp_pairwise_defaults();
    struct mpp_pairwise_info info;
    struct mpp_pairwise *sub;
    int32_t *answer = mpp_arena_array(w->arena, w->problem.n_nodes, int32_t);
    set.upper = mpp_pw_window_cost(w);
    set.no_windows = set.no_descent = true;
    set.work_limit = WINDOW_WORK;
    set.interrupt = s->set.interrupt;
    if (s->set.time_limit_s > 0)
        set.time_limit_s = fmax(s->set.time_limit_s - s->info.seconds, 1e-3);
    bool better = false, settled = false;
    if (set.upper > 0 && mpp_pairwise_setup(&w->problem, &set, w->arena, &sub) == MPP_OK) {
        enum mpp_status st = mpp_pairwise_solve(sub, answer, &info);
        s->work += info.work;
        settled = info.status == MPP_PAIRWISE_OPTIMAL || st == MPP_INFEASIBLE;
        better = st == MPP_OK;
        mpp_pairwise_free(sub);
    }
    if (better) {
        mpp_pw_window_apply(w, answer, choice);
        offer_vertices(s, choice);
    }
    *pairs = settled ? fmin(*pairs * 1.1, MOST_WINDOW_PAIRS) : fmax(*pairs * 0.7, LEAST_WINDOW_PAIRS);
    mpp_pw_window_free(w);
    return better;
}

static void try_windows(struct mpp_pairwise *s, int64_t work, double *pairs)
{
    struct mpp_arena *scratch = mpp_arena_scratch(s->relax->arena);
    int32_t *choice = mpp_arena_array(scratch, s->relax->n, int32_t), tried = 0, better = 0;
    for (int32_t i = 0; i < s->relax->n; i++)
        choice[i] = s->local[s->relax->vertex[i].node];
    (void)expired(s);
    int64_t end = s->info.work + work;
    while (s->has_local && !finished(s) && s->info.work < end) {
        better += try_window(s, choice, pairs);
        tried++;
    }
    if (s->set.log != NULL)
        fprintf(s->set.log, "%8.2f s  %-12s %d of %d better, %.0f pairs\n", s->info.seconds, "windows", better, tried, *pairs);
    mpp_arena_free(scratch);
}

/* Probing, then branch and cut, where the problem is small enough for them. The later the ROUND, the more
 * time is given to the latter. */
static void settle_small(struct mpp_pairwise *s, int round)
{
    if (!finished(s) && (s->set.rules & MPP_PAIRWISE_REDUCED_COST) && s->info.last.pairs <= MANY_PAIRS)
        probe_upward(s);
    if (!finished(s) && s->info.last.pairs <= EXACT_PAIRS && !s->set.no_glpk)
        (void)exact(s, s->set.no_descent ? 0 : EXACT_WORK * (round + 1));
}

/* Are there now so many choices and pairs that no better answer can hold that it is worth starting again without them? */
static bool worth_fixing(struct mpp_pairwise *s)
{
    int64_t pairs = s->info.last.pairs;
    if (finished(s) || !s->found || !(s->set.rules & MPP_PAIRWISE_REDUCED_COST) ||
        mpp_pw_relax_fix(s->relax, upper_of(s)) <= pairs / WORTH_A_STAGE)
        return false;
    presolve(s);
    return true;
}

/* The descent's share of the next round's work: whole where it found something better, else half of what it was. */
static int64_t next_share(int64_t share, bool better)
{
    int64_t least = SEARCH_WORK / LEAST_SHARE;
    return better ? SEARCH_WORK : share / 2 > least ? share / 2 : least;
}

/* Prices settle, blocks and windows follow: first from several places, then from the best. True if the problem has become
 * smaller meanwhile, false when a limit ends it. */
static bool search(struct mpp_pairwise *s, int *round)
{
    bool endless = s->set.time_limit_s <= 0 && s->set.work_limit <= 0 && s->set.interrupt == NULL;
    double pairs = FIRST_WINDOW_PAIRS, length = AGAIN_STEP;
    int steps = (int)fmin(fmax((double)START_WORK / (8.0 * (double)(s->info.last.pairs + 1)), START_STEPS), ASCENT_STEPS);
    s->relax = mpp_pw_relax_new(s->g, s->arena);
    int64_t descending = SEARCH_WORK;
    for (; !finished(s) && !(endless && *round > MOST_STAGES); ++*round) {
        bool starts = *round < STARTS;
        ascend(s, starts ? steps : SETTLING_SWEEPS, length);
        length *= starts ? 1 : SHORTER;
        mpp_i128 before = s->has_local ? s->local_cost : (mpp_i128)1 << 100;
        descend(s, starts && descending > START_WORK ? START_WORK : descending, starts);
        descending = next_share(descending, s->has_local && s->local_cost < before);
        follow(s, SEARCH_WORK);
        restart(s, RESTART_WORK);
        if (!starts && s->has_local && !s->set.no_windows && !s->set.no_glpk)
            try_windows(s, SEARCH_WORK, &pairs);
        if (worth_fixing(s))
            return true;
    }
    forget_relax(s);
    return false;
}

/* The graph anew, by the costs as they are now, presolved and taken through the stages. */
static void begin(struct mpp_pairwise *s)
{
    s->g = mpp_pw_graph_new(s->p, s->costs, s->set.rules, s->arena);
    s->n_times = s->g->n_rows;
    s->price_at = mpp_arena_array(s->arena, s->n_times, double);
    s->info.full = mpp_pw_graph_size(s->g);
    log_size(s, "read");
    presolve(s);
    s->info.presolved = s->info.last;
    pack(s);
    run_stages(s);
}

/* True if costs were shifted, and need to be less, now that a choice is known: what costs as much is in no better one. The
 * graph is then gone. */
static bool sharpen(struct mpp_pairwise *s)
{
    if (s->costs.shift == 0 || s->exhausted || proven(s) || expired(s) || limit_of(s) >= s->costs.forbidden)
        return false;
    struct mpp_pw_costs costs = {.forbidden = (int64_t)limit_of(s)};
    costs.shift = mpp_pw_problem_shift(s->p, costs.forbidden);
    if (costs.shift >= s->costs.shift)
        return false;
    s->work += s->g->work;
    mpp_pw_graph_free(s->g);
    s->costs = costs;
    s->settled = s->has_local = false;
    return true;
}

enum mpp_status mpp_pairwise_solve(struct mpp_pairwise *solver, int32_t *out_choice, struct mpp_pairwise_info *out_info)
{
    struct mpp_pairwise *s = solver;
    int round = 0;
    clock_gettime(CLOCK_MONOTONIC, &s->begun);
    s->info = (struct mpp_pairwise_info){.conflict_time = -1, .conflict_node = -1};
    s->bound = s->set.lower;
    begin(s);
    while (sharpen(s))
        begin(s);
    settle_small(s, round);
    while (!finished(s) && !s->set.no_descent && search(s, &round)) {
        run_stages(s);
        settle_small(s, round);
    }
    if (!finished(s) && s->info.last.pairs <= EXACT_PAIRS && !s->set.no_glpk)
        (void)exact(s, 0);
    tell(s, true);
    if (proven(s))
        s->info.status = MPP_PAIRWISE_OPTIMAL;
    else if (s->exhausted && !s->found)
        s->info.status = MPP_PAIRWISE_INFEASIBLE;
    *out_info = s->info;
    memcpy(out_choice, s->best, (size_t)s->p->n_nodes * sizeof *out_choice);
    if (s->found)
        return MPP_OK;
    return s->info.status == MPP_PAIRWISE_INFEASIBLE ? MPP_INFEASIBLE : MPP_LIMIT;
}
