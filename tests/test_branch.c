/* test_branch.c - solver/branch.c and solver/master.c: groups of alike components that memory joins, against an oracle that adds up
 * all ways to settle one component after another, and that against plain exhaustive search where there are few choices. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "solver/pack.h"
#include "tests/solver_testing.h"

enum { TIMES = 3, MOST_KINDS = 3, MOST_MEMBERS = 3, MOST_CHOICES = 4, MOST_COPIES = 40, FEW_CHOICES = 3000 };
enum { N_SMALL = 700, N_LARGE = 60, N_MASTER = 200, N_HUB = 60 };

/* ---- problems of alike groups ----------------------------------------------------------------------------------- */

struct kind {                     /* a chain of nodes, N_COPIES times */
    int n, n_copies;
    struct mpp_pairwise_node node[MOST_MEMBERS];
    int64_t *edge[MOST_MEMBERS];  /* of members i - 1 and i; NULL: none */
};

struct groups {
    int n_kinds, n_times;
    struct kind kind[MOST_KINDS];
    struct mpp_pairwise_problem problem;
};

/* What is drawn: so many kinds, members and copies; costs below COST_SPAN * COST_UNIT, bytes below BYTE_SPAN * BYTE_UNIT. */
struct form {
    int kinds, members, choices, copies, times, forbidden_percent;
    int cost_span, byte_span;
    int64_t cost_unit, byte_unit;
};

static int64_t draw(struct random *r, int span, int64_t unit)
{
    return (int64_t)below(r, span) * unit + (unit > 1 ? below(r, 1000) : 0);
}

static void draw_node(struct random *r, struct mpp_arena *a, const struct form *f, int n_times, struct mpp_pairwise_node *out)
{
    int n = 1 + below(r, f->choices), n_usages = 1 + below(r, 2);
    int64_t *cost = mpp_arena_array(a, n, int64_t);
    struct mpp_pairwise_usage *usage = mpp_arena_array(a, n_usages, struct mpp_pairwise_usage);
    for (int k = 0; k < n; k++)
        cost[k] = below(r, 100) < f->forbidden_percent ? MPP_PAIRWISE_FORBIDDEN : draw(r, f->cost_span, f->cost_unit);
    for (int u = 0; u < n_usages; u++) {
        int64_t *bytes = mpp_arena_array(a, n, int64_t);
        int begin = below(r, n_times);
        for (int k = 0; k < n; k++)
            bytes[k] = draw(r, f->byte_span, f->byte_unit);
        usage[u] = (struct mpp_pairwise_usage){begin, begin + 1 + below(r, n_times - begin), bytes};
    }
    *out = (struct mpp_pairwise_node){n, cost, n_usages, usage};
}

static void draw_kind(struct random *r, struct mpp_arena *a, const struct form *f, int n_times, struct kind *k)
{
    *k = (struct kind){.n = 1 + below(r, f->members), .n_copies = 1 + below(r, f->copies)};
    for (int i = 0; i < k->n; i++)
        draw_node(r, a, f, n_times, &k->node[i]);
    for (int i = 1; i < k->n; i++) {
        int pairs = k->node[i - 1].n_choices * k->node[i].n_choices;
        k->edge[i] = mpp_arena_array(a, pairs, int64_t);
        for (int q = 0; q < pairs; q++)
            k->edge[i][q] = below(r, 100) < f->forbidden_percent ? MPP_PAIRWISE_FORBIDDEN : draw(r, f->cost_span, f->cost_unit);
    }
}

/* The kinds' copies as one problem. */
static void spread(struct groups *g, struct mpp_arena *a)
{
    int n = 0, e = 0;
    for (int k = 0; k < g->n_kinds; k++)
        n += g->kind[k].n * g->kind[k].n_copies;
    struct mpp_pairwise_node *node = mpp_arena_array(a, n, struct mpp_pairwise_node);
    struct mpp_pairwise_edge *edge = mpp_arena_array(a, n, struct mpp_pairwise_edge);
    n = 0;
    for (int k = 0; k < g->n_kinds; k++)
        for (int c = 0; c < g->kind[k].n_copies; c++)
            for (int i = 0; i < g->kind[k].n; i++, n++) {
                node[n] = g->kind[k].node[i];
                if (i > 0)
                    edge[e++] = (struct mpp_pairwise_edge){n - 1, n, g->kind[k].edge[i]};
            }
    g->problem.n_nodes = n;
    g->problem.n_edges = e;
    g->problem.nodes = node;
    g->problem.edges = edge;
}

/* Bytes at the fullest time if each node takes its most, its least. */
static int64_t fullest(const struct groups *g, bool most)
{
    int64_t at[TIMES] = {0}, peak = 0;
    for (int i = 0; i < g->problem.n_nodes; i++)
        for (int t = 0; t < TIMES; t++) {
            int64_t best = 0;
            const struct mpp_pairwise_node *v = &g->problem.nodes[i];
            for (int k = 0; k < v->n_choices; k++) {
                int64_t sum = 0;
                for (int u = 0; u < v->n_usages; u++)
                    sum += v->usages[u].begin <= t && t < v->usages[u].end ? v->usages[u].bytes[k] : 0;
                best = k == 0 || (most ? sum > best : sum < best) ? sum : best;
            }
            at[t] += best;
            peak = at[t] > peak ? at[t] : peak;
        }
    return peak;
}

static struct groups draw_groups(struct random *r, const struct form *f, struct mpp_arena *a)
{
    struct groups g = {.n_kinds = 1 + below(r, f->kinds), .n_times = 1 + below(r, f->times)};
    for (int k = 0; k < g.n_kinds; k++)
        draw_kind(r, a, f, g.n_times, &g.kind[k]);
    spread(&g, a);
    int64_t least = fullest(&g, false), most = fullest(&g, true);
    int how = below(r, 8);        /* hopeless, as little as can be, as much, else between */
    g.problem.capacity = how == 0 ? least / 2 : how == 1 ? least : how == 2 ? most : least + (most - least) / 64 * (1 + below(r, 63));
    return g;
}

/* ---- the oracle ---------------------------------------------------------------------------------------------------- */

/* Costs are counted as the graph counts them: shifted right. */
static mpp_i128 value_of(const struct mpp_pairwise_problem *p, const int32_t *choice, int shift)
{
    mpp_i128 sum = 0;
    int64_t bytes[TIMES] = {0};
    for (int i = 0; i < p->n_nodes; i++) {
        const struct mpp_pairwise_node *v = &p->nodes[i];
        if (v->cost[choice[i]] >= MPP_PAIRWISE_FORBIDDEN)
            return -1;
        sum += v->cost[choice[i]] >> shift;
        for (int u = 0; u < v->n_usages; u++)
            for (int t = v->usages[u].begin; t < v->usages[u].end; t++)
                if ((bytes[t] += v->usages[u].bytes[choice[i]]) > p->capacity)
                    return -1;
    }
    for (int e = 0; e < p->n_edges; e++) {
        int64_t c = p->edges[e].cost[choice[p->edges[e].a] * p->nodes[p->edges[e].b].n_choices + choice[p->edges[e].b]];
        if (c >= MPP_PAIRWISE_FORBIDDEN)
            return -1;
        sum += c >> shift;
    }
    return sum;
}

static bool next_choice(const struct mpp_pairwise_problem *p, int32_t *choice)
{
    for (int i = 0; i < p->n_nodes; i++) {
        if (++choice[i] < p->nodes[i].n_choices)
            return true;
        choice[i] = 0;
    }
    return false;
}

/* -1: nothing is allowed; -2: too many choices to try all. */
static mpp_i128 exhaustive(const struct mpp_pairwise_problem *p, int shift, struct mpp_arena *a)
{
    double all = 1;
    for (int i = 0; i < p->n_nodes; i++)
        all *= p->nodes[i].n_choices;
    if (all > FEW_CHOICES)
        return -2;
    int32_t *choice = mpp_arena_array(a, p->n_nodes, int32_t);
    mpp_i128 best = -1;
    do {
        mpp_i128 x = value_of(p, choice, shift);
        best = x >= 0 && (best < 0 || x < best) ? x : best;
    } while (next_choice(p, choice));
    return best;
}

struct sum {
    mpp_i128 cost;
    int64_t bytes[TIMES];
};

struct sums {
    struct sum *sum;
    size_t n, cap;
};

static void add_sum(struct sums *s, struct sum x, struct mpp_arena *a)
{
    s->sum = mpp_arena_grow(a, s->sum, &s->cap, s->n + 1, sizeof *s->sum);
    s->sum[s->n++] = x;
}

static int by_cost(const void *a, const void *b)
{
    const struct sum *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost < y->cost ? -1 : 1;
    for (int t = 0; t < TIMES; t++)
        if (x->bytes[t] != y->bytes[t])
            return x->bytes[t] < y->bytes[t] ? -1 : 1;
    return 0;
}

/* Without those that another one beats in cost and bytes. */
static void thin(struct sums *s)
{
    size_t n = 0;
    qsort(s->sum, s->n, sizeof *s->sum, by_cost);
    for (size_t i = 0; i < s->n; i++) {
        bool beaten = false;
        for (size_t k = n; k-- > 0 && !beaten;) {
            beaten = true;
            for (int t = 0; t < TIMES; t++)
                beaten &= s->sum[k].bytes[t] <= s->sum[i].bytes[t];
        }
        if (!beaten)
            s->sum[n++] = s->sum[i];
    }
    s->n = n;
}

/* All ways to settle one copy. */
static struct sums ways_of(const struct kind *k, int shift, struct mpp_arena *a)
{
    struct mpp_pairwise_problem one = {.n_nodes = k->n, .nodes = k->node};
    int32_t choice[MOST_MEMBERS] = {0};
    struct sums out = {0};
    do {
        struct sum x = {0};
        bool ok = true;
        for (int i = 0; i < k->n; i++) {
            int64_t own = k->node[i].cost[choice[i]];
            int64_t pair = i == 0 ? 0 : k->edge[i][choice[i - 1] * k->node[i].n_choices + choice[i]];
            ok &= own < MPP_PAIRWISE_FORBIDDEN && pair < MPP_PAIRWISE_FORBIDDEN;
            x.cost += (own >> shift) + (pair >> shift);
            for (int u = 0; u < k->node[i].n_usages; u++)
                for (int t = k->node[i].usages[u].begin; t < k->node[i].usages[u].end; t++)
                    x.bytes[t] += k->node[i].usages[u].bytes[choice[i]];
        }
        if (ok)
            add_sum(&out, x, a);
    } while (next_choice(&one, choice));
    thin(&out);
    return out;
}

/* The least of everything that fits; -1: nothing does. */
static mpp_i128 oracle(const struct groups *g, int shift, struct mpp_arena *a)
{
    struct sums now = {0};
    add_sum(&now, (struct sum){0}, a);
    for (int k = 0; k < g->n_kinds; k++) {
        struct sums ways = ways_of(&g->kind[k], shift, a);
        for (int c = 0; c < g->kind[k].n_copies; c++) {
            struct sums next = {0};
            for (size_t i = 0; i < now.n; i++)
                for (size_t w = 0; w < ways.n; w++) {
                    struct sum x = now.sum[i];
                    bool fits = true;
                    x.cost += ways.sum[w].cost;
                    for (int t = 0; t < TIMES; t++)
                        fits &= (x.bytes[t] += ways.sum[w].bytes[t]) <= g->problem.capacity;
                    if (fits)
                        add_sum(&next, x, a);
                }
            thin(&next);
            now = next;
        }
    }
    return now.n > 0 ? now.sum[0].cost : -1;
}

/* ---- one run ----------------------------------------------------------------------------------------------------- */

struct patience {
    int left;                     /* questions until time is up; < 0: never */
};

static bool is_up(void *context)
{
    struct patience *p = context;
    return p->left >= 0 && p->left-- == 0;
}

static const int64_t MOST_RENT = (int64_t)1 << 50; /* of a row: beyond 2^57 in all prices are not counted */

enum { NO_PRICES, ANY_PRICES, LP_PRICES };

struct way {
    bool presolved, glance;
    int prices, patience;         /* patience < 0: no limit */
    int64_t work_limit;
    mpp_i128 upper, lower;        /* of the whole problem */
};

static double *draw_prices(struct mpp_pw_graph *g, const struct way *w, struct random *r, struct mpp_arena *a)
{
    double *price = mpp_arena_array(a, g->n_rows, double);
    struct patience never = {-1};
    struct mpp_pw_watch watch = {is_up, &never};
    struct mpp_pw_exact x = {.upper = (int64_t)(w->upper - g->constant), .watch = &watch, .root_only = true, .price = price};
    x.choice = mpp_arena_array(a, g->n_nodes, int32_t);
    if (w->prices == LP_PRICES)
        mpp_pw_exact_solve(g, &x);
    double most = w->upper < MOST_RENT ? (double)w->upper : (double)MOST_RENT;
    for (int t = 0; t < g->n_rows && w->prices == ANY_PRICES; t++)
        price[t] = below(r, 2) == 0 ? 0 : most / (double)(g->capacity[t] + 1) * below(r, 1000) / 1000;
    return price;
}

/* What the tree says of a graph that was not settled before; BEST -1: nothing fits. */
static void check_answer(const struct groups *p, const struct mpp_pw_graph *g, const struct mpp_pw_pack *x, const struct way *w, mpp_i128 best,
                         int shift, int number)
{
    bool useful = best >= 0 && best < w->upper, limited = w->glance || w->patience >= 0 || w->work_limit > 0;
    check((mpp_i128)x->bound + g->constant <= (useful ? best : w->upper), "the bound is above the optimum", number);
    check((mpp_i128)x->bound + g->constant >= w->lower, "the bound is below what was known", number);
    check(limited || x->status != MPP_PW_EXACT_LIMIT, "nothing was to stop it", number);
    check(x->status != MPP_PW_EXACT_FAILED, "it failed", number);
    if (x->found) {
        int32_t *choice = x->best;
        mpp_pw_graph_replay(g, choice);
        mpp_i128 value = value_of(&p->problem, choice, shift);
        check(value == (mpp_i128)x->cost + g->constant, "what is found costs what it is said to", number);
        check(useful && value >= best && value < w->upper, "what is found is of use", number);
    }
    if (x->status == MPP_PW_EXACT_OPTIMAL)
        check(x->found && useful && (mpp_i128)x->cost + g->constant == best, "the optimum", number);
    if (x->status == MPP_PW_EXACT_NONE)
        check(!x->found && !useful, "nothing is cheaper", number);
    if (x->status != MPP_PW_EXACT_LIMIT && useful)
        check((mpp_i128)x->bound + g->constant == best, "the bound of what is proven", number);
}

static void run(const struct groups *p, const struct way *w, mpp_i128 best, int shift, struct random *r, int number, struct mpp_arena *a)
{
    struct mpp_pw_costs costs = {shift, MPP_PAIRWISE_FORBIDDEN};
    struct mpp_pw_graph *g = mpp_pw_graph_new(&p->problem, costs, MPP_PAIRWISE_ALL_RULES, a);
    struct patience patience = {w->patience};
    struct mpp_pw_watch watch = {is_up, &patience};
    if (w->presolved)
        mpp_pw_presolve(g);
    bool empty = mpp_pw_graph_size(g).nodes == 0;
    if (g->infeasible || empty) {
        check(g->infeasible ? best < 0 : g->constant == best, "presolve settles it", number);
        mpp_pw_graph_free(g);
        return;
    }
    struct mpp_pw_pack x = {.lower = (int64_t)(w->lower - g->constant), .upper = (int64_t)(w->upper - g->constant), .glance = w->glance,
                            .work_limit = w->work_limit, .watch = &watch};
    x.price = draw_prices(g, w, r, a);
    x.best = mpp_arena_array(a, g->n_nodes, int32_t);
    mpp_pw_pack_solve(g, &x);
    check_answer(p, g, &x, w, best, shift, number);
    mpp_pw_graph_free(g);
}

/* Every kind of upper bound, with and without a glance; then stopped early. */
static void test_groups(const struct groups *p, mpp_i128 best, int shift, struct random *r, int number, struct mpp_arena *a)
{
    const mpp_i128 any = MPP_PW_BIG / 2;
    for (int i = 0; i < 4; i++) {
        struct way w = {.presolved = below(r, 2), .glance = i % 2, .prices = below(r, 3), .patience = -1, .upper = any};
        if (best >= 0 && i >= 2)
            w.upper = best + (below(r, 3) == 0);
        w.lower = best > 0 && below(r, 2) ? best / (1 + below(r, 3)) : 0;
        run(p, &w, best, shift, r, number, a);
    }
    struct way timed = {.presolved = below(r, 2), .prices = below(r, 3), .patience = below(r, 30), .upper = any};
    run(p, &timed, best, shift, r, number, a);
    struct way worked = {.presolved = below(r, 2), .prices = below(r, 3), .patience = -1, .work_limit = 1 + below(r, 1 << below(r, 20)), .upper = any};
    run(p, &worked, best, shift, r, number, a);
}

/* ---- random groups --------------------------------------------------------------------------------------------------- */

static const struct form forms[] = {
    {2, 3, 3, 3, TIMES, 10, 10, 10, 1, 1},       /* small and with ties */
    {3, 2, 4, 4, TIMES, 0, 1000, 1000, 1, 1},
    {2, 2, 3, 6, TIMES, 20, 1, 6, 1, 1},         /* costs nothing */
    {2, 1, 3, 8, 2, 0, 3, 1, 1, 1},              /* takes nothing, or all the same */
    {3, 3, 3, 3, TIMES, 5, 500, 1000, INT64_C(1000000007), INT64_C(1000003)},
};

static void test_small(struct random *r)
{
    for (int i = 0; i < N_SMALL; i++) {
        struct mpp_arena *a = mpp_arena_new();
        struct groups p = draw_groups(r, &forms[i % (int)(sizeof forms / sizeof *forms)], a);
        mpp_i128 best = oracle(&p, 0, a), all = exhaustive(&p.problem, 0, a);
        check(all == -2 || all == best, "the oracle against exhaustive search", i);
        test_groups(&p, best, 0, r, i, a);
        mpp_arena_free(a);
    }
}

/* So many copies, so large, that prices alone leave a gap. */
static void test_large(struct random *r)
{
    static const struct form form = {3, 1, 4, MOST_COPIES, 1, 0, 100000, 100000, 1, INT64_C(100003)};
    for (int i = 0; i < N_LARGE; i++) {
        struct mpp_arena *a = mpp_arena_new();
        struct groups p = draw_groups(r, &form, a);
        test_groups(&p, oracle(&p, 0, a), 0, r, i, a);
        mpp_arena_free(a);
    }
}

/* ---- degenerate ones ------------------------------------------------------------------------------------------------- */

/* N_COPIES of a node of N choices, all of the time; all of them, as far as that goes, in CAPACITY. */
static void test_one(int n_copies, int n, const int64_t *cost, const int64_t *bytes, int64_t capacity, int number, struct random *r)
{
    struct mpp_arena *a = mpp_arena_new();
    struct mpp_pairwise_usage usage = {0, 1, bytes};
    struct groups p = {.n_kinds = 1, .n_times = 1, .problem.capacity = capacity};
    p.kind[0] = (struct kind){.n = 1, .n_copies = n_copies, .node = {{n, cost, 1, &usage}}};
    spread(&p, a);
    int shift = mpp_pw_problem_shift(&p.problem, MPP_PAIRWISE_FORBIDDEN);
    test_groups(&p, oracle(&p, shift, a), shift, r, number, a);
    mpp_arena_free(a);
}

static void test_degenerate(struct random *r)
{
    enum { N = 7 };
    const int64_t large = MPP_PAIRWISE_FORBIDDEN - 1, half = INT64_MAX / 2, byte = half / N;
    const int64_t zero[3] = {0}, costs[3] = {9, 5, 2}, huge[3] = {large, large / 2 + 1, large / 3}, bytes[3] = {0, 3, 8};
    const int64_t same[3] = {4, 4, 4}, many[3] = {1, byte / 2, byte}, never[3] = {MPP_PAIRWISE_FORBIDDEN, 3, INT64_MAX};
    static const int copies[] = {1, 2, N};
    for (int i = 0; i < 3; i++)
        for (int full = -1; full <= 1; full++) { /* memory short of it by a byte, full, more */
            int n = copies[i], at = 100 * i + 10 * (full + 1);
            test_one(n, 1, costs, bytes + 2, 8 * n + full, at, r);
            test_one(n, 1, zero, zero, full > 0 ? full : 0, at + 1, r);
            test_one(n, 3, zero, bytes, 3 * n + full, at + 2, r);
            test_one(n, 3, costs, same, 4 * n + full, at + 3, r);
            test_one(n, 3, same, bytes, full > 0 ? full : 0, at + 4, r);
            test_one(n, 3, costs, bytes, 8 * (n / 2) + 3 * (n - n / 2) + full, at + 5, r);
            test_one(n, 3, costs, many, byte * (n / 2) + byte / 2 * (n - n / 2) + full, at + 6, r);
            test_one(n, 3, costs, many, n == N ? INT64_MAX : byte * n + full, at + 7, r);
            test_one(n, 3, huge, bytes, 8 * (n / 2) + 3 * (n - n / 2) + full, at + 8, r);
            test_one(n, 3, huge, many, byte * (n / 2) + byte / 2 * (n - n / 2) + full, at + 9, r);
            test_one(n, 3, never, bytes, 3 * n + full, at + 9, r);
        }
}

/* Prices beyond counting: it says so, and no more. */
static void test_absurd_prices(void)
{
    struct mpp_arena *a = mpp_arena_new();
    const int64_t cost[2] = {7, 3}, bytes[2] = {0, 5};
    const struct mpp_pairwise_usage usage = {0, 1, bytes};
    const struct mpp_pairwise_node node[2] = {{2, cost, 1, &usage}, {2, cost, 1, &usage}};
    const struct mpp_pairwise_problem p = {.n_nodes = 2, .nodes = node, .capacity = 6};
    static const double absurd[] = {1e30, 1.0 / 0.0, 0.0 / 0.0};
    for (int i = 0; i < 3; i++) {
        struct patience never = {-1};
        struct mpp_pw_watch watch = {is_up, &never};
        struct mpp_pw_graph *g = mpp_pw_graph_new(&p, (struct mpp_pw_costs){0, MPP_PAIRWISE_FORBIDDEN}, MPP_PAIRWISE_ALL_RULES, a);
        struct mpp_pw_pack x = {.price = &absurd[i], .lower = 2, .upper = 100, .watch = &watch, .best = mpp_arena_array(a, 2, int32_t)};
        mpp_pw_pack_solve(g, &x);
        check(x.status == MPP_PW_EXACT_LIMIT && !x.found && x.bound == 2, "absurd prices", i);
        mpp_pw_graph_free(g);
    }
    mpp_arena_free(a);
}

/* ---- the linear program ------------------------------------------------------------------------------------------------ */

struct step {
    double cost, bytes;           /* of going to the hull's next corner: less, more */
    int copies;
};

static int steepest_first(const void *a, const void *b)
{
    const struct step *x = a, *y = b;
    double p = x->cost * y->bytes, q = y->cost * x->bytes;
    return (p < q) - (p > q);
}

/* The hull of WAYS, by bytes of the only time: its first corner is added to *COST and *BYTES, COPIES times, its steps to STEP. */
static int add_hull(const struct sums *ways, int copies, double *cost, double *bytes, struct step *step)
{
    size_t at = 0;
    int n = 0;
    for (size_t i = 1; i < ways->n; i++) /* sorted by cost, and none beats another: the last takes least */
        at = ways->sum[i].bytes[0] < ways->sum[at].bytes[0] ? i : at;
    *cost += copies * (double)ways->sum[at].cost;
    *bytes += copies * (double)ways->sum[at].bytes[0];
    for (size_t next = at; at > 0; at = next) {
        struct step best = {0};
        for (size_t i = 0; i < at; i++) {
            struct step s = {(double)(ways->sum[at].cost - ways->sum[i].cost), (double)(ways->sum[i].bytes[0] - ways->sum[at].bytes[0]), copies};
            if (s.bytes > 0 && (best.bytes == 0 || s.cost * best.bytes > best.cost * s.bytes)) {
                best = s;
                next = i;
            }
        }
        if (best.bytes == 0)
            break;
        step[n++] = best;
    }
    return n;
}

/* The least cost of mixtures, for one time: Dantzig's greedy one along the hulls. < 0: nothing fits. */
static double best_mixture(const struct groups *p, struct mpp_arena *a)
{
    struct step step[MOST_KINDS * 64];
    double cost = 0, bytes = 0;
    int n = 0;
    for (int k = 0; k < p->n_kinds; k++) {
        struct sums ways = ways_of(&p->kind[k], 0, a);
        n += add_hull(&ways, p->kind[k].n_copies, &cost, &bytes, step + n);
    }
    if (bytes > (double)p->problem.capacity)
        return -1;
    qsort(step, (size_t)n, sizeof *step, steepest_first);
    for (int i = 0; i < n; i++) {
        double room = ((double)p->problem.capacity - bytes) / step[i].bytes, taken = room < step[i].copies ? room : step[i].copies;
        cost -= taken * step[i].cost;
        bytes += taken * step[i].bytes;
    }
    return cost;
}

/* Of what the master finds: its bound is that of the best mixture, less what stops it early and rounding. */
static void test_master(struct random *r)
{
    static const struct form form = {3, 3, 4, MOST_COPIES, 1, 0, 100000, 1000, 1, INT64_C(1003)};
    for (int i = 0; i < N_MASTER; i++) {
        struct mpp_arena *a = mpp_arena_new();
        struct groups p = draw_groups(r, &form, a);
        struct patience never = {-1};
        struct mpp_pw_watch watch = {is_up, &never};
        struct mpp_pw_graph *g = mpp_pw_graph_new(&p.problem, (struct mpp_pw_costs){0, MPP_PAIRWISE_FORBIDDEN}, 0, a);
        struct mpp_pw_items *at = mpp_pw_items_new(g, a);
        double mixture = best_mixture(&p, a), upper = mixture < 0 ? 1e15 : mixture * 1.01 + 1000;
        struct mpp_pw_master m = {.at = at, .upper = (int64_t)upper, .watch = &watch, .arena = a};
        bool done = mpp_pw_master_solve(&m);
        check(done, "the linear program is solved", i);
        double early = 2e-3 * (upper - mixture) + p.problem.n_nodes + 1;
        check(mixture < 0 || ((double)m.bound <= mixture + 1 && (double)m.bound >= mixture - early), "the bound of the best mixture", i);
        check(m.bound == at->bound, "the prices that give it stay", i);
        mpp_pw_items_free(at);
        mpp_pw_graph_free(g);
        mpp_arena_free(a);
    }
}

/* ---- around a node that all hang on -------------------------------------------------------------------------------------- */

enum { HUB = 3 };                 /* its choices */

/* The groups with the hub at choice H: its edges to the first member of each copy are that one's cost. */
static struct groups with_hub_at(const struct groups *p, int64_t *const edge[MOST_KINDS], int h, struct mpp_arena *a)
{
    struct groups q = *p;
    for (int k = 0; k < q.n_kinds; k++) {
        struct mpp_pairwise_node *v = &q.kind[k].node[0];
        int64_t *cost = mpp_arena_array(a, v->n_choices, int64_t);
        for (int i = 0; i < v->n_choices; i++)
            cost[i] = v->cost[i] + edge[k][h * v->n_choices + i];
        v->cost = cost;
    }
    return q;
}

/* The whole solver on it, which is told a price: what is found is the optimum, or nothing fits. */
static void check_hub(const struct groups *p, int64_t *const edge[MOST_KINDS], const int64_t *hub_cost, int number, struct mpp_arena *a)
{
    const struct mpp_pairwise_problem *q = &p->problem;
    struct mpp_pairwise_node *node = mpp_arena_array(a, q->n_nodes + 1, struct mpp_pairwise_node);
    struct mpp_pairwise_edge *e = mpp_arena_array(a, q->n_edges + q->n_nodes, struct mpp_pairwise_edge);
    struct mpp_pairwise_problem whole = {q->n_nodes + 1, q->n_edges, node, e, q->capacity};
    memcpy(node, q->nodes, (size_t)q->n_nodes * sizeof *node);
    memcpy(e, q->edges, (size_t)q->n_edges * sizeof *e);
    node[q->n_nodes] = (struct mpp_pairwise_node){HUB, hub_cost, 0, NULL};
    for (int k = 0, at = 0; k < p->n_kinds; k++)
        for (int c = 0; c < p->kind[k].n_copies; c++, at += p->kind[k].n)
            e[whole.n_edges++] = (struct mpp_pairwise_edge){q->n_nodes, at, edge[k]};
    mpp_i128 best = -1;
    for (int h = 0; h < HUB; h++) {
        struct groups at = with_hub_at(p, edge, h, a);
        mpp_i128 x = oracle(&at, 0, a);
        best = x >= 0 && (best < 0 || x + hub_cost[h] < best) ? x + hub_cost[h] : best;
    }
    struct mpp_pw_graph *g = mpp_pw_graph_new(&whole, (struct mpp_pw_costs){0, MPP_PAIRWISE_FORBIDDEN}, 0, a);
    check(mpp_pw_pack_hub(g) == q->n_nodes, "which one all hang on", number);
    mpp_pw_graph_free(g);
    struct mpp_pairwise_settings set = mpp_pairwise_defaults();
    const int32_t time[1] = {0};
    const double price[1] = {0.5};
    set.n_prices = 1;
    set.price_time = time;
    set.price = price;
    struct mpp_pairwise_info info = {0};
    struct mpp_pairwise *s;
    int32_t *choice = mpp_arena_array(a, whole.n_nodes, int32_t);
    bool ok = mpp_pairwise_setup(&whole, &set, a, &s) == MPP_OK;
    check(ok, "setup", number);
    enum mpp_status st = ok ? mpp_pairwise_solve(s, choice, &info) : MPP_INVALID;
    if (best < 0)
        check(st == MPP_INFEASIBLE, "nothing fits around it", number);
    else
        check(st == MPP_OK && info.status == MPP_PAIRWISE_OPTIMAL && info.objective == best && value_of(&whole, choice, 0) == best,
              "the optimum around it", number);
    mpp_pairwise_free(s);
}

static void test_hub(struct random *r)
{
    static const struct form form = {3, 1, 3, 6, 1, 0, 100, 30, 1, 1};
    for (int i = 0, n = 0; n < N_HUB; i++) {
        struct mpp_arena *a = mpp_arena_new();
        struct groups p = draw_groups(r, &form, a);
        int64_t *edge[MOST_KINDS], *hub_cost = mpp_arena_array(a, HUB, int64_t);
        for (int h = 0; h < HUB; h++)
            hub_cost[h] = below(r, 100);
        for (int k = 0; k < p.n_kinds; k++) {
            int n_pairs = HUB * p.kind[k].node[0].n_choices;
            edge[k] = mpp_arena_array(a, n_pairs, int64_t);
            for (int q = 0; q < n_pairs; q++)
                edge[k][q] = below(r, 60);
        }
        if (p.problem.n_nodes >= 12) { /* that many make it a hub */
            check_hub(&p, edge, hub_cost, i, a);
            n++;
        }
        mpp_arena_free(a);
    }
}

int main(void)
{
    struct random r = {.state = 20251130};
    test_small(&r);
    test_large(&r);
    test_degenerate(&r);
    test_absurd_prices();
    test_master(&r);
    test_hub(&r);
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
