/* trace_write.c - all ranks' events as JSON.
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
#include "trace_table.h"
#include "transport.h"
#include "waits.h"

#define PATH_BYTES 4096
#define ALIGN_ROUNDS 16

/* ---- steps ------------------------------------------------------------------------------------------- */

/* The steps of T, the older first; NULL: none. */
static void whole_parts(struct mpp_trace *t, struct mpp_trace_part *out[2])
{
    for (int i = 0; i < 2; i++) {
        struct mpp_trace_part *p = &t->part[i == 0 ? !t->now : t->now];
        out[i] = p->done ? p : NULL;
    }
    if (out[1] == NULL) {
        out[1] = out[0];
        out[0] = NULL;
    }
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
    fputs(mpp_trace_name(e->kind), w->out);
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
        mpp_trace_print_axes(w->out, stage, (unsigned)e->a);
    }
}

static const char *category_of(int kind)
{
    static const char *const categories[MPP_SHARES] = {"rest", "compute", "compute", "update", "collective", "message", "wait", "rest"};
    return categories[mpp_trace_share_of(kind)];
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
        fprintf(w->out, ", \"tdur\": %.3f, \"args\": {\"chunk\": %d, \"micro_batch\": %d}", e->cpu_s * 1e6, e->a, e->b);
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

static void print_rank(struct writer *w, int rank, double ahead_s, const struct mpp_trace_summary *s,
                       const struct mpp_trace_event *const events[2])
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

/* ---- all ranks ------------------------------------------------------------------------------------------- */

static void send_events(struct mpp_rank *r, struct mpp_trace_summary *own, bool one_clock)
{
    struct mpp_trace_part *part[2];
    whole_parts(r->trace, part);
    mpp_trace_summarise(r, part, own);
    if (!one_clock)
        (void)clock_ahead_s(r, r->rank);
    r->transport->ops->send(r, 0, own, mpp_trace_summary_bytes(r->stage));
    for (int i = 0; i < 2; i++)
        if (own->n[i] > 0)
            r->transport->ops->send(r, 0, part[i]->events, own->n[i] * (int64_t)sizeof *part[i]->events);
}

/* Rank 0: its own events, then those of each other rank, in the same memory. ONE: room for a summary. */
static void collect(struct mpp_rank *r, struct writer *w, bool one_clock, struct mpp_trace_summary *one, struct mpp_trace_table *table)
{
    struct mpp_trace_part *part[2];
    whole_parts(r->trace, part);
    mpp_trace_summarise(r, part, one);
    const struct mpp_trace_event *own[2] = {part[0] != NULL ? part[0]->events : NULL, part[1] != NULL ? part[1]->events : NULL};
    for (int i = 1; i >= 0; i--)
        if (one->n[i] > 0)
            w->origin_s = own[i][one->n[i] - 1].begin_s;
    for (int rank = 0; rank < r->n_ranks; rank++) {
        struct mpp_trace_event *room[2] = {r->trace->part[0].events, r->trace->part[1].events};
        const struct mpp_trace_event *events[2] = {rank == 0 ? own[0] : room[0], rank == 0 ? own[1] : room[1]};
        int stage = mpp_mesh_stage_of(r->program, rank);
        double ahead_s = rank > 0 && !one_clock ? clock_ahead_s(r, rank) : 0;
        if (rank > 0) {
            r->transport->ops->receive(r, rank, one, mpp_trace_summary_bytes(r->program->stages[stage]));
            for (int i = 0; i < 2; i++)
                if (one->n[i] > 0)
                    r->transport->ops->receive(r, rank, room[i], one->n[i] * (int64_t)sizeof *room[i]);
        }
        print_rank(w, rank, ahead_s, one, events);
        mpp_trace_table_add(table, stage, one);
    }
}

/* Ends FILE, which becomes PATH where there is something in it. */
static int close_file(FILE *file, const char *part, const char *path, bool some, struct mpp_error *error)
{
    bool ok = fflush(file) == 0 && !ferror(file);
    int why = errno;
    if (fclose(file) != 0 && ok) {
        ok = false;
        why = errno;
    }
    if (ok && some && rename(part, path) != 0) {
        ok = false;
        why = errno;
    }
    if (!ok || !some)
        (void)unlink(part);
    return ok ? MPP_EXIT_OK : mpp_error_system(error, path, why);
}

/* Rank 0. */
static int write_all(struct mpp_rank *r, const char *path, struct mpp_trace_summary *one, bool one_clock, struct mpp_error *error)
{
    char part[PATH_BYTES];
    (void)snprintf(part, sizeof part, "%.4000s.part", path);
    struct mpp_trace_table *table = mpp_trace_table_new(r->program);
    struct writer w = {.program = r->program};
    if (table == NULL || (w.out = fopen(part, "we")) == NULL) { /* the others send: the job ends */
        int code = mpp_error_system(error, part, table == NULL ? ENOMEM : errno);
        mpp_trace_table_free(table);
        mpp_fail(r, code, "%s", error->text);
    }
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [", w.out);
    collect(r, &w, one_clock, one, table);
    fputs("\n]}\n", w.out);
    int64_t step = mpp_trace_table_step(table), left_out = mpp_trace_table_left_out(table);
    int code = close_file(w.out, part, path, step > 0, error);
    mpp_wait_begin(r, MPP_WAIT_OUTPUT, 0);
    if (code == MPP_EXIT_OK && step > 0) {
        mpp_trace_table_print(table);
        printf("the trace of the last steps is in %s\n", path);
        fflush(stdout);
    }
    if (code == MPP_EXIT_OK && step <= 0)
        mpp_note("--profile: no step was taken, so %s is not written", path);
    if (code == MPP_EXIT_OK && left_out > 0)
        mpp_note("%s: of steps with more than %d events on a rank the last %lld are left out", path, MPP_TRACE_EVENTS,
                 (long long)left_out);
    mpp_wait_end(r);
    mpp_trace_table_free(table);
    return code;
}

int mpp_trace_write(struct mpp_rank *r, const char *path, struct mpp_error *error)
{
    const struct mpp_local *local = r->impl;
    bool one_clock = local->job->local_ranks == r->n_ranks;
    int code = MPP_EXIT_OK;
    int64_t bytes = 0;
    for (int i = 0; i < r->program->n_stages; i++) {
        int64_t own = mpp_trace_summary_bytes(r->program->stages[i]);
        bytes = own > bytes ? own : bytes;
    }
    struct mpp_trace_summary *one = calloc(1, (size_t)bytes);
    if (one == NULL)
        code = mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: out of memory for --profile", r->rank);
    int worst = mpp_agreement(r, code, error);
    if (worst != MPP_EXIT_OK) {
        free(one);
        mpp_leave(r, worst);
    }
    if (r->rank == 0)
        code = write_all(r, path, one, one_clock, error);
    else
        send_events(r, one, one_clock);
    free(one);
    return code;
}
