/* links: runtime */
/* The reader of .npy files, alone and as the data of a model with one input of floats or of integers. */
#include <math.h>

#include "fuzz_file.h"
#include "core/data.h"
#include "core/npy.h"

static char folder[64], path[96];

static void clean_up(void)
{
    (void)remove(path);
    (void)remove(folder);
}

static void set_up(void)
{
    (void)snprintf(folder, sizeof folder, "%s/fuzz_npy_XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    fuzz_must(mkdtemp(folder) != NULL, "a folder");
    (void)snprintf(path, sizeof path, "%s/x.npy", folder);
    atexit(clean_up);
}

static void read_alone(const struct mpp_npy *a, size_t n)
{
    fuzz_must(a->count >= 0 && a->count <= (int64_t)n && a->n_dims <= MPP_NPY_MAX_DIMS, "no more elements than bytes");
    float *out = malloc((size_t)(a->count + 1) * sizeof *out);
    if (mpp_npy_is_float(a))
        mpp_npy_read_f32(a, 0, a->count, out);
    for (int64_t i = 0; !mpp_npy_is_float(a) && i < a->count; i++)
        out[i] = (float)mpp_npy_integer(a, i);
    free(out);
}

/* Three steps of an input [2, 3] of the type. */
static void read_as_data(enum mpp_type type, bool batched)
{
    const struct mpp_tensor tensor = {.name = "x", .kind = MPP_KIND_INPUT, .type = type, .n_dims = 2, .dims = {2, 3}};
    const struct mpp_input input = {.limit = 9, .also_valid = -1, .batched = batched};
    const struct mpp_stage stage = {.n_axes = 1, .axis_size = {1}, .n_tensors = 1, .tensors = &tensor, .n_inputs = 1,
                                    .inputs = &input};
    const struct mpp_stage *const stages[] = {&stage};
    const struct mpp_program program = {.n_stages = 1, .stages = stages, .batch = 2, .micro_batches = 1};
    const struct mpp_rank r = {.n_ranks = 1, .n_axes = 1, .axis_size = {1}, .program = &program, .stage = &stage,
                               .micro_batches = 1};
    struct mpp_error error = {0};
    struct mpp_data *d = NULL;
    char spec[80];
    union {
        float f[6];
        int32_t i[6];
    } x;
    (void)snprintf(spec, sizeof spec, "npy:%s", folder);
    int code = mpp_data_open(spec, &program, 1, &d, &error);
    for (int64_t step = 0; code == MPP_EXIT_OK && step < 3; step++) {
        code = mpp_data_fill(d, &r, step, 0, 0, &x, &error);
        for (int i = 0; code == MPP_EXIT_OK && i < 6; i++)
            fuzz_must(type == MPP_TYPE_F32 ? isfinite(x.f[i]) : x.i[i] >= -1 && x.i[i] < 9, "only what is valid");
    }
    if (code != MPP_EXIT_OK)
        fuzz_refusal(code, error.text);
    mpp_data_close(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct mpp_error error = {0};
    struct mpp_npy a;
    if (folder[0] == '\0')
        set_up();
    FILE *out = fopen(path, "w");
    fuzz_must(out != NULL && fwrite(data, 1, n, out) == n && fclose(out) == 0, "the array is written");
    int code = mpp_npy_open(path, &a, &error);
    if (code != MPP_EXIT_OK) {
        fuzz_refusal(code, error.text);
        return 0;
    }
    read_alone(&a, n);
    mpp_npy_close(&a);
    for (int i = 0; i < 4; i++)
        read_as_data(i % 2 == 0 ? MPP_TYPE_F32 : MPP_TYPE_I32, i < 2);
    return 0;
}
