/* json.h - JSON text in memory, read in order, without a tree: what is read takes no more memory than the caller keeps.
 *
 *     struct mpp_json j = mpp_json_of(path, text, n_bytes, 0, &error);
 *     mpp_json_open(&j, '{');
 *     while (mpp_json_more(&j, '}')) {
 *         char key[32];
 *         mpp_json_key(&j, key, sizeof key);
 *         if (strcmp(key, "step") == 0)
 *             mpp_json_integer(&j, &step);
 *         else
 *             mpp_json_skip(&j);
 *     }
 *     int code = mpp_json_end(&j);        // MPP_EXIT_OK, or the first fault's code
 *
 * After a fault, which names file and byte, everything returns false and fills nothing but zeros and empty text, so that callers
 * need not look before the end. The text may change while it is read (a mapped file): nothing is read outside. */
#ifndef MPP_JSON_H
#define MPP_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "fail.h"

struct mpp_json {
    const char *path;
    const unsigned char *text, *at, *end;
    int64_t base;    /* where the text begins in the file, for messages */
    bool first;      /* no element of the innermost list or object was read yet */
    int code;        /* of the first fault */
    struct mpp_error *error;
};

/* PATH, TEXT and ERROR are the caller's and live as long. */
struct mpp_json mpp_json_of(const char *path, const void *text, int64_t n_bytes, int64_t base, struct mpp_error *error);

/* '{' or '[' comes. */
bool mpp_json_open(struct mpp_json *j, char bracket);
/* Whether another element comes before BRACKET ('}' or ']'), which is taken otherwise. */
bool mpp_json_more(struct mpp_json *j, char bracket);
/* A key and its colon; text too long for OUT is cut. */
bool mpp_json_key(struct mpp_json *j, char *out, int out_bytes);
/* The same of any length; the caller frees. NULL after a fault. */
bool mpp_json_key_new(struct mpp_json *j, char **out);
bool mpp_json_string(struct mpp_json *j, char *out, int out_bytes);
bool mpp_json_string_new(struct mpp_json *j, char **out);
/* A whole number. */
bool mpp_json_integer(struct mpp_json *j, int64_t *out);
/* Any number that a double holds. */
bool mpp_json_number(struct mpp_json *j, double *out);
/* Any value. */
bool mpp_json_skip(struct mpp_json *j);
/* Nothing may follow. */
int mpp_json_end(struct mpp_json *j) MPP_RT_CHECKED;

/* A fault of the caller's: `path: byte N: what`. */
bool mpp_json_fault(struct mpp_json *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* TEXT as the inside of a JSON string: its length, written (without a NUL) where OUT is not NULL. What is no UTF-8
 * becomes U+FFFD. */
int64_t mpp_json_escape(const char *text, char *out);

#endif
