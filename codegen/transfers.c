/* transfers.c - what crosses the borders of stages: values, gradients, and the sums of what several stages share.
 *
 * A Send of one stage and the Recvs of the same tensor in others make a transfer each. Where the receiver's plan leaves the
 * tensor whole over axes that could split it, each of its devices gets a part, and they gather it among themselves
 * (scatter-gather of Narayanan et al., SC21, section 4.1; priced by planner/price.c).
 *
 * A parameter that several stages have is tied: each has its own terms of the gradient. Once per step the first stage that
 * has it adds up what the others send, in the order of stages, and sends the sum back, so that all update it alike. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/program.h"
#include "ir/op.h"

struct sent {                     /* by a Send op */
    int stage;
    mpp_id tensor;
    int chunk;
    enum mpp_phase phase;
    struct mpp_sharding sharding;
};

struct shared {                   /* a parameter as a stage has it */
    const char *name;
    int stage;
    mpp_id param;
};

struct planning {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const struct mpp_plan *plan;
    struct mpp_transfers *out;
    size_t cap_lines, cap_sent, cap_shared;
    int n_sent, n_shared;
    struct sent *sent;
    struct shared *shared;
};

static const struct mpp_gtensor *tensor_of(const struct planning *p, int stage, mpp_id t)
{
    return &p->plan->stages[stage].graph->tensors[t];
}

static struct mpp_sharding operand_of(const struct mpp_stage *s, int group, int operand)
{
    return mpp_split_operand(s->graph->groups[group].rule, s->split[group], operand);
}

/* ---- how it arrives ---- */

/* How much of the mesh the axes of MASK are. */
static int width_of(const struct mpp_mesh *mesh, unsigned mask)
{
    int n = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        n *= mask >> a & 1 ? mesh->size[a] : 1;
    return n;
}

/* Bad marks for gathering dimension D of T, split as S says, over MASK; -1: impossible. Only the innermost axes of a
 * dimension can be gathered. Parts of equal size are better, and parts that lie one behind the other. */
static int marks(const struct mpp_mesh *mesh, const struct mpp_gtensor *t, struct mpp_sharding s, unsigned mask, int d)
{
    unsigned there = mpp_sharding_mask(s, d), outer = (mask & -mask) - 1;
    int64_t extent = mpp_block_padded(mesh, t->dims[d].size, there), before = 1;
    for (int k = 0; k < d; k++)
        before *= mpp_block_padded(mesh, t->dims[k].size, mpp_sharding_mask(s, k));
    if ((there & ~outer) || t->dims[d].size < width_of(mesh, there | mask))
        return -1;
    return 2 * (extent % width_of(mesh, mask) != 0) + (before > 1);
}

/* T is wanted as TO: how it arrives, and in *OUT the step from there, where that is another sharding. */
static struct mpp_sharding arrival(const struct mpp_mesh *mesh, const struct mpp_gtensor *t, struct mpp_sharding to,
                                   struct mpp_reshard_step *out)
{
    unsigned whole = 0, best_mask = 0;
    int best_dim = -1, best = 0;
    for (int a = 0; a < mesh->n_axes; a++)
        if (mesh->size[a] > 1 && to.axis[a] == MPP_WHOLE)
            whole |= 1u << a;
    for (unsigned mask = 1; mask <= whole; mask++)
        for (int d = 0; d < t->n_dims && (mask & ~whole) == 0; d++) {
            int bad = marks(mesh, t, to, mask, d), wider = width_of(mesh, mask) - width_of(mesh, best_mask);
            if (bad < 0 || wider < 0 || (wider == 0 && best_dim >= 0 && bad >= best))
                continue;
            best_mask = mask;
            best_dim = d;
            best = bad;
        }
    struct mpp_sharding from = to;
    for (int a = 0; a < mesh->n_axes; a++)
        if (best_mask >> a & 1)
            from.axis[a] = (int8_t)best_dim;
    *out = (struct mpp_reshard_step){.kind = MPP_STEP_ALL_GATHER, .mask = best_mask, .dim = best_dim, .to_dim = -1,
                                     .from = from, .to = to, .bytes = mpp_sharding_bytes(t, mesh, to)};
    return from;
}

/* ---- lines ---- */

static struct mpp_transfer_line *add_line(struct planning *p, int from, mpp_id from_tensor, struct mpp_sharding from_sharding,
                                          int to, mpp_id to_tensor, struct mpp_sharding to_sharding, enum mpp_phase phase)
{
    struct mpp_transfers *out = p->out;
    const struct mpp_gtensor *t = tensor_of(p, to, to_tensor);
    out->line = mpp_arena_grow(p->arena, out->line, &p->cap_lines, (size_t)out->n + 1, sizeof *out->line);
    struct mpp_transfer_line *line = &out->line[out->n++];
    *line = (struct mpp_transfer_line){
        .name = t->name, .from_tensor = from_tensor, .to_tensor = to_tensor, .from = from, .to = to, .phase = phase,
        .once = phase == MPP_PHASE_UPDATE, .dtype = t->dtype, .n_dims = t->n_dims, .from_sharding = from_sharding,
        .to_sharding = to_sharding, .depth = 1};
    for (int d = 0; d < t->n_dims; d++) {
        line->dims[d] = t->dims[d].size;
        assert(tensor_of(p, from, from_tensor)->dims[d].size == t->dims[d].size);
        line->from_split[d] = mpp_sharding_mask(from_sharding, d);
        line->to_split[d] = mpp_sharding_mask(to_sharding, d);
    }
    return line;
}

/* ---- values and their gradients ---- */

static void note_sends(struct planning *p, int stage)
{
    const struct mpp_stage *s = &p->plan->stages[stage];
    for (int i = 0; i < s->graph->n_groups; i++) {
        const struct mpp_group *group = &s->graph->groups[i];
        if (s->graph->ops[group->ops[0]].kind != MPP_OP_SEND)
            continue;
        p->sent = mpp_arena_grow(p->arena, p->sent, &p->cap_sent, (size_t)p->n_sent + 1, sizeof *p->sent);
        p->sent[p->n_sent++] = (struct sent){stage, group->in[0], s->graph->ops[group->ops[0]].chunk, group->phase, operand_of(s, i, 0)};
    }
}

/* The transfer that ends in group RECV of stage TO. */
static enum mpp_status match(struct planning *p, int to, int recv)
{
    const struct mpp_stage *s = &p->plan->stages[to];
    const struct mpp_group *group = &s->graph->groups[recv];
    mpp_id t = group->out[0];
    const char *name = s->graph->tensors[t].name;
    const struct sent *found = NULL;
    for (int i = 0; i < p->n_sent; i++) {
        const struct sent *x = &p->sent[i];
        if (x->stage == to || x->phase != group->phase || strcmp(tensor_of(p, x->stage, x->tensor)->name, name) != 0)
            continue;
        if (found) {
            mpp_diag_error(p->diag, (struct mpp_loc){0}, "internal error: stages %d and %d both send %s", found->stage, x->stage, name);
            return MPP_INVALID;
        }
        found = x;
    }
    if (!found) {
        mpp_diag_error(p->diag, (struct mpp_loc){0}, "internal error: no stage sends %s to stage %d", name, to);
        return MPP_INVALID;
    }
    struct mpp_reshard_step gather;
    struct mpp_sharding arrives = arrival(&s->mesh, &s->graph->tensors[t], operand_of(s, recv, group->n_in), &gather);
    struct mpp_transfer_line *line = add_line(p, found->stage, found->tensor, found->sharding, to, t, arrives, group->phase);
    line->gather = gather;
    line->from_chunk = found->chunk;
    line->to_chunk = s->graph->ops[group->ops[0]].chunk;
    return MPP_OK;
}

static enum mpp_status plan_values(struct planning *p)
{
    for (int i = 0; i < p->plan->n_stages; i++)
        note_sends(p, i);
    for (int i = 0; i < p->plan->n_stages; i++) {
        const struct mpp_graph *g = p->plan->stages[i].graph;
        for (int k = 0; k < g->n_groups; k++)
            if (g->ops[g->groups[k].ops[0]].kind == MPP_OP_RECV)
                MPP_TRY(match(p, i, k));
    }
    return MPP_OK;
}

/* ---- tied parameters ---- */

static int by_name(const void *a, const void *b)
{
    const struct shared *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : x->stage - y->stage;
}

/* Tied parameters by the place of the first stage's; stages in order. */
static int by_first(const void *a, const void *b)
{
    const struct shared *const *x = a, *const *y = b;
    return x[0]->stage != y[0]->stage ? x[0]->stage - y[0]->stage : x[0]->param - y[0]->param;
}

static void note_parameters(struct planning *p)
{
    for (int i = 0; i < p->plan->n_stages; i++) {
        const struct mpp_graph *g = p->plan->stages[i].graph;
        for (mpp_id t = 0; t < g->n_tensors; t++) {
            if (g->tensors[t].role != MPP_ROLE_PARAM || g->tensors[t].info->gradient < 0)
                continue;
            p->shared = mpp_arena_grow(p->arena, p->shared, &p->cap_shared, (size_t)p->n_shared + 1, sizeof *p->shared);
            p->shared[p->n_shared++] = (struct shared){g->tensors[t].name, i, t};
        }
    }
    if (p->n_shared > 1)
        qsort(p->shared, (size_t)p->n_shared, sizeof *p->shared, by_name);
}

/* The shardings in which the update of X's stage reads its gradient, to OUT; returns how many. The norm of all gradients
 * reads it in the FIRST stage that has it alone. */
static int gradient_shardings(const struct planning *p, const struct shared *x, bool first, struct mpp_sharding *out, int max)
{
    const struct mpp_stage *s = &p->plan->stages[x->stage];
    const struct mpp_graph *g = s->graph;
    mpp_id acc = g->tensors[x->param].info->gradient;
    int n = 0;
    for (int i = 0; i < g->n_groups; i++) {
        const struct mpp_group *group = &g->groups[i];
        for (int k = 0; k < group->n_in && group->phase == MPP_PHASE_UPDATE; k++) {
            if (group->in[k] != acc || (!first && g->ops[group->ops[0]].kind == MPP_OP_SQUARE_SUM))
                continue;
            struct mpp_sharding want = operand_of(s, i, k);
            bool known = false;
            for (int j = 0; j < n; j++)
                known = known || mpp_sharding_equal(out[j], want);
            if (!known && n < max)
                out[n++] = want;
        }
    }
    return n;
}

enum { MAX_FORMS = 8 };           /* in which the update reads a gradient: the norm in one, the optimiser in another */

/* The exchange of the parameter that stages X [n] have. */
static enum mpp_status exchange(struct planning *p, const struct shared *x, int n)
{
    struct mpp_sharding form[MAX_FORMS], sum[MAX_FORMS];
    mpp_id first_acc = tensor_of(p, x[0].stage, x[0].param)->info->gradient;
    int n_sums = gradient_shardings(p, &x[0], true, sum, MAX_FORMS), first_line = p->out->n;
    for (int k = 0; k < n_sums; k++)
        for (int i = 1; i < n; i++) {
            mpp_id acc = tensor_of(p, x[i].stage, x[i].param)->info->gradient;
            if (gradient_shardings(p, &x[i], false, form, MAX_FORMS) > 0)
                add_line(p, x[i].stage, acc, form[0], x[0].stage, first_acc, sum[k], MPP_PHASE_UPDATE)->adds = true;
        }
    for (int i = 1; i < n; i++) {
        mpp_id acc = tensor_of(p, x[i].stage, x[i].param)->info->gradient;
        int n_forms = gradient_shardings(p, &x[i], false, form, MAX_FORMS);
        for (int k = 0; k < n_forms && n_sums > 0; k++)
            add_line(p, x[0].stage, first_acc, sum[0], x[i].stage, acc, form[k], MPP_PHASE_UPDATE);
    }
    for (int k = first_line; k < p->out->n; k++)
        for (int a = 0; a < MPP_MAX_AXES; a++)
            if (p->out->line[k].from_sharding.axis[a] == MPP_PARTIAL || p->out->line[k].to_sharding.axis[a] == MPP_PARTIAL) {
                mpp_diag_error(p->diag, (struct mpp_loc){0}, "internal error: the update of %s reads partial sums", x->name);
                return MPP_INVALID;
            }
    return MPP_OK;
}

static enum mpp_status plan_tied(struct planning *p)
{
    note_parameters(p);
    const struct shared **tied = mpp_arena_array(p->arena, p->n_shared, const struct shared *);
    int n_tied = 0;
    for (int i = 0; i + 1 < p->n_shared; i++)
        if (strcmp(p->shared[i].name, p->shared[i + 1].name) == 0 && (i == 0 || strcmp(p->shared[i].name, p->shared[i - 1].name) != 0))
            tied[n_tied++] = &p->shared[i];
    if (n_tied > 1)
        qsort(tied, (size_t)n_tied, sizeof *tied, by_first);
    for (int i = 0; i < n_tied; i++) {
        int n = 1;
        while (tied[i] + n < p->shared + p->n_shared && strcmp(tied[i][n].name, tied[i]->name) == 0)
            n++;
        MPP_TRY(exchange(p, tied[i], n));
    }
    return MPP_OK;
}

enum mpp_status mpp_transfers_plan(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_plan *plan,
                                   struct mpp_transfers **out)
{
    struct planning p = {.arena = arena, .diag = diag, .plan = plan, .out = mpp_arena_array(arena, 1, struct mpp_transfers)};
    if (plan->n_stages > 1) {
        MPP_TRY(plan_values(&p));
        MPP_TRY(plan_tied(&p));
    }
    *out = p.out;
    return MPP_OK;
}
