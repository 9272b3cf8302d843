/* nccl.cpp - communicators between ranks of one machine, which are threads of one process or processes of their own.
 *
 * A member has a socket to each other one. A long message is a file in memory (memfd), written once; what goes through the sockets
 * is its descriptor. So a send waits for nobody, nothing is left of a process that was killed, and who waits for a member that is gone
 * or has aborted sees its socket end: ncclRemoteError. A collective is a message to all others and one from each; sums are formed
 * in the order of ranks. Receives of a group are done at its end.
 *
 * Members meet at sockets named by the unique id and their rank, which are in no file system: each calls those before it. */
#include <nccl.h>
#include <poll.h>
#include <shim_capture.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <vector>

enum {
    PATIENCE_S = 600, /* of ranks that tests make; --timeout ends jobs before */
    SHORT = 16384,    /* bytes of a message that needs no file */
};

struct ncclComm {
    int n, rank, listener, missing;
    std::string id;
    std::vector<int> peer; /* sockets, by rank; -1: not met yet */
    int self;              /* what is sent here arrives at the own one */
};

namespace {

struct receipt {
    ncclComm_t comm;
    void *dst;
    size_t bytes;
    int peer;
    cudaStream_t stream;
};

/* A collective, or a send to PEER. */
struct call {
    const void *src;
    void *dst;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    ncclComm_t comm;
    int peer;
};

/* Now, or whenever the graph is launched that STREAM records. */
template <class Job> ncclResult_t do_on(cudaStream_t stream, const Job &job, int (*run)(const Job *))
{
    if (!mpp_shim_captures(stream)) {
        ncclResult_t code = (ncclResult_t)run(&job);
        mpp_shim_gave(stream);
        return code;
    }
    return mpp_shim_keep<Job>(stream, job, run) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

uint64_t n_ids;
__thread int group_depth;
__thread std::vector<receipt> *receipts; /* of the open group */

size_t bytes_of(ncclDataType_t type)
{
    return type == ncclInt8 ? 1 : type == ncclFloat16 || type == ncclBfloat16 ? 2 : 4;
}

/* ---- meeting ---- */

struct sockaddr_un address(const std::string &id, int rank, socklen_t *bytes_out)
{
    struct sockaddr_un at = {AF_UNIX, {0}}; /* a name that begins with '\0' lies in no folder */
    int n = snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "%s %d", id.c_str(), rank);
    *bytes_out = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    return at;
}

/* Calls the members before this one, as far as they listen. */
void call_others(ncclComm_t c)
{
    for (int i = 0; i < c->rank; i++) {
        socklen_t bytes;
        struct sockaddr_un at = address(c->id, i, &bytes);
        if (c->peer[(size_t)i] >= 0)
            continue;
        int line = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (line >= 0 && connect(line, (struct sockaddr *)&at, bytes) == 0 && send(line, &c->rank, sizeof c->rank, MSG_NOSIGNAL) > 0) {
            c->peer[(size_t)i] = line;
            c->missing--;
        } else if (line >= 0) {
            close(line);
        }
    }
}

/* Takes the calls of members after this one, which tell their rank. */
void take_calls(ncclComm_t c)
{
    int line, rank;
    while (c->listener >= 0 && (line = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        if (recv(line, &rank, sizeof rank, 0) == (ssize_t)sizeof rank && rank > c->rank && rank < c->n && c->peer[(size_t)rank] < 0) {
            c->peer[(size_t)rank] = line;
            c->missing--;
        } else {
            close(line);
        }
    }
}

/* ---- messages ---- */

/* What goes through a socket: the bytes of a message, then a short one itself, or the descriptor of its file. */
struct record {
    size_t bytes;
    struct iovec data[2];
    alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    struct msghdr m;
};

void prepare(record *r, void *data, size_t bytes)
{
    memset(r, 0, sizeof *r);
    r->bytes = bytes;
    r->data[0] = iovec{&r->bytes, sizeof r->bytes};
    r->data[1] = iovec{data, bytes <= SHORT ? bytes : 0};
    r->m.msg_iov = r->data;
    r->m.msg_iovlen = 2;
    r->m.msg_control = bytes <= SHORT ? NULL : r->control;
    r->m.msg_controllen = bytes <= SHORT ? 0 : sizeof r->control;
}

/* A file in memory that holds SRC; -1: there is no room for one. */
int file_of(const void *src, size_t bytes)
{
    int file = memfd_create("nccl", MFD_CLOEXEC);
    for (size_t done = 0; file >= 0 && done < bytes;) {
        ssize_t n = write(file, (const char *)src + done, bytes - done);
        if (n <= 0) {
            close(file);
            return -1;
        }
        done += (size_t)n;
    }
    return file;
}

/* To member TO, or, where TO < 0, to all others. */
ncclResult_t give(ncclComm_t c, int to, const void *src, size_t bytes)
{
    record r;
    prepare(&r, (void *)(uintptr_t)src, bytes);
    int file = bytes > SHORT ? file_of(src, bytes) : -1;
    if (bytes > SHORT && file < 0)
        return ncclSystemError;
    if (file >= 0) {
        struct cmsghdr *rights = CMSG_FIRSTHDR(&r.m);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof file);
        memcpy(CMSG_DATA(rights), &file, sizeof file);
    }
    ncclResult_t code = ncclSuccess;
    for (int i = 0; code == ncclSuccess && i < c->n; i++)
        if (to < 0 ? i != c->rank : i == to)
            code = sendmsg(i == c->rank ? c->self : c->peer[(size_t)i], &r.m, MSG_NOSIGNAL) > 0 ? ncclSuccess : ncclRemoteError;
    if (file >= 0)
        close(file);
    return code;
}

/* Waits for the next message of member FROM, which must have so many BYTES, and puts it into DST. */
ncclResult_t take(ncclComm_t c, int from, void *dst, size_t bytes)
{
    record r;
    int file = -1;
    prepare(&r, dst, bytes);
    struct pollfd line = {c->peer[(size_t)from], POLLIN, 0};
    if (poll(&line, 1, 1000 * PATIENCE_S) == 0)
        return ncclSystemError;
    if (recvmsg(line.fd, &r.m, MSG_CMSG_CLOEXEC) <= 0)
        return ncclRemoteError;
    if (r.bytes != bytes) {
        fprintf(stderr, "CUDA shim: %zu bytes received, or taken in a collective, where %zu were sent\n", bytes, r.bytes);
        abort();
    }
    if (bytes > SHORT)
        memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&r.m)), sizeof file);
    ncclResult_t code = ncclSuccess;
    for (size_t done = 0; file >= 0 && done < bytes && code == ncclSuccess;) {
        ssize_t n = pread(file, (char *)dst + done, bytes - done, (off_t)done);
        code = n > 0 ? ncclSuccess : ncclSystemError;
        done += n > 0 ? (size_t)n : 0;
    }
    if (file >= 0)
        close(file);
    return code;
}

/* Y [count] = the sum or maximum over the members of what they bring for this one, in the order of ranks; OWN is this one's. */
ncclResult_t combine(ncclComm_t c, const float *own, size_t count, ncclRedOp_t op, float *y)
{
    std::vector<float> other(count), sum(count);
    ncclResult_t code = ncclSuccess;
    for (int i = 0; code == ncclSuccess && i < c->n; i++) {
        const float *x = i == c->rank ? own : other.data();
        if (i != c->rank)
            code = take(c, i, other.data(), count * sizeof *x);
        for (size_t k = 0; code == ncclSuccess && k < count; k++)
            sum[k] = i == 0 ? x[k] : op == ncclSum ? sum[k] + x[k] : x[k] > sum[k] ? x[k] : sum[k];
    }
    if (code == ncclSuccess && count > 0)
        memcpy(y, sum.data(), count * sizeof *y);
    return code;
}

int accept_one(const receipt *r)
{
    return take(r->comm, r->peer, r->dst, r->bytes);
}

} // namespace

const char *ncclGetErrorString(ncclResult_t code)
{
    switch (code) {
    case ncclSuccess: return "no error";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclSystemError: return "unhandled system error";
    default: return "invalid usage";
    }
}

const char *ncclGetLastError(ncclComm_t)
{
    return "";
}

ncclResult_t ncclGetVersion(int *version_out)
{
    *version_out = 22700;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *out)
{
    struct timespec now;
    memset(out, 0, sizeof *out);
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(out->internal, sizeof out->internal, "nccl %ld %lld.%09ld %llu", (long)getpid(), (long long)now.tv_sec, now.tv_nsec,
             (unsigned long long)__atomic_add_fetch(&n_ids, 1, __ATOMIC_RELAXED));
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    int self[2];
    socklen_t bytes;
    struct sockaddr_un at = address(id.internal, rank, &bytes);
    if (config->blocking != 0)
        return ncclInvalidArgument;
    ncclComm_t c = new ncclComm{n, rank, -1, n - 1, id.internal, std::vector<int>((size_t)n, -1), -1};
    c->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->listener < 0 || bind(c->listener, (struct sockaddr *)&at, bytes) != 0 || listen(c->listener, n) != 0
        || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, self) != 0) {
        (void)ncclCommDestroy(c);
        return ncclSystemError;
    }
    c->peer[(size_t)rank] = self[0];
    c->self = self[1];
    *out = c;
    return ncclSuccess;
}

/* What others have not taken yet stays theirs. In an open group NCCL would put this off until the group's end. */
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (group_depth > 0) {
        fprintf(stderr, "CUDA shim: a communicator is to end within an open group\n");
        abort();
    }
    for (int line : comm->peer)
        if (line >= 0)
            close(line);
    if (comm->self >= 0)
        close(comm->self);
    if (comm->listener >= 0)
        close(comm->listener);
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    return ncclCommDestroy(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out)
{
    call_others(comm);
    take_calls(comm);
    if (comm->missing == 0 && comm->listener >= 0) {
        close(comm->listener);
        comm->listener = -1;
    }
    if (comm->missing > 0) { /* others have yet to come: a moment for them */
        struct pollfd calls = {comm->listener, POLLIN, 0};
        (void)poll(&calls, 1, 1);
    }
    *out = comm->missing > 0 ? ncclInProgress : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    if (group_depth++ == 0)
        receipts = new std::vector<receipt>();
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t code = ncclSuccess;
    if (group_depth == 0)
        return ncclInvalidUsage;
    if (--group_depth > 0)
        return ncclSuccess;
    for (const receipt &r : *receipts)
        if (code == ncclSuccess)
            code = do_on(r.stream, r, accept_one);
    delete receipts;
    receipts = NULL;
    return code;
}

static int all_reduce(const call *c)
{
    ncclResult_t code = give(c->comm, -1, c->src, c->count * sizeof(float));
    return code == ncclSuccess ? combine(c->comm, (const float *)c->src, c->count, c->op, (float *)c->dst) : code;
}

static int reduce_scatter(const call *c)
{
    const float *x = (const float *)c->src;
    ncclResult_t code = ncclSuccess;
    for (int i = 0; code == ncclSuccess && i < c->comm->n; i++)
        if (i != c->comm->rank)
            code = give(c->comm, i, x + (size_t)i * c->count, c->count * sizeof *x);
    return code == ncclSuccess ? combine(c->comm, x + (size_t)c->comm->rank * c->count, c->count, c->op, (float *)c->dst) : code;
}

static int all_gather(const call *c)
{
    size_t bytes = c->count * bytes_of(c->type);
    ncclResult_t code = give(c->comm, -1, c->src, bytes);
    if (code == ncclSuccess && bytes > 0)
        memmove((char *)c->dst + (size_t)c->comm->rank * bytes, c->src, bytes); /* it may be in place */
    for (int i = 0; code == ncclSuccess && i < c->comm->n; i++)
        if (i != c->comm->rank)
            code = take(c->comm, i, (char *)c->dst + (size_t)i * bytes, bytes);
    return code;
}

static int send_one(const call *c)
{
    return give(c->comm, c->peer, c->src, c->count * bytes_of(c->type));
}

ncclResult_t ncclAllReduce(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream)
{
    return type == ncclFloat32 ? do_on(stream, call{src, dst, count, type, op, comm, 0}, all_reduce) : ncclInvalidArgument;
}

ncclResult_t ncclReduceScatter(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream)
{
    return type == ncclFloat32 ? do_on(stream, call{src, dst, count, type, op, comm, 0}, reduce_scatter) : ncclInvalidArgument;
}

ncclResult_t ncclAllGather(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)
{
    return do_on(stream, call{src, dst, count, type, ncclSum, comm, 0}, all_gather);
}

ncclResult_t ncclSend(const void *src, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return do_on(stream, call{src, NULL, count, type, ncclSum, comm, peer}, send_one);
}

ncclResult_t ncclRecv(void *dst, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    receipt r = {comm, dst, count * bytes_of(type), peer, stream};
    if (group_depth == 0)
        return do_on(stream, r, accept_one);
    receipts->push_back(r);
    return ncclSuccess;
}
