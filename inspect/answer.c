/* answer.c - JSON texts, member by member. */
#include "inspect/answer.h"

#include <math.h>
#include <string.h>

static void string(FILE *out, const char *s);

static void begin(struct mpp_answer *j, const char *key)
{
    if (j->comma)
        fputs(", ", j->out);
    if (key) {
        string(j->out, key);
        fputs(": ", j->out);
    }
    j->comma = true;
}

void mpp_answer_open(struct mpp_answer *j, const char *key, char bracket)
{
    begin(j, key);
    fputc(bracket, j->out);
    j->depth++;
    j->comma = false;
}

void mpp_answer_close(struct mpp_answer *j, char bracket)
{
    fputc(bracket, j->out);
    j->comma = --j->depth > 0;
    if (j->depth == 0)
        fputc('\n', j->out);
}

/* Bytes of the UTF-8 character at S; 0: it is none. */
static int character(const unsigned char *s)
{
    int n = *s < 0x80 ? 1 : *s >= 0xc2 && *s < 0xe0 ? 2 : *s >= 0xe0 && *s < 0xf0 ? 3 : *s >= 0xf0 && *s < 0xf5 ? 4 : 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (*s == 0xe0 && s[1] < 0xa0) || (*s == 0xf0 && s[1] < 0x90);
    bool outside = (*s == 0xed && s[1] >= 0xa0) || (*s == 0xf4 && s[1] >= 0x90);
    return n > 1 && (overlong || outside) ? 0 : n;
}

static void string(FILE *out, const char *s)
{
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)s; *c;) {
        int n = character(c);
        if (n == 0) {
            fputs("\xef\xbf\xbd", out);
            c++;
            continue;
        }
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < 0x20 || *c == 0x7f)
            fprintf(out, "\\u%04x", *c);
        else
            fwrite(c, 1, (size_t)n, out);
        c += n;
    }
    fputc('"', out);
}

void mpp_answer_text(struct mpp_answer *j, const char *key, const char *text)
{
    begin(j, key);
    if (text)
        string(j->out, text);
    else
        fputs("null", j->out);
}

void mpp_answer_int(struct mpp_answer *j, const char *key, int64_t v)
{
    begin(j, key);
    fprintf(j->out, "%lld", (long long)v);
}

void mpp_answer_double(struct mpp_answer *j, const char *key, double v)
{
    begin(j, key);
    if (isfinite(v))
        fprintf(j->out, "%.12g", v);
    else
        fputs("null", j->out);
}

void mpp_answer_bool(struct mpp_answer *j, const char *key, bool v)
{
    begin(j, key);
    fputs(v ? "true" : "false", j->out);
}
