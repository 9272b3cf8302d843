#include "ir/rule.h"

#include <ctype.h>
#include <string.h>

#include "ir/rule_text.h"

int mpp_rule_find(const struct mpp_rule *rule, int operand, int factor)
{
    const struct mpp_rule_operand *o = &rule->operand[operand];
    for (int d = 0; d < o->n_dims; d++) {
        if (o->dim[d].n > 0 && o->dim[d].factor[0] == factor)
            return d;
    }
    return -1;
}

bool mpp_rule_can_split(const struct mpp_rule *rule, int factor, int k)
{
    const struct mpp_factor *f = &rule->factor[factor];
    if (f->kind == MPP_FACTOR_WHOLE || f->kind == MPP_FACTOR_NEVER)
        return false;
    return k <= f->size.size && (!f->even_only || f->size.size % k == 0);
}

/* ---- the written form ---- */

struct scanner {
    const char *p;
    struct mpp_rule_text *text;
};

static void skip_spaces(struct scanner *s)
{
    while (*s->p == ' ')
        s->p++;
}

static bool mark_of(char c, enum mpp_factor_kind *out)
{
    switch (c) {
    case '+': *out = MPP_FACTOR_SUM; return true;
    case '~': *out = MPP_FACTOR_INTERNAL; return true;
    case '!': *out = MPP_FACTOR_WHOLE; return true;
    case '^': *out = MPP_FACTOR_NEVER; return true;
    default: return false;
    }
}

/* A letter with its mark; returns its index, or -1. */
static int scan_letter(struct scanner *s)
{
    struct mpp_rule_text *t = s->text;
    if (!isalpha((unsigned char)*s->p))
        return -1;
    const char *known = memchr(t->letter, *s->p, (size_t)t->n_letters);
    int index = known ? (int)(known - t->letter) : t->n_letters;
    if (!known) {
        if (t->n_letters == MPP_MAX_FACTORS)
            return -1;
        t->letter[t->n_letters] = *s->p;
        t->kind[t->n_letters++] = MPP_FACTOR_FREE;
    }
    s->p++;
    enum mpp_factor_kind kind;
    if (mark_of(*s->p, &kind)) {
        if (known)
            return -1; /* marks stand at the first mention */
        t->kind[index] = kind;
        s->p++;
    }
    return index;
}

static bool scan_dim(struct scanner *s, struct mpp_text_dim *dim)
{
    *dim = (struct mpp_text_dim){0};
    if (*s->p == '1') {
        s->p++;
        return true;
    }
    bool composite = *s->p == '(';
    dim->star = *s->p == '*';
    if (composite || dim->star)
        s->p++;
    do {
        int letter = dim->n < 3 ? scan_letter(s) : -1;
        if (letter < 0)
            return false;
        dim->letter[dim->n++] = (int8_t)letter;
        skip_spaces(s);
    } while (composite && *s->p != ')');
    if (composite)
        s->p++;
    return true;
}

static bool scan_operand(struct scanner *s, struct mpp_text_operand *o)
{
    *o = (struct mpp_text_operand){0};
    skip_spaces(s);
    if (*s->p == '[') {
        o->optional = true;
        s->p++;
    }
    if (strncmp(s->p, "i32", 3) == 0) {
        o->i32 = true;
        s->p += 3;
    } else if (strncmp(s->p, "f32", 3) == 0) {
        o->f32 = true;
        s->p += 3;
    }
    skip_spaces(s);
    while (*s->p && *s->p != ',' && *s->p != ']' && *s->p != '-') {
        if (o->n_dims == MPP_GRAPH_MAX_DIMS || !scan_dim(s, &o->dim[o->n_dims++]))
            return false;
        skip_spaces(s);
    }
    if (o->optional) {
        if (*s->p != ']')
            return false;
        s->p++;
        skip_spaces(s);
    }
    return true;
}

bool mpp_rule_text_parse(const char *text, struct mpp_rule_text *out)
{
    *out = (struct mpp_rule_text){0};
    struct scanner s = {text, out};
    bool outputs = false;
    for (;;) {
        int n = out->n_in + out->n_out;
        if (n == MPP_TEXT_MAX_OPERANDS || !scan_operand(&s, &out->operand[n]))
            return false;
        *(outputs ? &out->n_out : &out->n_in) += 1;
        if (*s.p == ',') {
            s.p++;
        } else if (!outputs && s.p[0] == '-' && s.p[1] == '>') {
            s.p += 2;
            outputs = true;
        } else {
            return outputs && *s.p == '\0';
        }
    }
}

/* ---- and back to text ---- */

static const char *dim_text(struct mpp_arena *arena, const struct mpp_rule *rule, const struct mpp_rule_dim *dim,
                            unsigned *seen)
{
    const char *text = dim->n == 0 ? "1" : "";
    for (int k = 0; k < dim->n; k++) {
        int f = dim->factor[k];
        enum mpp_factor_kind kind = rule->factor[f].kind;
        bool mark = kind != MPP_FACTOR_FREE && !(*seen >> f & 1);
        text = mpp_arena_printf(arena, "%s%s%c%.1s", text, k ? " " : "", rule->factor[f].letter,
                                mark ? &" +~!^"[kind] : "");
        *seen |= 1u << f;
    }
    return dim->n > 1 ? mpp_arena_printf(arena, "(%s)", text) : text;
}

const char *mpp_rule_to_text(struct mpp_arena *arena, const struct mpp_rule *rule)
{
    const char *text = "";
    unsigned seen = 0;
    for (int o = 0; o < rule->n_in + rule->n_out; o++) {
        const struct mpp_rule_operand *operand = &rule->operand[o];
        const char *separator = o == rule->n_in ? (o ? " -> " : "-> ") : o ? ", " : "";
        text = mpp_arena_printf(arena, "%s%s%s", text, separator, operand->n_dims < 0 ? "-" : "");
        for (int d = 0; d < operand->n_dims; d++)
            text = mpp_arena_printf(arena, "%s%s%s", text, d ? " " : "", dim_text(arena, rule, &operand->dim[d], &seen));
    }
    return text;
}
