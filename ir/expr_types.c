#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ir/expr.h"

enum { MAX_SIZE_NAME = 256 };

const char *mpp_value_type_name(enum mpp_value_type type)
{
    static const char *const names[] = {"int", "float", "bool", "string"};
    return names[type];
}

const char *mpp_value_print(struct mpp_arena *arena, const struct mpp_value *value)
{
    switch (value->type) {
    case MPP_VALUE_INT:
        return mpp_arena_printf(arena, "%" PRId64, value->i);
    case MPP_VALUE_FLOAT:
        return mpp_arena_printf(arena, "%.10g", value->f);
    case MPP_VALUE_BOOL:
        return value->i ? "true" : "false";
    case MPP_VALUE_STRING:
        return value->s;
    }
    return "";
}

static const char *label(const struct mpp_eval *ev)
{
    return ev->what ? ev->what : "the value";
}

static const char *article(enum mpp_value_type type)
{
    static const char *const names[] = {"a whole number", "a number", "true or false", "a string"};
    return names[type];
}

bool mpp_eval_convert(const struct mpp_eval *ev, const char *text, enum mpp_value_type type, struct mpp_value *v)
{
    if (v->type == type)
        return true;
    if (type == MPP_VALUE_FLOAT && v->type == MPP_VALUE_INT) {
        v->type = MPP_VALUE_FLOAT;
        v->f = (double)v->i;
        v->batch = v->batch ? MPP_BATCH_OTHER : MPP_BATCH_NONE;
        return true;
    }
    if (type == MPP_VALUE_INT && v->type == MPP_VALUE_FLOAT && v->f == floor(v->f) && fabs(v->f) < 0x1p53) {
        v->type = MPP_VALUE_INT;
        v->i = (int64_t)v->f;
        return true;
    }
    if (type == MPP_VALUE_BOOL && v->type == MPP_VALUE_INT && (v->i == 0 || v->i == 1)) {
        v->type = MPP_VALUE_BOOL;
        return true;
    }
    const char *shown = mpp_value_print(ev->arena, v);
    if (strcmp(shown, text) == 0)
        mpp_eval_error(ev, "%s must be %s, not \"%.80s\"", label(ev), article(type), text);
    else
        mpp_eval_error(ev, "%s must be %s; \"%.80s\" is %s", label(ev), article(type), text, shown);
    return false;
}

/* An integer that does not depend on the batch. */
static bool fixed_int(const struct mpp_eval *ev, const char *text, struct mpp_value *v)
{
    if (!mpp_eval_convert(ev, text, MPP_VALUE_INT, v))
        return false;
    if (v->batch == MPP_BATCH_NONE)
        return true;
    mpp_eval_error(ev, "%s=\"%.80s\" must not depend on the batch", label(ev), text);
    return false;
}

bool mpp_eval_int(const struct mpp_eval *ev, const char *text, int64_t min, int64_t max, int64_t *out)
{
    struct mpp_value v;
    if (!mpp_eval_value(ev, text, &v, NULL) || !fixed_int(ev, text, &v))
        return false;
    if (v.i < min || v.i > max) {
        if (max == INT64_MAX)
            mpp_eval_error(ev, "%s must be at least %" PRId64 ", not %" PRId64, label(ev), min, v.i);
        else
            mpp_eval_error(ev, "%s must be between %" PRId64 " and %" PRId64 ", not %" PRId64, label(ev), min, max,
                           v.i);
        return false;
    }
    *out = v.i;
    return true;
}

bool mpp_eval_float(const struct mpp_eval *ev, const char *text, double *out)
{
    struct mpp_value v;
    if (!mpp_eval_value(ev, text, &v, NULL) || !mpp_eval_convert(ev, text, MPP_VALUE_FLOAT, &v))
        return false;
    *out = v.f;
    return true;
}

bool mpp_eval_bool(const struct mpp_eval *ev, const char *text, bool *out)
{
    struct mpp_value v;
    if (!mpp_eval_value(ev, text, &v, NULL) || !mpp_eval_convert(ev, text, MPP_VALUE_BOOL, &v))
        return false;
    *out = v.i != 0;
    return true;
}

const char *mpp_eval_string(const struct mpp_eval *ev, const char *text)
{
    const struct mpp_binding *b = mpp_is_identifier(text) ? mpp_env_find(ev->env, text) : NULL;
    return b && b->value.type == MPP_VALUE_STRING ? b->value.s : text;
}

bool mpp_eval_ints(const struct mpp_eval *ev, const char *text, int *out_n, int64_t **out)
{
    struct mpp_value *values;
    const char **texts;
    if (!mpp_eval_list(ev, text, out_n, &values, &texts))
        return false;
    *out = mpp_arena_array(ev->arena, *out_n, int64_t);
    for (int i = 0; i < *out_n; i++) {
        if (!fixed_int(ev, texts[i], &values[i]))
            return false;
        (*out)[i] = values[i].i;
    }
    return true;
}

static bool to_size(const struct mpp_eval *ev, enum mpp_sizes_kind kind, const char *norm, struct mpp_value *v,
                    struct mpp_size *out)
{
    if (!mpp_eval_convert(ev, norm, MPP_VALUE_INT, v))
        return false;
    bool special = kind == MPP_SIZES_ANY && (strcmp(norm, "-1") == 0 || strcmp(norm, "0") == 0);
    if (!special && (v->i < 1 || v->i > MPP_SIZE_MAX)) {
        const char *name = mpp_is_identifier(norm) ? norm : label(ev);
        if (v->i < 1)
            mpp_eval_error(ev, "%s: the size \"%.80s\" is %" PRId64 "; it must be at least 1", name, norm, v->i);
        else
            mpp_eval_error(ev, "%s: the size \"%.80s\" is %" PRId64 ", over 2^40", name, norm, v->i);
        return false;
    }
    if (v->batch == MPP_BATCH_OTHER) {
        mpp_eval_error(ev, "%s: the size \"%.80s\" must be a multiple of the batch for every batch, "
                       "or not depend on it",
                       label(ev), norm);
        return false;
    }
    if (strlen(norm) > MAX_SIZE_NAME)
        norm = mpp_arena_printf(ev->arena, "%" PRId64, v->i);
    *out = (struct mpp_size){.size = v->i, .per_batch = v->batch ? v->per_batch : 0, .name = norm};
    return true;
}

bool mpp_eval_sizes(const struct mpp_eval *ev, const char *text, enum mpp_sizes_kind kind, int *out_n,
                    struct mpp_size **out)
{
    struct mpp_value *values;
    const char **texts;
    if (!mpp_eval_list(ev, text, out_n, &values, &texts))
        return false;
    *out = mpp_arena_array(ev->arena, *out_n, struct mpp_size);
    int64_t product = 1;
    for (int i = 0; i < *out_n; i++) {
        if (!to_size(ev, kind, texts[i], &values[i], &(*out)[i]))
            return false;
        int64_t size = (*out)[i].size > 0 ? (*out)[i].size : 1;
        if (__builtin_mul_overflow(product, size, &product) || product > (int64_t)1 << 62) {
            mpp_eval_error(ev, "%s=\"%.80s\": the product of the sizes is over 2^62", label(ev), text);
            return false;
        }
    }
    return true;
}

bool mpp_eval_call(const struct mpp_eval *ev, const char *text, const char **out)
{
    text = mpp_eval_string(ev, text);
    *out = text;
    const char *open = strchr(text, '(');
    if (!open)
        return true;
    size_t len = strlen(open);
    while (isspace((unsigned char)open[len - 1]))
        len--;
    const char *name = mpp_arena_strndup(ev->arena, text, (size_t)(open - text));
    if (open[len - 1] != ')' || !mpp_is_identifier(name)) {
        mpp_eval_error(ev, "%s=\"%.80s\" is not of the form name(number, ...)", label(ev), text);
        return false;
    }
    int n;
    struct mpp_value *values;
    const char **texts, *args = "";
    if (!mpp_eval_list(ev, mpp_arena_strndup(ev->arena, open + 1, len - 2), &n, &values, &texts))
        return false;
    for (int i = 0; i < n; i++) {
        if (!mpp_eval_convert(ev, texts[i], MPP_VALUE_FLOAT, &values[i]))
            return false;
        args = mpp_arena_printf(ev->arena, "%s%s%.17g", args, i ? "," : "", values[i].f);
    }
    *out = mpp_arena_printf(ev->arena, "%s(%s)", name, args);
    return true;
}
