/* plan_json_record.c - the records of a stage in plan.json: splits of ops, resting shardings of tensors. */
#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "planner/plan_json_reader.h"

/* ---- names and layers ---- */

static void names_begin(struct reader *r, int most)
{
    r->names = mpp_memo_new(r->arena);
    r->name = mpp_arena_array(r->arena, most, const char *);
    r->target = mpp_arena_array(r->arena, most, int);
    r->n_names = 0;
}

static void names_add(struct reader *r, const char *name, int target)
{
    bool is_new;
    int id = mpp_memo_add(r->names, name, strlen(name) + 1, &is_new);
    if (is_new) {
        r->name[id] = name;
        r->target[id] = target;
        r->n_names = id + 1;
    }
}

static int names_find(struct reader *r, const char *name)
{
    bool is_new;
    int id = mpp_memo_add(r->names, name, strlen(name) + 1, &is_new);
    return id < r->n_names ? r->target[id] : -1;
}

/* One layer or range of *AT ("0-11,"), to *FIRST and *LAST; false at the end, and with *OUT_OK false where it is wrong. */
static bool next_range(const char **at, int *first, int *last, bool *out_ok)
{
    char *end;
    if (!**at)
        return false;
    *out_ok = isdigit((unsigned char)**at);
    long a = *out_ok ? strtol(*at, &end, 10) : 0, b = a;
    if (*out_ok && *end == '-') {
        *out_ok = isdigit((unsigned char)end[1]);
        b = *out_ok ? strtol(end + 1, &end, 10) : 0;
    }
    if (*out_ok && *end == ',' && end[1])
        end++;
    else if (*out_ok && *end)
        *out_ok = false;
    *out_ok = *out_ok && a <= b && b < 100000;
    if (!*out_ok)
        return false;
    *first = (int)a;
    *last = (int)b;
    *at = end;
    return true;
}

typedef void take_fn(struct reader *r, const json_t *record, int target, const char *name);

static void take_named(struct reader *r, const json_t *record, const char *name, take_fn *take)
{
    int target = names_find(r, name);
    if (target < 0 && r->n_unknown++ > 0)
        return;                   /* mostly for one reason */
    if (target < 0) {
        mpp_json_complain(r, "there is no \"%s\"%s", name, mpp_diag_hint(r->diag, name, r->name, r->n_names));
        return;
    }
    if (r->seen[target]) {
        mpp_json_complain(r, "\"%s\" stands twice", name);
        return;
    }
    r->seen[target] = true;
    take(r, record, target, name);
}

/* Layers are counted from the stage's first one of the repeat called NAME[0..N). */
static int first_layer(const struct reader *r, const char *name, size_t n)
{
    for (int k = 0; k < r->n_repeats; k++)
        if (r->repeat[k] && r->first[k] < INT_MAX && strlen(r->repeat[k]) == n && strncmp(r->repeat[k], name, n) == 0)
            return r->first[k];
    return 0;
}

/* A record speaks of one thing, or of one in each of its layers. */
static void take_record(struct reader *r, const json_t *record, const char *key, const char *where, take_fn *take)
{
    static const char *const keys[] = {"op", "fused", "phase", "kind", "class", "split", "in", "out", "layers", "name", "rest",
                                       "kept", "resting", "gradient", "state"};
    int before = mpp_diag_errors(r->diag);
    const char *name = mpp_json_get_text(r, record, key, where), *star = strstr(name, ".*.");
    const json_t *layers = json_object_get(record, "layers");
    if (mpp_diag_errors(r->diag) == before)
        mpp_json_check_keys(r, record, keys, (int)(sizeof keys / sizeof keys[0]), *name ? name : where);
    if (!*name || mpp_diag_errors(r->diag) > before)
        return;
    if (!star || !layers) {
        if (star || (layers && !json_is_string(layers)))
            mpp_json_complain(r, "%s %s wants a string \"layers\", as in \"0-11\"", where, name);
        else
            take_named(r, record, mpp_json_shifted(r->arena, name, r->repeat, r->first, r->n_repeats, 1), take);
        return;
    }
    const char *at = json_is_string(layers) ? json_string_value(layers) : "?";
    int first, last;
    bool ok = true;
    while (next_range(&at, &first, &last, &ok)) /* what is wrong with one layer is wrong with the next */
        for (int i = first; i <= last && mpp_diag_errors(r->diag) == before; i++)
            take_named(r, record, mpp_arena_printf(r->arena, "%.*s.%d.%s", (int)(star - name), name,
                                                   i + first_layer(r, name, (size_t)(star - name)), star + 3), take);
    if (!ok)
        mpp_json_complain(r, "%s %s: \"layers\" is not a list of layers, as in \"0-3,5\"", where, name);
}

static int axis_of(struct reader *r, const char *axis, const char *name)
{
    const struct mpp_mesh *m = &r->stage->mesh;
    for (int a = 0; a < m->n_axes; a++)
        if (strcmp(m->name[a], axis) == 0)
            return a;
    bool is_new;
    (void)mpp_memo_add(r->missing, axis, strlen(axis) + 1, &is_new);
    if (is_new)
        mpp_json_complain(r, "%s: the mesh has no axis \"%s\"%s", name, axis, mpp_diag_hint(r->diag, axis, m->name, m->n_axes));
    return -1;
}

/* ---- splits ---- */

static int factor_of(struct reader *r, const struct mpp_rule *rule, const char *what, const char *name)
{
    const char *names[MPP_MAX_FACTORS];
    for (int f = 0; f < rule->n_factors; f++) {
        names[f] = mpp_json_factor(r->arena, rule, f);
        if (strcmp(names[f], what) == 0)
            return f;
    }
    mpp_json_complain(r, "%s has no dimension \"%s\" to split%s", name, what, mpp_diag_hint(r->diag, what, names, rule->n_factors));
    return MPP_WHOLE;
}

static void take_op(struct reader *r, const json_t *record, int target, const char *name)
{
    const struct mpp_rule *rule = r->g->groups[target].rule;
    json_t *split = json_object_get(record, "split"), *value;
    struct mpp_split s = {{MPP_WHOLE, MPP_WHOLE, MPP_WHOLE}};
    const char *axis;
    if (!json_is_object(split)) {
        mpp_json_complain(r, "%s wants an object \"split\", as in {\"data\": \"batch\"}", name);
        return;
    }
    json_object_foreach(split, axis, value) {
        int a = axis_of(r, axis, name);
        const char *what = json_string_value(value);
        if (!what)
            mpp_json_complain(r, "%s: the split over %s wants a dimension's name or \"partial\"", name, axis);
        else if (a >= 0)
            s.axis[a] = (int8_t)(strcmp(what, "partial") == 0 ? MPP_PARTIAL : factor_of(r, rule, what, name));
    }
    if (!r->bad && !mpp_split_legal(rule, &r->stage->mesh, s))
        mpp_json_complain(r, "%s cannot be split so: a dimension must be whole, is smaller than the mesh, or does not divide evenly",
                 name);
    r->stage->split[target] = s;
}

static void take_tensor(struct reader *r, const json_t *record, int target, const char *name)
{
    const struct mpp_gtensor *t = &r->g->tensors[target];
    json_t *rest = json_object_get(record, "rest"), *kept = json_object_get(record, "kept"), *value;
    struct mpp_sharding s = mpp_sharding_whole();
    const char *axis;
    if (!json_is_object(rest) || (kept && !json_is_boolean(kept))) {
        mpp_json_complain(r, "%s wants an object \"rest\" (and true or false for \"kept\")", name);
        return;
    }
    json_object_foreach(rest, axis, value) {
        const char *names[MPP_GRAPH_MAX_DIMS], *what = json_string_value(value);
        int a = axis_of(r, axis, name), d = 0;
        for (; what && d < t->n_dims; d++) {
            names[d] = mpp_json_dim(r->arena, t, d);
            if (strcmp(names[d], what) == 0)
                break;
        }
        if (!what || d == t->n_dims)
            mpp_json_complain(r, "%s has no dimension \"%s\"%s", name, what ? what : "?",
                     what ? mpp_diag_hint(r->diag, what, names, t->n_dims) : "");
        else if (a >= 0)
            s.axis[a] = (int8_t)d;
    }
    for (int d = 0; d < t->n_dims && !r->bad; d++) {
        int64_t parts = 1;
        for (int a = 0; a < r->stage->mesh.n_axes; a++)
            parts *= s.axis[a] == d ? r->stage->mesh.size[a] : 1;
        if (parts > t->dims[d].size)
            mpp_json_complain(r, "%s: %lld devices are too many for a dimension of %lld", name, (long long)parts,
                     (long long)t->dims[d].size);
    }
    r->stage->resting[target] = s;
    r->stage->kept[target] = kept && json_is_true(kept) && t->role == MPP_ROLE_PARAM;
}

/* ---- sections ---- */

static void read_section(struct reader *r, const json_t *stage, const char *key, const char *name_key, take_fn *take)
{
    const json_t *list = mpp_json_get_array(r, stage, key, "the stage");
    r->key = key;
    r->n_unknown = 0;
    for (r->index = 0; list && r->index < json_array_size(list) && mpp_diag_errors(r->diag) < MPP_JSON_MAX_ERRORS; r->index++)
        take_record(r, json_array_get(list, r->index), name_key, mpp_arena_printf(r->arena, "%s[%zu]", key, r->index), take);
    r->key = NULL;
    if (r->n_unknown > 1)
        mpp_diag_note(r->diag, "and %d more names under \"%s\" of this stage", r->n_unknown - 1, key);
}

static void read_ops(struct reader *r, const json_t *stage)
{
    const struct mpp_graph *g = r->g;
    names_begin(r, g->n_groups);
    for (int i = 0; i < g->n_groups; i++)
        names_add(r, g->ops[g->groups[i].ops[0]].name, i);
    r->seen = mpp_arena_array(r->arena, g->n_groups, bool);
    read_section(r, stage, "ops", "op", take_op);
    for (int i = 0; i < g->n_groups && !r->bad; i++)
        if (!r->seen[i]) {
            r->field = "ops";
            mpp_json_complain(r, "there is no record of op \"%s\"", g->ops[g->groups[i].ops[0]].name);
        }
}

static void read_tensors(struct reader *r, const json_t *stage, enum mpp_role role, const char *key)
{
    const struct mpp_graph *g = r->g;
    names_begin(r, g->n_tensors);
    for (mpp_id t = 0; t < g->n_tensors; t++)
        if (g->tensors[t].role == role)
            names_add(r, g->tensors[t].name, t);
    r->seen = mpp_arena_array(r->arena, g->n_tensors, bool);
    read_section(r, stage, key, "name", take_tensor);
    for (mpp_id t = 0; t < g->n_tensors && !r->bad; t++)
        if (g->tensors[t].role == role && !r->seen[t]) {
            r->field = key;
            mpp_json_complain(r, "there is no record of \"%s\" under \"%s\"", g->tensors[t].name, key);
        }
}

void mpp_json_read_decisions(struct reader *r, const json_t *object)
{
    read_ops(r, object);
    read_tensors(r, object, MPP_ROLE_PARAM, "parameters");
    read_tensors(r, object, MPP_ROLE_INPUT, "inputs");
}
