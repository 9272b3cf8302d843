/* links: runtime */
/* The reader of model.safetensors.index.json, beside two files of weights: a.safetensors (x, y), b.safetensors (z). */
#include "fuzz_file.h"
#include "core/safetensors.h"

static char folder[64];

static const char *in_folder(const char *name)
{
    static char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void clean_up(void)
{
    static const char *const names[] = {"a.safetensors", "b.safetensors", "index.json", ""};
    for (int i = 0; i < 4; i++)
        (void)remove(in_folder(names[i]));
}

static void set_up(void)
{
    static const int64_t dims[] = {2, 3};
    struct mpp_st_entry a[] = {{.name = "x", .n_dims = 2, .dims = dims}, {.name = "y", .n_dims = 1, .dims = dims}};
    struct mpp_st_entry b[] = {{.name = "z", .n_dims = 1, .dims = dims}};
    struct mpp_error error;
    (void)snprintf(folder, sizeof folder, "%s/fuzz_index_XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    fuzz_must(mkdtemp(folder) != NULL, "a folder");
    atexit(clean_up);
    fuzz_must(mpp_st_create(in_folder("a.safetensors"), a, 2, &error) == 0, "a file of weights");
    fuzz_must(mpp_st_create(in_folder("b.safetensors"), b, 1, &error) == 0, "another");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct mpp_error error = {0};
    struct mpp_weights *w = NULL;
    if (folder[0] == '\0')
        set_up();
    FILE *out = fopen(in_folder("index.json"), "w");
    fuzz_must(out != NULL && fwrite(data, 1, n, out) == n && fclose(out) == 0, "the index is written");
    int code = mpp_weights_open(in_folder("index.json"), NULL, &w, &error);
    if (code != MPP_EXIT_OK) {
        fuzz_refusal(code, error.text);
        return 0;
    }
    fuzz_must(mpp_weights_count(w) <= 3, "no more tensors than the files hold");
    for (int i = 0; i < mpp_weights_count(w); i++) {
        float x[6];
        const struct mpp_weight *weight = mpp_weights_at(w, i);
        fuzz_must(mpp_weight_read(weight, 0, weight->count, x), "they are floats");
    }
    mpp_weights_close(w);
    return 0;
}
