/* report_stages.c - of the report: the table of stages, where those in a row that are alike are one line, and what else
 * was close. */
#include <math.h>
#include <string.h>

#include "codegen/report_internal.h"
#include "planner/stage.h"

enum { MAX_OTHERS = 8 };

struct report mpp_report_at(const struct report *r, int stage)
{
    struct report at = *r;
    at.stage = &r->plan->stages[stage];
    at.g = at.stage->graph;
    at.mesh = &at.stage->mesh;
    return at;
}

int mpp_report_slowest(const struct mpp_plan *plan)
{
    int slowest = 0;
    for (int i = 1; i < plan->n_stages; i++)
        if (plan->stages[i].predicted.step_s > plan->stages[slowest].predicted.step_s)
            slowest = i;
    return slowest;
}

/* "data 2 x model 4" */
static const char *mesh_text(const struct report *r, const struct mpp_mesh *m)
{
    struct mpp_text s = {.arena = r->arena};
    for (int a = 0; a < m->n_axes; a++)
        if (m->size[a] > 1)
            mpp_text_add(&s, "%s%s %d", s.n ? " x " : "", m->name[a], m->size[a]);
    return s.n ? mpp_text_string(&s) : "1";
}

/* How the stage's axes are used, one after the other. */
static const char *use_text(const struct report *r)
{
    struct mpp_text s = {.arena = r->arena};
    for (int a = 0; a < r->mesh->n_axes; a++)
        if (r->mesh->size[a] > 1)
            mpp_text_add(&s, "%s%s: %s", s.n ? "; " : "", r->mesh->name[a], mpp_report_axis(r, a));
    return s.n ? mpp_text_string(&s) : "whole on one device";
}

static int n_layers(const struct mpp_stage *s)
{
    return s->last_layer - s->first_layer + 1;
}

/* Do they differ by their place alone? */
static bool alike(const struct report *r, int i, int k)
{
    const struct mpp_stage *a = &r->plan->stages[i], *b = &r->plan->stages[k];
    struct report at_a = mpp_report_at(r, i), at_b = mpp_report_at(r, k);
    return n_layers(a) == n_layers(b) && a->n_devices == b->n_devices && a->recompute == b->recompute
           && a->time.forward_ps == b->time.forward_ps && a->time.backward_ps == b->time.backward_ps
           && a->time.once_ps == b->time.once_ps && strcmp(mesh_text(r, &a->mesh), mesh_text(r, &b->mesh)) == 0
           && strcmp(use_text(&at_a), use_text(&at_b)) == 0;
}

static const char *layer_name(const struct report *r, int layer)
{
    const struct mpp_layering *l = r->plan->layering;
    return l && layer < l->n_layers ? l->name[layer] : mpp_arena_printf(r->arena, "%d", layer);
}

static const char *run_text(const struct report *r, int first, int last)
{
    return first == last ? layer_name(r, first)
                         : mpp_arena_printf(r->arena, "%s .. %s", layer_name(r, first), layer_name(r, last));
}

/* "h.6 .. h.11"; of several stages also "6 each". Interleaved, the parts of a stage, which lie as far apart as all stages' first
 * parts take: "h.2 .. h.3 + h.8 .. h.9"; of many the first two and the last. */
static const char *layers_text(const struct report *r, int first, int last)
{
    const struct mpp_stage *a = &r->plan->stages[first], *b = &r->plan->stages[last];
    int parts = r->plan->pipeline.chunks, apart = (r->plan->stages[r->plan->n_stages - 1].last_layer + 1) / parts;
    struct mpp_text s = {.arena = r->arena};
    for (int c = 0; c < parts; c++)
        if (c < 2 || c == parts - 1)
            mpp_text_add(&s, "%s%s", c == 0 ? "" : c == parts - 1 && parts > 3 ? " + .. + " : " + ", run_text(r, c * apart + a->first_layer / parts, c * apart + (b->last_layer + 1) / parts - 1));
    if (first < last && a->first_layer < b->last_layer)
        mpp_text_add(&s, ", %d each", n_layers(a));
    return mpp_text_string(&s);
}

static const char *range_text(const struct report *r, int64_t first, int64_t last)
{
    return first == last ? mpp_arena_printf(r->arena, "%lld", (long long)first)
                         : mpp_arena_printf(r->arena, "%lld-%lld", (long long)first, (long long)last);
}

static const char *time_text(const struct report *r, int64_t ps)
{
    return mpp_report_seconds(r->arena, (double)ps * 1e-12);
}

enum { LAYERS = 1, MESH = 3, RECOMPUTE, RIGHT, COLUMNS = 10, LEAST_WIDTH = 8 }; /* from RIGHT on numbers, to the right */

static const char *const title[COLUMNS] = {"stage", "layers", "devices", "mesh", "recompute", "forward", "backward", "once", "memory", "in flight"};

static void fill_row(const struct report *r, int first, int last, const char **cell)
{
    const struct mpp_stage *s = &r->plan->stages[first], *end = &r->plan->stages[last];
    int64_t most = 0, least = s->in_flight, bytes = 0;
    for (int i = first; i <= last; i++) {
        const struct mpp_stage *x = &r->plan->stages[i];
        most = x->in_flight > most ? x->in_flight : most;
        least = x->in_flight < least ? x->in_flight : least;
        bytes = x->memory.arena_bytes > bytes ? x->memory.arena_bytes : bytes;
    }
    cell[0] = range_text(r, first, last);
    cell[1] = layers_text(r, first, last);
    cell[2] = range_text(r, s->first_device, end->first_device + end->n_devices - 1);
    cell[3] = mesh_text(r, &s->mesh);
    cell[4] = mpp_plan_recompute_word(s->recompute);
    cell[5] = time_text(r, s->time.forward_ps);
    cell[6] = time_text(r, s->time.backward_ps);
    cell[7] = time_text(r, s->time.once_ps);
    cell[8] = mpp_report_bytes(r, bytes);
    cell[9] = least == most ? range_text(r, most, most) : mpp_arena_printf(r->arena, "%lld-%lld", (long long)most, (long long)least);
}

static bool same_in_all(const char *(*row)[COLUMNS], int n, int c)
{
    for (int i = 1; i < n; i++)
        if (strcmp(row[0][c], row[i][c]) != 0)
            return false;
    return true;
}

static int table_width(const int *width)
{
    int all = 1;
    for (int c = 0; c < COLUMNS; c++)
        all += width[c] > 0 ? width[c] + (c < RIGHT ? 1 : 2) : 0;
    return all;
}

/* The longest text of each column and its title. A table that is too wide for the report leaves out what all rows say alike (0), as
 * *OUT_SHARED; then its wordy columns become narrower, the wider one first, and their texts are broken at spaces. */
static void choose_widths(const struct report *r, const char *(*row)[COLUMNS], int n, int *width, const char **out_shared)
{
    *out_shared = "";
    for (int c = 0; c < COLUMNS; c++) {
        width[c] = (int)strlen(title[c]);
        for (int i = 0; i < n; i++)
            width[c] = (int)strlen(row[i][c]) > width[c] ? (int)strlen(row[i][c]) : width[c];
    }
    for (int c = RECOMPUTE; c >= MESH && table_width(width) > MPP_REPORT_WIDTH; c--)
        if (same_in_all(row, n, c)) {
            *out_shared = mpp_arena_printf(r->arena, ", %s %s%s", title[c], row[0][c], *out_shared);
            width[c] = 0;
        }
    while (table_width(width) > MPP_REPORT_WIDTH) {
        int wide = width[LAYERS] > width[MESH] ? LAYERS : MESH;
        if (width[wide] <= LEAST_WIDTH)
            break;
        width[wide]--;
    }
}

/* What of TEXT goes into WIDTH, broken at a space where there is one; the rest is left to *TEXT. */
static int take_words(const char **text, int width)
{
    const char *t = *text;
    int n = (int)strlen(t), cut = n;
    if (n > width) {
        for (cut = width; cut > 0 && t[cut] != ' ';)
            cut--;
        if (cut == 0)
            cut = (int)strcspn(t, " ");
    }
    *text = t + cut + strspn(t + cut, " ");
    return cut;
}

/* One row, in as many lines as its wordy columns need. */
static void print_row(const struct report *r, const char *const *cell, const int *width)
{
    const char *left[COLUMNS];
    memcpy(left, cell, sizeof left);
    for (bool more = true; more;) {
        int column = 0, at = 1;
        more = false;
        for (int c = 0; c < COLUMNS; c++) {
            if (width[c] == 0)
                continue;
            const char *text = left[c];
            int n = take_words(&left[c], width[c]), begin = c < RIGHT ? at + 1 : at + 2 + width[c] - n;
            if (n > 0)
                fprintf(r->out, "%*s%.*s", begin - column, "", n, text);
            column = n > 0 ? begin + n : column;
            at += width[c] + (c < RIGHT ? 1 : 2);
            more = more || *left[c];
        }
        fputc('\n', r->out);
    }
}

/* How stages are split, from FIRST[0] on, FIRST[1], ...; those in a row that do the same are one line. */
static void print_uses(const struct report *r, const int *first, int n)
{
    int stages = r->plan->n_stages;
    fputc('\n', r->out);
    for (int i = 0, k; i < n; i = k) {
        struct report at = mpp_report_at(r, first[i]);
        const char *use = use_text(&at);
        for (k = i + 1; k < n; k++) {
            struct report next = mpp_report_at(r, first[k]);
            if (strcmp(use, use_text(&next)) != 0)
                break;
        }
        int last = (k < n ? first[k] : stages) - 1;
        const char *who = last - first[i] == stages - 1 ? "all stages"
                          : mpp_arena_printf(r->arena, "stage%s %s", last > first[i] ? "s" : "", range_text(r, first[i], last));
        mpp_report_paragraph(r, 2, mpp_arena_printf(r->arena, "%s: %s", who, use), true);
    }
}

/* Seconds of a step that messages from the last stage to the first one's next parts would take, or (BACK) the gradients from there:
 * planner/price.c knows of neighbours alone. */
static double around_s(const struct report *r, bool back)
{
    const struct mpp_stage *ends[] = {&r->plan->stages[0], &r->plan->stages[r->plan->n_stages - 1]};
    const struct mpp_stage *to = ends[back];
    const struct mpp_graph *g = to->graph;
    int first = ends[0]->first_device, last = ends[1]->first_device + ends[1]->n_devices - 1;
    int node = r->cluster->devices_per_node, sharers = to->n_devices < node ? to->n_devices : node;
    struct mpp_reshard_env env;
    double s = 0;
    mpp_reshard_env_init(r->cluster, &to->mesh, to->first_device, &env);
    for (int i = 0; i < g->n_groups; i++)
        if (mpp_price_is_receive(g, &g->groups[i]) && (g->groups[i].phase == MPP_PHASE_BACKWARD) == back)
            s += mpp_cost_send_s(r->cluster, back ? first : last, back ? last : first, sharers,
                                 (double)mpp_price_receive_bytes(g, &env, &g->groups[i]));
    return (double)r->plan->micro_batches * s;
}

static void print_around(const struct report *r)
{
    double forward_s = around_s(r, false), back_s = around_s(r, true);
    if (r->plan->pipeline.chunks > 1 && forward_s + back_s > 0)
        mpp_report_paragraph(r, 2, mpp_arena_printf(r->arena, "in no time of this report: what stage %d sends to the next parts of stage 0, about %s a step, and "
                                         "the gradients of it, about %s", r->plan->n_stages - 1, mpp_report_seconds(r->arena, forward_s),
                                         mpp_report_seconds(r->arena, back_s)), true);
}

void mpp_report_stages(const struct report *r)
{
    const struct mpp_plan *p = r->plan;
    int *first = mpp_arena_array(r->arena, p->n_stages, int), n = 0;
    for (int i = 0; i < p->n_stages; i++)
        if (i == 0 || !alike(r, first[n - 1], i))
            first[n++] = i;
    int64_t micro = p->batch / p->micro_batches;
    const char *(*row)[COLUMNS] = mpp_arena_alloc(r->arena, sizeof *row * (size_t)n), *shared;
    int width[COLUMNS];
    for (int i = 0; i < n; i++)
        fill_row(r, first[i], (i + 1 < n ? first[i + 1] : p->n_stages) - 1, row[i]);
    choose_widths(r, row, n, width, &shared);
    const char *parts = p->pipeline.chunks > 1 ? mpp_arena_printf(r->arena, " with %d parts each", p->pipeline.chunks) : "";
    fputc('\n', r->out);
    mpp_report_paragraph(r, 2, mpp_arena_printf(r->arena, "%d stages, %s%s, %s micro-batch%s of %s sample%s%s; times of one micro-batch, and once per step",
                                     p->n_stages, p->schedule, parts, mpp_report_thousands(r->arena, p->micro_batches), p->micro_batches == 1 ? "" : "es",
                                     mpp_report_thousands(r->arena, micro), micro == 1 ? "" : "s", shared), true);
    print_row(r, title, width);
    for (int i = 0; i < n; i++)
        print_row(r, row[i], width);
    print_uses(r, first, n);
    print_around(r);
}

void mpp_report_others(const struct report *r)
{
    const struct mpp_plan *p = r->plan;
    if (p->n_others > 0 && p->objective_ps > 0)
        fprintf(r->out, "\n  what else was close\n");
    for (int i = 0; i < p->n_others && i < MAX_OTHERS && p->objective_ps > 0; i++) {
        const struct mpp_runner_up *o = &p->others[i];
        double more = 100.0 * (double)(o->time_ps - p->objective_ps) / (double)p->objective_ps;
        fprintf(r->out, "  %6s %%  ", fabs(more) < 0.05 ? "0.0" : mpp_arena_printf(r->arena, "%+.1f", more)); /* no -0.0 */
        mpp_report_paragraph(r, 12, mpp_arena_printf(r->arena, "%s%s%s", o->what, o->why ? ": " : "", o->why ? o->why : ""), false);
    }
}
