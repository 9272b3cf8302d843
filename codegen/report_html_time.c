/* report_html_time.c - of report.html: what a stage does in a micro-batch and once, its collectives, and the pipeline's
 * schedule with what repeats written once. */
#include <string.h>

#include "codegen/report_html.h"
#include "ir/op.h"
#include "planner/timeline.h"

/* ---- pieces ---- */

/* As report_core.js names them. */
enum kind { COMPUTE, ACTIVATION, GRADIENT, PARAMETER, RECEIVE, LOCAL, UPDATE };

static enum kind kind_of(const struct report *r, const struct mpp_piece *p)
{
    if (p->kind == MPP_PIECE_RECEIVE)
        return RECEIVE;
    if (p->kind == MPP_PIECE_COMPUTE)
        return r->g->groups[p->group].phase == MPP_PHASE_UPDATE ? UPDATE : COMPUTE;
    if (p->kind == MPP_PIECE_STEP && p->n_comms == 0)
        return LOCAL;
    const char *role = p->n_comms ? r->stage->collectives[p->comm].role : "";
    return strcmp(role, "gradient") == 0 ? GRADIENT : strcmp(role, "parameter") == 0 ? PARAMETER : ACTIVATION;
}

static const struct mpp_gop *op_of(const struct report *r, const struct mpp_piece *p)
{
    return &r->g->ops[r->g->groups[p->group].ops[0]];
}

/* "h.*.attn.c_proj", "all-reduce over model (4): attn.c_proj sums over heads, split over model". */
static const char *label_of(const struct mpp_html *h, const struct mpp_piece *p)
{
    const struct report *r = h->r;
    const struct mpp_gop *op = op_of(r, p);
    const char *name = mpp_html_seen(h, op->name, op->name);
    if (p->kind == MPP_PIECE_COMPUTE)
        return name;
    if (p->kind == MPP_PIECE_STEP && p->n_comms == 0)
        return mpp_arena_printf(r->arena, "%s of a copy before %s", mpp_step_name(r->stage->copies[p->copy].steps[p->step].kind), name);
    if (p->n_comms == 0)
        return mpp_arena_printf(r->arena, "inside %s", name);
    const struct mpp_comm *c = &r->stage->collectives[p->comm];
    const char *where = c->mask ? mpp_arena_printf(r->arena, " over %s", mpp_report_axes(r, c->mask)) : "";
    return mpp_arena_printf(r->arena, "%s%s: %s", c->kind, where, c->reason ? c->reason : name);
}

struct block {                    /* what one layer does, and how many layers in a row do the same */
    const char *pieces;           /* "[kind,ps,label],..." */
    int repeat, layer, step, n;
};

static void write_block(struct mpp_html *h, const struct block *b)
{
    if (b->n == 0)
        return;
    mpp_html_open(h, NULL, '[');
    mpp_html_int(h, NULL, b->n);
    if (b->repeat < 0)
        mpp_html_raw(h, NULL, "null");
    else
        mpp_html_int(h, NULL, b->layer);
    mpp_html_int(h, NULL, b->step);
    mpp_html_raw(h, NULL, mpp_arena_printf(h->r->arena, "[%s]", b->pieces));
    mpp_html_close(h, ']');
}

/* The layer that P is in by its op's name: counted from the stage's first, which may lie before that; repeat -1: none. */
static int layer_of(const struct mpp_html *h, const struct mpp_piece *p, int *out_repeat)
{
    int index = 0;
    const char *rest;
    *out_repeat = -1;
    return mpp_html_layer(h, op_of(h->r, p)->name, out_repeat, &index, &rest) ? index - h->first[*out_repeat] : 0;
}

/* The next block of PART from piece I on; returns where it ends. */
static int next_block(const struct mpp_html *h, enum mpp_piece_part part, int i, struct block *out)
{
    struct mpp_text text = {.arena = h->r->arena};
    int repeat;
    *out = (struct block){.n = 1};
    out->layer = layer_of(h, &h->piece[i], &out->repeat);
    for (; i < h->n_pieces && layer_of(h, &h->piece[i], &repeat) == out->layer && repeat == out->repeat; i++) {
        const struct mpp_piece *p = &h->piece[i];
        if (p->part == part && p->cost_ps > 0)
            mpp_text_add(&text, "%s[%d,%lld,%d]", text.n ? "," : "", (int)kind_of(h->r, p), (long long)p->cost_ps,
                         mpp_html_intern(h->strings, label_of(h, p)));
    }
    out->pieces = mpp_text_string(&text);
    return i;
}

/* Blocks [layers alike, the first one (null: none), 1 or -1, [[kind, ps, label], ...]]. */
static void write_part(struct mpp_html *h, enum mpp_piece_part part)
{
    struct block last = {0}, b;
    mpp_html_open(h, NULL, '[');
    for (int i = 0; i < h->n_pieces;) {
        if (h->piece[i].part != part || h->piece[i].cost_ps == 0) {
            i++;
            continue;
        }
        i = next_block(h, part, i, &b);
        int step = b.layer - (last.layer + (last.n - 1) * last.step);
        bool same = last.n > 0 && b.repeat >= 0 && last.repeat == b.repeat && strcmp(last.pieces, b.pieces) == 0
                    && (step == 1 || step == -1) && (last.n == 1 || step == last.step);
        if (same) {
            last.step = step;
            last.n++;
            continue;
        }
        write_block(h, &last);
        last = b;
    }
    write_block(h, &last);
    mpp_html_close(h, ']');
}

void mpp_html_pieces(struct mpp_html *h)
{
    mpp_html_open(h, "parts", '[');
    write_part(h, MPP_PART_FORWARD);
    write_part(h, MPP_PART_BACKWARD);
    write_part(h, MPP_PART_ONCE);
    write_part(h, MPP_PART_UPDATE);
    mpp_html_close(h, ']');
}

/* ---- collectives ---- */

/* Fields: kind, axes as a mask, phase, role, what it is of, bytes, executions per step, time of one, why. */
void mpp_html_collectives(struct mpp_html *h)
{
    const struct report *r = h->r;
    struct mpp_html_records rs;
    mpp_html_records_begin(h, &rs);
    for (int i = 0; i < r->stage->n_collectives; i++) {
        const struct mpp_comm *c = &r->stage->collectives[i];
        struct mpp_html_strings *s = h->strings;
        int layer;
        const char *name = mpp_html_template(h, c->tensor, &layer);
        if (layer < 0 && c->repeat >= 0 && c->repeat < h->n_repeats && c->index >= 0)
            layer = c->index - h->first[c->repeat]; /* a layer's copy of what is not its own */
        int kind = mpp_html_intern(s, c->kind), role = mpp_html_intern(s, c->role), of = mpp_html_intern(s, name); /* in this order */
        int why = mpp_html_intern(s, c->reason ? c->reason : "");
        mpp_html_records_add(&rs, mpp_arena_printf(r->arena, "%d,%u,%d,%d,%d,%lld,%lld,%lld,%d", kind, c->mask, (int)c->phase, role, of,
            (long long)c->bytes, (long long)c->count, (long long)c->cost_ps, why), layer);
    }
    mpp_html_records_write(&rs, "collectives");
}

/* ---- the schedule ---- */

/* More pieces of work are not drawn one by one: a step of fewer micro-batches is drawn instead. */
static const int64_t MOST_EVENTS = 200000;
enum { LEAST_RUN = 3, MAX_PATTERNS = 4 };

/* Is event B what A is some micro-batches later? */
static bool follows(const struct mpp_schedule_event *a, const struct mpp_schedule_event *b, int64_t period_ps, int64_t micro)
{
    return b->what == a->what && b->chunk == a->chunk && b->micro_batch - a->micro_batch == micro
           && b->begin_ps - a->begin_ps == period_ps && b->end_ps - b->begin_ps == a->end_ps - a->begin_ps;
}

/* How often the LENGTH events at E stand there in a row, of N left. */
static int64_t repeats(const struct mpp_schedule_event *e, int64_t n, int64_t length)
{
    if (2 * length > n)
        return 1;
    int64_t period = e[length].begin_ps - e[0].begin_ps, micro = e[length].micro_batch - e[0].micro_batch, at = length;
    while (at < n && follows(&e[at - length], &e[at], period, micro))
        at++;
    return at / length;
}

static void write_run(struct mpp_html *h, const struct mpp_schedule_event *e, int64_t length, int64_t n)
{
    mpp_html_open(h, NULL, '[');
    mpp_html_int(h, NULL, n);
    mpp_html_int(h, NULL, n > 1 ? e[length].begin_ps - e[0].begin_ps : 0);
    mpp_html_int(h, NULL, n > 1 ? e[length].micro_batch - e[0].micro_batch : 0);
    mpp_html_open(h, NULL, '[');
    for (int64_t i = 0; i < length; i++)
        mpp_html_raw(h, NULL, mpp_arena_printf(h->r->arena, "[%d,%d,%lld,%lld,%lld]", (int)e[i].what, e[i].chunk,
            (long long)e[i].micro_batch, (long long)e[i].begin_ps, (long long)(e[i].end_ps - e[i].begin_ps)));
    mpp_html_close(h, ']');
    mpp_html_close(h, ']');
}

/* Runs [times, period, micro-batches from time to time, [[what, chunk, micro-batch, begin, time], ...]] of one stage. */
static void write_stage(struct mpp_html *h, const struct mpp_schedule *s, const struct mpp_schedule_event *e, int64_t n)
{
    int64_t pattern[MAX_PATTERNS] = {1, 2, s->stages, 2 * (int64_t)s->stages * s->chunks};
    mpp_html_open(h, NULL, '[');
    for (int64_t i = 0; i < n;) {
        int64_t length = 1, times = 1;
        for (int k = 0; k < MAX_PATTERNS; k++) {
            int64_t t = repeats(e + i, n - i, pattern[k]);
            if (t >= LEAST_RUN && t * pattern[k] > times * length) {
                length = pattern[k];
                times = t;
            }
        }
        write_run(h, e + i, length, times);
        i += length * times;
    }
    mpp_html_close(h, ']');
}

void mpp_html_schedule(struct mpp_html *h)
{
    const struct report *r = h->r;
    struct mpp_schedule s = r->plan->pipeline;
    struct mpp_stage_time *time = mpp_arena_array(r->arena, s.stages, struct mpp_stage_time);
    const struct mpp_schedule_event *all;
    int64_t n, most = MOST_EVENTS / (2 * (int64_t)s.stages * s.chunks);
    for (int i = 0; i < s.stages; i++)
        time[i] = r->plan->stages[i].time;
    most = most > s.stages ? most - most % s.stages : s.stages;
    s.micro_batches = s.micro_batches < most ? s.micro_batches : most;
    int64_t end = mpp_schedule_simulate(r->arena, &s, time, &all, &n);
    struct mpp_schedule_event *own = mpp_arena_array(r->arena, n, struct mpp_schedule_event);
    mpp_html_open(h, "schedule", '{');
    mpp_html_int(h, "end_ps", end);
    mpp_html_int(h, "micro_batches", s.micro_batches);
    mpp_html_open(h, "stages", '[');
    for (int i = 0; i < s.stages; i++) {
        int64_t m = 0;
        for (int64_t k = 0; k < n; k++)
            if (all[k].stage == i)
                own[m++] = all[k];
        write_stage(h, &s, own, m);
    }
    mpp_html_close(h, ']');
    mpp_html_close(h, '}');
}
