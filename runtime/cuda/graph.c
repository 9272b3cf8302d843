/* graph.c - a step's passes as CUDA graphs, where MPP_GRAPHS=1 in the environment asks for them.
 *
 * A pass (forward or backward of a chunk and micro-batch, prologue, update) runs once as it is: it makes communicators, scratch
 * memory and choices of algorithms. The second time its kernels, copies and collectives are captured on the compute stream (the
 * communication stream joins and leaves by events) and launched as a graph, which later steps launch again. What goes from stage
 * to stage is in no graph, since a send must not hold up what the rank computes next: a pass is a tape of graphs and messages.
 *
 * What changes from step to step is outside, too: inputs are copied to their places before a pass, the loss is read after the
 * update, and what kernels are given of a step (its number for dropout, learning rate, the optimiser's factors) they read from the
 * device, where mpp_device_step puts it (struct mpp_step_values). The count of skipped steps and the scale of the loss are there
 * anyway. What changes within a step is in the key of a pass: gradients add up from the second micro-batch on.
 *
 * Evaluation and --profile, which waits at each event, run every pass as it is. Where kernels are measured (measure.cuh) there are
 * no graphs. */
#include <stdlib.h>
#include <string.h>

#include "core/device.h"
#include "core/fail.h"
#include "core/transport.h"
#include "cuda/cuda_internal.h"

_Static_assert(sizeof(struct mpp_step_factors) + sizeof(struct mpp_step_values) <= 64, "plans count too few bytes (MPP_SIZES_SMALL_BYTES)");

enum what { LAUNCH, SEND, RECEIVE };

struct item {
    enum what what;
    cudaGraphExec_t graph;
    uint64_t last; /* what in it takes other ranks (core/waits.h); 0: nothing does */
    int transfer;
    void *x;
};

struct tape {
    bool has_run, recorded;
    int n, room;
    struct item *items;
};

struct mpp_graphs {
    struct tape *open;  /* is being recorded; NULL: none */
    bool capturing;
    uint64_t before;    /* device.last, of before the capture */
    int n;
    struct tape *tapes; /* by number_of */
};

/* ---- tapes ------------------------------------------------------------------------------------------------------ */

static int number_of(const struct mpp_rank *r, enum mpp_pass pass)
{
    int chunks = r->stage->n_chunks, kinds = 2 * chunks;
    switch (pass) {
    case MPP_PASS_FORWARD: return r->chunk * r->micro_batches + r->micro_batch;
    case MPP_PASS_BACKWARD: return (chunks + r->chunk) * r->micro_batches + r->micro_batch;
    case MPP_PASS_PROLOGUE: return kinds * r->micro_batches + r->micro_batch;
    default: return (kinds + 1) * r->micro_batches;
    }
}

static void erase(struct tape *t)
{
    for (int i = 0; i < t->n; i++)
        if (t->items[i].what == LAUNCH)
            (void)cudaGraphExecDestroy(t->items[i].graph);
    free(t->items);
    t->items = NULL;
    t->n = t->room = 0;
    t->recorded = false;
}

static struct item *add_item(struct mpp_rank *r, struct tape *t)
{
    if (t->n == t->room) {
        int room = 2 * t->room + 4;
        struct item *items = realloc(t->items, (size_t)room * sizeof *items);
        if (items == NULL)
            mpp_fail(r, MPP_EXIT_SYSTEM, "rank %d: out of memory", r->rank);
        t->items = items;
        t->room = room;
    }
    t->items[t->n] = (struct item){.what = SEND};
    return &t->items[t->n++];
}

int mpp_graphs_open(struct mpp_rank *r, struct mpp_error *error)
{
    const char *wanted = getenv("MPP_GRAPHS");
    if (wanted == NULL || strcmp(wanted, "1") != 0 || getenv("MPP_KERNELS") != NULL) /* measure.cuh waits for each kernel */
        return MPP_EXIT_OK;
    struct mpp_graphs *g = calloc(1, sizeof *g);
    r->device->graphs = g;
    if (g != NULL) {
        g->n = (2 * r->stage->n_chunks + 1) * r->micro_batches + 1;
        g->tapes = calloc((size_t)g->n, sizeof *g->tapes);
    }
    if (g == NULL || g->tapes == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: out of memory", r->rank);
    int code = mpp_cuda_allocate(r, (void **)&r->device->values, sizeof *r->device->values, "a step's values", error);
    if (code == MPP_EXIT_OK)
        r->device->outside_bytes += (int64_t)sizeof *r->device->values;
    return code;
}

void mpp_graphs_forget(struct mpp_rank *r)
{
    struct mpp_graphs *g = r->device->graphs;
    for (int i = 0; g != NULL && i < g->n; i++)
        erase(&g->tapes[i]);
}

void mpp_graphs_free(struct mpp_rank *r)
{
    struct mpp_graphs *g = r->device->graphs;
    cudaGraph_t unfinished = NULL;
    if (g == NULL)
        return;
    if (g->capturing)
        (void)cudaStreamEndCapture(r->device->compute, &unfinished);
    if (unfinished != NULL)
        (void)cudaGraphDestroy(unfinished);
    if (g->tapes != NULL)
        mpp_graphs_forget(r);
    free(g->tapes);
    free(g);
    r->device->graphs = NULL;
    r->device->kept = NULL;
}

/* ---- capturing --------------------------------------------------------------------------------------------------- */

static void check(struct mpp_rank *r, cudaError_t code, const char *call)
{
    if (code == cudaSuccess)
        return;
    mpp_cuda_leave_if_failed(r);
    mpp_fail(r, MPP_EXIT_SYSTEM, "rank %d, GPU %d: %s: %s (%s); without MPP_GRAPHS=1 no graphs are made", r->rank, r->device->ordinal,
             call, cudaGetErrorString(code), cudaGetErrorName(code));
}

/* Ranks of one process capture on their own: calls of other threads are no matter of theirs. */
static void begin(struct mpp_rank *r)
{
    struct mpp_graphs *g = r->device->graphs;
    check(r, cudaStreamBeginCapture(r->device->compute, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    g->capturing = true;
    g->before = r->device->last;
    r->device->last = 0;
    r->device->kept = r->device->values;
}

/* What was captured runs, after all that was launched before: making a graph may wait for the GPU, and must not while the GPU
 * waits for others. */
static void end(struct mpp_rank *r)
{
    struct mpp_graphs *g = r->device->graphs;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    size_t nodes = 0;
    mpp_cuda_join(r); /* the communication stream leaves */
    g->capturing = false;
    r->device->kept = NULL;
    uint64_t last = r->device->last;
    r->device->last = last != 0 ? last : g->before;
    check(r, cudaStreamEndCapture(r->device->compute, &graph), "cudaStreamEndCapture");
    cudaError_t code = cudaGraphGetNodes(graph, NULL, &nodes);
    if (code == cudaSuccess && nodes > 0) {
        mpp_cuda_wait_for(r, r->device->compute);
        code = cudaGraphInstantiateWithFlags(&exec, graph, 0);
    }
    (void)cudaGraphDestroy(graph);
    check(r, code, "making a graph of a pass");
    if (exec == NULL)
        return;
    struct item *item = add_item(r, g->open);
    *item = (struct item){.what = LAUNCH, .graph = exec, .last = last};
    check(r, cudaGraphLaunch(exec, r->device->compute), "cudaGraphLaunch");
    mpp_cuda_mark(r, last);
}

void mpp_graphs_pause(struct mpp_rank *r, bool sends, int transfer, const void *x)
{
    struct mpp_graphs *g = r->device->graphs;
    if (g == NULL || g->open == NULL)
        return;
    end(r);
    struct item *item = add_item(r, g->open);
    *item = (struct item){.what = sends ? SEND : RECEIVE, .transfer = transfer, .x = (void *)(uintptr_t)x};
}

void mpp_graphs_resume(struct mpp_rank *r)
{
    if (r->device->graphs != NULL && r->device->graphs->open != NULL)
        begin(r);
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

static void record(struct mpp_rank *r, struct tape *t, void (*work)(struct mpp_rank *r))
{
    struct mpp_graphs *g = r->device->graphs;
    g->open = t;
    begin(r);
    work(r);
    end(r);
    g->open = NULL;
    t->recorded = true;
}

static void play(struct mpp_rank *r, const struct tape *t)
{
    for (int i = 0; i < t->n; i++) {
        const struct item *item = &t->items[i];
        if (item->what == SEND) {
            mpp_send(r, item->transfer, item->x);
        } else if (item->what == RECEIVE) {
            mpp_receive(r, item->transfer, item->x);
        } else {
            mpp_cuda_moves(r);
            mpp_cuda_leave_if_failed(r);
            check(r, cudaGraphLaunch(item->graph, r->device->compute), "cudaGraphLaunch");
            mpp_cuda_mark(r, item->last);
        }
    }
}

void mpp_device_step(struct mpp_rank *r)
{
    if (r->device->graphs == NULL)
        return;
    const struct mpp_step_values now = {.step = r->step, .lr = r->hyper.lr, .factors = mpp_step_factors_of(r)};
    mpp_device_put(r, r->device->values, &now, sizeof now);
}

void mpp_device_pass(struct mpp_rank *r, enum mpp_pass pass, void (*work)(struct mpp_rank *r))
{
    struct mpp_graphs *g = r->device != NULL ? r->device->graphs : NULL;
    struct tape *t = g != NULL ? &g->tapes[number_of(r, pass)] : NULL;
    if (t == NULL || !r->training || r->trace != NULL) {
        work(r);
        return;
    }
    mpp_cuda_join(r); /* a graph cannot wait for what a pass without one has begun */
    if (!t->has_run)
        work(r);
    else if (!t->recorded)
        record(r, t, work);
    else
        play(r, t);
    t->has_run = true;
}
