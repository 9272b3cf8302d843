/* blocks.c - choices and prices that follow each other.
 *
 * A block is nearly the whole problem, or what lies around a random place. Buckets (bucket.c) settle it exactly, a few
 * vertices held, with bytes at prices: the choice moves to where cost and priced bytes are least, whether it fits or not.
 * Then prices take a step of Polyak's: rows over capacity become dearer, rows with room cheaper. So choices hover about the
 * capacity, near the least of Lagrange's function for ever better prices; the cheapest that fits is kept. */
#include <math.h>
#include <string.h>

#include "solver/bucket.h"
#include "solver/pairwise_internal.h"

enum { WORK_PER_STEP = 8, FREED = 6, SMALLEST = 64, HALVINGS = 4 };
static const double TABLE = 1e5, LENGTH = 0.1, AT_LEAST = 1e-3, AT_FIRST = 0.05;

struct mpp_pw_blocks {
    struct mpp_arena *arena;
    struct mpp_pw_relax *r;
    struct mpp_pw_random *random;
    struct mpp_pw_pool pool;
    int32_t *choice, *next;       /* [n] now, and of the block's settling */
    double cost;                  /* of choice, scaled; exact */
    int32_t *kept;                /* [n] the cheapest choice that fitted, and its cost */
    double kept_cost;
    int64_t *usage;               /* [n_rows] bytes now */
    double *price, *sum;          /* [n_rows], [n_rows + 1] */
    double **priced;              /* [n][choices] */
    int32_t n_members, *member, *frontier;
    bool *in, *free;              /* [n] is a member; shall not be held */
};

static int32_t link_at(const struct mpp_pw_vertex *v, int32_t i)
{
    return i < v->n_before ? v->before[i] : v->after[i - v->n_before];
}

static int32_t far_end(const struct mpp_pw_link *x, int32_t i)
{
    return x->a == i ? x->b : x->a;
}

static double pair_of(const struct mpp_pw_link *x, const int32_t *choice)
{
    return x->cost[(int64_t)choice[x->a] * x->n_b + choice[x->b]];
}

static double cost_of(const struct mpp_pw_relax *r, const int32_t *choice)
{
    double sum = 0;
    for (int32_t i = 0; i < r->n; i++)
        sum += r->vertex[i].cost[choice[i]];
    for (int32_t i = 0; i < r->n_links; i++)
        sum += pair_of(&r->link[i], choice);
    return sum;
}

/* ---- the state ----------------------------------------------------------------------------------------------- */

/* Cost and bytes of the present choice; it is kept if it fits and is the cheapest. */
static void look(struct mpp_pw_blocks *b)
{
    bool fits = mpp_pw_relax_excess(b->r, b->choice) <= 0;
    b->cost = cost_of(b->r, b->choice);
    memcpy(b->usage, b->r->usage, (size_t)b->r->n_rows * sizeof *b->usage);
    if (!fits || b->cost >= b->kept_cost)
        return;
    b->kept_cost = b->cost;
    memcpy(b->kept, b->choice, (size_t)b->r->n * sizeof *b->kept);
}

static void price_member(struct mpp_pw_blocks *b, int32_t i)
{
    const struct mpp_pw_vertex *v = &b->r->vertex[i];
    for (int32_t k = 0; k < v->n && v->n_segments > 0; k++) {
        double x = 0;
        for (int32_t s = 0; s < v->n_segments; s++)
            x += (b->sum[v->segments[s].hi] - b->sum[v->segments[s].lo]) * (double)v->segments[s].bytes[k];
        b->priced[i][k] = x;
    }
}

static void price_bytes(struct mpp_pw_blocks *b)
{
    for (int32_t t = 0; t < b->r->n_rows; t++)
        b->sum[t + 1] = b->sum[t] + b->price[t];
    for (int32_t at = 0; at < b->n_members; at++)
        price_member(b, b->member[at]);
}

struct mpp_pw_blocks *mpp_pw_blocks_new(struct mpp_pw_relax *r, const int32_t *choice, struct mpp_pw_random *random)
{
    struct mpp_arena *arena = mpp_arena_scratch(r->arena);
    struct mpp_pw_blocks *b = mpp_arena_array(arena, 1, struct mpp_pw_blocks);
    *b = (struct mpp_pw_blocks){.arena = arena, .r = r, .random = random, .kept_cost = HUGE_VAL};
    b->choice = mpp_arena_memdup(arena, choice, (size_t)r->n * sizeof *choice);
    b->next = mpp_arena_memdup(arena, choice, (size_t)r->n * sizeof *choice);
    b->kept = mpp_arena_array(arena, r->n, int32_t);
    b->usage = mpp_arena_array(arena, r->n_rows, int64_t);
    b->price = mpp_arena_array(arena, r->n_rows, double);
    b->sum = mpp_arena_array(arena, r->n_rows + 1, double);
    b->priced = mpp_arena_array(arena, r->n, double *);
    b->member = mpp_arena_array(arena, r->n, int32_t);
    b->frontier = mpp_arena_array(arena, r->n + 2 * (int64_t)r->n_links, int32_t);
    b->in = mpp_arena_array(arena, r->n, bool);
    b->free = mpp_arena_array(arena, r->n, bool);
    for (int32_t i = 0; i < r->n; i++)
        b->priced[i] = mpp_arena_array(arena, r->vertex[i].n, double);
    for (int32_t t = 0; t < r->n_rows; t++)
        b->price[t] = ldexp((double)r->price[t], -r->price_bits);
    look(b);
    return b;
}

void mpp_pw_blocks_free(struct mpp_pw_blocks *b)
{
    if (b == NULL)
        return;
    mpp_arena_free(b->pool.arena);
    mpp_arena_free(b->arena);
}

const int32_t *mpp_pw_blocks_best(const struct mpp_pw_blocks *b)
{
    return b->kept_cost < HUGE_VAL ? b->kept : NULL;
}

void mpp_pw_blocks_offer(struct mpp_pw_blocks *b, const int32_t *choice)
{
    if (mpp_pw_relax_excess(b->r, choice) > 0 || cost_of(b->r, choice) >= b->kept_cost)
        return;
    memcpy(b->choice, choice, (size_t)b->r->n * sizeof *choice);
    look(b);
}

/* ---- members --------------------------------------------------------------------------------------------------- */

static void gather(struct mpp_pw_blocks *b, int32_t size)
{
    const struct mpp_pw_relax *r = b->r;
    int32_t n = 0;
    memset(b->in, 0, (size_t)r->n * sizeof *b->in);
    b->n_members = 0;
    if (size >= r->n) {
        for (int32_t i = 0; i < r->n; i++)
            b->member[b->n_members++] = i;
        return;
    }
    b->frontier[n++] = mpp_pw_draw_below(b->random, r->n);
    while (n > 0 && b->n_members < size) {
        int32_t at = mpp_pw_draw_below(b->random, n), i = b->frontier[at];
        const struct mpp_pw_vertex *v = &r->vertex[i];
        b->frontier[at] = b->frontier[--n];
        if (b->in[i])
            continue;
        b->in[i] = true;
        b->member[b->n_members++] = i;
        for (int32_t j = 0; j < v->n_before + v->n_after; j++) {
            int32_t y = far_end(&r->link[link_at(v, j)], i);
            if (!b->in[y])
                b->frontier[n++] = y;
        }
    }
}

/* Some ends of random links, mostly hubs, are not to be held. */
static void choose_free(struct mpp_pw_blocks *b)
{
    int32_t n = mpp_pw_draw_below(b->random, FREED + 1);
    memset(b->free, 0, (size_t)b->r->n * sizeof *b->free);
    for (int32_t i = 0; i < n && b->r->n_links > 0; i++) {
        const struct mpp_pw_link *x = &b->r->link[mpp_pw_draw_below(b->random, b->r->n_links)];
        b->free[mpp_pw_draw_below(b->random, 2) ? x->a : x->b] = true;
    }
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

/* Polyak's step: what the cheapest choice that fits costs more than Lagrange's function is the way to go. */
static void step_prices(struct mpp_pw_blocks *b)
{
    double square = 0, lagrangian = b->cost;
    for (int32_t t = 0; t < b->r->n_rows; t++) {
        double x = (double)(b->usage[t] - b->r->g->capacity[t]);
        lagrangian += b->price[t] * x;
        square += x > 0 || b->price[t] > 0 ? x * x : 0;
    }
    double gap = b->kept_cost < HUGE_VAL ? b->kept_cost - lagrangian : AT_FIRST * fabs(lagrangian);
    gap = fmax(gap, AT_LEAST * fabs(lagrangian));
    if (square == 0 || !(gap < HUGE_VAL))
        return;
    for (int32_t t = 0; t < b->r->n_rows; t++) {
        double x = (double)(b->usage[t] - b->r->g->capacity[t]);
        if (x > 0 || b->price[t] > 0)
            b->price[t] = fmax(b->price[t] + LENGTH * gap / square * x, 0);
    }
}

static void settle_block(struct mpp_pw_blocks *b)
{
    int32_t size = b->r->n >> mpp_pw_draw_below(b->random, HALVINGS);
    gather(b, size < SMALLEST ? SMALLEST : size);
    choose_free(b);
    price_bytes(b);
    struct mpp_pw_buckets *x = mpp_pw_buckets_new(b->r, b->member, b->n_members, b->free, TABLE, &b->pool, b->random);
    mpp_pw_buckets_settle(x, b->priced, b->choice);
    b->r->work += x->entries + x->planning * WORK_PER_STEP + (int64_t)(b->r->n + b->r->n_links + b->r->n_rows) * 2;
    mpp_pw_buckets_free(x);
}

void mpp_pw_blocks_run(struct mpp_pw_blocks *b, int64_t work, const struct mpp_pw_watch *watch)
{
    int64_t end = b->r->work + work;
    while (b->r->n > 0 && b->r->work < end && !watch->expired(watch->context)) {
        settle_block(b);
        look(b);
        step_prices(b);
    }
}
