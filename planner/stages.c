#include "planner/stages.h"

#include <string.h>

#include "planner/stages_internal.h"

static int reply(struct mpp_stages *s, int64_t t, int64_t once, int id, const struct mpp_pipeline_option **out)
{
    s->reply[0] = (struct mpp_pipeline_option){t, once, id, false};
    *out = s->reply;
    return 1;
}

/* Stages of equally many devices have about equally many layers: a tenth more or less, at least one. */
static bool about_its_share(const struct mpp_stages *s, double iterations, int n_devices)
{
    double all = 0;
    for (int l = 0; l < s->layering->n_layers; l++)
        all += s->part[MPP_STAGES_ITERATION][l];
    double share = all * n_devices / s->cluster->n_devices, slack = share / 10 > 1 ? share / 10 : 1;
    return iterations >= share - slack - 1e-9 && iterations <= share + slack + 1e-9;
}

static bool ask(struct mpp_stages *s, const struct mpp_pipeline_key *key, struct mpp_stages_question *q)
{
    int64_t layers = key->last_layer - key->first_layer + 1;
    if (s->schedule.chunks > 1 && layers * s->cluster->n_devices != (int64_t)s->layering->n_layers * key->n_devices)
        return false;             /* interleaved: the same for all stages */
    *q = (struct mpp_stages_question){.in_flight = key->in_flight, .stage = *key};
    q->shape = mpp_stages_represent(s, key->first_layer, key->last_layer);
    for (int k = 0; k < MPP_STAGES_N_PARTS && s->one_run; k++)
        for (int l = key->first_layer; l <= key->last_layer; l++)
            q->part[k] += s->part[k][l];
    if (s->even && s->one_run && !about_its_share(s, q->part[MPP_STAGES_ITERATION], key->n_devices))
        return false;
    q->range = mpp_stages_find_range(s, key->n_devices, key->first_device);
    return mpp_stages_place_of(s, q->range)->n_meshes > 0;
}

bool mpp_stages_ask_whole(struct mpp_stages *s, const struct mpp_pipeline_key *key, struct mpp_stages_question *q)
{
    int64_t layers = key->last_layer - key->first_layer + 1;
    if (s->schedule.chunks > 1 && layers * s->cluster->n_devices != (int64_t)s->layering->n_layers * key->n_devices)
        return false;
    *q = (struct mpp_stages_question){.in_flight = key->in_flight, .stage = *key};
    q->shape = (struct mpp_stages_shape){.first = key->first_layer, .last = key->last_layer, .cut_last = -1, .run = {.repeat = -1}};
    q->range = mpp_stages_find_range(s, key->n_devices, key->first_device);
    return mpp_stages_place_of(s, q->range)->n_meshes > 0;
}

static int bounds(struct mpp_stages *s, const struct mpp_stages_question *q, const struct mpp_pipeline_option **out)
{
    struct mpp_stages_candidate list[MPP_STAGES_MAX_MESHES];
    int n = mpp_stages_list_candidates(s, q, list);
    return n == 0 ? 0 : reply(s, list[0].t_ps, list[0].once_ps, -1, out);
}

/* A case whose free optimum does not fit. */
struct tight {
    struct mpp_stages_case x;
    int mesh;
    enum mpp_recompute recompute;
    bool done;
};

/* The best plan of a question so far. */
struct found {
    bool any;
    struct mpp_stages_answer answer;
    struct mpp_stages_choice choice;
    int n_tight;
    struct tight tight[MPP_STAGES_MAX_MESHES * MPP_RECOMPUTE_COUNT];
};

static void keep(const struct mpp_stages *s, struct found *f, const struct mpp_stages_question *q, int mesh, enum mpp_recompute r,
                 const struct mpp_stages_case *x, const int32_t *choice)
{
    if (!choice)
        return;
    struct mpp_stages_answer a = mpp_stages_answer_of(s, x, choice);
    if (a.objective >= f->answer.objective)
        return;
    f->any = true;
    f->answer = a;
    f->choice = (struct mpp_stages_choice){q->range, mesh, r, q->shape, NULL, a.objective, x->free_fits ? a.objective : x->least,
                                           {a.time, mpp_stages_place_of(s, q->range)->mesh[mesh].mesh, r}};
}

/* The free optimum of Q on MESH with as little recomputation as it fits with. */
static void try_mesh(struct mpp_stages *s, const struct mpp_stages_question *q, int mesh, struct mpp_arena *scratch, struct found *f)
{
    int pinned = s->options->pins.recompute;
    for (int r = pinned >= 0 ? pinned : MPP_RECOMPUTE_NONE; r <= (pinned >= 0 ? pinned : MPP_RECOMPUTE_FULL); r++) {
        if (r == MPP_RECOMPUTE_SELECTIVE && pinned < 0 && !s->graph->unfused)
            continue;             /* a fused attention keeps no scores: there is next to nothing to save */
        struct mpp_stages_config *config = mpp_stages_find_config(s, mpp_stages_find_span(s, q->shape, (enum mpp_recompute)r), q->range, mesh);
        if (!config->ok)
            continue;
        struct mpp_stages_case x = {.config = config, .stage = q->stage, .recompute = (enum mpp_recompute)r, .layers = q->shape.run.layers, .in_flight = q->in_flight};
        mpp_stages_look(s, &x, &q->shape.run, q->range, scratch);
        s->memory_bound = s->memory_bound || !x.free_fits;
        if (!x.ok)
            continue;
        if (x.free_fits)
            keep(s, f, q, mesh, (enum mpp_recompute)r, &x, x.config->freely.choice);
        if (x.free_fits || x.least >= f->answer.objective)
            return;
        int64_t objective;
        keep(s, f, q, mesh, (enum mpp_recompute)r, &x, mpp_stages_from_pool(s, &x, &objective));
        f->tight[f->n_tight++] = (struct tight){x, mesh, (enum mpp_recompute)r, false};
    }
}

/* What is cheapest if memory is no matter comes first. */
static void try_tight(struct mpp_stages *s, const struct mpp_stages_question *q, struct found *f)
{
    for (;;) {
        struct tight *t = NULL;
        for (int i = 0; i < f->n_tight; i++)
            if (!f->tight[i].done && (!t || f->tight[i].x.least < t->x.least))
                t = &f->tight[i];
        if (!t || t->x.least >= f->answer.objective)
            return;
        const int32_t *choice = mpp_stages_solve_tight(s, &t->x, f->answer.objective);
        keep(s, f, q, t->mesh, t->recompute, &t->x, choice);
        t->done = true;
        if (f->choice.mesh == t->mesh && f->choice.recompute == t->recompute)
            f->choice.bound = t->x.least;
    }
}

static int exactly(struct mpp_stages *s, const struct mpp_stages_question *q, const struct mpp_pipeline_option **out)
{
    struct mpp_stages_candidate list[MPP_STAGES_MAX_MESHES];
    struct mpp_arena *scratch = mpp_arena_scratch(s->round);
    struct found *f = mpp_arena_array(scratch, 1, struct found);
    int n = mpp_stages_list_candidates(s, q, list);
    f->answer.objective = s->upper;
    for (int i = 0; i < n && list[i].objective < f->answer.objective; i++)
        try_mesh(s, q, list[i].mesh, scratch, f);
    try_tight(s, q, f);
    if (f->any) {
        s->choice = mpp_arena_grow(s->arena, s->choice, &s->cap_choice, (size_t)s->n_choices + 1, sizeof *s->choice);
        f->choice.folded = mpp_arena_memdup(s->arena, f->answer.choice, sizeof(int32_t) * (size_t)f->answer.n_nodes);
        s->choice[s->n_choices] = f->choice;
    }
    int answers = f->any ? reply(s, f->answer.t_ps, f->answer.once_ps, s->n_choices++, out) : 0;
    mpp_arena_free(scratch);
    return answers;
}

int mpp_stages_options(void *context, const struct mpp_pipeline_key *key, bool exact,
                       const struct mpp_pipeline_option **out, bool *out_exact)
{
    struct mpp_stages *s = context;
    struct mpp_stages_question q;
    *out_exact = exact;
    if (mpp_stages_interrupted(s) || !ask(s, key, &q))
        return 0;
    s->unlike = false;
    int n = exact ? exactly(s, &q, out) : bounds(s, &q, out);
    while (s->unlike && s->folded != MPP_STAGES_ALL) { /* more layers stand for themselves */
        s->folded = s->folded == MPP_STAGES_FEW ? MPP_STAGES_SEVERAL : MPP_STAGES_ALL;
        s->one_run = s->one_run && s->folded != MPP_STAGES_ALL;
        s->unlike = false;
        n = !ask(s, key, &q) ? 0 : exact ? exactly(s, &q, out) : bounds(s, &q, out);
    }
    return n;
}

int mpp_stages_alike(void *context, const struct mpp_pipeline_key *key)
{
    struct mpp_stages *s = context;
    struct mpp_stages_question q;
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
    s->interrupt = options->interrupt;
    s->capacity = options->capacity_bytes > 0 ? options->capacity_bytes : mpp_device_usable_bytes(&cluster->device);
    s->spans = mpp_memo_new(arena);
    s->places = mpp_memo_new(arena);
    s->ranges = mpp_memo_new(arena);
    s->surveys = mpp_memo_new(arena);
    s->keys = mpp_memo_new(arena);
    s->folded = graph->unfused ? MPP_STAGES_ALL : MPP_STAGES_FEW; /* each kernel by itself: few choices, and ends that are not like the rest */
    mpp_stages_note_iterations(s);
    mpp_stages_note_parts(s);
    s->one_run = s->one_run && s->folded != MPP_STAGES_ALL;
    return s;
}

void mpp_stages_go_on(struct mpp_stages *s)
{
    if (s)
        s->interrupt = NULL;
}

void mpp_stages_try_both_orders(struct mpp_stages *s)
{
    s->both_orders = true;
}

void mpp_stages_set(struct mpp_stages *s, const struct mpp_schedule *schedule, bool even, int64_t upper_ps,
                    int budget)
{
    s->even = even;
    s->budget = budget;
    s->gave_up = s->memory_bound = false;
    s->unproven_ps = INT64_MAX;
    s->share = 1;
    s->others_ps = 0;
    s->upper = upper_ps;
    bool same = s->round && s->schedule.micro_batches == schedule->micro_batches && s->schedule.chunks == schedule->chunks;
    s->schedule = *schedule;
    if (same)
        return;
    if (s->round)
        mpp_arena_free(s->round);
    s->round = mpp_arena_scratch(s->arena);
    for (int i = 0; i < s->n_places; i++)
        memset(s->place[i].book, 0, sizeof *s->place[i].book * (size_t)s->place[i].n_meshes);
    s->offers = NULL;
    s->configs = mpp_memo_new(s->round);
    s->config = NULL;
    s->cap_config = 0;
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
    return (mpp_stages_solve_free(s, fold.solver, out_choice, &info) >= 0 && info.peak_bytes <= s->capacity)
           || mpp_stages_solve_within(s, &fold.solver, INT64_MAX, out_choice, &info) == MPP_OK;
}

enum mpp_status mpp_stages_decide(struct mpp_stages *s, const struct mpp_pipeline_stage *stage, struct mpp_stage *out)
{
    const struct mpp_stages_choice *choice = &s->choice[stage->option.id];
    struct mpp_stages_question q = {.shape = choice->shape, .in_flight = stage->key.in_flight};
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    struct mpp_stages_config *id = mpp_stages_find_config(s, mpp_stages_find_span(s, q.shape, choice->recompute), choice->range, choice->mesh);
    struct mpp_fold fold;
    struct mpp_graph *g = NULL;
    const struct mpp_candidate *mesh = &mpp_stages_place_of(s, choice->range)->mesh[choice->mesh];
    struct mpp_pin_rules *rules;
    struct mpp_stage_problem *real;
    const char *reason;
    enum mpp_status st = MPP_LIMIT;
    if (!id->ok || !mpp_fold_make(scratch, id->problem, &q.shape.run, q.in_flight, &fold))
        goto done;
    MPP_TRY_GOTO(st, done, mpp_span_extract(s->arena, s->diag, s->graph, s->layering, stage->key.first_layer,
                                            stage->key.last_layer, choice->recompute, &g));
    mpp_graph_set_batch(g, g->global_batch / s->schedule.micro_batches);
    st = MPP_LIMIT;
    if (!mpp_pins_resolve(scratch, g, mesh, &s->options->pins, &rules, &reason)
        || !mpp_stage_problem_build(scratch, s->cluster, rules, mpp_stages_site(s, stage->key.first_device), s->capacity, &real, &reason))
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
        .bound = choice->bound, .nodes_full = real->solver.n_nodes,
        .values_full = real->solver.n_values, .nodes_reduced = fold.solver.n_nodes, .values_reduced = fold.solver.n_values,
        .glpk_status = "not needed"};
    out->solver.objective = mpp_solver_evaluate(&real->solver, decided, &out->solver.peak_bytes, &out->solver.peak_time);
    mpp_stages_close(&out->solver);
    st = MPP_OK;
done:
    mpp_arena_free(scratch);
    return st;
}

const struct mpp_stages_facts *mpp_stages_facts(const struct mpp_stages *s, int id)
{
    return &s->choice[id].facts;
}

void mpp_stages_set_capacity(struct mpp_stages *s, int64_t capacity_bytes)
{
    s->shrunk = s->shrunk || capacity_bytes < s->capacity;
    s->capacity = capacity_bytes;
}

bool mpp_stages_shrink(struct mpp_stages *s, struct mpp_pipeline_stage *stage, int64_t capacity_bytes)
{
    const struct mpp_pipeline_option *option;
    int64_t before = s->capacity;
    bool exact, shrunk = s->shrunk;
    s->capacity = capacity_bytes;
    s->shrunk = true;             /* what is proven now does not hold for all the room there is */
    bool found = mpp_stages_options(s, &stage->key, true, &option, &exact) > 0;
    if (found)
        stage->option = *option;
    s->shrunk = shrunk;
    s->capacity = before;
    return found;
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

bool mpp_stages_memory_bound(const struct mpp_stages *s)
{
    return s->memory_bound;
}

int64_t mpp_stages_unproven(const struct mpp_stages *s)
{
    return s->unproven_ps;
}

const struct mpp_stages_nearest *mpp_stages_nearest(const struct mpp_stages *s)
{
    return &s->nearest;
}
