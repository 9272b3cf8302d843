/* fit.c - planning, lowering, and planning again with less room where the arena is too large. */
#include <time.h>

#include "codegen/fit.h"
#include "codegen/overlap.h"
#include "planner/search.h"

enum { MAX_REPLANS = 12, ROOM_STEP = 256 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* All stages; their memory is noted. Returns by how many bytes the fullest device's arena, and what lies beside it and is no more than
 * the reserve, exceeds what is usable. */
static enum mpp_status lower_stages(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_cluster *cluster, bool keep,
                                    struct mpp_fitted *f, int64_t *out_over)
{
    struct mpp_plan *plan = f->plan;
    int64_t usable = mpp_device_usable_bytes(&cluster->device);
    MPP_TRY(mpp_transfers_plan(arena, diag, plan, &f->transfers));
    MPP_TRY(mpp_pipeline_verify(arena, diag, plan, f->transfers));
    f->progs = mpp_arena_array(arena, plan->n_stages, struct mpp_lprog *);
    *out_over = -usable;
    for (int i = 0; i < plan->n_stages; i++) {
        struct mpp_lprog *prog;
        struct mpp_arena *room = keep || plan->n_stages == 1 ? arena : mpp_arena_scratch(arena);
        MPP_TRY(mpp_lower(room, plan->stages[i].graph, plan, i, f->transfers, usable, &prog));
        mpp_beside_price(cluster, &prog->memory.beside);
        plan->stages[i].memory = prog->memory;
        mpp_overlap_measure(arena, cluster, plan, i, prog, &plan->stages[i].overlap);
        int64_t over = prog->arena_bytes + mpp_beside_over(cluster, &prog->memory.beside) - usable;
        *out_over = over > *out_over ? over : *out_over;
        if (room == arena)
            f->progs[i] = prog;
        else
            mpp_arena_free(room);
    }
    mpp_overlap_time(arena, plan);
    return MPP_OK;
}

/* The planner's question: what does a stage take once its memory is laid out? */
struct layout {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const struct mpp_cluster *cluster;
    const struct mpp_plan *plan;  /* whose transfers these are */
    struct mpp_transfers *transfers;
};

static enum mpp_status lay_out(void *context, const struct mpp_plan *plan, int stage, int64_t *out_bytes)
{
    struct layout *l = context;
    if (l->plan != plan) {        /* the depth of rings is verified, and is memory */
        MPP_TRY(mpp_transfers_plan(l->arena, l->diag, plan, &l->transfers));
        MPP_TRY(mpp_pipeline_verify(l->arena, l->diag, plan, l->transfers));
    }
    l->plan = plan;
    struct mpp_arena *scratch = mpp_arena_scratch(l->arena);
    *out_bytes = 0;
    struct mpp_lprog *prog;
    enum mpp_status st = mpp_lower_least(scratch, plan->stages[stage].graph, plan, stage, l->transfers, &prog);
    if (st == MPP_OK) {
        mpp_beside_price(l->cluster, &prog->memory.beside);
        *out_bytes = prog->arena_bytes + mpp_beside_over(l->cluster, &prog->memory.beside);
    }
    mpp_arena_free(scratch);
    return st;
}

/* The plan that came nearest to fitting, by how many bytes too large; and whether the search itself found one. */
struct nearest {
    struct mpp_plan *plan;
    int64_t over;
};

static enum mpp_status no_room(struct mpp_arena *arena, struct mpp_diag *diag, const char *from_plan, struct mpp_graph *graph,
                               const struct mpp_cluster *cluster, const struct mpp_plan_options *options, const struct nearest *x)
{
    int64_t usable = mpp_device_usable_bytes(&cluster->device);
    int i = mpp_plan_fullest(x->plan);
    const struct mpp_stage *stage = &x->plan->stages[i];
    if (from_plan) {
        const char *where = x->plan->n_stages > 1 ? mpp_arena_printf(arena, " of stage %d", i) : "";
        mpp_diag_error(diag, (struct mpp_loc){from_plan, 0}, "this plan needs %lld bytes per device%s, %s has %lld usable",
                       (long long)(usable + x->over), where, cluster->device.name, (long long)usable);
    } else if (!options->quiet) {
        struct mpp_search_result failed = {.least_bytes = usable + x->over, .at_least = stage->memory};
        failed.where = mpp_arena_printf(arena, "stage %d of %d once its memory is laid out: %d devices, %lld micro-batches, recompute %s",
                                        i, x->plan->n_stages, stage->n_devices, (long long)x->plan->micro_batches,
                                        mpp_plan_recompute_word(stage->recompute));
        mpp_suggest(diag, graph, cluster, options, &failed);
    }
    return MPP_INFEASIBLE;
}

/* MPP_INFEASIBLE: if out_nearest->plan is NULL no plan fits by the search's own count, which it has said unless it is to be
 * quiet; else none fitted once it was laid out, which is not said. */
static enum mpp_status fit(struct mpp_arena *arena, struct mpp_diag *diag, struct mpp_graph *graph,
                           const struct mpp_cluster *cluster, const struct mpp_plan_options *options, const char *from_plan,
                           bool keep, struct mpp_fitted *out, struct nearest *out_nearest)
{
    int64_t usable = mpp_device_usable_bytes(&cluster->device), over = 0;
    int64_t bound_ps = INT64_MAX;     /* of the search in all the room there is: less room proves nothing more */
    struct layout layout = {arena, diag, cluster, NULL, NULL};
    struct mpp_plan_options o = *options;
    o.capacity_bytes = usable;
    o.room = lay_out;
    o.room_context = &layout;
    *out_nearest = (struct nearest){NULL, INT64_MAX};
    for (int attempt = 0; attempt < MAX_REPLANS; attempt++) {
        double start = now_s();
        if (from_plan)
            MPP_TRY(mpp_plan_read_json(arena, diag, graph, cluster, from_plan, &out->plan));
        else
            MPP_TRY(mpp_plan_pipeline(arena, diag, graph, cluster, &o, &out->plan));
        o.export_iopddl_dir = NULL;   /* the problems are those within all the room there is */
        o.quiet = true;               /* and so is what is said when nothing fits */
        o.least_bytes = NULL;
        o.too_small = NULL;
        bound_ps = attempt == 0 ? out->plan->bound_ps : bound_ps;
        out->plan->bound_ps = out->plan->bound_ps < bound_ps ? out->plan->bound_ps : bound_ps;
        MPP_TRY(mpp_plan_derive(arena, diag, graph, cluster, out->plan));
        out->plan_s += now_s() - start;
        start = now_s();
        MPP_TRY(lower_stages(arena, diag, cluster, keep, out, &over));
        out->lower_s += now_s() - start;
        if (over <= 0)
            return MPP_OK;
        if (over < out_nearest->over)
            *out_nearest = (struct nearest){out->plan, over};
        if (from_plan)
            break;
        o.capacity_bytes -= over + usable / ROOM_STEP;
    }
    return MPP_INFEASIBLE;
}

/* OUT becomes the plan that takes least, counting what is hidden, of it and those of searches in which what can be hidden costs less:
 * as if kernels hid it all, which bounds what any plan takes; and, where plans that count on that are disappointed, half of it. */
static enum mpp_status fit_hidden(struct mpp_arena *arena, struct mpp_diag *diag, struct mpp_graph *graph,
                                  const struct mpp_cluster *cluster, const struct mpp_plan_options *options, bool keep,
                                  struct mpp_fitted *out)
{
    const double all = 1 - MPP_COST_BESIDE, shares[] = {all, all / 2};
    int64_t bound_ps = 0, serial_ps = out->plan->bound_ps;
    bool found = false;
    struct mpp_plan_options o = *options;
    o.quiet = true;
    o.dump_ilp_dir = o.export_iopddl_dir = NULL;
    o.least_bytes = NULL;
    for (int i = 0; i < 2 && !found && !mpp_plan_interrupted(options); i++) {
        struct mpp_fitted other = {0};
        struct nearest near;
        o.hidden = shares[i];
        enum mpp_status st = fit(arena, diag, graph, cluster, &o, NULL, keep, &other, &near);
        if (st != MPP_OK && st != MPP_INFEASIBLE && st != MPP_LIMIT)
            return st;
        double plan_s = out->plan_s + other.plan_s, lower_s = out->lower_s + other.lower_s;
        if (st == MPP_OK && i == 0)
            bound_ps = other.plan->bound_ps;
        found = st == MPP_OK && other.plan->overlapped_ps < out->plan->overlapped_ps;
        if (found) {
            *out = other;
            out->plan->n_others = 0; /* their times are of another count */
        }
        out->plan_s = plan_s;
        out->lower_s = lower_s;
    }
    out->plan->bound_ps = serial_ps;
    out->plan->overlap = true;
    out->plan->overlap_bound_ps = bound_ps;
    if (mpp_plan_interrupted(options))
        out->plan->stopped = mpp_plan_stopped_by(options);
    return mpp_plan_derive(arena, diag, graph, cluster, out->plan); /* of the micro-batch that it has */
}

enum mpp_status mpp_fit_plan(struct mpp_arena *arena, struct mpp_diag *diag, struct mpp_graph *graph,
                             const struct mpp_cluster *cluster, const struct mpp_plan_options *options, const char *from_plan,
                             bool keep, struct mpp_fitted *out)
{
    struct nearest near, other;
    *out = (struct mpp_fitted){0};
    enum mpp_status st = fit(arena, diag, graph, cluster, options, from_plan, keep, out, &near);
    bool can_hide = cluster->n_devices > 1 && mpp_cost_goes_beside(cluster, cluster->n_nodes);
    if (st == MPP_OK && options->overlap && !from_plan && can_hide)
        return fit_hidden(arena, diag, graph, cluster, options, keep, out);
    if (st == MPP_INFEASIBLE && near.plan && !from_plan && !options->quick && !mpp_plan_interrupted(options)) {
        struct mpp_plan_options any = *options; /* the fastest plans are too large: the first that is found may not be */
        any.quick = any.quiet = true;
        any.dump_ilp_dir = any.export_iopddl_dir = NULL;
        any.least_bytes = NULL;
        st = fit(arena, diag, graph, cluster, &any, NULL, keep, out, &other);
        near = other.over < near.over ? other : near;
    }
    if (st == MPP_INFEASIBLE && near.plan)
        return no_room(arena, diag, from_plan, graph, cluster, options, &near);
    return st;
}
