/* outdir.c - a plan directory that appears whole or not at all. */
#include "codegen/outdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPORARY ".mpplan-tmp-"
#define OLD ".old-"               /* in the temporary directory: an entry moved out of the way */
enum { RANDOM = 6, TRIES = 100 };

struct mpp_outdir {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const char *dir, *base;       /* as the user named it; without slashes at the end */
    char *tmp;
    int lock;                     /* the temporary directory, open and locked; -1: committed or abandoned */
    char **parents;               /* folders made above it, the outermost first */
    int n_parents;
};

/* ---- removing, without memory ---- */

static bool remove_inside(int fd);

static bool remove_at(int dir, const char *name)
{
    if (unlinkat(dir, name, 0) == 0)
        return true;
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return false;
    remove_inside(fd);
    close(fd);
    return unlinkat(dir, name, AT_REMOVEDIR) == 0;
}

/* Empty the directory FD, of one or many passes: entries may be skipped while others vanish. */
static bool remove_inside(int fd)
{
    _Alignas(struct dirent64) char buffer[4096];
    for (bool any = true; any;) {
        any = false;
        if (lseek(fd, 0, SEEK_SET) != 0)
            return false;
        for (ssize_t n; (n = getdents64(fd, buffer, sizeof buffer)) > 0;)
            for (ssize_t at = 0; at < n;) {
                const struct dirent64 *e = (const struct dirent64 *)(buffer + at);
                at += e->d_reclen;
                if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
                    any = remove_at(fd, e->d_name) || any;
            }
    }
    return true;
}

void mpp_outdir_remove(const char *path)
{
    remove_at(AT_FDCWD, path);
}

/* ---- what is refused ---- */

enum mpp_status mpp_outdir_status(int why)
{
    static const int users[] = {EACCES, EPERM, EROFS, ENOTDIR, EISDIR, ENAMETOOLONG, ELOOP, ENOENT, EEXIST};
    for (size_t i = 0; i < sizeof users / sizeof *users; i++)
        if (why == users[i])
            return MPP_INVALID;
    return MPP_IO;
}

enum mpp_status mpp_outdir_cannot_write(struct mpp_diag *diag, const char *path)
{
    mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot write: %s", strerror(errno ? errno : EIO));
    return MPP_IO;
}

enum mpp_status mpp_outdir_cannot_create(struct mpp_diag *diag, const char *path)
{
    enum mpp_status st = mpp_outdir_status(errno);
    (void)!mpp_outdir_cannot_write(diag, path);
    return st;
}

/* Report errno. */
static enum mpp_status failed(struct mpp_arena *arena, struct mpp_diag *diag, const char *dir, int why)
{
    if (why == ENOMEM)
        mpp_arena_fail(arena, 0);
    mpp_diag_error(diag, (struct mpp_loc){dir, 0}, "cannot write the plan here: %s", strerror(why));
    return mpp_outdir_status(why);
}

static enum mpp_status refused(struct mpp_diag *diag, const char *dir, const char *what)
{
    mpp_diag_error(diag, (struct mpp_loc){dir, 0}, "cannot write the plan here: %s; choose another with -o", what);
    return MPP_INVALID;
}

static bool is_temporary(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 && strlen(name) == n + RANDOM;
}

static void close_dir(void *d)
{
    closedir(d);
}

/* The names in DIR, *OUT_N of them; NULL with errno. */
static const char **list(struct mpp_arena *arena, const char *dir, int *out_n)
{
    struct mpp_arena *while_open = mpp_arena_scratch(arena);
    const char **names = mpp_arena_array(arena, 1, const char *);
    size_t cap = 1;
    *out_n = 0;
    DIR *d = opendir(dir);
    if (d) {
        mpp_arena_defer(while_open, close_dir, d);
        for (struct dirent *e; (e = readdir(d));) {
            if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
                continue;
            names = mpp_arena_grow(arena, names, &cap, (size_t)*out_n + 1, sizeof *names);
            names[(*out_n)++] = mpp_arena_strdup(arena, e->d_name);
        }
    }
    int why = errno;
    mpp_arena_free(while_open);
    errno = why;
    return d ? names : NULL;
}

/* May a plan be put into BASE, and is it there already? */
static enum mpp_status look(const struct mpp_outdir *o, bool *out_exists)
{
    struct stat sb;
    bool is_link = lstat(o->base, &sb) == 0 && S_ISLNK(sb.st_mode);
    *out_exists = stat(o->base, &sb) == 0;
    if (!*out_exists && errno == ENOENT && is_link)
        return refused(o->diag, o->dir, "it is a symbolic link that leads nowhere");
    if (!*out_exists)
        return errno == ENOENT ? MPP_OK : failed(o->arena, o->diag, o->dir, errno);
    if (!S_ISDIR(sb.st_mode))
        return refused(o->diag, o->dir, "it exists and is not a directory");
    if (access(o->base, R_OK | W_OK | X_OK) != 0)
        return failed(o->arena, o->diag, o->dir, errno);
    int n, foreign = 0;
    const char **names = list(o->arena, o->base, &n);
    if (!names)
        return failed(o->arena, o->diag, o->dir, errno);
    for (int i = 0; i < n; i++) {
        if (!strcmp(names[i], "plan.json"))
            return MPP_OK;
        foreign += !is_temporary(names[i], TEMPORARY);
    }
    return foreign ? refused(o->diag, o->dir, "the directory is not empty and holds no plan.json") : MPP_OK;
}

/* ---- the temporary directory ---- */

/* BASE's folder, and the prefix of temporary directories for it there. */
static const char *place(struct mpp_arena *arena, const char *base, bool exists, const char **out_prefix)
{
    const char *slash = strrchr(base, '/'), *name = slash ? slash + 1 : base;
    *out_prefix = exists ? TEMPORARY : mpp_arena_printf(arena, "%s" TEMPORARY, name);
    if (exists)
        return base;
    return !slash ? "." : slash == base ? "/" : mpp_arena_strndup(arena, base, (size_t)(slash - base));
}

/* Remove what killed processes have left: directories that nobody holds a lock on. */
static void sweep(struct mpp_arena *arena, const char *folder, const char *prefix)
{
    int n;
    const char **names = list(arena, folder, &n);
    int parent = names ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    for (int i = 0; parent >= 0 && i < n; i++) {
        int fd = is_temporary(names[i], prefix) ? openat(parent, names[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            remove_inside(fd);
            unlinkat(parent, names[i], AT_REMOVEDIR);
        }
        close(fd);
    }
    if (parent >= 0)
        close(parent);
}

/* Make the folders above PATH that are missing; false with errno. */
static bool make_parents(struct mpp_outdir *o, const char *path)
{
    char *part = mpp_arena_strdup(o->arena, path);
    size_t cap = (size_t)o->n_parents;
    for (char *c = part; (c = strchr(c + 1, '/'));) {
        *c = '\0';
        o->parents = mpp_arena_grow(o->arena, o->parents, &cap, (size_t)o->n_parents + 1, sizeof *o->parents);
        char *made = o->parents[o->n_parents] = mpp_arena_strdup(o->arena, part);
        int why = mkdir(made, 0777) == 0 ? 0 : errno;
        o->n_parents += why == 0;
        if (why && why != EEXIST && access(made, F_OK) != 0) {
            errno = why;
            return false;
        }
        *c = '/';
    }
    return true;
}

/* Is the directory FD still what PATH names? Another process may have taken it for one left behind. */
static bool still_there(int fd, const char *path)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

/* Six random letters at the end of NAME. */
static void name_randomly(char *name)
{
    unsigned char random[RANDOM];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        memset(random, getpid(), sizeof random);
    for (int i = 0; i < RANDOM; i++)
        name[strlen(name) - RANDOM + (size_t)i] = "abcdefghijklmnopqrstuvwxyz234567"[random[i] % 32];
}

/* Make, open and lock it; false with errno. (mkdtemp would make it for its owner alone.) */
static bool make_temporary(struct mpp_outdir *o, bool exists)
{
    o->tmp = mpp_arena_printf(o->arena, "%s%sxxxxxx", o->base, exists ? "/" TEMPORARY : TEMPORARY);
    for (int i = 0; i < TRIES; i++) {
        name_randomly(o->tmp);
        if (!exists && !make_parents(o, o->base))
            return false;
        if (mkdir(o->tmp, 0777) != 0) {
            if ((errno == ENOENT || errno == EEXIST) && i + 1 < TRIES)
                continue;         /* another process has just removed a folder that it had made */
            return false;
        }
        o->lock = open(o->tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (o->lock >= 0) {
            /* Where there are no locks, nothing is ever taken for left behind; where another has it, it will be removed. */
            bool taken = flock(o->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
            if (!taken && still_there(o->lock, o->tmp))
                return true;
            close(o->lock);
        } else if (errno != ENOENT) {
            int why = errno;
            rmdir(o->tmp);
            errno = why;
            return false;
        }
    }
    errno = EEXIST;
    return false;
}

static void end(void *p)
{
    mpp_outdir_abandon(p);
}

/* DIR without slashes and "/." at its end. */
static const char *trimmed(struct mpp_arena *arena, const char *dir)
{
    char *base = mpp_arena_strdup(arena, dir);
    for (size_t n = strlen(base); n > 1 && (base[n - 1] == '/' || (n > 2 && base[n - 1] == '.' && base[n - 2] == '/')); n--)
        base[n - 1] = '\0';
    return base;
}

enum mpp_status mpp_outdir_begin(struct mpp_arena *arena, struct mpp_diag *diag, const char *dir, struct mpp_outdir **out)
{
    struct mpp_outdir *o = mpp_arena_array(arena, 1, struct mpp_outdir);
    bool exists;
    *o = (struct mpp_outdir){.arena = arena, .diag = diag, .dir = dir, .base = trimmed(arena, dir), .lock = -1};
    *out = o;
    mpp_arena_defer(arena, end, o);
    if (!*o->base)
        return refused(diag, "-o", "the name is empty");
    MPP_TRY(look(o, &exists));
    const char *prefix, *folder = place(arena, o->base, exists, &prefix);
    sweep(arena, folder, prefix);
    if (make_temporary(o, exists))
        return MPP_OK;
    int why = errno;
    mpp_outdir_abandon(o);
    return failed(arena, diag, dir, why);
}

const char *mpp_outdir_path(const struct mpp_outdir *o)
{
    return o->tmp;
}

void mpp_outdir_abandon(struct mpp_outdir *o)
{
    if (o->lock >= 0) {
        remove_inside(o->lock);
        rmdir(o->tmp);
        close(o->lock);
    }
    o->lock = -1;
    for (; o->n_parents > 0; o->n_parents--)
        rmdir(o->parents[o->n_parents - 1]);
}

enum mpp_status mpp_outdir_check(struct mpp_arena *arena, struct mpp_diag *diag, const char *dir)
{
    struct mpp_outdir *o;
    MPP_TRY(mpp_outdir_begin(arena, diag, dir, &o));
    mpp_outdir_abandon(o);
    return MPP_OK;
}

/* ---- moving into place ---- */

enum how { NOT, MOVED, SWAPPED, ASIDE };

struct move {
    const char *from, *to, *old;
    enum how how;
};

static bool do_move(struct move *m)
{
    if (renameat2(AT_FDCWD, m->from, AT_FDCWD, m->to, RENAME_EXCHANGE) == 0) {
        m->how = SWAPPED;
        return true;
    }
    struct stat sb;
    bool there = lstat(m->to, &sb) == 0;
    if (there && rename(m->to, m->old) != 0) /* a file system that cannot exchange */
        return false;
    m->how = there ? ASIDE : NOT;
    if (rename(m->from, m->to) != 0)
        return false;
    m->how = there ? ASIDE : MOVED;
    return true;
}

static void undo_move(const struct move *m)
{
    if (m->how == SWAPPED)
        (void)!renameat2(AT_FDCWD, m->from, AT_FDCWD, m->to, RENAME_EXCHANGE);
    if (m->how == MOVED || m->how == ASIDE)
        (void)!rename(m->to, m->from);
    if (m->how == ASIDE)
        (void)!rename(m->old, m->to);
}

/* Move the temporary directory's entries into BASE, all or none. */
static enum mpp_status move_entries(struct mpp_outdir *o)
{
    int n;
    const char **names = list(o->arena, o->tmp, &n);
    if (!names)
        return failed(o->arena, o->diag, o->dir, errno);
    struct move *moves = mpp_arena_array(o->arena, n, struct move);
    for (int i = 0; i < n; i++) {
        moves[i].from = mpp_arena_printf(o->arena, "%s/%s", o->tmp, names[i]);
        moves[i].to = mpp_arena_printf(o->arena, "%s/%s", o->base, names[i]);
        moves[i].old = mpp_arena_printf(o->arena, "%s/" OLD "%s", o->tmp, names[i]);
    }
    int base = open(o->base, O_RDONLY | O_DIRECTORY | O_CLOEXEC), i = 0;
    if (base >= 0)
        flock(base, LOCK_EX);     /* other processes wait here for as long as the moves take */
    while (i < n && do_move(&moves[i]))
        i++;
    int why = errno;
    for (int k = i; i < n && k >= 0; k--)
        undo_move(&moves[k]);
    if (base >= 0)
        close(base);
    return i == n ? MPP_OK : failed(o->arena, o->diag, moves[i].to, why);
}

enum mpp_status mpp_outdir_commit(struct mpp_outdir *o)
{
    bool exists;
    enum mpp_status st = look(o, &exists);
    if (st == MPP_OK && !exists && rename(o->tmp, o->base) == 0) {
        close(o->lock);
        o->lock = -1;
        o->n_parents = 0;
        return MPP_OK;
    }
    if (st == MPP_OK && !exists && errno != ENOTEMPTY && errno != EEXIST)
        st = failed(o->arena, o->diag, o->dir, errno);
    else if (st == MPP_OK && !exists)  /* another process was quicker */
        st = look(o, &exists);
    if (st == MPP_OK)
        st = move_entries(o);
    if (st == MPP_OK)
        o->n_parents = 0;
    mpp_outdir_abandon(o);
    return st;
}
