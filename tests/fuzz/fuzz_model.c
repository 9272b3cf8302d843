/* links: ir */
/* seeds: models */
/* options: -max_len=20000 */
/* Model files as far as the fused graph of the training step; the preset "tiny" is taken where there is one. */
#include <stdio.h>
#include <string.h>

#include "fuzz_promises.h"
#include "ir/graph.h"
#include "ir/model.h"
#include "ir/pass.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(NULL);
    struct mpp_model_options options = {.preset = memmem(data, n, "preset name=\"tiny\"", 18) ? "tiny" : NULL};
    struct mpp_model *model = NULL;
    struct mpp_graph *g = NULL;
    enum mpp_status st = mpp_model_read(arena, diag, fuzz_path(data, n), &options, &model);
    if (st == MPP_OK && model->n_items <= 300)
        st = mpp_graph_build(arena, diag, model, &g);
    struct mpp_pass_ctx ctx = {.arena = arena, .diag = diag};
    if (st == MPP_OK && g)
        st = mpp_passes_run(&ctx, g);
    fuzz_promises(st, diag);
    mpp_diag_free(diag);
    mpp_arena_free(arena);
    return 0;
}
