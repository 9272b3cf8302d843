/* trainer.c - the loop. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "checkpoint.h"
#include "feed.h"
#include "init.h"
#include "options.h"
#include "progress.h"
#include "signals.h"
#include "start.h"
#include "state.h"
#include "tensors.h"
#include "threads.h"
#include "trainer.h"
#include "transport.h"

static struct mpp_local *local_of(const struct mpp_rank *r)
{
    return r->impl;
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

static double scalar_at(const struct mpp_rank *r, int64_t offset)
{
    float x;
    memcpy(&x, r->arena + offset, sizeof x);
    return (double)x;
}

/* ---- setting up ---------------------------------------------------------------------------------------- */

static void make_arena(struct mpp_rank *r)
{
    const struct mpp_program *p = r->program;
    struct mpp_error error = {0};
    void *arena = NULL;
    int code = MPP_EXIT_OK;
    if (posix_memalign(&arena, 64, (size_t)(p->arena_bytes > 0 ? p->arena_bytes : 64)) != 0)
        code = mpp_error_set(&error, MPP_EXIT_SYSTEM, "rank %d: out of memory: an arena of %lld bytes", r->rank,
                             (long long)p->arena_bytes);
    else
        memset(arena, 0, (size_t)p->arena_bytes); /* first touched by the rank's own thread */
    r->arena = arena;
    r->plan = calloc(1, p->plan_state_bytes + 1);
    if (code == MPP_EXIT_OK && r->plan == NULL)
        code = mpp_error_set(&error, MPP_EXIT_SYSTEM, "rank %d: out of memory", r->rank);
    mpp_agree(r, code, &error);
    r->workspace = r->arena + p->workspace_offset;
    if (!mpp_threads_begin(r, (int)local_of(r)->job->options->threads, local_of(r)->job->local_ranks))
        code = mpp_error_set(&error, MPP_EXIT_SYSTEM, "rank %d: out of memory, or no more threads", r->rank);
    mpp_agree(r, code, &error);
}

/* --loss-scale replaces the plan's, or the checkpoint's. */
static void set_loss_scale(struct mpp_rank *r)
{
    float scale = (float)local_of(r)->job->options->loss_scale;
    if (scale > 0.0f)
        memcpy(r->arena + r->program->loss_scale_offset, &scale, sizeof scale);
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

static void announce(const struct mpp_rank *r)
{
    const struct mpp_program *p = r->program;
    char arena[32], mesh[96] = "";
    for (int a = 0; a < p->n_axes && r->n_ranks > 1; a++) {
        size_t at = strlen(mesh);
        snprintf(mesh + at, sizeof mesh - at, "%s%s%d", a == 0 ? " = " : " x ",
                 p->axis_name[a] != NULL ? p->axis_name[a] : "", p->axis_size[a]);
    }
    mpp_bytes_print(p->arena_bytes, arena, sizeof arena);
    printf("%s: %d device%s%s over %s, arena %lld bytes (%s) and %d thread%s each, batch %lld in %d micro-batch%s\n",
           p->model, r->n_ranks, r->n_ranks == 1 ? "" : "s", mesh, r->transport->ops->name, (long long)p->arena_bytes,
           arena, r->n_threads, r->n_threads == 1 ? "" : "s", (long long)p->batch, p->micro_batches,
           p->micro_batches == 1 ? "" : "es");
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
    r->transport->ops->all_reduce(r, (1u << r->n_axes) - 1, told, 2, true);
    if (told[1] <= ASKED_SAVE && told[0] > 0)
        mpp_agree(r, code, &error); /* several ranks may meet the same bad sample: one speaks */
    return (int)told[1];
}

static void set_step(struct mpp_rank *r, int64_t step)
{
    const struct mpp_job *job = local_of(r)->job;
    r->step = step;
    r->hyper.lr = mpp_trainer_lr(r->program, job->options->lr, job->options->steps, step);
}

/* Prologue, then forward and backward, of all micro-batches. */
static void run_passes(struct mpp_rank *r)
{
    const struct mpp_program *p = r->program;
    const struct mpp_feed *feed = local_of(r)->feed;
    for (int m = 0; p->prologue != NULL && m < r->micro_batches; m++) {
        r->micro_batch = m;
        mpp_feed_place(feed, r, m);
        p->prologue(r);
    }
    for (int m = 0; m < r->micro_batches; m++) {
        r->micro_batch = m;
        if (p->prologue == NULL || r->micro_batches > 1)
            mpp_feed_place(feed, r, m);
        p->forward_backward(r);
    }
}

/* Copy all parameters and optimiser state to a buffer, or back. */
static int keep_state(struct mpp_rank *r, char **buffer, bool back, struct mpp_error *error)
{
    char *at = NULL;
    int64_t total = 0;
    for (int pass = 0; pass < 2; pass++) { /* first their size */
        for (int i = 0; i < r->program->n_tensors; i++) {
            const struct mpp_tensor *t = &r->program->tensors[i];
            if (t->kind != MPP_KIND_PARAMETER && t->kind != MPP_KIND_OPTIMIZER)
                continue;
            int64_t bytes = 4 * mpp_block_of(r, t).padded_count; /* masters: the rounded ones stay as they are */
            for (int k = 0; k < (t->count > 0 ? t->count : 1); k++) {
                char *tensor = r->arena + t->offset + k * t->stride;
                total += bytes;
                if (pass == 0)
                    continue;
                memcpy(back ? tensor : at, back ? at : tensor, (size_t)bytes);
                at += bytes;
            }
        }
        if (pass == 0 && !back)
            *buffer = malloc((size_t)total + 1);
        if (*buffer == NULL)
            return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory: --dump-grads keeps the weights twice");
        at = *buffer;
    }
    return MPP_EXIT_OK;
}

/* Gradients were made of a loss times a scale. */
static void divide_gradients(struct mpp_rank *r, double scale)
{
    for (int i = 0; i < r->program->n_tensors; i++) {
        const struct mpp_tensor *t = &r->program->tensors[i];
        int64_t n = mpp_block_of(r, t).padded_count;
        for (int k = 0; t->kind == MPP_KIND_GRADIENT && k < (t->count > 0 ? t->count : 1); k++) {
            float *x = (float *)(void *)(r->arena + t->offset + k * t->stride);
            for (int64_t j = 0; j < n; j++)
                x[j] = (float)((double)x[j] / scale);
        }
    }
}

/* The gradients of the step to come, without taking it. */
static void dump_gradients(struct mpp_rank *r, int64_t step)
{
    const struct mpp_job *job = local_of(r)->job;
    struct mpp_error error = {0};
    if (r->program->reduce_gradients == NULL) {
        (void)mpp_error_set(&error, MPP_EXIT_INPUT, "--dump-grads: this plan keeps no gradients");
        mpp_agree(r, MPP_EXIT_INPUT, &error);
    }
    (void)begin_step(r, step);
    set_step(r, step);
    char **state = &local_of(r)->kept_state; /* running statistics are parameters, and forward changes them */
    mpp_agree(r, keep_state(r, state, false, &error), &error);
    run_passes(r);
    r->program->reduce_gradients(r);
    if (r->program->scales_loss)
        divide_gradients(r, scalar_at(r, r->program->loss_scale_offset));
    mpp_checkpoint_write(r, MPP_KIND_GRADIENT, job->options->dump_grads);
    mpp_agree(r, keep_state(r, state, true, &error), &error);
    free(*state);
    *state = NULL;
}

static void report_step(struct mpp_rank *r, double begun_s, double loss_scale)
{
    const struct mpp_program *p = r->program;
    struct mpp_error error;
    double step_s = mpp_clock_s() - begun_s;
    struct mpp_step_report report = {
        .step = r->step,
        .loss = scalar_at(r, p->loss_offset),
        .grad_norm = p->grad_norm_offset >= 0 ? scalar_at(r, p->grad_norm_offset) : (double)NAN,
        .lr = r->hyper.lr,
        .loss_scale = loss_scale,
        .skipped = r->skipped,
        .step_s = step_s,
        .tokens = p->tokens_per_sample > 1,
        .tokens_per_s = (double)(p->batch * (p->tokens_per_sample > 0 ? p->tokens_per_sample : 1)) / step_s,
    };
    int code = mpp_progress_step(local_of(r)->progress, &report, &error);
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

static void tell_saved(const struct mpp_rank *r)
{
    if (r->rank == 0)
        mpp_progress_saved(local_of(r)->progress, local_of(r)->job->options->save, r->step);
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
    if (r->rank == 0)
        mpp_progress_say(local->progress, "%s %s after step %lld%s", asked > ASKED_SAVE ? "stopped by" : "asked by",
                         asked > ASKED_SAVE ? mpp_signals_name(asked - ASKED_SAVE) : "SIGUSR1", (long long)r->step, where);
}

static void train(struct mpp_rank *r)
{
    const struct mpp_job *job = local_of(r)->job;
    const struct mpp_options *o = job->options;
    int64_t saved = -1, every = r->program->save_every;
    if (o->dump_grads != NULL)
        dump_gradients(r, job->first_step + 1);
    r->step = job->first_step;
    if (job->signals != NULL)
        mpp_signals_begin(job->signals);
    for (int64_t step = job->first_step + 1; step <= o->steps; step++) {
        double begun_s = mpp_clock_s();
        int asked = begin_step(r, step);
        if (asked != 0) {
            answer(r, asked, saved == r->step);
            saved = r->step;
            if (asked > ASKED_SAVE)
                return;
            begun_s = mpp_clock_s();
        }
        set_step(r, step);
        run_passes(r);
        mpp_feed_release(local_of(r)->feed);
        double loss_scale = r->program->scales_loss ? scalar_at(r, r->program->loss_scale_offset) : 0;
        r->program->update(r);
        if (r->rank == 0)
            report_step(r, begun_s, loss_scale);
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
    struct rusage usage;
    char peak[32], arena[32];
    getrusage(RUSAGE_SELF, &usage);
    mpp_bytes_print((int64_t)usage.ru_maxrss * 1024, peak, sizeof peak);
    mpp_bytes_print(r->program->arena_bytes, arena, sizeof arena);
    printf("peak resident memory of the process %s for %d device%s; arena %lld bytes (%s) each\n", peak,
           local_of(r)->job->local_ranks, local_of(r)->job->local_ranks == 1 ? "" : "s",
           (long long)r->program->arena_bytes, arena);
    fflush(stdout);
}

/* Rank 0: whatever is to be written can be, as far as one can tell before training. */
static int open_outputs(struct mpp_rank *r, struct mpp_error *error)
{
    struct mpp_local *local = local_of(r);
    const struct mpp_job *job = local->job;
    const struct mpp_options *o = job->options;
    int code = o->dump_grads != NULL ? mpp_checkpoint_check_file(o->dump_grads, error) : MPP_EXIT_OK;
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
    if (r->rank == 0)
        announce(r);
    r->program->setup(r);
    make_parameters(r);
    if (job->options->dump_grads != NULL && last <= job->first_step)
        last = job->first_step + 1;
    code = mpp_feed_start(r, job->data, job->first_step, last, &local->feed, &error);
    if (code == MPP_EXIT_OK && last > job->first_step) /* bad data show before anything is written */
        code = mpp_feed_wait(local->feed, job->first_step, &error);
    mpp_agree(r, code, &error);
    if (r->rank == 0) {
        if (job->first_step > 0)
            printf("continuing from step %lld%s\n", (long long)job->first_step,
                   job->first_step >= job->options->steps ? ": nothing is left to do" : "");
        code = open_outputs(r, &error);
    }
    mpp_agree(r, code, &error);
    train(r);
    if (r->rank == 0) {
        mpp_progress_close(local->progress);
        local->progress = NULL;
        conclude(r);
    }
}

void mpp_trainer_rank(struct mpp_rank *r)
{
    struct mpp_local *local = local_of(r);
    if (setjmp(local->leave) == 0)
        run(r);
}

void mpp_trainer_clean(struct mpp_rank *r)
{
    struct mpp_local *local = local_of(r);
    mpp_feed_stop(local->feed);
    mpp_progress_close(local->progress);
    mpp_checkpoint_discard(r);
    if (local->save_lock > 0)
        close(local->save_lock);
    free(local->kept_state);
    local->kept_state = NULL;
    local->feed = NULL;
    local->progress = NULL;
    local->save_lock = 0;
    mpp_threads_end(r);
    free(r->arena);
    free(r->plan);
    r->arena = NULL;
    r->plan = NULL;
}
