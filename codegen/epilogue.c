/* epilogue.c - what follows a product runs as its epilogue.
 *
 * Where the result of a contraction that is one mpp_gemm goes to one instruction only, a group of the same pass and layer
 * that adds a bias along the columns, a residual, both, or a bias before GELU in its tanh form, the two become one
 * instruction, in the place of the second: the product needs no memory, and is not read again. Groups that do more (the
 * split into q, k and v), or exact GELU, which no epilogue of cuBLASLt computes, stay kernels of their own. */
#include <string.h>

#include "codegen/emit_internal.h"
#include "codegen/lower_internal.h"
#include "ir/op.h"

/* ---- what a group makes of the product it reads ---- */

/* A tensor in a group as a sum: the product and some of the group's operands, or GELU of that. */
struct sum {
    bool known, product, gelu;
    int n, of[2];                 /* operands */
};

static int find(const mpp_id *list, int n, mpp_id t)
{
    int i = 0;
    while (i < n && list[i] != t)
        i++;
    return i < n ? i : -1;
}

static bool same_size(const struct mpp_size *a, const struct mpp_size *b)
{
    return a->size == b->size && a->per_batch == b->per_batch;
}

/* Are A's dimensions, but for leading ones, the innermost of B's? */
static bool is_inner(const struct mpp_gtensor *a, const struct mpp_gtensor *b)
{
    int skip = 0;
    while (skip < a->n_dims && a->dims[skip].size == 1 && a->dims[skip].per_batch == 0)
        skip++;
    for (int i = 1; i <= a->n_dims - skip; i++)
        if (i > b->n_dims || !same_size(&a->dims[a->n_dims - i], &b->dims[b->n_dims - i]))
            return false;
    return true;
}

static bool is_alike(const struct mpp_gtensor *a, const struct mpp_gtensor *b)
{
    return a->n_dims == b->n_dims && is_inner(a, b) && is_inner(b, a) && a->dtype == b->dtype;
}

/* The sum of X and Y to *X; false: too much for an epilogue. */
static bool join(struct sum *x, const struct sum *y)
{
    if (!x->known || !y->known || x->gelu || y->gelu || (x->product && y->product) || x->n + y->n > 2)
        return false;
    for (int i = 0; i < y->n; i++)
        x->of[x->n++] = y->of[i];
    x->product = x->product || y->product;
    return true;
}

struct reading {
    const struct mpp_graph *g;
    const struct mpp_group *group;
    mpp_id product;               /* the tensor */
    struct sum *made;             /* [group->n_ops] */
};

static struct sum sum_of(const struct reading *r, mpp_id t)
{
    if (t == r->product)
        return (struct sum){.known = true, .product = true};
    int in = find(r->group->in, r->group->n_in, t), op = find(r->group->ops, r->group->n_ops, t < 0 ? -1 : r->g->tensors[t].op);
    if (in >= 0)
        return (struct sum){.known = true, .n = 1, .of = {in}};
    return op >= 0 ? r->made[op] : (struct sum){0};
}

static struct sum read_op(const struct reading *r, const struct mpp_gop *op)
{
    struct sum s = sum_of(r, op->n_in > 0 ? op->in[0] : -1);
    if (op->kind == MPP_OP_ADD) {
        struct sum other = sum_of(r, op->in[1]);
        s.known = join(&s, &other);
    } else if (op->kind == MPP_OP_GELU && strcmp(mpp_attrs_string(&op->attrs, "approximate", "none"), "tanh") == 0) {
        s.known = s.known && s.product && !s.gelu;
        s.gelu = true;
    } else {
        s.known = false;
    }
    return s;
}

/* Which of S's operands is the bias and which the residual of Y. */
static bool assign(const struct reading *r, const struct sum *s, const struct mpp_gtensor *y, struct mpp_epilogue *out)
{
    for (int i = 0; i < s->n; i++) {
        const struct mpp_gtensor *t = &r->g->tensors[r->group->in[s->of[i]]];
        if (t->dtype != y->dtype)
            return false;
        if (is_alike(t, y) && out->residual < 0)
            out->residual = s->of[i];
        else if (is_inner(t, y) && out->bias < 0)
            out->bias = s->of[i];
        else
            return false;
    }
    return !(s->gelu && out->residual >= 0);
}

bool mpp_epilogue_read(const struct mpp_graph *g, mpp_id product, mpp_id epilogue, struct mpp_epilogue *out)
{
    const struct mpp_group *group = &g->groups[epilogue];
    struct sum made[4];
    struct reading r = {.g = g, .group = group, .product = g->groups[product].out[0], .made = made};
    *out = (struct mpp_epilogue){.bias = -1, .residual = -1, .y = 0, .pre = -1};
    if (group->n_ops > (int)(sizeof made / sizeof *made) || group->n_out > 2)
        return false;
    for (int k = 0; k < group->n_ops; k++) {
        made[k] = read_op(&r, &g->ops[group->ops[k]]);
        if (!made[k].known)
            return false;
    }
    const struct mpp_gtensor *x = &g->tensors[r.product];
    struct sum y = sum_of(&r, group->out[0]);
    if (group->n_out == 2) {      /* GELU, and what it is of */
        out->y = !y.gelu;
        out->pre = y.gelu;
        struct sum pre = sum_of(&r, group->out[out->pre]);
        y = sum_of(&r, group->out[out->y]);
        if (!y.gelu || pre.gelu || !pre.product || pre.n != y.n || (pre.n == 1 && pre.of[0] != y.of[0])
            || !is_alike(&g->tensors[group->out[out->pre]], x))
            return false;
    }
    if (!y.product || !is_alike(&g->tensors[group->out[out->y]], x))
        return false;
    out->gelu = y.gelu;
    return (y.n > 0 || y.gelu) && assign(&r, &y, x, out);
}

/* ---- joining the two ---- */

static const struct mpp_gop *op_of(const struct mpp_flat_program *p, const struct mpp_instr *in)
{
    return &p->g->ops[p->g->groups[in->group].ops[0]];
}

struct use {                      /* of a buffer's memory, by the buffer that owns it */
    int n, last;                  /* times that it is named; the last flat that names it */
};

static struct use *find_uses(const struct mpp_flat_program *p)
{
    struct use *uses = mpp_arena_array(p->arena, p->n_buffers, struct use);
    for (int i = 0; i < p->n_flats; i++) {
        const struct mpp_instr *in = &p->flats[i].instr;
        for (int k = 0; k < in->n_in + in->n_out; k++) {
            int b = k < in->n_in ? in->in[k].buffer : in->out[k - in->n_in].buffer;
            if (b < 0)
                continue;
            struct use *u = &uses[mpp_buffer_root(p->buffers, b)];
            u->n++;
            u->last = i;
        }
    }
    return uses;
}

static int64_t elements(const struct mpp_buffer *b)
{
    int64_t n = 1;
    for (int d = 0; d < b->n_dims; d++)
        n *= b->padded[d];
    return n;
}

static bool same_block(const struct mpp_buffer *a, const struct mpp_buffer *b)
{
    bool same = a->n_dims == b->n_dims && a->dtype == b->dtype;
    for (int d = 0; same && d < a->n_dims; d++)
        same = a->padded[d] == b->padded[d] && a->split[d] == b->split[d];
    return same;
}

/* Do the blocks on this mesh allow what FOLLOW does to the product of IN? */
static bool fits(const struct mpp_flat_program *p, const struct mpp_instr *in, const struct mpp_instr *follow, const struct mpp_epilogue *x)
{
    const struct mpp_buffer *b = p->buffers, *product = &b[in->out[0].buffer];
    int64_t columns = mpp_emit_einsum_columns(p->g, &p->stage->mesh, &p->g->groups[in->group], in->split);
    bool ok = columns > 0 && b[in->in[0].buffer].dtype == product->dtype;
    ok = ok && (x->bias < 0 || elements(&b[follow->in[x->bias].buffer]) == columns);
    ok = ok && (x->residual < 0 || same_block(&b[follow->in[x->residual].buffer], product));
    for (int o = 0; ok && o < follow->n_out; o++)
        ok = follow->mode[o] == MPP_WRITE && same_block(&b[follow->out[o].buffer], product);
    return ok;
}

/* May the contraction FROM run right before flat TO? Nothing between them writes what it reads. */
static bool can_wait(const struct mpp_flat_program *p, int from, int to)
{
    const struct mpp_instr *in = &p->flats[from].instr;
    for (int i = from + 1; i < to; i++)
        for (int o = 0; o < p->flats[i].instr.n_out; o++) {
            int b = p->flats[i].instr.out[o].buffer;
            for (int k = 0; b >= 0 && k < in->n_in; k++)
                if (mpp_buffer_root(p->buffers, b) == mpp_buffer_root(p->buffers, in->in[k].buffer))
                    return false;
        }
    return true;
}

/* The flat that FROM's product is for, where it can be FROM's epilogue; -1. */
static int follower(const struct mpp_flat_program *p, int from, const struct use *uses)
{
    const struct mpp_flat *f = &p->flats[from];
    const struct mpp_instr *in = &f->instr;
    if (in->kind != MPP_INSTR_COMPUTE || mpp_op_info(op_of(p, in)->kind)->cls != MPP_CLASS_CONTRACTION || in->n_out != 1
        || in->mode[0] != MPP_WRITE || f->phase == MPP_PHASE_UPDATE)
        return -1;
    int product = in->out[0].buffer, to = uses[product].last;
    if (p->buffers[product].kind != MPP_BUF_VALUE || p->buffers[product].alias >= 0 || uses[product].n != 2 || to <= from)
        return -1;
    const struct mpp_flat *g = &p->flats[to];
    struct mpp_epilogue x;
    bool ok = g->instr.kind == MPP_INSTR_COMPUTE && g->phase == f->phase && g->repeat == f->repeat && g->index == f->index
              && g->chunk == f->chunk && g->instr.once == in->once && g->instr.epilogue < 0
              && mpp_epilogue_read(p->g, in->group, g->instr.group, &x) && fits(p, in, &g->instr, &x) && can_wait(p, from, to);
    return ok ? to : -1;
}

/* IN and FOLLOW as one. */
static struct mpp_instr joined(const struct mpp_flat_program *p, const struct mpp_instr *in, const struct mpp_instr *follow)
{
    struct mpp_instr one = *in;
    one.epilogue = follow->group;
    one.n_in = in->n_in + follow->n_in;
    one.in = mpp_arena_array(p->arena, one.n_in, struct mpp_bufref);
    for (int i = 0; i < one.n_in; i++)
        one.in[i] = i < in->n_in ? in->in[i] : follow->in[i - in->n_in];
    for (int i = in->n_in; i < one.n_in; i++)
        if (one.in[i].buffer == in->out[0].buffer)
            one.in[i].buffer = -1;
    one.n_out = follow->n_out;
    one.out = follow->out;
    one.mode = follow->mode;
    return one;
}

void mpp_lower_epilogues(struct mpp_flat_program *p)
{
    const struct use *uses = find_uses(p);
    bool *gone = mpp_arena_array(p->arena, p->n_flats, bool);
    for (int i = 0; i < p->n_flats; i++) {
        int to = follower(p, i, uses);
        if (to < 0)
            continue;
        p->flats[to].instr = joined(p, &p->flats[i].instr, &p->flats[to].instr);
        gone[i] = true;
    }
    int n = 0;
    for (int i = 0; i < p->n_flats; i++)
        if (!gone[i])
            p->flats[n++] = p->flats[i];
    p->n_flats = n;
}
