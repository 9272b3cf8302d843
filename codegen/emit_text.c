/* emit_text.c - growing texts, line breaking, literals. */
#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "codegen/emit_internal.h"

enum { MAX_COLUMN = 118 };

const char *mpp_text_format(struct mpp_arena *arena, const char *fmt, va_list ap)
{
    return mpp_arena_vprintf(arena, fmt, ap);
}

static void append(struct mpp_text *t, const char *s, size_t n)
{
    t->data = mpp_arena_grow(t->arena, t->data, &t->cap, t->n + n + 1, 1);
    memcpy(t->data + t->n, s, n);
    t->n += n;
    t->data[t->n] = '\0';
}

void mpp_text_add(struct mpp_text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *s = mpp_text_format(t->arena, fmt, ap);
    va_end(ap);
    append(t, s, strlen(s));
}

const char *mpp_text_string(struct mpp_text *t)
{
    return t->data ? t->data : "";
}

/* Where to break LINE so that its first part fits WIDTH: after a comma outside of strings, as late as possible, but
 * rather between arguments than inside one. 0: nowhere. */
static size_t break_at(const char *line, size_t width)
{
    size_t best = 0, outer = 0;
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < width && line[i]; i++) {
        if (quoted && line[i] == '\\' && line[i + 1]) {
            i++;
            continue;
        }
        if (line[i] == '"')
            quoted = !quoted;
        depth += !quoted && strchr("({[", line[i]) != NULL;
        depth -= !quoted && strchr(")}]", line[i]) != NULL;
        if (!quoted && i > 0 && line[i] == ' ' && line[i - 1] == ',') {
            best = i + 1;
            outer = depth <= 1 ? best : outer;
        }
    }
    return outer > width / 2 ? outer : best;
}

void mpp_text_line(struct mpp_text *t, int indent, const char *line)
{
    const char *paren = strpbrk(line, "({");
    int inner = indent + 4;
    if (paren && paren - line < 60)
        inner = indent + (int)(paren - line) + 1;
    int column = indent;
    while (strlen(line) + (size_t)column > MAX_COLUMN) {
        size_t at = break_at(line, (size_t)(MAX_COLUMN - column));
        if (at == 0)
            break;
        mpp_text_add(t, "%*s", column, "");
        append(t, line, at - 1);
        append(t, "\n", 1);
        line += at;
        column = inner;
    }
    mpp_text_add(t, "%*s%s\n", column, "", line);
}

/* Break after a word, but not inside of [brackets] unless they are long; a word longer than WIDTH is kept whole. */
static size_t comment_break(const char *words, size_t width)
{
    size_t best = 0, outside = 0;
    int depth = 0;
    for (size_t i = 0; words[i] && i <= width; i++) {
        depth += words[i] == '[';
        depth -= words[i] == ']';
        if (words[i] == ' ')
            best = i;
        if (words[i] == ' ' && depth <= 0)
            outside = i;
    }
    return outside > width / 2 ? outside : best ? best : strcspn(words, " ");
}

const char *mpp_text_safe(struct mpp_arena *arena, const char *words)
{
    struct mpp_text safe = {.arena = arena};
    for (const char *c = words; *c; c++) {
        append(&safe, (unsigned char)*c < 0x20 ? " " : c, 1);
        if ((c[0] == '*' && c[1] == '/') || (c[0] == '/' && c[1] == '*'))
            append(&safe, " ", 1);
    }
    return mpp_text_string(&safe);
}

void mpp_text_comment(struct mpp_text *t, int indent, const char *words)
{
    int width = MAX_COLUMN - indent - 3;
    bool first = true;
    words = mpp_text_safe(t->arena, words);
    while (*words) {
        size_t n = strlen(words);
        bool last = n + 3 <= (size_t)width;
        if (!last)
            n = comment_break(words, (size_t)width);
        mpp_text_add(t, "%*s%s %.*s%s\n", indent, "", first ? "/*" : " *", (int)n, words, last || !words[n] ? " */" : "");
        words += n;
        words += *words == ' ';
        first = false;
    }
}

const char *mpp_emit_float(struct mpp_arena *arena, double value)
{
    char s[40];
    if (fabs(value) > FLT_MAX)
        return value < 0 ? "-INFINITY" : "INFINITY";
    snprintf(s, sizeof s, "%.9g", value);
    for (int digits = 1; digits < 9; digits++) {
        char shorter[40];
        snprintf(shorter, sizeof shorter, "%.*g", digits, value);
        float a, b;
        if (sscanf(shorter, "%f", &a) == 1 && sscanf(s, "%f", &b) == 1 && memcmp(&a, &b, sizeof a) == 0) {
            memcpy(s, shorter, sizeof s);
            break;
        }
    }
    return mpp_arena_printf(arena, "%s%sf", s, strpbrk(s, ".e") ? "" : ".0");
}

const char *mpp_emit_double(struct mpp_arena *arena, double value)
{
    char s[40];
    if (isnan(value))
        return "0";
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, value);
        double back;
        if (sscanf(s, "%lf", &back) == 1 && memcmp(&back, &value, sizeof value) == 0)
            break;
    }
    return mpp_arena_strdup(arena, s);
}

const char *mpp_emit_bytes_text(struct mpp_arena *arena, int64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double v = (double)bytes;
    int u = 0;
    while (v >= 1024 && u < 5) {
        v /= 1024;
        u++;
    }
    if (u == 0)
        return mpp_arena_printf(arena, "%d bytes", (int)bytes);
    int decimals = v < 10 && v * 10 - floor(v * 10) > 0 ? 2 : v < 100 ? 1 : 0;
    char *s = mpp_arena_printf(arena, "%.*f", decimals, v);
    if (strchr(s, '.'))
        for (size_t n = strlen(s); s[n - 1] == '0' || s[n - 1] == '.'; n--) {
            bool point = s[n - 1] == '.';
            s[n - 1] = '\0';
            if (point)
                break;
        }
    return mpp_arena_printf(arena, "%s %s", s, units[u]);
}

/* Words that no field, struct or function may be called: C's and C++'s own, and what may be a macro. */
static bool is_reserved(const char *s)
{
    static const char *const words[] = {
        "alignas", "alignof", "asm", "auto", "bool", "break", "case", "catch", "char", "class", "const", "constexpr",
        "continue", "default", "delete", "do", "double", "else", "enum", "explicit", "export", "extern", "false", "float",
        "for", "friend", "goto", "if", "inline", "int", "long", "mutable", "namespace", "new", "nullptr", "operator",
        "private", "protected", "public", "register", "restrict", "return", "short", "signed", "sizeof", "static", "struct",
        "switch", "template", "this", "throw", "true", "try", "typedef", "typename", "typeof", "union", "unsigned", "using",
        "virtual", "void", "volatile", "while", "NULL"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!strcmp(s, words[i]))
            return true;
    bool lower = false, upper = false;
    for (const char *c = s; *c; c++) {
        lower = lower || islower((unsigned char)*c);
        upper = upper || isupper((unsigned char)*c);
    }
    return (s[0] == '_' && (s[1] == '_' || isupper((unsigned char)s[1]))) || (upper && !lower && strchr(s, '_'));
}

const char *mpp_emit_identifier(struct mpp_arena *arena, const char *name)
{
    char *s = mpp_arena_printf(arena, "%s%s", isdigit((unsigned char)name[0]) ? "n" : "", name);
    for (char *c = s; *c; c++)
        if (!isalnum((unsigned char)*c))
            *c = '_';
    return s[0] == '_' && is_reserved(s) ? mpp_arena_printf(arena, "n%s", s) : is_reserved(s) ? mpp_arena_printf(arena, "%s_", s) : s;
}

const char *mpp_emit_quoted(struct mpp_arena *arena, const char *s)
{
    if (!s)
        return "NULL";
    struct mpp_text t = {.arena = arena};
    mpp_text_add(&t, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\' || c == '?')
            mpp_text_add(&t, "\\%c", c);
        else if (c < 0x20 || c >= 0x7f)
            mpp_text_add(&t, "\\%03o", c);
        else
            mpp_text_add(&t, "%c", c);
    }
    mpp_text_add(&t, "\"");
    return t.data;
}

/* ---- element types ---- */

const char *mpp_emit_type(enum mpp_dtype dtype)
{
    static const char *const types[] = {[MPP_F32] = "float", [MPP_I32] = "int32_t", [MPP_BF16] = "mpp_bf16", [MPP_F16] = "mpp_f16"};
    return types[dtype];
}

const char *mpp_emit_type_name(enum mpp_dtype dtype)
{
    static const char *const names[] = {[MPP_F32] = "MPP_TYPE_F32", [MPP_I32] = "MPP_TYPE_I32", [MPP_BF16] = "MPP_TYPE_BF16",
                                        [MPP_F16] = "MPP_TYPE_F16"};
    return names[dtype];
}

bool mpp_emit_is_half(enum mpp_dtype dtype)
{
    return dtype == MPP_BF16 || dtype == MPP_F16;
}

const char *mpp_emit_half(enum mpp_dtype dtype)
{
    return mpp_emit_is_half(dtype) ? "_half" : "";
}

const char *mpp_emit_type_arg(enum mpp_dtype dtype)
{
    return dtype == MPP_BF16 ? "MPP_TYPE_BF16, " : dtype == MPP_F16 ? "MPP_TYPE_F16, " : "";
}

const char *mpp_emit_load(struct mpp_arena *arena, enum mpp_dtype dtype, const char *x)
{
    return mpp_emit_is_half(dtype) ? mpp_arena_printf(arena, "mpp_from_%s(%s)", mpp_dtype_name(dtype), x) : x;
}

const char *mpp_emit_store(struct mpp_arena *arena, enum mpp_dtype dtype, const char *x)
{
    return mpp_emit_is_half(dtype) ? mpp_arena_printf(arena, "mpp_to_%s(%s)", mpp_dtype_name(dtype), x) : x;
}
