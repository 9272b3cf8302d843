#include "ir/diag.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "ir/arena.h"

enum { MAX_PRINTED = 20, MAX_WORD = 64 };

struct mpp_diag {
    struct mpp_arena *arena;
    FILE *out;
    int errors;
    char *text;
    size_t text_len, text_cap;
};

struct mpp_diag *mpp_diag_new(FILE *out)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_arena_array(arena, 1, struct mpp_diag);
    diag->arena = arena;
    diag->out = out;
    diag->text = mpp_arena_strdup(arena, "");
    diag->text_cap = 1;
    return diag;
}

void mpp_diag_free(struct mpp_diag *diag)
{
    if (diag)
        mpp_arena_free(diag->arena);
}

static void append(struct mpp_diag *diag, const char *s)
{
    if (diag->out)
        fputs(s, diag->out);
    size_t len = strlen(s);
    diag->text = mpp_arena_grow(diag->arena, diag->text, &diag->text_cap, diag->text_len + len + 1, 1);
    memcpy(diag->text + diag->text_len, s, len + 1);
    diag->text_len += len;
}

static char *format(struct mpp_diag *diag, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int len = vsnprintf(NULL, 0, fmt, ap);
    char *s = mpp_arena_alloc(diag->arena, (size_t)(len < 0 ? 0 : len) + 1);
    vsnprintf(s, (size_t)(len < 0 ? 0 : len) + 1, fmt, again);
    va_end(again);
    return s;
}

void mpp_diag_error(struct mpp_diag *diag, struct mpp_loc loc, const char *fmt, ...)
{
    if (++diag->errors > MAX_PRINTED)
        return;
    va_list ap;
    va_start(ap, fmt);
    char *what = format(diag, fmt, ap);
    va_end(ap);
    if (loc.file && loc.line > 0)
        append(diag, mpp_arena_printf(diag->arena, "%s:%d: error: %s\n", loc.file, loc.line, what));
    else if (loc.file)
        append(diag, mpp_arena_printf(diag->arena, "%s: error: %s\n", loc.file, what));
    else
        append(diag, mpp_arena_printf(diag->arena, "error: %s\n", what));
}

void mpp_diag_note(struct mpp_diag *diag, const char *fmt, ...)
{
    if (diag->errors > MAX_PRINTED)
        return;
    va_list ap;
    va_start(ap, fmt);
    append(diag, mpp_arena_printf(diag->arena, "    %s\n", format(diag, fmt, ap)));
    va_end(ap);
}

int mpp_diag_errors(const struct mpp_diag *diag)
{
    return diag->errors;
}

const char *mpp_diag_text(const struct mpp_diag *diag)
{
    return diag->text;
}

static int min3(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Optimal string alignment: insertions, deletions, substitutions, swaps of neighbours. */
static int edit_distance(const char *a, const char *b)
{
    int la = (int)strlen(a), lb = (int)strlen(b);
    if (la > MAX_WORD || lb > MAX_WORD)
        return MAX_WORD;
    int d[MAX_WORD + 1][MAX_WORD + 1];
    for (int i = 0; i <= la; i++)
        d[i][0] = i;
    for (int j = 0; j <= lb; j++)
        d[0][j] = j;
    for (int i = 1; i <= la; i++) {
        for (int j = 1; j <= lb; j++) {
            int cost = a[i - 1] != b[j - 1];
            d[i][j] = min3(d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + cost);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < d[i][j])
                d[i][j] = d[i - 2][j - 2] + 1;
        }
    }
    return d[la][lb];
}

const char *mpp_diag_hint(struct mpp_diag *diag, const char *word, const char *const *names, int n)
{
    const char *best = NULL;
    int best_distance = (int)strlen(word) / 3 + 1;
    for (int i = 0; i < n; i++) {
        int distance = edit_distance(word, names[i]);
        if (distance < best_distance) {
            best_distance = distance;
            best = names[i];
        }
    }
    return best ? mpp_arena_printf(diag->arena, "; did you mean \"%s\"?", best) : "";
}
