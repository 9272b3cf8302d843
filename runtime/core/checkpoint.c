/* checkpoint.c - writing and loading step folders. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint.h"
#include "device.h"
#include "init.h"
#include "job.h"
#include "safetensors.h"
#include "space.h"
#include "state.h"
#include "tensors.h"
#include "transport.h"

#define PATH_BYTES MPP_PATH_BYTES

static int join(char *out, const char *a, const char *b, struct mpp_error *error)
{
    if (snprintf(out, PATH_BYTES, "%s/%s", a, b) >= PATH_BYTES)
        return mpp_error_set(error, MPP_EXIT_INPUT, "the path %.64s... is too long", a);
    return MPP_EXIT_OK;
}

static int system_error(struct mpp_error *error, const char *path)
{
    return mpp_error_system(error, path, errno);
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

/* A run of a tensor, part by part: added to *SUM, and written to the file that holds the tensor from OFFSET on; FD -1: none. */
static int take_run(struct mpp_rank *r, const struct mpp_named *named, const struct mpp_run *run, int fd, int64_t offset,
                    uint64_t *sum)
{
    char part[4 * MPP_DEVICE_PART];
    int rc = 0;
    for (int64_t i = 0; rc == 0 && i < run->count; i += MPP_DEVICE_PART) {
        int64_t n = mpp_min_i64(MPP_DEVICE_PART, run->count - i);
        mpp_device_get(r, part, r->arena + named->offset + 4 * (run->local + i), (size_t)(4 * n));
        *sum += mpp_state_sum(named->name, run->global + i, part, n);
        if (fd >= 0)
            rc = write_all(fd, part, 4 * n, offset + 4 * (run->global + i));
        mpp_rank_moves(r);
    }
    return rc;
}

/* This rank's blocks, where it is their owner in the stage they are taken from; *SUM_OUT is theirs. */
static int write_blocks(struct mpp_rank *r, const struct mpp_named *named, const struct mpp_st_entry *entries, int n,
                        const char *path, uint64_t *sum_out, struct mpp_error *error)
{
    *sum_out = 0;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return system_error(error, path);
    int rc = 0;
    for (int i = 0; rc == 0 && i < n; i++) {
        if (named[i].stage != r->stage_index)
            continue;
        struct mpp_block block = mpp_block_of(r, named[i].tensor);
        struct mpp_run run = {0};
        while (rc == 0 && block.owner && mpp_block_next(&block, &run))
            rc = take_run(r, &named[i], &run, fd, entries[i].file_offset, sum_out);
    }
    if (rc == 0)
        rc = fsync(fd);
    int code = rc == 0 ? MPP_EXIT_OK : system_error(error, path);
    if (close(fd) != 0 && code == MPP_EXIT_OK)
        code = system_error(error, path);
    return code;
}

/* What to remove if the job fails from here on; "": nothing. Rank 0's only. The watch's thread sees a whole path or none. */
static void set_unfinished(struct mpp_rank *r, const char *path)
{
    struct mpp_local *local = r->impl;
    if (r->rank != 0)
        return;
    atomic_store(&local->is_unfinished, false);
    (void)snprintf(local->unfinished, sizeof local->unfinished, "%s", path);
    atomic_store(&local->is_unfinished, path[0] != '\0');
}

/* The sum over all ranks, on rank 0. */
static uint64_t add_sums(struct mpp_rank *r, uint64_t sum)
{
    for (int from = 1; r->rank == 0 && from < r->n_ranks; from++) {
        uint64_t other;
        r->transport->ops->receive(r, from, &other, sizeof other);
        sum += other;
    }
    if (r->rank != 0)
        r->transport->ops->send(r, 0, &sum, sizeof sum);
    return sum;
}

/* Collective; PATH is not yet renamed to its final name. The sum of what was written, on rank 0. */
static uint64_t write_file(struct mpp_rank *r, enum mpp_tensor_kind kind, const char *path)
{
    struct mpp_error error = {0};
    uint64_t sum = 0;
    struct mpp_named *named = NULL;
    struct mpp_st_entry *entries = NULL;
    int n = 0;
    int code = mpp_named_union(r->program, kind, &named, &n, &error);
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
        code = write_blocks(r, named, entries, n, path, &sum, &error);
    free(entries);
    mpp_named_free(named, n);
    if (worst != MPP_EXIT_OK)
        mpp_leave(r, worst);
    mpp_agree(r, code, &error);
    return add_sums(r, sum);
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
    (void)write_file(r, kind, temporary);
    if (r->rank == 0 && rename(temporary, path) != 0)
        code = system_error(&error, path);
    mpp_agree(r, code, &error);
    set_unfinished(r, "");
}

/* ---- folders ------------------------------------------------------------------------------------------- */

/* One folder, whose name in PARENT then survives a power cut. */
static int make_folder(const char *path, const char *parent, struct mpp_error *error)
{
    if (mkdir(path, 0777) == 0)
        return flush_path(parent, error);
    return errno == EEXIST ? MPP_EXIT_OK : system_error(error, path);
}

static int make_folders(const char *path, struct mpp_error *error)
{
    char part[PATH_BYTES], parent[PATH_BYTES];
    if (snprintf(part, sizeof part, "%s", path) >= PATH_BYTES)
        return mpp_error_set(error, MPP_EXIT_INPUT, "the path %.64s... is too long", path);
    (void)snprintf(parent, sizeof parent, "%s", part[0] == '/' ? "/" : ".");
    for (char *at = part + 1; *at != '\0'; at++)
        if (*at == '/') {
            *at = '\0';
            int code = make_folder(part, parent, error);
            if (code != MPP_EXIT_OK)
                return code;
            (void)snprintf(parent, sizeof parent, "%s", part);
            *at = '/';
        }
    return make_folder(part, parent, error);
}

/* A folder of ours: plain files only. Nothing happens where there is none. What a checkpoint holds is removed without
 * memory, which may have run out. */
static int remove_folder(const char *path, struct mpp_error *error)
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return errno == ENOENT ? MPP_EXIT_OK : system_error(error, path);
    (void)unlinkat(folder, "state.json", 0);
    for (int i = 0; i < MPP_STATE_FILES; i++)
        (void)unlinkat(folder, mpp_state_file_names[i], 0);
    close(folder);
    if (rmdir(path) == 0)
        return MPP_EXIT_OK;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return system_error(error, path);
    DIR *dir = opendir(path);
    if (dir == NULL)
        return system_error(error, path);
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            (void)unlinkat(dirfd(dir), e->d_name, 0);
    closedir(dir);
    return rmdir(path) == 0 ? MPP_EXIT_OK : system_error(error, path);
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
            if (strncmp(e->d_name, prefixes[i], length) != 0 || mpp_checkpoint_number(e->d_name + length) < 0)
                continue;
            code = join(path, dir, e->d_name, error);
            if (code == MPP_EXIT_OK)
                code = remove_folder(path, error);
        }
    closedir(d);
    return code;
}

/* A trainer that was just killed may take a moment to let go. Some file systems know no locks: then all have it. */
static bool lock(int fd)
{
    for (int i = 0; i < 30; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
            return true;
        usleep(100000);
    }
    return false;
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
    if (!lock(fd))
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
    if (access(folder, W_OK | X_OK) != 0)
        return system_error(error, folder);
    char part[PATH_BYTES];        /* what it is written as; in some folders nobody can make a file */
    (void)snprintf(part, sizeof part, "%.4000s.part", path);
    int file = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0)
        return errno == EEXIST ? MPP_EXIT_OK : system_error(error, path);
    (void)close(file);
    return unlink(part) == 0 ? MPP_EXIT_OK : system_error(error, path);
}

void mpp_checkpoint_discard(struct mpp_rank *r)
{
    struct mpp_local *local = r->impl;
    struct mpp_error error;
    if (atomic_exchange(&local->is_unfinished, false) && unlink(local->unfinished) != 0)
        (void)!remove_folder(local->unfinished, &error);
}

/* Of the steps up to LAST the newest KEEP stay; later ones are another run's. */
static int remove_old(const char *dir, int64_t last, int64_t keep, struct mpp_error *error)
{
    int64_t below = last + 1;
    for (int64_t i = 0;; i++) {
        below = mpp_checkpoint_newest(dir, below);
        if (below < 0)
            return MPP_EXIT_OK;
        if (i < keep)
            continue;
        char path[PATH_BYTES], old[PATH_BYTES];
        step_path(path, dir, "", below);
        step_path(old, dir, ".old-", below); /* what is called step-N is whole even if we end here */
        int code = remove_folder(old, error);
        if (code == MPP_EXIT_OK && rename(path, old) != 0)
            code = system_error(error, path);
        if (code == MPP_EXIT_OK)
            code = flush_path(dir, error);
        if (code == MPP_EXIT_OK)
            code = remove_folder(old, error);
        if (code != MPP_EXIT_OK)
            return code;
    }
}

/* ---- save and load ----------------------------------------------------------------------------------------- */

/* TEMPORARY becomes FINAL, in DIR; a folder of that name before is replaced at once where the system can, and goes when
 * the new one is sure to stay. */
static int give_name(const char *dir, const char *temporary, const char *final, const char *old, struct mpp_error *error)
{
    bool exchanged = renameat2(AT_FDCWD, temporary, AT_FDCWD, final, RENAME_EXCHANGE) == 0;
    int code = exchanged ? MPP_EXIT_OK : remove_folder(old, error);
    if (!exchanged && code == MPP_EXIT_OK && rename(final, old) != 0 && errno != ENOENT)
        code = system_error(error, final);
    if (!exchanged && code == MPP_EXIT_OK && rename(temporary, final) != 0)
        code = system_error(error, final);
    if (code == MPP_EXIT_OK)
        code = flush_path(dir, error);
    return code == MPP_EXIT_OK ? remove_folder(exchanged ? temporary : old, error) : code;
}

/* Rank 0: give the complete folder its name. */
static int publish(struct mpp_rank *r, const char *dir, const char *temporary, const uint64_t *sums,
                   struct mpp_error *error)
{
    const struct mpp_job *job = ((const struct mpp_local *)r->impl)->job;
    char final[PATH_BYTES], old[PATH_BYTES];
    struct mpp_checkpoint *state = calloc(1, sizeof *state);
    if (state == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    step_path(final, dir, "", r->step);
    step_path(old, dir, ".old-", r->step);
    mpp_state_describe(r->program, job->options, job->data_source, state);
    state->step = r->step;
    state->seed = r->seed;
    state->samples = job->first_sample + (r->step - job->first_step) * r->program->batch;
    int code = MPP_EXIT_OK;
    for (int i = 0; code == MPP_EXIT_OK && i < MPP_STATE_FILES; i++) {
        char path[PATH_BYTES];
        struct stat st = {0};
        (void)snprintf(path, sizeof path, "%.4060s/%s", temporary, mpp_state_file_names[i]);
        if (stat(path, &st) != 0)
            code = system_error(error, path);
        state->file[i] = (struct mpp_state_file){st.st_size, sums[i]};
    }
    if (code == MPP_EXIT_OK)
        code = mpp_state_write(state, temporary, error);
    free(state);
    if (code == MPP_EXIT_OK)
        code = flush_path(temporary, error);
    if (code == MPP_EXIT_OK)
        code = give_name(dir, temporary, final, old, error);
    if (code == MPP_EXIT_OK && r->program->save_keep > 0)
        code = remove_old(dir, r->step, r->program->save_keep, error);
    return code;
}

void mpp_checkpoint_save(struct mpp_rank *r, const char *dir)
{
    static const enum mpp_tensor_kind kinds[MPP_STATE_FILES] = {MPP_KIND_PARAMETER, MPP_KIND_OPTIMIZER};
    struct mpp_error error = {0};
    char temporary[PATH_BYTES];
    uint64_t sums[MPP_STATE_FILES];
    int code = MPP_EXIT_OK;
    step_path(temporary, dir, ".part-", r->step);
    if (r->rank == 0) {
        code = remove_folder(temporary, &error);
        if (code == MPP_EXIT_OK && mkdir(temporary, 0777) != 0)
            code = system_error(&error, temporary);
        if (code == MPP_EXIT_OK)
            set_unfinished(r, temporary);
    }
    mpp_agree(r, code, &error);
    for (int i = 0; i < MPP_STATE_FILES; i++) {
        char path[PATH_BYTES];
        (void)snprintf(path, sizeof path, "%.4060s/%s", temporary, mpp_state_file_names[i]);
        sums[i] = write_file(r, kinds[i], path);
    }
    if (r->rank == 0)
        code = publish(r, dir, temporary, sums, &error);
    mpp_agree(r, code, &error);
    set_unfinished(r, "");
}

/* What this rank loaded of tensors of KIND, where it is the owner. */
static int sum_blocks(struct mpp_rank *r, enum mpp_tensor_kind kind, uint64_t *sum_out, struct mpp_error *error)
{
    struct mpp_named *named;
    int n;
    *sum_out = 0;
    int code = mpp_named_union(r->program, kind, &named, &n, error);
    if (code != MPP_EXIT_OK)
        return code;
    for (int i = 0; i < n; i++) {
        if (named[i].stage != r->stage_index)
            continue;
        struct mpp_block block = mpp_block_of(r, named[i].tensor);
        struct mpp_run run = {0};
        while (block.owner && mpp_block_next(&block, &run))
            (void)take_run(r, &named[i], &run, -1, 0, sum_out);
    }
    mpp_named_free(named, n);
    return MPP_EXIT_OK;
}

void mpp_checkpoint_load(struct mpp_rank *r, const struct mpp_checkpoint *from)
{
    static const enum mpp_tensor_kind kinds[MPP_STATE_FILES] = {MPP_KIND_PARAMETER, MPP_KIND_OPTIMIZER};
    struct mpp_error error = {0};
    for (int i = 0; i < MPP_STATE_FILES; i++) {
        char path[PATH_BYTES];
        uint64_t sum = 0;
        int code = join(path, from->path, mpp_state_file_names[i], &error);
        if (code == MPP_EXIT_OK)
            code = mpp_init_load(r, kinds[i], path, NULL, NULL, 0, &error);
        if (code == MPP_EXIT_OK)
            code = sum_blocks(r, kinds[i], &sum, &error);
        mpp_agree(r, code, &error);
        if (from->file[i].bytes < 0)
            continue;
        sum = add_sums(r, sum);
        if (r->rank == 0 && sum != from->file[i].sum)
            code = mpp_error_set(&error, MPP_EXIT_INPUT, "%s: damaged: it does not hold the numbers that were saved; "
                                 "--resume takes the folder of an older step too", path);
        mpp_agree(r, code, &error);
    }
}
