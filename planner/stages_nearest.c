/* stages_nearest.c - of the stages that do not fit, the one that comes nearest to it, and what fills its memory. */
#include <string.h>

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

/* Bytes of a tensor, in so many layers. */
struct share {
    int64_t bytes, layers;
};

/* NAME without the layer that it is of: "h.3.attn.c_attn.weight" as "attn.c_attn.weight"; as it is where it is of none. */
static const char *within_layer(const char *name)
{
    for (const char *c = strchr(name, '.'); c; c = strchr(c + 1, '.')) {
        size_t digits = strspn(c + 1, "0123456789");
        if (digits > 0 && c[1 + digits] == '.')
            return c + digits + 2;
    }
    return name;
}

/* The tensors of F that hold most of SUM [tensors], by name, into OUT. */
static void name_largest(struct mpp_arena *arena, const struct mpp_fold *f, const struct share *sum, struct mpp_stages_nearest *out)
{
    const struct mpp_graph *g = f->p->graph;
    int most[MPP_STAGES_LARGEST];
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        int at = out->n_largest < MPP_STAGES_LARGEST ? out->n_largest++ : MPP_STAGES_LARGEST;
        for (; at > 0 && sum[most[at - 1]].bytes < sum[t].bytes; at--)
            if (at < MPP_STAGES_LARGEST)
                most[at] = most[at - 1];
        if (at < MPP_STAGES_LARGEST)
            most[at] = t;
    }
    for (int i = 0; i < out->n_largest; i++) {
        const char *name = g->tensors[most[i]].name;
        int64_t layers = sum[most[i]].layers;
        out->largest[i] = (struct mpp_stages_large){
            layers > 1 ? mpp_arena_printf(arena, "%s of %lld layers", within_layer(name), (long long)layers) : mpp_arena_strdup(arena, name),
            sum[most[i]].bytes};
    }
}

/* What is alive at TIME, each at its least: by kind, and the largest tensors; into OUT, names in ARENA. */
static void note_largest(struct mpp_arena *arena, const struct mpp_fold *f, int time, struct mpp_stages_nearest *out)
{
    struct mpp_arena *scratch = mpp_arena_scratch(arena);
    struct share *sum = mpp_arena_array(scratch, f->p->graph->n_tensors, struct share);
    out->memory = (struct mpp_memory){0};
    out->n_largest = 0;
    for (int i = 0; i < f->solver.n_nodes; i++)
        for (int u = 0; u < f->solver.nodes[i].n_usages; u++) {
            const struct mpp_solver_usage *use = &f->solver.nodes[i].usages[u];
            if (time < use->first || use->last < time)
                continue;
            int64_t bytes = least_of(&f->solver.nodes[i], u);
            *kind_of(f, i, u, &out->memory) += bytes;
            struct share *x = &sum[use->tag - 1];
            x->bytes += bytes;
            x->layers = x->layers > f->layers[i] ? x->layers : f->layers[i];
        }
    name_largest(arena, f, sum, out);
    mpp_arena_free(scratch);
}

/* X needs BYTES, which are too many. */
static void note(struct mpp_stages *s, const struct mpp_stages_case *x, int64_t bytes, int time)
{
    struct mpp_stages_nearest *near = &s->nearest;
    if (near->bytes > 0 && near->bytes <= bytes)
        return;
    *near = (struct mpp_stages_nearest){.bytes = bytes, .stage = x->stage, .schedule = s->schedule, .recompute = x->recompute};
    note_largest(s->arena, &x->fold, time, near);
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
