/* memory.c - static memory planning: one arena, every buffer's place decided here.
 *
 * Time is the position of an instruction in the rolled program (a loop body counts once). Layered buffers become
 *   FIXED     where one layer's instructions of one loop alone use them: all layers share the place,
 *   PINGPONG  where they only pass from a layer to its neighbour within one loop: two places, alternating,
 *   STRIDED   otherwise (weights, activations kept for the backward pass): one place per layer.
 * What lives all the step is laid out first; the rest is placed largest first, each at the lowest offset that is
 * free during its life (greedy by size: Pisarchyk & Lee, "Efficient memory management for deep neural net
 * inference", 2020). */
#include <stdlib.h>
#include <string.h>

#include "codegen/lower_internal.h"

enum { ROUND_BYTES = 64 };

struct life {
    bool used, always;
    int first, last;              /* over all uses, loops counted whole */
    int own_first, own_last;      /* class buffers: over own uses in `body` */
    int body;                     /* the only loop that uses it; -1 none yet, -2 several */
    bool crossed;                 /* a neighbouring layer reads it */
    bool outside, late;           /* used outside loops; only after its loop, as the last layer run */
    int64_t bytes;                /* of all its places */
};

struct loop_at {
    bool inside;
    int first, last, body, cls;
    bool descending;
};

struct memory {
    const struct mpp_graph *g;
    const struct mpp_stage *stage;
    struct mpp_lprog *prog;
    struct life *life;
    int n_positions;
    int64_t *workspace;           /* [n_positions] */
    int begin[4], end[4];         /* positions of each section */
    int *loop_last, *loop_first;  /* [n_bodies] */
    bool *loop_descending;
};

/* ---- lives ---- */

static void widen(struct life *l, int first, int last)
{
    if (!l->used || first < l->first)
        l->first = first;
    if (!l->used || last > l->last)
        l->last = last;
    l->used = true;
}

static void touch_outside(struct memory *m, struct mpp_bufref ref, int first, int last);

/* A layered buffer of this iteration (own) or of a neighbour's, seen from a loop. */
static void touch_inside(struct memory *m, int b, int pos, const struct loop_at *at, bool own)
{
    struct life *l = &m->life[b];
    if (l->body == -1) {
        l->body = at->body;
        l->own_first = l->own_last = pos;
    } else if (l->body != at->body)
        l->body = -2;
    if (own && pos < l->own_first)
        l->own_first = pos;
    if (own && pos > l->own_last)
        l->own_last = pos;
    l->crossed = l->crossed || !own;
    widen(l, at->first, at->last);
}

static void touch(struct memory *m, struct mpp_bufref ref, int pos, const struct loop_at *at)
{
    if (ref.buffer < 0)
        return;
    const struct mpp_buffer *buffers = m->prog->buffers;
    for (; buffers[ref.buffer].alias >= 0; ref.buffer = buffers[ref.buffer].alias)
        if (buffers[ref.buffer].alias_layer >= 0)
            ref.layer = buffers[ref.buffer].alias_layer;
    int b = ref.buffer;
    if (!at->inside) {
        touch_outside(m, ref, pos, pos);
        return;
    }
    if (buffers[b].address == MPP_ADDR_CARRIED) {
        bool at_start = (buffers[b].carry_step < 0) == !at->descending;
        touch_inside(m, mpp_buffer_root(buffers, buffers[b].carry_from), pos, at, false);
        touch_outside(m, buffers[b].carry_in, at_start ? at->first : at->first, at_start ? pos : at->last);
    } else if (buffers[b].cls >= 0 && ref.layer < 0 && buffers[b].cls == at->cls) {
        touch_inside(m, b, pos, at, true);
    } else {
        touch_outside(m, (struct mpp_bufref){b, ref.layer}, at->first, at->last);
    }
}

/* A plain buffer, or one layer's of a class, by name. */
static void touch_outside(struct memory *m, struct mpp_bufref ref, int first, int last)
{
    int b = mpp_buffer_root(m->prog->buffers, ref.buffer);
    struct life *l = &m->life[b];
    int cls = m->prog->buffers[b].cls;
    if (cls >= 0) {
        const struct mpp_layer_class *c = &m->prog->classes[cls];
        bool late = l->body >= 0 && first > m->loop_last[l->body]
                    && ref.layer == (m->loop_descending[l->body] ? c->first : c->first + c->count - 1);
        l->late = late && (l->late || !l->outside);
        l->outside = true;
    }
    widen(l, first, last);
}

static int64_t step_workspace(const struct mpp_lprog *prog, const struct mpp_instr *in)
{
    const struct mpp_reshard_step *s = in->step;
    const struct mpp_buffer *src = &prog->buffers[in->in[0].buffer], *dst = &prog->buffers[in->out[0].buffer];
    if (s->kind == MPP_STEP_ALL_TO_ALL)
        return 2 * src->bytes;
    if (s->kind != MPP_STEP_ALL_GATHER && s->kind != MPP_STEP_REDUCE_SCATTER)
        return 0;
    int64_t outer = 1;
    for (int d = 0; d < s->dim; d++)
        outer *= src->padded[d];
    return outer > 1 ? (src->bytes > dst->bytes ? src->bytes : dst->bytes) : 0;
}

static void visit(struct memory *m, const struct mpp_instr *in, int pos, const struct loop_at *at)
{
    for (int i = 0; i < in->n_in; i++)
        touch(m, in->in[i], pos, at);
    for (int i = 0; i < in->n_out; i++)
        touch(m, in->out[i], pos, at);
    if (in->kind == MPP_INSTR_COMPUTE)
        m->workspace[pos] = mpp_emit_workspace(m->g, &m->stage->mesh, &m->g->groups[in->group], in->split);
    else if (in->kind == MPP_INSTR_STEP)
        m->workspace[pos] = step_workspace(m->prog, in);
    if (in->once)
        for (int i = 0; i < in->n_out; i++)
            widen(&m->life[mpp_buffer_root(m->prog->buffers, in->out[i].buffer)], m->begin[MPP_PHASE_FORWARD],
                  m->end[MPP_PHASE_BACKWARD]);
}

static void count_positions(struct memory *m)
{
    for (int p = 0; p < 4; p++) {
        const struct mpp_section *s = &m->prog->section[p];
        m->begin[p] = m->n_positions;
        for (int i = 0; i < s->n_items; i++) {
            if (!s->items[i].loop) {
                m->n_positions++;
                continue;
            }
            int body = s->items[i].body;
            m->loop_first[body] = m->n_positions;
            m->n_positions += m->prog->bodies[body].n_instrs;
            m->loop_last[body] = m->n_positions - 1;
            m->loop_descending[body] = s->items[i].descending;
        }
        m->end[p] = m->n_positions > m->begin[p] ? m->n_positions - 1 : m->begin[p];
    }
}

static void find_lives(struct memory *m)
{
    int pos = 0;
    for (int p = 0; p < 4; p++) {
        const struct mpp_section *s = &m->prog->section[p];
        for (int i = 0; i < s->n_items; i++) {
            struct loop_at at = {0};
            if (!s->items[i].loop) {
                visit(m, &s->items[i].instr, pos++, &at);
                continue;
            }
            int id = s->items[i].body;
            const struct mpp_body *body = &m->prog->bodies[id];
            at = (struct loop_at){true, m->loop_first[id], m->loop_last[id], id, s->items[i].cls, s->items[i].descending};
            for (int k = 0; k < body->n_instrs; k++)
                visit(m, &body->instrs[k], pos++, &at);
        }
    }
}

/* What the outside world or the next micro-batch needs lives longer than its uses show. */
static void extend_lives(struct memory *m, int64_t micro_batches)
{
    int last = m->n_positions - 1;
    for (int b = 0; b < m->prog->n_buffers; b++) {
        const struct mpp_buffer *buf = &m->prog->buffers[b];
        struct life *l = &m->life[b];
        bool resting = buf->kind == MPP_BUF_PARAM || buf->kind == MPP_BUF_STATE || buf->kind == MPP_BUF_INPUT;
        if (resting && buf->address != MPP_ADDR_CARRIED) {
            l->always = true;
            widen(l, 0, last);
        }
        if (buf->kind == MPP_BUF_ACCUM && buf->address != MPP_ADDR_CARRIED && l->used && micro_batches > 1)
            widen(l, 0, l->last > m->end[MPP_PHASE_BACKWARD] ? l->last : m->end[MPP_PHASE_BACKWARD]);
    }
    int outputs[2] = {m->prog->loss, m->prog->grad_norm};
    for (int i = 0; i < 2; i++)
        if (outputs[i] >= 0)
            widen(&m->life[mpp_buffer_root(m->prog->buffers, outputs[i])], last, last);
}

static void choose_addresses(struct memory *m)
{
    for (int b = 0; b < m->prog->n_buffers; b++) {
        struct mpp_buffer *buf = &m->prog->buffers[b];
        struct life *l = &m->life[b];
        if (buf->alias >= 0 || buf->address == MPP_ADDR_CARRIED)
            continue;
        l->bytes = buf->bytes;
        if (buf->cls < 0)
            continue;
        bool passing = (buf->kind == MPP_BUF_VALUE || buf->kind == MPP_BUF_COPY) && l->body >= 0 && (!l->outside || l->late);
        bool whole_phase = l->used && l->body >= 0 && (l->first < m->loop_first[l->body]
                           || (l->last > m->loop_last[l->body] && !l->late));
        int count = m->prog->classes[buf->cls].count;
        if (passing && !whole_phase && !l->crossed && !l->outside) {
            buf->address = MPP_ADDR_FIXED;
            l->first = l->own_first;
            l->last = l->own_last;
        } else if (passing && !whole_phase && count > 2) {
            buf->address = MPP_ADDR_PINGPONG;
            buf->stride = buf->bytes;
            l->bytes = 2 * buf->bytes;
        } else {
            buf->address = MPP_ADDR_STRIDED;
            buf->stride = buf->bytes;
            l->bytes = count * buf->bytes;
        }
    }
}

/* ---- placement ---- */

struct place {
    int buffer;
    int64_t bytes;
    int first, last;
    int64_t offset;
};

static int by_size(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    if (x->first != y->first)
        return x->first - y->first;
    return x->buffer - y->buffer;
}

static int by_offset(const void *a, const void *b)
{
    const struct place *x = *(const struct place *const *)a, *y = *(const struct place *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset ? 1 : x->buffer - y->buffer;
}

/* The lowest offset >= BASE at which P fits beside the placed ones (sorted by offset) alive with it. */
static int64_t lowest_fit(const struct memory *m, const struct place *p, struct place *const *placed, int n_placed,
                          int64_t base)
{
    int64_t work = 0;
    for (int t = p->first; t <= p->last; t++)
        if (m->workspace[t] > work)
            work = m->workspace[t];
    int64_t at = base + (work + ROUND_BYTES - 1) / ROUND_BYTES * ROUND_BYTES;
    for (int i = 0; i < n_placed; i++) {
        const struct place *q = placed[i];
        if (q->last < p->first || q->first > p->last)
            continue;
        if (q->offset >= at + p->bytes)
            break;
        if (q->offset + q->bytes > at)
            at = q->offset + q->bytes;
    }
    return at;
}

static int64_t lay_out_always(struct memory *m)
{
    static const enum mpp_buffer_kind order[] = {MPP_BUF_PARAM, MPP_BUF_STATE, MPP_BUF_INPUT};
    int64_t at = 0;
    for (size_t k = 0; k < sizeof order / sizeof order[0]; k++)
        for (int b = 0; b < m->prog->n_buffers; b++) {
            struct mpp_buffer *buf = &m->prog->buffers[b];
            if (m->life[b].always && buf->kind == order[k] && buf->alias < 0) {
                buf->offset = at;
                at += m->life[b].bytes;
            }
        }
    return at;
}

static void lay_out_rest(struct mpp_arena *arena, struct memory *m, int64_t base)
{
    struct mpp_lprog *prog = m->prog;
    struct place *places = mpp_arena_array(arena, prog->n_buffers, struct place);
    int n = 0;
    for (int b = 0; b < prog->n_buffers; b++) {
        const struct life *l = &m->life[b];
        if (l->used && !l->always && prog->buffers[b].alias < 0 && prog->buffers[b].address != MPP_ADDR_CARRIED)
            places[n++] = (struct place){b, l->bytes, l->first, l->last, 0};
    }
    qsort(places, (size_t)n, sizeof *places, by_size);
    struct place **placed = mpp_arena_array(arena, n, struct place *);
    int64_t end = base;
    for (int t = 0; t < m->n_positions; t++)
        if (base + m->workspace[t] > end)
            end = base + m->workspace[t];
    prog->workspace_offset = base;
    prog->workspace_bytes = end - base;
    for (int i = 0; i < n; i++) {
        places[i].offset = lowest_fit(m, &places[i], placed, i, base);
        placed[i] = &places[i];
        qsort(placed, (size_t)i + 1, sizeof *placed, by_offset);
        prog->buffers[places[i].buffer].offset = places[i].offset;
        if (places[i].offset + places[i].bytes > end)
            end = places[i].offset + places[i].bytes;
    }
    prog->arena_bytes = (end + ROUND_BYTES - 1) / ROUND_BYTES * ROUND_BYTES;
}

/* ---- the account ---- */

static void add_kind(struct mpp_memory *mem, enum mpp_buffer_kind kind, const struct mpp_gtensor *t, int64_t bytes)
{
    bool gradient = kind == MPP_BUF_ACCUM || (t->role == MPP_ROLE_ACCUM && t->param >= 0);
    if (kind == MPP_BUF_PARAM)
        mem->parameters += bytes;
    else if (kind == MPP_BUF_STATE)
        mem->optimizer += bytes;
    else if (kind == MPP_BUF_INPUT)
        mem->inputs += bytes;
    else if (gradient)
        mem->gradients += bytes;
    else
        mem->activations += bytes;
}

static void account(struct memory *m)
{
    struct mpp_lprog *prog = m->prog;
    int64_t most = -1;
    for (int t = 0; t < m->n_positions; t++) {
        struct mpp_memory mem = {.workspace = m->workspace[t]};
        for (int b = 0; b < prog->n_buffers; b++) {
            const struct life *l = &m->life[b];
            const struct mpp_buffer *buf = &prog->buffers[b];
            if (buf->alias < 0 && buf->address != MPP_ADDR_CARRIED && l->used && l->first <= t && t <= l->last)
                add_kind(&mem, buf->kind, &m->g->tensors[buf->tensor], l->bytes);
        }
        int64_t live = mem.parameters + mem.gradients + mem.optimizer + mem.activations + mem.inputs + mem.workspace;
        if (live > most) {
            most = live;
            prog->memory = mem;
            prog->memory.live_bound_bytes = live;
        }
    }
    prog->memory.arena_bytes = prog->arena_bytes;
    prog->memory.gaps = prog->arena_bytes - prog->memory.live_bound_bytes;
}

void mpp_memory_plan(struct mpp_arena *arena, const struct mpp_graph *g, const struct mpp_stage *stage,
                     int64_t micro_batches, struct mpp_lprog *prog)
{
    struct memory m = {.g = g, .stage = stage, .prog = prog};
    m.life = mpp_arena_array(arena, prog->n_buffers, struct life);
    for (int b = 0; b < prog->n_buffers; b++)
        m.life[b].body = -1;
    m.loop_first = mpp_arena_array(arena, prog->n_bodies, int);
    m.loop_last = mpp_arena_array(arena, prog->n_bodies, int);
    m.loop_descending = mpp_arena_array(arena, prog->n_bodies, bool);
    count_positions(&m);
    m.workspace = mpp_arena_array(arena, m.n_positions + 1, int64_t);
    find_lives(&m);
    extend_lives(&m, micro_batches);
    choose_addresses(&m);
    lay_out_rest(arena, &m, lay_out_always(&m));
    account(&m);
}
