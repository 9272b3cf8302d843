/* explain_layer.c - a layer: its kernels all split over one dimension, or one of two; each of its kernels and weights with its
 * runner-up. A stage: other meshes, other recomputation. */
#include <string.h>

#include "inspect/explain_internal.h"
#include "inspect/words.h"
#include "ir/op.h"
#include "planner/pins.h"

enum { MOST_DIMS = 16 };

/* Dimensions that matrix products of the layer run over and that an axis can split. */
struct dims {
    int n;
    const char *name[MOST_DIMS];
    bool apart[MOST_DIMS][MOST_DIMS]; /* no kernel of the layer runs over both */
};

static bool in_layer(const struct mpp_explain *e, const struct mpp_graph *g, const struct mpp_group *group)
{
    return group->phase == MPP_PHASE_FORWARD && mpp_glob(e->subject.glob, g->ops[group->ops[0]].name);
}

static void list_dims(const struct mpp_explain *e, const struct mpp_stage *s, int axis, struct dims *out)
{
    const struct mpp_graph *g = s->graph;
    *out = (struct dims){.n = 0};
    for (int i = 0; i < g->n_groups; i++) {
        const struct mpp_rule *rule = g->groups[i].rule;
        if (!in_layer(e, g, &g->groups[i]) || mpp_op_info(g->ops[g->groups[i].ops[0]].kind)->cls != MPP_CLASS_CONTRACTION)
            continue;
        for (int f = 0; f < rule->n_factors; f++) {
            const char *name = rule->factor[f].size.name;
            int k = 0;
            while (k < out->n && name && strcmp(out->name[k], name) != 0)
                k++;
            if (name && k == out->n && k < MOST_DIMS && mpp_rule_can_split(rule, f, s->mesh.size[axis]))
                out->name[out->n++] = name;
        }
    }
    for (int a = 0; a < out->n; a++)
        for (int b = 0; b < out->n; b++) {
            out->apart[a][b] = a != b;
            for (int i = 0; i < g->n_groups; i++)
                if (in_layer(e, g, &g->groups[i]) && mpp_pins_find_factor(g->groups[i].rule, out->name[a]) >= 0
                    && mpp_pins_find_factor(g->groups[i].rule, out->name[b]) >= 0)
                    out->apart[a][b] = false;
        }
}

/* The layer with AXIS splitting A, or B where kernels run over that (NULL: A alone). */
static void add_whole(struct mpp_explain *e, const struct mpp_stage *s, int axis, const char *a, const char *b)
{
    struct mpp_thing all = {MPP_THING_OP, e->subject.thing.stage, -1, e->subject.glob};
    struct mpp_alternative pins = {.n_pins = b ? 2 : 1};
    const char *number = mpp_arena_printf(e->arena, "%d", axis);
    pins.pin[0] = (struct mpp_pin_tensor){e->subject.glob, a, number, MPP_PIN_SPLIT};
    pins.pin[1] = (struct mpp_pin_tensor){e->subject.glob, b, number, MPP_PIN_SPLIT};
    struct mpp_pins none = mpp_pins_none(), own = mpp_alternatives_pin(e->arena, &none, &pins);
    struct mpp_pins forced = mpp_alternatives_pin(e->arena, &e->held, &pins);
    struct mpp_option *o = &e->option[e->n_options];
    *o = (struct mpp_option){.pins = mpp_pins_text(e->arena, &own),
                             .words = mpp_arena_printf(e->arena, "%s%s%s over %s", a, b ? ", " : "", b ? b : "", mpp_account_axes(e->arena, &s->mesh, 1u << axis))};
    mpp_explain_plan(e, &all, &forced, o);
    const struct mpp_costs *x = &o->costs, *y = &e->option[0].costs;
    bool same = x->step_ps == y->step_ps && x->kernels_ps == y->kernels_ps && x->copies_ps == y->copies_ps && x->bytes == y->bytes;
    if (o->fits && same)
        e->same = e->same ? mpp_arena_printf(e->arena, "%s; %s", e->same, o->words) : o->words;
    e->n_options += o->fits && !same;
}

static void list_whole(struct mpp_explain *e)
{
    const struct mpp_stage *s = &e->plan->stages[e->subject.thing.stage];
    struct mpp_thing all = {MPP_THING_OP, e->subject.thing.stage, -1, e->subject.glob};
    e->option = mpp_arena_array(e->arena, 1 + MPP_MAX_AXES * MOST_DIMS * MOST_DIMS, struct mpp_option);
    e->option[e->n_options++] = (struct mpp_option){.words = "as planned", .pins = "", .chosen = true, .planned = true, .fits = true,
                                                    .costs = mpp_explain_costs(e, &all, e->plan)};
    for (int axis = 0; axis < s->mesh.n_axes; axis++) {
        struct dims d;
        if (s->mesh.size[axis] == 1)
            continue;
        list_dims(e, s, axis, &d);
        for (int a = 0; a < d.n; a++) {
            add_whole(e, s, axis, d.name[a], NULL);
            for (int b = a + 1; b < d.n; b++)
                if (d.apart[a][b])
                    add_whole(e, s, axis, d.name[a], d.name[b]);
        }
    }
    mpp_explain_sort(e);
}

struct rows {
    struct mpp_explain *e;
    size_t cap;
};

/* What pins call NAME of a layer of E's subject: the name itself, or of all layers at once. */
static const char *glob_of(const struct mpp_explain *e, const char *name, const char *repeat, int index)
{
    return strchr(e->name, '*') ? mpp_words_any_layer(e->arena, name, repeat, index) : name;
}

static void add(struct rows *r, struct mpp_thing thing, const char *name, const char *what)
{
    struct mpp_explain *e = r->e;
    if (e->source->plan.progress)
        fprintf(e->source->plan.progress, "%s\n", name);
    for (int i = 0; i < e->n_rows; i++)
        if (strcmp(e->row[i].name, name) == 0 && strcmp(e->row[i].what, what) == 0)
            return;
    e->row = mpp_arena_grow(e->arena, e->row, &r->cap, (size_t)e->n_rows + 1, sizeof *e->row);
    e->row[e->n_rows++] = (struct mpp_layer_row){
        .thing = thing, .name = name, .what = what, .chosen = mpp_explain_chosen(e, &thing), .costs = mpp_explain_costs(e, &thing, e->plan),
        .other = mpp_explain_runner_up(e, &thing)};
}

void mpp_explain_layer(struct mpp_explain *e)
{
    struct rows r = {.e = e};
    list_whole(e);
    for (int s = 0; s < e->plan->n_stages; s++) {
        const struct mpp_graph *g = e->plan->stages[s].graph;
        for (int i = 0; i < g->n_groups; i++) {
            const struct mpp_gop *op = &g->ops[g->groups[i].ops[0]];
            if (g->groups[i].phase != MPP_PHASE_FORWARD || !mpp_glob(e->subject.glob, op->name) || op->kind == MPP_OP_RECV || op->kind == MPP_OP_SEND)
                continue;
            const char *name = glob_of(e, op->name, op->repeat_name, op->index);
            add(&r, (struct mpp_thing){MPP_THING_OP, s, i, name}, name, "kernel");
            for (int k = 0; k < g->groups[i].n_in; k++) {
                mpp_id t = g->groups[i].in[k];
                if (t < 0 || g->tensors[t].role != MPP_ROLE_PARAM || !mpp_glob(e->subject.glob, g->tensors[t].name))
                    continue;
                name = glob_of(e, g->tensors[t].name, op->repeat_name, op->index);
                add(&r, (struct mpp_thing){MPP_THING_REST, s, t, name}, name, "weight");
            }
        }
    }
}

/* ---- stages ---- */

static void add_option(struct mpp_explain *e, const char *words, const struct mpp_pins *pins)
{
    struct mpp_option *o = &e->option[e->n_options++];
    *o = (struct mpp_option){.words = words, .pins = mpp_pins_text(e->arena, pins)};
    mpp_explain_plan(e, NULL, pins, o);
}

static bool same_mesh(const struct mpp_mesh *m, int a, int b)
{
    return b == 1 ? m->n_axes == 1 && m->size[0] == a : m->n_axes == 2 && m->size[0] == a && m->size[1] == b;
}

void mpp_explain_stage(struct mpp_explain *e)
{
    const struct mpp_stage *s = &e->plan->stages[e->subject.thing.stage];
    int n = s->n_devices;
    e->option = mpp_arena_array(e->arena, n + 4, struct mpp_option);
    e->option[e->n_options++] = (struct mpp_option){
        .words = mpp_arena_printf(e->arena, "mesh %s, recompute %s", mpp_words_mesh(e->arena, &s->mesh), mpp_plan_recompute_word(s->recompute)),
        .pins = "", .chosen = true, .planned = true, .fits = true, .costs = mpp_explain_costs(e, NULL, e->plan)};
    for (int a = 1; a <= n; a++) {
        if (n % a || (a == 1 && n > 1) || same_mesh(&s->mesh, a, n / a))
            continue;
        struct mpp_pins pins = e->held;
        pins.mesh = (struct mpp_mesh){.n_axes = a == n ? 1 : 2, .size = {a, n / a, 1}};
        const char *mesh = a == n ? mpp_arena_printf(e->arena, "%d", a) : mpp_arena_printf(e->arena, "%dx%d", a, n / a);
        add_option(e, mpp_arena_printf(e->arena, "mesh %s", mesh), &pins);
    }
    for (int r = 0; r < MPP_RECOMPUTE_COUNT; r++) {
        if ((int)s->recompute == r)
            continue;
        struct mpp_pins pins = e->held;
        pins.recompute = r;
        const char *word = mpp_plan_recompute_word((enum mpp_recompute)r);
        add_option(e, mpp_arena_printf(e->arena, "recompute %s", word), &pins);
    }
    mpp_explain_sort(e);
}
