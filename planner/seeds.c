/* seeds.c - the grid of equal stages, data and model axes, priced best bound first.
 *
 * A point is a schedule and a size of the model axis. Its bound comes from surveys (stages_survey.c), with recomputation
 * where its activations are too much even if split over all devices. Points are priced in the order of their bounds. */
#include "planner/seeds.h"

#include <string.h>

/* Points whose bounds are looked at; programs within memory for one point, and for all. */
enum { MOST_LOOKS = 1500, BUDGET = 4, MOST_WITHIN = 100 };
enum { MOST_MODEL = 8, MAX_STAGES = 1024 };
enum { NONE, FULL, ANY, N_KINDS };

/* What devices per stage are used for. */
struct family {
    int dp, tp, pp;
    struct mpp_plan_options options[N_KINDS]; /* with its pins, and recomputation pinned or free */
    struct mpp_stages *stages[N_KINDS];       /* NULL: not made yet */
};

struct point {
    int family;
    struct mpp_schedule schedule;
    int64_t bound_ps, others_ps;  /* others: of it, what a stage waits for the others at least, about */
};

struct mpp_seeds {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const struct mpp_graph *graph;
    const struct mpp_layering *layering;
    const struct mpp_cluster *cluster;
    const struct mpp_plan_options *options;
    int budget;                   /* programs within memory that may still be solved */
    double capacity, state_bytes, batch_bytes; /* of a device; of the model; of what backward reads of a step's forward */
    size_t cap_families, cap_points;
    int n_families, n_points;
    struct family *family;
    struct point *point;
};

/* ---- the grid ---- */

/* The bytes that forward leaves for backward in a step, all devices together. */
static double kept_bytes(struct mpp_graph *g)
{
    struct mpp_arena *scratch = mpp_arena_scratch(g->arena);
    bool *made = mpp_arena_array(scratch, g->n_tensors, bool);
    double sum = 0;
    mpp_graph_set_batch(g, g->global_batch);
    for (int i = 0; i < g->n_groups; i++) {
        const struct mpp_group *x = &g->groups[i];
        for (int k = 0; k < x->n_out && x->phase == MPP_PHASE_FORWARD; k++)
            made[x->out[k]] = true;
        for (int k = 0; k < x->n_in && x->phase == MPP_PHASE_BACKWARD; k++)
            if (x->in[k] >= 0 && made[x->in[k]]) {
                sum += (double)mpp_tensor_bytes(&g->tensors[x->in[k]]);
                made[x->in[k]] = false;
            }
    }
    mpp_arena_free(scratch);
    return sum;
}

static double resting_bytes(const struct mpp_graph *g)
{
    double sum = 0;
    for (mpp_id t = 0; t < g->n_tensors; t++)
        if (g->tensors[t].role == MPP_ROLE_PARAM || g->tensors[t].role == MPP_ROLE_STATE)
            sum += (double)mpp_tensor_bytes(&g->tensors[t]);
    return sum;
}

struct mpp_seeds *mpp_seeds_new(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                                struct mpp_graph *whole, const struct mpp_layering *layering,
                                const struct mpp_cluster *cluster, const struct mpp_plan_options *options)
{
    struct mpp_seeds *s = mpp_arena_array(arena, 1, struct mpp_seeds);
    *s = (struct mpp_seeds){.arena = arena, .diag = diag, .graph = graph, .layering = layering, .cluster = cluster, .options = options,
                             .budget = MOST_WITHIN};
    s->capacity = (double)(options->capacity_bytes > 0 ? options->capacity_bytes : mpp_device_usable_bytes(&cluster->device));
    s->batch_bytes = kept_bytes(whole);
    s->state_bytes = resting_bytes(whole);
    return s;
}

static int find_family(struct mpp_seeds *s, int dp, int tp, int pp)
{
    for (int i = 0; i < s->n_families; i++)
        if (s->family[i].dp == dp && s->family[i].tp == tp && s->family[i].pp == pp)
            return i;
    s->family = mpp_arena_grow(s->arena, s->family, &s->cap_families, (size_t)s->n_families + 1, sizeof *s->family);
    s->family[s->n_families] = (struct family){.dp = dp, .tp = tp, .pp = pp};
    return s->n_families++;
}

/* Do the user's pins leave this? */
static bool allowed(const struct mpp_pins *p, int dp, int tp, int64_t micro_batch)
{
    return p->mesh.n_axes == 0 && (p->dp == 0 || p->dp == dp) && (p->tp == 0 || p->tp == tp)
           && (p->micro_batch == 0 || p->micro_batch == micro_batch);
}

void mpp_seeds_add(struct mpp_seeds *s, const struct mpp_schedule *schedule, int64_t bound_ps)
{
    int n = s->cluster->n_devices, node = s->cluster->devices_per_node;
    int64_t batch = s->graph->global_batch / schedule->micro_batches;
    if (schedule->kind == MPP_SCHEDULE_GPIPE || schedule->stages > MAX_STAGES || n % schedule->stages
        || s->layering->n_layers % (schedule->stages * schedule->chunks)
        || (schedule->chunks > 1 && schedule->micro_batches % schedule->stages))
        return;
    n /= schedule->stages;
    for (int tp = 1; tp <= n && tp <= node && tp <= MOST_MODEL; tp++) {
        if (n % tp || batch % (n / tp) || !allowed(&s->options->pins, n / tp, tp, batch / (n / tp)))
            continue;
        s->point = mpp_arena_grow(s->arena, s->point, &s->cap_points, (size_t)s->n_points + 1, sizeof *s->point);
        s->point[s->n_points++] = (struct point){find_family(s, n / tp, tp, schedule->stages), *schedule, bound_ps, 0};
    }
}

/* ---- prices ---- */

static struct mpp_stages *stages_of(struct mpp_seeds *s, int family, int kind)
{
    struct family *f = &s->family[family];
    if (!f->stages[kind]) {
        struct mpp_plan_options *o = mpp_arena_memdup(s->arena, s->options, sizeof *s->options);
        o->pins.dp = f->dp;
        o->pins.tp = f->tp;
        o->pins.pp = f->pp;
        if (kind != ANY && o->pins.recompute < 0)
            o->pins.recompute = kind == NONE ? MPP_RECOMPUTE_NONE : MPP_RECOMPUTE_FULL;
        o->export_iopddl_dir = NULL;
        f->stages[kind] = mpp_stages_new(s->arena, s->diag, s->graph, s->layering, s->cluster, o);
    }
    return f->stages[kind];
}

static struct mpp_pipeline_key key_of(const struct mpp_seeds *s, const struct mpp_schedule *schedule, int stage)
{
    int layers = s->layering->n_layers / schedule->stages, devices = s->cluster->n_devices / schedule->stages;
    return (struct mpp_pipeline_key){stage * layers, stage * layers + layers - 1, stage * devices, devices, stage, schedule->stages,
                                     mpp_schedule_held(schedule, stage)};
}

/* The option of stage I of STAGE by STAGES; false: there is none. */
static bool ask(const struct mpp_seeds *s, struct mpp_stages *stages, const struct mpp_schedule *schedule, int i, bool exact,
                struct mpp_pipeline_stage *stage)
{
    const struct mpp_pipeline_option *option;
    bool is_exact;
    stage[i].key = key_of(s, schedule, i);
    if (mpp_stages_options(stages, &stage[i].key, exact, &option, &is_exact) == 0)
        return false;
    stage[i].option = *option;
    return true;
}

/* All stages' options. Of stages that differ in nothing but what is in flight, the first holds most and the last least: if
 * these take the same, so do those between. */
static bool ask_all(const struct mpp_seeds *s, struct mpp_stages *stages, const struct mpp_schedule *schedule, bool exact,
                    struct mpp_pipeline_stage *stage)
{
    int n = schedule->stages, kind[MAX_STAGES];
    bool done[MAX_STAGES] = {false};
    for (int i = 0; i < n; i++) {
        struct mpp_pipeline_key key = key_of(s, schedule, i);
        key.in_flight = 1;
        kind[i] = mpp_stages_alike(stages, &key);
    }
    for (int i = 0; i < n; i++) {
        int last = i;
        for (int k = i + 1; k < n && !done[i] && kind[i] >= 0; k++)
            last = kind[k] == kind[i] ? k : last;
        if (done[i])
            continue;
        if (!ask(s, stages, schedule, i, exact, stage) || (last > i && !done[last] && !ask(s, stages, schedule, last, exact, stage)))
            return false;
        bool same = last > i && stage[i].option.t_ps == stage[last].option.t_ps && stage[i].option.once_ps == stage[last].option.once_ps;
        for (int k = i + 1; k < last && same; k++)
            if (kind[k] == kind[i]) {
                stage[k] = (struct mpp_pipeline_stage){key_of(s, schedule, k), stage[i].option};
                done[k] = true;
            }
        done[i] = true;
        done[last] = true;
    }
    return true;
}

/* Can P do without recomputation, as far as can be told from all activations split over all devices? */
static bool may_keep_all(const struct mpp_seeds *s, const struct point *p)
{
    double n = (double)s->cluster->n_devices, k = (double)p->schedule.micro_batches;
    double in_flight = (double)mpp_schedule_held(&p->schedule, 0);
    return (s->state_bytes + s->batch_bytes / k * in_flight) / n <= s->capacity;
}

/* P's bound in place of its schedule's; INT64_MAX: it cannot be. Full recomputation adds a third at most. */
static void look(struct mpp_seeds *s, struct point *p, struct mpp_pipeline_stage *stage)
{
    bool keep_all = may_keep_all(s, p);
    struct mpp_stages *stages = stages_of(s, p->family, keep_all ? NONE : FULL);
    int64_t sum = 0, longest = 0;
    mpp_stages_set(stages, &p->schedule, true, INT64_MAX, 0);
    p->bound_ps = ask_all(s, stages, &p->schedule, false, stage) ? mpp_pipeline_time(&p->schedule, stage, p->schedule.stages) : INT64_MAX;
    for (int i = 0; i < p->schedule.stages && p->bound_ps < INT64_MAX; i++) {
        sum += stage[i].option.t_ps;
        longest = stage[i].option.t_ps > longest ? stage[i].option.t_ps : longest;
    }
    p->others_ps = (sum - longest) / p->schedule.chunks / 4 * (keep_all ? 4 : 3);
}

/* P within memory, with at most so many programs, into *OUT if it takes less than that. No stage may take all of the time that
 * is left: it waits for the others, too. */
static void price(struct mpp_seeds *s, const struct point *p, int budget, struct mpp_pipeline_stage *stage, struct mpp_seed *out)
{
    struct mpp_stages *stages = stages_of(s, p->family, ANY);
    int64_t before, after, upper = out->answer.time_ps;
    mpp_stages_solved(stages, &before);
    mpp_stages_set(stages, &p->schedule, true, upper < INT64_MAX ? upper - p->others_ps : upper, s->budget < budget ? s->budget : budget);
    bool ok = ask_all(s, stages, &p->schedule, true, stage);
    mpp_stages_solved(stages, &after);
    s->budget -= (int)(after - before);
    int64_t time = ok ? mpp_pipeline_time(&p->schedule, stage, p->schedule.stages) : INT64_MAX;
    if (time >= upper)
        return;
    *out = (struct mpp_seed){stages, p->schedule, {.n_stages = p->schedule.stages, .time_ps = time}};
    out->answer.stage = mpp_arena_memdup(s->arena, stage, sizeof *stage * (size_t)p->schedule.stages);
}

static void sort(struct point *p, int n)
{
    for (int i = 1; i < n; i++) {
        struct point x = p[i];
        int at = i;
        for (; at > 0 && p[at - 1].bound_ps > x.bound_ps; at--)
            p[at] = p[at - 1];
        p[at] = x;
    }
}

/* Some plan, soon: micro-batches of one sample per replica take least memory. */
static void find_any(struct mpp_seeds *s, int n, bool (*stop)(const void *context), const void *context,
                     struct mpp_pipeline_stage *stage, struct mpp_seed *out)
{
    const struct mpp_pins *pins = &s->options->pins;
    bool any = pins->schedule == MPP_SCHEDULE_INTERLEAVED || pins->interleave > 1;
    for (int i = 0; i < n && out->answer.n_stages == 0 && !stop(context); i++) {
        const struct point *p = &s->point[i];
        if ((any || p->schedule.chunks == 1) && p->schedule.micro_batches * s->family[p->family].dp == s->graph->global_batch)
            price(s, p, 0, stage, out);
    }
}

void mpp_seeds_find(struct mpp_seeds *s, int64_t upper_ps, bool (*stop)(const void *context), const void *context, struct mpp_seed *out)
{
    struct mpp_pipeline_stage *stage = mpp_arena_array(s->arena, MAX_STAGES, struct mpp_pipeline_stage);
    int n = s->n_points < MOST_LOOKS ? s->n_points : MOST_LOOKS;
    *out = (struct mpp_seed){.answer.time_ps = upper_ps};
    find_any(s, n, stop, context, stage, out);
    for (int i = 0; i < n && !stop(context); i++)
        if (s->point[i].bound_ps < out->answer.time_ps)
            look(s, &s->point[i], stage);
    sort(s->point, n);
    for (int pass = 0; pass < 2; pass++) /* what fits without a thought makes the others quick to rule out */
        for (int i = 0; i < n && s->point[i].bound_ps < out->answer.time_ps && !stop(context); i++)
            price(s, &s->point[i], pass == 0 ? 0 : BUDGET, stage, out);
}
