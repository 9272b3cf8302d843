#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#include "ir/model_internal.h"

enum { MAX_NAMED = 40 };   /* presets in a message */

/* A <dim> or <param>: where its value comes from is settled before any is evaluated. */
struct entry {
    const struct mpp_xml *xml;
    const char *name;
    bool is_dim, is_batch;
    enum mpp_value_type type;
    const char *text;       /* the value to evaluate */
    const char *what;       /* "value", a preset's attribute, "-D hidden" */
    struct mpp_loc loc;     /* of that value */
};

struct params {
    struct mpp_reader *r;
    const struct mpp_xml *xml;
    int n;
    struct entry *entry;
};

static struct entry *find(const struct params *p, const char *name)
{
    for (int i = 0; i < p->n; i++) {
        if (strcmp(p->entry[i].name, name) == 0)
            return &p->entry[i];
    }
    return NULL;
}

static const char *const *names_of(const struct params *p)
{
    const char **names = mpp_arena_array(p->r->arena, p->n, const char *);
    for (int i = 0; i < p->n; i++)
        names[i] = p->entry[i].name;
    return names;
}

static bool name_is_free(const struct params *p, const struct mpp_eval *ev, const char *name)
{
    const struct entry *other = find(p, name);
    if (other)
        mpp_eval_error(ev, "a second \"%.80s\"; the first is at line %d", name, other->xml->loc.line);
    else if (strlen(name) > MPP_MAX_NAME)
        mpp_eval_error(ev, "the name \"%.40s...\" has over %d characters", name, MPP_MAX_NAME);
    else if (!mpp_is_identifier(name))
        mpp_eval_error(ev, "\"%.80s\" is not a name: letters, digits and _, not starting with a digit", name);
    else if (strcmp(name, "true") == 0 || strcmp(name, "false") == 0 || strcmp(name, "name") == 0)
        mpp_eval_error(ev, "\"%s\" can't be a parameter's name: it has a meaning of its own", name);
    else
        return true;
    return false;
}

static bool add_entry(struct params *p, const struct mpp_xml *node)
{
    struct entry e = {.xml = node, .is_dim = strcmp(node->name, "dim") == 0, .type = MPP_VALUE_INT};
    struct mpp_eval ev = mpp_reader_at(p->r, node, NULL);
    e.name = mpp_xml_get(node, "name");
    e.text = mpp_xml_get(node, "value");
    e.what = "value";
    e.loc = node->loc;
    bool ok = mpp_check_leaf(&ev, node);
    if (!mpp_check_attrs(&ev, node, e.is_dim ? "name* value* role" : "name* type* value*") || !e.name || !e.text)
        return false;
    ok = name_is_free(p, &ev, e.name) && ok;
    const char *role = mpp_xml_get(node, "role"), *type = mpp_xml_get(node, "type");
    ev.what = "role";
    if (e.is_dim && role) {
        role = mpp_check_word(&ev, role, "batch sequence expert spatial");
        ok = ok && role;
        e.is_batch = role && strcmp(role, "batch") == 0;
    }
    ev.what = "type";
    if (!e.is_dim)
        ok = mpp_check_type(&ev, type, &e.type) && ok;
    if (ok)
        p->entry[p->n++] = e;
    return ok;
}

static bool collect(struct params *p)
{
    int count = 0;
    for (const struct mpp_xml *c = p->xml->first; c; c = c->next)
        count++;
    p->entry = mpp_arena_array(p->r->arena, count, struct entry);
    struct mpp_eval ev = mpp_reader_at(p->r, p->xml, NULL);
    bool ok = mpp_check_attrs(&ev, p->xml, "");
    static const char *const kinds[] = {"dim", "param", "preset", "require"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!mpp_check_count(&ev, p->xml, kinds[i], MPP_MAX_PARAMS))
            return false;
    }
    for (const struct mpp_xml *c = p->xml->first; c; c = c->next) {
        ev = mpp_reader_at(p->r, c, NULL);
        if (strcmp(c->name, "dim") == 0 || strcmp(c->name, "param") == 0) {
            ok = add_entry(p, c) && ok;
        } else if (strcmp(c->name, "require") == 0) {
            ok = mpp_check_attrs(&ev, c, "test* message") && mpp_check_leaf(&ev, c) && ok;
        } else if (strcmp(c->name, "preset") != 0) {
            mpp_unexpected_element(&ev, c, "dim param preset require");
            ok = false;
        }
    }
    return ok;
}

static bool check_batch(const struct params *p)
{
    const struct entry *batch = NULL;
    struct mpp_eval ev = mpp_reader_at(p->r, p->xml, NULL);
    for (int i = 0; i < p->n; i++) {
        if (!p->entry[i].is_batch)
            continue;
        if (batch) {
            ev.loc = p->entry[i].loc;
            mpp_eval_error(&ev, "a second dimension with role=\"batch\"; the first is \"%s\" at line %d", batch->name,
                           batch->loc.line);
            return false;
        }
        batch = &p->entry[i];
    }
    if (!batch)
        mpp_eval_error(&ev, "no dimension has role=\"batch\"; write <dim name=\"batch\" value=\"32\" role=\"batch\"/>");
    return batch != NULL;
}

/* ---- presets and -D ---- */

static bool check_preset(const struct params *p, const struct mpp_xml *node)
{
    struct mpp_eval ev = mpp_reader_at(p->r, node, NULL);
    const char *name = mpp_xml_get(node, "name");
    bool ok = mpp_check_leaf(&ev, node);
    if (!name) {
        mpp_eval_error(&ev, "<preset> needs the attribute \"name\"");
        return false;
    }
    if (!mpp_check_shown(&ev, "a preset's name", name))
        return false;
    for (const struct mpp_xml *c = p->xml->first; c != node; c = c->next) {
        const char *other = strcmp(c->name, "preset") == 0 ? mpp_xml_get(c, "name") : NULL;
        if (other && strcmp(other, name) == 0) {
            mpp_eval_error(&ev, "a second preset \"%.80s\"; the first is at line %d", name, c->loc.line);
            ok = false;
        }
    }
    for (int i = 0; i < node->n_attrs; i++) {
        const char *attr = node->attrs[i].name;
        if (strcmp(attr, "name") == 0 || find(p, attr))
            continue;
        mpp_eval_error(&ev, "preset \"%.80s\" sets \"%.80s\", which is no parameter%s", name, attr,
                       mpp_diag_hint(ev.diag, attr, names_of(p), p->n));
        ok = false;
    }
    return ok;
}

static void apply_preset(struct params *p, const struct mpp_xml *node)
{
    for (int i = 0; i < node->n_attrs; i++) {
        struct entry *e = find(p, node->attrs[i].name);
        if (!e)
            continue;
        e->text = node->attrs[i].value;
        e->what = e->name;
        e->loc = node->loc;
    }
}

/* Check all presets and apply the one that the user asked for. */
static bool use_presets(struct params *p)
{
    struct mpp_arena *arena = p->r->arena;
    const char *wanted = p->r->options->preset, *all = "";
    const struct mpp_xml *chosen = NULL;
    int count = 0, n = 0;
    for (const struct mpp_xml *c = p->xml->first; c; c = c->next)
        count++;
    const char **names = mpp_arena_array(arena, count, const char *);
    bool ok = true;
    for (const struct mpp_xml *c = p->xml->first; c; c = c->next) {
        if (strcmp(c->name, "preset") != 0)
            continue;
        const char *name = mpp_xml_get(c, "name");
        ok = check_preset(p, c) && ok;
        if (!name)
            continue;
        names[n++] = name;
        if (n <= MAX_NAMED)
            all = mpp_arena_printf(arena, "%s%s%s", all, n > 1 ? ", " : "", name);
        else if (n == MAX_NAMED + 1)
            all = mpp_arena_printf(arena, "%s, ...", all);
        if (wanted && strcmp(name, wanted) == 0)
            chosen = c;
    }
    if (wanted && !chosen) {
        struct mpp_eval ev = mpp_reader_at(p->r, p->xml, NULL);
        const char *hint = mpp_diag_hint(ev.diag, wanted, names, n);
        if (*hint)
            mpp_eval_error(&ev, "no preset \"%.80s\"%s", wanted, hint);
        else
            mpp_eval_error(&ev, "no preset \"%.80s\"; this file has %s", wanted, n ? all : "none");
        return false;
    }
    if (ok && chosen) {
        apply_preset(p, chosen);
        p->r->model->preset = mpp_xml_get(chosen, "name");
    }
    return ok;
}

static bool apply_define(struct params *p, const char *define)
{
    struct mpp_eval ev = mpp_reader_at(p->r, p->xml, NULL);
    const char *equals = strchr(define, '=');
    if (!equals || equals == define) {
        mpp_eval_error(&ev, "\"-D %.200s\" must have the form -D name=value", define);
        return false;
    }
    const char *name = mpp_arena_strndup(p->r->arena, define, (size_t)(equals - define));
    struct entry *e = find(p, name);
    if (!e) {
        mpp_eval_error(&ev, "no parameter \"%.80s\" (from -D %.200s)%s", name, define,
                       mpp_diag_hint(ev.diag, name, names_of(p), p->n));
        return false;
    }
    e->text = equals + 1;
    e->what = mpp_arena_printf(p->r->arena, "-D %s", name);
    e->loc = e->xml->loc;
    return true;
}

static bool use_options(struct params *p)
{
    bool ok = true;
    for (int i = 0; i < p->r->options->n_defines; i++)
        ok = apply_define(p, p->r->options->defines[i]) && ok;
    int64_t batch = p->r->options->batch;
    for (int i = 0; i < p->n && batch; i++) {
        struct entry *e = &p->entry[i];
        if (!e->is_batch)
            continue;
        e->text = mpp_arena_printf(p->r->arena, "%" PRId64, batch);
        e->what = "--batch";
        e->loc = e->xml->loc;
    }
    return ok;
}

/* ---- values ---- */

static bool check_dim(const struct mpp_eval *ev, const struct entry *e, struct mpp_value *v)
{
    if (v->i < 1 || v->i > MPP_SIZE_MAX) {
        mpp_eval_error(ev, "%s: dimension \"%s\" must be between 1 and 2^40, not %" PRId64, ev->what, e->name, v->i);
        return false;
    }
    if (e->is_batch) {
        v->batch = MPP_BATCH_LINEAR;
        v->per_batch = 1;
    } else if (v->batch == MPP_BATCH_OTHER) {
        mpp_eval_error(ev, "dimension \"%s\" must be a multiple of the batch for every batch, or not depend on it",
                       e->name);
        return false;
    }
    return true;
}

static bool evaluate(struct params *p, const struct entry *e, struct mpp_binding *out)
{
    struct mpp_eval ev = mpp_reader_attr(p->r, e->xml, p->r->globals, e->what);
    ev.loc = e->loc;
    const char *text;
    *out = (struct mpp_binding){.name = e->name, .text = e->name};
    if (!mpp_typed_value(&ev, e->text, e->type, &out->value, &text))
        return false;
    return !e->is_dim || check_dim(&ev, e, &out->value);
}

static bool evaluate_all(struct params *p)
{
    struct mpp_arena *arena = p->r->arena;
    struct mpp_model *m = p->r->model;
    struct mpp_binding *bind = mpp_arena_array(arena, p->n, struct mpp_binding);
    p->r->globals->bind = bind;
    m->dims = mpp_arena_array(arena, p->n, struct mpp_size);
    m->param_names = mpp_arena_array(arena, p->n, const char *);
    m->param_values = mpp_arena_array(arena, p->n, const char *);
    for (int i = 0; i < p->n; i++) {
        const struct entry *e = &p->entry[i];
        struct mpp_binding *b = &bind[i];
        if (!evaluate(p, e, b))
            return false; /* what follows may be computed from it */
        p->r->globals->n = i + 1;
        if (e->is_dim) {
            m->dims[m->n_dims++] = (struct mpp_size){
                .size = b->value.i, .per_batch = b->value.batch ? b->value.per_batch : 0, .name = e->name};
        } else {
            m->param_names[m->n_params] = e->name;
            m->param_values[m->n_params++] = mpp_value_print(arena, &b->value);
        }
        if (e->is_batch) {
            m->batch = b->value.i;
            m->batch_name = e->name;
        }
    }
    return true;
}

/* "hidden = 770, heads = 12": the values of the names in TEST. */
static const char *values_in(const struct mpp_eval *ev, const char *test)
{
    const char *s = "";
    while (*test) {
        size_t len = 0;
        while (isalnum((unsigned char)test[len]) || test[len] == '_')
            len++;
        const char *name = mpp_arena_strndup(ev->arena, test, len);
        const struct mpp_binding *b = len && mpp_is_identifier(name) ? mpp_env_find(ev->env, name) : NULL;
        const char *pair = "";
        if (b)
            pair = mpp_arena_printf(ev->arena, "%s = %s", name, mpp_value_print(ev->arena, &b->value));
        if (!strstr(s, pair))
            s = mpp_arena_printf(ev->arena, "%s%s%s", s, *s ? ", " : "", pair);
        test += len ? len : 1;
    }
    return s;
}

static bool check_requirements(struct params *p)
{
    bool ok = true;
    for (const struct mpp_xml *c = p->xml->first; c; c = c->next) {
        if (strcmp(c->name, "require") != 0)
            continue;
        struct mpp_eval ev = mpp_reader_attr(p->r, c, p->r->globals, "test");
        const char *test = mpp_xml_get(c, "test"), *message = mpp_xml_get(c, "message");
        bool holds;
        if (!mpp_eval_bool(&ev, test, &holds)) {
            ok = false;
        } else if (!holds) {
            mpp_eval_error(&ev, "%s (%s; here %s)", message ? message : "a requirement of the model does not hold",
                           test, values_in(&ev, test));
            ok = false;
        }
    }
    return ok;
}

enum mpp_status mpp_read_params(struct mpp_reader *r, const struct mpp_xml *xml)
{
    struct params p = {.r = r, .xml = xml};
    r->globals = mpp_arena_array(r->arena, 1, struct mpp_env);
    if (!collect(&p) || !check_batch(&p))
        return MPP_INVALID;
    bool ok = use_presets(&p);
    ok = use_options(&p) && ok;
    if (!ok || !evaluate_all(&p) || !check_requirements(&p))
        return MPP_INVALID;
    return MPP_OK;
}
