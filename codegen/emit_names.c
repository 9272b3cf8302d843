/* emit_names.c - buffers, extents, axes and ops as the emitted code names them. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "codegen/emit_internal.h"
#include "codegen/lower_internal.h"
#include "ir/op.h"

void mpp_emit_line(struct mpp_emit *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    mpp_text_line(&e->body, e->indent, mpp_text_format(e->arena, fmt, ap));
    va_end(ap);
}

void mpp_emit_note(struct mpp_emit *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    mpp_text_comment(&e->body, e->indent, mpp_text_format(e->arena, fmt, ap));
    va_end(ap);
}

void mpp_emit_fail(struct mpp_emit *e, mpp_id op, const char *what)
{
    const struct mpp_gop *o = &e->g->ops[op];
    mpp_diag_error(e->diag, o->loc, "%s \"%s\": %s", mpp_op_info(o->kind)->name, o->name, what);
    e->failed = true;
}

/* ---- buffers ---- */

const struct mpp_buffer *mpp_emit_buffer(const struct mpp_emit *e, struct mpp_bufref ref)
{
    return &e->prog->buffers[ref.buffer];
}

/* "stage0" */
static bool is_stage(const char *name)
{
    return !strncmp(name, "stage", 5) && name[5] && name[5 + strspn(name + 5, "0123456789")] == '\0';
}

/* The field of class CLS in struct plan_state: "h"; "bert.encoder.layer" is "layer" where no other is. */
static const char *class_field(const struct mpp_emit *e, int cls)
{
    const char *whole = e->prog->classes[cls].name, *dot = strrchr(whole, '.');
    for (int c = 0; c < e->prog->n_classes && dot; c++) {
        const char *other = e->prog->classes[c].name, *at = strrchr(other, '.');
        if (c != cls && !strcmp(at ? at + 1 : other, dot + 1))
            dot = NULL;
    }
    const char *name = mpp_emit_identifier(e->arena, dot ? dot + 1 : whole);
    bool taken = !strcmp(name, "dim") || is_stage(name) || !strncmp(name, "mpp_", 4); /* functions, a field */
    for (int b = 0; b < e->prog->n_buffers; b++)
        taken = taken || (e->prog->buffers[b].cls < 0 && !strcmp(e->prog->buffers[b].name, name));
    const char *base = taken ? mpp_arena_printf(e->arena, "layers_%s", name) : name, *unique = base;
    int n = 1;
    for (int c = 0; c < cls; c++)
        if (!strcmp(e->class_field[c], unique)) {
            unique = mpp_arena_printf(e->arena, "%s_%d", base, ++n);
            c = -1;
        }
    return unique;
}

static void use_all(struct mpp_emit *e, const struct mpp_instr *in)
{
    for (int i = 0; i < in->n_in; i++)
        if (in->in[i].buffer >= 0)
            e->used[in->in[i].buffer] = true;
    for (int i = 0; i < in->n_out; i++)
        if (in->out[i].buffer >= 0)
            e->used[in->out[i].buffer] = true;
}

void mpp_emit_prepare(struct mpp_emit *e)
{
    const struct mpp_lprog *p = e->prog;
    e->class_field = mpp_arena_array(e->arena, p->n_classes, const char *);
    e->counts = mpp_arena_array(e->arena, p->n_classes, bool);
    e->body_name = mpp_arena_array(e->arena, p->n_bodies, const char *);
    e->used = mpp_arena_array(e->arena, p->n_buffers, bool);
    for (int c = 0; c < p->n_classes; c++)
        e->class_field[c] = class_field(e, c);
    for (int k = 0; k < p->n_bodies; k++) {
        const struct mpp_body *body = &p->bodies[k];
        const char *suffix = body->name + strlen(p->classes[body->cls].name);
        e->body_name[k] = mpp_arena_printf(e->arena, "%s%s", e->class_field[body->cls], suffix);
        for (int i = 0; i < body->n_instrs; i++) {
            e->counts[body->cls] = e->counts[body->cls] || body->instrs[i].stream_step;
            use_all(e, &body->instrs[i]);
        }
    }
    for (int s = 0; s < 4; s++)
        for (int i = 0; i < p->section[s].n_items; i++)
            if (!p->section[s].items[i].loop)
                use_all(e, &p->section[s].items[i].instr);
}

const char *mpp_emit_ptr(struct mpp_emit *e, struct mpp_bufref ref)
{
    if (ref.buffer < 0)
        return "NULL";
    const struct mpp_buffer *b = mpp_emit_buffer(e, ref);
    if (b->cls < 0)
        return mpp_arena_printf(e->arena, "p->%s", b->name);
    if (ref.layer < 0 && e->ahead != 0)
        return mpp_arena_printf(e->arena, "t[%d].%s", e->ahead, b->name);
    if (ref.layer < 0)
        return mpp_arena_printf(e->arena, "t->%s", b->name);
    int i = ref.layer - e->prog->classes[b->cls].first;
    return mpp_arena_printf(e->arena, "p->%s[%d].%s", e->class_field[b->cls], i, b->name);
}

int64_t mpp_emit_span(const struct mpp_buffer *b, int from, int to)
{
    int64_t n = 1;
    for (int d = from; d < to; d++)
        n *= b->padded[d];
    return n;
}

/* ---- chunks ---- */

const char *mpp_emit_pass_name(struct mpp_emit *e, const char *pass, int chunk)
{
    return e->prog->n_chunks > 1 ? mpp_arena_printf(e->arena, "%s_%s_%d", e->name, pass, chunk)
                                  : mpp_arena_printf(e->arena, "%s_%s", e->name, pass);
}

/* ---- extents ---- */

unsigned mpp_emit_axes(const struct mpp_emit *e, struct mpp_split split, int factor)
{
    unsigned mask = 0;
    for (int a = 0; a < e->mesh->n_axes; a++)
        if (split.axis[a] == factor)
            mask |= 1u << a;
    return mask;
}

int64_t mpp_emit_padded(const struct mpp_emit *e, struct mpp_size size, unsigned mask)
{
    return mpp_block_padded(e->mesh, size.size, mask);
}

static int64_t parts(const struct mpp_emit *e, unsigned mask)
{
    int64_t n = 1;
    for (int a = 0; a < e->mesh->n_axes; a++)
        if (mask >> a & 1)
            n *= e->mesh->size[a];
    return n;
}

bool mpp_emit_uneven(const struct mpp_emit *e, struct mpp_size size, unsigned mask)
{
    return size.size % parts(e, mask) != 0;
}

static const char *dim_name(struct mpp_emit *e, struct mpp_size size, unsigned mask)
{
    bool word = false;
    for (const char *c = size.name; c && *c; c++)
        word = word || isalpha((unsigned char)*c);
    const char *name = word ? mpp_emit_identifier(e->arena, size.name) : mpp_arena_printf(e->arena, "n%lld", (long long)size.size);
    for (int a = 0; a < e->mesh->n_axes; a++)
        if (mask >> a & 1)
            name = mpp_arena_printf(e->arena, "%s_%s", name, e->mesh->name[a]);
    const char *unique = name;
    int n = 1;
    for (int i = 0; i < e->n_dims; i++)
        if (!strcmp(e->dims[i].name, unique)) {
            unique = mpp_arena_printf(e->arena, "%s_%d", name, ++n);
            i = -1;
        }
    return unique;
}

const char *mpp_emit_dim(struct mpp_emit *e, struct mpp_size size, unsigned mask)
{
    for (int a = 0; a < e->mesh->n_axes; a++)
        if (e->mesh->size[a] == 1)
            mask &= ~(1u << a);
    for (int i = 0; i < e->n_dims; i++)
        if (e->dims[i].global == size.size && e->dims[i].mask == mask)
            return mpp_arena_printf(e->arena, "p->dim.%s", e->dims[i].name);
    e->dims = mpp_arena_grow(e->arena, e->dims, &e->cap_dims, (size_t)e->n_dims + 1, sizeof *e->dims);
    const char *name = dim_name(e, size, mask);
    e->dims[e->n_dims++] = (struct mpp_emit_dim){name, size.size, mask};
    return mpp_arena_printf(e->arena, "p->dim.%s", name);
}

const char *mpp_emit_valid(struct mpp_emit *e, struct mpp_size size, unsigned mask)
{
    if (!mpp_emit_uneven(e, size, mask))
        return mpp_arena_printf(e->arena, "%lld", (long long)mpp_emit_padded(e, size, mask));
    return mpp_arena_printf(e->arena, "%s.valid", mpp_emit_dim(e, size, mask));
}

/* ---- axes ---- */

/* "GROUP_MODEL"; axes "a" and "A" are two. */
static const char *group_name(struct mpp_emit *e, int axis)
{
    char *name = mpp_arena_printf(e->arena, "GROUP_%s", e->mesh->name[axis]);
    for (char *c = name; *c; c++)
        *c = isalnum((unsigned char)*c) ? (char)toupper((unsigned char)*c) : '_';
    for (int a = 0; a < axis; a++)
        if (!strcasecmp(e->mesh->name[a], e->mesh->name[axis]))
            return mpp_arena_printf(e->arena, "%s_%d", name, axis);
    return name;
}

const char *mpp_emit_mask(struct mpp_emit *e, unsigned mask)
{
    const char *s = NULL;
    for (int a = 0; a < e->mesh->n_axes; a++) {
        if (!(mask >> a & 1) || e->mesh->size[a] == 1)
            continue;
        const char *name = group_name(e, a);
        s = s ? mpp_arena_printf(e->arena, "%s | %s", s, name) : name;
    }
    return s ? s : "0";
}

const char *mpp_emit_axis_words(struct mpp_emit *e, unsigned mask)
{
    const char *s = NULL;
    for (int a = 0; a < e->mesh->n_axes; a++)
        if (mask >> a & 1) {
            const char *one = mpp_arena_printf(e->arena, "%s (%d)", e->mesh->name[a], e->mesh->size[a]);
            s = s ? mpp_arena_printf(e->arena, "%s and %s", s, one) : one;
        }
    return s ? s : "no axis";
}

const char *mpp_emit_shape(struct mpp_emit *e, const struct mpp_buffer *b)
{
    const struct mpp_gtensor *t = &e->g->tensors[b->tensor];
    struct mpp_text s = {.arena = e->arena};
    mpp_text_add(&s, "[");
    for (int d = 0; d < t->n_dims; d++) {
        bool word = false;
        for (const char *c = t->dims[d].name; c && *c; c++)
            word = word || isalpha((unsigned char)*c);
        int64_t k = parts(e, b->split[d]);
        mpp_text_add(&s, "%s%s%s%lld", d ? ", " : "", word ? t->dims[d].name : "", word ? " " : "",
                     (long long)t->dims[d].size);
        if (k > 1)
            mpp_text_add(&s, "/%lld", (long long)k);
    }
    mpp_text_add(&s, "]");
    return mpp_text_safe(e->arena, s.data);
}

/* ---- small expressions ---- */

/* With one micro-batch there is nothing to add to later. */
static enum mpp_write_mode settled(const struct mpp_emit *e, enum mpp_write_mode mode)
{
    return mode == MPP_WRITE_ADD_LATER && e->plan->micro_batches == 1 ? MPP_WRITE : mode;
}

const char *mpp_emit_add(struct mpp_emit *e, enum mpp_write_mode mode)
{
    mode = settled(e, mode);
    e->uses_later = e->uses_later || mode == MPP_WRITE_ADD_LATER;
    return mode == MPP_WRITE ? "false" : mode == MPP_WRITE_ADD ? "true" : "later";
}

const char *mpp_emit_beta(struct mpp_emit *e, enum mpp_write_mode mode)
{
    mode = settled(e, mode);
    e->uses_later = e->uses_later || mode == MPP_WRITE_ADD_LATER;
    return mode == MPP_WRITE ? "0.0f" : mode == MPP_WRITE_ADD ? "1.0f" : "later ? 1.0f : 0.0f";
}

const char *mpp_emit_stream(struct mpp_emit *e, int64_t stream, int64_t step)
{
    if (step == 0 || e->cls < 0)
        return mpp_arena_printf(e->arena, "%lldu", (long long)stream);
    if (step == 1)
        return mpp_arena_printf(e->arena, "%lldu + t->layer", (long long)stream);
    if (step < 0)
        return mpp_arena_printf(e->arena, "%lldu - %lldu * t->layer", (long long)stream, (long long)-step);
    return mpp_arena_printf(e->arena, "%lldu + %lldu * t->layer", (long long)stream, (long long)step);
}

const char *mpp_emit_op_name(struct mpp_emit *e, const struct mpp_gop *op)
{
    if (e->cls < 0 || op->index < 0 || !op->repeat_name)
        return op->name;
    const char *prefix = mpp_arena_printf(e->arena, "%s.%d.", op->repeat_name, op->index);
    return strncmp(op->name, prefix, strlen(prefix)) == 0 ? op->name + strlen(prefix) : op->name;
}

/* ---- kernels ---- */

const char *mpp_emit_kernel(struct mpp_emit *e, const char *base, const char *params, const char *body, const char *cuda,
                            const char *about)
{
    struct mpp_emit_kernels *k = e->kernels;
    for (int i = 0; i < k->n; i++)
        if (!strcmp(k->list[i].params, params) && !strcmp(k->list[i].body, body) && !strcmp(k->list[i].cuda, cuda))
            return k->list[i].name;
    const char *name = base;
    int n = 1;
    for (int i = 0; i < k->n; i++)
        if (!strcmp(k->list[i].name, name)) {
            name = mpp_arena_printf(e->arena, "%s_%d", base, ++n);
            i = -1;
        }
    k->list = mpp_arena_grow(e->arena, k->list, &k->cap, (size_t)k->n + 1, sizeof *k->list);
    k->list[k->n++] = (struct mpp_emit_kernel){name, params, body, cuda, about};
    return name;
}
