/* solver.c - settings, checks, exact evaluation, and the order in which the methods are tried. */
#include "planner/solver.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "planner/solver_internal.h"

enum { DEFAULT_TABLE_LIMIT = 1 << 24 };
static const double MAX_ENTRIES = 1e7;
static const int64_t DEFAULT_WORK_LIMIT = INT64_C(20000000000);

struct mpp_solver_settings mpp_solver_defaults(void)
{
    return (struct mpp_solver_settings){.gap = 0, .table_limit = DEFAULT_TABLE_LIMIT};
}

/* ---- checks ------------------------------------------------------------------------------- */

/* Bytes of everything at once must stay countable. */
static const double MOST_BYTES = 4e18;

static bool node_valid(const struct mpp_solver_node *n, double *bytes)
{
    if (n->n_choices < 1 || n->n_usages < 0 || !n->cost || (n->n_usages > 0 && !n->usages))
        return false;
    for (int32_t k = 0; k < n->n_choices; k++)
        if (n->cost[k] < 0)
            return false;
    for (int32_t u = 0; u < n->n_usages; u++) {
        int64_t most = 0;
        for (int32_t k = 0; k < n->n_choices; k++) {
            if (n->usages[u].bytes[k] < 0)
                return false;
            most = n->usages[u].bytes[k] > most ? n->usages[u].bytes[k] : most;
        }
        *bytes += (double)most;
    }
    return true;
}

static bool forms_valid(const int32_t *form, int32_t n_choices, int32_t n_forms)
{
    for (int32_t k = 0; k < n_choices; k++)
        if (form[k] < 0 || form[k] >= n_forms)
            return false;
    return true;
}

static bool value_valid(const struct mpp_solver_problem *p, const struct mpp_solver_value *v, int32_t *mark,
                        int32_t stamp, double *bytes)
{
    if (v->n_forms < 1 || v->n_forms > 30000 || v->n_consumers < 1 || v->producer < 0 || v->producer >= p->n_nodes)
        return false;
    if (!forms_valid(v->out, p->nodes[v->producer].n_choices, v->n_forms))
        return false;
    mark[v->producer] = stamp;
    for (int32_t c = 0; c < v->n_consumers; c++) {
        int32_t node = v->consumers[c];
        if (node < 0 || node >= p->n_nodes || mark[node] == stamp)
            return false;
        mark[node] = stamp;
        if (!forms_valid(v->in[c], p->nodes[node].n_choices, v->n_forms))
            return false;
    }
    for (int32_t s = 0; s < v->n_forms; s++)
        for (int32_t t = 0; t < v->n_forms; t++)
            if (s != t && v->convert[(int64_t)s * v->n_forms + t] < 0)
                return false;
    for (int32_t t = 0; v->copy_bytes && t < v->n_forms; t++) {
        if (v->copy_bytes[t] < 0)
            return false;
        *bytes += (double)v->copy_bytes[t];
    }
    return true;
}

static bool problem_valid(const struct mpp_solver_problem *p)
{
    double bytes = 0;
    if (p->n_nodes < 0 || p->n_values < 0 || p->capacity_bytes < 0)
        return false;
    struct mpp_arena *a = mpp_arena_scratch(p->arena);
    int32_t *mark = mpp_arena_array(a, p->n_nodes, int32_t);
    bool ok = true;
    for (int32_t i = 0; ok && i < p->n_nodes; i++)
        ok = node_valid(&p->nodes[i], &bytes);
    for (int32_t v = 0; ok && v < p->n_values; v++)
        ok = value_valid(p, &p->values[v], mark, v + 1, &bytes);
    mpp_arena_free(a);
    return ok && bytes < MOST_BYTES;
}

/* ---- set-up ------------------------------------------------------------------------------- */

static void index_problem(struct mpp_solver *s)
{
    const struct mpp_solver_problem *p = s->p;
    s->choice_first = mpp_arena_array(s->arena, p->n_nodes + 1, int32_t);
    s->usage_first = mpp_arena_array(s->arena, p->n_nodes + 1, int32_t);
    s->inc_first = mpp_arena_array(s->arena, p->n_nodes + 1, int32_t);
    for (int32_t i = 0; i < p->n_nodes; i++) {
        s->choice_first[i + 1] = s->choice_first[i] + p->nodes[i].n_choices;
        s->usage_first[i + 1] = s->usage_first[i] + p->nodes[i].n_usages;
    }
    for (int32_t v = 0; v < p->n_values; v++) {
        s->inc_first[p->values[v].producer + 1]++;
        for (int32_t c = 0; c < p->values[v].n_consumers; c++)
            s->inc_first[p->values[v].consumers[c] + 1]++;
    }
    for (int32_t i = 0; i < p->n_nodes; i++)
        s->inc_first[i + 1] += s->inc_first[i];
    int32_t *fill = mpp_arena_memdup(s->arena, s->inc_first, sizeof *fill * ((size_t)p->n_nodes + 1));
    s->inc = mpp_arena_array(s->arena, s->inc_first[p->n_nodes], struct mpp_solver_incidence);
    for (int32_t v = 0; v < p->n_values; v++)
        for (int32_t c = -1; c < p->values[v].n_consumers; c++) {
            int32_t node = c < 0 ? p->values[v].producer : p->values[v].consumers[c];
            s->inc[fill[node]++] = (struct mpp_solver_incidence){v, c};
        }
    s->alive = mpp_arena_array(s->arena, s->choice_first[p->n_nodes], uint8_t);
    s->usage_span = mpp_arena_array(s->arena, s->usage_first[p->n_nodes], struct mpp_solver_span);
    s->copy_span = mpp_arena_array(s->arena, p->n_values, struct mpp_solver_span);
    s->consumer_first = mpp_arena_array(s->arena, p->n_values + 1, int32_t);
    for (int32_t v = 0; v < p->n_values; v++)
        s->consumer_first[v + 1] = s->consumer_first[v] + p->values[v].n_consumers;
}

/* Everything is possible again, save what costs too much to count. */
static void revive(struct mpp_solver *s)
{
    for (int32_t i = 0; i < s->p->n_nodes; i++)
        for (int32_t k = 0; k < s->p->nodes[i].n_choices; k++)
            s->alive[s->choice_first[i] + k] = s->p->nodes[i].cost[k] < MPP_SOLVER_INF;
}

void mpp_solver_prepare(struct mpp_solver *s)
{
    revive(s);
    s->pair = NULL;
    if (s->p->capacity_bytes < INT64_MAX)
        mpp_solver_rows_build(s);
}

enum mpp_status mpp_solver_setup(const struct mpp_solver_problem *problem, const struct mpp_solver_settings *settings,
                                 struct mpp_solver **out)
{
    *out = NULL;
    if (!problem_valid(problem))
        return MPP_INVALID;
    struct mpp_arena *a = mpp_arena_scratch(problem->arena);
    struct mpp_solver *s = mpp_arena_array(a, 1, struct mpp_solver);
    s->arena = a;
    s->p = problem;
    s->set = settings ? *settings : mpp_solver_defaults();
    if (s->set.table_limit <= 0)
        s->set.table_limit = DEFAULT_TABLE_LIMIT;
    if (s->set.work_limit <= 0)
        s->set.work_limit = DEFAULT_WORK_LIMIT;
    index_problem(s);
    *out = s;
    return MPP_OK;
}

void mpp_solver_free(struct mpp_solver *solver)
{
    if (solver)
        mpp_arena_free(solver->arena);
}

/* ---- evaluation --------------------------------------------------------------------------- */

struct event {
    int32_t time;
    int64_t bytes;
};

/* Ends come as negative bytes one past the last time; at equal times they go first. */
static int cmp_event(const void *a, const void *b)
{
    const struct event *x = a, *y = b;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static size_t add_event(struct event *ev, size_t n, int32_t first, int32_t last, int64_t bytes)
{
    if (bytes <= 0 || first > last)
        return n;
    ev[n++] = (struct event){first, bytes};
    if (last < INT32_MAX)
        ev[n++] = (struct event){last + 1, -bytes};
    return n;
}

static void peak_of(struct event *ev, size_t n, int64_t *out_bytes, int32_t *out_time)
{
    int64_t live = 0;
    *out_bytes = 0;
    *out_time = n ? ev[0].time : 0;
    for (size_t i = 0; i < n; i++) {
        live += ev[i].bytes;
        if (live > *out_bytes) {
            *out_bytes = live;
            *out_time = ev[i].time;
        }
    }
}

static int64_t add_cost(int64_t sum, int64_t cost)
{
    if (sum >= MPP_SOLVER_INF || cost >= MPP_SOLVER_INF || sum + cost >= MPP_SOLVER_INF)
        return MPP_SOLVER_FORBIDDEN;
    return sum + cost;
}

int64_t mpp_solver_evaluate(const struct mpp_solver_problem *p, const int32_t *choice, int64_t *out_peak_bytes,
                            int32_t *out_peak_time)
{
    struct mpp_arena *a = mpp_arena_scratch(p->arena);
    size_t cap = 0, n = 0;
    int64_t cost = 0;
    int32_t n_forms = 1;
    for (int32_t i = 0; i < p->n_nodes; i++)
        cap += 2 * (size_t)p->nodes[i].n_usages;
    for (int32_t v = 0; v < p->n_values; v++) {
        cap += 2 * (size_t)p->values[v].n_consumers;
        n_forms = p->values[v].n_forms > n_forms ? p->values[v].n_forms : n_forms;
    }
    struct event *ev = mpp_arena_array(a, cap, struct event);
    int32_t *mark = mpp_arena_array(a, n_forms, int32_t);
    for (int32_t i = 0; i < p->n_nodes; i++) {
        cost = add_cost(cost, p->nodes[i].cost[choice[i]]);
        for (int32_t u = 0; u < p->nodes[i].n_usages; u++) {
            const struct mpp_solver_usage *g = &p->nodes[i].usages[u];
            n = add_event(ev, n, g->first, g->last, g->bytes[choice[i]]);
        }
    }
    for (int32_t i = 0; i < p->n_values; i++) {
        const struct mpp_solver_value *v = &p->values[i];
        int32_t made = v->out[choice[v->producer]];
        mark[made] = i + 1;
        for (int32_t c = 0; c < v->n_consumers; c++) {
            int32_t t = v->in[c][choice[v->consumers[c]]];
            if (mark[t] == i + 1)
                continue;
            mark[t] = i + 1;
            cost = add_cost(cost, v->convert[(int64_t)made * v->n_forms + t]);
            if (v->copy_bytes)
                n = add_event(ev, n, v->copy_first, v->copy_last, v->copy_bytes[t]);
        }
    }
    int64_t peak;
    int32_t when;
    if (out_peak_bytes || out_peak_time) {
        qsort(ev, n, sizeof *ev, cmp_event);
        peak_of(ev, n, &peak, &when);
        if (out_peak_bytes)
            *out_peak_bytes = peak;
        if (out_peak_time)
            *out_peak_time = when;
    }
    mpp_arena_free(a);
    return cost;
}

/* ---- the driver --------------------------------------------------------------------------- */

static int32_t count_alive(const struct mpp_solver *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->choice_first[s->p->n_nodes]; i++)
        n += s->alive[i];
    return n;
}

static enum mpp_status dump_full(const struct mpp_solver *s)
{
    if (!s->set.dump_full)
        return MPP_OK;
    return mpp_solver_lp_write(s, false, s->set.dump_full,
                               "\\ The whole problem: every choice of every node, every conversion of every value.\n");
}

/* What is left when all is done: without what the best choice rules out. */
static enum mpp_status dump_reduced(struct mpp_solver *s)
{
    char title[900];
    int32_t n_open = 0, n_left = 0;
    if (!s->set.dump_reduced)
        return MPP_OK;
    if (s->found && !(s->set.interrupt && *s->set.interrupt))
        mpp_solver_fix(s);
    mpp_solver_drop_lonely(s);
    for (int32_t i = 0; i < s->p->n_nodes; i++) {
        int32_t n = 0;
        for (int32_t k = s->choice_first[i]; k < s->choice_first[i + 1]; k++)
            n += s->alive[k];
        n_open += n > 1;
        n_left += n > 1 ? n : 0;
    }
    int at = snprintf(title, sizeof title,
                      "\\ The reduced problem: %d of %d nodes are open, with %d of %d choices, %d times may pass capacity.\n",
                      n_open, s->p->n_nodes, n_left, s->choice_first[s->p->n_nodes], s->n_rows);
    if (s->found)
        snprintf(title + at, sizeof title - (size_t)at,
                 "\\ Left out: choices that others replace at no loss; choices and conversions that nothing of cost\n"
                 "\\ at most %" PRId64 ", the best found, can have; what has one choice left is in the constant and\n"
                 "\\ the limits. The optimum is that of the whole problem%s, at least %" PRId64 ".\n",
                 s->upper, s->bound >= s->upper ? ", known to be the best found" : "", s->bound < s->upper ? s->bound : s->upper);
    return mpp_solver_lp_write(s, true, s->set.dump_reduced, title);
}

bool mpp_solver_closed(const struct mpp_solver *s)
{
    if (s->bound >= MPP_SOLVER_INF)
        return true;
    return s->upper < MPP_SOLVER_INF && (double)(s->upper - s->bound) <= s->set.gap * (double)s->upper;
}

bool mpp_solver_stopped(const struct mpp_solver *s)
{
    return s->work > s->set.work_limit || (s->set.interrupt && *s->set.interrupt);
}

int64_t mpp_solver_offer(struct mpp_solver *s, const int32_t *choice, bool *out_fits)
{
    int64_t peak, cost = mpp_solver_evaluate(s->p, choice, &peak, NULL);
    bool fits = peak <= s->p->capacity_bytes;
    if (out_fits)
        *out_fits = fits;
    s->fits |= fits && cost < MPP_SOLVER_INF;
    if (fits && cost < s->upper) {
        s->upper = cost;
        s->found = true;
        memcpy(s->best, choice, sizeof *choice * (size_t)s->p->n_nodes);
    }
    return cost;
}

static void say(const struct mpp_solver *s, const char *phase)
{
    if (!s->set.log)
        return;
    fprintf(s->set.log, "solver: %s: %d rows, %d choices, bound %" PRId64, phase, s->n_rows, count_alive(s), s->bound);
    if (s->upper < MPP_SOLVER_INF)
        fprintf(s->set.log, ", best %" PRId64, s->upper);
    fprintf(s->set.log, ", work %" PRId64 "\n", s->work);
}

/* Each node at its cheapest, copies for nothing: a bound where nothing better can be had. */
static void weakest_bound(struct mpp_solver *s)
{
    for (int32_t i = 0; i < s->p->n_nodes; i++) {
        int64_t least = MPP_SOLVER_INF;
        for (int32_t k = 0; k < s->p->nodes[i].n_choices; k++)
            if (s->alive[s->choice_first[i] + k] && s->p->nodes[i].cost[k] < least)
                least = s->p->nodes[i].cost[k];
        s->bound = s->bound + least > MPP_SOLVER_INF ? MPP_SOLVER_INF : s->bound + least;
    }
}

double mpp_solver_room(const struct mpp_solver *s)
{
    return s->set.table_limit > DEFAULT_TABLE_LIMIT ? 8 * (double)s->set.table_limit : MAX_ENTRIES;
}

/* Elimination without memory; exact unless values were split. */
static void solve_free(struct mpp_solver *s)
{
    struct mpp_solver_plan *plan = mpp_solver_plan_new(s, mpp_solver_room(s));
    if (!plan)
        return;
    struct mpp_solver_eval *ev = mpp_solver_eval_new(s, plan, NULL);
    if (!mpp_solver_stopped(s) || ev->value >= MPP_SOLVER_INF) {
        s->bound = ev->value > s->bound ? ev->value : s->bound;
        if (ev->value < MPP_SOLVER_INF) {
            int32_t *choice = mpp_arena_array(ev->arena, s->p->n_nodes, int32_t);
            mpp_solver_eval_choices(s, plan, ev, choice);
            mpp_solver_offer(s, choice, NULL);
        }
    }
    if (s->set.log)
        fprintf(s->set.log, "solver: %d variables, %d tables, %.3g entries, largest %.3g, %d values split\n",
                plan->n_vars, plan->n_factors, plan->entries, plan->largest, plan->n_split);
    mpp_solver_eval_free(ev);
    mpp_solver_plan_free(plan);
}

/* Does each usage at its least already pass capacity? */
static bool over_floor(struct mpp_solver *s)
{
    int32_t row;
    int64_t floor = s->n_rows > 0 ? mpp_solver_floor(s, &row) : 0;
    if (floor <= s->p->capacity_bytes)
        return false;
    s->least_peak = floor;
    s->least_peak_time = s->row_time[row];
    s->bound = MPP_SOLVER_INF;
    if (s->set.upper_bound == 0)
        mpp_solver_least_peak(s);
    return true;
}

/* Within memory: bound and prices first, then all that costs little more. */
static void solve_within(struct mpp_solver *s, struct mpp_solver_info *info)
{
    if (!s->tune.no_prices)
        mpp_solver_price(s);
    say(s, "priced");
    if (s->set.upper_bound == 0 && !s->found && s->n_rows > 0 && !mpp_solver_closed(s) && !mpp_solver_stopped(s))
        mpp_solver_least_peak(s);
    if (s->set.enough == 0 || s->bound <= s->set.enough)
        mpp_solver_search(s, info);
}

static void finish(struct mpp_solver *s, int32_t *out_choice, struct mpp_solver_info *info)
{
    info->work = s->work;
    if (s->found) {
        memcpy(out_choice, s->best, sizeof *out_choice * (size_t)s->p->n_nodes);
        info->objective = mpp_solver_evaluate(s->p, s->best, &info->peak_bytes, &info->peak_time);
        info->bound = s->bound < info->objective ? s->bound : info->objective;
        double span = (double)(info->objective - info->bound);
        info->gap = span / (info->objective > 1 ? (double)info->objective : 1);
        info->status = span <= s->set.gap * (double)info->objective ? MPP_SOLVER_OPTIMAL : MPP_SOLVER_FEASIBLE;
    } else {
        /* what costs too much was ruled out: that nothing is left is no proof about memory */
        if (s->set.upper_bound > 0 && s->bound >= MPP_SOLVER_INF && s->least_peak <= s->p->capacity_bytes)
            s->bound = s->set.upper_bound;
        info->bound = s->bound;
        info->least_peak_bytes = s->least_peak;
        info->least_peak_time = s->least_peak_time;
        if (s->bound >= MPP_SOLVER_INF && s->n_rows > 0 && info->least_peak_bytes <= s->p->capacity_bytes)
            info->least_peak_bytes = s->p->capacity_bytes + 1; /* proven by search */
        info->status = s->bound >= MPP_SOLVER_INF ? MPP_SOLVER_INFEASIBLE : MPP_SOLVER_NO_ANSWER;
    }
}

enum mpp_status mpp_solver_solve(struct mpp_solver *s, int32_t *out_choice, struct mpp_solver_info *info)
{
    *info = (struct mpp_solver_info){.glpk_status = "not needed"};
    s->best = mpp_arena_array(s->arena, s->p->n_nodes, int32_t);
    s->upper = s->set.upper_bound > 0 && s->set.upper_bound < MPP_SOLVER_INF ? s->set.upper_bound : MPP_SOLVER_INF;
    s->found = s->fits = false;
    s->bound = 0;
    s->least_peak = 0;
    s->least_peak_time = 0;
    s->work = 0;
    info->nodes_full = s->p->n_nodes;
    info->values_full = s->p->n_values;
    info->choices_full = s->choice_first[s->p->n_nodes];
    mpp_solver_prepare(s);
    s->last = (struct mpp_solver_prices){0, mpp_arena_array(s->arena, s->n_rows, int32_t),
                                         mpp_arena_array(s->arena, s->n_rows, int64_t)};
    MPP_TRY(dump_full(s));
    mpp_solver_rows_drop_slack(s);
    if (!s->tune.no_dominance && mpp_solver_dominance(s, s->n_rows > 0) > 0)
        mpp_solver_rows_drop_slack(s);
    weakest_bound(s);
    say(s, "reduced");
    if (!over_floor(s) && !s->tune.no_elimination)
        solve_free(s);
    say(s, "eliminated");
    if (!mpp_solver_closed(s) && !mpp_solver_stopped(s) && !s->set.quick)
        solve_within(s, info);
    MPP_TRY(dump_reduced(s));
    say(s, "done");
    finish(s, out_choice, info);
    if (info->status == MPP_SOLVER_INFEASIBLE)
        return MPP_INFEASIBLE;
    return info->status == MPP_SOLVER_NO_ANSWER ? MPP_LIMIT : MPP_OK;
}
