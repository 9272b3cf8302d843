/* test_model.c - the model reader: expansion, wiring, presets, and every kind of error.
 *
 *     test_model [ROOT]     ROOT: the folder that holds models/ and docs/ (default: the present one) */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ir/graph.h"
#include "ir/model.h"
#include "ir/schema.h"

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

/* One reading of a model. */
struct run {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    struct mpp_model *model;
    enum mpp_status status;
};

static char folder[] = "/tmp/mpp_test_model_XXXXXX";

static const char *write_file(const char *name, const char *text)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    if (!f)
        return "/nonexistent";
    fputs(text, f);
    fclose(f);
    return path;
}

static struct run read_path(const char *path, const struct mpp_model_options *options)
{
    struct run r = {.arena = mpp_arena_new(), .diag = mpp_diag_new(NULL)};
    r.status = mpp_model_read(r.arena, r.diag, path, options, &r.model);
    return r;
}

static struct run read_text(const char *text, const struct mpp_model_options *options)
{
    return read_path(write_file("m.xml", text), options);
}

static void end(struct run *r)
{
    mpp_diag_free(r->diag);
    mpp_arena_free(r->arena);
}

/* ---- pieces of small models ---- */

#define HEAD "<model name='m' version='1'>\n"
#define PARAMS(extra)                                                                               \
    "<params><dim name='batch' value='8' role='batch'/><dim name='hidden' value='16'/>\n"          \
    "<dim name='seq' value='4'/><param name='n' type='int' value='3'/>" extra "</params>\n"
#define INPUTS "<inputs><input name='x' type='f32' shape='batch, hidden'/><input name='ids' type='i32' shape='batch, seq'/></inputs>\n"
#define OPTIMIZER "<optimizer type='adamw' lr='1e-3'/>"
#define TRAIN "<training loss='loss'>" OPTIMIZER "</training>\n"
#define LOSS "<Loss name='loss'/>"
#define MODEL(extra, blocks, graph) HEAD PARAMS(extra) blocks INPUTS "<graph>" graph "</graph>\n" TRAIN "</model>\n"
#define GRAPH(graph) MODEL("", "", "<A name='a' in='x'/>" graph LOSS)
#define WITH_TRAINING(t) HEAD PARAMS("") INPUTS "<graph><A in='x'/>" LOSS "</graph>\n" t "</model>\n"
#define WITH_INPUTS(i) HEAD PARAMS("") "<inputs>" i "</inputs><graph><A in='x'/>" LOSS "</graph>\n" TRAIN "</model>\n"
#define AFTER(t) HEAD PARAMS("") INPUTS "<graph><A in='x'/>" LOSS "</graph>\n" TRAIN t "</model>\n"

/* ---- expansion and wiring ---- */

/* The expanded model as text: "Type name(in, in)->out out; ..." */
static const char *listing(const struct run *r)
{
    const char *s = "";
    for (int i = 0; r->model && i < r->model->n_items; i++) {
        const struct mpp_item *it = &r->model->items[i];
        s = mpp_arena_printf(r->arena, "%s%s%s %s(", s, i ? "; " : "", it->type, it->name);
        for (int k = 0; k < it->n_in; k++)
            s = mpp_arena_printf(r->arena, "%s%s%s", s, k ? " " : "", it->in[k] ? it->in[k] : "-");
        s = mpp_arena_printf(r->arena, "%s)", s);
        for (int k = 0; k < it->n_out; k++) {
            if (k > 0 || strcmp(it->out[0], it->name) != 0)
                s = mpp_arena_printf(r->arena, "%s%s%s", s, k ? " " : "->", it->out[k]);
        }
    }
    return s;
}

static void test_wiring(void)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {GRAPH(""), "A a(x); Loss loss(a)"},
        {GRAPH("<B/><B/><C name='c' in='a b_2'/>"), "A a(x); B b(a); B b_2(b); C c(a b_2); Loss loss(c)"},
        {GRAPH("<Split out='q k v'/><T in='q k - v'/>"),
         "A a(x); Split split(a)->q k v; T t(q k - v); Loss loss(t)"},
        {GRAPH("<Split name='s' out='q k'/><T in='s k'/>"), "A a(x); Split s(a)->q k; T t(q k); Loss loss(t)"},
        {GRAPH("<P name='p' in=''/><B in='p a'/>"), "A a(x); P p(); B b(p a); Loss loss(b)"},
        {GRAPH("<if test='n == 3'><B/></if><if test='n != 3'><C/></if>"), "A a(x); B b(a); Loss loss(b)"},
        {GRAPH("<B test='n &gt; 3'/>"), "A a(x); Loss loss(a)"},
        {GRAPH("<repeat name='h' count='2'><B/><C name='c' in='%x b'/></repeat><D in='h h.0 h.0.c'/>"),
         "A a(x); B h.0.b(a); C h.0.c(a h.0.b); B h.1.b(h.0.c); C h.1.c(h.0.c h.1.b); "
         "D d(h.1.c h.0.c h.0.c); Loss loss(d)"},
        {GRAPH("<repeat count='2' start='5' in='x'><B name='b'/></repeat>"),
         "A a(x); B 5.b(x); B 6.b(5.b); Loss loss(6.b)"},
        {GRAPH("<repeat name='h' count='0'><B/></repeat><C in='h'/>"), "A a(x); C c(a); Loss loss(c)"},
        {GRAPH("<repeat name='h' count='2' index='i'><B test='i % 2 == 1'/></repeat>"), "A a(x); B h.1.b(a); Loss loss(h.1.b)"},
        {GRAPH("<repeat name='o' count='2'><repeat name='i' count='2'><B in='%x a'/></repeat></repeat>"),
         "A a(x); B o.0.i.0.b(a a); B o.0.i.1.b(o.0.i.0.b a); B o.1.i.0.b(o.0.i.1.b a); "
         "B o.1.i.1.b(o.1.i.0.b a); Loss loss(o.1.i.1.b)"},
        {MODEL("", "<block name='f'><B name='p'/><C in='%x p ids'/></block>",
               "<A name='a' in='x'/><call name='g' block='f'/><call name='g2' block='f' in='a'/><D in='g g2 g.p'/>" LOSS),
         "A a(x); B g.p(a); C g.c(a g.p ids); B g2.p(a); C g2.c(a g2.p ids); D d(g.c g2.c g.p); Loss loss(d)"},
        {MODEL("", "<block name='f'><B/></block>", "<A in='x'/><call block='f'/><call name='' block='f'/>" LOSS),
         "A a(x); B b(a); B b_2(b); Loss loss(b_2)"},
        {MODEL("", "<block name='f'/>", "<A in='x'/><call name='g' block='f'/><B in='g'/>" LOSS),
         "A a(x); B b(a); Loss loss(b)"},
        {MODEL("", "<block name='f'><arg name='m' type='int'/><arg name='k' type='int' default='m+1'/><B test='k == 4'/>"
                   "<C test='k == 9'/></block>",
               "<A in='x'/><call block='f' m='n'/><call block='f' m='0' k='3*n'/>" LOSS),
         "A a(x); B b(a); C c(b); Loss loss(c)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct run r = read_text(cases[i].text, NULL);
        const char *got = listing(&r);
        CHECK(r.status == MPP_OK && strcmp(got, cases[i].want) == 0, "case %zu: %s%s", i, got, mpp_diag_text(r.diag));
        end(&r);
    }
}

static void test_items(void)
{
    struct run r = read_text(MODEL("", "<block name='f'><B name='b' units='4*hidden'/></block>\n",
                                   "<A name='a' in='x'/>\n<repeat name='h' count='2'>\n<call name='g' block='f'/></repeat>"
                                   "<C/>" LOSS), NULL);
    CHECK(r.status == MPP_OK && r.model->n_items == 5, "%s", mpp_diag_text(r.diag));
    if (r.status == MPP_OK) {
        const struct mpp_item *b = &r.model->items[2], *c = &r.model->items[3];
        CHECK(b->repeat == 0 && b->index == 1 && strcmp(b->repeat_name, "h") == 0, "%d %d", b->repeat, b->index);
        CHECK(c->repeat == -1 && c->index == -1 && !c->path, "%d %d", c->repeat, c->index);
        CHECK(strcmp(b->scope, "h.1.g") == 0 && strcmp(c->scope, "") == 0, "%s", b->scope);
        CHECK(b->path && strstr(b->path, "in block \"f\", called as h.1.g at ") && strstr(b->path, "m.xml:8"), "%s", b->path);
        CHECK(b->in_default && !r.model->items[0].in_default, "in_default");
        CHECK(r.model->n_repeats == 1 && r.model->batch == 8 && strcmp(r.model->batch_name, "batch") == 0, "model");
        CHECK(strcmp(r.model->training.loss, "loss") == 0 && isnan(r.model->training.weight_decay_1d), "training");
        CHECK(r.model->inputs[0].dims[0].per_batch == 1 && r.model->inputs[0].dims[1].size == 16, "inputs");
    }
    end(&r);
}

/* ---- attributes ---- */

static void test_attrs(void)
{
    static const char spec[] = "units:dims*, bias:bool=true, mode:{none|tanh}=none, axis:int=-1, eps:float=1e-5, "
                               "weight:string, perm:ints, init:init=normal(0,1)";
    static const struct {
        const char *attrs, *want; /* want: part of the message, or NULL */
    } cases[] = {
        {"units='4*hidden, n' mode='tanh' axis='n-1' weight='w.weight' perm='1, 0' init='normal(0, 1/4)'", NULL},
        {"units='n' name='z' test='true' out='o'", NULL},
        {"units='n' mode='act'", NULL},
        {"units='n' modes='tanh'", "L has no attribute \"modes\"; did you mean \"mode\"?"},
        {"mode='tanh'", "L needs the attribute \"units\""},
        {"units='n' mode='tahn'", "mode must be \"none\" or \"tanh\", not \"tahn\"; did you mean \"tanh\"?"},
        {"units='n' bias='yes'", "no parameter or dimension \"yes\""},
        {"units='n' bias='2'", "bias must be true or false"},
        {"units='n' axis='0.5'", "axis must be a whole number"},
        {"units='n' axis='batch'", "must not depend on the batch"},
        {"units='n' eps='act'", "eps must be a number"},
        {"units='n' perm='0, 1.5'", "perm must be a whole number"},
        {"units='batch+1'", "multiple of the batch"},
        {"units='hiden'", "did you mean \"hidden\"?"},
        {"units='n' init='normal(0, sdt)'", "no parameter or dimension \"sdt\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[2000];
        snprintf(text, sizeof text, "%s<L in='x' %s/><Loss name='loss' in='x'/></graph>" TRAIN "</model>",
                 HEAD PARAMS("<param name='act' type='string' value='tanh'/>") INPUTS "<graph>", cases[i].attrs);
        struct run r = read_text(text, NULL);
        struct mpp_attrs attrs = {0};
        enum mpp_status st = MPP_INVALID;
        if (r.status == MPP_OK)
            st = mpp_attrs_read(r.arena, r.diag, &r.model->items[0], spec, &attrs);
        const char *said = mpp_diag_text(r.diag);
        CHECK((st == MPP_OK) == !cases[i].want, "%s: %s", cases[i].attrs, said);
        CHECK(!cases[i].want || strstr(said, cases[i].want), "%s: %s", cases[i].attrs, said);
        CHECK(!cases[i].want || strstr(said, "m.xml:5: error: "), "%s: %s", cases[i].attrs, said);
        if (st == MPP_OK && i == 0) {
            const struct mpp_attr *units = mpp_attrs_find(&attrs, "units"), *perm = mpp_attrs_find(&attrs, "perm");
            CHECK(units && units->n == 2 && units->dims[0].size == 64 && strcmp(units->dims[0].name, "4*hidden") == 0, "units");
            CHECK(perm && perm->n == 2 && perm->ints[0] == 1 && perm->ints[1] == 0, "perm");
            CHECK(mpp_attrs_int(&attrs, "axis", 9) == 2 && mpp_attrs_int(&attrs, "bias", 0) == 1, "axis, bias");
            CHECK(mpp_attrs_float(&attrs, "eps", 0) == 1e-5, "eps");
            CHECK(strcmp(mpp_attrs_string(&attrs, "mode", ""), "tanh") == 0, "mode");
            CHECK(strcmp(mpp_attrs_string(&attrs, "init", ""), "normal(0,0.25)") == 0, "init");
            CHECK(strcmp(mpp_attrs_string(&attrs, "nothing", "none"), "none") == 0, "fallback");
        }
        if (st == MPP_OK && i == 1)
            CHECK(!mpp_attrs_find(&attrs, "weight") && mpp_attrs_int(&attrs, "axis", 9) == -1, "defaults");
        if (st == MPP_OK && i == 2)
            CHECK(strcmp(mpp_attrs_string(&attrs, "mode", ""), "tanh") == 0, "a string parameter in an enumeration");
        end(&r);
    }
    CHECK(mpp_glob("*.bias", "h.0.bias") && !mpp_glob("*.bias", "h.0.weight") && mpp_glob("h.*.ln_?.*", "h.3.ln_1.weight") &&
              mpp_glob("*", "") && !mpp_glob("?", "") && mpp_glob("a*b*c", "aXbXbc") && !mpp_glob("a*b*c", "aXbX"), "glob");
}

/* ---- options ---- */

static const struct mpp_size *dim(const struct mpp_model *m, const char *name)
{
    for (int i = 0; i < m->n_dims; i++) {
        if (strcmp(m->dims[i].name, name) == 0)
            return &m->dims[i];
    }
    return NULL;
}

static void test_options(void)
{
    static const char text[] = MODEL("<dim name='ffn' value='4*hidden'/><param name='act' type='string' value='gelu'/>"
                                     "<preset name='big' hidden='32' n='hidden/8'/><preset name='bigger' hidden='64'/>",
                                     "", "<A in='x'/>" LOSS);
    static const char *const defs[] = {"hidden=16*4", "act=relu", "hidden=128"};
    struct mpp_model_options o = {.preset = "big"};
    struct run r = read_text(text, &o);
    CHECK(r.status == MPP_OK && dim(r.model, "ffn")->size == 128 && strcmp(r.model->param_values[0], "4") == 0 &&
              strcmp(r.model->preset, "big") == 0, "preset: %s", mpp_diag_text(r.diag));
    end(&r);
    o = (struct mpp_model_options){.preset = "big", .n_defines = 3, .defines = defs, .batch = 24};
    r = read_text(text, &o);
    CHECK(r.status == MPP_OK && dim(r.model, "ffn")->size == 512 && strcmp(r.model->param_values[1], "relu") == 0 &&
              r.model->batch == 24, "-D: %s", mpp_diag_text(r.diag));
    end(&r);
    static const struct {
        const char *preset, *define, *want;
    } bad[] = {
        {NULL, "hiden=1024", "m.xml:2: error: no parameter \"hiden\" (from -D hiden=1024); did you mean \"hidden\"?"},
        {NULL, "hidden", "must have the form -D name=value"},
        {NULL, "=3", "must have the form"},
        {NULL, "hidden=", "empty"},
        {NULL, "hidden=0", "between 1 and 2^40, not 0"},
        {NULL, "hidden=2199023255552", "between 1 and 2^40"},
        {NULL, "hidden=abc", "-D hidden=\"abc\""},
        {NULL, "hidden=1.5", "-D hidden must be a whole number"},
        {NULL, "n=hello", "no parameter or dimension \"hello\""},
        {"bigg", NULL, "no preset \"bigg\"; did you mean \"big\"?"},
        {"zzzzzzzzz", NULL, "this file has big, bigger"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        o = (struct mpp_model_options){.preset = bad[i].preset, .n_defines = bad[i].define != NULL, .defines = &bad[i].define};
        r = read_text(text, &o);
        CHECK(r.status == MPP_INVALID && strstr(mpp_diag_text(r.diag), bad[i].want), "option %zu: %s", i,
              mpp_diag_text(r.diag));
        end(&r);
    }
}

/* ---- malformed files ---- */

static const struct {
    const char *text, *want;
} malformed[] = {
    /* the root and its sections */
    {"<net/>", "the root element is <net>, not <model>; OpenVINO"},
    {"<library version='1'/>", "a <library> is included"},
    {"<model/>", "<model> needs the attribute \"name\""},
    {"<model name='m' version='2'>" PARAMS("") INPUTS "<graph><A in='x'/>" LOSS "</graph>" TRAIN "</model>", "reads version 1"},
    {"<model nam='m' version='1'/>", "no attribute \"nam\"; did you mean \"name\"?"},
    {HEAD INPUTS "</model>", "the model has no <params>"},
    {HEAD PARAMS("") "<graph><A/></graph>" TRAIN "</model>", "the model has no <inputs>"},
    {HEAD PARAMS("") INPUTS TRAIN "</model>", "the model has no <graph>"},
    {HEAD PARAMS("") INPUTS "<graph><A/></graph></model>", "the model has no <training>"},
    {HEAD PARAMS("") "<graph><A in='x'/>" LOSS "</graph>" INPUTS TRAIN "</model>", "m.xml:4: error: <inputs> must come before <graph>"},
    {HEAD PARAMS("") PARAMS("") INPUTS "<graph><A in='x'/>" LOSS "</graph>" TRAIN "</model>", "a second <params>; the first is at line 2"},
    {AFTER("<plannning/>"), "no element <plannning> in <model>; did you mean \"planning\"?"},
    {AFTER("<zzz/>"), "allowed here: \"include\", \"params\""},
    /* params */
    {HEAD "<params><dim name='a' value='1'/></params></model>", "no dimension has role=\"batch\""},
    {MODEL("<dim name='b2' value='1' role='batch'/>", "", LOSS), "a second dimension with role=\"batch\"; the first is \"batch\""},
    {MODEL("<dim name='hidden' value='1'/>", "", LOSS), "a second \"hidden\"; the first is at line 2"},
    {MODEL("<dim name='h' value='1' role='bach'/>", "", LOSS), "role must be \"batch\", \"sequence\""},
    {MODEL("<dim name='h' valeu='1'/>", "", LOSS), "did you mean \"value\"?"},
    {MODEL("<dim name='1h' value='1'/>", "", LOSS), "\"1h\" is not a name"},
    {MODEL("<dim name='true' value='1'/>", "", LOSS), "can't be a parameter's name"},
    {MODEL("<dim name='h' value='batch*batch'/>", "", LOSS), "must be a multiple of the batch"},
    {MODEL("<dim name='h' value='later'/><dim name='later' value='1'/>", "", LOSS), "no parameter or dimension \"later\""},
    {MODEL("<param name='p' type='integer' value='1'/>", "", LOSS), "type must be \"int\", \"float\", \"bool\" or \"string\""},
    {MODEL("<param name='p' type='int' value='x y'/>", "", LOSS), "no parameter or dimension \"x\""},
    {MODEL("<param name='p' type='bool' value='7'/>", "", LOSS), "value must be true or false"},
    {MODEL("<param name='p' type='int'/>", "", LOSS), "<param> needs the attribute \"value\""},
    {MODEL("<parm name='p'/>", "", LOSS), "no element <parm> in <params>; did you mean \"param\"?"},
    {MODEL("<preset name='p' hiden='2'/>", "", LOSS), "preset \"p\" sets \"hiden\", which is no parameter; did you mean \"hidden\"?"},
    {MODEL("<preset name='p'/><preset name='p'/>", "", LOSS), "a second preset \"p\""},
    {MODEL("<preset hidden='2'/>", "", LOSS), "<preset> needs the attribute \"name\""},
    {MODEL("<require test='hidden % 5 == 0' message='hidden is odd'/>", "", LOSS), "hidden is odd (hidden % 5 == 0; here hidden = 16)"},
    {MODEL("<require test='hidden'/>", "", LOSS), "test must be true or false"},
    {MODEL("<require message='m'/>", "", LOSS), "<require> needs the attribute \"test\""},
    {MODEL("<dim name='h' value='2'><dim name='i' value='2'/></dim>", "", LOSS), "<dim> has no child elements"},
    /* blocks */
    {MODEL("", "<block/>", LOSS), "<block> needs the attribute \"name\""},
    {MODEL("", "<block name='f'/>\n<block name='f'/>", LOSS), "m.xml:5: error: a second block \"f\"; the first is at "},
    {MODEL("", "<block name='f'><B/><arg name='a' type='int'/></block>", "<A in='x'/>" LOSS), "<arg> must stand in a block, before its ops"},
    {MODEL("", "<block name='f'><arg name='in' type='int'/></block>", "<A in='x'/>" LOSS), "can't be an argument's name"},
    {MODEL("", "<block name='f'><arg name='a' type='int'/><arg name='a' type='int'/></block>", LOSS), "a second argument \"a\""},
    {MODEL("", "<block name='f'><arg name='a' type='number'/></block>", LOSS), "type must be \"int\""},
    {MODEL("", "<block name='f'><arg name='a' type='int'/></block>", "<A in='x'/><call block='f'/>" LOSS), "<call> needs the attribute \"a\""},
    {MODEL("", "<block name='f'><arg name='size' type='int'/></block>", "<A in='x'/><call block='f' sise='1' size='2'/>" LOSS),
     "<call> has no attribute \"sise\"; did you mean \"size\"?"},
    {MODEL("", "<block name='f'><arg name='a' type='int'/><B/></block>", "<A in='x'/><call block='f' a='0.5'/>" LOSS), "a must be a whole number"},
    {MODEL("", "<block name='attention'/>", "<A in='x'/><call block='atention'/>" LOSS), "no block \"atention\"; did you mean \"attention\"?"},
    {MODEL("", "", "<A in='x'/><call/>" LOSS), "<call> needs the attribute \"block\""},
    {MODEL("", "<block name='f'><call block='f'/></block>", "<A in='x'/><call block='f'/>" LOSS), "block \"f\" is called from within itself"},
    {MODEL("", "<block name='f'><call block='g'/></block><block name='g'><call block='f'/></block>",
           "<A in='x'/><call block='f'/>" LOSS), "is called from within itself"},
    {MODEL("", "<block name='f'><B in='a'/></block>", "<A name='a' in='x'/><call name='c' block='f'/>" LOSS), "no value \"a\" before this"},
    /* the graph */
    {MODEL("", "", ""), "the graph has no op"},
    {GRAPH("<linear/>"), "no element <linear> in <graph>"},
    {GRAPH("<reapeat count='2'/>"), "no element <reapeat> in <graph>; did you mean \"repeat\"?"},
    {GRAPH("<B in='aa'/>"), "no value \"aa\" before this"},
    {GRAPH("<Residual name='res1'/><B in='resl'/>"), "did you mean \"res1\"?"},
    {GRAPH("<B in='later'/><C name='later'/>"), "no value \"later\" before this"},
    {GRAPH("<B in='%x'/>"), "%x is the input of a block or loop; there is none here"},
    {GRAPH("<B name='a'/>"), "the name \"a\" is taken by line 5"},
    {GRAPH("<B name='x'/>"), "the name \"x\" is taken by line 4"},
    {GRAPH("<B name='a b'/>"), "\"a b\" is not a name"},
    {GRAPH("<B name=''/>"), "is not a name"},
    {GRAPH("<B name='a..b'/>"), "is not a name"},
    {GRAPH("<B out=''/>"), "out is empty"},
    {GRAPH("<B out='p p'/>"), "the name \"p\" is taken"},
    {GRAPH("<B><C/></B>"), "<B> has no child elements, so <C> can't stand in it"},
    {GRAPH("<if><B/></if>"), "<if> needs the attribute \"test\""},
    {GRAPH("<if test='n'><B/></if>"), "test must be true or false"},
    {GRAPH("<repeat name='h'><B/></repeat>"), "<repeat> needs the attribute \"count\""},
    {GRAPH("<repeat name='h' count='-1'><B/></repeat>"), "count must be between 0 and 20000, not -1"},
    {GRAPH("<repeat name='h' count='batch'><B/></repeat>"), "must not depend on the batch"},
    {GRAPH("<repeat name='h' count='2' in='a x'><B/></repeat>"), "<repeat> takes one value"},
    {GRAPH("<repeat name='h' count='2' index='1'><B/></repeat>"), "index=\"1\" is not a name"},
    {GRAPH("<repeat name='h' cuont='2'><B/></repeat>"), "did you mean \"count\"?"},
    {GRAPH("<arg name='a' type='int'/>"), "<arg> must stand in a block"},
    {GRAPH("<repeat name='h' count='1000'><repeat name='i' count='1000'><B/></repeat></repeat>"), "over 20000 ops"},
    {GRAPH("<repeat name='h' count='3000'><repeat name='i' count='3000'/></repeat>"), "steps to expand"},
    /* inputs */
    {WITH_INPUTS(""), "the model has no input"},
    {WITH_INPUTS("<input name='x' type='f64' shape='batch'/>"), "type must be \"i32\" or \"f32\", not \"f64\""},
    {WITH_INPUTS("<input name='x' type='f32' shape='hidden, batch'/>"), "first dimension of input \"x\" must be \"batch\""},
    {WITH_INPUTS("<input name='x' type='f32' shape='batch, batch'/>"), "only the first dimension"},
    {WITH_INPUTS("<input name='x' type='f32'/>"), "<input> needs the attribute \"shape\""},
    {WITH_INPUTS("<input name='x' type='f32' shape='batch'/><input name='x' type='f32' shape='batch'/>"), "a second input \"x\""},
    {WITH_INPUTS("<input name='x' type='i32' shape='batch' role='token'/>"), "did you mean \"tokens\"?"},
    {WITH_INPUTS("<input name='x' type='f32' shape='batch' role='tokens'/>"), "its type must be \"i32\""},
    {WITH_INPUTS("<input name='x' type='i32' shape='batch' limit='0'/>"), "limit must be at least 1"},
    {WITH_INPUTS("<output name='x'/>"), "no element <output> in <inputs>"},
    /* training and the rest */
    {WITH_TRAINING("<training>" OPTIMIZER "</training>"), "<training> needs the attribute \"loss\""},
    {WITH_TRAINING("<training loss='los'>" OPTIMIZER "</training>"), "no value \"los\" before this; did you mean \"loss\"?"},
    {WITH_TRAINING("<training loss='x'>" OPTIMIZER "</training>"), "is an input"},
    {WITH_TRAINING("<training loss='loss'/>"), "<training> has no <optimizer>"},
    {WITH_TRAINING("<training loss='loss'>" OPTIMIZER OPTIMIZER "</training>"), "a second <optimizer>"},
    {WITH_TRAINING("<training loss='loss'>" OPTIMIZER "<batch micro='auto'/></training>"), "<batch> must come before <optimizer> in <training>"},
    {WITH_TRAINING("<training loss='loss'><batch micro='3'/>" OPTIMIZER "</training>"), "does not divide the batch of 8"},
    {WITH_TRAINING("<training loss='loss'><precision compute='f64'/>" OPTIMIZER "</training>"), "f64"},
    {WITH_TRAINING("<training loss='loss'><precision params='bf16'/>" OPTIMIZER "</training>"), "masters of parameters are always in f32"},
    {WITH_TRAINING("<training loss='loss'><precision compute='bf16' reduce='bf16'/>" OPTIMIZER "</training>"), "sums of gradients are always in f32"},
    {WITH_TRAINING("<training loss='loss'><precision loss_scale='-1'/>" OPTIMIZER "</training>"), "loss_scale must be at least 0"},
    {WITH_TRAINING("<training loss='loss'><precision loss_scale_every='0'/>" OPTIMIZER "</training>"), "loss_scale_every"},
    {WITH_TRAINING("<training loss='loss'><optimizer type='adamv' lr='1'/></training>"), "did you mean \"adamw\"?"},
    {WITH_TRAINING("<training loss='loss'><optimizer type='adamw'/></training>"), "<optimizer> needs the attribute \"lr\""},
    {WITH_TRAINING("<training loss='loss'><optimizer type='adamw' lr='1' beta_1='0'/></training>"), "did you mean \"beta1\"?"},
    {WITH_TRAINING("<training loss='loss'><optimizer type='adamw' lr='-1'/></training>"), "lr must be at least 0, not -1"},
    {WITH_TRAINING("<training loss='loss'><optimizer type='adamw' lr='1' beta1='1'/></training>"), "beta1 must be at least 0 and below 1"},
    {WITH_TRAINING("<training loss='loss'><optimizer type='sgd' lr='1' nesterov='true'/></training>"), "nesterov needs a momentum"},
    {WITH_TRAINING("<training loss='loss'><optimizer type='sgd' lr='1'><group match='*'/></optimizer></training>"), "<group> needs the attribute \"weight_decay\""},
    {WITH_TRAINING("<training loss='loss'>" OPTIMIZER "<schedule type='cosin'/></training>"), "did you mean \"cosine\"?"},
    {WITH_TRAINING("<training loss='loss'>" OPTIMIZER "<schedule type='cosine' warmup_steps='5' total_steps='5'/></training>"), "needs total_steps (5) above warmup_steps (5)"},
    {AFTER("<data><dataset format='txt' path='f'/></data>"), "did you mean \"text\"?"},
    {AFTER("<data><dataset format='text'/></data>"), "needs a path"},
    {AFTER("<data><dataset format='synthetic'/><dataset format='synthetic'/></data>"), "a second dataset with split=\"train\""},
    {AFTER("<data><dataset format='synthetic' mask_share='2'/></data>"), "mask_share must be between 0 and 1"},
    {AFTER("<weights format='pickle'/>"), "format must be \"safetensors\""},
    {AFTER("<weights><strip/></weights>"), "<strip> needs the attribute \"prefix\""},
    {AFTER("<planning><shard match='h.*'/></planning>"), "<shard> needs the attribute \"dim\""},
    {AFTER("<planning><pipelin/></planning>"), "no element <pipelin> in <planning>"},
};

static void test_malformed(void)
{
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        struct run r = read_text(malformed[i].text, NULL);
        const char *said = mpp_diag_text(r.diag);
        CHECK(r.status == MPP_INVALID && !r.model, "case %zu was taken, want: %s", i, malformed[i].want);
        CHECK(strstr(said, malformed[i].want), "case %zu: want %s\n  got %s", i, malformed[i].want, said);
        CHECK(strstr(said, "m.xml:") == strstr(said, folder) + strlen(folder) + 1, "case %zu: no place: %s", i, said);
        end(&r);
    }
}

/* A fault in a block is said once, not once per call, and names the call. */
static void test_once(void)
{
    struct run r = read_text(MODEL("", "<block name='f'><B in='nothing'/></block>\n",
                                   "<A name='a' in='x'/><repeat name='h' count='96'><call name='g' block='f'/></repeat>" LOSS),
                             NULL);
    const char *said = mpp_diag_text(r.diag);
    CHECK(r.status == MPP_INVALID && mpp_diag_errors(r.diag) == 1, "%s", said);
    CHECK(strstr(said, "\n    in block \"f\", called as h.0.g at "), "%s", said);
    end(&r);
    static const struct {
        const char *graph, *want;
    } loops[] = {
        {"<B name='n'/><B name='n'/>", "the name \"h.0.n\" is taken by line "},
        {"<B name='b' out='n m n'/>", "the name \"h.0.n\" is taken by line "},
        {"<call name='n' block='f'/><call name='n' block='f'/>", "the name \"h.0.n\" is taken by line "},
        {"<repeat name='n' count='i - 9'><B/></repeat>", "not -9"},
        {"<if test='1 / (i - i)'><B/></if>", "division by zero"},
        {"<if test='i'><B/></if>", "test"},
    };
    for (size_t i = 0; i < sizeof loops / sizeof loops[0]; i++) {
        char text[1000];
        snprintf(text, sizeof text, MODEL("", "<block name='f'><B/></block>\n", "<A name='a' in='x'/>\n<repeat name='h' index='i' "
                                          "count='7'>%s</repeat>\n<B in='nowhere'/>" LOSS), loops[i].graph);
        r = read_text(text, NULL);
        said = mpp_diag_text(r.diag);
        CHECK(r.status == MPP_INVALID && mpp_diag_errors(r.diag) == 2 && strstr(said, loops[i].want) && strstr(said, "\"nowhere\""),
              "loop %zu: %s", i, said);
        end(&r);
    }
    r = read_text(MODEL("<param name='p' type='int' value='1.5'/>", "", "<A in='x'/>" LOSS), NULL);
    struct mpp_model *again;
    char path[600];
    snprintf(path, sizeof path, "%s/m.xml", folder);
    CHECK(mpp_model_read(r.arena, r.diag, path, NULL, &again) == MPP_INVALID, "the same fault again is still a fault");
    end(&r);
}

static char *nested(const char *open, const char *inside, const char *close, int depth)
{
    size_t cap = 100000, n = 0;
    char *s = malloc(cap);
    n += (size_t)snprintf(s, cap, "%s", HEAD PARAMS("") INPUTS "<graph><A in='x'/>");
    for (int i = 0; i < depth; i++)
        n += (size_t)snprintf(s + n, cap - n, "%s", open);
    n += (size_t)snprintf(s + n, cap - n, "%s", inside);
    for (int i = 0; i < depth; i++)
        n += (size_t)snprintf(s + n, cap - n, "%s", close);
    snprintf(s + n, cap - n, "%s", LOSS "</graph>" TRAIN "</model>");
    return s;
}

static void test_depth(void)
{
    char *text = nested("<repeat name='r' count='1'>", "<B/>", "</repeat>", 32);
    struct run r = read_text(text, NULL);
    CHECK(r.status == MPP_OK && r.model->n_items == 3, "%s", mpp_diag_text(r.diag));
    end(&r);
    free(text);
    text = nested("<repeat name='r' count='1'>", "<B/>", "</repeat>", 33);
    r = read_text(text, NULL);
    CHECK(r.status == MPP_INVALID && strstr(mpp_diag_text(r.diag), "loops are nested over 32 deep"), "%s", mpp_diag_text(r.diag));
    end(&r);
    free(text);
    /* each block calls the next twice: 2^40 calls, none with an op */
    char *s = malloc(20000), *p = s + sprintf(s, "%s", HEAD PARAMS(""));
    for (int i = 0; i < 30; i++)
        p += sprintf(p, "<block name='b%d'><call block='b%d'/><call block='b%d'/></block>", i, i + 1, i + 1);
    sprintf(p, "<block name='b30'/>" INPUTS "<graph><A in='x'/><call block='b0'/>" LOSS "</graph>" TRAIN "</model>");
    r = read_text(s, NULL);
    CHECK(r.status == MPP_INVALID && strstr(mpp_diag_text(r.diag), "steps to expand"), "%s", mpp_diag_text(r.diag));
    end(&r);
    p = s + sprintf(s, "%s", HEAD PARAMS(""));
    for (int i = 0; i < 40; i++)
        p += sprintf(p, "<block name='b%d'><call block='b%d'/></block>", i, i + 1);
    sprintf(p, "<block name='b40'/>" INPUTS "<graph><A in='x'/><call block='b0'/>" LOSS "</graph>" TRAIN "</model>");
    r = read_text(s, NULL);
    CHECK(r.status == MPP_INVALID && strstr(mpp_diag_text(r.diag), "calls are nested over 32 deep"), "%s", mpp_diag_text(r.diag));
    end(&r);
    free(s);
}

/* ---- includes ---- */

#define INCLUDING(href)                                                                                \
    HEAD "<include href='" href "'/>\n" PARAMS("") INPUTS "<graph><A name='a' in='x'/><call name='g' block='f'/>" LOSS \
    "</graph>" TRAIN "</model>"

static void check_include(const char *text, const char *want)
{
    struct run r = read_text(text, NULL);
    const char *said = mpp_diag_text(r.diag);
    if (want)
        CHECK(r.status == MPP_INVALID && strstr(said, want), "want %s, got %s", want, said);
    else
        CHECK(r.status == MPP_OK && strcmp(listing(&r), "A a(x); B g.b(a); Loss loss(g.b)") == 0, "%s%s", listing(&r), said);
    end(&r);
}

static void make_folder(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    mkdir(path, 0700);
}

static void make_link(const char *target, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (symlink(target, path) != 0)
        perror("symlink");
}

static void test_includes(void)
{
    make_folder("lib");
    write_file("lib/f.xml", "<library version='1'><block name='f'><B/></block></library>");
    write_file("lib/via.xml", "<library version='1'><include href='f.xml'/><include href='../lib/f.xml'/></library>");
    write_file("lib/loop1.xml", "<library>\n<include href='loop2.xml'/></library>");
    write_file("lib/loop2.xml", "<library>\n\n<include href='loop1.xml'/></library>");
    write_file("lib/bad.xml", "<library><params/></library>");
    write_file("lib/twice.xml", "<library><block name='f'/><block name='f'/></library>");
    write_file("lib/late.xml", "<library><block name='f'/><include href='f.xml'/></library>");
    write_file("lib/doctype.xml", "<!DOCTYPE library><library/>");
    write_file("lib/fault.xml", "<library><block name='f'>\n<B in='no'/></block></library>");
    char outside[] = "/tmp/mpp_test_outside_XXXXXX";
    int fd = mkstemp(outside);
    if (fd >= 0) {
        CHECK(write(fd, "<library><block name='f'><B/></block></library>", 47) == 47, "write");
        close(fd);
    }
    make_link(outside, "lib/escape.xml");
    make_link("f.xml", "lib/inside.xml");
    make_link("/tmp", "out");
    for (int i = 1; i <= 9; i++) {
        char name[32], text[100];
        snprintf(name, sizeof name, "lib/d%d.xml", i);
        snprintf(text, sizeof text, "<library><include href='%s%d.xml'/></library>", "d", i + 1);
        write_file(name, i < 9 ? text : "<library><block name='f'><B/></block></library>");
    }
    char escape[1000];
    snprintf(escape, sizeof escape, HEAD "<include href='out/%s'/>" PARAMS("") "</model>", strrchr(outside, '/') + 1);
    check_include(INCLUDING("lib/f.xml"), NULL);
    check_include(INCLUDING("lib/via.xml"), NULL);
    check_include(INCLUDING("./lib/../lib/f.xml"), NULL);
    check_include(INCLUDING("lib/inside.xml"), NULL);
    check_include(INCLUDING("lib/d2.xml"), NULL);
    check_include(INCLUDING("lib/d1.xml"), "lib/d8.xml:1: error: includes are nested over 8 deep");
    check_include(INCLUDING("lib/loop1.xml"), "lib/loop2.xml:3: error: \"loop1.xml\" is already being read: the includes form a loop");
    check_include(INCLUDING("m.xml"), "is already being read");
    check_include(INCLUDING("lib/escape.xml"), "lies outside the main file's folder");
    check_include(escape, "lies outside the main file's folder");
    check_include(INCLUDING("../../../../../../../../etc/passwd"), "lies outside the main file's folder");
    check_include(INCLUDING("/etc/passwd"), "must be a relative path");
    check_include(INCLUDING("http://example.org/f.xml"), "must be a relative path");
    check_include(INCLUDING("file:///etc/passwd"), "must be a relative path");
    check_include(INCLUDING(""), "must be a relative path");
    check_include(INCLUDING("lib/none.xml"), "m.xml:2: error: cannot find \"lib/none.xml\"");
    check_include(INCLUDING("lib"), "it is a directory");
    check_include(INCLUDING("lib/bad.xml"), "lib/bad.xml:1: error: no element <params> in <library>");
    check_include(INCLUDING("lib/twice.xml"), "a second block \"f\"");
    check_include(INCLUDING("lib/late.xml"), "<include> must come before the blocks");
    check_include(INCLUDING("lib/doctype.xml"), "lib/doctype.xml:1: error: a DOCTYPE is not allowed");
    check_include(INCLUDING("lib/fault.xml"), "lib/fault.xml:2: error: no value \"no\"");
    write_file("model.xml", INCLUDING("lib/f.xml"));
    check_include(INCLUDING("model.xml"), "an included file holds a <library>, not <model>");
    check_include(HEAD "<include ref='lib/f.xml'/>" PARAMS("") "</model>", "did you mean \"href\"?");
    unlink(outside);
}

/* ---- the models that come along ---- */

static int count_type(const struct mpp_model *m, const char *type)
{
    int n = 0;
    for (int i = 0; i < m->n_items; i++)
        n += strcmp(m->items[i].type, type) == 0;
    return n;
}

static int64_t size_of(const struct mpp_model *m, const char *name)
{
    const struct mpp_size *s = dim(m, name);
    return s ? s->size : 0;
}

static void test_gpt(const char *models)
{
    static const struct {
        const char *preset;
        int64_t layers, hidden, heads, vocab, seq, positions;
    } sizes[] = {
        {NULL, 12, 768, 12, 50257, 1024, 1024},
        {"tiny", 4, 128, 4, 512, 64, 64},
        {"gpt2", 12, 768, 12, 50257, 1024, 1024},
        {"gpt2-medium", 24, 1024, 16, 50257, 1024, 1024},
        {"gpt2-large", 36, 1280, 20, 50257, 1024, 1024},
        {"gpt2-xl", 48, 1600, 25, 50257, 1024, 1024},
        {"gpt3-125m", 12, 768, 12, 50257, 2048, 2048},
        {"gpt3-350m", 24, 1024, 16, 50257, 2048, 2048},
        {"gpt3-760m", 24, 1536, 16, 50257, 2048, 2048},
        {"gpt3-1.3b", 24, 2048, 16, 50257, 2048, 2048},
        {"gpt3-2.7b", 32, 2560, 32, 50257, 2048, 2048},
        {"gpt3-6.7b", 32, 4096, 32, 50257, 2048, 2048},
        {"gpt3-13b", 40, 5120, 40, 50257, 2048, 2048},
        {"gpt3-175b", 96, 12288, 96, 50257, 2048, 2048},
        {"megatron-8.3b", 72, 3072, 24, 51200, 1024, 1024},
        {"turing-nlg-17b", 78, 4256, 28, 50257, 1024, 1024},
        {"opt-175b", 96, 12288, 96, 50272, 2048, 2050},
    };
    char path[600];
    snprintf(path, sizeof path, "%s/gpt.xml", models);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct mpp_model_options o = {.preset = sizes[i].preset};
        struct run r = read_path(path, &o);
        CHECK(r.status == MPP_OK, "%s: %s", sizes[i].preset, mpp_diag_text(r.diag));
        if (r.status == MPP_OK) {
            CHECK(size_of(r.model, "hidden") == sizes[i].hidden && size_of(r.model, "heads") == sizes[i].heads &&
                      size_of(r.model, "vocab") == sizes[i].vocab && size_of(r.model, "seq") == sizes[i].seq &&
                      size_of(r.model, "positions") == sizes[i].positions &&
                      size_of(r.model, "ffn") == 4 * sizes[i].hidden, "%s", sizes[i].preset);
            CHECK(count_type(r.model, "Attention") == sizes[i].layers, "%s: layers", sizes[i].preset);
            bool relu = sizes[i].preset && strcmp(sizes[i].preset, "opt-175b") == 0;
            CHECK(count_type(r.model, "Relu") == (relu ? sizes[i].layers : 0), "%s: activation", sizes[i].preset);
        }
        end(&r);
    }
}

static void test_bert_mlp(const char *models)
{
    static const char *const defs[] = {"padding_mask=true", "pdrop=0.1"};
    struct mpp_model_options o = {.preset = "tiny"};
    char path[600];
    snprintf(path, sizeof path, "%s/bert.xml", models);
    struct run r = read_path(path, &o);
    CHECK(r.status == MPP_OK && r.model->n_inputs == 3 && count_type(r.model, "Dropout") == 0, "%s", mpp_diag_text(r.diag));
    CHECK(r.model && r.model->datasets[0].mask_share == 0.15 && r.model->datasets[0].mask_id == 3, "masking");
    end(&r);
    o = (struct mpp_model_options){.preset = "large", .n_defines = 2, .defines = defs};
    r = read_path(path, &o);
    CHECK(r.status == MPP_OK && r.model->n_inputs == 4 && count_type(r.model, "Dropout") == 49, "%s", mpp_diag_text(r.diag));
    CHECK(r.model && strstr(listing(&r), "Attention bert.encoder.layer.0.attention("
                                         "bert.encoder.layer.0.attention.self.query bert.encoder.layer.0.attention.self.key "
                                         "bert.encoder.layer.0.attention.self.value attention_mask)"), "attention's operands");
    end(&r);
    snprintf(path, sizeof path, "%s/mlp.xml", models);
    static const char *const more[] = {"in=3", "out=5", "layers=7"};
    o = (struct mpp_model_options){.n_defines = 3, .defines = more};
    r = read_path(path, &o);
    CHECK(r.status == MPP_OK && count_type(r.model, "Linear") == 8 && r.model->inputs[1].dims[1].size == 5, "%s",
          mpp_diag_text(r.diag));
    end(&r);
}

static void test_training_options(const char *models)
{
    static const char *const defs[] = {
        "optimizer=sgd",     "lr=0.05",        "momentum=0.9",         "nesterov=true",  "weight_decay=1e-4",
        "schedule=linear",   "warmup_steps=2", "total_steps=10",       "final_lr=lr/10", "clip_norm=1/2",
        "weight_decay_1d=0", "epsilon=1e-5",   "beta1=0.8",            "beta2=0.99",     "batch=48",
    };
    struct mpp_model_options o = {.preset = "tiny", .n_defines = 15, .defines = defs};
    char path[600];
    snprintf(path, sizeof path, "%s/gpt.xml", models);
    struct run r = read_path(path, &o);
    CHECK(r.status == MPP_OK, "%s", mpp_diag_text(r.diag));
    if (r.status == MPP_OK) {
        const struct mpp_training *t = &r.model->training;
        CHECK(strcmp(t->optimizer, "sgd") == 0 && t->lr == 0.05 && t->momentum == 0.9 && t->nesterov, "sgd");
        CHECK(t->weight_decay == 1e-4 && t->weight_decay_1d == 0 && t->clip_norm == 0.5, "decay and clipping");
        CHECK(strcmp(t->schedule, "linear") == 0 && t->warmup_steps == 2 && t->total_steps == 10, "schedule");
        CHECK(fabs(t->final_lr - 0.005) < 1e-15 && t->epsilon == 1e-5 && t->beta1 == 0.8 && t->beta2 == 0.99, "floats");
        CHECK(r.model->batch == 48 && t->micro == 0, "batch");
    }
    end(&r);
}

/* ---- parameter counts, as docs/models.md lists them ---- */

static int64_t count_parameters(struct run *r)
{
    struct mpp_graph *g;
    if (r->status != MPP_OK || mpp_graph_build(r->arena, r->diag, r->model, &g) != MPP_OK)
        return -1;
    int64_t n = 0;
    for (int i = 0; i < g->n_tensors; i++)
        n += g->tensors[i].role == MPP_ROLE_PARAM ? mpp_tensor_count(&g->tensors[i]) : 0;
    return n;
}

/* The number in S without its commas; *OUT_EXACT is set unless it says "about". */
static double number_in(const char *s, bool *out_exact)
{
    double v = 0;
    *out_exact = !strstr(s, "about");
    for (; *s && *s != '|'; s++) {
        if (*s >= '0' && *s <= '9')
            v = 10 * v + (*s - '0');
    }
    return v;
}

static int count_presets(const char *models)
{
    static const char *const files[] = {"gpt", "bert", "mlp"};
    int n = 0;
    for (int i = 0; i < 3; i++) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s.xml", models, files[i]);
        struct run r = read_path(path, NULL);
        struct mpp_xml *root = NULL;
        CHECK(mpp_xml_read(r.arena, r.diag, path, &root) == MPP_OK, "%s", path);
        for (const struct mpp_xml *s = root ? root->first : NULL; s; s = s->next) {
            for (const struct mpp_xml *c = s->first; c; c = c->next)
                n += strcmp(c->name, "preset") == 0;
        }
        end(&r);
    }
    return n;
}

/* Rows read `| gpt.xml | gpt2 | 124,439,808 | 124,439,808 |`: file, preset, ours, published ("about 13,000,000,000"). */
static void test_counts(const char *models, const char *table)
{
    FILE *f = fopen(table, "r");
    char line[500], file[40], preset[40];
    int rows = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "| %39[a-z.] | %39[a-z0-9.-] |", file, preset) != 2 || !strstr(file, ".xml"))
            continue;
        char *ours = line, path[600];
        for (int bars = 0; bars < 3; ours++)
            bars += *ours == '|';
        bool exact;
        double listed = number_in(ours, &exact), published = number_in(strchr(ours, '|') + 1, &exact);
        if (published == 0) /* our own */
            published = listed;
        struct mpp_model_options o = {.preset = preset};
        snprintf(path, sizeof path, "%s/%s", models, file);
        struct run r = read_path(path, &o);
        int64_t n = count_parameters(&r);
        CHECK((double)n == listed, "%s %s has %" PRId64 " parameters: %s", file, preset, n, mpp_diag_text(r.diag));
        CHECK(exact ? published == listed : fabs(listed - published) < 0.02 * published, "%s %s: %.0f", file, preset, published);
        end(&r);
        rows++;
    }
    CHECK(rows == count_presets(models), "%d rows in %s", rows, table);
    if (f)
        fclose(f);
}

/* ---- the schema ---- */

static void test_schema(void)
{
    static const struct mpp_schema_op ops[] = {{"Gelu", "approximate:{none|tanh}=none"}, {"Linear", "units:dims*, bias:bool=true"}};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    struct mpp_arena *arena = mpp_arena_new();
    mpp_schema_print(arena, out, ops, 2);
    fclose(out);
    struct mpp_diag *diag = mpp_diag_new(NULL);
    int defined = 0, loose = 0;
    /* every <ref> has its <define>, and the whole is well-formed apart from the pattern's text */
    for (char *ref = text; (ref = strstr(ref, "<ref name=\"")); ref++) {
        char name[64] = "", define[100];
        sscanf(ref, "<ref name=\"%63[^\"]", name);
        snprintf(define, sizeof define, "<define name=\"%s\">", name);
        defined += strstr(text, define) != NULL;
        loose += strstr(text, define) == NULL;
    }
    CHECK(defined > 30 && loose == 0, "%d defined, %d not", defined, loose);
    CHECK(strstr(text, "<attribute name=\"approximate\"><choice><value>none</value><value>tanh</value>"), "enumeration");
    mpp_diag_free(diag);
    mpp_arena_free(arena);
    free(text);
}

/* Random bytes and cuts of a good file: any result will do, but no crash. */
static void test_fuzz(void)
{
    static const char good[] = MODEL("<preset name='p' n='4'/><require test='n &gt; 1'/>",
                                     "<block name='f'><arg name='k' type='int' default='2'/><B units='k*hidden'/></block>",
                                     "<A in='x'/><repeat name='h' count='n' index='i'><call name='c' block='f' k='i+1'/></repeat>" LOSS);
    uint64_t state = 12345;
    int outcomes[2] = {0};
    for (int i = 0; i < 3000; i++) {
        char text[sizeof good];
        memcpy(text, good, sizeof good);
        for (int k = 0; k <= i % 3; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            size_t at = (size_t)(state >> 33) % (sizeof good - 1);
            const char pool[] = "<>/'=\"%*+-0129nxh &;()?:.,";
            text[at] = pool[(state >> 20) % (sizeof pool - 1)];
        }
        struct run r = read_text(text, NULL);
        outcomes[r.status == MPP_OK]++;
        CHECK((r.status == MPP_OK) == (mpp_diag_errors(r.diag) == 0), "%s", text);
        end(&r);
    }
    CHECK(outcomes[0] > 100 && outcomes[1] > 10, "%d bad, %d good", outcomes[0], outcomes[1]);
}

int main(int argc, char **argv)
{
    char models[400], table[400];
    snprintf(models, sizeof models, "%s/models", argc > 1 ? argv[1] : ".");
    snprintf(table, sizeof table, "%s/docs/models.md", argc > 1 ? argv[1] : ".");
    if (!mkdtemp(folder)) {
        perror(folder);
        return 1;
    }
    test_wiring();
    test_items();
    test_attrs();
    test_options();
    test_malformed();
    test_once();
    test_depth();
    test_includes();
    test_gpt(models);
    test_bert_mlp(models);
    test_training_options(models);
    test_counts(models, table);
    test_schema();
    test_fuzz();
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        printf("cannot remove %s\n", folder);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
