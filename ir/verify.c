/* What must hold of every graph, whichever pass made it. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ir/names.h"
#include "ir/op.h"
#include "ir/shape.h"

struct verify {
    const struct mpp_graph *g;
    struct mpp_diag *diag;
    struct mpp_arena *arena;      /* scratch */
    const char *pass;
    bool ok;
};

static void fault(struct verify *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void fault(struct verify *v, const char *fmt, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    mpp_diag_error(v->diag, (struct mpp_loc){NULL, 0}, "internal fault after pass %s: %s", v->pass, what);
    v->ok = false;
}

static bool tensor_id(const struct verify *v, mpp_id id)
{
    return id >= 0 && id < v->g->n_tensors;
}

/* ---- tensors ---- */

static void check_source(struct verify *v, const struct mpp_gtensor *t)
{
    bool made = t->op >= 0, needs_op = t->role == MPP_ROLE_VALUE || t->role == MPP_ROLE_ACCUM;
    if (made != needs_op)
        fault(v, "%s %s a producer", t->name, made ? "must not have" : "has not");
    if (made && (t->op >= v->g->n_ops || t->out_index < 0 || t->out_index >= v->g->ops[t->op].n_out ||
                 &v->g->tensors[v->g->ops[t->op].out[t->out_index]] != t))
        fault(v, "%s is not output %d of its producer", t->name, t->out_index);
    if ((t->role == MPP_ROLE_PARAM) != (t->info != NULL))
        fault(v, "%s: exactly the parameters have parameter data", t->name);
}

static void check_sizes(struct verify *v, const struct mpp_gtensor *t)
{
    for (int d = 0; d < t->n_dims; d++) {
        struct mpp_size s = t->dims[d];
        if (s.size < 1 || (s.per_batch > 0 && s.size != s.per_batch * v->g->batch))
            fault(v, "%s: dimension %d is %lld at batch %lld", t->name, d, (long long)s.size, (long long)v->g->batch);
    }
}

static void check_param(struct verify *v, mpp_id id)
{
    const struct mpp_gtensor *t = &v->g->tensors[id];
    const struct mpp_param *info = t->info;
    int64_t published = 1;
    for (int d = 0; d < info->n_published; d++)
        published *= info->published_dims[d];
    if (published != mpp_tensor_count(t))
        fault(v, "%s: published as %lld elements, has %lld", t->name, (long long)published,
              (long long)mpp_tensor_count(t));
    if (t->param != id)
        fault(v, "%s does not belong to itself", t->name);
    if (info->gradient >= 0 &&
        (!tensor_id(v, info->gradient) || v->g->tensors[info->gradient].role != MPP_ROLE_ACCUM ||
         mpp_tensor_count(&v->g->tensors[info->gradient]) != mpp_tensor_count(t)))
        fault(v, "%s: its gradient is not an accumulated tensor of its shape", t->name);
    if (info->master >= 0 && (!tensor_id(v, info->master) || v->g->tensors[info->master].role != MPP_ROLE_STATE ||
                              v->g->tensors[info->master].param != id || v->g->tensors[info->master].dtype != MPP_F32 ||
                              mpp_tensor_count(&v->g->tensors[info->master]) != mpp_tensor_count(t)))
        fault(v, "%s: its master is not a state of its own in f32", t->name);
    if (t->dtype != MPP_F32 && info->master < 0)
        fault(v, "%s is rounded and has no master", t->name);
}

static void check_updates(struct verify *v)
{
    mpp_id *by = mpp_arena_array(v->arena, v->g->n_tensors, mpp_id);
    for (mpp_id i = 0; i < v->g->n_tensors; i++) {
        const struct mpp_gtensor *t = &v->g->tensors[i];
        if (t->updates < 0)
            continue;
        if (!tensor_id(v, t->updates)) {
            fault(v, "%s updates no tensor", t->name);
            continue;
        }
        const struct mpp_gtensor *old = &v->g->tensors[t->updates];
        if (old->role != MPP_ROLE_PARAM && old->role != MPP_ROLE_STATE)
            fault(v, "%s updates %s, which does not live across steps", t->name, old->name);
        if (by[t->updates])
            fault(v, "%s is updated twice", old->name);
        if (t->op >= 0 && t->op < v->g->n_ops && v->g->ops[t->op].phase != MPP_PHASE_UPDATE)
            fault(v, "%s is updated outside the update", old->name);
        if (t->n_dims != old->n_dims || mpp_tensor_count(t) != mpp_tensor_count(old) || t->dtype != old->dtype)
            fault(v, "%s has not the shape and type of %s, which it updates", t->name, old->name);
        by[t->updates] = i + 1;
    }
}

static void check_tensors(struct verify *v)
{
    struct mpp_names *names = mpp_names_new(v->arena);
    for (mpp_id i = 0; i < v->g->n_tensors; i++) {
        const struct mpp_gtensor *t = &v->g->tensors[i];
        if (!mpp_names_put(names, t->name, i))
            fault(v, "two tensors are called %s", t->name);
        check_source(v, t);
        check_sizes(v, t);
        if (t->role == MPP_ROLE_PARAM && t->info)
            check_param(v, i);
        if (t->role == MPP_ROLE_STATE && (!tensor_id(v, t->param) || v->g->tensors[t->param].role != MPP_ROLE_PARAM))
            fault(v, "%s belongs to no parameter", t->name);
    }
    check_updates(v);
}

/* ---- ops ---- */

/* The operand's dimensions are what its factors say; every operand indexes known factors. */
static void check_operand(struct verify *v, const char *what, const struct mpp_rule *rule, int o, mpp_id id)
{
    const struct mpp_gtensor *t = &v->g->tensors[id];
    const struct mpp_rule_operand *operand = &rule->operand[o];
    if (operand->n_dims != t->n_dims) {
        fault(v, "%s: rule gives %s %d dimensions, not %d", what, t->name, operand->n_dims, t->n_dims);
        return;
    }
    for (int d = 0; d < t->n_dims; d++) {
        for (int k = 0; k < operand->dim[d].n; k++) {
            if (operand->dim[d].factor[k] < 0 || operand->dim[d].factor[k] >= rule->n_factors) {
                fault(v, "%s: operand %d names a factor that is not there", what, o);
                return;
            }
        }
        struct mpp_size s = mpp_rule_size(v->arena, rule, o, d);
        if (!mpp_size_equal(s, t->dims[d]))
            fault(v, "%s: dimension %d of %s is %lld, its factors make %lld", what, d, t->name,
                  (long long)t->dims[d].size, (long long)s.size);
    }
}

static void check_rule(struct verify *v, const char *what, const struct mpp_rule *rule, int n_in, const mpp_id *in,
                       int n_out, const mpp_id *out)
{
    if (!rule || rule->n_in != n_in || rule->n_out != n_out) {
        fault(v, "%s: no rule for its operands", what);
        return;
    }
    for (int f = 0; f < rule->n_factors; f++) {
        for (int e = 0; e < f; e++) {
            if (rule->factor[e].letter == rule->factor[f].letter)
                fault(v, "%s: two factors are called %c", what, rule->factor[f].letter);
        }
    }
    for (int k = 0; k < n_in + n_out; k++) {
        mpp_id id = k < n_in ? in[k] : out[k - n_in];
        if (id >= 0)
            check_operand(v, what, rule, k, id);
        else if (rule->operand[k].n_dims >= 0)
            fault(v, "%s: rule for operand %d, which is left out", what, k);
    }
}

static void check_inputs(struct verify *v, mpp_id o)
{
    const struct mpp_gop *op = &v->g->ops[o];
    for (int k = 0; k < op->n_in; k++) {
        if (op->in[k] == -1)
            continue;
        if (!tensor_id(v, op->in[k])) {
            fault(v, "%s: input %d is no tensor", op->name, k);
            continue;
        }
        const struct mpp_gtensor *t = &v->g->tensors[op->in[k]];
        if (t->op >= o)
            fault(v, "%s reads %s before it is made", op->name, t->name);
        else if (t->op >= 0 && op->phase == MPP_PHASE_UPDATE && v->g->ops[t->op].phase != MPP_PHASE_UPDATE &&
                 t->role != MPP_ROLE_ACCUM)
            fault(v, "%s, once per step, reads %s of one micro-batch", op->name, t->name);
        else if (t->op >= 0 && t->role == MPP_ROLE_ACCUM && v->g->ops[t->op].phase == op->phase)
            fault(v, "%s reads the sum %s while it is being made", op->name, t->name);
    }
}

static void check_ops(struct verify *v)
{
    const struct mpp_graph *g = v->g;
    struct mpp_names *names = mpp_names_new(v->arena);
    for (mpp_id o = 0; o < g->n_ops; o++) {
        const struct mpp_gop *op = &g->ops[o];
        if (op->kind < 0 || op->kind >= MPP_OP_COUNT) {
            fault(v, "%s: no such op kind", op->name);
            continue;
        }
        if (op->phase <= MPP_PHASE_FORWARD && !mpp_names_put(names, op->name, o)) /* backward ops refer to them */
            fault(v, "two ops are called %s", op->name);
        if (o > 0 && op->phase < g->ops[o - 1].phase)
            fault(v, "%s comes after a later phase", op->name);
        if (op->forward >= 0 && (op->forward >= o || g->ops[op->forward].phase == MPP_PHASE_BACKWARD))
            fault(v, "%s: its forward op is not one", op->name);
        check_inputs(v, o);
        for (int k = 0; k < op->n_out; k++) {
            if (!tensor_id(v, op->out[k]) || g->tensors[op->out[k]].op != o || g->tensors[op->out[k]].out_index != k)
                fault(v, "%s: output %d has another producer", op->name, k);
        }
        if (v->ok)
            check_rule(v, op->name, op->rule, op->n_in, op->in, op->n_out, op->out);
    }
}

/* ---- groups ---- */

static bool in_list(const mpp_id *list, int n, mpp_id id)
{
    for (int i = 0; i < n; i++) {
        if (list[i] == id)
            return true;
    }
    return false;
}

static void check_group(struct verify *v, int i, mpp_id first)
{
    const struct mpp_graph *g = v->g;
    const struct mpp_group *group = &g->groups[i];
    const struct mpp_gop *head = &g->ops[first];
    for (int m = 0; m < group->n_ops; m++) {
        const struct mpp_gop *op = &g->ops[first + m];
        if (group->ops[m] != first + m)
            fault(v, "group %d (%s): its ops are not contiguous", i, head->name);
        if (op->phase != group->phase || op->repeat != head->repeat || op->index != head->index || op->chunk != head->chunk)
            fault(v, "group %d (%s) crosses a phase or layer", i, head->name);
        for (int k = 0; k < op->n_in; k++) {
            mpp_id maker = op->in[k] < 0 ? -1 : g->tensors[op->in[k]].op;
            bool inside = maker >= first && maker < first + group->n_ops;
            if (op->in[k] >= 0 && !inside && !in_list(group->in, group->n_in, op->in[k]))
                fault(v, "group %d (%s): %s is not among its inputs", i, head->name, g->tensors[op->in[k]].name);
        }
    }
    check_rule(v, head->name, group->rule, group->n_in, group->in, group->n_out, group->out);
}

static void check_groups(struct verify *v)
{
    const struct mpp_graph *g = v->g;
    mpp_id first = 0;
    int *group_of = mpp_arena_array(v->arena, g->n_ops, int);
    for (int i = 0; i < g->n_groups; i++) {
        if (g->groups[i].n_ops < 1 || first + g->groups[i].n_ops > g->n_ops) {
            fault(v, "groups don't hold every op once");
            return;
        }
        check_group(v, i, first);
        for (int m = 0; m < g->groups[i].n_ops; m++)
            group_of[first++] = i;
    }
    if (first != g->n_ops)
        fault(v, "groups don't hold every op once");
    for (mpp_id o = 0; o < g->n_ops && v->ok; o++) {
        for (int k = 0; k < g->ops[o].n_in; k++) {
            const struct mpp_gtensor *t = g->ops[o].in[k] < 0 ? NULL : &g->tensors[g->ops[o].in[k]];
            if (!t || t->op < 0 || group_of[t->op] == group_of[o])
                continue;
            const struct mpp_group *maker = &g->groups[group_of[t->op]];
            if (!in_list(maker->out, maker->n_out, g->ops[o].in[k]))
                fault(v, "%s leaves a group without being one of its outputs", t->name);
        }
    }
}

enum mpp_status mpp_graph_verify(const struct mpp_graph *g, struct mpp_diag *diag, const char *pass)
{
    struct verify v = {.g = g, .diag = diag, .arena = mpp_arena_scratch(g->arena), .pass = pass, .ok = true};
    check_tensors(&v);
    check_ops(&v);
    if (v.ok && g->groups)
        check_groups(&v);
    if (g->loss >= 0 && (!tensor_id(&v, g->loss) || g->tensors[g->loss].n_dims != 0))
        fault(&v, "the loss is not a scalar");
    mpp_arena_free(v.arena);
    return v.ok ? MPP_OK : MPP_INVALID;
}
