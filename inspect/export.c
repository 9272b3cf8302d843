/* export.c - which kinds there are, and where they are written. */
#include "inspect/export.h"

#include <errno.h>
#include <string.h>

#include "codegen/embed.h"
#include "ir/outfile.h"

static const struct kind {
    const char *name;
    enum mpp_status (*write)(struct mpp_diag *, const struct mpp_plandir *, FILE *);
} kinds[] = {
    {"trace", mpp_export_trace},
    {"dot", mpp_export_dot},
    {"megatron", mpp_export_megatron},
};

const char *mpp_export_plan_schema(void)
{
    return mpp_embedded_schemas[0].text;
}

static enum mpp_status cannot_write(struct mpp_diag *diag, const char *path)
{
    mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot write: %s", strerror(errno));
    return MPP_IO;
}

enum mpp_status mpp_export(struct mpp_arena *arena, struct mpp_diag *diag, const char *kind, const struct mpp_plandir *d,
                           const char *path)
{
    const struct kind *k = kinds;
    while (strcmp(k->name, kind) != 0)
        k++;
    if (!path)
        return k->write(diag, d, stdout);
    struct mpp_outfile *f = mpp_outfile_create(arena, path);
    if (!f)
        return cannot_write(diag, path);
    MPP_TRY(k->write(diag, d, mpp_outfile_stream(f)));
    return mpp_outfile_close(f) ? MPP_OK : cannot_write(diag, path);
}
