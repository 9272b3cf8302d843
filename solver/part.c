/* part.c - one component of a graph: eliminated under prices, then with labels.
 *
 * Nodes go one by one, those with small tables and little below them first; what a node and those below it cost is a table over its
 * remaining neighbours. Upward the tables are filled, downward each entry learns what the rest costs at least, so that labels
 * of which nothing good can come are never made. */
#include <string.h>

#include "solver/pack.h"

enum { PART_BEAM = 5 };
static const int64_t MOST_ENTRIES = (int64_t)1 << 18, MOST_TOTAL = (int64_t)1 << 23;

struct mpp_pw_bucket {
    int32_t var;                  /* member */
    int32_t n_scope, *scope;      /* members that go later, in the order in which they go */
    int64_t size, *stride;        /* [n_scope] */
    int32_t n_edges, *edge, *end; /* edges to the scope: the graph's, and the place in the scope of the other end */
    int32_t n_children, *child;   /* buckets whose table is read here */
    int64_t **child_stride;       /* [n_children][n_scope + 1] of this scope's members and, last, of var */
    int64_t *table, *outside;     /* [size] least priced cost; least excess over the whole's with that entry */
    struct mpp_pw_list *list;     /* [size] labels */
    int64_t *least, *most;        /* [rows of the labels] bytes of what goes here and below */
};

int64_t mpp_pw_bytes_at(const struct mpp_pw_node *v, int32_t row, int32_t k)
{
    for (int32_t s = 0; s < v->n_segments && v->segments[s].lo <= row; s++)
        if (row < v->segments[s].hi)
            return v->segments[s].bytes[k];
    return 0;
}

void mpp_pw_priced_again(const struct mpp_pw_graph *g, int32_t node, const int64_t *price, struct mpp_arena *arena, int64_t *out)
{
    const struct mpp_pw_node *v = &g->nodes[node];
    struct mpp_arena *scratch = mpp_arena_scratch(arena);
    mpp_i128 *sum = mpp_arena_array(scratch, v->n, mpp_i128);
    for (int32_t s = 0; s < v->n_segments; s++) {
        mpp_i128 each = 0;
        for (int32_t t = v->segments[s].lo; t < v->segments[s].hi; t++)
            each += price[t];
        for (int32_t k = 0; k < v->n && each > 0; k++)
            sum[k] += each * v->segments[s].bytes[k];
    }
    for (int32_t k = 0; k < v->n; k++) {
        mpp_i128 x = sum[k] >> MPP_PW_PRICE_BITS;
        out[k] = mpp_pw_add(v->cost[k], x < MPP_PW_BIG ? (int64_t)x : MPP_PW_INF);
    }
    mpp_arena_free(scratch);
}

int64_t *mpp_pw_priced(const struct mpp_pw_graph *g, int32_t node, const int64_t *price, struct mpp_arena *arena)
{
    int64_t *out = mpp_arena_array(arena, g->nodes[node].n, int64_t);
    mpp_pw_priced_again(g, node, price, arena, out);
    return out;
}

/* ---- the order in which nodes go ------------------------------------------------------------------------- */

struct order {
    const struct mpp_pw_graph *g;
    struct mpp_pw_part *part;
    struct mpp_arena *scratch;
    int32_t **next, *n_next;      /* neighbours among what is left */
    size_t *cap;
    double *entries;              /* that its elimination reads; < 0: gone */
    int32_t *below;               /* nodes that went and whose tables wait for it: labels there are many */
    int32_t *count, *waiting;     /* [n] of buckets: nodes there and below; buckets whose table nobody has read yet */
    int32_t n_waiting;
};

static bool has(const struct order *o, int32_t i, int32_t x)
{
    for (int32_t q = 0; q < o->n_next[i]; q++)
        if (o->next[i][q] == x)
            return true;
    return false;
}

static void add_next(struct order *o, int32_t i, int32_t x)
{
    if (i == x || has(o, i, x))
        return;
    o->next[i] = mpp_arena_grow(o->scratch, o->next[i], &o->cap[i], (size_t)o->n_next[i] + 1, sizeof **o->next);
    o->next[i][o->n_next[i]++] = x;
}

static void drop_next(struct order *o, int32_t i, int32_t x)
{
    for (int32_t q = 0; q < o->n_next[i]; q++)
        if (o->next[i][q] == x)
            o->next[i][q--] = o->next[i][--o->n_next[i]];
}

static int32_t size_of(const struct order *o, int32_t member)
{
    return o->g->nodes[o->part->node[member]].n;
}

static void weigh(struct order *o, int32_t i)
{
    o->entries[i] = size_of(o, i);
    for (int32_t q = 0; q < o->n_next[i]; q++)
        o->entries[i] *= size_of(o, o->next[i][q]);
}

static int32_t place_in(const struct mpp_pw_bucket *b, int32_t member)
{
    for (int32_t q = 0; q < b->n_scope; q++)
        if (b->scope[q] == member)
            return q;
    return -1;
}

/* Bucket J of MEMBER reads what waits for it, and waits itself. */
static void hand_on(struct order *o, int32_t j, int32_t member)
{
    int32_t kept = 0;
    o->count[j] = 1;
    for (int32_t w = 0; w < o->n_waiting; w++) {
        const struct mpp_pw_bucket *b = &o->part->bucket[o->waiting[w]];
        if (place_in(b, member) < 0) {
            o->waiting[kept++] = o->waiting[w];
            continue;
        }
        o->count[j] += o->count[o->waiting[w]];
        for (int32_t q = 0; q < b->n_scope; q++)
            o->below[b->scope[q]] -= o->count[o->waiting[w]];
    }
    o->waiting[kept++] = j;
    o->n_waiting = kept;
    for (int32_t q = 0; q < o->part->bucket[j].n_scope; q++)
        o->below[o->part->bucket[j].scope[q]] += o->count[j];
}

static void read_neighbours(struct order *o, const int32_t *local)
{
    const struct mpp_pw_part *part = o->part;
    for (int32_t i = 0; i < part->n; i++) {
        const struct mpp_pw_node *v = &o->g->nodes[part->node[i]];
        for (int32_t q = 0; q < v->n_edges; q++)
            if (!o->g->edges[v->edges[q]].gone)
                add_next(o, i, local[mpp_pw_other(&o->g->edges[v->edges[q]], part->node[i])]);
    }
    for (int32_t i = 0; i < part->n; i++)
        weigh(o, i);
}

/* The next one goes; its neighbours become each other's. False: its table is too large. */
static bool eliminate_one(struct order *o, int32_t j, double *total)
{
    struct mpp_pw_part *part = o->part;
    int32_t best = -1;
    for (int32_t i = 0; i < part->n; i++)
        if (o->entries[i] >= 0 && (best < 0 || o->entries[i] * (1 + o->below[i]) < o->entries[best] * (1 + o->below[best])))
            best = i;
    struct mpp_pw_bucket *b = &part->bucket[j];
    *total += o->entries[best];
    if (o->entries[best] > (double)MOST_ENTRIES || *total > (double)MOST_TOTAL)
        return false;
    b->var = best;
    b->n_scope = o->n_next[best];
    b->scope = mpp_arena_memdup(part->arena, o->next[best], (size_t)b->n_scope * sizeof *b->scope);
    hand_on(o, j, best);
    o->entries[best] = -1;
    for (int32_t q = 0; q < b->n_scope; q++) {
        drop_next(o, b->scope[q], best);
        for (int32_t p = 0; p < b->n_scope; p++)
            add_next(o, b->scope[q], b->scope[p]);
    }
    for (int32_t q = 0; q < b->n_scope; q++)
        weigh(o, b->scope[q]);
    return true;
}

/* ---- buckets ------------------------------------------------------------------------------------------------ */

static void set_up(struct mpp_pw_bucket *b, const struct mpp_pw_part *part, const struct mpp_pw_graph *g,
                   const int32_t *local)
{
    const struct mpp_pw_node *v = &g->nodes[part->node[b->var]];
    b->stride = mpp_arena_array(part->arena, b->n_scope, int64_t);
    b->size = 1;
    for (int32_t q = b->n_scope - 1; q >= 0; q--) {
        b->stride[q] = b->size;
        b->size *= g->nodes[part->node[b->scope[q]]].n;
    }
    b->edge = mpp_arena_array(part->arena, v->n_edges, int32_t);
    b->end = mpp_arena_array(part->arena, v->n_edges, int32_t);
    for (int32_t q = 0; q < v->n_edges; q++) {
        const struct mpp_pw_edge *e = &g->edges[v->edges[q]];
        int32_t place = e->gone ? -1 : place_in(b, local[mpp_pw_other(e, part->node[b->var])]);
        if (place < 0)
            continue;
        b->edge[b->n_edges] = v->edges[q];
        b->end[b->n_edges++] = place;
    }
    b->table = mpp_arena_array(part->arena, b->size, int64_t);
    b->outside = mpp_arena_array(part->arena, b->size, int64_t);
    b->list = mpp_arena_array(part->arena, b->size, struct mpp_pw_list);
}

/* The table of J is read by the bucket of the first of its scope that goes. */
static void hang_up(struct mpp_pw_part *part, int32_t j, const int32_t *bucket_of, size_t *cap, size_t *stride_cap)
{
    struct mpp_pw_bucket *b = &part->bucket[j];
    int32_t up = INT32_MAX;
    for (int32_t q = 0; q < b->n_scope; q++)
        up = bucket_of[b->scope[q]] < up ? bucket_of[b->scope[q]] : up;
    if (b->n_scope == 0)
        return;
    struct mpp_pw_bucket *u = &part->bucket[up];
    int64_t *stride = mpp_arena_array(part->arena, u->n_scope + 1, int64_t);
    for (int32_t q = 0; q < b->n_scope; q++) {
        int32_t at = b->scope[q] == u->var ? u->n_scope : place_in(u, b->scope[q]);
        stride[at] = b->stride[q];
    }
    size_t n = (size_t)u->n_children + 1;
    u->child = mpp_arena_grow(part->arena, u->child, &cap[up], n, sizeof *u->child);
    u->child_stride = mpp_arena_grow(part->arena, u->child_stride, &stride_cap[up], n, sizeof *u->child_stride);
    u->child[n - 1] = j;
    u->child_stride[n - 1] = stride;
    u->n_children++;
}

/* ---- priced tables ---------------------------------------------------------------------------------------------- */

/* The choices of the scope at entry E. */
static void digits(const struct mpp_pw_bucket *b, int64_t e, int32_t *out)
{
    for (int32_t q = 0; q < b->n_scope; q++) {
        out[q] = (int32_t)(e / b->stride[q]);
        e %= b->stride[q];
    }
}

static int64_t child_entry(const struct mpp_pw_bucket *b, int32_t c, const int32_t *digit, int32_t k)
{
    int64_t at = k * b->child_stride[c][b->n_scope];
    for (int32_t q = 0; q < b->n_scope; q++)
        at += digit[q] * b->child_stride[c][q];
    return at;
}

static int64_t edges_at(const struct mpp_pw_graph *g, const struct mpp_pw_part *part, const struct mpp_pw_bucket *b,
                        const int32_t *digit, int32_t k)
{
    int64_t sum = 0;
    for (int32_t q = 0; q < b->n_edges; q++)
        sum = mpp_pw_add(sum, *mpp_pw_entry(g, &g->edges[b->edge[q]], part->node[b->var], k, digit[b->end[q]]));
    return sum;
}

static int64_t sum_at(const struct mpp_pw_graph *g, const struct mpp_pw_part *part, const struct mpp_pw_bucket *b,
                      const int32_t *digit, int32_t k)
{
    int64_t sum = mpp_pw_add(part->priced[part->node[b->var]][k], edges_at(g, part, b, digit, k));
    for (int32_t c = 0; c < b->n_children && sum < MPP_PW_BIG; c++)
        sum = mpp_pw_add(sum, part->bucket[b->child[c]].table[child_entry(b, c, digit, k)]);
    return sum;
}

static void fill_table(const struct mpp_pw_graph *g, struct mpp_pw_part *part, struct mpp_pw_bucket *b, int32_t *digit)
{
    for (int64_t e = 0; e < b->size; e++) {
        int64_t least = MPP_PW_INF;
        digits(b, e, digit);
        for (int32_t k = 0; k < g->nodes[part->node[b->var]].n; k++) {
            int64_t x = sum_at(g, part, b, digit, k);
            least = x < least ? x : least;
        }
        b->table[e] = least;
    }
}

/* What B's entries cost beyond the least, for the children of B. */
static void fill_outside(const struct mpp_pw_graph *g, struct mpp_pw_part *part, struct mpp_pw_bucket *b, int32_t *digit)
{
    for (int64_t e = 0; e < b->size; e++) {
        if (b->table[e] >= MPP_PW_BIG || b->outside[e] >= MPP_PW_BIG)
            continue;
        digits(b, e, digit);
        for (int32_t k = 0; k < g->nodes[part->node[b->var]].n; k++) {
            int64_t x = sum_at(g, part, b, digit, k);
            if (x >= MPP_PW_BIG)
                continue;
            x = x - b->table[e] + b->outside[e];
            for (int32_t c = 0; c < b->n_children; c++) {
                int64_t *to = &part->bucket[b->child[c]].outside[child_entry(b, c, digit, k)];
                *to = x < *to ? x : *to;
            }
        }
    }
}

struct mpp_pw_part *mpp_pw_part_new(const struct mpp_pw_graph *g, int32_t *node, int32_t n, const int32_t *local,
                                    struct mpp_arena *arena)
{
    struct mpp_pw_part *part = mpp_arena_array(arena, 1, struct mpp_pw_part);
    *part = (struct mpp_pw_part){.n = n, .node = node, .arena = arena};
    part->bucket = mpp_arena_array(arena, n, struct mpp_pw_bucket);
    struct mpp_arena *scratch = mpp_arena_scratch(arena);
    struct order o = {.g = g, .part = part, .scratch = scratch};
    o.next = mpp_arena_array(scratch, n, int32_t *);
    o.n_next = mpp_arena_array(scratch, n, int32_t);
    o.cap = mpp_arena_array(scratch, n, size_t);
    o.entries = mpp_arena_array(scratch, n, double);
    o.below = mpp_arena_array(scratch, n, int32_t);
    o.count = mpp_arena_array(scratch, n, int32_t);
    o.waiting = mpp_arena_array(scratch, n, int32_t);
    int32_t *bucket_of = mpp_arena_array(scratch, n, int32_t);
    size_t *child_cap = mpp_arena_array(scratch, n, size_t), *stride_cap = mpp_arena_array(scratch, n, size_t);
    double total = 0;
    bool ok = true;
    read_neighbours(&o, local);
    for (int32_t j = 0; j < n && ok; j++) {
        ok = eliminate_one(&o, j, &total);
        bucket_of[part->bucket[j].var] = j;
    }
    for (int32_t j = 0; j < n && ok; j++)
        set_up(&part->bucket[j], part, g, local);
    for (int32_t j = 0; j < n && ok; j++)
        hang_up(part, j, bucket_of, child_cap, stride_cap);
    part->entries = (int64_t)total;
    mpp_arena_free(scratch);
    return ok ? part : NULL;
}

void mpp_pw_part_price(struct mpp_pw_part *part, const struct mpp_pw_graph *g, int64_t *const *priced)
{
    struct mpp_arena *scratch = mpp_arena_scratch(part->arena);
    int32_t *digit = mpp_arena_array(scratch, part->n, int32_t);
    part->priced = priced;
    for (int32_t j = 0; j < part->n; j++)
        fill_table(g, part, &part->bucket[j], digit);
    mpp_arena_free(scratch);
    part->least = part->bucket[part->n - 1].table[0]; /* connected: only the last one's scope is empty */
}

bool mpp_pw_part_cheapest(const struct mpp_pw_part *part, const struct mpp_pw_graph *g, int32_t *choice)
{
    struct mpp_arena *scratch = mpp_arena_scratch(part->arena);
    int32_t *digit = mpp_arena_array(scratch, part->n, int32_t);
    for (int32_t j = part->n - 1; j >= 0 && part->least < MPP_PW_BIG; j--) {
        const struct mpp_pw_bucket *b = &part->bucket[j];
        int64_t e = 0;
        int32_t k = 0;
        for (int32_t q = 0; q < b->n_scope; q++) {
            digit[q] = choice[b->scope[q]];
            e += digit[q] * b->stride[q];
        }
        while (sum_at(g, part, b, digit, k) != b->table[e])
            k++;
        choice[b->var] = k;
    }
    mpp_arena_free(scratch);
    return part->least < MPP_PW_BIG;
}

static void look_outside(const struct mpp_pw_graph *g, struct mpp_pw_part *part, int32_t *digit)
{
    for (int32_t j = 0; j + 1 < part->n; j++)
        for (int64_t e = 0; e < part->bucket[j].size; e++)
            part->bucket[j].outside[e] = MPP_PW_INF;
    for (int32_t j = part->n - 1; j >= 0; j--)
        fill_outside(g, part, &part->bucket[j], digit);
}

void mpp_pw_part_marginals(struct mpp_pw_part *part, const struct mpp_pw_graph *g, struct mpp_arena *arena, int64_t **out_over)
{
    struct mpp_arena *scratch = mpp_arena_scratch(part->arena);
    int32_t *digit = mpp_arena_array(scratch, part->n, int32_t);
    look_outside(g, part, digit);
    for (int32_t j = 0; j < part->n; j++) {
        const struct mpp_pw_bucket *b = &part->bucket[j];
        int32_t node = part->node[b->var];
        int64_t *over = out_over[node] = mpp_arena_array(arena, g->nodes[node].n, int64_t);
        for (int32_t k = 0; k < g->nodes[node].n; k++)
            over[k] = MPP_PW_INF;
        for (int64_t e = 0; e < b->size; e++) {
            if (b->table[e] >= MPP_PW_BIG || b->outside[e] >= MPP_PW_BIG)
                continue;
            digits(b, e, digit);
            for (int32_t k = 0; k < g->nodes[node].n; k++) {
                int64_t x = sum_at(g, part, b, digit, k);
                x = x >= MPP_PW_BIG ? MPP_PW_INF : x - b->table[e] + b->outside[e];
                over[k] = x < over[k] ? x : over[k];
            }
        }
    }
    mpp_arena_free(scratch);
}

/* ---- labels -------------------------------------------------------------------------------------------------------- */

/* A label of choice K alone. */
static bool add_own(struct mpp_pw_labels *l, const struct mpp_pw_graph *g, const struct mpp_pw_part *part,
                    const struct mpp_pw_bucket *b, int32_t k, int64_t cost, int64_t over)
{
    const struct mpp_pw_node *v = &g->nodes[part->node[b->var]];
    int32_t id = mpp_pw_labels_add(l);
    if (id < 0)
        return false;
    l->label[id] = (struct mpp_pw_label){v->cost[k] + cost, over, -1, -1, b->var, k};
    for (int32_t r = 0; r < l->n_rows; r++)
        mpp_pw_label_bytes(l, id)[r] = mpp_pw_bytes_at(v, l->row[r], k);
    return true;
}

/* Beside what B's own choice and its first N children hold. */
static void set_rest(struct mpp_pw_labels *l, const struct mpp_pw_graph *g, const struct mpp_pw_part *part,
                     const struct mpp_pw_bucket *b, int32_t n)
{
    memcpy(l->rest_least, l->all_least, sizeof l->rest_least);
    memcpy(l->rest_most, l->all_most, sizeof l->rest_most);
    mpp_pw_labels_range(l, &g->nodes[part->node[b->var]], -1, l->rest_least, l->rest_most);
    for (int32_t c = 0; c < n; c++)
        for (int32_t r = 0; r < l->n_rows; r++) {
            l->rest_least[r] -= part->bucket[b->child[c]].least[r];
            l->rest_most[r] -= part->bucket[b->child[c]].most[r];
        }
    if (l->knows_rest)
        mpp_pw_rest_loosen(l);
}

static void note_below(struct mpp_pw_labels *l, const struct mpp_pw_graph *g, struct mpp_pw_part *part, struct mpp_pw_bucket *b)
{
    b->least = mpp_arena_array(part->arena, l->n_rows + 1, int64_t);
    b->most = mpp_arena_array(part->arena, l->n_rows + 1, int64_t);
    set_rest(l, g, part, b, b->n_children);
    for (int32_t r = 0; r < l->n_rows; r++) {
        b->least[r] = l->all_least[r] - l->rest_least[r];
        b->most[r] = l->all_most[r] - l->rest_most[r];
    }
}

static void entry_labels(struct mpp_pw_labels *l, const struct mpp_pw_graph *g, struct mpp_pw_part *part,
                         struct mpp_pw_bucket *b, int64_t e, int32_t *digit)
{
    int64_t limit = l->slack - b->outside[e];
    l->n_cur = 0;
    digits(b, e, digit);
    for (int32_t k = 0; k < g->nodes[part->node[b->var]].n && !l->full; k++) {
        int64_t sum = sum_at(g, part, b, digit, k);
        size_t from = l->n_cur;
        l->work += b->n_children + b->n_edges + 1;
        if (sum >= MPP_PW_BIG || sum - b->table[e] > limit)
            continue;
        if (!add_own(l, g, part, b, k, edges_at(g, part, b, digit, k), sum - b->table[e]))
            return;
        for (int32_t c = 0; c < b->n_children; c++) {
            set_rest(l, g, part, b, c + 1);
            mpp_pw_labels_extend(l, from, &part->bucket[b->child[c]].list[child_entry(b, c, digit, k)], limit);
        }
    }
    mpp_pw_labels_filter(l, 0);
    set_rest(l, g, part, b, b->n_children);
    mpp_pw_labels_narrow(l, 0, l->beam / PART_BEAM);
}

bool mpp_pw_part_labels(struct mpp_pw_part *part, const struct mpp_pw_graph *g, struct mpp_pw_labels *l)
{
    struct mpp_arena *scratch = mpp_arena_scratch(part->arena);
    int32_t *digit = mpp_arena_array(scratch, part->n, int32_t);
    look_outside(g, part, digit);
    for (int32_t j = 0; j < part->n && !l->full; j++) {
        struct mpp_pw_bucket *b = &part->bucket[j];
        note_below(l, g, part, b);
        for (int64_t e = 0; e < b->size && !l->full; e++) {
            b->list[e] = (struct mpp_pw_list){0};
            if (b->table[e] >= MPP_PW_BIG || b->outside[e] > l->slack)
                continue;
            entry_labels(l, g, part, b, e, digit);
            b->list[e] = (struct mpp_pw_list){(int32_t)l->n_cur, mpp_arena_memdup(part->arena, l->cur, l->n_cur * sizeof *l->cur)};
        }
    }
    l->n_cur = 0;
    part->list = part->bucket[part->n - 1].list[0];
    mpp_arena_free(scratch);
    return !l->full;
}

void mpp_pw_part_read(const struct mpp_pw_labels *l, int32_t label, const int32_t *node, int32_t *choice)
{
    const struct mpp_pw_label *x = &l->label[label];
    for (; x->node < 0; x = &l->label[x->prev])
        mpp_pw_part_read(l, x->sub, node, choice);
    choice[node[x->node]] = x->choice;
}
