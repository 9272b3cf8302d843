/* safetensors.c - reading and creating weight files. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mapped.h"
#include "safetensors.h"

#define HEADER_LIMIT 100000000
#define DIMS_LIMIT 64

static const struct {
    const char *name;
    int bytes;
} dtypes[] = {
    [MPP_DTYPE_F32] = {"F32", 4}, [MPP_DTYPE_F16] = {"F16", 2}, [MPP_DTYPE_BF16] = {"BF16", 2},
    [MPP_DTYPE_F64] = {"F64", 8}, [MPP_DTYPE_I64] = {"I64", 8}, [MPP_DTYPE_I32] = {"I32", 4},
    [MPP_DTYPE_U8] = {"U8", 1},   [MPP_DTYPE_BOOL] = {"BOOL", 1},
};
#define N_DTYPES ((int)(sizeof dtypes / sizeof dtypes[0]))

/* One opened file. */
struct shard {
    char *path;
    struct mpp_mapped mapped;
    int n;
    struct mpp_weight *weights;
};

struct mpp_weights {
    int n_shards;
    struct shard *shards;
    int n;
    struct mpp_weight **by_name; /* into the shards' weights */
};

const char *mpp_dtype_name(enum mpp_dtype dtype)
{
    return dtypes[dtype].name;
}

void mpp_shape_print(int n_dims, const int64_t *dims, char *out, int out_bytes)
{
    int at = snprintf(out, (size_t)out_bytes, "[");
    for (int d = 0; d < n_dims && at < out_bytes; d++)
        at += snprintf(out + at, (size_t)(out_bytes - at), "%s%lld", d > 0 ? ", " : "", (long long)dims[d]);
    if (at < out_bytes)
        snprintf(out + at, (size_t)(out_bytes - at), "]");
}

/* ---- the header ---------------------------------------------------------------------------------- */

static int parse_dtype(const char *path, const char *name, const json_t *value, enum mpp_dtype *dtype_out,
                       struct mpp_error *error)
{
    const char *text = json_string_value(value);
    for (int i = 0; text != NULL && i < N_DTYPES; i++)
        if (strcmp(text, dtypes[i].name) == 0) {
            *dtype_out = (enum mpp_dtype)i;
            return MPP_EXIT_OK;
        }
    return mpp_error_set(error, MPP_EXIT_INPUT, "%s: tensor \"%s\": dtype %s is not supported", path, name,
                         text != NULL ? text : "missing or");
}

/* Dims and count from the "shape" array. */
static int parse_shape(const char *path, const json_t *value, struct mpp_weight *w, struct mpp_error *error)
{
    size_t n = json_array_size(value);
    if (!json_is_array(value) || n > DIMS_LIMIT)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: tensor \"%s\": no valid shape", path, w->name);
    w->dims = calloc(n + 1, sizeof *w->dims);
    if (w->dims == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    w->n_dims = (int)n;
    w->count = 1;
    for (size_t d = 0; d < n; d++) {
        const json_t *dim = json_array_get(value, d);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return mpp_error_set(error, MPP_EXIT_INPUT, "%s: tensor \"%s\": dimension %zu is no count", path, w->name,
                                 d);
        w->dims[d] = json_integer_value(dim);
        if (__builtin_mul_overflow(w->count, w->dims[d], &w->count))
            return mpp_error_set(error, MPP_EXIT_INPUT, "%s: tensor \"%s\": its shape overflows", path, w->name);
    }
    return MPP_EXIT_OK;
}

static int parse_tensor(const char *path, const char *name, const json_t *value, struct mpp_weight *w,
                        struct mpp_error *error)
{
    w->name = strdup(name);
    if (w->name == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    if (!json_is_object(value))
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: tensor \"%s\" is not described by an object", path, name);
    int code = parse_dtype(path, name, json_object_get(value, "dtype"), &w->dtype, error);
    if (code == MPP_EXIT_OK)
        code = parse_shape(path, json_object_get(value, "shape"), w, error);
    if (code != MPP_EXIT_OK)
        return code;
    const json_t *offsets = json_object_get(value, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: tensor \"%s\": no valid data_offsets", path, name);
    w->begin = json_integer_value(begin);
    w->end = json_integer_value(end);
    int64_t bytes, has;
    if (__builtin_mul_overflow(w->count, (int64_t)dtypes[w->dtype].bytes, &bytes) ||
        __builtin_sub_overflow(w->end, w->begin, &has) || w->begin < 0 || has != bytes)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: tensor \"%s\": offsets %lld to %lld do not fit its shape",
                             path, name, (long long)w->begin, (long long)w->end);
    return MPP_EXIT_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct mpp_weight *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* The tensors tile the buffer: no hole, no overlap, nothing behind. */
static int check_tiling(struct shard *s, int64_t buffer_bytes, struct mpp_error *error)
{
    qsort(s->weights, (size_t)s->n, sizeof *s->weights, by_offset);
    int64_t at = 0;
    for (int i = 0; i < s->n; i++) {
        if (s->weights[i].begin != at)
            return mpp_error_set(error, MPP_EXIT_INPUT, "%s: tensor \"%s\" begins at byte %lld of the data, not at %lld",
                                 s->path, s->weights[i].name, (long long)s->weights[i].begin, (long long)at);
        at = s->weights[i].end;
    }
    if (at != buffer_bytes)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: its tensors take %lld bytes, but the file holds %lld", s->path,
                             (long long)at, (long long)buffer_bytes);
    return MPP_EXIT_OK;
}

static int parse_header(struct shard *s, const json_t *root, struct mpp_error *error)
{
    const char *name;
    json_t *value;
    s->weights = calloc(json_object_size(root) + 1, sizeof *s->weights);
    if (s->weights == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    json_object_foreach((json_t *)(uintptr_t)root, name, value) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        int code = parse_tensor(s->path, name, value, &s->weights[s->n++], error);
        if (code != MPP_EXIT_OK)
            return code;
    }
    return MPP_EXIT_OK;
}

static int shard_open(const char *path, struct shard *s, struct mpp_error *error)
{
    s->path = strdup(path);
    if (s->path == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    int code = mpp_mapped_open(path, &s->mapped, error);
    if (code != MPP_EXIT_OK)
        return code;
    if (s->mapped.n_bytes < 8)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: too short for a safetensors file", path);
    uint64_t header = mpp_read_u64(s->mapped.bytes);
    if (header > HEADER_LIMIT || (int64_t)header > s->mapped.n_bytes - 8)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: not a safetensors file (a header of %llu bytes)", path,
                             (unsigned long long)header);
    json_error_t why;
    json_t *root = json_loadb((const char *)s->mapped.bytes + 8, (size_t)header, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: the header is not valid JSON: %s", path, why.text);
    if (s->mapped.bytes[8] != '{' || !json_is_object(root))
        code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: the header is not a JSON object", path);
    else
        code = parse_header(s, root, error);
    json_decref(root);
    if (code == MPP_EXIT_OK)
        code = check_tiling(s, s->mapped.n_bytes - 8 - (int64_t)header, error);
    for (int i = 0; code == MPP_EXIT_OK && i < s->n; i++) {
        s->weights[i].data = s->mapped.bytes + 8 + header + s->weights[i].begin;
        s->weights[i].file = s->path;
    }
    return code;
}

/* ---- one file or many ------------------------------------------------------------------------------ */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct mpp_weight *const *)a)->name, (*(struct mpp_weight *const *)b)->name);
}

static int compare_name(const void *name, const void *weight)
{
    return strcmp(name, (*(struct mpp_weight *const *)weight)->name);
}

static struct mpp_weight *shard_find(struct shard *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->weights[i].name, name) == 0)
            return &s->weights[i];
    return NULL;
}

static int index_file(struct mpp_weights *w, const char *index_path, const char *file, struct shard **shard_out,
                      struct mpp_error *error)
{
    if (strchr(file, '/') != NULL || strstr(file, "..") != NULL || file[0] == '\0')
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: \"%s\" is no plain file name", index_path, file);
    const char *slash = strrchr(index_path, '/');
    char *path;
    if (asprintf(&path, "%.*s%s", slash != NULL ? (int)(slash - index_path) + 1 : 0, index_path, file) < 0)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    int code = MPP_EXIT_OK;
    *shard_out = NULL;
    for (int i = 0; i < w->n_shards; i++)
        if (strcmp(w->shards[i].path, path) == 0)
            *shard_out = &w->shards[i];
    if (*shard_out == NULL) {
        *shard_out = &w->shards[w->n_shards++];
        code = shard_open(path, *shard_out, error);
    }
    free(path);
    return code;
}

static int index_open(struct mpp_weights *w, const char *path, struct mpp_error *error)
{
    json_error_t why;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: %s", path, why.text);
    json_t *map = json_object_get(root, "weight_map");
    int code = MPP_EXIT_OK;
    const char *name;
    json_t *value;
    if (!json_is_object(map)) {
        json_decref(root);
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: no \"weight_map\" object", path);
    }
    w->shards = calloc(json_object_size(map) + 1, sizeof *w->shards);
    w->by_name = calloc(json_object_size(map) + 1, sizeof *w->by_name);
    if (w->shards == NULL || w->by_name == NULL)
        code = mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    json_object_foreach(map, name, value) {
        struct shard *s = NULL;
        if (code != MPP_EXIT_OK)
            break;
        if (!json_is_string(value))
            code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: \"%s\" names no file", path, name);
        else
            code = index_file(w, path, json_string_value(value), &s, error);
        if (code != MPP_EXIT_OK)
            break;
        struct mpp_weight *weight = shard_find(s, name);
        if (weight == NULL)
            code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: tensor \"%s\" is not in %s", path, name, s->path);
        else
            w->by_name[w->n++] = weight;
    }
    json_decref(root);
    return code;
}

static int single_open(struct mpp_weights *w, const char *path, struct mpp_error *error)
{
    w->shards = calloc(1, sizeof *w->shards);
    if (w->shards == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    w->n_shards = 1;
    int code = shard_open(path, &w->shards[0], error);
    if (code != MPP_EXIT_OK)
        return code;
    w->n = w->shards[0].n;
    w->by_name = calloc((size_t)w->n + 1, sizeof *w->by_name);
    if (w->by_name == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    for (int i = 0; i < w->n; i++)
        w->by_name[i] = &w->shards[0].weights[i];
    return MPP_EXIT_OK;
}

int mpp_weights_open(const char *path, const char *const *strip, struct mpp_weights **weights_out,
                     struct mpp_error *error)
{
    struct mpp_weights *w = calloc(1, sizeof *w);
    if (w == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    size_t n = strlen(path);
    bool index = n > 5 && strcmp(path + n - 5, ".json") == 0;
    int code = index ? index_open(w, path, error) : single_open(w, path, error);
    for (int i = 0; code == MPP_EXIT_OK && i < w->n; i++) {
        char *name = w->by_name[i]->name;
        for (int p = 0; strip != NULL && strip[p] != NULL; p++) {
            size_t length = strlen(strip[p]);
            if (strncmp(name, strip[p], length) == 0 && name[length] != '\0')
                memmove(name, name + length, strlen(name + length) + 1);
        }
    }
    if (code == MPP_EXIT_OK && w->n > 0)
        qsort(w->by_name, (size_t)w->n, sizeof *w->by_name, by_name);
    for (int i = 1; code == MPP_EXIT_OK && i < w->n; i++)
        if (strcmp(w->by_name[i - 1]->name, w->by_name[i]->name) == 0)
            code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: two tensors are called \"%s\" once prefixes are removed",
                                 path, w->by_name[i]->name);
    if (code != MPP_EXIT_OK)
        mpp_weights_close(w);
    else
        *weights_out = w;
    return code;
}

void mpp_weights_close(struct mpp_weights *weights)
{
    if (weights == NULL)
        return;
    for (int i = 0; i < weights->n_shards; i++) {
        struct shard *s = &weights->shards[i];
        for (int k = 0; k < s->n; k++) {
            free(s->weights[k].name);
            free(s->weights[k].dims);
        }
        free(s->weights);
        free(s->path);
        mpp_mapped_close(&s->mapped);
    }
    free(weights->shards);
    free(weights->by_name);
    free(weights);
}

int mpp_weights_count(const struct mpp_weights *weights)
{
    return weights->n;
}

struct mpp_weight *mpp_weights_at(struct mpp_weights *weights, int i)
{
    return weights->by_name[i];
}

struct mpp_weight *mpp_weights_find(struct mpp_weights *weights, const char *name)
{
    if (weights->n == 0)
        return NULL;
    struct mpp_weight **found =
        bsearch(name, weights->by_name, (size_t)weights->n, sizeof *weights->by_name, compare_name);
    return found != NULL ? *found : NULL;
}

bool mpp_weight_read(const struct mpp_weight *weight, int64_t first, int64_t count, float *out)
{
    const unsigned char *at = weight->data + first * dtypes[weight->dtype].bytes;
    switch (weight->dtype) {
    case MPP_DTYPE_F32:
        memcpy(out, at, (size_t)count * sizeof *out);
        return true;
    case MPP_DTYPE_F16:
        for (int64_t i = 0; i < count; i++)
            out[i] = mpp_read_f16(at + 2 * i);
        return true;
    case MPP_DTYPE_BF16:
        for (int64_t i = 0; i < count; i++) {
            uint32_t bits = (uint32_t)mpp_read_u16(at + 2 * i) << 16;
            memcpy(&out[i], &bits, sizeof bits);
        }
        return true;
    case MPP_DTYPE_F64:
        for (int64_t i = 0; i < count; i++) {
            double x;
            memcpy(&x, at + 8 * i, sizeof x);
            out[i] = (float)x;
        }
        return true;
    default:
        return false;
    }
}

bool mpp_weight_read_i32(const struct mpp_weight *weight, int64_t first, int64_t count, int32_t *out)
{
    if (weight->dtype != MPP_DTYPE_I32)
        return false;
    memcpy(out, weight->data + 4 * first, (size_t)count * sizeof *out);
    return true;
}

/* ---- writing ------------------------------------------------------------------------------------------ */

/* The header's text behind its length of 8 bytes, padded with spaces to 8. Fills file_offset; *END_OUT is the
 * file's size. NULL: out of memory, or a name occurs twice. The caller frees. */
static char *header_text(struct mpp_st_entry *entries, int n, int64_t *length_out, int64_t *end_out)
{
    json_t *root = json_object();
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        int64_t bytes = 4;
        json_t *shape = json_array();
        for (int d = 0; d < entries[i].n_dims; d++) {
            bytes *= entries[i].dims[d];
            json_array_append_new(shape, json_integer(entries[i].dims[d]));
        }
        entries[i].file_offset = at;
        json_object_set_new(root, entries[i].name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", entries[i].type == MPP_TYPE_F32 ? "F32" : "I32",
                                      "shape", shape, "data_offsets", (json_int_t)at, (json_int_t)(at + bytes)));
        at += bytes;
    }
    char *text = json_dumps(root, JSON_COMPACT);
    bool complete = (int)json_object_size(root) == n;
    json_decref(root);
    size_t length = text != NULL ? strlen(text) : 0, padded = (length + 7) / 8 * 8;
    char *out = text != NULL && complete ? malloc(8 + padded + 1) : NULL;
    if (out != NULL) {
        for (int i = 0; i < 8; i++)
            out[i] = (char)(padded >> 8 * i & 255);
        memcpy(out + 8, text, length);
        memset(out + 8 + length, ' ', padded - length);
    }
    free(text);
    *length_out = 8 + (int64_t)padded;
    *end_out = *length_out + at;
    for (int i = 0; i < n; i++)
        entries[i].file_offset += *length_out;
    return out;
}

static int layout(struct mpp_st_entry *entries, int n, char **text_out, int64_t *length_out, int64_t *end_out,
                  struct mpp_error *error)
{
    *text_out = header_text(entries, n, length_out, end_out);
    if (*text_out == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "no file header: out of memory, or a tensor's name occurs twice");
    return MPP_EXIT_OK;
}

int mpp_st_layout(struct mpp_st_entry *entries, int n, struct mpp_error *error)
{
    char *text;
    int64_t length, end;
    int code = layout(entries, n, &text, &length, &end, error);
    free(text);
    return code;
}

int mpp_st_create(const char *path, struct mpp_st_entry *entries, int n, struct mpp_error *error)
{
    char *text;
    int64_t length, end;
    int code = layout(entries, n, &text, &length, &end, error);
    if (code != MPP_EXIT_OK)
        return code;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool ok = fd >= 0;
    if (ok) {
        int full = posix_fallocate(fd, 0, end); /* a full disk shows here, not in the middle */
        if (full == ENOSPC || full == EFBIG) {
            errno = full;
            ok = false;
        }
    }
    ok = ok && ftruncate(fd, end) == 0 && pwrite(fd, text, (size_t)length, 0) == (ssize_t)length;
    int why = errno;
    if (fd >= 0 && close(fd) != 0)
        ok = false;
    free(text);
    return ok ? MPP_EXIT_OK : mpp_error_set(error, MPP_EXIT_SYSTEM, "%s: %s", path, strerror(why));
}
