/* pairwise_form.c - a stage's integer program in the solver's form: what is alive as nodes, copies as nodes of their own. */
#include "planner/pairwise_form.h"

#include <string.h>

enum { NATIVE = -1, MADE = -2 };  /* else: the earlier consumer whose copy it is */

/* A node of a value's consumer: the form it reads and how it got it. */
struct copies {
    int32_t node, n;              /* in the form; states */
    int32_t *form, *how;          /* [n] */
};

struct build {
    const struct mpp_solver *s;
    struct mpp_pairwise_form *f;
    struct mpp_arena *arena, *scratch;
    struct mpp_pairwise_node *nodes;
    struct mpp_pairwise_edge *edges;
    size_t node_cap, edge_cap, value_cap, consumer_cap;
    struct mpp_solver_index *tables; /* equal ones are stored once */
    uint8_t *made, *wanted;       /* [most forms] */
};

/* ---- nodes ---------------------------------------------------------------------------------------------- */

static int32_t new_node(struct build *b, struct mpp_pairwise_node node)
{
    size_t n = (size_t)b->f->problem.n_nodes;
    b->nodes = mpp_arena_grow(b->arena, b->nodes, &b->node_cap, n + 1, sizeof *b->nodes);
    b->nodes[n] = node;
    return b->f->problem.n_nodes++;
}

static const int64_t *table(struct build *b, const int64_t *x, int64_t n)
{
    return mpp_solver_index_key(b->tables, mpp_solver_index_add(b->tables, x, (size_t)n * sizeof *x, true, NULL));
}

static void add_stage_node(struct build *b, int32_t i)
{
    const struct mpp_solver *s = b->s;
    const struct mpp_solver_node *from = &s->p->nodes[i];
    struct mpp_pairwise_node to = {0};
    struct mpp_pairwise_usage *usage = mpp_arena_array(b->arena, from->n_usages, struct mpp_pairwise_usage);
    struct mpp_arena *scratch = mpp_arena_scratch(b->scratch);
    int64_t *x = mpp_arena_array(scratch, from->n_choices, int64_t);
    int32_t *alive = mpp_arena_array(b->arena, from->n_choices, int32_t);
    for (int32_t k = 0; k < from->n_choices; k++)
        if (s->alive[s->choice_first[i] + k]) {
            x[to.n_choices] = from->cost[k];
            alive[to.n_choices++] = k;
        }
    to.cost = table(b, x, to.n_choices);
    for (int32_t u = 0; u < from->n_usages; u++) {
        struct mpp_solver_span span = s->usage_span[s->usage_first[i] + u];
        if (span.lo >= span.hi)
            continue;
        for (int32_t k = 0; k < to.n_choices; k++)
            x[k] = from->usages[u].bytes[alive[k]];
        usage[to.n_usages++] = (struct mpp_pairwise_usage){span.lo, span.hi, table(b, x, to.n_choices)};
    }
    to.usages = usage;
    b->f->alive[i] = alive;
    (void)new_node(b, to);
    mpp_arena_free(scratch);
}

/* ---- edges ---------------------------------------------------------------------------------------------- */

static void add_edge(struct build *b, int32_t from, int32_t to, const int64_t *cost)
{
    size_t n = (size_t)b->f->problem.n_edges++;
    b->edges = mpp_arena_grow(b->arena, b->edges, &b->edge_cap, n + 1, sizeof *b->edges);
    int64_t cells = (int64_t)b->nodes[from].n_choices * b->nodes[to].n_choices;
    b->edges[n] = (struct mpp_pairwise_edge){from, to, table(b, cost, cells)};
}

/* From form MADE to form T for consumer C, as far as that is not ruled out. */
static int64_t convert(const struct build *b, int32_t value, int32_t c, int32_t made, int32_t t)
{
    const struct mpp_solver_value *v = &b->s->p->values[value];
    int64_t at = (int64_t)made * v->n_forms + t;
    const uint8_t *pair = b->s->pair ? b->s->pair[b->s->consumer_first[value] + c] : NULL;
    if (pair && !(pair[at / 8] >> (at % 8) & 1))
        return MPP_PAIRWISE_FORBIDDEN;
    int64_t cost = made == t ? 0 : v->convert[at];
    return cost < MPP_SOLVER_INF ? cost : MPP_PAIRWISE_FORBIDDEN;
}

static int32_t form_of(const struct build *b, int32_t value, int32_t slot, int32_t choice)
{
    const struct mpp_solver_value *v = &b->s->p->values[value];
    int32_t node = slot < 0 ? v->producer : v->consumers[slot];
    return mpp_solver_form(b->s, value, slot, b->f->alive[node][choice]);
}

static void add_direct_edge(struct build *b, int32_t value)
{
    const struct mpp_solver_value *v = &b->s->p->values[value];
    int32_t np = b->nodes[v->producer].n_choices, nc = b->nodes[v->consumers[0]].n_choices;
    struct mpp_arena *scratch = mpp_arena_scratch(b->scratch);
    int64_t *cost = mpp_arena_array(scratch, (int64_t)np * nc, int64_t);
    for (int32_t k = 0; k < np; k++)
        for (int32_t l = 0; l < nc; l++)
            cost[(int64_t)k * nc + l] = convert(b, value, 0, form_of(b, value, -1, k), form_of(b, value, 0, l));
    add_edge(b, v->producer, v->consumers[0], cost);
    mpp_arena_free(scratch);
}

/* ---- copies --------------------------------------------------------------------------------------------- */

static void note_forms(const struct build *b, int32_t value, int32_t slot, uint8_t *mark)
{
    const struct mpp_solver_value *v = &b->s->p->values[value];
    memset(mark, 0, (size_t)v->n_forms);
    for (int32_t k = 0; k < b->nodes[slot < 0 ? v->producer : v->consumers[slot]].n_choices; k++)
        mark[form_of(b, value, slot, k)] = 1;
}

/* May consumer C have a copy in form T? b->made says what forms the producer may make. */
static bool can_make(const struct build *b, int32_t value, int32_t c, int32_t t)
{
    for (int32_t made = 0; made < b->s->p->values[value].n_forms; made++)
        if (b->made[made] && made != t && convert(b, value, c, made, t) < MPP_PAIRWISE_FORBIDDEN)
            return true;
    return false;
}

static bool has_state(const struct copies *x, int32_t form, int32_t how)
{
    for (int32_t i = 0; i < x->n; i++)
        if (x->form[i] == form && x->how[i] == how)
            return true;
    return false;
}

static void add_state(struct copies *x, int32_t form, int32_t how)
{
    x->form[x->n] = form;
    x->how[x->n++] = how;
}

/* The states of consumer C's node; BEFORE are those of the consumers before it. */
static void list_states(struct build *b, int32_t value, int32_t c, const struct copies *before, struct copies *out)
{
    int32_t n_forms = b->s->p->values[value].n_forms;
    note_forms(b, value, c, b->wanted);
    *out = (struct copies){.node = -1};
    out->form = mpp_arena_array(b->scratch, (int64_t)n_forms * (c + 2), int32_t);
    out->how = mpp_arena_array(b->scratch, (int64_t)n_forms * (c + 2), int32_t);
    for (int32_t t = 0; t < n_forms; t++) {
        if (!b->wanted[t])
            continue;
        if (b->made[t] && convert(b, value, c, t, t) < MPP_PAIRWISE_FORBIDDEN)
            add_state(out, t, NATIVE);
        if (can_make(b, value, c, t))
            add_state(out, t, MADE);
        for (int32_t d = 0; d < c; d++)
            if (has_state(&before[d], t, MADE))
                add_state(out, t, d);
    }
    if (out->n == 0)
        add_state(out, 0, NATIVE); /* no pair of forms is left: every edge of the node forbids all */
}

static void add_copies_node(struct build *b, int32_t value, int32_t c, struct copies *x)
{
    const struct mpp_solver_value *v = &b->s->p->values[value];
    struct mpp_solver_span span = b->s->copy_span[value];
    struct mpp_pairwise_node node = {.n_choices = x->n};
    struct mpp_arena *scratch = mpp_arena_scratch(b->scratch);
    int64_t *bytes = mpp_arena_array(scratch, x->n, int64_t), any = 0;
    node.cost = table(b, bytes, x->n);
    for (int32_t i = 0; i < x->n; i++) {
        bytes[i] = x->how[i] == MADE && v->copy_bytes ? v->copy_bytes[x->form[i]] : 0;
        any |= bytes[i];
    }
    if (any && span.lo < span.hi) {
        struct mpp_pairwise_usage *usage = mpp_arena_array(b->arena, 1, struct mpp_pairwise_usage);
        *usage = (struct mpp_pairwise_usage){span.lo, span.hi, table(b, bytes, x->n)};
        node.n_usages = 1;
        node.usages = usage;
    }
    mpp_arena_free(scratch);
    x->node = new_node(b, node);
    size_t n = (size_t)(x->node - b->s->p->n_nodes);
    b->f->value = mpp_arena_grow(b->arena, b->f->value, &b->value_cap, n + 1, sizeof *b->f->value);
    b->f->consumer = mpp_arena_grow(b->arena, b->f->consumer, &b->consumer_cap, n + 1, sizeof *b->f->consumer);
    b->f->value[n] = value;
    b->f->consumer[n] = c;
}

static int64_t made_so(const struct build *b, int32_t value, int32_t c, int32_t made, const struct copies *x, int32_t i)
{
    int32_t t = x->form[i];
    int64_t cost = convert(b, value, c, made, t);
    if (x->how[i] == NATIVE)
        return made == t ? cost : MPP_PAIRWISE_FORBIDDEN;
    if (made == t || cost >= MPP_PAIRWISE_FORBIDDEN)
        return MPP_PAIRWISE_FORBIDDEN;
    return x->how[i] == MADE ? cost : 0;
}

/* Ties the node to the producer, to its consumer and to the nodes of the consumers before. */
static void tie(struct build *b, int32_t value, int32_t c, const struct copies *all)
{
    const struct mpp_solver_value *v = &b->s->p->values[value];
    const struct copies *x = &all[c];
    int32_t most = b->nodes[v->producer].n_choices;
    most = b->nodes[v->consumers[c]].n_choices > most ? b->nodes[v->consumers[c]].n_choices : most;
    for (int32_t d = 0; d < c; d++)
        most = all[d].n > most ? all[d].n : most;
    struct mpp_arena *scratch = mpp_arena_scratch(b->scratch);
    int64_t *cost = mpp_arena_array(scratch, (int64_t)most * x->n, int64_t);
    for (int32_t k = 0; k < b->nodes[v->producer].n_choices; k++)
        for (int32_t i = 0; i < x->n; i++)
            cost[(int64_t)k * x->n + i] = made_so(b, value, c, form_of(b, value, -1, k), x, i);
    add_edge(b, v->producer, x->node, cost);
    for (int32_t k = 0; k < b->nodes[v->consumers[c]].n_choices; k++)
        for (int32_t i = 0; i < x->n; i++)
            cost[(int64_t)k * x->n + i] = form_of(b, value, c, k) == x->form[i] ? 0 : MPP_PAIRWISE_FORBIDDEN;
    add_edge(b, v->consumers[c], x->node, cost);
    for (int32_t d = 0; d < c; d++) {
        bool any = false;
        for (int32_t j = 0; j < all[d].n; j++)
            for (int32_t i = 0; i < x->n; i++) {
                bool wrong = x->how[i] == d && !(all[d].form[j] == x->form[i] && all[d].how[j] == MADE);
                cost[(int64_t)j * x->n + i] = wrong ? MPP_PAIRWISE_FORBIDDEN : 0;
                any |= wrong;
            }
        if (any)
            add_edge(b, all[d].node, x->node, cost);
    }
    mpp_arena_free(scratch);
}

static void add_value(struct build *b, int32_t value)
{
    const struct mpp_solver_value *v = &b->s->p->values[value];
    struct mpp_solver_span span = b->s->copy_span[value];
    if (v->n_consumers == 1 && (span.lo >= span.hi || !v->copy_bytes)) {
        add_direct_edge(b, value);
        return;
    }
    struct mpp_arena *above = b->scratch;
    b->scratch = mpp_arena_scratch(above);
    struct copies *all = mpp_arena_array(b->scratch, v->n_consumers, struct copies);
    note_forms(b, value, -1, b->made);
    bool copied = false;
    for (int32_t c = 0; c < v->n_consumers; c++) {
        list_states(b, value, c, all, &all[c]);
        for (int32_t i = 0; i < all[c].n; i++)
            copied |= all[c].how[i] != NATIVE;
    }
    if (v->n_consumers == 1 && !copied) {
        add_direct_edge(b, value);
    } else {
        for (int32_t c = 0; c < v->n_consumers; c++) {
            add_copies_node(b, value, c, &all[c]);
            tie(b, value, c, all);
        }
    }
    mpp_arena_free(b->scratch);
    b->scratch = above;
}

/* ---- the whole ------------------------------------------------------------------------------------------- */

struct mpp_pairwise_form *mpp_pairwise_form_new(const struct mpp_solver *s, struct mpp_arena *arena)
{
    int32_t n_forms = 1;
    struct mpp_pairwise_form *f = mpp_arena_array(arena, 1, struct mpp_pairwise_form);
    struct build b = {.s = s, .f = f, .arena = arena, .scratch = mpp_arena_scratch(arena)};
    f->s = s;
    f->alive = mpp_arena_array(arena, s->p->n_nodes, int32_t *);
    f->problem.capacity = s->p->capacity_bytes;
    b.tables = mpp_solver_index_new(arena);
    for (int32_t v = 0; v < s->p->n_values; v++)
        n_forms = s->p->values[v].n_forms > n_forms ? s->p->values[v].n_forms : n_forms;
    b.made = mpp_arena_array(b.scratch, n_forms, uint8_t);
    b.wanted = mpp_arena_array(b.scratch, n_forms, uint8_t);
    for (int32_t i = 0; i < s->p->n_nodes; i++)
        add_stage_node(&b, i);
    for (int32_t v = 0; v < s->p->n_values; v++)
        add_value(&b, v);
    mpp_arena_free(b.scratch);
    f->problem.nodes = b.nodes;
    f->problem.edges = b.edges;
    return f;
}

void mpp_pairwise_form_choice(const struct mpp_pairwise_form *f, const int32_t *answer, int32_t *out_choice)
{
    for (int32_t i = 0; i < f->s->p->n_nodes; i++)
        out_choice[i] = f->alive[i][answer[i]];
}
