/* emit_fused.c - elementwise chains, layouts and reductions: a group becomes one kernel and a call of it. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "codegen/emit_fused.h"

/* ---- which factors index each tensor ---- */

static void add_tensor(struct fused *f, mpp_id id, int in, int out, mpp_id producer)
{
    if (id < 0 || mpp_fused_find(f, id))
        return;
    f->tensor[f->n_tensors] = (struct fused_tensor){.id = id, .in = in, .out = out, .producer = producer};
    if (in >= 0 || out >= 0) {
        f->tensor[f->n_tensors].known = true;
        f->tensor[f->n_tensors].map = f->grp->rule->operand[in >= 0 ? in : f->grp->n_in + out];
    }
    f->n_tensors++;
}

static void list_tensors(struct fused *f)
{
    const struct mpp_graph *g = f->e->g;
    int max = f->grp->n_in + f->grp->n_out;
    for (int k = 0; k < f->grp->n_ops; k++)
        max += g->ops[f->grp->ops[k]].n_out;
    f->tensor = mpp_arena_array(f->e->arena, max, struct fused_tensor);
    for (int i = 0; i < f->grp->n_in; i++)
        add_tensor(f, f->grp->in[i], i, -1, -1);
    for (int o = 0; o < f->grp->n_out; o++)
        add_tensor(f, f->grp->out[o], -1, o, g->tensors[f->grp->out[o]].op);
    for (int k = 0; k < f->grp->n_ops; k++) {
        const struct mpp_gop *op = &g->ops[f->grp->ops[k]];
        for (int o = 0; o < op->n_out; o++)
            add_tensor(f, op->out[o], -1, -1, f->grp->ops[k]);
    }
}

static struct fused_tensor *operand_tensor(struct fused *f, const struct mpp_gop *op, int o)
{
    mpp_id id = o < op->n_in ? op->in[o] : op->out[o - op->n_in];
    return id < 0 ? NULL : mpp_fused_find(f, id);
}

/* Factors of OP's own rule as factors of the group, from operands that are known. */
static void learn(struct fused *f, const struct mpp_gop *op, int *to_group)
{
    for (int o = 0; o < op->n_in + op->n_out; o++) {
        const struct fused_tensor *t = operand_tensor(f, op, o);
        const struct mpp_rule_operand *own = &op->rule->operand[o];
        if (!t || !t->known)
            continue;
        for (int d = 0; d < own->n_dims; d++)
            for (int k = 0; k < own->dim[d].n && own->dim[d].n == t->map.dim[d].n; k++)
                to_group[own->dim[d].factor[k]] = t->map.dim[d].factor[k];
    }
}

static bool apply(struct fused *f, const struct mpp_gop *op, const int *to_group)
{
    bool changed = false;
    for (int o = 0; o < op->n_in + op->n_out; o++) {
        struct fused_tensor *t = operand_tensor(f, op, o);
        const struct mpp_rule_operand *own = &op->rule->operand[o];
        if (!t || t->known)
            continue;
        bool all = true;
        struct mpp_rule_operand map = *own;
        for (int d = 0; d < own->n_dims; d++)
            for (int k = 0; k < own->dim[d].n; k++) {
                all = all && to_group[own->dim[d].factor[k]] >= 0;
                map.dim[d].factor[k] = (int8_t)to_group[own->dim[d].factor[k]];
            }
        t->known = all;
        t->map = map;
        changed = changed || all;
    }
    return changed;
}

/* Carry the border's factors through the ops until every tensor inside is known. */
static bool infer_maps(struct fused *f)
{
    bool changed = true;
    while (changed) {
        changed = false;
        for (int k = 0; k < f->grp->n_ops; k++) {
            const struct mpp_gop *op = &f->e->g->ops[f->grp->ops[k]];
            int to_group[MPP_MAX_FACTORS];
            memset(to_group, -1, sizeof to_group);
            learn(f, op, to_group);
            changed = apply(f, op, to_group) || changed;
        }
    }
    for (int i = 0; i < f->n_tensors; i++)
        if (!f->tensor[i].known) {
            mpp_emit_fail(f->e, f->tensor[i].producer, "its indices do not follow from the fused kernel's operands");
            return false;
        }
    return true;
}

/* ---- loops ---- */

/* All factors of T in order. */
static int factors_of(const struct fused_tensor *t, int *out)
{
    int n = 0;
    for (int d = 0; d < t->map.n_dims; d++)
        for (int k = 0; k < t->map.dim[d].n; k++)
            out[n++] = t->map.dim[d].factor[k];
    return n;
}

/* The order of loops is that of the operand with most of them, outputs first. */
static const struct fused_tensor *leading_tensor(struct fused *f)
{
    const struct fused_tensor *best = NULL;
    int most = -1;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < f->n_tensors; i++) {
            const struct fused_tensor *t = &f->tensor[i];
            int list[3 * MPP_GRAPH_MAX_DIMS], n = factors_of(t, list), loops = 0;
            for (int k = 0; k < n; k++)
                loops += !mpp_fused_unrolled(f, list[k]);
            if ((pass == 0 ? t->out >= 0 : t->in >= 0) && loops > most) {
                best = t;
                most = loops;
            }
        }
    return best;
}

static void list_loops(struct fused *f)
{
    const struct fused_tensor *lead = leading_tensor(f);
    int list[3 * MPP_GRAPH_MAX_DIMS], n = lead ? factors_of(lead, list) : 0;
    for (int pass = 0; pass < 2; pass++)          /* what the leading operand lacks comes outside */
        for (int k = 0; k < (pass == 0 ? f->grp->rule->n_factors : n); k++) {
            int factor = pass == 0 ? k : list[k];
            bool led = lead && mpp_fused_contains(lead, factor), used = false;
            for (int i = 0; i < f->n_tensors; i++)
                used = used || mpp_fused_contains(&f->tensor[i], factor);
            if (led == (pass == 1) && used && !mpp_fused_unrolled(f, factor))
                f->loop[f->n_loops++] = (struct fused_loop){.n_factors = 1, .factor = {factor}};
        }
}

static struct mpp_size size_of(const struct fused *f, int factor)
{
    return f->grp->rule->factor[factor].size;
}

static bool uneven(const struct fused *f, int factor)
{
    return mpp_emit_uneven(f->e, size_of(f, factor), mpp_fused_axes(f, factor));
}

/* In T, does every element of OUTER's last factor hold a whole run of INNER right inside it, or has T neither? */
static bool adjacent(const struct fused_tensor *t, int outer, int inner)
{
    int list[3 * MPP_GRAPH_MAX_DIMS], n = factors_of(t, list), at = -1, in = -1;
    for (int k = 0; k < n; k++) {
        at = list[k] == outer ? k : at;
        in = list[k] == inner ? k : in;
    }
    return at < 0 && in < 0 ? true : at >= 0 && in == at + 1;
}

static bool merges(const struct fused *f, const struct fused_loop *a, const struct fused_loop *b)
{
    int outer = a->factor[a->n_factors - 1], inner = b->factor[0];
    if (f->valid_only && uneven(f, inner))
        return false;
    for (int i = 0; i < f->n_tensors; i++)
        if ((f->tensor[i].in >= 0 || f->tensor[i].out >= 0) && !adjacent(&f->tensor[i], outer, inner))
            return false;
    for (int k = 0; k < f->n_dropouts; k++)       /* the global element steps evenly only over whole dimensions */
        if (!adjacent(&f->tensor[f->dropout[k].tensor], outer, inner) || mpp_fused_axes(f, inner))
            return false;
    for (int i = 0; i < f->n_tensors; i++)        /* a sum keeps both or neither */
        if (mpp_fused_is_reduction(f, &f->tensor[i])
            && mpp_fused_contains(&f->tensor[i], outer) != mpp_fused_contains(&f->tensor[i], inner))
            return false;
    return true;
}

static void merge_loops(struct fused *f)
{
    for (int l = 0; l + 1 < f->n_loops;) {
        struct fused_loop *a = &f->loop[l], *b = &f->loop[l + 1];
        if (!merges(f, a, b)) {
            l++;
            continue;
        }
        for (int k = 0; k < b->n_factors; k++)
            a->factor[a->n_factors++] = b->factor[k];
        memmove(b, b + 1, (size_t)(f->n_loops - l - 2) * sizeof *b);
        f->n_loops--;
    }
}

/* Names of the loops and of their extents, and what callers pass for them. */
static void name_loops(struct fused *f)
{
    static const char *const var[] = {"i", "j", "k", "l", "m", "o", "q", "s", "t", "u", "v", "w"};
    struct mpp_arena *arena = f->e->arena;
    for (int l = 0; l < f->n_loops; l++) {
        struct fused_loop *loop = &f->loop[l];
        loop->var = var[l];
        loop->size = f->n_loops == 1 ? "n" : f->n_loops == 2 ? (l ? "cols" : "rows") : mpp_arena_printf(arena, "n%d", l);
        int64_t padded = 1, inner = 1;
        for (int k = 0; k < loop->n_factors; k++) {
            int64_t p = mpp_emit_padded(f->e, size_of(f, loop->factor[k]), mpp_fused_axes(f, loop->factor[k]));
            padded *= p;
            inner *= k ? p : 1;
        }
        loop->size_arg = mpp_arena_printf(arena, "%lld", (long long)padded);
        loop->bound = loop->size;
        loop->bound_arg = NULL;
        if (f->valid_only && uneven(f, loop->factor[0])) {
            const char *valid = mpp_emit_valid(f->e, size_of(f, loop->factor[0]), mpp_fused_axes(f, loop->factor[0]));
            loop->bound = mpp_arena_printf(arena, "valid_%s", loop->size);
            loop->bound_arg = inner == 1 ? valid : mpp_arena_printf(arena, "%s * %lld", valid, (long long)inner);
        }
    }
}

/* ---- dropout ---- */

static void list_dropouts(struct fused *f)
{
    const struct mpp_graph *g = f->e->g;
    f->dropout = mpp_arena_array(f->e->arena, f->grp->n_ops, struct fused_dropout);
    for (int k = 0; k < f->grp->n_ops; k++) {
        const struct mpp_gop *op = &g->ops[f->grp->ops[k]];
        const struct mpp_op_info *info = mpp_op_info(op->kind);
        if (info->cls == MPP_CLASS_ELEMENTWISE && !info->expr && mpp_attrs_find(&op->attrs, "stream"))
            f->dropout[f->n_dropouts++] =
                (struct fused_dropout){f->grp->ops[k], (int)(mpp_fused_find(f, op->out[0]) - f->tensor)};
    }
}

/* Elements of the whole tensor between neighbours along FACTOR. */
static int64_t global_stride(const struct fused *f, const struct fused_tensor *t, int factor)
{
    int list[3 * MPP_GRAPH_MAX_DIMS], n = factors_of(t, list);
    int64_t stride = 1;
    for (int k = n - 1; k >= 0 && list[k] != factor; k--)
        stride *= size_of(f, list[k]).size;
    return stride;
}

/* The global element of this rank's first one: where its blocks and the micro-batch begin. */
static const char *first_element(struct fused *f, const struct fused_tensor *t)
{
    struct mpp_arena *arena = f->e->arena;
    const char *s = NULL;
    for (int d = 0; d < t->map.n_dims; d++)
        for (int k = 0; k < t->map.dim[d].n; k++) {
            int factor = t->map.dim[d].factor[k];
            struct mpp_size size = size_of(f, factor);
            unsigned mask = mpp_fused_axes(f, factor);
            const char *at = mask ? mpp_arena_printf(arena, "%s.offset", mpp_emit_dim(f->e, size, mask)) : NULL;
            if (size.per_batch > 0 && k == 0) {
                const char *sample = size.per_batch == 1 ? "mpp_first_sample(r)"
                                   : mpp_arena_printf(arena, "mpp_first_sample(r) * %lld", (long long)size.per_batch);
                at = at ? mpp_arena_printf(arena, "%s + %s", sample, at) : sample;
            }
            int64_t stride = global_stride(f, t, factor);
            if (!at)
                continue;
            if (stride != 1)
                at = mpp_arena_printf(arena, strchr(at, '+') ? "(%s) * %lld" : "%s * %lld", at, (long long)stride);
            s = s ? mpp_arena_printf(arena, "%s + %s", s, at) : at;
        }
    return s ? mpp_arena_printf(arena, "(uint64_t)(%s)", s) : "0";
}

/* ---- the kernel and its call ---- */

static const char *type_of(const struct fused *f, mpp_id t)
{
    return mpp_emit_type(f->e->g->tensors[t].dtype);
}

bool mpp_fused_mentions(const char *text, const char *word)
{
    size_t len = strlen(word);
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
        bool before = at > text && (isalnum((unsigned char)at[-1]) || at[-1] == '_');
        bool after = isalnum((unsigned char)at[len]) || at[len] == '_';
        if (!before && !after)
            return true;
    }
    return false;
}

/* A parameter NAME, whose declaration begins with TYPE. */
static void add_parameter(struct mpp_text *s, enum fused_list form, const char *body, const char *type, const char *name)
{
    if (form != FUSED_PARAMETERS && !mpp_fused_mentions(body, name))
        return;
    if (s->n)
        mpp_text_add(s, ", ");
    mpp_text_add(s, "%s%s", form == FUSED_NAMES ? "" : type, name);
}

static bool adds_up(const struct fused *f, const struct fused_tensor *t)
{
    return mpp_fused_is_reduction(f, t) && mpp_op_info(f->e->g->ops[t->producer].kind)->cls == MPP_CLASS_REDUCE;
}

static void add_arrays(struct fused *f, struct mpp_text *s, enum fused_list form, const char *body)
{
    struct mpp_arena *arena = f->e->arena;
    const char *restricted = form == FUSED_PARAMETERS ? "restrict " : "";
    for (int i = 0; i < f->grp->n_in; i++)
        add_parameter(s, form, body, mpp_arena_printf(arena, "const %s *%s", type_of(f, f->grp->in[i]), restricted),
                      mpp_fused_in_name(f, i));
    for (int o = 0; o < f->grp->n_out; o++) {
        if (adds_up(f, mpp_fused_find(f, f->grp->out[o])))
            add_parameter(s, form, body, "bool ", mpp_arena_printf(arena, "add%d", o));
        add_parameter(s, form, body, mpp_arena_printf(arena, "%s *%s", type_of(f, f->grp->out[o]), restricted),
                      mpp_fused_out_name(f, o));
    }
}

const char *mpp_fused_parameters(struct fused *f, enum fused_list form, const char *body)
{
    struct mpp_arena *arena = f->e->arena;
    struct mpp_text s = {.arena = arena};
    if (form == FUSED_PARAMETERS)
        add_parameter(&s, form, body, "struct mpp_rank *", "r");
    for (int l = 0; l < f->n_loops; l++) {
        if (f->loop[l].size_used)
            add_parameter(&s, form, body, "int64_t ", f->loop[l].size);
        if (f->loop[l].bound_arg)
            add_parameter(&s, form, body, "int64_t ", f->loop[l].bound);
    }
    for (int k = 0; k < f->n_dropouts; k++) {
        add_parameter(&s, form, body, "uint32_t ", mpp_arena_printf(arena, "op%d", k));
        add_parameter(&s, form, body, "float ", mpp_arena_printf(arena, "ratio%d", k));
        add_parameter(&s, form, body, "uint64_t ", mpp_arena_printf(arena, "first%d", k));
        for (int l = 0; l < f->n_loops; l++)
            if (mpp_fused_contains(&f->tensor[f->dropout[k].tensor], f->loop[l].factor[0]))
                add_parameter(&s, form, body, "int64_t ", mpp_arena_printf(arena, "step%d_%s", k, f->loop[l].var));
    }
    add_arrays(f, &s, form, body);
    return mpp_text_string(&s);
}

static const char *arguments(struct fused *f)
{
    struct mpp_text s = {.arena = f->e->arena};
    struct mpp_emit *e = f->e;
    mpp_text_add(&s, "r, ");
    for (int l = 0; l < f->n_loops; l++) {
        if (f->loop[l].size_used)
            mpp_text_add(&s, "%s, ", f->loop[l].size_arg);
        if (f->loop[l].bound_arg)
            mpp_text_add(&s, "%s, ", f->loop[l].bound_arg);
    }
    for (int k = 0; k < f->n_dropouts; k++) {
        const struct mpp_gop *op = &e->g->ops[f->dropout[k].op];
        const struct fused_tensor *t = &f->tensor[f->dropout[k].tensor];
        const char *stream = mpp_emit_stream(e, mpp_attrs_int(&op->attrs, "stream", 0), f->instr->stream_step);
        mpp_text_add(&s, "%s, r->training ? %s : 0.0f, %s, ", stream,
                     mpp_emit_float(s.arena, mpp_attrs_float(&op->attrs, "ratio", 0.5)), first_element(f, t));
        for (int l = 0; l < f->n_loops; l++)
            if (mpp_fused_contains(t, f->loop[l].factor[0]))
                mpp_text_add(&s, "%lld, ",
                             (long long)global_stride(f, t, f->loop[l].factor[f->loop[l].n_factors - 1]));
    }
    for (int i = 0; i < f->grp->n_in; i++)
        mpp_text_add(&s, "%s, ", mpp_emit_ptr(e, f->instr->in[i]));
    for (int o = 0; o < f->grp->n_out; o++) {
        const struct fused_tensor *t = mpp_fused_find(f, f->grp->out[o]);
        if (adds_up(f, t))
            mpp_text_add(&s, "%s, ", mpp_emit_add(e, f->instr->mode[o]));
        mpp_text_add(&s, "%s, ", mpp_emit_ptr(e, f->instr->out[o]));
    }
    s.n -= s.n >= 2 ? 2 : 0;
    return mpp_arena_strndup(s.arena, mpp_text_string(&s), s.n);
}

/* "GeluGrad" -> "gelu_grad"; adding a parameter is "bias". */
static const char *word_of(const struct fused *f, const struct mpp_gop *op)
{
    struct mpp_text s = {.arena = f->e->arena};
    const char *name = mpp_op_info(op->kind)->name;
    if (op->n_in == 2 && !strcmp(mpp_op_info(op->kind)->expr ? mpp_op_info(op->kind)->expr : "", "a + b"))
        for (int i = 0; i < 2; i++)
            if (op->in[i] >= 0 && f->e->g->tensors[op->in[i]].role == MPP_ROLE_PARAM)
                return "bias";
    for (const char *c = name; *c; c++)
        mpp_text_add(&s, isupper((unsigned char)*c) && c > name ? "_%c" : "%c", tolower((unsigned char)*c));
    return mpp_text_string(&s);
}

static const char *kernel_name(const struct fused *f)
{
    struct mpp_arena *arena = f->e->arena;
    const char *name = "fused", *last = "";
    int words = 0;
    for (int k = 0; k < f->grp->n_ops; k++) {
        const char *word = word_of(f, &f->e->g->ops[f->grp->ops[k]]);
        if (strcmp(word, last) != 0 && words < 4) {
            name = mpp_arena_printf(arena, "%s_%s", name, word);
            words++;
        }
        last = word;
    }
    return name;
}

static const char *about(struct fused *f)
{
    struct mpp_text s = {.arena = f->e->arena};
    for (int k = 0; k < f->grp->n_ops; k++) {
        const struct mpp_gop *op = &f->e->g->ops[f->grp->ops[k]];
        mpp_text_add(&s, "%s%s", k ? ", " : "", mpp_emit_op_name(f->e, op));
    }
    return mpp_text_string(&s);
}

/* ---- slices: a Split or Concat into parts of several entries moves runs of bytes ---- */

static bool is_slices(const struct fused *f)
{
    const struct mpp_gop *op = &f->e->g->ops[f->grp->ops[0]];
    if (f->grp->n_ops != 1 || mpp_op_info(op->kind)->cls != MPP_CLASS_LAYOUT || op->n_in + op->n_out < 3)
        return false;
    const struct mpp_gtensor *x = &f->e->g->tensors[op->in[0]], *y = &f->e->g->tensors[op->out[0]];
    return x->n_dims == y->n_dims;
}

static void emit_slices(struct fused *f)
{
    struct mpp_emit *e = f->e;
    const struct mpp_gop *op = &e->g->ops[f->grp->ops[0]];
    bool splits = op->n_out > 1;
    struct mpp_bufref whole_ref = splits ? f->instr->in[0] : f->instr->out[0];
    const struct mpp_buffer *whole = mpp_emit_buffer(e, whole_ref);
    int axis = (int)mpp_attrs_int(&op->attrs, "axis", 0);
    axis += axis < 0 ? whole->n_dims : 0;
    int64_t rows = mpp_emit_span(whole, 0, axis), inner = mpp_emit_span(whole, axis + 1, whole->n_dims), from = 0;
    const int bytes = mpp_dtype_bytes(whole->dtype);
    const char *body = mpp_arena_printf(e->arena, "    MPP_PARALLEL(r, rows * n)\n"
                       "    for (int64_t i = 0; i < rows; i++)\n"
                       "        memcpy((char *)y + i * y_step * %d, (const char *)x + i * x_step * %d, (size_t)n * %d);\n",
                       bytes, bytes, bytes);
    const char *name = mpp_emit_kernel(e, bytes == 4 ? "copy_rows" : "copy_half_rows", "struct mpp_rank *r, int64_t rows, int64_t n, "
                                       "const void *x, int64_t x_step, void *y, int64_t y_step", body, mpp_emit_copy_rows_cuda(e, bytes),
                                       "N elements of each row");
    for (int k = 0; k < (splits ? op->n_out : op->n_in); k++) {
        mpp_id t = splits ? op->out[k] : op->in[k];
        int at = 0;
        while ((splits ? f->grp->out[at] : f->grp->in[at]) != t)
            at++;
        struct mpp_bufref part = splits ? f->instr->out[at] : f->instr->in[at];
        int64_t extent = e->g->tensors[t].dims[axis].size, n = extent * inner, step = whole->padded[axis] * inner;
        const char *w = mpp_emit_ptr(e, whole_ref), *p = mpp_emit_ptr(e, part);
        w = from ? mpp_arena_printf(e->arena, "%s + %lld", w, (long long)from) : w;
        if (splits)
            mpp_emit_line(e, "%s(r, %lld, %lld, %s, %lld, %s, %lld);", name, (long long)rows, (long long)n, w, (long long)step, p,
                          (long long)n);
        else
            mpp_emit_line(e, "%s(r, %lld, %lld, %s, %lld, %s, %lld);", name, (long long)rows, (long long)n, p, (long long)n, w,
                          (long long)step);
        from += n;
    }
}

void mpp_emit_fused(struct mpp_emit *e, const struct mpp_instr *in)
{
    struct fused f = {.e = e, .instr = in, .grp = &e->g->groups[in->group]};
    const struct mpp_buffer *shown = mpp_emit_buffer(e, in->out[0]);
    mpp_emit_note(e, "%s: %s", about(&f), mpp_emit_shape(e, shown));
    if (is_slices(&f)) {
        emit_slices(&f);
        return;
    }
    list_tensors(&f);
    if (!infer_maps(&f))
        return;
    for (int o = 0; o < f.grp->n_out; o++)
        f.valid_only = f.valid_only || mpp_fused_is_reduction(&f, mpp_fused_find(&f, f.grp->out[o]));
    list_dropouts(&f);
    list_loops(&f);
    merge_loops(&f);
    name_loops(&f);
    const char *body = mpp_fused_loops(&f);
    for (int l = 0; l < f.n_loops; l++)
        f.loop[l].size_used = !f.loop[l].bound_arg || mpp_fused_mentions(body, f.loop[l].size);
    const char *words = e->cls >= 0 ? mpp_arena_printf(e->arena, "%s in %s", about(&f), e->prog->classes[e->cls].name) : about(&f);
    const char *name = mpp_emit_kernel(e, kernel_name(&f), mpp_fused_parameters(&f, FUSED_PARAMETERS, ""), body, mpp_fused_cuda(&f),
                                       words);
    mpp_emit_line(e, "%s(%s);", name, arguments(&f));
}
