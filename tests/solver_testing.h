/* solver_testing.h - what the tests of solver/ share: counts of checks, and random numbers that are the same everywhere.
 *
 *     struct random r = {seed};
 *     check(mpp_pairwise_solve(...) == MPP_OK, "it is solved", problem_number);
 *     int choices = 1 + below(&r, 4);                                        // 1 to 4 */
#ifndef MPP_SOLVER_TESTING_H
#define MPP_SOLVER_TESTING_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

static int passed, failed;

static inline void check(bool ok, const char *what, int number)
{
    passed += ok;
    failed += !ok;
    if (!ok && failed < 20)
        printf("FAILED: problem %d: %s\n", number, what);
}

struct random {
    uint64_t state;
};

/* 0 to N - 1. */
static inline int below(struct random *r, int n)
{
    r->state = r->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((r->state >> 33) % (uint64_t)n);
}

#endif
