/* problem.c - the integer program of a stage: its nodes. The values that join them are in problem_value.c. */
#include <assert.h>
#include <string.h>

#include "ir/op.h"
#include "planner/problem_internal.h"

/* ---- facts about the graph ---- */

void mpp_stage_note_uses(struct mpp_arena *arena, const struct mpp_graph *g, struct mpp_stage_uses *out)
{
    out->producer = mpp_arena_array(arena, g->n_tensors, int);
    out->first_use = mpp_arena_array(arena, g->n_tensors + 1, int);
    out->updated_by = mpp_arena_array(arena, g->n_tensors, mpp_id);
    for (mpp_id t = 0; t < g->n_tensors; t++)
        out->producer[t] = out->updated_by[t] = -1;
    for (mpp_id t = 0; t < g->n_tensors; t++)
        if (g->tensors[t].updates >= 0)
            out->updated_by[g->tensors[t].updates] = t;
    for (int i = 0; i < g->n_groups; i++) {
        for (int o = 0; o < g->groups[i].n_out; o++)
            out->producer[g->groups[i].out[o]] = i;
        for (int o = 0; o < g->groups[i].n_in; o++)
            if (g->groups[i].in[o] >= 0)
                out->first_use[g->groups[i].in[o] + 1]++;
    }
    for (mpp_id t = 0; t < g->n_tensors; t++)
        out->first_use[t + 1] += out->first_use[t];
    int *fill = mpp_arena_memdup(arena, out->first_use, sizeof(int) * ((size_t)g->n_tensors + 1));
    out->use = mpp_arena_array(arena, out->first_use[g->n_tensors], int);
    out->use_operand = mpp_arena_array(arena, out->first_use[g->n_tensors], int);
    for (int i = 0; i < g->n_groups; i++)
        for (int o = 0; o < g->groups[i].n_in; o++) {
            mpp_id t = g->groups[i].in[o];
            if (t >= 0) {
                out->use[fill[t]] = i;
                out->use_operand[fill[t]++] = o;
            }
        }
}

static int last_use(const struct mpp_build *b, mpp_id t, int made)
{
    return b->uses.first_use[t + 1] > b->uses.first_use[t] ? b->uses.use[b->uses.first_use[t + 1] - 1] : made;
}

/* ---- classes of what is alike ---- */

int mpp_build_shape(struct mpp_build *b, mpp_id t)
{
    const struct mpp_gtensor *x = &b->g->tensors[t];
    if (b->shape_of[t] >= 0)
        return b->shape_of[t];
    int64_t key[MPP_GRAPH_MAX_DIMS + 2] = {x->dtype, x->n_dims};
    for (int d = 0; d < x->n_dims; d++)
        key[2 + d] = x->dims[d].size;
    bool is_new;
    int id = mpp_memo_add(b->book->shapes, key, sizeof key, &is_new);
    if (is_new) {
        b->book->shape = mpp_arena_grow(b->book->arena, b->book->shape, &b->book->cap_shape, (size_t)id + 1, sizeof(*b->book->shape));
        struct mpp_shape_class *c = mpp_arena_array(b->book->arena, 1, struct mpp_shape_class);
        c->rep = *x;
        c->row = mpp_arena_array(b->book->arena, mpp_reshard_n_states(b->p->env.mesh, x->n_dims), int64_t *);
        b->book->shape[id] = c;
    }
    return b->shape_of[t] = id;
}

int64_t mpp_build_convert(struct mpp_build *b, int shape, int from, int to)
{
    struct mpp_shape_class *c = b->book->shape[shape];
    if (from == to)
        return 0;
    if (!c->row[from]) {
        int n = mpp_reshard_n_states(b->p->env.mesh, c->rep.n_dims);
        c->row[from] = mpp_arena_array(b->book->arena, n, int64_t);
        mpp_reshard_costs_from(&b->p->env, &c->rep, mpp_build_sharding(b, c->rep.n_dims, from), c->row[from]);
    }
    return c->row[from][to];
}

int64_t mpp_build_hidden(const struct mpp_build *b, int64_t cost_ps)
{
    return b->p->env.hidden > 0 && cost_ps < INT64_MAX ? cost_ps - (int64_t)(b->p->env.hidden * (double)cost_ps) : cost_ps;
}

struct mpp_sharding mpp_build_sharding(const struct mpp_build *b, int n_dims, int state)
{
    struct mpp_sharding s = mpp_sharding_whole();
    for (int a = 0; a < b->p->env.mesh->n_axes; a++) {
        s.axis[a] = (int8_t)(state % (n_dims + 2) - 2);
        state /= n_dims + 2;
    }
    return s;
}

static mpp_id operand_of(const struct mpp_group *group, int o)
{
    return o < group->n_in ? group->in[o] : group->out[o - group->n_in];
}

static void key_size(struct mpp_key *key, struct mpp_size s)
{
    mpp_key_int(key, s.size);
    mpp_key_int(key, s.per_batch);
    mpp_key_text(key, s.name);
}

/* All that strategies, prices and pins can see of a group. */
static void group_key(const struct mpp_build *b, const struct mpp_group *group, struct mpp_key *key)
{
    const struct mpp_graph *g = b->g;
    const struct mpp_rule *rule = group->rule;
    mpp_key_int(key, group->phase);
    mpp_key_int(key, b->pins->split_by ? (int64_t)b->pins->split_by[group - g->groups] : 0);
    if (mpp_price_is_receive(g, group)) {
        mpp_key_int(key, b->p->env.first);
        mpp_key_int(key, b->p->env.receives);
    }
    for (int i = 0; i < group->n_ops; i++) {
        double flops = mpp_op_flops(g, &g->ops[group->ops[i]]);
        mpp_key_int(key, g->ops[group->ops[i]].kind);
        mpp_key_add(key, &flops, sizeof flops);
    }
    mpp_key_int(key, rule->n_factors * 2 + rule->linear);
    for (int f = 0; f < rule->n_factors; f++) {
        mpp_key_int(key, rule->factor[f].letter);
        mpp_key_int(key, rule->factor[f].kind * 2 + rule->factor[f].even_only);
        key_size(key, rule->factor[f].size);
    }
    mpp_key_int(key, group->n_in * 64 + group->n_out);
    for (int o = 0; o < group->n_in + group->n_out; o++) {
        const struct mpp_rule_operand *x = &rule->operand[o];
        mpp_id t = operand_of(group, o);
        mpp_key_int(key, x->n_dims);
        for (int d = 0; d < x->n_dims; d++) {
            mpp_key_int(key, x->dim[d].n);
            mpp_key_add(key, x->dim[d].factor, (size_t)x->dim[d].n);
        }
        if (t < 0)
            continue;
        mpp_key_int(key, g->tensors[t].dtype * 8 + g->tensors[t].role);
        mpp_key_int(key, b->pins->facts->never[t] * 2 + b->pins->facts->may_be_partial[t]);
        mpp_key_int(key, b->pins->weight_gradient ? b->pins->weight_gradient[t] : 0);
        mpp_key_int(key, b->pins->matched ? (int64_t)b->pins->matched[t] : 0);
        for (int d = 0; d < g->tensors[t].n_dims; d++)
            key_size(key, g->tensors[t].dims[d]);
    }
}

static struct mpp_group_class *make_group_class(struct mpp_build *b, const struct mpp_group *group)
{
    const struct mpp_graph *g = b->g;
    const struct mpp_mesh *mesh = b->p->env.mesh;
    struct mpp_group_class *c = mpp_arena_array(b->book->arena, 1, struct mpp_group_class);
    c->n_choices = mpp_strategy_list(b->book->arena, g, group, b->pins, &c->split);
    c->n_operands = group->n_in + group->n_out;
    c->cost = mpp_arena_array(b->book->arena, c->n_choices, int64_t);
    c->state = mpp_arena_array(b->book->arena, c->n_operands, int32_t *);
    c->bytes = mpp_arena_array(b->book->arena, c->n_operands, int64_t *);
    int64_t times = mpp_phase_count(g, group->phase), internal;
    for (int k = 0; k < c->n_choices; k++) {
        c->cost[k] = times * mpp_price_group_in(g, &b->p->env, group, c->split[k], &internal);
        c->cost[k] += times * internal;
    }
    for (int o = 0; o < c->n_operands; o++) {
        mpp_id t = operand_of(group, o);
        c->state[o] = mpp_arena_array(b->book->arena, c->n_choices, int32_t);
        c->bytes[o] = mpp_arena_array(b->book->arena, c->n_choices, int64_t);
        for (int k = 0; t >= 0 && k < c->n_choices; k++) {
            struct mpp_sharding s = mpp_split_operand(group->rule, c->split[k], o);
            c->state[o][k] = mpp_reshard_state(mesh, g->tensors[t].n_dims, s);
            c->bytes[o][k] = mpp_sharding_bytes(&g->tensors[t], mesh, s);
        }
    }
    return c;
}

static bool classify_groups(struct mpp_build *b)
{
    struct mpp_key key = {.arena = b->arena};
    for (int i = 0; i < b->g->n_groups; i++) {
        const struct mpp_group *group = &b->g->groups[i];
        bool is_new;
        key.size = 0;
        group_key(b, group, &key);
        int id = mpp_memo_add(b->book->groups, key.bytes, key.size, &is_new);
        if (is_new) {
            b->book->group = mpp_arena_grow(b->book->arena, b->book->group, &b->book->cap_group, (size_t)id + 1, sizeof(*b->book->group));
            b->book->group[id] = make_group_class(b, group);
            if (b->book->group[id]->n_choices == 0) {
                b->reason = mpp_pins_explain(b->arena, b->pins, group);
                return false;
            }
        }
        b->group_class_of[i] = id;
    }
    return true;
}

static int *minus_ones(struct mpp_arena *arena, int n)
{
    int *v = mpp_arena_array(arena, n, int);
    for (int i = 0; i < n; i++)
        v[i] = -1;
    return v;
}

/* ---- nodes of groups ---- */

static int add_node(struct mpp_build *b, struct mpp_stage_node node, const char *name, int cls, const int64_t *cost,
                    int n_usages, struct mpp_solver_usage *usages)
{
    size_t need = (size_t)b->n_nodes + 1;
    b->p->node = mpp_arena_grow(b->arena, b->p->node, &b->cap_nodes, need, sizeof(*b->p->node));
    b->nodes = mpp_arena_grow(b->arena, b->nodes, &b->cap_snodes, need, sizeof(*b->nodes));
    b->class_of_node = mpp_arena_grow(b->arena, b->class_of_node, &b->cap_cls, need, sizeof(*b->class_of_node));
    b->p->node[b->n_nodes] = node;
    b->class_of_node[b->n_nodes] = cls;
    b->nodes[b->n_nodes] = (struct mpp_solver_node){
        .name = name, .n_choices = node.n_choices, .cost = cost, .n_usages = n_usages, .usages = usages};
    return b->n_nodes++;
}

/* Outputs live from their group to their last reader; sums over micro-batches and optimiser state all the step;
 * what an update writes is the parameter's or the state's own memory. */
static int group_usages(struct mpp_build *b, const struct mpp_tie_class *t, const int *groups,
                        struct mpp_solver_usage *out)
{
    int n = 0;
    for (int i = 0; i < t->n_groups; i++) {
        const struct mpp_group *group = &b->g->groups[groups[i]];
        for (int o = 0; o < group->n_in + group->n_out; o++) {
            mpp_id id = operand_of(group, o);
            const struct mpp_gtensor *x = id < 0 ? NULL : &b->g->tensors[id];
            if (!x || x->n_dims == 0)
                continue;
            if (o < group->n_in ? x->role == MPP_ROLE_STATE : x->role == MPP_ROLE_ACCUM)
                out[n++] = (struct mpp_solver_usage){0, b->last_time, t->bytes[i][o], id + 1};
            else if (o >= group->n_in && x->updates < 0)
                out[n++] = (struct mpp_solver_usage){groups[i], last_use(b, id, groups[i]), t->bytes[i][o], id + 1};
        }
    }
    return n;
}

static bool add_group_node(struct mpp_build *b, int n, const int *groups)
{
    int cls = mpp_build_tie(b, n, groups), most = 0;
    const struct mpp_tie_class *t = b->book->tie[cls];
    const char *name = b->g->ops[b->g->groups[groups[0]].ops[0]].name;
    if (t->n_choices == 0) {
        b->reason = mpp_arena_printf(b->arena, "nothing is left of the splits of %s with its gradient or update", name);
        return false;
    }
    for (int i = 0; i < n; i++)
        most += b->g->groups[groups[i]].n_in + b->g->groups[groups[i]].n_out;
    struct mpp_solver_usage *usages = mpp_arena_array(b->arena, most, struct mpp_solver_usage);
    int n_usages = group_usages(b, t, groups, usages);
    struct mpp_stage_node node = {
        .kind = MPP_NODE_GROUPS, .tensor = -1, .n_groups = n, .n_choices = t->n_choices, .split = t->split,
        .groups = mpp_arena_memdup(b->arena, groups, sizeof(int) * (size_t)n),
    };
    int id = add_node(b, node, name, cls, t->cost, n_usages, usages);
    for (int i = 0; i < n; i++) {
        b->node_of_group[groups[i]] = id;
        b->place_in_node[groups[i]] = i;
    }
    return true;
}

static bool add_group_nodes(struct mpp_build *b)
{
    int *leader = mpp_build_leaders(b), *members = mpp_arena_array(b->arena, b->g->n_groups, int);
    int *next = minus_ones(b->arena, b->g->n_groups), *last = minus_ones(b->arena, b->g->n_groups);
    for (int i = 0; i < b->g->n_groups; i++) {
        if (last[leader[i]] >= 0)
            next[last[leader[i]]] = i;
        last[leader[i]] = i;
    }
    for (int i = 0; i < b->g->n_groups; i++) {
        int n = 0;
        for (int at = i; leader[i] == i && at >= 0; at = next[at])
            members[n++] = at;
        if (n > 0 && !add_group_node(b, n, members))
            return false;
    }
    return true;
}

/* ---- nodes of parameters and inputs ---- */

static void add_state(int32_t *list, int *n, int32_t state)
{
    for (int i = 0; i < *n; i++)
        if (list[i] == state)
            return;
    list[(*n)++] = state;
}

static bool has_partial(struct mpp_sharding s)
{
    for (int a = 0; a < MPP_MAX_AXES; a++)
        if (s.axis[a] == MPP_PARTIAL)
            return true;
    return false;
}

/* The shardings in which readers of PHASES want T, in order of first appearance. */
static int wanted_states(struct mpp_build *b, mpp_id t, unsigned phases, int32_t *out, int n)
{
    for (int u = b->uses.first_use[t]; u < b->uses.first_use[t + 1]; u++) {
        int i = b->uses.use[u];
        if (!(phases >> b->g->groups[i].phase & 1))
            continue;
        const struct mpp_tie_class *c = b->book->tie[b->class_of_node[b->node_of_group[i]]];
        for (int k = 0; k < c->n_choices; k++) {
            int32_t state = c->state[b->place_in_node[i]][b->uses.use_operand[u]][k];
            if (!has_partial(mpp_build_sharding(b, b->g->tensors[t].n_dims, state)))
                add_state(out, &n, state);
        }
    }
    return n;
}

/* The group that makes T's new value without having read T, as one that rounds it from a master does; -1. */
static int rounds(const struct mpp_build *b, mpp_id t)
{
    mpp_id made = b->uses.updated_by[t];
    int group = made < 0 ? -1 : b->uses.producer[made];
    for (int o = 0; group >= 0 && o < b->g->groups[group].n_in; o++)
        if (b->g->groups[group].in[o] == t)
            return -1;
    return group;
}

/* The shardings in which the update leaves T. */
static int made_states(struct mpp_build *b, mpp_id t, int32_t *out, int n)
{
    int i = rounds(b, t);
    const struct mpp_tie_class *c = i < 0 ? NULL : b->book->tie[b->class_of_node[b->node_of_group[i]]];
    for (int k = 0; c && k < c->n_choices; k++)
        add_state(out, &n, c->state[b->place_in_node[i]][b->g->groups[i].n_in][k]);
    return n;
}

/* Is G what S becomes by gathering some of its axes? */
static bool is_gathered(struct mpp_sharding s, struct mpp_sharding g)
{
    for (int a = 0; a < MPP_MAX_AXES; a++)
        if (g.axis[a] != s.axis[a] && g.axis[a] != MPP_WHOLE)
            return false;
    return true;
}

static void add_rest(struct mpp_build *b, struct mpp_rest_class *c, mpp_id t, int32_t s, int32_t g)
{
    const struct mpp_gtensor *x = &b->g->tensors[t];
    const struct mpp_mesh *mesh = b->p->env.mesh;
    int k = c->n_choices++, n_states = mpp_reshard_n_states(mesh, x->n_dims);
    c->rest[k] = mpp_build_sharding(b, x->n_dims, s);
    c->gather[k] = mpp_build_sharding(b, x->n_dims, g);
    c->state[k] = s;
    c->source[k] = s == g ? s : n_states * (1 + s) + g;
    c->cost[k] = mpp_build_hidden(b, mpp_build_convert(b, mpp_build_shape(b, t), s, g));
    c->bytes[k] = mpp_sharding_bytes(x, mesh, c->rest[k]);
    if (s != g)
        c->bytes[k] += mpp_sharding_bytes(x, mesh, c->gather[k]);
}

static struct mpp_rest_class *make_rest_class(struct mpp_build *b, mpp_id t)
{
    const unsigned step = 1u << MPP_PHASE_PROLOGUE | 1u << MPP_PHASE_FORWARD | 1u << MPP_PHASE_BACKWARD;
    const struct mpp_gtensor *x = &b->g->tensors[t];
    int n_states = mpp_reshard_n_states(b->p->env.mesh, x->n_dims);
    struct mpp_arena *scratch = mpp_arena_scratch(b->book->arena);
    int32_t *state = mpp_arena_array(scratch, n_states, int32_t);
    int n_step = wanted_states(b, t, step, state, 0), n = wanted_states(b, t, 1u << MPP_PHASE_UPDATE, state, n_step);
    n = made_states(b, t, state, n);
    if (n == 0)
        state[n++] = mpp_reshard_state(b->p->env.mesh, x->n_dims, mpp_sharding_whole());
    struct mpp_rest_class *c = mpp_arena_array(b->book->arena, 1, struct mpp_rest_class);
    size_t most = (size_t)n * ((size_t)n_step + 1);
    c->rest = mpp_arena_array(b->book->arena, most, struct mpp_sharding);
    c->gather = mpp_arena_array(b->book->arena, most, struct mpp_sharding);
    c->cost = mpp_arena_array(b->book->arena, most, int64_t);
    c->bytes = mpp_arena_array(b->book->arena, most, int64_t);
    c->state = mpp_arena_array(b->book->arena, most, int32_t);
    c->source = mpp_arena_array(b->book->arena, most, int32_t);
    for (int i = 0; i < n; i++) {
        struct mpp_sharding s = mpp_build_sharding(b, x->n_dims, state[i]);
        if (!mpp_pins_allow_rest(b->pins, t, s))
            continue;
        add_rest(b, c, t, state[i], state[i]);
        for (int j = 0; j < n_step && x->role == MPP_ROLE_PARAM && mpp_pins_allow_kept(b->pins); j++)
            if (j != i && is_gathered(s, mpp_build_sharding(b, x->n_dims, state[j])))
                add_rest(b, c, t, state[i], state[j]);
    }
    mpp_arena_free(scratch);
    return c;
}

static bool add_tensor_node(struct mpp_build *b, mpp_id t)
{
    const struct mpp_gtensor *x = &b->g->tensors[t];
    struct mpp_key key = {.arena = b->arena};
    bool is_new;
    mpp_key_int(&key, x->role);
    mpp_key_int(&key, mpp_build_shape(b, t));
    mpp_key_int(&key, b->pins->matched ? (int64_t)b->pins->matched[t] : 0);
    for (int d = 0; d < x->n_dims; d++)
        mpp_key_text(&key, x->dims[d].name);
    for (int u = b->uses.first_use[t]; u < b->uses.first_use[t + 1]; u++) {
        mpp_key_int(&key, b->class_of_node[b->node_of_group[b->uses.use[u]]]);
        mpp_key_int(&key, b->place_in_node[b->uses.use[u]] * 64 + b->uses.use_operand[u]);
    }
    if (rounds(b, t) >= 0) {
        mpp_key_int(&key, b->class_of_node[b->node_of_group[rounds(b, t)]]);
        mpp_key_int(&key, b->place_in_node[rounds(b, t)]);
    }
    int id = mpp_memo_add(b->book->rests, key.bytes, key.size, &is_new);
    if (is_new) {
        b->book->rest = mpp_arena_grow(b->book->arena, b->book->rest, &b->book->cap_rest, (size_t)id + 1, sizeof(*b->book->rest));
        b->book->rest[id] = make_rest_class(b, t);
    }
    const struct mpp_rest_class *c = b->book->rest[id];
    if (c->n_choices == 0) {
        b->reason = mpp_pins_explain_rest(b->arena, b->pins, t);
        return false;
    }
    struct mpp_solver_usage *usage = mpp_arena_array(b->arena, 1, struct mpp_solver_usage);
    *usage = (struct mpp_solver_usage){0, b->last_time, c->bytes, t + 1};
    struct mpp_stage_node node = {
        .kind = x->role == MPP_ROLE_PARAM ? MPP_NODE_PARAM : MPP_NODE_INPUT, .tensor = t, .n_choices = c->n_choices,
        .rest = c->rest, .gather = c->gather,
    };
    b->node_of_tensor[t] = add_node(b, node, x->name, id, c->cost, 1, usage);
    return true;
}

/* ---- the whole ---- */

struct mpp_stage_book *mpp_stage_book_new(struct mpp_arena *arena)
{
    struct mpp_stage_book *k = mpp_arena_array(arena, 1, struct mpp_stage_book);
    struct mpp_memo **memos[] = {&k->shapes, &k->groups, &k->ties, &k->rests, &k->values};
    k->arena = arena;
    for (size_t i = 0; i < sizeof memos / sizeof memos[0]; i++)
        *memos[i] = mpp_memo_new(arena);
    return k;
}

static struct mpp_build *build_new(struct mpp_arena *arena, struct mpp_stage_book *book, const struct mpp_cluster *cluster,
                                   const struct mpp_pin_rules *pins, struct mpp_stage_site site)
{
    const struct mpp_graph *g = pins->graph;
    struct mpp_build *b = mpp_arena_array(arena, 1, struct mpp_build);
    b->arena = arena;
    b->book = book;
    b->g = g;
    b->pins = pins;
    b->p = mpp_arena_array(arena, 1, struct mpp_stage_problem);
    b->p->graph = g;
    b->last_time = g->n_groups > 0 ? g->n_groups - 1 : 0;
    mpp_reshard_env_init(cluster, &pins->c.mesh, site.first_device, &b->p->env);
    b->p->env.receives = site.receives;
    b->p->env.hidden = mpp_cost_goes_beside(cluster, cluster->n_nodes) ? site.hidden : 0;
    mpp_stage_note_uses(arena, g, &b->uses);
    b->shape_of = minus_ones(arena, g->n_tensors);
    b->node_of_tensor = minus_ones(arena, g->n_tensors);
    b->group_class_of = minus_ones(arena, g->n_groups);
    b->node_of_group = minus_ones(arena, g->n_groups);
    b->place_in_node = minus_ones(arena, g->n_groups);
    return b;
}

bool mpp_stage_problem_build(struct mpp_arena *arena, const struct mpp_cluster *cluster,
                             const struct mpp_pin_rules *pins, struct mpp_stage_site site, int64_t capacity_bytes,
                             struct mpp_stage_problem **out, const char **out_reason)
{
    return mpp_stage_problem_build_from(arena, mpp_stage_book_new(arena), cluster, pins, site, capacity_bytes, out, out_reason);
}

bool mpp_stage_problem_build_from(struct mpp_arena *arena, struct mpp_stage_book *book, const struct mpp_cluster *cluster,
                                  const struct mpp_pin_rules *pins, struct mpp_stage_site site, int64_t capacity_bytes,
                                  struct mpp_stage_problem **out, const char **out_reason)
{
    struct mpp_build *b = build_new(arena, book, cluster, pins, site);
    bool ok = classify_groups(b);
    ok = ok && add_group_nodes(b);
    for (mpp_id t = 0; ok && t < b->g->n_tensors; t++)
        if (b->g->tensors[t].role == MPP_ROLE_PARAM || b->g->tensors[t].role == MPP_ROLE_INPUT)
            ok = add_tensor_node(b, t);
    *out_reason = b->reason;
    if (!ok)
        return false;
    mpp_build_values(b);
    b->p->solver = (struct mpp_solver_problem){b->n_nodes, b->n_vals, b->nodes, b->vals, capacity_bytes, b->arena};
    b->p->value_tensor = b->value_tensor;
    *out = b->p;
    return true;
}

void mpp_stage_decide(const struct mpp_stage_problem *p, const int32_t *choice, struct mpp_stage *out)
{
    for (int32_t i = 0; i < p->solver.n_nodes; i++) {
        const struct mpp_stage_node *node = &p->node[i];
        int k = choice[i];
        for (int j = 0; j < node->n_groups; j++)
            out->split[node->groups[j]] = node->split[j][k];
        if (node->kind == MPP_NODE_GROUPS)
            continue;
        out->resting[node->tensor] = node->rest[k];
        out->kept[node->tensor] = !mpp_sharding_equal(node->rest[k], node->gather[k]);
    }
}

/* ---- for people ---- */

void mpp_stage_bytes_at(const struct mpp_stage_problem *p, const int32_t *choice, int32_t time, struct mpp_memory *out)
{
    const struct mpp_graph *g = p->graph;
    const struct mpp_solver_problem *s = &p->solver;
    *out = (struct mpp_memory){0};
    for (int32_t i = 0; i < s->n_nodes; i++)
        for (int32_t u = 0; u < s->nodes[i].n_usages; u++) {
            const struct mpp_solver_usage *use = &s->nodes[i].usages[u];
            if (time < use->first || time > use->last)
                continue;
            int64_t *sum = p->node[i].kind == MPP_NODE_PARAM ? &out->parameters
                         : p->node[i].kind == MPP_NODE_INPUT ? &out->inputs : &out->activations;
            if (p->node[i].kind == MPP_NODE_GROUPS && use->first == 0 && use->last == g->n_groups - 1)
                sum = g->groups[p->node[i].groups[0]].phase == MPP_PHASE_UPDATE ? &out->optimizer : &out->gradients;
            *sum += use->bytes[choice[i]];
        }
    for (int32_t v = 0; v < s->n_values; v++) {
        const struct mpp_solver_value *value = &s->values[v];
        int32_t made = value->out[choice[value->producer]];
        if (!value->copy_bytes || time < value->copy_first || time > value->copy_last)
            continue;
        for (int32_t c = 0; c < value->n_consumers; c++) {
            int32_t want = value->in[c][choice[value->consumers[c]]];
            bool seen = want == made;
            for (int32_t e = 0; e < c && !seen; e++)
                seen = value->in[e][choice[value->consumers[e]]] == want;
            if (!seen)
                *(g->tensors[p->value_tensor[v]].role == MPP_ROLE_PARAM ? &out->parameters : &out->activations) +=
                    value->copy_bytes[want];
        }
    }
    out->arena_bytes = out->parameters + out->gradients + out->optimizer + out->activations + out->inputs;
}

static const char *split_text(struct mpp_arena *arena, const struct mpp_group *group, const struct mpp_mesh *mesh,
                              struct mpp_split split)
{
    const char *text = "";
    for (int a = 0; a < mesh->n_axes; a++) {
        int f = split.axis[a];
        if (f == MPP_WHOLE)
            continue;
        const char *name = f == MPP_PARTIAL ? "partial" : group->rule->factor[f].size.name;
        text = mpp_arena_printf(arena, "%s%s%s/%s", text, *text ? " " : "", name ? name : "?", mesh->name[a]);
    }
    return *text ? text : "whole";
}

void mpp_stage_name_choices(struct mpp_arena *arena, struct mpp_stage_problem *p)
{
    struct mpp_solver_node *nodes = mpp_arena_memdup(arena, p->solver.nodes, sizeof *nodes * (size_t)p->solver.n_nodes);
    for (int32_t i = 0; i < p->solver.n_nodes; i++) {
        const struct mpp_stage_node *node = &p->node[i];
        const char **names = mpp_arena_array(arena, node->n_choices, const char *);
        for (int k = 0; k < node->n_choices; k++) {
            if (node->kind == MPP_NODE_GROUPS) {
                int last = node->n_groups - 1;
                names[k] = split_text(arena, &p->graph->groups[node->groups[last]], p->env.mesh, node->split[last][k]);
                continue;
            }
            const struct mpp_gtensor *t = &p->graph->tensors[node->tensor];
            names[k] = mpp_sharding_text(arena, t, p->env.mesh, node->rest[k]);
            if (!mpp_sharding_equal(node->rest[k], node->gather[k]))
                names[k] = mpp_arena_printf(arena, "%s kept as %s", names[k],
                                            mpp_sharding_text(arena, t, p->env.mesh, node->gather[k]));
        }
        nodes[i].choice_names = names;
    }
    p->solver.nodes = nodes;
}
