/* Every entry point of mpp_rt.h that speaks with other ranks, against its definition: f32, bf16 and f16, sizes 1, 3, 31, 33, 64
 * and 257, arrays that are aligned and that are not. Ranks are threads: a stage of three, and one of two by two. */
#define MPP_TESTING_TRANSPORT
#include "views_testing.h"

#include "core/job.h"
#include "core/transfers.h"
#include "core/transport.h"

enum { RANKS = 7, TRANSFERS = N_KINDS * N_SIZES, ARENA = 1 << 17, OUTER = 3, ACROSS = 5 };

struct job {
    struct mpp_program program;
    struct mpp_stage stage[2];
    const struct mpp_stage *stages[2];
    struct mpp_transfer transfer[TRANSFERS];
    struct mpp_transport *transport;
};

struct job_rank {
    struct mpp_rank r;
    struct mpp_local local;
};

/* One transfer for each size and type, of rows that both stages split. */
static void make_job(struct job *j)
{
    struct mpp_error error;
    int64_t at = 0;
    *j = (struct job){.stage = {{.n_axes = 1, .axis_size = {3}}, {.first_rank = 3, .n_axes = 2, .axis_size = {2, 2}}},
                      .program = {.n_stages = 2, .n_transfers = TRANSFERS, .micro_batches = 1}};
    j->stages[0] = &j->stage[0], j->stages[1] = &j->stage[1];
    j->program.stages = j->stages, j->program.transfers = j->transfer;
    for (int i = 0; i < TRANSFERS; i++) {
        struct mpp_transfer *t = &j->transfer[i];
        *t = (struct mpp_transfer){.name = "x", .type = all_kinds[i % N_KINDS].type, .from = 0, .to = 1, .n_dims = 2,
                                   .dims = {sizes_tried[i / N_KINDS], ACROSS}, .from_split = {1, 0}, .to_split = {1, 2}, .depth = 2};
        t->stride = (mpp_transfer_bytes(&j->program, t) + 63) / 64 * 64;
        t->offset = at;
        at += t->depth * t->stride;
    }
    assert(at <= ARENA);
    j->transport = mpp_transport_threads_new(&j->program, &error);
    assert(j->transport != NULL);
}

/* Element I of RANK's array: a small integer, which every type holds exactly. */
static double value(int rank, int64_t i)
{
    return (double)((rank * 37 + i * 11) % 101 - 50);
}

static double *values(struct trial *t, int rank, int64_t n)
{
    double *x = zeros(t, n);
    for (int64_t i = 0; i < n; i++)
        x[i] = value(rank, i);
    return x;
}

/* The ranks of R's group, as they are placed. */
static int members(const struct mpp_rank *r, unsigned mask, struct mpp_rank out[RANKS])
{
    int n = 0;
    for (int k = 0; k < r->n_ranks; k++) {
        struct mpp_rank *other = &out[n];
        *other = (struct mpp_rank){0};
        mpp_mesh_place(other, r->program, k);
        bool same = other->stage_index == r->stage_index;
        for (int a = 0; a < r->n_axes; a++)
            same = same && ((mask >> a & 1) || other->coord[a] == r->coord[a]);
        n += same;
    }
    return n;
}

static double total(const struct mpp_rank *group, int n, int64_t i)
{
    double sum = 0;
    for (int m = 0; m < n; m++)
        sum += value(group[m].rank, i);
    return sum;
}

static void begin_workspace(struct trial *t, struct mpp_rank *r, int64_t bytes)
{
    r->workspace = workspace_of(t, bytes);
}

static void sums(struct mpp_rank *r, struct trial *t, unsigned mask)
{
    struct mpp_rank group[RANKS];
    int n = members(r, mask, group);
    double *x = values(t, r->rank, t->n), *sum = zeros(t, t->n), *most = zeros(t, t->n), *term = zeros(t, t->n);
    void *all = stored(t, t->k, x, t->n), *src = stored(t, t->k, x, t->n), *part = room(t, t->k, t->n);
    for (int64_t i = 0; i < t->n; i++) {
        sum[i] = total(group, n, i);
        most[i] = -INFINITY;
        for (int m = 0; m < n; m++)
            most[i] = fmax(most[i], value(group[m].rank, i));
        term[i] = group[0].rank == r->rank ? x[i] : 0;
    }
    if (t->k == wide) {
        float *largest = stored(t, wide, x, t->n);
        CALL(t, mpp_all_reduce, r, mask, all, t->n, MPP_REDUCE_SUM);
        mpp_all_reduce(r, mask, largest, t->n, MPP_REDUCE_MAX);
        check_stored(t, "all-reduce, largest", wide, largest, most, t->n, 0);
        CALL(t, mpp_to_partial, r, mask, src, part, t->n);
    } else {
        CALL(t, mpp_all_reduce_half, r, mask, t->k->type, all, t->n);
        CALL(t, mpp_to_partial_half, r, mask, src, part, t->n);
    }
    check_stored(t, "all-reduce", t->k, all, sum, t->n, 0);
    check_stored(t, "a term of a sum", t->k, part, term, t->n, 0);
    end_trial(t);
}

/* [OUTER, extent, 2], cut along the extent. */
static void cuts(struct mpp_rank *r, struct trial *t, unsigned mask)
{
    struct mpp_rank group[RANKS];
    int n = members(r, mask, group);
    struct mpp_extent mine = mpp_extent_of(r, t->n, mask);
    int64_t n_large = OUTER * t->n * 2, n_small = OUTER * mine.padded * 2;
    double *whole = zeros(t, n_large), *part = zeros(t, n_small), *own = zeros(t, n_small), *x = values(t, r->rank, n_large);
    for (int m = 0; m < n; m++) {
        struct mpp_extent e = mpp_extent_of(&group[m], t->n, mask);
        for (int64_t i = 0; i < OUTER * e.valid * 2; i++) {
            int64_t o = i / 2 / e.valid, k = i / 2 % e.valid;
            whole[(o * t->n + e.offset + k) * 2 + i % 2] = value(group[m].rank, (o * e.padded + k) * 2 + i % 2);
        }
    }
    for (int64_t i = 0; i < n_small; i++) {
        int64_t k = i / 2 % mine.padded, at = ((i / 2 / mine.padded) * t->n + mine.offset + k) * 2 + i % 2;
        part[i] = k < mine.valid ? total(group, n, at) : (double)NAN;
        own[i] = k < mine.valid ? x[at] : (double)NAN;
    }
    void *small = stored(t, t->k, values(t, r->rank, n_small), n_small), *large = stored(t, t->k, x, n_large);
    void *gathered = room(t, t->k, n_large), *scattered = room(t, t->k, n_small), *sliced = room(t, t->k, n_small);
    void *later = room(t, t->k, n_large), *made = room(t, t->k, n_small);
    size_t bytes = (size_t)(n_small * t->k->bytes);
    begin_workspace(t, r, CALL(t, mpp_all_gather_workspace, OUTER, t->n, 2));
    if (t->k == wide) {
        CALL(t, mpp_all_gather, r, mask, OUTER, t->n, 2, small, gathered);
        (mpp_copy)(r, made, small, bytes); /* no macro of conformance.h's: it is not waited for */
        CALL(t, mpp_all_gather_begin, r, mask, OUTER, t->n, 2, made, later);
        CALL(t, mpp_slice, r, mask, OUTER, t->n, 2, large, sliced);
        begin_workspace(t, r, CALL(t, mpp_reduce_scatter_workspace, OUTER, t->n, 2));
        CALL(t, mpp_reduce_scatter, r, mask, OUTER, t->n, 2, large, scattered);
    } else {
        CALL(t, mpp_all_gather_half, r, mask, OUTER, t->n, 2, small, gathered);
        (mpp_copy)(r, made, small, bytes);
        CALL(t, mpp_all_gather_begin_half, r, mask, OUTER, t->n, 2, made, later);
        CALL(t, mpp_slice_half, r, mask, OUTER, t->n, 2, large, sliced);
        begin_workspace(t, r, CALL(t, mpp_reduce_scatter_half_workspace, OUTER, t->n, 2));
        CALL(t, mpp_reduce_scatter_half, r, mask, t->k->type, OUTER, t->n, 2, large, scattered);
    }
    CALL(t, mpp_gather_wait, r, 0);
    check_stored(t, "all-gather", t->k, gathered, whole, n_large, 0);
    check_stored(t, "all-gather begun", t->k, later, whole, n_large, 0);
    check_stored(t, "slice", t->k, sliced, own, n_small, 0);
    check_stored(t, "reduce-scatter", t->k, scattered, part, n_small, 0);
    end_trial(t);
}

/* [rows, ACROSS]: rows are gathered while columns are split. */
static void exchange(struct mpp_rank *r, struct trial *t, unsigned mask)
{
    struct mpp_rank group[RANKS];
    int n = members(r, mask, group);
    struct mpp_extent rows = mpp_extent_of(r, t->n, mask), columns = mpp_extent_of(r, ACROSS, mask);
    const int64_t src_dims[] = {rows.padded, ACROSS};
    int64_t n_dst = t->n * columns.padded;
    double *want = zeros(t, n_dst);
    for (int m = 0; m < n; m++) {
        struct mpp_extent e = mpp_extent_of(&group[m], t->n, mask);
        for (int64_t i = 0; i < e.valid * columns.padded; i++) {
            int64_t row = i / columns.padded, column = i % columns.padded;
            want[(e.offset + row) * columns.padded + column] =
                column < columns.valid ? value(group[m].rank, row * ACROSS + columns.offset + column) : (double)NAN;
        }
    }
    void *src = stored(t, t->k, values(t, r->rank, rows.padded * ACROSS), rows.padded * ACROSS), *dst = room(t, t->k, n_dst);
    begin_workspace(t, r, CALL(t, mpp_all_to_all_workspace, 2, src_dims, 1));
    if (t->k == wide)
        CALL(t, mpp_all_to_all, r, mask, 2, src_dims, 0, t->n, 1, src, dst);
    else
        CALL(t, mpp_all_to_all_half, r, mask, 2, src_dims, 0, t->n, 1, src, dst);
    check_stored(t, "all-to-all", t->k, dst, want, n_dst, 0);
    end_trial(t);
}

static void begun(struct mpp_rank *r, struct trial *t, unsigned mask)
{
    struct mpp_rank group[RANKS];
    int n = members(r, mask, group);
    struct mpp_extent mine = mpp_extent_of(r, t->n, mask);
    double *sum = zeros(t, 2 * t->n), *part = zeros(t, mine.padded * 2), *x = values(t, r->rank, 2 * t->n);
    for (int64_t i = 0; i < 2 * t->n; i++)
        sum[i] = total(group, n, i);
    for (int64_t i = 0; i < mine.padded * 2; i++)
        part[i] = i < mine.valid * 2 ? sum[mine.offset * 2 + i] : (double)NAN;
    float *all = stored(t, wide, x, 2 * t->n), *src = stored(t, wide, x, 2 * t->n), *dst = room(t, wide, mine.padded * 2);
    begin_workspace(t, r, mpp_reduce_scatter_workspace(1, t->n, 2));
    CALL(t, mpp_all_reduce_begin, r, mask, all, 2 * t->n);
    CALL(t, mpp_reduce_scatter_begin, r, mask, 1, t->n, 2, src, dst);
    CALL(t, mpp_wait, r);
    check_stored(t, "all-reduce begun", wide, all, sum, 2 * t->n, 0);
    check_stored(t, "reduce-scatter begun", wide, dst, part, mine.padded * 2, 0);
    end_trial(t);
}

/* From the first stage to the second; padding stays as it is. */
static void transfer(struct mpp_rank *r, struct trial *t)
{
    int which = t->size * N_KINDS + (int)(t->k - all_kinds);
    const struct mpp_transfer *x = &r->program->transfers[which];
    const unsigned *split = r->stage_index == 0 ? x->from_split : x->to_split;
    struct mpp_extent rows = mpp_extent_of(r, x->dims[0], split[0]), columns = mpp_extent_of(r, x->dims[1], split[1]);
    int64_t n = rows.padded * columns.padded;
    double *local = zeros(t, n);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = i / columns.padded, column = i % columns.padded;
        bool valid = row < rows.valid && column < columns.valid;
        local[i] = valid ? value(t->shift, (rows.offset + row) * ACROSS + columns.offset + column) : 77;
    }
    if (r->stage_index == 0) {
        CALL(t, mpp_send, r, which, stored(t, t->k, local, n));
    } else {
        void *out = room(t, t->k, n);
        for (int64_t i = 0; i < n; i++)
            store_at(t->k, out, i, 77);
        CALL(t, mpp_receive, r, which, out);
        check_stored(t, "what arrives", t->k, out, local, n, 0);
    }
    end_trial(t);
}

static void over_stages(struct mpp_rank *r, struct trial *t)
{
    double term = r->stage_index == 0 ? 2.5 : (double)t->n, sum = 2.5 + (double)t->n;
    float *x = stored(t, wide, &term, 1);
    CALL(t, mpp_sum_over_stages, r, x);
    check_stored(t, "sum over stages", wide, x, &sum, 1, 0);
    end_trial(t);
}

static void *rank_main(void *arg)
{
    struct job_rank *j = arg;
    struct mpp_rank *r = &j->r;
    if (setjmp(j->local.leave) != 0) {
        check(false, "a rank has left");
        return NULL;
    }
    for (int i = 0; i < N_TRIALS; i++) {
        struct trial t = trial_at(i);
        for (unsigned mask = 0; mask < 1u << r->n_axes; mask++) {
            sums(r, &t, mask);
            cuts(r, &t, mask);
            exchange(r, &t, mask);
            if (t.k == wide)
                begun(r, &t, mask);
        }
        transfer(r, &t);
        if (t.k == wide)
            over_stages(r, &t);
    }
    return NULL;
}

int main(void)
{
    static struct job job;
    static struct job_rank ranks[RANKS];
    pthread_t threads[RANKS];
    make_job(&job);
    for (int i = 0; i < RANKS; i++) {
        ranks[i].r = (struct mpp_rank){.transport = job.transport, .impl = &ranks[i].local};
        mpp_mesh_place(&ranks[i].r, &job.program, i);
        ranks[i].r.arena = aligned_alloc(64, ARENA);
        memset(ranks[i].r.arena, 0x77, ARENA);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_create(&threads[i], NULL, rank_main, &ranks[i]);
    for (int i = 0; i < RANKS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < RANKS; i++)
        free(ranks[i].r.arena);
    job.transport->ops->free(job.transport);
    return report_coverage();
}
