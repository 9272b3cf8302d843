/* restart.c - search for good choices of small, dense problems from many starts.
 *
 * A move settles all but a few vertices at once (bucket.h). From a random start, prices on rows first swing about
 * capacity: rows that are over become dearer, others cheaper. From the cheapest choice that fitted the search then goes
 * on within memory: each vertex has an allowance of bytes, which is what it takes now, or less for one or two vertices
 * drawn at random, and what that leaves goes to others drawn at random. Choices beyond their allowance are barred, so that
 * all of a move's outcomes fit. Without progress for some time, it starts anew. */
#include "solver/restart.h"

#include <math.h>
#include <string.h>

#include "solver/bucket.h"

enum { SWINGS_PER_VERTEX = 2, LEAST_SWINGS = 20, SWINGS_PER_PLAN = 4, PATIENCE_PER_VERTEX = 2, RAISES = 3, MOST_LOWERED = 2, LOWER_TRIES = 8,
       LONGER = 10 };
static const double MOST_ENTRIES = 1e5, LEAST_ENTRIES = 1e3; /* of a table; drawn anew for each plan */
static const double DEARER = 0.3, CHEAPER = 0.1, WORSE = 0.02; /* of a price; of the cost, that a move may make it */

struct mpp_pw_restart {
    struct mpp_arena *arena;
    struct mpp_pw_relax *r;
    struct mpp_pw_random *random;
    struct mpp_pw_pool pool;
    int32_t *member;              /* [n] all vertices */
    bool *must;                   /* [n] whose allowance became less: not to be held */
    int32_t *choice, *next;       /* [n] now; of the move */
    int64_t cost;
    int32_t *start_best, *best;   /* [n] cheapest that fits, since the start and of all */
    int64_t start_cost, best_cost; /* MPP_PW_INF: none */
    bool within;                  /* memory: prices no longer swing */
    int32_t n_swings, idle;       /* since the start; since something better */
    double unit;                  /* a small price */
    double *price, *sum;          /* [n_rows], [n_rows + 1] */
    double **priced;              /* [n][choices] bytes at the prices; or HUGE_VAL beyond the allowance */
    int64_t *usage;               /* [n_rows] of all allowances */
    int64_t **allowed;            /* [n][n_segments] */
    int32_t n_users, *user;       /* vertices with memory */
};

static double draw_unit(struct mpp_pw_random *random)
{
    return ((double)mpp_pw_draw_below(random, 1 << 20) + 0.5) / (1 << 20);
}

static void start(struct mpp_pw_restart *x)
{
    for (int32_t i = 0; i < x->r->n; i++)
        x->choice[i] = mpp_pw_draw_below(x->random, x->r->vertex[i].n);
    memset(x->price, 0, (size_t)x->r->n_rows * sizeof *x->price);
    x->start_cost = MPP_PW_INF;
    x->n_swings = x->idle = 0;
    x->within = false;
}

struct mpp_pw_restart *mpp_pw_restart_new(struct mpp_pw_relax *r, struct mpp_pw_random *random)
{
    struct mpp_arena *arena = mpp_arena_scratch(r->arena);
    struct mpp_pw_restart *x = mpp_arena_array(arena, 1, struct mpp_pw_restart);
    double capacity = 1, cost = 1;
    *x = (struct mpp_pw_restart){.arena = arena, .r = r, .random = random, .best_cost = MPP_PW_INF};
    x->member = mpp_arena_array(arena, r->n, int32_t);
    x->must = mpp_arena_array(arena, r->n, bool);
    x->choice = mpp_arena_array(arena, r->n, int32_t);
    x->next = mpp_arena_array(arena, r->n, int32_t);
    x->start_best = mpp_arena_array(arena, r->n, int32_t);
    x->best = mpp_arena_array(arena, r->n, int32_t);
    x->price = mpp_arena_array(arena, r->n_rows, double);
    x->sum = mpp_arena_array(arena, r->n_rows + 1, double);
    x->usage = mpp_arena_array(arena, r->n_rows, int64_t);
    x->priced = mpp_arena_array(arena, r->n, double *);
    x->allowed = mpp_arena_array(arena, r->n, int64_t *);
    x->user = mpp_arena_array(arena, r->n, int32_t);
    for (int32_t i = 0; i < r->n; i++) {
        const struct mpp_pw_vertex *v = &r->vertex[i];
        double most = 0;
        x->member[i] = i;
        x->priced[i] = mpp_arena_array(arena, v->n, double);
        x->allowed[i] = mpp_arena_array(arena, v->n_segments, int64_t);
        if (v->n_segments > 0)
            x->user[x->n_users++] = i;
        for (int32_t k = 0; k < v->n; k++)
            most = v->cost[k] < HUGE_VAL && v->cost[k] > most ? v->cost[k] : most;
        cost += most;
    }
    for (int32_t t = 0; t < r->n_rows; t++)
        capacity += (double)r->g->capacity[t];
    x->unit = cost / capacity;
    start(x);
    return x;
}

void mpp_pw_restart_free(struct mpp_pw_restart *x)
{
    if (x == NULL)
        return;
    mpp_arena_free(x->pool.arena);
    mpp_arena_free(x->arena);
}

const int32_t *mpp_pw_restart_best(const struct mpp_pw_restart *x)
{
    return x->best_cost < MPP_PW_INF ? x->best : NULL;
}

/* CHOICE fits: is it the cheapest? */
static void keep(struct mpp_pw_restart *x, const int32_t *choice, int64_t cost)
{
    size_t bytes = (size_t)x->r->n * sizeof *choice;
    if (cost >= x->start_cost)
        return;
    x->start_cost = cost;
    memcpy(x->start_best, choice, bytes);
    x->idle = 0;
    if (cost < x->best_cost) {
        x->best_cost = cost;
        memcpy(x->best, choice, bytes);
    }
}

static struct mpp_pw_buckets *draw_plan(struct mpp_pw_restart *x, const bool *must)
{
    double limit = LEAST_ENTRIES * pow(MOST_ENTRIES / LEAST_ENTRIES, draw_unit(x->random));
    struct mpp_pw_buckets *b = mpp_pw_buckets_new(x->r, x->member, x->r->n, must, limit, &x->pool, x->random);
    x->r->work += b->planning;
    return b;
}

/* ---- prices that swing ---------------------------------------------------------------------------------------- */

static void price_bytes(struct mpp_pw_restart *x)
{
    for (int32_t t = 0; t < x->r->n_rows; t++)
        x->sum[t + 1] = x->sum[t] + x->price[t];
    for (int32_t i = 0; i < x->r->n; i++) {
        const struct mpp_pw_vertex *v = &x->r->vertex[i];
        for (int32_t k = 0; k < v->n; k++) {
            double sum = 0;
            for (int32_t s = 0; s < v->n_segments; s++)
                sum += (x->sum[v->segments[s].hi] - x->sum[v->segments[s].lo]) * (double)v->segments[s].bytes[k];
            x->priced[i][k] = sum;
        }
    }
}

static void follow_usage(struct mpp_pw_restart *x)
{
    for (int32_t t = 0; t < x->r->n_rows; t++) {
        double capacity = (double)x->r->g->capacity[t], over = ((double)x->r->usage[t] - capacity) / fmax(capacity, 1);
        if (over > 0)
            x->price[t] = x->price[t] * (1 + DEARER * draw_unit(x->random) * fmin(1, 10 * over + 0.1)) + x->unit;
        else
            x->price[t] *= 1 - CHEAPER * draw_unit(x->random) * fmin(1, -10 * over);
    }
}

static void swing(struct mpp_pw_restart *x)
{
    struct mpp_pw_buckets *b = draw_plan(x, NULL);
    for (int i = 0; i < SWINGS_PER_PLAN; i++, x->n_swings++) {
        price_bytes(x);
        mpp_pw_buckets_settle(b, x->priced, x->choice);
        x->r->work += b->entries;
        if (mpp_pw_relax_excess(x->r, x->choice) <= 0)
            keep(x, x->choice, mpp_pw_relax_cost(x->r, x->choice));
        follow_usage(x);
    }
    mpp_pw_buckets_free(b);
    int32_t most = SWINGS_PER_VERTEX * x->r->n + LEAST_SWINGS;
    if (x->n_swings < most || (x->start_cost >= MPP_PW_INF && x->n_swings < LONGER * most))
        return;
    if (x->start_cost >= MPP_PW_INF) {
        start(x);
        return;
    }
    x->within = true;
    x->cost = x->start_cost;
    memcpy(x->choice, x->start_best, (size_t)x->r->n * sizeof *x->choice);
}

/* ---- allowances ------------------------------------------------------------------------------------------------ */

/* Give I what choice K takes more than its allowance, if every row has it. */
static void raise_allowance(struct mpp_pw_restart *x, int32_t i, int32_t k)
{
    const struct mpp_pw_vertex *v = &x->r->vertex[i];
    for (int32_t s = 0; s < v->n_segments; s++) {
        int64_t more = v->segments[s].bytes[k] - x->allowed[i][s];
        for (int32_t t = v->segments[s].lo; t < v->segments[s].hi && more > 0; t++)
            if (x->usage[t] + more > x->r->g->capacity[t])
                return;
    }
    for (int32_t s = 0; s < v->n_segments; s++) {
        int64_t more = v->segments[s].bytes[k] - x->allowed[i][s];
        for (int32_t t = v->segments[s].lo; t < v->segments[s].hi && more > 0; t++)
            x->usage[t] += more;
        x->allowed[i][s] += more > 0 ? more : 0;
    }
}

/* Take from I what it has beyond choice K. False: K takes more somewhere, or nothing less. */
static bool lower_allowance(struct mpp_pw_restart *x, int32_t i, int32_t k)
{
    const struct mpp_pw_vertex *v = &x->r->vertex[i];
    bool less = false;
    for (int32_t s = 0; s < v->n_segments; s++) {
        if (v->segments[s].bytes[k] > x->allowed[i][s])
            return false;
        less |= v->segments[s].bytes[k] < x->allowed[i][s];
    }
    for (int32_t s = 0; s < v->n_segments; s++) {
        for (int32_t t = v->segments[s].lo; t < v->segments[s].hi; t++)
            x->usage[t] -= x->allowed[i][s] - v->segments[s].bytes[k];
        x->allowed[i][s] = v->segments[s].bytes[k];
    }
    return less;
}

static void bar(struct mpp_pw_restart *x)
{
    for (int32_t i = 0; i < x->r->n; i++) {
        const struct mpp_pw_vertex *v = &x->r->vertex[i];
        for (int32_t k = 0; k < v->n; k++) {
            bool within = true;
            for (int32_t s = 0; s < v->n_segments; s++)
                within &= v->segments[s].bytes[k] <= x->allowed[i][s];
            x->priced[i][k] = within ? 0 : HUGE_VAL;
        }
    }
}

static void draw_allowances(struct mpp_pw_restart *x)
{
    const struct mpp_pw_relax *r = x->r;
    (void)mpp_pw_relax_excess(x->r, x->choice);
    memcpy(x->usage, r->usage, (size_t)r->n_rows * sizeof *x->usage);
    memset(x->must, 0, (size_t)r->n * sizeof *x->must);
    for (int32_t i = 0; i < r->n; i++)
        for (int32_t s = 0; s < r->vertex[i].n_segments; s++)
            x->allowed[i][s] = r->vertex[i].segments[s].bytes[x->choice[i]];
    int32_t lowered = x->n_users > 0 ? mpp_pw_draw_below(x->random, MOST_LOWERED + 1) : 0;
    for (int32_t j = 0; j < lowered * LOWER_TRIES && lowered > 0; j++) {
        int32_t i = x->user[mpp_pw_draw_below(x->random, x->n_users)];
        if (lower_allowance(x, i, mpp_pw_draw_below(x->random, r->vertex[i].n))) {
            x->must[i] = true;
            lowered--;
        }
    }
    for (int32_t j = x->n_users; j > 0; j--) {
        int32_t at = mpp_pw_draw_below(x->random, j), i = x->user[at];
        x->user[at] = x->user[j - 1];
        x->user[j - 1] = i;
        for (int n = 0; n < RAISES && !x->must[i]; n++)
            raise_allowance(x, i, mpp_pw_draw_below(x->random, r->vertex[i].n));
    }
    bar(x);
}

static void reallot(struct mpp_pw_restart *x)
{
    draw_allowances(x);
    struct mpp_pw_buckets *b = draw_plan(x, x->must);
    memcpy(x->next, x->choice, (size_t)x->r->n * sizeof *x->next);
    mpp_pw_buckets_settle(b, x->priced, x->next);
    x->r->work += b->entries;
    mpp_pw_buckets_free(b);
    x->idle++;
    if (mpp_pw_relax_excess(x->r, x->next) > 0)
        return;
    int64_t cost = mpp_pw_relax_cost(x->r, x->next);
    double worse = WORSE * (double)x->start_cost * draw_unit(x->random) * draw_unit(x->random);
    if ((double)cost > (double)x->cost + worse)
        return;
    x->cost = cost;
    memcpy(x->choice, x->next, (size_t)x->r->n * sizeof *x->choice);
    keep(x, x->choice, cost);
}

void mpp_pw_restart_run(struct mpp_pw_restart *x, int64_t work, const struct mpp_pw_watch *watch)
{
    int64_t end = x->r->work + work;
    while (x->r->n > 0 && x->r->work < end && !watch->expired(watch->context)) {
        if (x->within)
            reallot(x);
        else
            swing(x);
        if (x->within && x->idle > PATIENCE_PER_VERTEX * x->r->n)
            start(x);
    }
}
