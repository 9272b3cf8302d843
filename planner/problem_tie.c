/* problem_tie.c - groups that are planned as one node.
 *
 * A backward group follows the forward group it belongs to: an axis that splits a factor forward splits the same
 * factor backward, an axis that is whole stays whole. So a product, its two gradients and their weight have one
 * decision; column and row splits, data parallel and sequence splits all have this form. The update groups of one
 * parameter are tied to one sharding of its gradient. Ties keep only choices in which what the groups hand to
 * each other needs no copy, so that every copy is priced in a value. */
#include <string.h>

#include "planner/problem_internal.h"

enum { MAX_SETS = 4096 };

/* ---- who leads ---- */

static bool same_size(struct mpp_size a, struct mpp_size b)
{
    return a.size == b.size && a.per_batch == b.per_batch && strcmp(a.name ? a.name : "", b.name ? b.name : "") == 0;
}

static int only_factor_like(const struct mpp_rule *rule, struct mpp_size size)
{
    int found = -1;
    for (int f = 0; f < rule->n_factors; f++)
        if (same_size(rule->factor[f].size, size)) {
            if (found >= 0)
                return -1;
            found = f;
        }
    return found;
}

/* The factor of the backward rule that is factor F of the forward rule, or -1: the same letter and size where both
 * are single ops (rules of an op and its gradient share letters), else the only one of its size and name. */
static int counterpart(const struct mpp_group *from, int f, const struct mpp_group *to)
{
    const struct mpp_factor *x = &from->rule->factor[f];
    if (from->n_ops == 1 && to->n_ops == 1)
        for (int k = 0; k < to->rule->n_factors; k++)
            if (to->rule->factor[k].letter == x->letter && same_size(to->rule->factor[k].size, x->size))
                return k;
    return only_factor_like(from->rule, x->size) < 0 ? -1 : only_factor_like(to->rule, x->size);
}

/* Do the factors of FROM that may be split each have one of TO, which answers to none else? */
static bool covered(const struct mpp_group *from, const struct mpp_group *to)
{
    for (int f = 0; f < from->rule->n_factors; f++) {
        const struct mpp_factor *x = &from->rule->factor[f];
        int g = counterpart(from, f, to);
        if (x->kind != MPP_FACTOR_WHOLE && x->kind != MPP_FACTOR_NEVER && x->size.size > 1
            && (g < 0 || counterpart(to, g, from) != f))
            return false;
    }
    return true;
}

/* A sum of gradients belongs to the op that was differentiated last, but not to its splits: it lacks factors. */
static bool can_follow(const struct mpp_group *leader, const struct mpp_group *group)
{
    return covered(group, leader) && covered(leader, group);
}

static bool is_sum_over_micro_batches(const struct mpp_graph *g, const struct mpp_group *group)
{
    return group->n_out > 0 && g->tensors[group->out[0]].role == MPP_ROLE_ACCUM;
}

static void lead_backward(struct mpp_build *b, int *leader)
{
    const struct mpp_graph *g = b->g;
    int *group_of = mpp_arena_array(b->arena, g->n_ops, int);
    for (int i = 0; i < g->n_groups; i++)
        for (int k = 0; k < g->groups[i].n_ops; k++)
            group_of[g->groups[i].ops[k]] = i;
    for (int i = 0; i < g->n_groups; i++) {
        const struct mpp_group *group = &g->groups[i];
        if (group->phase != MPP_PHASE_BACKWARD || is_sum_over_micro_batches(g, group))
            continue;
        for (int k = 0; k < group->n_ops && leader[i] == i; k++) {
            mpp_id forward = g->ops[group->ops[k]].forward;
            if (forward >= 0 && can_follow(&g->groups[group_of[forward]], group))
                leader[i] = group_of[forward];
        }
    }
}

/* The group that makes a parameter's new value leads all that read the parameter's gradient in the update. */
static void lead_updates(struct mpp_build *b, int *leader)
{
    const struct mpp_graph *g = b->g;
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        int first = -1;
        if (g->tensors[t].role != MPP_ROLE_ACCUM || g->tensors[t].param < 0)
            continue;
        for (int u = b->uses.first_use[t]; u < b->uses.first_use[t + 1]; u++)
            if (g->groups[b->uses.use[u]].phase == MPP_PHASE_UPDATE) {
                first = first < 0 ? b->uses.use[u] : first;
                leader[b->uses.use[u]] = first;
            }
    }
    for (mpp_id t = 0; t < g->n_tensors; t++)
        for (int u = b->uses.first_use[t]; g->tensors[t].updates >= 0 && u < b->uses.first_use[t + 1]; u++)
            leader[b->uses.use[u]] = leader[b->uses.producer[t]]; /* a parameter that is rounded from its new master */
}

int *mpp_build_leaders(struct mpp_build *b)
{
    int *leader = mpp_arena_array(b->arena, b->g->n_groups, int);
    for (int i = 0; i < b->g->n_groups; i++)
        leader[i] = i;
    lead_backward(b, leader);
    lead_updates(b, leader);
    return leader;
}

/* ---- choices ---- */

/* What the members of a node hand to each other, or read together: (member, operand) pairs that must lie alike. */
struct link {
    int a, a_operand, b, b_operand;
};

struct tie {
    struct mpp_build *b;
    int n;
    const int *groups;
    struct mpp_group_class **c;
    int n_links;
    struct link link[64];
    int n_picks, cap;             /* accepted choices */
    int *pick;                    /* [n_picks][n] */
    int now[64];
};

/* Tensors made by one member and read by a later one; gradients that several update groups read. */
static void find_links(struct tie *t)
{
    for (int j = 1; j < t->n; j++) {
        const struct mpp_group *reader = &t->b->g->groups[t->groups[j]];
        for (int i = 0; i < j; i++) {
            const struct mpp_group *other = &t->b->g->groups[t->groups[i]];
            for (int o = 0; o < reader->n_in; o++) {
                mpp_id x = reader->in[o];
                for (int k = 0; x >= 0 && k < other->n_in + other->n_out && t->n_links < 64; k++) {
                    mpp_id y = k < other->n_in ? other->in[k] : other->out[k - other->n_in];
                    bool together = k < other->n_in && reader->phase == MPP_PHASE_UPDATE
                                    && t->b->g->tensors[x].role == MPP_ROLE_ACCUM;
                    bool shared = k < other->n_in && reader->phase == other->phase;
                    if (y == x && (k >= other->n_in || together || shared))
                        t->link[t->n_links++] = (struct link){i, k, j, o};
                }
            }
        }
    }
}

static bool links_hold(const struct tie *t, int member)
{
    for (int l = 0; l < t->n_links; l++) {
        const struct link *x = &t->link[l];
        if (x->b == member && t->c[x->a]->state[x->a_operand][t->now[x->a]]
                                  != t->c[x->b]->state[x->b_operand][t->now[x->b]])
            return false;
    }
    return true;
}

/* Does SPLIT of a backward group follow LEAD of its forward group? Where the leader passes partial sums on, or the
 * factor cannot be split here, the axis is whole (or passes sums on too). */
static bool follows(const struct tie *t, int member, struct mpp_split lead, struct mpp_split split)
{
    const struct mpp_group *leader = &t->b->g->groups[t->groups[0]], *group = &t->b->g->groups[t->groups[member]];
    const struct mpp_mesh *mesh = t->b->p->env.mesh;
    for (int a = 0; a < mesh->n_axes; a++) {
        int want = MPP_WHOLE;
        if (lead.axis[a] >= 0)
            want = counterpart(leader, lead.axis[a], group);
        if (want >= 0 && !mpp_rule_can_split(group->rule, want, mesh->size[a]))
            want = MPP_WHOLE;
        if (want < 0 ? split.axis[a] >= 0 : split.axis[a] != want)
            return false;
        if (lead.axis[a] == MPP_WHOLE && split.axis[a] != MPP_WHOLE)
            return false;
    }
    return true;
}

/* All choices of members MEMBER.. that go with those already made. */
static void extend(struct tie *t, int member)
{
    if (member == t->n) {
        if (t->n_picks == t->cap)
            return;
        memcpy(t->pick + (size_t)t->n_picks++ * (size_t)t->n, t->now, sizeof(int) * (size_t)t->n);
        return;
    }
    const struct mpp_group_class *c = t->c[member];
    bool backward = t->b->g->groups[t->groups[member]].phase == MPP_PHASE_BACKWARD;
    for (int k = 0; k < c->n_choices; k++) {
        t->now[member] = k;
        if (member > 0 && backward && !follows(t, member, t->c[0]->split[t->now[0]], c->split[k]))
            continue;
        if (links_hold(t, member))
            extend(t, member + 1);
    }
}

static struct mpp_tie_class *as_class(const struct tie *t)
{
    struct mpp_arena *arena = t->b->book->arena;
    struct mpp_tie_class *c = mpp_arena_array(arena, 1, struct mpp_tie_class);
    int n = t->n, m = t->n_picks;
    c->n_groups = n;
    c->n_choices = m;
    c->cost = mpp_arena_array(arena, m, int64_t);
    c->split = mpp_arena_array(arena, n, struct mpp_split *);
    c->state = mpp_arena_array(arena, n, int32_t **);
    c->bytes = mpp_arena_array(arena, n, int64_t **);
    for (int i = 0; i < n; i++) {
        const struct mpp_group_class *x = t->c[i];
        c->split[i] = mpp_arena_array(arena, m, struct mpp_split);
        c->state[i] = mpp_arena_array(arena, x->n_operands, int32_t *);
        c->bytes[i] = mpp_arena_array(arena, x->n_operands, int64_t *);
        for (int o = 0; o < x->n_operands; o++) {
            c->state[i][o] = mpp_arena_array(arena, m, int32_t);
            c->bytes[i][o] = mpp_arena_array(arena, m, int64_t);
        }
        for (int k = 0; k < m; k++) {
            int j = t->pick[k * n + i];
            c->split[i][k] = x->split[j];
            c->cost[k] += x->cost[j];
            for (int o = 0; o < x->n_operands; o++) {
                c->state[i][o][k] = x->state[o][j];
                c->bytes[i][o][k] = x->bytes[o][j];
            }
        }
    }
    return c;
}

int mpp_build_tie(struct mpp_build *b, int n, const int *groups)
{
    struct mpp_key key = {.arena = b->arena};
    struct tie t = {.b = b, .n = n, .groups = groups};
    bool is_new;
    t.c = mpp_arena_array(b->arena, n, struct mpp_group_class *);
    for (int i = 0; i < n; i++) {
        t.c[i] = b->book->group[b->group_class_of[groups[i]]];
        mpp_key_int(&key, b->group_class_of[groups[i]]);
    }
    find_links(&t);
    mpp_key_add(&key, t.link, sizeof *t.link * (size_t)t.n_links);
    int id = mpp_memo_add(b->book->ties, key.bytes, key.size, &is_new);
    if (!is_new)
        return id;
    t.cap = MAX_SETS;
    t.pick = mpp_arena_array(b->arena, (size_t)t.cap * (size_t)n, int);
    extend(&t, 0);
    b->book->tie = mpp_arena_grow(b->book->arena, b->book->tie, &b->book->cap_tie, (size_t)id + 1, sizeof(*b->book->tie));
    b->book->tie[id] = as_class(&t);
    return id;
}
