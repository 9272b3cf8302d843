/* transport_mpi.c - one process per rank under MPI; the only file that knows it.
 *
 * Each mask has a communicator whose ranks are the group's members in order. Valid blocks travel without
 * their padding; where a cut is not the outermost dimension they are packed in the rank's workspace. */
#ifdef MPP_WITH_MPI

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alike.h"
#include "mpp_rt.h"
#include "packed.h"
#include "sums.h"
#include "trace.h"
#include "transport.h"
#include "transport_mpi_shm.h"
#include "transport_mpi_transfers.h"
#include "waits.h"
#include "watch.h"

#define MASKS (MPP_WORLD + 1)            /* sets of axes, and all ranks */
#define CALL_ELEMENTS ((int64_t)1 << 28) /* MPI's counts are int */
#define STAGED_HALVES ((int64_t)1 << 19) /* of all members together, of one piece of a sum of 16-bit floats */
#define MAX_BEGUN 1024                   /* sums and gathers at a time that go on beside the rank's work, of each kind */
#define SMALL_HALVES 1024
#define HALF_TAG 2
#define SCATTER_TAG 16
#define EXPLAIN_S 3                      /* for the watch to say why MPI fails */

/* A reduce-scatter that goes on in rounds: in round i the i-th member after this one gets its part, and the part from
 * the i-th before it is added to this rank's own. Only the memory of the operands is used. */
struct scatter {
    MPI_Comm comm;
    unsigned mask;
    struct mpp_cut cut;
    float *src, *dst;
    int round, tag; /* round: the group's size when done */
    MPI_Request request[2];
};

/* A gather that goes on beside the rank's work. */
struct begun_gather {
    int64_t number;
    MPI_Request request;
};

struct mpi {
    struct mpp_transport base;
    int n_ranks;
    int place_here, ranks_here;  /* of this machine */
    int64_t call_elements;       /* at most so many in one call of MPI */
    MPI_Comm comm[MASKS];
    struct mpp_mpi_shm *shared[MASKS]; /* groups of one host, else NULL */
    int *counts, *displacements; /* [n_ranks] */
    int64_t staged_room;         /* elements that all members of a group share */
    uint16_t *staged;            /* [staged_room]: what members send of a sum of 16-bit floats */
    MPI_Request *exchanges;      /* [2 n_ranks]: of its messages */
    char (*hosts)[MPP_HOST_NAME]; /* [n_ranks] */
    struct mpp_watch *watch;
    bool spans_hosts[MASKS];      /* this rank's group: sums and gathers go on beside its work */
    int n_requests, n_scatters, n_gathers;
    int next_tag[MASKS];          /* of scatters: members of a group count alike, other ranks need not */
    MPI_Request requests[MAX_BEGUN]; /* of all-reduces */
    struct scatter scatters[MAX_BEGUN];
    struct begun_gather gathers[MAX_BEGUN]; /* by number */
    struct mpp_mpi_transfers *transfers;
};

static struct mpi *mpi_of(const struct mpp_rank *r)
{
    return (struct mpi *)r->transport;
}

static void check(struct mpp_rank *r, int rc, const char *what)
{
    if (rc == MPI_SUCCESS)
        return;
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;
    MPI_Error_string(rc, text, &n);
    sleep(EXPLAIN_S + (unsigned)(r->rank < 8 ? r->rank : 8)); /* one rank speaks */
    mpp_fail(r, MPP_EXIT_SYSTEM, "rank %d: %s: %.*s", r->rank, what, n, text);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int piece_of(const struct mpi *t, int64_t total, int64_t at)
{
    return (int)(total - at < t->call_elements ? total - at : t->call_elements);
}

static void mpi_barrier(struct mpp_rank *r, unsigned mask)
{
    mpp_wait_begin(r, MPP_WAIT_BARRIER, (int)mask);
    check(r, MPI_Barrier(mpi_of(r)->comm[mask]), "MPI_Barrier");
    mpp_wait_end(r);
}

static void mpi_all_reduce(struct mpp_rank *r, unsigned mask, float *x, int64_t count, bool maximum)
{
    const struct mpi *t = mpi_of(r);
    mpp_wait_begin(r, MPP_WAIT_ALL_REDUCE, (int)mask);
    if (t->shared[mask] != NULL && count >= MPP_MPI_SHM_LEAST) {
        mpp_mpi_shm_all_reduce(t->shared[mask], MPP_TYPE_F32, x, count, maximum);
        mpp_wait_end(r);
        return;
    }
    for (int64_t i = 0; i < count; i += t->call_elements)
        check(r, MPI_Allreduce(MPI_IN_PLACE, x + i, piece_of(t, count, i), MPI_FLOAT, maximum ? MPI_MAX : MPI_SUM,
                               t->comm[mask]), "MPI_Allreduce");
    mpp_wait_end(r);
}

/* Counts and places of all members' packed blocks; false: they are too large for one call. */
static bool set_counts(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut)
{
    struct mpi *t = mpi_of(r);
    if (cut->outer * cut->extent * cut->inner > t->call_elements)
        return false;
    for (int m = 0; m < mpp_mesh_group_size(r, mask); m++) {
        int64_t count;
        t->displacements[m] = (int)mpp_packed_block(r, mask, cut, m, &count);
        t->counts[m] = (int)count;
    }
    return true;
}

static MPI_Datatype type_of(int64_t bytes)
{
    return bytes == 2 ? MPI_INT16_T : MPI_INT32_T;
}

/* All members' packed blocks, where PACKED holds this rank's. */
static void gather_packed(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, char *packed)
{
    struct mpi *t = mpi_of(r);
    MPI_Datatype type = type_of(cut->bytes);
    if (set_counts(r, mask, cut)) {
        check(r, MPI_Allgatherv(MPI_IN_PLACE, 0, type, packed, t->counts, t->displacements, type, t->comm[mask]),
              "MPI_Allgatherv");
        return;
    }
    for (int m = 0; m < mpp_mesh_group_size(r, mask); m++) {
        int64_t count, place = mpp_packed_block(r, mask, cut, m, &count);
        for (int64_t i = 0; i < count; i += t->call_elements)
            check(r, MPI_Bcast(packed + cut->bytes * (place + i), piece_of(t, count, i), type, m, t->comm[mask]), "MPI_Bcast");
    }
}

static void mpi_all_gather(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, const void *src, void *dst)
{
    mpp_wait_begin(r, MPP_WAIT_ALL_GATHER, (int)mask);
    mpp_packed_all_gather(r, mask, cut, src, dst, gather_packed);
    mpp_wait_end(r);
}

static void mpi_reduce_scatter(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, const float *src,
                               float *dst)
{
    struct mpi *t = mpi_of(r);
    int self = mpp_mesh_group_index(r, mask);
    const float *send = mpp_packed_blocks(r, mask, cut, src);
    mpp_wait_begin(r, MPP_WAIT_REDUCE_SCATTER, (int)mask);
    bool whole = set_counts(r, mask, cut);
    if (whole && t->shared[mask] != NULL)
        mpp_mpi_shm_reduce_scatter(t->shared[mask], MPP_TYPE_F32, send, t->counts, t->displacements, dst);
    else if (whole)
        check(r, MPI_Reduce_scatter(send, dst, t->counts, MPI_FLOAT, MPI_SUM, t->comm[mask]), "MPI_Reduce_scatter");
    else
        for (int m = 0; m < mpp_mesh_group_size(r, mask); m++) {
            int64_t count, place = mpp_packed_block(r, mask, cut, m, &count);
            for (int64_t i = 0; i < count; i += t->call_elements)
                check(r, MPI_Reduce(send + place + i, m == self ? dst + i : NULL, piece_of(t, count, i), MPI_FLOAT, MPI_SUM, m,
                                    t->comm[mask]), "MPI_Reduce");
        }
    mpp_wait_end(r);
    mpp_packed_spread(r, mask, cut, dst);
}

/* ---- sums of 16-bit floats ---- */

/* Elements of a member's piece: the members of a group share the room. */
static int64_t staged_each(const struct mpp_rank *r, unsigned mask)
{
    const struct mpi *t = mpi_of(r);
    return least(t->staged_room / mpp_mesh_group_size(r, mask), t->call_elements);
}

/* Piece AT of each block of SRC goes to its owner; the others' pieces of this rank's own are staged. */
static void trade_pieces(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, const uint16_t *src, int64_t at, int64_t own)
{
    struct mpi *t = mpi_of(r);
    int64_t most = staged_each(r, mask);
    int n = 0;
    for (int m = 0; m < mpp_mesh_group_size(r, mask); m++) {
        int64_t count, place = mpp_packed_block(r, mask, cut, m, &count);
        if (m == mpp_mesh_group_index(r, mask))
            continue;
        if (own > at)
            check(r, MPI_Irecv(t->staged + m * most, (int)least(own - at, most), MPI_INT16_T, m, HALF_TAG, t->comm[mask],
                               &t->exchanges[n++]), "MPI_Irecv");
        if (count > at)
            check(r, MPI_Isend(src + place + at, (int)least(count - at, most), MPI_INT16_T, m, HALF_TAG, t->comm[mask],
                               &t->exchanges[n++]), "MPI_Isend");
    }
    check(r, MPI_Waitall(n, t->exchanges, MPI_STATUSES_IGNORE), "MPI_Waitall");
}

/* DST = the sum of the members' blocks for this one; it may be this rank's own. */
static void sum_half_blocks(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, enum mpp_type type, const uint16_t *src, uint16_t *dst)
{
    struct mpi *t = mpi_of(r);
    struct mpp_packed_terms terms = {.own = mpp_mesh_group_index(r, mask), .theirs = t->staged, .stride = staged_each(r, mask)};
    int n = mpp_mesh_group_size(r, mask);
    if (t->shared[mask] != NULL && set_counts(r, mask, cut)) {
        mpp_mpi_shm_reduce_scatter(t->shared[mask], type, src, t->counts, t->displacements, dst);
        return;
    }
    int64_t own, count, longest = 0, place = mpp_packed_block(r, mask, cut, terms.own, &own);
    for (int m = 0; m < n; m++) {
        (void)mpp_packed_block(r, mask, cut, m, &count);
        longest = count > longest ? count : longest;
    }
    for (int64_t at = 0; at < longest; at += terms.stride) {
        trade_pieces(r, mask, cut, src, at, own);
        terms.mine = src + place + at;
        mpp_packed_sum_halves(type, n, mpp_packed_term_of, &terms, least(own - at, terms.stride), dst + at);
    }
}

static void mpi_all_reduce_half(struct mpp_rank *r, unsigned mask, enum mpp_type type, uint16_t *x, int64_t count)
{
    struct mpi *t = mpi_of(r);
    int n = mpp_mesh_group_size(r, mask), self = mpp_mesh_group_index(r, mask);
    mpp_wait_begin(r, MPP_WAIT_ALL_REDUCE, (int)mask);
    if (t->shared[mask] != NULL && count >= MPP_MPI_SHM_LEAST) {
        mpp_mpi_shm_all_reduce(t->shared[mask], type, x, count, false);
    } else if (count <= least(SMALL_HALVES, staged_each(r, mask))) { /* whole to all, which saves a round trip */
        struct mpp_packed_terms terms = {.own = self, .mine = x, .theirs = t->staged, .stride = count};
        check(r, MPI_Allgather(x, (int)count, MPI_INT16_T, t->staged, (int)count, MPI_INT16_T, t->comm[mask]), "MPI_Allgather");
        mpp_packed_sum_halves(type, n, mpp_packed_term_of, &terms, count, x);
    } else {
        int64_t offset, valid, own;
        struct mpp_cut cut = {.outer = 1, .extent = count, .inner = 1, .bytes = sizeof *x};
        cut.block = mpp_mesh_block(r, mask, 0, count, &offset, &valid);
        sum_half_blocks(r, mask, &cut, type, x, x + mpp_packed_block(r, mask, &cut, self, &own));
        gather_packed(r, mask, &cut, (char *)x);
    }
    mpp_wait_end(r);
}

static void mpi_reduce_scatter_half(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, enum mpp_type type, const uint16_t *src,
                                    uint16_t *dst)
{
    mpp_wait_begin(r, MPP_WAIT_REDUCE_SCATTER, (int)mask);
    mpp_packed_scatter_half(r, mask, cut, type, src, dst, sum_half_blocks);
    mpp_wait_end(r);
}

/* ---- sums beside the rank's work ---- */

static void start_round(struct mpp_rank *r, struct scatter *s)
{
    int n = mpp_mesh_group_size(r, s->mask), self = mpp_mesh_group_index(r, s->mask);
    int to = (self + s->round) % n, from = (self + n - s->round) % n;
    int64_t count, own, place = mpp_packed_block(r, s->mask, &s->cut, to, &count);
    (void)mpp_packed_block(r, s->mask, &s->cut, self, &own);
    check(r, MPI_Irecv(s->dst, (int)own, MPI_FLOAT, from, s->tag, s->comm, &s->request[0]), "MPI_Irecv");
    check(r, MPI_Isend(s->src + place, (int)count, MPI_FLOAT, to, s->tag, s->comm, &s->request[1]), "MPI_Isend");
}

/* Go on as far as messages have come. True: it is done. */
static bool advance(struct mpp_rank *r, struct scatter *s)
{
    int n = mpp_mesh_group_size(r, s->mask), done = 1;
    while (s->round < n) {
        check(r, MPI_Testall(2, s->request, &done, MPI_STATUSES_IGNORE), "MPI_Testall");
        if (!done)
            return false;
        int64_t count, place = mpp_packed_block(r, s->mask, &s->cut, mpp_mesh_group_index(r, s->mask), &count);
        mpp_add_to(s->src + place, s->dst, count);
        if (++s->round < n)
            start_round(r, s);
        else if (count > 0)
            memcpy(s->dst, s->src + place, (size_t)count * sizeof *s->dst);
    }
    return true;
}

/* MPI moves its messages only while it is called. */
static void mpi_look(struct mpp_rank *r)
{
    struct mpi *t = mpi_of(r);
    int done = 1, n = 0, sending;
    if (t->n_requests > 0)
        check(r, MPI_Testall(t->n_requests, t->requests, &done, MPI_STATUSES_IGNORE), "MPI_Testall");
    if (done)
        t->n_requests = 0;
    for (int i = 0; i < t->n_scatters; i++)
        if (!advance(r, &t->scatters[i]))
            t->scatters[n++] = t->scatters[i];
    t->n_scatters = n;
    n = 0;
    for (int i = 0; i < t->n_gathers; i++) {
        check(r, MPI_Test(&t->gathers[i].request, &done, MPI_STATUS_IGNORE), "MPI_Test");
        if (!done)
            t->gathers[n++] = t->gathers[i];
    }
    t->n_gathers = n;
    check(r, mpp_mpi_transfers_look(t->transfers, &sending), "a transfer");
    r->pending = t->n_requests + t->n_scatters + t->n_gathers + sending;
}

static void mpi_wait(struct mpp_rank *r)
{
    struct mpi *t = mpi_of(r);
    mpp_wait_begin(r, MPP_WAIT_BEGUN, (1 << r->n_axes) - 1);
    while (t->n_scatters > 0) {
        mpi_look(r);
        sched_yield();
    }
    check(r, MPI_Waitall(t->n_requests, t->requests, MPI_STATUSES_IGNORE), "MPI_Waitall");
    t->n_requests = 0;
    mpi_look(r);
    mpp_wait_end(r);
}

static bool mpi_all_reduce_begin(struct mpp_rank *r, unsigned mask, float *x, int64_t count)
{
    struct mpi *t = mpi_of(r);
    if (!t->spans_hosts[mask])
        return false;
    for (int64_t i = 0; i < count; i += t->call_elements) {
        if (t->n_requests == MAX_BEGUN)
            mpi_wait(r);
        check(r, MPI_Iallreduce(MPI_IN_PLACE, x + i, piece_of(t, count, i), MPI_FLOAT, MPI_SUM, t->comm[mask],
                                &t->requests[t->n_requests]), "MPI_Iallreduce");
        t->n_requests++;
        r->pending++;
    }
    return true;
}

static bool mpi_reduce_scatter_begin(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, float *src, float *dst)
{
    struct mpi *t = mpi_of(r);
    if (!t->spans_hosts[mask] || cut->block * cut->inner > t->call_elements)
        return false;
    if (t->n_scatters == MAX_BEGUN)
        mpi_wait(r);
    struct scatter *s = &t->scatters[t->n_scatters++];
    *s = (struct scatter){.comm = t->comm[mask], .mask = mask, .cut = *cut, .src = src, .dst = dst, .round = 1,
                          .tag = SCATTER_TAG + t->next_tag[mask]};
    t->next_tag[mask] = (t->next_tag[mask] + 1) % (4 * MAX_BEGUN); /* MPI has tags up to 32767 at least */
    start_round(r, s);
    r->pending++;
    return true;
}

/* ---- gathers beside the rank's work ---- */

static void mpi_gather_wait(struct mpp_rank *r, int64_t end)
{
    struct mpi *t = mpi_of(r);
    int n = 0;
    while (n < t->n_gathers && t->gathers[n].number < end)
        n++;
    if (n == 0)
        return;
    double begun_s = mpp_trace_begin(r);
    mpp_wait_begin(r, MPP_WAIT_BEGUN, (1 << r->n_axes) - 1);
    for (int i = 0; i < n; i++)
        check(r, MPI_Wait(&t->gathers[i].request, MPI_STATUS_IGNORE), "MPI_Wait");
    t->n_gathers -= n;
    memmove(t->gathers, t->gathers + n, (size_t)t->n_gathers * sizeof *t->gathers);
    mpi_look(r);
    mpp_wait_end(r);
    mpp_trace_end(r, begun_s, MPP_TRACE_WAIT, 0, 0, 0);
}

/* Blocks that need no packing, in one call. */
static bool mpi_all_gather_begin(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, const void *src, void *dst, int64_t number)
{
    struct mpi *t = mpi_of(r);
    int64_t count = cut->block * cut->inner;
    MPI_Datatype type = type_of(cut->bytes);
    bool even = cut->block * mpp_mesh_group_size(r, mask) == cut->extent;
    if (!t->spans_hosts[mask] || cut->outer != 1 || !even || cut->extent * cut->inner > t->call_elements)
        return false;
    mpp_rank_moves(r);
    if (t->n_gathers == MAX_BEGUN)
        mpi_gather_wait(r, number);
    struct begun_gather *g = &t->gathers[t->n_gathers];
    g->number = number;
    check(r, MPI_Iallgather(src, (int)count, type, dst, (int)count, type, t->comm[mask], &g->request), "MPI_Iallgather");
    t->n_gathers++;
    r->pending++;
    return true;
}

/* ---- exchanges and messages ---- */

/* OUT_COUNT elements of BYTES to member TO, IN_COUNT from member FROM. */
static void swap(struct mpp_rank *r, unsigned mask, int64_t bytes, int to, const char *out, int64_t out_count, int from,
                 char *in, int64_t in_count)
{
    const struct mpi *t = mpi_of(r);
    MPI_Datatype type = type_of(bytes);
    for (int64_t i = 0; i < out_count || i < in_count; i += t->call_elements) {
        bool sends = i < out_count, receives = i < in_count;
        check(r, MPI_Sendrecv(out + (sends ? i * bytes : 0), sends ? piece_of(t, out_count, i) : 0, type, sends ? to : MPI_PROC_NULL,
                              0, in + (receives ? i * bytes : 0), receives ? piece_of(t, in_count, i) : 0, type,
                              receives ? from : MPI_PROC_NULL, 0, t->comm[mask], MPI_STATUS_IGNORE), "MPI_Sendrecv");
    }
}

static void mpi_all_to_all(struct mpp_rank *r, unsigned mask, const struct mpp_exchange *x, const void *src,
                           void *dst)
{
    mpp_wait_begin(r, MPP_WAIT_ALL_TO_ALL, (int)mask);
    mpp_packed_all_to_all(r, mask, x, src, dst, swap);
    mpp_wait_end(r);
}

static void mpi_send(struct mpp_rank *r, int to, const void *data, int64_t bytes)
{
    const struct mpi *t = mpi_of(r);
    mpp_wait_begin(r, MPP_WAIT_SEND, to);
    for (int64_t i = 0; i == 0 || i < bytes; i += t->call_elements)
        check(r, MPI_Send((const char *)data + i, piece_of(t, bytes, i), MPI_BYTE, to, 1, MPI_COMM_WORLD), "MPI_Send");
    mpp_wait_end(r);
}

static void mpi_receive(struct mpp_rank *r, int from, void *data, int64_t bytes)
{
    const struct mpi *t = mpi_of(r);
    mpp_wait_begin(r, MPP_WAIT_RECEIVE, from);
    for (int64_t i = 0; i == 0 || i < bytes; i += t->call_elements) {
        int expected = piece_of(t, bytes, i), n = 0;
        MPI_Status status;
        check(r, MPI_Recv((char *)data + i, expected, MPI_BYTE, from, 1, MPI_COMM_WORLD, &status), "MPI_Recv");
        MPI_Get_count(&status, MPI_BYTE, &n);
        if (n != expected)
            mpp_fail(r, MPP_EXIT_SYSTEM, "rank %d expects %d bytes from rank %d, which sends %d", r->rank, expected,
                     from, n);
    }
    mpp_wait_end(r);
}

static void mpi_transfer_send(struct mpp_rank *r, int transfer, const void *x)
{
    struct mpi *t = mpi_of(r);
    bool waits = mpp_mpi_transfers_busy(t->transfers, transfer);
    if (waits)
        mpp_wait_begin(r, MPP_WAIT_HAND_OVER, transfer);
    double begun_s = mpp_trace_begin(r);
    check(r, mpp_mpi_transfers_send(t->transfers, r, transfer, x), "a transfer");
    if (waits) {
        mpp_trace_end(r, begun_s, MPP_TRACE_WAIT, 0, 0, 0);
        mpp_wait_end(r);
    }
    r->pending++;
}

static void mpi_transfer_receive(struct mpp_rank *r, int transfer, void *x)
{
    mpp_wait_begin(r, MPP_WAIT_TAKE_OVER, transfer);
    double begun_s = mpp_trace_begin(r);
    check(r, mpp_mpi_transfers_receive(mpi_of(r)->transfers, transfer, x), "a transfer");
    mpp_trace_end(r, begun_s, MPP_TRACE_WAIT, 0, 0, 0);
    mpp_wait_end(r);
}

static void mpi_drain(struct mpp_rank *r)
{
    mpp_mpi_transfers_drain(mpi_of(r)->transfers);
}

static void mpi_abort(struct mpp_rank *r, int code, const char *message)
{
    fprintf(stderr, "error: %s\n", message);
    fflush(NULL);
    mpp_watch_failing(mpi_of(r)->watch, code);
    MPI_Abort(MPI_COMM_WORLD, code);
}

static void mpi_free(struct mpp_transport *base)
{
    struct mpi *t = (struct mpi *)base;
    for (unsigned m = 0; m < MASKS; m++) {
        mpp_mpi_shm_free(t->shared[m]);
        if (t->comm[m] != MPI_COMM_NULL)
            MPI_Comm_free(&t->comm[m]);
    }
    mpp_mpi_transfers_free(t->transfers);
    MPI_Finalize();
    mpp_watch_free(t->watch);
    free(t->counts);
    free(t->displacements);
    free(t->staged);
    free(t->exchanges);
    free(t->hosts);
    free(t);
}

static void mpi_place_here(const struct mpp_rank *r, int *index_out, int *count_out)
{
    *index_out = mpi_of(r)->place_here;
    *count_out = mpi_of(r)->ranks_here;
}

static void mpi_stopped(struct mpp_rank *r, int number)
{
    mpp_watch_stopped(mpi_of(r)->watch, number);
}

static void mpi_follow(struct mpp_rank *r)
{
    mpp_watch_follow(mpi_of(r)->watch, r);
}

static const struct mpp_transport_ops mpi_ops = {
    .name = "MPI",
    .free = mpi_free,
    .barrier = mpi_barrier,
    .all_reduce = mpi_all_reduce,
    .all_reduce_begin = mpi_all_reduce_begin,
    .reduce_scatter_begin = mpi_reduce_scatter_begin,
    .all_gather_begin = mpi_all_gather_begin,
    .gather_wait = mpi_gather_wait,
    .look = mpi_look,
    .wait = mpi_wait,
    .all_gather = mpi_all_gather,
    .reduce_scatter = mpi_reduce_scatter,
    .all_reduce_half = mpi_all_reduce_half,
    .reduce_scatter_half = mpi_reduce_scatter_half,
    .all_to_all = mpi_all_to_all,
    .send = mpi_send,
    .receive = mpi_receive,
    .transfer_send = mpi_transfer_send,
    .transfer_receive = mpi_transfer_receive,
    .drain = mpi_drain,
    .place_here = mpi_place_here,
    .stopped = mpi_stopped,
    .follow = mpi_follow,
    .abort = mpi_abort,
};

/* Every process knows where the others are, and has a line to those that watch. */
static void begin_watch(struct mpi *t, int rank)
{
    struct mpp_link_offer offer[MPP_WATCH_CENTRES] = {{0}};
    char host[MPP_HOST_NAME] = "";
    (void)gethostname(host, sizeof host - 1);
    MPI_Allgather(host, MPP_HOST_NAME, MPI_CHAR, t->hosts, MPP_HOST_NAME, MPI_CHAR, MPI_COMM_WORLD);
    mpp_watch_place(t->watch, rank, t->n_ranks, (const char (*)[MPP_HOST_NAME])t->hosts);
    for (int c = 0; c < MPP_WATCH_CENTRES; c++) {
        int centre = mpp_watch_centre(t->watch, c);
        if (centre == rank)
            mpp_watch_offer(t->watch, &offer[c]);
        if (centre >= 0)
            MPI_Bcast(&offer[c], sizeof offer[c], MPI_BYTE, centre, MPI_COMM_WORLD);
    }
    mpp_watch_join(t->watch, offer);
}

/* Whatever a launcher's variables say. */
static void count_here(struct mpi *t, int rank)
{
    MPI_Comm here;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &here);
    MPI_Comm_rank(here, &t->place_here);
    MPI_Comm_size(here, &t->ranks_here);
    MPI_Comm_free(&here);
}

/* Do sums of this rank's group of MASK go on beside its work? Where it spans hosts: in shared memory the same cores would
 * do both. MPP_OVERLAP=0 and =1 say never and always. */
static bool overlaps(const struct mpi *t, const struct mpp_program *program, int rank, unsigned mask)
{
    const char *forced = getenv("MPP_OVERLAP");
    if (forced != NULL && (strcmp(forced, "0") == 0 || strcmp(forced, "1") == 0))
        return forced[0] == '1';
    int base = mpp_mesh_group_base(program, rank, mask);
    for (int i = 0; i < t->n_ranks; i++)
        if (mpp_mesh_group_base(program, i, mask) == base && strcmp(t->hosts[i], t->hosts[rank]) != 0)
            return true;
    return false;
}

static struct mpi *make_transport(int size, int64_t call_elements)
{
    struct mpi *t = calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    t->base.ops = &mpi_ops;
    t->n_ranks = size;
    t->call_elements = call_elements > 0 ? call_elements : CALL_ELEMENTS;
    t->counts = calloc((size_t)size, sizeof *t->counts);
    t->displacements = calloc((size_t)size, sizeof *t->displacements);
    t->hosts = calloc((size_t)size, sizeof *t->hosts);
    t->staged_room = size > STAGED_HALVES ? size : STAGED_HALVES;
    t->staged = calloc((size_t)t->staged_room, sizeof *t->staged);
    t->exchanges = calloc((size_t)(2 * size), sizeof *t->exchanges);
    bool well = t->counts != NULL && t->displacements != NULL && t->hosts != NULL && t->staged != NULL && t->exchanges != NULL;
    return well ? t : NULL; /* the process ends */
}

/* Every process gets the same code and message. */
static int check_alike(const uint64_t *mark, int rank, int size, struct mpp_error *error)
{
    uint64_t first[MPP_ALIKE_PARTS];
    char host[MPP_HOST_NAME] = "";
    memcpy(first, mark, sizeof first);
    MPI_Bcast(first, sizeof first, MPI_BYTE, 0, MPI_COMM_WORLD);
    int part = mpp_alike_compare(mark, first), who[2] = {part < 0 ? size : rank, part};
    MPI_Allreduce(MPI_IN_PLACE, who, 1, MPI_2INT, MPI_MINLOC, MPI_COMM_WORLD); /* the lowest rank, and its part */
    if (who[0] == size)
        return MPP_EXIT_OK;
    (void)gethostname(host, sizeof host - 1);
    MPI_Bcast(host, sizeof host, MPI_CHAR, who[0], MPI_COMM_WORLD);
    return mpp_alike_refuse(who[1], who[0], host, error);
}

struct mpp_transport *mpp_transport_mpi_new(const struct mpp_program *program, const struct mpp_transport_settings *settings,
                                            int *rank_out, struct mpp_error *error)
{
    /* Waiting processes give way: there may be more of them than cores. Other MPIs do not read this. */
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    int provided, size, needed = mpp_mesh_ranks(program);
    struct mpp_watch *watch = mpp_watch_new(&settings->watch, error);
    if (watch == NULL)
        return NULL;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        mpp_watch_free(watch);
        (void)mpp_error_set(error, MPP_EXIT_SYSTEM, "MPI does not start");
        return NULL;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, rank_out);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int code = settings->mark != NULL ? check_alike(settings->mark, *rank_out, size, error) : MPP_EXIT_OK;
    if (code == MPP_EXIT_OK && size != needed)
        code = mpp_error_set(error, MPP_EXIT_INPUT, "the plan is for %d device%s, but MPI started %d process%s; use -n %d",
                             needed, needed == 1 ? "" : "s", size, size == 1 ? "" : "es", needed);
    if (code != MPP_EXIT_OK) {
        MPI_Finalize();
        mpp_watch_free(watch);
        return NULL;
    }
    struct mpi *t = make_transport(size, settings->call_elements);
    if (t == NULL) {
        fprintf(stderr, "error: rank %d: out of memory\n", *rank_out);
        MPI_Abort(MPI_COMM_WORLD, MPP_EXIT_SYSTEM);
        return NULL;
    }
    t->watch = watch;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); /* communicators made of it inherit this */
    begin_watch(t, *rank_out);
    count_here(t, *rank_out);
    for (unsigned mask = 0; mask < MASKS; mask++) {
        int base = mpp_mesh_group_base(program, *rank_out, mask);
        MPI_Comm_split(MPI_COMM_WORLD, base >= 0 ? base : MPI_UNDEFINED, *rank_out, &t->comm[mask]);
        if (base < 0)
            continue;
        if (settings->call_elements == 0) /* else the calls of MPI are what is tested */
            t->shared[mask] = mpp_mpi_shm_new(t->comm[mask]);
        t->spans_hosts[mask] = overlaps(t, program, *rank_out, mask);
    }
    if (mpp_mpi_transfers_new(program, *rank_out, t->call_elements, &t->transfers, error) != MPP_EXIT_OK) {
        fprintf(stderr, "error: %s\n", error->text);
        MPI_Abort(MPI_COMM_WORLD, MPP_EXIT_SYSTEM);
        return NULL;
    }
    return &t->base;
}

#else
typedef int mpp_transport_mpi_is_empty;
#endif
