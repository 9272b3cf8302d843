/* device.c - reading devices. */
#include "costmodel/device.h"

#include <string.h>

#include "costmodel/fields.h"
#include "costmodel/embed.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static const char *const precision_names[MPP_PRECISION_COUNT] = {"f64", "f32", "tf32", "f16", "bf16"};

static void read_memory_points(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_xml *memory,
                               struct mpp_device *out)
{
    static const char *const names[] = {"bytes", "efficiency", "source"};
    int n = 0;
    for (const struct mpp_xml *c = memory->first; c; c = c->next)
        n++;
    struct mpp_memory_point *points = mpp_arena_array(arena, n, struct mpp_memory_point);
    int i = 0;
    for (const struct mpp_xml *c = memory->first; c; c = c->next) {
        if (strcmp(c->name, "point") != 0)
            continue;
        struct mpp_memory_point p;
        mpp_fields_known(diag, c, names, COUNT(names));
        p.bytes = mpp_fields_number(diag, c, "bytes", MPP_NUMBER_POSITIVE, MPP_FIELDS_REQUIRED);
        p.efficiency = mpp_fields_number(diag, c, "efficiency", MPP_NUMBER_POSITIVE, MPP_FIELDS_REQUIRED);
        if (i > 0 && p.bytes <= points[i - 1].bytes)
            mpp_diag_error(diag, c->loc, "<point> of %g bytes after one of %g; points ascend", p.bytes,
                           points[i - 1].bytes);
        else if (i > 0 && p.bytes / p.efficiency < points[i - 1].bytes / points[i - 1].efficiency)
            mpp_diag_error(diag, c->loc, "<point> of %g bytes would take less time than that of %g bytes; "
                           "efficiency must not grow faster than the bytes", p.bytes, points[i - 1].bytes);
        points[i++] = p;
    }
    out->n_memory_points = i;
    out->memory_points = points;
}

static void read_memory(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_xml *device,
                        struct mpp_device *out)
{
    static const char *const names[] = {"bytes", "usable", "context_bytes", "bytes_per_s", "source"};
    static const char *const inside[] = {"point"};
    const struct mpp_xml *memory = mpp_fields_child(diag, device, "memory", 1);
    if (!memory)
        return;
    mpp_fields_known(diag, memory, names, COUNT(names));
    mpp_fields_children(diag, memory, inside, COUNT(inside));
    double bytes = mpp_fields_number(diag, memory, "bytes", MPP_NUMBER_POSITIVE, MPP_FIELDS_REQUIRED);
    if (bytes >= 9e18) {
        mpp_diag_error(diag, memory->loc, "<memory bytes=\"%s\"> is too large", mpp_xml_get(memory, "bytes"));
        bytes = 1;
    }
    out->mem_bytes = (int64_t)bytes;
    out->mem_usable = mpp_fields_number(diag, memory, "usable", MPP_NUMBER_FRACTION, 1);
    double context = mpp_fields_number(diag, memory, "context_bytes", MPP_NUMBER_NOT_NEGATIVE, 0);
    if (context >= bytes)
        mpp_diag_error(diag, memory->loc, "<memory context_bytes=\"%s\"> leaves nothing of the memory", mpp_xml_get(memory, "context_bytes"));
    else
        out->context_bytes = (int64_t)context;
    out->mem_bytes_per_s = mpp_fields_number(diag, memory, "bytes_per_s", MPP_NUMBER_POSITIVE, MPP_FIELDS_REQUIRED);
    read_memory_points(arena, diag, memory, out);
}

/* "sm_80": it is written into Makefiles. NULL: there is none. */
static const char *read_arch(struct mpp_diag *diag, const struct mpp_xml *device)
{
    const char *arch = mpp_xml_get(device, "arch");
    if (arch && (strncmp(arch, "sm_", 3) != 0 || strlen(arch) < 5 || strlen(arch) > 6 || strspn(arch + 3, "0123456789") != strlen(arch + 3))) {
        mpp_diag_error(diag, device->loc, "<device arch=\"%s\"> is no GPU architecture; write one as nvcc does: \"sm_80\"", arch);
        return NULL;
    }
    return arch;
}

static void read_peaks(struct mpp_diag *diag, const struct mpp_xml *device, struct mpp_device *out)
{
    static const char *const names[] = {"precision", "flops_per_s", "source"};
    for (const struct mpp_xml *c = device->first; c; c = c->next) {
        if (strcmp(c->name, "peak") != 0)
            continue;
        mpp_fields_known(diag, c, names, COUNT(names));
        const char *precision = mpp_fields_string(diag, c, "precision");
        double peak = mpp_fields_number(diag, c, "flops_per_s", MPP_NUMBER_POSITIVE, MPP_FIELDS_REQUIRED);
        int i = 0;
        while (precision && i < MPP_PRECISION_COUNT && strcmp(precision, precision_names[i]) != 0)
            i++;
        if (!precision)
            continue;
        if (i == MPP_PRECISION_COUNT)
            mpp_diag_error(diag, c->loc, "<peak precision=\"%s\"> is none of f64, f32, tf32, f16, bf16%s", precision,
                           mpp_diag_hint(diag, precision, precision_names, MPP_PRECISION_COUNT));
        else if (out->peak_flops_per_s[i] > 0)
            mpp_diag_error(diag, c->loc, "a second <peak precision=\"%s\">", precision);
        else
            out->peak_flops_per_s[i] = peak;
    }
    if (!(out->peak_flops_per_s[MPP_PRECISION_F32] > 0))
        mpp_diag_error(diag, device->loc, "<device> needs a <peak precision=\"f32\">");
}

/* The <tile>s and <align>s of a <gemm>. */
static void read_tiles(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_xml *gemm,
                       struct mpp_gemm_curve *g)
{
    static const char *const tile_names[] = {"m", "n", "efficiency", "source"};
    static const char *const align_names[] = {"bytes", "efficiency", "source"};
    int n = 0;
    for (const struct mpp_xml *c = gemm->first; c; c = c->next)
        n++;
    struct mpp_gemm_tile *tiles = mpp_arena_array(arena, n, struct mpp_gemm_tile);
    struct mpp_gemm_align *aligns = mpp_arena_array(arena, n, struct mpp_gemm_align);
    for (const struct mpp_xml *c = gemm->first; c; c = c->next) {
        if (strcmp(c->name, "tile") == 0) {
            struct mpp_gemm_tile *t = &tiles[g->n_tiles++];
            mpp_fields_known(diag, c, tile_names, COUNT(tile_names));
            t->m = (int)mpp_fields_whole(diag, c, "m", 1, 65536, -1);
            t->n = (int)mpp_fields_whole(diag, c, "n", 1, 65536, -1);
            t->efficiency = mpp_fields_number(diag, c, "efficiency", MPP_NUMBER_FRACTION, 1);
        } else if (strcmp(c->name, "align") == 0) {
            struct mpp_gemm_align *a = &aligns[g->n_aligns++];
            mpp_fields_known(diag, c, align_names, COUNT(align_names));
            a->bytes = (int)mpp_fields_whole(diag, c, "bytes", 1, 65536, -1);
            a->efficiency = mpp_fields_number(diag, c, "efficiency", MPP_NUMBER_FRACTION, MPP_FIELDS_REQUIRED);
            if (g->n_aligns > 1 && (a->bytes <= a[-1].bytes || a->efficiency < a[-1].efficiency))
                mpp_diag_error(diag, c->loc, "<align> of %d bytes after one of %d; bytes and efficiency ascend",
                               a->bytes, a[-1].bytes);
        }
    }
    g->tiles = tiles;
    g->aligns = aligns;
    if ((g->units > 0) != (g->n_tiles > 0))
        mpp_diag_error(diag, gemm->loc, "<gemm> needs both units and a <tile>, or neither");
}

static void read_kernels(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_xml *device,
                         struct mpp_device *out)
{
    static const char *const kernel_names[] = {"launch_s", "dispatch_s", "dispatch_pair_s", "dispatch_batch_s",
                                               "vector_efficiency", "source"};
    static const char *const gemm_names[] = {"efficiency", "half_m", "half_n", "half_k", "half_outputs", "units",
                                             "quantised", "source"};
    static const char *const inside[] = {"tile", "align"};
    const struct mpp_xml *kernel = mpp_fields_child(diag, device, "kernel", 1);
    const struct mpp_xml *gemm = mpp_fields_child(diag, device, "gemm", 1);
    if (kernel) {
        mpp_fields_known(diag, kernel, kernel_names, COUNT(kernel_names));
        out->launch_s = mpp_fields_number(diag, kernel, "launch_s", MPP_NUMBER_NOT_NEGATIVE, MPP_FIELDS_REQUIRED);
        out->dispatch_s = mpp_fields_number(diag, kernel, "dispatch_s", MPP_NUMBER_NOT_NEGATIVE, 0);
        out->dispatch_pair_s = mpp_fields_number(diag, kernel, "dispatch_pair_s", MPP_NUMBER_NOT_NEGATIVE, 0);
        out->dispatch_batch_s = mpp_fields_number(diag, kernel, "dispatch_batch_s", MPP_NUMBER_NOT_NEGATIVE, 0);
        out->vector_efficiency = mpp_fields_number(diag, kernel, "vector_efficiency", MPP_NUMBER_FRACTION, 1);
    }
    if (gemm) {
        struct mpp_gemm_curve *g = &out->gemm;
        mpp_fields_known(diag, gemm, gemm_names, COUNT(gemm_names));
        g->efficiency = mpp_fields_number(diag, gemm, "efficiency", MPP_NUMBER_FRACTION, MPP_FIELDS_REQUIRED);
        g->half_m = mpp_fields_number(diag, gemm, "half_m", MPP_NUMBER_NOT_NEGATIVE, 0);
        g->half_n = mpp_fields_number(diag, gemm, "half_n", MPP_NUMBER_NOT_NEGATIVE, 0);
        g->half_k = mpp_fields_number(diag, gemm, "half_k", MPP_NUMBER_NOT_NEGATIVE, 0);
        g->half_outputs = mpp_fields_number(diag, gemm, "half_outputs", MPP_NUMBER_NOT_NEGATIVE, 0);
        g->units = (int)mpp_fields_whole(diag, gemm, "units", 1, 1000000, 0);
        g->quantised = mpp_fields_number(diag, gemm, "quantised", MPP_NUMBER_FRACTION, 1);
        mpp_fields_children(diag, gemm, inside, COUNT(inside));
        read_tiles(arena, diag, gemm, g);
    }
}

void mpp_device_read(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_xml *node,
                     struct mpp_device *out)
{
    static const char *const names[] = {"name", "arch", "source"};
    static const char *const inside[] = {"memory", "peak", "kernel", "gemm"};
    *out = (struct mpp_device){0};
    mpp_fields_known(diag, node, names, COUNT(names));
    mpp_fields_children(diag, node, inside, COUNT(inside));
    out->name = mpp_fields_string(diag, node, "name");
    out->arch = read_arch(diag, node);
    read_memory(arena, diag, node, out);
    read_peaks(diag, node, out);
    read_kernels(arena, diag, node, out);
}

const char *const *mpp_device_names(struct mpp_arena *arena, int *out_n)
{
    int n = 0;
    while (mpp_embedded_devices[n].name)
        n++;
    const char **names = mpp_arena_array(arena, n + 1, const char *);
    for (int i = 0; i < n; i++)
        names[i] = mpp_embedded_devices[i].name;
    *out_n = n;
    return names;
}

const char *mpp_device_list(struct mpp_arena *arena, const char *const *names, int n)
{
    const char *list = "";
    for (int i = 0; i < n; i++)
        list = mpp_arena_printf(arena, "%s%s%s", list, i ? ", " : "", names[i]);
    return list;
}

void mpp_device_find(struct mpp_arena *arena, struct mpp_diag *diag, const char *name, struct mpp_loc loc,
                     struct mpp_device *out)
{
    int n;
    const char *const *names = mpp_device_names(arena, &n);
    *out = (struct mpp_device){0};
    for (const struct mpp_embedded *e = mpp_embedded_devices; e->name; e++) {
        struct mpp_xml *root;
        if (strcmp(e->name, name) != 0)
            continue;
        if (mpp_xml_parse(arena, diag, mpp_arena_printf(arena, "builtin:devices/%s.xml", name), e->text, e->size,
                          &root) == MPP_OK)
            mpp_device_read(arena, diag, root, out);
        return;
    }
    mpp_diag_error(diag, loc, "no device is called \"%s\"%s; known: %s", name, mpp_diag_hint(diag, name, names, n),
                   mpp_device_list(arena, names, n));
}
