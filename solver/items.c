/* items.c - a graph's components as items: which there are, which are alike, what they cost at least under prices of memory.
 *
 * With a price on the memory rows the components part. Equal ones (layers of a model) become one part with many copies. */
#include <stdlib.h>
#include <string.h>

#include "solver/pack.h"

enum { FIRST_ROWS = 8 };
static const int64_t MOST_SCALE = (int64_t)1 << 57;

/* ---- components ---------------------------------------------------------------------------------------- */

static int32_t root_of(int32_t *up, int32_t i)
{
    while (up[i] != i)
        i = up[i] = up[up[i]];
    return i;
}

static void find_components(struct mpp_pw_items *p)
{
    const struct mpp_pw_graph *g = p->g;
    int32_t *up = mpp_arena_array(p->arena, g->n_nodes, int32_t), n = 0;
    p->component = mpp_arena_array(p->arena, g->n_nodes, int32_t);
    p->local = mpp_arena_array(p->arena, g->n_nodes, int32_t);
    for (int32_t i = 0; i < g->n_nodes; i++)
        up[i] = i;
    for (int32_t e = 0; e < g->n_edges; e++)
        if (!g->edges[e].gone)
            up[root_of(up, g->edges[e].a)] = root_of(up, g->edges[e].b);
    int32_t *number = mpp_arena_array(p->arena, g->n_nodes, int32_t);
    for (int32_t i = 0; i < g->n_nodes; i++) {
        int32_t r = root_of(up, i);
        if (!g->nodes[i].gone)
            p->component[i] = number[r] > 0 ? number[r] - 1 : (number[r] = ++p->n_components) - 1;
    }
    p->first = mpp_arena_array(p->arena, p->n_components + 1, int32_t);
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (!g->nodes[i].gone) {
            p->local[i] = p->first[p->component[i] + 1]++;
            n++;
        }
    for (int32_t c = 0; c < p->n_components; c++)
        p->first[c + 1] += p->first[c];
    p->member = mpp_arena_array(p->arena, n, int32_t);
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (!g->nodes[i].gone)
            p->member[p->first[p->component[i]] + p->local[i]] = i;
}

/* ---- equal components ------------------------------------------------------------------------------------ */

struct key {
    int64_t *word;
    size_t n, cap;
};

static void put(struct mpp_pw_items *p, struct key *key, int64_t x)
{
    key->word = mpp_arena_grow(p->trial, key->word, &key->cap, key->n + 1, sizeof *key->word);
    key->word[key->n++] = x;
}

static int by_value(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* All that matters about component C: sizes, costs, prices of bytes, bytes at the rows of interest, edges. */
static void write_key(struct mpp_pw_items *p, int32_t c, int64_t *const *priced, struct key *key)
{
    const struct mpp_pw_graph *g = p->g;
    int32_t m = p->first[c + 1] - p->first[c];
    const int32_t *member = p->member + p->first[c];
    int32_t *edge_to = mpp_arena_array(p->trial, m, int32_t), *to = mpp_arena_array(p->trial, m, int32_t);
    key->n = 0;
    put(p, key, m);
    for (int32_t i = 0; i < m; i++) {
        const struct mpp_pw_node *v = &g->nodes[member[i]];
        put(p, key, v->n);
        for (int32_t k = 0; k < v->n; k++) {
            put(p, key, v->cost[k]);
            put(p, key, priced[member[i]][k]);
            for (int32_t r = 0; r < p->n_rows; r++)
                put(p, key, mpp_pw_bytes_at(v, p->row[r], k));
        }
        int32_t n = 0;
        for (int32_t q = 0; q < v->n_edges; q++) {
            const struct mpp_pw_edge *e = &g->edges[v->edges[q]];
            int32_t other = mpp_pw_other(e, member[i]);
            if (e->gone || p->local[other] < i)
                continue;
            edge_to[p->local[other]] = v->edges[q];
            to[n++] = p->local[other];
        }
        qsort(to, (size_t)n, sizeof *to, by_value);
        for (int32_t q = 0; q < n; q++) {
            const struct mpp_pw_edge *e = &g->edges[edge_to[to[q]]];
            int32_t n_other = g->nodes[member[to[q]]].n;
            put(p, key, -1 - to[q]);
            for (int32_t k = 0; k < v->n; k++)
                for (int32_t l = 0; l < n_other; l++)
                    put(p, key, *mpp_pw_entry(g, e, member[i], k, l));
        }
    }
}

static uint64_t hash_of(const struct key *key)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < key->n; i++)
        h = (h ^ (uint64_t)key->word[i]) * UINT64_C(0x9E3779B97F4A7C15) ^ h >> 29;
    return h;
}

static void add_copy(struct mpp_pw_items *p, struct mpp_pw_part *part, int32_t c)
{
    part->copy = mpp_arena_grow(p->trial, part->copy, &part->copy_cap, (size_t)part->n_copies + 1, sizeof *part->copy);
    part->copy[part->n_copies++] = p->member + p->first[c];
}

/* Components by kind. False: one is too large. */
static bool find_parts(struct mpp_pw_items *p)
{
    size_t slots = 64, part_cap = 0, key_cap = 0;
    struct key key = {0}, *known = NULL;
    while (slots < 2 * (size_t)p->n_components)
        slots *= 2;
    int32_t *slot = mpp_arena_array(p->trial, slots, int32_t);
    p->priced = mpp_arena_array(p->trial, p->g->n_nodes, int64_t *);
    for (int32_t i = 0; i < p->g->n_nodes; i++)
        if (!p->g->nodes[i].gone)
            p->priced[i] = mpp_pw_priced(p->g, i, p->price, p->trial);
    p->part_of = mpp_arena_array(p->trial, p->n_components, int32_t);
    p->n_parts = 0;
    p->part = NULL;
    for (int32_t c = 0; c < p->n_components; c++) {
        write_key(p, c, p->priced, &key);
        size_t at = hash_of(&key) & (slots - 1);
        for (; slot[at] > 0; at = (at + 1) & (slots - 1))
            if (known[slot[at] - 1].n == key.n && !memcmp(known[slot[at] - 1].word, key.word, key.n * sizeof *key.word))
                break;
        if (slot[at] == 0) {
            size_t n = (size_t)p->n_parts + 1;
            known = mpp_arena_grow(p->trial, known, &key_cap, n, sizeof *known);
            p->part = mpp_arena_grow(p->trial, p->part, &part_cap, n, sizeof *p->part);
            known[n - 1] = (struct key){mpp_arena_memdup(p->trial, key.word, key.n * sizeof *key.word), key.n, key.n};
            p->part[n - 1] = mpp_pw_part_new(p->g, p->member + p->first[c], p->first[c + 1] - p->first[c], p->local, p->trial);
            if (p->part[n - 1] == NULL)
                return false;
            mpp_pw_part_price(p->part[n - 1], p->g, p->priced);
            slot[at] = ++p->n_parts;
        }
        p->part_of[c] = slot[at] - 1;
        add_copy(p, p->part[slot[at] - 1], c);
    }
    return true;
}

/* ---- prices ------------------------------------------------------------------------------------------------------ */

/* What capacity is worth, rounded up. */
static mpp_i128 rent_of(const struct mpp_pw_items *p)
{
    mpp_i128 sum = 0, one = (mpp_i128)1 << MPP_PW_PRICE_BITS;
    for (int32_t t = 0; t < p->g->n_rows; t++)
        sum += (mpp_i128)p->price[t] * p->g->capacity[t];
    return (sum + one - 1) >> MPP_PW_PRICE_BITS;
}

static void find_bound(struct mpp_pw_items *p)
{
    mpp_i128 sum = -rent_of(p);
    for (int32_t i = 0; i < p->n_parts; i++)
        sum += (mpp_i128)p->part[i]->least * p->part[i]->n_copies;
    p->bound = sum > MPP_PW_BIG ? MPP_PW_BIG : sum < -MPP_PW_BIG ? -MPP_PW_BIG : (int64_t)sum;
}

bool mpp_pw_items_take(struct mpp_pw_items *p, const double *price)
{
    const struct mpp_pw_graph *g = p->g;
    double rent = 0;
    for (int32_t t = 0; t < g->n_rows; t++)
        rent += price[t] * (double)g->capacity[t];
    if (!(rent < (double)MOST_SCALE))
        return false;
    for (int32_t t = 0; t < g->n_rows; t++)
        p->price[t] = (int64_t)(price[t] * (double)((int64_t)1 << MPP_PW_PRICE_BITS));
    return true;
}

void mpp_pw_items_choose_rows(struct mpp_pw_items *p)
{
    const struct mpp_pw_graph *g = p->g;
    for (p->n_rows = 0; p->n_rows < FIRST_ROWS; p->n_rows++) {
        int32_t dearest = -1;
        for (int32_t t = 0; t < g->n_rows; t++) {
            bool taken = p->price[t] == 0;
            for (int32_t r = 0; r < p->n_rows; r++)
                taken |= p->row[r] == t;
            if (!taken && (dearest < 0 || (double)p->price[t] * (double)g->capacity[t] > (double)p->price[dearest] * (double)g->capacity[dearest]))
                dearest = t;
        }
        if (dearest < 0)
            break;
        p->row[p->n_rows] = dearest;
    }
}

struct mpp_pw_items *mpp_pw_items_new(const struct mpp_pw_graph *g, struct mpp_arena *arena)
{
    struct mpp_arena *own = mpp_arena_scratch(arena);
    struct mpp_pw_items *p = mpp_arena_array(own, 1, struct mpp_pw_items);
    *p = (struct mpp_pw_items){.g = g, .arena = own, .trial = mpp_arena_scratch(own)};
    p->price = mpp_arena_array(own, g->n_rows, int64_t);
    p->row = mpp_arena_array(own, MPP_PW_LABEL_ROWS, int32_t);
    find_components(p);
    return p;
}

void mpp_pw_items_free(struct mpp_pw_items *p)
{
    if (p == NULL)
        return;
    mpp_arena_free(p->trial);
    mpp_arena_free(p->arena);
}

bool mpp_pw_items_sort(struct mpp_pw_items *p)
{
    mpp_arena_free(p->trial);
    p->trial = mpp_arena_scratch(p->arena);
    if (!find_parts(p))
        return false;
    find_bound(p);
    return true;
}

void mpp_pw_items_price(struct mpp_pw_items *p)
{
    for (int32_t i = 0; i < p->n_parts; i++) {
        const struct mpp_pw_part *part = p->part[i];
        for (int32_t m = 0; m < part->n; m++)
            mpp_pw_priced_again(p->g, part->node[m], p->price, p->trial, p->priced[part->node[m]]);
        mpp_pw_part_price(p->part[i], p->g, p->priced);
    }
    find_bound(p);
}
