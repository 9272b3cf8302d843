/* trace_write.c - all ranks' events as JSON, and where a step goes as a table.
 *
 * The format: "Trace Event Format" of Chrome's tracing (complete events, X; counters, C; metadata, M). A stage is a process
 * there, a rank a thread. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job.h"
#include "json.h"
#include "trace_internal.h"
#include "transport.h"

#define PATH_BYTES 4096
#define ALIGN_ROUNDS 16

/* Seconds of a step by what a rank did, each without what is nested inside. */
enum share { SHARE_STEP, SHARE_FORWARD, SHARE_BACKWARD, SHARE_UPDATE, SHARE_COLLECTIVES, SHARE_MESSAGES, SHARE_WAITS, SHARE_REST,
             SHARES };

/* What a rank tells of its events. */
struct summary {
    int64_t step[2], n[2], left_out; /* the older step first; step 0: none */
    double share[SHARES];            /* of the later one */
};

/* ---- shares ------------------------------------------------------------------------------------------ */

static enum share share_of(int kind)
{
    switch ((enum mpp_trace_kind)kind) {
    case MPP_TRACE_FORWARD: return SHARE_FORWARD;
    case MPP_TRACE_BACKWARD: return SHARE_BACKWARD;
    case MPP_TRACE_UPDATE: return SHARE_UPDATE;
    case MPP_TRACE_SEND:
    case MPP_TRACE_RECEIVE: return SHARE_MESSAGES;
    case MPP_TRACE_ALL_REDUCE:
    case MPP_TRACE_ALL_GATHER:
    case MPP_TRACE_REDUCE_SCATTER:
    case MPP_TRACE_ALL_TO_ALL:
    case MPP_TRACE_SUMS:
    case MPP_TRACE_STAGES: return SHARE_COLLECTIVES;
    case MPP_TRACE_WAIT: return SHARE_WAITS;
    default: return SHARE_REST;
    }
}

/* Events stand in the order of their ends: those nested in one come right before it. STACK: [n], those that nothing ended yet. */
static void add_shares(const struct mpp_trace_part *p, const struct mpp_trace_event **stack, double *share_out)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->n; i++) {
        const struct mpp_trace_event *e = &p->events[i];
        double own_s = e->end_s - e->begin_s;
        while (n > 0 && stack[n - 1]->begin_s >= e->begin_s) {
            n--;
            own_s -= stack[n]->end_s - stack[n]->begin_s;
        }
        stack[n++] = e;
        share_out[share_of(e->kind)] += own_s;
        if (e->kind == MPP_TRACE_STEP)
            share_out[SHARE_STEP] = e->end_s - e->begin_s;
    }
}

static bool is_whole(const struct mpp_trace_part *p)
{
    return p->step > 0 && p->n > 0 && p->events[p->n - 1].kind == MPP_TRACE_STEP;
}

/* The steps of T, the older first; NULL: none. */
static void whole_parts(struct mpp_trace *t, struct mpp_trace_part *out[2])
{
    for (int i = 0; i < 2; i++) {
        struct mpp_trace_part *p = &t->part[i == 0 ? !t->now : t->now];
        out[i] = is_whole(p) ? p : NULL;
    }
    if (out[1] == NULL) {
        out[1] = out[0];
        out[0] = NULL;
    }
}

static void summarise(struct mpp_trace_part *const part[2], struct summary *out)
{
    *out = (struct summary){.left_out = 0};
    for (int i = 0; i < 2; i++)
        if (part[i] != NULL) {
            out->step[i] = part[i]->step;
            out->n[i] = part[i]->n;
            out->left_out += part[i]->left_out;
        }
    const struct mpp_trace_event **stack = calloc((size_t)out->n[1] + 1, sizeof *stack);
    if (part[1] != NULL && stack != NULL) /* without memory for it the table has zeros */
        add_shares(part[1], stack, out->share);
    free(stack);
}

/* ---- one clock ------------------------------------------------------------------------------------------- */

/* How much the clock of RANK is ahead of rank 0's: half-way between a question and its answer, of the fastest of some. 0 where
 * that is less than the way takes, as on one machine. Called by rank 0 and RANK. */
static double clock_ahead_s(struct mpp_rank *r, int rank)
{
    const struct mpp_transport_ops *ops = r->transport->ops;
    double best_s = INFINITY, ahead_s = 0;
    for (int i = 0; i < ALIGN_ROUNDS; i++) {
        double then_s = mpp_clock_s(), other_s = then_s;
        if (r->rank != 0) {
            ops->receive(r, 0, &other_s, sizeof other_s);
            then_s = mpp_clock_s();
            ops->send(r, 0, &then_s, sizeof then_s);
            continue;
        }
        ops->send(r, rank, &then_s, sizeof then_s);
        ops->receive(r, rank, &other_s, sizeof other_s);
        double now_s = mpp_clock_s();
        if (now_s - then_s < best_s) {
            best_s = now_s - then_s;
            ahead_s = other_s - (then_s + now_s) / 2;
        }
    }
    return fabs(ahead_s) > best_s ? ahead_s : 0;
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

struct writer {
    FILE *out;
    const struct mpp_program *program;
    double origin_s; /* of rank 0's clock: the trace's 0 */
    bool more;
};

static void begin_event(struct writer *w)
{
    fputs(w->more ? ",\n" : "\n", w->out);
    w->more = true;
}

/* "data 2 x model 4" */
static void print_axes(FILE *out, const struct mpp_stage *stage, unsigned mask)
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

static void print_text(FILE *out, const char *text)
{
    char escaped[6 * 256];
    char cut[256];
    (void)snprintf(cut, sizeof cut, "%s", text);
    int64_t n = mpp_json_escape(cut, escaped);
    fwrite(escaped, 1, (size_t)n, out);
}

static void print_name(const struct writer *w, const struct mpp_stage *stage, const struct mpp_trace_event *e)
{
    static const char *const names[MPP_TRACE_KINDS] = {"step", "begin", "prologue", "forward", "backward", "update", "report",
                                                       "send", "receive", "all-reduce", "all-gather", "reduce-scatter",
                                                       "all-to-all", "sums of gradients", "sum over stages", "wait"};
    fputs(names[e->kind], w->out);
    if (e->kind == MPP_TRACE_STEP)
        fprintf(w->out, " %d", e->a);
    if (e->kind == MPP_TRACE_PROLOGUE || e->kind == MPP_TRACE_FORWARD || e->kind == MPP_TRACE_BACKWARD)
        fprintf(w->out, " %d", e->b);
    if ((e->kind == MPP_TRACE_FORWARD || e->kind == MPP_TRACE_BACKWARD) && stage->n_chunks > 1)
        fprintf(w->out, " of chunk %d", e->a);
    if (e->kind == MPP_TRACE_SEND || e->kind == MPP_TRACE_RECEIVE) {
        fputc(' ', w->out);
        print_text(w->out, w->program->transfers[e->a].name);
    }
    if (e->kind >= MPP_TRACE_ALL_REDUCE && e->kind <= MPP_TRACE_ALL_TO_ALL) {
        fputs(" over ", w->out);
        print_axes(w->out, stage, (unsigned)e->a);
    }
}

static const char *category_of(int kind)
{
    static const char *const categories[SHARES] = {"rest", "compute", "compute", "update", "collective", "message", "wait", "rest"};
    return categories[share_of(kind)];
}

/* AHEAD_S: of this rank's clock. *FLYING: micro-batches between their forward and their backward pass. */
static void print_event(struct writer *w, int rank, double ahead_s, const struct mpp_trace_event *e, int *flying)
{
    int stage = mpp_mesh_stage_of(w->program, rank);
    double begin_us = (e->begin_s - ahead_s - w->origin_s) * 1e6, end_us = (e->end_s - ahead_s - w->origin_s) * 1e6;
    begin_event(w);
    fputs("{\"name\": \"", w->out);
    print_name(w, w->program->stages[stage], e);
    fprintf(w->out, "\", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f", category_of(e->kind),
            stage, rank, begin_us, end_us - begin_us);
    bool pass = e->kind == MPP_TRACE_FORWARD || e->kind == MPP_TRACE_BACKWARD;
    if (pass)
        fprintf(w->out, ", \"args\": {\"chunk\": %d, \"micro_batch\": %d}", e->a, e->b);
    else if (e->bytes > 0)
        fprintf(w->out, ", \"args\": {\"bytes\": %lld}", (long long)e->bytes);
    fputc('}', w->out);
    if (!pass)
        return;
    *flying += e->kind == MPP_TRACE_FORWARD ? 1 : -1;
    begin_event(w);
    fprintf(w->out, "{\"name\": \"in flight, rank %d\", \"ph\": \"C\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, "
            "\"args\": {\"micro-batches\": %d}}", rank, stage, rank, end_us, *flying);
}

static void print_rank(struct writer *w, int rank, double ahead_s, const struct summary *s, const struct mpp_trace_event *const events[2])
{
    int stage = mpp_mesh_stage_of(w->program, rank);
    if (rank == w->program->stages[stage]->first_rank) {
        begin_event(w);
        fprintf(w->out, "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, \"args\": {\"name\": \"stage %d\"}}", stage, stage);
    }
    begin_event(w);
    fprintf(w->out, "{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"args\": {\"name\": \"rank %d\"}}", stage, rank,
            rank);
    for (int i = 0; i < 2; i++) {
        int flying = 0;
        for (int64_t k = 0; k < s->n[i]; k++)
            print_event(w, rank, ahead_s, &events[i][k], &flying);
    }
}

/* ---- the table ------------------------------------------------------------------------------------------- */

static void print_table(const struct mpp_program *p, int64_t step, const double (*share)[SHARES])
{
    printf("profile of step %lld, a rank of each stage on average, in ms\n"
           "stage       step   forward  backward    update  collectives  messages     waits      rest\n", (long long)step);
    for (int s = 0; s < p->n_stages; s++) {
        const double *x = share[s];
        double scale = 1e3 / mpp_mesh_stage_ranks(p->stages[s]);
        printf("%5d %10.3f %9.3f %9.3f %9.3f %12.3f %9.3f %9.3f %9.3f\n", s, x[SHARE_STEP] * scale, x[SHARE_FORWARD] * scale,
               x[SHARE_BACKWARD] * scale, x[SHARE_UPDATE] * scale, x[SHARE_COLLECTIVES] * scale, x[SHARE_MESSAGES] * scale,
               x[SHARE_WAITS] * scale, x[SHARE_REST] * scale);
    }
    fflush(stdout);
}

/* ---- all ranks ------------------------------------------------------------------------------------------- */

static void send_events(struct mpp_rank *r, bool one_clock)
{
    struct mpp_trace_part *part[2];
    struct summary own;
    whole_parts(r->trace, part);
    summarise(part, &own);
    if (!one_clock)
        (void)clock_ahead_s(r, r->rank);
    r->transport->ops->send(r, 0, &own, sizeof own);
    for (int i = 0; i < 2; i++)
        if (own.n[i] > 0)
            r->transport->ops->send(r, 0, part[i]->events, own.n[i] * (int64_t)sizeof *part[i]->events);
}

/* Rank 0: its own events, then those of each other rank, in the same memory. */
static void collect(struct mpp_rank *r, struct writer *w, bool one_clock, double (*share)[SHARES], int64_t *step_out,
                    int64_t *left_out)
{
    struct mpp_trace_part *part[2];
    struct summary s;
    whole_parts(r->trace, part);
    summarise(part, &s);
    *step_out = s.step[1];
    *left_out = 0;
    const struct mpp_trace_event *own[2] = {s.n[0] > 0 ? part[0]->events : NULL, s.n[1] > 0 ? part[1]->events : NULL};
    const struct mpp_trace_event *first = s.n[0] > 0 ? &own[0][s.n[0] - 1] : s.n[1] > 0 ? &own[1][s.n[1] - 1] : NULL;
    w->origin_s = first != NULL ? first->begin_s : 0;
    for (int rank = 0; rank < r->n_ranks; rank++) {
        struct mpp_trace_event *room[2] = {r->trace->part[0].events, r->trace->part[1].events};
        const struct mpp_trace_event *events[2] = {rank == 0 ? own[0] : room[0], rank == 0 ? own[1] : room[1]};
        double ahead_s = rank > 0 && !one_clock ? clock_ahead_s(r, rank) : 0;
        if (rank > 0) {
            r->transport->ops->receive(r, rank, &s, sizeof s);
            for (int i = 0; i < 2; i++)
                if (s.n[i] > 0)
                    r->transport->ops->receive(r, rank, room[i], s.n[i] * (int64_t)sizeof *room[i]);
        }
        print_rank(w, rank, ahead_s, &s, events);
        *left_out += s.left_out;
        for (int k = 0; k < SHARES; k++)
            share[mpp_mesh_stage_of(r->program, rank)][k] += s.share[k];
    }
}

int mpp_trace_write(struct mpp_rank *r, const char *path, struct mpp_error *error)
{
    const struct mpp_local *local = r->impl;
    bool one_clock = local->job->local_ranks == r->n_ranks;
    char part[PATH_BYTES];
    int64_t step, left_out;
    if (r->rank != 0) {
        send_events(r, one_clock);
        return MPP_EXIT_OK;
    }
    (void)snprintf(part, sizeof part, "%.4000s.part", path);
    double (*share)[SHARES] = calloc((size_t)r->program->n_stages, sizeof *share);
    struct writer w = {.out = fopen(share != NULL ? part : "/dev/null", "we"), .program = r->program};
    int code = w.out != NULL && share != NULL ? MPP_EXIT_OK : mpp_error_system(error, part, share != NULL ? errno : ENOMEM);
    if (w.out == NULL || share == NULL) { /* the others send: the job ends */
        if (w.out != NULL)
            fclose(w.out);
        free(share);
        mpp_fail(r, code, "%s", error->text);
    }
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [", w.out);
    collect(r, &w, one_clock, share, &step, &left_out);
    fputs("\n]}\n", w.out);
    bool ok = fflush(w.out) == 0 && !ferror(w.out);
    int why = errno;
    if (fclose(w.out) != 0 && ok) {
        ok = false;
        why = errno;
    }
    if (ok && step > 0 && rename(part, path) != 0) {
        ok = false;
        why = errno;
    }
    if (!ok || step == 0)
        (void)unlink(part);
    if (ok && step > 0) {
        print_table(r->program, step, (const double (*)[SHARES])share);
        printf("its trace and that of the step before are in %s\n", path);
    }
    if (left_out > 0)
        mpp_note("%s: of steps with more events than %d on a rank the last %lld are left out", path, MPP_TRACE_EVENTS, (long long)left_out);
    free(share);
    return ok ? MPP_EXIT_OK : mpp_error_system(error, path, why);
}
