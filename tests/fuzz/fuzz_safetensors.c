/* links: runtime */
/* The reader of weight files: what it accepts lies within the file and is found by name. */
#include "fuzz_file.h"
#include "core/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const strip[] = {"t.", "module.", NULL};
    struct mpp_error error = {0};
    struct mpp_weights *w = NULL;
    int code = mpp_weights_open(fuzz_path(data, n), n % 2 == 0 ? strip : NULL, &w, &error);
    if (code != MPP_EXIT_OK) {
        fuzz_refusal(code, error.text);
        return 0;
    }
    for (int i = 0; i < mpp_weights_count(w); i++) {
        const struct mpp_weight *x = mpp_weights_at(w, i);
        float *out = malloc((size_t)(x->count + 1) * sizeof *out);
        int64_t first = x->count / 3;
        fuzz_must(mpp_weights_find(w, x->name) == x, "a tensor is found by its name");
        fuzz_must(x->count <= (int64_t)n, "no more elements than bytes");
        if (x->dtype == MPP_DTYPE_I32)
            (void)mpp_weight_read_i32(x, 0, x->count, (int32_t *)(void *)out);
        else if (mpp_weight_read(x, 0, x->count, out))
            (void)mpp_weight_read(x, first, x->count - first, out);
        free(out);
    }
    mpp_weights_close(w);
    return 0;
}
