/* suggest.c - when nothing fits: what overflows, by how much, and ways out that were tried. */
#include <inttypes.h>

#include "planner/search.h"

static const struct mpp_loc nowhere = {0};

static double mib(int64_t bytes)
{
    return (double)bytes / 1048576.0;
}

/* Does a search under OPTIONS succeed on CLUSTER? */
static bool works(struct mpp_graph *graph, const struct mpp_cluster *cluster, const struct mpp_plan_options *options,
                  struct mpp_search_result *out)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *silent = mpp_diag_new(NULL);
    bool ok = mpp_pins_check(silent, graph, cluster->n_devices, &options->pins) == MPP_OK
              && mpp_search_run(arena, graph, cluster, options, out) == MPP_OK;
    mpp_diag_free(silent);
    mpp_arena_free(arena);
    return ok;
}

static void with_micro_batches(struct mpp_diag *diag, struct mpp_graph *graph, const struct mpp_cluster *cluster,
                               struct mpp_plan_options options)
{
    struct mpp_search_result r;
    int64_t batch = graph->global_batch, pinned = options.pins.micro_batches;
    if (!pinned && !options.pins.micro_batch && !(graph->model && graph->model->training.micro > 0))
        return;                   /* all counts were tried */
    options.pins.micro_batch = 0;
    for (int64_t k = pinned ? pinned + 1 : 1; k <= batch; k++) {
        if (batch % k)
            continue;
        options.pins.micro_batches = k;
        if (works(graph, cluster, &options, &r)) {
            mpp_diag_note(diag, "--fix micro_batches=%" PRId64 " fits (%.3g ms a step)", k, (double)r.objective * 1e-9);
            return;
        }
    }
}

static void with_more_devices(struct mpp_diag *diag, struct mpp_graph *graph, const struct mpp_cluster *cluster,
                              struct mpp_plan_options options)
{
    struct mpp_search_result r;
    struct mpp_cluster larger = *cluster;
    options.pins.dp = options.pins.tp = 0;
    options.pins.mesh = (struct mpp_mesh){0};
    for (int k = 0; k < 6; k++) {
        larger.n_devices *= 2;
        larger.n_nodes = (larger.n_devices + cluster->devices_per_node - 1) / cluster->devices_per_node;
        if (larger.n_devices > MPP_CLUSTER_MAX_DEVICES || (larger.n_nodes > 1 && cluster->nics == 0))
            return;
        if (works(graph, &larger, &options, &r)) {
            mpp_diag_note(diag, "--gpus %d fits (%.3g ms a step)", larger.n_devices, (double)r.objective * 1e-9);
            return;
        }
    }
}

static void without_pins(struct mpp_diag *diag, struct mpp_graph *graph, const struct mpp_cluster *cluster,
                         struct mpp_plan_options options)
{
    struct mpp_search_result r;
    struct mpp_arena *arena = mpp_arena_new();
    bool pinned = *mpp_pins_text(arena, &options.pins);
    options.pins = mpp_pins_none();
    if (pinned && works(graph, cluster, &options, &r))
        mpp_diag_note(diag, "without --fix there is a plan that fits (%.3g ms a step)", (double)r.objective * 1e-9);
    mpp_arena_free(arena);
}

void mpp_suggest(struct mpp_diag *diag, struct mpp_graph *graph, const struct mpp_cluster *cluster,
                 const struct mpp_plan_options *options, const struct mpp_search_result *failed)
{
    struct mpp_plan_options quiet = *options;
    int64_t usable = options->capacity_bytes > 0 ? options->capacity_bytes : mpp_device_usable_bytes(&cluster->device);
    const struct mpp_memory *m = &failed->at_least;
    mpp_diag_error(diag, nowhere, "no plan fits: a device needs at least %.1f MiB, %.1f MiB more than the %.1f MiB that "
                   "may be used", mib(failed->least_bytes), mib(failed->least_bytes - usable), mib(usable));
    if (m->arena_bytes > 0)
        mpp_diag_note(diag, "the least that was found (%.1f MiB): parameters %.1f, optimiser state %.1f, gradients %.1f, "
                      "activations %.1f, inputs %.1f MiB", mib(m->arena_bytes), mib(m->parameters), mib(m->optimizer),
                      mib(m->gradients), mib(m->activations), mib(m->inputs));
    quiet.progress = NULL;
    quiet.dump_ilp_dir = NULL;
    with_micro_batches(diag, graph, cluster, quiet);
    without_pins(diag, graph, cluster, quiet);
    with_more_devices(diag, graph, cluster, quiet);
}
