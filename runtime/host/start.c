/* start.c - finding the checkpoint to go on from, and the data. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* FOUND is what to go on from; tell how this run differs. */
static void tell_differences(const struct mpp_job *job, const struct mpp_checkpoint *found, bool speaks)
{
    char note[1200];
    struct mpp_checkpoint *now = calloc(1, sizeof *now);
    if (now == NULL)
        return;
    mpp_state_describe(job->program, job->options, now);
    mpp_state_compare(found, now, note, sizeof note);
    say(speaks, note);
    free(now);
}

static int find_start(struct mpp_job *job, bool speaks, struct mpp_error *error)
{
    const struct mpp_options *o = job->options;
    bool none;
    struct mpp_checkpoint *found = calloc(1, sizeof *found);
    if (found == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    job->resume = found;
    int code = mpp_checkpoint_find(o->resume, found, &none, error);
    if (code != MPP_EXIT_OK && none && o->save != NULL && strcmp(o->save, o->resume) == 0) {
        struct mpp_error text; /* one command line starts a run and goes on with it */
        (void)mpp_error_set(&text, 0, "%s holds no checkpoint yet: training starts from the beginning", o->save);
        say(speaks, text.text);
        mpp_start_clean(job);
        return MPP_EXIT_OK;
    }
    if (code != MPP_EXIT_OK)
        return code;
    if (o->seed_given && o->seed != found->seed)
        return mpp_error_set(error, MPP_EXIT_INPUT, "%s was trained with seed %llu; --seed %llu would not continue it",
                             found->path, (unsigned long long)found->seed, (unsigned long long)o->seed);
    say(speaks, found->note);
    tell_differences(job, found, speaks);
    int64_t batch = found->batch > 0 ? found->batch : job->program->batch;
    job->first_step = found->step;
    job->first_sample = found->samples >= 0 ? found->samples : found->step * batch;
    job->seed = found->seed;
    return MPP_EXIT_OK;
}

int mpp_start_prepare(struct mpp_job *job, bool speaks, struct mpp_error *error)
{
    job->seed = job->options->seed;
    int code = job->options->resume != NULL ? find_start(job, speaks, error) : MPP_EXIT_OK;
    if (code == MPP_EXIT_OK)
        code = mpp_data_open(job->options->data, job->program, job->seed, &job->data, error);
    if (code == MPP_EXIT_OK)
        mpp_data_continue(job->data, job->first_step, job->first_sample);
    return code;
}

void mpp_start_clean(struct mpp_job *job)
{
    mpp_data_close(job->data);
    free(job->resume);
    job->data = NULL;
    job->resume = NULL;
}

void mpp_start_agree(struct mpp_rank *r)
{
    const struct mpp_job *job = ((const struct mpp_local *)r->impl)->job;
    int64_t here = job->first_step, first = here;
    struct mpp_error error = {0};
    int code = MPP_EXIT_OK;
    if (job->options->resume == NULL || job->local_ranks == r->n_ranks)
        return;
    for (int to = 1; r->rank == 0 && to < r->n_ranks; to++)
        r->transport->ops->send(r, to, &here, sizeof here);
    if (r->rank != 0)
        r->transport->ops->receive(r, 0, &first, sizeof first);
    if (here != first)
        code = mpp_error_set(&error, MPP_EXIT_INPUT, "%s: rank 0 would go on from step %lld, rank %d from step %lld; name a "
                             "step's folder", job->options->resume, (long long)first, r->rank, (long long)here);
    mpp_agree(r, code, &error);
}
