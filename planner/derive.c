/* derive.c - what follows from a plan's decisions: copies, collectives, times, stage by stage and of the whole. */
#include <assert.h>
#include <string.h>

#include "ir/op.h"
#include "planner/derive.h"
#include "planner/stage.h"

struct derive {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const struct mpp_graph *g;
    struct mpp_stage *stage;
    struct mpp_reshard_env env;
    struct mpp_stage_uses uses;
    size_t cap_copies, cap_comms;
    struct mpp_memo *paths;       /* (shape, from, to) */
    struct mpp_copy **path;       /* by number: steps only */
    size_t cap_path;
    int64_t compute_ps, update_ps, activation_ps, gradient_ps, parameter_ps, receive_ps; /* per step */
    /* Unfused: of a micro-batch's forward and backward, in layers and outside of them, the kernels' time and the host's. */
    int64_t kernels_ps[2][2];
    double host_s[2][2];
    bool ok;
};

/* Work of PHASE takes COST; ONCE per step, or for each micro-batch. Of the optimiser's (AFTER): what waits for the norm of
 * all gradients. */
static void add_time(struct derive *d, enum mpp_phase phase, bool once, bool after, int64_t cost)
{
    struct mpp_stage_time *t = &d->stage->time;
    *(once || phase == MPP_PHASE_UPDATE ? &t->once_ps : phase == MPP_PHASE_BACKWARD ? &t->backward_ps : &t->forward_ps) += cost;
    if (after && d->g->grad_norm >= 0)
        t->update_ps += cost;
}

/* A framework's host starts a kernel of OP that takes COST, or a collective of which N members of a node wait for each
 * other. */
static void add_host(struct derive *d, enum mpp_phase phase, const struct mpp_gop *op, int64_t cost, int n)
{
    const struct mpp_device *dev = &d->env.cluster->device;
    bool backward = phase == MPP_PHASE_BACKWARD, outside = op->repeat < 0;
    if (!d->g->unfused || phase == MPP_PHASE_UPDATE)
        return;
    d->kernels_ps[backward][outside] += cost;
    d->host_s[backward][outside] += dev->dispatch_s + 0.5 * n * (n - 1) * dev->dispatch_pair_s;
}

/* Where the host takes longer than the kernels that it starts, they wait for it. */
static void wait_for_host(struct derive *d)
{
    if (!d->g->unfused)
        return;
    for (int backward = 0; backward < 2; backward++) {
        int64_t wait = backward ? mpp_cost_ps(d->env.cluster->device.dispatch_batch_s) : 0;
        for (int outside = 0; outside < 2; outside++) {
            int64_t late = mpp_cost_ps(d->host_s[backward][outside]) - d->kernels_ps[backward][outside];
            wait += late > 0 ? late : 0;
        }
        add_time(d, backward ? MPP_PHASE_BACKWARD : MPP_PHASE_FORWARD, false, false, wait);
        d->compute_ps += wait * mpp_phase_count(d->g, MPP_PHASE_BACKWARD);
    }
}

/* Frameworks reduce all gradients in one call: what the many calls take longer is taken off again. */
static void join_gradients(struct derive *d)
{
    struct mpp_stage *s = d->stage;
    for (unsigned mask = 1; mask < 1u << MPP_MAX_AXES && d->g->unfused; mask++) {
        double bytes = 0;
        int64_t sum = 0;
        for (int pass = 0; pass < 2; pass++) {
            int64_t joined = mpp_cost_collective(d->env.cluster, &d->env.groups[mask], MPP_COLLECTIVE_ALL_REDUCE, bytes);
            for (int i = 0; i < s->n_collectives && (pass == 0 || sum > joined); i++) {
                struct mpp_comm *c = &s->collectives[i];
                if (c->mask != mask || c->phase != MPP_PHASE_UPDATE || strcmp(c->role, "gradient") != 0 ||
                    strcmp(c->kind, "all-reduce") != 0)
                    continue;
                if (pass == 0) {
                    bytes += (double)c->bytes;
                    sum += c->cost_ps;
                } else {
                    c->cost_ps = (int64_t)((double)c->cost_ps * ((double)joined / (double)sum));
                }
            }
            if (pass == 1 && sum > joined) {
                add_time(d, MPP_PHASE_UPDATE, true, false, joined - sum);
                d->gradient_ps -= sum - joined;
            }
        }
    }
}

static struct mpp_sharding wanted(const struct derive *d, int group, int operand)
{
    return mpp_split_operand(d->g->groups[group].rule, d->stage->split[group], operand);
}

static struct mpp_sharding made(const struct derive *d, mpp_id t)
{
    int i = d->uses.producer[t], o = 0;
    if (i < 0)
        return d->stage->resting[t];
    while (d->g->groups[i].out[o] != t)
        o++;
    return wanted(d, i, d->g->groups[i].n_in + o);
}

/* ---- copies ---- */

/* The steps of a copy, worked out once per shape and pair of shardings. */
static bool fill_path(struct derive *d, struct mpp_copy *c)
{
    const struct mpp_gtensor *x = &d->g->tensors[c->tensor];
    int64_t key[MPP_GRAPH_MAX_DIMS + 4] = {x->dtype, x->n_dims};
    bool is_new;
    for (int i = 0; i < x->n_dims; i++)
        key[2 + i] = x->dims[i].size;
    key[MPP_GRAPH_MAX_DIMS + 2] = mpp_reshard_state(d->env.mesh, x->n_dims, c->from);
    key[MPP_GRAPH_MAX_DIMS + 3] = mpp_reshard_state(d->env.mesh, x->n_dims, c->to);
    int id = mpp_memo_add(d->paths, key, sizeof key, &is_new);
    if (is_new) {
        d->path = mpp_arena_grow(d->arena, d->path, &d->cap_path, (size_t)id + 1, sizeof(*d->path));
        d->path[id] = mpp_arena_array(d->arena, 1, struct mpp_copy);
        int64_t cost;
        d->path[id]->n_steps = mpp_reshard_path_in(&d->env, x, c->from, c->to, d->path[id]->steps, &cost);
    }
    c->n_steps = d->path[id]->n_steps;
    if (c->n_steps < 0)
        return false;
    memcpy(c->steps, d->path[id]->steps, sizeof c->steps);
    return true;
}

static void add_comm(struct derive *d, struct mpp_comm comm)
{
    struct mpp_stage *s = d->stage;
    s->collectives = mpp_arena_grow(d->arena, s->collectives, &d->cap_comms, (size_t)s->n_collectives + 1,
                                    sizeof *s->collectives);
    s->collectives[s->n_collectives++] = comm;
}

static bool feeds_gradient(const struct derive *d, mpp_id t)
{
    for (int u = d->uses.first_use[t]; u < d->uses.first_use[t + 1]; u++) {
        const struct mpp_group *group = &d->g->groups[d->uses.use[u]];
        const struct mpp_gtensor *out = group->n_out > 0 ? &d->g->tensors[group->out[0]] : NULL;
        if (out && out->role == MPP_ROLE_ACCUM && out->param >= 0)
            return true;
    }
    return false;
}

static void count_copy(struct derive *d, struct mpp_copy *c)
{
    const struct mpp_gtensor *x = &d->g->tensors[c->tensor];
    const struct mpp_gop *op = &d->g->ops[d->g->groups[c->first_group].ops[0]];
    int64_t times = c->once ? 1 : mpp_phase_count(d->g, c->phase), *sum = &d->activation_ps;
    const char *role = "activation";
    if (x->role == MPP_ROLE_PARAM || c->store) {
        sum = &d->parameter_ps;
        role = "parameter";
    } else if (x->role == MPP_ROLE_ACCUM ? x->param >= 0 : feeds_gradient(d, c->tensor)) {
        sum = &d->gradient_ps;
        role = "gradient";
    }
    for (int i = 0; i < c->n_steps; i++) {
        const struct mpp_reshard_step *step = &c->steps[i];
        *sum += times * step->cost_ps;
        add_time(d, c->phase, c->once, c->store, step->cost_ps);
        if (!c->once)
            add_host(d, c->phase, op, step->cost_ps, step->mask ? d->env.groups[step->mask].local : 1);
        if (step->kind == MPP_STEP_SLICE || step->kind == MPP_STEP_TO_PARTIAL)
            continue;
        add_comm(d, (struct mpp_comm){
            .kind = mpp_step_name(step->kind), .mask = step->mask, .bytes = step->bytes, .count = times,
            .cost_ps = step->cost_ps, .phase = c->store ? MPP_PHASE_UPDATE : c->phase, .tensor = x->name,
            .role = role, .reason = mpp_reason_step(d->arena, d->g, d->stage, c, i, d->uses.producer),
            .repeat = op->repeat, .index = op->index});
    }
}

static void add_copy(struct derive *d, struct mpp_copy c)
{
    struct mpp_stage *s = d->stage;
    const struct mpp_gtensor *x = &d->g->tensors[c.tensor];
    if (!fill_path(d, &c)) {
        mpp_diag_error(d->diag, (struct mpp_loc){0}, "the plan has no way from %s to %s of %s",
                       mpp_sharding_text(d->arena, x, &s->mesh, c.from), mpp_sharding_text(d->arena, x, &s->mesh, c.to),
                       x->name);
        d->ok = false;
        return;
    }
    s->copies = mpp_arena_grow(d->arena, s->copies, &d->cap_copies, (size_t)s->n_copies + 1, sizeof *s->copies);
    s->copies[s->n_copies++] = c;
}

static int chunk_of(const struct derive *d, int group)
{
    return d->g->ops[d->g->groups[group].ops[0]].chunk;
}

/* Copies of T for its readers of the phases in PHASES, which those of one chunk share. */
static void copies_of(struct derive *d, mpp_id t, unsigned phases, bool once)
{
    struct mpp_sharding from = made(d, t);
    int first = d->stage->n_copies;
    for (int u = d->uses.first_use[t]; u < d->uses.first_use[t + 1]; u++) {
        int i = d->uses.use[u], at = first;
        enum mpp_phase phase = d->g->groups[i].phase;
        struct mpp_sharding to = wanted(d, i, d->uses.use_operand[u]);
        if (!(phases >> phase & 1) || mpp_sharding_equal(from, to))
            continue;
        while (at < d->stage->n_copies && (!mpp_sharding_equal(d->stage->copies[at].to, to) ||
                                           (!once && chunk_of(d, d->stage->copies[at].first_group) != chunk_of(d, i))))
            at++;
        if (at == d->stage->n_copies)
            add_copy(d, (struct mpp_copy){
                .tensor = t, .phase = once && phase != MPP_PHASE_UPDATE ? MPP_PHASE_FORWARD : phase, .from = from,
                .to = to, .first_group = i, .last_group = i, .once = once});
        else
            d->stage->copies[at].last_group = i;
        if (!d->ok)
            return;
    }
}

static void all_copies(struct derive *d)
{
    const unsigned step = 1u << MPP_PHASE_PROLOGUE | 1u << MPP_PHASE_FORWARD | 1u << MPP_PHASE_BACKWARD;
    for (mpp_id t = 0; t < d->g->n_tensors && d->ok; t++) {
        const struct mpp_gtensor *x = &d->g->tensors[t];
        if (x->role == MPP_ROLE_STATE)
            continue;
        if (x->role == MPP_ROLE_PARAM && d->stage->kept[t]) {
            copies_of(d, t, step, true);
        } else {
            copies_of(d, t, 1u << MPP_PHASE_PROLOGUE, false);
            copies_of(d, t, 1u << MPP_PHASE_FORWARD, false);
            copies_of(d, t, 1u << MPP_PHASE_BACKWARD, false);
        }
        copies_of(d, t, 1u << MPP_PHASE_UPDATE, true);
        if (x->updates < 0 || d->g->tensors[x->updates].role != MPP_ROLE_PARAM || d->uses.producer[t] < 0)
            continue;
        struct mpp_sharding from = made(d, t), to = d->stage->resting[x->updates];
        if (!mpp_sharding_equal(from, to))
            add_copy(d, (struct mpp_copy){
                .tensor = t, .phase = MPP_PHASE_UPDATE, .from = from, .to = to, .first_group = d->uses.producer[t],
                .last_group = d->uses.producer[t], .once = true, .store = true});
    }
}

/* Stable: by the group before which they are made. */
static void sort_copies(struct derive *d)
{
    struct mpp_stage *s = d->stage;
    int n = s->n_copies, *start = mpp_arena_array(d->arena, d->g->n_groups + 1, int);
    struct mpp_copy *sorted = mpp_arena_array(d->arena, n, struct mpp_copy);
    for (int i = 0; i < n; i++)
        start[s->copies[i].first_group + 1]++;
    for (int i = 0; i < d->g->n_groups; i++)
        start[i + 1] += start[i];
    for (int i = 0; i < n; i++)
        sorted[start[s->copies[i].first_group]++] = s->copies[i];
    s->copies = sorted;
}

/* ---- groups ---- */

static void count_receive(struct derive *d, const struct mpp_group *group, int64_t cost, int64_t times)
{
    const struct mpp_gop *op = &d->g->ops[group->ops[0]];
    bool backward = group->phase == MPP_PHASE_BACKWARD;
    d->receive_ps += times * cost;
    add_comm(d, (struct mpp_comm){
        .kind = "receive", .bytes = mpp_price_receive_bytes(d->g, &d->env, group), .count = times * d->env.receives,
        .cost_ps = cost / d->env.receives, .phase = group->phase, .tensor = d->g->tensors[group->out[0]].name, .role = "receive",
        .repeat = op->repeat, .index = op->index,
        .reason = backward ? "a gradient comes from the next stage" : "a value comes from the stage before"});
}

static void count_group(struct derive *d, int i)
{
    const struct mpp_group *group = &d->g->groups[i];
    const struct mpp_gop *op = &d->g->ops[group->ops[0]];
    struct mpp_split split = d->stage->split[i];
    int64_t internal, times = mpp_phase_count(d->g, group->phase);
    int64_t compute = mpp_price_group_in(d->g, &d->env, group, split, &internal);
    bool update = group->phase == MPP_PHASE_UPDATE;
    add_time(d, group->phase, false, update, compute + internal);
    if (mpp_price_is_receive(d->g, group)) {
        count_receive(d, group, compute, times);
        return;
    }
    *(update ? &d->update_ps : &d->compute_ps) += times * compute;
    d->activation_ps += times * internal;
    if (group->n_out == 0 || d->g->tensors[group->out[0]].role != MPP_ROLE_ACCUM)
        add_host(d, group->phase, op, compute, 1);
    unsigned mask = mpp_price_internal_mask(group, split);
    struct mpp_internal list[8];
    for (int k = 0; mask && k < group->n_ops; k++) {
        int n = mpp_op_internal(d->g, &d->g->ops[group->ops[k]], d->env.mesh, split, list, 8);
        for (int j = 0; j < n; j++) {
            double bytes = 4.0 * (double)list[j].elements;
            add_host(d, group->phase, op, internal / n, d->env.groups[mask].local);
            add_comm(d, (struct mpp_comm){
                .kind = "all-reduce", .mask = mask, .bytes = 4 * list[j].elements, .count = times,
                .cost_ps = mpp_cost_collective(d->env.cluster, &d->env.groups[mask], MPP_COLLECTIVE_ALL_REDUCE, bytes),
                .phase = group->phase, .tensor = op->name, .role = "internal", .repeat = op->repeat, .index = op->index,
                .reason = mpp_reason_internal(d->arena, d->g, &d->stage->mesh, group, split, list[j].what)});
        }
    }
}

static void find_unsplit(struct derive *d)
{
    const struct mpp_graph *g = d->g;
    d->stage->n_unsplit = 0;
    d->stage->unsplit = mpp_arena_array(d->arena, g->n_groups, mpp_id);
    for (int i = 0; i < g->n_groups && d->stage->n_devices > 1; i++) {
        const struct mpp_group *group = &g->groups[i];
        bool split = false;
        for (int a = 0; a < MPP_MAX_AXES; a++)
            split = split || d->stage->split[i].axis[a] >= 0;
        if (!split && mpp_op_info(g->ops[group->ops[0]].kind)->cls == MPP_CLASS_CONTRACTION)
            d->stage->unsplit[d->stage->n_unsplit++] = i;
    }
}

/* ---- a stage ---- */

static void count_costs(struct derive *d)
{
    struct mpp_stage *s = d->stage;
    for (int i = 0, c = 0; i < d->g->n_groups; i++) {
        int first = c;
        for (; c < s->n_copies && s->copies[c].first_group == i; c++)
            s->copies[c].reason = mpp_reason_copy(d->arena, d->g, s, &s->copies[c], d->uses.producer);
        for (int k = first; k < c; k++)
            if (!s->copies[k].store)
                count_copy(d, &s->copies[k]);
        count_group(d, i);
        for (int k = first; k < c; k++)
            if (s->copies[k].store)
                count_copy(d, &s->copies[k]);
    }
}

static enum mpp_status derive_stage(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_cluster *cluster,
                                    struct mpp_schedule pipeline, int number, struct mpp_stage *s)
{
    struct derive d = {.arena = arena, .diag = diag, .g = s->graph, .stage = s, .ok = true};
    mpp_reshard_env_init(cluster, &s->mesh, s->first_device, &d.env);
    d.paths = mpp_memo_new(arena);
    s->in_flight = mpp_schedule_in_flight(&pipeline, number);
    s->time = (struct mpp_stage_time){0};
    s->n_copies = s->n_collectives = 0;
    s->copies = NULL;
    s->collectives = NULL;
    mpp_stage_note_uses(arena, s->graph, &d.uses);
    all_copies(&d);
    if (!d.ok)
        return MPP_INVALID;
    sort_copies(&d);
    count_costs(&d);
    wait_for_host(&d);
    join_gradients(&d);
    find_unsplit(&d);
    int64_t busy = d.compute_ps + d.update_ps + d.activation_ps + d.gradient_ps + d.parameter_ps + d.receive_ps;
    s->predicted = (struct mpp_prediction){
        .step_s = (double)busy * 1e-12, .compute_s = (double)d.compute_ps * 1e-12,
        .activation_comm_s = (double)d.activation_ps * 1e-12, .gradient_comm_s = (double)d.gradient_ps * 1e-12,
        .parameter_comm_s = (double)d.parameter_ps * 1e-12, .update_s = (double)d.update_ps * 1e-12,
        .receive_s = (double)d.receive_ps * 1e-12};
    return MPP_OK;
}

/* ---- the whole ---- */

/* More pieces of work are not simulated one by one. */
static const double MOST_EVENTS = 2e7;

static void derive_times(struct mpp_arena *arena, struct mpp_plan *plan)
{
    int n = plan->n_stages, slowest = 0;
    struct mpp_stage_time *time = mpp_arena_array(arena, n, struct mpp_stage_time);
    for (int i = 0; i < n; i++) {
        time[i] = plan->stages[i].time;
        if (plan->stages[i].predicted.step_s > plan->stages[slowest].predicted.step_s)
            slowest = i;
    }
    plan->objective_ps = mpp_schedule_time(&plan->pipeline, time);
    plan->simulated_ps = plan->objective_ps;
    if (n > 1 && (double)n * plan->pipeline.chunks * (double)plan->micro_batches <= MOST_EVENTS)
        plan->simulated_ps = mpp_schedule_simulate(arena, &plan->pipeline, time, NULL, NULL);
    if (plan->bound_ps > plan->objective_ps)
        plan->bound_ps = plan->objective_ps;
    plan->gap = plan->objective_ps > 0 ? (double)(plan->objective_ps - plan->bound_ps) / (double)plan->objective_ps : 0;
    plan->predicted = plan->stages[slowest].predicted;
    plan->predicted.step_s = (double)plan->objective_ps * 1e-12;
    plan->predicted.bubble_s = n > 1 ? plan->predicted.step_s - plan->stages[slowest].predicted.step_s : 0;
}

int mpp_plan_fullest(const struct mpp_plan *plan)
{
    int most = 0;
    for (int i = 1; i < plan->n_stages; i++)
        if (plan->stages[i].memory.arena_bytes > plan->stages[most].memory.arena_bytes)
            most = i;
    return most;
}

double mpp_plan_step_flops(const struct mpp_graph *graph)
{
    double f = 0;
    for (int o = 0; o < graph->n_ops; o++)
        f += mpp_op_flops(graph, &graph->ops[o]) * (double)mpp_phase_count(graph, graph->ops[o].phase);
    return f;
}

double mpp_plan_peak_flops(const struct mpp_graph *graph, const struct mpp_cluster *cluster)
{
    const char *name = graph->model ? graph->model->training.precision : NULL;
    enum mpp_precision p = !name ? MPP_PRECISION_F32 : strcmp(name, "bf16") == 0 ? MPP_PRECISION_BF16
                           : strcmp(name, "f16") == 0 || strcmp(name, "fp16") == 0 ? MPP_PRECISION_F16 : MPP_PRECISION_F32;
    double each = cluster->device.peak_flops_per_s[p];
    return (each > 0 ? each : cluster->device.peak_flops_per_s[MPP_PRECISION_F32]) * cluster->n_devices;
}

enum mpp_status mpp_plan_derive(struct mpp_arena *arena, struct mpp_diag *diag, struct mpp_graph *graph,
                                const struct mpp_cluster *cluster, struct mpp_plan *plan)
{
    int64_t micro_batch = plan->batch / plan->micro_batches;
    assert(plan->n_stages >= 1 && plan->batch % plan->micro_batches == 0);
    mpp_graph_set_batch(graph, micro_batch);
    if (plan->n_stages == 1)
        plan->pipeline = (struct mpp_schedule){.kind = MPP_SCHEDULE_1F1B, .chunks = 1};
    plan->pipeline.stages = plan->n_stages;
    plan->pipeline.micro_batches = plan->micro_batches;
    for (int i = 0; i < plan->n_stages; i++) {
        if (!plan->stages[i].graph)
            plan->stages[i].graph = graph;
        mpp_graph_set_batch(plan->stages[i].graph, micro_batch);
        MPP_TRY(derive_stage(arena, diag, cluster, plan->pipeline, i, &plan->stages[i]));
    }
    derive_times(arena, plan);
    return MPP_OK;
}
