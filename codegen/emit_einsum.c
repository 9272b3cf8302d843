/* emit_einsum.c - contractions: one mpp_gemm where the letters merge into m, n and k, with what follows it (epilogue.c), else
 * mpp_einsum. */
#include <assert.h>
#include <string.h>

#include "codegen/emit_internal.h"
#include "codegen/lower_internal.h"

enum { MAX_LETTERS = 3 * MPP_GRAPH_MAX_DIMS };

#define GEMM_HALF_BYTES 528384 /* MPP_GEMM_HALF_WORKSPACE of the runtime */

struct letters {
    int n, factor[MAX_LETTERS];
};

struct product {
    struct mpp_emit *e;
    const struct mpp_rule *rule;
    struct mpp_split split;
    struct letters operand[3];    /* factors of a, b, c whose local extent isn't 1 */
    struct letters m, n, k;
};

static unsigned mask_of(const struct product *p, int factor)
{
    return mpp_emit_axes(p->e, p->split, factor);
}

static int64_t padded(const struct product *p, int factor)
{
    return mpp_emit_padded(p->e, p->rule->factor[factor].size, mask_of(p, factor));
}

static bool has(const struct letters *l, int factor)
{
    for (int i = 0; i < l->n; i++)
        if (l->factor[i] == factor)
            return true;
    return false;
}

static void read_operands(struct product *p)
{
    for (int o = 0; o < 3; o++)
        for (int d = 0; d < p->rule->operand[o].n_dims; d++)
            for (int k = 0; k < p->rule->operand[o].dim[d].n; k++) {
                int f = p->rule->operand[o].dim[d].factor[k];
                if (padded(p, f) > 1)
                    p->operand[o].factor[p->operand[o].n++] = f;
            }
}

/* Is L exactly FIRST followed by SECOND? */
static bool is_pair(const struct letters *l, const struct letters *first, const struct letters *second)
{
    if (l->n != first->n + second->n)
        return false;
    for (int i = 0; i < l->n; i++)
        if (l->factor[i] != (i < first->n ? first->factor[i] : second->factor[i - first->n]))
            return false;
    return true;
}

/* Only the outermost letter of a merged run may be cut unevenly. */
static bool merges(const struct product *p, const struct letters *l)
{
    for (int i = 1; i < l->n; i++)
        if (mpp_emit_uneven(p->e, p->rule->factor[l->factor[i]].size, mask_of(p, l->factor[i])))
            return false;
    return true;
}

static int64_t stored(const struct product *p, const struct letters *l)
{
    int64_t n = 1;
    for (int i = 0; i < l->n; i++)
        n *= padded(p, l->factor[i]);
    return n;
}

/* The valid extent of a merged run: "512", "p->dim.heads_model.valid * 64". */
static const char *extent(const struct product *p, const struct letters *l)
{
    struct mpp_arena *arena = p->e->arena;
    if (l->n == 0 || !mpp_emit_uneven(p->e, p->rule->factor[l->factor[0]].size, mask_of(p, l->factor[0])))
        return mpp_arena_printf(arena, "%lld", (long long)stored(p, l));
    const char *valid = mpp_emit_valid(p->e, p->rule->factor[l->factor[0]].size, mask_of(p, l->factor[0]));
    int64_t inner = stored(p, l) / padded(p, l->factor[0]);
    return inner == 1 ? valid : mpp_arena_printf(arena, "%s * %lld", valid, (long long)inner);
}

/* Sort the letters into m (a and c), n (b and c) and k; false where there are others. */
static bool classify(struct product *p, int a, int b)
{
    const struct letters *oa = &p->operand[a], *ob = &p->operand[b], *oc = &p->operand[2];
    p->m = p->n = p->k = (struct letters){0};
    for (int i = 0; i < oc->n; i++) {
        int f = oc->factor[i];
        bool in_a = has(oa, f), in_b = has(ob, f);
        if (in_a == in_b)
            return false;
        struct letters *l = in_a ? &p->m : &p->n;
        l->factor[l->n++] = f;
    }
    for (int i = 0; i < oa->n; i++)
        if (!has(oc, oa->factor[i])) {
            if (!has(ob, oa->factor[i]))
                return false;
            p->k.factor[p->k.n++] = oa->factor[i];
        }
    return ob->n == p->n.n + p->k.n && merges(p, &p->m) && merges(p, &p->n) && merges(p, &p->k);
}

struct one_gemm {
    bool trans_a, trans_b;
};

/* One GEMM, with operands A and B (0, 1) playing a and b's parts? */
static bool is_gemm(struct product *p, int a, int b, struct one_gemm *out)
{
    if (!classify(p, a, b) || !is_pair(&p->operand[2], &p->m, &p->n))
        return false;
    bool plain_a = is_pair(&p->operand[a], &p->m, &p->k), plain_b = is_pair(&p->operand[b], &p->k, &p->n);
    out->trans_a = !plain_a && is_pair(&p->operand[a], &p->k, &p->m);
    out->trans_b = !plain_b && is_pair(&p->operand[b], &p->n, &p->k);
    return (plain_a || out->trans_a) && (plain_b || out->trans_b);
}

/* "MPP_TYPE_BF16, MPP_TYPE_F32, ": what the operands are stored as, and the result; nothing where all is f32. */
static const char *types(struct mpp_emit *e, const struct mpp_instr *in)
{
    enum mpp_dtype a = mpp_emit_buffer(e, in->in[0])->dtype, c = mpp_emit_buffer(e, in->out[0])->dtype;
    return mpp_emit_is_half(a) ? mpp_arena_printf(e->arena, "%s%s, ", mpp_emit_type_arg(a), mpp_emit_type_name(c)) : "";
}

/* "false, true, 512, 128, 64, t->x, 64, t->w, 64": how a call of mpp_gemm begins, with operands A and B (0, 1). */
static const char *factors(struct product *p, const struct mpp_instr *in, int a, int b, const struct one_gemm *g)
{
    struct mpp_emit *e = p->e;
    int64_t m = stored(p, &p->m), n = stored(p, &p->n), k = stored(p, &p->k);
    const char *rows = extent(p, &p->m), *columns = extent(p, &p->n), *inner = extent(p, &p->k); /* named in this order */
    return mpp_arena_printf(e->arena, "%s, %s, %s, %s, %s, %s, %lld, %s, %lld", g->trans_a ? "true" : "false",
                            g->trans_b ? "true" : "false", rows, columns, inner, mpp_emit_ptr(e, in->in[a]),
                            (long long)(g->trans_a ? m : k), mpp_emit_ptr(e, in->in[b]), (long long)(g->trans_b ? k : n));
}

static bool emit_gemm(struct product *p, const struct mpp_instr *in, int a, int b)
{
    struct one_gemm g;
    if (!is_gemm(p, a, b, &g))
        return false;
    struct mpp_emit *e = p->e;
    enum mpp_dtype dtype = mpp_emit_buffer(e, in->in[0])->dtype;
    const char *both = factors(p, in, a, b, &g);
    long long ld = (long long)stored(p, &p->n);
    if (in->epilogue < 0) {
        mpp_emit_line(e, "mpp_gemm%s(r, %s%s, %s, %s, %lld);", mpp_emit_half(dtype), types(e, in), both, mpp_emit_beta(e, in->mode[0]),
                      mpp_emit_ptr(e, in->out[0]), ld);
        return true;
    }
    struct mpp_epilogue x;
    bool known = mpp_epilogue_read(e->g, in->group, in->epilogue, &x);
    assert(known && "epilogue.c joined the two");
    const char *bias = x.bias < 0 ? "NULL" : mpp_emit_ptr(e, in->in[2 + x.bias]);
    const char *residual = x.residual < 0 ? "NULL" : mpp_emit_ptr(e, in->in[2 + x.residual]);
    const char *pre = x.pre < 0 ? "NULL" : mpp_emit_ptr(e, in->out[x.pre]);
    mpp_emit_line(e, "mpp_gemm_%s%s(r, %s%s, %s, %s, %s, %lld);", x.gelu ? "gelu" : "add", mpp_emit_half(dtype), mpp_emit_type_arg(dtype),
                  both, bias, x.gelu ? pre : residual, mpp_emit_ptr(e, in->out[x.y]), ld);
    return true;
}

/* In 16 bits: the tiles of mpp_gemm_half, or all operands in f32. */
int64_t mpp_emit_einsum_workspace(const struct mpp_graph *g, const struct mpp_mesh *mesh, const struct mpp_group *group,
                                  struct mpp_split split)
{
    if (!mpp_emit_is_half(g->tensors[group->in[0]].dtype))
        return 0;
    struct mpp_emit e = {.g = g, .mesh = mesh};
    struct product p = {.e = &e, .rule = group->rule, .split = split};
    struct one_gemm one;
    read_operands(&p);
    if (is_gemm(&p, 0, 1, &one) || is_gemm(&p, 1, 0, &one))
        return GEMM_HALF_BYTES;
    int64_t count = 0;
    for (int o = 0; o < 3; o++)
        count += stored(&p, &p.operand[o]);
    return 4 * count;
}

int64_t mpp_emit_einsum_columns(const struct mpp_graph *g, const struct mpp_mesh *mesh, const struct mpp_group *group,
                                struct mpp_split split)
{
    struct mpp_emit e = {.g = g, .mesh = mesh};
    struct product p = {.e = &e, .rule = group->rule, .split = split};
    struct one_gemm one;
    read_operands(&p);
    return is_gemm(&p, 0, 1, &one) || is_gemm(&p, 1, 0, &one) ? stored(&p, &p.n) : 0;
}

static const char *dims_list(struct product *p, const struct mpp_buffer *b)
{
    struct mpp_text s = {.arena = p->e->arena};
    mpp_text_add(&s, "(const int64_t[]){");
    for (int d = 0; d < b->n_dims; d++)
        mpp_text_add(&s, "%s%lld", d ? ", " : "", (long long)b->padded[d]);
    mpp_text_add(&s, "}");
    return s.data;
}

static void emit_general(struct product *p, const struct mpp_instr *in, const char *equation)
{
    struct mpp_emit *e = p->e;
    struct mpp_text valid = {.arena = e->arena};
    char seen[MAX_LETTERS + 1] = "";
    for (const char *c = equation; *c && *c != '>'; c++) {
        if (*c == ',' || *c == '-' || strchr(seen, *c))
            continue;
        int f = 0;
        while (p->rule->factor[f].letter != *c)
            f++;
        mpp_text_add(&valid, "%s%s", seen[0] ? ", " : "", mpp_emit_valid(e, p->rule->factor[f].size, mask_of(p, f)));
        seen[strlen(seen)] = *c;
    }
    mpp_emit_line(e, "mpp_einsum%s(r, %s\"%s\", %s, %s, %s, %s, %s, %s, %s, (const int64_t[]){%s});",
                  mpp_emit_half(mpp_emit_buffer(e, in->in[0])->dtype), types(e, in), equation,
                  mpp_emit_ptr(e, in->in[0]), dims_list(p, mpp_emit_buffer(e, in->in[0])), mpp_emit_ptr(e, in->in[1]),
                  dims_list(p, mpp_emit_buffer(e, in->in[1])), mpp_emit_beta(e, in->mode[0]), mpp_emit_ptr(e, in->out[0]),
                  dims_list(p, mpp_emit_buffer(e, in->out[0])), mpp_text_string(&valid));
}

/* "mlp.c_fc with its bias, mlp.gelu" */
static const char *product_name(struct mpp_emit *e, const struct mpp_instr *in)
{
    const char *product = mpp_emit_op_name(e, &e->g->ops[e->g->groups[in->group].ops[0]]), *bias = mpp_arena_printf(e->arena, "%s.bias", product);
    struct mpp_text s = {.arena = e->arena};
    mpp_text_add(&s, "%s", product);
    for (int k = 0; in->epilogue >= 0 && k < e->g->groups[in->epilogue].n_ops; k++) {
        const char *name = mpp_emit_op_name(e, &e->g->ops[e->g->groups[in->epilogue].ops[k]]);
        mpp_text_add(&s, "%s", strcmp(name, bias) == 0 ? " with its bias" : mpp_arena_printf(e->arena, ", %s", name));
    }
    return s.data;
}

void mpp_emit_einsum(struct mpp_emit *e, const struct mpp_instr *in)
{
    const struct mpp_group *grp = &e->g->groups[in->group];
    const struct mpp_gop *op = &e->g->ops[grp->ops[0]];
    struct mpp_text equation = {.arena = e->arena};
    for (const char *c = mpp_attrs_string(&op->attrs, "equation", ""); *c; c++)
        if (*c != ' ')
            mpp_text_add(&equation, "%c", *c);
    struct product p = {.e = e, .rule = op->rule, .split = in->split};
    read_operands(&p);
    mpp_emit_note(e, "%s: %s, %s x %s -> %s", product_name(e, in), equation.data,
                  mpp_emit_shape(e, mpp_emit_buffer(e, in->in[0])), mpp_emit_shape(e, mpp_emit_buffer(e, in->in[1])),
                  mpp_emit_shape(e, mpp_emit_buffer(e, in->out[0])));
    if (!emit_gemm(&p, in, 0, 1) && !emit_gemm(&p, in, 1, 0))
        emit_general(&p, in, equation.data);
}
