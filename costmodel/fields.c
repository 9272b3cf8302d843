/* fields.c - checked attributes and elements of device and cluster files. */
#include "costmodel/fields.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 1000 };

static int is_among(const char *word, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(word, names[i]) == 0)
            return 1;
    return 0;
}

void mpp_fields_known(struct mpp_diag *diag, const struct mpp_xml *node, const char *const *names, int n)
{
    for (int i = 0; i < node->n_attrs; i++)
        if (!is_among(node->attrs[i].name, names, n))
            mpp_diag_error(diag, node->loc, "<%s> has no attribute \"%s\"%s", node->name, node->attrs[i].name,
                           mpp_diag_hint(diag, node->attrs[i].name, names, n));
}

void mpp_fields_children(struct mpp_diag *diag, const struct mpp_xml *node, const char *const *names, int n)
{
    for (const struct mpp_xml *c = node->first; c; c = c->next)
        if (!is_among(c->name, names, n))
            mpp_diag_error(diag, c->loc, "<%s> cannot hold <%s>%s", node->name, c->name,
                           mpp_diag_hint(diag, c->name, names, n));
}

const struct mpp_xml *mpp_fields_child(struct mpp_diag *diag, const struct mpp_xml *node, const char *name,
                                      int required)
{
    const struct mpp_xml *found = NULL;
    for (const struct mpp_xml *c = node->first; c; c = c->next) {
        if (strcmp(c->name, name) != 0)
            continue;
        if (found)
            mpp_diag_error(diag, c->loc, "a second <%s> in <%s>; the first is on line %d", name, node->name,
                           found->loc.line);
        else
            found = c;
    }
    if (!found && required)
        mpp_diag_error(diag, node->loc, "<%s> needs a <%s>", node->name, name);
    return found;
}

/* What a size's suffix multiplies by; 0 for one that we do not know. */
static double suffix_factor(const char *suffix)
{
    static const char *const names[] = {"", "KiB", "MiB", "GiB", "TiB"};
    double factor = 1;
    for (int i = 0; i < 5; i++, factor *= 1024)
        if (strcmp(suffix, names[i]) == 0)
            return factor;
    return 0;
}

static int is_size(const char *name)
{
    size_t len = strlen(name);
    return len >= 5 && strcmp(name + len - 5, "bytes") == 0;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0;
}

/* Times of a plan are whole picoseconds in 64 bits: what no device or link is like would overflow them. */
static const char *out_of_range(const char *name, double value)
{
    if (ends_with(name, "efficiency"))
        return value > 0 && value < 1e-4 ? "must be at least 1e-4" : NULL;
    if (strncmp(name, "half_", 5) == 0)
        return value > 1e9 ? "must be at most 1e9" : NULL;
    if (ends_with(name, "_per_s"))
        return value > 0 && value < 1e6 ? "must be at least 1e6 per second" : NULL;
    return ends_with(name, "_s") && value > 1 ? "must be at most 1 second" : NULL;
}

/* A harmless value where the attribute is absent or wrong. */
static double absent(struct mpp_diag *diag, const struct mpp_xml *node, const char *name, double fallback)
{
    if (fallback >= 0)
        return fallback;
    mpp_diag_error(diag, node->loc, "<%s> needs the attribute \"%s\"", node->name, name);
    return 1;
}

double mpp_fields_number(struct mpp_diag *diag, const struct mpp_xml *node, const char *name, enum mpp_number kind,
                        double fallback)
{
    const char *text = mpp_xml_get(node, name);
    if (!text)
        return absent(diag, node, name, fallback);
    char *end = NULL;
    double value = 0, factor = 0;
    /* strtod also reads hexadecimal, "inf" and "nan"; a figure has digits only. */
    if (text[strspn(text, "+-.")] >= '0' && text[strspn(text, "+-.")] <= '9' && !strpbrk(text, "xX")) {
        value = strtod(text, &end);
        factor = is_size(name) ? suffix_factor(end) : *end == '\0';
    }
    if (factor == 0) {
        mpp_diag_error(diag, node->loc, "<%s %s=\"%s\"> is not a number%s", node->name, name, text,
                       is_size(name) ? " of bytes; sizes are like \"80GiB\" or \"85899345920\"" : "");
        return 1;
    }
    value *= factor;
    const char *want = NULL;
    if (!isfinite(value) || value > 1e30)
        want = "is too large";
    else if (kind == MPP_NUMBER_NOT_NEGATIVE && value < 0)
        want = "must not be negative";
    else if (kind == MPP_NUMBER_POSITIVE && value < 1e-30)
        want = "must be above zero";
    else if (kind == MPP_NUMBER_FRACTION && (value < 1e-30 || value > 1))
        want = "must be above 0 and at most 1";
    if (!want)
        want = out_of_range(name, value);
    if (!want)
        return value;
    mpp_diag_error(diag, node->loc, "<%s %s=\"%s\"> %s", node->name, name, text, want);
    return 1;
}

int64_t mpp_fields_whole(struct mpp_diag *diag, const struct mpp_xml *node, const char *name, int64_t least,
                        int64_t most, int64_t fallback)
{
    const char *text = mpp_xml_get(node, name);
    if (!text)
        return fallback >= 0 ? fallback : (int64_t)absent(diag, node, name, -1);
    char *end = NULL;
    long long value = strtoll(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < least || value > most) {
        mpp_diag_error(diag, node->loc, "<%s %s=\"%s\"> must be a whole number from %lld to %lld", node->name, name,
                       text, (long long)least, (long long)most);
        return least;
    }
    return value;
}

const char *mpp_fields_string(struct mpp_diag *diag, const struct mpp_xml *node, const char *name)
{
    const char *text = mpp_xml_get(node, name);
    bool shown = text && strlen(text) <= MAX_TEXT;
    for (const char *c = text; shown && *c; c++)
        shown = (unsigned char)*c >= 0x20 && *c != 0x7f;
    if (text && *text && shown)
        return text;
    if (text && *text)
        mpp_diag_error(diag, node->loc, "<%s %s=\"%.40s\"> is over %d characters long or holds a control character", node->name,
                       name, text, MAX_TEXT);
    else if (text)
        mpp_diag_error(diag, node->loc, "<%s %s=\"\"> is empty", node->name, name);
    else
        mpp_diag_error(diag, node->loc, "<%s> needs the attribute \"%s\"", node->name, name);
    return NULL;
}
