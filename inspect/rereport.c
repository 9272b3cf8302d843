/* rereport.c - report.txt and report.html again. */
#include "inspect/rereport.h"

#include "codegen/outdir.h"
#include "ir/outfile.h"

enum mpp_status mpp_rereport(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_plandir *d, const struct mpp_profile *profile)
{
    const struct mpp_plan *plan = d->fitted.plan;
    const struct mpp_lprog *prog = mpp_plandir_program(d);
    const char *text = mpp_arena_printf(arena, "%s/report.txt", d->dir), *page = mpp_arena_printf(arena, "%s/report.html", d->dir);
    struct mpp_outfile *f = mpp_outfile_create(arena, text);
    if (!f)
        return mpp_outdir_cannot_create(diag, text);
    MPP_TRY(mpp_report_write(diag, d->graph, d->cluster, plan, prog, mpp_outfile_stream(f)));
    if (profile)
        mpp_profile_print(profile, mpp_outfile_stream(f));
    if (!mpp_outfile_close(f))
        return mpp_outdir_cannot_write(diag, text);
    f = mpp_outfile_create(arena, page);
    if (!f)
        return mpp_outdir_cannot_create(diag, page);
    MPP_TRY(mpp_report_html_measured(diag, d->graph, d->cluster, plan, prog, profile ? mpp_profile_json(arena, profile) : NULL,
                                     mpp_outfile_stream(f)));
    return mpp_outfile_close(f) ? MPP_OK : mpp_outdir_cannot_write(diag, page);
}
