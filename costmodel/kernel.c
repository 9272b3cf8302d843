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

/* The fastest unit that computes in elements of ELEM_SIZE bytes; f32 where there is none. */
static double gemm_peak(const struct mpp_device *dev, int elem_size)
{
    const double *peak = dev->peak_flops_per_s;
    double best = 0;
    if (elem_size == 8)
        best = peak[MPP_PRECISION_F64];
    else if (elem_size == 2)
        best = peak[MPP_PRECISION_BF16] > 0 ? peak[MPP_PRECISION_BF16] : peak[MPP_PRECISION_F16];
    return best > 0 ? best : peak[MPP_PRECISION_F32];
}

double mpp_cost_gemm_s(const struct mpp_device *dev, int64_t batch, int64_t m, int64_t n, int64_t k, int elem_size)
{
    if (batch <= 0 || m <= 0 || n <= 0 || k <= 0)
        return dev->launch_s;
    const struct mpp_gemm_curve *g = &dev->gemm;
    double b = (double)batch, dm = (double)m, dn = (double)n, dk = (double)k;
    /* 2bmnk over the curve, with the sizes cancelled: rises with each of them. */
    double outputs = b * (dm + g->half_m) * (dn + g->half_n) + g->half_outputs;
    double work = 2 * outputs * (dk + g->half_k);
    double compute_s = work / (g->efficiency * gemm_peak(dev, elem_size));
    double memory_s = memory_traffic_s(dev, b * (dm * dk + dk * dn + dm * dn) * elem_size);
    return dev->launch_s + (compute_s > memory_s ? compute_s : memory_s);
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
