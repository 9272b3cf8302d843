/* report.c - report.txt: the plan on one screen, from graph, cluster, plan and local program alone. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/report_internal.h"
#include "ir/op.h"

enum { BAR = 24, COLUMN = 58, COLUMN_OF_STAGES = 51 }; /* the latter beside longer words */

/* ---- the head ---- */

static void head(const struct report *r)
{
    int64_t tokens = r->whole->tokens_per_sample;
    const struct mpp_model *m = r->whole->model;
    fprintf(r->out, "%s%s%s%s   %s parameters   on %s\n", m->name, m->preset ? " (" : "", m->preset ? m->preset : "",
            m->preset ? ")" : "", mpp_report_millions(r->arena, (double)mpp_graph_param_count(r->whole)),
            mpp_cluster_describe(r->arena, r->cluster));
    fprintf(r->out, "batch %s", mpp_report_thousands(r->arena, r->plan->batch));
    if (tokens > 1)
        fprintf(r->out, " x %s tokens", mpp_report_thousands(r->arena, tokens));
    fprintf(r->out, ", %s, %s\n\n", m->training.precision ? m->training.precision : "f32", m->training.optimizer);

    double s = mpp_report_counts_overlap(r) ? (double)r->plan->overlapped_ps * 1e-12 : r->plan->predicted.step_s;
    if (s > 0) {
        double peak = mpp_plan_peak_flops(r->whole, r->cluster);
        fprintf(r->out, "  %s per step     %s %s/s     %.0f %% of peak", mpp_report_seconds(r->arena, s),
                mpp_report_thousands(r->arena, (int64_t)((double)(r->plan->batch * tokens) / s)), tokens > 1 ? "tokens" : "samples",
                peak > 0 ? 100 * mpp_plan_step_flops(r->whole) / s / peak : 0.0);
    }
    int fullest = mpp_plan_fullest(r->plan);
    fprintf(r->out, "%s%s of %s per device", s > 0 ? "     " : "  ", mpp_report_bytes(r, r->plan->stages[fullest].memory.arena_bytes),
            mpp_report_bytes(r, mpp_device_usable_bytes(&r->cluster->device)));
    if (r->plan->n_stages > 1)
        fprintf(r->out, " (stage %d)", fullest);
    fputc('\n', r->out);
}

static void ended_early(const struct report *r)
{
    if (r->plan->stopped)
        fprintf(r->out, "  the search was stopped by %s: this is the best plan so far\n", r->plan->stopped);
}

/* The gap is a part of this plan's time, how much slower it is a part of the fastest one's. */
static const char *claim_of(const struct report *r, int64_t ps, int64_t bound_ps)
{
    if (ps <= bound_ps)
        return "proven the fastest";
    return mpp_arena_printf(r->arena, "proven at most %s %% slower than the fastest",
                            mpp_report_percent(r->arena, 100 * ((double)ps / (double)bound_ps - 1)));
}

static const char *gap_of(const struct report *r, int64_t ps, int64_t bound_ps)
{
    return ps <= bound_ps ? "0" : mpp_report_percent(r->arena, 100 * (double)(ps - bound_ps) / (double)ps);
}

static void proof(const struct report *r)
{
    const struct mpp_plan *p = r->plan;
    bool counts = mpp_report_counts_overlap(r), several = p->n_stages > 1 || p->n_others > 0 || counts;
    int64_t ps = counts ? p->overlapped_ps : p->objective_ps, bound_ps = counts ? p->overlap_bound_ps : p->bound_ps;
    if (p->objective_ps <= 0 || p->bound_ps <= 0 || bound_ps <= 0) {
        ended_early(r);
        return;
    }
    mpp_report_paragraph(r, 2, mpp_arena_printf(r->arena, "%s by this cost model%s among all %s searched%s (gap %s %%)", claim_of(r, ps, bound_ps),
                                     counts ? ", collectives beside kernels counted," : "", several ? "plans" : "meshes and micro-batch counts",
                                     mpp_report_pinned(r), gap_of(r, ps, bound_ps)), true);
    if (counts)
        mpp_report_paragraph(r, 2, mpp_arena_printf(r->arena, "one after the other, kernels and collectives take %s: %s by that count (gap %s %%)",
                                         mpp_report_seconds(r->arena, p->predicted.step_s), claim_of(r, p->objective_ps, p->bound_ps),
                                         gap_of(r, p->objective_ps, p->bound_ps)), true);
    ended_early(r);
    const char *simulated = mpp_report_seconds(r->arena, (double)p->simulated_ps * 1e-12);
    if (!counts && strcmp(simulated, mpp_report_seconds(r->arena, p->predicted.step_s)) != 0)
        fprintf(r->out, "  event by event the schedule takes %s\n", simulated);
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

const char *mpp_report_axis(const struct report *r, int axis)
{
    struct share shares[16];
    double whole = 0;
    struct mpp_text s = {.arena = r->arena};
    int n = axis_shares(r, axis, shares, 16, &whole);
    for (int k = 0; k < n; k++)
        if (k == 0 || shares[k].weight > 0.0005)
            mpp_text_add(&s, "%s%s", k ? ", " : "", shares[k].name);
    if (n == 0)
        return mpp_arena_printf(r->arena, "nothing: its %d devices do the same", r->mesh->size[axis]);
    mpp_text_add(&s, " over %d", r->mesh->size[axis]);
    if (n > 0 && whole > 0.0005)
        mpp_text_add(&s, "; %s %% of the work is done by all of them", mpp_report_three(r->arena, 100 * whole));
    return mpp_text_string(&s);
}

static void split_words(const struct report *r)
{
    for (int a = 0; a < r->mesh->n_axes; a++) {
        if (r->mesh->size[a] == 1)
            continue;
        fprintf(r->out, "  %-10s ", r->mesh->name[a]);
        mpp_report_paragraph(r, 13, mpp_report_axis(r, a), false);
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
        fprintf(r->out, "  %-10s whole on every device: %s\n", what, mpp_report_bytes(r, all));
    else
        fprintf(r->out, "  %-10s %s of %s on a device (1/%s)\n", what, mpp_report_bytes(r, here), mpp_report_bytes(r, all),
                mpp_report_three(r->arena, (double)all / (double)here));
}

static void splits(const struct report *r)
{
    if (r->plan->n_stages > 1) {
        mpp_report_stages(r);
        return;
    }
    struct mpp_text mesh = {.arena = r->arena};
    int n = r->stage->n_devices;
    for (int a = 0; a < r->mesh->n_axes; a++)
        if (r->mesh->size[a] > 1)
            mpp_text_add(&mesh, "%s%s %d", mesh.n ? " x " : "", r->mesh->name[a], r->mesh->size[a]);
    bool recompute = r->stage->recompute != MPP_RECOMPUTE_NONE;
    int64_t micro = r->plan->batch / r->plan->micro_batches;
    fprintf(r->out, "\n  %d stage%s, %s micro-batch%s of %s sample%s%s%s%s%s\n", r->plan->n_stages, r->plan->n_stages == 1 ? "" : "s",
            mpp_report_thousands(r->arena, r->plan->micro_batches), r->plan->micro_batches == 1 ? "" : "es", mpp_report_thousands(r->arena, micro),
            micro == 1 ? "" : "s", n > 1 ? ", mesh " : ", one device", n > 1 ? mpp_text_string(&mesh) : "",
            recompute ? ", recompute " : "", recompute ? mpp_plan_recompute_word(r->stage->recompute) : "");
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
    double share = r->plan->predicted.step_s > 0 ? row->value / r->plan->predicted.step_s : 0;
    int n = (int)lround(share * BAR);
    char bar[BAR + 1];
    memset(bar, '#', sizeof bar);
    n = n > BAR ? BAR : n;
    const char *part = share < 0.0005 ? "< 0.1" : mpp_arena_printf(r->arena, "%.1f", 100 * share);
    return mpp_arena_printf(r->arena, "%-17s %-*.*s %5s %%", row->name, BAR, n, bar, part);
}

/* What else of a GPU's memory is taken. */
static void beside(const struct report *r, const struct mpp_memory *m)
{
    const struct mpp_beside *b = &m->beside;
    int n = b->groups + b->pairs;
    const struct {
        const char *name;
        int64_t bytes;
    } parts[] = {{"cuBLASLt's workspace", b->workspace}, {"sums and rows of kernels", b->kernels}, {"packed collectives", b->packing},
                 {"packed messages", b->messages}, {mpp_arena_printf(r->arena, "buffers of %d NCCL communicator%s about", n, n == 1 ? "" : "s"), b->nccl}, {"the driver's context about", b->context}};
    struct mpp_text s = {.arena = r->arena};
    if (!b->on_gpu)
        return;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].bytes > 0)
            mpp_text_add(&s, "%s%s %s", s.n ? ", " : "", parts[i].name, mpp_report_bytes(r, parts[i].bytes));
    mpp_report_paragraph(r, 2, mpp_arena_printf(r->arena, "beside the arena at most %s: %s", mpp_report_bytes(r, b->bytes), mpp_text_string(&s)), true);
}

static void costs(const struct report *r)
{
    const struct mpp_prediction *p = &r->plan->predicted;
    int slowest = mpp_report_slowest(r->plan), fullest = mpp_plan_fullest(r->plan);
    const struct mpp_memory *m = &r->plan->stages[fullest].memory;
    struct row times[] = {{"compute", p->compute_s}, {"activation sums", p->activation_comm_s},
                          {"gradient sums", p->gradient_comm_s}, {"weight gathers", p->parameter_comm_s},
                          {"stage to stage", p->receive_s}, {"update", p->update_s}, {"bubble", p->bubble_s}};
    const struct {
        const char *name;
        int64_t bytes;
    } memory[] = {{"weights", m->parameters}, {"gradients", m->gradients}, {"optimiser", m->optimizer},
                  {"activations", m->activations}, {"inputs", m->inputs}, {"workspace", m->workspace}, {"gaps", m->gaps}};
    const char *left[10], *right[10];
    int n_left = 0, n_right = 0;
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        if (times[i].value > 0)
            left[n_left++] = time_row(r, &times[i]);
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        if (memory[i].bytes > 0)
            right[n_right++] = mpp_arena_printf(r->arena, "%-12s %11s", memory[i].name, mpp_report_bytes(r, memory[i].bytes));
    bool several = r->plan->n_stages > 1;
    const int column = several ? COLUMN_OF_STAGES : COLUMN;
    fprintf(r->out, "\n  %-*s%s\n", column, several ? mpp_arena_printf(r->arena, "where a step goes (stage %d, the slowest)", slowest)
                                                  : mpp_report_counts_overlap(r) ? "where a step goes, one after the other" : "where a step goes",
            several ? mpp_arena_printf(r->arena, "memory of a device of stage %d at its fullest", fullest)
                    : "memory of a device at its fullest");
    for (int i = 0; i < n_left || i < n_right; i++)
        fprintf(r->out, "  %-*s%s\n", i < n_right ? column : 0, i < n_left ? left[i] : "", i < n_right ? right[i] : "");
    const char *least = m->live_bound_bytes == m->arena_bytes ? "smaller"
                        : mpp_arena_printf(r->arena, "below %s", mpp_report_thousands(r->arena, m->live_bound_bytes));
    mpp_report_paragraph(r, 2, mpp_arena_printf(r->arena, "arena %s bytes per device; no arena of this program can be %s",
                                     mpp_report_thousands(r->arena, m->arena_bytes), least), true);
    beside(r, m);
}

static struct report begin(const struct mpp_graph *graph, const struct mpp_cluster *cluster, const struct mpp_plan *plan,
                           const struct mpp_lprog *prog, FILE *out)
{
    struct report r = {.arena = mpp_arena_scratch(graph->arena), .whole = graph, .cluster = cluster, .plan = plan, .prog = prog,
                       .out = out};
    return mpp_report_at(&r, mpp_report_slowest(plan));
}

static enum mpp_status end(const struct report *r, struct mpp_diag *diag)
{
    bool failed = ferror(r->out);
    mpp_arena_free(r->arena);
    if (!failed)
        return MPP_OK;
    mpp_diag_error(diag, (struct mpp_loc){0}, "cannot write the report: %s", strerror(errno ? errno : EIO));
    return MPP_IO;
}

enum mpp_status mpp_report_write(struct mpp_diag *diag, const struct mpp_graph *graph, const struct mpp_cluster *cluster,
                                 const struct mpp_plan *plan, const struct mpp_lprog *prog, FILE *out)
{
    struct report r = begin(graph, cluster, plan, prog, out);
    head(&r);
    proof(&r);
    splits(&r);
    costs(&r);
    mpp_report_overlap(&r);
    mpp_report_others(&r);
    mpp_report_collectives(&r);
    mpp_report_unsplit(&r);
    return end(&r, diag);
}

enum mpp_status mpp_report_predict(struct mpp_diag *diag, const struct mpp_graph *graph, const struct mpp_cluster *cluster,
                                   const struct mpp_plan *plan, const struct mpp_lprog *prog, FILE *out)
{
    struct report r = begin(graph, cluster, plan, prog, out);
    head(&r);
    proof(&r);
    splits(&r);
    costs(&r);
    mpp_report_overlap(&r);
    mpp_report_others(&r);
    return end(&r, diag);
}
