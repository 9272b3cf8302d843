/* start.c - finding the checkpoint to go on from, and the data. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint.h"
#include "data.h"
#include "mpp_rt.h"
#include "options.h"
#include "start.h"
#include "state.h"
#include "transport.h"

static void say(bool speaks, const char *note)
{
    if (speaks && note[0] != '\0')
        mpp_note("%s", note);
}

/* What --data says, else what the run to go on with read, else what the model names; NULL: none of them. */
static const char *source_of(const struct mpp_job *job, const struct mpp_checkpoint *found)
{
    if (job->options->data != NULL)
        return job->options->data;
    return found != NULL && found->data[0] != '\0' ? found->data : job->program->data;
}

/* FOUND is what to go on from; tell how this run differs. */
static void tell_differences(const struct mpp_job *job, const struct mpp_checkpoint *found, bool speaks)
{
    char note[1200];
    struct mpp_checkpoint *now = calloc(1, sizeof *now);
    if (now == NULL)
        return;
    mpp_state_describe(job->program, job->options, source_of(job, found), now);
    mpp_state_compare(found, now, note, sizeof note);
    say(speaks, note);
    free(now);
}

/* Opens the data that the run reads, where it is not open yet with SEED. */
static int open_data(struct mpp_job *job, uint64_t seed, struct mpp_error *error)
{
    char choices[96];
    const char *source = source_of(job, job->resume);
    if (source == NULL) {
        mpp_data_choices(job->program, choices, sizeof choices);
        return mpp_error_set(error, MPP_EXIT_INPUT, "the model names no data; give --data %s", choices);
    }
    if (job->data != NULL && strcmp(source, job->data_source) == 0 && seed == job->seed)
        return MPP_EXIT_OK;
    mpp_data_close(job->data);
    free(job->data_source);
    job->data = NULL;
    job->data_source = strdup(source);
    if (job->data_source == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    return mpp_data_open(job->data_source, job->program, job->seed, &job->data, error);
}

/* The run begins where FOUND ends, which the job then owns; NULL: at step 0. */
static int adopt(struct mpp_job *job, struct mpp_checkpoint *found, struct mpp_error *error)
{
    uint64_t seed = job->seed;
    free(job->resume);
    job->resume = found;
    job->first_step = job->first_sample = 0;
    if (found != NULL) {
        int64_t batch = found->batch > 0 ? found->batch : job->program->batch;
        job->first_step = found->step;
        job->first_sample = found->samples >= 0 ? found->samples : found->step * batch;
        job->seed = found->seed;
    }
    int code = open_data(job, seed, error);
    if (code == MPP_EXIT_OK)
        mpp_data_continue(job->data, job->first_step, job->first_sample);
    return code;
}

/* Looks for what --resume means. *FOUND_OUT is the caller's, or NULL: --save and --resume are one folder, which holds no
 * step yet, so that one command line starts a run and goes on with it. */
static int look(const struct mpp_options *o, struct mpp_checkpoint **found_out, struct mpp_error *error)
{
    bool none;
    *found_out = NULL;
    struct mpp_checkpoint *found = calloc(1, sizeof *found);
    if (found == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    int code = mpp_checkpoint_find(o->resume, found, &none, error);
    if (code == MPP_EXIT_OK && o->seed_given && o->seed != found->seed)
        code = mpp_error_set(error, MPP_EXIT_INPUT, "%s was trained with seed %llu; --seed %llu would not continue it",
                             found->path, (unsigned long long)found->seed, (unsigned long long)o->seed);
    else if (code == MPP_EXIT_OK)
        *found_out = found;
    else if (none && o->save != NULL && strcmp(o->save, o->resume) == 0)
        code = MPP_EXIT_OK;
    if (*found_out == NULL)
        free(found);
    return code;
}

static int find_start(struct mpp_job *job, bool speaks, struct mpp_error *error)
{
    struct mpp_checkpoint *found;
    int code = look(job->options, &found, error);
    if (code != MPP_EXIT_OK)
        return code;
    if (found == NULL && speaks)
        mpp_note("%s holds no checkpoint yet: training starts from the beginning", job->options->save);
    if (found != NULL) {
        say(speaks, found->note);
        tell_differences(job, found, speaks);
        const char *source = source_of(job, found);
        if (speaks && source == found->data && (job->program->data == NULL || strcmp(source, job->program->data) != 0))
            mpp_note("without --data this run goes on with the checkpoint's, %s", source);
    }
    return adopt(job, found, error);
}

int mpp_start_prepare(struct mpp_job *job, bool speaks, struct mpp_error *error)
{
    job->seed = job->options->seed;
    int code = job->options->resume != NULL ? find_start(job, speaks, error) : adopt(job, NULL, error);
    if (code == MPP_EXIT_OK && job->options->eval != NULL) /* whatever the seed of the run: the same samples */
        code = mpp_data_open(job->options->eval, job->program, 0, &job->eval_data, error);
    if (code != MPP_EXIT_OK && job->options->eval != NULL && job->data != NULL && strncmp(error->text, "--data ", 7) == 0)
        memcpy(error->text, "--eval", 6); /* the option that names this source */
    return code;
}

void mpp_start_clean(struct mpp_job *job)
{
    mpp_data_close(job->data);
    mpp_data_close(job->eval_data);
    free(job->data_source);
    free(job->resume);
    job->data_source = NULL;
    job->data = job->eval_data = NULL;
    job->resume = NULL;
}

/* Rank 0: with the folder locked, look again. A trainer that was killed a moment ago may have saved meanwhile. */
static int look_again(struct mpp_rank *r, struct mpp_error *error)
{
    struct mpp_local *local = r->impl;
    struct mpp_job *job = local->job;
    const struct mpp_options *o = job->options;
    struct stat st;
    struct mpp_checkpoint *found;
    int code = MPP_EXIT_OK;
    if (o->save != NULL && stat(o->save, &st) == 0 && S_ISDIR(st.st_mode))
        code = mpp_checkpoint_claim(o->save, &local->save_lock, error);
    if (code == MPP_EXIT_OK)
        code = look(o, &found, error);
    if (code != MPP_EXIT_OK)
        return code;
    if (found != NULL && found->seed != job->seed) {
        code = mpp_error_set(error, MPP_EXIT_INPUT, "%s: another run began here just now", found->path);
        free(found);
        return code;
    }
    return adopt(job, found, error);
}

/* A process of its own: begin where rank 0 does. START is for what it tells. */
static int follow(struct mpp_rank *r, struct mpp_checkpoint *start, struct mpp_error *error)
{
    static const struct mpp_checkpoint none = {.step = -1};
    struct mpp_job *job = ((struct mpp_local *)r->impl)->job;
    const struct mpp_checkpoint *told = job->resume != NULL ? job->resume : &none;
    for (int to = 1; r->rank == 0 && to < r->n_ranks; to++)
        r->transport->ops->send(r, to, told, sizeof *told);
    if (r->rank == 0)
        return MPP_EXIT_OK;
    r->transport->ops->receive(r, 0, start, sizeof *start);
    if (start->step < 0) {
        free(start);
        start = NULL;
    }
    return adopt(job, start, error);
}

void mpp_start_agree(struct mpp_rank *r)
{
    struct mpp_job *job = ((struct mpp_local *)r->impl)->job;
    struct mpp_error error = {0};
    struct mpp_checkpoint *start = NULL;
    int code = MPP_EXIT_OK;
    if (job->options->resume == NULL)
        return;
    if (r->rank == 0)
        code = look_again(r, &error);
    else if (job->local_ranks < r->n_ranks && (start = calloc(1, sizeof *start)) == NULL)
        code = mpp_error_set(&error, MPP_EXIT_SYSTEM, "out of memory");
    int worst = mpp_agreement(r, code, &error);
    if (worst != MPP_EXIT_OK) {
        free(start);
        mpp_leave(r, worst);
    }
    if (job->local_ranks < r->n_ranks)
        mpp_agree(r, follow(r, start, &error), &error);
}
