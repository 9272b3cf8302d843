#include "ir/diag.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ir/arena.h"

enum { MAX_PRINTED = 20, MAX_WORD = 64, MAX_BYTES = 1000 };

struct mpp_diag {
    struct mpp_arena *arena;
    FILE *out;
    int errors;
    char *text;
    size_t text_len, text_cap;
};

struct mpp_diag *mpp_diag_in(struct mpp_arena *arena, FILE *out)
{
    struct mpp_diag *diag = mpp_arena_array(arena, 1, struct mpp_diag);
    diag->arena = arena;
    diag->out = out;
    diag->text = mpp_arena_strdup(arena, "");
    diag->text_cap = 1;
    return diag;
}

struct mpp_diag *mpp_diag_new(FILE *out)
{
    return mpp_diag_in(mpp_arena_new(), out);
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

/* Length of the UTF-8 character at S; 0: it is none. Overlong forms, surrogates and C1 control characters are none. */
static size_t character(const unsigned char *s)
{
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    }
    bool bad = (s[0] == 0xc2 && s[1] < 0xa0) || (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
               (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f);
    return bad ? 0 : n;
}

char *mpp_diag_plain(struct mpp_arena *arena, const char *s)
{
    size_t len = strnlen(s, MAX_BYTES + 1), k = 0;
    char *out = mpp_arena_alloc(arena, 4 * len + 8);
    while (*s && k < MAX_BYTES) {
        unsigned char c = (unsigned char)*s;
        size_t n = character((const unsigned char *)s);
        if (c == '\n')
            k += (size_t)sprintf(out + k, "\\n");
        else if (c < 0x20 || c == 0x7f)
            k += (size_t)sprintf(out + k, "\\x%02x", c);
        else if (n == 0)
            out[k++] = '?';
        else
            for (size_t i = 0; i < n; i++)
                out[k++] = s[i];
        s += n ? n : 1;
    }
    memcpy(out + k, *s ? "..." : "", *s ? 4 : 1);
    return out;
}

void mpp_diag_error(struct mpp_diag *diag, struct mpp_loc loc, const char *fmt, ...)
{
    if (++diag->errors > MAX_PRINTED)
        return;
    va_list ap;
    va_start(ap, fmt);
    char *what = mpp_diag_plain(diag->arena, mpp_arena_vprintf(diag->arena, fmt, ap));
    va_end(ap);
    const char *file = loc.file ? mpp_diag_plain(diag->arena, loc.file) : NULL;
    if (file && loc.line > 0)
        append(diag, mpp_arena_printf(diag->arena, "%s:%d: error: %s\n", file, loc.line, what));
    else if (file)
        append(diag, mpp_arena_printf(diag->arena, "%s: error: %s\n", file, what));
    else
        append(diag, mpp_arena_printf(diag->arena, "error: %s\n", what));
}

void mpp_diag_note(struct mpp_diag *diag, const char *fmt, ...)
{
    if (diag->errors > MAX_PRINTED)
        return;
    va_list ap;
    va_start(ap, fmt);
    append(diag, mpp_arena_printf(diag->arena, "    %s\n",
                                  mpp_diag_plain(diag->arena, mpp_arena_vprintf(diag->arena, fmt, ap))));
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
    int len = (int)strnlen(word, MAX_WORD + 1), best_distance = len / 3 + 1;
    for (int i = 0; i < n && len <= MAX_WORD && diag->errors < MAX_PRINTED; i++) {
        int other = (int)strnlen(names[i], MAX_WORD + 1);
        if (strcasecmp(word, names[i]) == 0 && strcmp(word, names[i]) != 0) {
            best = names[i];
            break;
        }
        if (abs(other - len) >= best_distance)
            continue;
        int distance = edit_distance(word, names[i]);
        if (distance < best_distance) {
            best_distance = distance;
            best = names[i];
        }
    }
    return best ? mpp_arena_printf(diag->arena, "; did you mean \"%s\"?", best) : "";
}
