/* Readers of foreign files: safetensors, .npy, token shards; what is malformed is refused, never used. Then
 * samples: windows, roles, limits, and that every rank reads its own part of the same batch. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mpp_rt.h"
#include "core/data.h"
#include "core/json.h"
#include "core/npy.h"
#include "core/safetensors.h"
#include "core/tensors.h"
#include "core/tokens.h"
#include "core/transport.h"

static int passed, failed;
static char folder[] = "/tmp/mpp_files_XXXXXX";

static void expect(bool ok, const char *what)
{
    if (ok)
        passed++;
    else
        failed++;
    if (!ok)
        fprintf(stderr, "failed: %s\n", what);
}

static const char *in_folder(const char *name)
{
    static char paths[64][512];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, 512, "%s/%s", folder, name);
    return path;
}

static const char *write_file(const char *name, const void *bytes, size_t n)
{
    const char *path = in_folder(name);
    remove(path); /* file systems flush a file that is cut and written again */
    FILE *out = fopen(path, "w");
    fwrite(bytes, 1, n, out);
    fclose(out);
    return path;
}

/* ---- messages, JSON ---------------------------------------------------------------------------------------- */

static void test_messages(void)
{
    struct mpp_error error;
    char long_text[2000];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    expect(mpp_error_set(&error, 2, "%s", "a\033[1m\n\x7f b") == 2 && strcmp(error.text, "a\\x1b[1m\\x0a\\x7f b") == 0,
           "control characters are written out");
    (void)mpp_error_set(&error, 2, "gr\u00f6\u00dfer \u6587 \U0001f600");
    expect(strcmp(error.text, "gr\u00f6\u00dfer \u6587 \U0001f600") == 0, "other writing is shown");
    (void)mpp_error_set(&error, 2, "%s", "\xff \xc3 \xe2\x80\xae \xc2\x9b \xed\xa0\x80 \xf4\x90\x80\x80");
    expect(strcmp(error.text, "\\xff \\xc3 \\xe2\\x80\\xae \\xc2\\x9b \\xed\\xa0\\x80 \\xf4\\x90\\x80\\x80") == 0,
           "no UTF-8, marks of direction and control characters of two bytes are not");
    (void)mpp_error_set(&error, 2, "%s", long_text);
    expect(strlen(error.text) < sizeof error.text && strcmp(error.text + strlen(error.text) - 4, "x...") == 0,
           "a long message is cut, and says so");
    expect(mpp_error_system(&error, "p", ENOENT) == 2 && mpp_error_system(&error, "p", EIO) == 1 &&
           mpp_error_system(&error, "p", ENOMEM) == 1 && strcmp(error.text, "p: out of memory") == 0, "whose fault it is");
}

static int skip_all(const char *text, struct mpp_error *error)
{
    struct mpp_json j = mpp_json_of("f", text, (int64_t)strlen(text), 0, error);
    mpp_json_skip(&j);
    return mpp_json_end(&j);
}

static void test_json(void)
{
    static const char *const good[] = {"{}", " [ ] ", "-0", "1.5e+3", "0", "[1, \"a\", null, true, {\"k\": [false]}]",
                                       "\"\\u00e9\\ud83d\\ude00\\n\"", "\"\u00f6\""};
    static const char *const bad[] = {"", "{", "}", "[1,]", "{\"a\"}", "{\"a\":}", "{a:1}", "01", "1.", "1e", "-", "+1", "NaN",
                                      "Infinity", "tru", "\"a", "\"\\x\"", "\"\\u12\"", "\"\\ud800\"", "\"\\udc00\"",
                                      "\"\\u0000\"", "\"\n\"", "\"\xff\"", "\"\xc0\x80\"", "1 2", "[1 2]", "{\"a\":1,}", "'a'"};
    struct mpp_error error = {0};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        expect(skip_all(good[i], &error) == 0, good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect(skip_all(bad[i], &error) == 2 && strncmp(error.text, "f: byte ", 8) == 0, bad[i]);
    char deep[200];
    memset(deep, '[', 100);
    memset(deep + 100, ']', 99);
    deep[199] = '\0';
    expect(skip_all(deep, &error) == 2 && strstr(error.text, "nested deeper") != NULL, "depth");

    static const char text[] = "[9223372036854775807, -9223372036854775808, -1.25e2, \"\\u00e9x\", 9223372036854775808]";
    struct mpp_json j = mpp_json_of("f", text, (int64_t)strlen(text), 100, &error);
    int64_t most, least, past = 1;
    double x;
    char word[4];
    bool ok = mpp_json_open(&j, '[') && mpp_json_more(&j, ']') && mpp_json_integer(&j, &most) && mpp_json_more(&j, ']') &&
              mpp_json_integer(&j, &least) && mpp_json_more(&j, ']') && mpp_json_number(&j, &x) && mpp_json_more(&j, ']') &&
              mpp_json_string(&j, word, sizeof word) && mpp_json_more(&j, ']');
    expect(ok && most == INT64_MAX && least == INT64_MIN && x > -125.5 && x < -124.5 && strcmp(word, "\u00e9x") == 0, "values");
    expect(!mpp_json_integer(&j, &past) && past == 0 && mpp_json_end(&j) == 2 &&
           strcmp(error.text, "f: byte 164: a number past 64 bits") == 0, "a number past 64 bits");
    char out[64];
    expect(mpp_json_escape("a\"\\\n\xff", NULL) == 14 && mpp_json_escape("a\"\\\n\xff", out) == 14 &&
           memcmp(out, "a\\\"\\\\\\u000a\xef\xbf\xbd", 14) == 0, "text as JSON");
}

/* ---- safetensors ---------------------------------------------------------------------------------------- */

static const char *write_st(const char *name, const char *header, const void *data, size_t data_bytes)
{
    unsigned char buffer[2048];
    size_t n = strlen(header);
    memset(buffer, 0, 8);
    buffer[0] = (unsigned char)(n & 255);
    buffer[1] = (unsigned char)(n >> 8);
    memcpy(buffer + 8, header, n);
    memcpy(buffer + 8 + n, data, data_bytes);
    return write_file(name, buffer, 8 + n + data_bytes);
}

static void test_safetensors_valid(void)
{
    struct mpp_error error = {0};
    struct mpp_weights *w = NULL;
    unsigned char data[30] = {0};
    float one[2] = {1.5f, -2};
    double wide = 0.25;
    memcpy(data, one, 8);
    memcpy(data + 8, &wide, 8);
    static const unsigned char halves[] = {0x00, 0x3c, 0x01, 0x00, 0x00, 0xfc, 0x80, 0x3f}; /* 1, 2^-24, -inf; bf16 1 */
    memcpy(data + 16, halves, 8);
    const char *path = write_st("ok.safetensors",
        "{\"__metadata__\":{\"format\":\"pt\"},\"t.b\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[8,16]},"
        "\"t.a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
        "\"c\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[16,22]},"
        "\"d\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[22,24]},"
        "\"e\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[24,24]}}  ", data, 24);
    static const char *const strip[] = {"t.", NULL};
    float x[4];
    expect(mpp_weights_open(path, strip, &w, &error) == 0 && mpp_weights_count(w) == 5, "a valid file");
    if (w == NULL)
        return;
    expect(mpp_weights_find(w, "t.a") == NULL && mpp_weights_find(w, "a")->n_dims == 2, "prefixes are removed");
    expect(mpp_weight_read(mpp_weights_find(w, "a"), 0, 2, x) && x[0] == 1.5f && x[1] == -2, "F32");
    expect(mpp_weight_read(mpp_weights_find(w, "b"), 0, 1, x) && x[0] == 0.25f, "F64");
    expect(mpp_weight_read(mpp_weights_find(w, "c"), 0, 3, x) && x[0] == 1 && x[1] == 0x1p-24f && isinf(x[2]), "F16");
    expect(mpp_weight_read(mpp_weights_find(w, "d"), 0, 1, x) && x[0] == 1, "BF16");
    mpp_weights_close(w);

    static const char index[] = "{\"metadata\":{},\"weight_map\":{\"t.a\":\"ok.safetensors\",\"d\":\"ok.safetensors\"}}";
    path = write_file("model.safetensors.index.json", index, strlen(index));
    expect(mpp_weights_open(path, strip, &w, &error) == 0 && mpp_weights_count(w) == 2, "an index");
    mpp_weights_close(w);
    static const char away[] = "{\"weight_map\":{\"a\":\"../ok.safetensors\"}}";
    expect(mpp_weights_open(write_file("away.json", away, strlen(away)), NULL, &w, &error) == 2, "an index that leaves");
    static const char lost[] = "{\"weight_map\":{\"zz\":\"ok.safetensors\"}}";
    expect(mpp_weights_open(write_file("lost.json", lost, strlen(lost)), NULL, &w, &error) == 2, "an index's lost tensor");
}

static void test_safetensors_malformed(void)
{
    static const struct {
        const char *what, *header;
    } cases[] = {
        {"a hole", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}"},
        {"an overlap", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                       "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}"},
        {"trailing bytes", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"},
        {"past the end", "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}"},
        {"a wrong size", "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}"},
        {"backwards", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}"},
        {"negative", "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,-8]}}"},
        {"two negatives", "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2,-1],\"data_offsets\":[0,8]}}"},
        {"an overflow", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}"},
        {"an overflow in bytes", "{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693953],\"data_offsets\":[0,8]}}"},
        {"offsets that overflow", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-9223372036854775807,5]}}"},
        {"a duplicate", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                        "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}"},
        {"an unknown dtype", "{\"a\":{\"dtype\":\"Q8\",\"shape\":[8],\"data_offsets\":[0,8]}}"},
        {"no dtype", "{\"a\":{\"shape\":[8],\"data_offsets\":[0,8]}}"},
        {"a fraction", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}"},
        {"three offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}"},
        {"a list", "[1]"},
        {"a space in front", " {\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}"},
        {"cut off", "{\"a\":{\"dtype\":\"F32\","},
        {"a number for a tensor", "{\"a\":5}"},
    };
    static const unsigned char data[8] = {0};
    struct mpp_error error;
    struct mpp_weights *w;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        error.text[0] = '\0';
        bool refused = mpp_weights_open(write_st("bad", cases[i].header, data, 8), NULL, &w, &error) == 2;
        expect(refused && strstr(error.text, "/bad: ") != NULL, cases[i].what);
    }
    static const unsigned char huge[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{'};
    expect(mpp_weights_open(write_file("bad", huge, 16), NULL, &w, &error) == 2, "a huge header");
    expect(mpp_weights_open(write_file("bad", huge, 5), NULL, &w, &error) == 2, "a short file");
    expect(mpp_weights_open(write_file("bad", huge, 0), NULL, &w, &error) == 2, "an empty file");
    expect(mpp_weights_open(folder, NULL, &w, &error) == 2, "a folder");
}

static void test_safetensors_write(void)
{
    static const int64_t dims[] = {2, 3};
    struct mpp_st_entry entries[] = {{.name = "x\"y", .n_dims = 2, .dims = dims}, {.name = "n", .type = MPP_TYPE_I32}};
    struct mpp_error error = {0};
    struct mpp_weights *w = NULL;
    const char *path = in_folder("out.safetensors");
    expect(mpp_st_create(path, entries, 2, &error) == 0 && entries[0].file_offset % 8 == 0, "create");
    expect(mpp_weights_open(path, NULL, &w, &error) == 0 && mpp_weights_count(w) == 2 &&
               mpp_weights_find(w, "x\"y")->count == 6 && mpp_weights_find(w, "n")->dtype == MPP_DTYPE_I32, "and read back");
    mpp_weights_close(w);
    entries[1].name = entries[0].name;
    expect(mpp_st_create(path, entries, 2, &error) == 1, "a name twice");
}

/* ---- npy -------------------------------------------------------------------------------------------------- */

static const char *write_npy(const char *name, const char *dict, const void *data, size_t data_bytes)
{
    unsigned char buffer[4096] = "\x93NUMPY\x01";
    size_t n = strlen(dict);
    buffer[8] = (unsigned char)n;
    buffer[9] = (unsigned char)(n >> 8);
    memcpy(buffer + 10, dict, n);
    memcpy(buffer + 10 + n, data, data_bytes);
    return write_file(name, buffer, 10 + n + data_bytes);
}

static void test_npy(void)
{
    struct mpp_error error = {0};
    struct mpp_npy a;
    int32_t ids[6] = {1, 2, 3, 4, 5, -6};
    expect(mpp_npy_open(write_npy("a.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }  \n", ids, 24),
                        &a, &error) == 0 && a.n_dims == 2 && a.dims[1] == 3 && mpp_npy_integer(&a, 5) == -6, "a valid array");
    mpp_npy_close(&a);
    expect(mpp_npy_open(write_npy("a.npy", "{'shape': (), 'fortran_order': False, 'descr': '<i8'}", ids, 8), &a,
                        &error) == 0 && a.n_dims == 0 && mpp_npy_integer(&a, 0) == (2LL << 32) + 1, "a scalar");
    mpp_npy_close(&a);
    expect(mpp_npy_open(write_npy("a.npy", "{'descr': '|u1', 'fortran_order': True, 'shape': (24,)}", ids, 24), &a,
                        &error) == 0 && a.dims[0] == 24 && mpp_npy_integer(&a, 4) == 2, "one dimension");
    mpp_npy_close(&a);
    static const char *const bad[] = {
        "{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3), }", "{'descr': '>i4', 'fortran_order': False, 'shape': (2, 3)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (6,)}", "{'descr': [('x', '<i4')], 'fortran_order': False, 'shape': (6,)}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (7,)}", "{'descr': '<i4', 'fortran_order': False, 'shape': (5,)}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (-6,)}", "{'descr': '<i4', 'fortran_order': False}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (6,)", "{'descr': '<i4', 'fortran_order': False, 'shape': (6,)} x",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}",
        "{'descr': '<i4', 'descr': '<i4', 'fortran_order': False, 'shape': (6,)}", "", "{", "{'descr",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,6)}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "{'x': 1}",
        "{'descr': '<i4' 'fortran_order': False, 'shape': (6,)}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect(mpp_npy_open(write_npy("a.npy", bad[i], ids, 24), &a, &error) == 2, bad[i]);
    expect(mpp_npy_open(write_file("a.npy", "\x93NUMPY\x04\0\0\0\0\0\0", 12), &a, &error) == 2, "version 4");
    expect(mpp_npy_open(write_file("a.npy", "\x93NUMPY\x02\0\xff\xff\xff\xff", 12), &a, &error) == 2, "a long header");
}

/* ---- tokens -------------------------------------------------------------------------------------------------- */

/* A shard of N tokens, FIRST and up; the header claims COUNT. */
static const char *write_shard(const char *name, uint32_t magic, uint32_t version, uint32_t count, int n, int first)
{
    unsigned char buffer[8192] = {0};
    uint32_t head[3] = {magic, version, count};
    int width = magic == 20240801 ? 4 : 2, at = magic != 0 ? 1024 : 0;
    if (magic != 0)
        memcpy(buffer, head, sizeof head);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < width; k++)
            buffer[at++] = (unsigned char)((first + i) >> 8 * k);
    return write_file(name, buffer, (size_t)at);
}

static void test_tokens(void)
{
    struct mpp_error error = {0};
    struct mpp_tokens *t;
    write_shard("s1.bin", 20240520, 1, 100, 100, 0);
    write_shard("s2.bin", 20240801, 1, 50, 50, 1000);
    write_shard("s3.bin", 0, 0, 0, 7, 2000);
    expect(mpp_tokens_open_glob(in_folder("s?.bin"), &t, &error) == 0 && mpp_tokens_count(t) == 157, "three shards");
    expect(mpp_tokens_set_window(t, 101, &error) == 2, "no window fits");
    expect(mpp_tokens_set_window(t, 10, &error) == 0, "windows of 10");
    int seen[3] = {0}, lowest = 99, highest = 0;
    bool ok = true;
    for (uint64_t sample = 0; sample < 4000; sample++) {
        struct mpp_window w = mpp_tokens_window(t, 7, sample);
        uint32_t x[10];
        mpp_tokens_read(t, w, 0, 10, x);
        for (int i = 1; i < 10; i++)
            ok = ok && x[i] == x[0] + (uint32_t)i;
        seen[w.shard]++;
        if (w.shard == 0) {
            lowest = x[0] < (uint32_t)lowest ? (int)x[0] : lowest;
            highest = x[0] > (uint32_t)highest ? (int)x[0] : highest;
        }
    }
    expect(ok && seen[2] == 0 && lowest == 0 && highest == 90, "windows stay within shards and reach both ends");
    expect(seen[0] > 4000 * 91 / 132 - 150 && seen[0] < 4000 * 91 / 132 + 150, "all places are equally likely");
    mpp_tokens_close(t);
    expect(mpp_tokens_open_glob(in_folder("none*.bin"), &t, &error) == 2, "no file");
    expect(mpp_tokens_open_glob(write_shard("bad.bin", 20240520, 1, 101, 100, 0), &t, &error) == 2, "a wrong count");
    expect(mpp_tokens_open_glob(write_shard("bad.bin", 20240520, 2, 100, 100, 0), &t, &error) == 2, "a wrong version");
    expect(mpp_tokens_open_glob(write_shard("bad.bin", 20240801, 1, 0xffffffff, 3, 0), &t, &error) == 2, "a huge count");
    expect(mpp_tokens_open_glob(write_file("bad.bin", "abc", 3), &t, &error) == 2, "an odd raw shard");
    uint32_t magic = 20240520;
    expect(mpp_tokens_open_glob(write_file("bad.bin", &magic, sizeof magic), &t, &error) == 2 &&
           strstr(error.text, "cut short") != NULL, "a header cut short");
    expect(mpp_tokens_open_glob(write_file("bad.bin", "\x93NUMPY\x01\x00", 8), &t, &error) == 2 &&
           strstr(error.text, "npy:DIR") != NULL, "an array for a token shard");
    expect(mkfifo(in_folder("pipe"), 0666) == 0 && mpp_tokens_open_text(in_folder("pipe"), &t, &error) == 2,
           "a pipe is refused, not waited for");
}

/* ---- samples --------------------------------------------------------------------------------------------------- */

#define T 9
static struct mpp_tensor tensors[] = {
    {.name = "ids", .kind = MPP_KIND_INPUT, .type = MPP_TYPE_I32, .n_dims = 2, .dims = {3, T}, .split = {1, 2}},
    {.name = "next", .kind = MPP_KIND_INPUT, .type = MPP_TYPE_I32, .n_dims = 2, .dims = {3, T}, .split = {1, 0}},
    {.name = "ones", .kind = MPP_KIND_INPUT, .type = MPP_TYPE_F32, .n_dims = 1, .dims = {3}, .split = {1}},
};
static struct mpp_input inputs[] = {
    {.tensor = 0, .role = MPP_ROLE_TOKENS, .limit = 2007, .batched = true},
    {.tensor = 1, .role = MPP_ROLE_NEXT_TOKENS, .limit = 2007, .batched = true},
    {.tensor = 2, .role = MPP_ROLE_ONES, .batched = true},
};
static const struct mpp_stage stage = {.n_axes = 2, .axis_size = {2, 2}, .n_tensors = 3, .tensors = tensors, .n_inputs = 3,
                                       .inputs = inputs};
static const struct mpp_stage *const stages[] = {&stage};
static struct mpp_program program = {.n_stages = 1, .stages = stages, .batch = 6, .micro_batches = 2, .mask_share = 0.5,
                                     .mask_id = 4, .ignore_index = -100};

static struct mpp_rank rank_of(int rank)
{
    struct mpp_rank r = {.micro_batches = 2};
    mpp_mesh_place(&r, &program, rank);
    return r;
}

/* The whole [6, T] batch of an input, put together from all ranks; false where two ranks differ. */
static bool assemble(const struct mpp_data *d, int64_t step, int input, int32_t *out)
{
    bool ok = true, set[6 * T] = {false};
    struct mpp_error error;
    for (int m = 0; m < 2; m++)
        for (int rank = 0; rank < 4; rank++) {
            struct mpp_rank r = rank_of(rank);
            int32_t local[4 * T] = {0};
            struct mpp_block b = mpp_block_of(&r, &tensors[input]);
            struct mpp_run run = {0};
            if (mpp_data_fill(d, &r, step, m, input, local, &error) != 0)
                return false;
            while (mpp_block_next(&b, &run))
                for (int64_t i = 0; i < run.count; i++) {
                    int64_t at = m * 3 * T + run.global + i;
                    ok = ok && (!set[at] || out[at] == local[run.local + i]);
                    set[at] = true;
                    out[at] = local[run.local + i];
                }
        }
    for (int i = 0; i < 6 * T; i++)
        ok = ok && set[i];
    return ok;
}

static void test_token_samples(void)
{
    struct mpp_error error = {0};
    struct mpp_data *d = NULL;
    char spec[600];
    int32_t ids[6 * T], next[6 * T], again[6 * T];
    snprintf(spec, sizeof spec, "tokens:%s/s?.bin", folder);
    expect(mpp_data_open(spec, &program, 1, &d, &error) == 0, "tokens");
    expect(assemble(d, 5, 0, ids) && assemble(d, 5, 1, next), "ranks fill the batch");
    bool ok = true;
    for (int i = 0; i < 6 * T; i++)
        ok = ok && next[i] == ids[i] + 1;
    expect(ok, "next tokens are one further");
    program.micro_batches = 1; /* the same samples in one micro-batch of 6, of another step size */
    struct mpp_rank r = rank_of(0);
    r.axis_size[0] = r.axis_size[1] = 1;
    tensors[0].dims[0] = 6;
    ok = mpp_data_fill(d, &r, 5, 0, 0, again, &error) == 0 && memcmp(ids, again, sizeof ids) == 0;
    tensors[0].dims[0] = 3;
    program.micro_batches = 2;
    expect(ok, "samples do not depend on micro-batches or ranks");
    float ones[3] = {0};
    expect(mpp_data_fill(d, &r, 5, 0, 2, ones, &error) == 0 && ones[2] == 1, "ones");
    mpp_data_close(d);

    inputs[0].limit = 30;
    expect(mpp_data_open(spec, &program, 1, &d, &error) == 0, "tokens past a limit");
    ok = true;
    for (int64_t step = 0; ok && step < 50; step++)
        ok = mpp_data_fill(d, &r, step, 0, 0, again, &error) == 0;
    expect(!ok && strstr(error.text, ".bin: element ") != NULL && strstr(error.text, "\"ids\" takes 0 to 29") != NULL,
           "are refused by name");
    mpp_data_close(d);
    snprintf(spec, sizeof spec, "text:%s/s1.bin", folder);
    expect(mpp_data_open(spec, &program, 1, &d, &error) == 2 && strstr(error.text, "at least 256") != NULL,
           "text takes 256 ids");
    inputs[0].limit = 2007;
    expect(mpp_data_open("synthetic", &program, 1, &d, &error) == 0 && assemble(d, 0, 0, ids) && assemble(d, 0, 1, next),
           "synthetic");
    expect(ids[1] == next[0] && ids[T + 4] == next[T + 3] && ids[0] < 2007 && ids[0] >= 0, "synthetic streams are shifted");
    mpp_data_close(d);
}

static void test_masked(void)
{
    struct mpp_error error = {0};
    struct mpp_data *d = NULL;
    int32_t ids[6 * T], labels[6 * T];
    int chosen = 0, masked = 0, kept = 0, wrong = 0;
    inputs[0].role = MPP_ROLE_MASKED_TOKENS;
    inputs[1].role = MPP_ROLE_MASKED_LABELS;
    inputs[1].also_valid = -100;
    char spec[600];
    snprintf(spec, sizeof spec, "tokens:%s/s1.bin", folder);
    expect(mpp_data_open(spec, &program, 1, &d, &error) == 0, "masked tokens");
    for (int64_t step = 0; step < 40; step++) {
        if (!assemble(d, step, 0, ids) || !assemble(d, step, 1, labels))
            wrong++;
        for (int i = 0; i < 6 * T; i++) {
            chosen += labels[i] != -100;
            masked += labels[i] != -100 && ids[i] == 4;
            kept += labels[i] != -100 && ids[i] == labels[i];
            wrong += labels[i] == -100 && ids[i] > 99;
        }
    }
    mpp_data_close(d);
    int total = 40 * 6 * T;
    expect(wrong == 0 && abs(chosen - total / 2) < 120, "half of the tokens are chosen");
    expect(abs(masked - chosen * 8 / 10) < 70 && abs(kept - chosen / 10) < 60, "80 % masked, 10 % kept");
    inputs[0].role = MPP_ROLE_TOKENS;
    inputs[1].role = MPP_ROLE_NEXT_TOKENS;
}

static void test_npy_samples(void)
{
    struct mpp_error error = {0};
    struct mpp_data *d = NULL;
    int32_t batches[2 * 6 * T], got[6 * T];
    char spec[600];
    for (int i = 0; i < 2 * 6 * T; i++)
        batches[i] = i % (12 * T);
    write_npy("ids.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 6, 9)}", batches, sizeof batches);
    write_npy("next.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (12, 9)}", batches, sizeof batches);
    snprintf(spec, sizeof spec, "npy:%s", folder);
    expect(mpp_data_open(spec, &program, 1, &d, &error) == 0, "arrays");
    expect(assemble(d, 3, 0, got) && memcmp(got, batches + 6 * T, sizeof got) == 0, "batches by step");
    expect(assemble(d, 1, 1, got) && got[0] == 6 * T && got[6 * T - 1] == 12 * T - 1, "samples in order");
    expect(assemble(d, 2, 1, got) && got[0] == 0 && got[6 * T - 1] == 6 * T - 1, "samples wrap");
    mpp_data_close(d);
    write_npy("next.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (4, 9)}", batches, 4 * T * 4);
    expect(mpp_data_open(spec, &program, 1, &d, &error) == 2 && strstr(error.text, "holds 4 samples") != NULL,
           "arrays of unequal length");
    batches[30] = 2007;
    write_npy("next.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (12, 9)}", batches, sizeof batches);
    expect(mpp_data_open(spec, &program, 1, &d, &error) == 0 && !assemble(d, 0, 1, got), "an id past the limit");
    mpp_data_close(d);
    static const char *const shapes[] = {"(2, 5, 9)", "(90,)", "(10, 9, 1)", "(9, 10)"};
    for (int i = 0; i < 4; i++) {
        char dict[128];
        snprintf(dict, sizeof dict, "{'descr': '<i4', 'fortran_order': False, 'shape': %s}", shapes[i]);
        write_npy("ids.npy", dict, batches, 90 * 4);
        expect(mpp_data_open(spec, &program, 1, &d, &error) == 2 && strstr(error.text, "its shape is") != NULL, shapes[i]);
    }
    write_npy("ids.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (10, 9)}", batches, 90 * 4);
    expect(mpp_data_open(spec, &program, 1, &d, &error) == 2 && strstr(error.text, "dtype is <f4") != NULL, "floats for ids");
}

/* ---- damaged files: readers refuse or read within bounds (run under AddressSanitizer) ------------------------- */

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void read_damaged(int kind, const char *path)
{
    struct mpp_error error;
    struct mpp_weights *w;
    struct mpp_npy a;
    struct mpp_tokens *t;
    if (kind == 0 && mpp_weights_open(path, NULL, &w, &error) == 0) {
        for (int i = 0; i < mpp_weights_count(w); i++) {
            struct mpp_weight *x = mpp_weights_at(w, i);
            float *out = malloc((size_t)(x->count + 1) * sizeof *out);
            (void)mpp_weight_read(x, 0, x->count, out);
            free(out);
        }
        mpp_weights_close(w);
    } else if (kind == 1 && mpp_npy_open(path, &a, &error) == 0) {
        for (int64_t i = 0; !mpp_npy_is_float(&a) && i < a.count; i++)
            (void)mpp_npy_integer(&a, i);
        mpp_npy_close(&a);
    } else if (kind == 2 && mpp_tokens_open_glob(path, &t, &error) == 0) {
        uint32_t x[4];
        if (mpp_tokens_set_window(t, 4, &error) == 0)
            mpp_tokens_read(t, mpp_tokens_window(t, 1, 1), 0, 4, x);
        mpp_tokens_close(t);
    }
}

static void test_damaged(void)
{
    int32_t ids[6] = {1, 2, 3, 4, 5, 6};
    uint32_t state = 1;
    for (int kind = 0; kind < 3; kind++) {
        const char *path = kind == 0 ? write_st("good",
            "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
            "\"b\":{\"dtype\":\"BF16\",\"shape\":[8],\"data_offsets\":[8,24]}}", ids, 24)
            : kind == 1 ? write_npy("good", "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }", ids, 24)
                        : write_shard("good", 20240520, 1, 20, 20, 5);
        unsigned char good[4096], bad[4096];
        FILE *in = fopen(path, "r");
        size_t n = fread(good, 1, sizeof good, in);
        fclose(in);
        for (int i = 0; i < 2000; i++) {
            memcpy(bad, good, n);
            size_t length = i % 4 == 0 ? next_random(&state) % (uint32_t)n : n;
            for (uint32_t k = 0; k <= next_random(&state) % 3; k++)
                bad[next_random(&state) % (kind == 2 ? 12 : (uint32_t)n)] =
                    (unsigned char)(i % 2 == 0 ? next_random(&state) : (uint32_t)"0123456789-[]{},:\"' "[next_random(&state) % 20]);
            read_damaged(kind, write_file("damaged", bad, length));
        }
    }
    expect(true, "damaged files are read within bounds");
}

int main(void)
{
    if (mkdtemp(folder) == NULL)
        return 1;
    test_messages();
    test_json();
    test_safetensors_valid();
    test_safetensors_malformed();
    test_safetensors_write();
    test_npy();
    test_tokens();
    test_token_samples();
    test_masked();
    test_npy_samples();
    test_damaged();
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        failed++;
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
