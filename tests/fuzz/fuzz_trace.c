/* links: ir solver costmodel planner inspect/trace_read.c */
/* Traces of trainers: what is accepted has events with times and places. */
#include <math.h>

#include "fuzz_promises.h"
#include "inspect/trace_read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(NULL);
    struct mpp_trace_events t;
    enum mpp_status st = mpp_trace_read(arena, diag, fuzz_path(data, n), &t);
    for (int64_t i = 0; st == MPP_OK && i < t.n; i++) {
        const struct mpp_trace_read_event *e = &t.event[i];
        fuzz_must(e->name && e->stage >= 0 && e->rank >= 0 && e->bytes >= 0, "a name and a place");
        fuzz_must(isfinite(e->begin_s) && e->end_s >= e->begin_s, "times in order");
    }
    fuzz_promises(st, diag);
    mpp_diag_free(diag);
    mpp_arena_free(arena);
    return 0;
}
