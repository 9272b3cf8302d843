/* report_text.c - numbers and words of the report. */
#include <math.h>
#include <string.h>

#include "codegen/report_internal.h"

const char *mpp_report_thousands(struct mpp_arena *arena, int64_t n)
{
    char *s = mpp_arena_printf(arena, "%lld", (long long)n);
    struct mpp_text out = {.arena = arena};
    size_t len = strlen(s);
    for (size_t i = 0; i < len; i++)
        mpp_text_add(&out, "%s%c", i > 0 && s[i - 1] != '-' && (len - i) % 3 == 0 ? "," : "", s[i]);
    return mpp_text_string(&out);
}

const char *mpp_report_three(struct mpp_arena *arena, double v)
{
    return mpp_arena_printf(arena, "%.*f", fabs(v) < 9.995 ? 2 : fabs(v) < 99.95 ? 1 : 0, v);
}

const char *mpp_report_percent(struct mpp_arena *arena, double v)
{
    return mpp_report_three(arena, ceil(v * 100) / 100);
}

const char *mpp_report_seconds(struct mpp_arena *arena, double s)
{
    static const struct {
        double scale;
        const char *unit;
    } units[] = {{1, "s"}, {1e3, "ms"}, {1e6, "us"}, {1e9, "ns"}};
    int u = 0;
    while (u < 3 && s * units[u].scale < 1)
        u++;
    return mpp_arena_printf(arena, "%s %s", mpp_report_three(arena, s * units[u].scale), units[u].unit);
}

const char *mpp_report_millions(struct mpp_arena *arena, double n)
{
    static const char *const units[] = {"", " K", " M", " B", " T"};
    int u = 0;
    while (u < 4 && n >= 999.5) {
        n /= 1000;
        u++;
    }
    return u == 0 ? mpp_arena_printf(arena, "%.0f", n) : mpp_arena_printf(arena, "%s%s", mpp_report_three(arena, n), units[u]);
}

const char *mpp_report_bytes(const struct report *r, int64_t n)
{
    return mpp_emit_bytes_text(r->arena, n);
}

const char *mpp_report_axes(const struct report *r, unsigned mask)
{
    struct mpp_text s = {.arena = r->arena};
    int n = 1;
    for (int a = 0; a < r->mesh->n_axes; a++)
        if (mask >> a & 1) {
            mpp_text_add(&s, "%s%s", s.n ? "+" : "", r->mesh->name[a]);
            n *= r->mesh->size[a];
        }
    return mpp_arena_printf(r->arena, "%s (%d)", mpp_text_string(&s), n);
}

const char *mpp_report_pinned(const struct report *r)
{
    const struct mpp_model *m = r->g->model;
    struct mpp_text s = {.arena = r->arena};
    if (r->plan->pins && *r->plan->pins)
        mpp_text_add(&s, ", pinned to %s", r->plan->pins);
    for (int i = 0; m && i < m->n_shards; i++)
        mpp_text_add(&s, "%sshard:%s=%s%s%s", i ? ", " : s.n ? " and by the model file to " : ", pinned by the model file to ",
                     m->shards[i].match, m->shards[i].dim, m->shards[i].axis ? "/" : "", m->shards[i].axis ? m->shards[i].axis : "");
    return mpp_text_string(&s);
}

void mpp_report_paragraph(const struct report *r, int indent, const char *words, bool first)
{
    int column = 0;
    for (const char *p = words; *p;) {
        int n = (int)strcspn(p, " ");
        if (column > 0 && column + 1 + n > MPP_REPORT_WIDTH - indent) {
            fputc('\n', r->out);
            column = 0;
            first = true;
        }
        fprintf(r->out, "%*s%.*s", column ? 1 : first ? indent : 0, "", n, p);
        column += n + (column > 0);
        p += n;
        p += strspn(p, " ");
    }
    fputc('\n', r->out);
}
