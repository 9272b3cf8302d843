/* derive_reason.c - why a collective is there, in words. */
#include <string.h>

#include "planner/derive.h"

const char *mpp_reason_local_name(struct mpp_arena *arena, const struct mpp_gop *op, const char *name)
{
    if (!op->repeat_name || op->index < 0)
        return name;
    const char *prefix = mpp_arena_printf(arena, "%s.%d.", op->repeat_name, op->index);
    return strncmp(name, prefix, strlen(prefix)) == 0 ? name + strlen(prefix) : name;
}

const char *mpp_reason_axes(struct mpp_arena *arena, const struct mpp_mesh *mesh, unsigned mask)
{
    const char *text = "";
    for (int a = 0; a < mesh->n_axes; a++)
        if (mask >> a & 1)
            text = mpp_arena_printf(arena, "%s%s%s", text, *text ? "+" : "", mesh->name[a]);
    return text;
}

static const struct mpp_gop *first_op(const struct mpp_graph *g, int group)
{
    return &g->ops[g->groups[group].ops[0]];
}

static const char *size_name(struct mpp_size s)
{
    return s.name ? s.name : "a dimension";
}

/* Which factor of the group that first summed makes T partial over AXIS: walks up through linear groups. */
static const struct mpp_factor *summed_factor(const struct mpp_graph *g, const struct mpp_stage *stage,
                                              const int *producer, mpp_id t, int axis, const struct mpp_gop **out_op)
{
    for (int hops = 0; hops < 64; hops++) {
        int i = producer[t];
        if (i < 0)
            return NULL;
        int f = stage->split[i].axis[axis];
        *out_op = first_op(g, i);
        if (f >= 0)
            return &g->groups[i].rule->factor[f];
        if (f != MPP_PARTIAL || g->groups[i].n_in < 1 || g->groups[i].in[0] < 0)
            return NULL;
        t = g->groups[i].in[0];
    }
    return NULL;
}

static const char *reduction(struct mpp_arena *arena, const struct mpp_graph *g, const struct mpp_stage *stage,
                             const int *producer, const struct mpp_copy *copy, const struct mpp_reshard_step *step)
{
    int axis = 0;
    while (!(step->mask >> axis & 1))
        axis++;
    const struct mpp_gop *op = NULL;
    const struct mpp_factor *f = summed_factor(g, stage, producer, copy->tensor, axis, &op);
    const char *axes = mpp_reason_axes(arena, &stage->mesh, step->mask);
    const struct mpp_gtensor *t = &g->tensors[copy->tensor];
    if (!f)
        return mpp_arena_printf(arena, "%s is a partial sum over %s",
                                mpp_reason_local_name(arena, first_op(g, copy->first_group), t->name), axes);
    const char *name = mpp_reason_local_name(arena, op, op->name);
    if (t->role == MPP_ROLE_ACCUM && t->param >= 0)
        return mpp_arena_printf(arena, "the gradient of %s sums over %s, split over %s",
                                mpp_reason_local_name(arena, op, g->tensors[t->param].name), size_name(f->size), axes);
    return mpp_arena_printf(arena, "%s sums over %s, split over %s", name, size_name(f->size), axes);
}

const char *mpp_reason_step(struct mpp_arena *arena, const struct mpp_graph *g, const struct mpp_stage *stage,
                            const struct mpp_copy *copy, int i, const int *producer)
{
    const struct mpp_gtensor *t = &g->tensors[copy->tensor];
    const struct mpp_gop *op = first_op(g, copy->first_group);
    const struct mpp_reshard_step *step = &copy->steps[i];
    const char *reader = mpp_reason_local_name(arena, op, op->name);
    const char *axes = mpp_reason_axes(arena, &stage->mesh, step->mask);
    const char *dim = step->dim >= 0 ? size_name(t->dims[step->dim]) : "";
    if (step->kind == MPP_STEP_ALL_REDUCE || step->kind == MPP_STEP_REDUCE_SCATTER)
        return reduction(arena, g, stage, producer, copy, step);
    if (copy->store)
        return mpp_arena_printf(arena, "the new %s is made in parts over %s",
                                mpp_reason_local_name(arena, op, g->tensors[t->updates].name), axes);
    switch (step->kind) {
    case MPP_STEP_ALL_GATHER:
        return t->role == MPP_ROLE_PARAM
                   ? mpp_arena_printf(arena, "%s rests split over %s", mpp_reason_local_name(arena, op, t->name), axes)
                   : mpp_arena_printf(arena, "%s needs all of %s, which is split over %s", reader, dim, axes);
    case MPP_STEP_ALL_TO_ALL:
        return mpp_arena_printf(arena, "%s needs all of %s, and %s is split over %s instead", reader, dim,
                                size_name(t->dims[step->to_dim]), axes);
    case MPP_STEP_SLICE:
        return mpp_arena_printf(arena, "%s takes its part of %s over %s", reader, dim, axes);
    default:
        return mpp_arena_printf(arena, "%s adds up partial sums over %s", reader, axes);
    }
}

/* A copy is there for its first reduction, else for its first step that communicates. */
const char *mpp_reason_copy(struct mpp_arena *arena, const struct mpp_graph *g, const struct mpp_stage *stage,
                            const struct mpp_copy *copy, const int *producer)
{
    int at = 0;
    for (int i = copy->n_steps - 1; i >= 0; i--)
        if (copy->steps[i].kind != MPP_STEP_SLICE && copy->steps[i].kind != MPP_STEP_TO_PARTIAL)
            at = i;
    for (int i = copy->n_steps - 1; i >= 0; i--)
        if (copy->steps[i].kind == MPP_STEP_ALL_REDUCE || copy->steps[i].kind == MPP_STEP_REDUCE_SCATTER)
            at = i;
    return mpp_reason_step(arena, g, stage, copy, at, producer);
}

const char *mpp_reason_internal(struct mpp_arena *arena, const struct mpp_graph *g, const struct mpp_mesh *mesh,
                                const struct mpp_group *group, struct mpp_split split, const char *what)
{
    const struct mpp_gop *op = &g->ops[group->ops[0]];
    const char *name = mpp_reason_local_name(arena, op, op->name), *dim = "a dimension";
    unsigned mask = 0;
    for (int a = 0; a < mesh->n_axes; a++)
        if (split.axis[a] >= 0 && group->rule->factor[split.axis[a]].kind == MPP_FACTOR_INTERNAL) {
            mask |= 1u << a;
            dim = size_name(group->rule->factor[split.axis[a]].size);
        }
    return mpp_arena_printf(arena, "%s of %s over %s, split over %s", what, name, dim, mpp_reason_axes(arena, mesh, mask));
}
