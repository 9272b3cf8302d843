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
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "codegen/outdir.h"
#include "codegen/program.h"
#include "costmodel/costmodel.h"
#include "ir/graph.h"
#include "ir/layers.h"
#include "ir/model.h"
#include "ir/outfile.h"
#include "ir/pass.h"
#include "ir/schema.h"
#include "planner/plan.h"
#include "solver/iopddl.h"

enum { MAX_DEFINES = 256, MAX_REPLANS = 12, MAX_SECONDS = 1000000000 };

static const char usage[] =
    "usage: mpplan MODEL.xml [--gpus N] [--cluster NAME|FILE.xml] [-o DIR]\n"
    "\n"
    "Plan how to train MODEL.xml on N devices and write the trainer, plan.json and report.txt into DIR.\n"
    "\n"
    "model\n"
    "  --preset NAME          a size named in the model file, e.g. gpt2-xl\n"
    "  -D NAME=VALUE          override a <dim> or <param> of the model\n"
    "  --batch N              global batch: samples per step (same as -D on the batch dimension)\n"
    "cluster\n"
    "  --gpus N               devices to use: GPUs of --cluster (default: one node), or threads of this host (1)\n"
    "  --cluster NAME|FILE    host (default), dgx-a100, dgx1-v100, ... or a file (docs/clusters.md)\n"
    "plan\n"
    "  --fix LIST             pin parts: dp=2,tp=4,mesh=2x4,zero=0..3,sequence_parallel=true|false,\n"
    "                         vocab_parallel=true|false,micro_batch=N,micro_batches=N,\n"
    "                         shard:GLOB=dimension/axis (docs/plan.md); may be given more than once\n"
    "  --from-plan FILE       take the decisions from a plan.json instead of searching\n"
    "output\n"
    "  -o DIR                 write the plan directory (without it, only the report is printed)\n"
    "  --dump-ilp DIR         write the integer programs as CPLEX LP files\n"
    "  --dump-after PASS      print the graph after build, autodiff, optimizer or fuse, and stop\n"
    "  --print-schema         print the RELAX NG schema of model files, and stop\n"
    "  --solve-iopddl FILE    solve a problem of the intra-operator parallelism contest (docs/solver.md) instead;\n"
    "  --time-limit S         for at most S seconds\n"
    "  --stats FILE           write timings and sizes of the planner as JSON (- for stderr)\n"
    "  --help, --version\n";

struct options {
    const char *model, *cluster, *out, *from_plan, *dump_ilp, *dump_after, *stats, *iopddl;
    int64_t gpus;
    double time_limit_s;
    struct mpp_model_options model_options;
    const char *defines[MAX_DEFINES];
    struct mpp_pins pins;
    bool pinned, schema, help, version;
};

static volatile int interrupted, may_settle, settles_on_term;

static void say(const char *words)
{
    (void)!write(STDERR_FILENO, words, strlen(words));
}

/* At a terminal the first Ctrl-C during the search ends it with the best plan so far; a contest problem's best answer comes
 * out on any signal. Any other signal ends the process;
 * nothing needs to be removed then, as signals are held while there is a temporary directory. */
static void on_signal(int sig)
{
    if ((sig == SIGINT || settles_on_term) && may_settle && !interrupted) {
        say("\nmpplan: taking the best found so far; once more stops at once\n");
        interrupted = 1;
        return;
    }
    say(sig == SIGINT ? "error: stopped by SIGINT\n" : sig == SIGTERM ? "error: stopped by SIGTERM\n" : "error: stopped by SIGHUP\n");
    _exit(128 + sig);
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

/* ---- options ---- */

enum option_kind { FLAG, TEXT, COUNT, SECONDS, PINS, DEFINE };

static const struct option {
    const char *name;
    enum option_kind kind;
    size_t at;                    /* its field of struct options */
} table[] = {
    {"--output", TEXT, offsetof(struct options, out)},
    {"-o", TEXT, offsetof(struct options, out)},
    {"--gpus", COUNT, offsetof(struct options, gpus)},
    {"--cluster", TEXT, offsetof(struct options, cluster)},
    {"--preset", TEXT, offsetof(struct options, model_options.preset)},
    {"--batch", COUNT, offsetof(struct options, model_options.batch)},
    {"--fix", PINS, 0},
    {"--from-plan", TEXT, offsetof(struct options, from_plan)},
    {"--dump-ilp", TEXT, offsetof(struct options, dump_ilp)},
    {"--dump-after", TEXT, offsetof(struct options, dump_after)},
    {"--stats", TEXT, offsetof(struct options, stats)},
    {"--solve-iopddl", TEXT, offsetof(struct options, iopddl)},
    {"--time-limit", SECONDS, offsetof(struct options, time_limit_s)},
    {"--print-schema", FLAG, offsetof(struct options, schema)},
    {"--help", FLAG, offsetof(struct options, help)},
    {"-h", FLAG, offsetof(struct options, help)},
    {"--version", FLAG, offsetof(struct options, version)},
    {"-D", DEFINE, 0},
};
enum { N_OPTIONS = sizeof table / sizeof table[0] };

static const struct mpp_loc nowhere = {0};

static void take_option(struct mpp_arena *arena, struct mpp_diag *diag, struct options *o, const struct option *option,
                        const char *value)
{
    void *field = (char *)o + option->at;
    char *end;
    switch (option->kind) {
    case FLAG:
        *(bool *)field = true;
        break;
    case TEXT:
        *(const char **)field = value;
        break;
    case COUNT:
        errno = 0;
        *(int64_t *)field = strtoll(value, &end, 10);
        if (errno || *value < '0' || *value > '9' || *end || *(int64_t *)field < 1)
            mpp_diag_error(diag, nowhere, "%s \"%s\": give a whole number of at least 1", option->name, value);
        break;
    case SECONDS:
        *(double *)field = strtod(value, &end);
        if (end == value || *end || !(*(double *)field > 0 && *(double *)field <= MAX_SECONDS))
            mpp_diag_error(diag, nowhere, "%s \"%s\": give seconds, more than 0", option->name, value);
        break;
    case PINS:
        (void)!mpp_pins_parse(arena, diag, value, &o->pins);
        o->pinned = true;
        break;
    case DEFINE:
        if (o->model_options.n_defines == MAX_DEFINES)
            mpp_diag_error(diag, nowhere, "more than %d -D options", MAX_DEFINES);
        else
            o->defines[o->model_options.n_defines++] = value;
        break;
    }
}

static const struct option *find_option(struct mpp_diag *diag, const char *name)
{
    const char *names[N_OPTIONS];
    for (int k = 0; k < N_OPTIONS; k++) {
        if (!strcmp(name, table[k].name))
            return &table[k];
        names[k] = table[k].name;
    }
    mpp_diag_error(diag, nowhere, "no option %s%s", name, mpp_diag_hint(diag, name, names, N_OPTIONS));
    return NULL;
}

/* Options come as `--name value`, `--name=value`, `-Dname=value` or `-D name=value`. */
static enum mpp_status parse_options(struct mpp_arena *arena, struct mpp_diag *diag, int argc, char **argv,
                                     struct options *o)
{
    o->model_options.defines = o->defines;
    o->pins = mpp_pins_none();
    for (int i = 1; i < argc; i++) {
        char *name = mpp_arena_strdup(arena, argv[i]), *value = NULL;
        if (name[0] != '-') {
            if (o->model)
                mpp_diag_error(diag, nowhere, "two model files: %s and %s", o->model, argv[i]);
            o->model = argv[i];
            continue;
        }
        if (!strncmp(name, "-D", 2) && name[2]) {
            value = name + 2;
            name = mpp_arena_strdup(arena, "-D");
        } else if (!strncmp(name, "--", 2) && strchr(name, '=')) {
            value = strchr(name, '=');
            *value++ = '\0';
        }
        const struct option *option = find_option(diag, name);
        if (!option)
            break;                /* what follows may be its value */
        if (option->kind == FLAG && value)
            mpp_diag_error(diag, nowhere, "%s takes no value", name);
        else if (option->kind != FLAG && !value && i + 1 == argc)
            mpp_diag_error(diag, nowhere, "%s wants a value; see mpplan --help", name);
        else
            take_option(arena, diag, o, option, value || option->kind == FLAG ? value : argv[++i]);
    }
    if (o->from_plan && (o->pinned || o->dump_ilp))
        mpp_diag_error(diag, nowhere, "--from-plan and %s exclude each other: a plan that is read is not searched for",
                       o->pinned ? "--fix" : "--dump-ilp");
    const char *beside = o->model ? o->model : o->out ? "-o" : o->cluster ? "--cluster" : o->gpus ? "--gpus" : o->stats ? "--stats"
                         : o->from_plan ? "--from-plan" : o->dump_ilp ? "--dump-ilp" : o->pinned ? "--fix" : NULL;
    if (o->iopddl && beside)
        mpp_diag_error(diag, nowhere, "--solve-iopddl goes with --time-limit alone, not with %s", beside);
    if (!o->iopddl && o->time_limit_s > 0)
        mpp_diag_error(diag, nowhere, "--time-limit goes with --solve-iopddl");
    if (!o->model && !o->iopddl && !o->schema && !o->help && !o->version && !mpp_diag_errors(diag))
        mpp_diag_error(diag, nowhere, "no model file; try: mpplan models/gpt.xml --preset tiny --gpus 4 -o plan/");
    return mpp_diag_errors(diag) ? MPP_INVALID : MPP_OK;
}

/* ---- the stages ---- */

struct stats {
    double read_s, plan_s, lower_s, emit_s;
};

/* A plan whose arena, once laid out, exceeds the device is planned again with less room. */
static enum mpp_status plan_and_lower(struct mpp_arena *arena, struct mpp_diag *diag, const struct options *o,
                                      struct mpp_graph *g, const struct mpp_cluster *cluster, struct stats *stats,
                                      struct mpp_plan **out_plan, struct mpp_lprog **out_prog)
{
    int64_t usable = mpp_device_usable_bytes(&cluster->device);
    struct mpp_plan_options options = {.pins = o->pins, .capacity_bytes = usable, .dump_ilp_dir = o->dump_ilp,
                                       .interrupt = &interrupted};
    int64_t bound_ps = INT64_MAX;     /* of the search in all the room there is: less room proves nothing more */
    for (int attempt = 0; attempt < MAX_REPLANS; attempt++) {
        double start = now_s();
        if (o->from_plan)
            MPP_TRY(mpp_plan_read_json(arena, diag, g, cluster, o->from_plan, out_plan));
        else
            MPP_TRY(mpp_plan_search(arena, diag, g, cluster, &options, out_plan));
        bound_ps = attempt == 0 ? (*out_plan)->bound_ps : bound_ps;
        (*out_plan)->bound_ps = (*out_plan)->bound_ps < bound_ps ? (*out_plan)->bound_ps : bound_ps;
        MPP_TRY(mpp_plan_derive(arena, diag, g, cluster, *out_plan));
        stats->plan_s += now_s() - start;
        start = now_s();
        MPP_TRY(mpp_lower(arena, g, *out_plan, 0, usable, out_prog));
        stats->lower_s += now_s() - start;
        (*out_plan)->stages[0].memory = (*out_prog)->memory;
        int64_t over = (*out_prog)->arena_bytes - usable;
        if (over <= 0)
            return MPP_OK;
        if (o->from_plan) {
            mpp_diag_error(diag, (struct mpp_loc){o->from_plan, 0}, "this plan needs %lld bytes per device, %s has %lld usable",
                           (long long)(*out_prog)->arena_bytes, cluster->device.name, (long long)usable);
            return MPP_INFEASIBLE;
        }
        options.capacity_bytes -= over + usable / 256;
    }
    mpp_diag_error(diag, nowhere, "no plan whose arena fits the device's %lld usable bytes was found", (long long)usable);
    return MPP_INFEASIBLE;
}

static enum mpp_status cannot_write(struct mpp_diag *diag, const char *path)
{
    mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot write: %s", strerror(errno));
    return MPP_IO;
}

static enum mpp_status write_report(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *g,
                                    const struct mpp_cluster *cluster, const struct mpp_plan *plan,
                                    const struct mpp_lprog *prog, const char *path)
{
    struct mpp_outfile *f = mpp_outfile_create(arena, path);
    if (!f)
        return cannot_write(diag, path);
    MPP_TRY(mpp_report_write(diag, g, cluster, plan, prog, mpp_outfile_stream(f)));
    return mpp_outfile_close(f) ? MPP_OK : cannot_write(diag, path);
}

static enum mpp_status write_directory(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *g,
                                       const struct mpp_cluster *cluster, const struct mpp_plan *plan,
                                       const struct mpp_lprog *prog, const char *dir)
{
    struct mpp_outdir *o;
    MPP_TRY(mpp_outdir_begin(arena, diag, dir, &o));
    const char *tmp = mpp_outdir_path(o);
    enum mpp_status st;
    MPP_TRY_GOTO(st, fail, mpp_emit(arena, diag, g, cluster, plan, prog, tmp));
    MPP_TRY_GOTO(st, fail, mpp_plan_write_json(diag, g, cluster, plan, mpp_arena_printf(arena, "%s/plan.json", tmp)));
    MPP_TRY_GOTO(st, fail, write_report(arena, diag, g, cluster, plan, prog, mpp_arena_printf(arena, "%s/report.txt", tmp)));
    return mpp_outdir_commit(o);
fail:
    mpp_outdir_abandon(o);
    return st;
}

static enum mpp_status write_stats(struct mpp_arena *arena, struct mpp_diag *diag, const char *path,
                                   const struct stats *s, const struct mpp_graph *g, const struct mpp_plan *plan)
{
    struct mpp_outfile *file = strcmp(path, "-") ? mpp_outfile_create(arena, path) : NULL;
    if (!file && strcmp(path, "-"))
        return cannot_write(diag, path);
    FILE *f = file ? mpp_outfile_stream(file) : stderr;
    fprintf(f, "{\"read_s\": %.6f, \"plan_s\": %.6f, \"lower_s\": %.6f, \"emit_s\": %.6f, \"ops\": %d, \"groups\": %d, "
               "\"solver_nodes\": %d, \"solver_nodes_reduced\": %d, \"glpk_rows\": %d, \"glpk_cols\": %d, \"gap\": %.9g}\n",
            s->read_s, s->plan_s, s->lower_s, s->emit_s, g->n_ops, g->n_groups, plan->solver.nodes_full,
            plan->solver.nodes_reduced, plan->solver.glpk_rows, plan->solver.glpk_cols, plan->gap);
    return file && !mpp_outfile_close(file) ? cannot_write(diag, path) : MPP_OK;
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
static enum mpp_status make_folders(struct mpp_arena *arena, struct mpp_diag *diag, const char *path)
{
    char *part = mpp_arena_strdup(arena, path);
    for (char *c = *part ? part + 1 : part; ; c++) {
        char end = *c;
        if (end != '/' && end != '\0')
            continue;
        *c = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST) {
            mpp_diag_error(diag, (struct mpp_loc){*path ? path : "--dump-ilp", 0}, "cannot make the directory: %s", strerror(errno));
            return MPP_IO;
        }
        *c = end;
        if (end == '\0')
            return MPP_OK;
    }
}

/* ---- one run ---- */

struct job {
    struct mpp_guard guard;
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    struct options options;
    const char *phase;            /* what is being done, for the message when memory is out */
};

static enum mpp_status run(struct job *job)
{
    struct mpp_arena *arena = job->arena;
    struct mpp_diag *diag = job->diag;
    const struct options *o = &job->options;
    struct stats stats = {0};
    double start = now_s();
    struct mpp_model *model;
    struct mpp_graph *g;
    struct mpp_cluster *cluster = NULL;
    job->phase = "reading the model";
    MPP_TRY(mpp_model_read(arena, diag, o->model, &o->model_options, &model));
    job->phase = "building the training step";
    MPP_TRY(mpp_graph_build(arena, diag, model, &g));
    struct mpp_pass_ctx ctx = {.arena = arena, .diag = diag, .dump_after = o->dump_after, .dump_to = stdout};
    MPP_TRY(mpp_passes_run(&ctx, g));
    if (o->dump_after)
        return MPP_OK;
    job->phase = "reading the cluster";
    int64_t n = o->gpus ? o->gpus : o->cluster ? 0 : 1;
    MPP_TRY(mpp_cluster_load(arena, diag, o->cluster ? o->cluster : "host", n, &cluster));
    stats.read_s = now_s() - start;

    if (o->dump_ilp)
        MPP_TRY(make_folders(arena, diag, o->dump_ilp));
    job->phase = "looking at the output directory";
    hold_signals(true);
    enum mpp_status st = o->out ? mpp_outdir_check(arena, diag, o->out) : MPP_OK;
    hold_signals(false);
    MPP_TRY(st);
    struct mpp_plan *plan;
    struct mpp_lprog *prog;
    job->phase = "planning (fewer --gpus, a smaller model or --fix need less)";
    may_settle = isatty(STDERR_FILENO);
    MPP_TRY(plan_and_lower(arena, diag, o, g, cluster, &stats, &plan, &prog));
    may_settle = false;
    start = now_s();
    job->phase = "writing the plan";
    hold_signals(true);
    st = o->out ? write_directory(arena, diag, g, cluster, plan, prog, o->out) : MPP_OK;
    hold_signals(false);
    MPP_TRY(st);
    stats.emit_s = now_s() - start;
    job->phase = "printing the report";
    MPP_TRY(mpp_report_write(diag, g, cluster, plan, prog, stdout));
    return o->stats ? write_stats(arena, diag, o->stats, &stats, g, plan) : MPP_OK;
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

static int work(struct job *job, int argc, char **argv)
{
    job->arena = mpp_arena_guarded(&job->guard);
    job->diag = mpp_diag_in(job->arena, stderr);
    const struct options *o = &job->options;
    enum mpp_status st = parse_options(job->arena, job->diag, argc, argv, &job->options);
    if (st == MPP_OK && o->help)
        fputs(usage, stdout);
    else if (st == MPP_OK && o->version)
        printf("mpplan %s\n", MPP_VERSION);
    else if (st == MPP_OK && o->schema)
        print_schema(job->arena);
    else if (st == MPP_OK)
        st = o->iopddl ? solve_iopddl(job) : run(job);
    if ((fflush(stdout) != 0 || ferror(stdout)) && st == MPP_OK)
        st = cannot_write(job->diag, "standard output");
    return st == MPP_OK ? 0 : st == MPP_IO ? 1 : st == MPP_LIMIT && interrupted ? 128 + SIGINT : 2;
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
