/* twolevel.c - the best plan over stages, devices, meshes, micro-batch counts, recomputation and schedules.
 *
 * A round is a number of micro-batches, of stages, and a schedule. No plan of a round takes less than its kernels do if
 * each runs whole on one device and all devices share them evenly, bubble included: rounds are solved in the order of these
 * bounds, until none is below the best plan. Devices of large clusters are divided evenly among the stages, up to SMALL
 * devices in any way. */
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <time.h>

#include "ir/op.h"
#include "planner/pins.h"
#include "planner/search.h"
#include "planner/seeds.h"
#include "planner/stages.h"

/* Smaller kernels are now and then a little faster than their share of the whole one (tiles, caches). */
static const double SLACK = 0.97;
enum { MOST_PROGRAMS = 1000, WITHIN_COUNTS = 6 }; /* integer programs solved (within memory: as so many); then the best so far is taken */
enum { EARLY_PASSES = 3, EARLY_BUDGET = 6, LATE_BUDGET = 40 }; /* programs within memory of one round */
enum { EXACT_DEVICES = 8, EXACT_LAYERS = 8, EXACT_GROUPS = 40000 }; /* all programs are solved */
enum { SMALL_DEVICES = 16, MAX_ROUNDS = 16384, MAX_LAYERS = 1024, MAX_SIZES = 1024 };

struct round {
    struct mpp_schedule schedule;
    bool equal;                   /* all stages of equally many devices */
    int64_t bound;
    int counts[2];                /* numbers of stages: one, and a 0 */
    bool done, tried;
};

/* Layers, and what stages of them cost. */
struct level {
    const struct mpp_layering *layering;
    struct mpp_stages *stages;
};

struct twolevel {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    struct mpp_graph *graph, *whole; /* whole: grouped as one stage */
    const struct mpp_cluster *cluster;
    const struct mpp_plan_options *options;
    struct level plain, merged;   /* merged: what stands before and after a repeat belongs to its first and last layer */
    int n_sizes, sizes[MAX_SIZES], n_counts, counts[MAX_SIZES + 1]; /* of devices per stage, and of stages; ends with 0 */
    int n_rounds;
    struct round round[MAX_ROUNDS];
    struct mpp_pipeline_answer best;
    struct level best_level;      /* whose numbers the best plan's options have */
    struct round best_round;
    int64_t bound;
    double deadline_s;
    bool stopped;
};

/* ---- what is searched ---- */

/* Picoseconds of forward and backward of one of K micro-batches, with every kernel whole on one device. */
static int64_t whole_work(struct twolevel *w, int64_t k)
{
    struct mpp_graph *g = w->whole;
    struct mpp_mesh mesh = {.n_axes = 1, .size = {1, 1, 1}};
    struct mpp_split whole = {{MPP_WHOLE, MPP_WHOLE, MPP_WHOLE}};
    struct mpp_reshard_env env;
    int64_t sum = 0, internal;
    mpp_reshard_env_init(w->cluster, &mesh, 0, &env);
    mpp_graph_set_batch(g, g->global_batch / k);
    for (int i = 0; i < g->n_groups; i++)
        if (g->groups[i].phase != MPP_PHASE_UPDATE) {
            int64_t ps = mpp_price_group_in(g, &env, &g->groups[i], whole, &internal);
            sum = sum > INT64_MAX - ps ? INT64_MAX : sum + ps;
        }
    return sum;
}

static bool count_allowed(const struct twolevel *w, int64_t k)
{
    const struct mpp_pins *p = &w->options->pins;
    int64_t batch = w->graph->global_batch, micro = w->graph->model ? w->graph->model->training.micro : 0;
    if (batch % k || (p->micro_batches && k != p->micro_batches) || (w->graph->whole_batch && k > 1))
        return false;
    if (!p->micro_batches && !p->micro_batch && micro > 0 && k != batch / micro)
        return false;
    return !p->micro_batch || batch / k % p->micro_batch == 0;
}

static int64_t times_share(int64_t ps, double share)
{
    double x = (double)ps * share;
    return x > 9e18 ? INT64_MAX : (int64_t)x;
}

/* WORK: of one micro-batch on one device. */
static void add_round(struct twolevel *w, enum mpp_schedule_kind kind, int chunks, int64_t k, int stages, int64_t work)
{
    bool equal = w->cluster->n_devices > SMALL_DEVICES || chunks > 1;
    int n = w->cluster->n_devices;
    double bubble = equal || stages == 1 ? (double)(stages - 1) / chunks : 0;
    if (w->n_rounds == MAX_ROUNDS || (equal && n % stages) || (chunks > 1 && k % stages))
        return;
    struct round r = {{kind, stages, chunks, k}, equal, times_share(work, SLACK * ((double)k + bubble) / n), {stages, 0}, false, false};
    int at = w->n_rounds++;
    for (; at > 0 && w->round[at - 1].bound > r.bound; at--)
        w->round[at] = w->round[at - 1];
    w->round[at] = r;
}

static void add_rounds_of(struct twolevel *w, int64_t k)
{
    const struct mpp_pins *p = &w->options->pins;
    if (!count_allowed(w, k))
        return;
    int64_t work = whole_work(w, k);
    for (int i = 0; i < w->n_counts; i++) {
        int s = w->counts[i];
        if (p->schedule == MPP_SCHEDULE_GPIPE)
            add_round(w, MPP_SCHEDULE_GPIPE, 1, k, s, work);
        if (p->interleave <= 1 && (p->schedule < 0 || p->schedule == MPP_SCHEDULE_1F1B))
            add_round(w, MPP_SCHEDULE_1F1B, 1, k, s, work);
        for (int v = 2; v * s <= w->merged.layering->n_layers && p->interleave != 1 && s > 1; v++)
            if ((p->schedule < 0 || p->schedule == MPP_SCHEDULE_INTERLEAVED) && (p->interleave == 0 || p->interleave == v)
                && mpp_span_can_chunk(w->graph, w->merged.layering, s * v, s))
                add_round(w, MPP_SCHEDULE_INTERLEAVED, v, k, s, work);
    }
}

static void list_rounds(struct twolevel *w)
{
    int64_t batch = w->graph->global_batch;
    for (int64_t k = 1; k <= batch / k; k++)
        if (batch % k == 0) {
            add_rounds_of(w, k);
            if (batch / k != k)
                add_rounds_of(w, batch / k);
        }
}

static void list_sizes(struct twolevel *w)
{
    int n = w->cluster->n_devices, layers = w->plain.layering->n_layers, pp = w->options->pins.pp;
    for (int s = 1; s <= n && w->n_sizes < MAX_SIZES; s++)
        if (n <= SMALL_DEVICES || n % s == 0)
            w->sizes[w->n_sizes++] = s;
    for (int s = 1; s <= n && s <= layers && w->n_counts < MAX_SIZES; s++)
        if ((n <= SMALL_DEVICES || n % s == 0) && (pp == 0 || pp == s))
            w->counts[w->n_counts++] = s;
}

/* ---- rounds ---- */

static const struct level *level_of(const struct twolevel *w, const struct mpp_schedule *schedule)
{
    return schedule->chunks > 1 ? &w->merged : &w->plain;
}

static struct mpp_pipeline_problem round_problem(const struct twolevel *w, struct round *r, int64_t upper)
{
    const struct level *level = level_of(w, &r->schedule);
    return (struct mpp_pipeline_problem){
        .n_layers = level->layering->n_layers, .n_devices = w->cluster->n_devices, .n_sizes = w->n_sizes, .sizes = w->sizes,
        .max_stages = r->schedule.stages, .stages = r->counts, .equal_sizes = r->equal, .kind = r->schedule.kind,
        .chunks = r->schedule.chunks, .micro_batches = r->schedule.micro_batches, .upper_bound_ps = upper,
        .options = mpp_stages_options, .alike = mpp_stages_alike,
        .context = level->stages, .interrupt = w->options->interrupt};
}

static enum mpp_status run_round(struct twolevel *w, struct round *r, int64_t upper, int budget,
                                 struct mpp_pipeline_answer *out)
{
    const struct level *level = level_of(w, &r->schedule);
    struct mpp_pipeline_problem p = round_problem(w, r, upper);
    mpp_stages_set(level->stages, &r->schedule, r->equal, upper, budget);
    int64_t bound = mpp_stages_bound(level->stages, w->n_sizes, w->sizes);
    r->bound = bound > r->bound ? bound : r->bound;
    *out = (struct mpp_pipeline_answer){.time_ps = INT64_MAX, .bound_ps = r->bound};
    return r->bound >= upper ? MPP_OK : mpp_pipeline_solve(w->arena, &p, out);
}

static void say(const struct twolevel *w, const struct round *r, const char *what, int64_t ps)
{
    if (w->options->progress && ps < INT64_MAX)
        fprintf(w->options->progress, "%" PRId64 " micro-batches, %d stages, %s of %d: %s %.6g ms (bound %.6g)\n",
                r->schedule.micro_batches, r->schedule.stages, mpp_schedule_name(r->schedule.kind), r->schedule.chunks, what,
                (double)ps * 1e-9, (double)r->bound * 1e-9);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Ctrl-C, or the time that was given is over: plans of such searches are marked, and may differ from run to run. */
static bool interrupted(const struct twolevel *w)
{
    return (w->options->interrupt && *w->options->interrupt) || (w->options->time_limit_s > 0 && now_s() > w->deadline_s);
}

static enum mpp_status solve_round(struct twolevel *w, struct round *r, bool early)
{
    struct mpp_pipeline_answer a = {0};
    enum mpp_status st = run_round(w, r, w->best.time_ps, early ? EARLY_BUDGET : LATE_BUDGET, &a);
    bool gave_up = mpp_stages_gave_up(level_of(w, &r->schedule)->stages);
    r->done = !early || !gave_up;
    r->tried = true;
    if (gave_up)
        a.bound_ps = r->bound;
    r->bound = a.bound_ps > r->bound ? a.bound_ps : r->bound;
    if (r->done)
        w->bound = a.bound_ps < w->bound ? a.bound_ps : w->bound;
    if (a.n_stages > 0 && a.time_ps < w->best.time_ps) {
        w->best = a;
        w->best_level = *level_of(w, &r->schedule);
        w->best_round = *r;
        say(w, r, "a plan of", a.time_ps);
    } else {
        say(w, r, "no better than", w->best.time_ps);
    }
    return st;
}

/* The first passes look at as many micro-batches as can be, which saves memory, so that plans that fit are soon found; then
 * at pipelines that are mostly full, and at shorter ones. */
static bool promising(const struct twolevel *w, const struct round *r, int pass)
{
    static const int per_stage[EARLY_PASSES] = {INT_MAX, 16, 4};
    int64_t k = r->schedule.micro_batches, wanted = (int64_t)per_stage[pass] * r->schedule.stages, least = INT64_MAX, most = 0;
    for (int i = 0; i < w->n_rounds; i++) {
        int64_t x = w->round[i].schedule.micro_batches;
        most = x > most ? x : most;
        least = x >= wanted && x < least ? x : least;
    }
    return r->schedule.chunks == 1 && k == (least < INT64_MAX ? least : most);
}

static bool enough(const struct twolevel *w)
{
    int64_t within, more = 0, n = mpp_stages_solved(w->plain.stages, &within);
    n += w->merged.stages == w->plain.stages ? 0 : mpp_stages_solved(w->merged.stages, &more);
    return w->best.n_stages > 0 && n + WITHIN_COUNTS * (within + more) > MOST_PROGRAMS;
}

/* How far K micro-batches are from the best plan's: the larger over the smaller. */
static double distance(const struct twolevel *w, int64_t k)
{
    double best = (double)w->best_round.schedule.micro_batches, x = (double)k;
    if (w->best.n_stages == 0)
        return 1;
    return x > best ? x / best : best / x;
}

/* The round to solve next: promising ones in the first pass; then numbers of micro-batches near the best plan's first, all
 * rounds of one number after each other, since they share programs. NULL: none can be better than the best plan. */
static struct round *next_round(struct twolevel *w, int pass)
{
    struct round *next = NULL;
    for (int i = 0; i < w->n_rounds; i++) {
        struct round *r = &w->round[i];
        if (r->done || (pass < EARLY_PASSES && r->tried) || (pass < EARLY_PASSES && !promising(w, r, pass)) || r->bound >= w->best.time_ps)
            continue;
        if (next && pass == EARLY_PASSES) {
            double a = distance(w, r->schedule.micro_batches), b = distance(w, next->schedule.micro_batches);
            if (a > b || (a == b && (r->schedule.micro_batches < next->schedule.micro_batches
                                     || (r->schedule.micro_batches == next->schedule.micro_batches && r->bound >= next->bound))))
                continue;
        } else if (next) {
            continue;
        }
        next = r;
    }
    return next;
}

/* Plans that people would think of: what the best of them takes saves much work. */
static void find_seed(struct twolevel *w)
{
    struct mpp_seeds *seeds = mpp_seeds_new(w->arena, w->diag, w->graph, w->whole, w->merged.layering, w->cluster, w->options);
    struct mpp_seed seed;
    for (int i = 0; i < w->n_rounds; i++)
        mpp_seeds_add(seeds, &w->round[i].schedule, w->round[i].bound);
    mpp_seeds_find(seeds, INT64_MAX, &seed);
    if (seed.answer.n_stages == 0)
        return;
    w->best = seed.answer;
    w->best_level = (struct level){w->merged.layering, seed.stages};
    w->best_round = (struct round){.schedule = seed.schedule, .equal = true, .counts = {seed.schedule.stages}};
    say(w, &w->best_round, "a seed of", w->best.time_ps);
}

static enum mpp_status solve_rounds(struct twolevel *w)
{
    w->best.time_ps = w->bound = INT64_MAX;
    find_seed(w);
    for (int pass = 0; pass <= EARLY_PASSES; pass++) {
        struct round *r;
        while ((r = next_round(w, pass)) != NULL) {
            w->stopped = interrupted(w);
            if (w->stopped || enough(w))
                break;
            enum mpp_status st = solve_round(w, r, pass < EARLY_PASSES);
            w->stopped = st == MPP_LIMIT;
            if (st != MPP_OK && st != MPP_LIMIT)
                return st;
        }
    }
    for (int i = 0; i < w->n_rounds; i++)
        if (!w->round[i].done && w->round[i].bound < w->bound)
            w->bound = w->round[i].bound;
    return MPP_OK;
}

/* ---- small models, exactly ---- */

/* Few and small enough programs to solve them all? About: spans, devices, meshes, and two ways to recompute. */
static bool small(const struct twolevel *w)
{
    int64_t n = w->plain.layering->n_layers, k = 0;
    for (int i = 0; i < w->n_rounds; i++) {
        bool known = false;
        for (int j = 0; j < i && !known; j++)
            known = w->round[j].schedule.micro_batches == w->round[i].schedule.micro_batches;
        k += !known;
    }
    return w->cluster->n_devices <= EXACT_DEVICES && n <= EXACT_LAYERS
           && k * n * (n + 1) / 2 * w->cluster->n_devices * w->whole->n_groups <= EXACT_GROUPS;
}

/* R again, with every program of its stages solved as it is. */
static enum mpp_status solve_round_exactly(struct twolevel *w, struct round *r, bool *out_all)
{
    struct mpp_pipeline_answer a;
    struct mpp_stages *stages = level_of(w, &r->schedule)->stages;
    struct mpp_pipeline_problem p = round_problem(w, r, w->best.time_ps);
    p.options = mpp_stages_exact_options;
    p.alike = mpp_stages_exact_alike;
    mpp_stages_set(stages, &r->schedule, r->equal, w->best.time_ps, INT_MAX);
    enum mpp_status st = mpp_pipeline_solve(w->arena, &p, &a);
    if (a.n_stages > 0 && a.time_ps < w->best.time_ps) {
        w->best = a;
        w->best_level = *level_of(w, &r->schedule);
        w->best_round = *r;
        say(w, r, "a plan of", a.time_ps);
    }
    *out_all = *out_all && !mpp_stages_gave_up(stages);
    return st;
}

/* All rounds again, those of one number of micro-batches after each other. What was found so far is something to beat; what
 * is found is the best there is. */
static enum mpp_status solve_exactly(struct twolevel *w)
{
    bool all = true;
    for (int i = 0; i < w->n_rounds; i++)
        w->round[i].done = false;
    for (int i = 0; i < w->n_rounds; i++)
        for (int j = i; j < w->n_rounds; j++) {
            struct round *r = &w->round[j];
            const struct mpp_schedule *a = &w->round[i].schedule, *b = &r->schedule;
            if (r->done || a->micro_batches != b->micro_batches || a->chunks != b->chunks)
                continue;
            r->done = true;
            w->stopped = w->stopped || interrupted(w);
            if (w->stopped)
                return MPP_OK;
            enum mpp_status st = solve_round_exactly(w, r, &all);
            w->stopped = st == MPP_LIMIT;
            if (st != MPP_OK && st != MPP_LIMIT)
                return st;
        }
    if (all && !w->stopped)
        w->bound = w->best.time_ps;
    return MPP_OK;
}

/* Of what came nearest to fitting; 0: nothing was too large. */
static int64_t least_bytes(const struct twolevel *w)
{
    int64_t a = mpp_stages_least(w->plain.stages), b = mpp_stages_least(w->merged.stages);
    return a == 0 || (b > 0 && b < a) ? b : a;
}

/* ---- the plan ---- */

static enum mpp_status make_plan(struct twolevel *w, struct mpp_plan **out)
{
    const struct level *level = &w->best_level;
    struct mpp_plan *plan = mpp_arena_array(w->arena, 1, struct mpp_plan);
    int n = w->best.n_stages;
    struct mpp_stage *stages = mpp_arena_array(w->arena, n, struct mpp_stage);
    mpp_stages_set(level->stages, &w->best_round.schedule, w->best_round.equal, INT64_MAX, INT_MAX);
    for (int i = 0; i < n; i++) {
        enum mpp_status st = mpp_stages_decide(level->stages, &w->best.stage[i], &stages[i]);
        if (st == MPP_LIMIT)
            mpp_diag_error(w->diag, (struct mpp_loc){0}, "internal: stage %d of the best plan cannot be rebuilt", i);
        MPP_TRY(st);
        mpp_stage_name_axes(stages[i].graph, &stages[i]);
    }
    struct mpp_schedule schedule = w->best_round.schedule;
    schedule.stages = n;
    bool chunks = mpp_interleave_possible(w->graph, level->layering, &schedule);
    for (int i = 0; i < n && chunks; i++)
        MPP_TRY(mpp_interleave_stage(w->arena, w->diag, w->graph, level->layering, &schedule, i, &stages[i]));
    int64_t time = w->best.time_ps, bound = w->bound < time ? w->bound : time;
    *plan = (struct mpp_plan){
        .version = MPP_PLAN_VERSION, .batch = w->graph->global_batch, .micro_batches = w->best_round.schedule.micro_batches,
        .schedule = n == 1 ? "accumulate" : mpp_schedule_name(w->best_round.schedule.kind),
        .pipeline = w->best_round.schedule, .layering = level->layering, .n_stages = n, .stages = stages,
        .solver = stages[0].solver, .objective_ps = time, .bound_ps = bound,
        .pins = mpp_pins_text(w->arena, &w->options->pins)};
    plan->pipeline.stages = n;
    plan->gap = time > 0 ? (double)(time - bound) / (double)time : 0;
    *out = plan;
    return MPP_OK;
}

enum mpp_status mpp_plan_pipeline(struct mpp_arena *arena, struct mpp_diag *diag, struct mpp_graph *graph,
                                  const struct mpp_cluster *cluster, const struct mpp_plan_options *options,
                                  struct mpp_plan **out)
{
    struct mpp_layering *layering;
    *out = NULL;
    MPP_TRY(mpp_pins_check(diag, graph, cluster->n_devices, &options->pins));
    MPP_TRY(mpp_layering_make(arena, diag, graph, MAX_LAYERS, &layering));
    struct twolevel *w = mpp_arena_array(arena, 1, struct twolevel);
    *w = (struct twolevel){.arena = arena, .diag = diag, .graph = graph, .cluster = cluster, .options = options,
                           .deadline_s = now_s() + options->time_limit_s};
    w->plain.layering = layering;
    MPP_TRY(mpp_span_extract(arena, diag, graph, layering, 0, layering->n_layers - 1, MPP_RECOMPUTE_NONE, &w->whole));
    w->merged.layering = mpp_layering_merge_ends(arena, graph, layering);
    w->plain.stages = mpp_stages_new(arena, diag, graph, layering, cluster, options);
    w->merged.stages = w->merged.layering == layering ? w->plain.stages
                       : mpp_stages_new(arena, diag, graph, w->merged.layering, cluster, options);
    list_sizes(w);
    list_rounds(w);
    if (w->n_counts == 0 || w->n_rounds == 0) {
        mpp_diag_error(diag, (struct mpp_loc){0}, "no plan does what --fix asks: %s", w->n_counts == 0
                       ? "no number of stages divides the devices so" : options->pins.interleave > 1 || options->pins.schedule == MPP_SCHEDULE_INTERLEAVED
                       ? "no number of micro-batches divides the batch so, or parts of one stage would share layers' values or parameters"
                       : "no number of micro-batches divides the batch so");
        return MPP_INVALID;
    }
    bool exact = small(w);
    if (exact) {
        mpp_stages_try_both_orders(w->plain.stages);
        mpp_stages_try_both_orders(w->merged.stages);
    }
    MPP_TRY(solve_rounds(w));
    if (!w->stopped && exact)
        MPP_TRY(solve_exactly(w));
    if (w->best.n_stages > 0)
        return make_plan(w, out);
    if (w->stopped) {
        mpp_diag_error(diag, (struct mpp_loc){0}, "the search was stopped before it found a plan");
        return MPP_LIMIT;
    }
    if (options->quiet)
        return MPP_INFEASIBLE;
    struct mpp_search_result failed = {.least_bytes = least_bytes(w)};
    if (failed.least_bytes == 0) {
        mpp_diag_error(diag, (struct mpp_loc){0}, "no plan does what --fix asks: no mesh of the pinned sizes runs all ops");
        return MPP_INVALID;
    }
    mpp_suggest(diag, graph, cluster, options, &failed);
    return MPP_INFEASIBLE;
}
