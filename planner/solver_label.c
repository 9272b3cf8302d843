/* solver_label.c - elimination whose entries hold several labels: cost, and bytes at the rows that bind.
 *
 * A label is a way to settle what lies below an entry. It goes when another costs no more and takes no
 * more at any row, when it is over capacity, or when its priced cost and the least priced cost of
 * the rest (from the min-marginals) reach the best known cost: resource-constrained shortest paths
 * (Handler and Zang, 1980) on the elimination tree. Rows join as solutions violate them. */
#include <stdlib.h>
#include <string.h>

#include "planner/solver_internal.h"

enum { MAX_LABEL_ROWS = 24, MAX_SCOPE = 64, MAX_TRIALS = 40 };

struct label {
    int64_t cost, over;          /* over: priced, above the least of its entry */
    int32_t prev, sub;           /* labels it was joined from, -1: none */
    int32_t node, choice;        /* what it settles itself, node -1: nothing */
};

struct list {
    int32_t n, *id;
};

struct labels {
    struct mpp_solver *s;
    struct mpp_solver_plan *plan;
    struct mpp_solver_eval *priced, *plain;
    struct mpp_arena *arena;
    int64_t **outside;           /* [n_buckets] least priced rest per entry */
    int32_t n_rows, row[MAX_LABEL_ROWS];
    struct label *label;
    int64_t *bytes;              /* [n][n_rows] */
    size_t n, label_cap, bytes_cap;
    int64_t max_labels, slack;   /* slack: priced cost above the optimum that is still of use */
    int32_t beam;
    bool cut, full;              /* the beam dropped some; no room for more */
    struct list **message;       /* [n_buckets][size] */
    int64_t **copy_bytes;        /* [n_factors] bytes of the copies per entry, NULL: none that matter */
    int32_t *cur, *next;         /* scratch lists */
    size_t n_cur, cur_cap, next_cap;
};

/* ---- labels ------------------------------------------------------------------------------- */

static int32_t label_new(struct labels *l)
{
    if ((int64_t)l->n >= l->max_labels) {
        l->full = true;
        return -1;
    }
    l->label = mpp_arena_grow(l->arena, l->label, &l->label_cap, l->n + 1, sizeof *l->label);
    l->bytes = mpp_arena_grow(l->arena, l->bytes, &l->bytes_cap, (l->n + 1) * (size_t)l->n_rows + 1, sizeof *l->bytes);
    l->label[l->n] = (struct label){0, 0, -1, -1, -1, 0};
    memset(l->bytes + l->n * (size_t)l->n_rows, 0, sizeof *l->bytes * (size_t)l->n_rows);
    l->s->work += 8;
    return (int32_t)l->n++;
}

static int64_t *label_bytes(struct labels *l, int32_t id)
{
    return l->bytes + (size_t)id * (size_t)l->n_rows;
}

static bool fits(struct labels *l, int32_t id)
{
    for (int32_t r = 0; r < l->n_rows; r++)
        if (label_bytes(l, id)[r] > l->s->p->capacity_bytes)
            return false;
    return true;
}

/* Add BYTES at the rows of SPAN. */
static void add_bytes(struct labels *l, int32_t id, struct mpp_solver_span span, int64_t bytes)
{
    for (int32_t r = 0; r < l->n_rows; r++)
        if (l->row[r] >= span.lo && l->row[r] < span.hi)
            label_bytes(l, id)[r] += bytes;
}

static void cur_put(struct labels *l, int32_t id)
{
    l->cur = mpp_arena_grow(l->arena, l->cur, &l->cur_cap, l->n_cur + 1, sizeof *l->cur);
    l->cur[l->n_cur++] = id;
}

/* Sorting a few ids at a time needs the context: a plain heap sort with a comparison of labels. */
static int compare(struct labels *l, int32_t a, int32_t b, bool by_over)
{
    const struct label *x = &l->label[a], *y = &l->label[b];
    if (by_over && x->over != y->over)
        return x->over < y->over ? -1 : 1;
    if (x->cost != y->cost)
        return x->cost < y->cost ? -1 : 1;
    for (int32_t r = 0; r < l->n_rows; r++)
        if (label_bytes(l, a)[r] != label_bytes(l, b)[r])
            return label_bytes(l, a)[r] < label_bytes(l, b)[r] ? -1 : 1;
    return (a > b) - (a < b);
}

static void sift(struct labels *l, int32_t *id, size_t at, size_t n, bool by_over)
{
    int32_t it = id[at];
    for (size_t c; (c = 2 * at + 1) < n; at = c) {
        if (c + 1 < n && compare(l, id[c], id[c + 1], by_over) < 0)
            c++;
        if (compare(l, it, id[c], by_over) >= 0)
            break;
        id[at] = id[c];
    }
    id[at] = it;
}

static void sort_ids(struct labels *l, int32_t *id, size_t n, bool by_over)
{
    for (size_t i = n / 2; i-- > 0;)
        sift(l, id, i, n, by_over);
    for (size_t i = n; i-- > 1;) {
        int32_t t = id[0];
        id[0] = id[i];
        id[i] = t;
        sift(l, id, 0, i, by_over);
    }
}

static bool dominates(struct labels *l, int32_t a, int32_t b)
{
    const int64_t *x = label_bytes(l, a), *y = label_bytes(l, b);
    for (int32_t r = 0; r < l->n_rows; r++)
        if (x[r] > y[r])
            return false;
    return l->label[a].cost <= l->label[b].cost;
}

/* Keep the best label in each of so many equal parts of the range of bytes at the first row, so that lean
 * and fat ways to go on both stay. Returns how many there are. */
static size_t spread(struct labels *l, int32_t *id, size_t n)
{
    int64_t low = INT64_MAX, high = 0;
    size_t kept = 0;
    for (size_t i = 0; i < n && l->n_rows > 0; i++) {
        int64_t b = label_bytes(l, id[i])[0];
        low = b < low ? b : low;
        high = b > high ? b : high;
    }
    sort_ids(l, id, n, true);
    if (l->n_rows == 0 || low == high)
        return (size_t)l->beam;
    uint8_t *taken = mpp_arena_array(l->arena, l->beam, uint8_t);
    for (size_t i = 0; i < n; i++) {
        int64_t b = label_bytes(l, id[i])[0];
        /* the leanest has a part of its own, or rounding would eat that end away step by step */
        int32_t part = b == low ? 0 : 1 + (int32_t)((double)(b - low) / (double)(high - low) * (l->beam - 2) * 0.999);
        if (!taken[part])
            id[kept++] = id[i];
        taken[part] = 1;
    }
    return kept;
}

/* Drop dominated labels from the current list's part [FROM, end), and what is beyond the beam. */
static void filter(struct labels *l, size_t from)
{
    int32_t *id = l->cur + from;
    size_t n = l->n_cur - from, kept = 0;
    sort_ids(l, id, n, false);
    /* By cost ascending: the last one kept is the leanest so far where one row counts. */
    for (size_t i = 0; i < n; i++) {
        bool keep = true;
        size_t j = kept, stop = l->n_rows <= 1 && kept > 0 ? kept - 1 : 0;
        while (keep && j > stop)
            keep = !dominates(l, id[--j], id[i]);
        l->s->work += (int64_t)(kept - j) / 4 + 1;
        if (keep)
            id[kept++] = id[i];
    }
    if (l->beam > 0 && kept > (size_t)l->beam) {
        kept = spread(l, id, kept);
        l->cut = true;
    }
    l->n_cur = from + kept;
}

/* Join the current list's part [FROM, end) with SUB; LIMIT bounds what is over. */
static void join(struct labels *l, size_t from, const struct list *sub, int64_t limit)
{
    size_t n = l->n_cur - from;
    l->next = mpp_arena_grow(l->arena, l->next, &l->next_cap, n, sizeof *l->next);
    memcpy(l->next, l->cur + from, sizeof *l->next * n);
    l->n_cur = from;
    for (size_t i = 0; i < n && !l->full; i++)
        for (int32_t j = 0; j < sub->n; j++) {
            int32_t a = l->next[i], b = sub->id[j];
            if (l->label[a].over + l->label[b].over > limit)
                continue;
            int32_t id = label_new(l);
            if (id < 0)
                break;
            l->label[id].cost = l->label[a].cost + l->label[b].cost;
            l->label[id].over = l->label[a].over + l->label[b].over;
            l->label[id].prev = a;
            l->label[id].sub = b;
            for (int32_t r = 0; r < l->n_rows; r++)
                label_bytes(l, id)[r] = label_bytes(l, a)[r] + label_bytes(l, b)[r];
            if (fits(l, id))
                cur_put(l, id);
            else
                l->n--;
        }
    if (n > 1 || sub->n > 1)
        filter(l, from);
}

/* ---- buckets ------------------------------------------------------------------------------ */

/* One label per member of NODE's class CLS, OVER and COST on top of the member's own. */
static void put_members(struct labels *l, int32_t node, int32_t cls, int64_t over, int64_t cost, int64_t limit)
{
    const struct mpp_solver *s = l->s;
    const struct mpp_solver_node *nd = &s->p->nodes[node];
    int64_t least = INT64_MAX;
    for (int32_t k = 0; k < nd->n_choices; k++)
        if (l->plan->classes.of_choice[s->choice_first[node] + k] == cls) {
            int64_t x = mpp_solver_priced_cost(s, l->priced->unary_price, node, k);
            least = x < least ? x : least;
        }
    for (int32_t k = 0; k < nd->n_choices; k++) {
        if (l->plan->classes.of_choice[s->choice_first[node] + k] != cls)
            continue;
        int64_t more = mpp_solver_priced_cost(s, l->priced->unary_price, node, k) - least;
        if (over + more > limit)
            continue;
        int32_t id = label_new(l);
        if (id < 0)
            return;
        l->label[id] = (struct label){cost + (s->free_cost ? 0 : nd->cost[k]), over + more, -1, -1, node, k};
        for (int32_t u = 0; u < nd->n_usages; u++)
            add_bytes(l, id, s->usage_span[s->usage_first[node] + u], nd->usages[u].bytes[k]);
        cur_put(l, id);
    }
}

/* All labels of entry E (at INDEX) of bucket J, into the current list. */
static void entry_labels(struct labels *l, int32_t j, const int32_t *index, int64_t e)
{
    const struct mpp_solver_plan *p = l->plan;
    const struct mpp_solver_bucket *bk = &p->buckets[j];
    const struct mpp_solver_var *var = &p->vars[bk->var];
    int32_t w = bk->n_scope + 1, nf = p->n_factors;
    int64_t least = l->priced->table[l->priced->message_table[j]][e] + l->priced->shift[j];
    int64_t limit = l->slack - l->outside[j][e];
    l->n_cur = 0;
    for (int32_t k = 0; k < var->size && !l->full; k++) {
        int64_t sum = 0, plain = 0;
        size_t from = l->n_cur;
        for (int32_t i = 0; i < bk->n_in && sum < MPP_SOLVER_INF; i++) {
            int64_t at = k * bk->stride[i * w + bk->n_scope];
            for (int32_t q = 0; q < bk->n_scope; q++)
                at += index[q] * bk->stride[i * w + q];
            int32_t in = bk->in[i];
            sum += l->priced->table[in < nf ? l->priced->factor_table[in] : l->priced->message_table[in - nf]][at];
            if (in < nf && p->factors[in].kind != MPP_FACTOR_UNARY)
                plain += l->plain->table[l->plain->factor_table[in]][at];
        }
        if (sum >= MPP_SOLVER_INF || sum - least > limit)
            continue;
        if (var->value < 0) {
            put_members(l, var->node, k, sum - least, plain, limit);
        } else {
            int32_t id = label_new(l);
            if (id < 0)
                return;
            l->label[id].cost = plain;
            l->label[id].over = sum - least;
            cur_put(l, id);
        }
        for (int32_t i = 0; i < bk->n_in; i++) {
            int64_t at = k * bk->stride[i * w + bk->n_scope];
            for (int32_t q = 0; q < bk->n_scope; q++)
                at += index[q] * bk->stride[i * w + q];
            int32_t in = bk->in[i];
            if (in >= nf)
                join(l, from, &l->message[in - nf][at], limit);
            else if (l->copy_bytes[in])
                for (size_t x = from; x < l->n_cur; x++)
                    add_bytes(l, l->cur[x], l->s->copy_span[p->factors[in].index], l->copy_bytes[in][at]);
        }
    }
    filter(l, 0);
    size_t kept = 0;
    for (size_t x = 0; x < l->n_cur; x++)
        if (fits(l, l->cur[x]))
            l->cur[kept++] = l->cur[x];
    l->n_cur = kept;
}

static void bucket_labels(struct labels *l, int32_t j)
{
    const struct mpp_solver_bucket *bk = &l->plan->buckets[j];
    int32_t index[MAX_SCOPE] = {0};
    l->message[j] = mpp_arena_array(l->arena, bk->size, struct list);
    for (int64_t e = 0; e < bk->size && !l->full; e++) {
        if (l->outside[j][e] <= l->slack) {
            entry_labels(l, j, index, e);
            l->message[j][e].n = (int32_t)l->n_cur;
            l->message[j][e].id = mpp_arena_memdup(l->arena, l->cur, sizeof *l->cur * l->n_cur);
        }
        for (int32_t q = bk->n_scope - 1; q >= 0; q--) {
            if (++index[q] < l->plan->vars[bk->scope[q]].size)
                break;
            index[q] = 0;
        }
    }
}

/* Bytes of the copies per entry of every whole value that holds some at a row of interest. */
static void copy_tables(struct labels *l)
{
    const struct mpp_solver_plan *p = l->plan;
    for (int32_t f = 0; f < p->n_factors; f++) {
        const struct mpp_solver_factor *fa = &p->factors[f];
        if (fa->kind != MPP_FACTOR_VALUE)
            continue;
        struct mpp_solver_span sp = l->s->copy_span[fa->index];
        bool any = false;
        for (int32_t r = 0; r < l->n_rows; r++)
            any |= l->row[r] >= sp.lo && l->row[r] < sp.hi;
        if (!any)
            continue;
        l->copy_bytes[f] = mpp_arena_array(l->arena, fa->size, int64_t);
        mpp_solver_copy_bytes(l->s, p, fa, l->copy_bytes[f]);
    }
}

/* ---- the whole ---------------------------------------------------------------------------- */

/* Join the roots and the nodes of one class; the current list is what solves the whole problem. */
static void combine(struct labels *l)
{
    const struct mpp_solver_plan *p = l->plan;
    l->n_cur = 0;
    int32_t id = label_new(l);
    if (id < 0)
        return;
    for (int32_t f = 0; f < p->n_factors; f++)
        if (p->factors[f].n_scope == 0) {
            l->label[id].cost += l->plain->table[l->plain->factor_table[f]][0];
            if (l->copy_bytes[f])
                add_bytes(l, id, l->s->copy_span[p->factors[f].index], l->copy_bytes[f][0]);
        }
    cur_put(l, id);
    for (int32_t i = 0; i < l->s->p->n_nodes && !l->full; i++) {
        if (p->node_var[i] >= 0)
            continue;
        size_t from = l->n_cur;
        put_members(l, i, 0, 0, 0, l->slack);
        struct list sub = {(int32_t)(l->n_cur - from),
                           mpp_arena_memdup(l->arena, l->cur + from, sizeof *l->cur * (l->n_cur - from))};
        l->n_cur = from;
        join(l, 0, &sub, l->slack);
    }
    for (int32_t j = 0; j < p->n_buckets && !l->full; j++)
        if (p->buckets[j].parent < 0)
            join(l, 0, &l->message[j][0], l->slack);
    sort_ids(l, l->cur, l->n_cur, false);
}

static void settle(const struct labels *l, int32_t root, int32_t *stack, int32_t *out_choice)
{
    size_t n = 0;
    stack[n++] = root;
    while (n > 0) {
        const struct label *x = &l->label[stack[--n]];
        if (x->node >= 0)
            out_choice[x->node] = x->choice;
        if (x->prev >= 0)
            stack[n++] = x->prev;
        if (x->sub >= 0)
            stack[n++] = x->sub;
    }
}

/* Offer the labels of the whole in order of cost. Returns whether the first one fits; if not, its worst row
 * joins the rows of interest. */
static bool offer_all(struct labels *l)
{
    struct mpp_solver *s = l->s;
    int32_t *choice = mpp_arena_array(l->arena, s->p->n_nodes, int32_t);
    int32_t *stack = mpp_arena_array(l->arena, l->n + 2, int32_t);
    bool first_fits = true;
    for (size_t i = 0; i < l->n_cur && i < MAX_TRIALS; i++) {
        bool ok;
        settle(l, l->cur[i], stack, choice);
        mpp_solver_offer(s, choice, &ok);
        first_fits &= ok || i > 0;
        if (!ok && i == 0 && l->n_rows < MAX_LABEL_ROWS) {
            int64_t *bytes = mpp_arena_array(l->arena, s->n_rows + 1, int64_t);
            int32_t worst = 0;
            mpp_solver_row_bytes(s, choice, bytes);
            for (int32_t r = 1; r < s->n_rows; r++)
                worst = bytes[r] > bytes[worst] ? r : worst;
            l->row[l->n_rows++] = worst;
        }
        if (ok)
            break;
    }
    return first_fits;
}

/* One pass with the rows of interest. */
static void label_pass(struct labels *l)
{
    l->arena = mpp_arena_scratch(l->s->arena);
    l->label = NULL;
    l->bytes = NULL;
    l->cur = l->next = NULL;
    l->n = l->label_cap = l->bytes_cap = l->cur_cap = l->next_cap = 0;
    l->cut = l->full = false;
    l->message = mpp_arena_array(l->arena, l->plan->n_buckets, struct list *);
    l->copy_bytes = mpp_arena_array(l->arena, l->plan->n_factors, int64_t *);
    copy_tables(l);
    for (int32_t j = 0; j < l->plan->n_buckets && !l->full; j++) {
        bucket_labels(l, j);
        l->full |= mpp_solver_stopped(l->s);
    }
    if (!l->full)
        combine(l);
}

/* The highest priced rows, at most half of what there is room for. */
static void first_rows(struct labels *l, const int64_t *price)
{
    for (l->n_rows = 0; l->n_rows < MAX_LABEL_ROWS / 2; l->n_rows++) {
        int32_t best = -1;
        for (int32_t r = 0; r < l->s->n_rows; r++) {
            bool known = price[r] <= 0;
            for (int32_t q = 0; q < l->n_rows; q++)
                known |= l->row[q] == r;
            if (!known && (best < 0 || price[r] > price[best]))
                best = r;
        }
        if (best < 0)
            break;
        l->row[l->n_rows] = best;
    }
}

/* Only a choice that costs less than this is of use. */
static int64_t wanted_below(const struct mpp_solver *s, int64_t target)
{
    int64_t wanted = s->upper;
    if (wanted < MPP_SOLVER_INF)
        wanted -= (int64_t)(s->set.gap * (double)wanted);
    return wanted < target ? wanted : target;
}

bool mpp_solver_label(struct mpp_solver *s, struct mpp_solver_plan *plan, const int64_t *prices, int64_t target,
                      int32_t beam, int64_t max_labels)
{
    struct labels l = {.s = s, .plan = plan, .beam = beam, .max_labels = max_labels};
    bool complete = false;
    l.priced = mpp_solver_eval_new(s, plan, prices);
    l.plain = mpp_solver_eval_new(s, plan, NULL);
    if (l.priced->value >= MPP_SOLVER_INF) {
        complete = true;
    } else if (plan->n_split == 0 && !mpp_solver_stopped(s)) {
        struct mpp_arena *tmp = mpp_arena_scratch(s->arena);
        int64_t *class_cost = mpp_arena_array(tmp, plan->classes.first[s->p->n_nodes], int64_t);
        l.outside = mpp_arena_array(tmp, plan->n_buckets, int64_t *);
        int64_t base = l.priced->value - mpp_solver_capacity_value(s, prices);
        int64_t most = wanted_below(s, target);
        mpp_solver_eval_marginals(s, plan, l.priced, most < MPP_SOLVER_INF ? most - base : MPP_SOLVER_INF, class_cost,
                                  l.outside, NULL);
        first_rows(&l, prices);
        for (bool again = true; again && !mpp_solver_stopped(s);) {
            int64_t wanted = wanted_below(s, target);
            l.slack = wanted - 1 - base;
            again = false;
            complete = l.slack < 0;
            if (!complete) {
                label_pass(&l);
                if (!l.full) {
                    bool first_fits = offer_all(&l);
                    again = !first_fits && l.n_rows < MAX_LABEL_ROWS;
                    complete = first_fits && !l.cut;
                }
                mpp_arena_free(l.arena);
            }
            wanted = wanted < s->upper ? wanted : s->upper;
            if (complete && wanted > s->bound)
                s->bound = wanted;
        }
        mpp_arena_free(tmp);
    }
    mpp_solver_eval_free(l.priced);
    mpp_solver_eval_free(l.plain);
    return complete;
}
