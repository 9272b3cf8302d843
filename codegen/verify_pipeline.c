/* verify_pipeline.c - the stages of a plan side by side: nobody waits for ever, nothing is lost or overwritten.
 *
 * Each stage is a list of pieces of work, and a piece a list of messages: what it receives, then what it sends. Messages of
 * one transfer arrive in order, so that counting them is enough to know which is which. Who can go on does not depend on who
 * went first: if one order of running the stages comes to the end, all do. */
#include <string.h>

#include "codegen/program.h"

enum { ROUNDS = 8 };              /* of as many micro-batches as there are stages */

struct message {
    int transfer;
    bool sends;
};

struct messages {                 /* of a stage's chunk in one phase */
    int n;
    size_t cap;
    struct message *list;
};

struct ring {
    int64_t sent, received;
    int64_t *micro_batch;         /* [depth] of what lies in place k */
    int64_t most;                 /* that were on their way at once */
};

struct chunk {
    struct messages of[4];        /* by phase */
    int64_t forwards, backwards;  /* done */
};

struct actor {                    /* a stage */
    struct chunk *chunk;          /* [n_chunks]; the update is the first's */
    int64_t piece;                /* it works on; list->n: the update, list->n + 1: at the end */
    int message;                  /* the next of this piece */
};

struct pipeline {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    int n_stages;
    const struct mpp_pipeline_list *list;
    const struct mpp_transfers *transfers;
    bool unbounded;               /* rings are never full */
    struct actor *actor;
    struct ring *ring;            /* by transfer */
};

static enum mpp_phase phase_of(const struct pipeline *p, int stage)
{
    const struct mpp_pipeline_list *list = &p->list[stage];
    int64_t k = p->actor[stage].piece;
    return k == list->n ? MPP_PHASE_UPDATE : list->work[k].what == MPP_EVENT_FORWARD ? MPP_PHASE_FORWARD : MPP_PHASE_BACKWARD;
}

/* Of the piece that STAGE works on. */
static struct chunk *chunk_of(const struct pipeline *p, int stage)
{
    int64_t k = p->actor[stage].piece;
    return &p->actor[stage].chunk[k == p->list[stage].n ? 0 : p->list[stage].work[k].chunk];
}

static int64_t micro_batch_of(const struct pipeline *p, int stage)
{
    int64_t k = p->actor[stage].piece;
    return k == p->list[stage].n ? 0 : p->list[stage].work[k].micro_batch;
}

static const struct messages *messages_of(const struct pipeline *p, int stage)
{
    return &chunk_of(p, stage)->of[phase_of(p, stage)];
}

/* That STAGE waits to send or receive. */
static const struct message *next_of(const struct pipeline *p, int stage)
{
    return &messages_of(p, stage)->list[p->actor[stage].message];
}

static void add_message(struct pipeline *p, int stage, int chunk, enum mpp_phase phase, int transfer, bool sends)
{
    struct messages *m = &p->actor[stage].chunk[chunk].of[phase];
    m->list = mpp_arena_grow(p->arena, m->list, &m->cap, (size_t)m->n + 1, sizeof *m->list);
    m->list[m->n++] = (struct message){transfer, sends};
}

/* As lowering orders them: a piece receives first and sends last; in the update they come as they stand. */
static void open_pipeline(struct pipeline *p)
{
    p->actor = mpp_arena_array(p->arena, p->n_stages, struct actor);
    p->ring = mpp_arena_array(p->arena, p->transfers->n, struct ring);
    for (int i = 0; i < p->n_stages; i++)
        p->actor[i].chunk = mpp_arena_array(p->arena, p->list[i].n_chunks, struct chunk);
    for (int sends = 0; sends < 2; sends++)
        for (int k = 0; k < p->transfers->n; k++) {
            const struct mpp_transfer_line *line = &p->transfers->line[k];
            if (!line->once)
                add_message(p, sends ? line->from : line->to, sends ? line->from_chunk : line->to_chunk, line->phase, k, sends);
        }
    for (int k = 0; k < p->transfers->n; k++) {
        const struct mpp_transfer_line *line = &p->transfers->line[k];
        p->ring[k].micro_batch = mpp_arena_array(p->arena, p->unbounded ? 0 : line->depth, int64_t);
        if (!line->once)
            continue;
        add_message(p, line->from, 0, line->phase, k, true);
        add_message(p, line->to, 0, line->phase, k, false);
    }
}

static bool ends(const struct pipeline *p, int stage)
{
    return p->actor[stage].piece > p->list[stage].n;
}

/* Can STAGE's next message go? */
static bool can_go(const struct pipeline *p, const struct message *m)
{
    const struct ring *r = &p->ring[m->transfer];
    int64_t under_way = r->sent - r->received;
    return m->sends ? p->unbounded || under_way < p->transfers->line[m->transfer].depth : under_way > 0;
}

static enum mpp_status wrong(const struct pipeline *p, const char *what)
{
    mpp_diag_error(p->diag, (struct mpp_loc){0}, "internal error: the pipeline's schedule is wrong: %s", what);
    return MPP_INVALID;
}

static enum mpp_status pass(struct pipeline *p, int stage, const struct message *m)
{
    const struct mpp_transfer_line *line = &p->transfers->line[m->transfer];
    struct ring *r = &p->ring[m->transfer];
    int64_t mb = micro_batch_of(p, stage), depth = line->depth;
    if (m->sends) {
        if (!p->unbounded)
            r->micro_batch[r->sent % depth] = mb;
        r->sent++;
        r->most = r->sent - r->received > r->most ? r->sent - r->received : r->most;
        return MPP_OK;
    }
    int64_t got = p->unbounded ? mb : r->micro_batch[r->received % depth];
    r->received++;
    if (got != mb)
        return wrong(p, mpp_arena_printf(p->arena, "stage %d gets %s of micro-batch %lld for micro-batch %lld", stage, line->name,
                                         (long long)got, (long long)mb));
    return MPP_OK;
}

/* Before a forward: its place is free. Before a backward: its forward has been. */
static enum mpp_status begin_piece(struct pipeline *p, int stage)
{
    const struct mpp_pipeline_list *list = &p->list[stage];
    const struct chunk *c = chunk_of(p, stage);
    int64_t piece = p->actor[stage].piece, mb = micro_batch_of(p, stage);
    if (piece >= list->n)
        return MPP_OK;
    bool forward = list->work[piece].what == MPP_EVENT_FORWARD;
    int64_t in_turn = forward ? c->forwards : c->backwards, slots = list->slots[list->work[piece].chunk];
    if (mb != in_turn)
        return wrong(p, mpp_arena_printf(p->arena, "stage %d runs the %s of micro-batch %lld where that of %lld is due", stage,
                                         forward ? "forward" : "backward", (long long)mb, (long long)in_turn));
    if (!forward && mb >= c->forwards)
        return wrong(p, mpp_arena_printf(p->arena, "stage %d runs the backward of micro-batch %lld before its forward", stage, (long long)mb));
    if (forward && mb - c->backwards >= slots)
        return wrong(p, mpp_arena_printf(p->arena, "stage %d has places for %lld micro-batches in flight, and %lld are", stage,
                                         (long long)slots, (long long)(mb - c->backwards + 1)));
    return MPP_OK;
}

/* Let STAGE go on to the end of its piece; *OUT says whether it got there. */
static enum mpp_status advance(struct pipeline *p, int stage, bool *out)
{
    struct actor *a = &p->actor[stage];
    enum mpp_phase phase = phase_of(p, stage);
    const struct messages *m = messages_of(p, stage);
    *out = false;
    if (a->message == 0)
        MPP_TRY(begin_piece(p, stage));
    for (; a->message < m->n; a->message++) {
        if (!can_go(p, &m->list[a->message]))
            return MPP_OK;
        MPP_TRY(pass(p, stage, &m->list[a->message]));
    }
    chunk_of(p, stage)->forwards += phase == MPP_PHASE_FORWARD;
    chunk_of(p, stage)->backwards += phase == MPP_PHASE_BACKWARD;
    a->message = 0;
    a->piece++;
    *out = true;
    return MPP_OK;
}

/* Run all stages but STOPPED (-1: none) as far as they come. */
static enum mpp_status run(struct pipeline *p, int stopped)
{
    for (bool any = true; any;) {
        any = false;
        for (int i = 0; i < p->n_stages; i++)
            for (bool done = i != stopped; done && !ends(p, i);) {
                MPP_TRY(advance(p, i, &done));
                any = any || done;
            }
        for (int i = 0; i < p->n_stages && !any; i++) /* a message may have gone though its piece has not ended */
            if (i != stopped && !ends(p, i))
                any = can_go(p, next_of(p, i));
    }
    return MPP_OK;
}

/* ---- who waits for whom ---- */

/* The stage that STAGE waits for; appends the reason to *TEXT. */
static int waits_for(const struct pipeline *p, int stage, const char **text)
{
    const struct message *m = next_of(p, stage);
    const struct mpp_transfer_line *line = &p->transfers->line[m->transfer];
    static const char *const phase_names[] = {"prologue", "forward", "backward", "update"};
    const char *piece = line->once ? "update" : mpp_arena_printf(p->arena, "%s of micro-batch %lld", phase_names[line->phase],
                                                               (long long)micro_batch_of(p, stage));
    *text = mpp_arena_printf(p->arena, "%s%sstage %d, in the %s, waits %s stage %d %s %s", *text, **text ? "; " : "", stage, piece,
                             m->sends ? "for room to send" : "for", m->sends ? line->to : line->from, m->sends ? "the next" : "to send",
                             line->name);
    return m->sends ? line->to : line->from;
}

static enum mpp_status stuck(const struct pipeline *p, int stage)
{
    bool *seen = mpp_arena_array(p->arena, p->n_stages, bool);
    const char *ignored = "", *text = "";
    int at = stage;
    while (!ends(p, at) && !seen[at]) {     /* to where the circle begins */
        seen[at] = true;
        at = waits_for(p, at, &ignored);
    }
    memset(seen, 0, (size_t)p->n_stages * sizeof *seen);
    if (ends(p, at))
        text = ignored;
    while (!ends(p, at) && !seen[at]) {
        seen[at] = true;
        at = waits_for(p, at, &text);
    }
    return wrong(p, mpp_arena_printf(p->arena, "%s%s", text, ends(p, at) ? ", which has come to its end" : ""));
}

/* The first stage that has not come to its end; -1. */
static int first_stuck(const struct pipeline *p)
{
    for (int i = 0; i < p->n_stages; i++)
        if (!ends(p, i))
            return i;
    return -1;
}

enum mpp_status mpp_pipeline_run(struct mpp_arena *arena, struct mpp_diag *diag, int n_stages,
                                 const struct mpp_pipeline_list *list, const struct mpp_transfers *transfers)
{
    struct pipeline p = {.arena = arena, .diag = diag, .n_stages = n_stages, .list = list, .transfers = transfers};
    open_pipeline(&p);
    MPP_TRY(run(&p, -1));
    if (first_stuck(&p) >= 0)
        return stuck(&p, first_stuck(&p));
    for (int i = 0; i < n_stages; i++)
        for (int c = 0; c < list[i].n_chunks; c++) {
            const struct chunk *x = &p.actor[i].chunk[c];
            if (x->forwards != x->backwards)
                return wrong(&p, mpp_arena_printf(arena, "stage %d runs %lld forwards and %lld backwards", i,
                                                  (long long)x->forwards, (long long)x->backwards));
        }
    for (int k = 0; k < transfers->n; k++)
        if (p.ring[k].sent != p.ring[k].received)
            return wrong(&p, mpp_arena_printf(arena, "%s is sent to stage %d %lld times and received %lld times",
                                              transfers->line[k].name, transfers->line[k].to, (long long)p.ring[k].sent,
                                              (long long)p.ring[k].received));
    return MPP_OK;
}

/* ---- depths ---- */

/* How far the senders of what stage TO receives can be ahead of it: it goes on only when nobody else can. */
static enum mpp_status find_most(struct pipeline *p, int to)
{
    for (bool done = true; done && !ends(p, to);) {
        MPP_TRY(run(p, to));
        MPP_TRY(advance(p, to, &done));
    }
    return MPP_OK;
}

static enum mpp_status choose_depths(struct mpp_arena *arena, struct mpp_diag *diag, int n_stages,
                                     const struct mpp_pipeline_list *list, struct mpp_transfers *transfers)
{
    for (int to = 0; to < n_stages; to++) {
        struct pipeline p = {.arena = arena, .diag = diag, .n_stages = n_stages, .list = list, .transfers = transfers,
                             .unbounded = true};
        open_pipeline(&p);
        MPP_TRY(find_most(&p, to));
        for (int k = 0; k < transfers->n; k++) {
            struct mpp_transfer_line *line = &transfers->line[k];
            int apart = (line->to - line->from) * (line->phase == MPP_PHASE_BACKWARD ? -1 : 1);
            int enough = 1 + (apart + n_stages) % n_stages; /* interleaved, the first stage follows the last */
            if (line->to == to)
                line->depth = p.ring[k].most < 1 ? 1 : p.ring[k].most < enough ? (int)p.ring[k].most : enough;
        }
    }
    return MPP_OK;
}

/* Does somebody wait for room in a ring? Those rings become twice as deep. */
static bool deepen(const struct pipeline *p, struct mpp_transfers *transfers)
{
    bool any = false;
    for (int i = 0; i < p->n_stages; i++) {
        if (ends(p, i))
            continue;
        const struct message *m = next_of(p, i);
        if (m->sends)
            transfers->line[m->transfer].depth *= 2;
        any = any || m->sends;
    }
    return any;
}

/* The schedule with fewer micro-batches, in which all happens that does in S. Before, between and after the first backwards stages
 * take turns that repeat with each S micro-batches (schedule.h): of a warm-up that ends within two and a half such rounds, a few
 * rounds, and a cool-down as long, the rounds between are left out. */
static struct mpp_schedule shortened(const struct mpp_schedule *s)
{
    struct mpp_schedule out = *s;
    if (s->micro_batches / s->stages > ROUNDS)
        out.micro_batches = (int64_t)ROUNDS * s->stages + s->micro_batches % s->stages;
    return out;
}

void mpp_pipeline_slots(const struct mpp_schedule *schedule, int stage, int64_t *out)
{
    const struct mpp_schedule short_one = shortened(schedule), *s = &short_one;
    for (int c = 0; c < s->chunks; c++) {
        int64_t alive = 0;
        out[c] = 1;
        for (int64_t k = 0; k < 2 * s->micro_batches * s->chunks; k++) {
            struct mpp_schedule_event e = mpp_schedule_work(s, stage, k);
            alive += e.chunk != c ? 0 : e.what == MPP_EVENT_FORWARD ? 1 : -1;
            out[c] = alive > out[c] ? alive : out[c];
        }
        if (s->kind == MPP_SCHEDULE_GPIPE)
            out[c] = schedule->micro_batches;
    }
}

enum mpp_status mpp_pipeline_verify(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_plan *plan,
                                    struct mpp_transfers *transfers)
{
    struct mpp_arena *scratch = mpp_arena_scratch(arena);
    struct mpp_pipeline_list *list = mpp_arena_array(scratch, plan->n_stages, struct mpp_pipeline_list);
    const struct mpp_schedule s = shortened(&plan->pipeline);
    for (int i = 0; i < plan->n_stages; i++) {
        int64_t n = 2 * s.micro_batches * s.chunks;
        struct mpp_schedule_event *work = mpp_arena_array(scratch, n, struct mpp_schedule_event);
        for (int64_t k = 0; k < n; k++)
            work[k] = mpp_schedule_work(&s, i, k);
        int64_t *slots = mpp_arena_array(scratch, s.chunks, int64_t);
        mpp_pipeline_slots(&plan->pipeline, i, slots);
        list[i] = (struct mpp_pipeline_list){n, work, s.chunks, slots};
    }
    enum mpp_status status = plan->n_stages == 1 ? MPP_OK : choose_depths(scratch, diag, plan->n_stages, list, transfers);
    for (bool deeper = status == MPP_OK; deeper;) {
        struct pipeline p = {.arena = scratch, .diag = diag, .n_stages = plan->n_stages, .list = list, .transfers = transfers};
        open_pipeline(&p);
        status = run(&p, -1);
        deeper = status == MPP_OK && first_stuck(&p) >= 0 && deepen(&p, transfers);
    }
    if (status == MPP_OK)
        status = mpp_pipeline_run(scratch, diag, plan->n_stages, list, transfers);
    mpp_arena_free(scratch);
    return status;
}
