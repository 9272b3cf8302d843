#include "ir/build.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAILED = MPP_BUILD_FAILED, UNKNOWN = -3 };

/* ---- messages ---- */

void mpp_build_error(struct mpp_builder *b, const char *fmt, ...)
{
    const struct mpp_item *item = b->item;
    char what[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    const char *name = item->name;
    size_t scope = item->scope ? strlen(item->scope) : 0;
    if (scope && strncmp(name, item->scope, scope) == 0 && name[scope] == '.')
        name += scope + 1;
    mpp_diag_error(b->diag, item->loc, "%s \"%s\": %s", item->type, name, what);
    if (item->path)
        mpp_diag_note(b->diag, "%s", item->path);
}

/* Count a tensor of DIMS; false where the model would grow beyond what sums of sizes can hold. */
static bool count_elements(struct mpp_builder *b, const struct mpp_size *dims, int n)
{
    int64_t count = 1;
    for (int d = 0; d < n; d++) {
        if (__builtin_mul_overflow(count, dims[d].size, &count))
            return false;
    }
    if (count > MPP_BUILD_MAX_ELEMENTS - b->elements)
        return false;
    b->elements += count;
    return true;
}

/* ---- ops ---- */

static const char *item_name(struct mpp_builder *b, const char *suffix)
{
    return suffix ? mpp_arena_printf(b->arena, "%s.%s", b->item->name, suffix) : b->item->name;
}

static mpp_id append(struct mpp_builder *b, int kind, const char *suffix, int n_in, const mpp_id *in,
                     struct mpp_attrs attrs, const char *const *out_names)
{
    const struct mpp_item *item = b->item;
    struct mpp_gop proto = {
        .name = suffix ? mpp_names_take(b->taken_ops, item_name(b, suffix), 0) : item->name,
        .scope = item->scope ? item->scope : "",
        .loc = item->loc,
        .path = item->path,
        .item_type = item->type,
        .phase = b->phase,
        .repeat = item->repeat,
        .index = item->index,
        .repeat_name = item->repeat_name,
        .forward = -1,
    };
    mpp_id op = mpp_graph_add_op(b->g, b->diag, kind, &proto, n_in, in, attrs, out_names);
    for (int k = 0; op >= 0 && k < b->g->ops[op].n_out; k++) {
        const struct mpp_gtensor *t = &b->g->tensors[b->g->ops[op].out[k]];
        if (!count_elements(b, t->dims, t->n_dims)) {
            mpp_build_error(b, "the result %s brings the model over 2^56 elements", mpp_dims_text(b->arena, t));
            return -1;
        }
    }
    return op;
}

static bool failed_input(int n_in, const mpp_id *in)
{
    for (int k = 0; k < n_in; k++) {
        if (in[k] == FAILED)
            return true;
    }
    return false;
}

mpp_id mpp_build_op(struct mpp_builder *b, int kind, const char *suffix, const char *out, int n_in, const mpp_id *in,
                    struct mpp_attrs attrs)
{
    if (failed_input(n_in, in))
        return FAILED;
    const char *names[MPP_BUILD_MAX_IO] = {mpp_names_take(b->taken, item_name(b, out), 0)};
    mpp_id op = append(b, kind, suffix, n_in, in, attrs, names);
    return op < 0 ? FAILED : b->g->ops[op].out[0];
}

static const char *final_name(struct mpp_builder *b, int k)
{
    if (k < b->item->n_out && b->item->out[k])
        return b->item->out[k];
    return k == 0 ? b->item->name : mpp_names_take(b->taken, mpp_arena_printf(b->arena, "%s:%d", b->item->name, k), 0);
}

mpp_id mpp_build_final(struct mpp_builder *b, int kind, const char *suffix, int n_in, const mpp_id *in,
                       struct mpp_attrs attrs, const char *const *extra)
{
    if (failed_input(n_in, in))
        return FAILED;
    const char *names[MPP_BUILD_MAX_IO] = {final_name(b, 0)};
    for (int k = 0; extra && extra[k]; k++)
        names[k + 1] = mpp_names_take(b->taken, item_name(b, extra[k]), 0);
    mpp_id id = append(b, kind, suffix, n_in, in, attrs, names);
    return id < 0 ? FAILED : b->g->ops[id].out[0];
}

enum mpp_status mpp_build_all(struct mpp_builder *b, int kind, int n_in, const mpp_id *in, struct mpp_attrs attrs,
                              int *out_n, mpp_id *out)
{
    const char *names[MPP_BUILD_MAX_IO];
    for (int k = 0; k < MPP_BUILD_MAX_IO; k++)
        names[k] = k < b->item->n_out || k == 0 ? final_name(b, k) : NULL;
    mpp_id id = append(b, kind, NULL, n_in, in, attrs, names);
    if (id < 0)
        return MPP_INVALID;
    const struct mpp_gop *op = &b->g->ops[id];
    *out_n = op->n_out;
    memcpy(out, op->out, (size_t)op->n_out * sizeof *out);
    return MPP_OK;
}

mpp_id mpp_build_constant(struct mpp_builder *b, const char *suffix, double value)
{
    return mpp_build_op(b, MPP_OP_CONSTANT, suffix, suffix, 0, NULL,
                        MPP_ATTRS(b->arena, mpp_attr_float("value", value)));
}

int64_t mpp_build_global_count(const struct mpp_builder *b, const struct mpp_size *dims, int n)
{
    int64_t count = 1;
    for (int d = 0; d < n; d++)
        count *= mpp_size_at(dims[d], b->g->global_batch).size;
    return count;
}

int mpp_build_axis(struct mpp_builder *b, int64_t axis, int n)
{
    if (axis < -n || axis >= n) {
        mpp_build_error(b, "axis %lld is outside the %d dimensions", (long long)axis, n);
        return -1;
    }
    return (int)(axis < 0 ? axis + n : axis);
}

/* ---- parameters ---- */

struct init_form {
    const char *name;
    int n_args;
};

/* "normal(0,0.02)": a name and its numbers. */
static bool parse_init(struct mpp_builder *b, const char *text, const struct mpp_param_spec *spec,
                       struct mpp_param *info)
{
    static const struct init_form forms[] = {{"normal", 2}, {"uniform", 2}, {"zeros", 0}, {"ones", 0},
                                             {"constant", 1}, {"kaiming_uniform", 0}};
    static const char *const names[] = {"normal", "uniform", "zeros", "ones", "constant", "kaiming_uniform"};
    enum { N_FORMS = sizeof forms / sizeof forms[0] };
    size_t len = strcspn(text, "(");
    double arg[2] = {0, 0};
    int form = 0, n_args = 0;
    while (form < N_FORMS && (strlen(names[form]) != len || strncmp(names[form], text, len) != 0))
        form++;
    if (form == N_FORMS) {
        const char *word = mpp_arena_strndup(b->arena, text, len);
        mpp_build_error(b, "no initialisation \"%s\" (normal, uniform, zeros, ones, constant, kaiming_uniform)%s",
                        word, mpp_diag_hint(b->diag, word, names, N_FORMS));
        return false;
    }
    const char *p = text + len;
    char *end;
    for (; *p == '(' || *p == ','; p = end, n_args++) {
        double value = strtod(p + 1, &end);
        if (end == p + 1)
            break;
        if (n_args < 2)
            arg[n_args] = value;
    }
    if (n_args != forms[form].n_args || (n_args > 0 && strcmp(p, ")") != 0)) {
        mpp_build_error(b, "init \"%s\": %s takes %d numbers", text, names[form], forms[form].n_args);
        return false;
    }
    info->init = names[form];
    info->init_a = arg[0];
    info->init_b = arg[1];
    if (strcmp(names[form], "kaiming_uniform") == 0) {
        info->init = "uniform";
        info->init_b = 1 / sqrt((double)(spec->fan_in > 0 ? spec->fan_in : 1));
        info->init_a = -info->init_b;
    }
    return true;
}

mpp_id mpp_build_param(struct mpp_builder *b, const struct mpp_param_spec *spec)
{
    const char *name = spec->published ? spec->published : item_name(b, spec->suffix);
    if (mpp_names_get(b->params, name, UNKNOWN) != UNKNOWN) {
        mpp_build_error(b, "a parameter \"%s\" exists already; weight=\"%s\" would share it", name, name);
        return FAILED;
    }
    struct mpp_param *info = mpp_arena_array(b->arena, 1, struct mpp_param);
    if (!parse_init(b, spec->init, spec, info))
        return FAILED;
    info->published = name;
    info->n_published = spec->n_published;
    memcpy(info->published_dims, spec->published_dims, sizeof info->published_dims);
    info->gradient = info->master = -1;
    for (int d = 0; d < spec->n_dims; d++) {
        if (spec->dims[d].per_batch) {
            mpp_build_error(b, "parameter \"%s\" depends on the batch: %s", name, spec->dims[d].name);
            return FAILED;
        }
    }
    const char *tensor = spec->suffix ? mpp_names_take(b->taken, name, 0) : final_name(b, 0);
    if (!count_elements(b, spec->dims, spec->n_dims)) {
        mpp_build_error(b, "parameter \"%s\" brings the model over 2^56 elements", name);
        return FAILED;
    }
    mpp_id id = mpp_graph_add_tensor(b->g, tensor, MPP_F32, spec->n_dims, spec->dims);
    struct mpp_gtensor *t = &b->g->tensors[id];
    t->role = MPP_ROLE_PARAM;
    t->param = id;
    t->info = info;
    t->repeat = b->item->repeat;
    t->index = b->item->index;
    mpp_names_put(b->params, name, id);
    mpp_names_put(b->g->tensor_names, name, id); /* files know it by this name, so no state may have it */
    return id;
}

mpp_id mpp_build_tied(struct mpp_builder *b, const char *name)
{
    mpp_id id = mpp_names_get(b->params, name, UNKNOWN);
    if (id != UNKNOWN)
        return id;
    const char **names = mpp_arena_array(b->arena, b->g->n_tensors, const char *);
    int n = 0;
    for (mpp_id i = 0; i < b->g->n_tensors; i++) {
        if (b->g->tensors[i].info)
            names[n++] = b->g->tensors[i].info->published;
    }
    mpp_build_error(b, "no parameter \"%s\" was made before%s", name, mpp_diag_hint(b->diag, name, names, n));
    return FAILED;
}

/* ---- the walk over the file's items ---- */

static void add_inputs(struct mpp_builder *b)
{
    for (int i = 0; i < b->model->n_inputs; i++) {
        const struct mpp_model_input *in = &b->model->inputs[i];
        if (in->n_dims > MPP_GRAPH_MAX_DIMS || !count_elements(b, in->dims, in->n_dims)) {
            mpp_diag_error(b->diag, in->loc, "input \"%s\" has too many %s", in->name,
                           in->n_dims > MPP_GRAPH_MAX_DIMS ? "dimensions" : "elements");
            mpp_names_put(b->values, in->name, FAILED);
            continue;
        }
        enum mpp_dtype dtype = strcmp(in->type, "i32") == 0 ? MPP_I32 : MPP_F32;
        mpp_id id = mpp_graph_add_tensor(b->g, in->name, dtype, in->n_dims, in->dims);
        b->g->tensors[id].role = MPP_ROLE_INPUT;
        b->g->tensors[id].input = in;
        mpp_names_put(b->values, in->name, id);
        mpp_names_put(b->taken, in->name, id);
        if (i == 0)
            b->g->tokens_per_sample =
                dtype == MPP_I32 ? mpp_build_global_count(b, in->dims, in->n_dims) / b->g->global_batch : 1;
    }
    for (int i = 0; i < b->model->n_items; i++) {
        const struct mpp_item *item = &b->model->items[i];
        mpp_names_put(b->taken, item->name, 0);
        mpp_names_put(b->taken_ops, item->name, 0);
        for (int k = 0; k < item->n_out; k++) {
            if (item->out[k])
                mpp_names_put(b->taken, item->out[k], 0);
        }
    }
}

static const struct mpp_layer *find_layer(struct mpp_builder *b)
{
    int n;
    const struct mpp_layer *layers = mpp_layers(&n);
    for (int i = 0; i < n; i++) {
        if (strcmp(layers[i].type, b->item->type) == 0)
            return &layers[i];
    }
    const char **names = mpp_arena_array(b->arena, n, const char *);
    for (int i = 0; i < n; i++)
        names[i] = layers[i].type;
    mpp_diag_error(b->diag, b->item->loc, "no op \"%s\"%s", b->item->type,
                   mpp_diag_hint(b->diag, b->item->type, names, n));
    if (b->item->path)
        mpp_diag_note(b->diag, "%s", b->item->path);
    return NULL;
}

/* The item's inputs as tensors; false when their number is wrong or one has failed before. */
static bool item_inputs(struct mpp_builder *b, const struct mpp_layer *layer, int *out_n, mpp_id *in)
{
    const struct mpp_item *item = b->item;
    bool given = item->xml && mpp_xml_get(item->xml, "in");
    int n = layer->max_in == 0 && !given ? 0 : item->n_in; /* wiring is implicit: a source takes nothing */
    if (n < layer->min_in || n > layer->max_in) {
        if (layer->min_in == layer->max_in)
            mpp_build_error(b, "takes %d input%s, not %d", layer->max_in, layer->max_in == 1 ? "" : "s", n);
        else
            mpp_build_error(b, "takes %d to %d inputs, not %d", layer->min_in, layer->max_in, n);
        return false;
    }
    bool ok = true;
    for (int k = 0; k < n; k++) {
        in[k] = item->in[k] ? mpp_names_get(b->values, item->in[k], UNKNOWN) : -1;
        if (in[k] == UNKNOWN)
            mpp_build_error(b, "no value \"%s\"", item->in[k]);
        if (in[k] == -1 && k < layer->min_in)
            mpp_build_error(b, "input %d is left out, but it is required", k + 1);
        ok &= in[k] >= 0 || (in[k] == -1 && k >= layer->min_in);
    }
    *out_n = n;
    return ok;
}

/* Only Reshape knows what sizes of 0 and -1 mean. */
static bool sizes_positive(struct mpp_builder *b, const struct mpp_attrs *attrs, const struct mpp_layer *layer)
{
    if (layer->build == mpp_layer_reshape)
        return true;
    for (int i = 0; i < attrs->n; i++) {
        const struct mpp_attr *a = &attrs->attr[i];
        for (int d = 0; a->type == MPP_ATTR_DIMS && d < a->n; d++) {
            if (a->dims[d].size < 1) {
                mpp_build_error(b, "%s: a size must be positive, not %lld", a->name, (long long)a->dims[d].size);
                return false;
            }
        }
    }
    return true;
}

/* The element that the item came from, as a key. */
static const char *element_key(struct mpp_builder *b)
{
    return mpp_arena_printf(b->arena, "%p", (const void *)b->item->xml);
}

static void build_item(struct mpp_builder *b)
{
    const struct mpp_item *item = b->item;
    bool again = mpp_names_get(b->faulty, element_key(b), -1) >= 0;
    int before = mpp_diag_errors(b->diag);
    const struct mpp_layer *layer = again ? NULL : find_layer(b);
    struct mpp_attrs attrs;
    mpp_id in[MPP_BUILD_MAX_IO], out[MPP_BUILD_MAX_IO];
    int n_in = 0, n_out = 1;
    bool ok = layer && mpp_attrs_read(b->arena, b->diag, item, layer->attrs, &attrs) == MPP_OK;
    ok = ok && sizes_positive(b, &attrs, layer);
    ok = layer && item_inputs(b, layer, &n_in, in) && ok;
    if (ok) {
        for (int k = n_in; k < MPP_BUILD_MAX_IO; k++)
            in[k] = -1;
        b->phase = MPP_PHASE_FORWARD;
        ok = layer->build(b, &attrs, n_in, in, &n_out, out) == MPP_OK;
    }
    if (ok && item->n_out > n_out) {
        mpp_build_error(b, "has %d output%s, and out= names %d", n_out, n_out == 1 ? "" : "s", item->n_out);
        ok = false;
    }
    if (mpp_diag_errors(b->diag) != before)
        mpp_names_put(b->faulty, element_key(b), 0);
    for (int k = 0; k < item->n_out; k++) {
        if (item->out[k])
            mpp_names_put(b->values, item->out[k], ok ? out[k] : (mpp_id)FAILED);
    }
    if (item->n_out == 0)
        mpp_names_put(b->values, item->name, ok ? out[0] : (mpp_id)FAILED);
}

/* A loss that is no sum over samples: the file may not ask for micro-batches, the planner gets none. */
static void keep_batch_whole(struct mpp_builder *b)
{
    struct mpp_model *model = mpp_arena_memdup(b->arena, b->model, sizeof *b->model);
    struct mpp_training *training = &model->training;
    if (training->micro > 0 && training->micro != model->batch)
        mpp_diag_error(b->diag, training->loc,
                       "micro=\"%lld\", but the loss \"%s\" is no sum of terms of one sample each, so micro-batches don't "
                       "add up to it; leave micro out",
                       (long long)training->micro, training->loss);
    training->micro = model->batch;
    b->g->whole_batch = true;
    b->g->model = model;
}

static void set_loss(struct mpp_builder *b)
{
    const struct mpp_training *training = &b->model->training;
    const char *loss = training->loss;
    mpp_id id = loss ? mpp_names_get(b->values, loss, UNKNOWN) : FAILED;
    bool any = false;
    for (mpp_id t = 0; t < b->g->n_tensors; t++)
        any = any || b->g->tensors[t].role == MPP_ROLE_PARAM;
    if (id == UNKNOWN)
        mpp_diag_error(b->diag, training->loc, "no value \"%s\" to train", loss);
    else if (id >= 0 && (b->g->tensors[id].n_dims > 0 || b->g->tensors[id].dtype != MPP_F32))
        mpp_diag_error(b->diag, training->loc, "the loss \"%s\" must be one f32 number, not %s; reduce it first", loss,
                       mpp_dims_text(b->arena, &b->g->tensors[id]));
    else if (id >= 0 && !any && mpp_diag_errors(b->diag) == 0)
        mpp_diag_error(b->diag, training->loc, "the model has no parameter, so there is nothing to train");
    else if (id >= 0 && any && !mpp_graph_is_additive(b->g, id))
        keep_batch_whole(b);
    b->g->loss = id < 0 ? -1 : id;
}

enum mpp_status mpp_graph_build(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_model *model,
                                struct mpp_graph **out)
{
    int before = mpp_diag_errors(diag);
    struct mpp_builder b = {.arena = arena, .diag = diag, .model = model};
    b.g = mpp_graph_new(arena, model, model->batch);
    b.values = mpp_names_new(arena);
    b.params = mpp_names_new(arena);
    b.taken = mpp_names_new(arena);
    b.taken_ops = mpp_names_new(arena);
    b.faulty = mpp_names_new(arena);
    add_inputs(&b);
    for (int i = 0; i < model->n_items; i++) {
        b.item = &model->items[i];
        build_item(&b);
    }
    set_loss(&b);
    mpp_graph_limit_inputs(b.g, diag);
    if (mpp_diag_errors(diag) != before)
        return MPP_INVALID;
    mpp_graph_order_phases(b.g);
    *out = b.g;
    return MPP_OK;
}
