/* conformance.c - devices for ranks that tests make by hand: one for each thread. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "conformance.h"
#include "core/device.h"
#include "cuda/cuda_internal.h"

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Devices of threads that have ended, for those that begin: most of the time would go into their 32 MiB for cuBLASLt. On a processor
 * each has a GPU of its own, so that it waits for its own streams alone. */
enum { MOST_SPARE = 32 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mpp_device *spare[MOST_SPARE];
static int n_spare, n_devices;

static void lay_aside(void *arg)
{
    static const struct mpp_program none;
    struct mpp_rank r = {.device = arg, .program = &none};
    mpp_groups_free(&r);
    mpp_channels_free(&r);
    (void)cudaDeviceSynchronize(); /* what the thread left to be done */
    for (int i = 0; i < MPP_N_SCRATCH; i++) { /* the next one finds NaNs there again */
        (void)cudaFree(r.device->scratch[i]);
        r.device->scratch[i] = NULL;
        r.device->scratch_bytes[i] = 0;
    }
    bool idle = r.device->bucket.n == 0; /* else its thread left with sums that were begun */
    pthread_mutex_lock(&lock);
    if (idle && n_spare < MOST_SPARE) {
        spare[n_spare++] = r.device;
        r.device = NULL;
    }
    pthread_mutex_unlock(&lock);
    mpp_device_detach(&r);
}

static struct mpp_device *take_spare(void)
{
    pthread_mutex_lock(&lock);
    struct mpp_device *d = n_spare > 0 ? spare[--n_spare] : NULL;
    pthread_mutex_unlock(&lock);
    return d;
}

static int next_gpu(void)
{
#ifdef MPP_CUDA_SHIM
    int n = 0;
    (void)cudaGetDeviceCount(&n);
    return __atomic_fetch_add(&n_devices, 1, __ATOMIC_RELAXED) % n;
#else
    return n_devices;
#endif
}

static void make_key(void)
{
    pthread_key_create(&key, lay_aside);
}

struct mpp_rank *mpp_test_device(struct mpp_rank *r)
{
    pthread_once(&once, make_key);
    if (r->device != NULL)
        return r;
    r->device = pthread_getspecific(key);
    if (r->device == NULL) {
        struct mpp_error error;
        r->device = take_spare();
        if (r->device == NULL && mpp_device_attach(r, next_gpu(), &error) != MPP_EXIT_OK) {
            fprintf(stderr, "%s\n", error.text);
            abort();
        }
        (void)cudaSetDevice(r->device->ordinal);
        pthread_setspecific(key, r->device);
    }
    r->device->skipped = NULL;
    return r;
}

void mpp_test_compute(struct mpp_rank *r)
{
    const char *streams = getenv("MPP_SHIM_STREAMS");
    if (streams != NULL && streams[0] != '\0')
        mpp_cuda_wait_for(r, r->device->compute);
}

void mpp_test_settle(struct mpp_rank *r)
{
    float skipped;
    mpp_device_get(r, &skipped, r->device->skipped, sizeof skipped);
    r->skipped = (int64_t)skipped;
    r->device->skipped = NULL; /* what tests set in r->skipped counts */
}
