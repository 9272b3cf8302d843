/* links: ir costmodel */
/* seeds: costmodel/clusters */
/* options: -max_len=8000 */
/* Cluster files, for several numbers of devices; what is accepted prices collectives with finite times. */
#include "costmodel/costmodel.h"
#include "fuzz_promises.h"

static void price(const struct mpp_cluster *c)
{
    fuzz_must(c->n_devices >= 1 && c->n_devices <= c->max_devices && c->n_nodes >= 1, "devices in their range");
    fuzz_must(mpp_device_usable_bytes(&c->device) >= 0, "memory in its range");
    struct mpp_mesh mesh = {.n_axes = 1, .size = {c->n_devices, 1, 1}, .name = {"a"}};
    if (c->n_devices > 1) {
        fuzz_must(mpp_cost_all_reduce(c, &mesh, 1, 1e6) >= 0, "a time of a sum");
        fuzz_must(mpp_cost_all_gather(c, &mesh, 1, 1e6) >= 0, "a time of gathering");
        fuzz_must(mpp_cost_all_to_all(c, &mesh, 1, 1e12) >= 0, "a time of exchanging");
    }
    double t = mpp_cost_gemm_s(&c->device, 1, 64, 64, 64, 4);
    fuzz_must(t >= 0 && t - t == 0, "a finite time of a product");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const int64_t devices[] = {0, 1, 2, 8, 24, 65536};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        struct mpp_arena *arena = mpp_arena_new();
        struct mpp_diag *diag = mpp_diag_new(NULL);
        struct mpp_cluster *c = NULL;
        enum mpp_status st = mpp_cluster_parse(arena, diag, "file", (const char *)data, n, devices[i], &c);
        fuzz_promises(st, diag);
        if (st == MPP_OK)
            price(c);
        mpp_diag_free(diag);
        mpp_arena_free(arena);
    }
    return 0;
}
