#include "planner/stages.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

#include "ir/op.h"
#include "planner/fold.h"
#include "planner/pins.h"

/* Layers of a run that stand for any number: its first and last, if they are like the others, else two between them, too. */
enum { FEW = 2, SEVERAL = 4, ALL = INT_MAX };
enum { BEFORE, ITERATION, AFTER, N_PARTS }; /* of a model with one run of layers */
enum { MAX_MESHES = 64, POOL = 8 };
static const double STAGE_GAP = 0.001;
static const int64_t STAGE_WORK = 10000000;

/* Layers that stand for a span of any length. */
struct shape {
    int first, last, cut_first, cut_last; /* cut_last < cut_first: nothing is cut */
    struct mpp_fold_run run;
};

/* A shape's graph. */
struct span {
    struct shape shape;
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

/* What the parts of a model cost on a range of devices with a mesh: of one solved program of all kinds of layers. */
struct survey {
    bool known, ok;
    double t[N_PARTS], once[N_PARTS];
};

/* A span on a range of devices with a mesh at the present micro-batch. */
struct config {
    int span, mesh;
    bool ok;                      /* false: the pins rule it out */
    struct mpp_stage_problem *problem;
    struct freely freely;
    int n_pool;                   /* choices found within memory: some number of layers and micro-batches */
    int32_t *pool[POOL];
    int n_none;                   /* where there is nothing below a cost: */
    struct {
        int64_t layers, in_flight, below;
    } none[POOL];
};

/* An answer about a config within memory, with so many layers and micro-batches in flight. */
struct solved {
    bool fits;
    int64_t objective, t_ps, once_ps;
    int64_t bound;                /* nothing that fits costs less */
    const int32_t *choice;        /* [n_nodes] of the fold, of the present round; NULL: none */
    int n_nodes;
};

struct range {                    /* devices, as far as costs go */
    int n, first;
    int n_meshes;
    struct mpp_candidate *mesh;
    struct survey *survey;        /* [n_meshes] of the present round */
};

struct choice {                   /* what an option's id stands for */
    int range, mesh;
    enum mpp_recompute recompute;
    struct shape shape;
    const int32_t *folded;        /* the decision itself, in the fold of the shape */
    int64_t objective;
};

struct mpp_stages {
    struct mpp_arena *arena, *round; /* round: of one micro-batch */
    struct mpp_diag *diag;
    const struct mpp_graph *graph;
    const struct mpp_layering *layering;
    const struct mpp_cluster *cluster;
    const struct mpp_plan_options *options;
    bool even;                    /* stages have equally many devices */
    int64_t capacity, upper;      /* upper: a step that takes as long is of no use, so no stage may */
    int folded;                   /* FEW, SEVERAL or ALL */
    bool unlike;                  /* layers that should decide alike cannot */
    int *repeat, *index;          /* [layers] iteration that a layer is; -1: none, or several */
    bool one_run;                 /* the model is one run with layers before and after it: surveys tell what spans cost */
    double *part[N_PARTS];        /* [layers] what a layer holds of each */
    struct mpp_schedule schedule;
    struct mpp_memo *spans, *ranges, *keys, *configs, *answers;
    size_t cap_span, cap_range, cap_config, cap_answer, cap_choice;
    struct span *span;
    struct range *range;
    struct config *config;
    struct solved *answer;
    struct choice *choice;
    int n_choices, n_ranges;
    struct mpp_pipeline_option reply[1];
    int64_t solved, within, least;
    int budget;                   /* programs within memory that may still be solved for the present schedule */
    bool gave_up;                 /* that was not enough */
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

/* The longest run of like layers in FIRST..LAST: its first layer; *OUT_LENGTH. */
static int longest_run(const struct mpp_stages *s, int first, int last, int *out_length)
{
    int from = first, length = 1;
    for (int a = first, b; a <= last; a = b) {
        for (b = a + 1; b <= last && goes_on(s, b - 1); b++)
            ;
        if (b - a > length) {
            length = b - a;
            from = a;
        }
    }
    *out_length = length;
    return from;
}

/* The layers FIRST..LAST as few of them that stand for all. */
static struct shape represent(const struct mpp_stages *s, int first, int last)
{
    int n = s->layering->n_layers, length, from = longest_run(s, first, last, &length);
    struct shape x = {.first = first, .last = last, .cut_last = -1};
    if (length <= s->folded)
        return x;
    bool left = from > first || first == 0, right = from + length - 1 < last || last == n - 1;
    int a = from, b = from + length - 1, half = s->folded / 2;
    if (!left && !right)          /* in the middle all places are alike: take the first that has a layer before it */
        while (a > 1 && goes_on(s, a - 1))
            a--;
    if (!right)
        x.last = b = a + s->folded - 1;
    else if (!left)
        x.first = a = b - s->folded + 1;
    if (!left && !right)
        x.first = a;
    x.cut_first = a + half;
    x.cut_last = b - half;
    x.run = (struct mpp_fold_run){s->repeat[a], s->index[a + half - 1], s->index[b - half + 1], length + 2 - s->folded};
    return x;
}

/* Is the model one run of like layers, and what does each layer hold of it? */
static void note_parts(struct mpp_stages *s)
{
    const struct mpp_layering *l = s->layering;
    int n = l->n_layers, length, from = longest_run(s, 0, n - 1, &length);
    if (length <= SEVERAL)
        return;
    int repeat = s->repeat[from], first = -1, n_part[N_PARTS] = {0};
    bool *has[N_PARTS];
    for (int k = 0; k < N_PARTS; k++) {
        has[k] = mpp_arena_array(s->arena, n, bool);
        s->part[k] = mpp_arena_array(s->arena, n, double);
    }
    s->one_run = true;
    for (mpp_id o = 0; o < s->graph->n_ops; o++)
        if (first < 0 && s->graph->ops[o].phase == MPP_PHASE_FORWARD && s->graph->ops[o].repeat == repeat)
            first = o;
    for (mpp_id o = 0; o < s->graph->n_ops; o++) {
        const struct mpp_gop *op = &s->graph->ops[o];
        if (l->layer_of[o] < 0 || op->phase != MPP_PHASE_FORWARD)
            continue;
        s->one_run = s->one_run && (op->repeat == repeat || op->repeat < 0);
        has[op->repeat == repeat ? ITERATION : o < first ? BEFORE : AFTER][l->layer_of[o]] = true;
    }
    for (int x = 0; x < n; x++) {
        for (int k = 0; k < N_PARTS; k++)
            n_part[k] += has[k][x];
        s->one_run = s->one_run && (!has[BEFORE][x] || x <= from) && (!has[AFTER][x] || x >= from + length - 1);
    }
    for (int x = 0; x < n; x++)
        for (int k = 0; k < N_PARTS; k++)
            s->part[k][x] = !has[k][x] ? 0 : k == ITERATION ? 1 : 1.0 / n_part[k];
}

/* ---- memos ---- */

static int find_span(struct mpp_stages *s, struct shape shape, enum mpp_recompute r)
{
    bool is_new, cut = shape.cut_last >= shape.cut_first;
    int key[5] = {shape.first, shape.last, cut ? shape.cut_first : -1, shape.run.layers > 0, (int)r};
    int id = mpp_memo_add(s->spans, key, sizeof key, &is_new);
    if (is_new) {
        s->span = mpp_arena_grow(s->arena, s->span, &s->cap_span, (size_t)id + 1, sizeof *s->span);
        s->span[id] = (struct span){.shape = shape, .recompute = r};
    }
    struct span *x = &s->span[id];
    if (!x->graph && !x->failed)
        x->failed = mpp_span_extract_cut(s->arena, s->diag, s->graph, s->layering, shape.first, shape.last, shape.cut_first,
                                         shape.cut_last, r, &x->graph) != MPP_OK;
    return id;
}

/* Ranges of a size differ in where their node ends, in whether there is a stage before and after them and, where links
 * do, in where they begin. */
static int find_range(struct mpp_stages *s, int n, int first)
{
    const struct mpp_cluster *c = s->cluster;
    int per_node = c->any_per_node || c->n_nodes == 1 ? c->n_devices : c->devices_per_node, place = first % per_node;
    bool within = place + n <= per_node, same = c->kind != MPP_LINK_MESH && within;
    int key[6] = {n, same ? 0 : place, place == 0, (place + n) % per_node == 0, first == 0, first + n == c->n_devices};
    bool is_new;
    int id = mpp_memo_add(s->ranges, key, sizeof key, &is_new);
    if (is_new) {
        s->range = mpp_arena_grow(s->arena, s->range, &s->cap_range, (size_t)id + 1, sizeof *s->range);
        struct range *x = &s->range[id];
        s->n_ranges++;
        *x = (struct range){.n = n, .first = first};
        x->n_meshes = mpp_pins_candidates(s->arena, n, same, &s->options->pins, &x->mesh);
        x->survey = mpp_arena_array(s->arena, x->n_meshes, struct survey);
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
    if (s->budget == 0) {
        s->gave_up = true;
        return false;
    }
    s->budget--;
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
    int64_t share = (int64_t)s->layering->n_layers * s->range[range].n / s->cluster->n_devices + 2 - s->folded;
    return run->layers == 0 ? 0 : share < 2 ? 2 : share;
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
    if (!mpp_fold_make(scratch, c->problem, &r, 1, &fold)) {
        s->unlike = true;
    } else {
        int64_t t, once, t1 = 0, once1 = 0;
        f->choice = mpp_arena_array(s->round, fold.solver.n_nodes, int32_t);
        f->ok = solve_free(s, fold.solver, f->choice, &info) >= 0;
        mpp_fold_times(&fold, f->choice, s->schedule.micro_batches, &t, &once);
        f->t_base = (double)t;
        f->once_base = (double)once;
        if (f->ok && r.layers > 0) {
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

/* CHOICE at the layers and micro-batches in flight of FOLD. */
static bool fits(const struct mpp_stages *s, const struct mpp_fold *fold, const int32_t *choice, int64_t *out_objective)
{
    int64_t peak;
    int32_t when;
    *out_objective = mpp_solver_evaluate(&fold->solver, choice, &peak, &when);
    return peak <= s->capacity;
}

/* The best choice for FOLD among those that were found for other layers and micro-batches in flight; NULL: none fits. */
static const int32_t *from_pool(const struct mpp_stages *s, const struct config *c, const struct mpp_fold *fold,
                                int64_t *out_objective)
{
    const int32_t *best = NULL;
    for (int i = 0; i < c->n_pool; i++) {
        int64_t objective;
        if (fits(s, fold, c->pool[i], &objective) && (!best || objective < *out_objective)) {
            best = c->pool[i];
            *out_objective = objective;
        }
    }
    return best;
}

/* Within memory, below UPPER: from the pool if that is good enough, else solved. LEAST: no choice takes less. */
static const int32_t *solve_tight(struct mpp_stages *s, struct config *c, const struct mpp_fold *fold, int64_t layers,
                                  int64_t in_flight, int64_t least, int64_t upper, struct mpp_arena *arena)
{
    struct mpp_solver_info info;
    int64_t objective = INT64_MAX, peak = least_peak(arena, fold);
    if (peak > s->capacity) {
        s->least = s->least == 0 || peak < s->least ? peak : s->least;
        return NULL;
    }
    const int32_t *known = from_pool(s, c, fold, &objective);
    if (known && (double)(objective - least) <= STAGE_GAP * (double)objective)
        return known;
    upper = objective < upper ? objective : upper;
    for (int i = 0; i < c->n_none; i++) /* more in flight take more memory */
        if (c->none[i].layers == layers && c->none[i].in_flight <= in_flight && c->none[i].below >= upper)
            return known;
    int32_t *choice = mpp_arena_array(s->round, fold->solver.n_nodes, int32_t);
    if (!solve_within(s, &fold->solver, upper, choice, &info)) {
        if (s->gave_up)
            return known;
        int at = c->n_none < POOL ? c->n_none++ : POOL - 1;
        c->none[at].layers = layers;
        c->none[at].in_flight = in_flight;
        c->none[at].below = upper;
        return known;
    }
    c->pool[c->n_pool < POOL ? c->n_pool++ : POOL - 1] = choice;
    return choice;
}

/* CONFIG with RUN's layers and IN_FLIGHT micro-batches alive, into OUT (with the fold, in ARENA, and its choice). FREELY:
 * only the free optimum is tried. UPPER as above. */
static void solve_config(struct mpp_stages *s, struct config *c, const struct mpp_fold_run *run, int64_t in_flight,
                         bool freely, int64_t upper, struct mpp_arena *arena, struct mpp_fold *fold, const int32_t **out_choice,
                         struct solved *out)
{
    *out = (struct solved){.objective = INT64_MAX, .bound = INT64_MAX};
    if (!c->freely.ok || !mpp_fold_make(arena, c->problem, run, in_flight, fold))
        return;
    *out_choice = c->freely.choice;
    out->fits = fits(s, fold, *out_choice, &out->objective);
    if (!out->fits && !freely && out->objective < upper) {
        *out_choice = solve_tight(s, c, fold, run->layers, in_flight, out->objective, upper, arena);
        out->fits = *out_choice && fits(s, fold, *out_choice, &out->objective);
    }
    if (out->fits) {
        out->choice = *out_choice;
        out->n_nodes = fold->solver.n_nodes;
        mpp_fold_times(fold, *out_choice, s->schedule.micro_batches, &out->t_ps, &out->once_ps);
    }
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
    struct shape shape;
    double part[N_PARTS];         /* what the span holds */
    int range;
    int64_t in_flight;
};

/* Stages of equally many devices have about equally many layers: a tenth more or less, at least one. */
static bool about_its_share(const struct mpp_stages *s, double iterations, int n_devices)
{
    double all = 0;
    for (int l = 0; l < s->layering->n_layers; l++)
        all += s->part[ITERATION][l];
    double share = all * n_devices / s->cluster->n_devices, slack = share / 10 > 1 ? share / 10 : 1;
    return iterations >= share - slack - 1e-9 && iterations <= share + slack + 1e-9;
}

static bool ask(struct mpp_stages *s, const struct mpp_pipeline_key *key, struct question *q)
{
    int64_t layers = key->last_layer - key->first_layer + 1;
    if (s->schedule.chunks > 1 && layers * s->cluster->n_devices != (int64_t)s->layering->n_layers * key->n_devices)
        return false;             /* interleaved: the same for all stages */
    *q = (struct question){.in_flight = key->in_flight};
    q->shape = represent(s, key->first_layer, key->last_layer);
    for (int k = 0; k < N_PARTS && s->one_run; k++)
        for (int l = key->first_layer; l <= key->last_layer; l++)
            q->part[k] += s->part[k][l];
    if (s->even && s->one_run && !about_its_share(s, q->part[ITERATION], key->n_devices))
        return false;
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

/* ---- surveys ---- */

/* Which part of the model a node of the survey's graph belongs to. */
static int part_of_node(const struct mpp_stage_problem *p, int node, int repeat, int first_forward, int first_backward)
{
    const struct mpp_stage_node *x = &p->node[node];
    const struct mpp_graph *g = p->graph;
    if (x->kind != MPP_NODE_GROUPS)
        return g->tensors[x->tensor].repeat == repeat ? ITERATION : AFTER;
    const struct mpp_gop *op = &g->ops[g->groups[x->groups[0]].ops[0]];
    if (op->repeat == repeat)
        return ITERATION;
    if (op->phase == MPP_PHASE_UPDATE)
        return AFTER;
    return op->phase <= MPP_PHASE_FORWARD ? (x->groups[0] < first_forward ? BEFORE : AFTER)
                                          : (x->groups[0] < first_backward ? AFTER : BEFORE);
}

/* The parts' costs under CHOICE of FOLD, which stands for so many ITERATIONS. */
static void split_costs(const struct mpp_stages *s, const struct mpp_fold *fold, const int32_t *choice, int repeat,
                        double iterations, struct survey *out)
{
    const struct mpp_stage_problem *p = fold->p;
    const struct mpp_graph *g = p->graph;
    int first_forward = g->n_groups, first_backward = g->n_groups;
    for (int i = g->n_groups - 1; i >= 0; i--)
        if (g->ops[g->groups[i].ops[0]].repeat == repeat)
            *(g->groups[i].phase <= MPP_PHASE_FORWARD ? &first_forward : &first_backward) = i;
    double t[N_PARTS] = {0}, once[N_PARTS] = {0};
    for (int i = 0; i < fold->solver.n_nodes; i++) {
        int part = part_of_node(p, fold->from[i], repeat, first_forward, first_backward);
        *(fold->node_once[i] ? &once[part] : &t[part]) += (double)fold->solver.nodes[i].cost[choice[i]];
    }
    for (int i = 0; i < fold->solver.n_values; i++) {
        const struct mpp_solver_value *v = &fold->solver.values[i];
        int part = part_of_node(p, fold->from[v->consumers[0]], repeat, first_forward, first_backward);
        *(fold->value_once[i] ? &once[part] : &t[part]) += (double)mpp_fold_copies(fold, i, choice);
    }
    for (int k = 0; k < N_PARTS; k++) {
        double n = k == ITERATION ? iterations : 1;
        out->t[k] = t[k] / n / (double)s->schedule.micro_batches;
        out->once[k] = once[k] / n;
    }
}

static const struct survey *look_at(struct mpp_stages *s, int range, int mesh)
{
    struct survey *x = &s->range[range].survey[mesh];
    if (x->known)
        return x;
    x->known = true;
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    struct mpp_fold fold;
    struct mpp_solver_info info;
    double iterations = 0;
    for (int l = 0; l < s->layering->n_layers; l++)
        iterations += s->part[ITERATION][l];
    for (;;) {
        struct shape shape = represent(s, 0, s->layering->n_layers - 1);
        int64_t folded = shape.run.layers;
        int config = find_config(s, find_span(s, shape, least_recompute(s)), range, mesh);
        if (!s->config[config].ok)
            break;
        shape.run.layers = typical_layers(s, &shape.run, range);
        if (mpp_fold_make(scratch, s->config[config].problem, &shape.run, 1, &fold)) {
            int32_t *choice = mpp_arena_array(scratch, fold.solver.n_nodes, int32_t);
            x->ok = solve_free(s, fold.solver, choice, &info) >= 0;
            if (x->ok)
                split_costs(s, &fold, choice, shape.run.repeat, iterations + (double)(shape.run.layers - folded), x);
            break;
        }
        if (s->folded == SEVERAL)
            break;
        s->folded = SEVERAL;      /* the ends of the run are not like its other layers */
    }
    mpp_arena_free(scratch);
    return x;
}

/* ---- candidates ---- */

struct candidate {
    int mesh;
    int64_t t_ps, once_ps, objective; /* the least it takes, about */
};

static int64_t to_ps(double x)
{
    return x < 0 ? 0 : x > 9e18 ? INT64_MAX / 4 : (int64_t)x;
}

/* What Q takes with MESH if memory is no matter; false: it cannot be. */
static bool estimate(struct mpp_stages *s, const struct question *q, int mesh, struct candidate *out)
{
    *out = (struct candidate){.mesh = mesh};
    if (!batch_agrees(s, &s->range[q->range].mesh[mesh]))
        return false;
    if (s->one_run) {
        const struct survey *x = look_at(s, q->range, mesh);
        double t = 0, once = 0;
        for (int k = 0; k < N_PARTS; k++) {
            t += q->part[k] * x->t[k];
            once += q->part[k] * x->once[k];
        }
        out->t_ps = to_ps(t);
        out->once_ps = to_ps(once);
        if (!x->ok)
            return false;
    } else {
        int config = find_config(s, find_span(s, q->shape, least_recompute(s)), q->range, mesh);
        const struct freely *f = s->config[config].ok ? solve_freely(s, config, &q->shape.run, q->range) : NULL;
        if (!f || !f->ok)
            return false;
        out->t_ps = at_layers(f->t_base, f->t_slope, q->shape.run.layers);
        out->once_ps = at_layers(f->once_base, f->once_slope, q->shape.run.layers);
    }
    out->objective = to_ps((double)out->t_ps * (double)s->schedule.micro_batches + (double)out->once_ps);
    return true;
}

/* The meshes of Q by what they take at least. */
static int list_candidates(struct mpp_stages *s, const struct question *q, struct candidate *out)
{
    int n = 0;
    for (int m = 0; m < s->range[q->range].n_meshes && m < MAX_MESHES; m++) {
        struct candidate c;
        if (!estimate(s, q, m, &c))
            continue;
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
    int n = list_candidates(s, q, list);
    return n == 0 ? 0 : reply(s, list[0].t_ps, list[0].once_ps, -1, out);
}

/* The answer for CONFIG: remembered, if it is good for UPPER. */
static struct solved answer_for(struct mpp_stages *s, const struct question *q, int config, bool freely, int64_t upper)
{
    int64_t key[4] = {config, q->shape.run.layers, q->in_flight, freely};
    bool is_new;
    int id = mpp_memo_add(s->answers, key, sizeof key, &is_new);
    s->answer = mpp_arena_grow(s->round, s->answer, &s->cap_answer, (size_t)id + 1, sizeof *s->answer);
    if (!is_new && (freely || s->answer[id].fits || s->answer[id].bound >= upper))
        return s->answer[id];
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    struct mpp_fold fold;
    const int32_t *choice;
    struct solved x;
    solve_config(s, &s->config[config], &q->shape.run, q->in_flight, freely, upper, scratch, &fold, &choice, &x);
    x.bound = x.fits ? x.objective : s->gave_up ? 0 : upper;
    mpp_arena_free(scratch);
    s->answer[id] = x;
    return x;
}

/* A config whose free optimum does not fit. */
struct tight {
    int config, mesh;
    enum mpp_recompute recompute;
    int64_t objective;            /* of the free optimum */
};

/* The best plan of a question so far. */
struct found {
    bool any;
    struct solved answer;
    struct choice choice;
    int n_tight;
    struct tight tight[MAX_MESHES * MPP_RECOMPUTE_COUNT];
};

static void keep(struct found *f, const struct question *q, int mesh, enum mpp_recompute r, struct solved x)
{
    if (!x.fits || x.objective >= f->answer.objective)
        return;
    f->any = true;
    f->answer = x;
    f->choice = (struct choice){q->range, mesh, r, q->shape, NULL, x.objective};
}

/* The free optimum of Q on MESH with as little recomputation as it fits with. */
static void try_mesh(struct mpp_stages *s, const struct question *q, int mesh, struct found *f)
{
    int pinned = s->options->pins.recompute;
    for (int r = pinned >= 0 ? pinned : MPP_RECOMPUTE_NONE; r <= (pinned >= 0 ? pinned : MPP_RECOMPUTE_FULL); r++) {
        if (r == MPP_RECOMPUTE_SELECTIVE && pinned < 0 && !s->graph->unfused)
            continue;             /* a fused attention keeps no scores: there is next to nothing to save */
        int config = find_config(s, find_span(s, q->shape, (enum mpp_recompute)r), q->range, mesh);
        if (!s->config[config].ok || !solve_freely(s, config, &q->shape.run, q->range)->ok)
            continue;
        struct solved x = answer_for(s, q, config, true, INT64_MAX);
        keep(f, q, mesh, (enum mpp_recompute)r, x);
        if (x.fits)
            return;
        if (x.objective >= f->answer.objective)
            return;
        f->tight[f->n_tight++] = (struct tight){config, mesh, (enum mpp_recompute)r, x.objective};
    }
}

static int exactly(struct mpp_stages *s, const struct question *q, const struct mpp_pipeline_option **out)
{
    struct candidate list[MAX_MESHES];
    struct found *f = mpp_arena_array(s->round, 1, struct found);
    int n = list_candidates(s, q, list);
    f->answer.objective = s->upper;
    for (int i = 0; i < n && list[i].objective < f->answer.objective; i++)
        try_mesh(s, q, list[i].mesh, f);
    for (int done = 0; done < f->n_tight; done++) {
        int next = -1;
        for (int i = 0; i < f->n_tight; i++)
            if (f->tight[i].config >= 0 && (next < 0 || f->tight[i].objective < f->tight[next].objective))
                next = i;
        struct tight *t = &f->tight[next];
        if (t->objective >= f->answer.objective)
            break;
        keep(f, q, t->mesh, t->recompute, answer_for(s, q, t->config, false, f->answer.objective));
        t->config = -1;
    }
    if (!f->any)
        return 0;
    s->choice = mpp_arena_grow(s->arena, s->choice, &s->cap_choice, (size_t)s->n_choices + 1, sizeof *s->choice);
    f->choice.folded = mpp_arena_memdup(s->arena, f->answer.choice, sizeof(int32_t) * (size_t)f->answer.n_nodes);
    s->choice[s->n_choices] = f->choice;
    return reply(s, f->answer.t_ps, f->answer.once_ps, s->n_choices++, out);
}

int mpp_stages_options(void *context, const struct mpp_pipeline_key *key, bool exact,
                       const struct mpp_pipeline_option **out, bool *out_exact)
{
    struct mpp_stages *s = context;
    struct question q;
    *out_exact = exact;
    if (!ask(s, key, &q))
        return 0;
    s->unlike = false;
    int n = exact ? exactly(s, &q, out) : bounds(s, &q, out);
    while (s->unlike && s->folded != ALL) { /* more layers stand for themselves */
        s->folded = s->folded == FEW ? SEVERAL : ALL;
        s->one_run = s->one_run && s->folded != ALL;
        s->unlike = false;
        n = !ask(s, key, &q) ? 0 : exact ? exactly(s, &q, out) : bounds(s, &q, out);
    }
    return n;
}

int mpp_stages_alike(void *context, const struct mpp_pipeline_key *key)
{
    struct mpp_stages *s = context;
    struct question q;
    bool is_new;
    if (!ask(s, key, &q))
        return -1;
    int64_t place[5] = {q.shape.first, q.shape.last, q.shape.run.layers, q.range, q.in_flight};
    return mpp_memo_add(s->keys, place, sizeof place, &is_new);
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
    s->folded = graph->unfused ? ALL : FEW; /* each kernel by itself: few choices, and ends that are not like the rest */
    note_iterations(s);
    note_parts(s);
    s->one_run = s->one_run && s->folded != ALL;
    return s;
}

void mpp_stages_set(struct mpp_stages *s, const struct mpp_schedule *schedule, bool even, int64_t upper_ps,
                    int budget)
{
    s->even = even;
    s->budget = budget;
    s->gave_up = false;
    s->upper = upper_ps;
    bool same = s->round && s->schedule.micro_batches == schedule->micro_batches && s->schedule.chunks == schedule->chunks;
    s->schedule = *schedule;
    if (same)
        return;
    if (s->round)
        mpp_arena_free(s->round);
    s->round = mpp_arena_scratch(s->arena);
    for (int r = 0; r < s->n_ranges; r++)
        memset(s->range[r].survey, 0, sizeof *s->range[r].survey * (size_t)s->range[r].n_meshes);
    s->configs = mpp_memo_new(s->round);
    s->answers = mpp_memo_new(s->round);
    s->config = NULL;
    s->answer = NULL;
    s->cap_config = s->cap_answer = 0;
}

/* REAL, the program of a whole span whose layers are not those of the few that stood for them (values that many layers
 * read): solved as it is. */
static bool solve_whole(struct mpp_stages *s, const struct mpp_stage_problem *real, int64_t in_flight,
                        struct mpp_arena *arena, int32_t *out_choice)
{
    struct mpp_fold fold;
    struct mpp_fold_run none = {.repeat = -1};
    struct mpp_solver_info info;
    if (!mpp_fold_make(arena, real, &none, in_flight, &fold))
        return false;
    return (solve_free(s, fold.solver, out_choice, &info) >= 0 && info.peak_bytes <= s->capacity)
           || solve_within(s, &fold.solver, INT64_MAX, out_choice, &info);
}

enum mpp_status mpp_stages_decide(struct mpp_stages *s, const struct mpp_pipeline_stage *stage, struct mpp_stage *out)
{
    const struct choice *choice = &s->choice[stage->option.id];
    struct question q;
    bool ok = ask(s, &stage->key, &q);
    assert(ok);
    q.shape = choice->shape;
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    int id = find_config(s, find_span(s, q.shape, choice->recompute), choice->range, choice->mesh);
    struct mpp_fold fold;
    struct mpp_graph *g = NULL;
    const struct mpp_candidate *mesh = &s->range[choice->range].mesh[choice->mesh];
    struct mpp_pin_rules *rules;
    struct mpp_stage_problem *real;
    const char *reason;
    enum mpp_status st = MPP_LIMIT;
    if (!s->config[id].ok || !mpp_fold_make(scratch, s->config[id].problem, &q.shape.run, q.in_flight, &fold))
        goto done;
    MPP_TRY_GOTO(st, done, mpp_span_extract(s->arena, s->diag, s->graph, s->layering, stage->key.first_layer,
                                            stage->key.last_layer, choice->recompute, &g));
    mpp_graph_set_batch(g, g->global_batch / s->schedule.micro_batches);
    st = MPP_LIMIT;
    if (!mpp_pins_resolve(scratch, g, mesh, &s->options->pins, &rules, &reason)
        || !mpp_stage_problem_build(scratch, s->cluster, rules, site(s, stage->key.first_device), s->capacity, &real, &reason))
        goto done;
    int32_t *decided = mpp_arena_array(scratch, real->solver.n_nodes, int32_t);
    if (!mpp_fold_expand(&fold, &q.shape.run, choice->folded, real, decided) && !solve_whole(s, real, q.in_flight, scratch, decided))
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
        .status = MPP_SOLVER_OPTIMAL, .bound = choice->objective, .nodes_full = real->solver.n_nodes,
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

bool mpp_stages_gave_up(const struct mpp_stages *s)
{
    return s->gave_up;
}

int64_t mpp_stages_least(const struct mpp_stages *s)
{
    return s->least;
}
