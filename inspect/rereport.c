/* rereport.c - report.txt and report.html again. */
#include "inspect/rereport.h"

#include "codegen/outdir.h"
#include "ir/outfile.h"

/* Files 0 to N - 1 at their PATHs: all or none. */
static enum mpp_status put_in_place(struct mpp_diag *diag, struct mpp_outfile *const *file, const char *const *path, int n)
{
    for (int i = 0; i < n; i++) { /* room is missing before the first takes its place */
        FILE *stream = mpp_outfile_stream(file[i]);
        if ((fflush(stream) != 0 || ferror(stream)) && !mpp_outfile_close(file[i]))
            return mpp_outdir_cannot_write(diag, path[i]);
    }
    for (int i = 0; i < n; i++)
        if (!mpp_outfile_close(file[i]))
            return mpp_outdir_cannot_write(diag, path[i]);
    return MPP_OK;
}

enum mpp_status mpp_rereport(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_plandir *d, const struct mpp_profile *profile)
{
    const struct mpp_plan *plan = d->fitted.plan;
    const struct mpp_lprog *prog = mpp_plandir_program(d);
    const char *path[2] = {mpp_arena_printf(arena, "%s/report.txt", d->dir), mpp_arena_printf(arena, "%s/report.html", d->dir)};
    struct mpp_outfile *file[2];
    for (int i = 0; i < 2; i++)
        if (!(file[i] = mpp_outfile_replace(arena, path[i])))
            return mpp_outdir_cannot_create(diag, path[i]);
    MPP_TRY(mpp_report_write(diag, d->graph, d->cluster, plan, prog, mpp_outfile_stream(file[0])));
    if (profile)
        mpp_profile_print(profile, mpp_outfile_stream(file[0]));
    MPP_TRY(mpp_report_html_measured(diag, d->graph, d->cluster, plan, prog, profile ? mpp_profile_json(arena, profile) : NULL,
                                     mpp_outfile_stream(file[1])));
    return put_in_place(diag, file, path, 2);
}
