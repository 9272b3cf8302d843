/* The whole host runtime on a hand-written program: a linear layer behind two repeated scales, trained by
 * mpp_main on 1, 2 and 4 devices; samples, weights, losses, checkpoints and gradients must not depend on
 * how many. Under mpirun (size 2 or 4) the same program runs over MPI once and prints its losses. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mpp_rt.h"
#include "core/progress.h"
#include "core/safetensors.h"
#include "core/trainer.h"
#include "core/watch.h"

#define BATCH 6
#define D 7
#define O 5

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

/* ---- the program: y = (x * s0 * s1) w, loss = sum (y - t)^2 / (BATCH O) ------------------------------- */

/* Arena: room for whole tensors; every local block fits. */
enum { AT_W = 0, AT_GW = 256, AT_MW = 512, AT_S = 768, AT_GS = 896, AT_X = 1024, AT_T = 1280, AT_LOSS = 1536,
       AT_NORM = 1600, ARENA = 2048 };
#define S_STRIDE 64

static float *f32(struct mpp_rank *r, int at)
{
    return (float *)(void *)(r->arena + at);
}

static void setup(struct mpp_rank *r)
{
    *(int *)r->plan = 1;
}

/* The error of sample B in output O of this rank. */
static float error_of(struct mpp_rank *r, int64_t b, int64_t o)
{
    struct mpp_extent out = mpp_extent_of(r, O, r->n_axes > 1 ? 2 : 0);
    float *w = f32(r, AT_W), *s0 = f32(r, AT_S), *s1 = f32(r, AT_S + S_STRIDE), y = 0;
    for (int d = 0; d < D; d++)
        y += f32(r, AT_X)[b * D + d] * s0[d] * s1[d] * w[d * out.padded + o];
    return y - f32(r, AT_T)[b * out.padded + o];
}

static void forward(struct mpp_rank *r)
{
    struct mpp_extent batch = mpp_extent_of(r, BATCH / r->micro_batches, r->n_axes > 0 ? 1 : 0);
    struct mpp_extent out = mpp_extent_of(r, O, r->n_axes > 1 ? 2 : 0);
    float *loss = f32(r, AT_LOSS);
    if (r->micro_batch == 0)
        *loss = 0;
    for (int64_t b = 0; b < batch.valid; b++)
        for (int64_t o = 0; o < out.valid; o++) {
            float e = error_of(r, b, o);
            *loss += e * e / (BATCH * O);
        }
}

static void backward(struct mpp_rank *r)
{
    struct mpp_extent batch = mpp_extent_of(r, BATCH / r->micro_batches, r->n_axes > 0 ? 1 : 0);
    struct mpp_extent out = mpp_extent_of(r, O, r->n_axes > 1 ? 2 : 0);
    float *w = f32(r, AT_W), *gw = f32(r, AT_GW), *x = f32(r, AT_X);
    float *s0 = f32(r, AT_S), *s1 = f32(r, AT_S + S_STRIDE), *gs0 = f32(r, AT_GS), *gs1 = f32(r, AT_GS + S_STRIDE);
    if (r->micro_batch == 0) {
        memset(gw, 0, (size_t)(D * out.padded) * 4);
        memset(gs0, 0, 2 * S_STRIDE);
    }
    for (int64_t b = 0; b < batch.valid; b++)
        for (int64_t o = 0; o < out.valid; o++) {
            float dy = 2 * error_of(r, b, o) / (BATCH * O);
            for (int d = 0; d < D; d++) {
                float wx = w[d * out.padded + o] * x[b * D + d];
                gw[d * out.padded + o] += dy * x[b * D + d] * s0[d] * s1[d];
                gs0[d] += dy * wx * s1[d];
                gs1[d] += dy * wx * s0[d];
            }
        }
}

static void step(struct mpp_rank *r)
{
    for (int m = 0; m < r->micro_batches; m++) {
        mpp_forward(r, 0, m);
        mpp_backward(r, 0, m);
    }
}

static void reduce_gradients(struct mpp_rank *r)
{
    struct mpp_extent out = mpp_extent_of(r, O, r->n_axes > 1 ? 2 : 0);
    unsigned data = r->n_axes > 0 ? 1 : 0, all = (1u << r->n_axes) - 1;
    mpp_all_reduce(r, data, f32(r, AT_GW), D * out.padded, MPP_REDUCE_SUM);
    mpp_all_reduce(r, all, f32(r, AT_GS), S_STRIDE / 4 + D, MPP_REDUCE_SUM);
    mpp_all_reduce(r, all, f32(r, AT_LOSS), 1, MPP_REDUCE_SUM);
}

static void update(struct mpp_rank *r)
{
    struct mpp_extent out = mpp_extent_of(r, O, r->n_axes > 1 ? 2 : 0);
    float *w = f32(r, AT_W), *gw = f32(r, AT_GW), *m = f32(r, AT_MW), *s = f32(r, AT_S), *gs = f32(r, AT_GS);
    reduce_gradients(r);
    for (int64_t i = 0; i < D * out.padded; i++) {
        m[i] = r->hyper.momentum * m[i] + gw[i];
        w[i] -= r->hyper.lr * m[i];
    }
    for (int k = 0; k < 2; k++)
        for (int d = 0; d < D; d++)
            s[k * S_STRIDE / 4 + d] -= r->hyper.lr * gs[k * S_STRIDE / 4 + d];
    *f32(r, AT_NORM) = r->hyper.lr;
}

static struct mpp_tensor tensors[] = {
    {.name = "w", .kind = MPP_KIND_PARAMETER, .offset = AT_W, .n_dims = 2, .dims = {D, O}, .n_published = 3,
     .published = {1, D, O}, .init = MPP_INIT_NORMAL, .init_b = 0.5},
    {.name = "w", .kind = MPP_KIND_GRADIENT, .offset = AT_GW, .n_dims = 2, .dims = {D, O}, .n_published = 3,
     .published = {1, D, O}},
    {.name = "m.w", .kind = MPP_KIND_OPTIMIZER, .offset = AT_MW, .n_dims = 2, .dims = {D, O}, .n_published = 3,
     .published = {1, D, O}},
    {.name = "h.%d.scale", .kind = MPP_KIND_PARAMETER, .first = 3, .count = 2, .offset = AT_S, .stride = S_STRIDE,
     .n_dims = 1, .dims = {D}, .n_published = 1, .published = {D}, .init = MPP_INIT_UNIFORM, .init_a = 0.5,
     .init_b = 1.5},
    {.name = "h.%d.scale", .kind = MPP_KIND_GRADIENT, .first = 3, .count = 2, .offset = AT_GS, .stride = S_STRIDE,
     .n_dims = 1, .dims = {D}, .n_published = 1, .published = {D}},
    {.name = "x", .kind = MPP_KIND_INPUT, .offset = AT_X, .n_dims = 2, .dims = {BATCH, D}},
    {.name = "t", .kind = MPP_KIND_INPUT, .offset = AT_T, .n_dims = 2, .dims = {BATCH, O}},
};
static const struct mpp_input inputs[] = {{.tensor = 5, .batched = true}, {.tensor = 6, .batched = true}};

static const struct mpp_chunk chunk = {.forward = forward, .backward = backward, .slots = 1};
static struct mpp_stage stage;
static const struct mpp_stage *const stages[] = {&stage};

static struct mpp_program program_for(int devices, int micro_batches)
{
    struct mpp_program p = {
        .model = "linear", .plan_version = "1", .n_stages = 1, .stages = stages, .pipeline = "accumulate",
        .batch = BATCH, .micro_batches = micro_batches, .tokens_per_sample = 1, .hyper = {.lr = 0.1f, .momentum = 0.5f},
        .schedule = MPP_SCHEDULE_COSINE, .warmup_steps = 3, .total_steps = 12, .final_lr = 0.01, .steps = 12,
        .save_every = 4, .save_keep = 2,
    };
    stage = (struct mpp_stage){
        .arena_bytes = ARENA, .workspace_offset = 1792, .workspace_bytes = 256, .n_tensors = 7, .tensors = tensors,
        .n_inputs = 2, .inputs = inputs, .loss_offset = AT_LOSS, .grad_norm_offset = AT_NORM, .setup = setup,
        .plan_state_bytes = 64, .n_chunks = 1, .chunks = &chunk, .step = step, .update = update,
        .reduce_gradients = reduce_gradients, .n_axes = devices == 1 ? 0 : devices == 2 ? 1 : 2, .axis_size = {2, 2},
    };
    for (int i = 0; i < 7; i++) {
        bool input = tensors[i].kind == MPP_KIND_INPUT, wide = tensors[i].n_dims == 2 && i != 5;
        tensors[i].dims[0] = input ? BATCH / micro_batches : tensors[i].dims[0];
        tensors[i].split[0] = input && stage.n_axes > 0 ? 1 : 0;
        tensors[i].split[1] = wide && stage.n_axes > 1 ? 2 : 0;
    }
    return p;
}

/* ---- helpers ------------------------------------------------------------------------------------------ */

static char folder[] = "/tmp/mpp_trainer_XXXXXX";

static const char *in_folder(const char *name)
{
    static char paths[64][512];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, 512, "%s/%s", folder, name);
    return path;
}

/* Run with options; messages go to files. */
static int run(const struct mpp_program *p, char **options)
{
    char *argv[24] = {(char *)(uintptr_t)"trainer"};
    int argc = 1;
    while (options[argc - 1] != NULL) {
        argv[argc] = options[argc - 1];
        argc++;
    }
    fflush(NULL);
    int out = dup(1), err = dup(2);
    if (freopen(in_folder("out"), "w", stdout) == NULL || freopen(in_folder("err"), "w", stderr) == NULL)
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

static bool find_text(const char *file, const char *text, bool wanted)
{
    char buffer[8192];
    FILE *in = fopen(in_folder(file), "r");
    size_t n = in != NULL ? fread(buffer, 1, sizeof buffer - 1, in) : 0;
    if (in != NULL)
        fclose(in);
    buffer[n] = '\0';
    bool found = strstr(buffer, text) != NULL;
    if (found != wanted)
        fprintf(stderr, "%s \"%s\" in: %s\n", wanted ? "expected" : "unexpected", text, buffer);
    return found == wanted;
}

static bool said(const char *file, const char *text)
{
    return find_text(file, text, true);
}

static bool not_said(const char *file, const char *text)
{
    return find_text(file, text, false);
}

/* Losses of a metrics file; how many. */
static int losses(const char *path, double *out, int most)
{
    char line[512];
    int n = 0;
    FILE *in = fopen(path, "r");
    while (in != NULL && n < most && fgets(line, sizeof line, in) != NULL) {
        const char *at = strstr(line, "\"loss\": ");
        out[n++] = at != NULL ? strtod(at + 8, NULL) : -1;
    }
    if (in != NULL)
        fclose(in);
    return n;
}

static bool close_losses(const double *a, const double *b, int n, double tolerance)
{
    for (int i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= tolerance * fabs(b[i])))
            return false;
    return true;
}

static bool same_file(const char *a, const char *b)
{
    char x[8192], y[8192];
    FILE *fa = fopen(a, "r"), *fb = fopen(b, "r");
    size_t n = fa != NULL ? fread(x, 1, sizeof x, fa) : 0, m = fb != NULL ? fread(y, 1, sizeof y, fb) : 0;
    if (fa != NULL)
        fclose(fa);
    if (fb != NULL)
        fclose(fb);
    return n > 0 && n == m && memcmp(x, y, n) == 0;
}

static bool close_tensors(const char *a, const char *b, double tolerance)
{
    struct mpp_weights *x, *y;
    struct mpp_error error = {0};
    if (mpp_weights_open(a, NULL, &x, &error) != 0 || mpp_weights_open(b, NULL, &y, &error) != 0) {
        fprintf(stderr, "%s\n", error.text);
        return false;
    }
    bool ok = mpp_weights_count(x) == mpp_weights_count(y) && mpp_weights_count(x) > 0;
    for (int i = 0; ok && i < mpp_weights_count(x); i++) {
        struct mpp_weight *v = mpp_weights_at(x, i), *w = mpp_weights_find(y, v->name);
        float p[64], q[64];
        ok = w != NULL && v->count == w->count && v->count <= 64 && v->n_dims == w->n_dims;
        if (!ok)
            break;
        (void)mpp_weight_read(v, 0, v->count, p);
        (void)mpp_weight_read(w, 0, w->count, q);
        for (int64_t k = 0; k < v->count; k++)
            ok = ok && fabs((double)(p[k] - q[k])) <= tolerance * (1 + fabs((double)q[k]));
    }
    mpp_weights_close(x);
    mpp_weights_close(y);
    return ok;
}

static void write_npy(const char *path, int64_t n, int64_t width, float scale)
{
    char header[119];
    memset(header, ' ', sizeof header);
    int at = snprintf(header, sizeof header, "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %lld), }",
                      (long long)n, (long long)width);
    header[at] = ' ';
    header[117] = '\n';
    FILE *out = fopen(path, "w");
    fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, out);
    fwrite(header, 1, 118, out);
    for (int64_t i = 0; i < n * width; i++) {
        float x = scale * sinf((float)i * 0.7f);
        fwrite(&x, 4, 1, out);
    }
    fclose(out);
}

/* ---- tests ---------------------------------------------------------------------------------------------- */

static void test_plans_agree(void)
{
    static const int plans[][2] = {{1, 1}, {1, 2}, {2, 1}, {2, 3}, {4, 1}, {4, 2}};
    double first[12], other[12];
    for (int i = 0; i < 6; i++) {
        struct mpp_program p = program_for(plans[i][0], plans[i][1]);
        char metrics[512], save[512], grads[512], data[512], what[80];
        snprintf(metrics, sizeof metrics, "%s/m%d.jsonl", folder, i);
        snprintf(save, sizeof save, "%s/save%d/deep", folder, i);
        snprintf(grads, sizeof grads, "%s/g%d.safetensors", folder, i);
        snprintf(data, sizeof data, "npy:%s", folder);
        snprintf(what, sizeof what, "%d devices, %d micro-batches", plans[i][0], plans[i][1]);
        expect(RUN(&p, "--data", data, "--metrics", metrics, "--save", save, "--dump-grads", grads) == 0, what);
        expect(losses(metrics, i == 0 ? first : other, 12) == 12, what);
        if (i == 0) {
            expect(first[11] < first[0] * 0.5, "the loss goes down");
            continue;
        }
        char path[600], path0[600];
        expect(close_losses(other, first, 12, 1e-5), what);
        expect(close_tensors(grads, in_folder("g0.safetensors"), 1e-5), what);
        static const char *const files[] = {"model", "optimizer"};
        for (int k = 0; k < 2; k++) {
            snprintf(path, sizeof path, "%s/step-12/%s.safetensors", save, files[k]);
            snprintf(path0, sizeof path0, "%s/save0/deep/step-12/%s.safetensors", folder, files[k]);
            expect(close_tensors(path, path0, 1e-5), what);
        }
    }
    expect(said("out", "linear: 4 devices = 2 x 2 over threads, arena 2048 bytes"), "first line");
    expect(said("out", "peak resident memory"), "last line");
    struct stat st;
    expect(stat(in_folder("save0/deep/step-4"), &st) != 0 && stat(in_folder("save0/deep/step-8"), &st) == 0,
           "the newest two checkpoints stay");
}

static void test_dump_changes_nothing(void)
{
    struct mpp_program p = program_for(4, 1);
    char data[512];
    double a[12], b[12];
    snprintf(data, sizeof data, "npy:%s", folder);
    expect(RUN(&p, "--data", data, "--metrics", (char *)(uintptr_t)in_folder("plain.jsonl")) == 0, "without dump");
    expect(losses(in_folder("plain.jsonl"), a, 12) == 12 && losses(in_folder("m4.jsonl"), b, 12) == 12 &&
               memcmp(a, b, sizeof a) == 0, "dumping gradients changes nothing");
}

static void test_resume(void)
{
    for (int devices = 1; devices <= 4; devices *= 2) {
        struct mpp_program p = program_for(devices, 2);
        char whole[64], half[64];
        double a[12], b[12];
        snprintf(whole, sizeof whole, "%s/whole%d", folder, devices);
        snprintf(half, sizeof half, "%s/half%d", folder, devices);
        char *metrics = (char *)(uintptr_t)in_folder("r.jsonl");
        expect(RUN(&p, "--data=synthetic", "--seed", "5", "--save", whole, "--metrics", metrics) == 0, "whole run");
        expect(losses(metrics, a, 12) == 12, "whole run's metrics");
        expect(RUN(&p, "--data=synthetic", "--seed", "5", "--save", half, "--steps", "7", "--metrics", metrics) == 0,
               "half run");
        expect(RUN(&p, "--data=synthetic", "--resume", half, "--save", half, "--metrics", metrics) == 0, "resumed run");
        expect(losses(metrics, b, 12) == 12 && memcmp(a, b, sizeof a) == 0, "a resumed run repeats the losses");
        char x[600], y[600];
        snprintf(x, sizeof x, "%s/step-12/model.safetensors", whole);
        snprintf(y, sizeof y, "%s/step-12/model.safetensors", half);
        expect(same_file(x, y), "a resumed run ends with the same bytes");
        snprintf(x, sizeof x, "%s/step-12/state.json", whole);
        snprintf(y, sizeof y, "%s/step-12/state.json", half);
        expect(same_file(x, y), "and the same state");
    }
    struct mpp_program p = program_for(2, 1); /* another plan continues the checkpoint of the first */
    char half[64];
    snprintf(half, sizeof half, "%s/half4", folder);
    expect(RUN(&p, "--data", "synthetic", "--resume", half, "--steps", "20") == 0, "another plan resumes");
    expect(said("out", "continuing from step 12"), "it says where it continues");
    expect(RUN(&p, "--data", "synthetic", "--resume", half, "--seed", "6") == 2 && said("err", "seed 5"),
           "another seed does not");
}

static void test_init(void)
{
    struct mpp_program p = program_for(4, 1);
    char *weights = (char *)(uintptr_t)in_folder("save0/deep/step-12/model.safetensors");
    char *metrics = (char *)(uintptr_t)in_folder("i.jsonl");
    expect(RUN(&p, "--data", "synthetic", "--init", weights, "--steps", "0", "--save",
               (char *)(uintptr_t)in_folder("init")) == 0, "init from weights");
    expect(same_file(in_folder("init/step-0/model.safetensors"), weights), "weights come through unchanged");
    expect(RUN(&p, "--data", "synthetic", "--init",
               (char *)(uintptr_t)in_folder("save0/deep/step-12/optimizer.safetensors")) == 2 &&
               said("err", "lacks 3 of the model's 3 tensors: w, h.3.scale, h.4.scale"), "missing tensors");
    expect(RUN(&p, "--data", "synthetic", "--init", "/nowhere.safetensors") == 2 && said("err", "/nowhere"),
           "no such weights");
    tensors[0].published[1] = D + 1;
    expect(RUN(&p, "--data", "synthetic", "--init", weights, "--metrics", metrics) == 2 &&
               said("err", "has shape [1, 7, 5], but the model's has [1, 8, 5]"), "wrong shape");
    tensors[0].published[1] = D;
}

static void test_options(void)
{
    struct mpp_program p = program_for(2, 1);
    expect(RUN(&p, "--step", "3") == 2 && said("err", "error: there is no option --step; did you mean \"--steps\"?\n"),
           "a near option");
    expect(RUN(&p, "--steps", "x") == 2 && said("err", "--steps takes a whole number"), "a bad number");
    expect(RUN(&p, "--lr") == 2 && said("err", "--lr takes a value"), "a missing value");
    expect(RUN(&p, "--save", "--resume", "x") == 2 && said("err", "--save takes a value, but --resume follows"),
           "an option for a value");
    expect(RUN(&p, "--data", "text:") == 2 && said("err", "--data text: names no file"), "a source without a file");
    expect(RUN(&p, "--steps", "1") == 2 && said("err", "error: the model names no data; give --data npy:DIR or synthetic\n"),
           "no data");
    expect(RUN(&p, "--threads", "x") == 2 && said("err", "--threads takes a whole number from 1 to 1024, not \"x\""),
           "threads in words");
    expect(RUN(&p, "--data", "txt:x") == 2 && said("err", "did you mean \"text\"?"), "a near source");
    expect(RUN(&p, "--data", "npy:/nowhere") == 2 && said("err", "/nowhere: no such folder"), "no folder");
    expect(RUN(&p, "--data", "text:/etc/passwd") == 2 && said("err", "cannot fill input \"x\""), "text into floats");
    expect(RUN(&p, "--data", "synthetic", "--resume", "/nowhere") == 2 && said("err", "no checkpoint"), "no checkpoint");
    expect(RUN(&p, "--data", "synthetic", "--save", "/proc/x/y") == 2 && said("err", "/proc/x"), "cannot save");
    expect(RUN(&p, "--help") == 0 && said("out", "usage: trainer [options]"), "help");
}

/* What cannot be written is refused before training, and nothing half-written stays. */
static void test_outputs(void)
{
    struct mpp_program p = program_for(4, 1);
    struct stat st;
    char *dir = (char *)(uintptr_t)in_folder("outputs");
    expect(RUN(&p, "--data", "synthetic", "--dump-grads", "/dev/null") == 2 && said("err", "error: /dev/null: not a file\n") &&
               stat("/dev/null", &st) == 0 && S_ISCHR(st.st_mode), "gradients never replace a device");
    expect(RUN(&p, "--data", "synthetic", "--dump-grads", "/nowhere/g") == 2 && said("err", "error: /nowhere: ") &&
               not_said("out", "step 1"), "no folder for gradients");
    expect(RUN(&p, "--data", "synthetic", "--save", (char *)(uintptr_t)in_folder("out")) == 2 && not_said("out", "step 1"),
           "a file is no folder to save in");
    expect(mkdir(dir, 0777) == 0 && mkdir(in_folder("outputs/.part-step-3"), 0777) == 0, "a killed trainer's folder");
    int lock = open(dir, O_RDONLY | O_DIRECTORY);
    expect(flock(lock, LOCK_EX) == 0 && RUN(&p, "--data", "synthetic", "--save", dir) == 2 &&
               said("err", "another trainer saves here"), "two trainers do not save in one folder");
    close(lock);
    struct rlimit whole, little = {300, 300};
    getrlimit(RLIMIT_FSIZE, &whole);
    little.rlim_max = whole.rlim_max;
    setrlimit(RLIMIT_FSIZE, &little);
    int code = RUN(&p, "--data", "synthetic", "--save", dir, "--steps", "2");
    setrlimit(RLIMIT_FSIZE, &whole);
    expect(code == 1 && said("err", "File too large"), "a full disk ends the run");
    expect(rmdir(dir) == 0, "and leaves no unfinished folder, its own or another's");
}

static void test_notes(void)
{
    struct mpp_program p = program_for(1, 1);
    char *dir = (char *)(uintptr_t)in_folder("notes"), *built = (char *)(uintptr_t)in_folder("built");
    expect(RUN(&p, "--data", "synthetic", "--save", dir, "--steps", "1") == 0, "a checkpoint");
    p.save_keep = 1;
    expect(RUN(&p, "--data", "synthetic", "--save", dir, "--steps", "5") == 0 &&
               RUN(&p, "--data", "synthetic", "--save", dir, "--steps", "1") == 0 &&
               said("err", "holds step-5 of an earlier run"), "an earlier run's later step is told");
    expect(access(in_folder("notes/step-1"), F_OK) == 0 && access(in_folder("notes/step-5"), F_OK) == 0,
           "and what was just saved stays");
    p.save_keep = 0;
    dir = (char *)(uintptr_t)in_folder("notes/step-1");
    p.batch *= 2;
    expect(RUN(&p, "--data", "synthetic", "--resume", dir, "--steps", "1") == 0 &&
               said("err", "notes/step-1 was trained with batch 6; this run goes on with 12"), "another batch is told");
    p.batch /= 2;
    p.built = "optimizer sgd, weight_decay 0.1, pdrop 0";
    expect(RUN(&p, "--data", "synthetic", "--resume", dir, "--steps", "2", "--save", built) == 0 && not_said("err", "note"), "what an older checkpoint does not record makes no difference");
    p.built = "optimizer adamw, weight_decay 0.2, heads 4";
    expect(RUN(&p, "--data", "synthetic", "--resume", built, "--steps", "2") == 0 &&
               said("err", "was trained with optimizer sgd, weight_decay 0.1, pdrop 0, heads none; this run goes on with adamw, "
                           "0.2, none, 4\n"), "other settings of the plan are told");
    p.built = NULL;
    expect(RUN(&p, "--data", "synthetic", "--lr", "1e30", "--steps", "9") == 0 && said("err", "is not finite"),
           "a loss that overflows is told");
}

/* Without --data a resumed run reads what it read before, and what is saved is told. */
static void test_data_kept(void)
{
    struct mpp_program p = program_for(2, 1);
    double whole[6], kept[6];
    char data[512], told[600], *dir = (char *)(uintptr_t)in_folder("kept"), *metrics = (char *)(uintptr_t)in_folder("k.jsonl");
    snprintf(data, sizeof data, "npy:%s", folder);
    expect(RUN(&p, "--data", data, "--steps", "6", "--metrics", metrics) == 0 && losses(metrics, whole, 6) == 6, "a whole run");
    p.data = "synthetic";
    expect(RUN(&p, "--data", data, "--steps", "3", "--save", dir, "--metrics", metrics) == 0, "half of it");
    snprintf(told, sizeof told, "\nsaved %s/step-3\n", dir);
    expect(said("out", told), "the last step's checkpoint is told");
    expect(RUN(&p, "--resume", dir, "--steps", "6", "--save", dir, "--metrics", metrics) == 0 &&
               losses(metrics, kept, 6) == 6 && memcmp(whole, kept, sizeof whole) == 0, "the other half goes on with its data");
    snprintf(told, sizeof told, "without --data this run goes on with the checkpoint's, %s\n", data);
    expect(said("err", told) && not_said("err", "was trained with"), "which is told");
    snprintf(told, sizeof told, "\nsaved %s/step-6\n", dir);
    expect(said("out", "/step-4\n") && said("out", told), "and so is what is saved every few steps");
    expect(RUN(&p, "--resume", dir, "--data", "synthetic", "--steps", "7") == 0 &&
               said("err", "; this run goes on with synthetic\n") && not_said("err", "without --data"), "--data takes other data");
}

/* "N samples/s" of a line: whole numbers are grouped, and none has an exponent. */
static void test_rates(void)
{
    static const struct {
        double rate;
        const char *text;
    } rows[] = {{0.5, "  0.50 samples/s\n"}, {12.34, "  12.3 samples/s\n"}, {914.4, "  914 samples/s\n"},
                {8914, "  8,914 samples/s\n"}, {106000, "  106,000 samples/s\n"}, {12345678, "  12,345,678 samples/s\n"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct mpp_progress *p;
        struct mpp_error error = {0};
        struct mpp_step_report report = {.step = 1, .loss = 1, .tokens_per_s = rows[i].rate};
        fflush(NULL);
        int out = dup(1);
        bool ok = freopen(in_folder("out"), "w", stdout) != NULL &&
                  mpp_progress_open(NULL, false, false, 0, 1, &p, &error) == 0;
        if (ok) {
            ok = mpp_progress_step(p, &report, &error) == 0;
            mpp_progress_close(p);
        }
        fflush(NULL);
        dup2(out, 1);
        close(out);
        expect(ok && said("out", rows[i].text), rows[i].text);
    }
}

/* A sample that is wrong in the middle of a run ends all ranks with one message. */
static void count_step(struct mpp_rank *r)
{
    float *x = f32(r, AT_LOSS);
    *x = 1;
    mpp_all_reduce(r, 3, x, 1, MPP_REDUCE_SUM);
}

static void test_bad_data(void)
{
    static const struct mpp_tensor ids = {.name = "ids", .kind = MPP_KIND_INPUT, .type = MPP_TYPE_I32, .n_dims = 2,
                                          .dims = {4, 8}, .split = {1, 0}};
    static const struct mpp_input in = {.role = MPP_ROLE_TOKENS, .limit = 100, .batched = true};
    struct mpp_program p = program_for(4, 1);
    stage.n_tensors = stage.n_inputs = 1;
    stage.tensors = &ids;
    stage.inputs = &in;
    p.batch = 4;
    p.steps = 100000;
    stage.step = stage.update = count_step;
    uint16_t tokens[5000] = {[4000] = 100};
    char spec[600], text[4096] = "";
    FILE *file = fopen(in_folder("bad.bin"), "w");
    fwrite(tokens, 2, 5000, file);
    fclose(file);
    snprintf(spec, sizeof spec, "tokens:%s", in_folder("bad.bin"));
    expect(RUN(&p, "--data", spec) == 2 && said("err", "bad.bin: element 4000 is 100, but input \"ids\" takes 0 to 99"),
           "a bad token ends the run");
    file = fopen(in_folder("err"), "r");
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    expect(n > 0 && strchr(text, '\n') == text + n - 1, "with one line");
    expect(said("out", "step 1") , "after some steps");
    expect(RUN(&p, "--data", spec, "--metrics", "/dev/full", "--steps", "3") == 1 && said("err", "/dev/full"),
           "a full disk ends the run");
}

static void test_schedule(void)
{
    struct mpp_program p = {.warmup_steps = 10, .total_steps = 110, .final_lr = 0.1};
    expect(mpp_trainer_lr(&p, 1, 0, 5) == 0.5 && mpp_trainer_lr(&p, 1, 0, 500) == 1, "constant");
    p.schedule = MPP_SCHEDULE_LINEAR;
    expect(fabs(mpp_trainer_lr(&p, 1, 0, 60) - 0.55) < 1e-12 && fabs(mpp_trainer_lr(&p, 1, 0, 111) - 0.1) < 1e-12, "linear");
    p.schedule = MPP_SCHEDULE_COSINE;
    expect(fabs(mpp_trainer_lr(&p, 1, 0, 60) - 0.55) < 1e-12 && fabs(mpp_trainer_lr(&p, 1, 0, 110) - 0.1) < 1e-12 &&
               mpp_trainer_lr(&p, 1, 0, 10) == 1, "cosine");
}

/* A job of one process has nobody to watch, and closes nothing of the process's own. */
static void test_watch_alone(void)
{
    struct mpp_watch_settings settings = {.silence_s = 15};
    struct mpp_link_offer offer[MPP_WATCH_CENTRES] = {{0}};
    struct mpp_error error = {0};
    char hosts[1][MPP_HOST_NAME] = {"here"};
    int own = open("/dev/null", O_RDONLY | O_CLOEXEC), before = fcntl(0, F_GETFD);
    if (before < 0)
        (void)dup2(own, 0); /* so that there is a standard input */
    struct mpp_watch *w = mpp_watch_new(&settings, &error);
    expect(w != NULL, "a watch");
    mpp_watch_place(w, 0, 1, (const char (*)[MPP_HOST_NAME])hosts);
    mpp_watch_join(w, offer);
    mpp_watch_free(w);
    expect(fcntl(0, F_GETFD) >= 0, "standard input stays open");
    close(own);
}

int main(int argc, char **argv)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE") ? getenv("OMPI_COMM_WORLD_SIZE") : getenv("PMI_SIZE");
    if (size != NULL || argc > 1) { /* as a trainer of its own */
        struct mpp_program p = program_for(size != NULL ? atoi(size) : 4, 2);
        return mpp_main(argc, argv, &p);
    }
    if (mkdtemp(folder) == NULL)
        return 1;
    write_npy(in_folder("x.npy"), 31, D, 1); /* samples that wrap within a batch */
    write_npy(in_folder("t.npy"), 31, O, 0.1f);
    test_plans_agree();
    test_dump_changes_nothing();
    test_resume();
    test_init();
    test_options();
    test_bad_data();
    test_outputs();
    test_notes();
    test_data_kept();
    test_rates();
    test_schedule();
    test_watch_alone();
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        failed++;
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
