/* links: ir solver */
/* Contest problems: what is accepted is solved a little, and its answer holds. */
#include <stdio.h>
#include <string.h>

#include "fuzz_promises.h"
#include "solver/iopddl.h"

static void solve(struct mpp_arena *arena, const struct mpp_pairwise_problem *p)
{
    struct mpp_pairwise_settings set = mpp_pairwise_defaults();
    struct mpp_pairwise_info info;
    struct mpp_pairwise *s;
    mpp_i128 objective;
    int64_t peak;
    set.work_limit = 200000;
    if (mpp_pairwise_setup(p, &set, arena, &s) != MPP_OK)
        return;
    int32_t *choice = mpp_arena_array(arena, p->n_nodes, int32_t);
    if (mpp_pairwise_solve(s, choice, &info) == MPP_OK) {
        fuzz_must(mpp_pairwise_evaluate(p, choice, arena, &objective, &peak), "an allowed choice");
        fuzz_must(objective == info.objective && peak == info.peak_bytes && peak <= p->capacity, "what it says of it");
        fuzz_must(info.bound <= info.objective, "a bound below it");
    }
    mpp_pairwise_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(NULL);
    struct mpp_pairwise_problem *p;
    enum mpp_status st = mpp_iopddl_parse((const char *)data, n, "problem.json", arena, diag, &p);
    if (st == MPP_OK && p->n_nodes <= 1000)
        solve(arena, p);
    fuzz_promises(st, diag);
    mpp_diag_free(diag);
    mpp_arena_free(arena);
    return 0;
}
