/* job.h - what the ranks of one process share, and what each keeps for itself. */
#ifndef MPP_JOB_H
#define MPP_JOB_H

#include <setjmp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fail.h"
#include "transport.h"

struct mpp_checkpoint;
struct mpp_data;
struct mpp_feed;
struct mpp_options;
struct mpp_progress;
struct mpp_program;
struct mpp_rank;
struct mpp_signals;
struct mpp_transport;

/* One per process. */
struct mpp_job {
    const struct mpp_program *program;
    const struct mpp_options *options;
    struct mpp_transport *transport;
    struct mpp_data *data; /* opened before the ranks start, read by all of them */
    struct mpp_data *eval_data; /* of --eval, or NULL */
    char *data_source;     /* what --data takes; NULL: not known yet */
    int local_ranks;       /* ranks in this process */
    int place_here;        /* this process among those of its machine, by LOCAL_RANK; -1: the transport counts them */
    uint64_t seed;
    int64_t first_step;    /* steps already done: 0, or the checkpoint's */
    int64_t first_sample;  /* samples read by then */
    struct mpp_checkpoint *resume; /* to continue from, or NULL */
    struct mpp_signals *signals;
    int prepare_code;      /* how opening all this went in this process; the ranks agree on it first */
    struct mpp_error prepare_error;
};

/* A sum that was begun and is yet to be done. */
struct mpp_deferred {
    unsigned mask;
    float *x;       /* all-reduce; else NULL */
    int64_t count;
    struct mpp_cut cut;
    const float *src;
    float *dst;
};

enum { MPP_MAX_DEFERRED = 1024 };

/* One per rank; mpp_rank.impl. */
struct mpp_local {
    struct mpp_job *job;
    jmp_buf leave;  /* set by the rank's entry point: mpp_leave comes back there */
    int exit_code;
    struct mpp_feed *feed;         /* what passes take their inputs from */
    struct mpp_feed *other_feed;   /* of the training, during an evaluation */
    struct mpp_progress *progress; /* rank 0 */
    unsigned saves_seen;           /* rank 0: saves asked for by SIGUSR1, of which it knows */
    int save_lock;                 /* rank 0: descriptor that keeps other trainers out of --save; 0: none */
    char *states;                  /* the emitted code's, of every slot (passes.h) */
    int placed;                    /* micro-batch whose inputs lie in the places that all slots share; -1: none */
    char *kept_state;              /* what passes outside the training must not change */
    struct mpp_deferred deferred[MPP_MAX_DEFERRED];
    int n_deferred;
    int n_begun;                   /* sums that were begun since the last wait, deferred or not */
    int64_t n_gathers;             /* that were begun so far, done at once or not */
    char unfinished[4096];         /* rank 0: file or folder being written, removed where the job fails */
    atomic_bool is_unfinished;     /* there is one; whoever clears this may remove it, the watch's thread too */
};

#endif
