/* test_transfers.c - pipelines: what crosses the borders of stages, and that all stages together compute the step.
 *
 *     test_transfers [how many random pipelines]
 *
 * Random plans (cuts, device ranges, meshes, splits of every group, recomputation, schedule) of small models are lowered and
 * run by the machine (machine.h) with numbers: losses, gradient norms, parameters and optimiser state after two steps are
 * the interpreter's for the whole step, and what the arenas hold is what programs with unlimited memory hold. Then schedules and
 * transfers are broken, and the verifier must refuse them and say why. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/interp.h"
#include "ir/op.h"
#include "ir/pass.h"
#include "planner/plan.h"
#include "tests/machine.h"
#include "tests/runtime_parts.h"

enum { MAX_STAGES = 8, MAX_PARTS = 16, N_RANDOM = 120, STEPS = 2 };

static int passed, failed;
static int64_t packed_bytes; /* of all plans */

__attribute__((format(printf, 2, 3))) static bool check(bool ok, const char *fmt, ...)
{
    passed += ok;
    failed += !ok;
    if (!ok) {
        va_list ap;
        va_start(ap, fmt);
        fputs("FAILED: ", stdout);
        vprintf(fmt, ap);
        putchar('\n');
        va_end(ap);
    }
    return ok;
}

static int pick(uint64_t *state, int n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int)((*state >> 33) % (uint64_t)n);
}

/* ---- a model and a plan of several stages ---- */

struct job {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const char *what;
    struct mpp_graph *g;          /* before "fuse" */
    struct mpp_layering *layers;
    struct mpp_cluster *cluster;
    struct mpp_plan plan;
    struct mpp_transfers *transfers;
    struct mpp_flat_program *flats;
    struct mpp_lprog **progs;
};

static bool open_model(struct job *j, const char *file, const char *defines, const char *precision)
{
    *j = (struct job){.arena = mpp_arena_new(), .diag = mpp_diag_new(stdout)};
    const char *define[40];
    struct mpp_model_options options = {.preset = strstr(file, "gpt") || strstr(file, "bert") ? "tiny" : NULL, .defines = define, .precision = precision};
    char *words = mpp_arena_strdup(j->arena, defines);
    for (char *w = strtok(words, " "); w; w = strtok(NULL, " "))
        define[options.n_defines++] = w;
    struct mpp_pass_ctx ctx = {.arena = j->arena, .diag = j->diag, .before_fuse = true};
    struct mpp_model *model;
    j->what = mpp_arena_printf(j->arena, "%s %s%s%s", file, defines, precision ? " " : "", precision ? precision : "");
    bool ok = mpp_model_read(j->arena, j->diag, file, &options, &model) == MPP_OK;
    if (ok && model->training.clip_norm > 0)
        model->training.clip_norm = 0.05; /* gradients are clipped */
    return check(ok && mpp_graph_build(j->arena, j->diag, model, &j->g) == MPP_OK && mpp_passes_run(&ctx, j->g) == MPP_OK &&
                 mpp_layering_make(j->arena, j->diag, j->g, 0, &j->layers) == MPP_OK, "%s does not build", j->what);
}

static void close_job(struct job *j)
{
    mpp_diag_free(j->diag);
    mpp_arena_free(j->arena);
}

/* A name without its numbers, so that layers are split alike. */
static uint64_t name_hash(const char *name)
{
    uint64_t h = 5;
    for (const char *c = name; *c; c++)
        if (*c < '0' || *c > '9')
            h = (h ^ (uint64_t)*c) * 0x9e3779b97f4a7c15u;
    return h;
}

static void random_split(struct mpp_stage *s, int group, uint64_t seed)
{
    const struct mpp_group *grp = &s->graph->groups[group];
    uint64_t state = seed ^ name_hash(s->graph->ops[grp->ops[0]].name) ^ (uint64_t)grp->phase;
    struct mpp_split whole = {{MPP_WHOLE, MPP_WHOLE, MPP_WHOLE}};
    s->split[group] = whole;
    for (int a = 0; a < s->mesh.n_axes; a++)
        for (int tries = 0; tries < 4 && grp->rule->n_factors > 0; tries++) {
            struct mpp_split split = s->split[group];
            split.axis[a] = (int8_t)pick(&state, grp->rule->n_factors);
            if (s->mesh.size[a] > 1 && mpp_split_legal(grp->rule, &s->mesh, split)) {
                s->split[group] = split;
                break;
            }
        }
}

static int width(const struct mpp_mesh *mesh, unsigned mask)
{
    int n = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        n *= mask >> a & 1 ? mesh->size[a] : 1;
    return n;
}

static void random_rest(struct mpp_stage *s, mpp_id t, uint64_t seed)
{
    const struct mpp_gtensor *x = &s->graph->tensors[t];
    uint64_t state = seed ^ name_hash(x->name);
    s->resting[t] = mpp_sharding_whole();
    s->kept[t] = x->role == MPP_ROLE_PARAM && pick(&state, 3) == 0;
    for (int a = 0; a < s->mesh.n_axes && x->n_dims > 0; a++) {
        int d = pick(&state, x->n_dims + 1);
        if (d < x->n_dims && s->mesh.size[a] > 1 && x->dims[d].size >= s->mesh.size[a] * width(&s->mesh, mpp_sharding_mask(s->resting[t], d)))
            s->resting[t].axis[a] = (int8_t)d;
    }
}

/* A mesh of N devices: one axis, or two where N is no prime. */
static struct mpp_mesh random_mesh(int n, uint64_t *state)
{
    struct mpp_mesh mesh = {.n_axes = 1, .size = {n, 1, 1}, .name = {"a", "b", "c"}};
    if (n % 2 == 0 && pick(state, 2)) {
        mesh.n_axes = 2;
        mesh.size[0] = 2;
        mesh.size[1] = n / 2;
    }
    return mesh;
}

struct shape {                    /* of a pipeline; what is 0 is random */
    int stages, devices[MAX_STAGES];
    int64_t micro_batches;
    enum mpp_recompute recompute;
    enum mpp_schedule_kind kind;
    int chunks;                   /* 0: 1 */
};

/* FIRST, LAST: the layers of each part of the model, which stages take in turns. */
static bool random_stage(struct job *j, int i, const int *first, const int *last, const struct shape *shape, uint64_t *state)
{
    struct mpp_stage *s = &j->plan.stages[i];
    const struct mpp_stage *before = i ? s - 1 : NULL;
    int n = shape->devices[i];
    uint64_t seed = (uint64_t)pick(state, 1 << 30);
    int begin[MAX_PARTS], end[MAX_PARTS], chunks = j->plan.pipeline.chunks;
    for (int c = 0; c < chunks; c++) {
        begin[c] = first[c * shape->stages + i];
        end[c] = last[c * shape->stages + i];
    }
    *s = (struct mpp_stage){.first_device = before ? before->first_device + before->n_devices : 0, .n_devices = n,
                            .first_layer = begin[0], .last_layer = end[chunks - 1], .recompute = shape->recompute,
                            .mesh = random_mesh(n, state), .solver = {.glpk_status = "not needed"}};
    if (chunks == 1 ? mpp_span_extract(j->arena, j->diag, j->g, j->layers, begin[0], end[0], shape->recompute, &s->graph) != MPP_OK
                    : mpp_span_extract_chunks(j->arena, j->diag, j->g, j->layers, chunks, begin, end, shape->recompute, &s->graph) != MPP_OK)
        return false;
    s->split = mpp_arena_array(j->arena, s->graph->n_groups, struct mpp_split);
    s->resting = mpp_arena_array(j->arena, s->graph->n_tensors, struct mpp_sharding);
    s->kept = mpp_arena_array(j->arena, s->graph->n_tensors, bool);
    for (int k = 0; k < s->graph->n_groups; k++)
        random_split(s, k, seed);
    for (mpp_id t = 0; t < s->graph->n_tensors; t++)
        random_rest(s, t, seed);
    return true;
}

/* j->plan of SHAPE, its layers cut at random places. */
static bool make_plan(struct job *j, const struct shape *shape, uint64_t *state)
{
    int n = shape->stages, devices = 0, left = j->layers->n_layers, chunks = shape->chunks ? shape->chunks : 1;
    int first[MAX_PARTS], last[MAX_PARTS];
    for (int i = 0; i < n; i++)
        devices += shape->devices[i];
    mpp_graph_set_batch(j->g, j->g->global_batch / shape->micro_batches);
    j->plan = (struct mpp_plan){
        .version = MPP_PLAN_VERSION, .batch = j->g->global_batch, .micro_batches = shape->micro_batches, .n_stages = n,
        .layering = j->layers, .stages = mpp_arena_array(j->arena, n, struct mpp_stage), .pins = "",
        .schedule = mpp_schedule_name(shape->kind), .pipeline = {shape->kind, n, chunks, shape->micro_batches},
        .solver = {.glpk_status = "not needed"}};
    bool ok = mpp_cluster_load(j->arena, j->diag, "host", devices, &j->cluster) == MPP_OK;
    for (int i = 0; i < n * chunks; i++) {
        int most = left - (n * chunks - 1 - i), take = i == n * chunks - 1 ? left : 1 + pick(state, most);
        first[i] = j->layers->n_layers - left;
        last[i] = first[i] + take - 1;
        left -= take;
    }
    for (int i = 0; i < n && ok; i++)
        ok = random_stage(j, i, first, last, shape, state);
    return check(ok && mpp_plan_derive(j->arena, j->diag, j->g, j->cluster, &j->plan) == MPP_OK, "%s: no plan", j->what);
}

static bool lower_all(struct job *j)
{
    int n = j->plan.n_stages;
    bool ok = mpp_transfers_plan(j->arena, j->diag, &j->plan, &j->transfers) == MPP_OK &&
              mpp_pipeline_verify(j->arena, j->diag, &j->plan, j->transfers) == MPP_OK;
    j->flats = mpp_arena_array(j->arena, n, struct mpp_flat_program);
    j->progs = mpp_arena_array(j->arena, n, struct mpp_lprog *);
    for (int i = 0; i < n && ok; i++) {
        const struct mpp_graph *g = j->plan.stages[i].graph;
        ok = mpp_lower(j->arena, g, &j->plan, i, j->transfers, INT64_MAX, &j->progs[i]) == MPP_OK;
        if (ok)
            mpp_lower_flat(j->arena, g, &j->plan, i, j->transfers, j->progs[i]->overlap, &j->flats[i]);
    }
    return check(ok, "%s: lowering failed", j->what);
}

/* ---- what is sent ---- */

/* Nothing is sent to a device that another of its stage has sent to, where some dimension can be cut further. */
static void check_line(const struct job *j, const struct mpp_transfer_line *l)
{
    const struct mpp_stage *from = &j->plan.stages[l->from], *to = &j->plan.stages[l->to];
    const struct mpp_gtensor *x = &from->graph->tensors[l->from_tensor], *y = &to->graph->tensors[l->to_tensor];
    unsigned split = 0;
    bool cuttable = false;
    check(l->from != l->to && strcmp(x->name, y->name) == 0 && x->dtype == l->dtype && l->n_dims == x->n_dims &&
          (l->phase != MPP_PHASE_FORWARD || l->from + l->from_chunk * j->plan.n_stages < l->to + l->to_chunk * j->plan.n_stages) &&
          (l->phase != MPP_PHASE_BACKWARD || l->from + l->from_chunk * j->plan.n_stages > l->to + l->to_chunk * j->plan.n_stages),
          "%s: %s from %d to %d is no transfer", j->what, l->name, l->from, l->to);
    for (int d = 0; d < l->n_dims; d++) {
        check(l->dims[d] == x->dims[d].size && l->dims[d] == y->dims[d].size, "%s: extents of %s", j->what, l->name);
        check(l->from_split[d] == mpp_sharding_mask(l->from_sharding, d) && l->to_split[d] == mpp_sharding_mask(l->to_sharding, d),
              "%s: axes of %s", j->what, l->name);
        split |= l->to_split[d];
    }
    if (l->once)
        return;
    for (int a = 0; a < to->mesh.n_axes; a++)
        for (int d = 0; d < l->n_dims && !(split >> a & 1) && to->mesh.size[a] > 1; d++)
            cuttable = cuttable || ((l->to_split[d] & ~((1u << a) - 1)) == 0 &&
                                    l->dims[d] >= width(&to->mesh, l->to_split[d] | 1u << a));
    check(!cuttable, "%s: %s arrives whole where it could be cut", j->what, l->name);
    if (l->gather.mask)
        check(l->gather.kind == MPP_STEP_ALL_GATHER && mpp_sharding_equal(l->gather.from, l->to_sharding) &&
              mpp_sharding_mask(l->gather.from, l->gather.dim) == (mpp_sharding_mask(l->gather.to, l->gather.dim) | l->gather.mask) &&
              (mpp_sharding_mask(l->gather.to, l->gather.dim) & ~((l->gather.mask & -l->gather.mask) - 1)) == 0 && /* innermost */
              width(&to->mesh, l->gather.mask) > 1, "%s: %s is not gathered by its step", j->what, l->name);
}

/* Each Recv ends one transfer, each Send begins some. */
static void check_lines(const struct job *j)
{
    for (int k = 0; k < j->transfers->n; k++)
        check_line(j, &j->transfers->line[k]);
    for (int i = 0; i < j->plan.n_stages; i++) {
        const struct mpp_graph *g = j->plan.stages[i].graph;
        for (mpp_id o = 0; o < g->n_ops; o++) {
            const struct mpp_gop *op = &g->ops[o];
            int n = 0;
            for (int k = 0; k < j->transfers->n; k++) {
                const struct mpp_transfer_line *l = &j->transfers->line[k];
                n += l->phase == op->phase && (op->kind == MPP_OP_RECV ? l->to == i && l->to_tensor == op->out[0]
                                               : op->kind == MPP_OP_SEND && l->from == i && l->from_tensor == op->in[0]);
            }
            if (op->kind == MPP_OP_RECV || op->kind == MPP_OP_SEND)
                check(op->kind == MPP_OP_RECV ? n == 1 : n > 0, "%s: %d transfers of %s", j->what, n, op->name);
        }
    }
}

/* ---- what is computed ---- */

static mpp_id find(const struct mpp_graph *g, const char *name)
{
    for (mpp_id t = 0; t < g->n_tensors; t++)
        if (strcmp(g->tensors[t].name, name) == 0)
            return t;
    return -1;
}

static struct mpp_interp *run_whole(struct job *j)
{
    struct mpp_interp *it = mpp_interp_new(j->g, j->g->global_batch / j->plan.micro_batches);
    for (mpp_id t = 0; t < j->g->n_tensors; t++)
        if (j->g->tensors[t].role == MPP_ROLE_PARAM || j->g->tensors[t].role == MPP_ROLE_INPUT || j->g->tensors[t].role == MPP_ROLE_STATE)
            machine_elements(&j->g->tensors[t], mpp_interp_count(it, t), mpp_interp_data(it, t));
    mpp_interp_seed(it, 42, 1);
    for (int step = 0; step < STEPS; step++)
        mpp_interp_step(it, 0.01);
    return it;
}

static void close_to(const struct job *j, const char *name, int stage, const struct value *v, const double *expected, int64_t n)
{
    double worst = 0, size = 0;
    bool there = v && v->n == n;
    for (int64_t i = 0; there && i < n; i++) {
        worst = fmax(worst, fabs(v->x[i] - expected[i]));
        size = fmax(size, fabs(expected[i]));
        if (isnan(v->x[i]))
            worst = NAN;
    }
    check(there && worst <= 1e-10 * size + 1e-14, "%s: %s of stage %d differs by %.3g of %.3g", j->what, name, stage, worst, size);
}

/* All that remains of two steps, in every stage that has it, against the whole step's. */
static void compare_numbers(const struct job *j, struct machine *r, struct mpp_interp *it)
{
    int losses = 0;
    for (int i = 0; i < j->plan.n_stages; i++) {
        const struct mpp_graph *g = j->plan.stages[i].graph;
        for (mpp_id t = 0; t < g->n_tensors; t++) {
            mpp_id whole = find(j->g, g->tensors[t].name);
            if (g->tensors[t].role == MPP_ROLE_PARAM || g->tensors[t].role == MPP_ROLE_STATE)
                close_to(j, g->tensors[t].name, i, machine_rest(r, i, t), mpp_interp_data(it, whole), mpp_interp_count(it, whole));
        }
        losses += machine_loss(r, i) != NULL;
        if (j->progs[i]->loss >= 0)
            close_to(j, "loss", i, machine_loss(r, i), mpp_interp_data(it, j->g->loss_total), 1);
        if (j->progs[i]->grad_norm >= 0)
            close_to(j, "norm", i, machine_norm(r, i), mpp_interp_data(it, j->g->grad_norm), 1);
    }
    check(losses == 1, "%s: %d stages have the loss", j->what, losses);
}

static bool same(const struct value *a, const struct value *b)
{
    return a && b ? a->hash == b->hash : a == b;
}

/* What was computed how is the same in the arenas as in memory of one's own. */
static void compare_hashes(const struct job *j, struct machine *f, struct machine *r)
{
    int different = 0;
    for (int i = 0; i < j->plan.n_stages; i++) {
        const struct mpp_graph *g = j->plan.stages[i].graph;
        for (mpp_id t = 0; t < g->n_tensors; t++)
            if (g->tensors[t].role == MPP_ROLE_PARAM || g->tensors[t].role == MPP_ROLE_STATE)
                different += !machine_rest(f, i, t) || !same(machine_rest(f, i, t), machine_rest(r, i, t));
        different += !same(machine_loss(f, i), machine_loss(r, i)) || !same(machine_norm(f, i), machine_norm(r, i));
        int64_t most = machine_in_flight(r, i), allowed = 0; /* chunks of micro-batches */
        for (int c = 0; c < j->progs[i]->n_chunks; c++)
            allowed += j->progs[i]->slots[c];
        check(most <= allowed, "%s: stage %d has %lld micro-batches in flight, not %lld", j->what, i, (long long)most, (long long)allowed);
    }
    check(different == 0, "%s: %d values of the rolled programs differ", j->what, different);
    check(!machine_stale(f), "%s: a flat program reads what nothing wrote", j->what);
    check(!machine_stale(r), "%s: a rolled program reads a place whose value was overwritten", j->what);
}

static void run_both(struct job *j, uint64_t *state)
{
    struct machine *f = machine_new(j->arena, &j->plan, j->transfers, j->flats, NULL, true);
    struct machine *r = machine_new(j->arena, &j->plan, j->transfers, NULL, j->progs, true);
    machine_fill(f);
    machine_fill(r);
    bool ok = true;
    for (int step = 0; step < STEPS && ok; step++)
        ok = machine_step(f, state) && machine_step(r, state);
    if (check(ok, "%s: a step does not end", j->what)) {
        struct mpp_interp *it = run_whole(j);
        compare_hashes(j, f, r);
        compare_numbers(j, r, it);
        mpp_interp_free(it);
    }
    machine_free(f);
    machine_free(r);
}

static void check_arenas(const struct job *j)
{
    for (int i = 0; i < j->plan.n_stages; i++) {
        const struct mpp_memory *m = &j->progs[i]->memory;
        check(m->parameters + m->gradients + m->optimizer + m->activations + m->inputs + m->workspace + m->gaps == m->arena_bytes,
              "%s: the account of stage %d does not sum to the arena", j->what, i);
        check((double)m->arena_bytes <= 1.25 * (double)m->live_bound_bytes + 512, "%s: the arena of stage %d has %lld bytes, %lld are alive",
              j->what, i, (long long)m->arena_bytes, (long long)m->live_bound_bytes);
        for (int k = 0; k < j->transfers->n; k++) {
            int ring = j->progs[i]->ring[k];
            bool sends = j->transfers->line[k].from == i;
            check((ring >= 0) == sends, "%s: rings of stage %d", j->what, i);
            if (sends)
                check(j->progs[i]->buffers[ring].slots == j->transfers->line[k].depth, "%s: depth of a ring of stage %d", j->what, i);
        }
    }
}

/* What stages pack for each other on GPUs, and how many pairs of ranks speak: as the runtime works it out from the same transfers. */
static void check_beside(const struct job *j)
{
    for (int i = 0; i < j->plan.n_stages; i++) {
        int64_t most_bytes = 0;
        int most_pairs = 0;
        for (int k = 0; k < j->plan.stages[i].n_devices; k++) {
            int64_t bytes = 0;
            int pairs = 0;
            for (int t = 0; t < j->transfers->n; t++) {
                const struct mpp_transfer_line *l = &j->transfers->line[t];
                if (l->from != i && l->to != i)
                    continue;
                const struct mpp_mesh *from = &j->plan.stages[l->from].mesh, *to = &j->plan.stages[l->to].mesh;
                const struct parts_mesh mesh[] = {{from->n_axes, from->size}, {to->n_axes, to->size}};
                const struct parts_line line = {l->n_dims, l->depth, (int)mpp_dtype_bytes(l->dtype), l->dims, l->from_split, l->to_split};
                int n;
                int64_t packed;
                if (!check(parts_of_device(mesh, &line, l->from == i, k, &n, &packed), "%s: parts of %s", j->what, l->name))
                    return;
                pairs += n;
                bytes += packed;
            }
            most_pairs = pairs > most_pairs ? pairs : most_pairs;
            most_bytes = bytes > most_bytes ? bytes : most_bytes;
        }
        const struct mpp_beside *b = &j->progs[i]->memory.beside;
        packed_bytes += most_bytes;
        check(b->pairs == most_pairs && b->messages == most_bytes, "%s: stage %d is planned to pack %lld bytes for %d pairs, and packs %lld for %d",
              j->what, i, (long long)b->messages, b->pairs, (long long)most_bytes, most_pairs);
    }
}

static const char *describe(struct job *j, const struct shape *shape)
{
    const char *text = mpp_arena_printf(j->arena, "%s, %s of %d, %lld micro-batches, recompute %s, stages of", j->what,
                                        mpp_schedule_name(shape->kind), shape->chunks, (long long)shape->micro_batches,
                                        mpp_recompute_name(shape->recompute));
    for (int i = 0; i < shape->stages; i++)
        text = mpp_arena_printf(j->arena, "%s %d", text, shape->devices[i]);
    return text;
}

static void run_pipeline(const char *file, const char *defines, const char *precision, struct shape shape, uint64_t *state)
{
    struct job j;
    if (open_model(&j, file, defines, precision)) {
        if (shape.stages > j.layers->n_layers)
            shape.stages = j.layers->n_layers;
        if (shape.chunks * shape.stages > j.layers->n_layers || shape.stages == 1) {
            shape.chunks = 0;
            shape.kind = MPP_SCHEDULE_1F1B;
        }
        if (shape.chunks > 1)     /* a multiple of the stages */
            shape.micro_batches = shape.stages * (1 + pick(state, 2));
        if (j.g->whole_batch || j.g->global_batch % shape.micro_batches != 0) {
            shape.micro_batches = shape.chunks > 1 && !j.g->whole_batch ? shape.stages : 1;
            shape.chunks = j.g->whole_batch ? 0 : shape.chunks;
            shape.kind = shape.chunks ? shape.kind : MPP_SCHEDULE_1F1B;
        }
        j.what = describe(&j, &shape);
        if (make_plan(&j, &shape, state) && lower_all(&j)) {
            check_lines(&j);
            check_arenas(&j);
            check_beside(&j);
            run_both(&j, state);
        }
    }
    close_job(&j);
}

/* ---- the pipelines ---- */

static const char GPT[] = "hidden=12 heads=3 vocab=11 seq=5 positions=7 batch=24";

/* Several chunks of a stage may not share parameters or values, as some models at the edges do. */
static struct shape in_one_piece(struct shape shape)
{
    shape.chunks = 0;
    shape.kind = shape.kind == MPP_SCHEDULE_INTERLEAVED ? MPP_SCHEDULE_1F1B : shape.kind;
    return shape;
}

static void run_random(uint64_t *state)
{
    struct mpp_arena *arena = mpp_arena_new();
    static const char *const edges[] = {"blocks", "labels", "names", "penalty", "rows", "skips", "tied", "bare"};
    static const int counts[] = {1, 2, 3, 4, 6, 8};
    struct shape shape = {.stages = 2 + pick(state, 3), .micro_batches = counts[pick(state, 6)],
                          .recompute = (enum mpp_recompute)pick(state, MPP_RECOMPUTE_COUNT),
                          .kind = pick(state, 3) ? MPP_SCHEDULE_1F1B : MPP_SCHEDULE_GPIPE};
    for (int i = 0; i < shape.stages; i++)
        shape.devices[i] = 1 + pick(state, 4);
    if (pick(state, 3) == 0) {
        shape.kind = MPP_SCHEDULE_INTERLEAVED;
        shape.chunks = 2 + pick(state, 2);
    }
    int layers = 2 + pick(state, 5), model = pick(state, 8);
    const char *drop = pick(state, 2) ? "pdrop=0.25" : "pdrop=0", *precision = pick(state, 6) ? NULL : pick(state, 2) ? "fp16" : "bf16";
    if (model == 0)
        run_pipeline("models/mlp.xml", "in=5 hidden=7 out=3 layers=4 batch=24", NULL, shape, state);
    else if (model == 1)
        run_pipeline("models/bert.xml", mpp_arena_printf(arena, "%s layers=%d padding_mask=true %s", GPT, layers, drop), NULL, shape, state);
    else if (model < 4)
        run_pipeline(mpp_arena_printf(arena, "tests/data/models/%s.xml", edges[pick(state, 8)]), "", NULL, in_one_piece(shape), state);
    else
        run_pipeline("models/gpt.xml", mpp_arena_printf(arena, "%s layers=%d %s", GPT, layers, drop), precision, shape, state);
    mpp_arena_free(arena);
}

/* The second of three stages has no parameters. */
static void run_bare(uint64_t *state)
{
    struct job j;
    struct shape shape = {.stages = 3, .devices = {1, 2, 1}, .micro_batches = 3, .kind = MPP_SCHEDULE_1F1B};
    if (open_model(&j, "tests/data/models/bare.xml", "", NULL) && check(j.layers->n_layers >= 4, "bare: %d layers", j.layers->n_layers)) {
        int found = 0;
        for (int tries = 0; tries < 30 && found == 0; tries++) {
            if (!make_plan(&j, &shape, state) || !lower_all(&j))
                break;
            for (int i = 0; i < 3; i++)
                found += j.plan.stages[i].graph->grad_norm < 0;
        }
        check(found > 0, "bare: every stage has parameters");
        check_lines(&j);
        run_both(&j, state);
    }
    close_job(&j);
}

/* Layers 0 and SECOND as two chunks of a stage: with one parameter, or one with what the other makes, they are refused with a message. */
static void test_refused(const char *file, int second, const char *words)
{
    struct job j;
    char *text = NULL;
    size_t size = 0;
    if (open_model(&j, file, "", NULL)) {
        FILE *out = open_memstream(&text, &size);
        struct mpp_diag *diag = mpp_diag_new(out);
        struct mpp_graph *span;
        int first[2] = {0, second}, last[2] = {0, second};
        enum mpp_status st = second >= j.layers->n_layers ? MPP_OK : mpp_span_extract_chunks(j.arena, diag, j.g, j.layers, 2, first, last, MPP_RECOMPUTE_NONE, &span);
        mpp_diag_free(diag);
        fclose(out);
        check(st == MPP_INVALID && strstr(text, words) && strstr(text, "plan fewer chunks"), "%s in chunks: it says '%s', not '%s'", file, text, words);
        free(text);
    }
    close_job(&j);
}

/* ---- what the verifier refuses ---- */

enum { N_MICRO = 4, N_STAGES = 3 };

struct broken {
    struct mpp_transfers transfers;
    struct mpp_transfer_line line[2 * (N_STAGES - 1)]; /* forward 0, 1; then backward from 1, 2 */
    struct mpp_schedule_event work[N_STAGES][2 * N_MICRO];
    struct mpp_pipeline_list list[N_STAGES];
    int64_t slots[N_STAGES];
};

static void healthy(struct broken *b, enum mpp_schedule_kind kind)
{
    struct mpp_schedule s = {kind, N_STAGES, 1, N_MICRO};
    *b = (struct broken){.transfers = {.n = 2 * (N_STAGES - 1), .line = b->line}};
    for (int i = 0; i < N_STAGES; i++) {
        for (int k = 0; k < 2 * N_MICRO; k++)
            b->work[i][k] = mpp_schedule_work(&s, i, k);
        b->slots[i] = mpp_schedule_in_flight(&s, i);
        b->list[i] = (struct mpp_pipeline_list){2 * N_MICRO, b->work[i], 1, &b->slots[i]};
    }
    for (int i = 0; i + 1 < N_STAGES; i++) {
        b->line[i] = (struct mpp_transfer_line){.name = "value", .from = i, .to = i + 1, .phase = MPP_PHASE_FORWARD, .depth = 1};
        b->line[N_STAGES - 1 + i] = (struct mpp_transfer_line){.name = "gradient", .from = i + 1, .to = i, .phase = MPP_PHASE_BACKWARD,
                                                               .depth = 1};
    }
}

/* The verifier says WORDS about B; NULL: nothing. */
static void expect(const struct broken *b, const char *title, const char *words)
{
    struct mpp_arena *arena = mpp_arena_new();
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    struct mpp_diag *diag = mpp_diag_new(out);
    enum mpp_status st = mpp_pipeline_run(arena, diag, N_STAGES, b->list, &b->transfers);
    mpp_diag_free(diag);
    fclose(out);
    if (words)
        check(st == MPP_INVALID && strstr(text, words) && strstr(text, "internal error"), "%s: it says '%s', not '%s'", title, text, words);
    else
        check(st == MPP_OK && size == 0, "%s: it says '%s'", title, text);
    free(text);
    mpp_arena_free(arena);
}

static void swap_work(struct mpp_schedule_event *work, int a, int b)
{
    struct mpp_schedule_event x = work[a];
    work[a] = work[b];
    work[b] = x;
}

static void test_verifier(void)
{
    struct broken b;
    for (int kind = MPP_SCHEDULE_GPIPE; kind <= MPP_SCHEDULE_1F1B; kind++) {
        healthy(&b, (enum mpp_schedule_kind)kind);
        expect(&b, mpp_schedule_name((enum mpp_schedule_kind)kind), NULL);
    }
    healthy(&b, MPP_SCHEDULE_1F1B); /* stage 0 runs its first backward before its second forward, which stage 2 waits for not */
    swap_work(b.work[0], 2, 3);
    expect(&b, "a backward a turn earlier", NULL);
    healthy(&b, MPP_SCHEDULE_1F1B); /* the last stage wants all forwards first: the first cannot be so far ahead */
    for (int k = 0; k < N_MICRO; k++) {
        b.work[2][k] = (struct mpp_schedule_event){.stage = 2, .micro_batch = k, .what = MPP_EVENT_FORWARD};
        b.work[2][N_MICRO + k] = (struct mpp_schedule_event){.stage = 2, .micro_batch = k, .what = MPP_EVENT_BACKWARD};
    }
    b.slots[2] = N_MICRO;
    expect(&b, "a stage that waits for all", "stage 1, in the backward of micro-batch 0, waits for stage 2 to send gradient; stage 2, in "
           "the forward of micro-batch 2, waits for stage 1 to send value");
    b.slots[2] = 1;
    expect(&b, "places", "stage 2 has places for 1 micro-batches in flight, and 2 are");
    healthy(&b, MPP_SCHEDULE_1F1B);
    swap_work(b.work[1], 0, 1);
    expect(&b, "forwards out of order", "stage 1 runs the forward of micro-batch 1 where that of 0 is due");
    healthy(&b, MPP_SCHEDULE_1F1B);
    swap_work(b.work[2], 0, 1);
    expect(&b, "a backward first", "stage 2 runs the backward of micro-batch 0 before its forward");
    healthy(&b, MPP_SCHEDULE_1F1B);
    b.list[1].n -= 1;
    expect(&b, "a backward left out", "stage 0, in the backward of micro-batch 3, waits for stage 1 to send gradient, which has come to its end");
    healthy(&b, MPP_SCHEDULE_1F1B);
    b.line[2].phase = MPP_PHASE_FORWARD; /* a gradient that forward waits for */
    expect(&b, "a circle", "stage 0, in the forward of micro-batch 0, waits for stage 1 to send gradient; stage 1, in the forward of "
           "micro-batch 0, waits for stage 0 to send value");
    healthy(&b, MPP_SCHEDULE_1F1B);
    b.list[2].n = 0;              /* it takes nothing: the ring of stage 1 stays full */
    expect(&b, "a full ring", "waits for room to send stage 2 the next value, which has come to its end");
}

/* As many places as the two ends of a transfer are apart, and one. */
static void test_depths(uint64_t *state)
{
    struct job j;
    struct shape shape = {.stages = 4, .devices = {1, 1, 1, 1}, .micro_batches = 8, .kind = MPP_SCHEDULE_1F1B};
    if (open_model(&j, "tests/data/models/skips.xml", "batch=24", NULL) && make_plan(&j, &shape, state) && lower_all(&j)) {
        int far = 0;
        for (int k = 0; k < j.transfers->n; k++) {
            const struct mpp_transfer_line *l = &j.transfers->line[k];
            int apart = abs(l->to - l->from);
            far += apart > 1;
            check(l->once ? l->depth == 1 : l->depth == apart + 1, "skips: %s from %d to %d has %d places", l->name, l->from, l->to, l->depth);
        }
        check(far > 0, "skips: nothing is sent further than to a neighbour");
    }
    close_job(&j);
}

/* ---- many micro-batches ---- */

/* A value and a gradient over every border between the parts of a pipeline. */
static struct mpp_transfers borders(const struct mpp_schedule *s, struct mpp_arena *arena)
{
    struct mpp_transfers out = {.n = 0, .line = mpp_arena_array(arena, 2 * s->stages * s->chunks, struct mpp_transfer_line)};
    for (int part = 0; part + 1 < s->stages * s->chunks; part++) {
        struct mpp_transfer_line forward = {.name = "value", .from = part % s->stages, .from_chunk = part / s->stages, .to = (part + 1) % s->stages,
                                            .to_chunk = (part + 1) / s->stages, .phase = MPP_PHASE_FORWARD, .depth = 1};
        struct mpp_transfer_line backward = {.name = "gradient", .from = forward.to, .from_chunk = forward.to_chunk, .to = forward.from,
                                             .to_chunk = forward.from_chunk, .phase = MPP_PHASE_BACKWARD, .depth = 1};
        out.line[out.n++] = forward;
        out.line[out.n++] = backward;
    }
    return out;
}

/* Places of each chunk, counted over all of the stage's work. */
static void count_slots(const struct mpp_schedule *s, int stage, int64_t *out)
{
    int64_t *alive = calloc((size_t)s->chunks, sizeof *alive);
    memset(out, 0, (size_t)s->chunks * sizeof *out);
    for (int64_t k = 0; k < 2 * s->micro_batches * s->chunks; k++) {
        struct mpp_schedule_event e = mpp_schedule_work(s, stage, k);
        alive[e.chunk] += e.what == MPP_EVENT_FORWARD ? 1 : -1;
        out[e.chunk] = alive[e.chunk] > out[e.chunk] ? alive[e.chunk] : out[e.chunk];
    }
    free(alive);
}

/* All of S, piece by piece, with the depths of T; and each chunk has the places that mpp_pipeline_slots says. */
static void run_all_of(const struct mpp_schedule *s, const struct mpp_transfers *t, struct mpp_arena *arena, struct mpp_diag *diag)
{
    struct mpp_pipeline_list *list = mpp_arena_array(arena, s->stages, struct mpp_pipeline_list);
    for (int i = 0; i < s->stages; i++) {
        int64_t n = 2 * s->micro_batches * s->chunks, *slots = mpp_arena_array(arena, s->chunks, int64_t), *said = mpp_arena_array(arena, s->chunks, int64_t);
        struct mpp_schedule_event *work = mpp_arena_array(arena, n, struct mpp_schedule_event);
        for (int64_t k = 0; k < n; k++)
            work[k] = mpp_schedule_work(s, i, k);
        count_slots(s, i, slots);
        mpp_pipeline_slots(s, i, said);
        check(memcmp(slots, said, (size_t)s->chunks * sizeof *slots) == 0, "%d stages of %d chunks, %lld micro-batches: places of stage %d", s->stages, s->chunks,
              (long long)s->micro_batches, i);
        list[i] = (struct mpp_pipeline_list){n, work, s->chunks, slots};
    }
    check(mpp_pipeline_run(arena, diag, s->stages, list, t) == MPP_OK, "%d stages of %d chunks, %lld micro-batches: all of them", s->stages, s->chunks,
          (long long)s->micro_batches);
}

/* What is proven of a few rounds holds for all: the depths are those of more rounds, and with them the whole schedule comes to its end. So
 * billions of micro-batches take no more memory than a few. */
static void test_many(void)
{
    static const int64_t rounds[] = {9, 10, 31, INT64_C(1000000007)};
    for (int k = 0; k < 3 * 5 * 3; k++) {
        struct mpp_schedule s = {(enum mpp_schedule_kind)(k % 3), 1 + k / 9, 1 + k / 3 % 3, 1};
        struct mpp_arena *arena = mpp_arena_new();
        struct mpp_diag *diag = mpp_diag_new(stderr);
        if (s.kind != MPP_SCHEDULE_INTERLEAVED)
            s.chunks = 1;
        s.micro_batches = 8 * s.stages; /* these are looked at one by one */
        struct mpp_transfers few = borders(&s, arena);
        struct mpp_plan plan = {.n_stages = s.stages, .pipeline = s, .micro_batches = s.micro_batches};
        bool ok = mpp_pipeline_verify(arena, diag, &plan, &few) == MPP_OK;
        run_all_of(&s, &few, arena, diag);
        for (int i = 0; i < 4; i++) {
            s.micro_batches = rounds[i] * s.stages + (s.kind == MPP_SCHEDULE_INTERLEAVED ? 0 : i % s.stages);
            struct mpp_transfers many = borders(&s, arena);
            plan = (struct mpp_plan){.n_stages = s.stages, .pipeline = s, .micro_batches = s.micro_batches};
            ok = ok && mpp_pipeline_verify(arena, diag, &plan, &many) == MPP_OK;
            for (int l = 0; l < few.n && ok; l++)
                ok = few.line[l].depth == many.line[l].depth;
            check(ok, "%s, %d stages of %d chunks, %lld micro-batches: depths of a few", mpp_schedule_name(s.kind), s.stages, s.chunks, (long long)s.micro_batches);
            if (rounds[i] < 100)
                run_all_of(&s, &many, arena, diag);
        }
        mpp_diag_free(diag);
        mpp_arena_free(arena);
    }
}

int main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : N_RANDOM;
    uint64_t state = 2026;
    for (int i = 0; i < n; i++)
        run_random(&state);
    run_bare(&state);
    check(n < N_RANDOM || packed_bytes > 0, "no plan of all packs anything");
    test_refused("tests/data/models/tied.xml", 2, "two chunks of a stage have the parameter a.weight");
    test_refused("tests/data/models/skips.xml", 4, "a chunk of a stage reads ");
    test_verifier();
    test_depths(&state);
    test_many();
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0 || passed == 0;
}
