/* checkpoint.c - writing and finding step folders. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint.h"
#include "init.h"
#include "job.h"
#include "safetensors.h"
#include "tensors.h"

/* Paths are built in buffers of this size; longer ones are refused. */
#define PATH_BYTES 4096
#define STEP_LIMIT 1000000000000000 /* steps, times any batch, stay within int64_t */

static int join(char *out, const char *a, const char *b, struct mpp_error *error)
{
    if (snprintf(out, PATH_BYTES, "%s/%s", a, b) >= PATH_BYTES)
        return mpp_error_set(error, MPP_EXIT_INPUT, "the path %.64s... is too long", a);
    return MPP_EXIT_OK;
}

static int system_error(struct mpp_error *error, const char *path)
{
    return mpp_error_set(error, MPP_EXIT_SYSTEM, "%s: %s", path, strerror(errno));
}

static int flush_path(const char *path, struct mpp_error *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return system_error(error, path);
    int code = fsync(fd) == 0 || errno == EINVAL ? MPP_EXIT_OK : system_error(error, path);
    close(fd);
    return code;
}

/* ---- one file of tensors ----------------------------------------------------------------------------- */

static int write_all(int fd, const char *bytes, int64_t count, int64_t at)
{
    while (count > 0) {
        ssize_t n = pwrite(fd, bytes, (size_t)count, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        bytes += n;
        at += n;
        count -= n;
    }
    return 0;
}

static struct mpp_st_entry *entries_of(const struct mpp_named *named, int n)
{
    struct mpp_st_entry *entries = calloc((size_t)n + 1, sizeof *entries);
    for (int i = 0; entries != NULL && i < n; i++)
        entries[i] = (struct mpp_st_entry){
            .name = named[i].name,
            .type = named[i].tensor->type,
            .n_dims = named[i].tensor->n_published,
            .dims = named[i].tensor->published,
        };
    return entries;
}

/* This rank's blocks, where it is their owner. */
static int write_blocks(struct mpp_rank *r, const struct mpp_named *named, const struct mpp_st_entry *entries, int n,
                        const char *path, struct mpp_error *error)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return system_error(error, path);
    int rc = 0;
    for (int i = 0; rc == 0 && i < n; i++) {
        struct mpp_block block = mpp_block_of(r, named[i].tensor);
        struct mpp_run run = {0};
        while (rc == 0 && block.owner && mpp_block_next(&block, &run))
            rc = write_all(fd, r->arena + named[i].offset + 4 * run.local, 4 * run.count,
                           entries[i].file_offset + 4 * run.global);
    }
    if (rc == 0)
        rc = fsync(fd);
    int code = rc == 0 ? MPP_EXIT_OK : system_error(error, path);
    if (close(fd) != 0 && code == MPP_EXIT_OK)
        code = system_error(error, path);
    return code;
}

/* What to remove if the job fails from here on; "": nothing. Rank 0's only. */
static void set_unfinished(struct mpp_rank *r, const char *path)
{
    struct mpp_local *local = r->impl;
    if (r->rank == 0)
        (void)snprintf(local->unfinished, sizeof local->unfinished, "%s", path);
}

/* Collective; PATH is not yet renamed to its final name. */
static void write_file(struct mpp_rank *r, enum mpp_tensor_kind kind, const char *path)
{
    struct mpp_error error = {0};
    struct mpp_named *named = NULL;
    struct mpp_st_entry *entries = NULL;
    int n = 0;
    int code = mpp_named_list(r->program, kind, &named, &n, &error);
    if (code == MPP_EXIT_OK) {
        entries = entries_of(named, n);
        if (entries == NULL)
            code = mpp_error_set(&error, MPP_EXIT_SYSTEM, "out of memory");
        else if (r->rank == 0)
            code = mpp_st_create(path, entries, n, &error);
        else
            code = mpp_st_layout(entries, n, &error);
    }
    int worst = mpp_agreement(r, code, &error);
    if (worst == MPP_EXIT_OK)
        code = write_blocks(r, named, entries, n, path, &error);
    free(entries);
    mpp_named_free(named, n);
    if (worst != MPP_EXIT_OK)
        mpp_leave(r, worst);
    mpp_agree(r, code, &error);
}

void mpp_checkpoint_write(struct mpp_rank *r, enum mpp_tensor_kind kind, const char *path)
{
    struct mpp_error error = {0};
    char temporary[PATH_BYTES];
    int code = MPP_EXIT_OK;
    if (snprintf(temporary, sizeof temporary, "%s.part", path) >= PATH_BYTES)
        code = mpp_error_set(&error, MPP_EXIT_INPUT, "the path %.64s... is too long", path);
    mpp_agree(r, code, &error);
    set_unfinished(r, temporary);
    write_file(r, kind, temporary);
    if (r->rank == 0 && rename(temporary, path) != 0)
        code = system_error(&error, path);
    mpp_agree(r, code, &error);
    set_unfinished(r, "");
}

/* ---- folders ------------------------------------------------------------------------------------------- */

static int make_folders(const char *path, struct mpp_error *error)
{
    char part[PATH_BYTES];
    if (snprintf(part, sizeof part, "%s", path) >= PATH_BYTES)
        return mpp_error_set(error, MPP_EXIT_INPUT, "the path %.64s... is too long", path);
    for (char *at = part + 1; *at != '\0'; at++)
        if (*at == '/') {
            *at = '\0';
            if (mkdir(part, 0777) != 0 && errno != EEXIST)
                return system_error(error, part);
            *at = '/';
        }
    if (mkdir(part, 0777) != 0 && errno != EEXIST)
        return system_error(error, part);
    return MPP_EXIT_OK;
}

/* A folder of ours: plain files only. Nothing happens where there is none. */
static int remove_folder(const char *path, struct mpp_error *error)
{
    DIR *dir = opendir(path);
    if (dir == NULL)
        return errno == ENOENT ? MPP_EXIT_OK : system_error(error, path);
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            (void)unlinkat(dirfd(dir), e->d_name, 0);
    closedir(dir);
    return rmdir(path) == 0 ? MPP_EXIT_OK : system_error(error, path);
}

/* Number of a folder called step-N, or -1. */
static int64_t step_number(const char *name)
{
    char *end;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return -1;
    errno = 0;
    long long n = strtoll(name + 5, &end, 10);
    return *end == '\0' && errno == 0 ? n : -1;
}

/* The highest step of DIR below BELOW, -1 where there is none. */
static int64_t newest_step(const char *dir, int64_t below)
{
    int64_t best = -1;
    DIR *d = opendir(dir);
    if (d == NULL)
        return -1;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        int64_t n = step_number(e->d_name);
        if (n > best && n < below)
            best = n;
    }
    closedir(d);
    return best;
}

static void step_path(char *out, const char *dir, const char *prefix, int64_t step)
{
    (void)snprintf(out, PATH_BYTES, "%.4000s/%sstep-%lld", dir, prefix, (long long)step);
}

/* Unfinished folders, and replaced ones, of trainers that were killed. */
static int remove_stale(const char *dir, struct mpp_error *error)
{
    static const char *const prefixes[] = {".part-", ".old-"};
    int code = MPP_EXIT_OK;
    DIR *d = opendir(dir);
    if (d == NULL)
        return system_error(error, dir);
    for (struct dirent *e; code == MPP_EXIT_OK && (e = readdir(d)) != NULL;)
        for (int i = 0; i < 2; i++) {
            char path[PATH_BYTES];
            size_t length = strlen(prefixes[i]);
            if (strncmp(e->d_name, prefixes[i], length) != 0 || step_number(e->d_name + length) < 0)
                continue;
            code = join(path, dir, e->d_name, error);
            if (code == MPP_EXIT_OK)
                code = remove_folder(path, error);
        }
    closedir(d);
    return code;
}

int mpp_checkpoint_claim(const char *dir, int *lock_out, struct mpp_error *error)
{
    if (strlen(dir) > 4000)
        return mpp_error_set(error, MPP_EXIT_INPUT, "the path %.64s... is too long", dir);
    int code = make_folders(dir, error);
    if (code != MPP_EXIT_OK)
        return code;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return system_error(error, dir);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) /* some file systems know no locks */
        code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: another trainer saves here; give --save another folder", dir);
    else if (access(dir, W_OK | X_OK) != 0)
        code = system_error(error, dir);
    else
        code = remove_stale(dir, error);
    if (code != MPP_EXIT_OK)
        close(fd);
    else
        *lock_out = fd;
    return code;
}

int mpp_checkpoint_check_file(const char *path, struct mpp_error *error)
{
    struct stat st;
    char folder[PATH_BYTES];
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) /* renaming would replace a device */
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: not a file", path);
    const char *slash = strrchr(path, '/');
    int length = slash == NULL ? 1 : slash == path ? 1 : (int)(slash - path);
    if (length >= PATH_BYTES - 1)
        return mpp_error_set(error, MPP_EXIT_INPUT, "the path %.64s... is too long", path);
    (void)snprintf(folder, sizeof folder, "%.*s", length, slash == NULL ? "." : path);
    return access(folder, W_OK | X_OK) == 0 ? MPP_EXIT_OK : system_error(error, folder);
}

void mpp_checkpoint_discard(struct mpp_rank *r)
{
    struct mpp_local *local = r->impl;
    struct mpp_error error;
    if (local->unfinished[0] != '\0' && unlink(local->unfinished) != 0)
        (void)!remove_folder(local->unfinished, &error);
    local->unfinished[0] = '\0';
}

int64_t mpp_checkpoint_newest(const char *dir)
{
    return newest_step(dir, INT64_MAX);
}

/* Of the steps up to LAST the newest KEEP stay; later ones are another run's. */
static int remove_old(const char *dir, int64_t last, int64_t keep, struct mpp_error *error)
{
    int64_t below = last + 1;
    for (int64_t i = 0;; i++) {
        below = newest_step(dir, below);
        if (below < 0)
            return MPP_EXIT_OK;
        if (i < keep)
            continue;
        char path[PATH_BYTES];
        step_path(path, dir, "", below);
        int code = remove_folder(path, error);
        if (code != MPP_EXIT_OK)
            return code;
    }
}

/* ---- state.json ------------------------------------------------------------------------------------------ */

static int write_state(const struct mpp_rank *r, const char *dir, const char *data, struct mpp_error *error)
{
    char path[PATH_BYTES];
    int code = join(path, dir, "state.json", error);
    if (code != MPP_EXIT_OK)
        return code;
    json_t *root = json_pack("{s:s, s:s?, s:I, s:I, s:I, s:s}", "model", r->program->model, "plan_version",
                             r->program->plan_version, "step", (json_int_t)r->step, "seed", (json_int_t)r->seed,
                             "batch", (json_int_t)r->program->batch, "data", data);
    if (root == NULL)
        code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: the model's or the data's name is not UTF-8", path);
    else if (json_dump_file(root, path, JSON_INDENT(2)) != 0)
        code = system_error(error, path);
    json_decref(root);
    return code != MPP_EXIT_OK ? code : flush_path(path, error);
}

static int read_state(const char *path, struct mpp_checkpoint *out, struct mpp_error *error)
{
    json_error_t why;
    json_int_t step, seed, batch = 0;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: %s", path, why.text);
    int rc = json_unpack_ex(root, &why, 0, "{s:I, s:I, s?I}", "step", &step, "seed", &seed, "batch", &batch);
    json_decref(root);
    if (rc != 0 || step < 0 || step > STEP_LIMIT)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: no valid step and seed", path);
    out->step = step;
    out->seed = (uint64_t)seed;
    out->batch = batch;
    return MPP_EXIT_OK;
}

int mpp_checkpoint_find(const char *dir, struct mpp_checkpoint *found_out, struct mpp_error *error)
{
    char state[PATH_BYTES];
    struct mpp_checkpoint found = {0};
    int code = join(state, dir, "state.json", error);
    if (code != MPP_EXIT_OK)
        return code;
    if (strlen(dir) > 4000)
        return mpp_error_set(error, MPP_EXIT_INPUT, "the path %.64s... is too long", dir);
    (void)snprintf(found.path, sizeof found.path, "%s", dir);
    for (int64_t step = INT64_MAX; access(state, R_OK) != 0;) {
        step = newest_step(dir, step);
        if (step < 0)
            return mpp_error_set(error, MPP_EXIT_INPUT, "%s: no checkpoint (step-N) here", dir);
        step_path(found.path, dir, "", step);
        code = join(state, found.path, "state.json", error);
        if (code != MPP_EXIT_OK)
            return code;
    }
    code = read_state(state, &found, error);
    if (code == MPP_EXIT_OK)
        *found_out = found;
    return code;
}

/* ---- save and load ----------------------------------------------------------------------------------------- */

/* TEMPORARY becomes FINAL; a folder of that name before is replaced at once where the system can. */
static int give_name(const char *temporary, const char *final, const char *old, struct mpp_error *error)
{
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, final, RENAME_EXCHANGE) == 0)
        return remove_folder(temporary, error);
    int code = remove_folder(old, error);
    if (code == MPP_EXIT_OK && rename(final, old) != 0 && errno != ENOENT)
        code = system_error(error, final);
    if (code == MPP_EXIT_OK && rename(temporary, final) != 0)
        code = system_error(error, final);
    return code == MPP_EXIT_OK ? remove_folder(old, error) : code;
}

/* Rank 0: give the complete folder its name. */
static int publish(struct mpp_rank *r, const char *dir, const char *temporary, const char *data,
                   struct mpp_error *error)
{
    char final[PATH_BYTES], old[PATH_BYTES];
    step_path(final, dir, "", r->step);
    step_path(old, dir, ".old-", r->step);
    int code = write_state(r, temporary, data, error);
    if (code == MPP_EXIT_OK)
        code = flush_path(temporary, error);
    if (code == MPP_EXIT_OK)
        code = give_name(temporary, final, old, error);
    if (code == MPP_EXIT_OK)
        code = flush_path(dir, error);
    if (code == MPP_EXIT_OK && r->program->save_keep > 0)
        code = remove_old(dir, r->step, r->program->save_keep, error);
    return code;
}

void mpp_checkpoint_save(struct mpp_rank *r, const char *dir, const char *data)
{
    struct mpp_error error = {0};
    char temporary[PATH_BYTES], path[PATH_BYTES];
    int code = MPP_EXIT_OK;
    step_path(temporary, dir, ".part-", r->step);
    if (r->rank == 0) {
        code = strlen(dir) > 4000 ? mpp_error_set(&error, MPP_EXIT_INPUT, "the path %.64s... is too long", dir)
                                  : make_folders(dir, &error);
        if (code == MPP_EXIT_OK)
            code = remove_folder(temporary, &error);
        if (code == MPP_EXIT_OK && mkdir(temporary, 0777) != 0)
            code = system_error(&error, temporary);
        if (code == MPP_EXIT_OK)
            set_unfinished(r, temporary);
    }
    mpp_agree(r, code, &error);
    (void)snprintf(path, sizeof path, "%.4060s/model.safetensors", temporary);
    write_file(r, MPP_KIND_PARAMETER, path);
    (void)snprintf(path, sizeof path, "%.4060s/optimizer.safetensors", temporary);
    write_file(r, MPP_KIND_OPTIMIZER, path);
    if (r->rank == 0)
        code = publish(r, dir, temporary, data, &error);
    mpp_agree(r, code, &error);
    set_unfinished(r, "");
}

void mpp_checkpoint_load(struct mpp_rank *r, const char *step_dir)
{
    struct mpp_error error = {0};
    char path[PATH_BYTES];
    int code = join(path, step_dir, "model.safetensors", &error);
    if (code == MPP_EXIT_OK)
        code = mpp_init_load(r, MPP_KIND_PARAMETER, path, NULL, NULL, 0, &error);
    if (code == MPP_EXIT_OK)
        code = join(path, step_dir, "optimizer.safetensors", &error);
    if (code == MPP_EXIT_OK)
        code = mpp_init_load(r, MPP_KIND_OPTIMIZER, path, NULL, NULL, 0, &error);
    mpp_agree(r, code, &error);
}
