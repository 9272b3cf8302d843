/* problem_value.c - the values of a stage's integer program: who makes a tensor, who reads it in one phase, and
 * what it costs to bring it from any made form into any wanted one. */
#include <assert.h>
#include <string.h>

#include "planner/problem_internal.h"

/* A value before its forms are numbered. */
struct draft {
    mpp_id tensor;
    int shape;
    int64_t times;                /* how often per step copies are made */
    int producer, n_made;
    const int32_t *made;          /* [n_made] source per choice of the producer (see mpp_rest_class.source) */
    int n_readers, cap;
    int *reader, *n_wants;        /* node, its choices */
    const int32_t **wants;
    int first, last;              /* groups */
    bool free_bytes;              /* copies take no memory of their own */
    bool beside;                  /* they are sums and gathers that can go on beside kernels */
};

static int number_of(int32_t *list, int *n, int32_t x)
{
    for (int i = 0; i < *n; i++)
        if (list[i] == x)
            return i;
    list[*n] = x;
    return (*n)++;
}

/* From source FROM (a state, or a kept form and the resting one behind it) to state TO. */
static int64_t convert_cost(struct mpp_build *b, const struct draft *d, int32_t from, int32_t to)
{
    int n_states = mpp_reshard_n_states(b->p->env.mesh, b->book->shape[d->shape]->rep.n_dims);
    if (to >= n_states)
        return MPP_SOLVER_FORBIDDEN;
    if (from >= n_states)
        return to == from % n_states || to == from / n_states - 1 ? 0 : MPP_SOLVER_FORBIDDEN;
    int64_t once = mpp_build_convert(b, d->shape, from, to);
    once = d->beside ? mpp_build_hidden(b, once) : once;
    return once > INT64_MAX / 4 / d->times ? MPP_SOLVER_FORBIDDEN : once * d->times;
}

/* Is TO what an all-reduce of FROM leaves, in its own memory? */
static bool reduces_in_place(struct mpp_sharding from, struct mpp_sharding to)
{
    bool any = false;
    for (int a = 0; a < MPP_MAX_AXES; a++) {
        bool partial = from.axis[a] == MPP_PARTIAL;
        any = any || partial;
        if (to.axis[a] != (partial ? MPP_WHOLE : from.axis[a]))
            return false;
    }
    return any;
}

static void fill_bytes(struct mpp_build *b, const struct draft *d, const int32_t *form, struct mpp_value_class *c)
{
    const struct mpp_gtensor *x = &b->g->tensors[d->tensor];
    int n_states = mpp_reshard_n_states(b->p->env.mesh, x->n_dims);
    if (d->free_bytes || x->n_dims == 0)
        return;
    c->copy_bytes = mpp_arena_array(b->book->arena, c->n_forms, int64_t);
    for (int t = 0; t < c->n_forms; t++) {
        if (form[t] >= n_states)
            continue;
        struct mpp_sharding s = mpp_build_sharding(b, x->n_dims, form[t]);
        bool in_place = false;
        for (int k = 0; x->role == MPP_ROLE_ACCUM && k < d->n_made; k++)
            in_place = in_place || reduces_in_place(mpp_build_sharding(b, x->n_dims, d->made[k]), s);
        c->copy_bytes[t] = in_place ? 0 : mpp_sharding_bytes(x, b->p->env.mesh, s);
    }
}

static struct mpp_value_class *make_class(struct mpp_build *b, const struct draft *d)
{
    struct mpp_value_class *c = mpp_arena_array(b->book->arena, 1, struct mpp_value_class);
    size_t most = (size_t)d->n_made;
    for (int i = 0; i < d->n_readers; i++)
        most += (size_t)d->n_wants[i];
    struct mpp_arena *scratch = mpp_arena_scratch(b->book->arena);
    int32_t *form = mpp_arena_array(scratch, most, int32_t);
    c->out = mpp_arena_array(b->book->arena, d->n_made, int32_t);
    for (int k = 0; k < d->n_made; k++)
        c->out[k] = number_of(form, &c->n_forms, d->made[k]);
    int n_made_forms = c->n_forms;
    c->in = mpp_arena_array(b->book->arena, d->n_readers, int32_t *);
    for (int i = 0; i < d->n_readers; i++) {
        c->in[i] = mpp_arena_array(b->book->arena, d->n_wants[i], int32_t);
        for (int k = 0; k < d->n_wants[i]; k++)
            c->in[i][k] = number_of(form, &c->n_forms, d->wants[i][k]);
    }
    c->convert = mpp_arena_array(b->book->arena, (size_t)c->n_forms * (size_t)c->n_forms, int64_t);
    for (int s = 0; s < c->n_forms; s++)
        for (int t = 0; t < c->n_forms; t++)
            if (s != t)
                c->convert[s * c->n_forms + t] =
                    s < n_made_forms ? convert_cost(b, d, form[s], form[t]) : MPP_SOLVER_FORBIDDEN;
    fill_bytes(b, d, form, c);
    mpp_arena_free(scratch);
    return c;
}

static void finish_value(struct mpp_build *b, struct draft *d)
{
    struct mpp_key key = {.arena = b->arena};
    bool is_new;
    mpp_key_int(&key, d->shape);
    mpp_key_int(&key, d->times * 32 + b->g->tensors[d->tensor].role * 4 + d->free_bytes * 2 + d->beside);
    mpp_key_add(&key, &d->made, sizeof d->made);
    for (int i = 0; i < d->n_readers; i++)
        mpp_key_add(&key, &d->wants[i], sizeof d->wants[i]);
    int id = mpp_memo_add(b->book->values, key.bytes, key.size, &is_new);
    if (is_new) {
        b->book->value = mpp_arena_grow(b->book->arena, b->book->value, &b->book->cap_value, (size_t)id + 1, sizeof(*b->book->value));
        b->book->value[id] = make_class(b, d);
    }
    const struct mpp_value_class *c = b->book->value[id];
    if (c->n_forms == 1)
        return;
    size_t need = (size_t)b->n_vals + 1;
    b->vals = mpp_arena_grow(b->arena, b->vals, &b->cap_vals, need, sizeof(*b->vals));
    b->value_tensor = mpp_arena_grow(b->arena, b->value_tensor, &b->cap_vt, need, sizeof(*b->value_tensor));
    b->value_tensor[b->n_vals] = d->tensor;
    b->vals[b->n_vals++] = (struct mpp_solver_value){
        .name = b->g->tensors[d->tensor].name, .n_forms = c->n_forms, .producer = d->producer, .out = c->out,
        .n_consumers = d->n_readers, .in = (const int32_t *const *)c->in, .convert = c->convert,
        .copy_bytes = c->copy_bytes, .copy_first = d->first, .copy_last = d->last,
        .consumers = mpp_arena_memdup(b->arena, d->reader, sizeof(int) * (size_t)d->n_readers),
    };
}

static void add_reader(struct draft *d, int node, const int32_t *wants, int n)
{
    for (int i = 0; i < d->n_readers; i++)
        if (d->reader[i] == node) {
            assert(memcmp(d->wants[i], wants, sizeof *wants * (size_t)n) == 0);
            return;
        }
    assert(d->n_readers < d->cap);
    d->reader[d->n_readers] = node;
    d->wants[d->n_readers] = wants;
    d->n_wants[d->n_readers++] = n;
}

static const int32_t *states_of(const struct mpp_build *b, int group, int operand, int *out_n)
{
    const struct mpp_tie_class *c = b->book->tie[b->class_of_node[b->node_of_group[group]]];
    *out_n = c->n_choices;
    return c->state[b->place_in_node[group]][operand];
}

/* A gradient's sum begins in the backward pass, the gather of a parameter before it is needed (codegen/lower_copy.c, prefetch.c). */
static bool can_hide(const struct mpp_gtensor *t, enum mpp_phase phase)
{
    if (t->role == MPP_ROLE_ACCUM)
        return t->param >= 0 && phase == MPP_PHASE_UPDATE;
    return t->role == MPP_ROLE_PARAM && (phase == MPP_PHASE_FORWARD || phase == MPP_PHASE_BACKWARD);
}

/* The value of tensor T for its readers of PHASE. */
static void add_phase(struct mpp_build *b, struct draft *d, mpp_id t, enum mpp_phase phase)
{
    d->n_readers = 0;
    for (int u = b->uses.first_use[t]; u < b->uses.first_use[t + 1]; u++) {
        int i = b->uses.use[u], n;
        if (b->g->groups[i].phase != phase)
            continue;
        const int32_t *wants = states_of(b, i, b->uses.use_operand[u], &n);
        if (b->node_of_group[i] == d->producer)
            continue;             /* tied to read it as it is made */
        if (d->n_readers == 0)
            d->first = i;
        d->last = i;
        add_reader(d, b->node_of_group[i], wants, n);
    }
    d->times = mpp_phase_count(b->g, phase);
    d->beside = can_hide(&b->g->tensors[t], phase);
    if (d->n_readers > 0)
        finish_value(b, d);
}

/* A parameter's new value comes back to where the parameter rests. */
static void add_store(struct mpp_build *b, struct draft *d, mpp_id param)
{
    int node = b->node_of_tensor[param];
    const struct mpp_rest_class *c = b->book->rest[b->class_of_node[node]];
    d->n_readers = 0;
    d->times = 1;
    d->beside = false;
    d->first = d->last = b->last_time;
    d->free_bytes = true;
    add_reader(d, node, c->state, c->n_choices);
    finish_value(b, d);
    d->free_bytes = false;
}

void mpp_build_values(struct mpp_build *b)
{
    const struct mpp_graph *g = b->g;
    int most = 1;
    for (mpp_id t = 0; t < g->n_tensors; t++)
        if (b->uses.first_use[t + 1] - b->uses.first_use[t] > most)
            most = b->uses.first_use[t + 1] - b->uses.first_use[t];
    struct draft d = {.cap = most};
    d.reader = mpp_arena_array(b->arena, most, int);
    d.n_wants = mpp_arena_array(b->arena, most, int);
    d.wants = mpp_arena_array(b->arena, most, const int32_t *);
    for (mpp_id t = 0; t < g->n_tensors; t++) {
        const struct mpp_gtensor *x = &g->tensors[t];
        const struct mpp_rest_class *rest = NULL;
        int made = b->uses.producer[t];
        if (b->node_of_tensor[t] >= 0) {
            d.producer = b->node_of_tensor[t];
            rest = b->book->rest[b->class_of_node[d.producer]];
            d.n_made = rest->n_choices;
        } else if (made >= 0) {
            int out = 0;
            while (g->groups[made].out[out] != t)
                out++;
            d.producer = b->node_of_group[made];
            d.made = states_of(b, made, g->groups[made].n_in + out, &d.n_made);
        } else {
            continue;             /* optimiser state rests as its update wants it */
        }
        d.tensor = t;
        d.shape = mpp_build_shape(b, t);
        for (int phase = MPP_PHASE_PROLOGUE; phase <= MPP_PHASE_UPDATE; phase++) {
            if (rest)
                d.made = phase == MPP_PHASE_UPDATE ? rest->state : rest->source;
            add_phase(b, &d, t, (enum mpp_phase)phase);
        }
        if (!rest && x->updates >= 0 && b->node_of_tensor[x->updates] >= 0)
            add_store(b, &d, x->updates);
    }
}
