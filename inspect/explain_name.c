/* explain_name.c - from a name on the command line to what it means in the plan. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "inspect/explain_internal.h"
#include "ir/op.h"

enum { MOST_NAMES = 4096 };

static bool matches(const char *glob, const char *name)
{
    return strcmp(glob, name) == 0 || (strpbrk(glob, "*?") && mpp_glob(glob, name));
}

/* "stage 2", "stage2" */
static bool stage_number(const char *name, int *out)
{
    if (strncmp(name, "stage", 5) != 0)
        return false;
    const char *at = name + 5 + strspn(name + 5, " :");
    if (!isdigit((unsigned char)*at))
        return false;
    char *end;
    long n = strtol(at, &end, 10);
    *out = n > MPP_CLUSTER_MAX_DEVICES ? MPP_CLUSTER_MAX_DEVICES : (int)n;
    return *end == '\0';
}

static int group_of(const struct mpp_graph *g, mpp_id op)
{
    for (int i = 0; i < g->n_groups; i++)
        for (int k = 0; k < g->groups[i].n_ops; k++)
            if (g->groups[i].ops[k] == op)
                return i;
    return -1;
}

static bool is_transfer(const struct mpp_gop *op)
{
    return op->kind == MPP_OP_SEND || op->kind == MPP_OP_RECV;
}

/* A glob's things must be alike, for what is said of one is forced on all: X and Y are dimensions' names, joined. */
static bool alike(struct mpp_explain *e, const char *first, const char *first_dims, const char *name, const char *dims)
{
    if (strcmp(first_dims, dims) == 0)
        return true;
    mpp_diag_error(e->diag, (struct mpp_loc){0}, "--explain %s: \"%s\" and \"%s\" have unlike dimensions; name things that are alike", e->name, first, name);
    return false;
}

static const char *tensor_dims(struct mpp_arena *arena, const struct mpp_gtensor *t)
{
    const char *s = mpp_arena_printf(arena, "%d:", (int)t->role);
    for (int d = 0; d < t->n_dims; d++)
        s = mpp_arena_printf(arena, "%s%s,", s, t->dims[d].name ? t->dims[d].name : "");
    return s;
}

static const char *op_dims(struct mpp_arena *arena, const struct mpp_gop *op)
{
    const char *s = mpp_arena_printf(arena, "%d:", (int)op->phase);
    for (int f = 0; f < op->rule->n_factors; f++)
        s = mpp_arena_printf(arena, "%s%s,", s, op->rule->factor[f].size.name ? op->rule->factor[f].size.name : "");
    return s;
}

/* Is all that NAME, a glob, matches like the first thing that it does? */
static enum mpp_status check_alike(struct mpp_explain *e, bool ops, const char *name)
{
    const char *first = NULL, *dims = NULL;
    const struct mpp_graph *g = e->graph;
    for (int i = 0; i < (ops ? g->n_ops : g->n_tensors); i++) {
        const char *x = ops ? g->ops[i].name : g->tensors[i].name;
        if (!matches(name, x))
            continue;
        const char *its = ops ? op_dims(e->arena, &g->ops[i]) : tensor_dims(e->arena, &g->tensors[i]);
        if (first && !alike(e, first, dims, x, its))
            return MPP_INVALID;
        first = first ? first : x;
        dims = dims ? dims : its;
    }
    return MPP_OK;
}

static bool find_op(struct mpp_explain *e, const char *name)
{
    for (int s = 0; s < e->plan->n_stages; s++) {
        const struct mpp_graph *g = e->plan->stages[s].graph;
        for (mpp_id o = 0; o < g->n_ops; o++) {
            if (!matches(name, g->ops[o].name) || is_transfer(&g->ops[o]))
                continue;
            int group = group_of(g, o);
            const char *first = g->ops[g->groups[group].ops[0]].name;
            e->subject = (struct mpp_subject){.kind = MPP_SUBJECT_THING, .thing = {MPP_THING_OP, s, group, name}, .what = "op", .glob = name};
            if (g->groups[group].n_ops > 1)
                e->subject.note = strcmp(first, g->ops[o].name) == 0
                    ? mpp_arena_printf(e->arena, "%d ops run as one kernel with it", g->groups[group].n_ops - 1)
                    : mpp_arena_printf(e->arena, "it runs inside the kernel of %s", first);
            return true;
        }
    }
    return false;
}

/* The op that makes tensor T, or that replaces it at the end of a step; -1. */
static mpp_id maker(const struct mpp_graph *g, mpp_id t)
{
    for (mpp_id x = 0; x < g->n_tensors; x++)
        if (g->tensors[x].updates == t)
            return g->tensors[x].op;
    return g->tensors[t].op;
}

static bool stored(const struct mpp_graph *g, mpp_id t)
{
    for (int i = 0; i < g->n_groups; i++)
        for (int k = 0; k < g->groups[i].n_out; k++)
            if (g->groups[i].out[k] == t)
                return true;
    return false;
}

/* A tensor that does not lie anywhere of its own: the op behind it. */
static void as_op(struct mpp_explain *e, int stage, mpp_id t, const char *why)
{
    const struct mpp_graph *g = e->plan->stages[stage].graph;
    mpp_id op = maker(g, t);
    if (op < 0)
        return;
    e->subject.thing = (struct mpp_thing){MPP_THING_OP, stage, group_of(g, op), g->ops[op].name};
    e->subject.note = mpp_arena_printf(e->arena, "%s %s", why, g->ops[op].name);
}

static bool find_tensor(struct mpp_explain *e, const char *name)
{
    for (int s = 0; s < e->plan->n_stages; s++) {
        const struct mpp_graph *g = e->plan->stages[s].graph;
        for (mpp_id t = 0; t < g->n_tensors; t++) {
            const struct mpp_gtensor *x = &g->tensors[t];
            bool published = x->info && x->info->published && matches(name, x->info->published);
            if ((!matches(name, x->name) && !published) || (x->op >= 0 && is_transfer(&g->ops[x->op])))
                continue;
            bool rests = x->role == MPP_ROLE_PARAM || x->role == MPP_ROLE_INPUT;
            e->subject = (struct mpp_subject){
                .kind = MPP_SUBJECT_THING, .thing = {rests ? MPP_THING_REST : MPP_THING_VALUE, s, t, name}, .glob = name,
                .what = x->role == MPP_ROLE_PARAM ? "weight" : x->role == MPP_ROLE_INPUT ? "input" : x->role == MPP_ROLE_STATE ? "optimiser state"
                        : x->role == MPP_ROLE_ACCUM ? "sum over micro-batches" : "value"};
            if (x->role == MPP_ROLE_STATE)
                as_op(e, s, t, "it lies as its update is split:");
            else if (!rests && !stored(g, t))
                as_op(e, s, t, "it stays inside the kernel of");
            return true;
        }
    }
    return false;
}

/* "h.3", "h.*": a layer, or all of a repeat. */
static bool find_layer(struct mpp_explain *e)
{
    const char *dot = strrchr(e->name, '.');
    if (!dot || (strcmp(dot + 1, "*") != 0 && !isdigit((unsigned char)dot[1])))
        return false;
    for (int s = 0; s < e->plan->n_stages; s++) {
        const struct mpp_graph *g = e->plan->stages[s].graph;
        for (mpp_id o = 0; o < g->n_ops; o++) {
            const struct mpp_gop *op = &g->ops[o];
            if (op->index < 0 || !op->repeat_name)
                continue;
            const char *all = mpp_arena_printf(e->arena, "%s.*", op->repeat_name);
            if (strcmp(e->name, all) != 0 && strcmp(e->name, mpp_arena_printf(e->arena, "%s.%d", op->repeat_name, op->index)) != 0)
                continue;
            e->subject = (struct mpp_subject){.kind = MPP_SUBJECT_LAYER, .thing = {.stage = s, .glob = e->name}, .what = "layer",
                                              .glob = mpp_arena_printf(e->arena, "%s.*", e->name)};
            return true;
        }
    }
    return false;
}

static enum mpp_status unknown(struct mpp_explain *e, const char *name)
{
    const char **names = mpp_arena_array(e->arena, MOST_NAMES, const char *);
    int n = 0;
    for (mpp_id o = 0; o < e->graph->n_ops && n < MOST_NAMES / 2; o++)
        names[n++] = e->graph->ops[o].name;
    for (mpp_id t = 0; t < e->graph->n_tensors && n < MOST_NAMES; t++)
        names[n++] = e->graph->tensors[t].name;
    const char *hint = mpp_diag_hint(e->diag, name, names, n);
    mpp_diag_error(e->diag, (struct mpp_loc){0}, "--explain: the step has no op, tensor, layer or stage \"%s\"%s", name,
                   *hint ? hint : "; names are those of --dump-after optimizer, of layers as in h.3, of stages as in stage0");
    return MPP_INVALID;
}

enum mpp_status mpp_explain_find(struct mpp_explain *e)
{
    int stage;
    bool op = strncmp(e->name, "op:", 3) == 0, tensor = strncmp(e->name, "tensor:", 7) == 0;
    const char *name = e->name + (op ? 3 : tensor ? 7 : 0);
    if (stage_number(e->name, &stage)) {
        if (stage < e->plan->n_stages) {
            e->subject = (struct mpp_subject){.kind = MPP_SUBJECT_STAGE, .thing.stage = stage, .what = "stage"};
            return MPP_OK;
        }
        mpp_diag_error(e->diag, (struct mpp_loc){0}, "--explain %s: the plan has %d stage%s, counted from 0", e->name, e->plan->n_stages,
                       e->plan->n_stages == 1 ? "" : "s");
        return MPP_INVALID;
    }
    if (!op && !tensor && find_layer(e))
        return MPP_OK;
    if (!tensor && find_op(e, name))
        return check_alike(e, true, name);
    if (!op && find_tensor(e, name))
        return check_alike(e, false, name);
    return unknown(e, name);
}
