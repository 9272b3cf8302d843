/* fuzz_stream.h - a model that reads a stream of tokens. */
#ifndef FUZZ_STREAM_H
#define FUZZ_STREAM_H

#include "fuzz_file.h"
#include "core/data.h"

/* Four steps of the stream of KIND at PATH, through two ranks' eyes. */
static inline void fuzz_stream(const char *kind, const char *path)
{
    const struct mpp_tensor tensors[] = {
        {.name = "ids", .kind = MPP_KIND_INPUT, .type = MPP_TYPE_I32, .n_dims = 2, .dims = {2, 5}, .split = {0, 1}},
        {.name = "next", .kind = MPP_KIND_INPUT, .type = MPP_TYPE_I32, .n_dims = 2, .dims = {2, 5}, .split = {1, 0}},
    };
    const struct mpp_input inputs[] = {{.tensor = 0, .role = MPP_ROLE_TOKENS, .limit = 300, .batched = true},
                                       {.tensor = 1, .role = MPP_ROLE_NEXT_TOKENS, .limit = 300, .batched = true}};
    const struct mpp_stage stage = {.n_axes = 1, .axis_size = {2}, .n_tensors = 2, .tensors = tensors, .n_inputs = 2,
                                    .inputs = inputs};
    const struct mpp_stage *const stages[] = {&stage};
    const struct mpp_program program = {.n_stages = 1, .stages = stages, .batch = 4, .micro_batches = 2};
    struct mpp_error error = {0};
    struct mpp_data *d = NULL;
    char spec[96];
    (void)snprintf(spec, sizeof spec, "%s:%s", kind, path);
    int code = mpp_data_open(spec, &program, 1, &d, &error);
    for (int i = 0; code == MPP_EXIT_OK && i < 4 * 2 * 2 * 2; i++) {
        struct mpp_rank r = {.rank = i & 1, .n_ranks = 2, .n_axes = 1, .axis_size = {2}, .coord = {i & 1},
                             .program = &program, .stage = &stage, .micro_batches = 2};
        int32_t x[10] = {0};
        code = mpp_data_fill(d, &r, i >> 3, i >> 2 & 1, i >> 1 & 1, x, &error);
        for (int k = 0; code == MPP_EXIT_OK && k < 10; k++)
            fuzz_must(x[k] >= 0 && x[k] < 300, "only tokens of the vocabulary");
    }
    if (code != MPP_EXIT_OK)
        fuzz_refusal(code, error.text);
    mpp_data_close(d);
}

#endif
