/* marks.c - how far a GPU has come in what its compute stream was given, so that who waits for it can tell work from a wait for others.
 *
 * A mark is an event after a product, an attention or something that takes other ranks. While the rank waits for its GPU each mark
 * that is passed counts as a move of the rank, and the first one that is not tells what the GPU is at. Where a rank gives its GPU much
 * more than there are marks, every second one is taken back, again and again: what lies between two is then at most a 32nd of it. */
#include "cuda/cuda_internal.h"

static struct mpp_mark *mark_at(struct mpp_marks *m, int i)
{
    return &m->marks[(m->first + i) % MPP_MARKS];
}

/* Takes those that the GPU has passed. True: there were some. */
static bool take_passed(struct mpp_marks *m)
{
    int before = m->n;
    while (m->n > 0 && cudaEventQuery(mark_at(m, 0)->event) == cudaSuccess) {
        m->first = (m->first + 1) % MPP_MARKS;
        m->n--;
    }
    if (m->n == 0)
        m->every = 1;
    return m->n < before;
}

/* Of two marks the later one stays, for what lies before both. */
static void thin(struct mpp_marks *m)
{
    for (int i = 0; i < MPP_MARKS / 2; i++) {
        struct mpp_mark earlier = *mark_at(m, 2 * i), *from = mark_at(m, 2 * i + 1), *to = mark_at(m, i), later = *from;
        if (later.word == 0)
            later.word = earlier.word;
        *from = *to;
        *to = later;
    }
    m->n = MPP_MARKS / 2;
    m->every *= 2;
}

void mpp_cuda_mark(struct mpp_rank *r, uint64_t word)
{
    struct mpp_marks *m = r->device != NULL ? &r->device->marks : NULL;
    if (m == NULL || r->device->kept != NULL) /* a graph is launched as one */
        return;
    m->word = word != 0 ? word : m->word;
    if (++m->passed_over < m->every)
        return;
    (void)take_passed(m);
    if (m->n == MPP_MARKS)
        thin(m);
    struct mpp_mark *mark = mark_at(m, m->n);
    MPP_CUDA_CHECK(r, cudaEventRecord(mark->event, r->device->compute));
    mark->word = m->word;
    m->n++;
    m->word = 0;
    m->passed_over = 0;
}

void mpp_cuda_moves(struct mpp_rank *r)
{
    mpp_rank_moves(r);
    mpp_cuda_mark(r, 0);
}

bool mpp_cuda_passed(struct mpp_rank *r, uint64_t *word_out)
{
    struct mpp_marks *m = &r->device->marks;
    bool passed = take_passed(m);
    *word_out = m->n > 0 ? mark_at(m, 0)->word : m->word;
    return passed;
}

bool mpp_cuda_marks_open(struct mpp_marks *m)
{
    m->every = 1;
    for (int i = 0; i < MPP_MARKS; i++)
        if (cudaEventCreateWithFlags(&m->marks[i].event, cudaEventDisableTiming) != cudaSuccess)
            return false;
    return true;
}

void mpp_cuda_marks_close(struct mpp_marks *m)
{
    for (int i = 0; i < MPP_MARKS; i++)
        if (m->marks[i].event != NULL)
            (void)cudaEventDestroy(m->marks[i].event);
}
