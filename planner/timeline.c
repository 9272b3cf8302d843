/* timeline.c - a stage's work in order, as derive.c adds it up. */
#include <string.h>

#include "planner/timeline.h"
#include "planner/stage.h"

struct line {
    struct mpp_arena *arena;
    const struct mpp_stage *stage;
    struct mpp_piece *piece;
    int n, n_comms;               /* pieces so far, and how many of the stage's collectives are among them */
    size_t cap;
};

static enum mpp_piece_part part_of(const struct line *l, enum mpp_phase phase, bool once, bool after)
{
    if (!once && phase != MPP_PHASE_UPDATE)
        return phase == MPP_PHASE_BACKWARD ? MPP_PART_BACKWARD : MPP_PART_FORWARD;
    return after && l->stage->graph->grad_norm >= 0 ? MPP_PART_UPDATE : MPP_PART_ONCE;
}

/* PIECE, which is the next N_COMMS of the stage's collectives. */
static void add(struct line *l, struct mpp_piece piece, int n_comms)
{
    piece.comm = l->n_comms;
    piece.n_comms = n_comms;
    l->n_comms += n_comms;
    l->piece = mpp_arena_grow(l->arena, l->piece, &l->cap, (size_t)l->n + 1, sizeof *l->piece);
    l->piece[l->n++] = piece;
}

static void add_copy(struct line *l, int i)
{
    const struct mpp_copy *c = &l->stage->copies[i];
    for (int k = 0; k < c->n_steps; k++) {
        bool local = c->steps[k].kind == MPP_STEP_SLICE || c->steps[k].kind == MPP_STEP_TO_PARTIAL;
        add(l, (struct mpp_piece){.part = part_of(l, c->phase, c->once, c->store), .kind = MPP_PIECE_STEP, .group = c->first_group,
                                  .copy = i, .step = k, .cost_ps = c->steps[k].cost_ps}, !local);
    }
}

/* How many of the next collectives are inside GROUP. */
static int internal_comms(const struct line *l, const struct mpp_group *group)
{
    const struct mpp_stage *s = l->stage;
    int n = 0;
    while (l->n_comms + n < s->n_collectives && strcmp(s->collectives[l->n_comms + n].role, "internal") == 0
           && s->collectives[l->n_comms + n].tensor == s->graph->ops[group->ops[0]].name)
        n++;
    return n;
}

static void add_group(struct line *l, const struct mpp_reshard_env *env, int i)
{
    const struct mpp_graph *g = l->stage->graph;
    const struct mpp_group *group = &g->groups[i];
    int64_t internal, cost = mpp_price_group_in(g, env, group, l->stage->split[i], &internal);
    bool receive = mpp_price_is_receive(g, group);
    struct mpp_piece p = {.part = part_of(l, group->phase, false, group->phase == MPP_PHASE_UPDATE), .group = i, .copy = -1, .step = -1,
                          .kind = receive ? MPP_PIECE_RECEIVE : MPP_PIECE_COMPUTE, .cost_ps = cost};
    add(l, p, receive);
    p.kind = MPP_PIECE_INTERNAL;
    p.cost_ps = internal;
    int n = internal_comms(l, group);
    if (internal > 0 || n > 0)
        add(l, p, n);
}

const struct mpp_piece *mpp_plan_timeline(struct mpp_arena *arena, const struct mpp_cluster *cluster,
                                          const struct mpp_plan *plan, int stage, int *out_n)
{
    const struct mpp_stage *s = &plan->stages[stage];
    struct line l = {.arena = arena, .stage = s};
    struct mpp_reshard_env env;
    mpp_reshard_env_init(cluster, &s->mesh, s->first_device, &env);
    for (int i = 0, c = 0; i < s->graph->n_groups; i++) {
        int first = c;
        for (; c < s->n_copies && s->copies[c].first_group == i; c++)
            if (!s->copies[c].store)
                add_copy(&l, c);
        add_group(&l, &env, i);
        for (int k = first; k < c; k++)
            if (s->copies[k].store)
                add_copy(&l, k);
    }
    *out_n = l.n;
    return l.piece;
}
