/* nccl.cpp - communicators between ranks of one machine, which are threads of one process or processes of their own.
 *
 * A member has a socket to each other one. A long message is a file in memory (memfd), written once; what goes through the sockets
 * is its descriptor. So a send waits for nobody, nothing is left of a process that was killed, and who waits for a member that is gone
 * or has aborted sees its socket end: ncclRemoteError. A collective is a message to all others and one from each; sums are formed
 * in the order of ranks. A group is done at its end, receives last.
 *
 * Operations of a communicator are done in the order in which they were given, on whatever streams. Where streams have queues, one
 * that fails because another member is gone goes on until its own communicator is ended, as on a GPU.
 *
 * Members meet at sockets named by the unique id and their rank, which are in no file system: each calls those before it. */
#include <atomic>
#include <errno.h>
#include <map>
#include <nccl.h>
#include <poll.h>
#include <pthread.h>
#include <shim_queues.h>
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
    GLANCE_MS = 20,
};

namespace {

struct member {
    int n, rank, listener, missing;
    std::string id;
    std::vector<int> peer; /* sockets, by rank; -1: not met yet */
    int self;              /* what is sent here arrives at the own one */
    std::atomic<bool> ended; /* what is left to do is not done */
    std::shared_ptr<mpp_shim_turns> turns;
    std::vector<std::shared_ptr<mpp_shim_turns>> others; /* by rank; NULL: of another process */
    ~member();
};

} // namespace

/* Operations that are not done yet hold on to the member, too. */
struct ncclComm {
    std::shared_ptr<member> self;
};

namespace {

/* A collective, a send to PEER or a receive from it. */
struct call {
    const void *src;
    void *dst;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    std::shared_ptr<member> comm;
    int peer;
    ncclResult_t (*run)(const call *);
    cudaStream_t stream;
};

uint64_t n_ids;
__thread int group_depth;
__thread std::vector<call> *calls; /* of the open group */

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
std::map<std::pair<std::string, int>, std::shared_ptr<mpp_shim_turns>> turns_here; /* of members of this process: (id, rank) */

member::~member()
{
    for (int line : peer)
        if (line >= 0)
            close(line);
    if (self >= 0)
        close(self);
    if (listener >= 0)
        close(listener);
}

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
void call_others(member *c)
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
void take_calls(member *c)
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

/* A message to member TO, who takes some when there are many. */
ncclResult_t post(member *c, int to, const struct msghdr *m)
{
    int line = to == c->rank ? c->self : c->peer[(size_t)to];
    ssize_t n = sendmsg(line, m, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) {
        mpp_shim_blocks_begin(c->others[(size_t)to]);
        for (struct pollfd room = {line, POLLOUT, 0}; n < 0 && errno == EAGAIN && !c->ended;) {
            (void)poll(&room, 1, GLANCE_MS); /* nobody wakes it when this side ends */
            n = sendmsg(line, m, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        mpp_shim_blocks_end(c->others[(size_t)to]);
    }
    return n > 0 ? ncclSuccess : ncclRemoteError;
}

/* To member TO, or, where TO < 0, to all others. */
ncclResult_t give(member *c, int to, const void *src, size_t bytes)
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
            code = post(c, i, &r.m);
    if (file >= 0)
        close(file);
    return code;
}

/* Waits for the next message of member FROM, which must have so many BYTES, and puts it into DST. */
ncclResult_t take(member *c, int from, void *dst, size_t bytes)
{
    record r;
    int file = -1;
    prepare(&r, dst, bytes);
    struct pollfd line = {c->peer[(size_t)from], POLLIN, 0};
    int ready = poll(&line, 1, 0);
    if (ready == 0) {
        mpp_shim_blocks_begin(c->others[(size_t)from]);
        ready = poll(&line, 1, 1000 * PATIENCE_S);
        mpp_shim_blocks_end(c->others[(size_t)from]);
    }
    if (ready == 0)
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
ncclResult_t combine(member *c, const float *own, size_t count, ncclRedOp_t op, float *y)
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

/* ---- operations ---- */

ncclResult_t all_reduce(const call *c)
{
    ncclResult_t code = give(c->comm.get(), -1, c->src, c->count * sizeof(float));
    return code == ncclSuccess ? combine(c->comm.get(), (const float *)c->src, c->count, c->op, (float *)c->dst) : code;
}

ncclResult_t reduce_scatter(const call *c)
{
    const float *x = (const float *)c->src;
    ncclResult_t code = ncclSuccess;
    for (int i = 0; code == ncclSuccess && i < c->comm->n; i++)
        if (i != c->comm->rank)
            code = give(c->comm.get(), i, x + (size_t)i * c->count, c->count * sizeof *x);
    x += (size_t)c->comm->rank * c->count;
    return code == ncclSuccess ? combine(c->comm.get(), x, c->count, c->op, (float *)c->dst) : code;
}

ncclResult_t all_gather(const call *c)
{
    size_t bytes = c->count * bytes_of(c->type);
    ncclResult_t code = give(c->comm.get(), -1, c->src, bytes);
    if (code == ncclSuccess && bytes > 0)
        memmove((char *)c->dst + (size_t)c->comm->rank * bytes, c->src, bytes); /* it may be in place */
    for (int i = 0; code == ncclSuccess && i < c->comm->n; i++)
        if (i != c->comm->rank)
            code = take(c->comm.get(), i, (char *)c->dst + (size_t)i * bytes, bytes);
    return code;
}

ncclResult_t send_one(const call *c)
{
    return give(c->comm.get(), c->peer, c->src, c->count * bytes_of(c->type));
}

ncclResult_t receive_one(const call *c)
{
    return take(c->comm.get(), c->peer, c->dst, c->count * bytes_of(c->type));
}

int run_calls(const std::vector<call> *group)
{
    ncclResult_t code = ncclSuccess;
    for (int receives = 0; receives < 2; receives++)
        for (const call &c : *group)
            if (code == ncclSuccess && (c.run == receive_one) == (receives == 1))
                code = c.run(&c);
    return code;
}

/* The same on a queue, where nobody takes the code. */
int run_kept(const std::vector<call> *group)
{
    for (const call &c : *group)
        if (c.comm->ended)
            return ncclRemoteError;
    int code = run_calls(group);
    if (code == ncclSuccess || mpp_shim_streams() == MPP_SHIM_AT_ONCE)
        return code;
    mpp_shim_blocks_begin(NULL);
    for (int i = 0; i < PATIENCE_S * 1000 && !(*group)[0].comm->ended; i++)
        usleep(1000);
    mpp_shim_blocks_end(NULL);
    return code;
}

/* Members of other processes cannot tell that they wait. */
void look_for_others(member *c)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < c->n; i++) {
        std::map<std::pair<std::string, int>, std::shared_ptr<mpp_shim_turns>>::iterator at = turns_here.find({c->id, i});
        if (at != turns_here.end())
            c->others[(size_t)i] = at->second;
        else
            mpp_shim_turns_hurry(c->turns);
    }
    pthread_mutex_unlock(&lock);
}

/* Now, when the stream's queue comes to them, or whenever the graph is launched that the stream records. */
ncclResult_t start(const std::vector<call> &group)
{
    cudaStream_t stream = group[0].stream;
    std::vector<std::shared_ptr<mpp_shim_turns>> turns;
    if (!mpp_shim_keeps(stream)) {
        ncclResult_t code = (ncclResult_t)run_calls(&group);
        for (size_t i = 0; i < group.size(); i++)
            mpp_shim_gave(stream);
        return code;
    }
    for (const call &c : group)
        if (turns.empty() || turns.back() != c.comm->turns)
            turns.push_back(c.comm->turns);
    return mpp_shim_keep<std::vector<call>>(stream, group, run_kept, turns) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t add(const call &c)
{
    if (group_depth == 0)
        return start({c});
    calls->push_back(c);
    return ncclSuccess;
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
    std::shared_ptr<member> c(new member{n, rank, -1, n - 1, id.internal, std::vector<int>((size_t)n, -1), -1, false,
                                         mpp_shim_turns_new(), std::vector<std::shared_ptr<mpp_shim_turns>>((size_t)n)});
    pthread_mutex_lock(&lock); /* before others can meet it: then they look */
    turns_here[{c->id, rank}] = c->turns;
    pthread_mutex_unlock(&lock);
    c->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->listener < 0 || bind(c->listener, (struct sockaddr *)&at, bytes) != 0 || listen(c->listener, n) != 0
        || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, self) != 0)
        return ncclSystemError;
    c->peer[(size_t)rank] = self[0];
    c->self = self[1];
    *out = new ncclComm{c};
    return ncclSuccess;
}

static void not_in_group(void)
{
    if (group_depth > 0) {
        fprintf(stderr, "CUDA shim: a communicator is to end within an open group\n");
        abort();
    }
}

static ncclResult_t end(ncclComm_t comm)
{
    member *c = comm->self.get();
    c->ended = true;
    for (int line : c->peer) /* who waits in an operation wakes up */
        if (line >= 0)
            shutdown(line, SHUT_RDWR);
    pthread_mutex_lock(&lock);
    turns_here.erase({c->id, c->rank});
    pthread_mutex_unlock(&lock);
    delete comm;
    return ncclSuccess;
}

/* What was begun is done. What others have not taken yet stays theirs. In an open group NCCL would put this off until the group's end. */
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    not_in_group();
    mpp_shim_turns_await(comm->self->turns);
    return end(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    not_in_group();
    return end(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out)
{
    member *c = comm->self.get();
    bool met = c->missing == 0;
    call_others(c);
    take_calls(c);
    if (c->missing == 0 && c->listener >= 0) {
        close(c->listener);
        c->listener = -1;
    }
    if (c->missing == 0 && !met)
        look_for_others(c);
    if (c->missing > 0) { /* others have yet to come: a moment for them */
        struct pollfd waiting = {c->listener, POLLIN, 0};
        (void)poll(&waiting, 1, 1);
    }
    *out = c->missing > 0 ? ncclInProgress : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    if (group_depth++ == 0)
        calls = new std::vector<call>();
    return ncclSuccess;
}

/* What a stream was given in the group is one. */
ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t code = ncclSuccess;
    if (group_depth == 0)
        return ncclInvalidUsage;
    if (--group_depth > 0)
        return ncclSuccess;
    while (!calls->empty() && code == ncclSuccess) {
        std::vector<call> group, rest;
        for (const call &c : *calls)
            (c.stream == (*calls)[0].stream ? group : rest).push_back(c);
        code = start(group);
        *calls = rest;
    }
    delete calls;
    calls = NULL;
    return code;
}

ncclResult_t ncclAllReduce(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream)
{
    return type == ncclFloat32 ? add(call{src, dst, count, type, op, comm->self, 0, all_reduce, stream}) : ncclInvalidArgument;
}

ncclResult_t ncclReduceScatter(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream)
{
    return type == ncclFloat32 ? add(call{src, dst, count, type, op, comm->self, 0, reduce_scatter, stream}) : ncclInvalidArgument;
}

ncclResult_t ncclAllGather(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)
{
    return add(call{src, dst, count, type, ncclSum, comm->self, 0, all_gather, stream});
}

ncclResult_t ncclSend(const void *src, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return add(call{src, NULL, count, type, ncclSum, comm->self, peer, send_one, stream});
}

ncclResult_t ncclRecv(void *dst, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return add(call{NULL, dst, count, type, ncclSum, comm->self, peer, receive_one, stream});
}
