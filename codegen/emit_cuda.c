/* emit_cuda.c - a fused group as CUDA kernels, of the same expressions as its loops for the host (emit_loops.c).
 *
 *   maps          a thread for W neighbours of the innermost loop
 *   row sums      (the innermost loop is summed) a block for each row, or several that each take a part of it
 *   column sums   (the innermost loop is kept) blocks of 32 W columns, which walk the rows in parts
 * Sums are kept in double and added in a fixed order: threads of a block, then, by a second kernel, the parts. W elements that
 * lie side by side are read and written at once; W is 1 where extents or addresses do not allow more. Operands that run with
 * all loops are read once (mpp_read), others by many threads (mpp_read_common). */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "codegen/emit_fused.h"

enum { MAX_SUMS = 64 };

struct fused_kernel {
    const struct fused_nest *nest;
    int number;                   /* of the nest */
    int wide;                     /* what W is where it can be */
    bool lanes;                   /* the innermost loop goes W at a time */
    unsigned walked;              /* loops that a thread walks after it has read what OUTER holds; all for maps */
    struct mpp_text outer, inner; /* reads: once for all points that are summed, and at each of them (W lanes) */
    struct mpp_text after;        /* writes of W lanes */
    int n_outer, n_inner;         /* depth of indentation of both */
    bool packs;                   /* something is read or written in packs */
    struct mpp_text pointers;     /* "a, y": what must be aligned for that */
};

static const struct fused_loop *last_loop(const struct fused *f)
{
    return &f->loop[f->n_loops - 1];
}

static unsigned all_loops(const struct fused *f)
{
    return (1u << f->n_loops) - 1;
}

/* What holds the name, @, is broken into lines once that is known (emit_cuda_file.c). */
static void add_line(struct mpp_text *out, int indent, const char *line)
{
    if (strchr(line, '@'))
        mpp_text_add(out, "%*s%s\n", indent, "", line);
    else
        mpp_text_line(out, indent, line);
}

static void add(struct mpp_text *out, int indent, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void add(struct mpp_text *out, int indent, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *line = mpp_text_format(out->arena, fmt, ap);
    va_end(ap);
    add_line(out, indent, line);
}

/* "rows * cols": the points of the loops in MASK. */
static const char *points(const struct fused *f, unsigned mask)
{
    const char *s = NULL;
    for (int l = 0; l < f->n_loops; l++)
        if (mask >> l & 1)
            s = s ? mpp_arena_printf(f->e->arena, "%s * %s", s, f->loop[l].bound) : f->loop[l].bound;
    return s ? s : "1";
}

/* Do neighbours along the innermost loop lie side by side in T? */
static bool is_packed(const struct fused *f, const struct fused_tensor *t)
{
    int list[3 * MPP_GRAPH_MAX_DIMS], n = 0;
    if (!f->kernel->lanes)
        return false;
    const struct fused_loop *loop = last_loop(f);
    for (int d = 0; d < t->map.n_dims; d++)
        for (int k = 0; k < t->map.dim[d].n; k++)
            list[n++] = t->map.dim[d].factor[k];
    for (int k = 0; k < loop->n_factors; k++)
        if (n < loop->n_factors || list[n - loop->n_factors + k] != loop->factor[k])
            return false;
    return true;
}

/* 16 bytes of the narrowest elements. */
static int lanes_of(const struct fused *f)
{
    for (int i = 0; i < f->n_tensors; i++) {
        const struct fused_tensor *t = &f->tensor[i];
        if ((t->in >= 0 || t->out >= 0) && is_packed(f, t) && mpp_emit_is_half(f->e->g->tensors[t->id].dtype))
            return 8;
    }
    return 4;
}

static const char *stored_type(const struct fused *f, const struct fused_tensor *t)
{
    return mpp_emit_type(f->e->g->tensors[t->id].dtype);
}

/* The index of T's element at lane 0. */
static const char *base_index(struct fused *f, const struct fused_tensor *t, const int *u)
{
    struct fused_loop *loop = &f->loop[f->n_loops - 1];
    const char *var = loop->var;
    loop->var = mpp_arena_printf(f->e->arena, "%s0", var);
    const char *s = mpp_fused_index(f, t, u);
    loop->var = var;
    return s;
}

static void needs_alignment(struct fused *f, const char *pointer)
{
    struct fused_kernel *k = f->kernel;
    k->packs = true;
    if (!mpp_fused_mentions(mpp_text_string(&k->pointers), pointer))
        mpp_text_add(&k->pointers, "%s%s", k->pointers.n ? ", " : "", pointer);
}

/* "_2": of several entries of T's unrolled factors, COMBO. */
static const char *entry_suffix(const struct fused *f, const struct fused_tensor *t, int combo)
{
    int u[MPP_MAX_FACTORS] = {0};
    return mpp_fused_next(f, t, u) ? mpp_arena_printf(f->e->arena, "_%d", combo) : "";
}

const char *mpp_fused_read(struct fused *f, const struct fused_tensor *t, int combo, const int *u)
{
    struct fused_kernel *k = f->kernel;
    const char *in = mpp_fused_in_name(f, t->in), *type = stored_type(f, t);
    const char *name = mpp_arena_printf(f->e->arena, "from_%s%s", in, entry_suffix(f, t, combo));
    unsigned loops = mpp_fused_loops_of(f, t);
    const char *common = loops == all_loops(f) ? "" : "_common";
    bool walked = f->n_loops == 0 || (loops & k->walked) != 0;
    struct mpp_text *out = walked ? &k->inner : &k->outer;
    int indent = walked ? k->n_inner : k->n_outer;
    if (is_packed(f, t)) {
        needs_alignment(f, in);
        add(out, indent, "const mpp_pack<%s, W> %s = mpp_read%s_pack<W>(%s, %s);", type, name, common, in, base_index(f, t, u));
        return mpp_arena_printf(f->e->arena, "%s.at[lane]", name);
    }
    if (f->n_loops > 0 && mpp_fused_contains(t, last_loop(f)->factor[0]))
        mpp_fused_add(f, "const %s %s = mpp_read%s(%s, %s);", type, name, common, in, mpp_fused_index(f, t, u));
    else
        add(out, indent, "const %s %s = mpp_read%s(%s, %s);", type, name, common, in, mpp_fused_index(f, t, u));
    return name;
}

/* "i == 0 && j == 0": where an output that does not run with all loops is written. NULL: it does. */
static const char *only_at(const struct fused *f, const struct fused_tensor *t)
{
    const char *s = NULL;
    for (int l = 0; l < f->n_loops; l++)
        if (!mpp_fused_contains(t, f->loop[l].factor[0]))
            s = mpp_arena_printf(f->e->arena, "%s%s%s == 0", s ? s : "", s ? " && " : "", f->loop[l].var);
    return s;
}

static void write_map(struct fused *f, int o, struct fused_tensor *t, int *u)
{
    struct fused_kernel *k = f->kernel;
    struct mpp_arena *arena = f->e->arena;
    const char *out = mpp_fused_out_name(f, o), *only = only_at(f, t);
    const char *value = mpp_emit_store(arena, f->e->g->tensors[t->id].dtype, mpp_fused_result(f, t, u));
    if (is_packed(f, t) && !only) {
        const char *name = mpp_arena_printf(arena, "to_%s%s", out, entry_suffix(f, t, mpp_fused_combo(f, t, u)));
        needs_alignment(f, out);
        add(&k->inner, k->n_inner, "mpp_pack<%s, W> %s;", stored_type(f, t), name);
        mpp_fused_add(f, "%s.at[lane] = %s;", name, value);
        add(&k->after, k->n_inner, "mpp_write_pack<W>(%s, %s, %s);", out, base_index(f, t, u), name);
        return;
    }
    if (only)
        mpp_fused_add(f, "if (%s)", only);
    mpp_fused_add(f, "%smpp_write(%s, %s, (%s)%s);", only ? "    " : "", out, mpp_fused_index(f, t, u), stored_type(f, t),
                  strpbrk(value, " ") ? mpp_arena_printf(arena, "(%s)", value) : value);
}

/* What is done at a point, for one lane: into f->text; reads and writes of all lanes: into the kernel's texts. */
static void write_point(struct fused *f, const char *at)
{
    const struct fused_nest *n = f->kernel->nest;
    f->n_memo = f->n_vars = 0;
    for (int o = 0; n->maps && o < f->grp->n_out; o++) {
        struct fused_tensor *t = mpp_fused_output(f, o);
        int u[MPP_MAX_FACTORS] = {0};
        if (mpp_fused_is_reduction(f, t))
            continue;
        do
            write_map(f, o, t, u);
        while (mpp_fused_next(f, t, u));
    }
    for (int i = 0; i < n->n_sums; i++) {
        struct fused_tensor *t = mpp_fused_output(f, n->sum[i]), *x = mpp_fused_summand(f, t);
        int u[MPP_MAX_FACTORS] = {0};
        do {
            const char *sum = mpp_fused_sum_name(f, n->sum[i], t, u), *value = mpp_fused_value(f, x, u);
            if (mpp_fused_takes_max(f, t))
                mpp_fused_add(f, "%s%s = mpp_larger()(%s%s, (double)(%s));", sum, at, sum, at, value);
            else
                mpp_fused_add(f, "%s%s += (double)(%s);", sum, at, value);
        } while (mpp_fused_next(f, x, u));
    }
}

/* AT, a number of a point of the loops in MASK, as their indices; LANES: the innermost of all loops goes in packs, and its
 * index is that of lane 0. Only what TEXT mentions is declared. */
static void decode(struct fused *f, struct mpp_text *out, int indent, unsigned mask, const char *at, bool lanes, const char *text)
{
    struct mpp_arena *arena = f->e->arena;
    unsigned needed = 0;
    for (int l = 0; l < f->n_loops; l++) {
        const char *first = mpp_arena_printf(arena, "%s0", f->loop[l].var);
        if (mask >> l & 1 && (mpp_fused_mentions(text, f->loop[l].var) || mpp_fused_mentions(text, first)))
            needed |= 1u << l;
    }
    for (int l = f->n_loops - 1; l >= 0 && needed << (31 - l) != 0; l--) {
        if (!(mask >> l & 1))
            continue;
        bool packed = lanes && l == f->n_loops - 1, outermost = (mask & ((1u << l) - 1)) == 0;
        const char *var = mpp_arena_printf(arena, "%s%s", f->loop[l].var, packed ? "0" : "");
        const char *extent = packed ? "packs" : f->loop[l].bound, *times = packed ? " * W" : "";
        if (outermost) {
            add(out, indent, "const int64_t %s = %s%s;", var, at, times);
            break;
        }
        const char *over = mpp_arena_printf(arena, "%s_%s", at, f->loop[l].var);
        add(out, indent, "const int64_t %s = mpp_quotient(%s, %s);", over, at, extent);
        if (needed >> l & 1)
            add(out, indent, packed ? "const int64_t %s = (%s - %s * %s)%s;" : "const int64_t %s = %s - %s * %s%s;", var, at, over,
                extent, times);
        at = over;
    }
}

/* The loop over the lanes at a point, with what it reads before and writes after. */
static void add_lanes(struct fused *f, struct mpp_text *out, int indent)
{
    struct fused_kernel *k = f->kernel;
    const char *body = mpp_text_string(&f->text);
    mpp_text_add(out, "%s", mpp_text_string(&k->inner));
    add(out, indent, "for (int lane = 0; lane < W; lane++) {");
    if (k->lanes && mpp_fused_mentions(body, last_loop(f)->var))
        add(out, indent + 4, "const int64_t %s = %s0 + lane;", last_loop(f)->var, last_loop(f)->var);
    mpp_text_add(out, "%s", body);
    add(out, indent, "}");
    mpp_text_add(out, "%s", mpp_text_string(&k->after));
}

/* All that a kernel's text may take its indices from. */
static const char *all_text(struct fused *f)
{
    struct fused_kernel *k = f->kernel;
    return mpp_arena_printf(f->e->arena, "%s%s%s%s", mpp_text_string(&k->outer), mpp_text_string(&k->inner), mpp_text_string(&f->text),
                            mpp_text_string(&k->after));
}

static void begin_nest(struct fused *f, unsigned walked, int n_outer, int n_inner)
{
    struct fused_kernel *k = f->kernel;
    struct mpp_text empty = {.arena = f->e->arena};
    k->walked = walked;
    k->outer = k->inner = k->after = k->pointers = f->text = empty;
    k->n_outer = n_outer;
    k->n_inner = n_inner;
    k->packs = false;
    f->indent = n_inner + 4;
}

/* "kernel", "kernel_2": of the nest's number. */
static const char *name_of(const struct fused *f, const char *what)
{
    int n = f->kernel->number;
    return n > 0 ? mpp_arena_printf(f->e->arena, "%s_%d", what, n + 1) : what;
}

/* Parameters of a kernel whose text is BODY, and their names; BESIDE comes after them: "int64_t parts, double *sums". */
static const char *list_of(struct fused *f, enum fused_list form, const char *body, const char *beside)
{
    const char *step = f->n_dropouts == 0 || !mpp_fused_mentions(body, "seed") ? ""
                     : form == FUSED_NAMES ? "r->seed, mpp_now_of(r)" : "uint64_t seed, struct mpp_now now";
    const char *own = mpp_fused_parameters(f, form, body);
    return mpp_arena_printf(f->e->arena, "%s%s%s%s%s", step, *step && (*own || *beside) ? ", " : "", own,
                            *own && *beside ? ", " : "", beside);
}

static void add_head(struct fused *f, struct mpp_text *out, const char *form, const char *name, const char *parameters)
{
    add_line(out, 0, mpp_arena_printf(f->e->arena, "%s void @_%s(%s)", form, name, parameters));
    mpp_text_add(out, "{\n%s", strstr(parameters, "struct mpp_now now") ? "    const int64_t step = mpp_now_step(now);\n" : "");
}

/* "cols % 4 == 0 && mpp_aligned16(a, y)": when W may be more than 1; NULL: never. */
static const char *condition(struct fused *f)
{
    struct fused_kernel *k = f->kernel;
    if (!k->packs)
        return NULL;
    const struct fused_loop *loop = last_loop(f);
    const char *bound = mpp_arena_printf(f->e->arena, "%s %% %d == 0", loop->bound, k->wide);
    if (loop->bound_arg && loop->size_used)
        bound = mpp_arena_printf(f->e->arena, "%s && %s %% %d == 0", bound, loop->size, k->wide);
    return mpp_arena_printf(f->e->arena, "%s && mpp_aligned16(%s)", bound, mpp_text_string(&k->pointers));
}

/* One launch, with W as wide as it can be; # stands for W in GRID, BLOCK and SHARED. */
static void add_launch(struct fused *f, struct mpp_text *out, const char *name, const char *grid, const char *block,
                       const char *shared, const char *names)
{
    struct mpp_arena *arena = f->e->arena;
    const char *when = condition(f);
    for (int wide = when != NULL; wide >= 0; wide--) {
        const char *w = wide ? mpp_arena_printf(arena, "%d", f->kernel->wide) : "1";
        struct mpp_text line = {.arena = arena};
        mpp_text_add(&line, "MPP_LAUNCH(r, @_%s<%s>, ", name, w);
        for (int i = 0; i < 3; i++) {
            const char *part = i == 0 ? grid : i == 1 ? block : shared;
            for (const char *c = part; *c; c++)
                mpp_text_add(&line, *c == '#' ? "%s" : "%.1s", *c == '#' ? w : c);
            mpp_text_add(&line, "%s", i < 2 || *names ? ", " : "");
        }
        if (when)
            add(out, 4, wide ? "if (%s)" : "else%s", wide ? when : "");
        add(out, when ? 8 : 4, "%s%s);", line.data, names);
    }
}

/* ---- maps ---- */

static void map_nest(struct fused *f, struct mpp_text *kernels, struct mpp_text *launch)
{
    struct mpp_arena *arena = f->e->arena;
    struct mpp_text body = {.arena = arena};
    const char *name = name_of(f, "kernel");
    begin_nest(f, all_loops(f), 4, 8);
    write_point(f, "");
    unsigned outer = f->n_loops > 0 ? all_loops(f) & ~(1u << (f->n_loops - 1)) : 0;
    if (f->n_loops > 0)
        add(&body, 4, "const int64_t packs = %s / W;", last_loop(f)->bound);
    mpp_text_add(&body, "%s", mpp_text_string(&f->kernel->outer));
    add(&body, 4, "MPP_EACH (at, %s%s) {", outer ? mpp_arena_printf(arena, "%s * ", points(f, outer)) : "",
        f->n_loops > 0 ? "packs" : "1");
    decode(f, &body, 8, all_loops(f), "at", f->kernel->lanes, all_text(f));
    add_lanes(f, &body, 8);
    add(&body, 4, "}");
    const char *text = mpp_text_string(&body);
    add_head(f, kernels, "template <int W> __global__", name, list_of(f, FUSED_KERNEL_PARAMETERS, text, ""));
    mpp_text_add(kernels, "%s}\n\n", text);
    add_launch(f, launch, name, mpp_arena_printf(arena, "mpp_grid(%s / #, MPP_BLOCK)", points(f, all_loops(f))), "MPP_BLOCK", "0",
               list_of(f, FUSED_NAMES, text, ""));
}

/* ---- sums ---- */

struct sums {
    int n;
    const char *name[MAX_SUMS];
    bool max[MAX_SUMS];
};

static bool list_sums(struct fused *f, struct sums *out)
{
    const struct fused_nest *n = f->kernel->nest;
    *out = (struct sums){0};
    for (int i = 0; i < n->n_sums; i++) {
        struct fused_tensor *t = mpp_fused_output(f, n->sum[i]);
        int u[MPP_MAX_FACTORS] = {0};
        do {
            if (out->n == MAX_SUMS) {
                mpp_emit_fail(f->e, t->producer, "a fused kernel has more than 64 sums");
                return false;
            }
            out->max[out->n] = mpp_fused_takes_max(f, t);
            out->name[out->n++] = mpp_fused_sum_name(f, n->sum[i], t, u);
        } while (mpp_fused_next(f, t, u));
    }
    return true;
}

/* The device function that stores the sums of one point of the loops that are kept. */
static const char *add_store(struct fused *f, struct mpp_text *kernels, const struct sums *s, const char *name)
{
    const struct fused_nest *n = f->kernel->nest;
    struct mpp_arena *arena = f->e->arena;
    struct mpp_text lines = {.arena = arena}, body = {.arena = arena}, beside = {.arena = arena};
    for (int i = 0; i < n->n_sums; i++) {
        int o = n->sum[i];
        struct fused_tensor *t = mpp_fused_output(f, o);
        int u[MPP_MAX_FACTORS] = {0};
        double d = mpp_fused_divisor(f, t);
        do {
            const char *out = mpp_fused_out_name(f, o), *at = mpp_fused_index(f, t, u), *sum = mpp_fused_sum_name(f, o, t, u);
            enum mpp_dtype dtype = f->e->g->tensors[t->id].dtype;
            if (d > 1)
                sum = mpp_arena_printf(arena, "%s / %.17g%s", sum, d, d < 1e15 ? ".0" : "");
            if (mpp_fused_takes_max(f, t))
                add(&lines, 4, "mpp_write(%s, %s, %s);", out, at, mpp_emit_store(arena, dtype, mpp_arena_printf(arena, "(float)%s", sum)));
            else
                add(&lines, 4, "mpp_write(%s, %s, (float)(add%d ? (double)mpp_read(%s, %s) + %s : %s));", out, at, o, out, at, sum, sum);
        } while (mpp_fused_next(f, t, u));
    }
    decode(f, &body, 4, n->kept, "kept", false, mpp_text_string(&lines));
    mpp_text_add(&body, "%s", mpp_text_string(&lines));
    const char *text = mpp_text_string(&body);
    for (int i = 0; i < s->n; i++)
        mpp_text_add(&beside, "%sdouble %s", i ? ", " : "", s->name[i]);
    add_line(kernels, 0, mpp_arena_printf(arena, "__device__ __forceinline__ void @_%s(int64_t kept, %s)", name,
                                               list_of(f, FUSED_KERNEL_PARAMETERS, text, mpp_text_string(&beside))));
    mpp_text_add(kernels, "{\n%s%s}\n\n", strstr(text, "kept") ? "" : "    (void)kept;\n", text);
    return text;
}

/* "@_store(row, ..., sum0, sum1);" with SUFFIX after each sum. */
static const char *store_call(struct fused *f, const struct sums *s, const char *name, const char *stored, const char *kept,
                              const char *suffix)
{
    struct mpp_text beside = {.arena = f->e->arena};
    for (int i = 0; i < s->n; i++)
        mpp_text_add(&beside, "%s%s%s", i ? ", " : "", s->name[i], suffix);
    return mpp_arena_printf(f->e->arena, "@_%s(%s, %s);", name, kept, list_of(f, FUSED_NAMES, stored, mpp_text_string(&beside)));
}

static const char *nothing(const struct sums *s, int i)
{
    return s->max[i] ? "-INFINITY" : "0";
}

/* All sums of the point KEPT, each with SUFFIX, go to their outputs, or, where several blocks have parts of them, to the parts. */
static void add_parts(struct mpp_text *out, int indent, const struct sums *s, const char *suffix, const char *call)
{
    add(out, indent, "if (gridDim.y == 1) {");
    add(out, indent + 4, "%s", call);
    add(out, indent, "} else {");
    for (int i = 0; i < s->n; i++)
        add(out, indent + 4, "mpp_write_part(sums, (%d * (int64_t)gridDim.y + blockIdx.y) * points + kept, %s%s);", i, s->name[i], suffix);
    add(out, indent, "}");
}

/* The kernel that adds the parts up; returns its text. */
static const char *add_finish(struct fused *f, struct mpp_text *kernels, const struct sums *s, const char *name, const char *call)
{
    struct mpp_text body = {.arena = f->e->arena};
    add(&body, 4, "MPP_EACH (kept, points) {");
    for (int i = 0; i < s->n; i++)
        add(&body, 8, "double %s = %s;", s->name[i], nothing(s, i));
    add(&body, 8, "for (int64_t part = 0; part < parts; part++) {");
    for (int i = 0; i < s->n; i++) {
        const char *x = mpp_arena_printf(f->e->arena, "mpp_read_part(sums, (%d * parts + part) * points + kept)", i);
        if (s->max[i])
            add(&body, 12, "%s = mpp_larger()(%s, %s);", s->name[i], s->name[i], x);
        else
            add(&body, 12, "%s += %s;", s->name[i], x);
    }
    add(&body, 8, "}");
    add(&body, 8, "%s", call);
    add(&body, 4, "}");
    const char *text = mpp_text_string(&body);
    add_head(f, kernels, "__global__", name, list_of(f, FUSED_KERNEL_PARAMETERS, text, "int64_t points, int64_t parts, const double *sums"));
    mpp_text_add(kernels, "%s}\n\n", text);
    return text;
}

static const char *const beside = "int64_t points, int64_t walked, double *sums";

/* What launches a nest of sums: the kernel, and where there are parts, what adds them up. PARTS: how many. */
static void add_sum_launches(struct fused *f, struct mpp_text *launch, const struct sums *s, const char *parts, const char *grid,
                             const char *block, const char *shared, const char *text, const char *finish_text)
{
    struct mpp_arena *arena = f->e->arena;
    unsigned kept = f->kernel->nest->kept;
    add(launch, 4, "{");
    struct mpp_text inside = {.arena = arena};
    add(&inside, 4, "const int64_t points = %s, walked = %s, parts = %s;", points(f, kept), points(f, all_loops(f) & ~kept), parts);
    add(&inside, 4, "double *sums = mpp_parts_scratch(r, %d * parts * points, parts);", s->n);
    add_launch(f, &inside, name_of(f, "kernel"), grid, block, shared, list_of(f, FUSED_NAMES, text, "points, walked, sums"));
    add(&inside, 4, "if (parts > 1)");
    add(&inside, 8, "MPP_LAUNCH(r, @_%s, mpp_grid(points, MPP_BLOCK), MPP_BLOCK, 0, %s);", name_of(f, "finish"),
        list_of(f, FUSED_NAMES, finish_text, "points, parts, sums"));
    for (const char *c = mpp_text_string(&inside); *c;) { /* one deeper */
        int n = (int)strcspn(c, "\n");
        mpp_text_add(launch, "    %.*s\n", n, c);
        c += n + (c[n] != '\0');
    }
    add(launch, 4, "}");
}

static void declare_sums(struct mpp_text *out, int indent, const struct sums *s, bool lanes)
{
    for (int i = 0; i < s->n; i++) {
        if (!lanes) {
            add(out, indent, "double %s = %s;", s->name[i], nothing(s, i));
            continue;
        }
        add(out, indent, "double %s[W];", s->name[i]);
        add(out, indent, "for (int lane = 0; lane < W; lane++)");
        add(out, indent + 4, "%s[lane] = %s;", s->name[i], nothing(s, i));
    }
}

static void row_nest(struct fused *f, struct mpp_text *kernels, struct mpp_text *launch)
{
    struct mpp_arena *arena = f->e->arena;
    struct fused_kernel *k = f->kernel;
    unsigned kept = k->nest->kept, walked = all_loops(f) & ~kept;
    struct mpp_text body = {.arena = arena};
    struct sums s;
    k->lanes = walked != 0;
    if (!list_sums(f, &s))
        return;
    begin_nest(f, walked, 8, 12);
    write_point(f, "");
    const char *stored = add_store(f, kernels, &s, name_of(f, "store"));
    const char *call = store_call(f, &s, name_of(f, "store"), stored, "kept", "");
    add(&body, 4, "for (int64_t kept = blockIdx.x; kept < points; kept += gridDim.x) {");
    decode(f, &body, 8, kept, "kept", false, all_text(f));
    mpp_text_add(&body, "%s", mpp_text_string(&k->outer));
    declare_sums(&body, 8, &s, false);
    add(&body, 8, "for (int64_t at = mpp_part_begin(walked / W) + threadIdx.x, end = mpp_part_end(walked / W); at < end;");
    add(&body, 8, "     at += blockDim.x) {");
    decode(f, &body, 12, walked, "at", k->lanes, all_text(f));
    add_lanes(f, &body, 12);
    add(&body, 8, "}");
    for (int i = 0; i < s.n; i++)
        add(&body, 8, s.max[i] ? "%s = mpp_block_fold(%s, shared, -(double)INFINITY, mpp_larger());" : "%s = mpp_block_sum(%s, shared);",
            s.name[i], s.name[i]);
    add(&body, 8, "if (threadIdx.x == 0) {");
    add_parts(&body, 12, &s, "", call);
    add(&body, 8, "}");
    add(&body, 4, "}");
    const char *packs = "", *text = mpp_text_string(&body);
    if (mpp_fused_mentions(text, "packs"))
        packs = mpp_arena_printf(arena, "    const int64_t packs = %s / W;\n", last_loop(f)->bound);
    text = mpp_arena_printf(arena, "    MPP_SHARED(double, shared);\n%s%s", packs, text);
    add_head(f, kernels, "template <int W> __global__", name_of(f, "kernel"), list_of(f, FUSED_KERNEL_PARAMETERS, text, beside));
    mpp_text_add(kernels, "%s}\n\n", text);
    const char *finish = add_finish(f, kernels, &s, name_of(f, "finish"), call);
    add_sum_launches(f, launch, &s, "mpp_row_parts(points, walked)", "mpp_row_grid(points, parts)", "mpp_row_block(walked / #)",
                     "MPP_ROW_SHARED", text, finish);
}

static void column_nest(struct fused *f, struct mpp_text *kernels, struct mpp_text *launch)
{
    struct mpp_arena *arena = f->e->arena;
    struct fused_kernel *k = f->kernel;
    const struct fused_loop *last = last_loop(f);
    unsigned kept = k->nest->kept, walked = all_loops(f) & ~kept, outer = kept & ~(1u << (f->n_loops - 1));
    struct mpp_text body = {.arena = arena};
    struct sums s;
    if (!list_sums(f, &s))
        return;
    begin_nest(f, walked, 12, 16);
    write_point(f, "[lane]");
    const char *stored = add_store(f, kernels, &s, name_of(f, "store"));
    const char *call = store_call(f, &s, name_of(f, "store"), stored, "kept", "[lane]");
    add(&body, 4, "MPP_SHARED(double, shared);");
    add(&body, 4, "const int64_t %s0 = mpp_column() * W;", last->var);
    add(&body, 4, "for (int64_t before = blockIdx.z; before < %s; before += gridDim.z) {", points(f, outer));
    decode(f, &body, 8, outer, "before", false, all_text(f));
    declare_sums(&body, 8, &s, true);
    add(&body, 8, "if (%s0 < %s) {", last->var, last->bound);
    mpp_text_add(&body, "%s", mpp_text_string(&k->outer));
    add(&body, 12, "for (int64_t at = mpp_part_begin(walked) + threadIdx.y, end = mpp_part_end(walked); at < end;");
    add(&body, 12, "     at += MPP_COLUMN_THREADS) {");
    decode(f, &body, 16, walked, "at", false, all_text(f));
    add_lanes(f, &body, 16);
    add(&body, 12, "}");
    add(&body, 8, "}");
    for (int i = 0; i < s.n; i++)
        add(&body, 8, "mpp_column_fold<W>(%s, shared, %s());", s.name[i], s.max[i] ? "mpp_larger" : "mpp_plus");
    add(&body, 8, "for (int lane = 0; lane < W && threadIdx.y == 0 && %s0 < %s; lane++) {", last->var, last->bound);
    add(&body, 12, outer ? "const int64_t kept = before * %s + %s0 + lane;" : "const int64_t kept = %.0s%s0 + lane;", last->bound,
        last->var);
    add_parts(&body, 12, &s, "[lane]", call);
    add(&body, 8, "}");
    add(&body, 4, "}");
    const char *text = mpp_text_string(&body);
    add_head(f, kernels, "template <int W> __global__", name_of(f, "kernel"), list_of(f, FUSED_KERNEL_PARAMETERS, text, beside));
    mpp_text_add(kernels, "%s}\n\n", text);
    const char *finish = add_finish(f, kernels, &s, name_of(f, "finish"), store_call(f, &s, name_of(f, "store"), stored, "kept", ""));
    const char *grid = mpp_arena_printf(arena, "mpp_columns_grid(%s / #, parts, %s)", last->bound, points(f, outer));
    const char *parts = mpp_arena_printf(arena, "mpp_column_parts(walked, points / %d)", k->wide);
    add_sum_launches(f, launch, &s, parts, grid, "mpp_column_block()", "# * MPP_COLUMN_SHARED", text, finish);
}

const char *mpp_fused_cuda(struct fused *f)
{
    struct mpp_arena *arena = f->e->arena;
    struct mpp_text kernels = {.arena = arena}, launch = {.arena = arena};
    struct fused_kernel kernel = {0};
    int n_nests;
    struct fused_nest *nests = mpp_fused_nests(f, &n_nests);
    f->kernel = &kernel;
    for (int i = 0; i < n_nests; i++) {
        kernel.nest = &nests[i];
        kernel.number = i;
        kernel.lanes = f->n_loops > 0;
        kernel.wide = lanes_of(f);
        if (nests[i].n_sums == 0)
            map_nest(f, &kernels, &launch);
        else if (mpp_fused_sums_columns(f, &nests[i]))
            column_nest(f, &kernels, &launch);
        else
            row_nest(f, &kernels, &launch);
    }
    f->kernel = NULL;
    add_line(&kernels, 0, mpp_arena_printf(arena, "void @(%s)", mpp_fused_parameters(f, FUSED_PARAMETERS, "")));
    return mpp_arena_printf(arena, "%s{\n%s}\n", mpp_text_string(&kernels), mpp_text_string(&launch));
}
