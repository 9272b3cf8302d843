/* test_costmodel.c - device and cluster files, link topologies, collective and kernel times. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "costmodel/costmodel.h"
#include "costmodel/embed.h"
#include "costmodel/rings.h"

static int n_passed, n_failed;

__attribute__((format(printf, 2, 3))) static void check(int ok, const char *fmt, ...)
{
    va_list ap;
    if (ok) {
        n_passed++;
        return;
    }
    n_failed++;
    va_start(ap, fmt);
    fputs("FAIL: ", stdout);
    vprintf(fmt, ap);
    putchar('\n');
    va_end(ap);
}

static struct mpp_cluster *load(struct mpp_arena *arena, const char *name, int64_t n)
{
    struct mpp_cluster *c = NULL;
    struct mpp_diag *diag = mpp_diag_new(stdout);
    if (mpp_cluster_load(arena, diag, name, n, &c) != MPP_OK) {
        printf("FAIL: cannot load %s\n", name);
        exit(1);
    }
    mpp_diag_free(diag);
    return c;
}

static double bus_gb_per_s(const struct mpp_cluster *c, int n, double bytes)
{
    struct mpp_mesh mesh = {.n_axes = 1, .size = {n, 1, 1}};
    double s = (double)mpp_cost_all_reduce(c, &mesh, 1, bytes) * 1e-12;
    return bytes * 2 * (n - 1) / n / s * 1e-9;
}

static int within(double got, double want, double tolerance)
{
    return fabs(got - want) <= tolerance * want;
}

/* vTrain's measured tables, all-reduce over GPUs 0 .. n-1: the bandwidth fitted to them (V100) and that of
 * 1 GiB (A100). */
static void test_measured(struct mpp_arena *arena)
{
    static const double v100[9] = {0, 0, 22.6, 45.3, 87.0, 37.0, 46.1, 87.3, 135.9};
    static const double a100[9] = {0, 0, 197.28, 211.88, 221.86, 224.48, 227.01, 226.89, 229.35};
    struct mpp_cluster *v = load(arena, "dgx1-v100", 8), *a = load(arena, "dgx-a100", 8);
    for (int n = 2; n <= 8; n++) {
        double got = bus_gb_per_s(v, n, 1073741824.0);
        check(within(got, v100[n], 0.05), "V100 %d GPUs: %.1f GB/s, measured %.1f", n, got, v100[n]);
        got = bus_gb_per_s(a, n, 1073741824.0);
        check(within(got, a100[n], 0.15), "A100 %d GPUs: %.1f GB/s, measured %.1f", n, got, a100[n]);
    }
    /* The ramp, from 1 MB (where the model's low-latency protocols are too good) to 256 MB. */
    static const double ramp[][3] = {{1, 19.78, 0.4}, {2, 39, 0.2}, {4, 77, 0.1}, {8, 109, 0.1},
                                     {16, 126.33, 0.25}, {64, 203, 0.1}, {256, 217, 0.1}};
    for (size_t i = 0; i < sizeof ramp / sizeof *ramp; i++) {
        double got = bus_gb_per_s(a, 8, ramp[i][0] * 1048576);
        check(within(got, ramp[i][1], ramp[i][2]), "A100 8 GPUs, %g MB: %.1f GB/s, measured %.1f", ramp[i][0], got,
              ramp[i][1]);
    }
    /* vTrain's 1 GiB points of the V100 table, too. */
    static const double v100_gib[9] = {0, 0, 22.55, 45.14, 85.36, 37.17, 45.74, 87.01, 134.51};
    for (int n = 2; n <= 8; n++) {
        double got = bus_gb_per_s(v, n, 1073741824.0);
        check(within(got, v100_gib[n], 0.05), "V100 %d GPUs, 1 GiB: %.1f GB/s, measured %.1f", n, got, v100_gib[n]);
    }
}

/* Steps and traffic, by hand: nodes of 4 whose links carry 10 GB/s, one NIC of 2 GB/s each. */
static void test_steps(struct mpp_arena *arena)
{
    static const char text[] =
        "<cluster name='c' device='T4-16GB' devices_per_node='4'><pcie bytes_per_s='1e10' total_bytes_per_s='1e11'/>"
        "<network nics='1' bytes_per_s='2e9' latency_s='1'/>"
        "<protocol name='ring' base_s='1e-3' step_s='1e-5' network_step_s='1e-4' efficiency='0.5' network_efficiency='0.8'/>"
        "<protocol name='tree' algorithm='tree' base_s='1e-3' step_s='1e-5' network_step_s='1e-4'/>"
        "<protocol name='swap' algorithm='exchange' base_s='2e-3' step_s='1e-5' network_step_s='1e-4'/></cluster>";
    static const struct { int n; double ring_s, gather_s, tree_s, swap_s; } want[] = {  /* of a buffer of 1e8 bytes */
        {4, 1e-3 + 6e-5 + 1.5 * 1e8 / 5e9, 1e-3 + 3e-5 + 0.75 * 1e8 / 5e9, 1e-3 + 6e-5 + 2e8 / 1e10, 2e-3 + 3e-5 + 0.75 * 1e8 / 1e10},
        {20, 1e-3 + 2 * (15e-5 + 4e-4) + 1.9 * 1e8 / 1.6e9, 1e-3 + 15e-5 + 4e-4 + 0.95 * 1e8 / 1.6e9,
         1e-3 + 2 * (3e-5 + 3e-4) + 2e8 / 2e9, 2e-3 + 3e-5 + 4e-4 + 1e8 / 20 * 4 * 16 / 2e9}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct mpp_diag *diag = mpp_diag_new(stdout);
        struct mpp_cluster *c = NULL;
        struct mpp_groups g;
        int n = want[i].n;
        check(mpp_cluster_parse(arena, diag, "c.xml", text, sizeof text - 1, n, &c) == MPP_OK, "a cluster by hand");
        mpp_groups_init(c, &(struct mpp_mesh){.n_axes = 1, .size = {n, 1, 1}}, 0, 1, &g);
        double swap = mpp_cost_collective_s(c, &g, MPP_COLLECTIVE_ALL_TO_ALL, 1e8);
        check(within(swap, want[i].swap_s, 1e-9), "%d devices, exchange: %g s, not %g", n, swap, want[i].swap_s);
        double both = mpp_cost_collective_s(c, &g, MPP_COLLECTIVE_ALL_REDUCE, 1e8);
        check(within(both, fmin(want[i].ring_s, want[i].tree_s), 1e-9), "%d devices, all-reduce: %g s", n, both);
        c->n_protocols = 1;
        double ring = mpp_cost_collective_s(c, &g, MPP_COLLECTIVE_ALL_REDUCE, 1e8);
        double gather = mpp_cost_collective_s(c, &g, MPP_COLLECTIVE_ALL_GATHER, 1e8);
        check(within(ring, want[i].ring_s, 1e-9), "%d devices, ring: %g s, not %g", n, ring, want[i].ring_s);
        check(within(gather, want[i].gather_s, 1e-9), "%d devices, one pass: %g s, not %g", n, gather, want[i].gather_s);
        c->protocols[0] = c->protocols[1];
        double tree = mpp_cost_collective_s(c, &g, MPP_COLLECTIVE_ALL_REDUCE, 1e8);
        check(within(tree, want[i].tree_s, 1e-9), "%d devices, tree: %g s, not %g", n, tree, want[i].tree_s);
        mpp_diag_free(diag);
    }
}

/* Which algorithm is cheapest where. */
static void test_algorithms(struct mpp_arena *arena)
{
    struct mpp_cluster *a = load(arena, "dgx-a100", 512), *h = load(arena, "dgx-h100", 512);
    struct mpp_cluster *s = load(arena, "dgx-h100-sharp", 512), *p = load(arena, "dgx1-p100", 8);
    struct mpp_cluster only[2] = {*a, *a};
    int n[2] = {0, 0};
    for (int i = 0; i < a->n_protocols; i++) {
        int tree = a->protocols[i].algorithm == MPP_ALGORITHM_TREE;
        if (tree || a->protocols[i].algorithm == MPP_ALGORITHM_RING)
            only[tree].protocols[n[tree]++] = a->protocols[i];
    }
    check(n[0] == 3 && n[1] == 3, "three protocols of ring and of tree: %d, %d", n[0], n[1]);
    only[0].n_protocols = only[1].n_protocols = 3;
    struct mpp_mesh mesh = {.n_axes = 1, .size = {512, 1, 1}};
    struct mpp_groups g;
    mpp_groups_init(a, &mesh, 0, 1, &g);
    for (double bytes = 1024; bytes < 1e10; bytes *= 8) {
        double ring = mpp_cost_collective_s(&only[0], &g, MPP_COLLECTIVE_ALL_REDUCE, bytes);
        double tree = mpp_cost_collective_s(&only[1], &g, MPP_COLLECTIVE_ALL_REDUCE, bytes);
        double both = mpp_cost_collective_s(a, &g, MPP_COLLECTIVE_ALL_REDUCE, bytes);
        check(both == fmin(ring, tree), "512 A100, %g bytes: the cheaper one", bytes);
        check(bytes > 1e6 || tree < ring, "512 A100, %g bytes: a tree has fewer steps", bytes);
    }
    mpp_groups_init(a, &(struct mpp_mesh){.n_axes = 1, .size = {64, 1, 1}}, 0, 1, &g);
    check(mpp_cost_collective_s(&only[0], &g, MPP_COLLECTIVE_ALL_REDUCE, 8e9) <
          mpp_cost_collective_s(&only[1], &g, MPP_COLLECTIVE_ALL_REDUCE, 8e9), "64 A100, 8 GB: rings carry more");
    /* In-switch reduction: 480 GB/s on one node; over nodes the NICs' 380, with SHARP twice as much traffic. */
    check(within(bus_gb_per_s(h, 8, 8e9), 467, 0.02), "NVLS: %.0f GB/s", bus_gb_per_s(h, 8, 8e9));
    check(within(bus_gb_per_s(h, 64, 8e9), 380, 0.1), "8 DGX H100: %.0f GB/s, measured 380", bus_gb_per_s(h, 64, 8e9));
    check(within(bus_gb_per_s(s, 64, 8e9), 480, 0.1), "with SHARP: %.0f GB/s, measured 480", bus_gb_per_s(s, 64, 8e9));
    check(bus_gb_per_s(s, 8, 8e9) == bus_gb_per_s(h, 8, 8e9), "SHARP between nodes only");
    for (int i = 0; i < p->n_protocols; i++)
        check(!strstr(p->protocols[i].name, "ll128"), "P100 has no LL128");
}

/* More nodes: the NICs set the pace; strided groups share them. */
static void test_nodes(struct mpp_arena *arena)
{
    struct mpp_cluster *a = load(arena, "dgx-a100", 64), *v = load(arena, "dgx1-v100", 16);
    double got = bus_gb_per_s(a, 64, 8e9);
    check(within(got, 192, 0.05), "8 DGX A100: %.1f GB/s, measured 192", got);
    got = bus_gb_per_s(v, 16, 4e9);
    check(within(got, 48, 0.05), "2 DGX-1: %.1f GB/s, measured 48", got);
    got = bus_gb_per_s(load(arena, "p3dn.24xlarge", 16), 16, 4e9);
    check(within(got, 10, 0.2), "2 p3dn: %.1f GB/s, measured 10", got);
    got = bus_gb_per_s(load(arena, "p4d", 24), 24, 4e9);
    check(within(got, 31.77, 0.1), "3 p4d: %.1f GB/s, measured 32", got);
    got = bus_gb_per_s(load(arena, "p4d", 32), 32, 4e9);
    check(within(got, 29.61, 0.1), "4 p4d: %.1f GB/s, measured 30", got);

    /* 8 nodes x 8 GPUs: groups of one GPU per node have one NIC each: 24 GB/s. */
    struct mpp_mesh mesh = {.n_axes = 2, .size = {8, 8, 1}};
    struct mpp_groups g;
    mpp_groups_init(a, &mesh, 0, 1, &g);
    check(g.n == 8 && g.nodes == 8 && g.local == 1, "strided groups: n %d nodes %d local %d", g.n, g.nodes, g.local);
    check(within(g.network_bytes_per_s, 24e9, 1e-9), "strided groups: %g", g.network_bytes_per_s);
    mpp_groups_init(a, &mesh, 0, 2, &g);
    check(g.n == 8 && g.nodes == 1 && g.local == 8, "groups of a node: n %d nodes %d local %d", g.n, g.nodes, g.local);
    mpp_groups_init(a, &mesh, 0, 3, &g);
    check(g.n == 64 && g.nodes == 8 && g.local == 8, "all: n %d nodes %d local %d", g.n, g.nodes, g.local);
    check(within(g.network_bytes_per_s, 192e9, 1e-9), "all: %g", g.network_bytes_per_s);
    /* 2 DGX-1: 4 NICs a node, which 8 groups of one GPU per node share; a lone group has what its GPU can take. */
    struct mpp_mesh pairs = {.n_axes = 2, .size = {2, 8, 1}}, lone = {.n_axes = 2, .size = {2, 1, 1}};
    mpp_groups_init(v, &pairs, 0, 1, &g);
    check(within(g.network_bytes_per_s, v->nics * v->nic_bytes_per_s / 8, 1e-9), "8 groups share the NICs: %g", g.network_bytes_per_s);
    mpp_groups_init(v, &lone, 7, 1, &g);
    check(g.nodes == 2 && within(g.network_bytes_per_s, fmin(v->device_network_bytes_per_s, v->nics * v->nic_bytes_per_s), 1e-9),
          "one group alone: %g", g.network_bytes_per_s);
    /* Groups of two cores of one host share its memory with all the others that run. */
    struct mpp_cluster *h = load(arena, "host", 16);
    struct mpp_mesh cores = {.n_axes = 2, .size = {8, 2, 1}}, two = {.n_axes = 1, .size = {2, 1, 1}};
    mpp_groups_init(h, &cores, 0, 2, &g);
    check(g.n == 2 && within(g.bytes_per_s, fmin(h->link_bytes_per_s, h->total_bytes_per_s / 16), 1e-9) &&
              h->total_bytes_per_s / 16 < h->link_bytes_per_s, "16 cores share: %g", g.bytes_per_s);
    mpp_groups_init(h, &two, 0, 1, &g);
    check(within(g.bytes_per_s, fmin(h->link_bytes_per_s, h->total_bytes_per_s / 2), 1e-9), "2 cores: %g", g.bytes_per_s);
    /* A stage of 8 that starts in the middle of a node is slower than one that fills it. */
    struct mpp_mesh eight = {.n_axes = 1, .size = {8, 1, 1}};
    struct mpp_groups inside, across;
    mpp_groups_init(a, &eight, 8, 1, &inside);
    mpp_groups_init(a, &eight, 12, 1, &across);
    check(inside.nodes == 1 && across.nodes == 2 && across.local == 4, "a stage across nodes");
    check(mpp_cost_collective(a, &inside, MPP_COLLECTIVE_ALL_REDUCE, 1e8) <
          mpp_cost_collective(a, &across, MPP_COLLECTIVE_ALL_REDUCE, 1e8), "across nodes costs more");
    /* Sends share the NICs. */
    check(mpp_cost_send(a, 0, 0, 1, 1e9) == 0, "send to itself");
    check(mpp_cost_send(a, 0, 1, 1, 1e8) < mpp_cost_send(a, 0, 8, 1, 1e8), "send within a node is faster");
    check(mpp_cost_send(a, 0, 8, 8, 1e8) < mpp_cost_send(a, 0, 8, 16, 1e8), "sharers slow a send down");
    check(mpp_cost_send(v, 0, 3, 1, 1e8) < mpp_cost_send(v, 0, 1, 1, 1e8), "two links are faster than one");
    check(mpp_cost_send(v, 0, 1, 1, 1e8) < mpp_cost_send(v, 0, 5, 1, 1e8), "no link: over PCIe");
}

static void test_rings(struct mpp_arena *arena)
{
    static const int want[9] = {0, 0, 1, 2, 4, 0, 2, 4, 6};
    struct mpp_cluster *c = load(arena, "dgx1-v100", 8);
    const uint8_t(*links)[MPP_CLUSTER_MESH_DEVICES] = (const uint8_t(*)[MPP_CLUSTER_MESH_DEVICES])c->links;
    for (int n = 1; n <= 8; n++)
        check(mpp_rings_count(links, 8, (1u << n) - 1) == want[n], "rings over GPUs 0..%d", n - 1);
    check(mpp_rings_count(links, 8, 1 | 1 << 4) == 2, "rings over GPUs 0 and 4");
    check(mpp_rings_count(links, 8, 1 | 1 << 5) == 0, "rings over GPUs 0 and 5");
    check(!c->subsets[1 | 1 << 5].connected && c->subsets[31].connected, "connected subsets");
    /* All-to-all graphs on n devices: n-1 rings, except for 4 and 6 devices one fewer (Bermond, Tillson). */
    uint8_t full[MPP_CLUSTER_MESH_DEVICES][MPP_CLUSTER_MESH_DEVICES];
    memset(full, 1, sizeof full);
    for (int n = 2; n <= 7; n++)
        check(mpp_rings_count((const uint8_t(*)[MPP_CLUSTER_MESH_DEVICES])full, 8, (1u << n) - 1) ==
              (n == 4 || n == 6 ? n - 2 : n - 1), "rings over a complete graph of %d", n);
    /* Several links between each two devices carry as many times the rings, some of them repeated. */
    for (int each = 2; each <= 6; each += 2)
        for (int n = 2; n <= 4; n++) {
            memset(full, each, sizeof full);
            int got = mpp_rings_count((const uint8_t(*)[MPP_CLUSTER_MESH_DEVICES])full, 8, (1u << n) - 1);
            check(got >= each * (n == 4 ? n - 2 : n - 1), "rings over a complete graph of %d, %d links each: %d", n, each, got);
        }
    /* P100: single links. GPUs 0..3 are a complete graph of four. */
    c = load(arena, "dgx1-p100", 8);
    check(c->subsets[15].rings == 2, "rings over GPUs 0..3 of DGX-1P: %d", c->subsets[15].rings);
    check(c->subsets[255].rings >= 3, "rings over DGX-1P: %d", c->subsets[255].rings);
}

/* On every built-in cluster and mesh: zero for one, rising with bytes, all-reduce against its halves. */
static void test_laws(struct mpp_arena *arena)
{
    int n_names;
    const char *const *names = mpp_cluster_names(arena, &n_names);
    static const int shapes[][3] = {{2, 1, 1}, {4, 1, 1}, {8, 1, 1}, {2, 4, 1}, {4, 2, 1}, {2, 2, 2}, {5, 1, 1},
                                    {3, 2, 1}, {16, 1, 1}, {4, 8, 1}, {8, 4, 1}, {2, 3, 4}, {4, 4, 2}, {1, 1, 1}};
    check(n_names >= 10 && names[n_names] == NULL, "built-in clusters: %d", n_names);
    for (int i = 0; i < n_names; i++) {
        struct mpp_cluster *c = load(arena, names[i], 40);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (unsigned mask = 0; mask < 8; mask++)
                for (int first = 0; first <= 6; first += 3) {
                    struct mpp_mesh mesh = {.n_axes = 3, .size = {shapes[s][0], shapes[s][1], shapes[s][2]}};
                    struct mpp_groups g;
                    int64_t last[4] = {0, 0, 0, 0}, t[4];
                    int ok = 1;
                    mpp_groups_init(c, &mesh, first, mask, &g);
                    for (double bytes = 1; bytes < 1e12; bytes *= 3.7) {
                        for (int k = 0; k < 4; k++) {
                            t[k] = mpp_cost_collective(c, &g, (enum mpp_collective)k, bytes);
                            ok &= t[k] >= last[k] && (t[k] > 0) == (g.n > 1);
                            last[k] = t[k];
                        }
                        ok &= t[0] >= t[1] && t[0] >= t[2] && t[0] <= t[1] + t[2];
                    }
                    check(ok, "%s, mesh %dx%dx%d from %d, mask %u", names[i], shapes[s][0], shapes[s][1], shapes[s][2],
                          first, mask);
                }
    }
    struct mpp_cluster *c = load(arena, "dgx-a100", 8);
    struct mpp_mesh mesh = {.n_axes = 1, .size = {8, 1, 1}};
    check(mpp_cost_all_reduce(c, &mesh, 1, 0) == 0, "no bytes, no time");
    check(mpp_cost_all_reduce(c, &mesh, 1, 1e30) == INT64_MAX, "times saturate");
    check(mpp_cost_ps(1e-12) == 1 && mpp_cost_ps(1.5e-12) == 2 && mpp_cost_ps(0) == 0, "picoseconds round up");
    check(mpp_cost_all_to_all(c, &mesh, 1, 1e9) < mpp_cost_all_reduce(c, &mesh, 1, 1e9), "all-to-all moves less");
    double a2a = (double)mpp_cost_all_to_all(c, &mesh, 1, 1073741824) * 1e-6;
    check(within(a2a, 4815.1, 0.2), "all-to-all of 1 GiB over 8 A100: %.0f us, measured 4815", a2a);
}

static void test_kernels(struct mpp_arena *arena)
{
    int n;
    const char *const *names = mpp_cluster_names(arena, &n);
    for (int i = 0; i < n; i++) {
        const struct mpp_device *d = &load(arena, names[i], 0)->device;
        int64_t last[4] = {0};
        int ok = 1;
        for (int64_t x = 1; x <= 16384; x = x * 3 / 2 + 1) {
            int64_t t[4] = {mpp_cost_gemm(d, 1, x, 1024, 1024, 4), mpp_cost_gemm(d, 1, 1024, 1024, x, 4),
                            mpp_cost_gemm(d, x, 64, 64, 64, 4), mpp_cost_memory(d, (double)x * 100000)};
            for (int k = 0; k < 4; k++) {
                ok &= t[k] >= last[k] && t[k] > 0;
                last[k] = t[k];
            }
        }
        check(ok, "%s: kernel times rise with sizes", names[i]);
        double s = mpp_cost_gemm_s(d, 1, 8192, 8192, 8192, 4);
        double share = 2.0 * 8192 * 8192 * 8192 / s / d->peak_flops_per_s[MPP_PRECISION_F32];
        check(share > 0.4 && share <= 0.95, "%s: a large GEMM reaches %.2f of the peak", names[i], share);
        check(mpp_cost_gemm(d, 1, 8192, 8192, 1, 4) >= mpp_cost_memory(d, 4.0 * 8192 * 8192) &&
                  mpp_cost_gemm(d, 1, 8192, 1, 8192, 4) >= mpp_cost_memory(d, 4.0 * 8192 * 8192) &&
                  mpp_cost_gemm(d, 1, 1, 8192, 8192, 4) >= mpp_cost_memory(d, 4.0 * 8192 * 8192),
              "%s: a product takes as long as to move each of its matrices", names[i]);
        check(mpp_cost_kernel(d, 0, 1e6) == mpp_cost_memory(d, 1e6), "%s: a kernel without flops", names[i]);
        check(mpp_cost_kernel(d, 1e12, 1e3) > mpp_cost_kernel(d, 0, 1e3), "%s: a kernel of flops", names[i]);
        check(mpp_cost_gemm(d, 0, 5, 5, 5, 4) == mpp_cost_ps(d->launch_s), "%s: an empty GEMM", names[i]);
        check(mpp_device_usable_bytes(d) <= d->mem_bytes && mpp_device_usable_bytes(d) > d->mem_bytes / 2,
              "%s: usable bytes", names[i]);
    }
    /* Measured on a Zen 4 core with OpenBLAS: seconds of sgemm m x n x k. */
    static const struct { int m, n, k; double s; } cpu[] = {
        {1024, 1024, 1024, 2.14e-2}, {2048, 2048, 2048, 1.64e-1}, {256, 256, 256, 3.22e-4}, {64, 1024, 1024, 1.66e-3},
        {1024, 1024, 64, 1.54e-3}, {1024, 64, 1024, 1.4e-3}, {1, 1024, 1024, 4.2e-4}};
    const struct mpp_device *d = &load(arena, "host", 2)->device;
    for (size_t i = 0; i < sizeof cpu / sizeof *cpu; i++) {
        double got = mpp_cost_gemm_s(d, 1, cpu[i].m, cpu[i].n, cpu[i].k, 4);
        check(within(got, cpu[i].s, 0.35), "sgemm %d %d %d: %g s, measured %g", cpu[i].m, cpu[i].n, cpu[i].k, got,
              cpu[i].s);
    }
}

/* Tiles, waves and alignment on a device with round figures: 4 units, 8 TFLOP/s, tiles 128 x 128 and 64 x 64. */
static void test_products(struct mpp_arena *arena)
{
    static const struct mpp_gemm_tile tiles[] = {{128, 128, 1}, {64, 64, 0.5}};
    static const struct mpp_gemm_align aligns[] = {{2, 0.5}, {16, 0.8}, {128, 1}};
    struct mpp_device d = {.mem_bytes_per_s = 1e30, .gemm = {.efficiency = 1, .half_k = 8, .units = 4, .quantised = 1,
                           .n_tiles = 2, .tiles = tiles, .n_aligns = 3, .aligns = aligns}};
    d.peak_flops_per_s[MPP_PRECISION_F32] = 1e12;
    d.peak_flops_per_s[MPP_PRECISION_F16] = 8e12;
    const double tile_s = 2.0 * 128 * 128 * (1024 + 8) / 2e12;
    static const struct { int64_t batch, m, n; double waves; } cases[] = {
        {1, 256, 256, 1}, {1, 128, 640, 2}, {5, 128, 128, 2}, {4, 128, 128, 1}, {1, 128, 192, 1}, {9, 128, 128, 3},
        {1, 64, 256, 0.5}, {1, 64, 320, 1}, {1, 1024, 1024, 16}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double got = mpp_cost_product_s(&d, MPP_PRECISION_F16, cases[i].batch, cases[i].m, cases[i].n, 1024);
        check(within(got, cases[i].waves * tile_s, 1e-9), "product %zu: %.3f waves, not %.3f", i, got / tile_s, cases[i].waves);
    }
    /* Half as much quantisation: five tiles are between two waves and 5/4. */
    d.gemm.quantised = 0.5;
    check(within(mpp_cost_product_s(&d, MPP_PRECISION_F16, 5, 128, 128, 1024), (2 + 1.25) / 2 * tile_s, 1e-9), "half quantised");
    check(within(mpp_cost_product_s(&d, MPP_PRECISION_F16, 1, 64, 64, 1024), tile_s / 2, 1e-9), "one tile takes its time");
    d.gemm.quantised = 1;
    static const struct { int64_t m, n, k; double share; } rows[] = {
        {1024, 1024, 1024, 1}, {1024, 960, 1024, 1}, {1024, 1000, 1024, 0.8}, {1024, 1024, 1016, 0.8},
        {1024, 1023, 1024, 0.5}, {1022, 1024, 1024, 0.5}, {1024, 1, 1024, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t m = rows[i].m, n = rows[i].n, k = rows[i].k;
        d.gemm.n_aligns = 0;
        double free = mpp_cost_product_s(&d, MPP_PRECISION_F16, 1, m, n, k);
        d.gemm.n_aligns = 3;
        double got = mpp_cost_product_s(&d, MPP_PRECISION_F16, 1, m, n, k);
        check(within(free / got, rows[i].share, 1e-9), "alignment %zu: %.3f", i, free / got);
    }
    check(within(mpp_cost_product_s(&d, MPP_PRECISION_F32, 1, 1023, 1023, 1023),
                 mpp_cost_product_s(&d, MPP_PRECISION_F32, 1, 1024, 1024, 1023), 1e-9), "f32 needs no alignment");
    check(within(mpp_cost_product_s(&d, MPP_PRECISION_BF16, 1, 1024, 1024, 1024),
                 mpp_cost_product_s(&d, MPP_PRECISION_F32, 1, 1024, 1024, 1024), 1e-9), "no bf16: as f32");
    /* On A100: BigScience's hidden sizes at tp 4, and the launch floor. */
    const struct mpp_device *a = &load(arena, "dgx-a100", 1)->device;
    double good = 13824.0 * 3456 / mpp_cost_product_s(a, MPP_PRECISION_BF16, 1, 4096, 13824, 3456);
    double bad = 14400.0 * 3600 / mpp_cost_product_s(a, MPP_PRECISION_BF16, 1, 4096, 14400, 3600);
    check(bad / good > 0.65 && bad / good < 0.85, "hidden 14400 beside 13824: %.2f of the speed", bad / good);
    check(within(mpp_cost_product_s(a, MPP_PRECISION_BF16, 1, 8, 8, 8), a->launch_s, 0.1), "a tiny product is its launch");
}

static void test_load(struct mpp_arena *arena)
{
    struct mpp_cluster *c = load(arena, "dgx-a100", 8);
    check(strcmp(mpp_cluster_describe(arena, c), "8 x A100-SXM4-80GB, one dgx-a100") == 0, "%s",
          mpp_cluster_describe(arena, c));
    c = load(arena, "dgx-a100", 12);
    check(c->n_nodes == 2 &&
              strcmp(mpp_cluster_describe(arena, c), "12 x A100-SXM4-80GB, 2 x dgx-a100 (12 of 16 used)") == 0,
          "%s", mpp_cluster_describe(arena, c));
    check(strcmp(load(arena, "p4d", 8)->name, "p4d.24xlarge") == 0, "a name without its size");
    check(strcmp(load(arena, "DGX-A100", 8)->name, "dgx-a100") == 0, "a name in capitals");
    c = load(arena, "host", 0);
    check(c->n_devices == 1 && c->kind == MPP_LINK_SHARED && c->device.mem_bytes == (int64_t)16 << 30, "host");
    c = load(arena, "host", 4);
    check(c->n_devices == 4 && c->n_nodes == 1, "host with 4 devices");
    c = load(arena, "dgx-h100", MPP_CLUSTER_MAX_DEVICES);
    check(c->n_nodes == 8192, "65536 devices");
    struct mpp_mesh mesh = {.n_axes = 3, .size = {64, 128, 8}};
    check(mpp_cost_all_reduce(c, &mesh, 3, 1e8) > 0, "65536 devices: a collective");
    int n;
    const char *const *devices = mpp_device_names(arena, &n);
    check(n >= 8 && devices[n] == NULL, "built-in devices: %d", n);
    /* Every figure of the built-in files says where it comes from. */
    for (int k = 0; k < 2; k++)
        for (const struct mpp_embedded *e = k ? mpp_embedded_devices : mpp_embedded_clusters; e->name; e++) {
            struct mpp_diag *diag = mpp_diag_new(stdout);
            struct mpp_xml *root = NULL;
            int ok = mpp_xml_parse(arena, diag, e->name, e->text, e->size, &root) == MPP_OK;
            check(ok && strcmp(mpp_xml_get(root, "name"), e->name) == 0, "%s: name and file agree", e->name);
            for (const struct mpp_xml *x = root ? root->first : NULL; x; x = x->next)
                check(mpp_xml_get(x, "source") != NULL, "%s:%d: <%s> without source", e->name, x->loc.line, x->name);
            mpp_diag_free(diag);
        }
}

#define DEVICE_HEAD "<device name='d'>"
#define MEMORY "<memory bytes='16GiB' bytes_per_s='1e9'/>"
#define PEAK "<peak precision='f32' flops_per_s='1e12'/>"
#define REST "<kernel launch_s='0'/><gemm efficiency='0.9'/>"
#define DEVICE DEVICE_HEAD MEMORY PEAK REST "</device>"
#define HEAD "<cluster name='c' devices_per_node='2'>\n"
#define PROTOCOL "<protocol name='p' base_s='1e-6' step_s='1e-6'/>"
#define SIX PROTOCOL PROTOCOL PROTOCOL PROTOCOL PROTOCOL PROTOCOL
#define SHARED "<shared bytes_per_s='1e9' total_bytes_per_s='4e9'/>"
#define PCIE "<pcie bytes_per_s='1e9'/>"
#define NETWORK "<network nics='1' bytes_per_s='1e9' latency_s='1e-6'/>"
#define TAIL PROTOCOL "\n</cluster>\n"
#define MESH(rows) HEAD DEVICE "\n<mesh link_bytes_per_s='1e9'>\n" rows "\n</mesh>" PCIE TAIL
#define WITH_DEVICE(text) HEAD SHARED "\n" text TAIL

#define GEMM(attributes, inside) \
    WITH_DEVICE(DEVICE_HEAD MEMORY PEAK "<kernel launch_s='0'/><gemm efficiency='1' " attributes ">" inside "</gemm></device>")

struct bad {
    const char *text, *want;           /* what the message says */
    int line;
    int64_t n;
};

static const struct bad bad[] = {
    {"<device name='d'/>", "expected <cluster>", 1, 0},
    {HEAD, "", 0, 0},
    {"<cluster devices_per_node='2'>" DEVICE SHARED TAIL, "needs the attribute \"name\"", 1, 0},
    {"<cluster name='' devices_per_node='2'>" DEVICE SHARED TAIL, "is empty", 1, 0},
    {"<cluster name='c'>" DEVICE SHARED TAIL, "needs the attribute \"devices_per_node\"", 1, 0},
    {"<cluster name='c' devices_per_node='0'>" DEVICE SHARED TAIL, "whole number from 1", 1, 0},
    {"<cluster name='c' devices_per_node='2.5'>" DEVICE SHARED TAIL, "whole number from 1", 1, 0},
    {"<cluster name='c' devices_per_node='99999999999999999999'>" DEVICE SHARED TAIL, "whole number from 1", 1, 0},
    {"<cluster name='c' devices_per_node='2' nodes='0'>" DEVICE SHARED TAIL, "whole number from 1", 1, 0},
    {"<cluster name='c' devices_per_node='2' nodes='-1'>" DEVICE SHARED TAIL, "whole number from 1", 1, 0},
    {"<cluster name='c' devices_per_node='2' nodez='1'>" DEVICE SHARED TAIL, "did you mean \"nodes\"", 1, 0},
    {"<cluster name='c' devices_per_node='2' nodes='2'>" DEVICE SHARED NETWORK TAIL, "has 4", 1, 5},
    {HEAD DEVICE SHARED TAIL, "no <network>", 1, 3},
    {HEAD DEVICE SHARED NETWORK TAIL, "1 to 65536", 1, 65537},
    {HEAD DEVICE SHARED NETWORK TAIL, "1 to 65536", 1, -1},
    {HEAD SHARED TAIL, "needs the attribute \"device\"", 1, 0},
    {"<cluster name='c' device='A100-SXM4-80GBB' devices_per_node='2'>" SHARED TAIL, "did you mean \"A100-SXM4-80GB\"",
     1, 0},
    {"<cluster name='c' device='T4-16GB' devices_per_node='2'>\n" DEVICE SHARED TAIL, "keep one", 2, 0},
    {HEAD DEVICE TAIL, "how the devices of a node are joined", 1, 0},
    {HEAD DEVICE SHARED PCIE TAIL, "more than one way", 1, 0},
    {HEAD DEVICE SHARED "\n" SHARED TAIL, "a second <shared>", 3, 0},
    {HEAD DEVICE SHARED "\n<netwrok/>" TAIL, "did you mean \"network\"", 3, 0},
    {HEAD DEVICE SHARED "</cluster>", "needs a <protocol>", 1, 0},
    {HEAD DEVICE "\n<shared bytes_per_s='1e9'/>" TAIL, "needs the attribute \"total_bytes_per_s\"", 3, 0},
    {HEAD SHARED DEVICE_HEAD MEMORY PEAK "<kernel launch_s='0'/>\n<gemm efficiency='1e-300'/></device>" TAIL, "above 0", 3, 0},
    {HEAD SHARED DEVICE_HEAD MEMORY PEAK "<kernel launch_s='0'/>\n\n<gemm efficiency='1e-20'/></device>" TAIL, "at least 1e-4", 4, 0},
    {HEAD SHARED DEVICE_HEAD MEMORY PEAK "<kernel launch_s='0' vector_efficiency='1e-9'/>\n<gemm efficiency='1'/></device>" TAIL, "at least 1e-4", 2, 0},
    {HEAD SHARED DEVICE_HEAD "<memory bytes='16GiB' bytes_per_s='1e9'>\n<point bytes='1e6' efficiency='1e-25'/></memory>" PEAK REST "</device>" TAIL,
     "at least 1e-4", 3, 0},
    {HEAD DEVICE SHARED "\n<network nics='1' bytes_per_s='1e9' efficiency='1e-12' latency_s='1e-6'/>" TAIL, "at least 1e-4", 3, 0},
    {HEAD DEVICE SHARED "\n<protocol name='p' base_s='1e-6' step_s='1e-6' efficiency='1e-29'/></cluster>", "at least 1e-4", 3, 0},
    {GEMM("half_k='1e25'", ""), "at most 1e9", 3, 0},
    {HEAD DEVICE "\n<shared bytes_per_s='-1' total_bytes_per_s='1e9'/>" TAIL, "above zero", 3, 0},
    {HEAD DEVICE "\n<shared bytes_per_s='0' total_bytes_per_s='1e9'/>" TAIL, "above zero", 3, 0},
    {HEAD DEVICE "\n<shared bytes_per_s='nan' total_bytes_per_s='1e9'/>" TAIL, "not a number", 3, 0},
    {HEAD DEVICE "\n<shared bytes_per_s='inf' total_bytes_per_s='1e9'/>" TAIL, "not a number", 3, 0},
    {HEAD DEVICE "\n<shared bytes_per_s='1e999' total_bytes_per_s='1e9'/>" TAIL, "too large", 3, 0},
    {HEAD DEVICE "\n<shared bytes_per_s='0x10' total_bytes_per_s='1e9'/>" TAIL, "not a number", 3, 0},
    {HEAD DEVICE "\n<shared bytes_per_s='' total_bytes_per_s='1e9'/>" TAIL, "not a number", 3, 0},
    {HEAD DEVICE "\n<shared bytes_per_s='12 GB' total_bytes_per_s='1e9'/>" TAIL, "not a number", 3, 0},
    {HEAD DEVICE "\n<switch/>" TAIL, "needs a <rate>", 3, 0},
    {HEAD DEVICE "<switch>\n<rate devices='4' bytes_per_s='1e9'/>\n<rate devices='2' bytes_per_s='1e9'/></switch>" TAIL,
     "ascend", 4, 0},
    {HEAD DEVICE "<switch>\n<rate devices='2' bytes_per_s='1e9' all_reduce_bytes_per_s='3e9'/></switch>" TAIL,
     "2 * bytes_per_s", 3, 0},
    {HEAD DEVICE "<switch>\n<rate devices='1' bytes_per_s='1e9'/></switch>" TAIL, "whole number from 2", 3, 0},
    {MESH("<row links='0 1'/>"), "has 1 rows", 3, 0},
    {MESH("<row links='0 1'/><row links='1 0'/><row links='0 0'/>"), "has 3 rows", 3, 0},
    {MESH("<row links='0 1'/>\n<row links='1'/>"), "has 1 counts", 5, 0},
    {MESH("<row links='0 1'/>\n<row links='1 0 0'/>"), "has 3 counts", 5, 0},
    {MESH("<row links='0 1'/>\n<row links='1 0 2'/>"), "device 1 to device 2; the node has devices 0 to 1", 5, 0},
    {MESH("<row links='0 1'/>\n<row links='2 0'/>"), "row 0 has 1", 5, 0},
    {MESH("<row links='1 1'/>\n<row links='1 0'/>"), "to itself", 4, 0},
    {MESH("<row links='0 -1'/>\n<row links='-1 0'/>"), "not a number of links", 4, 0},
    {MESH("<row links='0 31'/>\n<row links='31 0'/>"), "more than 30", 4, 0},
    {MESH("<row/>\n<row links='1 0'/>"), "needs the attribute \"links\"", 4, 0},
    {HEAD DEVICE "\n<mesh link_bytes_per_s='1e9'><row links='0 1'/><row links='1 0'/></mesh>" TAIL, "needs a <pcie>", 3,
     0},
    {"<cluster name='c' devices_per_node='9'>" DEVICE "\n<mesh link_bytes_per_s='1e9'/>" PCIE TAIL, "at most 8", 2, 0},
    {HEAD DEVICE SHARED "\n<network nics='0' bytes_per_s='1e9' latency_s='0'/>" TAIL, "whole number from 1", 3, 0},
    {HEAD DEVICE SHARED "\n<network nics='1' bytes_per_s='1e9' latency_s='-1e-6'/>" TAIL, "must not be negative", 3, 0},
    {HEAD DEVICE SHARED "\n<network nics='1' bytes_per_s='1e9' latency_s='0' efficiency='1.5'/>" TAIL, "at most 1", 3, 0},
    {HEAD DEVICE SHARED "\n<protocol name='p' base_s='1e-6'/></cluster>", "needs the attribute \"step_s\"", 3, 0},
    {HEAD DEVICE SHARED "\n<protocol name='p' base_s='1' step_s='1' efficiency='0'/></cluster>", "above 0", 3, 0},
    {HEAD DEVICE SHARED SIX SIX "\n" TAIL, "more than 12", 3, 0},
    {WITH_DEVICE("<device>" MEMORY PEAK REST "</device>"), "needs the attribute \"name\"", 3, 0},
    {WITH_DEVICE(DEVICE_HEAD PEAK REST "</device>"), "needs a <memory>", 3, 0},
    {WITH_DEVICE(DEVICE_HEAD MEMORY REST "</device>"), "precision=\"f32\"", 3, 0},
    {WITH_DEVICE(DEVICE_HEAD MEMORY PEAK "<kernel launch_s='0'/></device>"), "needs a <gemm>", 3, 0},
    {WITH_DEVICE(DEVICE_HEAD MEMORY PEAK PEAK REST "</device>"), "a second <peak", 3, 0},
    {WITH_DEVICE(DEVICE_HEAD MEMORY PEAK "<peak precision='f33' flops_per_s='1e9'/>" REST "</device>"), "is none of", 3,
     0},
    {WITH_DEVICE(DEVICE_HEAD MEMORY PEAK REST "\n<gem/></device>"), "did you mean", 4, 0},
    {WITH_DEVICE(DEVICE_HEAD "<memory bytes='0' bytes_per_s='1e9'/>" PEAK REST "</device>"), "above zero", 3, 0},
    {WITH_DEVICE(DEVICE_HEAD "<memory bytes='16GB' bytes_per_s='1e9'/>" PEAK REST "</device>"), "80GiB", 3, 0},
    {WITH_DEVICE(DEVICE_HEAD "<memory bytes='1e20' bytes_per_s='1e9'/>" PEAK REST "</device>"), "too large", 3, 0},
    {WITH_DEVICE("<device name='d' arch='sm_8x'>" MEMORY PEAK REST "</device>"), "write one as nvcc does", 3, 0},
    {WITH_DEVICE("<device name='d' arch='sm_80; echo'>" MEMORY PEAK REST "</device>"), "is no GPU architecture", 3, 0},
    {WITH_DEVICE(DEVICE_HEAD "<memory bytes='1e9' context_bytes='1e9' bytes_per_s='1e9'/>" PEAK REST "</device>"), "leaves nothing", 3, 0},
    {WITH_DEVICE(DEVICE_HEAD "<memory bytes='1' usable='2' bytes_per_s='1e9'/>" PEAK REST "</device>"), "at most 1", 3,
     0},
    {WITH_DEVICE(DEVICE_HEAD "<memory bytes='1' bytes_per_s='1e9'><point bytes='2' efficiency='1'/>\n"
                             "<point bytes='1' efficiency='1'/></memory>" PEAK REST "</device>"),
     "ascend", 4, 0},
    {WITH_DEVICE(DEVICE_HEAD "<memory bytes='1' bytes_per_s='1e9'><point bytes='1' efficiency='0.1'/>\n"
                             "<point bytes='2' efficiency='0.9'/></memory>" PEAK REST "</device>"),
     "faster than the bytes", 4, 0},
    {"<cluster name='c' devices_per_node='2' tuning='nccl-volt'>" DEVICE SHARED TAIL, "did you mean \"nccl-volta\"", 1, 0},
    {HEAD DEVICE SHARED "\n<protocol name='p' algorithm='rings' base_s='0' step_s='0'/>" TAIL, "mean \"ring\"", 3, 0},
    {HEAD DEVICE SHARED "<protocol name='p' algorithm='tree' base_s='0' step_s='0'/></cluster>", "whose algorithm is ring", 1,
     0},
    {HEAD DEVICE SHARED "\n<network nics='1' bytes_per_s='1e9' latency_s='0' reduces='yes'/>" TAIL, "neither true nor", 3, 0},
    {HEAD DEVICE "\n<switch send_bytes_per_s='-1'><rate devices='2' bytes_per_s='1e9'/></switch>" TAIL, "above zero", 3, 0},
    {GEMM("units='2'", ""), "both units and a <tile>", 3, 0},
    {GEMM("", "<tile m='2' n='2'/>"), "both units and a <tile>", 3, 0},
    {GEMM("units='0'", "<tile m='2' n='2'/>"), "whole number from 1", 3, 0},
    {GEMM("units='2'", "\n<tile m='0' n='2'/>"), "whole number from 1", 4, 0},
    {GEMM("units='2'", "\n<tile m='1' n='2' efficiency='2'/>"), "at most 1", 4, 0},
    {GEMM("units='2'", "<tile m='1' n='2'/>\n<tiel m='1' n='2'/>"), "did you mean \"tile\"", 4, 0},
    {GEMM("", "<align bytes='4' efficiency='1'/>\n<align bytes='2' efficiency='1'/>"), "ascend", 4, 0},
    {GEMM("", "<align bytes='4' efficiency='1'/>\n<align bytes='8' efficiency='0.5'/>"), "ascend", 4, 0},
    {HEAD DEVICE SHARED "oops" TAIL, "", 2, 0},
    {"", "", 0, 0},
};

static void test_bad(struct mpp_arena *arena)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mpp_diag *diag = mpp_diag_new(NULL);
        struct mpp_cluster *c = NULL;
        enum mpp_status st = mpp_cluster_parse(arena, diag, "bad.xml", bad[i].text, strlen(bad[i].text), bad[i].n, &c);
        const char *text = mpp_diag_text(diag), *at = mpp_arena_printf(arena, "bad.xml:%d: error:", bad[i].line);
        check(st == MPP_INVALID && !c && mpp_diag_errors(diag) == 1, "bad %zu: status %d, %d errors: %s", i, (int)st,
              mpp_diag_errors(diag), text);
        check(strstr(text, bad[i].want) && (!bad[i].line || strstr(text, at)),
              "bad %zu: want \"%s\" on line %d, got %s", i, bad[i].want, bad[i].line, text);
        mpp_diag_free(diag);
    }
    /* What the cases above are variations of is good. */
    static const char *const good[] = {HEAD DEVICE SHARED NETWORK TAIL, MESH("<row links='0 1'/><row links='1 0'/>"),
                                       HEAD DEVICE PCIE TAIL};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct mpp_diag *diag = mpp_diag_new(stdout);
        struct mpp_cluster *c = NULL;
        check(mpp_cluster_parse(arena, diag, "good.xml", good[i], strlen(good[i]), 0, &c) == MPP_OK, "good %zu", i);
        mpp_diag_free(diag);
    }
    static const char *const names[][2] = {{"dgxa100", "did you mean \"dgx-a100\""}, {"p4d.24xlrge", "mean \"p4d.24xlarge\""},
                                           {"zzz", "known: "}, {"/nonexistent/c.xml", "/nonexistent/c.xml"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct mpp_diag *diag = mpp_diag_new(NULL);
        struct mpp_cluster *c = NULL;
        enum mpp_status st = mpp_cluster_load(arena, diag, names[i][0], 1, &c);
        check(st != MPP_OK && mpp_diag_errors(diag) == 1 && strstr(mpp_diag_text(diag), names[i][1]), "%s: %s",
              names[i][0], mpp_diag_text(diag));
        mpp_diag_free(diag);
    }
}

/* Broken and cut copies of good files never crash and never pass silently as something else. */
static void test_fuzz(struct mpp_arena *outer)
{
    (void)outer;
    uint32_t seed = 12345;
    for (const struct mpp_embedded *e = mpp_embedded_clusters; e->name; e++)
        for (int round = 0; round < 60; round++) {
            struct mpp_arena *arena = mpp_arena_new();
            struct mpp_diag *diag = mpp_diag_new(NULL);
            struct mpp_cluster *c = NULL;
            char *text = mpp_arena_memdup(arena, e->text, e->size);
            size_t size = e->size;
            for (int k = 0; k < 3; k++) {
                seed = seed * 1664525u + 1013904223u;
                text[(seed >> 8) % size] = "0129-.eE<>/\"' az"[seed >> 28];
            }
            if (round % 10 == 0)
                size = (seed >> 8) % size;
            enum mpp_status st = mpp_cluster_parse(arena, diag, "fuzz.xml", text, size, 8, &c);
            check((st == MPP_OK) == (c != NULL) && (st == MPP_OK) == (mpp_diag_errors(diag) == 0), "fuzz %s %d",
                  e->name, round);
            if (c) {
                struct mpp_mesh mesh = {.n_axes = 1, .size = {8, 1, 1}};
                check(mpp_cost_all_reduce(c, &mesh, 1, 1e6) > 0, "fuzz %s %d: cost", e->name, round);
            }
            mpp_diag_free(diag);
            mpp_arena_free(arena);
        }
}

/* From a file as from the library, and twice the same. */
static void test_same(struct mpp_arena *arena)
{
    char path[] = "/tmp/mpp_costmodel_XXXXXX.xml";
    int fd = mkstemps(path, 4);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    const struct mpp_embedded *e = mpp_embedded_clusters;
    while (strcmp(e->name, "dgx1-v100") != 0)
        e++;
    check(f != NULL, "a temporary file");
    if (!f)
        return;
    fwrite(e->text, 1, e->size, f);
    fclose(f);
    struct mpp_cluster *a = load(arena, path, 16), *b = load(arena, "dgx1-v100", 16);
    unlink(path);
    uint64_t sums[2] = {0, 0};
    for (int k = 0; k < 2; k++)
        for (int x = 1; x <= 16; x *= 2)
            for (unsigned mask = 0; mask < 4; mask++)
                for (double bytes = 1; bytes < 1e10; bytes *= 10) {
                    const struct mpp_cluster *c = k ? a : b;
                    struct mpp_mesh mesh = {.n_axes = 2, .size = {x, 16 / x, 1}};
                    uint64_t t = (uint64_t)mpp_cost_all_reduce(c, &mesh, mask, bytes) * 3 +
                                 (uint64_t)mpp_cost_all_to_all(c, &mesh, mask, bytes) +
                                 (uint64_t)mpp_cost_gemm(&c->device, 1, x, x + 7, (int64_t)bytes, 4);
                    sums[k] = sums[k] * 1000003u + t;
                }
    check(sums[0] == sums[1], "file and library give the same times");
}

int main(void)
{
    struct mpp_arena *arena = mpp_arena_new();
    test_load(arena);
    test_rings(arena);
    test_measured(arena);
    test_steps(arena);
    test_algorithms(arena);
    test_products(arena);
    test_nodes(arena);
    test_laws(arena);
    test_kernels(arena);
    test_bad(arena);
    test_fuzz(arena);
    test_same(arena);
    mpp_arena_free(arena);
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed != 0;
}
