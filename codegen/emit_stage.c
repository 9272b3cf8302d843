/* emit_stage.c - stageN.c: a function per layer and phase, and the entries that the runtime calls. */
#include <ctype.h>
#include <string.h>

#include "codegen/emit_internal.h"
#include "ir/op.h"

static void begin_function(struct mpp_emit *e, int cls)
{
    e->body = (struct mpp_text){.arena = e->arena};
    e->indent = 4;
    e->cls = cls;
    e->uses_later = false;
}

/* Does BODY use the variable NAME (one letter), outside of comments and strings? */
static bool uses(const char *body, char name)
{
    char before = ' ';
    for (const char *c = body; *c; before = *c++) {
        if (c[0] == '/' && c[1] == '*')
            c = strstr(c, "*/") + 1;
        else if (*c == '"')
            c = strchr(c + 1, '"');
        else if (*c == name && !isalnum((unsigned char)before) && !strchr("_.>", before) && !isalnum((unsigned char)c[1])
                 && c[1] != '_')
            return true;
    }
    return false;
}

/* Write the function HEADER with the body collected so far. */
static void end_function(struct mpp_emit *e, const char *comment, const char *header)
{
    struct mpp_text *out = &e->stage_text;
    const char *body = mpp_text_string(&e->body);
    bool plan = uses(body, 'p');
    mpp_text_add(out, "\n");
    if (comment)
        mpp_text_comment(out, 0, comment);
    mpp_text_line(out, 0, header);
    mpp_text_add(out, "{\n");
    if (plan)
        mpp_text_add(out, "    struct plan_state *p = r->plan;\n");
    if (e->uses_later)
        mpp_text_add(out, "    const bool later = r->micro_batch > 0; /* gradients add up over the micro-batches */\n");
    if (!plan && !e->uses_later && !uses(body, 'r'))
        mpp_text_add(out, "    (void)r;\n");
    if (e->cls >= 0 && !uses(body, 't'))
        mpp_text_add(out, "    (void)t;\n");
    if (*body && (plan || e->uses_later))
        mpp_text_add(out, "\n");
    mpp_text_add(out, "%s}\n", body);
}

/* When an instruction runs: a C expression, NULL: always. *WHY_OUT: for a comment; NULL. */
static const char *condition(const struct mpp_emit *e, const struct mpp_instr *in, const char **why_out)
{
    bool several = e->plan->micro_batches > 1;
    const char *when = !several ? NULL : in->once ? "r->micro_batch == 0" : in->begins ? "r->micro_batch == r->micro_batches - 1" : NULL;
    *why_out = !when ? NULL : in->once ? "kept for the whole step" : "complete but for the other ranks";
    if (in->ahead == 0)
        return when;
    const char *end = mpp_arena_printf(e->arena, "t != %s", e->last_layer);
    return when ? mpp_arena_printf(e->arena, "%s && %s", when, end) : end;
}

/* INSIDE: the condition of the `if` that is open; NULL: none. */
static void close_when(struct mpp_emit *e, const char **inside)
{
    if (*inside) {
        e->indent -= 4;
        mpp_emit_line(e, "}");
    }
    *inside = NULL;
}

/* The next instruction of a list; those that run at the same times, not always, stand in one `if`. */
static void emit_run(struct mpp_emit *e, const struct mpp_instr *in, const char **inside)
{
    const char *why, *when = condition(e, in, &why);
    if (!when || !*inside || strcmp(when, *inside) != 0) {
        close_when(e, inside);
        if (when) {
            mpp_emit_line(e, "if (%s) {%s", when, why ? mpp_arena_printf(e->arena, " /* %s */", why) : "");
            e->indent += 4;
        }
    }
    *inside = when;
    mpp_emit_instr(e, in);
}

static bool any_begins(const struct mpp_emit *e)
{
    const struct mpp_lprog *prog = e->prog;
    const struct mpp_section *s = &prog->section[MPP_PHASE_BACKWARD];
    for (int b = 0; b < prog->n_bodies; b++)
        for (int i = 0; i < prog->bodies[b].n_instrs; i++)
            if (prog->bodies[b].instrs[i].begins)
                return true;
    for (int i = 0; i < s->n_items; i++)
        if (!s->items[i].loop && s->items[i].instr.begins)
            return true;
    return false;
}

static bool body_is_gradient(const struct mpp_body *b)
{
    return b->n_instrs > 0 && b->instrs[0].gradient;
}

/* The last layer that the loop over body B runs, as C; NULL: it runs one. */
static const char *last_layer(const struct mpp_emit *e, const struct mpp_body *b)
{
    const struct mpp_section *s = &e->prog->section[b->phase];
    int count = e->prog->classes[b->cls].count;
    for (int i = 0; i < s->n_items && count > 1; i++)
        if (s->items[i].loop && &e->prog->bodies[s->items[i].body] == b)
            return mpp_arena_printf(e->arena, "&p->%s[%d]", e->class_field[b->cls], s->items[i].descending ? 0 : count - 1);
    return NULL;
}

static void emit_body(struct mpp_emit *e, const struct mpp_body *b)
{
    static const char *const what[] = {"before the first forward of a step", "forward", "backward", "optimiser"};
    const struct mpp_layer_class *c = &e->prog->classes[b->cls];
    begin_function(e, b->cls);
    e->last_layer = last_layer(e, b);
    const char *inside = NULL;
    for (int i = 0; i < b->n_instrs; i++)
        emit_run(e, &b->instrs[i], &inside);
    close_when(e, &inside);
    bool norm = false;
    for (int i = 0; i < b->n_instrs; i++)
        norm = norm || b->instrs[i].kind == MPP_INSTR_ADD_SCALAR;
    const char *phase = body_is_gradient(b) ? "its gradients summed over ranks" : norm ? "its share of the gradient norm"
                      : what[b->phase];
    const char *field = e->prog->classes[b->cls].name;
    const char *comment = c->count > 1 ? mpp_arena_printf(e->arena, "One layer of %s: %s.", field, phase)
                                       : mpp_arena_printf(e->arena, "Layer %s: %s.", field, phase);
    end_function(e, comment, mpp_arena_printf(e->arena, "static void %s(struct mpp_rank *r, const struct %s_tensors *t)",
                                              e->body_name[b - e->prog->bodies], e->class_field[b->cls]));
}

static void emit_loop(struct mpp_emit *e, const struct mpp_pitem *item)
{
    const struct mpp_layer_class *c = &e->prog->classes[item->cls];
    const char *field = e->class_field[item->cls], *name = e->body_name[item->body];
    if (c->count == 1)
        mpp_emit_line(e, "%s(r, &p->%s[0]);", name, field);
    else if (item->descending) {
        mpp_emit_line(e, "for (int i = %d; i >= 0; i--)", c->count - 1);
        mpp_emit_line(e, "    %s(r, &p->%s[i]);", name, field);
    } else {
        mpp_emit_line(e, "for (int i = 0; i < %d; i++)", c->count);
        mpp_emit_line(e, "    %s(r, &p->%s[i]);", name, field);
    }
}

static bool item_is_gradient(const struct mpp_emit *e, const struct mpp_pitem *item)
{
    return item->loop ? body_is_gradient(&e->prog->bodies[item->body]) : item->instr.gradient;
}

/* The items of a phase and, forward and backward, of one chunk; GRADIENT: only those of reduce_gradients, or only the others. */
static void emit_items(struct mpp_emit *e, enum mpp_phase phase, int chunk, bool gradient)
{
    const struct mpp_section *s = &e->prog->section[phase];
    const char *inside = NULL;
    for (int i = 0; i < s->n_items; i++) {
        const struct mpp_pitem *item = &s->items[i];
        if (item->chunk != chunk || item_is_gradient(e, item) != gradient)
            continue;
        if (item->loop) {
            close_when(e, &inside);
            emit_loop(e, item);
        } else {
            emit_run(e, &item->instr, &inside);
        }
    }
    close_when(e, &inside);
}

static void emit_bodies(struct mpp_emit *e, enum mpp_phase phase)
{
    for (int b = 0; b < e->prog->n_bodies; b++)
        if (e->prog->bodies[b].phase == phase)
            emit_body(e, &e->prog->bodies[b]);
}

/* The passes of one direction: the layers' functions, then a function for each chunk. */
static void emit_passes(struct mpp_emit *e, enum mpp_phase phase, const char *name)
{
    int n = e->prog->n_chunks;
    emit_bodies(e, phase);
    for (int c = 0; c < n; c++) {
        begin_function(e, -1);
        emit_items(e, phase, c, false);
        end_function(e, n > 1 ? mpp_arena_printf(e->arena, "Part %d of %d of this stage's layers.", c, n) : NULL,
                     mpp_arena_printf(e->arena, "void %s(struct mpp_rank *r)", mpp_emit_pass_name(e, name, c)));
    }
}

static const char *title(struct mpp_emit *e)
{
    struct mpp_text s = {.arena = e->arena};
    const struct mpp_model *m = e->whole->model;
    int n = e->stage->n_devices, first = e->stage->first_device;
    mpp_text_add(&s, "Stage %d of %d: %s%s%s%s, ", e->index, e->plan->n_stages, m->name, m->preset ? " (" : "",
                 m->preset ? m->preset : "", m->preset ? ")" : "");
    if (n == 1) {
        mpp_text_add(&s, e->plan->n_stages == 1 ? "one device." : "device %d.", first);
    } else {
        mpp_text_add(&s, "devices %d-%d as", first, first + n - 1);
        for (int a = 0; a < e->mesh->n_axes; a++)
            mpp_text_add(&s, "%s %s %d", a ? " x" : "", e->mesh->name[a], e->mesh->size[a]);
        mpp_text_add(&s, ".");
    }
    return s.data;
}

/* The function stageN_WHAT. */
static const char *header(struct mpp_emit *e, const char *what)
{
    return mpp_arena_printf(e->arena, "void %s_%s(struct mpp_rank *r)", e->name, what);
}

static void emit_prologue(struct mpp_emit *e)
{
    emit_bodies(e, MPP_PHASE_PROLOGUE);
    if (e->prog->section[MPP_PHASE_PROLOGUE].n_items == 0)
        return;
    begin_function(e, -1);
    emit_items(e, MPP_PHASE_PROLOGUE, 0, false);
    end_function(e, "Before the first forward of a step, for each micro-batch.", header(e, "prologue"));
}

static void emit_update(struct mpp_emit *e)
{
    emit_bodies(e, MPP_PHASE_UPDATE);
    begin_function(e, -1);
    if (any_begins(e))
        mpp_emit_line(e, "mpp_wait(r); /* for the sums that began in the backward pass */");
    emit_items(e, MPP_PHASE_UPDATE, 0, true);
    end_function(e, "After the last backward of a step: gradients become final.", header(e, "reduce_gradients"));
    begin_function(e, -1);
    mpp_emit_line(e, "%s_reduce_gradients(r);", e->name);
    emit_items(e, MPP_PHASE_UPDATE, 0, false);
    end_function(e, "Once per step: gradient norm, clipping, optimiser.", header(e, "update"));
}

void mpp_emit_stage(struct mpp_emit *e)
{
    struct mpp_text *out = &e->stage_text;
    *out = (struct mpp_text){.arena = e->arena};
    mpp_text_comment(out, 0, mpp_arena_printf(
        e->arena, "%s A step is %lld micro-batch%s of %lld sample%s; arena %lld bytes (plan.json, report.txt). Shapes name each "
        "dimension with its global extent, and over how many ranks it is split.", title(e), (long long)e->plan->micro_batches,
        e->plan->micro_batches == 1 ? "" : "es", (long long)e->g->batch, e->g->batch == 1 ? "" : "s",
        (long long)e->prog->arena_bytes));
    mpp_text_add(out, "#include \"kernels.h\"\n#include \"%s.h\"\n", e->name);
    emit_prologue(e);
    emit_passes(e, MPP_PHASE_FORWARD, "forward");
    emit_passes(e, MPP_PHASE_BACKWARD, "backward");
    mpp_emit_schedule(e);
    emit_update(e);
}
