/* twolevel.c - the best plan over stages, devices, meshes, micro-batch counts, recomputation and schedules.
 *
 * A round is a number of micro-batches and a schedule. Every round is bounded first: the pipeline's dynamic program over
 * stages that know no memory limit. Then rounds are solved, best bound first, until no bound is below the best plan.
 * Devices of large clusters are divided evenly among the stages; up to SMALL devices in any way. */
#include <inttypes.h>
#include <string.h>

#include "ir/op.h"
#include "planner/pins.h"
#include "planner/search.h"
#include "planner/stages.h"

enum { SMALL_DEVICES = 16, MAX_ROUNDS = 1024, MAX_LAYERS = 1024, MAX_CHUNKS = 8, MAX_SIZES = 1024 };

struct round {
    struct mpp_schedule schedule;
    bool equal;                   /* all stages of equally many devices */
    int64_t bound;
};

/* Layers, and what stages of them cost. */
struct level {
    const struct mpp_layering *layering;
    struct mpp_stages *stages;
};

struct twolevel {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    struct mpp_graph *graph;
    const struct mpp_cluster *cluster;
    const struct mpp_plan_options *options;
    struct level plain, merged;   /* merged: what stands before and after a repeat belongs to its first and last layer */
    int n_sizes, sizes[MAX_SIZES], n_counts, counts[MAX_SIZES + 1]; /* of devices per stage, and of stages; ends with 0 */
    int n_rounds;
    struct round round[MAX_ROUNDS];
    struct mpp_pipeline_answer best;
    struct round best_round;
    int64_t bound;
    bool stopped;
};

/* ---- what is searched ---- */

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

static void add_round(struct twolevel *w, enum mpp_schedule_kind kind, int chunks, int64_t k, bool equal)
{
    if (w->n_rounds < MAX_ROUNDS)
        w->round[w->n_rounds++] = (struct round){{kind, 1, chunks, k}, equal, 0};
}

static void add_rounds_of(struct twolevel *w, int64_t k)
{
    const struct mpp_pins *p = &w->options->pins;
    bool equal = w->cluster->n_devices > SMALL_DEVICES;
    if (!count_allowed(w, k))
        return;
    if (p->schedule == MPP_SCHEDULE_GPIPE)
        add_round(w, MPP_SCHEDULE_GPIPE, 1, k, equal);
    if (p->interleave <= 1 && (p->schedule < 0 || p->schedule == MPP_SCHEDULE_1F1B))
        add_round(w, MPP_SCHEDULE_1F1B, 1, k, equal);
    for (int v = 2; v <= MAX_CHUNKS && p->interleave != 1 && p->pp != 1 && k > 1; v++)
        if ((p->schedule < 0 || p->schedule == MPP_SCHEDULE_INTERLEAVED) && (p->interleave == 0 || p->interleave == v))
            add_round(w, MPP_SCHEDULE_INTERLEAVED, v, k, true);
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

/* Of bounds, nothing but bounds is known: the answer is a bound as well. */
static int only_bounds(void *context, const struct mpp_pipeline_key *key, bool exact, const struct mpp_pipeline_option **out,
                       bool *out_exact)
{
    int n = mpp_stages_options(context, key, false, out, out_exact);
    (void)exact;
    *out_exact = true;
    return n;
}

static enum mpp_status run_round(struct twolevel *w, const struct round *r, bool bounds, int64_t upper, const int *counts,
                                 struct mpp_pipeline_answer *out)
{
    const struct level *level = level_of(w, &r->schedule);
    struct mpp_pipeline_problem p = {
        .n_layers = level->layering->n_layers, .n_devices = w->cluster->n_devices, .n_sizes = w->n_sizes, .sizes = w->sizes,
        .max_stages = w->counts[w->n_counts - 1], .stages = counts, .equal_sizes = r->equal, .kind = r->schedule.kind,
        .chunks = r->schedule.chunks, .micro_batches = r->schedule.micro_batches, .upper_bound_ps = upper,
        .options = bounds ? only_bounds : mpp_stages_options, .alike = bounds ? mpp_stages_alike_bounds : mpp_stages_alike,
        .context = level->stages, .interrupt = w->options->interrupt};
    mpp_stages_set(level->stages, &r->schedule);
    return mpp_pipeline_solve(w->arena, &p, out);
}

static void say(const struct twolevel *w, const struct round *r, const char *what, int64_t ps)
{
    if (w->options->progress && ps < INT64_MAX)
        fprintf(w->options->progress, "%" PRId64 " micro-batches, %s%s: %s %.6g ms\n", r->schedule.micro_batches,
                mpp_schedule_name(r->schedule.kind), r->schedule.chunks > 1 ? " (chunks)" : "", what, (double)ps * 1e-9);
}

static bool interrupted(const struct twolevel *w)
{
    return w->options->interrupt && *w->options->interrupt;
}

/* The bounds of all rounds, ascending. */
static enum mpp_status bound_rounds(struct twolevel *w)
{
    int n = 0;
    for (int i = 0; i < w->n_rounds && !interrupted(w); i++) {
        struct round r = w->round[i];
        struct mpp_pipeline_answer a;
        MPP_TRY(run_round(w, &r, true, INT64_MAX, w->counts, &a));
        if (a.n_stages == 0)
            continue;
        r.bound = a.time_ps;
        say(w, &r, "at least", r.bound);
        int at = n++;
        for (; at > 0 && w->round[at - 1].bound > r.bound; at--)
            w->round[at] = w->round[at - 1];
        w->round[at] = r;
    }
    w->n_rounds = n;
    return MPP_OK;
}

static enum mpp_status solve_rounds(struct twolevel *w)
{
    w->best.time_ps = w->bound = INT64_MAX;
    for (int i = 0; i < w->n_rounds; i++) {
        const struct round *r = &w->round[i];
        struct mpp_pipeline_answer a = {0};
        if (r->bound >= w->best.time_ps || interrupted(w)) {
            w->bound = r->bound < w->bound ? r->bound : w->bound;
            w->stopped = interrupted(w);
            break;
        }
        enum mpp_status st = run_round(w, r, false, w->best.time_ps, w->counts, &a);
        w->bound = a.bound_ps < w->bound ? a.bound_ps : w->bound;
        if (a.n_stages > 0 && a.time_ps < w->best.time_ps) {
            w->best = a;
            w->best_round = *r;
            say(w, r, "a plan of", a.time_ps);
        } else {
            say(w, r, "no better than", a.bound_ps);
        }
        if (st == MPP_LIMIT) {
            w->stopped = true;
            break;
        }
        MPP_TRY(st);
    }
    return MPP_OK;
}

/* ---- the plan ---- */

/* Does AXIS split a batch (out_batch) or something else on most contractions of the stage? */
static void axis_use(const struct mpp_graph *g, const struct mpp_stage *s, int axis, bool *out_batch, bool *out_other)
{
    int n = 0, batch = 0, other = 0;
    for (int i = 0; i < g->n_groups; i++) {
        const struct mpp_group *group = &g->groups[i];
        if (mpp_op_info(g->ops[group->ops[0]].kind)->cls != MPP_CLASS_CONTRACTION)
            continue;
        int f = s->split[i].axis[axis];
        n++;
        if (f >= 0)
            *(group->rule->factor[f].size.per_batch > 0 ? &batch : &other) += 1;
    }
    *out_batch = 2 * batch > n;
    *out_other = 2 * other > n;
}

static void name_stage_axes(const struct mpp_graph *g, struct mpp_stage *s)
{
    static const char *const data[] = {"data", "data2", "data3"}, *const model[] = {"model", "model2", "model3"};
    static const char *const letter[] = {"a", "b", "c"};
    int n_data = 0, n_model = 0;
    for (int a = 0; a < s->mesh.n_axes; a++) {
        n_data += s->mesh.name[a] && !strcmp(s->mesh.name[a], "data");
        n_model += s->mesh.name[a] && !strcmp(s->mesh.name[a], "model");
    }
    for (int a = 0; a < s->mesh.n_axes; a++) {
        bool batch, other;
        const char *name = s->mesh.name[a];
        if (name && (!strcmp(name, "data") || !strcmp(name, "model")))
            continue;
        axis_use(g, s, a, &batch, &other);
        s->mesh.name[a] = batch ? data[n_data++] : other ? model[n_model++] : letter[a];
    }
}

static enum mpp_status make_plan(struct twolevel *w, struct mpp_plan **out)
{
    const struct level *level = level_of(w, &w->best_round.schedule);
    struct mpp_plan *plan = mpp_arena_array(w->arena, 1, struct mpp_plan);
    int n = w->best.n_stages;
    struct mpp_stage *stages = mpp_arena_array(w->arena, n, struct mpp_stage);
    mpp_stages_set(level->stages, &w->best_round.schedule);
    for (int i = 0; i < n; i++) {
        MPP_TRY(mpp_stages_decide(level->stages, &w->best.stage[i], &stages[i]));
        name_stage_axes(stages[i].graph, &stages[i]);
    }
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
    *w = (struct twolevel){.arena = arena, .diag = diag, .graph = graph, .cluster = cluster, .options = options};
    w->plain.layering = layering;
    w->merged.layering = mpp_layering_merge_ends(arena, graph, layering);
    w->plain.stages = mpp_stages_new(arena, diag, graph, layering, cluster, options);
    w->merged.stages = w->merged.layering == layering ? w->plain.stages
                       : mpp_stages_new(arena, diag, graph, w->merged.layering, cluster, options);
    list_sizes(w);
    list_rounds(w);
    if (w->n_counts == 0 || w->n_rounds == 0) {
        mpp_diag_error(diag, (struct mpp_loc){0}, "no plan does what --fix asks: %s", w->n_counts == 0
                       ? "no number of stages divides the devices so" : "no number of micro-batches divides the batch so");
        return MPP_INVALID;
    }
    MPP_TRY(bound_rounds(w));
    MPP_TRY(solve_rounds(w));
    if (w->best.n_stages > 0)
        return make_plan(w, out);
    return w->stopped ? MPP_LIMIT : MPP_INFEASIBLE;
}
