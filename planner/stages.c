#include "planner/stages.h"

#include <assert.h>
#include <string.h>

#include "ir/op.h"
#include "planner/fold.h"
#include "planner/pins.h"

enum { FOLDED = 4 };              /* layers of a run that stand for any number: its first, two interior ones, its last */
enum { MAX_MESHES = 64 };
static const double STAGE_GAP = 0.0005;
static const int64_t STAGE_WORK = 30000000;

/* A span's graph, and the run of like layers in it. */
struct span {
    int first, last;              /* the layers that stand in the graph */
    enum mpp_recompute recompute;
    struct mpp_graph *graph;      /* NULL: not made yet */
    bool failed;
};

/* The least cost of a config at one number of folded layers, whatever memory it takes, and what that choice costs at
 * other numbers: base + slope * layers. */
struct freely {
    bool known, ok;
    double t_base, t_slope, once_base, once_slope;
    int32_t *choice;
};

/* A span on a range of devices with a mesh at the present micro-batch. */
struct config {
    int span, mesh;
    bool ok;                      /* false: the pins rule it out */
    struct mpp_stage_problem *problem;
    struct freely freely;
};

/* An answer about a config within memory, with so many layers and micro-batches in flight. */
struct solved {
    bool fits;
    int64_t objective, t_ps, once_ps;
    int64_t bound;                /* nothing that fits costs less */
};

struct range {                    /* devices, as far as costs go */
    int n, first;
    int n_meshes;
    struct mpp_candidate *mesh;
};

struct choice {                   /* what an option's id stands for */
    int range, mesh;
    enum mpp_recompute recompute;
};

struct mpp_stages {
    struct mpp_arena *arena, *round; /* round: of one micro-batch */
    struct mpp_diag *diag;
    const struct mpp_graph *graph;
    const struct mpp_layering *layering;
    const struct mpp_cluster *cluster;
    const struct mpp_plan_options *options;
    int64_t capacity;
    int *repeat, *index;          /* [layers] iteration that a layer is; -1: none, or several */
    struct mpp_schedule schedule;
    struct mpp_memo *spans, *ranges, *keys, *configs, *answers;
    size_t cap_span, cap_range, cap_config, cap_answer, cap_choice;
    struct span *span;
    struct range *range;
    struct config *config;
    struct solved *answer;
    struct choice *choice;
    int n_choices;
    struct mpp_pipeline_option reply[1];
    int64_t solved, within, least;
};

/* ---- layers ---- */

static void note_iterations(struct mpp_stages *s)
{
    const struct mpp_layering *l = s->layering;
    s->repeat = mpp_arena_array(s->arena, l->n_layers, int);
    s->index = mpp_arena_array(s->arena, l->n_layers, int);
    bool *seen = mpp_arena_array(s->arena, l->n_layers, bool);
    for (mpp_id o = 0; o < s->graph->n_ops; o++) {
        const struct mpp_gop *op = &s->graph->ops[o];
        int layer = l->layer_of[o];
        if (layer < 0 || op->phase != MPP_PHASE_FORWARD)
            continue;
        if (!seen[layer]) {
            s->repeat[layer] = op->repeat;
            s->index[layer] = op->index;
        } else if (s->repeat[layer] != op->repeat || s->index[layer] != op->index) {
            s->repeat[layer] = -1;
        }
        seen[layer] = true;
    }
}

static bool goes_on(const struct mpp_stages *s, int layer)
{
    return s->repeat[layer] >= 0 && s->repeat[layer + 1] == s->repeat[layer] && s->index[layer + 1] == s->index[layer] + 1
           && s->layering->cls[layer + 1] == s->layering->cls[layer];
}

/* The layers FIRST..LAST as few of them that stand for all: which (in *OUT_FIRST, *OUT_LAST) and the run that is folded. */
static void represent(const struct mpp_stages *s, int first, int last, int *out_first, int *out_last,
                      struct mpp_fold_run *out_run)
{
    int n = s->layering->n_layers, from = first, length = 1;
    for (int a = first, b; a <= last; a = b) {
        for (b = a + 1; b <= last && goes_on(s, b - 1); b++)
            ;
        if (b - a > length) {
            length = b - a;
            from = a;
        }
    }
    *out_first = first;
    *out_last = last;
    *out_run = (struct mpp_fold_run){.repeat = s->repeat[from], .first = s->index[from] + 1};
    if (length < FOLDED)
        return;
    out_run->present = length - 2;
    out_run->layers = length - 2;
    bool left = from > first || first == 0, right = from + length - 1 < last || last == n - 1;
    if (left && right)
        return;
    out_run->present = FOLDED - 2;
    if (right) {
        *out_first = from + length - FOLDED;
        out_run->first = s->index[*out_first] + 1;
    } else {
        *out_last = from + FOLDED - 1;
    }
    if (left || right)
        return;
    /* In the middle all places are alike: take the first that has a layer before it. */
    int a = from;
    while (a > 1 && goes_on(s, a - 1))
        a--;
    *out_first = a;
    *out_last = a + FOLDED - 1;
    out_run->first = s->index[a] + 1;
}

/* ---- memos ---- */

static int find_span(struct mpp_stages *s, int first, int last, enum mpp_recompute r)
{
    int key[3] = {first, last, (int)r};
    bool is_new;
    int id = mpp_memo_add(s->spans, key, sizeof key, &is_new);
    if (is_new) {
        s->span = mpp_arena_grow(s->arena, s->span, &s->cap_span, (size_t)id + 1, sizeof *s->span);
        s->span[id] = (struct span){.first = first, .last = last, .recompute = r};
    }
    struct span *x = &s->span[id];
    if (!x->graph && !x->failed)
        x->failed = mpp_span_extract(s->arena, s->diag, s->graph, s->layering, first, last, r, &x->graph) != MPP_OK;
    return id;
}

/* Ranges of a size differ in where they begin within a node. */
static int find_range(struct mpp_stages *s, int n, int first)
{
    const struct mpp_cluster *c = s->cluster;
    int per_node = c->any_per_node ? c->n_devices : c->devices_per_node;
    int place = per_node > 0 ? first % per_node : first;
    int key[2] = {n, place};
    bool is_new;
    int id = mpp_memo_add(s->ranges, key, sizeof key, &is_new);
    if (is_new) {
        s->range = mpp_arena_grow(s->arena, s->range, &s->cap_range, (size_t)id + 1, sizeof *s->range);
        struct range *x = &s->range[id];
        *x = (struct range){.n = n, .first = first};
        bool homogeneous = c->kind != MPP_LINK_MESH && (per_node == 0 || place + n <= per_node);
        x->n_meshes = mpp_pins_candidates(s->arena, n, homogeneous, &s->options->pins, &x->mesh);
    }
    return id;
}

static struct mpp_stage_site site(const struct mpp_stages *s, int first_device)
{
    return (struct mpp_stage_site){first_device, s->schedule.chunks};
}

static int find_config(struct mpp_stages *s, int span, int range, int mesh)
{
    int key[3] = {span, range, mesh};
    bool is_new;
    int id = mpp_memo_add(s->configs, key, sizeof key, &is_new);
    if (!is_new)
        return id;
    s->config = mpp_arena_grow(s->round, s->config, &s->cap_config, (size_t)id + 1, sizeof *s->config);
    struct config *x = &s->config[id];
    *x = (struct config){.span = span, .mesh = mesh};
    struct mpp_graph *g = s->span[span].graph;
    struct mpp_pin_rules *rules;
    const char *reason;
    if (!g)
        return id;
    mpp_graph_set_batch(g, g->global_batch / s->schedule.micro_batches);
    x->ok = mpp_pins_resolve(s->round, g, &s->range[range].mesh[mesh], &s->options->pins, &rules, &reason)
            && mpp_stage_problem_build(s->round, s->cluster, rules, site(s, s->range[range].first), s->capacity, &x->problem, &reason);
    return id;
}

/* ---- programs ---- */

/* At some time every choice of F takes more than this. */
static int64_t least_peak(struct mpp_arena *arena, const struct mpp_fold *f)
{
    int n = f->p->graph->n_groups;
    int64_t *change = mpp_arena_array(arena, n + 1, int64_t), live = 0, most = 0;
    for (int i = 0; i < f->solver.n_nodes; i++) {
        const struct mpp_solver_node *x = &f->solver.nodes[i];
        for (int u = 0; u < x->n_usages; u++) {
            int64_t least = INT64_MAX;
            for (int k = 0; k < x->n_choices; k++)
                least = x->usages[u].bytes[k] < least ? x->usages[u].bytes[k] : least;
            change[x->usages[u].first] += least;
            change[x->usages[u].last + 1] -= least;
        }
    }
    for (int i = 0; i < n; i++) {
        live += change[i];
        most = live > most ? live : most;
    }
    return most;
}

/* The least cost of PROBLEM whatever memory it takes; -1: there is no choice at all. */
static int64_t solve_free(struct mpp_stages *s, struct mpp_solver_problem problem, int32_t *choice, struct mpp_solver_info *info)
{
    struct mpp_solver_settings set = mpp_solver_defaults();
    struct mpp_solver *solver;
    problem.capacity_bytes = INT64_MAX;
    set.quick = true;
    s->solved++;
    if (mpp_solver_setup(&problem, &set, &solver) != MPP_OK)
        return -1;
    enum mpp_status st = mpp_solver_solve(solver, choice, info);
    mpp_solver_free(solver);
    return st == MPP_OK ? info->objective : -1;
}

/* Within memory; nothing of OBJECTIVE upper or more is wanted. */
static bool solve_within(struct mpp_stages *s, const struct mpp_solver_problem *problem, int64_t upper, int32_t *choice,
                         struct mpp_solver_info *info)
{
    struct mpp_solver_settings set = mpp_solver_defaults();
    struct mpp_solver *solver;
    set.gap = STAGE_GAP;
    set.work_limit = STAGE_WORK;
    set.upper_bound = upper == INT64_MAX ? 0 : upper;
    set.interrupt = s->options->interrupt;
    s->solved++;
    s->within++;
    if (mpp_solver_setup(problem, &set, &solver) != MPP_OK)
        return false;
    enum mpp_status st = mpp_solver_solve(solver, choice, info);
    mpp_solver_free(solver);
    if (st == MPP_INFEASIBLE && info->least_peak_bytes > s->capacity
        && (s->least == 0 || info->least_peak_bytes < s->least))
        s->least = info->least_peak_bytes;
    return st == MPP_OK;
}

/* The number of folded layers at which a config is looked at: the share of its devices. */
static int64_t typical_layers(const struct mpp_stages *s, const struct mpp_fold_run *run, int range)
{
    int64_t share = (int64_t)s->layering->n_layers * s->range[range].n / s->cluster->n_devices - 2;
    if (run->present == 0 || run->present > FOLDED - 2)
        return run->layers;
    return share < 2 ? 2 : share;
}

static const struct freely *solve_freely(struct mpp_stages *s, int config, const struct mpp_fold_run *run, int range)
{
    struct config *c = &s->config[config];
    struct freely *f = &c->freely;
    if (f->known)
        return f;
    f->known = true;
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    struct mpp_fold fold, more;
    struct mpp_solver_info info;
    struct mpp_fold_run r = *run;
    r.layers = typical_layers(s, run, range);
    if (mpp_fold_make(scratch, c->problem, &r, 1, &fold)) {
        int64_t t, once, t1, once1;
        f->choice = mpp_arena_array(s->round, fold.solver.n_nodes, int32_t);
        f->ok = solve_free(s, fold.solver, f->choice, &info) >= 0;
        mpp_fold_times(&fold, f->choice, s->schedule.micro_batches, &t, &once);
        f->t_base = (double)t;
        f->once_base = (double)once;
        if (f->ok && r.present > 0 && r.present <= FOLDED - 2) {
            r.layers++;
            if (mpp_fold_make(scratch, c->problem, &r, 1, &more))
                mpp_fold_times(&more, f->choice, s->schedule.micro_batches, &t1, &once1);
            f->t_slope = (double)(t1 - t);
            f->once_slope = (double)(once1 - once);
            f->t_base -= f->t_slope * (double)(r.layers - 1);
            f->once_base -= f->once_slope * (double)(r.layers - 1);
        }
    }
    mpp_arena_free(scratch);
    return f;
}

static int64_t at_layers(double base, double slope, int64_t layers)
{
    double x = base + slope * (double)layers;
    return x < 0 ? 0 : (int64_t)x;
}

/* The choice of the free optimum at RUN's layers and IN_FLIGHT micro-batches, if it fits. */
static bool try_freely(struct mpp_stages *s, const struct config *c, const struct mpp_fold *fold, int32_t *choice,
                       struct solved *out)
{
    int64_t peak;
    int32_t when;
    memcpy(choice, c->freely.choice, sizeof *choice * (size_t)fold->solver.n_nodes);
    out->objective = mpp_solver_evaluate(&fold->solver, choice, &peak, &when);
    out->fits = peak <= s->capacity;
    return out->fits;
}

/* CONFIG with RUN's layers and IN_FLIGHT micro-batches alive, into OUT (with the fold and its choice, in ARENA). FREELY:
 * only the free optimum is tried. UPPER as above. */
static void solve_config(struct mpp_stages *s, const struct config *c, const struct mpp_fold_run *run, int64_t in_flight,
                         bool freely, int64_t upper, struct mpp_arena *arena, struct mpp_fold *fold, int32_t **out_choice,
                         struct solved *out)
{
    struct mpp_solver_info info;
    *out = (struct solved){.bound = INT64_MAX};
    if (!c->freely.ok || !mpp_fold_make(arena, c->problem, run, in_flight, fold))
        return;
    int32_t *choice = mpp_arena_array(arena, fold->solver.n_nodes, int32_t);
    *out_choice = choice;
    if (!try_freely(s, c, fold, choice, out) && !freely) {
        int64_t least = least_peak(arena, fold);
        if (least > s->capacity) {
            s->least = s->least == 0 || least < s->least ? least : s->least;
        } else if (solve_within(s, &fold->solver, upper, choice, &info)) {
            out->fits = true;
            out->objective = info.objective;
        }
    }
    if (out->fits)
        mpp_fold_times(fold, choice, s->schedule.micro_batches, &out->t_ps, &out->once_ps);
}

static enum mpp_recompute least_recompute(const struct mpp_stages *s)
{
    return s->options->pins.recompute >= 0 ? (enum mpp_recompute)s->options->pins.recompute : MPP_RECOMPUTE_NONE;
}

static int reply(struct mpp_stages *s, int64_t t, int64_t once, int id, const struct mpp_pipeline_option **out)
{
    s->reply[0] = (struct mpp_pipeline_option){t, once, id};
    *out = s->reply;
    return 1;
}

struct question {
    struct mpp_fold_run run;
    int first, last, range;
    int64_t in_flight;
};

static bool ask(struct mpp_stages *s, const struct mpp_pipeline_key *key, struct question *q)
{
    int64_t layers = key->last_layer - key->first_layer + 1;
    if (s->schedule.chunks > 1 && layers * s->cluster->n_devices != (int64_t)s->layering->n_layers * key->n_devices)
        return false;             /* interleaved: the same for all stages */
    *q = (struct question){.in_flight = key->in_flight};
    represent(s, key->first_layer, key->last_layer, &q->first, &q->last, &q->run);
    q->range = find_range(s, key->n_devices, key->first_device);
    return s->range[q->range].n_meshes > 0;
}

/* Does the pinned micro-batch of a replica go with the data axis of C? */
static bool batch_agrees(const struct mpp_stages *s, const struct mpp_candidate *c)
{
    int dp = c->data_axis >= 0 ? c->mesh.size[c->data_axis] : 1;
    int64_t pinned = s->options->pins.micro_batch;
    return pinned == 0 || s->schedule.micro_batches * pinned * dp == s->graph->global_batch;
}

/* Candidates of a question, in the order of their least costs. */
struct candidate {
    int config, mesh;
    enum mpp_recompute recompute;
    int64_t t_ps, once_ps, objective;
};

/* Add those of recomputation R to the N of OUT. */
static int add_candidates(struct mpp_stages *s, const struct question *q, enum mpp_recompute r, struct candidate *out, int n)
{
    int span = find_span(s, q->first, q->last, r);
    for (int m = 0; m < s->range[q->range].n_meshes && m < MAX_MESHES; m++) {
        if (!batch_agrees(s, &s->range[q->range].mesh[m]))
            continue;
        int config = find_config(s, span, q->range, m);
        if (!s->config[config].ok)
            continue;
        const struct freely *f = solve_freely(s, config, &q->run, q->range);
        if (!f->ok)
            continue;
        int64_t layers = q->run.present > 0 ? q->run.layers : 0;
        struct candidate c = {.config = config, .mesh = m, .recompute = r,
                              .t_ps = at_layers(f->t_base, f->t_slope, layers),
                              .once_ps = at_layers(f->once_base, f->once_slope, layers)};
        c.objective = c.t_ps * s->schedule.micro_batches + c.once_ps;
        int at = n++;
        for (; at > 0 && out[at - 1].objective > c.objective; at--)
            out[at] = out[at - 1];
        out[at] = c;
    }
    return n;
}

static int bounds(struct mpp_stages *s, const struct question *q, const struct mpp_pipeline_option **out)
{
    struct candidate list[MAX_MESHES];
    int n = add_candidates(s, q, least_recompute(s), list, 0);
    return n == 0 ? 0 : reply(s, list[0].t_ps, list[0].once_ps, -1, out);
}

/* The answer for candidate C: remembered, if it is good for UPPER. */
static struct solved answer_for(struct mpp_stages *s, const struct question *q, const struct candidate *c, bool freely,
                                int64_t upper)
{
    int64_t key[4] = {c->config, q->run.layers, q->in_flight, freely};
    bool is_new;
    int id = mpp_memo_add(s->answers, key, sizeof key, &is_new);
    s->answer = mpp_arena_grow(s->round, s->answer, &s->cap_answer, (size_t)id + 1, sizeof *s->answer);
    if (!is_new && (freely || s->answer[id].fits || s->answer[id].bound >= upper))
        return s->answer[id];
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    struct mpp_fold fold;
    int32_t *choice;
    struct solved x;
    solve_config(s, &s->config[c->config], &q->run, q->in_flight, freely, upper, scratch, &fold, &choice, &x);
    x.bound = x.fits ? x.objective : upper;
    mpp_arena_free(scratch);
    s->answer[id] = x;
    return x;
}

/* The best of LIST whose free optimum fits; -1: none. */
static int first_free(struct mpp_stages *s, const struct question *q, const struct candidate *list, int n, struct solved *out)
{
    for (int i = 0; i < n; i++) {
        *out = answer_for(s, q, &list[i], true, INT64_MAX);
        if (out->fits)
            return i;
    }
    return -1;
}

static int exactly(struct mpp_stages *s, const struct question *q, const struct mpp_pipeline_option **out)
{
    struct candidate list[MAX_MESHES * MPP_RECOMPUTE_COUNT];
    enum mpp_recompute least = least_recompute(s);
    struct solved answer;
    int n = add_candidates(s, q, least, list, 0), best = first_free(s, q, list, n, &answer);
    if (best != 0 && s->options->pins.recompute < 0) {
        for (int r = MPP_RECOMPUTE_NONE + 1; r < MPP_RECOMPUTE_COUNT; r++)
            n = add_candidates(s, q, (enum mpp_recompute)r, list, n);
        best = first_free(s, q, list, n, &answer);
    }
    if (best < 0)
        answer = (struct solved){.objective = INT64_MAX};
    for (int i = 0; i < n && i != best && list[i].objective < answer.objective; i++) {
        struct solved x = answer_for(s, q, &list[i], false, answer.objective);
        if (x.fits && x.objective < answer.objective) {
            answer = x;
            best = i;
        }
    }
    if (best < 0)
        return 0;
    s->choice = mpp_arena_grow(s->arena, s->choice, &s->cap_choice, (size_t)s->n_choices + 1, sizeof *s->choice);
    s->choice[s->n_choices] = (struct choice){q->range, list[best].mesh, list[best].recompute};
    return reply(s, answer.t_ps, answer.once_ps, s->n_choices++, out);
}

int mpp_stages_options(void *context, const struct mpp_pipeline_key *key, bool exact,
                       const struct mpp_pipeline_option **out, bool *out_exact)
{
    struct mpp_stages *s = context;
    struct question q;
    *out_exact = exact;
    if (!ask(s, key, &q))
        return 0;
    return exact ? exactly(s, &q, out) : bounds(s, &q, out);
}

static int alike(struct mpp_stages *s, const struct mpp_pipeline_key *key, int64_t in_flight)
{
    struct question q;
    bool is_new;
    if (!ask(s, key, &q))
        return -1;
    int64_t place[5] = {q.first, q.last, q.run.layers, q.range, in_flight};
    return mpp_memo_add(s->keys, place, sizeof place, &is_new);
}

int mpp_stages_alike(void *context, const struct mpp_pipeline_key *key)
{
    return alike(context, key, key->in_flight);
}

int mpp_stages_alike_bounds(void *context, const struct mpp_pipeline_key *key)
{
    return alike(context, key, 0);
}

/* ---- the whole ---- */

struct mpp_stages *mpp_stages_new(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                                  const struct mpp_layering *layering, const struct mpp_cluster *cluster,
                                  const struct mpp_plan_options *options)
{
    struct mpp_stages *s = mpp_arena_array(arena, 1, struct mpp_stages);
    s->arena = arena;
    s->diag = diag;
    s->graph = graph;
    s->layering = layering;
    s->cluster = cluster;
    s->options = options;
    s->capacity = options->capacity_bytes > 0 ? options->capacity_bytes : mpp_device_usable_bytes(&cluster->device);
    s->spans = mpp_memo_new(arena);
    s->ranges = mpp_memo_new(arena);
    s->keys = mpp_memo_new(arena);
    note_iterations(s);
    return s;
}

void mpp_stages_set(struct mpp_stages *s, const struct mpp_schedule *schedule)
{
    bool same = s->round && s->schedule.micro_batches == schedule->micro_batches && s->schedule.chunks == schedule->chunks;
    s->schedule = *schedule;
    if (same)
        return;
    if (s->round)
        mpp_arena_free(s->round);
    s->round = mpp_arena_scratch(s->arena);
    s->configs = mpp_memo_new(s->round);
    s->answers = mpp_memo_new(s->round);
    s->config = NULL;
    s->answer = NULL;
    s->cap_config = s->cap_answer = 0;
}

enum mpp_status mpp_stages_decide(struct mpp_stages *s, const struct mpp_pipeline_stage *stage, struct mpp_stage *out)
{
    const struct choice *choice = &s->choice[stage->option.id];
    struct question q;
    bool ok = ask(s, &stage->key, &q);
    assert(ok);
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    struct config *c = &s->config[find_config(s, find_span(s, q.first, q.last, choice->recompute), choice->range, choice->mesh)];
    struct mpp_fold fold;
    int32_t *folded;
    struct solved x;
    (void)solve_freely(s, (int)(c - s->config), &q.run, choice->range);
    solve_config(s, c, &q.run, q.in_flight, false, INT64_MAX, scratch, &fold, &folded, &x);
    struct mpp_graph *g = NULL;
    const struct mpp_candidate *mesh = &s->range[choice->range].mesh[choice->mesh];
    struct mpp_pin_rules *rules;
    struct mpp_stage_problem *real;
    const char *reason;
    enum mpp_status st = x.fits ? MPP_OK : MPP_LIMIT;
    MPP_TRY_GOTO(st, done, st);
    MPP_TRY_GOTO(st, done, mpp_span_extract(s->arena, s->diag, s->graph, s->layering, stage->key.first_layer,
                                            stage->key.last_layer, choice->recompute, &g));
    mpp_graph_set_batch(g, g->global_batch / s->schedule.micro_batches);
    st = MPP_LIMIT;
    if (!mpp_pins_resolve(scratch, g, mesh, &s->options->pins, &rules, &reason)
        || !mpp_stage_problem_build(scratch, s->cluster, rules, site(s, stage->key.first_device), s->capacity, &real, &reason))
        goto done;
    int32_t *decided = mpp_arena_array(scratch, real->solver.n_nodes, int32_t);
    if (!mpp_fold_expand(&fold, &q.run, folded, real, decided))
        goto done;
    *out = (struct mpp_stage){
        .first_device = stage->key.first_device, .n_devices = stage->key.n_devices,
        .first_layer = stage->key.first_layer, .last_layer = stage->key.last_layer, .recompute = choice->recompute,
        .in_flight = q.in_flight, .graph = g, .mesh = mesh->mesh,
        .split = mpp_arena_array(s->arena, g->n_groups, struct mpp_split),
        .resting = mpp_arena_array(s->arena, g->n_tensors, struct mpp_sharding),
        .kept = mpp_arena_array(s->arena, g->n_tensors, bool)};
    for (mpp_id t = 0; t < g->n_tensors; t++)
        out->resting[t] = mpp_sharding_whole();
    mpp_stage_decide(real, decided, out);
    out->solver = (struct mpp_solver_info){
        .status = MPP_SOLVER_OPTIMAL, .bound = x.objective, .nodes_full = real->solver.n_nodes,
        .values_full = real->solver.n_values, .nodes_reduced = fold.solver.n_nodes, .values_reduced = fold.solver.n_values,
        .glpk_status = "not needed"};
    out->solver.objective = mpp_solver_evaluate(&real->solver, decided, &out->solver.peak_bytes, &out->solver.peak_time);
    st = MPP_OK;
done:
    mpp_arena_free(scratch);
    return st;
}

int64_t mpp_stages_solved(const struct mpp_stages *s, int64_t *out_within)
{
    *out_within = s->within;
    return s->solved;
}

int64_t mpp_stages_least(const struct mpp_stages *s)
{
    return s->least;
}
