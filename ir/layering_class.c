/* Which layers are alike: what is said of each of them, without names, is one string of bytes; equal strings, one class.
 *
 * A layer's tensors are numbered as they are met. Of one that comes from elsewhere the string says from where: which
 * input, how many layers away (over two: which layer) and which of that layer's tensors that are read here. Of one that
 * others read it says who does. So spans whose layers are of equal classes, one by one, are alike too. */
#include <string.h>

#include "ir/op.h"
#include "ir/span_internal.h"

enum { NEAR = 2 };                /* layers as far apart are told by their distance */

struct text {
    struct mpp_arena *arena;
    size_t n, cap;
    unsigned char *byte;
};

struct foreign {                  /* a tensor of another layer */
    mpp_id tensor;
    int layer;
};

struct classify {
    const struct mpp_graph *g;
    struct mpp_layering *layering;
    const struct mpp_layering_index *index;
    struct mpp_arena *scratch;
    int *first_reader, *reader;   /* [tensor]: ops of the forward and backward phases that read it */
    int *number, *stamp;          /* [tensor] in the present layer; of which layer that is, plus 1 */
    int n_numbers;
    int n_foreign;
    size_t cap_foreign;
    struct foreign *foreign;
    struct text text;
};

static void put_bytes(struct text *t, const void *p, size_t n)
{
    if (n == 0)
        return;
    t->byte = mpp_arena_grow(t->arena, t->byte, &t->cap, t->n + n, 1);
    memcpy(t->byte + t->n, p, n);
    t->n += n;
}

static void put(struct text *t, int64_t v)
{
    put_bytes(t, &v, sizeof v);
}

static void put_string(struct text *t, const char *s)
{
    put_bytes(t, s ? s : "", s ? strlen(s) + 1 : 1);
}

/* Random streams are numbered through the model: they tell nothing. */
static void put_attrs(struct text *t, const struct mpp_attrs *attrs)
{
    for (int i = 0; i < attrs->n; i++) {
        const struct mpp_attr *a = &attrs->attr[i];
        if (strcmp(a->name, "stream") == 0)
            continue;
        put_string(t, a->name);
        put(t, a->type);
        put(t, a->i);
        put_bytes(t, &a->f, sizeof a->f);
        put_string(t, a->type == MPP_ATTR_STRING ? a->s : NULL);
        put(t, a->n);
        for (int k = 0; k < a->n && a->type == MPP_ATTR_INTS; k++)
            put(t, a->ints[k]);
        for (int k = 0; k < a->n && a->type == MPP_ATTR_DIMS; k++) {
            put(t, a->dims[k].size);
            put(t, a->dims[k].per_batch);
        }
    }
}

static void note_readers(struct classify *c)
{
    const struct mpp_graph *g = c->g;
    c->first_reader = mpp_arena_array(c->scratch, g->n_tensors + 2, int);
    for (int pass = 0; pass < 2; pass++) {
        for (mpp_id o = 0; o < g->n_ops && g->ops[o].phase <= MPP_PHASE_BACKWARD; o++) {
            for (int k = 0; k < g->ops[o].n_in; k++) {
                mpp_id t = g->ops[o].in[k];
                if (t >= 0 && pass == 0)
                    c->first_reader[t + 2]++;
                if (t >= 0 && pass == 1)
                    c->reader[c->first_reader[t + 1]++] = o;
            }
        }
        for (mpp_id t = 2; t < g->n_tensors + 2 && pass == 0; t++)
            c->first_reader[t] += c->first_reader[t - 1];
        if (pass == 0)
            c->reader = mpp_arena_array(c->scratch, c->first_reader[g->n_tensors + 1], int);
    }
}

/* Which layer OTHER is, seen from LAYER. */
static void put_layer(struct text *t, int layer, int other)
{
    bool is_near = other - layer <= NEAR && layer - other <= NEAR;
    put(t, is_near);
    put(t, is_near ? other - layer : other);
}

/* The layers beside LAYER that read T. */
static void put_readers(struct classify *c, int layer, mpp_id t)
{
    int before = layer;
    for (int i = c->first_reader[t]; i < c->first_reader[t + 1]; i++) {
        int other = c->layering->layer_of[c->reader[i]];
        if (other == before || other == layer || other < 0)
            continue;
        put_layer(&c->text, layer, other);
        before = other;
    }
}

/* A parameter: who else reads it, and what updates it. */
static void put_param(struct classify *c, int layer, mpp_id p)
{
    const struct mpp_layering_index *x = c->index;
    if (x->reader_min[p] != layer || x->reader_max[p] != layer)
        put(&c->text, p);
    for (int i = x->first_update[p]; i < x->first_update[p + 1]; i++)
        put(&c->text, c->g->ops[x->update[i]].kind);
}

static void put_tensor(struct classify *c, int layer, mpp_id t)
{
    struct text *text = &c->text;
    if (c->stamp[t] == layer + 1) {
        put(text, c->number[t]);
        return;
    }
    c->stamp[t] = layer + 1;
    c->number[t] = c->n_numbers++;
    const struct mpp_gtensor *tensor = &c->g->tensors[t];
    put(text, -2);
    put(text, tensor->role);
    put(text, tensor->dtype);
    put(text, tensor->n_dims);
    for (int d = 0; d < tensor->n_dims; d++) {
        put(text, tensor->dims[d].size);
        put(text, tensor->dims[d].per_batch);
    }
    int maker = tensor->op < 0 ? -1 : c->layering->layer_of[tensor->op];
    if (tensor->role == MPP_ROLE_PARAM) {
        put_param(c, layer, t);
    } else if (tensor->op < 0 || (maker != layer && c->index->everywhere[tensor->op])) {
        put(text, t);
    } else if (maker == layer) {
        put_readers(c, layer, t);
    } else if (maker >= 0) {
        put(text, c->g->ops[tensor->op].phase);
        put_layer(text, layer, maker);
        c->foreign = mpp_arena_grow(c->scratch, c->foreign, &c->cap_foreign, (size_t)c->n_foreign + 1, sizeof *c->foreign);
        c->foreign[c->n_foreign++] = (struct foreign){t, maker};
    }
}

static void put_op(struct classify *c, int layer, mpp_id o)
{
    const struct mpp_gop *op = &c->g->ops[o];
    put(&c->text, op->kind);
    put(&c->text, op->phase);
    put(&c->text, op->n_in);
    put(&c->text, op->n_out);
    put_attrs(&c->text, &op->attrs);
    for (int k = 0; k < op->n_in; k++) {
        if (op->in[k] < 0)
            put(&c->text, -1);
        else
            put_tensor(c, layer, op->in[k]);
    }
    for (int k = 0; k < op->n_out; k++)
        put_tensor(c, layer, op->out[k]);
}

/* Among several tensors of one other layer, which is which. */
static void put_ranks(struct classify *c)
{
    for (int i = 0; i < c->n_foreign; i++) {
        int rank = 0;
        for (int j = 0; j < c->n_foreign; j++)
            rank += c->foreign[j].layer == c->foreign[i].layer && c->foreign[j].tensor < c->foreign[i].tensor;
        put(&c->text, rank);
    }
}

static void describe(struct classify *c, int layer)
{
    const struct mpp_layering_index *x = c->index;
    c->text.n = 0;
    c->n_numbers = c->n_foreign = 0;
    for (int i = x->first_forward[layer]; i < x->first_forward[layer + 1]; i++)
        put_op(c, layer, x->forward[i]);
    for (int i = x->first_backward[layer]; i < x->first_backward[layer + 1]; i++)
        put_op(c, layer, x->backward[i]);
    put_ranks(c);
}

void mpp_layering_classify(struct mpp_arena *arena, struct mpp_arena *scratch, const struct mpp_graph *g,
                           struct mpp_layering *layering)
{
    struct classify c = {.g = g, .layering = layering, .index = layering->index, .scratch = scratch,
                         .number = mpp_arena_array(scratch, g->n_tensors, int),
                         .stamp = mpp_arena_array(scratch, g->n_tensors, int), .text.arena = scratch};
    note_readers(&c);
    struct text *class_text = mpp_arena_array(scratch, layering->n_layers, struct text);
    int n_classes = 0;
    layering->cls = mpp_arena_array(arena, layering->n_layers, int);
    for (int l = 0; l < layering->n_layers; l++) {
        describe(&c, l);
        int cls = 0;
        while (cls < n_classes && (class_text[cls].n != c.text.n || memcmp(class_text[cls].byte, c.text.byte, c.text.n) != 0))
            cls++;
        if (cls == n_classes) {
            class_text[n_classes].n = c.text.n;
            class_text[n_classes++].byte = mpp_arena_memdup(scratch, c.text.byte, c.text.n);
        }
        layering->cls[l] = cls;
    }
}
