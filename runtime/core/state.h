/* state.h - state.json of a checkpoint: where training stood, and what its files must hold; and the step to go on from.
 *
 *     code = mpp_checkpoint_find("ckpt", &found, &error);        // DIR/step-N of the highest N that is whole
 *     mpp_state_compare(&found, &now, note, sizeof note);        // "": the run goes on as it was
 *     code = mpp_state_write(&now, "ckpt/.part-step-8", &error);
 *
 * A checkpoint is whole if state.json, the last file written, can be read and the files it lists have the sizes it
 * lists. Whether they hold the numbers that were saved is seen when they are loaded (checkpoint.h). */
#ifndef MPP_STATE_H
#define MPP_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "fail.h"

#define MPP_PATH_BYTES 4096 /* longer paths are refused */
#define MPP_STATE_FILES 2   /* model.safetensors, optimizer.safetensors */
#define MPP_STATE_SETTINGS 10

struct mpp_options;
struct mpp_program;

struct mpp_state_file {
    int64_t bytes; /* -1: not recorded */
    uint64_t sum;  /* over all tensors: mpp_state_sum */
};

struct mpp_checkpoint {
    char path[MPP_PATH_BYTES];    /* of the step's folder */
    int64_t step;                 /* steps done */
    int64_t samples;              /* read by then */
    uint64_t seed;
    int64_t batch;                /* samples per step; 0: not recorded */
    char model[128], data[MPP_PATH_BYTES + 16];
    char schedule[16];            /* "": not recorded, nor are the settings */
    double setting[MPP_STATE_SETTINGS];
    char built[2048];             /* as the program's; "": not recorded */
    struct mpp_state_file file[MPP_STATE_FILES];
    char note[512];               /* newer steps that were passed over, or "" */
};

extern const char *const mpp_state_file_names[MPP_STATE_FILES];

/* The newest whole step of DIR, or DIR itself where it is one. *NONE_OUT (may be NULL): DIR holds no step at all, or
 * does not exist. */
int mpp_checkpoint_find(const char *dir, struct mpp_checkpoint *found_out, bool *none_out, struct mpp_error *error)
    MPP_RT_CHECKED;
/* The highest step of DIR below BELOW, -1 where there is none. */
int64_t mpp_checkpoint_newest(const char *dir, int64_t below);
/* Number of a folder called step-N, or -1. */
int64_t mpp_checkpoint_number(const char *name);

/* Model, DATA (what --data takes), batch and settings of this run; the rest is zero. */
void mpp_state_describe(const struct mpp_program *program, const struct mpp_options *options, const char *data,
                        struct mpp_checkpoint *state_out);
/* What differs, as one sentence in NOTE, or "". */
void mpp_state_compare(const struct mpp_checkpoint *from, const struct mpp_checkpoint *now, char *note, int note_bytes);
/* DIR/state.json, flushed. */
int mpp_state_write(const struct mpp_checkpoint *state, const char *dir, struct mpp_error *error) MPP_RT_CHECKED;

/* What COUNT 4-byte elements from element FIRST on of tensor NAME add to a file's sum (mod 2^64): word times an odd
 * number that depends on the name and the place. Any order of the same elements gives the same sum. */
uint64_t mpp_state_sum(const char *name, int64_t first, const char *bytes, int64_t count);

#endif
