/* conformance.c - devices for ranks that tests make by hand: one for each thread, freed when it ends. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "conformance.h"
#include "core/device.h"
#include "cuda/cuda_internal.h"

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void free_device(void *arg)
{
    static const struct mpp_program none;
    struct mpp_rank r = {.device = arg, .program = &none};
    mpp_device_detach(&r);
}

static void make_key(void)
{
    pthread_key_create(&key, free_device);
}

struct mpp_rank *mpp_test_device(struct mpp_rank *r)
{
    pthread_once(&once, make_key);
    if (r->device != NULL)
        return r;
    r->device = pthread_getspecific(key);
    if (r->device == NULL) {
        struct mpp_error error;
        if (mpp_device_attach(r, 0, &error) != MPP_EXIT_OK) {
            fprintf(stderr, "%s\n", error.text);
            abort();
        }
        pthread_setspecific(key, r->device);
    }
    r->device->skipped = NULL;
    return r;
}

void mpp_test_settle(struct mpp_rank *r)
{
    float skipped;
    mpp_device_get(r, &skipped, r->device->skipped, sizeof skipped);
    r->skipped = (int64_t)skipped;
    r->device->skipped = NULL; /* what tests set in r->skipped counts */
}
