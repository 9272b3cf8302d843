/* transport_tcp.c - one process per rank, which meet over TCP: for machines without MPI.
 *
 * Every two ranks have a connection, on which the messages of collectives and of send and receive follow each other: both sides
 * do these in one order. Each part of a transfer has its own connection, so that messages wait in the sender's ring and the
 * system's buffers until they are asked for, whatever else is sent. Sums are taken in rank order, so they have the bits that
 * threads get. The rank's own thread moves all bytes: while it waits, and when it looks. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "mpp_rt.h"
#include "packed.h"
#include "progress.h"
#include "sums.h"
#include "trace.h"
#include "transport.h"
#include "transport_tcp_meet.h"
#include "transport_tcp_streams.h"
#include "waits.h"
#include "watch.h"

#define STAGED_BYTES ((int64_t)4 << 20)  /* of all members together, of one piece of a sum */
#define SMALL_FLOATS 1024                /* at most so many are sent whole to all, which saves a round trip */
#define EXPLAIN_S 12                     /* for the watch to say why a connection has ended */
#define DRAIN_S 10.0                     /* without a byte that moves */

enum { TAG_BARRIER = 1, TAG_SUM, TAG_SUM_DONE, TAG_GATHER, TAG_SWAP, TAG_SEND };

struct tcp {
    struct mpp_transport base;
    int rank, n_ranks;
    struct mpp_tcp_meeting *meeting; /* has the hosts' names */
    struct mpp_watch *watch;
    struct mpp_watch_settings leaving;
    struct mpp_tcp_line *lines; /* [n_ranks] */
    int n_flows;
    struct mpp_tcp_flow *flows; /* by transfer */
    int *first_flow;            /* [n_transfers + 1] */
    struct pollfd *polls;       /* [n_ranks + n_flows] */
    int64_t call_elements;      /* at most so many of a member in one piece of a sum */
    int64_t staged_bytes;       /* which all members of a group share */
    char *staged;               /* [staged_bytes] */
};

static struct tcp *tcp_of(const struct mpp_rank *r)
{
    return (struct tcp *)r->transport;
}

/* ---- waiting ---------------------------------------------------------------------------------------------- */

/* The watch ends the job, and says who was lost; one rank speaks where it does not. */
__attribute__((noreturn)) static void lose(struct mpp_rank *r, int peer, int why)
{
    sleep(EXPLAIN_S + (unsigned)(r->rank < 8 ? r->rank : 8));
    mpp_fail(r, MPP_EXIT_SYSTEM, "rank %d: the connection to rank %d on %s has ended: %s", r->rank, peer,
             mpp_tcp_meeting_hosts(tcp_of(r)->meeting)[peer], why != 0 ? strerror(why) : "it was closed");
}

/* Has something moved? Leaves the rank where that cannot be. */
static bool judge(struct mpp_rank *r, int peer, enum mpp_tcp_state state, const struct mpp_tcp_head *came, int64_t due_bytes)
{
    if (state == MPP_TCP_LOST)
        lose(r, peer, errno);
    if (state == MPP_TCP_ODD && came->bytes != due_bytes)
        mpp_fail(r, MPP_EXIT_SYSTEM, "rank %d expects %lld bytes from rank %d, which sends %lld", r->rank, (long long)due_bytes, peer,
                 (long long)came->bytes);
    if (state == MPP_TCP_ODD)
        mpp_fail(r, MPP_EXIT_SYSTEM, "rank %d and rank %d wait for each other at different places of the plan", r->rank, peer);
    return state == MPP_TCP_MOVED;
}

static bool push_flows(struct mpp_rank *r)
{
    struct tcp *t = tcp_of(r);
    bool moved = false;
    for (int i = 0; i < t->n_flows; i++) {
        struct mpp_tcp_flow *f = &t->flows[i];
        while (f->sends && f->done < f->posted && judge(r, f->peer, mpp_tcp_flow_push(f), NULL, 0))
            moved = true;
    }
    return moved;
}

/* One turn over all that is under way. *LEFT_OUT: is something that has to end? Sends of transfers need not. */
static bool turn(struct mpp_rank *r, bool *left_out)
{
    struct tcp *t = tcp_of(r);
    bool moved = push_flows(r);
    *left_out = false;
    for (int i = 0; i < t->n_ranks; i++) {
        struct mpp_tcp_line *l = &t->lines[i];
        if (l->out.left > 0)
            moved |= judge(r, i, mpp_tcp_push(l), NULL, 0);
        if (l->in.left > 0)
            moved |= judge(r, i, mpp_tcp_pull(l), &l->in.head, l->in.due.bytes);
        *left_out = *left_out || l->out.left > 0 || l->in.left > 0;
    }
    for (int i = 0; i < t->n_flows; i++) {
        struct mpp_tcp_flow *f = &t->flows[i];
        if (f->sends || f->done == f->posted)
            continue;
        moved |= judge(r, f->peer, mpp_tcp_flow_pull(f), &f->head, f->rows * f->run);
        *left_out = *left_out || f->done < f->posted;
    }
    return moved;
}

/* Sleeps until something can move, or for MS. */
static void sleep_until_ready(struct tcp *t, int ms)
{
    int n = 0;
    for (int i = 0; i < t->n_ranks; i++) {
        const struct mpp_tcp_line *l = &t->lines[i];
        short events = (short)((l->out.left > 0 ? POLLOUT : 0) | (l->in.left > 0 ? POLLIN : 0));
        if (events != 0)
            t->polls[n++] = (struct pollfd){.fd = l->fd, .events = events};
    }
    for (int i = 0; i < t->n_flows; i++) {
        const struct mpp_tcp_flow *f = &t->flows[i];
        if (f->done < f->posted)
            t->polls[n++] = (struct pollfd){.fd = f->fd, .events = f->sends ? POLLOUT : POLLIN};
    }
    (void)poll(t->polls, (nfds_t)n, ms);
}

/* Until all that was posted is done, but for sends of transfers. */
static void finish(struct mpp_rank *r)
{
    for (bool left = true; left;) {
        if (turn(r, &left))
            mpp_rank_moves(r);
        else if (left)
            sleep_until_ready(tcp_of(r), 1000);
    }
}

static void post_out(struct mpp_rank *r, int to, const void *data, int64_t bytes, int64_t tag)
{
    mpp_tcp_post(&tcp_of(r)->lines[to].out, data, bytes, tag);
}

static void post_in(struct mpp_rank *r, int from, void *data, int64_t bytes, int64_t tag)
{
    mpp_tcp_post(&tcp_of(r)->lines[from].in, data, bytes, tag);
}

/* ---- collectives --------------------------------------------------------------------------------------------- */

/* Of an operation and the group that does it. */
static int64_t tag_of(int operation, unsigned mask)
{
    return (int64_t)operation << 32 | mask;
}

static void tcp_barrier(struct mpp_rank *r, unsigned mask)
{
    int n = mpp_mesh_group_size(r, mask), self = mpp_mesh_group_index(r, mask);
    mpp_wait_begin(r, MPP_WAIT_BARRIER, (int)mask);
    for (int m = 0; m < n; m++)
        if (m != self) {
            post_out(r, mpp_mesh_member(r, mask, m), NULL, 0, tag_of(TAG_BARRIER, mask));
            post_in(r, mpp_mesh_member(r, mask, m), NULL, 0, tag_of(TAG_BARRIER, mask));
        }
    finish(r);
    mpp_wait_end(r);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Elements, of BYTES, of a member's piece of a sum. */
static int64_t piece_of(const struct mpp_rank *r, unsigned mask, int64_t bytes)
{
    const struct tcp *t = tcp_of(r);
    return least(t->staged_bytes / (bytes * mpp_mesh_group_size(r, mask)), t->call_elements);
}

static void *staged_of(const struct mpp_rank *r, unsigned mask, int64_t bytes, int member)
{
    return tcp_of(r)->staged + member * bytes * piece_of(r, mask, bytes);
}

/* TO = the members' parts in their order: OWN is this rank's, the others' are staged. TO may be OWN. */
static void add_staged(struct mpp_rank *r, unsigned mask, const float *own, float *to, int64_t count, bool maximum)
{
    const float *staged = staged_of(r, mask, sizeof *staged, 0);
    int64_t stride = piece_of(r, mask, sizeof *staged);
    int n = mpp_mesh_group_size(r, mask), self = mpp_mesh_group_index(r, mask);
    enum { TILE = 2048 };
    float acc[TILE];
    for (int64_t i = 0; i < count; i += TILE) {
        int64_t some = least(count - i, TILE);
        for (int m = 0; m < n; m++) {
            const float *part = m == self ? own + i : staged + m * stride + i;
            if (m == 0)
                memcpy(acc, part, (size_t)some * sizeof *acc);
            else if (maximum)
                mpp_max_to(acc, part, some);
            else
                mpp_add_to(acc, part, some);
        }
        memcpy(to + i, acc, (size_t)some * sizeof *acc);
    }
}

/* Blocks of all members in one array: member M's is COUNT floats at PLACE. */
struct blocks {
    const struct mpp_cut *cut; /* NULL: equal shares of COUNT */
    int64_t count;
};

static int64_t block_of(const struct mpp_rank *r, unsigned mask, const struct blocks *b, int m, int64_t *count_out)
{
    if (b->cut != NULL)
        return mpp_packed_block(r, mask, b->cut, m, count_out);
    int n = mpp_mesh_group_size(r, mask);
    int64_t share = (b->count + n - 1) / n, place = least(m * share, b->count);
    *count_out = least(share, b->count - place);
    return place;
}

/* Piece AT of each block of SRC, of BYTES an element, goes to its owner, and those of this rank's own are staged; returns their elements. */
static int64_t trade_pieces(struct mpp_rank *r, unsigned mask, const struct blocks *b, int64_t bytes, const char *src, int64_t at)
{
    int n = mpp_mesh_group_size(r, mask), self = mpp_mesh_group_index(r, mask);
    int64_t own, count, place, most = piece_of(r, mask, bytes);
    (void)block_of(r, mask, b, self, &own);
    int64_t own_some = own > at ? least(own - at, most) : 0;
    for (int m = 0; m < n; m++) {
        int peer = mpp_mesh_member(r, mask, m);
        if (m == self)
            continue;
        place = block_of(r, mask, b, m, &count);
        if (count > at)
            post_out(r, peer, src + bytes * (place + at), bytes * least(count - at, most), tag_of(TAG_SUM, mask));
        if (own_some > 0)
            post_in(r, peer, staged_of(r, mask, bytes, m), bytes * own_some, tag_of(TAG_SUM, mask));
    }
    finish(r);
    return own_some;
}

/* The sum of piece AT of this rank's block to DST + AT. */
static void sum_pieces(struct mpp_rank *r, unsigned mask, const struct blocks *b, const float *src, float *dst, int64_t at, bool maximum)
{
    int64_t own, place = block_of(r, mask, b, mpp_mesh_group_index(r, mask), &own);
    int64_t some = trade_pieces(r, mask, b, sizeof *src, (const char *)src, at);
    if (some > 0)
        add_staged(r, mask, src + place + at, dst + at, some, maximum);
}

static struct mpp_packed_terms staged_halves(const struct mpp_rank *r, unsigned mask, const uint16_t *mine)
{
    return (struct mpp_packed_terms){.own = mpp_mesh_group_index(r, mask), .mine = mine, .theirs = staged_of(r, mask, sizeof *mine, 0),
                                     .stride = piece_of(r, mask, sizeof *mine)};
}

static int64_t largest_block(const struct mpp_rank *r, unsigned mask, const struct blocks *b)
{
    int64_t largest = 0, count;
    for (int m = 0; m < mpp_mesh_group_size(r, mask); m++) {
        (void)block_of(r, mask, b, m, &count);
        largest = count > largest ? count : largest;
    }
    return largest;
}

/* Members' blocks of BYTES an element in ALL: this rank's goes to all, theirs come. */
static void share_blocks(struct mpp_rank *r, unsigned mask, const struct blocks *b, int64_t bytes, char *all, int64_t tag)
{
    int n = mpp_mesh_group_size(r, mask), self = mpp_mesh_group_index(r, mask);
    int64_t own, count, own_place = block_of(r, mask, b, self, &own);
    for (int m = 0; m < n; m++) {
        int peer = mpp_mesh_member(r, mask, m);
        if (m == self)
            continue;
        int64_t place = block_of(r, mask, b, m, &count);
        if (own > 0)
            post_out(r, peer, all + own_place * bytes, own * bytes, tag);
        if (count > 0)
            post_in(r, peer, all + place * bytes, count * bytes, tag);
    }
    finish(r);
}

/* X [count], of BYTES an element, of every member, staged; its own is X. */
static void stage_all(struct mpp_rank *r, unsigned mask, int64_t bytes, const void *x, int64_t count)
{
    for (int m = 0; m < mpp_mesh_group_size(r, mask); m++)
        if (m != mpp_mesh_group_index(r, mask)) {
            post_out(r, mpp_mesh_member(r, mask, m), x, bytes * count, tag_of(TAG_SUM, mask));
            post_in(r, mpp_mesh_member(r, mask, m), staged_of(r, mask, bytes, m), bytes * count, tag_of(TAG_SUM, mask));
        }
    finish(r);
}

static void tcp_all_reduce(struct mpp_rank *r, unsigned mask, float *x, int64_t count, bool maximum)
{
    int64_t piece = piece_of(r, mask, sizeof *x);
    mpp_wait_begin(r, MPP_WAIT_ALL_REDUCE, (int)mask);
    if (count <= least(SMALL_FLOATS, piece)) {
        stage_all(r, mask, sizeof *x, x, count);
        add_staged(r, mask, x, x, count, maximum);
    } else {
        struct blocks b = {.count = count};
        int64_t own;
        float *to = x + block_of(r, mask, &b, mpp_mesh_group_index(r, mask), &own);
        for (int64_t at = 0, most = largest_block(r, mask, &b); at < most; at += piece)
            sum_pieces(r, mask, &b, x, to, at, maximum);
        share_blocks(r, mask, &b, sizeof *x, (char *)x, tag_of(TAG_SUM_DONE, mask));
    }
    mpp_wait_end(r);
}

/* DST = the sum of the members' blocks for this one; it may be this rank's own. */
static void sum_half_blocks(struct mpp_rank *r, unsigned mask, const struct blocks *b, enum mpp_type type, const uint16_t *src, uint16_t *dst)
{
    int64_t own, place = block_of(r, mask, b, mpp_mesh_group_index(r, mask), &own), piece = piece_of(r, mask, sizeof *src);
    for (int64_t at = 0, most = largest_block(r, mask, b); at < most; at += piece) {
        int64_t some = trade_pieces(r, mask, b, sizeof *src, (const char *)src, at);
        struct mpp_packed_terms terms = staged_halves(r, mask, src + place + at);
        mpp_packed_sum_halves(type, mpp_mesh_group_size(r, mask), mpp_packed_term_of, &terms, some, dst + at);
    }
}

static void tcp_all_reduce_half(struct mpp_rank *r, unsigned mask, enum mpp_type type, uint16_t *x, int64_t count)
{
    mpp_wait_begin(r, MPP_WAIT_ALL_REDUCE, (int)mask);
    if (count <= least(SMALL_FLOATS, piece_of(r, mask, sizeof *x))) {
        struct mpp_packed_terms terms = staged_halves(r, mask, x);
        stage_all(r, mask, sizeof *x, x, count);
        mpp_packed_sum_halves(type, mpp_mesh_group_size(r, mask), mpp_packed_term_of, &terms, count, x);
    } else {
        struct blocks b = {.count = count};
        int64_t own;
        sum_half_blocks(r, mask, &b, type, x, x + block_of(r, mask, &b, mpp_mesh_group_index(r, mask), &own));
        share_blocks(r, mask, &b, sizeof *x, (char *)x, tag_of(TAG_SUM_DONE, mask));
    }
    mpp_wait_end(r);
}

static void sum_packed_halves(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, enum mpp_type type, const uint16_t *packed,
                              uint16_t *dst)
{
    struct blocks b = {.cut = cut};
    sum_half_blocks(r, mask, &b, type, packed, dst);
}

static void tcp_reduce_scatter_half(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, enum mpp_type type, const uint16_t *src,
                                    uint16_t *dst)
{
    mpp_wait_begin(r, MPP_WAIT_REDUCE_SCATTER, (int)mask);
    mpp_packed_scatter_half(r, mask, cut, type, src, dst, sum_packed_halves);
    mpp_wait_end(r);
}

static void gather_packed(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, char *packed)
{
    struct blocks b = {.cut = cut};
    share_blocks(r, mask, &b, cut->bytes, packed, tag_of(TAG_GATHER, mask));
}

static void tcp_all_gather(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, const void *src, void *dst)
{
    mpp_wait_begin(r, MPP_WAIT_ALL_GATHER, (int)mask);
    mpp_packed_all_gather(r, mask, cut, src, dst, gather_packed);
    mpp_wait_end(r);
}

static void tcp_reduce_scatter(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, const float *src, float *dst)
{
    struct blocks b = {.cut = cut};
    const float *send = mpp_packed_blocks(r, mask, cut, src);
    mpp_wait_begin(r, MPP_WAIT_REDUCE_SCATTER, (int)mask);
    for (int64_t at = 0, most = largest_block(r, mask, &b); at < most; at += piece_of(r, mask, sizeof *src))
        sum_pieces(r, mask, &b, send, dst, at, false);
    mpp_wait_end(r);
    mpp_packed_spread(r, mask, cut, dst);
}

static void swap(struct mpp_rank *r, unsigned mask, int64_t bytes, int to, const char *out, int64_t out_count, int from, char *in,
                 int64_t in_count)
{
    if (out_count > 0)
        post_out(r, mpp_mesh_member(r, mask, to), out, out_count * bytes, tag_of(TAG_SWAP, mask));
    if (in_count > 0)
        post_in(r, mpp_mesh_member(r, mask, from), in, in_count * bytes, tag_of(TAG_SWAP, mask));
    finish(r);
}

static void tcp_all_to_all(struct mpp_rank *r, unsigned mask, const struct mpp_exchange *x, const void *src, void *dst)
{
    mpp_wait_begin(r, MPP_WAIT_ALL_TO_ALL, (int)mask);
    mpp_packed_all_to_all(r, mask, x, src, dst, swap);
    mpp_wait_end(r);
}

/* ---- messages and transfers ------------------------------------------------------------------------------------ */

static void tcp_send(struct mpp_rank *r, int to, const void *data, int64_t bytes)
{
    mpp_wait_begin(r, MPP_WAIT_SEND, to);
    post_out(r, to, data, bytes, tag_of(TAG_SEND, 0));
    finish(r);
    mpp_wait_end(r);
}

static void tcp_receive(struct mpp_rank *r, int from, void *data, int64_t bytes)
{
    mpp_wait_begin(r, MPP_WAIT_RECEIVE, from);
    post_in(r, from, data, bytes, tag_of(TAG_SEND, 0));
    finish(r);
    mpp_wait_end(r);
}

/* Transfers of which something has not left. */
static int count_sending(const struct tcp *t)
{
    int n = 0;
    for (int i = 0; i < t->n_flows; i++)
        n += t->flows[i].sends && t->flows[i].done < t->flows[i].posted;
    return n;
}

static void tcp_look(struct mpp_rank *r)
{
    (void)push_flows(r);
    r->pending = count_sending(tcp_of(r));
}

/* There is a place in TRANSFER's ring for one message more. */
static bool has_place(const struct tcp *t, int transfer)
{
    for (int i = t->first_flow[transfer]; i < t->first_flow[transfer + 1]; i++)
        if (t->flows[i].posted - t->flows[i].done >= t->flows[i].depth)
            return false;
    return true;
}

static void wait_for_place(struct mpp_rank *r, int transfer)
{
    struct tcp *t = tcp_of(r);
    if (has_place(t, transfer))
        return;
    mpp_wait_begin(r, MPP_WAIT_HAND_OVER, transfer);
    double begun_s = mpp_trace_begin(r);
    while ((void)push_flows(r), !has_place(t, transfer))
        sleep_until_ready(t, 1000);
    mpp_trace_end(r, begun_s, MPP_TRACE_WAIT, 0, 0, 0);
    mpp_wait_end(r);
}

static void tcp_transfer_send(struct mpp_rank *r, int transfer, const void *x)
{
    struct tcp *t = tcp_of(r);
    const struct mpp_transfer *p = &r->program->transfers[transfer];
    int first = t->first_flow[transfer], end = t->first_flow[transfer + 1];
    if (first == end)
        return;
    wait_for_place(r, transfer);
    memcpy(r->arena + p->offset + t->flows[first].posted % p->depth * p->stride, x, (size_t)mpp_transfer_bytes(r->program, p));
    for (int i = first; i < end; i++) {
        t->flows[i].ring = r->arena + p->offset;
        t->flows[i].posted++;
    }
    tcp_look(r);
}

static void tcp_transfer_receive(struct mpp_rank *r, int transfer, void *x)
{
    struct tcp *t = tcp_of(r);
    mpp_wait_begin(r, MPP_WAIT_TAKE_OVER, transfer);
    double begun_s = mpp_trace_begin(r);
    for (int i = t->first_flow[transfer]; i < t->first_flow[transfer + 1]; i++) {
        t->flows[i].to = x;
        t->flows[i].posted++;
    }
    finish(r);
    mpp_trace_end(r, begun_s, MPP_TRACE_WAIT, 0, 0, 0);
    mpp_wait_end(r);
}

/* Where the job fails the others may never read. */
static void tcp_drain(struct mpp_rank *r)
{
    struct tcp *t = tcp_of(r);
    double moved_s = mpp_clock_s();
    while (count_sending(t) > 0 && mpp_clock_s() - moved_s < DRAIN_S) {
        for (int i = 0; i < t->n_flows; i++) {
            struct mpp_tcp_flow *f = &t->flows[i];
            enum mpp_tcp_state state = f->sends ? mpp_tcp_flow_push(f) : MPP_TCP_IDLE;
            if (state == MPP_TCP_MOVED)
                moved_s = mpp_clock_s();
            else if (state == MPP_TCP_LOST)
                f->done = f->posted;
        }
        if (count_sending(t) > 0)
            sleep_until_ready(t, 10);
    }
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

static void tcp_abort(struct mpp_rank *r, int code, const char *message)
{
    struct tcp *t = tcp_of(r);
    fprintf(stderr, "error: %s\n", message);
    fflush(NULL);
    mpp_watch_failing(t->watch, code);
    t->leaving.leave(t->leaving.user, code);
}

static void tcp_place_here(const struct mpp_rank *r, int *index_out, int *count_out)
{
    const char (*hosts)[MPP_HOST_NAME] = mpp_tcp_meeting_hosts(tcp_of(r)->meeting);
    *index_out = *count_out = 0;
    for (int i = 0; i < r->n_ranks; i++)
        if (strcmp(hosts[i], hosts[r->rank]) == 0) {
            *index_out += i < r->rank;
            ++*count_out;
        }
}

static void tcp_stopped(struct mpp_rank *r, int number)
{
    mpp_watch_stopped(tcp_of(r)->watch, number);
}

static void tcp_follow(struct mpp_rank *r)
{
    mpp_watch_follow(tcp_of(r)->watch, r);
}

static void tcp_free(struct mpp_transport *base)
{
    struct tcp *t = (struct tcp *)base;
    mpp_watch_free(t->watch);
    for (int i = 0; t->lines != NULL && i < t->n_ranks; i++)
        if (t->lines[i].fd >= 0)
            close(t->lines[i].fd);
    for (int i = 0; t->flows != NULL && i < t->n_flows; i++)
        if (t->flows[i].fd >= 0)
            close(t->flows[i].fd);
    mpp_tcp_meeting_free(t->meeting);
    free(t->lines);
    free(t->flows);
    free(t->first_flow);
    free(t->polls);
    free(t->staged);
    free(t);
}

static const struct mpp_transport_ops tcp_ops = {
    .name = "TCP",
    .free = tcp_free,
    .barrier = tcp_barrier,
    .all_reduce = tcp_all_reduce,
    .look = tcp_look,
    .wait = tcp_look,
    .all_gather = tcp_all_gather,
    .reduce_scatter = tcp_reduce_scatter,
    .all_reduce_half = tcp_all_reduce_half,
    .reduce_scatter_half = tcp_reduce_scatter_half,
    .all_to_all = tcp_all_to_all,
    .send = tcp_send,
    .receive = tcp_receive,
    .transfer_send = tcp_transfer_send,
    .transfer_receive = tcp_transfer_receive,
    .drain = tcp_drain,
    .place_here = tcp_place_here,
    .stopped = tcp_stopped,
    .follow = tcp_follow,
    .abort = tcp_abort,
};

/* The parts of TRANSFER that this rank has. */
static int add_flows(struct tcp *t, const struct mpp_program *program, int transfer, struct mpp_error *error)
{
    const struct mpp_transfer *p = &program->transfers[transfer];
    int stage = mpp_mesh_stage_of(program, t->rank), n = 0;
    struct mpp_part *parts = NULL;
    t->first_flow[transfer] = t->first_flow[transfer + 1] = t->n_flows;
    if (stage != p->from && stage != p->to)
        return MPP_EXIT_OK;
    int code = mpp_transfer_parts(program, p, t->rank, &parts, &n, error);
    if (code != MPP_EXIT_OK)
        return code;
    struct mpp_tcp_flow *more = realloc(t->flows, (size_t)(t->n_flows + n + 1) * sizeof *more);
    if (more != NULL)
        t->flows = more;
    else
        code = mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: out of memory", t->rank);
    for (int i = 0; code == MPP_EXIT_OK && i < n; i++)
        t->flows[t->n_flows++] = mpp_tcp_flow_of(program, transfer, &parts[i], stage == p->from);
    t->first_flow[transfer + 1] = t->n_flows;
    free(parts);
    return code;
}

/* All memory, and the watch, before ranks are connected. */
static int prepare(struct tcp *t, const struct mpp_program *program, const struct mpp_transport_settings *settings,
                   struct mpp_error *error)
{
    struct mpp_watch_settings watch = settings->watch;
    int code = MPP_EXIT_OK;
    watch.unwatched = true;
    t->leaving = watch;
    t->call_elements = settings->call_elements > 0 ? settings->call_elements : INT64_MAX;
    t->staged_bytes = t->n_ranks > STAGED_BYTES / 4 ? 4 * (int64_t)t->n_ranks : STAGED_BYTES;
    t->lines = calloc((size_t)t->n_ranks, sizeof *t->lines);
    t->first_flow = calloc((size_t)program->n_transfers + 1, sizeof *t->first_flow);
    t->staged = calloc((size_t)t->staged_bytes, 1);
    if (t->lines == NULL || t->first_flow == NULL || t->staged == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: out of memory", t->rank);
    for (int i = 0; i < t->n_ranks; i++)
        t->lines[i].fd = -1;
    for (int i = 0; code == MPP_EXIT_OK && i < program->n_transfers; i++)
        code = add_flows(t, program, i, error);
    t->polls = calloc((size_t)(t->n_ranks + t->n_flows), sizeof *t->polls);
    if (code == MPP_EXIT_OK && t->polls == NULL)
        code = mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: out of memory", t->rank);
    t->watch = code == MPP_EXIT_OK ? mpp_watch_new(&watch, error) : NULL;
    if (t->watch == NULL)
        return code != MPP_EXIT_OK ? code : MPP_EXIT_SYSTEM;
    mpp_watch_place(t->watch, t->rank, t->n_ranks, mpp_tcp_meeting_hosts(t->meeting));
    return code;
}

/* Does this rank, or PEER, watch over the other? */
static bool is_watched(const struct tcp *t, int peer)
{
    for (int c = 0; c < MPP_WATCH_CENTRES; c++)
        if (mpp_watch_centre(t->watch, c) == t->rank || mpp_watch_centre(t->watch, c) == peer)
            return true;
    return false;
}

/* Connections with all other ranks, those of transfers, and those of the watch. */
static int connect_all(struct tcp *t, int code, struct mpp_error *error)
{
    int n = 0;
    struct mpp_tcp_link *links = code == MPP_EXIT_OK ? malloc((size_t)(2 * t->n_ranks + t->n_flows) * sizeof *links) : NULL;
    int *watched = code == MPP_EXIT_OK ? malloc((size_t)t->n_ranks * sizeof *watched) : NULL;
    if (code == MPP_EXIT_OK && (links == NULL || watched == NULL))
        code = mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: out of memory", t->rank);
    for (int i = 0; code == MPP_EXIT_OK && i < t->n_ranks; i++) {
        if (i != t->rank)
            links[n++] = (struct mpp_tcp_link){.peer = i, .use = MPP_TCP_MAIN};
        if (i != t->rank && is_watched(t, i))
            links[n++] = (struct mpp_tcp_link){.peer = i, .use = MPP_TCP_WATCH};
        watched[i] = -1;
    }
    for (int i = 0; code == MPP_EXIT_OK && i < t->n_flows; i++)
        links[n++] = (struct mpp_tcp_link){.peer = t->flows[i].peer, .use = t->flows[i].transfer};
    code = mpp_tcp_meeting_connect(t->meeting, code, links, n, error);
    for (int i = 0, flow = 0; code == MPP_EXIT_OK && i < n; i++) {
        const struct mpp_tcp_link *l = &links[i];
        if (l->use == MPP_TCP_MAIN)
            t->lines[l->peer].fd = l->fd;
        else if (l->use == MPP_TCP_WATCH)
            watched[l->peer] = l->fd;
        else
            t->flows[flow++].fd = l->fd;
        mpp_link_of(l->fd, l->use == MPP_TCP_WATCH ? t->leaving.silence_s : 0); /* who computes reads nothing for as long as that takes */
    }
    if (code == MPP_EXIT_OK && !mpp_watch_begin(t->watch, watched)) {
        for (int i = 0; i < t->n_ranks; i++)
            if (watched[i] >= 0)
                close(watched[i]);
        code = mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: out of memory", t->rank);
    }
    free(links);
    free(watched);
    return code;
}

struct mpp_transport *mpp_transport_tcp_new(const struct mpp_program *program, const struct mpp_transport_settings *settings,
                                            const struct mpp_tcp_place *place, struct mpp_error *error)
{
    int n = mpp_mesh_ranks(program);
    struct tcp *t = calloc(1, sizeof *t);
    if (t == NULL) {
        (void)mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: out of memory", place->rank);
        return NULL;
    }
    t->base.ops = &tcp_ops;
    t->rank = place->rank;
    t->n_ranks = n;
    int code = MPP_EXIT_OK;
    if (place->size != n)
        code = mpp_error_set(error, MPP_EXIT_INPUT, "the plan is for %d device%s, but WORLD_SIZE is %d; start %d", n, n == 1 ? "" : "s",
                             place->size, n);
    if (code == MPP_EXIT_OK)
        code = mpp_tcp_meet(place, settings->mark, settings->watch.timeout_s, &t->meeting, error);
    if (code == MPP_EXIT_OK)
        code = connect_all(t, prepare(t, program, settings, error), error);
    if (code == MPP_EXIT_OK)
        return &t->base;
    tcp_free(&t->base);
    return NULL;
}
