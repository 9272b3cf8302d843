/* suggest.c - when nothing fits: what overflows, by how much, and ways out that were tried. */
#include <inttypes.h>
#include <stdio.h>

#include "planner/search.h"

static const struct mpp_loc nowhere = {0};
enum { MOST_TIMES = 64 };

/* "812 bytes", "1.5 MiB": BYTES in a unit of which there are some; in ARENA. */
static const char *bytes_text(struct mpp_arena *arena, int64_t bytes)
{
    static const char *const unit[] = {"KiB", "MiB", "GiB", "TiB"};
    double x = (double)bytes / 1024;
    int i = 0;
    if (bytes < 10000)
        return mpp_arena_printf(arena, "%" PRId64 " bytes", bytes);
    for (; i < 3 && x >= 1000; i++)
        x /= 1024;
    return mpp_arena_printf(arena, "%.1f %s", x, unit[i]);
}

/* "3754 s", "24.5 ms", "812 us": picoseconds in a unit of which there are some. */
struct duration {
    char text[32];
};

static struct duration duration(int64_t ps)
{
    struct duration d;
    double s = (double)ps * 1e-12;
    if (s >= 1)
        snprintf(d.text, sizeof d.text, s >= 100 ? "%.0f s" : "%.3g s", s);
    else if (s >= 1e-3)
        snprintf(d.text, sizeof d.text, "%.3g ms", s * 1e3);
    else
        snprintf(d.text, sizeof d.text, "%.3g us", s * 1e6);
    return d;
}

/* Does a search under OPTIONS succeed on CLUSTER? *OUT_PS: the step then. */
static bool works(struct mpp_graph *graph, const struct mpp_cluster *cluster, const struct mpp_plan_options *options,
                  int64_t *out_ps)
{
    struct mpp_arena *arena = mpp_arena_scratch(graph->arena);
    struct mpp_diag *silent = mpp_diag_in(arena, NULL);
    struct mpp_plan *plan;
    struct mpp_search_result one;
    bool ok;
    if (graph->n_groups > 0) {    /* grouped as one stage: that was searched for */
        ok = mpp_pins_check(silent, graph, cluster->n_devices, &options->pins) == MPP_OK
             && mpp_search_run(arena, graph, cluster, options, &one) == MPP_OK;
        *out_ps = one.objective;
    } else {
        ok = mpp_plan_pipeline(arena, silent, graph, cluster, options, &plan) == MPP_OK;
        *out_ps = ok ? plan->objective_ps : 0;
    }
    mpp_arena_free(arena);
    return ok;
}

/* The least divisor of N that is at least FROM; 0: none. In the time of N's root. */
static int64_t divisor_from(int64_t n, int64_t from)
{
    int64_t d = from, q;
    for (; d <= n / d; d++)
        if (n % d == 0)
            return d;
    if (from > n)
        return 0;
    for (q = n / d; n % q; q--)
        ;
    return n / q;
}

static bool with_micro_batches(struct mpp_diag *diag, struct mpp_graph *graph, const struct mpp_cluster *cluster,
                               struct mpp_plan_options options)
{
    int64_t ps;
    int64_t batch = graph->global_batch, pinned = options.pins.micro_batches;
    if (!pinned && !options.pins.micro_batch && !(graph->model && graph->model->training.micro > 0))
        return false;             /* all counts were tried */
    options.pins.micro_batch = 0;
    for (int64_t k = divisor_from(batch, pinned ? pinned + 1 : 1); k > 0 && !mpp_plan_interrupted(&options); k = divisor_from(batch, k + 1)) {
        options.pins.micro_batches = k;
        if (works(graph, cluster, &options, &ps)) {
            mpp_diag_note(diag, "--fix micro_batches=%" PRId64 " fits (%s a step or less)", k, duration(ps).text);
            return true;
        }
    }
    return false;
}

/* The next number of devices to try after N, which is TWO to some power of the first, or half as many more: whole nodes. */
static int64_t more_than(int64_t n, int64_t *two, const struct mpp_cluster *cluster)
{
    int64_t half = *two + *two / 2;
    if (n == *two && *two % 2 == 0 && half % cluster->devices_per_node == 0)
        return half;
    return *two *= 2;
}

/* Up to 64 times as many; *OUT_TRIED: how many at most. */
static bool with_more_devices(struct mpp_diag *diag, struct mpp_graph *graph, const struct mpp_cluster *cluster,
                              struct mpp_plan_options options, int *out_tried)
{
    int64_t ps;
    struct mpp_cluster larger = *cluster;
    *out_tried = 0;
    options.pins.dp = options.pins.tp = 0;
    options.pins.mesh = (struct mpp_mesh){0};
    int64_t two = cluster->n_devices, most = two * MOST_TIMES < cluster->max_devices ? two * MOST_TIMES : cluster->max_devices;
    for (int64_t n = more_than(two, &two, cluster); n <= most && !mpp_plan_interrupted(&options); n = more_than(n, &two, cluster)) {
        if (!mpp_cluster_resize(cluster, (int)n, &larger))
            continue;
        *out_tried = (int)n;
        if (works(graph, &larger, &options, &ps)) {
            mpp_diag_note(diag, "--gpus %d fits (%s a step or less)", larger.n_devices, duration(ps).text);
            return true;
        }
    }
    return false;
}

/* The same pins but for how much is run again. */
static bool with_recomputation(struct mpp_diag *diag, struct mpp_graph *graph, const struct mpp_cluster *cluster,
                               struct mpp_plan_options options)
{
    int64_t ps;
    if (graph->n_groups > 0 || options.pins.recompute < 0 || options.pins.recompute == MPP_RECOMPUTE_FULL)
        return false;
    options.pins.recompute = MPP_RECOMPUTE_FULL;
    if (!works(graph, cluster, &options, &ps))
        return false;
    mpp_diag_note(diag, "--fix recompute=full fits (%s a step or less)", duration(ps).text);
    return true;
}

static bool without_pins(struct mpp_diag *diag, struct mpp_graph *graph, const struct mpp_cluster *cluster,
                         struct mpp_plan_options options)
{
    int64_t ps;
    struct mpp_arena *arena = mpp_arena_scratch(graph->arena);
    bool pinned = *mpp_pins_text(arena, &options.pins);
    options.pins = mpp_pins_none();
    bool fits = pinned && works(graph, cluster, &options, &ps);
    if (fits)
        mpp_diag_note(diag, "without --fix there is a plan that fits (%s a step or less)", duration(ps).text);
    mpp_arena_free(arena);
    return fits;
}

void mpp_suggest(struct mpp_diag *diag, struct mpp_graph *graph, const struct mpp_cluster *cluster,
                 const struct mpp_plan_options *options, const struct mpp_search_result *failed)
{
    struct mpp_plan_options quiet = *options;
    int64_t usable = options->capacity_bytes > 0 ? options->capacity_bytes : mpp_device_usable_bytes(&cluster->device);
    const struct mpp_memory *m = &failed->at_least;
    struct mpp_arena *arena = mpp_arena_scratch(graph->arena);
    mpp_diag_error(diag, nowhere, "no plan fits: a device needs at least %s, %s more than the %s that may be used",
                   bytes_text(arena, failed->least_bytes), bytes_text(arena, failed->least_bytes - usable),
                   bytes_text(arena, usable));
    if (m->arena_bytes > 0)
        mpp_diag_note(diag, "the least that was found (%s): parameters %s, optimiser state %s, gradients %s, "
                      "activations %s, inputs %s", bytes_text(arena, m->arena_bytes), bytes_text(arena, m->parameters),
                      bytes_text(arena, m->optimizer), bytes_text(arena, m->gradients), bytes_text(arena, m->activations),
                      bytes_text(arena, m->inputs));
    if (failed->where)
        mpp_diag_note(diag, "that is %s", failed->where);
    if (failed->n_largest > 0) {
        const char *text = "";
        for (int i = 0; i < failed->n_largest; i++)
            text = mpp_arena_printf(arena, "%s%s%s %s", text, *text ? ", " : "", failed->largest[i].name,
                                    bytes_text(arena, failed->largest[i].bytes));
        mpp_diag_note(diag, "most of it: %s", text);
    }
    mpp_arena_free(arena);
    quiet.progress = NULL;
    quiet.dump_ilp_dir = quiet.export_iopddl_dir = NULL;
    int tried;
    quiet.quiet = quiet.quick = quiet.glance = true;
    quiet.room = NULL;
    bool any = with_micro_batches(diag, graph, cluster, quiet);
    any = with_recomputation(diag, graph, cluster, quiet) || any;
    any = without_pins(diag, graph, cluster, quiet) || any;
    any = with_more_devices(diag, graph, cluster, quiet, &tried) || any;
    if (mpp_plan_interrupted(options))
        mpp_diag_note(diag, "looking for ways out was stopped by %s: there may be others", mpp_plan_stopped_by(options));
    else if (!any && tried > 0)
        mpp_diag_note(diag, "up to %d devices were tried, and that does not help", tried);
    else if (!any)
        mpp_diag_note(diag, "the cluster has no more devices to try");
}
