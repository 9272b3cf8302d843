/* uniform.c - where memory binds, the solver may plan a few layers unlike the others to gain a fraction of a percent.
 * A plan whose layers are all alike is easier to read and gives shorter code: take it when it fits and costs
 * no more than the tolerance that the search has anyway. */
#include <string.h>

#include "planner/stage.h"

enum { MAX_PATTERNS = 8 };

struct layers {
    const struct mpp_stage_problem *p;
    int n;                        /* layers of the repeat */
    int n_nodes;                  /* of each */
    int *node;                    /* [n * n_nodes] */
};

void mpp_stage_layer_of(const struct mpp_stage_problem *p, int node, int *out_repeat, int *out_index)
{
    const struct mpp_stage_node *x = &p->node[node];
    const struct mpp_graph *g = p->graph;
    if (x->kind == MPP_NODE_GROUPS) {
        const struct mpp_gop *op = &g->ops[g->groups[x->groups[0]].ops[0]];
        *out_repeat = op->repeat;
        *out_index = op->index;
    } else {
        *out_repeat = g->tensors[x->tensor].repeat;
        *out_index = g->tensors[x->tensor].index;
    }
}

/* The nodes of each layer of REPEAT in order; false where the layers do not have equally many. */
static bool list_layers(struct mpp_arena *arena, const struct mpp_stage_problem *p, int repeat, struct layers *out)
{
    int most = -1, r, i;
    for (int v = 0; v < p->solver.n_nodes; v++) {
        mpp_stage_layer_of(p, v, &r, &i);
        if (r == repeat && i > most)
            most = i;
    }
    *out = (struct layers){.p = p, .n = most + 1};
    if (out->n < 2)
        return false;
    int *count = mpp_arena_array(arena, out->n, int);
    for (int v = 0; v < p->solver.n_nodes; v++) {
        mpp_stage_layer_of(p, v, &r, &i);
        if (r == repeat)
            count[i]++;
    }
    for (i = 1; i < out->n; i++)
        if (count[i] != count[0])
            return false;
    out->n_nodes = count[0];
    out->node = mpp_arena_array(arena, out->n * out->n_nodes, int);
    memset(count, 0, (size_t)out->n * sizeof *count);
    for (int v = 0; v < p->solver.n_nodes; v++) {
        mpp_stage_layer_of(p, v, &r, &i);
        if (r == repeat)
            out->node[i * out->n_nodes + count[i]++] = v;
    }
    return true;
}

int32_t mpp_stage_same_choice(const struct mpp_stage_node *x, int32_t choice, const struct mpp_stage_node *y)
{
    if (x->kind != y->kind || x->n_groups != y->n_groups)
        return -1;
    for (int32_t c = 0; c < y->n_choices; c++) {
        bool same = true;
        for (int k = 0; x->kind == MPP_NODE_GROUPS && k < x->n_groups && same; k++)
            same = !memcmp(&x->split[k][choice], &y->split[k][c], sizeof x->split[k][choice]);
        if (x->kind != MPP_NODE_GROUPS)
            same = mpp_sharding_equal(x->rest[choice], y->rest[c]) && mpp_sharding_equal(x->gather[choice], y->gather[c]);
        if (same)
            return c;
    }
    return -1;
}

/* All layers of L decide what layer FROM does. */
static bool spread(const struct layers *l, int from, int32_t *choice)
{
    for (int i = 0; i < l->n; i++)
        for (int k = 0; k < l->n_nodes && i != from; k++) {
            int a = l->node[from * l->n_nodes + k], b = l->node[i * l->n_nodes + k];
            int32_t c = mpp_stage_same_choice(&l->p->node[a], choice[a], &l->p->node[b]);
            if (c < 0)
                return false;
            choice[b] = c;
        }
    return true;
}

static bool equal_layers(const struct layers *l, const int32_t *choice, int a, int b)
{
    for (int k = 0; k < l->n_nodes; k++) {
        int x = l->node[a * l->n_nodes + k], y = l->node[b * l->n_nodes + k];
        if (mpp_stage_same_choice(&l->p->node[x], choice[x], &l->p->node[y]) != choice[y])
            return false;
    }
    return true;
}

void mpp_stage_make_uniform(const struct mpp_stage_problem *p, double gap, int32_t *choice, struct mpp_solver_info *info)
{
    struct mpp_arena *arena = mpp_arena_scratch(p->solver.arena);
    size_t bytes = (size_t)p->solver.n_nodes * sizeof *choice;
    for (int repeat = 0; p->graph->model && repeat < p->graph->model->n_repeats; repeat++) {
        struct layers l;
        if (!list_layers(arena, p, repeat, &l))
            continue;
        int pattern[MAX_PATTERNS], n = 0;
        for (int i = 0; i < l.n && n < MAX_PATTERNS; i++) {
            bool known = false;
            for (int k = 0; k < n; k++)
                known = known || equal_layers(&l, choice, pattern[k], i);
            if (!known)
                pattern[n++] = i;
        }
        int32_t *best = NULL;
        for (int k = 0; k < n && n > 1; k++) {
            int32_t *c = mpp_arena_memdup(arena, choice, bytes), peak_time;
            int64_t peak;
            if (!spread(&l, pattern[k], c))
                continue;
            int64_t objective = mpp_solver_evaluate(&p->solver, c, &peak, &peak_time);
            if (objective == MPP_SOLVER_FORBIDDEN || peak > p->solver.capacity_bytes
                || (double)(objective - info->bound) > gap * (double)objective || (best && objective >= info->objective))
                continue;
            best = c;
            info->objective = objective;
            info->gap = (double)(objective - info->bound) / (double)(objective > 1 ? objective : 1);
            info->peak_bytes = peak;
            info->peak_time = peak_time;
        }
        if (best)
            memcpy(choice, best, bytes);
    }
    mpp_arena_free(arena);
}
