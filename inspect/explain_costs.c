/* explain_costs.c - what an op or tensor takes in a plan: kernels, copies, bytes. */
#include <string.h>

#include "inspect/explain_internal.h"
#include "inspect/words.h"
#include "ir/op.h"

struct marks {
    const struct mpp_stage *stage;
    bool *group, *tensor;         /* kernels and tensors that are the thing's */
};

static bool named(const struct mpp_thing *thing, const char *name)
{
    return strcmp(thing->glob, name) == 0 || (strpbrk(thing->glob, "*?") && mpp_glob(thing->glob, name));
}

static bool reads(const struct mpp_group *group, mpp_id t)
{
    for (int k = 0; k < group->n_in; k++)
        if (group->in[k] == t)
            return true;
    return false;
}

static bool makes(const struct mpp_group *group, mpp_id t)
{
    for (int k = 0; k < group->n_out; k++)
        if (group->out[k] == t)
            return true;
    return false;
}

/* The op's kernels, and of its gradients; what they read and make. */
static void mark_op(const struct mpp_thing *thing, struct marks *m)
{
    const struct mpp_graph *g = m->stage->graph;
    for (int i = 0; i < g->n_groups; i++) {
        const struct mpp_group *group = &g->groups[i];
        for (int k = 0; k < group->n_ops; k++) {
            const struct mpp_gop *op = &g->ops[group->ops[k]];
            m->group[i] = m->group[i] || named(thing, op->name) || (op->forward >= 0 && named(thing, g->ops[op->forward].name));
        }
        for (int k = 0; m->group[i] && k < group->n_in + group->n_out; k++) {
            mpp_id t = k < group->n_in ? group->in[k] : group->out[k - group->n_in];
            if (t >= 0)
                m->tensor[t] = true;
        }
    }
}

/* The tensor, its kernels; of a weight also its gradient's sums and its new value. */
static void mark_tensor(const struct mpp_thing *thing, struct marks *m)
{
    const struct mpp_graph *g = m->stage->graph;
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        const struct mpp_gtensor *x = &g->tensors[t];
        bool its = named(thing, x->name) || (x->info && x->info->published && named(thing, x->info->published));
        if (!its)
            continue;
        m->tensor[t] = true;
        mpp_id gradient = x->info ? x->info->gradient : -1;
        for (mpp_id u = 0; u < g->n_tensors && x->role == MPP_ROLE_PARAM; u++)
            m->tensor[u] = m->tensor[u] || g->tensors[u].updates == t;
        for (int i = 0; i < g->n_groups; i++) {
            m->group[i] = m->group[i] || reads(&g->groups[i], t) || makes(&g->groups[i], t);
            for (int k = 0; gradient >= 0 && makes(&g->groups[i], gradient) && k < g->groups[i].n_in; k++)
                if (g->groups[i].in[k] >= 0)
                    m->tensor[g->groups[i].in[k]] = true;
        }
        if (gradient >= 0)
            m->tensor[gradient] = true;
    }
}

static int64_t kernels_of(const struct mpp_explain *e, const struct marks *m, const struct mpp_plan *plan)
{
    const struct mpp_graph *g = m->stage->graph;
    int64_t ps = 0, internal;
    for (int i = 0; i < g->n_groups; i++) {
        if (!m->group[i] || g->ops[g->groups[i].ops[0]].kind == MPP_OP_RECV)
            continue;
        int64_t one = mpp_price_group(g, e->cluster, &m->stage->mesh, &g->groups[i], m->stage->split[i], &internal);
        ps += (one + internal) * (g->groups[i].phase == MPP_PHASE_UPDATE ? 1 : plan->micro_batches);
    }
    return ps;
}

static int64_t copies_of(const struct marks *m, const struct mpp_plan *plan)
{
    int64_t ps = 0;
    for (int i = 0; i < m->stage->n_copies; i++) {
        const struct mpp_copy *c = &m->stage->copies[i];
        bool once = c->once || c->phase == MPP_PHASE_UPDATE;
        for (int k = 0; m->tensor[c->tensor] && k < c->n_steps; k++)
            ps += c->steps[k].cost_ps * (once ? 1 : plan->micro_batches);
    }
    return ps;
}

/* Of the thing itself: a tensor as it is made or rests (and is kept), what an op makes. */
static int64_t bytes_of(const struct mpp_thing *thing, const struct mpp_stage *s)
{
    const struct mpp_graph *g = s->graph;
    int64_t bytes = 0;
    for (mpp_id t = 0; t < g->n_tensors && thing->kind == MPP_THING_REST; t++) {
        const struct mpp_gtensor *x = &g->tensors[t];
        bool rests = x->role == MPP_ROLE_PARAM || x->role == MPP_ROLE_INPUT;
        if (rests && (named(thing, x->name) || (x->info && x->info->published && named(thing, x->info->published))))
            bytes += mpp_sharding_bytes(x, &s->mesh, s->resting[t]);
    }
    for (int i = 0; i < g->n_groups && thing->kind != MPP_THING_REST; i++)
        for (int k = 0; k < g->groups[i].n_out; k++) {
            const struct mpp_gtensor *x = &g->tensors[g->groups[i].out[k]];
            bool its = thing->kind == MPP_THING_VALUE && named(thing, x->name);
            for (int o = 0; o < g->groups[i].n_ops && thing->kind == MPP_THING_OP; o++)
                its = its || named(thing, g->ops[g->groups[i].ops[o]].name);
            if (its)
                bytes += mpp_sharding_bytes(x, &s->mesh, mpp_split_operand(g->groups[i].rule, s->split[i], g->groups[i].n_in + k));
        }
    return bytes;
}

/* Does the stage have the thing? */
static bool has(const struct mpp_thing *thing, const struct mpp_graph *g)
{
    for (mpp_id o = 0; o < g->n_ops && thing->kind == MPP_THING_OP; o++)
        if (named(thing, g->ops[o].name))
            return true;
    for (mpp_id t = 0; t < g->n_tensors && thing->kind != MPP_THING_OP; t++)
        if (named(thing, g->tensors[t].name) || (g->tensors[t].info && g->tensors[t].info->published && named(thing, g->tensors[t].info->published)))
            return true;
    return false;
}

struct mpp_costs mpp_explain_costs(const struct mpp_explain *e, const struct mpp_thing *thing, const struct mpp_plan *plan)
{
    struct mpp_costs c = {.step_ps = plan->objective_ps, .simulated_ps = plan->simulated_ps, .memory_bytes = plan->stages[mpp_plan_fullest(plan)].memory.arena_bytes};
    struct mpp_arena *scratch = mpp_arena_scratch(e->arena);
    struct mpp_account a;
    mpp_account_make(scratch, e->cluster, plan, &a);
    c.comm_ps = mpp_account_sum(&a, MPP_ACCOUNT_COMM) + mpp_account_sum(&a, MPP_ACCOUNT_RECEIVE);
    c.work_ps = c.step_ps - c.comm_ps - mpp_account_sum(&a, MPP_ACCOUNT_WAIT);
    for (int s = 0; thing && s < plan->n_stages; s++) {
        const struct mpp_stage *stage = &plan->stages[s];
        if (!has(thing, stage->graph))
            continue;
        struct marks m = {stage, mpp_arena_array(scratch, stage->graph->n_groups, bool), mpp_arena_array(scratch, stage->graph->n_tensors, bool)};
        if (thing->kind == MPP_THING_OP)
            mark_op(thing, &m);
        else
            mark_tensor(thing, &m);
        c.kernels_ps += kernels_of(e, &m, plan);
        c.copies_ps += copies_of(&m, plan);
        c.bytes += bytes_of(thing, stage);
    }
    mpp_arena_free(scratch);
    return c;
}

const char *mpp_explain_words(const struct mpp_explain *e, const struct mpp_thing *thing, const struct mpp_alternative *a)
{
    const struct mpp_stage *s = &e->plan->stages[thing->stage];
    if (thing->kind == MPP_THING_OP)
        return mpp_words_split(e->arena, &s->graph->groups[thing->id], &s->mesh, a->split);
    return mpp_words_sharding(e->arena, &s->graph->tensors[thing->id], &s->mesh, a->sharding);
}

const char *mpp_explain_chosen(const struct mpp_explain *e, const struct mpp_thing *thing)
{
    const struct mpp_stage *s = &e->plan->stages[thing->stage];
    struct mpp_alternative a = {.n_pins = 0};
    if (thing->kind == MPP_THING_OP)
        a.split = s->split[thing->id];
    else if (thing->kind == MPP_THING_REST)
        a.sharding = s->resting[thing->id];
    for (int i = 0; i < s->graph->n_groups && thing->kind == MPP_THING_VALUE; i++)
        for (int k = 0; k < s->graph->groups[i].n_out; k++)
            if (s->graph->groups[i].out[k] == thing->id)
                a.sharding = mpp_split_operand(s->graph->groups[i].rule, s->split[i], s->graph->groups[i].n_in + k);
    return mpp_explain_words(e, thing, &a);
}
