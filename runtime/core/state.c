/* state.c - state.json, and finding a checkpoint. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "json.h"
#include "mapped.h"
#include "mpp_rt.h"
#include "options.h"
#include "state.h"

#define STEP_LIMIT 1000000000000 /* steps, times any batch, stay within int64_t */
#define BATCH_LIMIT 1000000
#define TEXT_BYTES sizeof((struct mpp_checkpoint *)0)->data /* the longest text */

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

void mpp_state_describe(const struct mpp_program *program, const struct mpp_options *options, const char *data,
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
    (void)snprintf(s->data, sizeof s->data, "%s", data != NULL ? data : "");
    (void)snprintf(s->built, sizeof s->built, "%s", program->built != NULL ? program->built : "");
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

/* One "name value" of a list of them. */
struct item {
    const char *name, *value;
    int name_length, value_length;
};

/* The next of the list at *AT. */
static bool next_item(const char **at, struct item *out)
{
    if (**at == '\0')
        return false;
    int length = (int)strcspn(*at, ","), name = (int)strcspn(*at, " ,");
    int gap = name < length;
    *out = (struct item){*at, *at + name + gap, name, length - name - gap};
    *at += length;
    *at += strspn(*at, ", ");
    return true;
}

static bool find_item(const char *list, const struct item *like, struct item *out)
{
    while (next_item(&list, out))
        if (out->name_length == like->name_length && memcmp(out->name, like->name, (size_t)like->name_length) == 0)
            return true;
    return false;
}

/* IS: of which LIST has no item, or another. ADDED: those that it lacks only. */
static void differ_built(struct lists *l, const char *from, const char *other, bool added)
{
    struct item a, b;
    char name[64], was[64], is[64];
    while (next_item(&from, &a)) {
        bool found = find_item(other, &a, &b);
        if (found && (added || (a.value_length == b.value_length && memcmp(a.value, b.value, (size_t)a.value_length) == 0)))
            continue;
        (void)snprintf(name, sizeof name, "%.*s", a.name_length, a.name);
        (void)snprintf(was, sizeof was, "%.*s", a.value_length, a.value);
        (void)snprintf(is, sizeof is, "%.*s", found ? b.value_length : 4, found ? b.value : "none");
        differ(l, name, added ? is : was, added ? was : is);
    }
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
    if (from->built[0] != '\0' && now->built[0] != '\0') {
        differ_built(&l, from->built, now->built, false);
        differ_built(&l, now->built, from->built, true);
    }
    if (l.was[0] != '\0')
        (void)snprintf(note, (size_t)note_bytes, "%.255s was trained with %s; this run goes on with %s", from->path, l.was,
                       l.is);
}

/* ---- the file ---------------------------------------------------------------------------------------------- */

static void print_text(FILE *out, const char *name, const char *text)
{
    char escaped[6 * TEXT_BYTES];
    int64_t n = mpp_json_escape(text, escaped);
    fprintf(out, "\"%s\": \"%.*s\"", name, (int)n, escaped);
}

static void print_state(FILE *out, const struct mpp_checkpoint *s)
{
    fputs("{\n  ", out);
    print_text(out, "model", s->model);
    fprintf(out, ",\n  \"step\": %lld,\n  \"samples\": %lld,\n  \"seed\": %lld,\n  \"batch\": %lld,\n  ", (long long)s->step,
            (long long)s->samples, (long long)s->seed, (long long)s->batch);
    print_text(out, "data", s->data);
    fputs(",\n  \"settings\": {\n    ", out);
    print_text(out, "schedule", s->schedule);
    for (int i = 0; i < MPP_STATE_SETTINGS; i++)
        fprintf(out, ",\n    \"%s\": %.17g", setting_names[i], s->setting[i]);
    fputs("\n  },\n  ", out);
    print_text(out, "built", s->built);
    fputs(",\n  \"files\": {", out);
    for (int i = 0; i < MPP_STATE_FILES; i++)
        fprintf(out, "%s\n    \"%s\": {\"bytes\": %lld, \"sum\": \"%016llx\"}", i > 0 ? "," : "", mpp_state_file_names[i],
                (long long)s->file[i].bytes, (unsigned long long)s->file[i].sum);
    fputs("\n  }\n}\n", out);
}

int mpp_state_write(const struct mpp_checkpoint *state, const char *dir, struct mpp_error *error)
{
    char path[MPP_PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/state.json", dir) >= MPP_PATH_BYTES)
        return mpp_error_set(error, MPP_EXIT_INPUT, "the path %.64s... is too long", dir);
    FILE *out = fopen(path, "we");
    if (out == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "%s: %s", path, errno == ENOMEM ? "out of memory" : strerror(errno));
    errno = 0;
    print_state(out, state);
    bool ok = fflush(out) == 0 && !ferror(out) && fsync(fileno(out)) == 0;
    int why = errno;
    if (fclose(out) != 0 && ok) {
        ok = false;
        why = errno;
    }
    return ok ? MPP_EXIT_OK : mpp_error_set(error, MPP_EXIT_SYSTEM, "%s: %s", path, strerror(why));
}

/* Which of NAMES a key is, -1: none. A second time is a fault. */
static int read_key(struct mpp_json *j, const char *const *names, int n, unsigned *seen)
{
    char key[32];
    mpp_json_key(j, key, sizeof key);
    for (int i = 0; i < n; i++)
        if (strcmp(key, names[i]) == 0) {
            if (*seen >> i & 1)
                mpp_json_fault(j, "%s occurs twice", key);
            *seen |= 1u << i;
            return i;
        }
    return -1;
}

static void read_settings(struct mpp_json *j, struct mpp_checkpoint *out)
{
    const char *names[MPP_STATE_SETTINGS + 1] = {"schedule"};
    unsigned seen = 0;
    memcpy(names + 1, setting_names, sizeof setting_names);
    mpp_json_open(j, '{');
    while (mpp_json_more(j, '}')) {
        int k = read_key(j, names, MPP_STATE_SETTINGS + 1, &seen);
        if (k < 0)
            mpp_json_skip(j);
        else if (k == 0)
            mpp_json_string(j, out->schedule, sizeof out->schedule);
        else
            mpp_json_number(j, &out->setting[k - 1]);
    }
}

static void read_file(struct mpp_json *j, struct mpp_state_file *out)
{
    static const char *const names[] = {"bytes", "sum"};
    unsigned seen = 0;
    char sum[32] = "";
    mpp_json_open(j, '{');
    while (mpp_json_more(j, '}')) {
        int k = read_key(j, names, 2, &seen);
        if (k < 0)
            mpp_json_skip(j);
        else if (k == 0)
            mpp_json_integer(j, &out->bytes);
        else
            mpp_json_string(j, sum, sizeof sum);
    }
    if (seen != 3 || out->bytes <= 0 || strlen(sum) != 16 || strspn(sum, "0123456789abcdef") != 16)
        mpp_json_fault(j, "a file has its bytes and its sum, 16 hexadecimal digits");
    out->sum = strtoull(sum, NULL, 16);
}

static void read_files(struct mpp_json *j, struct mpp_checkpoint *out)
{
    unsigned seen = 0;
    mpp_json_open(j, '{');
    while (mpp_json_more(j, '}')) {
        int k = read_key(j, mpp_state_file_names, MPP_STATE_FILES, &seen);
        if (k < 0)
            mpp_json_skip(j);
        else
            read_file(j, &out->file[k]);
    }
    for (int i = 0; i < MPP_STATE_FILES; i++)
        if (!(seen >> i & 1))
            mpp_json_fault(j, "%s is not listed", mpp_state_file_names[i]);
}

enum key { KEY_STEP, KEY_SEED, KEY_BATCH, KEY_SAMPLES, KEY_MODEL, KEY_DATA, KEY_SETTINGS, KEY_BUILT, KEY_FILES,
           N_KEYS };

static void read_member(struct mpp_json *j, int key, struct mpp_checkpoint *out)
{
    int64_t seed;
    switch (key) {
    case KEY_STEP: mpp_json_integer(j, &out->step); break;
    case KEY_SEED:
        mpp_json_integer(j, &seed);
        out->seed = (uint64_t)seed;
        break;
    case KEY_BATCH: mpp_json_integer(j, &out->batch); break;
    case KEY_SAMPLES: mpp_json_integer(j, &out->samples); break;
    case KEY_MODEL: mpp_json_string(j, out->model, sizeof out->model); break;
    case KEY_DATA: mpp_json_string(j, out->data, sizeof out->data); break;
    case KEY_SETTINGS: read_settings(j, out); break;
    case KEY_BUILT: mpp_json_string(j, out->built, sizeof out->built); break;
    case KEY_FILES: read_files(j, out); break;
    default: mpp_json_skip(j);
    }
}

static int read_state(const char *path, struct mpp_checkpoint *out, struct mpp_error *error)
{
    static const char *const names[N_KEYS] = {"step", "seed", "batch", "samples", "model", "data", "settings", "built",
                                              "files"};
    struct mpp_mapped text;
    int code = mpp_mapped_open(path, &text, error);
    if (code != MPP_EXIT_OK)
        return code;
    struct mpp_json j = mpp_json_of(path, text.bytes, text.n_bytes, 0, error);
    unsigned seen = 0;
    out->samples = -1;
    for (int i = 0; i < MPP_STATE_FILES; i++)
        out->file[i].bytes = -1;
    mpp_json_open(&j, '{');
    while (mpp_json_more(&j, '}'))
        read_member(&j, read_key(&j, names, N_KEYS, &seen), out);
    code = mpp_json_end(&j);
    mpp_mapped_close(&text);
    if (code == MPP_EXIT_OK && (!(seen >> KEY_STEP & 1) || !(seen >> KEY_SEED & 1)))
        code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: tells no step and seed", path);
    if (code == MPP_EXIT_OK && (out->step < 0 || out->step > STEP_LIMIT || out->batch < 0 || out->batch > BATCH_LIMIT ||
                                out->samples < -1 || out->samples > INT64_MAX / 2))
        code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: step %lld, %lld samples in batches of %lld are no place to go on from",
                             path, (long long)out->step, (long long)out->samples, (long long)out->batch);
    return code;
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

/* The highest step of DIR below BELOW, -1 where there is none, or no DIR. */
static int find_newest(const char *dir, int64_t below, int64_t *best_out, struct mpp_error *error)
{
    *best_out = -1;
    DIR *d = opendir(dir);
    if (d == NULL)
        return errno == ENOENT ? MPP_EXIT_OK : mpp_error_system(error, dir, errno);
    errno = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL; errno = 0) {
        int64_t n = mpp_checkpoint_number(e->d_name);
        if (n > *best_out && n < below)
            *best_out = n;
    }
    int code = errno == 0 ? MPP_EXIT_OK : mpp_error_system(error, dir, errno);
    closedir(d);
    return code;
}

int64_t mpp_checkpoint_newest(const char *dir, int64_t below)
{
    struct mpp_error error;
    int64_t best;
    return find_newest(dir, below, &best, &error) == MPP_EXIT_OK ? best : -1;
}

/* Reads and checks the checkpoint whose folder is OUT->path. */
static int open_step(struct mpp_checkpoint *out, struct mpp_error *error)
{
    char path[MPP_PATH_BYTES];
    struct stat st;
    (void)snprintf(path, sizeof path, "%.4060s/state.json", out->path);
    if (stat(path, &st) != 0)
        return mpp_error_system(error, path, errno);
    int code = read_state(path, out, error);
    for (int i = 0; code == MPP_EXIT_OK && i < MPP_STATE_FILES; i++) {
        (void)snprintf(path, sizeof path, "%.4060s/%s", out->path, mpp_state_file_names[i]);
        if (stat(path, &st) != 0)
            code = mpp_error_system(error, path, errno);
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
    if (stat(dir, &st) == 0 && !S_ISDIR(st.st_mode))
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: not a folder", dir);
    if (access(dir, R_OK | X_OK) != 0 && errno != ENOENT)
        return mpp_error_system(error, dir, errno);
    struct mpp_error first = {0};
    for (int64_t step = INT64_MAX;;) {
        struct mpp_error why;
        int code = find_newest(dir, step, &step, error);
        if (code != MPP_EXIT_OK)
            return code;
        if (step < 0)
            break;
        *found = (struct mpp_checkpoint){0};
        (void)snprintf(found->path, sizeof found->path, "%.4000s/step-%lld", dir, (long long)step);
        code = open_step(found, &why);
        if (code == MPP_EXIT_OK) {
            if (first.code != MPP_EXIT_OK)
                (void)snprintf(found->note, sizeof found->note, "%.400s; going back to step-%lld", first.text,
                               (long long)step);
            return MPP_EXIT_OK;
        }
        if (code == MPP_EXIT_SYSTEM) { /* the step may be whole: going back would lose it */
            *error = why;
            return code;
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
