#include "tests/op_examples.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/op_table.h"
#include "ir/rule_text.h"
#include "ir/spec.h"

/* Rows whose rule depends on attributes. Inputs: extents, "," between operands, "i<limit>:" before integers. */
static const struct listed {
    const char *op, *in, *attrs;
} listed[] = {
    {"Constant", "", "shape=5 7;value=1.5"},
    {"Constant", "", "value=-2"},
    {"Cast", "5 7 3", "to=f32"},
    {"Cast", "5 7 3", "to=bf16"},
    {"Cast", "5 1 7", "to=f16"},
    {"Transpose", "5 7 3", "perm=2 0 1"},
    {"Transpose", "5 1 3", "perm=1 2 0"},
    {"Reshape", "4 6 5", "shape=24 5"},
    {"Reshape", "12 5", "shape=4 3 5"},
    {"Reshape", "12 5", "shape=2 2 3 5"},
    {"Reshape", "6 1 5", "shape=6 5"},
    {"Reshape", "5 7", "shape=5 1 7 1"},
    {"Reshape", "4 6", "shape=3 8"},
    {"Expand", "7", "shape=5 7"},
    {"Expand", "5 1 3", "shape=2 5 7 3"},
    {"Split", "5 3 7", "axis=1;num_outputs=3"},
    {"Split", "5 6 7", "axis=1;num_outputs=2"},
    {"Split", "5 6", "axis=-1;num_outputs=3;sizes=1 3 2"},
    {"Concat", "5 2 7,5 3 7,5 1 7", "axis=1"},
    {"Concat", "5 7,5 7,5 7", "axis=1;stack=1"},
    {"ReduceSum", "5 7 3", "axes=0"},
    {"ReduceSum", "5 7 3", "axes=0 2"},
    {"ReduceSum", "5 7 3", "axes=1;keepdims=1"},
    {"ReduceMean", "5 7 3", "axes=0 1 2"},
    {"ReduceMean", "5 7 3", "axes=-1;keepdims=1"},
    {"ReduceMax", "5 7 3", "axes=1"},
    {"ReduceMax", "5 7 3", "axes=0 1"},
    {"ReduceMax", "5 7", "axes=1;keepdims=1"},
    {"Einsum", "5 7 3,3 11", "equation=bsh,hf->bsf"},
    {"Einsum", "5 7 3,2 3 11", "equation=bsh,nhd->bsnd"},
    {"Einsum", "5 7 2 3,5 11 2 3", "equation=bsnd,btnd->bnst"},
    {"Einsum", "5 7,5 11", "equation=ij,ik->kj"},
    {"Einsum", "5,7", "equation=i,j->ij"},
    {"Einsum", "11,11", "equation=i,i->"},
    {"Recv", "", "shape=5 7;dtype=f32"},
    {"Recv", "", "shape=5;dtype=i32"},
    {"Send", "5 1 7", ""},
    {"Send", "i3:5", ""},
    {"EmbeddingGrad", "i11:5 7,5 7 3", "num_embeddings=11"},
    {"EmbeddingGrad", "i5:7,7 3", "num_embeddings=5"},
    {"PositionLookup", "11 3", "length=7"},
    {"PositionGrad", "7 3", "positions=11"},
};

double example_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

void mpp_example_fill(const struct example *ex, int k, bool positive, uint64_t *state, double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double u = example_random(state), v = 0.25 + 1.75 * example_random(state);
        x[i] = ex->in[k].dtype == MPP_I32 ? floor(u * (double)ex->in[k].limit) : positive || u < 0.5 ? v : -v;
    }
}

/* ---- listed rows ---- */

static int numbers(const char *s, int64_t *out)
{
    int n = 0;
    for (char *end;; s = end) {
        int64_t v = strtoll(s, &end, 10);
        if (end == s)
            return n;
        out[n++] = v;
    }
}

static struct mpp_attr attr_from(struct mpp_arena *arena, const struct mpp_spec *spec, const char *value)
{
    int64_t v[16];
    int n = strcmp(spec->type, "string") == 0 ? 0 : numbers(value, v);
    if (strcmp(spec->type, "float") == 0)
        return mpp_attr_float(spec->name, atof(value));
    if (strcmp(spec->type, "int") == 0)
        return mpp_attr_int(spec->name, atoll(value));
    if (strcmp(spec->type, "bool") == 0)
        return mpp_attr_bool(spec->name, value[0] == 't' || value[0] == '1');
    if (strcmp(spec->type, "ints") == 0)
        return mpp_attr_ints(spec->name, n, mpp_arena_memdup(arena, v, (size_t)n * sizeof *v));
    if (strcmp(spec->type, "dims") == 0) {
        struct mpp_size *dims = mpp_arena_array(arena, n, struct mpp_size);
        for (int i = 0; i < n; i++)
            dims[i] = (struct mpp_size){v[i], 0, mpp_arena_printf(arena, "%lld", (long long)v[i])};
        return mpp_attr_dims(spec->name, n, dims);
    }
    return mpp_attr_string(spec->name, mpp_arena_strdup(arena, value));
}

/* Attributes of KIND: from TEXT ("name=value;..."), else the default. */
static struct mpp_attrs listed_attrs(struct mpp_arena *arena, int kind, const char *text)
{
    struct mpp_spec *spec;
    int n_spec = mpp_spec_parse(arena, mpp_op_info(kind)->attrs, &spec), n = 0;
    struct mpp_attr *attr = mpp_arena_array(arena, n_spec, struct mpp_attr);
    for (int i = 0; i < n_spec; i++) {
        const char *value = spec[i].fallback;
        size_t len = strlen(spec[i].name);
        for (const char *p = text; p && *p; p = strchr(p, ';') ? strchr(p, ';') + 1 : NULL)
            if (strncmp(p, spec[i].name, len) == 0 && p[len] == '=')
                value = mpp_arena_strndup(arena, p + len + 1, strcspn(p + len + 1, ";"));
        if (value)
            attr[n++] = attr_from(arena, &spec[i], value);
    }
    return (struct mpp_attrs){n, attr};
}

static struct example *from_list(struct mpp_arena *arena, int kind, int i)
{
    size_t at = 0, end = sizeof listed / sizeof *listed;
    for (; at < end; at++)
        if (strcmp(listed[at].op, mpp_op_info(kind)->name) == 0 && i-- == 0)
            break;
    if (at == end)
        return NULL;
    struct example *ex = mpp_arena_array(arena, 1, struct example);
    ex->text = mpp_arena_printf(arena, "[%s] %s", listed[at].in, listed[at].attrs);
    ex->attrs = listed_attrs(arena, kind, listed[at].attrs);
    for (const char *p = listed[at].in; p && *p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        int k = ex->n_in++;
        ex->in[k].given = true;
        if (*p == 'i') {
            ex->in[k].dtype = MPP_I32;
            ex->in[k].limit = atoll(p + 1);
            p = strchr(p, ':') + 1;
        }
        ex->in[k].n_dims = numbers(mpp_arena_strndup(arena, p, strcspn(p, ",")), ex->in[k].dims);
    }
    return ex;
}

/* ---- attributes made from the row: defaults, or others ---- */

static struct mpp_attrs made_attrs(struct mpp_arena *arena, int kind, bool defaults)
{
    struct mpp_spec *spec;
    int n_spec = mpp_spec_parse(arena, mpp_op_info(kind)->attrs, &spec), n = 0;
    struct mpp_attr *attr = mpp_arena_array(arena, n_spec, struct mpp_attr);
    for (int i = 0; i < n_spec; i++) {
        const char *other = spec[i].n_words ? spec[i].words[spec[i].n_words - 1]
                            : strcmp(spec[i].type, "float") == 0 ? "0.375"
                            : strcmp(spec[i].name, "axis") == 0  ? spec[i].fallback
                                                                 : "1";
        const char *value = defaults && !spec[i].required ? spec[i].fallback : other;
        if (value)
            attr[n++] = attr_from(arena, &spec[i], value);
    }
    return (struct mpp_attrs){n, attr};
}

/* ---- broadcasting rows ---- */

static struct example *from_broadcast(struct mpp_arena *arena, int kind, int i)
{
    static const char *const shapes[][3] = {{"5 7 11", "5 7 11", "5 7 11"}, {"5 7 11", "11", "7 1"},
                                            {"7 1", "5 1 11", "7 11"},      {"", "5 7", "7"},
                                            {"5 7", "", "1 1"},           {"1 5 7", "1 7", "5 1"}};
    const char *expr = mpp_op_info(kind)->expr;
    int n_in = expr ? 1 : kind == MPP_OP_DROPOUT ? 1 : 3;
    for (const char *p = expr; p && *p; p++) {
        bool alone = (p == expr || !(isalnum((unsigned char)p[-1]) || p[-1] == '_')) && !isalnum((unsigned char)p[1]);
        if (alone && *p >= 'a' && *p <= 'c')
            n_in = *p - 'a' + 1 > n_in ? *p - 'a' + 1 : n_in;
    }
    if (i >= 2 * (int)(sizeof shapes / sizeof shapes[0]))
        return NULL;
    struct example *ex = mpp_arena_array(arena, 1, struct example);
    ex->n_in = n_in;
    ex->attrs = made_attrs(arena, kind, i % 2 == 0);
    ex->text = mpp_arena_printf(arena, "shapes %d, attributes %s", i / 2, i % 2 ? "set" : "default");
    for (int k = 0; k < n_in; k++) {
        ex->in[k].given = true;
        ex->in[k].n_dims = numbers(shapes[i / 2][k], ex->in[k].dims);
    }
    return ex;
}

/* ---- text rules ---- */

static const int64_t primes[] = {5, 7, 3, 2, 5, 7, 3, 2, 5, 7, 3, 2};

/* What integers of operand O index: a summed or internal letter that it lacks, else any other, else nothing. */
static int64_t limit_of(const struct mpp_rule_text *rule, const struct mpp_text_operand *o, const int64_t *size)
{
    int64_t limit = 3;
    for (int pass = 0; pass < 2; pass++)
        for (int l = 0; l < rule->n_letters; l++) {
            bool has = false, sums = rule->kind[l] == MPP_FACTOR_SUM || rule->kind[l] == MPP_FACTOR_INTERNAL;
            for (int d = 0; d < o->n_dims; d++)
                has = has || o->dim[d].letter[0] == l;
            if (!has && sums == (pass == 1))
                limit = size[l];
        }
    return limit;
}

/* I runs over: dimensions that * stands for (2, 1, 0), optional operands, attributes. */
static struct example *from_text(struct mpp_arena *arena, int kind, int i)
{
    struct mpp_rule_text rule;
    if (!mpp_rule_text_parse(mpp_op_info(kind)->rule, &rule))
        return NULL;
    bool any_star = false, any_optional = false;
    for (int k = 0; k < rule.n_in; k++) {
        any_optional = any_optional || rule.operand[k].optional;
        for (int d = 0; d < rule.operand[k].n_dims; d++)
            any_star = any_star || rule.operand[k].dim[d].star;
    }
    int n_star = any_star ? 3 : 1, n_optional = any_optional ? 2 : 1;
    if (i >= n_star * n_optional * 2)
        return NULL;
    int star = any_star ? 2 - i % n_star : 0;
    bool leave_out = i / n_star % n_optional == 1, defaults = i / n_star / n_optional == 0;
    struct example *ex = mpp_arena_array(arena, 1, struct example);
    ex->n_in = rule.n_in;
    ex->attrs = made_attrs(arena, kind, defaults);
    ex->text = mpp_arena_printf(arena, "* of %d dimensions, optional %s, attributes %s", star,
                                leave_out ? "left out" : "given", defaults ? "default" : "set");
    for (int k = 0; k < rule.n_in; k++) {
        const struct mpp_text_operand *o = &rule.operand[k];
        ex->in[k].given = !(o->optional && leave_out);
        ex->in[k].dtype = o->i32 ? MPP_I32 : MPP_F32;
        ex->in[k].limit = limit_of(&rule, o, primes);
        for (int d = 0; d < o->n_dims; d++)
            for (int j = 0; j < (o->dim[d].star ? star : 1); j++)
                ex->in[k].dims[ex->in[k].n_dims++] = o->dim[d].star && j == 1 ? 11 : primes[(int)o->dim[d].letter[0]];
    }
    return ex;
}

struct example *mpp_example(struct mpp_arena *arena, int kind, int i)
{
    const struct mpp_op_info *info = mpp_op_info(kind);
    if (info->rule[0])
        return from_text(arena, kind, i);
    return info->shape == mpp_shape_broadcast ? from_broadcast(arena, kind, i) : from_list(arena, kind, i);
}

struct mpp_graph *mpp_example_graph(struct mpp_arena *arena, struct mpp_diag *diag, int kind, const struct example *ex,
                                    enum mpp_role role)
{
    struct mpp_graph *g = mpp_graph_new(arena, NULL, 1);
    mpp_id in[EXAMPLE_MAX_IN];
    for (int k = 0; k < ex->n_in; k++) {
        struct mpp_size dims[MPP_GRAPH_MAX_DIMS];
        for (int d = 0; d < ex->in[k].n_dims; d++)
            dims[d] = (struct mpp_size){ex->in[k].dims[d], 0, NULL};
        mpp_id t = mpp_graph_add_tensor(g, mpp_arena_printf(arena, "in%d", k), ex->in[k].dtype, ex->in[k].n_dims, dims);
        g->tensors[t].role = ex->in[k].dtype == MPP_F32 ? role : MPP_ROLE_INPUT;
        in[k] = ex->in[k].given ? t : -1;
    }
    struct mpp_gop proto = {.name = "op", .scope = "", .phase = MPP_PHASE_FORWARD, .repeat = -1, .index = -1, .forward = -1};
    return mpp_graph_add_op(g, diag, kind, &proto, ex->n_in, in, ex->attrs, NULL) < 0 ? NULL : g;
}
