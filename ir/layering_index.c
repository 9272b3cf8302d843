/* What mpp_span_extract looks up: the ops of each layer, of each parameter's update, and who reads what. */
#include <stdlib.h>

#include "ir/op.h"
#include "ir/span_internal.h"

/* Lists by key: the ids o with KEY[o] = k >= 0 become OUT_IDS[(*OUT_FIRST)[k]] .. in ascending order. */
static void sort_by(struct mpp_arena *arena, int n_keys, const int *key, mpp_id begin, mpp_id end, int **out_first,
                    int **out_ids)
{
    int *first = mpp_arena_array(arena, n_keys + 2, int);
    for (mpp_id o = begin; o < end; o++)
        if (key[o] >= 0)
            first[key[o] + 2]++;
    for (int k = 2; k < n_keys + 2; k++)
        first[k] += first[k - 1];
    int *ids = mpp_arena_array(arena, first[n_keys + 1], int);
    for (mpp_id o = begin; o < end; o++)
        if (key[o] >= 0)
            ids[first[key[o] + 1]++] = o;
    *out_first = first;
    *out_ids = ids;
}

static mpp_id phase_end(const struct mpp_graph *g, enum mpp_phase phase)
{
    mpp_id o = 0;
    while (o < g->n_ops && g->ops[o].phase <= phase)
        o++;
    return o;
}

/* Masks and the like cost less to make than to send: ops that neither depend on parameters nor multiply. */
static void note_everywhere(const struct mpp_graph *g, struct mpp_layering_index *index)
{
    for (mpp_id o = 0; o < g->n_ops && g->ops[o].phase <= MPP_PHASE_FORWARD; o++) {
        const struct mpp_gop *op = &g->ops[o];
        enum mpp_op_class cls = mpp_op_info(op->kind)->cls;
        bool cheap = cls != MPP_CLASS_CONTRACTION && cls != MPP_CLASS_KERNEL;
        for (int k = 0; k < op->n_in && cheap; k++) {
            const struct mpp_gtensor *t = op->in[k] < 0 ? NULL : &g->tensors[op->in[k]];
            cheap = !t || (t->op < 0 ? t->role == MPP_ROLE_INPUT : index->everywhere[t->op]);
        }
        index->everywhere[o] = cheap || op->phase == MPP_PHASE_PROLOGUE;
    }
}

static void note_readers(const struct mpp_graph *g, const struct mpp_layering *layering, struct mpp_layering_index *index)
{
    for (mpp_id t = 0; t < g->n_tensors; t++)
        index->reader_max[t] = index->reader_min[t] = -1;
    for (mpp_id o = 0; o < g->n_ops && g->ops[o].phase <= MPP_PHASE_BACKWARD; o++) {
        const struct mpp_gop *op = &g->ops[o];
        int layer = layering->layer_of[o];
        bool sums = op->phase == MPP_PHASE_BACKWARD && op->n_out == 1 && g->tensors[op->out[0]].role == MPP_ROLE_ACCUM; /* each layer its own part */
        for (int k = 0; k < op->n_in && layer >= 0; k++) {
            mpp_id t = op->in[k];
            if (t < 0 || (sums && g->tensors[t].op >= 0))
                continue;
            if (index->reader_max[t] < layer)
                index->reader_max[t] = layer;
            if (index->reader_min[t] < 0 || index->reader_min[t] > layer)
                index->reader_min[t] = layer;
        }
    }
}

/* Whose update is OP part of: a parameter, or -1 where it is of several or of none. */
static mpp_id owner_of(const struct mpp_graph *g, const mpp_id *owner, const struct mpp_gop *op)
{
    mpp_id found = -1;
    for (int k = 0; k < op->n_in; k++) {
        const struct mpp_gtensor *t = op->in[k] < 0 ? NULL : &g->tensors[op->in[k]];
        mpp_id p = !t ? -1 : t->op >= 0 && g->ops[t->op].phase == MPP_PHASE_UPDATE ? owner[t->op] : t->param;
        if (p < 0 || g->tensors[p].info->gradient < 0 || p == found)
            continue;
        if (found >= 0)
            return -1;
        found = p;
    }
    return found;
}

static void note_update(struct mpp_arena *arena, const struct mpp_graph *g, struct mpp_layering_index *index)
{
    mpp_id begin = phase_end(g, MPP_PHASE_BACKWARD);
    index->global = mpp_arena_array(arena, g->n_ops - begin, int);
    for (mpp_id o = begin; o < g->n_ops; o++) {
        index->owner[o] = owner_of(g, index->owner, &g->ops[o]);
        if (index->owner[o] < 0)
            index->global[index->n_global++] = o;
    }
    sort_by(arena, g->n_tensors, index->owner, begin, g->n_ops, &index->first_update, &index->update);
}

/* ---- tied parameters ---- */

static int compare_ints(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* The layers that read parameter P, also through the prologue. */
struct readers {
    int n;
    size_t cap;
    int *layer;
};

static void add_reader(struct mpp_arena *arena, struct readers *r, int layer)
{
    for (int i = 0; i < r->n; i++)
        if (r->layer[i] == layer)
            return;
    r->layer = mpp_arena_grow(arena, r->layer, &r->cap, (size_t)r->n + 1, sizeof *r->layer);
    r->layer[r->n++] = layer;
}

static void note_tied(struct mpp_arena *arena, struct mpp_arena *scratch, const struct mpp_graph *g,
                      struct mpp_layering *layering, const struct mpp_layering_index *index)
{
    struct readers *readers = mpp_arena_array(scratch, g->n_tensors, struct readers);
    for (mpp_id o = phase_end(g, MPP_PHASE_BACKWARD) - 1; o >= 0; o--) {
        const struct mpp_gop *op = &g->ops[o];
        struct readers made = {0}; /* of what an op that runs everywhere makes */
        for (int k = 0; k < op->n_out && index->everywhere[o]; k++)
            for (int i = 0; i < readers[op->out[k]].n; i++)
                add_reader(scratch, &made, readers[op->out[k]].layer[i]);
        if (layering->layer_of[o] >= 0)
            add_reader(scratch, &made, layering->layer_of[o]);
        for (int k = 0; k < op->n_in; k++) {
            const struct mpp_gtensor *t = op->in[k] < 0 ? NULL : &g->tensors[op->in[k]];
            bool follow = t && (t->op >= 0 ? index->everywhere[t->op] : t->role == MPP_ROLE_PARAM);
            for (int i = 0; i < made.n && follow; i++)
                add_reader(scratch, &readers[op->in[k]], made.layer[i]);
        }
    }
    size_t cap = 0;
    for (mpp_id p = 0; p < g->n_tensors; p++) {
        struct readers *r = &readers[p];
        if (g->tensors[p].role != MPP_ROLE_PARAM || g->tensors[p].info->gradient < 0 || r->n < 2)
            continue;
        layering->tied = mpp_arena_grow(arena, layering->tied, &cap, (size_t)layering->n_tied + 1, sizeof *layering->tied);
        struct mpp_tied *tied = &layering->tied[layering->n_tied++];
        *tied = (struct mpp_tied){p, r->n, mpp_arena_memdup(arena, r->layer, (size_t)r->n * sizeof *r->layer)};
        qsort(tied->layer, (size_t)tied->n_layers, sizeof *tied->layer, compare_ints);
    }
}

void mpp_layering_index(struct mpp_arena *arena, struct mpp_arena *scratch, const struct mpp_graph *g,
                        struct mpp_layering *layering, struct mpp_layering_index *index)
{
    mpp_id forward = phase_end(g, MPP_PHASE_PROLOGUE), backward = phase_end(g, MPP_PHASE_FORWARD);
    index->everywhere = mpp_arena_array(arena, g->n_ops, bool);
    index->reader_min = mpp_arena_array(arena, g->n_tensors, int);
    index->reader_max = mpp_arena_array(arena, g->n_tensors, int);
    index->owner = mpp_arena_array(arena, g->n_ops, mpp_id);
    note_everywhere(g, index);
    note_readers(g, layering, index);
    note_update(arena, g, index);
    note_tied(arena, scratch, g, layering, index);
    sort_by(arena, layering->n_layers, layering->layer_of, forward, backward, &index->first_forward, &index->forward);
    sort_by(arena, layering->n_layers, layering->layer_of, backward, phase_end(g, MPP_PHASE_BACKWARD),
            &index->first_backward, &index->backward);
}
