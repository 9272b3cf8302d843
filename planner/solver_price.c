/* solver_price.c - Lagrangian prices: on memory rows, and on copies shared by several consumers.
 *
 * With prices on the rows the problem falls apart into what elimination solves exactly, and its value
 * less price times capacity is a bound. Row prices come from the master program of Dantzig and Wolfe
 * over the solutions seen. Where a value with several consumers is too large for a table, its copies'
 * costs are dealt out among the consumers; shares, and the shifts between a variable's copies of different
 * mini-buckets, follow Polyak's subgradient step. Choices whose
 * least priced cost exceeds the best known are ruled out. */
#include <inttypes.h>
#include <string.h>

#include "planner/solver_internal.h"

enum { MAX_ACTIVE = 48, MAX_POOL = 120, MAX_STEPS = 90, CLOSE_STEPS = 12, PEAK_PASSES = 4, FIX_ROUNDS = 6 };

/* Elimination limits, entries: of the whole, and of one restricted to few choices. */
static const double PLAN_ENTRIES = 2e8;
static const double CLOSE_PEAK = 0.97, ABOVE = 1.002;
static const int64_t FIX_WORK = 300000000, DUMP_WORK = INT64_C(4000000000);

struct pool {
    struct mpp_arena *arena;
    int32_t n, n_active, oldest;
    int32_t active[MAX_ACTIVE];
    int64_t *bytes[MAX_POOL];       /* [n_rows] */
    double costs[MAX_POOL];
    int32_t *choice[MAX_POOL];
};

struct dual {
    struct mpp_solver *s;
    struct mpp_solver_plan *plan;
    struct mpp_arena *arena;
    struct pool *pool;
    int64_t *price, *best_price;    /* [n_rows] */
    bool converged;
    int64_t best;                   /* the bound they gave, and how */
    struct mpp_solver_eval *best_eval;
    int32_t *copies;                /* [n_buckets] what each bucket decided */
    double dummy;
};

/* ---- the pool and its rows ---------------------------------------------------------------- */

/* The local peaks of BYTES above capacity become active. Returns whether one did. */
static bool activate(struct pool *p, const struct mpp_solver *s, const int64_t *bytes)
{
    bool any = false;
    for (int round = 0; round < 3 && p->n_active < MAX_ACTIVE; round++) {
        int32_t worst = -1;
        for (int32_t r = 0; r < s->n_rows; r++) {
            bool peak = bytes[r] > s->p->capacity_bytes && (r == 0 || bytes[r] >= bytes[r - 1]) &&
                        (r + 1 == s->n_rows || bytes[r] >= bytes[r + 1]);
            bool known = false;
            for (int32_t a = 0; a < p->n_active; a++)
                known |= p->active[a] == r;
            if (peak && !known && (worst < 0 || bytes[r] > bytes[worst]))
                worst = r;
        }
        if (worst < 0)
            break;
        p->active[p->n_active++] = worst;
        any = true;
    }
    return any;
}

/* Remember CHOICE; returns whether it tells the master something new. When full, the oldest goes. */
static bool pool_add(struct pool *p, const struct mpp_solver *s, const int32_t *choice, double cost)
{
    int64_t *bytes = mpp_arena_array(p->arena, s->n_rows + 1, int64_t);
    mpp_solver_row_bytes(s, choice, bytes);
    bool grew = activate(p, s, bytes);
    for (int32_t j = 0; j < p->n; j++) {
        bool same = p->costs[j] == cost;
        for (int32_t q = 0; same && q < p->n_active; q++)
            same = p->bytes[j][p->active[q]] == bytes[p->active[q]];
        if (same)
            return grew;
    }
    int32_t at = p->n < MAX_POOL ? p->n++ : p->oldest++ % MAX_POOL;
    p->bytes[at] = bytes;
    p->costs[at] = cost;
    if (!p->choice[at])
        p->choice[at] = mpp_arena_array(p->arena, s->p->n_nodes, int32_t);
    memcpy(p->choice[at], choice, sizeof *choice * (size_t)s->p->n_nodes);
    return true;
}

/* The rows have changed: gather the pool's bytes and the active rows again. */
static void pool_refresh(struct pool *p, const struct mpp_solver *s)
{
    p->n_active = 0;
    for (int32_t j = 0; j < p->n; j++) {
        p->bytes[j] = mpp_arena_array(p->arena, s->n_rows + 1, int64_t);
        mpp_solver_row_bytes(s, p->choice[j], p->bytes[j]);
        activate(p, s, p->bytes[j]);
    }
}

/* New prices on the rows from the master program; returns the mix's cost. */
static double master_prices(struct mpp_solver *s, struct pool *p, double dummy, bool peak, double unit, int64_t *price)
{
    double *bytes = mpp_arena_array(p->arena, p->n * p->n_active, double), out[MAX_ACTIVE];
    for (int32_t j = 0; j < p->n; j++)
        for (int32_t a = 0; a < p->n_active; a++)
            bytes[j * p->n_active + a] = (double)p->bytes[j][p->active[a]];
    double mix = mpp_solver_glpk_master(s, p->n, p->n_active, p->costs, bytes, (double)s->p->capacity_bytes, dummy, peak,
                                        out);
    memset(price, 0, sizeof *price * (size_t)s->n_rows);
    for (int32_t a = 0; a < p->n_active; a++) {
        double x = out[a] * unit;
        price[p->active[a]] = x > 0x1p52 ? INT64_C(1) << 52 : (int64_t)(x + 0.5);
    }
    return mix;
}

/* ceil(sum of price * capacity) in picoseconds; INF when it is beyond counting. */
int64_t mpp_solver_capacity_value(const struct mpp_solver *s, const int64_t *price)
{
    __int128 sum = 0, one = (__int128)1 << MPP_SOLVER_PRICE_BITS;
    for (int32_t r = 0; r < s->n_rows; r++)
        sum += (__int128)price[r] * s->p->capacity_bytes;
    sum = (sum + one - 1) >> MPP_SOLVER_PRICE_BITS;
    return sum > MPP_SOLVER_INF ? MPP_SOLVER_INF : (int64_t)sum;
}

/* No possible choice costs more. */
static double most_cost(const struct mpp_solver *s)
{
    double sum = 1;
    for (int32_t i = 0; i < s->p->n_nodes; i++) {
        int64_t most = 0;
        for (int32_t k = 0; k < s->p->nodes[i].n_choices; k++)
            if (s->alive[s->choice_first[i] + k] && s->p->nodes[i].cost[k] > most)
                most = s->p->nodes[i].cost[k];
        sum += (double)most;
    }
    for (int32_t v = 0; v < s->p->n_values; v++) {
        const struct mpp_solver_value *val = &s->p->values[v];
        int64_t most = 0;
        for (int64_t e = 0; e < (int64_t)val->n_forms * val->n_forms; e++)
            if (val->convert[e] < MPP_SOLVER_INF && val->convert[e] > most)
                most = val->convert[e];
        sum += (double)most * val->n_consumers;
    }
    return sum;
}

/* ---- shares of copies --------------------------------------------------------------------- */

/* Visit the copies of split values in CHOICE that some consumers use and others do not: count them, and
 * with STEP > 0 move up to STEP from each of the others' shares to the users'. */
static double shares_step(struct dual *d, const int32_t *choice, int64_t step)
{
    double norm = 0;
    for (int32_t i = 0; i < d->s->p->n_values; i++) {
        const struct mpp_solver_value *v = &d->s->p->values[i];
        if (!d->plan->split[i])
            continue;
        int32_t made = v->out[choice[v->producer]], m = v->n_consumers;
        int64_t cells = (int64_t)v->n_forms * v->n_forms, *share = d->plan->share[i];
        for (int32_t c = 0; c < m; c++) {
            int32_t t = v->in[c][choice[v->consumers[c]]], users = 0, before = 0;
            int64_t at = (int64_t)made * v->n_forms + t, moved = 0;
            for (int32_t e = 0; e < m; e++) {
                bool same = v->in[e][choice[v->consumers[e]]] == t;
                users += same;
                before += same && e < c;
            }
            if (t == made || before || users == m || share[at] >= MPP_SOLVER_INF)
                continue;
            norm += (double)users * (m - users) / m;
            for (int32_t e = 0; e < m && step > 0; e++)
                if (v->in[e][choice[v->consumers[e]]] != t) {
                    int64_t take = share[e * cells + at] < step ? share[e * cells + at] : step;
                    share[e * cells + at] -= take;
                    moved += take;
                }
            for (int32_t e = 0; e < m && moved > 0; e++)
                if (v->in[e][choice[v->consumers[e]]] == t) {
                    int64_t give = moved / users--;
                    share[e * cells + at] += give;
                    moved -= give;
                }
        }
    }
    return norm;
}

/* Visit the variables whose copies, decided in VALUE, disagree with the first: count it, and with STEP > 0 let
 * each pay the other for what it decided. */
static double shifts_step(struct dual *d, const int32_t *value, int64_t step)
{
    const struct mpp_solver_plan *p = d->plan;
    double norm = 0;
    for (int32_t j = 0; j < p->n_buckets; j++) {
        if (p->buckets[j].is_twin || p->buckets[j].shift < 0)
            continue;
        for (int32_t t = p->buckets[j].twin; t >= 0; t = p->buckets[t].twin) {
            if (value[t] == value[j] || p->buckets[t].shift < 0)
                continue;
            int64_t *head = p->shift[p->buckets[j].shift], *twin = p->shift[p->buckets[t].shift];
            norm += 4;
            head[value[j]] += step;
            twin[value[j]] -= step;
            head[value[t]] -= step;
            twin[value[t]] += step;
        }
    }
    return norm;
}

/* ---- ascent ------------------------------------------------------------------------------- */

/* One evaluation at the current prices and shares. False: nothing more to learn. */
static bool ascent_eval(struct dual *d, int32_t *choice, int64_t *out_bound, bool *out_new)
{
    struct mpp_solver *s = d->s;
    struct mpp_solver_eval *ev = mpp_solver_eval_new(s, d->plan, d->price);
    bool ok = !mpp_solver_stopped(s);
    if (ok && ev->value >= MPP_SOLVER_INF) {
        s->bound = MPP_SOLVER_INF;
        ok = false;
    }
    if (ok) {
        int64_t cost, b = ev->value - mpp_solver_capacity_value(s, d->price);
        mpp_solver_eval_choices(s, d->plan, ev, choice);
        mpp_solver_eval_copies(d->plan, ev, d->copies);
        cost = mpp_solver_offer(s, choice, NULL);
        *out_new = cost < MPP_SOLVER_INF && s->n_rows > 0 && pool_add(d->pool, s, choice, (double)cost);
        *out_bound = b;
        if (b > d->best) {
            d->best = b;
            memcpy(d->best_price, d->price, sizeof *d->price * (size_t)s->n_rows);
            mpp_solver_eval_free(d->best_eval);
            d->best_eval = ev;
        }
        s->bound = b > s->bound ? b : s->bound;
        if ((double)s->bound > d->dummy)
            s->bound = MPP_SOLVER_INF; /* dearer than anything possible: nothing is */
        ok = !mpp_solver_closed(s);
    }
    if (ev != d->best_eval)
        mpp_solver_eval_free(ev);
    return ok;
}

/* The point between the best prices and the master's: the master alone swings (Wentges, 1997). */
static void smooth(struct dual *d)
{
    for (int32_t r = 0; r < d->s->n_rows; r++)
        d->price[r] = d->price[r] / 2 + d->best_price[r] / 2;
}

static void ascent(struct dual *d, int max_steps)
{
    struct mpp_solver *s = d->s;
    int32_t *choice = mpp_arena_array(d->arena, s->p->n_nodes, int32_t);
    double theta = 1;
    bool smoothed = false;
    int stale = 0, steps = s->n_rows > 0 || d->plan->n_split > 0 ? max_steps : 1;
    for (int step = 0; step < steps; step++) {
        int64_t before = d->best, b;
        bool fresh = false;
        if (!ascent_eval(d, choice, &b, &fresh))
            return;
        bool rose = step == 0 || (double)(d->best - before) > 1e-5 * (double)(d->best > 0 ? d->best : 1);
        stale = rose ? 0 : stale + 1;
        theta = rose ? theta : theta * 0.85;
        double target = s->upper < MPP_SOLVER_INF ? ABOVE * (double)s->upper : d->dummy, norm = shares_step(d, choice, 0);
        norm += shifts_step(d, d->copies, 0);
        if (d->pool->n_active > 0 && d->pool->n > 0) {
            double mix = master_prices(s, d->pool, target, false, (double)((int64_t)1 << MPP_SOLVER_PRICE_BITS),
                                       d->price);
            target = mix < target ? mix : target;
            d->converged = norm == 0 && mix - (double)d->best <= 1e-6 * mix;
        }
        d->converged |= stale >= 15 || (norm == 0 && !fresh && !smoothed);
        if (d->converged)
            return;
        smoothed = d->pool->n_active > 0 && (fresh || !smoothed) && d->best > INT64_MIN;
        if (smoothed)
            smooth(d);
        if (norm > 0 && target > (double)b) {
            int64_t by = (int64_t)(theta * (target - (double)b) / norm) + 1;
            shares_step(d, choice, by);
            shifts_step(d, d->copies, by);
        }
    }
}

/* ---- choices ------------------------------------------------------------------------------ */

/* Keep alive only the choices of least priced cost at most LIMIT above the optimum. */
static int32_t keep_within(struct mpp_solver *s, const struct mpp_solver_plan *plan, const struct mpp_solver_eval *ev,
                           const int64_t *class_cost, int64_t limit)
{
    int32_t gone = 0;
    for (int32_t i = 0; i < s->p->n_nodes; i++) {
        int32_t first = s->choice_first[i], n = s->p->nodes[i].n_choices;
        for (int32_t c = 0; c < plan->classes.first[i + 1] - plan->classes.first[i]; c++) {
            int64_t least = INT64_MAX;
            for (int32_t k = 0; k < n; k++)
                if (plan->classes.of_choice[first + k] == c) {
                    int64_t x = mpp_solver_priced_cost(s, ev->unary_price, i, k);
                    least = x < least ? x : least;
                }
            for (int32_t k = 0; k < n; k++) {
                if (!s->alive[first + k] || plan->classes.of_choice[first + k] != c)
                    continue;
                int64_t over = mpp_solver_priced_cost(s, ev->unary_price, i, k) - least;
                if (class_cost[plan->classes.first[i] + c] + over > limit) {
                    s->alive[first + k] = 0;
                    gone++;
                }
            }
        }
    }
    return gone;
}

/* ---- rounds ------------------------------------------------------------------------------- */

/* Prices of rows that remain. */
static void carry_prices(const struct mpp_solver *s, const int32_t *time, const int64_t *price, int32_t n,
                         int64_t *out_price)
{
    int32_t at = 0;
    for (int32_t r = 0; r < s->n_rows; r++) {
        while (at < n && time[at] < s->row_time[r])
            at++;
        out_price[r] = at < n && time[at] == s->row_time[r] ? price[at] : 0;
    }
}

static void say_prices(const struct dual *d)
{
    const struct mpp_solver *s = d->s;
    if (!s->set.log)
        return;
    fprintf(s->set.log, "solver: %d variables, %.3g entries, %d values split, %d priced rows, bound %" PRId64,
            d->plan->n_vars, d->plan->entries, d->plan->n_split, d->pool->n_active, s->bound);
    if (s->upper < MPP_SOLVER_INF)
        fprintf(s->set.log, ", best %" PRId64, s->upper);
    fputc('\n', s->set.log);
}

static struct dual dual_new(struct mpp_solver *s, struct mpp_solver_plan *plan, struct pool *pool)
{
    struct dual d = {.s = s, .plan = plan, .pool = pool, .arena = mpp_arena_scratch(s->arena), .best = INT64_MIN, .dummy = most_cost(s)};
    pool_refresh(pool, s);
    d.price = mpp_arena_array(d.arena, s->n_rows + 1, int64_t);
    d.best_price = mpp_arena_array(d.arena, s->n_rows + 1, int64_t);
    d.copies = mpp_arena_array(d.arena, plan->n_buckets, int32_t);
    carry_prices(s, s->last.time, s->last.price, s->last.n, d.price);
    if (s->found && s->n_rows > 0)
        pool_add(pool, s, s->best, (double)s->upper);
    return d;
}

static void dual_free(struct dual *d)
{
    struct mpp_solver *s = d->s;
    s->last.n = s->n_rows;
    for (int32_t r = 0; r < s->n_rows; r++) {
        s->last.price[r] = d->best_price[r];
        s->last.time[r] = s->row_time[r];
    }
    mpp_solver_eval_free(d->best_eval);
    mpp_solver_plan_free(d->plan);
    mpp_arena_free(d->arena);
}

static struct pool *pool_new(struct mpp_arena *arena)
{
    struct pool *pool = mpp_arena_array(arena, 1, struct pool);
    pool->arena = arena;
    return pool;
}

void mpp_solver_price(struct mpp_solver *s)
{
    struct mpp_arena *keep = mpp_arena_scratch(s->arena);
    struct mpp_solver_plan *plan = mpp_solver_plan_new(s, PLAN_ENTRIES);
    if (plan) {
        struct dual d = dual_new(s, plan, pool_new(keep));
        ascent(&d, MAX_STEPS);
        say_prices(&d);
        dual_free(&d);
    }
    mpp_arena_free(keep);
}

/* ---- fixing ------------------------------------------------------------------------------- */

/* The pairs of forms that are left at LIMIT, by consumer; equal ones are stored once. */
static void keep_pairs(struct mpp_solver *s, const struct mpp_solver_plan *plan, int64_t *const *table, int64_t limit)
{
    struct mpp_solver_index *ix = mpp_solver_index_new(s->arena);
    memset(s->pair, 0, sizeof *s->pair * (size_t)s->consumer_first[s->p->n_values]);
    for (int32_t i = 0; i < plan->n_factors; i++) {
        const struct mpp_solver_factor *f = &plan->factors[i];
        if (!table[i])
            continue;
        const struct mpp_solver_value *v = &s->p->values[f->index];
        struct mpp_arena *a = mpp_arena_scratch(s->arena);
        int64_t n = ((int64_t)v->n_forms * v->n_forms + 7) / 8;
        for (int32_t c = 0; c < v->n_consumers; c++) {
            uint8_t *bits = mpp_arena_array(a, n, uint8_t);
            if (f->kind == MPP_FACTOR_SPLIT && f->slot != c)
                continue;
            mpp_solver_factor_pairs(s, plan, f, table[i], limit, c, bits);
            s->pair[s->consumer_first[f->index] + c] =
                mpp_solver_index_key(ix, mpp_solver_index_add(ix, bits, (size_t)n, true, NULL));
        }
        mpp_arena_free(a);
    }
}

/* One round of fixing; returns how many choices went, -1: nothing more can. */
static int32_t fix_round(struct mpp_solver *s, int steps, struct pool *pool)
{
    struct mpp_solver_plan *plan = mpp_solver_plan_new(s, mpp_solver_room(s) > PLAN_ENTRIES ? mpp_solver_room(s) : PLAN_ENTRIES);
    if (!plan)
        return -1;
    int32_t gone = -1;
    struct dual d = dual_new(s, plan, pool);
    ascent(&d, steps);
    if (d.best_eval && d.best_eval->value < MPP_SOLVER_INF && !mpp_solver_stopped(s)) {
        int64_t *class_cost = mpp_arena_array(d.arena, plan->classes.first[s->p->n_nodes], int64_t);
        int64_t **table = mpp_arena_array(d.arena, plan->n_factors, int64_t *);
        int64_t limit = s->upper - (d.best_eval->value - mpp_solver_capacity_value(s, d.best_price));
        mpp_solver_eval_marginals(s, plan, d.best_eval, limit, class_cost, NULL, table);
        gone = keep_within(s, plan, d.best_eval, class_cost, limit);
        keep_pairs(s, plan, table, limit);
        if (limit == 0)
            gone = -1;
    }
    dual_free(&d);
    return gone;
}

void mpp_solver_fix(struct mpp_solver *s)
{
    struct mpp_arena *keep = mpp_arena_scratch(s->arena);
    struct mpp_solver_settings set = s->set;
    struct pool *pool = pool_new(keep);
    int32_t gone = 0;
    s->pair = mpp_arena_array(s->arena, s->consumer_first[s->p->n_values], const uint8_t *);
    s->set.gap = -1; /* never close enough */
    s->set.work_limit = s->work + (set.dump_reduced ? DUMP_WORK : FIX_WORK);
    for (int round = 0; round < FIX_ROUNDS && (gone > 0 || (gone == 0 && round < 3))
                    && (s->bound < s->upper || s->set.dump_reduced); round++) { /* a dump wants all that can be ruled out */
        gone = fix_round(s, round == 0 ? 1 : round == 1 ? CLOSE_STEPS : MAX_STEPS, pool);
        mpp_solver_drop_lonely(s);
        mpp_solver_rows_drop_slack(s);
        if (!s->tune.no_dominance)
            mpp_solver_dominance(s, s->n_rows > 0);
    }
    mpp_solver_rows_drop_slack(s);
    s->set = set;
    mpp_arena_free(keep);
}

/* ---- the least peak ----------------------------------------------------------------------- */

/* No choice's greatest row is less than the least sum of priced bytes over the sum of prices. */
static int64_t peak_bound(const struct mpp_solver *s, const int64_t *price, int64_t value)
{
    __int128 sum = 0;
    for (int32_t r = 0; r < s->n_rows; r++)
        sum += price[r];
    if (sum <= 0)
        return 0;
    return (int64_t)((((__int128)value << MPP_SOLVER_PRICE_BITS) + sum - 1) / sum);
}

/* One ascent to the least peak over what is alive; PRICE gives the best bound. Returns it. */
static int64_t peak_ascent(struct mpp_solver *s, struct mpp_solver_plan *plan, struct mpp_arena *a, int64_t *best_price)
{
    struct pool pool = {.arena = a};
    int64_t best = 0, *price = mpp_arena_array(a, s->n_rows + 1, int64_t);
    int32_t *choice = mpp_arena_array(a, s->p->n_nodes, int32_t);
    double unit = s->p->capacity_bytes < INT64_C(1) << 45 ? 0x1p34 : 0x1p24;
    bool smoothed = false;
    for (int step = 0; step < MAX_STEPS && !mpp_solver_stopped(s); step++) {
        struct mpp_solver_eval *ev = mpp_solver_eval_new(s, plan, price);
        int64_t value = ev->value;
        if (value < MPP_SOLVER_INF)
            mpp_solver_eval_choices(s, plan, ev, choice);
        mpp_solver_eval_free(ev);
        if (value >= MPP_SOLVER_INF || mpp_solver_stopped(s))
            break;
        int64_t b = peak_bound(s, price, value);
        if (b > best) {
            best = b;
            memcpy(best_price, price, sizeof *price * (size_t)s->n_rows);
        }
        bool ok, over = best > s->p->capacity_bytes;
        mpp_solver_offer(s, choice, &ok);
        bool fresh = pool_add(&pool, s, choice, 0);
        if ((ok && s->fits) || (over && (step >= CLOSE_STEPS || s->set.upper_bound > 0)) || (!fresh && !smoothed))
            break;
        double mix = master_prices(s, &pool, 0, true, unit, price);
        if ((double)best > mix - 0.5 || (over && (double)best > mix * CLOSE_PEAK))
            break;
        smoothed = best > 0 && (fresh || !smoothed);
        for (int32_t r = 0; smoothed && r < s->n_rows; r++)
            price[r] = price[r] / 2 + best_price[r] / 2;
    }
    return best;
}

/* Rule out the choices that nothing within capacity can have: at PRICE their bytes are worth more than it.
 * Returns how many went. */
static int32_t peak_fix(struct mpp_solver *s, struct mpp_solver_plan *plan, const int64_t *price)
{
    struct mpp_solver_eval *ev = mpp_solver_eval_new(s, plan, price);
    int64_t limit = mpp_solver_capacity_value(s, price) - ev->value;
    int32_t gone = 0;
    if (ev->value < MPP_SOLVER_INF && limit >= 0 && !mpp_solver_stopped(s)) {
        int64_t *class_cost = mpp_arena_array(ev->arena, plan->classes.first[s->p->n_nodes], int64_t);
        mpp_solver_eval_marginals(s, plan, ev, limit, class_cost, NULL, NULL);
        gone = keep_within(s, plan, ev, class_cost, limit);
    }
    mpp_solver_eval_free(ev);
    return gone;
}

int32_t mpp_solver_least_peak(struct mpp_solver *s)
{
    int32_t gone = 0, now = 1;
    s->free_cost = true;
    for (int pass = 0; pass < PEAK_PASSES && now > 0 && !s->fits && s->bound < MPP_SOLVER_INF; pass++) {
        struct mpp_solver_plan *plan = mpp_solver_plan_new(s, PLAN_ENTRIES);
        struct mpp_arena *a = mpp_arena_scratch(s->arena);
        int64_t *price = mpp_arena_array(a, s->n_rows + 1, int64_t);
        int64_t best = plan ? peak_ascent(s, plan, a, price) : 0;
        int32_t row = 0;
        for (int32_t r = 1; r < s->n_rows; r++)
            row = price[r] > price[row] ? r : row;
        if (best > s->least_peak) {
            s->least_peak = best;
            s->least_peak_time = s->row_time[row];
        }
        if (best > s->p->capacity_bytes)
            s->bound = MPP_SOLVER_INF;
        now = best > 0 && !s->fits && s->bound < MPP_SOLVER_INF ? peak_fix(s, plan, price) : 0;
        gone += now;
        mpp_solver_plan_free(plan);
        mpp_arena_free(a);
    }
    s->free_cost = false;
    return gone;
}
