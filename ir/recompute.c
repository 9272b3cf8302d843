/* Which forward ops run a second time in the backward phase, and where.
 *
 * Forward ops are in units, and a unit runs again at once, before the first backward op that reads of it. Under
 * MPP_RECOMPUTE_FULL a unit is an iteration of a repeat (layering.c), under MPP_RECOMPUTE_SELECTIVE what the model
 * file's Attention became. What the backward phase reads of another unit is kept; what it reads of its own is made again,
 * from what is kept. So an iteration keeps what it hands on, and one iteration's insides are alive at a time. (Chen et
 * al. 2016, "Training deep nets with sublinear memory cost"; selective: Korthikanti et al. 2022.) Units are decided from
 * the last to the first: then all readers of a unit's values are known. */
#include <string.h>

#include "ir/op.h"
#include "ir/span_internal.h"

struct unit {
    int begin, end;               /* among the span's forward ops */
    bool kernel;                  /* selective: it is one op, a fused kernel, whose result is made again too */
    bool placed;
    int n_read;
    size_t cap_read;
    mpp_id *read;                 /* its tensors that backward ops read */
};

struct recompute {
    const struct mpp_graph *g;
    const struct mpp_layering *layering;
    struct mpp_arena *scratch;
    int n_forward, n_backward;
    const mpp_id *forward, *backward;
    int n_units;
    struct unit *unit;            /* in the order of the forward phase */
    int *unit_of;                 /* [n_ops] of the graph: number in this span; -1: runs once */
    bool *kept;                   /* [n_tensors] */
    bool *again;                  /* [n_tensors] of the caller */
    bool *repeats;                /* [n_ops] */
    bool whole;                   /* units run again from first to last, needed or not, as frameworks' checkpoints do */
};

/* What forward op O runs again with: a number, equal for neighbours of one unit; -1: nothing. */
static int group_of(const struct recompute *r, enum mpp_recompute recompute, mpp_id o)
{
    const char *type = r->g->ops[o].item_type;
    if (recompute == MPP_RECOMPUTE_FULL)
        return r->layering->index->unit_of[o];
    return type && strcmp(type, "Attention") == 0 ? r->layering->layer_of[o] : -1;
}

static void find_units(struct recompute *r, enum mpp_recompute recompute)
{
    for (mpp_id o = 0; o < r->g->n_ops; o++)
        r->unit_of[o] = -1;
    for (int i = 0, before = -1, group; i < r->n_forward; i++, before = group) {
        group = group_of(r, recompute, r->forward[i]);
        if (group < 0)
            continue;
        if (group != before)
            r->unit[r->n_units++] = (struct unit){.begin = i};
        r->unit[r->n_units - 1].end = i + 1;
        r->unit_of[r->forward[i]] = r->n_units - 1;
    }
    for (int u = 0; u < r->n_units; u++)
        r->unit[u].kernel = recompute == MPP_RECOMPUTE_SELECTIVE && r->unit[u].end - r->unit[u].begin == 1;
}

/* The unit that makes T; -1: none. */
static int maker_of(const struct recompute *r, mpp_id t)
{
    return t < 0 || r->g->tensors[t].op < 0 ? -1 : r->unit_of[r->g->tensors[t].op];
}

/* What backward ops read: of their own unit, it may be made again; of another, it is kept. */
static void note_reads(struct recompute *r)
{
    for (int i = 0; i < r->n_backward; i++) {
        const struct mpp_gop *op = &r->g->ops[r->backward[i]];
        int own = op->forward < 0 ? -1 : r->unit_of[op->forward];
        for (int k = 0; k < op->n_in; k++) {
            int u = maker_of(r, op->in[k]);
            if (u < 0)
                continue;
            struct unit *unit = &r->unit[u];
            if (u != own && !unit->kernel)
                r->kept[op->in[k]] = true;
            unit->read = mpp_arena_grow(r->scratch, unit->read, &unit->cap_read, (size_t)unit->n_read + 1, sizeof *unit->read);
            unit->read[unit->n_read++] = op->in[k];
        }
    }
}

/* The backward phase reads T of the unit that is being decided. */
static void want(struct recompute *r, mpp_id t)
{
    r->again[t] = r->again[t] || !r->kept[t];
    r->repeats[r->g->tensors[t].op] = r->repeats[r->g->tensors[t].op] || r->again[t];
}

/* From the last op to the first: what runs again wants what it reads, and keeps what is of other units. */
static void decide(struct recompute *r, int u)
{
    const struct unit *unit = &r->unit[u];
    for (int i = 0; i < unit->n_read; i++)
        want(r, unit->read[i]);
    for (int i = unit->begin; i < unit->end && r->whole && unit->n_read > 0; i++)
        for (int k = 0; k < r->g->ops[r->forward[i]].n_out; k++)
            want(r, r->g->ops[r->forward[i]].out[k]);
    for (int i = unit->end - 1; i >= unit->begin; i--) {
        const struct mpp_gop *op = &r->g->ops[r->forward[i]];
        for (int k = 0; k < op->n_in && r->repeats[r->forward[i]]; k++) {
            if (maker_of(r, op->in[k]) == u)
                want(r, op->in[k]);
            else if (op->in[k] >= 0)
                r->kept[op->in[k]] = true;
        }
    }
}

/* Before backward op O: the units that it reads of and that have not run again yet. */
static void place(struct recompute *r, mpp_id o, struct mpp_span_list *list)
{
    const struct mpp_gop *op = &r->g->ops[o];
    for (int k = 0; k < op->n_in; k++) {
        int u = maker_of(r, op->in[k]);
        if (u < 0 || !r->again[op->in[k]] || r->unit[u].placed)
            continue;
        r->unit[u].placed = true;
        for (int i = r->unit[u].begin; i < r->unit[u].end; i++)
            if (r->repeats[r->forward[i]])
                mpp_span_append(r->scratch, list, MPP_SPAN_AGAIN, r->forward[i], MPP_PHASE_BACKWARD);
    }
}

void mpp_span_recompute(struct mpp_arena *scratch, const struct mpp_graph *g, const struct mpp_layering *layering,
                        enum mpp_recompute recompute, int n_forward, const mpp_id *forward, int n_backward,
                        const mpp_id *backward, bool *again, struct mpp_span_list *list)
{
    struct recompute r = {.g = g, .layering = layering, .scratch = scratch, .n_forward = n_forward, .forward = forward,
                          .n_backward = n_backward, .backward = backward, .again = again,
                          .whole = g->unfused};
    if (recompute != MPP_RECOMPUTE_NONE) {
        r.unit = mpp_arena_array(scratch, n_forward, struct unit);
        r.unit_of = mpp_arena_array(scratch, g->n_ops, int);
        r.kept = mpp_arena_array(scratch, g->n_tensors, bool);
        r.repeats = mpp_arena_array(scratch, g->n_ops, bool);
        find_units(&r, recompute);
        note_reads(&r);
    }
    for (int u = r.n_units - 1; u >= 0; u--)
        decide(&r, u);
    for (int i = 0; i < n_backward; i++) {
        if (r.n_units > 0)
            place(&r, backward[i], list);
        mpp_span_append(scratch, list, MPP_SPAN_OP, backward[i], MPP_PHASE_BACKWARD);
    }
}
