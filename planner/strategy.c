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

/* What one axis may do: stay whole, split a factor, or carry partial sums. */
static int options_of(const struct mpp_rule *rule, int size, int8_t *out)
{
    int n = 0;
    out[n++] = MPP_WHOLE;
    if (size <= 1)
        return n;
    for (int f = 0; f < rule->n_factors; f++)
        if (mpp_rule_can_split(rule, f, size) && !torn(rule, f))
            out[n++] = (int8_t)f;
    if (rule->linear)
        out[n++] = MPP_PARTIAL;
    return n;
}

int mpp_strategy_list(struct mpp_arena *arena, const struct mpp_graph *g, const struct mpp_mesh *mesh,
                      const struct mpp_group *group, const struct mpp_pin_rules *pins, struct mpp_split **out)
{
    (void)g;
    int8_t option[MPP_MAX_AXES][MPP_MAX_FACTORS + 2];
    int n_options[MPP_MAX_AXES], total = 1, n = 0;
    for (int a = 0; a < MPP_MAX_AXES; a++) {
        n_options[a] = options_of(group->rule, a < mesh->n_axes ? mesh->size[a] : 1, option[a]);
        total *= n_options[a];
    }
    *out = mpp_arena_array(arena, total, struct mpp_split);
    for (int i = 0; i < total; i++) {
        struct mpp_split s;
        for (int a = 0, at = i; a < MPP_MAX_AXES; a++) {
            s.axis[a] = option[a][at % n_options[a]];
            at /= n_options[a];
        }
        if (mpp_split_legal(group->rule, mesh, s) && mpp_pins_allow_split(pins, group, s))
            (*out)[n++] = s;
    }
    return n;
}
