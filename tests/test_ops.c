/* Every row of ir/ops.def: for every legal split over meshes of one to three axes the shards, run through the
 * reference kernel and put together, give the unsharded result; and the row's gradient is that of finite differences. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/interp.h"
#include "ir/pass.h"
#include "ir/ref.h"
#include "tests/op_examples.h"
#include "tests/shards.h"

enum { MAX_OPERANDS = EXAMPLE_MAX_IN + 8 };

static int passed, failed;

static void check(bool ok, const char *op, const char *example, const char *what)
{
    passed += ok;
    failed += !ok;
    if (!ok)
        fprintf(stderr, "FAILED %s, %s: %s\n", op, example, what);
}

/* ---- shards ------------------------------------------------------------------------------------------ */

struct group {                    /* ranks that finish a ~ factor together */
    pthread_barrier_t barrier;
    int n;
    double *x[MAX_RANKS];
};

struct shard {
    struct mpp_ref_in in;
    struct mpp_ref_tensor operand[MAX_OPERANDS];
    struct group *group;
    int member;
    const struct mpp_op_info *info;
};

struct run {
    const struct mpp_gop *op;
    const struct mpp_rule *rule;
    const struct mpp_mesh *mesh;
    struct mpp_split split;
    const struct mpp_ref_tensor *whole; /* operands: inputs, then expected outputs */
    int n_ranks;
    struct shard shard[MAX_RANKS];
    struct group group[MAX_RANKS];
};

static void all_reduce(void *ctx, double *x, int64_t n, bool max)
{
    struct shard *s = ctx;
    struct group *g = s->group;
    double *sum = mpp_ref_scratch(n);
    g->x[s->member] = x;
    pthread_barrier_wait(&g->barrier);
    for (int64_t i = 0; i < n; i++) {
        sum[i] = g->x[0][i];
        for (int m = 1; m < g->n; m++)
            sum[i] = max ? fmax(sum[i], g->x[m][i]) : sum[i] + g->x[m][i];
    }
    pthread_barrier_wait(&g->barrier);
    memcpy(x, sum, (size_t)n * sizeof *x);
    pthread_barrier_wait(&g->barrier);
    free(sum);
}

static void make_shard(struct run *r, int rank)
{
    struct shard *s = &r->shard[rank];
    int coord[MPP_MAX_AXES] = {0};
    mpp_shard_coordinates(r->mesh, rank, coord);
    for (int o = 0; o < r->rule->n_in + r->rule->n_out; o++) {
        const struct mpp_ref_tensor *t = &r->whole[o];
        if (!t->data)
            continue;
        struct mpp_sharding sh = mpp_split_operand(r->rule, r->split, o);
        s->operand[o] = mpp_shard_block(t, r->mesh, sh, coord);
        if (o < r->rule->n_in)
            mpp_shard_fill(t, r->mesh, sh, coord, &s->operand[o]);
    }
    unsigned internal = 0;
    for (int a = 0; a < r->mesh->n_axes; a++)
        if (r->split.axis[a] >= 0 && r->rule->factor[r->split.axis[a]].kind == MPP_FACTOR_INTERNAL)
            internal |= 1u << a;
    s->group = &r->group[mpp_shard_number(r->mesh, coord, ~internal)];
    s->member = mpp_shard_number(r->mesh, coord, internal);
    s->group->n = mpp_shard_extent(r->mesh, internal);
    s->in.in = s->operand;
    s->in.out = s->operand + r->rule->n_in;
    if (internal)
        s->in.internal = (struct mpp_ref_reduce){all_reduce, s};
}

static void *run_shard(void *arg)
{
    struct shard *s = arg;
    s->info->ref(&s->in);
    return NULL;
}

static void run_shards(struct run *r)
{
    if (!r->shard[0].in.internal.all_reduce) {
        for (int i = 0; i < r->n_ranks; i++)
            run_shard(&r->shard[i]);
        return;
    }
    pthread_t thread[MAX_RANKS];
    for (int i = 0; i < r->n_ranks; i++)
        if (r->shard[i].member == 0)
            pthread_barrier_init(&r->shard[i].group->barrier, NULL, (unsigned)r->shard[i].group->n);
    for (int i = 0; i < r->n_ranks; i++)
        if (pthread_create(&thread[i], NULL, run_shard, &r->shard[i]) != 0)
            exit(3);
    for (int i = 0; i < r->n_ranks; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < r->n_ranks; i++)
        if (r->shard[i].member == 0)
            pthread_barrier_destroy(&r->shard[i].group->barrier);
}

/* Output O put together against the whole one. */
static double compare(const struct run *r, int o)
{
    const struct mpp_ref_tensor *blocks[MAX_RANKS];
    for (int rank = 0; rank < r->n_ranks; rank++)
        blocks[rank] = &r->shard[rank].operand[o];
    return mpp_shard_compare(&r->whole[o], r->mesh, mpp_split_operand(r->rule, r->split, o), r->n_ranks, blocks);
}

static const char *split_text(const struct run *r, char *text, size_t size)
{
    size_t n = 0;
    for (int a = 0; a < r->mesh->n_axes; a++) {
        int f = r->split.axis[a];
        char letter = f == MPP_WHOLE ? '-' : f == MPP_PARTIAL ? '+' : r->rule->factor[f].letter;
        n += (size_t)snprintf(text + n, size - n, "%s%d:%c", a ? " x " : "", r->mesh->size[a], letter);
    }
    return text;
}

static void check_split(const char *name, const char *example, struct run *r)
{
    memset(r->shard, 0, sizeof r->shard);
    const struct mpp_ref_in settings = {.op = r->op, .seed = 77, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99,
                                        .epsilon = 1e-3, .momentum = 0.9, .clip_norm = 0.5, .nesterov = true, .step = 3};
    for (int i = 0; i < r->n_ranks; i++) {
        r->shard[i].info = mpp_op_info(r->op->kind);
        r->shard[i].in = settings;
        make_shard(r, i);
    }
    run_shards(r);
    char what[160], split[64];
    double worst = 0;
    for (int o = r->rule->n_in; o < r->rule->n_in + r->rule->n_out; o++) {
        double d = compare(r, o);
        worst = d > worst || isnan(d) ? d : worst;
    }
    snprintf(what, sizeof what, "split %s differs by %.3g", split_text(r, split, sizeof split), worst);
    check(worst <= 1e-10, name, example, what);
    for (int i = 0; i < r->n_ranks; i++)
        for (int o = 0; o < MAX_OPERANDS; o++)
            free(r->shard[i].operand[o].data);
}

static void check_mesh(const char *name, const char *example, struct run *r)
{
    int choices = r->rule->n_factors + 2, total = 1;
    for (int a = 0; a < r->mesh->n_axes; a++)
        total *= choices;
    r->n_ranks = mpp_shard_extent(r->mesh, ~0u);
    for (int c = 0; c < total; c++) {
        for (int a = 0, rest = c; a < MPP_MAX_AXES; a++, rest /= choices)
            r->split.axis[a] = (int8_t)(a < r->mesh->n_axes ? rest % choices - 2 : MPP_WHOLE);
        if (mpp_split_legal(r->rule, r->mesh, r->split))
            check_split(name, example, r);
    }
}

static bool has_nan(const struct mpp_ref_tensor *t)
{
    for (int64_t i = 0; i < mpp_ref_count(t); i++)
        if (!isfinite(t->data[i]))
            return true;
    return false;
}

/* Whole inputs (positive ones where the op wants that) and the whole result, in WHOLE. */
static bool run_whole(const struct mpp_graph *g, const struct example *ex, bool positive, struct mpp_ref_tensor *whole)
{
    const struct mpp_gop *op = &g->ops[0];
    uint64_t state = 1;
    for (int o = 0; o < op->n_in + op->n_out; o++) {
        mpp_id t = o < op->n_in ? op->in[o] : op->out[o - op->n_in];
        if (t < 0)
            continue;
        whole[o].n_dims = g->tensors[t].n_dims;
        for (int d = 0; d < whole[o].n_dims; d++)
            whole[o].dims[d] = whole[o].global[d] = g->tensors[t].dims[d].size;
        if (!whole[o].data)
            whole[o].data = mpp_ref_scratch(mpp_ref_count(&whole[o]));
        if (o < op->n_in)
            mpp_example_fill(ex, o, positive, &state, whole[o].data, mpp_ref_count(&whole[o]));
    }
    struct mpp_ref_in in = {.op = op, .in = whole, .out = whole + op->n_in, .seed = 77, .lr = 0.01, .beta1 = 0.9,
                            .beta2 = 0.99, .epsilon = 1e-3, .momentum = 0.9, .clip_norm = 0.5, .nesterov = true, .step = 3};
    mpp_op_info(op->kind)->ref(&in);
    for (int k = 0; k < op->n_out; k++)
        if (has_nan(&whole[op->n_in + k]))
            return false;
    return true;
}

static void check_sharding(struct mpp_arena *arena, struct mpp_diag *diag, int kind, const struct example *ex)
{
    static const struct mpp_mesh meshes[] = {{1, {2, 1, 1}, {0}}, {1, {3, 1, 1}, {0}}, {1, {4, 1, 1}, {0}},
                                             {2, {2, 3, 1}, {0}}, {2, {4, 2, 1}, {0}}, {3, {2, 2, 2}, {0}},
                                             {3, {2, 3, 2}, {0}}};
    const char *name = mpp_op_info(kind)->name;
    struct mpp_graph *g = mpp_example_graph(arena, diag, kind, ex, MPP_ROLE_INPUT);
    if (!g) {
        check(false, name, ex->text, "shape inference refuses it");
        return;
    }
    struct mpp_ref_tensor whole[MAX_OPERANDS] = {0};
    bool ok = run_whole(g, ex, false, whole) || run_whole(g, ex, true, whole);
    check(ok, name, ex->text, "the result is not finite");
    struct run *r = calloc(1, sizeof *r);
    for (size_t m = 0; r && ok && m < sizeof meshes / sizeof *meshes; m++) {
        r->op = &g->ops[0];
        r->rule = g->ops[0].rule;
        r->mesh = &meshes[m];
        r->whole = whole;
        check_mesh(name, ex->text, r);
    }
    free(r);
    for (int o = 0; o < MAX_OPERANDS; o++)
        free(whole[o].data);
}

/* ---- gradients --------------------------------------------------------------------------------------- */

/* loss = the sum over outputs of the sum of weight * output; weights are inputs. False after a diagnostic. */
static bool add_loss(struct mpp_graph *g, struct mpp_diag *diag, int n_out)
{
    struct mpp_gop proto = {.scope = "", .phase = MPP_PHASE_FORWARD, .repeat = -1, .index = -1, .forward = -1};
    mpp_id sums[8];
    for (int k = 0; k < n_out; k++) {
        struct mpp_gtensor y = g->tensors[g->ops[0].out[k]];
        mpp_id w = mpp_graph_add_tensor(g, mpp_arena_printf(g->arena, "weight%d", k), MPP_F32, y.n_dims, y.dims);
        g->tensors[w].role = MPP_ROLE_INPUT;
        proto.name = mpp_arena_printf(g->arena, "weighted%d", k);
        mpp_id op = mpp_graph_add_op(g, diag, MPP_OP_MUL, &proto, 2, (mpp_id[]){g->ops[0].out[k], w},
                                     (struct mpp_attrs){0}, NULL);
        proto.name = mpp_arena_printf(g->arena, "sum%d", k);
        int64_t axes[] = {0, 1, 2, 3, 4, 5};
        if (op >= 0 && y.n_dims > 0)
            op = mpp_graph_add_op(g, diag, MPP_OP_REDUCE_SUM, &proto, 1, &g->ops[op].out[0],
                                  MPP_ATTRS(g->arena, mpp_attr_ints("axes", y.n_dims, axes)), NULL);
        if (op < 0)
            return false;
        sums[k] = g->ops[op].out[0];
    }
    proto.name = "loss";
    mpp_id op = mpp_graph_add_op(g, diag, MPP_OP_SUM, &proto, n_out, sums, (struct mpp_attrs){0}, NULL);
    g->loss = op < 0 ? -1 : g->ops[op].out[0];
    return op >= 0;
}

/* Does no gradient flow into input K though it is f32? */
static bool constant_input(int kind, int k)
{
    return kind == MPP_OP_CROSS_ENTROPY && k == 2; /* 1 / count */
}

static double finite_difference(struct mpp_interp *it, double *x)
{
    double keep = *x, h = 1e-4, f[4];
    const double at[] = {-2, -1, 1, 2};
    for (int i = 0; i < 4; i++) {
        *x = keep + at[i] * h;
        f[i] = mpp_interp_loss(it);
    }
    *x = keep;
    return (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h);
}

static void compare_gradients(struct mpp_graph *g, const struct example *ex, const char *name, bool positive)
{
    struct mpp_interp *it = mpp_interp_new(g, 1);
    uint64_t state = 5;
    mpp_interp_seed(it, 9, 1);
    for (mpp_id t = 0; t < g->n_tensors; t++)
        if (t < ex->n_in)
            mpp_example_fill(ex, t, positive, &state, mpp_interp_data(it, t), mpp_interp_count(it, t));
        else if (g->tensors[t].role == MPP_ROLE_INPUT)
            for (int64_t i = 0; i < mpp_interp_count(it, t); i++)
                mpp_interp_data(it, t)[i] = 2 * example_random(&state) - 1;
    mpp_interp_gradients(it);
    double worst = 0;
    for (int k = 0; k < ex->n_in; k++) {
        if (g->tensors[k].role != MPP_ROLE_PARAM)
            continue;
        double *gradient = mpp_interp_data(it, g->tensors[k].info->gradient);
        int64_t n = mpp_interp_count(it, k), stride = n / 40 + 1;
        for (int64_t i = 0; i < n; i += stride) {
            double d = finite_difference(it, mpp_interp_data(it, k) + i);
            double e = fabs(d - gradient[i]) / (1 + fabs(d));
            worst = e > worst || isnan(e) ? e : worst;
        }
    }
    char what[96];
    snprintf(what, sizeof what, "the gradient differs by %.3g from finite differences", worst);
    check(worst <= 1e-8, name, ex->text, what);
    mpp_interp_free(it);
}

static void check_gradient(struct mpp_arena *arena, struct mpp_diag *diag, int kind, const struct example *ex)
{
    const struct mpp_op_info *info = mpp_op_info(kind);
    struct mpp_graph *g = mpp_example_graph(arena, diag, kind, ex, MPP_ROLE_PARAM);
    if (!info->grad || !g)
        return;
    for (int k = 0; k < ex->n_in; k++) {
        if (g->tensors[k].role != MPP_ROLE_PARAM)
            continue;
        g->tensors[k].role = ex->in[k].given && !constant_input(kind, k) ? MPP_ROLE_PARAM : MPP_ROLE_INPUT;
        g->tensors[k].info = mpp_arena_array(arena, 1, struct mpp_param);
        *g->tensors[k].info = (struct mpp_param){.published = g->tensors[k].name, .gradient = -1, .master = -1};
    }
    struct mpp_ref_tensor whole[MAX_OPERANDS] = {0};
    bool positive = !run_whole(g, ex, false, whole);
    for (int o = 0; o < MAX_OPERANDS; o++)
        free(whole[o].data);
    struct mpp_pass_ctx ctx = {.arena = arena, .diag = diag};
    bool ok = add_loss(g, diag, info->rule[0] ? 1 : g->ops[0].n_out) && mpp_pass_autodiff(&ctx, g) == MPP_OK;
    check(ok, info->name, ex->text, "autodiff fails");
    if (ok)
        compare_gradients(g, ex, info->name, positive);
}

/* ---- known values ------------------------------------------------------------------------------------ */

static void check_values(struct mpp_arena *arena, struct mpp_diag *diag)
{
    static const struct value {
        int kind;
        const char *approximate;
        double a, b, y;
    } values[] = {
        {MPP_OP_ADD, NULL, 3, 4, 7}, {MPP_OP_SUB, NULL, 3, 4, -1}, {MPP_OP_MUL, NULL, 3, 4, 12},
        {MPP_OP_DIV, NULL, 3, 4, 0.75}, {MPP_OP_MIN, NULL, 3, 4, 3}, {MPP_OP_MAX, NULL, 3, 4, 4},
        {MPP_OP_STEP, NULL, 4, 3, 1}, {MPP_OP_STEP, NULL, 3, 3, 0.5}, {MPP_OP_STEP, NULL, 3, 4, 0},
        {MPP_OP_NEG, NULL, 3, 0, -3}, {MPP_OP_EXP, NULL, 1, 0, 2.718281828459045},
        {MPP_OP_LOG, NULL, 2, 0, 0.6931471805599453}, {MPP_OP_SQRT, NULL, 9, 0, 3},
        {MPP_OP_RECIPROCAL, NULL, 4, 0, 0.25}, {MPP_OP_ERF, NULL, 0.5, 0, 0.5204998778130465},
        {MPP_OP_TANH, NULL, 1, 0, 0.7615941559557649}, {MPP_OP_SIGMOID, NULL, 1, 0, 0.7310585786300049},
        {MPP_OP_RELU, NULL, -2, 0, 0}, {MPP_OP_RELU, NULL, 2, 0, 2}, {MPP_OP_RELU_GRAD, NULL, 2, 5, 5},
        {MPP_OP_GELU, "none", 1, 0, 0.8413447460685429}, {MPP_OP_GELU, "tanh", 1, 0, 0.8411919906082768},
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        const struct value *v = &values[i];
        struct mpp_graph *g = mpp_graph_new(arena, NULL, 1);
        mpp_id in[] = {mpp_graph_add_tensor(g, "a", MPP_F32, 0, NULL), mpp_graph_add_tensor(g, "b", MPP_F32, 0, NULL)};
        const char *expr = mpp_op_info(v->kind)->expr;
        bool two = strstr(expr, " b") || strstr(expr, "* b") || strstr(expr, "? b");
        struct mpp_gop proto = {.name = "y", .scope = "", .phase = MPP_PHASE_FORWARD, .repeat = -1, .index = -1, .forward = -1};
        struct mpp_attrs attrs = {0};
        if (v->approximate)
            attrs = MPP_ATTRS(arena, mpp_attr_string("approximate", v->approximate));
        mpp_id op = mpp_graph_add_op(g, diag, v->kind, &proto, two ? 2 : 1, in, attrs, NULL);
        struct mpp_interp *it = mpp_interp_new(g, 1);
        *mpp_interp_data(it, in[0]) = v->a;
        *mpp_interp_data(it, in[1]) = v->b;
        g->loss = op < 0 ? -1 : g->ops[op].out[0];
        double y = op < 0 ? NAN : mpp_interp_loss(it);
        check(fabs(y - v->y) < 1e-14, mpp_op_info(v->kind)->name, "known value", "is wrong");
        mpp_interp_free(it);
    }
    /* Random123's kat_vectors: philox4x32 10 of zeros, and of ones. */
    check(mpp_ref_uniform(0, 0, 0, 0) == (float)(0x6627e8d5u >> 8) * 0x1p-24f, "Philox", "zeros", "is wrong");
    check(mpp_ref_uniform(~0ull, 0xffffffff, ~0u, ~0ull) == (float)(0x408f276du >> 8) * 0x1p-24f, "Philox", "ones",
          "is wrong");
}

int main(int argc, char **argv)
{
    struct mpp_diag *diag = mpp_diag_new(stderr);
    for (int kind = 0; kind < MPP_OP_COUNT; kind++) {
        const char *name = mpp_op_info(kind)->name;
        int n = 0, before = passed + failed;
        if (argc > 1 && strcmp(argv[1], name) != 0)
            continue;
        struct mpp_arena *arena = mpp_arena_new();
        for (const struct example *ex; (ex = mpp_example(arena, kind, n)); n++) {
            check_sharding(arena, diag, kind, ex);
            check_gradient(arena, diag, kind, ex);
        }
        check(n > 0, name, "-", "has no example: list one in tests/op_examples.c");
        if (argc > 1)
            printf("%s: %d examples, %d checks\n", name, n, passed + failed - before);
        mpp_arena_free(arena);
    }
    struct mpp_arena *arena = mpp_arena_new();
    if (argc == 1)
        check_values(arena, diag);
    mpp_arena_free(arena);
    mpp_diag_free(diag);
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
