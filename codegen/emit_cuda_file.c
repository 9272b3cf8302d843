/* emit_cuda_file.c - kernels.cu, and those of its kernels that are no fused groups. */
#include <string.h>

#include "codegen/emit_internal.h"

/* TEXT with NAME for every @; lines that become too long for it are broken. */
static void add_named(struct mpp_text *out, const char *text, const char *name)
{
    while (*text) {
        struct mpp_text line = {.arena = out->arena};
        int indent = (int)strspn(text, " "), left = (int)strcspn(text, "\n") - indent;
        for (text += indent; left > 0;) {
            int n = (int)strcspn(text, "@\n");
            mpp_text_add(&line, "%.*s%s", n, text, n < left ? name : "");
            text += n + (n < left);
            left -= n + 1;
        }
        mpp_text_line(out, line.n ? indent : 0, mpp_text_string(&line));
        text += *text == '\n';
    }
}

const char *mpp_emit_kernels_cu(struct mpp_emit *e)
{
    struct mpp_text *out = mpp_arena_array(e->arena, 1, struct mpp_text);
    out->arena = e->arena;
    mpp_text_comment(out, 0, "The functions of kernels.h as CUDA kernels, of the same expressions as kernels.c. Of neighbours along "
                             "the innermost loop a thread takes W, 16 bytes of the narrowest type, where extents and addresses allow "
                             "it, else one. Sums are kept in double and added in a fixed order.");
    mpp_text_add(out, "#include \"cuda/fused.cuh\"\n#include \"kernels.h\"\n\n#define restrict __restrict__\n");
    for (int i = 0; i < e->kernels->n; i++) {
        const struct mpp_emit_kernel *k = &e->kernels->list[i];
        mpp_text_add(out, "\n");
        mpp_text_comment(out, 0, k->about);
        add_named(out, k->cuda, k->name);
    }
    return mpp_text_string(out);
}

const char *mpp_emit_accumulate_cuda(struct mpp_emit *e, enum mpp_dtype dtype)
{
    const char *type = mpp_emit_type(dtype), *value = mpp_emit_load(e->arena, dtype, "from.at[lane]");
    const char *kernel = mpp_arena_printf(e->arena,
        "template <int W> __global__ void @_kernel(int64_t n, bool add, const %s *x, float *y)\n"
        "{\n"
        "    MPP_EACH (at, n / W) {\n"
        "        const mpp_pack<%s, W> from = mpp_read_pack<W>(x, at * W);\n"
        "        mpp_pack<float, W> to;\n"
        "        if (add)\n"
        "            to = mpp_read_pack<W>((const float *)y, at * W);\n"
        "        for (int lane = 0; lane < W; lane++)\n"
        "            to.at[lane] = add ? to.at[lane] + %s : %s;\n"
        "        mpp_write_pack<W>(y, at * W, to);\n"
        "    }\n"
        "}\n\n", type, type, value, value);
    int wide = mpp_emit_is_half(dtype) ? 8 : 4;
    return mpp_arena_printf(e->arena,
        "%svoid @(struct mpp_rank *r, int64_t n, bool add, const %s *restrict x, float *restrict y)\n"
        "{\n"
        "    if (n %% %d == 0 && mpp_aligned16(x, y))\n"
        "        MPP_LAUNCH(r, @_kernel<%d>, mpp_grid(n / %d, MPP_BLOCK), MPP_BLOCK, 0, n, add, x, y);\n"
        "    else\n"
        "        MPP_LAUNCH(r, @_kernel<1>, mpp_grid(n, MPP_BLOCK), MPP_BLOCK, 0, n, add, x, y);\n"
        "}\n", kernel, type, wide, wide, wide);
}

const char *mpp_emit_copy_rows_cuda(struct mpp_emit *e, int bytes)
{
    const char *type = bytes == 4 ? "float" : "uint16_t";
    int wide = 16 / bytes;
    const char *kernel = mpp_arena_printf(e->arena,
        "template <int W> __global__ void @_kernel(int64_t rows, int64_t n, const %s *x, int64_t x_step, %s *y, int64_t y_step)\n"
        "{\n"
        "    const int64_t packs = n / W;\n"
        "    MPP_EACH (at, rows * packs) {\n"
        "        const int64_t i = mpp_quotient(at, packs), j0 = (at - i * packs) * W;\n"
        "        mpp_write_pack<W>(y, i * y_step + j0, mpp_read_pack<W>(x, i * x_step + j0));\n"
        "    }\n"
        "}\n\n", type, type);
    return mpp_arena_printf(e->arena,
        "%svoid @(struct mpp_rank *r, int64_t rows, int64_t n, const void *x, int64_t x_step, void *y, int64_t y_step)\n"
        "{\n"
        "    const %s *from = (const %s *)x;\n"
        "    %s *to = (%s *)y;\n"
        "    if (n %% %d == 0 && x_step %% %d == 0 && y_step %% %d == 0 && mpp_aligned16(from, to))\n"
        "        MPP_LAUNCH(r, @_kernel<%d>, mpp_grid(rows * n / %d, MPP_BLOCK), MPP_BLOCK, 0, rows, n, from, x_step, to, y_step);\n"
        "    else\n"
        "        MPP_LAUNCH(r, @_kernel<1>, mpp_grid(rows * n, MPP_BLOCK), MPP_BLOCK, 0, rows, n, from, x_step, to, y_step);\n"
        "}\n", kernel, type, type, type, type, wide, wide, wide, wide, wide);
}
