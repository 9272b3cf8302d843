/* safetensors.c - reading and creating weight files. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json.h"
#include "mapped.h"
#include "safetensors.h"

#define HEADER_LIMIT 100000000
#define DIMS_LIMIT 64
#define NAMES_LIMIT (1 << 24) /* a header of HEADER_LIMIT bytes holds fewer */
#define SHARDS_LIMIT 10000

static const struct {
    const char *name;
    int bytes;
} dtypes[] = {
    [MPP_DTYPE_F32] = {"F32", 4}, [MPP_DTYPE_F16] = {"F16", 2}, [MPP_DTYPE_BF16] = {"BF16", 2},
    [MPP_DTYPE_F64] = {"F64", 8}, [MPP_DTYPE_I64] = {"I64", 8}, [MPP_DTYPE_I32] = {"I32", 4},
    [MPP_DTYPE_U8] = {"U8", 1},   [MPP_DTYPE_BOOL] = {"BOOL", 1}, [MPP_DTYPE_I8] = {"I8", 1},
    [MPP_DTYPE_I16] = {"I16", 2}, [MPP_DTYPE_U16] = {"U16", 2},   [MPP_DTYPE_U32] = {"U32", 4},
    [MPP_DTYPE_U64] = {"U64", 8}, [MPP_DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [MPP_DTYPE_F8_E5M2] = {"F8_E5M2", 1},
};
#define N_DTYPES ((int)(sizeof dtypes / sizeof dtypes[0]))

/* One opened file. */
struct shard {
    char *path;
    struct mpp_mapped mapped;
    int n, room;
    struct mpp_weight *weights;  /* in order of offsets */
    struct mpp_weight **by_name; /* the same in order of names */
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

static int out_of_memory(struct mpp_error *error, const char *path)
{
    return mpp_error_set(error, MPP_EXIT_SYSTEM, "%s: out of memory", path);
}

static void read_dtype(struct mpp_json *j, struct mpp_weight *w)
{
    char text[32];
    if (!mpp_json_string(j, text, sizeof text))
        return;
    for (int i = 0; i < N_DTYPES; i++)
        if (strcmp(text, dtypes[i].name) == 0) {
            w->dtype = (enum mpp_dtype)i;
            return;
        }
    mpp_json_fault(j, "tensor \"%.80s\": dtype %s is not supported; store it as F32, F16, BF16 or F64", w->name, text);
}

/* Dims and count. */
static void read_shape(struct mpp_json *j, struct mpp_weight *w)
{
    int64_t dims[DIMS_LIMIT];
    int n = 0;
    w->count = 1;
    mpp_json_open(j, '[');
    while (mpp_json_more(j, ']')) {
        int64_t dim;
        if (n == DIMS_LIMIT) {
            mpp_json_fault(j, "tensor \"%.80s\": more than %d dimensions", w->name, DIMS_LIMIT);
        } else if (mpp_json_integer(j, &dim)) {
            if (dim < 0)
                mpp_json_fault(j, "tensor \"%.80s\": dimension %d is %lld, no count", w->name, n, (long long)dim);
            else if (__builtin_mul_overflow(w->count, dim, &w->count))
                mpp_json_fault(j, "tensor \"%.80s\": its shape overflows", w->name);
            dims[n++] = dim;
        }
    }
    free(w->dims);
    w->n_dims = n;
    w->dims = malloc((size_t)(n + 1) * sizeof *w->dims);
    if (w->dims != NULL)
        memcpy(w->dims, dims, (size_t)n * sizeof *w->dims);
    else if (j->code == MPP_EXIT_OK)
        j->code = out_of_memory(j->error, j->path);
}

static void read_offsets(struct mpp_json *j, struct mpp_weight *w)
{
    int64_t *const offsets[] = {&w->begin, &w->end};
    int n = 0;
    mpp_json_open(j, '[');
    for (; mpp_json_more(j, ']'); n++) {
        int64_t other;
        if (n < 2)
            mpp_json_integer(j, offsets[n]);
        else
            mpp_json_integer(j, &other);
    }
    if (n != 2)
        mpp_json_fault(j, "tensor \"%.80s\": data_offsets hold %d numbers, not 2", w->name, n);
}

/* What follows a tensor's name. */
static void read_tensor(struct mpp_json *j, struct mpp_weight *w)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    static void (*const readers[])(struct mpp_json *, struct mpp_weight *) = {read_dtype, read_shape, read_offsets};
    bool seen[3] = {false};
    int64_t bytes, has;
    mpp_json_open(j, '{');
    while (mpp_json_more(j, '}')) {
        char key[32];
        int k = 0;
        mpp_json_key(j, key, sizeof key);
        while (k < 3 && strcmp(key, keys[k]) != 0)
            k++;
        if (k == 3)
            mpp_json_skip(j);
        else if (seen[k])
            mpp_json_fault(j, "tensor \"%.80s\": %s occurs twice", w->name, key);
        else
            readers[k](j, w);
        seen[k < 3 ? k : 0] |= k < 3;
    }
    for (int k = 0; k < 3; k++)
        if (!seen[k])
            mpp_json_fault(j, "tensor \"%.80s\" has no %s", w->name, keys[k]);
    if (j->code == MPP_EXIT_OK &&
        (__builtin_mul_overflow(w->count, (int64_t)dtypes[w->dtype].bytes, &bytes) ||
         __builtin_sub_overflow(w->end, w->begin, &has) || w->begin < 0 || has != bytes))
        mpp_json_fault(j, "tensor \"%.80s\": offsets %lld to %lld do not fit its shape", w->name, (long long)w->begin,
                       (long long)w->end);
}

/* Room for one more; its number counts it once its name is read. */
static struct mpp_weight *next_weight(struct mpp_json *j, struct shard *s)
{
    if (s->n == s->room) {
        int room = s->room > 0 ? 2 * s->room : 64;
        struct mpp_weight *grown = room <= NAMES_LIMIT ? realloc(s->weights, (size_t)room * sizeof *grown) : NULL;
        if (grown == NULL) {
            j->code = out_of_memory(j->error, j->path);
            return NULL;
        }
        s->weights = grown;
        s->room = room;
    }
    s->weights[s->n] = (struct mpp_weight){.file = s->path};
    return &s->weights[s->n];
}

/* The format allows text for text only. */
static void read_metadata(struct mpp_json *j)
{
    char text[2];
    mpp_json_open(j, '{');
    while (mpp_json_more(j, '}')) {
        mpp_json_key(j, text, sizeof text);
        mpp_json_string(j, text, sizeof text);
    }
}

static int read_header(struct shard *s, const void *text, int64_t n_bytes, struct mpp_error *error)
{
    struct mpp_json j = mpp_json_of(s->path, text, n_bytes, 8, error);
    bool metadata = false;
    if (n_bytes == 0 || *(const char *)text != '{')
        mpp_json_fault(&j, "the header is not a JSON object; is this a safetensors file?");
    mpp_json_open(&j, '{');
    while (mpp_json_more(&j, '}')) {
        struct mpp_weight *w = next_weight(&j, s);
        if (w == NULL || !mpp_json_key_new(&j, &w->name))
            break;
        s->n++;
        if (strcmp(w->name, "__metadata__") != 0) {
            read_tensor(&j, w);
            continue;
        }
        if (metadata)
            mpp_json_fault(&j, "__metadata__ occurs twice");
        metadata = true;
        read_metadata(&j);
        free(s->weights[--s->n].name);
    }
    return mpp_json_end(&j);
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
    if (s->n > 0)
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

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct mpp_weight *const *)a)->name, (*(struct mpp_weight *const *)b)->name);
}

static int compare_name(const void *name, const void *weight)
{
    return strcmp(name, (*(struct mpp_weight *const *)weight)->name);
}

/* Order of names; none may occur twice. */
static int sort_names(struct mpp_weight **weights, int n, const char *path, const char *when, struct mpp_error *error)
{
    if (n > 0)
        qsort(weights, (size_t)n, sizeof *weights, by_name);
    for (int i = 1; i < n; i++)
        if (strcmp(weights[i - 1]->name, weights[i]->name) == 0)
            return mpp_error_set(error, MPP_EXIT_INPUT, "%s: two tensors are called \"%.80s\"%s", path, weights[i]->name,
                                 when);
    return MPP_EXIT_OK;
}

static struct mpp_weight *find_name(struct mpp_weight **weights, int n, const char *name)
{
    struct mpp_weight **found = n > 0 ? bsearch(name, weights, (size_t)n, sizeof *weights, compare_name) : NULL;
    return found != NULL ? *found : NULL;
}

static int shard_open(const char *path, struct shard *s, struct mpp_error *error)
{
    s->path = strdup(path);
    if (s->path == NULL)
        return out_of_memory(error, path);
    int code = mpp_mapped_open(path, &s->mapped, error);
    if (code != MPP_EXIT_OK)
        return code;
    if (s->mapped.n_bytes < 8)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: too short for a safetensors file (%lld bytes)", path,
                             (long long)s->mapped.n_bytes);
    uint64_t header = mpp_read_u64(s->mapped.bytes);
    if (header > HEADER_LIMIT || (int64_t)header > s->mapped.n_bytes - 8)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: not a safetensors file, or cut short: its first 8 bytes claim a header "
                             "of %llu bytes, the file has %lld", path, (unsigned long long)header,
                             (long long)s->mapped.n_bytes);
    code = read_header(s, s->mapped.bytes + 8, (int64_t)header, error);
    if (code == MPP_EXIT_OK)
        code = check_tiling(s, s->mapped.n_bytes - 8 - (int64_t)header, error);
    if (code != MPP_EXIT_OK)
        return code;
    s->by_name = malloc(((size_t)s->n + 1) * sizeof *s->by_name);
    if (s->by_name == NULL)
        return out_of_memory(error, path);
    for (int i = 0; i < s->n; i++) {
        s->weights[i].data = s->mapped.bytes + 8 + header + s->weights[i].begin;
        s->by_name[i] = &s->weights[i];
    }
    return sort_names(s->by_name, s->n, path, "", error);
}

/* ---- one file or many ------------------------------------------------------------------------------ */

/* The shard FILE, which lies beside the index, opened once. */
static int index_file(struct mpp_weights *w, const char *index_path, const char *file, struct shard **shard_out,
                      struct mpp_error *error)
{
    if (strchr(file, '/') != NULL || strcmp(file, "..") == 0 || strcmp(file, ".") == 0 || file[0] == '\0')
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: \"%.80s\" is no plain file name; weights lie beside their index",
                             index_path, file);
    const char *slash = strrchr(index_path, '/');
    int folder = slash != NULL ? (int)(slash - index_path) + 1 : 0;
    for (int i = 0; i < w->n_shards; i++)
        if (strcmp(w->shards[i].path + folder, file) == 0) {
            *shard_out = &w->shards[i];
            return MPP_EXIT_OK;
        }
    if (w->n_shards == SHARDS_LIMIT)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: names more than %d files", index_path, SHARDS_LIMIT);
    struct shard *grown = realloc(w->shards, (size_t)(w->n_shards + 1) * sizeof *grown);
    if (grown != NULL)
        w->shards = grown;
    char *path;
    if (grown == NULL || asprintf(&path, "%.*s%s", folder, index_path, file) < 0)
        return out_of_memory(error, index_path);
    *shard_out = &w->shards[w->n_shards++];
    **shard_out = (struct shard){0};
    int code = shard_open(path, *shard_out, error);
    free(path);
    return code;
}

/* One name of the map and its file. */
static int index_entry(struct mpp_weights *w, struct mpp_json *j, struct mpp_error *error)
{
    char *name, *file = NULL;
    struct shard *s = NULL;
    if (!mpp_json_key_new(j, &name))
        return j->code;
    int code = mpp_json_string_new(j, &file) ? index_file(w, j->path, file, &s, error) : j->code;
    struct mpp_weight *weight = code == MPP_EXIT_OK ? find_name(s->by_name, s->n, name) : NULL;
    if (code == MPP_EXIT_OK && weight == NULL)
        code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: tensor \"%.80s\" is not in %s", j->path, name, s->path);
    free(name);
    free(file);
    if (code != MPP_EXIT_OK)
        return code;
    if ((w->n & (w->n - 1)) == 0) { /* grows at powers of two */
        struct mpp_weight **grown =
            w->n <= NAMES_LIMIT / 2 ? realloc(w->by_name, (size_t)(w->n > 0 ? 2 * w->n : 1) * sizeof *grown) : NULL;
        if (grown == NULL)
            return out_of_memory(error, j->path);
        w->by_name = grown;
    }
    w->by_name[w->n++] = weight;
    return MPP_EXIT_OK;
}

static int read_map(struct mpp_weights *w, struct mpp_json *j, struct mpp_error *error)
{
    int code = MPP_EXIT_OK;
    mpp_json_open(j, '{');
    while (code == MPP_EXIT_OK && mpp_json_more(j, '}'))
        code = index_entry(w, j, error);
    return code != MPP_EXIT_OK ? code : j->code;
}

static int index_open(struct mpp_weights *w, const char *path, struct mpp_error *error)
{
    struct mpp_mapped text;
    int code = mpp_mapped_open(path, &text, error);
    if (code != MPP_EXIT_OK)
        return code;
    struct mpp_json j = mpp_json_of(path, text.bytes, text.n_bytes, 0, error);
    bool map = false;
    mpp_json_open(&j, '{');
    while (code == MPP_EXIT_OK && mpp_json_more(&j, '}')) {
        char key[32];
        mpp_json_key(&j, key, sizeof key);
        if (strcmp(key, "weight_map") != 0) {
            mpp_json_skip(&j);
        } else if (map) {
            mpp_json_fault(&j, "weight_map occurs twice");
        } else {
            map = true;
            code = read_map(w, &j, error);
        }
    }
    if (code == MPP_EXIT_OK)
        code = mpp_json_end(&j);
    if (code == MPP_EXIT_OK && !map)
        code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: no \"weight_map\" object; is this a model.safetensors.index.json?",
                             path);
    mpp_mapped_close(&text);
    return code != MPP_EXIT_OK ? code : sort_names(w->by_name, w->n, path, "", error);
}

static int single_open(struct mpp_weights *w, const char *path, struct mpp_error *error)
{
    w->shards = calloc(1, sizeof *w->shards);
    if (w->shards == NULL)
        return out_of_memory(error, path);
    w->n_shards = 1;
    int code = shard_open(path, &w->shards[0], error);
    if (code != MPP_EXIT_OK)
        return code;
    w->n = w->shards[0].n;
    w->by_name = w->shards[0].by_name;
    w->shards[0].by_name = NULL;
    return MPP_EXIT_OK;
}

static void strip_prefixes(char *name, const char *const *strip)
{
    for (int p = 0; strip != NULL && strip[p] != NULL; p++) {
        size_t length = strlen(strip[p]);
        if (strncmp(name, strip[p], length) == 0 && name[length] != '\0')
            memmove(name, name + length, strlen(name + length) + 1);
    }
}

int mpp_weights_open(const char *path, const char *const *strip, struct mpp_weights **weights_out,
                     struct mpp_error *error)
{
    struct mpp_weights *w = calloc(1, sizeof *w);
    if (w == NULL)
        return out_of_memory(error, path);
    size_t n = strlen(path);
    bool index = n > 5 && strcmp(path + n - 5, ".json") == 0;
    int code = index ? index_open(w, path, error) : single_open(w, path, error);
    for (int i = 0; code == MPP_EXIT_OK && i < w->n; i++)
        strip_prefixes(w->by_name[i]->name, strip);
    if (code == MPP_EXIT_OK)
        code = sort_names(w->by_name, w->n, path, " once prefixes are removed", error);
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
        free(s->by_name);
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
    return find_name(weights->by_name, weights->n, name);
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

/* `"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}`: its length, written where OUT is not NULL. */
static int64_t print_entry(const struct mpp_st_entry *entry, int64_t begin, int64_t end, char *out)
{
    char rest[DIMS_LIMIT * 21 + 128];
    int at = snprintf(rest, sizeof rest, "\":{\"dtype\":\"%s\",\"shape\":[", entry->type == MPP_TYPE_F32 ? "F32" : "I32");
    for (int d = 0; d < entry->n_dims; d++)
        at += snprintf(rest + at, sizeof rest - (size_t)at, "%s%lld", d > 0 ? "," : "", (long long)entry->dims[d]);
    at += snprintf(rest + at, sizeof rest - (size_t)at, "],\"data_offsets\":[%lld,%lld]}", (long long)begin, (long long)end);
    int64_t name = mpp_json_escape(entry->name, out != NULL ? out + 1 : NULL);
    if (out != NULL) {
        out[0] = '"';
        memcpy(out + 1 + name, rest, (size_t)at);
    }
    return 1 + name + at;
}

/* The header's text, its entries between braces: its length, written where OUT is not NULL. Sets file_offset, from the
 * end of the header on; *DATA_OUT is the bytes of all tensors. */
static int64_t print_header(struct mpp_st_entry *entries, int n, int64_t *data_out, char *out)
{
    int64_t length = 1, at = 0;
    for (int i = 0; i < n; i++) {
        int64_t bytes = 4;
        for (int d = 0; d < entries[i].n_dims; d++)
            bytes *= entries[i].dims[d];
        if (i > 0 && out != NULL)
            out[length] = ',';
        length += i > 0;
        length += print_entry(&entries[i], at, at + bytes, out != NULL ? out + length : NULL);
        entries[i].file_offset = at;
        at += bytes;
    }
    if (out != NULL) {
        out[0] = '{';
        out[length] = '}';
    }
    *data_out = at;
    return length + 1;
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_names(const struct mpp_st_entry *entries, int n, struct mpp_error *error)
{
    const char **names = malloc(((size_t)n + 1) * sizeof *names);
    int code = MPP_EXIT_OK;
    if (names == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    for (int i = 0; i < n; i++)
        names[i] = entries[i].name;
    qsort(names, (size_t)n, sizeof *names, compare_text);
    for (int i = 1; code == MPP_EXIT_OK && i < n; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            code = mpp_error_set(error, MPP_EXIT_SYSTEM, "two tensors are called \"%.80s\"", names[i]);
    free(names);
    return code;
}

/* The file's begin: the length of the text in 8 bytes, and the text, padded with spaces to 8. Fills file_offset;
 * *END_OUT is the file's size. The caller frees. */
static int layout(struct mpp_st_entry *entries, int n, char **text_out, int64_t *length_out, int64_t *end_out,
                  struct mpp_error *error)
{
    int code = check_names(entries, n, error);
    if (code != MPP_EXIT_OK)
        return code;
    int64_t data, length = print_header(entries, n, &data, NULL), padded = (length + 7) / 8 * 8;
    char *text = malloc((size_t)(8 + padded));
    if (text == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    for (int i = 0; i < 8; i++)
        text[i] = (char)(padded >> 8 * i & 255);
    (void)print_header(entries, n, &data, text + 8);
    memset(text + 8 + length, ' ', (size_t)(padded - length));
    for (int i = 0; i < n; i++)
        entries[i].file_offset += 8 + padded;
    *text_out = text;
    *length_out = 8 + padded;
    *end_out = 8 + padded + data;
    return MPP_EXIT_OK;
}

int mpp_st_layout(struct mpp_st_entry *entries, int n, struct mpp_error *error)
{
    char *text = NULL;
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
