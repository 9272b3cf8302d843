/* emit.c - the local program as C: stage0.c first (it finds the kernels and extents), then what it needs. */
#include <string.h>

#include "codegen/emit_internal.h"

static const char *prototype(struct mpp_emit *e, const struct mpp_emit_kernel *k, const char *end)
{
    struct mpp_text s = {.arena = e->arena};
    mpp_text_line(&s, 0, mpp_arena_printf(e->arena, "void %s(%s)%s", k->name, *k->params ? k->params : "void", end));
    return s.data;
}

static const char *kernels_h(struct mpp_emit *e)
{
    struct mpp_text *out = mpp_arena_array(e->arena, 1, struct mpp_text);
    out->arena = e->arena;
    mpp_text_add(out, "/* The loops that this plan fuses: one function per expression and shape, shared by layers and phases. */\n"
                      "#ifndef KERNELS_H\n#define KERNELS_H\n\n#include \"runtime/mpp_rt.h\"\n");
    for (int i = 0; i < e->n_kernels; i++)
        mpp_text_add(out, "\n%s", prototype(e, &e->kernels[i], ";"));
    mpp_text_add(out, "\n#endif\n");
    return mpp_text_string(out);
}

static const char *kernels_c(struct mpp_emit *e)
{
    struct mpp_text *out = mpp_arena_array(e->arena, 1, struct mpp_text);
    out->arena = e->arena;
    mpp_text_add(out, "/* Fused loops. Inputs are a, b, ..., results y; sums are kept in double. */\n"
                      "#include <math.h>\n#include <string.h>\n\n#include \"kernels.h\"\n#include \"runtime/mpp_math.h\"\n");
    for (int i = 0; i < e->n_kernels; i++) {
        const struct mpp_emit_kernel *k = &e->kernels[i];
        mpp_text_add(out, "\n");
        mpp_text_comment(out, 0, k->about);
        mpp_text_add(out, "%s{\n%s}\n", prototype(e, k, ""), k->body);
    }
    return mpp_text_string(out);
}

enum mpp_status mpp_emit(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                         const struct mpp_cluster *cluster, const struct mpp_plan *plan, const struct mpp_lprog *prog,
                         const char *dir)
{
    struct mpp_emit e = {
        .arena = arena, .diag = diag, .g = graph, .cluster = cluster, .plan = plan, .stage = &plan->stages[0],
        .mesh = &plan->stages[0].mesh, .prog = prog, .cls = -1,
    };
    mpp_emit_prepare(&e);
    mpp_emit_stage(&e);
    const struct {
        const char *name, *text;
    } files[] = {
        {"stage0.c", mpp_text_string(&e.stage_text)}, {"kernels.c", kernels_c(&e)}, {"kernels.h", kernels_h(&e)},
        {"plan.c", mpp_emit_plan_c(&e)}, {"plan.h", mpp_emit_plan_h(&e)}, {"Makefile", mpp_emit_makefile(&e)},
    };
    if (e.failed)
        return MPP_INVALID;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        MPP_TRY(mpp_emit_write(diag, arena, dir, files[i].name, files[i].text, strlen(files[i].text)));
    return mpp_emit_runtime(&e, dir);
}
