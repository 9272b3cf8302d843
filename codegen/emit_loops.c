/* emit_loops.c - the loop nests of a fused kernel.
 *
 *   maps          all loops, the innermost over consecutive elements
 *   row sums      (the innermost loop is summed) kept loops outside, one double per row
 *   column sums   (the innermost loop is kept) columns in chunks, a double per column of the chunk, rows inside
 * Outputs that keep different loops get nests of their own, which compute what they need again. The threads of a rank
 * share the outer loops, over which nothing is added up. */
#include <stdio.h>
#include <string.h>

#include "codegen/emit_fused.h"

enum { CHUNK = 128 };

struct fused_tensor *mpp_fused_output(struct fused *f, int o)
{
    return mpp_fused_find(f, f->grp->out[o]);
}

unsigned mpp_fused_loops_of(const struct fused *f, const struct fused_tensor *t)
{
    unsigned loops = 0;
    for (int l = 0; l < f->n_loops; l++)
        if (mpp_fused_contains(t, f->loop[l].factor[0]))
            loops |= 1u << l;
    return loops;
}

struct fused_tensor *mpp_fused_summand(struct fused *f, const struct fused_tensor *t)
{
    return mpp_fused_find(f, f->e->g->ops[t->producer].in[0]);
}

bool mpp_fused_takes_max(const struct fused *f, const struct fused_tensor *t)
{
    return mpp_op_info(f->e->g->ops[t->producer].kind)->cls == MPP_CLASS_KERNEL;
}

double mpp_fused_divisor(const struct fused *f, const struct fused_tensor *t)
{
    const struct mpp_graph *g = f->e->g;
    const struct mpp_gop *op = &g->ops[t->producer];
    if (op->kind != MPP_OP_REDUCE_MEAN)
        return 1;
    const struct mpp_attr *axes = mpp_attrs_find(&op->attrs, "axes");
    const struct mpp_gtensor *x = &g->tensors[op->in[0]];
    double n = 1;
    for (int i = 0; i < axes->n; i++) {
        struct mpp_size s = x->dims[axes->ints[i] < 0 ? axes->ints[i] + x->n_dims : axes->ints[i]];
        n *= s.per_batch > 0 ? (double)(s.per_batch * g->global_batch) : (double)s.size;
    }
    return n;
}

static void open_loop(struct fused *f, int l)
{
    mpp_fused_add(f, "for (int64_t %s = 0; %s < %s; %s++) {", f->loop[l].var, f->loop[l].var, f->loop[l].bound,
                  f->loop[l].var);
    f->indent += 4;
}

/* "rows * cols": the points of all loops. */
static const char *work(struct fused *f)
{
    const char *s = NULL;
    for (int l = 0; l < f->n_loops; l++)
        s = s ? mpp_arena_printf(f->e->arena, "%s * %s", s, f->loop[l].bound) : f->loop[l].bound;
    return s;
}

/* Does every output that the nest writes point by point run with loop L? Else its iterations write the same elements. */
static bool maps_run_with(struct fused_nest *n, int l)
{
    for (int o = 0; n->maps && o < n->f->grp->n_out; o++) {
        struct fused_tensor *t = mpp_fused_output(n->f, o);
        if (!mpp_fused_is_reduction(n->f, t) && !mpp_fused_contains(t, n->f->loop[l].factor[0]))
            return false;
    }
    return true;
}

/* Before the nest's outermost loop, number L: threads share it and those right inside it, OUTER loops in all. */
static void share_loops(struct fused_nest *n, int l, int outer)
{
    struct fused *f = n->f;
    if (!maps_run_with(n, l))
        return;
    f->shared = true;
    if (outer > 1)
        mpp_fused_add(f, "MPP_PARALLEL_NEST(r, %s, %d)", work(f), outer);
    else
        mpp_fused_add(f, "MPP_PARALLEL(r, %s)", work(f));
}

static void close_loops(struct fused *f, int n)
{
    while (n-- > 0) {
        f->indent -= 4;
        mpp_fused_add(f, "}");
    }
}

/* A fresh point: nothing declared at another one is visible. */
static void begin_point(struct fused *f)
{
    f->n_memo = 0;
}

static void write_maps(struct fused_nest *n)
{
    struct fused *f = n->f;
    for (int o = 0; n->maps && o < f->grp->n_out; o++) {
        struct fused_tensor *t = mpp_fused_output(f, o);
        if (mpp_fused_is_reduction(f, t))
            continue;
        int u[MPP_MAX_FACTORS] = {0};
        do
            mpp_fused_add(f, "%s[%s] = %s;", mpp_fused_out_name(f, o), mpp_fused_index(f, t, u),
                          mpp_emit_store(f->e->arena, f->e->g->tensors[t->id].dtype, mpp_fused_result(f, t, u)));
        while (mpp_fused_next(f, t, u));
    }
}

const char *mpp_fused_sum_name(struct fused *f, int o, const struct fused_tensor *t, const int *u)
{
    int entries[MPP_MAX_FACTORS] = {0};
    bool several = mpp_fused_next(f, t, entries);
    const char *s = mpp_arena_printf(f->e->arena, "sum%d", o);
    return several ? mpp_arena_printf(f->e->arena, "%s_%d", s, mpp_fused_combo(f, t, u)) : s;
}

static void declare_sums(struct fused_nest *n, bool columns)
{
    struct fused *f = n->f;
    for (int i = 0; i < n->n_sums; i++) {
        struct fused_tensor *t = mpp_fused_output(f, n->sum[i]);
        int u[MPP_MAX_FACTORS] = {0};
        do {
            const char *name = mpp_fused_sum_name(f, n->sum[i], t, u);
            if (columns && mpp_fused_takes_max(f, t)) {
                mpp_fused_add(f, "double %s[%d];", name, CHUNK);
                mpp_fused_add(f, "for (int64_t m = 0; m < %d; m++)", CHUNK);
                mpp_fused_add(f, "    %s[m] = -INFINITY;", name);
            } else if (columns) {
                mpp_fused_add(f, "double %s[%d] = {0};", name, CHUNK);
            } else {
                mpp_fused_add(f, "double %s = %s;", name, mpp_fused_takes_max(f, t) ? "-INFINITY" : "0");
            }
        } while (mpp_fused_next(f, t, u));
    }
}

/* Add this point to all sums. AT: "[j - begin]" for column sums, else "". */
static void write_sums(struct fused_nest *n, const char *at)
{
    struct fused *f = n->f;
    for (int i = 0; i < n->n_sums; i++) {
        struct fused_tensor *t = mpp_fused_output(f, n->sum[i]), *x = mpp_fused_summand(f, t);
        int u[MPP_MAX_FACTORS] = {0};
        do {
            const char *name = mpp_fused_sum_name(f, n->sum[i], t, u), *value = mpp_fused_value(f, x, u);
            if (mpp_fused_takes_max(f, t))
                mpp_fused_add(f, "%s%s = (double)%s > %s%s ? (double)%s : %s%s;", name, at, value, name, at, value, name, at);
            else
                mpp_fused_add(f, "%s%s += (double)%s;", name, at, value);
        } while (mpp_fused_next(f, x, u));
    }
}

static void store_sums(struct fused_nest *n, const char *at)
{
    struct fused *f = n->f;
    for (int i = 0; i < n->n_sums; i++) {
        int o = n->sum[i];
        struct fused_tensor *t = mpp_fused_output(f, o);
        int u[MPP_MAX_FACTORS] = {0};
        double d = mpp_fused_divisor(f, t);
        do {
            const char *y = mpp_arena_printf(f->e->arena, "%s[%s]", mpp_fused_out_name(f, o), mpp_fused_index(f, t, u));
            const char *s = mpp_arena_printf(f->e->arena, "%s%s", mpp_fused_sum_name(f, o, t, u), at);
            if (d > 1)
                s = mpp_arena_printf(f->e->arena, "%s / %.17g%s", s, d, d < 1e15 ? ".0" : "");
            if (mpp_fused_takes_max(f, t))
                mpp_fused_add(f, "%s = %s;", y, mpp_emit_store(f->e->arena, f->e->g->tensors[t->id].dtype,
                                                               mpp_arena_printf(f->e->arena, "(float)%s", s)));
            else
                mpp_fused_add(f, "%s = (float)(add%d ? (double)%s + %s : %s);", y, o, y, s, s);
        } while (mpp_fused_next(f, t, u));
    }
}

/* ---- the three forms ---- */

/* Loops from the outermost on that threads may share, all but the innermost. */
static int outer_maps(struct fused_nest *n)
{
    int l = 1;
    while (l < n->f->n_loops - 1 && maps_run_with(n, l))
        l++;
    return l;
}

static void map_nest(struct fused_nest *n)
{
    struct fused *f = n->f;
    bool flat = f->n_loops == 1 && maps_run_with(n, 0);
    f->shared = f->shared || flat;
    if (flat)
        mpp_fused_add(f, "MPP_PARALLEL_SIMD(r, %s)", work(f));
    else if (f->n_loops > 1)
        share_loops(n, 0, outer_maps(n));
    for (int l = 0; l < f->n_loops; l++) {
        if (l == f->n_loops - 1 && !flat)
            mpp_fused_add(f, "MPP_IVDEP");
        open_loop(f, l);
    }
    begin_point(f);
    write_maps(n);
    close_loops(f, f->n_loops);
}

static const char *simd_clause(struct fused_nest *n)
{
    struct fused *f = n->f;
    struct mpp_text s = {.arena = f->e->arena};
    for (int i = 0; i < n->n_sums; i++) {
        struct fused_tensor *t = mpp_fused_output(f, n->sum[i]);
        int u[MPP_MAX_FACTORS] = {0};
        do
            mpp_text_add(&s, " reduction(%s:%s)", mpp_fused_takes_max(f, t) ? "max" : "+", mpp_fused_sum_name(f, n->sum[i], t, u));
        while (mpp_fused_next(f, t, u));
    }
    return mpp_text_string(&s);
}

static void row_nest(struct fused_nest *n)
{
    struct fused *f = n->f;
    int kept = 0, summed = 0;
    for (int l = 0; l < f->n_loops; l++)
        if (n->kept >> l & 1) {
            if (kept == 0)
                share_loops(n, l, 1);
            open_loop(f, l);
            kept++;
        }
    declare_sums(n, false);
    for (int l = 0; l < f->n_loops; l++)
        if (!(n->kept >> l & 1)) {
            if (l == f->n_loops - 1)
                mpp_fused_add(f, "#pragma omp simd%s", simd_clause(n));
            open_loop(f, l);
            summed++;
        }
    begin_point(f);
    write_maps(n);
    write_sums(n, "");
    close_loops(f, summed);
    store_sums(n, "");
    close_loops(f, kept);
}

static void column_nest(struct fused_nest *n)
{
    struct fused *f = n->f;
    int last = f->n_loops - 1, kept = 0, summed = 0;
    const struct fused_loop *in = &f->loop[last];
    for (int l = 0; l < last; l++)
        if (n->kept >> l & 1) {
            if (kept == 0)
                share_loops(n, l, 1);
            open_loop(f, l);
            kept++;
        }
    if (kept == 0)
        share_loops(n, last, 1);
    mpp_fused_add(f, "for (int64_t begin = 0; begin < %s; begin += %d) {", in->bound, CHUNK);
    f->indent += 4;
    mpp_fused_add(f, "const int64_t end = %s - begin < %d ? %s : begin + %d;", in->bound, CHUNK, in->bound, CHUNK);
    declare_sums(n, true);
    for (int l = 0; l < last; l++)
        if (!(n->kept >> l & 1)) {
            open_loop(f, l);
            summed++;
        }
    const char *at = mpp_arena_printf(f->e->arena, "[%s - begin]", in->var);
    mpp_fused_add(f, "MPP_IVDEP");
    mpp_fused_add(f, "for (int64_t %s = begin; %s < end; %s++) {", in->var, in->var, in->var);
    f->indent += 4;
    begin_point(f);
    write_maps(n);
    write_sums(n, at);
    close_loops(f, 1 + summed);
    mpp_fused_add(f, "for (int64_t %s = begin; %s < end; %s++) {", in->var, in->var, in->var);
    f->indent += 4;
    store_sums(n, at);
    close_loops(f, 2 + kept);
}

/* Sums that keep the same loops share a nest; the first nest has the maps. */
struct fused_nest *mpp_fused_nests(struct fused *f, int *out_n)
{
    struct fused_nest *nests = mpp_arena_array(f->e->arena, f->grp->n_out + 1, struct fused_nest);
    int n_nests = 1;
    bool any_map = false;
    for (int o = 0; o < f->grp->n_out; o++) {
        struct fused_tensor *t = mpp_fused_output(f, o);
        if (!mpp_fused_is_reduction(f, t)) {
            any_map = true;
            continue;
        }
        unsigned kept = mpp_fused_loops_of(f, t);
        int k = 0;
        while (k < n_nests && nests[k].n_sums > 0 && nests[k].kept != kept)
            k++;
        n_nests += k == n_nests;
        if (!nests[k].sum)
            nests[k].sum = mpp_arena_array(f->e->arena, f->grp->n_out, int);
        nests[k].kept = kept;
        nests[k].sum[nests[k].n_sums++] = o;
    }
    nests[0].maps = any_map;
    for (int k = 0; k < n_nests; k++)
        nests[k].f = f;
    *out_n = n_nests;
    return nests;
}

bool mpp_fused_sums_columns(const struct fused *f, const struct fused_nest *n)
{
    return f->n_loops > 0 && (n->kept >> (f->n_loops - 1) & 1) && n->kept != (1u << f->n_loops) - 1;
}

const char *mpp_fused_loops(struct fused *f)
{
    int n_nests;
    struct fused_nest *nests = mpp_fused_nests(f, &n_nests);
    f->text = (struct mpp_text){.arena = f->e->arena};
    f->indent = 4;
    f->shared = false;
    for (int k = 0; k < n_nests; k++) {
        struct fused_nest *n = &nests[k];
        f->n_vars = 0;
        if (n->n_sums == 0)
            map_nest(n);
        else if (mpp_fused_sums_columns(f, n))
            column_nest(n);
        else
            row_nest(n);
    }
    bool idle = !f->shared && f->n_dropouts == 0;
    return mpp_arena_printf(f->e->arena, "%s%s", idle ? "    (void)r;\n" : "", mpp_text_string(&f->text));
}
