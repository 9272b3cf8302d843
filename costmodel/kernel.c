/* kernel.c - one device's work: GEMMs, memory passes and everything in between, as a roofline. */
#include "costmodel/costmodel.h"

int64_t mpp_cost_ps(double seconds)
{
    double ps = seconds * 1e12;
    if (!(ps > 0))
        return 0;
    if (ps >= 9.2e18)
        return INT64_MAX;
    int64_t whole = (int64_t)ps;
    return whole + ((double)whole < ps);
}

int64_t mpp_device_usable_bytes(const struct mpp_device *dev)
{
    return (int64_t)((double)dev->mem_bytes * dev->mem_usable);
}

/* Seconds to move BYTES. Between two points of the curve times, not efficiencies, are interpolated: that
 * keeps them rising with BYTES and needs no logarithm, whose last bit differs between C libraries. */
static double memory_traffic_s(const struct mpp_device *dev, double bytes)
{
    const struct mpp_memory_point *p = dev->memory_points;
    int n = dev->n_memory_points;
    if (!(bytes > 0))
        return 0;
    if (n == 0)
        return bytes / dev->mem_bytes_per_s;
    if (bytes <= p[0].bytes)
        return bytes / (p[0].efficiency * dev->mem_bytes_per_s);
    if (bytes >= p[n - 1].bytes)
        return bytes / (p[n - 1].efficiency * dev->mem_bytes_per_s);
    int i = 1;
    while (bytes > p[i].bytes)
        i++;
    double lo = p[i - 1].bytes / p[i - 1].efficiency, hi = p[i].bytes / p[i].efficiency;
    double at = (bytes - p[i - 1].bytes) / (p[i].bytes - p[i - 1].bytes);
    return (lo + (hi - lo) * at) / dev->mem_bytes_per_s;
}

/* The share of an aligned product's speed. Aligned are sizes whose rows start at multiples of the widest access;
 * the worst of the three sizes counts, whichever way the matrices lie. */
static double alignment(const struct mpp_gemm_curve *g, int64_t m, int64_t n, int64_t k, int bytes)
{
    int64_t sizes = (m > 1 ? m : 0) | (n > 1 ? n : 0) | (k > 1 ? k : 0);
    int64_t aligned = (sizes & -sizes) * bytes;
    double efficiency = 1;
    for (int i = g->n_aligns - 1; i >= 0; i--) {
        efficiency = g->aligns[i].efficiency;
        if (aligned == 0 || aligned >= g->aligns[i].bytes)
            break;
    }
    return efficiency;
}

static double up(int64_t size, int tile)
{
    return (double)((size + tile - 1) / tile);
}

/* The cheapest tile's time. In between quantised waves and none at all lie devices whose units do not all start
 * and end together, and libraries that split the sum to fill them. */
static double tiled_s(const struct mpp_gemm_curve *g, double peak, double b, int64_t m, int64_t n, double k)
{
    double best = 0;
    for (int i = 0; i < g->n_tiles; i++) {
        const struct mpp_gemm_tile *t = &g->tiles[i];
        double waves = b * up(m, t->m) * up(n, t->n) / g->units;
        double whole = waves < 9e15 ? (double)(int64_t)waves : waves;
        if (whole < waves)
            whole += 1;
        if (waves < 1)
            waves = 1;
        waves = g->quantised * whole + (1 - g->quantised) * waves;
        double s = waves * 2 * t->m * t->n * (k + g->half_k) * g->units / (peak * g->efficiency * t->efficiency);
        if (i == 0 || s < best)
            best = s;
    }
    return best;
}

double mpp_cost_product_s(const struct mpp_device *dev, enum mpp_precision precision, int64_t batch, int64_t m,
                          int64_t n, int64_t k)
{
    static const int sizes[MPP_PRECISION_COUNT] = {8, 4, 4, 2, 2};
    if (batch <= 0 || m <= 0 || n <= 0 || k <= 0)
        return dev->launch_s;
    const struct mpp_gemm_curve *g = &dev->gemm;
    double b = (double)batch, dm = (double)m, dn = (double)n, dk = (double)k, compute_s;
    double peak = dev->peak_flops_per_s[precision];
    if (!(peak > 0))
        peak = dev->peak_flops_per_s[MPP_PRECISION_F32];
    else if (precision > MPP_PRECISION_F32)
        peak *= alignment(g, m, n, k, sizes[precision]);
    if (g->units > 0) {
        compute_s = tiled_s(g, peak, b, m, n, dk);
    } else {
        /* 2bmnk over the curve, with the sizes cancelled: rises with each of them. */
        double outputs = b * (dm + g->half_m) * (dn + g->half_n) + g->half_outputs;
        compute_s = 2 * outputs * (dk + g->half_k) / (g->efficiency * peak);
    }
    double memory_s = memory_traffic_s(dev, b * (dm * dk + dk * dn + dm * dn) * sizes[precision]);
    return dev->launch_s + (compute_s > memory_s ? compute_s : memory_s);
}

double mpp_cost_gemm_s(const struct mpp_device *dev, int64_t batch, int64_t m, int64_t n, int64_t k, int elem_size)
{
    enum mpp_precision half = dev->peak_flops_per_s[MPP_PRECISION_BF16] > 0 ? MPP_PRECISION_BF16 : MPP_PRECISION_F16;
    return mpp_cost_product_s(dev, elem_size == 8 ? MPP_PRECISION_F64 : elem_size == 2 ? half : MPP_PRECISION_F32,
                              batch, m, n, k);
}

double mpp_cost_kernel_s(const struct mpp_device *dev, double flops, double bytes)
{
    double compute_s = flops > 0 ? flops / (dev->peak_flops_per_s[MPP_PRECISION_F32] * dev->vector_efficiency) : 0;
    double memory_s = memory_traffic_s(dev, bytes);
    return dev->launch_s + (compute_s > memory_s ? compute_s : memory_s);
}

double mpp_cost_memory_s(const struct mpp_device *dev, double bytes)
{
    return dev->launch_s + memory_traffic_s(dev, bytes);
}

int64_t mpp_cost_gemm(const struct mpp_device *dev, int64_t batch, int64_t m, int64_t n, int64_t k, int elem_size)
{
    return mpp_cost_ps(mpp_cost_gemm_s(dev, batch, m, n, k, elem_size));
}

int64_t mpp_cost_kernel(const struct mpp_device *dev, double flops, double bytes)
{
    return mpp_cost_ps(mpp_cost_kernel_s(dev, flops, bytes));
}

int64_t mpp_cost_memory(const struct mpp_device *dev, double bytes)
{
    return mpp_cost_ps(mpp_cost_memory_s(dev, bytes));
}
