/* The whole training step in float64: gradients of small models against finite differences, micro-batches against the
 * whole batch, losses and gradients of BERT and GPT-2 against independent ones (tests/data/reference).
 *
 *     test_autodiff [folder of the project] */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/graph_edit.h"
#include "ir/interp.h"
#include "ir/op.h"
#include "ir/pass.h"
#include "tests/op_examples.h"
#include "tests/reference_data.h"

static int passed, failed;
static const char *root = ".";

__attribute__((format(printf, 2, 3))) static void check(bool ok, const char *fmt, ...)
{
    passed += ok;
    failed += !ok;
    if (ok)
        return;
    va_list ap;
    va_start(ap, fmt);
    fputs("FAILED ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
}

struct step {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    struct mpp_graph *g;
};

/* models/FILE with a preset (NULL: none) and space-separated definitions, through all passes. */
static bool build(struct step *s, const char *file, const char *preset, const char *defines)
{
    *s = (struct step){.arena = mpp_arena_new(), .diag = mpp_diag_new(stderr)};
    const char *define[40];
    struct mpp_model_options options = {.preset = preset, .defines = define};
    char *words = mpp_arena_strdup(s->arena, defines);
    for (char *w = strtok(words, " "); w; w = strtok(NULL, " "))
        define[options.n_defines++] = w;
    struct mpp_pass_ctx ctx = {.arena = s->arena, .diag = s->diag};
    struct mpp_model *model;
    const char *path = mpp_arena_printf(s->arena, "%s/models/%s", root, file);
    bool ok = mpp_model_read(s->arena, s->diag, path, &options, &model) == MPP_OK &&
              mpp_graph_build(s->arena, s->diag, model, &s->g) == MPP_OK &&
              mpp_passes_run(&ctx, s->g) == MPP_OK;
    check(ok, "%s does not build", file);
    return ok;
}

static void close_step(struct step *s)
{
    mpp_diag_free(s->diag);
    mpp_arena_free(s->arena);
}

/* Parameters and inputs at random. */
static void fill(struct step *s, struct mpp_interp *it)
{
    uint64_t state = 3;
    for (mpp_id t = 0; t < s->g->n_tensors; t++) {
        const struct mpp_gtensor *tensor = &s->g->tensors[t];
        double *x = mpp_interp_data(it, t);
        int64_t limit = tensor->input ? tensor->input->limit : 0;
        bool given = tensor->role == MPP_ROLE_PARAM || tensor->role == MPP_ROLE_INPUT;
        for (int64_t i = 0; given && i < mpp_interp_count(it, t); i++) {
            double u = example_random(&state);
            if (tensor->role == MPP_ROLE_PARAM)
                x[i] = 0.6 * (u - 0.5) + (tensor->n_dims == 1 ? 0.5 : 0);
            else
                x[i] = tensor->dtype == MPP_I32 ? floor(u * (double)(limit ? limit : 2)) : 2 * u - 1;
        }
    }
}

/* ---- gradients against finite differences -------------------------------------------------------------- */

static void set_some_labels_ignored(struct step *s, struct mpp_interp *it)
{
    for (mpp_id t = 0; t < s->g->n_tensors; t++)
        for (int64_t i = 0; strcmp(s->g->tensors[t].name, "labels") == 0 && i < mpp_interp_count(it, t); i += 3)
            mpp_interp_data(it, t)[i] = -100;
}

static double finite_difference(struct mpp_interp *it, double *x)
{
    const double at[] = {-2, -1, 1, 2};
    double keep = *x, h = 1e-4, f[4];
    for (int i = 0; i < 4; i++) {
        *x = keep + at[i] * h;
        f[i] = mpp_interp_loss(it);
    }
    *x = keep;
    return (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h);
}

static void check_finite_differences(const char *file, const char *preset, const char *defines, int64_t micro)
{
    struct step s;
    if (!build(&s, file, preset, defines)) {
        close_step(&s);
        return;
    }
    struct mpp_interp *it = mpp_interp_new(s.g, micro);
    uint64_t state = 8;
    fill(&s, it);
    set_some_labels_ignored(&s, it);
    mpp_interp_seed(it, 42, 7);
    mpp_interp_gradients(it);
    for (mpp_id t = 0; t < s.g->n_tensors; t++) {
        if (s.g->tensors[t].role != MPP_ROLE_PARAM)
            continue;
        for (int k = 0; k < 3; k++) {
            int64_t i = (int64_t)(example_random(&state) * (double)mpp_interp_count(it, t));
            double want = finite_difference(it, mpp_interp_data(it, t) + i);
            double got = mpp_interp_data(it, s.g->tensors[t].info->gradient)[i];
            check(fabs(got - want) <= 1e-8 * (1 + fabs(want)), "%s: gradient of %s[%lld] is %.10g, differences say %.10g",
                  file, s.g->tensors[t].name, (long long)i, got, want);
        }
    }
    mpp_interp_free(it);
    close_step(&s);
}

/* ---- micro-batches ------------------------------------------------------------------------------------- */

/* The step's gradients and loss with micro-batches of MICRO equal those of the whole batch. */
static void check_micro_batches(const char *file, const char *preset, const char *defines, int64_t micro)
{
    struct step s;
    if (!build(&s, file, preset, defines)) {
        close_step(&s);
        return;
    }
    struct mpp_interp *whole = mpp_interp_new(s.g, s.g->global_batch);
    fill(&s, whole);
    set_some_labels_ignored(&s, whole);
    mpp_interp_seed(whole, 42, 7);
    mpp_interp_gradients(whole);
    struct mpp_interp *parts = mpp_interp_new(s.g, micro);
    fill(&s, parts);
    set_some_labels_ignored(&s, parts);
    mpp_interp_seed(parts, 42, 7);
    mpp_interp_gradients(parts);
    double worst = 0;
    for (mpp_id t = 0; t < s.g->n_tensors; t++)
        for (int64_t i = 0; s.g->tensors[t].role == MPP_ROLE_ACCUM && i < mpp_interp_count(parts, t); i++)
            worst = fmax(worst, fabs(mpp_interp_data(parts, t)[i] - mpp_interp_data(whole, t)[i]));
    check(worst < 1e-12, "%s: micro-batches of %lld change gradients by %.3g", file, (long long)micro, worst);
    mpp_interp_free(whole);
    mpp_interp_free(parts);
    close_step(&s);
}

/* Labels that layout ops hand on count as those that come straight from the input. */
static void check_labels_handed_on(void)
{
    static const char *const file = "../tests/data/models/labels.xml";
    struct step s[2];
    double loss[2] = {0, 0}, gradients[2][2 * 7 * 5] = {{0}};
    for (int k = 0; k < 2; k++) {
        if (build(&s[k], file, NULL, k ? "handed_on=true" : "handed_on=false")) {
            struct mpp_interp *it = mpp_interp_new(s[k].g, 4);
            fill(&s[k], it);
            set_some_labels_ignored(&s[k], it);
            mpp_interp_gradients(it);
            loss[k] = *mpp_interp_data(it, s[k].g->loss_total);
            for (mpp_id t = 0, n = 0; t < s[k].g->n_tensors; t++)
                for (int64_t i = 0; s[k].g->tensors[t].role == MPP_ROLE_PARAM && i < mpp_interp_count(it, t); i++)
                    gradients[k][n++] = mpp_interp_data(it, s[k].g->tensors[t].info->gradient)[i];
            mpp_interp_free(it);
        }
        close_step(&s[k]);
    }
    double worst = fabs(loss[1] - loss[0]);
    for (int i = 0; i < 2 * 7 * 5; i++)
        worst = fmax(worst, fabs(gradients[1][i] - gradients[0][i]));
    check(loss[0] > 0.5 && worst < 1e-12, "labels handed on: a loss of %.15g, not %.15g, or gradients off by %.3g", loss[1], loss[0], worst);
}

/* loss = mean of x w over batch and features: a micro-batch divides by the step's batch, in both directions. */
static void check_mean_over_batch(void)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(stderr);
    struct mpp_graph *g = mpp_graph_new(arena, NULL, 6);
    struct mpp_size dims[] = {{6, 1, "batch"}, {2, 0, "features"}};
    mpp_id in[] = {mpp_graph_add_tensor(g, "x", MPP_F32, 2, dims), mpp_graph_add_tensor(g, "w", MPP_F32, 1, dims + 1)};
    g->tensors[in[0]].role = MPP_ROLE_INPUT;
    g->tensors[in[1]].role = MPP_ROLE_PARAM;
    g->tensors[in[1]].info = mpp_arena_array(arena, 1, struct mpp_param);
    *g->tensors[in[1]].info = (struct mpp_param){.published = "w", .gradient = -1, .master = -1};
    struct mpp_gop proto = {.name = "y", .scope = "", .phase = MPP_PHASE_FORWARD, .repeat = -1, .index = -1, .forward = -1};
    mpp_id y = mpp_graph_add_op(g, diag, MPP_OP_MUL, &proto, 2, in, (struct mpp_attrs){0}, NULL);
    int64_t axes[] = {0, 1};
    proto.name = "loss";
    mpp_id loss = mpp_graph_add_op(g, diag, MPP_OP_REDUCE_MEAN, &proto, 1, &g->ops[y].out[0],
                                   MPP_ATTRS(arena, mpp_attr_ints("axes", 2, axes)), NULL);
    g->loss = g->ops[loss].out[0];
    struct mpp_pass_ctx ctx = {.arena = arena, .diag = diag};
    check(mpp_pass_autodiff(&ctx, g) == MPP_OK, "a mean over the batch has no gradient");
    struct mpp_interp *it = mpp_interp_new(g, 2);
    for (int i = 0; i < 12; i++)
        mpp_interp_data(it, in[0])[i] = i;
    mpp_interp_data(it, in[1])[0] = 2;
    mpp_interp_data(it, in[1])[1] = 3;
    mpp_interp_gradients(it);
    double *dw = mpp_interp_data(it, g->tensors[in[1]].info->gradient);
    check(fabs(*mpp_interp_data(it, g->loss_total) - 14) < 1e-14, "the mean over the batch is %g", *mpp_interp_data(it, g->loss_total));
    check(fabs(dw[0] - 2.5) < 1e-14 && fabs(dw[1] - 3) < 1e-14, "its gradient is %g %g", dw[0], dw[1]);
    mpp_interp_free(it);
    mpp_diag_free(diag);
    mpp_arena_free(arena);
}

/* loss = the sum of (w w) (w w): each factor stands twice in its op, and its gradient is made once. */
static void check_fourth_power(void)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(stderr);
    struct mpp_graph *g = mpp_graph_new(arena, NULL, 1);
    struct mpp_size three = {3, 0, "n"};
    mpp_id w = mpp_graph_add_tensor(g, "w", MPP_F32, 1, &three);
    g->tensors[w].role = MPP_ROLE_PARAM;
    g->tensors[w].param = w;
    g->tensors[w].info = mpp_arena_array(arena, 1, struct mpp_param);
    *g->tensors[w].info = (struct mpp_param){.published = "w", .gradient = -1, .master = -1, .n_published = 1, .published_dims = {3}};
    struct mpp_gop proto = {.name = "square", .scope = "", .phase = MPP_PHASE_FORWARD, .repeat = -1, .index = -1, .forward = -1};
    struct mpp_attrs none = {0};
    mpp_id at = mpp_graph_add_op(g, diag, MPP_OP_MUL, &proto, 2, (mpp_id[]){w, w}, none, NULL), y = g->ops[at].out[0];
    proto.name = "fourth";
    at = mpp_graph_add_op(g, diag, MPP_OP_MUL, &proto, 2, (mpp_id[]){y, y}, none, NULL);
    int64_t axis = 0;
    proto.name = "loss";
    at = mpp_graph_add_op(g, diag, MPP_OP_REDUCE_SUM, &proto, 1, &g->ops[at].out[0],
                          MPP_ATTRS(arena, mpp_attr_ints("axes", 1, &axis)), NULL);
    g->loss = g->ops[at].out[0];
    struct mpp_pass_ctx ctx = {.arena = arena, .diag = diag};
    check(mpp_pass_autodiff(&ctx, g) == MPP_OK && mpp_graph_verify(g, diag, "autodiff") == MPP_OK, "a fourth power has no gradient");
    int sums = 0;
    for (mpp_id o = 0; o < g->n_ops; o++)
        sums += g->ops[o].kind == MPP_OP_ACCUMULATE && g->ops[o].phase == MPP_PHASE_BACKWARD;
    check(sums == 1, "the gradient of w is accumulated %d times", sums);
    struct mpp_interp *it = mpp_interp_new(g, 1);
    for (int i = 0; i < 3; i++)
        mpp_interp_data(it, w)[i] = i - 0.5;
    mpp_interp_gradients(it);
    for (int i = 0; i < 3; i++)
        check(fabs(mpp_interp_data(it, g->tensors[w].info->gradient)[i] - 4 * pow(i - 0.5, 3)) < 1e-14, "gradient of w^4 at %g", i - 0.5);
    mpp_interp_free(it);
    mpp_diag_free(diag);
    mpp_arena_free(arena);
}

/* ---- the order of ops ---------------------------------------------------------------------------------- */

static void check_order(const char *file, const char *preset, const char *defines)
{
    struct step s;
    if (!build(&s, file, preset, defines)) {
        close_step(&s);
        return;
    }
    int runs[2][8][64] = {{{0}}}, layers = 0;
    for (mpp_id o = 0; o < s.g->n_ops; o++) {
        const struct mpp_gop *op = &s.g->ops[o], *last = o > 0 ? op - 1 : NULL;
        check(!last || last->phase <= op->phase, "%s: %s is out of order", file, op->name);
        for (int k = 0; k < op->n_in; k++)
            check(op->in[k] < 0 || s.g->tensors[op->in[k]].op < o, "%s: %s reads ahead", file, op->name);
        bool starts = !last || last->phase != op->phase || last->repeat != op->repeat || last->index != op->index;
        if (op->repeat < 0 || op->phase < MPP_PHASE_BACKWARD || !starts)
            continue;
        bool update = op->phase == MPP_PHASE_UPDATE; /* one run of SquareSum, one of the optimiser */
        int *n = &runs[update][op->repeat % 8][op->index % 64];
        check(++*n <= 1 + update, "%s: layer %d is not contiguous (%s)", file, op->index, op->name);
        layers++;
    }
    check(layers > 0, "%s has no layers", file);
    for (mpp_id t = 0; t < s.g->n_tensors; t++)
        if (s.g->tensors[t].role == MPP_ROLE_PARAM)
            check(s.g->tensors[s.g->tensors[t].info->gradient].repeat == s.g->tensors[t].repeat,
                  "%s: the gradient of %s is in another layer", file, s.g->tensors[t].name);
    close_step(&s);
}

/* ---- mistakes ------------------------------------------------------------------------------------------ */

static void check_unused_parameter(void)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(NULL);
    struct mpp_graph *g = mpp_graph_new(arena, NULL, 1);
    struct mpp_size three = {3, 0, NULL};
    for (int k = 0; k < 2; k++) {
        mpp_id t = mpp_graph_add_tensor(g, k ? "spare" : "used", MPP_F32, 1, &three);
        g->tensors[t].role = MPP_ROLE_PARAM;
        g->tensors[t].info = mpp_arena_array(arena, 1, struct mpp_param);
        *g->tensors[t].info = (struct mpp_param){.published = k ? "spare.weight" : "used.weight", .gradient = -1, .master = -1};
    }
    struct mpp_gop proto = {.name = "loss", .scope = "", .phase = MPP_PHASE_FORWARD, .repeat = -1, .index = -1, .forward = -1};
    int64_t axis = 0;
    mpp_id used = 0, op = mpp_graph_add_op(g, diag, MPP_OP_REDUCE_SUM, &proto, 1, &used,
                                           MPP_ATTRS(arena, mpp_attr_ints("axes", 1, &axis)), NULL);
    g->loss = g->ops[op].out[0];
    struct mpp_pass_ctx ctx = {.arena = arena, .diag = diag};
    check(mpp_pass_autodiff(&ctx, g) == MPP_INVALID && strstr(mpp_diag_text(diag), "spare.weight does not influence the loss"),
          "a parameter without gradient is not reported: %s", mpp_diag_text(diag));
    mpp_diag_free(diag);
    mpp_arena_free(arena);
}

/* ---- independent results ------------------------------------------------------------------------------- */

struct reference {
    const char *dir, *file, *preset;
    const char *inputs[3];        /* input tensors, and their .npy files without the ending */
    const char *npy[3];
    int steps;
    int64_t micro;
};

static void load_weights(const struct reference *ref, struct step *s, struct mpp_interp *it)
{
    for (mpp_id t = 0; t < s->g->n_tensors; t++) {
        if (s->g->tensors[t].role != MPP_ROLE_PARAM)
            continue;
        int64_t n = 0;
        double *w = mpp_reference_tensor(ref->dir, "model.safetensors", s->g->tensors[t].info->published, &n);
        check(w && n == mpp_interp_count(it, t), "%s: no tensor %s", ref->dir, s->g->tensors[t].info->published);
        if (w && n == mpp_interp_count(it, t))
            memcpy(mpp_interp_data(it, t), w, (size_t)n * sizeof *w);
        free(w);
    }
}

static void load_inputs(const struct reference *ref, struct step *s, struct mpp_interp *it, int step)
{
    for (int k = 0; k < 3 && ref->inputs[k]; k++) {
        int64_t n;
        double *x = mpp_reference_npy(ref->dir, ref->npy[k], &n);
        for (mpp_id t = 0; t < s->g->n_tensors; t++) {
            if (strcmp(s->g->tensors[t].name, ref->inputs[k]) != 0)
                continue;
            int64_t batch = mpp_interp_count(it, t);
            memcpy(mpp_interp_data(it, t), x + step % (n / batch) * batch, (size_t)batch * sizeof *x);
        }
        free(x);
    }
}

/* Gradients of the first step: relative L2 per tensor, but for tensors that are zero up to rounding. */
static void compare_gradients(const struct reference *ref, struct step *s, struct mpp_interp *it)
{
    for (mpp_id t = 0; t < s->g->n_tensors; t++) {
        if (s->g->tensors[t].role != MPP_ROLE_PARAM)
            continue;
        int64_t n = 0;
        double error = 0, norm = 0, *got = mpp_interp_data(it, s->g->tensors[t].info->gradient);
        double *want = mpp_reference_tensor(ref->dir, "grads.safetensors", s->g->tensors[t].info->published, &n);
        for (int64_t i = 0; want && i < n; i++) {
            error += (got[i] - want[i]) * (got[i] - want[i]);
            norm += want[i] * want[i];
        }
        check(want && sqrt(error) <= 1e-6 * sqrt(norm) + 1e-15, "%s: gradient of %s differs by %.3g of %.3g", ref->dir,
              s->g->tensors[t].name, sqrt(error), sqrt(norm));
        free(want);
    }
}

/* RUN: a JSON object with losses_f64 and perhaps lr_per_step and grad_norm_f64. */
static void check_run(const struct reference *ref, const char *name, const json_t *run, const char *defines, double lr)
{
    struct step s;
    if (!build(&s, ref->file, ref->preset, defines)) {
        close_step(&s);
        return;
    }
    struct mpp_interp *it = mpp_interp_new(s.g, ref->micro);
    load_weights(ref, &s, it);
    const json_t *rates = json_object_get(run, "lr_per_step"), *norms = json_object_get(run, "grad_norm_f64");
    for (int i = 0; i < ref->steps; i++) {
        load_inputs(ref, &s, it, i);
        mpp_interp_step(it, rates ? json_real_value(json_array_get(rates, (size_t)i)) : lr);
        double want = json_real_value(json_array_get(json_object_get(run, "losses_f64"), (size_t)i));
        double got = *mpp_interp_data(it, s.g->loss_total);
        check(fabs(got - want) <= 1e-9, "%s %s: loss of step %d is %.15g, not %.15g", ref->dir, name, i, got, want);
        double norm = norms ? json_real_value(json_array_get(norms, (size_t)i)) : 0;
        got = *mpp_interp_data(it, s.g->grad_norm);
        check(!norms || fabs(got - norm) <= 1e-8 * norm, "%s %s: norm of step %d is %.15g, not %.15g", ref->dir, name, i,
              got, norm);
        if (i == 0)
            compare_gradients(ref, &s, it);
    }
    mpp_interp_free(it);
    close_step(&s);
}

static void check_bert(void)
{
    static const struct {
        const char *name, *defines;
        double lr;
    } runs[] = {
        {"sgd_lr0.05", "optimizer=sgd momentum=0 weight_decay=0 weight_decay_1d=0", 0.05},
        {"sgdmom_lr0.05_m0.9_wd1e-4", "optimizer=sgd momentum=0.9 weight_decay=1e-4 weight_decay_1d=1e-4", 0.05},
        {"adamw_lr1e-3_wd0.01_eps1e-5", "epsilon=1e-5", 1e-3},
    };
    char dir[1024];
    snprintf(dir, sizeof dir, "%s/tests/data/reference/bert-tiny", root);
    struct reference ref = {dir, "bert.xml", "tiny", {"input_ids", "token_type_ids", "labels"},
                            {"input_ids.npy", "token_type_ids.npy", "labels.npy"}, 10, 2};
    json_t *expected = mpp_reference_json(dir, "expected.json");
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        check_run(&ref, runs[i].name, json_object_get(json_object_get(expected, "optimizers"), runs[i].name),
                  runs[i].defines, runs[i].lr);
    json_decref(expected);
}

static void check_gpt(void)
{
    char dir[1024];
    snprintf(dir, sizeof dir, "%s/tests/data/reference/gpt2-deep", root);
    struct reference ref = {dir, "gpt.xml", NULL, {"inputs", "targets"}, {"inputs.npy", "targets.npy"}, 2, 6};
    json_t *expected = mpp_reference_json(dir, "expected.json");
    check_run(&ref, "cosine", json_object_get(json_object_get(expected, "runs"), "cosine"),
              "layers=12 hidden=64 heads=8 vocab=384 seq=32 positions=32 batch=48 lr=1e-3", 0);
    json_decref(expected);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        root = argv[1];
    const char *gpt = "layers=2 hidden=12 heads=3 vocab=11 seq=5 positions=7 batch=4 pdrop=0.25";
    const char *bert = "layers=2 hidden=12 heads=3 vocab=11 seq=5 positions=5 batch=4 pdrop=0.25 padding_mask=true";
    const char *mlp = "in=5 hidden=7 out=3 layers=3 batch=4";
    check_finite_differences("gpt.xml", "tiny", gpt, 2);
    check_finite_differences("bert.xml", "tiny", bert, 2);
    check_finite_differences("mlp.xml", "tiny", mlp, 2);
    check_micro_batches("gpt.xml", "tiny", gpt, 1);
    check_micro_batches("bert.xml", "tiny", bert, 2);
    check_micro_batches("mlp.xml", "tiny", mlp, 2);
    check_micro_batches("../tests/data/models/labels.xml", NULL, "", 3);
    check_labels_handed_on();
    check_mean_over_batch();
    check_fourth_power();
    check_order("gpt.xml", "tiny", gpt);
    check_order("bert.xml", "tiny", bert);
    check_order("mlp.xml", "tiny", mlp);
    check_unused_parameter();
    check_bert();
    check_gpt();
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
