/* solver_plan.c - the problem as factors over variables, and a good order to eliminate them.
 *
 * Non-serial dynamic programming (Bertele and Brioschi, 1972): eliminating a variable joins the factors
 * that read it and leaves a table over its neighbours. The order is greedy: the smallest join first. */
#include <stdlib.h>
#include <string.h>

#include "planner/solver_internal.h"

/* The largest join of a mini-bucket. */
static const double MINI_JOIN = 65536;

/* ---- variables and factors ---------------------------------------------------------------- */

struct builder {
    struct mpp_solver *s;
    struct mpp_solver_plan *plan;
    size_t var_cap, factor_cap, key_cap, key_len;
    struct mpp_solver_index *shapes, *patterns;
    char *key;
    size_t count_cap;
    int32_t *pattern_count;
    int32_t *form_mark, stamp;    /* [most forms] */
    struct mpp_arena *scratch;
};

static int32_t n_classes(const struct mpp_solver_plan *plan, int32_t node)
{
    return plan->classes.first[node + 1] - plan->classes.first[node];
}

static int32_t class_form(const struct builder *b, int32_t value, int32_t slot, int32_t node, int32_t cls)
{
    return mpp_solver_form(b->s, value, slot, b->plan->classes.member[b->plan->classes.first[node] + cls]);
}

static int32_t add_var(struct builder *b, int32_t node, int32_t value, int32_t slot, int32_t size)
{
    struct mpp_solver_plan *p = b->plan;
    p->vars = mpp_arena_grow(p->arena, p->vars, &b->var_cap, (size_t)p->n_vars + 1, sizeof *p->vars);
    p->vars[p->n_vars] = (struct mpp_solver_var){node, value, slot, size, NULL};
    return p->n_vars++;
}

static struct mpp_solver_factor *add_factor(struct builder *b, enum mpp_solver_factor_kind kind, int32_t index,
                                            int32_t slot, int32_t n_scope)
{
    struct mpp_solver_plan *p = b->plan;
    p->factors = mpp_arena_grow(p->arena, p->factors, &b->factor_cap, (size_t)p->n_factors + 1, sizeof *p->factors);
    struct mpp_solver_factor *f = &p->factors[p->n_factors++];
    *f = (struct mpp_solver_factor){.kind = kind, .index = index, .slot = slot, .n_scope = n_scope, .shape = -1};
    f->scope = mpp_arena_array(p->arena, n_scope, int32_t);
    f->slots = mpp_arena_array(p->arena, n_scope, int32_t);
    return f;
}

static int32_t slot_node(const struct mpp_solver_value *v, int32_t slot)
{
    return slot < 0 ? v->producer : v->consumers[slot];
}

/* The distinct forms of a slot, in order of appearance; FORMS may be NULL. */
static int32_t distinct_forms(struct builder *b, int32_t value, int32_t slot, int32_t *forms)
{
    int32_t node = slot_node(&b->s->p->values[value], slot), n = 0;
    b->stamp++;
    for (int32_t k = 0; k < n_classes(b->plan, node); k++) {
        int32_t f = class_form(b, value, slot, node, k);
        if (b->form_mark[f] == b->stamp)
            continue;
        b->form_mark[f] = b->stamp;
        if (forms)
            forms[n] = f;
        n++;
    }
    return n;
}

static void sort_scope(struct mpp_solver_factor *f)
{
    for (int32_t i = 1; i < f->n_scope; i++)
        for (int32_t j = i; j > 0 && f->scope[j] < f->scope[j - 1]; j--) {
            int32_t t = f->scope[j];
            f->scope[j] = f->scope[j - 1];
            f->scope[j - 1] = t;
            t = f->slots[j];
            f->slots[j] = f->slots[j - 1];
            f->slots[j - 1] = t;
        }
}

/* The variable that says in which form SLOT meets VALUE: a form variable where that is much smaller. */
static int32_t slot_var(struct builder *b, int32_t value, int32_t slot, int32_t n_forms, bool many)
{
    struct mpp_solver_plan *p = b->plan;
    int32_t node = slot_node(&b->s->p->values[value], slot), var = p->node_var[node];
    if (!many || n_forms * 2 > p->vars[var].size)
        return var;
    int32_t f = add_var(b, node, value, slot, n_forms);
    int32_t *forms = mpp_arena_array(p->arena, n_forms, int32_t);
    distinct_forms(b, value, slot, forms);
    p->vars[f].forms = forms;
    struct mpp_solver_factor *link = add_factor(b, MPP_FACTOR_LINK, value, slot, 2);
    link->scope[0] = var;
    link->scope[1] = f;
    link->size = (int64_t)p->vars[var].size * n_forms;
    return f;
}

static void key_put(struct builder *b, const void *data, size_t size)
{
    b->key = mpp_arena_grow(b->scratch, b->key, &b->key_cap, b->key_len + size, 1);
    memcpy(b->key + b->key_len, data, size);
    b->key_len += size;
}

static void key_int(struct builder *b, int32_t i)
{
    key_put(b, &i, sizeof i);
}

/* Everything a factor's table depends on besides prices and shares. */
static int32_t factor_shape(struct builder *b, const struct mpp_solver_factor *f)
{
    const struct mpp_solver_value *v = &b->s->p->values[f->index];
    size_t nf = (size_t)v->n_forms;
    b->key_len = 0;
    key_int(b, f->kind);
    key_int(b, f->n_scope);
    key_int(b, v->n_forms);
    bool link = f->kind == MPP_FACTOR_LINK;
    if (!link)
        key_put(b, v->convert, nf * nf * sizeof *v->convert);
    struct mpp_solver_span sp = b->s->copy_span[f->index];
    key_int(b, sp.lo < sp.hi);
    if (!link && sp.lo < sp.hi)
        key_put(b, v->copy_bytes, nf * sizeof *v->copy_bytes);
    for (int32_t i = 0; i < f->n_scope; i++) {
        const struct mpp_solver_var *var = &b->plan->vars[f->scope[i]];
        int32_t slot = link ? f->slot : f->slots[i];
        key_int(b, var->size);
        key_int(b, slot < 0);
        for (int32_t k = 0; k < var->size; k++)
            key_int(b, var->forms ? var->forms[k] : class_form(b, f->index, slot, var->node, k));
    }
    /* slots without a variable have one form */
    for (int32_t slot = -1; !link && slot < v->n_consumers; slot++) {
        bool in_scope = false;
        for (int32_t i = 0; i < f->n_scope; i++)
            in_scope |= f->slots[i] == slot;
        if (!in_scope && (f->kind != MPP_FACTOR_SPLIT || slot < 0 || slot == f->slot)) {
            key_int(b, slot < 0);
            key_int(b, class_form(b, f->index, slot, slot_node(v, slot), 0));
        }
    }
    return mpp_solver_index_add(b->shapes, b->key, b->key_len, true, NULL);
}

static void finish_factor(struct builder *b, struct mpp_solver_factor *f)
{
    sort_scope(f);
    f->size = 1;
    for (int32_t i = 0; i < f->n_scope; i++)
        f->size *= b->plan->vars[f->scope[i]].size;
    f->shape = factor_shape(b, f);
}

static void add_split(struct builder *b, int32_t value)
{
    const struct mpp_solver_value *v = &b->s->p->values[value];
    int32_t made = distinct_forms(b, value, -1, NULL);
    for (int32_t c = 0; c < v->n_consumers; c++) {
        int32_t wanted = distinct_forms(b, value, c, NULL), n = (made > 1) + (wanted > 1), at = 0;
        struct mpp_solver_factor *f = add_factor(b, MPP_FACTOR_SPLIT, value, c, n);
        if (made > 1) {
            f->slots[at] = -1;
            f->scope[at++] = b->plan->node_var[v->producer];
        }
        if (wanted > 1) {
            f->slots[at] = c;
            f->scope[at++] = b->plan->node_var[v->consumers[c]];
        }
        finish_factor(b, f);
    }
}

static void add_value(struct builder *b, int32_t value)
{
    const struct mpp_solver_value *v = &b->s->p->values[value];
    if (b->plan->split[value]) {
        add_split(b, value);
        return;
    }
    int32_t n = 0;
    int32_t *slots = mpp_arena_array(b->scratch, v->n_consumers + 1, int32_t);
    int32_t *count = mpp_arena_array(b->scratch, v->n_consumers + 1, int32_t);
    for (int32_t slot = -1; slot < v->n_consumers; slot++) {
        int32_t forms = distinct_forms(b, value, slot, NULL);
        if (forms > 1) {
            slots[n] = slot;
            count[n++] = forms;
        }
    }
    int32_t *vars = mpp_arena_array(b->scratch, n, int32_t);
    for (int32_t i = 0; i < n; i++)
        vars[i] = slot_var(b, value, slots[i], count[i], n > 2);
    struct mpp_solver_factor *f = add_factor(b, MPP_FACTOR_VALUE, value, 0, n);
    for (int32_t i = 0; i < n; i++) {
        f->scope[i] = vars[i];
        f->slots[i] = slots[i];
    }
    finish_factor(b, f);
}

/* The table of VALUE taken whole, in entries. */
static double whole_size(struct builder *b, int32_t value, int32_t *out_arity)
{
    const struct mpp_solver_value *v = &b->s->p->values[value];
    double size = 1;
    *out_arity = 0;
    for (int32_t slot = -1; slot < v->n_consumers; slot++) {
        int32_t forms = distinct_forms(b, value, slot, NULL);
        int32_t k = n_classes(b->plan, slot_node(v, slot));
        if (forms > 1) {
            size *= forms * 2 > k ? k : forms;
            (*out_arity)++;
        }
    }
    return size;
}

static void build_factors(struct builder *b, double split_above)
{
    struct mpp_solver_plan *p = b->plan;
    const struct mpp_solver_problem *pr = b->s->p;
    for (int32_t i = 0; i < pr->n_nodes; i++) {
        int32_t n = n_classes(p, i);
        p->node_var[i] = n > 1 ? add_var(b, i, -1, 0, n) : -1;
        if (n < 2)
            continue;
        struct mpp_solver_factor *f = add_factor(b, MPP_FACTOR_UNARY, i, 0, 1);
        f->scope[0] = p->node_var[i];
        f->size = n;
    }
    for (int32_t v = 0; v < pr->n_values; v++) {
        int32_t arity;
        double size = whole_size(b, v, &arity);
        p->split[v] = (arity > 2 && size > split_above) ||
                      (b->s->tune.force_split && pr->values[v].n_consumers > 1);
        p->n_split += p->split[v];
        add_value(b, v);
    }
    for (int32_t f = 0; f < p->n_factors; f++)
        if (p->factors[f].kind == MPP_FACTOR_LINK)
            p->factors[f].shape = factor_shape(b, &p->factors[f]);
    p->n_shapes = mpp_solver_index_count(b->shapes);
}

/* ---- the order ---------------------------------------------------------------------------- */

struct heap_item {
    double key;
    int32_t var, version;
};

struct order {
    struct mpp_solver_plan *plan;
    struct mpp_arena *arena;
    int32_t **touch, *n_touch;      /* per variable: factors and messages that read it */
    size_t *touch_cap;
    const int32_t **scope;          /* per factor or message */
    int32_t *n_scope;
    uint8_t *used;
    int32_t *version, *mark, stamp, *joint;
    size_t heap_n, heap_cap;
    struct heap_item *heap;
};

static bool item_less(struct heap_item a, struct heap_item b)
{
    return a.key != b.key ? a.key < b.key : a.var < b.var;
}

static void heap_push(struct order *o, struct heap_item it)
{
    o->heap = mpp_arena_grow(o->arena, o->heap, &o->heap_cap, o->heap_n + 1, sizeof *o->heap);
    size_t i = o->heap_n++;
    for (; i > 0 && item_less(it, o->heap[(i - 1) / 2]); i = (i - 1) / 2)
        o->heap[i] = o->heap[(i - 1) / 2];
    o->heap[i] = it;
}

static struct heap_item heap_pop(struct order *o)
{
    struct heap_item top = o->heap[0], it = o->heap[--o->heap_n];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= o->heap_n)
            break;
        if (c + 1 < o->heap_n && item_less(o->heap[c + 1], o->heap[c]))
            c++;
        if (!item_less(o->heap[c], it))
            break;
        o->heap[i] = o->heap[c];
        i = c;
    }
    if (o->heap_n)
        o->heap[i] = it;
    return top;
}

static void touch_add(struct order *o, int32_t var, int32_t id)
{
    o->touch[var] = mpp_arena_grow(o->arena, o->touch[var], &o->touch_cap[var], (size_t)o->n_touch[var] + 1,
                                   sizeof **o->touch);
    o->touch[var][o->n_touch[var]++] = id;
}

/* The variables joined when VAR goes (into o->joint, VAR first); returns how many. */
static int32_t joint_of(struct order *o, int32_t var, double *out_size)
{
    int32_t n = 0, live = 0;
    double size = o->plan->vars[var].size;
    o->mark[var] = ++o->stamp;
    o->joint[n++] = var;
    for (int32_t i = 0; i < o->n_touch[var]; i++) {
        int32_t id = o->touch[var][i];
        if (o->used[id])
            continue;
        o->touch[var][live++] = id;
        for (int32_t j = 0; j < o->n_scope[id]; j++) {
            int32_t w = o->scope[id][j];
            if (o->mark[w] == o->stamp)
                continue;
            o->mark[w] = o->stamp;
            o->joint[n++] = w;
            size *= o->plan->vars[w].size;
        }
    }
    o->n_touch[var] = live;
    *out_size = size;
    return n;
}

static void order_init(struct order *o, struct mpp_solver_plan *plan, struct mpp_arena *scratch)
{
    int32_t n = plan->n_vars, ids = 3 * (plan->n_factors + n);
    *o = (struct order){.plan = plan, .arena = scratch};
    o->touch = mpp_arena_array(scratch, n, int32_t *);
    o->n_touch = mpp_arena_array(scratch, n, int32_t);
    o->touch_cap = mpp_arena_array(scratch, n, size_t);
    o->scope = mpp_arena_array(scratch, ids, const int32_t *);
    o->n_scope = mpp_arena_array(scratch, ids, int32_t);
    o->used = mpp_arena_array(scratch, ids, uint8_t);
    o->version = mpp_arena_array(scratch, n, int32_t);
    o->mark = mpp_arena_array(scratch, n, int32_t);
    o->joint = mpp_arena_array(scratch, n, int32_t);
    for (int32_t f = 0; f < plan->n_factors; f++) {
        o->scope[f] = plan->factors[f].scope;
        o->n_scope[f] = plan->factors[f].n_scope;
        for (int32_t i = 0; i < o->n_scope[f]; i++)
            touch_add(o, o->scope[f][i], f);
    }
    for (int32_t v = 0; v < n; v++) {
        double size;
        joint_of(o, v, &size);
        heap_push(o, (struct heap_item){size, v, 0});
    }
}

/* Strides of each input over the bucket's scope and variable. */
static void bucket_strides(struct builder *b, struct order *o, struct mpp_solver_bucket *bk)
{
    struct mpp_solver_plan *p = b->plan;
    int32_t w = bk->n_scope + 1;
    bk->stride = mpp_arena_array(p->arena, bk->n_in * w, int64_t);
    b->key_len = 0;
    key_int(b, bk->n_scope);
    key_int(b, p->vars[bk->var].size);
    for (int32_t i = 0; i < bk->n_scope; i++)
        key_int(b, p->vars[bk->scope[i]].size);
    for (int32_t i = 0; i < bk->n_in; i++) {
        int64_t stride = 1;
        for (int32_t j = o->n_scope[bk->in[i]] - 1; j >= 0; j--) {
            int32_t var = o->scope[bk->in[i]][j], at = bk->n_scope;
            for (int32_t k = 0; k < bk->n_scope; k++)
                at = bk->scope[k] == var ? k : at;
            bk->stride[i * w + at] = stride;
            stride *= p->vars[var].size;
        }
    }
    key_put(b, bk->stride, sizeof *bk->stride * (size_t)(bk->n_in * w));
    bk->pattern = mpp_solver_index_add(b->patterns, b->key, b->key_len, true, NULL);
    /* Layers that repeat are mostly computed once: count a pattern a few times only. */
    b->pattern_count = mpp_arena_grow(b->scratch, b->pattern_count, &b->count_cap, (size_t)bk->pattern + 1,
                                      sizeof *b->pattern_count);
    if (++b->pattern_count[bk->pattern] <= 3)
        p->entries += (double)bk->size * p->vars[bk->var].size;
}

static int cmp_i32(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void eliminate(struct builder *b, struct order *o, int32_t var, int32_t n_joint)
{
    struct mpp_solver_plan *p = b->plan;
    int32_t at = p->n_buckets++, id = p->n_factors + at;
    struct mpp_solver_bucket *bk = &p->buckets[at];
    bk->var = var;
    bk->parent = bk->twin = bk->shift = -1;
    bk->n_in = o->n_touch[var];
    bk->in = mpp_arena_array(p->arena, bk->n_in, int32_t);
    for (int32_t i = 0; i < bk->n_in; i++) {
        bk->in[i] = o->touch[var][i];
        o->used[bk->in[i]] = 1;
        if (bk->in[i] >= p->n_factors)
            p->buckets[bk->in[i] - p->n_factors].parent = at;
    }
    bk->n_scope = n_joint - 1;
    bk->scope = mpp_arena_array(p->arena, bk->n_scope, int32_t);
    memcpy(bk->scope, o->joint + 1, sizeof *bk->scope * (size_t)bk->n_scope);
    qsort(bk->scope, (size_t)bk->n_scope, sizeof *bk->scope, cmp_i32);
    bk->size = 1;
    for (int32_t i = 0; i < bk->n_scope; i++)
        bk->size *= p->vars[bk->scope[i]].size;
    o->scope[id] = bk->scope;
    o->n_scope[id] = bk->n_scope;
    bucket_strides(b, o, bk);
    for (int32_t i = 0; i < bk->n_scope; i++)
        touch_add(o, bk->scope[i], id);
    for (int32_t i = 0; i < bk->n_scope; i++) {
        double size;
        int32_t w = bk->scope[i];
        joint_of(o, w, &size);
        heap_push(o, (struct heap_item){size, w, ++o->version[w]});
    }
}

/* The size of the join of VAR with the inputs IN [N]. */
static double join_size(struct order *o, int32_t var, const int32_t *in, int32_t n)
{
    double size = o->plan->vars[var].size;
    o->mark[var] = ++o->stamp;
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < o->n_scope[in[i]]; j++) {
            int32_t w = o->scope[in[i]][j];
            if (o->mark[w] == o->stamp)
                continue;
            o->mark[w] = o->stamp;
            size *= o->plan->vars[w].size;
        }
    return size;
}

/* A shift over VAR from those set aside; -1: none is left. */
static int32_t add_shift(struct order *o, int32_t var)
{
    struct mpp_solver_plan *p = o->plan;
    if (p->n_shifts == p->max_shifts)
        return -1;
    int32_t at = p->n_shifts++, f = p->first_shift + at;
    p->factors[f].scope[0] = var;
    p->factors[f].n_scope = 1;
    p->factors[f].size = p->vars[var].size;
    p->shift[at] = mpp_arena_array(p->arena, p->vars[var].size, int64_t);
    o->scope[f] = p->factors[f].scope;
    o->n_scope[f] = 1;
    return at;
}

/* Set factors aside for shifts: constants of 0 until they are used. */
static void reserve_shifts(struct builder *b)
{
    struct mpp_solver_plan *p = b->plan;
    p->first_shift = p->n_factors;
    p->max_shifts = 2 * p->n_vars;
    p->shift = mpp_arena_array(p->arena, p->max_shifts, int64_t *);
    for (int32_t i = 0; i < p->max_shifts; i++) {
        struct mpp_solver_factor *f = add_factor(b, MPP_FACTOR_SHIFT, i, 0, 1);
        f->n_scope = 0;
        f->size = 1;
    }
}

/* Which bucket above decides each variable that a bucket's table depends on. */
static void find_owners(struct mpp_solver_plan *p)
{
    for (int32_t j = p->n_buckets - 1; j >= 0; j--) {
        struct mpp_solver_bucket *bk = &p->buckets[j];
        bk->owner = mpp_arena_array(p->arena, bk->n_scope, int32_t);
        for (int32_t q = 0; q < bk->n_scope; q++) {
            const struct mpp_solver_bucket *up = &p->buckets[bk->parent];
            bk->owner[q] = bk->parent;
            for (int32_t e = 0; e < up->n_scope; e++)
                if (up->scope[e] == bk->scope[q])
                    bk->owner[q] = up->owner[e];
        }
    }
}

/* Mini-buckets (Dechter and Rish, 2003): where the join of all is too large, copies of the variable are
 * eliminated, each with some of the inputs. A relaxation: the copies need not agree, but pay for it by shifts.
 * Returns the largest join. */
static double eliminate_parts(struct builder *b, struct order *o, int32_t var, double mini)
{
    struct mpp_solver_plan *p = b->plan;
    int32_t n = 0, prev = -1, *in = mpp_arena_array(o->arena, o->n_touch[var], int32_t);
    int32_t *part = mpp_arena_array(o->arena, o->n_touch[var] + 1, int32_t);
    double largest = 0;
    for (int32_t i = 0; i < o->n_touch[var]; i++)
        in[n++] = o->touch[var][i];
    for (int32_t i = 1; i < n; i++) /* the largest first */
        for (int32_t j = i; j > 0 && join_size(o, var, &in[j], 1) > join_size(o, var, &in[j - 1], 1); j--) {
            int32_t t = in[j];
            in[j] = in[j - 1];
            in[j - 1] = t;
        }
    while (n > 0) {
        int32_t n_part = 0, left = 0;
        for (int32_t i = 0; i < n; i++) {
            part[n_part] = in[i];
            if (n_part == 0 || join_size(o, var, part, n_part + 1) <= mini)
                n_part++;
            else
                in[left++] = in[i];
        }
        n = left;
        int32_t shift = prev >= 0 || n > 0 ? add_shift(o, var) : -1;
        if (shift >= 0)
            part[n_part++] = p->first_shift + shift;
        o->touch[var] = mpp_arena_grow(o->arena, o->touch[var], &o->touch_cap[var], (size_t)n_part, sizeof **o->touch);
        memcpy(o->touch[var], part, sizeof *part * (size_t)n_part);
        o->n_touch[var] = n_part;
        double size;
        int32_t at = p->n_buckets, n_joint = joint_of(o, var, &size);
        largest = size > largest ? size : largest;
        eliminate(b, o, var, n_joint);
        p->buckets[at].shift = shift;
        if (prev >= 0) {
            p->buckets[prev].twin = at;
            p->buckets[at].is_twin = true;
        }
        prev = at;
    }
    p->n_split++;
    return largest;
}

/* Order everything; false when the tables would pass the limits. */
static bool order_all(struct builder *b, double max_entries, double mini)
{
    struct mpp_solver_plan *p = b->plan;
    struct order o;
    struct mpp_arena *scratch = mpp_arena_scratch(p->arena);
    bool ok = true;
    order_init(&o, p, scratch);
    p->buckets = mpp_arena_array(p->arena, 2 * (p->n_factors + p->n_vars), struct mpp_solver_bucket);
    uint8_t *gone = mpp_arena_array(scratch, p->n_vars, uint8_t);
    int32_t n_gone = 0;
    while (ok && n_gone < p->n_vars) {
        struct heap_item it = heap_pop(&o);
        double size;
        if (gone[it.var] || it.version != o.version[it.var])
            continue;
        int32_t n = joint_of(&o, it.var, &size);
        gone[it.var] = 1;
        n_gone++;
        if (mini > 0 && size > mini) {
            size = eliminate_parts(b, &o, it.var, mini);
        } else {
            ok = size <= (double)b->s->set.table_limit && size <= max_entries;
            if (ok)
                eliminate(b, &o, it.var, n);
        }
        p->largest = size > p->largest ? size : p->largest;
        ok = ok && p->entries <= max_entries;
    }
    mpp_arena_free(scratch);
    return ok;
}

/* ---- the plan ----------------------------------------------------------------------------- */

static void shares_init(struct mpp_solver *s, struct mpp_solver_plan *p)
{
    for (int32_t i = 0; i < s->p->n_values; i++) {
        const struct mpp_solver_value *v = &s->p->values[i];
        if (!p->split[i])
            continue;
        int64_t cells = (int64_t)v->n_forms * v->n_forms, m = v->n_consumers;
        p->share[i] = mpp_arena_array(p->arena, cells * m, int64_t);
        for (int64_t c = 0; c < m; c++)
            for (int64_t e = 0; e < cells; e++) {
                bool no = v->convert[e] >= MPP_SOLVER_INF;
                p->share[i][c * cells + e] = no ? MPP_SOLVER_INF : v->convert[e] / m + (c < v->convert[e] % m);
            }
    }
}

static struct mpp_solver_plan *try_plan(struct mpp_solver *s, double split_above, double max_entries, double mini,
                                        bool *out_fits)
{
    struct mpp_arena *a = mpp_arena_scratch(s->arena);
    struct mpp_solver_plan *p = mpp_arena_array(a, 1, struct mpp_solver_plan);
    int32_t n_forms = 1;
    for (int32_t v = 0; v < s->p->n_values; v++)
        n_forms = s->p->values[v].n_forms > n_forms ? s->p->values[v].n_forms : n_forms;
    p->arena = a;
    p->classes = mpp_solver_classes_build(s, a);
    p->node_var = mpp_arena_array(a, s->p->n_nodes, int32_t);
    p->split = mpp_arena_array(a, s->p->n_values, uint8_t);
    p->share = mpp_arena_array(a, s->p->n_values, int64_t *);
    struct builder b = {.s = s, .plan = p, .scratch = mpp_arena_scratch(s->arena)};
    b.form_mark = mpp_arena_array(b.scratch, n_forms, int32_t);
    b.shapes = mpp_solver_index_new(b.scratch);
    b.patterns = mpp_solver_index_new(b.scratch);
    build_factors(&b, split_above);
    if (mini > 0)
        reserve_shifts(&b);
    *out_fits = order_all(&b, max_entries, mini);
    if (*out_fits)
        find_owners(p);
    p->n_patterns = mpp_solver_index_count(b.patterns);
    shares_init(s, p);
    mpp_arena_free(b.scratch);
    return p;
}

struct mpp_solver_plan *mpp_solver_plan_new(struct mpp_solver *s, double max_entries)
{
    double above = (double)s->set.table_limit, mini = 0;
    for (;;) {
        bool fits;
        struct mpp_solver_plan *p = try_plan(s, above, max_entries, mini, &fits);
        if (fits)
            return p;
        mpp_solver_plan_free(p);
        if (s->tune.no_split || (mini > 0 && mini < 64))
            return NULL;
        if (above < 4 || mini > 0) {
            mini = mini > 0 ? mini / 8 : (double)s->set.table_limit < MINI_JOIN ? (double)s->set.table_limit : MINI_JOIN;
            above = mini;
        } else {
            above = above > 65536 ? 65536 : above / 8;
        }
    }
}

void mpp_solver_plan_free(struct mpp_solver_plan *plan)
{
    if (plan)
        mpp_arena_free(plan->arena);
}
