/* evaluate.c - forward passes of batches of their own. */
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "evaluate.h"
#include "feed.h"
#include "job.h"
#include "options.h"
#include "passes.h"
#include "tensors.h"

static struct mpp_local *local_of(const struct mpp_rank *r)
{
    return r->impl;
}

/* ---- keeping tensors ------------------------------------------------------------------------------------ */

static bool has_gradient(const struct mpp_stage *stage, const struct mpp_tensor *parameter)
{
    for (int i = 0; i < stage->n_tensors; i++) {
        const struct mpp_tensor *t = &stage->tensors[i];
        if (t->kind == MPP_KIND_GRADIENT && t->first == parameter->first && t->count == parameter->count &&
            strcmp(t->name, parameter->name) == 0)
            return true;
    }
    return false;
}

static bool is_kept(const struct mpp_stage *stage, const struct mpp_tensor *t, enum mpp_keep which)
{
    if (which == MPP_KEEP_UNTRAINED)
        return t->kind == MPP_KIND_PARAMETER && !has_gradient(stage, t);
    return t->kind == MPP_KIND_PARAMETER || t->kind == MPP_KIND_OPTIMIZER;
}

/* Of rounded parameters the masters are kept: forward passes do not change the rounded ones. */
static int64_t tensor_bytes(const struct mpp_rank *r, const struct mpp_tensor *t)
{
    return 4 * mpp_block_of(r, t).padded_count;
}

static int instances(const struct mpp_tensor *t)
{
    return t->count > 0 ? t->count : 1;
}

int mpp_keep_tensors(struct mpp_rank *r, enum mpp_keep which, char **buffer_out, struct mpp_error *error)
{
    int64_t total = 0;
    for (int i = 0; i < r->stage->n_tensors; i++)
        if (is_kept(r->stage, &r->stage->tensors[i], which))
            total += instances(&r->stage->tensors[i]) * tensor_bytes(r, &r->stage->tensors[i]);
    char *at = malloc((size_t)total + 1);
    *buffer_out = at;
    if (at == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory for a copy of %lld bytes of weights", (long long)total);
    for (int i = 0; i < r->stage->n_tensors; i++) {
        const struct mpp_tensor *t = &r->stage->tensors[i];
        int64_t bytes = tensor_bytes(r, t);
        for (int k = 0; is_kept(r->stage, t, which) && k < instances(t); k++, at += bytes)
            mpp_device_get(r, at, r->arena + t->offset + k * t->stride, (size_t)bytes);
    }
    return MPP_EXIT_OK;
}

void mpp_keep_restore(struct mpp_rank *r, enum mpp_keep which, const char *buffer)
{
    for (int i = 0; i < r->stage->n_tensors; i++) {
        const struct mpp_tensor *t = &r->stage->tensors[i];
        int64_t bytes = tensor_bytes(r, t);
        for (int k = 0; is_kept(r->stage, t, which) && k < instances(t); k++, buffer += bytes)
            mpp_device_put(r, r->arena + t->offset + k * t->stride, buffer, (size_t)bytes);
    }
}

/* ---- evaluation ------------------------------------------------------------------------------------------- */

/* One batch; its loss on the ranks of the stage that has it. */
static double evaluate_batch(struct mpp_rank *r, int64_t index)
{
    struct mpp_error error = {0};
    float loss = 0;
    mpp_agree(r, mpp_feed_wait(local_of(r)->feed, index, &error), &error);
    r->step = index + 1; /* which of the feed's buffers */
    mpp_passes_run(r);
    mpp_feed_release(local_of(r)->feed);
    if (r->stage->loss_offset < 0)
        return 0;
    mpp_device_get(r, &loss, r->arena + r->stage->loss_term_offset, sizeof loss);
    if (mpp_mesh_group_size(r, r->stage->loss_axes) > 1)
        r->transport->ops->all_reduce(r, r->stage->loss_axes, &loss, 1, false);
    return (double)loss;
}

/* Rank 0 has LOSS from the stage that has the loss. */
static double bring(struct mpp_rank *r, double loss)
{
    const struct mpp_program *p = r->program;
    int from = 0;
    for (int s = 0; s < p->n_stages; s++)
        if (p->stages[s]->loss_offset >= 0)
            from = p->stages[s]->first_rank;
    if (from > 0 && r->rank == from)
        r->transport->ops->send(r, 0, &loss, sizeof loss);
    if (from > 0 && r->rank == 0)
        r->transport->ops->receive(r, from, &loss, sizeof loss);
    return loss;
}

double mpp_evaluate(struct mpp_rank *r)
{
    struct mpp_local *local = local_of(r);
    const struct mpp_job *job = local->job;
    struct mpp_error error = {0};
    struct mpp_feed *feed = NULL;
    int64_t step = r->step;
    double sum = 0;
    int code = mpp_keep_tensors(r, MPP_KEEP_UNTRAINED, &local->kept_state, &error);
    if (code == MPP_EXIT_OK)
        code = mpp_feed_start(r, job->eval_data, 0, job->options->eval_steps, &feed, &error);
    local->other_feed = local->feed; /* where all leave, both are stopped with the rank */
    local->feed = feed;
    mpp_agree(r, code, &error);
    r->training = false;
    for (int64_t i = 0; i < job->options->eval_steps; i++)
        sum += evaluate_batch(r, i);
    r->training = true;
    r->step = step;
    local->feed = local->other_feed;
    local->other_feed = NULL;
    mpp_feed_stop(feed);
    mpp_keep_restore(r, MPP_KEEP_UNTRAINED, local->kept_state);
    free(local->kept_state);
    local->kept_state = NULL;
    return bring(r, sum / (double)job->options->eval_steps);
}
