#include <math.h>
#include <string.h>

#include "ir/expr.h"
#include "ir/model.h"
#include "ir/spec.h"

/* ---- specs ---- */

/* The length of one entry of a spec: up to a comma outside of braces and parentheses. */
static size_t entry_length(const char *s)
{
    size_t len = 0;
    int depth = 0;
    for (; s[len] && (depth > 0 || s[len] != ','); len++)
        depth += (s[len] == '{' || s[len] == '(') - (s[len] == '}' || s[len] == ')');
    return len;
}

static char *trimmed(struct mpp_arena *arena, const char *s, size_t len)
{
    while (len > 0 && *s == ' ') {
        s++;
        len--;
    }
    while (len > 0 && s[len - 1] == ' ')
        len--;
    return mpp_arena_strndup(arena, s, len);
}

/* "approximate:{none|tanh}=none" */
static struct mpp_spec parse_entry(struct mpp_arena *arena, char *text)
{
    struct mpp_spec e = {.name = text, .type = "string"};
    char *colon = strchr(text, ':');
    if (!colon)
        return e;
    *colon = '\0';
    char *type = colon + 1, *end = type[0] == '{' ? strchr(type, '}') : type;
    char *equals = end ? strchr(end, '=') : NULL;
    if (equals) {
        *equals = '\0';
        e.fallback = equals + 1;
    }
    size_t len = strlen(type);
    if (len > 0 && type[len - 1] == '*') {
        e.required = true;
        type[--len] = '\0';
    }
    if (type[0] == '{' && len > 1) {
        type[len - 1] = '\0';
        e.words = mpp_arena_array(arena, len, const char *);
        for (char *word = type + 1; word;) {
            char *bar = strchr(word, '|');
            if (bar)
                *bar++ = '\0';
            e.words[e.n_words++] = word;
            word = bar;
        }
        type = mpp_arena_strdup(arena, "enum");
    }
    e.type = type;
    return e;
}

int mpp_spec_parse(struct mpp_arena *arena, const char *spec, struct mpp_spec **out)
{
    int n = 1, k = 0;
    for (const char *s = spec; *s; s++)
        n += *s == ',';
    *out = mpp_arena_array(arena, n, struct mpp_spec);
    while (*spec) {
        size_t len = entry_length(spec);
        char *text = trimmed(arena, spec, len);
        if (*text)
            (*out)[k++] = parse_entry(arena, text);
        spec += len + (spec[len] == ',');
    }
    return k;
}

/* ---- reading ---- */

static bool is(const struct mpp_spec *e, const char *type)
{
    return strcmp(e->type, type) == 0;
}

static bool read_enum(const struct mpp_eval *ev, const struct mpp_spec *e, const char *text, const char **out)
{
    const char *value = mpp_eval_string(ev, text), *all = "";
    for (int i = 0; i < e->n_words; i++) {
        if (strcmp(value, e->words[i]) == 0) {
            *out = value;
            return true;
        }
        all = mpp_arena_printf(ev->arena, "%s%s\"%s\"", all, i == 0 ? "" : i + 1 == e->n_words ? " or " : ", ",
                               e->words[i]);
    }
    mpp_eval_error(ev, "%s must be %s, not \"%.80s\"%s", e->name, all, value,
                   mpp_diag_hint(ev->diag, value, e->words, e->n_words));
    return false;
}

static bool read_value(const struct mpp_eval *ev, const struct mpp_spec *e, const char *text, struct mpp_attr *out)
{
    out->name = e->name;
    if (is(e, "int")) {
        out->type = MPP_ATTR_INT;
        return mpp_eval_int(ev, text, INT64_MIN + 1, INT64_MAX, &out->i);
    }
    if (is(e, "float")) {
        out->type = MPP_ATTR_FLOAT;
        return mpp_eval_float(ev, text, &out->f);
    }
    if (is(e, "bool")) {
        bool b = false, ok = mpp_eval_bool(ev, text, &b);
        out->type = MPP_ATTR_BOOL;
        out->i = b;
        return ok;
    }
    if (is(e, "ints")) {
        int64_t *v = NULL;
        bool ok = mpp_eval_ints(ev, text, &out->n, &v);
        out->type = MPP_ATTR_INTS;
        out->ints = v;
        return ok;
    }
    if (is(e, "dims")) {
        struct mpp_size *v = NULL;
        bool ok = mpp_eval_sizes(ev, text, MPP_SIZES_ANY, &out->n, &v);
        out->type = MPP_ATTR_DIMS;
        out->dims = v;
        return ok;
    }
    out->type = MPP_ATTR_STRING;
    if (is(e, "enum"))
        return read_enum(ev, e, text, &out->s);
    if (is(e, "init") || strcmp(e->name, "init") == 0)
        return mpp_eval_call(ev, text, &out->s);
    out->s = mpp_eval_string(ev, text);
    return true;
}

static bool always_allowed(const char *name)
{
    return strcmp(name, "name") == 0 || strcmp(name, "in") == 0 || strcmp(name, "out") == 0 ||
           strcmp(name, "test") == 0;
}

static bool check_unknown(const struct mpp_eval *ev, const struct mpp_item *item, const struct mpp_spec *spec, int n)
{
    bool ok = true;
    for (int i = 0; i < item->xml->n_attrs; i++) {
        const char *name = item->xml->attrs[i].name;
        int k = 0;
        while (k < n && strcmp(spec[k].name, name) != 0)
            k++;
        if (k < n || always_allowed(name))
            continue;
        const char **names = mpp_arena_array(ev->arena, n + 4, const char *);
        for (k = 0; k < n; k++)
            names[k] = spec[k].name;
        names[n] = "name";
        names[n + 1] = "in";
        names[n + 2] = "out";
        names[n + 3] = "test";
        mpp_eval_error(ev, "%s has no attribute \"%.80s\"%s", item->type, name,
                       mpp_diag_hint(ev->diag, name, names, n + 4));
        ok = false;
    }
    return ok;
}

enum mpp_status mpp_attrs_read(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_item *item,
                               const char *spec, struct mpp_attrs *out)
{
    struct mpp_spec *entry;
    int n = mpp_spec_parse(arena, spec, &entry);
    struct mpp_eval ev = {.arena = arena, .diag = diag, .env = item->env, .loc = item->loc, .path = item->path};
    struct mpp_attr *attr = mpp_arena_array(arena, n, struct mpp_attr);
    bool ok = !item->xml || check_unknown(&ev, item, entry, n);
    *out = (struct mpp_attrs){.attr = attr};
    for (int i = 0; i < n; i++) {
        struct mpp_eval at = ev;
        at.what = entry[i].name;
        const char *text = item->xml ? mpp_xml_get(item->xml, entry[i].name) : NULL;
        if (!text && entry[i].required) {
            mpp_eval_error(&ev, "%s needs the attribute \"%s\"", item->type, entry[i].name);
            ok = false;
        }
        if (!text) {
            text = entry[i].fallback;
            at.env = NULL; /* a default does not see the model's names */
        }
        if (!text)
            continue;
        if (read_value(&at, &entry[i], text, &attr[out->n]))
            out->n++;
        else
            ok = false;
    }
    return ok ? MPP_OK : MPP_INVALID;
}

/* ---- access ---- */

const struct mpp_attr *mpp_attrs_find(const struct mpp_attrs *attrs, const char *name)
{
    for (int i = 0; i < attrs->n; i++) {
        if (strcmp(attrs->attr[i].name, name) == 0)
            return &attrs->attr[i];
    }
    return NULL;
}

int64_t mpp_attrs_int(const struct mpp_attrs *attrs, const char *name, int64_t fallback)
{
    const struct mpp_attr *a = mpp_attrs_find(attrs, name);
    return a ? a->i : fallback;
}

double mpp_attrs_float(const struct mpp_attrs *attrs, const char *name, double fallback)
{
    const struct mpp_attr *a = mpp_attrs_find(attrs, name);
    return a ? a->f : fallback;
}

const char *mpp_attrs_string(const struct mpp_attrs *attrs, const char *name, const char *fallback)
{
    const struct mpp_attr *a = mpp_attrs_find(attrs, name);
    return a ? a->s : fallback;
}

bool mpp_glob(const char *pattern, const char *name)
{
    const char *star = NULL, *retry = NULL; /* the last * and what it has eaten so far */
    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            retry = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star + 1;
            name = ++retry;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}
