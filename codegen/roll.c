/* roll.c - repeated layers that are planned alike become loops.
 *
 * The flat program is cut into runs: maximal stretches of instructions of one layer in one phase. A layer is the
 * list of its runs. Its instructions name buffers of its own (numbered by first appearance) and foreign ones. Two
 * layers are alike when their runs are equal up to that numbering; a stretch of alike layers is a class when each
 * foreign buffer is the same for all of them, or the same own buffer of the layer before (all but the first), or
 * of the layer after (all but the last). */
#include <assert.h>
#include <string.h>

#include "codegen/lower_internal.h"
#include "ir/op.h"

struct run {
    enum mpp_phase phase;
    int first, end;               /* flats */
};

struct layer {
    int repeat, index;
    int n_runs, *runs;
    int n_own, *own;              /* flat buffers */
    int n_foreign, *foreign;
    int cls;
};

struct roll {
    const struct mpp_flat_program *p;
    struct mpp_arena *arena;
    struct mpp_lprog *prog;
    int n_runs;
    struct run *runs;
    int n_layers;
    struct layer *layers;         /* by repeat, then index */
    int *layer_of;                /* [n_buffers] layer, -1 */
    int *slot;                    /* [n_buffers] number among its layer's own; -1 */
    int *final_buffer;            /* [n_buffers] buffer of prog (of the class, for layered ones) */
    int **carried;                /* [n_layers of a class's first] foreign slot -> CARRIED buffer, -1: absolute */
};

/* ---- runs and layers ---- */

static void find_runs(struct roll *r)
{
    const struct mpp_flat_program *p = r->p;
    r->runs = mpp_arena_array(r->arena, p->n_flats, struct run);
    for (int i = 0; i < p->n_flats; i++) {
        const struct mpp_flat *f = &p->flats[i], *before = &p->flats[i ? i - 1 : 0];
        if (i == 0 || f->phase != before->phase || f->repeat != before->repeat || f->index != before->index
            || f->chunk != before->chunk || f->instr.gradient != before->instr.gradient)
            r->runs[r->n_runs++] = (struct run){f->phase, i, i};
        r->runs[r->n_runs - 1].end = i + 1;
    }
}

static int find_layer(const struct roll *r, int repeat, int index)
{
    for (int i = 0; repeat >= 0 && i < r->n_layers; i++)
        if (r->layers[i].repeat == repeat && r->layers[i].index == index)
            return i;
    return -1;
}

static void find_layers(struct roll *r)
{
    const struct mpp_flat_program *p = r->p;
    int max_repeat = -1, max_index = -1;
    for (int b = 0; b < p->n_buffers; b++) {
        if (p->repeat[b] > max_repeat)
            max_repeat = p->repeat[b];
        if (p->index[b] > max_index)
            max_index = p->index[b];
    }
    for (int i = 0; i < p->n_flats; i++) {
        if (p->flats[i].repeat > max_repeat)
            max_repeat = p->flats[i].repeat;
        if (p->flats[i].index > max_index)
            max_index = p->flats[i].index;
    }
    r->layers = mpp_arena_array(r->arena, (max_repeat + 1) * (max_index + 1), struct layer);
    int *at = mpp_arena_array(r->arena, (max_repeat + 1) * (max_index + 1), int);
    for (int rep = 0; rep <= max_repeat; rep++)
        for (int i = 0; i <= max_index; i++) {
            r->layers[r->n_layers] = (struct layer){.repeat = rep, .index = i, .cls = -1};
            at[rep * (max_index + 1) + i] = r->n_layers++;
        }
    r->layer_of = mpp_arena_array(r->arena, p->n_buffers, int);
    r->slot = mpp_arena_array(r->arena, p->n_buffers, int);
    for (int b = 0; b < p->n_buffers; b++) {
        r->layer_of[b] = p->repeat[b] < 0 ? -1 : at[p->repeat[b] * (max_index + 1) + p->index[b]];
        r->slot[b] = -1;
        if (r->layer_of[b] >= 0)
            r->layers[r->layer_of[b]].n_own++;
    }
    for (int i = 0; i < r->n_layers; i++) {
        r->layers[i].own = mpp_arena_array(r->arena, r->layers[i].n_own, int);
        r->layers[i].n_own = 0;
    }
}

static int foreign_slot(const struct layer *l, int buffer)
{
    for (int i = 0; i < l->n_foreign; i++)
        if (l->foreign[i] == buffer)
            return i;
    return -1;
}

static void note_buffer(struct roll *r, int li, size_t *cap, int b)
{
    struct layer *l = &r->layers[li];
    for (; b >= 0; b = r->p->buffers[b].alias) {
        if (r->layer_of[b] == li) {
            if (r->slot[b] < 0) {
                r->slot[b] = l->n_own;
                l->own[l->n_own++] = b;
            }
        } else if (foreign_slot(l, b) < 0) {
            l->foreign = mpp_arena_grow(r->arena, l->foreign, cap, (size_t)l->n_foreign + 1, sizeof *l->foreign);
            l->foreign[l->n_foreign++] = b;
        }
    }
}

static void number_buffers(struct roll *r)
{
    const struct mpp_flat_program *p = r->p;
    for (int li = 0; li < r->n_layers; li++) {
        struct layer *l = &r->layers[li];
        size_t cap = 0, cap_runs = 0;
        for (int q = 0; q < r->n_runs; q++) {
            const struct mpp_flat *f = &p->flats[r->runs[q].first];
            if (f->repeat != l->repeat || f->index != l->index)
                continue;
            l->runs = mpp_arena_grow(r->arena, l->runs, &cap_runs, (size_t)l->n_runs + 1, sizeof *l->runs);
            l->runs[l->n_runs++] = q;
            for (int i = r->runs[q].first; i < r->runs[q].end; i++) {
                const struct mpp_instr *in = &p->flats[i].instr;
                for (int k = 0; k < in->n_in; k++)
                    note_buffer(r, li, &cap, in->in[k].buffer);
                for (int k = 0; k < in->n_out; k++)
                    note_buffer(r, li, &cap, in->out[k].buffer);
            }
        }
    }
    for (int b = 0; b < p->n_buffers; b++) {    /* those only others mention */
        struct layer *l = r->layer_of[b] < 0 ? NULL : &r->layers[r->layer_of[b]];
        if (l && r->slot[b] < 0) {
            r->slot[b] = l->n_own;
            l->own[l->n_own++] = b;
        }
    }
}

/* ---- are two layers alike? ---- */

static bool same_attr(const struct mpp_attr *a, const struct mpp_attr *b)
{
    if (strcmp(a->name, b->name) || a->type != b->type)
        return false;
    if (!strcmp(a->name, "stream"))
        return true;              /* counted by layer */
    if (a->i != b->i || memcmp(&a->f, &b->f, sizeof a->f) || a->n != b->n)
        return false;
    if ((a->s || b->s) && (!a->s || !b->s || strcmp(a->s, b->s)))
        return false;
    for (int i = 0; i < a->n; i++) {
        if (a->type == MPP_ATTR_INTS && a->ints[i] != b->ints[i])
            return false;
        if (a->type == MPP_ATTR_DIMS && a->dims[i].size != b->dims[i].size)
            return false;
    }
    return true;
}

/* Where in its group an op's input comes from: an outside operand (>= 0) or an op inside (< -1). */
static int wire(const struct mpp_graph *g, const struct mpp_group *grp, mpp_id t)
{
    if (t < 0)
        return -1;
    for (int i = 0; i < grp->n_in; i++)
        if (grp->in[i] == t)
            return i;
    int inside = -2;
    for (int k = 0; k < grp->n_ops; k++)
        for (int o = 0; o < g->ops[grp->ops[k]].n_out; o++, inside--)
            if (g->ops[grp->ops[k]].out[o] == t)
                return inside;
    return -1;
}

static bool same_rule(const struct mpp_rule *a, const struct mpp_rule *b)
{
    if (a->n_factors != b->n_factors || a->n_in != b->n_in || a->n_out != b->n_out || a->linear != b->linear)
        return false;
    for (int f = 0; f < a->n_factors; f++)
        if (a->factor[f].kind != b->factor[f].kind || a->factor[f].size.size != b->factor[f].size.size
            || a->factor[f].size.per_batch != b->factor[f].size.per_batch)
            return false;
    for (int o = 0; o < a->n_in + a->n_out; o++) {
        if (a->operand[o].n_dims != b->operand[o].n_dims)
            return false;
        for (int d = 0; d < a->operand[o].n_dims; d++)
            if (a->operand[o].dim[d].n != b->operand[o].dim[d].n
                || memcmp(a->operand[o].dim[d].factor, b->operand[o].dim[d].factor, (size_t)a->operand[o].dim[d].n))
                return false;
    }
    return true;
}

static bool same_group(const struct mpp_graph *g, mpp_id ia, mpp_id ib)
{
    if (ia < 0 || ib < 0)
        return ia == ib;
    const struct mpp_group *a = &g->groups[ia], *b = &g->groups[ib];
    if (a->n_ops != b->n_ops || a->n_in != b->n_in || a->n_out != b->n_out || !same_rule(a->rule, b->rule))
        return false;
    for (int k = 0; k < a->n_ops; k++) {
        const struct mpp_gop *x = &g->ops[a->ops[k]], *y = &g->ops[b->ops[k]];
        if (x->kind != y->kind || x->n_in != y->n_in || x->n_out != y->n_out || x->attrs.n != y->attrs.n)
            return false;
        for (int i = 0; i < x->n_in; i++)
            if (wire(g, a, x->in[i]) != wire(g, b, y->in[i]))
                return false;
        for (int i = 0; i < x->attrs.n; i++)
            if (!same_attr(&x->attrs.attr[i], &y->attrs.attr[i]))
                return false;
    }
    return true;
}

static bool same_step(const struct mpp_reshard_step *a, const struct mpp_reshard_step *b)
{
    if (!a || !b)
        return a == b;
    return a->kind == b->kind && a->mask == b->mask && a->dim == b->dim && a->to_dim == b->to_dim
           && mpp_sharding_equal(a->from, b->from) && mpp_sharding_equal(a->to, b->to);
}

static bool same_buffer_number(const struct roll *r, int la, int ba, int lb, int bb)
{
    if (ba < 0 || bb < 0)
        return ba == bb;
    bool own_a = r->layer_of[ba] == la, own_b = r->layer_of[bb] == lb;
    if (own_a != own_b)
        return false;
    return own_a ? r->slot[ba] == r->slot[bb]
                 : foreign_slot(&r->layers[la], ba) == foreign_slot(&r->layers[lb], bb);
}

static bool same_instr(const struct roll *r, int la, const struct mpp_instr *a, int lb, const struct mpp_instr *b)
{
    if (a->kind != b->kind || a->n_in != b->n_in || a->n_out != b->n_out || a->gradient != b->gradient
        || a->once != b->once || a->transfer != b->transfer || a->begins != b->begins || !same_step(a->step, b->step) || !same_group(r->p->g, a->group, b->group)
        || !same_group(r->p->g, a->epilogue, b->epilogue)
        || memcmp(a->split.axis, b->split.axis, sizeof a->split.axis))
        return false;
    for (int i = 0; i < a->n_in; i++)
        if (!same_buffer_number(r, la, a->in[i].buffer, lb, b->in[i].buffer))
            return false;
    for (int i = 0; i < a->n_out; i++)
        if (a->mode[i] != b->mode[i] || !same_buffer_number(r, la, a->out[i].buffer, lb, b->out[i].buffer))
            return false;
    return true;
}

static bool alike(const struct roll *r, int la, int lb)
{
    const struct layer *a = &r->layers[la], *b = &r->layers[lb];
    const struct mpp_flat_program *p = r->p;
    if (a->n_runs != b->n_runs || a->n_own != b->n_own || a->n_foreign != b->n_foreign)
        return false;
    for (int q = 0; q < a->n_runs; q++) {
        const struct run *x = &r->runs[a->runs[q]], *y = &r->runs[b->runs[q]];
        if (x->phase != y->phase || x->end - x->first != y->end - y->first)
            return false;
        for (int i = 0; i < x->end - x->first; i++)
            if (!same_instr(r, la, &p->flats[x->first + i].instr, lb, &p->flats[y->first + i].instr))
                return false;
    }
    for (int s = 0; s < a->n_own; s++) {
        const struct mpp_buffer *x = &p->buffers[a->own[s]], *y = &p->buffers[b->own[s]];
        if (x->bytes != y->bytes || x->kind != y->kind || !mpp_sharding_equal(x->sharding, y->sharding)
            || !same_buffer_number(r, la, x->alias, lb, y->alias))
            return false;
    }
    return true;
}

/* ---- classes ---- */

static bool is_neighbour(const struct roll *r, int li, int foreign, int step, int slot)
{
    int b = r->layers[li].foreign[foreign];
    int other = r->layer_of[b];
    return other >= 0 && r->layers[other].repeat == r->layers[li].repeat
           && r->layers[other].index == r->layers[li].index + step && (slot < 0 || r->slot[b] == slot);
}

/* How the layers FIRST..LAST see foreign buffer F: 0 the same for all, -1 / +1 the neighbour's; 2: neither. */
static int foreign_rule(const struct roll *r, int first, int last, int f)
{
    bool same = true, before = last > first, after = last > first;
    for (int li = first; li <= last; li++)
        same = same && r->layers[li].foreign[f] == r->layers[first].foreign[f];
    if (same)
        return 0;
    int slot_before = is_neighbour(r, last, f, -1, -1) ? r->slot[r->layers[last].foreign[f]] : -1;
    int slot_after = is_neighbour(r, first, f, 1, -1) ? r->slot[r->layers[first].foreign[f]] : -1;
    for (int li = first; li <= last; li++) {
        before = before && (li == first || (slot_before >= 0 && is_neighbour(r, li, f, -1, slot_before)));
        after = after && (li == last || (slot_after >= 0 && is_neighbour(r, li, f, 1, slot_after)));
    }
    return before ? -1 : after ? 1 : 2;
}

static int64_t stream_of(const struct mpp_graph *g, mpp_id group)
{
    for (int k = 0; group >= 0 && k < g->groups[group].n_ops; k++) {
        const struct mpp_attr *a = mpp_attrs_find(&g->ops[g->groups[group].ops[k]].attrs, "stream");
        if (a)
            return a->i;
    }
    return 0;
}

static int64_t stream_step(const struct roll *r, int la, int lb, int q, int i)
{
    const struct mpp_flat_program *p = r->p;
    return stream_of(p->g, p->flats[r->runs[r->layers[lb].runs[q]].first + i].instr.group)
           - stream_of(p->g, p->flats[r->runs[r->layers[la].runs[q]].first + i].instr.group);
}

static bool streams_even(const struct roll *r, int first, int last)
{
    for (int q = 0; q < r->layers[first].n_runs; q++) {
        const struct run *run = &r->runs[r->layers[first].runs[q]];
        for (int i = 0; i < run->end - run->first; i++)
            for (int li = first + 1; li < last; li++)
                if (stream_step(r, li, li + 1, q, i) != stream_step(r, first, first + 1, q, i))
                    return false;
    }
    return true;
}

/* Do the q-th runs of the layers stand next to each other, in rising or falling order of layers? */
static bool contiguous(const struct roll *r, int first, int last)
{
    for (int q = 0; q < r->layers[first].n_runs; q++) {
        int step = r->layers[first + 1].runs[q] - r->layers[first].runs[q];
        if (step != 1 && step != -1)
            return false;
        for (int li = first; li < last; li++)
            if (r->layers[li + 1].runs[q] - r->layers[li].runs[q] != step)
                return false;
    }
    return true;
}

static bool is_class(const struct roll *r, int first, int last)
{
    for (int f = 0; f < r->layers[first].n_foreign; f++)
        if (foreign_rule(r, first, last, f) == 2)
            return false;
    return streams_even(r, first, last);
}

static void add_class(struct roll *r, int first, int last)
{
    struct mpp_lprog *prog = r->prog;
    for (int li = first; li <= last; li++)
        r->layers[li].cls = prog->n_classes;
    const char *repeat_name = "layer";
    for (int i = 0; i < r->p->g->n_ops; i++)
        if (r->p->g->ops[i].repeat == r->layers[first].repeat) {
            repeat_name = r->p->g->ops[i].repeat_name;
            break;
        }
    prog->classes[prog->n_classes++] = (struct mpp_layer_class){
        .name = repeat_name, .repeat = r->layers[first].repeat, .first = r->layers[first].index, .count = last - first + 1};
}

static void find_classes(struct roll *r)
{
    struct mpp_lprog *prog = r->prog;
    prog->classes = mpp_arena_array(r->arena, r->n_layers, struct mpp_layer_class);
    for (int first = 0, last; first < r->n_layers; first = last + 1) {
        last = first;
        if (r->layers[first].n_runs == 0 && r->layers[first].n_own == 0)
            continue;
        while (last + 1 < r->n_layers && r->layers[last + 1].repeat == r->layers[first].repeat
               && alike(r, first, last + 1) && is_class(r, first, last + 1))
            last++;
        if (last > first && !contiguous(r, first, last))
            last = first;
        add_class(r, first, last);
    }
    for (int c = 0; c < prog->n_classes; c++) {
        int same = 0;
        for (int d = 0; d < prog->n_classes; d++)
            same += prog->classes[d].repeat == prog->classes[c].repeat;
        if (same > 1) {
            int end = prog->classes[c].first + prog->classes[c].count - 1;
            prog->classes[c].name = prog->classes[c].count == 1
                ? mpp_arena_printf(r->arena, "%s_%d", prog->classes[c].name, end)
                : mpp_arena_printf(r->arena, "%s_%d_to_%d", prog->classes[c].name, prog->classes[c].first, end);
        }
    }
}

/* ---- the rolled program ---- */

static int first_layer(const struct roll *r, int cls)
{
    int li = 0;
    while (r->layers[li].cls != cls)
        li++;
    return li;
}

/* A flat buffer, seen from anywhere. */
static struct mpp_bufref absolute(const struct roll *r, int b)
{
    if (b < 0)
        return (struct mpp_bufref){-1, -1};
    return (struct mpp_bufref){r->final_buffer[b], r->layer_of[b] < 0 ? -1 : r->layers[r->layer_of[b]].index};
}

/* A flat buffer of layer LI's instructions, seen from the body of its class. */
static struct mpp_bufref from_body(const struct roll *r, int li, int b)
{
    if (b < 0 || r->layer_of[b] == li)
        return (struct mpp_bufref){b < 0 ? -1 : r->final_buffer[b], -1};
    int carried = r->carried[li][foreign_slot(&r->layers[li], b)];
    return carried >= 0 ? (struct mpp_bufref){carried, -1} : absolute(r, b);
}

static int append_buffer(struct roll *r, const struct mpp_buffer *b)
{
    r->prog->buffers[r->prog->n_buffers] = *b;
    return r->prog->n_buffers++;
}

static void make_buffers(struct roll *r)
{
    const struct mpp_flat_program *p = r->p;
    struct mpp_lprog *prog = r->prog;
    int n_carried = 0;
    for (int li = 0; li < r->n_layers; li++)
        n_carried += r->layers[li].n_foreign;
    prog->buffers = mpp_arena_array(r->arena, p->n_buffers + n_carried, struct mpp_buffer);
    r->final_buffer = mpp_arena_array(r->arena, p->n_buffers, int);
    for (int b = 0; b < p->n_buffers; b++)
        if (r->layer_of[b] < 0)
            r->final_buffer[b] = append_buffer(r, &p->buffers[b]);
    for (int c = 0; c < prog->n_classes; c++) {
        int first = first_layer(r, c);
        for (int s = 0; s < r->layers[first].n_own; s++) {
            int id = append_buffer(r, &p->buffers[r->layers[first].own[s]]);
            prog->buffers[id].cls = c;
            for (int li = first; li < first + prog->classes[c].count; li++)
                r->final_buffer[r->layers[li].own[s]] = id;
        }
    }
}

static void make_carried(struct roll *r)
{
    const struct mpp_flat_program *p = r->p;
    struct mpp_lprog *prog = r->prog;
    r->carried = mpp_arena_array(r->arena, r->n_layers, int *);
    for (int c = 0; c < prog->n_classes; c++) {
        int first = first_layer(r, c), last = first + prog->classes[c].count - 1;
        const struct layer *l = &r->layers[first];
        r->carried[first] = mpp_arena_array(r->arena, l->n_foreign, int);
        for (int f = 0; f < l->n_foreign; f++) {
            int step = foreign_rule(r, first, last, f);
            r->carried[first][f] = -1;
            if (step == 0)
                continue;
            int end = step < 0 ? first : last, inner = step < 0 ? last : first;
            struct mpp_buffer b = p->buffers[l->foreign[f]];
            b.cls = c;
            b.address = MPP_ADDR_CARRIED;
            b.alias = -1;
            b.carry_in = absolute(r, r->layers[end].foreign[f]);
            b.carry_from = r->final_buffer[r->layers[inner].foreign[f]];
            b.carry_step = step;
            b.name = mpp_arena_printf(r->arena, "%s_%s", step < 0 ? "before" : "after", prog->buffers[b.carry_from].name);
            r->carried[first][f] = append_buffer(r, &b);
        }
    }
}

static void fix_aliases(struct roll *r)
{
    for (int b = 0; b < r->p->n_buffers; b++) {
        int alias = r->p->buffers[b].alias;
        if (alias < 0)
            continue;
        int li = r->layer_of[b];
        if (li >= 0 && r->layers[li].cls >= 0 && li != first_layer(r, r->layers[li].cls))
            continue;
        struct mpp_bufref ref = li < 0 ? absolute(r, alias) : from_body(r, li, alias);
        r->prog->buffers[r->final_buffer[b]].alias = ref.buffer;
        r->prog->buffers[r->final_buffer[b]].alias_layer = ref.layer;
    }
}

/* Names unique within a class, and among the plain buffers; `layer` and `dim` are fields of their own there. */
static void unique_names(struct roll *r)
{
    struct mpp_lprog *prog = r->prog;
    for (int b = 0; b < prog->n_buffers; b++) {
        int n = 1;
        const char *base = prog->buffers[b].name;
        if (!strcmp(base, prog->buffers[b].cls < 0 ? "dim" : "layer"))
            prog->buffers[b].name = mpp_arena_printf(r->arena, "%s_%d", base, ++n);
        for (int a = 0; a < b; a++)
            if (prog->buffers[a].cls == prog->buffers[b].cls && !strcmp(prog->buffers[a].name, prog->buffers[b].name)) {
                prog->buffers[b].name = mpp_arena_printf(r->arena, "%s_%d", base, ++n);
                a = -1;
            }
    }
}

static struct mpp_instr rewrite(struct roll *r, const struct mpp_instr *in, int li)
{
    struct mpp_instr out = *in;
    out.in = mpp_arena_array(r->arena, in->n_in, struct mpp_bufref);
    out.out = mpp_arena_array(r->arena, in->n_out, struct mpp_bufref);
    for (int i = 0; i < in->n_in; i++)
        out.in[i] = li < 0 ? absolute(r, in->in[i].buffer) : from_body(r, li, in->in[i].buffer);
    for (int i = 0; i < in->n_out; i++)
        out.out[i] = li < 0 ? absolute(r, in->out[i].buffer) : from_body(r, li, in->out[i].buffer);
    return out;
}

static const char *body_name(struct roll *r, int cls, const struct run *run)
{
    const struct mpp_flat *f = &r->p->flats[run->first];
    bool adds_norm = false;
    for (int i = run->first; i < run->end; i++)
        adds_norm = adds_norm || r->p->flats[i].instr.kind == MPP_INSTR_ADD_SCALAR;
    static const char *const phase_names[] = {"prologue", "forward", "backward", "update"};
    const char *what = f->instr.gradient ? "reduce_gradients" : adds_norm ? "grad_norm" : phase_names[f->phase];
    const char *name = mpp_arena_printf(r->arena, "%s_%s", r->prog->classes[cls].name, what);
    int n = 1;
    const char *unique = name;
    for (int b = 0; b < r->prog->n_bodies; b++)
        if (!strcmp(r->prog->bodies[b].name, unique)) {
            unique = mpp_arena_printf(r->arena, "%s_%d", name, ++n);
            b = -1;
        }
    return unique;
}

static void add_loop(struct roll *r, struct mpp_pitem *item, int li, int q)
{
    const struct mpp_flat_program *p = r->p;
    struct mpp_lprog *prog = r->prog;
    int cls = r->layers[li].cls, first = first_layer(r, cls);
    int at = 0;
    while (r->layers[li].runs[at] != q)
        at++;
    const struct run *run = &r->runs[r->layers[first].runs[at]];
    struct mpp_body *body = &prog->bodies[prog->n_bodies];
    *body = (struct mpp_body){.name = body_name(r, cls, run), .cls = cls, .phase = run->phase,
                              .n_instrs = run->end - run->first};
    body->instrs = mpp_arena_array(r->arena, body->n_instrs, struct mpp_instr);
    for (int i = 0; i < body->n_instrs; i++) {
        body->instrs[i] = rewrite(r, &p->flats[run->first + i].instr, first);
        if (prog->classes[cls].count > 1)
            body->instrs[i].stream_step = stream_step(r, first, first + 1, at, i);
    }
    *item = (struct mpp_pitem){.loop = true, .cls = cls, .body = prog->n_bodies++,
                               .descending = prog->classes[cls].count > 1 && li != first};
}

static void make_sections(struct roll *r)
{
    const struct mpp_flat_program *p = r->p;
    struct mpp_lprog *prog = r->prog;
    prog->bodies = mpp_arena_array(r->arena, r->n_runs, struct mpp_body);
    bool *done = mpp_arena_array(r->arena, r->n_runs, bool);
    for (int phase = 0; phase < 4; phase++) {
        struct mpp_section *s = &prog->section[phase];
        s->phase = (enum mpp_phase)phase;
        s->items = mpp_arena_array(r->arena, p->n_flats, struct mpp_pitem);
    }
    for (int q = 0; q < r->n_runs; q++) {
        const struct run *run = &r->runs[q];
        const struct mpp_flat *f = &p->flats[run->first];
        struct mpp_section *s = &prog->section[run->phase];
        int li = find_layer(r, f->repeat, f->index);
        if (li < 0) {
            for (int i = run->first; i < run->end; i++)
                s->items[s->n_items++] = (struct mpp_pitem){.chunk = f->chunk, .instr = rewrite(r, &p->flats[i].instr, -1)};
            continue;
        }
        if (done[q])
            continue;
        add_loop(r, &s->items[s->n_items], li, q);
        s->items[s->n_items++].chunk = f->chunk;
        int at = 0, first = first_layer(r, r->layers[li].cls);
        while (r->layers[li].runs[at] != q)
            at++;
        for (int k = first; k < first + prog->classes[r->layers[li].cls].count; k++)
            done[r->layers[k].runs[at]] = true;
    }
}

void mpp_roll(const struct mpp_flat_program *flat, struct mpp_lprog *prog)
{
    struct roll r = {.p = flat, .arena = flat->arena, .prog = prog};
    find_runs(&r);
    find_layers(&r);
    number_buffers(&r);
    find_classes(&r);
    make_buffers(&r);
    make_carried(&r);
    fix_aliases(&r);
    unique_names(&r);
    make_sections(&r);

    prog->n_chunks = flat->n_chunks;
    prog->slots = flat->slots;
    prog->n_rings = flat->transfers->n;
    prog->ring = mpp_arena_array(flat->arena, prog->n_rings, int);
    for (int k = 0; k < prog->n_rings; k++)
        prog->ring[k] = absolute(&r, flat->ring[k]).buffer;
    int n = flat->g->n_tensors;
    prog->loss = flat->loss < 0 ? -1 : absolute(&r, flat->loss).buffer;
    prog->grad_norm = flat->grad_norm < 0 ? -1 : absolute(&r, flat->grad_norm).buffer;
    prog->param_buffer = mpp_arena_array(flat->arena, n, int);
    prog->param_layer = mpp_arena_array(flat->arena, n, int);
    prog->gradient_buffer = mpp_arena_array(flat->arena, n, int);
    for (mpp_id t = 0; t < n; t++) {
        struct mpp_bufref rest = absolute(&r, flat->resting[t]), grad = absolute(&r, flat->gradient[t]);
        prog->param_buffer[t] = rest.buffer;
        prog->param_layer[t] = rest.layer;
        prog->gradient_buffer[t] = grad.buffer;
        assert(grad.buffer < 0 || grad.layer == rest.layer);
    }
}
