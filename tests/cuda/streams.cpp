/* streams.cpp - streams, events, and graphs captured from streams. A stream does its work in the call, so that an event is always
 * done, or gives it to its queue (queues.cpp); one that captures records its work instead, and the graph does it when it is launched:
 * in the order of the calls, or, where there are queues, in the worst order that its events allow.
 *
 * What CUDA forbids while a stream captures fails here with CUDA's code and spoils the capture: waiting for such a stream, memory
 * made or freed by a thread that captures, copies from or to memory of the host (none is pinned here), work that depends on
 * what was not captured, and streams that are not joined to the first one at the end. */
#include <map>
#include <pthread.h>
#include <shim_queues.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

namespace {

/* Counts of works of each stream of a capture, those that come before something. */
typedef std::vector<size_t> past;

/* Number NUMBER of the capture's stream STREAM. */
struct node {
    mpp_shim_work work;
    size_t stream, number;
    past before;
};

void merge(past *into, const past &more)
{
    if (into->size() < more.size())
        into->resize(more.size());
    for (size_t i = 0; i < more.size(); i++)
        (*into)[i] = (*into)[i] > more[i] ? (*into)[i] : more[i];
}

} // namespace

struct mpp_shim_graph {
    std::vector<node> nodes;
    int users; /* graphs, executable graphs and launches that share it */
};

struct mpp_shim_capture {
    uint64_t id;
    pthread_t thread;
    enum cudaStreamCaptureMode mode;
    std::vector<cudaStream_t> streams; /* the first one began it */
    std::vector<past> known;           /* by stream: what its next work comes after */
    bool spoilt;
    mpp_shim_graph *graph;
};

struct mpp_shim_stream {
    mpp_shim_capture *in;
    long long last; /* number of the work that must be done before it is idle; 0: none */
    std::shared_ptr<mpp_shim_queue> queue; /* NULL: it works in the call */
};

struct mpp_shim_event {
    long long last; /* the same */
    bool recorded;
    mpp_shim_point point; /* where it was recorded in no capture */
    uint64_t capture; /* in which it was recorded last; 0: in none */
    past known;
};

namespace {

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
long long n_given, n_done = -1; /* works since the pace was set; below 0: all are done */
__thread bool paced;            /* those of this thread count */
uint64_t n_captures;
std::map<uint64_t, mpp_shim_capture *> captures; /* that have not ended */

mpp_shim_capture *find(uint64_t id)
{
    pthread_mutex_lock(&lock);
    std::map<uint64_t, mpp_shim_capture *>::iterator at = captures.find(id);
    mpp_shim_capture *found = at != captures.end() ? at->second : NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

cudaError_t spoil(mpp_shim_capture *c, cudaError_t code)
{
    if (c != NULL)
        c->spoilt = true;
    return code;
}

size_t index_in(const mpp_shim_capture *c, cudaStream_t stream)
{
    size_t i = 0;
    while (c->streams[i] != stream)
        i++;
    return i;
}

/* STREAM captures from now on, and what it does comes after KNOWN. Joining counts as a work, so that it must be joined back. */
void join(mpp_shim_capture *c, cudaStream_t stream, const past &known)
{
    size_t i = c->streams.size();
    c->streams.push_back(stream);
    c->known.push_back(known);
    c->known[i].resize(i + 1);
    c->known[i][i] = 1;
    stream->in = c;
}

void forget(mpp_shim_graph *g)
{
    if (__atomic_sub_fetch(&g->users, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    for (const node &n : g->nodes)
        n.work.forget(n.work.job);
    delete g;
}

mpp_shim_graph *hold(mpp_shim_graph *g)
{
    __atomic_add_fetch(&g->users, 1, __ATOMIC_RELAXED);
    return g;
}

int run_in_order(const mpp_shim_graph *g)
{
    int code = 0;
    for (size_t i = 0; code == 0 && i < g->nodes.size(); i++)
        code = g->nodes[i].work.run(g->nodes[i].work.job);
    return code;
}

/* May N be done, after so many of each stream? */
bool is_next(const node &n, const past &done)
{
    bool next = n.number == done[n.stream] + 1;
    for (size_t i = 0; i < n.before.size(); i++)
        next = next && (i == n.stream || n.before[i] <= done[i]);
    return next;
}

/* Of what may be done next, what the first stream was given, or else what the others were, comes first. */
int run_adversely(const mpp_shim_graph *g)
{
    const bool late = mpp_shim_streams() == MPP_SHIM_LATE;
    past done;
    int code = 0;
    for (const node &n : g->nodes)
        if (n.stream >= done.size())
            done.resize(n.stream + 1, 1); /* joining was the first */
    for (size_t k = 0; code == 0 && k < g->nodes.size(); k++) {
        const node *best = NULL;
        for (const node &n : g->nodes)
            if (is_next(n, done) && (best == NULL || (late ? n.stream < best->stream : n.stream > best->stream)))
                best = &n;
        code = best->work.run(best->work.job);
        done[best->stream]++;
    }
    return code;
}

void add_turns(std::vector<std::shared_ptr<mpp_shim_turns>> *into, const std::vector<std::shared_ptr<mpp_shim_turns>> &more)
{
    for (const std::shared_ptr<mpp_shim_turns> &t : more) {
        bool there = false;
        for (const std::shared_ptr<mpp_shim_turns> &known : *into)
            there = there || known == t;
        if (!there)
            into->push_back(t);
    }
}

bool all_joined(const mpp_shim_capture *c)
{
    past first = c->known[0];
    first.resize(c->streams.size());
    for (size_t i = 0; i < c->streams.size(); i++)
        if (first[i] < c->known[i][i])
            return false;
    return true;
}

} // namespace

/* ---- for what records -------------------------------------------------------------------------------------- */

bool mpp_shim_captures(cudaStream_t stream)
{
    return stream != NULL && stream->in != NULL;
}

bool mpp_shim_keeps(cudaStream_t stream)
{
    return stream != NULL && (stream->in != NULL || stream->queue != NULL);
}

cudaError_t mpp_shim_record(cudaStream_t stream, const mpp_shim_work &w)
{
    mpp_shim_capture *c = stream->in;
    if (c == NULL) {
        mpp_shim_queue_give(stream->queue, w);
        return cudaSuccess;
    }
    size_t i = index_in(c, stream);
    if (c->spoilt) {
        w.forget(w.job);
        return cudaErrorStreamCaptureInvalidated;
    }
    past before = c->known[i];
    c->graph->nodes.push_back(node{w, i, ++c->known[i][i], before});
    return cudaSuccess;
}

cudaError_t mpp_shim_unsafe(void)
{
    cudaError_t code = cudaSuccess;
    pthread_mutex_lock(&lock);
    for (const std::pair<const uint64_t, mpp_shim_capture *> &c : captures)
        if (c.second->mode == cudaStreamCaptureModeGlobal ||
            (c.second->mode == cudaStreamCaptureModeThreadLocal && pthread_equal(c.second->thread, pthread_self())))
            code = spoil(c.second, cudaErrorStreamCaptureUnsupported);
    pthread_mutex_unlock(&lock);
    return code;
}

cudaError_t mpp_shim_refuse(cudaStream_t stream)
{
    return mpp_shim_captures(stream) ? spoil(stream->in, cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

/* ---- the pace --------------------------------------------------------------------------------------------------- */

void mpp_shim_pace(long long works)
{
    if (__atomic_exchange_n(&n_done, works, __ATOMIC_SEQ_CST) < 0)
        __atomic_store_n(&n_given, 0, __ATOMIC_SEQ_CST);
    paced = works >= 0;
}

void mpp_shim_gave(cudaStream_t stream)
{
    if (stream != NULL && paced)
        stream->last = __atomic_add_fetch(&n_given, 1, __ATOMIC_SEQ_CST);
}

namespace {

bool is_done(long long last)
{
    long long done = __atomic_load_n(&n_done, __ATOMIC_SEQ_CST);
    return done < 0 || last <= done;
}

void must_be_done(long long last, const char *call)
{
    if (is_done(last))
        return;
    fprintf(stderr, "CUDA shim: %s waits for a GPU that does not go on\n", call);
    abort();
}

} // namespace

void mpp_shim_wait_for_all(const char *call)
{
    must_be_done(__atomic_load_n(&n_given, __ATOMIC_SEQ_CST), call);
}

/* ---- streams ------------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned)
{
    *out = new mpp_shim_stream{NULL, 0, mpp_shim_queue_new(mpp_shim_device())};
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    if (stream->queue != NULL)
        mpp_shim_queue_end(stream->queue);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t code = mpp_shim_refuse(stream);
    if (code == cudaSuccess && stream != NULL)
        must_be_done(stream->last, "cudaStreamSynchronize");
    if (code == cudaSuccess && mpp_shim_keeps(stream))
        mpp_shim_point_await(mpp_shim_queue_here(stream->queue));
    return code;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cudaError_t code = mpp_shim_refuse(stream);
    if (code != cudaSuccess || stream == NULL)
        return code;
    if (stream->queue != NULL)
        return mpp_shim_point_done(mpp_shim_queue_here(stream->queue), true) ? cudaSuccess : cudaErrorNotReady;
    return is_done(stream->last) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t code = mpp_shim_unsafe();
    if (code == cudaSuccess)
        mpp_shim_device_await(mpp_shim_device());
    return code;
}

/* ---- events -------------------------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned)
{
    *out = new mpp_shim_event();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    mpp_shim_capture *c = mpp_shim_captures(stream) ? stream->in : NULL;
    event->recorded = true;
    event->last = stream != NULL ? stream->last : 0;
    event->capture = c != NULL ? c->id : 0;
    if (c != NULL)
        event->known = c->known[index_in(c, stream)];
    else if (mpp_shim_keeps(stream))
        event->point = mpp_shim_queue_here(stream->queue);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    if (event == NULL)
        return cudaErrorInvalidValue;
    mpp_shim_capture *in = mpp_shim_captures(stream) ? stream->in : NULL, *from = find(event->capture);
    if (stream != NULL && event->last > stream->last)
        stream->last = event->last;
    if (event->capture == 0) { /* nothing for a graph */
        if (in == NULL && mpp_shim_keeps(stream))
            mpp_shim_queue_wait(stream->queue, event->point);
        return in != NULL && event->recorded ? spoil(in, cudaErrorStreamCaptureIsolation) : cudaSuccess;
    }
    if (from == NULL)
        return spoil(in, cudaErrorCapturedEvent);
    if (in == NULL)
        join(from, stream, event->known);
    else if (in == from)
        merge(&in->known[index_in(in, stream)], event->known);
    else
        return spoil(from, spoil(in, cudaErrorStreamCaptureMerge));
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (event->capture != 0)
        return spoil(find(event->capture), cudaErrorCapturedEvent);
    return is_done(event->last) && mpp_shim_point_done(event->point, false) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    must_be_done(event->last, "cudaEventSynchronize");
    cudaError_t code = cudaEventQuery(event);
    if (code == cudaErrorNotReady)
        mpp_shim_point_await(event->point);
    return code == cudaErrorNotReady ? cudaSuccess : code;
}

/* ---- graphs -------------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    if (stream == NULL)
        return cudaErrorStreamCaptureImplicit; /* the default stream cannot */
    if (stream->in != NULL)
        return cudaErrorIllegalState;
    mpp_shim_capture *c = new mpp_shim_capture();
    c->thread = pthread_self();
    c->mode = mode;
    c->graph = new mpp_shim_graph();
    c->graph->users = 1;
    pthread_mutex_lock(&lock);
    c->id = ++n_captures;
    captures[c->id] = c;
    pthread_mutex_unlock(&lock);
    join(c, stream, past());
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    mpp_shim_capture *c = mpp_shim_captures(stream) ? stream->in : NULL;
    *out = NULL;
    if (c == NULL)
        return cudaErrorIllegalState;
    if (c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->thread, pthread_self()))
        return cudaErrorStreamCaptureWrongThread;
    if (c->streams[0] != stream)
        return spoil(c, cudaErrorStreamCaptureUnmatched);
    cudaError_t code = c->spoilt ? cudaErrorStreamCaptureInvalidated : !all_joined(c) ? cudaErrorStreamCaptureUnjoined : cudaSuccess;
    for (cudaStream_t s : c->streams)
        s->in = NULL;
    pthread_mutex_lock(&lock);
    captures.erase(c->id);
    pthread_mutex_unlock(&lock);
    if (code == cudaSuccess)
        *out = c->graph;
    else
        forget(c->graph);
    delete c;
    return code;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n)
{
    if (nodes != NULL)
        return cudaErrorInvalidValue; /* here they can only be counted */
    *n = graph->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
    cudaError_t code = mpp_shim_unsafe();
    *out = NULL;
    if (code != cudaSuccess)
        return code;
    *out = hold(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    if (mpp_shim_captures(stream))
        return mpp_shim_refuse(stream); /* CUDA makes a child of it, which nobody here wants */
    if (!mpp_shim_keeps(stream)) {
        if (run_in_order(exec) != 0)
            return cudaErrorLaunchFailure;
        mpp_shim_gave(stream);
        return cudaSuccess;
    }
    std::vector<std::shared_ptr<mpp_shim_turns>> turns;
    for (const node &n : exec->nodes)
        add_turns(&turns, n.work.turns);
    return mpp_shim_record(stream, mpp_shim_work{[](void *g) { return run_adversely((const mpp_shim_graph *)g); }, hold(exec),
                                                 [](void *g) { forget((mpp_shim_graph *)g); }, turns});
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    forget(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    forget(exec);
    return cudaSuccess;
}
