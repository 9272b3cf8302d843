/* fail.c - messages, and leaving a rank. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpp_rt.h"
#include "device.h"
#include "fail.h"
#include "job.h"
#include "signals.h"
#include "transport.h"

/* ---- text that is safe to show ------------------------------------------------------------------------- */

/* Bytes of the UTF-8 sequence at AT that a terminal only shows; 0: a control character, one that turns the direction of
 * writing, or no UTF-8. */
static int shown_length(const unsigned char *at)
{
    unsigned char c = at[0];
    int n = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
    if (n == 1)
        return c >= 0x20 && c != 0x7f;
    for (int i = 1; i < n; i++)
        if (at[i] >> 6 != 2)
            return 0;
    bool control = n == 2 && c == 0xc2 && at[1] < 0xa0;
    bool surrogate = n == 3 && c == 0xed && at[1] >= 0xa0;
    bool overlong = (n == 3 && c == 0xe0 && at[1] < 0xa0) || (n == 4 && c == 0xf0 && at[1] < 0x90);
    bool past_end = n == 4 && c == 0xf4 && at[1] >= 0x90;
    /* U+200E, 200F, 2028 to 202E, 2066 to 2069 */
    bool turns = n == 3 && c == 0xe2 && ((at[1] == 0x80 && (at[2] == 0x8e || at[2] == 0x8f || (at[2] >= 0xa8 && at[2] <= 0xae))) ||
                                         (at[1] == 0x81 && at[2] >= 0xa6 && at[2] <= 0xa9));
    return control || surrogate || overlong || past_end || turns ? 0 : n;
}

/* FROM as one line in OUT; ends in "..." where it does not fit. */
static void show(const char *from, char *out, size_t out_bytes)
{
    static const char digits[] = "0123456789abcdef";
    const unsigned char *at = (const unsigned char *)from;
    size_t n = 0;
    while (*at != '\0') {
        int length = shown_length(at);
        if (n + 4 + 4 > out_bytes) { /* the longest piece, dots and the end */
            memcpy(out + n, "...", 4);
            return;
        }
        if (length == 0) {
            const char hex[4] = {'\\', 'x', digits[*at >> 4], digits[*at & 15]};
            memcpy(out + n, hex, 4);
            n += 4;
            at++;
        }
        for (; length > 0; length--)
            out[n++] = (char)*at++;
    }
    out[n] = '\0';
}

static void format_shown(struct mpp_error *error, const char *fmt, va_list args) __attribute__((format(printf, 2, 0)));

static void format_shown(struct mpp_error *error, const char *fmt, va_list args)
{
    char raw[2 * sizeof error->text];
    vsnprintf(raw, sizeof raw, fmt, args);
    show(raw, error->text, sizeof error->text);
}

int mpp_error_set(struct mpp_error *error, int code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    format_shown(error, fmt, args);
    va_end(args);
    error->code = code;
    return code;
}

int mpp_error_system(struct mpp_error *error, const char *path, int errno_value)
{
    static const int another_path[] = {ENOENT, ENOTDIR, EISDIR, EACCES, EPERM, ENAMETOOLONG, ELOOP, ENXIO, EROFS, ETXTBSY};
    int code = MPP_EXIT_SYSTEM;
    for (size_t i = 0; i < sizeof another_path / sizeof another_path[0]; i++)
        if (errno_value == another_path[i])
            code = MPP_EXIT_INPUT;
    return mpp_error_set(error, code, "%s: %s", path, errno_value == ENOMEM ? "out of memory" : strerror(errno_value));
}

void mpp_note(const char *fmt, ...)
{
    struct mpp_error text;
    va_list args;
    va_start(args, fmt);
    format_shown(&text, fmt, args);
    va_end(args);
    fprintf(stderr, "note: %s\n", text.text);
}

/* ---- hints ------------------------------------------------------------------------------------------------- */

/* Edit distance (insert, delete, replace) of two short words. */
static int edit_distance(const char *a, const char *b)
{
    int row[64];
    int n = (int)strlen(b);
    if (n >= 63 || strlen(a) >= 63)
        return 1000;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1] != '\0'; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

void mpp_error_hint(const char *word, const char *const *names, int n_names, char *out, int out_bytes)
{
    const char *best = NULL;
    int best_distance = 1 + (int)strlen(word) / 3;
    for (int i = 0; i < n_names; i++) {
        int distance = edit_distance(word, names[i]);
        if (distance < best_distance || (best == NULL && distance == best_distance)) {
            best_distance = distance;
            best = names[i];
        }
    }
    out[0] = '\0';
    if (best != NULL)
        snprintf(out, (size_t)out_bytes, "; did you mean \"%s\"?", best);
}

/* ---- leaving ------------------------------------------------------------------------------------------------ */

void mpp_leave(struct mpp_rank *r, int code)
{
    struct mpp_local *local = r->impl;
    local->exit_code = code;
    if (code != MPP_EXIT_OK && local->job != NULL)
        mpp_signals_fail(local->job->signals);
    mpp_device_abandon(r);
    longjmp(local->leave, 1);
}

void mpp_fail(struct mpp_rank *r, int code, const char *fmt, ...)
{
    struct mpp_error error;
    va_list args;
    va_start(args, fmt);
    format_shown(&error, fmt, args);
    va_end(args);
    r->transport->ops->abort(r, code, error.text);
    mpp_leave(r, code);
}

int mpp_agreement(struct mpp_rank *r, int code, const struct mpp_error *error)
{
    float worst[2] = {(float)code, code ? (float)-r->rank : (float)-r->n_ranks};
    r->transport->ops->all_reduce(r, MPP_WORLD, worst, 2, true);
    if (worst[0] != 0 && (int)-worst[1] == r->rank)
        fprintf(stderr, "error: %s\n", error->text);
    return (int)worst[0];
}

void mpp_agree(struct mpp_rank *r, int code, const struct mpp_error *error)
{
    int worst = mpp_agreement(r, code, error);
    if (worst != MPP_EXIT_OK)
        mpp_leave(r, worst);
}
