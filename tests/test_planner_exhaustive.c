/* test_planner_exhaustive.c - the planner against exhaustive search (exhaustive.h) on small random training steps: chains,
 * trees, diamonds, values with several readers, repeated layers, with memory from loose to too little. */
#include <unistd.h>

#include "tests/exhaustive.h"
#include "tests/planner_testing.h"
#include "tests/random_text.h"

/* ---- random models ---- */

static void put_head(struct text *t, int batch, const int *size, int seq)
{
    put(t, "<model name=\"random\" version=\"1\">\n<params>\n<dim name=\"batch\" value=\"%d\" role=\"batch\"/>\n", batch);
    for (int i = 0; i < 3; i++)
        put(t, "<dim name=\"d%d\" value=\"%d\"/>\n", i, size[i]);
    if (seq)
        put(t, "<dim name=\"seq\" value=\"%d\"/>\n", seq);
    put(t, "</params>\n<inputs>\n<input name=\"x\" type=\"f32\" shape=\"batch, %sd0\"/>\n", seq ? "seq, " : "");
}

static void put_tail(struct text *t, const char *last, int dim, int seq)
{
    put(t, "<MeanSquaredErrorLoss name=\"loss\" in=\"%s y\"/>\n</graph>\n<training loss=\"loss\">\n"
           "<optimizer type=\"sgd\" lr=\"0.1\" momentum=\"0\"/>\n</training>\n</model>\n", last);
    char *graph = strstr(t->s, "<graph>"), y[160];
    snprintf(y, sizeof y, "<input name=\"y\" type=\"f32\" shape=\"batch, %sd%d\"/>\n</inputs>\n", seq ? "seq, " : "", dim);
    size_t at = (size_t)(graph - t->s), k = strlen(y);
    memmove(graph + k, graph, t->n - at + 1);
    memcpy(graph, y, k);
    t->n += k;
}

/* Values by name; each next op reads the newest one, and others where it has room, so that all are of use. */
static void random_model(struct text *t)
{
    static const int sizes[] = {2, 3, 5, 6, 7, 16, 64, 96, 250, 1024, 2047}, batches[] = {2, 3, 4, 6, 16, 30, 256};
    static const char *const unary[] = {"Relu", "Gelu", "Tanh", "Sigmoid", "LayerNormalization", "Softmax"};
    int size[3], seq = below(3) ? 0 : sizes[below(7)], dim[16] = {0}, n = 1, n_ops = 1 + below(3), weights = 0;
    bool used[16] = {false};
    *t = (struct text){.n = 0};
    for (int i = 0; i < 3; i++)
        size[i] = sizes[below(11)];
    put_head(t, batches[below(7)], size, seq);
    put(t, "<graph>\n");
    for (int i = 0; i < n_ops; i++) {
        int from = below(2) ? n - 1 : below(n), other = below(n), kind = below(10);
        char a[8], b[8];
        snprintf(a, sizeof a, from ? "v%d" : "x", from);
        snprintf(b, sizeof b, other ? "v%d" : "x", other);
        if ((kind < 4 && weights < 2) || (i == 0 && weights == 0)) {
            dim[n] = below(3);
            put(t, "<Linear name=\"l%d\" in=\"%s\" units=\"d%d\" bias=\"%s\" out=\"v%d\"/>\n", n, a, dim[n],
                below(4) ? "false" : "true", n);
            weights++;
        } else if (kind < 8 && dim[from] == dim[other]) {
            dim[n] = dim[from];
            put(t, "<%s name=\"o%d\" in=\"%s %s\" out=\"v%d\"/>\n", kind < 6 ? "Add" : "Mul", n, a, b, n);
            used[other] = true;
        } else {
            dim[n] = dim[from];
            put(t, "<%s name=\"u%d\" in=\"%s\" out=\"v%d\"/>\n", unary[below(weights > 1 ? 4 : 6)], n, a, n);
        }
        used[from] = true;
        n++;
    }
    /* what nobody reads yet is added, row means where the sizes differ */
    int last = n - 1;
    for (int i = 1; i < n - 1; i++) {
        char a[8];
        if (used[i])
            continue;
        snprintf(a, sizeof a, dim[i] == dim[n - 1] ? "v%d" : "m%d", i);
        if (*a == 'm')
            put(t, "<ReduceMean name=\"r%d\" in=\"v%d\" axes=\"-1\" keepdims=\"true\" out=\"m%d\"/>\n", i, i, i);
        put(t, "<Add name=\"s%d\" in=\"%s%d %s\" out=\"w%d\"/>\n", i, last == n - 1 ? "v" : "w", last, a, i);
        last = i;
    }
    char name[8];
    snprintf(name, sizeof name, last == n - 1 ? "v%d" : "w%d", last);
    put_tail(t, name, dim[n - 1], seq);
}

static bool load(struct text *t, const char *cluster, int n_devices, struct setup *s)
{
    char path[] = "/tmp/mpp_exhaustive_XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, t->s, t->n) != (ssize_t)t->n)
        must(MPP_IO, path);
    close(fd);
    *s = setup_new(path, NULL, "", cluster, n_devices);
    unlink(path);
    return true;
}

/* ---- the comparison ---- */

struct tally {
    int compared, infeasible, tight, too_large;
};

/* The least over all meshes, by both searches where they can; -1: too large. */
static int64_t exhaustive(const struct setup *s, const struct mpp_pins *pins, int64_t capacity, int64_t limit)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_candidate *c;
    int n = mpp_pins_candidates(arena, s->cluster->n_devices, true, pins, &c);
    int64_t best = INT64_MAX;
    for (int i = 0; i < n && best >= 0; i++) {
        struct mpp_pin_rules *rules;
        struct mpp_stage_problem *p;
        const char *reason;
        if (!mpp_pins_resolve(arena, s->g, &c[i], pins, &rules, &reason)
            || !mpp_stage_problem_build(arena, s->cluster, rules, MPP_STAGE_ALONE, capacity, &p, &reason))
            continue;
        bool agree;
        int64_t least = exhaustive_least(p, s->cluster, &c[i].mesh, s->hidden, capacity, limit, &agree);
        check(agree, "the two exhaustive searches disagree");
        best = least < 0 ? -1 : least < best ? least : best;
    }
    mpp_arena_free(arena);
    return best;
}

/* One model at one capacity; false: too large to try. */
static bool compare(struct setup *s, const char *fix, int64_t capacity, struct tally *tally, const char *what)
{
    struct mpp_pins pins = mpp_pins_none();
    must(mpp_pins_parse(s->arena, s->diag, fix, &pins), fix);
    enum mpp_status st = setup_plan(s, fix, capacity);
    if (st == MPP_INVALID)
        return false;             /* the pins cannot hold */
    int64_t found = st != MPP_OK ? INT64_MAX : s->hidden > 0 ? s->plan->solver.objective : s->plan->objective_ps;
    mpp_graph_set_batch(s->g, s->g->global_batch / pins.micro_batches);
    int64_t best = exhaustive(s, &pins, capacity, st == MPP_OK ? found : INT64_MAX / 2);
    if (best < 0) {
        tally->too_large++;
        return false;
    }
    check(best == found && (st == MPP_OK || st == MPP_INFEASIBLE), "%s, %s, hidden %g, %lld bytes: planned %lld (status %d), best %lld",
          what, fix, s->hidden, (long long)capacity, (long long)found, st, (long long)best);
    check(st != MPP_OK || (s->hidden > 0 ? s->plan->solver.bound : s->plan->bound_ps) == found, "%s, %s, %lld bytes: not proven", what, fix, (long long)capacity);
    tally->compared++;
    tally->infeasible += st == MPP_INFEASIBLE;
    return true;
}

static void test_random(int graphs)
{
    static const char *const fixes[] = {"micro_batches=1", "micro_batches=1", "micro_batches=2", "micro_batches=1,zero=1",
                                        "micro_batches=1,zero=3"};
    struct tally tally = {0};
    int done = 0;
    for (int i = 0; done < graphs && i < 20 * graphs; i++) {
        struct text t;
        struct setup s;
        int n_devices = 2 + below(3);
        random_model(&t);
        load(&t, below(2) ? "host" : "dgx-a100", n_devices, &s);
        const char *fix = fixes[below(5)];
        s.hidden = below(3) == 0 ? 1 - MPP_COST_BESIDE : 0; /* --overlap */
        if (s.g->global_batch % 2 && strstr(fix, "=2"))
            fix = fixes[0];
        bool ok = compare(&s, fix, INT64_MAX / 4, &tally, t.s);
        int64_t peak = ok ? s.plan->solver.peak_bytes : 0;
        static const int percent[] = {99, 90, 80, 70, 60, 50, 35, 20};
        for (int k = 0; k < 2 && ok; k++) {
            int64_t before = tally.infeasible;
            compare(&s, fix, peak * percent[below(8)] / 100, &tally, t.s);
            tally.tight += tally.infeasible == before;
        }
        done += ok;
        setup_free(&s);
    }
    check(done == graphs, "only %d of %d graphs", done, graphs);
    printf("%d graphs: %d comparisons, %d with tight memory, %d infeasible; %d too large to try\n", done, tally.compared,
           tally.tight, tally.infeasible, tally.too_large);
}

/* Layers that are alike, where memory makes them lie differently. */
static void test_layers(void)
{
    static const char *const body[] = {
        "<Linear name=\"fc\" units=\"d1\" bias=\"false\"/>\n<Relu/>\n",
        "<LayerNormalization name=\"n\"/>\n<Linear name=\"fc\" units=\"d1\" bias=\"false\"/>\n",
        "<Linear name=\"fc\" units=\"d1\" bias=\"false\" out=\"h\"/>\n<Add name=\"add\" in=\"%x h\"/>\n",
    };
    static const int layers[] = {2, 3, 6}, percent[] = {150, 95, 85, 75, 65, 60, 50};
    struct tally tally = {0};
    for (size_t b = 0; b < sizeof body / sizeof body[0]; b++)
        for (size_t l = 0; l < 3; l++)
            for (int many = 0; many < 2; many++) {
                struct text t = {.n = 0};
                struct setup s;
                const int size[] = {64, 96, 32};
                put_head(&t, many ? 512 : 32, size, 0);
                put(&t, "<graph>\n<Linear name=\"first\" in=\"x\" units=\"d1\" bias=\"false\"/>\n<repeat name=\"layer\" count=\"%d\">\n"
                    "%s</repeat>\n<Linear name=\"last\" units=\"d2\" bias=\"false\" out=\"z\"/>\n", layers[l], body[b]);
                put_tail(&t, "z", 2, 0);
                load(&t, many ? "dgx-a100" : "host", 2, &s);
                int64_t peak = 0;
                for (size_t k = 0; k < sizeof percent / sizeof percent[0]; k += k == 0 ? 1 + l % 2 : 2) { /* in turns */
                    compare(&s, "micro_batches=1", k ? peak * percent[k] / 100 : INT64_MAX / 4, &tally, t.s);
                    peak = k ? peak : s.plan->solver.peak_bytes;
                }
                setup_free(&s);
            }
    check(tally.compared >= 60, "only %d comparisons", tally.compared);
    printf("repeated layers: %d comparisons, %d infeasible; %d too large to try\n", tally.compared, tally.infeasible,
           tally.too_large);
}

int main(int argc, char **argv)
{
    test_layers();
    test_random(argc > 1 ? atoi(argv[1]) : 200);
    return finish();
}
