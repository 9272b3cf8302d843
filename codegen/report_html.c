/* report_html.c - report.html: one page that needs nothing else. All figures stand in it as one JSON object, which
 * the scripts of codegen/report/ draw; without scripts the text of report.txt is shown. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/embed.h"
#include "codegen/report_html.h"
#include "planner/timeline.h"

/* ---- the plan ---- */

static void write_prediction(struct mpp_html *h, const struct mpp_prediction *p)
{
    mpp_html_open(h, "predicted", '{');
    mpp_html_double(h, "step_s", p->step_s);
    mpp_html_double(h, "compute_s", p->compute_s);
    mpp_html_double(h, "activation_comm_s", p->activation_comm_s);
    mpp_html_double(h, "gradient_comm_s", p->gradient_comm_s);
    mpp_html_double(h, "parameter_comm_s", p->parameter_comm_s);
    mpp_html_double(h, "receive_s", p->receive_s);
    mpp_html_double(h, "update_s", p->update_s);
    mpp_html_double(h, "bubble_s", p->bubble_s);
    mpp_html_close(h, '}');
}

static void write_memory(struct mpp_html *h, const struct mpp_memory *m)
{
    mpp_html_open(h, "memory", '{');
    mpp_html_int(h, "parameters", m->parameters);
    mpp_html_int(h, "gradients", m->gradients);
    mpp_html_int(h, "optimizer", m->optimizer);
    mpp_html_int(h, "activations", m->activations);
    mpp_html_int(h, "inputs", m->inputs);
    mpp_html_int(h, "workspace", m->workspace);
    mpp_html_int(h, "gaps", m->gaps);
    mpp_html_int(h, "arena_bytes", m->arena_bytes);
    mpp_html_int(h, "live_bound_bytes", m->live_bound_bytes);
    mpp_html_close(h, '}');
}

static void write_model(struct mpp_html *h)
{
    const struct report *r = h->r;
    const struct mpp_model *m = r->whole->model;
    mpp_html_open(h, "model", '{');
    mpp_html_text(h, "name", m->name);
    mpp_html_text(h, "preset", m->preset);
    mpp_html_int(h, "parameters", mpp_graph_param_count(r->whole));
    mpp_html_int(h, "batch", r->plan->batch);
    mpp_html_int(h, "tokens_per_sample", r->whole->tokens_per_sample);
    mpp_html_text(h, "precision", m->training.precision ? m->training.precision : "f32");
    mpp_html_text(h, "optimizer", m->training.optimizer);
    mpp_html_close(h, '}');
}

static void write_plan(struct mpp_html *h)
{
    const struct mpp_plan *p = h->r->plan;
    const struct mpp_graph *g = h->r->whole;
    const char *pinned = mpp_report_pinned(h->r);
    double peak = mpp_plan_peak_flops(g, h->r->cluster), s = p->predicted.step_s;
    mpp_html_open(h, "plan", '{');
    mpp_html_text(h, "schedule", p->n_stages > 1 ? p->schedule : "accumulate");
    mpp_html_int(h, "chunks", p->pipeline.chunks);
    mpp_html_int(h, "micro_batches", p->micro_batches);
    mpp_html_text(h, "pinned", *pinned ? pinned + strlen(", ") : "");
    mpp_html_int(h, "objective_ps", p->objective_ps);
    mpp_html_int(h, "bound_ps", p->bound_ps);
    mpp_html_int(h, "simulated_ps", p->simulated_ps);
    mpp_html_int(h, "overlapped_ps", p->overlapped_ps);
    mpp_html_bool(h, "overlap", p->overlap);
    mpp_html_int(h, "overlap_bound_ps", p->overlap_bound_ps);
    mpp_html_double(h, "gap", p->gap);
    mpp_html_double(h, "flops", mpp_plan_step_flops(g));
    mpp_html_double(h, "peak_fraction", peak > 0 && s > 0 ? mpp_plan_step_flops(g) / s / peak : 0);
    mpp_html_int(h, "slowest", mpp_report_slowest(p));
    mpp_html_int(h, "fullest", mpp_plan_fullest(p));
    mpp_html_bool(h, "unfused", g->unfused);
    write_prediction(h, &p->predicted);
    mpp_html_open(h, "others", '[');
    for (int i = 0; i < p->n_others; i++) {
        mpp_html_open(h, NULL, '{');
        mpp_html_text(h, "what", p->others[i].what);
        mpp_html_text(h, "why", p->others[i].why);
        mpp_html_int(h, "time_ps", p->others[i].time_ps);
        mpp_html_close(h, '}');
    }
    mpp_html_close(h, ']');
    mpp_html_close(h, '}');
}

/* ---- stages ---- */

/* The names of repeats, and the first layer of each that the stage holds. */
void mpp_html_note_layers(struct mpp_html *h)
{
    const struct mpp_graph *g = h->r->g;
    h->n_repeats = 0;
    for (mpp_id o = 0; o < g->n_ops; o++)
        h->n_repeats = g->ops[o].repeat >= h->n_repeats ? g->ops[o].repeat + 1 : h->n_repeats;
    h->repeat = mpp_arena_array(h->r->arena, h->n_repeats, const char *);
    h->first = mpp_arena_array(h->r->arena, h->n_repeats, int);
    h->last = mpp_arena_array(h->r->arena, h->n_repeats, int);
    for (int i = 0; i < h->n_repeats; i++)
        h->first[i] = INT_MAX;
    for (mpp_id o = 0; o < g->n_ops; o++) {
        const struct mpp_gop *op = &g->ops[o];
        if (op->repeat < 0 || op->index < 0 || !op->repeat_name)
            continue;
        h->repeat[op->repeat] = op->repeat_name;
        h->first[op->repeat] = op->index < h->first[op->repeat] ? op->index : h->first[op->repeat];
        h->last[op->repeat] = op->index > h->last[op->repeat] ? op->index : h->last[op->repeat];
    }
}

/* What a stage runs, without its place: as text, so that stages alike are written once. */
static const char *program_text(const struct mpp_html *page, const struct report *r)
{
    struct report at = *r;
    struct mpp_html h = {.r = &at, .out = {.arena = r->arena}, .strings = page->strings};
    mpp_html_note_layers(&h);
    h.piece = mpp_plan_timeline(r->arena, r->cluster, r->plan, (int)(r->stage - r->plan->stages), &h.n_pieces);
    mpp_html_open(&h, NULL, '{');
    mpp_html_int(&h, "devices", r->stage->n_devices);
    mpp_html_text(&h, "recompute", mpp_plan_recompute_word(r->stage->recompute));
    mpp_html_axes(&h);
    mpp_html_pieces(&h);
    mpp_html_collectives(&h);
    mpp_html_tree(&h);
    mpp_html_close(&h, '}');
    return mpp_text_string(&h.out);
}

static void write_place(struct mpp_html *h, const struct report *r, int program)
{
    const struct mpp_stage *s = r->stage;
    /* a whole step needs no layers to say what it is, and plan.json has none */
    bool part = r->plan->n_stages > 1 || s->recompute != MPP_RECOMPUTE_NONE;
    const struct mpp_layering *l = part ? r->plan->layering : NULL;
    struct report seen = *r;
    struct mpp_html at = {.r = &seen, .out = {.arena = r->arena}};
    mpp_html_note_layers(&at);
    mpp_html_open(h, NULL, '{');
    mpp_html_int(h, "program", program);
    mpp_html_int(h, "first_device", s->first_device);
    mpp_html_int(h, "devices", s->n_devices);
    mpp_html_text(h, "first_layer", l && s->first_layer < l->n_layers ? l->name[s->first_layer] : NULL);
    mpp_html_text(h, "last_layer", l && s->last_layer < l->n_layers ? l->name[s->last_layer] : NULL);
    mpp_html_open(h, "repeats", '['); /* that it holds: name, first layer */
    for (int i = 0; i < at.n_repeats; i++) {
        if (!at.repeat[i])
            continue;
        mpp_html_open(h, NULL, '[');
        mpp_html_text(h, NULL, at.repeat[i]);
        mpp_html_int(h, NULL, at.first[i]);
        mpp_html_close(h, ']');
    }
    mpp_html_close(h, ']');
    mpp_html_int(h, "in_flight", s->in_flight);
    mpp_html_int(h, "forward_ps", s->time.forward_ps);
    mpp_html_int(h, "backward_ps", s->time.backward_ps);
    mpp_html_int(h, "once_ps", s->time.once_ps);
    mpp_html_int(h, "update_ps", s->time.update_ps);
    write_memory(h, &s->memory);
    write_prediction(h, &s->predicted);
    mpp_html_close(h, '}');
}

static void write_stages(struct mpp_html *h)
{
    const struct mpp_plan *p = h->r->plan;
    struct mpp_html_strings programs = {.arena = h->r->arena};
    mpp_html_open(h, "stages", '[');
    for (int i = 0; i < p->n_stages; i++) {
        struct report at = mpp_report_at(h->r, i);
        write_place(h, &at, mpp_html_intern(&programs, program_text(h, &at)));
    }
    mpp_html_close(h, ']');
    mpp_html_open(h, "programs", '[');
    for (int i = 0; i < programs.n; i++)
        mpp_html_raw(h, NULL, programs.text[i]);
    mpp_html_close(h, ']');
}

static const char *page_json(struct report *r, const char *measured)
{
    struct mpp_html_strings strings = {.arena = r->arena};
    struct mpp_html h = {.r = r, .out = {.arena = r->arena}, .strings = &strings};
    mpp_html_intern(&strings, "");
    mpp_html_open(&h, NULL, '{');
    write_model(&h);
    mpp_html_cluster(&h);
    write_plan(&h);
    write_stages(&h);
    mpp_html_schedule(&h);
    if (measured)
        mpp_html_raw(&h, "measured", measured);
    mpp_html_open(&h, "strings", '[');
    for (int i = 0; i < strings.n; i++)
        mpp_html_text(&h, NULL, strings.text[i]);
    mpp_html_close(&h, ']');
    mpp_html_close(&h, '}');
    return mpp_text_string(&h.out);
}

/* ---- the page ---- */

/* An embedded file of the page: "report.css". */
static const char *asset(const char *name)
{
    for (const struct mpp_embedded_source *a = mpp_embedded_report; a->path; a++)
        if (strcmp(a->path, name) == 0)
            return a->text;
    return "";
}

struct stream {
    FILE *f;
    char *text;
    size_t size;
};

static void close_stream(void *p)
{
    struct stream *s = p;
    if (s->f)
        fclose(s->f);
    free(s->text);
    *s = (struct stream){0};
}

/* report.txt, for browsers without scripts; where it cannot be written into memory, that is out. */
static const char *plain_text(const struct report *r)
{
    struct stream *s = mpp_arena_array(r->arena, 1, struct stream);
    s->f = open_memstream(&s->text, &s->size);
    if (!s->f)
        mpp_arena_fail(r->arena, 0);
    mpp_arena_defer(r->arena, close_stream, s);
    struct mpp_diag *silent = mpp_diag_in(r->arena, NULL);
    if (mpp_report_write(silent, r->whole, r->cluster, r->plan, r->prog, s->f) != MPP_OK || fflush(s->f) != 0)
        mpp_arena_fail(r->arena, 0);
    return mpp_html_escape(r->arena, s->text);
}

enum mpp_status mpp_report_html(struct mpp_diag *diag, const struct mpp_graph *graph, const struct mpp_cluster *cluster,
                                const struct mpp_plan *plan, const struct mpp_lprog *prog, FILE *out)
{
    return mpp_report_html_measured(diag, graph, cluster, plan, prog, NULL, out);
}

enum mpp_status mpp_report_html_measured(struct mpp_diag *diag, const struct mpp_graph *graph, const struct mpp_cluster *cluster,
                                         const struct mpp_plan *plan, const struct mpp_lprog *prog, const char *measured, FILE *out)
{
    struct report r = {.arena = mpp_arena_scratch(graph->arena), .whole = graph, .cluster = cluster, .plan = plan, .prog = prog,
                       .out = out};
    r = mpp_report_at(&r, mpp_report_slowest(plan));
    fprintf(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                 "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                 "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
                 "<meta name=\"color-scheme\" content=\"light dark\">\n<title>%s: plan</title>\n<style>\n%s</style>\n</head>\n<body>\n"
                 "<noscript>\n<p>This page draws the plan with a script. Without it, report.txt says the same in words:</p>\n"
                 "<pre>%s</pre>\n</noscript>\n%s<script type=\"application/json\" id=\"plan\">",
            mpp_html_escape(r.arena, graph->model->name), asset("report.css"), plain_text(&r), asset("body.html"));
    fprintf(out, "%s</script>\n<script>\n\"use strict\";\n", page_json(&r, measured));
    for (const struct mpp_embedded_source *a = mpp_embedded_report; a->path; a++)
        if (strlen(a->path) > 3 && strcmp(a->path + strlen(a->path) - 3, ".js") == 0)
            fprintf(out, "%s", a->text);
    fprintf(out, "</script>\n</body>\n</html>\n");
    mpp_arena_free(r.arena);
    if (!ferror(out))
        return MPP_OK;
    mpp_diag_error(diag, (struct mpp_loc){0}, "cannot write report.html: %s", strerror(errno ? errno : EIO));
    return MPP_IO;
}
