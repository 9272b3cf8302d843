/* answer.h - one JSON object, written as it comes.
 *
 *     struct mpp_answer j = {.out = stdout};
 *     mpp_answer_open(&j, NULL, '{');
 *     mpp_answer_text(&j, "name", "h.0");
 *     mpp_answer_close(&j, '}');                   // and a newline, as it was the outermost
 */
#ifndef MPP_INSPECT_ANSWER_H
#define MPP_INSPECT_ANSWER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct mpp_answer {
    FILE *out;
    int depth;
    bool comma;                   /* something stands before on this level */
};

/* KEY is NULL in an array, and for the outermost. */
void mpp_answer_open(struct mpp_answer *j, const char *key, char bracket);
void mpp_answer_close(struct mpp_answer *j, char bracket);
/* TEXT NULL: null. Bytes that are no UTF-8 become U+FFFD. */
void mpp_answer_text(struct mpp_answer *j, const char *key, const char *text);
void mpp_answer_int(struct mpp_answer *j, const char *key, int64_t v);
void mpp_answer_double(struct mpp_answer *j, const char *key, double v);
void mpp_answer_bool(struct mpp_answer *j, const char *key, bool v);

#endif
