/* test_emit.c - plan directories compile, are the same each time, stay short, and compute what the interpreter does.
 *
 *     test_emit [folder of the project]
 *
 * The numeric cases take a model of every layout, reduction and kernel with extents that divide by nothing, plan it for
 * several meshes, build the trainer with make, and compare its loss and gradients with float64. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "codegen/outdir.h"
#include "codegen/program.h"
#include "ir/interp.h"
#include "ir/op.h"
#include "ir/pass.h"
#include "tests/emit_testing.h"

/* ---- from a model file to a directory ---- */

struct job {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    struct mpp_graph *g;
    struct mpp_plan *plan;
    struct mpp_lprog *prog;
    struct mpp_cluster *cluster;
};

static bool build(struct job *j, const char *path, const char *preset, const char *defines)
{
    *j = (struct job){.arena = mpp_arena_new(), .diag = mpp_diag_new(stdout)};
    const char *define[16];
    struct mpp_model_options options = {.preset = preset, .defines = define};
    for (char *w = strtok(mpp_arena_strdup(j->arena, defines), " "); w; w = strtok(NULL, " "))
        define[options.n_defines++] = w;
    struct mpp_model *model;
    struct mpp_pass_ctx ctx = {.arena = j->arena, .diag = j->diag};
    return check(mpp_model_read(j->arena, j->diag, path, &options, &model) == MPP_OK
                     && mpp_graph_build(j->arena, j->diag, model, &j->g) == MPP_OK && mpp_passes_run(&ctx, j->g) == MPP_OK,
                 "%s builds", path);
}

static bool make_plan(struct job *j, int devices, const char *pins)
{
    struct mpp_plan_options o = {.pins = mpp_pins_none(), .capacity_bytes = (int64_t)1 << 40};
    const struct mpp_transfers none = {0};
    return check(mpp_cluster_load(j->arena, j->diag, "host", devices, &j->cluster) == MPP_OK
                     && (!*pins || mpp_pins_parse(j->arena, j->diag, pins, &o.pins) == MPP_OK)
                     && mpp_plan_search(j->arena, j->diag, j->g, j->cluster, &o, &j->plan) == MPP_OK
                     && mpp_plan_derive(j->arena, j->diag, j->g, j->cluster, j->plan) == MPP_OK
                     && mpp_lower(j->arena, j->g, j->plan, 0, &none, INT64_MAX, &j->prog) == MPP_OK,
                 "a plan for %d devices, %s", devices, pins);
}

static bool emit(struct job *j, const char *dir)
{
    const struct mpp_transfers none = {0};
    mkdir(dir, 0777);
    return check(mpp_emit(j->arena, j->diag, j->g, j->cluster, j->plan, &none, &j->prog, dir) == MPP_OK, "%s is written",
                 dir);
}

static void close_job(struct job *j)
{
    mpp_diag_free(j->diag);
    mpp_arena_free(j->arena);
}

static const char *path_in(struct mpp_arena *arena, const char *dir, const char *name)
{
    return mpp_arena_printf(arena, "%s/%s", dir, name);
}

static char *read_file(struct mpp_arena *arena, const char *path, size_t *out_size)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *data = mpp_arena_alloc(arena, (size_t)n + 1);
    *out_size = fread(data, 1, (size_t)n, f);
    fclose(f);
    return data;
}

/* ---- the text ---- */

static const char *const emitted[] = {"stage0.c", "stage0.h", "stage0_tables.c", "kernels.c", "kernels.cu", "kernels.h", "plan.c", "plan.h", "Makefile"};
enum { N_EMITTED = sizeof emitted / sizeof emitted[0] };

static int lines_of(struct mpp_arena *arena, const char *dir)
{
    int n = 0;
    for (int i = 0; i < N_EMITTED; i++) {
        size_t size;
        const char *text = read_file(arena, path_in(arena, dir, emitted[i]), &size);
        for (size_t k = 0; text && k < size; k++)
            n += text[k] == '\n';
    }
    return n;
}

static void check_compiles(const char *dir)
{
    static const char *const compilers[] = {"gcc", "clang"};
    for (int c = 0; c < 2; c++)
        if (shell("command -v %s >/dev/null", compilers[c]))
            check(shell("cd %s && for f in stage0 stage0_tables plan kernels; do %s -O3 -march=native -std=c17 -D_GNU_SOURCE -fno-math-errno "
                        "-fopenmp-simd -Wall -Wextra -Wshadow -Werror -I. -Iruntime -fsyntax-only $f.c || exit 1; done",
                        dir, compilers[c]), "%s accepts the emitted files of %s", compilers[c], dir);
}

static void test_text(const char *tmp)
{
    struct job j[3];
    const char *dirs[3];
    for (int i = 0; i < 3; i++) {  /* 2 layers twice, then 96 */
        struct mpp_arena *a;
        if (!build(&j[i], mpp_arena_printf((a = mpp_arena_new()), "%s/models/gpt.xml", root), "tiny",
                   i == 2 ? "layers=96" : "layers=2")
            || !make_plan(&j[i], 4, "dp=2,tp=2"))
            return;
        mpp_arena_free(a);
        dirs[i] = mpp_arena_printf(j[i].arena, "%s/text%d", tmp, i);
        emit(&j[i], dirs[i]);
    }
    for (int i = 0; i < N_EMITTED; i++) {
        size_t n = 0, m = 0;
        const char *a = read_file(j[0].arena, path_in(j[0].arena, dirs[0], emitted[i]), &n);
        const char *b = read_file(j[0].arena, path_in(j[0].arena, dirs[1], emitted[i]), &m);
        check(a && b && n == m && !memcmp(a, b, n), "%s is the same each time", emitted[i]);
        check(a && !strstr(a, tmp) && !strstr(a, "/home/") && !strstr(a, "0x7f"), "%s holds no path or address", emitted[i]);
        int longest = 0, at = 0;
        for (size_t k = 0; a && k < n; k++) {
            at = a[k] == '\n' ? 0 : at + 1;
            longest = at > longest ? at : longest;
        }
        check(longest <= 160, "%s: a line of %d columns", emitted[i], longest);
    }
    int few = lines_of(j[0].arena, dirs[0]), many = lines_of(j[2].arena, dirs[2]);
    check(many <= few + few / 20, "96 layers take %d lines, 2 take %d", many, few);
    check_compiles(dirs[0]);
    check(!shell("make -s -C %s BACKEND=tpu >/dev/null 2>&1", dirs[0]), "BACKEND=tpu is refused");
    for (int i = 0; i < 3; i++)
        close_job(&j[i]);
}

/* ---- names ---- */

/* Names that mean something else in C, in the emitted code or in the runtime; the %s are filled in below. */
static const char hostile_model[] =
    "<model name=\"ev*/il &quot;q&quot; \\ %s /* ??" "/\" version=\"1\">\n"
    "  <params> <dim name=\"batch\" value=\"4\" role=\"batch\"/> <dim name=\"int\" value=\"6\"/> </params>\n"
    "  <inputs>\n"
    "    <input name=\"while\" type=\"f32\" shape=\"batch, 5, int\"/> <input name=\"NULL\" type=\"f32\" shape=\"batch, 5, int\"/>\n"
    "    <input name=\"unused\" type=\"f32\" shape=\"batch, 5\"/>\n"
    "  </inputs>\n"
    "  <graph>\n"
    "    <Linear name=\"int\" in=\"while\" units=\"int\" weight_name=\"w&quot;\\ %%d*/ä\"/>\n"
    "    <Tanh name=\"for\"/> <Softmax name=\"dim\"/> <Softmax name=\"p\"/> <Softmax name=\"t\"/> <Softmax name=\"r\"/>\n"
    "    <Softmax name=\"INT32_MAX\"/> <Softmax name=\"MPP_MAX_DIMS\"/> <Softmax name=\"_Bool\"/> <Softmax name=\"dim_2\"/>\n"
    "    <repeat name=\"for_\" count=\"3\">\n"
    "      <Softmax name=\"layer\"/> <Linear name=\"t-x\" units=\"int\"/> <Softmax name=\"double\"/> <Dropout name=\"d\" ratio=\"0.3\"/>\n"
    "    </repeat>\n"
    "    <repeat name=\"stage0\" count=\"3\"> <Linear name=\"x\" units=\"int\"/> <Softmax name=\"stage0\"/> </repeat>\n"
    "    <repeat name=\"mpp_layernorm\" count=\"2\">\n"
    "      <Linear name=\"x\" units=\"int\"/> <repeat name=\"switch\" count=\"2\"> <Linear name=\"y\" units=\"int\"/> </repeat>\n"
    "    </repeat>\n"
    "    <repeat name=\"int32_t\" count=\"2\"> <Linear name=\"x\" units=\"int\"/> </repeat>\n"
    "    <Identity name=\"s\"/>\n"
    "%s"
    "    <Sum name=\"many\" in=\"%s\"/> <Concat name=\"all\" in=\"%s\" axis=\"2\" stack=\"true\"/>\n"
    "    <Split name=\"apart\" axis=\"2\" num_outputs=\"60\" out=\"%s\"/> <Sum name=\"again\" in=\"%s\"/>\n"
    "    <Add name=\"both\" in=\"many again\"/> <MeanSquaredErrorLoss name=\"loss\" in=\"both NULL\"/>\n"
    "  </graph>\n"
    "  <training loss=\"loss\"> <optimizer type=\"adamw\" lr=\"0.01\"/> </training>\n"
    "</model>\n";

static void test_names(const char *tmp)
{
    struct job j;
    struct mpp_arena *a = mpp_arena_new();
    const char *path = mpp_arena_printf(a, "%s/hostile.xml", tmp), *dir = mpp_arena_printf(a, "%s/hostile", tmp);
    const char *scaled = "", *in = "", *out = "";
    for (int i = 0; i < 60; i++) {
        scaled = mpp_arena_printf(a, "%s    <Scale name=\"s%d\" in=\"s\" value=\"%d\"/>\n", scaled, i, i + 1);
        in = mpp_arena_printf(a, "%ss%d ", in, i);
        out = mpp_arena_printf(a, "%so%d ", out, i);
    }
    FILE *f = fopen(path, "w");
    fprintf(f, hostile_model, "%n", scaled, in, in, out, out);
    fclose(f);
    if (build(&j, path, NULL, "") && make_plan(&j, 2, "dp=2") && emit(&j, dir))
        check_compiles(dir);
    close_job(&j);
    mpp_arena_free(a);
}

/* ---- numbers ---- */

static const char odd_model[] =
    "<model name=\"odd\" version=\"1\">\n"
    "  <params>\n"
    "    <dim name=\"batch\" value=\"6\" role=\"batch\"/>\n"
    "    <dim name=\"rows\" value=\"5\"/> <dim name=\"cols\" value=\"7\"/> <dim name=\"heads\" value=\"3\"/>\n"
    "    <dim name=\"each\" value=\"4\"/> <dim name=\"classes\" value=\"11\"/>\n"
    "    <param name=\"layers\" type=\"int\" value=\"3\"/> <param name=\"drop\" type=\"float\" value=\"0.25\"/>\n"
    "  </params>\n"
    "  <inputs>\n"
    "    <input name=\"x\" type=\"f32\" shape=\"batch, rows, cols\"/>\n"
    "    <input name=\"ids\" type=\"i32\" shape=\"batch, rows\" limit=\"classes\"/>\n"
    "    <input name=\"labels\" type=\"i32\" shape=\"batch, rows\" limit=\"classes\"/>\n"
    "    <input name=\"mask\" type=\"i32\" shape=\"batch, rows\"/>\n"
    "  </inputs>\n"
    "  <graph>\n"
    "    <Embedding name=\"emb\" in=\"ids\" num_embeddings=\"classes\" embedding_dim=\"cols\"/>\n"
    "    <PositionEmbedding name=\"pos\" in=\"ids\" max_positions=\"2*rows\" embedding_dim=\"cols\"/>\n"
    "    <Sum name=\"start\" in=\"x emb pos\"/>\n"
    "    <repeat name=\"l\" count=\"layers\">\n"
    "      <LayerNormalization name=\"ln\"/>\n"
    "      <Linear name=\"qkv\" units=\"3, heads, each\"/>\n"
    "      <Split name=\"split\" out=\"q k v\" axis=\"2\" num_outputs=\"3\"/>\n"
    "      <Attention name=\"att\" in=\"q k v mask\" dropout=\"drop\"/>\n"
    "      <Transpose name=\"turned\" perm=\"0, 2, 1, 3\"/>\n"
    "      <Split name=\"parts\" out=\"p1 p2\" axis=\"3\" sizes=\"1, 3\"/>\n"
    "      <Concat name=\"swapped\" in=\"p2 p1\" axis=\"3\"/>\n"
    "      <Transpose name=\"back\" perm=\"0, 2, 1, 3\"/>\n"
    "      <ReduceMax name=\"top\" axes=\"3\" keepdims=\"true\"/>\n"
    "      <ReduceMean name=\"middle\" in=\"back\" axes=\"1\" keepdims=\"true\"/>\n"
    "      <Sub name=\"apart\" in=\"back middle\"/>\n"
    "      <Mul name=\"scaled\" in=\"apart top\"/>\n"
    "      <Gelu name=\"bent\"/>\n"
    "      <Softmax name=\"soft\"/>\n"
    "      <Linear name=\"out\" units=\"cols\" contract=\"2\"/>\n"
    "      <Dropout name=\"less\" ratio=\"drop\"/>\n"
    "      <Add name=\"res\" in=\"%x less\"/>\n"
    "    </repeat>\n"
    "    <Identity name=\"last\"/>\n"
    "    <Linear name=\"up\" units=\"heads, each\"/> <Gelu name=\"smooth\" approximate=\"tanh\"/>\n"
    "    <Linear name=\"down\" units=\"cols\" contract=\"2\"/> <Add name=\"more\" in=\"last down\"/>\n"
    "    <ReduceSum name=\"total\" axes=\"1\" keepdims=\"true\"/>\n"
    "    <Tanh/>\n"
    "    <Mul name=\"weighed\" in=\"total last\"/>\n"
    "    <Linear name=\"head\" units=\"classes\"/>\n"
    "    <SoftmaxCrossEntropyLoss name=\"loss\" in=\"head labels\" ignore_index=\"-1\"/>\n"
    "  </graph>\n"
    "  <training loss=\"loss\">\n"
    "    <batch micro=\"auto\"/>\n"
    "    <optimizer type=\"adamw\" lr=\"0.01\"/>\n"
    "  </training>\n"
    "  <data><dataset split=\"train\" format=\"synthetic\"/></data>\n"
    "</model>\n";

static double noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(float)((double)(*state >> 40) / (double)(1 << 24) - 0.5);
}

static void write_npy(const char *path, const struct mpp_gtensor *t, const double *data, int64_t count)
{
    FILE *f = fopen(path, "wb");
    char shape[128] = "", header[256];
    for (int d = 0; d < t->n_dims; d++)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%lld, ", (long long)t->dims[d].size);
    int n = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                     t->dtype == MPP_I32 ? "<i4" : "<f4", shape);
    int padded = (10 + n + 1 + 63) / 64 * 64 - 10;
    fwrite("\x93NUMPY\x01\x00", 1, 8, f);
    fputc(padded & 255, f);
    fputc(padded >> 8, f);
    fprintf(f, "%-*s\n", padded - 1, header);
    for (int64_t i = 0; i < count; i++) {
        float v = (float)data[i];
        int32_t k = (int32_t)data[i];
        fwrite(t->dtype == MPP_I32 ? (void *)&k : (void *)&v, 4, 1, f);
    }
    fclose(f);
}

/* All parameters of the interpreter as safetensors. */
static void write_weights(struct mpp_arena *arena, const char *path, const struct mpp_graph *g, struct mpp_interp *it)
{
    FILE *f = fopen(path, "wb");
    char *header = mpp_arena_strdup(arena, "{");
    int64_t at = 0;
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        if (g->tensors[t].role != MPP_ROLE_PARAM)
            continue;
        const struct mpp_param *p = g->tensors[t].info;
        char dims[128] = "";
        for (int d = 0; d < p->n_published; d++)
            snprintf(dims + strlen(dims), sizeof dims - strlen(dims), "%s%lld", d ? "," : "", (long long)p->published_dims[d]);
        int64_t bytes = 4 * mpp_interp_count(it, t);
        header = mpp_arena_printf(arena, "%s%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%lld,%lld]}", header,
                                  at ? "," : "", p->published, dims, (long long)at, (long long)(at + bytes));
        at += bytes;
    }
    header = mpp_arena_printf(arena, "%s}", header);
    uint64_t n = strlen(header);
    fwrite(&n, 8, 1, f);
    fwrite(header, 1, n, f);
    for (mpp_id t = 0; t < g->n_tensors; t++)
        for (int64_t i = 0; g->tensors[t].role == MPP_ROLE_PARAM && i < mpp_interp_count(it, t); i++) {
            float v = (float)mpp_interp_data(it, t)[i];
            fwrite(&v, 4, 1, f);
        }
    fclose(f);
}

/* The floats of tensor NAME in a safetensors file; NULL: not there, or not COUNT of them. */
static const float *find_tensor(struct mpp_arena *arena, const char *file, size_t size, const char *name, int64_t count)
{
    uint64_t n;
    memcpy(&n, file, sizeof n);
    const char *at = strstr(file + 8, mpp_arena_printf(arena, "\"%s\":", name));
    at = at ? strstr(at, "\"data_offsets\"") : NULL;
    at = at ? strchr(at, '[') : NULL;
    long long from, to;
    if (!at || sscanf(at, "[%lld,%lld]", &from, &to) != 2 || to - from != 4 * count || 8 + n + (uint64_t)to > size)
        return NULL;
    return mpp_arena_memdup(arena, file + 8 + n + from, (size_t)(to - from));
}

/* Random parameters and inputs, one label in five ignored, some keys masked. */
static void fill(const struct mpp_graph *g, struct mpp_interp *it)
{
    uint64_t state = 12345;
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        const struct mpp_gtensor *x = &g->tensors[t];
        if (x->role != MPP_ROLE_PARAM && x->role != MPP_ROLE_INPUT)
            continue;
        for (int64_t i = 0; i < mpp_interp_count(it, t); i++) {
            double v = noise(&state);
            if (x->dtype == MPP_I32 && !strcmp(x->name, "mask"))
                v = i % 5 == 0 || v > -0.2;
            else if (x->dtype == MPP_I32)
                v = !strcmp(x->name, "labels") && v > 0.3 ? -1 : floor((v + 0.5) * 11);
            else
                v = (double)(float)v;
            mpp_interp_data(it, t)[i] = v;
        }
    }
}

static void compare(struct job *j, struct mpp_interp *it, const char *dir, const char *what)
{
    size_t size = 0;
    const char *file = read_file(j->arena, path_in(j->arena, dir, "g.safetensors"), &size);
    const char *metrics = read_file(j->arena, path_in(j->arena, dir, "m.jsonl"), &(size_t){0});
    const char *loss = metrics ? strstr(metrics, "\"loss\":") : NULL;
    double want = *mpp_interp_data(it, j->g->loss_total);
    check(loss && fabs(atof(loss + 7) - want) < 1e-5 * fabs(want), "%s: loss %.9g, not %.9g", what, loss ? atof(loss + 7) : NAN,
          want);
    if (!check(file != NULL, "%s: gradients are written", what))
        return;
    for (mpp_id t = 0; t < j->g->n_tensors; t++) {
        if (j->g->tensors[t].role != MPP_ROLE_PARAM)
            continue;
        const struct mpp_param *p = j->g->tensors[t].info;
        int64_t n = mpp_interp_count(it, t);
        const double *ref = mpp_interp_data(it, p->gradient);
        const float *got = find_tensor(j->arena, file, size, p->published, n);
        if (!check(got != NULL, "%s: gradient of %s is there", what, p->published))
            continue;
        double largest = 1e-4, error = 0;
        for (int64_t i = 0; i < n; i++) {
            largest = fmax(largest, fabs(ref[i]));
            error = fmax(error, fabs(ref[i] - (double)got[i]));
        }
        check(error < 2e-5 * largest + 2e-8, "%s: gradient of %s is off by %.3g of %.3g", what, p->published, error, largest);
    }
}

static void test_numbers(const char *tmp, int devices, const char *pins, const char *defines)
{
    char what[160];
    snprintf(what, sizeof what, "odd %s on %d, %s", defines, devices, pins);
    struct job j;
    struct mpp_arena *a = mpp_arena_new();
    const char *model = mpp_arena_printf(a, "%s/odd.xml", tmp), *dir = mpp_arena_printf(a, "%s/numbers", tmp);
    const char *data = mpp_arena_printf(a, "%s/data", tmp);
    if (!build(&j, model, NULL, defines) || !make_plan(&j, devices, pins))
        return;
    const char *fresh = mpp_arena_printf(a, "%s/fresh", tmp);
    emit(&j, fresh);              /* the runtime's objects are kept from case to case */
    shell("mkdir -p %s && cp -R -n %s/. %s && cp %s/*.[ch] %s", dir, fresh, dir, fresh, dir);
    check(shell("make -s -C %s MPI=0 'CFLAGS=-O2 -march=native'", dir), "%s: make", what);
    int64_t batch = j.g->batch;
    mpp_graph_set_batch(j.g, j.g->global_batch);
    struct mpp_interp *it = mpp_interp_new(j.g, j.g->global_batch);
    fill(j.g, it);
    mkdir(data, 0777);
    for (mpp_id t = 0; t < j.g->n_tensors; t++)
        if (j.g->tensors[t].role == MPP_ROLE_INPUT)
            write_npy(mpp_arena_printf(a, "%s/%s.npy", data, j.g->tensors[t].name), &j.g->tensors[t], mpp_interp_data(it, t),
                      mpp_interp_count(it, t));
    write_weights(a, mpp_arena_printf(a, "%s/weights.safetensors", data), j.g, it);
    mpp_interp_seed(it, 77, 1);
    mpp_interp_gradients(it);
    bool ran = shell("cd %s && rm -f g.safetensors m.jsonl && OPENBLAS_NUM_THREADS=1 ./trainer --steps 1 --seed 77 --data npy:%s "
                     "--init %s/weights.safetensors --dump-grads g.safetensors --metrics m.jsonl >/dev/null", dir, data, data);
    if (check(ran, "%s: the trainer runs", what))
        compare(&j, it, dir, what);
    mpp_interp_free(it);
    mpp_graph_set_batch(j.g, batch);
    close_job(&j);
    mpp_arena_free(a);
}

/* ---- what the memory planner asks ---- */

/* The sizes of workspaces, as the planner computes them, against the runtime's own word in a built plan. */
static void test_workspace(const char *tmp)
{
    struct job j;
    struct mpp_arena *a = mpp_arena_new();
    static const int64_t sizes[][2] = {{5, 4}, {64, 32}, {200, 64}, {700, 8}};
    static const int64_t cuts[][3] = {{1, 1000, 8}, {3, 5, 7}, {1000, 96, 64}, {64, 4096, 1}, {65, 4096, 1}, {3, 512, 512}, {2, 1000, 1000},
                                      {5000, 17, 8}, {300000, 1, 1}, {4, 0, 8}};
    const char *source = mpp_arena_printf(a, "%s/numbers/ask.c", tmp);
    FILE *f = fopen(source, "w");
    fprintf(f, "#include \"runtime/mpp_rt.h\"\nint main(void)\n{\n    int bad = 0;\n");
    for (int i = 0; i < 4; i++) {
        if (!build(&j, mpp_arena_printf(a, "%s/models/gpt.xml", root), "tiny",
                   mpp_arena_printf(a, "seq=%lld positions=%lld hidden=%lld heads=1", (long long)sizes[i][0], (long long)sizes[i][0],
                                    (long long)sizes[i][1]))
            || !make_plan(&j, 1, ""))
            return;
        for (int k = 0; k < j.g->n_groups; k++)
            if (j.g->ops[j.g->groups[k].ops[0]].kind == MPP_OP_ATTENTION) {
                int64_t bytes = mpp_emit_workspace(j.g, &j.plan->stages[0].mesh, &j.g->groups[k], j.plan->stages[0].split[k]);
                fprintf(f, "    struct mpp_extent s%d = {%lld, %lld, %lld, 0};\n    bad += mpp_attention_workspace(&(const struct "
                           "mpp_attention){.seq_q = s%d, .seq_k = s%d}) != %lld;\n", i, (long long)sizes[i][0],
                        (long long)sizes[i][0], (long long)sizes[i][0], i, i, (long long)bytes);
                break;
            }
        close_job(&j);
    }
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++)
        fprintf(f, "    bad += mpp_reduce_scatter_half_workspace(%lld, %lld, %lld) != %lld;\n", (long long)cuts[i][0], (long long)cuts[i][1],
                (long long)cuts[i][2], (long long)mpp_memory_half_scatter(cuts[i][0], cuts[i][1], cuts[i][2]));
    fprintf(f, "    return bad;\n}\n");
    fclose(f);
    check(shell("cd %s/numbers && cc -I. ask.c build/runtime/core/*.o build/runtime/host/*.o -o ask $(pkg-config --libs openblas) -lpthread -lm "
                "&& ./ask", tmp), "workspaces are what the runtime says");
    mpp_arena_free(a);
}

static void test_numbers_all(const char *tmp)
{
    static const struct {
        int devices;
        const char *pins, *defines;
    } cases[] = {
        {1, "", "drop=0.25"}, {1, "micro_batches=3", "drop=0.25"}, {2, "mesh=2,shard:*=heads/a", "drop=0.25"},
        {3, "dp=3,micro_batches=2", "drop=0"}, {4, "dp=2,tp=2", "drop=0.25"}, {2, "mesh=2,shard:start=rows/a,shard:*.ln=rows/a,shard:*.bent=rows/a,shard:*.soft=rows/a", "drop=0.25"},
        {4, "dp=2,tp=2,zero=3,micro_batches=3", "drop=0.25 layers=1"}, {2, "tp=2,vocab_parallel=true", "layers=2"},
        {2, "mesh=2,shard:*.out.weight=heads/a,shard:weighed=cols/a", "drop=0"}, {2, "mesh=2,shard:*=cols/a", "drop=0.25"}, {8, "mesh=2x2x2", "drop=0.25"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        test_numbers(tmp, cases[i].devices, cases[i].pins, cases[i].defines);
}

/* ---- what runs as the epilogue of a product ---- */

/* Each branch ends in a kernel, so that its product has a group of its own. */
static const char followed_model[] =
    "<model name=\"followed\" version=\"1\">\n"
    "  <params> <dim name=\"batch\" value=\"6\" role=\"batch\"/> <dim name=\"rows\" value=\"5\"/> <dim name=\"cols\" value=\"8\"/> </params>\n"
    "  <inputs> <input name=\"x\" type=\"f32\" shape=\"batch, rows, cols\"/> <input name=\"y\" type=\"f32\" shape=\"batch, rows, cols\"/>\n"
    "    <input name=\"ids\" type=\"i32\" shape=\"batch, rows\"/> </inputs>\n"
    "  <graph>\n"
    "    <Linear name=\"bias\" in=\"x\" units=\"cols\"/> <Softmax name=\"end1\"/>\n"
    "    <Linear name=\"residual\" in=\"x\" units=\"cols\" bias=\"false\"/> <Add name=\"residual_add\" in=\"residual x\"/> <Softmax name=\"end2\"/>\n"
    "    <Linear name=\"both\" in=\"x\" units=\"cols\"/> <Add name=\"both_add\" in=\"y both\"/> <Softmax name=\"end3\"/>\n"
    "    <Linear name=\"smooth\" in=\"x\" units=\"cols\"/> <Gelu name=\"smooth_gelu\" approximate=\"tanh\"/> <Softmax name=\"end4\"/>\n"
    "    <Linear name=\"plain_smooth\" in=\"x\" units=\"cols\" bias=\"false\"/> <Gelu name=\"plain_gelu\" approximate=\"tanh\"/> <Softmax name=\"end5\"/>\n"
    "    <Linear name=\"two_dims\" in=\"x\" units=\"2, 4\"/> <Softmax name=\"end6\"/> <Linear name=\"again\" units=\"cols\" contract=\"2\"/> <Softmax name=\"end7\"/>\n"
    "    <Linear name=\"first\" in=\"x\" units=\"cols\" bias=\"false\"/> <Linear name=\"second\" in=\"y\" units=\"cols\" bias=\"false\"/>\n"
    "    <Add name=\"first_second\" in=\"first second\"/> <Softmax name=\"end8\"/>\n"
    "    <Linear name=\"exact\" in=\"x\" units=\"cols\"/> <Gelu name=\"exact_gelu\"/> <Softmax name=\"end9\"/>\n"
    "    <Linear name=\"other\" in=\"x\" units=\"cols\"/> <Relu name=\"relu\"/> <Softmax name=\"end10\"/>\n"
    "    <Linear name=\"dropped\" in=\"x\" units=\"cols\"/> <Dropout name=\"dropout\" ratio=\"0.5\"/> <Softmax name=\"end11\"/>\n"
    "    <Linear name=\"shared\" in=\"x\" units=\"cols\" bias=\"false\"/> <Softmax name=\"end12\"/> <Add name=\"shared_add\" in=\"shared x\"/> <Softmax name=\"end13\"/>\n"
    "    <Linear name=\"split\" in=\"x\" units=\"2, cols\"/> <Split name=\"halves\" out=\"left right\" axis=\"2\" num_outputs=\"2\"/> <Mul name=\"sides\" in=\"left right\"/> <Softmax name=\"end14\"/>\n"
    "    <PositionEmbedding name=\"place\" in=\"ids\" max_positions=\"rows\" embedding_dim=\"cols\"/>\n"
    "    <Linear name=\"placed\" in=\"x\" units=\"cols\" bias=\"false\"/> <Add name=\"placed_add\" in=\"placed place\"/> <Softmax name=\"end15\"/>\n"
    "    <Linear name=\"late\" in=\"x\" units=\"cols\"/> <Gelu name=\"late_gelu\" approximate=\"tanh\"/> <Add name=\"late_add\" in=\"late_gelu x\"/> <Softmax name=\"end16\"/>\n"
    "    <Sum name=\"all\" in=\"end1 end2 end3 end4 end5 end7 end8 end9 end10 end11 end12 end13 end14 end15 end16\"/>\n"
    "    <MeanSquaredErrorLoss name=\"loss\" in=\"all y\"/>\n"
    "  </graph>\n"
    "  <training loss=\"loss\"> <optimizer type=\"adamw\" lr=\"0.01\"/> </training>\n"
    "</model>\n";

/* Lines as one, with single blanks. */
static void join_lines(char *text)
{
    char *to = text;
    for (const char *c = text; *c; c++)
        if (!strchr(" \n", *c) || (to > text && to[-1] != ' '))
            *to++ = *c == '\n' ? ' ' : *c;
    *to = 0;
}

/* The forward call that computes the product NAME, up to its end; NULL: none. */
static const char *call_of(struct mpp_arena *a, const char *text, const char *name)
{
    const char *at = strstr(text, mpp_arena_printf(a, "/* %s", name));
    while (at && !strchr(": ,", at[3 + strlen(name)]))
        at = strstr(at + 1, mpp_arena_printf(a, "/* %s", name));
    const char *call = at ? strstr(at, "*/") : NULL, *end = call ? strstr(call, ");") : NULL;
    return end ? mpp_arena_printf(a, "%.*s", (int)(end - at), at) : NULL;
}

static void check_follows(const char *dir, int n, const char *const (*wanted)[2])
{
    struct mpp_arena *a = mpp_arena_new();
    size_t size;
    char *text = read_file(a, path_in(a, dir, "stage0.c"), &size);
    join_lines(text);
    for (int i = 0; i < n; i++) {
        const char *call = call_of(a, text, wanted[i][0]);
        check(call && strstr(call, wanted[i][1]), "epilogues: %s, wanted %s: %s", wanted[i][0], wanted[i][1], call ? call : "no call");
    }
    mpp_arena_free(a);
}

static void test_epilogues(const char *tmp)
{
    static const char *const one[][2] = {
        {"bias", "mpp_gemm_add("}, {"bias with its bias", "p->bias_bias, NULL, p->bias, 8"}, {"residual, residual_add", "8, NULL, p->x, p->residual_add, 8"},
        {"both with its bias, both_add", "p->both_bias, p->y, p->both_add, 8"}, {"smooth with its bias, smooth_gelu", "mpp_gemm_gelu("},
        {"smooth", "p->smooth_bias, p->smooth, p->smooth_gelu, 8"}, {"plain_smooth", "mpp_gemm(" /* the backward pass wants it */},
        {"two_dims with its bias", "mpp_gemm_add("}, {"again with its bias", "mpp_gemm_add("},
        {"first, first_second", "NULL, p->second, p->first_second, 8"}, {"second", "mpp_gemm("}, {"exact", "mpp_gemm("}, {"other", "mpp_gemm("},
        {"dropped", "mpp_gemm("}, {"shared", "mpp_gemm("}, {"split", "mpp_gemm("}, {"placed", "mpp_gemm("}, {"late", "mpp_gemm("}};
    static const char *const split[][2] = {{"attn.c_attn", "mpp_gemm("}, {"attn.c_proj", "mpp_gemm("}, {"mlp.c_proj", "mpp_gemm("},
                                           {"mlp.c_fc with its bias, mlp.gelu", "mpp_gemm_gelu("}};
    struct job j;
    struct mpp_arena *a = mpp_arena_new();
    const char *model = mpp_arena_printf(a, "%s/followed.xml", tmp), *dir = mpp_arena_printf(a, "%s/followed", tmp);
    FILE *f = fopen(model, "w");
    fputs(followed_model, f);
    fclose(f);
    if (build(&j, model, NULL, "") && make_plan(&j, 1, "") && emit(&j, dir)) {
        check_compiles(dir);
        check_follows(dir, sizeof one / sizeof one[0], one);
    }
    close_job(&j);
    dir = mpp_arena_printf(a, "%s/followed-2", tmp);
    if (build(&j, mpp_arena_printf(a, "%s/models/gpt.xml", root), "tiny", "") && make_plan(&j, 2, "tp=2") && emit(&j, dir))
        check_follows(dir, sizeof split / sizeof split[0], split);
    close_job(&j);
    mpp_arena_free(a);
}

int main(int argc, char **argv)
{
    char tmp[] = "/tmp/mpp-emit-XXXXXX";
    if (argc > 1)
        root = argv[1];
    if (!mkdtemp(tmp)) {
        perror("mkdtemp");
        return 1;
    }
    char model[64];
    snprintf(model, sizeof model, "%s/odd.xml", tmp);
    FILE *f = fopen(model, "w");
    fputs(odd_model, f);
    fclose(f);
    test_text(tmp);
    test_names(tmp);
    test_numbers_all(tmp);
    test_workspace(tmp);
    test_epilogues(tmp);
    mpp_outdir_remove(tmp);
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
