/* Cutting the forward ops into layers.
 *
 * First into atoms: each iteration of an outermost repeat is one, and what lies between repeats is cut before products
 * (contractions), as many times as makes atoms of about an iteration's FLOPs. Atoms that are too many are joined. Both
 * times the parts are as equal in FLOPs as can be: the sum of their squares is least. */
#include <math.h>
#include <string.h>

#include "ir/op.h"
#include "ir/span_internal.h"

struct range {                    /* of positions among the forward ops */
    int begin, end;
};

struct layering {
    const struct mpp_graph *g;
    struct mpp_arena *arena, *scratch;
    struct mpp_layering *out;
    struct mpp_layering_index *index;
    mpp_id first;                 /* forward ops: first .. first + n - 1 */
    int n;
    double *flops;                /* [n] */
    int64_t *cut_bytes;           /* [n + 1] of what passes from the ops before a position to those after it */
    int n_atoms, n_layers;
    struct range *atom, *layer;   /* [n] each at most; layer: ranges of atoms */
    bool repeats;
};

const char *mpp_recompute_name(enum mpp_recompute r)
{
    static const char *const names[MPP_RECOMPUTE_COUNT] = {"none", "selective", "full"};
    return names[r];
}

static const struct mpp_gop *op_at(const struct layering *l, int position)
{
    return &l->g->ops[l->first + position];
}

/* ---- partitions ---- */

/* Cut WEIGHT [n] into K runs with the least sum of squares, the earliest cuts among equals: OUT_END [k]. */
static void partition(struct mpp_arena *scratch, const double *weight, int n, int k, int *out_end)
{
    double *sum = mpp_arena_array(scratch, n + 1, double), *best = mpp_arena_array(scratch, n + 1, double);
    double *next = mpp_arena_array(scratch, n + 1, double);
    int *from = mpp_arena_array(scratch, (size_t)k * (size_t)(n + 1), int);
    for (int i = 0; i < n; i++)
        sum[i + 1] = sum[i] + weight[i];
    for (int i = 0; i <= n; i++)
        best[i] = i ? INFINITY : 0;
    for (int part = 0; part < k; part++) {
        for (int end = 0; end <= n; end++) {
            next[end] = INFINITY;
            for (int begin = part; begin < end; begin++) {
                double w = sum[end] - sum[begin], cost = best[begin] + w * w;
                if (cost < next[end]) {
                    next[end] = cost;
                    from[part * (n + 1) + end] = begin;
                }
            }
        }
        memcpy(best, next, (size_t)(n + 1) * sizeof *best);
    }
    for (int part = k - 1, end = n; part >= 0; part--) {
        out_end[part] = end;
        end = from[part * (n + 1) + end];
    }
}

/* ---- atoms ---- */

static void measure(struct layering *l)
{
    const struct mpp_graph *g = l->g;
    int *last_read = mpp_arena_array(l->scratch, g->n_tensors, int);
    for (l->first = 0; l->first < g->n_ops && g->ops[l->first].phase < MPP_PHASE_FORWARD;)
        l->first++;
    while (l->first + l->n < g->n_ops && g->ops[l->first + l->n].phase == MPP_PHASE_FORWARD)
        l->n++;
    l->flops = mpp_arena_array(l->scratch, l->n, double);
    l->cut_bytes = mpp_arena_array(l->scratch, l->n + 1, int64_t);
    for (int i = 0; i < l->n; i++) {
        l->flops[i] = mpp_op_flops(g, op_at(l, i)) / (double)g->batch;
        for (int k = 0; k < op_at(l, i)->n_in; k++)
            if (op_at(l, i)->in[k] >= 0)
                last_read[op_at(l, i)->in[k]] = i;
    }
    for (int i = 0; i < l->n; i++) {
        for (int k = 0; k < op_at(l, i)->n_out; k++) {
            mpp_id t = op_at(l, i)->out[k];
            if (last_read[t] > i) {
                l->cut_bytes[i + 1] += mpp_tensor_bytes(&g->tensors[t]);
                l->cut_bytes[last_read[t] + 1] -= mpp_tensor_bytes(&g->tensors[t]);
            }
        }
    }
    for (int i = 0; i < l->n; i++)
        l->cut_bytes[i + 1] += l->cut_bytes[i];
}

static bool is_product(const struct layering *l, int position)
{
    return mpp_op_info(op_at(l, position)->kind)->cls == MPP_CLASS_CONTRACTION;
}

/* Cut the ops of R, which are in no repeat, into atoms of about TARGET FLOPs (0: as many as there are products). Each
 * has a product; between two products the place with the least bytes is taken, the last of equals. */
static void cut_between(struct layering *l, struct range r, double target)
{
    int n_chunks = 0, n = 0;
    int *end = mpp_arena_array(l->scratch, r.end - r.begin, int);
    double total = 0, *flops = mpp_arena_array(l->scratch, r.end - r.begin, double);
    for (int i = r.begin, place = -1; i < r.end; i++) {
        if (place >= 0 && l->cut_bytes[i] <= l->cut_bytes[place])
            place = i;
        if (is_product(l, i)) {
            if (place >= 0)
                end[n_chunks++] = place;
            place = i + 1;
        }
    }
    end[n_chunks++] = r.end;
    for (int c = 0, i = r.begin; c < n_chunks; c++) {
        for (; i < end[c]; i++)
            flops[c] += l->flops[i];
        total += flops[c];
    }
    double wanted = target > 0 ? floor(total / target + 0.5) : n_chunks;
    int parts = wanted < 1 ? 1 : wanted > n_chunks ? n_chunks : (int)wanted;
    int *last = mpp_arena_array(l->scratch, parts, int);
    partition(l->scratch, flops, n_chunks, parts, last);
    for (int begin = r.begin; n < parts; n++) {
        l->atom[l->n_atoms++] = (struct range){begin, end[last[n] - 1]};
        begin = end[last[n] - 1];
    }
}

/* Do the ops at positions A and B belong together: in one iteration, or in none? The sum of the losses goes with the loss. */
static bool together(const struct layering *l, int a, int b)
{
    const struct mpp_gop *x = op_at(l, a), *y = op_at(l, b);
    bool sums = y->n_out == 1 && l->g->tensors[y->out[0]].role == MPP_ROLE_ACCUM;
    return sums || (x->repeat == y->repeat && x->index == y->index);
}

static void make_atoms(struct layering *l)
{
    double in_repeats = 0;
    int iterations = 0;
    for (int i = 0; i < l->n; i++) {
        if (op_at(l, i)->repeat < 0)
            continue;
        in_repeats += l->flops[i];
        iterations += i == 0 || !together(l, i - 1, i);
    }
    l->repeats = iterations > 0;
    double target = iterations > 0 ? in_repeats / iterations : 0;
    for (int begin = 0, end; begin < l->n; begin = end) {
        for (end = begin + 1; end < l->n && together(l, begin, end);)
            end++;
        if (op_at(l, begin)->repeat >= 0)
            l->atom[l->n_atoms++] = (struct range){begin, end};
        else
            cut_between(l, (struct range){begin, end}, target);
    }
}

/* What runs again at once: an iteration of a repeat. In a model without any, an atom, but not the one that ends in the
 * loss: its backward comes next anyway. */
static void note_units(struct layering *l)
{
    for (mpp_id o = 0; o < l->g->n_ops; o++)
        l->index->unit_of[o] = -1;
    mpp_id loss = l->g->loss < 0 ? -1 : l->g->tensors[l->g->loss].op;
    for (int a = 0; a < l->n_atoms; a++) {
        struct range r = l->atom[a];
        bool has_loss = loss >= l->first + r.begin && loss < l->first + r.end;
        for (int i = r.begin; i < r.end; i++)
            if (l->repeats ? op_at(l, i)->repeat >= 0 : !has_loss)
                l->index->unit_of[l->first + i] = a;
    }
}

/* ---- layers ---- */

static void join_atoms(struct layering *l, int max_layers)
{
    l->n_layers = max_layers > 0 && max_layers < l->n_atoms ? max_layers : l->n_atoms;
    int *end = mpp_arena_array(l->scratch, l->n_layers, int);
    double *flops = mpp_arena_array(l->scratch, l->n_atoms, double);
    for (int a = 0; a < l->n_atoms; a++)
        for (int i = l->atom[a].begin; i < l->atom[a].end; i++)
            flops[a] += l->flops[i];
    if (l->n_layers < l->n_atoms)
        partition(l->scratch, flops, l->n_atoms, l->n_layers, end);
    for (int i = 0; i < l->n_layers && l->n_layers == l->n_atoms; i++)
        end[i] = i + 1;
    for (int i = 0; i < l->n_layers; i++)
        l->layer[i] = (struct range){i ? end[i - 1] : 0, end[i]};
}

/* "h.3", or of ops outside repeats the first (END false) or last that the model file knows; "loss" where it ends in it. */
static const char *atom_name(const struct layering *l, struct range atom, bool end)
{
    const struct mpp_gop *op = op_at(l, atom.begin);
    mpp_id loss = l->g->loss < 0 ? -1 : l->g->tensors[l->g->loss].op - l->first;
    if (op->repeat >= 0)
        return mpp_arena_printf(l->arena, "%s.%d", op->repeat_name ? op->repeat_name : "repeat", op->index);
    if (end && loss >= atom.begin && loss < atom.end)
        return l->g->tensors[l->g->loss].name;
    for (int i = 0; i < atom.end - atom.begin; i++) {
        op = op_at(l, end ? atom.end - 1 - i : atom.begin + i);
        if (op->item_type)
            break;
    }
    return op->name;
}

static void describe_layers(struct layering *l)
{
    struct mpp_layering *out = l->out;
    out->n_layers = l->n_layers;
    out->name = mpp_arena_array(l->arena, l->n_layers, const char *);
    out->flops = mpp_arena_array(l->arena, l->n_layers, double);
    for (int i = 0; i < l->n_layers; i++) {
        struct range first = l->atom[l->layer[i].begin], last = l->atom[l->layer[i].end - 1];
        const char *from = atom_name(l, first, false), *to = atom_name(l, last, true);
        out->name[i] = strcmp(from, to) == 0 ? from : mpp_arena_printf(l->arena, "%s..%s", from, to);
        for (int p = first.begin; p < last.end; p++) {
            out->layer_of[l->first + p] = i;
            out->flops[i] += l->flops[p];
        }
    }
}

/* Backward ops: the layer of the forward op whose gradient they are; those of none, where their inputs are made. */
static void place_backward(struct layering *l)
{
    const struct mpp_graph *g = l->g;
    int *layer_of = l->out->layer_of, before = l->n_layers - 1;
    for (mpp_id o = l->first + l->n; o < g->n_ops && g->ops[o].phase == MPP_PHASE_BACKWARD; o++) {
        const struct mpp_gop *op = &g->ops[o];
        int layer = op->forward >= 0 ? layer_of[op->forward] : -1;
        for (int k = 0; k < op->n_in && layer < 0; k++) {
            mpp_id maker = op->in[k] < 0 ? -1 : g->tensors[op->in[k]].op;
            layer = maker < 0 ? -1 : layer_of[maker];
        }
        before = layer_of[o] = layer < 0 ? before : layer;
    }
}

enum mpp_status mpp_layering_make(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                                  int max_layers, struct mpp_layering **out)
{
    struct layering l = {.g = graph, .arena = arena, .scratch = mpp_arena_scratch(arena)};
    l.out = mpp_arena_array(arena, 1, struct mpp_layering);
    l.index = mpp_arena_array(arena, 1, struct mpp_layering_index);
    l.out->index = l.index;
    l.out->layer_of = mpp_arena_array(arena, graph->n_ops, int);
    l.index->unit_of = mpp_arena_array(arena, graph->n_ops, int);
    for (mpp_id o = 0; o < graph->n_ops; o++)
        l.out->layer_of[o] = -1;
    measure(&l);
    l.atom = mpp_arena_array(l.scratch, l.n, struct range);
    l.layer = mpp_arena_array(l.scratch, l.n, struct range);
    make_atoms(&l);
    note_units(&l);
    join_atoms(&l, max_layers);
    describe_layers(&l);
    place_backward(&l);
    mpp_layering_index(arena, l.scratch, graph, l.out, l.index);
    mpp_layering_classify(arena, l.scratch, graph, l.out);
    mpp_arena_free(l.scratch);
    *out = l.out;
    if (l.n > 0)
        return MPP_OK;
    mpp_diag_error(diag, (struct mpp_loc){NULL, 0}, "the graph has no forward ops to make layers of");
    return MPP_INVALID;
}

const struct mpp_layering *mpp_layering_merge_ends(struct mpp_arena *arena, const struct mpp_graph *g,
                                                   const struct mpp_layering *l)
{
    struct mpp_arena *scratch = mpp_arena_scratch(arena);
    bool *repeated = mpp_arena_array(scratch, l->n_layers, bool);
    for (mpp_id o = 0; o < g->n_ops; o++)
        if (l->layer_of[o] >= 0 && g->ops[o].phase == MPP_PHASE_FORWARD && g->ops[o].repeat >= 0)
            repeated[l->layer_of[o]] = true;
    int first = 0, last = l->n_layers - 1;
    while (first < last && !repeated[first])
        first++;
    while (last > first && !repeated[last])
        last--;
    if (first >= last || (first == 0 && last == l->n_layers - 1)) {
        mpp_arena_free(scratch);
        return l;
    }
    struct mpp_layering *m = mpp_arena_array(arena, 1, struct mpp_layering);
    struct mpp_layering_index *index = mpp_arena_array(arena, 1, struct mpp_layering_index);
    index->unit_of = l->index->unit_of;
    m->index = index;
    m->n_layers = last - first + 1;
    m->layer_of = mpp_arena_array(arena, g->n_ops, int);
    m->name = mpp_arena_array(arena, m->n_layers, const char *);
    m->flops = mpp_arena_array(arena, m->n_layers, double);
    for (mpp_id o = 0; o < g->n_ops; o++) {
        int x = l->layer_of[o];
        m->layer_of[o] = x < 0 ? -1 : x < first ? 0 : x > last ? last - first : x - first;
    }
    for (int x = 0; x < l->n_layers; x++) {
        m->flops[x < first ? 0 : x > last ? last - first : x - first] += l->flops[x];
        if (x >= first && x <= last)
            m->name[x - first] = l->name[x];
    }
    mpp_layering_index(arena, scratch, g, m, index);
    mpp_layering_classify(arena, scratch, g, m);
    mpp_arena_free(scratch);
    return m;
}
