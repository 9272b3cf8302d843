/* trace_table.c - sums over a rank's events, and over the ranks of a stage. */
#include <stdlib.h>
#include <string.h>

#include "trace_table.h"
#include "transport.h"

enum mpp_trace_share mpp_trace_share_of(int kind)
{
    switch ((enum mpp_trace_kind)kind) {
    case MPP_TRACE_FORWARD: return MPP_SHARE_FORWARD;
    case MPP_TRACE_BACKWARD: return MPP_SHARE_BACKWARD;
    case MPP_TRACE_UPDATE: return MPP_SHARE_UPDATE;
    case MPP_TRACE_SEND:
    case MPP_TRACE_RECEIVE: return MPP_SHARE_MESSAGES;
    case MPP_TRACE_ALL_REDUCE:
    case MPP_TRACE_ALL_GATHER:
    case MPP_TRACE_REDUCE_SCATTER:
    case MPP_TRACE_ALL_TO_ALL:
    case MPP_TRACE_SUMS:
    case MPP_TRACE_STAGES: return MPP_SHARE_COLLECTIVES;
    case MPP_TRACE_WAIT: return MPP_SHARE_WAITS;
    default: return MPP_SHARE_REST;
    }
}

const char *mpp_trace_name(int kind)
{
    static const char *const names[MPP_TRACE_KINDS] = {"step", "begin", "prologue", "forward", "backward", "update", "report",
                                                       "send", "receive", "all-reduce", "all-gather", "reduce-scatter",
                                                       "all-to-all", "sums of gradients", "sum over stages", "wait"};
    return names[kind];
}

void mpp_trace_print_axes(FILE *out, const struct mpp_stage *stage, unsigned mask)
{
    const char *before = "";
    if (mask == MPP_WORLD)
        fputs("all ranks", out);
    for (int a = 0; a < stage->n_axes; a++) {
        if (!(mask >> a & 1))
            continue;
        fprintf(out, "%s%s %d", before, stage->axis_name[a] != NULL ? stage->axis_name[a] : "axis", stage->axis_size[a]);
        before = " x ";
    }
}

/* ---- a rank ------------------------------------------------------------------------------------------- */

int64_t mpp_trace_summary_bytes(const struct mpp_stage *stage)
{
    return (int64_t)(sizeof(struct mpp_trace_summary) + (size_t)stage->n_forecasts * sizeof(struct mpp_trace_sum));
}

/* An event in which no later one lies so far. */
struct top {
    const struct mpp_trace_event *event;
    double wait_s; /* of waits inside, itself included where it is one */
};

static void add_sum(struct mpp_trace_sum *sum, double seconds)
{
    sum->count++;
    sum->seconds += seconds;
}

static void add_event(const struct mpp_stage *stage, const struct mpp_trace_event *e, double own_s, double working_s,
                      struct mpp_trace_summary *out)
{
    out->share[mpp_trace_share_of(e->kind)] += own_s;
    if (e->kind == MPP_TRACE_STEP)
        out->share[MPP_SHARE_STEP] = e->end_s - e->begin_s;
    if (e->kind == MPP_TRACE_FORWARD)
        add_sum(&out->forward, working_s);
    if (e->kind == MPP_TRACE_BACKWARD)
        add_sum(&out->backward, working_s);
    if (e->kind == MPP_TRACE_UPDATE)
        add_sum(&out->update, working_s);
    if (e->kind != MPP_TRACE_RECEIVE && (e->kind < MPP_TRACE_ALL_REDUCE || e->kind > MPP_TRACE_ALL_TO_ALL))
        return;
    unsigned mask = e->kind == MPP_TRACE_RECEIVE ? 0 : (unsigned)e->a;
    for (int i = 0; i < stage->n_forecasts; i++)
        if (stage->forecasts[i].mask == mask && strcmp(stage->forecasts[i].kind, mpp_trace_name(e->kind)) == 0)
            add_sum(&out->forecast[i], own_s);
}

/* Events stand in the order of their ends: those inside one come right before it. STACK: [p->n]. */
static void add_events(const struct mpp_stage *stage, const struct mpp_trace_part *p, struct top *stack, struct mpp_trace_summary *out)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->n; i++) {
        const struct mpp_trace_event *e = &p->events[i];
        double whole_s = e->end_s - e->begin_s, own_s = whole_s, wait_s = 0;
        while (n > 0 && stack[n - 1].event->begin_s >= e->begin_s) {
            n--;
            own_s -= stack[n].event->end_s - stack[n].event->begin_s;
            wait_s += stack[n].wait_s;
        }
        if (e->kind == MPP_TRACE_WAIT)
            wait_s = whole_s;
        stack[n++] = (struct top){e, wait_s};
        add_event(stage, e, own_s, whole_s - wait_s, out);
    }
}

void mpp_trace_summarise(const struct mpp_rank *r, struct mpp_trace_part *const part[2], struct mpp_trace_summary *out)
{
    memset(out, 0, (size_t)mpp_trace_summary_bytes(r->stage));
    for (int i = 0; i < 2; i++)
        if (part[i] != NULL) {
            out->step[i] = part[i]->step;
            out->n[i] = part[i]->n;
            out->left_out += part[i]->left_out;
        }
    struct top *stack = calloc((size_t)out->n[1] + 1, sizeof *stack);
    if (part[1] != NULL && stack != NULL) /* without memory for it the table has zeros */
        add_events(r->stage, part[1], stack, out);
    free(stack);
}

/* ---- a stage ------------------------------------------------------------------------------------------ */

struct mpp_trace_table {
    const struct mpp_program *program;
    int64_t step, left_out;
    struct mpp_trace_summary **sum; /* [n_stages], over their ranks */
};

struct mpp_trace_table *mpp_trace_table_new(const struct mpp_program *program)
{
    struct mpp_trace_table *t = calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    t->program = program;
    t->sum = calloc((size_t)program->n_stages, sizeof *t->sum);
    for (int i = 0; t->sum != NULL && i < program->n_stages; i++) {
        t->sum[i] = calloc(1, (size_t)mpp_trace_summary_bytes(program->stages[i]));
        if (t->sum[i] == NULL) {
            mpp_trace_table_free(t);
            return NULL;
        }
    }
    if (t->sum == NULL) {
        free(t);
        return NULL;
    }
    return t;
}

void mpp_trace_table_free(struct mpp_trace_table *table)
{
    if (table == NULL)
        return;
    for (int i = 0; i < table->program->n_stages; i++)
        free(table->sum[i]);
    free(table->sum);
    free(table);
}

static void add_sums(struct mpp_trace_sum *to, const struct mpp_trace_sum *from)
{
    to->count += from->count;
    to->seconds += from->seconds;
}

void mpp_trace_table_add(struct mpp_trace_table *table, int stage, const struct mpp_trace_summary *summary)
{
    struct mpp_trace_summary *sum = table->sum[stage];
    table->step = summary->step[1];
    table->left_out += summary->left_out;
    for (int i = 0; i < MPP_SHARES; i++)
        sum->share[i] += summary->share[i];
    add_sums(&sum->forward, &summary->forward);
    add_sums(&sum->backward, &summary->backward);
    add_sums(&sum->update, &summary->update);
    for (int i = 0; i < table->program->stages[stage]->n_forecasts; i++)
        add_sums(&sum->forecast[i], &summary->forecast[i]);
}

int64_t mpp_trace_table_step(const struct mpp_trace_table *table)
{
    return table->step;
}

int64_t mpp_trace_table_left_out(const struct mpp_trace_table *table)
{
    return table->left_out;
}

/* ---- printing ------------------------------------------------------------------------------------------ */

static void print_shares(const struct mpp_trace_table *t)
{
    printf("profile of step %lld, a rank of each stage on average, in ms\n"
           "stage       step   forward  backward    update  collectives  messages     waits      rest\n", (long long)t->step);
    for (int s = 0; s < t->program->n_stages; s++) {
        const double *x = t->sum[s]->share;
        double scale = 1e3 / mpp_mesh_stage_ranks(t->program->stages[s]);
        printf("%5d %10.3f %9.3f %9.3f %9.3f %12.3f %9.3f %9.3f %9.3f\n", s, x[MPP_SHARE_STEP] * scale, x[MPP_SHARE_FORWARD] * scale,
               x[MPP_SHARE_BACKWARD] * scale, x[MPP_SHARE_UPDATE] * scale, x[MPP_SHARE_COLLECTIVES] * scale,
               x[MPP_SHARE_MESSAGES] * scale, x[MPP_SHARE_WAITS] * scale, x[MPP_SHARE_REST] * scale);
    }
}

/* EXPECTED_S: of one rank; SUM: of N of them. */
static void print_row(const char *what, const struct mpp_trace_sum *sum, int n, double expected_s)
{
    printf("    %-48s %10.3f %10.3f", what, expected_s * 1e3, sum->seconds / n * 1e3);
    if (expected_s > 0)
        printf(" %8.2f", sum->seconds / n / expected_s);
    putchar('\n');
}

static void print_stage(const struct mpp_trace_table *t, int index)
{
    const struct mpp_stage *s = t->program->stages[index];
    const struct mpp_trace_summary *sum = t->sum[index];
    int n = mpp_mesh_stage_ranks(s);
    char what[128];
    printf("stage %d\n", index);
    (void)snprintf(what, sizeof what, "forward, %d micro-batch%s", t->program->micro_batches, t->program->micro_batches == 1 ? "" : "es");
    print_row(what, &sum->forward, n, s->forward_s * t->program->micro_batches);
    (void)snprintf(what, sizeof what, "backward, %d micro-batch%s", t->program->micro_batches, t->program->micro_batches == 1 ? "" : "es");
    print_row(what, &sum->backward, n, s->backward_s * t->program->micro_batches);
    print_row("update", &sum->update, n, s->once_s);
    for (int i = 0; i < s->n_forecasts; i++) {
        const struct mpp_forecast *f = &s->forecasts[i];
        int64_t seen = sum->forecast[i].count / n;
        char axes[96] = "";
        FILE *out = fmemopen(axes, sizeof axes, "w");
        if (out != NULL && f->mask != 0)
            mpp_trace_print_axes(out, s, f->mask);
        if (out != NULL)
            fclose(out);
        (void)snprintf(what, sizeof what, "of these %lld x %s%s%s", (long long)f->count, f->kind, axes[0] != '\0' ? " over " : "", axes);
        if (seen != f->count) {
            size_t at = strlen(what);
            (void)snprintf(what + at, sizeof what - at, " (seen: %lld)", (long long)seen);
        }
        print_row(what, &sum->forecast[i], n, f->seconds);
    }
}

void mpp_trace_table_print(const struct mpp_trace_table *table)
{
    const struct mpp_program *p = table->program;
    print_shares(table);
    if (!(p->step_s > 0))
        return;
    struct mpp_trace_sum step = {1, table->sum[0]->share[MPP_SHARE_STEP]};
    printf("what the plan expects, and what was measured without waits          plan   measured    ratio\n");
    print_row("step, mean of stage 0's ranks, with all waits", &step, mpp_mesh_stage_ranks(p->stages[0]), p->step_s);
    for (int s = 0; s < p->n_stages; s++)
        print_stage(table, s);
}
