/* descent.c - good choices by block descent.
 *
 * A block is a set of vertices whose links among each other form a tree. With all other choices held, dynamic programming
 * on the tree settles the whole block at its cheapest, bytes at a multiple of the dual prices. The move is made if it
 * costs less and every row stays within capacity. Sizes, roots and multiples are drawn at random.
 *
 * Phases that accept a move by its cost alternate with phases that count bytes at their price too: what costs a little more
 * and makes room lets something else become cheaper. The best choice is kept; after some phases without a better one the
 * search goes back to it.
 *
 * While rows are over capacity, their prices are raised step by step, and blocks move to what is cheapest with them. */
#include <math.h>
#include <string.h>

#include "solver/pairwise_internal.h"

static const double MULTIPLE[] = {0, 0.3, 0.7, 1, 1, 1.3, 2, 4};
static const double WEIGHT[] = {0.25, 0.5, 1, 1};
enum { N_WEIGHTS = sizeof WEIGHT / sizeof WEIGHT[0], BLOCKS_PER_PHASE = 16, LEAST_BLOCKS = 64, PATIENCE = 12 };
enum { N_MULTIPLES = sizeof MULTIPLE / sizeof MULTIPLE[0], SMALLEST_BLOCK = 3, N_SIZES = 9, HUB_LINKS = 200, WATCH_BLOCKS = 16,
       WORK_PER_BLOCK = 100 };

struct mpp_pw_descent {
    struct mpp_arena *arena;
    struct mpp_pw_relax *r;
    struct mpp_pw_random *random;
    int32_t *choice, *next;       /* [n] now, and of the block's move */
    double cost;                  /* of choice, scaled; exact */
    int32_t *kept;                /* [n] the cheapest choice that fitted, and its cost */
    double kept_cost;
    double weight;                /* of priced bytes when a move is judged */
    int64_t *usage, *delta;       /* [n_rows + 1] bytes now; differences of the move */
    int64_t excess;               /* bytes over capacity, summed over rows */
    double **priced;              /* [n][choices] price of bytes: dual prices, or penalties while over capacity */
    double *price, *sum;          /* [n_rows], [n_rows + 1] */
    double **beside;              /* [n][choices] what all links cost at the far ends' present choices, forbidden pairs apart */
    int32_t **barred;             /* [n][choices] how many of those are forbidden */
    /* the block: a tree; no link joins two members but a parent and its child */
    int32_t n, *order, *parent, *link;
    int64_t *stamp, now;          /* stamp[i] == now: in the block, whose root is order[0] */
    int64_t *touched;             /* touched[i] == now: inside[i] members are linked to I */
    int32_t *inside, *frontier, *frontier_link;
    double **alone;               /* [n][choices] own cost and links out of the block */
    int32_t **shut;               /* [n][choices] forbidden pairs among the latter */
    double **value;               /* [n][choices] of the subtree, bytes at their price */
    int32_t **best;               /* [n][choices of the parent] */
};

static uint64_t draw(struct mpp_pw_random *random)
{
    uint64_t x = random->state; /* Marsaglia's xorshift64 */
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return random->state = x;
}

int32_t mpp_pw_draw_below(struct mpp_pw_random *random, int32_t n)
{
    return (int32_t)(draw(random) % (uint64_t)n);
}

/* ---- prices ---------------------------------------------------------------------------------------------- */

static void price_bytes(struct mpp_pw_descent *d)
{
    for (int32_t t = 0; t < d->r->n_rows; t++)
        d->sum[t + 1] = d->sum[t] + d->price[t];
    for (int32_t i = 0; i < d->r->n; i++) {
        const struct mpp_pw_vertex *v = &d->r->vertex[i];
        for (int32_t k = 0; k < v->n && v->n_segments > 0; k++) {
            double x = 0;
            for (int32_t s = 0; s < v->n_segments; s++)
                x += (d->sum[v->segments[s].hi] - d->sum[v->segments[s].lo]) * (double)v->segments[s].bytes[k];
            d->priced[i][k] = x;
        }
    }
}

static void use_dual_prices(struct mpp_pw_descent *d)
{
    for (int32_t t = 0; t < d->r->n_rows; t++)
        d->price[t] = ldexp((double)d->r->price[t], -d->r->price_bits);
    price_bytes(d);
}

/* ---- the state --------------------------------------------------------------------------------------------- */

static double cost_of(const struct mpp_pw_relax *r, const int32_t *choice)
{
    double sum = 0;
    for (int32_t i = 0; i < r->n; i++)
        sum += r->vertex[i].cost[choice[i]];
    for (int32_t i = 0; i < r->n_links; i++)
        sum += r->link[i].cost[(int64_t)choice[r->link[i].a] * r->link[i].n_b + choice[r->link[i].b]];
    return sum;
}

static int64_t over(int64_t usage, int64_t capacity)
{
    return usage > capacity ? usage - capacity : 0;
}

void mpp_pw_descent_free(struct mpp_pw_descent *d)
{
    if (d != NULL)
        mpp_arena_free(d->arena);
}

const int32_t *mpp_pw_descent_best(const struct mpp_pw_descent *d)
{
    return d->kept_cost < HUGE_VAL ? d->kept : NULL;
}

static bool fits_now(const struct mpp_pw_descent *d)
{
    return d->excess == 0 && d->cost < HUGE_VAL;
}

/* Row of LINK's table for vertex I where the far end takes L. */
static const double *row_of(const struct mpp_pw_link *x, int32_t i, int32_t l)
{
    return x->a == i ? x->flipped + (int64_t)l * x->n_a : x->cost + (int64_t)l * x->n_b;
}

/* Add a row of a table (SIGN 1) to sums and counts of forbidden entries, or take it away (-1). */
static void add_row(double *sum, int32_t *forbidden, const double *row, int32_t n, int sign)
{
    for (int32_t k = 0; k < n; k++) {
        bool allowed = row[k] < HUGE_VAL;
        sum[k] += allowed ? sign * row[k] : 0;
        forbidden[k] += allowed ? 0 : sign;
    }
}

static void look_beside(struct mpp_pw_descent *d)
{
    for (int32_t i = 0; i < d->r->n; i++) {
        memset(d->beside[i], 0, (size_t)d->r->vertex[i].n * sizeof *d->beside[i]);
        memset(d->barred[i], 0, (size_t)d->r->vertex[i].n * sizeof *d->barred[i]);
    }
    for (int32_t j = 0; j < d->r->n_links; j++) {
        const struct mpp_pw_link *x = &d->r->link[j];
        add_row(d->beside[x->a], d->barred[x->a], row_of(x, x->a, d->choice[x->b]), x->n_a, 1);
        add_row(d->beside[x->b], d->barred[x->b], row_of(x, x->b, d->choice[x->a]), x->n_b, 1);
    }
}

/* The present choice becomes the one to go back to, if it is the best. */
static bool keep_best(struct mpp_pw_descent *d)
{
    if (!fits_now(d) || d->cost >= d->kept_cost)
        return false;
    d->kept_cost = d->cost;
    memcpy(d->kept, d->choice, (size_t)d->r->n * sizeof *d->kept);
    return true;
}

static void set_choice(struct mpp_pw_descent *d, const int32_t *choice)
{
    memmove(d->choice, choice, (size_t)d->r->n * sizeof *choice);
    d->cost = cost_of(d->r, choice);
    d->excess = 0;
    (void)mpp_pw_relax_excess(d->r, choice);
    for (int32_t t = 0; t < d->r->n_rows; t++) {
        d->usage[t] = d->r->usage[t];
        d->excess += over(d->usage[t], d->r->g->capacity[t]);
    }
    look_beside(d);
}

struct mpp_pw_descent *mpp_pw_descent_new(struct mpp_pw_relax *r, const int32_t *choice, struct mpp_pw_random *random)
{
    struct mpp_arena *arena = mpp_arena_scratch(r->arena);
    struct mpp_pw_descent *d = mpp_arena_array(arena, 1, struct mpp_pw_descent);
    int32_t most = 1;
    *d = (struct mpp_pw_descent){.arena = arena, .r = r, .random = random};
    d->choice = mpp_arena_memdup(arena, choice, (size_t)r->n * sizeof *choice);
    d->next = mpp_arena_array(arena, r->n, int32_t);
    d->kept = mpp_arena_array(arena, r->n, int32_t);
    d->usage = mpp_arena_array(arena, r->n_rows + 1, int64_t);
    d->delta = mpp_arena_array(arena, r->n_rows + 1, int64_t);
    d->price = mpp_arena_array(arena, r->n_rows, double);
    d->sum = mpp_arena_array(arena, r->n_rows + 1, double);
    d->priced = mpp_arena_array(arena, r->n, double *);
    d->value = mpp_arena_array(arena, r->n, double *);
    d->best = mpp_arena_array(arena, r->n, int32_t *);
    d->order = mpp_arena_array(arena, r->n, int32_t);
    d->parent = mpp_arena_array(arena, r->n, int32_t);
    d->link = mpp_arena_array(arena, r->n, int32_t);
    d->stamp = mpp_arena_array(arena, r->n, int64_t);
    d->touched = mpp_arena_array(arena, r->n, int64_t);
    d->inside = mpp_arena_array(arena, r->n, int32_t);
    d->frontier = mpp_arena_array(arena, r->n, int32_t);
    d->frontier_link = mpp_arena_array(arena, r->n, int32_t);
    d->beside = mpp_arena_array(arena, r->n, double *);
    d->barred = mpp_arena_array(arena, r->n, int32_t *);
    d->alone = mpp_arena_array(arena, r->n, double *);
    d->shut = mpp_arena_array(arena, r->n, int32_t *);
    for (int32_t i = 0; i < r->n; i++)
        most = r->vertex[i].n > most ? r->vertex[i].n : most;
    for (int32_t i = 0; i < r->n; i++) {
        d->priced[i] = mpp_arena_array(arena, r->vertex[i].n, double);
        d->value[i] = mpp_arena_array(arena, r->vertex[i].n, double);
        d->beside[i] = mpp_arena_array(arena, r->vertex[i].n, double);
        d->barred[i] = mpp_arena_array(arena, r->vertex[i].n, int32_t);
        d->alone[i] = mpp_arena_array(arena, r->vertex[i].n, double);
        d->shut[i] = mpp_arena_array(arena, r->vertex[i].n, int32_t);
        d->best[i] = mpp_arena_array(arena, most, int32_t);
    }
    d->kept_cost = HUGE_VAL;
    set_choice(d, choice);
    (void)keep_best(d);
    use_dual_prices(d);
    return d;
}

/* ---- blocks -------------------------------------------------------------------------------------------------- */

static int32_t link_at(const struct mpp_pw_vertex *v, int32_t i)
{
    return i < v->n_before ? v->before[i] : v->after[i - v->n_before];
}

static int32_t far_end(const struct mpp_pw_link *x, int32_t i)
{
    return x->a == i ? x->b : x->a;
}

static bool in_block(const struct mpp_pw_descent *d, int32_t i)
{
    return d->stamp[i] == d->now;
}

/* I is a member now: its neighbours count one more link into the block; those with one may join. */
static int32_t extend_frontier(struct mpp_pw_descent *d, int32_t i, int32_t n)
{
    const struct mpp_pw_vertex *v = &d->r->vertex[i];
    for (int32_t j = 0; j < v->n_before + v->n_after; j++) {
        int32_t x = link_at(v, j), y = far_end(&d->r->link[x], i);
        if (d->touched[y] != d->now) {
            d->touched[y] = d->now;
            d->inside[y] = 0;
        }
        if (++d->inside[y] > 1 || in_block(d, y))
            continue;
        d->frontier[n] = y;
        d->frontier_link[n++] = x;
    }
    d->r->work += v->n_before + v->n_after;
    return n;
}

/* Can Y join as a leaf: one link into the block? Those with very many links join now and then only. */
static bool joins(struct mpp_pw_descent *d, int32_t y)
{
    const struct mpp_pw_vertex *v = &d->r->vertex[y];
    bool hub = v->n_before + v->n_after > HUB_LINKS;
    return !in_block(d, y) && d->inside[y] == 1 && (!hub || mpp_pw_draw_below(d->random, 4) == 0);
}

static void grow_block(struct mpp_pw_descent *d, int32_t root, int32_t size)
{
    d->now++;
    d->r->work += WORK_PER_BLOCK;
    d->n = 1;
    d->order[0] = root;
    d->stamp[root] = d->now;
    int32_t n = extend_frontier(d, root, 0);
    while (n > 0 && d->n < size) {
        int32_t at = mpp_pw_draw_below(d->random, n), y = d->frontier[at], x = d->frontier_link[at];
        d->frontier[at] = d->frontier[n - 1];
        d->frontier_link[at] = d->frontier_link[--n];
        if (!joins(d, y))
            continue;
        d->stamp[y] = d->now;
        d->parent[y] = far_end(&d->r->link[x], y);
        d->link[y] = x;
        d->order[d->n++] = y;
        n = extend_frontier(d, y, n);
    }
}

/* What each member's choices cost without the block's own links: those of the tree, and no others. */
static void value_alone(struct mpp_pw_descent *d)
{
    for (int32_t at = 0; at < d->n; at++) {
        int32_t i = d->order[at], n = d->r->vertex[i].n;
        for (int32_t k = 0; k < n; k++)
            d->alone[i][k] = d->r->vertex[i].cost[k] + d->beside[i][k];
        memcpy(d->shut[i], d->barred[i], (size_t)n * sizeof *d->shut[i]);
    }
    for (int32_t at = 1; at < d->n; at++) {
        int32_t i = d->order[at], p = d->parent[i];
        const struct mpp_pw_link *x = &d->r->link[d->link[i]];
        add_row(d->alone[i], d->shut[i], row_of(x, i, d->choice[p]), d->r->vertex[i].n, -1);
        add_row(d->alone[p], d->shut[p], row_of(x, p, d->choice[i]), d->r->vertex[p].n, -1);
    }
    for (int32_t at = 0; at < d->n; at++) {
        int32_t i = d->order[at];
        for (int32_t k = 0; k < d->r->vertex[i].n; k++)
            d->alone[i][k] = d->shut[i][k] > 0 ? HUGE_VAL : d->alone[i][k];
        d->r->work += 4 * (int64_t)d->r->vertex[i].n;
    }
}

/* The block's cheapest choices into next. True if they differ from the present ones. */
static bool settle_block(struct mpp_pw_descent *d, double multiple)
{
    value_alone(d);
    for (int32_t at = 0; at < d->n; at++) {
        int32_t i = d->order[at];
        for (int32_t k = 0; k < d->r->vertex[i].n; k++)
            d->value[i][k] = d->alone[i][k] + multiple * d->priced[i][k];
    }
    for (int32_t at = d->n - 1; at > 0; at--) {
        int32_t i = d->order[at], p = d->parent[i], n = d->r->vertex[i].n, n_parent = d->r->vertex[p].n;
        const struct mpp_pw_link *x = &d->r->link[d->link[i]];
        for (int32_t l = 0; l < n_parent; l++) {
            const double *row = row_of(x, i, l);
            double least = HUGE_VAL;
            int32_t best = d->choice[i];
            for (int32_t k = 0; k < n; k++)
                if (d->value[i][k] + row[k] < least) {
                    least = d->value[i][k] + row[k];
                    best = k;
                }
            d->value[p][l] += least;
            d->best[i][l] = best;
        }
        d->r->work += (int64_t)n * n_parent;
    }
    int32_t root = d->order[0], best = d->choice[root];
    for (int32_t k = 0; k < d->r->vertex[root].n; k++)
        if (d->value[root][k] < d->value[root][best])
            best = k;
    bool differs = best != d->choice[root];
    d->next[root] = best;
    for (int32_t at = 1; at < d->n; at++) {
        int32_t i = d->order[at];
        d->next[i] = d->best[i][d->next[d->parent[i]]];
        differs |= d->next[i] != d->choice[i];
    }
    return differs;
}

/* What the move costs more, and its bytes at the present prices. */
static double cost_more(const struct mpp_pw_descent *d, double *out_priced)
{
    double sum = 0, priced = 0;
    for (int32_t at = 0; at < d->n; at++) {
        int32_t i = d->order[at], k = d->next[i], was = d->choice[i];
        if (k != was) {
            sum += d->alone[i][k] - d->alone[i][was];
            priced += d->priced[i][k] - d->priced[i][was];
        }
        if (at == 0)
            continue;
        const struct mpp_pw_link *x = &d->r->link[d->link[i]];
        int32_t p = d->parent[i];
        if (k != was || d->next[p] != d->choice[p])
            sum += row_of(x, i, d->next[p])[k] - row_of(x, i, d->choice[p])[was];
    }
    *out_priced = priced;
    return sum;
}

/* Bytes that the move adds, as differences in delta over rows [lo, hi). */
static void bytes_more(struct mpp_pw_descent *d, int32_t *lo, int32_t *hi)
{
    *lo = d->r->n_rows;
    *hi = 0;
    for (int32_t at = 0; at < d->n; at++) {
        int32_t i = d->order[at], k = d->next[i], was = d->choice[i];
        const struct mpp_pw_vertex *v = &d->r->vertex[i];
        for (int32_t s = 0; s < v->n_segments && k != was; s++) {
            const struct mpp_pw_segment *x = &v->segments[s];
            int64_t more = x->bytes[k] - x->bytes[was];
            if (more == 0)
                continue;
            d->delta[x->lo] += more;
            d->delta[x->hi] -= more;
            *lo = x->lo < *lo ? x->lo : *lo;
            *hi = x->hi > *hi ? x->hi : *hi;
        }
    }
}

/* Vertex I changes from WAS to K: its neighbours look at another row. */
static void tell_neighbours(struct mpp_pw_descent *d, int32_t i, int32_t was, int32_t k)
{
    const struct mpp_pw_vertex *v = &d->r->vertex[i];
    for (int32_t j = 0; j < v->n_before + v->n_after; j++) {
        const struct mpp_pw_link *x = &d->r->link[link_at(v, j)];
        int32_t y = far_end(x, i), n = d->r->vertex[y].n;
        add_row(d->beside[y], d->barred[y], row_of(x, y, was), n, -1);
        add_row(d->beside[y], d->barred[y], row_of(x, y, k), n, 1);
        d->r->work += 2 * n;
    }
}

static void make_move(struct mpp_pw_descent *d, int32_t lo, int32_t hi, double more)
{
    int64_t sum = 0;
    for (int32_t t = lo; t < hi; t++) {
        sum += d->delta[t];
        d->excess -= over(d->usage[t], d->r->g->capacity[t]);
        d->usage[t] += sum;
        d->excess += over(d->usage[t], d->r->g->capacity[t]);
    }
    for (int32_t at = 0; at < d->n; at++) {
        int32_t i = d->order[at];
        if (d->next[i] != d->choice[i])
            tell_neighbours(d, i, d->choice[i], d->next[i]);
        d->choice[i] = d->next[i];
    }
    d->cost += more;
}

/* Make the move if it is cheaper, or as cheap with bytes that are, and fits; RISES_TOO: whatever it costs. */
static void try_move(struct mpp_pw_descent *d, bool rises_too)
{
    double priced, more = cost_more(d, &priced);
    double judged = more + d->weight * priced;
    if (!rises_too && !(judged < 0 || (judged == 0 && priced < 0)))
        return;
    int32_t lo, hi;
    int64_t sum = 0;
    bool fits = true;
    bytes_more(d, &lo, &hi);
    for (int32_t t = lo; t < hi && fits && !rises_too; t++) {
        sum += d->delta[t];
        fits = sum <= 0 || d->usage[t] + sum <= d->r->g->capacity[t];
    }
    d->r->work += 2 * (hi > lo ? hi - lo : 0);
    if (fits)
        make_move(d, lo, hi, more);
    for (int32_t t = lo; t <= hi && lo < hi; t++)
        d->delta[t] = 0;
}

/* ---- runs ------------------------------------------------------------------------------------------------------ */

static void random_block(struct mpp_pw_descent *d)
{
    int32_t size = SMALLEST_BLOCK << mpp_pw_draw_below(d->random, N_SIZES);
    grow_block(d, mpp_pw_draw_below(d->random, d->r->n), size);
}

/* Penalties on rows that are over grow, blocks follow; costs matter less from round to round. */
static void bring_down_excess(struct mpp_pw_descent *d, int64_t work_end, const struct mpp_pw_watch *watch)
{
    double start = 1;
    for (int32_t t = 0; t < d->r->n_rows; t++)
        start += (double)d->r->g->capacity[t];
    start = (d->cost < HUGE_VAL ? fabs(d->cost) + 1 : 0x1p30) / start;
    while ((d->excess > 0 || d->cost >= HUGE_VAL) && d->r->work < work_end && !watch->expired(watch->context)) {
        for (int32_t t = 0; t < d->r->n_rows; t++)
            if (d->usage[t] > d->r->g->capacity[t])
                d->price[t] = d->price[t] * 1.5 + start;
        price_bytes(d);
        for (int32_t i = 0; i < d->r->n; i += d->n) {
            random_block(d);
            if (settle_block(d, 1))
                try_move(d, true);
        }
        d->cost = cost_of(d->r, d->choice);
    }
    use_dual_prices(d);
}

/* Blocks of one phase. */
static void run_phase(struct mpp_pw_descent *d, int32_t n_blocks, int64_t work_end, const struct mpp_pw_watch *watch)
{
    for (int32_t i = 0; i < n_blocks && d->r->work < work_end; i++) {
        if (i % WATCH_BLOCKS == 0 && watch->expired(watch->context))
            break;
        random_block(d);
        if (settle_block(d, MULTIPLE[mpp_pw_draw_below(d->random, N_MULTIPLES)]))
            try_move(d, false);
    }
}

void mpp_pw_descent_run(struct mpp_pw_descent *d, int64_t work, const struct mpp_pw_watch *watch)
{
    int64_t end = d->r->work + work;
    int32_t n_blocks = d->r->n / BLOCKS_PER_PHASE + LEAST_BLOCKS, idle = 0;
    if (d->r->n == 0)
        return;
    if (!fits_now(d))
        bring_down_excess(d, end, watch);
    while (fits_now(d) && d->r->work < end && !watch->expired(watch->context)) {
        d->weight = 0;
        run_phase(d, n_blocks, end, watch);
        idle = keep_best(d) ? 0 : idle + 1;
        if (idle > PATIENCE) {
            set_choice(d, d->kept);
            idle = 0;
        }
        if (idle == 0)
            continue;
        d->weight = WEIGHT[mpp_pw_draw_below(d->random, N_WEIGHTS)];
        run_phase(d, n_blocks / 4, end, watch);
    }
    (void)keep_best(d);
}
