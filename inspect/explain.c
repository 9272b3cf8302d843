/* explain.c - why a thing is as it is: its alternatives, each planned again with the rest free.
 *
 * An alternative's total is that of a plan which is searched for as any other, with pins (--fix) that hold the plan's stages,
 * schedule, meshes and micro-batches and make the thing so: who forces it with these pins gets that plan. */
#include <stdlib.h>
#include <string.h>

#include "codegen/emit_internal.h"
#include "inspect/explain_internal.h"
#include "inspect/words.h"
#include "planner/pins.h"

enum { MOST_OPTIONS = 8 };
static const double SURE_BELOW = 1e-6, WORTH_SAYING = 0.95; /* shares of a step that are no difference; of what would have to be saved */

static const char *less(struct mpp_arena *arena, const char *what, double behind, double more)
{
    return behind <= WORTH_SAYING * more ? mpp_arena_printf(arena, "%s took %.2g %% less time", what, 100 * behind / more) : NULL;
}

/* Is it memory that keeps O from winning? Without a limit the stage would take less with it than as it was chosen. */
static bool memory_decides(const struct mpp_explain *e, const struct mpp_option *o)
{
    int64_t chosen = e->option[0].least_ps;
    return e->plan->n_stages == 1 && o->least_ps > 0 && chosen > 0 && (double)(chosen - o->least_ps) > SURE_BELOW * (double)chosen;
}

/* What would have to change for O to win, as far as one thing alone does it, with both plans as they are. */
static const char *wins(const struct mpp_explain *e, const struct mpp_costs *chosen, const struct mpp_costs *o)
{
    double behind = (double)(o->step_ps - chosen->step_ps), step = (double)chosen->step_ps;
    int64_t comm = o->comm_ps - chosen->comm_ps, work = o->work_ps - chosen->work_ps;
    if (behind < -SURE_BELOW * step && !e->from_plan && o->simulated_ps > chosen->simulated_ps)
        return mpp_arena_printf(e->arena, "it takes less by the sum, but more event by event, by which plans that are close are chosen: %s instead of %s",
                                mpp_words_time(e->arena, o->simulated_ps), mpp_words_time(e->arena, chosen->simulated_ps));
    if (behind < -SURE_BELOW * step)
        return e->from_plan ? "it takes less, with the rest optimised: the plan that was read is not the best"
                            : "it takes less: the search left this within its gap";
    if (behind <= SURE_BELOW * step)
        return "it takes as long";
    const char *links = less(e->arena, "collectives", behind, (double)comm), *kernels = less(e->arena, "kernels", behind, (double)work);
    if (links || kernels)
        return mpp_arena_printf(e->arena, "it would win if %s%s%s", links ? links : kernels, links && kernels ? ", or if " : "",
                                links && kernels ? kernels : "");
    struct mpp_text t = {.arena = e->arena};
    if (work > 0)
        mpp_text_add(&t, "kernels take %s longer", mpp_words_time(e->arena, work));
    if (comm > 0)
        mpp_text_add(&t, "%scollectives take %s longer", t.n ? " and " : "", mpp_words_time(e->arena, comm));
    if (!t.n)
        mpp_text_add(&t, "stages wait longer for each other");
    return mpp_arena_printf(e->arena, "it saves nothing that would make up for what it costs: %s", mpp_text_string(&t));
}

void mpp_explain_plan(struct mpp_explain *e, const struct mpp_thing *thing, const struct mpp_pins *pins, struct mpp_option *o)
{
    struct mpp_arena *scratch = mpp_arena_scratch(e->arena);
    struct mpp_diag *silent = mpp_diag_in(scratch, NULL);
    struct mpp_plan_options options = e->source->plan;
    struct mpp_fitted fitted;
    int64_t needs = 0;
    options.pins = *pins;
    options.quiet = true;
    options.least_bytes = &needs;
    options.progress = NULL;
    enum mpp_status st = mpp_fit_plan(scratch, silent, e->graph, e->cluster, &options, NULL, false, &fitted);
    o->planned = true;
    o->fits = st == MPP_OK;
    if (st == MPP_OK)
        o->costs = mpp_explain_costs(e, thing, fitted.plan);
    else if (st == MPP_INFEASIBLE && needs > 0)
        o->why_not = mpp_arena_printf(e->arena, "does not fit: a device has %s, %s are needed at least",
                                      mpp_emit_bytes_text(e->arena, mpp_device_usable_bytes(&e->cluster->device)), mpp_emit_bytes_text(e->arena, needs));
    else if (st == MPP_INFEASIBLE)
        o->why_not = "does not fit";
    else
        o->why_not = st == MPP_LIMIT ? "the search was stopped" : "no plan does so";
    mpp_arena_free(scratch);
}

static int by_total(const void *a, const void *b)
{
    const struct mpp_option *x = a, *y = b;
    int64_t tx = x->fits ? x->costs.step_ps : INT64_MAX, ty = y->fits ? y->costs.step_ps : INT64_MAX;
    if (x->chosen != y->chosen)
        return x->chosen ? -1 : 1;
    return tx != ty ? (tx < ty ? -1 : 1) : strcmp(x->words, y->words) ? strcmp(x->words, y->words) : strcmp(x->pins, y->pins);
}

void mpp_explain_sort(struct mpp_explain *e)
{
    qsort(e->option, (size_t)e->n_options, sizeof *e->option, by_total);
    for (int i = 1; i < e->n_options; i++) {
        struct mpp_option *o = &e->option[i];
        if (o->fits && o->costs.step_ps > e->option[0].costs.step_ps && memory_decides(e, o))
            o->wins = mpp_arena_printf(e->arena, "it would win with more memory: without a limit a step takes %s with it, else %s",
                                       mpp_words_time(e->arena, o->least_ps), mpp_words_time(e->arena, e->option[0].least_ps));
        else if (o->fits)
            o->wins = wins(e, &e->option[0].costs, &o->costs);
        else if (memory_decides(e, o))
            o->why_not = mpp_arena_printf(e->arena, "%s; without a limit it would win", o->why_not);
    }
}

/* A's own pins. */
static const char *pins_of(const struct mpp_explain *e, const struct mpp_alternative *a)
{
    struct mpp_pins none = mpp_pins_none(), own = mpp_alternatives_pin(e->arena, &none, a);
    return mpp_pins_text(e->arena, &own);
}

static struct mpp_option option_of(const struct mpp_explain *e, const struct mpp_thing *thing, const struct mpp_alternative *a)
{
    return (struct mpp_option){.words = mpp_explain_words(e, thing, a), .pins = pins_of(e, a), .chosen = a->chosen, .least_ps = a->least_ps};
}

void mpp_explain_thing(struct mpp_explain *e, const struct mpp_thing *thing, int most)
{
    struct mpp_alternative *a;
    int n = mpp_alternatives_list(e->arena, e->cluster, e->plan, &e->held, thing, &a), others = 0;
    bool any = false;
    e->option = mpp_arena_array(e->arena, n + 1, struct mpp_option);
    e->more_ps = INT64_MAX;
    for (int i = 0; i < n; i++) {
        if (!a[i].chosen && others == most) {
            e->n_more++;
            e->more_ps = a[i].least_ps < e->more_ps ? a[i].least_ps : e->more_ps;
            continue;
        }
        struct mpp_option *o = &e->option[e->n_options++];
        *o = option_of(e, thing, &a[i]);
        any = any || o->chosen;
        others += !o->chosen;
        if (o->chosen) {
            o->fits = o->planned = true;
            o->costs = mpp_explain_costs(e, thing, e->plan);
        } else {
            struct mpp_pins pins = mpp_alternatives_pin(e->arena, &e->held, &a[i]);
            if (e->source->plan.progress)
                fprintf(e->source->plan.progress, "%s, alternative %d of %d: %s\n", e->name, e->n_options, n, o->words);
            mpp_explain_plan(e, thing, &pins, o);
        }
    }
    if (!any)
        e->option[e->n_options++] = (struct mpp_option){.words = mpp_explain_chosen(e, thing), .pins = "", .chosen = true, .fits = true,
                                                        .planned = true, .costs = mpp_explain_costs(e, thing, e->plan)};
    mpp_explain_sort(e);
}

struct mpp_option mpp_explain_runner_up(struct mpp_explain *e, const struct mpp_thing *thing)
{
    struct mpp_alternative *a;
    int n = mpp_alternatives_list(e->arena, e->cluster, e->plan, &e->held, thing, &a);
    for (int i = 0; i < n; i++)
        if (!a[i].chosen) {
            struct mpp_option o = option_of(e, thing, &a[i]);
            struct mpp_pins pins = mpp_alternatives_pin(e->arena, &e->held, &a[i]);
            mpp_explain_plan(e, thing, &pins, &o);
            if (o.fits || i + 1 == n)
                return o;
        }
    return (struct mpp_option){.words = NULL};
}

/* The plan with what is held, searched for as the alternatives are: of large models that search is finer than the one over all stages
 * (layers need not be alike). Where it takes less it is the plan that is explained; where it takes more, so may the alternatives. */
static void look_closer(struct mpp_explain *e)
{
    struct mpp_diag *silent = mpp_diag_in(e->arena, NULL);
    struct mpp_plan_options options = e->source->plan;
    struct mpp_fitted closer;
    options.pins = e->held;
    options.quiet = true;
    e->plan_pins = mpp_pins_text(e->arena, &e->source->plan.pins);
    if (mpp_fit_plan(e->arena, silent, e->graph, e->cluster, &options, NULL, false, &closer) != MPP_OK
        || closer.plan->n_stages != e->plan->n_stages)
        return;
    double less = 1 - (double)closer.plan->objective_ps / (double)e->plan->objective_ps;
    if (less < -SURE_BELOW) {
        e->apart = mpp_arena_printf(e->arena, "with stages, meshes and micro-batches held, as alternatives are searched, the search settles on a "
                                    "plan that takes %.2g %% more: alternatives may seem that much worse than they are", -100 * less);
        return;
    }
    e->plan_pins = e->held_pins;
    if (less <= 0)
        return;
    if (less > SURE_BELOW)
        e->closer = mpp_arena_printf(e->arena, "with stages, meshes and micro-batches held the search finds a plan that takes %.2g %% less, and "
                                     "that one is explained: --fix '%s'", 100 * less, e->held_pins);
    e->plan = closer.plan;
}

enum mpp_status mpp_inspect_explain(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_source *source, const char *from_plan,
                                    const char *name, const struct mpp_inspect_out *to)
{
    struct mpp_explain e = {.arena = arena, .diag = diag, .source = source, .name = name, .from_plan = from_plan != NULL};
    struct mpp_fitted fitted;
    MPP_TRY(mpp_source_read(arena, diag, source, &e.graph, &e.cluster));
    MPP_TRY(mpp_fit_plan(arena, diag, e.graph, e.cluster, &source->plan, from_plan, false, &fitted));
    e.plan = fitted.plan;
    e.held = mpp_alternatives_hold(arena, e.plan, &source->plan.pins);
    e.held_pins = mpp_pins_text(arena, &e.held);
    MPP_TRY(mpp_explain_find(&e));
    if (!from_plan) {
        look_closer(&e);
        MPP_TRY(mpp_explain_find(&e));
    }
    if (e.subject.kind == MPP_SUBJECT_THING)
        mpp_explain_thing(&e, &e.subject.thing, MOST_OPTIONS);
    else if (e.subject.kind == MPP_SUBJECT_LAYER)
        mpp_explain_layer(&e);
    else
        mpp_explain_stage(&e);
    if (to->json)
        mpp_explain_write(&e, to->out);
    else
        mpp_explain_print(&e, to->out);
    return MPP_OK;
}
