/* calibrate.c - builds the measuring program as a plan is built, runs it, and writes what its figures come to. */
#include "codegen/calibrate.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "codegen/embed.h"
#include "codegen/emit_internal.h"
#include "codegen/outdir.h"
#include "ir/outfile.h"

extern char **environ;

static const struct mpp_loc nowhere = {0};

/* ---- children ----------------------------------------------------------------------------------- */

/* Wait for PID, the leader of its group; all of it is ended where *INTERRUPT is set. Its status as waitpid has it; -1: it was
 * ended, or cannot be waited for. */
static int await(pid_t pid, volatile int *interrupt)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    int status;
    for (;;) {
        pid_t done = waitpid(pid, &status, WNOHANG);
        if (done == pid)
            return status;
        if (done < 0 && errno != EINTR)
            return -1;
        if (interrupt && *interrupt) {
            kill(-pid, SIGTERM);
            (void)waitpid(pid, &status, 0);
            return -1;
        }
        nanosleep(&pause, NULL);
    }
}

/* Run ARGV, its output and errors into the files OUT and ERRORS; *OUT_STATUS as await has it. An errno where it cannot start. */
static int run(char *const argv[], const char *out, const char *errors, volatile int *interrupt, int *out_status)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, defaults;
    pid_t pid;
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    sigaddset(&defaults, SIGXFSZ);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, out, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, errors, O_WRONLY | O_CREAT | O_APPEND, 0666);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int error = posix_spawnp(&pid, argv[0], &files, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    if (error == 0)
        *out_status = await(pid, interrupt);
    return error;
}

/* PATH as text, at most a megabyte of it; "" where it cannot be read. */
static const char *text_of(struct mpp_arena *arena, const char *path)
{
    enum { MOST = 1 << 20 };
    FILE *f = fopen(path, "r");
    char *text = mpp_arena_alloc(arena, MOST + 1);
    size_t n = f ? fread(text, 1, MOST, f) : 0;
    text[n] = '\0';
    if (f)
        fclose(f);
    return text;
}

/* ---- the program ---------------------------------------------------------------------------------- */

struct calibration {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    volatile int *interrupt;
    const char *dir;              /* temporary */
};

static void remove_dir(void *dir)
{
    mpp_outdir_remove(dir);
}

static enum mpp_status make_dir(struct calibration *c)
{
    const char *tmp = getenv("TMPDIR");
    char *dir = mpp_arena_printf(c->arena, "%s/mpplan-calibrate-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(dir)) {
        mpp_diag_error(c->diag, nowhere, "cannot make a temporary folder in %s: %s; TMPDIR names another place",
                       tmp && *tmp ? tmp : "/tmp", strerror(errno));
        return MPP_IO;
    }
    mpp_arena_defer(c->arena, remove_dir, dir);
    c->dir = dir;
    return MPP_OK;
}

/* The program stands where a plan has its stage. */
static enum mpp_status write_sources(struct calibration *c)
{
    static const char nothing[] = "typedef int mpp_nothing_here;\n";
    const char *makefile = mpp_emit_makefile(c->arena, "stage0.c plan.c kernels.c", NULL);
    const struct mpp_embedded_source *s = mpp_embedded_runtime;
    while (strcmp(s->path, "calibrate/measure.c"))
        s++;
    MPP_TRY(mpp_emit_runtime(c->diag, c->arena, c->dir));
    MPP_TRY(mpp_emit_write(c->diag, c->arena, c->dir, "Makefile", makefile, strlen(makefile)));
    MPP_TRY(mpp_emit_write(c->diag, c->arena, c->dir, "stage0.c", s->text, s->size));
    MPP_TRY(mpp_emit_write(c->diag, c->arena, c->dir, "plan.c", nothing, strlen(nothing)));
    return mpp_emit_write(c->diag, c->arena, c->dir, "kernels.c", nothing, strlen(nothing));
}

/* The first line of LOG that tells of an error, without the folder's name. */
static const char *first_error(struct mpp_arena *arena, const char *log)
{
    static const char *const signs[] = {"fatal error", "error:", "undefined reference", "cannot find", "not found", "Error"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        const char *at = strstr(log, signs[i]);
        if (!at)
            continue;
        while (at > log && at[-1] != '\n')
            at--;
        return mpp_arena_strndup(arena, at, strcspn(at, "\n"));
    }
    return mpp_arena_strndup(arena, log, strcspn(log, "\n"));
}

static enum mpp_status build(struct calibration *c, int cores)
{
    const char *out = mpp_arena_printf(c->arena, "%s/build.out", c->dir), *log = mpp_arena_printf(c->arena, "%s/build.log", c->dir);
    char *argv[] = {(char[]){"make"}, (char[]){"-C"}, mpp_arena_strdup(c->arena, c->dir),
                    mpp_arena_printf(c->arena, "-j%d", cores), (char[]){"MPI=0"}, (char[]){"trainer"}, NULL};
    int status = -1, error = run(argv, out, log, c->interrupt, &status);
    if (error == 0 && status == 0)
        return MPP_OK;
    if (c->interrupt && *c->interrupt)
        return MPP_LIMIT;
    if (error != 0) {
        mpp_diag_error(c->diag, nowhere, "cannot run make: %s; --calibrate builds a program, as plans are built: install make, "
                       "a C compiler and OpenBLAS", strerror(error));
        return MPP_INVALID;
    }
    const char *text = text_of(c->arena, log), *line = first_error(c->arena, text);
    if (strstr(text, "cblas.h") || strstr(text, "cblas_sgemm"))
        mpp_diag_error(c->diag, nowhere, "no BLAS that plans can be built with was found: %s; install OpenBLAS "
                       "(Debian: libopenblas-dev) or say where it is with BLAS_CFLAGS and BLAS_LIBS", line);
    else
        mpp_diag_error(c->diag, nowhere, "the measuring program does not build: %s; it takes what plans take: a C compiler "
                       "(CC names another) and OpenBLAS", line);
    return MPP_INVALID;
}

static enum mpp_status measure(struct calibration *c, double seconds, int cores, const char **out_text)
{
    const char *out = mpp_arena_printf(c->arena, "%s/measured", c->dir), *errors = mpp_arena_printf(c->arena, "%s/errors", c->dir);
    char *argv[] = {mpp_arena_printf(c->arena, "%s/trainer", c->dir), mpp_arena_printf(c->arena, "%g", seconds),
                    mpp_arena_printf(c->arena, "%d", cores), NULL};
    int status = -1, error = run(argv, out, errors, c->interrupt, &status);
    if (error == 0 && status == 0) {
        *out_text = text_of(c->arena, out);
        return MPP_OK;
    }
    if (c->interrupt && *c->interrupt)
        return MPP_LIMIT;
    const char *line = first_error(c->arena, text_of(c->arena, errors));
    if (error != 0)
        line = strerror(error);
    else if (WIFSIGNALED(status))
        line = mpp_arena_printf(c->arena, "signal %d", WTERMSIG(status));
    mpp_diag_error(c->diag, nowhere, "the measuring program failed: %s", line);
    return MPP_IO;
}

/* ---- the file --------------------------------------------------------------------------------------- */

/* "AMD EPYC 9654 96-Core Processor", fit for an attribute. */
static const char *cpu_name(struct mpp_arena *arena)
{
    const char *text = text_of(arena, "/proc/cpuinfo"), *at = strstr(text, "model name");
    at = at ? strchr(at, ':') : NULL;
    if (!at)
        return "this machine's CPU";
    for (at++; *at == ' '; at++)
        ;
    char *name = mpp_arena_strndup(arena, at, strcspn(at, "\n"));
    for (char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr(" ()-._/@,+", *c))
            *c = ' ';
    return name;
}

static void print_device(FILE *f, const struct mpp_device *d, const struct mpp_calibrate_result *r, const char *source)
{
    const struct mpp_gemm_curve *g = &d->gemm;
    fprintf(f, "  <device name=\"%s, one core\" source=\"%s\">\n", d->name, source);
    fprintf(f, "    <!-- The memory of a device is a core's part of the machine's; with more devices than cores it is less. -->\n");
    fprintf(f, "    <memory bytes=\"%lld\" usable=\"0.9\" bytes_per_s=\"%.4g\" source=\"%s: y += a * x on every core at once\">\n",
            (long long)d->mem_bytes, d->mem_bytes_per_s, source);
    for (int i = 0; i < d->n_memory_points; i++)
        fprintf(f, "      <point bytes=\"%.6g\" efficiency=\"%.6g\"/>\n", d->memory_points[i].bytes, d->memory_points[i].efficiency);
    fprintf(f, "    </memory>\n");
    fprintf(f, "    <peak precision=\"f32\" flops_per_s=\"%.4g\" source=\"%s: a tenth above the fastest product\"/>\n",
            d->peak_flops_per_s[MPP_PRECISION_F32], source);
    fprintf(f, "    <kernel launch_s=\"%.4g\" vector_efficiency=\"%.4g\" source=\"%s: a product of 4 x 4 x 4; attention, GELU and "
               "LayerNorm, within %.0f %%\"/>\n", d->launch_s, d->vector_efficiency, source, 100 * r->vector_error);
    fprintf(f, "    <gemm efficiency=\"%.4g\" half_m=\"%.4g\" half_n=\"%.4g\" half_k=\"%.4g\" half_outputs=\"%.4g\" source=\"%s: %d "
               "products from 8 to 4096, half of them within %.0f %%\"/>\n", g->efficiency, g->half_m, g->half_n, g->half_k,
            g->half_outputs, source, r->n_gemms, 100 * r->gemm_error);
    fprintf(f, "  </device>\n");
}

static void print_cluster(FILE *f, const struct mpp_calibrate_result *r, const char *source, int cores)
{
    fprintf(f, "<cluster name=\"calibrated\" devices_per_node=\"any\" nodes=\"1\" source=\"%s\">\n", source);
    print_device(f, &r->device, r, source);
    fprintf(f, "  <shared bytes_per_s=\"%.4g\" total_bytes_per_s=\"%.4g\" cores=\"%d\" source=\"%s: all-reduces of 2 and 4 "
               "threads, half of them within %.0f %%\"/>\n", r->link_bytes_per_s, r->total_bytes_per_s, cores, source,
            100 * r->collective_error);
    fprintf(f, "  <protocol name=\"shared\" base_s=\"%.4g\" step_s=\"%.4g\" source=\"%s: all-reduces of 4 bytes\"/>\n</cluster>\n",
            r->base_s, r->step_s, source);
}

/* What was measured in F, which becomes PATH. */
static enum mpp_status write_figures(struct calibration *c, struct mpp_outfile *f, const char *from, const char *path,
                                     struct mpp_calibrate_result *r, int cores, FILE *notes)
{
    const char *name = cpu_name(c->arena), *source = mpp_arena_printf(c->arena, "measured by --calibrate on %s", name);
    int64_t page = sysconf(_SC_PAGESIZE), pages = sysconf(_SC_PHYS_PAGES);
    r->device.name = name;
    r->device.mem_bytes = (page > 0 && pages > 0 ? pages * page : (int64_t)4 << 30) / cores;
    print_cluster(mpp_outfile_stream(f), r, source, cores);
    if (!mpp_outfile_close(f) || rename(from, path) != 0) {
        enum mpp_status st = mpp_outdir_cannot_create(c->diag, path);
        (void)unlink(from);
        return st;
    }
    if (notes)
        fprintf(notes, "%s, %d core%s: products %.3g GFLOP/s at best, memory %.3g GB/s a core, all-reduce %.3g GB/s\n"
                       "median error of what was fitted: products %.0f %% (%d), other kernels %.0f %% (%d), all-reduces %.0f %% (%d)\n",
                name, cores, cores == 1 ? "" : "s", 1e-9 * r->device.peak_flops_per_s[MPP_PRECISION_F32] / 1.1,
                1e-9 * r->device.mem_bytes_per_s, 1e-9 * r->link_bytes_per_s, 100 * r->gemm_error, r->n_gemms,
                100 * r->vector_error, r->n_vectors, 100 * r->collective_error, r->n_collectives);
    return MPP_OK;
}

static int count_cores(void)
{
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)online;
    return n < 1 ? 1 : n > 1024 ? 1024 : n;
}

enum mpp_status mpp_calibrate(struct mpp_arena *arena, struct mpp_diag *diag, const char *path, double seconds,
                              volatile int *interrupt, FILE *notes)
{
    struct calibration c = {.arena = mpp_arena_scratch(arena), .diag = diag, .interrupt = interrupt};
    struct mpp_calibrate_line *line;
    struct mpp_calibrate_result result;
    const char *text, *from = mpp_arena_printf(c.arena, "%s.mpplan-tmp-%ld", path, (long)getpid());
    int cores = count_cores(), n;
    enum mpp_status st = MPP_OK;
    struct mpp_outfile *f = mpp_outfile_create(c.arena, from); /* before minutes of measuring */
    if (!f)
        st = mpp_outdir_cannot_create(diag, path);
    if (st == MPP_OK)
        st = make_dir(&c);
    if (st == MPP_OK)
        st = write_sources(&c);
    if (st == MPP_OK)
        st = build(&c, cores);
    if (st == MPP_OK)
        st = measure(&c, seconds, cores, &text);
    if (st == MPP_OK && ((n = mpp_calibrate_read(c.arena, text, &line)) < 0 || !mpp_calibrate_fit(c.arena, line, n, &result))) {
        mpp_diag_error(diag, nowhere, "the measuring program printed too little to fit a cost model to");
        st = MPP_IO;
    }
    if (st == MPP_OK)
        st = write_figures(&c, f, from, path, &result, cores, notes);
    mpp_arena_free(c.arena);      /* removes the folder, and the file where it is not whole */
    return st;
}
