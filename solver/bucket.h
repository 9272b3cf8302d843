/* bucket.h - most of a problem settled at once: vertices are eliminated one by one, exactly, and a few are held.
 *
 * Bucket elimination (Dechter, Artificial Intelligence 113, 1999) with a cutset that keeps tables small. */
#ifndef MPP_BUCKET_H
#define MPP_BUCKET_H

#include "solver/pairwise_internal.h"

/* Room for messages, kept from plan to plan. All zero at first; its arena is the user's to free. */
struct mpp_pw_pool {
    struct mpp_arena *arena;
    double *at;
    int64_t cap;
};

struct mpp_pw_buckets {
    struct mpp_arena *arena;
    const struct mpp_pw_relax *r;
    int32_t n;                    /* eliminated */
    struct mpp_pw_bucket *bucket; /* [n] in order */
    int32_t *place;               /* [r->n] in the order, -1: held */
    double **alone;               /* [n][choices] own cost, links to what is held, priced bytes */
    int32_t *digit;               /* scratch: all zero */
    double *sum;                  /* [most choices] scratch */
    int64_t entries;              /* of tables: the work of one settling */
    int64_t planning;             /* the work of the plan */
};

/* An order in which the N_MEMBERS are eliminated with tables of at most LIMIT entries; all others are held, as are
 * some members: those that MUST [r->n] (may be NULL) names last. One plan per pool at a time; free it before R. */
struct mpp_pw_buckets *mpp_pw_buckets_new(const struct mpp_pw_relax *r, const int32_t *member, int32_t n_members, const bool *must,
                                          double limit, struct mpp_pw_pool *pool, struct mpp_pw_random *random);

/* The cheapest choice of what is eliminated beside CHOICE of the others, bytes at PRICED [n][choices]; into CHOICE. */
void mpp_pw_buckets_settle(struct mpp_pw_buckets *b, double *const *priced, int32_t *choice);

void mpp_pw_buckets_free(struct mpp_pw_buckets *b);

#endif
