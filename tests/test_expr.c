/* test_expr.c - what the model reader stands on: XML as a tree, and expressions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/expr.h"
#include "ir/xml.h"

static int passed, failed;

#define CHECK(cond, ...)                                    \
    do {                                                    \
        if (cond) {                                         \
            passed++;                                       \
        } else {                                            \
            failed++;                                       \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #cond); \
            printf(__VA_ARGS__);                            \
            printf("\n");                                   \
        }                                                   \
    } while (0)

/* ---- XML ---- */

static void test_xml(void)
{
    static const struct {
        const char *text, *want; /* want: part of the message; NULL: well-formed */
    } cases[] = {
        {"<a>\n <b c='1'/>\n</a>", NULL},
        {"<a><!-- text --><?pi x?></a>", NULL},
        {"<a>\n<b\n c='1'\n d='2'/></a>", NULL},
        {"<a>\nwords</a>", "m:2: error: text (\"words\") inside <a>"},
        {"<a><![CDATA[words]]></a>", "inside <a>"},
        {"<a>", "m:1: error"},
        {"<a>\n<b>\n</a>", "m:3: error: Opening and ending tag mismatch"},
        {"<a b='1' b='2'/>", "redefined"},
        {"<a b=1/>", "m:1: error"},
        {"<a/><b/>", "Extra content"},
        {"", "empty"},
        {"   ", "error"},
        {"plain text", "error"},
        {"<a>&nbsp;</a>", "not defined"},
        {"<!DOCTYPE a>\n<a/>", "m:1: error: a DOCTYPE is not allowed"},
        {"<?xml version='1.0'?>\n<!DOCTYPE a SYSTEM 'file:///etc/passwd'>\n<a/>", "m:2: error: a DOCTYPE is not allowed"},
        {"<!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><a>&x;</a>", "a DOCTYPE is not allowed"},
        {"<a b='\xff'/>", "error"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mpp_arena *arena = mpp_arena_new();
        struct mpp_diag *diag = mpp_diag_new(NULL);
        struct mpp_xml *root;
        enum mpp_status st = mpp_xml_parse(arena, diag, "m", cases[i].text, strlen(cases[i].text), &root);
        const char *said = mpp_diag_text(diag);
        CHECK((st == MPP_OK) == !cases[i].want && mpp_diag_errors(diag) == (cases[i].want != NULL), "case %zu: %s", i, said);
        CHECK(!cases[i].want || strstr(said, cases[i].want), "case %zu: %s", i, said);
        mpp_diag_free(diag);
        mpp_arena_free(arena);
    }
}

static void test_xml_values(void)
{
    const char *text = "<a>\n\n<b x='1 &lt; 2 &amp;&amp; 3 &gt; 2' y='&amp;#38;'\n z='&#65;'/>\n<c/></a>";
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(NULL);
    struct mpp_xml *root;
    CHECK(mpp_xml_parse(arena, diag, "m", text, strlen(text), &root) == MPP_OK, "%s", mpp_diag_text(diag));
    const struct mpp_xml *b = root->first;
    CHECK(b->loc.line == 3 && b->next->loc.line == 5, "%d %d", b->loc.line, b->next->loc.line);
    CHECK(strcmp(mpp_xml_get(b, "x"), "1 < 2 && 3 > 2") == 0, "%s", mpp_xml_get(b, "x"));
    CHECK(strcmp(mpp_xml_get(b, "y"), "&#38;") == 0, "%s", mpp_xml_get(b, "y"));
    CHECK(strcmp(mpp_xml_get(b, "z"), "A") == 0 && !mpp_xml_get(b, "w"), "%s", mpp_xml_get(b, "z"));
    mpp_diag_free(diag);
    mpp_arena_free(arena);
}

/* Inputs made to exhaust memory or the stack. */
static void test_xml_bombs(void)
{
    char *text = malloc(2000000), *p = text;
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(NULL);
    struct mpp_xml *root;
    p += sprintf(p, "<!DOCTYPE a [<!ENTITY e0 'xxxxxxxxxx'>");
    for (int i = 1; i < 12; i++)
        p += sprintf(p, "<!ENTITY e%d '&e%d;&e%d;&e%d;&e%d;&e%d;&e%d;&e%d;&e%d;&e%d;&e%d;'>", i, i - 1, i - 1, i - 1,
                     i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1);
    p += sprintf(p, "]><a b='&e11;'/>");
    CHECK(mpp_xml_parse(arena, diag, "bomb", text, (size_t)(p - text), &root) == MPP_INVALID && !root, "entity bomb");
    CHECK(strstr(mpp_diag_text(diag), "DOCTYPE"), "%s", mpp_diag_text(diag));
    p = text;
    for (int i = 0; i < 100000; i++)
        p += sprintf(p, "<a>\n");
    CHECK(mpp_xml_parse(arena, diag, "deep", text, (size_t)(p - text), &root) == MPP_INVALID, "deep nesting");
    CHECK(strstr(mpp_diag_text(diag), "deep:257: error: elements are nested"), "%s", mpp_diag_text(diag));
    p = text + sprintf(text, "<a>\n");
    for (int i = 0; i < 70000; i++)
        p += sprintf(p, "<b/>\n");
    p += sprintf(p, "<c/></a>");
    CHECK(mpp_xml_parse(arena, diag, "long", text, (size_t)(p - text), &root) == MPP_OK, "many lines");
    const struct mpp_xml *last = root ? root->first : NULL;
    while (last && last->next)
        last = last->next;
    CHECK(last && last->loc.line == 70002, "line %d", last ? last->loc.line : 0);
    CHECK(mpp_xml_read(arena, diag, "/tmp", &root) == MPP_INVALID, "a folder is no file");
    CHECK(mpp_xml_read(arena, diag, "/dev/zero", &root) == MPP_INVALID, "a device is no file");
    CHECK(mpp_xml_read(arena, diag, "/nonexistent/m.xml", &root) == MPP_INVALID, "a missing file");
    mpp_diag_free(diag);
    mpp_arena_free(arena);
    free(text);
}

/* ---- expressions ---- */

static const struct mpp_binding names[] = {
    {"batch", "batch", {.type = MPP_VALUE_INT, .i = 8, .batch = MPP_BATCH_LINEAR, .per_batch = 1}},
    {"hidden", "hidden", {.type = MPP_VALUE_INT, .i = 768}},
    {"heads", "heads", {.type = MPP_VALUE_INT, .i = 12}},
    {"std", "std", {.type = MPP_VALUE_FLOAT, .f = 0.02}},
    {"moe", "moe", {.type = MPP_VALUE_BOOL, .i = 1}},
    {"kind", "kind", {.type = MPP_VALUE_STRING, .s = "adamw"}},
    {"planes", "4*hidden", {.type = MPP_VALUE_INT, .i = 3072}},
};
static const struct mpp_env env = {.n = sizeof names / sizeof *names, .bind = names};

static void test_expressions(void)
{
    static const struct {
        const char *text, *want, *norm; /* norm NULL: unchecked */
    } cases[] = {
        {"1 + 2 * 3", "7", "1+2*3"},        {"(1 + 2) * 3", "9", NULL},
        {"-3 + 10", "7", NULL},             {"10 - 3 - 2", "5", NULL},
        {"hidden / heads", "64", "hidden/heads"}, {"100 / 8 / 5", "2.5", NULL},
        {"7 / 2", "3.5", NULL},             {"7 % 4", "3", NULL},
        {"hidden % heads == 0", "true", NULL}, {"1 < 2 && 2 < 1", "false", NULL},
        {"1 < 2 || 1 / 0 == 1", "true", NULL}, {"!moe", "false", NULL},
        {"false ? floor(sqrt(-1)) : 4", "4", NULL}, {"true || round(log(-2)) > 0", "true", NULL},
        {"moe ? 1 : 2", "1", NULL},         {"false ? 1/0 : moe ? 5 : 6", "5", NULL},
        {"sqrt(2 * 8)", "4", NULL},         {"min(3, hidden)", "3", NULL},
        {"max(3.5, 2)", "3.5", NULL},       {"log2(1024)", "10", NULL},
        {"floor(7 / 2)", "3", NULL},        {"ceil(7/2)", "4", NULL},
        {"round(2.5)", "3", NULL},          {"abs(-4)", "4", NULL},
        {"pow(2, 40)", "1099511627776", NULL}, {"pow(-1, 1000000001)", "-1", NULL},
        {"exp(0)", "1", NULL},              {"1e-5", "1e-05", "1e-5"},
        {".5 * 4", "2", NULL},              {"kind == 'adamw'", "true", NULL},
        {"kind != \"sgd\"", "true", NULL},  {"2 >= 2 && 3 <= 3 && 4 > 3", "true", NULL},
        {"1 == 1.0", "true", NULL},         {" hidden ", "768", "hidden"},
        {"planes", "3072", "4*hidden"},     {"std/sqrt(4)", "0.01", NULL},
        {"9223372036854775807", "9223372036854775807", NULL},
    };
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(NULL);
    struct mpp_eval ev = {.arena = arena, .diag = diag, .env = &env, .loc = {"m", 1}, .what = "v"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mpp_value v = {0};
        const char *norm = "";
        bool ok = mpp_eval_value(&ev, cases[i].text, &v, &norm);
        const char *got = ok ? mpp_value_print(arena, &v) : mpp_diag_text(diag);
        CHECK(ok && strcmp(got, cases[i].want) == 0, "%s is %s, not %s", cases[i].text, cases[i].want, got);
        CHECK(!cases[i].norm || strcmp(norm, cases[i].norm) == 0, "%s normalised to %s", cases[i].text, norm);
    }
    mpp_diag_free(diag);
    mpp_arena_free(arena);
}

static void test_expression_errors(void)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"", "empty"},
        {"1 +", "missing at the end"},
        {"(1", "\")\" is missing"},
        {"1 2", "unexpected \"2\""},
        {"1)", "unexpected \")\""},
        {"hiden", "no parameter or dimension \"hiden\" here; did you mean \"hidden\"?"},
        {"sqr(4)", "did you mean \"sqrt\"?"},
        {"min(1)", "min takes 2 arguments, not 1"},
        {"sqrt(1, 2)", "sqrt takes 1 argument, not 2"},
        {"sqrt(moe)", "needs numbers"},
        {"1 / 0", "division by zero"},
        {"1 % 0", "division by zero"},
        {"1.5 % 2", "whole numbers"},
        {"sqrt(-1)", "not finite"},
        {"9223372036854775807 + 1", "overflows"},
        {"-9223372036854775807 - 2", "overflows"},
        {"4611686018427387904 * 2", "overflows"},
        {"(-9223372036854775807 - 1) / -1", "overflows"},
        {"pow(10, 19)", "overflows"},
        {"99999999999999999999", "too large"},
        {"1e999", "too large"},
        {"3x", "bad number"},
        {"heads = 1", "write \"==\""},
        {"1 = 1", "write \"==\""},
        {"1 & 2", "unexpected \"&\""},
        {"'abc", "no closing"},
        {"!1", "\"!\" needs a bool"},
        {"1 && moe", "needs bools"},
        {"1 ? 2 : 3", "needs a bool"},
        {"moe ? 1", "\":\" is missing"},
        {"moe + 1", "needs numbers, not a bool"},
        {"kind < 'b'", "cannot compare"},
        {"kind == 1", "cannot compare a string with a int"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mpp_arena *arena = mpp_arena_new();
        struct mpp_diag *diag = mpp_diag_new(NULL);
        struct mpp_eval ev = {.arena = arena, .diag = diag, .env = &env, .loc = {"m", 1}, .what = "v"};
        struct mpp_value v;
        CHECK(!mpp_eval_value(&ev, cases[i].text, &v, NULL), "%s was taken", cases[i].text);
        CHECK(mpp_diag_errors(diag) == 1 && strstr(mpp_diag_text(diag), cases[i].want), "%s: %s", cases[i].text,
              mpp_diag_text(diag));
        mpp_diag_free(diag);
        mpp_arena_free(arena);
    }
}

static void test_expression_limits(void)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(NULL);
    struct mpp_eval ev = {.arena = arena, .diag = diag, .loc = {"m", 1}, .what = "v"};
    struct mpp_value v;
    char text[5000] = {0};
    memset(text, '(', 4000);
    CHECK(!mpp_eval_value(&ev, text, &v, NULL) && strstr(mpp_diag_text(diag), "nested over 64"), "parentheses");
    memset(text, '-', 4000);
    CHECK(!mpp_eval_value(&ev, text, &v, NULL), "signs");
    memset(text, '1', 4097);
    CHECK(!mpp_eval_value(&ev, text, &v, NULL) && strstr(mpp_diag_text(diag), "4096"), "%s", mpp_diag_text(diag));
    for (int i = 0; i < 4094; i += 2)
        memcpy(text + i, "1+", 3);
    text[4094] = '1';
    text[4095] = '\0';
    CHECK(mpp_eval_value(&ev, text, &v, NULL) && v.i == 2048, "a long sum");
    mpp_diag_free(diag);
    mpp_arena_free(arena);
}

static void test_sizes(void)
{
    static const struct {
        const char *text;
        int64_t size, per_batch; /* size 0: an error that holds NAME */
        const char *name;
    } cases[] = {
        {"batch", 8, 1, "batch"},
        {"batch * 768", 6144, 768, "batch*768"},
        {"hidden * batch * 2", 12288, 1536, "hidden*batch*2"},
        {"batch + batch", 16, 2, "batch+batch"},
        {"3*batch - batch", 16, 2, "3*batch-batch"},
        {"batch * 4 / 2", 16, 2, "batch*4/2"},
        {"batch * hidden / batch", 0, 0, "multiple of the batch"},
        {"batch + 1", 0, 0, "multiple of the batch"},
        {"batch * batch", 0, 0, "multiple of the batch"},
        {"batch / 2", 0, 0, "multiple of the batch"},
        {"min(batch, 4)", 0, 0, "multiple of the batch"},
        {"batch > 4 ? 2 : 3", 0, 0, "multiple of the batch"},
        {"4*hidden", 3072, 0, "4*hidden"},
        {"planes", 3072, 0, "4*hidden"},
        {"hidden / 7", 0, 0, "must be a whole number"},
        {"hidden - 768", 0, 0, "at least 1"},
        {"1099511627776", (int64_t)1 << 40, 0, "1099511627776"},
        {"1099511627777", 0, 0, "over 2^40"},
        {"moe", 0, 0, "must be a whole number"},
        {"-1", -1, 0, "-1"},
        {"0 - 1", 0, 0, "at least 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mpp_arena *arena = mpp_arena_new();
        struct mpp_diag *diag = mpp_diag_new(NULL);
        struct mpp_eval ev = {.arena = arena, .diag = diag, .env = &env, .loc = {"m", 1}, .what = "units"};
        int n = 0;
        struct mpp_size *s;
        bool ok = mpp_eval_sizes(&ev, cases[i].text, MPP_SIZES_ANY, &n, &s);
        if (cases[i].size)
            CHECK(ok && n == 1 && s->size == cases[i].size && s->per_batch == cases[i].per_batch &&
                      strcmp(s->name, cases[i].name) == 0, "%s: %s", cases[i].text, mpp_diag_text(diag));
        else
            CHECK(!ok && strstr(mpp_diag_text(diag), cases[i].name), "%s: %s", cases[i].text, mpp_diag_text(diag));
        mpp_diag_free(diag);
        mpp_arena_free(arena);
    }
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(NULL);
    struct mpp_eval ev = {.arena = arena, .diag = diag, .env = &env, .loc = {"m", 1}, .what = "units"};
    int n;
    struct mpp_size *s;
    CHECK(mpp_eval_sizes(&ev, "3, heads, hidden/heads, max(1, 2)", MPP_SIZES_POSITIVE, &n, &s) && n == 4 &&
              s[2].size == 64 && strcmp(s[2].name, "hidden/heads") == 0, "%s", mpp_diag_text(diag));
    CHECK(!mpp_eval_sizes(&ev, "1e12, 1e12", MPP_SIZES_POSITIVE, &n, &s), "product");
    CHECK(strstr(mpp_diag_text(diag), "2^62"), "%s", mpp_diag_text(diag));
    CHECK(!mpp_eval_sizes(&ev, "3,", MPP_SIZES_POSITIVE, &n, &s), "trailing comma");
    const char *call;
    CHECK(mpp_eval_call(&ev, "normal(0, std/2)", &call) && strcmp(call, "normal(0,0.01)") == 0, "%s", call);
    CHECK(mpp_eval_call(&ev, "zeros", &call) && strcmp(call, "zeros") == 0, "%s", call);
    CHECK(!mpp_eval_call(&ev, "normal(0, 1", &call), "unclosed call");
    mpp_diag_free(diag);
    mpp_arena_free(arena);
}

int main(void)
{
    test_xml();
    test_xml_values();
    test_xml_bombs();
    test_expressions();
    test_expression_errors();
    test_expression_limits();
    test_sizes();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
