/* strategy.c - the ways in which a group can be split over a mesh. */
#include "planner/stage.h"

/* Does an output hold FACTOR inside a dimension that another factor leads? Then a split would tear that output. */
static bool torn(const struct mpp_rule *rule, int factor)
{
    for (int o = rule->n_in; o < rule->n_in + rule->n_out; o++)
        for (int d = 0; d < rule->operand[o].n_dims; d++)
            for (int k = 1; k < rule->operand[o].dim[d].n; k++)
                if (rule->operand[o].dim[d].factor[k] == factor)
                    return true;
    return false;
}

/* ---- what is worth offering ---- */

static mpp_id operand_of(const struct mpp_group *group, int o)
{
    return o < group->n_in ? group->in[o] : group->out[o - group->n_in];
}

static bool factor_never(const struct mpp_strategy_facts *facts, const struct mpp_group *group, int factor)
{
    if (group->rule->factor[factor].kind == MPP_FACTOR_NEVER)
        return true;
    for (int o = 0; o < group->n_in + group->n_out; o++) {
        int d = mpp_rule_find(group->rule, o, factor);
        if (d >= 0 && operand_of(group, o) >= 0 && (facts->never[operand_of(group, o)] >> d & 1))
            return true;
    }
    return false;
}

/* `^` means never, anywhere: what one op never splits, those before and after it don't either. */
static bool spread_never(struct mpp_strategy_facts *facts, const struct mpp_group *group)
{
    bool changed = false;
    for (int f = 0; f < group->rule->n_factors; f++) {
        if (!factor_never(facts, group, f))
            continue;
        for (int o = 0; o < group->n_in + group->n_out; o++) {
            int d = mpp_rule_find(group->rule, o, f);
            mpp_id t = operand_of(group, o);
            if (d < 0 || t < 0 || group->rule->operand[o].dim[d].n > 1 || (facts->never[t] >> d & 1))
                continue;
            facts->never[t] |= (uint8_t)(1u << d);
            changed = true;
        }
    }
    return changed;
}

static bool lacks_sum(const struct mpp_rule *rule, int o)
{
    for (int f = 0; f < rule->n_factors; f++)
        if (rule->factor[f].kind == MPP_FACTOR_SUM && rule->factor[f].size.size > 1 && mpp_rule_find(rule, o, f) < 0)
            return true;
    return false;
}

static bool only_scalars(const struct mpp_graph *g, const struct mpp_group *group)
{
    for (int o = 0; o < group->n_in + group->n_out; o++)
        if (operand_of(group, o) < 0 || g->tensors[operand_of(group, o)].n_dims > 0)
            return false;
    return true;
}

/* Passing partial sums through a linear group gains something only where it adds up several of them, or makes
 * them smaller: else reducing before costs no more than reducing after. */
static bool offers_partial(const struct mpp_graph *g, const struct mpp_strategy_facts *facts,
                           const struct mpp_group *group)
{
    int n = 0;
    int64_t in = 0, out = 0;
    for (int o = 0; o < group->n_in; o++)
        if (group->in[o] >= 0 && facts->may_be_partial[group->in[o]]) {
            n++;
            in = mpp_tensor_bytes(&g->tensors[group->in[o]]);
        }
    for (int o = 0; o < group->n_out; o++)
        out += mpp_tensor_bytes(&g->tensors[group->out[o]]);
    if (!group->rule->linear || n == 0)
        return false;
    return n > 1 || group->n_in == 1 || out < in || g->tensors[group->out[0]].role == MPP_ROLE_ACCUM;
}

void mpp_strategy_note(struct mpp_arena *arena, const struct mpp_graph *g, struct mpp_strategy_facts *out)
{
    out->never = mpp_arena_array(arena, g->n_tensors, uint8_t);
    out->may_be_partial = mpp_arena_array(arena, g->n_tensors, uint8_t);
    for (bool changed = true; changed;) {
        changed = false;
        for (int i = 0; i < g->n_groups; i++)
            changed = spread_never(out, &g->groups[i]) || changed;
        for (int i = g->n_groups - 1; i >= 0; i--)
            changed = spread_never(out, &g->groups[i]) || changed;
    }
    for (int i = 0; i < g->n_groups; i++) {
        const struct mpp_group *group = &g->groups[i];
        bool passes = offers_partial(g, out, group);
        for (int o = 0; o < group->n_out; o++)
            /* What comes from another stage is treated like what its own layers hand on: then they are alike. */
            out->may_be_partial[group->out[o]] = passes || lacks_sum(group->rule, group->n_in + o)
                                                 || (mpp_price_is_receive(g, group) && group->phase == MPP_PHASE_FORWARD);
    }
}

/* ---- the list ---- */

bool mpp_strategy_can_split(const struct mpp_strategy_facts *facts, const struct mpp_group *group, int factor, int size)
{
    return mpp_rule_can_split(group->rule, factor, size) && !torn(group->rule, factor)
           && !factor_never(facts, group, factor);
}

/* A sum of scalars carries partial sums, as making a scalar a term of a sum is free, or, where none of them is partial over
 * any axis, stays whole, which saves a collective of 4 bytes. With many terms the step is too long for that to matter, and
 * the choice would triple the time of planning. */
enum { FEW_TERMS = 64 };

static bool is_scalar_sum(const struct mpp_graph *g, const struct mpp_group *group)
{
    return group->rule->linear && group->n_in > 1 && only_scalars(g, group);
}

/* What one axis may do: stay whole, split a factor, or carry partial sums. */
static int options_of(const struct mpp_graph *g, const struct mpp_strategy_facts *facts, const struct mpp_group *group,
                      int size, int8_t *out)
{
    const struct mpp_rule *rule = group->rule;
    int n = 0;
    if (size > 1 && is_scalar_sum(g, group)) {
        out[n++] = MPP_PARTIAL;
        return n;
    }
    /* Of equal costs the first is taken: sums of gradients are best finished in one place, the update. */
    bool partial = size > 1 && offers_partial(g, facts, group);
    bool is_sum = group->n_out > 0 && g->tensors[group->out[0]].role == MPP_ROLE_ACCUM;
    if (partial && is_sum)
        out[n++] = MPP_PARTIAL;
    out[n++] = MPP_WHOLE;
    if (size <= 1)
        return n;
    for (int f = 0; f < rule->n_factors; f++)
        if (mpp_strategy_can_split(facts, group, f, size))
            out[n++] = (int8_t)f;
    if (partial && !is_sum)
        out[n++] = MPP_PARTIAL;
    return n;
}

int mpp_strategy_list(struct mpp_arena *arena, const struct mpp_graph *g, const struct mpp_group *group,
                      const struct mpp_pin_rules *pins, struct mpp_split **out)
{
    const struct mpp_mesh *mesh = &pins->c.mesh;
    int8_t option[MPP_MAX_AXES][MPP_MAX_FACTORS + 2];
    int n_options[MPP_MAX_AXES], total = 1, n = 0;
    for (int a = 0; a < MPP_MAX_AXES; a++) {
        n_options[a] = options_of(g, pins->facts, group, a < mesh->n_axes ? mesh->size[a] : 1, option[a]);
        total *= n_options[a];
    }
    *out = mpp_arena_array(arena, total + 1, struct mpp_split);
    for (int i = 0; i < total; i++) {
        struct mpp_split s;
        for (int a = 0, at = i; a < MPP_MAX_AXES; a++) {
            s.axis[a] = option[a][at % n_options[a]];
            at /= n_options[a];
        }
        if (mpp_split_legal(group->rule, mesh, s) && mpp_pins_allow_split(pins, group, s))
            (*out)[n++] = s;
    }
    struct mpp_split whole = {{MPP_WHOLE, MPP_WHOLE, MPP_WHOLE}};
    if (mesh->n_axes > 0 && group->n_in <= FEW_TERMS && is_scalar_sum(g, group) && mpp_pins_allow_split(pins, group, whole))
        (*out)[n++] = whole;
    return n;
}
