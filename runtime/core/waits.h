/* waits.h - what a rank waits in, for who watches over it: watch.c between processes, guard.c between threads.
 *
 *     mpp_wait_begin(r, MPP_WAIT_ALL_REDUCE, (int)mask);   // R works no more, it waits for its group
 *     ...
 *     mpp_wait_end(r);
 *
 *     if (mpp_hang_find(program, n, ranks, timeout_s, text, sizeof text))   // "rank 1 has not moved for 30 s while ..."
 *
 * A rank tells by one word, which other threads read at any time. */
#ifndef MPP_WAITS_H
#define MPP_WAITS_H

#include <stdbool.h>
#include <stdint.h>

struct mpp_program;
struct mpp_rank;

enum mpp_wait {
    MPP_WAIT_BARRIER = 1, MPP_WAIT_ALL_REDUCE, MPP_WAIT_ALL_GATHER, MPP_WAIT_REDUCE_SCATTER, MPP_WAIT_ALL_TO_ALL, MPP_WAIT_BEGUN,
    MPP_WAIT_COMMUNICATOR,                  /* for a group of WHAT, a mask, as those before */
    MPP_WAIT_SEND, MPP_WAIT_RECEIVE,        /* WHAT is a rank */
    MPP_WAIT_HAND_OVER, MPP_WAIT_TAKE_OVER, /* WHAT is a transfer */
    MPP_WAIT_GPU,                           /* for its GPU, which has work of its own */
    MPP_WAIT_OUTPUT,                        /* to write, for who reads what it writes */
};

/* R begins to wait, which counts as a move of its. */
void mpp_wait_begin(struct mpp_rank *r, enum mpp_wait kind, int what);
/* The same for R's GPU, which is at what WORD tells (mpp_wait_word); 0: at work of its own. */
void mpp_wait_begin_gpu(struct mpp_rank *r, uint64_t word);
void mpp_wait_end(struct mpp_rank *r);
/* What R waits in; 0: it works. */
uint64_t mpp_wait_of(const struct mpp_rank *r);
uint64_t mpp_wait_word(enum mpp_wait kind, int what);

/* What is known of a rank. */
struct mpp_watched {
    bool absent;      /* it has ended well, or nothing is known of it: it does not count */
    bool idle;        /* it has not begun anything for the whole timeout */
    bool silent;      /* nor said anything */
    uint64_t waits;
    const char *host; /* NULL: there is one process */
};

/* Is the job hung: does a rank wait for one that neither waits nor moves, or do all wait? Then TEXT says who waits in what for
 * whom, and *STUCK_OUT is the rank that does not move; -1: all wait. A rank whose GPU works, without moving either, is such a one; one
 * that waits for the reader of its output is none, whatever others wait for. */
bool mpp_hang_find(const struct mpp_program *program, int n, const struct mpp_watched *ranks, double timeout_s, int *stuck_out,
                   char *text, int text_bytes);

#endif
