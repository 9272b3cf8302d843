/* bench_grid.c - is the planner's plan as good as the best of the grid of Megatron-style plans, by the same cost model?
 *
 *     bench_grid [--ours] [--stages LAYERSxDEVICES,...] MODEL.xml ARGUMENTS OF mpplan...      --fix: the published plan
 *
 * A grid point: tp up to a node, pp that divides the layers, dp the rest of the devices, any micro-batch per replica that
 * divides the batch, none, selective or full recomputation, any number of chunks that divides a stage's layers. Stages have
 * equally many layers; the first has the embedding too, the last the head. ZeRO, sequence and vocabulary parallelism as
 * in FLAVOURS. A stage is priced by what the planner prices stages with (planner/stages.h), a step by mpp_schedule_time.
 * --stages: the published plan's stages, where they are not alike. --ours: no grid, the published plan and ours alone.
 *
 * Prints one JSON object. tests/bench/bench_grid.py makes the table. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ir/pass.h"
#include "options.h"
#include "planner/plan.h"
#include "planner/stages.h"

/* Bounds of stages are sums of what their parts take, about: only points whose bound is so much above the best are passed over. */
static const double SURE = 1.03;
static const double SOLVED_TO = 0.002; /* the gap that stages are solved to, and some */
static const double FAR = 1.15;       /* points that take so many times what ours takes are passed over */
enum { MOST_TP = 8, SAMPLE = 20, SAMPLE_LARGE = 6, LARGE = 1000, MAX_POINTS = 200000, MAX_STAGES = 1024, MAX_LAYERS = 1024 };

static const struct flavour {
    const char *name;
    int zero, sequence_parallel, vocab_parallel;
} flavours[] = {
    {"2021", 0, 0, 1},            /* Megatron-LM at SC21 */
    {"2022", 1, 1, 1},            /* with sequence parallelism and a distributed optimiser */
    {"free", -1, -1, -1},         /* the integer program decides */
};
enum { N_FLAVOURS = sizeof flavours / sizeof flavours[0] };

struct point {
    int dp, tp, pp, chunks;
    int64_t micro_batch;
    int recompute, flavour;
    int64_t time_ps;              /* INT64_MAX: not priced */
};

/* Stages one after the other. */
struct cut {
    int n, layers[MAX_STAGES], devices[MAX_STAGES];
};

enum outcome { PRICED, DOMINATED, NONE };

struct grid {
    struct mpp_arena *arena;
    struct mpp_diag *diag, *silent;
    struct mpp_graph *graph;
    struct mpp_cluster *cluster;
    const struct mpp_layering *layering; /* embedding and head belong to the first and the last layer */
    struct mpp_plan_options options;
    int heads;
    int n_points;
    struct point *points;
    int64_t count[3];             /* of each outcome */
    struct point best[N_FLAVOURS];
    int64_t far_ps;               /* see FAR */
};

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- one point ---- */

static struct mpp_pins pins_of(const struct grid *g, const struct point *p)
{
    const struct flavour *f = &flavours[p->flavour];
    struct mpp_pins pins = mpp_pins_none();
    pins.dp = p->dp;
    pins.tp = p->tp;
    pins.pp = p->pp;
    pins.interleave = p->chunks;
    pins.micro_batch = p->micro_batch;
    pins.micro_batches = p->micro_batch ? g->graph->global_batch / p->micro_batch / p->dp : 0;
    pins.recompute = p->recompute;
    pins.zero = p->dp > 1 ? f->zero : -1;
    pins.sequence_parallel = p->tp > 1 ? f->sequence_parallel : -1;
    pins.vocab_parallel = p->tp > 1 ? f->vocab_parallel : -1;
    return pins;
}

static struct mpp_schedule schedule_of(const struct grid *g, const struct point *p)
{
    return (struct mpp_schedule){p->chunks > 1 ? MPP_SCHEDULE_INTERLEAVED : MPP_SCHEDULE_1F1B, p->pp, p->chunks,
                                 g->graph->global_batch / p->micro_batch / p->dp};
}

/* The step's time with the stages of CUT priced by S: exactly, or from below. INT64_MAX: some stage has no option. */
static int64_t time_of(struct mpp_stages *s, const struct mpp_schedule *schedule, const struct cut *cut, bool exact)
{
    int64_t sum = 0, longest = 0, once = 0;
    int layer = 0, device = 0;
    for (int i = 0; i < cut->n; i++) {
        struct mpp_pipeline_key key = {layer, layer + cut->layers[i] - 1, device, cut->devices[i], i, cut->n,
                                       mpp_schedule_held(schedule, i)};
        const struct mpp_pipeline_option *option;
        bool is_exact;
        if (mpp_stages_options(s, &key, exact, &option, &is_exact) == 0)
            return INT64_MAX;
        sum += option->t_ps;
        longest = option->t_ps > longest ? option->t_ps : longest;
        once = option->once_ps > once ? option->once_ps : once;
        layer += cut->layers[i];
        device += cut->devices[i];
    }
    return mpp_schedule_time_of(schedule, sum, longest, once);
}

/* P into its time_ps, where that is below UPPER. S has P's pins but for the micro-batch. */
static enum outcome price(struct grid *g, struct mpp_stages *s, struct point *p, int64_t upper)
{
    struct mpp_schedule schedule = schedule_of(g, p);
    struct cut cut = {.n = p->pp};
    for (int i = 0; i < p->pp; i++) {
        cut.layers[i] = g->layering->n_layers / p->pp;
        cut.devices[i] = p->dp * p->tp;
    }
    p->time_ps = INT64_MAX;
    mpp_stages_set(s, &schedule, true, upper, INT_MAX);
    int64_t bound = time_of(s, &schedule, &cut, false);
    if (bound == INT64_MAX)
        return NONE;
    if ((double)bound > SURE * (double)upper)
        return DOMINATED;
    p->time_ps = time_of(s, &schedule, &cut, true);
    return p->time_ps < INT64_MAX ? PRICED : NONE;
}

/* ---- all points ---- */

/* All points of one dp, tp, pp, recomputation and flavour. */
static void price_family(struct grid *g, struct point p)
{
    struct mpp_arena *arena = mpp_arena_scratch(g->arena);
    struct mpp_plan_options options = g->options;
    options.pins = pins_of(g, &p);
    options.pins.micro_batch = options.pins.micro_batches = 0;
    options.pins.interleave = 0;
    struct mpp_stages *s = mpp_stages_new(arena, g->silent, g->graph, g->layering, g->cluster, &options);
    int64_t share = g->graph->global_batch / p.dp;
    int per_stage = g->layering->n_layers / p.pp;
    for (p.micro_batch = 1; p.micro_batch <= share; p.micro_batch++)
        for (p.chunks = 1; p.chunks <= (p.pp > 1 ? per_stage : 1); p.chunks++) {
            if (share % p.micro_batch || per_stage % p.chunks || (p.chunks > 1 && share / p.micro_batch % p.pp))
                continue;
            struct point *best = &g->best[p.flavour];
            g->count[price(g, s, &p, best->time_ps < g->far_ps ? best->time_ps : g->far_ps)]++;
            if (p.time_ps < best->time_ps)
                *best = p;
            if (g->n_points < MAX_POINTS)
                g->points[g->n_points++] = p;
        }
    mpp_arena_free(arena);
}

static void price_all(struct grid *g)
{
    int n = g->cluster->n_devices, node = g->cluster->devices_per_node;
    struct point p = {0};
    g->points = mpp_arena_array(g->arena, MAX_POINTS, struct point);
    for (p.tp = 1; p.tp <= MOST_TP && p.tp <= node; p.tp++)
        for (p.pp = 1; n % p.tp == 0 && g->heads % p.tp == 0 && p.pp <= n / p.tp; p.pp++) {
            p.dp = n / p.tp / p.pp;
            if (n / p.tp % p.pp || g->layering->n_layers % p.pp || g->graph->global_batch % p.dp)
                continue;
            for (p.recompute = 0; p.recompute < MPP_RECOMPUTE_COUNT; p.recompute++)
                for (p.flavour = 0; p.flavour < N_FLAVOURS; p.flavour++)
                    price_family(g, p);
        }
}

/* ---- whole plans ---- */

/* A step of the best plan that does as PINS say, as mpplan finds it; INT64_MAX: there is none. */
static int64_t plan_time(struct grid *g, const struct mpp_pins *pins, struct mpp_arena *arena, struct mpp_plan **out)
{
    struct mpp_plan_options options = g->options;
    options.pins = *pins;
    options.quiet = true;
    if (mpp_plan_pipeline(arena, g->silent, g->graph, g->cluster, &options, out) != MPP_OK
        || mpp_plan_derive(arena, g->silent, g->graph, g->cluster, *out) != MPP_OK)
        return INT64_MAX;
    return (*out)->objective_ps;
}

static void print_point(const char *name, const struct point *p)
{
    printf("\"%s\": ", name);
    if (p->time_ps == INT64_MAX) {
        printf("null");
        return;
    }
    printf("{\"step_s\": %.6f, \"dp\": %d, \"tp\": %d, \"pp\": %d, \"chunks\": %d, \"micro_batch\": %" PRId64 ", \"recompute\": \"%s\", "
           "\"flavour\": \"%s\"}", (double)p->time_ps * 1e-12, p->dp, p->tp, p->pp, p->chunks, p->micro_batch,
           mpp_recompute_name((enum mpp_recompute)p->recompute), flavours[p->flavour].name);
}

/* Which points were planned, too. */
struct checked {
    int n_best, n_random, last;  /* best points of flavours; picked ones; index of the last one from the cheapest on */
    int64_t last_ps;             /* and its time */
    uint64_t random;
    struct point fastest;        /* with the time of its plan */
};

/* The best point of each flavour, then those that were priced from the cheapest on, as long as one is cheaper than FASTEST_PS,
 * the fastest plan so far, then points picked from all at random; false: enough of them. */
static bool next_check(const struct grid *g, struct checked *c, struct point *out)
{
    if (c->n_best < N_FLAVOURS) {
        *out = g->best[c->n_best++];
        return true;
    }
    const struct point *next = NULL;
    for (int i = 0; i < g->n_points; i++) {
        const struct point *p = &g->points[i];
        bool later = p->time_ps > c->last_ps || (p->time_ps == c->last_ps && i > c->last);
        if (later && p->time_ps < c->fastest.time_ps && (next == NULL || p->time_ps < next->time_ps))
            next = p;
    }
    if (next != NULL) {
        c->last_ps = next->time_ps;
        c->last = (int)(next - g->points);
        *out = *next;
        return true;
    }
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    *out = g->points[(c->random >> 33) % (uint64_t)g->n_points];
    return c->n_random++ < (g->cluster->n_devices < LARGE ? SAMPLE : SAMPLE_LARGE);
}

/* Is P priced already, as the best point of its flavour? */
static bool is_best(const struct grid *g, const struct point *p)
{
    const struct point *b = &g->best[p->flavour];
    return b->micro_batch == p->micro_batch && b->tp == p->tp && b->pp == p->pp && b->chunks == p->chunks && b->recompute == p->recompute;
}

/* Points as plans of mpplan with the same pins, whose stages may be cut otherwise, and whose messages between the chunks of
 * interleaved stages cost what they do: by how much they are slower at most; of those that were passed over, how many are faster than
 * the best; and the fastest of all. */
static void check(struct grid *g)
{
    double most = -1;
    struct checked c = {.random = 1, .last = -1, .last_ps = -1, .fastest = {.time_ps = INT64_MAX}};
    struct point p;
    int n = 0, wrong = 0;
    while (g->n_points > 0 && next_check(g, &c, &p)) {
        if (p.micro_batch == 0 || (c.last >= 0 && c.n_random == 0 && is_best(g, &p)))
            continue;             /* a flavour without a point; one that was planned */
        struct mpp_arena *scratch = mpp_arena_scratch(g->arena);
        struct mpp_pins pins = pins_of(g, &p);
        struct mpp_plan *plan;
        int64_t time = plan_time(g, &pins, scratch, &plan), priced = p.time_ps;
        mpp_arena_free(scratch);
        n++;
        if (priced < INT64_MAX) {
            double above = time == INT64_MAX ? 9 : (double)time / (double)priced - 1;
            most = above > most ? above : most;
        }
        int64_t best = g->far_ps;
        for (int f = 0; f < N_FLAVOURS; f++)
            best = g->best[f].time_ps < best ? g->best[f].time_ps : best;
        wrong += priced == INT64_MAX && (double)time * (1 + SOLVED_TO) < (double)best;
        p.time_ps = time;
        c.fastest = time < c.fastest.time_ps ? p : c.fastest;
    }
    printf("\"check\": {\"plans\": %d, \"most_above\": %.6f, \"wrongly_passed_over\": %d, ", n, most, wrong);
    print_point("fastest", &c.fastest);
    printf("}");
}

/* Stages that are alike but for their place. */
static bool alike(const struct mpp_stage *a, const struct mpp_stage *b)
{
    bool same = a->recompute == b->recompute && a->mesh.n_axes == b->mesh.n_axes;
    for (int k = 0; same && k < a->mesh.n_axes; k++)
        same = a->mesh.size[k] == b->mesh.size[k] && strcmp(a->mesh.name[k], b->mesh.name[k]) == 0;
    return same;
}

static void print_plan(const char *name, const struct mpp_plan *plan, double seconds)
{
    printf("\"%s\": ", name);
    if (!plan) {
        printf("null");
        return;
    }
    printf("{\"step_s\": %.6f, \"bound_s\": %.6f, \"simulated_s\": %.6f, \"cpu_s\": %.2f, \"schedule\": \"%s\", \"pp\": %d, \"chunks\": %d, "
           "\"micro_batches\": %" PRId64 ", \"stages\": [",
           (double)plan->objective_ps * 1e-12, (double)plan->bound_ps * 1e-12, (double)plan->simulated_ps * 1e-12, seconds, plan->schedule,
           plan->n_stages, plan->pipeline.chunks, plan->micro_batches);
    for (int i = 0, j; i < plan->n_stages; i = j) {
        const struct mpp_stage *s = &plan->stages[i];
        for (j = i + 1; j < plan->n_stages && alike(s, &plan->stages[j]); j++)
            ;
        printf("%s{\"times\": %d, \"layers\": %d, \"recompute\": \"%s\", \"mesh\": \"", i ? ", " : "", j - i,
               plan->stages[j - 1].last_layer - s->first_layer + 1, mpp_recompute_name(s->recompute));
        for (int k = 0; k < s->mesh.n_axes; k++)
            printf("%s%s %d", k ? " x " : "", s->mesh.name[k], s->mesh.size[k]);
        printf("\"}");
    }
    printf("]}");
}

/* ---- the published plan ---- */

/* "8x2,8x2,16x4" */
static bool read_cut(const char *text, struct cut *out)
{
    int used;
    out->n = 0;
    while (out->n < MAX_STAGES && sscanf(text, "%dx%d%n", &out->layers[out->n], &out->devices[out->n], &used) == 2) {
        out->n++;
        text += used;
        if (*text != ',')
            return *text == '\0';
        text++;
    }
    return false;
}

/* Its time; INT64_MAX: it does not fit. Where it is a point of the grid, *OUT is that. */
static int64_t published(struct grid *g, const struct mpp_pins *pins, const struct cut *cut, struct point *out)
{
    int64_t k = pins->micro_batches ? pins->micro_batches : g->graph->global_batch / pins->micro_batch / pins->dp;
    *out = (struct point){.dp = pins->dp, .tp = pins->tp, .pp = pins->pp ? pins->pp : cut->n, .chunks = pins->interleave ? pins->interleave : 1,
                          .micro_batch = pins->dp ? g->graph->global_batch / k / pins->dp : 0, .recompute = pins->recompute,
                          .time_ps = INT64_MAX};
    struct mpp_arena *arena = mpp_arena_scratch(g->arena);
    struct mpp_plan_options options = g->options;
    options.pins = *pins;
    options.pins.micro_batch = options.pins.micro_batches = options.pins.interleave = 0;
    struct mpp_stages *s = mpp_stages_new(arena, g->silent, g->graph, g->layering, g->cluster, &options);
    struct mpp_schedule schedule = {out->chunks > 1 ? MPP_SCHEDULE_INTERLEAVED : MPP_SCHEDULE_1F1B, out->pp, out->chunks, k};
    if (cut->n == 0) {
        price(g, s, out, INT64_MAX);
    } else {
        mpp_stages_set(s, &schedule, false, INT64_MAX, INT_MAX);
        out->time_ps = time_of(s, &schedule, cut, true);
    }
    mpp_arena_free(arena);
    return out->time_ps;
}

/* ---- the program ---- */

static enum mpp_status read_input(struct grid *g, const struct mpp_options *o)
{
    struct mpp_model *model;
    struct mpp_layering *plain;
    MPP_TRY(mpp_model_read(g->arena, g->diag, o->model, &o->model_options, &model));
    MPP_TRY(mpp_graph_build(g->arena, g->diag, model, &g->graph));
    struct mpp_pass_ctx ctx = {.arena = g->arena, .diag = g->diag, .unfused = o->unfused, .before_fuse = true};
    MPP_TRY(mpp_passes_run(&ctx, g->graph));
    MPP_TRY(mpp_layering_make(g->arena, g->diag, g->graph, MAX_LAYERS, &plain));
    g->layering = mpp_layering_merge_ends(g->arena, g->graph, plain);
    return mpp_cluster_load(g->arena, g->diag, o->cluster, o->gpus, &g->cluster);
}

static int heads_of(const struct mpp_options *o)
{
    for (int i = 0; i < o->model_options.n_defines; i++)
        if (strncmp(o->model_options.defines[i], "heads=", 6) == 0)
            return atoi(o->model_options.defines[i] + 6);
    return 1;
}

static void print_grid(struct grid *g)
{
    double start = cpu_s();
    for (int f = 0; f < N_FLAVOURS; f++)
        g->best[f].time_ps = INT64_MAX;
    price_all(g);
    printf("\"points\": %" PRId64 ", \"priced\": %" PRId64 ", \"dominated\": %" PRId64 ", \"none\": %" PRId64 ", \"grid_cpu_s\": %.1f,\n",
           g->count[PRICED] + g->count[DOMINATED] + g->count[NONE], g->count[PRICED], g->count[DOMINATED], g->count[NONE], cpu_s() - start);
    for (int f = 0; f < N_FLAVOURS; f++) {
        print_point(flavours[f].name, &g->best[f]);
        printf(",\n");
    }
    fflush(stdout);
    check(g);
}

static void run(struct grid *g, const struct mpp_pins *pins, const struct cut *cut, bool grid)
{
    struct point known;
    struct mpp_plan *plan = NULL;
    struct mpp_pins none = mpp_pins_none();
    printf("{");
    int64_t time = published(g, pins, cut, &known);
    if (time < INT64_MAX)
        printf("\"published_s\": %.6f,\n", (double)time * 1e-12);
    double start = cpu_s();
    if (plan_time(g, &none, g->arena, &plan) == INT64_MAX)
        plan = NULL;
    print_plan("ours", plan, cpu_s() - start);
    fflush(stdout);
    g->far_ps = plan ? (int64_t)(FAR * (double)plan->objective_ps) : INT64_MAX;
    if (grid) {
        printf(",\n");
        print_grid(g);
    }
    printf("}\n");
}

int main(int argc, char **argv)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(stderr);
    struct cut cut = {0};
    bool ok = true, grid = true;
    if (argc > 1 && strcmp(argv[1], "--ours") == 0) {
        grid = false;
        argc--;
        argv++;
    }
    if (argc > 2 && strcmp(argv[1], "--stages") == 0) {
        ok = read_cut(argv[2], &cut);
        argc -= 2;
        argv += 2;
    }
    struct mpp_options options = {0};
    struct grid g = {.arena = arena, .diag = diag, .silent = mpp_diag_in(arena, NULL)};
    if (!ok) {
        fprintf(stderr, "error: --stages wants layers x devices, as in 8x2,16x4\n");
    } else {
        ok = mpp_options_parse(arena, diag, argc, argv, &options) == MPP_OK && read_input(&g, &options) == MPP_OK;
        g.heads = ok ? heads_of(&options) : 1;
    }
    if (ok)
        run(&g, &options.pins, &cut, grid);
    mpp_diag_free(diag);
    mpp_arena_free(arena);
    return ok ? 0 : 2;
}
