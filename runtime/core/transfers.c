/* transfers.c - boxes of a tensor between the blocks of two stages. */
#include <stdlib.h>
#include <string.h>

#include "transfers.h"
#include "transport.h"

int64_t mpp_type_bytes(enum mpp_type type)
{
    return type == MPP_TYPE_BF16 || type == MPP_TYPE_F16 ? 2 : 4;
}

/* The block of a tensor that one rank has. */
struct block {
    struct mpp_extent dim[MPP_MAX_DIMS];
};

static struct block block_of(const struct mpp_rank *r, const struct mpp_transfer *t, const unsigned *split)
{
    struct block b;
    for (int d = 0; d < t->n_dims; d++)
        b.dim[d] = mpp_extent_of(r, t->dims[d], split[d]);
    return b;
}

/* Does SENDER, of those that hold the same block, serve the receiver with index RECEIVER in its stage? */
static bool serves(const struct mpp_rank *sender, const struct mpp_transfer *t, int receiver)
{
    unsigned alike = (1u << sender->n_axes) - 1; /* axes along which the block is the same */
    for (int d = 0; d < t->n_dims; d++)
        alike &= ~t->from_split[d];
    return mpp_mesh_group_index(sender, alike) == receiver % mpp_mesh_group_size(sender, alike);
}

/* The box in which the blocks meet; false: they do not. */
static bool meet(const struct mpp_transfer *t, const struct block *from, const struct block *to, struct mpp_part *part_out)
{
    struct mpp_part p = {.n_dims = t->n_dims};
    for (int d = 0; d < t->n_dims; d++) {
        const struct mpp_extent *a = &from->dim[d], *b = &to->dim[d];
        int64_t begin = a->offset > b->offset ? a->offset : b->offset;
        int64_t a_end = a->offset + a->valid, b_end = b->offset + b->valid;
        p.n[d] = (a_end < b_end ? a_end : b_end) - begin;
        if (p.n[d] <= 0)
            return false;
        p.from_dims[d] = a->padded;
        p.from_at[d] = begin - a->offset;
        p.to_dims[d] = b->padded;
        p.to_at[d] = begin - b->offset;
    }
    *part_out = p;
    return true;
}

int mpp_transfer_parts(const struct mpp_program *program, const struct mpp_transfer *transfer, int rank,
                       struct mpp_part **parts_out, int *n_out, struct mpp_error *error)
{
    const struct mpp_transfer *t = transfer;
    struct mpp_rank self = {0}, peer = {0};
    mpp_mesh_place(&self, program, rank);
    bool sends = self.stage_index == t->from;
    const struct mpp_stage *other = program->stages[sends ? t->to : t->from];
    struct block own = block_of(&self, t, sends ? t->from_split : t->to_split);
    int n_peers = mpp_mesh_stage_ranks(other), n = 0;
    struct mpp_part *parts = calloc((size_t)n_peers, sizeof *parts);
    if (parts == NULL)
        return mpp_error_set(error, MPP_EXIT_SYSTEM, "rank %d: out of memory", rank);
    for (int i = 0; i < n_peers; i++) {
        mpp_mesh_place(&peer, program, other->first_rank + i);
        struct block block = block_of(&peer, t, sends ? t->to_split : t->from_split);
        const struct mpp_rank *sender = sends ? &self : &peer, *receiver = sends ? &peer : &self;
        if (serves(sender, t, receiver->rank - receiver->stage->first_rank)
            && meet(t, sends ? &own : &block, sends ? &block : &own, &parts[n]))
            parts[n++].peer = peer.rank;
    }
    *parts_out = parts;
    *n_out = n;
    return MPP_EXIT_OK;
}

/* Dimensions that are walked; those after them lie side by side on both sides, *RUN_BYTES_OUT bytes. */
static int outer_dims(const struct mpp_part *part, int64_t bytes, int64_t *run_bytes_out)
{
    int outer = part->n_dims;
    *run_bytes_out = bytes;
    while (outer > 0) {
        int d = --outer;
        *run_bytes_out *= part->n[d];
        if (part->n[d] != part->from_dims[d] || part->n[d] != part->to_dims[d])
            break;
    }
    return outer;
}

int64_t mpp_part_rows(const struct mpp_part *part, int64_t bytes, int64_t *run_bytes_out)
{
    int64_t rows = 1;
    for (int d = outer_dims(part, bytes, run_bytes_out) - 1; d >= 0; d--)
        rows *= part->n[d];
    return rows;
}

int64_t mpp_part_row(const struct mpp_part *part, int64_t bytes, int64_t row, bool of_sender)
{
    const int64_t *dims = of_sender ? part->from_dims : part->to_dims, *at = of_sender ? part->from_at : part->to_at;
    int64_t run, place = 0, stride = 1;
    int outer = outer_dims(part, bytes, &run);
    for (int d = part->n_dims - 1; d >= 0; d--) {
        int64_t index = d < outer ? row % part->n[d] : 0;
        if (d < outer)
            row /= part->n[d];
        place += (at[d] + index) * stride;
        stride *= dims[d];
    }
    return place * bytes;
}

int64_t mpp_part_elements(const struct mpp_part *part)
{
    int64_t n = 1;
    for (int d = 0; d < part->n_dims; d++)
        n *= part->n[d];
    return n;
}

/* Then all dimensions after the first one longer than 1 are whole. */
bool mpp_part_is_run(const struct mpp_part *part, bool of_sender)
{
    int d = 0;
    while (d < part->n_dims && part->n[d] == 1)
        d++;
    for (d++; d < part->n_dims; d++)
        if (part->n[d] != (of_sender ? part->from_dims[d] : part->to_dims[d]))
            return false;
    return true;
}

void mpp_part_copy(const struct mpp_part *part, int64_t bytes, const void *from, void *to)
{
    int64_t at[MPP_MAX_DIMS] = {0}, run;
    int outer = outer_dims(part, bytes, &run);
    for (;;) {
        int64_t source = 0, target = 0;
        for (int d = 0; d < part->n_dims; d++) {
            source = source * part->from_dims[d] + part->from_at[d] + at[d];
            target = target * part->to_dims[d] + part->to_at[d] + at[d];
        }
        memcpy((char *)to + target * bytes, (const char *)from + source * bytes, (size_t)run);
        int d = outer - 1;
        while (d >= 0 && ++at[d] == part->n[d])
            at[d--] = 0;
        if (d < 0)
            return;
    }
}

int64_t mpp_transfer_bytes(const struct mpp_program *program, const struct mpp_transfer *transfer)
{
    struct mpp_rank first = {0};
    int64_t bytes = mpp_type_bytes(transfer->type);
    mpp_mesh_place(&first, program, program->stages[transfer->from]->first_rank);
    for (int d = 0; d < transfer->n_dims; d++)
        bytes *= mpp_extent_of(&first, transfer->dims[d], transfer->from_split[d]).padded;
    return bytes;
}

int64_t mpp_transfer_local_bytes(const struct mpp_rank *r, const struct mpp_transfer *t, const unsigned *split)
{
    int64_t bytes = mpp_type_bytes(t->type);
    for (int d = 0; d < t->n_dims; d++)
        bytes *= mpp_extent_of(r, t->dims[d], split[d]).valid;
    return bytes;
}
