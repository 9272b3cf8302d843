#include "ir/infile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Why ST is not to be read; NULL: it may be. */
static const char *refused(struct mpp_arena *arena, const struct stat *st, int most_mib)
{
    if (S_ISDIR(st->st_mode))
        return "it is a directory";
    if (!S_ISREG(st->st_mode))
        return "it is not a regular file";
    if (st->st_size > (off_t)most_mib << 20)
        return mpp_arena_printf(arena, "it is over %d MiB", most_mib);
    return NULL;
}

static size_t read_all(int fd, char *to, size_t size, const char **out_why)
{
    size_t done = 0;
    while (done < size) {
        ssize_t n = read(fd, to + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            *out_why = strerror(errno);
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    return done;
}

static char *read_fd(struct mpp_arena *arena, int fd, int most_mib, size_t *out_size, const char **out_why)
{
    struct stat st;
    *out_why = fstat(fd, &st) != 0 ? strerror(errno) : refused(arena, &st, most_mib);
    if (*out_why)
        return NULL;
    char *text = mpp_arena_alloc(arena, (size_t)st.st_size + 1);
    *out_size = read_all(fd, text, (size_t)st.st_size, out_why);
    return *out_why ? NULL : text;
}

static void close_fd(void *fd)
{
    close((int)(intptr_t)fd);
}

char *mpp_infile_read(struct mpp_arena *arena, const char *path, int most_mib, size_t *out_size, const char **out_why)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    *out_size = 0;
    *out_why = fd < 0 ? strerror(errno) : NULL;
    if (fd < 0)
        return NULL;
    struct mpp_arena *while_open = mpp_arena_scratch(arena);
    mpp_arena_defer(while_open, close_fd, (void *)(intptr_t)fd);
    char *text = read_fd(arena, fd, most_mib, out_size, out_why);
    mpp_arena_free(while_open);
    return text;
}
