/* progress.c - the progress line and the metrics file. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "progress.h"

#define FEW_STEPS 30

struct mpp_progress {
    FILE *metrics;
    const char *path;
    int64_t first, last;
    bool terminal, on_line; /* a line without its end is on the terminal */
    bool warned;            /* of a loss that is no number */
    double printed_s, told_s; /* when a step was last shown, and a checkpoint told */
};

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double mpp_clock_s(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

double mpp_thread_cpu_s(void)
{
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

void mpp_bytes_print(int64_t bytes, char *out, int out_bytes)
{
    static const char *const units[] = {"kB", "MB", "GB", "TB"};
    double x = (double)bytes / 1e3;
    int unit = 0;
    for (; x >= 1e3 && unit < 3; unit++)
        x /= 1e3;
    snprintf(out, (size_t)out_bytes, "%.*f %s", x < 100 ? 1 : 0, x, units[unit]);
}

/* Length of the part of FILE whose lines are of steps up to LAST_STEP. */
static long kept_length(FILE *file, int64_t last_step)
{
    char line[512];
    long at = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        long long step;
        if (strchr(line, '\n') == NULL || sscanf(line, "{\"step\": %lld", &step) != 1 || step > last_step)
            break;
        at += (long)strlen(line);
    }
    return at;
}

static FILE *open_metrics(const char *path, bool append, int64_t first)
{
    struct stat st;
    bool plain = stat(path, &st) == 0 && S_ISREG(st.st_mode); /* a pipe or device holds no earlier lines */
    FILE *file = append && plain ? fopen(path, "r+e") : NULL;
    if (file == NULL)
        return fopen(path, "we");
    long length = kept_length(file, first);
    if (ftruncate(fileno(file), length) != 0 || fseek(file, length, SEEK_SET) != 0) {
        fclose(file);
        return NULL;
    }
    return file;
}

int mpp_progress_open(const char *metrics, bool append, bool rewrite, int64_t first, int64_t last,
                      struct mpp_progress **progress_out, struct mpp_error *error)
{
    struct mpp_progress *p = calloc(1, sizeof *p);
    if (p == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    p->path = metrics;
    p->first = first;
    p->last = last;
    p->terminal = rewrite && isatty(STDOUT_FILENO);
    if (metrics != NULL && (p->metrics = open_metrics(metrics, append, first)) == NULL) {
        free(p);
        return mpp_error_system(error, metrics, errno);
    }
    *progress_out = p;
    return MPP_EXIT_OK;
}

/* "1,234,567": whole from 100 on. */
static void print_rate(double x, char *out, size_t out_bytes)
{
    char digits[48];
    if (!(x < 1e15)) { /* no such speed; infinite where the clock stood still */
        (void)snprintf(out, out_bytes, "%.4g", x);
        return;
    }
    int n = snprintf(digits, sizeof digits, "%.*f", x < 10 ? 2 : x < 100 ? 1 : 0, x);
    size_t at = 0;
    for (int i = 0; i < n && at + 2 < out_bytes; i++) {
        if (x >= 100 && i > 0 && (n - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
}

static void print_number(FILE *out, const char *name, double x)
{
    if (isfinite(x))
        fprintf(out, ", \"%s\": %.9g", name, x);
    else
        fprintf(out, ", \"%s\": null", name);
}

static void print_line(struct mpp_progress *p, const struct mpp_step_report *r)
{
    double now = mpp_clock_s();
    bool last = r->step == p->last, evaluated = r->evaluated;
    if (!last && !evaluated && p->last - p->first > FEW_STEPS && now - p->printed_s < (p->terminal ? 0.1 : 1.0))
        return;
    char rate[64], eval[48] = "";
    p->printed_s = now;
    print_rate(r->tokens_per_s, rate, sizeof rate);
    if (evaluated)
        (void)snprintf(eval, sizeof eval, "  on other data %.6g", r->eval_loss);
    printf("%sstep %lld/%lld  loss %.6g%s  %s %s/s%s", p->terminal ? "\r" : "", (long long)r->step,
           (long long)p->last, isnan(r->loss) ? fabs(r->loss) : r->loss, eval, rate, r->tokens ? "tokens" : "samples",
           !p->terminal || evaluated ? "\n" : "\033[K");
    p->on_line = p->terminal && !evaluated;
    fflush(stdout);
}

int mpp_progress_step(struct mpp_progress *progress, const struct mpp_step_report *report, struct mpp_error *error)
{
    struct mpp_progress *p = progress;
    print_line(p, report);
    if (!isfinite(report->loss) && !p->warned) {
        fprintf(stderr, "%snote: the loss of step %lld is not finite; see the learning rate, the weights and the data\n",
                p->on_line ? "\n" : "", (long long)report->step);
        p->warned = true;
        p->on_line = false;
    }
    if (p->metrics == NULL)
        return MPP_EXIT_OK;
    fprintf(p->metrics, "{\"step\": %lld", (long long)report->step);
    print_number(p->metrics, "loss", report->loss);
    if (report->evaluated)
        print_number(p->metrics, "eval_loss", report->eval_loss);
    print_number(p->metrics, "grad_norm", report->grad_norm);
    print_number(p->metrics, "lr", report->lr);
    if (report->loss_scale > 0) {
        print_number(p->metrics, "loss_scale", report->loss_scale);
        fprintf(p->metrics, ", \"skipped_steps\": %lld", (long long)report->skipped);
    }
    print_number(p->metrics, "step_s", report->step_s);
    print_number(p->metrics, "tokens_per_s", report->tokens_per_s);
    fputs("}\n", p->metrics);
    if (fflush(p->metrics) != 0 || ferror(p->metrics))
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "%s: %s", p->path, strerror(errno));
    return MPP_EXIT_OK;
}

void mpp_progress_say(struct mpp_progress *progress, const char *fmt, ...)
{
    va_list args;
    if (progress->on_line)
        putchar('\n');
    progress->on_line = false;
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

void mpp_progress_saved(struct mpp_progress *progress, const char *dir, int64_t step)
{
    struct mpp_progress *p = progress;
    double now = mpp_clock_s();
    if (step < p->last && p->last - p->first > FEW_STEPS && now - p->told_s < 1.0)
        return;
    p->told_s = now;
    mpp_progress_say(p, "saved %s/step-%lld", dir, (long long)step);
}

int mpp_progress_flush(struct mpp_progress *progress, struct mpp_error *error)
{
    if (progress->metrics == NULL || fdatasync(fileno(progress->metrics)) == 0 || errno == EINVAL || errno == EROFS)
        return MPP_EXIT_OK;
    return mpp_error_set(error, MPP_EXIT_SYSTEM, "%s: %s", progress->path, strerror(errno));
}

void mpp_progress_close(struct mpp_progress *progress)
{
    if (progress == NULL)
        return;
    if (progress->on_line)
        putchar('\n');
    if (progress->metrics != NULL)
        fclose(progress->metrics);
    free(progress);
}
