/* options.c - the command line: a table of options, and what may stand together. */
#include "options.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "ir/precision.h"

enum { MAX_SECONDS = 1000000000 };

enum option_kind { FLAG, TEXT, COUNT, SECONDS, PRICE, PRECISION, PINS, DEFINE, SWEEP };

#define AT(field) offsetof(struct mpp_options, field)

/* What --help, the completions and the parser go by; docs/mpplan.1 says the same at length. */
static const struct option {
    struct mpp_option o;
    enum option_kind kind;
    size_t at;                    /* its field of struct mpp_options */
} table[] = {
    {{"--preset", NULL, "NAME", "model", "preset", "a size named in the model file, e.g. gpt2-xl"}, TEXT, AT(model_options.preset)},
    {{"-D", NULL, "NAME=VALUE", "model", "define", "override a <dim> or <param> of the model"}, DEFINE, 0},
    {{"--batch", NULL, "N", "model", NULL, "global batch: samples per step"}, COUNT, AT(model_options.batch)},
    {{"--precision", NULL, "P", "model", "fp32|bf16|fp16", "compute in fp32, bf16 or fp16 (default: the model's)"}, PRECISION, AT(model_options.precision)},

    {{"--gpus", NULL, "N", "cluster", NULL, "devices to use (default: one node; of host: 1)"}, COUNT, AT(gpus)},
    {{"--min-gpus", NULL, NULL, "cluster", NULL, "the fewest devices that the model fits on"}, FLAG, AT(min_gpus)},
    {{"--cluster", NULL, "NAME|FILE", "cluster", "cluster", "host (default), dgx-a100, ... or a cluster file"}, TEXT, AT(cluster)},
    {{"--calibrate", NULL, "FILE.xml", "cluster", "file", "measure this machine, write it as a cluster file"}, TEXT, AT(calibrate)},
    {{"--seconds", NULL, "S", "cluster", NULL, "with --calibrate: measure for S seconds (default: 30)"}, SECONDS, AT(measure_s)},

    {{"--fix", NULL, "LIST", "plan", "fix", "pin parts: dp=2,tp=4,pp=2,recompute=full,zero=1, ..."}, PINS, 0},
    {{"--from-plan", NULL, "FILE", "plan", "file", "take the decisions of a plan.json, search nothing"}, TEXT, AT(from_plan)},
    {{"--kernels", NULL, "KIND", "plan", "fused|unfused", "fused (default), or unfused, for predictions"}, TEXT, AT(kernels)},
    {{"--overlap", NULL, NULL, "plan", NULL, "find what is fastest with collectives beside kernels"}, FLAG, AT(overlap)},
    {{"--time-limit", NULL, "S", "plan", NULL, "search for S seconds at most; the best so far counts"}, SECONDS, AT(time_limit_s)},

    {{"-o", "--output", "DIR", "output", "dir", "write trainer, plan.json and reports into DIR"}, TEXT, AT(out)},
    {{"--predict", NULL, NULL, "output", NULL, "print predicted time and memory, write nothing"}, FLAG, AT(predict)},
    {{"--json", NULL, NULL, "output", NULL, "with --predict, --explain, --sweep, --diff: as JSON"}, FLAG, AT(json)},
    {{"--stats", NULL, "FILE", "output", "file", "what planning took, as JSON (-: to stderr)"}, TEXT, AT(stats)},

    {{"--explain", NULL, "NAME", "questions", NULL, "why an op, tensor, layer or stage is so; what else"}, TEXT, AT(explain)},
    {{"--sweep", NULL, "KEY=LIST", "questions", NULL, "a plan each: gpus=1,2,4 (cluster, batch, seq, ...)"}, SWEEP, 0},
    {{"--price", NULL, "P", "questions", NULL, "with --sweep: per device and hour; adds cost per token"}, PRICE, AT(price)},

    {{"--diff", NULL, "A B", "plan directories", "dir", "what differs between two plans, and why one is faster"}, TEXT, AT(diff)},
    {{"--report", NULL, "DIR", "plan directories", "dir", "write report.html and report.txt of a plan again"}, TEXT, AT(report)},
    {{"--profile", NULL, "TRACE", "plan directories", "file", "with --report: what a trainer measured, beside it"}, TEXT, AT(profile)},
    {{"--recalibrate", NULL, "FILE.xml", "plan directories", "file", "with --profile: a cluster file that fits it"}, TEXT, AT(recalibrate)},
    {{"--export", NULL, "KIND DIR", "plan directories", "trace|dot|megatron", "write a plan for other programs, to -o FILE or stdout"}, TEXT, AT(export_kind)},

    {{"--dump-after", NULL, "PASS", "looking inside", "build|autodiff|optimizer|precision|fuse", "print the graph after that pass"}, TEXT, AT(dump_after)},
    {{"--dump-ilp", NULL, "DIR", "looking inside", "dir", "write the integer programs as CPLEX LP files"}, TEXT, AT(dump_ilp)},
    {{"--export-iopddl", NULL, "DIR", "looking inside", "dir", "write them in the IOPDDL contest's format"}, TEXT, AT(export_iopddl)},
    {{"--solve-iopddl", NULL, "FILE", "looking inside", "file", "solve a problem of that contest"}, TEXT, AT(iopddl)},
    {{"--print-schema", NULL, NULL, "looking inside", NULL, "print the RELAX NG schema of model files"}, FLAG, AT(schema)},
    {{"--print-plan-schema", NULL, NULL, "looking inside", NULL, "print the JSON Schema of plan.json"}, FLAG, AT(plan_schema)},

    {{"--help", "-h", NULL, "this command", NULL, "this page; man mpplan says more"}, FLAG, AT(help)},
    {{"--version", NULL, NULL, "this command", NULL, NULL}, FLAG, AT(version)},
    {{"--completion", NULL, "SHELL", "this command", "bash|zsh", "completions to source: . <(mpplan --completion bash)"}, TEXT, AT(completion)},
};
enum { N_OPTIONS = sizeof table / sizeof table[0] };

const struct mpp_option *mpp_options_row(int i)
{
    return i < N_OPTIONS ? &table[i].o : NULL;
}

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
        if (!*value && option->o.complete && (!strcmp(option->o.complete, "file") || !strcmp(option->o.complete, "dir")))
            mpp_diag_error(diag, nowhere, "%s \"\": the name is empty; give a %s", option->o.name,
                           strcmp(option->o.complete, "dir") ? "file" : "directory");
        *(const char **)field = value;
        break;
    case COUNT:
        errno = 0;
        *(int64_t *)field = strtoll(value, &end, 10);
        if (errno || *value < '0' || *value > '9' || *end || *(int64_t *)field < 1)
            mpp_diag_error(diag, nowhere, "%s \"%s\": give a whole number of at least 1", option->o.name, value);
        break;
    case SECONDS:
        *(double *)field = strtod(value, &end);
        if (end == value || *end || !(*(double *)field > 0 && *(double *)field <= MAX_SECONDS))
            mpp_diag_error(diag, nowhere, "%s \"%s\": give seconds, more than 0", option->o.name, value);
        break;
    case PRICE:
        *(double *)field = strtod(value, &end);
        if (end == value || *end || !(*(double *)field > 0 && *(double *)field <= MAX_SECONDS))
            mpp_diag_error(diag, nowhere, "%s \"%s\": give what a device costs per hour, more than 0", option->o.name, value);
        break;
    case SWEEP:
        if (o->n_sweeps == MPP_OPTIONS_MAX_SWEEPS)
            mpp_diag_error(diag, nowhere, "more than %d --sweep options", MPP_OPTIONS_MAX_SWEEPS);
        else
            o->sweeps[o->n_sweeps++] = value;
        break;
    case PRECISION:
        if (!mpp_precision_read(value, &dtype))
            mpp_diag_error(diag, nowhere, "%s \"%s\" is none of fp32, bf16, fp16", option->o.name, value);
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
    const char *names[2 * N_OPTIONS];
    int n = 0;
    for (int k = 0; k < N_OPTIONS; k++) {
        const struct mpp_option *o = &table[k].o;
        if (!strcmp(name, o->name) || (o->alias && !strcmp(name, o->alias)))
            return &table[k];
        names[n++] = o->name;
        if (o->alias)
            names[n++] = o->alias;
    }
    mpp_diag_error(diag, nowhere, "no option %s%s", name, mpp_diag_hint(diag, name, names, n));
    return NULL;
}

/* VALUE, of the option NAME, among those that its row lists. */
static void check_word(struct mpp_diag *diag, const char *name, const char *value)
{
    const char *words[16], *list = NULL;
    int n = 0;
    for (int k = 0; k < N_OPTIONS && !list; k++)
        list = strcmp(table[k].o.name, name) ? NULL : table[k].o.complete;
    char *copy = strdupa(list ? list : ""), *rest = NULL;
    for (char *word = strtok_r(copy, "|", &rest); word && n < 16; word = strtok_r(NULL, "|", &rest)) {
        if (value && !strcmp(word, value))
            return;
        words[n++] = word;
    }
    if (value)
        mpp_diag_error(diag, nowhere, "%s \"%s\" is none of %s%s", name, value, list, mpp_diag_hint(diag, value, words, n));
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

/* --explain, --sweep and --diff print an answer instead of a plan. */
static void check_questions(struct mpp_diag *diag, const struct mpp_options *o)
{
    const char *name = o->explain ? "--explain" : o->n_sweeps ? "--sweep" : o->diff ? "--diff" : NULL;
    const char *other = o->out ? "-o" : o->predict ? "--predict" : o->min_gpus ? "--min-gpus" : o->dump_ilp ? "--dump-ilp"
                        : o->export_iopddl ? "--export-iopddl" : o->dump_after ? "--dump-after" : o->stats ? "--stats"
                        : o->report ? "--report" : o->n_sweeps && o->from_plan ? "--from-plan" : o->explain && o->n_sweeps ? "--sweep"
                        : o->diff && o->n_sweeps ? "--sweep" : o->diff && o->explain ? "--explain" : NULL;
    if (name && other)
        mpp_diag_error(diag, nowhere, "%s and %s exclude each other: an answer is printed, nothing is written", name, other);
    if (name && o->overlap)
        mpp_diag_error(diag, nowhere, "%s and --overlap exclude each other: questions count kernels and collectives one after the other", name);
    if (o->diff && !o->model)
        mpp_diag_error(diag, nowhere, "--diff wants two plan directories: mpplan --diff %s OTHER", o->diff);
    const char *searched = o->gpus ? "--gpus" : o->pinned ? "--fix" : o->from_plan ? "--from-plan" : o->model_options.preset ? "--preset"
                           : o->model_options.batch ? "--batch" : o->unfused ? "--kernels" : o->time_limit_s > 0 ? "--time-limit" : NULL;
    if (o->diff && searched)
        mpp_diag_error(diag, nowhere, "--diff goes with --cluster and --json alone, not with %s: the plan directories say the rest", searched);
    if (o->price > 0 && !o->n_sweeps)
        mpp_diag_error(diag, nowhere, "--price goes with --sweep");
}

/* What excludes each other, and what needs something else. */
static void check_together(struct mpp_diag *diag, const struct mpp_options *o)
{
    const struct mpp_pins *p = &o->pins;
    const char *searched = o->pinned ? "--fix" : o->dump_ilp ? "--dump-ilp" : o->export_iopddl ? "--export-iopddl"
                           : o->time_limit_s > 0 ? "--time-limit" : o->overlap ? "--overlap" : o->min_gpus ? "--min-gpus" : NULL;
    if (o->overlap && o->unfused)
        mpp_diag_error(diag, nowhere, "--overlap and --kernels unfused exclude each other: frameworks that fuse nothing are taken to overlap nothing");
    if (o->from_plan && searched)
        mpp_diag_error(diag, nowhere, "--from-plan and %s exclude each other: a plan that is read is not searched for", searched);
    const char *beside = o->model ? o->model : o->out ? "-o" : o->cluster ? "--cluster" : o->gpus ? "--gpus" : o->stats ? "--stats"
                         : o->from_plan ? "--from-plan" : o->dump_ilp ? "--dump-ilp" : o->export_iopddl ? "--export-iopddl"
                         : o->pinned ? "--fix" : o->predict ? "--predict" : o->json ? "--json" : o->min_gpus ? "--min-gpus" : o->overlap ? "--overlap" : NULL;
    if (o->iopddl && beside)
        mpp_diag_error(diag, nowhere, "--solve-iopddl goes with --time-limit alone, not with %s", beside);
    if (o->calibrate && (beside || o->iopddl))
        mpp_diag_error(diag, nowhere, "--calibrate goes with --seconds alone, not with %s", beside ? beside : "--solve-iopddl");
    if (o->calibrate && o->time_limit_s > 0)
        mpp_diag_error(diag, nowhere, "--time-limit is for searches; --calibrate measures for --seconds S once its program is built");
    if (o->measure_s > 0 && !o->calibrate)
        mpp_diag_error(diag, nowhere, "--seconds goes with --calibrate");
    if (o->report && ((beside && strcmp(beside, "--cluster") != 0) || o->gpus || o->from_plan || searched || o->predict || o->calibrate || o->iopddl))
        mpp_diag_error(diag, nowhere, "--report goes with --cluster alone: the plan directory says the rest");
    if (o->export_kind && (o->gpus || o->from_plan || searched || o->stats || o->predict || o->calibrate || o->iopddl || o->report))
        mpp_diag_error(diag, nowhere, "--export goes with a plan directory, -o FILE and --cluster alone: the directory says the rest");
    if (o->profile && !o->report)
        mpp_diag_error(diag, nowhere, "--profile goes with --report: mpplan --report plan/ --profile %s", o->profile);
    if (o->recalibrate && !o->profile)
        mpp_diag_error(diag, nowhere, "--recalibrate wants what a trainer measured: mpplan --report plan/ --profile trace.json --recalibrate %s",
                       o->recalibrate);
    if (o->export_kind && !o->model)
        mpp_diag_error(diag, nowhere, "--export wants a plan directory: mpplan --export %s plan/", o->export_kind);
    if (o->export_iopddl && (p->pp > 1 || p->interleave > 1 || p->recompute > 0 || p->schedule >= 0))
        mpp_diag_error(diag, nowhere, "--export-iopddl writes the problems of plans of one stage: not with stages, schedules or "
                       "recomputation in --fix");
    if (o->min_gpus && o->gpus)
        mpp_diag_error(diag, nowhere, "--min-gpus and --gpus exclude each other: one looks for what the other says");
    if (o->predict && o->out)
        mpp_diag_error(diag, nowhere, "--predict and -o exclude each other: a prediction writes no files");
    if (o->unfused && o->out)
        mpp_diag_error(diag, nowhere, "--kernels unfused and -o exclude each other: it is for predictions, a trainer runs fused kernels");
    if (o->json && !o->predict && !o->explain && !o->diff && !o->n_sweeps)
        mpp_diag_error(diag, nowhere, "--json goes with --predict, --explain, --sweep or --diff");
    check_questions(diag, o);
    if (!o->model && !o->diff && !o->iopddl && !o->calibrate && !o->report && !o->schema && !o->plan_schema && !o->help && !o->version && !o->completion && !mpp_diag_errors(diag))
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
            else if (!name[0])
                mpp_diag_error(diag, nowhere, "\"\": the model file's name is empty");
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
    check_word(diag, "--completion", o->completion);
    check_word(diag, "--export", o->export_kind);
    check_together(diag, o);
    return mpp_diag_errors(diag) ? MPP_INVALID : MPP_OK;
}
