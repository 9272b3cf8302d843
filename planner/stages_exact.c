/* stages_exact.c - all that stages of small models can do.
 *
 * A stage's program is solved as it is, without folding, on every mesh and with every recomputation, and offers all it can
 * trade of time per micro-batch for work per step (front.h). First without a memory limit: what fits nevertheless is sure,
 * the rest are bounds; so are the corners below which points between two neighbours may lie. Asked for exact options, it is solved
 * within memory; what lies between points is not looked for, but if it could be part of a better plan that is said. */
#include <string.h>

#include "planner/front.h"
#include "planner/stages_internal.h"

enum { STEPS = 8 };               /* bounds of what lies between two points */
enum { FINAL = 2 };               /* asked for exact options so often, nothing more is said */

/* What a config offers, free or with so many micro-batches in flight. */
struct offer {
    bool known;
    struct mpp_front front;
};

/* A config that answers a question. */
struct source {
    struct mpp_stages_config *config;
    int mesh;
    enum mpp_recompute recompute;
    int number;
};

struct gap {                      /* between two points of a source */
    struct mpp_front_point a, b;
};

struct mpp_stages_offers {        /* of a round */
    struct mpp_memo *configs, *cases, *asked;
    size_t cap_free, cap_within, cap_level, cap_option, cap_gap;
    struct offer **free, **within;
    int8_t *level;                /* [questions] how often it was asked for exact options */
    struct mpp_pipeline_option *option;
    int n_options;
    struct gap *gap;
    int n_gaps;
};

static struct mpp_stages_offers *offers_of(struct mpp_stages *s)
{
    if (!s->offers) {
        s->offers = mpp_arena_array(s->round, 1, struct mpp_stages_offers);
        s->offers->configs = mpp_memo_new(s->round);
        s->offers->cases = mpp_memo_new(s->round);
        s->offers->asked = mpp_memo_new(s->round);
    }
    return s->offers;
}

static bool make_fold(struct mpp_arena *arena, const struct source *x, int64_t in_flight, int64_t capacity, struct mpp_fold *out)
{
    struct mpp_fold_run none = {.repeat = -1};
    bool ok = mpp_fold_make(arena, x->config->problem, &none, in_flight, out);
    out->solver.capacity_bytes = capacity;
    return ok;
}

/* What X offers if memory is no matter. */
static const struct mpp_front *look_freely(struct mpp_stages *s, const struct source *x)
{
    struct offer *o = s->offers->free[x->number];
    if (o->known)
        return &o->front;
    struct mpp_arena *scratch = mpp_arena_scratch(s->round);
    struct mpp_fold fold;
    o->known = true;
    if (make_fold(scratch, x, 1, INT64_MAX, &fold))
        mpp_front_find(s->round, &fold, s->schedule.micro_batches, s->schedule.chunks, s->upper, s->interrupt, &o->front);
    s->solved += o->front.solved;
    s->gave_up = s->gave_up || o->front.given_up;
    mpp_arena_free(scratch);
    return &o->front;
}

/* What X offers within memory with IN_FLIGHT micro-batches. */
static const struct mpp_front *look_within(struct mpp_stages *s, const struct source *x, int64_t in_flight)
{
    struct mpp_stages_offers *all = s->offers;
    int64_t key[2] = {x->number, in_flight};
    bool is_new;
    int id = mpp_memo_add(all->cases, key, sizeof key, &is_new);
    if (is_new) {
        all->within = mpp_arena_grow(s->round, all->within, &all->cap_within, (size_t)id + 1, sizeof *all->within);
        all->within[id] = mpp_arena_array(s->round, 1, struct offer);
    }
    struct offer *o = all->within[id];
    if (o->known)
        return &o->front;
    struct mpp_arena *scratch = mpp_arena_scratch(s->round);
    struct mpp_fold fold;
    o->known = true;
    if (make_fold(scratch, x, in_flight, s->capacity, &fold))
        mpp_front_find(s->round, &fold, s->schedule.micro_batches, s->schedule.chunks, s->upper, s->interrupt, &o->front);
    s->solved += o->front.solved;
    s->within += o->front.solved;
    s->gave_up = s->gave_up || o->front.given_up;
    mpp_arena_free(scratch);
    return &o->front;
}

static void offer(struct mpp_stages *s, int64_t t, int64_t once, int id, bool sure)
{
    struct mpp_stages_offers *o = s->offers;
    o->option = mpp_arena_grow(s->round, o->option, &o->cap_option, (size_t)o->n_options + 1, sizeof *o->option);
    o->option[o->n_options++] = (struct mpp_pipeline_option){t, once, id, sure};
}

/* A point of X that fits, as a choice that can be decided. */
static int choice_of(struct mpp_stages *s, const struct mpp_stages_question *q, const struct source *x,
                     const struct mpp_front_point *p, const struct mpp_fold *fold)
{
    s->choice = mpp_arena_grow(s->arena, s->choice, &s->cap_choice, (size_t)s->n_choices + 1, sizeof *s->choice);
    int64_t objective = s->schedule.micro_batches * p->t_ps + p->once_ps;
    s->choice[s->n_choices] = (struct mpp_stages_choice){
        q->range, x->mesh, x->recompute, q->shape,
        mpp_arena_memdup(s->arena, p->choice, sizeof *p->choice * (size_t)fold->solver.n_nodes),
        objective, objective,
        {mpp_fold_stage_time(fold, p->choice, s->schedule.micro_batches), mpp_stages_place_of(s, q->range)->mesh[x->mesh].mesh,
         x->recompute}};
    return s->n_choices++;
}

/* Something may lie between the points A and B. */
static void add_gap(struct mpp_stages *s, const struct mpp_front_point *a, const struct mpp_front_point *b)
{
    struct mpp_stages_offers *o = s->offers;
    if (b->t_ps - a->t_ps <= 1 || a->once_ps - b->once_ps <= 1)
        return;
    o->gap = mpp_arena_grow(s->round, o->gap, &o->cap_gap, (size_t)o->n_gaps + 1, sizeof *o->gap);
    o->gap[o->n_gaps++] = (struct gap){*a, *b};
}

/* Could a stage of T and ONCE be of use beside the N options there are? */
static bool of_use(const struct mpp_stages *s, int n, int64_t t, int64_t once)
{
    for (int i = 0; i < n; i++)
        if (s->offers->option[i].sure && s->offers->option[i].t_ps <= t && s->offers->option[i].once_ps <= once)
            return false;
    return mpp_schedule_time_of(&s->schedule, t, t, once) < s->upper;
}

/* Bounds of what may lie in a gap, on or above the line between its ends, that are of use beside N options; into the
 * options if OFFER. How many. */
static int bound_gap(struct mpp_stages *s, const struct gap *g, int n, bool offered)
{
    int64_t dt = g->b.t_ps - g->a.t_ps, dy = g->a.once_ps - g->b.once_ps, least = dt < dy ? dt : dy;
    int steps = least > STEPS ? STEPS : (int)least - 1, found = 0;
    for (int k = 0; k < steps; k++) {
        int64_t t = g->a.t_ps + 1 + (int64_t)((double)dt * k / steps);
        int64_t once = k + 1 == steps ? g->b.once_ps + 1 : g->a.once_ps - (int64_t)((double)dy * (k + 1) / steps);
        if (!of_use(s, n, t, once))
            continue;
        found++;
        if (offered)
            offer(s, t, once, -1, false);
    }
    return found;
}

/* Add the points of X for Q; WITHIN: those within memory. False: there may be others, since some do not fit. */
static bool add_points(struct mpp_stages *s, const struct mpp_stages_question *q, const struct source *x, bool within)
{
    struct mpp_arena *scratch = mpp_arena_scratch(s->round);
    const struct mpp_front *f = look_freely(s, x);
    struct mpp_fold fold;
    bool *fits = mpp_arena_array(scratch, f->n + 1, bool), all_fit = true;
    if (f->n > 0 && make_fold(scratch, x, q->in_flight, s->capacity, &fold)) {
        for (int i = 0; i < f->n; i++) {
            int64_t peak;
            (void)mpp_solver_evaluate(&fold.solver, f->point[i].choice, &peak, NULL);
            fits[i] = peak <= s->capacity;
            all_fit = all_fit && fits[i];
        }
        bool free = all_fit || !within;
        if (!free)
            f = look_within(s, x, q->in_flight);
        for (int i = 0; i < f->n; i++) {
            bool sure = !free || fits[i];
            offer(s, f->point[i].t_ps, f->point[i].once_ps, sure ? choice_of(s, q, x, &f->point[i], &fold) : -1, sure);
        }
        for (int i = 0; i + 1 < f->n; i++)
            add_gap(s, &f->point[i], &f->point[i + 1]);
    }
    mpp_arena_free(scratch);
    return all_fit || within;
}

/* The configs that can answer Q, one after the other from *MESH and *R on; false: there is none left. */
static bool next_source(struct mpp_stages *s, const struct mpp_stages_question *q, int *mesh, int *r, struct source *out)
{
    const struct mpp_stages_place *place = mpp_stages_place_of(s, q->range);
    int pinned = s->options->pins.recompute, first = pinned >= 0 ? pinned : 0, last = pinned >= 0 ? pinned : MPP_RECOMPUTE_FULL;
    for (; *mesh < place->n_meshes; ++*mesh, *r = 0) {
        if (!mpp_stages_batch_agrees(s, &place->mesh[*mesh]))
            continue;
        for (*r = *r < first ? first : *r; *r <= last;) {
            enum mpp_recompute recompute = (enum mpp_recompute)(*r)++;
            int plain = mpp_stages_find_span(s, q->shape, MPP_RECOMPUTE_NONE), span = mpp_stages_find_span(s, q->shape, recompute);
            const struct mpp_graph *a = s->span[plain].graph, *b = s->span[span].graph;
            if (pinned < 0 && span != plain && a && b && a->n_ops == b->n_ops)
                continue;         /* nothing is run again */
            int key[3] = {span, q->range, *mesh};
            bool is_new;
            int number = mpp_memo_add(s->offers->configs, key, sizeof key, &is_new);
            if (is_new) {
                s->offers->free = mpp_arena_grow(s->round, s->offers->free, &s->offers->cap_free, (size_t)number + 1, sizeof *s->offers->free);
                s->offers->free[number] = mpp_arena_array(s->round, 1, struct offer);
            }
            *out = (struct source){mpp_stages_find_config(s, span, q->range, *mesh), *mesh, recompute, number};
            if (out->config->ok)
                return true;
        }
    }
    return false;
}

int mpp_stages_exact_options(void *context, const struct mpp_pipeline_key *key, bool exact,
                             const struct mpp_pipeline_option **out, bool *out_exact)
{
    struct mpp_stages *s = context;
    struct mpp_stages_offers *o = offers_of(s);
    struct mpp_stages_question q;
    struct source x;
    int mesh = 0, r = 0;
    *out_exact = true;
    if (mpp_stages_interrupted(s) || !mpp_stages_ask_whole(s, key, &q))
        return 0;
    int64_t place[4] = {q.shape.first, q.shape.last, q.range, q.in_flight};
    bool is_new;
    int id = mpp_memo_add(o->asked, place, sizeof place, &is_new);
    if (is_new) {
        o->level = mpp_arena_grow(s->round, o->level, &o->cap_level, (size_t)id + 1, sizeof *o->level);
        o->level[id] = 0;
    }
    o->level[id] += exact && o->level[id] < FINAL;
    int level = !exact && o->level[id] == FINAL ? FINAL - 1 : o->level[id];
    o->n_options = o->n_gaps = 0;
    while (next_source(s, &q, &mesh, &r, &x))
        *out_exact = add_points(s, &q, &x, level > 0) && *out_exact;
    int n = o->n_options;
    for (int i = 0; i < o->n_gaps; i++) {
        bool any = bound_gap(s, &o->gap[i], n, level < FINAL) > 0;
        *out_exact = *out_exact && (level == FINAL || !any);
        s->gave_up = s->gave_up || (level == FINAL && any);
    }
    *out = o->option;
    return o->n_options;
}

int mpp_stages_exact_alike(void *context, const struct mpp_pipeline_key *key)
{
    struct mpp_stages *s = context;
    struct mpp_stages_question q;
    bool is_new;
    if (!mpp_stages_ask_whole(s, key, &q))
        return -1;
    int64_t place[5] = {q.shape.first, q.shape.last, -1, q.range, q.in_flight};
    return mpp_memo_add(s->keys, place, sizeof place, &is_new);
}
