/* export.c - which kinds there are, and where they are written. */
#include "inspect/export.h"

#include <string.h>

#include "codegen/embed.h"
#include "codegen/outdir.h"
#include "ir/outfile.h"

static const struct kind {
    const char *name;
    void (*write)(const struct mpp_plandir *, FILE *);
} kinds[] = {
    {"trace", mpp_export_trace},
    {"dot", mpp_export_dot},
    {"megatron", mpp_export_megatron},
};

const char *mpp_export_plan_schema(void)
{
    return mpp_embedded_schemas[0].text;
}

enum mpp_status mpp_export(struct mpp_arena *arena, struct mpp_diag *diag, const char *kind, const struct mpp_plandir *d,
                           const char *path)
{
    const struct kind *k = kinds;
    while (strcmp(k->name, kind) != 0)
        k++;
    struct mpp_outfile *f = path ? mpp_outfile_create(arena, path) : NULL;
    if (path && !f)
        return mpp_outdir_cannot_create(diag, path);
    k->write(d, path ? mpp_outfile_stream(f) : stdout);
    return !path || mpp_outfile_close(f) ? MPP_OK : mpp_outdir_cannot_write(diag, path);
}
