/* alike.c - hashes of what the processes of a job must have in common. */
#include <stddef.h>
#include <string.h>

#include "alike.h"
#include "data.h"
#include "mpp_rt.h"
#include "options.h"

enum part { PART_PLAN, PART_STEPS, PART_SEED, PART_LR, PART_LOSS_SCALE, PART_DATA, PART_EVAL, PART_EVAL_EVERY, PART_INIT, PART_SAVE,
            PART_RESUME, PART_OUTPUTS, PART_DATA_SIZE, PART_EVAL_SIZE };
_Static_assert(PART_EVAL_SIZE + 1 == MPP_ALIKE_PARTS, "a mark for each part");

static const char *const names[MPP_ALIKE_PARTS] = {
    [PART_STEPS] = "--steps", [PART_SEED] = "--seed", [PART_LR] = "--lr", [PART_LOSS_SCALE] = "--loss-scale", [PART_DATA] = "--data",
    [PART_EVAL] = "--eval", [PART_EVAL_EVERY] = "--eval-every or --eval-steps", [PART_INIT] = "--init", [PART_SAVE] = "--save",
    [PART_RESUME] = "--resume", [PART_OUTPUTS] = "--profile or --dump-grads", [PART_DATA_SIZE] = "--data", [PART_EVAL_SIZE] = "--eval",
};

/* ---- FNV-1a ---------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash;
}

static uint64_t mix_int(uint64_t hash, int64_t x)
{
    return mix(hash, &x, sizeof x);
}

static uint64_t mix_real(uint64_t hash, double x)
{
    return mix(hash, &x, sizeof x);
}

static uint64_t mix_text(uint64_t hash, const char *text)
{
    return text == NULL ? mix_int(hash, 0) : mix(hash, text, strlen(text) + 1);
}

static uint64_t begun(void)
{
    return 0xcbf29ce484222325u;
}

/* 0 stands for what is not known. */
static uint64_t known(uint64_t hash)
{
    return hash != 0 ? hash : 1;
}

/* ---- the plan ------------------------------------------------------------------------------------------------ */

static uint64_t mix_tensor(uint64_t hash, const struct mpp_tensor *t)
{
    hash = mix_text(hash, t->name);
    hash = mix_int(mix_int(hash, (int64_t)t->kind), (int64_t)t->type);
    hash = mix_int(mix_int(hash, t->first), t->count);
    hash = mix_int(mix_int(mix_int(hash, t->offset), t->stride), t->slot_stride);
    for (int d = 0; d < t->n_dims; d++)
        hash = mix_int(mix_int(hash, t->dims[d]), t->split[d]);
    hash = mix_int(hash, (int64_t)t->init);
    return mix_real(mix_real(hash, t->init_a), t->init_b);
}

static uint64_t mix_stage(uint64_t hash, const struct mpp_stage *s)
{
    hash = mix_int(mix_int(hash, s->first_rank), s->arena_bytes);
    for (int a = 0; a < s->n_axes; a++)
        hash = mix_int(hash, s->axis_size[a]);
    hash = mix_int(mix_int(hash, s->workspace_offset), s->workspace_bytes);
    hash = mix_int(mix_int(hash, s->loss_offset), s->grad_norm_offset);
    for (int i = 0; i < s->n_tensors; i++)
        hash = mix_tensor(hash, &s->tensors[i]);
    for (int c = 0; c < s->n_chunks; c++)
        hash = mix_int(hash, s->chunks[c].slots);
    hash = mix_real(mix_real(mix_real(hash, s->forward_s), s->backward_s), s->once_s);
    for (int i = 0; i < s->n_forecasts; i++) {
        const struct mpp_forecast *f = &s->forecasts[i];
        hash = mix_int(mix_int(mix_text(hash, f->kind), f->mask), f->count);
    }
    return hash;
}

static uint64_t mix_transfer(uint64_t hash, const struct mpp_transfer *t)
{
    hash = mix_text(hash, t->name);
    hash = mix_int(mix_int(mix_int(hash, t->from), t->to), (int64_t)t->type);
    for (int d = 0; d < t->n_dims; d++)
        hash = mix_int(mix_int(mix_int(hash, t->dims[d]), t->from_split[d]), t->to_split[d]);
    return mix_int(hash, t->depth);
}

static uint64_t mark_of_plan(const struct mpp_program *p)
{
    uint64_t hash = mix_text(mix_text(begun(), p->model), p->pipeline);
    hash = mix_int(mix_int(hash, p->batch), p->micro_batches);
    hash = mix_real(mix_real(mix_real(hash, p->hyper.beta1), p->hyper.beta2), p->hyper.epsilon);
    hash = mix_real(mix_real(hash, p->hyper.momentum), p->hyper.clip_norm);
    hash = mix_int(mix_int(mix_int(hash, (int64_t)p->schedule), p->warmup_steps), p->total_steps);
    hash = mix_int(mix_text(hash, p->built), p->save_every);
    for (int s = 0; s < p->n_stages; s++)
        hash = mix_stage(hash, p->stages[s]);
    for (int i = 0; i < p->n_transfers; i++)
        hash = mix_transfer(hash, &p->transfers[i]);
    return known(hash);
}

/* ---- all of it ------------------------------------------------------------------------------------------------- */

void mpp_alike_mark(const struct mpp_job *job, uint64_t *mark_out)
{
    const struct mpp_options *o = job->options;
    memset(mark_out, 0, MPP_ALIKE_PARTS * sizeof *mark_out);
    mark_out[PART_PLAN] = mark_of_plan(job->program);
    if (job->prepare_code != MPP_EXIT_OK) /* which the ranks are told of next */
        return;
    mark_out[PART_STEPS] = known(mix_int(begun(), o->steps));
    mark_out[PART_SEED] = known(mix_int(begun(), (int64_t)o->seed));
    mark_out[PART_LR] = known(mix_real(begun(), o->lr));
    mark_out[PART_LOSS_SCALE] = known(mix_real(begun(), o->loss_scale));
    mark_out[PART_DATA] = known(mix_text(begun(), o->data));
    mark_out[PART_EVAL] = known(mix_text(begun(), o->eval));
    mark_out[PART_EVAL_EVERY] = known(mix_int(mix_int(begun(), o->eval_every), o->eval_steps));
    mark_out[PART_INIT] = known(mix_text(begun(), o->init));
    mark_out[PART_SAVE] = known(mix_text(begun(), o->save));
    mark_out[PART_RESUME] = known(mix_text(begun(), o->resume));
    mark_out[PART_OUTPUTS] = known(mix_int(mix_int(begun(), o->profile != NULL), o->dump_grads != NULL));
    if (o->resume == NULL || o->data != NULL) /* else the checkpoint names the data, and all are yet to agree on one */
        mark_out[PART_DATA_SIZE] = known(mix_int(begun(), mpp_data_size(job->data)));
    if (job->eval_data != NULL)
        mark_out[PART_EVAL_SIZE] = known(mix_int(begun(), mpp_data_size(job->eval_data)));
}

int mpp_alike_compare(const uint64_t *mark, const uint64_t *first)
{
    for (int i = 0; i < MPP_ALIKE_PARTS; i++)
        if (mark[i] != 0 && first[i] != 0 && mark[i] != first[i])
            return i;
    return -1;
}

int mpp_alike_refuse(int part, int rank, const char *host, struct mpp_error *error)
{
    if (part == PART_PLAN)
        return mpp_error_set(error, MPP_EXIT_INPUT, "rank %d on %s runs another plan than rank 0; copy the plan's folder there and "
                             "build it again", rank, host);
    if (part == PART_DATA_SIZE || part == PART_EVAL_SIZE)
        return mpp_error_set(error, MPP_EXIT_INPUT, "rank %d on %s finds more or less in the files of %s than rank 0; copy them there",
                             rank, host, names[part]);
    return mpp_error_set(error, MPP_EXIT_INPUT, "rank %d on %s was started with another %s than rank 0; give all ranks the same", rank,
                         host, names[part]);
}
