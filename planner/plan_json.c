/* plan_json.c - plan.json, written: one record per line, repeated layers once (docs/plan.md). */
#include "planner/plan_json.h"
#include "planner/plan_json_value.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/op.h"
#include "ir/outfile.h"
#include "planner/derive.h"
#include "planner/stage.h"

/* ---- records ---- */

/* Records of one section: those equal but for their layer are one. */
struct records {
    struct mpp_arena *arena;
    struct mpp_memo *memo;
    json_t **record;
    int **layers, *n_layers;
    size_t cap_record, cap_layers, cap_n;
    int n;
};

static void records_begin(struct records *r, struct mpp_arena *arena)
{
    *r = (struct records){.arena = arena, .memo = mpp_memo_new(arena)};
}

/* Take RECORD, of layer INDEX (-1: of none). */
static void records_add(struct records *r, json_t *record, int index)
{
    const char *text = mpp_json_text(r->arena, record, JSON_COMPACT);
    bool is_new;
    int id = mpp_memo_add(r->memo, text, strlen(text) + 1, &is_new);
    if (is_new) {
        size_t need = (size_t)id + 1;
        r->record = mpp_arena_grow(r->arena, r->record, &r->cap_record, need, sizeof(*r->record));
        r->layers = mpp_arena_grow(r->arena, r->layers, &r->cap_layers, need, sizeof(*r->layers));
        r->n_layers = mpp_arena_grow(r->arena, r->n_layers, &r->cap_n, need, sizeof(*r->n_layers));
        r->record[id] = record;
        r->layers[id] = NULL;
        r->n_layers[id] = 0;
        r->n = id + 1;
    }
    int n = r->n_layers[id];
    if ((n & (n - 1)) == 0) {     /* room for twice as many */
        int *more = mpp_arena_array(r->arena, n ? 2 * n : 1, int);
        if (n)
            memcpy(more, r->layers[id], sizeof(int) * (size_t)n);
        r->layers[id] = more;
    }
    r->layers[id][r->n_layers[id]++] = index;
}

static int cmp_int(const void *a, const void *b)
{
    return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

/* "0-11", "0-2,5"; *OUT_N how many different ones. */
static const char *layers_text(struct mpp_arena *arena, int *layer, int n, int *out_n)
{
    const char *text = "";
    *out_n = 0;
    qsort(layer, (size_t)n, sizeof *layer, cmp_int);
    for (int i = 0; i < n;) {
        int first = layer[i], last = first;
        while (i < n && layer[i] <= last + 1) {
            last = layer[i++];
        }
        *out_n += last - first + 1;
        text = first == last ? mpp_arena_printf(arena, "%s%s%d", text, *text ? "," : "", first)
                             : mpp_arena_printf(arena, "%s%s%d-%d", text, *text ? "," : "", first, last);
    }
    return text;
}

/* Write the section KEY, one record per line, each with its layers. With COUNTED also the number of
 * times the record stands ("times"), and its count per step over all of them ("per_step"). */
static void records_write(struct records *r, FILE *f, const char *key, bool counted, const char *end)
{
    fprintf(f, "   \"%s\": [", key);
    for (int i = 0; i < r->n; i++) {
        int n_layers = 0;
        if (r->layers[i][0] >= 0)
            mpp_json_put(r->arena, r->record[i], "layers",
                json_string(layers_text(r->arena, r->layers[i], r->n_layers[i], &n_layers)));
        if (counted) {
            json_int_t count = json_integer_value(json_object_get(r->record[i], "count"));
            mpp_json_put(r->arena, r->record[i], "times", json_integer(r->n_layers[i]));
            mpp_json_put(r->arena, r->record[i], "per_step", json_integer(count * r->n_layers[i]));
        }
        fprintf(f, "%s\n    %s", i ? "," : "", mpp_json_text(r->arena, r->record[i], 0));
    }
    fprintf(f, "%s]%s\n", r->n ? "\n   " : "", end);
}

struct writer {
    struct mpp_arena *arena;
    const struct mpp_graph *g;
    const struct mpp_cluster *cluster;
    const struct mpp_plan *plan;
    const struct mpp_stage *stage;
    const char **repeat;          /* of the stage: names of repeats, and the first layer of each */
    int *first, n_repeats;
    bool layered;                 /* layers matter: there are several stages, or some run again */
    FILE *f;
};

/* NAME without its layer, and in *OUT_LAYER the layer counted from the stage's first, or NAME and -1. */
static const char *shared_name(const struct writer *w, const char *name, int repeat, int index, int *out_layer)
{
    const char *t = repeat >= 0 ? mpp_json_template(w->arena, name, w->repeat[repeat], index) : NULL;
    *out_layer = t ? index - w->first[repeat] : -1;
    return t ? t : mpp_json_shifted(w->arena, name, w->repeat, w->first, w->n_repeats, -1);
}

static json_t *split_json(const struct writer *w, const struct mpp_rule *rule, struct mpp_split split)
{
    json_t *o = mpp_json_own(w->arena, json_object());
    for (int a = 0; a < w->stage->mesh.n_axes; a++) {
        int f = split.axis[a];
        if (f != MPP_WHOLE)
            mpp_json_put(w->arena, o, w->stage->mesh.name[a],
                json_string(f == MPP_PARTIAL ? "partial" : mpp_json_factor(w->arena, rule, f)));
    }
    return o;
}

static json_t *rest_json(const struct writer *w, const struct mpp_gtensor *t, struct mpp_sharding s)
{
    json_t *o = mpp_json_own(w->arena, json_object());
    for (int a = 0; a < w->stage->mesh.n_axes; a++)
        if (s.axis[a] >= 0)
            mpp_json_put(w->arena, o, w->stage->mesh.name[a], json_string(mpp_json_dim(w->arena, t, s.axis[a])));
    return o;
}

static json_t *sharding_text(const struct writer *w, mpp_id t, struct mpp_sharding s)
{
    return json_string(t < 0 ? "-" : mpp_sharding_text(w->arena, &w->g->tensors[t], &w->stage->mesh, s));
}

static const char *class_name(const struct mpp_gop *op)
{
    static const char *const names[] = {"elementwise", "layout", "reduce", "contraction", "kernel"};
    return names[mpp_op_info(op->kind)->cls];
}

static void write_ops(const struct writer *w)
{
    struct records r;
    records_begin(&r, w->arena);
    for (int i = 0; i < w->g->n_groups; i++) {
        const struct mpp_group *group = &w->g->groups[i];
        const struct mpp_gop *op = &w->g->ops[group->ops[0]];
        int layer, unused;
        json_t *o = mpp_json_own(w->arena, json_object()), *in = mpp_json_own(w->arena, json_array()), *out = mpp_json_own(w->arena, json_array());
        mpp_json_put(w->arena, o, "op", json_string(shared_name(w, op->name, op->repeat, op->index, &layer)));
        mpp_json_put(w->arena, o, "phase", json_string(mpp_json_phase(group->phase)));
        mpp_json_put(w->arena, o, "kind", json_string(mpp_op_info(op->kind)->name));
        mpp_json_put(w->arena, o, "class", json_string(class_name(op)));
        if (group->n_ops > 1) {
            json_t *fused = mpp_json_own(w->arena, json_array());
            for (int k = 1; k < group->n_ops; k++) {
                const struct mpp_gop *x = &w->g->ops[group->ops[k]];
                mpp_json_append(w->arena, fused, json_string(shared_name(w, x->name, x->repeat, x->index, &unused)));
            }
            mpp_json_put(w->arena, o, "fused", json_incref(fused));
        }
        mpp_json_put(w->arena, o, "split", json_incref(split_json(w, group->rule, w->stage->split[i])));
        if (group->n_in > 16) {   /* the sum over all parameters' squares: its operands are alike */
            mpp_json_append(w->arena, in, sharding_text(w, group->in[0], mpp_split_operand(group->rule, w->stage->split[i], 0)));
        } else {
            for (int k = 0; k < group->n_in; k++)
                mpp_json_append(w->arena, in, sharding_text(w, group->in[k], mpp_split_operand(group->rule, w->stage->split[i], k)));
        }
        for (int k = 0; k < group->n_out; k++)
            mpp_json_append(w->arena, out, sharding_text(w, group->out[k],
                                                mpp_split_operand(group->rule, w->stage->split[i], group->n_in + k)));
        mpp_json_put(w->arena, o, "in", json_incref(in));
        mpp_json_put(w->arena, o, "out", json_incref(out));
        records_add(&r, o, layer);
    }
    records_write(&r, w->f, "ops", false, ",");
}

/* What belongs to each parameter, [n_tensors]: one of its state tensors. */
static mpp_id *states_of(const struct writer *w)
{
    mpp_id *state = mpp_arena_array(w->arena, w->g->n_tensors, mpp_id);
    for (mpp_id t = 0; t < w->g->n_tensors; t++)
        state[t] = -1;
    for (mpp_id t = 0; t < w->g->n_tensors; t++)
        if (w->g->tensors[t].role == MPP_ROLE_STATE && w->g->tensors[t].param >= 0)
            state[w->g->tensors[t].param] = t;
    return state;
}

/* Shardings of gradients and optimiser state follow from the ops; they are written for readers. */
static void write_tensors(const struct writer *w, enum mpp_role role, const char *key)
{
    struct records r;
    mpp_id *state = states_of(w);
    struct mpp_sharding *lies = mpp_arena_array(w->arena, w->g->n_tensors, struct mpp_sharding);
    bool *known = mpp_arena_array(w->arena, w->g->n_tensors, bool);
    for (int i = 0; i < w->g->n_groups; i++)
        for (int o = 0; o < w->g->groups[i].n_out + w->g->groups[i].n_in; o++) {
            const struct mpp_group *group = &w->g->groups[i];
            mpp_id t = o < group->n_in ? group->in[o] : group->out[o - group->n_in];
            if (t < 0 || (o < group->n_in && w->g->tensors[t].role != MPP_ROLE_STATE))
                continue;
            lies[t] = mpp_split_operand(group->rule, w->stage->split[i], o);
            known[t] = true;
        }
    records_begin(&r, w->arena);
    for (mpp_id t = 0; t < w->g->n_tensors; t++) {
        const struct mpp_gtensor *x = &w->g->tensors[t];
        int layer;
        if (x->role != role)
            continue;
        json_t *o = mpp_json_own(w->arena, json_object());
        mpp_json_put(w->arena, o, "name", json_string(shared_name(w, x->name, x->repeat, x->index, &layer)));
        mpp_json_put(w->arena, o, "rest", json_incref(rest_json(w, x, w->stage->resting[t])));
        mpp_json_put(w->arena, o, "resting", sharding_text(w, t, w->stage->resting[t]));
        if (role == MPP_ROLE_PARAM) {
            mpp_id grad = x->info ? x->info->gradient : -1;
            mpp_json_put(w->arena, o, "kept", json_boolean(w->stage->kept[t]));
            if (grad >= 0 && known[grad])
                mpp_json_put(w->arena, o, "gradient", sharding_text(w, grad, lies[grad]));
            if (state[t] >= 0 && known[state[t]])
                mpp_json_put(w->arena, o, "state", sharding_text(w, state[t], lies[state[t]]));
        }
        records_add(&r, o, layer);
    }
    records_write(&r, w->f, key, false, ",");
}

static void write_collectives(const struct writer *w)
{
    struct records r;
    records_begin(&r, w->arena);
    for (int i = 0; i < w->stage->n_collectives; i++) {
        const struct mpp_comm *c = &w->stage->collectives[i];
        int layer;
        json_t *o = mpp_json_own(w->arena, json_object()), *axes = mpp_json_own(w->arena, json_array());
        for (int a = 0; a < w->stage->mesh.n_axes; a++)
            if (c->mask >> a & 1)
                mpp_json_append(w->arena, axes, json_string(w->stage->mesh.name[a]));
        mpp_json_put(w->arena, o, "kind", json_string(c->kind));
        mpp_json_put(w->arena, o, "axes", json_incref(axes));
        mpp_json_put(w->arena, o, "phase", json_string(mpp_json_phase(c->phase)));
        mpp_json_put(w->arena, o, "of", json_string(shared_name(w, c->tensor, c->repeat, c->index, &layer)));
        mpp_json_put(w->arena, o, "role", json_string(c->role));
        mpp_json_put(w->arena, o, "bytes", json_integer(c->bytes));
        mpp_json_put(w->arena, o, "count", json_integer(c->count));
        mpp_json_put(w->arena, o, "cost_ps", json_integer(c->cost_ps));
        mpp_json_put(w->arena, o, "reason", json_string(c->reason));
        records_add(&r, o, layer >= 0 || c->repeat < 0 ? layer : c->index - w->first[c->repeat]);
    }
    records_write(&r, w->f, "collectives", true, ",");
}

/* ---- values ---- */

static void write_line(const struct writer *w, const char *key, const json_t *value, const char *end)
{
    fprintf(w->f, "%s: %s%s\n", key, mpp_json_text(w->arena, value, JSON_REAL_PRECISION(12)), end);
}

static void write_text(const struct writer *w, const char *key, const char *value, const char *end)
{
    fprintf(w->f, " \"%s\": %s%s\n", key, mpp_json_text(w->arena, mpp_json_own(w->arena, json_string(value ? value : "")), 0), end);
}

static json_t *memory_json(struct mpp_arena *arena, const struct mpp_memory *m)
{
    return mpp_json_own(arena, json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "parameters", (json_int_t)m->parameters, "gradients",
                                (json_int_t)m->gradients, "optimizer", (json_int_t)m->optimizer, "activations",
                                (json_int_t)m->activations, "inputs", (json_int_t)m->inputs, "workspace",
                                (json_int_t)m->workspace, "arena_bytes", (json_int_t)m->arena_bytes, "live_bound_bytes",
                                (json_int_t)m->live_bound_bytes));
}

static json_t *solver_json(struct mpp_arena *arena, const struct mpp_solver_info *s)
{
    static const char *const status[] = {"optimal", "feasible", "infeasible", "no answer"};
    json_t *o = mpp_json_own(arena, json_pack("{s:s,s:I,s:I,s:f,s:I}", "status", status[s->status], "objective_ps",
                                     (json_int_t)s->objective, "bound_ps", (json_int_t)s->bound, "gap", s->gap, "work",
                                     (json_int_t)s->work));
    mpp_json_put(arena, o, "nodes", json_integer(s->nodes_full));
    mpp_json_put(arena, o, "values", json_integer(s->values_full));
    mpp_json_put(arena, o, "choices", json_integer(s->choices_full));
    mpp_json_put(arena, o, "nodes_reduced", json_integer(s->nodes_reduced));
    mpp_json_put(arena, o, "values_reduced", json_integer(s->values_reduced));
    mpp_json_put(arena, o, "choices_reduced", json_integer(s->choices_reduced));
    mpp_json_put(arena, o, "glpk", json_string(s->glpk_status ? s->glpk_status : ""));
    mpp_json_put(arena, o, "glpk_rows", json_integer(s->glpk_rows));
    mpp_json_put(arena, o, "glpk_cols", json_integer(s->glpk_cols));
    mpp_json_put(arena, o, "peak_bytes", json_integer(s->peak_bytes));
    mpp_json_put(arena, o, "peak_time", json_integer(s->peak_time));
    return o;
}

static json_t *prediction_json(struct mpp_arena *arena, const struct mpp_prediction *p)
{
    return mpp_json_own(arena, json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "step_s", p->step_s, "compute_s", p->compute_s,
                                         "activation_comm_s", p->activation_comm_s, "gradient_comm_s", p->gradient_comm_s,
                                         "parameter_comm_s", p->parameter_comm_s, "update_s", p->update_s, "receive_s",
                                         p->receive_s, "bubble_s", p->bubble_s));
}

/* ---- stages ---- */

struct stream {                   /* text that is written like a file */
    FILE *f;
    char *text;
    size_t size;
};

static void close_stream(void *stream)
{
    struct stream *s = stream;
    if (s->f)
        fclose(s->f);
    s->f = NULL;
    free(s->text);
    s->text = NULL;
}

/* What stages that are alike share, as text. */
static const char *program_text(struct writer *w)
{
    const struct mpp_stage *s = w->stage;
    struct stream *stream = mpp_arena_array(w->arena, 1, struct stream);
    json_t *mesh = mpp_json_own(w->arena, json_array()), *unsplit = mpp_json_own(w->arena, json_array());
    w->g = s->graph;
    w->repeat = mpp_json_repeats(w->arena, w->g, &w->n_repeats);
    w->first = mpp_json_first_layers(w->arena, w->g, w->n_repeats);
    for (int a = 0; a < s->mesh.n_axes; a++)
        mpp_json_append(w->arena, mesh, json_pack("{s:s,s:i}", "axis", s->mesh.name[a], "size", s->mesh.size[a]));
    for (int i = 0; i < s->n_unsplit; i++)
        mpp_json_append(w->arena, unsplit,
                        json_string(mpp_json_shifted(w->arena, w->g->ops[w->g->groups[s->unsplit[i]].ops[0]].name, w->repeat,
                                                     w->first, w->n_repeats, -1)));
    stream->f = w->f = open_memstream(&stream->text, &stream->size);
    if (!w->f)
        mpp_arena_fail(w->arena, 0);
    mpp_arena_defer(w->arena, close_stream, stream);
    fprintf(w->f, "   \"devices\": %d, \"recompute\": \"%s\",\n", s->n_devices, mpp_plan_recompute_word(s->recompute));
    write_line(w, "   \"mesh\"", mesh, ",");
    write_ops(w);
    write_tensors(w, MPP_ROLE_PARAM, "parameters");
    write_tensors(w, MPP_ROLE_INPUT, "inputs");
    write_collectives(w);
    write_line(w, "   \"unsplit\"", unsplit, "}");
    if (fflush(w->f) != 0 || ferror(w->f))
        mpp_arena_fail(w->arena, 0);
    const char *copy = mpp_arena_strdup(w->arena, stream->text);
    close_stream(stream);
    return copy;
}

/* "h.0 .. h.5"; interleaved, the parts that the stage runs: "h.0 .. h.2 + h.6 .. h.8". */
static const char *layers_in_words(const struct writer *w, const struct mpp_stage *s)
{
    const struct mpp_layering *l = w->plan->layering;
    int parts = w->plan->pipeline.chunks, apart = l->n_layers / parts;
    const char *text = "";
    for (int c = 0; c < parts; c++) {
        const char *a = l->name[c * apart + s->first_layer / parts], *b = l->name[c * apart + (s->last_layer + 1) / parts - 1];
        text = mpp_arena_printf(w->arena, "%s%s%s%s%s", text, c ? " + " : "", a, a == b ? "" : " .. ", a == b ? "" : b);
    }
    return text;
}

static void write_place(const struct writer *w, int number, const char *end)
{
    const struct mpp_stage *s = &w->plan->stages[number];
    json_t *o = mpp_json_own(w->arena, json_object());
    mpp_json_put(w->arena, o, "stage", json_integer(number));
    mpp_json_put(w->arena, o, "first_device", json_integer(s->first_device));
    if (w->layered) {
        mpp_json_put(w->arena, o, "first_layer", json_integer(s->first_layer));
        mpp_json_put(w->arena, o, "last_layer", json_integer(s->last_layer));
        mpp_json_put(w->arena, o, "layers", json_string(layers_in_words(w, s)));
    }
    mpp_json_put(w->arena, o, "in_flight", json_integer(s->in_flight));
    mpp_json_put(w->arena, o, "forward_ps", json_integer(s->time.forward_ps));
    mpp_json_put(w->arena, o, "backward_ps", json_integer(s->time.backward_ps));
    mpp_json_put(w->arena, o, "once_ps", json_integer(s->time.once_ps));
    mpp_json_put(w->arena, o, "memory", json_incref(memory_json(w->arena, &s->memory)));
    if (s->memory.beside.on_gpu)
        mpp_json_put(w->arena, o, "beside", json_incref(mpp_json_beside(w->arena, &s->memory.beside)));
    mpp_json_put(w->arena, o, "predicted", json_incref(prediction_json(w->arena, &s->predicted)));
    if (w->plan->n_stages > 1)
        mpp_json_put(w->arena, o, "solver", json_incref(solver_json(w->arena, &s->solver)));
    fprintf(w->f, "    %s%s\n", mpp_json_text(w->arena, o, JSON_REAL_PRECISION(12)), end);
}

static void write_stages(struct writer *w)
{
    int n = w->plan->n_stages, n_programs = 0;
    FILE *f = w->f;
    struct mpp_memo *memo = mpp_memo_new(w->arena);
    const char **text = mpp_arena_array(w->arena, n, const char *);
    int *program = mpp_arena_array(w->arena, n, int);
    for (int i = 0; i < n; i++) {
        bool is_new;
        w->stage = &w->plan->stages[i];
        const char *t = program_text(w);
        program[i] = mpp_memo_add(memo, t, strlen(t) + 1, &is_new);
        if (is_new)
            text[n_programs++] = t;
    }
    w->f = f;
    for (int k = 0; k < n_programs; k++) {
        int left = 0;
        for (int i = 0; i < n; i++)
            left += program[i] == k;
        fprintf(f, "  {\"places\": [\n");
        for (int i = 0; i < n; i++)
            if (program[i] == k)
                write_place(w, i, --left ? "," : "],");
        fprintf(f, "%s%s\n", text[k], k + 1 < n_programs ? "," : "");
    }
}

/* ---- the file ---- */

/* Which of the layers that the step has by itself (mpp_layering_make without a limit) each one begins with. */
static enum mpp_status write_layers(const struct writer *w, struct mpp_diag *diag, const struct mpp_graph *g)
{
    const struct mpp_layering *l = w->plan->layering;
    struct mpp_layering *base;
    MPP_TRY(mpp_layering_make(w->arena, diag, g, 0, &base));
    int *first = mpp_arena_array(w->arena, l->n_layers, int);
    for (int k = 0; k < l->n_layers; k++)
        first[k] = base->n_layers;
    for (mpp_id o = 0; o < g->n_ops; o++) {
        int k = l->layer_of[o];
        if (k >= 0 && base->layer_of[o] < first[k])
            first[k] = base->layer_of[o];
    }
    fprintf(w->f, " \"layers\": [");
    for (int k = 0; k < l->n_layers; k++)
        fprintf(w->f, "%s\n  %s", k ? "," : "",
                mpp_json_text(w->arena, mpp_json_own(w->arena, json_pack("{s:s,s:i}", "name", l->name[k], "first", first[k])), 0));
    fprintf(w->f, "],\n");
    return MPP_OK;
}

static void write_others(const struct writer *w)
{
    const struct mpp_plan *p = w->plan;
    fprintf(w->f, " \"runners_up\": [");
    for (int i = 0; i < p->n_others; i++)
        fprintf(w->f, "%s\n  %s", i ? "," : "",
                mpp_json_text(w->arena, mpp_json_own(w->arena, json_pack("{s:s,s:s,s:I}", "what", p->others[i].what, "why",
                                                                         p->others[i].why ? p->others[i].why : "", "time_ps",
                                                                         (json_int_t)p->others[i].time_ps)), 0));
    fprintf(w->f, "],\n");
}

static enum mpp_status write_all(struct writer *w, struct mpp_diag *diag)
{
    const struct mpp_plan *p = w->plan;
    const struct mpp_graph *g = w->g;
    FILE *f = w->f;
    fprintf(f, "{\n");
    write_text(w, "plan_version", MPP_PLAN_VERSION, ",");
    write_text(w, "model", g->model ? g->model->name : "", ",");
    write_text(w, "preset", g->model ? g->model->preset : "", ",");
    write_text(w, "precision", g->model ? g->model->training.precision : "f32", ",");
    write_text(w, "cluster", w->cluster->name, ",");
    write_text(w, "device", w->cluster->device.name, ",");
    write_line(w, " \"schedule\"", mpp_json_own(w->arena, json_pack("{s:s,s:i}", "kind", p->schedule, "chunks",
                                                                    p->pipeline.chunks)), ",");
    fprintf(f, " \"batch\": %lld,\n \"micro_batches\": %lld,\n", (long long)p->batch, (long long)p->micro_batches);
    write_text(w, "pins", p->pins, ",");
    fprintf(f, " \"objective_ps\": %lld,\n \"bound_ps\": %lld,\n", (long long)p->objective_ps, (long long)p->bound_ps);
    write_line(w, " \"gap\"", mpp_json_own(w->arena, json_real(p->gap)), ",");
    if (p->stopped)
        write_text(w, "stopped", p->stopped, ",");
    fprintf(f, " \"simulated_ps\": %lld,\n", (long long)p->simulated_ps);
    if (p->overlapped_ps > 0)
        fprintf(f, " \"overlapped_ps\": %lld,\n", (long long)p->overlapped_ps);
    if (p->overlap)
        fprintf(f, " \"overlap_bound_ps\": %lld,\n", (long long)p->overlap_bound_ps);
    write_line(w, " \"predicted\"", prediction_json(w->arena, &p->predicted), ",");
    write_line(w, " \"solver\"", solver_json(w->arena, &p->solver), ",");
    write_others(w);
    for (int i = 0; i < p->n_stages; i++)
        w->layered = p->layering && (w->layered || p->n_stages > 1 || p->stages[i].recompute != MPP_RECOMPUTE_NONE);
    if (w->layered)
        MPP_TRY(write_layers(w, diag, g));
    fprintf(f, " \"stages\": [\n");
    write_stages(w);
    fprintf(f, " ]\n}\n");
    return MPP_OK;
}

enum mpp_status mpp_plan_write_json(struct mpp_diag *diag, const struct mpp_graph *graph,
                                    const struct mpp_cluster *cluster, const struct mpp_plan *plan, const char *path)
{
    struct writer w = {.arena = mpp_arena_scratch(graph->arena), .g = graph, .cluster = cluster, .plan = plan};
    struct mpp_outfile *file = mpp_outfile_create(w.arena, path);
    enum mpp_status st = MPP_IO;
    if (file) {
        w.f = mpp_outfile_stream(file);
        st = write_all(&w, diag);
        if (st == MPP_OK)
            st = mpp_outfile_close(file) ? MPP_OK : MPP_IO;
    }
    if (st == MPP_IO)
        mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot write: %s", strerror(errno));
    mpp_arena_free(w.arena);
    return st;
}
