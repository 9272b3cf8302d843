/* calibrate.h - what one device of this machine does, measured, as a cluster file.
 *
 *     MPP_TRY(mpp_calibrate(arena, diag, "here.xml", 30, &interrupted));
 *     ... mpplan model.xml --cluster here.xml --gpus 2
 *
 * The runtime's sources and a measuring program (runtime/calibrate) go into a temporary folder, are built by make as a plan
 * is, and run; figures of the device and of the links are fitted to what it prints (docs/clusters.md). */
#ifndef MPP_CODEGEN_CALIBRATE_H
#define MPP_CODEGEN_CALIBRATE_H

#include <stdio.h>

#include "costmodel/costmodel.h"
#include "ir/arena.h"
#include "ir/diag.h"
#include "ir/status.h"

/* Measure for about SECONDS and write PATH, whole or not at all; the figures' errors go to NOTES (may be NULL). MPP_INVALID:
 * this machine cannot build plans, or PATH cannot be written; MPP_LIMIT: *INTERRUPT was set. */
enum mpp_status mpp_calibrate(struct mpp_arena *arena, struct mpp_diag *diag, const char *path, double seconds,
                              volatile int *interrupt, FILE *notes) MPP_CHECKED;

/* ---- calibrate_fit.c ---- */

enum { MPP_CALIBRATE_SIZES = 4 };

struct mpp_calibrate_line {       /* of the measuring program */
    char name[24];
    int n_sizes;
    int64_t size[MPP_CALIBRATE_SIZES];
    double seconds;
};

struct mpp_calibrate_result {
    struct mpp_device device;     /* of one core */
    double link_bytes_per_s, total_bytes_per_s, base_s, step_s;
    double gemm_error, memory_error, vector_error, collective_error; /* median of |modelled / measured - 1| */
    int n_gemms, n_passes, n_vectors, n_collectives;
};

/* Read TEXT, a line a measurement; returns how many, in *OUT in ARENA; -1: it is not what the program prints. */
int mpp_calibrate_read(struct mpp_arena *arena, const char *text, struct mpp_calibrate_line **out);

/* The figures of docs/clusters.md that come closest, in ARENA. False: measurements are missing. */
bool mpp_calibrate_fit(struct mpp_arena *arena, const struct mpp_calibrate_line *line, int n, struct mpp_calibrate_result *out);

#endif
