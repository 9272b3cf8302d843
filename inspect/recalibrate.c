/* recalibrate.c - factors from what was measured. */
#include "inspect/recalibrate.h"

#include <math.h>
#include <string.h>

#include "codegen/outdir.h"
#include "ir/outfile.h"
#include "planner/reshard.h"

static const double MOST_FACTOR = 1e4;

/* ---- kernels ---- */

/* Measured by planned; 0: none were measured. */
static double kernel_factor(const struct mpp_profile *p)
{
    double planned = 0, seen = 0;
    for (int i = 0; i < p->n_rows; i++)
        if (p->rows[i].kind == MPP_PROFILE_KERNELS || p->rows[i].kind == MPP_PROFILE_UPDATE) {
            planned += p->rows[i].planned_s;
            seen += p->rows[i].seen_s;
        }
    double k = planned > 0 ? seen / planned : 0;
    return fabs(k - 1) < 1e-6 ? 1 : k; /* nearer than times are written */
}

static void scale_device(struct mpp_device *d, double k)
{
    for (int i = 0; i < MPP_PRECISION_COUNT; i++)
        d->peak_flops_per_s[i] /= k;
    d->mem_bytes_per_s /= k;
    d->launch_s *= k;
}

/* ---- collectives ---- */

static void scale_links(struct mpp_arena *arena, const struct mpp_cluster *from, double latency, double bandwidth, struct mpp_cluster *to)
{
    struct mpp_group_rate *rates = mpp_arena_memdup(arena, from->rates, sizeof *from->rates * (size_t)from->n_rates);
    for (int i = 0; i < from->n_rates; i++) {
        rates[i].bytes_per_s /= bandwidth;
        rates[i].all_reduce_bytes_per_s /= bandwidth;
    }
    to->rates = rates;
    to->link_bytes_per_s = from->link_bytes_per_s / bandwidth;
    to->total_bytes_per_s = from->total_bytes_per_s / bandwidth;
    to->send_bytes_per_s = from->send_bytes_per_s / bandwidth;
    to->pcie_bytes_per_s = from->pcie_bytes_per_s / bandwidth;
    to->pcie_total_bytes_per_s = from->pcie_total_bytes_per_s / bandwidth;
    to->nic_bytes_per_s = from->nic_bytes_per_s / bandwidth;
    to->device_network_bytes_per_s = from->device_network_bytes_per_s / bandwidth;
    for (int i = 0; i < from->n_protocols; i++) {
        struct mpp_protocol *p = &to->protocols[i];
        *p = from->protocols[i];
        p->base_s *= latency;
        p->step_s *= latency;
        p->network_step_s *= latency;
        p->most_bytes_per_s /= bandwidth;
        p->network_most_bytes_per_s /= bandwidth;
    }
}

static bool collective_of(const char *name, enum mpp_collective *out)
{
    static const struct {
        const char *begin;
        enum mpp_collective kind;
    } kinds[] = {{"all-reduce over ", MPP_COLLECTIVE_ALL_REDUCE}, {"all-gather over ", MPP_COLLECTIVE_ALL_GATHER},
                 {"reduce-scatter over ", MPP_COLLECTIVE_REDUCE_SCATTER}, {"all-to-all over ", MPP_COLLECTIVE_ALL_TO_ALL}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strncmp(name, kinds[i].begin, strlen(kinds[i].begin)) == 0) {
            *out = kinds[i].kind;
            return true;
        }
    return false;
}

struct fit {
    struct mpp_arena *arena;
    const struct mpp_profile *p;
    struct mpp_cluster *cluster;  /* with the factors that are tried */
};

/* The mean of |log(modelled / measured)| over the collectives that were planned and seen, by what they took; -1: there are none. */
static double distance(const struct fit *f, double latency, double bandwidth)
{
    const struct mpp_plan *plan = f->p->dir->fitted.plan;
    struct mpp_arena *scratch = mpp_arena_scratch(f->arena);
    double sum = 0, weight = 0;
    scale_links(scratch, f->p->dir->cluster, latency, bandwidth, f->cluster);
    struct mpp_reshard_env *env = mpp_arena_array(scratch, plan->n_stages, struct mpp_reshard_env);
    for (int i = 0; i < plan->n_stages; i++)
        mpp_reshard_env_init(f->cluster, &plan->stages[i].mesh, plan->stages[i].first_device, &env[i]);
    for (int i = 0; i < f->p->n_rows; i++) {
        const struct mpp_profile_row *r = &f->p->rows[i];
        enum mpp_collective kind;
        if (r->kind != MPP_PROFILE_COLLECTIVE || r->planned_count == 0 || r->seen_count == 0 || !(r->seen_s > 0) || !collective_of(r->name, &kind))
            continue;
        double each = mpp_cost_collective_s(f->cluster, &env[r->stage].groups[r->mask], kind, (double)r->bytes);
        if (!(each > 0))
            continue;
        sum += r->seen_s * fabs(log(each * (double)r->seen_count / r->seen_s));
        weight += r->seen_s;
    }
    mpp_arena_free(scratch);
    return weight > 0 ? sum / weight : -1;
}

/* Steps along one factor at a time, shorter and shorter. */
static void fit_links(const struct fit *f, struct mpp_recalibration *out)
{
    double x[2] = {1, 1}, best = distance(f, 1, 1), first = best;
    for (double step = 4; best >= 0 && step > 1.002; step = sqrt(step))
        for (bool better = true; better;) {
            better = false;
            for (int k = 0; k < 4; k++) {
                double before = x[k / 2];
                x[k / 2] = k % 2 ? before / step : before * step;
                double now = distance(f, x[0], x[1]);
                if (now < best - 1e-9 && x[k / 2] < MOST_FACTOR && x[k / 2] > 1 / MOST_FACTOR) {
                    best = now;
                    better = true;
                } else {
                    x[k / 2] = before;
                }
            }
        }
    out->latency = x[0];
    out->bandwidth = x[1];
    out->before = first < 0 ? 0 : exp(first);
    out->after = best < 0 ? 0 : exp(best);
}

void mpp_recalibrate_fit(struct mpp_arena *arena, const struct mpp_profile *p, struct mpp_recalibration *out, struct mpp_cluster *out_cluster)
{
    const struct mpp_cluster *c = p->dir->cluster;
    *out = (struct mpp_recalibration){.kernels = kernel_factor(p)};
    *out_cluster = *c;
    fit_links(&(struct fit){arena, p, out_cluster}, out);
    scale_links(arena, c, out->latency, out->bandwidth, out_cluster);
    scale_device(&out_cluster->device, out->kernels);
    scale_device(&out_cluster->core, out->kernels);
}

/* ---- the file ---- */

static void say(FILE *notes, const struct mpp_recalibration *r, const char *path)
{
    fprintf(notes, "note: %s: kernels take %.3g times what the plan was made with", path, r->kernels);
    if (r->before > 0)
        fprintf(notes, ", of collectives the latencies %.3g and the bytes %.3g times; these were off by a factor of %.3g on average, now by %.3g",
                r->latency, r->bandwidth, r->before, r->after);
    fprintf(notes, "; plan with it by --cluster\n");
}

enum mpp_status mpp_recalibrate(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_profile *p, const char *path, FILE *notes)
{
    struct mpp_recalibration r;
    struct mpp_cluster c;
    mpp_recalibrate_fit(arena, p, &r, &c);
    if (!(r.kernels > 1 / MOST_FACTOR && r.kernels < MOST_FACTOR)) {
        mpp_diag_error(diag, (struct mpp_loc){p->path, 0}, "this trace cannot recalibrate: in step %lld kernels take %.3g times what was planned; "
                       "it is to hold a whole step of a trainer of this plan", (long long)p->step, r.kernels);
        return MPP_INVALID;
    }
    const char *base = strrchr(p->path, '/');
    const char *source = mpp_arena_printf(arena, "step %lld of %s: kernels x %.4g, latencies x %.4g, bytes x %.4g of %s's figures",
                                          (long long)p->step, base ? base + 1 : p->path, r.kernels, r.latency, r.bandwidth, c.name);
    struct mpp_outfile *f = mpp_outfile_create(arena, path);
    if (!f)
        return mpp_outdir_cannot_create(diag, path);
    mpp_recalibrate_write(mpp_outfile_stream(f), &c, source);
    if (!mpp_outfile_close(f))
        return mpp_outdir_cannot_write(diag, path);
    say(notes, &r, path);
    return MPP_OK;
}
