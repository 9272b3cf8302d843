/* iopddl.h - problems of the intra-operator parallelism contest (ASPLOS/EuroSys 2025) as files.
 *
 *     struct mpp_pairwise_problem *p;
 *     MPP_TRY(mpp_iopddl_read("A.json.gz", arena, diag, &p));
 *     ... mpp_pairwise_solve ...
 *     mpp_iopddl_write_choice(stdout, choice, p->n_nodes);
 *
 * JSON, plain or gzipped: {"problem": {"name", "nodes": {"intervals": [[begin, end)...], "costs": [[...]...],
 * "usages": [[...]...]}, "edges": {"nodes": [[a, b]...], "costs": [[...]...]}, "usage_limit"}}. */
#ifndef MPP_IOPDDL_H
#define MPP_IOPDDL_H

#include "ir/diag.h"
#include "solver/pairwise.h"

/* Read and check PATH. The problem lies in ARENA. MPP_INVALID: what is wrong has been reported through DIAG. */
enum mpp_status mpp_iopddl_read(const char *path, struct mpp_arena *arena, struct mpp_diag *diag,
                                struct mpp_pairwise_problem **out) MPP_CHECKED;

/* The same for SIZE bytes of JSON at TEXT; NAME is the file that errors name. */
enum mpp_status mpp_iopddl_parse(const char *text, size_t size, const char *name, struct mpp_arena *arena,
                                 struct mpp_diag *diag, struct mpp_pairwise_problem **out) MPP_CHECKED;

/* Read PATH, solve it, print the contest's line to OUT; how it goes, sizes and the result to PROGRESS (NULL: silent).
 * MPP_INFEASIBLE: there is no answer, or none was found in time; what stands in the way has been reported. */
enum mpp_status mpp_iopddl_solve(const char *path, const struct mpp_pairwise_settings *settings, struct mpp_arena *arena,
                                 struct mpp_diag *diag, FILE *out, FILE *progress) MPP_CHECKED;

/* The contest's output: one line `[i, j, ...]`. */
void mpp_iopddl_write_choice(FILE *out, const int32_t *choice, int32_t n_nodes);

/* PROBLEM, each node of one usage at most, as JSON; NAME is what it is called. */
void mpp_iopddl_write(FILE *out, const char *name, const struct mpp_pairwise_problem *problem);

#endif
