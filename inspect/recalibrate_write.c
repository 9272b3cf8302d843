/* recalibrate_write.c - a cluster as XML (docs/clusters.md), every figure to its last digit. */
#include <string.h>

#include "inspect/recalibrate.h"

static void put_attr(FILE *out, const char *name, const char *text)
{
    fprintf(out, " %s=\"", name);
    for (; *text; text++)
        switch (*text) {
        case '&': fputs("&amp;", out); break;
        case '<': fputs("&lt;", out); break;
        case '"': fputs("&quot;", out); break;
        default: fputc((unsigned char)*text < 0x20 ? ' ' : *text, out);
        }
    fputc('"', out);
}

static void put_number(FILE *out, const char *name, double v)
{
    fprintf(out, " %s=\"%.17g\"", name, v);
}

/* Where 0 means that there is none. */
static void put_bound(FILE *out, const char *name, double v)
{
    if (v > 0)
        put_number(out, name, v);
}

static void put_gemm(FILE *out, const struct mpp_gemm_curve *g)
{
    fputs("    <gemm", out);
    put_number(out, "efficiency", g->efficiency);
    put_number(out, "half_m", g->half_m);
    put_number(out, "half_n", g->half_n);
    put_number(out, "half_k", g->half_k);
    put_number(out, "half_outputs", g->half_outputs);
    if (g->units > 0)
        fprintf(out, " units=\"%d\"", g->units);
    put_number(out, "quantised", g->quantised);
    fputs(">\n", out);
    for (int i = 0; i < g->n_tiles; i++) {
        fprintf(out, "      <tile m=\"%d\" n=\"%d\"", g->tiles[i].m, g->tiles[i].n);
        put_number(out, "efficiency", g->tiles[i].efficiency);
        fputs("/>\n", out);
    }
    for (int i = 0; i < g->n_aligns; i++) {
        fprintf(out, "      <align bytes=\"%d\"", g->aligns[i].bytes);
        put_number(out, "efficiency", g->aligns[i].efficiency);
        fputs("/>\n", out);
    }
    fputs("    </gemm>\n", out);
}

static void put_device(FILE *out, const struct mpp_device *d, const char *source)
{
    static const char *const precisions[MPP_PRECISION_COUNT] = {"f64", "f32", "tf32", "f16", "bf16"};
    fputs("  <device", out);
    put_attr(out, "name", d->name);
    if (d->arch)
        put_attr(out, "arch", d->arch);
    put_attr(out, "source", source);
    fprintf(out, ">\n    <memory bytes=\"%lld\"", (long long)d->mem_bytes);
    put_number(out, "usable", d->mem_usable);
    if (d->context_bytes > 0)
        fprintf(out, " context_bytes=\"%lld\"", (long long)d->context_bytes);
    put_number(out, "bytes_per_s", d->mem_bytes_per_s);
    fputs(">\n", out);
    for (int i = 0; i < d->n_memory_points; i++) {
        fputs("      <point", out);
        put_number(out, "bytes", d->memory_points[i].bytes);
        put_number(out, "efficiency", d->memory_points[i].efficiency);
        fputs("/>\n", out);
    }
    fputs("    </memory>\n", out);
    for (int i = 0; i < MPP_PRECISION_COUNT; i++)
        if (d->peak_flops_per_s[i] > 0) {
            fprintf(out, "    <peak precision=\"%s\"", precisions[i]);
            put_number(out, "flops_per_s", d->peak_flops_per_s[i]);
            fputs("/>\n", out);
        }
    fputs("    <kernel", out);
    put_number(out, "launch_s", d->launch_s);
    put_number(out, "dispatch_s", d->dispatch_s);
    put_number(out, "dispatch_pair_s", d->dispatch_pair_s);
    put_number(out, "dispatch_batch_s", d->dispatch_batch_s);
    put_number(out, "vector_efficiency", d->vector_efficiency);
    fputs("/>\n", out);
    put_gemm(out, &d->gemm);
    fputs("  </device>\n", out);
}

static void put_pcie(FILE *out, double each, double all)
{
    fputs("  <pcie", out);
    put_number(out, "bytes_per_s", each);
    put_number(out, "total_bytes_per_s", all);
    fputs("/>\n", out);
}

static void put_switch(FILE *out, const struct mpp_cluster *c)
{
    fputs("  <switch", out);
    put_bound(out, "send_bytes_per_s", c->send_bytes_per_s);
    fputs(">\n", out);
    for (int i = 0; i < c->n_rates; i++) {
        fprintf(out, "    <rate devices=\"%d\"", c->rates[i].devices);
        put_number(out, "bytes_per_s", c->rates[i].bytes_per_s);
        put_number(out, "all_reduce_bytes_per_s", c->rates[i].all_reduce_bytes_per_s);
        fputs("/>\n", out);
    }
    fputs("  </switch>\n", out);
}

static void put_mesh(FILE *out, const struct mpp_cluster *c)
{
    fputs("  <mesh", out);
    put_number(out, "link_bytes_per_s", c->link_bytes_per_s);
    fputs(">\n", out);
    for (int i = 0; i < c->devices_per_node; i++) {
        fputs("    <row links=\"", out);
        for (int k = 0; k < c->devices_per_node; k++)
            fprintf(out, "%s%d", k ? " " : "", c->links[i][k]);
        fputs("\"/>\n", out);
    }
    fputs("  </mesh>\n", out);
    put_pcie(out, c->pcie_bytes_per_s, c->pcie_total_bytes_per_s);
}

static void put_links(FILE *out, const struct mpp_cluster *c)
{
    switch (c->kind) {
    case MPP_LINK_SWITCH:
        put_switch(out, c);
        break;
    case MPP_LINK_MESH:
        put_mesh(out, c);
        break;
    case MPP_LINK_PCIE:
        put_pcie(out, c->link_bytes_per_s, c->total_bytes_per_s);
        break;
    case MPP_LINK_SHARED:
        fputs("  <shared", out);
        put_number(out, "bytes_per_s", c->link_bytes_per_s);
        put_number(out, "total_bytes_per_s", c->total_bytes_per_s);
        if (c->cores > 0)
            fprintf(out, " cores=\"%d\"", c->cores);
        fputs("/>\n", out);
        break;
    }
}

static void put_protocols(FILE *out, const struct mpp_cluster *c)
{
    static const char *const algorithms[] = {"ring", "tree", "nvls", "collnet", "exchange"};
    for (int i = 0; i < c->n_protocols; i++) {
        const struct mpp_protocol *p = &c->protocols[i];
        fputs("  <protocol", out);
        put_attr(out, "name", p->name);
        fprintf(out, " algorithm=\"%s\"", algorithms[p->algorithm]);
        put_number(out, "base_s", p->base_s);
        put_number(out, "step_s", p->step_s);
        put_number(out, "network_step_s", p->network_step_s);
        put_number(out, "efficiency", p->efficiency);
        put_number(out, "network_efficiency", p->network_efficiency);
        put_bound(out, "most_bytes_per_s", p->most_bytes_per_s);
        put_bound(out, "network_most_bytes_per_s", p->network_most_bytes_per_s);
        fputs("/>\n", out);
    }
}

void mpp_recalibrate_write(FILE *out, const struct mpp_cluster *c, const char *source)
{
    int nodes = c->any_per_node ? 1 : c->max_devices / c->devices_per_node;
    bool bounded = c->any_per_node || (c->nics > 0 && c->max_devices < MPP_CLUSTER_MAX_DEVICES);
    fputs("<cluster", out);
    put_attr(out, "name", c->name);
    if (c->any_per_node)
        fputs(" devices_per_node=\"any\"", out);
    else
        fprintf(out, " devices_per_node=\"%d\"", c->devices_per_node);
    if (bounded)
        fprintf(out, " nodes=\"%d\"", nodes);
    if (c->channels > 0)
        fprintf(out, " channels=\"%d\"", c->channels);
    put_attr(out, "source", source);
    fputs(">\n", out);
    put_device(out, c->cores > 0 ? &c->core : &c->device, source);
    put_links(out, c);
    if (c->nics > 0) {
        fprintf(out, "  <network nics=\"%d\"", c->nics);
        put_number(out, "bytes_per_s", c->nic_bytes_per_s);
        put_number(out, "latency_s", 0);
        put_number(out, "device_bytes_per_s", c->device_network_bytes_per_s);
        fprintf(out, " reduces=\"%s\"/>\n", c->network_reduces ? "true" : "false");
    }
    put_protocols(out, c);
    fputs("</cluster>\n", out);
}
