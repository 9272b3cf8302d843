/* progress.h - what the user sees of a run, and what programs read: metrics as JSON lines. Rank 0 only.
 *
 *     struct mpp_progress *p;
 *     int code = mpp_progress_open("run.jsonl", append, rewrite, first, last, &p, &error);
 *     mpp_progress_step(p, &(struct mpp_step_report){ .step = 1, .loss = 4.2, ... });
 *     mpp_progress_close(p);
 *
 * A metrics line: {"step": 1, "loss": 4.2, "grad_norm": null, "lr": 0.001, "step_s": 0.1, "tokens_per_s": 5e3}.
 * Numbers that are not finite are null. After an evaluation: "eval_loss" too. Where the loss is scaled: "loss_scale" and "skipped_steps" too. */
#ifndef MPP_PROGRESS_H
#define MPP_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "fail.h"

struct mpp_progress;

struct mpp_step_report {
    int64_t step;
    double loss, grad_norm, lr; /* grad_norm is NaN where none is computed */
    bool evaluated;               /* after this step, with */
    double eval_loss;
    double loss_scale;            /* of this step; 0: the loss is not scaled */
    int64_t skipped;              /* steps so far that changed no weight, as their gradients overflowed */
    double step_s, tokens_per_s;
    bool tokens;                  /* else those are samples */
};

/* METRICS may be NULL. APPEND: a resumed run goes on with its file; lines from step FIRST + 1 on are dropped.
 * REWRITE: one line that changes where the output is a terminal. */
int mpp_progress_open(const char *metrics, bool append, bool rewrite, int64_t first, int64_t last,
                      struct mpp_progress **progress_out, struct mpp_error *error) MPP_RT_CHECKED;
/* Fails where the metrics cannot be written. */
int mpp_progress_step(struct mpp_progress *progress, const struct mpp_step_report *report, struct mpp_error *error)
    MPP_RT_CHECKED;
/* A line of its own on stdout. */
void mpp_progress_say(struct mpp_progress *progress, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Tells that DIR/step-STEP was saved: of a run of many steps at most once a second, and of its last. */
void mpp_progress_saved(struct mpp_progress *progress, const char *dir, int64_t step);
/* The metrics so far survive a power cut. */
int mpp_progress_flush(struct mpp_progress *progress, struct mpp_error *error) MPP_RT_CHECKED;
void mpp_progress_close(struct mpp_progress *progress);

/* Seconds of a clock that only goes forward. */
double mpp_clock_s(void);
/* CPU seconds of the calling thread. */
double mpp_thread_cpu_s(void);
/* "12.3 MB" in OUT. */
void mpp_bytes_print(int64_t bytes, char *out, int out_bytes);

#endif
