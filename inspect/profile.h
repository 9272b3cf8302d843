/* profile.h - what a trainer's --profile recorded, beside what its plan foretells.
 *
 *     struct mpp_profile *p;
 *     MPP_TRY(mpp_profile_read(arena, diag, "trace.json", &plandir, &p));
 *     mpp_profile_print(p, stdout);                        // both, and the largest misses in words
 *     const char *json = mpp_profile_json(arena, p);       // the same for report.html
 *
 * Of the last step that is whole on every rank. Times of a stage are the means of its ranks, seconds of the step, without what they
 * wait for others, as the plan's are. */
#ifndef MPP_PROFILE_H
#define MPP_PROFILE_H

#include <stdio.h>

#include "inspect/plandir.h"

enum mpp_profile_kind {
    MPP_PROFILE_KERNELS,          /* forward and backward passes less the collectives, messages and waits inside */
    MPP_PROFILE_UPDATE,           /* the same of the update */
    MPP_PROFILE_COLLECTIVE,       /* of one name, axes and bytes */
    MPP_PROFILE_RECEIVE,
};

struct mpp_profile_row {
    int stage;
    enum mpp_profile_kind kind;
    const char *name;             /* "all-reduce over model 2", "receive h.1.res2"; "kernels", "update" */
    int64_t bytes;                /* of one; 0 of kernels */
    unsigned mask;                /* collective: its axes */
    int64_t planned_count, seen_count; /* executions per step, of one rank */
    double planned_s, seen_s;     /* per step */
};

struct mpp_profile_pass {         /* a forward or backward pass, or the update, of a stage's first rank */
    int stage, what;              /* 0 forward, 1 backward, 2 update */
    double begin_s, end_s, wait_s; /* from the step's beginning */
};

struct mpp_profile {
    const char *path;
    const struct mpp_plandir *dir;
    int64_t step;
    int n_ranks;
    double step_s, planned_step_s; /* of the rank that takes longest; the plan's, event by event */
    int n_rows;
    struct mpp_profile_row *rows; /* by stage; kernels and update first */
    double *wait_s;               /* [stages] waited per step, mean of ranks */
    int n_passes;
    struct mpp_profile_pass *passes;
    int n_misses, *miss;          /* rows by |seen - planned|, the largest first, those that matter */
};

/* MPP_INVALID after a diagnostic: no trace, one of another plan (its stages or ranks), or of no whole step. */
enum mpp_status mpp_profile_read(struct mpp_arena *arena, struct mpp_diag *diag, const char *path, const struct mpp_plandir *dir,
                                 struct mpp_profile **out) MPP_CHECKED;

void mpp_profile_print(const struct mpp_profile *p, FILE *out);

/* A JSON object, safe inside <script>, in ARENA. */
const char *mpp_profile_json(struct mpp_arena *arena, const struct mpp_profile *p);

/* "all-reduce over model 2 (128 KiB) takes 59 times as long as planned: 13.4 ms instead of 228 us". */
const char *mpp_profile_miss(struct mpp_arena *arena, const struct mpp_profile *p, int row);

#endif
