/* A stage's part of the step: a list of ops in terms of the whole graph, then the graph that it makes. */
#include "ir/span.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ir/graph_edit.h"
#include "ir/names.h"
#include "ir/op.h"
#include "ir/op_table.h"
#include "ir/pass.h"
#include "ir/span_internal.h"

struct ids {
    int n;
    size_t cap;
    mpp_id *id;
};

struct span {
    const struct mpp_graph *g;
    const struct mpp_layering *layering;
    const struct mpp_layering_index *index;
    struct mpp_diag *diag;
    struct mpp_arena *scratch;
    int first, last;
    int cut_first, cut_last;      /* layers of them that are left out; cut_last < cut_first: none */
    mpp_id *stand_in;             /* [n_tensors] what is read for a tensor of those; -1: itself. NULL: nothing is cut */
    bool whole;                   /* all layers: nothing is left out, whether it is read or not */
    bool *has_op;                 /* [n_ops] of the graph */
    bool *has_param;              /* [n_tensors] parameters that the span reads */
    bool *again;                  /* [n_tensors] the backward phase reads a second version */
    struct ids prologue, forward, backward, update, params;
    struct ids received, received_backward, sent, sent_backward; /* tensors */
    struct mpp_span_list list;
    int n_chunks;                 /* several: the span is the sum of these, */
    struct span *chunk;           /* which have their own lists of ops and second versions; else itself */
    struct mpp_graph *out;
    mpp_id *tensor, *second;      /* [n_tensors] of the graph -> the span's; the repeated op's; -1 */
    mpp_id *own;                  /* [n_tensors] of a later chunk: what it makes again that an earlier one has made (masks); -1 */
    mpp_id *op;                   /* [n_ops] of the graph -> the span's; -1 */
};

static void push(struct span *s, struct ids *list, mpp_id id)
{
    list->id = mpp_arena_grow(s->scratch, list->id, &list->cap, (size_t)list->n + 1, sizeof *list->id);
    list->id[list->n++] = id;
}

static int compare_ids(const void *a, const void *b)
{
    mpp_id x = *(const mpp_id *)a, y = *(const mpp_id *)b;
    return (x > y) - (x < y);
}

static void sort(struct ids *list)
{
    if (list->n > 1)
        qsort(list->id, (size_t)list->n, sizeof *list->id, compare_ids);
}

void mpp_span_append(struct mpp_arena *scratch, struct mpp_span_list *list, enum mpp_span_what what, mpp_id id,
                     enum mpp_phase phase)
{
    list->item = mpp_arena_grow(scratch, list->item, &list->cap, (size_t)list->n + 1, sizeof *list->item);
    list->item[list->n++] = (struct mpp_span_item){what, id, phase, list->chunk};
}

/* ---- which ops ---- */

static void add_op(struct span *s, mpp_id o)
{
    if (s->has_op[o])
        return;
    s->has_op[o] = true;
    struct ids *lists[] = {&s->prologue, &s->forward, &s->backward, &s->update};
    push(s, lists[s->g->ops[o].phase], o);
}

/* Note the parameters that op O reads, and add the ops that run everywhere from which it reads. */
static void add_sources(struct span *s, mpp_id o)
{
    const struct mpp_gop *op = &s->g->ops[o];
    for (int k = 0; k < op->n_in; k++) {
        mpp_id t = op->in[k], maker = t < 0 ? -1 : s->g->tensors[t].op;
        if (t >= 0 && s->g->tensors[t].role == MPP_ROLE_PARAM && !s->has_param[t]) {
            s->has_param[t] = true;
            push(s, &s->params, t);
        }
        if (maker >= 0 && s->index->everywhere[maker] && !s->has_op[maker]) {
            add_op(s, maker);
            add_sources(s, maker);
        }
    }
}

/* Is T made in the span? */
static bool made_here(const struct span *s, mpp_id t)
{
    return s->g->tensors[t].op >= 0 && s->has_op[s->g->tensors[t].op];
}

/* What is read for T. */
static mpp_id stand_in(const struct span *s, mpp_id t)
{
    return t >= 0 && s->stand_in && s->stand_in[t] >= 0 ? s->stand_in[t] : t;
}

/* The ops FROM [n] of one layer do for those of another layer, TO [n], which is like it. */
static void replace_outputs(struct span *s, const int *from, const int *to, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < s->g->ops[from[i]].n_out; k++)
            s->stand_in[s->g->ops[from[i]].out[k]] = s->g->ops[to[i]].out[k];
}

/* The last layer before the cut makes what the last one in it makes, in backward the first after it what the first makes. */
static void note_stand_ins(struct span *s)
{
    const struct mpp_layering_index *x = s->index;
    int before = s->cut_first - 1, after = s->cut_last + 1;
    s->stand_in = mpp_arena_array(s->scratch, s->g->n_tensors, mpp_id);
    memset(s->stand_in, -1, (size_t)s->g->n_tensors * sizeof *s->stand_in);
    replace_outputs(s, x->forward + x->first_forward[s->cut_last], x->forward + x->first_forward[before],
                    x->first_forward[before + 1] - x->first_forward[before]);
    replace_outputs(s, x->backward + x->first_backward[s->cut_first], x->backward + x->first_backward[after],
                    x->first_backward[after + 1] - x->first_backward[after]);
}

static void choose_ops(struct span *s)
{
    const struct mpp_layering_index *x = s->index;
    for (int l = s->first; l <= s->last; l++) {
        if (l >= s->cut_first && l <= s->cut_last)
            continue;
        for (int i = x->first_forward[l]; i < x->first_forward[l + 1]; i++)
            add_op(s, x->forward[i]);
        for (int i = x->first_backward[l]; i < x->first_backward[l + 1]; i++)
            add_op(s, x->backward[i]);
    }
    int n_forward = s->forward.n;
    for (int i = 0; i < n_forward; i++)
        add_sources(s, s->forward.id[i]);
    for (int i = 0; i < s->backward.n; i++)
        add_sources(s, s->backward.id[i]);
    for (int i = 0; i < s->params.n; i++) { /* a tied parameter's sum belongs to one layer, its terms to several */
        mpp_id gradient = s->g->tensors[s->params.id[i]].info->gradient;
        const struct mpp_gop *sum = gradient < 0 ? NULL : &s->g->ops[s->g->tensors[gradient].op];
        for (int k = 0; sum && k < sum->n_in; k++)
            if (sum->in[k] >= 0 && made_here(s, sum->in[k]))
                add_op(s, s->g->tensors[gradient].op);
    }
    for (mpp_id o = 0; s->whole && o < s->g->n_ops; o++)
        add_op(s, o);
    sort(&s->prologue);
    sort(&s->forward);
    sort(&s->backward);
    sort(&s->params);
}

/* A sum of any number of operands can do without those that others have. */
static bool is_sum(const struct mpp_gop *op)
{
    return mpp_op_info(op->kind)->ref == mpp_ref_sum;
}

/* Can an op of the update read T here? */
static bool available(const struct span *s, mpp_id t)
{
    const struct mpp_gtensor *tensor = &s->g->tensors[t];
    if (tensor->op >= 0)
        return s->has_op[tensor->op];
    mpp_id p = tensor->param;
    return p < 0 || s->g->tensors[p].info->gradient < 0 || s->has_param[p];
}

/* The update of the span's parameters, and of the ops that no parameter owns those that have something to read. */
static void choose_update(struct span *s)
{
    struct ids candidates = {0};
    for (int i = 0; i < s->index->n_global; i++)
        push(s, &candidates, s->index->global[i]);
    for (int i = 0; i < s->params.n; i++) {
        mpp_id p = s->params.id[i];
        for (int k = s->index->first_update[p]; k < s->index->first_update[p + 1]; k++)
            push(s, &candidates, s->index->update[k]);
    }
    sort(&candidates);
    for (int i = 0; i < candidates.n; i++) {
        const struct mpp_gop *op = &s->g->ops[candidates.id[i]];
        int n_given = 0, n_here = 0;
        for (int k = 0; k < op->n_in; k++) {
            n_given += op->in[k] >= 0;
            n_here += op->in[k] >= 0 && available(s, op->in[k]);
        }
        if (n_here == n_given || (n_here > 0 && is_sum(op)))
            add_op(s, candidates.id[i]);
    }
}

/* Drop ops of the update that only served parameters of other stages. The stage that has the loss reports for all. */
static void prune_update(struct span *s)
{
    bool *read = mpp_arena_array(s->scratch, s->g->n_tensors, bool);
    int kept = s->update.n;
    for (int i = s->update.n - 1; i >= 0; i--) {
        const struct mpp_gop *op = &s->g->ops[s->update.id[i]];
        bool wanted = op->kind == MPP_OP_OUTPUT && s->g->loss >= 0 && made_here(s, s->g->loss);
        for (int k = 0; k < op->n_out; k++)
            wanted = wanted || read[op->out[k]] || s->g->tensors[op->out[k]].updates >= 0;
        if (!wanted) {
            s->has_op[s->update.id[i]] = false;
            continue;
        }
        for (int k = 0; k < op->n_in; k++)
            if (op->in[k] >= 0)
                read[op->in[k]] = true;
        s->update.id[--kept] = s->update.id[i];
    }
    s->update.n -= kept;
    if (s->update.n > 0)
        memmove(s->update.id, s->update.id + kept, (size_t)s->update.n * sizeof *s->update.id);
}

/* ---- what crosses the border ---- */

static void receive(struct span *s, bool *seen, mpp_id o)
{
    const struct mpp_gop *op = &s->g->ops[o];
    bool sums = op->phase == MPP_PHASE_BACKWARD && op->n_out == 1 && s->g->tensors[op->out[0]].role == MPP_ROLE_ACCUM;
    for (int k = 0; k < op->n_in; k++) {
        mpp_id t = stand_in(s, op->in[k]);
        if (t < 0 || s->g->tensors[t].op < 0 || made_here(s, t) || seen[t] || sums)
            continue;
        seen[t] = true;
        bool forward = s->g->ops[s->g->tensors[t].op].phase <= MPP_PHASE_FORWARD;
        push(s, forward ? &s->received : &s->received_backward, t);
    }
}

static void send(struct span *s, struct ids *list, mpp_id o)
{
    const struct mpp_gop *op = &s->g->ops[o];
    for (int k = 0; k < op->n_out && !s->index->everywhere[o]; k++) {
        mpp_id t = op->out[k];
        int max = s->index->reader_max[t];
        if (max >= 0 && (max > s->last || s->index->reader_min[t] < s->first))
            push(s, list, t);
    }
}

static void find_transfers(struct span *s)
{
    bool *seen = mpp_arena_array(s->scratch, s->g->n_tensors, bool);
    for (int i = 0; i < s->forward.n; i++)
        receive(s, seen, s->forward.id[i]);
    for (int i = 0; i < s->backward.n; i++)
        receive(s, seen, s->backward.id[i]);
    for (int i = 0; i < s->forward.n; i++)
        send(s, &s->sent, s->forward.id[i]);
    for (int i = 0; i < s->backward.n; i++)
        send(s, &s->sent_backward, s->backward.id[i]);
    sort(&s->received);
    sort(&s->received_backward);
}

static void list_all(struct span *s, const struct ids *ids, enum mpp_span_what what, enum mpp_phase phase)
{
    for (int i = 0; i < ids->n; i++)
        mpp_span_append(s->scratch, &s->list, what, ids->id[i], phase);
}

/* Forward, chunk by chunk; backward, from the last chunk to the first. */
static void make_list(struct span *s, enum mpp_recompute recompute)
{
    list_all(s, &s->prologue, MPP_SPAN_OP, MPP_PHASE_PROLOGUE);
    for (int i = 0; i < s->n_chunks; i++) {
        const struct span *c = &s->chunk[i];
        s->list.chunk = i;
        list_all(s, &c->received, MPP_SPAN_RECV, MPP_PHASE_FORWARD);
        list_all(s, &c->forward, MPP_SPAN_OP, MPP_PHASE_FORWARD);
        list_all(s, &c->sent, MPP_SPAN_SEND, MPP_PHASE_FORWARD);
    }
    for (int i = s->n_chunks - 1; i >= 0; i--) {
        const struct span *c = &s->chunk[i];
        s->list.chunk = i;
        list_all(s, &c->received_backward, MPP_SPAN_RECV, MPP_PHASE_BACKWARD);
        mpp_span_recompute(s->scratch, s->g, s->layering, recompute, c->forward.n, c->forward.id, c->backward.n,
                           c->backward.id, c->again, &s->list);
        list_all(s, &c->sent_backward, MPP_SPAN_SEND, MPP_PHASE_BACKWARD);
    }
    s->list.chunk = 0;
    list_all(s, &s->update, MPP_SPAN_OP, MPP_PHASE_UPDATE);
}

/* ---- copying ---- */

/* What follows the batch is copied: the span has a batch of its own. */
static const struct mpp_rule *copy_rule(struct mpp_arena *arena, const struct mpp_rule *rule)
{
    bool follows = false;
    for (int f = 0; f < rule->n_factors; f++)
        follows = follows || rule->factor[f].size.per_batch;
    if (!follows)
        return rule;
    struct mpp_rule *copy = mpp_arena_memdup(arena, rule, sizeof *rule);
    copy->operand = mpp_arena_memdup(arena, rule->operand, (size_t)(rule->n_in + rule->n_out) * sizeof *rule->operand);
    return copy;
}

static struct mpp_attrs copy_attrs(struct mpp_arena *arena, struct mpp_attrs attrs)
{
    for (int i = 0; i < attrs.n; i++)
        if (attrs.attr[i].type == MPP_ATTR_DIMS)
            return mpp_attrs_make(arena, attrs.n, attrs.attr);
    return attrs;
}

static mpp_id add_tensor(struct span *s, mpp_id t, const char *name)
{
    struct mpp_graph *out = s->out;
    mpp_id id = out->n_tensors++;
    assert((size_t)id < out->cap_tensors);
    out->tensors[id] = s->g->tensors[t];
    out->tensors[id].name = mpp_names_take(out->tensor_names, name, id);
    out->tensors[id].op = -1;
    return id;
}

/* Mark what the span's ops read and write; returns how many tensors there are, second versions included. */
static int note_wanted(struct span *s, bool *wanted)
{
    const struct mpp_graph *g = s->g;
    int n = 0;
    for (int i = 0; i < s->list.n; i++) {
        const struct mpp_span_item *item = &s->list.item[i];
        if (item->what == MPP_SPAN_RECV)
            wanted[item->id] = true;
        const struct mpp_gop *op = item->what == MPP_SPAN_OP || item->what == MPP_SPAN_AGAIN ? &g->ops[item->id] : NULL;
        if (op && (item->what == MPP_SPAN_AGAIN || (op->n_out > 0 && wanted[op->out[0]])))
            n += op->n_out;
        if (item->what != MPP_SPAN_OP)
            continue;
        for (int k = 0; k < op->n_out; k++)
            wanted[op->out[k]] = true;
        for (int k = 0; k < op->n_in; k++)
            if (op->in[k] >= 0 && g->tensors[op->in[k]].op < 0)
                wanted[op->in[k]] = true;
    }
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        bool source = g->tensors[t].op < 0;
        wanted[t] = (wanted[t] && (!source || available(s, t))) || (s->whole && source);
        n += wanted[t];
    }
    return n;
}

/* The tensors, in the graph's order and with its names. */
static void copy_tensors(struct span *s)
{
    const struct mpp_graph *g = s->g;
    bool *wanted = mpp_arena_array(s->scratch, g->n_tensors, bool);
    s->out->cap_tensors = (size_t)note_wanted(s, wanted);
    s->out->tensors = mpp_arena_array(s->out->arena, s->out->cap_tensors, struct mpp_gtensor);
    mpp_names_reserve(s->out->tensor_names, s->out->cap_tensors);
    for (int c = 0; c < s->n_chunks; c++) {
        memset(s->chunk[c].second, -1, (size_t)g->n_tensors * sizeof *s->second);
        memset(s->chunk[c].own, -1, (size_t)g->n_tensors * sizeof *s->own);
    }
    for (mpp_id t = 0; t < g->n_tensors; t++)
        s->tensor[t] = wanted[t] ? add_tensor(s, t, g->tensors[t].name) : -1;
    for (mpp_id t = 0; t < s->out->n_tensors; t++) {
        struct mpp_gtensor *tensor = &s->out->tensors[t];
        tensor->updates = tensor->updates < 0 ? -1 : s->tensor[tensor->updates];
        tensor->param = tensor->param < 0 ? -1 : s->tensor[tensor->param];
        if (!tensor->info)
            continue;
        tensor->info = mpp_arena_memdup(s->out->arena, tensor->info, sizeof *tensor->info);
        if (tensor->info->gradient >= 0)
            tensor->info->gradient = s->tensor[tensor->info->gradient];
        if (tensor->info->master >= 0)
            tensor->info->master = s->tensor[tensor->info->master];
    }
}

static mpp_id reading(const struct span *s, const struct mpp_span_item *item, mpp_id t)
{
    if (stand_in(s, t) != t)      /* another layer's: its first version, whatever that layer runs again */
        return s->tensor[stand_in(s, t)];
    const struct span *c = &s->chunk[item->chunk];
    if (t < 0)
        return -1;
    return item->phase == MPP_PHASE_BACKWARD && c->again[t] ? c->second[t] : c->own[t] >= 0 ? c->own[t] : s->tensor[t];
}

static enum mpp_status infer(struct span *s, struct mpp_gop *op, enum mpp_dtype *out_dtype)
{
    struct mpp_rule *rule;
    MPP_TRY(mpp_graph_infer(s->out, s->diag, op, &rule, out_dtype));
    op->rule = rule;
    return MPP_OK;
}

/* Append OP, whose outputs are tensors of the span. */
static mpp_id add(struct span *s, const struct mpp_gop *op)
{
    struct mpp_graph *out = s->out;
    mpp_id id = out->n_ops++;
    out->ops[id] = *op;
    if (op->phase <= MPP_PHASE_FORWARD)
        out->ops[id].name = mpp_names_take(out->op_names, op->name, id);
    for (int k = 0; k < op->n_out; k++) {
        out->tensors[op->out[k]].op = id;
        out->tensors[op->out[k]].out_index = k;
    }
    return id;
}

static enum mpp_status copy_op(struct span *s, const struct mpp_span_item *item)
{
    const struct mpp_gop *from = &s->g->ops[item->id];
    struct mpp_arena *arena = s->out->arena;
    struct span *chunk = &s->chunk[item->chunk];
    bool repeated = item->what == MPP_SPAN_AGAIN, once_more = !repeated && s->op[item->id] >= 0;
    struct mpp_gop op = *from;
    op.in = mpp_arena_array(arena, from->n_in, mpp_id);
    op.out = mpp_arena_array(arena, from->n_out, mpp_id);
    op.phase = item->phase;
    op.chunk = item->chunk;
    op.n_in = 0;
    for (int k = 0; k < from->n_in; k++) {
        mpp_id t = reading(s, item, from->in[k]);
        if (t >= 0 || from->in[k] < 0 || !is_sum(from))
            op.in[op.n_in++] = t;
    }
    for (int k = 0; k < from->n_out; k++) {
        mpp_id t = from->out[k];
        const char *name = s->g->tensors[t].name;
        if (repeated)
            chunk->second[t] = add_tensor(s, t, mpp_arena_printf(arena, "%s.again", name));
        if (once_more)
            chunk->own[t] = add_tensor(s, t, mpp_arena_printf(arena, "%s.chunk%d", name, item->chunk));
        op.out[k] = repeated ? chunk->second[t] : once_more ? chunk->own[t] : s->tensor[t];
    }
    if (repeated) {
        op.name = mpp_arena_printf(arena, "%s.again", from->name);
        op.forward = s->op[item->id];
    } else if (op.forward >= 0) {
        op.forward = s->op[op.forward];
    }
    op.attrs = copy_attrs(arena, from->attrs);
    enum mpp_dtype dtype[64];
    if (op.n_in == from->n_in)
        op.rule = copy_rule(arena, from->rule);
    else
        MPP_TRY(infer(s, &op, dtype));
    mpp_id id = add(s, &op);
    if (!repeated)
        s->op[item->id] = id;
    return MPP_OK;
}

static enum mpp_status add_transfer(struct span *s, const struct mpp_span_item *item)
{
    struct mpp_arena *arena = s->out->arena;
    mpp_id t = s->tensor[item->id];
    const struct mpp_gtensor *tensor = &s->out->tensors[t];
    bool receives = item->what == MPP_SPAN_RECV;
    const struct mpp_gop *maker = &s->g->ops[s->g->tensors[item->id].op];
    struct mpp_gop op = {.kind = receives ? MPP_OP_RECV : MPP_OP_SEND, .scope = "", .loc = maker->loc, .path = maker->path,
                         .phase = item->phase, .repeat = -1, .index = -1, .forward = -1};
    op.name = mpp_arena_printf(arena, "%s.%s", tensor->name, receives ? "recv" : "send");
    op.chunk = item->chunk;
    op.n_in = !receives;
    op.n_out = receives;
    op.in = op.out = mpp_arena_memdup(arena, &t, sizeof t);
    if (receives)
        op.attrs = MPP_ATTRS(arena, mpp_attr_dims("shape", tensor->n_dims, tensor->dims),
                             mpp_attr_string("dtype", mpp_dtype_name(tensor->dtype)));
    enum mpp_dtype dtype[64];
    MPP_TRY(infer(s, &op, dtype));
    add(s, &op);
    return MPP_OK;
}

static mpp_id mapped(const struct span *s, mpp_id t)
{
    return t < 0 ? -1 : s->tensor[t];
}

static enum mpp_status make_graph(struct span *s, struct mpp_arena *arena)
{
    const struct mpp_graph *g = s->g;
    struct mpp_graph *out = s->out = mpp_graph_new(arena, g->model, g->global_batch);
    out->batch = g->batch;
    out->tokens_per_sample = g->tokens_per_sample;
    out->whole_batch = g->whole_batch;
    out->unfused = g->unfused;
    out->cap_ops = (size_t)s->list.n;
    out->ops = mpp_arena_array(arena, s->list.n, struct mpp_gop);
    mpp_names_reserve(out->op_names, (size_t)(s->prologue.n + s->forward.n + s->received.n + s->sent.n));
    copy_tensors(s);
    memset(s->op, -1, (size_t)g->n_ops * sizeof *s->op);
    for (int i = 0; i < s->list.n; i++) {
        const struct mpp_span_item *item = &s->list.item[i];
        bool transfer = item->what == MPP_SPAN_RECV || item->what == MPP_SPAN_SEND;
        MPP_TRY(transfer ? add_transfer(s, item) : copy_op(s, item));
    }
    out->loss = mapped(s, g->loss);
    out->loss_total = mapped(s, g->loss_total);
    out->grad_norm = mapped(s, g->grad_norm);
    out->loss_scale = mapped(s, g->loss_scale);
    return MPP_OK;
}

/* A span that holds nothing yet. */
static struct span begin(struct mpp_arena *scratch, struct mpp_diag *diag, const struct mpp_graph *graph,
                         const struct mpp_layering *layering, int first, int last)
{
    return (struct span){
        .g = graph, .layering = layering, .index = layering->index, .diag = diag, .scratch = scratch,
        .first = first, .last = last, .cut_last = -1,
        .has_op = mpp_arena_array(scratch, graph->n_ops, bool),
        .has_param = mpp_arena_array(scratch, graph->n_tensors, bool),
        .again = mpp_arena_array(scratch, graph->n_tensors, bool),
        .tensor = mpp_arena_array(scratch, graph->n_tensors, mpp_id),
        .second = mpp_arena_array(scratch, graph->n_tensors, mpp_id),
        .own = mpp_arena_array(scratch, graph->n_tensors, mpp_id),
        .op = mpp_arena_array(scratch, graph->n_ops, mpp_id),
        .n_chunks = 1,
    };
}

/* The graph of what S holds, grouped and verified. */
static enum mpp_status finish(struct span *s, struct mpp_arena *arena, enum mpp_recompute recompute, struct mpp_graph **out)
{
    make_list(s, recompute);
    enum mpp_status status = make_graph(s, arena);
    struct mpp_pass_ctx ctx = {.arena = arena, .diag = s->diag};
    if (status == MPP_OK)
        status = mpp_pass_fuse(&ctx, s->out);
    if (status == MPP_OK)
        status = mpp_graph_verify(s->out, s->diag, "span");
    *out = s->out;
    return status;
}

enum mpp_status mpp_span_extract(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                                 const struct mpp_layering *layering, int first, int last, enum mpp_recompute recompute,
                                 struct mpp_graph **out)
{
    return mpp_span_extract_cut(arena, diag, graph, layering, first, last, 0, -1, recompute, out);
}

enum mpp_status mpp_span_extract_cut(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                                     const struct mpp_layering *layering, int first, int last, int cut_first,
                                     int cut_last, enum mpp_recompute recompute, struct mpp_graph **out)
{
    bool cut = cut_last >= cut_first;
    struct mpp_arena *scratch = mpp_arena_scratch(arena);
    struct span s = begin(scratch, diag, graph, layering, first, last);
    s.chunk = &s;
    s.cut_first = cut_first;
    s.cut_last = cut_last;
    s.whole = !cut && first == 0 && last == layering->n_layers - 1;
    if (cut)
        note_stand_ins(&s);
    choose_ops(&s);
    if (!s.whole) {
        choose_update(&s);
        prune_update(&s);
    } else {
        sort(&s.update);
    }
    find_transfers(&s);
    enum mpp_status status = finish(&s, arena, recompute, out);
    mpp_arena_free(scratch);
    return status;
}

/* ---- several chunks ---- */

/* Chunk C becomes part of S. */
static enum mpp_status absorb(struct span *s, const struct span *c)
{
    for (int i = 0; i < c->prologue.n; i++)
        add_op(s, c->prologue.id[i]);
    for (int i = 0; i < c->params.n; i++) {
        mpp_id p = c->params.id[i];
        if (s->has_param[p] && s->g->tensors[p].info->gradient >= 0) {
            mpp_diag_error(s->diag, (struct mpp_loc){0}, "two chunks of a stage have the parameter %s; plan fewer chunks per stage, or "
                           "another number of stages", s->g->tensors[p].name);
            return MPP_INVALID;
        }
        if (!s->has_param[p])
            push(s, &s->params, p);
        s->has_param[p] = true;
    }
    for (int i = 0; i < c->forward.n + c->backward.n; i++)
        s->has_op[i < c->forward.n ? c->forward.id[i] : c->backward.id[i - c->forward.n]] = true;
    return MPP_OK;
}

/* What a chunk receives comes from other stages: values do not go from chunk to chunk of one. */
static enum mpp_status check_received(struct span *s, const struct ids *received)
{
    for (int i = 0; i < received->n; i++)
        if (made_here(s, received->id[i])) {
            mpp_diag_error(s->diag, (struct mpp_loc){0}, "a chunk of a stage reads %s of another of the same stage; plan fewer chunks "
                           "per stage, or another number of stages", s->g->tensors[received->id[i]].name);
            return MPP_INVALID;
        }
    return MPP_OK;
}

enum mpp_status mpp_span_extract_chunks(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                                        const struct mpp_layering *layering, int n, const int *first, const int *last,
                                        enum mpp_recompute recompute, struct mpp_graph **out)
{
    struct mpp_arena *scratch = mpp_arena_scratch(arena);
    struct span s = begin(scratch, diag, graph, layering, first[0], last[n - 1]);
    enum mpp_status status = MPP_OK;
    s.n_chunks = n;
    s.chunk = mpp_arena_array(scratch, n, struct span);
    for (int i = 0; i < n && status == MPP_OK; i++) {
        s.chunk[i] = begin(scratch, diag, graph, layering, first[i], last[i]);
        choose_ops(&s.chunk[i]);
        status = absorb(&s, &s.chunk[i]);
    }
    sort(&s.prologue);
    sort(&s.params);
    choose_update(&s);
    prune_update(&s);
    for (int i = 0; i < n && status == MPP_OK; i++) {
        find_transfers(&s.chunk[i]);
        status = check_received(&s, &s.chunk[i].received);
        if (status == MPP_OK)
            status = check_received(&s, &s.chunk[i].received_backward);
    }
    if (status == MPP_OK)
        status = finish(&s, arena, recompute, out);
    mpp_arena_free(scratch);
    return status;
}

bool mpp_span_can_chunk(const struct mpp_graph *graph, const struct mpp_layering *layering, int n_parts, int stages)
{
    int each = layering->n_layers / n_parts;
    if (layering->n_layers % n_parts != 0 || n_parts % stages != 0)
        return false;
    for (int i = 0; i < layering->n_tied; i++)
        for (int k = 0; k < layering->tied[i].n_layers; k++)
            for (int m = 0; m < k; m++) {
                int a = layering->tied[i].layer[m] / each, b = layering->tied[i].layer[k] / each;
                if (a != b && a % stages == b % stages)
                    return false;
            }
    for (mpp_id o = 0; o < graph->n_ops; o++) {
        const struct mpp_gop *op = &graph->ops[o];
        bool sums = op->n_out == 1 && graph->tensors[op->out[0]].role == MPP_ROLE_ACCUM;
        for (int k = 0; k < op->n_in && layering->layer_of[o] >= 0 && !sums; k++) {
            mpp_id maker = op->in[k] < 0 ? -1 : graph->tensors[op->in[k]].op;
            if (maker < 0 || layering->layer_of[maker] < 0 || layering->index->everywhere[maker])
                continue;
            int a = layering->layer_of[maker] / each, b = layering->layer_of[o] / each;
            if (a != b && a % stages == b % stages)
                return false;
        }
    }
    return true;
}
