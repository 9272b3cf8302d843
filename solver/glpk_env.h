/* glpk_env.h - a GLPK environment that cannot abort the process.
 *
 *     jmp_buf *escape = mpp_arena_alloc(scratch, sizeof *escape);
 *     if (mpp_glpk_begin(scratch, escape) && setjmp(*escape) == 0)
 *         ... glp_create_prob() ...                       // a failed assertion or allocation inside leaves to ESCAPE
 *     mpp_arena_free(scratch);                            // ends the environment and all that lies in it
 *
 * GLPK keeps one environment per thread: no second one may begin inside. */
#ifndef MPP_GLPK_ENV_H
#define MPP_GLPK_ENV_H

#include <setjmp.h>
#include <stdbool.h>

#include "ir/arena.h"

/* False: there is no memory for one. */
bool mpp_glpk_begin(struct mpp_arena *scratch, jmp_buf *escape);

#endif
