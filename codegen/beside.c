/* beside.c - the device memory that a CUDA trainer takes beside its arena, from the shapes of what a rank runs.
 *
 * What the trainer allocates itself is bounded by the rules of runtime/cuda, case by case below; it grows in the first step to what
 * these come to, so that every size here is the largest of all instructions. Packed messages follow parts that differ from rank to
 * rank: theirs is a bound for every one of them. */
#include "codegen/lower_internal.h"
#include "codegen/runtime_sizes.h"

enum {
    SUM_DOUBLES = 2 * 512 * 32 * 8, /* mpp_column_parts, mpp_row_parts: about 512 blocks of 32 columns of up to 8 lanes; twice, for what
                                  * rounding up adds. Tables' gradients take two of as many (kernels_table.cu, CHUNK_PARTS) */
    PAIR_CHANNELS = 2,           /* of NCCL's sends to a rank of another machine (src/graph/paths.cc, ncclTopoGetNchannels) */
    ROW_BYTES = 16,              /* of each row: a double and two floats (kernels_loss.cu), the most of all kernels */
};

struct beside {
    const struct mpp_lprog *prog;
    const struct mpp_mesh *mesh;
    int64_t sums, rows, pack, unpack, begun; /* by enum mpp_scratch */
    unsigned met;                /* masks of axes that meet, by number */
    bool world;
};

static int64_t span_of(const struct mpp_buffer *b, int first, int end)
{
    int64_t n = 1;
    for (int d = first; d < end; d++)
        n *= b->padded[d];
    return n;
}

static void most(int64_t *x, int64_t bytes)
{
    *x = bytes > *x ? bytes : *x;
}

static int members(const struct mpp_mesh *mesh, unsigned mask)
{
    int n = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        n *= mask >> a & 1 ? mesh->size[a] : 1;
    return n;
}

/* A nested block of EXTENT over the axes of MASK (mpp_mesh_block). */
static int64_t block_of(const struct mpp_mesh *mesh, unsigned mask, int64_t extent)
{
    for (int a = 0; a < mesh->n_axes; a++)
        if (mask >> a & 1)
            extent = (extent + mesh->size[a] - 1) / mesh->size[a];
    return extent;
}

/* All parts of a cut of B's dimension DIM, in elements; 0: they lie side by side and need no packing. */
static int64_t packed_cut(const struct beside *x, const struct mpp_buffer *b, int dim, unsigned mask, int64_t *part_out)
{
    int64_t outer = span_of(b, 0, dim), inner = span_of(b, dim + 1, b->n_dims), n = members(x->mesh, mask);
    int64_t block = block_of(x->mesh, mask, b->padded[dim]);
    *part_out = outer * block * inner;
    return outer == 1 && block * n == b->padded[dim] ? 0 : n * *part_out;
}

static void add_step(struct beside *x, const struct mpp_instr *in)
{
    const struct mpp_reshard_step *s = in->step;
    const struct mpp_buffer *src = &x->prog->buffers[in->in[0].buffer], *dst = &x->prog->buffers[in->out[0].buffer];
    int64_t bytes = mpp_dtype_bytes(dst->dtype), n = members(x->mesh, s->mask), part;
    if (n == 1)
        return;
    x->met |= s->kind == MPP_STEP_SLICE || s->kind == MPP_STEP_TO_PARTIAL ? 0 : 1u << s->mask;
    switch (s->kind) {
    case MPP_STEP_ALL_REDUCE: {
        int64_t count = span_of(dst, 0, dst->n_dims), unit = n * MPP_SIZES_HALF_ALIGNED;
        if (bytes != 2)
            break;
        int64_t shares = ((count < MPP_SIZES_HALF_PART ? count : MPP_SIZES_HALF_PART) + unit - 1) / unit * unit;
        most(&x->unpack, bytes * shares);
        most(&x->pack, count > MPP_SIZES_HALF_PART || count != shares ? bytes * shares : 0);
        break;
    }
    case MPP_STEP_REDUCE_SCATTER: {
        int64_t packed = bytes * packed_cut(x, src, s->dim, s->mask, &part);
        bool fills = in->begins && packed > 0 && packed < MPP_SIZES_BUCKET_BYTES; /* there is room for a full bucket */
        most(in->begins ? &x->begun : &x->pack, fills ? MPP_SIZES_BUCKET_BYTES : packed);
        most(&x->unpack, bytes == 2 ? bytes * n * part : 0);
        break;
    }
    case MPP_STEP_ALL_GATHER:
        most(in->prefetch ? &x->begun : &x->unpack, bytes * packed_cut(x, dst, s->dim, s->mask, &part));
        break;
    case MPP_STEP_ALL_TO_ALL: {
        int64_t whole = src->padded[s->to_dim];
        int64_t pieces = bytes * n * (span_of(src, 0, src->n_dims) / (whole > 0 ? whole : 1)) * block_of(x->mesh, s->mask, whole);
        most(&x->pack, pieces);
        most(&x->unpack, pieces);
        break;
    }
    case MPP_STEP_SLICE: /* within its own memory */
        most(&x->pack, bytes * span_of(dst, 0, dst->n_dims));
        break;
    case MPP_STEP_TO_PARTIAL:
        break;
    }
}

/* A kernel's sums for few results, and what it keeps of each row; a row is at least the last dimension of an operand. */
static void add_compute(struct beside *x, const struct mpp_instr *in)
{
    int64_t last = 0;
    for (int i = 0; i < in->n_in + in->n_out; i++) {
        int b = i < in->n_in ? in->in[i].buffer : in->out[i - in->n_in].buffer;
        if (b < 0)
            continue;
        const struct mpp_buffer *buf = &x->prog->buffers[b];
        int n = buf->n_dims;
        int64_t width = n > 0 ? buf->padded[n - 1] : 1;
        int64_t rows = buf->dtype == MPP_I32 ? span_of(buf, 0, n) : span_of(buf, 0, n - 1);
        last = width > last ? width : last;
        most(&x->rows, ROW_BYTES * (rows + 1));
    }
    most(&x->sums, (int64_t)sizeof(double) * (in->n_out > 2 ? in->n_out : 2) * (SUM_DOUBLES + last));
}

static void add_instr(struct beside *x, const struct mpp_instr *in, int n_stages)
{
    if (in->kind == MPP_INSTR_COMPUTE)
        add_compute(x, in);
    else if (in->kind == MPP_INSTR_STEP)
        add_step(x, in);
    else if (in->kind == MPP_INSTR_SUM_STAGES) {
        x->world = true;
        most(&x->rows, (int64_t)sizeof(float) * n_stages);
    }
}

/* ---- messages between stages ---- */

/* The nested block of rank INDEX of MESH along a dimension of EXTENT that is split over MASK. */
static void block_at(const struct mpp_mesh *mesh, unsigned mask, int index, int64_t extent, int64_t *from_out, int64_t *end_out)
{
    int64_t from = 0, end = extent, block = extent, after = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        after *= mesh->size[a];
    for (int a = 0; a < mesh->n_axes; a++) {
        after /= mesh->size[a];
        if (!(mask >> a & 1))
            continue;
        block = (block + mesh->size[a] - 1) / mesh->size[a];
        from += index / after % mesh->size[a] * block;
        from = from < end ? from : end;
        end = from + block < end ? from + block : end;
    }
    *from_out = from;
    *end_out = end;
}

/* Which of those that hold the same block rank INDEX of MESH is, row-major over the axes outside of MASK; and how many they are. */
static int copy_at(const struct mpp_mesh *mesh, unsigned mask, int index, int *out_n)
{
    int after = 1, at = 0, n = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        after *= mesh->size[a];
    for (int a = 0; a < mesh->n_axes; a++) {
        after /= mesh->size[a];
        if (mask >> a & 1)
            continue;
        at = at * mesh->size[a] + index / after % mesh->size[a];
        n *= mesh->size[a];
    }
    *out_n = n;
    return at;
}

/* Where a rank's block of a message begins and ends along each dimension. */
struct block {
    int64_t from[MPP_GRAPH_MAX_DIMS], end[MPP_GRAPH_MAX_DIMS];
};

static struct block *blocks_of(struct mpp_arena *arena, const struct mpp_transfer_line *t, const struct mpp_stage *s, const unsigned *split)
{
    struct block *block = mpp_arena_array(arena, s->n_devices, struct block);
    for (int i = 0; i < s->n_devices; i++)
        for (int d = 0; d < t->n_dims; d++)
            block_at(&s->mesh, split[d], i, t->dims[d], &block[i].from[d], &block[i].end[d]);
    return block;
}

/* Extents of what both blocks hold; false: nothing. */
static bool overlap_of(const struct block *a, const struct block *b, int n_dims, int64_t *n)
{
    for (int d = 0; d < n_dims; d++) {
        n[d] = (a->end[d] < b->end[d] ? a->end[d] : b->end[d]) - (a->from[d] > b->from[d] ? a->from[d] : b->from[d]);
        if (n[d] <= 0)
            return false;
    }
    return true;
}

/* Bytes of a part of N elements, and whether it lies in one run of each side's array (runtime/core/transfers.c). */
static int64_t part_of(const struct mpp_plan *plan, const struct mpp_transfer_line *t, const int64_t *n, bool *run_from_out, bool *run_to_out)
{
    int64_t bytes = mpp_dtype_bytes(t->dtype);
    bool first = true;
    *run_from_out = *run_to_out = true;
    for (int d = 0; d < t->n_dims; d++) {
        *run_from_out = *run_from_out && (first || n[d] == block_of(&plan->stages[t->from].mesh, t->from_split[d], t->dims[d]));
        *run_to_out = *run_to_out && (first || n[d] == block_of(&plan->stages[t->to].mesh, t->to_split[d], t->dims[d]));
        first = first && n[d] == 1;
        bytes *= n[d];
    }
    return bytes;
}

/* Of each rank of STAGE: how many it exchanges messages with, and the memory these are packed in. */
static void add_line(struct mpp_arena *arena, const struct mpp_plan *plan, int stage, const struct mpp_transfer_line *t, int *pairs,
                     int64_t *bytes)
{
    const struct mpp_stage *from = &plan->stages[t->from], *to = &plan->stages[t->to];
    const struct block *sends = blocks_of(arena, t, from, t->from_split), *wants = blocks_of(arena, t, to, t->to_split);
    unsigned cut = 0;
    for (int d = 0; d < t->n_dims; d++)
        cut |= t->from_split[d];
    for (int i = 0; i < from->n_devices; i++) {
        int copies, copy = copy_at(&from->mesh, cut, i, &copies);
        for (int k = copy; k < to->n_devices; k += copies) { /* receivers take turns */
            int64_t n[MPP_GRAPH_MAX_DIMS];
            bool run_from, run_to;
            if (!overlap_of(&sends[i], &wants[k], t->n_dims, n))
                continue;
            int64_t part = part_of(plan, t, n, &run_from, &run_to);
            int rank = t->from == stage ? i : k;
            pairs[rank]++;
            bytes[rank] += t->from == stage ? (run_from ? 0 : t->depth * part) : run_to ? 0 : part;
        }
    }
}

static void add_messages(struct mpp_arena *arena, const struct mpp_plan *plan, int stage, const struct mpp_transfers *transfers,
                         struct mpp_beside *out)
{
    int n = plan->stages[stage].n_devices;
    int *pairs = mpp_arena_array(arena, n, int);
    int64_t *bytes = mpp_arena_array(arena, n, int64_t);
    for (int i = 0; i < transfers->n; i++)
        if (transfers->line[i].from == stage || transfers->line[i].to == stage)
            add_line(arena, plan, stage, &transfers->line[i], pairs, bytes);
    for (int i = 0; i < n; i++) {
        out->pairs = pairs[i] > out->pairs ? pairs[i] : out->pairs;
        most(&out->messages, bytes[i]);
    }
}

/* ---- all of it ---- */

void mpp_beside_plan(struct mpp_arena *arena, const struct mpp_plan *plan, int stage, const struct mpp_transfers *transfers,
                     const struct mpp_lprog *prog, struct mpp_beside *out)
{
    const struct mpp_stage *s = &plan->stages[stage];
    struct beside x = {.prog = prog, .mesh = &s->mesh};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < prog->section[i].n_items; k++)
            if (!prog->section[i].items[k].loop)
                add_instr(&x, &prog->section[i].items[k].instr, plan->n_stages);
    for (int i = 0; i < prog->n_bodies; i++)
        for (int k = 0; k < prog->bodies[i].n_instrs; k++)
            add_instr(&x, &prog->bodies[i].instrs[k], plan->n_stages);
    for (int i = 0; i < s->n_collectives; i++)
        x.met |= 1u << s->collectives[i].mask;
    *out = (struct mpp_beside){.workspace = MPP_SIZES_BLAS_BYTES + MPP_SIZES_SMALL_BYTES, .kernels = x.sums + x.rows,
                               .packing = x.pack + x.unpack + x.begun};
    for (unsigned mask = 1; mask < 1u << MPP_MAX_AXES; mask++) {
        int n = x.met >> mask & 1 ? members(&s->mesh, mask) : 1;
        out->groups += n > 1;
        out->groups_of_two += n == 2;
    }
    out->groups += x.world;
    struct mpp_arena *scratch = mpp_arena_scratch(arena);
    add_messages(scratch, plan, stage, transfers, out);
    mpp_arena_free(scratch);
    out->own_bytes = out->workspace + out->kernels + out->packing + out->messages;
}

/* A connection's buffers of the three protocols are 4 MiB, 4.7 MiB and 0.5 MiB (NCCL, src/init.cc, computeBuffSizes), 10 MiB as they
 * are allocated (github.com/NVIDIA/nccl, issue 1685). A group of two has two connections a channel, a larger one three: that gives 480
 * and 720 MiB on 24 channels, where 544 and 688 MB were measured on four A100 (issue 964). A pair only sends, over PAIR_CHANNELS. */
void mpp_beside_price(const struct mpp_cluster *cluster, struct mpp_beside *b)
{
    const int64_t connection = (int64_t)10 << 20;
    int64_t connections = 2 * b->groups_of_two + 3 * (b->groups - b->groups_of_two);
    b->on_gpu = cluster->kind != MPP_LINK_SHARED;
    b->nccl = b->on_gpu ? (cluster->channels * connections + PAIR_CHANNELS * b->pairs) * connection : 0;
    b->context = b->on_gpu ? cluster->device.context_bytes : 0;
    b->bytes = b->own_bytes + b->nccl + b->context;
}

int64_t mpp_beside_over(const struct mpp_cluster *cluster, const struct mpp_beside *b)
{
    int64_t reserve = cluster->device.mem_bytes - mpp_device_usable_bytes(&cluster->device);
    return b->on_gpu && b->bytes > reserve ? b->bytes - reserve : 0;
}
