/* cluster.c - reading clusters. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "costmodel/fields.h"
#include "costmodel/costmodel.h"
#include "costmodel/device.h"
#include "costmodel/embed.h"
#include "costmodel/rings.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))
#define ANY_NUMBER 0                   /* of devices per node: as many as are asked for */

struct loader {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const struct mpp_xml *root;
    struct mpp_cluster *c;
    int64_t nodes;                     /* 0: as many as are needed */
};

static double positive(struct loader *l, const struct mpp_xml *node, const char *name, double fallback)
{
    return mpp_fields_number(l->diag, node, name, MPP_NUMBER_POSITIVE, fallback);
}

static void read_shared(struct loader *l, const struct mpp_xml *node)
{
    static const char *const names[] = {"bytes_per_s", "total_bytes_per_s", "cores", "source"};
    mpp_fields_known(l->diag, node, names, COUNT(names));
    mpp_fields_children(l->diag, node, NULL, 0);
    l->c->link_bytes_per_s = positive(l, node, "bytes_per_s", MPP_FIELDS_REQUIRED);
    l->c->total_bytes_per_s = positive(l, node, "total_bytes_per_s", MPP_FIELDS_REQUIRED);
    l->c->cores = (int)mpp_fields_whole(l->diag, node, "cores", 1, MPP_CLUSTER_MAX_DEVICES, 0);
    l->c->core = l->c->device;
}

static void read_pcie(struct loader *l, const struct mpp_xml *node, double *out_device, double *out_total)
{
    static const char *const names[] = {"bytes_per_s", "total_bytes_per_s", "source"};
    mpp_fields_known(l->diag, node, names, COUNT(names));
    mpp_fields_children(l->diag, node, NULL, 0);
    *out_device = positive(l, node, "bytes_per_s", MPP_FIELDS_REQUIRED);
    *out_total = positive(l, node, "total_bytes_per_s", *out_device);
}

static void read_switch(struct loader *l, const struct mpp_xml *node)
{
    static const char *const names[] = {"send_bytes_per_s", "source"}, *const inside[] = {"rate"};
    static const char *const rate_names[] = {"devices", "bytes_per_s", "all_reduce_bytes_per_s", "source"};
    int n = 0, i = 0;
    mpp_fields_known(l->diag, node, names, COUNT(names));
    mpp_fields_children(l->diag, node, inside, COUNT(inside));
    for (const struct mpp_xml *r = node->first; r; r = r->next)
        n++;
    struct mpp_group_rate *rates = mpp_arena_array(l->arena, n, struct mpp_group_rate);
    for (const struct mpp_xml *r = node->first; r; r = r->next) {
        if (strcmp(r->name, "rate") != 0)
            continue;
        struct mpp_group_rate *rate = &rates[i];
        mpp_fields_known(l->diag, r, rate_names, COUNT(rate_names));
        rate->devices = (int)mpp_fields_whole(l->diag, r, "devices", 2, MPP_CLUSTER_MAX_DEVICES, -1);
        rate->bytes_per_s = positive(l, r, "bytes_per_s", MPP_FIELDS_REQUIRED);
        rate->all_reduce_bytes_per_s = positive(l, r, "all_reduce_bytes_per_s", rate->bytes_per_s);
        if (rate->all_reduce_bytes_per_s < rate->bytes_per_s || rate->all_reduce_bytes_per_s > 2 * rate->bytes_per_s)
            mpp_diag_error(l->diag, r->loc, "<rate> needs bytes_per_s <= all_reduce_bytes_per_s <= 2 * bytes_per_s");
        if (i > 0 && rate->devices <= rates[i - 1].devices)
            mpp_diag_error(l->diag, r->loc, "<rate> of %d devices after one of %d; rates ascend", rate->devices,
                           rates[i - 1].devices);
        i++;
    }
    if (i == 0)
        mpp_diag_error(l->diag, node->loc, "<switch> needs a <rate>");
    l->c->n_rates = i;
    l->c->rates = rates;
    if (mpp_xml_get(node, "send_bytes_per_s"))
        l->c->send_bytes_per_s = positive(l, node, "send_bytes_per_s", MPP_FIELDS_REQUIRED);
}

/* The counts of one <row>: as many as the node has devices; one beyond them names a device that is not there. */
static void read_row(struct loader *l, const struct mpp_xml *row, int i)
{
    static const char *const names[] = {"links", "source"};
    int n = l->c->devices_per_node, j = 0;
    mpp_fields_known(l->diag, row, names, COUNT(names));
    mpp_fields_children(l->diag, row, NULL, 0);
    const char *at = mpp_fields_string(l->diag, row, "links");
    if (!at)
        return;
    for (;; j++) {
        int count = 0;
        while (*at == ' ')
            at++;
        if (!*at)
            break;
        if (!isdigit((unsigned char)*at)) {
            mpp_diag_error(l->diag, row->loc, "row %d: \"%s\" is not a number of links", i, at);
            return;
        }
        for (; isdigit((unsigned char)*at) && count < 1000; at++)
            count = count * 10 + (*at - '0');
        if (count > 30) {
            mpp_diag_error(l->diag, row->loc, "row %d: device %d has more than 30 links to device %d", i, i, j);
            return;
        }
        if (j >= n && count > 0) {
            mpp_diag_error(l->diag, row->loc, "row %d links device %d to device %d; the node has devices 0 to %d", i,
                           i, j, n - 1);
            return;
        }
        if (j == i && count > 0) {
            mpp_diag_error(l->diag, row->loc, "row %d links device %d to itself", i, i);
            return;
        }
        if (j < n)
            l->c->links[i][j] = (uint8_t)count;
    }
    if (j != n)
        mpp_diag_error(l->diag, row->loc, "row %d has %d counts; the node has %d devices", i, j, n);
}

static void read_mesh(struct loader *l, const struct mpp_xml *node)
{
    static const char *const names[] = {"link_bytes_per_s", "source"}, *const inside[] = {"row"};
    const struct mpp_xml *rows[MPP_CLUSTER_MESH_DEVICES] = {NULL};
    struct mpp_cluster *c = l->c;
    int before = mpp_diag_errors(l->diag), n = 0;
    mpp_fields_known(l->diag, node, names, COUNT(names));
    mpp_fields_children(l->diag, node, inside, COUNT(inside));
    c->link_bytes_per_s = positive(l, node, "link_bytes_per_s", MPP_FIELDS_REQUIRED);
    if (c->devices_per_node > MPP_CLUSTER_MESH_DEVICES || c->devices_per_node == ANY_NUMBER) {
        mpp_diag_error(l->diag, node->loc, "a <mesh> joins at most %d devices per node", MPP_CLUSTER_MESH_DEVICES);
        return;
    }
    for (const struct mpp_xml *r = node->first; r; r = r->next)
        if (strcmp(r->name, "row") == 0 && n++ < c->devices_per_node)
            rows[n - 1] = r;
    if (n != c->devices_per_node) {
        mpp_diag_error(l->diag, node->loc, "<mesh> has %d rows; the node has %d devices", n, c->devices_per_node);
        return;
    }
    for (int i = 0; i < n && mpp_diag_errors(l->diag) == before; i++)
        read_row(l, rows[i], i);
    if (mpp_diag_errors(l->diag) > before)
        return;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (c->links[i][j] != c->links[j][i])
                mpp_diag_error(l->diag, rows[i]->loc,
                               "row %d has %d links to device %d, but row %d has %d to device %d", i, c->links[i][j], j,
                               j, c->links[j][i], i);
    if (mpp_diag_errors(l->diag) == before)
        c->subsets = mpp_rings_table(l->arena, (const uint8_t(*)[MPP_CLUSTER_MESH_DEVICES])c->links, n);
}

/* Exactly one of <shared>, <switch>, <mesh>, <pcie>; <pcie> also beside a <mesh>, for pairs without a link. */
static void read_links(struct loader *l)
{
    const struct mpp_xml *shared = mpp_fields_child(l->diag, l->root, "shared", 0);
    const struct mpp_xml *sw = mpp_fields_child(l->diag, l->root, "switch", 0);
    const struct mpp_xml *mesh = mpp_fields_child(l->diag, l->root, "mesh", 0);
    const struct mpp_xml *pcie = mpp_fields_child(l->diag, l->root, "pcie", 0);
    int kinds = !!shared + !!sw + (mesh || pcie);
    if (kinds != 1) {
        mpp_diag_error(l->diag, l->root->loc, kinds == 0
                       ? "<cluster> does not say how the devices of a node are joined; add <shared>, <switch>, "
                         "<mesh> (with <pcie>) or <pcie>"
                       : "<cluster> joins the devices of a node in more than one way; keep one of <shared>, <switch>, "
                         "<mesh> (with <pcie>) and <pcie>");
    } else if (shared) {
        l->c->kind = MPP_LINK_SHARED;
        read_shared(l, shared);
    } else if (sw) {
        l->c->kind = MPP_LINK_SWITCH;
        read_switch(l, sw);
    } else if (mesh) {
        l->c->kind = MPP_LINK_MESH;
        read_mesh(l, mesh);
        if (pcie)
            read_pcie(l, pcie, &l->c->pcie_bytes_per_s, &l->c->pcie_total_bytes_per_s);
        else
            mpp_diag_error(l->diag, mesh->loc, "<mesh> needs a <pcie> beside it, for devices that no link joins");
    } else {
        l->c->kind = MPP_LINK_PCIE;
        read_pcie(l, pcie, &l->c->link_bytes_per_s, &l->c->total_bytes_per_s);
    }
}

static void read_network(struct loader *l, double *out_latency_s)
{
    static const char *const names[] = {"nics", "bytes_per_s", "efficiency", "latency_s", "device_bytes_per_s",
                                        "reduces", "source"};
    const struct mpp_xml *net = mpp_fields_child(l->diag, l->root, "network", 0);
    *out_latency_s = 0;
    if (!net)
        return;
    mpp_fields_known(l->diag, net, names, COUNT(names));
    mpp_fields_children(l->diag, net, NULL, 0);
    l->c->nics = (int)mpp_fields_whole(l->diag, net, "nics", 1, 1024, -1);
    double rate = positive(l, net, "bytes_per_s", MPP_FIELDS_REQUIRED);
    l->c->nic_bytes_per_s = rate * mpp_fields_number(l->diag, net, "efficiency", MPP_NUMBER_FRACTION, 1);
    *out_latency_s = mpp_fields_number(l->diag, net, "latency_s", MPP_NUMBER_NOT_NEGATIVE, MPP_FIELDS_REQUIRED);
    l->c->device_network_bytes_per_s = positive(l, net, "device_bytes_per_s", l->c->nic_bytes_per_s);
    const char *reduces = mpp_xml_get(net, "reduces");
    l->c->network_reduces = reduces && strcmp(reduces, "true") == 0;
    if (reduces && !l->c->network_reduces && strcmp(reduces, "false") != 0)
        mpp_diag_error(l->diag, net->loc, "<network reduces=\"%s\"> is neither true nor false", reduces);
}

static enum mpp_algorithm read_algorithm(struct loader *l, const struct mpp_xml *x)
{
    static const char *const names[] = {"ring", "tree", "nvls", "collnet", "exchange"};
    const char *name = mpp_xml_get(x, "algorithm");
    for (int i = 0; name && i < COUNT(names); i++)
        if (strcmp(name, names[i]) == 0)
            return (enum mpp_algorithm)i;
    if (name)
        mpp_diag_error(l->diag, x->loc, "<protocol algorithm=\"%s\"> is none of ring, tree, nvls, collnet, exchange%s", name,
                       mpp_diag_hint(l->diag, name, names, COUNT(names)));
    return MPP_ALGORITHM_RING;
}

/* The <protocol>s of ROOT. LATENCY_S stands for a network_step_s that is absent; none is below LEAST_S. */
static void read_protocols(struct loader *l, const struct mpp_xml *root, double latency_s, double least_s)
{
    static const char *const names[] = {"name", "algorithm", "base_s", "step_s", "efficiency", "network_step_s",
                                        "network_efficiency", "most_bytes_per_s", "network_most_bytes_per_s", "source"};
    struct mpp_cluster *c = l->c;
    for (const struct mpp_xml *x = root->first; x; x = x->next) {
        if (strcmp(x->name, "protocol") != 0)
            continue;
        if (c->n_protocols == MPP_CLUSTER_MAX_PROTOCOLS) {
            mpp_diag_error(l->diag, x->loc, "more than %d <protocol>s", MPP_CLUSTER_MAX_PROTOCOLS);
            return;
        }
        struct mpp_protocol *p = &c->protocols[c->n_protocols++];
        mpp_fields_known(l->diag, x, names, COUNT(names));
        mpp_fields_children(l->diag, x, NULL, 0);
        p->name = mpp_fields_string(l->diag, x, "name");
        p->algorithm = read_algorithm(l, x);
        p->base_s = mpp_fields_number(l->diag, x, "base_s", MPP_NUMBER_NOT_NEGATIVE, MPP_FIELDS_REQUIRED);
        p->step_s = mpp_fields_number(l->diag, x, "step_s", MPP_NUMBER_NOT_NEGATIVE, MPP_FIELDS_REQUIRED);
        p->efficiency = mpp_fields_number(l->diag, x, "efficiency", MPP_NUMBER_FRACTION, 1);
        p->network_step_s = mpp_fields_number(l->diag, x, "network_step_s", MPP_NUMBER_NOT_NEGATIVE, latency_s);
        p->network_efficiency = mpp_fields_number(l->diag, x, "network_efficiency", MPP_NUMBER_FRACTION, 1);
        p->most_bytes_per_s = mpp_fields_number(l->diag, x, "most_bytes_per_s", MPP_NUMBER_POSITIVE, 0);
        p->network_most_bytes_per_s = mpp_fields_number(l->diag, x, "network_most_bytes_per_s", MPP_NUMBER_POSITIVE, 0);
        if (p->network_step_s < least_s)
            p->network_step_s = least_s;
        c->nvls |= p->algorithm == MPP_ALGORITHM_NVLS && c->kind == MPP_LINK_SWITCH;
        c->exchanges |= p->algorithm == MPP_ALGORITHM_EXCHANGE;
    }
}

/* The protocols of the built-in tuning that the cluster names, then its own. */
static void read_tuning(struct loader *l, double latency_s)
{
    const char *name = mpp_xml_get(l->root, "tuning");
    const char *known[16];
    int n = 0, rings = 0;
    int64_t channels = 0;
    struct mpp_xml *root;
    const struct mpp_embedded *e = mpp_embedded_tunings;
    for (; e->name && n < COUNT(known); e++)
        known[n++] = e->name;
    for (e = mpp_embedded_tunings; name && e->name && strcmp(e->name, name) != 0; e++)
        ;
    if (name && !e->name)
        mpp_diag_error(l->diag, l->root->loc, "<cluster tuning=\"%s\"> is none of %s%s", name,
                       mpp_device_list(l->arena, known, n), mpp_diag_hint(l->diag, name, known, n));
    else if (name && mpp_xml_parse(l->arena, l->diag, mpp_arena_printf(l->arena, "builtin:tunings/%s.xml", name),
                                   e->text, e->size, &root) == MPP_OK)
    {
        read_protocols(l, root, latency_s, latency_s);
        channels = mpp_fields_whole(l->diag, root, "channels", 1, MPP_CLUSTER_MAX_CHANNELS, 0);
    }
    l->c->channels = (int)mpp_fields_whole(l->diag, l->root, "channels", 1, MPP_CLUSTER_MAX_CHANNELS, channels);
    read_protocols(l, l->root, latency_s, 0);
    for (int i = 0; i < l->c->n_protocols; i++)
        rings += l->c->protocols[i].algorithm == MPP_ALGORITHM_RING;
    if (rings == 0 && (!name || e->name))
        mpp_diag_error(l->diag, l->root->loc, "<cluster> needs a <protocol> whose algorithm is ring, or a tuning");
}

static void read_device(struct loader *l)
{
    const struct mpp_xml *own = mpp_fields_child(l->diag, l->root, "device", 0);
    const char *name = mpp_xml_get(l->root, "device");
    if (own && name)
        mpp_diag_error(l->diag, own->loc, "<cluster device=\"%s\"> also holds a <device>; keep one", name);
    else if (own)
        mpp_device_read(l->arena, l->diag, own, &l->c->device);
    else if (name)
        mpp_device_find(l->arena, l->diag, name, l->root->loc, &l->c->device);
    else
        mpp_diag_error(l->diag, l->root->loc, "<cluster> needs the attribute \"device\" or a <device>");
}

/* Devices that are threads: more than there are cores take turns on them, fewer have a whole number of cores each; and what
 * memory there is is shared out. */
static void share_cores(struct mpp_cluster *c)
{
    if (c->cores == 0)
        return;
    int n = c->n_devices < c->devices_per_node ? c->n_devices : c->devices_per_node;
    double slower = n > c->cores ? (double)n / c->cores : 1.0 / (c->cores / n);
    c->device = c->core;
    for (int i = 0; i < MPP_PRECISION_COUNT; i++)
        c->device.peak_flops_per_s[i] /= slower;
    c->device.mem_bytes_per_s /= slower;
    c->device.launch_s *= slower > 1 ? slower : 1;
    c->device.mem_bytes = c->core.mem_bytes / n * c->cores;
}

/* How many devices and nodes are in use. */
static void fill_nodes(struct loader *l, int64_t n_devices)
{
    struct mpp_cluster *c = l->c;
    const struct mpp_xml *root = l->root;
    int64_t per = c->devices_per_node;
    int64_t most_nodes = l->nodes ? l->nodes : c->nics > 0 ? MPP_CLUSTER_MAX_DEVICES : 1;
    c->any_per_node = per == ANY_NUMBER;
    if (n_devices == 0)
        n_devices = per == ANY_NUMBER ? 1 : per * (l->nodes ? l->nodes : 1);
    if (per == ANY_NUMBER)
        per = n_devices;
    int64_t most = c->any_per_node ? MPP_CLUSTER_MAX_DEVICES : per * most_nodes;
    if (n_devices < 0 || n_devices > MPP_CLUSTER_MAX_DEVICES) {
        mpp_diag_error(l->diag, root->loc, "%lld devices of %s; a cluster has 1 to %d", (long long)n_devices, c->name,
                       MPP_CLUSTER_MAX_DEVICES);
        return;
    }
    int64_t nodes = (n_devices + per - 1) / per;
    if (l->nodes && nodes > l->nodes) {
        mpp_diag_error(l->diag, root->loc, "%lld devices, but %s has %lld (%lld nodes of %lld)", (long long)n_devices,
                       c->name, (long long)(per * l->nodes), (long long)l->nodes, (long long)per);
        return;
    }
    if (nodes > 1 && c->nics == 0) {
        mpp_diag_error(l->diag, root->loc, "%lld devices, but a node of %s has %lld and the file gives no <network>",
                       (long long)n_devices, c->name, (long long)per);
        return;
    }
    c->n_devices = (int)n_devices;
    c->devices_per_node = (int)per;
    c->n_nodes = (int)nodes;
    c->max_devices = most < MPP_CLUSTER_MAX_DEVICES ? (int)most : MPP_CLUSTER_MAX_DEVICES;
    share_cores(c);
}

bool mpp_cluster_resize(const struct mpp_cluster *cluster, int n_devices, struct mpp_cluster *out)
{
    if (n_devices < 1 || n_devices > cluster->max_devices)
        return false;
    *out = *cluster;
    out->n_devices = n_devices;
    if (cluster->any_per_node)
        out->devices_per_node = n_devices;
    out->n_nodes = (n_devices + out->devices_per_node - 1) / out->devices_per_node;
    share_cores(out);
    return true;
}

static enum mpp_status read_cluster(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_xml *root,
                                    int64_t n_devices, struct mpp_cluster **out)
{
    static const char *const names[] = {"name", "device", "devices_per_node", "nodes", "tuning", "channels", "source"};
    static const char *const inside[] = {"device", "shared", "switch", "mesh", "pcie", "network", "protocol"};
    int before = mpp_diag_errors(diag);
    struct mpp_cluster *c = mpp_arena_array(arena, 1, struct mpp_cluster);
    c->arena = arena;
    c->root = root;
    struct loader l = {.arena = arena, .diag = diag, .root = root, .c = c};
    double latency_s;
    if (strcmp(root->name, "cluster") != 0) {
        mpp_diag_error(diag, root->loc, "expected <cluster>, found <%s>", root->name);
        return MPP_INVALID;
    }
    mpp_fields_known(diag, root, names, COUNT(names));
    mpp_fields_children(diag, root, inside, COUNT(inside));
    c->name = mpp_fields_string(diag, root, "name");
    const char *per = mpp_xml_get(root, "devices_per_node");
    if (!per || strcmp(per, "any") != 0)
        c->devices_per_node = (int)mpp_fields_whole(diag, root, "devices_per_node", 1, MPP_CLUSTER_MAX_DEVICES, -1);
    l.nodes = mpp_fields_whole(diag, root, "nodes", 1, MPP_CLUSTER_MAX_DEVICES, 0);
    read_device(&l);
    read_links(&l);
    read_network(&l, &latency_s);
    read_tuning(&l, latency_s);
    if (mpp_diag_errors(diag) == before)
        fill_nodes(&l, n_devices);
    if (mpp_diag_errors(diag) > before)
        return MPP_INVALID;
    *out = c;
    return MPP_OK;
}

const char *const *mpp_cluster_names(struct mpp_arena *arena, int *out_n)
{
    int n = 0;
    while (mpp_embedded_clusters[n].name)
        n++;
    const char **names = mpp_arena_array(arena, n + 1, const char *);
    for (int i = 0; i < n; i++)
        names[i] = mpp_embedded_clusters[i].name;
    *out_n = n;
    return names;
}

enum mpp_status mpp_cluster_parse(struct mpp_arena *arena, struct mpp_diag *diag, const char *name, const char *text,
                                  size_t size, int64_t n_devices, struct mpp_cluster **out)
{
    struct mpp_xml *root;
    MPP_TRY(mpp_xml_parse(arena, diag, name, text, size, &root));
    return read_cluster(arena, diag, root, n_devices, out);
}

/* `; did you mean "p4d"?` also where one of the two names goes on after the other ends. */
static const char *name_hint(struct mpp_arena *arena, struct mpp_diag *diag, const char *word,
                             const char *const *names, int n)
{
    for (int i = 0; i < n; i++) {
        size_t a = strlen(names[i]), b = strlen(word);
        if (b >= 3 && strncmp(names[i], word, a < b ? a : b) == 0)
            return mpp_arena_printf(arena, "; did you mean \"%s\"?", names[i]);
    }
    return mpp_diag_hint(diag, word, names, n);
}

/* The built-in cluster NAME, in any case of letters; the size after a '.' may be left out where one fits ("p4d"). */
static const struct mpp_embedded *find_builtin(const char *name)
{
    const struct mpp_embedded *found = NULL;
    size_t len = strlen(name);
    int n = 0;
    for (const struct mpp_embedded *e = mpp_embedded_clusters; e->name; e++) {
        if (strcasecmp(e->name, name) == 0)
            return e;
        if (len > 0 && strncasecmp(e->name, name, len) == 0 && e->name[len] == '.') {
            found = e;
            n++;
        }
    }
    return n == 1 ? found : NULL;
}

enum mpp_status mpp_cluster_load(struct mpp_arena *arena, struct mpp_diag *diag, const char *name_or_path,
                                 int64_t n_devices, struct mpp_cluster **out)
{
    const char *name = name_or_path;
    size_t len = strlen(name);
    if (strchr(name, '/') || (len > 4 && strcmp(name + len - 4, ".xml") == 0)) {
        struct mpp_xml *root;
        MPP_TRY(mpp_xml_read(arena, diag, name, &root));
        return read_cluster(arena, diag, root, n_devices, out);
    }
    const struct mpp_embedded *e = find_builtin(name);
    if (e)
        return mpp_cluster_parse(arena, diag, mpp_arena_printf(arena, "builtin:clusters/%s.xml", e->name), e->text, e->size,
                                 n_devices, out);
    int n;
    const char *const *names = mpp_cluster_names(arena, &n);
    mpp_diag_error(diag, (struct mpp_loc){NULL, 0}, "no cluster is called \"%s\"%s; known: %s (or give an XML file)",
                   name, name_hint(arena, diag, name, names, n), mpp_device_list(arena, names, n));
    return MPP_INVALID;
}

const char *mpp_cluster_describe(struct mpp_arena *arena, const struct mpp_cluster *c)
{
    int full = c->n_nodes * c->devices_per_node;
    const char *part = full == c->n_devices ? "" : mpp_arena_printf(arena, " (%d of %d used)", c->n_devices, full);
    if (c->n_nodes == 1)
        return mpp_arena_printf(arena, "%d x %s, one %s%s", c->n_devices, c->device.name, c->name, part);
    return mpp_arena_printf(arena, "%d x %s, %d x %s%s", c->n_devices, c->device.name, c->n_nodes, c->name, part);
}
