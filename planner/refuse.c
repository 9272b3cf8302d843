/* refuse.c - why no number of micro-batches, of stages and no schedule does what pins ask: one cause, the last that is in the way. */
#include <inttypes.h>

#include "planner/search.h"

enum hurdle { NO_STAGES, UNEVEN_DEVICES, NO_COUNT, TOO_FEW_LAYERS, UNEVEN_LAYERS, SHARED, UNLIKE, NONE };

bool mpp_search_count_allowed(const struct mpp_graph *g, const struct mpp_pins *p, int64_t k)
{
    int64_t batch = g->global_batch, micro = g->model ? g->model->training.micro : 0;
    if (batch % k || (p->micro_batches && k != p->micro_batches))
        return false;
    if (!p->micro_batches && !p->micro_batch && micro > 0 && k != batch / micro)
        return false;
    return !p->micro_batch || batch / k % p->micro_batch == 0;
}

/* Is a multiple of N among the numbers of micro-batches that are left? */
static bool any_count(const struct mpp_graph *g, const struct mpp_pins *p, int64_t n)
{
    for (int64_t k = n; k <= g->global_batch; k += n)
        if (mpp_search_count_allowed(g, p, k) && (k == 1 || !g->whole_batch))
            return true;
    return false;
}

/* How far S stages of V parts get. */
static enum hurdle hurdle_of(const struct mpp_graph *g, const struct mpp_layering *l, int n_devices, const struct mpp_pins *p, int s, int v)
{
    struct mpp_schedule schedule = {MPP_SCHEDULE_INTERLEAVED, s, v, s};
    if (n_devices % s)
        return UNEVEN_DEVICES;
    if (!any_count(g, p, s))
        return NO_COUNT;
    if (s * v > l->n_layers)
        return TOO_FEW_LAYERS;
    if (l->n_layers % (s * v))
        return UNEVEN_LAYERS;
    if (!mpp_span_can_chunk(g, l, s * v, s))
        return SHARED;
    return mpp_interleave_possible(g, l, &schedule) ? NONE : UNLIKE;
}

void mpp_refuse_rounds(struct mpp_diag *diag, const struct mpp_graph *g, const struct mpp_layering *merged, int n_devices,
                       const struct mpp_pins *p, const int *stages)
{
    static const struct mpp_loc nowhere = {0};
    bool interleaved = p->interleave > 1 || p->schedule == MPP_SCHEDULE_INTERLEAVED;
    enum hurdle last = NO_STAGES;
    int s = 0, v = 2;
    for (const int *x = stages; *x && interleaved; x++) {
        int from = p->interleave > 1 ? p->interleave : 2, to = from > merged->n_layers / *x ? from : merged->n_layers / *x;
        for (int y = from; *x > 1 && y <= (p->interleave > 1 ? from : to); y++) {
            enum hurdle h = hurdle_of(g, merged, n_devices, p, *x, y);
            if (h <= last && s)
                continue;
            last = h;
            s = *x;
            v = y;
        }
    }
    const char *start = "no plan does what --fix asks:";
    long long parts = (long long)s * v;
    if (!*stages)
        mpp_diag_error(diag, nowhere, "%s %d devices do not divide evenly among %d stages", start, n_devices, p->pp);
    else if (!any_count(g, p, 1))
        mpp_diag_error(diag, nowhere, "%s no number of micro-batches divides the batch of %" PRId64 " so", start, g->global_batch);
    else if (last == NO_STAGES)
        mpp_diag_error(diag, nowhere, "%s the interleaved schedule wants two stages at least, and %d device%s make%s one", start, n_devices,
                       n_devices == 1 ? "" : "s", n_devices == 1 ? "s" : "");
    else if (last == UNEVEN_DEVICES)
        mpp_diag_error(diag, nowhere, "%s interleaved stages have equally many devices, and %d do not divide among %d stages", start,
                       n_devices, s);
    else if (last == NO_COUNT)
        mpp_diag_error(diag, nowhere, "%s the interleaved schedule wants a multiple of the %d stages as number of micro-batches, and none of "
                       "those left is one", start, s);
    else if (last == TOO_FEW_LAYERS)
        mpp_diag_error(diag, nowhere, "%s %d stages of %d parts want %lld layers at least, and there are %d", start, s, v, parts,
                       merged->n_layers);
    else if (last == UNEVEN_LAYERS)
        mpp_diag_error(diag, nowhere, "%s interleaved parts have equally many layers, and %d do not divide among %d stages of %d parts", start,
                       merged->n_layers, s, v);
    else if (last == SHARED)
        mpp_diag_error(diag, nowhere, "%s parts of one of %d stages would share a layer's values or parameters, which interleaved ones cannot",
                       start, s);
    else
        mpp_diag_error(diag, nowhere, "%s interleaved parts must be alike, and those of %d stages of %d are not", start, s, v);
}
