/* Every fused group of some models' steps: for every legal split over small meshes the members, run shard by shard
 * through their reference kernels, give the group's results. So a group may be planned as one node by its rule.
 *
 *     test_groups [folder of the project] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/interp.h"
#include "ir/op.h"
#include "ir/pass.h"
#include "tests/op_examples.h"
#include "tests/shards.h"

enum { UNKNOWN = -9, MAX_MEMBERS = 64 };

static int passed, failed;

struct run {
    const struct mpp_graph *g;
    const struct mpp_group *group;
    struct mpp_ref_tensor *whole; /* [n_tensors] */
    struct mpp_ref_tensor *local[MAX_RANKS];
    struct mpp_sharding *lies;    /* [n_tensors] axis UNKNOWN: not known yet */
    const struct mpp_mesh *mesh;
    struct mpp_split split, member[MAX_MEMBERS];
    const char *why;              /* it fails */
};

static mpp_id operand(const struct mpp_gop *op, int o)
{
    return o < op->n_in ? op->in[o] : op->out[o - op->n_in];
}

/* ---- the members' splits, from the group's ------------------------------------------------------------- */

/* What member M splits over axis A, if a known operand says so. */
static bool learn_split(struct run *r, int m, int a)
{
    const struct mpp_gop *op = &r->g->ops[r->group->ops[m]];
    for (int o = 0; o < op->n_in + op->n_out; o++) {
        int lies = operand(op, o) < 0 ? MPP_WHOLE : r->lies[operand(op, o)].axis[a];
        if (lies >= 0)
            r->member[m].axis[a] = op->rule->operand[o].dim[lies].factor[0];
        else if (lies == MPP_PARTIAL && o < op->n_in)
            r->member[m].axis[a] = MPP_PARTIAL;
        else
            continue;
        return true;
    }
    return false;
}

/* Member M's split over axis A decides how its operands lie. */
static void spread_split(struct run *r, int m, int a)
{
    const struct mpp_gop *op = &r->g->ops[r->group->ops[m]];
    for (int o = 0; o < op->n_in + op->n_out; o++) {
        mpp_id t = operand(op, o);
        struct mpp_split only = {{MPP_WHOLE, MPP_WHOLE, MPP_WHOLE}};
        only.axis[a] = r->member[m].axis[a];
        int lies = t < 0 ? UNKNOWN : mpp_split_operand(op->rule, only, o).axis[a];
        if (t >= 0 && r->lies[t].axis[a] == UNKNOWN)
            r->lies[t].axis[a] = (int8_t)lies;
        else if (t >= 0 && r->lies[t].axis[a] != lies)
            r->why = "members disagree about how a tensor lies";
    }
}

/* Settle one more member over axis A: by what an operand says, else the first one splits nothing. False: none left. */
static bool settle(struct run *r, int a)
{
    int first = -1;
    for (int m = 0; m < r->group->n_ops; m++) {
        if (r->member[m].axis[a] != UNKNOWN)
            continue;
        if (learn_split(r, m, a)) {
            spread_split(r, m, a);
            return true;
        }
        first = first < 0 ? m : first;
    }
    if (first < 0)
        return false;
    r->member[first].axis[a] = MPP_WHOLE;
    spread_split(r, first, a);
    return true;
}

static void infer(struct run *r)
{
    const struct mpp_group *grp = r->group;
    for (int m = 0; m < grp->n_ops; m++) {
        const struct mpp_gop *op = &r->g->ops[grp->ops[m]];
        memset(r->member[m].axis, UNKNOWN, sizeof r->member[m].axis);
        for (int o = 0; o < op->n_in + op->n_out; o++)
            if (operand(op, o) >= 0)
                memset(r->lies[operand(op, o)].axis, UNKNOWN, sizeof r->lies->axis);
    }
    for (int i = 0; i < grp->n_in + grp->n_out; i++)
        r->lies[i < grp->n_in ? grp->in[i] : grp->out[i - grp->n_in]] = mpp_split_operand(grp->rule, r->split, i);
    for (int a = 0; a < MPP_MAX_AXES; a++)
        while (settle(r, a))
            continue;
    for (int m = 0; m < grp->n_ops && !r->why; m++)
        if (!mpp_split_legal(r->g->ops[grp->ops[m]].rule, r->mesh, r->member[m]))
            r->why = "a member's split is unknown or not legal";
}

/* ---- running ------------------------------------------------------------------------------------------- */

static void run_rank(struct run *r, int rank)
{
    int coord[MPP_MAX_AXES] = {0};
    mpp_shard_coordinates(r->mesh, rank, coord);
    struct mpp_ref_tensor *local = r->local[rank];
    for (int i = 0; i < r->group->n_in; i++) {
        mpp_id t = r->group->in[i];
        local[t] = mpp_shard_block(&r->whole[t], r->mesh, r->lies[t], coord);
        mpp_shard_fill(&r->whole[t], r->mesh, r->lies[t], coord, &local[t]);
    }
    for (int m = 0; m < r->group->n_ops; m++) {
        const struct mpp_gop *op = &r->g->ops[r->group->ops[m]];
        struct mpp_ref_tensor in[16] = {0}, out[16] = {0};
        for (int k = 0; k < op->n_in; k++)
            if (op->in[k] >= 0)
                in[k] = local[op->in[k]];
        for (int k = 0; k < op->n_out; k++)
            out[k] = local[op->out[k]] = mpp_shard_block(&r->whole[op->out[k]], r->mesh, r->lies[op->out[k]], coord);
        struct mpp_ref_in ref = {.op = op, .in = in, .out = out, .seed = 42, .step = 7};
        mpp_op_info(op->kind)->ref(&ref);
    }
}

static void free_rank(struct run *r, int rank)
{
    for (mpp_id t = 0; t < r->g->n_tensors; t++) {
        free(r->local[rank][t].data);
        r->local[rank][t].data = NULL;
    }
}

static void check_split(const char *file, struct run *r)
{
    int n_ranks = mpp_shard_extent(r->mesh, ~0u);
    double worst = 0;
    r->why = NULL;
    infer(r);
    for (int rank = 0; rank < n_ranks && !r->why; rank++)
        run_rank(r, rank);
    for (int i = 0; i < r->group->n_out && !r->why; i++) {
        const struct mpp_ref_tensor *blocks[MAX_RANKS];
        mpp_id t = r->group->out[i];
        for (int rank = 0; rank < n_ranks; rank++)
            blocks[rank] = &r->local[rank][t];
        double d = mpp_shard_compare(&r->whole[t], r->mesh, r->lies[t], n_ranks, blocks);
        worst = d > worst || isnan(d) ? d : worst;
    }
    bool ok = !r->why && worst <= 1e-10;
    passed += ok;
    failed += !ok;
    if (!ok) {
        const struct mpp_gop *last = &r->g->ops[r->group->ops[r->group->n_ops - 1]];
        fprintf(stderr, "FAILED %s: the group of %d ops up to %s, split %d %d %d: %s (%.3g)\n", file, r->group->n_ops,
                last->name, r->split.axis[0], r->split.axis[1], r->split.axis[2], r->why ? r->why : "wrong", worst);
    }
    for (int rank = 0; rank < n_ranks; rank++)
        free_rank(r, rank);
}

static void check_group(const char *file, struct run *r)
{
    static const struct mpp_mesh meshes[] = {{1, {2, 1, 1}, {0}}, {1, {3, 1, 1}, {0}}, {2, {2, 2, 1}, {0}}};
    int choices = r->group->rule->n_factors + 2;
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        r->mesh = &meshes[i];
        int total = r->mesh->n_axes == 1 ? choices : choices * choices;
        for (int c = 0; c < total; c++) {
            r->split = (struct mpp_split){{(int8_t)(c % choices - 2), MPP_WHOLE, MPP_WHOLE}};
            if (r->mesh->n_axes > 1)
                r->split.axis[1] = (int8_t)(c / choices - 2);
            if (mpp_split_legal(r->group->rule, r->mesh, r->split))
                check_split(file, r);
        }
    }
}

/* ---- the models ---------------------------------------------------------------------------------------- */

static void fill(const struct mpp_graph *g, struct mpp_interp *it)
{
    uint64_t state = 3;
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        const struct mpp_gtensor *tensor = &g->tensors[t];
        double limit = tensor->input && tensor->input->limit ? (double)tensor->input->limit : 2;
        bool given = tensor->role == MPP_ROLE_PARAM || tensor->role == MPP_ROLE_INPUT;
        for (int64_t i = 0; given && i < mpp_interp_count(it, t); i++) {
            double u = example_random(&state);
            mpp_interp_data(it, t)[i] = tensor->dtype == MPP_I32 ? floor(u * limit) : 2 * u - 1;
        }
    }
}

static void check_groups(const char *file, struct mpp_graph *g, struct mpp_interp *it)
{
    struct run r = {.g = g};
    r.whole = mpp_arena_array(g->arena, g->n_tensors, struct mpp_ref_tensor);
    r.lies = mpp_arena_array(g->arena, g->n_tensors, struct mpp_sharding);
    for (int rank = 0; rank < MAX_RANKS; rank++)
        r.local[rank] = mpp_arena_array(g->arena, g->n_tensors, struct mpp_ref_tensor);
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        r.whole[t].n_dims = g->tensors[t].n_dims;
        for (int d = 0; d < g->tensors[t].n_dims; d++)
            r.whole[t].dims[d] = r.whole[t].global[d] = g->tensors[t].dims[d].size;
        r.whole[t].data = mpp_interp_data(it, t);
    }
    int n = 0;
    for (int i = 0; i < g->n_groups; i++) {
        r.group = &g->groups[i];
        if (r.group->n_ops < 2 || r.group->n_ops > MAX_MEMBERS || r.group->phase == MPP_PHASE_UPDATE)
            continue;
        check_group(file, &r);
        n++;
    }
    printf("%s: %d groups of several ops\n", file, n);
}

static void check_model(const char *root, const char *file, const char *defines)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(stderr);
    const char *define[16];
    struct mpp_model_options options = {.preset = "tiny", .defines = define};
    char *words = mpp_arena_strdup(arena, defines);
    for (char *w = strtok(words, " "); w; w = strtok(NULL, " "))
        define[options.n_defines++] = w;
    struct mpp_pass_ctx ctx = {.arena = arena, .diag = diag};
    struct mpp_model *model;
    struct mpp_graph *g;
    bool ok = mpp_model_read(arena, diag, mpp_arena_printf(arena, "%s/models/%s", root, file), &options, &model) == MPP_OK &&
              mpp_graph_build(arena, diag, model, &g) == MPP_OK && mpp_passes_run(&ctx, g) == MPP_OK;
    failed += !ok;
    if (ok) {
        struct mpp_interp *it = mpp_interp_new(g, g->global_batch);
        fill(g, it);
        mpp_interp_seed(it, 42, 7);
        mpp_interp_gradients(it);
        check_groups(file, g, it);
        mpp_interp_free(it);
    }
    mpp_diag_free(diag);
    mpp_arena_free(arena);
}

int main(int argc, char **argv)
{
    const char *root = argc > 1 ? argv[1] : ".";
    check_model(root, "gpt.xml", "layers=2 hidden=12 heads=3 vocab=11 seq=5 positions=7 batch=4 pdrop=0.25");
    check_model(root, "bert.xml", "layers=2 hidden=12 heads=3 vocab=11 seq=5 positions=5 batch=4 pdrop=0.25 padding_mask=true");
    check_model(root, "mlp.xml", "in=5 hidden=7 out=3 layers=3 batch=4");
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
