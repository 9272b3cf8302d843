/* fail.c - messages, and leaving a rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpp_rt.h"
#include "fail.h"
#include "job.h"
#include "transport.h"

int mpp_error_set(struct mpp_error *error, int code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(error->text, sizeof error->text, fmt, args);
    va_end(args);
    error->code = code;
    return code;
}

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

void mpp_leave(struct mpp_rank *r, int code)
{
    struct mpp_local *local = r->impl;
    local->exit_code = code;
    longjmp(local->leave, 1);
}

void mpp_fail(struct mpp_rank *r, int code, const char *fmt, ...)
{
    struct mpp_error error;
    va_list args;
    va_start(args, fmt);
    vsnprintf(error.text, sizeof error.text, fmt, args);
    va_end(args);
    r->transport->ops->abort(r, code, error.text);
    mpp_leave(r, code);
}

int mpp_agreement(struct mpp_rank *r, int code, const struct mpp_error *error)
{
    float worst[2] = {(float)code, code ? (float)-r->rank : (float)-r->n_ranks};
    r->transport->ops->all_reduce(r, (1u << r->n_axes) - 1, worst, 2, true);
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
