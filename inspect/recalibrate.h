/* recalibrate.h - a cluster whose figures fit what a trainer measured.
 *
 *     MPP_TRY(mpp_recalibrate(arena, diag, profile, "lab.xml", stderr));
 *
 * Three factors are fitted: of kernels (peaks, memory and launch together, so that their sum over the step is what was measured), of
 * collectives' latencies and of their bandwidths (so that all of them, each with its bytes, are off as little as can be). */
#ifndef MPP_RECALIBRATE_H
#define MPP_RECALIBRATE_H

#include "inspect/profile.h"

struct mpp_recalibration {
    double kernels, latency, bandwidth; /* by what times are multiplied; where nothing was measured kernels 0, the others 1 */
    double before, after;         /* mean ratio of planned to measured collectives, the larger over the smaller, by their time; 0: none */
};

/* The factors, and *OUT_CLUSTER, the plan's cluster with them. */
void mpp_recalibrate_fit(struct mpp_arena *arena, const struct mpp_profile *p, struct mpp_recalibration *out,
                         struct mpp_cluster *out_cluster);

/* Write that to PATH, whole or not at all, and say in words to NOTES what changed. MPP_INVALID: no kernels were measured, or absurd
 * ones; or PATH can be no file. */
enum mpp_status mpp_recalibrate(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_profile *p, const char *path,
                                FILE *notes) MPP_CHECKED;

/* C as a cluster file that mpp_cluster_load reads back as it is; SOURCE stands beside the figures. */
void mpp_recalibrate_write(FILE *out, const struct mpp_cluster *c, const char *source);

#endif
