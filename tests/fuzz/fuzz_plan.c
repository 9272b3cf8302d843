/* links: ir costmodel planner */
/* plan.json for models/mlp.xml on four devices; what is accepted can be worked out and written again. */
#include "fuzz_planned.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_set_up("models/mlp.xml", 4);
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(NULL);
    struct mpp_plan *plan = NULL;
    enum mpp_status st = mpp_plan_read_json(arena, diag, fuzz_graph, fuzz_cluster, fuzz_path(data, n), &plan);
    if (st == MPP_OK)
        st = mpp_plan_derive(arena, diag, fuzz_graph, fuzz_cluster, plan);
    if (st == MPP_OK)
        fuzz_must(mpp_plan_write_json(diag, fuzz_graph, fuzz_cluster, plan, "/dev/null") == MPP_OK, "a plan can be written");
    fuzz_promises(st, diag);
    mpp_diag_free(diag);
    mpp_arena_free(arena);
    return 0;
}
