/* links: runtime */
/* The reader of a checkpoint's state.json, as step 3 of a folder; what it accepts can be gone on from, and what is
 * written is read back. */
#include <math.h>
#include <sys/stat.h>

#include "fuzz_file.h"
#include "core/state.h"

static char folder[64];

static const char *in_folder(const char *name)
{
    static char paths[2][128];
    static int next;
    char *path = paths[next++ % 2];
    (void)snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void clean_up(void)
{
    static const char *const names[] = {"step-3/state.json", "step-3/model.safetensors", "step-3/optimizer.safetensors",
                                        "step-3", "state.json", ""};
    for (int i = 0; i < 6; i++)
        (void)remove(in_folder(names[i]));
}

static void write_file(const char *path, const void *data, size_t n)
{
    FILE *out = fopen(path, "w");
    fuzz_must(out != NULL && (n == 0 || fwrite(data, 1, n, out) == n) && fclose(out) == 0, "a file is written");
}

static void set_up(void)
{
    (void)snprintf(folder, sizeof folder, "%s/fuzz_state_XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    fuzz_must(mkdtemp(folder) != NULL, "a folder");
    atexit(clean_up);
    fuzz_must(mkdir(in_folder("step-3"), 0777) == 0, "a step's folder");
    write_file(in_folder("step-3/model.safetensors"), "12345678", 8); /* its size is looked at, not what it holds */
    write_file(in_folder("step-3/optimizer.safetensors"), "12345678", 8);
}

/* What was read, written and read again, is the same. */
static void write_back(const struct mpp_checkpoint *found)
{
    static struct mpp_checkpoint again;
    struct mpp_error error = {0};
    if (found->file[0].bytes < 0) /* of a release that recorded no files; this one always does */
        return;
    fuzz_must(mpp_state_write(found, in_folder("step-3"), &error) == 0, "a state is written");
    fuzz_must(mpp_checkpoint_find(in_folder("step-3"), &again, NULL, &error) == 0, "and read again");
    fuzz_must(again.step == found->step && again.samples == found->samples && again.seed == found->seed &&
              again.batch == found->batch && strcmp(again.model, found->model) == 0 &&
              strcmp(again.data, found->data) == 0 && strcmp(again.built, found->built) == 0 && strcmp(again.schedule, found->schedule) == 0, "it says the same");
    for (int i = 0; i < MPP_STATE_SETTINGS; i++)
        fuzz_must(memcmp(&again.setting[i], &found->setting[i], sizeof again.setting[i]) == 0, "in every digit");
    for (int i = 0; i < MPP_STATE_FILES; i++)
        fuzz_must(again.file[i].bytes == found->file[i].bytes && again.file[i].sum == found->file[i].sum, "of its files");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct mpp_checkpoint found;
    struct mpp_error error = {0};
    bool none;
    if (folder[0] == '\0')
        set_up();
    write_file(in_folder("step-3/state.json"), data, n);
    int code = mpp_checkpoint_find(folder, &found, &none, &error);
    fuzz_must(!none, "there is a step");
    if (code != MPP_EXIT_OK) {
        fuzz_refusal(code, error.text);
        return 0;
    }
    fuzz_must(found.step >= 0 && found.batch >= 0 && found.samples >= -1, "a place to go on from");
    for (int i = 0; i < MPP_STATE_SETTINGS; i++)
        fuzz_must(isfinite(found.setting[i]), "settings are finite");
    write_back(&found);
    return 0;
}
