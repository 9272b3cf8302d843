/* memory.c - static memory planning: one arena, every buffer's place decided here.
 *
 * Time counts the instructions that a rank runs in a step of one micro-batch, loops unrolled. A plain buffer has one
 * life, a layered one a life per layer; the most bytes alive at once are the bound that the report names. Layered
 * buffers become
 *   FIXED     where the lives of no two layers overlap: all share one place,
 *   PINGPONG  where only neighbours' lives overlap: two places, taken in turns,
 *   STRIDED   otherwise (weights, activations kept for the backward pass): one place per layer.
 * What lives all the step is laid out first; the rest is placed largest first, each at the lowest offset that is
 * free during its lives (greedy by size: Pisarchyk & Lee, "Efficient memory management for deep neural net
 * inference", 2020). STRIDED buffers of a class either stand each by itself, or share a frame per layer, so that a
 * layer's gradients take the place of activations that died. While the arena exceeds the bound noticeably, other
 * orders are tried: longest lives first, and the buffer that sticks out first. The smallest arena is kept. */
#include <stdlib.h>
#include <string.h>

#include "codegen/lower_internal.h"

enum { ROUND_BYTES = 64, MAX_TRIES = 64, MAX_WORK = 40000000 };

struct span {                     /* of time; first > last: never */
    int first, last;
};

struct life {                     /* of a buffer that owns memory */
    int n;                        /* layers of its class; plain: 1; no memory: 0 */
    struct span *span;            /* [n] */
    struct span hull;             /* of all of them */
    int chunk;                    /* whose forward makes it */
    int order;                    /* 1: later layers live later, -1: earlier; 0: neither */
    bool always, once;            /* once: made in the step's first micro-batch and kept */
};

struct loop_at {                  /* a loop over class CLS: its first instruction, and how many each iteration has */
    int cls, time, length;
    bool descending;
};

struct memory {
    struct mpp_arena *arena;      /* scratch */
    const struct mpp_graph *g;
    const struct mpp_stage *stage;
    struct mpp_lprog *prog;
    struct life *life;            /* [n_buffers] */
    int n_times;
    int64_t *workspace;           /* [n_times] */
    int begin[4], end[4];         /* times of each section: begin .. end - 1 */
    int n_loops;
    struct loop_at *loops;
    int *rank;                    /* [n_buffers] placed before those of lower rank */
    int *marks;                   /* scratch: [2 * largest class + 1] */
    int top;                      /* the buffer at the arena's end in the last layout */
};

/* ---- which memory a reference means ---- */

int mpp_buffer_root(const struct mpp_buffer *buffers, int b)
{
    while (buffers[b].alias >= 0)
        b = buffers[b].alias;
    return b;
}

struct mpp_bufref mpp_buffer_owner(const struct mpp_lprog *prog, struct mpp_bufref ref)
{
    for (;;) {
        const struct mpp_buffer *b = &prog->buffers[ref.buffer];
        if (b->alias >= 0) {
            ref = (struct mpp_bufref){b->alias, b->alias_layer >= 0 ? b->alias_layer : ref.layer};
        } else if (b->address == MPP_ADDR_CARRIED) {
            const struct mpp_layer_class *c = &prog->classes[b->cls];
            int end = b->carry_step < 0 ? c->first : c->first + c->count - 1;
            ref = ref.layer == end ? b->carry_in : (struct mpp_bufref){b->carry_from, ref.layer + b->carry_step};
        } else {
            return (struct mpp_bufref){ref.buffer, b->cls < 0 ? -1 : ref.layer};
        }
    }
}

/* Number of a layer among its class's. */
static int number_of(const struct mpp_lprog *prog, struct mpp_bufref owner)
{
    int cls = prog->buffers[owner.buffer].cls;
    return cls < 0 ? 0 : owner.layer - prog->classes[cls].first;
}

/* Bytes between a buffer's first place and that of layer number I. */
static int64_t step_to(const struct mpp_buffer *b, int i)
{
    return b->address == MPP_ADDR_STRIDED ? i * b->stride : b->address == MPP_ADDR_PINGPONG ? (i & 1) * b->stride : 0;
}

int64_t mpp_buffer_offset(const struct mpp_lprog *prog, struct mpp_bufref ref)
{
    struct mpp_bufref owner = mpp_buffer_owner(prog, ref);
    const struct mpp_buffer *b = &prog->buffers[owner.buffer];
    return b->offset + step_to(b, number_of(prog, owner));
}

/* ---- lives ---- */

static void widen(struct span *s, int first, int last)
{
    bool never = s->first > s->last;
    s->first = never || first < s->first ? first : s->first;
    s->last = never || last > s->last ? last : s->last;
}

static struct mpp_bufref owner_of(const struct memory *m, struct mpp_bufref ref, int layer)
{
    if (ref.layer < 0)
        ref.layer = layer;
    return mpp_buffer_owner(m->prog, ref);
}

static struct span *span_of(const struct memory *m, struct mpp_bufref ref, int layer)
{
    struct mpp_bufref owner = owner_of(m, ref, layer);
    return &m->life[owner.buffer].span[number_of(m->prog, owner)];
}

/* Some rows of the operand, packed. */
int64_t mpp_memory_half_scatter(int64_t outer, int64_t extent, int64_t inner)
{
    enum { PACKED_HALVES = 1 << 18 }; /* elements that are packed at a time (core/packed.h) */
    int64_t row = extent * inner, most = row > 0 ? PACKED_HALVES / row : outer, rows = most < outer ? most : outer;
    return rows > 1 ? 2 * rows * row : 0;
}

static int64_t half_scatter_workspace(const struct mpp_buffer *src, int dim)
{
    int64_t outer = 1, inner = 1;
    for (int d = 0; d < src->n_dims; d++)
        *(d < dim ? &outer : &inner) *= d == dim ? 1 : src->padded[d];
    return mpp_memory_half_scatter(outer, src->padded[dim], inner);
}

static int64_t step_workspace(const struct mpp_lprog *prog, const struct mpp_instr *in)
{
    const struct mpp_reshard_step *s = in->step;
    const struct mpp_buffer *src = &prog->buffers[in->in[0].buffer], *dst = &prog->buffers[in->out[0].buffer];
    bool half = mpp_dtype_bytes(dst->dtype) == 2;
    if (s->kind == MPP_STEP_ALL_TO_ALL)
        return 2 * src->bytes;
    if (s->kind == MPP_STEP_REDUCE_SCATTER && half)
        return half_scatter_workspace(src, s->dim);
    if (s->kind != MPP_STEP_ALL_GATHER && s->kind != MPP_STEP_REDUCE_SCATTER)
        return 0;
    int64_t outer = 1;
    for (int d = 0; d < s->dim; d++)
        outer *= src->padded[d];
    return outer > 1 ? (src->bytes > dst->bytes ? src->bytes : dst->bytes) : 0;
}

static int64_t instr_workspace(const struct memory *m, const struct mpp_instr *in)
{
    int64_t n = in->kind == MPP_INSTR_COMPUTE
                    ? mpp_emit_workspace(m->g, &m->stage->mesh, &m->g->groups[in->group], in->split)
                : in->kind == MPP_INSTR_STEP ? step_workspace(m->prog, in) : 0;
    return (n + ROUND_BYTES - 1) / ROUND_BYTES * ROUND_BYTES;
}

static void visit(struct memory *m, const struct mpp_instr *in, int layer, int chunk, int time, int64_t workspace)
{
    m->workspace[time] = workspace;
    if (in->kind == MPP_INSTR_SEND) { /* once per step: all has been received when the step ends */
        struct life *ring = &m->life[m->prog->ring[in->transfer]];
        ring->always = time < m->begin[MPP_PHASE_UPDATE];
        widen(&ring->span[0], time, m->n_times - 1);
    }
    for (int i = 0; i < in->n_in; i++)
        if (in->in[i].buffer >= 0)
            widen(span_of(m, in->in[i], layer), time, time);
    for (int i = 0; i < in->n_out; i++) {
        if (in->out[i].buffer < 0)
            continue;
        struct life *made = &m->life[owner_of(m, in->out[i], layer).buffer];
        made->chunk = time < m->end[MPP_PHASE_FORWARD] ? chunk : made->chunk;
        widen(span_of(m, in->out[i], layer), time, time);
        if (in->begins) {         /* until the update waits for it */
            widen(span_of(m, in->in[i], layer), time, m->begin[MPP_PHASE_UPDATE]);
            widen(span_of(m, in->out[i], layer), time, m->begin[MPP_PHASE_UPDATE]);
        }
        if (in->once) {           /* kept for all micro-batches */
            widen(span_of(m, in->out[i], layer), m->begin[MPP_PHASE_FORWARD], m->end[MPP_PHASE_BACKWARD] - 1);
            m->life[owner_of(m, in->out[i], layer).buffer].once = true;
        }
    }
}

static void count_times(struct memory *m)
{
    int n_items = 0;
    for (int p = 0; p < 4; p++)
        n_items += m->prog->section[p].n_items;
    m->loops = mpp_arena_array(m->arena, n_items, struct loop_at);
    for (int p = 0; p < 4; p++) {
        const struct mpp_section *s = &m->prog->section[p];
        m->begin[p] = m->n_times;
        for (int i = 0; i < s->n_items; i++) {
            const struct mpp_pitem *item = &s->items[i];
            if (!item->loop) {
                m->n_times++;
                continue;
            }
            int length = m->prog->bodies[item->body].n_instrs;
            m->loops[m->n_loops++] = (struct loop_at){item->cls, m->n_times, length, item->descending};
            m->n_times += length * m->prog->classes[item->cls].count;
        }
        m->end[p] = m->n_times;
    }
}

static void visit_loop(struct memory *m, const struct loop_at *at, int chunk, const struct mpp_body *body)
{
    const struct mpp_layer_class *c = &m->prog->classes[at->cls];
    for (int k = 0; k < at->length; k++) {
        int64_t workspace = instr_workspace(m, &body->instrs[k]);
        for (int i = 0; i < c->count; i++) {
            int layer = (at->descending ? c->first + c->count - 1 - i : c->first + i) + body->instrs[k].ahead;
            if (layer >= c->first && layer < c->first + c->count)
                visit(m, &body->instrs[k], layer, chunk, at->time + i * at->length + k, workspace);
        }
    }
}

static void find_lives(struct memory *m)
{
    const struct loop_at *loop = m->loops;
    for (int p = 0; p < 4; p++) {
        const struct mpp_section *s = &m->prog->section[p];
        int time = m->begin[p];
        for (int i = 0; i < s->n_items; i++) {
            const struct mpp_pitem *item = &s->items[i];
            if (item->loop) {
                visit_loop(m, loop, item->chunk, &m->prog->bodies[item->body]);
                time += loop->length * m->prog->classes[item->cls].count;
                loop++;
            } else {
                visit(m, &item->instr, -1, item->chunk, time++, instr_workspace(m, &item->instr));
            }
        }
    }
}

/* Do lives begin and end later from layer to layer (BY 1), or earlier (BY -1)? */
static bool in_order(const struct life *l, int by)
{
    for (int i = 0; i < l->n; i++) {
        struct span x = l->span[i], before = l->span[i ? i - 1 : 0];
        if (x.first > x.last || by * (x.first - before.first) < 0 || by * (x.last - before.last) < 0)
            return false;
    }
    return true;
}

/* Bytes of one layer's place: of all micro-batches in flight. */
static int64_t room(const struct mpp_buffer *b)
{
    return b->slots * b->bytes;
}

/* Does layer number I of buffer B hold what forward leaves for backward? */
static bool crosses(const struct memory *m, int b, int i)
{
    const struct mpp_buffer *buf = &m->prog->buffers[b];
    struct span s = m->life[b].span[i];
    bool handed_on = buf->kind == MPP_BUF_VALUE || buf->kind == MPP_BUF_COPY;
    bool made = handed_on ? s.first >= m->begin[MPP_PHASE_FORWARD] : buf->kind == MPP_BUF_INPUT && m->prog->n_chunks == 1;
    return made && !m->life[b].once && s.first < m->begin[MPP_PHASE_BACKWARD] && s.last >= m->begin[MPP_PHASE_BACKWARD];
}

/* Several micro-batches are in flight: what forward leaves for backward has a place for each, from the first to the last
 * micro-batch. (Inputs that several chunks read are placed again for each pass.) A layer that leaves nothing, among others that do, has as large a place, for as long as it needs one. */
static void find_slots(struct memory *m)
{
    for (int b = 0; b < m->prog->n_buffers; b++)
        for (int i = 0; i < m->life[b].n && (m->prog->n_chunks > 1 || m->prog->slots[0] > 1); i++)
            if (crosses(m, b, i)) {
                m->prog->buffers[b].slots = m->prog->slots[m->life[b].chunk];
                widen(&m->life[b].span[i], m->begin[MPP_PHASE_FORWARD], m->end[MPP_PHASE_BACKWARD] - 1);
            }
}

/* Bytes that layer number I of buffer B fills. */
static int64_t filled(const struct memory *m, int b, int i)
{
    const struct mpp_buffer *buf = &m->prog->buffers[b];
    return buf->slots > 1 && (buf->kind == MPP_BUF_RING || crosses(m, b, i)) ? room(buf) : buf->bytes;
}

/* What the outside world or the next micro-batch needs lives longer than its uses show. */
static void extend_lives(struct memory *m, int64_t micro_batches)
{
    int last = m->n_times - 1, back = m->end[MPP_PHASE_BACKWARD] - 1;
    for (int b = 0; b < m->prog->n_buffers; b++) {
        const struct mpp_buffer *buf = &m->prog->buffers[b];
        struct life *l = &m->life[b];
        l->always = l->always || buf->kind == MPP_BUF_PARAM || buf->kind == MPP_BUF_STATE || buf->kind == MPP_BUF_INPUT;
        for (int i = 0; i < l->n; i++) {
            struct span *s = &l->span[i];
            bool used = s->first <= s->last;
            if (l->always)
                widen(s, 0, last);
            if (used && micro_batches > 1 && buf->kind == MPP_BUF_ACCUM)
                widen(s, 0, back);
            /* What the prologue leaves behind is there for every micro-batch. */
            if (used && micro_batches > 1 && s->first < m->end[MPP_PHASE_PROLOGUE] && s->last >= m->end[MPP_PHASE_PROLOGUE])
                widen(s, s->first, back);
        }
    }
    int outputs[2] = {m->prog->loss, m->prog->grad_norm};
    for (int i = 0; i < 2; i++)
        if (outputs[i] >= 0)
            widen(span_of(m, (struct mpp_bufref){outputs[i], -1}, -1), last, last);
    for (int b = 0; b < m->prog->n_buffers; b++) {
        m->life[b].hull = (struct span){0, -1};
        for (int i = 0; i < m->life[b].n; i++)
            if (m->life[b].span[i].first <= m->life[b].span[i].last)
                widen(&m->life[b].hull, m->life[b].span[i].first, m->life[b].span[i].last);
        m->life[b].order = in_order(&m->life[b], 1) ? 1 : in_order(&m->life[b], -1) ? -1 : 0;
    }
}

static bool overlap(struct span a, struct span b)
{
    return a.first <= b.last && b.first <= a.last && a.first <= a.last && b.first <= b.last;
}

/* Does no life overlap that of a layer STEP, 2 STEP, ... further on? */
static bool in_turns(const struct life *l, int step)
{
    for (int i = 0; i < l->n; i++)
        for (int k = i + step; k < l->n; k += step)
            if (overlap(l->span[i], l->span[k]))
                return false;
    return true;
}

static void choose_addresses(struct memory *m)
{
    for (int b = 0; b < m->prog->n_buffers; b++) {
        struct mpp_buffer *buf = &m->prog->buffers[b];
        const struct life *l = &m->life[b];
        if (buf->cls < 0 || l->n == 0)
            continue;
        buf->address = in_turns(l, 1) ? MPP_ADDR_FIXED : l->n > 2 && in_turns(l, 2) ? MPP_ADDR_PINGPONG : MPP_ADDR_STRIDED;
        buf->stride = buf->address == MPP_ADDR_FIXED ? 0 : room(buf);
    }
}

/* ---- the account ---- */

static void add_kind(struct mpp_memory *mem, const struct memory *m, const struct mpp_buffer *b, int64_t bytes)
{
    const struct mpp_gtensor *t = &m->g->tensors[b->tensor];
    bool gradient = b->kind == MPP_BUF_ACCUM || (t->role == MPP_ROLE_ACCUM && t->param >= 0);
    if (b->kind == MPP_BUF_PARAM)
        mem->parameters += bytes;
    else if (b->kind == MPP_BUF_STATE)
        mem->optimizer += bytes;
    else if (b->kind == MPP_BUF_INPUT)
        mem->inputs += bytes;
    else if (gradient && t->n_dims > 0) /* a scalar is the loss or a count */
        mem->gradients += bytes;
    else
        mem->activations += bytes;
}

/* What lives at the fullest moment. */
static void account(struct memory *m)
{
    struct mpp_lprog *prog = m->prog;
    int64_t *change = mpp_arena_array(m->arena, m->n_times + 1, int64_t);
    for (int b = 0; b < prog->n_buffers; b++)
        for (int i = 0; i < m->life[b].n; i++)
            if (m->life[b].span[i].first <= m->life[b].span[i].last) {
                change[m->life[b].span[i].first] += filled(m, b, i);
                change[m->life[b].span[i].last + 1] -= filled(m, b, i);
            }
    int fullest = 0;
    int64_t live = 0, most = -1;
    for (int t = 0; t < m->n_times; t++) {
        live += change[t];
        if (live + m->workspace[t] > most) {
            most = live + m->workspace[t];
            fullest = t;
        }
    }
    prog->memory = (struct mpp_memory){.workspace = m->n_times ? m->workspace[fullest] : 0, .live_bound_bytes = most};
    for (int b = 0; b < prog->n_buffers; b++)
        for (int i = 0; i < m->life[b].n; i++)
            if (overlap(m->life[b].span[i], (struct span){fullest, fullest}))
                add_kind(&prog->memory, m, &prog->buffers[b], filled(m, b, i));
}

/* ---- frames: what the strided buffers of a layer need together ---- */

/* The end of the iteration of layer number I that holds TIME, -1 where it is another's. */
static int own_iteration(const struct memory *m, int cls, int i, int time)
{
    int count = m->prog->classes[cls].count;
    for (int k = 0; k < m->n_loops; k++) {
        const struct loop_at *at = &m->loops[k];
        int begin = at->time + (at->descending ? count - 1 - i : i) * at->length;
        if (at->cls == cls && begin <= time && time < begin + at->length)
            return begin + at->length;
    }
    return -1;
}

static bool in_frame(const struct memory *m, int b, int cls)
{
    const struct mpp_buffer *buf = &m->prog->buffers[b];
    return buf->cls == cls && m->life[b].n > 0 && !m->life[b].always && buf->address == MPP_ADDR_STRIDED;
}

static int64_t frame_at(const struct memory *m, int cls, int i, int time)
{
    int64_t bytes = 0;
    for (int b = 0; b < m->prog->n_buffers; b++)
        if (in_frame(m, b, cls) && overlap(m->life[b].span[i], (struct span){time, time}))
            bytes += room(&m->prog->buffers[b]);
    return bytes;
}

/* The most bytes that one layer of CLS holds in strided buffers; BETWEEN: while other layers run. KEY[b] becomes true
 * for those buffers. */
static int64_t frame_bytes(const struct memory *m, int cls, bool between, bool *key)
{
    int64_t most = 0;
    int layer = 0, when = 0;
    int count = m->prog->classes[cls].count;
    for (int b = 0; b < m->prog->n_buffers; b++)
        for (int i = 0; in_frame(m, b, cls) && i < count; i += count > 3 ? count / 3 : 1) {
            int time = m->life[b].span[i].first, after = own_iteration(m, cls, i, time);
            time = between && after >= 0 ? after : time;
            int64_t bytes = time < m->n_times ? frame_at(m, cls, i, time) : 0;
            if (bytes > most) {
                most = bytes;
                layer = i;
                when = time;
            }
        }
    for (int b = 0; b < m->prog->n_buffers; b++)
        if (in_frame(m, b, cls) && overlap(m->life[b].span[layer], (struct span){when, when}))
            key[b] = true;
    return most;
}

/* ---- placement ---- */

enum layout { APART, FRAMES, TIGHT_FRAMES, N_LAYOUTS };

struct place {
    int buffer, rank;
    double weight;                /* bytes of all its places, or those times how long it lives */
};

struct range {                    /* offsets LOW < x < HIGH are taken */
    int64_t low, high;
};

struct ranges {
    size_t cap;
    int n;
    struct range *range;
};

static int by_weight(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? 1 : -1;
    if (x->weight < y->weight || x->weight > y->weight)
        return x->weight < y->weight ? 1 : -1;
    return x->buffer - y->buffer;
}

static int by_low(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return x->low < y->low ? -1 : x->low > y->low;
}

static int n_places(const struct mpp_buffer *b, const struct life *l)
{
    return b->address == MPP_ADDR_STRIDED ? l->n : b->address == MPP_ADDR_PINGPONG ? 2 : 1;
}

static void add_range(struct memory *m, struct ranges *r, int64_t low, int64_t high)
{
    struct range *before = r->n ? &r->range[r->n - 1] : NULL;
    if (before && before->low <= low && low < before->high) {
        before->high = high > before->high ? high : before->high;
        return;
    }
    r->range = mpp_arena_grow(m->arena, r->range, &r->cap, (size_t)r->n + 1, sizeof *r->range);
    r->range[r->n++] = (struct range){low, high};
}

/* The layers of L that live during S: FIRST to LAST (some between may not, where lives are in no order). */
static struct span alive_during(const struct life *l, struct span s)
{
    int low = 0, high = l->n - 1;
    if (l->order == 0) {
        while (low <= high && !overlap(l->span[low], s))
            low++;
        while (high > low && !overlap(l->span[high], s))
            high--;
        return (struct span){low, high};
    }
    for (int n = l->n; n > 0;) {  /* those before LOW end too early, or begin too late */
        struct span x = l->span[low + n / 2];
        bool outside = l->order > 0 ? x.last < s.first : x.first > s.last;
        low += outside ? n / 2 + 1 : 0;
        n = outside ? n - n / 2 - 1 : n / 2;
    }
    for (int n = l->n; n > 0;) {
        struct span x = l->span[high - n / 2];
        bool outside = l->order > 0 ? x.first > s.last : x.last < s.first;
        high -= outside ? n / 2 + 1 : 0;
        n = outside ? n - n / 2 - 1 : n / 2;
    }
    return (struct span){low, high};
}

/* Add the offsets of buffer B at which it would overlap buffer C, which is placed. Layers of B that take the same
 * place (those of one REST of numbers modulo PLACES) are one; so are pairs of layers as far apart, in equal frames. */
static void avoid(struct memory *m, struct ranges *r, int b, int c)
{
    const struct mpp_buffer *x = &m->prog->buffers[b], *y = &m->prog->buffers[c];
    const struct life *lx = &m->life[b], *ly = &m->life[c];
    if (!overlap(lx->hull, ly->hull))
        return;
    bool both = x->address == MPP_ADDR_STRIDED && y->address == MPP_ADDR_STRIDED, frames = both && x->stride == y->stride;
    if (both && !frames && x->cls == y->cls) { /* no frames: whole rows of places, which do not interleave */
        add_range(m, r, y->offset - lx->n * x->stride, y->offset + ly->n * y->stride);
        return;
    }
    int places = frames ? 1 : n_places(x, lx);
    for (int rest = 0; rest < places; rest++) {
        int n = frames ? lx->n + ly->n : ly->n;
        memset(m->marks, 0, (size_t)(n + 1) * sizeof *m->marks);
        for (int i = rest; i < lx->n; i += places) {
            struct span hit = alive_during(ly, lx->span[i]);
            if (hit.first > hit.last)
                continue;
            m->marks[hit.first + (frames ? lx->n - i : 0)]++;
            m->marks[hit.last + 1 + (frames ? lx->n - i : 0)]--;
        }
        for (int k = 0, marked = 0; k < n; k++) {
            marked += m->marks[k];
            int64_t apart = frames ? (k - lx->n) * x->stride : step_to(y, k) - step_to(x, rest);
            if (marked > 0)
                add_range(m, r, y->offset + apart - room(x), y->offset + apart + room(y));
        }
    }
}

/* The most workspace that is used while B lives. */
static int64_t workspace_during(const struct memory *m, int b)
{
    int64_t most = 0;
    const struct life *l = &m->life[b];
    for (int t = l->hull.first; t <= l->hull.last; t++) {
        if (m->workspace[t] <= most)
            continue;
        for (int i = 0; i < l->n; i++)
            if (overlap(l->span[i], (struct span){t, t})) {
                most = m->workspace[t];
                break;
            }
    }
    return most;
}

static int64_t lowest_fit(struct memory *m, struct ranges *r, int b, const int *placed, int n_placed, int64_t base)
{
    r->n = 0;
    for (int i = 0; i < n_placed; i++)
        avoid(m, r, b, placed[i]);
    bool sorted = true;
    for (int i = 1; i < r->n; i++)
        sorted = sorted && r->range[i - 1].low <= r->range[i].low;
    if (!sorted)
        qsort(r->range, (size_t)r->n, sizeof *r->range, by_low);
    int64_t at = base + workspace_during(m, b);
    for (int i = 0; i < r->n && r->range[i].low < at; i++)
        at = r->range[i].high > at ? r->range[i].high : at;
    return at;
}

static int list_places(struct memory *m, enum layout layout, bool by_life, struct place *places)
{
    struct mpp_lprog *prog = m->prog;
    bool *key = mpp_arena_array(m->arena, prog->n_buffers, bool);
    int n = 0;
    for (int c = 0; c < prog->n_classes; c++) {
        int64_t frame = layout == APART ? 0 : frame_bytes(m, c, layout == TIGHT_FRAMES, key);
        for (int b = 0; b < prog->n_buffers; b++)
            if (in_frame(m, b, c))
                prog->buffers[b].stride = frame > room(&prog->buffers[b]) ? frame : room(&prog->buffers[b]);
    }
    for (int b = 0; b < prog->n_buffers; b++) {
        const struct life *l = &m->life[b];
        if (l->n == 0 || l->always || l->hull.first > l->hull.last)
            continue;
        double weight = (double)(n_places(&prog->buffers[b], l) * room(&prog->buffers[b]));
        places[n++] = (struct place){b, m->rank[b] + key[b], by_life ? weight * (l->hull.last - l->hull.first + 1) : weight};
    }
    qsort(places, (size_t)n, sizeof *places, by_weight);
    return n;
}

/* Place all that doesn't live always, from BASE on; returns the end of the arena. */
static int64_t lay_out(struct memory *m, enum layout layout, bool by_life, int64_t base)
{
    struct mpp_lprog *prog = m->prog;
    struct place *places = mpp_arena_array(m->arena, prog->n_buffers, struct place);
    int n = list_places(m, layout, by_life, places);
    int *placed = mpp_arena_array(m->arena, n, int); /* by offset */
    struct ranges ranges = {0};
    int64_t end = base + prog->workspace_bytes;
    for (int i = 0; i < n; i++) {
        struct mpp_buffer *buf = &prog->buffers[places[i].buffer];
        buf->offset = lowest_fit(m, &ranges, places[i].buffer, placed, i, base);
        int at = i;
        for (; at > 0 && prog->buffers[placed[at - 1]].offset > buf->offset; at--)
            placed[at] = placed[at - 1];
        placed[at] = places[i].buffer;
        int64_t last = buf->offset + step_to(buf, n_places(buf, &m->life[places[i].buffer]) - 1);
        if (last + room(buf) > end) {
            end = last + room(buf);
            m->top = places[i].buffer;
        }
    }
    return end;
}

static int64_t lay_out_always(struct memory *m)
{
    static const enum mpp_buffer_kind order[] = {MPP_BUF_PARAM, MPP_BUF_STATE, MPP_BUF_INPUT, MPP_BUF_RING};
    int64_t at = 0;
    for (size_t k = 0; k < sizeof order / sizeof order[0]; k++)
        for (int b = 0; b < m->prog->n_buffers; b++) {
            struct mpp_buffer *buf = &m->prog->buffers[b];
            if (m->life[b].always && m->life[b].n > 0 && buf->kind == order[k]) {
                buf->offset = at;
                at += m->life[b].n * room(buf);
            }
        }
    return at;
}

struct offsets {                  /* the best layout so far */
    int64_t end, *offset, *stride;
};

static void try_layout(struct memory *m, enum layout layout, bool by_life, struct offsets *best)
{
    struct mpp_lprog *prog = m->prog;
    int64_t end = lay_out(m, layout, by_life, prog->workspace_offset);
    if (best->end >= 0 && end >= best->end)
        return;
    best->end = end;
    for (int b = 0; b < prog->n_buffers; b++) {
        best->offset[b] = prog->buffers[b].offset;
        best->stride[b] = prog->buffers[b].stride;
    }
}

static void lay_out_best(struct memory *m)
{
    struct mpp_lprog *prog = m->prog;
    int64_t enough = prog->memory.live_bound_bytes + prog->memory.live_bound_bytes / 64;
    struct offsets best = {-1, mpp_arena_array(m->arena, prog->n_buffers, int64_t),
                           mpp_arena_array(m->arena, prog->n_buffers, int64_t)};
    for (int t = 0; t < m->n_times; t++)
        if (m->workspace[t] > prog->workspace_bytes)
            prog->workspace_bytes = m->workspace[t];
    prog->workspace_offset = lay_out_always(m);
    m->rank = mpp_arena_array(m->arena, prog->n_buffers, int);
    int64_t work = 0, layers = 1; /* buffers against buffers, layer by layer */
    for (int c = 0; c < prog->n_classes; c++)
        layers = prog->classes[c].count > layers ? prog->classes[c].count : layers;
    m->marks = mpp_arena_array(m->arena, 2 * layers + 1, int);
    int64_t work_each = layers * prog->n_buffers * prog->n_buffers / 2;
    for (int k = 0; k < 2 * N_LAYOUTS && (k < N_LAYOUTS || work < MAX_WORK) && (k == 0 || best.end > enough); k++) {
        try_layout(m, (enum layout)(k % N_LAYOUTS), k >= N_LAYOUTS, &best);
        work += work_each;
    }
    for (int k = 0; k < N_LAYOUTS * MAX_TRIES && work < MAX_WORK && best.end > enough; k++) {
        if (k % MAX_TRIES == 0) {
            memset(m->rank, 0, (size_t)prog->n_buffers * sizeof *m->rank);
            try_layout(m, (enum layout)(k / MAX_TRIES), false, &best);
        }
        m->rank[m->top] += 2;
        work += work_each;
        try_layout(m, (enum layout)(k / MAX_TRIES), false, &best);
    }
    prog->arena_bytes = best.end;
    for (int b = 0; b < prog->n_buffers; b++) {
        prog->buffers[b].offset = best.offset[b];
        prog->buffers[b].stride = best.stride[b];
    }
}

void mpp_memory_plan(const struct mpp_graph *g, const struct mpp_stage *stage, int64_t micro_batches,
                     struct mpp_lprog *prog)
{
    struct memory m = {.arena = mpp_arena_scratch(g->arena), .g = g, .stage = stage, .prog = prog};
    m.life = mpp_arena_array(m.arena, prog->n_buffers, struct life);
    for (int b = 0; b < prog->n_buffers; b++) {
        struct mpp_buffer *buf = &prog->buffers[b];
        buf->slots = buf->kind == MPP_BUF_RING ? buf->slots : 1;
        bool owns = buf->alias < 0 && buf->address != MPP_ADDR_CARRIED;
        m.life[b].n = !owns ? 0 : buf->cls < 0 ? 1 : prog->classes[buf->cls].count;
        m.life[b].span = mpp_arena_array(m.arena, m.life[b].n, struct span);
        for (int i = 0; i < m.life[b].n; i++)
            m.life[b].span[i] = (struct span){0, -1};
    }
    count_times(&m);
    m.workspace = mpp_arena_array(m.arena, m.n_times, int64_t);
    find_lives(&m);
    find_slots(&m);
    extend_lives(&m, micro_batches);
    choose_addresses(&m);
    account(&m);
    lay_out_best(&m);
    prog->memory.arena_bytes = prog->arena_bytes;
    prog->memory.gaps = prog->arena_bytes - prog->memory.live_bound_bytes;
    mpp_arena_free(m.arena);
}
