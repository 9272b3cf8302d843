/* test_pipeline.c - schedules against their definitions and by hand; the pipeline search against exhaustive enumeration.
 *
 *     test_pipeline            the checks
 *     test_pipeline --bench    CPU time of large searches whose options come from a table */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ir/arena.h"
#include "planner/pipeline.h"

static int passed, failed;

static void check(bool ok, const char *what, int seed)
{
    passed += ok;
    failed += !ok;
    if (!ok && failed < 40)
        printf("FAILED: %s (seed %d)\n", what, seed);
}

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t rng;

static int rnd(int n)
{
    rng++;
    return (int)(mix(rng) % (uint64_t)n);
}

/* ---- schedules ----------------------------------------------------------------------------- */

static struct mpp_schedule schedule_of(enum mpp_schedule_kind kind, int stages, int chunks, int64_t micro_batches)
{
    return (struct mpp_schedule){.kind = kind, .stages = stages, .chunks = chunks, .micro_batches = micro_batches};
}

static struct mpp_schedule random_schedule(void)
{
    enum mpp_schedule_kind kind = (enum mpp_schedule_kind)rnd(3);
    int stages = 1 + rnd(6);
    int64_t b = 1 + rnd(9);
    if (kind == MPP_SCHEDULE_INTERLEAVED)
        return schedule_of(kind, stages, 1 + rnd(4), stages * (1 + rnd(4)));
    return schedule_of(kind, stages, 1, b);
}

/* STAGE's order as text: F and B with the number of the micro-batch, and the chunk as a letter. */
static const char *order_of(struct mpp_arena *a, struct mpp_schedule s, int stage)
{
    char *text = mpp_arena_strdup(a, "");
    for (int64_t i = 0; i < 2 * s.micro_batches * s.chunks; i++) {
        struct mpp_schedule_event e = mpp_schedule_work(&s, stage, i);
        char chunk[2] = {s.chunks > 1 ? (char)('a' + e.chunk) : '\0', '\0'};
        text = mpp_arena_printf(a, "%s%s%c%" PRId64 "%s", text, i ? " " : "",
                                e.what == MPP_EVENT_FORWARD ? 'F' : 'B', e.micro_batch, chunk);
    }
    return text;
}

static void check_orders(struct mpp_arena *a)
{
    struct { struct mpp_schedule s; int stage; const char *order; } row[] = {
        {schedule_of(MPP_SCHEDULE_GPIPE, 2, 1, 3), 0, "F0 F1 F2 B0 B1 B2"},
        {schedule_of(MPP_SCHEDULE_GPIPE, 2, 1, 3), 1, "F0 F1 F2 B0 B1 B2"},
        {schedule_of(MPP_SCHEDULE_1F1B, 4, 1, 5), 0, "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4"},
        {schedule_of(MPP_SCHEDULE_1F1B, 4, 1, 5), 1, "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4"},
        {schedule_of(MPP_SCHEDULE_1F1B, 4, 1, 5), 3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"},
        {schedule_of(MPP_SCHEDULE_1F1B, 4, 1, 2), 0, "F0 F1 B0 B1"},
        /* Narayanan et al., SC21, Figure 4, devices 1 and 4, lower half */
        {schedule_of(MPP_SCHEDULE_INTERLEAVED, 4, 2, 8), 0,
         "F0a F1a F2a F3a F0b F1b F2b F3b F4a F5a F6a B0b F7a B1b F4b B2b F5b B3b F6b B0a F7b B1a B2a B3a B4b B5b B6b B7b "
         "B4a B5a B6a B7a"},
        {schedule_of(MPP_SCHEDULE_INTERLEAVED, 4, 2, 8), 3,
         "F0a F1a F2a F3a F0b B0b F1b B1b F2b B2b F3b B3b F4a B0a F5a B1a F6a B2a F7a B3a F4b B4b F5b B5b F6b B6b F7b B7b "
         "B4a B5a B6a B7a"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *order = order_of(a, row[i].s, row[i].stage);
        check(!strcmp(order, row[i].order), order, (int)i);
    }
    check(!strcmp(mpp_schedule_name(MPP_SCHEDULE_GPIPE), "GPipe"), "name of GPipe", 0);
    check(!strcmp(mpp_schedule_name(MPP_SCHEDULE_1F1B), "1F1B"), "name of 1F1B", 0);
    check(!strcmp(mpp_schedule_name(MPP_SCHEDULE_INTERLEAVED), "interleaved 1F1B"), "name of interleaved", 0);
    struct mpp_schedule s = schedule_of(MPP_SCHEDULE_INTERLEAVED, 4, 2, 6);
    check(!mpp_schedule_valid(&s), "micro-batches that the stages do not divide", 0);
    s = schedule_of(MPP_SCHEDULE_1F1B, 4, 2, 8);
    check(!mpp_schedule_valid(&s), "chunks in 1F1B", 0);
}

/* Every piece once, backward after forward, and the count of what is alive along the order. */
static void check_order(struct mpp_arena *a, struct mpp_schedule s, int seed)
{
    int64_t n = s.micro_batches * s.chunks;
    for (int i = 0; i < s.stages; i++) {
        bool *forward = mpp_arena_array(a, n, bool), *backward = mpp_arena_array(a, n, bool), ok = true;
        int64_t alive = 0, most = 0, warm_up = -1, held = 0;
        int64_t *own = mpp_arena_array(a, s.chunks, int64_t), *own_most = mpp_arena_array(a, s.chunks, int64_t);
        for (int64_t k = 0; k < 2 * n; k++) {
            struct mpp_schedule_event e = mpp_schedule_work(&s, i, k);
            int64_t at = e.chunk * s.micro_batches + e.micro_batch;
            ok = ok && e.chunk < s.chunks && e.micro_batch < s.micro_batches && e.stage == i;
            bool *done = e.what == MPP_EVENT_FORWARD ? forward : backward;
            ok = ok && !done[at] && (e.what == MPP_EVENT_FORWARD || forward[at]);
            done[at] = true;
            alive += e.what == MPP_EVENT_FORWARD ? 1 : -1;
            most = alive > most ? alive : most;
            own[e.chunk] += e.what == MPP_EVENT_FORWARD ? 1 : -1;
            own_most[e.chunk] = own[e.chunk] > own_most[e.chunk] ? own[e.chunk] : own_most[e.chunk];
            if (e.what == MPP_EVENT_BACKWARD && warm_up < 0)
                warm_up = k;
        }
        check(ok && alive == 0, "each piece once, backward after forward", seed);
        check(mpp_schedule_in_flight(&s, i) == (most + s.chunks - 1) / s.chunks, "in flight: as the order has it", seed);
        for (int c = 0; c < s.chunks; c++)
            held += own_most[c];
        check(mpp_schedule_held(&s, i) == (held + s.chunks - 1) / s.chunks, "held: the most of each chunk", seed);
        /* The first backward comes after the warm-up and, where one is left, one more forward. */
        int64_t w = mpp_schedule_warm_up(&s, i);
        check(warm_up == (w < n ? w + 1 : n), "warm-up: as the order has it", seed);
        if (s.kind != MPP_SCHEDULE_INTERLEAVED) {
            int64_t left = s.stages - i, want = s.kind == MPP_SCHEDULE_GPIPE || s.micro_batches < left ? s.micro_batches : left;
            check(mpp_schedule_in_flight(&s, i) == want, "in flight: GPipe B, 1F1B min(S - i, B)", seed);
        }
    }
}

/* What the events of a simulation must fulfil, whatever the times. */
static void check_events(struct mpp_arena *a, struct mpp_schedule s, const struct mpp_stage_time *t, int seed)
{
    const struct mpp_schedule_event *e;
    int64_t n, end = mpp_schedule_simulate(a, &s, t, &e, &n), pieces = 2 * s.micro_batches * s.chunks, last = 0;
    bool ordered = true, apart = true, own = true, needs = true;
    int64_t *busy = mpp_arena_array(a, s.stages, int64_t), *next = mpp_arena_array(a, s.stages, int64_t);
    int64_t *alive = mpp_arena_array(a, s.stages, int64_t), *most = mpp_arena_array(a, s.stages, int64_t);
    int64_t *done = mpp_arena_array(a, s.stages * pieces, int64_t); /* [stage][backward][virtual part] */
    int64_t parts = s.chunks * s.micro_batches;
    memset(done, -1, (size_t)(s.stages * pieces) * sizeof *done);
    for (int64_t k = 0; k < n; k++) {
        int i = e[k].stage;
        ordered = ordered && (k == 0 || e[k - 1].begin_ps <= e[k].begin_ps);
        apart = apart && e[k].begin_ps >= busy[i];
        busy[i] = e[k].end_ps;
        last = e[k].end_ps > last ? e[k].end_ps : last;
        if (e[k].what != MPP_EVENT_FORWARD && e[k].what != MPP_EVENT_BACKWARD)
            continue;
        struct mpp_schedule_event w = mpp_schedule_work(&s, i, next[i]++);
        own = own && w.what == e[k].what && w.chunk == e[k].chunk && w.micro_batch == e[k].micro_batch;
        bool back = e[k].what == MPP_EVENT_BACKWARD;
        done[i * pieces + back * parts + e[k].chunk * s.micro_batches + e[k].micro_batch] = e[k].end_ps;
        /* The part of the model before (backward: after) this one, for the same micro-batch. */
        int part = e[k].chunk * s.stages + i, before = back ? part + 1 : part - 1;
        bool turn = before == s.chunks * s.stages;
        before = turn ? part : before;
        if (before >= 0) {
            int64_t at = done[before % s.stages * pieces + (back && !turn) * parts
                              + before / s.stages * s.micro_batches + e[k].micro_batch];
            needs = needs && at >= 0 && at <= e[k].begin_ps;
        }
        alive[i] += back ? -1 : 1;
        most[i] = alive[i] > most[i] ? alive[i] : most[i];
    }
    check(ordered, "events in order of their beginning", seed);
    check(apart, "a stage does one thing at a time", seed);
    check(own, "a stage keeps its order", seed);
    check(needs, "nothing begins before what it needs", seed);
    check(last == end, "the last event ends the step", seed);
    bool within = true, all = true;
    for (int i = 0; i < s.stages; i++) {
        within = within && most[i] <= mpp_schedule_in_flight(&s, i) * s.chunks;
        all = all && next[i] == pieces;
    }
    check(within, "in flight: never above the count", seed);
    check(all, "every piece is run", seed);
    check(end == mpp_schedule_simulate(a, &s, t, NULL, NULL), "the same without events", seed);
}

static void check_random_schedules(struct mpp_arena *a)
{
    for (int seed = 0; seed < 300; seed++) {
        rng = (uint64_t)seed << 20;
        struct mpp_schedule s = random_schedule();
        struct mpp_stage_time t[6], same[6];
        int64_t forward = s.chunks * rnd(50), backward = s.chunks * rnd(50), once = rnd(100), busiest = 0;
        for (int i = 0; i < s.stages; i++) {
            t[i] = (struct mpp_stage_time){rnd(100), rnd(100), 20 + rnd(20), rnd(20)};
            same[i] = (struct mpp_stage_time){forward, backward, once, 0};
            int64_t own = s.micro_batches * (t[i].forward_ps + t[i].backward_ps) + t[i].once_ps;
            busiest = own > busiest ? own : busiest;
        }
        check_order(a, s, seed);
        check_events(a, s, t, seed);
        check_events(a, s, same, seed);
        int64_t time = mpp_schedule_time(&s, same);
        check(time == mpp_schedule_simulate(a, &s, same, NULL, NULL), "alike stages: the formula is the simulated time", seed);
        int64_t each = forward + backward;
        check(time == s.micro_batches * each + (s.stages - 1) * each / s.chunks + once,
              "the bubble: (S - 1) / (V B) of the work", seed);
        int64_t simulated = mpp_schedule_simulate(a, &s, t, NULL, NULL);
        check(simulated >= busiest, "no shorter than the busiest stage", seed);
        for (int i = 0; i < s.stages; i++)
            t[i].update_ps = 0;
        if (s.kind == MPP_SCHEDULE_GPIPE) { /* once runs beside other stages' backwards, so compare without */
            for (int i = 0; i < s.stages; i++)
                t[i].once_ps = 0;
            simulated = mpp_schedule_simulate(a, &s, t, NULL, NULL);
            check(simulated >= mpp_schedule_time(&s, t), "GPipe never takes less than the formula", seed);
        }
    }
}

static void check_times(struct mpp_arena *a)
{
    /* F0 0-2, F1 2-4 | F0 2-7, F1 7-12, B0 12-13, B1 13-14 | B0 13-16, B1 16-19, once 19-20 */
    struct mpp_stage_time t[2] = {{2, 3, 1, 0}, {5, 1, 4, 0}};
    struct mpp_schedule s = schedule_of(MPP_SCHEDULE_GPIPE, 2, 1, 2);
    check(mpp_schedule_simulate(a, &s, t, NULL, NULL) == 20, "GPipe by hand", 0);
    check(mpp_schedule_time(&s, t) == 11 + 6 + 4, "the formula by hand", 0);
    /* F0 0-2, F1 2-4 | F0 2-7, B0 7-8 | B0 8-11 | F1 8-13, B1 13-14 | F2 11-13, B1 14-17 | F2 14-19, B2 19-20 | B2 20-23 */
    s = schedule_of(MPP_SCHEDULE_1F1B, 2, 1, 3);
    check(mpp_schedule_simulate(a, &s, t, NULL, NULL) == 24, "1F1B by hand", 0);
    check(mpp_schedule_time(&s, t) == 11 + 2 * 6 + 4, "the formula by hand", 1);
    /* Two chunks of 1 and 1 | 3 and 3: Fa0 0-1, Fa1 1-2 | Fa0 1-4, Fa1 4-7 | Fb0 4-5, Fb1 7-8 | Fb0 7-10, Bb0 10-11,
     * Fb1 11-14, Bb1 14-15 | Bb0 11-13, Bb1 15-17 | Ba0 15-16 (waits for Bb0), Ba1 17-18 | Ba0 17-19, Ba1 19-21 */
    struct mpp_stage_time u[2] = {{2, 4, 0, 0}, {6, 2, 0, 0}};
    s = schedule_of(MPP_SCHEDULE_INTERLEAVED, 2, 2, 2);
    check(mpp_schedule_simulate(a, &s, u, NULL, NULL) == 21, "interleaved by hand", 0);
    check(mpp_schedule_time(&s, u) == 2 * 8 + 6 / 2, "the interleaved formula by hand", 0);
    /* A barrier between reductions and updates: 10 of 1F1B's backwards end at 10 and 15. */
    struct mpp_stage_time w[2] = {{5, 5, 6, 5}, {0, 0, 20, 1}};
    s = schedule_of(MPP_SCHEDULE_1F1B, 2, 1, 1);
    check(mpp_schedule_simulate(a, &s, w, NULL, NULL) == 24 + 5, "updates wait for all reductions", 0);
    /* Short stages hide behind the warm-up of a long one. */
    struct mpp_stage_time v[2] = {{10, 10, 0, 0}, {1, 1, 0, 0}};
    s = schedule_of(MPP_SCHEDULE_1F1B, 2, 1, 4);
    check(mpp_schedule_simulate(a, &s, v, NULL, NULL) == 80 && mpp_schedule_time(&s, v) == 82, "less than the formula", 0);
    for (int k = 0; k < 3; k++) {
        struct mpp_stage_time big[2] = {{INT64_MAX / 2, INT64_MAX / 2, 7, 2}, {INT64_MAX - 1, 5, 3, 0}};
        s = schedule_of((enum mpp_schedule_kind)k, 2, 1, 4);
        check(mpp_schedule_time(&s, big) == INT64_MAX, "the formula saturates", k);
        check(mpp_schedule_simulate(a, &s, big, NULL, NULL) == INT64_MAX, "the simulation saturates", k);
        struct mpp_stage_time one = {INT64_MAX - 10, 3, 9, 0};
        s = schedule_of((enum mpp_schedule_kind)k, 1, 1, 1);
        check(mpp_schedule_time(&s, &one) == INT64_MAX, "the largest time", k);
        one.once_ps = 6;
        check(mpp_schedule_time(&s, &one) == INT64_MAX - 1, "just below saturation", k);
    }
}

/* ---- random pipeline problems -------------------------------------------------------------- */

enum { MAX_OPTIONS = 6, MAX_LAYERS = 8, MAX_DEVICES = 8, MAX_KEYS = 1 << 16 };

/* What stages cost is a hash of what they are, so that there is nothing to store. */
struct costs {
    uint64_t seed;
    int n_options;                /* at most */
    int64_t range;                /* times are below */
    bool alike;                   /* only spans' lengths, sizes and what is in flight matter */
    bool regular;                 /* times grow with layers, fall with devices */
    bool growing;                 /* longer spans are worse, all else equal: that promise is made */
    int64_t memory;               /* of a device; layers and what is in flight fill it. 0: everything fits */
    int bounds;                   /* of 10 keys, so many have bounds first */
    int64_t too_high;             /* percent that bounds lie above the truth: what must not be */
    int stop_after;               /* questions; then interrupt */
    volatile int *interrupt;
    struct mpp_pipeline_option option[MAX_OPTIONS];
    uint8_t *asked[2];            /* [MAX_KEYS] times: the counts that must not pass 1 */
    int calls;
    bool twice, wrong_place;
    const struct mpp_pipeline_problem *p;
};

static uint64_t key_hash(const struct costs *c, const struct mpp_pipeline_key *k)
{
    uint64_t h = mix(c->seed);
    h = mix(h ^ (uint64_t)(c->alike ? 0 : k->first_layer));
    h = mix(h ^ (uint64_t)(k->last_layer - k->first_layer));
    h = mix(h ^ (uint64_t)(c->alike ? 0 : k->first_device));
    h = mix(h ^ (uint64_t)k->n_devices);
    return mix(h ^ (uint64_t)k->in_flight);
}

/* KEY's true options. */
static int true_options(const struct costs *c, const struct mpp_pipeline_key *k, struct mpp_pipeline_option *out)
{
    uint64_t h = key_hash(c, k);
    int64_t layers = k->last_layer - k->first_layer + 1;
    if (c->memory && layers * (2 + k->in_flight) > c->memory * k->n_devices)
        return 0;
    int64_t weight[2] = {0, 0};
    for (int l = k->first_layer; c->growing && l <= k->last_layer; l++) {
        weight[0] += 1 + (int64_t)(mix(c->seed + (uint64_t)(c->alike ? 0 : l)) % 4);
        weight[1] += (int64_t)(mix(c->seed + (uint64_t)(c->alike ? 0 : l)) / 4 % 4);
    }
    if (c->growing) {             /* what follows must not depend on the layers */
        struct mpp_pipeline_key same = *k;
        same.first_layer = same.last_layer = 0;
        h = key_hash(c, &same);
    }
    int n = 1 + (int)(h % (uint64_t)c->n_options);
    for (int i = 0; i < n; i++) {
        h = mix(h);
        int64_t t = (int64_t)(h % (uint64_t)c->range), once = (int64_t)((h >> 32) % (uint64_t)c->range);
        if (c->regular)
            t = layers * (c->range + t / 4) / k->n_devices;
        if (c->growing) {
            t = weight[0] * (c->range / 2 + t / 4) / k->n_devices;
            once = weight[1] * once;
        }
        out[i] = (struct mpp_pipeline_option){t, once, i, false};
    }
    return n;
}

static int64_t percent_of(int64_t x, int64_t percent)
{
    return x / 100 * percent + x % 100 * percent / 100;
}

/* Bounds: the truth lowered, but for options that are sure; some options merged. */
static int lowered(const struct costs *c, const struct mpp_pipeline_key *k, struct mpp_pipeline_option *o, int n)
{
    uint64_t h = mix(key_hash(c, k) ^ 77);
    for (int i = 0; i < n; i++) {
        h = mix(h);
        o[i].sure = c->bounds % 2 == 0 && (h >> 40) % 3 == 0;
        if (o[i].sure)
            continue;
        int64_t percent = 70 + (int64_t)(h % 31) + c->too_high;
        o[i].t_ps = percent_of(o[i].t_ps, percent);
        o[i].once_ps = percent_of(o[i].once_ps, 70 + (int64_t)((h >> 20) % 31));
        o[i].id = -1;
    }
    if (n > 1 && h >> 60 < 8) {
        o[0].t_ps = o[0].t_ps < o[n - 1].t_ps ? o[0].t_ps : o[n - 1].t_ps;
        o[0].once_ps = o[0].once_ps < o[n - 1].once_ps ? o[0].once_ps : o[n - 1].once_ps;
        o[0].id = -1;
        o[0].sure = false;
        n--;
    }
    return n;
}

static int key_number(const struct mpp_pipeline_key *k)
{
    return (int)((((k->first_layer * MAX_LAYERS + k->last_layer) * MAX_DEVICES + k->first_device) * MAX_DEVICES
                  + k->n_devices - 1) * 16 + k->in_flight) % MAX_KEYS;
}

static int options_of(void *context, const struct mpp_pipeline_key *k, bool exact, const struct mpp_pipeline_option **out,
                      bool *out_exact)
{
    struct costs *c = context;
    struct mpp_schedule s = schedule_of(c->p->kind, k->n_stages, c->p->chunks, c->p->micro_batches);
    if (k->stage < 0 || k->stage >= k->n_stages || mpp_schedule_held(&s, k->stage) != k->in_flight
        || (k->stage == 0) != (k->first_layer == 0) || (k->stage == 0) != (k->first_device == 0))
        c->wrong_place = true;
    int times = c->asked[exact] ? ++c->asked[exact][key_number(k)] : 3;
    int wanted = exact ? 1 + (int)(mix(key_hash(c, k) ^ 9) % 3) : 1; /* so often exact options are asked for */
    if (c->asked[exact] && times > wanted)
        c->twice = true;
    if (++c->calls == c->stop_after)
        *c->interrupt = 1;
    int n = true_options(c, k, c->option);
    *out = c->option;
    *out_exact = exact ? times >= wanted : (int)(mix(key_hash(c, k) ^ 5) % 10) >= c->bounds;
    return *out_exact ? n : lowered(c, k, c->option, n);
}

static int alike_of(void *context, const struct mpp_pipeline_key *k)
{
    const struct costs *c = context;
    (void)c;
    if (k->first_layer == 1)      /* some are like no other */
        return -1;
    return (int)(((k->last_layer - k->first_layer) * 64 + k->n_devices) * 64 + k->in_flight);
}

/* ---- exhaustive enumeration ------------------------------------------------------------------ */

struct search {
    const struct mpp_pipeline_problem *p;
    const struct costs *c;
    int n_stages;
    int64_t best;                 /* INT64_MAX: nothing fits */
};

static int64_t formula(const struct mpp_pipeline_problem *p, int64_t sum, int64_t longest, int64_t once)
{
    if (p->kind == MPP_SCHEDULE_INTERLEAVED)
        return p->micro_batches * longest + (sum - longest) / p->chunks + once;
    return sum + (p->micro_batches - 1) * longest + once;
}

static void enumerate(struct search *x, int stage, int layer, int device, int64_t sum, int64_t longest, int64_t once)
{
    const struct mpp_pipeline_problem *p = x->p;
    if (stage == x->n_stages) {
        int64_t t = formula(p, sum, longest, once);
        if (layer == p->n_layers && device == p->n_devices && t < x->best)
            x->best = t;
        return;
    }
    struct mpp_schedule s = schedule_of(p->kind, x->n_stages, p->chunks, p->micro_batches);
    for (int last = layer; last < p->n_layers; last++)
        for (int j = 0; j < p->n_sizes; j++) {
            struct mpp_pipeline_key k = {layer, last, device, p->sizes[j], stage, x->n_stages, mpp_schedule_held(&s, stage)};
            if (device + p->sizes[j] > p->n_devices || (p->equal_sizes && p->sizes[j] * x->n_stages != p->n_devices)
                || (p->kind == MPP_SCHEDULE_INTERLEAVED && (last - layer + 1) % p->chunks))
                continue;
            struct mpp_pipeline_option o[MAX_OPTIONS];
            int n = true_options(x->c, &k, o);
            for (int i = 0; i < n; i++)
                enumerate(x, stage + 1, last + 1, device + p->sizes[j], sum + o[i].t_ps,
                          longest > o[i].t_ps ? longest : o[i].t_ps, once > o[i].once_ps ? once : o[i].once_ps);
        }
}

static bool count_wanted(const struct mpp_pipeline_problem *p, int n_stages)
{
    if (p->kind == MPP_SCHEDULE_INTERLEAVED && p->micro_batches % n_stages)
        return false;
    for (const int *s = p->stages; s && *s; s++)
        if (*s == n_stages)
            return true;
    return !p->stages;
}

static int64_t exhaustive(const struct mpp_pipeline_problem *p, const struct costs *c)
{
    struct search x = {.p = p, .c = c, .best = INT64_MAX};
    for (x.n_stages = 1; x.n_stages <= p->max_stages && x.n_stages <= p->n_layers; x.n_stages++)
        if (count_wanted(p, x.n_stages))
            enumerate(&x, 0, 0, 0, 0, 0, 0);
    return x.best;
}

/* ---- the search against it ------------------------------------------------------------------- */

static void random_problem(struct mpp_arena *a, struct mpp_pipeline_problem *p, struct costs *c)
{
    static const int devices[] = {1, 2, 3, 4, 5, 6, 7, 8};
    memset(p, 0, sizeof *p);
    memset(c, 0, sizeof *c);
    p->kind = (enum mpp_schedule_kind)rnd(3);
    p->n_layers = 1 + rnd(6);
    p->n_devices = devices[rnd(8)];
    p->equal_sizes = rnd(3) == 0;
    p->max_stages = rnd(4) ? 8 : 1 + rnd(6);
    p->micro_batches = 1 + rnd(12);
    p->chunks = p->kind == MPP_SCHEDULE_INTERLEAVED ? 1 + rnd(3) : 1;
    if (p->kind == MPP_SCHEDULE_INTERLEAVED && rnd(4)) { /* what divides, mostly */
        p->micro_batches = 12;
        p->n_layers = p->chunks * (1 + rnd(6 / p->chunks));
    }
    int *sizes = mpp_arena_array(a, 8, int), step = 1 + rnd(2);
    for (int s = 1; s <= p->n_devices; s++)
        if (step == 1 ? rnd(5) > 0 : s % 2 == 0 || s == 1 || rnd(4) == 0)
            sizes[p->n_sizes++] = s;
    p->sizes = sizes;
    if (rnd(4) == 0) {
        int *stages = mpp_arena_array(a, 4, int);
        for (int i = 0; i < 3; i++)
            stages[i] = 1 + rnd(6);
        p->stages = stages;
    }
    p->upper_bound_ps = INT64_MAX;
    p->options = options_of;
    p->context = c;
    c->p = p;
    c->seed = rng;
    c->n_options = 1 + rnd(4);
    c->range = rnd(3) ? 1000 : rnd(2) ? 6 : 1000000007; /* ties; none */
    c->regular = rnd(2);
    c->alike = rnd(3) == 0;
    if (c->alike && rnd(2))
        p->alike = alike_of;
    c->growing = rnd(3) == 0;
    p->longer_is_worse = c->growing && rnd(4) > 0;
    c->memory = rnd(2) ? 0 : 4 + rnd(12);
    c->bounds = rnd(3) ? 2 + rnd(9) : 0;
    for (int k = 0; k < 2; k++)
        c->asked[k] = mpp_arena_array(a, MAX_KEYS, uint8_t);
}

/* Is the answer a plan of the problem, with options that are the callback's exact ones? */
static bool plan_holds(const struct mpp_pipeline_problem *p, const struct costs *c, const struct mpp_pipeline_answer *x)
{
    struct mpp_schedule s = schedule_of(p->kind, x->n_stages, p->chunks, p->micro_batches);
    struct mpp_stage_time t[MAX_LAYERS] = {{0}};
    int layer = 0, device = 0;
    for (int i = 0; i < x->n_stages; i++) {
        const struct mpp_pipeline_key *k = &x->stage[i].key;
        const struct mpp_pipeline_option *got = &x->stage[i].option;
        struct mpp_pipeline_option o[MAX_OPTIONS];
        int n = true_options(c, k, o), same = 0;
        for (int j = 0; j < n; j++)
            same += o[j].id == got->id && o[j].t_ps == got->t_ps && o[j].once_ps == got->once_ps;
        if (!same || k->first_layer != layer || k->first_device != device || k->stage != i || k->n_stages != x->n_stages
            || k->in_flight != mpp_schedule_held(&s, i))
            return false;
        layer = k->last_layer + 1;
        device += k->n_devices;
        t[i] = (struct mpp_stage_time){got->t_ps / 3, got->t_ps - got->t_ps / 3, got->once_ps, 0};
    }
    return layer == p->n_layers && device == p->n_devices && mpp_schedule_time(&s, t) == x->time_ps;
}

static void check_random_problems(int *n_solved, int *n_lazy)
{
    for (int seed = 0; seed < 900; seed++) {
        struct mpp_arena *a = mpp_arena_new();
        struct mpp_pipeline_problem p;
        struct mpp_pipeline_answer x, y;
        struct costs c;
        rng = (uint64_t)seed << 24;
        random_problem(a, &p, &c);
        int64_t best = exhaustive(&p, &c);
        check(mpp_pipeline_solve(a, &p, &x) == MPP_OK, "solved", seed);
        check(x.time_ps == best, "the exhaustive optimum", seed);
        check(x.bound_ps == best, "a proven optimum", seed);
        check((x.n_stages == 0) == (best == INT64_MAX), "a plan where one fits", seed);
        check(x.n_stages == 0 || plan_holds(&p, &c, &x), "the plan holds", seed);
        check(!c.twice && !c.wrong_place, "no question twice, places that exist", seed);
        check(c.calls == x.asked + x.asked_exact, "questions are counted", seed);
        *n_solved += x.n_stages > 0;
        *n_lazy += x.asked_exact > 0;
        if (best == INT64_MAX) {
            mpp_arena_free(a);
            continue;
        }
        c.asked[0] = c.asked[1] = NULL;
        p.upper_bound_ps = best + 1;
        check(mpp_pipeline_solve(a, &p, &y) == MPP_OK && y.time_ps == best && plan_holds(&p, &c, &y),
              "found below a bound that it just meets", seed);
        check(y.asked <= x.asked, "a bound saves questions", seed);
        p.upper_bound_ps = best;
        check(mpp_pipeline_solve(a, &p, &y) == MPP_OK && y.n_stages == 0 && y.bound_ps == best && y.time_ps == INT64_MAX,
              "nothing below the optimum", seed);
        mpp_arena_free(a);
    }
}

/* Can these checks fail? Bounds above the truth cut off optima, as a search that prunes too much would. */
static void check_wrong_bounds(void)
{
    int wrong = 0, tried = 0;
    for (int seed = 0; seed < 300; seed++) {
        struct mpp_arena *a = mpp_arena_new();
        struct mpp_pipeline_problem p;
        struct mpp_pipeline_answer x;
        struct costs c;
        rng = (uint64_t)seed << 24;
        random_problem(a, &p, &c);
        c.asked[0] = c.asked[1] = NULL;
        c.bounds = 5;
        c.too_high = 40;
        check(mpp_pipeline_solve(a, &p, &x) == MPP_OK, "solved", seed);
        int64_t best = exhaustive(&p, &c);
        wrong += x.time_ps != best;
        tried += best != INT64_MAX;
        check(x.time_ps >= best && (x.n_stages == 0 || plan_holds(&p, &c, &x)), "still a plan", seed);
        mpp_arena_free(a);
    }
    printf("bounds above the truth: %d of %d answers differ from the optimum\n", wrong, tried);
    check(wrong > 10, "bounds above the truth are noticed", 0);
}

static void check_interrupts(void)
{
    int with_plan = 0, stopped = 0;
    for (int seed = 0; seed < 200; seed++) {
        struct mpp_arena *a = mpp_arena_new();
        struct mpp_pipeline_problem p;
        struct mpp_pipeline_answer x;
        struct costs c;
        volatile int interrupt = 0;
        rng = (uint64_t)seed << 24;
        random_problem(a, &p, &c);
        c.bounds = 10;
        c.memory = 0;
        int64_t best = exhaustive(&p, &c);
        check(mpp_pipeline_solve(a, &p, &x) == MPP_OK, "solved", seed);
        c.asked[0] = c.asked[1] = NULL;
        c.stop_after = 1 + rnd(c.calls + 1);
        c.calls = 0;
        p.interrupt = c.interrupt = &interrupt;
        enum mpp_status st = mpp_pipeline_solve(a, &p, &x);
        check(st == (interrupt && x.bound_ps < x.time_ps ? MPP_LIMIT : st), "an interrupt is told", seed);
        check(x.bound_ps <= best && x.time_ps >= best, "bounds hold when interrupted", seed);
        check(x.n_stages == 0 || plan_holds(&p, &c, &x), "the best so far is a plan", seed);
        with_plan += st == MPP_LIMIT && x.n_stages > 0;
        stopped += st == MPP_LIMIT;
        if (interrupt) {
            c.calls = 0;
            c.stop_after = 0;
            check(mpp_pipeline_solve(a, &p, &x) == MPP_LIMIT && c.calls <= 1, "interrupted before it begins", seed);
        }
        mpp_arena_free(a);
    }
    check(with_plan > 0 && stopped > with_plan, "interrupts before and after the first plan", 0);
}

/* Times near the largest: sums saturate, and a plan that fits below is still found. */
static void check_large_times(struct mpp_arena *a)
{
    for (int seed = 0; seed < 20; seed++) {
        struct mpp_pipeline_problem p;
        struct mpp_pipeline_answer x;
        struct costs c;
        rng = (uint64_t)seed << 24;
        random_problem(a, &p, &c);
        c.asked[0] = c.asked[1] = NULL;
        c.memory = 0;
        c.regular = c.growing = p.longer_is_worse = false;
        c.range = INT64_MAX / 400;
        p.micro_batches = 12;
        int64_t best = exhaustive(&p, &c);
        check(mpp_pipeline_solve(a, &p, &x) == MPP_OK && x.time_ps == best, "large times", seed);
        c.range = INT64_MAX;
        c.n_options = 1;
        check(mpp_pipeline_solve(a, &p, &x) == MPP_OK && x.bound_ps <= x.time_ps, "times that saturate", seed);
    }
}

/* ---- large problems --------------------------------------------------------------------------- */

struct table {
    int64_t before[97];           /* time of all layers before a layer, on one device */
    int lazy;                     /* bounds are lower by 1 / LAZY; 0: exact */
    struct mpp_pipeline_option option[2];
};

static int look_up(void *context, const struct mpp_pipeline_key *k, bool exact, const struct mpp_pipeline_option **out,
                   bool *out_exact)
{
    struct table *x = context;
    int64_t layers = k->last_layer - k->first_layer + 1;
    int64_t t = (x->before[k->last_layer + 1] - x->before[k->first_layer]) / k->n_devices
                + 40000000 * (k->n_devices > 8) + (k->first_layer == 0) * 100000000;
    x->option[0] = (struct mpp_pipeline_option){t, 900000000 / k->n_devices + 500000000, 1, false};
    x->option[1] = (struct mpp_pipeline_option){t + t / 50, 900000000 / k->n_devices + 100000000, 2, false};
    if (x->lazy && !exact)
        for (int i = 0; i < 2; i++)
            x->option[i].t_ps -= x->option[i].t_ps / x->lazy;
    *out = x->option;
    *out_exact = exact || !x->lazy;
    if (layers * (2 + k->in_flight) > 40 * k->n_devices)
        return 0;
    return 2;
}

static int class_of(void *context, const struct mpp_pipeline_key *k)
{
    (void)context;
    return ((k->last_layer - k->first_layer) * 2 + (k->first_layer == 0)) * 4096 + (int)k->in_flight;
}

struct large {
    const char *name;
    int layers, devices;
    bool equal, powers;
    enum mpp_schedule_kind kind;
    int chunks, lazy;
    bool odd;
    int64_t micro_batches;
};

static const struct large LARGE[] = {
    {"96 layers, 3072 devices, equal sizes, 1F1B", 96, 3072, true, false, MPP_SCHEDULE_1F1B, 1, 0, false, 128},
    {"the same, GPipe", 96, 3072, true, false, MPP_SCHEDULE_GPIPE, 1, 0, false, 128},
    {"the same, interleaved by 2", 96, 3072, true, false, MPP_SCHEDULE_INTERLEAVED, 2, 0, false, 384},
    {"the same, unlike layers, 1F1B", 96, 3072, true, false, MPP_SCHEDULE_1F1B, 1, 0, true, 128},
    {"the same, bounds 1 % below", 96, 3072, true, false, MPP_SCHEDULE_1F1B, 1, 100, true, 128},
    {"24 layers, 64 devices, powers of 2, 1F1B", 24, 64, false, true, MPP_SCHEDULE_1F1B, 1, 0, true, 64},
    {"24 layers, 64 devices, all sizes, 1F1B", 24, 64, false, false, MPP_SCHEDULE_1F1B, 1, 0, true, 64},
    {"the same, bounds 1 % below", 24, 64, false, false, MPP_SCHEDULE_1F1B, 1, 100, true, 64},
    {"the same, interleaved by 2", 24, 64, false, false, MPP_SCHEDULE_INTERLEAVED, 2, 0, true, 48},
};

static struct mpp_pipeline_problem large_problem(struct mpp_arena *a, const struct large *l, struct table *x)
{
    int *sizes = mpp_arena_array(a, l->devices, int), n = 0;
    for (int s = 1; s <= l->devices; s++)
        if (l->powers ? (s & (s - 1)) == 0 : !l->equal || l->devices % s == 0)
            sizes[n++] = s;
    *x = (struct table){.lazy = l->lazy};
    for (int i = 0; i < l->layers; i++)
        x->before[i + 1] = x->before[i] + 3000000000 + (l->odd ? (int64_t)(mix((uint64_t)i) % 300000000) : 0);
    return (struct mpp_pipeline_problem){
        .n_layers = l->layers, .n_devices = l->devices, .n_sizes = n, .sizes = sizes, .max_stages = 96,
        .equal_sizes = l->equal, .kind = l->kind, .chunks = l->chunks, .micro_batches = l->micro_batches,
        .upper_bound_ps = INT64_MAX, .options = look_up, .context = x,
    };
}

/* Work is counted, not timed: passes stay few however many layers and limits there are. */
static void check_large(bool bench)
{
    for (size_t i = 0; i < sizeof LARGE / sizeof *LARGE; i++) {
        struct mpp_arena *a = mpp_arena_new();
        struct table x;
        struct mpp_pipeline_problem p = large_problem(a, &LARGE[i], &x);
        struct mpp_pipeline_answer one, two;
        clock_t begun = clock();
        check(mpp_pipeline_solve(a, &p, &one) == MPP_OK && one.n_stages > 0, LARGE[i].name, 0);
        if (bench)
            printf("%-45s %8.1f ms, %" PRId64 " asked, %" PRId64 " exactly, %" PRId64 " passes, %d stages\n", LARGE[i].name,
                   1e3 * (double)(clock() - begun) / CLOCKS_PER_SEC, one.asked, one.asked_exact, one.passes, one.n_stages);
        check(one.passes <= 150, "few passes", (int)i);
        check(one.bound_ps == one.time_ps, "proven", (int)i);
        p.upper_bound_ps = one.time_ps + one.time_ps / 20;
        begun = clock();
        check(mpp_pipeline_solve(a, &p, &two) == MPP_OK && two.time_ps == one.time_ps, "the same below a bound", (int)i);
        if (bench)
            printf("%-45s %8.1f ms, %" PRId64 " asked, %" PRId64 " passes\n", "   with a plan 5 % above known",
                   1e3 * (double)(clock() - begun) / CLOCKS_PER_SEC, two.asked, two.passes);
        check(two.asked <= one.asked, "a bound saves questions", (int)i);
        p.longer_is_worse = true;
        begun = clock();
        check(mpp_pipeline_solve(a, &p, &two) == MPP_OK && two.time_ps == one.time_ps, "the same with the promise", (int)i);
        if (bench)
            printf("%-45s %8.1f ms, %" PRId64 " asked, %" PRId64 " passes\n", "   and longer spans known to be worse",
                   1e3 * (double)(clock() - begun) / CLOCKS_PER_SEC, two.asked, two.passes);
        check(two.asked * 2 < one.asked, "the promise saves questions", (int)i);
        p.longer_is_worse = false;
        if (!LARGE[i].odd && LARGE[i].equal) {
            p.upper_bound_ps = INT64_MAX;
            p.alike = class_of;
            p.stages = (const int[]){16, 0};
            p.max_stages = 16;
            struct mpp_pipeline_answer three;
            check(mpp_pipeline_solve(a, &p, &three) == MPP_OK, "with classes", (int)i);
            int64_t asked = three.asked;
            p.alike = NULL;
            check(mpp_pipeline_solve(a, &p, &two) == MPP_OK && two.time_ps == three.time_ps, "classes change nothing", (int)i);
            check(asked * 4 < two.asked, "classes save questions", (int)i);
        }
        mpp_arena_free(a);
    }
}

int main(int argc, char **argv)
{
    bool bench = argc > 1 && !strcmp(argv[1], "--bench");
    struct mpp_arena *a = mpp_arena_new();
    int solved = 0, lazy = 0;
    if (!bench) {
        check_orders(a);
        check_times(a);
        check_random_schedules(a);
        check_random_problems(&solved, &lazy);
        printf("%d of 900 problems have a plan, %d needed exact options\n", solved, lazy);
        check(solved > 500 && lazy > 200, "problems of every kind", 0);
        check_wrong_bounds();
        check_interrupts();
        check_large_times(a);
    }
    check_large(bench);
    mpp_arena_free(a);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
