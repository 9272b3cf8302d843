/* search.c - the best plan over meshes and micro-batch counts.
 *
 * Per micro-batch count every candidate mesh is solved quickly first: without memory, which bounds it. Where that
 * optimum fits it is the answer; else the mesh is solved within memory, best bound first, as long as its bound is
 * below the best plan so far. Counts rise through the divisors of the batch: more
 * micro-batches never make a step cheaper by themselves (kernels get smaller, weights are gathered more often),
 * they only save memory. So the search stops at the first count whose best plan memory does not bind, or, once
 * a plan is found, at the first count that brings no better one. All that is to a gap where programs are large. Then
 * the plan is proven, or made, optimal over all of them, as far as a limit on work allows (prove). */
#include "planner/search.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ir/op.h"

/* Nodes: smaller problems are solved to proven optimality, larger ones to a gap, huge ones within a work limit too. */
enum { SMALL_PROBLEM = 600, LARGE_PROBLEM = 2000 };
static const double LARGE_GAP = 0.008, UNIFORM_GAP = 0.0095;
static const int64_t LARGE_WORK = 600000000, PROOF_WORK = 1000000000; /* of one solve; of the proof, over all of them */
/* Three axes give up to 125 choices a node. With tables of so many entries most programs are still eliminated exactly
 * (gpt: 125 million, 0.6 GiB, 2 s). */
static const int64_t LARGE_TABLE = INT64_C(1) << 27;

struct trial {
    struct mpp_arena *arena;
    struct mpp_candidate c;
    struct mpp_stage_problem *p;
    int32_t *choice;
    struct mpp_solver_info info;
    bool done, fits;              /* done: nothing more to learn */
    int64_t bound;
};

/* A mesh and count whose optimum is not known: nothing there costs less than BOUND. */
struct open {
    struct mpp_candidate c;
    int64_t micro_batches, bound;
    bool priced, given_up;
};

struct search {
    struct mpp_arena *arena;
    struct mpp_graph *g;
    const struct mpp_cluster *cluster;
    const struct mpp_plan_options *opt;
    int64_t capacity;
    struct mpp_candidate *candidate;
    int n_candidates;
    struct mpp_search_result *out;
    struct open *open;
    size_t n_open, open_cap;
    int n_exported;
    enum mpp_status exported;
    struct {
        int64_t bytes, micro_batches;
        struct mpp_candidate c;
    } least;                      /* the problem that came nearest to fitting; bytes 0: none was solved */
    bool unanswered;              /* a problem was given up at its work limit with no plan known */
    bool limited, bound_by_memory; /* of the best plan: memory kept it from being cheaper */
};

static struct mpp_stage_site site_of(const struct mpp_plan_options *o)
{
    struct mpp_stage_site site = MPP_STAGE_ALONE;
    site.hidden = o->hidden;
    return site;
}

static bool homogeneous(const struct mpp_cluster *c)
{
    return c->n_nodes == 1 && c->kind != MPP_LINK_MESH;
}

/* ---- memory that no mesh can save ---- */

static void add_live(int64_t *change, int first, int last, int64_t bytes)
{
    change[first] += bytes;
    change[last + 1] -= bytes;
}

/* Bytes per device at the busiest time if every tensor were split over all devices: no plan needs less. By kind in
 * *OUT. */
static int64_t least_bytes(const struct mpp_graph *g, int n_devices, struct mpp_memory *out)
{
    *out = (struct mpp_memory){0};
    struct mpp_arena *arena = mpp_arena_scratch(g->arena);
    int64_t *change = mpp_arena_array(arena, g->n_groups + 1, int64_t), live = 0, most = 0;
    int *first = mpp_arena_array(arena, g->n_tensors, int), *last = mpp_arena_array(arena, g->n_tensors, int);
    for (mpp_id t = 0; t < g->n_tensors; t++)
        first[t] = -1;            /* not stored: within a fused group */
    for (int i = 0; i < g->n_groups; i++) {
        for (int o = 0; o < g->groups[i].n_out; o++)
            first[g->groups[i].out[o]] = last[g->groups[i].out[o]] = i;
        for (int o = 0; o < g->groups[i].n_in; o++)
            if (g->groups[i].in[o] >= 0)
                last[g->groups[i].in[o]] = i;
    }
    for (mpp_id t = 0; t < g->n_tensors && g->n_groups > 0; t++) {
        const struct mpp_gtensor *x = &g->tensors[t];
        int64_t bytes = x->n_dims > 0 ? mpp_tensor_bytes(x) / n_devices : 0; /* scalars are not in the program */
        *(x->role == MPP_ROLE_PARAM ? &out->parameters : x->role == MPP_ROLE_STATE ? &out->optimizer
          : x->role == MPP_ROLE_INPUT ? &out->inputs : x->role == MPP_ROLE_ACCUM ? &out->gradients
          : &out->activations) += x->role == MPP_ROLE_VALUE ? 0 : bytes;
        if (x->role != MPP_ROLE_VALUE)
            add_live(change, 0, g->n_groups - 1, bytes);
        else if (first[t] >= 0 && x->updates < 0)
            add_live(change, first[t], last[t], bytes);
    }
    for (int i = 0; i < g->n_groups; i++) {
        live += change[i];
        most = live > most ? live : most;
    }
    mpp_arena_free(arena);
    out->activations = most - out->parameters - out->optimizer - out->inputs - out->gradients;
    out->arena_bytes = most;
    return most;
}

/* ---- one mesh ---- */

static enum mpp_status solve(const struct search *s, struct trial *t, int64_t capacity, struct mpp_solver_settings set)
{
    struct mpp_solver *solver;
    set.interrupt = s->opt->interrupt;
    if (t->p->solver.n_nodes > SMALL_PROBLEM)
        set.gap = LARGE_GAP;
    if (t->p->solver.n_nodes > LARGE_PROBLEM)
        set.work_limit = LARGE_WORK;
    t->p->solver.capacity_bytes = capacity;
    MPP_TRY(mpp_solver_setup(&t->p->solver, &set, &solver));
    enum mpp_status st = mpp_solver_solve(solver, t->choice, &t->info);
    mpp_solver_free(solver);
    if (st == MPP_OK && set.gap > 0 && !set.quick)
        mpp_stage_make_uniform(t->p, UNIFORM_GAP, t->choice, &t->info);
    return st;
}

static void say(const struct search *s, const struct trial *t, int64_t micro_batches, const char *what)
{
    if (!s->opt->progress)
        return;
    fprintf(s->opt->progress, "mesh %d", t->c.mesh.size[0]);
    for (int a = 1; a < t->c.mesh.n_axes; a++)
        fprintf(s->opt->progress, "x%d", t->c.mesh.size[a]);
    fprintf(s->opt->progress, ", %" PRId64 " micro-batch%s: %s", micro_batches, micro_batches > 1 ? "es" : "", what);
    if (t->info.objective > 0)
        fprintf(s->opt->progress, ", %.6g ms, %.1f MiB", (double)t->info.objective * 1e-9,
                (double)t->info.peak_bytes / 1048576.0);
    fprintf(s->opt->progress, "\n");
}

static void keep(struct search *s, const struct trial *t, int64_t micro_batches, bool bound_by_memory)
{
    struct mpp_search_result *r = s->out;
    if (r->found && r->objective <= t->info.objective)
        return;
    r->found = true;
    r->candidate = t->c;
    r->micro_batches = micro_batches;
    r->info = t->info;
    r->objective = t->info.objective;
    s->bound_by_memory = bound_by_memory;
    mpp_stage_decide(t->p, t->choice, &r->decided);
}

static void note_infeasible(struct search *s, struct trial *t, int64_t micro_batches)
{
    t->done = true;
    t->bound = INT64_MAX;
    say(s, t, micro_batches, "does not fit");
    if (t->info.least_peak_bytes <= s->capacity) {
        if (!s->out->reason)
            s->out->reason = "the pins leave no way to bring some tensor from where it is made to where it is used";
    } else if (s->least.bytes == 0 || t->info.least_peak_bytes < s->least.bytes) {
        s->least.bytes = t->info.least_peak_bytes;
        s->least.c = t->c;
        s->least.micro_batches = micro_batches;
    }
}

/* The mesh's program as a file, where that is asked for. */
static void export_problem(struct search *s, struct trial *t, int64_t micro_batches)
{
    if (!s->opt->export_iopddl_dir || s->exported != MPP_OK)
        return;
    const char *name = mpp_arena_printf(t->arena, "%03d-mesh%d", ++s->n_exported, t->c.mesh.size[0]);
    for (int a = 1; a < t->c.mesh.n_axes; a++)
        name = mpp_arena_printf(t->arena, "%sx%d", name, t->c.mesh.size[a]);
    s->exported = mpp_stage_export(t->p, s->capacity, s->opt->export_iopddl_dir,
                                   mpp_arena_printf(t->arena, "%s-micro%" PRId64, name, micro_batches));
}

/* The mesh's bound without memory; its optimum where that fits. */
static void try_quick(struct search *s, struct trial *t, int64_t micro_batches)
{
    struct mpp_solver_settings set = mpp_solver_defaults();
    struct mpp_pin_rules *rules;
    const char *reason = NULL;
    t->done = true;
    t->bound = INT64_MAX;
    if (!mpp_pins_resolve(t->arena, s->g, &t->c, &s->opt->pins, &rules, &reason)
        || !mpp_stage_problem_build(t->arena, s->cluster, rules, site_of(s->opt), s->capacity, &t->p, &reason)) {
        if (!s->out->reason)
            s->out->reason = mpp_arena_strdup(s->arena, reason);
        return;
    }
    export_problem(s, t, micro_batches);
    t->choice = mpp_arena_array(t->arena, t->p->solver.n_nodes, int32_t);
    set.quick = true;
    if (t->c.mesh.n_axes > 2)
        set.table_limit = LARGE_TABLE;
    enum mpp_status st = solve(s, t, s->capacity, set);
    s->out->tried++;
    if (st == MPP_INFEASIBLE) {
        note_infeasible(s, t, micro_batches);
        return;
    }
    t->bound = t->info.bound;
    t->done = st == MPP_OK && t->info.status == MPP_SOLVER_OPTIMAL;
    say(s, t, micro_batches, t->done ? "fits" : "bounded");
    if (st == MPP_OK)
        keep(s, t, micro_batches, !t->done);
}

/* The mesh within memory. */
static void try_within(struct search *s, struct trial *t, int64_t micro_batches)
{
    struct mpp_solver_settings set = mpp_solver_defaults();
    set.upper_bound = s->out->found ? s->out->objective : 0;
    enum mpp_status st = solve(s, t, s->capacity, set);
    s->out->tried++;
    if (st == MPP_INFEASIBLE) {
        note_infeasible(s, t, micro_batches);
        return;
    }
    t->done = true;
    t->bound = t->info.bound > t->bound ? t->info.bound : t->bound;
    say(s, t, micro_batches, st == MPP_OK ? "within memory" : "no better");
    if (st == MPP_OK)
        keep(s, t, micro_batches, true);
    else
        s->unanswered = s->unanswered || !s->out->found;
}

static void note_open(struct search *s, const struct trial *t, int64_t micro_batches)
{
    s->open = mpp_arena_grow(s->arena, s->open, &s->open_cap, s->n_open + 1, sizeof *s->open);
    s->open[s->n_open++] = (struct open){t->c, micro_batches, t->bound, false, false};
}

/* ---- proof ---- */

/* The optimum of one mesh and count, if that is below the best plan; what is learnt about its bound. Prices come first: when
 * these show that nothing costs less than ENOUGH (0: go on all the same), the rest waits. */
static void settle(struct search *s, struct open *o, int64_t enough, int64_t *work)
{
    struct trial t = {.arena = mpp_arena_scratch(s->arena), .c = o->c};
    struct mpp_solver_settings set = mpp_solver_defaults();
    struct mpp_solver *solver;
    struct mpp_pin_rules *rules;
    const char *reason;
    mpp_graph_set_batch(s->g, s->g->global_batch / o->micro_batches);
    o->given_up = o->priced;
    o->priced = true;
    if (mpp_pins_resolve(t.arena, s->g, &t.c, &s->opt->pins, &rules, &reason)
        && mpp_stage_problem_build(t.arena, s->cluster, rules, site_of(s->opt), s->capacity, &t.p, &reason)) {
        t.choice = mpp_arena_array(t.arena, t.p->solver.n_nodes, int32_t);
        t.p->solver.capacity_bytes = s->capacity;
        set.interrupt = s->opt->interrupt;
        set.upper_bound = s->out->objective;
        set.work_limit = *work;
        set.enough = enough;
        if (t.c.mesh.n_axes > 2)
            set.table_limit = LARGE_TABLE;
        enum mpp_status st = mpp_solver_setup(&t.p->solver, &set, &solver);
        if (st == MPP_OK) {
            st = mpp_solver_solve(solver, t.choice, &t.info);
            mpp_solver_free(solver);
            s->out->tried++;
            *work -= t.info.work;
            o->given_up |= enough == 0 || t.info.bound <= enough;
            o->bound = st == MPP_INFEASIBLE ? s->out->objective : t.info.bound > o->bound ? t.info.bound : o->bound;
            say(s, &t, o->micro_batches, st == MPP_OK && t.info.status == MPP_SOLVER_OPTIMAL ? "optimal"
                                         : o->bound >= s->out->objective ? "not better" : "not proven");
            if (st == MPP_OK)
                keep(s, &t, o->micro_batches, s->bound_by_memory);
        }
    }
    mpp_arena_free(t.arena);
}

/* Until nothing that was searched can be cheaper than the best plan, or the work is spent. */
static void prove(struct search *s)
{
    int64_t work = PROOF_WORK;
    while (s->out->found && work > 0 && !s->limited && !mpp_plan_interrupted(s->opt)) {
        struct open *next = NULL;
        for (size_t i = 0; i < s->n_open; i++)
            if (!s->open[i].given_up && s->open[i].bound < s->out->objective && (!next || s->open[i].bound < next->bound))
                next = &s->open[i];
        if (!next)
            break;
        int64_t enough = s->out->objective;
        for (size_t i = 0; i < s->n_open; i++)
            if (&s->open[i] != next && !s->open[i].given_up && s->open[i].bound < enough)
                enough = s->open[i].bound;
        settle(s, next, next->priced ? 0 : enough, &work);
    }
    for (size_t i = 0; i < s->n_open; i++)
        s->out->bound = s->open[i].bound < s->out->bound ? s->open[i].bound : s->out->bound;
}

/* ---- all meshes at one micro-batch count ---- */

static void try_count(struct search *s, int64_t micro_batches, int64_t micro_batch)
{
    struct trial *trial = mpp_arena_array(s->arena, s->n_candidates, struct trial);
    bool stop = false;
    for (int i = 0; i < s->n_candidates && !stop; i++) {
        struct trial *t = &trial[i];
        int dp = s->candidate[i].data_axis >= 0 ? s->candidate[i].mesh.size[s->candidate[i].data_axis] : 1;
        t->c = s->candidate[i];
        t->done = true;
        t->bound = INT64_MAX;
        if (micro_batch > 0 && micro_batches * micro_batch * dp != s->g->global_batch)
            continue;
        t->arena = mpp_arena_scratch(s->arena);
        try_quick(s, t, micro_batches);
        stop = mpp_plan_interrupted(s->opt);
    }
    for (;;) {
        struct trial *next = NULL;
        for (int i = 0; i < s->n_candidates; i++)
            if (!trial[i].done && (!next || trial[i].bound < next->bound))
                next = &trial[i];
        if (!next || stop || (s->out->found && next->bound >= s->out->objective))
            break;
        try_within(s, next, micro_batches);
        stop = mpp_plan_interrupted(s->opt);
    }
    for (int i = 0; i < s->n_candidates; i++) {
        if (trial[i].bound < INT64_MAX)
            note_open(s, &trial[i], micro_batches);
        mpp_arena_free(trial[i].arena);
    }
    s->limited = s->limited || stop;
}

/* The micro-batch counts that are left, ascending: divisors below the batch's root, then their counterparts. */
static int counts_of(const struct search *s, int64_t *out, int cap)
{
    int64_t batch = s->g->global_batch, k = 1;
    int n = 0;
    for (; k <= batch / k && n < cap; k++)
        if (mpp_search_count_allowed(s->g, &s->opt->pins, k))
            out[n++] = k;
    for (k--; k >= 1 && n < cap; k--)
        if (batch % k == 0 && batch / k > k && mpp_search_count_allowed(s->g, &s->opt->pins, batch / k))
            out[n++] = batch / k;
    return n;
}

/* What fills the memory of the problem that came nearest to fitting. */
static void look_at_least(struct search *s)
{
    struct trial t = {.arena = mpp_arena_scratch(s->arena), .c = s->least.c};
    struct mpp_pin_rules *rules;
    const char *reason;
    if (s->out->least_bytes == 0 || s->least.bytes < s->out->least_bytes)
        s->out->least_bytes = s->least.bytes;
    mpp_graph_set_batch(s->g, s->g->global_batch / s->least.micro_batches);
    if (mpp_pins_resolve(t.arena, s->g, &t.c, &s->opt->pins, &rules, &reason)
        && mpp_stage_problem_build(t.arena, s->cluster, rules, site_of(s->opt), INT64_MAX, &t.p, &reason)) {
        t.choice = mpp_arena_array(t.arena, t.p->solver.n_nodes, int32_t);
        if (solve(s, &t, s->least.bytes + s->least.bytes / 20, mpp_solver_defaults()) == MPP_OK)
            mpp_stage_bytes_at(t.p, t.choice, t.info.peak_time, &s->out->at_least);
    }
    mpp_arena_free(t.arena);
}

enum mpp_status mpp_search_run(struct mpp_arena *arena, struct mpp_graph *graph, const struct mpp_cluster *cluster,
                               const struct mpp_plan_options *options, struct mpp_search_result *out)
{
    int64_t count[256];
    struct search s = {.arena = arena, .g = graph, .cluster = cluster, .opt = options, .out = out};
    *out = (struct mpp_search_result){.bound = INT64_MAX};
    out->decided.split = mpp_arena_array(arena, graph->n_groups, struct mpp_split);
    out->decided.resting = mpp_arena_array(arena, graph->n_tensors, struct mpp_sharding);
    out->decided.kept = mpp_arena_array(arena, graph->n_tensors, bool);
    for (mpp_id t = 0; t < graph->n_tensors; t++)
        out->decided.resting[t] = mpp_sharding_whole();
    s.capacity = options->capacity_bytes > 0 ? options->capacity_bytes : mpp_device_usable_bytes(&cluster->device);
    s.n_candidates = mpp_pins_candidates(arena, cluster->n_devices, homogeneous(cluster), &options->pins, &s.candidate);
    if (s.n_candidates == 0)
        out->reason = "no mesh has axes of the pinned sizes";
    int n = s.n_candidates > 0 ? counts_of(&s, count, 256) : 0;
    for (int i = 0; i < n && !s.limited; i++) {
        bool had = out->found;
        int64_t before = out->objective;
        mpp_graph_set_batch(graph, graph->global_batch / count[i]);
        struct mpp_memory need;
        if (least_bytes(graph, cluster->n_devices, &need) > s.capacity) {
            if (out->least_bytes == 0 || need.arena_bytes < out->least_bytes) {
                out->least_bytes = need.arena_bytes;
                out->at_least = need;
            }
            continue;
        }
        try_count(&s, count[i], options->pins.micro_batch);
        if (out->found && (!s.bound_by_memory || (had && out->objective >= before)))
            break;
    }
    if (s.exported != MPP_OK)
        return s.exported;
    prove(&s);
    out->stopped = s.limited;
    if (s.limited)
        out->bound = 0;           /* what was not looked at is not bounded */
    if (out->found) {
        mpp_graph_set_batch(graph, graph->global_batch / out->micro_batches);
        return MPP_OK;
    }
    if (s.limited || s.unanswered)
        return MPP_LIMIT;
    if (s.least.bytes == 0 && out->least_bytes == 0)
        return MPP_INVALID;
    if (s.least.bytes > 0)
        look_at_least(&s);
    return MPP_INFEASIBLE;
}

/* ---- the plan ---- */

/* The program of the chosen mesh, written for another solver to check. */
static enum mpp_status dump_ilp(struct mpp_diag *diag, struct mpp_graph *graph, const struct mpp_cluster *cluster,
                                const struct mpp_plan_options *options, const struct mpp_search_result *r)
{
    struct search s = {.opt = options};
    struct trial t = {.arena = mpp_arena_scratch(graph->arena), .c = r->candidate};
    struct mpp_pin_rules *rules;
    const char *reason;
    enum mpp_status st = MPP_INVALID;
    int64_t capacity = options->capacity_bytes > 0 ? options->capacity_bytes : mpp_device_usable_bytes(&cluster->device);
    if (mpp_pins_resolve(t.arena, graph, &t.c, &options->pins, &rules, &reason)
        && mpp_stage_problem_build(t.arena, cluster, rules, site_of(options), capacity, &t.p, &reason)) {
        t.choice = mpp_arena_array(t.arena, t.p->solver.n_nodes, int32_t);
        mpp_stage_name_choices(t.arena, t.p);
        struct mpp_solver_settings set = mpp_solver_defaults();
        set.dump_full = mpp_arena_printf(t.arena, "%s/full.lp", options->dump_ilp_dir);
        set.dump_reduced = mpp_arena_printf(t.arena, "%s/reduced.lp", options->dump_ilp_dir);
        st = solve(&s, &t, capacity, set);
        if (st == MPP_IO)
            mpp_diag_error(diag, (struct mpp_loc){0}, "cannot write the integer program to %s", options->dump_ilp_dir);
    }
    mpp_arena_free(t.arena);
    return st;
}

enum mpp_status mpp_plan_search(struct mpp_arena *arena, struct mpp_diag *diag, struct mpp_graph *graph,
                                const struct mpp_cluster *cluster, const struct mpp_plan_options *options,
                                struct mpp_plan **out)
{
    struct mpp_search_result r;
    *out = NULL;
    MPP_TRY(mpp_pins_check(diag, graph, cluster->n_devices, &options->pins));
    if (options->pins.pp > 1 || options->pins.interleave > 1 || options->pins.recompute > 0 || options->pins.schedule > 1) {
        mpp_diag_error(diag, (struct mpp_loc){0}, "--fix: pipeline stages and recomputation come with a later release");
        return MPP_INVALID;
    }
    enum mpp_status st = mpp_search_run(arena, graph, cluster, options, &r);
    if (st == MPP_INFEASIBLE && !options->quiet)
        mpp_suggest(diag, graph, cluster, options, &r);
    else if (st == MPP_INVALID)
        mpp_diag_error(diag, (struct mpp_loc){0}, "no plan does what --fix asks: %s", r.reason ? r.reason : "it contradicts itself");
    else if (st == MPP_IO)
        mpp_diag_error(diag, (struct mpp_loc){options->export_iopddl_dir, 0}, "cannot write a stage problem there: %s", strerror(errno));
    else if (st == MPP_LIMIT)
        mpp_diag_error(diag, (struct mpp_loc){0}, "the search was stopped before it found a plan");
    MPP_TRY(st);
    if (options->dump_ilp_dir)
        MPP_TRY(dump_ilp(diag, graph, cluster, options, &r));
    struct mpp_plan *plan = mpp_arena_array(arena, 1, struct mpp_plan);
    struct mpp_stage *stage = mpp_arena_array(arena, 1, struct mpp_stage);
    *stage = r.decided;
    stage->n_devices = cluster->n_devices;
    stage->mesh = r.candidate.mesh;
    mpp_stage_name_axes(graph, stage);
    *plan = (struct mpp_plan){
        .version = MPP_PLAN_VERSION, .batch = graph->global_batch, .micro_batches = r.micro_batches,
        .schedule = "accumulate", .n_stages = 1, .stages = stage, .solver = r.info, .objective_ps = r.objective,
        .bound_ps = r.bound < r.objective ? r.bound : r.objective,
        .stopped = r.stopped ? mpp_plan_stopped_by(options) : NULL, .pins = mpp_pins_text(arena, &options->pins)};
    plan->gap = plan->objective_ps > 0 ? (double)(plan->objective_ps - plan->bound_ps) / (double)plan->objective_ps : 0;
    *out = plan;
    return MPP_OK;
}
