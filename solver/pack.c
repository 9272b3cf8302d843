/* pack.c - what only memory joins: the graph's components as items, put together exactly.
 *
 * With a price on the memory rows the components part. Each is eliminated alone, keeping labels (cost, bytes at the rows of
 * interest) instead of one best cost, as in resource-constrained shortest paths (Handler and Zang, 1980): a label goes when
 * another costs no more and takes no more, or when its priced cost, the least of the rest and the bound together reach what
 * is known already. Equal components (layers of a model) are worked out once, and n of them by doubling. Then the lists are
 * joined, the shortest first. What is sought lies mostly close to the bound, so a small distance is searched first, then
 * wider ones. Rows join as answers violate them. All in whole numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "solver/pack.h"

enum { MOST_TRIALS = 90, WIDER = 8, WIDER_SOON = 2, ROWS_AT_ONCE = 3, BEAM = 250, LAST_BEAM = 40, CHOOSE_FROM = 10, SAMPLE = 100, MANY_PARTS = 200 };
static const double FIRST_REACH = 1e-8;
static const int64_t MUCH_WORK = 2000000, GLANCE_WORK = 30000000;

struct pack {
    struct mpp_pw_items *at;
    struct mpp_pw_pack *x;
    struct mpp_pw_labels *labels;
    int64_t *copies;              /* [parts] that a sum leaves */
};

/* ---- one distance --------------------------------------------------------------------------------------------- */

/* A list, and what it stands for: the copies of a part, or two piles. */
struct pile {
    struct mpp_pw_list list;
    int64_t *least, *most;        /* [rows] bytes of the labels of its parts' copies */
    int32_t part, left, right;    /* piles; -1: the copies of PART */
    int32_t nodes;                /* of PART */
    bool joined;
};

/* The least and most bytes of COUNT labels of LIST, at each row. */
static void add_range(const struct pack *p, const struct mpp_pw_list *list, int64_t count, int64_t *least, int64_t *most)
{
    for (int32_t r = 0; r < p->at->n_rows; r++) {
        int64_t lo = INT64_MAX, hi = 0;
        for (int32_t i = 0; i < list->n; i++) {
            int64_t x = mpp_pw_label_bytes(p->labels, list->id[i])[r];
            lo = x < lo ? x : lo;
            hi = x > hi ? x : hi;
        }
        least[r] += count * lo;
        most[r] += count * hi;
    }
}

/* What a sum that holds LEAST to MOST leaves to all others: so many COPIES of each part. */
static void set_rest(struct pack *p, const int64_t *least, const int64_t *most, const int64_t *copies)
{
    mpp_pw_rest_set(p->labels, copies);
    for (int32_t r = 0; r < p->at->n_rows; r++) {
        p->labels->rest_least[r] = p->labels->all_least[r] - least[r];
        p->labels->rest_most[r] = p->labels->all_most[r] - most[r];
    }
}

/* N copies of PART number I: half of them twice, and one more where N is odd. */
static struct mpp_pw_list power_of(struct pack *p, int32_t i, int32_t n)
{
    const struct mpp_pw_part *part = p->at->part[i];
    int64_t least[MPP_PW_LABEL_ROWS] = {0}, most[MPP_PW_LABEL_ROWS] = {0};
    if (n == 1)
        return part->list;
    struct mpp_pw_list half = power_of(p, i, n / 2);
    add_range(p, &part->list, n / 2 * 2, least, most);
    p->copies[i] = part->n_copies - n / 2 * 2;
    set_rest(p, least, most, p->copies);
    struct mpp_pw_list both = mpp_pw_labels_join(p->labels, &half, &half);
    if (n % 2 != 0 && !p->labels->full) {
        add_range(p, &part->list, 1, least, most);
        p->copies[i]--;
        set_rest(p, least, most, p->copies);
        both = mpp_pw_labels_join(p->labels, &both, &part->list);
    }
    p->copies[i] = part->n_copies;
    return both;
}

/* Pile AT holds ALL or none of its parts' copies. */
static void count_pile(struct pack *p, const struct pile *pile, int32_t at, bool all)
{
    if (pile[at].left < 0) {
        p->copies[pile[at].part] = all ? p->at->part[pile[at].part]->n_copies : 0;
        return;
    }
    count_pile(p, pile, pile[at].left, all);
    count_pile(p, pile, pile[at].right, all);
}

/* What N copies choose by a label of power_of(n). */
static void read_power(const struct pack *p, const struct mpp_pw_part *part, int32_t label, int32_t *const *copy, int32_t n)
{
    const struct mpp_pw_label *x = &p->labels->label[label];
    if (n == 1) {
        mpp_pw_part_read(p->labels, label, copy[0], p->x->choice);
        return;
    }
    int32_t half = n / 2;
    if (n % 2 != 0) {
        read_power(p, part, x->sub, copy + 2 * half, 1);
        x = &p->labels->label[x->prev];
    }
    read_power(p, part, x->prev, copy, half);
    read_power(p, part, x->sub, copy + half, half);
}

static void read_pile(const struct pack *p, const struct pile *pile, int32_t at, int32_t label)
{
    const struct pile *x = &pile[at];
    if (x->left < 0) {
        read_power(p, p->at->part[x->part], label, p->at->part[x->part]->copy, p->at->part[x->part]->n_copies);
        return;
    }
    read_pile(p, pile, x->left, p->labels->label[label].prev);
    read_pile(p, pile, x->right, p->labels->label[label].sub);
}

static void add_nodes(struct pack *p, const struct mpp_pw_part *part, int32_t count)
{
    for (int32_t i = 0; i < part->n; i++)
        mpp_pw_labels_range(p->labels, &p->at->g->nodes[part->node[i]], count, p->labels->all_least, p->labels->all_most);
}

static int smallest_first(const void *a, const void *b)
{
    const struct pile *x = a, *y = b;
    return x->nodes != y->nodes ? (x->nodes < y->nodes ? -1 : 1) : (x->part > y->part) - (x->part < y->part);
}

/* One pile per part: the small ones first, so that the large ones know what these leave. False: no room. *OUT_EMPTY: some
 * part has nothing within the slack. */
static bool make_piles(struct pack *p, struct pile *pile, bool *out_empty)
{
    struct mpp_pw_labels *l = p->labels;
    *out_empty = true;
    for (int32_t i = 0; i < p->at->n_parts; i++)
        pile[i] = (struct pile){.part = i, .left = -1, .right = -1, .nodes = p->at->part[i]->n};
    qsort(pile, (size_t)p->at->n_parts, sizeof *pile, smallest_first);
    struct mpp_pw_part **known = mpp_arena_array(p->at->trial, p->at->n_parts, struct mpp_pw_part *);
    p->copies = mpp_arena_array(p->at->trial, p->at->n_parts, int64_t);
    for (int32_t i = 0; i < p->at->n_parts; i++) {
        struct mpp_pw_part *part = p->at->part[pile[i].part];
        if (p->at->n_parts <= MANY_PARTS) {
            mpp_pw_rest_know(l, known, i);
            mpp_pw_rest_set(l, p->copies);
        }
        known[i] = part;
        p->copies[i] = part->n_copies;
        if (!mpp_pw_part_labels(part, p->at->g, l))
            return false;
        if (part->list.n == 0)
            return true;
        pile[i].least = mpp_arena_array(p->at->trial, p->at->n_rows + 1, int64_t);
        pile[i].most = mpp_arena_array(p->at->trial, p->at->n_rows + 1, int64_t);
        add_range(p, &part->list, part->n_copies, pile[i].least, pile[i].most);
        add_range(p, &part->list, part->n_copies, l->known_least, l->known_most);
        add_nodes(p, part, -part->n_copies); /* closer than by nodes: */
        add_range(p, &part->list, part->n_copies, l->all_least, l->all_most);
    }
    mpp_pw_rest_know(l, p->at->part, p->at->n_parts);
    for (int32_t i = 0; i < p->at->n_parts; i++)
        p->copies[i] = p->at->part[i]->n_copies;
    for (int32_t i = 0; i < p->at->n_parts; i++) {
        struct mpp_pw_part *part = p->at->part[pile[i].part];
        pile[i].list = power_of(p, pile[i].part, part->n_copies);
        if (l->full || pile[i].list.n == 0)
            return !l->full;
    }
    *out_empty = false;
    return true;
}

/* Piles A and B as pile SUM. */
static void join_piles(struct pack *p, struct pile *pile, int32_t a, int32_t b, int32_t sum)
{
    struct pile *x = &pile[sum];
    *x = (struct pile){.part = -1, .left = a, .right = b};
    x->least = mpp_arena_array(p->at->trial, p->at->n_rows + 1, int64_t);
    x->most = mpp_arena_array(p->at->trial, p->at->n_rows + 1, int64_t);
    for (int32_t r = 0; r < p->at->n_rows; r++) {
        x->least[r] = pile[a].least[r] + pile[b].least[r];
        x->most[r] = pile[a].most[r] + pile[b].most[r];
    }
    count_pile(p, pile, sum, false);
    set_rest(p, x->least, x->most, p->copies);
    count_pile(p, pile, sum, true);
    x->list = mpp_pw_labels_join(p->labels, &pile[a].list, &pile[b].list);
}

/* The shortest lists of the N piles that are not joined yet, shortest first. */
static int32_t shortest(const struct pile *pile, int32_t n, int32_t out[CHOOSE_FROM])
{
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t at = m;
        while (!pile[i].joined && at > 0 && pile[out[at - 1]].list.n > pile[i].list.n)
            at--;
        if (pile[i].joined || at == CHOOSE_FROM)
            continue;
        m += m < CHOOSE_FROM;
        memmove(out + at + 1, out + at, (size_t)(m - at - 1) * sizeof *out);
        out[at] = i;
    }
    return m;
}

/* Part of a list: around what costs least. */
static struct mpp_pw_list middle_of(const struct pack *p, const struct mpp_pw_list *list)
{
    const struct mpp_pw_label *label = p->labels->label;
    int32_t least = 0, from;
    for (int32_t i = 1; i < list->n; i++)
        least = label[list->id[i]].over < label[list->id[least]].over ? i : least;
    from = least > SAMPLE / 2 ? least - SAMPLE / 2 : 0;
    from = list->n - from < SAMPLE ? list->n - SAMPLE : from;
    from = from > 0 ? from : 0;
    return (struct mpp_pw_list){list->n - from < SAMPLE ? list->n - from : SAMPLE, list->id + from};
}

/* Piles A and B: how many of their sums are kept, to one of as many as there are; tried on part of them. */
static double try_sum(struct pack *p, struct pile *pile, int32_t a, int32_t b, int32_t sum)
{
    struct mpp_pw_list x = pile[a].list, y = pile[b].list;
    size_t kept = p->labels->n;
    bool cut = p->labels->cut;
    pile[a].list = middle_of(p, &x);
    pile[b].list = middle_of(p, &y);
    double pairs = (double)pile[a].list.n * pile[b].list.n;
    join_piles(p, pile, a, b, sum);
    pile[a].list = x;
    pile[b].list = y;
    p->labels->n = kept;
    p->labels->cut = cut;
    return (pile[sum].list.n + 1) / pairs;
}

/* Two of the N piles to join next: those whose sum is short for what it holds, as many of its labels make others needless.
 * SHARE [n_parts * 2][n_parts * 2] remembers what was tried; NULL: the shortest. */
static void choose_two(struct pack *p, struct pile *pile, int32_t n, double *share, int32_t out[2])
{
    int32_t from[CHOOSE_FROM] = {0}, m = shortest(pile, n, from), width = 2 * p->at->n_parts;
    double best = HUGE_VAL;
    out[0] = from[0];
    out[1] = m > 1 ? from[1] : -1;
    for (int32_t i = 0; i < m && m > 2 && share; i++)
        for (int32_t j = i + 1; j < m && !p->labels->full; j++) {
            int32_t a = from[i] < from[j] ? from[i] : from[j], b = from[i] < from[j] ? from[j] : from[i];
            double *x = &share[(int64_t)a * width + b];
            if (*x == 0)
                *x = try_sum(p, pile, a, b, n);
            if (*x < best) {
                best = *x;
                out[0] = a;
                out[1] = b;
            }
        }
}

/* All that lies within the labels' slack of the bound: the cheapest into the choice. False: too much. */
static bool put_together(struct pack *p, bool *out_any)
{
    struct mpp_pw_labels *l = p->labels;
    struct pile *pile = mpp_arena_array(p->at->trial, 2 * (int64_t)p->at->n_parts + 1, struct pile);
    struct mpp_pw_list none = {0};
    int32_t n = p->at->n_parts, two[2], best[2];
    double *share = n <= MANY_PARTS ? mpp_arena_array(p->at->trial, 4 * n * n, double) : NULL;
    bool empty;
    *out_any = false;
    if (!make_piles(p, pile, &empty))
        return false;
    if (empty || n == 0)
        return true;
    for (int32_t left = n; left > 2; left--, n++) {
        choose_two(p, pile, n, share, two);
        l->beam *= left == 3 ? LAST_BEAM : 1; /* what comes of it is not joined any more */
        join_piles(p, pile, two[0], two[1], n);
        pile[two[0]].joined = pile[two[1]].joined = true;
        if (l->full || pile[n].list.n == 0)
            return !l->full;
    }
    choose_two(p, pile, n, share, two);
    if (!mpp_pw_labels_best(l, &pile[two[0]].list, two[1] >= 0 ? &pile[two[1]].list : &none, p->x->upper, best))
        return true;
    *out_any = true;
    read_pile(p, pile, two[0], best[0]);
    if (two[1] >= 0)
        read_pile(p, pile, two[1], best[1]);
    return true;
}

/* ---- the driver -------------------------------------------------------------------------------------------------- */

/* The cost of the choice, and (added to the rows of interest) where it is over capacity; true if nowhere. */
static bool examine(struct pack *p, int64_t *out_cost)
{
    const struct mpp_pw_graph *g = p->at->g;
    const int32_t *choice = p->x->choice;
    int64_t *usage = mpp_arena_array(p->at->trial, g->n_rows + 1, int64_t), sum = 0;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const struct mpp_pw_node *v = &g->nodes[i];
        if (v->gone)
            continue;
        sum = mpp_pw_add(sum, v->cost[choice[i]]);
        for (int32_t s = 0; s < v->n_segments; s++) {
            usage[v->segments[s].lo] += v->segments[s].bytes[choice[i]];
            usage[v->segments[s].hi] -= v->segments[s].bytes[choice[i]];
        }
    }
    for (int32_t e = 0; e < g->n_edges; e++)
        if (!g->edges[e].gone)
            sum = mpp_pw_add(sum, *mpp_pw_entry(g, &g->edges[e], g->edges[e].a, choice[g->edges[e].a], choice[g->edges[e].b]));
    *out_cost = sum;
    for (int32_t t = 1; t < g->n_rows; t++)
        usage[t] += usage[t - 1];
    bool fits = true;
    for (int n = 0; n < ROWS_AT_ONCE; n++) {
        int32_t worst = -1;
        for (int32_t t = 0; t < g->n_rows; t++)
            if (usage[t] > g->capacity[t] && (worst < 0 || usage[t] - g->capacity[t] > usage[worst] - g->capacity[worst]))
                worst = t;
        if (worst < 0)
            break;
        fits = false;
        if (p->at->n_rows < MPP_PW_LABEL_ROWS)
            p->at->row[p->at->n_rows++] = worst;
        int32_t t = worst;        /* the whole hill */
        while (t >= 0 && usage[t] > g->capacity[t])
            usage[t--] = 0;
        for (t = worst + 1; t < g->n_rows && usage[t] > g->capacity[t]; t++)
            usage[t] = 0;
    }
    return fits;
}

/* A distance, searched: what is known of it. */
struct trial {
    int64_t reach, cost;
    bool whole, cut, any, fits, better; /* whole: there was room for all; cut: but not all was looked at */
};

/* Labels up to a distance put together; for a glance only the most promising. */
static void try_reach(struct pack *p, struct trial *t)
{
    struct mpp_pw_pack *x = p->x;
    p->labels = mpp_pw_labels_new(p->at->g, p->at->row, p->at->n_rows, p->at->price, t->reach, p->at->trial);
    if (x->most_work > 0)
        p->labels->most_work = x->most_work;
    if (x->glance) {
        p->labels->beam = BEAM;
        p->labels->most_work = GLANCE_WORK;
    }
    p->labels->watch = x->watch;
    if (x->work_limit > 0 && x->work_limit - x->work < p->labels->most_work)
        p->labels->most_work = x->work_limit > x->work ? x->work_limit - x->work : 0;
    t->whole = put_together(p, &t->any);
    t->cut = p->labels->cut;
    t->fits = t->better = false;
    x->work += p->labels->work;
    if (!t->any)
        return;
    t->fits = examine(p, &t->cost);
    t->better = t->fits && t->cost < x->upper;
    if (t->better) {
        x->upper = x->cost = t->cost;
        x->found = true;
        memcpy(x->best, x->choice, sizeof *x->best * (size_t)p->at->g->n_nodes);
    }
}

/* The next distance to look at: wider, but not beyond what is of use. */
static int64_t widen(const struct pack *p, int64_t reach, int64_t most)
{
    int wider = p->labels->work < MUCH_WORK || p->labels->beam > 0 ? WIDER : WIDER_SOON;
    reach = reach > MPP_PW_BIG / wider ? MPP_PW_BIG : reach * wider;
    return reach > most / WIDER_SOON ? most : reach;
}

static void solve(struct pack *p)
{
    struct mpp_pw_pack *x = p->x;
    struct trial t = {0};
    for (int trial = 0; trial < MOST_TRIALS && !x->watch->expired(x->watch->context); trial++) {
        if (!mpp_pw_items_sort(p->at))
            return;
        x->bound = p->at->bound > x->bound ? p->at->bound : x->bound;
        if (trial == 0) {
            t.reach = (int64_t)(FIRST_REACH * (double)(p->at->bound > 0 ? p->at->bound : 1)) + 1;
            t.reach = x->lower - p->at->bound > t.reach ? x->lower - p->at->bound : t.reach;
        }
        int64_t most = x->upper - 1 - p->at->bound;
        t.reach = t.reach < most ? t.reach : most;
        if (most < 0) {
            x->status = x->found ? MPP_PW_EXACT_OPTIMAL : MPP_PW_EXACT_NONE;
            return;
        }
        int32_t rows = p->at->n_rows;
        try_reach(p, &t);
        x->rows = p->at->n_rows;
        if (!t.whole || (t.any && !t.fits && p->at->n_rows == rows))
            return;
        if (t.any && !t.fits)
            continue;             /* again, with the rows it is over */
        most = x->upper - 1 - p->at->bound;
        if (!t.cut) {
            x->reach = t.reach;
            x->bound = p->at->bound + t.reach > x->bound ? p->at->bound + t.reach : x->bound;
            if (most <= t.reach) {
                x->status = x->found ? MPP_PW_EXACT_OPTIMAL : MPP_PW_EXACT_NONE;
                return;
            }
        }
        if (t.cut && t.better) {  /* once more with less room for what promises little */
            t.reach = most;
            continue;
        }
        if (x->glance && (x->found || t.reach >= most))
            return;
        t.reach = widen(p, t.reach, most);
    }
}

void mpp_pw_pack_near(struct mpp_pw_items *at, struct mpp_pw_pack *x)
{
    struct pack p = {.at = at, .x = x};
    x->status = MPP_PW_EXACT_LIMIT;
    solve(&p);
}
