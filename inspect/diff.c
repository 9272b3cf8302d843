/* diff.c - two plans side by side: what is decided otherwise, where their steps' times go, and which is faster for what.
 *
 * The times are those of the stage that is busy longest, with what it waits for the others, so that they add up to the
 * step's. Collectives are one where kind, axes, role and cause are. */
#include <stdlib.h>
#include <string.h>

#include "codegen/report_internal.h"
#include "inspect/account.h"
#include "inspect/diff_internal.h"
#include "inspect/inspect.h"
#include "inspect/answer.h"
#include "inspect/screen.h"
#include "inspect/words.h"

enum { MOST_REASONS = 4, MOST_DECISIONS = 12, MOST_COMMS = 12, LEAST_SHOWN_PS = 1000 };

/* A kind of work in both plans. */
struct pair {
    const struct mpp_account_row *row; /* of A where it is there */
    const char *names;
    int64_t a_ps, b_ps, a_count, b_count;
    double a_bytes, b_bytes;
};

struct diff {
    struct mpp_arena *arena;
    struct mpp_plandir a, b;
    struct mpp_account x, y;      /* of A and B */
    int n_pairs;
    struct pair *pair;
    int n_decisions;
    const struct mpp_decision *decision;
};

static int64_t abs64(int64_t v)
{
    return v < 0 ? -v : v;
}

static int by_part_and_difference(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    int64_t dx = abs64(x->b_ps - x->a_ps), dy = abs64(y->b_ps - y->a_ps);
    if (x->row->part != y->row->part)
        return x->row->part < y->row->part ? -1 : 1;
    if (dx != dy)
        return dx > dy ? -1 : 1;
    int order = strcmp(x->row->label, y->row->label);
    return order ? order : strcmp(x->row->cause, y->row->cause);
}

static void pair_up(struct diff *d)
{
    d->pair = mpp_arena_array(d->arena, d->x.n + d->y.n, struct pair);
    for (int i = 0; i < d->x.n; i++) {
        const struct mpp_account_row *r = &d->x.row[i];
        d->pair[d->n_pairs++] = (struct pair){r, r->names, r->ps, 0, r->count, 0, r->bytes, 0};
    }
    for (int i = 0; i < d->y.n; i++) {
        const struct mpp_account_row *r = &d->y.row[i];
        int k = 0;
        while (k < d->x.n && (d->pair[k].row->part != r->part || strcmp(d->pair[k].row->label, r->label) != 0
                              || strcmp(d->pair[k].row->role, r->role) != 0 || strcmp(d->pair[k].row->cause, r->cause) != 0))
            k++;
        if (k == d->x.n) {
            k = d->n_pairs++;
            d->pair[k] = (struct pair){.row = r, .names = r->names};
        }
        d->pair[k].b_ps = r->ps;
        d->pair[k].b_count = r->count;
        d->pair[k].b_bytes = r->bytes;
    }
    qsort(d->pair, (size_t)d->n_pairs, sizeof *d->pair, by_part_and_difference);
}

/* ---- in words ---- */

static const char *plan_words(struct mpp_arena *arena, const struct mpp_plandir *p)
{
    const struct mpp_plan *plan = p->fitted.plan;
    const struct mpp_model *m = p->graph->model;
    struct mpp_text s = {.arena = arena};
    mpp_text_add(&s, "%s%s%s%s on %s: batch %s in %s micro-batch%s, ", mpp_diag_plain(arena, m->name), m->preset ? " (" : "",
                 m->preset ? mpp_diag_plain(arena, m->preset) : "", m->preset ? ")" : "", mpp_cluster_describe(arena, p->cluster), mpp_report_thousands(arena, plan->batch),
                 mpp_report_thousands(arena, plan->micro_batches), plan->micro_batches == 1 ? "" : "es");
    if (plan->n_stages > 1)
        mpp_text_add(&s, "%d stages, %s, each on ", plan->n_stages, plan->schedule);
    mpp_text_add(&s, "mesh %s", mpp_words_mesh(arena, &plan->stages[0].mesh));
    if (plan->stages[0].recompute != MPP_RECOMPUTE_NONE)
        mpp_text_add(&s, ", recompute %s", mpp_plan_recompute_word(plan->stages[0].recompute));
    return mpp_text_string(&s);
}

/* Parts as the reasons and the first table have them; collectives by their role. */
static const char *class_of(const struct pair *p)
{
    static const char *const part[] = {"kernels", "update", NULL, "local copies", "messages from other stages", "waiting for other stages"};
    const char *role = p->row->role;
    if (p->row->part != MPP_ACCOUNT_COMM)
        return part[p->row->part];
    return strcmp(role, "activation") == 0 ? "collectives of activations" : strcmp(role, "gradient") == 0 ? "collectives of gradients"
           : strcmp(role, "parameter") == 0 ? "collectives of weights" : "collectives inside kernels";
}

struct sum {
    const char *what;
    int64_t a_ps, b_ps;
};

static int by_size(const void *a, const void *b)
{
    const struct sum *x = a, *y = b;
    int64_t dx = abs64(x->b_ps - x->a_ps), dy = abs64(y->b_ps - y->a_ps);
    return dx != dy ? (dx > dy ? -1 : 1) : strcmp(x->what, y->what);
}

/* Sums by class; OUT [n_pairs]. */
static int sums_of(const struct diff *d, struct sum *out)
{
    int n = 0;
    for (int i = 0; i < d->n_pairs; i++) {
        const char *what = class_of(&d->pair[i]);
        int k = 0;
        while (k < n && strcmp(out[k].what, what) != 0)
            k++;
        if (k == n)
            out[n++] = (struct sum){.what = what};
        out[k].a_ps += d->pair[i].a_ps;
        out[k].b_ps += d->pair[i].b_ps;
    }
    return n;
}

/* Tokens (samples, where the model has none) of a step. */
static double tokens_of(const struct mpp_plandir *p)
{
    return (double)p->fitted.plan->batch * (double)p->graph->tokens_per_sample;
}

static bool same_work(const struct diff *d)
{
    return tokens_of(&d->a) == tokens_of(&d->b);
}

/* Below 0: A is faster, above: B; by tokens per second. */
static double lead(const struct diff *d)
{
    return tokens_of(&d->b) * (double)d->x.step_ps - tokens_of(&d->a) * (double)d->y.step_ps;
}

static bool same_model(const struct diff *d)
{
    const struct mpp_graph *a = d->a.graph, *b = d->b.graph;
    return strcmp(a->model->name, b->model->name) == 0 && mpp_graph_param_count(a) == mpp_graph_param_count(b);
}

/* What tokens_of counts. */
static const char *unit_of(const struct diff *d)
{
    bool a = d->a.graph->tokens_per_sample > 1, b = d->b.graph->tokens_per_sample > 1;
    return a && b ? "tokens" : a || b ? "tokens or samples" : "samples";
}

static const char *verdict(const struct diff *d)
{
    if (!same_work(d)) {
        double x = tokens_of(&d->a) / (double)d->x.step_ps * 1e12, y = tokens_of(&d->b) / (double)d->y.step_ps * 1e12;
        return mpp_arena_printf(d->arena, "%s does %.2f times as many %s per second: %s instead of %s", x > y ? "A" : "B", x > y ? x / y : y / x, unit_of(d),
                                mpp_report_thousands(d->arena, (int64_t)(x > y ? x : y)), mpp_report_thousands(d->arena, (int64_t)(x > y ? y : x)));
    }
    int64_t a = d->x.step_ps, b = d->y.step_ps;
    const char *one = mpp_words_time(d->arena, a), *other = mpp_words_time(d->arena, b);
    if (a == b)
        return mpp_arena_printf(d->arena, "both take %s per step", one);
    bool b_wins = b < a;
    double times = b_wins ? (double)a / (double)b : (double)b / (double)a;
    return mpp_arena_printf(d->arena, "%s is %.*f times as fast: %s per step instead of %s, %s less", b_wins ? "B" : "A",
                            times < 1.1 ? 4 : 2, times, b_wins ? other : one, b_wins ? one : other, mpp_words_time(d->arena, abs64(a - b)));
}

/* What the faster one saves, and what it pays for that, the largest first. */
static int reasons_of(const struct diff *d, const char **out)
{
    struct sum *sum = mpp_arena_array(d->arena, d->n_pairs, struct sum);
    int n = sums_of(d, sum), n_out = 0;
    int64_t sign = d->y.step_ps <= d->x.step_ps ? 1 : -1;
    qsort(sum, (size_t)n, sizeof *sum, by_size);
    for (int i = 0; i < n && n_out < MOST_REASONS && d->x.step_ps != d->y.step_ps && same_work(d); i++) {
        int64_t saved = sign * (sum[i].a_ps - sum[i].b_ps);
        if (abs64(saved) * 200 < abs64(d->x.step_ps - d->y.step_ps) || saved == 0)
            break;
        out[n_out++] = mpp_arena_printf(d->arena, "%s %s in %s", mpp_words_time(d->arena, abs64(saved)), saved > 0 ? "less" : "more", sum[i].what);
    }
    return n_out;
}

static void print_head(const struct diff *d, const struct mpp_screen *s)
{
    const char *reason[MOST_REASONS];
    int n = reasons_of(d, reason);
    const struct mpp_plandir *plan[] = {&d->a, &d->b};
    for (int i = 0; i < 2; i++)
        mpp_screen_paragraph(s, 0, MPP_PLAIN, mpp_arena_printf(d->arena, "%s  %s:  %s", i ? "B" : "A", plan[i]->dir, plan_words(d->arena, plan[i])));
    fputc('\n', s->out);
    mpp_screen_paragraph(s, 2, MPP_BOLD, verdict(d));
    for (int i = 0; i < n; i++)
        mpp_screen_paragraph(s, 4, MPP_PLAIN, reason[i]);
    if (!same_work(d))
        mpp_screen_paragraph(s, 2, MPP_BAD, "the steps are of different batches: times per step cannot be compared");
    if (!same_model(d))
        mpp_screen_paragraph(s, 2, MPP_BAD, "the plans are of different models");
}

static enum mpp_style style_of(int64_t more)
{
    return more < 0 ? MPP_GOOD : more > 0 ? MPP_BAD : MPP_PLAIN;
}

static void print_where(const struct diff *d, const struct mpp_screen *s)
{
    struct mpp_arena *arena = d->arena;
    struct sum *sum = mpp_arena_array(arena, d->n_pairs, struct sum);
    int n = sums_of(d, sum);
    struct mpp_table t = mpp_table_begin(s, 4, (const char *[]){"-where a step goes", "A", "B", "B - A"});
    for (int i = 0; i < n; i++)
        if (sum[i].a_ps >= LEAST_SHOWN_PS || sum[i].b_ps >= LEAST_SHOWN_PS)
            mpp_table_row(&t, MPP_PLAIN, (const char *[]){sum[i].what, mpp_words_time(arena, sum[i].a_ps), mpp_words_time(arena, sum[i].b_ps),
                                                          mpp_words_signed_time(arena, sum[i].b_ps - sum[i].a_ps)});
    mpp_table_sum(&t, (const char *[]){"a step", mpp_words_time(arena, d->x.step_ps), mpp_words_time(arena, d->y.step_ps),
                                       mpp_words_signed_time(arena, d->y.step_ps - d->x.step_ps)});
    fputc('\n', s->out);
    mpp_table_print(&t);
}

/* "459 ms in 75": of so many. */
static const char *or_none(struct mpp_arena *arena, int64_t count, int64_t ps)
{
    return count > 0 ? mpp_arena_printf(arena, "%s in %s", mpp_words_time(arena, ps), mpp_report_thousands(arena, count)) : "-";
}

static void print_comms(const struct diff *d, const struct mpp_screen *s)
{
    struct mpp_arena *arena = d->arena;
    struct mpp_table t = mpp_table_begin(s, 5, (const char *[]){"-collectives of a step", "A", "B", "B - A", "-why"});
    int64_t a = 0, b = 0, rest_a = 0, rest_b = 0;
    int n = 0, more = 0;
    for (int i = 0; i < d->n_pairs; i++) {
        const struct pair *p = &d->pair[i];
        if (p->row->part != MPP_ACCOUNT_COMM)
            continue;
        a += p->a_ps;
        b += p->b_ps;
        if (n++ >= MOST_COMMS) {
            rest_a += p->a_ps;
            rest_b += p->b_ps;
            more++;
            continue;
        }
        const char *why = *p->names ? mpp_arena_printf(arena, "%s: %s", p->row->cause, p->names) : p->row->cause;
        mpp_table_row(&t, style_of(p->b_ps - p->a_ps), (const char *[]){p->row->label, or_none(arena, p->a_count, p->a_ps),
                      or_none(arena, p->b_count, p->b_ps), mpp_words_signed_time(arena, p->b_ps - p->a_ps), why});
    }
    if (more)
        mpp_table_row(&t, MPP_PLAIN, (const char *[]){mpp_arena_printf(arena, "%d more (--json)", more), mpp_words_time(arena, rest_a),
                      mpp_words_time(arena, rest_b), mpp_words_signed_time(arena, rest_b - rest_a), ""});
    if (n == 0)
        return;
    mpp_table_sum(&t, (const char *[]){"all", mpp_words_time(arena, a), mpp_words_time(arena, b), mpp_words_signed_time(arena, b - a), ""});
    fputc('\n', s->out);
    mpp_table_print(&t);
}

static const char *some_names(struct mpp_arena *arena, const struct mpp_decision *d)
{
    struct mpp_text s = {.arena = arena};
    for (int i = 0; i < d->n_names && i < 3; i++)
        mpp_text_add(&s, "%s%s", i ? ", " : "", d->names[i]);
    if (d->n_names > 3)
        mpp_text_add(&s, " and %d more", d->n_names - 3);
    return mpp_text_string(&s);
}

/* What holds for a whole plan. */
enum { N_SETTINGS = 10 };
struct setting {
    const char *what, *a, *b;
};

static void describe(struct mpp_arena *arena, const struct mpp_plandir *p, const char **out)
{
    const struct mpp_plan *plan = p->fitted.plan;
    const char *mesh = mpp_words_mesh(arena, &plan->stages[0].mesh), *recompute = mpp_plan_recompute_word(plan->stages[0].recompute);
    for (int i = 1; i < plan->n_stages; i++) {
        mesh = strcmp(mesh, mpp_words_mesh(arena, &plan->stages[i].mesh)) == 0 ? mesh : "unlike meshes";
        recompute = plan->stages[i].recompute == plan->stages[0].recompute ? recompute : "in some stages";
    }
    out[0] = mpp_arena_printf(arena, "%s, %s parameters", mpp_diag_plain(arena, p->graph->model->name), mpp_report_thousands(arena, mpp_graph_param_count(p->graph)));
    out[1] = mpp_arena_printf(arena, "%d x %s", p->cluster->n_devices, p->cluster->device.name);
    out[2] = p->cluster->name;
    out[3] = p->graph->model->training.precision;
    out[4] = mpp_report_thousands(arena, plan->batch);
    out[5] = mpp_report_thousands(arena, plan->micro_batches);
    out[6] = mpp_arena_printf(arena, "%d", plan->n_stages);
    out[7] = plan->pipeline.chunks > 1 ? mpp_arena_printf(arena, "%s of %d parts", plan->schedule, plan->pipeline.chunks) : plan->schedule;
    out[8] = mesh;
    out[9] = recompute;
}

/* Those that differ; returns how many. */
static int settings_of(const struct diff *d, struct setting *out)
{
    static const char *const what[N_SETTINGS] = {"model", "devices", "cluster", "precision", "batch", "micro-batches", "stages", "schedule", "mesh", "recompute"};
    const char *a[N_SETTINGS], *b[N_SETTINGS];
    int n = 0;
    describe(d->arena, &d->a, a);
    describe(d->arena, &d->b, b);
    for (int i = 0; i < N_SETTINGS; i++)
        if (strcmp(a[i], b[i]) != 0)
            out[n++] = (struct setting){what[i], a[i], b[i]};
    return n;
}

static void print_decisions(const struct diff *d, const struct mpp_screen *s)
{
    struct mpp_arena *arena = d->arena;
    struct mpp_table t = mpp_table_begin(s, 4, (const char *[]){"-decided otherwise", "-A", "-B", "-of"});
    struct setting setting[N_SETTINGS];
    int n = settings_of(d, setting);
    fputc('\n', s->out);
    if (d->n_decisions == 0 && n == 0) {
        mpp_screen_paragraph(s, 2, MPP_PLAIN, "all forward kernels and weights are split alike");
        return;
    }
    for (int i = 0; i < n; i++)
        mpp_table_row(&t, MPP_PLAIN, (const char *[]){setting[i].what, setting[i].a, setting[i].b, ""});
    for (int i = 0; i < d->n_decisions && i < MOST_DECISIONS; i++) {
        const struct mpp_decision *x = &d->decision[i];
        mpp_table_row(&t, MPP_PLAIN, (const char *[]){x->what, *x->a ? x->a : "-", *x->b ? x->b : "-", some_names(arena, x)});
    }
    mpp_table_print(&t);
    if (d->n_decisions > MOST_DECISIONS)
        fprintf(s->out, "  and %d kinds more (--json)\n", d->n_decisions - MOST_DECISIONS);
}

enum { N_KINDS = 8 };
struct kind {
    const char *name, *key;
    int64_t bytes;
};

static void kinds_of(const struct mpp_memory *m, struct kind *out)
{
    const struct kind kinds[N_KINDS] = {
        {"weights", "parameters", m->parameters}, {"gradients", "gradients", m->gradients}, {"optimiser", "optimizer", m->optimizer},
        {"activations", "activations", m->activations}, {"inputs", "inputs", m->inputs}, {"workspace", "workspace", m->workspace},
        {"gaps", "gaps", m->gaps}, {"in all", "arena_bytes", m->arena_bytes}};
    memcpy(out, kinds, sizeof kinds);
}

static void print_memory(const struct diff *d, const struct mpp_screen *s)
{
    struct mpp_arena *arena = d->arena;
    struct kind a[N_KINDS], b[N_KINDS];
    kinds_of(&d->a.fitted.plan->stages[mpp_plan_fullest(d->a.fitted.plan)].memory, a);
    kinds_of(&d->b.fitted.plan->stages[mpp_plan_fullest(d->b.fitted.plan)].memory, b);
    struct mpp_table t = mpp_table_begin(s, 4, (const char *[]){"-memory of the fullest device", "A", "B", "B - A"});
    for (int i = 0; i < N_KINDS; i++) {
        const char *cell[] = {a[i].name, mpp_emit_bytes_text(arena, a[i].bytes), mpp_emit_bytes_text(arena, b[i].bytes),
                              mpp_words_signed_bytes(arena, b[i].bytes - a[i].bytes)};
        if (i == N_KINDS - 1)
            mpp_table_sum(&t, cell);
        else if (a[i].bytes > 0 || b[i].bytes > 0)
            mpp_table_row(&t, MPP_PLAIN, cell);
    }
    fputc('\n', s->out);
    mpp_table_print(&t);
}

/* ---- for machines ---- */

static void write_plan(struct mpp_answer *j, const struct mpp_plandir *p, const struct mpp_account *x, const char *key)
{
    const struct mpp_plan *plan = p->fitted.plan;
    struct kind kind[N_KINDS];
    mpp_answer_open(j, key, '{');
    mpp_answer_text(j, "dir", p->dir);
    mpp_answer_text(j, "model", p->graph->model->name);
    mpp_answer_text(j, "preset", p->graph->model->preset);
    mpp_answer_text(j, "cluster", p->cluster->name);
    mpp_answer_int(j, "devices", p->cluster->n_devices);
    mpp_answer_int(j, "batch", plan->batch);
    mpp_answer_int(j, "micro_batches", plan->micro_batches);
    mpp_answer_int(j, "stages", plan->n_stages);
    mpp_answer_text(j, "schedule", plan->schedule);
    mpp_answer_text(j, "recompute", mpp_plan_recompute_word(plan->stages[0].recompute));
    mpp_answer_open(j, "mesh", '[');
    for (int a = 0; a < plan->stages[0].mesh.n_axes; a++) {
        mpp_answer_open(j, NULL, '{');
        mpp_answer_text(j, "axis", plan->stages[0].mesh.name[a]);
        mpp_answer_int(j, "size", plan->stages[0].mesh.size[a]);
        mpp_answer_close(j, '}');
    }
    mpp_answer_close(j, ']');
    mpp_answer_double(j, "step_s", (double)plan->objective_ps * 1e-12);
    mpp_answer_int(j, "stage", x->stage);
    kinds_of(&plan->stages[mpp_plan_fullest(plan)].memory, kind);
    mpp_answer_open(j, "memory", '{');
    for (int i = 0; i < N_KINDS; i++)
        mpp_answer_int(j, kind[i].key, kind[i].bytes);
    mpp_answer_close(j, '}');
    mpp_answer_close(j, '}');
}

static void write_pair(struct mpp_answer *j, const struct pair *p)
{
    bool comm = p->row->part == MPP_ACCOUNT_COMM;
    mpp_answer_open(j, NULL, '{');
    mpp_answer_text(j, "what", p->row->label);
    mpp_answer_text(j, "class", class_of(p));
    if (comm) {
        mpp_answer_text(j, "role", p->row->role);
        mpp_answer_text(j, "why", p->row->cause);
        mpp_answer_text(j, "of", p->names);
        mpp_answer_int(j, "a_count", p->a_count);
        mpp_answer_int(j, "b_count", p->b_count);
        mpp_answer_double(j, "a_bytes", p->a_bytes);
        mpp_answer_double(j, "b_bytes", p->b_bytes);
    }
    mpp_answer_double(j, "a_s", (double)p->a_ps * 1e-12);
    mpp_answer_double(j, "b_s", (double)p->b_ps * 1e-12);
    mpp_answer_close(j, '}');
}

static void write_json(const struct diff *d, FILE *out)
{
    struct mpp_answer j = {.out = out};
    const char *reason[MOST_REASONS];
    int n = reasons_of(d, reason);
    mpp_answer_open(&j, NULL, '{');
    write_plan(&j, &d->a, &d->x, "a");
    write_plan(&j, &d->b, &d->y, "b");
    mpp_answer_text(&j, "faster", lead(d) == 0 ? NULL : lead(d) < 0 ? "a" : "b");
    mpp_answer_open(&j, "because", '[');
    for (int i = 0; i < n; i++)
        mpp_answer_text(&j, NULL, reason[i]);
    mpp_answer_close(&j, ']');
    for (int comm = 0; comm < 2; comm++) {
        mpp_answer_open(&j, comm ? "collectives" : "other_work", '[');
        for (int i = 0; i < d->n_pairs; i++)
            if ((d->pair[i].row->part == MPP_ACCOUNT_COMM) == comm)
                write_pair(&j, &d->pair[i]);
        mpp_answer_close(&j, ']');
    }
    struct setting setting[N_SETTINGS];
    int n_settings = settings_of(d, setting);
    mpp_answer_open(&j, "settings", '[');
    for (int i = 0; i < n_settings; i++) {
        mpp_answer_open(&j, NULL, '{');
        mpp_answer_text(&j, "what", setting[i].what);
        mpp_answer_text(&j, "a", setting[i].a);
        mpp_answer_text(&j, "b", setting[i].b);
        mpp_answer_close(&j, '}');
    }
    mpp_answer_close(&j, ']');
    mpp_answer_open(&j, "decisions", '[');
    for (int i = 0; i < d->n_decisions; i++) {
        const struct mpp_decision *x = &d->decision[i];
        mpp_answer_open(&j, NULL, '{');
        mpp_answer_text(&j, "what", x->what);
        mpp_answer_text(&j, "a", *x->a ? x->a : NULL);
        mpp_answer_text(&j, "b", *x->b ? x->b : NULL);
        mpp_answer_open(&j, "of", '[');
        for (int k = 0; k < x->n_names; k++)
            mpp_answer_text(&j, NULL, x->names[k]);
        mpp_answer_close(&j, ']');
        mpp_answer_close(&j, '}');
    }
    mpp_answer_close(&j, ']');
    mpp_answer_close(&j, '}');
}

enum mpp_status mpp_inspect_diff(struct mpp_arena *arena, struct mpp_diag *diag, const char *a, const char *b, const char *cluster,
                                 const struct mpp_inspect_out *to)
{
    struct diff d = {.arena = arena};
    enum mpp_status st = mpp_plandir_read(arena, diag, a, cluster, false, &d.a), other = mpp_plandir_read(arena, diag, b, cluster, false, &d.b);
    MPP_TRY(st != MPP_OK ? st : other);
    mpp_account_make(arena, d.a.cluster, d.a.fitted.plan, &d.x);
    mpp_account_make(arena, d.b.cluster, d.b.fitted.plan, &d.y);
    pair_up(&d);
    d.decision = mpp_diff_decisions(arena, &d.a, &d.b, &d.n_decisions);
    if (to->json) {
        write_json(&d, to->out);
        return MPP_OK;
    }
    struct mpp_screen s = mpp_screen_on(arena, to->out);
    print_head(&d, &s);
    print_where(&d, &s);
    print_comms(&d, &s);
    print_decisions(&d, &s);
    print_memory(&d, &s);
    return MPP_OK;
}
