/* transport.h - how ranks reach each other: threads of one process, or processes over MPI or TCP.
 *
 *     struct mpp_transport *t = mpp_transport_threads_new(&program, &error);   // one for all ranks
 *     r->transport = t;                                                        // each rank's
 *     t->ops->barrier(r, mask);
 *     t->ops->free(t);
 *
 * Operations are collective over the group of MASK (all ranks of a stage that share the other coordinates; MPP_WORLD: all
 * ranks of the job); groups of one mask run at the same time and know nothing of each other. When the job has failed,
 * operations do not return but leave the rank (fail.h). None allocates. */
#ifndef MPP_TRANSPORT_H
#define MPP_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fail.h"
#include "mpp_rt.h"
#include "watch.h"

struct mpp_program;
struct mpp_rank;
struct mpp_stage;
struct mpp_tcp_place;
struct mpp_transport;

/* A dimension that a collective cuts, seen as [outer, extent, inner] of elements of 4 or 2 bytes. */
struct mpp_cut {
    int64_t outer, extent, inner;
    int64_t block; /* padded extent of one member's part */
    int64_t bytes; /* of an element */
};

/* An array exchanged by all_to_all, seen as [d0, first, d2, second, d4]: of the two cut dimensions one is
 * gathered and the other split. */
struct mpp_exchange {
    int64_t d0, d2, d4;
    int64_t gather_extent, gather_block; /* dst has the extent, src the block */
    int64_t split_extent, split_block;   /* src has the extent, dst the block */
    bool gather_first;                   /* the gathered dimension is the outer one of the two */
    int64_t bytes;                       /* of an element: 4 or 2 */
};

struct mpp_transport_ops {
    const char *name;
    void (*free)(struct mpp_transport *t);
    void (*barrier)(struct mpp_rank *r, unsigned mask);
    void (*all_reduce)(struct mpp_rank *r, unsigned mask, float *x, int64_t count, bool maximum);
    /* Begin a sum that goes on while the rank works, ended by `wait`; false: the group gains nothing by it, and the
     * caller sums later. r->pending counts what was begun; while it does, `look` is called now and then. NULL: never. */
    bool (*all_reduce_begin)(struct mpp_rank *r, unsigned mask, float *x, int64_t count);
    bool (*reduce_scatter_begin)(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, float *src, float *dst);
    /* Begin a gather, the NUMBER-th of the rank, ended by gather_wait, which waits for those of numbers below END; false, NULL: as
     * for sums, and the caller gathers now. */
    bool (*all_gather_begin)(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, const void *src, void *dst, int64_t number);
    void (*gather_wait)(struct mpp_rank *r, int64_t end);
    void (*look)(struct mpp_rank *r);
    void (*wait)(struct mpp_rank *r);
    void (*all_gather)(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, const void *src, void *dst);
    void (*reduce_scatter)(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, const float *src,
                           float *dst);
    /* The same of 16-bit floats of TYPE: 16 bits travel, sums are formed in f32 in the order of the members and rounded once. */
    void (*all_reduce_half)(struct mpp_rank *r, unsigned mask, enum mpp_type type, uint16_t *x, int64_t count);
    void (*reduce_scatter_half)(struct mpp_rank *r, unsigned mask, const struct mpp_cut *cut, enum mpp_type type, const uint16_t *src,
                                uint16_t *dst);
    void (*all_to_all)(struct mpp_rank *r, unsigned mask, const struct mpp_exchange *x, const void *src, void *dst);
    /* Blocking; messages between two ranks arrive in order, and the byte counts must match. */
    void (*send)(struct mpp_rank *r, int to, const void *data, int64_t bytes);
    void (*receive)(struct mpp_rank *r, int from, void *data, int64_t bytes);
    /* mpp_send and mpp_receive of mpp_rt.h. */
    void (*transfer_send)(struct mpp_rank *r, int transfer, const void *x);
    void (*transfer_receive)(struct mpp_rank *r, int transfer, void *x);
    /* All that was sent has left R's arena, or never will; NULL: it has. */
    void (*drain)(struct mpp_rank *r);
    /* The code with which the job has failed; 0: it has not. For waits that are not the transport's own. NULL: where it fails,
     * the process ends. */
    int (*failed)(struct mpp_rank *r);
    /* R among the ranks of its machine, and how many they are. NULL: all ranks are threads. */
    void (*place_here)(const struct mpp_rank *r, int *index_out, int *count_out);
    /* This process is about to end by signal NUMBER: the others learn it. From any thread, while the transport is there. NULL: there
     * are no others. */
    void (*stopped)(struct mpp_rank *r, int number);
    /* R is this process's rank from here on: its ticks show whether it works. NULL: ranks are no processes. */
    void (*follow)(struct mpp_rank *r);
    /* The job has failed with CODE: the message is printed here, by the first rank only, and all other
     * ranks are released. Returns on threads; ends the process otherwise. */
    void (*abort)(struct mpp_rank *r, int code, const char *message);
};

struct mpp_transport {
    const struct mpp_transport_ops *ops;
};

/* These return NULL and fill ERROR on failure; the caller frees with ops->free. */
struct mpp_transport *mpp_transport_threads_new(const struct mpp_program *program, struct mpp_error *error);

/* Of processes. */
struct mpp_transport_settings {
    struct mpp_watch_settings watch;
    const uint64_t *mark;  /* what processes must have in common (alike.h); NULL: nothing is compared */
    int64_t call_elements; /* collectives are cut into pieces of at most so many; 0: what MPI's counts allow, or TCP's buffers */
};
/* Meets the others where PLACE says (transport_tcp_place.h), for as long as the watch's timeout_s. A fault that only this
 * process knows of is printed here, and ERROR's text then is empty. */
struct mpp_transport *mpp_transport_tcp_new(const struct mpp_program *program, const struct mpp_transport_settings *settings,
                                            const struct mpp_tcp_place *place, struct mpp_error *error);
#ifdef MPP_WITH_MPI
/* Calls MPI_Init; free calls MPI_Finalize. RANK_OUT is this process's rank. */
struct mpp_transport *mpp_transport_mpi_new(const struct mpp_program *program, const struct mpp_transport_settings *settings,
                                            int *rank_out, struct mpp_error *error);
#endif

/* Ranks of a stage, and of the program (mesh.c). */
int mpp_mesh_stage_ranks(const struct mpp_stage *stage);
int mpp_mesh_ranks(const struct mpp_program *program);
/* The index of RANK's stage. */
int mpp_mesh_stage_of(const struct mpp_program *program, int rank);
/* Sets R's program, rank, number of ranks, stage, mesh and coordinates. */
void mpp_mesh_place(struct mpp_rank *r, const struct mpp_program *program, int rank);

/* R works: called by whatever takes long. */
void mpp_rank_moves(struct mpp_rank *r);

/* Members of a group, and the member's own place (row-major over the mask's axes). MASK may be MPP_WORLD in all of these. */
int mpp_mesh_group_size(const struct mpp_rank *r, unsigned mask);
int mpp_mesh_group_index(const struct mpp_rank *r, unsigned mask);
/* The rank of member INDEX of R's group. */
int mpp_mesh_member(const struct mpp_rank *r, unsigned mask, int index);
/* Lowest rank of the group of RANK, where its stage has the axes of MASK; else -1. */
int mpp_mesh_group_base(const struct mpp_program *program, int rank, unsigned mask);

/* Nested block of EXTENT that member INDEX of the group of MASK holds: offset and valid extent. Returns
 * the padded extent of a block. */
int64_t mpp_mesh_block(const struct mpp_rank *r, unsigned mask, int index, int64_t extent, int64_t *offset_out,
                       int64_t *valid_out);

/* Move one element block: N0 x N1 x N2 pieces of RUN elements of BYTES each, with strides in elements. */
struct mpp_piece {
    int64_t n[3];
    int64_t src_stride[3], dst_stride[3];
    int64_t run, bytes;
};
void mpp_piece_copy(const struct mpp_piece *piece, const void *src, void *dst);

/* The exchange of an array of SRC_DIMS [n_dims], padded, over MASK: dimension GATHER_DIM is gathered to GATHER_EXTENT, SPLIT_DIM, another
 * one, is split. Its bytes are left to the caller. */
struct mpp_exchange mpp_exchange_of(const struct mpp_rank *r, unsigned mask, int n_dims, const int64_t *src_dims, int gather_dim,
                                    int64_t gather_extent, int split_dim);

/* What member TO gets from member FROM in an all-to-all, as offsets into FROM's src and TO's dst and the
 * strides between. False when the piece is empty. */
bool mpp_exchange_piece(const struct mpp_rank *r, unsigned mask, const struct mpp_exchange *x, int from, int to,
                        int64_t *src_offset_out, int64_t *dst_offset_out, struct mpp_piece *piece_out);

#endif
