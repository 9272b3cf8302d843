/* test_planner.c - paths between shardings against a simulation of all ranks; the integer program against what follows
 * from a plan; what plans are. */
#include <math.h>

#include "ir/op.h"
#include "planner/reshard.h"
#include "planner/stage.h"
#include "tests/planner_testing.h"

/* ---- a simulation of data movement: every rank's padded local array ---- */

enum { MAX_RANKS = 12, MAX_ELEMENTS = 1024 };

struct world {
    struct mpp_mesh mesh;
    const struct mpp_gtensor *t;
    int n_ranks;
    struct mpp_sharding s;
    int64_t dims[MAX_RANKS][MPP_GRAPH_MAX_DIMS]; /* padded local extents: alike on all ranks */
    double x[MAX_RANKS][MAX_ELEMENTS];
};

static void coords_of(const struct mpp_mesh *m, int rank, int *c)
{
    for (int a = MPP_MAX_AXES - 1; a >= 0; a--) {
        int size = a < m->n_axes ? m->size[a] : 1;
        c[a] = rank % size;
        rank /= size;
    }
}

static bool same_group(const struct mpp_mesh *m, int a, int b, unsigned mask)
{
    int x[MPP_MAX_AXES], y[MPP_MAX_AXES];
    coords_of(m, a, x);
    coords_of(m, b, y);
    for (int i = 0; i < m->n_axes; i++)
        if (!(mask >> i & 1) && x[i] != y[i])
            return false;
    return true;
}

/* Place of RANK in its group, row-major over the axes of MASK. */
static int place_of(const struct mpp_mesh *m, int rank, unsigned mask)
{
    int c[MPP_MAX_AXES], at = 0;
    coords_of(m, rank, c);
    for (int i = 0; i < m->n_axes; i++)
        if (mask >> i & 1)
            at = at * m->size[i] + c[i];
    return at;
}

static int64_t count_of(const int64_t *dims, int n)
{
    int64_t count = 1;
    for (int d = 0; d < n; d++)
        count *= dims[d];
    return count;
}

static void unravel(int64_t i, const int64_t *dims, int n, int64_t *out)
{
    for (int d = n - 1; d >= 0; d--) {
        out[d] = i % dims[d];
        i /= dims[d];
    }
}

static int64_t ravel(const int64_t *at, const int64_t *dims, int n)
{
    int64_t i = 0;
    for (int d = 0; d < n; d++)
        i = i * dims[d] + at[d];
    return i;
}

static double truth(int64_t global)
{
    return sin((double)global + 1);
}

/* What rank R should hold of element AT under S: 1 whole value, a term of it where partial. Terms differ per rank and
 * add up. */
static double term_of(const struct world *w, struct mpp_sharding s, int rank, double value)
{
    int c[MPP_MAX_AXES];
    double weight = 1;
    coords_of(&w->mesh, rank, c);
    for (int a = 0; a < w->mesh.n_axes; a++)
        if (s.axis[a] == MPP_PARTIAL)
            weight *= c[a] == 0 ? 1 - 0.25 * (w->mesh.size[a] - 1) : 0.25;
    return weight * value;
}

/* Visit the valid elements of rank R under S: FN gets the local and the global index. */
typedef void visit_fn(struct world *w, int rank, int64_t local, int64_t global, void *ctx);

static void visit(struct world *w, struct mpp_sharding s, int rank, visit_fn *fn, void *ctx)
{
    const struct mpp_gtensor *t = w->t;
    int c[MPP_MAX_AXES], n = t->n_dims;
    int64_t padded[MPP_GRAPH_MAX_DIMS], valid[MPP_GRAPH_MAX_DIMS], offset[MPP_GRAPH_MAX_DIMS], size[MPP_GRAPH_MAX_DIMS];
    coords_of(&w->mesh, rank, c);
    for (int d = 0; d < n; d++) {
        unsigned mask = mpp_sharding_mask(s, d);
        size[d] = t->dims[d].size;
        padded[d] = mpp_block_padded(&w->mesh, size[d], mask);
        valid[d] = mpp_block_valid(&w->mesh, size[d], mask, c, &offset[d]);
    }
    for (int64_t i = 0; i < count_of(padded, n); i++) {
        int64_t at[MPP_GRAPH_MAX_DIMS];
        bool in = true;
        unravel(i, padded, n, at);
        for (int d = 0; d < n; d++) {
            in = in && at[d] < valid[d];
            at[d] += offset[d];
        }
        if (in)
            fn(w, rank, i, ravel(at, size, n), ctx);
    }
}

static void put(struct world *w, int rank, int64_t local, int64_t global, void *ctx)
{
    (void)ctx;
    w->x[rank][local] = term_of(w, w->s, rank, truth(global));
}

static void world_begin(struct world *w, const struct mpp_mesh *mesh, const struct mpp_gtensor *t, struct mpp_sharding s)
{
    w->mesh = *mesh;
    w->t = t;
    w->s = s;
    w->n_ranks = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        w->n_ranks *= mesh->size[a];
    for (int r = 0; r < w->n_ranks; r++) {
        for (int d = 0; d < t->n_dims; d++)
            w->dims[r][d] = mpp_block_padded(mesh, t->dims[d].size, mpp_sharding_mask(s, d));
        for (int i = 0; i < MAX_ELEMENTS; i++)
            w->x[r][i] = NAN;     /* padding must never reach a valid element */
        visit(w, s, r, put, NULL);
    }
}

/* The block of DIM that rank R keeps when the axes of MASK cut it. */
static void cut(struct world *w, const struct world *from, int rank, unsigned mask, int dim)
{
    int n = w->t->n_dims;
    int64_t dims[MPP_GRAPH_MAX_DIMS], at[MPP_GRAPH_MAX_DIMS] = {0}, extent = w->dims[rank][dim], offset = 0, block = extent;
    int c[MPP_MAX_AXES];
    coords_of(&w->mesh, rank, c);
    for (int a = 0; a < w->mesh.n_axes; a++)
        if (mask >> a & 1) {
            block = (block + w->mesh.size[a] - 1) / w->mesh.size[a];
            offset += c[a] * block;
        }
    memcpy(dims, w->dims[rank], sizeof dims);
    dims[dim] = block;
    for (int64_t i = 0; i < count_of(dims, n); i++) {
        unravel(i, dims, n, at);
        at[dim] += offset;
        w->x[rank][i] = at[dim] < extent ? from->x[rank][ravel(at, from->dims[rank], n)] : NAN;
    }
    w->dims[rank][dim] = block;
}

/* DIM put together from the blocks of the group's ranks; EXTENT is what it had before the axes of MASK cut it. */
static void gather(struct world *w, const struct world *from, int rank, unsigned mask, int dim, int64_t extent)
{
    int n = w->t->n_dims;
    int64_t dims[MPP_GRAPH_MAX_DIMS], at[MPP_GRAPH_MAX_DIMS] = {0};
    memcpy(dims, from->dims[rank], sizeof dims);
    dims[dim] = extent;
    for (int other = 0; other < w->n_ranks; other++) {
        if (!same_group(&w->mesh, rank, other, mask))
            continue;
        int c[MPP_MAX_AXES];
        int64_t offset = 0, block = extent;
        coords_of(&w->mesh, other, c);
        for (int a = 0; a < w->mesh.n_axes; a++)
            if (mask >> a & 1) {
                block = (block + w->mesh.size[a] - 1) / w->mesh.size[a];
                offset += c[a] * block;
            }
        for (int64_t i = 0; i < count_of(from->dims[other], n); i++) {
            unravel(i, from->dims[other], n, at);
            at[dim] += offset;
            /* nested blocks may reach past what holds them: those elements are padding */
            if (at[dim] < extent && at[dim] < offset + block)
                w->x[rank][ravel(at, dims, n)] = from->x[other][i];
        }
    }
    memcpy(w->dims[rank], dims, sizeof dims);
}

static void reduce(struct world *w, const struct world *from, int rank, unsigned mask)
{
    for (int64_t i = 0; i < count_of(w->dims[rank], w->t->n_dims); i++) {
        double sum = 0;
        for (int other = 0; other < w->n_ranks; other++)
            if (same_group(&w->mesh, rank, other, mask))
                sum += from->x[other][i];
        w->x[rank][i] = sum;
    }
}

static void take_step(struct world *w, const struct mpp_reshard_step *step)
{
    static struct world from, mid;
    from = *w;
    for (int r = 0; r < w->n_ranks; r++) {
        int64_t extent = step->dim < 0 ? 0
                         : mpp_block_padded(&w->mesh, w->t->dims[step->dim].size,
                                            mpp_sharding_mask(step->from, step->dim) & ~step->mask);
        switch (step->kind) {
        case MPP_STEP_ALL_REDUCE:
            reduce(w, &from, r, step->mask);
            break;
        case MPP_STEP_REDUCE_SCATTER:
            reduce(w, &from, r, step->mask);
            mid = *w;
            cut(w, &mid, r, step->mask, step->dim);
            break;
        case MPP_STEP_ALL_GATHER:
            gather(w, &from, r, step->mask, step->dim, extent);
            break;
        case MPP_STEP_ALL_TO_ALL:
            gather(w, &from, r, step->mask, step->dim, extent);
            mid = *w;
            cut(w, &mid, r, step->mask, step->to_dim);
            break;
        case MPP_STEP_SLICE:
            cut(w, &from, r, step->mask, step->dim);
            break;
        case MPP_STEP_TO_PARTIAL:
            for (int64_t i = 0; i < MAX_ELEMENTS && place_of(&w->mesh, r, step->mask) != 0; i++)
                w->x[r][i] = 0;
            break;
        }
    }
    w->s = step->to;
}

struct sums {
    double got[MAX_ELEMENTS];
    int copies[MAX_ELEMENTS];
};

static void add_up(struct world *w, int rank, int64_t local, int64_t global, void *ctx)
{
    struct sums *s = ctx;
    s->got[global] += w->x[rank][local];
    s->copies[global]++;
}

/* Every value is there, on as many ranks as its sharding says, and partial terms add up. */
static bool world_right(struct world *w)
{
    static struct sums s;
    int64_t n = mpp_tensor_count(w->t);
    int replicas = 1, terms = 1;
    memset(&s, 0, sizeof s);
    for (int a = 0; a < w->mesh.n_axes; a++) {
        terms *= w->s.axis[a] == MPP_PARTIAL ? w->mesh.size[a] : 1;
        replicas *= w->s.axis[a] == MPP_WHOLE ? w->mesh.size[a] : 1;
    }
    for (int r = 0; r < w->n_ranks; r++)
        visit(w, w->s, r, add_up, &s);
    for (int64_t i = 0; i < n; i++)
        if (s.copies[i] != replicas * terms || !(fabs(s.got[i] - replicas * truth(i)) < 1e-9))
            return false;
    return true;
}

static bool may_be(const struct mpp_gtensor *t, const struct mpp_mesh *m, struct mpp_sharding s)
{
    for (int d = 0; d < t->n_dims; d++) {
        int64_t parts = 1;
        for (int a = 0; a < m->n_axes; a++)
            parts *= s.axis[a] == d ? m->size[a] : 1;
        if (parts > t->dims[d].size)
            return false;
    }
    return true;
}

static struct mpp_sharding state_sharding(const struct mpp_mesh *m, int n_dims, int state)
{
    struct mpp_sharding s = mpp_sharding_whole();
    for (int a = 0; a < m->n_axes; a++) {
        s.axis[a] = (int8_t)(state % (n_dims + 2) - 2);
        state /= n_dims + 2;
    }
    return s;
}

static void reshard_all(const struct mpp_cluster *cluster, const struct mpp_mesh *m, const struct mpp_gtensor *t)
{
    static struct world w;
    struct mpp_reshard_env env;
    int n = mpp_reshard_n_states(m, t->n_dims), wrong = 0, cost_wrong = 0, none = 0, tried = 0;
    int64_t *costs = malloc(sizeof *costs * (size_t)n);
    mpp_reshard_env_init(cluster, m, 0, &env);
    for (int i = 0; i < n; i++) {
        struct mpp_sharding from = state_sharding(m, t->n_dims, i);
        if (!may_be(t, m, from))
            continue;
        check(mpp_reshard_state(m, t->n_dims, from) == i, "state %d", i);
        mpp_reshard_costs_from(&env, t, from, costs);
        for (int j = 0; j < n; j++) {
            struct mpp_sharding to = state_sharding(m, t->n_dims, j);
            struct mpp_reshard_step steps[MPP_RESHARD_MAX_STEPS];
            int64_t cost, sum = 0;
            if (!may_be(t, m, to))
                continue;
            int k = mpp_reshard_path(cluster, m, t, from, to, steps, &cost);
            tried++;
            none += k < 0;
            world_begin(&w, m, t, from);
            for (int s = 0; s < k; s++) {
                cost_wrong += !mpp_sharding_equal(w.s, steps[s].from);
                take_step(&w, &steps[s]);
                sum += steps[s].cost_ps;
            }
            wrong += k >= 0 && (!mpp_sharding_equal(w.s, to) || !world_right(&w));
            cost_wrong += k >= 0 && (sum != cost || costs[j] != cost);
        }
    }
    free(costs);
    check(none == 0, "%d of %d pairs have no path", none, tried);
    check(wrong == 0, "%d of %d paths move data wrongly", wrong, tried);
    check(cost_wrong == 0, "%d of %d paths are priced wrongly", cost_wrong, tried);
}

static void test_reshard(void)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(stdout);
    struct mpp_cluster *cluster;
    must(mpp_cluster_load(arena, diag, "dgx-a100", 8, &cluster), "dgx-a100");
    const struct mpp_mesh meshes[] = {{1, {4, 1, 1}, {"a"}}, {1, {7, 1, 1}, {"a"}}, {2, {2, 2, 1}, {"a", "b"}},
                                      {2, {2, 3, 1}, {"a", "b"}}, {2, {3, 2, 1}, {"a", "b"}}, {3, {2, 2, 2}, {"a", "b", "c"}}};
    const struct { int n; int64_t d[3]; } shapes[] = {{1, {8}}, {1, {13}}, {2, {8, 8}}, {2, {7, 10}}, {3, {4, 5, 9}}};
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++)
        for (size_t j = 0; j < sizeof shapes / sizeof shapes[0]; j++) {
            struct mpp_gtensor t = {.name = "t", .dtype = MPP_F32, .n_dims = shapes[j].n};
            for (int d = 0; d < t.n_dims; d++)
                t.dims[d].size = shapes[j].d[d];
            reshard_all(cluster, &meshes[i], &t);
        }
    /* one step costs what its collective costs for the larger side: the whole of what is scattered or gathered */
    struct mpp_gtensor large = {.name = "large", .dtype = MPP_F32, .n_dims = 2, .dims = {{.size = 512}, {.size = 1024}}};
    const struct mpp_mesh *four = &meshes[0];
    struct mpp_sharding whole = mpp_sharding_whole(), rows = whole, cols = whole, sum = whole;
    rows.axis[0] = 0;
    cols.axis[0] = 1;
    sum.axis[0] = MPP_PARTIAL;
    const double all = 4.0 * 512 * 1024;
    const struct {
        const char *name;
        struct mpp_sharding from, to;
        int64_t cost;
    } one_step[] = {
        {"reduce-scatter", sum, rows, mpp_cost_reduce_scatter(cluster, four, 1, all)},
        {"all-gather", rows, whole, mpp_cost_all_gather(cluster, four, 1, all)},
        {"all-reduce", sum, whole, mpp_cost_all_reduce(cluster, four, 1, all)},
        {"all-to-all", rows, cols, mpp_cost_all_to_all(cluster, four, 1, all / four->size[0])},
    };
    for (size_t i = 0; i < sizeof one_step / sizeof *one_step; i++) {
        struct mpp_reshard_step found[MPP_RESHARD_MAX_STEPS];
        int64_t price;
        int n = mpp_reshard_path(cluster, four, &large, one_step[i].from, one_step[i].to, found, &price);
        check(n == 1 && strcmp(mpp_step_name(found[0].kind), one_step[i].name) == 0 && price == one_step[i].cost,
              "%s: %d steps, %lld ps, not %lld", one_step[i].name, n, (long long)price, (long long)one_step[i].cost);
    }
    /* integers are never partial sums */
    struct mpp_gtensor ids = {.name = "ids", .dtype = MPP_I32, .n_dims = 1, .dims = {{.size = 8}}};
    struct mpp_sharding partial = mpp_sharding_whole();
    struct mpp_reshard_step steps[MPP_RESHARD_MAX_STEPS];
    int64_t cost;
    partial.axis[0] = MPP_PARTIAL;
    check(mpp_reshard_path(cluster, &meshes[0], &ids, mpp_sharding_whole(), partial, steps, &cost) == -1,
          "integers become partial");
    mpp_diag_free(diag);
    mpp_arena_free(arena);
}

/* ---- the integer program says what the plan costs ---- */

static unsigned long long seed = 1;

static unsigned random_below(unsigned n)
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)(seed >> 33) % n;
}

/* Random choices of a problem: its objective equals what mpp_plan_derive adds up from copies and groups. */
static void random_choices(struct setup *s, const struct mpp_mesh *mesh, const char *fix, int64_t micro_batches, int tries)
{
    struct mpp_pins pins = mpp_pins_none();
    struct mpp_candidate c = {.mesh = *mesh, .data_axis = -1, .model_axis = -1};
    struct mpp_pin_rules *rules;
    struct mpp_stage_problem *p;
    const char *reason = NULL;
    int same = 0, differ = 0, forbidden = 0;
    must(mpp_pins_parse(s->arena, s->diag, fix, &pins), fix);
    mpp_graph_set_batch(s->g, s->g->global_batch / micro_batches);
    check(mpp_pins_resolve(s->arena, s->g, &c, &pins, &rules, &reason), "pins: %s", reason);
    if (!mpp_stage_problem_build(s->arena, s->cluster, rules, MPP_STAGE_ALONE, INT64_MAX, &p, &reason)) {
        check(false, "no problem: %s", reason);
        return;
    }
    int32_t *choice = mpp_arena_array(s->arena, p->solver.n_nodes, int32_t);
    struct mpp_stage stage = {.n_devices = s->cluster->n_devices, .mesh = *mesh};
    stage.split = mpp_arena_array(s->arena, s->g->n_groups, struct mpp_split);
    stage.resting = mpp_arena_array(s->arena, s->g->n_tensors, struct mpp_sharding);
    stage.kept = mpp_arena_array(s->arena, s->g->n_tensors, bool);
    struct mpp_plan plan = {.version = "1", .batch = s->g->global_batch, .micro_batches = micro_batches, .n_stages = 1,
                            .stages = &stage, .pins = ""};
    for (int i = 0; i < tries; i++) {
        for (int32_t k = 0; k < p->solver.n_nodes; k++)
            choice[k] = (int32_t)random_below((unsigned)p->solver.nodes[k].n_choices);
        int64_t want = mpp_solver_evaluate(&p->solver, choice, NULL, NULL);
        /* kept parameters have one kept form in the program: choose unkept ones where that is in the way */
        for (int32_t k = 0; want == MPP_SOLVER_FORBIDDEN && k < p->solver.n_nodes; k++) {
            const struct mpp_stage_node *node = &p->node[k];
            while (node->kind != MPP_NODE_GROUPS && choice[k] > 0
                   && !mpp_sharding_equal(node->rest[choice[k]], node->gather[choice[k]]))
                choice[k]--;
            want = mpp_solver_evaluate(&p->solver, choice, NULL, NULL);
        }
        if (want == MPP_SOLVER_FORBIDDEN) {
            forbidden++;
            continue;
        }
        /* a kept form that nobody reads is paid for in the program and left out of the plan */
        mpp_stage_decide(p, choice, &stage);
        must(mpp_plan_derive(s->arena, s->diag, s->g, s->cluster, &plan), "derive");
        int64_t unread = 0;
        for (int32_t k = 0; k < p->solver.n_nodes; k++) {
            const struct mpp_stage_node *node = &p->node[k];
            if (node->kind == MPP_NODE_GROUPS || mpp_sharding_equal(node->rest[choice[k]], node->gather[choice[k]]))
                continue;
            bool read = false;
            for (int q = 0; q < stage.n_copies; q++)
                read = read || (stage.copies[q].tensor == node->tensor && stage.copies[q].once
                                && stage.copies[q].phase == MPP_PHASE_FORWARD);
            unread += read ? 0 : p->solver.nodes[k].cost[choice[k]];
        }
        *(plan.objective_ps == want - unread ? &same : &differ) += 1;
    }
    check(differ == 0 && same > tries / 2, "mesh %dx%d, %s, %lld micro-batches: %d choices cost the same, %d do not, %d forbidden",
          mesh->size[0], mesh->size[1], fix, (long long)micro_batches, same, differ, forbidden);
}

static void test_objective(void)
{
    const struct mpp_mesh one = {1, {4, 1, 1}, {"a"}}, two = {2, {2, 2, 1}, {"a", "b"}};
    struct setup s = setup_new("models/gpt.xml", "tiny", "layers=2", "host", 4);
    random_choices(&s, &one, "", 1, 30);
    random_choices(&s, &two, "", 1, 30);
    random_choices(&s, &two, "", 4, 30);
    setup_free(&s);
    s = setup_new("models/mlp.xml", NULL, "", "dgx-a100", 4);
    random_choices(&s, &two, "", 2, 50);
    setup_free(&s);
    s = setup_new("models/bert.xml", "tiny", "padding_mask=true", "dgx-a100", 4);
    random_choices(&s, &two, "", 1, 20);
    setup_free(&s);
}

/* ---- what plans are ---- */

static int reductions(const struct setup *s, enum mpp_phase phase, int layer, int64_t least_bytes)
{
    int n = 0;
    for (int i = 0; i < s->plan->stages[0].n_collectives; i++) {
        const struct mpp_comm *c = &s->plan->stages[0].collectives[i];
        n += c->phase == phase && c->index == layer && c->bytes >= least_bytes && strcmp(c->role, "activation") == 0
             && (strcmp(c->kind, "all-reduce") == 0 || strcmp(c->kind, "reduce-scatter") == 0);
    }
    return n;
}

static void test_forms(void)
{
    struct setup s = setup_new("models/gpt.xml", NULL, "layers=2 hidden=1024 heads=16 vocab=512 seq=64 positions=64 batch=4",
                               "host", 4);
    must(setup_plan(&s, "", 0), "wide");
    for (int layer = 0; layer < 2; layer++)
        check(reductions(&s, MPP_PHASE_FORWARD, layer, 4096) == 2 && reductions(&s, MPP_PHASE_BACKWARD, layer, 4096) == 2,
              "wide, layer %d: %d and %d reductions", layer, reductions(&s, MPP_PHASE_FORWARD, layer, 4096),
              reductions(&s, MPP_PHASE_BACKWARD, layer, 4096));
    check(s.plan->stages[0].n_unsplit == 0, "wide: %d contractions are not split", s.plan->stages[0].n_unsplit);
    setup_free(&s);
    s = setup_new("models/gpt.xml", NULL, "layers=2 hidden=32 heads=2 vocab=64 seq=16 positions=16 batch=512", "host", 4);
    must(setup_plan(&s, "", 0), "narrow");
    check(axis_called(&s, "data") == 0, "narrow: the axis is called %s", s.plan->stages[0].mesh.name[0]);
    for (int i = 0; i < s.g->n_groups; i++) {
        const struct mpp_group *group = &s.g->groups[i];
        int f = s.plan->stages[0].split[i].axis[0];
        if (mpp_op_info(s.g->ops[group->ops[0]].kind)->cls == MPP_CLASS_CONTRACTION)
            check(f >= 0 && group->rule->factor[f].size.per_batch > 0, "narrow: %s", s.g->ops[group->ops[0]].name);
    }
    setup_free(&s);
}

static void test_micro_batches(void)
{
    struct setup s = setup_new("models/gpt.xml", "tiny", "layers=2 batch=64", "host", 4);
    must(setup_plan(&s, "dp=4", 0), "dp");
    int64_t peak = s.plan->solver.peak_bytes;
    check(s.plan->micro_batches == 1, "without need there are %lld micro-batches", (long long)s.plan->micro_batches);
    must(setup_plan(&s, "dp=4", peak / 2), "dp, half the memory");
    check(s.plan->micro_batches > 1 && s.plan->solver.peak_bytes <= peak / 2, "half the memory: %lld micro-batches, %lld bytes",
          (long long)s.plan->micro_batches, (long long)s.plan->solver.peak_bytes);
    check(s.plan->objective_ps >= s.plan->bound_ps, "bound");
    check(setup_plan(&s, "dp=4", 64 << 10) == MPP_INFEASIBLE && strstr(mpp_diag_text(s.diag), "no plan fits"), "%s",
          mpp_diag_text(s.diag));
    setup_free(&s);
    s = setup_new("models/gpt.xml", "tiny", "layers=2 batch=64", "dgx-a100", 4);
    check(setup_plan(&s, "micro_batches=1", 6 << 20) == MPP_INFEASIBLE
          && strstr(mpp_diag_text(s.diag), "--fix micro_batches=") && strstr(mpp_diag_text(s.diag), "without --fix"), "%s",
          mpp_diag_text(s.diag));
    setup_free(&s);
}

int main(void)
{
    test_reshard();
    test_objective();
    test_forms();
    test_micro_batches();
    return finish();
}
