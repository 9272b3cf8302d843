/* emit_tables.c - stageN_tables.c: where each tensor of a stage lies, and its struct mpp_stage. */
#include <stdio.h>
#include <string.h>

#include "codegen/emit_internal.h"
#include "codegen/lower_internal.h"
#include "ir/op.h"

/* ---- setup: every pointer ---- */

static bool is_carried(const struct mpp_emit *e, int b)
{
    return e->prog->buffers[mpp_buffer_root(e->prog->buffers, b)].address == MPP_ADDR_CARRIED;
}

static long long offset_of(const struct mpp_emit *e, int buffer, int layer)
{
    return (long long)mpp_buffer_offset(e->prog, (struct mpp_bufref){buffer, layer});
}

/* The tensor that counts skipped steps, where gradients are scaled; -1. */
static mpp_id skipped_steps(const struct mpp_graph *g)
{
    for (int i = 0; i < g->n_ops; i++)
        if (g->ops[i].kind == MPP_OP_LOSS_SCALE)
            return g->ops[i].in[3];
    return -1;
}

/* " + slot * 512" where each micro-batch in flight has a place of its own in B, which owns its memory. */
static const char *slot_words(struct mpp_emit *e, const struct mpp_buffer *b)
{
    return b->slots > 1 ? mpp_arena_printf(e->arena, " + slot * %lld", (long long)b->bytes) : "";
}

/* "4096", "4096 + slot * 512": where BUFFER of LAYER lies. */
static const char *fixed_place(struct mpp_emit *e, int buffer, int layer)
{
    struct mpp_bufref owner = mpp_buffer_owner(e->prog, (struct mpp_bufref){buffer, layer});
    return mpp_arena_printf(e->arena, "%lld%s", offset_of(e, buffer, layer), slot_words(e, &e->prog->buffers[owner.buffer]));
}

/* "4096 + i * 512": where B, which owns its memory, lies in layer INDEX of its class. */
static const char *place(struct mpp_emit *e, const struct mpp_buffer *b, const char *index)
{
    long long offset = (long long)b->offset, stride = (long long)b->stride;
    const char *slot = slot_words(e, b);
    if (b->cls >= 0 && b->address == MPP_ADDR_STRIDED && e->prog->classes[b->cls].count > 1)
        return mpp_arena_printf(e->arena, "%lld + %s * %lld%s", offset, index, stride, slot);
    if (b->cls >= 0 && b->address == MPP_ADDR_PINGPONG)
        return mpp_arena_printf(e->arena, "%lld + (%s & 1) * %lld%s", offset, index, stride, slot);
    return mpp_arena_printf(e->arena, "%lld%s", offset, slot);
}

/* The buffer whose memory B is, seen from B's layer (or from outside). */
static const char *root_place(struct mpp_emit *e, int b)
{
    int at = b;
    while (e->prog->buffers[at].alias >= 0) {
        const struct mpp_buffer *x = &e->prog->buffers[at], *y = &e->prog->buffers[x->alias];
        if (y->cls >= 0 && (x->cls != y->cls || x->alias_layer >= 0))
            return fixed_place(e, x->alias, x->alias_layer);
        at = x->alias;
    }
    return place(e, &e->prog->buffers[at], "i");
}

static void set_layers(struct mpp_emit *e, struct mpp_text *out, int c)
{
    const struct mpp_layer_class *cls = &e->prog->classes[c];
    const char *field = e->class_field[c];
    mpp_text_add(out, "    for (int64_t i = 0; i < %d; i++) {\n        struct %s_tensors *t = &p->%s[i];\n", cls->count, field, field);
    for (int b = 0; b < e->prog->n_buffers; b++)
        if (e->prog->buffers[b].cls == c && e->used[b] && !is_carried(e, b))
            mpp_text_add(out, "        t->%s = at(r, %s);\n", e->prog->buffers[b].name, root_place(e, b));
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
            mpp_text_add(&lines, "        t->%s = at(r, %s);\n", buf->name, fixed_place(e, b, cls->first));
            continue;
        }
        const char *end = fixed_place(e, b, step < 0 ? cls->first : cls->first + cls->count - 1), *test = "i == 0";
        if (step > 0)
            test = mpp_arena_printf(e->arena, "i == %d", cls->count - 1);
        mpp_text_add(&lines, "        t->%s = at(r, %s ? %s : %s);\n", buf->name, test, end,
                     place(e, source, step < 0 ? "(i - 1)" : "(i + 1)"));
    }
    if (lines.n)
        mpp_text_add(out, "    for (int64_t i = 0; i < %d; i++) { /* from the layer %s */\n        struct %s_tensors *t = &p->%s[i];\n%s"
                          "    }\n", cls->count, step < 0 ? "before" : "after", field, field, lines.data);
}

static bool any_slots(const struct mpp_emit *e)
{
    for (int b = 0; b < e->prog->n_buffers; b++)
        if (e->prog->buffers[b].slots > 1 && e->prog->buffers[b].kind != MPP_BUF_RING)
            return true;
    return false;
}

static void add_setup(struct mpp_emit *e, struct mpp_text *out)
{
    mpp_text_add(out, "\nstatic void *at(const struct mpp_rank *r, int64_t offset)\n{\n    return r->arena + offset;\n}\n"
                      "\nstatic void setup(struct mpp_rank *r)\n{\n    struct plan_state *p = r->plan;\n");
    if (any_slots(e))
        mpp_text_add(out, "    const int64_t slot = r->slot; /* so many micro-batches are in flight; what forward leaves for backward "
                          "is there for each */\n");
    mpp_text_add(out, "\n");
    for (int i = 0; i < e->n_dims; i++)
        mpp_text_add(out, "    p->dim.%s = mpp_extent_of(r, %lld, %s);\n", e->dims[i].name, (long long)e->dims[i].global,
                     mpp_emit_mask(e, e->dims[i].mask));
    for (int b = 0; b < e->prog->n_buffers; b++)
        if (e->prog->buffers[b].cls < 0 && e->used[b])
            mpp_text_add(out, "    p->%s = at(r, %s);\n", e->prog->buffers[b].name, fixed_place(e, b, -1));
    for (int c = 0; c < e->prog->n_classes; c++) {
        set_layers(e, out, c);
        set_carried(e, out, c, -1);
        set_carried(e, out, c, 1);
    }
    mpp_text_add(out, "}\n");
}

/* ---- the stage ---- */

static void add_mesh(struct mpp_emit *e, struct mpp_text *out)
{
    mpp_text_add(out, "    .first_rank = %d,\n    .n_axes = %d,\n    .axis_size = {", e->stage->first_device, e->mesh->n_axes);
    for (int a = 0; a < e->mesh->n_axes; a++)
        mpp_text_add(out, "%s%d", a ? ", " : "", e->mesh->size[a]);
    mpp_text_add(out, "},\n    .axis_name = {");
    for (int a = 0; a < e->mesh->n_axes; a++)
        mpp_text_add(out, "%s%s", a ? ", " : "", mpp_emit_quoted(e->arena, e->mesh->name[a]));
    mpp_text_add(out, "},\n");
}

static const char *seconds(struct mpp_emit *e, int64_t ps)
{
    return mpp_emit_double(e->arena, (double)ps * 1e-12);
}

/* Gradients of weights shared with other stages that this one receives in a step: messages that the plan has no price for. */
static int64_t shared_gradients(const struct mpp_emit *e)
{
    int64_t n = 0;
    for (int k = 0; e->transfers && k < e->transfers->n; k++)
        n += e->transfers->line[k].to == e->index && e->transfers->line[k].phase == MPP_PHASE_UPDATE;
    return n;
}

/* What a step's collectives and receives are priced at, those of a kind and mask as one; returns how many such there are. */
static int add_forecasts(struct mpp_emit *e, struct mpp_text *out)
{
    const struct mpp_stage *s = e->stage;
    int n = 0;
    for (int i = 0; i < s->n_collectives; i++) {
        const struct mpp_comm *c = &s->collectives[i];
        int64_t count = 0;
        double ps = 0;
        bool first = true;
        for (int k = 0; k < s->n_collectives; k++) {
            if (s->collectives[k].mask != c->mask || strcmp(s->collectives[k].kind, c->kind) != 0)
                continue;
            first = first && k >= i;
            count += s->collectives[k].count;
            ps += (double)s->collectives[k].count * (double)s->collectives[k].cost_ps;
        }
        if (!first)
            continue;
        if (c->mask == 0 && strcmp(c->kind, "receive") == 0)
            count += shared_gradients(e);
        mpp_text_add(out, "%s    {%s, %s, %lld, %s},\n", n == 0 ? "\nstatic const struct mpp_forecast forecasts[] = {\n" : "",
                     mpp_emit_quoted(e->arena, c->kind), mpp_emit_mask(e, c->mask), (long long)count, mpp_emit_double(e->arena, ps * 1e-12));
        n++;
    }
    if (n > 0)
        mpp_text_add(out, "};\n");
    return n;
}

static bool only_reports(const struct mpp_graph *g, const struct mpp_group *group)
{
    return group->n_ops == 1 && g->ops[group->ops[0]].kind == MPP_OP_OUTPUT;
}

/* The buffer that holds a rank's term of the loss once the forward passes are done, from which the update only sums over axes and
 * reports; -1 where it does more. */
static int loss_term(const struct mpp_emit *e, unsigned *axes_out)
{
    const struct mpp_section *s = &e->prog->section[MPP_PHASE_UPDATE];
    int buffer = e->prog->loss;
    *axes_out = 0;
    for (int i = s->n_items - 1; i >= 0; i--) {
        const struct mpp_instr *in = &s->items[i].instr;
        if (s->items[i].loop || in->n_out != 1 || in->out[0].buffer != buffer)
            continue;
        bool sum = in->kind == MPP_INSTR_STEP && in->step->kind == MPP_STEP_ALL_REDUCE;
        if (!sum && !(in->kind == MPP_INSTR_COMPUTE && in->n_in == 1 && only_reports(e->g, &e->g->groups[in->group])))
            return -1;
        *axes_out |= sum ? in->step->mask : 0;
        buffer = in->in[0].buffer;
    }
    return buffer;
}

static void add_loss(struct mpp_emit *e, struct mpp_text *out)
{
    const struct mpp_lprog *p = e->prog;
    unsigned axes;
    if (p->loss < 0) {
        mpp_text_add(out, "    .loss_offset = -1,\n");
        return;
    }
    int term = loss_term(e, &axes);
    mpp_text_add(out, "    .loss_offset = %lld,\n    .loss_term_offset = %lld,\n    .loss_axes = %s,\n", offset_of(e, p->loss, -1),
                 term < 0 ? -1LL : offset_of(e, term, -1), mpp_emit_mask(e, axes));
}

static void add_stage(struct mpp_emit *e, struct mpp_text *out, int n_tensors, int n_inputs)
{
    int n_forecasts = add_forecasts(e, out);
    const struct mpp_lprog *p = e->prog;
    mpp_text_add(out, "\nstatic const struct mpp_chunk chunks[] = {\n");
    for (int c = 0; c < p->n_chunks; c++)
        mpp_text_add(out, "    {.forward = %s, .backward = %s, .slots = %lld},\n", mpp_emit_pass_name(e, "forward", c),
                     mpp_emit_pass_name(e, "backward", c), (long long)p->slots[c]);
    mpp_text_add(out, "};\n");
    mpp_text_add(out, "\nconst struct mpp_stage %s = {\n", e->name);
    add_mesh(e, out);
    mpp_text_add(out, "    .arena_bytes = %lld,\n    .workspace_offset = %lld,\n    .workspace_bytes = %lld,\n    .beside_bytes = %lld,\n",
                 (long long)p->arena_bytes, (long long)p->workspace_offset, (long long)p->workspace_bytes,
                 (long long)p->memory.beside.own_bytes);
    mpp_text_add(out, "    .n_tensors = %d,\n    .tensors = %s,\n    .n_inputs = %d,\n    .inputs = %s,\n", n_tensors,
                 n_tensors ? "tensors" : "NULL", n_inputs, n_inputs ? "inputs" : "NULL");
    add_loss(e, out);
    mpp_text_add(out, "    .grad_norm_offset = %lld,\n", p->grad_norm < 0 ? -1LL : offset_of(e, p->grad_norm, -1));
    if (e->g->loss_scale >= 0 && skipped_steps(e->g) >= 0)
        mpp_text_add(out, "    .loss_scale_offset = %lld,\n    .skipped_offset = %lld,\n", offset_of(e, p->param_buffer[e->g->loss_scale], -1),
                     offset_of(e, p->param_buffer[skipped_steps(e->g)], -1));
    mpp_text_add(out, "    .plan_state_bytes = sizeof(struct plan_state),\n    .setup = setup,\n");
    if (p->section[MPP_PHASE_PROLOGUE].n_items > 0)
        mpp_text_add(out, "    .prologue = %s_prologue,\n", e->name);
    mpp_text_add(out, "    .n_chunks = %d,\n    .chunks = chunks,\n    .step = %s_step,\n    .reduce_gradients = %s_reduce_gradients,\n"
                      "    .update = %s_update,\n", p->n_chunks, e->name, e->name, e->name);
    mpp_text_add(out, "    .forward_s = %s,\n    .backward_s = %s,\n    .once_s = %s,\n", seconds(e, e->stage->time.forward_ps),
                 seconds(e, e->stage->time.backward_ps), seconds(e, e->stage->time.once_ps));
    if (n_forecasts > 0)
        mpp_text_add(out, "    .n_forecasts = %d,\n    .forecasts = forecasts,\n", n_forecasts);
    mpp_text_add(out, "};\n");
}

const char *mpp_emit_tables_c(struct mpp_emit *e)
{
    struct mpp_text *out = mpp_arena_array(e->arena, 1, struct mpp_text);
    out->arena = e->arena;
    mpp_text_comment(out, 0, mpp_arena_printf(e->arena, "The tables of stage %d: what the world outside sees of it, and where each tensor "
                                              "lies.", e->index));
    mpp_text_add(out, "#include \"%s.h\"\n", e->name);
    const char *inputs;
    int n_tensors, n_inputs;
    const char *tensors = mpp_emit_tensors(e, &inputs, &n_tensors, &n_inputs);
    mpp_text_add(out, "%s%s", n_tensors ? tensors : "", n_inputs ? inputs : "");
    add_setup(e, out);
    add_stage(e, out, n_tensors, n_inputs);
    return mpp_text_string(out);
}
