/* front.h - what a stage can trade: time per micro-batch against work once per step.
 *
 *     struct mpp_front f;
 *     mpp_front_find(arena, &fold, 8, 1, INT64_MAX, NULL, &f);         // 8 micro-batches, 1 chunk
 *     ... f.point[i].t_ps, .once_ps ...
 *
 * In T = sum t + (B - 1) max t + max once (interleaved by V: B max t + (sum t - max t) / V + max once) a stage's t weighs
 * from 1 / V to B times as much as its once, or once does not count at all. Found are the choices that are least under some
 * such weights. Others are of use only between two neighbours of them, above the line between the two, and seldom there:
 * if the longest stage or the most work per step is another stage's, and just so much. Within memory nothing is looked for
 * that saves B t less than a 4096-th of what it adds to once. Internal to planner/. */
#ifndef MPP_FRONT_H
#define MPP_FRONT_H

#include "planner/fold.h"

struct mpp_front_point {
    int64_t t_ps, once_ps;        /* as mpp_fold_times has them */
    const int32_t *choice;        /* of the fold's nodes */
};

struct mpp_front {
    int n;                        /* 0: nothing fits, or nothing is below the bound */
    struct mpp_front_point *point; /* t ascending, once descending */
    int64_t solved;               /* programs */
    bool given_up;                /* a program was too hard: there may be more */
};

/* The points of FOLD's program, within its capacity, that are least under some weights. UPPER_PS: choices whose B t + once
 * is as large are of no use (INT64_MAX: all are). *OUT lives in ARENA. */
void mpp_front_find(struct mpp_arena *arena, const struct mpp_fold *fold, int64_t micro_batches, int chunks, int64_t upper_ps,
                    volatile int *interrupt, struct mpp_front *out);

#endif
