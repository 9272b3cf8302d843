/* test_pairwise.c - the pairwise solver against exhaustive search: 2,000 random problems, every presolve rule alone and all
 * together, then the whole solver with and without its methods. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ir/diag.h"
#include "solver/bucket.h"
#include "solver/iopddl.h"
#include "solver/pairwise_internal.h"
#include "solver/restart.h"
#include "tests/solver_testing.h"

enum { MOST_NODES = 7, MOST_CHOICES = 4, N_PROBLEMS = 2000, N_HUGE = 500, SORTS = 4, HUGE = SORTS, RESTART_WORK = 200000, BLOCKS_WORK = 5000 };

/* ---- random problems ------------------------------------------------------------------------------------- */

/* What sort of costs: small ones that tie, large ones, all equal; small ones beside some that are all but forbidden. */
static int64_t draw_cost(struct random *r, int sort)
{
    switch (sort) {
    case 0: return below(r, 8);
    case 1: return (int64_t)below(r, 1 << 20) * 1000003 + below(r, 1000);
    case 2: return 5;
    case HUGE: return below(r, 4) == 0 ? MPP_PAIRWISE_FORBIDDEN - 1 - below(r, 100) : below(r, 100);
    default: return below(r, 10) == 0 ? INT64_C(100000000000000) + below(r, 100) : below(r, 100);
    }
}

static int64_t *draw_costs(struct random *r, struct mpp_arena *a, int n, int sort, int forbidden_percent)
{
    int64_t *cost = mpp_arena_array(a, n, int64_t);
    for (int i = 0; i < n; i++)
        cost[i] = below(r, 100) < forbidden_percent ? MPP_PAIRWISE_FORBIDDEN : draw_cost(r, sort);
    return cost;
}

/* A table in which each choice has one partner at most. */
static void make_one_to_one(struct random *r, int64_t *cost, int na, int nb)
{
    int shift = below(r, 4);
    for (int k = 0; k < na; k++)
        for (int l = 0; l < nb; l++)
            if (l != (k + shift) % nb || k >= nb)
                cost[k * nb + l] = MPP_PAIRWISE_FORBIDDEN;
}

static void add_edge(struct random *r, struct mpp_arena *a, struct mpp_pairwise_problem *p, struct mpp_pairwise_edge *edge,
                     int x, int y, int sort, int forbidden)
{
    int na = p->nodes[x].n_choices, nb = p->nodes[y].n_choices;
    int64_t *cost = draw_costs(r, a, na * nb, sort, forbidden);
    if (below(r, 4) == 0)
        make_one_to_one(r, cost, na, nb);
    if (below(r, 8) == 0) /* a sum of two terms: says nothing about the pair */
        for (int k = 0; k < na; k++)
            for (int l = 0; l < nb; l++)
                cost[k * nb + l] = 3 * k + 2 * l;
    edge[p->n_edges++] = (struct mpp_pairwise_edge){x, y, cost};
}

static void add_edges(struct random *r, struct mpp_arena *a, struct mpp_pairwise_problem *p, int sort, int forbidden)
{
    struct mpp_pairwise_edge *edge = mpp_arena_array(a, 3 * MOST_NODES * MOST_NODES, struct mpp_pairwise_edge);
    int n = p->n_nodes, shape = below(r, 5);
    p->edges = edge;
    for (int i = 1; i < n && shape < 3; i++) /* chain, tree, cycle */
        add_edge(r, a, p, edge, shape == 1 ? below(r, i) : i - 1, i, sort, forbidden);
    if (shape == 2 && n > 2)
        add_edge(r, a, p, edge, n - 1, 0, sort, forbidden);
    for (int i = 0; i < n && shape == 3; i++) /* clique */
        for (int j = i + 1; j < n; j++)
            add_edge(r, a, p, edge, i, j, sort, forbidden);
    for (int i = 0; i < 2 * n && shape == 4; i++) /* anything: parallel edges, both directions, loops */
        add_edge(r, a, p, edge, below(r, n), below(r, n), sort, forbidden);
}

static void add_node(struct random *r, struct mpp_arena *a, struct mpp_pairwise_node *node, int sort)
{
    int n = 1 + below(r, MOST_CHOICES), n_usages = below(r, 3);
    struct mpp_pairwise_usage *usage = mpp_arena_array(a, n_usages, struct mpp_pairwise_usage);
    for (int u = 0; u < n_usages; u++) {
        int64_t *bytes = mpp_arena_array(a, n, int64_t);
        for (int k = 0; k < n; k++)
            bytes[k] = below(r, 10);
        int begin = below(r, 8);
        usage[u] = (struct mpp_pairwise_usage){begin, begin + below(r, 5), bytes}; /* possibly empty */
    }
    *node = (struct mpp_pairwise_node){n, draw_costs(r, a, n, sort, below(r, 10) == 0 ? 30 : 0), n_usages, usage};
}

static struct mpp_pairwise_problem draw_problem(struct random *r, int sort, struct mpp_arena *a)
{
    struct mpp_pairwise_problem p = {.n_nodes = 1 + below(r, MOST_NODES)};
    struct mpp_pairwise_node *node = mpp_arena_array(a, p.n_nodes, struct mpp_pairwise_node);
    int forbidden = below(r, 3) * 15;
    p.nodes = node;
    for (int i = 0; i < p.n_nodes; i++)
        add_node(r, a, &node[i], sort);
    add_edges(r, a, &p, sort, forbidden);
    p.capacity = below(r, 5) == 0 ? INT64_MAX : below(r, 12 * p.n_nodes); /* no limit; tight to hopeless */
    return p;
}

/* ---- exhaustive search ---------------------------------------------------------------------------------------- */

static bool next_choice(const struct mpp_pairwise_problem *p, int32_t *choice)
{
    for (int i = 0; i < p->n_nodes; i++) {
        if (++choice[i] < p->nodes[i].n_choices)
            return true;
        choice[i] = 0;
    }
    return false;
}

/* Written apart from the solver's own evaluation. -1: nothing is allowed. */
static mpp_i128 value_of(const struct mpp_pairwise_problem *p, const int32_t *choice)
{
    mpp_i128 sum = 0;
    int64_t bytes[16] = {0};
    for (int i = 0; i < p->n_nodes; i++) {
        if (p->nodes[i].cost[choice[i]] >= MPP_PAIRWISE_FORBIDDEN)
            return -1;
        sum += p->nodes[i].cost[choice[i]];
        for (int u = 0; u < p->nodes[i].n_usages; u++)
            for (int t = p->nodes[i].usages[u].begin; t < p->nodes[i].usages[u].end; t++)
                if ((bytes[t] += p->nodes[i].usages[u].bytes[choice[i]]) > p->capacity)
                    return -1;
    }
    for (int e = 0; e < p->n_edges; e++) {
        int64_t c = p->edges[e].cost[choice[p->edges[e].a] * p->nodes[p->edges[e].b].n_choices + choice[p->edges[e].b]];
        if (c >= MPP_PAIRWISE_FORBIDDEN)
            return -1;
        sum += c;
    }
    return sum;
}

static mpp_i128 exhaustive(const struct mpp_pairwise_problem *p)
{
    int32_t choice[MOST_NODES] = {0};
    mpp_i128 best = -1;
    do {
        mpp_i128 x = value_of(p, choice);
        if (x >= 0 && (best < 0 || x < best))
            best = x;
    } while (next_choice(p, choice));
    return best;
}

/* ---- presolve ---------------------------------------------------------------------------------------------------- */

/* The best over what a presolved graph leaves, as the problem's value; -1: nothing. */
static mpp_i128 best_of_graph(const struct mpp_pw_graph *g, const struct mpp_pairwise_problem *p)
{
    int32_t choice[MOST_NODES] = {0}, whole[MOST_NODES];
    mpp_i128 best = -1;
    bool more = !g->infeasible;
    while (more) {
        memcpy(whole, choice, sizeof whole);
        mpp_pw_graph_replay(g, whole);
        mpp_i128 x = value_of(p, whole);
        if (x >= 0 && (best < 0 || x < best))
            best = x;
        more = false;
        for (int i = 0; i < g->n_nodes && !more; i++) {
            if (g->nodes[i].gone)
                continue;
            if (++choice[i] < g->nodes[i].n)
                more = true;
            else
                choice[i] = 0;
        }
    }
    return best;
}

/* The graph's own account of its best: constant, costs, rows. It must agree with the problem's. */
static mpp_i128 account_of_graph(const struct mpp_pw_graph *g)
{
    int32_t choice[MOST_NODES] = {0};
    mpp_i128 best = -1;
    bool more = !g->infeasible;
    while (more) {
        mpp_i128 sum = g->constant;
        bool ok = true;
        for (int i = 0; i < g->n_nodes; i++)
            if (!g->nodes[i].gone) {
                ok &= g->nodes[i].cost[choice[i]] < MPP_PW_BIG;
                sum += g->nodes[i].cost[choice[i]];
            }
        for (int e = 0; e < g->n_edges; e++)
            if (!g->edges[e].gone) {
                int64_t c = *mpp_pw_entry(g, &g->edges[e], g->edges[e].a, choice[g->edges[e].a], choice[g->edges[e].b]);
                ok &= c < MPP_PW_BIG;
                sum += c;
            }
        for (int t = 0; t < g->n_rows; t++) {
            int64_t bytes = 0;
            for (int i = 0; i < g->n_nodes; i++)
                for (int s = 0; s < g->nodes[i].n_segments && !g->nodes[i].gone; s++)
                    if (g->nodes[i].segments[s].lo <= t && t < g->nodes[i].segments[s].hi)
                        bytes += g->nodes[i].segments[s].bytes[choice[i]];
            ok &= bytes <= g->capacity[t];
        }
        if (ok && (best < 0 || sum < best))
            best = sum;
        more = false;
        for (int i = 0; i < g->n_nodes && !more; i++)
            if (!g->nodes[i].gone) {
                if (++choice[i] < g->nodes[i].n)
                    more = true;
                else
                    choice[i] = 0;
            }
    }
    return best;
}

static void test_rules(const struct mpp_pairwise_problem *p, mpp_i128 best, int number, struct mpp_arena *a)
{
    static const unsigned masks[] = {0, MPP_PAIRWISE_PROPAGATE, MPP_PAIRWISE_MERGE, MPP_PAIRWISE_ELIMINATE,
                                     MPP_PAIRWISE_DOMINATE, MPP_PAIRWISE_TIMES, MPP_PAIRWISE_ALL_RULES};
    static const char *const names[] = {"projection", "propagation", "merging", "elimination", "dominance", "times", "all rules"};
    for (int i = 0; i < (int)(sizeof masks / sizeof masks[0]); i++) {
        struct mpp_pw_graph *g = mpp_pw_graph_new(p, (struct mpp_pw_costs){0, MPP_PAIRWISE_FORBIDDEN}, masks[i], a);
        mpp_pw_presolve(g);
        check(best_of_graph(g, p) == best, names[i], number);
        check(account_of_graph(g) == best, names[i], number);
        mpp_pw_graph_free(g);
    }
}

/* Reduced costs with the optimum's cost + 1 as upper bound keep the optimum. */
static void test_fixing(const struct mpp_pairwise_problem *p, mpp_i128 best, int number, struct random *r, struct mpp_arena *a)
{
    struct mpp_pw_graph *g = mpp_pw_graph_new(p, (struct mpp_pw_costs){0, MPP_PAIRWISE_FORBIDDEN}, MPP_PAIRWISE_ALL_RULES, a);
    mpp_pw_presolve(g);
    struct mpp_pw_relax *relax = mpp_pw_relax_new(g, a);
    int64_t *price = mpp_arena_array(a, g->n_rows, int64_t);
    for (int t = 0; t < g->n_rows; t++)
        price[t] = below(r, 3) * ((int64_t)1 << below(r, 20));
    mpp_pw_relax_set_prices(relax, price);
    for (int i = 0; i < 6; i++)
        (void)mpp_pw_relax_sweep(relax, i % 2 == 0, NULL);
    int64_t bound = mpp_pw_relax_bound(relax);
    check(best < 0 || bound + g->constant <= best, "the relaxation's bound", number);
    if (best >= 0) {
        (void)mpp_pw_relax_fix(relax, (int64_t)best + 1 - g->constant);
        mpp_pw_relax_free(relax);
        mpp_pw_presolve(g);
        check(best_of_graph(g, p) == best, "reduced costs", number);
    } else {
        mpp_pw_relax_free(relax);
    }
    mpp_pw_graph_free(g);
}

/* ---- vertices settled at once ------------------------------------------------------------------------------------- */

static double cost_with_prices(struct mpp_pw_relax *r, double *const *priced, const int32_t *choice)
{
    double sum = 0;
    for (int i = 0; i < r->n; i++)
        sum += r->vertex[i].cost[choice[i]] + priced[i][choice[i]];
    for (int i = 0; i < r->n_links; i++)
        sum += r->link[i].cost[choice[r->link[i].a] * r->link[i].n_b + choice[r->link[i].b]];
    return sum;
}

/* The least of all choices that leave those of vertices outside the plan as they are. */
static double least_beside_held(struct mpp_pw_relax *r, const struct mpp_pw_buckets *b, double *const *priced, const int32_t *given)
{
    int32_t choice[MOST_NODES];
    double least = -1;
    bool more = true;
    for (int i = 0; i < r->n; i++)
        choice[i] = b->place[i] < 0 ? given[i] : 0;
    while (more) {
        double c = cost_with_prices(r, priced, choice);
        if (c < 1e300 && (least < 0 || c < least))
            least = c;
        more = false;
        for (int i = 0; i < r->n && !more; i++) {
            if (b->place[i] < 0)
                continue;
            if (++choice[i] < r->vertex[i].n)
                more = true;
            else
                choice[i] = 0;
        }
    }
    return least;
}

/* Plans of any limit, from one that holds all to one that holds nothing, some members only, some barred choices. */
static void test_buckets(struct mpp_pw_relax *relax, int number, struct random *r, struct mpp_arena *a)
{
    struct mpp_pw_random random = {(uint64_t)number * 2 + 1};
    struct mpp_pw_pool pool = {0};
    double *priced[MOST_NODES];
    for (int way = 0; way < 4; way++) {
        int32_t given[MOST_NODES], choice[MOST_NODES], member[MOST_NODES], n_members = 0;
        for (int i = 0; i < relax->n; i++) {
            priced[i] = mpp_arena_array(a, relax->vertex[i].n, double);
            given[i] = below(r, relax->vertex[i].n);
            for (int k = 0; k < relax->vertex[i].n; k++)
                priced[i][k] = below(r, 6) == 0 ? 1.0 / 0.0 : below(r, 3) * (double)below(r, 1000);
            if (way < 2 || below(r, 4) > 0)
                member[n_members++] = i;
        }
        memcpy(choice, given, sizeof choice);
        double limit = way == 0 ? 1e9 : 1 + below(r, 100);
        struct mpp_pw_buckets *b = mpp_pw_buckets_new(relax, member, n_members, NULL, limit, &pool, &random);
        check(way > 0 || b->n == relax->n, "a wide limit holds nothing", number);
        mpp_pw_buckets_settle(b, priced, choice);
        double least = least_beside_held(relax, b, priced, given);
        check(least < 0 || cost_with_prices(relax, priced, choice) == least, "buckets find the least", number);
        for (int i = 0; i < relax->n; i++)
            check(b->place[i] >= 0 || choice[i] == given[i], "what is held stays", number);
        mpp_pw_buckets_free(b);
    }
    mpp_arena_free(pool.arena);
}

static bool never(void *context)
{
    (void)context;
    return false;
}

/* Large blocks alone, from FOUND (the best of its problem, NULL: nothing fits) or from anything: what they keep fits and is
 * allowed; it is the best where they begin there, and where no row binds, since these problems are settled whole. */
static void test_blocks(const struct mpp_pairwise_problem *p, struct mpp_pw_relax *relax, const int32_t *found, mpp_i128 best, int number,
                        struct random *r)
{
    struct mpp_pw_random random = {(uint64_t)number * 2 + 1};
    struct mpp_pw_watch watch = {never, NULL};
    int32_t choice[MOST_NODES], whole[MOST_NODES] = {0};
    bool offered = found != NULL && below(r, 2) == 0;
    for (int i = 0; i < relax->n; i++)
        choice[i] = below(r, relax->vertex[i].n);
    struct mpp_pw_blocks *b = mpp_pw_blocks_new(relax, choice, &random);
    if (offered)
        mpp_pw_blocks_offer(b, found);
    mpp_pw_blocks_run(b, BLOCKS_WORK, &watch);
    const int32_t *kept = mpp_pw_blocks_best(b);
    for (int i = 0; i < relax->n && kept != NULL; i++)
        whole[relax->vertex[i].node] = kept[i];
    if (kept != NULL)
        mpp_pw_graph_replay(relax->g, whole);
    check(kept == NULL || (best >= 0 && value_of(p, whole) >= best), "what blocks keep fits", number);
    if (offered || (relax->n_rows == 0 && best >= 0))
        check(kept != NULL && value_of(p, whole) == best, "blocks keep the best", number);
    mpp_pw_blocks_free(b);
}

/* The search from many starts alone: what it finds fits, and is the best, or nothing fits. */
static void test_restarts(const struct mpp_pairwise_problem *p, mpp_i128 best, int number, struct random *r, struct mpp_arena *a)
{
    struct mpp_pw_graph *g = mpp_pw_graph_new(p, (struct mpp_pw_costs){0, MPP_PAIRWISE_FORBIDDEN}, below(r, 2) == 0 ? 0 : MPP_PAIRWISE_PROPAGATE, a);
    mpp_pw_presolve(g);
    struct mpp_pw_relax *relax = g->infeasible ? NULL : mpp_pw_relax_new(g, a);
    if (relax != NULL && relax->n > 0) {
        struct mpp_pw_random random = {(uint64_t)number * 2 + 1};
        struct mpp_pw_watch watch = {never, NULL};
        struct mpp_pw_restart *x = mpp_pw_restart_new(relax, &random);
        int32_t whole[MOST_NODES] = {0};
        mpp_pw_restart_run(x, RESTART_WORK, &watch);
        const int32_t *found = mpp_pw_restart_best(x);
        for (int i = 0; i < relax->n && found != NULL; i++)
            whole[relax->vertex[i].node] = found[i];
        if (found != NULL)
            mpp_pw_graph_replay(g, whole);
        check(best < 0 ? found == NULL : found != NULL && value_of(p, whole) == best, "restarts find the best", number);
        test_blocks(p, relax, found, best, number, r);
        mpp_pw_restart_free(x);
        test_buckets(relax, number, r, a);
    }
    mpp_pw_relax_free(relax);
    mpp_pw_graph_free(g);
}

/* ---- the solver ---------------------------------------------------------------------------------------------------- */

static void test_solver(const struct mpp_pairwise_problem *p, mpp_i128 best, int number, struct mpp_arena *a)
{
    for (int way = 0; way < 5; way++) {
        struct mpp_pairwise_settings set = mpp_pairwise_defaults();
        struct mpp_pairwise_info info;
        struct mpp_pairwise *s;
        int32_t choice[MOST_NODES];
        set.no_glpk = way == 1;
        set.no_descent = way == 2;
        set.rules = way == 3 ? 0 : MPP_PAIRWISE_ALL_RULES;
        set.work_limit = way == 1 ? 2000000 : 0;
        set.upper = way == 4 && best > 0 ? (int64_t)best : 0; /* nothing costs less */
        enum mpp_status st = mpp_pairwise_setup(p, &set, a, &s);
        check(st == MPP_OK, "setup", number);
        if (st != MPP_OK)
            continue;
        st = mpp_pairwise_solve(s, choice, &info);
        if (set.upper > 0 || best < 0) {
            check(st == MPP_INFEASIBLE || (way == 1 && st == MPP_LIMIT), "nothing to be found", number);
        } else if (way == 1 && info.status != MPP_PAIRWISE_OPTIMAL) {
            check(info.bound <= best && (st == MPP_LIMIT || value_of(p, choice) >= best), "a true bound without GLPK", number);
        } else {
            check(st == MPP_OK && info.status == MPP_PAIRWISE_OPTIMAL, "optimal", number);
            mpp_i128 slack = way == 3 ? best / 1000000000 : 0; /* GLPK's own, where its verdict stays unconfirmed */
            check(info.objective - best <= slack && info.bound == info.objective && value_of(p, choice) == info.objective,
                  "the optimum", number);
        }
        mpp_pairwise_free(s);
    }
}

/* Costs that have to be shifted: what the optimum's own need is proven, and nothing runs on to the time limit. */
static void test_huge(struct random *r, int number, struct mpp_arena *a)
{
    struct mpp_pairwise_problem p = draw_problem(r, HUGE, a);
    struct mpp_pairwise_settings set = mpp_pairwise_defaults();
    struct mpp_pairwise_info info;
    struct mpp_pairwise *s;
    int32_t choice[MOST_NODES];
    mpp_i128 best = exhaustive(&p);
    set.time_limit_s = best < MPP_PAIRWISE_FORBIDDEN / 20 ? 60 : 0.2;
    enum mpp_status st = mpp_pairwise_setup(&p, &set, a, &s);
    check(st == MPP_OK, "setup of huge costs", number);
    if (st != MPP_OK)
        return;
    st = mpp_pairwise_solve(s, choice, &info);
    check(best >= MPP_PAIRWISE_FORBIDDEN / 20 || info.seconds < set.time_limit_s, "huge costs settled in time", number);
    check(st == (best < 0 ? MPP_INFEASIBLE : MPP_OK), "huge costs solved", number);
    if (st == MPP_OK) {
        check(info.bound <= best && info.objective >= best && value_of(&p, choice) == info.objective, "between bounds", number);
        check(best >= MPP_PAIRWISE_FORBIDDEN / 20 || (info.status == MPP_PAIRWISE_OPTIMAL && info.objective == best),
              "the optimum beside huge costs", number);
    }
    mpp_pairwise_free(s);
}

static void test_file(const struct mpp_pairwise_problem *p, int number, struct mpp_arena *a)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    mpp_iopddl_write(f, "test", p);
    fclose(f);
    struct mpp_diag *diag = mpp_diag_new(stdout);
    struct mpp_pairwise_problem *back;
    bool ok = mpp_iopddl_parse(text, size, "test", a, diag, &back) == MPP_OK && back->n_nodes == p->n_nodes &&
              back->n_edges == p->n_edges && back->capacity == p->capacity;
    for (int i = 0; i < p->n_nodes && ok; i++)
        ok = back->nodes[i].n_choices == p->nodes[i].n_choices &&
             memcmp(back->nodes[i].cost, p->nodes[i].cost, (size_t)p->nodes[i].n_choices * sizeof(int64_t)) == 0;
    for (int e = 0; e < p->n_edges && ok; e++)
        ok = back->edges[e].a == p->edges[e].a && back->edges[e].b == p->edges[e].b;
    check(ok, "written and read again", number);
    mpp_diag_free(diag);
    free(text);
}

int main(void)
{
    struct random r = {.state = 20250704};
    for (int i = 0; i < N_PROBLEMS; i++) {
        struct mpp_arena *a = mpp_arena_new();
        struct mpp_pairwise_problem p = draw_problem(&r, below(&r, SORTS), a);
        mpp_i128 best = exhaustive(&p);
        test_rules(&p, best, i, a);
        test_fixing(&p, best, i, &r, a);
        test_restarts(&p, best, i, &r, a);
        test_solver(&p, best, i, a);
        test_file(&p, i, a);
        mpp_arena_free(a);
    }
    for (int i = 0; i < N_HUGE; i++) {
        struct mpp_arena *a = mpp_arena_new();
        test_huge(&r, i, a);
        mpp_arena_free(a);
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
