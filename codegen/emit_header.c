/* emit_header.c - stageN.h: the structs that hold a stage's tensors, with shapes and shardings beside each. */
#include "codegen/emit_internal.h"

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

/* The functions that the runtime is given. */
static void add_functions(struct mpp_emit *e, struct mpp_text *out)
{
    static const char *const passes[] = {"forward", "backward"}, *const others[] = {"step", "reduce_gradients", "update"};
    if (e->prog->section[MPP_PHASE_PROLOGUE].n_items > 0)
        mpp_text_add(out, "void %s_prologue(struct mpp_rank *r);\n", e->name);
    for (int c = 0; c < e->prog->n_chunks; c++)
        for (int i = 0; i < 2; i++)
            mpp_text_add(out, "void %s(struct mpp_rank *r);\n", mpp_emit_pass_name(e, passes[i], c));
    for (int i = 0; i < 3; i++)
        mpp_text_add(out, "void %s_%s(struct mpp_rank *r);\n", e->name, others[i]);
}

const char *mpp_emit_stage_h(struct mpp_emit *e)
{
    struct mpp_text *out = mpp_arena_array(e->arena, 1, struct mpp_text);
    out->arena = e->arena;
    mpp_text_add(out, "/* Tensors of stage %d: [global shape, and over how many ranks each dimension is split]%s. */\n"
                      "#ifndef STAGE%d_H\n#define STAGE%d_H\n\n#include \"plan.h\"\n\n", e->index,
                 e->stage->n_devices > 1 ? " | this rank's shape | sharding" : "", e->index, e->index);
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
    add_functions(e, out);
    mpp_text_add(out, "\n#endif\n");
    return mpp_text_string(out);
}
