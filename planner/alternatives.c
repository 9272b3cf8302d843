/* alternatives.c - the choices of one node of a stage's program, each with the least that the program takes with it. */
#include <stdlib.h>
#include <string.h>

#include "planner/alternatives.h"
#include "planner/plan_json.h"
#include "planner/stage.h"

struct listing {
    struct mpp_arena *arena;
    const struct mpp_cluster *cluster;
    const struct mpp_plan *plan;
    const struct mpp_stage *stage;
    const struct mpp_thing *thing;
    struct mpp_pins pins;
    int n;
    size_t cap;
    struct mpp_alternative *list;
};

/* ---- pins ---- */

static bool same_mesh(const struct mpp_mesh *a, const struct mpp_mesh *b)
{
    if (a->n_axes != b->n_axes)
        return false;
    for (int i = 0; i < a->n_axes; i++)
        if (a->size[i] != b->size[i])
            return false;
    return true;
}

struct mpp_pins mpp_alternatives_hold(struct mpp_arena *arena, const struct mpp_plan *plan, const struct mpp_pins *pins)
{
    struct mpp_pins held = *pins;
    bool meshes = true, recompute = true;
    for (int i = 1; i < plan->n_stages; i++) {
        meshes = meshes && same_mesh(&plan->stages[i].mesh, &plan->stages[0].mesh);
        recompute = recompute && plan->stages[i].recompute == plan->stages[0].recompute;
    }
    held.tensors = mpp_arena_memdup(arena, pins->tensors ? pins->tensors : &(struct mpp_pin_tensor){0},
                                    sizeof *pins->tensors * (size_t)(pins->n_tensors ? pins->n_tensors : 1));
    held.pp = plan->n_stages;
    held.micro_batches = plan->micro_batches;
    if (plan->n_stages > 1) {
        held.schedule = (int)plan->pipeline.kind;
        held.interleave = plan->pipeline.chunks > 1 ? plan->pipeline.chunks : 0;
    }
    if (recompute)
        held.recompute = (int)plan->stages[0].recompute;
    if (meshes && held.mesh.n_axes == 0)
        held.mesh = plan->stages[0].mesh;
    return held;
}

struct mpp_pins mpp_alternatives_pin(struct mpp_arena *arena, const struct mpp_pins *pins, const struct mpp_alternative *a)
{
    struct mpp_pins all = *pins;
    all.tensors = mpp_arena_array(arena, pins->n_tensors + a->n_pins, struct mpp_pin_tensor);
    for (int i = 0; i < pins->n_tensors; i++)
        all.tensors[i] = pins->tensors[i];
    for (int i = 0; i < a->n_pins; i++)
        all.tensors[all.n_tensors++] = a->pin[i];
    return all;
}

/* ---- programs ---- */

static bool rules_of(const struct listing *l, struct mpp_arena *arena, const struct mpp_pins *pins, struct mpp_pin_rules **out)
{
    struct mpp_candidate *c;
    const char *reason;
    struct mpp_pins *kept = mpp_arena_memdup(arena, pins, sizeof *pins); /* the rules refer to them */
    kept->mesh = l->stage->mesh;
    return mpp_pins_candidates(arena, l->stage->n_devices, false, kept, &c) > 0
           && mpp_pins_resolve(arena, l->stage->graph, &c[0], kept, out, &reason);
}

static bool problem_of(const struct listing *l, struct mpp_arena *arena, const struct mpp_pins *pins, struct mpp_stage_problem **out)
{
    struct mpp_pin_rules *rules;
    const char *reason;
    struct mpp_stage_site site = {.first_device = l->stage->first_device, .receives = 1};
    return rules_of(l, arena, pins, &rules) && mpp_stage_problem_build(arena, l->cluster, rules, site, INT64_MAX, out, &reason);
}

/* The least that the stage takes per step under PINS; INT64_MAX: there is no plan. */
static int64_t least(const struct listing *l, const struct mpp_pins *pins)
{
    struct mpp_arena *scratch = mpp_arena_scratch(l->arena);
    struct mpp_solver_settings set = mpp_solver_defaults();
    struct mpp_stage_problem *p;
    struct mpp_solver *solver;
    struct mpp_solver_info info;
    int64_t ps = INT64_MAX;
    set.quick = true;
    if (problem_of(l, scratch, pins, &p) && mpp_solver_setup(&p->solver, &set, &solver) == MPP_OK) {
        enum mpp_status st = mpp_solver_solve(solver, mpp_arena_array(scratch, p->solver.n_nodes, int32_t), &info);
        ps = st == MPP_OK ? info.bound : st == MPP_LIMIT ? 0 : INT64_MAX;
        mpp_solver_free(solver);
    }
    mpp_arena_free(scratch);
    return ps;
}

/* ---- choices ---- */

static const char *word_of(struct mpp_arena *arena, const struct mpp_gtensor *t, int dim)
{
    return dim == MPP_WHOLE ? MPP_PIN_WHOLE : dim == MPP_PARTIAL ? MPP_PIN_PARTIAL : mpp_json_dim(arena, t, dim);
}

static const char *factor_word(struct mpp_arena *arena, const struct mpp_rule *rule, int factor)
{
    return factor == MPP_WHOLE ? MPP_PIN_WHOLE : factor == MPP_PARTIAL ? MPP_PIN_PARTIAL : mpp_json_factor(arena, rule, factor);
}

static struct mpp_alternative *add(struct listing *l)
{
    l->list = mpp_arena_grow(l->arena, l->list, &l->cap, (size_t)l->n + 1, sizeof *l->list);
    l->list[l->n] = (struct mpp_alternative){.n_pins = 0};
    return &l->list[l->n++];
}

static void add_pin(struct listing *l, struct mpp_alternative *a, enum mpp_pin_kind kind, int axis, const char *word)
{
    a->pin[a->n_pins++] = (struct mpp_pin_tensor){l->thing->glob, word, mpp_arena_printf(l->arena, "%d", axis), kind};
}

static void add_sharding(struct listing *l, struct mpp_sharding s, struct mpp_sharding chosen, enum mpp_pin_kind kind)
{
    const struct mpp_gtensor *t = &l->stage->graph->tensors[l->thing->id];
    for (int i = 0; i < l->n; i++)
        if (mpp_sharding_equal(l->list[i].sharding, s))
            return;
    struct mpp_alternative *a = add(l);
    a->sharding = s;
    a->chosen = mpp_sharding_equal(s, chosen);
    for (int x = 0; x < l->stage->mesh.n_axes; x++)
        if (l->stage->mesh.size[x] > 1)
            add_pin(l, a, kind, x, word_of(l->arena, t, s.axis[x]));
}

static void list_op(struct listing *l, const struct mpp_pin_rules *rules)
{
    const struct mpp_group *group = &l->stage->graph->groups[l->thing->id];
    struct mpp_split *split;
    int n = mpp_strategy_list(l->arena, l->stage->graph, group, rules, &split);
    for (int i = 0; i < n; i++) {
        struct mpp_alternative *a = add(l);
        a->split = split[i];
        a->chosen = memcmp(&split[i], &l->stage->split[l->thing->id], sizeof split[i]) == 0;
        for (int x = 0; x < l->stage->mesh.n_axes; x++)
            if (l->stage->mesh.size[x] > 1)
                add_pin(l, a, MPP_PIN_SPLIT, x, factor_word(l->arena, group->rule, split[i].axis[x]));
    }
}

static void list_value(struct listing *l, const struct mpp_pin_rules *rules)
{
    const struct mpp_graph *g = l->stage->graph;
    for (int k = 0; k < g->n_groups; k++)
        for (int o = 0; o < g->groups[k].n_out; o++) {
            if (g->groups[k].out[o] != l->thing->id)
                continue;
            struct mpp_split *split;
            int n = mpp_strategy_list(l->arena, g, &g->groups[k], rules, &split), at = g->groups[k].n_in + o;
            for (int i = 0; i < n; i++)
                add_sharding(l, mpp_split_operand(g->groups[k].rule, split[i], at),
                             mpp_split_operand(g->groups[k].rule, l->stage->split[k], at), MPP_PIN_SHARD);
        }
}

static void list_rest(struct listing *l)
{
    struct mpp_stage_problem *p;
    if (!problem_of(l, l->arena, &l->pins, &p))
        return;
    for (int32_t v = 0; v < p->solver.n_nodes; v++) {
        const struct mpp_stage_node *node = &p->node[v];
        if (node->kind == MPP_NODE_GROUPS || node->tensor != l->thing->id)
            continue;
        for (int k = 0; k < node->n_choices; k++)
            add_sharding(l, node->rest[k], l->stage->resting[l->thing->id], MPP_PIN_REST);
    }
}

static int by_least(const void *a, const void *b)
{
    const struct mpp_alternative *x = a, *y = b;
    if (x->least_ps != y->least_ps)
        return x->least_ps < y->least_ps ? -1 : 1;
    return memcmp(&x->split, &y->split, sizeof x->split) ? memcmp(&x->split, &y->split, sizeof x->split)
                                                         : memcmp(&x->sharding, &y->sharding, sizeof x->sharding);
}

int mpp_alternatives_list(struct mpp_arena *arena, const struct mpp_cluster *cluster, const struct mpp_plan *plan,
                          const struct mpp_pins *pins, const struct mpp_thing *thing, struct mpp_alternative **out)
{
    struct listing l = {.arena = arena, .cluster = cluster, .plan = plan, .stage = &plan->stages[thing->stage], .thing = thing, .pins = *pins};
    struct mpp_pin_rules *rules;
    int n = 0;
    *out = NULL;
    if (!rules_of(&l, arena, pins, &rules))
        return 0;
    if (thing->kind == MPP_THING_OP)
        list_op(&l, rules);
    else if (thing->kind == MPP_THING_VALUE)
        list_value(&l, rules);
    else
        list_rest(&l);
    for (int i = 0; i < l.n; i++) {
        struct mpp_pins forced = mpp_alternatives_pin(arena, pins, &l.list[i]);
        l.list[i].least_ps = least(&l, &forced);
        if (l.list[i].least_ps < INT64_MAX || l.list[i].chosen)
            l.list[n++] = l.list[i];
    }
    if (n > 0)
        qsort(l.list, (size_t)n, sizeof *l.list, by_least);
    *out = l.list;
    return n;
}
