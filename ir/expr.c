#include "ir/expr.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NESTING = 64, MAX_ARGS = 2, MAX_COMPARED = 20 };

/* Tokens: single characters stand for themselves. */
enum token { T_END = 0, T_NUMBER = 256, T_NAME, T_STRING, T_EQ, T_NE, T_LE, T_GE, T_AND, T_OR, T_BAD };

struct parser {
    const struct mpp_eval *ev;
    const char *text, *at;    /* at: behind the present token */
    int token;
    const char *start;        /* of the present token */
    struct mpp_value literal; /* of T_NUMBER and T_STRING */
    const char *name;         /* of T_NAME */
    int nesting, dead;        /* dead > 0: in a branch that is not taken, so its arithmetic can't fail */
    bool failed;
    char *norm;               /* normalised text so far */
    size_t norm_len;
    int n_tokens;
    const struct mpp_binding *last; /* binding of the last name */
};

/* ---- reporting ---- */

void mpp_eval_error(const struct mpp_eval *ev, const char *fmt, ...)
{
    if (ev->faults)
        *ev->faults += 1;
    if (ev->quiet)
        return;
    va_list ap;
    va_start(ap, fmt);
    const char *what = mpp_diag_plain(ev->arena, mpp_arena_vprintf(ev->arena, fmt, ap));
    va_end(ap);
    if (ev->loc.file && mpp_diag_errors(ev->diag) < MAX_COMPARED) {
        const char *file = mpp_diag_plain(ev->arena, ev->loc.file);
        const char *line = mpp_arena_printf(ev->arena, "%s:%d: error: %s\n", file, ev->loc.line, what);
        if (strstr(mpp_diag_text(ev->diag), line))
            return;
    }
    mpp_diag_error(ev->diag, ev->loc, "%s", what);
    if (ev->path)
        mpp_diag_note(ev->diag, "%s", ev->path);
}

__attribute__((format(printf, 2, 3))) static void fault(struct parser *p, const char *fmt, ...)
{
    if (p->failed)
        return;
    p->failed = true;
    va_list ap;
    va_start(ap, fmt);
    const char *text = mpp_arena_vprintf(p->ev->arena, fmt, ap);
    va_end(ap);
    if (p->ev->what)
        mpp_eval_error(p->ev, "%s=\"%.80s\": %s", p->ev->what, p->text, text);
    else
        mpp_eval_error(p->ev, "in \"%.80s\": %s", p->text, text);
}

/* ---- names ---- */

const struct mpp_binding *mpp_env_find(const struct mpp_env *env, const char *name)
{
    for (; env; env = env->up) {
        for (int i = env->n - 1; i >= 0; i--) {
            if (strcmp(env->bind[i].name, name) == 0)
                return &env->bind[i];
        }
    }
    return NULL;
}

const char *const *mpp_env_names(struct mpp_arena *arena, const struct mpp_env *env, int *out_n)
{
    int n = 0;
    for (const struct mpp_env *e = env; e; e = e->up)
        n += e->n;
    const char **names = mpp_arena_array(arena, n, const char *);
    n = 0;
    for (const struct mpp_env *e = env; e; e = e->up) {
        for (int i = 0; i < e->n; i++)
            names[n++] = e->bind[i].name;
    }
    *out_n = n;
    return names;
}

bool mpp_is_identifier(const char *s)
{
    if (!isalpha((unsigned char)*s) && *s != '_')
        return false;
    while (isalnum((unsigned char)*s) || *s == '_')
        s++;
    return *s == '\0';
}

static struct mpp_value of_int(int64_t i)
{
    return (struct mpp_value){.type = MPP_VALUE_INT, .i = i};
}

static struct mpp_value of_float(double f)
{
    return (struct mpp_value){.type = MPP_VALUE_FLOAT, .f = f};
}

static struct mpp_value of_bool(bool b)
{
    return (struct mpp_value){.type = MPP_VALUE_BOOL, .i = b};
}

/* ---- tokens ---- */

static int scan_number(struct parser *p)
{
    const char *s = p->at;
    size_t digits = strspn(s, "0123456789");
    char *end;
    errno = 0;
    if (s[digits] != '.' && s[digits] != 'e' && s[digits] != 'E') {
        p->literal = of_int(strtoll(s, &end, 10));
    } else {
        size_t n = digits;
        if (s[n] == '.')
            n += 1 + strspn(s + n + 1, "0123456789");
        if (s[n] == 'e' || s[n] == 'E') {
            size_t sign = s[n + 1] == '+' || s[n + 1] == '-';
            size_t exponent = strspn(s + n + 1 + sign, "0123456789");
            n += exponent ? 1 + sign + exponent : 0;
        }
        p->literal = of_float(strtod(s, &end));
        end = (char *)(uintptr_t)(s + n);
        if (isinf(p->literal.f))
            errno = ERANGE;
        else
            errno = 0;
    }
    p->at = end;
    if (errno == ERANGE)
        fault(p, "the number %.*s is too large", (int)(end - s), s);
    if (isalnum((unsigned char)*p->at) || *p->at == '_' || *p->at == '.')
        fault(p, "bad number \"%.*s\"", (int)(end - s) + 1, s);
    return T_NUMBER;
}

static int scan_name(struct parser *p)
{
    const char *s = p->at;
    while (isalnum((unsigned char)*p->at) || *p->at == '_')
        p->at++;
    p->name = mpp_arena_strndup(p->ev->arena, s, (size_t)(p->at - s));
    return T_NAME;
}

static int scan_string(struct parser *p)
{
    char quote = *p->at++;
    const char *s = p->at, *end = strchr(s, quote);
    if (!end) {
        fault(p, "a string has no closing %c", quote);
        p->at += strlen(p->at);
        return T_BAD;
    }
    p->literal = (struct mpp_value){.type = MPP_VALUE_STRING,
                                    .s = mpp_arena_strndup(p->ev->arena, s, (size_t)(end - s))};
    p->at = end + 1;
    return T_STRING;
}

static int scan_operator(struct parser *p)
{
    static const struct {
        const char text[3];
        int token;
    } two[] = {{"==", T_EQ}, {"!=", T_NE}, {"<=", T_LE}, {">=", T_GE}, {"&&", T_AND}, {"||", T_OR}};
    for (size_t i = 0; i < sizeof two / sizeof *two; i++) {
        if (strncmp(p->at, two[i].text, 2) == 0) {
            p->at += 2;
            return two[i].token;
        }
    }
    unsigned char c = (unsigned char)*p->at;
    if (strchr("+-*/%<>!?:(),", c)) {
        p->at++;
        return c;
    }
    if (c == '=')
        fault(p, "\"=\" is not an operator; to compare, write \"==\"");
    else if (isprint(c))
        fault(p, "unexpected \"%c\"", c);
    else
        fault(p, "unexpected character");
    p->at += strlen(p->at);
    return T_BAD;
}

/* Move to the next token, adding the present one to the normalised text. */
static void advance(struct parser *p)
{
    if (p->start) {
        size_t len = (size_t)(p->at - p->start);
        memcpy(p->norm + p->norm_len, p->start, len);
        p->norm_len += len;
        p->n_tokens += len > 0;
    }
    while (isspace((unsigned char)*p->at))
        p->at++;
    p->start = p->at;
    unsigned char c = (unsigned char)*p->at;
    if (c == '\0' || p->failed)
        p->token = T_END;
    else if (isdigit(c) || (c == '.' && isdigit((unsigned char)p->at[1])))
        p->token = scan_number(p);
    else if (isalpha(c) || c == '_')
        p->token = scan_name(p);
    else if (c == '\'' || c == '"')
        p->token = scan_string(p);
    else
        p->token = scan_operator(p);
    if (p->failed)
        p->token = T_END;
}

static bool accept(struct parser *p, int token)
{
    if (p->token != token)
        return false;
    advance(p);
    return true;
}

static void expect(struct parser *p, int token)
{
    if (accept(p, token))
        return;
    if (p->token == T_END)
        fault(p, "\"%c\" is missing at the end", token);
    else
        fault(p, "expected \"%c\" before \"%.*s\"", token, (int)(p->at - p->start), p->start);
}

/* ---- arithmetic ---- */

static bool is_number(const struct mpp_value *v)
{
    return v->type == MPP_VALUE_INT || v->type == MPP_VALUE_FLOAT;
}

static double number(const struct mpp_value *v)
{
    return v->type == MPP_VALUE_FLOAT ? v->f : (double)v->i;
}

static enum mpp_batch_use depends(const struct mpp_value *a, const struct mpp_value *b)
{
    return a->batch || b->batch ? MPP_BATCH_OTHER : MPP_BATCH_NONE;
}

/* How the sum or difference V = A + SIGN * B of integers depends on the batch. */
static void sum_batch(struct mpp_value *v, const struct mpp_value *a, const struct mpp_value *b, int sign)
{
    bool a_fits = a->batch == MPP_BATCH_LINEAR || (a->batch == MPP_BATCH_NONE && a->i == 0);
    bool b_fits = b->batch == MPP_BATCH_LINEAR || (b->batch == MPP_BATCH_NONE && b->i == 0);
    v->batch = depends(a, b);
    if (v->batch == MPP_BATCH_NONE || !a_fits || !b_fits)
        return;
    v->per_batch = a->per_batch + sign * b->per_batch; /* |per_batch| <= |i|, which did not overflow */
    v->batch = v->per_batch ? MPP_BATCH_LINEAR : MPP_BATCH_NONE;
}

static void product_batch(struct mpp_value *v, const struct mpp_value *a, const struct mpp_value *b)
{
    v->batch = depends(a, b);
    const struct mpp_value *linear = a->batch == MPP_BATCH_LINEAR ? a : b, *factor = linear == a ? b : a;
    if (linear->batch != MPP_BATCH_LINEAR || factor->batch != MPP_BATCH_NONE)
        return;
    v->per_batch = linear->per_batch * factor->i;
    v->batch = v->per_batch ? MPP_BATCH_LINEAR : MPP_BATCH_NONE;
}

static struct mpp_value int_op(struct parser *p, int op, const struct mpp_value *a, const struct mpp_value *b)
{
    struct mpp_value v = of_int(0);
    bool overflow = false;
    if (op == '+' || op == '-') {
        overflow = op == '+' ? __builtin_add_overflow(a->i, b->i, &v.i) : __builtin_sub_overflow(a->i, b->i, &v.i);
        if (!overflow)
            sum_batch(&v, a, b, op == '+' ? 1 : -1);
    } else if (op == '*') {
        overflow = __builtin_mul_overflow(a->i, b->i, &v.i);
        if (!overflow)
            product_batch(&v, a, b);
    } else if (b->i == 0) {
        if (!p->dead)
            fault(p, "division by zero");
    } else if (b->i == -1) {
        overflow = op == '/' && __builtin_sub_overflow((int64_t)0, a->i, &v.i);
        v.batch = depends(a, b);
    } else if (op == '%') {
        v.i = a->i % b->i;
        v.batch = depends(a, b);
    } else if (a->i % b->i) {
        v = of_float((double)a->i / (double)b->i);
        v.batch = depends(a, b);
    } else {
        v.i = a->i / b->i;
        v.batch = depends(a, b);
        if (a->batch == MPP_BATCH_LINEAR && b->batch == MPP_BATCH_NONE && a->per_batch % b->i == 0) {
            v.batch = MPP_BATCH_LINEAR;
            v.per_batch = a->per_batch / b->i;
        }
    }
    if (overflow && !p->dead)
        fault(p, "%" PRId64 " %c %" PRId64 " overflows 64 bits", a->i, op, b->i);
    return v;
}

static struct mpp_value compare(struct parser *p, int op, const struct mpp_value *a, const struct mpp_value *b)
{
    int order;
    if (is_number(a) && is_number(b)) {
        if (a->type == MPP_VALUE_INT && b->type == MPP_VALUE_INT)
            order = (a->i > b->i) - (a->i < b->i);
        else
            order = (number(a) > number(b)) - (number(a) < number(b));
    } else if (a->type == b->type && (op == T_EQ || op == T_NE)) {
        order = a->type == MPP_VALUE_STRING ? strcmp(a->s, b->s) != 0 : a->i != b->i;
    } else {
        fault(p, "cannot compare a %s with a %s", mpp_value_type_name(a->type), mpp_value_type_name(b->type));
        return of_bool(false);
    }
    struct mpp_value v = of_bool(op == T_EQ   ? order == 0
                                 : op == T_NE ? order != 0
                                 : op == '<'  ? order < 0
                                 : op == T_LE ? order <= 0
                                 : op == '>'  ? order > 0
                                              : order >= 0);
    v.batch = depends(a, b);
    return v;
}

static struct mpp_value binary_op(struct parser *p, int op, const struct mpp_value *a, const struct mpp_value *b)
{
    if (p->failed)
        return *a;
    if (op == T_EQ || op == T_NE || op == '<' || op == '>' || op == T_LE || op == T_GE)
        return compare(p, op, a, b);
    if (!is_number(a) || !is_number(b)) {
        const struct mpp_value *bad = is_number(a) ? b : a;
        fault(p, "\"%c\" needs numbers, not a %s", op, mpp_value_type_name(bad->type));
        return *a;
    }
    if (a->type == MPP_VALUE_INT && b->type == MPP_VALUE_INT)
        return int_op(p, op, a, b);
    double x = number(a), y = number(b);
    if (op == '%') {
        fault(p, "\"%%\" needs whole numbers");
        return *a;
    }
    if (op == '/' && y == 0 && !p->dead)
        fault(p, "division by zero");
    struct mpp_value v = of_float(op == '+' ? x + y : op == '-' ? x - y : op == '*' ? x * y : y != 0 ? x / y : 0);
    v.batch = depends(a, b);
    if (!isfinite(v.f) && !p->dead)
        fault(p, "the result is not finite");
    return v;
}

/* ---- functions ---- */

static struct mpp_value int_power(struct parser *p, int64_t base, int64_t exponent)
{
    int64_t v = 1;
    for (int64_t k = 0; k < exponent && v != 0 && !(v == 1 && base == 1); k++) {
        if (k > 128 && base == -1) /* only -1 gets here: the rest is its parity */
            return of_int((exponent - k) % 2 ? -v : v);
        if (__builtin_mul_overflow(v, base, &v)) {
            if (!p->dead)
                fault(p, "pow(%" PRId64 ", %" PRId64 ") overflows 64 bits", base, exponent);
            return of_int(0);
        }
    }
    return of_int(v);
}

static struct mpp_value rounded(struct parser *p, const struct mpp_value *a, double f)
{
    if (a->type == MPP_VALUE_INT)
        return *a;
    if (!(fabs(f) < 9e18)) { /* too large, or not a number */
        if (!p->dead)
            fault(p, "%g is too large for a whole number", f);
        return of_int(0);
    }
    return of_int((int64_t)f);
}

static struct mpp_value apply(struct parser *p, const char *name, const struct mpp_value *a, const struct mpp_value *b)
{
    double x = number(a), y = number(b);
    if (strcmp(name, "min") == 0)
        return (a->type == MPP_VALUE_INT && b->type == MPP_VALUE_INT ? a->i <= b->i : x <= y) ? *a : *b;
    if (strcmp(name, "max") == 0)
        return (a->type == MPP_VALUE_INT && b->type == MPP_VALUE_INT ? a->i >= b->i : x >= y) ? *a : *b;
    if (strcmp(name, "floor") == 0)
        return rounded(p, a, floor(x));
    if (strcmp(name, "ceil") == 0)
        return rounded(p, a, ceil(x));
    if (strcmp(name, "round") == 0)
        return rounded(p, a, round(x));
    if (strcmp(name, "abs") == 0) {
        struct mpp_value zero = of_int(0);
        if (a->type == MPP_VALUE_INT)
            return a->i < 0 ? int_op(p, '-', &zero, a) : *a;
        return of_float(fabs(x));
    }
    if (strcmp(name, "pow") == 0 && a->type == MPP_VALUE_INT && b->type == MPP_VALUE_INT && b->i >= 0)
        return int_power(p, a->i, b->i);
    double f = strcmp(name, "pow") == 0    ? pow(x, y)
               : strcmp(name, "sqrt") == 0 ? sqrt(x)
               : strcmp(name, "exp") == 0  ? exp(x)
               : strcmp(name, "log2") == 0 ? log2(x)
                                           : log(x);
    if (!isfinite(f) && !p->dead)
        fault(p, "%s(%g) is not finite", name, x);
    return of_float(f);
}

static const char *const functions[] = {"abs", "ceil", "exp",  "floor", "log", "log2",
                                        "max", "min",  "pow", "round", "sqrt"};
enum { N_FUNCTIONS = sizeof functions / sizeof *functions };

static struct mpp_value parse_ternary(struct parser *p);

static struct mpp_value call(struct parser *p, const char *name)
{
    bool known = false;
    for (int i = 0; i < N_FUNCTIONS; i++)
        known = known || strcmp(functions[i], name) == 0;
    if (!known) {
        fault(p, "no function \"%s\"%s", name, mpp_diag_hint(p->ev->diag, name, functions, N_FUNCTIONS));
        return of_int(0);
    }
    struct mpp_value args[MAX_ARGS] = {of_int(0), of_int(0)};
    int n = 0, want = strcmp(name, "min") == 0 || strcmp(name, "max") == 0 || strcmp(name, "pow") == 0 ? 2 : 1;
    do {
        struct mpp_value v = parse_ternary(p);
        if (n < MAX_ARGS)
            args[n] = v;
        n++;
    } while (!p->failed && accept(p, ','));
    expect(p, ')');
    if (n != want)
        fault(p, "%s takes %d argument%s, not %d", name, want, want == 1 ? "" : "s", n);
    for (int i = 0; i < want && !p->failed; i++) {
        if (!is_number(&args[i]))
            fault(p, "%s needs numbers, not a %s", name, mpp_value_type_name(args[i].type));
    }
    if (p->failed)
        return of_int(0);
    struct mpp_value v = apply(p, name, &args[0], &args[1]);
    v.batch = depends(&args[0], &args[1]);
    return v;
}

/* ---- grammar ---- */

static struct mpp_value lookup(struct parser *p, const char *name)
{
    if (strcmp(name, "true") == 0 || strcmp(name, "false") == 0)
        return of_bool(*name == 't');
    const struct mpp_binding *b = mpp_env_find(p->ev->env, name);
    p->last = b;
    if (b)
        return b->value;
    int n;
    const char *const *names = mpp_env_names(p->ev->arena, p->ev->env, &n);
    fault(p, "no parameter or dimension \"%s\" here%s", name, mpp_diag_hint(p->ev->diag, name, names, n));
    return of_int(0);
}

static struct mpp_value parse_unary(struct parser *p)
{
    struct mpp_value v = of_int(0);
    if (++p->nesting > MAX_NESTING) {
        fault(p, "nested over %d deep", MAX_NESTING);
    } else if (p->token == T_NUMBER || p->token == T_STRING) {
        v = p->literal;
        advance(p);
    } else if (p->token == T_NAME) {
        const char *name = p->name;
        advance(p);
        v = accept(p, '(') ? call(p, name) : lookup(p, name);
    } else if (accept(p, '(')) {
        v = parse_ternary(p);
        expect(p, ')');
    } else if (accept(p, '-')) {
        struct mpp_value zero = of_int(0), a = parse_unary(p);
        v = binary_op(p, '-', &zero, &a);
    } else if (accept(p, '+')) {
        v = parse_unary(p);
    } else if (accept(p, '!')) {
        v = parse_unary(p);
        if (v.type != MPP_VALUE_BOOL)
            fault(p, "\"!\" needs a bool, not a %s", mpp_value_type_name(v.type));
        v.i = !v.i;
    } else if (p->token == T_END) {
        fault(p, p->n_tokens == 0 ? "the expression is empty" : "something is missing at the end");
    } else {
        fault(p, "unexpected \"%.*s\"", (int)(p->at - p->start), p->start);
    }
    p->nesting--;
    return v;
}

static int precedence(int token)
{
    switch (token) {
    case T_OR:
        return 1;
    case T_AND:
        return 2;
    case T_EQ:
    case T_NE:
        return 3;
    case '<':
    case '>':
    case T_LE:
    case T_GE:
        return 4;
    case '+':
    case '-':
        return 5;
    case '*':
    case '/':
    case '%':
        return 6;
    default:
        return 0;
    }
}

static struct mpp_value logic(struct parser *p, int op, const struct mpp_value *a, const struct mpp_value *b)
{
    if (!p->failed && (a->type != MPP_VALUE_BOOL || b->type != MPP_VALUE_BOOL)) {
        const struct mpp_value *bad = a->type == MPP_VALUE_BOOL ? b : a;
        fault(p, "\"%s\" needs bools, not a %s", op == T_AND ? "&&" : "||", mpp_value_type_name(bad->type));
    }
    struct mpp_value v = of_bool(op == T_AND ? a->i && b->i : a->i || b->i);
    v.batch = depends(a, b);
    return v;
}

/* Operators that bind at least as tightly as LEVEL. */
static struct mpp_value parse_binary(struct parser *p, int level)
{
    struct mpp_value a = parse_unary(p);
    int prec;
    while (!p->failed && (prec = precedence(p->token)) >= level) {
        int op = p->token;
        advance(p);
        bool lazy = (op == T_AND && a.type == MPP_VALUE_BOOL && !a.i) || (op == T_OR && a.i);
        p->dead += lazy;
        struct mpp_value b = parse_binary(p, prec + 1);
        p->dead -= lazy;
        a = op == T_AND || op == T_OR ? logic(p, op, &a, &b) : binary_op(p, op, &a, &b);
    }
    return a;
}

static struct mpp_value parse_ternary(struct parser *p)
{
    if (++p->nesting > MAX_NESTING)
        fault(p, "nested over %d deep", MAX_NESTING);
    struct mpp_value test = parse_binary(p, 1), v = test;
    if (!p->failed && accept(p, '?')) {
        if (test.type != MPP_VALUE_BOOL)
            fault(p, "\"?\" needs a bool before it, not a %s", mpp_value_type_name(test.type));
        p->dead += !test.i;
        struct mpp_value yes = parse_ternary(p);
        p->dead -= !test.i;
        expect(p, ':');
        p->dead += test.i != 0;
        struct mpp_value no = parse_ternary(p);
        p->dead -= test.i != 0;
        v = test.i ? yes : no;
        if (test.batch)
            v.batch = MPP_BATCH_OTHER;
    }
    p->nesting--;
    return v;
}

/* ---- entry points ---- */

static bool start(struct parser *p, const struct mpp_eval *ev, const char *text)
{
    *p = (struct parser){.ev = ev, .text = text, .at = text};
    size_t len = strlen(text);
    if (len > MPP_EXPR_MAX_CHARS) {
        fault(p, "the expression has over %d characters", MPP_EXPR_MAX_CHARS);
        return false;
    }
    p->norm = mpp_arena_alloc(ev->arena, len + 1);
    advance(p);
    return !p->failed;
}

/* Parse one expression and take its normalised text. */
static bool one(struct parser *p, struct mpp_value *out, const char **out_text)
{
    size_t from = p->norm_len;
    int tokens = p->n_tokens;
    *out = parse_ternary(p);
    if (p->failed)
        return false;
    const char *text = mpp_arena_strndup(p->ev->arena, p->norm + from, p->norm_len - from);
    if (p->n_tokens == tokens + 1 && p->last && mpp_is_identifier(text) && p->last->text &&
        strcmp(p->last->name, text) == 0)
        text = p->last->text;
    *out_text = text;
    return true;
}

static bool at_end(struct parser *p)
{
    if (p->token == T_END || p->failed)
        return !p->failed;
    fault(p, "unexpected \"%.*s\"", (int)(p->at - p->start), p->start);
    return false;
}

static int count_commas(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == ',';
    return n;
}

bool mpp_eval_list(const struct mpp_eval *ev, const char *text, int *out_n, struct mpp_value **out_values,
                   const char ***out_texts)
{
    struct parser p;
    if (!start(&p, ev, text))
        return false;
    int n = 0, max = count_commas(text) + 1;
    struct mpp_value *values = mpp_arena_array(ev->arena, max, struct mpp_value);
    const char **texts = mpp_arena_array(ev->arena, max, const char *);
    do {
        if (!one(&p, &values[n], &texts[n]))
            return false;
        n++;
    } while (accept(&p, ','));
    *out_n = n;
    *out_values = values;
    *out_texts = texts;
    return at_end(&p);
}

bool mpp_eval_value(const struct mpp_eval *ev, const char *text, struct mpp_value *out, const char **out_text)
{
    struct parser p;
    const char *norm = NULL;
    if (!start(&p, ev, text) || !one(&p, out, &norm) || !at_end(&p))
        return false;
    if (out_text)
        *out_text = norm;
    return true;
}
