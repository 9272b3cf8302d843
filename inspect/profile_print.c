/* profile_print.c - measured beside planned: as a table, in words, as JSON for report.html. */
#include "inspect/profile.h"

#include <math.h>
#include <string.h>

#include "codegen/report_html.h"

enum { MOST_STAGES = 4, MOST_ROWS = 12 };

static const char *bytes_words(struct mpp_arena *arena, int64_t bytes)
{
    struct report r = {.arena = arena};
    return mpp_report_bytes(&r, bytes);
}

/* "5 x all-reduce over model 2 (128 KiB)". */
static const char *row_words(struct mpp_arena *arena, const struct mpp_profile_row *r)
{
    const char *size = r->bytes > 0 ? mpp_arena_printf(arena, " (%s)", bytes_words(arena, r->bytes)) : "";
    int64_t n = r->planned_count > 0 ? r->planned_count : r->seen_count;
    if (r->kind == MPP_PROFILE_KERNELS)
        return "kernels, forward and backward";
    if (r->kind == MPP_PROFILE_UPDATE)
        return "update";
    const char *differ = r->planned_count && r->seen_count && r->planned_count != r->seen_count
                         ? mpp_arena_printf(arena, ", seen %lld times", (long long)r->seen_count) : "";
    return mpp_arena_printf(arena, "%lld x %s%s%s", (long long)n, r->name, size, differ);
}

static const char *times_words(struct mpp_arena *arena, double ratio)
{
    return ratio >= 99.5 ? mpp_arena_printf(arena, "%.0f", ratio) : mpp_arena_printf(arena, "%.*f", ratio < 9.95 ? 2 : 1, ratio);
}

const char *mpp_profile_miss(struct mpp_arena *arena, const struct mpp_profile *p, int row)
{
    const struct mpp_profile_row *r = &p->rows[row];
    const char *where = p->dir->fitted.plan->n_stages > 1 ? mpp_arena_printf(arena, " of stage %d", r->stage) : "";
    const char *what = mpp_arena_printf(arena, "%s%s", row_words(arena, r), where);
    const char *seen = mpp_report_seconds(arena, r->seen_s), *planned = mpp_report_seconds(arena, r->planned_s);
    double share = 100 * fabs(r->seen_s - r->planned_s) / p->step_s;
    if (r->planned_s <= 0)
        return mpp_arena_printf(arena, "%s: %s that the plan does not have, %.0f %% of the step", what, seen, share);
    if (r->seen_s <= 0)
        return mpp_arena_printf(arena, "%s: planned with %s, and not seen", what, planned);
    bool longer = r->seen_s > r->planned_s;
    return mpp_arena_printf(arena, "%s: %s instead of %s, %s times %s; %.0f %% of the step", what, seen, planned,
                            times_words(arena, longer ? r->seen_s / r->planned_s : r->planned_s / r->seen_s),
                            longer ? "as long" : "as fast", share);
}

/* ---- the table ---- */

static void print_line(FILE *out, struct mpp_arena *arena, const char *what, double planned_s, double seen_s)
{
    fprintf(out, "  %-58.58s %9s %9s %7s\n", what, planned_s > 0 ? mpp_report_seconds(arena, planned_s) : "-",
            seen_s > 0 ? mpp_report_seconds(arena, seen_s) : "-", planned_s > 0 && seen_s > 0 ? times_words(arena, seen_s / planned_s) : "");
}

static void print_stage(const struct mpp_profile *p, struct mpp_arena *arena, int stage, FILE *out)
{
    int n = 0;
    double planned_s = 0, seen_s = 0;
    int rest = 0;
    if (p->dir->fitted.plan->n_stages > 1)
        fprintf(out, "  stage %d\n", stage);
    for (int i = 0; i < p->n_rows; i++) {
        const struct mpp_profile_row *r = &p->rows[i];
        if (r->stage != stage || (r->planned_s <= 0 && r->seen_s <= 0))
            continue;
        if (n++ < MOST_ROWS) {
            print_line(out, arena, row_words(arena, r), r->planned_s, r->seen_s);
            continue;
        }
        planned_s += r->planned_s;
        seen_s += r->seen_s;
        rest++;
    }
    if (rest > 0)
        print_line(out, arena, mpp_arena_printf(arena, "%d more", rest), planned_s, seen_s);
    print_line(out, arena, "waits for others", 0, p->wait_s[stage]);
}

void mpp_profile_print(const struct mpp_profile *p, FILE *out)
{
    struct mpp_arena *arena = mpp_arena_scratch(p->dir->graph->arena);
    const struct mpp_plan *plan = p->dir->fitted.plan;
    fprintf(out, "\n  measured beside planned: step %lld of %s, a rank of a stage on average, without waits\n  %-58s %9s %9s %7s\n",
            (long long)p->step, mpp_diag_plain(arena, mpp_html_basename(p->path)), "", "planned", "measured", "ratio");
    for (int i = 0; i < plan->n_stages; i++)
        if (plan->n_stages <= MOST_STAGES || i == 0 || i == plan->n_stages - 1 || i == mpp_report_slowest(plan))
            print_stage(p, arena, i, out);
    print_line(out, arena, "the step of the slowest rank, with all waits", p->planned_step_s, p->step_s);
    fprintf(out, p->n_misses ? "\n  the largest misses\n" : "\n  nothing is off by more than 2 %% of the step\n");
    for (int i = 0; i < p->n_misses; i++)
        fprintf(out, "    %s\n", mpp_profile_miss(arena, p, p->miss[i]));
    mpp_arena_free(arena);
}

/* ---- JSON ---- */

static void write_rows(struct mpp_html *h, const struct mpp_profile *p)
{
    mpp_html_open(h, "rows", '[');
    for (int i = 0; i < p->n_rows; i++) {
        const struct mpp_profile_row *r = &p->rows[i];
        mpp_html_open(h, NULL, '[');
        mpp_html_int(h, NULL, r->stage);
        mpp_html_int(h, NULL, r->kind);
        mpp_html_text(h, NULL, row_words(h->out.arena, r));
        mpp_html_double(h, NULL, r->planned_s);
        mpp_html_double(h, NULL, r->seen_s);
        mpp_html_close(h, ']');
    }
    mpp_html_close(h, ']');
}

const char *mpp_profile_json(struct mpp_arena *arena, const struct mpp_profile *p)
{
    struct mpp_html h = {.out = {.arena = arena}};
    mpp_html_open(&h, NULL, '{');
    mpp_html_text(&h, "file", mpp_html_basename(p->path));
    mpp_html_int(&h, "step", p->step);
    mpp_html_int(&h, "ranks", p->n_ranks);
    mpp_html_double(&h, "step_s", p->step_s);
    mpp_html_double(&h, "planned_step_s", p->planned_step_s);
    write_rows(&h, p);
    mpp_html_open(&h, "wait_s", '[');
    for (int i = 0; i < p->dir->fitted.plan->n_stages; i++)
        mpp_html_double(&h, NULL, p->wait_s[i]);
    mpp_html_close(&h, ']');
    mpp_html_open(&h, "passes", '[');
    for (int i = 0; i < p->n_passes; i++) {
        const struct mpp_profile_pass *x = &p->passes[i];
        mpp_html_open(&h, NULL, '[');
        mpp_html_int(&h, NULL, x->stage);
        mpp_html_int(&h, NULL, x->what);
        mpp_html_double(&h, NULL, x->begin_s);
        mpp_html_double(&h, NULL, x->end_s);
        mpp_html_double(&h, NULL, x->wait_s);
        mpp_html_close(&h, ']');
    }
    mpp_html_close(&h, ']');
    mpp_html_open(&h, "misses", '[');
    for (int i = 0; i < p->n_misses; i++)
        mpp_html_text(&h, NULL, mpp_profile_miss(arena, p, p->miss[i]));
    mpp_html_close(&h, ']');
    mpp_html_close(&h, '}');
    return mpp_text_string(&h.out);
}
