/* emit_value.c - values of a fused group at one point of its iteration space, as C expressions. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "codegen/emit_fused.h"

struct fused_tensor *mpp_fused_find(struct fused *f, mpp_id t)
{
    for (int i = 0; i < f->n_tensors; i++)
        if (f->tensor[i].id == t)
            return &f->tensor[i];
    return NULL;
}

unsigned mpp_fused_axes(const struct fused *f, int factor)
{
    return mpp_emit_axes(f->e, f->instr->split, factor);
}

bool mpp_fused_unrolled(const struct fused *f, int factor)
{
    return f->grp->rule->factor[factor].kind == MPP_FACTOR_NEVER;
}

bool mpp_fused_contains(const struct fused_tensor *t, int factor)
{
    for (int d = 0; d < t->map.n_dims; d++)
        for (int k = 0; k < t->map.dim[d].n; k++)
            if (t->map.dim[d].factor[k] == factor)
                return true;
    return false;
}

int mpp_fused_loop_of(const struct fused *f, int factor)
{
    for (int l = 0; l < f->n_loops; l++)
        for (int k = 0; k < f->loop[l].n_factors; k++)
            if (f->loop[l].factor[k] == factor)
                return l;
    return -1;
}

const char *mpp_fused_in_name(const struct fused *f, int in)
{
    if (f->grp->n_in <= 8)
        return mpp_arena_printf(f->e->arena, "%c", 'a' + in);
    return mpp_arena_printf(f->e->arena, "x%d", in);
}

const char *mpp_fused_out_name(const struct fused *f, int out)
{
    return f->grp->n_out == 1 ? "y" : mpp_arena_printf(f->e->arena, "y%d", out);
}

void mpp_fused_add(struct fused *f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *line = mpp_text_format(f->e->arena, fmt, ap);
    va_end(ap);
    mpp_text_line(&f->text, f->indent, line);
}

/* ---- unrolled entries ---- */

bool mpp_fused_next(const struct fused *f, const struct fused_tensor *t, int *u)
{
    for (int d = t->map.n_dims - 1; d >= 0; d--)
        for (int k = t->map.dim[d].n - 1; k >= 0; k--) {
            int factor = t->map.dim[d].factor[k];
            if (!mpp_fused_unrolled(f, factor))
                continue;
            if (++u[factor] < f->grp->rule->factor[factor].size.size)
                return true;
            u[factor] = 0;
        }
    return false;
}

int mpp_fused_combo(const struct fused *f, const struct fused_tensor *t, const int *u)
{
    int combo = 0;
    for (int d = 0; d < t->map.n_dims; d++)
        for (int k = 0; k < t->map.dim[d].n; k++) {
            int factor = t->map.dim[d].factor[k];
            if (mpp_fused_unrolled(f, factor))
                combo = combo * (int)f->grp->rule->factor[factor].size.size + u[factor];
        }
    return combo;
}

/* ---- elements ---- */

const char *mpp_fused_index(struct fused *f, const struct fused_tensor *t, const int *u)
{
    struct mpp_arena *arena = f->e->arena;
    const char *s = NULL;
    bool sum = false;
    for (int d = 0; d < t->map.n_dims; d++)
        for (int k = 0; k < t->map.dim[d].n; k++) {
            int factor = t->map.dim[d].factor[k], loop = mpp_fused_loop_of(f, factor);
            const char *size, *var;
            if (loop >= 0) {
                if (f->loop[loop].factor[0] != factor)
                    continue;     /* merged into the one before */
                size = f->loop[loop].size;
                var = f->loop[loop].var;
            } else {
                size = mpp_arena_printf(arena, "%lld", (long long)f->grp->rule->factor[factor].size.size);
                var = u[factor] ? mpp_arena_printf(arena, "%d", u[factor]) : NULL;
            }
            if (s)
                s = !strcmp(s, "1") ? size : mpp_arena_printf(arena, sum ? "(%s) * %s" : "%s * %s", s, size);
            sum = sum && !s;
            if (var) {
                sum = s != NULL;
                s = s ? mpp_arena_printf(arena, "%s + %s", s, var) : var;
            } else if (s) {
                sum = false;
            }
        }
    return s ? s : "0";
}

/* ---- ops ---- */

bool mpp_fused_is_reduction(const struct fused *f, const struct fused_tensor *t)
{
    if (t->producer < 0)
        return false;
    const struct mpp_graph *g = f->e->g;
    const struct mpp_gop *op = &g->ops[t->producer];
    enum mpp_op_class cls = mpp_op_info(op->kind)->cls;
    return cls == MPP_CLASS_REDUCE || (cls == MPP_CLASS_KERNEL && op->n_out == 1);
}

static const char *remember(struct fused *f, mpp_id t, int combo, const char *name)
{
    f->memo = mpp_arena_grow(f->e->arena, f->memo, &f->cap_memo, (size_t)f->n_memo + 1, sizeof *f->memo);
    f->memo[f->n_memo++] = (struct fused_memo){t, combo, name};
    return name;
}

/* The expression of an elementwise row with its operands and {attributes} put in. */
static const char *substitute(struct fused *f, const struct mpp_gop *op, const char *const *operand)
{
    struct mpp_text s = {.arena = f->e->arena};
    const char *p = mpp_op_info(op->kind)->expr;
    for (char before = ' '; *p; before = *p++) {
        bool word = (before >= 'a' && before <= 'z') || (before >= 'A' && before <= 'Z') || before == '_'
                    || (before >= '0' && before <= '9') || before == '.';
        bool next = (p[1] >= 'a' && p[1] <= 'z') || p[1] == '_' || (p[1] >= '0' && p[1] <= '9') || p[1] == '(';
        if (*p == '{') {
            const char *end = strchr(p, '}');
            const struct mpp_attr *a = mpp_attrs_find(&op->attrs, mpp_arena_strndup(s.arena, p + 1, (size_t)(end - p - 1)));
            mpp_text_add(&s, "%s", a->type == MPP_ATTR_STRING ? a->s : mpp_emit_float(s.arena, a->f));
            p = end;
        } else if (*p >= 'a' && *p <= 'c' && !word && !next) {
            mpp_text_add(&s, "%s", operand[*p - 'a']);
        } else {
            mpp_text_add(&s, "%c", *p);
        }
    }
    return s.data;
}

/* The global element of Dropout number K at the loops' indices: its first one here plus steps per loop. */
static const char *global_element(struct fused *f, int k)
{
    struct mpp_arena *arena = f->e->arena;
    const struct fused_tensor *t = &f->tensor[f->dropout[k].tensor];
    const char *s = mpp_arena_printf(arena, "first%d", k);
    for (int l = 0; l < f->n_loops; l++)
        if (mpp_fused_contains(t, f->loop[l].factor[0]))
            s = mpp_arena_printf(arena, "%s + (uint64_t)(%s * step%d_%s)", s, f->loop[l].var, k, f->loop[l].var);
    return s;
}

static const char *dropout(struct fused *f, mpp_id id, const char *x)
{
    struct mpp_arena *arena = f->e->arena;
    int k = 0;
    while (f->dropout[k].op != id)
        k++;
    int n = f->n_vars++;
    mpp_fused_add(f, "const uint64_t e%d = %s;", n, global_element(f, k));
    return mpp_arena_printf(arena, "%s * mpp_dropout_factor(mpp_uniform_at(%s, op%d, (uint32_t)e%d, (uint32_t)(e%d >> 32)), ratio%d)",
                            x, f->kernel ? "seed, step" : "r->seed, r->step", k, n, n, k);
}

/* The value of an elementwise op from those of its operands. */
static const char *elementwise(struct fused *f, mpp_id id, const int *u)
{
    const struct mpp_gop *op = &f->e->g->ops[id];
    const char **operand = mpp_arena_array(f->e->arena, op->n_in + 1, const char *);
    for (int i = 0; i < op->n_in; i++)
        operand[i] = mpp_fused_value(f, mpp_fused_find(f, op->in[i]), u);
    if (mpp_op_info(op->kind)->expr)
        return substitute(f, op, operand);
    if (mpp_attrs_find(&op->attrs, "stream"))
        return dropout(f, id, operand[0]);
    const char *s = operand[0];
    for (int i = 1; i < op->n_in; i++)
        s = mpp_arena_printf(f->e->arena, "%s + %s", s, operand[i]);
    return s;
}

/* An unrolled factor that input T has and output U has not, or the other way round. */
static int entry_factor(const struct fused *f, const struct fused_tensor *t, const struct fused_tensor *without)
{
    for (int d = 0; d < t->map.n_dims; d++)
        for (int k = 0; k < t->map.dim[d].n; k++) {
            int factor = t->map.dim[d].factor[k];
            if (mpp_fused_unrolled(f, factor) && !mpp_fused_contains(without, factor))
                return factor;
        }
    return -1;
}

/* Layouts only say which element of which input: a Split's output K is entry K, a stacking Concat's entry K is input K. */
static const char *moved(struct fused *f, const struct mpp_gop *op, struct fused_tensor *t, int *u)
{
    int input = 0;
    if (op->n_out > 1) {
        int factor = entry_factor(f, mpp_fused_find(f, op->in[0]), t);
        if (factor >= 0)
            u[factor] = f->e->g->tensors[t->id].out_index;
    } else if (op->n_in > 1) {
        int factor = entry_factor(f, t, mpp_fused_find(f, op->in[0]));
        input = factor >= 0 ? u[factor] : 0;
    }
    return mpp_fused_value(f, mpp_fused_find(f, op->in[input]), u);
}

/* An element of an input: where it is stood in 16 bits, converted once. */
static const char *loaded(struct fused *f, const struct fused_tensor *t, int combo, const int *u)
{
    struct mpp_arena *arena = f->e->arena;
    enum mpp_dtype dtype = f->e->g->tensors[t->id].dtype;
    const char *x = f->kernel ? mpp_fused_read(f, t, combo, u)
                              : mpp_arena_printf(arena, "%s[%s]", mpp_fused_in_name(f, t->in), mpp_fused_index(f, t, u));
    if (!mpp_emit_is_half(dtype))
        return f->kernel ? remember(f, t->id, combo, x) : x;
    const char *name = mpp_arena_printf(arena, "v%d", f->n_vars++);
    mpp_fused_add(f, "const float %s = %s;", name, mpp_emit_load(arena, dtype, x));
    return remember(f, t->id, combo, name);
}

const char *mpp_fused_value(struct fused *f, struct fused_tensor *t, const int *u)
{
    int combo = mpp_fused_combo(f, t, u);
    for (int i = 0; i < f->n_memo; i++)
        if (f->memo[i].tensor == t->id && f->memo[i].combo == combo)
            return f->memo[i].name;
    if (t->producer < 0)
        return loaded(f, t, combo, u);
    const struct mpp_gop *op = &f->e->g->ops[t->producer];
    int v[MPP_MAX_FACTORS];
    memcpy(v, u, sizeof v);
    if (mpp_op_info(op->kind)->cls == MPP_CLASS_LAYOUT)
        return remember(f, t->id, combo, moved(f, op, t, v));
    if (mpp_fused_is_reduction(f, t)) {
        mpp_emit_fail(f->e, t->producer, "a fused kernel cannot use a sum that it makes itself");
        return "0.0f";
    }
    const char *value = elementwise(f, t->producer, u);
    bool plain = strpbrk(value, " (") == NULL;
    if (plain)
        return remember(f, t->id, combo, value);
    const char *name = mpp_arena_printf(f->e->arena, "v%d", f->n_vars++);
    const char *type = f->e->g->tensors[t->id].dtype == MPP_I32 ? "int32_t" : "float"; /* rounded when stored only */
    mpp_fused_add(f, "const %s %s = %s;", type, name, value);
    return remember(f, t->id, combo, name);
}

const char *mpp_fused_result(struct fused *f, struct fused_tensor *t, const int *u)
{
    if (t->producer < 0 || mpp_op_info(f->e->g->ops[t->producer].kind)->cls != MPP_CLASS_ELEMENTWISE)
        return mpp_fused_value(f, t, u);
    for (int k = 0; k < f->grp->n_ops; k++)
        for (int i = 0; i < f->e->g->ops[f->grp->ops[k]].n_in; i++)
            if (f->e->g->ops[f->grp->ops[k]].in[i] == t->id)
                return mpp_fused_value(f, t, u);
    return elementwise(f, t->producer, u);
}
