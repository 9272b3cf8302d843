/* plan_json_read.c - plan.json, read back and checked against the graph: decisions only (mpp_plan_derive does the rest).
 *
 * A user may have edited the file, so nothing in it is believed: every fault is one message that names the record. */
#include <ctype.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/infile.h"
#include "planner/plan_json.h"
#include "planner/stage.h"

enum { MAX_FILE_MIB = 16, MAX_ERRORS = 20, MAX_AXIS_NAME = 32 };

struct reader {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const struct mpp_graph *g;
    const char *path, *text;
    const char *key;              /* the section of the stage that is being read; NULL: none */
    size_t index;                 /* of its record */
    bool bad;
    struct mpp_memo *missing;     /* axes that were reported */
    const char **repeat;
    int n_repeats;
    struct mpp_memo *names;       /* of what is being read: ops or tensors */
    const char **name;            /* [n_names] for hints */
    int *target, n_names;         /* group or tensor of a name */
    bool *seen;                   /* [n_groups] or [n_tensors] */
    struct mpp_stage *stage;
};

static void complain(struct reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Behind the string whose quote is at P. */
static const char *behind_string(const char *p)
{
    for (p++; *p && *p != '"'; p++)
        p += *p == '\\' && p[1];
    return p + (*p == '"');
}

/* The line of record INDEX of the array KEY of the stage, in TEXT, which is known to be JSON; 0: there is none. */
static int line_of_record(const char *text, const char *key, size_t index)
{
    enum { STAGE_DEPTH = 3 };     /* { stages [ { */
    int depth = 0, line = 1;
    size_t n = strlen(key), i = 0;
    bool inside = false;
    for (const char *p = text; *p;) {
        line += *p == '\n';
        if (*p == '"') {
            const char *end = behind_string(p);
            inside = inside || (depth == STAGE_DEPTH && (size_t)(end - p) == n + 2 && strncmp(p + 1, key, n) == 0);
            p = end;
            continue;
        }
        if (inside && depth == STAGE_DEPTH + 1 && *p == '{' && i++ == index)
            return line;
        depth += (*p == '{' || *p == '[') - (*p == '}' || *p == ']');
        inside = inside && (depth > STAGE_DEPTH || *p != ']');
        p++;
    }
    return 0;
}

static void complain(struct reader *r, const char *fmt, ...)
{
    char what[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    int line = r->key && mpp_diag_errors(r->diag) < MAX_ERRORS ? line_of_record(r->text, r->key, r->index) : 0;
    mpp_diag_error(r->diag, (struct mpp_loc){r->path, line}, "%s", what);
    r->bad = true;
}

/* ---- fields ---- */

static const char *text_of(struct reader *r, const json_t *o, const char *key, const char *where)
{
    const char *s = json_string_value(json_object_get(o, key));
    if (!s)
        complain(r, "%s wants a string \"%s\"", where, key);
    for (const char *c = s; c && *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            complain(r, "%s: \"%s\" holds control characters", where, key);
            return "";
        }
    return s ? mpp_arena_strdup(r->arena, s) : "";
}

/* A misspelt key would be a decision that is not taken. */
static void check_keys(struct reader *r, const json_t *o, const char *const *keys, int n, const char *where)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)o, key, value) {
        int k = 0;
        while (k < n && strcmp(keys[k], key) != 0)
            k++;
        if (k == n)
            complain(r, "%s has an unknown key \"%s\"%s", where, key, mpp_diag_hint(r->diag, key, keys, n));
    }
}

static int64_t number_of(struct reader *r, const json_t *o, const char *key, int64_t least, int64_t most, const char *where)
{
    const json_t *v = json_object_get(o, key);
    if (json_is_integer(v) && json_integer_value(v) >= least && json_integer_value(v) <= most)
        return json_integer_value(v);
    complain(r, "%s wants a whole number \"%s\" from %lld to %lld", where, key, (long long)least, (long long)most);
    return least;
}

static const json_t *array_of(struct reader *r, const json_t *o, const char *key, const char *where)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_array(v))
        complain(r, "%s wants an array \"%s\"", where, key);
    return json_is_array(v) ? v : NULL;
}

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
    if (target < 0) {
        complain(r, "there is no \"%s\"%s", name, mpp_diag_hint(r->diag, name, r->name, r->n_names));
        return;
    }
    if (r->seen[target]) {
        complain(r, "\"%s\" stands twice", name);
        return;
    }
    r->seen[target] = true;
    take(r, record, target, name);
}

/* A record speaks of one thing, or of one in each of its layers. */
static void take_record(struct reader *r, const json_t *record, const char *key, const char *where, take_fn *take)
{
    static const char *const keys[] = {"op", "fused", "phase", "kind", "class", "split", "in", "out", "layers", "name", "rest",
                                       "kept", "resting", "gradient", "state"};
    int before = mpp_diag_errors(r->diag);
    const char *name = text_of(r, record, key, where), *star = strstr(name, ".*.");
    const json_t *layers = json_object_get(record, "layers");
    if (mpp_diag_errors(r->diag) == before)
        check_keys(r, record, keys, (int)(sizeof keys / sizeof keys[0]), *name ? name : where);
    if (!*name || mpp_diag_errors(r->diag) > before)
        return;
    if (!star || !layers) {
        if (star || (layers && !json_is_string(layers)))
            complain(r, "%s %s wants a string \"layers\", as in \"0-11\"", where, name);
        else
            take_named(r, record, name, take);
        return;
    }
    const char *at = json_is_string(layers) ? json_string_value(layers) : "?";
    int first, last;
    bool ok = true;
    while (next_range(&at, &first, &last, &ok)) /* what is wrong with one layer is wrong with the next */
        for (int i = first; i <= last && mpp_diag_errors(r->diag) == before; i++)
            take_named(r, record, mpp_arena_printf(r->arena, "%.*s.%d.%s", (int)(star - name), name, i, star + 3), take);
    if (!ok)
        complain(r, "%s %s: \"layers\" is not a list of layers, as in \"0-3,5\"", where, name);
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
        complain(r, "%s: the mesh has no axis \"%s\"%s", name, axis, mpp_diag_hint(r->diag, axis, m->name, m->n_axes));
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
    complain(r, "%s has no dimension \"%s\" to split%s", name, what, mpp_diag_hint(r->diag, what, names, rule->n_factors));
    return MPP_WHOLE;
}

static void take_op(struct reader *r, const json_t *record, int target, const char *name)
{
    const struct mpp_rule *rule = r->g->groups[target].rule;
    json_t *split = json_object_get(record, "split"), *value;
    struct mpp_split s = {{MPP_WHOLE, MPP_WHOLE, MPP_WHOLE}};
    const char *axis;
    if (!json_is_object(split)) {
        complain(r, "%s wants an object \"split\", as in {\"data\": \"batch\"}", name);
        return;
    }
    json_object_foreach(split, axis, value) {
        int a = axis_of(r, axis, name);
        const char *what = json_string_value(value);
        if (!what)
            complain(r, "%s: the split over %s wants a dimension's name or \"partial\"", name, axis);
        else if (a >= 0)
            s.axis[a] = (int8_t)(strcmp(what, "partial") == 0 ? MPP_PARTIAL : factor_of(r, rule, what, name));
    }
    if (!r->bad && !mpp_split_legal(rule, &r->stage->mesh, s))
        complain(r, "%s cannot be split so: a dimension must be whole, is smaller than the mesh, or does not divide evenly",
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
        complain(r, "%s wants an object \"rest\" (and true or false for \"kept\")", name);
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
            complain(r, "%s has no dimension \"%s\"%s", name, what ? what : "?",
                     what ? mpp_diag_hint(r->diag, what, names, t->n_dims) : "");
        else if (a >= 0)
            s.axis[a] = (int8_t)d;
    }
    for (int d = 0; d < t->n_dims && !r->bad; d++) {
        int64_t parts = 1;
        for (int a = 0; a < r->stage->mesh.n_axes; a++)
            parts *= s.axis[a] == d ? r->stage->mesh.size[a] : 1;
        if (parts > t->dims[d].size)
            complain(r, "%s: %lld devices are too many for a dimension of %lld", name, (long long)parts,
                     (long long)t->dims[d].size);
    }
    r->stage->resting[target] = s;
    r->stage->kept[target] = kept && json_is_true(kept) && t->role == MPP_ROLE_PARAM;
}

/* ---- sections ---- */

static void read_section(struct reader *r, const json_t *stage, const char *key, const char *name_key, take_fn *take)
{
    const json_t *list = array_of(r, stage, key, "the stage");
    r->key = key;
    for (r->index = 0; list && r->index < json_array_size(list) && mpp_diag_errors(r->diag) < MAX_ERRORS; r->index++)
        take_record(r, json_array_get(list, r->index), name_key, mpp_arena_printf(r->arena, "%s[%zu]", key, r->index), take);
    r->key = NULL;
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
        if (!r->seen[i])
            complain(r, "there is no record of op \"%s\"", g->ops[g->groups[i].ops[0]].name);
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
        if (g->tensors[t].role == role && !r->seen[t])
            complain(r, "there is no record of \"%s\" under \"%s\"", g->tensors[t].name, key);
}

static void read_mesh(struct reader *r, const json_t *stage, int n_devices)
{
    const json_t *mesh = array_of(r, stage, "mesh", "the stage");
    struct mpp_mesh *m = &r->stage->mesh;
    int64_t product = 1;
    size_t n = mesh ? json_array_size(mesh) : 0;
    *m = (struct mpp_mesh){.size = {1, 1, 1}};
    if (mesh && (n < 1 || n > MPP_MAX_AXES))
        complain(r, "the mesh wants one to three axes");
    if (n < 1 || n > MPP_MAX_AXES)
        return;
    for (size_t a = 0; a < n; a++) {
        const json_t *axis = json_array_get(mesh, a);
        m->name[a] = text_of(r, axis, "axis", "the mesh");
        m->size[a] = (int)number_of(r, axis, "size", 1, MPP_CLUSTER_MAX_DEVICES, "the mesh");
        product *= m->size[a];
        for (size_t b = 0; b < a; b++)
            if (strcmp(m->name[a], m->name[b]) == 0)
                complain(r, "two axes of the mesh are called \"%s\"", m->name[a]);
        if (strlen(m->name[a]) > MAX_AXIS_NAME)
            complain(r, "the name of an axis has over %d characters", MAX_AXIS_NAME);
        for (const char *c = m->name[a]; *c; c++)
            if (!isalnum((unsigned char)*c) && *c != '_') {
                complain(r, "an axis of the mesh is called \"%s\"; letters, digits and _ are allowed", m->name[a]);
                break;
            }
        if (!*m->name[a])
            complain(r, "an axis of the mesh has no name");
    }
    m->n_axes = (int)n;
    if (!r->bad && product != n_devices)
        complain(r, "the mesh has %lld devices, but there are %d", (long long)product, n_devices);
}

static void read_solver(struct reader *r, const json_t *root, struct mpp_solver_info *out)
{
    static const char *const status[] = {"optimal", "feasible", "infeasible", "no answer"};
    const json_t *s = json_object_get(root, "solver"), *gap = json_object_get(s, "gap");
    const char *where = "\"solver\"", *text = text_of(r, s, "status", where);
    while (out->status < MPP_SOLVER_NO_ANSWER && strcmp(status[out->status], text) != 0)
        out->status++;
    if (strcmp(status[out->status], text) != 0)
        complain(r, "\"solver\" has an unknown status \"%s\"", text);
    if (!json_is_number(gap) || !(json_number_value(gap) >= 0 && json_number_value(gap) <= 1))
        complain(r, "\"solver\" wants a number \"gap\" from 0 to 1");
    out->objective = number_of(r, s, "objective_ps", 0, INT64_MAX, where);
    out->bound = number_of(r, s, "bound_ps", 0, INT64_MAX, where);
    out->gap = json_number_value(gap);
    out->work = number_of(r, s, "work", 0, INT64_MAX, where);
    const struct { const char *key; int32_t *to; } count[] = {
        {"nodes", &out->nodes_full}, {"values", &out->values_full}, {"choices", &out->choices_full},
        {"nodes_reduced", &out->nodes_reduced}, {"values_reduced", &out->values_reduced},
        {"choices_reduced", &out->choices_reduced}, {"glpk_rows", &out->glpk_rows}, {"glpk_cols", &out->glpk_cols},
        {"peak_time", &out->peak_time},
    };
    for (size_t i = 0; i < sizeof count / sizeof count[0]; i++)
        *count[i].to = (int32_t)number_of(r, s, count[i].key, 0, INT32_MAX, where);
    out->glpk_status = text_of(r, s, "glpk", where);
    out->peak_bytes = number_of(r, s, "peak_bytes", 0, INT64_MAX, where);
}

static void read_head(struct reader *r, const json_t *root, const struct mpp_cluster *cluster, struct mpp_plan *p)
{
    const char *where = "the plan", *model = text_of(r, root, "model", where), *name = text_of(r, root, "cluster", where);
    const char *preset = text_of(r, root, "preset", where);
    const char *want = r->g->model && r->g->model->preset ? r->g->model->preset : "";
    p->version = text_of(r, root, "plan_version", where);
    if (!r->bad && strcmp(p->version, MPP_PLAN_VERSION) != 0)
        complain(r, "this is a plan of version \"%s\"; this program reads version " MPP_PLAN_VERSION, p->version);
    if (!r->bad && r->g->model && strcmp(model, r->g->model->name) != 0)
        complain(r, "this is a plan for the model \"%s\", not \"%s\"", model, r->g->model->name);
    if (!r->bad && strcmp(preset, want) != 0)
        complain(r, "this is a plan for %s%s, not %s%s", *preset ? "--preset " : "no preset", preset,
                 *want ? "--preset " : "none", want);
    if (!r->bad && strcmp(name, cluster->name) != 0)
        complain(r, "this is a plan for the cluster \"%s\", not \"%s\"", name, cluster->name);
    p->batch = number_of(r, root, "batch", 1, INT64_MAX, where);
    p->micro_batches = number_of(r, root, "micro_batches", 1, INT64_MAX, where);
    if (!r->bad && p->batch != r->g->global_batch)
        complain(r, "this is a plan for a batch of %lld, not %lld", (long long)p->batch, (long long)r->g->global_batch);
    if (!r->bad && p->batch % p->micro_batches)
        complain(r, "%lld micro-batches do not divide the batch of %lld", (long long)p->micro_batches, (long long)p->batch);
    if (!r->bad && r->g->whole_batch && p->micro_batches > 1)
        complain(r, "the loss is no sum of terms of one sample each, so %lld micro-batches do not add up to it; \"micro_batches\" "
                 "must be 1", (long long)p->micro_batches);
    p->schedule = text_of(r, root, "schedule", where);
    if (!r->bad && strcmp(p->schedule, "accumulate") != 0)
        complain(r, "the schedule of one stage is \"accumulate\", not \"%s\"", p->schedule);
    p->pins = text_of(r, root, "pins", where);
    p->objective_ps = number_of(r, root, "objective_ps", 0, INT64_MAX, where);
    p->bound_ps = number_of(r, root, "bound_ps", 0, INT64_MAX, where);
}

static enum mpp_status read_plan(struct reader *r, const json_t *root, struct mpp_graph *graph,
                                 const struct mpp_cluster *cluster, struct mpp_plan *p)
{
    if (!json_is_string(json_object_get(root, "plan_version"))) {
        complain(r, "this is no plan: it has no string \"plan_version\"");
        return MPP_INVALID;
    }
    read_head(r, root, cluster, p);
    const json_t *stages = array_of(r, root, "stages", "the plan");
    if (stages && json_array_size(stages) != 1)
        complain(r, "the plan has %zu stages; this release builds one", json_array_size(stages));
    if (r->bad)
        return MPP_INVALID;
    const json_t *stage = json_array_get(stages, 0);
    if (!json_is_object(stage)) {
        complain(r, "the stage is no object");
        return MPP_INVALID;
    }
    read_solver(r, root, &p->solver);
    mpp_graph_set_batch(graph, p->batch / p->micro_batches);
    r->stage->first_device = (int)number_of(r, stage, "first_device", 0, 0, "the stage");
    r->stage->n_devices = (int)number_of(r, stage, "devices", 1, MPP_CLUSTER_MAX_DEVICES, "the stage");
    if (!r->bad && r->stage->n_devices != cluster->n_devices)
        complain(r, "this is a plan for %d devices, not %d", r->stage->n_devices, cluster->n_devices);
    read_mesh(r, stage, cluster->n_devices);
    if (r->bad)
        return MPP_INVALID;
    read_ops(r, stage);
    read_tensors(r, stage, MPP_ROLE_PARAM, "parameters");
    read_tensors(r, stage, MPP_ROLE_INPUT, "inputs");
    return r->bad ? MPP_INVALID : MPP_OK;
}

/* jansson mostly calls it an error of the text when memory is out. So a text that fails is read again, with proof that there
 * is room for it. */
static json_t *parse(struct mpp_arena *arena, const char *text, size_t size, json_error_t *error)
{
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, error);
    if (root)
        return root;
    struct mpp_arena *room = mpp_arena_scratch(arena);
    mpp_arena_alloc(room, 32 * size + (1 << 16));
    mpp_arena_free(room);
    return json_loadb(text, size, JSON_REJECT_DUPLICATES, error);
}

static void release(void *json)
{
    json_decref(json);
}

enum mpp_status mpp_plan_read_json(struct mpp_arena *arena, struct mpp_diag *diag, struct mpp_graph *graph,
                                   const struct mpp_cluster *cluster, const char *path, struct mpp_plan **out)
{
    json_error_t error;
    struct reader r = {.arena = arena, .diag = diag, .g = graph, .path = path};
    *out = NULL;
    const char *why;
    size_t size;
    r.text = mpp_infile_read(arena, path, MAX_FILE_MIB, &size, &why);
    if (!r.text || size == 0) {
        mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot read: %s", r.text ? "the file is empty" : why);
        return MPP_INVALID;
    }
    struct mpp_arena *while_read = mpp_arena_scratch(arena);
    json_t *root = parse(arena, r.text, size, &error);
    if (!root) {
        mpp_diag_error(diag, (struct mpp_loc){path, error.line > 0 ? error.line : 0}, "not JSON: %s", error.text);
        mpp_arena_free(while_read);
        return MPP_INVALID;
    }
    mpp_arena_defer(while_read, release, root);
    r.missing = mpp_memo_new(arena);
    struct mpp_plan *plan = mpp_arena_array(arena, 1, struct mpp_plan);
    r.stage = mpp_arena_array(arena, 1, struct mpp_stage);
    r.stage->split = mpp_arena_array(arena, graph->n_groups, struct mpp_split);
    r.stage->resting = mpp_arena_array(arena, graph->n_tensors, struct mpp_sharding);
    r.stage->kept = mpp_arena_array(arena, graph->n_tensors, bool);
    for (mpp_id t = 0; t < graph->n_tensors; t++)
        r.stage->resting[t] = mpp_sharding_whole();
    plan->n_stages = 1;
    plan->stages = r.stage;
    enum mpp_status st = read_plan(&r, root, graph, cluster, plan);
    mpp_arena_free(while_read);
    if (st == MPP_OK)
        *out = plan;
    return st;
}
