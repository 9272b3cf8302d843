/* stages_layers.c - which layers stand for many, and what is made once: spans, ranges of devices, configs. */
#include "planner/stages_internal.h"

#include "ir/op.h"

/* ---- layers ---- */

void mpp_stages_note_iterations(struct mpp_stages *s)
{
    const struct mpp_layering *l = s->layering;
    s->repeat = mpp_arena_array(s->arena, l->n_layers, int);
    s->index = mpp_arena_array(s->arena, l->n_layers, int);
    bool *seen = mpp_arena_array(s->arena, l->n_layers, bool);
    for (mpp_id o = 0; o < s->graph->n_ops; o++) {
        const struct mpp_gop *op = &s->graph->ops[o];
        int layer = l->layer_of[o];
        if (layer < 0 || op->phase != MPP_PHASE_FORWARD)
            continue;
        if (!seen[layer]) {
            s->repeat[layer] = op->repeat;
            s->index[layer] = op->index;
        } else if (s->repeat[layer] != op->repeat || s->index[layer] != op->index) {
            s->repeat[layer] = -1;
        }
        seen[layer] = true;
    }
}

static bool goes_on(const struct mpp_stages *s, int layer)
{
    return s->repeat[layer] >= 0 && s->repeat[layer + 1] == s->repeat[layer] && s->index[layer + 1] == s->index[layer] + 1
           && s->layering->cls[layer + 1] == s->layering->cls[layer];
}

/* The longest run of like layers in FIRST..LAST: its first layer; *OUT_LENGTH. */
static int longest_run(const struct mpp_stages *s, int first, int last, int *out_length)
{
    int from = first, length = 1;
    for (int a = first, b; a <= last; a = b) {
        for (b = a + 1; b <= last && goes_on(s, b - 1); b++)
            ;
        if (b - a > length) {
            length = b - a;
            from = a;
        }
    }
    *out_length = length;
    return from;
}

/* The layers FIRST..LAST as few of them that stand for all. */
struct mpp_stages_shape mpp_stages_represent(const struct mpp_stages *s, int first, int last)
{
    int n = s->layering->n_layers, length, from = longest_run(s, first, last, &length);
    struct mpp_stages_shape x = {.first = first, .last = last, .cut_last = -1};
    if (length <= s->folded)
        return x;
    bool left = from > first || first == 0, right = from + length - 1 < last || last == n - 1;
    int a = from, b = from + length - 1, half = s->folded / 2;
    if (!left && !right)          /* in the middle all places are alike: take the first that has a layer before it */
        while (a > 1 && goes_on(s, a - 1))
            a--;
    if (!right)
        x.last = b = a + s->folded - 1;
    else if (!left)
        x.first = a = b - s->folded + 1;
    if (!left && !right)
        x.first = a;
    x.cut_first = a + half;
    x.cut_last = b - half;
    x.run = (struct mpp_fold_run){s->repeat[a], s->index[a + half - 1], s->index[b - half + 1], length + 2 - s->folded};
    return x;
}

/* Is the model one run of like layers, and what does each layer hold of it? */
void mpp_stages_note_parts(struct mpp_stages *s)
{
    const struct mpp_layering *l = s->layering;
    int n = l->n_layers, length, from = longest_run(s, 0, n - 1, &length);
    if (length <= MPP_STAGES_SEVERAL)
        return;
    int repeat = s->repeat[from], first = -1, n_part[MPP_STAGES_N_PARTS] = {0};
    bool *has[MPP_STAGES_N_PARTS];
    for (int k = 0; k < MPP_STAGES_N_PARTS; k++) {
        has[k] = mpp_arena_array(s->arena, n, bool);
        s->part[k] = mpp_arena_array(s->arena, n, double);
    }
    s->one_run = true;
    for (mpp_id o = 0; o < s->graph->n_ops; o++)
        if (first < 0 && s->graph->ops[o].phase == MPP_PHASE_FORWARD && s->graph->ops[o].repeat == repeat)
            first = o;
    for (mpp_id o = 0; o < s->graph->n_ops; o++) {
        const struct mpp_gop *op = &s->graph->ops[o];
        if (l->layer_of[o] < 0 || op->phase != MPP_PHASE_FORWARD)
            continue;
        s->one_run = s->one_run && (op->repeat == repeat || op->repeat < 0);
        has[op->repeat == repeat ? MPP_STAGES_ITERATION : o < first ? MPP_STAGES_BEFORE : MPP_STAGES_AFTER][l->layer_of[o]] = true;
    }
    for (int x = 0; x < n; x++) {
        for (int k = 0; k < MPP_STAGES_N_PARTS; k++)
            n_part[k] += has[k][x];
        s->one_run = s->one_run && (!has[MPP_STAGES_BEFORE][x] || x <= from) && (!has[MPP_STAGES_AFTER][x] || x >= from + length - 1);
    }
    for (int x = 0; x < n; x++)
        for (int k = 0; k < MPP_STAGES_N_PARTS; k++)
            s->part[k][x] = !has[k][x] ? 0 : k == MPP_STAGES_ITERATION ? 1 : 1.0 / n_part[k];
}
/* ---- memos ---- */

int mpp_stages_find_span(struct mpp_stages *s, struct mpp_stages_shape shape, enum mpp_recompute r)
{
    bool is_new, cut = shape.cut_last >= shape.cut_first;
    int key[5] = {shape.first, shape.last, cut ? shape.cut_first : -1, shape.run.layers > 0, (int)r};
    int id = mpp_memo_add(s->spans, key, sizeof key, &is_new);
    if (is_new) {
        s->span = mpp_arena_grow(s->arena, s->span, &s->cap_span, (size_t)id + 1, sizeof *s->span);
        s->span[id] = (struct mpp_stages_span){.shape = shape, .recompute = r};
    }
    struct mpp_stages_span *x = &s->span[id];
    if (!x->graph && !x->failed)
        x->failed = mpp_span_extract_cut(s->arena, s->diag, s->graph, s->layering, shape.first, shape.last, shape.cut_first,
                                         shape.cut_last, r, &x->graph) != MPP_OK;
    return id;
}

static int find_place(struct mpp_stages *s, int n, int first, bool same)
{
    int key[2] = {n, same ? -1 : first};
    bool is_new;
    int id = mpp_memo_add(s->places, key, sizeof key, &is_new);
    if (is_new) {
        s->place = mpp_arena_grow(s->arena, s->place, &s->cap_place, (size_t)id + 1, sizeof *s->place);
        struct mpp_stages_place *x = &s->place[id];
        s->n_places++;
        *x = (struct mpp_stages_place){.n = n};
        x->n_meshes = mpp_pins_candidates(s->arena, n, same && !s->both_orders, &s->options->pins, &x->mesh);
        x->book = mpp_arena_array(s->arena, x->n_meshes, struct mpp_stage_book *);
    }
    return id;
}

/* Ranges of a size differ in where their node ends, in whether there is a stage before and after them and, where links
 * do, in where they begin. */
int mpp_stages_find_range(struct mpp_stages *s, int n, int first)
{
    const struct mpp_cluster *c = s->cluster;
    int per_node = c->any_per_node || c->n_nodes == 1 ? c->n_devices : c->devices_per_node, begin = first % per_node;
    bool within = begin + n <= per_node, same = c->kind != MPP_LINK_MESH && within;
    int key[6] = {n, same ? 0 : begin, begin == 0, (begin + n) % per_node == 0, first == 0, first + n == c->n_devices};
    bool is_new;
    int id = mpp_memo_add(s->ranges, key, sizeof key, &is_new);
    if (is_new) {
        s->range = mpp_arena_grow(s->arena, s->range, &s->cap_range, (size_t)id + 1, sizeof *s->range);
        s->range[id] = (struct mpp_stages_range){n, first, find_place(s, n, begin, same)};
    }
    return id;
}

struct mpp_stage_site mpp_stages_site(const struct mpp_stages *s, int first_device)
{
    return (struct mpp_stage_site){first_device, s->schedule.chunks, s->options->hidden};
}

struct mpp_stages_config *mpp_stages_find_config(struct mpp_stages *s, int span, int range, int mesh)
{
    int key[3] = {span, range, mesh};
    bool is_new;
    if (mpp_stages_interrupted(s))
        return mpp_arena_array(s->round, 1, struct mpp_stages_config);
    int id = mpp_memo_add(s->configs, key, sizeof key, &is_new);
    if (!is_new)
        return s->config[id];
    s->config = mpp_arena_grow(s->round, s->config, &s->cap_config, (size_t)id + 1, sizeof *s->config);
    struct mpp_stages_config *x = s->config[id] = mpp_arena_array(s->round, 1, struct mpp_stages_config);
    struct mpp_graph *g = s->span[span].graph;
    struct mpp_pin_rules *rules;
    const char *reason;
    if (!g)
        return x;
    mpp_graph_set_batch(g, g->global_batch / s->schedule.micro_batches);
    struct mpp_stages_place *place = &s->place[s->range[range].place];
    if (!place->book[mesh])
        place->book[mesh] = mpp_stage_book_new(s->round);
    x->ok = mpp_pins_resolve(s->round, g, &place->mesh[mesh], &s->options->pins, &rules, &reason)
            && mpp_stage_problem_build_from(s->round, place->book[mesh], s->cluster, rules,
                                            mpp_stages_site(s, s->range[range].first), s->capacity, &x->problem, &reason);
    return x;
}
