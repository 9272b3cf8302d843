/* options.h - the trainer's command line.
 *
 *     struct mpp_options o;
 *     int code = mpp_options_parse(argc, argv, program, &o, &error);
 *     if (o.help)
 *         mpp_options_usage(stdout, argv[0], program); */
#ifndef MPP_OPTIONS_H
#define MPP_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "fail.h"
#include "mpp_rt.h"

/* Strings are borrowed from argv or the program; NULL: not given. Data is only argv's: without, a checkpoint tells it,
 * else the program. */
struct mpp_options {
    bool help;
    const char *data, *init, *save, *resume, *metrics, *dump_grads, *profile;
    int64_t steps;
    const char *eval;
    int64_t eval_every, eval_steps; /* every 0: after the last step only; batches */
    int64_t threads; /* of a device; 0: not given */
    uint64_t seed;
    bool seed_given;
    double lr; /* peak */
    double loss_scale; /* 0: not given */
    int64_t timeout_s; /* of a rank that others wait for; 0: never */
};

int mpp_options_parse(int argc, char **argv, const struct mpp_program *program, struct mpp_options *options_out,
                      struct mpp_error *error) MPP_RT_CHECKED;
void mpp_options_usage(FILE *out, const char *argv0, const struct mpp_program *program);

#endif
