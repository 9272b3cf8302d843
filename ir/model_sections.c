#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir/model_internal.h"

static int count_children(const struct mpp_xml *node)
{
    int n = 0;
    for (const struct mpp_xml *c = node->first; c; c = c->next)
        n++;
    return n;
}

/* The children of NODE must be among LIST's words ("batch? precision? group+"), in that order; + may repeat.
 * FOUND (may be NULL) gets the first of each. */
static void check_children(struct mpp_reader *r, const struct mpp_xml *node, const char *list,
                           const struct mpp_xml **found)
{
    int n;
    const char **words = mpp_words(r->arena, list, &n);
    const struct mpp_xml **first = found ? found : mpp_arena_array(r->arena, n, const struct mpp_xml *);
    bool *many = mpp_arena_array(r->arena, n, bool);
    const char *names = "";
    for (int i = 0; i < n; i++) {
        size_t len = strlen(words[i]) - 1;
        many[i] = words[i][len] == '+';
        words[i] = mpp_arena_strndup(r->arena, words[i], len);
        names = mpp_arena_printf(r->arena, "%s%s ", names, words[i]);
        struct mpp_eval ev = mpp_reader_at(r, node, NULL);
        if (many[i] && !mpp_check_count(&ev, node, words[i], MPP_MAX_LIST))
            return;
    }
    int latest = 0;
    for (const struct mpp_xml *c = node->first; c; c = c->next) {
        struct mpp_eval ev = mpp_reader_at(r, c, NULL);
        int k = 0;
        while (k < n && strcmp(words[k], c->name) != 0)
            k++;
        if (k == n) {
            mpp_unexpected_element(&ev, c, names);
            continue;
        }
        if (k < latest)
            mpp_eval_error(&ev, "<%s> must come before <%s> in <%s>", c->name, words[latest], node->name);
        else
            latest = k;
        if (first[k] && !many[k])
            mpp_eval_error(&ev, "a second <%s>; the first is at line %d", c->name, first[k]->loc.line);
        if (!first[k])
            first[k] = c;
    }
}

/* Readers of one optional attribute of NODE; the value stays as it is when it is absent or wrong. */

static void get_int(struct mpp_reader *r, const struct mpp_xml *node, const char *name, int64_t min, int64_t *out)
{
    struct mpp_eval ev = mpp_reader_attr(r, node, r->globals, name);
    const char *text = mpp_xml_get(node, name);
    if (text)
        mpp_eval_int(&ev, text, min, INT64_MAX, out);
}

enum range { ANY_NUMBER, NOT_NEGATIVE, SHARE, BELOW_ONE, POSITIVE };

static void get_float(struct mpp_reader *r, const struct mpp_xml *node, const char *name, enum range range, double *out)
{
    static const char *const said[] = {"", "at least 0", "between 0 and 1", "at least 0 and below 1", "above 0"};
    struct mpp_eval ev = mpp_reader_attr(r, node, r->globals, name);
    const char *text = mpp_xml_get(node, name);
    double v;
    if (!text || !mpp_eval_float(&ev, text, &v))
        return;
    bool ok = range == ANY_NUMBER || (v >= 0 && (range != SHARE || v <= 1) && (range != BELOW_ONE || v < 1) &&
                                      (range != POSITIVE || v > 0));
    if (ok)
        *out = v;
    else
        mpp_eval_error(&ev, "%s must be %s, not %g", name, said[range], v);
}

static void get_bool(struct mpp_reader *r, const struct mpp_xml *node, const char *name, bool *out)
{
    struct mpp_eval ev = mpp_reader_attr(r, node, r->globals, name);
    const char *text = mpp_xml_get(node, name);
    if (text)
        mpp_eval_bool(&ev, text, out);
}

static void get_word(struct mpp_reader *r, const struct mpp_xml *node, const char *name, const char *list,
                     const char **out)
{
    struct mpp_eval ev = mpp_reader_attr(r, node, r->globals, name);
    const char *text = mpp_xml_get(node, name);
    const char *word = text ? mpp_check_word(&ev, text, list) : NULL;
    if (word)
        *out = word;
}

static void get_string(struct mpp_reader *r, const struct mpp_xml *node, const char *name, const char **out)
{
    struct mpp_eval ev = mpp_reader_attr(r, node, r->globals, name);
    const char *text = mpp_xml_get(node, name);
    if (text)
        *out = mpp_eval_string(&ev, text);
}

/* ---- inputs ---- */

/* The first dimension is the batch; no other depends on it: data are read by samples. */
static bool check_input_shape(const struct mpp_eval *ev, const struct mpp_model *m, const struct mpp_model_input *in)
{
    if (in->dims[0].per_batch != 1) {
        mpp_eval_error(ev, "the first dimension of input \"%s\" must be \"%s\", not \"%s\"", in->name, m->batch_name,
                       in->dims[0].name);
        return false;
    }
    for (int i = 1; i < in->n_dims; i++) {
        if (in->dims[i].per_batch) {
            mpp_eval_error(ev, "only the first dimension of input \"%s\" may depend on the batch; \"%s\" does",
                           in->name, in->dims[i].name);
            return false;
        }
    }
    return true;
}

static bool input_name_is_free(struct mpp_reader *r, const struct mpp_xml *node, const char *name)
{
    struct mpp_eval ev = mpp_reader_at(r, node, NULL);
    for (int i = 0; i < r->model->n_inputs; i++) {
        const struct mpp_model_input *other = &r->model->inputs[i];
        if (strcmp(other->name, name) == 0) {
            mpp_eval_error(&ev, "a second input \"%s\"; the first is at line %d", name, other->loc.line);
            return false;
        }
    }
    if (!mpp_is_identifier(name)) {
        mpp_eval_error(&ev, "\"%.80s\" is not a name for an input: letters, digits and _", name);
        return false;
    }
    return true;
}

static void read_input(struct mpp_reader *r, const struct mpp_xml *node)
{
    struct mpp_eval ev = mpp_reader_at(r, node, r->globals);
    struct mpp_model_input in = {.name = mpp_xml_get(node, "name"), .loc = node->loc};
    if (!mpp_check_attrs(&ev, node, "name* type* shape* role limit test") || !mpp_check_leaf(&ev, node))
        return;
    bool wanted = true;
    get_bool(r, node, "test", &wanted);
    if (!wanted || !input_name_is_free(r, node, in.name))
        return;
    get_word(r, node, "type", "i32 f32", &in.type);
    get_word(r, node, "role", "tokens next_tokens masked_tokens masked_labels zeros ones", &in.role);
    get_int(r, node, "limit", 1, &in.limit);
    bool ids = in.role && strcmp(in.role, "zeros") != 0 && strcmp(in.role, "ones") != 0;
    if (in.type && strcmp(in.type, "i32") != 0 && (ids || in.limit))
        mpp_eval_error(&ev, "input \"%s\" holds ids (role or limit), so its type must be \"i32\"", in.name);
    ev.what = "shape";
    if (!mpp_eval_sizes(&ev, mpp_xml_get(node, "shape"), MPP_SIZES_POSITIVE, &in.n_dims, &in.dims) ||
        !check_input_shape(&ev, r->model, &in))
        return;
    r->model->inputs[r->model->n_inputs++] = in;
}

void mpp_read_inputs(struct mpp_reader *r, const struct mpp_xml *inputs)
{
    struct mpp_eval ev = mpp_reader_at(r, inputs, r->globals);
    r->model->inputs = mpp_arena_array(r->arena, count_children(inputs), struct mpp_model_input);
    mpp_check_attrs(&ev, inputs, "");
    check_children(r, inputs, "input+", NULL);
    int before = r->faults;
    for (const struct mpp_xml *c = inputs->first; c; c = c->next) {
        if (strcmp(c->name, "input") == 0)
            read_input(r, c);
    }
    if (r->model->n_inputs == 0 && r->faults == before)
        mpp_eval_error(&ev, "the model has no input");
}

/* ---- training ---- */

static void read_micro(struct mpp_reader *r, const struct mpp_xml *node)
{
    struct mpp_training *t = &r->model->training;
    struct mpp_eval ev = mpp_reader_attr(r, node, r->globals, "micro");
    mpp_check_attrs(&ev, node, "micro*");
    mpp_check_leaf(&ev, node);
    const char *text = mpp_xml_get(node, "micro");
    if (!text || strcmp(mpp_eval_string(&ev, text), "auto") == 0)
        return;
    if (!mpp_eval_int(&ev, text, 1, MPP_SIZE_MAX, &t->micro))
        return;
    if (t->micro > r->model->batch || r->model->batch % t->micro)
        mpp_eval_error(&ev, "micro is %lld, which does not divide the batch of %lld", (long long)t->micro,
                       (long long)r->model->batch);
}

static void read_precision(struct mpp_reader *r, const struct mpp_xml *node)
{
    static const char *const kinds[] = {"params", "reduce"};
    struct mpp_training *t = &r->model->training;
    struct mpp_eval ev = mpp_reader_at(r, node, r->globals);
    mpp_check_attrs(&ev, node, "compute params reduce loss_scale loss_scale_every");
    mpp_check_leaf(&ev, node);
    get_word(r, node, "compute", "f32 bf16 f16", &t->precision);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *word = "f32";
        get_word(r, node, kinds[i], "f32 bf16 f16", &word);
        if (strcmp(word, "f32") != 0)
            mpp_eval_error(&ev, "%s=\"%s\": %s are always in f32; compute=\"%s\" says what the rest is in", kinds[i], word,
                           i == 0 ? "masters of parameters" : "sums of gradients", word);
    }
    get_float(r, node, "loss_scale", NOT_NEGATIVE, &t->loss_scale);
    get_int(r, node, "loss_scale_every", 1, &t->loss_scale_every);
}

static void read_groups(struct mpp_reader *r, const struct mpp_xml *optimizer)
{
    struct mpp_training *t = &r->model->training;
    t->groups = mpp_arena_array(r->arena, count_children(optimizer), struct mpp_optimizer_group);
    for (const struct mpp_xml *c = optimizer->first; c; c = c->next) {
        struct mpp_eval ev = mpp_reader_at(r, c, r->globals);
        struct mpp_optimizer_group group = {.match = mpp_xml_get(c, "match")};
        if (strcmp(c->name, "group") != 0)
            continue;
        if (!mpp_check_attrs(&ev, c, "match* weight_decay*") || !mpp_check_leaf(&ev, c))
            continue;
        get_float(r, c, "weight_decay", NOT_NEGATIVE, &group.weight_decay);
        t->groups[t->n_groups++] = group;
    }
}

static void read_optimizer(struct mpp_reader *r, const struct mpp_xml *node)
{
    struct mpp_training *t = &r->model->training;
    struct mpp_eval ev = mpp_reader_at(r, node, r->globals);
    mpp_check_attrs(&ev, node, "type* lr* beta1 beta2 epsilon momentum nesterov weight_decay weight_decay_1d "
                               "clip_norm");
    check_children(r, node, "group+", NULL);
    get_word(r, node, "type", "adamw sgd", &t->optimizer);
    get_float(r, node, "lr", NOT_NEGATIVE, &t->lr);
    get_float(r, node, "beta1", BELOW_ONE, &t->beta1);
    get_float(r, node, "beta2", BELOW_ONE, &t->beta2);
    get_float(r, node, "epsilon", POSITIVE, &t->epsilon);
    get_float(r, node, "momentum", BELOW_ONE, &t->momentum);
    get_bool(r, node, "nesterov", &t->nesterov);
    get_float(r, node, "weight_decay", NOT_NEGATIVE, &t->weight_decay);
    get_float(r, node, "weight_decay_1d", NOT_NEGATIVE, &t->weight_decay_1d);
    get_float(r, node, "clip_norm", NOT_NEGATIVE, &t->clip_norm);
    if (t->nesterov && strcmp(t->optimizer, "sgd") == 0 && t->momentum == 0)
        mpp_eval_error(&ev, "nesterov needs a momentum above 0");
    read_groups(r, node);
}

static void read_schedule(struct mpp_reader *r, const struct mpp_xml *node)
{
    struct mpp_training *t = &r->model->training;
    struct mpp_eval ev = mpp_reader_at(r, node, r->globals);
    int before = r->faults;
    mpp_check_attrs(&ev, node, "type* warmup_steps total_steps final_lr");
    mpp_check_leaf(&ev, node);
    get_word(r, node, "type", "constant linear cosine", &t->schedule);
    get_int(r, node, "warmup_steps", 0, &t->warmup_steps);
    get_int(r, node, "total_steps", 0, &t->total_steps);
    get_float(r, node, "final_lr", NOT_NEGATIVE, &t->final_lr);
    if (r->faults == before && strcmp(t->schedule, "constant") != 0 && t->total_steps <= t->warmup_steps)
        mpp_eval_error(&ev, "schedule \"%s\" needs total_steps (%lld) above warmup_steps (%lld)", t->schedule,
                       (long long)t->total_steps, (long long)t->warmup_steps);
}

void mpp_read_training(struct mpp_reader *r, const struct mpp_xml *training)
{
    enum { BATCH, PRECISION, OPTIMIZER, SCHEDULE, CHECKPOINT, N_PARTS };
    const struct mpp_xml *part[N_PARTS] = {0};
    struct mpp_training *t = &r->model->training;
    struct mpp_eval ev = mpp_reader_at(r, training, r->globals);
    *t = (struct mpp_training){.loc = training->loc, .precision = "f32", .optimizer = "adamw", .beta1 = 0.9,
                               .beta2 = 0.999, .epsilon = 1e-8, .weight_decay_1d = NAN, .schedule = "constant",
                               .loss_scale_every = 2000};
    mpp_check_attrs(&ev, training, "loss*");
    check_children(r, training, "batch? precision? optimizer? schedule? checkpoint?", part);
    if (part[BATCH])
        read_micro(r, part[BATCH]);
    if (part[PRECISION])
        read_precision(r, part[PRECISION]);
    if (part[OPTIMIZER])
        read_optimizer(r, part[OPTIMIZER]);
    else
        mpp_eval_error(&ev, "<training> has no <optimizer>");
    if (part[SCHEDULE])
        read_schedule(r, part[SCHEDULE]);
    if (part[CHECKPOINT]) {
        struct mpp_eval at = mpp_reader_at(r, part[CHECKPOINT], r->globals);
        mpp_check_attrs(&at, part[CHECKPOINT], "every keep");
        mpp_check_leaf(&at, part[CHECKPOINT]);
        get_int(r, part[CHECKPOINT], "every", 0, &t->save_every);
        get_int(r, part[CHECKPOINT], "keep", 0, &t->save_keep);
    }
}

/* ---- data, weights, planning ---- */

static void read_dataset(struct mpp_reader *r, const struct mpp_xml *node)
{
    struct mpp_model *m = r->model;
    struct mpp_eval ev = mpp_reader_at(r, node, r->globals);
    struct mpp_dataset d = {.loc = node->loc, .split = "train"};
    int before = r->faults;
    mpp_check_attrs(&ev, node, "split format* path seed mask_share mask_id");
    mpp_check_leaf(&ev, node);
    get_word(r, node, "split", "train val", &d.split);
    get_word(r, node, "format", "text tokens tokens-u16 npy synthetic", &d.format);
    get_string(r, node, "path", &d.path);
    get_int(r, node, "seed", 0, &d.seed);
    get_float(r, node, "mask_share", SHARE, &d.mask_share);
    get_int(r, node, "mask_id", 0, &d.mask_id);
    if (r->faults != before)
        return;
    bool synthetic = strcmp(d.format, "synthetic") == 0;
    if (!synthetic && (!d.path || !*d.path))
        mpp_eval_error(&ev, "a dataset of format \"%s\" needs a path", d.format);
    for (int i = 0; i < m->n_datasets; i++) {
        if (strcmp(m->datasets[i].split, d.split) == 0)
            mpp_eval_error(&ev, "a second dataset with split=\"%s\"", d.split);
    }
    m->datasets[m->n_datasets++] = d;
}

void mpp_read_data(struct mpp_reader *r, const struct mpp_xml *data)
{
    struct mpp_eval ev = mpp_reader_at(r, data, r->globals);
    r->model->datasets = mpp_arena_array(r->arena, count_children(data), struct mpp_dataset);
    mpp_check_attrs(&ev, data, "");
    check_children(r, data, "dataset+", NULL);
    for (const struct mpp_xml *c = data->first; c; c = c->next) {
        if (strcmp(c->name, "dataset") == 0)
            read_dataset(r, c);
    }
}

void mpp_read_weights(struct mpp_reader *r, const struct mpp_xml *weights)
{
    struct mpp_model *m = r->model;
    struct mpp_eval ev = mpp_reader_at(r, weights, r->globals);
    const char *format = "safetensors";
    mpp_check_attrs(&ev, weights, "format path optional");
    get_word(r, weights, "format", "safetensors", &format);
    get_string(r, weights, "path", &m->weights_path);
    get_bool(r, weights, "optional", &m->weights_optional);
    check_children(r, weights, "strip+ ignore+", NULL);
    int n = count_children(weights);
    m->strip_prefixes = mpp_arena_array(r->arena, n, const char *);
    m->ignore = mpp_arena_array(r->arena, n, const char *);
    for (const struct mpp_xml *c = weights->first; c; c = c->next) {
        struct mpp_eval at = mpp_reader_at(r, c, r->globals);
        bool strip = strcmp(c->name, "strip") == 0;
        if (!strip && strcmp(c->name, "ignore") != 0)
            continue;
        if (!mpp_check_attrs(&at, c, strip ? "prefix*" : "match*") || !mpp_check_leaf(&at, c))
            continue;
        if (strip)
            m->strip_prefixes[m->n_strip++] = mpp_xml_get(c, "prefix");
        else
            m->ignore[m->n_ignore++] = mpp_xml_get(c, "match");
    }
}

void mpp_read_planning(struct mpp_reader *r, const struct mpp_xml *planning)
{
    struct mpp_model *m = r->model;
    struct mpp_eval ev = mpp_reader_at(r, planning, r->globals);
    mpp_check_attrs(&ev, planning, "");
    check_children(r, planning, "shard+", NULL);
    m->shards = mpp_arena_array(r->arena, count_children(planning), struct mpp_shard_pin);
    for (const struct mpp_xml *c = planning->first; c; c = c->next) {
        struct mpp_eval at = mpp_reader_at(r, c, r->globals);
        if (strcmp(c->name, "shard") != 0 || !mpp_check_attrs(&at, c, "match* dim* axis") || !mpp_check_leaf(&at, c))
            continue;
        m->shards[m->n_shards++] = (struct mpp_shard_pin){.match = mpp_xml_get(c, "match"),
                                                          .dim = mpp_xml_get(c, "dim"),
                                                          .axis = mpp_xml_get(c, "axis"),
                                                          .loc = c->loc};
    }
}
