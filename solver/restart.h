/* restart.h - good choices of small, dense problems, from many starts. */
#ifndef MPP_RESTART_H
#define MPP_RESTART_H

#include "solver/pairwise_internal.h"

struct mpp_pw_restart;

/* Free it before R, which is read only but for its work and usage. A plan takes time with the square of r->n. */
struct mpp_pw_restart *mpp_pw_restart_new(struct mpp_pw_relax *r, struct mpp_pw_random *random);
void mpp_pw_restart_run(struct mpp_pw_restart *x, int64_t work, const struct mpp_pw_watch *watch); /* for about WORK entries */
const int32_t *mpp_pw_restart_best(const struct mpp_pw_restart *x); /* [r->n], NULL: nothing fitted yet */
void mpp_pw_restart_free(struct mpp_pw_restart *x);

#endif
