/* lower_transfer.c - what a stage sends and receives, and sums over all stages. */
#include <assert.h>

#include "codegen/lower_internal.h"
#include "ir/op.h"

/* The ring of transfer K, which this stage sends. */
static void add_ring(struct mpp_lowering *l, int k)
{
    const struct mpp_transfer_line *line = &l->transfers->line[k];
    const char *suffix = mpp_arena_printf(l->p->arena, "_to_stage%d", line->to);
    l->p->ring[k] = mpp_lower_buffer(l, line->from_tensor, line->from_sharding, MPP_BUF_RING, -1, -1, suffix);
    l->p->buffers[l->p->ring[k]].slots = line->depth;
}

static void append_send(struct mpp_lowering *l, int k, int buffer)
{
    assert(buffer >= 0);
    struct mpp_flat *f = mpp_lower_append(l, MPP_INSTR_SEND, l->transfers->line[k].phase, -1, -1, 1, 0);
    f->instr.in[0].buffer = buffer;
    f->instr.transfer = k;
    f->instr.gradient = l->transfers->line[k].once;
    add_ring(l, k);
}

static void append_receive(struct mpp_lowering *l, int k, int buffer)
{
    assert(buffer >= 0);
    struct mpp_flat *f = mpp_lower_append(l, MPP_INSTR_RECEIVE, l->transfers->line[k].phase, -1, -1, 0, 1);
    f->instr.out[0].buffer = buffer;
    f->instr.transfer = k;
    f->instr.gradient = l->transfers->line[k].once;
}

static void lower_send(struct mpp_lowering *l, int group)
{
    const struct mpp_group *grp = &l->g->groups[group];
    int buffer = mpp_lower_find(l, grp->in[0], grp->phase, mpp_lower_wanted(l, group, 0));
    for (int k = 0; k < l->transfers->n; k++) {
        const struct mpp_transfer_line *line = &l->transfers->line[k];
        if (line->from == l->number && line->from_tensor == grp->in[0] && line->phase == grp->phase)
            append_send(l, k, buffer);
    }
}

/* It arrives whole, or in parts that are gathered. */
static void lower_receive(struct mpp_lowering *l, int group)
{
    const struct mpp_group *grp = &l->g->groups[group];
    mpp_id t = grp->out[0];
    int k = 0;
    while (l->transfers->line[k].to != l->number || l->transfers->line[k].to_tensor != t || l->transfers->line[k].phase != grp->phase)
        k++;
    const struct mpp_transfer_line *line = &l->transfers->line[k];
    l->made[t] = mpp_lower_wanted(l, group, grp->n_in);
    l->home[t] = mpp_lower_buffer(l, t, l->made[t], MPP_BUF_VALUE, -1, -1, "");
    if (!line->gather.mask) {
        append_receive(l, k, l->home[t]);
        return;
    }
    int part = mpp_lower_buffer(l, t, line->to_sharding, MPP_BUF_COPY, -1, -1, "_part");
    append_receive(l, k, part);
    struct mpp_flat *f = mpp_lower_append(l, MPP_INSTR_STEP, grp->phase, -1, -1, 1, 1);
    f->instr.in[0].buffer = part;
    f->instr.out[0].buffer = l->home[t];
    f->instr.step = &line->gather;
    f->instr.reason = mpp_arena_printf(l->p->arena, "each device has received its part from stage %d", line->from);
}

bool mpp_lower_transfer(struct mpp_lowering *l, int group)
{
    int kind = mpp_lower_first_op(l, group)->kind;
    if (kind == MPP_OP_SEND)
        lower_send(l, group);
    else if (kind == MPP_OP_RECV)
        lower_receive(l, group);
    return kind == MPP_OP_SEND || kind == MPP_OP_RECV;
}

/* OTHERS' terms are added to the first stage's, the sum replaces theirs. */
void mpp_lower_exchange(struct mpp_lowering *l)
{
    for (int k = 0; k < l->transfers->n; k++) {
        const struct mpp_transfer_line *line = &l->transfers->line[k];
        if (!line->once)
            continue;
        if (line->from == l->number)
            append_send(l, k, mpp_lower_find(l, line->from_tensor, MPP_PHASE_UPDATE, line->from_sharding));
        if (line->to != l->number)
            continue;
        int own = mpp_lower_find(l, line->to_tensor, MPP_PHASE_UPDATE, line->to_sharding);
        if (!line->adds) {
            append_receive(l, k, own);
            continue;
        }
        int term = mpp_lower_buffer(l, line->to_tensor, line->to_sharding, MPP_BUF_VALUE, -1, -1,
                                    mpp_arena_printf(l->p->arena, "_of_stage%d", line->from));
        append_receive(l, k, term);
        struct mpp_flat *f = mpp_lower_append(l, MPP_INSTR_ACCUMULATE, MPP_PHASE_UPDATE, -1, -1, 1, 1);
        f->instr.in[0].buffer = term;
        f->instr.out[0].buffer = own;
        f->instr.mode[0] = MPP_WRITE_ADD;
        f->instr.gradient = true;
        f->instr.reason = mpp_arena_printf(l->p->arena, "stage %d has the parameter too", line->from);
    }
}

bool mpp_lower_counted_elsewhere(const struct mpp_lowering *l, int group)
{
    const struct mpp_group *grp = &l->g->groups[group];
    if (mpp_lower_first_op(l, group)->kind != MPP_OP_SQUARE_SUM)
        return false;
    for (int k = 0; k < l->transfers->n; k++) {
        const struct mpp_transfer_line *line = &l->transfers->line[k];
        if (line->adds && line->from == l->number && line->from_tensor == grp->in[0])
            return true;
    }
    return false;
}

static void append_sum(struct mpp_lowering *l, int buffer)
{
    struct mpp_flat *f = mpp_lower_append(l, MPP_INSTR_SUM_STAGES, MPP_PHASE_UPDATE, -1, -1, 0, buffer >= 0);
    if (buffer >= 0)
        f->instr.out[0].buffer = buffer;
    f->instr.reason = "the norm of all gradients is over all stages";
}

void mpp_lower_sum_stages(struct mpp_lowering *l, int group)
{
    if (l->n_stages == 1 || l->g->grad_norm < 0 || l->producer[l->g->grad_norm] != group)
        return;
    const struct mpp_group *grp = &l->g->groups[group];
    append_sum(l, mpp_lower_find(l, grp->in[0], MPP_PHASE_UPDATE, mpp_lower_wanted(l, group, 0)));
}

void mpp_lower_no_term(struct mpp_lowering *l)
{
    if (l->n_stages > 1 && l->g->grad_norm < 0)
        append_sum(l, -1);
}
