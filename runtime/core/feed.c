/* feed.c - two buffers, each of one step's inputs, and the thread that fills them in turn. */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "feed.h"
#include "tensors.h"

struct mpp_feed {
    const struct mpp_rank *r;
    const struct mpp_data *data;
    int64_t first, last;
    int64_t micro_bytes;   /* all inputs of one micro-batch */
    int64_t *input_bytes;  /* per input */
    char *buffer[2];
    pthread_t thread;
    bool started;

    pthread_mutex_t lock;  /* guards what follows */
    pthread_cond_t change;
    int64_t ready;         /* steps below are prepared */
    int64_t done;          /* steps below are used up */
    bool stopping;
    int code;              /* of step `ready`, which failed */
    struct mpp_error error;
};

static int prepare(struct mpp_feed *f, int64_t step, struct mpp_error *error)
{
    char *at = f->buffer[step & 1];
    for (int m = 0; m < f->r->program->micro_batches; m++)
        for (int i = 0; i < f->r->stage->n_inputs; i++) {
            int code = mpp_data_fill(f->data, f->r, step, m, i, at, error);
            if (code != MPP_EXIT_OK)
                return code;
            at += f->input_bytes[i];
        }
    return MPP_EXIT_OK;
}

static void *read_ahead(void *arg)
{
    struct mpp_feed *f = arg;
    for (int64_t step = f->first; step < f->last; step++) {
        pthread_mutex_lock(&f->lock);
        while (!f->stopping && step >= f->done + 2)
            pthread_cond_wait(&f->change, &f->lock);
        bool stop = f->stopping;
        pthread_mutex_unlock(&f->lock);
        if (stop)
            break;
        struct mpp_error error;
        int code = prepare(f, step, &error);
        pthread_mutex_lock(&f->lock);
        if (code == MPP_EXIT_OK) {
            f->ready = step + 1;
        } else {
            f->code = code;
            f->error = error;
        }
        pthread_cond_broadcast(&f->change);
        pthread_mutex_unlock(&f->lock);
        if (code != MPP_EXIT_OK)
            break;
    }
    return NULL;
}

int mpp_feed_start(const struct mpp_rank *r, const struct mpp_data *data, int64_t first, int64_t last,
                   struct mpp_feed **feed_out, struct mpp_error *error)
{
    const struct mpp_stage *stage = r->stage;
    struct mpp_feed *f = calloc(1, sizeof *f);
    if (f == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
    f->r = r;
    f->data = data;
    f->first = f->ready = f->done = first;
    f->last = last;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->change, NULL);
    f->input_bytes = calloc((size_t)stage->n_inputs + 1, sizeof *f->input_bytes);
    bool ok = f->input_bytes != NULL;
    for (int i = 0; ok && i < stage->n_inputs; i++) {
        f->input_bytes[i] = 4 * mpp_block_of(r, &stage->tensors[stage->inputs[i].tensor]).padded_count;
        f->micro_bytes += f->input_bytes[i];
    }
    for (int i = 0; ok && i < 2; i++) { /* zeroed: padding stays 0 */
        f->buffer[i] = calloc((size_t)(f->micro_bytes * r->program->micro_batches) + 1, 1);
        ok = f->buffer[i] != NULL;
    }
    f->started = ok && pthread_create(&f->thread, NULL, read_ahead, f) == 0;
    if (!f->started) {
        mpp_feed_stop(f);
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory, or no more threads, to read data ahead");
    }
    *feed_out = f;
    return MPP_EXIT_OK;
}

void mpp_feed_stop(struct mpp_feed *feed)
{
    if (feed == NULL)
        return;
    if (feed->started) {
        pthread_mutex_lock(&feed->lock);
        feed->stopping = true;
        pthread_cond_broadcast(&feed->change);
        pthread_mutex_unlock(&feed->lock);
        pthread_join(feed->thread, NULL);
    }
    pthread_mutex_destroy(&feed->lock);
    pthread_cond_destroy(&feed->change);
    free(feed->buffer[0]);
    free(feed->buffer[1]);
    free(feed->input_bytes);
    free(feed);
}

int mpp_feed_wait(struct mpp_feed *feed, int64_t step, struct mpp_error *error)
{
    pthread_mutex_lock(&feed->lock);
    while (feed->ready <= step && feed->code == MPP_EXIT_OK)
        pthread_cond_wait(&feed->change, &feed->lock);
    int code = feed->ready > step ? MPP_EXIT_OK : feed->code;
    if (code != MPP_EXIT_OK)
        *error = feed->error;
    pthread_mutex_unlock(&feed->lock);
    return code;
}

void mpp_feed_place(const struct mpp_feed *feed, struct mpp_rank *r, int micro_batch, bool slotted)
{
    const struct mpp_stage *stage = r->stage;
    const char *at = feed->buffer[(r->step - 1) & 1] + micro_batch * feed->micro_bytes;
    for (int i = 0; i < stage->n_inputs; i++) {
        const struct mpp_tensor *t = &stage->tensors[stage->inputs[i].tensor];
        bool placed = slotted ? t->slot_stride > 0 && stage->inputs[i].chunk == r->chunk : t->slot_stride == 0;
        if (placed)
            mpp_device_put(r, r->arena + t->offset + r->slot * t->slot_stride, at, (size_t)feed->input_bytes[i]);
        at += feed->input_bytes[i];
    }
}

void mpp_feed_release(struct mpp_feed *feed)
{
    pthread_mutex_lock(&feed->lock);
    feed->done++;
    pthread_cond_broadcast(&feed->change);
    pthread_mutex_unlock(&feed->lock);
}
