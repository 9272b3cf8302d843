/* interleave.c - from a stage of neighbouring layers, which was planned, to the chunks that it runs.
 *
 * An interleaved schedule gives stage i the parts i, S + i, 2 S + i, ... of the model, of equally many layers each. The search
 * prices a stage as if its layers were neighbours: all that it may interleave are alike. Here its graph is made of the chunks,
 * and each op and tensor is decided as its counterpart in the planned graph, that is the one at the same place in the layer with the
 * same number within the stage. What a chunk receives lies as what the layer before it (backward: after it) makes; what it
 * sends lies as it is made, but whole where that is a partial sum. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ir/op.h"
#include "planner/stage.h"

struct interleave {
    struct mpp_arena *arena;      /* scratch */
    const struct mpp_layering *layering;
    const struct mpp_stage *from; /* planned */
    struct mpp_stage *to;
    int n_chunks, per_chunk;
    const int *first;             /* [n_chunks] */
    struct mpp_memo *names;       /* of the tensors of FROM's graph, to their ids */
    int *layer_of;                /* [repeat][index] layer of the model; -1 */
    int n_repeats, n_indices;
    int *first_index;             /* [n_layers] the first iteration that is in the layer; -1 */
    const char **repeat_name;     /* [n_layers] of what; NULL */
    int *made_in, *made_from;     /* [tensors of TO's and of FROM's graph] group; -1 */
};

static void note_layers(struct interleave *x, const struct mpp_graph *whole)
{
    const struct mpp_layering *l = x->layering;
    for (mpp_id o = 0; o < whole->n_ops; o++) {
        x->n_repeats = whole->ops[o].repeat >= x->n_repeats ? whole->ops[o].repeat + 1 : x->n_repeats;
        x->n_indices = whole->ops[o].index >= x->n_indices ? whole->ops[o].index + 1 : x->n_indices;
    }
    x->layer_of = mpp_arena_array(x->arena, x->n_repeats * x->n_indices, int);
    x->first_index = mpp_arena_array(x->arena, l->n_layers, int);
    x->repeat_name = mpp_arena_array(x->arena, l->n_layers, const char *);
    memset(x->layer_of, -1, (size_t)(x->n_repeats * x->n_indices) * sizeof(int));
    memset(x->first_index, -1, (size_t)l->n_layers * sizeof(int));
    for (mpp_id o = 0; o < whole->n_ops; o++) {
        const struct mpp_gop *op = &whole->ops[o];
        if (op->repeat < 0 || op->index < 0 || l->layer_of[o] < 0)
            continue;
        int k = l->layer_of[o];
        x->layer_of[op->repeat * x->n_indices + op->index] = k;
        if (x->first_index[k] < 0 || op->index < x->first_index[k]) {
            x->first_index[k] = op->index;
            x->repeat_name[k] = op->repeat_name;
        }
    }
}

/* The planned layer that stands for layer L: of one of the chunks, or next to CHUNK, which reads of it; -1: none does. */
static int counterpart(const struct interleave *x, int l, int chunk)
{
    int n = l - x->first[chunk], at = x->from->first_layer;
    for (int c = 0; c < x->n_chunks; c++)
        if (l >= x->first[c] && l < x->first[c] + x->per_chunk)
            return at + c * x->per_chunk + l - x->first[c];
    at += chunk * x->per_chunk + n;
    return (n == -1 || n == x->per_chunk) && at >= 0 && at < x->layering->n_layers ? at : -1;
}

/* NAME of iteration INDEX of REPEAT as that of iteration OTHER_INDEX of OTHER: "m.h.5.mlp" -> "m.h.3.mlp". */
static const char *renamed(struct interleave *x, const char *name, const char *repeat, int index, const char *other, int other_index)
{
    const char *prefix = mpp_arena_printf(x->arena, "%s.%d.", repeat, index), *at = strstr(name, prefix);
    while (at && at > name && at[-1] != '.')
        at = strstr(at + 1, prefix);
    return at ? mpp_arena_printf(x->arena, "%.*s%s.%d.%s", (int)(at - name), name, other, other_index, at + strlen(prefix)) : name;
}

/* The name without the ".chunk1" of what a later chunk makes again. */
static const char *plain(struct interleave *x, const char *name, int chunk)
{
    const char *suffix = mpp_arena_printf(x->arena, ".chunk%d", chunk);
    size_t n = strlen(name), m = strlen(suffix);
    return chunk > 0 && n > m && strcmp(name + n - m, suffix) == 0 ? mpp_arena_printf(x->arena, "%.*s", (int)(n - m), name) : name;
}

/* The number that NAME has after REPEAT ("h" in "h.5.res2.grad": 5), or INDEX: gradients have the name of what they are of,
 * though the op that makes them is of the next layer. */
static int named_index(struct interleave *x, const char *name, const char *repeat, int index)
{
    const char *prefix = mpp_arena_printf(x->arena, "%s.", repeat);
    for (const char *at = strstr(name, prefix); at; at = strstr(at + 1, prefix)) {
        char *end;
        long n = strtol(at + strlen(prefix), &end, 10);
        if ((at == name || at[-1] == '.') && end > at + strlen(prefix) && *end == '.' && n >= 0 && n < x->n_indices)
            return (int)n;
    }
    return index;
}

/* The planned tensor that decides for T of the chunks' graph, which CHUNK reads or makes; -1: none. */
static mpp_id planned(struct interleave *x, mpp_id t, int chunk)
{
    const struct mpp_gtensor *tensor = &x->to->graph->tensors[t];
    const char *name = plain(x, tensor->name, chunk);
    int index = tensor->index, layer = tensor->repeat < 0 || index < 0 ? -1 : x->layer_of[tensor->repeat * x->n_indices + index];
    if (layer >= 0) {
        index = named_index(x, name, x->repeat_name[layer], index);
        layer = x->layer_of[tensor->repeat * x->n_indices + index];
    }
    int other = layer < 0 ? -1 : counterpart(x, layer, chunk);
    if (other >= 0 && x->repeat_name[other])
        name = renamed(x, name, x->repeat_name[layer], index, x->repeat_name[other], index - x->first_index[layer] + x->first_index[other]);
    bool is_new;
    int id = mpp_memo_add(x->names, name, strlen(name) + 1, &is_new);
    return id < x->from->graph->n_tensors ? id : -1;
}

static int *note_makers(struct mpp_arena *arena, const struct mpp_graph *g)
{
    int *made_in = mpp_arena_array(arena, g->n_tensors, int);
    memset(made_in, -1, (size_t)g->n_tensors * sizeof *made_in);
    for (int i = 0; i < g->n_groups; i++)
        for (int o = 0; o < g->groups[i].n_out; o++)
            made_in[g->groups[i].out[o]] = i;
    return made_in;
}

/* How S makes T, in group I; partial sums: whole. */
static struct mpp_sharding made(const struct mpp_stage *s, mpp_id t, int i)
{
    const struct mpp_group *group = &s->graph->groups[i];
    int o = 0;
    while (group->out[o] != t)
        o++;
    struct mpp_sharding lies = mpp_split_operand(group->rule, s->split[i], group->n_in + o);
    for (int a = 0; a < MPP_MAX_AXES; a++)
        lies.axis[a] = lies.axis[a] == MPP_PARTIAL ? MPP_WHOLE : lies.axis[a];
    return lies;
}

/* The split under which OPERAND lies as S says. */
static struct mpp_split split_for(const struct mpp_rule *rule, const struct mpp_mesh *mesh, int operand, struct mpp_sharding s)
{
    struct mpp_split split = {{MPP_WHOLE, MPP_WHOLE, MPP_WHOLE}}, whole = split;
    for (int a = 0; a < mesh->n_axes; a++)
        if (s.axis[a] >= 0 && rule->operand[operand].dim[s.axis[a]].n > 0)
            split.axis[a] = rule->operand[operand].dim[s.axis[a]].factor[0];
    return mpp_split_legal(rule, mesh, split) ? split : whole;
}

static bool same_ops(const struct mpp_graph *a, const struct mpp_group *x, const struct mpp_graph *b, const struct mpp_group *y)
{
    bool same = x->n_ops == y->n_ops && x->rule->n_factors == y->rule->n_factors;
    for (int k = 0; same && k < x->n_ops; k++)
        same = a->ops[x->ops[k]].kind == b->ops[y->ops[k]].kind;
    return same;
}

static void decide_group(struct interleave *x, int i)
{
    const struct mpp_graph *g = x->to->graph, *from = x->from->graph;
    const struct mpp_group *group = &g->groups[i];
    const struct mpp_gop *op = &g->ops[group->ops[0]];
    x->to->split[i] = (struct mpp_split){{MPP_WHOLE, MPP_WHOLE, MPP_WHOLE}};
    if (op->kind == MPP_OP_SEND) {
        x->to->split[i] = split_for(group->rule, &x->to->mesh, 0, made(x->to, group->in[0], x->made_in[group->in[0]]));
        return;
    }
    mpp_id t = planned(x, group->out[0], op->chunk);
    int like = t < 0 ? -1 : x->made_from[t];
    if (like < 0)
        return;
    bool same = same_ops(g, group, from, &from->groups[like]) && mpp_split_legal(group->rule, &x->to->mesh, x->from->split[like]);
    x->to->split[i] = same && op->kind != MPP_OP_RECV
                          ? x->from->split[like] : split_for(group->rule, &x->to->mesh, group->n_in, made(x->from, t, like));
}

static void decide(struct interleave *x)
{
    struct mpp_stage *to = x->to;
    bool is_new;
    x->names = mpp_memo_new(x->arena);
    for (mpp_id t = 0; t < x->from->graph->n_tensors; t++)
        (void)mpp_memo_add(x->names, x->from->graph->tensors[t].name, strlen(x->from->graph->tensors[t].name) + 1, &is_new);
    x->made_in = note_makers(x->arena, to->graph);
    x->made_from = note_makers(x->arena, x->from->graph);
    for (int i = 0; i < to->graph->n_groups; i++)
        decide_group(x, i);
    for (mpp_id t = 0; t < to->graph->n_tensors; t++) {
        mpp_id like = planned(x, t, 0);
        bool rests = to->graph->tensors[t].role == MPP_ROLE_PARAM || to->graph->tensors[t].role == MPP_ROLE_INPUT;
        to->resting[t] = rests && like >= 0 ? x->from->resting[like] : mpp_sharding_whole();
        to->kept[t] = rests && like >= 0 && x->from->kept[like];
    }
}

/* ---- stages ---- */

enum mpp_status mpp_interleave_extract(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                                       const struct mpp_layering *layering, const struct mpp_schedule *s, int number,
                                       enum mpp_recompute recompute, struct mpp_graph **out)
{
    int each = layering->n_layers / (s->stages * s->chunks);
    int *first = mpp_arena_array(arena, s->chunks, int), *last = mpp_arena_array(arena, s->chunks, int);
    for (int c = 0; c < s->chunks; c++) {
        first[c] = (c * s->stages + number) * each;
        last[c] = first[c] + each - 1;
    }
    return mpp_span_extract_chunks(arena, diag, graph, layering, s->chunks, first, last, recompute, out);
}

/* Is each layer of a stage's chunks like the one that is planned for it, in a run of neighbours? */
static bool alike(const struct mpp_layering *l, const struct mpp_schedule *s)
{
    int each = l->n_layers / (s->stages * s->chunks);
    for (int i = 0; i < s->stages; i++)
        for (int c = 0; c < s->chunks; c++)
            for (int k = 0; k < each; k++)
                if (l->cls[(c * s->stages + i) * each + k] != l->cls[(i * s->chunks + c) * each + k])
                    return false;
    return true;
}

bool mpp_interleave_possible(const struct mpp_graph *graph, const struct mpp_layering *layering, const struct mpp_schedule *s)
{
    return s->stages > 1 && s->chunks > 1 && mpp_span_can_chunk(graph, layering, s->stages * s->chunks, s->stages)
           && alike(layering, s);
}

enum mpp_status mpp_interleave_stage(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                                     const struct mpp_layering *layering, const struct mpp_schedule *s, int number,
                                     struct mpp_stage *stage)
{
    struct mpp_arena *scratch = mpp_arena_scratch(arena);
    struct mpp_stage to = *stage;
    int each = layering->n_layers / (s->stages * s->chunks), *first = mpp_arena_array(scratch, s->chunks, int);
    enum mpp_status st = mpp_interleave_extract(arena, diag, graph, layering, s, number, stage->recompute, &to.graph);
    if (st == MPP_OK) {
        for (int c = 0; c < s->chunks; c++)
            first[c] = (c * s->stages + number) * each;
        mpp_graph_set_batch(to.graph, stage->graph->batch);
        to.split = mpp_arena_array(arena, to.graph->n_groups, struct mpp_split);
        to.resting = mpp_arena_array(arena, to.graph->n_tensors, struct mpp_sharding);
        to.kept = mpp_arena_array(arena, to.graph->n_tensors, bool);
        struct interleave x = {.arena = scratch, .layering = layering, .from = stage, .to = &to, .n_chunks = s->chunks,
                               .per_chunk = each, .first = first};
        note_layers(&x, graph);
        decide(&x);
        *stage = to;
    }
    mpp_arena_free(scratch);
    return st;
}
