#include "ir/graph.h"

#include <assert.h>
#include <string.h>

#include "ir/graph_edit.h"
#include "ir/names.h"
#include "ir/op.h"
#include "ir/shape.h"

enum { MAX_OUTPUTS = 64 };

int mpp_dtype_bytes(enum mpp_dtype t)
{
    return t == MPP_BF16 || t == MPP_F16 ? 2 : 4;
}

const char *mpp_dtype_name(enum mpp_dtype t)
{
    static const char *const names[] = {[MPP_F32] = "f32", [MPP_I32] = "i32", [MPP_BF16] = "bf16", [MPP_F16] = "f16"};
    return names[t];
}

int64_t mpp_tensor_count(const struct mpp_gtensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->n_dims; d++)
        n *= t->dims[d].size;
    return n;
}

int64_t mpp_tensor_bytes(const struct mpp_gtensor *t)
{
    return mpp_tensor_count(t) * mpp_dtype_bytes(t->dtype);
}

bool mpp_graph_is_weight(const struct mpp_graph *g, mpp_id t)
{
    return g->tensors[t].role == MPP_ROLE_PARAM && (g->loss_scale < 0 || g->tensors[t].info->gradient >= 0);
}

int64_t mpp_graph_param_count(const struct mpp_graph *g)
{
    int64_t n = 0;
    for (mpp_id i = 0; i < g->n_tensors; i++)
        n += mpp_graph_is_weight(g, i) ? mpp_tensor_count(&g->tensors[i]) : 0;
    return n;
}

/* ---- making ---- */

struct mpp_graph *mpp_graph_new(struct mpp_arena *arena, const struct mpp_model *model, int64_t global_batch)
{
    struct mpp_graph *g = mpp_arena_array(arena, 1, struct mpp_graph);
    g->arena = arena;
    g->model = model;
    g->global_batch = g->batch = global_batch;
    g->loss = g->loss_total = g->grad_norm = g->loss_scale = -1;
    g->tensor_names = mpp_names_new(arena);
    g->op_names = mpp_names_new(arena);
    return g;
}

mpp_id mpp_graph_add_tensor(struct mpp_graph *g, const char *name, enum mpp_dtype dtype, int n_dims,
                            const struct mpp_size *dims)
{
    assert(n_dims <= MPP_GRAPH_MAX_DIMS);
    g->tensors = mpp_arena_grow(g->arena, g->tensors, &g->cap_tensors, (size_t)g->n_tensors + 1, sizeof *g->tensors);
    struct mpp_gtensor *t = &g->tensors[g->n_tensors];
    *t = (struct mpp_gtensor){.name = mpp_names_take(g->tensor_names, mpp_arena_strdup(g->arena, name), g->n_tensors), .dtype = dtype, .n_dims = n_dims};
    t->op = t->updates = t->param = t->repeat = t->index = -1;
    for (int d = 0; d < n_dims; d++)
        t->dims[d] = dims[d];
    return g->n_tensors++;
}

enum mpp_status mpp_graph_infer(struct mpp_graph *g, struct mpp_diag *diag, const struct mpp_gop *op,
                                struct mpp_rule **out_rule, enum mpp_dtype *out_dtype)
{
    const struct mpp_op_info *info = mpp_op_info(op->kind);
    struct mpp_shape_in in = {.arena = g->arena, .diag = diag, .g = g, .op = op, .text = info->rule};
    *out_rule = mpp_arena_array(g->arena, 1, struct mpp_rule);
    return info->shape(&in, *out_rule, out_dtype);
}

static const char *output_name(struct mpp_graph *g, const char *op, const char *const *names, int k)
{
    if (names && names[k])
        return names[k];
    return k == 0 ? op : mpp_arena_printf(g->arena, "%s:%d", op, k);
}

mpp_id mpp_graph_add_op(struct mpp_graph *g, struct mpp_diag *diag, int kind, const struct mpp_gop *proto, int n_in,
                        const mpp_id *in, struct mpp_attrs attrs, const char *const *out_names)
{
    struct mpp_gop op = *proto;
    op.kind = kind;
    op.n_in = n_in;
    op.in = mpp_arena_memdup(g->arena, in, (size_t)n_in * sizeof *in);
    op.attrs = attrs;
    if (op.phase <= MPP_PHASE_FORWARD) /* backward ops refer to them */
        op.name = mpp_names_take(g->op_names, op.name, g->n_ops);
    struct mpp_rule *rule;
    enum mpp_dtype dtype[MAX_OUTPUTS];
    if (mpp_graph_infer(g, diag, &op, &rule, dtype) != MPP_OK)
        return -1;
    op.rule = rule;
    op.n_out = rule->n_out;
    op.out = mpp_arena_array(g->arena, op.n_out, mpp_id);
    for (int k = 0; k < op.n_out; k++) {
        const struct mpp_rule_operand *o = &rule->operand[n_in + k];
        struct mpp_size dims[MPP_GRAPH_MAX_DIMS];
        for (int d = 0; d < o->n_dims; d++)
            dims[d] = mpp_rule_size(g->arena, rule, n_in + k, d);
        op.out[k] = mpp_graph_add_tensor(g, output_name(g, op.name, out_names, k), dtype[k], o->n_dims, dims);
        struct mpp_gtensor *t = &g->tensors[op.out[k]];
        t->op = g->n_ops;
        t->out_index = k;
        t->repeat = op.repeat;
        t->index = op.index;
    }
    g->ops = mpp_arena_grow(g->arena, g->ops, &g->cap_ops, (size_t)g->n_ops + 1, sizeof *g->ops);
    g->ops[g->n_ops] = op;
    return g->n_ops++;
}

/* ---- order ---- */

void mpp_graph_order(struct mpp_graph *g, const mpp_id *order)
{
    struct mpp_gop *ops = mpp_arena_array(g->arena, g->n_ops, struct mpp_gop);
    mpp_id *place = mpp_arena_array(g->arena, g->n_ops, mpp_id);
    for (mpp_id i = 0; i < g->n_ops; i++) {
        ops[i] = g->ops[order[i]];
        place[order[i]] = i;
    }
    for (mpp_id i = 0; i < g->n_ops; i++) {
        if (ops[i].forward >= 0)
            ops[i].forward = place[ops[i].forward];
    }
    for (mpp_id i = 0; i < g->n_tensors; i++) {
        if (g->tensors[i].op >= 0)
            g->tensors[i].op = place[g->tensors[i].op];
    }
    for (int i = 0; i < g->n_groups; i++) {
        for (int k = 0; k < g->groups[i].n_ops; k++)
            g->groups[i].ops[k] = place[g->groups[i].ops[k]];
    }
    g->ops = ops;
    g->cap_ops = (size_t)g->n_ops;
}

void mpp_graph_order_phases(struct mpp_graph *g)
{
    mpp_id *order = mpp_arena_array(g->arena, g->n_ops, mpp_id), n = 0;
    for (enum mpp_phase phase = MPP_PHASE_PROLOGUE; phase <= MPP_PHASE_UPDATE; phase++) {
        for (mpp_id i = 0; i < g->n_ops; i++) {
            if (g->ops[i].phase == phase)
                order[n++] = i;
        }
    }
    mpp_graph_order(g, order);
}

/* ---- the batch ---- */

struct mpp_size mpp_size_at(struct mpp_size s, int64_t batch)
{
    if (s.per_batch)
        s.size = s.per_batch * batch;
    return s;
}

static void set_rule_batch(const struct mpp_rule *rule, int64_t batch)
{
    struct mpp_rule *r = (struct mpp_rule *)(uintptr_t)rule; /* made in the graph's arena, by the graph */
    for (int f = 0; f < r->n_factors; f++)
        r->factor[f].size = mpp_size_at(r->factor[f].size, batch);
}

static void set_attrs_batch(const struct mpp_attrs *attrs, int64_t batch)
{
    for (int i = 0; i < attrs->n; i++) {
        const struct mpp_attr *a = &attrs->attr[i];
        struct mpp_size *dims = (struct mpp_size *)(uintptr_t)a->dims; /* the same */
        for (int d = 0; a->type == MPP_ATTR_DIMS && d < a->n; d++) {
            if (dims[d].per_batch)
                dims[d] = mpp_size_at(dims[d], batch);
        }
    }
}

void mpp_graph_set_batch(struct mpp_graph *g, int64_t batch)
{
    g->batch = batch;
    for (mpp_id i = 0; i < g->n_tensors; i++) {
        for (int d = 0; d < g->tensors[i].n_dims; d++)
            g->tensors[i].dims[d] = mpp_size_at(g->tensors[i].dims[d], batch);
    }
    for (mpp_id i = 0; i < g->n_ops; i++) {
        set_rule_batch(g->ops[i].rule, batch);
        set_attrs_batch(&g->ops[i].attrs, batch);
    }
    for (int i = 0; i < g->n_groups; i++)
        set_rule_batch(g->groups[i].rule, batch);
}

/* ---- attributes ---- */

struct mpp_attr mpp_attr_int(const char *name, int64_t value)
{
    return (struct mpp_attr){.name = name, .type = MPP_ATTR_INT, .i = value};
}

struct mpp_attr mpp_attr_bool(const char *name, bool value)
{
    return (struct mpp_attr){.name = name, .type = MPP_ATTR_BOOL, .i = value};
}

struct mpp_attr mpp_attr_float(const char *name, double value)
{
    return (struct mpp_attr){.name = name, .type = MPP_ATTR_FLOAT, .f = value};
}

struct mpp_attr mpp_attr_string(const char *name, const char *value)
{
    return (struct mpp_attr){.name = name, .type = MPP_ATTR_STRING, .s = value};
}

struct mpp_attr mpp_attr_ints(const char *name, int n, const int64_t *values)
{
    return (struct mpp_attr){.name = name, .type = MPP_ATTR_INTS, .n = n, .ints = values};
}

struct mpp_attr mpp_attr_dims(const char *name, int n, const struct mpp_size *values)
{
    return (struct mpp_attr){.name = name, .type = MPP_ATTR_DIMS, .n = n, .dims = values};
}

struct mpp_attrs mpp_attrs_make(struct mpp_arena *arena, int n, const struct mpp_attr *attrs)
{
    struct mpp_attr *copy = mpp_arena_memdup(arena, attrs, (size_t)n * sizeof *attrs);
    for (int i = 0; i < n; i++) {
        if (copy[i].type == MPP_ATTR_INTS)
            copy[i].ints = mpp_arena_memdup(arena, copy[i].ints, (size_t)copy[i].n * sizeof(int64_t));
        if (copy[i].type == MPP_ATTR_DIMS)
            copy[i].dims = mpp_arena_memdup(arena, copy[i].dims, (size_t)copy[i].n * sizeof(struct mpp_size));
        if (copy[i].type == MPP_ATTR_STRING)
            copy[i].s = mpp_arena_strdup(arena, copy[i].s);
    }
    return (struct mpp_attrs){n, copy};
}
