/* options.c - the trainer's command line. */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "options.h"

enum option { OPT_DATA, OPT_STEPS, OPT_SEED, OPT_INIT, OPT_SAVE, OPT_RESUME, OPT_METRICS, OPT_DUMP_GRADS, OPT_PROFILE, OPT_EVAL, OPT_EVAL_EVERY, OPT_EVAL_STEPS, OPT_LR, OPT_LOSS_SCALE,
              OPT_THREADS, OPT_TIMEOUT, OPT_HELP, N_OPTIONS };

#define TIMEOUT_S 600
#define EVAL_STEPS 10

static const char *const names[N_OPTIONS] = {
    "--data", "--steps", "--seed", "--init", "--save", "--resume", "--metrics", "--dump-grads", "--profile", "--eval", "--eval-every", "--eval-steps", "--lr",
    "--loss-scale", "--threads", "--timeout", "--help",
};

static int parse_range(const char *name, const char *value, int64_t least, int64_t most, int64_t *out, struct mpp_error *error)
{
    char *end;
    errno = 0;
    long long x = strtoll(value, &end, 10);
    if (end == value || *end != '\0' || errno != 0 || x < least || x > most)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s takes a whole number from %lld to %lld, not \"%s\"", name,
                             (long long)least, (long long)most, value);
    *out = x;
    return MPP_EXIT_OK;
}

static int parse_count(const char *name, const char *value, int64_t *out, struct mpp_error *error)
{
    return parse_range(name, value, 0, INT64_MAX, out, error);
}

static int parse_one(enum option option, const char *value, struct mpp_options *o, struct mpp_error *error)
{
    char *end;
    int64_t seed = 0;
    int code = MPP_EXIT_OK;
    switch (option) {
    case OPT_DATA: o->data = value; break;
    case OPT_INIT: o->init = value; break;
    case OPT_SAVE: o->save = value; break;
    case OPT_RESUME: o->resume = value; break;
    case OPT_METRICS: o->metrics = value; break;
    case OPT_DUMP_GRADS: o->dump_grads = value; break;
    case OPT_PROFILE: o->profile = value; break;
    case OPT_EVAL: o->eval = value; break;
    case OPT_EVAL_EVERY: return parse_range(names[option], value, 1, INT64_MAX, &o->eval_every, error);
    case OPT_EVAL_STEPS: return parse_range(names[option], value, 1, INT32_MAX, &o->eval_steps, error);
    case OPT_STEPS: return parse_count(names[option], value, &o->steps, error);
    case OPT_TIMEOUT: return parse_count(names[option], value, &o->timeout_s, error);
    case OPT_SEED:
        code = parse_count(names[option], value, &seed, error);
        o->seed = (uint64_t)seed;
        o->seed_given = true;
        return code;
    case OPT_THREADS:
        code = parse_range(names[option], value, 1, MPP_MAX_THREADS, &o->threads, error);
        if (code != MPP_EXIT_OK)
            return code;
        if (o->threads > 1 && !mpp_device_has_threads())
            return mpp_error_set(error, MPP_EXIT_INPUT, "--threads %s: this trainer was built without OpenMP, a device "
                                 "has one thread; build it again with a compiler that has -fopenmp", value);
        return MPP_EXIT_OK;
    case OPT_LR:
        o->lr = strtod(value, &end);
        if (end == value || *end != '\0' || !isfinite(o->lr) || o->lr < 0)
            return mpp_error_set(error, MPP_EXIT_INPUT, "--lr takes a number from 0 on, not \"%s\"", value);
        break;
    case OPT_LOSS_SCALE:
        o->loss_scale = strtod(value, &end);
        if (end == value || *end != '\0' || !(o->loss_scale >= FLT_MIN && o->loss_scale <= FLT_MAX))
            return mpp_error_set(error, MPP_EXIT_INPUT, "--loss-scale takes a number above 0, not \"%s\"", value);
        break;
    default: break;
    }
    return MPP_EXIT_OK;
}

/* Which option ARG is; *VALUE_OUT where it is written --name=value, else NULL. */
static int find_option(const char *arg, const char **value_out, struct mpp_error *error)
{
    size_t length = strcspn(arg, "=");
    if (strcmp(arg, "-h") == 0)
        arg = names[OPT_HELP], length = strlen(arg);
    *value_out = arg[length] == '=' ? arg + length + 1 : NULL;
    for (int i = 0; i < N_OPTIONS; i++)
        if (strlen(names[i]) == length && strncmp(arg, names[i], length) == 0)
            return i;
    char word[64], hint[96];
    snprintf(word, sizeof word, "%.*s", (int)length, arg);
    mpp_error_hint(word, names, N_OPTIONS, hint, sizeof hint);
    if (arg[0] == '-')
        (void)mpp_error_set(error, MPP_EXIT_INPUT, "there is no option %s%s%s", word, hint,
                            hint[0] == '\0' ? "; see --help" : "");
    else
        (void)mpp_error_set(error, MPP_EXIT_INPUT, "\"%s\" is no option; see --help", arg);
    return -1;
}

int mpp_options_parse(int argc, char **argv, const struct mpp_program *program, struct mpp_options *options_out,
                      struct mpp_error *error)
{
    struct mpp_options o = {.steps = program->steps, .seed = (uint64_t)program->seed, .lr = (double)program->hyper.lr,
                            .timeout_s = TIMEOUT_S, .eval_steps = EVAL_STEPS};
    unsigned seen = 0;
    for (int i = 1; i < argc; i++) {
        const char *value;
        int option = find_option(argv[i], &value, error);
        if (option < 0)
            return MPP_EXIT_INPUT;
        if (option != OPT_HELP && seen >> option & 1)
            return mpp_error_set(error, MPP_EXIT_INPUT, "%s is given twice", names[option]);
        seen |= 1u << option;
        if (option == OPT_HELP) {
            o.help = true;
            continue;
        }
        if (value == NULL && i + 1 < argc)
            value = argv[++i];
        if (value == NULL || value[0] == '\0')
            return mpp_error_set(error, MPP_EXIT_INPUT, "%s takes a value", names[option]);
        if (value == argv[i] && strncmp(value, "--", 2) == 0)
            return mpp_error_set(error, MPP_EXIT_INPUT, "%s takes a value, but %s follows; %s=VALUE takes any",
                                 names[option], value, names[option]);
        int code = parse_one((enum option)option, value, &o, error);
        if (code != MPP_EXIT_OK)
            return code;
    }
    if (o.loss_scale > 0 && !program->scales_loss)
        return mpp_error_set(error, MPP_EXIT_INPUT, "--loss-scale: this plan does not scale the loss; only those of "
                             "mpplan --precision fp16 do");
    if (o.eval == NULL && (seen >> OPT_EVAL_EVERY & 1 || seen >> OPT_EVAL_STEPS & 1))
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s: of which data? give --eval SOURCE too",
                             names[seen >> OPT_EVAL_EVERY & 1 ? OPT_EVAL_EVERY : OPT_EVAL_STEPS]);
    for (int s = 0; o.eval != NULL && s < program->n_stages; s++)
        if (program->stages[s]->loss_offset >= 0 && program->stages[s]->loss_term_offset < 0)
            return mpp_error_set(error, MPP_EXIT_INPUT, "--eval: the loss of this plan is known after a whole training step only");
    bool begins = o.resume != NULL && o.save != NULL && strcmp(o.resume, o.save) == 0; /* or goes on, if it has begun */
    if (o.init != NULL && o.resume != NULL && !begins)
        return mpp_error_set(error, MPP_EXIT_INPUT, "--init and --resume both say where the weights come from; give one");
    if (o.init == NULL && (o.resume == NULL || begins))
        o.init = program->weights;
    if (o.init != NULL && strcmp(o.init, "random") == 0)
        o.init = NULL;
    *options_out = o;
    return MPP_EXIT_OK;
}

void mpp_options_usage(FILE *out, const char *argv0, const struct mpp_program *program)
{
    const char *slash = strrchr(argv0, '/');
    fprintf(out,
            "usage: %s [options]\n"
            "Trains %s; started by mpirun or torchrun each process is one device, alone all devices are threads.\n\n"
            "  --data SOURCE         text:FILE (bytes), tokens:GLOB (token shards), npy:DIR (NAME.npy per\n"
            "                        input), synthetic; default the checkpoint's, or %s\n"
            "  --steps N             train up to step N; default %lld\n"
            "  --seed N              of weights, samples and dropout; default %lld\n"
            "  --init FILE           weights: .safetensors, or model.safetensors.index.json, or random;\n"
            "                        default %s\n"
            "  --save DIR            write DIR/step-N at the end%s\n"
            "  --resume DIR          continue from the newest step of DIR, or from DIR/step-N; where DIR is also\n"
            "                        --save's and holds none yet, start\n"
            "  --metrics FILE.jsonl  one JSON line per step\n"
            "  --dump-grads FILE     gradients of the first step, as safetensors\n"
            "  --eval SOURCE         the loss on other data, of the kinds of --data: after the last step, with\n"
            "  --eval-every N        after every N steps too, of\n"
            "  --eval-steps N        so many batches, the same each time; default %d\n"
            "  --profile FILE.json   where the last steps went: a table, and a trace for ui.perfetto.dev\n"
            "  --lr X                peak learning rate; default %g\n"
            "%s"
            "  --threads N           of each device; default OMP_NUM_THREADS, or the cores there are for it\n"
            "  --timeout S           seconds after which a rank that others wait for counts as hung;\n"
            "                        default %d, 0: never\n"
            "  --help                this text\n\n"
            "With --save: SIGTERM, SIGINT and SIGUSR2 stop after the running step and save; SIGUSR1 saves.\n",
            slash != NULL ? slash + 1 : argv0, program->model, program->data != NULL ? program->data : "none",
            (long long)program->steps, (long long)program->seed, program->weights != NULL ? program->weights : "random",
            program->save_every > 0 ? " and every few steps" : "", EVAL_STEPS, (double)program->hyper.lr,
            program->scales_loss ? "  --loss-scale X        to begin with, or to go on with; default the plan's, or the checkpoint's\n" : "",
            TIMEOUT_S);
}
