/* init.c - random and loaded parameters. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "half.h"
#include "init.h"
#include "random.h"
#include "safetensors.h"
#include "space.h"
#include "tensors.h"
#include "transfers.h"
#include "transport.h"

enum { PART = MPP_DEVICE_PART };

void mpp_random_normal(uint32_t a, uint32_t b, float *x_out, float *y_out)
{
    const float two_pi = 6.2831853f;
    float u = (float)((a >> 8) + 1) * 0x1p-24f; /* (0, 1] */
    float radius = sqrtf(-2.0f * logf(u)), angle = two_pi * mpp_random_unit(b);
    *x_out = radius * cosf(angle);
    *y_out = radius * sinf(angle);
}

static uint64_t name_hash(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

/* Elements FIRST .. FIRST + COUNT - 1 of the tensor. */
static void draw(const struct mpp_tensor *t, uint64_t seed, uint64_t hash, int64_t first, int64_t count, float *out)
{
    float a = (float)t->init_a, b = (float)t->init_b;
    for (int64_t i = 0; i < count;) {
        int64_t element = first + i;
        uint32_t word[4];
        float x[4];
        mpp_random_block(seed, MPP_STREAM_INIT, (uint64_t)element / 4, hash, word);
        if (t->init == MPP_INIT_NORMAL) {
            mpp_random_normal(word[0], word[1], &x[0], &x[1]);
            mpp_random_normal(word[2], word[3], &x[2], &x[3]);
        }
        for (int64_t lane = element % 4; lane < 4 && i < count; lane++, i++)
            out[i] = t->init == MPP_INIT_NORMAL ? a + b * x[lane] : a + (b - a) * mpp_random_unit(word[lane]);
    }
}

static bool is_half(const struct mpp_tensor *t)
{
    return t->type == MPP_TYPE_BF16 || t->type == MPP_TYPE_F16;
}

static double constant_of(const struct mpp_tensor *t)
{
    return t->init == MPP_INIT_ONES ? 1.0 : t->init == MPP_INIT_CONSTANT ? t->init_a : 0.0;
}

/* COUNT elements from FIRST on, in f32. */
static void fill(const struct mpp_tensor *t, uint64_t seed, uint64_t hash, int64_t first, int64_t count, float *out)
{
    if (t->init == MPP_INIT_NORMAL || t->init == MPP_INIT_UNIFORM)
        draw(t, seed, hash, first, count, out);
    else
        for (int64_t i = 0; i < count; i++)
            out[i] = (float)constant_of(t);
}

/* COUNT elements, at most PART, to the place AT of the arena, as T stores them. */
static void put_floats(struct mpp_rank *r, const struct mpp_tensor *t, char *at, const float *x, int64_t count)
{
    if (is_half(t)) {
        uint16_t bits[PART];
        mpp_half_write(t->type, x, count, bits);
        mpp_device_put(r, at, bits, (size_t)count * sizeof *bits);
    } else {
        mpp_device_put(r, at, x, (size_t)count * sizeof *x);
    }
}

/* LOCAL: the tensor's place in the arena. */
static void fill_run(struct mpp_rank *r, const struct mpp_tensor *t, uint64_t hash, const struct mpp_run *run, char *local)
{
    float part[PART];
    int32_t whole[PART];
    for (int64_t i = 0; t->type == MPP_TYPE_I32 && i < PART && i < run->count; i++)
        whole[i] = (int32_t)constant_of(t);
    local += run->local * mpp_type_bytes(t->type);
    for (int64_t i = 0; i < run->count; i += PART, local += PART * mpp_type_bytes(t->type)) {
        int64_t n = mpp_min_i64(PART, run->count - i);
        if (t->type == MPP_TYPE_I32) {
            mpp_device_put(r, local, whole, (size_t)n * sizeof *whole);
            continue;
        }
        fill(t, r->seed, hash, run->global + i, n, part);
        put_floats(r, t, local, part, n);
    }
}

static int random_tensors(struct mpp_rank *r, enum mpp_tensor_kind kind, struct mpp_error *error)
{
    struct mpp_named *named;
    int n;
    int code = mpp_named_list(r->stage, kind, &named, &n, error);
    if (code != MPP_EXIT_OK)
        return code;
    for (int i = 0; i < n; i++) {
        struct mpp_block block = mpp_block_of(r, named[i].tensor);
        struct mpp_run run = {0};
        while (mpp_block_next(&block, &run))
            fill_run(r, named[i].tensor, name_hash(named[i].name), &run, r->arena + named[i].offset);
    }
    mpp_named_free(named, n);
    return MPP_EXIT_OK;
}

int mpp_init_random(struct mpp_rank *r, enum mpp_tensor_kind kind, struct mpp_error *error)
{
    int code = random_tensors(r, kind, error);
    if (code == MPP_EXIT_OK && kind == MPP_KIND_PARAMETER)
        code = random_tensors(r, MPP_KIND_ROUNDED, error);
    return code;
}

/* ---- from files ------------------------------------------------------------------------------------ */

static int check_weight(const char *path, const struct mpp_named *named, const struct mpp_weight *w,
                        struct mpp_error *error)
{
    const struct mpp_tensor *t = named->tensor;
    bool fits = w->n_dims == t->n_published;
    for (int d = 0; fits && d < w->n_dims; d++)
        fits = w->dims[d] == t->published[d];
    if (!fits || w->count != named->count) {
        char has[160], want[160];
        mpp_shape_print(w->n_dims, w->dims, has, sizeof has);
        mpp_shape_print(t->n_published, t->published, want, sizeof want);
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: tensor \"%s\" has shape %s, but the model's has %s", path,
                             named->name, has, want);
    }
    bool right = t->type == MPP_TYPE_I32 ? w->dtype == MPP_DTYPE_I32 : w->dtype <= MPP_DTYPE_F64;
    if (!right)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: tensor \"%s\" is %s; %s", path, named->name,
                             mpp_dtype_name(w->dtype),
                             t->type == MPP_TYPE_I32 ? "I32 is needed" : "F32, F16, BF16 or F64 is needed");
    return MPP_EXIT_OK;
}

static int refuse(const struct mpp_named *named, const struct mpp_weight *w, int64_t element, float x, struct mpp_error *error)
{
    return mpp_error_set(error, MPP_EXIT_INPUT, "%s: tensor \"%s\": element %lld is %s; weights are finite numbers of 32 bits",
                         w->file, named->name, (long long)element, isnan(x) ? "NaN" : x > 0 ? "infinite" : "-infinite");
}

/* FINITE: other numbers are refused (of rounded parameters the masters were checked). */
static int load_run(struct mpp_rank *r, const struct mpp_named *named, const struct mpp_weight *w, bool finite,
                    const struct mpp_run *run, struct mpp_error *error)
{
    const struct mpp_tensor *t = named->tensor;
    char *local = r->arena + named->offset + run->local * mpp_type_bytes(t->type);
    for (int64_t i = 0; i < run->count; i += PART, local += PART * mpp_type_bytes(t->type)) {
        int64_t n = mpp_min_i64(PART, run->count - i);
        if (t->type == MPP_TYPE_I32) {
            int32_t whole[PART];
            (void)mpp_weight_read_i32(w, run->global + i, n, whole);
            mpp_device_put(r, local, whole, (size_t)n * sizeof *whole);
            continue;
        }
        float part[PART];
        (void)mpp_weight_read(w, run->global + i, n, part);
        for (int64_t k = 0; finite && !is_half(t) && k < n; k++)
            if (!isfinite(part[k]))
                return refuse(named, w, run->global + i + k, part[k], error);
        put_floats(r, t, local, part, n);
    }
    return MPP_EXIT_OK;
}

static int load_block(struct mpp_rank *r, const struct mpp_named *named, const struct mpp_weight *w, bool finite,
                      struct mpp_error *error)
{
    struct mpp_block block = mpp_block_of(r, named->tensor);
    struct mpp_run run = {0};
    int code = MPP_EXIT_OK;
    while (code == MPP_EXIT_OK && mpp_block_next(&block, &run))
        code = load_run(r, named, w, finite, &run, error);
    return code;
}

/* A list of at most three names. */
struct short_list {
    int n;
    char text[320];
};

static void list_add(struct short_list *list, const char *name)
{
    size_t at = strlen(list->text);
    if (list->n++ < 3)
        snprintf(list->text + at, sizeof list->text - at, "%s%.96s", list->n > 1 ? ", " : "", name);
    else if (list->n == 4)
        snprintf(list->text + at, sizeof list->text - at, ", ...");
}

/* All that the model has, in whatever stage, is there; it is marked as used. */
static int check_all(struct mpp_rank *r, enum mpp_tensor_kind kind, const char *path, struct mpp_weights *weights,
                     struct mpp_error *error)
{
    struct mpp_named *named;
    struct short_list missing = {0};
    int n, code = mpp_named_union(r->program, kind, &named, &n, error);
    if (code != MPP_EXIT_OK)
        return code;
    for (int i = 0; i < n; i++) {
        struct mpp_weight *w = mpp_weights_find(weights, named[i].name);
        if (w != NULL)
            w->used = true;
        else
            list_add(&missing, named[i].name);
    }
    mpp_named_free(named, n);
    if (missing.n > 0)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: lacks %d of the model's %d tensors: %s", path, missing.n, n,
                             missing.text);
    return MPP_EXIT_OK;
}

/* This rank's blocks; all names are in the file (those of rounded parameters are their masters'). */
static int load_all(struct mpp_rank *r, enum mpp_tensor_kind kind, const char *path, struct mpp_weights *weights, bool finite,
                    struct mpp_error *error)
{
    struct mpp_named *named;
    int n, code = mpp_named_list(r->stage, kind, &named, &n, error);
    if (code != MPP_EXIT_OK)
        return code;
    for (int i = 0; code == MPP_EXIT_OK && i < n; i++) {
        struct mpp_weight *w = mpp_weights_find(weights, named[i].name);
        code = check_weight(path, &named[i], w, error);
        mpp_rank_moves(r);
        if (code == MPP_EXIT_OK)
            code = load_block(r, &named[i], w, finite, error);
    }
    mpp_named_free(named, n);
    return code;
}

int mpp_init_load(struct mpp_rank *r, enum mpp_tensor_kind kind, const char *path, const char *const *strip,
                  char *note, int note_bytes, struct mpp_error *error)
{
    struct mpp_weights *weights;
    struct short_list extra = {0};
    int code = mpp_weights_open(path, strip, &weights, error);
    if (code != MPP_EXIT_OK)
        return code;
    code = check_all(r, kind, path, weights, error);
    if (code == MPP_EXIT_OK)
        code = load_all(r, kind, path, weights, note != NULL, error); /* a checkpoint is taken as it is */
    if (code == MPP_EXIT_OK && kind == MPP_KIND_PARAMETER)
        code = load_all(r, MPP_KIND_ROUNDED, path, weights, false, error);
    for (int i = 0; i < mpp_weights_count(weights); i++)
        if (!mpp_weights_at(weights, i)->used)
            list_add(&extra, mpp_weights_at(weights, i)->name);
    if (note != NULL)
        note[0] = '\0';
    else if (code == MPP_EXIT_OK && extra.n > 0)
        code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: of another model or optimiser: %d tensor%s not in this one: %s", path,
                             extra.n, extra.n == 1 ? " is" : "s are", extra.text);
    if (note != NULL && extra.n > 0)
        snprintf(note, (size_t)note_bytes, "%s: %d tensor%s not in the model: %s", path, extra.n,
                 extra.n == 1 ? " is" : "s are", extra.text);
    mpp_weights_close(weights);
    return code;
}
