#include "ir/interp.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ir/op.h"
#include "ir/ref.h"

struct mpp_interp {
    struct mpp_graph *g;
    int64_t micro_batches;
    double **data;                /* [n_tensors] */
    int64_t *count;
    uint64_t seed;
    int64_t step;
    double lr;
};

struct mpp_interp *mpp_interp_new(struct mpp_graph *g, int64_t batch)
{
    struct mpp_interp *it = mpp_arena_array(g->arena, 1, struct mpp_interp);
    assert(batch > 0 && g->global_batch % batch == 0);
    it->g = g;
    it->step = 1;
    it->micro_batches = g->global_batch / batch;
    it->data = mpp_arena_array(g->arena, g->n_tensors, double *);
    it->count = mpp_arena_array(g->arena, g->n_tensors, int64_t);
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        if (g->tensors[t].role == MPP_ROLE_INPUT) {
            mpp_graph_set_batch(g, g->global_batch);
            it->count[t] = mpp_tensor_count(&g->tensors[t]);
        }
    }
    mpp_graph_set_batch(g, batch);
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        if (g->tensors[t].role != MPP_ROLE_INPUT)
            it->count[t] = mpp_tensor_count(&g->tensors[t]);
        it->data[t] = mpp_ref_scratch(it->count[t]);
    }
    return it;
}

void mpp_interp_free(struct mpp_interp *it)
{
    for (mpp_id t = 0; it && t < it->g->n_tensors; t++)
        free(it->data[t]);
}

double *mpp_interp_data(struct mpp_interp *it, mpp_id t)
{
    return it->data[t];
}

int64_t mpp_interp_count(const struct mpp_interp *it, mpp_id t)
{
    return it->count[t];
}

void mpp_interp_seed(struct mpp_interp *it, uint64_t seed, int64_t step)
{
    it->seed = seed;
    it->step = step;
}

/* Tensor T in micro-batch MICRO: a shard of the step's batch. */
static struct mpp_ref_tensor view(const struct mpp_interp *it, mpp_id t, int64_t micro)
{
    struct mpp_ref_tensor v = {0};
    if (t < 0)
        return v;
    const struct mpp_gtensor *g = &it->g->tensors[t];
    v.n_dims = g->n_dims;
    v.data = it->data[t];
    for (int d = 0; d < g->n_dims; d++) {
        int64_t per_batch = g->dims[d].per_batch;
        v.dims[d] = v.global[d] = g->dims[d].size;
        if (per_batch > 0) {
            v.global[d] = per_batch * it->g->global_batch;
            v.offset[d] = micro * v.dims[d];
        }
        if (g->role == MPP_ROLE_INPUT && per_batch > 0) {
            assert(d == 0);
            v.data += micro * mpp_tensor_count(g);
        }
    }
    return v;
}

/* Run op O; an accumulating output adds to what it holds. */
static void run_op(struct mpp_interp *it, mpp_id o, int64_t micro)
{
    const struct mpp_gop *op = &it->g->ops[o];
    struct mpp_ref_tensor *in = calloc((size_t)op->n_in + (size_t)op->n_out + 1, sizeof *in), *out = in + op->n_in;
    assert(in);
    for (int k = 0; k < op->n_in; k++)
        in[k] = view(it, op->in[k], micro);
    bool adds = op->n_out == 1 && it->g->tensors[op->out[0]].role == MPP_ROLE_ACCUM;
    for (int k = 0; k < op->n_out; k++) {
        out[k] = view(it, op->out[k], micro);
        if (adds)
            out[k].data = mpp_ref_scratch(it->count[op->out[k]]);
    }
    struct mpp_ref_in ref = {.op = op, .in = in, .out = out, .seed = it->seed, .lr = it->lr, .step = it->step};
    if (it->g->model) {
        const struct mpp_training *t = &it->g->model->training;
        ref.beta1 = t->beta1;
        ref.beta2 = t->beta2;
        ref.epsilon = t->epsilon;
        ref.momentum = t->momentum;
        ref.clip_norm = t->clip_norm;
        ref.nesterov = t->nesterov;
    }
    mpp_op_info(op->kind)->ref(&ref);
    if (adds) {
        double *sum = it->data[op->out[0]];
        for (int64_t i = 0; i < it->count[op->out[0]]; i++)
            sum[i] += out[0].data[i];
        free(out[0].data);
    }
    free(in);
}

void mpp_interp_run(struct mpp_interp *it, enum mpp_phase phase, int64_t micro)
{
    for (mpp_id o = 0; o < it->g->n_ops; o++)
        if (it->g->ops[o].phase == phase)
            run_op(it, o, micro);
}

static void zero_sums(struct mpp_interp *it, bool backward)
{
    for (mpp_id t = 0; t < it->g->n_tensors; t++)
        if (it->g->tensors[t].role == MPP_ROLE_ACCUM &&
            (backward || it->g->ops[it->g->tensors[t].op].phase != MPP_PHASE_BACKWARD))
            memset(it->data[t], 0, (size_t)it->count[t] * sizeof(double));
}

void mpp_interp_begin(struct mpp_interp *it)
{
    zero_sums(it, true);
}

static void run_micro_batches(struct mpp_interp *it, bool backward)
{
    zero_sums(it, backward);
    for (int64_t m = 0; m < it->micro_batches; m++)
        mpp_interp_run(it, MPP_PHASE_PROLOGUE, m);
    for (int64_t m = 0; m < it->micro_batches; m++) {
        mpp_interp_run(it, MPP_PHASE_FORWARD, m);
        if (backward)
            mpp_interp_run(it, MPP_PHASE_BACKWARD, m);
    }
}

double mpp_interp_loss(struct mpp_interp *it)
{
    run_micro_batches(it, false);
    return *it->data[it->g->loss_total >= 0 ? it->g->loss_total : it->g->loss];
}

void mpp_interp_gradients(struct mpp_interp *it)
{
    run_micro_batches(it, true);
}

void mpp_interp_step(struct mpp_interp *it, double lr)
{
    it->lr = lr;
    run_micro_batches(it, true);
    mpp_interp_run(it, MPP_PHASE_UPDATE, 0);
    for (mpp_id t = 0; t < it->g->n_tensors; t++) {
        mpp_id old = it->g->tensors[t].updates;
        if (old >= 0)
            memcpy(it->data[old], it->data[t], (size_t)it->count[t] * sizeof(double));
    }
    it->step++;
}
