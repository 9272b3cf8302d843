/* emit_plan.c - plan.h (what the stages' files share) and plan.c (the program: stages, settings, main). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "codegen/emit_internal.h"

/* ---- plan.h ---- */

const char *mpp_emit_plan_h(struct mpp_emit *e)
{
    struct mpp_text *out = mpp_arena_array(e->arena, 1, struct mpp_text);
    out->arena = e->arena;
    mpp_text_add(out, "/* What the stages' files share. */\n#ifndef PLAN_H\n#define PLAN_H\n\n#include \"runtime/mpp_rt.h\"\n\n");
    for (int i = 0; i < e->plan->n_stages; i++)
        mpp_text_add(out, "extern const struct mpp_stage stage%d;\n", i);
    mpp_emit_transfers_h(e, out);
    mpp_text_add(out, "\n#endif\n");
    return mpp_text_string(out);
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
    for (int o = 0; o < e->whole->n_ops; o++) {
        const struct mpp_attr *a = mpp_attrs_find(&e->whole->ops[o].attrs, "ignore_index");
        if (a)
            return a->i;
    }
    return -100;
}

static void add_training(struct mpp_emit *e, struct mpp_text *out)
{
    const struct mpp_training *t = &e->whole->model->training;
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
    const struct mpp_model *m = e->whole->model;
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
    const struct mpp_model *m = e->whole->model;
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

static void add_program(struct mpp_emit *e, struct mpp_text *out)
{
    mpp_text_add(out, "\nstatic const struct mpp_stage *const stages[] = {");
    for (int i = 0; i < e->plan->n_stages; i++)
        mpp_text_add(out, "%s&stage%d", i ? ", " : "", i);
    mpp_text_add(out, "};\n\nstatic const struct mpp_program program = {\n    .model = %s,\n    .plan_version = %s,\n",
                 mpp_emit_quoted(e->arena, e->whole->model->name), mpp_emit_quoted(e->arena, e->plan->version));
    mpp_text_add(out, "    .n_stages = %d,\n    .stages = stages,\n", e->plan->n_stages);
    if (e->transfers->n > 0)
        mpp_text_add(out, "    .n_transfers = %d,\n    .transfers = transfers,\n", e->transfers->n);
    mpp_text_add(out, "    .pipeline = %s,\n    .step_s = %s,\n", mpp_emit_quoted(e->arena, e->plan->schedule),
                 mpp_emit_double(e->arena, e->plan->predicted.step_s));
    mpp_text_add(out, "    .batch = %lld,\n    .micro_batches = %lld,\n    .tokens_per_sample = %lld,\n",
                 (long long)e->plan->batch, (long long)e->plan->micro_batches, (long long)e->whole->tokens_per_sample);
    if (e->whole->loss_scale >= 0)
        mpp_text_add(out, "    .scales_loss = true,\n");
    add_training(e, out);
    add_settings(e, out);
    add_data(e, out);
    mpp_text_add(out, "};\n\nint main(int argc, char **argv)\n{\n    return mpp_main(argc, argv, &program);\n}\n");
}

const char *mpp_emit_plan_c(struct mpp_emit *e, struct mpp_lprog *const *progs)
{
    struct mpp_text *out = mpp_arena_array(e->arena, 1, struct mpp_text);
    out->arena = e->arena;
    const struct mpp_model *m = e->whole->model;
    mpp_text_comment(out, 0, mpp_arena_printf(e->arena, "The plan of %s%s%s: its stages, and the defaults of a run.", m->name, m->preset ? " " : "",
                                              m->preset ? m->preset : ""));
    mpp_text_add(out, "#include \"plan.h\"\n");
    if (m->n_strip) {
        mpp_text_add(out, "\nstatic const char *const strip_prefixes[] = {");
        for (int i = 0; i < m->n_strip; i++)
            mpp_text_add(out, "%s, ", mpp_emit_quoted(e->arena, m->strip_prefixes[i]));
        mpp_text_add(out, "NULL};\n");
    }
    mpp_emit_transfers_c(e, progs, out);
    add_program(e, out);
    return mpp_text_string(out);
}
