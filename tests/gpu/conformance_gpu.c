/* conformance_gpu.c - the memory of the runtime's tests where a GPU reaches it, so that tests which were written for the host's kernels
 * call those of a real GPU on what they have: arrays of the heap and of the stack alike.
 *
 * Where a GPU reads all of the process's memory (cudaDevAttrPageableMemoryAccess) nothing is changed. Elsewhere heaps, stacks and the
 * runtime's scratch are managed memory, which both sides read; every call is waited for. Linked with -Wl,--wrap=cudaMalloc and
 * -Wl,--wrap=mpp_all_reduce. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpp_rt.h"

enum { MOST_THREADS = 64, STACK_BYTES = 16 << 20 };

struct thread {
    pthread_t id;
    void *stack;
    bool used;
};

int mpp_test_main(void);
void *mpp_test_malloc(size_t bytes);
void *mpp_test_calloc(size_t n, size_t bytes);
void *mpp_test_aligned_alloc(size_t alignment, size_t bytes);
void mpp_test_free(void *x);
int mpp_test_thread(pthread_t *out, void *(*run)(void *), void *arg);
int mpp_test_join(pthread_t thread);
void mpp_test_wait(void);
cudaError_t __wrap_cudaMalloc(void **out, size_t bytes);
cudaError_t __real_cudaMalloc(void **out, size_t bytes);
void __wrap_mpp_all_reduce(struct mpp_rank *r, unsigned mask, float *x, int64_t count, enum mpp_reduce op);
void __real_mpp_all_reduce(struct mpp_rank *r, unsigned mask, float *x, int64_t count, enum mpp_reduce op);

static struct thread threads[MOST_THREADS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool managed; /* set before there is a second thread */

static void must(cudaError_t code, const char *what)
{
    if (code == cudaSuccess)
        return;
    printf("FAILED: %s: %s\n0 passed, 1 failed\n", what, cudaGetErrorString(code));
    exit(1);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static cudaError_t allocate(void **out, size_t bytes)
{
#ifdef MPP_CUDA_SHIM
    return __real_cudaMalloc(out, bytes);
#else
    return cudaMallocManaged(out, bytes, cudaMemAttachGlobal);
#endif
}

void *mpp_test_malloc(size_t bytes)
{
    void *x = NULL;
    if (!managed)
        return malloc(bytes);
    must(allocate(&x, bytes > 0 ? bytes : 1), "memory of a test");
    return x;
}

void *mpp_test_calloc(size_t n, size_t bytes)
{
    void *x = mpp_test_malloc(n * bytes);
    if (x != NULL)
        memset(x, 0, n * bytes);
    return x;
}

/* cudaMalloc's alignment is 256. */
void *mpp_test_aligned_alloc(size_t alignment, size_t bytes)
{
    return managed ? mpp_test_malloc(bytes) : aligned_alloc(alignment, bytes);
}

void mpp_test_free(void *x)
{
    if (managed)
        must(cudaFree(x), "freeing memory of a test");
    else
        free(x);
}

/* What kernels keep for an all-reduce that a test brings. */
cudaError_t __wrap_cudaMalloc(void **out, size_t bytes)
{
#ifdef MPP_CUDA_SHIM
    return __real_cudaMalloc(out, bytes);
#else
    return cudaMallocManaged(out, bytes, cudaMemAttachGlobal);
#endif
}

/* ---- waiting --------------------------------------------------------------------------------------------- */

void mpp_test_wait(void)
{
    must(cudaDeviceSynchronize(), "a kernel");
}

void __wrap_mpp_all_reduce(struct mpp_rank *r, unsigned mask, float *x, int64_t count, enum mpp_reduce op)
{
    mpp_test_wait();
    __real_mpp_all_reduce(r, mask, x, count, op);
}

/* ---- threads whose stacks a GPU reads ---------------------------------------------------------------------- */

int mpp_test_thread(pthread_t *out, void *(*run)(void *), void *arg)
{
    pthread_attr_t attributes;
    int i = 0;
    if (!managed)
        return pthread_create(out, NULL, run, arg);
    pthread_mutex_lock(&lock);
    while (i < MOST_THREADS && threads[i].used)
        i++;
    if (i == MOST_THREADS)
        must(cudaErrorMemoryAllocation, "too many threads");
    if (threads[i].stack == NULL)
        must(allocate(&threads[i].stack, STACK_BYTES), "a stack");
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, threads[i].stack, STACK_BYTES);
    int code = pthread_create(out, &attributes, run, arg);
    threads[i].used = code == 0;
    threads[i].id = *out;
    pthread_attr_destroy(&attributes);
    pthread_mutex_unlock(&lock);
    return code;
}

int mpp_test_join(pthread_t thread)
{
    int code = pthread_join(thread, NULL);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_THREADS; i++)
        if (threads[i].used && pthread_equal(threads[i].id, thread)) {
            threads[i].used = false;
            break;
        }
    pthread_mutex_unlock(&lock);
    return code;
}

static void *begin(void *arg)
{
    *(int *)arg = mpp_test_main();
    return NULL;
}

/* MPP_TEST_MANAGED=0, 1: what is asked of the GPU otherwise. */
int main(void)
{
    static int code;
    const char *asked = getenv("MPP_TEST_MANAGED");
    pthread_t thread;
#ifndef MPP_CUDA_SHIM
    int reads_all = 0;
    must(cudaDeviceGetAttribute(&reads_all, cudaDevAttrPageableMemoryAccess, 0), "asking the GPU");
    managed = reads_all == 0;
#endif
    managed = asked != NULL ? strcmp(asked, "1") == 0 : managed;
    if (mpp_test_thread(&thread, begin, &code) != 0)
        must(cudaErrorMemoryAllocation, "a thread");
    (void)mpp_test_join(thread);
    return code;
}
