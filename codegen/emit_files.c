/* emit_files.c - the runtime's sources, writing files. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "codegen/embed.h"
#include "codegen/emit_internal.h"
#include "ir/outfile.h"

enum mpp_status mpp_emit_write(struct mpp_diag *diag, struct mpp_arena *arena, const char *dir, const char *name,
                               const char *text, size_t size)
{
    const char *path = mpp_arena_printf(arena, "%s/%s", dir, name);
    struct mpp_outfile *f = mpp_outfile_create(arena, path);
    if (f)
        fwrite(text, 1, size, mpp_outfile_stream(f));
    if (f && mpp_outfile_close(f))
        return MPP_OK;
    mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot write: %s", strerror(errno));
    return MPP_IO;
}

enum mpp_status mpp_emit_write_script(struct mpp_diag *diag, struct mpp_arena *arena, const char *dir, const char *name,
                                      const char *text)
{
    const char *path = mpp_arena_printf(arena, "%s/%s", dir, name);
    struct stat st;
    MPP_TRY(mpp_emit_write(diag, arena, dir, name, text, strlen(text)));
    if (stat(path, &st) == 0 && chmod(path, (st.st_mode & 0777) | (st.st_mode & 0444) >> 2) == 0)
        return MPP_OK;
    mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot make the file a program: %s", strerror(errno));
    return MPP_IO;
}

enum mpp_status mpp_emit_runtime(struct mpp_diag *diag, struct mpp_arena *arena, const char *dir)
{
    static const char *const folders[] = {"runtime", "runtime/core", "runtime/host", "runtime/cuda"};
    for (int i = 0; i < 4; i++) {
        const char *path = mpp_arena_printf(arena, "%s/%s", dir, folders[i]);
        if (mkdir(path, 0777) != 0 && errno != EEXIST) {
            mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot make the directory: %s", strerror(errno));
            return MPP_IO;
        }
    }
    for (const struct mpp_embedded_source *s = mpp_embedded_runtime; s->path; s++)
        if (strncmp(s->path, "calibrate/", strlen("calibrate/")) != 0)
            MPP_TRY(mpp_emit_write(diag, arena, dir, mpp_arena_printf(arena, "runtime/%s", s->path), s->text, s->size));
    return MPP_OK;
}
