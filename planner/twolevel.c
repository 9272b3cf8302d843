/* twolevel.c - the best plan over stages, devices, meshes, micro-batch counts, recomputation and schedules.
 *
 * A round is a number of micro-batches, of stages, and a schedule. No plan of a round takes less than its kernels do if
 * each runs whole on one device and all devices share them evenly, bubble included: rounds are solved in the order of these
 * bounds, until none is below the best plan. Where that takes little, the best plan of one stage is searched for first, without
 * folding its layers (search.c). Devices of large clusters are divided evenly among the stages, up to SMALL
 * devices in any way. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>

#include "ir/op.h"
#include "planner/finalists.h"
#include "planner/pins.h"
#include "planner/search.h"
#include "planner/seeds.h"
#include "planner/stages.h"

/* Smaller kernels are now and then a little faster than their share of the whole one (tiles, caches). */
static const double SLACK = 0.97;
static const double SCALARS = 1.0001; /* what is not counted of a folded program, at most */
enum { EXACT_DEVICES = 8, EXACT_LAYERS = 8, EXACT_GROUPS = 40000, FINALISTS_WITHIN = 10 }; /* all programs are solved; finalists
                                   * take a tenth longer than the best at most */
/* Stages that take so much more in less room make it worth while to look for others. */
static const double LITTLE_SLOWER = 1.002;
/* Integer programs solved (within memory: as so many); then the best so far is taken. */
enum { FEWEST_PROGRAMS = 100, PROGRAMS_PER_DEVICE = 15, MOST_PROGRAMS = 1000, MANY_DEVICES = 256, AGAIN_PROGRAMS = 700, WITHIN_COUNTS = 6 };
enum { EARLY_PASSES = 2, EARLY_BUDGET = 6, LATE_BUDGET = 40 }; /* programs within memory of one round */
enum { SMALL_GROUPS = 2500, LARGE_GROUPS = 4000 }; /* of the model as one stage: that is searched first; some memory is kept in reserve */
enum { MAX_ATTEMPTS = 12, MOST_SPARE = 8, ROOM_STEP = 256, RESERVE = 45 }; /* to make a plan fit once its memory is laid out */
enum { SMALL_DEVICES = 16, MAX_ROUNDS = 16384, MAX_LAYERS = 1024, MAX_SIZES = 1024 };

struct round {
    struct mpp_schedule schedule;
    bool equal;                   /* all stages of equally many devices */
    int64_t bound;                /* of the search */
    int64_t sure;                 /* with all the memory there is, though the search leaves some for what programs do not count */
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
    struct round round[MAX_ROUNDS]; /* by their bounds */
    int64_t left_out_ps;          /* no plan of rounds that had no place takes less */
    struct mpp_plan *one_stage;   /* the best plan of one stage, if that was searched for; it fits */
    struct mpp_plan *alone;       /* the same, while it may be the best; else NULL */
    struct mpp_finalists *finalists;
    struct mpp_pipeline_answer best; /* by the formula: something to beat */
    struct level best_level;      /* whose numbers the best plan's options have */
    struct round best_round;
    int64_t bound;
    struct mpp_plan_options inner; /* with a reserve of memory */
    bool reserve;
    int64_t capacity, programs;   /* programs: that may be solved, as MOST_PROGRAMS */
    int64_t none_after;           /* so many, and no plan was found: none is looked for any more */
    bool exact;                   /* all programs are solved in the end */
    bool unsure;                  /* an early round gave up: there may be plans that fit that it did not find */
    bool stopped;
};

#define PS_PER_DAY ((int64_t)86400 * 1000000000000) /* steps from here on are not planned: choices that take 13 times as long pass for
                                                     * impossible (MPP_SOLVER_INF), and what is found is no longer the best */

/* ---- what is searched ---- */

/* Picoseconds of forward and backward of one of K micro-batches, with every kernel whole on one device. */
static int64_t whole_work(struct twolevel *w, struct mpp_graph *g, int64_t k)
{
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
    return mpp_search_count_allowed(w->graph, &w->options->pins, k) && (k == 1 || !w->graph->whole_batch);
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
    if ((equal && n % stages) || (chunks > 1 && k % stages))
        return;
    int64_t bound = times_share(work, SLACK * ((double)k + bubble) / n);
    if (w->n_rounds == MAX_ROUNDS) { /* the round of the largest bound is left out, which the proof says */
        int64_t most = w->round[MAX_ROUNDS - 1].bound, out = bound > most ? bound : most;
        w->left_out_ps = out < w->left_out_ps ? out : w->left_out_ps;
        if (bound >= most)
            return;
        w->n_rounds--;
    }
    struct round r = {{kind, stages, chunks, k}, equal, bound, bound, {stages, 0}, false, false};
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
    int64_t work = whole_work(w, w->whole, k);
    for (int i = 0; i < w->n_counts; i++) {
        int s = w->counts[i];
        if (p->schedule == MPP_SCHEDULE_GPIPE)
            add_round(w, MPP_SCHEDULE_GPIPE, 1, k, s, work);
        if (p->interleave <= 1 && (p->schedule < 0 || p->schedule == MPP_SCHEDULE_1F1B))
            add_round(w, MPP_SCHEDULE_1F1B, 1, k, s, work);
        for (int v = 2; v * s <= w->merged.layering->n_layers && p->interleave != 1 && s > 1; v++)
            if ((p->schedule < 0 || p->schedule == MPP_SCHEDULE_INTERLEAVED) && (p->interleave == 0 || p->interleave == v)
                && mpp_interleave_possible(w->graph, w->merged.layering, &(struct mpp_schedule){MPP_SCHEDULE_INTERLEAVED, s, v, k}))
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

/* Ctrl-C, or the time that was given is over: plans of such searches are marked, and may differ from run to run. */
static bool interrupted(const struct twolevel *w)
{
    return mpp_plan_interrupted(w->options);
}

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
    *out = (struct mpp_pipeline_answer){.time_ps = INT64_MAX};
    if (interrupted(w))
        return MPP_LIMIT;         /* what was not looked at is not bounded */
    r->bound = bound > r->bound ? bound : r->bound;
    r->sure = bound > r->sure ? bound : r->sure;
    out->bound_ps = r->bound;
    return r->bound >= upper ? MPP_OK : mpp_pipeline_solve(w->arena, &p, out);
}

static void say(const struct twolevel *w, const struct round *r, const char *what, int64_t ps)
{
    if (w->options->progress && ps < INT64_MAX)
        fprintf(w->options->progress, "%" PRId64 " micro-batches, %d stages, %s of %d: %s %.6g ms (bound %.6g)\n",
                r->schedule.micro_batches, r->schedule.stages, mpp_schedule_name(r->schedule.kind), r->schedule.chunks, what,
                (double)ps * 1e-9, (double)r->bound * 1e-9);
}

/* A plan of LEVEL; the best by the formula so far, if it is. */
static void note(struct twolevel *w, const struct level *level, const struct round *r, const struct mpp_pipeline_answer *a)
{
    if (a->n_stages == 0)
        return;
    mpp_finalists_add(w->finalists, &(struct mpp_finalist){level->layering, level->stages, r->schedule, r->equal, *a, 0, false});
    if (a->time_ps >= w->best.time_ps)
        return;
    w->best = *a;
    w->best_level = *level;
    w->best_round = *r;
}

static enum mpp_status solve_round(struct twolevel *w, struct round *r, bool early)
{
    struct mpp_pipeline_answer a = {0};
    enum mpp_status st = run_round(w, r, w->best.time_ps, early ? EARLY_BUDGET : LATE_BUDGET, &a);
    bool gave_up = mpp_stages_gave_up(level_of(w, &r->schedule)->stages);
    if (interrupted(w)) {         /* programs that were left unsolved prove nothing */
        note(w, level_of(w, &r->schedule), r, &a);
        return MPP_LIMIT;
    }
    r->done = !early || !gave_up;
    r->tried = true;
    w->unsure = w->unsure || (early && gave_up);
    if (gave_up && mpp_stages_unproven(level_of(w, &r->schedule)->stages) < a.bound_ps)
        a.bound_ps = mpp_stages_unproven(level_of(w, &r->schedule)->stages);
    r->bound = a.bound_ps > r->bound ? a.bound_ps : r->bound;
    if (!w->reserve || !mpp_stages_memory_bound(level_of(w, &r->schedule)->stages))
        r->sure = a.bound_ps > r->sure ? a.bound_ps : r->sure;
    if (r->done)
        w->bound = r->sure < w->bound ? r->sure : w->bound;
    bool better = a.n_stages > 0 && a.time_ps < w->best.time_ps;
    say(w, r, better ? "a plan of" : "no better than", better ? a.time_ps : w->best.time_ps);
    note(w, level_of(w, &r->schedule), r, &a);
    return st;
}

/* The first passes look at as many micro-batches as can be, which saves memory, so that plans that fit are soon found; then
 * at pipelines that are mostly full, and at shorter ones. */
static bool promising(const struct twolevel *w, const struct round *r, int pass)
{
    static const int per_stage[EARLY_PASSES] = {INT_MAX, 16};
    int64_t k = r->schedule.micro_batches, wanted = (int64_t)per_stage[pass] * r->schedule.stages, least = INT64_MAX, most = 0;
    for (int i = 0; i < w->n_rounds; i++) {
        int64_t x = w->round[i].schedule.micro_batches;
        most = x > most ? x : most;
        least = x >= wanted && x < least ? x : least;
    }
    return r->schedule.chunks == 1 && k == (least < INT64_MAX ? least : most);
}

/* How many programs may be solved: small clusters should be answered at once. */
static int64_t programs_for(int n_devices, bool quick)
{
    int64_t n = FEWEST_PROGRAMS + (int64_t)PROGRAMS_PER_DEVICE * n_devices;
    int64_t most = n_devices > MANY_DEVICES ? MOST_PROGRAMS / 2 : MOST_PROGRAMS; /* there each has more meshes and choices */
    return quick ? 0 : n < most ? n : most;
}

/* Programs solved, in units of those without memory. */
static int64_t spent(const struct twolevel *w)
{
    int64_t within, more = 0, n = mpp_stages_solved(w->plain.stages, &within);
    n += w->merged.stages == w->plain.stages ? 0 : mpp_stages_solved(w->merged.stages, &more);
    return n + WITHIN_COUNTS * (within + more);
}

static bool enough(const struct twolevel *w)
{
    return spent(w) > (w->best.time_ps < INT64_MAX ? w->programs : w->none_after);
}

/* How far K micro-batches are from the best plan's: the larger over the smaller. */
static double distance(const struct twolevel *w, int64_t k)
{
    double best = (double)w->best_round.schedule.micro_batches, x = (double)k;
    if (w->best.time_ps == INT64_MAX)
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

static bool interrupted_any(const void *w)
{
    return interrupted(w);
}

/* Plans that people would think of: what the best of them takes saves much work. */
static void find_seed(struct twolevel *w)
{
    struct mpp_seeds *seeds = mpp_seeds_new(w->arena, w->diag, w->graph, w->whole, w->merged.layering, w->cluster, &w->inner);
    struct mpp_seed seed;
    for (int i = 0; i < w->n_rounds; i++)
        mpp_seeds_add(seeds, &w->round[i].schedule, w->round[i].bound);
    mpp_seeds_find(seeds, w->best.time_ps, interrupted_any, w, &seed);
    if (seed.answer.n_stages == 0)
        return;
    struct round r = {.schedule = seed.schedule, .equal = true, .counts = {seed.schedule.stages}};
    note(w, &(struct level){w->merged.layering, seed.stages}, &r, &seed.answer);
    say(w, &r, "a seed of", seed.answer.time_ps);
}

/* By how many bytes a device of STAGE of PLAN needs more than there is. */
static enum mpp_status over_of(const struct twolevel *w, const struct mpp_plan *plan, int stage, int64_t *out_over)
{
    int64_t bytes = 0;
    MPP_TRY(w->options->room(w->options->room_context, plan, stage, &bytes));
    *out_over = bytes - w->capacity;
    return MPP_OK;
}

static bool one_stage_allowed(const struct mpp_pins *p)
{
    return p->pp <= 1 && p->interleave <= 1 && p->recompute <= MPP_RECOMPUTE_NONE
           && (p->schedule < 0 || p->schedule == MPP_SCHEDULE_1F1B);
}

/* Integer programs that are written are those of one stage, and so is the plan then. */
static bool dumps(const struct mpp_plan_options *o)
{
    return o->dump_ilp_dir || o->export_iopddl_dir;
}

/* One stage is asked for, and the best plan that keeps all is below what kernels take at least where some run again. */
static bool alone_is_best(struct twolevel *w)
{
    const struct mpp_pins *pins = &w->options->pins;
    struct mpp_arena *scratch = mpp_arena_scratch(w->arena);
    bool best = w->alone && pins->pp == 1;
    int first = w->graph->unfused ? MPP_RECOMPUTE_SELECTIVE : MPP_RECOMPUTE_FULL;
    for (int r = first; best && pins->recompute < 0 && r <= MPP_RECOMPUTE_FULL; r++) {
        struct mpp_graph *g;
        best = mpp_span_extract(scratch, w->diag, w->graph, w->plain.layering, 0, w->plain.layering->n_layers - 1,
                                (enum mpp_recompute)r, &g) == MPP_OK;
        for (int i = 0; i < w->n_rounds && best; i++) {
            int64_t k = w->round[i].schedule.micro_batches;
            best = times_share(whole_work(w, g, k), SLACK * (double)k / w->cluster->n_devices) >= w->alone->objective_ps;
        }
    }
    mpp_arena_free(scratch);
    return best;
}

static enum mpp_status look_alone(struct twolevel *w)
{
    struct mpp_arena *scratch = mpp_arena_scratch(w->arena);
    struct mpp_diag *silent = mpp_diag_in(scratch, NULL);
    struct mpp_plan_options options = *w->options;
    w->best.time_ps = w->bound = INT64_MAX;
    if (!one_stage_allowed(&options.pins) || (w->whole->n_groups > (options.pins.pp == 1 ? LARGE_GROUPS : SMALL_GROUPS) && !dumps(&options)) || options.quick)
        return MPP_OK;
    options.quiet = true;
    options.capacity_bytes = w->capacity;
    enum mpp_status st = MPP_OK;
    int64_t over = 1, bound = INT64_MAX; /* bound: in all the room there is; less room proves nothing more */
    for (int attempt = 0; st == MPP_OK && over > 0 && attempt < MAX_ATTEMPTS; attempt++) {
        st = mpp_plan_search(w->arena, silent, w->whole, w->cluster, &options, &w->alone);
        over = 0;
        if (st == MPP_OK && w->alone->bound_ps < bound)
            bound = w->alone->bound_ps;
        if (st == MPP_OK && options.room) {
            w->alone->stages[0].graph = w->whole;
            MPP_TRY_GOTO(st, done, mpp_plan_derive(w->arena, w->diag, w->graph, w->cluster, w->alone));
            MPP_TRY_GOTO(st, done, over_of(w, w->alone, 0, &over));
        }
        options.capacity_bytes -= over + w->capacity / ROOM_STEP;
        options.export_iopddl_dir = NULL; /* the problems are those within all the room there is */
    }
    if (over > 0)
        w->alone = NULL;
done:
    if (st == MPP_IO && options.dump_ilp_dir)
        mpp_diag_error(w->diag, (struct mpp_loc){0}, "cannot write the integer program to %s", options.dump_ilp_dir);
    else if (st == MPP_IO)
        mpp_diag_error(w->diag, (struct mpp_loc){w->options->export_iopddl_dir, 0}, "cannot write a stage problem there: %s", strerror(errno));
    mpp_arena_free(scratch);
    if (st == MPP_IO || (st != MPP_OK && w->alone))
        return st;                /* else nothing fits, which the others may */
    if (!w->alone)
        return MPP_OK;
    w->one_stage = w->alone;
    w->bound = bound;
    w->best.time_ps = w->alone->objective_ps;
    w->best_round.schedule = (struct mpp_schedule){MPP_SCHEDULE_1F1B, 1, 1, w->alone->micro_batches};
    w->alone->stages[0].graph = w->whole;
    return MPP_OK;
}

static enum mpp_status solve_pass(struct twolevel *w, int pass)
{
    struct round *r;
    while ((r = next_round(w, pass)) != NULL) {
        w->stopped = w->stopped || interrupted(w);
        if (w->stopped || enough(w))
            break;
        enum mpp_status st = solve_round(w, r, pass < EARLY_PASSES);
        w->stopped = st == MPP_LIMIT;
        if (st != MPP_OK && st != MPP_LIMIT)
            return st;
    }
    return MPP_OK;
}

/* Bytes of parameters and the optimiser's state, each once, per device: some device needs as many. */
static int64_t stored_bytes(const struct twolevel *w)
{
    int64_t sum = 0;
    for (mpp_id t = 0; t < w->whole->n_tensors; t++) {
        const struct mpp_gtensor *x = &w->whole->tensors[t];
        if (x->n_dims > 0 && (x->role == MPP_ROLE_PARAM || x->role == MPP_ROLE_STATE))
            sum += mpp_tensor_bytes(x);
    }
    return sum / w->cluster->n_devices;
}

/* What comes nearest to fitting, where nothing does: with most micro-batches and stages of equally many devices. */
static enum mpp_status find_nearest(struct twolevel *w)
{
    enum mpp_status st = MPP_OK;
    for (int i = 0; i < w->n_rounds && st == MPP_OK; i++) {
        struct round r = w->round[i];
        r.equal = true;
        if (w->cluster->n_devices % r.schedule.stages == 0 && promising(w, &r, 0))
            st = interrupted(w) ? MPP_LIMIT : solve_round(w, &r, true);
    }
    w->stopped = w->stopped || st == MPP_LIMIT;
    return w->stopped ? MPP_OK : st;
}

/* What came nearest to fitting. */
static const struct mpp_stages_nearest *nearest(const struct twolevel *w)
{
    const struct mpp_stages_nearest *a = mpp_stages_nearest(w->plain.stages), *b = mpp_stages_nearest(w->merged.stages);
    return a->bytes == 0 || (b->bytes > 0 && b->bytes < a->bytes) ? b : a;
}

/* Pins of stages and schedules say nothing of how an op is split. Others may want more samples than early rounds have: a mesh
 * (tp= leaves a dp that must divide them), ZeRO, which takes a data axis, micro_batch=, whose mesh is not known yet. */
static bool splits_are_told(const struct mpp_pins *p)
{
    return p->micro_batch > 0 || p->dp > 0 || p->tp > 0 || p->mesh.n_axes > 0 || p->zero >= 0 || p->sequence_parallel >= 0
           || p->vocab_parallel >= 0 || p->n_tensors > 0;
}

/* With as many micro-batches as can be, and fewer, no number of stages has a plan that fits: nor has any other round, as far as
 * more in flight or larger micro-batches take more memory. Small models are not left at that, nor what no program was made of. */
static bool nothing_fits(const struct twolevel *w, bool any)
{
    return any && w->best.time_ps == INT64_MAX && !w->unsure && !w->exact && nearest(w)->bytes > 0 && !splits_are_told(&w->options->pins);
}

static enum mpp_status solve_rounds(struct twolevel *w)
{
    bool any = false;
    for (int i = 0; i < w->n_rounds; i++)
        any = any || promising(w, &w->round[i], 0);
    for (int pass = 0; pass <= (w->options->glance && any ? EARLY_PASSES - 1 : EARLY_PASSES); pass++) {
        if (pass == EARLY_PASSES && nothing_fits(w, any))
            break;
        if (pass == EARLY_PASSES && !w->options->quick && next_round(w, pass) && !interrupted(w))
            find_seed(w);
        if (pass == EARLY_PASSES && w->options->quick)
            w->none_after = spent(w) + programs_for(w->cluster->n_devices, false);
        MPP_TRY(solve_pass(w, pass));
    }
    w->bound = w->left_out_ps < w->bound ? w->left_out_ps : w->bound;
    for (int i = 0; i < w->n_rounds; i++)
        if (!w->round[i].done && w->round[i].sure < w->bound)
            w->bound = w->round[i].sure;
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

/* R again, with every program of its stages solved as it is. UPPER_PS: a plan takes about that. */
static enum mpp_status solve_round_exactly(struct twolevel *w, struct round *r, int64_t upper_ps, bool *out_all)
{
    struct mpp_pipeline_answer a;
    struct mpp_stages *stages = level_of(w, &r->schedule)->stages;
    int64_t least = w->best.time_ps < upper_ps ? w->best.time_ps : upper_ps;
    int64_t upper = least == INT64_MAX ? INT64_MAX : least + least / FINALISTS_WITHIN;
    struct mpp_pipeline_problem p = round_problem(w, r, upper);
    p.options = mpp_stages_exact_options;
    p.alike = mpp_stages_exact_alike;
    mpp_stages_set(stages, &r->schedule, r->equal, upper, INT_MAX);
    enum mpp_status st = mpp_pipeline_solve(w->arena, &p, &a);
    if (a.n_stages > 0 && a.time_ps < w->best.time_ps)
        say(w, r, "a plan of", a.time_ps);
    note(w, level_of(w, &r->schedule), r, &a);
    if (st == MPP_OK && r->schedule.stages > 1 && w->best.n_stages > 0)
        mpp_finalists_look_around(w->finalists, &p, &(struct mpp_finalist){
            level_of(w, &r->schedule)->layering, stages, r->schedule, r->equal, {0}, 0, false});
    *out_all = *out_all && !mpp_stages_gave_up(stages);
    return st;
}

/* All rounds again, those of one number of micro-batches after each other. */
static enum mpp_status solve_all_exactly(struct twolevel *w, int64_t upper_ps, bool *out_all)
{
    for (int i = 0; i < w->n_rounds; i++)
        w->round[i].done = false;
    for (int i = 0; i < w->n_rounds; i++)
        for (int j = i; j < w->n_rounds; j++) {
            struct round *r = &w->round[j];
            const struct mpp_schedule *a = &w->round[i].schedule, *b = &r->schedule;
            if (r->done || a->micro_batches != b->micro_batches || a->chunks != b->chunks)
                continue;
            r->done = true;
            enum mpp_status st = interrupted(w) ? MPP_LIMIT : solve_round_exactly(w, r, upper_ps, out_all);
            if (st != MPP_OK)
                return st;
        }
    return MPP_OK;
}

/* What folded programs gave, exact but for sums of scalars, is a bound, and the answer if this is stopped or gives up. */
static enum mpp_status solve_exactly(struct twolevel *w)
{
    const struct twolevel *before = mpp_arena_memdup(w->arena, w, sizeof *w);
    bool all = true;
    w->best = (struct mpp_pipeline_answer){.time_ps = INT64_MAX};
    w->finalists = mpp_finalists_new(w->arena);
    enum mpp_status st = solve_all_exactly(w, before->best.time_ps, &all);
    w->stopped = st == MPP_LIMIT || interrupted(w);
    if (w->stopped || w->best.n_stages == 0 || (!all && (double)before->best.time_ps * SCALARS < (double)w->best.time_ps)) {
        w->alone = before->alone;
        w->best = before->best;
        w->best_level = before->best_level;
        w->best_round = before->best_round;
        w->finalists = before->finalists;
    } else {
        if (all || w->bound > w->best.time_ps)
            w->bound = w->best.time_ps;
        if (w->alone && w->best.time_ps <= w->alone->objective_ps)
            w->alone = NULL;      /* plans of one stage are among the others */
    }
    return w->stopped ? MPP_OK : st;
}

/* What came nearest to fitting, for the message. */
static struct mpp_search_result as_failed(const struct twolevel *w, const struct mpp_stages_nearest *x)
{
    struct mpp_search_result r = {.least_bytes = x->bytes, .at_least = x->memory};
    const char *const *name = w->plain.layering->name;
    if (x->schedule.chunks > 1)
        name = w->merged.layering->name;
    r.at_least.arena_bytes = x->bytes;
    if (x->stage.n_stages > 1)
        r.where = mpp_arena_printf(w->arena, "stage %d of %d: layers %s to %s on %d device%s, %" PRId64 " micro-batches, %" PRId64
                                   " in flight, recompute %s", x->stage.stage, x->stage.n_stages, name[x->stage.first_layer],
                                   name[x->stage.last_layer], x->stage.n_devices, x->stage.n_devices == 1 ? "" : "s",
                                   x->schedule.micro_batches, x->stage.in_flight, mpp_plan_recompute_word(x->recompute));
    else
        r.where = mpp_arena_printf(w->arena, "one stage, %" PRId64 " micro-batches, recompute %s", x->schedule.micro_batches,
                                   mpp_plan_recompute_word(x->recompute));
    for (int i = 0; i < x->n_largest && i < MPP_SEARCH_LARGEST; i++)
        if (x->largest[i].bytes > 0)
            r.largest[r.n_largest++] = (struct mpp_search_large){x->largest[i].name, x->largest[i].bytes};
    return r;
}

/* ---- the plan ---- */

/* Of a step of the best plan, whose stages may have changed. */
static int64_t time_of(const struct twolevel *w)
{
    return mpp_pipeline_time(&w->best_round.schedule, w->best.stage, w->best.n_stages);
}

static enum mpp_status make_plan(struct twolevel *w, struct mpp_plan **out)
{
    const struct level *level = &w->best_level;
    const struct mpp_schedule *schedule = &w->best_round.schedule;
    struct mpp_plan *plan = mpp_arena_array(w->arena, 1, struct mpp_plan);
    int n = w->best.n_stages;
    struct mpp_stage *stages = mpp_arena_array(w->arena, n, struct mpp_stage);
    mpp_stages_set(level->stages, schedule, w->best_round.equal, INT64_MAX, INT_MAX);
    for (int i = 0; i < n; i++) {
        enum mpp_status st = mpp_stages_decide(level->stages, &w->best.stage[i], &stages[i]);
        if (st == MPP_LIMIT)
            mpp_diag_error(w->diag, (struct mpp_loc){0}, "internal: stage %d of the best plan cannot be rebuilt", i);
        MPP_TRY(st);
        mpp_stage_name_axes(stages[i].graph, &stages[i]);
    }
    struct mpp_schedule interleaved = *schedule;
    interleaved.stages = n;
    for (int i = 0; i < n && schedule->chunks > 1; i++)
        MPP_TRY(mpp_interleave_stage(w->arena, w->diag, w->graph, level->layering, &interleaved, i, &stages[i]));
    *plan = (struct mpp_plan){
        .version = MPP_PLAN_VERSION, .batch = w->graph->global_batch, .micro_batches = schedule->micro_batches,
        .schedule = n == 1 ? "accumulate" : mpp_schedule_name(schedule->kind),
        .pipeline = *schedule, .layering = level->layering, .n_stages = n, .stages = stages,
        .solver = stages[0].solver, .objective_ps = time_of(w),
        .pins = mpp_pins_text(w->arena, &w->options->pins)};
    plan->n_others = mpp_finalists_others(w->finalists, mpp_finalists_find(w->finalists, w->best.stage), w->arena, &plan->others);
    plan->pipeline.stages = n;
    *out = plan;
    return MPP_OK;
}

/* The stages of the best plan that need more than there is, by OVER, again in less room; false: one of them has no plan. */
static bool shrink_stages(struct twolevel *w, const int64_t *over, int64_t *room)
{
    for (int i = 0; i < w->best.n_stages; i++) {
        if (over[i] <= 0)
            continue;
        room[i] -= over[i] + w->capacity / ROOM_STEP;
        if (room[i] <= 0 || !mpp_stages_shrink(w->best_level.stages, &w->best.stage[i], room[i]))
            return false;
    }
    return true;
}

/* The rounds that may be better than the best plan again, with less room for all stages. Bounds stay: they hold in all the
 * room there is. */
static enum mpp_status search_again(struct twolevel *w, int64_t room)
{
    int64_t bound = w->bound;
    mpp_stages_set_capacity(w->plain.stages, room);
    mpp_stages_set_capacity(w->merged.stages, room);
    w->programs = spent(w) + AGAIN_PROGRAMS;
    w->none_after = w->options->quick ? w->programs : INT64_MAX;
    for (int i = 0; i < w->n_rounds; i++)
        w->round[i].done = false;
    enum mpp_status st = solve_pass(w, EARLY_PASSES);
    w->bound = bound;
    return st;
}

/* Where the best plan's memory, once laid out, is too large: with less room for the stages that need more, or, if that
 * makes it slower, for all. If nothing helps it stays too large. ATTEMPTS: so often; 1: only look. */
static enum mpp_status fit_stages(struct twolevel *w, int attempts, struct mpp_plan **plan, bool *out_fits)
{
    *out_fits = false;
    int most = w->plain.layering->n_layers;
    int64_t *room = mpp_arena_array(w->arena, most, int64_t), *over = mpp_arena_array(w->arena, most, int64_t), all = w->capacity;
    for (int i = 0; i < most; i++)
        room[i] = w->capacity;
    for (int attempt = 0; attempt < attempts; attempt++) {
        int n = w->best.n_stages;
        int64_t worst = 0, before = time_of(w);
        MPP_TRY(mpp_plan_derive(w->arena, w->diag, w->graph, w->cluster, *plan));
        for (int i = 0; i < n; i++) {
            MPP_TRY(over_of(w, *plan, i, &over[i]));
            worst = over[i] > worst ? over[i] : worst;
        }
        *out_fits = worst == 0;
        if (worst == 0 || attempt == attempts - 1)
            return MPP_OK;
        const struct mpp_pipeline_stage *stages = w->best.stage;
        bool shrunk = shrink_stages(w, over, room);
        if (shrunk)
            mpp_finalists_change(w->finalists, stages, time_of(w));
        else
            mpp_finalists_drop(w->finalists, stages);
        if (!shrunk || (double)time_of(w) > LITTLE_SLOWER * (double)before) {
            all -= worst + w->capacity / ROOM_STEP;
            w->best.time_ps = shrunk ? time_of(w) : INT64_MAX;
            if (all > 0)
                MPP_TRY(search_again(w, all));
            for (int i = 0; i < most && w->best.stage != stages; i++)
                room[i] = all;
        }
        if (!shrunk && w->best.stage == stages)
            return MPP_OK;
        MPP_TRY(make_plan(w, plan));
    }
    return MPP_OK;
}

/* What the schedules really take decides. */
static void choose(struct twolevel *w)
{
    const struct mpp_finalist *f = mpp_finalists_best(w->finalists);
    if (!f || (w->alone && w->alone->objective_ps <= f->simulated_ps))
        return;
    w->alone = NULL;
    w->best = f->answer;
    w->best_level = (struct level){f->layering, f->stages};
    w->best_round = (struct round){.schedule = f->schedule, .equal = f->equal, .counts = {f->schedule.stages}};
}

/* The best of what was found whose memory fits once it is laid out, with so many ATTEMPTS to make it fit. */
static enum mpp_status take(struct twolevel *w, int attempts, struct mpp_plan **out, bool *out_fits)
{
    *out_fits = true;
    for (int spare = 0; spare == 0 || w->alone || mpp_finalists_best(w->finalists); spare++) {
        struct mpp_plan *alone = w->alone;
        choose(w);
        mpp_stages_go_on(w->best_level.stages); /* what was found is finished, stopped or not */
        const struct mpp_pipeline_stage *chosen = w->best.stage;
        if (!w->alone)
            MPP_TRY(make_plan(w, out));
        if (!w->alone && w->options->room)
            MPP_TRY(fit_stages(w, attempts, out, out_fits));
        const struct mpp_finalist *now = mpp_finalists_find(w->finalists, w->best.stage); /* perhaps in less room */
        if (w->alone || (alone && *out_fits && now && alone->objective_ps <= now->simulated_ps)) {
            *out = alone;
            *out_fits = true;
            alone->n_others = mpp_finalists_others(w->finalists, NULL, w->arena, &alone->others);
            return MPP_OK;
        }
        if (*out_fits || spare == MOST_SPARE)
            return MPP_OK;
        mpp_finalists_drop(w->finalists, chosen);
        mpp_finalists_drop(w->finalists, w->best.stage);
        w->alone = w->one_stage;
    }
    return MPP_OK;
}

static bool is_too_long(const struct twolevel *w, int64_t step_ps)
{
    int64_t days = step_ps / PS_PER_DAY;
    if (days > 0)
        mpp_diag_error(w->diag, (struct mpp_loc){0}, "a step takes more than %" PRId64 " day%s on %d x %s, which is not planned; give more "
                       "--gpus, a smaller --batch or a faster --cluster", days, days == 1 ? "" : "s", w->cluster->n_devices,
                       w->cluster->device.name);
    return days > 0;
}

/* The best of what was found, and how good it is. */
static enum mpp_status finish(struct twolevel *w, struct mpp_plan **out)
{
    bool fits = false;
    if (w->stopped)               /* there is no time to search again: what fits as it is, if anything does */
        MPP_TRY(take(w, 1, out, &fits));
    if (!fits)
        mpp_finalists_restore(w->finalists);
    if (!fits)
        MPP_TRY(take(w, MAX_ATTEMPTS, out, &fits));
    struct mpp_plan *p = *out;
    p->bound_ps = w->bound < p->objective_ps ? w->bound : p->objective_ps;
    p->gap = p->objective_ps > 0 ? (double)(p->objective_ps - p->bound_ps) / (double)p->objective_ps : 0;
    if (w->stopped)
        p->stopped = mpp_plan_stopped_by(w->options);
    return !w->options->quiet && is_too_long(w, p->objective_ps) ? MPP_INVALID : MPP_OK;
}

static void note_least(const struct mpp_plan_options *options, int64_t bytes)
{
    if (options->least_bytes && bytes > 0)
        *options->least_bytes = bytes;
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
    *w = (struct twolevel){.arena = arena, .diag = diag, .graph = graph, .cluster = cluster, .options = options, .left_out_ps = INT64_MAX,
                           .none_after = INT64_MAX, .programs = programs_for(cluster->n_devices, options->quick)};
    w->capacity = options->capacity_bytes > 0 ? options->capacity_bytes : mpp_device_usable_bytes(&cluster->device);
    w->finalists = mpp_finalists_new(arena);
    w->plain.layering = layering;
    MPP_TRY(mpp_span_extract(arena, diag, graph, layering, 0, layering->n_layers - 1, MPP_RECOMPUTE_NONE, &w->whole));
    w->merged.layering = mpp_layering_merge_ends(arena, graph, layering);
    list_sizes(w);
    list_rounds(w);
    if (w->n_counts == 0 || w->n_rounds == 0) {
        mpp_refuse_rounds(diag, graph, w->merged.layering, cluster->n_devices, &options->pins, w->counts);
        return MPP_INVALID;
    }
    if (!options->quiet && is_too_long(w, whole_work(w, w->whole, 1) / cluster->n_devices))
        return MPP_INVALID;
    w->exact = small(w);
    w->inner = *options;
    w->reserve = w->whole->n_groups > LARGE_GROUPS && options->room && !options->whole_room;
    w->inner.capacity_bytes = w->capacity - (w->reserve ? w->capacity / RESERVE : 0);
    w->plain.stages = mpp_stages_new(arena, diag, graph, layering, cluster, &w->inner);
    w->merged.stages = w->merged.layering == layering ? w->plain.stages
                       : mpp_stages_new(arena, diag, graph, w->merged.layering, cluster, &w->inner);
    if (w->exact) {
        mpp_stages_try_both_orders(w->plain.stages);
        mpp_stages_try_both_orders(w->merged.stages);
    }
    MPP_TRY(look_alone(w));
    bool none = stored_bytes(w) > w->capacity; /* nothing fits, whatever is done */
    if (none && options->quiet) {
        note_least(options, stored_bytes(w));
        if (options->too_small)
            *options->too_small = true;
        return MPP_INFEASIBLE;
    }
    if (none)
        MPP_TRY(find_nearest(w));
    w->reserve = w->reserve && !none;
    if (!w->stopped && (!w->alone || !dumps(options)) && (!none || nearest(w)->bytes == 0) && (w->exact || !alone_is_best(w)))
        MPP_TRY(solve_rounds(w));
    if (!w->stopped && !none && w->exact && (!w->alone || !dumps(options)))
        MPP_TRY(solve_exactly(w));
    if (w->best.time_ps < INT64_MAX)
        return finish(w, out);
    if (w->stopped || interrupted(w)) {
        mpp_diag_error(diag, (struct mpp_loc){0}, "the search was stopped before it found a plan");
        return MPP_LIMIT;
    }
    if (w->reserve) {             /* perhaps all the memory is enough */
        struct mpp_plan_options again = *options;
        again.whole_room = true;
        return mpp_plan_pipeline(arena, diag, graph, cluster, &again, out);
    }
    if (options->quiet && (nearest(w)->bytes > 0 || !options->least_bytes)) {
        note_least(options, nearest(w)->bytes);
        return MPP_INFEASIBLE;
    }
    struct mpp_search_result failed = as_failed(w, nearest(w));
    if (failed.least_bytes == 0) {
        mpp_diag_error(diag, (struct mpp_loc){0}, "no plan does what --fix asks: no mesh of the pinned sizes runs all ops");
        return MPP_INVALID;
    }
    if (none && failed.least_bytes > stored_bytes(w))
        failed.least_bytes = stored_bytes(w); /* few ways were looked at */
    mpp_suggest(diag, graph, cluster, options, &failed);
    return MPP_INFEASIBLE;
}
