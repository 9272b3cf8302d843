/* The gradient of an embedding table against its definition, exactly: rows by the thousand, shards of the vocabulary, ids of which
 * one has all rows, half of them, or one each. On CUDA's kernels, bytes too: they grow as the rows do (main calls itself for that,
 * as the shim tells them at the end of a process). */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/half.h"
#include "mpp_math.h"
#include "mpp_rt.h"

static int passed, failed;

static void expect(bool ok, const char *what)
{
    passed += ok;
    failed += !ok;
    if (!ok)
        fprintf(stderr, "failed: %s\n", what);
}

enum ids { ONE_ID, HALF_ONE_ID, DISTINCT, SOME_OF_EACH, N_IDS };
static const char *const id_names[] = {"one id", "half of one id", "distinct ids", "some of each"};

struct table {
    int64_t rows, vocab, offset, valid, padded, width; /* of the shard: offset, valid, padded */
    enum ids ids;
    int64_t row_padding; /* rows stand as [.., 7] of [.., 7 + this] */
};

static void *take(size_t bytes)
{
    void *x = malloc(bytes + 64);
    if (x == NULL)
        exit(2);
    memset(x, 0xff, bytes + 64);
    return x;
}

static int32_t id_of(const struct table *t, int64_t i)
{
    switch (t->ids) {
    case ONE_ID: return (int32_t)(t->offset + t->valid / 2);
    case HALF_ONE_ID: return (int32_t)(i % 2 ? t->offset : i * 7919 % t->vocab);
    case DISTINCT: return (int32_t)((t->vocab - 1 - i % t->vocab + t->offset) % t->vocab);
    default: return (int32_t)(i * i * 31 % t->vocab);
    }
}

/* Valid row I among the padded ones. */
static int64_t place_of(const struct table *t, int64_t i)
{
    return i / 7 * (7 + t->row_padding) + i % 7;
}

static void gradient(struct mpp_rank *r, const struct table *t, enum mpp_type type, const int32_t *ids, const void *dy, float beta,
                     float *dtable)
{
    struct mpp_space rows = {2, {t->rows / 7, 7 + t->row_padding}, {t->rows / 7, 7}};
    struct mpp_extent vocab = {t->vocab, t->padded, t->valid, t->offset};
    if (type == MPP_TYPE_F32)
        mpp_embedding_backward(r, &rows, vocab, t->width, ids, dy, beta, dtable);
    else
        mpp_embedding_backward_half(r, type, &rows, vocab, t->width, ids, dy, beta, dtable);
}

/* Small integers, of which every type holds each and float every sum; in REAL none that are. */
static double element(int64_t row, int64_t j, bool real)
{
    int64_t i = (row * 37 + j * 11) % 101 - 50;
    return real ? sin((double)(row * 1009 + j)) : (double)i;
}

struct operands {
    int32_t *ids;
    void *dy;
    int64_t n_table;
};

static struct operands operands_of(const struct table *t, enum mpp_type type, bool real)
{
    int64_t places = t->rows / 7 * (7 + t->row_padding), n = places * t->width;
    struct operands o = {take((size_t)places * sizeof *o.ids), take((size_t)n * sizeof(float)), t->padded * t->width};
    for (int64_t i = 0; i < t->rows; i++) {
        int64_t at = place_of(t, i);
        o.ids[at] = id_of(t, i);
        for (int64_t j = 0; j < t->width; j++) {
            float x = (float)element(i, j, real);
            if (type == MPP_TYPE_F32)
                ((float *)o.dy)[at * t->width + j] = x;
            else
                ((uint16_t *)o.dy)[at * t->width + j] = mpp_half_of(type, x);
        }
    }
    return o;
}

static void drop(struct operands *o)
{
    free(o->ids);
    free(o->dy);
}

static void check_sums(const struct table *t, enum mpp_type type)
{
    struct mpp_rank r = {.workspace = take(1 << 20)};
    struct operands o = operands_of(t, type, false);
    float *got = take((size_t)o.n_table * sizeof *got);
    double *want = calloc((size_t)o.n_table + 1, sizeof *want);
    for (int64_t i = 0; i < t->rows; i++) {
        int64_t at = id_of(t, i) - t->offset;
        for (int64_t j = 0; j < t->width && at >= 0 && at < t->valid; j++)
            want[at * t->width + j] += element(i, j, false);
    }
    for (int turn = 1; turn <= 2; turn++) { /* the second is added to the first */
        gradient(&r, t, type, o.ids, o.dy, turn == 1 ? 0.0f : 1.0f, got);
        bool ok = true;
        for (int64_t i = 0; i < t->valid * t->width; i++)
            ok = ok && (double)got[i] == turn * want[i];
        char what[256];
        snprintf(what, sizeof what, "%lld rows, %s of %lld, a shard of %lld from %lld on, %lld columns, type %d, turn %d", (long long)t->rows,
                 id_names[t->ids], (long long)t->vocab, (long long)t->valid, (long long)t->offset, (long long)t->width, (int)type, turn);
        expect(ok, what);
    }
    free(got);
    free(want);
    free(r.workspace);
    drop(&o);
}

static void check_all_sums(void)
{
    static const int64_t rows[] = {0, 7, 119, 1029, 4200};
    static const struct { int64_t vocab, offset, valid, padded; } shards[] = {
        {2, 0, 2, 2}, {33, 0, 33, 33}, {33, 17, 16, 17}, {5000, 0, 5000, 5000}, {5000, 1250, 1250, 1250}, {70000, 69989, 11, 35000}, {9, 9, 0, 3},
    };
    for (int i = 0; i < 5; i++)
        for (int s = 0; s < 7; s++)
            for (int k = 0; k < N_IDS; k++) {
                static const int64_t widths[] = {1, 3, 4, 36};
                static const enum mpp_type types[] = {MPP_TYPE_F32, MPP_TYPE_BF16, MPP_TYPE_F16};
                struct table t = {rows[i], shards[s].vocab, shards[s].offset, shards[s].valid, shards[s].padded, widths[(i + s + k) % 4],
                                  (enum ids)k, (i + k) % 3};
                t.width = shards[s].padded > 6000 ? 1 : t.width;
                check_sums(&t, types[(s + k) % 3]);
            }
}

/* The same bits each time, though sums of these depend on the order. */
static void check_bits(void)
{
    struct mpp_rank r = {0};
    struct table t = {5600, 77, 0, 77, 77, 36, HALF_ONE_ID, 0};
    struct operands o = operands_of(&t, MPP_TYPE_F32, true);
    float *first = take((size_t)o.n_table * sizeof *first), *again = take((size_t)o.n_table * sizeof *again);
    gradient(&r, &t, MPP_TYPE_F32, o.ids, o.dy, 0, first);
    gradient(&r, &t, MPP_TYPE_F32, o.ids, o.dy, 0, again);
    expect(memcmp(first, again, (size_t)o.n_table * sizeof *first) == 0, "the same bits each time");
    free(first);
    free(again);
    drop(&o);
}

#if defined MPP_CONFORMANCE_H && !defined MPP_CONFORMANCE_GPU
enum { COUNTED_VOCAB = 30000, COUNTED_WIDTH = 8 };
#define COUNTED_ROWS "MPP_TABLE_ROWS"
#define COUNTED_IDS "MPP_TABLE_IDS"

/* What the process that is to be counted does. */
static int count_rows(const char *rows, const char *ids)
{
    struct mpp_rank r = {0};
    struct table t = {atoll(rows), COUNTED_VOCAB, 0, COUNTED_VOCAB, COUNTED_VOCAB, COUNTED_WIDTH, (enum ids)atoi(ids), 0};
    struct operands o = operands_of(&t, MPP_TYPE_F32, false);
    float *dtable = take((size_t)o.n_table * sizeof *dtable);
    gradient(&r, &t, MPP_TYPE_F32, o.ids, o.dy, 0, dtable);
    free(dtable);
    drop(&o);
    return 0;
}

/* Bytes that kernels move, and launches, for so many rows; -1: nothing was counted. */
static double bytes_of(int64_t rows, enum ids ids, int64_t *launches_out)
{
    char path[] = "/tmp/mpp-table-XXXXXX", n[32], kind[32], name[256];
    int file = mkstemp(path), status = -1;
    double bytes = -1;
    *launches_out = 0;
    if (file < 0)
        return -1;
    close(file);
    snprintf(n, sizeof n, "%lld", (long long)rows);
    snprintf(kind, sizeof kind, "%d", (int)ids);
    pid_t child = fork();
    if (child == 0) {
        setenv("MPP_SHIM_REPORT", path, 1);
        setenv(COUNTED_ROWS, n, 1);
        setenv(COUNTED_IDS, kind, 1);
        execl("/proc/self/exe", "test_runtime_table", (char *)NULL);
        _exit(127);
    }
    FILE *f = child > 0 && waitpid(child, &status, 0) == child && status == 0 ? fopen(path, "r") : NULL;
    long long launches, read, written;
    while (f != NULL && fscanf(f, "%lld %lld %lld %*d %*d %*d %255[^\n]", &launches, &read, &written, name) == 4) {
        bytes = (bytes < 0 ? 0 : bytes) + (double)read + (double)written;
        *launches_out += launches;
    }
    if (f != NULL)
        fclose(f);
    unlink(path);
    return bytes;
}

/* Of four times the rows, about four times the bytes, by as many launches. */
static void check_work(void)
{
    for (int k = 0; k < N_IDS; k++) {
        int64_t few, many;
        double less = bytes_of(4900, (enum ids)k, &few), more = bytes_of(4 * 4900, (enum ids)k, &many);
        char what[128];
        snprintf(what, sizeof what, "%s: %.0f bytes become %.0f, %lld launches %lld", id_names[k], less, more, (long long)few, (long long)many);
        expect(less > 0 && more < 4.4 * less && few > 0 && many == few, what);
    }
}
#endif

int main(void)
{
#if defined MPP_CONFORMANCE_H && !defined MPP_CONFORMANCE_GPU
    if (getenv(COUNTED_ROWS) != NULL)
        return count_rows(getenv(COUNTED_ROWS), getenv(COUNTED_IDS));
    check_work();
#endif
    check_all_sums();
    check_bits();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
