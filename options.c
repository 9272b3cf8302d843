/* options.c - the command line: a table of options, and what may stand together. */
#include "options.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "ir/precision.h"

enum { MAX_SECONDS = 1000000000 };

const char mpp_options_usage[] =
    "usage: mpplan MODEL.xml [--gpus N] [--cluster NAME|FILE.xml] [-o DIR]\n"
    "\n"
    "Plan how to train MODEL.xml on N devices and write the trainer, plan.json, report.txt and report.html into DIR.\n"
    "\n"
    "model\n"
    "  --preset NAME          a size named in the model file, e.g. gpt2-xl\n"
    "  -D NAME=VALUE          override a <dim> or <param> of the model\n"
    "  --batch N              global batch: samples per step (same as -D on the batch dimension)\n"
    "  --precision P          compute in fp32, bf16 or fp16, weights and sums of gradients in fp32 (docs/training.md)\n"
    "cluster\n"
    "  --gpus N               devices to use: GPUs of --cluster (default: one node), or threads of this host (1)\n"
    "  --min-gpus             find the least number of devices that the model fits on, and plan for those\n"
    "  --cluster NAME|FILE    host (default), dgx-a100, dgx1-v100, ... or a file (docs/clusters.md)\n"
    "  --calibrate FILE.xml   measure this machine for half a minute (or --time-limit S), write that as a cluster, and stop\n"
    "plan\n"
    "  --fix LIST             pin parts: dp=2,tp=4,pp=2,interleave=2,schedule=1f1b|gpipe|interleaved,mesh=2x4,\n"
    "                         recompute=none|selective|full,zero=0..3,sequence_parallel=true|false,\n"
    "                         vocab_parallel=true|false,micro_batch=N,micro_batches=N,\n"
    "                         shard:GLOB=dimension/axis (docs/plan.md); may be given more than once\n"
    "  --from-plan FILE       take the decisions from a plan.json instead of searching\n"
    "  --kernels KIND         fused (default): as the trainer runs; unfused: every op a kernel, attention's scores in memory,\n"
    "                         as systems of 2020 to 2022 ran; for predictions\n"
    "  --time-limit S         search for at most S seconds; the best plan so far is then the plan\n"
    "output\n"
    "  -o DIR                 write the plan directory (without it, only the report is printed)\n"
    "  --predict              print the predicted time and memory alone, and write nothing\n"
    "  --json                 with --predict: as one JSON object, for machines (docs/plan.md)\n"
    "  --report DIR           write report.html and report.txt of a plan directory again (with --cluster FILE for one of your own)\n"
    "  --stats FILE           write timings and sizes of the planner as JSON (- for stderr)\n"
    "  --help, --version\n"
    "looking inside\n"
    "  --dump-ilp DIR         write the integer programs as CPLEX LP files\n"
    "  --export-iopddl DIR    write the stage problems of the search in the contest's format (docs/solver.md)\n"
    "  --dump-after PASS      print the graph after build, autodiff, optimizer, precision or fuse, and stop\n"
    "  --print-schema         print the RELAX NG schema of model files, and stop\n"
    "  --solve-iopddl FILE    solve a problem of the intra-operator parallelism contest (docs/solver.md) instead,\n"
    "                         for at most --time-limit S seconds\n";

enum option_kind { FLAG, TEXT, COUNT, SECONDS, PRECISION, PINS, DEFINE };

static const struct option {
    const char *name;
    enum option_kind kind;
    size_t at;                    /* its field of struct mpp_options */
} table[] = {
    {"--output", TEXT, offsetof(struct mpp_options, out)},
    {"-o", TEXT, offsetof(struct mpp_options, out)},
    {"--gpus", COUNT, offsetof(struct mpp_options, gpus)},
    {"--cluster", TEXT, offsetof(struct mpp_options, cluster)},
    {"--preset", TEXT, offsetof(struct mpp_options, model_options.preset)},
    {"--batch", COUNT, offsetof(struct mpp_options, model_options.batch)},
    {"--precision", PRECISION, offsetof(struct mpp_options, model_options.precision)},
    {"--fix", PINS, 0},
    {"--from-plan", TEXT, offsetof(struct mpp_options, from_plan)},
    {"--kernels", TEXT, offsetof(struct mpp_options, kernels)},
    {"--dump-ilp", TEXT, offsetof(struct mpp_options, dump_ilp)},
    {"--export-iopddl", TEXT, offsetof(struct mpp_options, export_iopddl)},
    {"--dump-after", TEXT, offsetof(struct mpp_options, dump_after)},
    {"--stats", TEXT, offsetof(struct mpp_options, stats)},
    {"--calibrate", TEXT, offsetof(struct mpp_options, calibrate)},
    {"--report", TEXT, offsetof(struct mpp_options, report)},
    {"--solve-iopddl", TEXT, offsetof(struct mpp_options, iopddl)},
    {"--time-limit", SECONDS, offsetof(struct mpp_options, time_limit_s)},
    {"--predict", FLAG, offsetof(struct mpp_options, predict)},
    {"--json", FLAG, offsetof(struct mpp_options, json)},
    {"--min-gpus", FLAG, offsetof(struct mpp_options, min_gpus)},
    {"--print-schema", FLAG, offsetof(struct mpp_options, schema)},
    {"--help", FLAG, offsetof(struct mpp_options, help)},
    {"-h", FLAG, offsetof(struct mpp_options, help)},
    {"--version", FLAG, offsetof(struct mpp_options, version)},
    {"-D", DEFINE, 0},
};
enum { N_OPTIONS = sizeof table / sizeof table[0] };

static const struct mpp_loc nowhere = {0};

static void take_option(struct mpp_arena *arena, struct mpp_diag *diag, struct mpp_options *o, const struct option *option,
                        const char *value)
{
    void *field = (char *)o + option->at;
    enum mpp_dtype dtype = MPP_F32;
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
    case PRECISION:
        if (!mpp_precision_read(value, &dtype))
            mpp_diag_error(diag, nowhere, "%s \"%s\" is none of fp32, bf16, fp16", option->name, value);
        *(const char **)field = mpp_dtype_name(dtype);
        break;
    case PINS:
        (void)!mpp_pins_parse(arena, diag, value, &o->pins);
        o->pinned = true;
        break;
    case DEFINE:
        if (o->model_options.n_defines == MPP_OPTIONS_MAX_DEFINES)
            mpp_diag_error(diag, nowhere, "more than %d -D options", MPP_OPTIONS_MAX_DEFINES);
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

static void check_kernels(struct mpp_diag *diag, struct mpp_options *o)
{
    static const char *const kinds[] = {"fused", "unfused"};
    if (!o->kernels || !strcmp(o->kernels, kinds[0]))
        return;
    o->unfused = !strcmp(o->kernels, kinds[1]);
    if (!o->unfused)
        mpp_diag_error(diag, nowhere, "--kernels \"%s\": fused or unfused%s", o->kernels,
                       mpp_diag_hint(diag, o->kernels, kinds, 2));
}

/* What excludes each other, and what needs something else. */
static void check_together(struct mpp_diag *diag, const struct mpp_options *o)
{
    const struct mpp_pins *p = &o->pins;
    const char *searched = o->pinned ? "--fix" : o->dump_ilp ? "--dump-ilp" : o->export_iopddl ? "--export-iopddl"
                           : o->time_limit_s > 0 ? "--time-limit" : o->min_gpus ? "--min-gpus" : NULL;
    if (o->from_plan && searched)
        mpp_diag_error(diag, nowhere, "--from-plan and %s exclude each other: a plan that is read is not searched for", searched);
    const char *beside = o->model ? o->model : o->out ? "-o" : o->cluster ? "--cluster" : o->gpus ? "--gpus" : o->stats ? "--stats"
                         : o->from_plan ? "--from-plan" : o->dump_ilp ? "--dump-ilp" : o->export_iopddl ? "--export-iopddl"
                         : o->pinned ? "--fix" : o->predict ? "--predict" : o->json ? "--json" : o->min_gpus ? "--min-gpus" : NULL;
    if (o->iopddl && beside)
        mpp_diag_error(diag, nowhere, "--solve-iopddl goes with --time-limit alone, not with %s", beside);
    if (o->calibrate && (beside || o->iopddl))
        mpp_diag_error(diag, nowhere, "--calibrate goes with --time-limit alone, not with %s", beside ? beside : "--solve-iopddl");
    if (o->report && ((beside && strcmp(beside, "--cluster") != 0) || o->gpus || o->from_plan || searched || o->predict || o->calibrate || o->iopddl))
        mpp_diag_error(diag, nowhere, "--report goes with --cluster alone: the plan directory says the rest");
    if (o->export_iopddl && (p->pp > 1 || p->interleave > 1 || p->recompute > 0 || p->schedule >= 0))
        mpp_diag_error(diag, nowhere, "--export-iopddl writes the problems of plans of one stage: not with stages, schedules or "
                       "recomputation in --fix");
    if (o->min_gpus && o->gpus)
        mpp_diag_error(diag, nowhere, "--min-gpus and --gpus exclude each other: one looks for what the other says");
    if (o->predict && o->out)
        mpp_diag_error(diag, nowhere, "--predict and -o exclude each other: a prediction writes no files");
    if (o->unfused && o->out)
        mpp_diag_error(diag, nowhere, "--kernels unfused and -o exclude each other: it is for predictions, a trainer runs fused kernels");
    if (o->json && !o->predict)
        mpp_diag_error(diag, nowhere, "--json goes with --predict");
    if (!o->model && !o->iopddl && !o->calibrate && !o->report && !o->schema && !o->help && !o->version && !mpp_diag_errors(diag))
        mpp_diag_error(diag, nowhere, "no model file; try: mpplan models/gpt.xml --preset tiny --gpus 4 -o plan/");
}

/* Options come as `--name value`, `--name=value`, `-Dname=value` or `-D name=value`. */
enum mpp_status mpp_options_parse(struct mpp_arena *arena, struct mpp_diag *diag, int argc, char **argv,
                                  struct mpp_options *o)
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
    check_kernels(diag, o);
    check_together(diag, o);
    return mpp_diag_errors(diag) ? MPP_INVALID : MPP_OK;
}
