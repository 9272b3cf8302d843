/* mpplan - plan, generate and explain how to train a model on a cluster.
 *
 *     mpplan model.xml --gpus 4 -o plan/
 *
 * Options, then the stages in order: model -> graph -> plan -> local program -> directory. Exit status: 0 done,
 * 1 the system failed (I/O), 2 the input is wrong or nothing fits. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "codegen/outdir.h"
#include "codegen/program.h"
#include "costmodel/costmodel.h"
#include "ir/graph.h"
#include "ir/layers.h"
#include "ir/model.h"
#include "ir/pass.h"
#include "ir/schema.h"
#include "planner/plan.h"

enum { MAX_DEFINES = 256, MAX_REPLANS = 12 };

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
    "  --gpus N               devices to use (default: 1, or one node of the cluster)\n"
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
    "  --stats FILE           write timings and sizes of the planner as JSON (- for stderr)\n"
    "  --help, --version\n";

struct options {
    const char *model, *cluster, *out, *from_plan, *dump_ilp, *dump_after, *stats;
    int64_t gpus;
    struct mpp_model_options model_options;
    const char *defines[MAX_DEFINES];
    struct mpp_pins pins;
    bool schema, help, version;
};

static volatile int interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- options ---- */

static bool parse_count(struct mpp_diag *diag, const char *option, const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (errno || end == text || *end || v < 1) {
        mpp_diag_error(diag, (struct mpp_loc){0}, "%s %s: give a whole number of at least 1", option, text);
        return false;
    }
    *out = v;
    return true;
}

static void take_option(struct mpp_arena *arena, struct mpp_diag *diag, struct options *o, const char *name,
                        const char *value)
{
    if (!strcmp(name, "-o") || !strcmp(name, "--output"))
        o->out = value;
    else if (!strcmp(name, "--cluster"))
        o->cluster = value;
    else if (!strcmp(name, "--gpus"))
        parse_count(diag, name, value, &o->gpus);
    else if (!strcmp(name, "--batch"))
        parse_count(diag, name, value, &o->model_options.batch);
    else if (!strcmp(name, "--preset"))
        o->model_options.preset = value;
    else if (!strcmp(name, "--from-plan"))
        o->from_plan = value;
    else if (!strcmp(name, "--dump-ilp"))
        o->dump_ilp = value;
    else if (!strcmp(name, "--dump-after"))
        o->dump_after = value;
    else if (!strcmp(name, "--stats"))
        o->stats = value;
    else if (!strcmp(name, "--fix"))
        (void)!mpp_pins_parse(arena, diag, value, &o->pins);
    else if (o->model_options.n_defines == MAX_DEFINES)
        mpp_diag_error(diag, (struct mpp_loc){0}, "more than %d -D options", MAX_DEFINES);
    else
        o->defines[o->model_options.n_defines++] = value;
}

/* Options come as `--name value`, `--name=value`, `-Dname=value` or `-D name=value`. */
static enum mpp_status parse_options(struct mpp_arena *arena, struct mpp_diag *diag, int argc, char **argv,
                                     struct options *o)
{
    static const char *const with_value[] = {"-o", "-D", "--output", "--gpus", "--cluster", "--preset", "--batch", "--fix",
                                             "--from-plan", "--dump-ilp", "--dump-after", "--stats"};
    static const char *const all[] = {"--output", "--gpus", "--cluster", "--preset", "--batch", "--fix", "--from-plan",
                                      "--dump-ilp", "--dump-after", "--stats", "--print-schema", "--help", "--version"};
    o->model_options.defines = o->defines;
    o->pins = mpp_pins_none();
    for (int i = 1; i < argc; i++) {
        char *name = mpp_arena_strdup(arena, argv[i]), *value = NULL;
        if (name[0] != '-') {
            if (o->model)
                mpp_diag_error(diag, (struct mpp_loc){0}, "two model files: %s and %s", o->model, argv[i]);
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
        o->schema = o->schema || !strcmp(name, "--print-schema");
        o->help = o->help || !strcmp(name, "--help") || !strcmp(name, "-h");
        o->version = o->version || !strcmp(name, "--version");
        if (!strcmp(name, "--print-schema") || !strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "--version"))
            continue;
        bool known = false;
        for (size_t k = 0; k < sizeof with_value / sizeof with_value[0]; k++)
            known = known || !strcmp(name, with_value[k]);
        if (!known) {
            mpp_diag_error(diag, (struct mpp_loc){0}, "no option %s%s", name,
                           mpp_diag_hint(diag, name, all, (int)(sizeof all / sizeof all[0])));
            continue;
        }
        if (!value && i + 1 == argc) {
            mpp_diag_error(diag, (struct mpp_loc){0}, "%s wants a value; see mpplan --help", name);
            break;
        }
        take_option(arena, diag, o, name, value ? value : argv[++i]);
    }
    if (!o->model && !o->schema && !o->help && !o->version && !mpp_diag_errors(diag))
        mpp_diag_error(diag, (struct mpp_loc){0}, "no model file; try: mpplan models/gpt.xml --preset tiny --gpus 4 -o plan/");
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
    for (int attempt = 0; attempt < MAX_REPLANS; attempt++) {
        double start = now_s();
        if (o->from_plan)
            MPP_TRY(mpp_plan_read_json(arena, diag, g, cluster, o->from_plan, out_plan));
        else
            MPP_TRY(mpp_plan_search(arena, diag, g, cluster, &options, out_plan));
        MPP_TRY(mpp_plan_derive(arena, diag, g, cluster, *out_plan));
        stats->plan_s += now_s() - start;
        start = now_s();
        MPP_TRY(mpp_lower(arena, g, *out_plan, out_prog));
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
    mpp_diag_error(diag, (struct mpp_loc){0}, "no plan whose arena fits the device's %lld usable bytes was found", (long long)usable);
    return MPP_INFEASIBLE;
}

static enum mpp_status write_report(struct mpp_diag *diag, const struct mpp_graph *g, const struct mpp_cluster *cluster,
                                    const struct mpp_plan *plan, const struct mpp_lprog *prog, const char *path)
{
    FILE *f = path ? fopen(path, "w") : stdout;
    if (!f) {
        mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot write: %s", strerror(errno));
        return MPP_IO;
    }
    enum mpp_status st = mpp_report_write(diag, g, cluster, plan, prog, f);
    bool bad = ferror(f) != 0;
    if (path)
        bad = fclose(f) != 0 || bad;
    if (st == MPP_OK && bad) {
        mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot write: %s", strerror(errno));
        st = MPP_IO;
    }
    return st;
}

static enum mpp_status write_directory(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *g,
                                       const struct mpp_cluster *cluster, const struct mpp_plan *plan,
                                       const struct mpp_lprog *prog, const char *tmp, const char *dir)
{
    enum mpp_status st;
    MPP_TRY_GOTO(st, fail, mpp_emit(arena, diag, g, cluster, plan, prog, tmp));
    MPP_TRY_GOTO(st, fail, mpp_plan_write_json(diag, g, cluster, plan, mpp_arena_printf(arena, "%s/plan.json", tmp)));
    MPP_TRY_GOTO(st, fail, write_report(diag, g, cluster, plan, prog, mpp_arena_printf(arena, "%s/report.txt", tmp)));
    return mpp_outdir_commit(arena, diag, tmp, dir);
fail:
    mpp_outdir_abandon(tmp);
    return st;
}

static enum mpp_status write_stats(struct mpp_diag *diag, const char *path, const struct stats *s,
                                   const struct mpp_graph *g, const struct mpp_plan *plan)
{
    FILE *f = strcmp(path, "-") ? fopen(path, "w") : stderr;
    if (!f) {
        mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot write: %s", strerror(errno));
        return MPP_IO;
    }
    fprintf(f, "{\"read_s\": %.6f, \"plan_s\": %.6f, \"lower_s\": %.6f, \"emit_s\": %.6f, \"ops\": %d, \"groups\": %d, "
               "\"solver_nodes\": %d, \"solver_nodes_reduced\": %d, \"glpk_rows\": %d, \"glpk_cols\": %d, \"gap\": %.9g}\n",
            s->read_s, s->plan_s, s->lower_s, s->emit_s, g->n_ops, g->n_groups, plan->solver.nodes_full,
            plan->solver.nodes_reduced, plan->solver.glpk_rows, plan->solver.glpk_cols, plan->gap);
    bool bad = f == stderr ? false : fclose(f) != 0;
    if (bad)
        mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot write: %s", strerror(errno));
    return bad ? MPP_IO : MPP_OK;
}

static void print_schema(struct mpp_arena *arena)
{
    int n;
    const struct mpp_layer *layers = mpp_layers(&n);
    struct mpp_schema_op *ops = mpp_arena_array(arena, n, struct mpp_schema_op);
    for (int i = 0; i < n; i++)
        ops[i] = (struct mpp_schema_op){layers[i].type, layers[i].attrs};
    mpp_schema_print(stdout, ops, n);
}

/* mkdir -p */
static enum mpp_status make_folders(struct mpp_arena *arena, struct mpp_diag *diag, const char *path)
{
    char *part = mpp_arena_strdup(arena, path);
    for (char *c = part + 1; ; c++) {
        char end = *c;
        if (end != '/' && end != '\0')
            continue;
        *c = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST) {
            mpp_diag_error(diag, (struct mpp_loc){path, 0}, "cannot make the directory: %s", strerror(errno));
            return MPP_IO;
        }
        *c = end;
        if (end == '\0')
            return MPP_OK;
    }
}

static enum mpp_status run(struct mpp_arena *arena, struct mpp_diag *diag, struct options *o)
{
    struct stats stats = {0};
    double start = now_s();
    struct mpp_model *model;
    struct mpp_graph *g;
    struct mpp_cluster *cluster = NULL;
    MPP_TRY(mpp_model_read(arena, diag, o->model, &o->model_options, &model));
    MPP_TRY(mpp_graph_build(arena, diag, model, &g));
    struct mpp_pass_ctx ctx = {.arena = arena, .diag = diag, .dump_after = o->dump_after, .dump_to = stdout};
    MPP_TRY(mpp_passes_run(&ctx, g));
    if (o->dump_after)
        return MPP_OK;
    int64_t n = o->gpus ? o->gpus : o->cluster ? 0 : 1;
    MPP_TRY(mpp_cluster_load(arena, diag, o->cluster ? o->cluster : "host", n, &cluster));
    stats.read_s = now_s() - start;

    const char *tmp = NULL;
    if (o->dump_ilp)
        MPP_TRY(make_folders(arena, diag, o->dump_ilp));
    if (o->out)
        MPP_TRY(mpp_outdir_begin(arena, diag, o->out, &tmp));
    struct mpp_plan *plan;
    struct mpp_lprog *prog;
    enum mpp_status st = plan_and_lower(arena, diag, o, g, cluster, &stats, &plan, &prog);
    if (st != MPP_OK) {
        if (tmp)
            mpp_outdir_abandon(tmp);
        return st;
    }
    start = now_s();
    if (o->out)
        MPP_TRY(write_directory(arena, diag, g, cluster, plan, prog, tmp, o->out));
    stats.emit_s = now_s() - start;
    MPP_TRY(write_report(diag, g, cluster, plan, prog, NULL));
    return o->stats ? write_stats(diag, o->stats, &stats, g, plan) : MPP_OK;
}

int main(int argc, char **argv)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(stderr);
    struct options o = {0};
    signal(SIGINT, on_interrupt);
    enum mpp_status st = parse_options(arena, diag, argc, argv, &o);
    if (st == MPP_OK && o.help)
        fputs(usage, stdout);
    else if (st == MPP_OK && o.version)
        printf("mpplan %s\n", MPP_VERSION);
    else if (st == MPP_OK && o.schema)
        print_schema(arena);
    else if (st == MPP_OK)
        st = run(arena, diag, &o);
    mpp_diag_free(diag);
    mpp_arena_free(arena);
    return st == MPP_OK ? 0 : st == MPP_IO ? 1 : 2;
}
