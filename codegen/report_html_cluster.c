/* report_html_cluster.c - of report.html: the cluster, what each mesh axis of a stage runs over, and where figures are from. */
#include <string.h>

#include "codegen/report_html.h"
#include "planner/reshard.h"

static void write_links(struct mpp_html *h, const struct mpp_cluster *c)
{
    static const char *const kind[] = {"shared", "switch", "mesh", "pcie"};
    mpp_html_text(h, "kind", kind[c->kind]);
    if (c->kind == MPP_LINK_SWITCH) {
        mpp_html_open(h, "rates", '[');
        for (int i = 0; i < c->n_rates; i++) {
            mpp_html_open(h, NULL, '[');
            mpp_html_int(h, NULL, c->rates[i].devices);
            mpp_html_double(h, NULL, c->rates[i].bytes_per_s);
            mpp_html_double(h, NULL, c->rates[i].all_reduce_bytes_per_s);
            mpp_html_close(h, ']');
        }
        mpp_html_close(h, ']');
        return;
    }
    mpp_html_double(h, "link_bytes_per_s", c->link_bytes_per_s);
    if (c->kind != MPP_LINK_MESH) {
        mpp_html_double(h, "total_bytes_per_s", c->total_bytes_per_s);
        return;
    }
    mpp_html_double(h, "pcie_bytes_per_s", c->pcie_bytes_per_s);
    mpp_html_open(h, "links", '[');
    for (int i = 0; i < c->devices_per_node; i++) {
        mpp_html_open(h, NULL, '[');
        for (int k = 0; k < c->devices_per_node; k++)
            mpp_html_int(h, NULL, c->links[i][k]);
        mpp_html_close(h, ']');
    }
    mpp_html_close(h, ']');
}

static void write_device(struct mpp_html *h, const struct mpp_device *d)
{
    static const char *const name[MPP_PRECISION_COUNT] = {"f64", "f32", "tf32", "f16", "bf16"};
    mpp_html_open(h, "device", '{');
    mpp_html_text(h, "name", d->name);
    mpp_html_int(h, "mem_bytes", d->mem_bytes);
    mpp_html_int(h, "usable_bytes", mpp_device_usable_bytes(d));
    mpp_html_double(h, "mem_bytes_per_s", d->mem_bytes_per_s);
    mpp_html_double(h, "launch_s", d->launch_s);
    mpp_html_open(h, "peak_flops_per_s", '{');
    for (int i = 0; i < MPP_PRECISION_COUNT; i++)
        if (d->peak_flops_per_s[i] > 0)
            mpp_html_double(h, name[i], d->peak_flops_per_s[i]);
    mpp_html_close(h, '}');
    mpp_html_close(h, '}');
}

/* Fields: file, line, element, figures, source (or null). */
static void write_figures(struct mpp_html *h, const struct mpp_cluster *c)
{
    int n;
    const struct mpp_figure *f = mpp_cluster_figures(h->r->arena, c, &n);
    mpp_html_open(h, "figures", '[');
    for (int i = 0; i < n; i++) {
        mpp_html_open(h, NULL, '[');
        mpp_html_string(h, NULL, f[i].file);
        mpp_html_int(h, NULL, f[i].line);
        mpp_html_string(h, NULL, f[i].what);
        mpp_html_string(h, NULL, f[i].value);
        mpp_html_string(h, NULL, f[i].source ? f[i].source : "");
        mpp_html_close(h, ']');
    }
    mpp_html_close(h, ']');
}

void mpp_html_cluster(struct mpp_html *h)
{
    const struct mpp_cluster *c = h->r->cluster;
    mpp_html_open(h, "cluster", '{');
    mpp_html_text(h, "name", c->name);
    mpp_html_text(h, "words", mpp_cluster_describe(h->r->arena, c));
    mpp_html_int(h, "devices", c->n_devices);
    mpp_html_int(h, "devices_per_node", c->devices_per_node);
    mpp_html_int(h, "nodes", c->n_nodes);
    mpp_html_int(h, "nics", c->nics);
    mpp_html_double(h, "nic_bytes_per_s", c->nic_bytes_per_s);
    mpp_html_bool(h, "network_reduces", c->network_reduces);
    write_links(h, c);
    mpp_html_close(h, '}');
    write_device(h, &c->device);
    write_figures(h, c);
}

/* Groups of an axis: devices that lie STRIDE apart. The rates are those of all its groups at work at once; 0: not used. */
void mpp_html_axes(struct mpp_html *h)
{
    const struct report *r = h->r;
    const struct mpp_mesh *m = r->mesh;
    mpp_html_open(h, "mesh", '[');
    for (int a = 0; a < m->n_axes; a++) {
        struct mpp_groups groups;
        int64_t stride = 1;
        mpp_groups_init(r->cluster, m, r->stage->first_device, 1u << a, &groups);
        for (int k = a + 1; k < m->n_axes; k++)
            stride *= m->size[k];
        mpp_html_open(h, NULL, '{');
        mpp_html_text(h, "axis", m->name[a]);
        mpp_html_int(h, "size", m->size[a]);
        mpp_html_int(h, "stride", stride);
        mpp_html_text(h, "use", mpp_report_axis(r, a));
        mpp_html_int(h, "nodes", groups.nodes);
        mpp_html_int(h, "local", groups.local);
        mpp_html_double(h, "bytes_per_s", groups.local > 1 ? groups.bytes_per_s : 0);
        mpp_html_double(h, "network_bytes_per_s", groups.nodes > 1 ? groups.network_bytes_per_s : 0);
        mpp_html_close(h, '}');
    }
    mpp_html_close(h, ']');
}
