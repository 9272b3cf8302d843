/* options.h - the command line of mpplan.
 *
 *     struct mpp_options o;
 *     MPP_TRY(mpp_options_parse(arena, diag, argc, argv, &o));
 *     if (o.help)
 *         mpp_options_help(stdout);
 */
#ifndef MPP_OPTIONS_H
#define MPP_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "ir/model.h"
#include "planner/plan.h"

#define MPP_OPTIONS_MAX_DEFINES 256
#define MPP_OPTIONS_MAX_SWEEPS 4

struct mpp_options {
    const char *model, *cluster, *out, *from_plan, *dump_ilp, *export_iopddl, *dump_after, *stats, *iopddl, *kernels, *calibrate, *report, *completion, *export_kind, *profile, *recalibrate, *diff, *explain;
    int64_t gpus;
    double time_limit_s, measure_s, price; /* price: of a device for an hour */
    struct mpp_model_options model_options;
    const char *defines[MPP_OPTIONS_MAX_DEFINES];
    int n_sweeps;
    const char *sweeps[MPP_OPTIONS_MAX_SWEEPS]; /* "gpus=1,2,4" */
    struct mpp_pins pins;
    bool unfused;                 /* --kernels unfused */
    bool pinned, overlap, predict, json, min_gpus, schema, plan_schema, help, version;
};

/* A row of the table that the parser, --help and the completions go by. */
struct mpp_option {
    const char *name, *alias;     /* "-o", "--output"; NULL: no other */
    const char *value;            /* what it takes: "DIR"; NULL: nothing */
    const char *group;            /* what it is for: "output" */
    const char *complete;         /* what its value may be: "file", "dir", "cluster", "preset", "define", "fix", or words "a|b" */
    const char *help;             /* in a line; NULL: its name says it */
};

/* Row I from 0 on, by group; NULL after the last. */
const struct mpp_option *mpp_options_row(int i);

/* All options, grouped, on one screen. */
void mpp_options_help(FILE *out);

/* A completion script for SHELL, "bash" or "zsh". CLUSTERS: the built-in ones, up to NULL. */
void mpp_options_completion(FILE *out, const char *shell, const char *const *clusters);

/* Read ARGV into *OUT, whose texts live in ARENA or are ARGV's; each fault is reported once. */
enum mpp_status mpp_options_parse(struct mpp_arena *arena, struct mpp_diag *diag, int argc, char **argv,
                                  struct mpp_options *out) MPP_CHECKED;

#endif
