/* emit_tensors.c - the tables of tensors that the world outside sees: parameters, gradients, state, inputs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "codegen/emit_internal.h"

struct tables {
    struct mpp_emit *e;
    struct mpp_text tensors, inputs;
    int n_tensors, n_inputs;
};

/* The parameter whose f32 master T is; -1. */
static mpp_id mastered(const struct mpp_graph *g, mpp_id t)
{
    mpp_id p = g->tensors[t].role == MPP_ROLE_STATE ? g->tensors[t].param : -1;
    return p >= 0 && g->tensors[p].info->master == t ? p : -1;
}

/* ROLE: that of T, or ACCUM for the gradient of parameter T. */
static const char *kind_name(const struct mpp_graph *g, enum mpp_role role, mpp_id t)
{
    if (role == MPP_ROLE_STATE)
        return mastered(g, t) >= 0 ? "MPP_KIND_PARAMETER" : "MPP_KIND_OPTIMIZER";
    if (role == MPP_ROLE_PARAM)
        return g->tensors[t].info->master >= 0 ? "MPP_KIND_ROUNDED"
               : mpp_graph_is_weight(g, t) ? "MPP_KIND_PARAMETER" : "MPP_KIND_OPTIMIZER";
    return "MPP_KIND_GRADIENT";
}

/* The published name of tensor T (a master has its parameter's), or its name. */
static const char *outside_name(const struct mpp_graph *g, mpp_id t)
{
    const struct mpp_gtensor *x = &g->tensors[mastered(g, t) >= 0 ? mastered(g, t) : t];
    return x->info && x->info->published ? x->info->published : x->name;
}

/* "h.%d.attn.c_attn.weight" when NAMES[i] differ only by the numbers FIRST + i; else NULL. */
static const char *pattern(struct mpp_arena *arena, const char *const *names, int n, int first)
{
    const char *a = names[0];
    const char *mark = mpp_arena_printf(arena, "%d", first);
    for (const char *at = strstr(a, mark); at; at = strstr(at + 1, mark)) {
        bool all = !strchr(a, '%');
        for (int i = 0; i < n && all; i++) {
            const char *made = mpp_arena_printf(arena, "%.*s%d%s", (int)(at - a), a, first + i, at + strlen(mark));
            all = !strcmp(made, names[i]);
        }
        if (all)
            return mpp_arena_printf(arena, "%.*s%%d%s", (int)(at - a), a, at + strlen(mark));
    }
    return NULL;
}

/* One row. T: the graph's tensor (a layered one: of the first layer); BUFFER and LAYER: where it lies. */
static void add_row(struct tables *x, const char *name, const char *kind, mpp_id t, int buffer, int layer, int count)
{
    struct mpp_emit *e = x->e;
    const struct mpp_gtensor *g = &e->g->tensors[t];
    const struct mpp_buffer *b = &e->prog->buffers[buffer];
    struct mpp_text s = {.arena = e->arena};
    int64_t offset = mpp_buffer_offset(e->prog, (struct mpp_bufref){buffer, layer});
    int64_t stride = count > 1 ? mpp_buffer_offset(e->prog, (struct mpp_bufref){buffer, layer + 1}) - offset : 0;
    mpp_text_add(&s, "{.name = %s, .kind = %s, .type = %s", mpp_emit_quoted(e->arena, name), kind,
                 mpp_emit_type_name(b->dtype));
    if (count > 1)
        mpp_text_add(&s, ", .first = %d, .count = %d", layer, count);
    mpp_text_add(&s, ", .offset = %lld", (long long)offset);
    if (count > 1)
        mpp_text_add(&s, ", .stride = %lld", (long long)stride);
    if (b->kind == MPP_BUF_INPUT && b->slots > 1)
        mpp_text_add(&s, ", .slot_stride = %lld", (long long)b->bytes);
    mpp_text_add(&s, ", .n_dims = %d, .dims = {", g->n_dims);
    for (int d = 0; d < g->n_dims; d++)
        mpp_text_add(&s, "%s%lld", d ? ", " : "", (long long)g->dims[d].size);
    mpp_text_add(&s, "%s}", g->n_dims ? "" : "0");
    bool split = false;
    for (int d = 0; d < b->n_dims; d++)
        split = split || b->split[d];
    if (split) {
        mpp_text_add(&s, ", .split = {");
        for (int d = 0; d < b->n_dims; d++)
            mpp_text_add(&s, "%s%s", d ? ", " : "", mpp_emit_mask(e, b->split[d]));
        mpp_text_add(&s, "}");
    }
    const struct mpp_param *info = g->param >= 0 ? e->g->tensors[g->param].info : NULL;
    if (info) {
        mpp_text_add(&s, ", .n_published = %d, .published = {", info->n_published);
        for (int d = 0; d < info->n_published; d++)
            mpp_text_add(&s, "%s%lld", d ? ", " : "", (long long)info->published_dims[d]);
        mpp_text_add(&s, "%s}", info->n_published ? "" : "0");
    }
    bool drawn = (g->info || mastered(e->g, t) >= 0) && strcmp(kind, "MPP_KIND_GRADIENT") != 0;
    if (drawn) {
        static const char *const inits[][2] = {{"zeros", "ZEROS"}, {"ones", "ONES"}, {"normal", "NORMAL"},
                                               {"uniform", "UNIFORM"}, {"constant", "CONSTANT"}};
        for (int i = 1; i < 5; i++)
            if (info->init && !strcmp(info->init, inits[i][0]))
                mpp_text_add(&s, ", .init = MPP_INIT_%s", inits[i][1]);
        if ((info->init_a < 0 || info->init_a > 0 || info->init_b < 0 || info->init_b > 0) && info->init)
            mpp_text_add(&s, ", .init_a = %s, .init_b = %s", mpp_emit_double(e->arena, info->init_a), mpp_emit_double(e->arena, info->init_b));
    }
    mpp_text_add(&s, "},");
    mpp_text_line(&x->tensors, 4, s.data);
    x->n_tensors++;
}

/* The graph tensor that BUFFER of LAYER holds: of role PARAM or STATE by its resting place, gradients by their parameter. */
static mpp_id tensor_at(const struct mpp_emit *e, enum mpp_role role, int buffer, int layer)
{
    const int *where = role == MPP_ROLE_ACCUM ? e->prog->gradient_buffer : e->prog->param_buffer;
    for (mpp_id t = 0; t < e->g->n_tensors; t++)
        if (where[t] == buffer && e->prog->param_layer[t] == layer
            && e->g->tensors[t].role == (role == MPP_ROLE_ACCUM ? MPP_ROLE_PARAM : role))
            return t;
    return -1;
}

/* All layers of BUFFER in one row, where their names allow. */
static void add_layered(struct tables *x, enum mpp_role role, int buffer)
{
    struct mpp_emit *e = x->e;
    const struct mpp_layer_class *c = &e->prog->classes[e->prog->buffers[buffer].cls];
    const char **names = mpp_arena_array(e->arena, c->count, const char *);
    mpp_id *ids = mpp_arena_array(e->arena, c->count, mpp_id);
    bool all = true;
    for (int i = 0; i < c->count; i++) {
        ids[i] = tensor_at(e, role, buffer, c->first + i);
        all = all && ids[i] >= 0;
        names[i] = ids[i] < 0 ? "" : outside_name(e->g, ids[i]);
    }
    const char *one = all && c->count > 1 ? pattern(e->arena, names, c->count, c->first) : NULL;
    if (one) {
        add_row(x, one, kind_name(e->g, role, ids[0]), ids[0], buffer, c->first, c->count);
        return;
    }
    for (int i = 0; i < c->count; i++)
        if (ids[i] >= 0)
            add_row(x, names[i], kind_name(e->g, role, ids[i]), ids[i], buffer, c->first + i, 1);
}

static void add_role(struct tables *x, enum mpp_role role)
{
    struct mpp_emit *e = x->e;
    const int *where = role == MPP_ROLE_ACCUM ? e->prog->gradient_buffer : e->prog->param_buffer;
    bool *done = mpp_arena_array(e->arena, e->prog->n_buffers, bool);
    for (mpp_id t = 0; t < e->g->n_tensors; t++) {
        if (where[t] < 0 || e->g->tensors[t].role != (role == MPP_ROLE_ACCUM ? MPP_ROLE_PARAM : role) || done[where[t]])
            continue;
        done[where[t]] = true;
        if (e->prog->buffers[where[t]].cls >= 0)
            add_layered(x, role, where[t]);
        else
            add_row(x, outside_name(e->g, t), kind_name(e->g, role, t), t, where[t], -1, 1);
    }
}

/* ---- inputs ---- */

/* Labels may hold the index that losses ignore, whatever layout ops they pass. */
static bool also_valid(struct mpp_arena *arena, const struct mpp_graph *g, mpp_id t, int64_t *out)
{
    bool *holds = mpp_arena_array(arena, g->n_tensors, bool);
    holds[t] = true;
    for (int o = 0; o < g->n_ops; o++) {
        const struct mpp_gop *op = &g->ops[o];
        const struct mpp_attr *a = mpp_attrs_find(&op->attrs, "ignore_index");
        bool reads = false;
        for (int i = 0; i < op->n_in; i++)
            reads = reads || (op->in[i] >= 0 && holds[op->in[i]]);
        if (reads && a) {
            *out = a->i;
            return true;
        }
        for (int k = 0; reads && k < op->n_out; k++)
            holds[op->out[k]] = g->tensors[op->out[k]].dtype == MPP_I32;
    }
    return false;
}

static void add_inputs(struct tables *x)
{
    struct mpp_emit *e = x->e;
    for (mpp_id t = 0; t < e->g->n_tensors; t++) {
        const struct mpp_gtensor *g = &e->g->tensors[t];
        if (g->role != MPP_ROLE_INPUT)
            continue;
        int buffer = -1;
        for (int b = 0; b < e->prog->n_buffers && buffer < 0; b++)
            if (e->prog->buffers[b].kind == MPP_BUF_INPUT && e->prog->buffers[b].tensor == t && e->prog->buffers[b].alias < 0)
                buffer = b;
        if (buffer < 0)           /* another stage reads it */
            continue;
        static const char *const roles[][2] = {
            {"tokens", "TOKENS"}, {"next_tokens", "NEXT_TOKENS"}, {"masked_tokens", "MASKED_TOKENS"},
            {"masked_labels", "MASKED_LABELS"}, {"zeros", "ZEROS"}, {"ones", "ONES"}};
        const char *role = "NONE";
        for (int i = 0; i < 6; i++)
            if (g->input->role && !strcmp(g->input->role, roles[i][0]))
                role = roles[i][1];
        int64_t also = 0;
        mpp_text_add(&x->inputs, "    {.tensor = %d, .role = MPP_ROLE_%s", x->n_tensors, role);
        if (g->input->limit)
            mpp_text_add(&x->inputs, ", .limit = %lld", (long long)g->input->limit);
        if (also_valid(e->arena, e->g, t, &also) && also != 0)
            mpp_text_add(&x->inputs, ", .also_valid = %lld", (long long)also);
        mpp_text_add(&x->inputs, ", .batched = %s},\n", g->n_dims > 0 && g->dims[0].per_batch > 0 ? "true" : "false");
        add_row(x, g->name, "MPP_KIND_INPUT", t, buffer, -1, 1);
        x->n_inputs++;
    }
}

const char *mpp_emit_tensors(struct mpp_emit *e, const char **out_inputs, int *out_n_tensors, int *out_n_inputs)
{
    struct tables x = {.e = e, .tensors = {.arena = e->arena}, .inputs = {.arena = e->arena}};
    mpp_text_add(&x.tensors, "\n/* Where repeated layers have a tensor each, it stands once: %%d is the layer. */\n"
                             "static const struct mpp_tensor tensors[] = {\n");
    mpp_text_add(&x.inputs, "\nstatic const struct mpp_input inputs[] = {\n");
    add_role(&x, MPP_ROLE_PARAM);
    add_role(&x, MPP_ROLE_ACCUM);
    add_role(&x, MPP_ROLE_STATE);
    add_inputs(&x);
    mpp_text_add(&x.tensors, "};\n");
    mpp_text_add(&x.inputs, "};\n");
    *out_inputs = x.inputs.data;
    *out_n_tensors = x.n_tensors;
    *out_n_inputs = x.n_inputs;
    return x.tensors.data;
}
