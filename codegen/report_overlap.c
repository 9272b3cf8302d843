/* report_overlap.c - what of a plan's collectives goes on beside its kernels (codegen/overlap.h). */
#include "codegen/report_internal.h"

static const char *part(const struct report *r, double hidden_s, double all_s)
{
    double share = all_s > 0 ? 100 * hidden_s / all_s : 0;
    return mpp_arena_printf(r->arena, "%s of %s (%.0f %%)", mpp_report_seconds(r->arena, hidden_s), mpp_report_seconds(r->arena, all_s), share);
}

void mpp_report_overlap(const struct report *r)
{
    const struct mpp_overlap *o = &r->stage->overlap;
    const char *over = r->cluster->kind == MPP_LINK_SHARED ? " (over MPI)" : "";
    struct mpp_text s = {.arena = r->arena};
    if (o->sums_s > 0)
        mpp_text_add(&s, "hidden behind the backward pass%s: about %s of gradient sums", over, part(r, o->hidden_sums_s, o->sums_s));
    if (o->gathers_s > 0)
        mpp_text_add(&s, "%s%s%s about %s of weight gathers", s.n ? "; behind kernels" : "hidden behind kernels", s.n ? "" : over,
                     s.n ? "" : ":", part(r, o->hidden_gathers_s, o->gathers_s));
    if (s.n == 0)
        return;
    const char *then = mpp_report_counts_overlap(r) ? "times here count all of them" :
                       mpp_arena_printf(r->arena, "times, bound and gap here count all of them; a step then takes about %s%s",
                                        mpp_report_seconds(r->arena, (double)r->plan->overlapped_ps * 1e-12),
                                        r->plan->pins && *r->plan->pins ? "" : "; --overlap looks for the plan that is fastest so");
    mpp_report_paragraph(r, 2, mpp_arena_printf(r->arena, "%s (%s)", mpp_text_string(&s), then), true);
}

bool mpp_report_counts_overlap(const struct report *r)
{
    return r->plan->overlap;
}
