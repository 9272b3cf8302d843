/* The host runtime on hand-written pipelines: a chain of layers in one to four stages of unequal numbers of ranks, trained by
 * mpp_main. Losses, gradients and checkpoints are those of one device under every schedule; a checkpoint of one plan is read
 * by any other; a rank that fails ends all. `test plan=N ...` is the trainer of plan N, also under mpirun. */
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mpp_rt.h"
#include "core/fail.h"
#include "core/safetensors.h"
#include "core/transport.h"

#ifdef MPP_CONFORMANCE_H /* on CUDA's kernels: tests/cuda */
#define DEVICE "processor standing in for GPU 0"
#else
#define DEVICE "1 thread"
#endif

enum { BATCH = 12, D = 5, LAYERS = 6, MAX_STAGES = 4, MAX_CHUNKS = 2, MAX_SLOTS = 12, ROWS = BATCH * D };

static int passed, failed;

static void expect(bool ok, const char *what)
{
    if (ok)
        passed++;
    else
        failed++;
    if (!ok)
        fprintf(stderr, "failed: %s\n", what);
}

/* ---- plans -------------------------------------------------------------------------------------------------- */

/* How the ranks of a stage share its work: they split the batch; all do all of it; or the same, but what comes from another
 * stage comes split along the features and is gathered. */
enum inside { SPLIT, WHOLE, GATHER };
enum order { ONE_F_ONE_B, GPIPE };

struct plan {
    int n_stages, ranks[MAX_STAGES];
    enum inside inside[MAX_STAGES];
    int chunks, micro_batches, depth;
    enum order order;
    int fails; /* the rank that fails in backward of micro-batch 1 of step 3; -1: none */
    enum { FAILS, STOPS, STRAYS, FAILS_BESIDE } how; /* with a message, for ever, in a wait for what nobody sends; while rank 0 is stuck */
};

static const struct plan plans[] = {
    {1, {1}, {SPLIT}, 1, 1, 1, GPIPE, -1, FAILS},
    {1, {4}, {SPLIT}, 1, 3, 1, ONE_F_ONE_B, -1, FAILS},
    {2, {1, 1}, {SPLIT, SPLIT}, 1, 4, 1, ONE_F_ONE_B, -1, FAILS},
    {2, {1, 3}, {SPLIT, SPLIT}, 1, 4, 1, ONE_F_ONE_B, -1, FAILS},
    {2, {3, 1}, {GATHER, SPLIT}, 1, 6, 2, GPIPE, -1, FAILS},
    {2, {2, 2}, {SPLIT, WHOLE}, 1, 1, 1, ONE_F_ONE_B, -1, FAILS},
    {3, {2, 4, 2}, {SPLIT, SPLIT, SPLIT}, 1, 4, 1, ONE_F_ONE_B, -1, FAILS}, /* 3 samples over 4 ranks: one has none */
    {3, {2, 4, 2}, {SPLIT, GATHER, SPLIT}, 1, 12, 2, ONE_F_ONE_B, -1, FAILS},
    {3, {1, 5, 2}, {WHOLE, SPLIT, GATHER}, 1, 3, 2, GPIPE, -1, FAILS},
    {4, {1, 1, 1, 1}, {SPLIT, SPLIT, SPLIT, SPLIT}, 1, 6, 1, ONE_F_ONE_B, -1, FAILS},
    {4, {2, 1, 3, 2}, {SPLIT, WHOLE, GATHER, SPLIT}, 1, 6, 2, ONE_F_ONE_B, -1, FAILS},
    {2, {1, 1}, {SPLIT, SPLIT}, 2, 3, 1, GPIPE, -1, FAILS},
    {3, {1, 2, 2}, {SPLIT, SPLIT, GATHER}, 2, 6, 2, GPIPE, -1, FAILS},
};
#define N_PLANS ((int)(sizeof plans / sizeof plans[0]))

/* ---- the model: x e, then 6 layers h'[j] = h[j + 1] w[j] + h[j] / 2, then times e; loss sum (y - t)^2 / (BATCH D) ------ */

/* Arena. Activations of a slot: the inputs of a chunk's layers and its output; what comes with the batch split takes less. */
enum { VECTOR = 64, AT_E = 0, AT_GE = 64, AT_ME = 128, AT_LOSS = 192, AT_NORM = 256, AT_SQUARES = 320, AT_OTHER = 384,
       AT_W = 448, AT_GW = AT_W + LAYERS * VECTOR, AT_MW = AT_GW + LAYERS * VECTOR, AT_T = AT_MW + LAYERS * VECTOR,
       AT_GRADIENT = AT_T + 256, AT_PIECE = AT_GRADIENT + 256, AT_WORK = AT_PIECE + 256, AT_X = AT_WORK + 1024,
       AT_ACTS = AT_X + MAX_CHUNKS * MAX_SLOTS * 256, ACTS = (LAYERS + 2) * 256,
       AT_RINGS = AT_ACTS + MAX_CHUNKS * MAX_SLOTS * ACTS, ARENA = AT_RINGS + 16 * 256 };

struct state { /* of a slot, set by setup */
    float *acts;
    int first, last; /* layers of the chunk */
};

static struct built { /* the plan that runs */
    struct plan plan;
    struct mpp_program program;
    struct mpp_stage stage[MAX_STAGES];
    const struct mpp_stage *stages[MAX_STAGES];
    struct mpp_chunk chunk[MAX_STAGES][MAX_CHUNKS];
    struct mpp_tensor tensor[MAX_STAGES][16];
    struct mpp_input input[MAX_STAGES][2];
    struct mpp_transfer transfer[32];
} built;

static float *f32(struct mpp_rank *r, int64_t at)
{
    return (float *)(void *)(r->arena + at);
}

/* Virtual stages: chunk c of stage s is number c * n_stages + s. */
static int virtual_of(const struct mpp_rank *r)
{
    return r->chunk * built.plan.n_stages + r->stage_index;
}

static int n_virtual(void)
{
    return built.plan.n_stages * built.plan.chunks;
}

static int first_layer(int virtual)
{
    return LAYERS * virtual / n_virtual();
}

/* Samples of a micro-batch that this rank computes. */
static struct mpp_extent rows_of(const struct mpp_rank *r)
{
    return mpp_extent_of(r, BATCH / r->micro_batches, built.plan.inside[r->stage_index] == SPLIT ? 1 : 0);
}

static void setup(struct mpp_rank *r)
{
    struct state *s = r->plan;
    s->acts = f32(r, AT_ACTS + (r->chunk * MAX_SLOTS + r->slot) * ACTS);
    s->first = first_layer(virtual_of(r));
    s->last = first_layer(virtual_of(r) + 1);
}

/* Transfers: of virtual stage v - 1 to v number 2 (v - 1), the gradient back 2 (v - 1) + 1; then those of e. */
static void arrive(struct mpp_rank *r, int transfer, float *x)
{
    if (built.plan.n_stages == 1) /* chunks of one stage hand on in memory; no plan here has them */
        return;
    if (built.plan.inside[r->stage_index] != GATHER) {
        mpp_receive(r, transfer, x);
        return;
    }
    mpp_receive(r, transfer, f32(r, AT_PIECE));
    mpp_all_gather(r, 1, BATCH / r->micro_batches, D, 1, f32(r, AT_PIECE), x);
}

static void forward(struct mpp_rank *r)
{
    struct state *s = r->plan;
    struct mpp_extent rows = rows_of(r);
    int v = virtual_of(r);
    float *h = s->acts, *e = f32(r, AT_E);
    if (v == 0)
        for (int64_t i = 0; i < rows.valid * D; i++)
            h[i] = f32(r, AT_X + (r->chunk * MAX_SLOTS + r->slot) * 256)[i] * e[i % D];
    else
        arrive(r, 2 * (v - 1), h);
    for (int l = s->first; l < s->last; l++, h += 64) {
        float *w = f32(r, AT_W + l * VECTOR), *next = h + 64;
        for (int64_t b = 0; b < rows.valid; b++)
            for (int j = 0; j < D; j++)
                next[b * D + j] = h[b * D + (j + 1) % D] * w[j] + 0.5f * h[b * D + j];
    }
    if (v < n_virtual() - 1) {
        mpp_send(r, 2 * v, h);
        return;
    }
    float *loss = f32(r, AT_LOSS), *t = f32(r, AT_T);
    if (r->micro_batch == 0)
        *loss = 0;
    for (int64_t i = 0; i < rows.valid * D; i++) {
        float error = h[i] * e[i % D] - t[i];
        *loss += error * error / (BATCH * D);
    }
}

static void fail(struct mpp_rank *r)
{
    float x;
    while (built.plan.how == STOPS)
        pause();
    if (built.plan.how == STRAYS)
        r->transport->ops->receive(r, r->rank - 1, &x, sizeof x);
    mpp_fail(r, 2, "rank %d fails, as this test wants", r->rank);
}

static void backward(struct mpp_rank *r)
{
    struct state *s = r->plan;
    struct mpp_extent rows = rows_of(r);
    int v = virtual_of(r), last = n_virtual() - 1;
    float *g = f32(r, AT_GRADIENT), *e = f32(r, AT_E), *ge = f32(r, AT_GE), *t = f32(r, AT_T);
    float *h = s->acts + (s->last - s->first) * 64, *x = f32(r, AT_X + (r->chunk * MAX_SLOTS + r->slot) * 256);
    while (built.plan.how == FAILS_BESIDE && r->rank == 0 && r->step == 3)
        pause();
    if (r->rank == built.plan.fails && r->step == 3 && r->micro_batch == 1)
        fail(r);
    if (r->micro_batch == 0 && (v == last || v == 0))
        memset(ge, 0, VECTOR);
    if (v == last)
        for (int64_t i = 0; i < rows.valid * D; i++) {
            float dy = 2 * (h[i] * e[i % D] - t[i]) / (BATCH * D);
            ge[i % D] += dy * h[i];
            g[i] = dy * e[i % D];
        }
    else
        arrive(r, 2 * v + 1, g);
    for (int l = s->last - 1; l >= s->first; l--) {
        float *w = f32(r, AT_W + l * VECTOR), *gw = f32(r, AT_GW + l * VECTOR), before[D];
        h -= 64;
        if (r->micro_batch == 0)
            memset(gw, 0, VECTOR);
        for (int64_t b = 0; b < rows.valid; b++) {
            memcpy(before, g + b * D, sizeof before);
            for (int j = 0; j < D; j++)
                gw[j] += before[j] * h[b * D + (j + 1) % D];
            for (int j = 0; j < D; j++)
                g[b * D + (j + 1) % D] = before[j] * w[j] + 0.5f * before[(j + 1) % D];
        }
    }
    if (v > 0)
        mpp_send(r, 2 * (v - 1) + 1, g);
    else
        for (int64_t i = 0; i < rows.valid * D; i++)
            ge[i % D] += g[i] * x[i];
}

/* ---- schedules ---------------------------------------------------------------------------------------------- */

static void step(struct mpp_rank *r)
{
    int n = r->micro_batches, ahead = built.plan.n_stages - 1 - r->stage_index;
    if (built.plan.order == ONE_F_ONE_B) {
        ahead = ahead < n ? ahead : n;
        for (int m = 0; m < ahead; m++)
            mpp_forward(r, 0, m);
        for (int m = ahead; m < n; m++) {
            mpp_forward(r, 0, m);
            mpp_backward(r, 0, m - ahead);
        }
        for (int m = n - ahead; m < n; m++)
            mpp_backward(r, 0, m);
        return;
    }
    for (int c = 0; c < built.plan.chunks; c++)
        for (int m = 0; m < n; m++)
            mpp_forward(r, c, m);
    for (int c = built.plan.chunks - 1; c >= 0; c--)
        for (int m = 0; m < n; m++)
            mpp_backward(r, c, m);
}

static int slots_of(const struct plan *p, int stage)
{
    int most = p->order == ONE_F_ONE_B ? p->n_stages - stage : p->micro_batches;
    return most < p->micro_batches ? most : p->micro_batches;
}

/* ---- update ------------------------------------------------------------------------------------------------- */

static bool has_layer(const struct mpp_rank *r, int layer)
{
    for (int c = 0; c < built.plan.chunks; c++) {
        int v = c * built.plan.n_stages + r->stage_index;
        if (layer >= first_layer(v) && layer < first_layer(v + 1))
            return true;
    }
    return false;
}

static void reduce_gradients(struct mpp_rank *r)
{
    int s = r->stage_index, last = built.plan.n_stages - 1, tied = 2 * (n_virtual() - 1);
    unsigned data = built.plan.inside[s] == SPLIT ? 1 : 0;
    for (int l = 0; l < LAYERS; l++)
        if (has_layer(r, l))
            mpp_all_reduce(r, data, f32(r, AT_GW + l * VECTOR), D, MPP_REDUCE_SUM);
    if (s == last)
        mpp_all_reduce(r, data, f32(r, AT_LOSS), 1, MPP_REDUCE_SUM);
    if (s != 0 && s != last)
        return;
    float *ge = f32(r, AT_GE), *other = f32(r, AT_OTHER);
    mpp_all_reduce(r, data, ge, D, MPP_REDUCE_SUM);
    if (last == 0)
        return;
    if (s == last) {
        mpp_send(r, tied, ge);
        mpp_receive(r, tied + 1, ge);
        return;
    }
    mpp_receive(r, tied, other);
    for (int j = 0; j < D; j++)
        ge[j] += other[j];
    mpp_send(r, tied + 1, ge);
}

static void take_step(struct mpp_rank *r, float *w, const float *g, float *m)
{
    for (int j = 0; j < D; j++) {
        m[j] = (float)r->hyper.momentum * m[j] + g[j];
        w[j] -= (float)r->hyper.lr * m[j];
    }
}

static float squares(const float *x)
{
    float sum = 0;
    for (int j = 0; j < D; j++)
        sum += x[j] * x[j];
    return sum;
}

static void update(struct mpp_rank *r)
{
    float *sum = f32(r, AT_SQUARES);
    bool tied = r->stage_index == 0 || r->stage_index == built.plan.n_stages - 1;
    reduce_gradients(r);
    *sum = r->stage_index == 0 ? squares(f32(r, AT_GE)) : 0; /* what several stages have counts in the first */
    for (int l = 0; l < LAYERS; l++)
        *sum += has_layer(r, l) ? squares(f32(r, AT_GW + l * VECTOR)) : 0;
    mpp_sum_over_stages(r, sum);
    *f32(r, AT_NORM) = sqrtf(*sum);
    for (int l = 0; l < LAYERS; l++)
        if (has_layer(r, l))
            take_step(r, f32(r, AT_W + l * VECTOR), f32(r, AT_GW + l * VECTOR), f32(r, AT_MW + l * VECTOR));
    if (tied)
        take_step(r, f32(r, AT_E), f32(r, AT_GE), f32(r, AT_ME));
}

/* ---- building ------------------------------------------------------------------------------------------------- */

static void add_tensor(struct mpp_stage *s, struct mpp_tensor t)
{
    struct mpp_tensor *list = built.tensor[s - built.stage];
    t.n_published = t.n_dims;
    memcpy(t.published, t.dims, sizeof t.dims);
    list[s->n_tensors++] = t;
}

static void add_parameter(struct mpp_stage *s, const char *name, const char *moment, int first, int count, int at_w, int at_g,
                          int at_m)
{
    struct mpp_tensor t = {.name = name, .kind = MPP_KIND_PARAMETER, .first = first, .count = count, .offset = at_w,
                           .stride = VECTOR, .n_dims = 1, .dims = {D}, .init = MPP_INIT_UNIFORM, .init_a = 0.4, .init_b = 1.1};
    add_tensor(s, t);
    t.kind = MPP_KIND_GRADIENT;
    t.offset = at_g;
    add_tensor(s, t);
    t.kind = MPP_KIND_OPTIMIZER;
    t.name = moment;
    t.offset = at_m;
    t.init = MPP_INIT_ZEROS;
    add_tensor(s, t);
}

static void add_input(struct mpp_stage *s, const char *name, int64_t at, int64_t slot_stride, bool split)
{
    struct mpp_tensor t = {.name = name, .kind = MPP_KIND_INPUT, .offset = at, .slot_stride = slot_stride, .n_dims = 2,
                           .dims = {BATCH / built.plan.micro_batches, D}, .split = {split ? 1 : 0}};
    built.input[s - built.stage][s->n_inputs++] = (struct mpp_input){.tensor = s->n_tensors, .batched = true};
    add_tensor(s, t);
}

static void add_transfer(int from, int to, bool once, int64_t *rings)
{
    const struct plan *p = &built.plan;
    struct mpp_transfer *t = &built.transfer[built.program.n_transfers++];
    *t = (struct mpp_transfer){.name = once ? "e" : "h", .from = from, .to = to, .n_dims = once ? 1 : 2,
                               .dims = {once ? D : BATCH / p->micro_batches, D}, .depth = once ? 1 : p->depth, .stride = 256,
                               .offset = AT_RINGS + rings[from]};
    rings[from] += t->depth * t->stride;
    if (once)
        return;
    t->from_split[0] = p->inside[from] == SPLIT;
    t->to_split[0] = p->inside[to] == SPLIT;
    t->to_split[1] = p->inside[to] == GATHER;
}

static void build_stage(int i, int first_rank)
{
    const struct plan *p = &built.plan;
    struct mpp_stage *s = &built.stage[i];
    *s = (struct mpp_stage){
        .first_rank = first_rank, .n_axes = p->ranks[i] > 1, .axis_size = {p->ranks[i]}, .axis_name = {"data"},
        .arena_bytes = ARENA, .workspace_offset = AT_WORK, .workspace_bytes = 1024, .tensors = built.tensor[i],
        .inputs = built.input[i], .loss_offset = i == p->n_stages - 1 ? AT_LOSS : -1, .grad_norm_offset = AT_NORM,
        .loss_term_offset = AT_LOSS, .loss_axes = p->inside[i] == SPLIT && p->ranks[i] > 1 ? 1 : 0,
        .setup = setup, .plan_state_bytes = sizeof(struct state), .n_chunks = p->chunks, .chunks = built.chunk[i],
        .step = step, .update = update, .reduce_gradients = reduce_gradients,
    };
    built.stages[i] = s;
    if (i == 0) {
        add_parameter(s, "e", "m.e", 0, 0, AT_E, AT_GE, AT_ME);
        add_input(s, "x", AT_X, 256, p->inside[0] == SPLIT);
    }
    for (int c = 0; c < p->chunks; c++) {
        int first = first_layer(c * p->n_stages + i), count = first_layer(c * p->n_stages + i + 1) - first;
        built.chunk[i][c] = (struct mpp_chunk){forward, backward, slots_of(p, i)};
        if (count > 0)
            add_parameter(s, "h.%d.w", "m.h.%d.w", first, count, AT_W + first * VECTOR, AT_GW + first * VECTOR,
                          AT_MW + first * VECTOR);
    }
    if (i == p->n_stages - 1) {
        if (i > 0)
            add_parameter(s, "e", "m.e", 0, 0, AT_E, AT_GE, AT_ME);
        add_input(s, "t", AT_T, 0, p->inside[i] == SPLIT);
    }
}

static const struct mpp_program *build(const struct plan *plan)
{
    int64_t rings[MAX_STAGES] = {0};
    int first_rank = 0, n = plan->n_stages;
    built = (struct built){.plan = *plan};
    for (int i = 0; i < n; i++) {
        build_stage(i, first_rank);
        first_rank += plan->ranks[i];
    }
    built.program = (struct mpp_program){
        .model = "chain", .plan_version = "1", .n_stages = n, .stages = built.stages, .transfers = built.transfer,
        .pipeline = plan->order == GPIPE ? "GPipe" : "1F1B", .batch = BATCH, .micro_batches = plan->micro_batches,
        .tokens_per_sample = 1, .hyper = {.lr = 0.5, .momentum = 0.5}, .total_steps = 8, .steps = 8, .save_every = 4,
    };
    for (int v = 0; v + 1 < n_virtual() && n > 1; v++) {
        add_transfer(v % n, (v + 1) % n, false, rings);
        add_transfer((v + 1) % n, v % n, false, rings);
    }
    if (n > 1) {
        add_transfer(n - 1, 0, true, rings);
        add_transfer(0, n - 1, true, rings);
    }
    return &built.program;
}

/* ---- helpers ------------------------------------------------------------------------------------------------- */

static char folder[] = "/tmp/mpp_pipeline_XXXXXX";

static char *in_folder(const char *name, int number)
{
    static char paths[64][512];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, 512, "%s/%s%d", folder, name, number);
    return path;
}

/* Run with options; messages go to the files out and err. */
static int run(const struct mpp_program *p, char **options)
{
    char *argv[24] = {(char *)(uintptr_t)"trainer"};
    int argc = 1;
    for (; options[argc - 1] != NULL; argc++)
        argv[argc] = options[argc - 1];
    fflush(NULL);
    int out = dup(1), err = dup(2);
    if (freopen(in_folder("out", 0), "w", stdout) == NULL || freopen(in_folder("err", 0), "w", stderr) == NULL)
        return -1;
    int code = mpp_main(argc, argv, p);
    fflush(NULL);
    dup2(out, 1);
    dup2(err, 2);
    close(out);
    close(err);
    return code;
}
#define RUN(p, ...) run(p, (char *[]){__VA_ARGS__, NULL})

static const char *text_of(const char *path)
{
    static char text[1 << 16];
    FILE *in = fopen(path, "r");
    size_t n = in != NULL ? fread(text, 1, sizeof text - 1, in) : 0;
    if (in != NULL)
        fclose(in);
    text[n] = '\0';
    return text;
}

static bool said(const char *file, const char *part)
{
    const char *text = text_of(in_folder(file, 0));
    bool found = strstr(text, part) != NULL;
    if (!found)
        fprintf(stderr, "expected \"%s\" in: %s\n", part, text);
    return found;
}

/* The numbers called NAME of a metrics file; how many. */
static int numbers(const char *path, const char *name, double *out, int most)
{
    int n = 0;
    for (const char *at = text_of(path); n < most && (at = strstr(at, name)) != NULL; n++) {
        at += strlen(name) + 2;
        out[n] = strtod(at, NULL);
    }
    return n;
}

static bool near(const double *a, const double *b, int n)
{
    for (int i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= 1e-5 * fabs(b[i])))
            return false;
    return true;
}

/* Two files hold the same tensors, of numbers that differ by less than TOLERANCE. */
static bool same_tensors(const char *a, const char *b, double tolerance)
{
    struct mpp_weights *x = NULL, *y = NULL;
    struct mpp_error error = {0};
    bool ok = mpp_weights_open(a, NULL, &x, &error) == 0 && mpp_weights_open(b, NULL, &y, &error) == 0 &&
              mpp_weights_count(x) == LAYERS + 1 && mpp_weights_count(y) == LAYERS + 1;
    for (int i = 0; ok && i <= LAYERS; i++) {
        struct mpp_weight *v = mpp_weights_at(x, i), *w = mpp_weights_find(y, v->name);
        float p[D], q[D];
        ok = w != NULL && mpp_weight_read(v, 0, D, p) && mpp_weight_read(w, 0, D, q);
        for (int j = 0; ok && j < D; j++)
            ok = fabs((double)(p[j] - q[j])) <= tolerance * (1 + fabs((double)q[j]));
    }
    if (x != NULL)
        mpp_weights_close(x);
    if (y != NULL)
        mpp_weights_close(y);
    return ok;
}

/* ---- tests ---------------------------------------------------------------------------------------------------- */

static void test_plans_agree(void)
{
    double losses[8], norms[8], l[8], n[8];
    for (int i = 0; i < N_PLANS; i++) {
        const struct mpp_program *p = build(&plans[i]);
        char what[64], file[2][600], first[600];
        snprintf(what, sizeof what, "plan %d", i);
        expect(RUN(p, "--data", "synthetic", "--seed", "7", "--metrics", in_folder("m", i), "--save", in_folder("s", i),
                   "--dump-grads", in_folder("g", i)) == 0, what);
        bool counts = numbers(in_folder("m", i), "\"loss\"", l, 8) == 8 && numbers(in_folder("m", i), "\"grad_norm\"", n, 8) == 8;
        expect(counts, what);
        if (i == 0) {
            memcpy(losses, l, sizeof l);
            memcpy(norms, n, sizeof n);
            expect(l[7] < 0.7 * l[0] && n[7] < 0.1 * n[0], "the loss goes down");
        }
        expect(near(l, losses, 8) && near(n, norms, 8), what);
        expect(same_tensors(in_folder("g", i), in_folder("g", 0), 1e-5), "gradients");
        for (int k = 0; k < 2; k++) {
            static const char *const names[] = {"model", "optimizer"};
            snprintf(file[k], sizeof file[k], "%s/step-8/%s.safetensors", in_folder("s", i), names[k]);
            snprintf(first, sizeof first, "%s/step-8/%s.safetensors", in_folder("s", 0), names[k]);
            expect(same_tensors(file[k], first, 1e-5), names[k]);
        }
        expect(RUN(p, "--data", "synthetic", "--seed", "7", "--metrics", in_folder("again", i)) == 0 &&
                   numbers(in_folder("again", i), "\"loss\"", losses, 8) == 8 && memcmp(losses, l, sizeof l) == 0,
               "two runs have the same bits, and dumping gradients changes none");
        numbers(in_folder("m", 0), "\"loss\"", losses, 8);
    }
}

static void test_announced(void)
{
    expect(RUN(build(&plans[6]), "--data", "synthetic", "--steps", "2", "--threads", "1") == 0, "three stages");
    expect(said("out", "chain: 8 devices over threads in 3 stages, 1F1B, " DEVICE " each, batch 12 in 4 micro-batches\n"
                       "stage 0: ranks 0 to 1 = data2, arena "), "the stages are told");
    expect(said("out", "\nstage 1: ranks 2 to 5 = data4, arena ") && said("out", "\nstage 2: ranks 6 to 7 = data2, arena "),
           "each of them");
}

/* Every plan goes on with the checkpoint of the one before it. */
static void test_resume(void)
{
    double whole[8], parts[8];
    char *dir = in_folder("chain", 0);
    numbers(in_folder("m", 0), "\"loss\"", whole, 8);
    for (int k = 0; k < 8; k++) {
        char steps[8];
        snprintf(steps, sizeof steps, "%d", k + 1);
        expect(RUN(build(&plans[(5 + 7 * k) % N_PLANS]), "--data", "synthetic", "--seed", "7", "--resume", dir, "--save", dir,
                   "--steps", steps, "--metrics", in_folder("chained", 0)) == 0, "a plan goes on with another's checkpoint");
    }
    expect(numbers(in_folder("chained", 0), "\"loss\"", parts, 8) == 8 && near(parts, whole, 8), "and computes the same");
    for (int i = 3; i < N_PLANS; i += 4) { /* the same plan: the same bits */
        char *half = in_folder("half", i), a[600], b[600];
        numbers(in_folder("m", i), "\"loss\"", whole, 8);
        expect(RUN(build(&plans[i]), "--data", "synthetic", "--seed", "7", "--save", half, "--steps", "4") == 0, "half a run");
        expect(RUN(build(&plans[i]), "--data", "synthetic", "--resume", half, "--save", half, "--metrics",
                   in_folder("rest", i)) == 0 && numbers(in_folder("rest", i), "\"loss\"", parts, 8) == 4 &&
                   memcmp(parts, whole + 4, 4 * sizeof *parts) == 0, "the other half has the bits of a whole run");
        snprintf(a, sizeof a, "%s/step-8/model.safetensors", half);
        snprintf(b, sizeof b, "%s/step-8/model.safetensors", in_folder("s", i));
        expect(same_tensors(a, b, 0), "and so have its weights");
    }
    char weights[600];
    snprintf(weights, sizeof weights, "%s/step-8/model.safetensors", in_folder("s", 0));
    expect(RUN(build(&plans[10]), "--data", "synthetic", "--init", weights, "--steps", "0", "--save", in_folder("init", 0)) == 0,
           "weights from a file");
    char copy[600];
    snprintf(copy, sizeof copy, "%s/step-0/model.safetensors", in_folder("init", 0));
    expect(same_tensors(copy, weights, 0), "come through unchanged");
    snprintf(weights, sizeof weights, "%s/step-8/optimizer.safetensors", in_folder("s", 0));
    expect(RUN(build(&plans[10]), "--data", "synthetic", "--init", weights) == 2 &&
               said("err", "lacks 7 of the model's 7 tensors: e, h.0.w, h.1.w, ..."), "what is missing is told of all stages");
}

/* A rank that fails in the middle of a step ends the others, who wait for what it would have sent or taken. */
static void test_failures(void)
{
    for (int i = 2; i < N_PLANS; i++)
        for (int s = 0, rank = 0; s < plans[i].n_stages; rank += plans[i].ranks[s++]) {
            struct plan p = plans[i];
            char text[64];
            p.fails = rank + p.ranks[s] - 1;
            if (p.micro_batches == 1)
                continue;
            snprintf(text, sizeof text, "error: rank %d fails, as this test wants\n", p.fails);
            expect(RUN(build(&p), "--data", "synthetic", "--steps", "5") == 2 && said("err", text) &&
                       strlen(text_of(in_folder("err", 0))) == strlen(text), "a failure ends the job with one line");
        }
}

/* With --timeout S, in a process of its own: a thread that is stuck ends with it. */
static int run_apart(const struct plan *p, int timeout_s)
{
    char text[16];
    int status = 0;
    snprintf(text, sizeof text, "%d", timeout_s);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        alarm(300);
    if (child == 0)
        _exit(RUN(build(p), "--data", "synthetic", "--steps", "5", "--timeout", text));
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return -1;
    return WEXITSTATUS(status);
}

/* A rank that is stuck, or waits for what nobody sends, ends the job with one line. Where this machine is so busy that another rank
 * seems to be the one, more patience shows which it is. */
static void test_hangs(void)
{
    static const struct {
        int how;
        const char *wanted;
    } cases[] = {{STOPS, "error: rank 2 has not moved for "}, {STRAYS, " for a message of rank 1"}};
    for (int c = 0; c < 2; c++) {
        struct plan p = plans[3];
        const char *text = "";
        int code = 0, lines = 0;
        p.fails = 2;
        p.how = cases[c].how;
        for (int timeout_s = 1; timeout_s <= 64; timeout_s *= 4) {
            code = run_apart(&p, timeout_s);
            text = text_of(in_folder("err", 0));
            if (strstr(text, cases[c].wanted) != NULL)
                break;
        }
        for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++)
            lines++;
        expect(code == 1 && lines == 1 && strncmp(text, "error: ", 7) == 0, "a hang ends the job with one line");
        expect(said("err", cases[c].wanted) && said("err", "--timeout sets how long"), "which says who is missing");
    }
}

/* A failure ends a rank too that does not see it, however long ranks may wait: here it is soon for a machine, and never for a test. */
static void test_failure_beside(void)
{
    struct plan p = plans[3];
#ifdef MPP_CONFORMANCE_H
    enum { TIMEOUT_S = 3600 };
#else
    enum { TIMEOUT_S = 0 }; /* for ever */
#endif
    p.fails = 2;
    p.how = FAILS_BESIDE;
    expect(run_apart(&p, TIMEOUT_S) == 2 && strcmp(text_of(in_folder("err", 0)), "error: rank 2 fails, as this test wants\n") == 0,
           "a failure ends a rank that is stuck");
}

#ifndef MPP_CONFORMANCE_H
static void fill(int fd)
{
    static const char lines[512];
    while (write(fd, lines, sizeof lines) > 0)
        ;
    while (write(fd, lines, 1) > 0)
        ;
}

/* Trains with --timeout S while who reads the metrics rests for more than twice as long. Returns the exit status. */
static int run_unread(int timeout_s)
{
    char *fifo = in_folder("fifo", timeout_s), text[16], buffer[4096];
    int status = 0, pipe = mkfifo(fifo, 0600) == 0 ? open(fifo, O_RDWR | O_NONBLOCK) : -1;
    snprintf(text, sizeof text, "%d", timeout_s);
    fflush(NULL);
    if (pipe < 0)
        return -1;
    fill(pipe);
    pid_t child = fork();
    if (child == 0)
        _exit(RUN(build(&plans[3]), "--data", "synthetic", "--steps", "2", "--timeout", text, "--metrics", fifo));
    usleep((useconds_t)timeout_s * 2200000);
    while (child > 0 && waitpid(child, &status, WNOHANG) == 0)
        if (read(pipe, buffer, sizeof buffer) <= 0)
            usleep(1000);
    close(pipe);
    return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* No hang; on a busy machine another rank may seem to be one, which more patience tells apart. */
static void test_unread(void)
{
    int code = -1;
    for (int timeout_s = 1; code != 0 && timeout_s <= 16; timeout_s *= 4)
        code = run_unread(timeout_s);
    expect(code == 0 && text_of(in_folder("err", 0))[0] == '\0', "a reader that rests ends no job");
}
#endif

/* Numbers that only the last stage reads are wrong: all leave, after the steps before. */
static void test_bad_data(void)
{
    char header[119], path[600], spec[600];
    static const char *const names[] = {"x", "t"};
    for (int k = 0; k < 2; k++) {
        memset(header, ' ', sizeof header);
        int at = snprintf(header, sizeof header, "{'descr': '<f4', 'fortran_order': False, 'shape': (36, %d), }", D);
        header[at] = ' ';
        header[117] = '\n';
        snprintf(path, sizeof path, "%s/%s.npy", folder, names[k]);
        FILE *out = fopen(path, "w");
        fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, out);
        fwrite(header, 1, 118, out);
        for (int i = 0; i < 36 * D; i++) {
            float x = k == 1 && i == 35 * D ? INFINITY : sinf((float)i);
            fwrite(&x, sizeof x, 1, out);
        }
        fclose(out);
    }
    snprintf(spec, sizeof spec, "npy:%s", folder);
    expect(RUN(build(&plans[6]), "--data", spec) == 2 && said("err", "t.npy: element 175 is infinite; input \"t\"") &&
               said("out", "step 2/8"), "a bad number of the last stage ends the run");
    expect(RUN(build(&plans[6]), "--data", "text:/etc/passwd") == 2 && said("err", "cannot fill input \"x\""),
           "what the first stage cannot read");
}

/* What --profile tells of a plan without chunks: every pass of the last two steps, in the order of the schedule and after the
 * pass that it takes its input from, and not more micro-batches in flight than the schedule says. */
static void test_profile(int number)
{
    enum { STEPS = 2, MICRO = 12, RANKS = 8 };
    static double begin[RANKS][2][STEPS * MICRO], end[RANKS][2][STEPS * MICRO];
    static int n[RANKS][2], flying[RANKS];
    const struct plan *p = &plans[number];
    double first_us = INFINITY, last_us = 0, waits = 0, sent = 0;
    bool order = true, bound = true;
    memset(n, 0, sizeof n);
    memset(flying, 0, sizeof flying);
    expect(RUN(build(p), "--data", "synthetic", "--profile", in_folder("trace", number)) == 0 &&
               said("out", "profile of step 8, a rank of each stage on average, in ms\nstage "), "a profile");
    json_t *root = json_load_file(in_folder("trace", number), 0, NULL), *events = json_object_get(root, "traceEvents"), *e;
    size_t i;
    json_array_foreach(events, i, e) {
        const char *name = json_string_value(json_object_get(e, "name")), *phase = json_string_value(json_object_get(e, "ph"));
        int rank = (int)json_integer_value(json_object_get(e, "tid")), stage = (int)json_integer_value(json_object_get(e, "pid"));
        double at = json_number_value(json_object_get(e, "ts")), us = json_number_value(json_object_get(e, "dur"));
        if (strcmp(phase, "X") != 0)
            continue;
        waits += strcmp(name, "wait") == 0 ? us : 0;
        sent += strncmp(name, "send", 4) == 0;
        if (strncmp(name, "step", 4) == 0) {
            first_us = at < first_us ? at : first_us;
            last_us = at + us > last_us ? at + us : last_us;
        }
        int back = strncmp(name, "backward", 8) == 0;
        if (!back && strncmp(name, "forward", 7) != 0)
            continue;
        int *k = &n[rank][back];
        if (*k >= STEPS * MICRO)
            break;
        order = order && json_integer_value(json_object_get(json_object_get(e, "args"), "micro_batch")) == *k % p->micro_batches;
        begin[rank][back][*k] = at;
        end[rank][back][(*k)++] = at + us;
        flying[rank] += back ? -1 : 1;
        bound = bound && flying[rank] <= (p->order == GPIPE ? p->micro_batches : slots_of(p, stage));
    }
    json_decref(root);
    expect(order && bound, "the order of micro-batches, and how many are in flight");
    int ranks = 0, total = STEPS * p->micro_batches;
    bool counts = true, causal = true;
    for (int s = 0; s < p->n_stages; ranks += p->ranks[s++])
        for (int r = ranks; r < ranks + p->ranks[s]; r++)
            for (int k = 0; k < total; k++) {
                counts = counts && n[r][0] == total && n[r][1] == total;
                causal = causal && begin[r][0][k] < end[r][0][k] && end[r][0][k] <= begin[r][1][k] + 0.01;
                causal = causal && first_us <= begin[r][0][k] && end[r][1][k] <= last_us;
                for (int q = 0; q < ranks && s > 0; q++) /* stages before; a rank without samples may be ahead */
                    if (p->ranks[s - 1] == 1 && p->ranks[s] == 1)
                        causal = causal && begin[q][0][k] < end[r][0][k] && begin[r][1][k] < end[q][1][k];
            }
    expect(counts, "all passes of two steps");
    expect(causal, "each after those that it needs");
    expect(sent > 0 && waits > 0, "messages and waits");
}

/* What a plan expects stands beside what was measured: counts are told where they differ. */
static void test_expected(void)
{
    static const struct mpp_forecast right[] = {{"all-reduce", 1, 3, 0.25}, {"receive", 0, 5, 0}};
    static const struct mpp_forecast wrong[] = {{"all-gather", 1, 4, 0.25}, {"all-reduce", 1, 2, 0}};
    const struct mpp_program *p = build(&plans[7]);
    built.program.step_s = 0.5;
    built.stage[0].forward_s = 0.125;
    built.stage[0].n_forecasts = built.stage[1].n_forecasts = 2;
    built.stage[0].forecasts = right;
    built.stage[1].forecasts = wrong;
    expect(RUN(p, "--data", "synthetic", "--profile", in_folder("expected", 0)) == 0 && said("out", "    step, mean of stage 0's ranks, with all waits  "),
           "what a plan expects");
    expect(said("out", "stage 0\n    forward, 12 micro-batches                          1500.000 ") &&
               said("out", "    of these 3 x all-reduce over data 2                 250.000 ") && said("out", "    of these 5 x receive (seen: 13)  "),
           "beside what was measured");
    expect(said("out", "    of these 4 x all-gather over data 4 (seen: 24)") && said("out", "    of these 2 x all-reduce over data 4 (seen: 0) "),
           "and that the numbers differ");
}

static void test_profiles(void)
{
    struct stat st;
    test_expected();
    test_profile(2);
    test_profile(4);
    test_profile(6);
    test_profile(9);
    expect(RUN(build(&plans[9]), "--data", "synthetic", "--steps", "0", "--profile", in_folder("none", 0)) == 0 &&
               stat(in_folder("none", 0), &st) != 0, "no steps, no trace");
    expect(RUN(build(&plans[9]), "--data", "synthetic", "--profile", "/nowhere/t.json") == 2 && said("err", "error: /nowhere: "),
           "no folder for it");
}

/* The loss on other data is the same under every plan, and asking for it changes nothing of the training. */
static void test_evaluation(void)
{
    static const int which[] = {0, 3, 5, 6, 8, 12};
    double losses[8], l[8], first[3], e[4];
    char spec[600], *metrics = in_folder("evaluated", 0);
    snprintf(spec, sizeof spec, "npy:%s", folder);
    for (int i = 0; i < 6; i++) {
        expect(RUN(build(&plans[which[i]]), "--data", "synthetic", "--seed", "7", "--eval", "synthetic", "--eval-every", "3",
                   "--eval-steps", "2", "--metrics", metrics) == 0 && said("out", "step 6/8  loss ") &&
                   said("out", "  on other data "), "a run with evaluations");
        expect(numbers(metrics, "\"loss\"", l, 8) == 8 && numbers(in_folder("m", which[i]), "\"loss\"", losses, 8) == 8 &&
                   memcmp(l, losses, sizeof l) == 0, "has the losses of one without");
        expect(numbers(metrics, "\"eval_loss\"", e, 4) == 3, "after steps 3, 6 and 8");
        if (i == 0)
            memcpy(first, e, sizeof first);
        expect(near(e, first, 3) && e[2] < e[0] && e[0] < 2 * l[0], "their losses");
    }
    char text[64];
    snprintf(text, sizeof text, "loss on other data after step 8: %.6g\n", e[2]);
    expect(RUN(build(&plans[12]), "--data", "synthetic", "--resume", in_folder("s", 12), "--eval", "synthetic", "--eval-steps", "2")
               == 0 && said("out", text), "of a checkpoint, without a step");
    expect(RUN(build(&plans[6]), "--data", "synthetic", "--eval", spec, "--eval-every", "4") == 2 && said("out", "step 3/8") &&
               said("err", "t.npy: element 175 is infinite"), "a bad number in other data ends the run");
    expect(RUN(build(&plans[6]), "--data", "synthetic", "--eval", "npy:/nowhere") == 2 && said("err", "/nowhere: no such folder"),
           "no other data");
    expect(RUN(build(&plans[6]), "--data", "synthetic", "--eval-every", "4") == 2 && said("err", "give --eval SOURCE too"),
           "of which data");
    const struct mpp_program *p = build(&plans[0]);
    built.stage[0].loss_term_offset = -1;
    expect(RUN(p, "--data", "synthetic", "--eval", "synthetic") == 2 && said("err", "after a whole training step only"),
           "a plan that cannot");
}

int main(int argc, char **argv)
{
    int number;
    struct plan p;
    if (argc > 1 && sscanf(argv[1], "plan=%d", &number) == 1 && number >= 0 && number < N_PLANS) { /* a trainer of its own */
        char *fails = getenv("FAILING_RANK");
        p = plans[number];
        p.fails = fails != NULL ? atoi(fails) : -1;
        p.how = getenv("FAILING_HOW") != NULL ? atoi(getenv("FAILING_HOW")) : FAILS;
        return mpp_main(argc - 1, argv + 1, build(&p));
    }
    if (mkdtemp(folder) == NULL)
        return 1;
    test_plans_agree();
    test_announced();
    test_resume();
    test_failures();
    test_hangs();
    test_failure_beside();
#ifndef MPP_CONFORMANCE_H
    test_unread();
#endif
    test_bad_data();
    test_profiles();
    test_evaluation();
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        failed++;
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
