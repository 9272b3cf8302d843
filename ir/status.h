/* status.h - what every fallible function returns, and the macros that pass it on.
 *
 *     enum mpp_status st = mpp_model_read(ctx, path, &opts, &model);
 *     if (st != MPP_OK) return st;              // or: MPP_TRY(mpp_model_read(...));
 *
 * MPP_INVALID means that the user's mistakes have been reported through struct mpp_diag. Memory that is out is no
 * status: arenas leave to their guard (arena.h). */
#ifndef MPP_STATUS_H
#define MPP_STATUS_H

enum mpp_status {
    MPP_OK = 0,
    MPP_INVALID,      /* the input is wrong; diagnostics say where and how (exit status 2) */
    MPP_INFEASIBLE,   /* no plan fits; the result names what binds (exit status 2) */
    MPP_LIMIT,        /* a work limit or an interrupt stopped the search */
    MPP_IO,           /* the system refused a file operation; reported through mpp_diag */
};

#define MPP_CHECKED __attribute__((warn_unused_result))

/* Return the failure of EXPR from the calling function. */
#define MPP_TRY(expr)                         \
    do {                                      \
        enum mpp_status mpp_st_ = (expr);     \
        if (mpp_st_ != MPP_OK)                \
            return mpp_st_;                   \
    } while (0)

/* Jump to LABEL with the failure stored in ST, for functions with something to clean up. */
#define MPP_TRY_GOTO(st, label, expr)         \
    do {                                      \
        (st) = (expr);                        \
        if ((st) != MPP_OK)                   \
            goto label;                       \
    } while (0)

#endif
