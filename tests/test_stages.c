/* test_stages.c - what pipeline stages are said to cost is what their plans cost.
 *
 * Fronts against the solver under random weights; forward, backward and work per step of a choice against what a plan of it
 * has; options, which stand for folded programs, against the programs of all layers; and whole plans: the time that was
 * searched, memory, and that pins never help. */
#include <limits.h>

#include "planner/finalists.h"
#include "planner/front.h"
#include "planner/pins.h"
#include "planner/stages.h"
#include "tests/planner_testing.h"

static uint64_t seed = 1;

static int below(int n)
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (int)((seed >> 33) % (uint64_t)n);
}

static bool about(int64_t a, int64_t b, double tolerance)
{
    double d = (double)(a > b ? a - b : b - a);
    return d <= tolerance * (double)(a > b ? a : b);
}

/* ---- programs of stages ---- */

struct program {                  /* of a random span, mesh and recomputation */
    struct mpp_graph *graph;
    struct mpp_candidate mesh;
    struct mpp_stage_problem *problem;
    struct mpp_fold fold;
    int64_t micro_batches;
    int first_layer, last_layer;
    enum mpp_recompute recompute;
};

static const struct mpp_fold_run NOTHING = {.repeat = -1};

static bool random_program(struct setup *s, const struct mpp_layering *l, struct program *x)
{
    static const struct mpp_pins none = {.recompute = -1, .schedule = -1, .zero = -1, .sequence_parallel = -1, .vocab_parallel = -1};
    struct mpp_candidate *c;
    struct mpp_pin_rules *rules;
    const char *reason;
    int devices = 1 + below(s->cluster->n_devices);
    x->first_layer = below(l->n_layers);
    x->last_layer = x->first_layer + below(l->n_layers - x->first_layer);
    x->recompute = below(2) ? MPP_RECOMPUTE_FULL : MPP_RECOMPUTE_NONE;
    x->micro_batches = 1 << below(3);
    must(mpp_span_extract(s->arena, s->diag, s->g, l, x->first_layer, x->last_layer, x->recompute, &x->graph), "span");
    mpp_graph_set_batch(x->graph, x->graph->global_batch / x->micro_batches);
    int n = mpp_pins_candidates(s->arena, devices, false, &none, &c);
    x->mesh = c[below(n)];
    return mpp_pins_resolve(s->arena, x->graph, &x->mesh, &none, &rules, &reason)
           && mpp_stage_problem_build(s->arena, s->cluster, rules, MPP_STAGE_ALONE, INT64_MAX, &x->problem, &reason)
           && mpp_fold_make(s->arena, x->problem, &NOTHING, 1 + below(4), &x->fold);
}

static int64_t times(int64_t x, int64_t weight)
{
    return x == MPP_SOLVER_FORBIDDEN ? x : x * weight;
}

/* The least of X under weights, by the solver alone; -1: nothing fits, or too hard. */
static int64_t least_of(const struct program *x, int64_t t, int64_t once)
{
    struct mpp_arena *a = mpp_arena_new();
    struct mpp_solver_problem p = x->fold.solver;
    struct mpp_solver_node *node = mpp_arena_memdup(a, p.nodes, sizeof *node * (size_t)p.n_nodes);
    struct mpp_solver_value *value = mpp_arena_memdup(a, p.values, sizeof *value * (size_t)p.n_values);
    for (int i = 0; i < p.n_nodes; i++) {
        int64_t *cost = mpp_arena_array(a, node[i].n_choices, int64_t);
        for (int k = 0; k < node[i].n_choices; k++)
            cost[k] = times(node[i].cost[k], x->fold.node_once[i] ? once : t);
        node[i].cost = cost;
    }
    for (int i = 0; i < p.n_values; i++) {
        int64_t *convert = mpp_arena_array(a, value[i].n_forms * value[i].n_forms, int64_t);
        for (int k = 0; k < value[i].n_forms * value[i].n_forms; k++)
            convert[k] = times(value[i].convert[k], x->fold.value_once[i] ? once : t);
        value[i].convert = convert;
    }
    p.nodes = node;
    p.values = value;
    p.arena = a;
    struct mpp_solver_settings set = mpp_solver_defaults();
    struct mpp_solver_info info;
    struct mpp_solver *solver;
    int32_t *choice = mpp_arena_array(a, p.n_nodes, int32_t);
    set.work_limit = 20000000;
    must(mpp_solver_setup(&p, &set, &solver), "solver");
    enum mpp_status st = mpp_solver_solve(solver, choice, &info);
    mpp_solver_free(solver);
    mpp_arena_free(a);
    return st == MPP_OK && info.status == MPP_SOLVER_OPTIMAL ? info.objective : -1;
}

/* The front of X within CAPACITY has the least under any weights that a plan may have. */
static void check_front(struct setup *s, struct program *x, int64_t capacity, int *n_several, int *n_compared, int64_t *out_peak)
{
    struct mpp_front f;
    x->fold.solver.capacity_bytes = capacity;
    mpp_front_find(s->arena, &x->fold, x->micro_batches, 1, INT64_MAX, NULL, &f);
    *n_several += f.n > 1;
    *out_peak = INT64_MAX;
    for (int i = 0; i < f.n; i++) {
        int64_t t, once, peak, objective = mpp_solver_evaluate(&x->fold.solver, f.point[i].choice, &peak, NULL);
        mpp_fold_times(&x->fold, f.point[i].choice, x->micro_batches, &t, &once);
        check(t == f.point[i].t_ps && once == f.point[i].once_ps && objective == x->micro_batches * t + once, "a point's times");
        check(peak <= capacity, "a point's memory");
        check(i == 0 || (f.point[i - 1].t_ps < t && f.point[i - 1].once_ps > once), "points in order");
        *out_peak = peak < *out_peak ? peak : *out_peak;
    }
    for (int k = 0; k < 4; k++) {
        int64_t least = INT64_MAX, wt = k < 2 ? 1 : 8 + below(64); /* first as a plan of one stage has them, then t counts once */
        int64_t once = k == 0 ? 1 : k == 1 ? x->micro_batches : 1 + below((int)(wt * x->micro_batches));
        for (int i = 0; i < f.n; i++) {
            int64_t v = wt * x->micro_batches * f.point[i].t_ps + once * f.point[i].once_ps;
            least = v < least ? v : least;
        }
        int64_t solved = least_of(x, wt, once);
        *n_compared += !f.given_up && solved >= 0;
        check(f.given_up || solved < 0 || solved == least, "weights %lld and %lld: %lld by the front, %lld by the solver",
              (long long)wt, (long long)once, (long long)least, (long long)solved);
    }
}

/* A plan of the stage alone with CHOICE. */
static void check_times(struct setup *s, const struct mpp_layering *l, struct program *x, const int32_t *choice)
{
    struct mpp_stage stage = {.n_devices = 1, .first_layer = x->first_layer, .last_layer = x->last_layer, .recompute = x->recompute,
                              .graph = x->graph, .mesh = x->mesh.mesh};
    stage.split = mpp_arena_array(s->arena, x->graph->n_groups, struct mpp_split);
    stage.resting = mpp_arena_array(s->arena, x->graph->n_tensors, struct mpp_sharding);
    stage.kept = mpp_arena_array(s->arena, x->graph->n_tensors, bool);
    for (mpp_id t = 0; t < x->graph->n_tensors; t++)
        stage.resting[t] = mpp_sharding_whole();
    for (int a = 0; a < stage.mesh.n_axes; a++)
        stage.n_devices *= stage.mesh.size[a];
    mpp_stage_decide(x->problem, choice, &stage);
    mpp_stage_name_axes(x->graph, &stage);
    struct mpp_plan plan = {.version = MPP_PLAN_VERSION, .batch = s->g->global_batch, .micro_batches = x->micro_batches, .n_stages = 1,
                            .stages = &stage, .layering = l, .schedule = "accumulate", .pins = ""};
    must(mpp_plan_derive(s->arena, s->diag, s->g, s->cluster, &plan), "derive");
    struct mpp_stage_time t = mpp_fold_stage_time(&x->fold, choice, x->micro_batches);
    check(about(t.forward_ps, stage.time.forward_ps, 1e-9) && about(t.backward_ps, stage.time.backward_ps, 1e-9)
          && t.once_ps == stage.time.once_ps && t.update_ps == stage.time.update_ps,
          "forward %lld, backward %lld, once %lld, update %lld; the plan has %lld, %lld, %lld, %lld", (long long)t.forward_ps,
          (long long)t.backward_ps, (long long)t.once_ps, (long long)t.update_ps, (long long)stage.time.forward_ps,
          (long long)stage.time.backward_ps, (long long)stage.time.once_ps, (long long)stage.time.update_ps);
}

static void check_programs(const char *model, const char *preset, const char *defines, const char *cluster, int n)
{
    struct setup s = setup_unfused(model, preset, defines, cluster, 8);
    struct mpp_layering *l;
    int several = 0, compared = 0, done = 0;
    must(mpp_layering_make(s.arena, s.diag, s.g, 0, &l), model);
    for (int i = 0; i < n; i++) {
        struct program x;
        struct mpp_front f;
        int64_t peak, ignored;
        if (!random_program(&s, l, &x))
            continue;
        check_front(&s, &x, INT64_MAX, &several, &compared, &peak);
        if (below(3) == 0)
            check_front(&s, &x, peak / 10 * (6 + below(4)), &several, &compared, &ignored);
        x.fold.solver.capacity_bytes = INT64_MAX;
        mpp_front_find(s.arena, &x.fold, x.micro_batches, 1, INT64_MAX, NULL, &f);
        for (int k = 0; k < f.n; k++)
            check_times(&s, l, &x, f.point[k].choice);
        done++;
    }
    check(done > n / 2 && several > 0 && compared > 2 * done, "%s: %d programs, %d with something to trade, %d comparisons", model, done,
          several, compared);
    setup_free(&s);
}

/* Three ways to trade, of steps that take seconds, minutes or days: none is lost, whatever weights make of such costs. */
static void check_long_steps(void)
{
    static const int64_t t[] = {4, 8, 12}, once[] = {9, 4, 2}; /* of a step of 4 micro-batches */
    static const int32_t forms[] = {0, 1, 2}, consumers[] = {1}, *const in[] = {forms};
    int64_t convert[9];
    for (int i = 0; i < 9; i++)
        convert[i] = i % 4 == 0 ? 0 : MPP_SOLVER_FORBIDDEN;
    struct mpp_solver_value value = {.producer = 0, .n_consumers = 1, .n_forms = 3, .consumers = consumers, .out = forms, .in = in,
                                     .convert = convert};
    for (int64_t unit = INT64_C(100000000000); unit < INT64_C(100000000000000000); unit *= 10) {
        struct mpp_arena *arena = mpp_arena_new();
        int64_t cost[2][3];
        bool is_once[] = {false, true}, value_once[] = {false};
        struct mpp_front f;
        for (int k = 0; k < 3; k++) {
            cost[0][k] = t[k] * unit;
            cost[1][k] = once[k] * unit;
        }
        struct mpp_solver_node node[] = {{.n_choices = 3, .cost = cost[0]}, {.n_choices = 3, .cost = cost[1]}};
        struct mpp_fold fold = {.solver = {.n_nodes = 2, .n_values = 1, .nodes = node, .values = &value, .capacity_bytes = 1000},
                                .node_once = is_once, .value_once = value_once};
        mpp_front_find(arena, &fold, 4, 1, INT64_MAX, NULL, &f);
        check(f.n == 3 && !f.given_up, "of a step of %g s %d ways were found, not 3", 13e-12 * (double)unit, f.n);
        mpp_arena_free(arena);
    }
}

/* ---- options of spans of many layers ---- */

/* Every span that begins with the first layers or ends with the last, or lies between. */
static void check_options(const char *model, const char *preset, const char *defines, const char *cluster, int n_devices, const char *fix,
                          int percent)
{
    struct setup s = setup_unfused(model, preset, defines, cluster, n_devices);
    struct mpp_layering *l;
    struct mpp_plan_options options = {.pins = mpp_pins_none(), .capacity_bytes = INT64_MAX / 8};
    struct mpp_schedule schedule = {MPP_SCHEDULE_1F1B, 2, 1, 4};
    int asked = 0, answered = 0;
    must(mpp_pins_parse(s.arena, s.diag, fix, &options.pins), fix);
    must(mpp_layering_make(s.arena, s.diag, s.g, 0, &l), model);
    int n = l->n_layers;
    for (int pass = 0; pass < 2; pass++) {
        struct mpp_stages *stages = mpp_stages_new(s.arena, s.diag, s.g, l, s.cluster, &options);
        int64_t most = 0;
        mpp_stages_set(stages, &schedule, false, INT64_MAX, INT_MAX);
        for (int k = 0; k < 6; k++) {
            int first = k < 2 ? 0 : k < 4 ? 1 + k : n / 2, last = k == 0 ? n - 1 : k == 1 ? n / 2 : k == 2 ? n - 1 : k == 3 ? n - 2 : n / 2 + k - 3;
            int size = last - first > n / 2 ? n_devices / 2 : 1 + k % 2, from = first == 0 ? 0 : n_devices - size;
            struct mpp_pipeline_stage x = {.key = {first, last, from, size, first > 0, 2, 2}};
            const struct mpp_pipeline_option *o;
            struct mpp_stage stage;
            bool exact;
            asked++;
            if (last >= n || first > last || mpp_stages_options(stages, &x.key, true, &o, &exact) == 0)
                continue;
            answered++;
            x.option = o[0];
            must(mpp_stages_decide(stages, &x, &stage), "decide");
            int64_t cost = schedule.micro_batches * x.option.t_ps + x.option.once_ps;
            check(about(cost, stage.solver.objective, 1e-4), "%s %s, layers %d to %d: %lld, unfolded %lld", model, fix, first, last,
                  (long long)cost, (long long)stage.solver.objective);
            check(stage.solver.peak_bytes <= options.capacity_bytes, "%s %s, layers %d to %d: memory", model, fix, first, last);
            const struct mpp_stage_time *t = &mpp_stages_facts(stages, x.option.id)->time;
            check(t->forward_ps + t->backward_ps == x.option.t_ps && t->once_ps == x.option.once_ps, "times of an option");
            most = stage.solver.peak_bytes > most ? stage.solver.peak_bytes : most;
        }
        options.capacity_bytes = most / 100 * percent; /* the second pass: less memory */
    }
    check(answered >= asked / 3, "%s %s: %d of %d questions have an answer", model, fix, answered, asked);
    setup_free(&s);
}

/* ---- whole plans ---- */

/* Bytes of a stage; a plan of one stage has its own figures. */
static int64_t peak_of(const struct mpp_plan *plan, int stage)
{
    return plan->n_stages == 1 ? plan->solver.peak_bytes : plan->stages[stage].solver.peak_bytes;
}

/* Least time of what the search kept; -1: there is no plan. */
static int64_t plan_under(struct setup *s, const char *fix, int64_t capacity)
{
    struct mpp_plan_options options = {.pins = mpp_pins_none(), .capacity_bytes = capacity, .quiet = true};
    must(mpp_pins_parse(s->arena, s->diag, fix, &options.pins), fix);
    enum mpp_status st = mpp_plan_pipeline(s->arena, s->diag, s->g, s->cluster, &options, &s->plan);
    check(st == MPP_OK || st == MPP_INFEASIBLE, "%s: status %d %s", fix, st, mpp_diag_text(s->diag));
    if (st != MPP_OK)
        return -1;
    int64_t searched = s->plan->objective_ps, least = searched;
    must(mpp_plan_derive(s->arena, s->diag, s->g, s->cluster, s->plan), fix);
    if (s->plan->pipeline.chunks == 1)
        check(about(searched, s->plan->objective_ps, 1e-4), "%s: %lld by the search, the plan takes %lld", fix, (long long)searched,
              (long long)s->plan->objective_ps);
    else /* the search does not count what the first stage's later chunks receive of the last one */
        check(searched <= s->plan->objective_ps && about(searched, s->plan->objective_ps, 0.04),
              "%s: %lld by the search, the interleaved plan takes %lld", fix, (long long)searched, (long long)s->plan->objective_ps);
    check(s->plan->bound_ps <= s->plan->objective_ps, "%s: a bound above the plan", fix);
    for (int i = 0; i < s->plan->n_stages; i++)
        check(peak_of(s->plan, i) > 0 && peak_of(s->plan, i) <= capacity, "%s: stage %d within memory: %lld of %lld", fix, i,
              (long long)peak_of(s->plan, i), (long long)capacity);
    for (int i = 0; i < s->plan->n_others; i++) {
        least = s->plan->others[i].time_ps < least ? s->plan->others[i].time_ps : least;
        check(s->plan->others[i].what && *s->plan->others[i].what, "%s: a runner-up has a description", fix);
        for (int j = 0; j < i; j++)
            check(strcmp(s->plan->others[i].what, s->plan->others[j].what) != 0, "%s: runners-up differ", fix);
    }
    return least;
}

static void check_pins(const char *model, const char *preset, const char *defines, const char *cluster, int n_devices)
{
    static const char *const fixes[] = {"pp=1", "pp=2", "pp=4", "recompute=full", "recompute=none", "micro_batches=4",
                                        "pp=2,interleave=2", "pp=2,schedule=gpipe", "pp=2,recompute=full,micro_batches=8"};
    struct setup s = setup_unfused(model, preset, defines, cluster, n_devices);
    int64_t capacity = INT64_MAX / 8, compared = 0;
    for (int tight = 0; tight < 2; tight++) {
        int64_t least = plan_under(&s, "", capacity), peak = 0;
        check(tight || least > 0, "%s: no plan", model);
        for (int i = 0; least > 0 && i < s.plan->n_stages; i++)
            peak = peak_of(s.plan, i) > peak ? peak_of(s.plan, i) : peak;
        for (size_t k = 0; k < sizeof fixes / sizeof *fixes; k++) {
            int64_t pinned = plan_under(&s, fixes[k], capacity);
            check(pinned < 0 || (double)least <= 1.002 * (double)pinned, "%s: %lld, with %s %lld", model, (long long)least, fixes[k],
                  (long long)pinned);
            compared += pinned > 0;
        }
        capacity = peak / 100 * 85;
    }
    check(compared >= 8, "%s: only %d comparisons", model, (int)compared);
    setup_free(&s);
}

/* ---- finalists ---- */

static void check_finalists(void)
{
    static const int64_t time[] = {30, 10, 20};
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_finalists *f = mpp_finalists_new(arena);
    struct mpp_pipeline_stage stage[4] = {{{0}, {0}}};
    for (int i = 0; i < 3; i++)
        mpp_finalists_add(f, &(struct mpp_finalist){.schedule = {MPP_SCHEDULE_1F1B, 1, 1, 4},
                                                    .answer = {.n_stages = 1, .stage = &stage[i], .time_ps = time[i]}});
    check(mpp_finalists_best(f)->answer.stage == &stage[1], "the best finalist is the fastest");
    check(mpp_finalists_find(f, &stage[2])->answer.time_ps == 20 && !mpp_finalists_find(f, &stage[3]), "a finalist by its stages");
    mpp_finalists_change(f, &stage[1], 25);
    check(mpp_finalists_best(f)->answer.stage == &stage[2] && mpp_finalists_find(f, &stage[1])->simulated_ps == 25,
          "a finalist that became slower is the best no more");
    mpp_finalists_drop(f, &stage[2]);
    mpp_finalists_drop(f, &stage[3]);
    check(mpp_finalists_best(f)->answer.stage == &stage[1], "a finalist that was dropped is not the best");
    mpp_finalists_restore(f);
    check(mpp_finalists_best(f)->answer.stage == &stage[2], "a finalist that is restored may be");
    mpp_arena_free(arena);
}

int main(void)
{
    check_long_steps();
    check_finalists();
    check_programs("models/mlp.xml", NULL, "layers=4 batch=64 in=1024 hidden=4096 out=1024", "t4-box", 80);
    check_programs("models/gpt.xml", NULL, "layers=2 batch=8 hidden=512 heads=8 seq=256 positions=256", "dgx1-v100", 16);
    check_programs("models/bert.xml", "tiny", "batch=8", "dgx-a100", 12);
    check_options("models/gpt.xml", NULL, "layers=12 batch=16 hidden=512 heads=8 seq=256 positions=256", "dgx-a100", 8, "", 80);
    check_options("models/gpt.xml", NULL, "layers=8 batch=16 hidden=512 heads=8 seq=256 positions=256", "dgx1-v100", 16, "recompute=full", 90);
    check_options("models/bert.xml", "tiny", "batch=256 layers=6 hidden=1024 seq=256 positions=256", "a100-pcie", 8, "", 75);
    check_options("models/mlp.xml", NULL, "layers=10 batch=256 hidden=2048", "host", 4, "", 70);
    check_pins("models/mlp.xml", NULL, "layers=9 batch=64 hidden=2048", "a100-pcie", 4);
    check_pins("models/gpt.xml", "tiny", "batch=16", "dgx-a100", 4);
    return finish();
}
