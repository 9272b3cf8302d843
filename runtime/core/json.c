/* json.c - a reader of JSON (RFC 8259) in memory. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

#define DEPTH_LIMIT 64

struct mpp_json mpp_json_of(const char *path, const void *text, int64_t n_bytes, int64_t base, struct mpp_error *error)
{
    const unsigned char *begin = n_bytes > 0 ? text : (const unsigned char *)"";
    return (struct mpp_json){.path = path, .text = begin, .at = begin, .end = begin + n_bytes, .base = base,
                             .error = error};
}

bool mpp_json_fault(struct mpp_json *j, const char *fmt, ...)
{
    char what[512];
    va_list args;
    if (j->code != MPP_EXIT_OK)
        return false;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    j->code = mpp_error_set(j->error, MPP_EXIT_INPUT, "%s: byte %lld: %s", j->path,
                            (long long)(j->base + (j->at - j->text)), what);
    return false;
}

static void skip_space(struct mpp_json *j)
{
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\n' || *j->at == '\t' || *j->at == '\r'))
        j->at++;
}

/* The next character that is no space; -1 at the end or after a fault. */
static int peek(struct mpp_json *j)
{
    if (j->code != MPP_EXIT_OK)
        return -1;
    skip_space(j);
    return j->at < j->end ? *j->at : -1;
}

/* WHAT was expected, and something else comes. */
static bool unexpected(struct mpp_json *j, const char *what)
{
    int c = peek(j);
    if (c < 0)
        return mpp_json_fault(j, "the text ends where %s should come", what);
    return mpp_json_fault(j, "%s should come, not '%c'", what, c);
}

bool mpp_json_open(struct mpp_json *j, char bracket)
{
    if (peek(j) != bracket)
        return unexpected(j, bracket == '{' ? "an object {" : "a list [");
    j->at++;
    j->first = true;
    return true;
}

bool mpp_json_more(struct mpp_json *j, char bracket)
{
    int c = peek(j);
    bool first = j->first;
    j->first = false;
    if (c == bracket) {
        j->at++;
        return false;
    }
    if (first && c >= 0)
        return true;
    if (c != ',')
        return unexpected(j, bracket == '}' ? "a comma or }" : "a comma or ]");
    j->at++;
    return true;
}

/* ---- strings ----------------------------------------------------------------------------------------- */

/* Length of the UTF-8 sequence at AT, 0 where it is none. */
static int utf8_length(const unsigned char *at, const unsigned char *end)
{
    static const uint32_t lowest[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char first = at[0];
    int n = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : first >> 3 == 30 ? 4 : 0;
    if (n == 0 || end - at < n)
        return 0;
    uint32_t code = n == 1 ? first : first & (0x7fu >> n);
    for (int i = 1; i < n; i++) {
        if (at[i] >> 6 != 2)
            return 0;
        code = code << 6 | (at[i] & 63);
    }
    return code < lowest[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : n;
}

static int utf8_write(uint32_t code, char *out)
{
    if (code < 0x80)
        return out[0] = (char)code, 1;
    int n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char heads[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (int i = n - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 63));
    out[0] = (char)(heads[n] | code);
    return n;
}

/* Four hexadecimal digits; -1: none. */
static int32_t take_hex(struct mpp_json *j)
{
    int32_t code = 0;
    if (j->end - j->at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        unsigned char c = *j->at++;
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0)
            return -1;
        code = code << 4 | digit;
    }
    return code;
}

/* What follows a backslash, as UTF-8 of up to four bytes; its length, 0 after a fault. */
static int take_escape(struct mpp_json *j, char *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    unsigned char c = j->at < j->end ? *j->at : 0;
    const char *plain = c != 0 ? strchr(from, c) : NULL;
    if (plain != NULL) {
        j->at++;
        out[0] = to[plain - from];
        return 1;
    }
    int32_t code = -1;
    if (c == 'u') {
        j->at++;
        code = take_hex(j);
        if (code >= 0xd800 && code < 0xdc00) { /* half of a pair */
            int32_t low = -1;
            if (j->end - j->at >= 6 && j->at[0] == '\\' && j->at[1] == 'u') {
                j->at += 2;
                low = take_hex(j);
            }
            code = low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00) : -1;
        }
    }
    if (code <= 0 || (code >= 0xdc00 && code < 0xe000)) {
        mpp_json_fault(j, code == 0 ? "a string holds NUL" : "a string holds a wrong escape");
        return 0;
    }
    return utf8_write((uint32_t)code, out);
}

/* A string up to its closing quote, cut where OUT ends. */
static bool take_string(struct mpp_json *j, char *out, int64_t out_bytes)
{
    int64_t n = 0;
    bool cut = false;
    out[0] = '\0';
    if (peek(j) != '"')
        return unexpected(j, "a string");
    j->at++;
    while (j->at < j->end && *j->at != '"') {
        char bytes[4];
        int length;
        if (*j->at == '\\') {
            j->at++;
            length = take_escape(j, bytes);
        } else {
            length = *j->at < 0x20 ? 0 : utf8_length(j->at, j->end);
            if (length == 0)
                mpp_json_fault(j, "a string holds the byte 0x%02x", *j->at);
            memcpy(bytes, j->at, (size_t)length);
            j->at += length;
        }
        if (length == 0) {
            out[0] = '\0';
            return false;
        }
        cut = cut || n + length >= out_bytes;
        if (!cut) {
            memcpy(out + n, bytes, (size_t)length);
            n += length;
        }
    }
    out[n] = '\0';
    if (j->at == j->end) {
        out[0] = '\0';
        return mpp_json_fault(j, "a string without an end");
    }
    j->at++;
    return true;
}

bool mpp_json_string(struct mpp_json *j, char *out, int out_bytes)
{
    return take_string(j, out, out_bytes);
}

bool mpp_json_string_new(struct mpp_json *j, char **out)
{
    *out = NULL;
    if (peek(j) != '"')
        return unexpected(j, "a string");
    const unsigned char *quote = j->at + 1; /* unescaped text is never longer */
    while (quote < j->end && *quote != '"')
        quote += *quote == '\\' && j->end - quote > 1 ? 2 : 1;
    int64_t room = quote - j->at + 4;
    char *text = malloc((size_t)room);
    if (text == NULL) {
        j->code = mpp_error_set(j->error, MPP_EXIT_SYSTEM, "%s: out of memory", j->path);
        return false;
    }
    if (!take_string(j, text, room)) {
        free(text);
        return false;
    }
    *out = text;
    return true;
}

static bool take_colon(struct mpp_json *j)
{
    if (peek(j) != ':')
        return unexpected(j, "a colon");
    j->at++;
    return true;
}

bool mpp_json_key(struct mpp_json *j, char *out, int out_bytes)
{
    return take_string(j, out, out_bytes) && take_colon(j);
}

bool mpp_json_key_new(struct mpp_json *j, char **out)
{
    if (!mpp_json_string_new(j, out))
        return false;
    if (take_colon(j))
        return true;
    free(*out);
    *out = NULL;
    return false;
}

/* ---- numbers and the rest -------------------------------------------------------------------------------- */

static bool is_digit(const struct mpp_json *j)
{
    return j->at < j->end && *j->at >= '0' && *j->at <= '9';
}

bool mpp_json_integer(struct mpp_json *j, int64_t *out)
{
    *out = 0;
    int c = peek(j);
    bool negative = c == '-', fits = true;
    if (c != '-' && !(c >= '0' && c <= '9'))
        return unexpected(j, "a whole number");
    const unsigned char *begin = j->at;
    int64_t x = 0;
    j->at += negative;
    bool zero = j->at < j->end && *j->at == '0';
    const unsigned char *digits = j->at;
    for (; is_digit(j); j->at++)
        fits = fits && !__builtin_mul_overflow(x, (int64_t)10, &x) &&
               !__builtin_sub_overflow(x, (int64_t)(*j->at - '0'), &x); /* below zero there is one number more */
    bool whole = j->at > digits && !(zero && j->at - digits > 1) &&
                 !(j->at < j->end && (*j->at == '.' || *j->at == 'e' || *j->at == 'E'));
    if (!whole || !fits || (!negative && x == INT64_MIN)) {
        j->at = begin;
        return mpp_json_fault(j, whole ? "a number past 64 bits" : "a whole number should come");
    }
    *out = negative ? x : -x;
    return true;
}

static bool skip_number(struct mpp_json *j)
{
    const unsigned char *begin = j->at;
    j->at += *j->at == '-';
    bool ok = is_digit(j);
    bool zero = ok && *j->at == '0';
    for (int n = 0; is_digit(j); j->at++)
        ok = ok && !(zero && n++ > 0);
    if (j->at < j->end && *j->at == '.') {
        j->at++;
        ok = ok && is_digit(j);
        while (is_digit(j))
            j->at++;
    }
    if (j->at < j->end && (*j->at == 'e' || *j->at == 'E')) {
        j->at++;
        if (j->at < j->end && (*j->at == '+' || *j->at == '-'))
            j->at++;
        ok = ok && is_digit(j);
        while (is_digit(j))
            j->at++;
    }
    if (ok)
        return true;
    j->at = begin;
    return mpp_json_fault(j, "not a number");
}

bool mpp_json_number(struct mpp_json *j, double *out)
{
    char text[64];
    int c = peek(j);
    *out = 0;
    if (c != '-' && !(c >= '0' && c <= '9'))
        return unexpected(j, "a number");
    const unsigned char *begin = j->at;
    if (!skip_number(j))
        return false;
    size_t n = (size_t)(j->at - begin);
    if (n < sizeof text) {
        memcpy(text, begin, n);
        text[n] = '\0';
        *out = strtod(text, NULL);
    }
    if (n < sizeof text && isfinite(*out))
        return true;
    *out = 0;
    j->at = begin;
    return mpp_json_fault(j, n < sizeof text ? "a number past what a double holds" : "a number of more than 63 digits");
}

static bool skip_word(struct mpp_json *j)
{
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(j->end - j->at) >= n && memcmp(j->at, words[i], n) == 0) {
            j->at += n;
            return true;
        }
    }
    return unexpected(j, "a value");
}

static bool skip_value(struct mpp_json *j, int depth)
{
    int c = peek(j);
    char key[2];
    if (c == '"')
        return take_string(j, key, sizeof key);
    if (c == '-' || (c >= '0' && c <= '9'))
        return skip_number(j);
    if (c != '{' && c != '[')
        return skip_word(j);
    if (depth == DEPTH_LIMIT)
        return mpp_json_fault(j, "nested deeper than %d", DEPTH_LIMIT);
    mpp_json_open(j, (char)c);
    while (mpp_json_more(j, c == '{' ? '}' : ']')) {
        if (c == '{')
            mpp_json_key(j, key, sizeof key);
        skip_value(j, depth + 1);
    }
    return j->code == MPP_EXIT_OK;
}

bool mpp_json_skip(struct mpp_json *j)
{
    return skip_value(j, 0);
}

int mpp_json_end(struct mpp_json *j)
{
    if (peek(j) >= 0)
        unexpected(j, "the end");
    return j->code;
}

/* ---- writing ------------------------------------------------------------------------------------------------- */

int64_t mpp_json_escape(const char *text, char *out)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + strlen(text);
    int64_t n = 0;
    while (at < end) {
        char piece[8];
        int taken = utf8_length(at, end), length = taken;
        if (taken == 0) {
            taken = 1;
            length = snprintf(piece, sizeof piece, "\xef\xbf\xbd");
        } else if (*at == '"' || *at == '\\') {
            length = snprintf(piece, sizeof piece, "\\%c", *at);
        } else if (*at < 0x20) {
            length = snprintf(piece, sizeof piece, "\\u%04x", *at);
        } else {
            memcpy(piece, at, (size_t)taken);
        }
        if (out != NULL)
            memcpy(out + n, piece, (size_t)length);
        n += length;
        at += taken;
    }
    return n;
}
