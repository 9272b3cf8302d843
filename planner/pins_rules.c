/* pins_rules.c - what pins allow: splits of groups and resting shardings of tensors, for one candidate mesh. */
#include <stdlib.h>
#include <string.h>

#include "ir/op.h"
#include "planner/stage.h"

/* Kinds of pins, so that a contradiction can be blamed on one. */
enum { PIN_BATCH = 1, PIN_TP = 2, PIN_ZERO = 4, PIN_SEQUENCE = 8, PIN_VOCAB = 16, PIN_SHARD = 32, PIN_ALL = 63 };

static bool same(const char *a, const char *b)
{
    return a && b && strcmp(a, b) == 0;
}

static bool is_batch(const struct mpp_rule *rule, int factor)
{
    return factor >= 0 && rule->factor[factor].size.per_batch > 0;
}

/* Could AXIS split FACTOR of GROUP if no pin said otherwise? */
static bool may_split(const struct mpp_pin_rules *r, const struct mpp_group *group, int factor, int axis)
{
    return mpp_strategy_can_split(r->facts, group, factor, r->c.mesh.size[axis]);
}

static mpp_id operand_tensor(const struct mpp_group *group, int o)
{
    return o < group->n_in ? group->in[o] : group->out[o - group->n_in];
}

/* ---- facts about the graph ---- */

static void note_residual(struct mpp_pin_rules *r, const struct mpp_gtensor *t)
{
    r->n_residual = t->n_dims;
    for (int d = 0; d < t->n_dims; d++)
        r->residual[d] = t->dims[d].name;
    r->sequence = t->n_dims > 2 && t->dims[1].per_batch == 0 ? t->dims[1].name : NULL;
}

/* The most ids that an input of the model may be below; 0: it takes no ids. */
static int64_t most_ids(const struct mpp_graph *g)
{
    int64_t most = 0;
    for (int i = 0; g->model && i < g->model->n_inputs; i++)
        most = g->model->inputs[i].limit > most ? g->model->inputs[i].limit : most;
    return most;
}

/* A stage without the model's first layers: what comes from another stage is the residual stream, and a parameter of as
 * many rows as there are ids is the table, which may be tied to the output. */
static void find_names_of_stage(struct mpp_pin_rules *r)
{
    const struct mpp_graph *g = r->graph;
    int64_t ids = most_ids(g);
    for (int i = 0; i < g->n_ops; i++) {
        const struct mpp_gtensor *t = g->ops[i].n_out > 0 ? &g->tensors[g->ops[i].out[0]] : NULL;
        if (g->ops[i].kind == MPP_OP_RECV && mpp_dtype_is_float(t->dtype) && t->n_dims > r->n_residual && t->dims[0].per_batch > 0)
            note_residual(r, t);
    }
    for (mpp_id t = 0; t < g->n_tensors && ids > 0 && !r->vocab; t++)
        if (g->tensors[t].role == MPP_ROLE_PARAM && g->tensors[t].n_dims > 0 && g->tensors[t].dims[0].size == ids)
            r->vocab = g->tensors[t].dims[0].name;
}

/* Tables are what ids index: their rows are the vocabulary, their output is the residual stream. */
static void find_names(struct mpp_pin_rules *r)
{
    const struct mpp_graph *g = r->graph;
    int64_t rows = 0;
    for (int i = 0; i < g->n_ops; i++) {
        const struct mpp_gop *op = &g->ops[i];
        bool ids = false;
        int table = -1;
        for (int k = 0; k < op->n_in; k++) {
            ids = ids || (op->in[k] >= 0 && g->tensors[op->in[k]].role == MPP_ROLE_INPUT);
            if (op->in[k] >= 0 && g->tensors[op->in[k]].role == MPP_ROLE_PARAM)
                table = k;
        }
        if (op->phase != MPP_PHASE_FORWARD || !ids || table < 0)
            continue;
        const struct mpp_gtensor *t = &g->tensors[op->in[table]];
        if (t->n_dims < 1 || t->dims[0].size <= rows || !t->dims[0].name)
            continue;
        rows = t->dims[0].size;
        r->vocab = t->dims[0].name;
        note_residual(r, &g->tensors[op->out[0]]);
    }
    if (rows == 0)
        find_names_of_stage(r);
}

static void find_gradients(struct mpp_arena *arena, struct mpp_pin_rules *r)
{
    const struct mpp_graph *g = r->graph;
    uint8_t *mark = mpp_arena_array(arena, g->n_tensors, uint8_t);
    for (int i = 0; i < g->n_ops; i++) {
        const struct mpp_gop *op = &g->ops[i];
        if (op->n_out != 1 || g->tensors[op->out[0]].role != MPP_ROLE_ACCUM || g->tensors[op->out[0]].param < 0)
            continue;
        for (int k = 0; k < op->n_in; k++)
            mark[op->in[k]] = 1;
    }
    r->weight_gradient = mark;
}

enum { NOT_THERE = -3 };

int mpp_pins_find_dim(const struct mpp_gtensor *t, const char *name)
{
    for (int d = 0; d < t->n_dims; d++)
        if (same(t->dims[d].name, name))
            return d;
    if (name[0] == '#' && name[1] >= '0' && name[1] < '0' + t->n_dims && !name[2])
        return name[1] - '0';
    return same(name, MPP_PIN_WHOLE) ? MPP_WHOLE : same(name, MPP_PIN_PARTIAL) ? MPP_PARTIAL : NOT_THERE;
}

int mpp_pins_find_factor(const struct mpp_rule *rule, const char *name)
{
    for (int f = 0; f < rule->n_factors; f++)
        if (same(rule->factor[f].size.name, name) || (name[0] == '#' && name[1] == rule->factor[f].letter && !name[2]))
            return f;
    return same(name, MPP_PIN_WHOLE) ? MPP_WHOLE : same(name, MPP_PIN_PARTIAL) ? MPP_PARTIAL : NOT_THERE;
}

int mpp_pins_axis(const struct mpp_candidate *c, const char *name)
{
    const struct mpp_mesh *m = &c->mesh;
    if (same(name, MPP_PIN_ANY_AXIS))
        return c->model_axis >= 0 ? c->model_axis : m->n_axes - 1;
    if (strlen(name) == 1 && name[0] >= '0' && name[0] < '0' + m->n_axes)
        return name[0] - '0';
    for (int a = 0; a < m->n_axes; a++)
        if (same(m->name[a], name))
            return a;
    if (strlen(name) == 1 && name[0] >= 'a' && name[0] < 'a' + m->n_axes)
        return name[0] - 'a';
    bool told = c->data_axis >= 0 || c->model_axis >= 0 || c->no_data;
    if (same(name, "data") && !told)
        return 0;
    if (same(name, "model") && (!told || (c->data_axis != m->n_axes - 1 && c->model_axis < 0)))
        return m->n_axes - 1;
    return -1;
}

/* What is an input of the model and of no op rests as it comes. */
static bool *find_read(struct mpp_arena *arena, const struct mpp_graph *g)
{
    bool *read = mpp_arena_array(arena, g->n_tensors, bool);
    for (mpp_id t = 0; t < g->n_tensors; t++)
        read[t] = g->tensors[t].role != MPP_ROLE_INPUT;
    for (int i = 0; i < g->n_ops; i++)
        for (int k = 0; k < g->ops[i].n_in; k++)
            if (g->ops[i].in[k] >= 0)
                read[g->ops[i].in[k]] = true;
    return read;
}

static bool names_tensor(const struct mpp_pin_tensor *pin, const struct mpp_gtensor *x)
{
    return mpp_glob(pin->glob, x->name) || (x->info && x->info->published && mpp_glob(pin->glob, x->info->published));
}

/* Pin I speaks of ops. */
static void match_groups(struct mpp_arena *arena, struct mpp_pin_rules *r, const struct mpp_pin_tensor *pin, int i, uint64_t **matched)
{
    const struct mpp_graph *g = r->graph;
    if (!*matched)
        *matched = mpp_arena_array(arena, g->n_groups, uint64_t);
    for (int k = 0; k < g->n_groups; k++)
        for (int o = 0; o < g->groups[k].n_ops; o++)
            if (mpp_glob(pin->glob, g->ops[g->groups[k].ops[o]].name) && mpp_pins_find_factor(g->groups[k].rule, pin->dimension) != NOT_THERE)
                (*matched)[k] |= UINT64_C(1) << i;
}

static bool resolve_shards(struct mpp_arena *arena, struct mpp_pin_rules *r, const char **out_reason)
{
    const struct mpp_graph *g = r->graph;
    int n_model = g->model ? g->model->n_shards : 0;
    r->n_shards = r->pins->n_tensors + n_model;
    if (r->n_shards > 64) {
        *out_reason = "more than 64 shard pins";
        return false;
    }
    struct mpp_pin_tensor *shard = mpp_arena_array(arena, r->n_shards, struct mpp_pin_tensor);
    int8_t *axis = mpp_arena_array(arena, r->n_shards, int8_t);
    uint64_t *matched = mpp_arena_array(arena, g->n_tensors, uint64_t), *split_by = NULL;
    const bool *read = find_read(arena, g);
    for (int i = 0; i < r->n_shards; i++) {
        if (i < r->pins->n_tensors) {
            shard[i] = r->pins->tensors[i];
        } else {
            const struct mpp_shard_pin *s = &g->model->shards[i - r->pins->n_tensors];
            shard[i] = (struct mpp_pin_tensor){s->match, s->dim, s->axis ? s->axis : MPP_PIN_ANY_AXIS, MPP_PIN_SHARD};
        }
        axis[i] = (int8_t)mpp_pins_axis(&r->c, shard[i].axis);
        if (axis[i] < 0) {
            *out_reason = mpp_arena_printf(arena, "shard:%s=%s/%s: the mesh has no axis \"%s\"", shard[i].glob,
                                           shard[i].dimension, shard[i].axis, shard[i].axis);
            return false;
        }
        if (r->c.mesh.size[axis[i]] == 1)
            continue;             /* one block is the whole */
        if (shard[i].kind == MPP_PIN_SPLIT) {
            match_groups(arena, r, &shard[i], i, &split_by);
            continue;
        }
        for (mpp_id t = 0; t < g->n_tensors; t++) {
            const struct mpp_gtensor *x = &g->tensors[t];
            int d = mpp_pins_find_dim(x, shard[i].dimension), size = r->c.mesh.size[axis[i]];
            bool rests = x->role == MPP_ROLE_PARAM || x->role == MPP_ROLE_INPUT;
            if (d == NOT_THERE || !read[t] || (shard[i].kind == MPP_PIN_REST && !rests) || !names_tensor(&shard[i], x))
                continue;
            if (d >= 0 && x->dims[d].size < size) {
                *out_reason = mpp_arena_printf(arena, "%s:%s=%s/%s: %s has only %lld of %s for %d devices",
                                               mpp_pins_kind_word(shard[i].kind), shard[i].glob, shard[i].dimension, shard[i].axis, x->name,
                                               (long long)x->dims[d].size, shard[i].dimension, size);
                return false;
            }
            matched[t] |= UINT64_C(1) << i;
        }
    }
    r->shard = shard;
    r->shard_axis = axis;
    r->matched = matched;
    r->split_by = split_by;
    return true;
}

static bool needs_mesh_roles(const struct mpp_pin_rules *r, struct mpp_arena *arena, const char **out_reason)
{
    const struct mpp_pins *p = r->pins;
    if (p->zero > 0 && r->c.data_axis < 0 && r->c.mesh.size[0] > 1) {
        *out_reason = mpp_arena_printf(arena, "zero=%d splits over the data axis, and there is none", p->zero);
        return false;
    }
    if (p->sequence_parallel == 1 && (!r->sequence || r->c.model_axis < 0)) {
        *out_reason = r->sequence ? "sequence_parallel=true splits over the model axis, and there is none"
                                  : "sequence_parallel=true: the model has no sequence dimension";
        return false;
    }
    bool vocabulary = r->vocab || most_ids(r->graph) > 0;    /* maybe of another stage */
    if (p->vocab_parallel == 1 && (!vocabulary || r->c.model_axis < 0)) {
        *out_reason = vocabulary ? "vocab_parallel=true splits over the model axis, and there is none"
                               : "vocab_parallel=true: the model has no vocabulary";
        return false;
    }
    if (r->c.data_axis >= 0 && r->graph->batch < r->c.mesh.size[r->c.data_axis]) {
        *out_reason = mpp_arena_printf(arena, "the micro-batch of %lld is smaller than the data axis of %d devices",
                                       (long long)r->graph->batch, r->c.mesh.size[r->c.data_axis]);
        return false;
    }
    return true;
}

bool mpp_pins_resolve(struct mpp_arena *arena, const struct mpp_graph *graph, const struct mpp_candidate *c,
                      const struct mpp_pins *pins, struct mpp_pin_rules **out, const char **out_reason)
{
    struct mpp_pin_rules *r = mpp_arena_array(arena, 1, struct mpp_pin_rules);
    *out = r;
    r->graph = graph;
    r->c = *c;
    r->pins = pins;
    struct mpp_strategy_facts *facts = mpp_arena_array(arena, 1, struct mpp_strategy_facts);
    mpp_strategy_note(arena, graph, facts);
    r->facts = facts;
    find_names(r);
    find_gradients(arena, r);
    if (!resolve_shards(arena, r, out_reason) || !needs_mesh_roles(r, arena, out_reason))
        return false;
    r->any = c->data_axis >= 0 || c->model_axis >= 0 || c->no_data || pins->zero >= 0 || pins->sequence_parallel >= 0
             || pins->vocab_parallel >= 0 || r->n_shards > 0;
    return true;
}

/* ---- splits ---- */

static bool batch_allowed(const struct mpp_pin_rules *r, const struct mpp_group *group, struct mpp_split split)
{
    const struct mpp_rule *rule = group->rule;
    int data = r->c.data_axis;
    bool strict = (data >= 0 && !r->c.loose_data) || r->c.no_data, can = false;
    for (int a = 0; a < r->c.mesh.n_axes; a++)
        if (a != data && (strict || a == r->c.model_axis) && is_batch(rule, split.axis[a]))
            return false;
    if (data < 0)
        return true;
    for (int f = 0; f < rule->n_factors; f++)
        can = can || (is_batch(rule, f) && may_split(r, group, f, data));
    return !can || is_batch(rule, split.axis[data]);
}

/* Is FACTOR a leading one of operand O that the model axis could split? */
static bool weight_factor(const struct mpp_pin_rules *r, const struct mpp_group *group, int o, int factor)
{
    return factor >= 0 && mpp_rule_find(group->rule, o, factor) >= 0 && !is_batch(group->rule, factor)
           && may_split(r, group, factor, r->c.model_axis);
}

/* tp: contractions with a weight, or that make a weight's gradient, split the weight. */
static bool tp_allowed(const struct mpp_pin_rules *r, const struct mpp_group *group, struct mpp_split split)
{
    const struct mpp_graph *g = r->graph;
    int m = r->c.model_axis;
    if (r->pins->tp <= 1 || m < 0 || group->n_ops != 1
        || mpp_op_info(g->ops[group->ops[0]].kind)->cls != MPP_CLASS_CONTRACTION)
        return true;
    for (int o = 0; o < group->n_in + group->n_out; o++) {
        mpp_id t = operand_tensor(group, o);
        bool weight = o < group->n_in ? g->tensors[t].role == MPP_ROLE_PARAM : r->weight_gradient[t];
        bool can = false;
        for (int f = 0; weight && f < group->rule->n_factors; f++)
            can = can || weight_factor(r, group, o, f);
        if (can)
            return weight_factor(r, group, o, split.axis[m]);
    }
    return true;
}

/* zero: where the data axis stands in sums of gradients and in updates. */
static bool zero_allowed(const struct mpp_pin_rules *r, const struct mpp_group *group, struct mpp_split split)
{
    const struct mpp_graph *g = r->graph;
    int data = r->c.data_axis, gradient = -1;
    if (r->pins->zero < 0 || data < 0)
        return true;
    bool sum = group->n_out == 1 && g->tensors[group->out[0]].role == MPP_ROLE_ACCUM && g->tensors[group->out[0]].param >= 0;
    if (sum)
        gradient = group->n_in;
    for (int o = 0; !sum && group->phase == MPP_PHASE_UPDATE && o < group->n_in; o++)
        if (group->in[o] >= 0 && g->tensors[group->in[o]].role == MPP_ROLE_ACCUM && g->tensors[group->in[o]].param >= 0)
            gradient = o;
    if (gradient < 0)
        return true;
    int on = split.axis[data];
    if (r->pins->zero < (sum ? 2 : 1))
        return sum ? on < 0 : on == MPP_WHOLE;
    bool can = false;
    for (int f = 0; f < group->rule->n_factors; f++)
        can = can || (mpp_rule_find(group->rule, gradient, f) >= 0 && may_split(r, group, f, data));
    return can ? on >= 0 : on < 0;
}

/* Is T shaped as the residual stream, or as a row statistic of it? */
static bool is_residual(const struct mpp_pin_rules *r, const struct mpp_gtensor *t, bool *out_full)
{
    if (t->n_dims < 2 || t->n_dims > r->n_residual)
        return false;
    for (int d = 0; d < t->n_dims; d++)
        if (!same(t->dims[d].name, r->residual[d]))
            return false;
    *out_full = *out_full || t->n_dims == r->n_residual;
    return true;
}

static bool residual_group(const struct mpp_pin_rules *r, const struct mpp_group *group)
{
    const struct mpp_graph *g = r->graph;
    bool full = false;
    for (int i = 0; i < group->n_ops; i++)
        if (mpp_op_info(g->ops[group->ops[i]].kind)->cls == MPP_CLASS_CONTRACTION)
            return false;
    for (int o = 0; o < group->n_in + group->n_out; o++) {
        mpp_id id = operand_tensor(group, o);
        if (id < 0 || g->tensors[id].n_dims == 0)
            continue;
        const struct mpp_gtensor *t = &g->tensors[id];
        if (!mpp_dtype_is_float(t->dtype) || (t->dims[0].per_batch > 0 && !is_residual(r, t, &full)))
            return false;
    }
    return full && group->phase != MPP_PHASE_UPDATE;
}

static int factor_named(const struct mpp_rule *rule, const char *name)
{
    for (int f = 0; f < rule->n_factors; f++)
        if (same(rule->factor[f].size.name, name) && rule->factor[f].size.per_batch == 0)
            return f;
    return -1;
}

static bool splits_named(const struct mpp_pin_rules *r, const struct mpp_rule *rule, struct mpp_split split,
                         const char *name)
{
    for (int a = 0; a < r->c.mesh.n_axes; a++)
        if (split.axis[a] >= 0 && same(rule->factor[split.axis[a]].size.name, name))
            return true;
    return false;
}

static bool sequence_allowed(const struct mpp_pin_rules *r, const struct mpp_group *group, struct mpp_split split)
{
    if (r->pins->sequence_parallel < 0 || !r->sequence || group->phase == MPP_PHASE_UPDATE)
        return true;
    if (r->pins->sequence_parallel == 0) {
        int m = r->c.model_axis;      /* as Megatron without it: whole on every device of the model axis */
        return !splits_named(r, group->rule, split, r->sequence)
               && (m < 0 || split.axis[m] == MPP_WHOLE || !residual_group(r, group));
    }
    int f = factor_named(group->rule, r->sequence);
    if (f < 0 || !may_split(r, group, f, r->c.model_axis) || !residual_group(r, group))
        return true;
    return split.axis[r->c.model_axis] == f;
}

static bool vocab_allowed(const struct mpp_pin_rules *r, const struct mpp_group *group, struct mpp_split split)
{
    bool works_on_samples = false;
    if (r->pins->vocab_parallel < 0 || !r->vocab || group->phase == MPP_PHASE_UPDATE)
        return true;
    for (int f = 0; f < group->rule->n_factors; f++)
        works_on_samples = works_on_samples || is_batch(group->rule, f);
    if (!works_on_samples)
        return true;
    if (r->pins->vocab_parallel == 0)
        return !splits_named(r, group->rule, split, r->vocab);
    int f = factor_named(group->rule, r->vocab);
    return f < 0 || !may_split(r, group, f, r->c.model_axis) || split.axis[r->c.model_axis] == f;
}

/* RESTING: or as it is made and read. */
static bool shard_holds(const struct mpp_pin_rules *r, mpp_id t, struct mpp_sharding s, bool resting)
{
    for (int i = 0; i < r->n_shards; i++)
        if ((r->matched[t] >> i & 1) && (resting || r->shard[i].kind == MPP_PIN_SHARD)
            && s.axis[r->shard_axis[i]] != mpp_pins_find_dim(&r->graph->tensors[t], r->shard[i].dimension))
            return false;
    return true;
}

static bool split_holds(const struct mpp_pin_rules *r, const struct mpp_group *group, struct mpp_split split)
{
    uint64_t by = r->split_by ? r->split_by[group - r->graph->groups] : 0;
    for (int i = 0; by && i < r->n_shards; i++)
        if ((by >> i & 1) && split.axis[r->shard_axis[i]] != mpp_pins_find_factor(group->rule, r->shard[i].dimension))
            return false;
    return true;
}

/* A pinned value is made so; a pinned parameter is read so in forward and backward, and rests so. */
static bool shards_allowed(const struct mpp_pin_rules *r, const struct mpp_group *group, struct mpp_split split)
{
    if (!split_holds(r, group, split))
        return false;
    for (int o = 0; r->n_shards > 0 && o < group->n_in + group->n_out; o++) {
        mpp_id t = operand_tensor(group, o);
        if (t < 0 || !r->matched[t])
            continue;
        bool read = o < group->n_in && r->graph->tensors[t].role == MPP_ROLE_PARAM && group->phase != MPP_PHASE_UPDATE;
        if ((read || o >= group->n_in) && !shard_holds(r, t, mpp_split_operand(group->rule, split, o), false))
            return false;
    }
    return true;
}

static bool allowed(const struct mpp_pin_rules *r, const struct mpp_group *group, struct mpp_split split, int kinds)
{
    return (!(kinds & PIN_BATCH) || batch_allowed(r, group, split))
           && (!(kinds & PIN_TP) || tp_allowed(r, group, split))
           && (!(kinds & PIN_ZERO) || zero_allowed(r, group, split))
           && (!(kinds & PIN_SEQUENCE) || sequence_allowed(r, group, split))
           && (!(kinds & PIN_VOCAB) || vocab_allowed(r, group, split))
           && (!(kinds & PIN_SHARD) || shards_allowed(r, group, split));
}

bool mpp_pins_allow_split(const struct mpp_pin_rules *r, const struct mpp_group *group, struct mpp_split split)
{
    return !r->any || allowed(r, group, split, PIN_ALL);
}

/* ---- resting ---- */

bool mpp_pins_allow_rest(const struct mpp_pin_rules *r, mpp_id t, struct mpp_sharding s)
{
    const struct mpp_gtensor *x = &r->graph->tensors[t];
    int data = r->c.data_axis;
    if (!r->any)
        return true;
    if (r->n_shards > 0 && r->matched[t] && !shard_holds(r, t, s, true))
        return false;
    if (x->role != MPP_ROLE_PARAM || r->pins->zero < 0 || data < 0)
        return true;
    if (r->pins->zero < 3)
        return s.axis[data] < 0;
    for (int d = 0; d < x->n_dims; d++)
        if (x->dims[d].size >= r->c.mesh.size[data] && !(r->facts->never[t] >> d & 1))
            return s.axis[data] >= 0;
    return s.axis[data] < 0;
}

/* ZeRO-3 gathers a parameter again wherever it is used. */
bool mpp_pins_allow_kept(const struct mpp_pin_rules *r)
{
    return r->pins->zero != 3;
}

/* ---- blame ---- */

static bool some_split(const struct mpp_pin_rules *r, const struct mpp_group *group, int kinds)
{
    struct mpp_split s;
    int n = group->rule->n_factors + 2, total = 1;
    for (int a = 0; a < r->c.mesh.n_axes; a++)
        total *= n;
    for (int i = 0; i < total; i++) {
        bool can = true;
        for (int a = 0, at = i; a < MPP_MAX_AXES; a++) {
            s.axis[a] = (int8_t)(a < r->c.mesh.n_axes ? at % n - 2 : MPP_WHOLE);
            can = can && (s.axis[a] < 0 || may_split(r, group, s.axis[a], a));
            at /= n;
        }
        if (can && mpp_split_legal(group->rule, &r->c.mesh, s) && allowed(r, group, s, kinds))
            return true;
    }
    return false;
}

const char *mpp_pins_explain(struct mpp_arena *arena, const struct mpp_pin_rules *r, const struct mpp_group *group)
{
    static const char *const what[] = {"dp", "tp", "zero", "sequence_parallel", "vocab_parallel", "shard"};
    const char *name = r->graph->ops[group->ops[0]].name, *blamed = "";
    for (int k = 0; k < 6; k++)
        if (!some_split(r, group, 1 << k))
            return mpp_arena_printf(arena, "%s cannot be split as %s asks: no dimension of it may be, or it is too small",
                                    name, what[k]);
    for (int k = 0; k < 6; k++)
        if (some_split(r, group, PIN_ALL & ~(1 << k)))
            blamed = mpp_arena_printf(arena, "%s%s%s", blamed, *blamed ? " and " : "", what[k]);
    return mpp_arena_printf(arena, "%s cannot be split so that %s all hold", name, *blamed ? blamed : "the pins");
}

const char *mpp_pins_explain_rest(struct mpp_arena *arena, const struct mpp_pin_rules *r, mpp_id t)
{
    return mpp_arena_printf(arena, "%s cannot rest as the pins ask together", r->graph->tensors[t].name);
}
