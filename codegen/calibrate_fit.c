/* calibrate_fit.c - from measurements to the cost model's figures. What is compared with a measurement is what costmodel/
 * says for the same kernel, and the distance is the logarithm of the ratio, so that small and large sizes count alike. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/calibrate.h"
#include "ir/op.h"

enum { N_FIGURES = 5 };

int mpp_calibrate_read(struct mpp_arena *arena, const char *text, struct mpp_calibrate_line **out)
{
    size_t cap = 0;
    int n = 0;
    *out = NULL;
    for (const char *at = text; *at; n++) {
        const char *end = strchr(at, '\n');
        if (!end)
            return -1;
        *out = mpp_arena_grow(arena, *out, &cap, (size_t)n + 1, sizeof **out);
        struct mpp_calibrate_line *l = &(*out)[n];
        *l = (struct mpp_calibrate_line){0};
        char *words = mpp_arena_strndup(arena, at, (size_t)(end - at)), *rest = NULL, *last = NULL;
        char *word = strtok_r(words, " ", &rest);
        if (!word || strlen(word) >= sizeof l->name)
            return -1;
        strcpy(l->name, word);
        while ((word = strtok_r(NULL, " ", &rest)) != NULL) {
            if (last && l->n_sizes < MPP_CALIBRATE_SIZES)
                l->size[l->n_sizes++] = strtoll(last, NULL, 10);
            last = word;
        }
        l->seconds = last ? strtod(last, NULL) : 0;
        if (!(l->seconds > 0 && l->seconds < 1e6))
            return -1;
        at = end + 1;
    }
    return n;
}

static bool is(const struct mpp_calibrate_line *l, const char *name)
{
    return !strcmp(l->name, name);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_size);
    return n ? x[n / 2] : 0;
}

/* ---- matrix products ------------------------------------------------------------------------- */

struct products {
    const struct mpp_calibrate_line *line;
    int n;
    struct mpp_device *device;
};

static void set_figures(struct mpp_gemm_curve *g, const double x[N_FIGURES])
{
    g->efficiency = x[0];
    g->half_m = x[1];
    g->half_n = x[2];
    g->half_k = x[3];
    g->half_outputs = x[4];
}

/* The sum of |log(modelled / measured)| over all products: a median-like fit, which one odd shape does not bend. */
static double distance(const struct products *p, const double x[N_FIGURES])
{
    double sum = 0;
    set_figures(&p->device->gemm, x);
    for (int i = 0; i < p->n; i++) {
        const struct mpp_calibrate_line *l = &p->line[i];
        if (is(l, "gemm"))
            sum += fabs(log(mpp_cost_product_s(p->device, MPP_PRECISION_F32, 1, l->size[0], l->size[1], l->size[2]) / l->seconds));
    }
    return sum;
}

/* Steps along one figure at a time, shorter and shorter. */
static void fit_products(const struct products *p)
{
    double x[N_FIGURES] = {0.9, 8, 8, 8, 100}, best = distance(p, x);
    for (double step = 2; step > 1.005; step = sqrt(step))
        for (bool better = true; better;) {
            better = false;
            for (int k = 0; k < N_FIGURES; k++)
                for (int down = 0; down < 2; down++) {
                    double before = x[k], now;
                    x[k] = down ? x[k] / step : x[k] * step;
                    if (k > 0 && x[k] < 0.01)
                        x[k] = 0.01;
                    if (k == 0 && x[k] > 1)
                        x[k] = 1;
                    now = distance(p, x);
                    if (now < best - 1e-9) {
                        best = now;
                        better = true;
                    } else {
                        x[k] = before;
                    }
                }
        }
    set_figures(&p->device->gemm, x);
}

static bool fit_gemm(const struct mpp_calibrate_line *line, int n, struct mpp_calibrate_result *out, double *errors)
{
    double fastest = 0;
    for (int i = 0; i < n; i++)
        if (is(&line[i], "gemm") && line[i].n_sizes == 4) {
            double rate = 2.0 * (double)line[i].size[0] * (double)line[i].size[1] * (double)line[i].size[2] / line[i].seconds;
            fastest = rate > fastest ? rate : fastest;
            out->n_gemms++;
        }
    if (out->n_gemms < 10)
        return false;
    out->device.peak_flops_per_s[MPP_PRECISION_F32] = 1.1 * fastest;
    fit_products(&(struct products){line, n, &out->device});
    int k = 0;
    for (int i = 0; i < n; i++)
        if (is(&line[i], "gemm"))
            errors[k++] = fabs(mpp_cost_product_s(&out->device, MPP_PRECISION_F32, 1, line[i].size[0], line[i].size[1],
                                                  line[i].size[2]) / line[i].seconds - 1);
    out->gemm_error = median(errors, k);
    return true;
}

/* ---- memory and vectors ------------------------------------------------------------------------ */

/* Each y += a x over N floats moves 12 N bytes; the largest pass is the memory's speed, smaller ones show the caches. */
static bool fit_memory(struct mpp_arena *arena, const struct mpp_calibrate_line *line, int n, struct mpp_calibrate_result *out)
{
    struct mpp_memory_point *point = mpp_arena_array(arena, n, struct mpp_memory_point);
    double *seconds = mpp_arena_array(arena, n, double);
    int k = 0;
    for (int i = 0; i < n; i++) {
        if (!is(&line[i], "memory") || line[i].n_sizes != 1)
            continue;
        point[k].bytes = 12.0 * (double)line[i].size[0];
        if (k > 0 && point[k].bytes <= point[k - 1].bytes)
            return false;
        seconds[k] = line[i].seconds - out->device.launch_s;
        if (k > 0 && seconds[k] < 1.001 * seconds[k - 1])
            seconds[k] = 1.001 * seconds[k - 1];
        if (!(seconds[k] > 0))
            seconds[k] = line[i].seconds;
        k++;
    }
    if (k < 3)
        return false;
    out->device.mem_bytes_per_s = point[k - 1].bytes / seconds[k - 1];
    for (int i = 0; i < k; i++)
        point[i].efficiency = point[i].bytes / seconds[i] / out->device.mem_bytes_per_s;
    out->device.memory_points = point;
    out->device.n_memory_points = out->n_passes = k;
    return true;
}

/* FLOPs that the planner counts for a kernel of the runtime, and the bytes that it moves. */
static double flops_of(const struct mpp_calibrate_line *l, double *out_bytes)
{
    double n = (double)l->size[0];
    double tokens = n * (double)l->size[1], width = (double)l->size[2] * (double)l->size[3];
    *out_bytes = 8 * n;
    if (is(l, "gelu"))
        return n * mpp_op_info(MPP_OP_GELU)->flops_per_point;
    if (is(l, "gelu_grad"))
        return n * mpp_op_info(MPP_OP_GELU_GRAD)->flops_per_point;
    *out_bytes = 8 * tokens;
    if (is(l, "layernorm"))
        return tokens * mpp_op_info(MPP_OP_LAYERNORM)->flops_per_point;
    *out_bytes = 16 * tokens * width;
    double pairs = tokens * (double)l->size[1] * 2 * width; /* keys, and both head sizes */
    if (is(l, "attention"))
        return pairs * mpp_op_info(MPP_OP_ATTENTION)->flops_per_point;
    *out_bytes *= 2;
    return is(l, "attention_grad") ? pairs * mpp_op_info(MPP_OP_ATTENTION_GRAD)->flops_per_point : 0;
}

/* Attention, GELU and norms share one figure: the rate in the middle. */
static bool fit_vectors(const struct mpp_calibrate_line *line, int n, struct mpp_calibrate_result *out, double *scratch)
{
    int k = 0;
    double bytes;
    for (int i = 0; i < n; i++) {
        double flops = flops_of(&line[i], &bytes);
        if (flops > 0)
            scratch[k++] = flops / line[i].seconds;
    }
    if (k < 3)
        return false;
    out->n_vectors = k;
    double share = median(scratch, k) / out->device.peak_flops_per_s[MPP_PRECISION_F32];
    out->device.vector_efficiency = share < 1 ? share : 1;
    k = 0;
    for (int i = 0; i < n; i++) {
        double flops = flops_of(&line[i], &bytes);
        if (flops > 0)
            scratch[k++] = fabs(mpp_cost_kernel_s(&out->device, flops, bytes) / line[i].seconds - 1);
    }
    out->vector_error = median(scratch, k);
    return true;
}

/* ---- all-reduces -------------------------------------------------------------------------------- */

/* Of RANKS: the time of the least, and the rate that fits the rest best. */
static bool fit_ranks(const struct mpp_calibrate_line *line, int n, int64_t ranks, double *scratch, double *out_small_s,
                      double *out_rate)
{
    int k = 0;
    *out_small_s = 0;
    for (int i = 0; i < n; i++) {
        if (!is(&line[i], "all_reduce") || line[i].n_sizes != 2 || line[i].size[0] != ranks)
            continue;
        if (*out_small_s == 0 || line[i].seconds < *out_small_s)
            *out_small_s = line[i].seconds;
        double moved = 2.0 * (double)(ranks - 1) / (double)ranks * (double)line[i].size[1], s = line[i].seconds - *out_small_s;
        if (line[i].size[1] >= 1 << 18 && s > 0)
            scratch[k++] = moved / s;
    }
    if (k == 0)
        return false;
    *out_rate = median(scratch, k);
    return true;
}

static bool fit_collectives(const struct mpp_calibrate_line *line, int n, struct mpp_calibrate_result *out, double *scratch)
{
    double two_s, four_s, two, four;
    if (!fit_ranks(line, n, 2, scratch, &two_s, &two) || !fit_ranks(line, n, 4, scratch, &four_s, &four))
        return false;
    /* base + 2 (n - 1) steps */
    out->step_s = four_s > two_s ? (four_s - two_s) / 4 : 0;
    out->base_s = two_s - 2 * out->step_s;
    if (out->base_s < 0) {
        out->base_s = 0;
        out->step_s = four_s / 6;
    }
    out->link_bytes_per_s = two > four ? two : four;
    out->total_bytes_per_s = 4 * four;
    int k = 0;
    for (int i = 0; i < n; i++)
        if (is(&line[i], "all_reduce")) {
            double ranks = (double)line[i].size[0], rate = out->total_bytes_per_s / ranks;
            rate = rate < out->link_bytes_per_s ? rate : out->link_bytes_per_s;
            double s = out->base_s + 2 * (ranks - 1) * (out->step_s + (double)line[i].size[1] / ranks / rate);
            scratch[k++] = fabs(s / line[i].seconds - 1);
        }
    out->n_collectives = k;
    out->collective_error = median(scratch, k);
    return true;
}

bool mpp_calibrate_fit(struct mpp_arena *arena, const struct mpp_calibrate_line *line, int n, struct mpp_calibrate_result *out)
{
    double *scratch = mpp_arena_array(arena, n + 1, double);
    *out = (struct mpp_calibrate_result){0};
    for (int i = 0; i < n; i++)
        if (is(&line[i], "launch"))
            out->device.launch_s = line[i].seconds;
    return out->device.launch_s > 0 && fit_memory(arena, line, n, out) && fit_gemm(line, n, out, scratch)
           && fit_vectors(line, n, out, scratch) && fit_collectives(line, n, out, scratch);
}
