/* stages_nearest.c - of the stages that do not fit, the one that comes nearest to it, and what fills its memory. */
#include "planner/stages_internal.h"

struct moment {
    int64_t bytes;
    int time;
};

static int64_t least_of(const struct mpp_solver_node *x, int usage)
{
    int64_t least = INT64_MAX;
    for (int k = 0; k < x->n_choices; k++)
        least = x->usages[usage].bytes[k] < least ? x->usages[usage].bytes[k] : least;
    return least;
}

/* At some time every choice of F takes more than this, and when. */
static struct moment least_peak(struct mpp_arena *arena, const struct mpp_fold *f)
{
    int n = f->p->graph->n_groups;
    int64_t *change = mpp_arena_array(arena, n + 1, int64_t), live = 0;
    struct moment most = {0, 0};
    for (int i = 0; i < f->solver.n_nodes; i++)
        for (int u = 0; u < f->solver.nodes[i].n_usages; u++) {
            int64_t least = least_of(&f->solver.nodes[i], u);
            change[f->solver.nodes[i].usages[u].first] += least;
            change[f->solver.nodes[i].usages[u].last + 1] -= least;
        }
    for (int i = 0; i < n; i++) {
        live += change[i];
        most = live > most.bytes ? (struct moment){live, i} : most;
    }
    return most;
}

/* Which kind of memory usage U of node I is. */
static int64_t *kind_of(const struct mpp_fold *f, int i, int u, struct mpp_memory *m)
{
    const struct mpp_stage_node *node = &f->p->node[f->from[i]];
    const struct mpp_solver_usage *use = &f->solver.nodes[i].usages[u];
    const struct mpp_graph *g = f->p->graph;
    if (node->kind != MPP_NODE_GROUPS)
        return node->kind == MPP_NODE_PARAM ? &m->parameters : &m->inputs;
    enum mpp_phase phase = g->groups[node->groups[0]].phase;
    if (use->first > 0 || use->last < g->n_groups - 1 || phase <= MPP_PHASE_FORWARD)
        return &m->activations;
    return phase == MPP_PHASE_UPDATE ? &m->optimizer : &m->gradients;
}

/* The largest of what is alive at MOMENT, by node, into OUT. */
static void note_largest(const struct mpp_fold *f, int time, struct mpp_stages_nearest *out)
{
    out->memory = (struct mpp_memory){0};
    out->n_largest = 0;
    for (int i = 0; i < f->solver.n_nodes; i++) {
        const struct mpp_solver_node *x = &f->solver.nodes[i];
        int64_t sum = 0;
        for (int u = 0; u < x->n_usages; u++)
            if (x->usages[u].first <= time && time <= x->usages[u].last) {
                sum += least_of(x, u);
                *kind_of(f, i, u, &out->memory) += least_of(x, u);
            }
        int at = out->n_largest < MPP_STAGES_LARGEST ? out->n_largest++ : MPP_STAGES_LARGEST;
        for (; at > 0 && out->largest[at - 1].bytes < sum; at--)
            if (at < MPP_STAGES_LARGEST)
                out->largest[at] = out->largest[at - 1];
        if (at < MPP_STAGES_LARGEST)
            out->largest[at] = (struct mpp_stages_large){x->name, sum};
    }
}

/* X needs BYTES, which are too many. */
static void note(struct mpp_stages *s, const struct mpp_stages_case *x, int64_t bytes, int time)
{
    struct mpp_stages_nearest *near = &s->nearest;
    if (near->bytes > 0 && near->bytes <= bytes)
        return;
    *near = (struct mpp_stages_nearest){.bytes = bytes, .stage = x->stage, .schedule = s->schedule, .recompute = x->recompute};
    note_largest(&x->fold, time, near);
    for (int i = 0; i < near->n_largest; i++)
        near->largest[i].name = mpp_arena_strdup(s->arena, near->largest[i].name ? near->largest[i].name : "");
}

bool mpp_stages_too_large(struct mpp_stages *s, const struct mpp_stages_case *x, struct mpp_arena *arena)
{
    struct moment most = least_peak(arena, &x->fold);
    if (most.bytes <= s->capacity)
        return false;
    note(s, x, most.bytes, most.time);
    return true;
}

void mpp_stages_overflows(struct mpp_stages *s, const struct mpp_stages_case *x, int64_t bytes)
{
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    if (bytes > s->capacity)
        note(s, x, bytes, least_peak(scratch, &x->fold).time);
    mpp_arena_free(scratch);
}
