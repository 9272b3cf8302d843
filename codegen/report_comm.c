/* report_comm.c - of the report: collectives, and what every device does whole. */
#include <stdlib.h>
#include <string.h>

#include "codegen/report_internal.h"

enum { MAX_COMMS = 8, MAX_NAMES = 64, MAX_UNSPLIT = 8 };

/* ---- collectives ---- */

struct comm_row {                 /* collectives of one kind, axes, phase and cause */
    const struct mpp_comm *first;
    const char *cause;            /* "sums over batch, split over data" */
    int n_names;
    const char *names[MAX_NAMES]; /* whose: "mlp.c_proj.grad_weight" */
    int64_t count;
    double bytes, total_s;
};

/* Where the cause begins in a reason: after the name it is about. */
static const char *cause_of(const char *reason)
{
    static const char *const verbs[] = {" sums over ", " rests ", " needs ", " takes ", " adds up ", " is "};
    const char *best = NULL;
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        const char *at = strstr(reason, verbs[i]);
        best = at && (!best || at < best) ? at : best;
    }
    return best ? best + 1 : reason;
}

static int by_time(const void *a, const void *b)
{
    const struct comm_row *x = a, *y = b;
    if (x->total_s < y->total_s || x->total_s > y->total_s)
        return x->total_s < y->total_s ? 1 : -1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static void add_comm(const struct report *r, struct comm_row *rows, int *n, const struct mpp_comm *c)
{
    const char *reason = c->reason ? c->reason : "", *cause = cause_of(reason);
    int k = 0;
    while (k < *n && (strcmp(rows[k].first->kind, c->kind) != 0 || rows[k].first->mask != c->mask || strcmp(rows[k].cause, cause) != 0))
        k++;
    if (k == *n)
        rows[(*n)++] = (struct comm_row){.first = c, .cause = cause};
    rows[k].count += c->count;
    rows[k].bytes += (double)c->count * (double)c->bytes;
    rows[k].total_s += (double)c->count * (double)c->cost_ps * 1e-12;
    const char *name = mpp_arena_strndup(r->arena, reason, cause > reason ? (size_t)(cause - reason - 1) : 0);
    bool known = false;
    for (int i = 0; i < rows[k].n_names; i++)
        known = known || !strcmp(rows[k].names[i], name);
    if (!known && *name && rows[k].n_names < MAX_NAMES)
        rows[k].names[rows[k].n_names++] = name;
}

/* One line of figures, one that says why: "mlp.c_proj sums over ffn, split over model"; of several, the cause first. */
static void print_comm(const struct report *r, const struct comm_row *row)
{
    struct mpp_text why = {.arena = r->arena};
    if (row->n_names == 1)
        mpp_text_add(&why, "%s ", row->names[0]);
    mpp_text_add(&why, "%s", row->cause);
    for (int i = 0; row->n_names > 1 && i < row->n_names && i < 2; i++)
        mpp_text_add(&why, "%s%s", i ? ", " : ": ", row->names[i]);
    if (row->n_names > 2)
        mpp_text_add(&why, " and %d more", row->n_names - 2);
    fprintf(r->out, "  %7s x %-14s %-24s %9s %9s\n", mpp_report_thousands(r->arena, row->count), row->first->kind,
            row->first->mask ? mpp_report_axes(r, row->first->mask) : "", mpp_report_bytes(r, (int64_t)row->bytes), mpp_report_seconds(r->arena, row->total_s));
    mpp_report_paragraph(r, 12, why.data, true);
}

void mpp_report_collectives(const struct report *r)
{
    struct comm_row *rows = mpp_arena_array(r->arena, r->stage->n_collectives, struct comm_row);
    int n = 0;
    double rest_s = 0;
    for (int i = 0; i < r->stage->n_collectives; i++)
        add_comm(r, rows, &n, &r->stage->collectives[i]);
    if (n == 0)
        return;
    qsort(rows, (size_t)n, sizeof *rows, by_time);
    if (r->plan->n_stages > 1)
        fprintf(r->out, "\n  collectives of stage %d in a step: how many, over which axes, bytes in all, time; why\n",
                (int)(r->stage - r->plan->stages));
    else
        fprintf(r->out, "\n  collectives of a step: how many, over which axes, bytes in all, time; why\n");
    for (int i = 0; i < n; i++) {
        if (i < MAX_COMMS)
            print_comm(r, &rows[i]);
        else
            rest_s += rows[i].total_s;
    }
    if (n > MAX_COMMS)
        fprintf(r->out, "  and %d kind%s more, %s in all (plan.json)\n", n - MAX_COMMS, n - MAX_COMMS == 1 ? "" : "s", mpp_report_seconds(r->arena, rest_s));
}

/* ---- contractions that every device does whole ---- */

static const char *without_layer(const struct report *r, const struct mpp_gop *op)
{
    if (!op->repeat_name || op->index < 0)
        return op->name;
    const char *prefix = mpp_arena_printf(r->arena, "%s.%d.", op->repeat_name, op->index);
    return strncmp(op->name, prefix, strlen(prefix)) ? op->name
         : mpp_arena_printf(r->arena, "%s.*.%s", op->repeat_name, op->name + strlen(prefix));
}

void mpp_report_unsplit(const struct report *r)
{
    bool several = r->plan->n_stages > 1;
    const char **names = mpp_arena_array(r->arena, r->stage->n_unsplit, const char *);
    int n = 0;
    for (int i = 0; i < r->stage->n_unsplit; i++) {
        const char *name = without_layer(r, &r->g->ops[r->g->groups[r->stage->unsplit[i]].ops[0]]);
        int k = 0;
        while (k < n && strcmp(names[k], name) != 0)
            k++;
        if (k == n)
            names[n++] = name;
    }
    if (n == 0)
        return;
    struct mpp_text s = {.arena = r->arena};
    if (several)
        mpp_text_add(&s, "of stage %d ", (int)(r->stage - r->plan->stages));
    mpp_text_add(&s, "%s", *mpp_report_pinned(r) ? "whole on every device, pinned or cheapest so: "
                                      : "whole on every device, because that is cheapest: ");
    for (int i = 0; i < n && i < MAX_UNSPLIT; i++)
        mpp_text_add(&s, "%s%s", i ? ", " : "", names[i]);
    if (n > MAX_UNSPLIT)
        mpp_text_add(&s, " and %d more", n - MAX_UNSPLIT);
    fputc('\n', r->out);
    mpp_report_paragraph(r, 2, s.data, true);
}
