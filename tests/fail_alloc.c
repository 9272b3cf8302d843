/* fail_alloc.c - lets the N-th allocation of a program fail. A library to preload:
 *
 *     cc -shared -fPIC -O2 -o fail_alloc.so tests/fail_alloc.c -ldl
 *     FAIL_ALLOC_COUNT=count LD_PRELOAD=./fail_alloc.so program ...           # how many calls are there?
 *     FAIL_ALLOC_AT=17 LD_PRELOAD=./fail_alloc.so program ...                 # call 17 fails, later ones do not
 *     FAIL_ALLOC_AT=17 FAIL_ALLOC_KEEP=1 LD_PRELOAD=./fail_alloc.so program   # all fail from call 17 on
 *
 * Counted are malloc, calloc, realloc, posix_memalign, aligned_alloc, memalign and mmap, by the program, its libraries
 * and libc (strdup, fopen), from 1. Environment:
 *
 *     FAIL_ALLOC_AT     the call that fails (unset or 0: none)
 *     FAIL_ALLOC_KEEP   1: all later ones fail too
 *     FAIL_ALLOC_COUNT  file that gets three numbers of 8 bytes in the machine's order: counted calls, failed calls,
 *                       1 once main runs. It is kept up to date, so that it is right after a crash as well. Processes
 *                       that are given one file share it.
 *     FAIL_ALLOC_MAIN   1: only calls after main began
 *     FAIL_ALLOC_SKIP   "libopenblas,libgomp,getline": calls whose caller lies in an object, or is an exported function,
 *                       with such a name are not counted
 *     FAIL_ALLOC_ONLY   "trainer,libc.so,opendir": only calls from such objects or functions are
 *     FAIL_ALLOC_TRACE  file to which each failing call appends a line: number, function, bytes, caller */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* glibc's own, so that none need be looked up (dlsym allocates). */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

struct counts {
    atomic_int_least64_t calls, failed, main_runs;
};

static struct counts here;
static struct counts *shared = &here; /* the file of FAIL_ALLOC_COUNT */
static atomic_int_least64_t n_calls;  /* of this process */
static atomic_bool main_runs;
static bool ready, keep, only_main;
static int64_t fail_at;
static const char *skip, *only, *trace;

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && strcmp(value, "0") != 0;
}

static void set_up(void)
{
    ready = true;
    const char *at = getenv("FAIL_ALLOC_AT"), *file = getenv("FAIL_ALLOC_COUNT");
    fail_at = at != NULL ? atoll(at) : 0;
    keep = is_set("FAIL_ALLOC_KEEP");
    only_main = is_set("FAIL_ALLOC_MAIN");
    skip = getenv("FAIL_ALLOC_SKIP");
    only = getenv("FAIL_ALLOC_ONLY");
    trace = getenv("FAIL_ALLOC_TRACE");
    int fd = file != NULL ? open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (fd < 0)
        return;
    if (ftruncate(fd, sizeof *shared) == 0) {
        long where = syscall(SYS_mmap, NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
        if (where != -1)
            shared = (struct counts *)where;
    }
    close(fd);
}

/* Whether NAME holds one of the words of LIST, which commas separate. */
static bool names_one(const char *list, const char *name)
{
    while (*list != '\0') {
        size_t n = strcspn(list, ",");
        if (n > 0 && memmem(name, strlen(name), list, n) != NULL)
            return true;
        list += n + (list[n] == ',');
    }
    return false;
}

static void write_trace(int64_t n, const char *what, size_t bytes, const void *caller)
{
    char line[512];
    Dl_info at = {0};
    if (dladdr(caller, &at) == 0)
        at.dli_fname = "?";
    int length = snprintf(line, sizeof line, "%lld %s(%zu) from %s+0x%zx %s\n", (long long)n, what, bytes, at.dli_fname,
                          (size_t)((const char *)caller - (const char *)at.dli_fbase),
                          at.dli_sname != NULL ? at.dli_sname : "");
    int fd = open(trace, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0) {
        (void)!write(fd, line, (size_t)length);
        close(fd);
    }
}

/* Counts a call; true where it is to fail. */
static bool fails(const char *what, size_t bytes, const void *caller)
{
    if (!ready)
        set_up();
    if (only_main && !main_runs)
        return false;
    if (skip != NULL || only != NULL) {
        Dl_info at;
        const char *path = dladdr(caller, &at) != 0 && at.dli_fname != NULL ? at.dli_fname : "";
        const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
        const char *function = path[0] != '\0' && at.dli_sname != NULL ? at.dli_sname : "";
        if ((skip != NULL && (names_one(skip, name) || names_one(skip, function))) || (only != NULL && !names_one(only, name) && !names_one(only, function)))
            return false;
    }
    int64_t n = ++n_calls;
    shared->calls++;
    if (fail_at <= 0 || n < fail_at || (n > fail_at && !keep))
        return false;
    shared->failed++;
    if (trace != NULL)
        write_trace(n, what, bytes, caller);
    errno = ENOMEM;
    return true;
}

void *malloc(size_t n)
{
    return fails("malloc", n, __builtin_return_address(0)) ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return fails("calloc", n * size, __builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *old, size_t n)
{
    if (n > 0 && fails("realloc", n, __builtin_return_address(0))) /* realloc(old, 0) frees */
        return NULL;
    return __libc_realloc(old, n);
}

void *memalign(size_t alignment, size_t n)
{
    return fails("memalign", n, __builtin_return_address(0)) ? NULL : __libc_memalign(alignment, n);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    return fails("aligned_alloc", n, __builtin_return_address(0)) ? NULL : __libc_memalign(alignment, n);
}

int posix_memalign(void **out, size_t alignment, size_t n)
{
    if (fails("posix_memalign", n, __builtin_return_address(0)))
        return ENOMEM;
    void *at = __libc_memalign(alignment, n);
    if (at == NULL)
        return ENOMEM;
    *out = at;
    return 0;
}

void *mmap(void *where, size_t n, int protection, int flags, int fd, off_t offset)
{
    if (fails("mmap", n, __builtin_return_address(0)))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, where, n, protection, flags, fd, offset);
}

void *mmap64(void *where, size_t n, int protection, int flags, int fd, off_t offset) __attribute__((alias("mmap")));

/* ---- to know when main begins ---- */

typedef int main_fn(int, char **, char **);
typedef int start_fn(main_fn *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

static main_fn *real_main;

static int counted_main(int argc, char **argv, char **environment)
{
    set_up();                     /* again: the first call may have come before libc knew the environment (ASan) */
    if (only_main)
        n_calls = 0;
    main_runs = true;
    shared->main_runs = 1;
    return real_main(argc, argv, environment);
}

int __libc_start_main(main_fn *program, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end);

int __libc_start_main(main_fn *program, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end)
{
    start_fn *start = (start_fn *)dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = program;
    return start(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}
