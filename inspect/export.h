/* export.h - a plan for other programs: what --export writes.
 *
 *     MPP_TRY(mpp_export(arena, diag, "trace", &plandir, "trace.json")); // NULL: to standard output
 *
 * Each kind writes OUT front to back; whoever closes OUT looks whether all was written. Equal plans give equal bytes. docs/exports.md says what
 * stands in them. */
#ifndef MPP_EXPORT_H
#define MPP_EXPORT_H

#include <stdio.h>

#include "inspect/plandir.h"

/* Write KIND, one of the words of --export's row in options.c, of the plan D to the file PATH, whole or not at all: MPP_INVALID where
 * PATH can be no file, MPP_IO. What goes to standard output is not flushed. */
enum mpp_status mpp_export(struct mpp_arena *arena, struct mpp_diag *diag, const char *kind, const struct mpp_plandir *d,
                           const char *path) MPP_CHECKED;

/* The JSON Schema of plan.json (docs/plan.schema.json). */
const char *mpp_export_plan_schema(void);

/* The predicted step in Chrome's Trace Event Format, in the words of a trainer's --profile: a process per stage with one thread,
 * its first rank, as the ranks of a stage do alike. Passes of more than some 250,000 kernels and collectives in all show
 * theirs in the first and the last micro-batch alone. */
void mpp_export_trace(const struct mpp_plandir *d, FILE *out);

/* The partitioned graph in Graphviz's language, forward and backward: kernels with their splits, collectives, messages between
 * stages. Layers planned alike, and stages that are alike, are drawn once. */
void mpp_export_dot(const struct mpp_plandir *d, FILE *out);

/* A script that runs Megatron-LM with the arguments that say the same, after a list of what none of them says. */
void mpp_export_megatron(const struct mpp_plandir *d, FILE *out);

#endif
