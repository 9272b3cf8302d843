/* emit_plan.c - plan.h (what the plan's files share) and plan.c (tensors, settings, setup, main). */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "codegen/emit_internal.h"
#include "codegen/lower_internal.h"

static const char *c_type(const struct mpp_buffer *b)
{
    return mpp_emit_type(b->dtype);
}

/* "heads over model; partial over data", "whole" */
static const char *sharding_words(struct mpp_emit *e, const struct mpp_buffer *b)
{
    const struct mpp_gtensor *t = &e->g->tensors[b->tensor];
    struct mpp_text s = {.arena = e->arena};
    for (int d = 0; d < b->n_dims; d++)
        for (int a = 0; a < e->mesh->n_axes; a++)
            if ((b->split[d] >> a & 1) && e->mesh->size[a] > 1)
                mpp_text_add(&s, "%s%s over %s", s.n ? ", " : "", t->dims[d].name ? t->dims[d].name : "rows", e->mesh->name[a]);
    for (int a = 0; a < e->mesh->n_axes; a++)
        if (b->sharding.axis[a] == MPP_PARTIAL && e->mesh->size[a] > 1)
            mpp_text_add(&s, "%sa term of a sum over %s", s.n ? ", " : "", e->mesh->name[a]);
    return s.n ? s.data : "whole";
}

static const char *local_words(struct mpp_emit *e, const struct mpp_buffer *b)
{
    struct mpp_text s = {.arena = e->arena};
    for (int d = 0; d < b->n_dims; d++)
        mpp_text_add(&s, "%s%lld", d ? "," : "", (long long)b->padded[d]);
    return b->n_dims ? s.data : "1";
}

static void add_field(struct mpp_emit *e, struct mpp_text *out, const struct mpp_buffer *b)
{
    int n_ranks = 1;
    for (int a = 0; a < e->mesh->n_axes; a++)
        n_ranks *= e->mesh->size[a];
    const char *decl = mpp_arena_printf(e->arena, "%s *%s;", c_type(b), b->name);
    mpp_text_add(out, "    %-36s /* %s", decl, mpp_emit_shape(e, b));
    if (n_ranks > 1)
        mpp_text_add(out, " | %s | %s", mpp_text_safe(e->arena, local_words(e, b)),
                     mpp_text_safe(e->arena, sharding_words(e, b)));
    mpp_text_add(out, " */\n");
}

/* ---- plan.h ---- */

static void add_groups(struct mpp_emit *e, struct mpp_text *out)
{
    int n_ranks = 1;
    for (int a = 0; a < e->mesh->n_axes; a++)
        n_ranks *= e->mesh->size[a];
    if (n_ranks > 1)
        mpp_text_add(out, "/* The mesh: sets of its axes, over which ranks sum and gather. */\n");
    for (int a = 0; a < e->mesh->n_axes; a++)
        if (e->mesh->size[a] > 1)
            mpp_text_add(out, "#define %s %uu /* %d ranks */\n", mpp_emit_mask(e, 1u << a), 1u << a, e->mesh->size[a]);
}

static void add_structs(struct mpp_emit *e, struct mpp_text *out)
{
    for (int c = 0; c < e->prog->n_classes; c++) {
        const struct mpp_layer_class *cls = &e->prog->classes[c];
        if (cls->count > 1)
            mpp_text_add(out, "\n/* Tensors of one of the layers %d to %d of %s. */\n", cls->first, cls->first + cls->count - 1,
                         cls->name);
        else
            mpp_text_add(out, "\n/* Tensors of layer %s. */\n", cls->name);
        mpp_text_add(out, "struct %s_tensors {\n", e->class_field[c]);
        for (int b = 0; b < e->prog->n_buffers; b++)
            if (e->prog->buffers[b].cls == c && e->used[b])
                add_field(e, out, &e->prog->buffers[b]);
        if (e->counts[c])
            mpp_text_add(out, "    %-36s /* its number among these layers, from 0: names its random stream */\n",
                         "uint32_t layer;");
        mpp_text_add(out, "};\n");
    }
}

const char *mpp_emit_plan_h(struct mpp_emit *e)
{
    struct mpp_text *out = mpp_arena_array(e->arena, 1, struct mpp_text);
    out->arena = e->arena;
    mpp_text_add(out, "/* Tensors of the plan: [global shape, and over how many ranks each dimension is split]%s. */\n"
                      "#ifndef PLAN_H\n#define PLAN_H\n\n#include \"runtime/mpp_rt.h\"\n\n",
                 e->stage->n_devices > 1 ? " | this rank's shape | sharding" : "");
    add_groups(e, out);
    if (e->n_dims > 0) {
        mpp_text_add(out, "\n/* This rank's block of each dimension. */\nstruct plan_dims {\n");
        for (int i = 0; i < e->n_dims; i++)
            mpp_text_add(out, "    %-36s /* %lld%s%s */\n", mpp_arena_printf(e->arena, "struct mpp_extent %s;", e->dims[i].name),
                         (long long)e->dims[i].global, e->dims[i].mask ? " over " : "",
                         e->dims[i].mask ? mpp_emit_axis_words(e, e->dims[i].mask) : "");
        mpp_text_add(out, "};\n");
    }
    add_structs(e, out);
    mpp_text_add(out, "\n/* A rank's own: r->plan. */\nstruct plan_state {\n");
    if (e->n_dims > 0)
        mpp_text_add(out, "    struct plan_dims dim;\n");
    for (int b = 0; b < e->prog->n_buffers; b++)
        if (e->prog->buffers[b].cls < 0 && e->used[b])
            add_field(e, out, &e->prog->buffers[b]);
    for (int c = 0; c < e->prog->n_classes; c++)
        mpp_text_add(out, "    struct %s_tensors %s[%d];\n", e->class_field[c], e->class_field[c],
                     e->prog->classes[c].count);
    mpp_text_add(out, "};\n\n");
    if (e->prog->section[MPP_PHASE_PROLOGUE].n_items > 0)
        mpp_text_add(out, "void stage0_prologue(struct mpp_rank *r);\n");
    mpp_text_add(out, "void stage0_forward_backward(struct mpp_rank *r);\nvoid stage0_reduce_gradients(struct mpp_rank *r);\n"
                      "void stage0_update(struct mpp_rank *r);\n\n#endif\n");
    return mpp_text_string(out);
}

/* ---- setup: every pointer ---- */

static bool is_carried(const struct mpp_emit *e, int b)
{
    return e->prog->buffers[mpp_buffer_root(e->prog->buffers, b)].address == MPP_ADDR_CARRIED;
}

static long long offset_of(const struct mpp_emit *e, int buffer, int layer)
{
    return (long long)mpp_buffer_offset(e->prog, (struct mpp_bufref){buffer, layer});
}

/* "at(r, 4096 + i * 512)" */
static const char *place(struct mpp_emit *e, const struct mpp_buffer *b)
{
    long long offset = (long long)b->offset, stride = (long long)b->stride;
    if (b->cls >= 0 && b->address == MPP_ADDR_STRIDED && e->prog->classes[b->cls].count > 1)
        return mpp_arena_printf(e->arena, "at(r, %lld + i * %lld)", offset, stride);
    if (b->cls >= 0 && b->address == MPP_ADDR_PINGPONG)
        return mpp_arena_printf(e->arena, "at(r, %lld + (i & 1) * %lld)", offset, stride);
    return mpp_arena_printf(e->arena, "at(r, %lld)", offset);
}

/* The buffer whose memory B is, seen from B's layer (or from outside). */
static const char *root_place(struct mpp_emit *e, int b)
{
    int at = b;
    while (e->prog->buffers[at].alias >= 0) {
        const struct mpp_buffer *x = &e->prog->buffers[at], *y = &e->prog->buffers[x->alias];
        if (y->cls >= 0 && (x->cls != y->cls || x->alias_layer >= 0))
            return mpp_arena_printf(e->arena, "at(r, %lld)", offset_of(e, x->alias, x->alias_layer));
        at = x->alias;
    }
    return place(e, &e->prog->buffers[at]);
}

static void set_layers(struct mpp_emit *e, struct mpp_text *out, int c)
{
    const struct mpp_layer_class *cls = &e->prog->classes[c];
    const char *field = e->class_field[c];
    mpp_text_add(out, "    for (int64_t i = 0; i < %d; i++) {\n        struct %s_tensors *t = &p->%s[i];\n", cls->count, field, field);
    for (int b = 0; b < e->prog->n_buffers; b++)
        if (e->prog->buffers[b].cls == c && e->used[b] && !is_carried(e, b))
            mpp_text_add(out, "        t->%s = %s;\n", e->prog->buffers[b].name, root_place(e, b));
    if (e->counts[c])
        mpp_text_add(out, "        t->layer = (uint32_t)i;\n");
    mpp_text_add(out, "    }\n");
}

/* What passes from layer to layer: in the order of the passing, so that chains resolve. */
static void set_carried(struct mpp_emit *e, struct mpp_text *out, int c, int step)
{
    const struct mpp_layer_class *cls = &e->prog->classes[c];
    const char *field = e->class_field[c];
    struct mpp_text lines = {.arena = e->arena};
    for (int b = 0; b < e->prog->n_buffers; b++) {
        const struct mpp_buffer *buf = &e->prog->buffers[b];
        const struct mpp_buffer *root = &e->prog->buffers[mpp_buffer_root(e->prog->buffers, b)];
        if (buf->cls != c || !e->used[b] || !is_carried(e, b) || root->carry_step != step)
            continue;
        struct mpp_bufref from = {mpp_buffer_root(e->prog->buffers, root->carry_from), -1};
        const struct mpp_buffer *source = mpp_emit_buffer(e, from);
        if (source->address == MPP_ADDR_CARRIED) {  /* passed through unchanged: the same for all layers */
            mpp_text_add(&lines, "        t->%s = at(r, %lld);\n", buf->name, offset_of(e, b, cls->first));
            continue;
        }
        long long end = offset_of(e, b, step < 0 ? cls->first : cls->first + cls->count - 1);
        const char *index = step < 0 ? "(i - 1)" : "(i + 1)", *test = step < 0 ? "i == 0" : "";
        if (step > 0)
            test = mpp_arena_printf(e->arena, "i == %d", cls->count - 1);
        const char *at = source->address == MPP_ADDR_STRIDED
                             ? mpp_arena_printf(e->arena, "%lld + %s * %lld", (long long)source->offset, index, (long long)source->stride)
                         : source->address == MPP_ADDR_PINGPONG
                             ? mpp_arena_printf(e->arena, "%lld + (%s & 1) * %lld", (long long)source->offset, index, (long long)source->stride)
                             : mpp_arena_printf(e->arena, "%lld", (long long)source->offset);
        mpp_text_add(&lines, "        t->%s = at(r, %s ? %lld : %s);\n", buf->name, test, end, at);
    }
    if (lines.n)
        mpp_text_add(out, "    for (int64_t i = 0; i < %d; i++) { /* from the layer %s */\n        struct %s_tensors *t = &p->%s[i];\n%s"
                          "    }\n", cls->count, step < 0 ? "before" : "after", field, field, lines.data);
}

static void add_setup(struct mpp_emit *e, struct mpp_text *out)
{
    mpp_text_add(out, "\nstatic void *at(const struct mpp_rank *r, int64_t offset)\n{\n    return r->arena + offset;\n}\n"
                      "\nstatic void setup(struct mpp_rank *r)\n{\n    struct plan_state *p = r->plan;\n\n");
    for (int i = 0; i < e->n_dims; i++)
        mpp_text_add(out, "    p->dim.%s = mpp_extent_of(r, %lld, %s);\n", e->dims[i].name, (long long)e->dims[i].global,
                     mpp_emit_mask(e, e->dims[i].mask));
    for (int b = 0; b < e->prog->n_buffers; b++)
        if (e->prog->buffers[b].cls < 0 && e->used[b])
            mpp_text_add(out, "    p->%s = at(r, %lld);\n", e->prog->buffers[b].name, offset_of(e, b, -1));
    for (int c = 0; c < e->prog->n_classes; c++) {
        set_layers(e, out, c);
        set_carried(e, out, c, -1);
        set_carried(e, out, c, 1);
    }
    mpp_text_add(out, "}\n");
}

/* ---- plan.c ---- */

static const struct mpp_dataset *train_data(const struct mpp_model *m)
{
    for (int i = 0; i < m->n_datasets; i++)
        if (!m->datasets[i].split || !strcmp(m->datasets[i].split, "train"))
            return &m->datasets[i];
    return NULL;
}

static int64_t ignore_index(const struct mpp_emit *e)
{
    for (int o = 0; o < e->g->n_ops; o++) {
        const struct mpp_attr *a = mpp_attrs_find(&e->g->ops[o].attrs, "ignore_index");
        if (a)
            return a->i;
    }
    return -100;
}

static void add_training(struct mpp_emit *e, struct mpp_text *out)
{
    const struct mpp_training *t = &e->g->model->training;
    struct mpp_arena *a = e->arena;
    static const char *const schedules[][2] = {
        {"linear", "MPP_SCHEDULE_LINEAR"}, {"cosine", "MPP_SCHEDULE_COSINE"}};
    const char *schedule = "MPP_SCHEDULE_CONSTANT";
    for (int i = 0; i < 2; i++)
        if (t->schedule && !strcmp(t->schedule, schedules[i][0]))
            schedule = schedules[i][1];
    mpp_text_line(out, 4, mpp_arena_printf(a, ".hyper = {.lr = %s, .beta1 = %s, .beta2 = %s, .epsilon = %s, .momentum = %s, "
                                              ".nesterov = %s, .clip_norm = %s},", mpp_emit_double(a, t->lr), mpp_emit_double(a, t->beta1),
                                           mpp_emit_double(a, t->beta2), mpp_emit_double(a, t->epsilon), mpp_emit_double(a, t->momentum),
                                           t->nesterov ? "true" : "false", mpp_emit_double(a, t->clip_norm)));
    mpp_text_add(out, "    .schedule = %s,\n    .warmup_steps = %lld,\n    .total_steps = %lld,\n    .final_lr = %s,\n", schedule,
                 (long long)t->warmup_steps, (long long)t->total_steps, mpp_emit_double(a, t->final_lr));
    mpp_text_add(out, "    .steps = %lld,\n    .save_every = %lld,\n    .save_keep = %lld,\n",
                 (long long)(t->total_steps > 0 ? t->total_steps : 10), (long long)t->save_every, (long long)t->save_keep);
}

/* The string of struct mpp_program's `built`, as literals of one line each. */
struct built {
    struct mpp_text out;
    int line; /* characters of the last */
};

static void add_built(struct built *b, const char *name, const char *value)
{
    char *item = mpp_arena_printf(b->out.arena, "%s %s", name, value);
    for (char *at = item; *at; at++)
        if (*at == ',' || (*at == ' ' && at != item + strlen(name)))
            *at = '_';
    const char *quoted = mpp_emit_quoted(b->out.arena, item);
    int length = (int)strlen(quoted) - 2;
    bool wraps = b->line + length > 96;
    mpp_text_add(&b->out, "%s%s%.*s", b->out.n ? ", " : "", wraps ? "\"\n              \"" : "", length, quoted + 1);
    b->line = (wraps ? 0 : b->line) + length + 2;
}

/* Settings that neither the tensors nor the rest of the program tell. */
static void add_settings(struct mpp_emit *e, struct mpp_text *out)
{
    static const char *const told[] = {"optimizer", "weight_decay", "weight_decay_1d", "lr", "final_lr", "warmup_steps", "total_steps",
                                       "beta1", "beta2", "epsilon", "momentum", "nesterov", "clip_norm", "schedule", "std"};
    const struct mpp_model *m = e->g->model;
    const struct mpp_training *t = &m->training;
    struct built b = {.out = {.arena = e->arena}};
    add_built(&b, "optimizer", t->optimizer);
    add_built(&b, "weight_decay", mpp_emit_double(e->arena, t->weight_decay));
    add_built(&b, "weight_decay_1d", mpp_emit_double(e->arena, isnan(t->weight_decay_1d) ? t->weight_decay : t->weight_decay_1d));
    if (strcmp(t->precision, "f32") != 0)
        add_built(&b, "precision", t->precision);
    for (int i = 0; i < t->n_groups; i++)
        add_built(&b, mpp_arena_printf(e->arena, "weight_decay:%s", t->groups[i].match),
                  mpp_emit_double(e->arena, t->groups[i].weight_decay));
    for (int i = 0; i < m->n_params; i++) {
        bool again = m->batch_name && !strcmp(m->param_names[i], m->batch_name);
        for (size_t k = 0; k < sizeof told / sizeof told[0]; k++)
            again = again || !strcmp(m->param_names[i], told[k]);
        if (!again)
            add_built(&b, m->param_names[i], m->param_values[i]);
    }
    for (int i = 0; i < m->n_dims; i++)
        if (!m->batch_name || strcmp(m->dims[i].name, m->batch_name) != 0)
            add_built(&b, m->dims[i].name, mpp_arena_printf(e->arena, "%lld", (long long)m->dims[i].size));
    mpp_text_add(out, "    .built = \"%s\",\n", b.out.data);
}

static void add_data(struct mpp_emit *e, struct mpp_text *out)
{
    const struct mpp_model *m = e->g->model;
    const struct mpp_dataset *d = train_data(m);
    mpp_text_add(out, "    .ignore_index = %lld,\n", (long long)ignore_index(e));
    if (d) {
        const char *source = !strcmp(d->format, "synthetic") ? d->format : mpp_arena_printf(e->arena, "%s:%s", d->format, d->path);
        mpp_text_add(out, "    .data = %s,\n    .seed = %lld,\n", mpp_emit_quoted(e->arena, source), (long long)d->seed);
        if (d->mask_share > 0)
            mpp_text_add(out, "    .mask_share = %s,\n    .mask_id = %lld,\n", mpp_emit_double(e->arena, d->mask_share), (long long)d->mask_id);
    }
    if (m->weights_path && !m->weights_optional)
        mpp_text_add(out, "    .weights = %s,\n", mpp_emit_quoted(e->arena, m->weights_path));
    if (m->n_strip)
        mpp_text_add(out, "    .strip_prefixes = strip_prefixes,\n");
}

static void add_program(struct mpp_emit *e, struct mpp_text *out, int n_inputs)
{
    const struct mpp_lprog *p = e->prog;
    mpp_text_add(out, "\nstatic const struct mpp_program program = {\n    .model = %s,\n    .plan_version = %s,\n    .n_axes = %d,\n",
                 mpp_emit_quoted(e->arena, e->g->model->name), mpp_emit_quoted(e->arena, e->plan->version), e->mesh->n_axes);
    mpp_text_add(out, "    .axis_size = {");
    for (int a = 0; a < e->mesh->n_axes; a++)
        mpp_text_add(out, "%s%d", a ? ", " : "", e->mesh->size[a]);
    mpp_text_add(out, "},\n    .axis_name = {");
    for (int a = 0; a < e->mesh->n_axes; a++)
        mpp_text_add(out, "%s%s", a ? ", " : "", mpp_emit_quoted(e->arena, e->mesh->name[a]));
    mpp_text_add(out, "},\n    .arena_bytes = %lld,\n    .workspace_offset = %lld,\n    .workspace_bytes = %lld,\n",
                 (long long)p->arena_bytes, (long long)p->workspace_offset, (long long)p->workspace_bytes);
    mpp_text_add(out, "    .batch = %lld,\n    .micro_batches = %lld,\n    .tokens_per_sample = %lld,\n",
                 (long long)e->plan->batch, (long long)e->plan->micro_batches, (long long)e->g->tokens_per_sample);
    mpp_text_add(out, "    .n_tensors = sizeof tensors / sizeof tensors[0],\n    .tensors = tensors,\n    .n_inputs = %d,\n"
                      "    .inputs = inputs,\n", n_inputs);
    mpp_text_add(out, "    .loss_offset = %lld,\n    .grad_norm_offset = %lld,\n", offset_of(e, p->loss, -1),
                 p->grad_norm < 0 ? -1LL : offset_of(e, p->grad_norm, -1));
    if (e->g->loss_scale >= 0)
        mpp_text_add(out, "    .scales_loss = true,\n    .loss_scale_offset = %lld,\n", offset_of(e, p->param_buffer[e->g->loss_scale], -1));
    mpp_text_add(out, "    .setup = setup,\n    .plan_state_bytes = sizeof(struct plan_state),\n");
    if (p->section[MPP_PHASE_PROLOGUE].n_items > 0)
        mpp_text_add(out, "    .prologue = stage0_prologue,\n");
    mpp_text_add(out, "    .forward_backward = stage0_forward_backward,\n    .update = stage0_update,\n"
                      "    .reduce_gradients = stage0_reduce_gradients,\n");
    add_training(e, out);
    add_settings(e, out);
    add_data(e, out);
    mpp_text_add(out, "};\n\nint main(int argc, char **argv)\n{\n    return mpp_main(argc, argv, &program);\n}\n");
}

const char *mpp_emit_plan_c(struct mpp_emit *e)
{
    struct mpp_text *out = mpp_arena_array(e->arena, 1, struct mpp_text);
    out->arena = e->arena;
    const struct mpp_model *m = e->g->model;
    mpp_text_comment(out, 0, mpp_arena_printf(e->arena, "The plan's tables: what the world outside sees of %s%s%s, where each "
                                              "tensor lies, and the defaults of a run.", m->name, m->preset ? " " : "",
                                              m->preset ? m->preset : ""));
    mpp_text_add(out, "#include \"plan.h\"\n");
    const char *inputs;
    int n_inputs;
    mpp_text_add(out, "%s", mpp_emit_tensors(e, &inputs, &n_inputs));
    mpp_text_add(out, "%s", inputs);
    if (m->n_strip) {
        mpp_text_add(out, "\nstatic const char *const strip_prefixes[] = {");
        for (int i = 0; i < m->n_strip; i++)
            mpp_text_add(out, "%s, ", mpp_emit_quoted(e->arena, m->strip_prefixes[i]));
        mpp_text_add(out, "NULL};\n");
    }
    add_setup(e, out);
    add_program(e, out, n_inputs);
    return mpp_text_string(out);
}
