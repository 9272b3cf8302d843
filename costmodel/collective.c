/* collective.c - groups of devices on the links they have, and collectives over them.
 *
 * NCCL's tuning model (src/graph/tuning.cc): each algorithm with each of its protocols has a latency and a
 * bandwidth, and the cheapest is taken at each size. A ring goes through all devices: the slower of a node's
 * links and its share of the NICs sets the speed, (n-1)/n of the buffer per pass; reduce-scatter and
 * all-gather are one pass, all-reduce is two. Trees and switches that reduce serve all-reduce alone. */
#include <assert.h>

#include "costmodel/costmodel.h"

struct node_use {
    int crossing;                      /* groups with a device here that reach other nodes */
    int inside;                        /* groups with two devices here */
    int devices;                       /* devices of the mesh here */
};

/* One group's devices on one node. */
struct run {
    int node, n;
    unsigned mask;                     /* which of the node's devices (MPP_LINK_MESH only) */
};

struct walk {
    const struct mpp_cluster *cluster;
    int first;
    int n_group, n_groups;             /* members of a group, and groups */
    int size[MPP_MAX_AXES], stride[MPP_MAX_AXES];
    unsigned mask;
    int n_axes;
    int first_node;
    struct node_use *use;              /* [nodes the mesh touches] */
    struct mpp_groups *out;
};

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double bounded(double rate, double most)
{
    return most > 0 && most < rate ? most : rate;
}

/* The offset of the INDEX-th combination (row-major) of the axes in MASK. */
static int offset_of(const struct walk *w, unsigned mask, int index)
{
    int offset = 0;
    for (int a = w->n_axes - 1; a >= 0; a--)
        if (mask >> a & 1) {
            offset += index % w->size[a] * w->stride[a];
            index /= w->size[a];
        }
    return offset;
}

/* The next run of group GROUP from member *AT on: devices of a group ascend, so a node's are adjacent. */
static int next_run(const struct walk *w, int group, int *at, struct run *out)
{
    const struct mpp_cluster *c = w->cluster;
    int base = w->first + offset_of(w, ~w->mask, group);
    if (*at >= w->n_group)
        return 0;
    out->n = 0;
    out->mask = 0;
    for (; *at < w->n_group; ++*at) {
        int device = base + offset_of(w, w->mask, *at), node = device / c->devices_per_node;
        if (out->n == 0)
            out->node = node;
        else if (node != out->node)
            break;
        out->n++;
        if (c->kind == MPP_LINK_MESH)
            out->mask |= 1u << device % c->devices_per_node;
    }
    return 1;
}

static void count_use(struct walk *w, int group)
{
    struct run run;
    int at = 0;
    while (next_run(w, group, &at, &run)) {
        struct node_use *use = &w->use[run.node - w->first_node];
        use->crossing += run.n < w->n_group;
        use->inside += run.n > 1;
        use->devices += run.n;
    }
}

/* The rate of N devices behind a switch, between the sizes that the data has. */
static void switch_rate(const struct mpp_cluster *c, int n, double *out_rate, double *out_all_reduce)
{
    const struct mpp_group_rate *r = c->rates;
    int last = c->n_rates - 1, i = 0;
    while (i < last && r[i + 1].devices <= n)
        i++;
    *out_rate = r[i].bytes_per_s;
    *out_all_reduce = r[i].all_reduce_bytes_per_s;
    if (i < last && n > r[i].devices) {
        double at = (double)(n - r[i].devices) / (r[i + 1].devices - r[i].devices);
        *out_rate += (r[i + 1].bytes_per_s - r[i].bytes_per_s) * at;
        *out_all_reduce += (r[i + 1].all_reduce_bytes_per_s - r[i].all_reduce_bytes_per_s) * at;
    }
}

/* What a run of two or more devices gets from its node: ring bandwidth, that of an all-reduce, and the
 * time of a pairwise exchange. */
static void run_rate(const struct mpp_cluster *c, const struct run *run, const struct node_use *use, double *out_rate,
                     double *out_all_reduce, double *out_exchange)
{
    double n = run->n, pcie, rate;
    switch (c->kind) {
    case MPP_LINK_SHARED:
        rate = least(c->link_bytes_per_s, c->total_bytes_per_s / use->devices);
        *out_rate = *out_all_reduce = rate;
        *out_exchange = (n - 1) / rate;
        return;
    case MPP_LINK_PCIE:
        rate = least(c->link_bytes_per_s, c->total_bytes_per_s / use->inside);
        *out_rate = *out_all_reduce = rate;
        *out_exchange = (n - 1) / rate;
        return;
    case MPP_LINK_SWITCH:
        switch_rate(c, run->n, out_rate, out_all_reduce);
        *out_exchange = (n - 1) / least(*out_rate, (n - 1) * bounded(*out_rate, c->send_bytes_per_s));
        return;
    case MPP_LINK_MESH:
        break;
    }
    const struct mpp_subset_links *s = &c->subsets[run->mask];
    pcie = least(c->pcie_bytes_per_s, c->pcie_total_bytes_per_s / use->inside);
    if (s->rings > 0) {
        *out_rate = *out_all_reduce = s->rings * c->link_bytes_per_s;
    } else if (s->connected) {
        /* No ring, but a tree: an all-reduce sends the buffer up and down it once (link / S, which is
         * 2(n-1)/n links of bus bandwidth); one pass walks around it as a ring of one link. DGX-1's GPUs
         * 0-4 are the case: GPU 4 reaches only GPU 0. Measured 37.0 GB/s, and 8/5 * 22.6 = 36.2. */
        *out_rate = c->link_bytes_per_s;
        *out_all_reduce = c->link_bytes_per_s * 2 * (n - 1) / n;
    } else {
        *out_rate = *out_all_reduce = pcie;
    }
    double over_links = s->exchange_links / c->link_bytes_per_s, over_host = s->exchange_host / pcie;
    *out_exchange = over_links > over_host ? over_links : over_host;
}

/* Fold what GROUP sees into the slowest so far. */
static void fold_group(struct walk *w, int group)
{
    const struct mpp_cluster *c = w->cluster;
    struct mpp_groups *out = w->out;
    struct run run;
    int at = 0, nodes = 0;
    while (next_run(w, group, &at, &run)) {
        const struct node_use *use = &w->use[run.node - w->first_node];
        nodes++;
        out->local = run.n > out->local ? run.n : out->local;
        if (run.n > 1) {
            double rate, all_reduce, exchange;
            run_rate(c, &run, use, &rate, &all_reduce, &exchange);
            out->bytes_per_s = least(out->bytes_per_s, rate);
            if (c->nvls) {
                out->all_reduce_bytes_per_s = least(out->all_reduce_bytes_per_s, rate);
                out->nvls_bytes_per_s = least(out->nvls_bytes_per_s, all_reduce);
            } else {
                out->all_reduce_bytes_per_s = least(out->all_reduce_bytes_per_s, all_reduce);
            }
            if (exchange > out->exchange_s_per_byte)
                out->exchange_s_per_byte = exchange;
        }
        if (run.n < w->n_group) {
            double net = least(run.n * c->device_network_bytes_per_s, c->nics * c->nic_bytes_per_s / use->crossing);
            double exchange = (double)run.n * (w->n_group - run.n) / net;
            out->network_bytes_per_s = least(out->network_bytes_per_s, net);
            if (exchange > out->network_exchange_s_per_byte)
                out->network_exchange_s_per_byte = exchange;
        }
    }
    out->nodes = nodes > out->nodes ? nodes : out->nodes;
}

void mpp_groups_init(const struct mpp_cluster *cluster, const struct mpp_mesh *mesh, int first, unsigned mask,
                     struct mpp_groups *out)
{
    assert(mesh->n_axes >= 0 && mesh->n_axes <= MPP_MAX_AXES);
    struct walk w = {.cluster = cluster, .first = first, .n_group = 1, .n_groups = 1, .n_axes = mesh->n_axes,
                     .mask = mask, .out = out};
    int n = 1;
    for (int a = mesh->n_axes - 1; a >= 0; a--) {
        w.size[a] = mesh->size[a];
        w.stride[a] = n;
        assert(mesh->size[a] >= 1 && mesh->size[a] <= MPP_CLUSTER_MAX_DEVICES / n);
        n *= mesh->size[a];
        *(mask >> a & 1 ? &w.n_group : &w.n_groups) *= mesh->size[a];
    }
    assert(first >= 0 && first <= cluster->n_devices - n);
    *out = (struct mpp_groups){.n = w.n_group, .nodes = 1, .local = 1};
    if (w.n_group == 1)
        return;

    struct node_use few[16] = {{0}};
    struct mpp_arena *scratch = NULL;
    w.first_node = first / cluster->devices_per_node;
    int n_nodes = (first + n - 1) / cluster->devices_per_node - w.first_node + 1;
    w.use = few;
    if (n_nodes > (int)(sizeof few / sizeof *few)) {
        scratch = mpp_arena_scratch(cluster->arena);
        w.use = mpp_arena_array(scratch, n_nodes, struct node_use);
    }
    out->bytes_per_s = out->all_reduce_bytes_per_s = out->network_bytes_per_s = 1e300;
    for (int g = 0; g < w.n_groups; g++)
        count_use(&w, g);
    out->nvls_bytes_per_s = cluster->nvls ? 1e300 : 0;
    for (int g = 0; g < w.n_groups; g++)
        fold_group(&w, g);
    if (out->local == 1)
        out->nvls_bytes_per_s = 0;
    mpp_arena_free(scratch);
}

static int log2_up(int n)
{
    int log = 0;
    while (1 << log < n)
        log++;
    return log;
}

/* The slower of the links (at RATE) and, over several nodes, the NICs. */
static double slowest(const struct mpp_groups *g, const struct mpp_protocol *p, double rate)
{
    double inside = bounded(rate * p->efficiency, p->most_bytes_per_s);
    double between = bounded(g->network_bytes_per_s * p->network_efficiency, p->network_most_bytes_per_s);
    return g->nodes == 1 ? inside : g->local == 1 ? between : least(inside, between);
}

/* PASSES over the group's ring(s). */
static double ring_s(const struct mpp_groups *g, const struct mpp_protocol *p, double passes, double bytes)
{
    double n = g->n, nodes = g->nodes;
    double rate = nodes == 1 && passes > 1 ? g->all_reduce_bytes_per_s : g->bytes_per_s;
    return p->base_s + passes * ((n - nodes) * p->step_s + (nodes - 1) * p->network_step_s +
                                 (n - 1) / n * bytes / slowest(g, p, rate));
}

/* An all-reduce up a tree and down again: in each node a chain, between nodes two binary trees of half the
 * buffer each. Every link carries the buffer twice, as in NCCL's busBw * 0.5. */
static double tree_s(const struct mpp_groups *g, const struct mpp_protocol *p, double bytes)
{
    return p->base_s + 2 * ((g->local - 1) * p->step_s + log2_up(g->nodes) * p->network_step_s +
                            bytes / slowest(g, p, g->bytes_per_s));
}

/* An all-reduce in the node's switch and, over several nodes, at the same time up and down a tree between
 * nodes (NVLSTree) or, where the network's switches reduce, once out and once back (CollNet). */
static double switch_s(const struct mpp_groups *g, const struct mpp_protocol *p, double bytes)
{
    double local = g->local, rate = g->nvls_bytes_per_s > 0 ? g->nvls_bytes_per_s : g->bytes_per_s;
    double inside = local > 1 ? 2 * (local - 1) / local * bytes / (rate * p->efficiency) : 0;
    double s = p->base_s + p->step_s;
    if (g->nodes == 1)
        return s + inside;
    double between = bytes / (g->network_bytes_per_s * p->network_efficiency);
    if (p->algorithm == MPP_ALGORITHM_NVLS) {
        s += 2 * log2_up(g->nodes) * p->network_step_s;
        between *= 2;
    } else {
        s += p->network_step_s;
    }
    return s + (inside > between ? inside : between);
}

/* An all-reduce by P, or a negative number where P cannot run it on these links. */
static double all_reduce_s(const struct mpp_cluster *c, const struct mpp_groups *g, const struct mpp_protocol *p,
                           double bytes)
{
    switch (p->algorithm) {
    case MPP_ALGORITHM_RING:
        return ring_s(g, p, 2, bytes);
    case MPP_ALGORITHM_TREE:
        return tree_s(g, p, bytes);
    case MPP_ALGORITHM_NVLS:
        return g->nvls_bytes_per_s > 0 ? switch_s(g, p, bytes) : -1;
    case MPP_ALGORITHM_COLLNET:
        return c->network_reduces && g->nodes > 1 ? switch_s(g, p, bytes) : -1;
    case MPP_ALGORITHM_EXCHANGE:
        break;
    }
    return -1;
}

/* Every device sends 1/n of its buffer to every other; links and NICs work at the same time. */
static double exchange_s(const struct mpp_groups *g, const struct mpp_protocol *p, double bytes)
{
    double piece = bytes / g->n;
    double inside = g->local > 1 ? piece * g->exchange_s_per_byte / p->efficiency : 0;
    double between = g->nodes > 1 ? piece * g->network_exchange_s_per_byte / p->network_efficiency : 0;
    return p->base_s + (g->local - 1) * p->step_s + (g->nodes - 1) * p->network_step_s +
           (inside > between ? inside : between);
}

double mpp_cost_collective_s(const struct mpp_cluster *cluster, const struct mpp_groups *groups,
                             enum mpp_collective what, double bytes)
{
    if (groups->n <= 1 || !(bytes > 0))
        return 0;
    double best = -1;
    for (int i = 0; i < cluster->n_protocols; i++) {
        const struct mpp_protocol *p = &cluster->protocols[i];
        bool ring = p->algorithm == MPP_ALGORITHM_RING, exchange = what == MPP_COLLECTIVE_ALL_TO_ALL;
        if (exchange && p->algorithm != (cluster->exchanges ? MPP_ALGORITHM_EXCHANGE : MPP_ALGORITHM_RING))
            continue;
        /* With many nodes a ring's pass takes more steps than a whole all-reduce over a tree; NCCL then has
         * algorithms of few steps for the halves, too (PAT). They are priced as the all-reduce. */
        double t = exchange ? exchange_s(groups, p, bytes) : all_reduce_s(cluster, groups, p, bytes);
        if (ring && (what == MPP_COLLECTIVE_ALL_GATHER || what == MPP_COLLECTIVE_REDUCE_SCATTER))
            t = ring_s(groups, p, 1, bytes);
        if (t >= 0 && (best < 0 || t < best))
            best = t;
    }
    return best;
}

int64_t mpp_cost_collective(const struct mpp_cluster *cluster, const struct mpp_groups *groups,
                            enum mpp_collective what, double bytes)
{
    return mpp_cost_ps(mpp_cost_collective_s(cluster, groups, what, bytes));
}

static int64_t cost_on_mesh(const struct mpp_cluster *cluster, const struct mpp_mesh *mesh, unsigned mask,
                            enum mpp_collective what, double bytes)
{
    struct mpp_groups groups;
    mpp_groups_init(cluster, mesh, 0, mask, &groups);
    return mpp_cost_collective(cluster, &groups, what, bytes);
}

int64_t mpp_cost_all_reduce(const struct mpp_cluster *cluster, const struct mpp_mesh *mesh, unsigned mask,
                            double bytes)
{
    return cost_on_mesh(cluster, mesh, mask, MPP_COLLECTIVE_ALL_REDUCE, bytes);
}

int64_t mpp_cost_all_gather(const struct mpp_cluster *cluster, const struct mpp_mesh *mesh, unsigned mask,
                            double bytes)
{
    return cost_on_mesh(cluster, mesh, mask, MPP_COLLECTIVE_ALL_GATHER, bytes);
}

int64_t mpp_cost_reduce_scatter(const struct mpp_cluster *cluster, const struct mpp_mesh *mesh, unsigned mask,
                                double bytes)
{
    return cost_on_mesh(cluster, mesh, mask, MPP_COLLECTIVE_REDUCE_SCATTER, bytes);
}

int64_t mpp_cost_all_to_all(const struct mpp_cluster *cluster, const struct mpp_mesh *mesh, unsigned mask,
                            double bytes)
{
    return cost_on_mesh(cluster, mesh, mask, MPP_COLLECTIVE_ALL_TO_ALL, bytes);
}

double mpp_cost_send_s(const struct mpp_cluster *cluster, int from, int to, int sharers, double bytes)
{
    const struct mpp_cluster *c = cluster;
    assert(from >= 0 && to >= 0 && from < c->n_devices && to < c->n_devices && sharers >= 1);
    if (from == to || !(bytes > 0))
        return 0;
    int per = c->devices_per_node, across = from / per != to / per;
    double rate, unused;
    if (across) {
        rate = least(c->device_network_bytes_per_s, c->nics * c->nic_bytes_per_s / sharers);
    } else if (c->kind == MPP_LINK_MESH && c->links[from % per][to % per]) {
        rate = c->links[from % per][to % per] * c->link_bytes_per_s;
    } else if (c->kind == MPP_LINK_MESH) {
        rate = least(c->pcie_bytes_per_s, c->pcie_total_bytes_per_s / sharers);
    } else if (c->kind == MPP_LINK_SWITCH) {
        switch_rate(c, 2, &rate, &unused);
        rate = bounded(rate, c->send_bytes_per_s);
    } else {
        rate = least(c->link_bytes_per_s, c->total_bytes_per_s / sharers);
    }
    double best = -1;
    for (int i = 0; i < c->n_protocols; i++) {
        const struct mpp_protocol *p = &c->protocols[i];
        if (p->algorithm != MPP_ALGORITHM_RING)
            continue;
        double by = across ? bounded(rate * p->network_efficiency, p->network_most_bytes_per_s)
                           : bounded(rate * p->efficiency, p->most_bytes_per_s);
        double t = p->base_s + (across ? p->network_step_s : p->step_s) + bytes / by;
        best = best < 0 ? t : least(best, t);
    }
    return best;
}

int64_t mpp_cost_send(const struct mpp_cluster *cluster, int from, int to, int sharers, double bytes)
{
    return mpp_cost_ps(mpp_cost_send_s(cluster, from, to, sharers, bytes));
}
