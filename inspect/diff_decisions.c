/* diff_decisions.c - what two plans of one model decide otherwise, things that differ alike together. */
#include <stdlib.h>
#include <string.h>

#include "inspect/diff_internal.h"
#include "inspect/words.h"
#include "ir/op.h"

/* A thing that a plan decides. */
struct item {
    const char *what, *name, *template, *words;
    double weight;
};

struct items {
    struct mpp_arena *arena;
    int n;
    size_t cap;
    struct item *item;
};

static void add_item(struct items *l, struct item x)
{
    l->item = mpp_arena_grow(l->arena, l->item, &l->cap, (size_t)l->n + 1, sizeof *l->item);
    l->item[l->n++] = x;
}

static int by_name(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : strcmp(x->what, y->what);
}

/* Forward kernels, and weights as they rest. */
static struct items list_items(struct mpp_arena *arena, const struct mpp_plan *plan)
{
    struct items l = {.arena = arena};
    for (int i = 0; i < plan->n_stages; i++) {
        const struct mpp_stage *s = &plan->stages[i];
        const struct mpp_graph *g = s->graph;
        const char **repeat = mpp_arena_array(arena, g->n_ops + 1, const char *); /* by number */
        for (int k = 0; k < g->n_ops; k++)
            if (g->ops[k].repeat >= 0 && g->ops[k].repeat < g->n_ops)
                repeat[g->ops[k].repeat] = g->ops[k].repeat_name;
        for (int k = 0; k < g->n_groups; k++) {
            const struct mpp_group *group = &g->groups[k];
            const struct mpp_gop *op = &g->ops[group->ops[0]];
            double flops = 0;
            if (group->phase != MPP_PHASE_FORWARD || op->kind == MPP_OP_RECV || op->kind == MPP_OP_SEND)
                continue;
            for (int o = 0; o < group->n_ops; o++)
                flops += mpp_op_flops(g, &g->ops[group->ops[o]]);
            add_item(&l, (struct item){"kernels", op->name, mpp_words_any_layer(arena, op->name, op->repeat_name, op->index),
                                       mpp_words_split(arena, group, &s->mesh, s->split[k]), flops});
        }
        for (mpp_id t = 0; t < g->n_tensors; t++) {
            const struct mpp_gtensor *x = &g->tensors[t];
            if (x->role != MPP_ROLE_PARAM)
                continue;
            const char *name = mpp_words_any_layer(arena, x->name, x->repeat >= 0 && x->repeat < g->n_ops ? repeat[x->repeat] : NULL, x->index);
            add_item(&l, (struct item){"weights at rest", x->name, name,
                                       mpp_arena_printf(arena, "%s%s", mpp_words_sharding(arena, x, &s->mesh, s->resting[t]),
                                                        s->kept[t] ? ", gathered once per step" : ""), (double)mpp_tensor_bytes(x)});
        }
    }
    if (l.n > 0)
        qsort(l.item, (size_t)l.n, sizeof *l.item, by_name);
    int n = 0;                    /* a tied weight is in several stages */
    for (int i = 0; i < l.n; i++)
        if (n == 0 || by_name(&l.item[n - 1], &l.item[i]) != 0)
            l.item[n++] = l.item[i];
    l.n = n;
    return l;
}

struct joining {
    struct mpp_arena *arena;
    int n;
    size_t cap;
    struct mpp_decision *d;
};

static void add_difference(struct joining *j, const struct item *x, const char *a, const char *b)
{
    int i = 0, k = 0;
    while (i < j->n && (strcmp(j->d[i].what, x->what) != 0 || strcmp(j->d[i].a, a) != 0 || strcmp(j->d[i].b, b) != 0))
        i++;
    if (i == j->n) {
        j->d = mpp_arena_grow(j->arena, j->d, &j->cap, (size_t)j->n + 1, sizeof *j->d);
        j->d[j->n++] = (struct mpp_decision){.what = x->what, .a = a, .b = b};
    }
    struct mpp_decision *d = &j->d[i];
    d->weight += x->weight;
    while (k < d->n_names && strcmp(d->names[k], x->template) != 0)
        k++;
    if (k < d->n_names)
        return;
    d->names = mpp_arena_grow(j->arena, d->names, &d->cap, (size_t)k + 1, sizeof *d->names);
    d->names[d->n_names++] = x->template;
}

static int by_kind_and_weight(const void *a, const void *b)
{
    const struct mpp_decision *x = a, *y = b;
    int order = strcmp(x->what, y->what);
    if (order)
        return order;
    if (x->weight < y->weight || x->weight > y->weight)
        return x->weight < y->weight ? 1 : -1;
    return strcmp(x->names[0], y->names[0]);
}

const struct mpp_decision *mpp_diff_decisions(struct mpp_arena *arena, const struct mpp_plandir *a, const struct mpp_plandir *b,
                                              int *out_n)
{
    struct items x = list_items(arena, a->fitted.plan), y = list_items(arena, b->fitted.plan);
    struct joining j = {.arena = arena};
    for (int i = 0, k = 0; i < x.n || k < y.n;) {
        int order = i == x.n ? 1 : k == y.n ? -1 : by_name(&x.item[i], &y.item[k]);
        const struct item *here = order <= 0 ? &x.item[i] : &y.item[k];
        const char *in_a = order <= 0 ? x.item[i].words : "", *in_b = order >= 0 ? y.item[k].words : "";
        if (strcmp(in_a, in_b) != 0)
            add_difference(&j, here, in_a, in_b);
        i += order <= 0;
        k += order >= 0;
    }
    if (j.n > 0)
        qsort(j.d, (size_t)j.n, sizeof *j.d, by_kind_and_weight);
    *out_n = j.n;
    return j.d;
}
