/* test_interleave.c - planned neighbouring layers become the chunks of an interleaved stage: each op and each parameter of a
 * chunk is decided as the one at the same place of the layer that was planned for it. Decisions are random ones here, so that
 * no two layers' are alike. */
#include "ir/op.h"
#include "planner/stage.h"
#include "tests/planner_testing.h"

enum { MOST_NAME = 256 };

struct example {
    struct setup s;
    const struct mpp_layering *layers; /* the model's ends joined to its first and last layer */
    struct mpp_schedule schedule;
    int number, each;
    struct mpp_stage planned, stage;
};

static unsigned seed = 1;

static int below(int n)
{
    seed = seed * 1103515245u + 12345u;
    return (int)((seed >> 16) % (unsigned)n);
}

/* ---- random decisions ---- */

static struct mpp_split random_split(const struct mpp_rule *rule, const struct mpp_mesh *mesh)
{
    for (int trial = 0; trial < 20; trial++) {
        struct mpp_split s = {{MPP_WHOLE, MPP_WHOLE, MPP_WHOLE}};
        for (int a = 0; a < mesh->n_axes; a++)
            s.axis[a] = (int8_t)(rule->n_factors > 0 ? below(rule->n_factors + 1) - 1 : MPP_WHOLE);
        if (mpp_split_legal(rule, mesh, s))
            return s;
    }
    return (struct mpp_split){{MPP_WHOLE, MPP_WHOLE, MPP_WHOLE}};
}

static void decide_at_random(struct mpp_arena *arena, struct mpp_stage *s)
{
    const struct mpp_graph *g = s->graph;
    s->split = mpp_arena_array(arena, g->n_groups, struct mpp_split);
    s->resting = mpp_arena_array(arena, g->n_tensors, struct mpp_sharding);
    s->kept = mpp_arena_array(arena, g->n_tensors, bool);
    for (int i = 0; i < g->n_groups; i++)
        s->split[i] = random_split(g->groups[i].rule, &s->mesh);
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        s->resting[t] = mpp_sharding_whole();
        for (int a = 0; a < s->mesh.n_axes && g->tensors[t].n_dims > 0; a++)
            s->resting[t].axis[a] = (int8_t)(below(g->tensors[t].n_dims + 1) - 1);
        s->kept[t] = below(2);
    }
}

/* ---- what is expected, by names ---- */

/* The layer in NAME, "h.5.mlp.c_fc" or "h.5": 5; -1: none. */
static int layer_of_name(const char *name)
{
    int layer, n = 0;
    return sscanf(name, "h.%d.%n", &layer, &n) == 1 && n > 0 ? layer : -1;
}

/* The planned layer for LAYER of the stage; -1: it is none of its own. */
static int planned_for(const struct example *x, int layer)
{
    int part = layer / x->each, stages = x->schedule.stages;
    if (part % stages != x->number)
        return -1;
    return (x->number * x->schedule.chunks + part / stages) * x->each + layer % x->each;
}

/* NAME in the planned graph; false: it is of no layer of the stage. */
static bool planned_name(const struct example *x, const char *name, char *out)
{
    int layer = layer_of_name(name), other = layer < 0 ? -1 : planned_for(x, layer);
    if (other < 0)
        return false;
    snprintf(out, MOST_NAME, "h.%d.%s", other, strchr(name + 2, '.') + 1);
    return true;
}

static int find_group(const struct mpp_graph *g, const char *name)
{
    for (int i = 0; i < g->n_groups; i++)
        if (!strcmp(g->ops[g->groups[i].ops[0]].name, name))
            return i;
    return -1;
}

static mpp_id find_tensor(const struct mpp_graph *g, const char *name)
{
    for (mpp_id t = 0; t < g->n_tensors; t++)
        if (!strcmp(g->tensors[t].name, name))
            return t;
    return -1;
}

static void check_ops(const struct example *x, const char *what)
{
    const struct mpp_graph *g = x->stage.graph, *from = x->planned.graph;
    char name[MOST_NAME];
    int n = 0, of_layers = 0, found = 0, chunks = 0;
    for (int i = 0; i < g->n_groups; i++) {
        const struct mpp_gop *op = &g->ops[g->groups[i].ops[0]];
        chunks = op->chunk >= chunks ? op->chunk + 1 : chunks;
        if (op->kind == MPP_OP_SEND || !planned_name(x, op->name, name))
            continue;             /* what is sent lies as it is made */
        of_layers++;
        int like = find_group(from, name);
        if (like < 0 || from->groups[like].n_ops != g->groups[i].n_ops)
            continue;             /* the same op of another layer stands beside others where a chunk ends */
        found++;
        n += !memcmp(&x->stage.split[i], &x->planned.split[like], sizeof x->stage.split[i]);
    }
    check(chunks == x->schedule.chunks, "%s: %d chunks of %d", what, chunks, x->schedule.chunks);
    check(found > 0 && n == found, "%s: %d of %d ops are split as they were planned", what, n, found);
    check(found * 10 >= of_layers * 9, "%s: %d of %d ops have a counterpart", what, found, of_layers);
}

static void check_tensors(const struct example *x, const char *what)
{
    const struct mpp_graph *g = x->stage.graph;
    char name[MOST_NAME];
    int n = 0, all = 0;
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        if (g->tensors[t].role != MPP_ROLE_PARAM || !planned_name(x, g->tensors[t].name, name))
            continue;
        mpp_id like = find_tensor(x->planned.graph, name);
        all++;
        n += like >= 0 && x->stage.kept[t] == x->planned.kept[like]
             && !memcmp(&x->stage.resting[t], &x->planned.resting[like], sizeof x->stage.resting[t]);
    }
    check(all > 0 && n == all, "%s: %d of %d parameters rest as they were planned", what, n, all);
}

/* ---- examples ---- */

static void test_stage(int layers, int stages, int chunks, int number, enum mpp_recompute recompute)
{
    char what[128], defines[64];
    snprintf(what, sizeof what, "%d layers, stage %d of %d, %d chunks, recompute %s", layers, number, stages, chunks, mpp_recompute_name(recompute));
    snprintf(defines, sizeof defines, "layers=%d", layers);
    struct example x = {.s = setup_unfused("models/gpt.xml", "tiny", defines, "host", 4), .schedule = {MPP_SCHEDULE_INTERLEAVED, stages, chunks, stages},
                        .number = number, .each = layers / (stages * chunks)};
    struct mpp_layering *all;
    must(mpp_layering_make(x.s.arena, x.s.diag, x.s.g, 0, &all), "layers");
    x.layers = mpp_layering_merge_ends(x.s.arena, x.s.g, all);
    check(x.layers->n_layers == layers && mpp_interleave_possible(x.s.g, x.layers, &x.schedule), "%s: possible", what);
    int span = chunks * x.each;
    x.planned = (struct mpp_stage){.n_devices = 4, .first_layer = number * span, .last_layer = number * span + span - 1, .recompute = recompute,
                                   .mesh = {.n_axes = 2, .size = {2, 2, 1}}};
    must(mpp_span_extract(x.s.arena, x.s.diag, x.s.g, x.layers, x.planned.first_layer, x.planned.last_layer, recompute, &x.planned.graph), "span");
    mpp_graph_set_batch(x.planned.graph, x.s.g->global_batch / stages);
    decide_at_random(x.s.arena, &x.planned);
    x.stage = x.planned;
    must(mpp_interleave_stage(x.s.arena, x.s.diag, x.s.g, x.layers, &x.schedule, number, &x.stage), "interleave");
    check(x.stage.graph != x.planned.graph && x.stage.graph->batch == x.planned.graph->batch, "%s: a graph of its own", what);
    for (int i = 0, legal = 0; i < x.stage.graph->n_groups; i++) {
        legal += mpp_split_legal(x.stage.graph->groups[i].rule, &x.stage.mesh, x.stage.split[i]);
        if (i == x.stage.graph->n_groups - 1)
            check(legal == i + 1, "%s: every split is legal", what);
    }
    check_ops(&x, what);
    check_tensors(&x, what);
    setup_free(&x.s);
}

/* What cannot be interleaved. */
static void test_impossible(void)
{
    struct setup s = setup_unfused("models/gpt.xml", "tiny", "layers=6", "host", 4);
    struct mpp_layering *all;
    const struct mpp_layering *layers;
    must(mpp_layering_make(s.arena, s.diag, s.g, 0, &all), "layers");
    layers = mpp_layering_merge_ends(s.arena, s.g, all);
    static const struct {
        int stages, chunks;
        bool possible;
    } rows[] = {{2, 3, true}, {3, 2, true}, {2, 2, false}, {4, 2, false}, {1, 2, false}, {2, 1, false}, {1, 6, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mpp_schedule schedule = {MPP_SCHEDULE_INTERLEAVED, rows[i].stages, rows[i].chunks, 12};
        check(mpp_interleave_possible(s.g, layers, &schedule) == rows[i].possible, "6 layers in %d stages of %d chunks", rows[i].stages, rows[i].chunks);
    }
    setup_free(&s);
}

int main(void)
{
    for (int number = 0; number < 2; number++)
        for (int r = MPP_RECOMPUTE_NONE; r <= MPP_RECOMPUTE_FULL; r += MPP_RECOMPUTE_FULL - MPP_RECOMPUTE_NONE) {
            test_stage(8, 2, 2, number, (enum mpp_recompute)r);
            test_stage(8, 2, 4, number, (enum mpp_recompute)r);
            test_stage(12, 3, 2, number + 1, (enum mpp_recompute)r);
        }
    test_stage(8, 4, 2, 3, MPP_RECOMPUTE_NONE);
    test_impossible();
    return finish();
}
