/* export_trace.c - the simulated schedule as a trace, with the pieces of each pass inside. */
#include <string.h>

#include "codegen/report_html.h"
#include "inspect/export.h"
#include "inspect/trace_read.h"
#include "ir/op.h"
#include "planner/timeline.h"

/* Of more passes a step of fewer micro-batches is simulated instead; of more pieces only some passes show theirs. */
static const int64_t MOST_PASSES = 200000, MOST_PIECES = 250000;

enum { N_PARTS = MPP_PART_UPDATE + 1 };

/* What a pass consists of: names, categories and arguments as JSON, made once. */
struct piece {
    const char *text;             /* "\"name\": ..., \"cat\": ..., \"args\": {...}" */
    int64_t ps;
    bool receives;
};

struct list {
    struct piece *piece;
    int n;
    size_t cap;
    int64_t ps;                   /* of all */
};

struct trace {
    struct report r;              /* seen at the stage that is written */
    FILE *out;
    bool more;
    struct mpp_schedule schedule;
    int chunks;                   /* that the stage's graph holds */
    struct list *list;            /* [N_PARTS * chunks] */
    bool few;                     /* pieces of the first and the last micro-batch alone */
    int stage, rank;
    int64_t free_ps;              /* the stage has nothing more to do from here on */
    int flying;                   /* micro-batches between their forward and their backward pass */
};

/* ---- what passes consist of ---- */

static const char *quoted(struct mpp_arena *arena, const char *text)
{
    struct mpp_html h = {.out = {.arena = arena}};
    mpp_html_text(&h, NULL, text);
    return mpp_text_string(&h.out);
}

static const char *comm_text(const struct report *r, const struct mpp_comm *c)
{
    bool receive = strcmp(c->kind, "receive") == 0;
    const char *name = receive ? mpp_arena_printf(r->arena, "receive %s", c->tensor)
                               : mpp_arena_printf(r->arena, "%s over %s", c->kind, mpp_trace_axes(r->arena, r->mesh, c->mask));
    return mpp_arena_printf(r->arena, "\"name\": %s, \"cat\": \"%s\", \"args\": {\"bytes\": %lld, \"of\": %s, \"role\": \"%s\", \"why\": %s}",
                            quoted(r->arena, name), receive ? "message" : "collective", (long long)c->bytes, quoted(r->arena, c->tensor),
                            c->role, quoted(r->arena, c->reason ? c->reason : ""));
}

/* A kernel, or what a copy does by itself before one. */
static const char *kernel_text(const struct report *r, const struct mpp_piece *p)
{
    const struct mpp_group *group = &r->g->groups[p->group];
    const struct mpp_gop *op = &r->g->ops[group->ops[0]];
    if (p->kind == MPP_PIECE_STEP)
        return mpp_arena_printf(r->arena, "\"name\": %s, \"cat\": \"kernel\", \"args\": {\"op\": \"%s\", \"ops\": 0}",
                                quoted(r->arena, mpp_arena_printf(r->arena, "copy before %s", op->name)),
                                mpp_step_name(r->stage->copies[p->copy].steps[p->step].kind));
    return mpp_arena_printf(r->arena, "\"name\": %s, \"cat\": \"kernel\", \"args\": {\"op\": \"%s\", \"ops\": %d}", quoted(r->arena, op->name),
                            mpp_op_info(op->kind)->name, group->n_ops);
}

static void add(struct mpp_arena *arena, struct list *l, const char *text, int64_t ps, bool receives)
{
    l->piece = mpp_arena_grow(arena, l->piece, &l->cap, (size_t)l->n + 1, sizeof *l->piece);
    l->piece[l->n++] = (struct piece){text, ps, receives};
    l->ps += ps;
}

static void list_pieces(struct trace *t)
{
    const struct report *r = &t->r;
    int n;
    const struct mpp_piece *p = mpp_plan_timeline(r->arena, r->cluster, r->plan, t->stage, &n);
    t->chunks = r->plan->pipeline.chunks;
    t->list = mpp_arena_array(r->arena, N_PARTS * t->chunks, struct list);
    for (int i = 0; i < n; i++) {
        const struct mpp_group *group = &r->g->groups[p[i].group];
        bool pass = p[i].part == MPP_PART_FORWARD || p[i].part == MPP_PART_BACKWARD;
        int chunk = pass && t->chunks > 1 ? r->g->ops[group->ops[0]].chunk : 0;
        struct list *l = &t->list[(int)p[i].part * t->chunks + chunk];
        for (int k = 0; k < p[i].n_comms; k++) {
            const struct mpp_comm *c = &r->stage->collectives[p[i].comm + k];
            bool receive = p[i].kind == MPP_PIECE_RECEIVE; /* interleaved, several messages are one piece */
            add(r->arena, l, comm_text(r, c), receive ? p[i].cost_ps : c->cost_ps, receive);
        }
        if (p[i].n_comms == 0 && p[i].cost_ps > 0)
            add(r->arena, l, kernel_text(r, &p[i]), p[i].cost_ps, false);
    }
}

/* ---- events ---- */

static void begin_event(struct trace *t)
{
    fputs(t->more ? ",\n" : "\n", t->out);
    t->more = true;
}

/* TEXT: name and category. Times are in microseconds, to the picosecond. */
static void put_event(struct trace *t, const char *text, int64_t begin_ps, int64_t end_ps)
{
    begin_event(t);
    fprintf(t->out, "{\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.6f, \"dur\": %.6f, %s}", t->stage, t->rank, (double)begin_ps * 1e-6,
            (double)(end_ps - begin_ps) * 1e-6, text);
}

static void put_wait(struct trace *t, int64_t begin_ps, int64_t end_ps)
{
    if (end_ps > begin_ps)
        put_event(t, "\"name\": \"wait\", \"cat\": \"wait\"", begin_ps, end_ps);
}

/* L from BEGIN_PS to END_PS, which its pieces share by their times; what it waited for, from FREE_PS on, came in by the first if
 * that receives. */
static void put_list(struct trace *t, const struct list *l, int64_t free_ps, int64_t begin_ps, int64_t end_ps)
{
    int64_t at = 0;
    bool received = l->n > 0 && l->piece[0].receives;
    if (!received)
        put_wait(t, free_ps, begin_ps);
    for (int i = 0; i < l->n; i++) {
        double scale = l->ps > 0 ? (double)(end_ps - begin_ps) / (double)l->ps : 0;
        int64_t from = begin_ps + (int64_t)((double)at * scale), to = begin_ps + (int64_t)((double)(at + l->piece[i].ps) * scale);
        at += l->piece[i].ps;
        put_event(t, l->piece[i].text, i == 0 && received ? free_ps : from, to < end_ps ? to : end_ps);
        if (i == 0 && received)
            put_wait(t, free_ps, begin_ps);
    }
}

static bool detailed(const struct trace *t, int64_t micro_batch)
{
    return !t->few || micro_batch == 0 || micro_batch == t->schedule.micro_batches - 1;
}

static void put_pass(struct trace *t, const struct mpp_schedule_event *e)
{
    bool forward = e->what == MPP_EVENT_FORWARD;
    struct mpp_arena *scratch = mpp_arena_scratch(t->r.arena);
    const char *of = t->schedule.chunks > 1 ? mpp_arena_printf(scratch, " of chunk %d", e->chunk) : "";
    int part = forward ? MPP_PART_FORWARD : MPP_PART_BACKWARD;
    put_event(t, mpp_arena_printf(scratch, "\"name\": \"%s %lld%s\", \"cat\": \"compute\", \"args\": {\"chunk\": %d, \"micro_batch\": %lld}",
                                  forward ? "forward" : "backward", (long long)e->micro_batch, of, e->chunk, (long long)e->micro_batch),
              t->free_ps, e->end_ps);
    if (detailed(t, e->micro_batch))
        put_list(t, &t->list[part * t->chunks + (t->chunks > 1 ? e->chunk : 0)], t->free_ps, e->begin_ps, e->end_ps);
    else
        put_wait(t, t->free_ps, e->begin_ps);
    t->flying += forward ? 1 : -1;
    begin_event(t);
    fprintf(t->out, "{\"name\": \"in flight, rank %d\", \"ph\": \"C\", \"pid\": %d, \"tid\": %d, \"ts\": %.6f, \"args\": "
            "{\"micro-batches\": %d}}", t->rank, t->stage, t->rank, (double)e->end_ps * 1e-6, t->flying);
    t->free_ps = e->end_ps;
    mpp_arena_free(scratch);
}

/* What comes once per step is one event, as trainers have it: what the stage does by itself, the wait for the others, the rest. */
static void put_update(struct trace *t, const struct mpp_schedule_event *once, const struct mpp_schedule_event *update)
{
    if (!once && !update)
        return;
    int64_t end = update ? update->end_ps : once->end_ps;
    put_event(t, "\"name\": \"update\", \"cat\": \"update\"", t->free_ps, end);
    if (once)
        put_list(t, &t->list[MPP_PART_ONCE * t->chunks], t->free_ps, once->begin_ps, once->end_ps);
    t->free_ps = once ? once->end_ps : t->free_ps;
    if (!update)
        return;
    if (update->begin_ps > t->free_ps) {
        put_event(t, "\"name\": \"sum over stages\", \"cat\": \"collective\"", t->free_ps, update->begin_ps);
        put_wait(t, t->free_ps, update->begin_ps);
    }
    put_list(t, &t->list[MPP_PART_UPDATE * t->chunks], update->begin_ps, update->begin_ps, update->end_ps);
}

static void put_stage(struct trace *t, const struct mpp_schedule_event *e, int64_t n, int64_t step_ps)
{
    const struct mpp_schedule_event *once = NULL, *update = NULL;
    t->rank = t->r.stage->first_device;
    t->free_ps = 0;
    t->flying = 0;
    begin_event(t);
    fprintf(t->out, "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, \"args\": {\"name\": \"stage %d\"}}", t->stage, t->stage);
    begin_event(t);
    fprintf(t->out, "{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"args\": {\"name\": \"rank %d\"}}", t->stage, t->rank,
            t->rank);
    put_event(t, "\"name\": \"step 1\", \"cat\": \"rest\"", 0, step_ps);
    for (int64_t i = 0; i < n; i++) {
        if (e[i].stage != t->stage)
            continue;
        if (e[i].what == MPP_EVENT_ONCE)
            once = &e[i];
        else if (e[i].what == MPP_EVENT_UPDATE)
            update = &e[i];
        else
            put_pass(t, &e[i]);
    }
    put_update(t, once, update);
}

/* ---- the file ---- */

/* How many pieces passes have, all micro-batches. */
static int64_t count_pieces(const struct report *r, int64_t micro_batches)
{
    int64_t n = 0;
    for (int i = 0; i < r->plan->n_stages; i++) {
        const struct mpp_stage *s = &r->plan->stages[i];
        n += micro_batches * (s->graph->n_groups + s->n_collectives);
    }
    return n;
}

static void put_head(struct trace *t, int64_t step_ps)
{
    const struct report *r = &t->r;
    const struct mpp_model *m = r->whole->model;
    fprintf(t->out, "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"what\": \"predicted by mpplan\", \"model\": %s, \"preset\": %s, "
                    "\"cluster\": %s, \"devices\": %d, \"schedule\": \"%s\", \"micro_batches\": %lld, \"micro_batches_shown\": %lld, "
                    "\"inside_passes\": \"%s\", \"step_ps\": %lld},\n\"traceEvents\": [",
            quoted(r->arena, m->name), m->preset ? quoted(r->arena, m->preset) : "null", quoted(r->arena, r->cluster->name),
            r->cluster->n_devices, r->plan->n_stages > 1 ? r->plan->schedule : "accumulate", (long long)r->plan->micro_batches,
            (long long)t->schedule.micro_batches, t->few ? "first and last micro-batch" : "all", (long long)step_ps);
}

void mpp_export_trace(const struct mpp_plandir *d, FILE *out)
{
    struct mpp_arena *arena = mpp_arena_scratch(d->graph->arena);
    const struct mpp_plan *plan = d->fitted.plan;
    struct trace t = {.r = {.arena = arena, .whole = d->graph, .cluster = d->cluster, .plan = plan, .out = out}, .out = out,
                      .schedule = plan->pipeline};
    struct mpp_stage_time *time = mpp_arena_array(arena, plan->n_stages, struct mpp_stage_time);
    const struct mpp_schedule_event *e;
    int64_t n, most = MOST_PASSES / (2 * (int64_t)plan->n_stages * t.schedule.chunks);
    for (int i = 0; i < plan->n_stages; i++)
        time[i] = plan->stages[i].time;
    most = most > plan->n_stages ? most - most % plan->n_stages : plan->n_stages;
    t.schedule.micro_batches = t.schedule.micro_batches < most ? t.schedule.micro_batches : most;
    t.few = count_pieces(&t.r, t.schedule.micro_batches) > MOST_PIECES;
    int64_t step_ps = mpp_schedule_simulate(arena, &t.schedule, time, &e, &n);
    put_head(&t, step_ps);
    for (t.stage = 0; t.stage < plan->n_stages; t.stage++) {
        t.r = mpp_report_at(&t.r, t.stage);
        list_pieces(&t);
        put_stage(&t, e, n, step_ps);
    }
    fputs("\n]}\n", out);
    mpp_arena_free(arena);
}
