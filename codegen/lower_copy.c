/* lower_copy.c - copies of values into other shardings, step by step, and the reduction of gradients. */
#include <assert.h>
#include <string.h>

#include "codegen/lower_internal.h"
#include "ir/op.h"

static const char *step_suffix(enum mpp_step_kind kind)
{
    switch (kind) {
    case MPP_STEP_ALL_REDUCE: return "_sum";
    case MPP_STEP_REDUCE_SCATTER: return "_sum_shard";
    case MPP_STEP_ALL_GATHER: return "_whole";
    case MPP_STEP_ALL_TO_ALL: return "_moved";
    case MPP_STEP_SLICE: return "_shard";
    case MPP_STEP_TO_PARTIAL: return "_term";
    }
    return "_copy";
}

/* Does anything read the value as it was made after copy C has begun, at group POS? */
static bool read_later(const struct mpp_lowering *l, int c, int pos)
{
    mpp_id t = l->stage->copies[c].tensor;
    for (int u = l->first_use[t]; u < l->first_use[t + 1]; u++)
        if (l->use[u] >= pos && mpp_sharding_equal(mpp_lower_wanted(l, l->use[u], l->use_operand[u]), l->made[t]))
            return true;
    for (int d = l->copy_of[t]; d >= 0; d = l->next_of[d]) {
        int other = l->stage->copies[d].first_group;
        if (d != c && (other > pos || (other == pos && d > c)))
            return true;
    }
    return false;
}

/* Is there nothing before dimension DIM of B? Then a part of it is one piece of memory. */
static bool leads(const struct mpp_buffer *b, int dim)
{
    for (int d = 0; d < dim; d++)
        if (b->padded[d] != 1)
            return false;
    return true;
}

/* The flat after which the sum of gradients in buffer B can begin: the last of the backward pass that touches it, where
 * that belongs to the same layer; -1. */
static int begins_after(const struct mpp_lowering *l, int b, const struct mpp_gop *op)
{
    int root = mpp_buffer_root(l->p->buffers, b), at = l->last_touch[root];
    if (l->p->buffers[root].kind != MPP_BUF_ACCUM || at < 0)
        return -1;
    const struct mpp_flat *f = &l->p->flats[at];
    return f->repeat == op->repeat && f->index == op->index ? at : -1;
}

/* Emit the steps of copy C at position POS (a group index) in the layer of that group. TARGET >= 0: the last step
 * writes that buffer. Returns the buffer that holds the result. */
int mpp_lower_copy(struct mpp_lowering *l, int c, int pos, int src, int target, bool gradient)
{
    const struct mpp_copy *copy = &l->stage->copies[c];
    const struct mpp_gop *op = mpp_lower_first_op(l, pos);
    const struct mpp_gtensor *t = &l->g->tensors[copy->tensor];
    enum mpp_phase phase = copy->store ? MPP_PHASE_UPDATE : l->g->groups[pos].phase;
    int at = src;
    for (int i = 0; i < copy->n_steps; i++) {
        const struct mpp_reshard_step *step = &copy->steps[i];
        bool last = i + 1 == copy->n_steps;
        bool own = at != src || t->role == MPP_ROLE_VALUE || (t->role == MPP_ROLE_ACCUM && phase == MPP_PHASE_UPDATE);
        bool in_place = step->kind == MPP_STEP_ALL_REDUCE && own && !(last && target >= 0)
                        && (at != src || !read_later(l, c, pos));
        int to;
        if (last && target >= 0)
            to = target;
        else {
            /* In place, the sum belongs to the layer whose memory it takes. */
            to = mpp_lower_buffer(l, copy->tensor, step->to, MPP_BUF_COPY, in_place ? l->p->repeat[at] : op->repeat,
                            in_place ? l->p->index[at] : op->index, step_suffix(step->kind));
            if (in_place)
                l->p->buffers[to].alias = at;
        }
        struct mpp_flat *f = mpp_lower_append(l, MPP_INSTR_STEP, phase, op->repeat, op->index, 1, 1);
        f->instr.in[0].buffer = at;
        f->instr.out[0].buffer = to;
        f->instr.step = step;
        f->instr.reason = copy->reason;
        f->instr.gradient = gradient;
        bool whole_rows = step->kind == MPP_STEP_REDUCE_SCATTER && l->overlap && leads(&l->p->buffers[at], step->dim);
        bool alone = !read_later(l, c, -1); /* a sum that begins early spends its operand before any other could read it */
        int after = gradient && (in_place || whole_rows) && alone && at == src ? begins_after(l, src, op) : -1;
        if (after >= 0) {
            f->phase = MPP_PHASE_BACKWARD;
            f->moved = after + 1;
            f->chunk = l->p->flats[after].chunk;
            f->instr.gradient = false;
            f->instr.begins = true;
        }
        f->instr.once = copy->once && !copy->store && phase == MPP_PHASE_FORWARD;
        at = to;
    }
    return at;
}

bool mpp_lower_is_gradient(const struct mpp_lowering *l, const struct mpp_copy *c)
{
    const struct mpp_gtensor *t = &l->g->tensors[c->tensor];
    return c->phase == MPP_PHASE_UPDATE && t->role == MPP_ROLE_ACCUM && t->param >= 0 && !c->store;
}

static void note_touches(struct mpp_lowering *l)
{
    struct mpp_flat_program *p = l->p;
    l->last_touch = mpp_arena_array(p->arena, p->n_buffers, int);
    for (int b = 0; b < p->n_buffers; b++)
        l->last_touch[b] = -1;
    for (int i = 0; i < p->n_flats; i++) {
        const struct mpp_instr *in = &p->flats[i].instr;
        for (int k = 0; p->flats[i].phase == MPP_PHASE_BACKWARD && k < in->n_in + in->n_out; k++) {
            int b = k < in->n_in ? in->in[k].buffer : in->out[k - in->n_in].buffer;
            if (b >= 0)
                l->last_touch[mpp_buffer_root(p->buffers, b)] = i;
        }
    }
}

/* Flats that are to run earlier go there, in the order in which they stand. */
static void move_flats(struct mpp_flat_program *p)
{
    int n = p->n_flats, out = 0;
    int *first = mpp_arena_array(p->arena, n, int), *next = mpp_arena_array(p->arena, n, int);
    struct mpp_flat *moved = mpp_arena_array(p->arena, n, struct mpp_flat);
    for (int i = 0; i < n; i++)
        first[i] = next[i] = -1;
    for (int i = n - 1; i >= 0; i--) {
        if (p->flats[i].moved == 0)
            continue;
        next[i] = first[p->flats[i].moved - 1];
        first[p->flats[i].moved - 1] = i;
    }
    for (int i = 0; i < n; i++) {
        if (p->flats[i].moved != 0)
            continue;
        moved[out++] = p->flats[i];
        for (int k = first[i]; k >= 0; k = next[k])
            moved[out++] = p->flats[k];
    }
    assert(out == n);
    memcpy(p->flats, moved, (size_t)n * sizeof *moved);
}

/* Gradients are reduced before the rest of the update, so that they can be read on their own. */
void mpp_lower_gradients(struct mpp_lowering *l)
{
    note_touches(l);
    for (int c = 0; c < l->stage->n_copies; c++) {
        const struct mpp_copy *copy = &l->stage->copies[c];
        if (mpp_lower_is_gradient(l, copy))
            l->copy_buffer[c] = mpp_lower_copy(l, c, copy->first_group, l->home[copy->tensor], -1, true);
    }
    move_flats(l->p);
}

