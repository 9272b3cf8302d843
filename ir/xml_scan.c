/* What libxml2 takes too long over, or says badly, is found before it sees the text: it compares each attribute of a tag
 * with all before it, and it reads encodings that nobody means. */
#include "ir/xml_scan.h"

#include <string.h>

enum { MAX_ATTRS = 1000 };

struct scan {
    const char *text, *end;
    struct mpp_arena *arena;
    const char *fault;
    const char *at;              /* where the fault stands */
};

static void fail(struct scan *s, const char *at, const char *what)
{
    s->at = at;
    s->fault = what;
}

static bool starts(const struct scan *s, const char *p, const char *word)
{
    size_t n = strlen(word);
    return (size_t)(s->end - p) >= n && memcmp(p, word, n) == 0;
}

/* Behind the next WORD from P on; the end without one. */
static const char *behind(const struct scan *s, const char *p, const char *word)
{
    const char *found = memmem(p, (size_t)(s->end - p), word, strlen(word));
    return found ? found + strlen(word) : s->end;
}

static void check_encoding(struct scan *s)
{
    static const char *const marks[] = {"\xff\xfe", "\xfe\xff", "<\0", "\0<", "\0\0"};
    for (int i = 0; i < 5; i++) {
        if (s->end - s->text >= 2 && memcmp(s->text, marks[i], 2) == 0) {
            fail(s, s->text, "the file is in UTF-16 or UTF-32; save it as UTF-8");
            return;
        }
    }
    const char *zero = memchr(s->text, '\0', (size_t)(s->end - s->text));
    if (zero)
        fail(s, zero, "a zero byte: this is no text");
}

/* <?xml version="1.0" encoding="UTF-8"?>: no other encoding. */
static void check_declaration(struct scan *s, const char *p)
{
    static const char *const known[] = {"UTF-8", "utf-8", "US-ASCII", "us-ascii", "ASCII"};
    const char *end = behind(s, p, "?>"), *at = memmem(p, (size_t)(end - p), "encoding", 8);
    const char *quote = at;
    while (quote && quote < end && *quote != '"' && *quote != '\'')
        quote++;
    if (!quote || quote == end)
        return;
    const char *close = memchr(quote + 1, *quote, (size_t)(end - quote - 1));
    size_t n = close ? (size_t)(close - quote - 1) : 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (n == strlen(known[i]) && memcmp(quote + 1, known[i], n) == 0)
            return;
    }
    if (close)
        fail(s, at, mpp_arena_printf(s->arena, "the encoding \"%.*s\" is not supported; save the file as UTF-8", n < 40 ? (int)n : 40,
                                     quote + 1));
}

/* The tag at P: where it ends. */
static const char *scan_tag(struct scan *s, const char *p)
{
    const char *open = p;
    int n = 0;
    for (p++; p < s->end && *p != '>' && *p != '<'; p++) {
        if (*p != '"' && *p != '\'')
            continue;
        const char *close = memchr(p + 1, *p, (size_t)(s->end - p - 1));
        if (!close)
            return s->end;
        p = close;
        if (++n > MAX_ATTRS) {
            fail(s, open, mpp_arena_printf(s->arena, "an element has over %d attributes", MAX_ATTRS));
            return s->end;
        }
    }
    return p;
}

const char *mpp_xml_scan(struct mpp_arena *arena, const char *text, size_t size, int *out_line)
{
    struct scan s = {.text = text, .end = text + size, .arena = arena};
    check_encoding(&s);
    const char *p = text;
    if (starts(&s, p, "\xef\xbb\xbf"))
        p += 3;
    if (!s.fault && starts(&s, p, "<?xml") && !starts(&s, p, "<?xml-"))
        check_declaration(&s, p);
    while (!s.fault && p < s.end && (p = memchr(p, '<', (size_t)(s.end - p)))) {
        if (starts(&s, p, "<!--"))
            p = behind(&s, p + 4, "-->");
        else if (starts(&s, p, "<![CDATA["))
            p = behind(&s, p, "]]>");
        else if (starts(&s, p, "<?"))
            p = behind(&s, p, "?>");
        else
            p = scan_tag(&s, p);
    }
    *out_line = 1;
    for (const char *c = text; s.fault && c < s.at; c++)
        *out_line += *c == '\n';
    return s.fault;
}
