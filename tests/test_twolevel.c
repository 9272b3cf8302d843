/* test_twolevel.c - the planner over stages against an exhaustive oracle, on small random models and clusters.
 *
 * The oracle tries every partition of the layers and of the devices, every number of micro-batches, schedule, mesh and
 * recomputation. Of each stage's integer program, built for its very place and not folded, it takes all points of time per
 * micro-batch and work per step that are least under some weights (front.h); that nothing between two of them could be part
 * of a better plan is shown by bounds, and where it could, that is counted. The planner's least T must be the oracle's.
 * Then all plans near the least T are simulated event by event: the planner's choice is within 3 % of the best of them. */
#include <unistd.h>

#include "planner/fold.h"
#include "planner/front.h"
#include "planner/pins.h"
#include "tests/planner_testing.h"
#include "tests/random_text.h"

/* ---- random models and clusters ---- */

static const char *const DIMS[] = {"d0", "d1", "d2", "d3", "d4", "d5", "d6"};
static const char *const BODIES[] = {
    "<Linear name=\"fc\" units=\"w\" bias=\"false\"/>\n<Relu/>\n",
    "<Linear name=\"fc\" units=\"w\"/>\n<Gelu/>\n",
    "<LayerNormalization name=\"ln\"/>\n<Linear name=\"fc\" units=\"w\"/>\n",
};

/* A perceptron whose LAYERS products all differ, or with repeated layers between its first and its last. */
static void random_perceptron(struct text *t, int layers, bool large)
{
    static const int widths[] = {256, 1000, 2048, 4096, 6000, 8192, 16384}, batches[] = {2, 3, 4, 6, 8, 12}, seqs[] = {1, 64, 256, 2048};
    bool repeat = below(3) == 0 && layers > 3;
    const char *last = repeat ? "w" : DIMS[layers];
    put(t, "<model name=\"random\" version=\"1\">\n<params>\n<dim name=\"batch\" value=\"%d\" role=\"batch\"/>\n"
           "<dim name=\"seq\" value=\"%d\"/>\n<dim name=\"w\" value=\"%d\"/>\n", batches[below(large ? 2 : 6)], seqs[below(4)], widths[below(7)]);
    for (int i = 0; i <= layers; i++)
        put(t, "<dim name=\"d%d\" value=\"%d\"/>\n", i, widths[below(7)]);
    put(t, "</params>\n<inputs>\n<input name=\"x\" type=\"f32\" shape=\"batch, seq, d0\"/>\n"
           "<input name=\"y\" type=\"f32\" shape=\"batch, seq, %s\"/>\n</inputs>\n<graph>\n", last);
    if (repeat)
        put(t, "<Linear name=\"first\" in=\"x\" units=\"w\"/>\n<repeat name=\"layer\" count=\"%d\">\n%s</repeat>\n", layers - 2,
            BODIES[below(3)]);
    for (int i = 1; i < layers && !repeat; i++) {
        put(t, "<Linear name=\"l%d\"%s units=\"d%d\" bias=\"%s\"/>\n", i, i == 1 ? " in=\"x\"" : "", i, below(2) ? "true" : "false");
        if (below(3))
            put(t, "<%s/>\n", below(2) ? "Relu" : "Gelu");
    }
    put(t, "<Linear name=\"end\"%s units=\"%s\" bias=\"false\" out=\"z\"/>\n", layers == 1 ? " in=\"x\"" : "", last);
    put(t, "<MeanSquaredErrorLoss name=\"loss\" in=\"z y\"/>\n</graph>\n<training loss=\"loss\">\n"
           "<optimizer type=\"%s\" lr=\"0.1\"/>\n</training>\n</model>\n", below(2) ? "sgd" : "adamw");
}

/* One or two nodes whose devices and links may be slow or fast beside each other. */
static void random_cluster(struct text *t, int n_devices, int n_nodes)
{
    static const char *const devices[] = {"V100-SXM2-32GB", "A100-SXM4-80GB", "T4-16GB"};
    static const double rates[] = {2e8, 1e9, 1e10, 1e11};
    double rate = rates[below(4)], net = rates[below(3)];
    put(t, "<cluster name=\"random\" device=\"%s\" devices_per_node=\"%d\" nodes=\"%d\" tuning=\"nccl-volta\">\n", devices[below(3)],
        n_devices / n_nodes, n_nodes);
    if (below(2))
        put(t, "<switch send_bytes_per_s=\"%g\"><rate devices=\"2\" bytes_per_s=\"%g\"/></switch>\n", rate, rate);
    else
        put(t, "<pcie bytes_per_s=\"%g\" total_bytes_per_s=\"%g\"/>\n", rate, 2 * rate);
    if (n_nodes > 1)
        put(t, "<network nics=\"%d\" bytes_per_s=\"%g\" latency_s=\"%g\"/>\n", 1 + below(2), net, below(2) ? 2e-6 : 2e-5);
    put(t, "</cluster>\n");
}

/* A transformer of a layer or two. */
static const char *random_gpt(struct mpp_arena *arena, int layers)
{
    static const int hidden[] = {64, 256, 1024, 4096}, seqs[] = {32, 512, 2048}, vocabs[] = {100, 5000, 50257}, batches[] = {2, 3, 4};
    int seq = seqs[below(3)];
    return mpp_arena_printf(arena, "layers=%d hidden=%d heads=4 seq=%d positions=%d vocab=%d batch=%d clip_norm=%d", layers, hidden[below(4)],
                            seq, seq, vocabs[below(3)], batches[below(3)], below(2));
}

/* MODEL, or, if it is empty, a transformer of LAYERS. */
static void load(struct text *model, int layers, struct text *cluster, int n_devices, struct setup *s)
{
    char path[] = "/tmp/mpp_twolevel_XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, model->s, model->n) != (ssize_t)model->n)
        must(MPP_IO, path);
    close(fd);
    if (model->n > 0) {
        *s = setup_unfused(path, NULL, "", "host", 1);
    } else {
        struct mpp_arena *scratch = mpp_arena_new();
        *s = setup_unfused("models/gpt.xml", NULL, random_gpt(scratch, layers), "host", 1);
        mpp_arena_free(scratch);
    }
    unlink(path);
    enum mpp_status st = mpp_cluster_parse(s->arena, s->diag, "random", cluster->s, cluster->n, n_devices, &s->cluster);
    if (st != MPP_OK)
        printf("%s", mpp_diag_text(s->diag));
    must(st, cluster->s);
}

/* ---- the oracle ---- */

enum { MAX_LAYERS = 8, MAX_DEVICES = 8, MAX_FLIGHT = 12, MAX_STAGES = 8, STEPS = 8 };

struct point {                    /* one way to run a stage */
    struct mpp_stage_time time;
    bool between;                 /* a bound of what may lie between two points */
};

struct options {
    bool known;
    int n;
    struct point *point;
};

struct sums {                     /* of the stages so far */
    int64_t t, longest, once, before; /* before: what a micro-batch takes to get here */
    int64_t busiest;              /* no simulation takes less */
    bool between;
};

struct oracle {
    const struct setup *s;
    const struct mpp_pins *pins;
    int64_t capacity;
    int64_t best, simulated;      /* the least so far: T; of the simulations */
    int64_t near;                 /* plans of less T are simulated */
    const struct mpp_layering *layering;
    struct mpp_schedule schedule;
    struct mpp_arena *arena;      /* of one number of micro-batches and chunks */
    struct mpp_memo *contents;    /* programs that were looked at */
    size_t cap_front;
    struct options *front;        /* of each */
    struct options stage[MAX_LAYERS][MAX_LAYERS][MAX_DEVICES][MAX_DEVICES + 1][MAX_FLIGHT + 1];
    struct mpp_stage_time chosen[MAX_STAGES];
    bool bounds_too;
    int64_t programs, simulations, given_up, unproven; /* unproven: plans with bounds in them that might be better */
};

/* All that P's solution depends on. */
static void write_contents(struct mpp_key *key, const struct mpp_solver_problem *p)
{
    for (int i = 0; i < p->n_nodes; i++) {
        const struct mpp_solver_node *x = &p->nodes[i];
        size_t n = sizeof(int64_t) * (size_t)x->n_choices;
        mpp_key_int(key, x->n_choices);
        mpp_key_add(key, x->cost, n);
        for (int u = 0; u < x->n_usages; u++) {
            mpp_key_int(key, x->usages[u].first);
            mpp_key_int(key, x->usages[u].last);
            mpp_key_add(key, x->usages[u].bytes, n);
        }
    }
    for (int i = 0; i < p->n_values; i++) {
        const struct mpp_solver_value *v = &p->values[i];
        mpp_key_int(key, v->producer);
        mpp_key_add(key, v->out, sizeof *v->out * (size_t)p->nodes[v->producer].n_choices);
        for (int c = 0; c < v->n_consumers; c++) {
            mpp_key_int(key, v->consumers[c]);
            mpp_key_add(key, v->in[c], sizeof *v->out * (size_t)p->nodes[v->consumers[c]].n_choices);
        }
        mpp_key_add(key, v->convert, sizeof *v->convert * (size_t)(v->n_forms * v->n_forms));
        if (v->copy_bytes)
            mpp_key_add(key, v->copy_bytes, sizeof *v->copy_bytes * (size_t)v->n_forms);
    }
}

static int64_t t_of(const struct mpp_stage_time *t)
{
    return t->forward_ps + t->backward_ps;
}

/* Bounds of what may lie between A and B: nothing is below the line between them. */
static void add_bounds(struct options *x, struct mpp_front_point a, struct mpp_front_point b)
{
    int64_t dt = b.t_ps - a.t_ps, dy = a.once_ps - b.once_ps, least = dt < dy ? dt : dy;
    int steps = least > STEPS ? STEPS : (int)least - 1;
    for (int k = 0; k < steps; k++) {
        int64_t t = a.t_ps + 1 + (int64_t)((double)dt * k / steps);
        int64_t once = k + 1 == steps ? b.once_ps + 1 : a.once_ps - (int64_t)((double)dy * (k + 1) / steps);
        x->point[x->n++] = (struct point){{t, 0, once, 0}, true};
    }
}

static struct options front_of(struct oracle *o, const struct mpp_fold *fold)
{
    struct mpp_arena *scratch = mpp_arena_scratch(o->arena);
    struct mpp_key key = {.arena = scratch};
    struct mpp_front f;
    bool is_new;
    write_contents(&key, &fold->solver);
    int id = mpp_memo_add(o->contents, key.bytes, key.size, &is_new);
    mpp_arena_free(scratch);
    if (!is_new)
        return o->front[id];
    scratch = mpp_arena_scratch(o->arena);
    mpp_front_find(scratch, fold, o->schedule.micro_batches, o->schedule.chunks, o->near, NULL, &f);
    o->given_up += f.given_up;
    struct options x = {true, 0, mpp_arena_array(o->arena, (STEPS + 1) * f.n, struct point)};
    for (int i = 0; i < f.n; i++) {
        struct mpp_stage_time time = mpp_fold_stage_time(fold, f.point[i].choice, o->schedule.micro_batches);
        x.point[x.n++] = (struct point){time, false};
    }
    for (int i = 0; i + 1 < f.n; i++)
        add_bounds(&x, f.point[i], f.point[i + 1]);
    mpp_arena_free(scratch);
    o->programs++;
    o->front = mpp_arena_grow(o->arena, o->front, &o->cap_front, (size_t)id + 1, sizeof *o->front);
    return o->front[id] = x;
}

/* Is A as good as B, so that one of them will do? */
static bool no_worse(const struct point *a, const struct point *b)
{
    return t_of(&a->time) <= t_of(&b->time) && a->time.once_ps <= b->time.once_ps && (!a->between || b->between);
}

static void drop_worse(struct options *x)
{
    int kept = 0;
    for (int i = 0; i < x->n; i++) {
        bool worse = false;
        for (int j = 0; j < x->n && !worse; j++)
            worse = j != i && no_worse(&x->point[j], &x->point[i]) && (j < i || !no_worse(&x->point[i], &x->point[j]));
        if (!worse)
            x->point[kept++] = x->point[i];
    }
    x->n = kept;
}

static void try_span(struct oracle *o, const struct mpp_graph *g, int device, int n, int64_t in_flight, struct options *x)
{
    struct mpp_arena *scratch = mpp_arena_scratch(o->arena);
    struct mpp_candidate *c;
    int n_meshes = mpp_pins_candidates(scratch, n, false, o->pins, &c);
    for (int m = 0; m < n_meshes; m++) {
        struct mpp_pin_rules *rules;
        struct mpp_stage_problem *p;
        struct mpp_fold fold;
        struct mpp_fold_run none = {.repeat = -1};
        const char *reason;
        if (!mpp_pins_resolve(scratch, g, &c[m], o->pins, &rules, &reason)
            || !mpp_stage_problem_build(scratch, o->s->cluster, rules, (struct mpp_stage_site){device, o->schedule.chunks, 0},
                                        o->capacity, &p, &reason)
            || !mpp_fold_make(scratch, p, &none, in_flight, &fold))
            continue;
        struct options f = front_of(o, &fold);
        struct point *all = mpp_arena_array(o->arena, x->n + f.n, struct point);
        for (int i = 0; i < x->n + f.n; i++)
            all[i] = i < x->n ? x->point[i] : f.point[i - x->n];
        x->point = all;
        x->n += f.n;
    }
    mpp_arena_free(scratch);
}

static const struct options *options_of(struct oracle *o, int first, int last, int device, int n, int64_t in_flight)
{
    struct options *x = &o->stage[first][last][device][n][in_flight];
    for (int r = MPP_RECOMPUTE_NONE; r <= MPP_RECOMPUTE_FULL && !x->known; r++) {
        struct mpp_arena *scratch = mpp_arena_scratch(o->arena);
        struct mpp_graph *g;
        must(mpp_span_extract(scratch, o->s->diag, o->s->g, o->layering, first, last, (enum mpp_recompute)r, &g), "span");
        mpp_graph_set_batch(g, g->global_batch / o->schedule.micro_batches);
        try_span(o, g, device, n, in_flight, x);
        mpp_arena_free(scratch);
    }
    if (!x->known)
        drop_worse(x);
    x->known = true;
    return x;
}

/* A whole plan whose stages' times were CHOSEN. */
static void take(struct oracle *o, const struct sums *s, int64_t time)
{
    if (s->between) {
        o->unproven += time < o->best && o->schedule.stages > 1; /* of one stage T is linear in both */
        return;
    }
    o->best = time < o->best ? time : o->best;
    int64_t simulated = mpp_schedule_simulate(o->arena, &o->schedule, o->chosen, NULL, NULL);
    o->simulations++;
    o->simulated = simulated < o->simulated ? simulated : o->simulated;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void enumerate(struct oracle *o, int stage, int layer, int device, struct sums s)
{
    int layers = o->layering->n_layers, devices = o->s->cluster->n_devices, left = o->schedule.stages - stage - 1;
    int64_t time = mpp_schedule_time_of(&o->schedule, s.t, s.longest, s.once);
    if (time >= o->best && (s.between || time >= o->near || s.busiest >= o->simulated))
        return;
    if (left < 0) {
        take(o, &s, time);
        return;
    }
    for (int last = left ? layer : layers - 1; last < layers - left; last++)
        for (int n = left ? 1 : devices - device; n <= devices - device - left; n++) {
            if (o->schedule.chunks > 1 && ((last - layer + 1) * o->schedule.stages != layers || n * o->schedule.stages != devices))
                continue;
            const struct options *x = options_of(o, layer, last, device, n, mpp_schedule_held(&o->schedule, stage));
            for (int i = 0; i < x->n; i++) {
                const struct mpp_stage_time *p = &x->point[i].time;
                if (x->point[i].between && !o->bounds_too)
                    continue;
                o->chosen[stage] = *p;
                enumerate(o, stage + 1, last + 1, device + n, (struct sums){
                    s.t + t_of(p), larger(s.longest, t_of(p)), larger(s.once, p->once_ps), s.before + t_of(p) / o->schedule.chunks,
                    larger(s.busiest, s.before + o->schedule.micro_batches * t_of(p)), s.between || x->point[i].between});
            }
        }
}

static void look_at_schedules(struct oracle *o, enum mpp_schedule_kind kind, int chunks, int64_t micro_batches)
{
    int devices = o->s->cluster->n_devices;
    o->arena = mpp_arena_new();
    o->contents = mpp_memo_new(o->arena);
    o->front = NULL;
    o->cap_front = 0;
    memset(o->stage, 0, sizeof o->stage);
    for (int n = chunks > 1 ? 2 : 1; n <= devices && n <= o->layering->n_layers; n++) {
        o->schedule = (struct mpp_schedule){kind, n, chunks, micro_batches};
        if (!mpp_schedule_valid(&o->schedule)
            || (chunks > 1 && (devices % n || !mpp_interleave_possible(o->s->g, o->layering, &o->schedule)))
            || (o->pins->pp > 0 && n != o->pins->pp))
            continue;
        o->bounds_too = false;
        enumerate(o, 0, 0, 0, (struct sums){0});
        o->bounds_too = true;
        enumerate(o, 0, 0, 0, (struct sums){0});
    }
    mpp_arena_free(o->arena);
}

/* All schedules, of plans with T below LIMIT. */
static void ask_oracle(struct oracle *o, const struct mpp_layering *plain, int64_t limit)
{
    int64_t batch = o->s->g->global_batch;
    const struct mpp_layering *merged = mpp_layering_merge_ends(o->s->arena, o->s->g, plain);
    o->best = limit;
    o->near = limit < INT64_MAX ? limit + limit / 10 : limit;
    o->simulated = INT64_MAX;
    for (int64_t k = 1; k <= batch; k++)
        for (int v = 1; v <= merged->n_layers && batch % k == 0; v++) {
            o->layering = v > 1 ? merged : plain;
            look_at_schedules(o, v > 1 ? MPP_SCHEDULE_INTERLEAVED : MPP_SCHEDULE_1F1B, v, k);
        }
}

/* ---- the comparison ---- */

struct tally {
    int compared, infeasible, tight, staged, unlike, unproven, proven, chosen;
    double worst;                 /* the planner's simulated time beside the oracle's, percent more */
    int64_t programs, simulations, given_up;
};

/* Bytes of a stage; a plan of one stage has its own figures. */
static int64_t peak_of(const struct mpp_plan *plan, int stage)
{
    return plan->n_stages == 1 ? plan->solver.peak_bytes : plan->stages[stage].solver.peak_bytes;
}

/* The least T of what the planner kept. */
static int64_t least_kept(const struct mpp_plan *plan)
{
    int64_t least = plan->objective_ps;
    for (int i = 0; i < plan->n_others; i++)
        least = plan->others[i].time_ps < least ? plan->others[i].time_ps : least;
    return least;
}

static void check_plan(const struct mpp_plan *plan, int64_t capacity, const char *what)
{
    int layer = 0, device = 0;
    for (int i = 0; i < plan->n_stages; i++) {
        const struct mpp_stage *x = &plan->stages[i];
        check(x->first_layer == layer && x->first_device == device, "%s: stages in a row", what);
        check(peak_of(plan, i) > 0 && peak_of(plan, i) <= capacity, "%s: stage %d within memory", what, i);
        layer = x->last_layer + 1;
        device = x->first_device + x->n_devices;
    }
    check(layer == plan->layering->n_layers, "%s: all layers", what);
}

/* Plan and ask the oracle at one capacity. *OUT_PEAK: bytes of the fullest stage. */
static void compare(struct setup *s, const struct mpp_plan_options *options, const char *what, struct tally *tally, int64_t *out_peak)
{
    struct mpp_layering *layering;
    enum mpp_status st = mpp_plan_pipeline(s->arena, s->diag, s->g, s->cluster, options, &s->plan);
    check(st == MPP_OK || st == MPP_INFEASIBLE, "%s: status %d", what, st);
    struct mpp_arena *a = mpp_arena_new();
    struct oracle *o = mpp_arena_array(a, 1, struct oracle);
    int64_t searched = 0, least = INT64_MAX;
    *out_peak = 0;
    if (st == MPP_OK) {
        searched = s->plan->objective_ps;
        must(mpp_plan_derive(s->arena, s->diag, s->g, s->cluster, s->plan), what);
        least = least_kept(s->plan);
        for (int i = 0; i < s->plan->n_stages; i++)
            *out_peak = larger(*out_peak, peak_of(s->plan, i));
        check_plan(s->plan, options->capacity_bytes, what);
        check(searched == s->plan->objective_ps, "%s: %lld by the search, %lld of the plan", what, (long long)searched,
              (long long)s->plan->objective_ps);
    }
    must(mpp_layering_make(a, s->diag, s->g, 0, &layering), what);
    *o = (struct oracle){.s = s, .pins = &options->pins, .capacity = options->capacity_bytes};
    ask_oracle(o, layering, st == MPP_OK ? least + 1 : INT64_MAX);
    check(o->best == least, "%s: planned %lld, the oracle %lld", what, (long long)least, (long long)o->best);
    if (st == MPP_OK) {
        double more = 100 * ((double)s->plan->simulated_ps / (double)o->simulated - 1);
        check(more <= 3, "%s: simulated %lld, the oracle's best %lld (%.1f %% less)", what, (long long)s->plan->simulated_ps,
              (long long)o->simulated, more);
        check(s->plan->bound_ps <= least, "%s: bound %lld of %lld", what, (long long)s->plan->bound_ps, (long long)least);
        tally->proven += s->plan->bound_ps == least;
        tally->worst = more > tally->worst ? more : tally->worst;
        tally->staged += s->plan->n_stages > 1;
        tally->chosen += s->plan->objective_ps > least;
        for (int i = 1; i < s->plan->n_stages; i++)
            tally->unlike += s->plan->stages[i].n_devices != s->plan->stages[0].n_devices;
    }
    tally->compared++;
    tally->infeasible += st == MPP_INFEASIBLE;
    tally->unproven += o->unproven > 0;
    tally->given_up += o->given_up;
    tally->programs += o->programs;
    tally->simulations += o->simulations;
    mpp_arena_free(a);
}

/* A model on a cluster, with all memory, or with too little for the plan that is the best then. */
static void one_problem(int number, struct tally *tally)
{
    static const int percent[] = {97, 90, 80, 70, 60, 50}, sizes[] = {1, 2, 3, 3, 4, 5, 6, 6, 7, 8};
    struct text model = {.n = 0}, cluster = {.n = 0};
    struct setup s;
    seed = (uint64_t)number << 20;
    (void)below(2);
    int n_devices = sizes[below(10)], layers = 1 + below(n_devices > 6 ? 4 : 6), n_nodes = n_devices % 2 == 0 && below(2) ? 2 : 1;
    bool transformer = number % 10 < 2 && n_devices <= 4;
    layers = transformer && layers > 2 ? 2 : layers;
    if (!transformer)
        random_perceptron(&model, layers, layers * n_devices > 12);
    random_cluster(&cluster, n_devices, n_nodes);
    load(&model, layers, &cluster, n_devices, &s);
    struct mpp_plan_options options = {.pins = mpp_pins_none(), .capacity_bytes = INT64_MAX / 8, .quiet = true};
    if (layers > 1 && n_devices > 1 && below(2))
        options.pins.pp = n_devices > 2 && layers > 2 && below(3) == 0 ? 3 : 2;
    int64_t peak;
    const char *what = mpp_arena_printf(s.arena, "problem %d (%s of %d layers, %d devices, %d nodes, pp %d)", number,
                                        transformer ? "transformer" : "perceptron", layers, n_devices,
                                        n_nodes, options.pins.pp);
    if (number % 2 == 0 || layers * n_devices > 15) {
        compare(&s, &options, what, tally, &peak);
    } else if (mpp_plan_pipeline(s.arena, s.diag, s.g, s.cluster, &options, &s.plan) == MPP_OK) {
        peak = 0;
        for (int i = 0; i < s.plan->n_stages; i++)
            peak = larger(peak, peak_of(s.plan, i));
        int before = tally->infeasible;
        options.capacity_bytes = peak * percent[below(6)] / 100;
        compare(&s, &options, mpp_arena_printf(s.arena, "%s, tight", what), tally, &peak);
        tally->tight += tally->infeasible == before;
    }
    setup_free(&s);
}

/* How many problems, and from which on. */
int main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 200, from = argc > 2 ? atoi(argv[2]) : 0;
    struct tally t = {0};
    for (int i = 0; i < n; i++)
        one_problem(from + i, &t);
    printf("%d problems: %d with tight memory, %d infeasible, %d plans of several stages, %d of unlike sizes\n", t.compared, t.tight,
           t.infeasible, t.staged, t.unlike);
    printf("%lld programs, %lld plans simulated; simulated at most %.2f %% above the best; %d plans chosen by simulation; "
           "in %d something may be better, by bounds\n", (long long)t.programs, (long long)t.simulations, t.worst, t.chosen, t.unproven);
    check(n < 200 || (t.staged >= n / 5 && t.tight >= n / 8 && t.infeasible >= n / 40 && 10 * t.proven >= 7 * (n - t.infeasible)), "problems of every kind");
    return finish();
}
