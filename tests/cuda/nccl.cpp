/* nccl.cpp - communicators between threads of one process. Sums are formed in the order of ranks. A send copies its data and
 * goes on; receives of a group are done at its end. A thread that waits leaves with ncclRemoteError when a member aborts,
 * and with ncclSystemError after a minute: ranks that are processes of their own have no part in this. */
#include <deque>
#include <map>
#include <nccl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <time.h>
#include <vector>

enum { PATIENCE_S = 60 };

struct team {
    int n, users, joined, arrived;
    int reading;                                  /* members between the two meetings of a collective */
    std::string name;                             /* of its id */
    uint64_t generation;
    bool aborted;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    std::vector<const void *> src;
    std::vector<size_t> bytes;                    /* of each member's call, which must agree */
    std::map<int, std::deque<std::string>> mail; /* by from * n + to */
};

struct ncclComm {
    team *all;
    int rank;
};

namespace {

struct receipt {
    ncclComm_t comm;
    void *dst;
    size_t bytes;
    int peer;
};

pthread_mutex_t teams_lock = PTHREAD_MUTEX_INITIALIZER;
std::map<std::string, team *> teams; /* being formed */
uint64_t n_ids;
__thread int group_depth;
__thread std::vector<receipt> *receipts; /* of the open group */

size_t bytes_of(ncclDataType_t type)
{
    return type == ncclInt8 ? 1 : type == ncclFloat16 || type == ncclBfloat16 ? 2 : 4;
}

/* Waits while the lock is held; false: too long. */
bool wait_on(team *t)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE_S;
    return pthread_cond_timedwait(&t->wake, &t->lock, &end) == 0;
}

ncclResult_t barrier(team *t)
{
    ncclResult_t code = ncclSuccess;
    pthread_mutex_lock(&t->lock);
    uint64_t now = t->generation;
    if (++t->arrived == t->n) {
        t->arrived = 0;
        t->generation++;
        pthread_cond_broadcast(&t->wake);
    }
    while (code == ncclSuccess && t->generation == now)
        code = t->aborted ? ncclRemoteError : wait_on(t) ? ncclSuccess : ncclSystemError;
    pthread_mutex_unlock(&t->lock);
    return code;
}

/* All members tell what they bring, and then read it, until part(). */
ncclResult_t meet(ncclComm_t comm, const void *src, size_t bytes)
{
    team *t = comm->all;
    t->src[(size_t)comm->rank] = src;
    t->bytes[(size_t)comm->rank] = bytes;
    ncclResult_t code = barrier(t);
    for (int i = 0; code == ncclSuccess && i < t->n; i++)
        if (t->bytes[(size_t)i] != bytes) {
            fprintf(stderr, "CUDA shim: members of a communicator call a collective with %zu and %zu bytes\n", bytes,
                    t->bytes[(size_t)i]);
            abort();
        }
    if (code != ncclSuccess)
        return code;
    pthread_mutex_lock(&t->lock);
    code = t->aborted ? ncclRemoteError : ncclSuccess;
    t->reading += code == ncclSuccess;
    pthread_mutex_unlock(&t->lock);
    return code;
}

/* This member reads no more. When it returns, also after an abort, nobody does: what was brought may go. */
ncclResult_t part(team *t)
{
    pthread_mutex_lock(&t->lock);
    t->reading--;
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
    ncclResult_t code = barrier(t);
    pthread_mutex_lock(&t->lock);
    while (code != ncclSuccess && t->reading > 0)
        pthread_cond_wait(&t->wake, &t->lock);
    pthread_mutex_unlock(&t->lock);
    return code;
}

/* y [count] = the sum or maximum over the members of their floats from AT on, in the order of ranks. */
void reduce(const team *t, size_t at, size_t count, ncclRedOp_t op, float *y)
{
    for (int i = 0; i < t->n; i++) {
        const float *x = (const float *)t->src[(size_t)i] + at;
        if (i == 0)
            memcpy(y, x, count * sizeof *y);
        for (size_t k = 0; k < count && i > 0; k++)
            y[k] = op == ncclSum ? y[k] + x[k] : x[k] > y[k] ? x[k] : y[k];
    }
}

ncclResult_t take(const receipt *r)
{
    team *t = r->comm->all;
    ncclResult_t code = ncclSuccess;
    pthread_mutex_lock(&t->lock);
    std::deque<std::string> &box = t->mail[r->peer * t->n + r->comm->rank];
    while (code == ncclSuccess && box.empty())
        code = t->aborted ? ncclRemoteError : wait_on(t) ? ncclSuccess : ncclSystemError;
    if (code == ncclSuccess) {
        if (box.front().size() != r->bytes) {
            fprintf(stderr, "CUDA shim: %zu bytes received where %zu were sent\n", r->bytes, box.front().size());
            abort();
        }
        memcpy(r->dst, box.front().data(), r->bytes);
        box.pop_front();
    }
    pthread_mutex_unlock(&t->lock);
    return code;
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
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&teams_lock);
    snprintf(out->internal, sizeof out->internal, "team %llu", (unsigned long long)++n_ids);
    pthread_mutex_unlock(&teams_lock);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    if (config->blocking != 0)
        return ncclInvalidArgument;
    pthread_mutex_lock(&teams_lock);
    team *&t = teams[id.internal];
    if (t == NULL) {
        t = new team();
        t->n = n;
        t->name = id.internal;
        pthread_mutex_init(&t->lock, NULL);
        pthread_cond_init(&t->wake, NULL);
        t->src.resize((size_t)n);
        t->bytes.resize((size_t)n);
    }
    team *own = t;
    own->users++;
    own->joined++;
    if (own->joined == n)
        teams.erase(own->name);
    pthread_mutex_unlock(&teams_lock);
    *out = new ncclComm{own, rank};
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    team *t = comm->all;
    pthread_mutex_lock(&teams_lock);
    bool last = --t->users == 0;
    if (last && t->joined < t->n)
        teams.erase(t->name);
    pthread_mutex_unlock(&teams_lock);
    if (last) {
        pthread_mutex_destroy(&t->lock);
        pthread_cond_destroy(&t->wake);
        delete t;
    }
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->all->lock);
    comm->all->aborted = true;
    pthread_cond_broadcast(&comm->all->wake);
    pthread_mutex_unlock(&comm->all->lock);
    return ncclCommDestroy(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out)
{
    pthread_mutex_lock(&comm->all->lock);
    *out = comm->all->aborted ? ncclRemoteError : ncclSuccess;
    pthread_mutex_unlock(&comm->all->lock);
    pthread_mutex_lock(&teams_lock);
    *out = *out == ncclSuccess && comm->all->joined < comm->all->n ? ncclInProgress : *out;
    pthread_mutex_unlock(&teams_lock);
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
    for (size_t i = 0; code == ncclSuccess && i < receipts->size(); i++)
        code = take(&(*receipts)[i]);
    delete receipts;
    receipts = NULL;
    return code;
}

ncclResult_t ncclAllReduce(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t)
{
    if (type != ncclFloat32)
        return ncclInvalidArgument;
    std::vector<float> y(count);
    ncclResult_t code = meet(comm, src, count * sizeof(float));
    if (code != ncclSuccess)
        return code;
    if (count > 0)
        reduce(comm->all, 0, count, op, y.data());
    code = part(comm->all); /* dst may be src */
    if (code == ncclSuccess && count > 0)
        memcpy(dst, y.data(), count * sizeof(float));
    return code;
}

ncclResult_t ncclReduceScatter(const void *src, void *dst, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t)
{
    if (type != ncclFloat32)
        return ncclInvalidArgument;
    std::vector<float> y(count);
    ncclResult_t code = meet(comm, src, count * sizeof(float));
    if (code != ncclSuccess)
        return code;
    if (count > 0)
        reduce(comm->all, (size_t)comm->rank * count, count, op, y.data());
    code = part(comm->all);
    if (code == ncclSuccess && count > 0)
        memcpy(dst, y.data(), count * sizeof(float));
    return code;
}

ncclResult_t ncclAllGather(const void *src, void *dst, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t)
{
    size_t bytes = count * bytes_of(type);
    ncclResult_t code = meet(comm, src, bytes);
    for (int i = 0; code == ncclSuccess && i < comm->all->n && bytes > 0; i++)
        memmove((char *)dst + (size_t)i * bytes, comm->all->src[(size_t)i], bytes); /* the own part may be in place */
    return code == ncclSuccess ? part(comm->all) : code;
}

ncclResult_t ncclSend(const void *src, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t)
{
    team *t = comm->all;
    pthread_mutex_lock(&t->lock);
    t->mail[comm->rank * t->n + peer].push_back(std::string((const char *)src, count * bytes_of(type)));
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
    return ncclSuccess;
}

ncclResult_t ncclRecv(void *dst, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t)
{
    receipt r = {comm, dst, count * bytes_of(type), peer};
    if (group_depth == 0)
        return take(&r);
    receipts->push_back(r);
    return ncclSuccess;
}
