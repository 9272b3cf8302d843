/* report.c - report.txt: the plan on one screen, from graph, cluster, plan and local program alone. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/emit_internal.h"
#include "ir/op.h"

enum { BAR = 24, MAX_COMMS = 8, MAX_NAMES = 64, MAX_UNSPLIT = 8, COLUMN = 58, WIDTH = 98 };

struct report {
    struct mpp_arena *arena;      /* scratch */
    const struct mpp_graph *g;
    const struct mpp_cluster *cluster;
    const struct mpp_plan *plan;
    const struct mpp_stage *stage;
    const struct mpp_mesh *mesh;
    const struct mpp_lprog *prog;
    FILE *out;
};

/* ---- numbers as people write them ---- */

/* 124,439,808 */
static const char *thousands(struct mpp_arena *arena, int64_t n)
{
    char *s = mpp_arena_printf(arena, "%lld", (long long)n);
    struct mpp_text out = {.arena = arena};
    size_t len = strlen(s);
    for (size_t i = 0; i < len; i++)
        mpp_text_add(&out, "%s%c", i > 0 && s[i - 1] != '-' && (len - i) % 3 == 0 ? "," : "", s[i]);
    return mpp_text_string(&out);
}

/* Three digits: 3.41, 27.9, 153 */
static const char *three(struct mpp_arena *arena, double v)
{
    return mpp_arena_printf(arena, "%.*f", fabs(v) < 9.995 ? 2 : fabs(v) < 99.95 ? 1 : 0, v);
}

static const char *seconds(struct mpp_arena *arena, double s)
{
    static const struct {
        double scale;
        const char *unit;
    } units[] = {{1, "s"}, {1e3, "ms"}, {1e6, "us"}, {1e9, "ns"}};
    int u = 0;
    while (u < 3 && s * units[u].scale < 1)
        u++;
    return mpp_arena_printf(arena, "%s %s", three(arena, s * units[u].scale), units[u].unit);
}

/* 1.56 B, 124 M, 916 K */
static const char *millions(struct mpp_arena *arena, double n)
{
    static const char *const units[] = {"", " K", " M", " B", " T"};
    int u = 0;
    while (u < 4 && n >= 999.5) {
        n /= 1000;
        u++;
    }
    return u == 0 ? mpp_arena_printf(arena, "%.0f", n) : mpp_arena_printf(arena, "%s%s", three(arena, n), units[u]);
}

static const char *bytes(const struct report *r, int64_t n)
{
    return mpp_emit_bytes_text(r->arena, n);
}

static int n_devices(const struct report *r)
{
    int n = 1;
    for (int a = 0; a < r->mesh->n_axes; a++)
        n *= r->mesh->size[a];
    return n;
}

/* "model (4)", "data+model (8)" */
static const char *axes(const struct report *r, unsigned mask)
{
    struct mpp_text s = {.arena = r->arena};
    int n = 1;
    for (int a = 0; a < r->mesh->n_axes; a++)
        if (mask >> a & 1) {
            mpp_text_add(&s, "%s%s", s.n ? "+" : "", r->mesh->name[a]);
            n *= r->mesh->size[a];
        }
    return mpp_arena_printf(r->arena, "%s (%d)", mpp_text_string(&s), n);
}

/* Words at INDENT (the first line's is printed already unless FIRST), broken after WIDTH columns. */
static void paragraph(const struct report *r, int indent, const char *words, bool first)
{
    int column = 0;
    for (const char *p = words; *p;) {
        int n = (int)strcspn(p, " ");
        if (column > 0 && column + 1 + n > WIDTH - indent) {
            fputc('\n', r->out);
            column = 0;
            first = true;
        }
        fprintf(r->out, "%*s%.*s", column ? 1 : first ? indent : 0, "", n, p);
        column += n + (column > 0);
        p += n;
        p += strspn(p, " ");
    }
    fputc('\n', r->out);
}

/* ---- the head ---- */

static double step_flops(const struct report *r)
{
    double f = 0;
    for (int o = 0; o < r->g->n_ops; o++)
        f += mpp_op_flops(r->g, &r->g->ops[o])
             * (r->g->ops[o].phase == MPP_PHASE_UPDATE ? 1 : (double)r->plan->micro_batches);
    return f;
}

static void head(const struct report *r)
{
    int64_t tokens = r->g->tokens_per_sample;
    const struct mpp_model *m = r->g->model;
    fprintf(r->out, "%s%s%s%s   %s parameters   on %s\n", m->name, m->preset ? " (" : "", m->preset ? m->preset : "",
            m->preset ? ")" : "", millions(r->arena, (double)mpp_graph_param_count(r->g)),
            mpp_cluster_describe(r->arena, r->cluster));
    fprintf(r->out, "batch %s", thousands(r->arena, r->plan->batch));
    if (tokens > 1)
        fprintf(r->out, " x %s tokens", thousands(r->arena, tokens));
    fprintf(r->out, ", %s, %s\n\n", m->training.precision ? m->training.precision : "f32", m->training.optimizer);

    double s = r->stage->predicted.step_s;
    if (s > 0) {
        double peak = r->cluster->device.peak_flops_per_s[MPP_PRECISION_F32] * n_devices(r);
        fprintf(r->out, "  %s per step     %s %s/s     %.0f %% of peak", seconds(r->arena, s),
                thousands(r->arena, (int64_t)((double)(r->plan->batch * tokens) / s)), tokens > 1 ? "tokens" : "samples",
                peak > 0 ? 100 * step_flops(r) / s / peak : 0.0);
    }
    fprintf(r->out, "%s%s of %s per device\n", s > 0 ? "     " : "  ", bytes(r, r->prog->arena_bytes),
            bytes(r, mpp_device_usable_bytes(&r->cluster->device)));
}

/* A bound in percent, rounded up. */
static const char *percent(struct mpp_arena *arena, double v)
{
    return three(arena, ceil(v * 100) / 100);
}

/* ", pinned to dp=2 and by the model file to shard:wte.weight=vocab/model"; "" where nothing is. */
static const char *pinned(const struct report *r)
{
    const struct mpp_model *m = r->g->model;
    struct mpp_text s = {.arena = r->arena};
    if (r->plan->pins && *r->plan->pins)
        mpp_text_add(&s, ", pinned to %s", r->plan->pins);
    for (int i = 0; m && i < m->n_shards; i++)
        mpp_text_add(&s, "%sshard:%s=%s%s%s", i ? ", " : s.n ? " and by the model file to " : ", pinned by the model file to ",
                     m->shards[i].match, m->shards[i].dim, m->shards[i].axis ? "/" : "", m->shards[i].axis ? m->shards[i].axis : "");
    return mpp_text_string(&s);
}

static void proof(const struct report *r)
{
    const char *pins = pinned(r);
    double gap = 100 * r->plan->gap;
    if (r->plan->objective_ps <= 0 || r->plan->bound_ps <= 0)
        return;
    const char *claim = gap <= 0 ? "proven the fastest" : mpp_arena_printf(r->arena, "proven at most %s %% slower than the fastest",
                                                           percent(r->arena, gap));
    paragraph(r, 2, mpp_arena_printf(r->arena, "%s by this cost model among all meshes and micro-batch counts searched%s (gap %s %%)",
                                     claim, pins, gap <= 0 ? "0" : percent(r->arena, gap)), true);
}

/* ---- what is split how ---- */

struct share {
    const char *name;
    double weight;
};

static int by_weight(const void *a, const void *b)
{
    const struct share *x = a, *y = b;
    if (x->weight < y->weight || x->weight > y->weight)
        return x->weight < y->weight ? 1 : -1;
    return strcmp(x->name, y->name);
}

static double group_work(const struct report *r, const struct mpp_group *grp)
{
    double w = 0;
    for (int k = 0; k < grp->n_ops; k++)
        w += mpp_op_flops(r->g, &r->g->ops[grp->ops[k]]);
    return w;
}

/* The dimensions that axis A splits, by the work that this divides; *OUT_WHOLE the share of work it doesn't. */
static int axis_shares(const struct report *r, int a, struct share *out, int max, double *out_whole)
{
    int n = 0;
    double total = 0, whole = 0;
    for (int i = 0; i < r->g->n_groups; i++) {
        const struct mpp_group *grp = &r->g->groups[i];
        double w = group_work(r, grp);
        int f = r->stage->split[i].axis[a];
        if (grp->phase != MPP_PHASE_FORWARD && grp->phase != MPP_PHASE_BACKWARD)
            continue;
        total += w;
        if (f < 0) {
            whole += w;
            continue;
        }
        const char *name = grp->rule->factor[f].size.name;
        int k = 0;
        while (k < n && strcmp(out[k].name, name ? name : "rows") != 0)
            k++;
        if (k == n && n < max)
            out[n++] = (struct share){name ? name : "rows", 0};
        if (k < n)
            out[k].weight += w;
    }
    for (int k = 0; k < n; k++)
        out[k].weight /= total > 0 ? total : 1;
    qsort(out, (size_t)n, sizeof *out, by_weight);
    *out_whole = total > 0 ? whole / total : 0;
    return n;
}

static void split_words(const struct report *r)
{
    for (int a = 0; a < r->mesh->n_axes; a++) {
        struct share shares[16];
        double whole = 0;
        struct mpp_text s = {.arena = r->arena};
        if (r->mesh->size[a] == 1)
            continue;
        int n = axis_shares(r, a, shares, 16, &whole);
        for (int k = 0; k < n; k++)
            if (k == 0 || shares[k].weight > 0.0005)
                mpp_text_add(&s, "%s%s", k ? ", " : "", shares[k].name);
        if (n == 0)
            mpp_text_add(&s, "nothing");
        mpp_text_add(&s, " over %d", r->mesh->size[a]);
        if (n > 0 && whole > 0.0005)
            mpp_text_add(&s, "; %s %% of the work is done by all of them", three(r->arena, 100 * whole));
        fprintf(r->out, "  %-10s ", r->mesh->name[a]);
        paragraph(r, 13, s.data, false);
    }
}

/* What of KIND lies on one device, and of how much in all. */
static void resting(const struct report *r, enum mpp_role role, const char *what)
{
    int64_t here = 0, all = 0;
    for (mpp_id t = 0; t < r->g->n_tensors; t++) {
        const struct mpp_gtensor *x = &r->g->tensors[t];
        if (x->role != role || r->prog->param_buffer[t] < 0)
            continue;
        const struct mpp_buffer *b = &r->prog->buffers[r->prog->param_buffer[t]];
        all += mpp_tensor_bytes(x);
        here += mpp_emit_span(b, 0, b->n_dims) * mpp_dtype_bytes(x->dtype);
    }
    if (all == 0)
        return;
    if (here >= all)
        fprintf(r->out, "  %-10s whole on every device: %s\n", what, bytes(r, all));
    else
        fprintf(r->out, "  %-10s %s of %s on a device (1/%s)\n", what, bytes(r, here), bytes(r, all),
                three(r->arena, (double)all / (double)here));
}

static void splits(const struct report *r)
{
    struct mpp_text mesh = {.arena = r->arena};
    int n = n_devices(r);
    for (int a = 0; a < r->mesh->n_axes; a++)
        if (r->mesh->size[a] > 1)
            mpp_text_add(&mesh, "%s%s %d", mesh.n ? " x " : "", r->mesh->name[a], r->mesh->size[a]);
    int64_t micro = r->plan->batch / r->plan->micro_batches;
    fprintf(r->out, "\n  %d stage%s, %s micro-batch%s of %s sample%s%s%s\n", r->plan->n_stages, r->plan->n_stages == 1 ? "" : "s",
            thousands(r->arena, r->plan->micro_batches), r->plan->micro_batches == 1 ? "" : "es", thousands(r->arena, micro),
            micro == 1 ? "" : "s", n > 1 ? ", mesh " : ", one device", n > 1 ? mpp_text_string(&mesh) : "");
    split_words(r);
    if (n == 1)
        return;
    resting(r, MPP_ROLE_PARAM, "weights");
    resting(r, MPP_ROLE_STATE, "optimiser");
}

/* ---- time and memory, side by side ---- */

struct row {
    const char *name;
    double value;
};

static const char *time_row(const struct report *r, const struct row *row)
{
    double share = r->stage->predicted.step_s > 0 ? row->value / r->stage->predicted.step_s : 0;
    int n = (int)lround(share * BAR);
    char bar[BAR + 1];
    memset(bar, '#', sizeof bar);
    n = n > BAR ? BAR : n;
    const char *part = share < 0.0005 ? "< 0.1" : mpp_arena_printf(r->arena, "%.1f", 100 * share);
    return mpp_arena_printf(r->arena, "%-17s %-*.*s %5s %%", row->name, BAR, n, bar, part);
}

static void costs(const struct report *r)
{
    const struct mpp_prediction *p = &r->stage->predicted;
    const struct mpp_memory *m = &r->prog->memory;
    struct row times[] = {{"compute", p->compute_s}, {"activation sums", p->activation_comm_s},
                          {"gradient sums", p->gradient_comm_s}, {"weight gathers", p->parameter_comm_s},
                          {"update", p->update_s}};
    const struct {
        const char *name;
        int64_t bytes;
    } memory[] = {{"weights", m->parameters}, {"gradients", m->gradients}, {"optimiser", m->optimizer},
                  {"activations", m->activations}, {"inputs", m->inputs}, {"workspace", m->workspace}, {"gaps", m->gaps}};
    const char *left[8], *right[10];
    int n_left = 0, n_right = 0;
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        if (times[i].value > 0)
            left[n_left++] = time_row(r, &times[i]);
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        if (memory[i].bytes > 0)
            right[n_right++] = mpp_arena_printf(r->arena, "%-12s %11s", memory[i].name, bytes(r, memory[i].bytes));
    fprintf(r->out, "\n  %-*s%s\n", COLUMN, "where a step goes", "memory of a device at its fullest");
    for (int i = 0; i < n_left || i < n_right; i++)
        fprintf(r->out, "  %-*s%s\n", i < n_right ? COLUMN : 0, i < n_left ? left[i] : "", i < n_right ? right[i] : "");
    paragraph(r, 2, mpp_arena_printf(r->arena, "arena %s bytes per device; no arena of this program can be below %s",
                                     thousands(r->arena, m->arena_bytes), thousands(r->arena, m->live_bound_bytes)), true);
}

/* ---- collectives ---- */

struct comm_row {                 /* collectives of one kind, axes, phase and cause */
    const struct mpp_comm *first;
    const char *cause;            /* "sums over batch, split over data" */
    int n_names;
    const char *names[MAX_NAMES]; /* whose: "mlp.c_proj.grad_weight" */
    int64_t count;
    double bytes, total_s;
};

/* Where the cause begins in a reason: after the name it is about. */
static const char *cause_of(const char *reason)
{
    static const char *const verbs[] = {" sums over ", " rests ", " needs ", " takes ", " adds up ", " is "};
    const char *best = NULL;
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        const char *at = strstr(reason, verbs[i]);
        best = at && (!best || at < best) ? at : best;
    }
    return best ? best + 1 : reason;
}

static int by_time(const void *a, const void *b)
{
    const struct comm_row *x = a, *y = b;
    if (x->total_s < y->total_s || x->total_s > y->total_s)
        return x->total_s < y->total_s ? 1 : -1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static void add_comm(const struct report *r, struct comm_row *rows, int *n, const struct mpp_comm *c)
{
    const char *reason = c->reason ? c->reason : "", *cause = cause_of(reason);
    int k = 0;
    while (k < *n && (strcmp(rows[k].first->kind, c->kind) != 0 || rows[k].first->mask != c->mask || strcmp(rows[k].cause, cause) != 0))
        k++;
    if (k == *n)
        rows[(*n)++] = (struct comm_row){.first = c, .cause = cause};
    rows[k].count += c->count;
    rows[k].bytes += (double)c->count * (double)c->bytes;
    rows[k].total_s += (double)c->count * (double)c->cost_ps * 1e-12;
    const char *name = mpp_arena_strndup(r->arena, reason, cause > reason ? (size_t)(cause - reason - 1) : 0);
    bool known = false;
    for (int i = 0; i < rows[k].n_names; i++)
        known = known || !strcmp(rows[k].names[i], name);
    if (!known && *name && rows[k].n_names < MAX_NAMES)
        rows[k].names[rows[k].n_names++] = name;
}

/* One line of figures, one that says why: "mlp.c_proj sums over ffn, split over model"; of several, the cause first. */
static void print_comm(const struct report *r, const struct comm_row *row)
{
    struct mpp_text why = {.arena = r->arena};
    if (row->n_names == 1)
        mpp_text_add(&why, "%s ", row->names[0]);
    mpp_text_add(&why, "%s", row->cause);
    for (int i = 0; row->n_names > 1 && i < row->n_names && i < 2; i++)
        mpp_text_add(&why, "%s%s", i ? ", " : ": ", row->names[i]);
    if (row->n_names > 2)
        mpp_text_add(&why, " and %d more", row->n_names - 2);
    fprintf(r->out, "  %7s x %-14s %-24s %9s %9s\n", thousands(r->arena, row->count), row->first->kind,
            axes(r, row->first->mask), bytes(r, (int64_t)row->bytes), seconds(r->arena, row->total_s));
    paragraph(r, 12, why.data, true);
}

static void collectives(const struct report *r)
{
    struct comm_row *rows = mpp_arena_array(r->arena, r->stage->n_collectives, struct comm_row);
    int n = 0;
    double rest_s = 0;
    for (int i = 0; i < r->stage->n_collectives; i++)
        add_comm(r, rows, &n, &r->stage->collectives[i]);
    if (n == 0)
        return;
    qsort(rows, (size_t)n, sizeof *rows, by_time);
    fprintf(r->out, "\n  collectives of a step: how many, over which axes, bytes in all, time; why\n");
    for (int i = 0; i < n; i++) {
        if (i < MAX_COMMS)
            print_comm(r, &rows[i]);
        else
            rest_s += rows[i].total_s;
    }
    if (n > MAX_COMMS)
        fprintf(r->out, "  and %d kind%s more, %s in all (plan.json)\n", n - MAX_COMMS, n - MAX_COMMS == 1 ? "" : "s", seconds(r->arena, rest_s));
}

/* ---- contractions that every device does whole ---- */

static const char *without_layer(const struct report *r, const struct mpp_gop *op)
{
    if (!op->repeat_name || op->index < 0)
        return op->name;
    const char *prefix = mpp_arena_printf(r->arena, "%s.%d.", op->repeat_name, op->index);
    return strncmp(op->name, prefix, strlen(prefix)) ? op->name
         : mpp_arena_printf(r->arena, "%s.*.%s", op->repeat_name, op->name + strlen(prefix));
}

static void unsplit(const struct report *r)
{
    const char **names = mpp_arena_array(r->arena, r->plan->n_unsplit, const char *);
    int n = 0;
    for (int i = 0; i < r->plan->n_unsplit; i++) {
        const char *name = without_layer(r, &r->g->ops[r->g->groups[r->plan->unsplit[i]].ops[0]]);
        int k = 0;
        while (k < n && strcmp(names[k], name) != 0)
            k++;
        if (k == n)
            names[n++] = name;
    }
    if (n == 0)
        return;
    struct mpp_text s = {.arena = r->arena};
    mpp_text_add(&s, "%s", *pinned(r) ? "whole on every device, pinned or cheapest so: "
                                      : "whole on every device, because that is cheapest: ");
    for (int i = 0; i < n && i < MAX_UNSPLIT; i++)
        mpp_text_add(&s, "%s%s", i ? ", " : "", names[i]);
    if (n > MAX_UNSPLIT)
        mpp_text_add(&s, " and %d more", n - MAX_UNSPLIT);
    fputc('\n', r->out);
    paragraph(r, 2, s.data, true);
}

enum mpp_status mpp_report_write(struct mpp_diag *diag, const struct mpp_graph *graph, const struct mpp_cluster *cluster,
                                 const struct mpp_plan *plan, const struct mpp_lprog *prog, FILE *out)
{
    struct mpp_arena *scratch = mpp_arena_scratch(graph->arena);
    struct report r = {.arena = scratch, .g = graph, .cluster = cluster, .plan = plan, .stage = &plan->stages[0],
                       .mesh = &plan->stages[0].mesh, .prog = prog, .out = out};
    head(&r);
    proof(&r);
    splits(&r);
    costs(&r);
    collectives(&r);
    unsplit(&r);
    mpp_arena_free(scratch);
    if (!ferror(out))
        return MPP_OK;
    mpp_diag_error(diag, (struct mpp_loc){0}, "cannot write the report");
    return MPP_IO;
}
