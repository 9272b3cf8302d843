/* diag.h - what went wrong in the user's input, said once per fault.
 *
 *     struct mpp_diag *d = mpp_diag_new(stderr);
 *     mpp_diag_error(d, loc, "%s has no attribute \"%s\"%s", op, attr, mpp_diag_hint(d, attr, names, n));
 *     if (mpp_diag_errors(d)) return MPP_INVALID;
 *
 * A line reads `file:line: error: what; hint`; without a file it reads `error: what; hint`.
 * Errors are collected and go on where possible, so that one run reports many. */
#ifndef MPP_DIAG_H
#define MPP_DIAG_H

#include <stdio.h>

struct mpp_arena;
struct mpp_diag;

/* A place in the user's input: a file as the user named it (NULL: none) and a line (0: none). */
struct mpp_loc {
    const char *file;
    int line;
};

/* A new collector that prints to OUT as errors come (NULL: keep silent): one that the caller frees, or one in ARENA, which
 * must not be freed. */
struct mpp_diag *mpp_diag_new(FILE *out);
struct mpp_diag *mpp_diag_in(struct mpp_arena *arena, FILE *out);
void mpp_diag_free(struct mpp_diag *diag);

/* Report one error; after 20 of them further ones are only counted. */
void mpp_diag_error(struct mpp_diag *diag, struct mpp_loc loc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* An indented line that belongs to the error before it: a call path, the other side of a conflict. */
void mpp_diag_note(struct mpp_diag *diag, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* How many errors were reported so far, and all the text so far (owned by DIAG). */
int mpp_diag_errors(const struct mpp_diag *diag);
const char *mpp_diag_text(const struct mpp_diag *diag);

/* S as one line that a terminal can show: control characters become \n or \x1b, bytes that are no UTF-8 become ?, and
 * what is over 1000 bytes is cut. All reports pass through it. The string is owned by ARENA. */
char *mpp_diag_plain(struct mpp_arena *arena, const char *s);

/* `; did you mean "x"?` where one of the N NAMES is within a third of WORD's length in edit
 * distance, else "" (also when reports are no longer printed). The string is owned by DIAG and lives as long as it. */
const char *mpp_diag_hint(struct mpp_diag *diag, const char *word, const char *const *names, int n);

#endif
