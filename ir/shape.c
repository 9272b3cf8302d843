#include "ir/shape.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ir/rule_text.h"

enum { MAX_SIZE_NAME = 256 };

/* ---- sizes ---- */

bool mpp_size_is_one(struct mpp_size s)
{
    return s.per_batch == 0 && s.size == 1;
}

bool mpp_size_equal(struct mpp_size a, struct mpp_size b)
{
    return a.size == b.size && a.per_batch == b.per_batch;
}

bool mpp_size_has_word(struct mpp_size s)
{
    if (!s.name)
        return false;
    for (const char *p = s.name; *p; p++) {
        if (isalpha((unsigned char)*p))
            return true;
    }
    return false;
}

static int64_t times(int64_t a, int64_t b)
{
    int64_t p;
    return __builtin_mul_overflow(a, b, &p) ? INT64_MAX : p;
}

struct mpp_size mpp_size_product(struct mpp_arena *arena, const struct mpp_size *dims, int n)
{
    struct mpp_size p = {1, 0, NULL};
    for (int i = 0; i < n; i++) {
        struct mpp_size d = dims[i];
        if (d.per_batch)
            p.per_batch = times(d.per_batch, p.per_batch ? p.per_batch : p.size);
        else if (p.per_batch)
            p.per_batch = times(p.per_batch, d.size);
        p.size = times(p.size, d.size);
        const char *name = d.name ? d.name : mpp_arena_printf(arena, "%lld", (long long)d.size);
        p.name = p.name ? mpp_arena_printf(arena, "%s*%s", p.name, name) : name;
        if (strlen(p.name) > MAX_SIZE_NAME) /* products of products could double it with every op */
            p.name = mpp_arena_printf(arena, "%lld", (long long)p.size);
    }
    if (!p.name)
        p.name = "1";
    return p;
}

/* ---- messages ---- */

const char *mpp_dims_text(struct mpp_arena *arena, const struct mpp_gtensor *t)
{
    const char *text = "[";
    for (int d = 0; d < t->n_dims; d++) {
        struct mpp_size s = t->dims[d];
        text = mpp_size_has_word(s)
                   ? mpp_arena_printf(arena, "%s%s%s %lld", text, d ? ", " : "", s.name, (long long)s.size)
                   : mpp_arena_printf(arena, "%s%s%lld", text, d ? ", " : "", (long long)s.size);
    }
    return mpp_arena_printf(arena, "%s]", text);
}

void mpp_shape_error(const struct mpp_shape_in *in, const char *fmt, ...)
{
    char what[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    const struct mpp_gop *op = in->op;
    const char *type = op->item_type ? op->item_type : mpp_op_info(op->kind)->name;
    const char *name = op->name;
    size_t scope = op->scope ? strlen(op->scope) : 0;
    if (scope && strncmp(name, op->scope, scope) == 0 && name[scope] == '.')
        name += scope + 1;
    mpp_diag_error(in->diag, op->loc, "%s \"%s\": %s", type, name, what);
    if (op->path)
        mpp_diag_note(in->diag, "%s", op->path);
}

/* Where FACTOR already stands among the operands before input K (or its own earlier dimensions). */
static void conflict(const struct mpp_shape_in *in, const struct mpp_rule *rule, int factor, int k, int d)
{
    const struct mpp_gtensor *t = mpp_shape_input(in, k);
    struct mpp_size have = rule->factor[factor].size, found = t->dims[d];
    const char *name = mpp_size_has_word(have)    ? have.name
                       : mpp_size_has_word(found) ? found.name
                                                  : mpp_arena_printf(in->arena, "dimension %d", d);
    const char *first = "another operand";
    for (int o = 0; o <= k; o++) {
        for (int e = 0; e < rule->operand[o].n_dims && (o < k || e < d); e++) {
            for (int f = 0; f < rule->operand[o].dim[e].n; f++) {
                if (rule->operand[o].dim[e].factor[f] != factor)
                    continue;
                const struct mpp_gtensor *other = mpp_shape_input(in, o);
                first = mpp_arena_printf(in->arena, "%s %s", other->name, mpp_dims_text(in->arena, other));
                o = k;
                goto found_first;
            }
        }
    }
found_first:
    mpp_shape_error(in, "%s is %lld in %s and %lld in %s %s%s", name, (long long)have.size, first,
                    (long long)found.size, t->name, mpp_dims_text(in->arena, t),
                    have.size == found.size ? "; only one of them changes with the batch" : "");
}

/* ---- making rules ---- */

const struct mpp_gtensor *mpp_shape_input(const struct mpp_shape_in *in, int k)
{
    return &in->g->tensors[in->op->in[k]];
}

void mpp_rule_begin(const struct mpp_shape_in *in, int n_out, struct mpp_rule *rule)
{
    *rule = (struct mpp_rule){.n_in = in->op->n_in, .n_out = n_out};
    rule->operand = mpp_arena_array(in->arena, rule->n_in + n_out, struct mpp_rule_operand);
    for (int k = 0; k < rule->n_in; k++) {
        if (in->op->in[k] < 0)
            rule->operand[k].n_dims = -1;
    }
}

static bool letter_taken(const struct mpp_rule *rule, char c)
{
    for (int f = 0; f < rule->n_factors; f++) {
        if (rule->factor[f].letter == c)
            return true;
    }
    return false;
}

int mpp_rule_add(const struct mpp_shape_in *in, struct mpp_rule *rule, struct mpp_size size, enum mpp_factor_kind kind)
{
    if (rule->n_factors == MPP_MAX_FACTORS) {
        mpp_shape_error(in, "more than %d different dimensions take part", MPP_MAX_FACTORS);
        return -1;
    }
    const char *letters = "ijklmnopqrstuvwxyzabcdefgh";
    while (letter_taken(rule, *letters))
        letters++;
    rule->factor[rule->n_factors] = (struct mpp_factor){*letters, kind, size, false};
    return rule->n_factors++;
}

void mpp_rule_put(struct mpp_rule_operand *operand, int factor)
{
    struct mpp_rule_dim *dim = &operand->dim[operand->n_dims++];
    dim->n = factor >= 0;
    dim->factor[0] = (int8_t)factor;
}

struct mpp_size mpp_rule_size(struct mpp_arena *arena, const struct mpp_rule *rule, int operand, int dim)
{
    const struct mpp_rule_dim *d = &rule->operand[operand].dim[dim];
    struct mpp_size sizes[3];
    for (int k = 0; k < d->n; k++)
        sizes[k] = rule->factor[d->factor[k]].size;
    return d->n == 1 ? sizes[0] : mpp_size_product(arena, sizes, d->n);
}

bool mpp_shape_agrees(const struct mpp_shape_in *in, struct mpp_rule *rule, int factor, int k, int d)
{
    struct mpp_size *have = &rule->factor[factor].size;
    struct mpp_size found = mpp_shape_input(in, k)->dims[d];
    if (!mpp_size_equal(*have, found)) {
        conflict(in, rule, factor, k, d);
        return false;
    }
    if (!mpp_size_has_word(*have) && mpp_size_has_word(found))
        have->name = found.name;
    return true;
}

static bool is_given(const struct mpp_shape_in *in, int k)
{
    if (in->op->in[k] < 0)
        mpp_shape_error(in, "operand %d is left out, but it is required", k + 1);
    return in->op->in[k] >= 0;
}

static bool has_dtype(const struct mpp_shape_in *in, int k, enum mpp_dtype wanted)
{
    const struct mpp_gtensor *t = mpp_shape_input(in, k);
    if (t->dtype != wanted)
        mpp_shape_error(in, "%s is %s, but %s is wanted", t->name, mpp_dtype_name(t->dtype), mpp_dtype_name(wanted));
    return t->dtype == wanted;
}

enum mpp_status mpp_shape_same_dtype(const struct mpp_shape_in *in, bool floats, int n_out, enum mpp_dtype *out_dtype)
{
    enum mpp_dtype type = MPP_F32;
    for (int k = 0; k < in->op->n_in; k++) {
        if (!is_given(in, k))
            return MPP_INVALID;
        if (k == 0)
            type = floats && !mpp_dtype_is_float(mpp_shape_input(in, 0)->dtype) ? MPP_F32 : mpp_shape_input(in, 0)->dtype;
        if (!has_dtype(in, k, type))
            return MPP_INVALID;
    }
    for (int k = 0; k < n_out; k++)
        out_dtype[k] = type;
    return MPP_OK;
}

enum mpp_status mpp_shape_mixed(const struct mpp_shape_in *in, enum mpp_dtype *out)
{
    bool narrow = mpp_op_info(in->op->kind)->compute == MPP_COMPUTE_NARROW;
    int shaped = -1;              /* what decides so far: its number of dimensions > 0 */
    *out = MPP_F32;
    for (int k = 0; k < in->op->n_in; k++) {
        if (!is_given(in, k))
            return MPP_INVALID;
        const struct mpp_gtensor *t = mpp_shape_input(in, k);
        if (!mpp_dtype_is_float(t->dtype) && !has_dtype(in, k, MPP_F32))
            return MPP_INVALID;
        bool counts = (t->n_dims > 0) > shaped || ((t->n_dims > 0) == shaped && narrow == (t->dtype != MPP_F32));
        shaped = (t->n_dims > 0) > shaped ? t->n_dims > 0 : shaped;
        *out = counts ? t->dtype : *out;
    }
    return MPP_OK;
}

void mpp_shape_set_linear(const struct mpp_shape_in *in, struct mpp_rule *rule)
{
    rule->linear = mpp_op_info(in->op->kind)->linear && in->op->n_in > 0;
    for (int k = 0; k < in->op->n_in; k++)
        rule->linear &= in->op->in[k] >= 0 && mpp_dtype_is_float(mpp_shape_input(in, k)->dtype);
}

int mpp_shape_axis(const struct mpp_shape_in *in, int64_t axis, int n)
{
    if (axis < -n || axis >= n) {
        mpp_shape_error(in, "axis %lld is outside the %d dimensions", (long long)axis, n);
        return -1;
    }
    return (int)(axis < 0 ? axis + n : axis);
}

/* ---- rules given as text ---- */

struct binding {
    const struct mpp_shape_in *in;
    struct mpp_rule_text text;
    struct mpp_rule *rule;
    int first[MPP_MAX_FACTORS], count[MPP_MAX_FACTORS]; /* per letter: its factors; count -1: not met yet */
    enum mpp_dtype type;          /* of the operands that may be rounded; i32: none met yet */
};

static bool meet(struct binding *b, int letter, int nth, int of, int k, int d)
{
    struct mpp_rule_operand *o = &b->rule->operand[k];
    if (b->count[letter] < 0) {
        b->first[letter] = b->rule->n_factors;
        b->count[letter] = of;
        for (int i = 0; i < of; i++) {
            int f = mpp_rule_add(b->in, b->rule, mpp_shape_input(b->in, k)->dims[d + i], b->text.kind[letter]);
            if (f < 0)
                return false;
            if (of == 1 && !letter_taken(b->rule, b->text.letter[letter]))
                b->rule->factor[f].letter = b->text.letter[letter];
        }
    }
    int f = b->first[letter] + nth;
    if (!mpp_shape_agrees(b->in, b->rule, f, k, d))
        return false;
    mpp_rule_put(o, f);
    return true;
}

static bool bind_input(struct binding *b, int k)
{
    const struct mpp_text_operand *text = &b->text.operand[k];
    const struct mpp_gtensor *t = mpp_shape_input(b->in, k);
    bool rounds = !text->i32 && !text->f32;
    if (rounds && b->type == MPP_I32)
        b->type = mpp_dtype_is_float(t->dtype) ? t->dtype : MPP_F32;
    if (!has_dtype(b->in, k, text->i32 ? MPP_I32 : rounds ? b->type : MPP_F32))
        return false;
    int star = -1, d = 0, extra = t->n_dims;
    for (int i = 0; i < text->n_dims; i++) {
        if (text->dim[i].star)
            star = text->dim[i].letter[0];
        else
            extra--;
    }
    int want_extra = star < 0 ? 0 : b->count[star];
    if (want_extra >= 0 ? extra != want_extra : extra < 0) {
        int dims = t->n_dims - extra + (want_extra > 0 ? want_extra : 0);
        mpp_shape_error(b->in, "%s %s has %d dimensions; %s%d are wanted", t->name, mpp_dims_text(b->in->arena, t),
                        t->n_dims, want_extra < 0 ? "at least " : "", dims);
        return false;
    }
    for (int i = 0; i < text->n_dims; i++) {
        const struct mpp_text_dim *dim = &text->dim[i];
        int times = dim->star ? extra : 1;
        if (dim->n != 1)
            return false; /* no row has composite inputs */
        if (times == 0 && b->count[dim->letter[0]] < 0)
            b->count[dim->letter[0]] = 0;
        for (int j = 0; j < times; j++, d++) {
            if (!meet(b, dim->letter[0], j, times, k, d))
                return false;
        }
    }
    return true;
}

static void bind_output(struct binding *b, const struct mpp_text_operand *text, struct mpp_rule_operand *o)
{
    for (int i = 0; i < text->n_dims; i++) {
        const struct mpp_text_dim *dim = &text->dim[i];
        if (dim->star || dim->n == 1) {
            for (int j = 0; j < b->count[dim->letter[0]]; j++)
                mpp_rule_put(o, b->first[dim->letter[0]] + j);
            continue;
        }
        struct mpp_rule_dim *out = &o->dim[o->n_dims++];
        for (int j = 0; j < dim->n; j++)
            out->factor[out->n++] = (int8_t)b->first[dim->letter[j]];
    }
}

enum mpp_status mpp_shape_text(const struct mpp_shape_in *in, struct mpp_rule *out, enum mpp_dtype *out_dtype)
{
    struct binding b = {.in = in, .rule = out, .type = MPP_I32};
    if (!mpp_rule_text_parse(in->text, &b.text) || b.text.n_in != in->op->n_in) {
        mpp_shape_error(in, "takes %d operands, not %d", b.text.n_in, in->op->n_in);
        return MPP_INVALID;
    }
    for (int i = 0; i < b.text.n_letters; i++)
        b.count[i] = -1;
    bool all_given = true;
    for (int k = 0; k < in->op->n_in; k++)
        all_given &= in->op->in[k] >= 0;
    int n_out = b.text.n_out;
    while (n_out > 0 && b.text.operand[b.text.n_in + n_out - 1].optional && !all_given)
        n_out--;
    mpp_rule_begin(in, n_out, out);
    bool ok = true;
    for (int k = 0; k < in->op->n_in && ok; k++) {
        if (in->op->in[k] >= 0) {
            ok = bind_input(&b, k);
        } else if (!b.text.operand[k].optional) {
            mpp_shape_error(in, "operand %d is left out, but it is required", k + 1);
            ok = false;
        }
    }
    if (!ok)
        return MPP_INVALID;
    for (int k = 0; k < n_out; k++) {
        bind_output(&b, &b.text.operand[b.text.n_in + k], &out->operand[out->n_in + k]);
        out_dtype[k] = b.text.operand[b.text.n_in + k].f32 || b.type == MPP_I32 ? MPP_F32 : b.type;
    }
    mpp_shape_set_linear(in, out);
    return MPP_OK;
}
