/* transport_tcp_streams.c - bytes of messages go in and out of connections. */
#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "transport_tcp_streams.h"

enum { HEAD = sizeof(struct mpp_tcp_head), PIECES = 64 /* of one call */ };
#define CALL_BYTES ((int64_t)1 << 24) /* of one call, so that others get on, too */

static struct iovec piece_of(const void *data, int64_t bytes)
{
    return (struct iovec){.iov_base = (void *)(uintptr_t)data, .iov_len = (size_t)(bytes < CALL_BYTES ? bytes : CALL_BYTES)};
}

/* One call. *MOVED_OUT: bytes. */
static enum mpp_tcp_state move(int fd, bool out, struct iovec *v, int n, int64_t *moved_out)
{
    struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)n};
    ssize_t moved = out ? sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) : recvmsg(fd, &m, MSG_DONTWAIT);
    *moved_out = moved > 0 ? moved : 0;
    if (moved > 0)
        return MPP_TCP_MOVED;
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return MPP_TCP_STUCK;
    if (moved == 0)
        errno = 0;
    return MPP_TCP_LOST;
}

static bool is_due(const struct mpp_tcp_head *came, const struct mpp_tcp_head *due)
{
    return came->tag == due->tag && came->bytes == due->bytes;
}

/* ---- messages -------------------------------------------------------------------------------------------- */

void mpp_tcp_post(struct mpp_tcp_message *m, const void *data, int64_t bytes, int64_t tag)
{
    struct mpp_tcp_head head = {.tag = tag, .bytes = bytes};
    *m = (struct mpp_tcp_message){.data = (char *)(uintptr_t)data, .head = head, .due = head, .left = HEAD + bytes};
}

static enum mpp_tcp_state move_message(int fd, bool out, struct mpp_tcp_message *m)
{
    struct iovec v[2];
    int64_t moved, data_left = m->left < m->due.bytes ? m->left : m->due.bytes;
    int n = 0;
    if (m->left == 0)
        return MPP_TCP_IDLE;
    if (m->left > m->due.bytes)
        v[n++] = piece_of((const char *)&m->head + (HEAD + m->due.bytes - m->left), m->left - m->due.bytes);
    if (data_left > 0)
        v[n++] = piece_of(m->data + (m->due.bytes - data_left), data_left);
    enum mpp_tcp_state state = move(fd, out, v, n, &moved);
    m->left -= moved;
    return state;
}

enum mpp_tcp_state mpp_tcp_push(struct mpp_tcp_line *line)
{
    return move_message(line->fd, true, &line->out);
}

enum mpp_tcp_state mpp_tcp_pull(struct mpp_tcp_line *line)
{
    enum mpp_tcp_state state = move_message(line->fd, false, &line->in);
    bool has_head = line->in.left <= line->in.due.bytes;
    return state == MPP_TCP_MOVED && has_head && !is_due(&line->in.head, &line->in.due) ? MPP_TCP_ODD : state;
}

/* ---- parts of transfers ------------------------------------------------------------------------------------ */

struct mpp_tcp_flow mpp_tcp_flow_of(const struct mpp_program *program, int transfer, const struct mpp_part *part, bool sends)
{
    const struct mpp_transfer *t = &program->transfers[transfer];
    struct mpp_tcp_flow f = {.fd = -1, .peer = part->peer, .transfer = transfer, .sends = sends, .part = *part,
                             .bytes = mpp_type_bytes(t->type), .stride = t->stride, .depth = t->depth};
    f.rows = mpp_part_rows(part, f.bytes, &f.run);
    f.head = (struct mpp_tcp_head){.tag = transfer, .bytes = f.rows * f.run};
    return f;
}

/* What of the message with its rows in LOCAL is still to move, up to PIECES pieces. HEAD_BYTES: of the head. */
static int pieces_of(const struct mpp_tcp_flow *f, const char *local, const struct mpp_tcp_head *head, struct iovec v[PIECES])
{
    int n = 0;
    int64_t at = f->at - HEAD, total = 0;
    if (at < 0) {
        v[n++] = piece_of((const char *)head + f->at, -at);
        at = 0;
    }
    for (int64_t row = at / f->run, skip = at % f->run; n < PIECES && row < f->rows && total < CALL_BYTES; row++, skip = 0) {
        v[n] = piece_of(local + mpp_part_row(&f->part, f->bytes, row, f->sends) + skip, f->run - skip);
        total += (int64_t)v[n].iov_len;
        if ((int64_t)v[n++].iov_len < f->run - skip)
            break;
    }
    return n;
}

static enum mpp_tcp_state move_rows(struct mpp_tcp_flow *f, const char *local, struct mpp_tcp_head *head)
{
    struct iovec v[PIECES];
    int64_t moved;
    enum mpp_tcp_state state = move(f->fd, f->sends, v, pieces_of(f, local, head, v), &moved);
    f->at += moved;
    return state;
}

enum mpp_tcp_state mpp_tcp_flow_push(struct mpp_tcp_flow *f)
{
    if (f->done == f->posted)
        return MPP_TCP_IDLE;
    enum mpp_tcp_state state = move_rows(f, f->ring + f->done % f->depth * f->stride, &f->head);
    if (f->at == HEAD + f->head.bytes) {
        f->at = 0;
        f->done++;
    }
    return state;
}

enum mpp_tcp_state mpp_tcp_flow_pull(struct mpp_tcp_flow *f)
{
    struct mpp_tcp_head due = {.tag = f->transfer, .bytes = f->rows * f->run};
    if (f->done == f->posted)
        return MPP_TCP_IDLE;
    enum mpp_tcp_state state = move_rows(f, f->to, &f->head);
    if (f->at >= HEAD && !is_due(&f->head, &due))
        return MPP_TCP_ODD;
    if (f->at == HEAD + due.bytes) {
        f->at = 0;
        f->done++;
    }
    return state;
}
