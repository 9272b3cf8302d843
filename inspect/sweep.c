/* sweep.c - a plan for each value of something: how step time, throughput, memory and cost change with it. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/report_internal.h"
#include "inspect/answer.h"
#include "inspect/inspect.h"
#include "inspect/screen.h"
#include "inspect/words.h"
#include "ir/precision.h"

enum { MAX_KEYS = 4, MAX_VALUES = 64, MAX_RUNS = 256, LEAST_BAR = 6, MOST_BAR = 32, SECONDS_PER_HOUR = 3600 };
static const double TOKENS_OF_COST = 1e6;

enum key_kind { GPUS, CLUSTER, PRECISION, BATCH, PRESET, DEFINE };
static const char *const known[] = {"gpus", "cluster", "precision", "batch", "preset"};

struct key {
    enum key_kind kind;
    const char *name;
    int n;
    const char *value[MAX_VALUES];
};

struct run {
    const char *value[MAX_KEYS];  /* of each key */
    bool fits;
    const char *why;              /* it does not */
    int64_t needs_bytes;          /* of a device, at least; 0: not known */
    int devices;
    int64_t batch, tokens_per_sample, memory_bytes, usable_bytes;
    double step_s, samples_per_s, peak_fraction, cost, gap; /* cost: of TOKENS_OF_COST tokens */
    const char *plan, *stopped;
    int n_stages;
    int64_t micro_batches;
};

struct sweep {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const struct mpp_source *source;
    double price;
    int n_keys, n_runs;
    struct key key[MAX_KEYS];
    struct run *run;
};

static const struct mpp_loc nowhere = {0};

/* ---- what is asked ---- */

static bool whole_number(const char *s, int64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoll(s, &end, 10);
    return isdigit((unsigned char)*s) && !*end && !errno && *out >= 1;
}

/* What is swept over is not told as well. */
static void check_given(const struct sweep *w, const struct key *k)
{
    const struct mpp_source *s = w->source;
    const bool told[] = {s->gpus > 0, s->cluster != NULL, s->model_options.precision != NULL, s->model_options.batch > 0, s->model_options.preset != NULL};
    size_t n = strlen(k->name);
    bool given = k->kind < DEFINE && told[k->kind];
    for (int i = 0; i < s->model_options.n_defines; i++)
        given = given || (strncmp(s->model_options.defines[i], k->name, n) == 0 && s->model_options.defines[i][n] == '=');
    if (given)
        mpp_diag_error(w->diag, nowhere, "--sweep %s and %s%s exclude each other", k->name, k->kind < DEFINE ? "--" : "-D ", k->name);
}

static void parse_key(struct sweep *w, const char *text)
{
    struct key *k = &w->key[w->n_keys++];
    const char *eq = strchr(text, '=');
    if (!eq || eq == text || !eq[1]) {
        mpp_diag_error(w->diag, nowhere, "--sweep \"%s\": write a key and its values, as in gpus=1,2,4", text);
        return;
    }
    *k = (struct key){.kind = DEFINE, .name = mpp_arena_strndup(w->arena, text, (size_t)(eq - text))};
    for (int i = 0; i < DEFINE; i++)
        if (strcmp(k->name, known[i]) == 0)
            k->kind = (enum key_kind)i;
    check_given(w, k);
    for (int i = 0; i + 1 < w->n_keys; i++)
        if (strcmp(w->key[i].name, k->name) == 0)
            mpp_diag_error(w->diag, nowhere, "--sweep %s stands twice", k->name);
    for (const char *at = eq + 1;; at++) {
        size_t len = strcspn(at, ",");
        int64_t n;
        const char *value = mpp_arena_strndup(w->arena, at, len);
        enum mpp_dtype dtype = MPP_F32;
        bool wrong = ((k->kind == GPUS || k->kind == BATCH) && !whole_number(value, &n))
                     || (k->kind == PRECISION && !mpp_precision_read(value, &dtype));
        if (len == 0 || k->n == MAX_VALUES || wrong) {
            mpp_diag_error(w->diag, nowhere, "--sweep %s: \"%s\" is no value of it%s", k->name, value,
                           k->n == MAX_VALUES ? "; it takes 64 at most" : k->kind == PRECISION ? "; it is fp32, bf16 or fp16"
                           : wrong ? "; give whole numbers of at least 1" : "");
            return;
        }
        k->value[k->n++] = k->kind == PRECISION ? mpp_dtype_name(dtype) : value;
        at += len;
        if (!*at)
            return;
    }
}

/* The source of a run; its texts live in ARENA. */
static struct mpp_source source_of(const struct sweep *w, struct mpp_arena *arena, const struct run *r)
{
    struct mpp_source s = *w->source;
    const char **defines = mpp_arena_array(arena, s.model_options.n_defines + MAX_KEYS, const char *);
    memcpy(defines, s.model_options.defines, sizeof *defines * (size_t)s.model_options.n_defines);
    s.model_options.defines = defines;
    for (int i = 0; i < w->n_keys; i++) {
        const struct key *k = &w->key[i];
        if (k->kind == GPUS)
            (void)whole_number(r->value[i], &s.gpus);
        else if (k->kind == BATCH)
            (void)whole_number(r->value[i], &s.model_options.batch);
        else if (k->kind == CLUSTER)
            s.cluster = r->value[i];
        else if (k->kind == PRECISION)
            s.model_options.precision = r->value[i];
        else if (k->kind == PRESET)
            s.model_options.preset = r->value[i];
        else
            defines[s.model_options.n_defines++] = mpp_arena_printf(arena, "%s=%s", k->name, r->value[i]);
    }
    return s;
}

static enum mpp_status list_runs(struct sweep *w)
{
    int n = 1;
    for (int i = 0; i < w->n_keys; i++)
        n = n > MAX_RUNS ? n : n * w->key[i].n;
    if (n > MAX_RUNS) {
        mpp_diag_error(w->diag, nowhere, "--sweep: more than %d plans", MAX_RUNS);
        return MPP_INVALID;
    }
    w->n_runs = n;
    w->run = mpp_arena_array(w->arena, n, struct run);
    for (int i = 0; i < n; i++)
        for (int k = w->n_keys - 1, at = i; k >= 0; k--) {
            w->run[i].value[k] = w->key[k].value[at % w->key[k].n];
            at /= w->key[k].n;
        }
    return MPP_OK;
}

/* A key that is neither known nor of the model: the near one. */
static enum mpp_status check_names(struct sweep *w)
{
    enum mpp_status st = MPP_OK;
    for (int i = 0; i < w->n_keys; i++) {
        struct key *k = &w->key[i];
        if (k->kind != DEFINE)
            continue;
        struct mpp_arena *scratch = mpp_arena_scratch(w->arena);
        const char *define = mpp_arena_printf(scratch, "%s=%s", k->name, k->value[0]);
        struct mpp_model_options o = w->source->model_options;
        struct mpp_model *model;
        o.n_defines = 0;
        bool plain = mpp_model_read(scratch, mpp_diag_in(scratch, NULL), w->source->model, &o, &model) == MPP_OK;
        o.n_defines = 1;
        o.defines = &define;
        bool with = mpp_model_read(scratch, mpp_diag_in(scratch, NULL), w->source->model, &o, &model) == MPP_OK;
        const char *hint = mpp_diag_hint(w->diag, k->name, known, DEFINE);
        if (plain && !with && *hint) {
            mpp_diag_error(w->diag, nowhere, "--sweep knows no \"%s\", nor does the model%s", k->name, hint);
            st = MPP_INVALID;
        }
        mpp_arena_free(scratch);
    }
    return st;
}

/* Models and clusters are read before anything is planned, so that mistakes are said at once. */
static enum mpp_status check_runs(struct sweep *w)
{
    for (int i = 0; i < w->n_runs; i++) {
        struct mpp_arena *scratch = mpp_arena_scratch(w->arena);
        struct mpp_source s = source_of(w, scratch, &w->run[i]);
        struct mpp_model *model;
        struct mpp_cluster *cluster;
        enum mpp_status st = mpp_model_read(scratch, w->diag, s.model, &s.model_options, &model);
        if (st == MPP_OK && s.cluster)
            st = mpp_cluster_load(scratch, w->diag, s.cluster, 0, &cluster);
        mpp_arena_free(scratch);
        MPP_TRY(st);
    }
    return MPP_OK;
}

/* ---- plans ---- */

static const char *plan_words(struct mpp_arena *arena, const struct mpp_plan *p)
{
    struct mpp_text s = {.arena = arena};
    const char *mesh = mpp_words_mesh(arena, &p->stages[0].mesh);
    bool alike = true;
    enum mpp_recompute recompute = MPP_RECOMPUTE_NONE;
    for (int i = 0; i < p->n_stages; i++) {
        alike = alike && strcmp(mesh, mpp_words_mesh(arena, &p->stages[i].mesh)) == 0;
        recompute = p->stages[i].recompute > recompute ? p->stages[i].recompute : recompute;
    }
    if (p->n_stages > 1)
        mpp_text_add(&s, "pp %d%s", p->n_stages, alike ? " x " : " of unlike meshes");
    if (alike)
        mpp_text_add(&s, p->n_stages > 1 && strstr(mesh, " x ") ? "(%s)" : "%s", mesh);
    if (p->pipeline.chunks > 1)
        mpp_text_add(&s, ", %d parts each", p->pipeline.chunks);
    if (p->micro_batches > 1)
        mpp_text_add(&s, ", %lld micro-batches", (long long)p->micro_batches);
    if (recompute != MPP_RECOMPUTE_NONE)
        mpp_text_add(&s, ", recompute %s", mpp_plan_recompute_word(recompute));
    return mpp_text_string(&s);
}

static void note_plan(const struct sweep *w, struct run *r, const struct mpp_graph *g, const struct mpp_cluster *cluster,
                      const struct mpp_plan *p)
{
    double peak = mpp_plan_peak_flops(g, cluster);
    r->fits = true;
    r->step_s = p->predicted.step_s;
    r->samples_per_s = r->step_s > 0 ? (double)p->batch / r->step_s : 0;
    r->peak_fraction = r->step_s > 0 && peak > 0 ? mpp_plan_step_flops(g) / r->step_s / peak : 0;
    r->gap = p->gap;
    r->memory_bytes = p->stages[mpp_plan_fullest(p)].memory.arena_bytes;
    r->plan = plan_words(w->arena, p);
    r->stopped = p->stopped ? mpp_arena_strdup(w->arena, p->stopped) : NULL;
    r->n_stages = p->n_stages;
    r->micro_batches = p->micro_batches;
    double tokens_per_s = r->samples_per_s * (double)r->tokens_per_sample;
    if (w->price > 0 && tokens_per_s > 0)
        r->cost = w->price * r->devices / SECONDS_PER_HOUR / tokens_per_s * TOKENS_OF_COST;
}

/* The first line of what SILENT was told, without "error: ". */
static const char *first_line(struct mpp_arena *arena, const struct mpp_diag *silent)
{
    const char *text = mpp_diag_text(silent), *from = strstr(text, "error: ");
    from = from ? from + 7 : text;
    return mpp_arena_strndup(arena, from, strcspn(from, "\n"));
}

static void plan_run(struct sweep *w, struct run *r)
{
    struct mpp_arena *scratch = mpp_arena_scratch(w->arena);
    struct mpp_diag *silent = mpp_diag_in(scratch, NULL);
    struct mpp_source s = source_of(w, scratch, r);
    struct mpp_graph *g;
    struct mpp_cluster *cluster;
    struct mpp_fitted fitted;
    enum mpp_status st = mpp_source_read(scratch, silent, &s, &g, &cluster);
    if (st == MPP_OK) {
        r->devices = cluster->n_devices;
        r->batch = g->global_batch;
        r->tokens_per_sample = g->tokens_per_sample;
        r->usable_bytes = mpp_device_usable_bytes(&cluster->device);
        s.plan.quiet = true;
        s.plan.least_bytes = &r->needs_bytes;
        st = mpp_fit_plan(scratch, silent, g, cluster, &s.plan, NULL, false, &fitted);
    }
    if (st == MPP_OK)
        note_plan(w, r, g, cluster, fitted.plan);
    else if (st == MPP_INFEASIBLE && r->needs_bytes > 0)
        r->why = mpp_arena_printf(w->arena, "does not fit: a device has %s, %s are needed at least", mpp_emit_bytes_text(w->arena, r->usable_bytes),
                                  mpp_emit_bytes_text(w->arena, r->needs_bytes));
    else if (st == MPP_INFEASIBLE)
        r->why = mpp_arena_printf(w->arena, "does not fit in %s", mpp_emit_bytes_text(w->arena, r->usable_bytes));
    else
        r->why = first_line(w->arena, silent);
    mpp_arena_free(scratch);
}

/* ---- for people ---- */

static bool tokens(const struct sweep *w)
{
    for (int i = 0; i < w->n_runs; i++)
        if (w->run[i].tokens_per_sample > 1)
            return true;
    return false;
}

static double rate(const struct run *r)
{
    return r->samples_per_s * (double)(r->tokens_per_sample > 1 ? r->tokens_per_sample : 1);
}

/* How much more a run does than one of the first row that fits, per device. */
static const char *efficiency(const struct sweep *w, const struct run *r)
{
    for (int i = 0; i < w->n_runs; i++)
        if (w->run[i].fits)
            return mpp_arena_printf(w->arena, "%.0f %%", 100 * rate(r) / r->devices / (rate(&w->run[i]) / w->run[i].devices));
    return "";
}

static const char *price_words(struct mpp_arena *arena, double cost)
{
    return cost >= 0.01 ? mpp_arena_printf(arena, "%.4f", cost) : mpp_arena_printf(arena, "%.3g", cost);
}

static bool sweeps_devices(const struct sweep *w)
{
    bool gpus = false, other = false;
    for (int i = 0; i < w->n_keys; i++) {
        gpus = gpus || w->key[i].kind == GPUS;
        other = other || w->key[i].kind != GPUS;
    }
    return gpus && !other;
}

static void print_table(const struct sweep *w, const struct mpp_screen *s)
{
    struct mpp_arena *arena = w->arena;
    const char *title[MPP_TABLE_COLUMNS], *unit = tokens(w) ? "tokens/s" : "samples/s";
    bool devices = sweeps_devices(w);
    int n = 0;
    for (int k = 0; k < w->n_keys; k++)
        title[n++] = w->key[k].kind == GPUS || w->key[k].kind == BATCH ? w->key[k].name : mpp_arena_printf(arena, "-%s", w->key[k].name);
    title[n++] = "step";
    title[n++] = unit;
    title[n++] = "of peak";
    if (devices)
        title[n++] = "per GPU";
    title[n++] = "memory";
    if (w->price > 0)
        title[n++] = tokens(w) ? "cost/1M tokens" : "cost/1M samples";
    title[n++] = "-plan";
    struct mpp_table t = mpp_table_begin(s, n, title);
    for (int i = 0; i < w->n_runs; i++) {
        const struct run *r = &w->run[i];
        const char *cell[MPP_TABLE_COLUMNS] = {NULL};
        int c = w->n_keys;
        memcpy(cell, r->value, sizeof *cell * (size_t)w->n_keys);
        if (r->fits) {
            cell[c++] = mpp_report_seconds(arena, r->step_s);
            cell[c++] = mpp_report_thousands(arena, (int64_t)rate(r));
            cell[c++] = mpp_arena_printf(arena, "%.0f %%", 100 * r->peak_fraction);
            if (devices)
                cell[c++] = efficiency(w, r);
            cell[c++] = mpp_emit_bytes_text(arena, r->memory_bytes);
            if (w->price > 0)
                cell[c++] = price_words(arena, r->cost);
            cell[c] = r->stopped ? mpp_arena_printf(arena, "%s (stopped by %s)", r->plan, r->stopped) : r->plan;
        } else {
            for (; c < n - 1; c++)
                cell[c] = "-";
            cell[c] = strncmp(r->why, "does not fit", 12) == 0 ? "does not fit" : "none";
        }
        mpp_table_row(&t, r->fits ? MPP_PLAIN : MPP_BAD, cell);
    }
    mpp_table_print(&t);
}

enum { STEP, RATE, MEMORY, COST, N_FIGURES };

static double figure(const struct run *r, int which)
{
    return !r->fits ? 0 : which == STEP ? r->step_s : which == RATE ? rate(r) : which == MEMORY ? (double)r->memory_bytes : r->cost;
}

/* Bars of each figure, side by side as far as the screen goes: each to its own scale, the longest is the most. */
static void print_chart(const struct sweep *w, const struct mpp_screen *s)
{
    struct mpp_arena *arena = w->arena;
    const char *name[N_FIGURES] = {"-step time", tokens(w) ? "-tokens/s" : "-samples/s", "-memory", "-cost"};
    int n = w->price > 0 ? N_FIGURES : N_FIGURES - 1, label = 0;
    const char **labels = mpp_arena_array(arena, w->n_runs, const char *);
    for (int i = 0; i < w->n_runs; i++) {
        struct mpp_text text = {.arena = arena};
        for (int k = 0; k < w->n_keys; k++)
            mpp_text_add(&text, "%s%s", k ? " " : "", w->run[i].value[k]);
        labels[i] = mpp_text_string(&text);
        label = (int)strlen(labels[i]) > label ? (int)strlen(labels[i]) : label;
    }
    int bar = (s->width - 2 - label - 2 * n) / n;
    bar = bar < LEAST_BAR ? LEAST_BAR : bar > MOST_BAR ? MOST_BAR : bar;
    const char *title[1 + N_FIGURES] = {"-", name[STEP], name[RATE], name[MEMORY], name[COST]};
    struct mpp_table t = mpp_table_begin(s, 1 + n, title);
    for (int i = 0; i < w->n_runs; i++) {
        const char *cell[1 + N_FIGURES] = {labels[i]};
        for (int f = 0; f < n; f++) {
            double most = 0;
            for (int k = 0; k < w->n_runs; k++)
                most = fmax(most, figure(&w->run[k], f));
            cell[1 + f] = w->run[i].fits ? mpp_screen_bar(arena, figure(&w->run[i], f), most, bar) : f == 0 ? "none" : "";
        }
        mpp_table_row(&t, w->run[i].fits ? MPP_PLAIN : MPP_BAD, cell);
    }
    fputc('\n', s->out);
    mpp_table_print(&t);
}

static void print_best(const struct sweep *w, const struct mpp_screen *s)
{
    const struct run *fast = NULL, *cheap = NULL;
    int none = 0;
    for (int i = 0; i < w->n_runs; i++) {
        const struct run *r = &w->run[i];
        none += !r->fits;
        fast = r->fits && (!fast || rate(r) > rate(fast)) ? r : fast;
        cheap = r->fits && r->cost > 0 && (!cheap || r->cost < cheap->cost) ? r : cheap;
    }
    fputc('\n', s->out);
    for (int cost = 0; cost < 2; cost++) {
        const struct run *r = cost ? cheap : fast;
        if (!r)
            continue;
        struct mpp_text text = {.arena = w->arena};
        mpp_text_add(&text, "%s:", cost ? "cheapest" : "most throughput");
        for (int k = 0; k < w->n_keys; k++)
            mpp_text_add(&text, " %s %s", w->key[k].name, r->value[k]);
        mpp_screen_paragraph(s, 2, MPP_BOLD, mpp_text_string(&text));
    }
    for (int i = 0; i < w->n_runs && none > 0; i++) {
        if (w->run[i].fits)
            continue;
        struct mpp_text text = {.arena = w->arena};
        for (int k = 0; k < w->n_keys; k++)
            mpp_text_add(&text, "%s%s %s", k ? " " : "", w->key[k].name, w->run[i].value[k]);
        mpp_screen_paragraph(s, 2, MPP_BAD, mpp_arena_printf(w->arena, "%s: %s", mpp_text_string(&text), w->run[i].why));
    }
}

static void print_sweep(const struct sweep *w, FILE *out)
{
    struct mpp_screen s = mpp_screen_on(w->arena, out);
    print_table(w, &s);
    print_chart(w, &s);
    print_best(w, &s);
}

/* ---- for machines ---- */

static void write_run(const struct sweep *w, struct mpp_answer *j, const struct run *r)
{
    mpp_answer_open(j, NULL, '{');
    mpp_answer_open(j, "values", '{');
    for (int k = 0; k < w->n_keys; k++)
        mpp_answer_text(j, w->key[k].name, r->value[k]);
    mpp_answer_close(j, '}');
    mpp_answer_bool(j, "fits", r->fits);
    mpp_answer_int(j, "devices", r->devices);
    mpp_answer_int(j, "batch", r->batch);
    mpp_answer_int(j, "usable_bytes", r->usable_bytes);
    if (r->fits) {
        mpp_answer_double(j, "step_s", r->step_s);
        mpp_answer_double(j, "samples_per_s", r->samples_per_s);
        mpp_answer_double(j, "tokens_per_s", r->samples_per_s * (double)r->tokens_per_sample);
        mpp_answer_double(j, "peak_fraction", r->peak_fraction);
        mpp_answer_int(j, "memory_bytes", r->memory_bytes);
        mpp_answer_double(j, "gap", r->gap);
        mpp_answer_int(j, "stages", r->n_stages);
        mpp_answer_int(j, "micro_batches", r->micro_batches);
        mpp_answer_text(j, "plan", r->plan);
        if (r->stopped)
            mpp_answer_text(j, "stopped", r->stopped);
        if (w->price > 0)
            mpp_answer_double(j, "cost_per_million_tokens", r->cost);
    } else {
        mpp_answer_text(j, "why", r->why);
        mpp_answer_int(j, "needs_bytes", r->needs_bytes);
    }
    mpp_answer_close(j, '}');
}

static void write_sweep(const struct sweep *w, FILE *out)
{
    struct mpp_answer j = {.out = out};
    mpp_answer_open(&j, NULL, '{');
    mpp_answer_open(&j, "keys", '[');
    for (int k = 0; k < w->n_keys; k++)
        mpp_answer_text(&j, NULL, w->key[k].name);
    mpp_answer_close(&j, ']');
    if (w->price > 0)
        mpp_answer_double(&j, "price_per_device_hour", w->price);
    mpp_answer_open(&j, "runs", '[');
    for (int i = 0; i < w->n_runs; i++)
        write_run(w, &j, &w->run[i]);
    mpp_answer_close(&j, ']');
    mpp_answer_close(&j, '}');
}

enum mpp_status mpp_inspect_sweep(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_source *source, int n,
                                  const char *const *sweeps, double price, const struct mpp_inspect_out *to)
{
    struct sweep w = {.arena = arena, .diag = diag, .source = source, .price = price};
    for (int i = 0; i < n && i < MAX_KEYS; i++)
        parse_key(&w, sweeps[i]);
    if (mpp_diag_errors(diag))
        return MPP_INVALID;
    MPP_TRY(list_runs(&w));
    MPP_TRY(check_names(&w));
    MPP_TRY(check_runs(&w));
    bool any = false;
    for (int i = 0; i < w.n_runs; i++) {
        volatile int *stop = source->plan.interrupt;
        if (stop && *stop && any)
            w.run[i].why = mpp_arena_printf(arena, "not looked at: stopped by %s", mpp_plan_stopped_by(&source->plan));
        else
            plan_run(&w, &w.run[i]);
        any = true;
    }
    if (to->json)
        write_sweep(&w, to->out);
    else
        print_sweep(&w, to->out);
    return MPP_OK;
}
