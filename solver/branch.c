/* branch.c - a tree over how many copies of a part choose what, where prices alone leave too much.
 *
 * What joins the components is memory, and the linear program over them (master.c) is as good a bound as prices give. What is
 * left of a gap comes from things so large that capacity is no multiple of them: it mixes, say, 12.4 layers of one kind with
 * 83.6 of another. So the count is taken to be at most 12 in one branch and at least 13 in another, as rows of memory of which
 * each such choice takes as much, and prices are looked for anew (branch and price: Barnhart et al., 1998). When the large
 * things are settled, the rest lies close to the bound, where pack.c finds it. The branch of the lowest bound goes first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "solver/pack.h"

enum { HUB_EDGES = 12, HUB_CHOICES = 6, CUT_BYTES = 1 << 20, LEFT_FREE = 2, MOST_NODES = 4000, MOST_CUTS = MPP_PW_LABEL_ROWS - 8, MOST_ROUNDS = 4 };
static const int64_t NODE_WORK = 1000000, DIVE_WORK = 3000000;
static const double WHOLE = 1e-6, WORTH = 8;

/* A part of what is to be searched: the graph with its cuts, as far as reduced costs have left it. */
struct twig {
    struct twig *up;              /* lives as long: what was done to its graph is part of the way back */
    int users;                    /* itself, as long as it is open, and its own twigs */
    struct mpp_arena *arena;
    struct mpp_pw_graph *g;
    int64_t bound;
    int depth, n_cuts;
    int32_t n_prices, *row;       /* prices that were good for it, by the rows' first numbers, ascending */
    int64_t *price;
};

struct tree {
    struct mpp_pw_graph *g;
    struct mpp_pw_pack *x;
    struct mpp_arena *arena, *scratch; /* scratch: of the twig in work */
    struct twig **twig;           /* open ones; NULL: settled */
    size_t n, cap;
    int64_t stuck;                /* the least bound of a twig that was given up */
    int32_t n_rows;               /* row numbers in use: the graph's, then those of cuts */
    /* Of the twig in work: */
    struct mpp_pw_items *items;
    struct mpp_pw_master *master;
    int32_t n_class, *in_class;   /* the nodes to branch on */
};

/* ---- prices ---------------------------------------------------------------------------------------------------- */

static void keep_prices(const struct mpp_pw_items *at, struct twig *to)
{
    to->n_prices = 0;
    to->row = mpp_arena_array(to->arena, at->g->n_rows, int32_t);
    to->price = mpp_arena_array(to->arena, at->g->n_rows, int64_t);
    for (int32_t t = 0; t < at->g->n_rows; t++)
        if (at->price[t] > 0) {
            to->row[to->n_prices] = at->g->row_first[t];
            to->price[to->n_prices++] = at->price[t];
        }
}

/* The twig's components, its prices at the rows of interest: those that had one, and all cuts. */
static void list_items(struct tree *t, const struct twig *twig)
{
    const struct mpp_pw_graph *g = twig->g;
    mpp_pw_items_free(t->items);
    struct mpp_pw_items *at = t->items = mpp_pw_items_new(g, t->scratch);
    for (int32_t q = 0, i = 0; q < g->n_rows; q++) {
        while (i < twig->n_prices && twig->row[i] < g->row_first[q])
            i++;
        at->price[q] = i < twig->n_prices && twig->row[i] == g->row_first[q] ? twig->price[i] : 0;
    }
    mpp_pw_items_choose_rows(at);
    for (int32_t q = 0; q < g->n_rows; q++) {
        bool known = false;
        for (int32_t r = 0; r < at->n_rows; r++)
            known |= at->row[r] == q;
        if (g->row_time[q] == INT32_MAX && !known && at->n_rows < MPP_PW_LABEL_ROWS)
            at->row[at->n_rows++] = q;
        else if (!known)
            at->price[q] = 0;
    }
}

/* What is settled in the twig costs so much more than in the whole graph. */
static int64_t settled(const struct tree *t, const struct twig *twig)
{
    return twig->g->constant - t->g->constant;
}

/* The best prices for the twig. False: there is no linear program of it. */
static bool find_prices(struct tree *t, struct twig *twig)
{
    list_items(t, twig);
    *t->master = (struct mpp_pw_master){.at = t->items, .upper = t->x->upper - settled(t, twig), .watch = t->x->watch, .arena = t->scratch};
    bool ok = mpp_pw_master_solve(t->master);
    int64_t bound = mpp_pw_add(t->master->bound, settled(t, twig));
    t->x->work += t->master->work;
    twig->bound = bound > twig->bound ? bound : twig->bound;
    keep_prices(t->items, twig);
    return ok;
}

/* Without the choices that nothing below the upper bound can make. False: no choice went. */
static bool fix(struct tree *t, struct twig *twig)
{
    struct mpp_pw_items *at = t->items;
    int64_t slack = t->x->upper - 1 - settled(t, twig) - at->bound, gone = 0;
    struct mpp_arena *scratch = mpp_arena_scratch(t->scratch);
    int64_t **over = mpp_arena_array(scratch, twig->g->n_nodes, int64_t *);
    int32_t *kept = mpp_arena_array(scratch, twig->g->most_choices, int32_t);
    for (int32_t i = 0; i < at->n_parts; i++)
        mpp_pw_part_marginals(at->part[i], twig->g, scratch, over);
    for (int32_t i = 0; i < at->n_parts; i++)
        for (int32_t m = 0; m < at->part[i]->n; m++) {
            int32_t node = at->part[i]->node[m], n = 0;
            for (int32_t k = 0; k < twig->g->nodes[node].n; k++)
                if (over[node][k] <= slack)
                    kept[n++] = k;
            gone += (int64_t)(twig->g->nodes[node].n - n) * at->part[i]->n_copies;
            for (int32_t q = at->part[i]->n_copies - 1; q >= 0 && n > 0; q--)
                mpp_pw_graph_keep(twig->g, at->part[i]->copy[q][m], kept, n);
        }
    mpp_arena_free(scratch);
    return gone > 0;
}

/* ---- what to branch on ------------------------------------------------------------------------------------------- */

struct split {
    double score;
    int32_t node;                 /* one of the class */
    double above, count;          /* choices that weigh more; how many of the class take one */
};

struct share {
    double weight, copies;
};

static int by_weight(const void *a, const void *b)
{
    const struct share *x = a, *y = b;
    return (x->weight > y->weight) - (x->weight < y->weight);
}

static double weight_of(const struct mpp_pw_items *at, int32_t node, int32_t k)
{
    double sum = 0;
    for (int32_t r = 0; r < at->n_rows; r++)
        sum += (double)at->price[at->row[r]] * (double)mpp_pw_bytes_at(&at->g->nodes[node], at->row[r], k);
    return sum;
}

static bool alike(const struct mpp_pw_items *at, int32_t a, int32_t b)
{
    const struct mpp_pw_node *v = &at->g->nodes[a], *w = &at->g->nodes[b];
    if (v->n != w->n || memcmp(v->cost, w->cost, (size_t)v->n * sizeof *v->cost) != 0)
        return false;
    for (int32_t r = 0; r < at->n_rows; r++)
        for (int32_t k = 0; k < v->n; k++)
            if (mpp_pw_bytes_at(v, at->row[r], k) != mpp_pw_bytes_at(w, at->row[r], k))
                return false;
    return true;
}

/* Nodes of equal costs and bytes are a class, whatever their components: FIRST [nodes] is its first node. */
static int32_t *find_classes(const struct tree *t)
{
    const struct mpp_pw_items *at = t->items;
    int32_t *first = mpp_arena_array(t->scratch, at->g->n_nodes, int32_t);
    size_t slots = 64;
    while (slots < 2 * (size_t)at->g->n_nodes)
        slots *= 2;
    int32_t *slot = mpp_arena_array(t->scratch, slots, int32_t);
    for (int32_t i = 0; i < at->g->n_nodes; i++) {
        const struct mpp_pw_node *v = &at->g->nodes[i];
        uint64_t h = UINT64_C(0xcbf29ce484222325);
        for (int32_t k = 0; k < v->n && !v->gone; k++) {
            h = (h ^ (uint64_t)v->cost[k]) * UINT64_C(0x9E3779B97F4A7C15) ^ h >> 29;
            for (int32_t r = 0; r < at->n_rows; r++)
                h = (h ^ (uint64_t)mpp_pw_bytes_at(v, at->row[r], k)) * UINT64_C(0x9E3779B97F4A7C15) ^ h >> 29;
        }
        size_t q = h & (slots - 1);
        while (!v->gone && slot[q] > 0 && !alike(at, slot[q] - 1, i))
            q = (q + 1) & (slots - 1);
        if (slot[q] == 0 && !v->gone)
            slot[q] = i + 1;
        first[i] = v->gone ? -1 : slot[q] - 1;
    }
    return first;
}

/* Where the nodes of a class that choose more than some weight are no whole number: the larger the difference, the better. */
static void look_at(const struct tree *t, int32_t node, const double *shares, struct split *best)
{
    int32_t n = t->items->g->nodes[node].n;
    struct mpp_arena *scratch = mpp_arena_scratch(t->scratch);
    struct share *x = mpp_arena_array(scratch, n, struct share);
    double all = 0, below = 0, sum = 0, sum_below = 0;
    for (int32_t k = 0; k < n; k++) {
        x[k] = (struct share){weight_of(t->items, node, k), shares[k]};
        all += x[k].copies;
        sum += x[k].copies * x[k].weight;
    }
    qsort(x, (size_t)n, sizeof *x, by_weight);
    for (int32_t k = 0; k + 1 < n; k++) {
        below += x[k].copies;
        sum_below += x[k].copies * x[k].weight;
        double part_of_one = fmin(below - floor(below), ceil(below) - below), above = all - below;
        if (x[k].weight == x[k + 1].weight || part_of_one < WHOLE || below < WHOLE || above < WHOLE)
            continue;
        double score = ldexp(part_of_one * ((sum - sum_below) / above - sum_below / below), -MPP_PW_PRICE_BITS);
        if (score > best->score)
            *best = (struct split){score, node, x[k].weight, above};
    }
    mpp_arena_free(scratch);
}

/* The class and weight that promise most, and its nodes. False: all counts are whole. */
static bool choose(struct tree *t, struct split *out)
{
    const struct mpp_pw_graph *g = t->items->g;
    int32_t *first = find_classes(t);
    double **shares = mpp_arena_array(t->scratch, g->n_nodes, double *);
    for (int32_t j = 0; j < t->master->n_columns; j++) {
        const struct mpp_pw_column *c = &t->master->column[j];
        const struct mpp_pw_part *part = t->items->part[c->part];
        for (int32_t m = 0; m < part->n; m++) {
            double **to = &shares[first[part->node[m]]];
            if (*to == NULL)
                *to = mpp_arena_array(t->scratch, g->nodes[part->node[m]].n, double);
            (*to)[c->choice[m]] += c->share;
        }
    }
    *out = (struct split){.score = 0, .node = -1};
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (shares[i] != NULL)
            look_at(t, i, shares[i], out);
    t->n_class = 0;
    t->in_class = mpp_arena_array(t->scratch, g->n_nodes, int32_t);
    for (int32_t i = 0; i < g->n_nodes && out->node >= 0; i++)
        if (first[i] == out->node)
            t->in_class[t->n_class++] = i;
    return out->node >= 0;
}

/* ---- the tree ------------------------------------------------------------------------------------------------------ */

/* An open twig: a copy of G that may be changed. */
static struct twig *add_twig(struct tree *t, const struct mpp_pw_graph *g, struct twig *up)
{
    struct mpp_arena *arena = mpp_arena_scratch(t->arena);
    struct twig *x = mpp_arena_array(arena, 1, struct twig);
    *x = (struct twig){.up = up, .users = 1, .arena = arena, .g = mpp_pw_graph_clone(g, arena), .bound = up ? up->bound : t->x->bound,
                       .depth = up ? up->depth + 1 : 0, .n_cuts = up ? up->n_cuts : 0};
    t->twig = mpp_arena_grow(t->arena, t->twig, &t->cap, t->n + 1, sizeof *t->twig);
    t->twig[t->n++] = x;
    if (up)
        up->users++;
    return x;
}

static void drop_twig(struct twig *x)
{
    mpp_arena_free(x->g->arena);
    x->g->arena = NULL;
    while (x && --x->users == 0) {
        struct twig *up = x->up;
        mpp_pw_graph_free(x->g);
        mpp_arena_free(x->arena);
        x = up;
    }
}

/* At most MOST of the N nodes NODE make a choice that is IN the set. */
static void cut(struct tree *t, struct twig *x, const int32_t *node, int32_t n, const bool *in, int64_t most)
{
    struct mpp_pw_graph *g = x->g;
    size_t rows = (size_t)g->n_rows + 1;
    int32_t row = g->n_rows, n_kept = 0, *kept = mpp_arena_array(t->scratch, g->nodes[node[0]].n, int32_t);
    for (int32_t k = 0; k < g->nodes[node[0]].n; k++)
        if (!in[k])
            kept[n_kept++] = k;
    for (int32_t i = 0; i < n && most == 0; i++)
        mpp_pw_graph_keep(g, node[i], kept, n_kept);
    if (most == 0)
        return;
    size_t cap[3] = {rows - 1, rows - 1, rows - 1};
    g->capacity = mpp_arena_grow(g->arena, g->capacity, &cap[0], rows, sizeof *g->capacity);
    g->row_time = mpp_arena_grow(g->arena, g->row_time, &cap[1], rows, sizeof *g->row_time);
    g->row_first = mpp_arena_grow(g->arena, g->row_first, &cap[2], rows, sizeof *g->row_first);
    g->capacity[row] = most * CUT_BYTES;
    g->row_time[row] = INT32_MAX;
    g->row_first[row] = t->n_rows;
    g->n_rows++;
    x->n_cuts++;
    for (int32_t i = 0; i < n; i++) {
        struct mpp_pw_node *v = &g->nodes[node[i]];
        struct mpp_pw_segment *s = mpp_arena_array(g->arena, v->n_segments + 1, struct mpp_pw_segment);
        memcpy(s, v->segments, (size_t)v->n_segments * sizeof *s);
        s[v->n_segments] = (struct mpp_pw_segment){row, row + 1, mpp_arena_array(g->arena, v->n, int64_t)};
        for (int32_t k = 0; k < v->n; k++)
            s[v->n_segments].bytes[k] = in[k] ? CUT_BYTES : 0;
        v->segments = s;
        v->n_segments++;
    }
}

/* Two twigs of UP: the count rounded down at most, up at least. */
static void branch(struct tree *t, struct twig *up, const struct split *s)
{
    int32_t n = up->g->nodes[s->node].n;
    bool *above = mpp_arena_array(t->scratch, n, bool), *below = mpp_arena_array(t->scratch, n, bool);
    for (int32_t k = 0; k < n; k++) {
        above[k] = weight_of(t->items, s->node, k) > s->above;
        below[k] = !above[k];
    }
    struct twig *few = add_twig(t, up->g, up), *many = add_twig(t, up->g, up);
    cut(t, few, t->in_class, t->n_class, above, (int64_t)floor(s->count));
    cut(t, many, t->in_class, t->n_class, below, t->n_class - (int64_t)floor(s->count) - 1);
    t->n_rows++;
    keep_prices(t->items, few);
    keep_prices(t->items, many);
}

/* CHOICE of the twig's graph becomes one of the whole graph's. */
static void take_choice(struct tree *t, const struct twig *twig, int32_t *choice, int64_t cost)
{
    mpp_pw_graph_replay_from(twig->g, t->g->n_steps, choice);
    memcpy(t->x->best, choice, (size_t)t->g->n_nodes * sizeof *choice);
    t->x->found = true;
    t->x->upper = t->x->cost = cost;
}

/* Of the work limit; 0: there is none. */
static int64_t left(const struct mpp_pw_pack *x)
{
    return x->work_limit <= 0 ? 0 : x->work_limit > x->work ? x->work_limit - x->work : 1;
}

/* What lies near the twig's bound. True if that is all of use in it. */
static bool look_near(struct tree *t, struct twig *twig, int64_t most_work)
{
    struct mpp_pw_pack *x = t->x, y = *x;
    int64_t constant = settled(t, twig);
    y.upper = x->upper - constant;
    y.lower = y.bound = twig->bound - constant;
    y.found = false;
    y.glance = x->glance && twig->depth == 0;
    y.most_work = y.glance ? 0 : most_work;
    y.work_limit = left(x);
    y.work = 0;
    y.best = mpp_arena_array(t->scratch, t->g->n_nodes, int32_t);
    y.choice = mpp_arena_array(t->scratch, t->g->n_nodes, int32_t);
    mpp_pw_pack_near(t->items, &y);
    x->work += y.work;
    x->rows = y.rows;
    x->reach = y.reach;
    if (y.found)
        take_choice(t, twig, y.best, y.cost + constant);
    twig->bound = y.bound + constant > twig->bound ? y.bound + constant : twig->bound;
    return y.status == MPP_PW_EXACT_NONE || y.status == MPP_PW_EXACT_OPTIMAL;
}

/* Most copies take what they take in the linear program, rounded down. */
static void settle_most(struct tree *t, struct mpp_pw_graph *g)
{
    const struct mpp_pw_items *items = t->items;
    int32_t *taken = mpp_arena_array(t->scratch, items->n_parts, int32_t);
    for (int32_t j = 0; j < t->master->n_columns; j++) {
        const struct mpp_pw_column *c = &t->master->column[j];
        const struct mpp_pw_part *part = items->part[c->part];
        int32_t n = (int32_t)floor(c->share + WHOLE) - (part->n_copies > 1 ? LEFT_FREE : 0);
        for (int32_t i = 0; i < n; i++, taken[c->part]++)
            for (int32_t m = 0; m < part->n; m++)
                mpp_pw_graph_keep(g, part->copy[taken[c->part]][m], &c->choice[m], 1);
    }
}

/* A good choice near the linear program's mixture: what is best for the few copies that are not settled by it. */
static void dive(struct tree *t, const struct twig *twig)
{
    struct mpp_pw_items *items = t->items;
    struct mpp_pw_pack y = {.watch = t->x->watch, .most_work = DIVE_WORK, .work_limit = left(t->x)};
    struct twig x = {.arena = t->scratch, .g = mpp_pw_graph_clone(twig->g, t->scratch)};
    settle_most(t, x.g);
    mpp_pw_presolve(x.g);
    keep_prices(items, &x);
    if (!x.g->infeasible && mpp_pw_graph_size(x.g).nodes > 0) {
        t->items = NULL;
        list_items(t, &x);
        y.upper = t->x->upper - settled(t, &x);
        y.best = mpp_arena_array(t->scratch, t->g->n_nodes, int32_t);
        y.choice = mpp_arena_array(t->scratch, t->g->n_nodes, int32_t);
        struct mpp_pw_master m = {.at = t->items, .upper = y.upper, .watch = y.watch, .arena = t->scratch};
        if (mpp_pw_master_solve(&m) && m.bound < y.upper)
            mpp_pw_pack_near(t->items, &y);
        t->x->work += m.work + y.work + x.g->work - twig->g->work;
        if (y.found)
            take_choice(t, &x, y.best, y.cost + settled(t, &x));
        mpp_pw_items_free(t->items);
        t->items = items;
    }
    mpp_pw_graph_free(x.g);
}

/* Prices, then without what these rule out, as long as that changes much. True if nothing of use is left. */
static bool reduce(struct tree *t, struct twig *twig, bool *out_priced)
{
    int64_t work = twig->g->work;
    bool empty = false, done = false;
    for (int round = 0; round < MOST_ROUNDS && !empty; round++) {
        *out_priced = find_prices(t, twig);
        done = twig->bound >= t->x->upper;
        if (done || round + 1 == MOST_ROUNDS || !*out_priced || !fix(t, twig))
            break;
        mpp_pw_presolve(twig->g);
        empty = twig->g->infeasible || mpp_pw_graph_size(twig->g).nodes == 0;
    }
    t->x->work += twig->g->work - work;
    if (empty && !twig->g->infeasible && settled(t, twig) < t->x->upper)
        take_choice(t, twig, mpp_arena_array(t->scratch, t->g->n_nodes, int32_t), settled(t, twig));
    return empty || done;
}

/* A twig's bound, its optimum where that is near, else its own twigs. */
static void settle(struct tree *t, struct twig *twig)
{
    struct mpp_pw_pack *x = t->x;
    struct split split = {0};
    bool priced = false;
    if (reduce(t, twig, &priced))
        return;
    bool splits = priced && twig->n_cuts < MOST_CUTS && choose(t, &split);
    bool fine = !splits || split.score * WORTH < (double)(x->upper - twig->bound);
    if (splits && (fine || !x->found))
        dive(t, twig);
    if (twig->bound >= x->upper)
        return;
    bool enough = x->glance && x->found;
    if (!enough && (fine || !x->glance) && look_near(t, twig, NODE_WORK))
        return;
    if (!enough && splits)
        branch(t, twig, &split);
    else if (enough || !look_near(t, twig, 0))
        t->stuck = twig->bound < t->stuck ? twig->bound : t->stuck;
}

/* The open twig of the lowest bound, the deepest of these; -1: none. */
static int64_t next_of(const struct tree *t)
{
    int64_t next = -1;
    for (size_t i = 0; i < t->n; i++) {
        const struct twig *x = t->twig[i], *y = next >= 0 ? t->twig[next] : NULL;
        if (x != NULL && (y == NULL || x->bound < y->bound || (x->bound == y->bound && x->depth > y->depth)))
            next = (int64_t)i;
    }
    return next;
}

static void run(struct tree *t)
{
    struct mpp_pw_pack *x = t->x;
    int64_t next, least = t->stuck;
    while ((next = next_of(t)) >= 0) {
        struct twig *twig = t->twig[next];
        if (twig->bound >= x->upper || twig->bound >= t->stuck)
            break;
        if (t->n >= MOST_NODES || (x->glance && x->found) || (x->work_limit > 0 && x->work >= x->work_limit) || x->watch->expired(x->watch->context))
            break;
        t->twig[next] = NULL;
        t->scratch = mpp_arena_scratch(t->arena);
        t->items = NULL;
        t->master = mpp_arena_array(t->scratch, 1, struct mpp_pw_master);
        settle(t, twig);
        mpp_pw_items_free(t->items);
        mpp_arena_free(t->scratch);
        drop_twig(twig);
    }
    least = next >= 0 && t->twig[next]->bound < t->stuck ? t->twig[next]->bound : t->stuck;
    for (size_t i = 0; i < t->n; i++)
        if (t->twig[i] != NULL)
            drop_twig(t->twig[i]);
    x->bound = least > x->upper ? x->upper : least > x->bound ? least : x->bound;
    if (least >= x->upper)
        x->status = x->found ? MPP_PW_EXACT_OPTIMAL : MPP_PW_EXACT_NONE;
}

/* ---- the whole ------------------------------------------------------------------------------------------------------- */

int32_t mpp_pw_pack_hub(const struct mpp_pw_graph *g)
{
    int32_t hub = -1, most = HUB_EDGES - 1;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        int32_t n = 0;
        for (int32_t q = 0; q < g->nodes[i].n_edges && !g->nodes[i].gone; q++)
            n += !g->edges[g->nodes[i].edges[q]].gone;
        if (n > most && g->nodes[i].n <= HUB_CHOICES) {
            hub = i;
            most = n;
        }
    }
    return hub;
}

void mpp_pw_pack_solve(struct mpp_pw_graph *g, struct mpp_pw_pack *x)
{
    struct mpp_arena *scratch = mpp_arena_scratch(g->arena);
    struct mpp_pw_items *items = mpp_pw_items_new(g, scratch);
    x->status = MPP_PW_EXACT_LIMIT;
    x->found = false;
    x->bound = x->lower;
    x->choice = mpp_arena_array(scratch, g->n_nodes, int32_t);
    x->components = items->n_components;
    if (mpp_pw_items_take(items, x->price)) {
        struct tree t = {.g = g, .x = x, .arena = scratch, .stuck = INT64_MAX};
        for (int32_t q = 0; q < g->n_rows; q++)
            t.n_rows = g->row_first[q] >= t.n_rows ? g->row_first[q] + 1 : t.n_rows;
        keep_prices(items, add_twig(&t, g, NULL));
        run(&t);
    }
    x->choice = NULL;
    mpp_pw_items_free(items);
    mpp_arena_free(scratch);
}
