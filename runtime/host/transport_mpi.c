/* transport_mpi.c - one process per rank under MPI; the only file that knows it.
 *
 * Each mask has a communicator whose ranks are the group's members in order. Valid blocks travel without
 * their padding; where a cut is not the outermost dimension they are packed in the rank's workspace. */
#ifdef MPP_WITH_MPI

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mpp_rt.h"
#include "transport.h"

#define MASKS (1 << MPP_MAX_AXES)
#define CHUNK ((int64_t)1 << 28) /* elements of one call: counts are int */

struct mpi {
    struct mpp_transport base;
    int n_ranks, n_masks;
    MPI_Comm comm[MASKS];
    int *counts, *displacements; /* [n_ranks] */
};

static struct mpi *mpi_of(const struct mpp_rank *r)
{
    return (struct mpi *)r->transport;
}

static void check(struct mpp_rank *r, int rc, const char *what)
{
    if (rc == MPI_SUCCESS)
        return;
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;
    MPI_Error_string(rc, text, &n);
    mpp_fail(r, MPP_EXIT_SYSTEM, "rank %d: %s: %.*s", r->rank, what, n, text);
}

static void mpi_barrier(struct mpp_rank *r, unsigned mask)
{
    check(r, MPI_Barrier(mpi_of(r)->comm[mask]), "MPI_Barrier");
}

static void mpi_all_reduce(struct mpp_rank *r, unsigned mask, float *x, int64_t count, bool maximum)
{
    for (int64_t i = 0; i < count; i += CHUNK) {
        int n = (int)(count - i < CHUNK ? count - i : CHUNK);
        check(r, MPI_Allreduce(MPI_IN_PLACE, x + i, n, MPI_FLOAT, maximum ? MPI_MAX : MPI_SUM, mpi_of(r)->comm[mask]),
              "MPI_Allreduce");
    }
}

/* Element counts and places of the members' valid blocks, packed one after the other. */
static void set_counts(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut)
{
    struct mpi *t = mpi_of(r);
    int n = mpp_mesh_group_size(r, mask);
    int64_t each = cut->outer * cut->inner;
    if (each * cut->extent > INT32_MAX)
        mpp_fail(r, MPP_EXIT_SYSTEM, "a collective of %lld elements is past what MPI's counts hold",
                 (long long)(each * cut->extent));
    for (int m = 0; m < n; m++) {
        int64_t offset, valid;
        mpp_mesh_block(r, mask, m, cut->extent, &offset, &valid);
        t->counts[m] = (int)(valid * each);
        t->displacements[m] = (int)(offset * each);
    }
}

static void mpi_all_gather(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, const void *src, void *dst)
{
    struct mpi *t = mpi_of(r);
    int n = mpp_mesh_group_size(r, mask), self = mpp_mesh_group_index(r, mask);
    set_counts(r, mask, cut);
    if (cut->outer == 1) {
        check(r, MPI_Allgatherv(src, t->counts[self], MPI_INT32_T, dst, t->counts, t->displacements, MPI_INT32_T,
                                t->comm[mask]), "MPI_Allgatherv");
        return;
    }
    for (int m = 0; m <= n; m++) { /* first pack our own block, then unpack all */
        int who = m == 0 ? self : m - 1;
        int64_t offset, valid;
        mpp_mesh_block(r, mask, who, cut->extent, &offset, &valid);
        char *packed = r->workspace + 4 * (int64_t)t->displacements[who];
        struct mpp_piece piece = {.n = {1, 1, cut->outer}, .run = valid * cut->inner};
        if (m == 0) {
            piece.src_stride[2] = cut->block * cut->inner;
            piece.dst_stride[2] = valid * cut->inner;
            mpp_piece_copy(&piece, src, packed);
            check(r, MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_INT32_T, r->workspace, t->counts, t->displacements,
                                    MPI_INT32_T, t->comm[mask]), "MPI_Allgatherv");
        } else {
            piece.src_stride[2] = valid * cut->inner;
            piece.dst_stride[2] = cut->extent * cut->inner;
            mpp_piece_copy(&piece, packed, (char *)dst + 4 * offset * cut->inner);
        }
    }
}

static void mpi_reduce_scatter(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, const float *src,
                               float *dst)
{
    struct mpi *t = mpi_of(r);
    int n = mpp_mesh_group_size(r, mask), self = mpp_mesh_group_index(r, mask);
    const float *send = src;
    set_counts(r, mask, cut);
    if (cut->outer > 1) {
        send = (const float *)(const void *)r->workspace;
        for (int m = 0; m < n; m++) {
            int64_t offset, valid;
            mpp_mesh_block(r, mask, m, cut->extent, &offset, &valid);
            struct mpp_piece piece = {
                .n = {1, 1, cut->outer},
                .src_stride = {0, 0, cut->extent * cut->inner},
                .dst_stride = {0, 0, valid * cut->inner},
                .run = valid * cut->inner,
            };
            mpp_piece_copy(&piece, src + offset * cut->inner, r->workspace + 4 * (int64_t)t->displacements[m]);
        }
    }
    check(r, MPI_Reduce_scatter(send, dst, t->counts, MPI_FLOAT, MPI_SUM, t->comm[mask]), "MPI_Reduce_scatter");
    int64_t offset, valid;
    mpp_mesh_block(r, mask, self, cut->extent, &offset, &valid);
    if (valid < cut->block) /* spread the rows to their padded places, the last first */
        for (int64_t o = cut->outer - 1; o > 0; o--)
            memmove(dst + o * cut->block * cut->inner, dst + o * valid * cut->inner,
                    (size_t)(valid * cut->inner) * sizeof *dst);
}

/* Pairwise: in round i everyone sends to the i-th member after it. */
static void mpi_all_to_all(struct mpp_rank *r, unsigned mask, const struct mpp_exchange *x, const void *src,
                           void *dst)
{
    struct mpi *t = mpi_of(r);
    int n = mpp_mesh_group_size(r, mask), self = mpp_mesh_group_index(r, mask);
    int64_t largest = x->d0 * x->d2 * x->d4 * x->gather_block * x->split_block;
    char *out = r->workspace, *in = r->workspace + 4 * largest;
    if (largest > INT32_MAX)
        mpp_fail(r, MPP_EXIT_SYSTEM, "an all-to-all of %lld elements is past what MPI's counts hold",
                 (long long)largest);
    for (int round = 0; round < n; round++) {
        int to = (self + round) % n, from = (self + n - round) % n;
        int64_t src_offset, dst_offset, send_count = 0, receive_count = 0;
        struct mpp_piece piece;
        if (mpp_exchange_piece(r, mask, x, self, to, &src_offset, &dst_offset, &piece)) {
            if (to == self) {
                mpp_piece_copy(&piece, (const char *)src + 4 * src_offset, (char *)dst + 4 * dst_offset);
                continue;
            }
            send_count = piece.n[0] * piece.n[1] * piece.n[2] * piece.run;
            piece.dst_stride[2] = piece.run;
            piece.dst_stride[1] = piece.n[2] * piece.run;
            piece.dst_stride[0] = piece.n[1] * piece.n[2] * piece.run;
            mpp_piece_copy(&piece, (const char *)src + 4 * src_offset, out);
        }
        bool some = mpp_exchange_piece(r, mask, x, from, self, &src_offset, &dst_offset, &piece);
        if (some)
            receive_count = piece.n[0] * piece.n[1] * piece.n[2] * piece.run;
        if (to == self)
            continue;
        check(r, MPI_Sendrecv(out, (int)send_count, MPI_INT32_T, to, 0, in, (int)receive_count, MPI_INT32_T, from, 0,
                              t->comm[mask], MPI_STATUS_IGNORE), "MPI_Sendrecv");
        if (!some)
            continue;
        piece.src_stride[2] = piece.run;
        piece.src_stride[1] = piece.n[2] * piece.run;
        piece.src_stride[0] = piece.n[1] * piece.n[2] * piece.run;
        mpp_piece_copy(&piece, in, (char *)dst + 4 * dst_offset);
    }
}

static void mpi_send(struct mpp_rank *r, int to, const void *data, int64_t bytes)
{
    for (int64_t i = 0; i == 0 || i < bytes; i += CHUNK)
        check(r, MPI_Send((const char *)data + i, (int)(bytes - i < CHUNK ? bytes - i : CHUNK), MPI_BYTE, to, 1,
                          MPI_COMM_WORLD), "MPI_Send");
}

static void mpi_receive(struct mpp_rank *r, int from, void *data, int64_t bytes)
{
    for (int64_t i = 0; i == 0 || i < bytes; i += CHUNK) {
        int expected = (int)(bytes - i < CHUNK ? bytes - i : CHUNK), n = 0;
        MPI_Status status;
        check(r, MPI_Recv((char *)data + i, expected, MPI_BYTE, from, 1, MPI_COMM_WORLD, &status), "MPI_Recv");
        MPI_Get_count(&status, MPI_BYTE, &n);
        if (n != expected)
            mpp_fail(r, MPP_EXIT_SYSTEM, "rank %d expects %d bytes from rank %d, which sends %d", r->rank, expected,
                     from, n);
    }
}

static void mpi_abort(struct mpp_rank *r, int code, const char *message)
{
    (void)r;
    fprintf(stderr, "error: %s\n", message);
    fflush(NULL);
    MPI_Abort(MPI_COMM_WORLD, code);
}

static void mpi_free(struct mpp_transport *base)
{
    struct mpi *t = (struct mpi *)base;
    for (int m = 0; m < t->n_masks; m++)
        if (t->comm[m] != MPI_COMM_NULL)
            MPI_Comm_free(&t->comm[m]);
    free(t->counts);
    free(t->displacements);
    free(t);
    MPI_Finalize();
}

static const struct mpp_transport_ops mpi_ops = {
    .name = "MPI",
    .free = mpi_free,
    .barrier = mpi_barrier,
    .all_reduce = mpi_all_reduce,
    .all_gather = mpi_all_gather,
    .reduce_scatter = mpi_reduce_scatter,
    .all_to_all = mpi_all_to_all,
    .send = mpi_send,
    .receive = mpi_receive,
    .abort = mpi_abort,
};

struct mpp_transport *mpp_transport_mpi_new(const struct mpp_program *program, int *rank_out, struct mpp_error *error)
{
    /* Waiting processes give way: there may be more of them than cores. */
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    int provided, size, needed = mpp_mesh_ranks(program);
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        (void)mpp_error_set(error, MPP_EXIT_SYSTEM, "MPI does not start");
        return NULL;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, rank_out);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != needed) {
        (void)mpp_error_set(error, MPP_EXIT_INPUT, "the plan is for %d device%s, but MPI started %d process%s; use -n %d",
                            needed, needed == 1 ? "" : "s", size, size == 1 ? "" : "es", needed);
        MPI_Finalize();
        return NULL;
    }
    struct mpi *t = calloc(1, sizeof *t);
    int *counts = calloc((size_t)size, sizeof *counts), *displacements = calloc((size_t)size, sizeof *displacements);
    if (t == NULL || counts == NULL || displacements == NULL) {
        (void)mpp_error_set(error, MPP_EXIT_SYSTEM, "out of memory");
        free(t);
        free(counts);
        free(displacements);
        MPI_Abort(MPI_COMM_WORLD, MPP_EXIT_SYSTEM);
        return NULL;
    }
    t->base.ops = &mpi_ops;
    t->n_ranks = size;
    t->counts = counts;
    t->displacements = displacements;
    t->n_masks = 1 << program->n_axes;
    for (int mask = 0; mask < t->n_masks; mask++)
        MPI_Comm_split(MPI_COMM_WORLD, mpp_mesh_group_base(program, *rank_out, (unsigned)mask), *rank_out,
                       &t->comm[mask]);
    return &t->base;
}

#else
typedef int mpp_transport_mpi_is_empty;
#endif
