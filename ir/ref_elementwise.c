/* Elementwise ops are evaluated from their row's expression: the same text that code is emitted from, in float64.
 * The text is compiled once per call into a list of stack operations. */
#include "ir/ref.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CODE = 64, MAX_STACK = 16 };

struct function {
    const char *name;
    double (*unary)(double);
    double (*binary)(double, double);
};

struct step {
    char op;                      /* 'n' number, 'v' input, 'f' function, '?' select, '~' negation, + - * / < > = and so on */
    double value;
    int input;
    const struct function *fn;
};

struct program {
    int n;
    struct step code[MAX_CODE];
    const char *p;                /* while compiling */
};

static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
static double gelu_none(double x) { return 0.5 * x * (1.0 + erf(x * M_SQRT1_2)); }
static double gelu_none_grad(double x)
{
    return 0.5 * (1.0 + erf(x * M_SQRT1_2)) + x * exp(-0.5 * x * x) * (M_2_SQRTPI * M_SQRT1_2 * 0.5);
}
static double gelu_tanh(double x)
{
    return 0.5 * x * (1.0 + tanh(M_2_SQRTPI * M_SQRT1_2 * (x + 0.044715 * x * x * x)));
}
static double gelu_tanh_grad(double x)
{
    double k = M_2_SQRTPI * M_SQRT1_2, t = tanh(k * (x + 0.044715 * x * x * x));
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * k * (1.0 + 3.0 * 0.044715 * x * x);
}

/* What expressions may call: C's float functions and mpp_math.h's, here in double. */
static const struct function functions[] = {
    {"fminf", NULL, fmin}, {"fmaxf", NULL, fmax}, {"powf", NULL, pow}, {"fabsf", fabs, NULL}, {"expf", exp, NULL},
    {"mpp_expf", exp, NULL}, {"logf", log, NULL}, {"sqrtf", sqrt, NULL}, {"erff", erf, NULL}, {"mpp_erff", erf, NULL},
    {"tanhf", tanh, NULL}, {"mpp_tanhf", tanh, NULL}, {"sinf", sin, NULL}, {"cosf", cos, NULL},
    {"mpp_sigmoidf", sigmoid, NULL}, {"mpp_gelu_none", gelu_none, NULL}, {"mpp_gelu_tanh", gelu_tanh, NULL},
    {"mpp_gelu_none_grad", gelu_none_grad, NULL}, {"mpp_gelu_tanh_grad", gelu_tanh_grad, NULL},
};

static struct step *emit(struct program *g, char op)
{
    assert(g->n < MAX_CODE);
    struct step *s = &g->code[g->n++];
    *s = (struct step){.op = op};
    return s;
}

static bool eat(struct program *g, const char *token)
{
    while (*g->p == ' ')
        g->p++;
    size_t n = strlen(token);
    if (strncmp(g->p, token, n) != 0)
        return false;
    g->p += n;
    return true;
}

static void parse_select(struct program *g);

static void parse_primary(struct program *g)
{
    if (eat(g, "(")) {
        parse_select(g);
        bool closed = eat(g, ")");
        assert(closed);
        (void)closed;
    } else if (isdigit((unsigned char)*g->p) || *g->p == '.') {
        char *end;
        emit(g, 'n')->value = strtod(g->p, &end);
        g->p = end + (*end == 'f');
    } else {
        const char *start = g->p;
        while (isalnum((unsigned char)*g->p) || *g->p == '_')
            g->p++;
        size_t n = (size_t)(g->p - start);
        assert(n > 0);
        if (!eat(g, "(")) {
            assert(n == 1);
            emit(g, 'v')->input = *start - 'a';
            return;
        }
        const struct function *fn = functions;
        while (strncmp(fn->name, start, n) != 0 || fn->name[n]) {
            fn++;
            assert(fn < functions + sizeof functions / sizeof *functions);
        }
        do
            parse_select(g);
        while (eat(g, ","));
        bool closed = eat(g, ")");
        assert(closed);
        (void)closed;
        emit(g, 'f')->fn = fn;
    }
}

static void parse_unary(struct program *g)
{
    if (eat(g, "-")) {
        parse_unary(g);
        emit(g, '~');
    } else {
        parse_primary(g);
    }
}

static void parse_product(struct program *g)
{
    parse_unary(g);
    for (;;) {
        char op = eat(g, "*") ? '*' : eat(g, "/") ? '/' : 0;
        if (!op)
            return;
        parse_unary(g);
        emit(g, op);
    }
}

static void parse_sum(struct program *g)
{
    parse_product(g);
    for (;;) {
        char op = eat(g, "+") ? '+' : eat(g, "-") ? '-' : 0;
        if (!op)
            return;
        parse_product(g);
        emit(g, op);
    }
}

static void parse_select(struct program *g)
{
    parse_sum(g);
    char op = eat(g, "==") ? '=' : eat(g, ">=") ? 'g' : eat(g, "<=") ? 'l' : eat(g, ">") ? '>' : eat(g, "<") ? '<' : 0;
    if (op) {
        parse_sum(g);
        emit(g, op);
    }
    if (eat(g, "?")) {
        parse_select(g);
        bool colon = eat(g, ":");
        assert(colon);
        (void)colon;
        parse_select(g);
        emit(g, '?');
    }
}

/* TEXT with each {attribute} replaced by its value. */
static void substitute(const char *text, const struct mpp_attrs *attrs, char *out, size_t size)
{
    size_t n = 0;
    while (*text) {
        if (*text != '{') {
            out[n++] = *text++;
        } else {
            const char *end = strchr(text, '}');
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)(end - text - 1), text + 1);
            const struct mpp_attr *a = mpp_attrs_find(attrs, name);
            assert(a);
            int k = a->type == MPP_ATTR_STRING ? snprintf(out + n, size - n, "%s", a->s)
                                               : snprintf(out + n, size - n, "%.17g", a->f);
            assert(k > 0);
            n += (size_t)k;
            text = end + 1;
        }
        assert(n + 1 < size);
    }
    out[n] = 0;
}

static double run(const struct program *g, const double *input)
{
    double st[MAX_STACK];
    int n = 0;
    for (int i = 0; i < g->n; i++) {
        const struct step *s = &g->code[i];
        assert(n < MAX_STACK);
        switch (s->op) {
        case 'n': st[n++] = s->value; break;
        case 'v': st[n++] = input[s->input]; break;
        case '~': st[n - 1] = -st[n - 1]; break;
        case '?': n -= 2; st[n - 1] = st[n - 1] != 0 ? st[n] : st[n + 1]; break;
        case 'f':
            if (s->fn->unary) {
                st[n - 1] = s->fn->unary(st[n - 1]);
            } else {
                n--;
                st[n - 1] = s->fn->binary(st[n - 1], st[n]);
            }
            break;
        case '+': n--; st[n - 1] += st[n]; break;
        case '-': n--; st[n - 1] -= st[n]; break;
        case '*': n--; st[n - 1] *= st[n]; break;
        case '/': n--; st[n - 1] /= st[n]; break;
        case '=': n--; st[n - 1] = st[n - 1] == st[n]; break;
        case '>': n--; st[n - 1] = st[n - 1] > st[n]; break;
        case '<': n--; st[n - 1] = st[n - 1] < st[n]; break;
        case 'g': n--; st[n - 1] = st[n - 1] >= st[n]; break;
        case 'l': n--; st[n - 1] = st[n - 1] <= st[n]; break;
        default: assert(false);
        }
    }
    assert(n == 1);
    return st[0];
}

void mpp_ref_elementwise(const struct mpp_ref_in *in)
{
    enum { MAX_IN = 8 };
    char text[512];
    struct program g = {0};
    substitute(mpp_op_info(in->op->kind)->expr, &in->op->attrs, text, sizeof text);
    g.p = text;
    parse_select(&g);
    assert(*g.p == 0 && in->op->n_in <= MAX_IN);

    const struct mpp_ref_tensor *y = &in->out[0];
    int64_t stride[MAX_IN][MPP_GRAPH_MAX_DIMS], idx[MPP_GRAPH_MAX_DIMS] = {0}, n = mpp_ref_count(y);
    for (int k = 0; k < in->op->n_in; k++)
        mpp_ref_broadcast(&in->in[k], y, stride[k]);
    for (int64_t i = 0; i < n; i++, mpp_ref_next(y, idx)) {
        double x[MAX_IN];
        for (int k = 0; k < in->op->n_in; k++) {
            int64_t at = 0;
            for (int d = 0; d < y->n_dims; d++)
                at += idx[d] * stride[k][d];
            x[k] = in->in[k].data[at];
        }
        y->data[i] = run(&g, x);
    }
}

void mpp_ref_sum(const struct mpp_ref_in *in)
{
    const struct mpp_ref_tensor *y = &in->out[0];
    int64_t n = mpp_ref_count(y);
    memset(y->data, 0, (size_t)n * sizeof(double));
    for (int k = 0; k < in->op->n_in; k++) {
        int64_t stride[MPP_GRAPH_MAX_DIMS], idx[MPP_GRAPH_MAX_DIMS] = {0};
        mpp_ref_broadcast(&in->in[k], y, stride);
        for (int64_t i = 0; i < n; i++, mpp_ref_next(y, idx)) {
            int64_t at = 0;
            for (int d = 0; d < y->n_dims; d++)
                at += idx[d] * stride[d];
            y->data[i] += in->in[k].data[at];
        }
    }
}

/* ---- random numbers ---- */

float mpp_ref_uniform(uint64_t seed, int64_t step, uint32_t op, uint64_t element)
{
    uint32_t c0 = (uint32_t)element, c1 = (uint32_t)(element >> 32), c2 = op, c3 = (uint32_t)step;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p = (uint64_t)0xD2511F53u * c0, q = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(q >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)q;
        c3 = (uint32_t)p;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (float)(c0 >> 8) * 0x1p-24f;
}

double mpp_ref_dropout_factor(const struct mpp_ref_in *in, double ratio, int64_t stream, uint64_t element)
{
    if (ratio == 0)
        return 1;
    return mpp_ref_uniform(in->seed, in->step, (uint32_t)stream, element) >= (float)ratio ? 1.0 / (1.0 - ratio) : 0;
}

/* X as a float of DIGITS bits, hidden one included, with exponents from LEAST on; beyond LARGEST infinite. Ties to even. */
static double rounded(double x, int digits, int least, double largest)
{
    if (x == 0 || !isfinite(x))
        return x;
    int exponent = ilogb(x);
    double unit = ldexp(1, (exponent > least ? exponent : least) - (digits - 1)), y = nearbyint(x / unit) * unit;
    return fabs(y) > largest ? copysign((double)INFINITY, x) : y;
}

void mpp_ref_cast(const struct mpp_ref_in *in)
{
    const char *to = mpp_attrs_string(&in->op->attrs, "to", "f32");
    const struct mpp_ref_tensor *y = &in->out[0];
    int64_t n = mpp_ref_count(y);
    for (int64_t i = 0; i < n; i++) {
        double x = in->in[0].data[i];
        y->data[i] = to[0] == 'b' ? rounded(x, 8, -126, 0x1.fep127) : strcmp(to, "f16") == 0 ? rounded(x, 11, -14, 65504) : x;
    }
}

void mpp_ref_dropout(const struct mpp_ref_in *in)
{
    const struct mpp_ref_tensor *y = &in->out[0];
    double ratio = mpp_attrs_float(&in->op->attrs, "ratio", 0.5);
    int64_t stream = mpp_attrs_int(&in->op->attrs, "stream", 0), idx[MPP_GRAPH_MAX_DIMS] = {0}, n = mpp_ref_count(y);
    for (int64_t i = 0; i < n; i++, mpp_ref_next(y, idx))
        y->data[i] = in->in[0].data[i] *
                     mpp_ref_dropout_factor(in, ratio, stream, (uint64_t)mpp_ref_global_index(y, idx));
}
