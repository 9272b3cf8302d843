/* What tests/cuda's graphs do, and what they refuse as CUDA does: without that, a trainer could be right here and wrong on a GPU. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { BYTES = 64 };

static int passed, failed;

static void expect(bool ok, const char *what)
{
    passed += ok;
    failed += !ok;
    if (!ok)
        fprintf(stderr, "failed: %s\n", what);
}

struct streams {
    cudaStream_t first, other;
    cudaEvent_t fork, back;
    unsigned char *x, *y;
};

static struct streams make(void)
{
    struct streams s;
    bool ok = cudaStreamCreateWithFlags(&s.first, cudaStreamNonBlocking) == cudaSuccess &&
              cudaStreamCreateWithFlags(&s.other, cudaStreamNonBlocking) == cudaSuccess &&
              cudaEventCreateWithFlags(&s.fork, cudaEventDisableTiming) == cudaSuccess &&
              cudaEventCreateWithFlags(&s.back, cudaEventDisableTiming) == cudaSuccess &&
              cudaMalloc((void **)&s.x, BYTES) == cudaSuccess && cudaMalloc((void **)&s.y, BYTES) == cudaSuccess;
    expect(ok, "streams, events and memory");
    memset(s.x, 0, BYTES);
    memset(s.y, 0, BYTES);
    return s;
}

static void end(struct streams *s)
{
    cudaEventDestroy(s->fork);
    cudaEventDestroy(s->back);
    cudaStreamDestroy(s->first);
    cudaStreamDestroy(s->other);
    cudaFree(s->x);
    cudaFree(s->y);
}

static void begin(struct streams *s)
{
    expect(cudaStreamBeginCapture(s->first, cudaStreamCaptureModeThreadLocal) == cudaSuccess, "a capture begins");
}

/* The capture ends with CODE, and leaves a graph only where that is success. */
static void ends(struct streams *s, cudaError_t code, const char *what)
{
    cudaGraph_t graph = NULL;
    expect(cudaStreamEndCapture(s->first, &graph) == code, what);
    expect((graph != NULL) == (code == cudaSuccess), what);
    if (graph != NULL)
        cudaGraphDestroy(graph);
    expect(cudaStreamQuery(s->first) == cudaSuccess && cudaStreamQuery(s->other) == cudaSuccess, what);
}

/* ---- what graphs do ------------------------------------------------------------------------------------------ */

static void check_launches(void)
{
    struct streams s = make();
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    size_t nodes = 0;
    begin(&s);
    cudaMemsetAsync(s.x, 7, BYTES, s.first);
    cudaEventRecord(s.fork, s.first);
    cudaStreamWaitEvent(s.other, s.fork, 0);
    cudaMemcpyAsync(s.y, s.x, BYTES, cudaMemcpyDeviceToDevice, s.other);
    cudaEventRecord(s.back, s.other);
    cudaStreamWaitEvent(s.first, s.back, 0);
    cudaMemsetAsync(s.x, 8, 1, s.first);
    expect(s.x[0] == 0 && s.y[0] == 0, "what is captured is not done");
    expect(cudaStreamEndCapture(s.first, &graph) == cudaSuccess, "a fork that is joined ends");
    expect(cudaGraphGetNodes(graph, NULL, &nodes) == cudaSuccess && nodes == 3, "three works are three nodes");
    expect(cudaGraphInstantiateWithFlags(&exec, graph, 0) == cudaSuccess && cudaGraphDestroy(graph) == cudaSuccess,
           "the graph may go before what was made of it");
    for (int i = 0; i < 2; i++) {
        memset(s.x, 0, BYTES);
        memset(s.y, 0, BYTES);
        expect(cudaGraphLaunch(exec, s.first) == cudaSuccess, "a launch");
        expect(s.x[0] == 8 && s.x[1] == 7 && s.y[0] == 7 && s.y[BYTES - 1] == 7, "every launch does all works in order");
    }
    cudaMemsetAsync(s.y, 1, BYTES, s.other);
    expect(s.y[0] == 1, "after the capture streams work at once");
    cudaGraphExecDestroy(exec);
    begin(&s);
    ends(&s, cudaSuccess, "an empty graph");
    end(&s);
}

/* ---- what they refuse ------------------------------------------------------------------------------------------ */

/* CALL is refused while a stream captures, and spoils the graph. */
#define REFUSED(s, call)                                                             \
    do {                                                                             \
        begin(s);                                                                    \
        expect((call) == cudaErrorStreamCaptureUnsupported, #call);                  \
        expect(cudaMemsetAsync((s)->x, 0, BYTES, (s)->first) == cudaErrorStreamCaptureInvalidated, #call " spoils what follows"); \
        ends(s, cudaErrorStreamCaptureInvalidated, #call " spoils the graph");       \
    } while (0)

static void check_refused(void)
{
    struct streams s = make();
    unsigned char host[BYTES] = {0};
    void *more = NULL;
    REFUSED(&s, cudaStreamSynchronize(s.first));
    REFUSED(&s, cudaStreamQuery(s.first));
    REFUSED(&s, cudaDeviceSynchronize());
    REFUSED(&s, cudaMalloc(&more, BYTES));
    REFUSED(&s, cudaFree(s.y));
    REFUSED(&s, cudaMemcpyAsync(s.x, host, BYTES, cudaMemcpyHostToDevice, s.first));
    REFUSED(&s, cudaMemcpyAsync(host, s.x, BYTES, cudaMemcpyDeviceToHost, s.first));
    expect(cudaStreamBeginCapture(s.first, cudaStreamCaptureModeRelaxed) == cudaSuccess, "a relaxed capture begins");
    expect(cudaMalloc(&more, BYTES) == cudaSuccess && cudaFree(more) == cudaSuccess, "a relaxed capture allows cudaMalloc");
    ends(&s, cudaSuccess, "a relaxed capture");
    cudaGraph_t graph;
    expect(cudaStreamEndCapture(s.first, &graph) == cudaErrorIllegalState, "an end without a begin");
    begin(&s);
    expect(cudaStreamBeginCapture(s.first, cudaStreamCaptureModeThreadLocal) == cudaErrorIllegalState, "a begin in a capture");
    if (cudaStreamEndCapture(s.first, &graph) == cudaSuccess)
        cudaGraphDestroy(graph);
    end(&s);
}

static void check_events(void)
{
    struct streams s = make();
    begin(&s);
    expect(cudaStreamWaitEvent(s.first, s.fork, 0) == cudaSuccess, "an event that was never recorded holds up nothing");
    ends(&s, cudaSuccess, "an event that was never recorded");
    cudaEventRecord(s.fork, s.other);
    begin(&s);
    expect(cudaStreamWaitEvent(s.first, s.fork, 0) == cudaErrorStreamCaptureIsolation, "a graph cannot wait for work outside");
    ends(&s, cudaErrorStreamCaptureInvalidated, "waiting for work outside spoils the graph");
    begin(&s);
    cudaEventRecord(s.fork, s.first);
    expect(cudaEventQuery(s.fork) == cudaErrorCapturedEvent, "a captured event is never done");
    ends(&s, cudaErrorStreamCaptureInvalidated, "asking for a captured event spoils the graph");
    expect(cudaStreamWaitEvent(s.other, s.fork, 0) == cudaErrorCapturedEvent, "nobody outside waits for a captured event");
    begin(&s);
    cudaEventRecord(s.fork, s.first);
    cudaStreamWaitEvent(s.other, s.fork, 0);
    ends(&s, cudaErrorStreamCaptureUnjoined, "a stream that is not joined, without work");
    begin(&s);
    cudaEventRecord(s.fork, s.first);
    cudaStreamWaitEvent(s.other, s.fork, 0);
    cudaEventRecord(s.back, s.other);
    cudaStreamWaitEvent(s.first, s.back, 0);
    cudaMemsetAsync(s.x, 1, BYTES, s.other);
    ends(&s, cudaErrorStreamCaptureUnjoined, "work after the join");
    begin(&s);
    cudaEventRecord(s.fork, s.first);
    cudaStreamWaitEvent(s.other, s.fork, 0);
    cudaGraph_t graph;
    expect(cudaStreamEndCapture(s.other, &graph) == cudaErrorStreamCaptureUnmatched, "the end on another stream than the begin");
    ends(&s, cudaErrorStreamCaptureInvalidated, "the end on another stream spoils the graph");
    end(&s);
}

static void *elsewhere(void *arg)
{
    struct streams *s = arg;
    void *x = NULL;
    cudaGraph_t graph;
    expect(cudaMalloc(&x, BYTES) == cudaSuccess && cudaFree(x) == cudaSuccess, "other threads make memory meanwhile");
    expect(cudaStreamSynchronize(s->other) == cudaSuccess, "other threads wait for other streams meanwhile");
    expect(cudaStreamEndCapture(s->first, &graph) == cudaErrorStreamCaptureWrongThread, "the end on another thread");
    return NULL;
}

static void check_threads(void)
{
    struct streams s = make();
    pthread_t thread;
    begin(&s);
    expect(pthread_create(&thread, NULL, elsewhere, &s) == 0 && pthread_join(thread, NULL) == 0, "a thread");
    ends(&s, cudaSuccess, "what other threads do spoils nothing");
    end(&s);
}

int main(void)
{
    check_launches();
    check_refused();
    check_events();
    check_threads();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
