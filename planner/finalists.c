#include "planner/finalists.h"

#include <string.h>

#include "planner/stage.h"

enum { MOST_OTHERS = 8, MOST_SIZES = 8, MOST_STEPS = 200000 };
/* Plans of more pieces of work are not simulated, and plans that take so much longer are not close. */
static const double MOST_EVENTS = 4e6, CLOSE = 1.5;

struct mpp_finalists {
    struct mpp_arena *arena;
    struct mpp_finalist *list;
    size_t cap;
    int n;
};

struct mpp_finalists *mpp_finalists_new(struct mpp_arena *arena)
{
    struct mpp_finalists *f = mpp_arena_array(arena, 1, struct mpp_finalists);
    f->arena = arena;
    return f;
}

static int64_t simulate(struct mpp_arena *arena, const struct mpp_finalist *x)
{
    struct mpp_schedule s = x->schedule;
    s.stages = x->answer.n_stages;
    if (s.stages == 1 || 2.0 * s.stages * s.chunks * (double)s.micro_batches > MOST_EVENTS)
        return x->answer.time_ps;
    struct mpp_arena *scratch = mpp_arena_scratch(arena);
    struct mpp_stage_time *time = mpp_arena_array(scratch, s.stages, struct mpp_stage_time);
    for (int i = 0; i < s.stages; i++)
        time[i] = mpp_stages_facts(x->stages, x->answer.stage[i].option.id)->time;
    int64_t simulated = mpp_schedule_simulate(scratch, &s, time, NULL, NULL);
    mpp_arena_free(scratch);
    return simulated;
}

void mpp_finalists_add(struct mpp_finalists *f, const struct mpp_finalist *x)
{
    f->list = mpp_arena_grow(f->arena, f->list, &f->cap, (size_t)f->n + 1, sizeof *f->list);
    f->list[f->n] = *x;
    f->list[f->n].simulated_ps = simulate(f->arena, x);
    f->list[f->n++].schedule.stages = x->answer.n_stages;
}

static bool better(const struct mpp_finalist *a, const struct mpp_finalist *b)
{
    return a->simulated_ps != b->simulated_ps ? a->simulated_ps < b->simulated_ps : a->answer.time_ps < b->answer.time_ps;
}

const struct mpp_finalist *mpp_finalists_best(const struct mpp_finalists *f)
{
    const struct mpp_finalist *best = NULL;
    for (int i = 0; i < f->n; i++)
        if (!f->list[i].dropped && (!best || better(&f->list[i], best)))
            best = &f->list[i];
    return best;
}

static struct mpp_finalist *find(const struct mpp_finalists *f, const struct mpp_pipeline_stage *stage)
{
    for (int i = 0; i < f->n; i++)
        if (f->list[i].answer.stage == stage)
            return &f->list[i];
    return NULL;
}

const struct mpp_finalist *mpp_finalists_find(const struct mpp_finalists *f, const struct mpp_pipeline_stage *stage)
{
    return find(f, stage);
}

void mpp_finalists_change(struct mpp_finalists *f, const struct mpp_pipeline_stage *stage, int64_t time_ps)
{
    struct mpp_finalist *x = find(f, stage);
    if (!x)
        return;
    x->answer.time_ps = time_ps;
    x->simulated_ps = simulate(f->arena, x);
}

void mpp_finalists_drop(struct mpp_finalists *f, const struct mpp_pipeline_stage *stage)
{
    for (int i = 0; i < f->n; i++)
        f->list[i].dropped = f->list[i].dropped || f->list[i].answer.stage == stage;
}

void mpp_finalists_restore(struct mpp_finalists *f)
{
    for (int i = 0; i < f->n; i++)
        f->list[i].dropped = false;
}

/* ---- all plans near the best ---- */

struct around {
    struct mpp_finalists *f;
    const struct mpp_pipeline_problem *p;
    struct mpp_finalist plan;     /* being made */
    int64_t least_ps;             /* the least simulated time so far */
    int left;                     /* steps that may still be taken */
    struct mpp_arena *arena;
    struct mpp_memo *keys;
    struct asked {
        int n;
        struct mpp_pipeline_option *option;
    } *asked;                     /* by key: the options that are sure and of use */
    size_t cap;
};

struct sums {                     /* of the stages so far */
    int64_t t, longest, once, before; /* before: what a micro-batch takes to get here */
    int64_t busiest;              /* no simulation takes less */
};

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static struct asked ask(struct around *a, const struct mpp_pipeline_key *key)
{
    int64_t place[5] = {key->first_layer, key->last_layer, key->first_device, key->n_devices, key->in_flight};
    const struct mpp_pipeline_option *o;
    bool exact, is_new;
    int id = mpp_memo_add(a->keys, place, sizeof place, &is_new);
    if (!is_new)
        return a->asked[id];
    int n = a->p->options(a->p->context, key, false, &o, &exact);
    struct asked x = {0, mpp_arena_array(a->arena, n, struct mpp_pipeline_option)};
    for (int i = 0; i < n; i++) {
        bool worse = !exact && !o[i].sure;
        for (int j = 0; j < n && !worse; j++)
            worse = (exact || o[j].sure) && o[j].t_ps <= o[i].t_ps && o[j].once_ps <= o[i].once_ps
                    && (o[j].t_ps < o[i].t_ps || o[j].once_ps < o[i].once_ps);
        if (!worse)
            x.option[x.n++] = o[i];
    }
    a->asked = mpp_arena_grow(a->arena, a->asked, &a->cap, (size_t)id + 1, sizeof *a->asked);
    return a->asked[id] = x;
}

static void look_at(struct around *a, int stage, int layer, int device, struct sums s)
{
    const struct mpp_pipeline_problem *p = a->p;
    struct mpp_pipeline_answer *plan = &a->plan.answer;
    int left = plan->n_stages - stage - 1;
    plan->time_ps = mpp_schedule_time_of(&a->plan.schedule, s.t, s.longest, s.once);
    if (plan->time_ps >= p->upper_bound_ps || s.busiest >= a->least_ps || a->left-- <= 0)
        return;
    if (left < 0) {
        int64_t simulated = simulate(a->f->arena, &a->plan);
        if (simulated >= a->least_ps)
            return;
        struct mpp_finalist x = a->plan;
        x.answer.stage = mpp_arena_memdup(a->f->arena, plan->stage, sizeof *plan->stage * (size_t)plan->n_stages);
        a->least_ps = simulated;
        mpp_finalists_add(a->f, &x);
        return;
    }
    for (int last = left ? layer : p->n_layers - 1; last < p->n_layers - left; last++)
        for (int j = 0; j < p->n_sizes; j++) {
            int size = p->sizes[j], end = device + size;
            if ((left ? end > p->n_devices - left : end != p->n_devices) || (p->equal_sizes && size * plan->n_stages != p->n_devices)
                || (last - layer + 1) % p->chunks)
                continue;
            struct mpp_pipeline_key key = {layer, last, device, size, stage, plan->n_stages,
                                           mpp_schedule_held(&a->plan.schedule, stage)};
            struct asked x = ask(a, &key);
            for (int i = 0; i < x.n; i++) {
                int64_t t = x.option[i].t_ps;
                plan->stage[stage] = (struct mpp_pipeline_stage){key, x.option[i]};
                look_at(a, stage + 1, last + 1, end, (struct sums){
                    s.t + t, larger(s.longest, t), larger(s.once, x.option[i].once_ps), s.before + t / p->chunks,
                    larger(s.busiest, s.before + p->micro_batches * t)});
            }
        }
}

void mpp_finalists_look_around(struct mpp_finalists *f, const struct mpp_pipeline_problem *problem, const struct mpp_finalist *like)
{
    struct mpp_arena *scratch = mpp_arena_scratch(f->arena);
    const struct mpp_finalist *best = mpp_finalists_best(f);
    struct around a = {.f = f, .p = problem, .plan = *like, .least_ps = best ? best->simulated_ps : INT64_MAX, .left = MOST_STEPS,
                       .arena = scratch, .keys = mpp_memo_new(scratch)};
    a.plan.answer = (struct mpp_pipeline_answer){.n_stages = problem->stages[0]};
    a.plan.schedule.stages = problem->stages[0];
    a.plan.answer.stage = mpp_arena_array(scratch, problem->stages[0], struct mpp_pipeline_stage);
    look_at(&a, 0, 0, 0, (struct sums){0});
    mpp_arena_free(scratch);
}

/* ---- what else was close ---- */

static const struct mpp_stages_facts *facts_of(const struct mpp_finalist *x, int stage)
{
    return mpp_stages_facts(x->stages, x->answer.stage[stage].option.id);
}

static int devices_of(const struct mpp_finalist *x, int stage)
{
    return x->answer.stage[stage].key.n_devices;
}

static int layers_of(const struct mpp_finalist *x, int stage)
{
    const struct mpp_pipeline_key *k = &x->answer.stage[stage].key;
    return k->last_layer - k->first_layer + 1;
}

/* "2 x 4", of axes that are longer than 1; "1". */
static const char *mesh_text(struct mpp_arena *arena, const struct mpp_mesh *m)
{
    const char *text = "";
    for (int a = 0; a < m->n_axes; a++)
        if (m->size[a] > 1)
            text = mpp_arena_printf(arena, "%s%s%d", text, *text ? " x " : "", m->size[a]);
    return *text ? text : "1";
}

/* "4 stages of 2 devices, mesh 2, 8 micro-batches, recompute full"; "stages of 1, 3 and 4 devices, ..." */
static const char *what_text(struct mpp_arena *arena, const struct mpp_finalist *x)
{
    int n = x->answer.n_stages;
    bool same_size = true, same_layers = true, same_mesh = true, same_recompute = true;
    const struct mpp_stages_facts *first = facts_of(x, 0);
    for (int i = 1; i < n; i++) {
        const struct mpp_stages_facts *f = facts_of(x, i);
        same_size = same_size && devices_of(x, i) == devices_of(x, 0);
        same_layers = same_layers && layers_of(x, i) == layers_of(x, 0);
        same_mesh = same_mesh && strcmp(mesh_text(arena, &f->mesh), mesh_text(arena, &first->mesh)) == 0;
        same_recompute = same_recompute && f->recompute == first->recompute;
    }
    const char *text = n == 1 ? "one stage" : mpp_arena_printf(arena, "%d stages of %d", n, devices_of(x, 0));
    for (int i = 1; i < n && !same_size && i < MOST_SIZES; i++)
        text = mpp_arena_printf(arena, "%s%s%d", text, i == n - 1 ? " and " : ", ", devices_of(x, i));
    if (n > 1)
        text = mpp_arena_printf(arena, "%s%s device%s", text, !same_size && n > MOST_SIZES ? ", ..." : "",
                                same_size && devices_of(x, 0) == 1 ? "" : "s");
    if (n > 1 && n <= MOST_SIZES && !same_layers) {
        text = mpp_arena_printf(arena, "%s, layers %d", text, layers_of(x, 0));
        for (int i = 1; i < n; i++)
            text = mpp_arena_printf(arena, "%s%s%d", text, i == n - 1 ? " and " : ", ", layers_of(x, i));
    }
    text = same_mesh ? mpp_arena_printf(arena, "%s, mesh %s", text, mesh_text(arena, &first->mesh))
                     : mpp_arena_printf(arena, "%s, their meshes unlike", text);
    if (x->schedule.chunks > 1)
        text = mpp_arena_printf(arena, "%s, interleaved by %d", text, x->schedule.chunks);
    text = mpp_arena_printf(arena, "%s, %lld micro-batch%s", text, (long long)x->schedule.micro_batches,
                            x->schedule.micro_batches == 1 ? "" : "es");
    if (!same_recompute || first->recompute != MPP_RECOMPUTE_NONE)
        text = mpp_arena_printf(arena, "%s, recompute %s", text, same_recompute ? mpp_recompute_name(first->recompute) : "in some stages");
    return text;
}

/* Where the time of a step goes by the formula. */
struct parts {
    double work, once, bubble;    /* of the longest stage: micro-batches, once per step; the rest */
};

static struct parts parts_of(const struct mpp_finalist *x)
{
    int64_t longest = 0, once = 0;
    for (int i = 0; i < x->answer.n_stages; i++) {
        const struct mpp_pipeline_option *o = &x->answer.stage[i].option;
        longest = o->t_ps > longest ? o->t_ps : longest;
        once = o->once_ps > once ? o->once_ps : once;
    }
    struct parts p = {(double)longest * (double)x->schedule.micro_batches, (double)once, 0};
    p.bubble = (double)x->answer.time_ps - p.work - p.once;
    return p;
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

/* What X loses most by, beside BEST (NULL: a plan of one stage); NULL: nothing sticks out. */
static const char *why_text(struct mpp_arena *arena, const struct mpp_finalist *x, const struct mpp_finalist *best)
{
    struct parts a = parts_of(x), b;
    if (!best)
        return x->answer.n_stages == 1 ? NULL : mpp_arena_printf(arena, "bubble %.3g %%", percent(a.bubble, (double)x->answer.time_ps));
    b = parts_of(best);
    double ta = (double)x->answer.time_ps, tb = (double)best->answer.time_ps, most = 0.002 * tb;
    const char *why = NULL;
    if (ta <= tb && x->simulated_ps > best->simulated_ps)
        return mpp_arena_printf(arena, "event by event it takes %.2g %% longer",
                                percent((double)(x->simulated_ps - best->simulated_ps), (double)best->simulated_ps));
    if (a.bubble - b.bubble > most) {
        most = a.bubble - b.bubble;
        why = mpp_arena_printf(arena, "bubble %.3g %% instead of %.3g %%", percent(a.bubble, ta), percent(b.bubble, tb));
    }
    if (a.work - b.work > most) {
        most = a.work - b.work;
        why = mpp_arena_printf(arena, "%.3g %% more work in the %s", percent(a.work - b.work, b.work),
                               x->answer.n_stages > 1 ? "longest stage" : "micro-batches");
    }
    if (a.once - b.once > most)
        why = mpp_arena_printf(arena, "%.3g ms once per step instead of %.3g ms", a.once * 1e-9, b.once * 1e-9);
    return why;
}

/* The least time by the formula, the first of equals. */
static int best_by_formula(const struct mpp_finalists *f)
{
    int best = 0;
    for (int i = 1; i < f->n; i++)
        if (f->list[i].answer.time_ps < f->list[best].answer.time_ps)
            best = i;
    return best;
}

/* The next best after those SEEN; -1: none. */
static int next_of(const struct mpp_finalists *f, const bool *seen)
{
    int next = -1;
    for (int i = 0; i < f->n; i++)
        if (!seen[i] && (next < 0 || better(&f->list[i], &f->list[next])))
            next = i;
    return next;
}

int mpp_finalists_others(const struct mpp_finalists *f, const struct mpp_finalist *best, struct mpp_arena *arena,
                         struct mpp_runner_up **out)
{
    const struct mpp_finalist *first = best ? best : mpp_finalists_best(f);
    struct mpp_runner_up *others = mpp_arena_array(arena, MOST_OTHERS, struct mpp_runner_up);
    bool *seen = mpp_arena_array(arena, f->n, bool);
    int n = 0, formula = best_by_formula(f);
    for (int i = 0; i < f->n; i++)
        seen[i] = &f->list[i] == best || f->list[i].dropped;
    while (n < MOST_OTHERS) {
        int next = n == MOST_OTHERS - 1 && !seen[formula] ? formula : next_of(f, seen);
        if (next < 0 || (double)f->list[next].simulated_ps > CLOSE * (double)first->simulated_ps)
            break;
        seen[next] = true;
        const char *what = what_text(arena, &f->list[next]);
        bool known = best && strcmp(what, what_text(arena, best)) == 0;
        for (int i = 0; i < n && !known; i++)
            known = strcmp(what, others[i].what) == 0;
        if (known && best && next == formula && f->list[next].answer.time_ps < best->answer.time_ps) {
            what = mpp_arena_printf(arena, "%s, divided otherwise", what);
            known = false;
        }
        if (!known)
            others[n++] = (struct mpp_runner_up){what, why_text(arena, &f->list[next], best), f->list[next].answer.time_ps};
    }
    *out = others;
    return n;
}
