/* test_solver.c - random small problems against exhaustive enumeration, with every method alone; dumps. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/arena.h"
#include "planner/solver.h"
#include "planner/solver_internal.h"

static int passed, failed;

static void check(bool ok, const char *what, int seed)
{
    if (ok) {
        passed++;
        return;
    }
    failed++;
    printf("FAILED: %s (seed %d)\n", what, seed);
}

/* ---- random problems ---------------------------------------------------------------------- */

static uint64_t rng;

static int rnd(int n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (int)((rng >> 33) % (uint64_t)n);
}

enum shape { CHAIN, TREE, DIAMOND, CYCLE, SHARED, LAYERS, N_SHAPES };

struct maker {
    struct mpp_arena *a;
    struct mpp_solver_problem *p;
    struct mpp_solver_node *nodes;
    struct mpp_solver_value *values;
    int max_choices, cost_range;
};

static int32_t add_node(struct maker *m, int horizon)
{
    int32_t i = m->p->n_nodes++, n = 1 + rnd(m->max_choices);
    struct mpp_solver_node *node = &m->nodes[i];
    int64_t *cost = mpp_arena_array(m->a, n, int64_t);
    for (int k = 0; k < n; k++)
        cost[k] = rnd(m->cost_range);
    node->name = mpp_arena_printf(m->a, "node %d", i);
    node->n_choices = n;
    node->cost = cost;
    node->n_usages = rnd(3);
    struct mpp_solver_usage *u = mpp_arena_array(m->a, node->n_usages, struct mpp_solver_usage);
    for (int q = 0; q < node->n_usages; q++) {
        u[q].first = rnd(horizon) - 2;
        u[q].last = u[q].first + rnd(4) - (rnd(8) == 0);
        int64_t *b = mpp_arena_array(m->a, n, int64_t);
        for (int k = 0; k < n; k++)
            b[k] = rnd(30);
        u[q].bytes = b;
    }
    node->usages = u;
    return i;
}

static int32_t *some_forms(struct maker *m, int32_t n, int32_t n_forms)
{
    int32_t *f = mpp_arena_array(m->a, n, int32_t);
    for (int k = 0; k < n; k++)
        f[k] = rnd(n_forms);
    return f;
}

static void add_value(struct maker *m, int32_t producer, const int32_t *consumers, int n, int horizon)
{
    struct mpp_solver_value *v = &m->values[m->p->n_values++];
    int32_t nf = 1 + rnd(4);
    v->name = mpp_arena_printf(m->a, "value %d\nx", m->p->n_values - 1);
    v->n_forms = nf;
    v->producer = producer;
    v->out = some_forms(m, m->nodes[producer].n_choices, nf);
    v->n_consumers = n;
    v->consumers = mpp_arena_memdup(m->a, consumers, sizeof *consumers * (size_t)n);
    const int32_t **in = mpp_arena_array(m->a, n, const int32_t *);
    for (int c = 0; c < n; c++)
        in[c] = some_forms(m, m->nodes[consumers[c]].n_choices, nf);
    v->in = in;
    int64_t *conv = mpp_arena_array(m->a, nf * nf, int64_t);
    for (int e = 0; e < nf * nf; e++)
        conv[e] = rnd(8) == 0 ? MPP_SOLVER_FORBIDDEN : rnd(4) ? rnd(m->cost_range) : 0;
    v->convert = conv;
    if (rnd(2)) {
        int64_t *b = mpp_arena_array(m->a, nf, int64_t);
        for (int t = 0; t < nf; t++)
            b[t] = rnd(20);
        v->copy_bytes = b;
    }
    v->copy_first = rnd(horizon) - 2;
    v->copy_last = v->copy_first + rnd(3) - (rnd(8) == 0);
}

static void wire(struct maker *m, enum shape shape, int n, int horizon)
{
    int32_t c[8];
    for (int i = 0; i < n; i++)
        add_node(m, horizon);
    for (int i = 1; i < n; i++) {
        int32_t from = shape == TREE ? rnd(i) : i - 1;
        c[0] = i;
        add_value(m, from, c, 1, horizon);
    }
    if (shape == DIAMOND)
        for (int i = 2; i < n; i += 2) {
            c[0] = i;
            add_value(m, i - 2, c, 1, horizon);
        }
    if (shape == CYCLE && n > 2) {
        c[0] = n - 1;
        add_value(m, 0, c, 1, horizon);
    }
    for (int q = 0; shape == SHARED && q < 2; q++) {
        int from = rnd(n), k = 0;
        for (int i = 0; i < n && k < 4; i++)
            if (i != from && rnd(3))
                c[k++] = i;
        if (k)
            add_value(m, from, c, k, horizon);
    }
}

/* The same two-node layer several times over, in a chain, each layer live at its own times. */
static void layers(struct maker *m, int n)
{
    int32_t c[2];
    int unit = 2;
    wire(m, CHAIN, unit, 4);
    c[0] = 1;
    add_value(m, 0, c, 1, 4);
    int v_unit = m->p->n_values;
    for (int l = 1; l < n; l++) {
        for (int i = 0; i < unit; i++) {
            struct mpp_solver_node *node = &m->nodes[m->p->n_nodes++];
            *node = m->nodes[i];
            struct mpp_solver_usage *u =
                mpp_arena_memdup(m->a, node->usages, sizeof *u * (size_t)node->n_usages);
            for (int q = 0; q < node->n_usages; q++)
                u[q].last += l;
            node->usages = u;
        }
        for (int v = 0; v < v_unit; v++) {
            struct mpp_solver_value *val = &m->values[m->p->n_values++];
            int32_t *cons = mpp_arena_array(m->a, 1, int32_t);
            *val = m->values[v];
            val->producer += l * unit;
            cons[0] = val->consumers[0] + l * unit;
            val->consumers = cons;
        }
        c[0] = l * unit;
        add_value(m, l * unit - 1, c, 1, 4 + l);
        if (l > 1) { /* one link between layers, repeated */
            struct mpp_solver_value *link = &m->values[m->p->n_values - 1];
            const struct mpp_solver_value *first = &m->values[2 * v_unit];
            int32_t producer = link->producer;
            const int32_t *cons = link->consumers;
            *link = *first;
            link->producer = producer;
            link->consumers = cons;
        }
    }
}

static struct mpp_solver_problem *make(struct mpp_arena *a, int seed)
{
    rng = (uint64_t)seed * 7919 + 17;
    for (int i = 0; i < 5; i++)
        rnd(2);
    struct maker m = {.a = a, .p = mpp_arena_array(a, 1, struct mpp_solver_problem)};
    enum shape shape = (enum shape)(seed % N_SHAPES);
    m.nodes = mpp_arena_array(a, 32, struct mpp_solver_node);
    m.values = mpp_arena_array(a, 64, struct mpp_solver_value);
    m.cost_range = rnd(4) == 0 ? 3 : 100;
    m.p->nodes = m.nodes;
    m.p->values = m.values;
    if (shape == LAYERS) {
        static const int counts[] = {2, 3, 6};
        int n = counts[rnd(3)];
        m.max_choices = n == 6 ? 2 : 4;
        layers(&m, n);
    } else {
        m.max_choices = 2 + rnd(3);
        wire(&m, shape, 2 + rnd(6), 8);
    }
    m.p->capacity_bytes = INT64_MAX;
    return m.p;
}

struct truth {
    int64_t best, least_peak;     /* best within capacity; least peak of all without forbidden copies */
};

static struct truth enumerate(const struct mpp_solver_problem *p)
{
    struct truth t = {MPP_SOLVER_FORBIDDEN, INT64_MAX};
    int32_t choice[32] = {0};
    for (;;) {
        int64_t peak, cost = mpp_solver_evaluate(p, choice, &peak, NULL);
        if (cost != MPP_SOLVER_FORBIDDEN) {
            t.least_peak = peak < t.least_peak ? peak : t.least_peak;
            if (peak <= p->capacity_bytes && cost < t.best)
                t.best = cost;
        }
        int32_t i = 0;
        while (i < p->n_nodes && ++choice[i] == p->nodes[i].n_choices)
            choice[i++] = 0;
        if (i == p->n_nodes)
            return t;
    }
}

/* ---- the checks --------------------------------------------------------------------------- */

static bool is_optimal(const struct mpp_solver_problem *p, const struct mpp_solver_tuning *tune, int64_t table_limit,
                       const struct truth *t, struct mpp_solver_info *info)
{
    struct mpp_solver_settings set = mpp_solver_defaults();
    struct mpp_solver *s;
    int32_t choice[32];
    set.table_limit = table_limit;
    if (mpp_solver_setup(p, &set, &s) != MPP_OK)
        return false;
    s->tune = *tune;
    enum mpp_status st = mpp_solver_solve(s, choice, info);
    mpp_solver_free(s);
    if (t->best == MPP_SOLVER_FORBIDDEN) {
        bool memory = t->least_peak < INT64_MAX;
        return st == MPP_INFEASIBLE && info->status == MPP_SOLVER_INFEASIBLE &&
               (!memory || (info->least_peak_bytes <= t->least_peak && info->least_peak_bytes >= 0));
    }
    int64_t peak;
    return st == MPP_OK && info->status == MPP_SOLVER_OPTIMAL && info->objective == t->best &&
           info->bound == t->best && mpp_solver_evaluate(p, choice, &peak, NULL) == t->best &&
           peak == info->peak_bytes && peak <= p->capacity_bytes;
}

/* With what is to be undercut given: found where something is cheaper, else proven that nothing is. And quick:
 * a bound, and an answer only where it is proven. */
static bool is_bounded(const struct mpp_solver_problem *p, const struct truth *t, int64_t upper, bool quick)
{
    struct mpp_solver_settings set = mpp_solver_defaults();
    struct mpp_solver_info info;
    struct mpp_solver *s;
    int32_t choice[32];
    set.upper_bound = upper;
    set.quick = quick;
    if (mpp_solver_setup(p, &set, &s) != MPP_OK)
        return false;
    enum mpp_status st = mpp_solver_solve(s, choice, &info);
    mpp_solver_free(s);
    bool none = t->best == MPP_SOLVER_FORBIDDEN;
    if (st == MPP_OK)
        return !none && info.bound <= t->best && info.objective >= t->best && (upper == 0 || info.objective < upper) &&
               (info.objective == t->best || quick);
    if (st == MPP_INFEASIBLE)
        return none;
    return info.status == MPP_SOLVER_NO_ANSWER && (none || info.bound <= t->best) &&
           (quick || (upper > 0 && info.bound >= upper));
}

static void random_one(int seed, int *n_memory, int *n_infeasible)
{
    static const struct {
        const char *name;
        struct mpp_solver_tuning tune;
        int64_t table_limit;
    } ways[] = {
        {"all methods", {0}, 0},
        {"no dominance", {.no_dominance = true}, 0},
        {"no prices", {.no_prices = true}, 0},
        {"pairwise only", {.no_dominance = true, .no_prices = true, .no_elimination = true}, 0},
        {"split values", {.force_split = true}, 0},
        {"no split", {.no_split = true}, 0},
        {"small tables", {0}, 9},
        {"no tables", {0}, 1},
    };
    struct mpp_arena *a = mpp_arena_new();
    struct mpp_solver_problem *p = make(a, seed);
    struct truth t = enumerate(p);
    if (seed % 3 && t.least_peak < INT64_MAX) {
        p->capacity_bytes = t.least_peak + rnd(12) - 3;
        p->capacity_bytes = p->capacity_bytes < 0 ? 0 : p->capacity_bytes;
        t.best = enumerate(p).best;
        (*n_memory)++;
    }
    *n_infeasible += t.best == MPP_SOLVER_FORBIDDEN;
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        struct mpp_solver_info info;
        bool ok = is_optimal(p, &ways[w].tune, ways[w].table_limit, &t, &info);
        check(ok, ways[w].name, seed);
        if (!ok)
            printf("  status %d objective %" PRId64 " bound %" PRId64 " truth %" PRId64 " least peak %" PRId64
                   " (said %" PRId64 ") capacity %" PRId64 " glpk %s\n",
                   (int)info.status, info.objective, info.bound, t.best, t.least_peak, info.least_peak_bytes,
                   p->capacity_bytes, info.glpk_status);
    }
    bool some = t.best < MPP_SOLVER_FORBIDDEN;
    check(is_bounded(p, &t, some ? t.best + 1 : 50, false), "just above the optimum", seed);
    check(is_bounded(p, &t, some && t.best > 0 ? t.best : 1, false), "nothing below the optimum", seed);
    check(is_bounded(p, &t, some ? t.best + 60 : 1000, false), "an upper bound", seed);
    check(is_bounded(p, &t, 0, true), "quick", seed);
    mpp_arena_free(a);
}

/* Problems and their optima for another solver to check. */
static int dump_all(const char *folder)
{
    for (int seed = 1; seed <= 60; seed++) {
        struct mpp_arena *a = mpp_arena_new();
        struct mpp_solver_problem *p = make(a, seed);
        struct truth t = enumerate(p);
        if (seed % 4 && t.least_peak < INT64_MAX) {
            p->capacity_bytes = t.least_peak + rnd(12) - 2 > 0 ? t.least_peak + rnd(12) - 2 : 0;
            p->capacity_bytes = p->capacity_bytes < 0 ? 0 : p->capacity_bytes;
            t.best = enumerate(p).best;
        }
        struct mpp_solver_settings set = mpp_solver_defaults();
        set.dump_full = mpp_arena_printf(a, "%s/p%02d.full.lp", folder, seed);
        set.dump_reduced = mpp_arena_printf(a, "%s/p%02d.reduced.lp", folder, seed);
        struct mpp_solver *s;
        struct mpp_solver_info info;
        int32_t choice[32];
        FILE *f = fopen(mpp_arena_printf(a, "%s/p%02d.txt", folder, seed), "w");
        if (!f || mpp_solver_setup(p, &set, &s) != MPP_OK)
            return 1;
        enum mpp_status st = mpp_solver_solve(s, choice, &info);
        if (t.best == MPP_SOLVER_FORBIDDEN)
            fprintf(f, "infeasible\n");
        else
            fprintf(f, "%" PRId64 "\n", t.best);
        check(st == (t.best == MPP_SOLVER_FORBIDDEN ? MPP_INFEASIBLE : MPP_OK), "dumped", seed);
        fclose(f);
        mpp_solver_free(s);
        mpp_arena_free(a);
    }
    return failed != 0;
}

/* What breaks a rule is refused; what cannot be written is said. */
static void rules(void)
{
    int64_t cost[2] = {1, 2}, bad[2] = {1, -2}, conv[4] = {0, 5, 5, 0};
    int32_t out[2] = {0, 1}, wrong[2] = {0, 2}, cons[2] = {1, 1}, choice[2];
    const int32_t *in[2] = {out, out};
    struct mpp_solver_node n[2] = {{.name = "a", .n_choices = 2, .cost = cost},
                                   {.name = "b", .n_choices = 2, .cost = cost}};
    struct mpp_solver_value v = {"v", 2, 0, out, 1, cons, in, conv, NULL, 0, 0};
    struct mpp_solver_problem p = {2, 1, n, &v, INT64_MAX, NULL};
    struct mpp_solver *s;
    struct mpp_solver_info info;
    check(mpp_solver_setup(&p, NULL, &s) == MPP_OK, "a good problem", 0);
    check(mpp_solver_solve(s, choice, &info) == MPP_OK && info.objective == 2 && info.peak_bytes == 0, "solved", 0);
    mpp_solver_free(s);
    n[1].cost = bad;
    check(mpp_solver_setup(&p, NULL, &s) == MPP_INVALID && !s, "a negative cost", 0);
    n[1].cost = cost;
    v.out = wrong;
    check(mpp_solver_setup(&p, NULL, &s) == MPP_INVALID, "a form out of range", 0);
    v.out = out;
    v.n_consumers = 2;
    check(mpp_solver_setup(&p, NULL, &s) == MPP_INVALID, "a consumer twice", 0);
    v.n_consumers = 1;
    cons[0] = 0;
    check(mpp_solver_setup(&p, NULL, &s) == MPP_INVALID, "its own producer", 0);
    cons[0] = 1;
    struct mpp_solver_settings set = mpp_solver_defaults();
    set.dump_full = "/nonexistent-folder/x.lp";
    check(mpp_solver_setup(&p, &set, &s) == MPP_OK && mpp_solver_solve(s, choice, &info) == MPP_IO, "no folder", 0);
    mpp_solver_free(s);
    volatile int stop = 1;
    set.dump_full = NULL;
    set.interrupt = &stop;
    check(mpp_solver_setup(&p, &set, &s) == MPP_OK, "interrupted", 0);
    enum mpp_status st = mpp_solver_solve(s, choice, &info);
    check(st == MPP_LIMIT && info.status == MPP_SOLVER_NO_ANSWER, "interrupted", 0);
    mpp_solver_free(s);
    struct mpp_solver_problem none = {0};
    check(mpp_solver_setup(&none, NULL, &s) == MPP_OK && mpp_solver_solve(s, choice, &info) == MPP_OK &&
              info.objective == 0,
          "nothing at all", 0);
    mpp_solver_free(s);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "--dump") == 0)
        return dump_all(argv[2]);
    rules();
    int n = argc > 1 ? atoi(argv[1]) : 420, n_memory = 0, n_infeasible = 0;
    for (int seed = argc > 2 ? atoi(argv[2]) : 1; seed <= n; seed++)
        random_one(seed, &n_memory, &n_infeasible);
    printf("%d problems, %d with memory limits, %d infeasible\n", n, n_memory, n_infeasible);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
