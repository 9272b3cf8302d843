/* links: ir costmodel */
/* seeds: costmodel/devices */
/* options: -max_len=4000 */
/* Device files; what is accepted prices kernels with finite times. */
#include "costmodel/costmodel.h"
#include "costmodel/device.h"
#include "fuzz_promises.h"
#include "ir/xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(NULL);
    struct mpp_device d = {0};
    struct mpp_xml *root;
    if (mpp_xml_parse(arena, diag, "file", (const char *)data, n, &root) == MPP_OK)
        mpp_device_read(arena, diag, root, &d);
    fuzz_promises(mpp_diag_errors(diag) ? MPP_INVALID : MPP_OK, diag);
    for (int64_t x = 1; !mpp_diag_errors(diag) && x < (int64_t)1 << 40; x *= 1024) {
        double gemm = mpp_cost_gemm_s(&d, 3, x, 64, 64, 4), memory = mpp_cost_memory_s(&d, (double)x);
        fuzz_must(gemm >= 0 && gemm - gemm == 0, "a finite time of a product");
        fuzz_must(memory >= 0 && memory - memory == 0, "a finite time of moving bytes");
        fuzz_must(mpp_cost_gemm(&d, 3, x, 64, 64, 4) >= 0, "a time in picoseconds");
    }
    mpp_diag_free(diag);
    mpp_arena_free(arena);
    return 0;
}
