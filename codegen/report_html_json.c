/* report_html_json.c - JSON and HTML texts that nothing inside can end. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/report_html.h"

/* The bytes of the UTF-8 sequence that S begins with; 0: it is none. */
static int utf8_length(const unsigned char *s)
{
    static const struct {
        unsigned char first, last, low, high; /* of the first byte, of the second */
        int n;
    } forms[] = {{0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3},
                 {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
    if (s[0] < 0x80)
        return 1;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (s[0] < forms[i].first || s[0] > forms[i].last || s[1] < forms[i].low || s[1] > forms[i].high)
            continue;
        for (int k = 2; k < forms[i].n; k++)
            if ((s[k] & 0xc0) != 0x80)
                return 0;
        return forms[i].n;
    }
    return 0;
}

const char *mpp_html_basename(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void add_json_string(struct mpp_text *out, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t n = strlen(text), at = 0;
    char *buffer = mpp_arena_alloc(out->arena, 6 * n + 3);
    buffer[at++] = '"';
    for (int len; *s; s += len ? len : 1) {
        len = utf8_length(s);
        bool separator = len == 3 && s[0] == 0xe2 && s[1] == 0x80 && (s[2] == 0xa8 || s[2] == 0xa9);
        if (len == 0)
            at += (size_t)sprintf(buffer + at, "\\ufffd");
        else if (separator)
            at += (size_t)sprintf(buffer + at, "\\u20%02x", s[2] == 0xa8 ? 0x28 : 0x29);
        else if (len == 1 && (*s < 0x20 || *s == 0x7f || strchr("\"\\<>&'", *s)))
            at += (size_t)sprintf(buffer + at, "\\u%04x", *s);
        else
            for (int k = 0; k < len; k++)
                buffer[at++] = (char)s[k];
    }
    buffer[at++] = '"';
    buffer[at] = '\0';
    mpp_text_add(out, "%s", buffer);
}

const char *mpp_html_escape(struct mpp_arena *arena, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    char *buffer = mpp_arena_alloc(arena, 6 * strlen(text) + 1), *at = buffer;
    for (int len; *s; s += len ? len : 1) {
        len = utf8_length(s);
        if (len == 0 || (len == 1 && ((*s < 0x20 && *s != '\n') || *s == 0x7f)))
            at += sprintf(at, "\xef\xbf\xbd");
        else if (len == 1 && strchr("&<>\"'", *s))
            at += sprintf(at, "&#%d;", *s);
        else
            for (int k = 0; k < len; k++)
                *at++ = (char)s[k];
    }
    *at = '\0';
    return buffer;
}

/* ---- values ---- */

static void begin_value(struct mpp_html *h, const char *key)
{
    bool *follows = &h->follows[h->depth];
    if (*follows)
        mpp_text_add(&h->out, ",");
    *follows = true;
    if (key)
        mpp_text_add(&h->out, "\"%s\":", key);
}

void mpp_html_open(struct mpp_html *h, const char *key, char bracket)
{
    begin_value(h, key);
    mpp_text_add(&h->out, "%c", bracket);
    h->follows[++h->depth] = false;
}

void mpp_html_close(struct mpp_html *h, char bracket)
{
    h->depth--;
    mpp_text_add(&h->out, "%c", bracket);
}

void mpp_html_int(struct mpp_html *h, const char *key, int64_t v)
{
    begin_value(h, key);
    mpp_text_add(&h->out, "%lld", (long long)v);
}

void mpp_html_double(struct mpp_html *h, const char *key, double v)
{
    char text[40];
    int digits = 6;
    begin_value(h, key);
    if (!isfinite(v)) {
        mpp_text_add(&h->out, "null");
        return;
    }
    do
        snprintf(text, sizeof text, "%.*g", digits, v);
    while (digits++ < 17 && strtod(text, NULL) != v);
    mpp_text_add(&h->out, "%s", text);
}

void mpp_html_bool(struct mpp_html *h, const char *key, bool v)
{
    mpp_html_raw(h, key, v ? "true" : "false");
}

void mpp_html_text(struct mpp_html *h, const char *key, const char *text)
{
    begin_value(h, key);
    if (text)
        add_json_string(&h->out, text);
    else
        mpp_text_add(&h->out, "null");
}

void mpp_html_raw(struct mpp_html *h, const char *key, const char *json)
{
    begin_value(h, key);
    mpp_text_add(&h->out, "%s", json);
}

static uint64_t hash(const char *text)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 1099511628211u;
    return h;
}

/* The slot of TEXT, or the free one where it would stand. */
static int *find(const struct mpp_html_strings *s, const char *text)
{
    size_t mask = (size_t)s->n_slots - 1, i = (size_t)hash(text) & mask;
    while (s->slot[i] && strcmp(s->text[s->slot[i] - 1], text) != 0)
        i = (i + 1) & mask;
    return &s->slot[i];
}

int mpp_html_intern(struct mpp_html_strings *s, const char *text)
{
    if (2 * (s->n + 1) > s->n_slots) {
        s->n_slots = s->n_slots ? 2 * s->n_slots : 256;
        s->slot = mpp_arena_array(s->arena, s->n_slots, int);
        for (int i = 0; i < s->n; i++)
            *find(s, s->text[i]) = i + 1;
    }
    int *slot = find(s, text);
    if (*slot)
        return *slot - 1;
    s->text = mpp_arena_grow(s->arena, s->text, &s->cap, (size_t)s->n + 1, sizeof *s->text);
    s->text[s->n] = mpp_arena_strdup(s->arena, text);
    *slot = ++s->n;
    return s->n - 1;
}

void mpp_html_string(struct mpp_html *h, const char *key, const char *text)
{
    mpp_html_int(h, key, mpp_html_intern(h->strings, text));
}

/* ---- records ---- */

void mpp_html_records_begin(struct mpp_html *h, struct mpp_html_records *out)
{
    *out = (struct mpp_html_records){.h = h, .texts = {.arena = h->out.arena}};
}

void mpp_html_records_add(struct mpp_html_records *rs, const char *text, int layer)
{
    struct mpp_arena *arena = rs->h->out.arena;
    int id = mpp_html_intern(&rs->texts, text);
    rs->record = mpp_arena_grow(arena, rs->record, &rs->cap, (size_t)rs->texts.n, sizeof *rs->record);
    struct mpp_html_record *r = &rs->record[id];
    r->times++;
    if (layer < 0)
        return;
    r->layer = mpp_arena_grow(arena, r->layer, &r->cap, (size_t)r->n_layers + 1, sizeof *r->layer);
    r->layer[r->n_layers++] = layer;
}

static int by_value(const void *a, const void *b)
{
    return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

/* "0-11", "0-2,5". */
static const char *spans(struct mpp_arena *arena, int *layer, int n)
{
    struct mpp_text s = {.arena = arena};
    qsort(layer, (size_t)n, sizeof *layer, by_value);
    for (int i = 0; i < n;) {
        int first = layer[i], last = first;
        while (i < n && layer[i] <= last + 1)
            last = layer[i++];
        mpp_text_add(&s, first == last ? "%s%d" : "%s%d-%d", s.n ? "," : "", first, last);
    }
    return mpp_text_string(&s);
}

void mpp_html_records_write(struct mpp_html_records *rs, const char *key)
{
    struct mpp_html *h = rs->h;
    mpp_html_open(h, key, '[');
    for (int i = 0; i < rs->texts.n; i++) {
        struct mpp_html_record *r = &rs->record[i];
        mpp_html_open(h, NULL, '[');
        mpp_html_string(h, NULL, r->n_layers ? spans(h->out.arena, r->layer, r->n_layers) : "");
        mpp_html_int(h, NULL, r->times);
        mpp_html_raw(h, NULL, rs->texts.text[i]);
        mpp_html_close(h, ']');
    }
    mpp_html_close(h, ']');
}
