/* prefetch.c - gathers of parameters begin before they are needed.
 *
 * The gather of a parameter begins right before the last matrix product that runs before it, in the same
 * body or among the same plain instructions, and is awaited where it stood. In a loop those that no product of their own
 * layer precedes begin before the last product of the layer before, where the loop goes on; those of the first layer before
 * the loop. Layers stay alike: what a body does for the next one names that one's buffers (`ahead`).
 *
 * Gathers end in the order in which they begin, so that an await says how many of the last may still be under way: the fewest
 * that can be, in the first micro-batch (with what is kept for the step) and in later ones, in the last layer and in others. */
#include <assert.h>
#include <limits.h>
#include <string.h>

#include "codegen/lower_internal.h"
#include "ir/op.h"

struct prefetch {
    struct mpp_arena *arena;
    const struct mpp_graph *g;
    struct mpp_lprog *prog;
    bool ahead;                   /* across layers, too */
};

static bool is_product(const struct prefetch *f, const struct mpp_instr *in)
{
    if (in->kind != MPP_INSTR_COMPUTE)
        return false;
    const struct mpp_group *group = &f->g->groups[in->group];
    for (int k = 0; k < group->n_ops; k++)
        if (mpp_op_info(f->g->ops[group->ops[k]].kind)->cls == MPP_CLASS_CONTRACTION)
            return true;
    return false;
}

/* Of a parameter, which changes in the update only: its memory can be read at any time before. */
static bool is_gather(const struct prefetch *f, const struct mpp_instr *in)
{
    if (in->kind != MPP_INSTR_STEP || in->step->kind != MPP_STEP_ALL_GATHER || in->gradient)
        return false;
    const struct mpp_buffer *b = f->prog->buffers, *to = &b[in->out[0].buffer];
    return to->kind == MPP_BUF_COPY && to->alias < 0 && to->address != MPP_ADDR_CARRIED
           && b[mpp_buffer_root(b, in->in[0].buffer)].kind == MPP_BUF_PARAM;
}

/* The last product of LIST before AT; -1. */
static int last_product(const struct prefetch *f, const struct mpp_instr *const *list, int at)
{
    while (at > 0 && !is_product(f, list[at - 1]))
        at--;
    return at - 1;
}

/* Gather IN in a loop over CLS: of its layer's own parameter, into its layer's memory? */
static bool is_layers(const struct prefetch *f, const struct mpp_instr *in, int cls)
{
    const struct mpp_buffer *b = f->prog->buffers;
    return in->in[0].layer < 0 && in->out[0].layer < 0 && b[in->in[0].buffer].cls == cls
           && b[in->out[0].buffer].cls == cls && b[in->in[0].buffer].address != MPP_ADDR_CARRIED;
}

static struct mpp_instr begin_of(const struct mpp_instr *gather, int ahead)
{
    struct mpp_instr in = *gather;
    in.prefetch = true;
    in.ahead = ahead;
    return in;
}

/* The await of GATHER; LAST, an await right before it in OUT, takes it over: NULL else. */
static struct mpp_instr await_of(const struct prefetch *f, const struct mpp_instr *gather, const struct mpp_instr *last)
{
    int n = last ? last->n_in : 0;
    struct mpp_instr in = {.kind = MPP_INSTR_AWAIT, .group = -1, .epilogue = -1, .transfer = -1, .n_in = n + 1, .once = gather->once,
                           .under_way = INT_MAX, .under_way_last = INT_MAX, .in = mpp_arena_array(f->arena, n + 1, struct mpp_bufref)};
    for (int i = 0; i < n; i++)
        in.in[i] = last->in[i];
    in.in[n] = gather->out[0];
    return in;
}

/* Gather I begins before instruction TO[i] of LIST [n], or -1: where it stands; AHEAD[i] layers further on. The new list. */
static struct mpp_instr *rebuild(const struct prefetch *f, const struct mpp_instr *const *list, int n, const int *to,
                                 const int *ahead, int *out_n)
{
    struct mpp_instr *out = mpp_arena_array(f->arena, 2 * n, struct mpp_instr);
    int m = 0;
    for (int i = 0; i < n; i++) {
        for (int pass = 0; pass < 2; pass++) /* its own layer's first: they are needed first */
            for (int k = 0; k < n && is_product(f, list[i]); k++)
                if (to[k] == i && (ahead[k] != 0) == pass)
                    out[m++] = begin_of(list[k], ahead[k]);
        if (to[i] < 0) {
            out[m++] = *list[i];
            continue;
        }
        bool joins = m > 0 && out[m - 1].kind == MPP_INSTR_AWAIT && out[m - 1].once == list[i]->once;
        struct mpp_instr wait = await_of(f, list[i], joins ? &out[m - 1] : NULL);
        out[joins ? m - 1 : m++] = wait;
    }
    *out_n = m;
    return out;
}

/* Gathers of ITEM's body. FIRST_OUT [N_FIRST_OUT]: those of the first layer of the loop that begin before it. */
static void move_in_body(const struct prefetch *f, const struct mpp_pitem *item, struct mpp_instr **first_out, int *n_first_out)
{
    struct mpp_body *body = &f->prog->bodies[item->body];
    const struct mpp_layer_class *c = &f->prog->classes[item->cls];
    int n = body->n_instrs, first = c->first + (item->descending ? c->count - 1 : 0);
    const struct mpp_instr **list = mpp_arena_array(f->arena, n, const struct mpp_instr *);
    int *to = mpp_arena_array(f->arena, n, int), *ahead = mpp_arena_array(f->arena, n, int);
    for (int i = 0; i < n; i++)
        list[i] = &body->instrs[i];
    int last = last_product(f, list, n);
    *first_out = mpp_arena_array(f->arena, n, struct mpp_instr);
    *n_first_out = 0;
    for (int i = 0; i < n; i++) {
        to[i] = is_gather(f, list[i]) ? last_product(f, list, i) : -1;
        if (to[i] >= 0 || !f->ahead || last < 0 || c->count < 2 || !is_gather(f, list[i]) || !is_layers(f, list[i], item->cls))
            continue;
        to[i] = last;
        ahead[i] = item->descending ? -1 : 1;
        struct mpp_instr begin = begin_of(list[i], 0);
        begin.in = mpp_arena_memdup(f->arena, begin.in, sizeof *begin.in);
        begin.out = mpp_arena_memdup(f->arena, begin.out, sizeof *begin.out);
        begin.in[0].layer = begin.out[0].layer = first;
        (*first_out)[(*n_first_out)++] = begin;
    }
    body->instrs = rebuild(f, list, n, to, ahead, &body->n_instrs);
}

/* Plain items FIRST .. END - 1 of S, of one chunk, to ITEMS; returns how many. */
static int move_plain(const struct prefetch *f, const struct mpp_section *s, int first, int end, struct mpp_pitem *items)
{
    int n = end - first, m;
    const struct mpp_instr **list = mpp_arena_array(f->arena, n, const struct mpp_instr *);
    int *to = mpp_arena_array(f->arena, n, int), *ahead = mpp_arena_array(f->arena, n, int);
    for (int i = 0; i < n; i++)
        list[i] = &s->items[first + i].instr;
    for (int i = 0; i < n; i++)
        to[i] = is_gather(f, list[i]) ? last_product(f, list, i) : -1;
    const struct mpp_instr *moved = rebuild(f, list, n, to, ahead, &m);
    for (int i = 0; i < m; i++)
        items[i] = (struct mpp_pitem){.chunk = s->items[first].chunk, .instr = moved[i]};
    return m;
}

/* What the loop behind ITEMS [n] begins with goes before the last product among the plain ones at their end. */
static int insert_first(const struct prefetch *f, const struct mpp_instr *begin, int n_begin, int chunk, struct mpp_pitem *items, int n)
{
    int at = n;
    for (int i = n - 1; i >= 0 && !items[i].loop && items[i].chunk == chunk; i--)
        if (is_product(f, &items[i].instr)) {
            at = i;
            break;
        }
    memmove(&items[at + n_begin], &items[at], (size_t)(n - at) * sizeof *items);
    for (int i = 0; i < n_begin; i++)
        items[at + i] = (struct mpp_pitem){.chunk = chunk, .instr = begin[i]};
    return n + n_begin;
}

static void move_in_section(const struct prefetch *f, struct mpp_section *s)
{
    int room = 1, n = 0;
    for (int i = 0; i < s->n_items; i++)
        room += s->items[i].loop ? f->prog->bodies[s->items[i].body].n_instrs + 1 : 2;
    struct mpp_pitem *items = mpp_arena_array(f->arena, room, struct mpp_pitem);
    for (int i = 0; i < s->n_items;) {
        int end = i;
        while (end < s->n_items && !s->items[end].loop && s->items[end].chunk == s->items[i].chunk)
            end++;
        if (end > i) {
            n += move_plain(f, s, i, end, &items[n]);
            i = end;
            continue;
        }
        struct mpp_instr *first;
        int n_first;
        move_in_body(f, &s->items[i], &first, &n_first);
        n = insert_first(f, first, n_first, s->items[i].chunk, items, n);
        items[n++] = s->items[i++];
    }
    s->items = items;
    s->n_items = n;
}

/* ---- how many may be under way ---- */

struct walk {
    const struct prefetch *f;
    bool first;                   /* micro-batch */
    size_t cap;
    int n;
    struct mpp_bufref *begun;     /* [n] what is gathered into, in the order of the beginnings */
};

/* LAST: it runs in a loop's last iteration. Outside of loops both counts are the same. */
static void step_over(struct walk *w, struct mpp_instr *in, int layer, const struct mpp_layer_class *c, bool last)
{
    if ((in->once && !w->first) || (!in->prefetch && in->kind != MPP_INSTR_AWAIT))
        return;
    layer += in->ahead;
    if (c && (layer < c->first || layer >= c->first + c->count))
        return;
    struct mpp_bufref *ref = in->prefetch ? in->out : in->in;
    for (int i = 0; i < (in->prefetch ? in->n_out : in->n_in); i++) {
        bool layered = w->f->prog->buffers[ref[i].buffer].cls >= 0;
        struct mpp_bufref x = {ref[i].buffer, !layered ? -1 : ref[i].layer < 0 ? layer : ref[i].layer};
        int at = w->n - 1;
        if (in->prefetch) {
            w->begun = mpp_arena_grow(w->f->arena, w->begun, &w->cap, (size_t)w->n + 1, sizeof *w->begun);
            w->begun[w->n++] = x;
            continue;
        }
        while (at >= 0 && (w->begun[at].buffer != x.buffer || w->begun[at].layer != x.layer))
            at--;
        assert(at >= 0);
        int after = w->n - 1 - at;
        if (!c || !last)
            in->under_way = after < in->under_way ? after : in->under_way;
        if (!c || last)
            in->under_way_last = after < in->under_way_last ? after : in->under_way_last;
    }
}

static void count_under_way(const struct prefetch *f, const struct mpp_section *s, int chunk, bool first)
{
    struct walk w = {.f = f, .first = first};
    for (int i = 0; i < s->n_items; i++) {
        if (s->items[i].chunk != chunk)
            continue;
        if (!s->items[i].loop) {
            step_over(&w, &s->items[i].instr, -1, NULL, false);
            continue;
        }
        const struct mpp_layer_class *c = &f->prog->classes[s->items[i].cls];
        const struct mpp_body *body = &f->prog->bodies[s->items[i].body];
        for (int k = 0; k < c->count; k++)
            for (int j = 0; j < body->n_instrs; j++)
                step_over(&w, &body->instrs[j], c->first + (s->items[i].descending ? c->count - 1 - k : k), c, k == c->count - 1);
    }
}

bool mpp_prefetch(const struct mpp_graph *g, struct mpp_arena *arena, bool ahead, struct mpp_lprog *prog)
{
    struct prefetch f = {.arena = arena, .g = g, .prog = prog, .ahead = ahead};
    bool any = false;
    for (int phase = MPP_PHASE_FORWARD; phase <= MPP_PHASE_BACKWARD; phase++) {
        struct mpp_section *s = &prog->section[phase];
        move_in_section(&f, s);
        for (int c = 0; c < prog->n_chunks; c++) {
            count_under_way(&f, s, c, true);
            count_under_way(&f, s, c, false);
        }
        for (int i = 0; i < s->n_items; i++) {
            int n = s->items[i].loop ? prog->bodies[s->items[i].body].n_instrs : 1;
            for (int j = 0; j < n; j++)
                any = any || (s->items[i].loop ? prog->bodies[s->items[i].body].instrs[j].prefetch : s->items[i].instr.prefetch);
        }
    }
    return any;
}
