/* transport_mpi_shm.c - each member has a buffer that the others read, cut into one slot per member. */
#ifdef MPP_WITH_MPI

#include "transport_mpi_shm.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "packed.h"
#include "pause.h"
#include "sums.h"

#define BUFFER_FLOATS ((int64_t)1 << 18) /* 1 MB: it stays in the caches, and meetings are few where cores are shared */
#define SPINS 64                         /* looks before the core is given away */
#define SLOT_ALIGN 16                    /* floats: no two members write to one cache line */

/* At the head of a member's memory; the buffer follows. */
struct head {
    _Alignas(64) atomic_uint met; /* how often this member came to a meeting */
    _Alignas(64) float buffer[];
};

struct mpp_mpi_shm {
    MPI_Comm comm;
    MPI_Win window;
    int n, self;
    int64_t slot_floats;
    struct head *heads[]; /* [n] */
};

/* All members come here before any goes on. Those that wait let MPI move what it still has to send. */
static void meet(struct mpp_mpi_shm *s)
{
    unsigned turn = atomic_load_explicit(&s->heads[s->self]->met, memory_order_relaxed) + 1;
    atomic_store_explicit(&s->heads[s->self]->met, turn, memory_order_release);
    for (int m = 0; m < s->n; m++)
        for (int spins = 0; (int)(atomic_load_explicit(&s->heads[m]->met, memory_order_acquire) - turn) < 0; spins++) {
            int any;
            mpp_pause();
            if (spins < SPINS)
                continue;
            MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, s->comm, &any, MPI_STATUS_IGNORE);
            sched_yield();
        }
}

static void *slot(const struct mpp_mpi_shm *s, int member, int which)
{
    return s->heads[member]->buffer + which * s->slot_floats;
}

/* Elements of BYTES that a slot holds. */
static int64_t slot_room(const struct mpp_mpi_shm *s, int64_t bytes)
{
    return s->slot_floats * (int64_t)sizeof(float) / bytes;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void copy(void *to, const void *from, int64_t bytes)
{
    if (bytes > 0)
        memcpy(to, from, (size_t)bytes);
}

/* What every member has in its slot for this one; MINE stands for its own. */
struct slots {
    const struct mpp_mpi_shm *shm;
    const void *mine;
};

static const uint16_t *half_slot(const void *of, int m)
{
    const struct slots *x = of;
    return m == x->shm->self ? x->mine : slot(x->shm, m, x->shm->self);
}

/* ACC = the sum, in rank order, of every member's slot for this one; MINE stands for its own. */
static void combine(const struct mpp_mpi_shm *s, enum mpp_type type, void *sum, const void *mine, int64_t count, bool maximum)
{
    if (type != MPP_TYPE_F32) {
        mpp_packed_sum_halves(type, s->n, half_slot, &(struct slots){s, mine}, count, sum);
        return;
    }
    float *acc = sum;
    copy(acc, s->self == 0 ? mine : slot(s, 0, s->self), count * (int64_t)sizeof *acc);
    for (int m = 1; m < s->n; m++) {
        const float *from = m == s->self ? mine : slot(s, m, s->self);
        if (maximum)
            mpp_max_to(acc, from, count);
        else
            mpp_add_to(acc, from, count);
    }
}

/* Of each chunk member m finishes share m: the others offer it in their slots m, it offers the result in its own. */
void mpp_mpi_shm_all_reduce(struct mpp_mpi_shm *s, enum mpp_type type, void *x, int64_t count, bool maximum)
{
    const int64_t bytes = type == MPP_TYPE_F32 ? 4 : 2, room = slot_room(s, bytes), align = SLOT_ALIGN * 4 / bytes;
    for (int64_t at = 0; at < count;) {
        int64_t chunk = least(count - at, room * s->n);
        int64_t share = (chunk + s->n - 1) / s->n;
        share = least((share + align - 1) / align * align, room);
        char *here = (char *)x + bytes * at;
        for (int m = 0; m < s->n; m++)
            if (m != s->self)
                copy(slot(s, s->self, m), here + bytes * m * share, bytes * least(share, chunk - m * share));
        meet(s);
        void *mine = here + bytes * s->self * share, *result = slot(s, s->self, s->self);
        int64_t own = least(share, chunk - s->self * share);
        if (own > 0) {
            combine(s, type, result, mine, own, maximum);
            copy(mine, result, bytes * own);
        }
        meet(s); /* slots other than a member's own are read; its own is written again after the next meeting */
        for (int m = 0; m < s->n; m++)
            if (m != s->self)
                copy(here + bytes * m * share, slot(s, m, m), bytes * least(share, chunk - m * share));
        at += chunk;
    }
}

void mpp_mpi_shm_reduce_scatter(struct mpp_mpi_shm *s, enum mpp_type type, const void *src, const int *counts, const int *places, void *dst)
{
    const int64_t bytes = type == MPP_TYPE_F32 ? 4 : 2, room = slot_room(s, bytes);
    const char *from = src;
    int64_t longest = 0;
    for (int m = 0; m < s->n; m++)
        longest = counts[m] > longest ? counts[m] : longest;
    for (int64_t at = 0; at < longest; at += room) {
        for (int m = 0; m < s->n; m++)
            if (m != s->self)
                copy(slot(s, s->self, m), from + bytes * (places[m] + at), bytes * least(room, counts[m] - at));
        meet(s);
        int64_t own = least(room, counts[s->self] - at);
        if (own > 0)
            combine(s, type, (char *)dst + bytes * at, from + bytes * (places[s->self] + at), own, false);
        meet(s);
    }
}

/* ---- life ---------------------------------------------------------------------------------------- */

static bool on_one_host(MPI_Comm comm, int n)
{
    MPI_Comm host;
    int here = 0;
    if (MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host) != MPI_SUCCESS)
        return false;
    MPI_Comm_size(host, &here);
    MPI_Comm_free(&host);
    return here == n;
}

/* All members or none. */
static bool all_agree(MPI_Comm comm, bool well)
{
    int mine = well, all = 0;
    return MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, comm) == MPI_SUCCESS && all != 0;
}

static bool map_heads(struct mpp_mpi_shm *s)
{
    size_t bytes = sizeof *s->heads[0] + (size_t)(s->slot_floats * s->n) * sizeof(float);
    void *own = NULL;
    if (MPI_Win_allocate_shared((MPI_Aint)(bytes + 64), 1, MPI_INFO_NULL, s->comm, &own, &s->window) != MPI_SUCCESS) {
        s->window = MPI_WIN_NULL;
        return false;
    }
    for (int m = 0; m < s->n; m++) {
        MPI_Aint size;
        int unit;
        void *base = NULL;
        if (MPI_Win_shared_query(s->window, m, &size, &unit, &base) != MPI_SUCCESS || base == NULL)
            return false;
        s->heads[m] = (struct head *)(void *)(((uintptr_t)base + 63) / 64 * 64); /* pages are shared whole: as its owner sees it */
    }
    atomic_store(&s->heads[s->self]->met, 0);
    return true;
}

struct mpp_mpi_shm *mpp_mpi_shm_new(MPI_Comm comm)
{
    int n = 0, self = 0;
    MPI_Comm_size(comm, &n);
    MPI_Comm_rank(comm, &self);
    if (n < 2 || !all_agree(comm, on_one_host(comm, n)))
        return NULL;
    struct mpp_mpi_shm *s = calloc(1, sizeof *s + (size_t)n * sizeof s->heads[0]);
    if (!all_agree(comm, s != NULL)) {
        free(s);
        return NULL;
    }
    s->comm = comm;
    s->n = n;
    s->self = self;
    s->window = MPI_WIN_NULL;
    s->slot_floats = BUFFER_FLOATS / n / SLOT_ALIGN * SLOT_ALIGN;
    if (s->slot_floats < SLOT_ALIGN)
        s->slot_floats = SLOT_ALIGN;
    if (!all_agree(comm, map_heads(s))) { /* and with that, every counter is 0 before anyone meets */
        mpp_mpi_shm_free(s);
        return NULL;
    }
    return s;
}

void mpp_mpi_shm_free(struct mpp_mpi_shm *s)
{
    if (s == NULL)
        return;
    if (s->window != MPI_WIN_NULL)
        MPI_Win_free(&s->window);
    free(s);
}

#else
typedef int mpp_transport_mpi_shm_is_empty;
#endif
