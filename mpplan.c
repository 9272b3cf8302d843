/* mpplan - plan, generate and explain how to train a model on a cluster.
 *
 *     mpplan model.xml --gpus 4 -o plan/
 *
 * Options, then the stages in order: model -> graph -> plan -> local program -> directory. Exit status: 0 done,
 * 1 the system failed (I/O), 2 the input is wrong or nothing fits, 3 memory is out, 128 + n signal n ended it. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "codegen/calibrate.h"
#include "codegen/fit.h"
#include "codegen/outdir.h"
#include "codegen/program.h"
#include "costmodel/costmodel.h"
#include "inspect/export.h"
#include "inspect/inspect.h"
#include "inspect/plandir.h"
#include "inspect/recalibrate.h"
#include "inspect/rereport.h"
#include "ir/graph.h"
#include "ir/layers.h"
#include "ir/model.h"
#include "ir/outfile.h"
#include "ir/pass.h"
#include "ir/schema.h"
#include "options.h"
#include "planner/pins.h"
#include "planner/plan.h"
#include "solver/iopddl.h"

enum { CALIBRATE_S = 30 };

static volatile int interrupted, may_settle, settles_on_term, cleans_up, ended_by;

static void say(const char *words)
{
    (void)!write(STDERR_FILENO, words, strlen(words));
}

/* A calibration is ended by the first signal, when it has removed its folder. At a terminal the first Ctrl-C during the search ends it with the best plan so far; a contest problem's best answer comes
 * out on any signal. Any other signal ends the process;
 * nothing needs to be removed then, as signals are held while there is a temporary directory. */
static void on_signal(int sig)
{
    if (cleans_up && !interrupted) {
        ended_by = sig;
        interrupted = MPP_INTERRUPT_USER;
        return;
    }
    if ((sig == SIGINT || settles_on_term) && may_settle && !interrupted) {
        say("\nmpplan: taking the best found so far; once more stops at once\n");
        interrupted = MPP_INTERRUPT_USER;
        return;
    }
    say(sig == SIGINT ? "error: stopped by SIGINT\n" : sig == SIGTERM ? "error: stopped by SIGTERM\n" : "error: stopped by SIGHUP\n");
    _exit(128 + sig);
}

/* --time-limit is over. */
static void on_alarm(int sig)
{
    (void)sig;
    if (!interrupted)
        interrupted = MPP_INTERRUPT_TIME;
}

/* In SECONDS from now the search should stop; 0: not any more. */
static void set_alarm(double seconds)
{
    struct sigaction act = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    long whole = (long)seconds, rest = (long)(1e6 * (seconds - (double)whole));
    struct itimerval t = {.it_value = {whole, seconds > 0 && whole == 0 && rest == 0 ? 1 : rest}};
    sigaction(SIGALRM, &act, NULL);
    (void)setitimer(ITIMER_REAL, &t, NULL);
}

static void catch_signals(void)
{
    struct sigaction end = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction before;
        sigaction(signals[i], NULL, &before);
        if (before.sa_handler != SIG_IGN) /* nohup, or a job in the background */
            sigaction(signals[i], &end, NULL);
    }
    signal(SIGPIPE, SIG_IGN);     /* a write that fails is reported instead: pipes, file size limits */
    signal(SIGXFSZ, SIG_IGN);
}

static void hold_signals(bool hold)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigprocmask(hold ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

/* A standard stream that is closed would be the next file opened. What is written to this one fails as it would have. */
static void keep_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/dev/null", O_RDONLY);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const struct mpp_loc nowhere = {0};

/* ---- the stages ---- */

struct stats {
    double read_s, emit_s;
};

/* ---- the least number of devices ---- */

struct search_for {               /* what a trial needs */
    struct mpp_arena *arena;
    const struct mpp_options *o;
    struct mpp_plan_options options;
    struct mpp_graph *g;
    const struct mpp_cluster *cluster;
};

/* What a trial says of a number of devices. */
enum verdict { FITS, NOT_FOUND, TOO_SMALL, REFUSED };

static enum verdict try_on(const struct search_for *s, int n)
{
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    struct mpp_diag *silent = mpp_diag_in(scratch, NULL);
    struct mpp_cluster resized;
    struct mpp_fitted fitted;
    struct mpp_plan_options options = s->options;
    bool too_small = false;
    options.quiet = options.quick = true;
    options.too_small = &too_small;
    options.dump_ilp_dir = options.export_iopddl_dir = NULL;
    enum mpp_status st = mpp_cluster_resize(s->cluster, n, &resized)
                         ? mpp_fit_plan(scratch, silent, s->g, &resized, &options, s->o->from_plan, false, &fitted) : MPP_INVALID;
    mpp_arena_free(scratch);
    return st == MPP_OK ? FITS : too_small ? TOO_SMALL : st == MPP_INVALID ? REFUSED : NOT_FOUND;
}

/* Twice as many until the model fits, then the least between: as if what fits on N devices did on more. *OUT_FEWER: what is
 * known of one device less. */
static enum mpp_status find_minimum(const struct search_for *s, struct mpp_diag *diag, int *out, enum verdict *out_fewer)
{
    int most = s->cluster->max_devices, none = 0, fits = 1;
    enum verdict now;
    *out_fewer = TOO_SMALL;
    MPP_TRY(mpp_pins_check_model(diag, s->g, &s->o->pins));
    while ((now = try_on(s, fits)) != FITS) {
        if (fits >= most || interrupted) {
            mpp_diag_error(diag, nowhere, interrupted ? "the search was stopped before it found a number of devices that is enough"
                           : "the model fits on no number of devices of %s up to %d", s->cluster->name, fits);
            return interrupted ? MPP_LIMIT : MPP_INFEASIBLE;
        }
        *out_fewer = now;
        none = fits;
        fits = 2 * fits < most ? 2 * fits : most;
    }
    while (fits - none > 1 && !interrupted) {
        int between = none + (fits - none) / 2;
        now = try_on(s, between);
        if (now != FITS)
            *out_fewer = now;
        *(now == FITS ? &fits : &none) = between;
    }
    *out = fits;
    return MPP_OK;
}

/* "fits on 36 devices of dgx-a100 at least; ..." */
static void print_minimum(const char *cluster, int least, enum verdict fewer, const char *stopped)
{
    static const char *const why[] = {[NOT_FOUND] = "no plan that fits was found", [REFUSED] = "nothing does what --fix asks",
                                      [TOO_SMALL] = "none can: parameters and the optimiser's state alone are too large"};
    printf("fits on %d device%s of %s", least, least == 1 ? "" : "s", cluster);
    if (stopped)
        printf("; fewer were not all tried: stopped by %s\n\n", stopped);
    else if (least == 1)
        printf(" at least\n\n");
    else
        printf(" at least; on %d %s\n\n", least - 1, why[fewer]);
}

typedef enum mpp_status report_fn(struct mpp_diag *, const struct mpp_graph *, const struct mpp_cluster *, const struct mpp_plan *,
                                  const struct mpp_lprog *, FILE *);

static enum mpp_status write_report(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *g,
                                    const struct mpp_cluster *cluster, const struct mpp_plan *plan,
                                    const struct mpp_lprog *prog, report_fn *report, const char *path)
{
    struct mpp_outfile *f = mpp_outfile_create(arena, path);
    if (!f)
        return mpp_outdir_cannot_create(diag, path);
    MPP_TRY(report(diag, g, cluster, plan, prog, mpp_outfile_stream(f)));
    return mpp_outfile_close(f) ? MPP_OK : mpp_outdir_cannot_write(diag, path);
}

static const struct mpp_lprog *only_prog(const struct mpp_fitted *f)
{
    return f->plan->n_stages == 1 ? f->progs[0] : NULL;
}

static enum mpp_status write_directory(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *g,
                                       const struct mpp_cluster *cluster, const struct mpp_fitted *fitted, const char *dir)
{
    const struct mpp_plan *plan = fitted->plan;
    struct mpp_outdir *o;
    MPP_TRY(mpp_outdir_begin(arena, diag, dir, &o));
    const char *tmp = mpp_outdir_path(o);
    enum mpp_status st;
    const struct mpp_lprog *prog = only_prog(fitted);
    MPP_TRY_GOTO(st, fail, mpp_emit(arena, diag, g, cluster, plan, fitted->transfers, fitted->progs, tmp));
    MPP_TRY_GOTO(st, fail, mpp_plan_write_json(diag, g, cluster, plan, mpp_arena_printf(arena, "%s/plan.json", tmp)));
    MPP_TRY_GOTO(st, fail, write_report(arena, diag, g, cluster, plan, prog, mpp_report_graph, mpp_arena_printf(arena, "%s/graph.ir", tmp)));
    MPP_TRY_GOTO(st, fail, write_report(arena, diag, g, cluster, plan, prog, mpp_report_write, mpp_arena_printf(arena, "%s/report.txt", tmp)));
    MPP_TRY_GOTO(st, fail, write_report(arena, diag, g, cluster, plan, prog, mpp_report_html, mpp_arena_printf(arena, "%s/report.html", tmp)));
    return mpp_outdir_commit(o);
fail:
    mpp_outdir_abandon(o);
    return st;
}

/* Before anything is planned; nothing is made or emptied. */
static enum mpp_status check_stats(struct mpp_arena *arena, struct mpp_diag *diag, const char *path)
{
    struct stat st;
    char *folder = mpp_arena_strdup(arena, path), *slash = strrchr(folder, '/');
    if (slash)
        *(slash == folder ? slash + 1 : slash) = '\0';
    if (stat(path, &st) != 0)
        return errno != ENOENT || access(slash ? folder : ".", W_OK | X_OK) != 0 ? mpp_outdir_cannot_write(diag, path) : MPP_OK;
    errno = EISDIR;
    return S_ISDIR(st.st_mode) || access(path, W_OK) != 0 ? mpp_outdir_cannot_write(diag, path) : MPP_OK;
}

static enum mpp_status write_stats(struct mpp_arena *arena, struct mpp_diag *diag, const char *path,
                                   const struct stats *s, const struct mpp_graph *g, const struct mpp_fitted *fitted)
{
    const struct mpp_plan *plan = fitted->plan;
    struct mpp_outfile *file = strcmp(path, "-") ? mpp_outfile_create(arena, path) : NULL;
    if (!file && strcmp(path, "-"))
        return mpp_outdir_cannot_create(diag, path);
    FILE *f = file ? mpp_outfile_stream(file) : stderr;
    int groups = 0;
    for (int i = 0; i < plan->n_stages; i++)
        groups += plan->stages[i].graph->n_groups;
    fprintf(f, "{\"read_s\": %.6f, \"plan_s\": %.6f, \"lower_s\": %.6f, \"emit_s\": %.6f, \"ops\": %d, \"groups\": %d, "
               "\"solver_nodes\": %d, \"solver_nodes_reduced\": %d, \"glpk_rows\": %d, \"glpk_cols\": %d, \"gap\": %.9g}\n",
            s->read_s, fitted->plan_s, fitted->lower_s, s->emit_s, g->n_ops, groups, plan->solver.nodes_full,
            plan->solver.nodes_reduced, plan->solver.glpk_rows, plan->solver.glpk_cols, plan->gap);
    return file && !mpp_outfile_close(file) ? mpp_outdir_cannot_write(diag, path) : MPP_OK;
}

static void print_schema(struct mpp_arena *arena)
{
    int n;
    const struct mpp_layer *layers = mpp_layers(&n);
    struct mpp_schema_op *ops = mpp_arena_array(arena, n, struct mpp_schema_op);
    for (int i = 0; i < n; i++)
        ops[i] = (struct mpp_schema_op){layers[i].type, layers[i].attrs};
    mpp_schema_print(arena, stdout, ops, n);
}

/* mkdir -p */
static enum mpp_status make_folders(struct mpp_arena *arena, struct mpp_diag *diag, const char *option, const char *path)
{
    char *part = mpp_arena_strdup(arena, path);
    for (char *c = *part ? part + 1 : part; ; c++) {
        char end = *c;
        if (end != '/' && end != '\0')
            continue;
        *c = '\0';
        struct stat st;
        int why = mkdir(part, 0777) == 0 ? 0 : errno;
        bool there = why == EEXIST && stat(part, &st) == 0;
        if (there && !S_ISDIR(st.st_mode)) {
            mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot make the directory: %s exists and is not a directory; choose another for %s",
                           strcmp(part, path) ? part : "it", option);
            return MPP_INVALID;
        }
        if (why && !there) {
            mpp_diag_error(diag, (struct mpp_loc){*path ? path : "the directory to write to", 0}, "cannot make the directory: %s", strerror(why));
            return mpp_outdir_status(why);
        }
        *c = end;
        if (end == '\0')
            return MPP_OK;
    }
}

/* ---- progress ---- */

static const double PATIENCE_S = 2, REDRAW_S = 0.1;

struct progress {                 /* one line of a terminal that is written over; nothing for the first seconds */
    double start_s, drawn_s;
    bool drawn;
};

static ssize_t draw(void *cookie, const char *text, size_t size)
{
    struct progress *p = cookie;
    double now = now_s();
    size_t n = size && text[size - 1] == '\n' ? size - 1 : size, width = 78;
    if (n > 0 && now - p->start_s > PATIENCE_S && now - p->drawn_s > REDRAW_S) {
        fprintf(stderr, "\r\033[K%.0f s  %.*s", now - p->start_s, (int)(n < width ? n : width), text);
        p->drawn = true;
        p->drawn_s = now;
    }
    return (ssize_t)size;
}

/* NULL where nobody watches. */
static FILE *progress_begin(struct progress *p)
{
    *p = (struct progress){.start_s = now_s()};
    FILE *f = isatty(STDERR_FILENO) ? fopencookie(p, "w", (cookie_io_functions_t){.write = draw}) : NULL;
    if (f)
        setvbuf(f, NULL, _IOLBF, BUFSIZ);
    return f;
}

static void progress_end(struct progress *p, FILE *f)
{
    if (f)
        fclose(f);
    if (p->drawn)
        fputs("\r\033[K", stderr);
}

/* ---- one run ---- */

struct job {
    struct mpp_guard guard;
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    struct mpp_options options;
    const char *phase;            /* what is being done, for the message when memory is out */
};

/* The training step as it is before its ops are grouped: stages are grouped one by one. */
static enum mpp_status read_input(struct job *job, struct mpp_graph **out_g, struct mpp_cluster **out_cluster)
{
    const struct mpp_options *o = &job->options;
    struct mpp_model *model;
    job->phase = "reading the model";
    MPP_TRY(mpp_model_read(job->arena, job->diag, o->model, &o->model_options, &model));
    job->phase = "building the training step";
    MPP_TRY(mpp_graph_build(job->arena, job->diag, model, out_g));
    struct mpp_pass_ctx ctx = {.arena = job->arena, .diag = job->diag, .dump_after = o->dump_after, .dump_to = stdout,
                               .unfused = o->unfused, .before_fuse = !o->dump_after || strcmp(o->dump_after, "fuse") != 0};
    MPP_TRY(mpp_passes_run(&ctx, *out_g));
    if (o->dump_after)
        return MPP_OK;
    job->phase = "reading the cluster";
    int64_t n = o->gpus ? o->gpus : o->cluster || o->min_gpus ? 0 : 1;
    return mpp_cluster_load(job->arena, job->diag, o->cluster ? o->cluster : "host", n, out_cluster);
}

static enum mpp_status search(struct job *job, struct mpp_graph *g, struct mpp_cluster *cluster, struct mpp_fitted *out)
{
    const struct mpp_options *o = &job->options;
    struct progress progress;
    struct mpp_plan_options options = {.pins = o->pins, .dump_ilp_dir = o->dump_ilp,
                                       .export_iopddl_dir = o->export_iopddl, .overlap = o->overlap,
                                       .interrupt = &interrupted, .progress = progress_begin(&progress)};
    enum mpp_status st = MPP_OK;
    int least = 0;
    enum verdict fewer = TOO_SMALL;
    set_alarm(o->time_limit_s);
    job->phase = "planning (fewer --gpus, a smaller model or --fix need less)";
    may_settle = isatty(STDERR_FILENO);
    if (o->min_gpus)
        st = find_minimum(&(struct search_for){job->arena, o, options, g, cluster}, job->diag, &least, &fewer);
    if (st == MPP_OK && least && !mpp_cluster_resize(cluster, least, cluster))
        st = MPP_INVALID;
    const char *stopped = least && interrupted ? mpp_plan_stopped_by(&options) : NULL;
    if (stopped) {                /* the plan that fitted, again */
        options.quick = true;
        options.interrupt = NULL;
    }
    if (st == MPP_OK)
        st = mpp_fit_plan(job->arena, job->diag, g, cluster, &options, o->from_plan, o->out != NULL, out);
    if (st == MPP_OK && stopped)
        out->plan->stopped = stopped;
    may_settle = false;
    set_alarm(0);
    progress_end(&progress, options.progress);
    if (st == MPP_OK && least && !o->json)
        print_minimum(cluster->name, least, fewer, stopped);
    return st;
}

static enum mpp_status print(struct job *job, const struct mpp_graph *g, const struct mpp_cluster *cluster,
                             const struct mpp_plan *plan, const struct mpp_lprog *prog)
{
    const struct mpp_options *o = &job->options;
    job->phase = "printing the report";
    if (o->json)
        return mpp_plan_predict_json(job->diag, g, cluster, plan, stdout);
    MPP_TRY((o->predict ? mpp_report_predict : mpp_report_write)(job->diag, g, cluster, plan, prog, stdout));
    return MPP_OK;
}

static enum mpp_status run(struct job *job)
{
    struct mpp_arena *arena = job->arena;
    struct mpp_diag *diag = job->diag;
    const struct mpp_options *o = &job->options;
    struct stats stats = {0};
    double start = now_s();
    struct mpp_graph *g;
    struct mpp_cluster *cluster;
    MPP_TRY(read_input(job, &g, &cluster));
    if (o->dump_after)
        return MPP_OK;
    stats.read_s = now_s() - start;
    if (o->dump_ilp)
        MPP_TRY(make_folders(arena, diag, "--dump-ilp", o->dump_ilp));
    if (o->export_iopddl)
        MPP_TRY(make_folders(arena, diag, "--export-iopddl", o->export_iopddl));
    if (o->stats && strcmp(o->stats, "-") != 0)
        MPP_TRY(check_stats(arena, diag, o->stats));
    job->phase = "looking at the output directory";
    hold_signals(true);
    enum mpp_status st = o->out ? mpp_outdir_check(arena, diag, o->out) : MPP_OK;
    hold_signals(false);
    MPP_TRY(st);
    struct mpp_fitted fitted;
    MPP_TRY(search(job, g, cluster, &fitted));
    start = now_s();
    job->phase = "writing the plan";
    hold_signals(true);
    st = o->out ? write_directory(arena, diag, g, cluster, &fitted, o->out) : MPP_OK;
    hold_signals(false);
    MPP_TRY(st);
    stats.emit_s = now_s() - start;
    MPP_TRY(print(job, g, cluster, fitted.plan, only_prog(&fitted)));
    return o->stats ? write_stats(arena, diag, o->stats, &stats, g, &fitted) : MPP_OK;
}

/* The reports of a plan directory again, from its graph and its plan; with --profile what a trainer measured beside them. */
static enum mpp_status report(struct job *job)
{
    struct mpp_arena *arena = job->arena;
    struct mpp_diag *diag = job->diag;
    const struct mpp_options *o = &job->options;
    struct mpp_profile *profile = NULL;
    struct mpp_plandir d;
    job->phase = "reading the plan";
    MPP_TRY(mpp_plandir_read(arena, diag, o->report, o->cluster, false, &d));
    job->phase = "reading the trace";
    if (o->profile)
        MPP_TRY(mpp_profile_read(arena, diag, o->profile, &d, &profile));
    job->phase = "writing the report";
    hold_signals(true);
    enum mpp_status st = o->recalibrate ? mpp_recalibrate(arena, diag, profile, o->recalibrate, stderr) : MPP_OK;
    if (st == MPP_OK)
        st = mpp_rereport(arena, diag, &d, profile);
    hold_signals(false);
    MPP_TRY(st);
    MPP_TRY(mpp_report_write(diag, d.graph, d.cluster, d.fitted.plan, mpp_plandir_program(&d), stdout));
    if (profile)
        mpp_profile_print(profile, stdout);
    return MPP_OK;
}

/* --explain and --sweep: plans are made, and what they show is printed. */
static enum mpp_status answer(struct job *job)
{
    const struct mpp_options *o = &job->options;
    const struct mpp_inspect_out out = {stdout, o->json};
    struct progress progress;
    struct mpp_source source = {.model = o->model, .model_options = o->model_options, .cluster = o->cluster, .gpus = o->gpus, .unfused = o->unfused,
                                .plan = {.pins = o->pins, .interrupt = &interrupted}};
    source.plan.progress = progress_begin(&progress);
    job->phase = "planning";
    set_alarm(o->time_limit_s);
    may_settle = isatty(STDERR_FILENO);
    enum mpp_status st = o->explain ? mpp_inspect_explain(job->arena, job->diag, &source, o->from_plan, o->explain, &out)
                         : mpp_inspect_sweep(job->arena, job->diag, &source, o->n_sweeps, o->sweeps, o->price, &out);
    may_settle = false;
    set_alarm(0);
    progress_end(&progress, source.plan.progress);
    return st;
}

static enum mpp_status diff(struct job *job)
{
    const struct mpp_options *o = &job->options;
    job->phase = "reading the plans";
    return mpp_inspect_diff(job->arena, job->diag, o->diff, o->model, o->cluster, &(struct mpp_inspect_out){stdout, o->json});
}

/* A plan directory for other programs. */
static enum mpp_status export(struct job *job)
{
    struct mpp_plandir d;
    job->phase = "reading the plan";
    MPP_TRY(mpp_plandir_read(job->arena, job->diag, job->options.model, job->options.cluster, false, &d));
    job->phase = "writing the export";
    hold_signals(true);
    enum mpp_status st = mpp_export(job->arena, job->diag, job->options.export_kind, &d, job->options.out);
    hold_signals(false);
    return st;
}

static enum mpp_status solve_iopddl(struct job *job)
{
    struct mpp_pairwise_settings set = mpp_pairwise_defaults();
    set.time_limit_s = job->options.time_limit_s;
    set.interrupt = &interrupted;
    job->phase = "solving";
    may_settle = settles_on_term = true;
    enum mpp_status st = mpp_iopddl_solve(job->options.iopddl, &set, job->arena, job->diag, stdout, stderr);
    may_settle = settles_on_term = false;
    return st;
}

/* A signal ends what runs, and the temporary folder goes. */
static enum mpp_status calibrate(struct job *job)
{
    const struct mpp_options *o = &job->options;
    job->phase = "calibrating";
    cleans_up = true;
    enum mpp_status st = mpp_calibrate(job->arena, job->diag, o->calibrate, o->measure_s > 0 ? o->measure_s : CALIBRATE_S,
                                       &interrupted, stdout);
    cleans_up = false;
    if (st == MPP_LIMIT)
        fprintf(stderr, "error: stopped by %s\n", ended_by == SIGINT ? "SIGINT" : ended_by == SIGTERM ? "SIGTERM" : "SIGHUP");
    return st;
}

static int work(struct job *job, int argc, char **argv)
{
    job->arena = mpp_arena_guarded(&job->guard);
    job->diag = mpp_diag_in(job->arena, stderr);
    const struct mpp_options *o = &job->options;
    enum mpp_status st = mpp_options_parse(job->arena, job->diag, argc, argv, &job->options);
    if (st == MPP_OK && o->help)
        mpp_options_help(stdout);
    else if (st == MPP_OK && o->version)
        printf("mpplan %s\n", MPP_VERSION);
    else if (st == MPP_OK && o->schema)
        print_schema(job->arena);
    else if (st == MPP_OK && o->plan_schema)
        fputs(mpp_export_plan_schema(), stdout);
    else if (st == MPP_OK && o->completion)
        mpp_options_completion(stdout, o->completion, mpp_cluster_names(job->arena, &(int){0}));
    else if (st == MPP_OK)
        st = o->calibrate ? calibrate(job)
           : o->iopddl ? solve_iopddl(job)
           : o->report ? report(job)
           : o->export_kind ? export(job)
           : o->diff ? diff(job)
           : o->explain || o->n_sweeps ? answer(job)
           : run(job);
    if ((fflush(stdout) != 0 || ferror(stdout)) && st == MPP_OK)
        st = mpp_outdir_cannot_write(job->diag, "standard output");
    return st == MPP_OK ? 0 : st == MPP_IO ? 1 : st == MPP_LIMIT && interrupted == MPP_INTERRUPT_USER ? 128 + (ended_by ? ended_by : SIGINT) : 2;
}

/* The guard's frame: nothing here changes after setjmp but what JOB holds. */
static int guarded(struct job *job, int argc, char **argv)
{
    if (setjmp(job->guard.escape) == 0)
        return work(job, argc, argv);
    hold_signals(true);           /* the output directory is removed with the arenas */
    size_t mib = job->guard.bytes >> 20;
    mpp_guard_free(&job->guard);
    fprintf(stderr, "error: out of memory while %s; %zu MiB were in use: free some, or raise the limit (ulimit -v)\n",
            job->phase, mib);
    return 3;
}

int main(int argc, char **argv)
{
    struct job job = {.phase = "reading the options"};
    keep_descriptors();
    catch_signals();
    int status = guarded(&job, argc, argv);
    mpp_guard_free(&job.guard);
    return status;
}
