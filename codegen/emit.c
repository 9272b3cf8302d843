/* emit.c - the local programs as C: each stageN.c first (it finds the kernels and extents), then what it needs. */
#include <string.h>

#include "codegen/emit_internal.h"

static const char *prototype(struct mpp_emit *e, const struct mpp_emit_kernel *k, const char *end)
{
    struct mpp_text s = {.arena = e->arena};
    mpp_text_line(&s, 0, mpp_arena_printf(e->arena, "void %s(%s)%s", k->name, k->params, end));
    return s.data;
}

static const char *kernels_h(struct mpp_emit *e)
{
    struct mpp_text *out = mpp_arena_array(e->arena, 1, struct mpp_text);
    out->arena = e->arena;
    mpp_text_add(out, "/* The loops that this plan fuses: one function per expression and shape, shared by layers, phases%s. */\n"
                      "#ifndef KERNELS_H\n#define KERNELS_H\n\n#include \"runtime/mpp_rt.h\"\n\n#ifdef __cplusplus\nextern \"C\" {\n"
                      "#define restrict __restrict__\n#endif\n",
                 e->plan->n_stages > 1 ? " and stages" : "");
    for (int i = 0; i < e->kernels->n; i++)
        mpp_text_add(out, "\n%s", prototype(e, &e->kernels->list[i], ";"));
    mpp_text_add(out, "\n#ifdef __cplusplus\n#undef restrict\n}\n#endif\n\n#endif\n");
    return mpp_text_string(out);
}

static const char *kernels_c(struct mpp_emit *e)
{
    struct mpp_text *out = mpp_arena_array(e->arena, 1, struct mpp_text);
    out->arena = e->arena;
    mpp_text_add(out, "/* Fused loops. Inputs are a, b, ..., results y; sums are kept in double. */\n"
                      "#include <math.h>\n#include <string.h>\n\n#include \"kernels.h\"\n#include \"runtime/mpp_math.h\"\n");
    for (int i = 0; i < e->kernels->n; i++) {
        const struct mpp_emit_kernel *k = &e->kernels->list[i];
        mpp_text_add(out, "\n");
        mpp_text_comment(out, 0, k->about);
        mpp_text_add(out, "%s{\n%s}\n", prototype(e, k, ""), k->body);
    }
    return mpp_text_string(out);
}

static enum mpp_status write_text(const struct mpp_emit *e, const char *dir, const char *name, const char *text)
{
    return mpp_emit_write(e->diag, e->arena, dir, name, text, strlen(text));
}

static enum mpp_status write_stage(struct mpp_emit *e, const char *dir)
{
    MPP_TRY(write_text(e, dir, mpp_arena_printf(e->arena, "%s.c", e->name), mpp_text_string(&e->stage_text)));
    MPP_TRY(write_text(e, dir, mpp_arena_printf(e->arena, "%s.h", e->name), mpp_emit_stage_h(e)));
    return write_text(e, dir, mpp_arena_printf(e->arena, "%s_tables.c", e->name), mpp_emit_tables_c(e));
}

/* What all stages share. E: any of them. */
static enum mpp_status write_shared(struct mpp_emit *e, struct mpp_lprog *const *progs, const char *dir)
{
    struct mpp_text sources = {.arena = e->arena};
    for (int i = 0; i < e->plan->n_stages; i++)
        mpp_text_add(&sources, "stage%d.c stage%d_tables.c ", i, i);
    mpp_text_add(&sources, "plan.c kernels.c");
    MPP_TRY(write_text(e, dir, "kernels.c", kernels_c(e)));
    MPP_TRY(write_text(e, dir, "kernels.cu", mpp_emit_kernels_cu(e)));
    MPP_TRY(write_text(e, dir, "kernels.h", kernels_h(e)));
    MPP_TRY(write_text(e, dir, "plan.c", mpp_emit_plan_c(e, progs)));
    MPP_TRY(write_text(e, dir, "plan.h", mpp_emit_plan_h(e)));
    MPP_TRY(write_text(e, dir, "Makefile", mpp_emit_makefile(e->arena, mpp_text_string(&sources), e->cluster ? &e->cluster->device : NULL)));
    MPP_TRY(mpp_emit_write_script(e->diag, e->arena, dir, "run.sh", mpp_emit_run_sh(e)));
    MPP_TRY(mpp_emit_write_script(e->diag, e->arena, dir, "run.sbatch", mpp_emit_run_sbatch(e)));
    return mpp_emit_runtime(e->diag, e->arena, dir);
}

enum mpp_status mpp_emit(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_graph *graph,
                         const struct mpp_cluster *cluster, const struct mpp_plan *plan, const struct mpp_transfers *transfers,
                         struct mpp_lprog *const *progs, const char *dir)
{
    const char *const *names = mpp_emit_transfer_names(arena, transfers);
    struct mpp_emit_kernels kernels = {0};
    struct mpp_emit *stages = mpp_arena_array(arena, plan->n_stages, struct mpp_emit);
    bool failed = false;
    for (int i = 0; i < plan->n_stages; i++) {
        stages[i] = (struct mpp_emit){
            .arena = arena, .diag = diag, .whole = graph, .g = plan->stages[i].graph, .index = i,
            .name = mpp_arena_printf(arena, "stage%d", i), .cluster = cluster, .plan = plan, .stage = &plan->stages[i],
            .mesh = &plan->stages[i].mesh, .prog = progs[i], .transfers = transfers, .transfer_name = names,
            .kernels = &kernels, .cls = -1,
        };
        mpp_emit_prepare(&stages[i]);
        mpp_emit_stage(&stages[i]);
        failed = failed || stages[i].failed;
    }
    if (failed)
        return MPP_INVALID;
    for (int i = 0; i < plan->n_stages; i++)
        MPP_TRY(write_stage(&stages[i], dir));
    return write_shared(&stages[0], progs, dir);
}
