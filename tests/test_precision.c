/* The pass "precision": what it makes of a model that holds every case (tests/data/precision), what must hold of any model;
 * and conversions of 16-bit floats, all of them. The expected graphs are what `mpplan tests/data/precision/model.xml
 * --dump-after precision --precision bf16` prints. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/graph.h"
#include "ir/model.h"
#include "ir/op.h"
#include "ir/pass.h"
#include "ir/precision.h"
#include "runtime/mpp_math.h"

static int passed, failed;

static void check(bool ok, const char *what, const char *more)
{
    passed += ok;
    failed += !ok;
    if (!ok)
        fprintf(stderr, "FAILED %s: %s\n", what, more);
}

/* ---- conversions against their definition ------------------------------------------------------------- */

struct format {
    const char *name;
    int digits, bias;             /* of the fraction; of the exponent */
    float (*from)(uint16_t);
    uint16_t (*to)(float);
};

static double value_of(const struct format *f, uint16_t x)
{
    int exponent = (x & 0x7fff) >> f->digits, fraction = x & ((1 << f->digits) - 1);
    int top = 0x7fff >> f->digits;
    double sign = x & 0x8000 ? -1 : 1;
    if (exponent == top)
        return fraction ? (double)NAN : sign * (double)INFINITY;
    return exponent ? sign * ldexp(fraction + (1 << f->digits), exponent - f->bias - f->digits)
                    : sign * ldexp(fraction, 1 - f->bias - f->digits);
}

static bool same(double a, double b)
{
    return (isnan(a) && isnan(b)) || (a <= b && a >= b && signbit(a) == signbit(b));
}

/* Every value there and back, and what lies between it and the next. */
static void test_every_value(const struct format *f)
{
    int wrong_from = 0, wrong_back = 0, wrong_near = 0;
    uint16_t infinite = (uint16_t)(0x7fff >> f->digits << f->digits);
    for (int i = 0; i < 0x10000; i++) {
        uint16_t x = (uint16_t)i;
        float y = f->from(x);
        wrong_from += !same((double)y, value_of(f, x));
        uint16_t quiet = isnan(y) ? (uint16_t)(x | 1 << (f->digits - 1)) : x;
        wrong_back += f->to(y) != quiet;
        if ((x & 0x7fff) >= infinite)
            continue;
        /* The half between x and its successor goes to the even one; the floats beside it to the nearer one. What follows the
         * largest is infinity, from the half on. */
        double here = value_of(f, x), next = value_of(f, (uint16_t)(x + 1));
        double gap = isinf(next) ? fabs(here - value_of(f, (uint16_t)(x - 1))) : fabs(next - here);
        float half = (float)(here + (x & 0x8000 ? -gap / 2 : gap / 2)), out = x & 0x8000 ? -INFINITY : INFINITY;
        wrong_near += f->to(half) != (uint16_t)(x + (x & 1));
        wrong_near += f->to(nextafterf(half, 0.0f)) != x;
        wrong_near += f->to(nextafterf(half, out)) != (uint16_t)(x + 1);
    }
    check(wrong_from == 0, f->name, "a value is read as it is defined");
    check(wrong_back == 0, f->name, "and comes back");
    check(wrong_near == 0, f->name, "floats between go to the nearer, to the even one in the middle");
}

static void test_special_values(const struct format *f)
{
    uint16_t infinite = (uint16_t)(0x7fff >> f->digits << f->digits);
    check(f->to(0.0f) == 0 && f->to(-0.0f) == 0x8000, f->name, "zeros keep their sign");
    check(f->to(INFINITY) == infinite && f->to(-INFINITY) == (infinite | 0x8000), f->name, "infinities");
    check(isnan(f->from(f->to(NAN))) && isnan(f->from(f->to(mpp_bits_float(0x7f800001u)))) && isnan(f->from(f->to(mpp_bits_float(0xffffffffu)))),
          f->name, "a NaN stays one, whichever its bits");
    check(f->to(mpp_bits_float(0x7f7fffffu)) == infinite, f->name, "the largest float is infinite");
    check(f->to(1e-45f) == 0 && f->to(-1e-45f) == 0x8000, f->name, "the smallest is zero");
    uint64_t state = 1;
    int wrong = 0;
    for (int i = 0; i < 2000000; i++) { /* any bits: monotonous, and within half a unit */
        state = state * 6364136223846793005u + 1442695040888963407u;
        float x = mpp_bits_float((uint32_t)(state >> 32));
        if (isnan(x))
            continue;
        uint16_t h = f->to(x);
        double here = value_of(f, h), before = value_of(f, (uint16_t)(h - ((h & 0x7fff) > 0)));
        double after = (h & 0x7fff) < infinite ? value_of(f, (uint16_t)(h + 1)) : here;
        bool near = isinf(here) || (fabs((double)x - here) <= fabs((double)x - before) || (h & 0x7fff) == 0);
        wrong += !near || (!isinf(here) && !isinf(after) && fabs((double)x - here) > fabs((double)x - after));
    }
    check(wrong == 0, f->name, "2,000,000 floats of any bits");
}

/* ---- graphs -------------------------------------------------------------------------------------------- */

struct made {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    struct mpp_graph *g;
    enum mpp_status status;
    char *text;                   /* after the pass, printed */
};

static struct made make(const char *path, const char *preset, const char *precision, const char *dump_after)
{
    struct made m = {.arena = mpp_arena_new()};
    struct mpp_model_options options = {.preset = preset, .precision = precision};
    struct mpp_model *model;
    size_t size;
    FILE *out = open_memstream(&m.text, &size);
    m.diag = mpp_diag_in(m.arena, NULL);
    m.status = mpp_model_read(m.arena, m.diag, path, &options, &model);
    if (m.status == MPP_OK)
        m.status = mpp_graph_build(m.arena, m.diag, model, &m.g);
    struct mpp_pass_ctx ctx = {.arena = m.arena, .diag = m.diag, .dump_after = dump_after, .dump_to = out};
    if (m.status == MPP_OK)
        m.status = mpp_passes_run(&ctx, m.g);
    fclose(out);
    return m;
}

static void drop(struct made *m)
{
    mpp_arena_free(m->arena);
    free(m->text);
}

static char *read_all(const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = NULL;
    size_t size = 0;
    if (f && getdelim(&text, &size, '\0', f) < 0) {
        free(text);
        text = NULL;
    }
    if (f)
        fclose(f);
    return text;
}

static void test_golden(const char *word, const char *precision, const char *path)
{
    struct made m = make("tests/data/precision/model.xml", NULL, precision, "precision");
    char *want = read_all(path);
    check(m.status == MPP_OK, word, "the model is planned");
    check(want && strcmp(want, m.text) == 0, word, "the graph is the expected one");
    struct mpp_graph *again;
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    bool parsed = mpp_graph_parse(m.arena, m.diag, path, m.text, strlen(m.text), &again) == MPP_OK;
    if (parsed)
        mpp_graph_print(again, out);
    fclose(out);
    check(parsed && strcmp(text, m.text) == 0, word, "what is printed is read back");
    free(text);
    free(want);
    drop(&m);
}

static bool is_half(enum mpp_dtype t)
{
    return t == MPP_BF16 || t == MPP_F16;
}

/* What must hold of any step in LOW: see precision.h. */
static void check_ops(const struct mpp_graph *g, enum mpp_dtype low, const char *what)
{
    int products = 0, narrow = 0, rounded = 0;
    bool kept = true, uniform = true;
    for (mpp_id o = 0; o < g->n_ops; o++) {
        const struct mpp_gop *op = &g->ops[o];
        const struct mpp_op_info *info = mpp_op_info(op->kind);
        bool multiplies = info->compute == MPP_COMPUTE_LOW && op->phase != MPP_PHASE_UPDATE;
        products += multiplies;
        narrow += multiplies && g->tensors[op->in[0]].dtype == low && g->tensors[op->in[1]].dtype == low;
        for (int k = 0; k < op->n_in; k++) {
            enum mpp_dtype t = op->in[k] < 0 ? MPP_I32 : g->tensors[op->in[k]].dtype;
            kept = kept && !(info->compute == MPP_COMPUTE_WIDE && is_half(t));
            uniform = uniform && !(is_half(t) && t != low);
        }
        rounded += op->kind == MPP_OP_CAST && op->phase == MPP_PHASE_UPDATE;
    }
    check(products > 0 && narrow == products, what, "products are in 16 bits");
    check(kept && uniform, what, "what asks for f32 gets it, and nothing is of the other type");
    check(rounded > 0, what, "parameters are rounded from masters");
}

static void check_parameters(const struct mpp_graph *g, enum mpp_dtype low, const char *what)
{
    int masters = 0, halves = 0;
    bool wide = true;
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        const struct mpp_gtensor *x = &g->tensors[t];
        wide = wide && !((x->role == MPP_ROLE_STATE || x->role == MPP_ROLE_ACCUM) && x->dtype != MPP_F32);
        if (x->role != MPP_ROLE_PARAM)
            continue;
        halves += x->dtype == low;
        masters += x->info->master >= 0;
    }
    check(wide, what, "optimiser state and sums of gradients are f32");
    check(halves > 0 && masters == halves, what, "each rounded parameter has a master");
    check((g->loss_scale >= 0) == (low == MPP_F16), what, "fp16 alone scales the loss");
}

static void test_models(void)
{
    static const char *const models[][2] = {{"models/gpt.xml", "tiny"}, {"models/gpt.xml", "gpt2-xl"}, {"models/bert.xml", "tiny"},
                                            {"models/mlp.xml", NULL}};
    static const char *const words[] = {"bf16", "f16"};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        struct made wide = make(models[i][0], models[i][1], NULL, NULL);
        for (int k = 0; k < 2; k++) {
            struct made m = make(models[i][0], models[i][1], words[k], NULL);
            check(m.status == MPP_OK, models[i][0], mpp_diag_text(m.diag));
            if (m.status == MPP_OK && wide.status == MPP_OK) {
                check_ops(m.g, k ? MPP_F16 : MPP_BF16, models[i][0]);
                check_parameters(m.g, k ? MPP_F16 : MPP_BF16, models[i][0]);
                check(mpp_graph_param_count(m.g) == mpp_graph_param_count(wide.g), models[i][0], "as many parameters as in f32");
            }
            drop(&m);
        }
        drop(&wide);
    }
}

/* In f32 the pass leaves the graph alone. */
static void test_f32(void)
{
    struct made before = make("models/gpt.xml", "tiny", "f32", "optimizer"), after = make("models/gpt.xml", "tiny", "f32", "precision");
    check(before.status == MPP_OK && after.status == MPP_OK && strcmp(before.text, after.text) == 0, "f32", "nothing changes");
    drop(&before);
    drop(&after);
}

/* The verifier sees what the pass must not do. */
static void test_verifier(void)
{
    struct made m = make("models/gpt.xml", "tiny", "bf16", NULL);
    mpp_id param = 0;
    while (m.g->tensors[param].role != MPP_ROLE_PARAM || m.g->tensors[param].info->master < 0)
        param++;
    mpp_id master = m.g->tensors[param].info->master;
    m.g->tensors[param].info->master = -1;
    check(mpp_graph_verify(m.g, m.diag, "test") != MPP_OK, "verifier", "a rounded parameter without a master");
    m.g->tensors[param].info->master = m.g->tensors[param].info->gradient;
    check(mpp_graph_verify(m.g, m.diag, "test") != MPP_OK, "verifier", "a master that is none");
    m.g->tensors[param].info->master = master;
    m.g->tensors[param].dtype = MPP_F16;
    check(mpp_graph_verify(m.g, m.diag, "test") != MPP_OK, "verifier", "a parameter of another type than its update");
    m.g->tensors[param].dtype = MPP_BF16;
    check(mpp_graph_verify(m.g, m.diag, "test") == MPP_OK, "verifier", "and is content otherwise");
    drop(&m);
}

static void test_words(void)
{
    enum mpp_dtype t = MPP_I32;
    check(mpp_precision_read("fp16", &t) && t == MPP_F16 && mpp_precision_read("f16", &t) && t == MPP_F16, "words", "fp16");
    check(mpp_precision_read("bf16", &t) && t == MPP_BF16 && mpp_precision_read("fp32", &t) && t == MPP_F32, "words", "bf16, fp32");
    check(!mpp_precision_read("fp8", &t) && !mpp_precision_read("", &t) && !mpp_precision_read("i32", &t), "words", "others");
}

int main(void)
{
    static const struct format formats[] = {{"bf16", 7, 127, mpp_from_bf16, mpp_to_bf16}, {"f16", 10, 15, mpp_from_f16, mpp_to_f16}};
    for (int i = 0; i < 2; i++) {
        test_every_value(&formats[i]);
        test_special_values(&formats[i]);
    }
    test_golden("bf16", "bf16", "tests/data/precision/bf16.graph");
    test_golden("fp16", "f16", "tests/data/precision/fp16.graph");
    test_models();
    test_f32();
    test_verifier();
    test_words();
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
