/* explain_print.c - what --explain says, on a terminal and as JSON. */
#include <string.h>

#include "codegen/report_internal.h"
#include "inspect/answer.h"
#include "inspect/explain_internal.h"
#include "inspect/screen.h"
#include "inspect/words.h"

/* "+1.9 %", "+0.02 %"; "as much" */
static const char *percent(struct mpp_arena *arena, int64_t ps, int64_t of)
{
    double p = of > 0 ? 100.0 * (double)(ps - of) / (double)of : 0;
    return p < 5e-4 && p > -5e-4 ? "as much" : mpp_arena_printf(arena, "%+.*f %%", p < 1 && p > -1 ? 3 : 1, p);
}

static const char *subject_words(const struct mpp_explain *e)
{
    const struct mpp_stage *s = &e->plan->stages[e->subject.thing.stage];
    struct mpp_text t = {.arena = e->arena};
    mpp_text_add(&t, "%s, %s", e->name, e->subject.kind == MPP_SUBJECT_STAGE ? "a stage" : e->subject.kind == MPP_SUBJECT_LAYER ? "a layer"
                 : mpp_arena_printf(e->arena, "%s %s", strchr("aeiou", e->subject.what[0]) ? "an" : "a", e->subject.what));
    if (e->plan->n_stages > 1)
        mpp_text_add(&t, " of stage %d", e->subject.thing.stage);
    mpp_text_add(&t, ", on a mesh of %s", mpp_words_mesh(e->arena, &s->mesh));
    return mpp_text_string(&t);
}

static void print_head(const struct mpp_explain *e, const struct mpp_screen *s)
{
    mpp_screen_paragraph(s, 0, MPP_BOLD, subject_words(e));
    if (e->closer)
        mpp_screen_paragraph(s, 2, MPP_PLAIN, e->closer);
    if (e->apart)
        mpp_screen_paragraph(s, 2, MPP_PLAIN, e->apart);
    if (e->subject.note)
        mpp_screen_paragraph(s, 2, MPP_PLAIN, e->subject.note);
    if (e->subject.kind == MPP_SUBJECT_THING)
        mpp_screen_paragraph(s, 2, MPP_PLAIN, mpp_arena_printf(e->arena, "chosen: %s", e->option[0].words));
    if (e->same)
        mpp_screen_paragraph(s, 2, MPP_PLAIN, mpp_arena_printf(e->arena, "chosen: as planned, which is what these come to: %s", e->same));
    fputc('\n', s->out);
}

static void print_options(const struct mpp_explain *e, const struct mpp_screen *s)
{
    struct mpp_arena *arena = e->arena;
    bool thing = e->subject.kind != MPP_SUBJECT_STAGE;
    int64_t best = e->option[0].costs.step_ps;
    struct mpp_table t = thing ? mpp_table_begin(s, 8, (const char *[]){"-alternative", "kernels", "copies", "its bytes", "device", "step", "", "more"})
                               : mpp_table_begin(s, 6, (const char *[]){"-alternative", "collectives", "device", "step", "", "more"});
    for (int i = 0; i < e->n_options; i++) {
        const struct mpp_option *o = &e->option[i];
        const char *cell[8] = {o->words}, *more = o->chosen ? "chosen" : percent(arena, o->costs.step_ps, best);
        int c = 1;
        if (thing) {
            cell[c++] = o->fits ? mpp_words_time(arena, o->costs.kernels_ps) : "-";
            cell[c++] = o->fits ? mpp_words_time(arena, o->costs.copies_ps) : "-";
            cell[c++] = o->fits ? mpp_emit_bytes_text(arena, o->costs.bytes) : "-";
        } else {
            cell[c++] = o->fits ? mpp_words_time(arena, o->costs.comm_ps) : "-";
        }
        cell[c++] = o->fits ? mpp_emit_bytes_text(arena, o->costs.memory_bytes) : "-";
        cell[c++] = o->fits ? mpp_words_time(arena, o->costs.step_ps) : "-";
        cell[c++] = o->fits && !o->chosen ? mpp_words_signed_time(arena, o->costs.step_ps - best) : "";
        cell[c] = o->fits ? more : "none";
        mpp_table_row(&t, o->chosen ? MPP_GOOD : o->fits ? MPP_PLAIN : MPP_BAD, cell);
    }
    mpp_table_print(&t);
    if (e->n_more > 0)
        mpp_screen_paragraph(s, 2, MPP_PLAIN, mpp_arena_printf(arena, "%d more were not planned: with them %s takes %s at least", e->n_more,
                             e->plan->n_stages > 1 ? mpp_arena_printf(arena, "stage %d alone", e->subject.thing.stage) : "a step",
                             mpp_words_time(arena, e->more_ps)));
}

static void print_reasons(const struct mpp_explain *e, const struct mpp_screen *s)
{
    for (int i = 1; i < e->n_options; i++) {
        const struct mpp_option *o = &e->option[i];
        fputc('\n', s->out);
        mpp_screen_paragraph(s, 2, MPP_BOLD, o->words);
        mpp_screen_paragraph(s, 4, MPP_PLAIN, o->fits ? o->wins : o->why_not);
        mpp_screen_paragraph(s, 4, MPP_FAINT, o->pins);
    }
    fputc('\n', s->out);
    if (e->n_options == 1)
        mpp_screen_paragraph(s, 2, MPP_PLAIN, "there is no other way to do it");
    else if (e->subject.kind == MPP_SUBJECT_STAGE)
        mpp_screen_paragraph(s, 2, MPP_PLAIN, "steps are of plans with stages and micro-batches as here and the rest optimised again; to get one: --fix "
                             "and the words under it");
    else
        mpp_screen_paragraph(s, 2, MPP_PLAIN, mpp_arena_printf(e->arena, "steps are of plans with stages,%s and micro-batches as here and the rest "
                             "optimised again; to get one: --fix '%s,...' with the words under an alternative in the place of the dots", e->held.mesh.n_axes ? " meshes" : "", e->held_pins));
}

static void print_layer(const struct mpp_explain *e, const struct mpp_screen *s)
{
    struct mpp_arena *arena = e->arena;
    fputc('\n', s->out);
    struct mpp_table t = mpp_table_begin(s, 7, (const char *[]){"-part by part", "-", "-chosen", "kernels", "copies", "more", "-runner-up"});
    size_t prefix = strlen(e->subject.glob) - 1;
    for (int i = 0; i < e->n_rows; i++) {
        const struct mpp_layer_row *r = &e->row[i];
        const char *more = !r->other.words ? "" : r->other.fits ? percent(arena, r->other.costs.step_ps, r->costs.step_ps) : "none";
        mpp_table_row(&t, MPP_PLAIN, (const char *[]){r->name + prefix, r->what, r->chosen, mpp_words_time(arena, r->costs.kernels_ps),
                      mpp_words_time(arena, r->costs.copies_ps), more,
                      !r->other.words ? "no other" : r->other.fits ? r->other.words
                      : mpp_arena_printf(arena, "%s: %s", r->other.words, r->other.why_not)});
    }
    mpp_table_print(&t);
    fputc('\n', s->out);
    mpp_screen_paragraph(s, 2, MPP_PLAIN, "\"more\" is what a step takes longer with the runner-up, the rest optimised again; --explain one of the names for all "
                         "its alternatives");
}

void mpp_explain_print(const struct mpp_explain *e, FILE *out)
{
    struct mpp_screen s = mpp_screen_on(e->arena, out);
    print_head(e, &s);
    print_options(e, &s);
    print_reasons(e, &s);
    if (e->subject.kind == MPP_SUBJECT_LAYER)
        print_layer(e, &s);
}

/* ---- for machines ---- */

static void write_costs(struct mpp_answer *j, const struct mpp_costs *c)
{
    mpp_answer_double(j, "kernels_s", (double)c->kernels_ps * 1e-12);
    mpp_answer_double(j, "copies_s", (double)c->copies_ps * 1e-12);
    mpp_answer_int(j, "bytes", c->bytes);
    mpp_answer_int(j, "memory_bytes", c->memory_bytes);
    mpp_answer_double(j, "collectives_s", (double)c->comm_ps * 1e-12);
    mpp_answer_double(j, "step_s", (double)c->step_ps * 1e-12);
}

static void write_option(const struct mpp_explain *e, struct mpp_answer *j, const char *key, const struct mpp_option *o)
{
    mpp_answer_open(j, key, '{');
    mpp_answer_text(j, "what", o->words);
    mpp_answer_bool(j, "chosen", o->chosen);
    mpp_answer_bool(j, "fits", o->fits);
    mpp_answer_text(j, "fix", o->chosen ? e->plan_pins : e->subject.kind == MPP_SUBJECT_STAGE ? o->pins
                    : mpp_arena_printf(e->arena, "%s,%s", e->held_pins, o->pins));
    if (o->fits)
        write_costs(j, &o->costs);
    mpp_answer_text(j, "why", o->fits ? o->wins : o->why_not);
    mpp_answer_close(j, '}');
}

void mpp_explain_write(const struct mpp_explain *e, FILE *out)
{
    struct mpp_answer j = {.out = out};
    mpp_answer_open(&j, NULL, '{');
    mpp_answer_text(&j, "name", e->name);
    mpp_answer_text(&j, "kind", e->subject.what);
    mpp_answer_text(&j, "note", e->subject.note);
    mpp_answer_text(&j, "closer", e->closer);
    mpp_answer_text(&j, "apart", e->apart);
    mpp_answer_int(&j, "stage", e->subject.thing.stage);
    mpp_answer_text(&j, "held", e->held_pins);
    mpp_answer_double(&j, "step_s", (double)e->plan->objective_ps * 1e-12);
    mpp_answer_double(&j, "gap", e->plan->gap);
    mpp_answer_text(&j, "same", e->same);
    mpp_answer_open(&j, "alternatives", '[');
    for (int i = 0; i < e->n_options; i++)
        write_option(e, &j, NULL, &e->option[i]);
    mpp_answer_close(&j, ']');
    mpp_answer_int(&j, "more", e->n_more);
    if (e->n_more > 0)
        mpp_answer_double(&j, "more_at_least_s", (double)e->more_ps * 1e-12);
    mpp_answer_open(&j, "parts", '[');
    for (int i = 0; i < e->n_rows; i++) {
        const struct mpp_layer_row *r = &e->row[i];
        mpp_answer_open(&j, NULL, '{');
        mpp_answer_text(&j, "name", r->name);
        mpp_answer_text(&j, "kind", r->what);
        mpp_answer_text(&j, "chosen", r->chosen);
        write_costs(&j, &r->costs);
        if (r->other.words)
            write_option(e, &j, "runner_up", &r->other);
        mpp_answer_close(&j, '}');
    }
    mpp_answer_close(&j, ']');
    mpp_answer_close(&j, '}');
}
