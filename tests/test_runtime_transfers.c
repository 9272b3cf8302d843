/* Transfers between stages: every receiver gets exactly its block, whatever the meshes and splits on both sides, and the
 * padding stays as it was; rings of every depth keep the order; sums over stages have the same bits everywhere; a rank that
 * fails releases those that wait for it. Programs of two to four stages on threads; as N processes, under mpirun (an argument:
 * elements of a message) or with RANK and so on, the same ones of N ranks over MPI or TCP. On threads an argument says how many
 * programs of each pipeline are drawn. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mpp_rt.h"
#include "core/job.h"
#include "core/transfers.h"
#include "core/transport.h"
#include "core/transport_tcp_place.h"

enum { MAX_STAGES = 4, MAX_TRANSFERS = 6, MESSAGES = 7, ARENA = 1 << 16 };

struct tally {
    int passed, failed;
};

static void expect(struct tally *t, bool ok, const char *what, const struct mpp_rank *r, int transfer)
{
    if (ok)
        t->passed++;
    else
        t->failed++;
    if (!ok)
        fprintf(stderr, "failed: %s, rank %d of %d, transfer %d\n", what, r->rank, r->n_ranks, transfer);
}

/* ---- programs ------------------------------------------------------------------------------------------ */

struct job_program {
    struct mpp_program program;
    struct mpp_stage stage[MAX_STAGES];
    const struct mpp_stage *stages[MAX_STAGES];
    struct mpp_transfer transfer[MAX_TRANSFERS];
};

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Axes of a mesh of N_AXES that split dimensions at random, each at most one. */
static void draw_splits(uint64_t *seed, int n_axes, int n_dims, unsigned *split)
{
    memset(split, 0, MPP_MAX_DIMS * sizeof *split);
    for (int a = 0; a < n_axes; a++) {
        int d = (int)(next_random(seed) % (uint64_t)(n_dims + 1));
        if (d < n_dims)
            split[d] |= 1u << a;
    }
}

/* Stages with the given meshes, each ended by 0; tensors go forward, backward, and from the last stage to the first. */
static void make_program(struct job_program *j, int n_stages, const int (*mesh)[3], uint64_t seed)
{
    static const int64_t extents[] = {1, 2, 3, 5, 7, 8, 11};
    static const enum mpp_type types[] = {MPP_TYPE_F32, MPP_TYPE_I32, MPP_TYPE_BF16, MPP_TYPE_F16};
    *j = (struct job_program){.program = {.n_stages = n_stages, .stages = j->stages, .transfers = j->transfer}};
    int first = 0;
    for (int s = 0; s < n_stages; s++) {
        struct mpp_stage *stage = &j->stage[s];
        stage->first_rank = first;
        for (int a = 0; a < 3 && mesh[s][a] > 0; a++)
            stage->axis_size[stage->n_axes++] = mesh[s][a];
        j->stages[s] = stage;
        first += mpp_mesh_stage_ranks(stage);
    }
    int64_t at[MAX_STAGES] = {0};
    for (int i = 0; i < MAX_TRANSFERS; i++) {
        struct mpp_transfer *t = &j->transfer[i];
        *t = (struct mpp_transfer){.name = "x", .type = types[next_random(&seed) % 4], .from = i % n_stages};
        t->to = i % 3 == 2 ? (t->from + n_stages - 1) % n_stages : (t->from + 1) % n_stages;
        t->n_dims = (int)(next_random(&seed) % 5);
        for (int d = 0; d < t->n_dims; d++)
            t->dims[d] = extents[next_random(&seed) % 7];
        draw_splits(&seed, j->stage[t->from].n_axes, t->n_dims, t->from_split);
        draw_splits(&seed, j->stage[t->to].n_axes, t->n_dims, t->to_split);
        t->depth = 1 + (int)(next_random(&seed) % 3);
        t->stride = (mpp_transfer_bytes(&j->program, t) + 63) / 64 * 64;
        if (at[t->from] + t->depth * t->stride > ARENA)
            break;
        t->offset = at[t->from];
        at[t->from] += t->depth * t->stride;
        j->program.n_transfers++;
    }
}

/* ---- what is sent --------------------------------------------------------------------------------------- */

/* Element FLAT of message N. */
static uint32_t value(int transfer, int message, int64_t flat)
{
    return (uint32_t)(flat * 7919 + message * 104729 + transfer * 1299709 + 1);
}

static void store(char *x, int64_t bytes, int64_t i, uint32_t v)
{
    uint16_t half = (uint16_t)v;
    memcpy(x + i * bytes, bytes == 2 ? (const void *)&half : (const void *)&v, (size_t)bytes);
}

struct local {
    int n_dims;
    struct mpp_extent dim[MPP_MAX_DIMS];
    int64_t count, bytes;
};

static struct local local_of(const struct mpp_rank *r, const struct mpp_transfer *t, const unsigned *split)
{
    struct local l = {.n_dims = t->n_dims, .count = 1, .bytes = t->type == MPP_TYPE_F32 || t->type == MPP_TYPE_I32 ? 4 : 2};
    for (int d = 0; d < t->n_dims; d++) {
        l.dim[d] = mpp_extent_of(r, t->dims[d], split[d]);
        l.count *= l.dim[d].padded;
    }
    return l;
}

/* The local array of a message: valid elements by their global place, padding PAD. */
static void fill(const struct local *l, const struct mpp_transfer *t, int transfer, int message, unsigned char pad, char *x)
{
    memset(x, pad, (size_t)(l->count * l->bytes));
    for (int64_t i = 0; i < l->count; i++) {
        int64_t rest = i, flat = 0, scale = 1;
        bool valid = true;
        for (int d = l->n_dims - 1; d >= 0; d--) {
            int64_t at = rest % l->dim[d].padded;
            rest /= l->dim[d].padded;
            valid = valid && at < l->dim[d].valid;
            flat += (l->dim[d].offset + at) * scale;
            scale *= t->dims[d];
        }
        if (valid)
            store(x, l->bytes, i, value(transfer, message, flat));
    }
}

static void send_message(struct mpp_rank *r, int transfer, int message, char *x)
{
    const struct mpp_transfer *t = &r->program->transfers[transfer];
    struct local l = local_of(r, t, t->from_split);
    fill(&l, t, transfer, message, 0xaa, x);
    mpp_send(r, transfer, x);
    memset(x, 0xee, (size_t)(l.count * l.bytes)); /* it was copied */
}

static void receive_message(struct mpp_rank *r, int transfer, int message, char *x, char *want, struct tally *tally)
{
    const struct mpp_transfer *t = &r->program->transfers[transfer];
    struct local l = local_of(r, t, t->to_split);
    memset(x, 0xcc, (size_t)(l.count * l.bytes));
    fill(&l, t, transfer, message, 0xcc, want);
    mpp_receive(r, transfer, x);
    expect(tally, memcmp(x, want, (size_t)(l.count * l.bytes)) == 0, "what arrives", r, transfer);
}

/* ---- a rank ----------------------------------------------------------------------------------------------- */

struct job_rank {
    struct mpp_rank r;
    struct mpp_local local;
    struct tally tally;
    int failing; /* the rank that fails, -1 */
};

static void linger(uint64_t *seed)
{
    for (uint64_t i = next_random(seed) % 4; i > 0; i--)
        sched_yield();
}

/* All messages of all transfers, in one order on all ranks, in which a sender never waits for a message behind it: rings
 * hold up to `depth` of them, and stages run apart as far as those let them. */
static void run_messages(struct mpp_rank *r, struct tally *tally)
{
    static _Thread_local char x[ARENA], want[ARENA];
    uint64_t seed = (uint64_t)r->rank + 17;
    for (int m = 0; m < MESSAGES; m++)
        for (int i = 0; i < r->program->n_transfers; i++) {
            const struct mpp_transfer *t = &r->program->transfers[i];
            linger(&seed);
            if (t->from == r->stage_index)
                send_message(r, i, m, x);
            else if (t->to == r->stage_index)
                receive_message(r, i, m, x, want, tally);
        }
}

static void check_sums(struct mpp_rank *r, struct tally *tally)
{
    static const float special[] = {1e30f, -3e38f, 0.1f, INFINITY};
    for (int k = 0; k < 6; k++) {
        float want = 0;
        for (int s = 0; s < r->program->n_stages; s++) {
            float term = k == 5 && s == 1 ? special[3] : special[s % 3] / (float)(1 + k * s);
            want = s == 0 ? term : want + term;
        }
        float x = k == 5 && r->stage_index == 1 ? special[3] : special[r->stage_index % 3] / (float)(1 + k * r->stage_index);
        mpp_sum_over_stages(r, &x);
        expect(tally, memcmp(&x, &want, sizeof x) == 0, "the sum over stages, in their order", r, k);
    }
    float nan = r->stage_index == r->program->n_stages - 1 ? NAN : 1;
    mpp_sum_over_stages(r, &nan);
    expect(tally, isnan(nan), "a sum that is no number, on all ranks", r, 0);
    float all[3] = {(float)r->rank, (float)-r->rank, 1};
    mpp_all_reduce(r, MPP_WORLD, all, 2, MPP_REDUCE_MAX);
    mpp_all_reduce(r, MPP_WORLD, all + 2, 1, MPP_REDUCE_SUM);
    expect(tally, (int)all[0] == r->n_ranks - 1 && (int)all[1] == 0 && (int)all[2] == r->n_ranks, "all ranks of the job", r, 0);
    for (unsigned mask = 0; mask < 1u << r->n_axes; mask++) { /* groups of a stage are as if it were alone */
        float low = (float)-r->rank, n = 1;
        mpp_all_reduce(r, mask, &low, 1, MPP_REDUCE_MAX);
        mpp_all_reduce(r, mask, &n, 1, MPP_REDUCE_SUM);
        expect(tally, (int)-low == mpp_mesh_group_base(r->program, r->rank, mask) && (int)n == mpp_mesh_group_size(r, mask) &&
                   (int)-low >= r->stage->first_rank, "a group of the stage", r, (int)mask);
    }
}

static void set_up(struct job_rank *j, const struct mpp_program *p, struct mpp_transport *transport, int rank)
{
    *j = (struct job_rank){.r = {.transport = transport, .impl = &j->local}, .failing = -1};
    mpp_mesh_place(&j->r, p, rank);
    j->r.arena = aligned_alloc(64, ARENA);
    memset(j->r.arena, 0x77, ARENA);
}

static void *thread_main(void *arg)
{
    struct job_rank *j = arg;
    if (setjmp(j->local.leave) == 0) {
        run_messages(&j->r, &j->tally);
        check_sums(&j->r, &j->tally);
        run_messages(&j->r, &j->tally);
    }
    return NULL;
}

/* One rank fails after a while of 0 to 20 ms: the others wait for it, to receive, to send, to make a channel, or in a sum. */
static void *failing_main(void *arg)
{
    struct job_rank *j = arg;
    if (setjmp(j->local.leave) == 0) {
        if (j->r.rank == j->failing) {
            usleep((useconds_t)(j->r.n_ranks * 1700 + j->r.rank * 4300 + j->r.program->n_transfers * 900) % 20000);
            mpp_fail(&j->r, 2, "this message is expected");
        }
        for (;;)
            run_messages(&j->r, &j->tally);
    }
    return NULL;
}

static void run_threads(const struct mpp_program *p, void *(*rank_main)(void *), int failing, struct tally *total)
{
    struct mpp_error error;
    int n = mpp_mesh_ranks(p);
    struct mpp_transport *transport = mpp_transport_threads_new(p, &error);
    struct job_rank *ranks = calloc((size_t)n, sizeof *ranks);
    pthread_t *threads = calloc((size_t)n, sizeof *threads);
    for (int i = 0; i < n; i++) {
        set_up(&ranks[i], p, transport, i);
        ranks[i].failing = failing;
    }
    for (int i = 0; i < n; i++)
        pthread_create(&threads[i], NULL, rank_main, &ranks[i]);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < n; i++) {
        if (failing >= 0)
            expect(total, ranks[i].local.exit_code == 2, "a failure reaches all", &ranks[i].r, failing);
        total->passed += ranks[i].tally.passed;
        total->failed += ranks[i].tally.failed;
        free(ranks[i].r.arena);
    }
    free(ranks);
    free(threads);
    transport->ops->free(transport);
}

/* ---- what is run ------------------------------------------------------------------------------------------ */

struct meshes {
    int n_stages, mesh[MAX_STAGES][3];
};

static const struct meshes pipelines[] = {
    {2, {{0}, {0}}},               {2, {{1}, {3}}},           {2, {{3}, {0}}},          {2, {{2}, {3}}},
    {2, {{2, 2}, {4}}},            {2, {{4}, {2, 2}}},        {3, {{2}, {2, 2}, {2}}},  {3, {{0}, {5}, {2}}},
    {2, {{2, 3}, {3, 2}}},         {4, {{0}, {2}, {0}, {3}}}, {2, {{2, 2, 2}, {1, 4}}}, {3, {{3}, {2, 2}, {0}}},
    {4, {{0}, {0}, {0}, {0}}},     {2, {{7}, {5}}},
};
#define N_PIPELINES ((int)(sizeof pipelines / sizeof pipelines[0]))
enum { DRAWS = 12 };

/* Every element of a receiver's block comes from one sender, and replicas share the work. */
static void check_parts(const struct mpp_program *p, struct tally *tally)
{
    for (int i = 0; i < p->n_transfers; i++) {
        const struct mpp_transfer *t = &p->transfers[i];
        int n_to = mpp_mesh_stage_ranks(p->stages[t->to]), n_from = mpp_mesh_stage_ranks(p->stages[t->from]);
        int64_t sent = 0, received = 0, wanted = 0;
        for (int side = 0; side < 2; side++)
            for (int k = 0; k < (side == 0 ? n_from : n_to); k++) {
                struct mpp_rank r = {0};
                struct mpp_part *parts;
                struct mpp_error error;
                int n;
                mpp_mesh_place(&r, p, p->stages[side == 0 ? t->from : t->to]->first_rank + k);
                if (mpp_transfer_parts(p, t, r.rank, &parts, &n, &error) != 0)
                    continue;
                for (int m = 0; m < n; m++) {
                    int64_t count = 1;
                    for (int d = 0; d < parts[m].n_dims; d++)
                        count *= parts[m].n[d];
                    *(side == 0 ? &sent : &received) += count;
                }
                free(parts);
                int64_t own = 1;
                for (int d = 0; d < t->n_dims; d++)
                    own *= mpp_extent_of(&r, t->dims[d], t->to_split[d]).valid;
                wanted += side == 1 ? own : 0;
            }
        struct mpp_rank first = {0};
        mpp_mesh_place(&first, p, 0);
        expect(tally, sent == wanted && received == wanted, "all is sent once to each that wants it", &first, i);
    }
}

static void check_replicas(struct tally *tally)
{
    static const int mesh[2][3] = {{4}, {4}};
    struct job_program j;
    make_program(&j, 2, mesh, 1);
    j.transfer[0] = (struct mpp_transfer){.name = "x", .from = 0, .to = 1, .n_dims = 1, .dims = {9}, .depth = 1};
    for (int k = 0; k < 4; k++) {
        struct mpp_part *parts;
        struct mpp_error error;
        struct mpp_rank r = {0};
        int n = 0;
        mpp_mesh_place(&r, &j.program, 4 + k);
        bool ok = mpp_transfer_parts(&j.program, &j.transfer[0], 4 + k, &parts, &n, &error) == 0;
        expect(tally, ok && n == 1 && parts[0].peer == k && parts[0].n[0] == 9, "each receiver has a replica of its own", &r, 0);
        free(parts);
    }
}

static void leave_process(void *user, int code)
{
    (void)user;
    _exit(code);
}

/* Processes meet once, with one program: of the pipelines of N ranks the one with number WHICH. PLACE NULL: over MPI. */
static int run_process(int n, const struct mpp_tcp_place *place, int which, int64_t call_elements)
{
    static struct job_rank j;
    struct job_program job;
    struct mpp_error error = {0};
    struct mpp_transport_settings settings = {.watch = {.silence_s = 15, .leave = leave_process},
                                              .call_elements = call_elements};
    int rank = place != NULL ? place->rank : 0, at = 0, pipeline = -1;
    for (int i = 0; i < N_PIPELINES && pipeline < 0; i++) {
        make_program(&job, pipelines[i].n_stages, pipelines[i].mesh, 0);
        if (mpp_mesh_ranks(&job.program) == n && at++ == which % DRAWS)
            pipeline = i;
    }
    if (pipeline < 0) {
        fprintf(stderr, "error: no pipeline %d of %d ranks\n", which, n);
        return 1;
    }
    make_program(&job, pipelines[pipeline].n_stages, pipelines[pipeline].mesh, (uint64_t)(which / DRAWS));
    struct mpp_transport *transport = place != NULL ? mpp_transport_tcp_new(&job.program, &settings, place, &error) : NULL;
#ifdef MPP_WITH_MPI
    if (place == NULL)
        transport = mpp_transport_mpi_new(&job.program, &settings, &rank, &error);
#endif
    if (transport == NULL) {
        fprintf(stderr, "error: %s\n", error.text);
        return 1;
    }
    set_up(&j, &job.program, transport, rank);
    thread_main(&j);
    float sums[2] = {(float)j.tally.passed, (float)j.tally.failed};
    mpp_all_reduce(&j.r, MPP_WORLD, sums, 2, MPP_REDUCE_SUM);
    if (rank == 0)
        printf("%d passed, %d failed\n", (int)sums[0], (int)sums[1]);
    transport->ops->drain(&j.r);
    free(j.r.arena);
    transport->ops->free(transport);
    return sums[1] > 0;
}

int main(int argc, char **argv)
{
    struct mpp_tcp_place place;
    struct mpp_error error;
    int which = argc > 1 ? atoi(argv[1]) : 0;
    int64_t call_elements = argc > 2 ? atoi(argv[2]) : 0;
    if (mpp_tcp_started(false))
        return mpp_tcp_place_read(&place, &error) != MPP_EXIT_OK || run_process(place.size, &place, which, call_elements);
#ifdef MPP_WITH_MPI
    const char *size = getenv("OMPI_COMM_WORLD_SIZE") ? getenv("OMPI_COMM_WORLD_SIZE") : getenv("PMI_SIZE");
    if (size != NULL)
        return run_process(atoi(size), NULL, which, call_elements);
#endif
    struct tally total = {0, 0};
    int draws = which > 0 ? which : DRAWS;
    check_replicas(&total);
    for (int i = 0; i < N_PIPELINES; i++)
        for (int k = 0; k < draws; k++) {
            struct job_program j;
            make_program(&j, pipelines[i].n_stages, pipelines[i].mesh, (uint64_t)k);
            check_parts(&j.program, &total);
            run_threads(&j.program, thread_main, -1, &total);
            if (k == i % draws)
                for (int s = 0; s < j.program.n_stages; s++)
                    run_threads(&j.program, failing_main, j.stage[s].first_rank, &total);
        }
    printf("%d passed, %d failed\n", total.passed, total.failed);
    return total.failed != 0;
}
