/* label.c - ways to settle part of a problem: their sums, and which of them may be forgotten. */
#include <stdlib.h>
#include <string.h>

#include "solver/pack.h"

enum { MOST_LABELS = 2000000, BATCH = 1000, COMPARED = 200, LOOKED_AT = 12 };
static const int64_t MOST_WORK = 200000000;

struct mpp_pw_labels *mpp_pw_labels_new(const struct mpp_pw_graph *g, const int32_t *row, int32_t n_rows,
                                        const int64_t *price, int64_t slack, struct mpp_arena *arena)
{
    struct mpp_pw_labels *l = mpp_arena_array(arena, 1, struct mpp_pw_labels);
    *l = (struct mpp_pw_labels){.arena = arena, .n_rows = n_rows, .row = row, .slack = slack, .most_work = MOST_WORK};
    for (int32_t r = 0; r < n_rows; r++) {
        l->capacity[r] = g->capacity[row[r]];
        l->price[r] = price[row[r]];
    }
    for (int32_t i = 0; i < g->n_nodes; i++)
        mpp_pw_labels_range(l, &g->nodes[i], 1, l->all_least, l->all_most);
    return l;
}

void mpp_pw_labels_range(const struct mpp_pw_labels *l, const struct mpp_pw_node *v, int32_t sign, int64_t *least, int64_t *most)
{
    for (int32_t r = 0; r < l->n_rows && !v->gone; r++)
        for (int32_t s = 0; s < v->n_segments && v->segments[s].lo <= l->row[r]; s++) {
            if (l->row[r] >= v->segments[s].hi)
                continue;
            int64_t lo = v->segments[s].bytes[0], hi = lo;
            for (int32_t k = 1; k < v->n; k++) {
                lo = v->segments[s].bytes[k] < lo ? v->segments[s].bytes[k] : lo;
                hi = v->segments[s].bytes[k] > hi ? v->segments[s].bytes[k] : hi;
            }
            least[r] += sign * lo;
            most[r] += sign * hi;
        }
}

static int32_t new_label(struct mpp_pw_labels *l)
{
    if (l->n >= MOST_LABELS || l->work > l->most_work) {
        l->full = true;
        return -1;
    }
    l->label = mpp_arena_grow(l->arena, l->label, &l->label_cap, l->n + 1, sizeof *l->label);
    l->bytes = mpp_arena_grow(l->arena, l->bytes, &l->bytes_cap, (l->n + 1) * (size_t)l->n_rows + 1, sizeof *l->bytes);
    l->label[l->n] = (struct mpp_pw_label){0, 0, -1, -1, -1, 0};
    memset(l->bytes + l->n * (size_t)l->n_rows, 0, sizeof *l->bytes * (size_t)l->n_rows);
    l->work += 4;
    return (int32_t)l->n++;
}

static void put(struct mpp_pw_labels *l, int32_t id)
{
    l->cur = mpp_arena_grow(l->arena, l->cur, &l->cur_cap, l->n_cur + 1, sizeof *l->cur);
    l->cur[l->n_cur++] = id;
}

int32_t mpp_pw_labels_add(struct mpp_pw_labels *l)
{
    int32_t id = new_label(l);
    if (id >= 0)
        put(l, id);
    return id;
}

/* ---- what may be forgotten ---------------------------------------------------------------------------- */

struct place {
    int64_t cost, bytes;          /* bytes: at the first row */
    int32_t id;
};

static int cheapest_first(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost < y->cost ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static bool takes_no_more(const struct mpp_pw_labels *l, int32_t a, int32_t b)
{
    const int64_t *x = mpp_pw_label_bytes(l, a), *y = mpp_pw_label_bytes(l, b);
    for (int32_t r = 0; r < l->n_rows; r++)
        if (x[r] > y[r])
            return false;
    return true;
}

/* The bytes at two rows of labels that are kept so far, none of which takes no more than another: by the first row ascending,
 * so that the second descends. */
struct stairs {
    int64_t *x, *y;
    size_t n;
};

static size_t stair_at(const struct stairs *s, int64_t x)
{
    size_t lo = 0, hi = s->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (s->x[mid] <= x)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Add (X, Y) unless a stair takes no more. */
static bool climb(struct stairs *s, int64_t x, int64_t y)
{
    size_t at = stair_at(s, x), from = at, to = at;
    if (at > 0 && s->y[at - 1] <= y)
        return false;
    while (to < s->n && s->y[to] >= y)
        to++;
    while (from > 0 && s->x[from - 1] == x) /* with more at the second row */
        from--;
    memmove(s->x + from + 1, s->x + to, (s->n - to) * sizeof *s->x);
    memmove(s->y + from + 1, s->y + to, (s->n - to) * sizeof *s->y);
    s->x[from] = x;
    s->y[from] = y;
    s->n = s->n - (to - from) + 1;
    return true;
}

/* Does one of the labels from STOP to END of the current list take no more than ID? */
static bool any_takes_no_more(const struct mpp_pw_labels *l, size_t stop, size_t end, int32_t id)
{
    while (end > stop)
        if (takes_no_more(l, l->cur[--end], id))
            return true;
    return false;
}

void mpp_pw_labels_filter(struct mpp_pw_labels *l, size_t from)
{
    size_t n = l->n_cur - from, kept = from;
    if (n < 2)
        return;
    struct mpp_arena *scratch = mpp_arena_scratch(l->arena);
    struct place *at = mpp_arena_array(scratch, n, struct place);
    struct stairs stairs = {mpp_arena_array(scratch, n + 1, int64_t), mpp_arena_array(scratch, n + 1, int64_t), 0};
    for (size_t i = 0; i < n; i++) {
        int32_t id = l->cur[from + i];
        at[i] = (struct place){l->label[id].cost, l->n_rows > 0 ? mpp_pw_label_bytes(l, id)[0] : 0, id};
    }
    qsort(at, n, sizeof *at, cheapest_first);
    for (size_t i = 0; i < n; i++) {
        /* With one row the last one kept is the leanest so far. */
        size_t window = l->n_rows <= 1 ? 1 : COMPARED, stop = kept - from > window ? kept - window : from;
        const int64_t *bytes = mpp_pw_label_bytes(l, at[i].id);
        bool keep = l->n_rows == 2 ? climb(&stairs, bytes[0], bytes[1]) : !any_takes_no_more(l, stop, kept, at[i].id);
        l->work += l->n_rows == 2 ? 8 : (int64_t)(kept - stop) / 4 + 1;
        if (keep)
            l->cur[kept++] = at[i].id; /* kept <= from + i: not read any more */
    }
    l->n_cur = kept;
    mpp_arena_free(scratch);
}

/* The same, and the labels from START on, which are all in that part, move together. */
static void settle(struct mpp_pw_labels *l, size_t from, size_t start)
{
    mpp_pw_labels_filter(l, from);
    size_t n = l->n_cur - from, width = (size_t)l->n_rows;
    struct mpp_arena *scratch = mpp_arena_scratch(l->arena);
    struct mpp_pw_label *label = mpp_arena_array(scratch, n, struct mpp_pw_label);
    int64_t *bytes = mpp_arena_array(scratch, n * width + 1, int64_t);
    for (size_t i = 0; i < n; i++) {
        label[i] = l->label[l->cur[from + i]];
        memcpy(bytes + i * width, mpp_pw_label_bytes(l, l->cur[from + i]), width * sizeof *bytes);
        l->cur[from + i] = (int32_t)(start + i);
    }
    if (n > 0) {
        memcpy(l->label + start, label, n * sizeof *label);
        memcpy(l->bytes + start * width, bytes, n * width * sizeof *bytes);
    }
    l->n = start + n;
    mpp_arena_free(scratch);
}

/* ---- sums --------------------------------------------------------------------------------------------- */

struct term {
    int64_t over;
    int32_t id;
};

struct promise {                  /* of a label: what it and the rest cost above the least */
    double over;
    size_t at;
};

static int least_over_first(const void *a, const void *b)
{
    const struct term *x = a, *y = b;
    return x->over != y->over ? (x->over < y->over ? -1 : 1) : (x->id > y->id) - (x->id < y->id);
}

static struct term *sorted(const struct mpp_pw_labels *l, const int32_t *id, int32_t n, struct mpp_arena *arena)
{
    struct term *t = mpp_arena_array(arena, n, struct term);
    for (int32_t i = 0; i < n; i++)
        t[i] = (struct term){l->label[id[i]].over, id[i]};
    qsort(t, (size_t)n, sizeof *t, least_over_first);
    return t;
}

static int64_t rest_of_sum(const struct mpp_pw_labels *l, const int64_t *x, const int64_t *y)
{
    int64_t bytes[MPP_PW_LABEL_ROWS];
    for (int32_t r = 0; r < l->n_rows; r++)
        bytes[r] = x[r] + y[r];
    double least = mpp_pw_rest_least(l, bytes);
    return least < (double)MPP_PW_BIG ? (int64_t)least : MPP_PW_BIG;
}

/* Can bytes X and Y, beside the rest, stay within capacity and leave so little of it that OVER is no more than LIMIT? What is
 * left free costs its price: cost = bound + over + price of the free bytes. */
static bool of_use(const struct mpp_pw_labels *l, const int64_t *x, const int64_t *y, int64_t over, int64_t limit)
{
    mpp_i128 idle = 0;
    for (int32_t r = 0; r < l->n_rows; r++) {
        int64_t bytes = x[r] + y[r];
        if (bytes + l->rest_least[r] > l->capacity[r])
            return false;
        int64_t free_bytes = l->capacity[r] - bytes - l->rest_most[r];
        if (free_bytes > 0)
            idle += (mpp_i128)free_bytes * l->price[r];
    }
    return over + (mpp_i128)(idle >> MPP_PW_PRICE_BITS) <= limit && (!l->knows_rest || over + rest_of_sum(l, x, y) <= limit);
}

static void add_sum(struct mpp_pw_labels *l, int32_t a, int32_t b)
{
    int32_t id = mpp_pw_labels_add(l);
    if (id < 0)
        return;
    const struct mpp_pw_label *x = &l->label[a], *y = &l->label[b];
    l->label[id] = (struct mpp_pw_label){x->cost + y->cost, x->over + y->over, a, b, -1, 0};
    for (int32_t r = 0; r < l->n_rows; r++)
        mpp_pw_label_bytes(l, id)[r] = mpp_pw_label_bytes(l, a)[r] + mpp_pw_label_bytes(l, b)[r];
}

/* Does one of the N labels at FRONT, by cost, cost no more than COST and take no more than X and Y together? */
static bool is_covered(const struct mpp_pw_labels *l, const int32_t *front, size_t n, int64_t cost, const int64_t *x,
                       const int64_t *y)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (l->label[front[mid]].cost <= cost)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (size_t tries = l->n_rows <= 1 ? 1 : LOOKED_AT; lo > 0 && tries > 0; tries--) {
        const int64_t *z = mpp_pw_label_bytes(l, front[--lo]);
        bool less = true;
        for (int32_t r = 0; r < l->n_rows && less; r++)
            less = z[r] <= x[r] + y[r];
        if (less)
            return true;
    }
    return false;
}

static int most_promising(const void *a, const void *b)
{
    const struct promise *x = a, *y = b;
    return x->over != y->over ? (x->over < y->over ? -1 : 1) : (x->at > y->at) - (x->at < y->at);
}

void mpp_pw_labels_narrow(struct mpp_pw_labels *l, size_t from, int32_t most)
{
    size_t n = l->n_cur - from, kept = from;
    if (l->beam == 0 || n <= (size_t)most || !l->knows_rest)
        return;
    struct mpp_arena *scratch = mpp_arena_scratch(l->arena);
    struct promise *x = mpp_arena_array(scratch, n, struct promise);
    bool *stays = mpp_arena_array(scratch, n, bool);
    for (size_t i = 0; i < n; i++) {
        int32_t id = l->cur[from + i];
        x[i] = (struct promise){(double)l->label[id].over + mpp_pw_rest_least(l, mpp_pw_label_bytes(l, id)), i};
    }
    qsort(x, n, sizeof *x, most_promising);
    for (int32_t i = 0; i < most; i++)
        stays[x[i].at] = true;
    for (size_t i = 0; i < n; i++)
        if (stays[i])
            l->cur[kept++] = l->cur[from + i];
    l->n_cur = kept;
    l->cut = true;
    mpp_arena_free(scratch);
}

/* Sums of the N labels ID and those of SUB become the current list's part from FROM on. */
static void sum_up(struct mpp_pw_labels *l, size_t from, const int32_t *id, int32_t n, const struct mpp_pw_list *sub,
                   int64_t limit)
{
    struct mpp_arena *scratch = mpp_arena_scratch(l->arena);
    struct term *a = sorted(l, id, n, scratch), *b = sorted(l, sub->id, sub->n, scratch);
    size_t start = l->n, front = 0;
    l->n_cur = from;
    for (int32_t i = 0; i < n && !l->full; i++) {
        const int64_t *x = mpp_pw_label_bytes(l, a[i].id);
        int64_t cost = l->label[a[i].id].cost;
        l->full = l->full || l->work > l->most_work || (l->watch && l->watch->expired(l->watch->context));
        for (int32_t j = 0; j < sub->n && a[i].over + b[j].over <= limit && !l->full; j++) {
            const int64_t *y = mpp_pw_label_bytes(l, b[j].id);
            l->work++;
            if (!of_use(l, x, y, a[i].over + b[j].over, limit) ||
                is_covered(l, l->cur + from, front, cost + l->label[b[j].id].cost, x, y))
                continue;
            add_sum(l, a[i].id, b[j].id);
            x = mpp_pw_label_bytes(l, a[i].id); /* labels may have moved */
        }
        if (l->n_cur - from > front + front / 2 + BATCH) {
            settle(l, from, start);
            if (l->beam > 0 && l->n_cur - from > 2 * (size_t)l->beam)
                mpp_pw_labels_narrow(l, from, l->beam);
            front = l->n_cur - from;
        }
    }
    settle(l, from, start);
    mpp_pw_labels_narrow(l, from, l->beam);
    mpp_arena_free(scratch);
}

void mpp_pw_labels_extend(struct mpp_pw_labels *l, size_t from, const struct mpp_pw_list *sub, int64_t limit)
{
    struct mpp_arena *scratch = mpp_arena_scratch(l->arena);
    int32_t n = (int32_t)(l->n_cur - from), *id = mpp_arena_memdup(scratch, l->cur + from, (size_t)n * sizeof *l->cur);
    sum_up(l, from, id, n, sub, limit);
    mpp_arena_free(scratch);
}

struct mpp_pw_list mpp_pw_labels_join(struct mpp_pw_labels *l, const struct mpp_pw_list *a, const struct mpp_pw_list *b)
{
    sum_up(l, 0, a->id, a->n, b, l->slack);
    struct mpp_pw_list sum = {(int32_t)l->n_cur, mpp_arena_memdup(l->arena, l->cur, l->n_cur * sizeof *l->cur)};
    l->n_cur = 0;
    return sum;
}

static bool fit_together(const struct mpp_pw_labels *l, int32_t a, int32_t b)
{
    for (int32_t r = 0; r < l->n_rows; r++)
        if (mpp_pw_label_bytes(l, a)[r] + (b >= 0 ? mpp_pw_label_bytes(l, b)[r] : 0) > l->capacity[r])
            return false;
    return true;
}

/* LEANEST [n] is the least bytes at the first row of the labels up to there: where it first leaves ROOM. */
static int32_t first_within(const int64_t *leanest, int32_t n, int64_t room)
{
    int32_t lo = 0, hi = n;
    while (lo < hi) {
        int32_t mid = (lo + hi) / 2;
        if (leanest[mid] > room)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

bool mpp_pw_labels_best(struct mpp_pw_labels *l, const struct mpp_pw_list *a, const struct mpp_pw_list *b, int64_t upper,
                        int32_t out[2])
{
    struct mpp_arena *scratch = mpp_arena_scratch(l->arena);
    int64_t *leanest = mpp_arena_array(scratch, b->n, int64_t);
    bool found = false;
    for (int32_t j = 0; j < b->n && l->n_rows > 0; j++) {
        int64_t bytes = mpp_pw_label_bytes(l, b->id[j])[0];
        leanest[j] = j > 0 && leanest[j - 1] < bytes ? leanest[j - 1] : bytes;
    }
    for (int32_t i = 0; i < a->n; i++) {
        int64_t cost = l->label[a->id[i]].cost;
        int32_t j = l->n_rows > 0 ? first_within(leanest, b->n, l->capacity[0] - mpp_pw_label_bytes(l, a->id[i])[0]) : 0;
        for (; j < (b->n > 0 ? b->n : 1); j++) {
            int32_t other = b->n > 0 ? b->id[j] : -1;
            int64_t sum = cost + (other >= 0 ? l->label[other].cost : 0);
            l->work++;
            if (sum >= upper)
                break;
            if (!fit_together(l, a->id[i], other))
                continue;
            upper = sum;
            out[0] = a->id[i];
            out[1] = other;
            found = true;
            break;
        }
    }
    mpp_arena_free(scratch);
    return found;
}
