/* Reads what print.c writes (docs/ir.md). Rules aren't in the text: shape inference makes them again. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/expr.h"
#include "ir/fuse.h"
#include "ir/graph_edit.h"
#include "ir/names.h"
#include "ir/op.h"
#include "ir/shape.h"

#define MAX_ELEMENTS ((int64_t)1 << 56)

struct parser {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const char *file, *p, *end;
    int line;
    bool failed;
    struct mpp_graph *g;
    struct mpp_names *tensors, *ops;
    size_t cap_groups;
    const char **param, **updates, **gradient, **master; /* [tensor] names, resolved when all tensors are known; NULL: none */
    size_t cap_param, cap_updates, cap_gradient, cap_master;
    const char *loss, *loss_total, *grad_norm, *loss_scale;
};

static void fail(struct parser *ps, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Report the first fault; what follows from it isn't said. */
static void fail(struct parser *ps, const char *fmt, ...)
{
    char what[512];
    va_list ap;
    if (ps->failed)
        return;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    mpp_diag_error(ps->diag, (struct mpp_loc){ps->file, ps->line}, "%s", what);
    ps->failed = true;
}

/* ---- tokens; the text ends with '\0' ---- */

static void skip_blanks(struct parser *ps)
{
    while (*ps->p == ' ')
        ps->p++;
    if (*ps->p == '#') {
        while (*ps->p && *ps->p != '\n')
            ps->p++;
    }
}

static bool accept(struct parser *ps, const char *text)
{
    skip_blanks(ps);
    size_t n = strlen(text);
    if (ps->failed || strncmp(ps->p, text, n) != 0)
        return false;
    ps->p += n;
    return true;
}

static void expect(struct parser *ps, const char *text)
{
    if (!accept(ps, text))
        fail(ps, "\"%s\" is wanted here", text);
}

static bool bare_char(char c)
{
    return c && (isalnum((unsigned char)c) || strchr("_.:/*+-%", c));
}

static const char *quoted(struct parser *ps)
{
    size_t cap = strcspn(ps->p, "\n") + 1, n = 0;
    char *s = mpp_arena_alloc(ps->arena, cap);
    for (ps->p++; *ps->p != '"'; ps->p++) {
        if (!*ps->p || *ps->p == '\n') {
            fail(ps, "a string is not closed");
            return "";
        }
        if (*ps->p == '\\' && ps->p[1] && ps->p[1] != '\n')
            s[n++] = *++ps->p == 'n' ? '\n' : *ps->p;
        else
            s[n++] = *ps->p;
    }
    ps->p++;
    return s;
}

static const char *name(struct parser *ps)
{
    skip_blanks(ps);
    if (*ps->p == '"')
        return quoted(ps);
    const char *from = ps->p;
    while (bare_char(*ps->p))
        ps->p++;
    if (ps->p == from)
        fail(ps, "a name is wanted here");
    return mpp_arena_strndup(ps->arena, from, (size_t)(ps->p - from));
}

static int64_t integer(struct parser *ps)
{
    skip_blanks(ps);
    char *end;
    errno = 0;
    long long value = isdigit((unsigned char)*ps->p) || *ps->p == '-' ? strtoll(ps->p, &end, 10) : 0;
    if (!isdigit((unsigned char)*ps->p) && (*ps->p != '-' || end == ps->p)) {
        fail(ps, "a whole number is wanted here");
        return 0;
    }
    if (errno == ERANGE) {
        fail(ps, "a number has over 64 bits");
        return 0;
    }
    ps->p = end;
    return value;
}

static int64_t integer_in(struct parser *ps, int64_t least, int64_t most)
{
    int64_t value = integer(ps);
    if (!ps->failed && (value < least || value > most))
        fail(ps, "%lld is not between %lld and %lld", (long long)value, (long long)least, (long long)most);
    return ps->failed ? least : value;
}

static double number(struct parser *ps)
{
    skip_blanks(ps);
    char *end;
    double value = strtod(ps->p, &end);
    if (end == ps->p)
        fail(ps, "a number is wanted here");
    ps->p = end;
    return value;
}

static int word(struct parser *ps, const char *const *words, int n)
{
    const char *w = name(ps);
    for (int i = 0; i < n; i++) {
        if (strcmp(w, words[i]) == 0)
            return i;
    }
    fail(ps, "\"%s\" is not known here", w);
    return 0;
}

/* To the next line that holds something; false at the end. */
static bool next_line(struct parser *ps)
{
    for (;;) {
        skip_blanks(ps);
        if (*ps->p != '\n')
            return *ps->p != '\0' && !ps->failed;
        ps->p++;
        ps->line++;
    }
}

static void end_line(struct parser *ps)
{
    skip_blanks(ps);
    if (*ps->p && *ps->p != '\n')
        fail(ps, "nothing more is wanted on this line");
}

/* ---- parts ---- */

static struct mpp_size size(struct parser *ps)
{
    struct mpp_size s = {0, 0, NULL};
    skip_blanks(ps);
    const char *digits = ps->p + strspn(ps->p, "0123456789");
    bool plain = digits > ps->p && (*digits == ',' || *digits == ']' || *digits == '(');
    if (plain)
        s.name = mpp_arena_strndup(ps->arena, ps->p, (size_t)(digits - ps->p));
    else if (!accept(ps, "?"))
        s.name = name(ps);
    s.size = integer(ps);
    if (accept(ps, "(")) {
        s.per_batch = integer(ps);
        expect(ps, ")");
    }
    if (!ps->failed && (s.size < 1 || s.per_batch < 0 || s.size > MAX_ELEMENTS))
        fail(ps, "a size of %lld is out of range", (long long)s.size);
    if (!ps->failed && s.per_batch > 0 && (s.size % s.per_batch || s.size / s.per_batch != ps->g->batch))
        fail(ps, "a size of %lld is not %lld times the batch of %lld", (long long)s.size, (long long)s.per_batch,
             (long long)ps->g->batch);
    return s;
}

/* At most MAX sizes; returns how many. */
static int sizes(struct parser *ps, struct mpp_size *out, int max)
{
    int n = 0;
    expect(ps, "[");
    while (!ps->failed && !accept(ps, "]")) {
        if (n > 0)
            expect(ps, ",");
        if (n == max)
            fail(ps, "more than %d dimensions", max);
        else
            out[n++] = size(ps);
    }
    return ps->failed ? 0 : n;
}

static int integers(struct parser *ps, int64_t *out, int max)
{
    int n = 0;
    expect(ps, "(");
    while (!ps->failed && !accept(ps, ")")) {
        if (n > 0)
            expect(ps, ",");
        if (n == max)
            fail(ps, "more than %d numbers", max);
        else
            out[n++] = integer(ps);
    }
    return ps->failed ? 0 : n;
}

static mpp_id tensor_named(struct parser *ps, const char *wanted)
{
    mpp_id id = mpp_names_get(ps->tensors, wanted, -1);
    if (id < 0)
        fail(ps, "no tensor \"%s\"", wanted);
    return id;
}

/* "(a, -, b)" */
static mpp_id *tensors(struct parser *ps, int *out_n)
{
    mpp_id *ids = NULL;
    size_t cap = 0;
    int n = 0;
    expect(ps, "(");
    while (!ps->failed && !accept(ps, ")")) {
        if (n > 0)
            expect(ps, ",");
        const char *wanted = name(ps);
        ids = mpp_arena_grow(ps->arena, ids, &cap, (size_t)n + 1, sizeof *ids);
        ids[n++] = strcmp(wanted, "-") == 0 ? -1 : tensor_named(ps, wanted);
    }
    *out_n = ps->failed ? 0 : n;
    return ids ? ids : mpp_arena_array(ps->arena, 1, mpp_id);
}

static void layer(struct parser *ps, int *repeat, int *index)
{
    *repeat = (int)integer_in(ps, -1, INT_MAX);
    expect(ps, ":");
    *index = (int)integer_in(ps, -1, INT_MAX);
}

/* ---- tensors ---- */

static void parse_param(struct parser *ps, struct mpp_gtensor *t)
{
    static const char *const inits[] = {"normal", "uniform", "zeros", "ones", "constant"};
    struct mpp_param *info = t->info = mpp_arena_array(ps->arena, 1, struct mpp_param);
    info->gradient = info->master = -1;
    expect(ps, "published=");
    info->published = name(ps);
    info->n_published = integers(ps, info->published_dims, MPP_GRAPH_MAX_DIMS);
    int64_t count = 1;
    for (int d = 0; d < info->n_published && !ps->failed; d++) {
        if (info->published_dims[d] < 1 || __builtin_mul_overflow(count, info->published_dims[d], &count) || count > MAX_ELEMENTS)
            fail(ps, "the published shape is out of range");
    }
    expect(ps, "init=");
    info->init = inits[word(ps, inits, 5)];
    expect(ps, "(");
    info->init_a = number(ps);
    expect(ps, ",");
    info->init_b = number(ps);
    expect(ps, ")");
    expect(ps, "decay=");
    info->weight_decay = number(ps);
}

static void parse_input(struct parser *ps, struct mpp_gtensor *t)
{
    static const char *const roles[] = {"tokens", "next_tokens", "masked_tokens", "masked_labels", "zeros", "ones"};
    struct mpp_model_input *in = mpp_arena_array(ps->arena, 1, struct mpp_model_input);
    in->name = t->name;
    in->type = mpp_dtype_name(t->dtype);
    in->n_dims = t->n_dims;
    in->dims = mpp_arena_memdup(ps->arena, t->dims, (size_t)t->n_dims * sizeof t->dims[0]);
    if (accept(ps, "role="))
        in->role = roles[word(ps, roles, 6)];
    if (accept(ps, "limit="))
        in->limit = integer_in(ps, 1, INT64_MAX);
    t->input = in;
}

static void parse_tensor(struct parser *ps, enum mpp_role role)
{
    static const char *const dtypes[MPP_N_DTYPES] = {"f32", "i32", "bf16", "f16"};
    struct mpp_size dims[MPP_GRAPH_MAX_DIMS];
    const char *tensor = name(ps);
    enum mpp_dtype dtype = (enum mpp_dtype)word(ps, dtypes, MPP_N_DTYPES);
    int n = sizes(ps, dims, MPP_GRAPH_MAX_DIMS);
    if (!ps->failed && mpp_size_product(ps->arena, dims, n).size > MAX_ELEMENTS)
        fail(ps, "\"%s\" has too many elements", tensor);
    if (ps->failed)
        return;
    mpp_id id = mpp_graph_add_tensor(ps->g, tensor, dtype, n, dims);
    if (!mpp_names_put(ps->tensors, tensor, id))
        fail(ps, "two tensors are called \"%s\"", tensor);
    struct mpp_gtensor *t = &ps->g->tensors[id];
    ps->param = mpp_arena_grow(ps->arena, ps->param, &ps->cap_param, (size_t)id + 1, sizeof *ps->param);
    ps->updates = mpp_arena_grow(ps->arena, ps->updates, &ps->cap_updates, (size_t)id + 1, sizeof *ps->updates);
    ps->gradient = mpp_arena_grow(ps->arena, ps->gradient, &ps->cap_gradient, (size_t)id + 1, sizeof *ps->gradient);
    ps->master = mpp_arena_grow(ps->arena, ps->master, &ps->cap_master, (size_t)id + 1, sizeof *ps->master);
    t->role = role;
    if (accept(ps, "layer="))
        layer(ps, &t->repeat, &t->index);
    if (accept(ps, "param="))
        ps->param[id] = name(ps);
    if (accept(ps, "updates="))
        ps->updates[id] = name(ps);
    if (role == MPP_ROLE_PARAM) {
        t->param = id;
        parse_param(ps, t);
    }
    if (accept(ps, "gradient="))
        ps->gradient[id] = name(ps);
    if (accept(ps, "master="))
        ps->master[id] = name(ps);
    if (role == MPP_ROLE_INPUT)
        parse_input(ps, t);
    end_line(ps);
}

/* ---- ops ---- */

/* The type that SPEC ("value:float*, axis:int=0") gives attribute NAME; false when it has none. */
static bool attr_type(const char *spec, const char *wanted, enum mpp_attr_type *out)
{
    static const struct {
        const char *word;
        enum mpp_attr_type type;
    } types[] = {{"ints", MPP_ATTR_INTS}, {"int", MPP_ATTR_INT},   {"float", MPP_ATTR_FLOAT}, {"bool", MPP_ATTR_BOOL},
                 {"dims", MPP_ATTR_DIMS}, {"string", MPP_ATTR_STRING}, {"{", MPP_ATTR_STRING}};
    size_t n = strlen(wanted);
    for (const char *p = spec; *p; p += strcspn(p, ",") + (p[strcspn(p, ",")] != '\0')) {
        while (*p == ' ')
            p++;
        if (strncmp(p, wanted, n) != 0 || p[n] != ':')
            continue;
        for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
            if (strncmp(p + n + 1, types[i].word, strlen(types[i].word)) == 0) {
                *out = types[i].type;
                return true;
            }
        }
    }
    return false;
}

static void parse_attr(struct parser *ps, struct mpp_attr *a)
{
    struct mpp_size dims[64];
    int64_t ints[64];
    switch (a->type) {
    case MPP_ATTR_INT:
        a->i = integer(ps);
        break;
    case MPP_ATTR_BOOL:
        a->i = word(ps, (const char *const[]){"false", "true"}, 2);
        break;
    case MPP_ATTR_FLOAT:
        a->f = number(ps);
        break;
    case MPP_ATTR_STRING:
        a->s = name(ps);
        break;
    case MPP_ATTR_INTS:
        a->n = integers(ps, ints, 64);
        a->ints = mpp_arena_memdup(ps->arena, ints, (size_t)a->n * sizeof ints[0]);
        break;
    case MPP_ATTR_DIMS:
        a->n = sizes(ps, dims, 64);
        a->dims = mpp_arena_memdup(ps->arena, dims, (size_t)a->n * sizeof dims[0]);
        break;
    }
}

static struct mpp_attrs parse_attrs(struct parser *ps, const struct mpp_op_info *info)
{
    struct mpp_attr attrs[16];
    int n = 0;
    expect(ps, "{");
    while (!ps->failed && !accept(ps, "}")) {
        if (n > 0)
            expect(ps, ",");
        struct mpp_attr a = {.name = name(ps)};
        expect(ps, "=");
        if (n == 16 || !attr_type(info->attrs, a.name, &a.type))
            fail(ps, "%s has no attribute \"%s\"", info->name, a.name);
        if (!ps->failed) {
            parse_attr(ps, &a);
            attrs[n++] = a;
        }
    }
    return (struct mpp_attrs){n, mpp_arena_memdup(ps->arena, attrs, (size_t)n * sizeof attrs[0])};
}

/* What stands behind the attributes. */
static void parse_origin(struct parser *ps, struct mpp_gop *op)
{
    static const char *const phases[] = {"prologue", "forward", "backward", "update"};
    op->phase = (enum mpp_phase)word(ps, phases, 4);
    op->repeat = op->index = op->forward = -1;
    op->scope = "";
    if (accept(ps, "chunk="))
        op->chunk = (int)integer_in(ps, 0, INT_MAX);
    if (accept(ps, "layer=")) {
        layer(ps, &op->repeat, &op->index);
        if (accept(ps, ":"))
            op->repeat_name = name(ps);
    }
    if (accept(ps, "scope="))
        op->scope = name(ps);
    if (accept(ps, "forward=")) {
        const char *forward = name(ps);
        op->forward = mpp_names_get(ps->ops, forward, -1);
        if (op->forward < 0)
            fail(ps, "no op \"%s\" comes before", forward);
    }
    if (accept(ps, "type="))
        op->item_type = name(ps);
    if (accept(ps, "at=")) {
        op->loc.file = name(ps);
        expect(ps, ":");
        op->loc.line = (int)integer_in(ps, 0, INT_MAX);
    }
    if (accept(ps, "path="))
        op->path = name(ps);
    end_line(ps);
}

static void bind_outputs(struct parser *ps, struct mpp_gop *op, const enum mpp_dtype *dtype)
{
    for (int k = 0; k < op->n_out && !ps->failed; k++) {
        struct mpp_gtensor *t = op->out[k] < 0 ? NULL : &ps->g->tensors[op->out[k]];
        if (!t || t->op >= 0 || t->dtype != dtype[k]) {
            fail(ps, "output %d of %s is missing, made by two ops or of another type", k, op->name);
            return;
        }
        t->op = ps->g->n_ops;
        t->out_index = k;
    }
}

static void parse_op(struct parser *ps)
{
    struct mpp_graph *g = ps->g;
    struct mpp_gop op = {.name = name(ps)};
    expect(ps, "=");
    const char *kind = name(ps);
    op.kind = mpp_op_find(kind);
    if (op.kind < 0)
        fail(ps, "no op \"%s\"", kind);
    op.in = tensors(ps, &op.n_in);
    expect(ps, "->");
    op.out = tensors(ps, &op.n_out);
    if (ps->failed)
        return;
    op.attrs = parse_attrs(ps, mpp_op_info(op.kind));
    parse_origin(ps, &op);
    struct mpp_rule *rule;
    enum mpp_dtype dtype[64];
    if (ps->failed)
        return;
    if (mpp_graph_infer(g, ps->diag, &op, &rule, dtype) != MPP_OK) {
        ps->failed = true;
        return;
    }
    op.rule = rule;
    if (rule->n_out != op.n_out)
        fail(ps, "%s has %d outputs, not %d", op.name, rule->n_out, op.n_out);
    bind_outputs(ps, &op, dtype);
    if (op.phase <= MPP_PHASE_FORWARD && !mpp_names_put(ps->ops, op.name, g->n_ops))
        fail(ps, "two ops are called \"%s\"", op.name);
    if (op.phase <= MPP_PHASE_FORWARD)
        mpp_names_put(ps->g->op_names, op.name, ps->g->n_ops);
    g->ops = mpp_arena_grow(g->arena, g->ops, &g->cap_ops, (size_t)g->n_ops + 1, sizeof *g->ops);
    g->ops[g->n_ops++] = op;
    if (g->n_groups > 0)
        g->groups[g->n_groups - 1].n_ops++;
}

/* The border of a group follows from its ops; what the text says of it is only read over. */
static void parse_group(struct parser *ps)
{
    int n;
    tensors(ps, &n);
    expect(ps, "->");
    tensors(ps, &n);
    end_line(ps);
    struct mpp_graph *g = ps->g;
    g->groups = mpp_arena_grow(ps->arena, g->groups, &ps->cap_groups, (size_t)g->n_groups + 1, sizeof *g->groups);
    g->n_groups++;
}

/* ---- the whole ---- */

static void parse_head(struct parser *ps)
{
    expect(ps, "graph");
    expect(ps, "batch=");
    int64_t batch = integer_in(ps, 1, MPP_SIZE_MAX);
    expect(ps, "of=");
    ps->g = mpp_graph_new(ps->arena, NULL, integer_in(ps, 1, MPP_SIZE_MAX));
    ps->g->batch = batch;
    expect(ps, "tokens=");
    ps->g->tokens_per_sample = integer_in(ps, 0, MAX_ELEMENTS);
    if (accept(ps, "loss="))
        ps->loss = name(ps);
    if (accept(ps, "loss_total="))
        ps->loss_total = name(ps);
    if (accept(ps, "grad_norm="))
        ps->grad_norm = name(ps);
    if (accept(ps, "loss_scale="))
        ps->loss_scale = name(ps);
    end_line(ps);
}

static void resolve(struct parser *ps)
{
    struct mpp_graph *g = ps->g;
    for (mpp_id i = 0; i < g->n_tensors; i++) {
        struct mpp_gtensor *t = &g->tensors[i];
        if (ps->param[i])
            t->param = tensor_named(ps, ps->param[i]);
        if (ps->updates[i])
            t->updates = tensor_named(ps, ps->updates[i]);
        if (ps->gradient[i] && t->info)
            t->info->gradient = tensor_named(ps, ps->gradient[i]);
        if (ps->master[i] && t->info)
            t->info->master = tensor_named(ps, ps->master[i]);
    }
    g->loss = ps->loss ? tensor_named(ps, ps->loss) : -1;
    g->loss_total = ps->loss_total ? tensor_named(ps, ps->loss_total) : -1;
    g->grad_norm = ps->grad_norm ? tensor_named(ps, ps->grad_norm) : -1;
    g->loss_scale = ps->loss_scale ? tensor_named(ps, ps->loss_scale) : -1;
}

static void fill_groups(struct parser *ps)
{
    struct mpp_graph *g = ps->g;
    int *uses = mpp_fuse_uses(g, ps->arena), first = 0;
    for (int i = 0; i < g->n_groups && !ps->failed; i++) {
        struct mpp_group *group = &g->groups[i];
        group->ops = mpp_arena_array(ps->arena, group->n_ops, mpp_id);
        for (int m = 0; m < group->n_ops; m++)
            group->ops[m] = first++;
        bool fits = group->n_ops > 0;
        for (int m = 0; m < group->n_ops && group->n_ops > 1; m++)
            fits = fits && mpp_fuse_can(&g->ops[group->ops[m]]);
        struct mpp_group trial = *group;
        if (!fits || (group->n_ops > 1 && !mpp_fuse_group(g, ps->arena, uses, &trial)))
            fail(ps, "group %d cannot run as one loop nest", i);
        else
            mpp_fuse_fill(g, ps->arena, uses, group);
    }
}

/* The line of TEXT that declares what WHAT, a fault of the verifier, begins with; 0: it begins with no name. */
static int line_of_fault(const char *text, const char *what)
{
    size_t n = strcspn(what, " ");
    n -= n > 0 && what[n - 1] == ':';
    int line = 1;
    for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n', line++) {
        const char *name = p + strcspn(p, " \n");
        if (*name == ' ' && strncmp(name + 1, what, n) == 0 && name[1 + n] == ' ')
            return line;
    }
    return 0;
}

/* What was read hangs together, or one fault says where it does not: what one edit breaks breaks much after it. */
static enum mpp_status verify(const struct parser *ps, const char *text)
{
    struct mpp_diag *found = mpp_diag_in(ps->arena, NULL);
    enum mpp_status status = mpp_graph_verify(ps->g, found, "parse");
    if (status == MPP_OK)
        return MPP_OK;
    const char *what = strstr(mpp_diag_text(found), "pass parse: ");
    what = what ? what + strlen("pass parse: ") : "the graph is not whole\n";
    mpp_diag_error(ps->diag, (struct mpp_loc){ps->file, line_of_fault(text, what)}, "%.*s: the graph was cut off or edited",
                   (int)strcspn(what, "\n"), what);
    return status;
}

enum mpp_status mpp_graph_parse(struct mpp_arena *arena, struct mpp_diag *diag, const char *file, const char *text,
                                size_t length, struct mpp_graph **out)
{
    const char *copy = mpp_arena_strndup(arena, text, length);
    struct parser ps = {.arena = arena, .diag = diag, .file = file, .p = copy, .line = 1};
    ps.tensors = mpp_names_new(arena);
    ps.ops = mpp_names_new(arena);
    next_line(&ps);
    parse_head(&ps);
    static const char *const kinds[] = {"value", "input", "param", "state", "accum", "op", "group"};
    while (next_line(&ps)) {
        int kind = word(&ps, kinds, 7);
        if (ps.failed)
            break;
        if (kind < 5 && ps.g->n_ops > 0)
            fail(&ps, "tensors come before ops");
        else if (kind < 5)
            parse_tensor(&ps, (enum mpp_role)kind);
        else if (kind == 5)
            parse_op(&ps);
        else
            parse_group(&ps);
    }
    if (!ps.failed)
        resolve(&ps);
    if (!ps.failed && ps.g->n_groups > 0)
        fill_groups(&ps);
    if (ps.failed)
        return MPP_INVALID;
    *out = ps.g;
    return verify(&ps, copy);
}
