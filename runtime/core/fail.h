/* fail.h - what went wrong, and how a rank leaves the job.
 *
 *     struct mpp_error error = {0};
 *     int code = mpp_npy_open("x.npy", &npy, &error);
 *     if (code)
 *         mpp_fail(r, code, "%s", error.text);       // this rank alone met it
 *     mpp_agree(r, code, &error);                    // every rank calls: all leave if one failed
 *
 * Codes are exit statuses. Functions that can fail return one and fill the error. */
#ifndef MPP_FAIL_H
#define MPP_FAIL_H

struct mpp_rank;

enum mpp_exit {
    MPP_EXIT_OK = 0,
    MPP_EXIT_SYSTEM = 1, /* the system failed: disk, memory, transport */
    MPP_EXIT_INPUT = 2,  /* wrong data, weights or options */
};

struct mpp_error {
    int code;
    char text[768];
};

#define MPP_RT_CHECKED __attribute__((warn_unused_result))

/* Write the message into ERROR and return CODE. It becomes one line that is safe to show: what names and files bring in
 * that a terminal could act on is written \xNN. */
int mpp_error_set(struct mpp_error *error, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* `PATH: reason` for the system's ERRNO_VALUE: the user's fault where another path would do, else the system's. */
int mpp_error_system(struct mpp_error *error, const char *path, int errno_value);

/* `note: ...` on stderr, as safe to show. */
void mpp_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* `; did you mean "x"?` in OUT (empty when no name is near). */
void mpp_error_hint(const char *word, const char *const *names, int n_names, char *out, int out_bytes);

/* End the job on all ranks: print `error: ...` once, release the others, leave this rank's thread of
 * control. Does not return. */
void mpp_fail(struct mpp_rank *r, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4), noreturn));

/* Called by all ranks after a step that any of them may have failed (CODE 0: it went well). Returns
 * when all went well; otherwise the lowest failing rank prints and all leave. */
void mpp_agree(struct mpp_rank *r, int code, const struct mpp_error *error);

/* The same for a caller with something to free: the highest code of all ranks; it then leaves by itself. */
int mpp_agreement(struct mpp_rank *r, int code, const struct mpp_error *error) MPP_RT_CHECKED;

/* Leave without a message: some other rank has printed one. */
void mpp_leave(struct mpp_rank *r, int code) __attribute__((noreturn));

#endif
