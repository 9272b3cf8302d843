/* outdir.c - a plan directory that appears whole or not at all. */
#include "codegen/outdir.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int remove_entry(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int remove_tree(const char *path)
{
    return nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

void mpp_outdir_abandon(const char *tmp)
{
    remove_tree(tmp);
}

static enum mpp_status refused(struct mpp_diag *diag, const char *dir, const char *what)
{
    mpp_diag_error(diag, (struct mpp_loc){dir, 0}, "cannot write the plan here: %s", what);
    return MPP_INVALID;
}

static bool is_empty(const char *dir)
{
    DIR *d = opendir(dir);
    bool empty = true;
    for (struct dirent *e; d && (e = readdir(d));)
        empty = empty && (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."));
    if (d)
        closedir(d);
    return empty;
}

static const char *without_slashes(struct mpp_arena *arena, const char *dir)
{
    char *base = mpp_arena_strdup(arena, dir);
    for (size_t n = strlen(base); n > 1 && base[n - 1] == '/'; n--)
        base[n - 1] = '\0';
    return base;
}

enum mpp_status mpp_outdir_check(struct mpp_arena *arena, struct mpp_diag *diag, const char *dir)
{
    const char *tmp;
    MPP_TRY(mpp_outdir_begin(arena, diag, dir, &tmp));
    mpp_outdir_abandon(tmp);
    return MPP_OK;
}

enum mpp_status mpp_outdir_begin(struct mpp_arena *arena, struct mpp_diag *diag, const char *dir, const char **out_tmp)
{
    const char *base = without_slashes(arena, dir);
    if (!*base)
        return refused(diag, "-o", "the name is empty; give a directory, as in -o plan/");
    struct stat sb;
    bool exists = stat(base, &sb) == 0;
    if (exists) {
        if (!S_ISDIR(sb.st_mode))
            return refused(diag, dir, "it exists and is not a directory; choose another with -o");
        if (access(base, W_OK | X_OK) != 0)
            return refused(diag, dir, strerror(errno));
        struct stat plan;
        if (!is_empty(base) && stat(mpp_arena_printf(arena, "%s/plan.json", base), &plan) != 0)
            return refused(diag, dir, "the directory is not empty and holds no plan.json; choose another with -o");
    }
    char *tmp = mpp_arena_printf(arena, "%s%s.tmp-XXXXXX", base, exists ? "/" : "");
    if (!mkdtemp(tmp))
        return refused(diag, dir, errno == ENOENT ? "the folder above it does not exist" : strerror(errno));
    chmod(tmp, 0755);
    *out_tmp = tmp;
    return MPP_OK;
}

static enum mpp_status move_entries(struct mpp_arena *arena, struct mpp_diag *diag, const char *tmp, const char *base)
{
    DIR *d = opendir(tmp);
    if (!d)
        return refused(diag, base, strerror(errno));
    enum mpp_status st = MPP_OK;
    for (struct dirent *e; st == MPP_OK && (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        const char *from = mpp_arena_printf(arena, "%s/%s", tmp, e->d_name);
        const char *to = mpp_arena_printf(arena, "%s/%s", base, e->d_name);
        struct stat old, new;
        if (lstat(to, &old) == 0 && (S_ISDIR(old.st_mode) || (lstat(from, &new) == 0 && S_ISDIR(new.st_mode))))
            remove_tree(to);
        if (rename(from, to) != 0)
            st = refused(diag, to, strerror(errno));
    }
    closedir(d);
    return st;
}

enum mpp_status mpp_outdir_commit(struct mpp_arena *arena, struct mpp_diag *diag, const char *tmp, const char *dir)
{
    const char *base = without_slashes(arena, dir);
    enum mpp_status st = MPP_OK;
    struct stat sb;
    if (stat(base, &sb) != 0) {
        if (rename(tmp, base) == 0)
            return MPP_OK;
        st = refused(diag, dir, strerror(errno));
    } else {
        st = move_entries(arena, diag, tmp, base);
    }
    remove_tree(tmp);
    return st;
}
