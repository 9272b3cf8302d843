/* export_megatron.c - a plan as arguments of Megatron-LM, with a list of what they cannot say. How it is spread is told by pins: what
 * --fix dp, tp, zero, sequence_parallel and vocab_parallel allow is what Megatron does, so what disagrees is named op by op. */
#include <string.h>

#include "codegen/report_html.h"
#include "inspect/export.h"
#include "inspect/megatron.h"
#include "planner/pins.h"

enum { MAX_NAMED = 6 };           /* ops that are named one by one */

struct megatron {
    struct report r;
    const struct mpp_transfers *transfers;
    struct mpp_megatron_model model;
    struct mpp_text args, notes;
    int dp, tp;
    bool regular;                 /* all stages have that mesh, data before model */
    bool fsdp;
};

static void add(struct megatron *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(struct megatron *m, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* An argument, with its value. */
static void add(struct megatron *m, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    mpp_text_add(&m->args, "    %s\n", mpp_text_format(m->r.arena, format, ap));
    va_end(ap);
}

static void note(struct megatron *m, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    mpp_text_add(&m->notes, "#  - %s\n", mpp_text_format(m->r.arena, format, ap));
    va_end(ap);
}

/* ---- the mesh ---- */

static bool is_data(const char *axis)
{
    return strncmp(axis, "data", 4) == 0;
}

/* The one axis of STAGE that is for data, or for the model; -1: none, -2: several. */
static int axis_of(const struct mpp_stage *s, bool data)
{
    int found = -1;
    for (int a = 0; a < s->mesh.n_axes; a++)
        if (s->mesh.size[a] > 1 && is_data(s->mesh.name[a]) == data)
            found = found == -1 ? a : -2;
    return found;
}

static int size_of(const struct mpp_stage *s, int axis)
{
    return axis >= 0 ? s->mesh.size[axis] : 1;
}

static void read_mesh(struct megatron *m)
{
    const struct mpp_plan *p = m->r.plan;
    const struct mpp_stage *first = &p->stages[0];
    int data = axis_of(first, true), model = axis_of(first, false);
    m->dp = size_of(first, data);
    m->tp = size_of(first, model);
    m->regular = data != -2 && model != -2;
    if (!m->regular)
        note(m, "stage 0 has a mesh of several axes of a kind; Megatron has one for data and one for tensors");
    else if (data >= 0 && model >= 0 && data > model)
        note(m, "neighbouring devices are of one data-parallel group; Megatron gives tensor-parallel groups neighbouring devices");
    for (int i = 1; i < p->n_stages; i++) {
        const struct mpp_stage *s = &p->stages[i];
        if (m->regular && (size_of(s, axis_of(s, true)) != m->dp || size_of(s, axis_of(s, false)) != m->tp || axis_of(s, true) == -2
                           || axis_of(s, false) == -2)) {
            m->regular = false;
            note(m, "stages have different meshes (stage %d has not that of stage 0); Megatron gives all the same", i);
        }
    }
}

/* ---- how ops are split ---- */

/* "h.*.attn.c_attn splits batch/data, heads/model" to NAMES. */
static void intern_op(const struct mpp_html *h, int group_id, struct mpp_html_strings *names)
{
    const struct report *r = h->r;
    const struct mpp_group *group = &r->g->groups[group_id];
    const char *list = "";
    for (int a = 0; a < r->mesh->n_axes; a++) {
        int f = r->stage->split[group_id].axis[a];
        const char *what = f == MPP_WHOLE ? NULL : f == MPP_PARTIAL ? "partial sums" : group->rule->factor[f].size.name;
        if (f != MPP_WHOLE)
            list = mpp_arena_printf(r->arena, "%s%s%s/%s", list, *list ? " and " : "", what ? what : "a dimension", r->mesh->name[a]);
    }
    int layer;
    const char *name = mpp_html_template(h, r->g->ops[group->ops[0]].name, &layer);
    mpp_html_intern(names, *list ? mpp_arena_printf(r->arena, "%s splits %s", name, list) : mpp_arena_printf(r->arena, "%s is whole", name));
}

/* A step's sum of squares: it goes with its weight, which is listed itself. */
static bool is_square_sum(const struct report *r, const struct mpp_group *group)
{
    return group->phase == MPP_PHASE_UPDATE && group->n_out > 0 && r->g->tensors[group->out[0]].n_dims == 0;
}

/* What pins of Z, SEQUENCE and the vocabulary disagree with, of one stage: groups and resting weights, counted; NAMES gets them
 * in words. */
static int disagreements(const struct megatron *m, const struct report *r, int z, int sequence, struct mpp_html_strings *names)
{
    const struct mpp_stage *s = r->stage;
    struct mpp_pins pins = mpp_pins_none();
    struct mpp_candidate c = {.mesh = s->mesh, .data_axis = axis_of(s, true), .model_axis = axis_of(s, false), .no_data = m->dp == 1};
    struct mpp_pin_rules *rules;
    const char *reason;
    int n = 0;
    pins.dp = m->dp;
    pins.tp = m->tp;
    pins.zero = m->dp > 1 ? z : -1;
    pins.sequence_parallel = m->tp > 1 ? sequence : -1;
    pins.vocab_parallel = m->tp > 1;
    if (m->tp == 1)
        pins.vocab_parallel = -1;
    struct report at = *r;
    struct mpp_html h = {.r = &at, .out = {.arena = r->arena}};
    mpp_html_note_layers(&h);
    if (!mpp_pins_resolve(r->arena, r->g, &c, &pins, &rules, &reason)) {
        pins.vocab_parallel = -1; /* a stage that does not see the vocabulary */
        if (!mpp_pins_resolve(r->arena, r->g, &c, &pins, &rules, &reason)) {
            mpp_html_intern(names, reason);
            return 1;
        }
    }
    for (int i = 0; i < r->g->n_groups; i++)
        if (!is_square_sum(r, &r->g->groups[i]) && !mpp_pins_allow_split(rules, &r->g->groups[i], s->split[i])) {
            intern_op(&h, i, names);
            n++;
        }
    for (mpp_id t = 0; t < r->g->n_tensors; t++)
        if (r->g->tensors[t].role == MPP_ROLE_PARAM && !mpp_pins_allow_rest(rules, t, s->resting[t])) {
            int layer;
            const char *name = mpp_html_template(&h, r->g->tensors[t].name, &layer);
            mpp_html_intern(names, mpp_arena_printf(r->arena, "%s rests %s", name,
                                                    mpp_sharding_text(r->arena, &r->g->tensors[t], r->mesh, s->resting[t])));
            n++;
        }
    return n;
}

static int all_disagreements(const struct megatron *m, int z, int sequence, struct mpp_html_strings *names)
{
    int n = 0;
    for (int i = 0; i < m->r.plan->n_stages; i++) {
        struct report at = mpp_report_at(&m->r, i);
        n += disagreements(m, &at, z, sequence, names);
    }
    return n;
}

static void name_disagreements(struct megatron *m, int n, const struct mpp_html_strings *names)
{
    const char *list = "";
    for (int i = 0; i < names->n && i < MAX_NAMED; i++)
        list = mpp_arena_printf(m->r.arena, "%s\n#      %s", list, names->text[i]);
    if (names->n > MAX_NAMED)
        list = mpp_arena_printf(m->r.arena, "%s\n#      and %d more", list, names->n - MAX_NAMED);
    if (n > 0)
        note(m, "%d kernel%s or weight%s split otherwise than Megatron does with these arguments:%s", n, n == 1 ? "" : "s",
             n == 1 ? " is" : "s are", list);
}

/* The arguments that disagree with the fewest ops; the simplest of those. */
static void add_splits(struct megatron *m)
{
    int best = -1, z = 0, sequence = 0;
    struct mpp_html_strings best_names = {0};
    for (int s = 0; s < (m->tp > 1 ? 2 : 1) && m->regular; s++)
        for (int k = 0; k < (m->dp > 1 ? 4 : 1); k++) {
            struct mpp_html_strings names = {.arena = m->r.arena};
            int n = all_disagreements(m, k, s, &names);
            if (best < 0 || n < best) {
                best = n;
                best_names = names;
                z = k;
                sequence = s;
            }
        }
    add(m, "--tensor-model-parallel-size %d", m->tp);
    if (sequence)
        add(m, "--sequence-parallel");
    if (z == 1)
        add(m, "--use-distributed-optimizer");
    m->fsdp = z >= 2;
    if (m->fsdp) {
        add(m, "--use-megatron-fsdp");
        add(m, "--data-parallel-sharding-strategy %s", z == 2 ? "optim_grads" : "optim_grads_params");
    }
    if (m->regular)
        name_disagreements(m, best, &best_names);
}

/* ---- stages ---- */

/* Part K of the pipeline: 2 layers as "tt". */
static const char *part_letters(const struct megatron *m, int k, int n, int parts)
{
    const char *layers = n == 0 ? "" : n == 1 ? "t" : mpp_arena_printf(m->r.arena, "t*%d", n);
    return mpp_arena_printf(m->r.arena, "%s%s%s", k == 0 ? "E" : "", layers, k == parts - 1 ? "L" : "");
}

static void add_layers(struct megatron *m)
{
    const struct mpp_plan *p = m->r.plan;
    int chunks = p->pipeline.chunks, parts = chunks * p->n_stages;
    int *count = mpp_arena_array(m->r.arena, parts, int);
    const char *why = mpp_megatron_parts(m->r.arena, p, chunks, &m->model, count);
    bool even = true;
    for (int k = 0; k < parts; k++)
        even = even && count[k] == count[0];
    add(m, "--pipeline-model-parallel-size %d", p->n_stages);
    if (p->n_stages == 1)
        return;
    if (why)
        note(m, "%s", why);
    if (p->pipeline.kind == MPP_SCHEDULE_GPIPE)
        note(m, "the schedule is GPipe; Megatron runs 1F1B");
    if (even || why) {
        if (chunks > 1)
            add(m, "--num-virtual-stages-per-pipeline-rank %d", chunks);
        return;
    }
    const char *layout = "";
    for (int k = 0; k < parts; k++)
        layout = mpp_arena_printf(m->r.arena, "%s%s%s", layout, k ? "|" : "", part_letters(m, k, count[k], parts));
    add(m, "--pipeline-model-parallel-layout '%s'", layout);
}

static void add_recompute(struct megatron *m)
{
    const struct mpp_plan *p = m->r.plan;
    enum mpp_recompute most = MPP_RECOMPUTE_NONE;
    bool same = true;
    for (int i = 0; i < p->n_stages; i++) {
        most = p->stages[i].recompute > most ? p->stages[i].recompute : most;
        same = same && p->stages[i].recompute == p->stages[0].recompute;
    }
    if (most != MPP_RECOMPUTE_NONE)
        add(m, "--recompute-granularity %s", most == MPP_RECOMPUTE_FULL ? "full" : "selective");
    if (most == MPP_RECOMPUTE_FULL) {
        add(m, "--recompute-method uniform");
        add(m, "--recompute-num-layers 1");
    }
    if (!same)
        note(m, "stages recompute differently; the arguments say what the stage does that recomputes most");
}

static void add_batch(struct megatron *m)
{
    const struct mpp_plan *p = m->r.plan;
    int64_t micro = p->batch / p->micro_batches;
    if (micro % m->dp)
        note(m, "a micro-batch of %lld samples is shared unevenly by %d data-parallel ranks; Megatron's are equal", (long long)micro, m->dp);
    add(m, "--micro-batch-size %lld", (long long)((micro + m->dp - 1) / m->dp));
    add(m, "--global-batch-size %lld", (long long)p->batch);
}

/* ---- the model ---- */

static void check_division(struct megatron *m, const char *what, int64_t n)
{
    if (n > 0 && n % m->tp)
        note(m, "%lld %s are shared unevenly by %d tensor-parallel ranks; Megatron wants equal parts", (long long)n, what, m->tp);
}

static void add_model(struct megatron *m)
{
    const struct mpp_megatron_model *x = &m->model;
    const char *precision = m->r.whole->model->training.precision;
    if (x->layers > 0) {
        add(m, "--num-layers %d", x->layers);
        add(m, "--hidden-size %lld", (long long)x->hidden);
        if (x->ffn > 0)
            add(m, "--ffn-hidden-size %lld", (long long)x->ffn);
        add(m, "--num-attention-heads %lld", (long long)x->heads);
        add(m, "--seq-length %lld", (long long)x->seq);
        if (x->positions > 0)
            add(m, "--max-position-embeddings %lld", (long long)x->positions);
        add(m, "--attention-dropout %g", x->attention_dropout);
        add(m, "--hidden-dropout %g", x->hidden_dropout);
        if (!x->tied)
            add(m, "--untie-embeddings-and-output-weights");
        if (x->program && strcmp(x->program, "pretrain_bert.py") == 0)
            add(m, "--bert-no-binary-head");
        check_division(m, "attention heads", x->heads);
        check_division(m, "units of the feed-forward layer", x->ffn);
        if (x->vocab % m->tp)
            note(m, "a vocabulary of %lld is shared unevenly by %d ranks; Megatron pads it (--make-vocab-size-divisible-by)",
                 (long long)x->vocab, m->tp);
    }
    if (!x->program)
        note(m, "%s: Megatron has no program for it, and the arguments only say how it is spread", x->why);
    if (precision && strcmp(precision, "f32") != 0)
        add(m, "--%s", strcmp(precision, "f16") == 0 ? "fp16" : "bf16");
    add(m, "--optimizer %s", strcmp(m->r.whole->model->training.optimizer, "sgd") == 0 ? "sgd" : "adam");
}

/* ---- the file ---- */

static void put(struct megatron *m, FILE *out)
{
    const struct mpp_model *model = m->r.whole->model;
    const struct mpp_cluster *c = m->r.cluster;
    const char *program = m->model.program ? m->model.program : "pretrain_gpt.py";
    const char *notes = mpp_text_string(&m->notes);
    fprintf(out, "#!/bin/bash\n# %s%s%s%s on %d x %s, as mpplan planned it, in Megatron-LM's arguments.\n", mpp_text_safe(m->r.arena, model->name),
            model->preset ? " (" : "", model->preset ? mpp_text_safe(m->r.arena, model->preset) : "", model->preset ? ")" : "", c->n_devices,
            mpp_text_safe(m->r.arena, c->device.name));
    fprintf(out, *notes ? "# What they do not say:\n%s" : "# They say all that the plan decides.\n", notes);
    fprintf(out, "# Not part of a plan: data, tokenizer (--vocab-file, ...), learning rates, steps, checkpoints. Give them after this script's name.\n"
                 "# Run it in Megatron-LM's folder, where %s is.\n", program);
    if (c->n_nodes > 1)
        fprintf(out, "# Start it once on each of the %d nodes, with NODE_RANK=0 to %d and MASTER_ADDR, the address of node 0, in the environment\n"
                     "# (MASTER_PORT is 29500 where it is not set).\n", c->n_nodes, c->n_nodes - 1);
    if (m->tp > 1 && !m->fsdp)    /* before Blackwell Megatron does not start without it; with its FSDP it is not to be set */
        fprintf(out, "export CUDA_DEVICE_MAX_CONNECTIONS=1 # wanted for tensor parallelism\n");
    fprintf(out, "MEGATRON_ARGS=(\n%s)\n", mpp_text_string(&m->args));
    int per_node = c->n_nodes > 1 ? c->devices_per_node : c->n_devices;
    const char *nodes = c->n_nodes > 1 ? "--node_rank \"${NODE_RANK:?which node is this, from 0 on}\" --master_addr \"${MASTER_ADDR:?the address of node 0}\" "
                                         "--master_port \"${MASTER_PORT:-29500}\" " : "";
    fprintf(out, "torchrun --nproc_per_node %d --nnodes %d %s%s \"${MEGATRON_ARGS[@]}\" \"$@\"\n", per_node, c->n_nodes, nodes, program);
}

void mpp_export_megatron(const struct mpp_plandir *d, FILE *out)
{
    struct mpp_arena *arena = mpp_arena_scratch(d->graph->arena);
    struct megatron m = {.r = {.arena = arena, .whole = d->graph, .cluster = d->cluster, .plan = d->fitted.plan, .out = out},
                         .transfers = d->fitted.transfers, .args = {.arena = arena}, .notes = {.arena = arena}};
    mpp_megatron_read_model(arena, d->graph, &m.model);
    read_mesh(&m);
    add_splits(&m);
    add_layers(&m);
    add_recompute(&m);
    add_batch(&m);
    add_model(&m);
    put(&m, out);
    mpp_arena_free(arena);
}
