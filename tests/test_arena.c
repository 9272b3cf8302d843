/* Arenas, guards and files that are written whole: what is freed when, and where a failure leaves to. */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ir/arena.h"
#include "ir/diag.h"
#include "ir/outfile.h"

/* Under ASan too, what is far too large is refused rather than a fault of the program. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static int passed, failed;

__attribute__((format(printf, 2, 3))) static void check(bool ok, const char *fmt, ...)
{
    passed += ok;
    failed += !ok;
    if (ok)
        return;
    va_list ap;
    va_start(ap, fmt);
    printf("FAILED: ");
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
}

static void test_memory(void)
{
    struct mpp_arena *a = mpp_arena_new();
    for (size_t size = 0; size < 100000; size = size * 3 + 1) {
        unsigned char *p = mpp_arena_alloc(a, size), *q = mpp_arena_alloc(a, size);
        bool zero = true;
        for (size_t i = 0; i < size; i++)
            zero = zero && p[i] == 0;
        check(zero && p != q && (uintptr_t)p % 16 == 0, "%zu bytes: zeroed, unique, aligned", size);
        memset(p, 0xff, size);
        memset(q, 0xff, size);
    }
    char *big = mpp_arena_alloc(a, (size_t)10 << 20), *small = mpp_arena_alloc(a, 8);
    memset(big, 1, (size_t)10 << 20);
    check(small[0] == 0, "a large block leaves the current chunk alone");
    char *s = mpp_arena_printf(a, "%0300d|%s", 7, "end");
    check(strlen(s) == 304 && !strcmp(s + 299, "7|end"), "a long formatted string: %s", s);
    check(!strcmp(mpp_arena_printf(a, "%s", ""), ""), "an empty formatted string");
    size_t cap = 0;
    int *v = NULL;
    bool kept = true;
    for (int i = 0; i < 1000; i++) {
        v = mpp_arena_grow(a, v, &cap, (size_t)i + 1, sizeof *v);
        v[i] = i;
    }
    for (int i = 0; i < 1000; i++)
        kept = kept && v[i] == i;
    check(kept && cap >= 1000, "a grown array keeps its elements");
    mpp_arena_free(a);
    mpp_arena_free(NULL);
}

/* ---- what is deferred ---- */

struct log {
    char text[64];
};

struct entry {
    struct log *log;
    char letter;
};

static void note(void *p)
{
    struct entry *e = p;
    strncat(e->log->text, &e->letter, 1);
}

static void test_deferred(void)
{
    struct log log = {""};
    struct entry e[] = {{&log, 'a'}, {&log, 'b'}, {&log, 'c'}, {&log, 'd'}};
    struct mpp_guard guard = {0};
    struct mpp_arena *outer = mpp_arena_guarded(&guard), *inner = mpp_arena_scratch(outer), *last = mpp_arena_scratch(inner);
    mpp_arena_defer(outer, note, &e[0]);
    mpp_arena_defer(outer, note, &e[1]);
    mpp_arena_defer(inner, note, &e[2]);
    mpp_arena_defer(last, note, &e[3]);
    check(guard.bytes > 0 && guard.most_bytes == guard.bytes, "a guard counts bytes");
    mpp_arena_free(inner);
    check(!strcmp(log.text, "c"), "freeing an arena runs what it deferred: %s", log.text);
    mpp_guard_free(&guard);
    check(!strcmp(log.text, "cdba"), "a guard frees the newest arena first, each the latest first: %s", log.text);
    check(guard.newest == NULL && guard.bytes == 0 && guard.most_bytes > 0, "a guard that was freed is empty");
    mpp_guard_free(&guard);
}

/* ---- failures ---- */

/* What cannot be had, in several ways. */
static void ask(struct mpp_arena *a, int way)
{
    size_t cap = 8;
    switch (way) {
    case 0: mpp_arena_alloc(a, SIZE_MAX - 100); break;
    case 1: mpp_arena_alloc(a, (size_t)1 << 62); break;
    case 2: mpp_arena_calloc(a, (size_t)1 << 40, (size_t)1 << 40); break;
    case 3: mpp_arena_grow(a, mpp_arena_alloc(a, 8), &cap, SIZE_MAX - 5, 1); break;
    case 4: mpp_arena_alloc(mpp_arena_scratch(a), (size_t)1 << 62); break;
    default: mpp_arena_fail(a, 17);
    }
}

/* 1 where asking leaves to the guard. */
static int leaves(struct mpp_guard *guard, struct mpp_arena *a, int way)
{
    if (setjmp(guard->escape))
        return 1;
    ask(a, way);
    return 0;
}

static void test_failures(void)
{
    for (int way = 0; way < 6; way++) {
        struct log log = {""};
        struct entry e = {&log, 'x'};
        struct mpp_guard guard = {0}, other = {0};
        struct mpp_arena *kept = mpp_arena_guarded(&other), *a = mpp_arena_guarded(&guard);
        mpp_arena_defer(a, note, &e);
        check(leaves(&guard, a, way) == 1, "way %d leaves to the guard", way);
        check(guard.wanted_bytes > 0 && other.wanted_bytes == 0, "way %d: the guard knows what was wanted", way);
        check(!*log.text, "way %d: nothing is freed on the way", way);
        mpp_guard_free(&guard);
        check(!strcmp(log.text, "x") && other.newest == kept, "way %d: the guard frees its own arenas", way);
        mpp_guard_free(&other);
    }
}

/* As a library's callback does. */
static bool caught(struct mpp_arena *a)
{
    jmp_buf here, *before = mpp_arena_catch(a, &here);
    volatile bool ok = false;
    if (setjmp(here) == 0)
        ask(a, 1);
    else
        ok = true;
    mpp_arena_catch(a, before);
    return ok;
}

static void test_caught(void)
{
    struct mpp_guard guard = {0};
    struct mpp_arena *a = mpp_arena_guarded(&guard);
    check(caught(mpp_arena_scratch(a)), "a failure inside a callback stays there");
    check(guard.caught == NULL && leaves(&guard, a, 1) == 1, "afterwards the guard is left to again");
    mpp_guard_free(&guard);
}

static void test_diagnostics(void)
{
    struct mpp_guard guard = {0};
    struct mpp_arena *a = mpp_arena_guarded(&guard);
    struct mpp_diag *diag = mpp_diag_in(a, NULL);
    mpp_diag_error(diag, (struct mpp_loc){"f", 3}, "what %d", 5);
    check(mpp_diag_errors(diag) == 1 && !strcmp(mpp_diag_text(diag), "f:3: error: what 5\n"), "diagnostics in an arena: %s",
          mpp_diag_text(diag));
    mpp_guard_free(&guard);       /* frees DIAG as well */
}

/* ---- files ---- */

static void test_files(void)
{
    char path[] = "/tmp/mpp-arena-XXXXXX";
    int fd = mkstemp(path);
    check(fd >= 0 && close(fd) == 0, "a temporary file");
    struct mpp_arena *a = mpp_arena_new();
    struct mpp_outfile *f = mpp_outfile_create(a, path);
    fputs("whole", mpp_outfile_stream(f));
    struct stat st;
    check(mpp_outfile_close(f) && stat(path, &st) == 0 && st.st_size == 5, "a file is written");
    mpp_arena_free(a);
    check(stat(path, &st) == 0, "and stays when the arena is freed");

    a = mpp_arena_new();
    f = mpp_outfile_create(a, path);
    fputs("half", mpp_outfile_stream(f));
    mpp_arena_free(a);
    check(stat(path, &st) != 0, "a file that was not closed is removed with the arena");

    a = mpp_arena_new();
    f = mpp_outfile_create(a, "/dev/full");
    for (int i = 0; f && i < 10000; i++)
        fputs("more than a buffer", mpp_outfile_stream(f));
    check(f && !mpp_outfile_close(f) && errno == ENOSPC, "a full device is noticed, with its reason: %s", strerror(errno));
    check(stat("/dev/full", &st) == 0, "and is not removed");
    errno = 0;
    check(!mpp_outfile_create(a, "/nonexistent/x") && errno == ENOENT, "a file that cannot be created");
    mpp_arena_free(a);
}

int main(void)
{
    test_memory();
    test_deferred();
    test_failures();
    test_caught();
    test_diagnostics();
    test_files();
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
