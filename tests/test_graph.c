/* test_graph.c - index rules, shape inference and its messages, shardings, the builder, fusion, the printed form.
 *
 *     test_graph [folder of the project] */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ir/graph_edit.h"
#include "ir/layers.h"
#include "ir/op.h"
#include "ir/pass.h"
#include "ir/rule_text.h"
#include "ir/shape.h"

static int passed, failed;
static const char *root = ".";

#define CHECK(cond, ...)                                      \
    do {                                                      \
        if (cond) {                                           \
            passed++;                                         \
        } else {                                              \
            failed++;                                         \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #cond); \
            printf(__VA_ARGS__);                              \
            printf("\n");                                     \
        }                                                     \
    } while (0)

/* ---- a graph made by hand ---- */

struct bench {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    struct mpp_graph *g;
    int n;
};

static struct bench bench_new(void)
{
    struct bench b = {.arena = mpp_arena_new(), .diag = mpp_diag_new(NULL)};
    b.g = mpp_graph_new(b.arena, NULL, 8);
    return b;
}

static void bench_free(struct bench *b)
{
    mpp_diag_free(b->diag);
    mpp_arena_free(b->arena);
}

/* "batch 8(1), seq 16" as sizes. */
static int read_dims(struct mpp_arena *arena, const char *text, struct mpp_size *dims)
{
    int n = 0;
    char *copy = mpp_arena_strdup(arena, text), *save = NULL;
    for (char *word = strtok_r(copy, ", ", &save); word; word = strtok_r(NULL, ", ", &save)) {
        struct mpp_size *s = &dims[n++];
        *s = (struct mpp_size){0, 0, word};
        if (strspn(word, "0123456789") == 0)
            word = strtok_r(NULL, ", ", &save);
        s->size = strtoll(word, &word, 10);
        if (*word == '(')
            s->per_batch = strtoll(word + 1, NULL, 10);
    }
    return n;
}

static mpp_id tensor(struct bench *b, const char *name, enum mpp_dtype dtype, const char *text)
{
    struct mpp_size dims[MPP_GRAPH_MAX_DIMS];
    int n = read_dims(b->arena, text, dims);
    mpp_id id = mpp_graph_add_tensor(b->g, name, dtype, n, dims);
    b->g->tensors[id].role = MPP_ROLE_INPUT;
    return id;
}

/* Append an op; returns its rule's text, or the message. */
static const char *op_rule(struct bench *b, int kind, int n_in, const mpp_id *in, struct mpp_attrs attrs)
{
    struct mpp_gop proto = {.name = mpp_arena_printf(b->arena, "op%d", b->n++), .scope = "", .repeat = -1, .index = -1,
                            .forward = -1, .phase = MPP_PHASE_FORWARD};
    int before = (int)strlen(mpp_diag_text(b->diag));
    mpp_id op = mpp_graph_add_op(b->g, b->diag, kind, &proto, n_in, in, attrs, NULL);
    if (op < 0)
        return mpp_diag_text(b->diag) + before;
    return mpp_arena_printf(b->arena, "%s%s", mpp_rule_to_text(b->arena, b->g->ops[op].rule),
                            b->g->ops[op].rule->linear ? " linear" : "");
}

static void expect(const char *got, const char *want)
{
    CHECK(strcmp(got, want) == 0, "got  %s\n   want %s", got, want);
}

static void expect_dims(struct bench *b, const char *want)
{
    const struct mpp_gop *op = &b->g->ops[b->g->n_ops - 1];
    expect(mpp_dims_text(b->arena, &b->g->tensors[op->out[0]]), want);
}

static const struct mpp_attrs none = {0, NULL};

/* ---- the written form of rules ---- */

static void test_rule_text(void)
{
    struct mpp_rule_text t;
    CHECK(mpp_rule_text_parse("i32 *i, v+ h -> *i h", &t) && t.n_in == 2 && t.n_out == 1, "embedding");
    CHECK(t.operand[0].i32 && !t.operand[1].i32 && t.operand[0].dim[0].star, "embedding: types");
    CHECK(t.kind[1] == MPP_FACTOR_SUM && t.letter[1] == 'v', "embedding: v+");
    CHECK(mpp_rule_text_parse("b s (n d^) 1 -> b", &t) && t.operand[0].n_dims == 4 && t.operand[0].dim[2].n == 2 &&
              t.operand[0].dim[3].n == 0 && t.kind[3] == MPP_FACTOR_NEVER, "composite");
    CHECK(mpp_rule_text_parse(" -> , ", &t) && t.n_in == 1 && t.n_out == 2 && t.operand[0].n_dims == 0, "scalars");
    CHECK(mpp_rule_text_parse("*i, [i32 b t] -> [*i]", &t) && t.operand[1].optional && t.operand[1].i32 &&
              t.operand[2].optional, "optional");
    for (const char *const *bad = (const char *const[]){"a b", "a -> b -> c", "a, a+ -> a", "(a -> a", "[a -> a", "? -> a",
                                                        NULL}; *bad; bad++)
        CHECK(!mpp_rule_text_parse(*bad, &t), "\"%s\" was accepted", *bad);
    for (int kind = 0; kind < MPP_OP_COUNT; kind++) {
        const struct mpp_op_info *info = mpp_op_info(kind);
        CHECK(!*info->rule || mpp_rule_text_parse(info->rule, &t), "rule of %s", info->name);
        CHECK(mpp_op_find(info->name) == kind, "%s is not found by its name", info->name);
    }
}

/* ---- shapes ---- */

static void test_shapes_elementwise(void)
{
    struct bench b = bench_new();
    mpp_id x = tensor(&b, "x", MPP_F32, "batch 8(1), seq 16, hidden 12"), bias = tensor(&b, "bias", MPP_F32, "hidden 12");
    mpp_id ids = tensor(&b, "ids", MPP_I32, "batch 8(1), seq 16"), one = tensor(&b, "one", MPP_F32, "");
    mpp_id wrong = tensor(&b, "wrong", MPP_F32, "width 10"), rows = tensor(&b, "rows", MPP_F32, "8, 16, 1");
    expect(op_rule(&b, MPP_OP_ADD, 2, (mpp_id[]){x, bias}, none), "i j k, k -> i j k linear");
    expect_dims(&b, "[batch 8, seq 16, hidden 12]");
    expect(op_rule(&b, MPP_OP_MUL, 2, (mpp_id[]){bias, x}, none), "i, j k i -> j k i");
    expect(op_rule(&b, MPP_OP_ADD, 2, (mpp_id[]){x, one}, none), "i j k,  -> i j k linear");
    expect(op_rule(&b, MPP_OP_ADD, 2, (mpp_id[]){x, wrong}, none),
           "error: Add \"op3\": hidden is 12 in x [batch 8, seq 16, hidden 12] and 10 in wrong [width 10]\n");
    expect(op_rule(&b, MPP_OP_ADD, 2, (mpp_id[]){x, rows}, none),
           "error: Add \"op4\": batch is 8 in x [batch 8, seq 16, hidden 12] and 8 in rows [8, 16, 1]; only one of them "
           "changes with the batch\n");
    expect(op_rule(&b, MPP_OP_ADD, 2, (mpp_id[]){x, ids}, none), "error: Add \"op5\": ids is i32, but f32 is wanted\n");
    struct mpp_size dims[2];
    read_dims(b.arena, "1, wide 5", dims);
    expect(op_rule(&b, MPP_OP_CONSTANT, 0, NULL,
                   MPP_ATTRS(b.arena, mpp_attr_dims("shape", 2, dims), mpp_attr_float("value", 1))), "-> 1 i");
    expect(op_rule(&b, MPP_OP_EXPAND, 1, &one, MPP_ATTRS(b.arena, mpp_attr_dims("shape", 2, dims))), " -> 1 i");
    bench_free(&b);
}

static struct mpp_attrs ints(struct bench *b, const char *name, int n, const int64_t *v)
{
    return MPP_ATTRS(b->arena, mpp_attr_ints(name, n, v), mpp_attr_bool("keepdims", false));
}

static void test_shapes_layout(void)
{
    struct bench b = bench_new();
    mpp_id x = tensor(&b, "x", MPP_F32, "batch 8(1), 3, heads 4, dim 5"), y = tensor(&b, "y", MPP_F32, "batch 8(1), width 6");
    struct mpp_attrs perm = MPP_ATTRS(b.arena, mpp_attr_ints("perm", 4, (int64_t[]){0, 2, 1, 3}));
    expect(op_rule(&b, MPP_OP_TRANSPOSE, 1, &x, perm), "i j k l -> i k j l linear");
    expect_dims(&b, "[batch 8, heads 4, 3, dim 5]");
    expect(op_rule(&b, MPP_OP_TRANSPOSE, 1, &y, perm), "error: Transpose \"op1\": perm must list each of 0 to 1 once\n");
    struct mpp_attr axis1 = mpp_attr_int("axis", 1);
    expect(op_rule(&b, MPP_OP_SPLIT, 1, &x, MPP_ATTRS(b.arena, axis1, mpp_attr_int("num_outputs", 3))),
           "i j^ k l -> i k l, i k l, i k l linear");
    expect_dims(&b, "[batch 8, heads 4, dim 5]");
    expect(op_rule(&b, MPP_OP_SPLIT, 1, &y, MPP_ATTRS(b.arena, axis1, mpp_attr_int("num_outputs", 2))),
           "i j! -> i k!, i k linear");
    expect(op_rule(&b, MPP_OP_SPLIT, 1, &y, MPP_ATTRS(b.arena, axis1, mpp_attr_ints("sizes", 2, (int64_t[]){5, 1}))),
           "i j! -> i k!, i 1 linear");
    expect(op_rule(&b, MPP_OP_SPLIT, 1, &y, MPP_ATTRS(b.arena, axis1, mpp_attr_ints("sizes", 2, (int64_t[]){5, 2}))),
           "error: Split \"op5\": sizes must be positive and add up to 6, dimension 1 of y [batch 8, width 6]\n");
    expect(op_rule(&b, MPP_OP_CONCAT, 2, (mpp_id[]){y, y}, MPP_ATTRS(b.arena, axis1)), "i k!, i l! -> i j! linear");
    expect_dims(&b, "[batch 8, 12]");
    expect(op_rule(&b, MPP_OP_CONCAT, 2, (mpp_id[]){y, y}, MPP_ATTRS(b.arena, axis1, mpp_attr_bool("stack", true))),
           "i j, i j -> i k^ j linear");
    expect_dims(&b, "[batch 8, 2, width 6]");
    expect(op_rule(&b, MPP_OP_REDUCE_SUM, 1, &x, ints(&b, "axes", 2, (int64_t[]){0, -1})), "i+ j k l+ -> j k linear");
    expect(op_rule(&b, MPP_OP_REDUCE_MAX, 1, &y, ints(&b, "axes", 1, (int64_t[]){1})), "i j! -> i");
    struct mpp_attrs keep = MPP_ATTRS(b.arena, mpp_attr_ints("axes", 1, (int64_t[]){1}), mpp_attr_bool("keepdims", true));
    expect(op_rule(&b, MPP_OP_REDUCE_MEAN, 1, &y, keep), "i j+ -> i 1 linear");
    bench_free(&b);
}

static const char *reshape(struct bench *b, const char *from, const char *to)
{
    mpp_id x = tensor(b, mpp_arena_printf(b->arena, "x%d", b->n), MPP_F32, from);
    struct mpp_size dims[MPP_GRAPH_MAX_DIMS];
    int n = read_dims(b->arena, to, dims);
    return op_rule(b, MPP_OP_RESHAPE, 1, &x, MPP_ATTRS(b->arena, mpp_attr_dims("shape", n, dims)));
}

static void test_shapes_reshape(void)
{
    struct bench b = bench_new();
    expect(reshape(&b, "batch 8(1), seq 6, hidden 12", "batch 8(1), seq 6, heads 3, dim 4"), "i j (k l!) -> i j k l linear");
    CHECK(b.g->ops[0].rule->factor[2].even_only && !b.g->ops[0].rule->factor[0].even_only, "even parts");
    expect(reshape(&b, "batch 8(1), seq 6, heads 3, dim 4", "rows 48(6), hidden 12"), "i j! k l! -> (i j) (k l) linear");
    expect_dims(&b, "[batch*seq 48, heads*dim 12]");
    expect(reshape(&b, "a 6, b 4", "c 4, d 6"), "i! j! -> k! l! linear");
    expect(reshape(&b, "a 6, 1, b 4", "6, 4, 1"), "i 1 j -> i j 1 linear");
    expect(reshape(&b, "a 6", "3, 1, 2"), "(i j! k!) -> i j k linear");
    expect(reshape(&b, "a 6", "7"), "error: Reshape \"op5\": x5 [a 6] has 6 elements, the new shape 7\n");
    expect(reshape(&b, "", "1, 1"), " -> 1 1 linear");
    CHECK(!mpp_rule_can_split(b.g->ops[0].rule, 2, 2) && mpp_rule_can_split(b.g->ops[0].rule, 2, 3) &&
              mpp_rule_can_split(b.g->ops[0].rule, 1, 4) && !mpp_rule_can_split(b.g->ops[0].rule, 1, 7), "can_split");
    mpp_graph_set_batch(b.g, 3);
    CHECK(b.g->ops[0].rule->factor[0].size.size == 3 && mpp_tensor_count(&b.g->tensors[b.g->ops[1].out[0]]) == 18 * 12,
          "set_batch");
    CHECK(mpp_attrs_find(&b.g->ops[1].attrs, "shape")->dims[0].size == 18, "set_batch: attributes");
    CHECK(mpp_graph_verify(b.g, b.diag, "test") == MPP_OK, "%s", mpp_diag_text(b.diag));
    bench_free(&b);
}

static void test_shapes_contraction(void)
{
    struct bench b = bench_new();
    mpp_id x = tensor(&b, "x", MPP_F32, "batch 8, seq 1024, hidden 1600"), w = tensor(&b, "weight", MPP_F32, "hidden 1500, out 1600");
    mpp_id ok = tensor(&b, "ok", MPP_F32, "hidden 1600, heads 25, dim 64"), ids = tensor(&b, "ids", MPP_I32, "batch 8, seq 4");
    struct mpp_attrs eq = MPP_ATTRS(b.arena, mpp_attr_string("equation", "bsh,hn->bsn"));
    struct mpp_gop proto = {.name = "h.3.attn.c_proj", .scope = "h.3.attn", .item_type = "Linear", .loc = {"gpt.xml", 31},
                            .path = "in block \"attention\", called as h.3.attn at gpt.xml:58", .repeat = -1, .index = -1};
    mpp_graph_add_op(b.g, b.diag, MPP_OP_EINSUM, &proto, 2, (mpp_id[]){x, w}, eq, NULL);
    expect(mpp_diag_text(b.diag),
           "gpt.xml:31: error: Linear \"c_proj\": hidden is 1600 in x [batch 8, seq 1024, hidden 1600] and 1500 in weight "
           "[hidden 1500, out 1600]\n    in block \"attention\", called as h.3.attn at gpt.xml:58\n");
    expect(op_rule(&b, MPP_OP_EINSUM, 2, (mpp_id[]){x, ok}, MPP_ATTRS(b.arena, mpp_attr_string("equation", "bsh,hnd->bnsd"))),
           "b s h+, h n d -> b n s d");
    CHECK(mpp_op_flops(b.g, &b.g->ops[0]) == 2.0 * 8 * 1024 * 1600 * 1600, "flops %g", mpp_op_flops(b.g, &b.g->ops[0]));
    for (const char *const *bad = (const char *const[]){"bsh->bs", "bsh,hn,n->b", "bsh,hnd->bsz", "bsh,hnd->bb", "bbh,hnd->b",
                                                        "bs,hnd->b", "", NULL}; *bad; bad++) {
        int errors = mpp_diag_errors(b.diag);
        op_rule(&b, MPP_OP_EINSUM, 2, (mpp_id[]){x, ok}, MPP_ATTRS(b.arena, mpp_attr_string("equation", *bad)));
        CHECK(mpp_diag_errors(b.diag) == errors + 1, "\"%s\": %d errors", *bad, mpp_diag_errors(b.diag) - errors);
    }
    mpp_id table = tensor(&b, "table", MPP_F32, "vocab 50, hidden 12"), dy = tensor(&b, "dy", MPP_F32, "batch 8, seq 4, hidden 12");
    expect(op_rule(&b, MPP_OP_EMBEDDING, 2, (mpp_id[]){ids, table}, none), "i j, v+ h -> i j h");
    struct mpp_size vocab = {50, 0, "vocab"};
    expect(op_rule(&b, MPP_OP_EMBEDDING_GRAD, 2, (mpp_id[]){ids, dy}, MPP_ATTRS(b.arena, mpp_attr_dims("num_embeddings", 1, &vocab))),
           "i+ j+, i j h -> k h");
    b.n = 100;
    expect(op_rule(&b, MPP_OP_EMBEDDING, 2, (mpp_id[]){dy, table}, none),
           "error: EmbeddingLookup \"op100\": dy is f32, but i32 is wanted\n");
    expect(op_rule(&b, MPP_OP_LAYERNORM, 3, (mpp_id[]){dy, -1, -1}, none), "i j h~, -, - -> i j h, i j, i j");
    expect(op_rule(&b, MPP_OP_LAYERNORM, 3, (mpp_id[]){-1, -1, -1}, none),
           "error: LayerNorm \"op102\": operand 1 is left out, but it is required\n");
    mpp_id q = tensor(&b, "q", MPP_F32, "batch 8, seq 4, heads 3, dim 5"), mask = tensor(&b, "mask", MPP_I32, "batch 8, seq 4");
    expect(op_rule(&b, MPP_OP_ATTENTION, 4, (mpp_id[]){q, q, q, mask}, none),
           "b s n d^, b t! n d, b t n e^, b t -> b s n e, b n s");
    CHECK(mpp_op_flops(b.g, &b.g->ops[b.g->n_ops - 1]) == 2.0 * 8 * 4 * 4 * 3 * (5 + 5), "attention's flops");
    expect(op_rule(&b, MPP_OP_SGD, 4, (mpp_id[]){table, table, tensor(&b, "s", MPP_F32, ""), -1}, none), "i j, i j, , - -> i j");
    bench_free(&b);
}

/* ---- shardings ---- */

/* Number the elements of a dimension by nested blocks and count what lies at COORD. */
static void brute_block(const struct mpp_mesh *mesh, int64_t size, unsigned mask, const int *coord, int64_t *out_first,
                        int64_t *out_count)
{
    *out_count = 0;
    *out_first = -1;
    for (int64_t e = 0; e < size; e++) {
        int64_t extent = size, rest = e;
        bool here = true;
        for (int a = 0; a < mesh->n_axes; a++) {
            if (!(mask >> a & 1))
                continue;
            extent = (extent + mesh->size[a] - 1) / mesh->size[a];
            here = here && rest / extent == coord[a];
            rest %= extent;
        }
        if (here && (*out_count)++ == 0)
            *out_first = e;
    }
}

static void test_blocks(void)
{
    int bad = 0, seen = 0;
    for (int64_t size = 1; size <= 30; size++) {
        for (int shape = 0; shape < 125; shape++) {
            struct mpp_mesh mesh = {3, {1 + shape % 5, 1 + shape / 5 % 5, 1 + shape / 25}, {NULL}};
            for (unsigned mask = 0; mask < 8; mask++) {
                int64_t total = 0, padded = mpp_block_padded(&mesh, size, mask);
                for (int c = 0; c < mesh.size[0] * mesh.size[1] * mesh.size[2]; c++) {
                    int coord[3] = {c % mesh.size[0], c / mesh.size[0] % mesh.size[1], c / mesh.size[0] / mesh.size[1]};
                    bool counted = true;
                    int64_t first, count, offset, valid = mpp_block_valid(&mesh, size, mask, coord, &offset);
                    brute_block(&mesh, size, mask, coord, &first, &count);
                    bad += valid != count || valid > padded || (count > 0 && offset != first) || offset > size;
                    for (int a = 0; a < 3; a++)
                        counted = counted && (mask >> a & 1 || coord[a] == 0);
                    total += counted ? valid : 0;
                    seen++;
                }
                bad += total != size;
            }
        }
    }
    CHECK(bad == 0, "%d of %d blocks are wrong", bad, seen);
}

static void expect_operand(struct bench *b, const struct mpp_rule *rule, const struct mpp_mesh *mesh, mpp_id t, int operand,
                           int a0, int a1, const char *want)
{
    struct mpp_split split = {{(int8_t)a0, (int8_t)a1, MPP_WHOLE}};
    expect(mpp_sharding_text(b->arena, &b->g->tensors[t], mesh, mpp_split_operand(rule, split, operand)), want);
}

static void test_shardings(void)
{
    struct bench b = bench_new();
    struct mpp_mesh mesh = {2, {2, 3, 1}, {"data", "model", NULL}};
    mpp_id x = tensor(&b, "x", MPP_F32, "batch 8(1), seq 4, hidden 7"), w = tensor(&b, "w", MPP_F32, "hidden 7, ffn 10");
    op_rule(&b, MPP_OP_EINSUM, 2, (mpp_id[]){x, w}, MPP_ATTRS(b.arena, mpp_attr_string("equation", "bsh,hf->bsf")));
    const struct mpp_rule *r = b.g->ops[0].rule; /* b s h f */
    mpp_id y = b.g->ops[0].out[0];
    expect_operand(&b, r, &mesh, x, 0, 0, 3, "[batch/data, seq, hidden]");
    expect_operand(&b, r, &mesh, w, 1, 0, 3, "[hidden, ffn/model]");
    expect_operand(&b, r, &mesh, y, 2, 0, 3, "[batch/data, seq, ffn/model]");
    expect_operand(&b, r, &mesh, y, 2, 0, 2, "[batch/data, seq, ffn] partial over model");
    expect_operand(&b, r, &mesh, w, 1, 2, 2, "[hidden/data/model, ffn]");
    expect_operand(&b, r, &mesh, y, 2, 2, 2, "[batch, seq, ffn] partial over data, model");
#define LEGAL(a0, a1) mpp_split_legal(r, &mesh, (struct mpp_split){{(a0), (a1), MPP_WHOLE}})
    CHECK(LEGAL(0, 3) && LEGAL(2, 2) && LEGAL(-1, -1) && !LEGAL(1, 1) && !LEGAL(4, -1) && !LEGAL(MPP_PARTIAL, 0), "legal");
    CHECK(!mpp_split_legal(r, &mesh, (struct mpp_split){{0, 1, 2}}), "an axis that isn't there");
    struct mpp_sharding s = mpp_split_operand(r, (struct mpp_split){{0, 3, MPP_WHOLE}}, 2);
    CHECK(mpp_sharding_bytes(&b.g->tensors[y], &mesh, s) == 4 * 4 * 4 * 4, "padded bytes");
    CHECK(mpp_sharding_mask(s, 2) == 2 && mpp_sharding_mask(s, 1) == 0, "mask");
    op_rule(&b, MPP_OP_ADD, 2, (mpp_id[]){x, x}, none);
    r = b.g->ops[1].rule;
    CHECK(LEGAL(MPP_PARTIAL, 0) && mpp_split_operand(r, (struct mpp_split){{MPP_PARTIAL, 0, -1}}, 1).axis[0] == MPP_PARTIAL,
          "linear ops take partial sums");
    op_rule(&b, MPP_OP_LAYERNORM, 3, (mpp_id[]){x, -1, -1}, none);
    const struct mpp_gop *norm = &b.g->ops[2];
    struct mpp_internal internal[4];
    CHECK(mpp_op_internal(b.g, norm, &mesh, (struct mpp_split){{0, 1, -1}}, internal, 4) == 0, "no ~ factor is split");
    int n = mpp_op_internal(b.g, norm, &mesh, (struct mpp_split){{0, 2, -1}}, internal, 4);
    CHECK(n == 2 && internal[0].elements == 16 && !internal[0].max, "%d internal collectives", n);
    bench_free(&b);
}

/* ---- whole models ---- */

struct loaded {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    struct mpp_graph *g;
    enum mpp_status status;
};

static struct loaded load(const char *path, const char *preset, const char *define, bool passes)
{
    struct loaded l = {.arena = mpp_arena_new(), .diag = mpp_diag_new(NULL)};
    struct mpp_model_options options = {.preset = preset, .n_defines = define ? 1 : 0, .defines = &define};
    struct mpp_model *model;
    struct mpp_pass_ctx ctx = {.arena = l.arena, .diag = l.diag};
    l.status = mpp_model_read(l.arena, l.diag, path, &options, &model);
    if (l.status == MPP_OK)
        l.status = mpp_graph_build(l.arena, l.diag, model, &l.g);
    if (l.status == MPP_OK && passes)
        l.status = mpp_passes_run(&ctx, l.g);
    return l;
}

static struct loaded load_model(const char *file, const char *preset, const char *define, bool passes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/models/%s", root, file);
    struct loaded l = load(path, preset, define, passes);
    CHECK(l.status == MPP_OK, "%s %s: %s", file, preset ? preset : "", mpp_diag_text(l.diag));
    return l;
}

static void unload(struct loaded *l)
{
    mpp_diag_free(l->diag);
    mpp_arena_free(l->arena);
}

static void test_param_counts(void)
{
    static const struct {
        const char *file, *preset;
        long long count;
    } models[] = {
        {"gpt.xml", "gpt2", 124439808},        {"gpt.xml", "gpt2-medium", 354823168}, {"gpt.xml", "gpt2-large", 774030080},
        {"gpt.xml", "gpt2-xl", 1557611200},    {"bert.xml", "base", 109514298},  {"bert.xml", "large", 335174458},
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        struct loaded l = load_model(models[i].file, models[i].preset, NULL, false);
        if (l.status == MPP_OK)
            CHECK(mpp_graph_param_count(l.g) == models[i].count, "%s has %lld", models[i].preset,
                  (long long)mpp_graph_param_count(l.g));
        unload(&l);
    }
}

static bool in_group(const struct mpp_group *group, mpp_id op)
{
    return op >= group->ops[0] && op < group->ops[0] + group->n_ops;
}

/* What "fuse" promises, on any graph (the verifier has checked borders, order and coverage). */
static void check_fused(const struct mpp_graph *g, const char *what)
{
    int multi = 0, bad = 0;
    for (int i = 0; i < g->n_groups; i++) {
        const struct mpp_group *group = &g->groups[i];
        bool linear = true;
        multi += group->n_ops > 1;
        for (int m = 0; m < group->n_ops; m++) {
            const struct mpp_gop *op = &g->ops[group->ops[m]];
            int8_t factor[MPP_MAX_FACTORS];
            mpp_group_factors(g, group, m, factor);
            linear = linear && op->rule->linear;
            bad += group->n_ops > 1 && op->rule->n_factors != group->rule->n_factors;
            for (int f = 0; f < op->rule->n_factors; f++) {
                const struct mpp_factor *own = &op->rule->factor[f], *shared = &group->rule->factor[factor[f]];
                bad += own->size.size != shared->size.size || own->kind > shared->kind;
            }
            for (int k = 0; k < op->n_in && group->n_ops > 1; k++) {
                mpp_id maker = g->tensors[op->in[k]].op;
                if (maker < 0 || !in_group(group, maker))
                    continue;
                bad += mpp_op_info(g->ops[maker].kind)->cls == MPP_CLASS_REDUCE || g->ops[maker].n_out > 1;
            }
        }
        bad += group->n_ops > 1 && (group->n_in > 16 || group->n_out > 8);
        bad += linear != group->rule->linear;
    }
    CHECK(bad == 0, "%s: %d faults in groups", what, bad);
    CHECK(multi > 0, "%s: nothing was fused", what);
}

/* "Add+Split" for every group of layer INDEX in PHASE. */
static const char *layer_groups(struct mpp_arena *arena, const struct mpp_graph *g, int index, enum mpp_phase phase)
{
    const char *text = "";
    for (int i = 0; i < g->n_groups; i++) {
        const struct mpp_group *group = &g->groups[i];
        if (group->phase != phase || g->ops[group->ops[0]].index != index)
            continue;
        for (int m = 0; m < group->n_ops; m++)
            text = mpp_arena_printf(arena, "%s%s%s", text, m ? "+" : *text ? " " : "",
                                    mpp_op_info(g->ops[group->ops[m]].kind)->name);
    }
    return text;
}

/* Layers of one repeat come out alike, so that they can be planned and emitted once. */
static void check_alike(struct loaded *l, const char *what)
{
    for (enum mpp_phase phase = MPP_PHASE_FORWARD; l->status == MPP_OK && phase <= MPP_PHASE_UPDATE; phase++) {
        const char *first = layer_groups(l->arena, l->g, 0, phase), *next;
        CHECK(*first, "%s: no layers", what);
        for (int i = 1; *(next = layer_groups(l->arena, l->g, i, phase)); i++)
            CHECK(strcmp(next, first) == 0, "%s, layer %d, phase %d:\n%s\n%s", what, i, (int)phase, first, next);
    }
}

static void test_fuse(void)
{
    struct loaded l = load_model("gpt.xml", "tiny", NULL, true);
    if (l.status == MPP_OK) {
        check_fused(l.g, "gpt");
        check_alike(&l, "gpt");
        expect(layer_groups(l.arena, l.g, 1, MPP_PHASE_FORWARD),
               "LayerNorm Einsum Add+Split Attention Einsum Add+Add LayerNorm Einsum Add+Gelu Einsum Add+Add");
        const char *backward = layer_groups(l.arena, l.g, 1, MPP_PHASE_BACKWARD);
        CHECK(strstr(backward, "GeluGrad+ReduceSum") && strstr(backward, "Add+ReduceSum") &&
                  strstr(backward, "Concat+ReduceSum"), "%s", backward);
    }
    unload(&l);
    l = load_model("gpt.xml", "tiny", "pdrop=0.1", true);
    if (l.status == MPP_OK) {
        check_fused(l.g, "gpt with dropout");
        check_alike(&l, "gpt with dropout");
        expect(layer_groups(l.arena, l.g, 1, MPP_PHASE_FORWARD), "LayerNorm Einsum Add+Split Attention Einsum "
               "Add+Dropout+Add LayerNorm Einsum Add+Gelu Einsum Add+Dropout+Add");
    }
    unload(&l);
    static const char *const others[] = {"bert.xml", "mlp.xml"};
    for (int i = 0; i < 2; i++) {
        l = load_model(others[i], NULL, NULL, true);
        if (l.status == MPP_OK)
            check_fused(l.g, others[i]);
        check_alike(&l, others[i]);
        unload(&l);
    }
}

static char *printed(const struct mpp_graph *g, size_t *out_size)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, out_size);
    mpp_graph_print(g, f);
    fclose(f);
    return text;
}

static void test_print_parse(void)
{
    static const char *const files[] = {"gpt.xml", "bert.xml", "mlp.xml"};
    for (int i = 0; i < 6; i++) {
        struct loaded l = load_model(files[i % 3], NULL, NULL, i < 3);
        if (l.status != MPP_OK) {
            unload(&l);
            continue;
        }
        mpp_graph_set_batch(l.g, i % 2 ? l.g->global_batch : 2);
        size_t n1, n2 = 0;
        char *first = printed(l.g, &n1), *second = NULL;
        struct mpp_graph *again;
        enum mpp_status st = mpp_graph_parse(l.arena, l.diag, "printed", first, n1, &again);
        CHECK(st == MPP_OK, "%s: %s", files[i % 3], mpp_diag_text(l.diag));
        if (st == MPP_OK) {
            second = printed(again, &n2);
            CHECK(n1 == n2 && memcmp(first, second, n1) == 0, "%s is printed otherwise after reading", files[i % 3]);
        }
        free(first);
        free(second);
        unload(&l);
    }
}

/* Whatever is done to the text, reading it ends in a graph that verifies or in one message. */
static void test_parse_mutations(void)
{
    struct loaded l = load_model("mlp.xml", NULL, NULL, true);
    if (l.status != MPP_OK) {
        unload(&l);
        return;
    }
    size_t n;
    char *text = printed(l.g, &n);
    uint64_t random = 1;
    int silent = 0;
    for (int round = 0; round < 3000; round++) {
        char *copy = malloc(n + 1);
        memcpy(copy, text, n + 1);
        for (int k = 0; k < 1 + round % 3; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            copy[(random >> 33) % n] = "0123456789-,()[]{}\"\n a="[(random >> 20) % 22];
        }
        struct mpp_arena *arena = mpp_arena_new();
        struct mpp_diag *diag = mpp_diag_new(NULL);
        struct mpp_graph *g;
        enum mpp_status st = mpp_graph_parse(arena, diag, "text", copy, round % 7 ? n : (random >> 33) % n, &g);
        silent += st != MPP_OK && mpp_diag_errors(diag) == 0;
        mpp_diag_free(diag);
        mpp_arena_free(arena);
        free(copy);
    }
    CHECK(silent == 0, "%d refusals without a message", silent);
    free(text);
    unload(&l);
}

/* ---- the builder's messages ---- */

/* A model around GRAPH, read and built; PATH [40] gets the file's name; the caller removes it. */
static struct loaded load_around(const char *graph, bool passes, char *path)
{
    strcpy(path, "/tmp/mpp_test_graph_XXXXXX");
    int fd = mkstemp(path);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    CHECK(f, "no temporary file");
    if (!f)
        exit(1);
    fprintf(f,
            "<model name=\"t\" version=\"1\">\n<params><dim name=\"batch\" value=\"8\" role=\"batch\"/><dim name=\"seq\" "
            "value=\"6\"/><dim name=\"hidden\" value=\"12\"/><dim name=\"heads\" value=\"3\"/></params>\n"
            "<block name=\"part\"><Linear name=\"c\" units=\"5\"/><Add in=\"%%x c\"/></block>\n"
            "<inputs><input name=\"x\" type=\"f32\" shape=\"batch, seq, hidden\"/><input name=\"ids\" type=\"i32\" "
            "shape=\"batch, seq\"/>\n<input name=\"few\" type=\"i32\" shape=\"batch, seq\" limit=\"10\"/>"
            "<input name=\"ones\" type=\"i32\" shape=\"batch, seq\" role=\"ones\"/><input name=\"shown\" type=\"i32\" "
            "shape=\"batch, seq\" role=\"masked_labels\"/><input name=\"masked\" type=\"i32\" shape=\"batch, seq\" "
            "role=\"masked_tokens\"/></inputs>\n<graph>\n%s\n%s</graph>\n<training loss=\"loss\"><batch micro=\"auto\"/>"
            "<optimizer type=\"adamw\" lr=\"1e-3\"/></training>\n<data><dataset format=\"synthetic\" mask_id=\"6\"/></data>\n"
            "</model>\n", graph,
            strstr(graph, "\"loss\"") ? "" : "<MeanSquaredErrorLoss name=\"loss\" in=\"x x\"/>");
    fclose(f);
    return load(path, NULL, NULL, passes);
}

/* Its messages ("" when it builds). */
static const char *built(struct mpp_arena *arena, const char *graph, bool passes)
{
    char path[40];
    struct loaded l = load_around(graph, passes, path);
    const char *text = mpp_arena_strdup(arena, mpp_diag_text(l.diag));
    const char *first = strstr(text, "error: ");
    unlink(path);
    unload(&l);
    return first ? first : text;
}

/* Samples per micro-batch that the built model asks for (0: any). */
static int64_t built_micro(const char *graph, bool *out_whole)
{
    char path[40];
    struct loaded l = load_around(graph, false, path);
    int64_t micro = l.g && l.g->model ? l.g->model->training.micro : -1;
    *out_whole = l.g && l.g->whole_batch;
    unlink(path);
    unload(&l);
    return micro;
}

static void test_builder(void)
{
    struct mpp_arena *arena = mpp_arena_new();
    static const struct {
        const char *graph, *message;
    } cases[] = {
        {"<Linear name=\"a\" in=\"x\" units=\"hidden\"/><Gelus/>", "no op \"Gelus\"; did you mean \"Gelu\"?"},
        {"<Gelu in=\"x\" aproximate=\"tanh\"/>", "Gelu has no attribute \"aproximate\"; did you mean \"approximate\"?"},
        {"<call name=\"p\" block=\"part\" in=\"x\"/>", "hidden is 12 in x [batch 8, seq 6, hidden 12] and 5 in p.c"},
        {"<Add in=\"x\"/>", "takes 2 inputs, not 1"},
        {"<Relu name=\"loss\" in=\"x\"/>", "the loss \"loss\" must be one f32 number, not [batch 8, seq 6, hidden 12]"},
        {"<Relu in=\"ids\"/>", "ids is i32"},
        {"<Linear name=\"a\" in=\"x\" units=\"4\"/><Linear name=\"b\" in=\"x\" units=\"5\" weight=\"a.weight\"/>",
         "weight a.weight is [4, hidden 12], but [5, hidden 12] is wanted"},
        {"<Linear name=\"a\" in=\"x\" units=\"4\"/><Linear name=\"b\" in=\"x\" units=\"4\" weight=\"a.wait\"/>",
         "no parameter \"a.wait\" was made before"},
        {"<Linear name=\"a\" in=\"x\" units=\"0\"/>", "a size must be positive, not 0"},
        {"<Linear name=\"a\" in=\"x\" units=\"4\" init=\"gaussian(0, 1)\"/>", "no initialisation \"gaussian\""},
        {"<Linear name=\"a\" in=\"x\" units=\"4\" init=\"normal(1)\"/>", "normal takes 2 numbers"},
        {"<Linear name=\"a\" in=\"x\" units=\"batch\"/>", "depends on the batch"},
        {"<Dropout in=\"x\" ratio=\"1\"/>", "it must be at least 0 and below 1"},
        {"<Linear name=\"a\" in=\"x\" units=\"4\" contract=\"5\"/>", "contract=\"5\", but x is x"},
        {"<Softmax in=\"x\" axis=\"3\"/>", "axis 3 is outside the 3 dimensions"},
        {"<Transpose in=\"x\" perm=\"2, 1, 0, 3\"/>", "perm lists 4 of 3 dimensions"},
        {"<Relu name=\"r\" in=\"x\"/>", "the model has no parameter, so there is nothing to train"},
        {"<repeat name=\"r\" count=\"200\"><Parameter name=\"p\" shape=\"heads, pow(2, 27), pow(2, 27)\"/></repeat>",
         "parameter \"r.1.p\" brings the model over 2^56 elements"},
        {"<Swiglu in=\"x x\"/>", "no op \"Swiglu\"; did you mean \"SwiGLU\"?"},
        {"<RELU in=\"x\"/>", "no op \"RELU\"; did you mean \"Relu\"?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *text = built(arena, cases[i].graph, false);
        CHECK(strstr(text, cases[i].message), "wanted \"%s\", got:\n%s", cases[i].message, text);
    }
    CHECK(strstr(built(arena, cases[2].graph, false), "in block \"part\""), "the call path is missing");
    const char *repeated = built(arena, "<repeat name=\"r\" count=\"5\" in=\"x\"><Gelus name=\"g\"/></repeat>", false);
    CHECK(strstr(repeated, "Gelus") && !strstr(repeated + 7, "error:"), "reported again: %s", repeated);
    static const char *const good[] = {
        "<Softmax in=\"x\" axis=\"1\"/><Pow exponent=\"3\"/><Clip min=\"-1\" max=\"1\"/><Swish/><ReduceMean name=\"m\"/>"
        "<Linear name=\"l\" in=\"x\" units=\"heads, hidden/heads\" activation=\"gelu_tanh\"/><Reshape shape=\"0, -1, hidden\"/>"
        "<RMSNormalization name=\"n\"/><MeanSquaredErrorLoss name=\"loss\" in=\"n x\"/>",
        "<Linear name=\"q\" in=\"x\" units=\"heads, 4\"/><MatMul in=\"q q\" trans_b=\"true\"/><Flatten/>"
        "<Linear name=\"f\" units=\"7\"/><Split out=\"a b\" sizes=\"3, 4\" axis=\"-1\"/><Concat name=\"c\" in=\"b a\" axis=\"1\"/>"
        "<Constant name=\"two\" value=\"2\"/><Mul in=\"c two\"/><ReduceMean name=\"loss\" keepdims=\"false\"/>",
        "<Embedding name=\"e\" in=\"ids\" num_embeddings=\"20\" embedding_dim=\"hidden\"/><Parameter name=\"p\" shape=\"hidden\" "
        "init=\"ones\"/><Mul in=\"e p\"/><Linear name=\"h\" units=\"20\" bias=\"false\" weight=\"e.weight\"/>"
        "<SoftmaxCrossEntropyLoss name=\"loss\" in=\"h ids\" ignore_index=\"3\"/>",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        expect(built(arena, good[i], true), "");
    mpp_arena_free(arena);
}

/* Names that the compiler gives to what it adds (a bias's op, gradients, state, reports) may be taken by the file. */
static void test_clashing_names(void)
{
    struct mpp_arena *arena = mpp_arena_new();
    expect(built(arena,
                 "<Linear name=\"a\" in=\"x\" units=\"hidden\"/><Identity name=\"a.product\"/><Identity name=\"a.bias\"/>"
                 "<Linear name=\"m.a\" units=\"hidden\"/><Identity name=\"v.a.weight\"/><Identity name=\"a.weight.grad\"/>"
                 "<Identity name=\"a.grad_x\"/><Identity name=\"grad_norm\"/><Identity name=\"grad_square_sum\"/>"
                 "<Identity name=\"loss.total\"/><Identity name=\"loss.grad\"/><Identity name=\"report.loss\"/>"
                 "<MeanSquaredErrorLoss name=\"loss\" in=\"report.loss x\"/>", true), "");
    mpp_arena_free(arena);
}

/* Micro-batches are left to the planner only where their losses add up to the batch's. */
static void test_additive_losses(void)
{
    static const struct {
        const char *graph;
        bool additive;
    } cases[] = {
        {"<MeanSquaredErrorLoss name=\"loss\" in=\"w x\"/>", true},
        {"<MeanSquaredErrorLoss in=\"w x\" reduction=\"sum\"/><Scale value=\"0.5\"/><Neg name=\"loss\"/>", true},
        {"<Softmax in=\"w\" axis=\"1\"/><ReduceMax axes=\"1,2\" keepdims=\"false\"/><ReduceMean name=\"loss\" keepdims=\"false\"/>", true},
        {"<Reshape in=\"w\" shape=\"batch*seq, hidden\"/><Linear name=\"l\" units=\"9\"/>"
         "<Reshape name=\"r\" shape=\"batch, seq, 9\"/><SoftmaxCrossEntropyLoss name=\"loss\" in=\"r ids\" ignore_index=\"2\"/>", true},
        {"<MeanSquaredErrorLoss name=\"a\" in=\"w x\"/><ReduceMean name=\"b\" in=\"w\" keepdims=\"false\"/><Add name=\"loss\" in=\"a b\"/>", true},
        {"<MeanSquaredErrorLoss in=\"w x\"/><Sqrt name=\"loss\"/>", false},                       /* root of a sum */
        {"<Mul in=\"p p\"/><ReduceSum name=\"q\" keepdims=\"false\"/><MeanSquaredErrorLoss name=\"a\" in=\"w x\"/>"
         "<Add name=\"loss\" in=\"a q\"/>", false},                                               /* a penalty, once a step */
        {"<Softmax in=\"w\" axis=\"0\"/><ReduceMean name=\"loss\" keepdims=\"false\"/>", false},  /* over samples */
        {"<ReduceMax in=\"w\" axes=\"0\"/><ReduceSum name=\"loss\" keepdims=\"false\"/>", false},
        {"<ReduceMean name=\"m\" in=\"w\" axes=\"0\"/><Sub in=\"w m\"/><Mul in=\"sub sub\"/>"
         "<ReduceSum name=\"loss\" keepdims=\"false\"/>", false},                                 /* variance over samples */
        {"<Einsum in=\"w w\" equation=\"bsh,csh->bc\"/><ReduceSum name=\"loss\" keepdims=\"false\"/>", false}, /* pairs */
        {"<Reshape in=\"w\" shape=\"seq, batch, hidden\"/><Softmax axis=\"0\"/><ReduceSum name=\"loss\" keepdims=\"false\"/>", false},
    };
    struct mpp_arena *arena = mpp_arena_new();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *graph = mpp_arena_printf(arena, "<Parameter name=\"p\" shape=\"hidden\" init=\"ones\"/><Mul name=\"w\" in=\"x p\"/>%s",
                                             cases[i].graph);
        expect(built(arena, graph, false), "");
        bool whole = false;
        int64_t micro = built_micro(graph, &whole);
        CHECK(whole == !cases[i].additive && micro == (whole ? 8 : 0), "case %zu: %d, micro %" PRId64, i, whole, micro);
    }
    mpp_arena_free(arena);
}

/* The limit of the input NAME of the built model; -1: it does not build. */
static int64_t built_limit(const char *graph, const char *name)
{
    char path[40];
    struct loaded l = load_around(graph, false, path);
    int64_t limit = -1;
    for (mpp_id t = 0; l.status == MPP_OK && t < l.g->n_tensors; t++) {
        if (strcmp(l.g->tensors[t].name, name) == 0)
            limit = l.g->tensors[t].input->limit;
    }
    unlink(path);
    unload(&l);
    return limit;
}

#define TABLE(name, in, rows) "<Embedding name=\"" name "\" in=\"" in "\" num_embeddings=\"" rows "\" embedding_dim=\"hidden\"/>"
#define CLASSES(n, labels) "<Linear name=\"w\" in=\"x\" units=\"" n "\"/><SoftmaxCrossEntropyLoss name=\"loss\" in=\"w " labels "\"/>"

/* Ids stay within their table, labels within the classes: stated limits are checked, missing ones are found. */
static void test_input_limits(void)
{
    static const struct {
        const char *graph, *input;
        int64_t limit;
    } good[] = {
        {TABLE("e", "ids", "20"), "ids", 20},
        {TABLE("e", "ids", "20") TABLE("f", "ids", "16") TABLE("g", "ids", "18"), "ids", 16},
        {TABLE("e", "few", "10"), "few", 10},
        {TABLE("e", "few", "20"), "few", 10},
        {"<Reshape name=\"r\" in=\"ids\" shape=\"batch*seq\"/>" TABLE("e", "r", "20"), "ids", 20},
        {"<Concat name=\"c\" in=\"few ids\" axis=\"1\"/><Identity name=\"i\" in=\"c\"/>" TABLE("e", "i", "20"), "ids", 20},
        {CLASSES("5", "ids"), "ids", 5},
        {TABLE("e", "ids", "20") CLASSES("30", "ids"), "ids", 20},
        {TABLE("e", "ones", "2"), "ones", 2},
        {TABLE("e", "masked", "7"), "masked", 7},
        {"<PositionEmbedding name=\"p\" in=\"ids\" max_positions=\"seq\" embedding_dim=\"hidden\"/>", "ids", 0},
        {"<Linear name=\"w\" in=\"x\" units=\"5\"/><SoftmaxCrossEntropyLoss name=\"loss\" in=\"w shown\" ignore_index=\"-100\"/>",
         "shown", 5},
    };
    static const struct {
        const char *graph, *message;
        int line;
    } bad[] = {
        {TABLE("e", "few", "9"), "input \"few\" has a limit of 10, but Embedding \"e\" (PATH:7) has 9 rows; a limit of 9 fits", 5},
        {TABLE("e", "few", "1"), "has 1 row; a limit of 1 fits", 5},
        {"<Reshape name=\"r\" in=\"few\" shape=\"batch*seq\"/>" TABLE("e", "r", "9"), "but Embedding \"e\" (PATH:7) has 9 rows", 5},
        {"<repeat name=\"r\" count=\"3\">" TABLE("e", "few", "9") "</repeat>", "(PATH:7) has 9 rows", 5},
        {CLASSES("5", "few"), "but SoftmaxCrossEntropyLoss \"loss\" (PATH:7) has 5 classes; a limit of 5 fits", 5},
        {TABLE("e", "ones", "1"), "input \"ones\" holds ones, but Embedding \"e\" (PATH:7) has 1 row, which is number 0", 5},
        {CLASSES("5", "shown"), "has no ignore_index; give it ignore_index=\"-100\"", 5},
        {TABLE("e", "masked", "6"), "mask_id is 6, but input \"masked\" takes ids below 6", 10},
    };
    struct mpp_arena *arena = mpp_arena_new();
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        int64_t limit = built_limit(good[i].graph, good[i].input);
        CHECK(limit == good[i].limit, "case %zu: %s has a limit of %" PRId64 "\n%s", i, good[i].input, limit,
              built(arena, good[i].graph, false));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char path[40];
        struct loaded l = load_around(bad[i].graph, false, path);
        const char *text = mpp_diag_text(l.diag), *mark = strstr(bad[i].message, "PATH");
        const char *want = mark ? mpp_arena_printf(arena, "%.*s%s%s", (int)(mark - bad[i].message), bad[i].message, path, mark + 4)
                                : bad[i].message;
        const char *begin = mpp_arena_printf(arena, "%s:%d: error: ", path, bad[i].line);
        CHECK(l.status == MPP_INVALID && strncmp(text, begin, strlen(begin)) == 0 && strstr(text, want) && mpp_diag_errors(l.diag) == 1,
              "wanted \"%s%s\", got:\n%s", begin, want, text);
        unlink(path);
        unload(&l);
    }
    mpp_arena_free(arena);
}

/* docs/ops.md lists every layer with its attributes, and every op of the table. */
static void test_docs(void)
{
    char path[512], line[2048];
    snprintf(path, sizeof path, "%s/docs/ops.md", root);
    FILE *f = fopen(path, "r");
    CHECK(f, "no %s", path);
    if (!f)
        return;
    int n_layers, found = 0, ops = 0;
    const struct mpp_layer *layers = mpp_layers(&n_layers);
    while (fgets(line, sizeof line, f)) {
        char *to = line;
        for (const char *from = line; *from; from++) {
            if (from[0] != '\\' || from[1] != '|')
                *to++ = *from;
        }
        *to = '\0';
        char *type = strncmp(line, "| ", 2) == 0 ? line + 2 : NULL, *end = type ? strchr(type, ' ') : NULL;
        if (!end)
            continue;
        *end = '\0';
        for (int i = 0; i < n_layers && found < n_layers; i++)
            found += strcmp(layers[i].type, type) == 0 && strstr(end + 1, layers[i].attrs) != NULL;
        int kind = found == n_layers ? mpp_op_find(type) : -1;
        ops += kind >= 0 && strstr(end + 1, mpp_op_info(kind)->attrs) && strstr(end + 1, mpp_op_info(kind)->rule);
    }
    fclose(f);
    CHECK(found == n_layers, "%d of %d layers are described", found, n_layers);
    CHECK(ops >= MPP_OP_COUNT, "%d of %d ops are described", ops, MPP_OP_COUNT);
}

static void test_passes(void)
{
    struct loaded l = load_model("mlp.xml", NULL, NULL, false);
    if (l.status == MPP_OK) {
        struct mpp_pass_ctx ctx = {.arena = l.arena, .diag = l.diag, .dump_after = "autodif"};
        CHECK(mpp_passes_run(&ctx, l.g) == MPP_INVALID, "an unknown pass");
        expect(mpp_diag_text(l.diag),
               "error: no pass \"autodif\" (build, autodiff, optimizer, precision, fuse); did you mean \"autodiff\"?\n");
    }
    unload(&l);
}

/* The verifier notices each kind of damage. */
static void test_verifier(void)
{
    for (int damage = 0; damage < 8; damage++) {
        struct loaded l = load_model("mlp.xml", NULL, NULL, true);
        if (l.status != MPP_OK) {
            unload(&l);
            return;
        }
        struct mpp_graph *g = l.g;
        mpp_id out = g->ops[1].out[0];
        switch (damage) {
        case 0: g->tensors[out].dims[0].size++; break;
        case 1: g->ops[0].in[0] = g->ops[1].out[0]; break;
        case 2: g->ops[0].phase = MPP_PHASE_UPDATE; break;
        case 3: g->tensors[out].name = g->tensors[0].name; break;
        case 4: g->groups[0].n_ops++; break;
        case 5: g->tensors[g->ops[g->n_ops - 4].out[0]].updates = 0; break;
        case 6: g->tensors[out].op = 0; break;
        case 7:
            for (mpp_id o = 0; o < g->n_ops; o++)
                if (g->ops[o].kind == MPP_OP_RELU)
                    g->ops[o].in[0] = g->ops[o].out[0];
            break;
        }
        CHECK(mpp_graph_verify(g, l.diag, "test") == MPP_INVALID && strstr(mpp_diag_text(l.diag), "after pass test"),
              "damage %d is not noticed", damage);
        CHECK(damage != 7 || strstr(mpp_diag_text(l.diag), "before it is made"), "an op that reads its own output: %s",
              mpp_diag_text(l.diag));
        unload(&l);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        root = argv[1];
    test_rule_text();
    test_shapes_elementwise();
    test_shapes_layout();
    test_shapes_reshape();
    test_shapes_contraction();
    test_blocks();
    test_shardings();
    test_param_counts();
    test_fuse();
    test_print_parse();
    test_parse_mutations();
    test_builder();
    test_clashing_names();
    test_additive_losses();
    test_input_limits();
    test_docs();
    test_passes();
    test_verifier();
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
