/* tokens.c - token shards and text files. */
#include <glob.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "mapped.h"
#include "random.h"
#include "tokens.h"

#define MAGIC_U16 20240520
#define MAGIC_U32 20240801
#define HEADER_BYTES 1024

struct shard {
    char *path;
    struct mpp_mapped mapped;
    const unsigned char *data;
    int width; /* bytes of a token */
    bool raw;  /* no header said that these are tokens */
    int64_t count;
    int64_t first_place; /* places where a window may start, in the shards before */
};

struct mpp_tokens {
    int n;
    struct shard *shards;
    int64_t count, places;
};

static struct mpp_tokens *tokens_new(int n)
{
    struct mpp_tokens *t = calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    t->shards = calloc((size_t)n + 1, sizeof *t->shards);
    if (t->shards == NULL) {
        free(t);
        return NULL;
    }
    return t;
}

/* Whether the bytes are a header's, whatever its magic number: the tokens it counts are those that follow. */
static bool has_counted(const unsigned char *at, int64_t n_bytes)
{
    if (n_bytes <= HEADER_BYTES)
        return false;
    int64_t count = mpp_read_u32(at + 8), has = n_bytes - HEADER_BYTES;
    return count > 0 && (has == 2 * count || has == 4 * count);
}

/* Opens as the next shard. */
static int shard_open(struct mpp_tokens *t, const char *path, bool text, struct mpp_error *error)
{
    struct shard *s = &t->shards[t->n];
    s->path = strdup(path);
    if (s->path == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    t->n++;
    int code = mpp_mapped_open(path, &s->mapped, error);
    if (code != MPP_EXIT_OK)
        return code;
    int64_t bytes = s->mapped.n_bytes, header = 0;
    uint32_t magic = !text && bytes >= 4 ? mpp_read_u32(s->mapped.bytes) : 0;
    if ((magic == MAGIC_U16 || magic == MAGIC_U32) && bytes < HEADER_BYTES)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: cut short: a token shard's header takes %d bytes, the file has %lld",
                             path, HEADER_BYTES, (long long)bytes);
    if (!text && bytes >= 6 && memcmp(s->mapped.bytes, "\x93NUMPY", 6) == 0)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: a .npy file, not a token shard; use npy:DIR", path);
    if (magic == __builtin_bswap32(MAGIC_U16) || magic == __builtin_bswap32(MAGIC_U32))
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: a big-endian token shard; write it in little-endian order", path);
    if (!text && magic != MAGIC_U16 && magic != MAGIC_U32 && has_counted(s->mapped.bytes, bytes))
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: token shard of magic number %u; %d and %d are supported", path, magic,
                             MAGIC_U16, MAGIC_U32);
    s->width = text ? 1 : magic == MAGIC_U32 ? 4 : 2;
    s->count = bytes / s->width;
    if (magic == MAGIC_U16 || magic == MAGIC_U32) {
        uint32_t version = mpp_read_u32(s->mapped.bytes + 4);
        header = HEADER_BYTES;
        s->count = mpp_read_u32(s->mapped.bytes + 8);
        /* llm.c writes version 7 beside its u32 magic */
        if (version != 1 && !(magic == MAGIC_U32 && version == 7))
            return mpp_error_set(error, MPP_EXIT_INPUT, "%s: token shard of version %u; version 1 is supported", path,
                                 version);
    }
    if (header + s->count * s->width != bytes) {
        if (header > 0)
            return mpp_error_set(error, MPP_EXIT_INPUT, "%s: its header counts %lld tokens, %lld bytes in all, but the file "
                                 "has %lld", path, (long long)s->count, (long long)(header + s->count * s->width),
                                 (long long)bytes);
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: no token shard: no header, and an odd number of bytes (%lld) for raw "
                             "u16 tokens; use text:FILE for text", path, (long long)bytes);
    }
    s->data = bytes > 0 ? s->mapped.bytes + header : (const unsigned char *)"";
    s->raw = !text && header == 0;
    t->count += s->count;
    return MPP_EXIT_OK;
}

int mpp_tokens_open_text(const char *path, struct mpp_tokens **tokens_out, struct mpp_error *error)
{
    struct mpp_tokens *t = tokens_new(1);
    if (t == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    int code = shard_open(t, path, true, error);
    if (code != MPP_EXIT_OK)
        mpp_tokens_close(t);
    else
        *tokens_out = t;
    return code;
}

int mpp_tokens_open_glob(const char *pattern, struct mpp_tokens **tokens_out, struct mpp_error *error)
{
    glob_t found;
    int rc = glob(pattern, 0, NULL, &found);
    if (rc == GLOB_NOSPACE)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "%s: out of memory", pattern);
    if (rc != 0)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: %s", pattern,
                             rc == GLOB_NOMATCH ? "no such file" : "cannot be listed");
    struct mpp_tokens *t = tokens_new((int)found.gl_pathc);
    int code = t != NULL ? MPP_EXIT_OK : mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    for (size_t i = 0; code == MPP_EXIT_OK && i < found.gl_pathc; i++)
        code = shard_open(t, found.gl_pathv[i], false, error);
    globfree(&found);
    if (code != MPP_EXIT_OK)
        mpp_tokens_close(t);
    else
        *tokens_out = t;
    return code;
}

void mpp_tokens_close(struct mpp_tokens *tokens)
{
    if (tokens == NULL)
        return;
    for (int i = 0; i < tokens->n; i++) {
        mpp_mapped_close(&tokens->shards[i].mapped);
        free(tokens->shards[i].path);
    }
    free(tokens->shards);
    free(tokens);
}

int64_t mpp_tokens_count(const struct mpp_tokens *tokens)
{
    return tokens->count;
}

int mpp_tokens_set_window(struct mpp_tokens *tokens, int64_t length, struct mpp_error *error)
{
    int64_t longest = 0;
    tokens->places = 0;
    for (int i = 0; i < tokens->n; i++) {
        struct shard *s = &tokens->shards[i];
        s->first_place = tokens->places;
        longest = s->count > longest ? s->count : longest;
        if (s->count >= length)
            tokens->places += s->count - length + 1;
    }
    if (tokens->places == 0)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: holds %lld tokens%s, but a sample takes %lld",
                             tokens->shards[0].path, (long long)longest,
                             tokens->n > 1 ? " (the longest of the shards; a sample lies within one)" : "",
                             (long long)length);
    return MPP_EXIT_OK;
}

struct mpp_window mpp_tokens_window(const struct mpp_tokens *tokens, uint64_t seed, uint64_t sample)
{
    uint32_t random[4];
    mpp_random_block(seed, MPP_STREAM_WINDOW, sample, 0, random);
    uint64_t u = random[0] | (uint64_t)random[1] << 32, n = (uint64_t)tokens->places;
    /* floor(u n / 2^64), in halves */
    uint64_t low = (u & 0xffffffffu) * (n & 0xffffffffu), middle = (u >> 32) * (n & 0xffffffffu) + (low >> 32);
    uint64_t other = (u & 0xffffffffu) * (n >> 32) + (middle & 0xffffffffu);
    uint64_t place = (u >> 32) * (n >> 32) + (middle >> 32) + (other >> 32);

    int first = 0, last = tokens->n - 1;
    while (first < last) { /* the last shard whose first place is not past it */
        int mid = (first + last + 1) / 2;
        if (tokens->shards[mid].first_place <= (int64_t)place)
            first = mid;
        else
            last = mid - 1;
    }
    return (struct mpp_window){first, (int64_t)place - tokens->shards[first].first_place};
}

void mpp_tokens_read(const struct mpp_tokens *tokens, struct mpp_window window, int64_t position, int64_t count,
                     uint32_t *out)
{
    const struct shard *s = &tokens->shards[window.shard];
    const unsigned char *at = s->data + (window.start + position) * s->width;
    for (int64_t i = 0; i < count; i++)
        out[i] = s->width == 1 ? at[i] : s->width == 2 ? mpp_read_u16(at + 2 * i) : mpp_read_u32(at + 4 * i);
}

bool mpp_tokens_raw(const struct mpp_tokens *tokens, int shard)
{
    return tokens->shards[shard].raw;
}

const char *mpp_tokens_path(const struct mpp_tokens *tokens, int shard)
{
    return tokens->shards[shard].path;
}
