/* shim_capture.h - what a stream is asked to do is done at once, given to the stream's queue (queues.cpp) or, while the stream
 * captures, recorded for a graph (streams.cpp).
 *
 *     struct job { char *y; int value; size_t bytes; };
 *     return mpp_shim_do(stream, job{y, value, bytes}, [](const job *j) { memset(j->y, j->value, j->bytes); return 0; });
 *
 * What is kept of a job is its copy, so that nothing the caller changes later reaches it. */
#ifndef MPP_SHIM_CAPTURE_H
#define MPP_SHIM_CAPTURE_H

#include <cuda_runtime_api.h>
#include <memory>
#include <vector>

struct mpp_shim_turns; /* shim_queues.h */

/* 0, or a code that ends the launch of the graph. */
typedef int mpp_shim_run(void *job);

/* RUN(JOB) is done once, or whenever its graph is launched; FORGET(JOB) when it goes. TURNS: of what it must be done in turn with. */
struct mpp_shim_work {
    mpp_shim_run *run;
    void *job;
    void (*forget)(void *);
    std::vector<std::shared_ptr<mpp_shim_turns>> turns;
};

bool mpp_shim_captures(cudaStream_t stream);
/* Is what STREAM is given kept, for a graph or until its queue comes to it? Else it is done in the call. */
bool mpp_shim_keeps(cudaStream_t stream);
/* W, for a stream that keeps. */
cudaError_t mpp_shim_record(cudaStream_t stream, const mpp_shim_work &w);
/* A call that must not be made while this thread captures (cudaMalloc): cudaSuccess where it may. */
cudaError_t mpp_shim_unsafe(void);
/* A call that must not be made on a stream that captures; cudaSuccess where it does not. */
cudaError_t mpp_shim_refuse(cudaStream_t stream);

/* A stream has been given one more work, which is done already. */
void mpp_shim_gave(cudaStream_t stream);
/* CALL waits for all works of all streams. */
void mpp_shim_wait_for_all(const char *call);
/* For tests: the GPU seems to have done the first WORKS of what this thread gave its streams since this call, in the order of calls,
 * and no more; a call that would wait for more ends the process. Below 0, as at first: all is done. */
extern "C" void mpp_shim_pace(long long works);

template <class Job> struct mpp_shim_recorded {
    Job job;
    int (*run)(const Job *);
};

template <class Job>
inline cudaError_t mpp_shim_keep(cudaStream_t stream, const Job &job, int (*run)(const Job *),
                                 const std::vector<std::shared_ptr<mpp_shim_turns>> &turns = {})
{
    typedef mpp_shim_recorded<Job> recorded;
    return mpp_shim_record(stream, mpp_shim_work{[](void *x) { return static_cast<recorded *>(x)->run(&static_cast<recorded *>(x)->job); },
                                                 new recorded{job, run}, [](void *x) { delete static_cast<recorded *>(x); }, turns});
}

template <class Job, class Run> inline cudaError_t mpp_shim_do(cudaStream_t stream, const Job &job, Run run)
{
    if (mpp_shim_keeps(stream))
        return mpp_shim_keep<Job>(stream, job, run);
    (void)run(&job);
    mpp_shim_gave(stream);
    return cudaSuccess;
}

#endif
