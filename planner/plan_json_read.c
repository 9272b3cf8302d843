/* plan_json_read.c - plan.json, read back and checked against the graph: decisions only (mpp_plan_derive does the rest).
 *
 * A user may have edited the file, so nothing in it is believed: every fault is one message that names the record. */
#include <ctype.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/infile.h"
#include "planner/plan_json_reader.h"

enum { MAX_FILE_MIB = 16, MAX_AXIS_NAME = 32 };

static const char *behind_space(const char *p)
{
    return p + strspn(p, " \t\r\n,:");
}

/* Behind the value at P of a text that is known to be JSON. */
static const char *behind_value(const char *p)
{
    int depth = 0;
    do {
        if (*p == '"') {
            for (p++; *p && *p != '"'; p++)
                p += *p == '\\' && p[1];
            p += *p == '"';
        } else if (strchr("{}[]", *p)) {
            depth += *p == '{' || *p == '[' ? 1 : -1;
            p++;
        } else {
            p += strcspn(p, ",:{}[]\" \t\r\n");
        }
        p = depth > 0 ? behind_space(p) : p;
    } while (depth > 0 && *p);
    return p;
}

/* The member of the value at P that the first N bytes of STEP name: a key, or an index; NULL: there is none. */
static const char *member(const char *p, const char *step, size_t n)
{
    bool object = *p == '{';
    size_t index = object ? 0 : strtoul(step, NULL, 10);
    if (!object && *p != '[')
        return NULL;
    for (p = behind_space(p + 1); *p && *p != '}' && *p != ']'; p = behind_space(behind_value(p))) {
        const char *end = object ? behind_value(p) : p;
        bool is = object ? (size_t)(end - p) == n + 2 && strncmp(p + 1, step, n) == 0 : index-- == 0;
        p = behind_space(end);
        if (is)
            return p;
    }
    return NULL;
}

/* The line of what PATH ("stages.0.mesh") names in TEXT, which is known to be JSON, or of the last thing on the way that is
 * there: of what lacks the next. */
static int line_of(const char *text, const char *path)
{
    const char *at = behind_space(text), *next, *found = at;
    int line = 1;
    for (size_t n; *path; path += n + (path[n] == '.')) {
        n = strcspn(path, ".");
        next = member(at, path, n);
        if (!next)
            break;
        found = at = next;
    }
    for (const char *p = text; p < found; p++)
        line += *p == '\n';
    return line;
}

void mpp_json_complain(struct reader *r, const char *fmt, ...)
{
    char what[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    const char *path = r->key ? mpp_arena_printf(r->arena, "stages.%zu.%s.%zu", r->kind, r->key, r->index)
                       : mpp_arena_printf(r->arena, "%s%s%s", r->at, *r->at && *r->field ? "." : "", r->field);
    int line = mpp_diag_errors(r->diag) < MPP_JSON_MAX_ERRORS ? line_of(r->text, path) : 0;
    r->field = "";
    mpp_diag_error(r->diag, (struct mpp_loc){r->path, line}, "%s", what);
    r->bad = true;
}

/* The same, of FIELD of what is being read. */
#define COMPLAIN_OF(r, name, ...) ((r)->field = (name), mpp_json_complain((r), __VA_ARGS__))

/* ---- fields ---- */

const char *mpp_json_get_text(struct reader *r, const json_t *o, const char *key, const char *where)
{
    const char *s = json_string_value(json_object_get(o, key));
    r->field = key;
    if (!s)
        mpp_json_complain(r, "%s wants a string \"%s\"", where, key);
    for (const char *c = s; c && *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            mpp_json_complain(r, "%s: \"%s\" holds control characters", where, key);
            return "";
        }
    r->field = "";
    return s ? mpp_arena_strdup(r->arena, s) : "";
}

void mpp_json_check_keys(struct reader *r, const json_t *o, const char *const *keys, int n, const char *where)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)o, key, value) {
        int k = 0;
        while (k < n && strcmp(keys[k], key) != 0)
            k++;
        r->field = k == n ? key : "";
        if (k == n)
            mpp_json_complain(r, "%s has an unknown key \"%s\"%s", where, key, mpp_diag_hint(r->diag, key, keys, n));
    }
}

int64_t mpp_json_get_number(struct reader *r, const json_t *o, const char *key, int64_t least, int64_t most, const char *where)
{
    const json_t *v = json_object_get(o, key);
    if (json_is_integer(v) && json_integer_value(v) >= least && json_integer_value(v) <= most)
        return json_integer_value(v);
    r->field = key;
    mpp_json_complain(r, "%s wants a whole number \"%s\" from %lld to %lld", where, key, (long long)least, (long long)most);
    return least;
}

const json_t *mpp_json_get_array(struct reader *r, const json_t *o, const char *key, const char *where)
{
    const json_t *v = json_object_get(o, key);
    r->field = json_is_array(v) ? "" : key;
    if (!json_is_array(v))
        mpp_json_complain(r, "%s wants an array \"%s\"", where, key);
    return json_is_array(v) ? v : NULL;
}

/* ---- the head ---- */

static void read_solver(struct reader *r, const json_t *root, struct mpp_solver_info *out)
{
    static const char *const status[] = {"optimal", "feasible", "infeasible", "no answer"};
    *out = (struct mpp_solver_info){0};
    const json_t *s = json_object_get(root, "solver"), *gap = json_object_get(s, "gap");
    if (!json_is_object(s)) {
        COMPLAIN_OF(r, "solver", "the plan wants an object \"solver\"");
        return;
    }
    const char *outer = r->at, *where = "\"solver\"", *text;
    r->at = *outer ? outer : "solver";
    text = mpp_json_get_text(r, s, "status", where);
    while (out->status < MPP_SOLVER_NO_ANSWER && strcmp(status[out->status], text) != 0)
        out->status++;
    if (*text && strcmp(status[out->status], text) != 0)
        mpp_json_complain(r, "\"solver\" has an unknown status \"%s\"", text);
    if (!json_is_number(gap) || !(json_number_value(gap) >= 0 && json_number_value(gap) <= 1))
        mpp_json_complain(r, "\"solver\" wants a number \"gap\" from 0 to 1");
    out->objective = mpp_json_get_number(r, s, "objective_ps", 0, INT64_MAX, where);
    out->bound = mpp_json_get_number(r, s, "bound_ps", 0, INT64_MAX, where);
    out->gap = json_number_value(gap);
    out->work = mpp_json_get_number(r, s, "work", 0, INT64_MAX, where);
    const struct { const char *key; int32_t *to; } count[] = {
        {"nodes", &out->nodes_full}, {"values", &out->values_full}, {"choices", &out->choices_full},
        {"nodes_reduced", &out->nodes_reduced}, {"values_reduced", &out->values_reduced},
        {"choices_reduced", &out->choices_reduced}, {"glpk_rows", &out->glpk_rows}, {"glpk_cols", &out->glpk_cols},
        {"peak_time", &out->peak_time},
    };
    for (size_t i = 0; i < sizeof count / sizeof count[0]; i++)
        *count[i].to = (int32_t)mpp_json_get_number(r, s, count[i].key, 0, INT32_MAX, where);
    out->glpk_status = mpp_json_get_text(r, s, "glpk", where);
    out->peak_bytes = mpp_json_get_number(r, s, "peak_bytes", 0, INT64_MAX, where);
    r->at = outer;
}

/* What the step computes in; plans that do not say were made when there was f32 alone. */
static void check_precision(struct reader *r, const json_t *root)
{
    const char *want = r->whole->model ? r->whole->model->training.precision : NULL;
    const char *have = json_object_get(root, "precision") ? mpp_json_get_text(r, root, "precision", "the plan") : "f32";
    if (!r->bad && want && strcmp(have, want) != 0)
        COMPLAIN_OF(r, "precision", "this is a plan for --precision %s, not %s", have, want);
}

static void read_head(struct reader *r, const json_t *root, const struct mpp_cluster *cluster, struct mpp_plan *p)
{
    const char *where = "the plan", *model = mpp_json_get_text(r, root, "model", where), *name = mpp_json_get_text(r, root, "cluster", where);
    const char *preset = mpp_json_get_text(r, root, "preset", where);
    const char *want = r->whole->model && r->whole->model->preset ? r->whole->model->preset : "";
    p->version = mpp_json_get_text(r, root, "plan_version", where);
    if (!r->bad && strcmp(p->version, MPP_PLAN_VERSION) != 0)
        COMPLAIN_OF(r, "plan_version", "this is a plan of version \"%s\"; this program reads version " MPP_PLAN_VERSION "; plan again", p->version);
    if (!r->bad && r->whole->model && strcmp(model, r->whole->model->name) != 0)
        COMPLAIN_OF(r, "model", "this is a plan for the model \"%s\", not \"%s\"", model, r->whole->model->name);
    if (!r->bad && strcmp(preset, want) != 0)
        COMPLAIN_OF(r, "preset", "this is a plan for %s%s, not %s%s", *preset ? "--preset " : "no preset", preset,
                 *want ? "--preset " : "none", want);
    check_precision(r, root);
    if (!r->bad && strcmp(name, cluster->name) != 0)
        COMPLAIN_OF(r, "cluster", "this is a plan for the cluster \"%s\", not \"%s\"", name, cluster->name);
    p->batch = mpp_json_get_number(r, root, "batch", 1, INT64_MAX, where);
    p->micro_batches = mpp_json_get_number(r, root, "micro_batches", 1, INT64_MAX, where);
    if (!r->bad && p->batch != r->whole->global_batch)
        COMPLAIN_OF(r, "batch", "this is a plan for a batch of %lld, not %lld", (long long)p->batch, (long long)r->whole->global_batch);
    if (!r->bad && p->batch % p->micro_batches)
        COMPLAIN_OF(r, "micro_batches", "%lld micro-batches do not divide the batch of %lld", (long long)p->micro_batches, (long long)p->batch);
    if (!r->bad && r->whole->whole_batch && p->micro_batches > 1)
        COMPLAIN_OF(r, "micro_batches", "the loss is no sum of terms of one sample each, so %lld micro-batches do not add up to it; \"micro_batches\" "
                 "must be 1", (long long)p->micro_batches);
    p->pins = mpp_json_get_text(r, root, "pins", where);
    p->objective_ps = mpp_json_get_number(r, root, "objective_ps", 0, INT64_MAX, where);
    p->bound_ps = mpp_json_get_number(r, root, "bound_ps", 0, INT64_MAX, where);
    p->overlap = json_object_get(root, "overlap_bound_ps") != NULL;
    if (p->overlap)
        p->overlap_bound_ps = mpp_json_get_number(r, root, "overlap_bound_ps", 0, INT64_MAX, where);
    p->stopped = json_object_get(root, "stopped") ? mpp_json_get_text(r, root, "stopped", where) : NULL;
}

/* The parts that a step is run in. */
static void read_schedule(struct reader *r, const json_t *root, struct mpp_plan *p, int n_stages)
{
    static const enum mpp_schedule_kind kinds[] = {MPP_SCHEDULE_GPIPE, MPP_SCHEDULE_1F1B, MPP_SCHEDULE_INTERLEAVED};
    const json_t *schedule = json_object_get(root, "schedule");
    const char *names[4] = {"accumulate"}, *kind;
    int k = 0;
    if (!json_is_object(schedule)) {
        COMPLAIN_OF(r, "schedule", "the plan wants an object \"schedule\", as in {\"kind\": \"1F1B\", \"chunks\": 1}");
        return;
    }
    for (int i = 0; i < 3; i++)
        names[i + 1] = mpp_schedule_name(kinds[i]);
    r->at = "schedule";
    kind = mpp_json_get_text(r, schedule, "kind", "\"schedule\"");
    int64_t chunks = mpp_json_get_number(r, schedule, "chunks", 1, MPP_CLUSTER_MAX_DEVICES, "\"schedule\"");
    r->at = "";
    while (k < 4 && strcmp(names[k], kind) != 0)
        k++;
    p->schedule = kind;
    p->pipeline = (struct mpp_schedule){.kind = k > 0 && k < 4 ? kinds[k - 1] : MPP_SCHEDULE_1F1B, .stages = n_stages,
                                        .chunks = (int)chunks, .micro_batches = p->micro_batches};
    if (r->bad)
        return;
    if (k == 4)
        COMPLAIN_OF(r, "schedule.kind", "there is no schedule \"%s\"%s", kind, mpp_diag_hint(r->diag, kind, names, 4));
    else if (n_stages == 1 && (k != 0 || chunks != 1))
        COMPLAIN_OF(r, "schedule", "the schedule of one stage is \"accumulate\" with 1 chunk, not \"%s\" with %lld", kind, (long long)chunks);
    else if (n_stages > 1 && k == 0)
        COMPLAIN_OF(r, "schedule.kind", "the schedule \"accumulate\" is that of one stage; there are %d", n_stages);
    else if (k > 0 && kinds[k - 1] == MPP_SCHEDULE_INTERLEAVED && chunks == 1)
        COMPLAIN_OF(r, "schedule.chunks", "the interleaved schedule runs at least 2 chunks of each stage; with 1 it is \"1F1B\"");
    else if (!mpp_schedule_valid(&p->pipeline))
        COMPLAIN_OF(r, "schedule", "the schedule \"%s\" cannot run %d stages of %lld chunks with %lld micro-batches", kind, n_stages,
                          (long long)chunks, (long long)p->micro_batches);
}

static void read_others(struct reader *r, const json_t *root, struct mpp_plan *p)
{
    const json_t *list = json_object_get(root, "runners_up");
    size_t n = json_is_array(list) ? json_array_size(list) : 0;
    if (list && !json_is_array(list))
        COMPLAIN_OF(r, "runners_up", "the plan wants an array \"runners_up\"");
    p->others = mpp_arena_array(r->arena, n, struct mpp_runner_up);
    for (size_t i = 0; i < n && !r->bad; i++) {
        const json_t *o = json_array_get(list, i);
        r->at = mpp_arena_printf(r->arena, "runners_up.%zu", i);
        const char *why = mpp_json_get_text(r, o, "why", "a runner-up");
        p->others[p->n_others++] = (struct mpp_runner_up){mpp_json_get_text(r, o, "what", "a runner-up"), *why ? why : NULL,
                                                          mpp_json_get_number(r, o, "time_ps", 0, INT64_MAX, "a runner-up")};
    }
    r->at = "";
}

/* The layers that stages are made of: those of the step, joined where the file says so. */
static enum mpp_status read_layers(struct reader *r, const json_t *root, struct mpp_plan *p)
{
    const json_t *list = json_object_get(root, "layers");
    struct mpp_layering *base, *joined;
    if (!list)
        return MPP_OK;
    size_t n = json_is_array(list) ? json_array_size(list) : 0;
    MPP_TRY(mpp_layering_make(r->arena, r->diag, r->whole, 0, &base));
    if (n < 1 || n > (size_t)base->n_layers) {
        COMPLAIN_OF(r, "layers", "\"layers\" wants an array of 1 to %d layers", base->n_layers);
        return MPP_INVALID;
    }
    int *first = mpp_arena_array(r->arena, n, int);
    const char **name = mpp_arena_array(r->arena, n, const char *);
    for (size_t k = 0; k < n && !r->bad; k++) {
        const char *where = mpp_arena_printf(r->arena, "layers[%zu]", k);
        const json_t *o = json_array_get(list, k);
        r->at = mpp_arena_printf(r->arena, "layers.%zu", k);
        if (!json_is_object(o)) {
            mpp_json_complain(r, "%s is no object, as {\"name\": \"h.0\", \"first\": 1} is", where);
            continue;
        }
        name[k] = mpp_json_get_text(r, o, "name", where);
        first[k] = (int)mpp_json_get_number(r, o, "first", 0, base->n_layers - 1, where);
        if (!r->bad && (k ? first[k] <= first[k - 1] : first[k] != 0))
            mpp_json_complain(r, "%s: \"first\" must rise from 0 on", where);
    }
    r->at = "";
    if (r->bad)
        return MPP_INVALID;
    joined = mpp_layering_join(r->arena, r->whole, base, (int)n, first);
    joined->name = name;
    p->layering = joined;
    return MPP_OK;
}

/* ---- stages ---- */

/* N_DEVICES of the stage, ALL of the plan. */
static void read_mesh(struct reader *r, const json_t *stage, int n_devices, int all)
{
    const json_t *mesh = mpp_json_get_array(r, stage, "mesh", "the stage");
    struct mpp_mesh *m = &r->stage->mesh;
    int64_t product = 1;
    size_t n = mesh ? json_array_size(mesh) : 0;
    *m = (struct mpp_mesh){.size = {1, 1, 1}};
    r->at = mpp_arena_printf(r->arena, "stages.%zu.mesh", r->kind);
    if (mesh && (n < 1 || n > MPP_MAX_AXES))
        mpp_json_complain(r, "the mesh wants one to three axes");
    if (n < 1 || n > MPP_MAX_AXES)
        return;
    for (size_t a = 0; a < n; a++) {
        const json_t *axis = json_array_get(mesh, a);
        r->at = mpp_arena_printf(r->arena, "stages.%zu.mesh.%zu", r->kind, a);
        if (!json_is_object(axis)) {
            mpp_json_complain(r, "mesh[%zu] is no object, as {\"axis\": \"data\", \"size\": 2} is", a);
            m->name[a] = "";
            continue;
        }
        m->name[a] = mpp_json_get_text(r, axis, "axis", "the mesh");
        m->size[a] = (int)mpp_json_get_number(r, axis, "size", 1, MPP_CLUSTER_MAX_DEVICES, "the mesh");
        product *= m->size[a];
        for (size_t b = 0; b < a; b++)
            if (*m->name[a] && strcmp(m->name[a], m->name[b]) == 0)
                mpp_json_complain(r, "two axes of the mesh are called \"%s\"", m->name[a]);
        if (strlen(m->name[a]) > MAX_AXIS_NAME)
            mpp_json_complain(r, "the name of an axis has over %d characters", MAX_AXIS_NAME);
        for (const char *c = m->name[a]; *c; c++)
            if (!isalnum((unsigned char)*c) && *c != '_') {
                mpp_json_complain(r, "an axis of the mesh is called \"%s\"; letters, digits and _ are allowed", m->name[a]);
                break;
            }
        if (!*m->name[a])
            mpp_json_complain(r, "an axis of the mesh has no name");
    }
    m->n_axes = (int)n;
    if (!r->bad && product != n_devices)
        mpp_json_complain(r, "the mesh has %lld devices, but there are %d%s", (long long)product, n_devices,
                 n_devices == all ? "" : " in the stage");
}

/* One place of object KIND: which stage it is (its number to KIND_OF, its path in the file to AT), and where that lies. */
static void read_place(struct reader *r, const json_t *object, const json_t *place, const struct mpp_plan *p, int *kind_of,
                       const char **at)
{
    static const char *const keys[] = {"stage", "first_device", "first_layer", "last_layer", "layers", "in_flight", "forward_ps",
                                       "backward_ps", "once_ps", "memory", "beside", "predicted", "solver"};
    static const char *const words[] = {"none", "selective", "full"};
    int last = p->layering ? p->layering->n_layers - 1 : 0, recompute = 0;
    r->key = NULL;
    r->at = mpp_arena_printf(r->arena, "stages.%zu", r->kind);
    const char *how = mpp_json_get_text(r, object, "recompute", "the stage");
    int devices = (int)mpp_json_get_number(r, object, "devices", 1, MPP_CLUSTER_MAX_DEVICES, "the stage");
    while (recompute < 3 && strcmp(words[recompute], how) != 0)
        recompute++;
    if (recompute == 3 && *how)
        COMPLAIN_OF(r, "recompute", "the stage: \"recompute\" is none, selective or full, not \"%s\"", how);
    r->key = "places";
    int number = (int)mpp_json_get_number(r, place, "stage", 0, p->n_stages - 1, "a place");
    if (r->bad)
        return;
    mpp_json_check_keys(r, place, keys, (int)(sizeof keys / sizeof keys[0]), "a place");
    if (kind_of[number] >= 0)
        mpp_json_complain(r, "stage %d stands twice", number);
    kind_of[number] = (int)r->kind;
    at[number] = mpp_arena_printf(r->arena, "stages.%zu.places.%zu", r->kind, r->index);
    struct mpp_stage *s = &p->stages[number];
    s->recompute = (enum mpp_recompute)recompute;
    s->n_devices = devices;
    s->first_device = (int)mpp_json_get_number(r, place, "first_device", 0, MPP_CLUSTER_MAX_DEVICES, "a place");
    if (p->layering) {
        s->first_layer = (int)mpp_json_get_number(r, place, "first_layer", 0, last, "a place");
        s->last_layer = (int)mpp_json_get_number(r, place, "last_layer", s->first_layer, last, "a place");
    } else if (!r->bad && (p->n_stages > 1 || recompute != MPP_RECOMPUTE_NONE)) {
        mpp_json_complain(r, "several stages, and recomputation, want an array \"layers\" in the plan");
    }
    s->solver = p->solver;
    if (!r->bad && json_object_get(place, "solver"))
        read_solver(r, place, &s->solver);
}

/* Do the stages, which stand at PLACES of the file, share out all layers and all devices, in order? */
static void check_places(struct reader *r, const struct mpp_plan *p, const char *const *places, int n_devices)
{
    int layer = 0, device = 0, layers = p->layering ? p->layering->n_layers : 1;
    for (int i = 0; i < p->n_stages && !r->bad; i++) {
        const struct mpp_stage *s = &p->stages[i];
        r->at = places[i];
        if (s->first_device != device)
            mpp_json_complain(r, "stage %d begins at device %d; the one before ends at %d", i, s->first_device, device - 1);
        else if (s->first_layer != layer)
            mpp_json_complain(r, "stage %d begins with layer %d; the one before ends with %d", i, s->first_layer, layer - 1);
        device += s->n_devices;
        layer = s->last_layer + 1;
    }
    r->at = "";
    if (!r->bad && device != n_devices)
        COMPLAIN_OF(r, "stages", "this is a plan for %d devices, not %d", device, n_devices);
    if (!r->bad && layer != layers)
        COMPLAIN_OF(r, "stages", "the stages end with layer %d of %d", layer - 1, layers);
}

/* The stage's own graph. */
static enum mpp_status make_graph(struct reader *r, const struct mpp_plan *p, struct mpp_stage *s)
{
    if (!p->layering && r->whole->groups) {
        s->graph = (struct mpp_graph *)r->whole;
        return MPP_OK;
    }
    const struct mpp_layering *l = p->layering;
    struct mpp_layering *all;
    int last = s->last_layer;
    if (!l) {
        MPP_TRY(mpp_layering_make(r->arena, r->diag, r->whole, 0, &all));
        l = all;
        last = l->n_layers - 1;
    }
    if (r->chunks)
        return mpp_interleave_extract(r->arena, r->diag, r->whole, l, &p->pipeline, (int)(s - p->stages), s->recompute, &s->graph);
    return mpp_span_extract(r->arena, r->diag, r->whole, l, s->first_layer, last, s->recompute, &s->graph);
}

static enum mpp_status read_stage(struct reader *r, const json_t *object, const struct mpp_plan *p, struct mpp_stage *s,
                                  int n_devices)
{
    static const char *const keys[] = {"places", "devices", "recompute", "mesh", "ops", "parameters", "inputs", "collectives",
                                       "unsplit"};
    r->at = mpp_arena_printf(r->arena, "stages.%zu", r->kind);
    mpp_json_check_keys(r, object, keys, (int)(sizeof keys / sizeof keys[0]), "the stage");
    MPP_TRY(make_graph(r, p, s));
    s->split = mpp_arena_array(r->arena, s->graph->n_groups, struct mpp_split);
    s->resting = mpp_arena_array(r->arena, s->graph->n_tensors, struct mpp_sharding);
    s->kept = mpp_arena_array(r->arena, s->graph->n_tensors, bool);
    for (mpp_id t = 0; t < s->graph->n_tensors; t++)
        s->resting[t] = mpp_sharding_whole();
    r->stage = s;
    r->g = s->graph;
    r->repeat = mpp_json_repeats(r->arena, r->g, &r->n_repeats);
    r->first = mpp_json_first_layers(r->arena, r->g, r->n_repeats);
    read_mesh(r, object, s->n_devices, n_devices);
    r->at = mpp_arena_printf(r->arena, "stages.%zu", r->kind);
    if (!r->bad)
        mpp_json_read_decisions(r, object);
    return r->bad ? MPP_INVALID : MPP_OK;
}

static void refuse_chunks(struct reader *r, const struct mpp_plan *p)
{
    int chunks = p->pipeline.chunks, parts = chunks * p->n_stages, layers = p->layering ? p->layering->n_layers : 1;
    if (layers % parts)
        COMPLAIN_OF(r, "schedule.chunks", "stages cannot run %d chunks: %d layers do not divide among %d parts", chunks, layers, parts);
    else if (!p->layering || !mpp_span_can_chunk(r->whole, p->layering, parts, p->n_stages))
        COMPLAIN_OF(r, "schedule.chunks", "stages cannot run %d chunks of this model: two of a stage would share a parameter or a value", chunks);
    else
        COMPLAIN_OF(r, "schedule.chunks", "stages cannot run %d chunks of this model: they are not like the layers that are planned for them", chunks);
}

static enum mpp_status read_stages(struct reader *r, const json_t *root, struct mpp_plan *p, int n_devices)
{
    const json_t *stages = json_object_get(root, "stages");
    int *kind_of = mpp_arena_array(r->arena, p->n_stages, int);
    const char **at = mpp_arena_array(r->arena, p->n_stages, const char *);
    for (int i = 0; i < p->n_stages; i++)
        kind_of[i] = -1;
    r->key = "places";
    for (r->kind = 0; r->kind < json_array_size(stages) && !r->bad; r->kind++) {
        const json_t *object = json_array_get(stages, r->kind), *places = json_object_get(object, "places");
        for (r->index = 0; r->index < json_array_size(places) && !r->bad; r->index++)
            read_place(r, object, json_array_get(places, r->index), p, kind_of, at);
    }
    r->key = NULL;
    r->at = "";
    if (!r->bad)
        check_places(r, p, at, n_devices);
    p->pipeline.stages = p->n_stages;
    r->chunks = !r->bad && p->layering && mpp_interleave_possible(r->whole, p->layering, &p->pipeline);
    if (!r->bad && p->pipeline.chunks > 1 && !r->chunks)
        refuse_chunks(r, p);
    for (int i = 0; i < p->n_stages && !r->bad; i++) {
        r->kind = (size_t)kind_of[i];
        MPP_TRY(read_stage(r, json_array_get(stages, r->kind), p, &p->stages[i], n_devices));
    }
    return r->bad ? MPP_INVALID : MPP_OK;
}

/* How many places there are under "stages"; 0 after a fault. */
static int count_stages(struct reader *r, const json_t *root)
{
    const json_t *stages = mpp_json_get_array(r, root, "stages", "the plan");
    size_t n = 0;
    if (stages && json_array_size(stages) == 0)
        COMPLAIN_OF(r, "stages", "the plan has no stages");
    for (size_t i = 0; stages && i < json_array_size(stages) && !r->bad; i++) {
        const json_t *object = json_array_get(stages, i), *places = json_object_get(object, "places");
        r->at = mpp_arena_printf(r->arena, "stages.%zu", i);
        if (!json_is_object(object))
            mpp_json_complain(r, "the stage is no object");
        else if (!json_is_array(places) || json_array_size(places) == 0)
            COMPLAIN_OF(r, "places", "the stage wants an array \"places\": which stages it stands for");
        else
            n += json_array_size(places);
    }
    r->at = "";
    if (!r->bad && n > MPP_CLUSTER_MAX_DEVICES)
        COMPLAIN_OF(r, "stages", "the plan has %zu stages; there can be no more than devices", n);
    return r->bad ? 0 : (int)n;
}

static enum mpp_status read_plan(struct reader *r, const json_t *root, struct mpp_graph *graph,
                                 const struct mpp_cluster *cluster, struct mpp_plan *p)
{
    if (!json_is_string(json_object_get(root, "plan_version"))) {
        mpp_json_complain(r, "this is no plan: it has no string \"plan_version\"");
        return MPP_INVALID;
    }
    read_head(r, root, cluster, p);
    if (r->bad)
        return MPP_INVALID;
    p->n_stages = count_stages(r, root);
    if (!r->bad)
        read_schedule(r, root, p, p->n_stages);
    if (!r->bad)
        read_solver(r, root, &p->solver);
    if (!r->bad)
        read_others(r, root, p);
    if (r->bad)
        return MPP_INVALID;
    mpp_graph_set_batch(graph, p->batch / p->micro_batches);
    MPP_TRY(read_layers(r, root, p));
    p->stages = mpp_arena_array(r->arena, p->n_stages, struct mpp_stage);
    return read_stages(r, root, p, cluster->n_devices);
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
    struct reader r = {.arena = arena, .diag = diag, .whole = graph, .path = path, .at = "", .field = ""};
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
    enum mpp_status st = read_plan(&r, root, graph, cluster, plan);
    mpp_arena_free(while_read);
    if (st == MPP_OK)
        *out = plan;
    return st;
}
