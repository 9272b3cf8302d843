/* options.h - the command line of mpplan.
 *
 *     struct mpp_options o;
 *     MPP_TRY(mpp_options_parse(arena, diag, argc, argv, &o));
 *     if (o.help)
 *         fputs(mpp_options_usage, stdout);
 */
#ifndef MPP_OPTIONS_H
#define MPP_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "ir/model.h"
#include "planner/plan.h"

#define MPP_OPTIONS_MAX_DEFINES 256

struct mpp_options {
    const char *model, *cluster, *out, *from_plan, *dump_ilp, *export_iopddl, *dump_after, *stats, *iopddl, *kernels, *calibrate, *report;
    int64_t gpus;
    double time_limit_s;
    struct mpp_model_options model_options;
    const char *defines[MPP_OPTIONS_MAX_DEFINES];
    struct mpp_pins pins;
    bool unfused;                 /* --kernels unfused */
    bool pinned, predict, json, min_gpus, schema, help, version;
};

extern const char mpp_options_usage[];

/* Read ARGV into *OUT, whose texts live in ARENA or are ARGV's; each fault is reported once. */
enum mpp_status mpp_options_parse(struct mpp_arena *arena, struct mpp_diag *diag, int argc, char **argv,
                                  struct mpp_options *out) MPP_CHECKED;

#endif
