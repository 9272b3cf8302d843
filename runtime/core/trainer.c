/* trainer.c - the loop. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "checkpoint.h"
#include "device.h"
#include "evaluate.h"
#include "feed.h"
#include "init.h"
#include "options.h"
#include "passes.h"
#include "progress.h"
#include "signals.h"
#include "space.h"
#include "start.h"
#include "state.h"
#include "tensors.h"
#include "trace.h"
#include "trainer.h"
#include "transport.h"
#include "waits.h"

static struct mpp_local *local_of(const struct mpp_rank *r)
{
    return r->impl;
}

/* Around all that R writes: who reads it may take any time. */
static void begin_output(struct mpp_rank *r)
{
    mpp_wait_begin(r, MPP_WAIT_OUTPUT, 0);
}

static void end_output(struct mpp_rank *r)
{
    mpp_wait_end(r);
}

double mpp_trainer_lr(const struct mpp_program *program, double peak, int64_t steps, int64_t step)
{
    const double pi = 3.14159265358979323846;
    double t = (double)step, w = (double)program->warmup_steps;
    double n = (double)(program->total_steps > 0 ? program->total_steps : steps);
    if (t <= w)
        return peak * t / w;
    if (program->schedule == MPP_SCHEDULE_CONSTANT)
        return peak;
    double done = n > w ? (t - w) / (n - w) : 1;
    done = done < 1 ? done : 1;
    if (program->schedule == MPP_SCHEDULE_LINEAR)
        return peak + (program->final_lr - peak) * done;
    return program->final_lr + 0.5 * (peak - program->final_lr) * (1 + cos(pi * done));
}

static double scalar_at(struct mpp_rank *r, int64_t offset)
{
    float x;
    mpp_device_get(r, &x, r->arena + offset, sizeof x);
    return (double)x;
}

/* ---- setting up ---------------------------------------------------------------------------------------- */

static void make_arena(struct mpp_rank *r)
{
    struct mpp_error error = {0};
    int code = mpp_device_open(r, &error);
    if (code == MPP_EXIT_OK)
        code = mpp_passes_new(r, &error);
    if (code == MPP_EXIT_OK && local_of(r)->job->options->profile != NULL)
        code = mpp_trace_new(r, &error);
    mpp_agree(r, code, &error);
}

/* --loss-scale replaces the plan's, or the checkpoint's. */
static void set_loss_scale(struct mpp_rank *r)
{
    float scale = (float)local_of(r)->job->options->loss_scale;
    if (scale > 0.0f)
        mpp_device_put(r, r->arena + r->stage->loss_scale_offset, &scale, sizeof scale);
}

static void make_parameters(struct mpp_rank *r)
{
    const struct mpp_job *job = local_of(r)->job;
    struct mpp_error error = {0};
    if (job->resume != NULL) {
        mpp_checkpoint_load(r, job->resume);
        set_loss_scale(r);
        return;
    }
    int code = mpp_init_random(r, MPP_KIND_OPTIMIZER, &error);
    if (code == MPP_EXIT_OK && job->options->init == NULL)
        code = mpp_init_random(r, MPP_KIND_PARAMETER, &error);
    if (code == MPP_EXIT_OK && job->options->init != NULL) {
        char note[512] = "";
        code = mpp_init_load(r, MPP_KIND_PARAMETER, job->options->init, r->program->strip_prefixes, note, sizeof note,
                             &error);
        if (code == MPP_EXIT_OK && r->rank == 0 && note[0] != '\0')
            mpp_note("%s", note);
    }
    mpp_agree(r, code, &error);
    set_loss_scale(r);
}

/* " = data 2 x model 4"; nothing for one device. */
static void print_mesh(const struct mpp_stage *stage, char *out, size_t out_bytes)
{
    out[0] = '\0';
    for (int a = 0; a < stage->n_axes && mpp_mesh_stage_ranks(stage) > 1; a++) {
        size_t at = strlen(out);
        (void)snprintf(out + at, out_bytes - at, "%s%s%d", a == 0 ? " = " : " x ",
                       stage->axis_name[a] != NULL ? stage->axis_name[a] : "", stage->axis_size[a]);
    }
}

/* The work of all ranks, and their arenas: in one line where there is one stage, else in one for each. */
static void announce(const struct mpp_rank *r)
{
    const struct mpp_program *p = r->program;
    char arena[32], mesh[96], micro_batches[64], device[512];
    (void)snprintf(micro_batches, sizeof micro_batches, "batch %lld in %d micro-batch%s", (long long)p->batch, p->micro_batches,
                   p->micro_batches == 1 ? "" : "es");
    (void)mpp_device_describe(r, device, sizeof device);
    printf("%s: %d device%s", p->model, r->n_ranks, r->n_ranks == 1 ? "" : "s");
    for (int i = 0; i < p->n_stages; i++) {
        const struct mpp_stage *s = p->stages[i];
        int n = mpp_mesh_stage_ranks(s), last = s->first_rank + n - 1;
        print_mesh(s, mesh, sizeof mesh);
        mpp_bytes_print(s->arena_bytes, arena, sizeof arena);
        if (p->n_stages == 1) {
            printf("%s over %s, arena %lld bytes (%s) and %s, %s\n", mesh, r->transport->ops->name,
                   (long long)s->arena_bytes, arena, device, micro_batches);
            break;
        }
        if (i == 0)
            printf(" over %s in %d stages, %s, %s, %s\n", r->transport->ops->name, p->n_stages, p->pipeline, device,
                   micro_batches);
        printf("stage %d: rank%s %d", i, n == 1 ? "" : "s", s->first_rank);
        if (n > 1)
            printf(" to %d", last);
        printf("%s, arena %lld bytes (%s)\n", mesh, (long long)s->arena_bytes, arena);
    }
    fflush(stdout);
}

/* ---- steps ----------------------------------------------------------------------------------------------- */

/* What is asked of the run between two steps: 0 nothing, 1 a checkpoint, 1 + n to stop by signal n. */
enum { ASKED_SAVE = 1 };

static int asked_here(struct mpp_rank *r)
{
    struct mpp_local *local = local_of(r);
    const struct mpp_signals *signals = local->job->signals;
    int stop = signals != NULL ? mpp_signals_wanted(signals) : 0;
    if (stop != 0)
        return ASKED_SAVE + stop;
    if (signals == NULL || r->rank != 0) /* processes hear a signal at different steps: rank 0's counts */
        return 0;
    unsigned saves = mpp_signals_saves(signals);
    bool more = saves != local->saves_seen;
    local->saves_seen = saves;
    return more ? ASKED_SAVE : 0;
}

/* Waits for the inputs of step STEP. All ranks return what any was asked. */
static int begin_step(struct mpp_rank *r, int64_t step)
{
    struct mpp_error error;
    int code = mpp_feed_wait(local_of(r)->feed, step - 1, &error);
    float told[2] = {(float)code, (float)asked_here(r)};
    r->transport->ops->all_reduce(r, MPP_WORLD, told, 2, true);
    if (told[1] <= ASKED_SAVE && told[0] > 0)
        mpp_agree(r, code, &error); /* several ranks may meet the same bad sample: one speaks */
    return (int)told[1];
}

static void set_step(struct mpp_rank *r, int64_t step)
{
    const struct mpp_job *job = local_of(r)->job;
    r->step = step;
    r->hyper.lr = mpp_trainer_lr(r->program, job->options->lr, job->options->steps, step);
    mpp_device_step(r);
}

static void divide_part(struct mpp_rank *r, char *at, int64_t n, double scale)
{
    float x[MPP_DEVICE_PART];
    mpp_device_get(r, x, at, (size_t)n * sizeof *x);
    for (int64_t j = 0; j < n; j++)
        x[j] = (float)((double)x[j] / scale);
    mpp_device_put(r, at, x, (size_t)n * sizeof *x);
}

/* Gradients were made of a loss times a scale. */
static void divide_gradients(struct mpp_rank *r, double scale)
{
    for (int i = 0; i < r->stage->n_tensors; i++) {
        const struct mpp_tensor *t = &r->stage->tensors[i];
        int64_t n = mpp_block_of(r, t).padded_count;
        for (int k = 0; t->kind == MPP_KIND_GRADIENT && k < (t->count > 0 ? t->count : 1); k++) {
            for (int64_t from = 0; from < n; from += MPP_DEVICE_PART)
                divide_part(r, r->arena + t->offset + k * t->stride + 4 * from, mpp_min_i64(MPP_DEVICE_PART, n - from), scale);
        }
    }
}

/* The gradients of the step to come, without taking it. */
static void dump_gradients(struct mpp_rank *r, int64_t step)
{
    const struct mpp_job *job = local_of(r)->job;
    struct mpp_error error = {0};
    int code = MPP_EXIT_OK;
    if (r->stage->reduce_gradients == NULL)
        code = mpp_error_set(&error, MPP_EXIT_INPUT, "--dump-grads: this plan keeps no gradients");
    mpp_agree(r, code, &error);
    (void)begin_step(r, step);
    set_step(r, step);
    char **state = &local_of(r)->kept_state; /* running statistics are parameters, and forward changes them */
    mpp_agree(r, mpp_keep_tensors(r, MPP_KEEP_ALL, state, &error), &error);
    mpp_passes_run(r);
    r->stage->reduce_gradients(r);
    if (r->program->scales_loss)
        divide_gradients(r, scalar_at(r, r->stage->loss_scale_offset));
    mpp_checkpoint_write(r, MPP_KIND_GRADIENT, job->options->dump_grads);
    mpp_keep_restore(r, MPP_KEEP_ALL, *state);
    free(*state);
    *state = NULL;
}

/* Where STAGE has what is reported; < 0: it has not. */
static int64_t loss_in(const struct mpp_stage *stage)
{
    return stage->loss_offset;
}

static int64_t grad_norm_in(const struct mpp_stage *stage)
{
    return stage->grad_norm_offset;
}

/* All ranks call: on rank 0 the scalar that WHERE finds in the first stage that has it; NaN: none has. */
static double reported(struct mpp_rank *r, int64_t (*where)(const struct mpp_stage *stage))
{
    const struct mpp_program *p = r->program;
    int s = 0;
    while (s < p->n_stages && where(p->stages[s]) < 0)
        s++;
    if (s == p->n_stages)
        return (double)NAN;
    int from = p->stages[s]->first_rank;
    float x = r->rank == from ? (float)scalar_at(r, where(p->stages[s])) : 0;
    if (from > 0 && r->rank == from)
        r->transport->ops->send(r, 0, &x, sizeof x);
    if (from > 0 && r->rank == 0)
        r->transport->ops->receive(r, from, &x, sizeof x);
    return (double)x;
}

/* All ranks call; complete on rank 0. */
static struct mpp_step_report report_of(struct mpp_rank *r, double begun_s, double loss_scale)
{
    const struct mpp_program *p = r->program;
    if (p->scales_loss)
        r->skipped = (int64_t)scalar_at(r, r->stage->skipped_offset);
    mpp_device_synchronize(r);
    double loss = reported(r, loss_in), grad_norm = reported(r, grad_norm_in), step_s = mpp_clock_s() - begun_s;
    return (struct mpp_step_report){
        .step = r->step,
        .loss = loss,
        .grad_norm = grad_norm,
        .lr = r->hyper.lr,
        .loss_scale = loss_scale,
        .skipped = r->skipped,
        .step_s = step_s,
        .tokens = p->tokens_per_sample > 1,
        .tokens_per_s = (double)(p->batch * (p->tokens_per_sample > 0 ? p->tokens_per_sample : 1)) / step_s,
    };
}

/* Evaluates where that is due, and rank 0 tells of the step. */
static void tell_step(struct mpp_rank *r, struct mpp_step_report *report)
{
    const struct mpp_options *o = local_of(r)->job->options;
    struct mpp_error error;
    report->evaluated = o->eval != NULL && (r->step == o->steps || (o->eval_every > 0 && r->step % o->eval_every == 0));
    if (report->evaluated)
        report->eval_loss = mpp_evaluate(r);
    begin_output(r);
    int code = r->rank == 0 ? mpp_progress_step(local_of(r)->progress, report, &error) : MPP_EXIT_OK;
    end_output(r);
    if (code != MPP_EXIT_OK)
        mpp_fail(r, code, "%s", error.text);
}

static void save(struct mpp_rank *r)
{
    struct mpp_error error;
    int code = r->rank == 0 ? mpp_progress_flush(local_of(r)->progress, &error) : MPP_EXIT_OK;
    if (code != MPP_EXIT_OK)
        mpp_fail(r, code, "%s", error.text);
    mpp_checkpoint_save(r, local_of(r)->job->options->save);
}

static void tell_saved(struct mpp_rank *r)
{
    begin_output(r);
    if (r->rank == 0)
        mpp_progress_saved(local_of(r)->progress, local_of(r)->job->options->save, r->step);
    end_output(r);
}

/* Between two steps: does what was ASKED. */
static void answer(struct mpp_rank *r, int asked, bool saved)
{
    struct mpp_local *local = local_of(r);
    const struct mpp_options *o = local->job->options;
    char where[MPP_PATH_BYTES + 64] = "; nothing is new since it was resumed";
    if (r->step == 0)
        (void)snprintf(where, sizeof where, "; there is nothing to save");
    if (r->step > local->job->first_step) {
        if (!saved)
            save(r);
        (void)snprintf(where, sizeof where, "; saved %s/step-%lld", o->save, (long long)r->step);
    }
    if (asked > ASKED_SAVE)
        local->exit_code = 128 + asked - ASKED_SAVE; /* as a shell reports a process that the signal ended */
    begin_output(r);
    if (r->rank == 0)
        mpp_progress_say(local->progress, "%s %s after step %lld%s", asked > ASKED_SAVE ? "stopped by" : "asked by",
                         asked > ASKED_SAVE ? mpp_signals_name(asked - ASKED_SAVE) : "SIGUSR1", (long long)r->step, where);
    end_output(r);
}

/* Where no step is left to take. */
static void evaluate_alone(struct mpp_rank *r)
{
    double loss = mpp_evaluate(r);
    begin_output(r);
    if (r->rank == 0)
        mpp_progress_say(local_of(r)->progress, "loss on other data after step %lld: %.6g", (long long)r->step, loss);
    end_output(r);
}

static void train(struct mpp_rank *r)
{
    const struct mpp_job *job = local_of(r)->job;
    const struct mpp_options *o = job->options;
    int64_t saved = -1, every = r->program->save_every;
    if (o->dump_grads != NULL)
        dump_gradients(r, job->first_step + 1);
    r->step = job->first_step;
    if (o->eval != NULL && job->first_step >= o->steps)
        evaluate_alone(r);
    if (job->signals != NULL)
        mpp_signals_begin(job->signals);
    for (int64_t step = job->first_step + 1; step <= o->steps; step++) {
        mpp_trace_step(r, step);
        double traced_s = mpp_trace_begin(r), begun_s = mpp_clock_s();
        int asked = begin_step(r, step);
        mpp_trace_end(r, traced_s, MPP_TRACE_BEGIN, 0, 0, 0);
        if (asked != 0) {
            answer(r, asked, saved == r->step);
            saved = r->step;
            if (asked > ASKED_SAVE)
                return;
            begun_s = mpp_clock_s();
        }
        set_step(r, step);
        double loss_scale = r->program->scales_loss ? scalar_at(r, r->stage->loss_scale_offset) : 0;
        mpp_passes_run(r);
        mpp_feed_release(local_of(r)->feed);
        double update_s = mpp_trace_begin(r);
        mpp_device_pass(r, MPP_PASS_UPDATE, r->stage->update);
        mpp_trace_end(r, update_s, MPP_TRACE_UPDATE, 0, 0, 0);
        double report_s = mpp_trace_begin(r);
        struct mpp_step_report report = report_of(r, begun_s, loss_scale);
        mpp_trace_end(r, report_s, MPP_TRACE_REPORT, 0, 0, 0);
        mpp_trace_end(r, traced_s, MPP_TRACE_STEP, (int)step, 0, 0);
        tell_step(r, &report);
        if (o->save != NULL && every > 0 && step % every == 0) {
            save(r);
            tell_saved(r);
            saved = step;
        }
    }
    if (o->save != NULL && saved != r->step) {
        save(r);
        tell_saved(r);
    }
}

static void conclude(const struct mpp_rank *r)
{
    const struct mpp_program *p = r->program;
    struct rusage usage;
    char peak[32], arena[32];
    int64_t least = INT64_MAX, most = 0;
    getrusage(RUSAGE_SELF, &usage);
    mpp_bytes_print((int64_t)usage.ru_maxrss * 1024, peak, sizeof peak);
    for (int i = 0; i < p->n_stages; i++) {
        least = p->stages[i]->arena_bytes < least ? p->stages[i]->arena_bytes : least;
        most = p->stages[i]->arena_bytes > most ? p->stages[i]->arena_bytes : most;
    }
    mpp_bytes_print(most, arena, sizeof arena);
    printf("peak resident memory of the process %s for %d device%s; arena ", peak, local_of(r)->job->local_ranks,
           local_of(r)->job->local_ranks == 1 ? "" : "s");
    if (least < most)
        printf("%lld to ", (long long)least);
    printf("%lld bytes (%s) each\n", (long long)most, arena);
    fflush(stdout);
}

/* Rank 0: whatever is to be written can be, as far as one can tell before training. */
static int open_outputs(struct mpp_rank *r, struct mpp_error *error)
{
    struct mpp_local *local = local_of(r);
    const struct mpp_job *job = local->job;
    const struct mpp_options *o = job->options;
    int code = o->dump_grads != NULL ? mpp_checkpoint_check_file(o->dump_grads, error) : MPP_EXIT_OK;
    if (code == MPP_EXIT_OK && o->profile != NULL)
        code = mpp_checkpoint_check_file(o->profile, error);
    if (code == MPP_EXIT_OK && o->save != NULL && local->save_lock == 0)
        code = mpp_checkpoint_claim(o->save, &local->save_lock, error);
    if (code != MPP_EXIT_OK)
        return code;
    int64_t later = o->save != NULL ? mpp_checkpoint_newest(o->save, INT64_MAX) : -1;
    bool passed_over = job->resume != NULL && job->resume->note[0] != '\0'; /* then it is damaged, which was said */
    if (later > job->first_step && !passed_over)
        mpp_note("%s holds step-%lld of an earlier run, which --resume %s would take", o->save, (long long)later, o->save);
    /* mpirun shows its processes a terminal of its own, where lines cannot be rewritten */
    bool rewrite = job->local_ranks == r->n_ranks;
    return mpp_progress_open(o->metrics, job->resume != NULL, rewrite, job->first_step, o->steps, &local->progress,
                             error);
}

static void run(struct mpp_rank *r)
{
    struct mpp_local *local = local_of(r);
    const struct mpp_job *job = local->job;
    struct mpp_error error = {0};
    int64_t last = job->options->steps;
    int code = MPP_EXIT_OK;
    mpp_agree(r, job->prepare_code, &job->prepare_error);
    mpp_start_agree(r);
    make_arena(r);
    begin_output(r);
    if (r->rank == 0)
        announce(r);
    end_output(r);
    mpp_passes_set_up(r);
    make_parameters(r);
    if (job->options->dump_grads != NULL && last <= job->first_step)
        last = job->first_step + 1;
    code = mpp_feed_start(r, job->data, job->first_step, last, &local->feed, &error);
    if (code == MPP_EXIT_OK && last > job->first_step) /* bad data show before anything is written */
        code = mpp_feed_wait(local->feed, job->first_step, &error);
    mpp_agree(r, code, &error);
    begin_output(r);
    if (r->rank == 0) {
        if (job->first_step > 0)
            printf("continuing from step %lld%s\n", (long long)job->first_step,
                   job->first_step >= job->options->steps ? ": nothing is left to do" : "");
        code = open_outputs(r, &error);
    }
    end_output(r);
    mpp_agree(r, code, &error);
    train(r);
    begin_output(r);
    if (r->rank == 0) {
        mpp_progress_close(local->progress);
        local->progress = NULL;
    }
    end_output(r);
    if (r->trace != NULL)
        mpp_agree(r, mpp_trace_write(r, job->options->profile, &error), &error);
    char device[256];
    bool more = mpp_device_conclude(r, device, sizeof device);
    begin_output(r);
    if (r->rank == 0)
        conclude(r);
    if (r->rank == 0 && more)
        printf("%s\n", device);
    end_output(r);
    mpp_device_synchronize(r);
    r->transport->ops->barrier(r, MPP_WORLD); /* nobody lets go of a device that others' last sums still read */
}

void mpp_trainer_rank(struct mpp_rank *r)
{
    struct mpp_local *local = local_of(r);
    if (setjmp(local->leave) == 0)
        run(r);
    if (r->transport->ops->drain != NULL)
        r->transport->ops->drain(r);
}

void mpp_trainer_clean(struct mpp_rank *r)
{
    struct mpp_local *local = local_of(r);
    mpp_feed_stop(local->feed);
    mpp_feed_stop(local->other_feed);
    mpp_progress_close(local->progress);
    mpp_checkpoint_discard(r);
    if (local->save_lock > 0)
        close(local->save_lock);
    free(local->kept_state);
    local->kept_state = NULL;
    local->feed = local->other_feed = NULL;
    local->progress = NULL;
    local->save_lock = 0;
    mpp_trace_free(r);
    mpp_passes_free(r);
    mpp_device_close(r);
}
