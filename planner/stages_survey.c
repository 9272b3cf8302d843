/* stages_survey.c - what spans take at least, about: from one program of the whole model on each mesh. */
#include "planner/stages_internal.h"

#include <math.h>

/* Parts of spans are now and then a little faster than those of the whole model. */
static const double SURE = 0.99;

/* ---- surveys ---- */

/* Which part of the model a node of the survey's graph belongs to. */
static int part_of_node(const struct mpp_stage_problem *p, int node, int repeat, int first_forward, int first_backward)
{
    const struct mpp_stage_node *x = &p->node[node];
    const struct mpp_graph *g = p->graph;
    if (x->kind != MPP_NODE_GROUPS)
        return g->tensors[x->tensor].repeat == repeat ? MPP_STAGES_ITERATION : MPP_STAGES_AFTER;
    const struct mpp_gop *op = &g->ops[g->groups[x->groups[0]].ops[0]];
    if (op->repeat == repeat)
        return MPP_STAGES_ITERATION;
    if (op->phase == MPP_PHASE_UPDATE)
        return MPP_STAGES_AFTER;
    return op->phase <= MPP_PHASE_FORWARD ? (x->groups[0] < first_forward ? MPP_STAGES_BEFORE : MPP_STAGES_AFTER)
                                          : (x->groups[0] < first_backward ? MPP_STAGES_AFTER : MPP_STAGES_BEFORE);
}

/* The parts' costs under CHOICE of FOLD, which stands for so many ITERATIONS. */
static void split_costs(const struct mpp_stages *s, const struct mpp_fold *fold, const int32_t *choice, int repeat,
                        double iterations, struct mpp_stages_survey *out)
{
    const struct mpp_stage_problem *p = fold->p;
    const struct mpp_graph *g = p->graph;
    int first_forward = g->n_groups, first_backward = g->n_groups;
    for (int i = g->n_groups - 1; i >= 0; i--)
        if (g->ops[g->groups[i].ops[0]].repeat == repeat)
            *(g->groups[i].phase <= MPP_PHASE_FORWARD ? &first_forward : &first_backward) = i;
    double t[MPP_STAGES_N_PARTS] = {0}, once[MPP_STAGES_N_PARTS] = {0};
    for (int i = 0; i < fold->solver.n_nodes; i++) {
        int part = part_of_node(p, fold->from[i], repeat, first_forward, first_backward);
        *(fold->node_once[i] ? &once[part] : &t[part]) += (double)fold->solver.nodes[i].cost[choice[i]];
    }
    for (int i = 0; i < fold->solver.n_values; i++) {
        const struct mpp_solver_value *v = &fold->solver.values[i];
        int part = part_of_node(p, fold->from[v->consumers[0]], repeat, first_forward, first_backward);
        *(fold->value_once[i] ? &once[part] : &t[part]) += (double)mpp_fold_copies(fold, i, choice);
    }
    for (int k = 0; k < MPP_STAGES_N_PARTS; k++) {
        double n = k == MPP_STAGES_ITERATION ? iterations : 1;
        out->t[k] = t[k] / n / (double)s->schedule.micro_batches;
        out->once[k] = once[k] / n;
    }
}

/* The whole model on RANGE with MESH, into OUT. */
static void survey(struct mpp_stages *s, int range, int mesh, struct mpp_stages_survey *out)
{
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    struct mpp_fold fold;
    double iterations = 0;
    for (int l = 0; l < s->layering->n_layers; l++)
        iterations += s->part[MPP_STAGES_ITERATION][l];
    for (;;) {
        struct mpp_stages_shape shape = mpp_stages_represent(s, 0, s->layering->n_layers - 1);
        int64_t folded = shape.run.layers;
        struct mpp_stages_config *config = mpp_stages_find_config(s, mpp_stages_find_span(s, shape, mpp_stages_least_recompute(s)), range, mesh);
        if (!config->ok)
            break;
        const struct mpp_stages_freely *f = mpp_stages_solve_freely(s, config, &shape.run, range);
        shape.run.layers = mpp_stages_typical_layers(s, &shape.run, range);
        if (f->ok && mpp_fold_make(scratch, config->problem, &shape.run, 1, &fold)) {
            out->ok = true;
            split_costs(s, &fold, f->choice, shape.run.repeat, iterations + (double)(shape.run.layers - folded), out);
            break;
        }
        if (!s->unlike || s->folded == MPP_STAGES_SEVERAL)
            break;
        s->folded = MPP_STAGES_SEVERAL; /* the ends of the run are not like its other layers */
        s->unlike = false;
    }
    mpp_arena_free(scratch);
}

static const struct mpp_stages_survey *look_at(struct mpp_stages *s, int range, int mesh)
{
    int64_t key[3] = {s->schedule.micro_batches, s->range[range].place, mesh};
    bool is_new;
    int id = mpp_memo_add(s->surveys, key, sizeof key, &is_new);
    if (is_new) {
        s->survey = mpp_arena_grow(s->arena, s->survey, &s->cap_survey, (size_t)id + 1, sizeof *s->survey);
        s->survey[id] = (struct mpp_stages_survey){0};
    }
    if (!s->survey[id].known) {
        struct mpp_stages_survey x = {0};
        survey(s, range, mesh, &x);
        x.known = !mpp_stages_interrupted(s);
        s->survey[id] = x;
    }
    return &s->survey[id];
}

/* ---- candidates ---- */

enum mpp_recompute mpp_stages_least_recompute(const struct mpp_stages *s)
{
    return s->options->pins.recompute >= 0 ? (enum mpp_recompute)s->options->pins.recompute : MPP_RECOMPUTE_NONE;
}

bool mpp_stages_batch_agrees(const struct mpp_stages *s, const struct mpp_candidate *c)
{
    int dp = c->data_axis >= 0 ? c->mesh.size[c->data_axis] : 1;
    int64_t pinned = s->options->pins.micro_batch;
    return pinned == 0 || s->schedule.micro_batches * pinned * dp == s->graph->global_batch;
}

static int64_t to_ps(double x)
{
    return x < 0 ? 0 : x > 9e18 ? INT64_MAX / 4 : (int64_t)x;
}

/* What Q takes with MESH if memory is no matter; false: it cannot be. */
static bool estimate(struct mpp_stages *s, const struct mpp_stages_question *q, int mesh, struct mpp_stages_candidate *out)
{
    *out = (struct mpp_stages_candidate){.mesh = mesh};
    if (!mpp_stages_batch_agrees(s, &mpp_stages_place_of(s, q->range)->mesh[mesh]))
        return false;
    if (s->one_run) {
        const struct mpp_stages_survey *x = look_at(s, q->range, mesh);
        double t = 0, once = 0;
        for (int k = 0; k < MPP_STAGES_N_PARTS; k++) {
            t += q->part[k] * x->t[k];
            once += q->part[k] * x->once[k];
        }
        out->t_ps = to_ps(t);
        out->once_ps = to_ps(once);
        if (!x->ok)
            return false;
    } else {
        struct mpp_stages_config *config = mpp_stages_find_config(s, mpp_stages_find_span(s, q->shape, mpp_stages_least_recompute(s)), q->range, mesh);
        const struct mpp_stages_freely *f = config->ok ? mpp_stages_solve_freely(s, config, &q->shape.run, q->range) : NULL;
        if (!f || !f->ok)
            return false;
        out->t_ps = mpp_stages_at_layers(f->t_base, f->t_slope, q->shape.run.layers);
        out->once_ps = mpp_stages_at_layers(f->once_base, f->once_slope, q->shape.run.layers);
    }
    out->objective = to_ps((double)out->t_ps * (double)s->schedule.micro_batches + (double)out->once_ps);
    return true;
}

/* The meshes of Q by what they take at least. */
int mpp_stages_list_candidates(struct mpp_stages *s, const struct mpp_stages_question *q, struct mpp_stages_candidate *out)
{
    int n = 0;
    int n_meshes = mpp_stages_place_of(s, q->range)->n_meshes;
    for (int m = 0; m < n_meshes && m < MPP_STAGES_MAX_MESHES; m++) {
        struct mpp_stages_candidate c;
        if (!estimate(s, q, m, &c))
            continue;
        int at = n++;
        for (; at > 0 && out[at - 1].objective > c.objective; at--)
            out[at] = out[at - 1];
        out[at] = c;
    }
    return n;
}

/* ---- rounds ---- */

/* The least that surveys of the present micro-batch say, per part: of t; and of what a step takes, times devices if stages
 * may have any number of them. */
struct least {
    double t[MPP_STAGES_N_PARTS], step[MPP_STAGES_N_PARTS];
    bool any;
};

static void look_at_range(struct mpp_stages *s, int n, int first, struct least *out)
{
    int range = mpp_stages_find_range(s, n, first), n_meshes = mpp_stages_place_of(s, range)->n_meshes;
    for (int m = 0; m < n_meshes && m < MPP_STAGES_MAX_MESHES; m++) {
        if (!mpp_stages_batch_agrees(s, &mpp_stages_place_of(s, range)->mesh[m]))
            continue;
        const struct mpp_stages_survey *x = look_at(s, range, m);
        for (int k = 0; k < MPP_STAGES_N_PARTS && x->ok; k++) {
            double step = (x->t[k] * (double)s->schedule.micro_batches + x->once[k]) * (s->even ? 1 : n);
            out->t[k] = out->any && out->t[k] < x->t[k] ? out->t[k] : x->t[k];
            out->step[k] = out->any && out->step[k] < step ? out->step[k] : step;
        }
        out->any = out->any || x->ok;
    }
}

/* T = B max t + (sum of t - max t) / V + max once, of which the stage that takes most, c = B t + once, bears
 * c (1 - 1 / (B V)) at least, and all together the sum of t / V. */
int64_t mpp_stages_bound(struct mpp_stages *s, int n_sizes, const int *sizes)
{
    int stages = s->schedule.stages, n = s->cluster->n_devices;
    double chunks = s->schedule.chunks, b = (double)s->schedule.micro_batches, t = 0, most = 0, iterations = 0;
    struct least least = {.any = false};
    if (!s->one_run)
        return 0;
    for (int i = 0; i < n_sizes; i++)
        for (int first = 0; first + sizes[i] <= n; first += s->even ? sizes[i] : 1)
            if (s->even ? sizes[i] * stages == n : sizes[i] <= n - stages + 1)
                look_at_range(s, sizes[i], first, &least);
    if (!s->one_run || !least.any)
        return 0;
    for (int k = 0; k < MPP_STAGES_N_PARTS; k++)
        for (int l = 0; l < s->layering->n_layers; l++) {
            t += s->part[k][l] * least.t[k];
            most += s->part[k][l] * least.step[k] / (s->even ? stages : n);
            iterations += k == MPP_STAGES_ITERATION ? s->part[k][l] : 0;
        }
    double whole = ceil(iterations / stages - 1e-9) * least.step[MPP_STAGES_ITERATION];
    most = s->even && whole > most ? whole : most;
    s->share = 1 - 1 / (b * chunks);
    s->others_ps = stages > 1 ? SURE * t / chunks : 0;
    if (stages > 1 && s->upper < INT64_MAX && s->share > 0) {
        int64_t upper = to_ps(((double)s->upper - s->others_ps) / s->share);
        s->upper = upper < s->upper ? upper : s->upper;
    }
    double all = most * s->share + t / chunks;
    return stages == 1 ? to_ps(most) : to_ps(SURE * (most > all ? most : all));
}
