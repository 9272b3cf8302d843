/* costmodel.h - what a kernel, a collective or a transfer costs on a given cluster.
 *
 *     struct mpp_cluster *c;
 *     MPP_TRY(mpp_cluster_load(arena, diag, "dgx1-v100", 8, &c));
 *     struct mpp_mesh mesh = {.n_axes = 2, .size = {2, 4, 1}};
 *     int64_t t_ps = mpp_cost_all_reduce(c, &mesh, 1u << 1, bytes);      // both groups of 4 at once
 *     t_ps += mpp_cost_gemm(&c->device, 1, 2048, 4096, 1024, 4);
 *
 * All figures come from costmodel/devices and costmodel/clusters (XML, built into the library) or from
 * the user's files of the same form (docs/clusters.md). Times are integers in picoseconds, rounded up
 * and capped at INT64_MAX, so that equal input gives equal plans on any machine; the _s variants give
 * the same times in seconds. Nothing here keeps state: every function may be called from any thread. */
#ifndef MPP_COSTMODEL_H
#define MPP_COSTMODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "ir/arena.h"
#include "ir/diag.h"
#include "ir/rule.h"
#include "ir/status.h"

#define MPP_CLUSTER_MAX_DEVICES 65536
#define MPP_CLUSTER_MESH_DEVICES 8      /* devices of a node whose links are given as a matrix */
#define MPP_CLUSTER_MAX_PROTOCOLS 12
#define MPP_CLUSTER_MAX_CHANNELS 64     /* NCCL's most */

/* Devices. */

enum mpp_precision {
    MPP_PRECISION_F64,
    MPP_PRECISION_F32,
    MPP_PRECISION_TF32,
    MPP_PRECISION_F16,
    MPP_PRECISION_BF16,
    MPP_PRECISION_COUNT
};

/* An output tile of M x N that one unit of the device works at, and its share of the peak beside the best tile's. */
struct mpp_gemm_tile {
    int m, n;
    double efficiency;
};

/* Of products whose least aligned size is a multiple of BYTES: their share of an aligned one's speed. */
struct mpp_gemm_align {
    int bytes;
    double efficiency;
};

/* How fast a matrix multiplication of BATCH products m x n x k is. On a device of UNITS (streaming
 * multiprocessors) with TILES, the cheapest tile makes batch * ceil(m/M) * ceil(n/N) tiles, which run in waves
 * of UNITS (NVIDIA, Matrix Multiplication Background, 3.1 and 3.2):
 *     waves * 2 * M * N * (k + half_k) / (peak / units * efficiency * tile's * alignment's),
 * waves = QUANTISED * ceil(tiles/units) + (1 - QUANTISED) * max(1, tiles/units). Else it reaches
 *     efficiency * batch*m*n / (batch*(m + half_m)*(n + half_n) + half_outputs) * k/(k + half_k)
 * of the peak: each half_x is the size at which that dimension alone, or too few outputs to fill the
 * device, costs half of the speed. */
struct mpp_gemm_curve {
    double efficiency, half_m, half_n, half_k, half_outputs;
    int units;                         /* 0: no tiles */
    double quantised;
    int n_tiles, n_aligns;
    const struct mpp_gemm_tile *tiles;
    const struct mpp_gemm_align *aligns;   /* by bytes, ascending; for precisions below f32 */
};

/* A pass over BYTES reaches EFFICIENCY of the memory bandwidth (above 1: it stays in a cache). */
struct mpp_memory_point {
    double bytes, efficiency;
};

struct mpp_device {
    const char *name;
    const char *arch;                  /* "sm_80", as nvcc names it; NULL: no GPU of CUDA's */
    int64_t mem_bytes;                 /* nominal size */
    double mem_usable;                 /* the fraction a plan may fill */
    int64_t context_bytes;             /* of the rest, the driver's and its libraries'; 0: not known */
    double mem_bytes_per_s;
    int n_memory_points;               /* by bytes, ascending; times between them are interpolated */
    const struct mpp_memory_point *memory_points;
    double peak_flops_per_s[MPP_PRECISION_COUNT];    /* dense; 0: not supported. F32 is always there */
    double vector_efficiency;          /* of the f32 peak, for kernels that are not GEMMs */
    double launch_s;                   /* fixed cost of one kernel */
    /* What a framework's host (Python) takes: to start a kernel, more for each two of a collective's members, and
     * per micro-batch. A phase takes the longer of its kernels' time and the host's. */
    double dispatch_s, dispatch_pair_s, dispatch_batch_s;
    struct mpp_gemm_curve gemm;
};

/* The bytes a plan may fill on DEV: mem_bytes * mem_usable, rounded down. */
int64_t mpp_device_usable_bytes(const struct mpp_device *dev);

/* Clusters. */

enum mpp_link_kind {
    MPP_LINK_SHARED,                   /* threads of one machine: copies through memory */
    MPP_LINK_SWITCH,                   /* every device at full speed to every other (NVSwitch) */
    MPP_LINK_MESH,                     /* point-to-point links, some pairs have none (DGX-1) */
    MPP_LINK_PCIE                      /* over PCIe and the host */
};

enum mpp_algorithm {
    MPP_ALGORITHM_RING,                /* all collectives */
    MPP_ALGORITHM_TREE,                /* all-reduce: chains in the nodes, a double binary tree between them */
    MPP_ALGORITHM_NVLS,                /* all-reduce: the node's switch reduces, a tree between nodes */
    MPP_ALGORITHM_COLLNET,             /* all-reduce: the network's switches reduce as well */
    MPP_ALGORITHM_EXCHANGE             /* all-to-all; without it by what rings have */
};

/* One way to run a collective, an algorithm with a protocol, as in NCCL's tuning model; the cheapest is
 * taken at each size, which makes the size ramp. Time = base + steps * step + traffic / bandwidth. */
struct mpp_protocol {
    const char *name;
    enum mpp_algorithm algorithm;
    double base_s, step_s, network_step_s;
    double efficiency, network_efficiency;             /* of the links' and NICs' bandwidth */
    double most_bytes_per_s, network_most_bytes_per_s; /* bus bandwidth at most; 0: no such bound */
};

/* Ring (bus) bandwidth per device per direction of a group of so many devices of one node. */
struct mpp_group_rate {
    int devices;
    double bytes_per_s;
    double all_reduce_bytes_per_s;     /* >= bytes_per_s, <= twice it: reduced in the switch */
};

/* What the links among one subset of a node's devices give (MPP_LINK_MESH). */
struct mpp_subset_links {
    uint8_t rings;                     /* link-disjoint directed Hamiltonian cycles */
    uint8_t connected;                 /* every device reaches every other over links */
    float exchange_links;              /* seconds * link bandwidth to swap one byte per ordered pair */
    float exchange_host;               /* bytes the busiest device sends over PCIe meanwhile */
};

struct mpp_cluster {
    const char *name;
    const struct mpp_arena *arena;     /* where it was read into; scratch arenas are of its run. NULL: none */
    const struct mpp_xml *root;        /* what was read (ir/xml.h), there; NULL: nothing */
    struct mpp_device device;
    int n_devices;                     /* in use; they fill the nodes in order */
    int devices_per_node, n_nodes;     /* n_nodes: those in use */
    int max_devices;                   /* that there can be, with more nodes where there is a network */
    bool any_per_node;                 /* a node has as many devices as are asked for */
    enum mpp_link_kind kind;
    double link_bytes_per_s;           /* SHARED: per device; MESH: per link per direction; PCIE: per device */
    double total_bytes_per_s;          /* SHARED, PCIE: of all devices of a node together */
    int cores;                         /* SHARED: that devices share, or of which each has several; 0: one for each */
    struct mpp_device core;            /* SHARED with CORES: one core, of which DEVICE is made */
    int n_rates;                       /* SWITCH: by devices, ascending */
    const struct mpp_group_rate *rates;
    double send_bytes_per_s;           /* SWITCH: from one device to one other; 0: the rate of two */
    uint8_t links[MPP_CLUSTER_MESH_DEVICES][MPP_CLUSTER_MESH_DEVICES];
    const struct mpp_subset_links *subsets;    /* MESH: [1 << devices_per_node], by bit mask */
    double pcie_bytes_per_s;           /* MESH: where there is no link; 0 otherwise */
    double pcie_total_bytes_per_s;
    int nics;                          /* per node; 0: no network */
    double nic_bytes_per_s;            /* per direction, as achieved */
    double device_network_bytes_per_s; /* what one device alone drives */
    bool network_reduces;              /* the network's switches can reduce (SHARP) */
    bool nvls, exchanges;              /* there is a protocol of that algorithm */
    int channels;                      /* of an NCCL communicator; 0: not known */
    int n_protocols;
    struct mpp_protocol protocols[MPP_CLUSTER_MAX_PROTOCOLS];
};

/* Load the built-in cluster NAME_OR_PATH or, if it has a '/' or ends in ".xml", that file, with N_DEVICES
 * in use (0: one node, or all nodes if the file says how many there are). *OUT lives in ARENA. On failure
 * each fault has been reported once, with file and line. */
enum mpp_status mpp_cluster_load(struct mpp_arena *arena, struct mpp_diag *diag, const char *name_or_path,
                                 int64_t n_devices, struct mpp_cluster **out) MPP_CHECKED;

/* As above, from SIZE bytes of XML text; NAME stands in messages. */
enum mpp_status mpp_cluster_parse(struct mpp_arena *arena, struct mpp_diag *diag, const char *name, const char *text,
                                  size_t size, int64_t n_devices, struct mpp_cluster **out) MPP_CHECKED;

/* CLUSTER with N_DEVICES in use as *OUT, which shares its arrays; false where there cannot be so many. */
bool mpp_cluster_resize(const struct mpp_cluster *cluster, int n_devices, struct mpp_cluster *out);

/* The built-in clusters and devices, by name; the arrays end with NULL and live in ARENA. */
const char *const *mpp_cluster_names(struct mpp_arena *arena, int *out_n);
const char *const *mpp_device_names(struct mpp_arena *arena, int *out_n);

/* A figure that costs rest on, as its file says it. */
struct mpp_figure {
    const char *file;                  /* "devices/A100-SXM4-80GB.xml" of the built-in files, or the user's without folders */
    int line;
    const char *what;                  /* "memory" */
    const char *value;                 /* the element's attributes: "bytes 80GiB, usable 0.92" */
    const char *source;                /* NULL: the file names none */
};

/* The figures of CLUSTER, its device and its tuning, in the files' order; *OUT_N how many. What lies inside an element
 * without a source of its own has that of the element. In ARENA; NULL where CLUSTER was not read from a file. */
const struct mpp_figure *mpp_cluster_figures(struct mpp_arena *arena, const struct mpp_cluster *cluster, int *out_n);

/* "8 x A100-SXM4-80GB, one dgx-a100"; the string lives in ARENA. */
const char *mpp_cluster_describe(struct mpp_arena *arena, const struct mpp_cluster *cluster);

/* Kernels. Sizes are of one device's shard; a kernel of no work still costs its launch. */

/* BATCH products [m, k] x [k, n]; ELEM_SIZE 8, 4 or 2 bytes picks the precision (f64, f32, bf16 or f16):
 * launch + max(multiplication at the curve's speed, memory traffic). */
int64_t mpp_cost_gemm(const struct mpp_device *dev, int64_t batch, int64_t m, int64_t n, int64_t k, int elem_size);
double mpp_cost_gemm_s(const struct mpp_device *dev, int64_t batch, int64_t m, int64_t n, int64_t k, int elem_size);

/* The same in PRECISION; f32 where the device has no units for it. */
double mpp_cost_product_s(const struct mpp_device *dev, enum mpp_precision precision, int64_t batch, int64_t m,
                          int64_t n, int64_t k);

/* A memory-bound pass that reads and writes BYTES in all: launch + bytes at the memory curve's speed. */
int64_t mpp_cost_memory(const struct mpp_device *dev, double bytes);
double mpp_cost_memory_s(const struct mpp_device *dev, double bytes);

/* Any other kernel: launch + max(flops at the vector speed, bytes at the memory curve's speed). */
int64_t mpp_cost_kernel(const struct mpp_device *dev, double flops, double bytes);
double mpp_cost_kernel_s(const struct mpp_device *dev, double flops, double bytes);

/* Collectives. A logical mesh (struct mpp_mesh, ir/rule.h) lies on the devices of the cluster from FIRST on,
 * in cluster order, row-major: its last axis is the fastest. */

enum mpp_collective {
    MPP_COLLECTIVE_ALL_REDUCE,
    MPP_COLLECTIVE_ALL_GATHER,
    MPP_COLLECTIVE_REDUCE_SCATTER,
    MPP_COLLECTIVE_ALL_TO_ALL
};

/* The groups that the axes of a mask make, all at work at once, as the slowest of them sees the links. */
struct mpp_groups {
    int n;                             /* devices of a group */
    int nodes;                         /* most nodes a group spans */
    int local;                         /* most devices of a group on one node */
    double bytes_per_s, all_reduce_bytes_per_s;    /* ring bandwidth within a node (local > 1) */
    double nvls_bytes_per_s;           /* all-reduce in the node's switch; 0: it cannot */
    double exchange_s_per_byte;        /* within a node, one byte between every ordered pair */
    double network_bytes_per_s;        /* of a node, for one group (nodes > 1) */
    double network_exchange_s_per_byte;    /* between nodes, one byte per ordered pair of devices */
};

/* Work out *OUT for the axes of MASK (bit i: axis i) of MESH laid from device FIRST on. Takes time
 * proportional to the mesh's devices: keep the result where many sizes are priced. The mesh must lie
 * within the cluster. */
void mpp_groups_init(const struct mpp_cluster *cluster, const struct mpp_mesh *mesh, int first, unsigned mask,
                     struct mpp_groups *out);

/* BYTES is the larger side on each device: the buffer (all-reduce), the gathered result (all-gather), the
 * input (reduce-scatter), the local buffer (all-to-all). Groups of one cost nothing. All times rise with
 * BYTES, and max(rs, ag) <= ar <= rs + ag of the same bytes. */
int64_t mpp_cost_collective(const struct mpp_cluster *cluster, const struct mpp_groups *groups,
                            enum mpp_collective what, double bytes);
double mpp_cost_collective_s(const struct mpp_cluster *cluster, const struct mpp_groups *groups,
                             enum mpp_collective what, double bytes);

/* The two steps above in one, for the axes of MASK of a mesh from device 0 on. */
int64_t mpp_cost_all_reduce(const struct mpp_cluster *cluster, const struct mpp_mesh *mesh, unsigned mask,
                            double bytes);
int64_t mpp_cost_all_gather(const struct mpp_cluster *cluster, const struct mpp_mesh *mesh, unsigned mask,
                            double bytes);
int64_t mpp_cost_reduce_scatter(const struct mpp_cluster *cluster, const struct mpp_mesh *mesh, unsigned mask,
                                double bytes);
int64_t mpp_cost_all_to_all(const struct mpp_cluster *cluster, const struct mpp_mesh *mesh, unsigned mask,
                            double bytes);

/* What of a collective's time kernels lose that run beside it: Calculon's fit for A100 over NVLink, 15 % of the multiprocessors (2 %
 * over InfiniBand; Isaev et al., SC23). */
#define MPP_COST_BESIDE 0.15

/* Can collectives of groups that span NODES go on beside kernels? Hosts move messages between machines only: within one, the
 * cores that would are those that compute. */
static inline bool mpp_cost_goes_beside(const struct mpp_cluster *cluster, int nodes)
{
    return cluster->kind != MPP_LINK_SHARED || nodes > 1;
}

/* BYTES from device FROM to device TO while SHARERS such sends (>= 1, this one included) leave its node
 * at once. A send to itself costs nothing. */
int64_t mpp_cost_send(const struct mpp_cluster *cluster, int from, int to, int sharers, double bytes);
double mpp_cost_send_s(const struct mpp_cluster *cluster, int from, int to, int sharers, double bytes);

/* Seconds as picoseconds: rounded up, capped at INT64_MAX. */
int64_t mpp_cost_ps(double seconds);

#endif
