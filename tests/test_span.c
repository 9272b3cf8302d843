/* Stages: the layers of a step, the part of each span of layers as a graph of its own, and that a chain of spans whose
 * Sends are handed to their Recvs computes what the whole step computes.
 *
 *     test_span [folder of the project] */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/graph_edit.h"
#include "ir/interp.h"
#include "ir/op.h"
#include "ir/pass.h"
#include "ir/span.h"

enum { MAX_SPANS = 16 };

static int passed, failed;
static const char *root = ".";

__attribute__((format(printf, 2, 3))) static void check(bool ok, const char *fmt, ...)
{
    passed += ok;
    failed += !ok;
    if (ok)
        return;
    va_list ap;
    va_start(ap, fmt);
    fputs("FAILED ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
}

struct model {
    const char *title;
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    struct mpp_graph *g;          /* before "fuse" */
    struct mpp_layering *layers;
};

/* Models at the edges of the dialect; they have no presets. */
#define EDGES "../tests/data/models/"

/* How a step is to be computed. */
struct how {
    int max_layers;
    bool unfused;
    const char *precision;        /* NULL: f32 */
};

/* models/FILE with a preset and space-separated definitions, through the passes before "fuse", in layers. */
static bool open_model(struct model *m, const char *file, const char *preset, const char *defines, struct how how)
{
    *m = (struct model){.arena = mpp_arena_new(), .diag = mpp_diag_new(stderr)};
    m->title = mpp_arena_printf(m->arena, "%s %s %s%s %s, at most %d layers", file, preset, defines,
                                how.unfused ? ", unfused" : "", how.precision ? how.precision : "", how.max_layers);
    const char *define[40];
    struct mpp_model_options options = {.preset = strncmp(file, EDGES, strlen(EDGES)) == 0 ? NULL : preset, .defines = define, .precision = how.precision};
    char *words = mpp_arena_strdup(m->arena, defines);
    for (char *w = strtok(words, " "); w; w = strtok(NULL, " "))
        define[options.n_defines++] = w;
    struct mpp_pass_ctx ctx = {.arena = m->arena, .diag = m->diag, .unfused = how.unfused, .before_fuse = true};
    struct mpp_model *model;
    const char *path = mpp_arena_printf(m->arena, "%s/models/%s", root, file);
    bool ok = mpp_model_read(m->arena, m->diag, path, &options, &model) == MPP_OK &&
              mpp_graph_build(m->arena, m->diag, model, &m->g) == MPP_OK && mpp_passes_run(&ctx, m->g) == MPP_OK &&
              mpp_layering_make(m->arena, m->diag, m->g, how.max_layers, &m->layers) == MPP_OK;
    check(ok, "%s does not build", m->title);
    return ok;
}

static void close_model(struct model *m)
{
    mpp_diag_free(m->diag);
    mpp_arena_free(m->arena);
}

/* ---- values ------------------------------------------------------------------------------------------ */

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

/* Parameters and inputs by name, so that every stage has the same. */
static void fill(const struct mpp_graph *g, struct mpp_interp *it)
{
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        const struct mpp_gtensor *tensor = &g->tensors[t];
        if (tensor->role != MPP_ROLE_PARAM && tensor->role != MPP_ROLE_INPUT)
            continue;
        uint64_t state = 7;
        for (const char *c = tensor->name; *c; c++)
            state = state * 31 + (unsigned char)*c;
        uniform(&state);
        double *x = mpp_interp_data(it, t);
        for (int64_t i = 0; i < mpp_interp_count(it, t); i++) {
            double u = uniform(&state);
            int64_t limit = tensor->input ? tensor->input->limit : 0;
            x[i] = tensor->dtype == MPP_I32 ? floor(u * (double)(limit > 0 ? limit : 2)) : 0.6 * (u - 0.5);
            if (tensor->dtype == MPP_I32 && strcmp(tensor->name, "labels") == 0 && uniform(&state) < 0.4)
                x[i] = -100;
        }
    }
}

static mpp_id find(const struct mpp_graph *g, const char *name)
{
    for (mpp_id t = 0; t < g->n_tensors; t++)
        if (strcmp(g->tensors[t].name, name) == 0)
            return t;
    return -1;
}

struct chain {
    const struct model *m;
    const char *what;
    int n;
    struct mpp_graph *span[MAX_SPANS];
    struct mpp_interp *it[MAX_SPANS];
};

static bool sends(const struct mpp_graph *g, mpp_id t, enum mpp_phase phase)
{
    for (mpp_id o = 0; o < g->n_ops; o++)
        if (g->ops[o].kind == MPP_OP_SEND && g->ops[o].in[0] == t && g->ops[o].phase == phase)
            return true;
    return false;
}

/* Give stage I what it receives in PHASE. */
static void hand_over(struct chain *c, int i, enum mpp_phase phase)
{
    const struct mpp_graph *g = c->span[i];
    for (mpp_id o = 0; o < g->n_ops; o++) {
        if (g->ops[o].kind != MPP_OP_RECV || g->ops[o].phase != phase)
            continue;
        mpp_id to = g->ops[o].out[0];
        int found = 0;
        for (int s = 0; s < c->n; s++) {
            mpp_id from = s == i ? -1 : find(c->span[s], g->tensors[to].name);
            if (from < 0 || !sends(c->span[s], from, phase))
                continue;
            found++;
            memcpy(mpp_interp_data(c->it[i], to), mpp_interp_data(c->it[s], from),
                   (size_t)mpp_interp_count(c->it[i], to) * sizeof(double));
        }
        check(found == 1, "%s, %s: %d stages send %s", c->m->title, c->what, found, g->tensors[to].name);
    }
}

static void run_chain(struct chain *c, int64_t batch)
{
    int64_t micro_batches = c->m->g->global_batch / batch;
    for (int i = 0; i < c->n; i++) {
        c->it[i] = mpp_interp_new(c->span[i], batch);
        fill(c->span[i], c->it[i]);
        mpp_interp_seed(c->it[i], 42, 3);
        mpp_interp_begin(c->it[i]);
        for (int64_t micro = 0; micro < micro_batches; micro++)
            mpp_interp_run(c->it[i], MPP_PHASE_PROLOGUE, micro);
    }
    for (int64_t micro = 0; micro < micro_batches; micro++) {
        for (int i = 0; i < c->n; i++) {
            hand_over(c, i, MPP_PHASE_FORWARD);
            mpp_interp_run(c->it[i], MPP_PHASE_FORWARD, micro);
        }
        for (int i = c->n - 1; i >= 0; i--) {
            hand_over(c, i, MPP_PHASE_BACKWARD);
            mpp_interp_run(c->it[i], MPP_PHASE_BACKWARD, micro);
        }
    }
}

/* The sum of what the stages have of the accumulated tensor T against the whole step's: to the bit where one stage has
 * it, or two each one term in one micro-batch, else but for rounding. */
static void compare(struct chain *c, struct mpp_interp *whole, mpp_id t, bool one_micro_batch)
{
    const struct mpp_gtensor *tensor = &c->m->g->tensors[t];
    const double *expected = mpp_interp_data(whole, t);
    int64_t n = mpp_interp_count(whole, t);

    double *sum = calloc((size_t)n, sizeof *sum), worst = 0, size = 0;
    int parts = 0;
    for (int i = 0; i < c->n; i++) {
        mpp_id part = find(c->span[i], tensor->name);
        for (int64_t k = 0; part >= 0 && k < n; k++)
            sum[k] += mpp_interp_data(c->it[i], part)[k];
        parts += part >= 0;
    }
    for (int64_t k = 0; k < n; k++) {
        worst = fmax(worst, fabs(sum[k] - expected[k]));
        size = fmax(size, fabs(expected[k]));
    }
    bool exact = parts == 1 || (parts == 2 && one_micro_batch && c->m->g->ops[tensor->op].n_in == 2);
    check(parts > 0 && size > 0 && worst <= (exact ? 0 : 1e-14 * size), "%s, %s: %s in %d parts differs by %.3g of %.3g",
          c->m->title, c->what, tensor->name, parts, worst, size);
    free(sum);
}

/* The stages that end before layers CUT [n_cuts], and the last. */
static void check_chain(const struct model *m, struct mpp_interp *whole, const int *cut, int n_cuts,
                        enum mpp_recompute recompute, int64_t batch)
{
    struct chain c = {.m = m, .what = mpp_recompute_name(recompute)};
    struct mpp_arena *arena = mpp_arena_new();
    for (int i = 0; i < n_cuts; i++)
        c.what = mpp_arena_printf(arena, "%s%s%d", c.what, i ? " " : ", cut at ", cut[i]);
    for (int i = 0; i <= n_cuts; i++) {
        int first = i ? cut[i - 1] : 0, last = i < n_cuts ? cut[i] - 1 : m->layers->n_layers - 1;
        bool ok = mpp_span_extract(arena, m->diag, m->g, m->layers, first, last, recompute, &c.span[c.n]) == MPP_OK;
        check(ok, "%s, %s: layers %d to %d", m->title, c.what, first, last);
        if (!ok)
            return;
        c.n++;
    }
    run_chain(&c, batch);
    const struct mpp_graph *g = m->g;
    bool one = batch == g->global_batch;
    compare(&c, whole, g->loss_total, one);
    for (mpp_id t = 0; t < g->n_tensors; t++)
        if (g->tensors[t].role == MPP_ROLE_PARAM && g->tensors[t].info->gradient >= 0)
            compare(&c, whole, g->tensors[t].info->gradient, one);
    for (int i = 0; i < c.n; i++)
        mpp_interp_free(c.it[i]);
    mpp_arena_free(arena);
}

/* Chains of two stages at every cut, of one stage per layer, and of some in between, under every recomputation. */
static void check_chains(const struct model *m, int64_t batch, uint64_t *state)
{
    struct mpp_interp *whole = mpp_interp_new(m->g, batch);
    fill(m->g, whole);
    mpp_interp_seed(whole, 42, 3);
    mpp_interp_gradients(whole);
    for (enum mpp_recompute r = 0; r < MPP_RECOMPUTE_COUNT; r++) {
        int n = m->layers->n_layers, cuts[MAX_SPANS], n_cuts = 0;
        check_chain(m, whole, NULL, 0, r, batch);
        for (int cut = 1; cut < n; cut++)
            check_chain(m, whole, &cut, 1, r, batch);
        for (int i = 1; i < n && n <= MAX_SPANS; i++)
            cuts[i - 1] = i;
        if (n <= MAX_SPANS)
            check_chain(m, whole, cuts, n - 1, r, batch);
        for (int i = 1; i < n && n_cuts < MAX_SPANS - 1; i++)
            if (uniform(state) < 0.5)
                cuts[n_cuts++] = i;
        check_chain(m, whole, cuts, n_cuts, r, batch);
    }
    mpp_interp_free(whole);
}

static void check_values(const char *file, const char *defines, int64_t parts, struct how how)
{
    struct model m;
    uint64_t state = 11;
    if (open_model(&m, file, "tiny", defines, how))
        check_chains(&m, m.g->global_batch / parts, &state);
    close_model(&m);
}

/* ---- layers ------------------------------------------------------------------------------------------ */

/* Names and classes as in EXPECTED, "embd:0 h.0:1 h.1:1"; "=" stands for a layer of the class of the one before. */
static void check_layers(const char *file, const char *preset, const char *defines, int max_layers, const char *expected)
{
    struct model m;
    if (open_model(&m, file, preset, defines, (struct how){.max_layers = max_layers})) {
        const struct mpp_layering *l = m.layers;
        const char *text = "";
        double flops = 0, total = 0;
        for (int i = 0; i < l->n_layers; i++) {
            bool same = i > 1 && l->cls[i] == l->cls[i - 1] && l->cls[i] == l->cls[i - 2];
            if (!same || i + 2 >= l->n_layers)
                text = mpp_arena_printf(m.arena, "%s%s%s:%d", text, i ? " " : "", l->name[i], l->cls[i]);
            flops += l->flops[i];
        }
        check(strcmp(text, expected) == 0, "%s: the layers are %s, not %s", m.title, text, expected);
        int before = 0;
        for (mpp_id o = 0; o < m.g->n_ops; o++) {
            const struct mpp_gop *op = &m.g->ops[o];
            bool in_layer = op->phase == MPP_PHASE_FORWARD || op->phase == MPP_PHASE_BACKWARD;
            check(in_layer == (l->layer_of[o] >= 0) && l->layer_of[o] < l->n_layers, "%s: %s is in layer %d", m.title,
                  op->name, l->layer_of[o]);
            if (op->phase == MPP_PHASE_FORWARD) {
                check(l->layer_of[o] == before || l->layer_of[o] == before + 1, "%s: layers are not contiguous", m.title);
                before = l->layer_of[o];
                total += mpp_op_flops(m.g, op) / (double)m.g->batch;
            }
        }
        check(fabs(flops - total) <= 1e-9 * total, "%s: %g FLOPs in layers, %g in all", m.title, flops, total);
    }
    close_model(&m);
}

/* ---- the shape of spans ------------------------------------------------------------------------------ */

static const char *printed(const struct mpp_graph *g, struct mpp_arena *arena)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    mpp_graph_print(g, out);
    fclose(out);
    const char *copy = mpp_arena_strdup(arena, text);
    free(text);
    return copy;
}

/* What crosses the border may be split in any dimension, and is never a partial sum; it has the shape of its maker. */
static void check_transfers(const struct model *m, const struct mpp_graph *span)
{
    const struct mpp_mesh two = {1, {2, 1, 1}, {"a"}};
    for (mpp_id o = 0; o < span->n_ops; o++) {
        const struct mpp_gop *op = &span->ops[o];
        if (op->kind != MPP_OP_RECV && op->kind != MPP_OP_SEND)
            continue;
        const struct mpp_gtensor *t = &span->tensors[op->n_in ? op->in[0] : op->out[0]];
        mpp_id origin = find(m->g, t->name);
        check(origin >= 0 && m->g->tensors[origin].dtype == t->dtype && mpp_tensor_count(&m->g->tensors[origin]) == mpp_tensor_count(t),
              "%s: %s is another tensor", m->title, t->name);
        int n = 0;
        for (int d = 0; d < t->n_dims; d++)
            n += t->dims[d].size > 1 || t->dims[d].per_batch;
        check(op->rule->n_factors == n && mpp_op_flops(span, op) == 0, "%s: %s has %d factors", m->title, op->name,
              op->rule->n_factors);
        for (int f = 0; f < n; f++)
            check(op->rule->factor[f].kind == MPP_FACTOR_FREE, "%s: factor %d of %s", m->title, f, op->name);
        check(!mpp_split_legal(op->rule, &two, (struct mpp_split){{MPP_PARTIAL, MPP_WHOLE, MPP_WHOLE}}), "%s: %s of partial sums",
              m->title, op->name);
    }
}

/* All layers are the graph after "fuse"; what is printed of a span can be read back. */
static void check_whole(const struct model *m)
{
    struct mpp_graph *span, *copy;
    struct mpp_pass_ctx ctx = {.arena = m->arena, .diag = m->diag};
    const struct mpp_layering *l = m->layers;
    check(mpp_span_extract(m->arena, m->diag, m->g, l, 0, l->n_layers - 1, MPP_RECOMPUTE_NONE, &span) == MPP_OK,
          "%s: all layers", m->title);
    const char *of_span = printed(span, m->arena);
    for (int first = 0; first < l->n_layers; first++) {
        check(mpp_span_extract(m->arena, m->diag, m->g, l, first, l->n_layers - 1, MPP_RECOMPUTE_FULL, &span) == MPP_OK,
              "%s: from layer %d", m->title, first);
        check_transfers(m, span);
        const char *text = printed(span, m->arena);
        bool read = mpp_graph_parse(m->arena, m->diag, "span", text, strlen(text), &copy) == MPP_OK;
        check(read && strcmp(printed(copy, m->arena), text) == 0, "%s: layers from %d do not read back", m->title, first);
    }
    mpp_graph_set_batch(m->g, 1);
    check(mpp_graph_verify(span, m->diag, "span") == MPP_OK && span->batch == m->g->global_batch,
          "%s: a span follows the batch of its graph", m->title);
    mpp_graph_set_batch(m->g, m->g->global_batch);
    check(mpp_pass_fuse(&ctx, m->g) == MPP_OK, "%s: fuse", m->title); /* the last use of the graph */
    check(strcmp(of_span, printed(m->g, m->arena)) == 0, "%s: the span of all layers is not the graph", m->title);
}

static mpp_id find_op(const struct mpp_graph *g, const char *name, enum mpp_phase phase)
{
    for (mpp_id o = 0; o < g->n_ops; o++)
        if (g->ops[o].phase == phase && strcmp(g->ops[o].name, name) == 0)
            return o;
    return -1;
}

/* Spans of one layer each hold every op once; the update of tied parameters, the norm, and what is made of inputs alone
 * several times. */
static void check_cover(const struct model *m)
{
    const struct mpp_layering *l = m->layers;
    struct mpp_graph **span = mpp_arena_array(m->arena, l->n_layers, struct mpp_graph *);
    for (int i = 0; i < l->n_layers; i++)
        check(mpp_span_extract(m->arena, m->diag, m->g, l, i, i, MPP_RECOMPUTE_NONE, &span[i]) == MPP_OK, "%s: layer %d",
              m->title, i);
    for (mpp_id o = 0; o < m->g->n_ops; o++) {
        const struct mpp_gop *op = &m->g->ops[o];
        mpp_id p = op->n_out > 0 ? m->g->tensors[op->out[0]].param : -1;
        int n = 0, wanted = 1;
        for (int i = 0; i < l->n_layers; i++)
            n += find_op(span[i], op->name, op->phase) >= 0;
        for (int i = 0; i < l->n_tied; i++)
            if (l->tied[i].param == p)
                wanted = l->tied[i].n_layers;
        bool once = op->phase == MPP_PHASE_BACKWARD || p >= 0;
        check(once ? n == wanted : n >= 1, "%s: %s is in %d spans, not %d", m->title, op->name, n, wanted);
    }
}

/* Spans of equal classes are alike: the same ops on tensors of the same shapes, in the same order. */
static bool alike(const struct mpp_graph *a, const struct mpp_graph *b)
{
    bool same = a->n_ops == b->n_ops && a->n_tensors == b->n_tensors && a->n_groups == b->n_groups;
    for (mpp_id o = 0; same && o < a->n_ops; o++) {
        const struct mpp_gop *x = &a->ops[o], *y = &b->ops[o];
        same = x->kind == y->kind && x->phase == y->phase && x->n_in == y->n_in && x->n_out == y->n_out;
        for (int k = 0; same && k < x->n_in; k++)
            same = x->in[k] < 0 ? y->in[k] < 0 : y->in[k] >= 0 && a->tensors[x->in[k]].op == b->tensors[y->in[k]].op;
    }
    for (int i = 0; same && i < a->n_groups; i++)
        same = a->groups[i].n_ops == b->groups[i].n_ops && a->groups[i].n_in == b->groups[i].n_in
               && a->groups[i].n_out == b->groups[i].n_out;
    return same;
}

static void check_alike(const struct model *m)
{
    const struct mpp_layering *l = m->layers;
    for (int a = 0; a < l->n_layers; a++) {
        for (int b = a + 1; b < l->n_layers; b++) {
            struct mpp_graph *x, *y;
            int n = 0;
            while (b + n < l->n_layers && n < 3 && l->cls[a + n] == l->cls[b + n])
                n++;
            if (n == 0)
                continue;
            for (enum mpp_recompute r = 0; r < MPP_RECOMPUTE_COUNT; r++) {
                bool ok = mpp_span_extract(m->arena, m->diag, m->g, l, a, a + n - 1, r, &x) == MPP_OK
                          && mpp_span_extract(m->arena, m->diag, m->g, l, b, b + n - 1, r, &y) == MPP_OK;
                check(ok && alike(x, y), "%s: %d layers from %d and from %d are not alike", m->title, n, a, b);
            }
        }
    }
}

/* What is outside repeats runs once. */
static void check_ends(const struct model *m)
{
    struct mpp_graph *span;
    const struct mpp_layering *l = m->layers;
    check(mpp_span_extract(m->arena, m->diag, m->g, l, 0, l->n_layers - 1, MPP_RECOMPUTE_FULL, &span) == MPP_OK,
          "%s: all layers, full", m->title);
    int n = 0;
    for (mpp_id o = 0; o < span->n_ops; o++) {
        bool again = strstr(span->ops[o].name, ".again") != NULL;
        check(!again || span->ops[o].repeat >= 0, "%s: %s is not of a repeat", m->title, span->ops[o].name);
        n += again;
    }
    check(n > 0, "%s: nothing runs again", m->title);
}

static void check_shapes(const char *file, const char *defines, struct how how)
{
    struct model m;
    if (open_model(&m, file, "tiny", defines, how)) {
        check_cover(&m);
        check_alike(&m);
        if (strstr(file, "t.xml")) /* gpt, bert */
            check_ends(&m);
        check_whole(&m);
    }
    close_model(&m);
}

/* Does the backward phase of G read T? */
static bool backward_reads(const struct mpp_graph *g, mpp_id t)
{
    for (mpp_id o = 0; o < g->n_ops; o++)
        for (int k = 0; k < g->ops[o].n_in && g->ops[o].phase == MPP_PHASE_BACKWARD; k++)
            if (g->ops[o].in[k] == t)
                return true;
    return false;
}

/* What the backward phase of a GPT reads of its second block's forward phase under RECOMPUTE, in order. */
static void check_kept(const char *defines, bool unfused, enum mpp_recompute recompute, const char *expected)
{
    struct model m;
    struct mpp_graph *span;
    if (open_model(&m, "gpt.xml", "tiny", defines, (struct how){.unfused = unfused})
        && mpp_span_extract(m.arena, m.diag, m.g, m.layers, 0, m.layers->n_layers - 1, recompute, &span) == MPP_OK) {
        const char *kept = "";
        for (mpp_id t = 0; t < span->n_tensors; t++) {
            const struct mpp_gtensor *tensor = &span->tensors[t];
            if (tensor->op >= 0 && span->ops[tensor->op].phase == MPP_PHASE_FORWARD && tensor->index == 1
                && backward_reads(span, t))
                kept = mpp_arena_printf(m.arena, "%s %s", kept, tensor->name + strlen("h.1."));
        }
        check(strcmp(kept, expected) == 0, "%s, %s: kept are%s", m.title, mpp_recompute_name(recompute), kept);
    }
    close_model(&m);
}

/* ---- random graphs ----------------------------------------------------------------------------------- */

enum { RANDOM_GRAPHS = 150, MAX_VALUES = 128, WIDTH = 4 };

struct random_graph {
    struct mpp_graph *g;
    struct mpp_diag *diag;
    uint64_t state;
    struct mpp_gop proto;         /* of the next op: its place in a repeat */
    int n_ops;
    int n, n_params, n_unread;
    mpp_id value[MAX_VALUES], param[MAX_VALUES]; /* [batch, WIDTH]; [WIDTH, WIDTH] */
    bool read[MAX_VALUES];
};

static int below(struct random_graph *r, int n)
{
    return (int)(uniform(&r->state) * n);
}

static mpp_id any_value(struct random_graph *r)
{
    int i = r->n - 1 - (uniform(&r->state) < 0.7 ? 0 : below(r, r->n < 12 ? r->n : 12));
    r->read[i] = true;
    return r->value[i];
}

static mpp_id random_param(struct random_graph *r, bool matrix)
{
    const struct mpp_size dims[] = {{WIDTH, 0, "w"}, {WIDTH, 0, "w"}};
    if (matrix && r->n_params > 0 && uniform(&r->state) < 0.3)
        return r->param[below(r, r->n_params)];
    struct mpp_graph *g = r->g;
    mpp_id p = mpp_graph_add_tensor(g, mpp_arena_printf(g->arena, "p%d", g->n_tensors), MPP_F32, matrix ? 2 : 1, dims);
    g->tensors[p].role = MPP_ROLE_PARAM;
    g->tensors[p].param = p;
    g->tensors[p].info = mpp_arena_array(g->arena, 1, struct mpp_param);
    *g->tensors[p].info = (struct mpp_param){.published = g->tensors[p].name, .n_published = matrix ? 2 : 1,
                                             .published_dims = {WIDTH, WIDTH}, .gradient = -1, .master = -1};
    if (matrix)
        r->param[r->n_params++] = p;
    return p;
}

static mpp_id random_op(struct random_graph *r, int kind, int n_in, const mpp_id *in, struct mpp_attrs attrs)
{
    r->proto.name = mpp_arena_printf(r->g->arena, "op%d", r->n_ops++);
    mpp_id op = mpp_graph_add_op(r->g, r->diag, kind, &r->proto, n_in, in, attrs, NULL);
    check(op >= 0, "a random graph: %s", mpp_op_info(kind)->name);
    return op < 0 ? -1 : r->g->ops[op].out[0];
}

/* One more value of an op that draws from earlier ones. */
static void add_value(struct random_graph *r)
{
    struct mpp_arena *arena = r->g->arena;
    struct mpp_attrs none = {0};
    mpp_id x = any_value(r);
    switch (below(r, 8)) {
    case 0: case 1: case 2:
        x = random_op(r, MPP_OP_EINSUM, 2, (mpp_id[]){x, random_param(r, true)},
                      MPP_ATTRS(arena, mpp_attr_string("equation", "bi,ij->bj")));
        break;
    case 3:
        x = random_op(r, MPP_OP_ADD, 2, (mpp_id[]){x, any_value(r)}, none);
        break;
    case 4:
        x = random_op(r, MPP_OP_SIGMOID, 1, &x, none); /* keeps products of products small */
        x = random_op(r, MPP_OP_MUL, 2, (mpp_id[]){x, any_value(r)}, none);
        break;
    case 5:
        x = random_op(r, MPP_OP_SIGMOID, 1, &x, none);
        break;
    case 6:
        x = random_op(r, MPP_OP_DROPOUT, 1, &x, MPP_ATTRS(arena, mpp_attr_float("ratio", 0.1), mpp_attr_int("stream", r->n)));
        break;
    default:
        x = random_op(r, MPP_OP_LAYERNORM, 3, (mpp_id[]){x, random_param(r, false), -1},
                      MPP_ATTRS(arena, mpp_attr_float("epsilon", 1e-2)));
        break;
    }
    r->value[r->n++] = x;
}

/* Ops in and between repeats, some of them marked as attention's; the loss is the sum of all values that nobody reads. */
static struct mpp_graph *random_graph(struct mpp_arena *arena, struct mpp_diag *diag, uint64_t seed)
{
    struct random_graph r = {.g = mpp_graph_new(arena, NULL, 4), .diag = diag, .state = seed};
    const struct mpp_size dims[] = {{4, 1, "batch"}, {WIDTH, 0, "w"}};
    for (int i = 0; i < 2; i++) {
        r.value[r.n++] = mpp_graph_add_tensor(r.g, i ? "y" : "x", MPP_F32, 2, dims);
        r.g->tensors[r.value[i]].role = MPP_ROLE_INPUT;
    }
    r.proto = (struct mpp_gop){.scope = "", .phase = MPP_PHASE_FORWARD, .repeat = -1, .index = -1, .forward = -1};
    for (int part = 0, parts = 2 + below(&r, 4); part < parts; part++) {
        int iterations = below(&r, 2) * (1 + below(&r, 4));
        uint64_t state = r.state;
        for (int index = 0; index == 0 || index < iterations; index++) {
            r.state = state;          /* as the iteration before */
            r.proto.repeat = iterations ? part : -1;
            r.proto.index = iterations ? index : -1;
            r.proto.repeat_name = iterations ? "part" : NULL;
            for (int i = 0, n = 1 + below(&r, 5); i < n; i++) {
                r.proto.item_type = below(&r, 4) == 0 ? "Attention" : "Linear";
                add_value(&r);
            }
        }
    }
    r.value[r.n++] = random_op(&r, MPP_OP_EINSUM, 2, (mpp_id[]){any_value(&r), random_param(&r, true)},
                               MPP_ATTRS(arena, mpp_attr_string("equation", "bi,ij->bj")));
    mpp_id unread[MAX_VALUES];
    int n = 0;
    for (int i = 2; i < r.n; i++)
        if (!r.read[i])
            unread[n++] = r.value[i];
    const int64_t axes[] = {0, 1};
    mpp_id sum = random_op(&r, MPP_OP_SUM, n, unread, (struct mpp_attrs){0});
    r.g->loss = random_op(&r, MPP_OP_REDUCE_SUM, 1, &sum, MPP_ATTRS(arena, mpp_attr_ints("axes", 2, axes)));
    return r.g;
}

static void check_random(uint64_t seed)
{
    struct model m = {.arena = mpp_arena_new(), .diag = mpp_diag_new(stderr)};
    uint64_t state = seed;
    m.title = mpp_arena_printf(m.arena, "random graph %d", (int)seed);
    m.g = random_graph(m.arena, m.diag, seed);
    struct mpp_pass_ctx ctx = {.arena = m.arena, .diag = m.diag};
    bool ok = mpp_pass_autodiff(&ctx, m.g) == MPP_OK && mpp_graph_verify(m.g, m.diag, "autodiff") == MPP_OK &&
              mpp_layering_make(m.arena, m.diag, m.g, seed % 3 == 0 ? 4 : 0, &m.layers) == MPP_OK;
    check(ok, "%s does not build", m.title);
    if (ok)
        check_chains(&m, seed % 2 ? 4 : 2, &state);
    if (ok)
        check_alike(&m);
    check(!ok || m.layers->layer_of[m.g->tensors[m.g->loss_total].op] == m.layers->layer_of[m.g->tensors[m.g->loss].op],
          "%s: the sum of the losses is not in the loss's layer", m.title);
    close_model(&m);
}

/* ---- kernels that are not fused ---------------------------------------------------------------------- */

/* Attention in parts computes what the kernel computes: loss and gradients agree but for rounding. Every op is a group,
 * and none is an Attention. */
static void check_unfused(const char *file, const char *defines)
{
    struct model fused, parts;
    bool ok = open_model(&fused, file, "tiny", defines, (struct how){0});
    ok = open_model(&parts, file, "tiny", defines, (struct how){.unfused = true}) && ok;
    if (ok) {
        struct model *m[] = {&fused, &parts};
        struct mpp_interp *it[2];
        for (int i = 0; i < 2; i++) {
            it[i] = mpp_interp_new(m[i]->g, m[i]->g->global_batch);
            fill(m[i]->g, it[i]);
            mpp_interp_seed(it[i], 42, 3);
            mpp_interp_gradients(it[i]);
        }
        for (mpp_id t = 0; t < fused.g->n_tensors; t++) {
            if (fused.g->tensors[t].role != MPP_ROLE_ACCUM)
                continue;
            mpp_id u = find(parts.g, fused.g->tensors[t].name);
            double worst = 0, size = 0;
            for (int64_t k = 0; k < mpp_interp_count(it[0], t) && u >= 0; k++) {
                worst = fmax(worst, fabs(mpp_interp_data(it[0], t)[k] - mpp_interp_data(it[1], u)[k]));
                size = fmax(size, fabs(mpp_interp_data(it[0], t)[k]));
            }
            check(u >= 0 && worst <= 1e-12 * (1e-3 + size), "%s: %s differs by %.3g of %.3g", parts.title,
                  fused.g->tensors[t].name, worst, size);
        }
        struct mpp_pass_ctx ctx = {.arena = parts.arena, .diag = parts.diag};
        check(mpp_pass_fuse(&ctx, parts.g) == MPP_OK && parts.g->n_groups == parts.g->n_ops, "%s: %d groups of %d ops",
              parts.title, parts.g->n_groups, parts.g->n_ops);
        for (mpp_id o = 0; o < parts.g->n_ops; o++)
            check(parts.g->ops[o].kind != MPP_OP_ATTENTION && parts.g->ops[o].kind != MPP_OP_ATTENTION_GRAD,
                  "%s: %s is a fused kernel", parts.title, parts.g->ops[o].name);
        mpp_interp_free(it[0]);
        mpp_interp_free(it[1]);
    }
    close_model(&fused);
    close_model(&parts);
}

int main(int argc, char **argv)
{
    root = argc > 1 ? argv[1] : ".";
    const char *small_gpt = "layers=3 hidden=16 heads=2 vocab=17 seq=6 positions=6 batch=4 pdrop=0.2";
    const char *small_bert = "layers=2 hidden=12 heads=2 vocab=17 seq=6 positions=6 batch=4 padding_mask=true pdrop=0.1";
    check_layers("gpt.xml", "gpt2", "pdrop=0.1", 0, "wte..drop:0 h.0:1 h.1:1 h.11:1 ln_f..loss:2");
    check_layers("gpt.xml", "gpt2", "layers=1", 0, "wte..embd:0 h.0:1 ln_f..loss:2");
    check_layers("gpt.xml", "gpt3-175b", "", 0, "wte..embd:0 h.0:1 h.1:1 h.95:1 ln_f..loss:2");
    check_layers("gpt.xml", "gpt2", "layers=4", 3, "wte..h.1:0 h.2..h.3:1 ln_f..loss:2");
    check_layers("bert.xml", "tiny", "layers=3", 0,
                 "bert.embeddings.word_embeddings..bert.embeddings.LayerNorm:0 bert.encoder.layer.0:1 "
                 "bert.encoder.layer.1:1 bert.encoder.layer.2:1 cls.predictions.transform.dense..loss:2");
    check_layers("mlp.xml", "tiny", "layers=4", 0, "first..relu:0 layer.0:1 layer.1:1 layer.2:1 last..loss:2");
    check_layers("mlp.xml", "tiny", "layers=1", 0, "first..relu:0 last..loss:1");
    check_layers("mlp.xml", "tiny", "layers=1", 1, "first..loss:0");
    const struct how plain = {0}, three = {.max_layers = 3}, unfused = {.unfused = true}, bf16 = {.precision = "bf16"};
    const struct how fp16 = {.precision = "f16"}, fp16_unfused = {.unfused = true, .precision = "f16"};
    check_shapes("gpt.xml", small_gpt, plain);
    check_shapes("gpt.xml", small_gpt, three);
    check_shapes("gpt.xml", small_gpt, fp16_unfused);
    check_shapes("bert.xml", small_bert, plain);
    check_shapes("bert.xml", small_bert, bf16);
    check_shapes("mlp.xml", "layers=4", plain);
    check_kept(small_gpt, false, MPP_RECOMPUTE_FULL, " res2");
    check_kept(small_gpt, false, MPP_RECOMPUTE_SELECTIVE, " ln_1 ln_1.mean ln_1.rstd attn.q attn.k attn.v res1 ln_2 ln_2.mean "
               "ln_2.rstd mlp.c_fc mlp.gelu res2");
    check_kept(small_gpt, false, MPP_RECOMPUTE_NONE, " ln_1 ln_1.mean ln_1.rstd attn.q attn.k attn.v attn.attention "
               "attn.attention.lse res1 ln_2 ln_2.mean ln_2.rstd mlp.c_fc mlp.gelu res2");
    check_kept(small_gpt, true, MPP_RECOMPUTE_SELECTIVE, " ln_1 ln_1.mean ln_1.rstd attn.q attn.k attn.v attn.attention "
               "res1 ln_2 ln_2.mean ln_2.rstd mlp.c_fc mlp.gelu res2");
    check_unfused("gpt.xml", small_gpt);
    check_unfused("bert.xml", small_bert);
    check_unfused("bert.xml", "heads=1 pdrop=0");
    check_values("gpt.xml", small_gpt, 1, plain);
    check_values("gpt.xml", small_gpt, 2, three);
    check_values("gpt.xml", small_gpt, 1, unfused);
    check_values("gpt.xml", small_gpt, 1, bf16);
    check_values("gpt.xml", small_gpt, 1, fp16);
    check_values("gpt.xml", small_gpt, 1, fp16_unfused);
    check_values("bert.xml", small_bert, 2, plain);
    check_values("bert.xml", small_bert, 2, fp16);
    check_values("mlp.xml", "layers=3", 1, plain);
    check_values("mlp.xml", "layers=1", 2, bf16);
    static const char *const edges[] = {EDGES "blocks.xml", EDGES "labels.xml", EDGES "names.xml", EDGES "penalty.xml",
                                        EDGES "rows.xml", EDGES "skips.xml", EDGES "tied.xml"};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        check_shapes(edges[i], "", plain);
        check_shapes(edges[i], "", fp16_unfused);
        check_values(edges[i], "", 1, plain);
        check_values(edges[i], "", 1, fp16_unfused);
    }
    for (int i = 1; i <= RANDOM_GRAPHS; i++)
        check_random((uint64_t)i);
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
