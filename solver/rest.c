/* rest.c - what a sum of labels leaves to the parts that it does not hold: at least how much these must pay for the room left.
 *
 * Along one row of memory a list of labels has a lower convex hull: the least priced cost above its least at so many
 * bytes. The hulls of several lists add up by putting their pieces in the order of their slopes, as in the bounds by which
 * Pisinger (A minimal algorithm for the multiple-choice knapsack problem, EJOR 1995) forgets states. Free bytes cost the
 * row's price, so a slope beyond that is never taken. With several rows their priced sum is one row more. Sums are of
 * floating point numbers, and a margin far above their error keeps the bound true. */
#include <math.h>
#include <stdlib.h>

#include "solver/pack.h"

struct mpp_pw_piece {
    double slope, bytes, over;
    int32_t part;
};

static const double MARGIN = 1e-9, MARGIN_OF_SUM = 1e-12;

static int32_t directions(const struct mpp_pw_labels *l)
{
    return l->n_rows > 1 ? l->n_rows + 1 : l->n_rows;
}

/* What BYTES [n_rows] are along direction D. */
static double along(const struct mpp_pw_labels *l, int32_t d, const int64_t *bytes)
{
    double sum = 0;
    if (d < l->n_rows)
        return (double)bytes[d];
    for (int32_t r = 0; r < l->n_rows; r++)
        sum += l->rest[r].price * (double)bytes[r];
    return sum;
}

struct point {
    double x, over;
};

static int by_bytes(const void *a, const void *b)
{
    const struct point *p = a, *q = b;
    return p->x != q->x ? (p->x < q->x ? -1 : 1) : (p->over > q->over) - (p->over < q->over);
}

/* The lower convex hull of N > 0 points, in place; returns its size. */
static int32_t hull(struct point *p, int32_t n)
{
    int32_t m = 0;
    qsort(p, (size_t)n, sizeof *p, by_bytes);
    for (int32_t i = 0; i < n; i++) {
        if (m > 0 && p[i].x == p[m - 1].x)
            continue;
        while (m > 1 && (p[m - 1].over - p[m - 2].over) * (p[i].x - p[m - 1].x) >= (p[i].over - p[m - 1].over) * (p[m - 1].x - p[m - 2].x))
            m--;
        p[m++] = p[i];
    }
    return m;
}

static int by_slope(const void *a, const void *b)
{
    const struct mpp_pw_piece *p = a, *q = b;
    return p->slope != q->slope ? (p->slope < q->slope ? -1 : 1) : (p->part > q->part) - (p->part < q->part);
}

void mpp_pw_rest_know(struct mpp_pw_labels *l, struct mpp_pw_part *const *part, int32_t n_parts)
{
    l->n_parts = n_parts;
    for (int32_t d = 0; d < directions(l); d++) {
        struct mpp_pw_rest *rest = &l->rest[d];
        size_t cap = 0;
        rest->price = d < l->n_rows ? ldexp((double)l->price[d], -MPP_PW_PRICE_BITS) : 1; /* the last is in units of cost */
        rest->first_bytes = mpp_arena_array(l->arena, n_parts, double);
        rest->first_over = mpp_arena_array(l->arena, n_parts, double);
        rest->n_pieces = 0;
        rest->piece = NULL;
        for (int32_t i = 0; i < n_parts; i++) {
            const struct mpp_pw_list *list = &part[i]->list;
            struct mpp_arena *scratch = mpp_arena_scratch(l->arena);
            struct point *p = mpp_arena_array(scratch, list->n, struct point);
            for (int32_t k = 0; k < list->n; k++)
                p[k] = (struct point){along(l, d, mpp_pw_label_bytes(l, list->id[k])), (double)l->label[list->id[k]].over};
            int32_t n = hull(p, list->n);
            rest->first_bytes[i] = p[0].x;
            rest->first_over[i] = p[0].over;
            rest->piece = mpp_arena_grow(l->arena, rest->piece, &cap, (size_t)(rest->n_pieces + n), sizeof *rest->piece);
            for (int32_t k = 1; k < n; k++) {
                double bytes = p[k].x - p[k - 1].x, over = p[k].over - p[k - 1].over;
                rest->piece[rest->n_pieces++] = (struct mpp_pw_piece){over / bytes, bytes, over, i};
            }
            mpp_arena_free(scratch);
        }
        if (rest->n_pieces > 0)
            qsort(rest->piece, (size_t)rest->n_pieces, sizeof *rest->piece, by_slope);
        rest->x = mpp_arena_array(l->arena, rest->n_pieces + 1, double);
        rest->over = mpp_arena_array(l->arena, rest->n_pieces + 1, double);
    }
}

void mpp_pw_rest_set(struct mpp_pw_labels *l, const int64_t *copies)
{
    for (int32_t d = 0; d < directions(l); d++) {
        struct mpp_pw_rest *rest = &l->rest[d];
        rest->x[0] = rest->over[0] = rest->loose_least = rest->loose_most = 0;
        rest->n = 1;
        for (int32_t i = 0; i < l->n_parts; i++) {
            rest->x[0] += (double)copies[i] * rest->first_bytes[i];
            rest->over[0] += (double)copies[i] * rest->first_over[i];
        }
        for (int32_t q = 0; q < rest->n_pieces && rest->piece[q].slope < rest->price; q++) {
            double times = (double)copies[rest->piece[q].part];
            if (times == 0)
                continue;
            rest->x[rest->n] = rest->x[rest->n - 1] + times * rest->piece[q].bytes;
            rest->over[rest->n] = rest->over[rest->n - 1] + times * rest->piece[q].over;
            rest->n++;
        }
        int32_t best = 0;
        while (best + 1 < rest->n && rest->over[best + 1] < rest->over[best])
            best++;
        rest->at_least = rest->x[best];
    }
    l->knows_rest = true;
}

void mpp_pw_rest_loosen(struct mpp_pw_labels *l)
{
    double least = 0, most = 0;
    for (int32_t r = 0; r < l->n_rows; r++) {
        struct mpp_pw_rest *rest = &l->rest[r];
        rest->loose_least = (double)(l->rest_least[r] - l->known_least[r]);
        rest->loose_most = (double)(l->rest_most[r] - l->known_most[r]);
        least += rest->price * rest->loose_least;
        most += rest->price * rest->loose_most;
    }
    l->rest[l->n_rows].loose_least = least;
    l->rest[l->n_rows].loose_most = most;
}

/* At least what the rest costs above its least, with ROOM bytes along D for it and for nothing. */
static double least_over(const struct mpp_pw_labels *l, int32_t d, double room)
{
    const struct mpp_pw_rest *rest = &l->rest[d];
    int32_t lo = 0, hi = rest->n;
    double loose = room - rest->at_least;
    loose = loose < rest->loose_least ? rest->loose_least : loose > rest->loose_most ? rest->loose_most : loose;
    room -= loose;
    while (lo < hi) {
        int32_t mid = (lo + hi) / 2;
        if (rest->x[mid] <= room)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == 0)
        return rest->over[0];     /* too little, and if only by rounding: the caller looks at that in whole numbers */
    if (lo == rest->n)
        return rest->over[lo - 1] + rest->price * (room - rest->x[lo - 1]);
    double share = (room - rest->x[lo - 1]) / (rest->x[lo] - rest->x[lo - 1]);
    return rest->over[lo - 1] + share * (rest->over[lo] - rest->over[lo - 1]);
}

double mpp_pw_rest_least(const struct mpp_pw_labels *l, const int64_t *bytes)
{
    double most = 0, all = 0;
    for (int32_t r = 0; r < l->n_rows; r++) {
        double room = (double)(l->capacity[r] - bytes[r]);
        double least = least_over(l, r, room);
        most = least > most ? least : most;
        all += l->rest[r].price * room;
    }
    const struct mpp_pw_rest *sum = &l->rest[l->n_rows];
    double least = l->n_rows > 1 ? least_over(l, l->n_rows, all) - MARGIN_OF_SUM * (fabs(all) + sum->x[sum->n - 1]) : 0;
    return (least > most ? least : most) * (1 - MARGIN) - 1;
}
