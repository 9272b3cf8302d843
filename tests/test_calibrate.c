/* test_calibrate.c - what a calibration fits: times that a known device would take give that device back; noise and damaged
 * output. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "codegen/calibrate.h"
#include "ir/arena.h"

static int passed, failed;

static void check(bool ok, const char *what)
{
    passed += ok;
    failed += !ok;
    if (!ok)
        printf("FAILED: %s\n", what);
}

static bool near(double got, double want, double share)
{
    return fabs(got / want - 1) <= share;
}

static unsigned long long rng = 1;

/* 1, or up to NOISE more; what other work on a machine does. */
static double slower(double noise)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return 1 + noise * (double)(rng >> 40) / (double)(1 << 24);
}

static const struct mpp_memory_point POINTS[] = {{12e4, 4}, {12e5, 3}, {12e6, 1.5}, {12e7, 1}};

static struct mpp_device known_device(void)
{
    struct mpp_device d = {.mem_bytes_per_s = 20e9, .n_memory_points = 4, .memory_points = POINTS, .launch_s = 2e-7,
                           .vector_efficiency = 0.25};
    d.peak_flops_per_s[MPP_PRECISION_F32] = 100e9;
    d.gemm = (struct mpp_gemm_curve){.efficiency = 0.9, .half_m = 12, .half_n = 6, .half_k = 20, .half_outputs = 300};
    return d;
}

/* What the program would print on D, whose all-reduces of N threads have BASE + 2 (N - 1) STEP and RATE / N. */
static char *printed(struct mpp_arena *a, const struct mpp_device *d, double noise)
{
    static const int shapes[][3] = {{2048, 1024, 1024}, {512, 512, 512}, {256, 256, 256}, {64, 1024, 256}, {1024, 64, 256},
                                    {128, 128, 32}, {32, 768, 256}, {2048, 32, 64}, {16, 16, 512}, {8, 256, 1024},
                                    {64, 64, 64}, {1024, 1024, 16}, {24, 24, 24}, {256, 12, 256}};
    char *text = mpp_arena_printf(a, "launch %.9g\n", d->launch_s);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        text = mpp_arena_printf(a, "%sgemm %d %d %d %d %.9g\n", text, shapes[i][0], shapes[i][1], shapes[i][2], (int)i % 3,
                                mpp_cost_product_s(d, MPP_PRECISION_F32, 1, shapes[i][0], shapes[i][1], shapes[i][2]) * slower(noise));
    for (int i = 0; i < 4; i++)
        text = mpp_arena_printf(a, "%smemory %d %.9g\n", text, (int)(POINTS[i].bytes / 12),
                                mpp_cost_memory_s(d, POINTS[i].bytes) * slower(noise));
    /* 20, 30 and 8 FLOPs an element, 2 and 5 for a pair of tokens and a column of a head (ir/ops.def) */
    double rate = d->peak_flops_per_s[MPP_PRECISION_F32] * d->vector_efficiency;
    text = mpp_arena_printf(a, "%sgelu 65536 %.9g\ngelu_grad 65536 %.9g\nlayernorm 256 256 %.9g\n", text, 20 * 65536 / rate,
                            30 * 65536 / rate, 8 * 65536 / rate);
    text = mpp_arena_printf(a, "%sattention 2 64 4 32 %.9g\nattention_grad 2 64 4 32 %.9g\n", text,
                            2.0 * 2 * 64 * 64 * 4 * 64 / rate, 5.0 * 2 * 64 * 64 * 4 * 64 / rate);
    for (int ranks = 2; ranks <= 4; ranks += 2)
        for (double bytes = 4; bytes < 1e8; bytes *= 16)
            text = mpp_arena_printf(a, "%sall_reduce %d %.0f %.9g\n", text, ranks, bytes, 5e-6 + 2 * (ranks - 1) * (2e-6 + bytes / ranks
                                    / (24e9 / ranks)) * slower(noise));
    return text;
}

static void check_known(struct mpp_arena *a)
{
    struct mpp_device d = known_device();
    struct mpp_calibrate_line *line;
    struct mpp_calibrate_result r;
    int n = mpp_calibrate_read(a, printed(a, &d, 0), &line);
    check(n == 1 + 14 + 4 + 5 + 14, "all lines are read");
    check(mpp_calibrate_fit(a, line, n, &r), "figures are found");
    check(r.n_gemms == 14 && r.n_passes == 4 && r.n_vectors == 5 && r.n_collectives == 14, "what was fitted is counted");
    check(near(r.device.launch_s, d.launch_s, 1e-6), "a kernel's start");
    check(near(r.device.mem_bytes_per_s, 20e9, 0.01), "the memory's speed");
    check(near(r.device.memory_points[0].efficiency, 4, 0.05), "the caches' speed");
    check(r.gemm_error < 0.01, "products within 1 %");
    for (int m = 20; m < 2000; m *= 3) /* shapes that were not measured */
        check(near(mpp_cost_product_s(&r.device, MPP_PRECISION_F32, 1, m, 300, 200),
                   mpp_cost_product_s(&d, MPP_PRECISION_F32, 1, m, 300, 200), 0.05), "other products within 5 %");
    check(near(r.device.vector_efficiency * r.device.peak_flops_per_s[MPP_PRECISION_F32], 25e9, 0.01), "other kernels");
    check(near(r.step_s, 2e-6, 0.01) && near(r.base_s, 5e-6, 0.01), "an all-reduce's latency");
    check(near(r.total_bytes_per_s, 24e9, 0.01) && near(r.link_bytes_per_s, 12e9, 0.01), "an all-reduce's speed");
}

static void check_noise(struct mpp_arena *a)
{
    struct mpp_device d = known_device();
    for (int i = 0; i < 20; i++) {
        struct mpp_calibrate_line *line;
        struct mpp_calibrate_result r;
        int n = mpp_calibrate_read(a, printed(a, &d, 0.2), &line);
        check(mpp_calibrate_fit(a, line, n, &r) && r.gemm_error < 0.2, "noise of 20 %");
        check(near(mpp_cost_product_s(&r.device, MPP_PRECISION_F32, 1, 400, 300, 200),
                   1.1 * mpp_cost_product_s(&d, MPP_PRECISION_F32, 1, 400, 300, 200), 0.15), "a product under noise");
        for (int k = 1; k < r.device.n_memory_points; k++) {
            const struct mpp_memory_point *p = &r.device.memory_points[k];
            check(p->bytes / p->efficiency > p[-1].bytes / p[-1].efficiency, "larger passes take longer");
        }
        check(r.base_s >= 0 && r.step_s >= 0 && r.link_bytes_per_s > 0, "latencies are none below zero");
    }
}

/* Every line left out, every beginning of the text, and words that are no figures. */
static void check_damaged(struct mpp_arena *a)
{
    struct mpp_device d = known_device();
    const char *text = printed(a, &d, 0);
    struct mpp_calibrate_line *line;
    struct mpp_calibrate_result r;
    for (size_t size = 0; size < strlen(text); size++) {
        int n = mpp_calibrate_read(a, mpp_arena_strndup(a, text, size), &line);
        check(n < 0 || !mpp_calibrate_fit(a, line, n, &r) || strstr(text + size, "gemm") == NULL, "a beginning of the output");
    }
    static const char *const wrong[] = {"gemm\n", "gemm 1 2 3 x\n", "gemm 1 2 3 0\n", "gemm 1 2 3 -1\n", "gemm 1 2 3 inf\n", "\n",
                                        "launch nan\n", "a_word_that_is_longer_than_any 1\n", "launch 1e-7"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        check(mpp_calibrate_read(a, wrong[i], &line) < 0, wrong[i]);
    check(mpp_calibrate_read(a, "", &line) == 0 && !mpp_calibrate_fit(a, line, 0, &r), "no output");
}

/* Threads on shared cores, through the file's own form. */
static void check_cores(struct mpp_arena *a)
{
    static const char text[] =
        "<cluster name=\"c\" devices_per_node=\"any\" nodes=\"1\"><device name=\"d\"><memory bytes=\"4GiB\" usable=\"1\" "
        "bytes_per_s=\"1e10\"/><peak precision=\"f32\" flops_per_s=\"1e11\"/><kernel launch_s=\"1e-7\"/><gemm efficiency=\"1\"/>"
        "</device><shared bytes_per_s=\"1e9\" total_bytes_per_s=\"4e9\" cores=\"4\"/><protocol name=\"p\" base_s=\"0\" "
        "step_s=\"0\"/></cluster>";
    static const struct { int devices; double speed; double bytes; } row[] = {
        {1, 4, 4}, {2, 2, 2}, {3, 1, 4.0 / 3}, {4, 1, 1}, {5, 0.8, 0.8}, {16, 0.25, 0.25}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct mpp_cluster *c, resized;
        struct mpp_diag *diag = mpp_diag_new(NULL);
        bool read = mpp_cluster_parse(a, diag, "c.xml", text, sizeof text - 1, row[i].devices, &c) == MPP_OK;
        check(read, "a cluster with cores");
        if (!read)
            return;
        check(near(c->device.peak_flops_per_s[MPP_PRECISION_F32], 1e11 * row[i].speed, 1e-12), "cores for a device");
        check(near(c->device.mem_bytes_per_s, 1e10 * row[i].speed, 1e-12), "memory's speed for a device");
        check(near((double)c->device.mem_bytes, (double)(4ull << 30) * row[i].bytes, 1e-6), "memory for a device");
        check(near(c->device.launch_s, row[i].speed < 1 ? 1e-7 / row[i].speed : 1e-7, 1e-12), "a kernel's start on shared cores");
        for (size_t k = 0; k < sizeof row / sizeof *row; k++)
            check(mpp_cluster_resize(c, row[k].devices, &resized)
                  && near(resized.device.peak_flops_per_s[MPP_PRECISION_F32], 1e11 * row[k].speed, 1e-12), "resized");
        mpp_diag_free(diag);
    }
}

int main(void)
{
    struct mpp_arena *a = mpp_arena_new();
    check_known(a);
    check_noise(a);
    check_damaged(a);
    check_cores(a);
    mpp_arena_free(a);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
