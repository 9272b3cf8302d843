/* streams.cpp - streams, events, and graphs captured from streams. A stream does its work in the call, so that an event is always
 * done; one that captures records its work instead, and the graph does it, in the order of the calls, when it is launched.
 *
 * What CUDA forbids while a stream captures fails here with CUDA's code and spoils the capture: waiting for such a stream, memory
 * made or freed by a thread that captures, copies from or to memory of the host (none is pinned here), work that depends on
 * what was not captured, and streams that are not joined to the first one at the end. */
#include <map>
#include <pthread.h>
#include <shim_capture.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

namespace {

struct work {
    mpp_shim_run *run;
    void *job;
    void (*forget)(void *);
};

/* Counts of works of each stream of a capture, those that come before something. */
typedef std::vector<size_t> past;

void merge(past *into, const past &more)
{
    if (into->size() < more.size())
        into->resize(more.size());
    for (size_t i = 0; i < more.size(); i++)
        (*into)[i] = (*into)[i] > more[i] ? (*into)[i] : more[i];
}

} // namespace

struct mpp_shim_graph {
    std::vector<work> works;
    int users; /* graphs and executable graphs that share it */
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
};

struct mpp_shim_event {
    long long last; /* the same */
    bool recorded;
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
    if (--g->users > 0)
        return;
    for (const work &w : g->works)
        w.forget(w.job);
    delete g;
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

cudaError_t mpp_shim_record(cudaStream_t stream, mpp_shim_run *run, void *job, void (*forget_job)(void *))
{
    mpp_shim_capture *c = stream->in;
    size_t i = index_in(c, stream);
    if (c->spoilt) {
        forget_job(job);
        return cudaErrorStreamCaptureInvalidated;
    }
    c->graph->works.push_back(work{run, job, forget_job});
    c->known[i][i]++;
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
    *out = new mpp_shim_stream();
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t code = mpp_shim_refuse(stream);
    if (code == cudaSuccess && stream != NULL)
        must_be_done(stream->last, "cudaStreamSynchronize");
    return code;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cudaError_t code = mpp_shim_refuse(stream);
    return code != cudaSuccess || stream == NULL || is_done(stream->last) ? code : cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize(void)
{
    return mpp_shim_unsafe();
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
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    if (event == NULL)
        return cudaErrorInvalidValue;
    mpp_shim_capture *in = mpp_shim_captures(stream) ? stream->in : NULL, *from = find(event->capture);
    if (stream != NULL && event->last > stream->last)
        stream->last = event->last;
    if (event->capture == 0) /* it is done, but not for a graph */
        return in != NULL && event->recorded ? spoil(in, cudaErrorStreamCaptureIsolation) : cudaSuccess;
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
    return is_done(event->last) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    must_be_done(event->last, "cudaEventSynchronize");
    return cudaEventQuery(event);
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
    *n = graph->works.size();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
    cudaError_t code = mpp_shim_unsafe();
    *out = NULL;
    if (code != cudaSuccess)
        return code;
    graph->users++;
    *out = graph;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    if (mpp_shim_captures(stream))
        return mpp_shim_refuse(stream); /* CUDA makes a child of it, which nobody here wants */
    for (const work &w : exec->works)
        if (w.run(w.job) != 0)
            return cudaErrorLaunchFailure;
    mpp_shim_gave(stream);
    return cudaSuccess;
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
