/* axes.c - mesh axes are called by what they do. */
#include <string.h>

#include "ir/op.h"
#include "planner/stage.h"

/* Does AXIS split a batch (out_batch) or something else on most contractions of the stage? */
static void axis_use(const struct mpp_graph *g, const struct mpp_stage *s, int axis, bool *out_batch, bool *out_other)
{
    int n = 0, batch = 0, other = 0;
    for (int i = 0; i < g->n_groups; i++) {
        const struct mpp_group *group = &g->groups[i];
        if (mpp_op_info(g->ops[group->ops[0]].kind)->cls != MPP_CLASS_CONTRACTION)
            continue;
        int f = s->split[i].axis[axis];
        n++;
        if (f >= 0)
            *(group->rule->factor[f].size.per_batch > 0 ? &batch : &other) += 1;
    }
    *out_batch = 2 * batch > n;
    *out_other = 2 * other > n;
}

void mpp_stage_name_axes(const struct mpp_graph *g, struct mpp_stage *s)
{
    static const char *const data[] = {"data", "data2", "data3"}, *const model[] = {"model", "model2", "model3"};
    static const char *const letter[] = {"a", "b", "c"};
    int n_data = 0, n_model = 0;
    for (int a = 0; a < s->mesh.n_axes; a++) {
        n_data += s->mesh.name[a] && !strcmp(s->mesh.name[a], "data");
        n_model += s->mesh.name[a] && !strcmp(s->mesh.name[a], "model");
    }
    for (int a = 0; a < s->mesh.n_axes; a++) {
        bool batch, other;
        const char *name = s->mesh.name[a];
        if (name && (!strcmp(name, "data") || !strcmp(name, "model")))
            continue;
        axis_use(g, s, a, &batch, &other);
        s->mesh.name[a] = batch ? data[n_data++] : other ? model[n_model++] : letter[a];
    }
}
