/* test_lower.c - the rolled program in its arena does what the flat program does.
 *
 * Both are executed symbolically (machine.h). Two steps must leave the same values in every resting buffer, the loss and
 * the gradient norm. The most bytes that the flat program has alive at once are the bound that the report names, and the
 * arena is hardly larger: for chosen plans and for random ones. Several stages are in test_transfers.c. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "costmodel/costmodel.h"
#include "ir/graph.h"
#include "ir/op.h"
#include "ir/pass.h"
#include "planner/plan.h"
#include "tests/machine.h"
#include "tests/stages_testing.h"

static int passed, failed;

static void check(bool ok, const char *what, const char *detail)
{
    if (ok)
        passed++;
    else {
        failed++;
        printf("FAILED: %s: %s\n", what, detail);
    }
}

static const struct mpp_transfers none;

/* ---- one model under one plan ---- */

static bool same(const struct value *a, const struct value *b)
{
    return a && b ? a->hash == b->hash : a == b;
}

static void simulate(const struct mpp_graph *g, const struct mpp_plan *plan, struct mpp_arena *arena, struct mpp_lprog *prog,
                     const char *what)
{
    struct mpp_flat_program flat;
    uint64_t state = 1;
    int different = 0;
    mpp_lower_flat(arena, g, plan, 0, &none, prog->overlap, &flat);
    struct machine *f = machine_new(arena, plan, &none, &flat, NULL, false);
    struct machine *r = machine_new(arena, plan, &none, NULL, &prog, false);
    machine_fill(f);
    machine_fill(r);
    for (int step = 0; step < 2; step++)
        check(machine_step(f, &state) && machine_step(r, &state), what, "a step does not end");
    for (mpp_id t = 0; t < g->n_tensors; t++)
        if (g->tensors[t].role == MPP_ROLE_PARAM || g->tensors[t].role == MPP_ROLE_STATE)
            different += !machine_rest(f, 0, t) || !same(machine_rest(f, 0, t), machine_rest(r, 0, t));
    check(different == 0, what, "resting values differ");
    check(machine_loss(f, 0) && same(machine_loss(f, 0), machine_loss(r, 0)), what, "the loss differs");
    check(machine_norm(f, 0) && same(machine_norm(f, 0), machine_norm(r, 0)), what, "the gradient norm differs");
    check(!machine_stale(f), what, "the flat program reads what nothing wrote");
    check(!machine_stale(r), what, "the rolled program reads a place whose value was overwritten");
    machine_free(f);
    machine_free(r);
}

/* ---- the bound ---- */

struct alive {
    int first, last;
};

static void use_at(struct alive *a, int first, int last)
{
    a->first = first < a->first ? first : a->first;
    a->last = last > a->last ? last : a->last;
}

/* The most bytes of the flat program's buffers that are alive at once, without workspace. */
static int64_t most_alive(struct mpp_arena *arena, const struct mpp_flat_program *p)
{
    int n = p->n_flats, begin[5];
    struct alive *alive = mpp_arena_array(arena, p->n_buffers, struct alive);
    int64_t *change = mpp_arena_array(arena, n + 1, int64_t), live = 0, most = 0;
    for (int phase = 0, i = 0; phase < 5; phase++) {
        for (; i < n && (int)p->flats[i].phase < phase; i++)
            ;
        begin[phase] = i;
    }
    for (int b = 0; b < p->n_buffers; b++)
        alive[b] = (struct alive){n, -1};
    for (int i = 0; i < n; i++)
        for (int k = 0; k < p->flats[i].instr.n_in + p->flats[i].instr.n_out; k++) {
            const struct mpp_instr *in = &p->flats[i].instr;
            bool output = k >= in->n_in;
            int b = output ? in->out[k - in->n_in].buffer : in->in[k].buffer;
            if (b >= 0)
                use_at(&alive[mpp_buffer_root(p->buffers, b)], i, i);
            if (b >= 0 && in->begins) /* until the update waits */
                use_at(&alive[mpp_buffer_root(p->buffers, b)], i, begin[MPP_PHASE_UPDATE]);
            if (b >= 0 && output && in->once)
                use_at(&alive[mpp_buffer_root(p->buffers, b)], begin[MPP_PHASE_FORWARD], begin[MPP_PHASE_UPDATE] - 1);
        }
    for (int b = 0; b < p->n_buffers; b++) {
        const struct mpp_buffer *buf = &p->buffers[b];
        bool resting = buf->kind == MPP_BUF_PARAM || buf->kind == MPP_BUF_STATE || buf->kind == MPP_BUF_INPUT;
        if (buf->alias >= 0 || (!resting && alive[b].last < 0))
            continue;
        if (resting)
            use_at(&alive[b], 0, n - 1);
        bool early = alive[b].first < begin[MPP_PHASE_FORWARD] && alive[b].last >= begin[MPP_PHASE_FORWARD];
        if (p->micro_batches > 1 && (buf->kind == MPP_BUF_ACCUM || early)) /* later micro-batches need it as well */
            use_at(&alive[b], buf->kind == MPP_BUF_ACCUM ? 0 : alive[b].first, begin[MPP_PHASE_UPDATE] - 1);
        change[alive[b].first] += buf->bytes;
        change[alive[b].last + 1] -= buf->bytes;
    }
    for (int i = 0; i < n; i++) {
        live += change[i];
        most = live > most ? live : most;
    }
    return most;
}

/* What a sum begins with is its alone: nothing else reads it later, and nothing touches its memory before the update waits. */
static void check_begun(const struct mpp_flat_program *p, const char *what)
{
    bool alone = true, untouched = true;
    for (int i = 0; i < p->n_flats; i++) {
        const struct mpp_instr *begun = &p->flats[i].instr;
        for (int j = i + 1; begun->begins && j < p->n_flats; j++) {
            const struct mpp_instr *in = &p->flats[j].instr;
            for (int k = 0; k < in->n_in + in->n_out; k++) {
                int b = k < in->n_in ? in->in[k].buffer : in->out[k - in->n_in].buffer;
                int root = b < 0 ? -1 : mpp_buffer_root(p->buffers, b);
                alone = alone && b != begun->in[0].buffer;
                untouched = untouched && (p->flats[j].phase == MPP_PHASE_UPDATE || root < 0 ||
                                          (root != mpp_buffer_root(p->buffers, begun->in[0].buffer) &&
                                           root != mpp_buffer_root(p->buffers, begun->out[0].buffer)));
            }
        }
    }
    check(alone, what, "another reads the operand of a sum that has begun");
    check(untouched, what, "the memory of a sum that has begun is touched before the update");
}

static void check_memory(struct mpp_arena *arena, const struct mpp_graph *g, const struct mpp_plan *plan,
                         const struct mpp_lprog *prog, const char *what)
{
    const struct mpp_memory *m = &prog->memory;
    struct mpp_flat_program flat;
    mpp_lower_flat(arena, g, plan, 0, &none, prog->overlap, &flat);
    int64_t most = most_alive(arena, &flat);
    check_begun(&flat, what);
    check(m->parameters + m->gradients + m->optimizer + m->activations + m->inputs + m->workspace + m->gaps
          == m->arena_bytes, what, "the account of memory does not sum to the arena");
    check((double)m->arena_bytes <= 1.1 * (double)m->live_bound_bytes, what, "the arena exceeds 1.1 x the live bytes");
    bool most_is_bound = prog->prefetch > 0 || m->live_bound_bytes <= most + prog->workspace_bytes; /* places of gathers live longer */
    check(most <= m->live_bound_bytes && most_is_bound, what,
          mpp_arena_printf(arena, "at most %" PRId64 " bytes are alive at once, the bound says %" PRId64, most, m->live_bound_bytes));
}

/* What begins early takes a sixteenth of the arena more, sums and gathers each; nothing where there is no room. */
static void check_early(struct mpp_arena *arena, const struct mpp_graph *g, const struct mpp_plan *plan,
                        const struct mpp_lprog *prog, const char *what)
{
    struct mpp_lprog *late = NULL;
    bool ok = mpp_lower(arena, g, plan, 0, &none, 0, &late) == MPP_OK;
    check(ok && late->prefetch == 0, what, "gathers begin early where there is no room");
    check(ok && (double)prog->arena_bytes <= 17.0 / 16 * 17 / 16 * (double)late->arena_bytes, what, "what begins early takes too much memory");
    if (ok && prog->prefetch > 0)
        check_memory(arena, g, plan, late, what);
}

/* As a plan may be edited: the norm of all gradients reads them whole, whatever the optimiser reads. */
static void make_norm_whole(const struct mpp_graph *g, struct mpp_plan *plan)
{
    for (int i = 0; i < g->n_groups; i++)
        if (g->ops[g->groups[i].ops[0]].kind == MPP_OP_SQUARE_SUM)
            plan->stages[0].split[i] = (struct mpp_split){{MPP_WHOLE, MPP_WHOLE, MPP_WHOLE}};
}

struct example {
    const char *model, *preset, *defines[8], *fix, *cluster;
    int devices;
    bool rolls;                   /* its layers become loops */
    bool may_fail;                /* its pins may contradict the model */
};

/* Returns how early gathers begin. */
static int run_example(const struct example *e, bool whole_norm)
{
    struct mpp_arena *arena = mpp_arena_new();
    FILE *quiet = e->may_fail ? fopen("/dev/null", "w") : NULL;
    struct mpp_diag *diag = mpp_diag_new(quiet ? quiet : stdout);
    struct mpp_model_options options = {.preset = e->preset, .defines = e->defines};
    while (options.n_defines < 8 && e->defines[options.n_defines])
        options.n_defines++;
    const char *what = mpp_arena_printf(arena, "%s %s, %d devices, %s", e->model, e->preset ? e->preset : "", e->devices, e->fix);
    struct mpp_model *model;
    struct mpp_graph *g = NULL;
    struct mpp_cluster *cluster = NULL;
    struct mpp_plan *plan = NULL;
    struct mpp_lprog *prog = NULL;
    struct mpp_plan_options plan_options = {.pins = mpp_pins_none()};
    struct mpp_pass_ctx ctx = {.arena = arena, .diag = diag};
    bool ok = mpp_model_read(arena, diag, e->model, &options, &model) == MPP_OK
              && mpp_graph_build(arena, diag, model, &g) == MPP_OK && mpp_passes_run(&ctx, g) == MPP_OK
              && mpp_cluster_load(arena, diag, e->cluster, e->devices, &cluster) == MPP_OK
              && (!*e->fix || mpp_pins_parse(arena, diag, e->fix, &plan_options.pins) == MPP_OK)
              && mpp_plan_search(arena, diag, g, cluster, &plan_options, &plan) == MPP_OK;
    if (ok && whole_norm)
        make_norm_whole(g, plan);
    ok = ok && mpp_plan_derive(arena, diag, g, cluster, plan) == MPP_OK && mpp_lower(arena, g, plan, 0, &none, INT64_MAX, &prog) == MPP_OK;
    check(ok || e->may_fail, what, "planning failed");
    if (ok) {
        simulate(g, plan, arena, prog, what);
        int longest = 0;
        for (int c = 0; c < prog->n_classes; c++)
            longest = prog->classes[c].count > longest ? prog->classes[c].count : longest;
        check(!e->rolls || longest > 1, what, "no layers were rolled into a loop");
        check_memory(arena, g, plan, prog, what);
        check_early(arena, g, plan, prog, what);
    }
    int prefetch = ok ? prog->prefetch : 0;
    mpp_diag_free(diag);
    mpp_arena_free(arena);
    if (quiet)
        fclose(quiet);
    return prefetch;
}

/* ---- several stages ---- */

static struct mpp_plan *staged(struct mpp_arena *arena, struct mpp_diag *diag, const char *model, const char *define, int stages,
                               enum mpp_recompute recompute)
{
    struct mpp_model_options options = {.preset = "tiny", .defines = &define, .n_defines = 1};
    struct mpp_pass_ctx ctx = {.arena = arena, .diag = diag, .before_fuse = true};
    struct mpp_model *m;
    struct mpp_graph *g;
    struct mpp_cluster *cluster;
    bool ok = mpp_model_read(arena, diag, model, &options, &m) == MPP_OK && mpp_graph_build(arena, diag, m, &g) == MPP_OK
              && mpp_passes_run(&ctx, g) == MPP_OK && mpp_cluster_load(arena, diag, "host", stages, &cluster) == MPP_OK;
    return ok ? plan_stages(arena, diag, g, cluster, stages, recompute, 4) : NULL;
}

/* What one more micro-batch in flight takes in stage 0 of two: BYTES for each layer's activations that backward reads, the
 * inputs' INPUT_BYTES. */
static void check_in_flight(const char *model, const char *define, enum mpp_recompute recompute, int64_t bytes, int64_t input_bytes)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(stdout);
    struct mpp_plan *plan = staged(arena, diag, model, define, 2, recompute);
    struct mpp_transfers *transfers = NULL;
    struct mpp_memory m[2];
    if (plan && mpp_transfers_plan(arena, diag, plan, &transfers) != MPP_OK)
        plan = NULL;
    for (int k = 0; plan && k < 2; k++) {
        struct mpp_lprog *prog;
        plan->stages[0].in_flight = 3 + k;
        if (mpp_lower(arena, plan->stages[0].graph, plan, 0, transfers, INT64_MAX, &prog) != MPP_OK)
            plan = NULL;
        else
            m[k] = prog->memory;
    }
    check(plan != NULL, model, "no plan of two stages");
    if (plan) {
        check(m[1].live_bound_bytes - m[0].live_bound_bytes == bytes + input_bytes, model,
              mpp_arena_printf(arena, "a micro-batch in flight takes %lld bytes more", (long long)(m[1].live_bound_bytes - m[0].live_bound_bytes)));
        check(m[1].activations - m[0].activations == bytes && m[1].inputs - m[0].inputs == input_bytes
              && m[1].gradients == m[0].gradients && m[1].parameters == m[0].parameters, model, "activations and inputs alone grow");
        check((double)m[1].arena_bytes < 1.1 * (double)m[1].live_bound_bytes, model, "the arena exceeds 1.1 x the live bytes");
    }
    mpp_diag_free(diag);
    mpp_arena_free(arena);
}

static void test_stages(void)
{
    /* 4 samples: x [4, 8], and what Relu reads [4, 32]. */
    check_in_flight("models/mlp.xml", "batch=16", MPP_RECOMPUTE_NONE, 4 * 32 * 4, 4 * 8 * 4);
    /* 2 samples of 64 tokens, hidden 128, 4 heads. Two layers: ln_1, q, k, v, attention, res1, ln_2; before and after GELU
     * (512 wide); mean and rstd of two norms; the attention's lse. Before them the embedding, between them res2. */
    int64_t token = 2 * 64 * 4, hidden = 128 * token, layer = 7 * hidden + 2 * 4 * hidden + 4 * token + 4 * token;
    check_in_flight("models/gpt.xml", "layers=4", MPP_RECOMPUTE_NONE, 2 * layer + 2 * hidden, token);
    check_in_flight("models/gpt.xml", "layers=4", MPP_RECOMPUTE_FULL, 2 * hidden, token);
}

/* ---- random plans ---- */

static int pick(uint64_t *state, int n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int)((*state >> 33) % (uint64_t)n);
}

static void run_random(uint64_t *state)
{
    static const struct {
        const char *pins;
        int devices;
    } mesh[] = {{"dp=2", 2}, {"tp=3", 3}, {"mesh=4", 4}, {"mesh=2x2", 4}, {"dp=2,tp=2", 4}, {"mesh=5", 5}, {"mesh=2x3", 6},
                {"mesh=7", 7}, {"mesh=2x2x2", 8}, {"dp=8", 8}};
    static const char *const more[] = {"", ",zero=1", ",zero=2", ",zero=3", ",sequence_parallel=true", ",vocab_parallel=true",
                                       ",shard:*weight=hidden/a", ",shard:h.1.*=batch/a", ",shard:*.grad*=batch/a"};
    static const char *const counts[] = {"", "", ",micro_batches=2", ",micro_batches=4"};
    char fix[128], layers[16], heads[16], hidden[16], seq[16];
    int m = pick(state, 10), bert = pick(state, 3) == 0;
    snprintf(fix, sizeof fix, "%s%s%s", mesh[m].pins, more[pick(state, 9)], counts[pick(state, 4)]);
    snprintf(layers, sizeof layers, "layers=%d", pick(state, 6));
    snprintf(heads, sizeof heads, "heads=%d", 1 + pick(state, 4));
    snprintf(hidden, sizeof hidden, "hidden=%d", 12 * (1 + pick(state, 4)));
    snprintf(seq, sizeof seq, "seq=%d", 5 + pick(state, 20));
    struct example e = {bert ? "models/bert.xml" : "models/gpt.xml", "tiny",
                        {"batch=8", layers, heads, hidden, seq, "vocab=61", pick(state, 2) ? "pdrop=0.1" : "pdrop=0"},
                        fix, "host", mesh[m].devices, false, true};
    run_example(&e, false);
}

int main(void)
{
    static const struct example examples[] = {
        {"models/gpt.xml", "tiny", {NULL}, "", "host", 1, true, false},
        {"models/gpt.xml", "tiny", {NULL}, "micro_batches=2", "host", 1, true, false},
        {"models/gpt.xml", "tiny", {"pdrop=0.1"}, "", "host", 2, true, false},
        {"models/gpt.xml", "tiny", {"layers=2"}, "dp=4,zero=1", "host", 4, true, false},
        {"models/gpt.xml", "tiny", {NULL}, "dp=2,tp=2,zero=2,micro_batches=2", "host", 4, true, false},
        {"models/gpt.xml", "tiny", {NULL}, "dp=4,zero=3,micro_batches=2", "host", 4, true, false},
        {"models/gpt.xml", "tiny", {NULL}, "tp=4,sequence_parallel=true", "host", 4, true, false},
        {"models/gpt.xml", "tiny", {"layers=3"}, "mesh=2x2x2,zero=1", "host", 8, true, false},
        {"models/gpt.xml", "tiny", {"heads=4", "layers=1"}, "tp=3", "host", 3, false, false},
        {"models/bert.xml", "tiny", {NULL}, "", "host", 4, true, false},
        {"models/bert.xml", "tiny", {"padding_mask=true", "layers=3"}, "micro_batches=2", "host", 2, true, false},
        {"models/mlp.xml", NULL, {NULL}, "", "host", 2, false, false},
        {"models/gpt.xml", "tiny", {"layers=0"}, "", "host", 2, false, false},
        {"models/gpt.xml", "tiny", {"layers=1"}, "dp=2,micro_batches=4", "host", 2, false, false},
        {"models/gpt.xml", "tiny", {"layers=5"}, "mesh=2,shard:h.2.*=batch/a,shard:h.3.*=heads/a", "host", 2, false, false},
        {"models/bert.xml", "large", {"batch=8"}, "", "dgx-a100", 8, true, false},
        {"models/gpt.xml", "gpt2", {NULL}, "", "dgx-a100", 8, true, false},
    };
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++)
        run_example(&examples[i], false);
    static const struct example whole = {"models/gpt.xml", "tiny", {"batch=4", "layers=6"}, "dp=4,zero=3", "host", 4, true, false};
    check(run_example(&whole, false) == 2, "zero=3", "gathers do not begin in the layer before");
    static const struct example edited[] = {
        {"models/gpt.xml", "tiny", {NULL}, "dp=4,zero=0", "host", 4, true, false},
        {"models/gpt.xml", "tiny", {NULL}, "dp=4,zero=1", "host", 4, true, false},
        {"models/gpt.xml", "tiny", {NULL}, "dp=2,tp=2,zero=1,micro_batches=2", "host", 4, true, false},
    };
    for (size_t i = 0; i < sizeof edited / sizeof edited[0]; i++)
        run_example(&edited[i], true);
    test_stages();
    uint64_t state = 2024;
    for (int i = 0; i < 100; i++)
        run_random(&state);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
