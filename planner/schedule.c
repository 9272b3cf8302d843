/* schedule.c - the order of a stage's work, the model of a step's time, and its simulation. */
#include <assert.h>
#include <stdlib.h>

#include "planner/schedule.h"

static int64_t add(int64_t a, int64_t b)
{
    int64_t c;
    return __builtin_add_overflow(a, b, &c) ? INT64_MAX : c;
}

static int64_t times(int64_t a, int64_t b)
{
    int64_t c;
    return __builtin_mul_overflow(a, b, &c) ? INT64_MAX : c;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

const char *mpp_schedule_name(enum mpp_schedule_kind kind)
{
    switch (kind) {
    case MPP_SCHEDULE_GPIPE: return "GPipe";
    case MPP_SCHEDULE_1F1B: return "1F1B";
    case MPP_SCHEDULE_INTERLEAVED: return "interleaved 1F1B";
    }
    return "?";
}

bool mpp_schedule_valid(const struct mpp_schedule *s)
{
    if (s->stages < 1 || s->chunks < 1 || s->micro_batches < 1)
        return false;
    return s->kind == MPP_SCHEDULE_INTERLEAVED ? s->micro_batches % s->stages == 0 : s->chunks == 1;
}

int64_t mpp_schedule_warm_up(const struct mpp_schedule *s, int stage)
{
    int64_t all = times(s->micro_batches, s->chunks), after = s->stages - stage - 1, w = all;
    if (s->kind == MPP_SCHEDULE_1F1B)
        w = after;
    else if (s->kind == MPP_SCHEDULE_INTERLEAVED)
        w = 2 * after + (int64_t)(s->chunks - 1) * s->stages;
    return w < all ? w : all;
}

int64_t mpp_schedule_in_flight(const struct mpp_schedule *s, int stage)
{
    int64_t w = mpp_schedule_warm_up(s, stage), all = times(s->micro_batches, s->chunks);
    int64_t alive = w < all ? w + 1 : all;
    return alive / s->chunks + (alive % s->chunks != 0);
}

/* Of N pieces of work in turns, S of each of V chunks after each other, those of the one in PLACE. */
static int64_t pieces_of(int64_t n, int64_t s, int64_t v, int64_t place)
{
    int64_t round = n / (s * v), rest = n % (s * v) - place * s;
    return round * s + (rest < 0 ? 0 : rest < s ? rest : s);
}

int64_t mpp_schedule_held(const struct mpp_schedule *s, int stage)
{
    if (s->kind != MPP_SCHEDULE_INTERLEAVED || s->chunks == 1)
        return mpp_schedule_in_flight(s, stage);
    int64_t n = s->stages, v = s->chunks, w = mpp_schedule_warm_up(s, stage), all = times(s->micro_batches, v), sum = 0;
    int64_t last = w + 2 * n * v < all ? w + 2 * n * v : all; /* from there on it repeats itself */
    for (int64_t c = 0; c < v; c++) {
        int64_t held = 0;
        for (int64_t k = 0; (k / n * v + c) * n + k % n < last; k++) { /* after k + 1 forwards of this chunk, before the next backward */
            int64_t f = (k / n * v + c) * n + k % n, back = f > w ? f - w : 0;
            held = most(held, k + 1 - pieces_of(back, n, v, v - 1 - c));
        }
        sum += held;
    }
    return sum / v + (sum % v != 0);
}

int64_t mpp_schedule_time_of(const struct mpp_schedule *s, int64_t sum_ps, int64_t max_ps, int64_t once_ps)
{
    if (sum_ps == INT64_MAX)
        return INT64_MAX;
    int64_t t = s->kind == MPP_SCHEDULE_INTERLEAVED
                    ? add(times(s->micro_batches, max_ps), (sum_ps - max_ps) / s->chunks)
                    : add(sum_ps, times(s->micro_batches - 1, max_ps));
    return add(t, once_ps);
}

int64_t mpp_schedule_time(const struct mpp_schedule *s, const struct mpp_stage_time *stage)
{
    int64_t sum = 0, longest = 0, once = 0;
    for (int i = 0; i < s->stages; i++) {
        int64_t t = add(stage[i].forward_ps, stage[i].backward_ps);
        sum = add(sum, t);
        longest = most(longest, t);
        once = most(once, stage[i].once_ps);
    }
    return mpp_schedule_time_of(s, sum, longest, once);
}

/* The NUMBER-th forward or backward of a stage: numbers go S micro-batches of a chunk at a time. */
static struct mpp_schedule_event numbered(const struct mpp_schedule *s, int stage, int64_t number, bool backward)
{
    struct mpp_schedule_event e = {.stage = stage, .micro_batch = number,
                                   .what = backward ? MPP_EVENT_BACKWARD : MPP_EVENT_FORWARD};
    if (s->kind == MPP_SCHEDULE_INTERLEAVED) {
        int64_t group = (int64_t)s->stages * s->chunks, in_group = number % group;
        int c = (int)(in_group / s->stages);
        e.chunk = backward ? s->chunks - 1 - c : c;
        e.micro_batch = number / group * s->stages + in_group % s->stages;
    }
    return e;
}

struct mpp_schedule_event mpp_schedule_work(const struct mpp_schedule *s, int stage, int64_t index)
{
    int64_t n = s->micro_batches * s->chunks, w = mpp_schedule_warm_up(s, stage);
    if (index < w)
        return numbered(s, stage, index, false);
    if (index < 2 * n - w)
        return numbered(s, stage, (index - w) / 2 + ((index - w) % 2 ? 0 : w), (index - w) % 2 != 0);
    return numbered(s, stage, index - n, true);
}

/* ---- simulation --------------------------------------------------------------------------- */

struct run {
    const struct mpp_schedule *s;
    const struct mpp_stage_time *stage;
    int64_t n;                    /* pieces of forward of one stage: B V */
    int64_t *end[2];              /* [stages][chunks][micro-batches] end of forward, backward; -1: not done */
    int64_t *next, *free_at;      /* [stages] piece to run, and since when the stage is free */
    struct mpp_schedule_event *event; /* NULL: not wanted */
    int64_t n_events;
};

static int64_t *end_of(const struct run *r, bool backward, int stage, int chunk, int64_t micro_batch)
{
    return &r->end[backward][((int64_t)stage * r->s->chunks + chunk) * r->s->micro_batches + micro_batch];
}

/* When the value that E works on is there; -1: not known yet. Chunks follow each other round the stages. */
static int64_t ready_at(const struct run *r, const struct mpp_schedule_event *e)
{
    int last = r->s->stages - 1;
    if (e->what == MPP_EVENT_FORWARD) {
        if (e->stage > 0)
            return *end_of(r, false, e->stage - 1, e->chunk, e->micro_batch);
        return e->chunk > 0 ? *end_of(r, false, last, e->chunk - 1, e->micro_batch) : 0;
    }
    if (e->stage < last)
        return *end_of(r, true, e->stage + 1, e->chunk, e->micro_batch);
    if (e->chunk < r->s->chunks - 1)
        return *end_of(r, true, 0, e->chunk + 1, e->micro_batch);
    return *end_of(r, false, last, e->chunk, e->micro_batch);
}

/* The CHUNK-th part of T, the parts adding up to T. */
static int64_t part(int64_t t, int chunk, int chunks)
{
    int64_t each = t / chunks, rest = t % chunks;
    return each + (chunk < rest);
}

static void note(struct run *r, struct mpp_schedule_event e)
{
    if (r->event)
        r->event[r->n_events] = e;
    r->n_events++;
}

/* Run STAGE's pieces as far as they can; how many did. */
static int64_t advance(struct run *r, int stage)
{
    int64_t begun = r->next[stage];
    for (; r->next[stage] < 2 * r->n; r->next[stage]++) {
        struct mpp_schedule_event e = mpp_schedule_work(r->s, stage, r->next[stage]);
        int64_t ready = ready_at(r, &e);
        if (ready < 0)
            break;
        bool backward = e.what == MPP_EVENT_BACKWARD;
        e.begin_ps = most(ready, r->free_at[stage]);
        e.end_ps = add(e.begin_ps, part(backward ? r->stage[stage].backward_ps : r->stage[stage].forward_ps, e.chunk,
                                        r->s->chunks));
        r->free_at[stage] = *end_of(r, backward, stage, e.chunk, e.micro_batch) = e.end_ps;
        note(r, e);
    }
    return r->next[stage] - begun;
}

/* What follows the last backwards: once_ps less update_ps, the barrier, update_ps. */
static int64_t finish(struct run *r)
{
    int64_t barrier = 0, end = 0;
    for (int i = 0; i < r->s->stages; i++) {
        int64_t own = r->stage[i].once_ps - r->stage[i].update_ps, begin = r->free_at[i];
        r->free_at[i] = add(begin, own);
        barrier = most(barrier, r->free_at[i]);
        if (own > 0)
            note(r, (struct mpp_schedule_event){.stage = i, .what = MPP_EVENT_ONCE, .begin_ps = begin, .end_ps = r->free_at[i]});
    }
    end = barrier;
    for (int i = 0; i < r->s->stages; i++) {
        if (r->stage[i].update_ps <= 0)
            continue;
        int64_t done = add(barrier, r->stage[i].update_ps);
        end = most(end, done);
        note(r, (struct mpp_schedule_event){.stage = i, .what = MPP_EVENT_UPDATE, .begin_ps = barrier, .end_ps = done});
    }
    return end;
}

/* By beginning; else in the order in which they were noted, in which nothing comes before what it needs. */
static int by_beginning(const void *a, const void *b)
{
    const struct mpp_schedule_event *x = *(const struct mpp_schedule_event *const *)a;
    const struct mpp_schedule_event *y = *(const struct mpp_schedule_event *const *)b;
    if (x->begin_ps != y->begin_ps)
        return x->begin_ps < y->begin_ps ? -1 : 1;
    return x < y ? -1 : x > y;
}

static const struct mpp_schedule_event *in_order(struct mpp_arena *arena, const struct run *r)
{
    const struct mpp_schedule_event **p = mpp_arena_array(arena, r->n_events, const struct mpp_schedule_event *);
    struct mpp_schedule_event *sorted = mpp_arena_array(arena, r->n_events, struct mpp_schedule_event);
    for (int64_t i = 0; i < r->n_events; i++)
        p[i] = &r->event[i];
    qsort(p, (size_t)r->n_events, sizeof *p, by_beginning);
    for (int64_t i = 0; i < r->n_events; i++)
        sorted[i] = *p[i];
    return sorted;
}

int64_t mpp_schedule_simulate(struct mpp_arena *arena, const struct mpp_schedule *s,
                              const struct mpp_stage_time *stage, const struct mpp_schedule_event **out_events,
                              int64_t *out_n)
{
    assert(mpp_schedule_valid(s));
    struct mpp_arena *scratch = mpp_arena_scratch(arena);
    struct run r = {.s = s, .stage = stage, .n = s->micro_batches * s->chunks};
    int64_t n_ends = r.n * s->stages;
    for (int b = 0; b < 2; b++) {
        r.end[b] = mpp_arena_array(scratch, n_ends, int64_t);
        for (int64_t i = 0; i < n_ends; i++)
            r.end[b][i] = -1;
    }
    r.next = mpp_arena_array(scratch, s->stages, int64_t);
    r.free_at = mpp_arena_array(scratch, s->stages, int64_t);
    if (out_events)
        r.event = mpp_arena_array(scratch, 2 * n_ends + 2 * s->stages, struct mpp_schedule_event);
    int64_t left = 2 * n_ends, done = 1;
    while (left > 0 && done > 0) {
        done = 0;
        for (int i = 0; i < s->stages; i++)
            done += advance(&r, i);
        left -= done;
    }
    assert(left == 0);            /* in these orders no stage waits for ever */
    int64_t end = finish(&r);
    if (out_events)
        *out_events = in_order(arena, &r);
    if (out_n)
        *out_n = r.n_events;
    mpp_arena_free(scratch);
    return end;
}
