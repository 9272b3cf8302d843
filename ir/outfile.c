#include "ir/outfile.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

struct mpp_outfile {
    FILE *stream;                 /* NULL: closed */
    const char *path;
    const char *target;           /* what PATH becomes when it is whole; NULL: nothing else */
    bool regular;                 /* not a terminal, a pipe or /dev/full */
};

/* Close and remove. */
static void give_up(void *p)
{
    struct mpp_outfile *file = p;
    if (!file->stream)
        return;
    fclose(file->stream);
    file->stream = NULL;
    if (file->regular)
        unlink(file->path);
}

/* PATH, which becomes TARGET. */
static struct mpp_outfile *create(struct mpp_arena *arena, const char *path, const char *target)
{
    struct mpp_outfile *file = mpp_arena_array(arena, 1, struct mpp_outfile);
    struct stat st;
    file->path = mpp_arena_strdup(arena, path);
    file->target = target ? mpp_arena_strdup(arena, target) : NULL;
    file->stream = fopen(path, "w");
    if (!file->stream && errno == ENOMEM)
        mpp_arena_fail(arena, 0);
    if (!file->stream)
        return NULL;
    file->regular = fstat(fileno(file->stream), &st) == 0 && S_ISREG(st.st_mode);
    mpp_arena_defer(arena, give_up, file);
    return file;
}

struct mpp_outfile *mpp_outfile_create(struct mpp_arena *arena, const char *path)
{
    return create(arena, path, NULL);
}

struct mpp_outfile *mpp_outfile_replace(struct mpp_arena *arena, const char *path)
{
    struct stat st;
    bool there = lstat(path, &st) == 0;
    if (there && (!S_ISREG(st.st_mode) || access(path, W_OK) != 0)) /* a link, a pipe; what may not be written */
        return create(arena, path, NULL);
    struct mpp_outfile *file = create(arena, mpp_arena_printf(arena, "%s.tmp-%ld", path, (long)getpid()), path);
    if (!file && there && errno == EACCES) /* of a folder in which nothing may be made */
        return create(arena, path, NULL);
    if (file && there)
        (void)!fchmod(fileno(file->stream), st.st_mode & 07777);
    return file;
}

FILE *mpp_outfile_stream(const struct mpp_outfile *file)
{
    return file->stream;
}

bool mpp_outfile_close(struct mpp_outfile *file)
{
    int why = 0;
    if (ferror(file->stream)) {   /* errno is long gone: fail once more to learn it */
        clearerr(file->stream);
        errno = 0;
        why = fputc('\n', file->stream) == EOF || fflush(file->stream) != 0 ? errno : 0;
        why = why ? why : EIO;
    }
    if (fclose(file->stream) != 0 && !why)
        why = errno ? errno : EIO;
    file->stream = NULL;
    if (!why && file->target && rename(file->path, file->target) != 0)
        why = errno;
    if (why && file->regular)
        unlink(file->path);
    errno = why;
    return why == 0;
}
