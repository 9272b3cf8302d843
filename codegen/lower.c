/* lower.c - graph + plan -> the flat local program: buffers, kernels, collectives in execution order. */
#include <assert.h>
#include <string.h>

#include "codegen/emit_internal.h"
#include "codegen/lower_internal.h"
#include "ir/op.h"

enum {
    ROUND_BYTES = 64,
    OVERLAP_SHARE = 16            /* sums that begin early, and gathers, may each take this part of the arena more */
};

/* A C identifier of a tensor's name without its layer's prefix: "h.3.attn.c_attn:1" -> "attn_c_attn_1". */
static const char *identifier(struct mpp_arena *arena, const char *name, const char *repeat_name, int index,
                              const char *suffix)
{
    if (repeat_name && index >= 0) {
        const char *prefix = mpp_arena_printf(arena, "%s.%d.", repeat_name, index), *at = strstr(name, prefix);
        while (at && at > name && at[-1] != '.')
            at = strstr(at + 1, prefix);
        if (at)
            name = mpp_arena_printf(arena, "%.*s%s", (int)(at - name), name, at + strlen(prefix));
    }
    return mpp_emit_identifier(arena, mpp_arena_printf(arena, "%s%s", name, suffix));
}

int mpp_lower_buffer(struct mpp_lowering *l, mpp_id tensor, struct mpp_sharding s, enum mpp_buffer_kind kind, int repeat,
                      int index, const char *suffix)
{
    struct mpp_flat_program *p = l->p;
    const struct mpp_gtensor *t = &l->g->tensors[tensor];
    p->buffers = mpp_arena_grow(p->arena, p->buffers, &p->cap_buffers, (size_t)p->n_buffers + 1, sizeof *p->buffers);
    size_t cap = p->cap_layers;
    p->repeat = mpp_arena_grow(p->arena, p->repeat, &cap, (size_t)p->n_buffers + 1, sizeof *p->repeat);
    p->index = mpp_arena_grow(p->arena, p->index, &p->cap_layers, (size_t)p->n_buffers + 1, sizeof *p->index);
    struct mpp_buffer *b = &p->buffers[p->n_buffers];
    *b = (struct mpp_buffer){
        .name = identifier(p->arena, t->name, repeat < 0 ? NULL : l->repeat_name[repeat], index, suffix),
        .tensor = tensor, .sharding = s, .dtype = t->dtype, .n_dims = t->n_dims, .kind = kind,
        .cls = -1, .alias = -1, .alias_layer = -1, .carry_from = -1, .carry_in = {-1, -1},
    };
    int64_t count = 1;
    for (int d = 0; d < t->n_dims; d++) {
        b->split[d] = mpp_sharding_mask(s, d);
        b->padded[d] = mpp_block_padded(&l->stage->mesh, t->dims[d].size, b->split[d]);
        count *= b->padded[d];
    }
    b->bytes = (count * mpp_dtype_bytes(t->dtype) + ROUND_BYTES - 1) / ROUND_BYTES * ROUND_BYTES;
    if (b->bytes == 0)
        b->bytes = ROUND_BYTES;
    p->repeat[p->n_buffers] = repeat;
    p->index[p->n_buffers] = index;
    return p->n_buffers++;
}

struct mpp_flat *mpp_lower_append(struct mpp_lowering *l, enum mpp_instr_kind kind, enum mpp_phase phase, int repeat, int index,
                                 int n_in, int n_out)
{
    struct mpp_flat_program *p = l->p;
    p->flats = mpp_arena_grow(p->arena, p->flats, &p->cap_flats, (size_t)p->n_flats + 1, sizeof *p->flats);
    struct mpp_flat *f = &p->flats[p->n_flats++];
    *f = (struct mpp_flat){.phase = phase, .repeat = repeat, .index = index, .chunk = phase == MPP_PHASE_UPDATE ? 0 : l->chunk};
    f->instr.kind = kind;
    f->instr.group = f->instr.epilogue = f->instr.transfer = -1;
    f->instr.n_in = n_in;
    f->instr.n_out = n_out;
    f->instr.in = mpp_arena_array(p->arena, n_in, struct mpp_bufref);
    f->instr.out = mpp_arena_array(p->arena, n_out, struct mpp_bufref);
    f->instr.mode = mpp_arena_array(p->arena, n_out, enum mpp_write_mode);
    for (int i = 0; i < n_in; i++)
        f->instr.in[i] = (struct mpp_bufref){-1, -1};
    for (int i = 0; i < n_out; i++)
        f->instr.out[i] = (struct mpp_bufref){-1, -1};
    return f;
}

const struct mpp_gop *mpp_lower_first_op(const struct mpp_lowering *l, int group)
{
    return &l->g->ops[l->g->groups[group].ops[0]];
}

struct mpp_sharding mpp_lower_wanted(const struct mpp_lowering *l, int group, int operand)
{
    return mpp_split_operand(l->g->groups[group].rule, l->stage->split[group], operand);
}

/* ---- what is known before the walk ---- */

static void note_uses(struct mpp_lowering *l)
{
    const struct mpp_graph *g = l->g;
    for (int i = 0; i < g->n_groups; i++) {
        for (int o = 0; o < g->groups[i].n_out; o++)
            l->producer[g->groups[i].out[o]] = i;
        for (int o = 0; o < g->groups[i].n_in; o++)
            if (g->groups[i].in[o] >= 0)
                l->first_use[g->groups[i].in[o] + 1]++;
    }
    for (mpp_id t = 0; t < g->n_tensors; t++)
        l->first_use[t + 1] += l->first_use[t];
    int total = l->first_use[g->n_tensors];
    l->use = mpp_arena_array(l->p->arena, total, int);
    l->use_operand = mpp_arena_array(l->p->arena, total, int);
    int *fill = mpp_arena_array(l->p->arena, g->n_tensors, int);
    for (int i = 0; i < g->n_groups; i++)
        for (int o = 0; o < g->groups[i].n_in; o++) {
            mpp_id t = g->groups[i].in[o];
            if (t < 0)
                continue;
            l->use[l->first_use[t] + fill[t]] = i;
            l->use_operand[l->first_use[t] + fill[t]++] = o;
        }
}

static void note_copies(struct mpp_lowering *l)
{
    for (int c = l->stage->n_copies - 1; c >= 0; c--) {
        const struct mpp_copy *copy = &l->stage->copies[c];
        l->next_of[c] = l->copy_of[copy->tensor];
        l->copy_of[copy->tensor] = c;
        if (copy->store)
            continue;
        l->next_at[c] = l->copy_at[copy->first_group];
        l->copy_at[copy->first_group] = c;
    }
}

static void note_repeats(struct mpp_lowering *l)
{
    int n = 0;
    for (int o = 0; o < l->g->n_ops; o++)
        n = l->g->ops[o].repeat >= n ? l->g->ops[o].repeat + 1 : n;
    l->repeat_name = mpp_arena_array(l->p->arena, n, const char *);
    for (int o = 0; o < l->g->n_ops; o++)
        if (l->g->ops[o].repeat >= 0)
            l->repeat_name[l->g->ops[o].repeat] = l->g->ops[o].repeat_name;
}

static int n_uses(const struct mpp_lowering *l, mpp_id t)
{
    return l->first_use[t + 1] - l->first_use[t];
}

static bool is_op(const struct mpp_lowering *l, int group, int kind)
{
    return l->g->groups[group].n_ops == 1 && mpp_lower_first_op(l, group)->kind == kind;
}

/* May the producer of operand I of the Accumulate group A write into the accumulator itself? */
static bool writes_direct(const struct mpp_lowering *l, int a, int i)
{
    const struct mpp_graph *g = l->g;
    const struct mpp_group *acc = &g->groups[a];
    mpp_id t = acc->in[i];
    int p = l->producer[t];
    if (p < 0 || n_uses(l, t) != 1 || g->groups[p].phase != acc->phase)
        return false;
    int out = 0;
    while (g->groups[p].out[out] != t)
        out++;
    struct mpp_sharding made = mpp_split_operand(g->groups[p].rule, l->stage->split[p], g->groups[p].n_in + out);
    bool plain = acc->n_in == 1 && l->p->micro_batches == 1;
    return mpp_sharding_equal(made, mpp_lower_wanted(l, a, i)) && (plain || mpp_emit_can_accumulate(g, &g->groups[p], out));
}

/* Where a value is only summed over micro-batches, in the form it is made in, by a kernel that can add: write it
 * straight into the accumulator. */
static void plan_direct_writes(struct mpp_lowering *l)
{
    const struct mpp_graph *g = l->g;
    for (int a = 0; a < g->n_groups; a++) {
        if (!is_op(l, a, MPP_OP_ACCUMULATE))
            continue;
        const struct mpp_group *acc = &g->groups[a];
        int earliest = -1;        /* of the direct writers: it starts the sum */
        for (int i = 0; i < acc->n_in; i++) {
            mpp_id t = acc->in[i];
            if (!writes_direct(l, a, i))
                continue;
            bool plain = acc->n_in == 1 && l->p->micro_batches == 1;
            l->direct[t] = acc->out[0];
            l->direct_mode[t] = plain ? MPP_WRITE : MPP_WRITE_ADD;
            if (!plain && (earliest < 0 || l->producer[t] < l->producer[acc->in[earliest]]))
                earliest = i;
        }
        if (earliest >= 0)
            l->direct_mode[acc->in[earliest]] = MPP_WRITE_ADD_LATER;
    }
}

/* Sums of scalars (the square sums of all gradients) run as additions right after each term. */
static void plan_scalar_sums(struct mpp_lowering *l)
{
    const struct mpp_graph *g = l->g;
    for (int s = 0; s < g->n_groups; s++) {
        const struct mpp_group *sum = &g->groups[s];
        if (!is_op(l, s, MPP_OP_SUM) || g->tensors[sum->out[0]].n_dims != 0 || sum->phase != MPP_PHASE_UPDATE)
            continue;
        bool fits = true;
        for (int i = 0; i < sum->n_in; i++) {
            int p = l->producer[sum->in[i]];
            fits = fits && p >= 0 && n_uses(l, sum->in[i]) == 1 && g->groups[p].phase == sum->phase;
        }
        for (int i = 0; fits && i < sum->n_in; i++)
            l->scalar_sum[sum->in[i]] = s;
    }
}

/* The buffer in which group POS of phase PHASE reads tensor T in sharding S. */
int mpp_lower_find(const struct mpp_lowering *l, mpp_id t, enum mpp_phase phase, struct mpp_sharding s)
{
    if (mpp_sharding_equal(l->made[t], s))
        return l->home[t];
    for (int c = l->copy_of[t]; c >= 0; c = l->next_of[c]) {
        const struct mpp_copy *copy = &l->stage->copies[c];
        bool ours = copy->once || mpp_lower_first_op(l, copy->first_group)->chunk == l->chunk;
        if (!copy->store && mpp_sharding_equal(copy->to, s) && l->copy_buffer[c] >= 0
            && ((copy->phase == phase && ours) || (copy->once && copy->phase == MPP_PHASE_FORWARD && phase == MPP_PHASE_BACKWARD)))
            return l->copy_buffer[c];
    }
    return -1;
}

/* ---- groups ---- */

static enum mpp_buffer_kind home_kind(const struct mpp_gtensor *t)
{
    return t->role == MPP_ROLE_PARAM ? MPP_BUF_PARAM : t->role == MPP_ROLE_STATE ? MPP_BUF_STATE
         : t->role == MPP_ROLE_INPUT ? MPP_BUF_INPUT : t->role == MPP_ROLE_ACCUM ? MPP_BUF_ACCUM : MPP_BUF_VALUE;
}

static int resting_buffer(struct mpp_lowering *l, mpp_id t)
{
    if (l->p->resting[t] >= 0)
        return l->p->resting[t];
    const struct mpp_gtensor *tensor = &l->g->tensors[t];
    struct mpp_sharding s = l->made[t];
    int b = mpp_lower_buffer(l, t, s, home_kind(tensor), tensor->repeat, tensor->index, "");
    l->p->resting[t] = b;
    l->home[t] = b;
    return b;
}

static int accum_buffer(struct mpp_lowering *l, mpp_id acc)
{
    if (l->home[acc] >= 0)
        return l->home[acc];
    int a = l->producer[acc];
    const struct mpp_gop *op = mpp_lower_first_op(l, a);
    l->made[acc] = mpp_lower_wanted(l, a, l->g->groups[a].n_in);
    l->home[acc] = mpp_lower_buffer(l, acc, l->made[acc], MPP_BUF_ACCUM, op->repeat, op->index, "");
    return l->home[acc];
}

static void lower_accumulate(struct mpp_lowering *l, int a)
{
    const struct mpp_group *acc = &l->g->groups[a];
    const struct mpp_gop *op = mpp_lower_first_op(l, a);
    bool plain = acc->n_in == 1 && l->p->micro_batches == 1 && n_uses(l, acc->in[0]) == 1;
    if (plain && l->direct[acc->in[0]] < 0 && l->home[acc->out[0]] < 0) {
        /* A sum of one term is that term. */
        int term = mpp_lower_find(l, acc->in[0], acc->phase, mpp_lower_wanted(l, a, 0));
        int alias = accum_buffer(l, acc->out[0]);
        int root = mpp_buffer_root(l->p->buffers, term);
        l->p->buffers[alias].alias = term;
        if (l->p->buffers[root].kind != MPP_BUF_INPUT)
            l->p->buffers[root].kind = MPP_BUF_ACCUM;
        return;
    }
    int out = accum_buffer(l, acc->out[0]);
    bool first = true;
    for (int i = 0; i < acc->n_in; i++)
        if (l->direct[acc->in[i]] == acc->out[0])
            first = false;        /* the earliest direct writer starts the sum */
    for (int i = 0; i < acc->n_in; i++) {
        mpp_id t = acc->in[i];
        if (l->direct[t] == acc->out[0])
            continue;
        struct mpp_flat *f = mpp_lower_append(l, MPP_INSTR_ACCUMULATE, acc->phase, op->repeat, op->index, 1, 1);
        f->instr.in[0].buffer = mpp_lower_find(l, t, acc->phase, mpp_lower_wanted(l, a, i));
        f->instr.out[0].buffer = out;
        f->instr.mode[0] = first ? MPP_WRITE_ADD_LATER : MPP_WRITE_ADD;
        f->instr.group = a;
        first = false;
    }
}

/* A reshape of a local array is the same bytes: no instruction. */
static bool lower_alias(struct mpp_lowering *l, int group)
{
    const struct mpp_group *grp = &l->g->groups[group];
    if (!is_op(l, group, MPP_OP_RESHAPE))
        return false;
    const struct mpp_gop *op = mpp_lower_first_op(l, group);
    int in = mpp_lower_find(l, grp->in[0], grp->phase, mpp_lower_wanted(l, group, 0));
    l->made[grp->out[0]] = mpp_lower_wanted(l, group, 1);
    int out = mpp_lower_buffer(l, grp->out[0], l->made[grp->out[0]], MPP_BUF_VALUE, op->repeat, op->index, "");
    if (l->p->buffers[in].bytes != l->p->buffers[out].bytes) {
        struct mpp_flat *f = mpp_lower_append(l, MPP_INSTR_COMPUTE, grp->phase, op->repeat, op->index, 1, 1);
        f->instr.group = group;
        f->instr.split = l->stage->split[group];
        f->instr.in[0].buffer = in;
        f->instr.out[0].buffer = out;
    } else {
        l->p->buffers[out].alias = in;
    }
    l->home[grp->out[0]] = out;
    return true;
}

/* The buffer of an output that replaces a state tensor: the operand's own (the update works in place). */
static int updated_operand(const struct mpp_lowering *l, int group, const struct mpp_flat *f, mpp_id out)
{
    mpp_id state = l->g->tensors[out].updates;
    for (int i = 0; state >= 0 && i < l->g->groups[group].n_in; i++)
        if (l->g->groups[group].in[i] == state)
            return f->instr.in[i].buffer;
    /* rounded anew from a master: over what nothing reads any more */
    return state >= 0 && mpp_sharding_equal(l->made[state], l->made[out]) ? l->p->resting[state] : -1;
}

static void add_scalar_terms(struct mpp_lowering *l, int group)
{
    const struct mpp_group *grp = &l->g->groups[group];
    for (int o = 0; o < grp->n_out; o++) {
        mpp_id t = grp->out[o];
        int s = l->scalar_sum[t];
        if (s < 0)
            continue;
        const struct mpp_gop *op = mpp_lower_first_op(l, group);
        int term = l->home[t], operand = 0;
        while (l->g->groups[s].in[operand] != t)
            operand++;
        struct mpp_sharding want = mpp_lower_wanted(l, s, operand);
        for (int c = l->copy_of[t]; c >= 0 && !mpp_sharding_equal(want, l->made[t]); c = l->next_of[c])
            if (!l->stage->copies[c].store) {
                term = mpp_lower_copy(l, c, group, term, -1, false);
                break;
            }
        struct mpp_flat *f = mpp_lower_append(l, MPP_INSTR_ADD_SCALAR, grp->phase, op->repeat, op->index, 1, 1);
        f->instr.in[0].buffer = term;
        f->instr.out[0].buffer = l->sum_buffer[s];
    }
}

static void lower_compute(struct mpp_lowering *l, int group)
{
    const struct mpp_group *grp = &l->g->groups[group];
    const struct mpp_gop *op = mpp_lower_first_op(l, group);
    int *in = mpp_arena_array(l->p->arena, grp->n_in, int);
    for (int i = 0; i < grp->n_in; i++) {
        in[i] = grp->in[i] < 0 ? -1 : mpp_lower_find(l, grp->in[i], grp->phase, mpp_lower_wanted(l, group, i));
        assert(grp->in[i] < 0 || in[i] >= 0);
    }
    struct mpp_flat *f = mpp_lower_append(l, MPP_INSTR_COMPUTE, grp->phase, op->repeat, op->index, grp->n_in, grp->n_out);
    int at = l->p->n_flats - 1;
    f->instr.group = group;
    f->instr.split = l->stage->split[group];
    for (int i = 0; i < grp->n_in; i++)
        f->instr.in[i].buffer = in[i];
    for (int o = 0; o < grp->n_out; o++) {
        mpp_id t = grp->out[o];
        l->made[t] = mpp_lower_wanted(l, group, grp->n_in + o);
        int b;
        f = &l->p->flats[at];
        int updated = updated_operand(l, group, f, t);
        if (l->direct[t] >= 0) {
            b = accum_buffer(l, l->direct[t]);
            f->instr.mode[o] = l->direct_mode[t];
        } else {
            b = mpp_lower_buffer(l, t, l->made[t], MPP_BUF_VALUE, op->repeat, op->index, "");
            l->p->buffers[b].alias = updated;
        }
        l->home[t] = b;
        f->instr.out[o].buffer = b;
    }
    add_scalar_terms(l, group);
}

static void lower_stores(struct mpp_lowering *l, int group)
{
    for (int o = 0; o < l->g->groups[group].n_out; o++) {
        mpp_id t = l->g->groups[group].out[o];
        for (int c = l->copy_of[t]; c >= 0; c = l->next_of[c])
            if (l->stage->copies[c].store)
                mpp_lower_copy(l, c, group, l->home[t], l->p->resting[l->g->tensors[t].updates], false);
    }
}

static void lower_group(struct mpp_lowering *l, int i)
{
    l->chunk = mpp_lower_first_op(l, i)->chunk;
    if (mpp_lower_counted_elsewhere(l, i)) {
        assert(l->scalar_sum[l->g->groups[i].out[0]] >= 0);
        return;
    }
    for (int c = l->copy_at[i]; c >= 0; c = l->next_at[c]) {
        const struct mpp_copy *copy = &l->stage->copies[c];
        if (!copy->store && !mpp_lower_is_gradient(l, copy) && l->scalar_sum[copy->tensor] < 0)
            l->copy_buffer[c] = mpp_lower_copy(l, c, i, l->home[copy->tensor], -1, false);
    }
    mpp_lower_sum_stages(l, i);
    if (mpp_lower_transfer(l, i))
        return;
    if (is_op(l, i, MPP_OP_ACCUMULATE))
        lower_accumulate(l, i);
    else if (l->sum_buffer[i] >= 0)
        l->home[l->g->groups[i].out[0]] = l->sum_buffer[i];
    else if (!lower_alias(l, i))
        lower_compute(l, i);
    lower_stores(l, i);
}

static void start_scalar_sums(struct mpp_lowering *l)
{
    const struct mpp_graph *g = l->g;
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        int s = l->scalar_sum[t];
        if (s < 0 || l->sum_buffer[s] >= 0)
            continue;
        mpp_id total = g->groups[s].out[0];
        l->made[total] = mpp_lower_wanted(l, s, g->groups[s].n_in);
        l->sum_buffer[s] = mpp_lower_buffer(l, total, l->made[total], MPP_BUF_VALUE, -1, -1, "");
        mpp_lower_append(l, MPP_INSTR_ZERO, MPP_PHASE_UPDATE, -1, -1, 0, 1)->instr.out[0].buffer = l->sum_buffer[s];
    }
}

/* Parameters, state and inputs; a parameter that several layers use belongs to none. */
static void lower_resting(struct mpp_lowering *l)
{
    const struct mpp_graph *g = l->g;
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        const struct mpp_gtensor *tensor = &g->tensors[t];
        if (tensor->role == MPP_ROLE_PARAM || tensor->role == MPP_ROLE_INPUT)
            l->made[t] = l->stage->resting[t];
        else if (tensor->role == MPP_ROLE_STATE) {
            assert(n_uses(l, t) == 1);
            l->made[t] = mpp_lower_wanted(l, l->use[l->first_use[t]], l->use_operand[l->first_use[t]]);
        } else
            continue;
        resting_buffer(l, t);
    }
}

static void note_outputs(struct mpp_lowering *l)
{
    const struct mpp_graph *g = l->g;
    for (int i = 0; i < g->n_groups; i++) {
        if (!is_op(l, i, MPP_OP_OUTPUT))
            continue;
        mpp_id in = g->groups[i].in[0];
        if (in == g->grad_norm)
            l->p->grad_norm = l->home[g->groups[i].out[0]];
        else if (in == g->loss_total)
            l->p->loss = l->home[g->groups[i].out[0]];
    }
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        if (g->tensors[t].role != MPP_ROLE_PARAM || g->tensors[t].info->gradient < 0)
            continue;
        mpp_id acc = g->tensors[t].info->gradient;
        l->p->gradient[t] = l->home[acc];
        for (int c = l->copy_of[acc]; c >= 0; c = l->next_of[c])
            if (mpp_lower_is_gradient(l, &l->stage->copies[c]))
                l->p->gradient[t] = l->copy_buffer[c];
    }
}

static int *filled(struct mpp_arena *arena, int n, int value)
{
    int *a = mpp_arena_array(arena, n, int);
    for (int i = 0; i < n; i++)
        a[i] = value;
    return a;
}

void mpp_lower_flat(struct mpp_arena *arena, const struct mpp_graph *graph, const struct mpp_plan *plan, int number,
                    const struct mpp_transfers *transfers, bool overlap, struct mpp_flat_program *out)
{
    int n = graph->n_tensors;
    const struct mpp_stage *stage = &plan->stages[number];
    *out = (struct mpp_flat_program){
        .arena = arena, .g = graph, .stage = stage, .micro_batches = plan->micro_batches, .transfers = transfers,
        .ring = filled(arena, transfers->n, -1),
        .loss = -1, .grad_norm = -1, .resting = filled(arena, n, -1), .gradient = filled(arena, n, -1),
    };
    out->n_chunks = plan->pipeline.chunks;
    out->slots = mpp_arena_array(arena, out->n_chunks, int64_t);
    if (out->n_chunks > 1)
        mpp_pipeline_slots(&plan->pipeline, number, out->slots);
    else
        out->slots[0] = stage->in_flight;
    struct mpp_lowering l = {
        .p = out, .g = graph, .stage = stage, .overlap = overlap, .transfers = transfers, .number = number,
        .n_stages = plan->n_stages,
        .home = filled(arena, n, -1), .made = mpp_arena_array(arena, n, struct mpp_sharding),
        .producer = filled(arena, n, -1), .first_use = filled(arena, n + 1, 0),
        .copy_buffer = filled(arena, stage->n_copies, -1), .copy_of = filled(arena, n, -1),
        .next_of = filled(arena, stage->n_copies, -1), .copy_at = filled(arena, graph->n_groups, -1),
        .next_at = filled(arena, stage->n_copies, -1), .direct = filled(arena, n, -1),
        .direct_mode = mpp_arena_array(arena, n, enum mpp_write_mode), .scalar_sum = filled(arena, n, -1),
        .sum_buffer = filled(arena, graph->n_groups, -1),
    };
    note_uses(&l);
    note_copies(&l);
    note_repeats(&l);
    plan_direct_writes(&l);
    plan_scalar_sums(&l);
    lower_resting(&l);
    bool updating = false;
    for (int i = 0; i < graph->n_groups; i++) {
        if (graph->groups[i].phase == MPP_PHASE_UPDATE && !updating) {
            updating = true;
            mpp_lower_gradients(&l);
            mpp_lower_exchange(&l);
            start_scalar_sums(&l);
        }
        lower_group(&l, i);
    }
    mpp_lower_no_term(&l);
    note_outputs(&l);
    mpp_lower_epilogues(out);
}

/* SCATTERS_OUT: a sum that takes memory of its own begins early. */
static struct mpp_lprog *lower(struct mpp_arena *arena, const struct mpp_graph *graph, const struct mpp_plan *plan, int stage,
                               const struct mpp_transfers *transfers, bool overlap, int prefetch, bool *scatters_out)
{
    struct mpp_flat_program flat;
    mpp_lower_flat(arena, graph, plan, stage, transfers, overlap, &flat);
    *scatters_out = false;
    for (int i = 0; i < flat.n_flats; i++)
        *scatters_out = *scatters_out || (flat.flats[i].instr.begins && flat.flats[i].instr.step->kind == MPP_STEP_REDUCE_SCATTER);
    struct mpp_lprog *prog = mpp_arena_array(arena, 1, struct mpp_lprog);
    prog->overlap = overlap;
    mpp_roll(&flat, prog);
    if (prefetch > 0 && mpp_prefetch(graph, arena, prefetch > 1, prog))
        prog->prefetch = prefetch;
    mpp_memory_plan(graph, &plan->stages[stage], plan->micro_batches, prog);
    return prog;
}

static bool gathers(const struct mpp_stage *stage)
{
    for (int c = 0; c < stage->n_copies; c++)
        for (int i = 0; i < stage->copies[c].n_steps; i++)
            if (stage->copies[c].steps[i].kind == MPP_STEP_ALL_GATHER && stage->copies[c].phase != MPP_PHASE_UPDATE)
                return true;
    return false;
}

/* May the arena be as large as that of EARLY, where LATE begins less early? */
static bool affordable(const struct mpp_lprog *early, const struct mpp_lprog *late, int64_t capacity_bytes)
{
    int64_t most = late->arena_bytes + late->arena_bytes / OVERLAP_SHARE;
    return early->arena_bytes <= (most < capacity_bytes ? most : capacity_bytes);
}

enum mpp_status mpp_lower(struct mpp_arena *arena, const struct mpp_graph *graph, const struct mpp_plan *plan,
                          int stage, const struct mpp_transfers *transfers, int64_t capacity_bytes, struct mpp_lprog **out)
{
    bool any, none;
    *out = lower(arena, graph, plan, stage, transfers, true, 0, &any);
    if (any) {
        struct mpp_lprog *late = lower(arena, graph, plan, stage, transfers, false, 0, &none);
        *out = affordable(*out, late, capacity_bytes) ? *out : late;
    }
    for (int prefetch = 2; prefetch > 0 && gathers(&plan->stages[stage]); prefetch--) {
        struct mpp_lprog *early = lower(arena, graph, plan, stage, transfers, (*out)->overlap, prefetch, &none);
        if (early->prefetch == 0)
            break;
        if (affordable(early, *out, capacity_bytes)) {
            *out = early;
            break;
        }
    }
    mpp_beside_plan(arena, plan, stage, transfers, *out, &(*out)->memory.beside);
    return MPP_OK;
}

enum mpp_status mpp_lower_least(struct mpp_arena *arena, const struct mpp_graph *graph, const struct mpp_plan *plan, int stage,
                                const struct mpp_transfers *transfers, struct mpp_lprog **out)
{
    bool none;
    *out = lower(arena, graph, plan, stage, transfers, false, 0, &none);
    mpp_beside_plan(arena, plan, stage, transfers, *out, &(*out)->memory.beside);
    return MPP_OK;
}
