#include "ir/fuse.h"

#include <string.h>

#include "ir/op.h"
#include "ir/shape.h"

struct fit {
    const struct mpp_graph *g;
    struct mpp_arena *arena;
    const int *uses;
    struct mpp_group *group;
    int8_t parent[MPP_FUSE_MAX_OPS][MPP_MAX_FACTORS][2]; /* union-find over (member, factor) */
    int n_in, n_out;
    mpp_id in[MPP_FUSE_MAX_IN], out[MPP_FUSE_MAX_OUT];
    struct mpp_rule_operand in_dims[MPP_FUSE_MAX_IN], out_dims[MPP_FUSE_MAX_OUT];
    struct mpp_rule *rule;
    int8_t number[MPP_FUSE_MAX_OPS][MPP_MAX_FACTORS]; /* of a class's root, in the rule; -1: none yet */
};

bool mpp_fuse_can(const struct mpp_gop *op)
{
    if (strcmp(mpp_op_info(op->kind)->emit, "fused") != 0)
        return false;
    for (int f = 0; f < op->rule->n_factors; f++) {
        if (op->rule->factor[f].kind == MPP_FACTOR_WHOLE) /* slices of unequal extent */
            return false;
    }
    return true;
}

static int member(const struct fit *f, mpp_id op)
{
    for (int m = 0; m < f->group->n_ops; m++) {
        if (f->group->ops[m] == op)
            return m;
    }
    return -1;
}

static const struct mpp_gop *op_of(const struct fit *f, int m)
{
    return &f->g->ops[f->group->ops[m]];
}

static void root(const struct fit *f, int *m, int *factor)
{
    for (;;) {
        int pm = f->parent[*m][*factor][0], pf = f->parent[*m][*factor][1];
        if (pm == *m && pf == *factor)
            return;
        *m = pm;
        *factor = pf;
    }
}

static void unite(struct fit *f, int m1, int f1, int m2, int f2)
{
    root(f, &m1, &f1);
    root(f, &m2, &f2);
    f->parent[m2][f2][0] = (int8_t)m1;
    f->parent[m2][f2][1] = (int8_t)f1;
}

/* Does the operand mention every factor of its rule? */
static bool covers(const struct mpp_rule *rule, const struct mpp_rule_operand *o)
{
    unsigned seen = 0;
    for (int d = 0; d < o->n_dims; d++) {
        if (o->dim[d].n > 0)
            seen |= 1u << o->dim[d].factor[0];
    }
    return seen == (1u << rule->n_factors) - 1;
}

/* Identify the factors of tensors that members hand to each other. */
static bool unify(struct fit *f)
{
    for (int m = 0; m < f->group->n_ops; m++) {
        const struct mpp_gop *op = op_of(f, m);
        for (int i = 0; i < op->rule->n_factors; i++) {
            f->parent[m][i][0] = (int8_t)m;
            f->parent[m][i][1] = (int8_t)i;
        }
        for (int k = 0; k < op->n_in; k++) {
            const struct mpp_gtensor *t = &f->g->tensors[op->in[k]];
            int from = t->op < 0 ? -1 : member(f, t->op);
            if (from < 0)
                continue;
            const struct mpp_gop *maker = op_of(f, from);
            const struct mpp_rule_operand *made = &maker->rule->operand[maker->n_in + t->out_index];
            const struct mpp_rule_operand *read = &op->rule->operand[k];
            if (from >= m || !covers(maker->rule, made) || !covers(op->rule, read))
                return false;
            for (int d = 0; d < made->n_dims; d++) {
                if (made->dim[d].n != read->dim[d].n)
                    return false;
                if (made->dim[d].n > 0)
                    unite(f, from, made->dim[d].factor[0], m, read->dim[d].factor[0]);
            }
        }
    }
    return true;
}

/* The group's number of member M's FACTOR. */
static int number_of(const struct fit *f, int m, int factor)
{
    root(f, &m, &factor);
    return f->number[m][factor];
}

static bool new_number(struct fit *f, int m, int factor)
{
    int rm = m, rf = factor;
    root(f, &rm, &rf);
    if (f->number[rm][rf] >= 0)
        return true;
    if (f->rule->n_factors == MPP_MAX_FACTORS)
        return false;
    f->number[rm][rf] = (int8_t)f->rule->n_factors;
    f->rule->factor[f->rule->n_factors++] = op_of(f, m)->rule->factor[factor];
    return true;
}

/* Take member M's view of its factor into the group's: the strictest kind, a name that is a word. */
static void merge_factor(struct mpp_factor *to, const struct mpp_factor *from)
{
    if (from->kind > to->kind)
        to->kind = from->kind;
    to->even_only |= from->even_only;
    if (!mpp_size_has_word(to->size) && mpp_size_has_word(from->size))
        to->size.name = from->size.name;
}

/* The operand of OP whose dimensions give the loops their order: a result that has all factors, else an input. */
static const struct mpp_rule_operand *loop_order(const struct mpp_gop *op)
{
    for (int k = 0; k < op->n_out + op->n_in; k++) {
        const struct mpp_rule_operand *o = &op->rule->operand[k < op->n_out ? op->n_in + k : k - op->n_out];
        if (covers(op->rule, o))
            return o;
    }
    return &op->rule->operand[op->n_in];
}

/* Number the classes in the order of the first op's loops; every member must walk all of them, once each. */
static bool number_factors(struct fit *f)
{
    memset(f->number, -1, sizeof f->number);
    const struct mpp_gop *first = op_of(f, 0);
    const struct mpp_rule_operand *o = loop_order(first);
    for (int d = 0; d < o->n_dims; d++) {
        if (o->dim[d].n > 0 && !new_number(f, 0, o->dim[d].factor[0]))
            return false;
    }
    for (int i = 0; i < first->rule->n_factors; i++) {
        if (!new_number(f, 0, i))
            return false;
    }
    for (int m = 0; m < f->group->n_ops; m++) {
        const struct mpp_rule *rule = op_of(f, m)->rule;
        unsigned seen = 0;
        for (int i = 0; i < rule->n_factors; i++) {
            int n = number_of(f, m, i);
            if (n < 0 || seen >> n & 1)
                return false;
            seen |= 1u << n;
            merge_factor(&f->rule->factor[n], &rule->factor[i]);
        }
        if (seen != (1u << f->rule->n_factors) - 1)
            return false;
    }
    for (int n = 0; n < f->rule->n_factors; n++)
        f->rule->factor[n].letter = "ijklmnopqrst"[n];
    return true;
}

/* Operand O of member M in the group's factors. */
static struct mpp_rule_operand translate(const struct fit *f, int m, int o)
{
    struct mpp_rule_operand t = op_of(f, m)->rule->operand[o];
    for (int d = 0; d < t.n_dims; d++) {
        for (int i = 0; i < t.dim[d].n; i++)
            t.dim[d].factor[i] = (int8_t)number_of(f, m, t.dim[d].factor[i]);
    }
    return t;
}

static bool same_dims(const struct mpp_rule_operand *a, const struct mpp_rule_operand *b)
{
    if (a->n_dims != b->n_dims)
        return false;
    for (int d = 0; d < a->n_dims; d++) {
        if (a->dim[d].n != b->dim[d].n || (a->dim[d].n > 0 && a->dim[d].factor[0] != b->dim[d].factor[0]))
            return false;
    }
    return true;
}

static bool add_input(struct fit *f, mpp_id t, const struct mpp_rule_operand *dims)
{
    for (int i = 0; i < f->n_in; i++) {
        if (f->in[i] == t)
            return same_dims(&f->in_dims[i], dims); /* one tensor, read in one way */
    }
    if (f->n_in == MPP_FUSE_MAX_IN)
        return false;
    f->in[f->n_in] = t;
    f->in_dims[f->n_in++] = *dims;
    return true;
}

/* The tensors that cross the border. */
static bool collect(struct fit *f)
{
    for (int m = 0; m < f->group->n_ops; m++) {
        const struct mpp_gop *op = op_of(f, m);
        for (int k = 0; k < op->n_in; k++) {
            mpp_id maker = f->g->tensors[op->in[k]].op;
            struct mpp_rule_operand dims = translate(f, m, k);
            if ((maker < 0 || member(f, maker) < 0) && !add_input(f, op->in[k], &dims))
                return false;
        }
        for (int k = 0; k < op->n_out; k++) {
            int inside = 0;
            for (int other = m + 1; other < f->group->n_ops; other++) {
                for (int i = 0; i < op_of(f, other)->n_in; i++)
                    inside += op_of(f, other)->in[i] == op->out[k];
            }
            const struct mpp_gtensor *t = &f->g->tensors[op->out[k]];
            bool wanted = f->uses[op->out[k]] > inside || inside == 0 || t->role != MPP_ROLE_VALUE || t->updates >= 0;
            if (!wanted)
                continue;
            if (f->n_out == MPP_FUSE_MAX_OUT)
                return false;
            f->out[f->n_out] = op->out[k];
            f->out_dims[f->n_out++] = translate(f, m, op->n_in + k);
        }
    }
    return true;
}

static bool all_linear(const struct fit *f)
{
    for (int m = 0; m < f->group->n_ops; m++) {
        if (!op_of(f, m)->rule->linear)
            return false;
    }
    return true;
}

bool mpp_fuse_group(const struct mpp_graph *g, struct mpp_arena *arena, const int *uses, struct mpp_group *group)
{
    struct mpp_rule rule = {0};
    struct fit f = {.g = g, .arena = arena, .uses = uses, .group = group, .rule = &rule};
    if (group->n_ops > MPP_FUSE_MAX_OPS || !unify(&f) || !number_factors(&f) || !collect(&f))
        return false;
    group->phase = op_of(&f, 0)->phase;
    group->n_in = rule.n_in = f.n_in;
    group->n_out = rule.n_out = f.n_out;
    group->in = mpp_arena_memdup(arena, f.in, (size_t)f.n_in * sizeof f.in[0]);
    group->out = mpp_arena_memdup(arena, f.out, (size_t)f.n_out * sizeof f.out[0]);
    rule.linear = f.n_in > 0 && all_linear(&f);
    rule.operand = mpp_arena_array(arena, f.n_in + f.n_out, struct mpp_rule_operand);
    memcpy(rule.operand, f.in_dims, (size_t)f.n_in * sizeof f.in_dims[0]);
    memcpy(rule.operand + f.n_in, f.out_dims, (size_t)f.n_out * sizeof f.out_dims[0]);
    group->rule = mpp_arena_memdup(arena, &rule, sizeof rule);
    return true;
}

void mpp_fuse_fill(const struct mpp_graph *g, struct mpp_arena *arena, const int *uses, struct mpp_group *group)
{
    const struct mpp_gop *op = &g->ops[group->ops[0]];
    if (mpp_fuse_can(op) && mpp_fuse_group(g, arena, uses, group))
        return;
    group->phase = op->phase;
    group->n_in = op->n_in;
    group->n_out = op->n_out;
    group->in = mpp_arena_memdup(arena, op->in, (size_t)op->n_in * sizeof op->in[0]);
    group->out = mpp_arena_memdup(arena, op->out, (size_t)op->n_out * sizeof op->out[0]);
    group->rule = op->rule;
}

int *mpp_fuse_uses(const struct mpp_graph *g, struct mpp_arena *arena)
{
    int *uses = mpp_arena_array(arena, g->n_tensors, int);
    for (mpp_id i = 0; i < g->n_ops; i++) {
        for (int k = 0; k < g->ops[i].n_in; k++) {
            if (g->ops[i].in[k] >= 0)
                uses[g->ops[i].in[k]]++;
        }
    }
    return uses;
}

void mpp_group_factors(const struct mpp_graph *g, const struct mpp_group *group, int member_index, int8_t *out_factor)
{
    struct mpp_rule rule = {0};
    struct mpp_group copy = *group;
    struct fit f = {.g = g, .group = &copy, .rule = &rule};
    const struct mpp_rule *own = g->ops[group->ops[member_index]].rule;
    bool fused = group->rule != own && unify(&f) && number_factors(&f);
    for (int i = 0; i < own->n_factors; i++)
        out_factor[i] = (int8_t)(fused ? number_of(&f, member_index, i) : i);
}
