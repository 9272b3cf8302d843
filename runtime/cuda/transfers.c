/* transfers.c - what goes from stage to stage, by NCCL; sums over stages.
 *
 * Each part that one rank sends to another (core/transfers.h) has a channel: a communicator of the two, a stream of its own on
 * the sending side, and, where the part does not lie in one run, a place to pack it. So a send waits for nobody: its message
 * leaves the ring while the rank computes, and a slow receiver holds up only the place of the ring that it has not read. Channels
 * are made by all ranks at the first send or receive of any, in one order, which cannot lock up. */
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/trace.h"
#include "core/transfers.h"
#include "core/transport.h"
#include "cuda/cuda_internal.h"
#include "cuda/kernels_copy.h"

struct channel {
    int transfer;
    bool sends;
    struct mpp_part part;
    int64_t elements;     /* of the box */
    bool packed;          /* it is no run of this side's array */
    ncclComm_t comm;      /* sender 0, receiver 1 */
    cudaStream_t stream;  /* of a sender */
    char *room;           /* packed messages: one on the receiving side, else DEPTH of them */
};

/* Of a transfer that this rank sends. */
struct ring {
    int depth;            /* places; 0: this rank sends no such */
    int64_t sent;         /* messages */
    cudaEvent_t *left;    /* [depth]: the last message of a place has left */
    cudaEvent_t filled;   /* this message is in its place */
};

struct mpp_channels {
    int n;
    struct channel *channels;
    int n_rings;
    struct ring *rings;   /* by transfer */
};

/* ---- making channels ------------------------------------------------------------------------------------------- */

static int64_t bytes_of(const struct mpp_rank *r, const struct channel *c)
{
    return mpp_type_bytes(r->program->transfers[c->transfer].type);
}

/* Offset of the box's first element in a side's array. */
static int64_t first_of(const struct mpp_part *p, bool from)
{
    int64_t at = 0;
    for (int d = 0; d < p->n_dims; d++)
        at = at * (from ? p->from_dims[d] : p->to_dims[d]) + (from ? p->from_at[d] : p->to_at[d]);
    return at;
}

/* Between a side's array and its packed box. */
static struct mpp_box box_of(const struct mpp_part *p, bool from, bool pack, int64_t bytes)
{
    struct mpp_box box = {.run = 1, .bytes = bytes, .n_dims = p->n_dims};
    int64_t wide = 1, narrow = 1;
    for (int d = p->n_dims - 1; d >= 0; d--) {
        box.n[d] = p->n[d];
        box.src_stride[d] = pack ? wide : narrow;
        box.dst_stride[d] = pack ? narrow : wide;
        wide *= from ? p->from_dims[d] : p->to_dims[d];
        narrow *= p->n[d];
    }
    return box;
}

static void leave(struct mpp_rank *r, int code, const struct mpp_error *error)
{
    if (code != MPP_EXIT_OK)
        mpp_fail(r, code, "%s", error->text);
}

/* Adds this rank's parts of transfer T. */
static void add_channels(struct mpp_rank *r, int t, bool sends)
{
    struct mpp_channels *all = r->device->channels;
    struct mpp_part *parts;
    struct mpp_error error;
    int n;
    leave(r, mpp_transfer_parts(r->program, &r->program->transfers[t], r->rank, &parts, &n, &error), &error);
    struct channel *more = realloc(all->channels, (size_t)(all->n + n + 1) * sizeof *more);
    if (more != NULL)
        all->channels = more;
    for (int i = 0; i < n && more != NULL; i++)
        more[all->n++] = (struct channel){.transfer = t, .sends = sends, .part = parts[i], .elements = mpp_part_elements(&parts[i]),
                                          .packed = !mpp_part_is_run(&parts[i], sends)};
    free(parts);
    if (more == NULL)
        mpp_fail(r, MPP_EXIT_SYSTEM, "rank %d: out of memory", r->rank);
}

/* The sender makes the id and tells the receiver. NCCL connects the two at their first message, which takes both: a byte, now that
 * both are at it, so that later sends wait for nobody. */
static void connect_pair(struct mpp_rank *r, struct channel *c)
{
    ncclUniqueId id;
    const char *name = r->program->transfers[c->transfer].name;
    if (c->sends) {
        ncclResult_t code = ncclGetUniqueId(&id);
        if (code != ncclSuccess)
            mpp_fail(r, MPP_EXIT_SYSTEM, "rank %d, transfer %s: ncclGetUniqueId: %s", r->rank, name, ncclGetErrorString(code));
        r->transport->ops->send(r, c->part.peer, &id, sizeof id);
    } else {
        r->transport->ops->receive(r, c->part.peer, &id, sizeof id);
    }
    void *byte = mpp_cuda_scratch(r, MPP_SCRATCH_ROWS, 1);
    mpp_wait_begin(r, c->sends ? MPP_WAIT_SEND : MPP_WAIT_RECEIVE, c->part.peer);
    ncclResult_t code = mpp_comm_join(r, 2, id, c->sends ? 0 : 1, &c->comm);
    if (code == ncclSuccess)
        code = mpp_comm_settle(r, c->comm, c->sends ? ncclSend(byte, 1, ncclInt8, 1, c->comm, r->device->compute)
                                                    : ncclRecv(byte, 1, ncclInt8, 0, c->comm, r->device->compute));
    if (code != ncclSuccess)
        mpp_cuda_leave_if_failed(r);
    if (code != ncclSuccess)
        mpp_fail(r, MPP_EXIT_SYSTEM, "rank %d, transfer %s %s rank %d: joining a communicator: %s", r->rank, name, c->sends ? "to" : "from",
                 c->part.peer, ncclGetErrorString(code));
    mpp_wait_end(r);
    mpp_cuda_mark(r, mpp_wait_word(c->sends ? MPP_WAIT_HAND_OVER : MPP_WAIT_TAKE_OVER, c->transfer));
}

static void make_room(struct mpp_rank *r, struct channel *c)
{
    int depth = r->program->transfers[c->transfer].depth;
    int64_t bytes = c->elements * bytes_of(r, c) * (c->sends ? depth : 1);
    if (c->sends)
        MPP_CUDA_CHECK(r, cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
    if (!c->packed)
        return;
    struct mpp_error error;
    leave(r, mpp_cuda_allocate(r, (void **)&c->room, (size_t)bytes, "room for packed messages", &error), &error);
    r->device->outside_bytes += bytes;
}

static void make_ring(struct mpp_rank *r, int t)
{
    struct ring *ring = &r->device->channels->rings[t];
    int depth = r->program->transfers[t].depth;
    ring->left = calloc((size_t)depth, sizeof *ring->left);
    if (ring->left == NULL)
        mpp_fail(r, MPP_EXIT_SYSTEM, "rank %d: out of memory", r->rank);
    ring->depth = depth;
    MPP_CUDA_CHECK(r, cudaEventCreateWithFlags(&ring->filled, cudaEventDisableTiming));
    for (int i = 0; i < depth; i++)
        MPP_CUDA_CHECK(r, cudaEventCreateWithFlags(&ring->left[i], cudaEventDisableTiming));
}

/* In the order of (transfer, sender, receiver), which is that of each rank's parts: of the pairs that are not connected yet, the
 * two ranks of the first one are both at it. */
static void make_channels(struct mpp_rank *r)
{
    const struct mpp_program *p = r->program;
    struct mpp_channels *all = calloc(1, sizeof *all);
    r->device->channels = all;
    if (all != NULL)
        all->rings = calloc((size_t)p->n_transfers + 1, sizeof *all->rings);
    if (all == NULL || all->rings == NULL)
        mpp_fail(r, MPP_EXIT_SYSTEM, "rank %d: out of memory", r->rank);
    all->n_rings = p->n_transfers;
    for (int t = 0; t < p->n_transfers; t++) {
        bool sends = p->transfers[t].from == r->stage_index;
        if (!sends && p->transfers[t].to != r->stage_index)
            continue;
        add_channels(r, t, sends);
        if (sends)
            make_ring(r, t);
    }
    for (int i = 0; i < all->n; i++) {
        connect_pair(r, &all->channels[i]);
        make_room(r, &all->channels[i]);
    }
}

static struct mpp_channels *channels_of(struct mpp_rank *r)
{
    if (r->device->channels == NULL)
        make_channels(r);
    return r->device->channels;
}

void mpp_channels_free(struct mpp_rank *r)
{
    struct mpp_channels *all = r->device->channels;
    if (all == NULL)
        return;
    for (int i = 0; i < all->n; i++) /* all, before cudaFree waits for what any of them is at */
        if (all->channels[i].comm != NULL)
            mpp_comm_end(r, all->channels[i].comm);
    for (int i = 0; i < all->n; i++) {
        struct channel *c = &all->channels[i];
        if (c->stream != NULL)
            (void)cudaStreamDestroy(c->stream);
        (void)cudaFree(c->room);
    }
    for (int t = 0; t < all->n_rings; t++) {
        struct ring *ring = &all->rings[t];
        for (int i = 0; i < ring->depth; i++)
            if (ring->left[i] != NULL)
                (void)cudaEventDestroy(ring->left[i]);
        if (ring->filled != NULL)
            (void)cudaEventDestroy(ring->filled);
        free(ring->left);
    }
    free(all->rings);
    free(all->channels);
    free(all);
    r->device->channels = NULL;
}

cudaStream_t mpp_channels_busy(const struct mpp_rank *r)
{
    const struct mpp_channels *all = r->device->channels;
    for (int i = 0; all != NULL && i < all->n; i++)
        if (all->channels[i].stream != NULL && cudaStreamQuery(all->channels[i].stream) == cudaErrorNotReady)
            return all->channels[i].stream;
    return NULL;
}

/* ---- messages ------------------------------------------------------------------------------------------------------ */

static void check(struct mpp_rank *r, const struct channel *c, ncclResult_t code, const char *call)
{
    code = mpp_comm_settle(r, c->comm, code);
    if (code == ncclSuccess) {
        mpp_cuda_has_met(r);
        return;
    }
    mpp_cuda_leave_if_failed(r);
    mpp_comm_let_explain(r, code);
    mpp_fail(r, MPP_EXIT_SYSTEM, "rank %d, GPU %d, transfer %s %s rank %d: %s: %s", r->rank, r->device->ordinal,
             r->program->transfers[c->transfer].name, c->sends ? "to" : "from", c->part.peer, call, ncclGetErrorString(code));
}

/* From the ring's place PLACE, which ring->filled tells of. */
static void send_part(struct mpp_rank *r, struct channel *c, const struct ring *ring, int place, const char *from)
{
    int64_t bytes = bytes_of(r, c), size = c->elements * bytes;
    const char *message = from + bytes * first_of(&c->part, true);
    MPP_CUDA_CHECK(r, cudaStreamWaitEvent(c->stream, ring->filled, 0));
    if (c->packed) {
        struct mpp_box box = box_of(&c->part, true, true, bytes);
        mpp_cuda_copy_box(r, c->stream, &box, message, c->room + place * size);
        message = c->room + place * size;
    }
    mpp_cuda_meets(r, MPP_WAIT_HAND_OVER, c->transfer);
    check(r, c, ncclSend(message, (size_t)size, ncclInt8, 1, c->comm, c->stream), "ncclSend");
}

/* The ring's place is free once all parts of its last message have left: each part's stream waits for the one before. */
static void mark_left(struct mpp_rank *r, cudaEvent_t left, cudaStream_t before, cudaStream_t stream)
{
    if (before != NULL)
        MPP_CUDA_CHECK(r, cudaStreamWaitEvent(stream, left, 0));
    MPP_CUDA_CHECK(r, cudaEventRecord(left, stream));
}

static void send(struct mpp_rank *r, int transfer, const void *x)
{
    const struct mpp_transfer *t = &r->program->transfers[transfer];
    struct mpp_channels *all = channels_of(r);
    struct ring *ring = &all->rings[transfer];
    int place = (int)(ring->sent % t->depth);
    char *at = r->arena + t->offset + place * t->stride;
    cudaStream_t before = NULL;
    mpp_cuda_moves(r);
    mpp_cuda_leave_if_failed(r); /* a send waits for nobody, who would tell */
    if (ring->sent >= t->depth)
        mpp_cuda_await(r, ring->left[place], MPP_WAIT_HAND_OVER, transfer);
    mpp_copy(r, at, x, (size_t)mpp_transfer_bytes(r->program, t));
    MPP_CUDA_CHECK(r, cudaEventRecord(ring->filled, r->device->compute));
    for (int i = 0; i < all->n; i++) {
        struct channel *c = &all->channels[i];
        if (c->transfer != transfer || !c->sends)
            continue;
        send_part(r, c, ring, place, at);
        mark_left(r, ring->left[place], before, c->stream);
        before = c->stream;
    }
    if (before == NULL) /* nobody reads it from this rank */
        MPP_CUDA_CHECK(r, cudaEventRecord(ring->left[place], r->device->compute));
    ring->sent++;
}

static void receive(struct mpp_rank *r, int transfer, void *x)
{
    struct mpp_channels *all = channels_of(r);
    mpp_cuda_moves(r);
    mpp_cuda_leave_if_failed(r);
    for (int i = 0; i < all->n; i++) {
        struct channel *c = &all->channels[i];
        if (c->transfer != transfer || c->sends)
            continue;
        int64_t bytes = bytes_of(r, c);
        char *to = (char *)x + bytes * first_of(&c->part, false), *message = c->packed ? c->room : to;
        mpp_cuda_meets(r, MPP_WAIT_TAKE_OVER, c->transfer);
        check(r, c, ncclRecv(message, (size_t)(c->elements * bytes), ncclInt8, 0, c->comm, r->device->compute), "ncclRecv");
        if (c->packed) {
            struct mpp_box box = box_of(&c->part, false, false, bytes);
            mpp_cuda_copy_box(r, r->device->compute, &box, message, to);
        }
    }
}

void mpp_send(struct mpp_rank *r, int transfer, const void *x)
{
    double begun_s = mpp_trace_begin(r);
    const struct mpp_transfer *t = &r->program->transfers[transfer];
    mpp_graphs_pause(r, true, transfer, x);
    send(r, transfer, x);
    mpp_graphs_resume(r);
    if (r->trace != NULL)
        mpp_trace_end(r, begun_s, MPP_TRACE_SEND, transfer, 0, mpp_transfer_local_bytes(r, t, t->from_split));
}

void mpp_receive(struct mpp_rank *r, int transfer, void *x)
{
    double begun_s = mpp_trace_begin(r);
    const struct mpp_transfer *t = &r->program->transfers[transfer];
    mpp_graphs_pause(r, false, transfer, x);
    receive(r, transfer, x);
    mpp_graphs_resume(r);
    if (r->trace != NULL)
        mpp_trace_end(r, begun_s, MPP_TRACE_RECEIVE, transfer, 0, mpp_transfer_local_bytes(r, t, t->to_split));
}

/* The first rank of each stage tells its term, the others zeros: however the terms are brought together, that changes no bit
 * of them. Every rank then adds them in the same order. */
void mpp_sum_over_stages(struct mpp_rank *r, float *x)
{
    int n = r->program->n_stages;
    if (n == 1)
        return;
    double begun_s = mpp_trace_begin(r);
    float *terms = mpp_cuda_scratch(r, MPP_SCRATCH_ROWS, (size_t)n * sizeof *terms);
    mpp_zero(r, terms, (size_t)n * sizeof *terms);
    if (x != NULL && r->rank == r->stage->first_rank)
        mpp_copy(r, terms + r->stage_index, x, sizeof *x);
    mpp_all_reduce(r, MPP_WORLD, terms, n, MPP_REDUCE_SUM);
    if (x != NULL)
        mpp_cuda_add_terms(r, n, terms, x);
    mpp_trace_end(r, begun_s, MPP_TRACE_STAGES, 0, 0, 4);
}
