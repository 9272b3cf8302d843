#include "ir/pass.h"

#include <string.h>

#include "ir/precision.h"

enum mpp_status mpp_passes_run(struct mpp_pass_ctx *ctx, struct mpp_graph *g)
{
    const struct {
        const char *name;
        enum mpp_status (*run)(struct mpp_pass_ctx *, struct mpp_graph *);
    } passes[] = {
        {"build", ctx->unfused ? mpp_pass_unfuse : NULL},
        {"autodiff", mpp_pass_autodiff},
        {"optimizer", mpp_pass_optimizer},
        {"precision", mpp_pass_precision},
        {"fuse", mpp_pass_fuse},
    };
    enum { N_PASSES = sizeof passes / sizeof passes[0] };
    const char *names[N_PASSES];
    bool known = !ctx->dump_after;
    for (int i = 0; i < N_PASSES; i++) {
        names[i] = passes[i].name;
        known = known || strcmp(passes[i].name, ctx->dump_after) == 0;
    }
    if (!known) {
        mpp_diag_error(ctx->diag, (struct mpp_loc){NULL, 0}, "no pass \"%s\" (build, autodiff, optimizer, precision, fuse)%s",
                       ctx->dump_after, mpp_diag_hint(ctx->diag, ctx->dump_after, names, N_PASSES));
        return MPP_INVALID;
    }
    for (int i = 0; i < N_PASSES && !(ctx->before_fuse && passes[i].run == mpp_pass_fuse); i++) {
        if (passes[i].run)
            MPP_TRY(passes[i].run(ctx, g));
        MPP_TRY(mpp_graph_verify(g, ctx->diag, passes[i].name));
        if (ctx->dump_after && strcmp(ctx->dump_after, passes[i].name) == 0)
            mpp_graph_print(g, ctx->dump_to);
    }
    return MPP_OK;
}
