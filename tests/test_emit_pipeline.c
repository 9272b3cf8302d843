/* test_emit_pipeline.c - the order of passes that is emitted is the schedule's; plans of several stages compile.
 *
 *     test_emit_pipeline [folder of the project] */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "codegen/emit_internal.h"
#include "codegen/outdir.h"
#include "ir/pass.h"
#include "tests/emit_testing.h"

/* ---- the order of passes ---- */

enum { MOST = 40 };

static const struct mpp_schedule schedules[] = {
    {MPP_SCHEDULE_1F1B, 1, 1, 1}, {MPP_SCHEDULE_1F1B, 1, 1, 6}, {MPP_SCHEDULE_1F1B, 2, 1, 1}, {MPP_SCHEDULE_1F1B, 4, 1, 8},
    {MPP_SCHEDULE_1F1B, 6, 1, 2}, {MPP_SCHEDULE_1F1B, 3, 1, 48}, {MPP_SCHEDULE_GPIPE, 1, 1, 3}, {MPP_SCHEDULE_GPIPE, 2, 1, 1},
    {MPP_SCHEDULE_GPIPE, 4, 1, 9}, {MPP_SCHEDULE_INTERLEAVED, 2, 2, 2}, {MPP_SCHEDULE_INTERLEAVED, 2, 3, 8},
    {MPP_SCHEDULE_INTERLEAVED, 4, 2, 4}, {MPP_SCHEDULE_INTERLEAVED, 3, 3, 12},
};
enum { N_SCHEDULES = sizeof schedules / sizeof schedules[0] };

/* The step functions of schedule I, called as the runtime calls them; each pass prints itself. */
static void write_case(struct mpp_arena *arena, FILE *f, int i)
{
    struct mpp_stage stages[8] = {{0}};
    struct mpp_plan plan = {.n_stages = schedules[i].stages, .stages = stages, .pipeline = schedules[i],
                            .micro_batches = schedules[i].micro_batches};
    for (int k = 0; k < plan.n_stages; k++) {
        struct mpp_emit e = {.arena = arena, .index = k, .name = mpp_arena_printf(arena, "c%d_stage%d", i, k), .plan = &plan,
                             .stage = &stages[k]};
        e.stage_text.arena = arena;
        mpp_emit_schedule(&e);
        fprintf(f, "#define forward f%d_%d\n#define backward b%d_%d\n%s#undef forward\n#undef backward\n", i, k, i, k,
                mpp_text_string(&e.stage_text));
    }
}

static void test_order(const char *tmp)
{
    struct mpp_arena *a = mpp_arena_new();
    FILE *f = fopen(mpp_arena_printf(a, "%s/order.c", tmp), "w");
    fprintf(f, "#include <stdio.h>\nstruct mpp_rank { int n; };\n"
               "static void mpp_forward(struct mpp_rank *r, int c, int m) { printf(\"F%%d.%%d \", c, m); r->n++; }\n"
               "static void mpp_backward(struct mpp_rank *r, int c, int m) { printf(\"B%%d.%%d \", c, m); r->n++; }\n");
    for (int i = 0; i < N_SCHEDULES; i++)
        write_case(a, f, i);
    fprintf(f, "int main(void)\n{\n    struct mpp_rank r = {0};\n");
    for (int i = 0; i < N_SCHEDULES; i++)
        for (int k = 0; k < schedules[i].stages; k++)
            fprintf(f, "    c%d_stage%d_step(&r);\n    printf(\"\\n\");\n", i, k);
    fprintf(f, "    return 0;\n}\n");
    fclose(f);
    FILE *want = fopen(mpp_arena_printf(a, "%s/order.want", tmp), "w");
    for (int i = 0; i < N_SCHEDULES; i++)
        for (int k = 0; k < schedules[i].stages; k++) {
            for (int64_t w = 0; w < 2 * schedules[i].micro_batches * schedules[i].chunks; w++) {
                struct mpp_schedule_event event = mpp_schedule_work(&schedules[i], k, w);
                fprintf(want, "%c%d.%d ", event.what == MPP_EVENT_FORWARD ? 'F' : 'B', event.chunk, (int)event.micro_batch);
            }
            fprintf(want, "\n");
        }
    fclose(want);
    check(shell("cd %s && cc -Wall -Wextra -Wno-missing-prototypes -o order order.c && ./order > order.got && cmp order.got order.want", tmp),
          "emitted steps run passes in the schedule's order");
    mpp_arena_free(a);
}

/* ---- plans of several stages ---- */

struct job {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    struct mpp_graph *g;
    struct mpp_plan *plan;
    struct mpp_cluster *cluster;
    struct mpp_transfers *transfers;
    struct mpp_lprog **progs;
};

static bool make_job(struct job *j, int layers, int devices, const char *pins)
{
    *j = (struct job){.arena = mpp_arena_new(), .diag = mpp_diag_new(stdout)};
    const char *define[1] = {mpp_arena_printf(j->arena, "layers=%d", layers)};
    struct mpp_model_options options = {.preset = "tiny", .defines = define, .n_defines = 1};
    struct mpp_model *model;
    struct mpp_pass_ctx ctx = {.arena = j->arena, .diag = j->diag, .before_fuse = true};
    struct mpp_plan_options o = {.pins = mpp_pins_none(), .capacity_bytes = (int64_t)1 << 40};
    bool ok = mpp_model_read(j->arena, j->diag, mpp_arena_printf(j->arena, "%s/models/gpt.xml", root), &options, &model) == MPP_OK
              && mpp_graph_build(j->arena, j->diag, model, &j->g) == MPP_OK && mpp_passes_run(&ctx, j->g) == MPP_OK
              && mpp_cluster_load(j->arena, j->diag, "host", devices, &j->cluster) == MPP_OK
              && mpp_pins_parse(j->arena, j->diag, pins, &o.pins) == MPP_OK
              && mpp_plan_pipeline(j->arena, j->diag, j->g, j->cluster, &o, &j->plan) == MPP_OK
              && mpp_plan_derive(j->arena, j->diag, j->g, j->cluster, j->plan) == MPP_OK
              && mpp_transfers_plan(j->arena, j->diag, j->plan, &j->transfers) == MPP_OK
              && mpp_pipeline_verify(j->arena, j->diag, j->plan, j->transfers) == MPP_OK;
    j->progs = mpp_arena_array(j->arena, ok ? j->plan->n_stages : 0, struct mpp_lprog *);
    for (int i = 0; ok && i < j->plan->n_stages; i++)
        ok = mpp_lower(j->arena, j->plan->stages[i].graph, j->plan, i, j->transfers, INT64_MAX, &j->progs[i]) == MPP_OK;
    return check(ok, "%d layers on %d devices with %s", layers, devices, pins);
}

static bool emit(struct job *j, const char *dir)
{
    mkdir(dir, 0777);
    return check(mpp_emit(j->arena, j->diag, j->g, j->cluster, j->plan, j->transfers, j->progs, dir) == MPP_OK, "%s is written", dir);
}

static int lines_of(const char *dir)
{
    char command[1024];
    snprintf(command, sizeof command, "cat %s/*.c %s/*.h | wc -l", dir, dir);
    FILE *p = popen(command, "r");
    int n = 0;
    if (!p || fscanf(p, "%d", &n) != 1)
        n = -1;
    if (p)
        pclose(p);
    return n;
}

/* Of 8 layers and of 96: as many lines. All files compile, with every compiler there is. */
static void test_stages(const char *tmp, int devices, const char *pins)
{
    struct job j[2];
    const char *dir[2];
    for (int i = 0; i < 2; i++) {
        if (!make_job(&j[i], i ? 96 : 8, devices, pins))
            return;
        dir[i] = mpp_arena_printf(j[i].arena, "%s/plan%d_%d", tmp, devices, i);
        emit(&j[i], dir[i]);
    }
    int few = lines_of(dir[0]), many = lines_of(dir[1]);
    check(few > 0 && many <= few + few / 20, "%s: 96 layers take %d lines, 8 take %d", pins, many, few);
    static const char *const compilers[] = {"gcc", "clang"};
    for (int c = 0; c < 2; c++)
        if (shell("command -v %s >/dev/null", compilers[c]))
            check(shell("cd %s && for f in *.c; do %s -std=c17 -D_GNU_SOURCE -fopenmp-simd -Wall -Wextra -Wshadow -Werror -I. -Iruntime "
                        "-fsyntax-only $f || exit 1; done", dir[0], compilers[c]), "%s accepts the emitted files of %s", compilers[c], pins);
    for (int i = 0; i < 2; i++) {
        mpp_diag_free(j[i].diag);
        mpp_arena_free(j[i].arena);
    }
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
    test_order(tmp);
    test_stages(tmp, 4, "pp=4,schedule=1f1b,micro_batches=4");
    test_stages(tmp, 8, "pp=2,dp=2,tp=2,schedule=gpipe,micro_batches=4,recompute=full");
    test_stages(tmp, 2, "pp=2,schedule=interleaved,interleave=2,micro_batches=4");
    mpp_outdir_remove(tmp);
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
