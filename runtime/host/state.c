/* state.c - state.json, and finding a checkpoint. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mpp_rt.h"
#include "options.h"
#include "state.h"

#define STEP_LIMIT 1000000000000000 /* steps, times any batch, stay within int64_t */

const char *const mpp_state_file_names[MPP_STATE_FILES] = {"model.safetensors", "optimizer.safetensors"};

static const char *const setting_names[MPP_STATE_SETTINGS] = {
    "lr", "final_lr", "warmup_steps", "total_steps", "beta1", "beta2", "epsilon", "momentum", "nesterov", "clip_norm",
};

uint64_t mpp_state_sum(const char *name, int64_t first, const char *bytes, int64_t count)
{
    uint32_t at = 0x811c9dc5u; /* FNV-1a of the name */
    for (; *name != '\0'; name++)
        at = (at ^ (unsigned char)*name) * 0x01000193u;
    at += (uint32_t)first + (uint32_t)(first >> 32) * 0x85ebca6bu;
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, bytes + 4 * i, sizeof word);
        sum += (uint64_t)word * (((at + (uint32_t)i) * 0x9e3779b1u) | 1);
    }
    return sum;
}

/* ---- this run ------------------------------------------------------------------------------------------- */

void mpp_state_describe(const struct mpp_program *program, const struct mpp_options *options,
                        struct mpp_checkpoint *state_out)
{
    static const char *const schedules[] = {
        [MPP_SCHEDULE_CONSTANT] = "constant", [MPP_SCHEDULE_LINEAR] = "linear", [MPP_SCHEDULE_COSINE] = "cosine"};
    const struct mpp_hyper *h = &program->hyper;
    bool constant = program->schedule == MPP_SCHEDULE_CONSTANT;
    int64_t total = program->total_steps > 0 ? program->total_steps : options->steps;
    struct mpp_checkpoint *s = state_out;
    *s = (struct mpp_checkpoint){
        .batch = program->batch,
        .setting = {options->lr, constant ? 0 : program->final_lr, (double)program->warmup_steps,
                    constant ? 0 : (double)total, h->beta1, h->beta2, h->epsilon, h->momentum, h->nesterov, h->clip_norm},
    };
    (void)snprintf(s->schedule, sizeof s->schedule, "%s", schedules[program->schedule]);
    (void)snprintf(s->model, sizeof s->model, "%s", program->model);
    (void)snprintf(s->data, sizeof s->data, "%s", options->data != NULL ? options->data : "");
}

/* Appends to two lists, what was and what is. */
struct lists {
    char was[384], is[384];
};

static void differ(struct lists *l, const char *name, const char *was, const char *is)
{
    size_t n = strlen(l->was), m = strlen(l->is);
    (void)snprintf(l->was + n, sizeof l->was - n, "%s%s %s", n > 0 ? ", " : "", name, was);
    (void)snprintf(l->is + m, sizeof l->is - m, "%s%s", m > 0 ? ", " : "", is);
}

void mpp_state_compare(const struct mpp_checkpoint *from, const struct mpp_checkpoint *now, char *note, int note_bytes)
{
    struct lists l = {0};
    char was[32], is[32];
    note[0] = '\0';
    if (from->model[0] != '\0' && strcmp(from->model, now->model) != 0)
        differ(&l, "model", from->model, now->model);
    if (from->data[0] != '\0' && strcmp(from->data, now->data) != 0)
        differ(&l, "data", from->data, now->data);
    if (from->batch > 0 && from->batch != now->batch) {
        (void)snprintf(was, sizeof was, "%lld", (long long)from->batch);
        (void)snprintf(is, sizeof is, "%lld", (long long)now->batch);
        differ(&l, "batch", was, is);
    }
    if (from->schedule[0] != '\0' && strcmp(from->schedule, now->schedule) != 0)
        differ(&l, "schedule", from->schedule, now->schedule);
    for (int i = 0; from->schedule[0] != '\0' && i < MPP_STATE_SETTINGS; i++) {
        if (!(from->setting[i] < now->setting[i] || from->setting[i] > now->setting[i]))
            continue;
        (void)snprintf(was, sizeof was, "%.9g", from->setting[i]);
        (void)snprintf(is, sizeof is, "%.9g", now->setting[i]);
        differ(&l, setting_names[i], was, is);
    }
    if (l.was[0] != '\0')
        (void)snprintf(note, (size_t)note_bytes, "%.255s was trained with %s; this run goes on with %s", from->path, l.was,
                       l.is);
}

/* ---- the file ---------------------------------------------------------------------------------------------- */

static json_t *state_json(const struct mpp_checkpoint *s)
{
    json_t *settings = json_object(), *files = json_object();
    json_object_set_new(settings, "schedule", json_string(s->schedule));
    for (int i = 0; i < MPP_STATE_SETTINGS; i++)
        json_object_set_new(settings, setting_names[i], json_real(s->setting[i]));
    for (int i = 0; i < MPP_STATE_FILES; i++) {
        char sum[32];
        (void)snprintf(sum, sizeof sum, "%016llx", (unsigned long long)s->file[i].sum);
        json_object_set_new(files, mpp_state_file_names[i],
                            json_pack("{s:I, s:s}", "bytes", (json_int_t)s->file[i].bytes, "sum", sum));
    }
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:s, s:o, s:o}", "model", s->model, "step", (json_int_t)s->step,
                     "samples", (json_int_t)s->samples, "seed", (json_int_t)s->seed, "batch", (json_int_t)s->batch,
                     "data", s->data, "settings", settings, "files", files);
}

int mpp_state_write(const struct mpp_checkpoint *state, const char *dir, struct mpp_error *error)
{
    char path[MPP_PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/state.json", dir) >= MPP_PATH_BYTES)
        return mpp_error_set(error, MPP_EXIT_INPUT, "the path %.64s... is too long", dir);
    json_t *root = state_json(state);
    if (root == NULL)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: the model's or the data's name is not UTF-8", path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool ok = fd >= 0 && json_dumpfd(root, fd, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) == 0 && fsync(fd) == 0;
    int why = errno;
    if (fd >= 0 && close(fd) != 0)
        ok = false;
    json_decref(root);
    return ok ? MPP_EXIT_OK : mpp_error_set(error, MPP_EXIT_SYSTEM, "%s: %s", path, strerror(why));
}

static void copy_text(const json_t *root, const char *name, char *out, size_t out_bytes)
{
    const char *text = json_string_value(json_object_get(root, name));
    (void)snprintf(out, out_bytes, "%s", text != NULL ? text : "");
}

static bool read_files(const json_t *files, struct mpp_checkpoint *out)
{
    for (int i = 0; i < MPP_STATE_FILES; i++) {
        const json_t *file = json_object_get(files, mpp_state_file_names[i]);
        const char *sum = json_string_value(json_object_get(file, "sum"));
        char *end = NULL;
        out->file[i].bytes = -1;
        if (files == NULL) /* of a release that did not record them */
            continue;
        out->file[i].bytes = json_integer_value(json_object_get(file, "bytes"));
        out->file[i].sum = sum != NULL ? strtoull(sum, &end, 16) : 0;
        if (sum == NULL || strlen(sum) != 16 || *end != '\0' || out->file[i].bytes <= 0)
            return false;
    }
    return true;
}

static int read_state(const char *path, struct mpp_checkpoint *out, struct mpp_error *error)
{
    json_error_t why;
    json_int_t step = -1, seed = 0, batch = 0, samples = -1;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: %s", path, why.text);
    bool ok = json_unpack_ex(root, &why, 0, "{s:I, s:I, s?I, s?I}", "step", &step, "seed", &seed, "batch", &batch, "samples",
                             &samples) == 0;
    ok = ok && step >= 0 && step <= STEP_LIMIT && batch >= 0 && samples >= -1;
    ok = ok && read_files(json_object_get(root, "files"), out);
    out->step = step;
    out->seed = (uint64_t)seed;
    out->batch = batch;
    out->samples = samples;
    copy_text(root, "model", out->model, sizeof out->model);
    copy_text(root, "data", out->data, sizeof out->data);
    const json_t *settings = json_object_get(root, "settings");
    copy_text(settings, "schedule", out->schedule, sizeof out->schedule);
    for (int i = 0; i < MPP_STATE_SETTINGS; i++)
        out->setting[i] = json_number_value(json_object_get(settings, setting_names[i]));
    json_decref(root);
    return ok ? MPP_EXIT_OK : mpp_error_set(error, MPP_EXIT_INPUT, "%s: does not tell a step, its seed and its files", path);
}

/* ---- finding one --------------------------------------------------------------------------------------------- */

int64_t mpp_checkpoint_number(const char *name)
{
    char *end;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return -1;
    errno = 0;
    long long n = strtoll(name + 5, &end, 10);
    return *end == '\0' && errno == 0 ? n : -1;
}

int64_t mpp_checkpoint_newest(const char *dir, int64_t below)
{
    int64_t best = -1;
    DIR *d = opendir(dir);
    if (d == NULL)
        return -1;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        int64_t n = mpp_checkpoint_number(e->d_name);
        if (n > best && n < below)
            best = n;
    }
    closedir(d);
    return best;
}

/* Reads and checks the checkpoint whose folder is OUT->path. */
static int open_step(struct mpp_checkpoint *out, struct mpp_error *error)
{
    char path[MPP_PATH_BYTES];
    struct stat st;
    (void)snprintf(path, sizeof path, "%.4060s/state.json", out->path);
    if (stat(path, &st) != 0)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: %s", path, strerror(errno));
    int code = read_state(path, out, error);
    for (int i = 0; code == MPP_EXIT_OK && i < MPP_STATE_FILES; i++) {
        (void)snprintf(path, sizeof path, "%.4060s/%s", out->path, mpp_state_file_names[i]);
        if (stat(path, &st) != 0)
            code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: %s", path, strerror(errno));
        else if (out->file[i].bytes >= 0 && st.st_size != out->file[i].bytes)
            code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: damaged: it holds %lld bytes, but %lld were saved", path,
                                 (long long)st.st_size, (long long)out->file[i].bytes);
    }
    return code;
}

int mpp_checkpoint_find(const char *dir, struct mpp_checkpoint *found_out, bool *none_out, struct mpp_error *error)
{
    struct mpp_checkpoint *found = found_out;
    char state[MPP_PATH_BYTES];
    struct stat st;
    *found = (struct mpp_checkpoint){0};
    if (none_out != NULL)
        *none_out = false;
    if (strlen(dir) > 4000)
        return mpp_error_set(error, MPP_EXIT_INPUT, "the path %.64s... is too long", dir);
    (void)snprintf(found->path, sizeof found->path, "%s", dir);
    (void)snprintf(state, sizeof state, "%.4000s/state.json", dir);
    const char *slash = strrchr(dir, '/');
    if (stat(state, &st) == 0 || mpp_checkpoint_number(slash != NULL ? slash + 1 : dir) >= 0)
        return open_step(found, error);
    if (access(dir, R_OK | X_OK) != 0 && errno != ENOENT)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: %s", dir, strerror(errno));
    if (stat(dir, &st) == 0 && !S_ISDIR(st.st_mode))
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: not a folder", dir);
    struct mpp_error first = {0};
    for (int64_t step = INT64_MAX; (step = mpp_checkpoint_newest(dir, step)) >= 0;) {
        struct mpp_error why;
        *found = (struct mpp_checkpoint){0};
        (void)snprintf(found->path, sizeof found->path, "%.4000s/step-%lld", dir, (long long)step);
        if (open_step(found, &why) == MPP_EXIT_OK) {
            if (first.code != MPP_EXIT_OK)
                (void)snprintf(found->note, sizeof found->note, "%.400s; going back to step-%lld", first.text,
                               (long long)step);
            return MPP_EXIT_OK;
        }
        if (first.code == MPP_EXIT_OK)
            first = why;
    }
    if (first.code != MPP_EXIT_OK) {
        *error = first;
        return first.code;
    }
    if (none_out != NULL)
        *none_out = true;
    return mpp_error_set(error, MPP_EXIT_INPUT, "%s: no checkpoint (step-N) here", dir);
}
