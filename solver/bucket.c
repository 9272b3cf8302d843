/* bucket.c - see bucket.h.
 *
 * A bucket is a vertex with what is tabulated about it when its turn comes: links, and messages of vertices eliminated
 * before. Its own message says, per choices of its neighbours then (its scope), what it and all before it cost at least.
 * Dimensions of every table are in the order of elimination: a table's first is the vertex whose bucket it falls into, and
 * inner loops run along memory. */
#include "solver/bucket.h"

#include <math.h>
#include <string.h>

static const double MUST_STAY = 1e9;
enum { WORK_PER_PLAN = 2000 }; /* in entries of tables, by its time */

struct factor {
    const double *table;
    int64_t own;                  /* step per choice of the bucket's vertex */
    int64_t inner;                /* 0 or 1: step per choice of the scope's last */
    int64_t *step;                /* [n_scope - 1] to the next row, when dimension d is the one that advances */
    int64_t *stride;              /* [n_scope] */
    const double *row;            /* now */
};

struct mpp_pw_bucket {
    int32_t vertex, n;            /* choices */
    int32_t n_scope, *scope, *width; /* places, ascending; choices */
    int64_t size;                 /* of the message */
    double *message;
    int32_t n_factors, n_inner;   /* those of step 1 come first */
    struct factor *factor;
};

/* ---- the order ------------------------------------------------------------------------------------------------- */

struct planner {
    const struct mpp_pw_relax *r;
    struct mpp_pw_random *random;
    struct mpp_arena *arena;
    int32_t n;                    /* members */
    const int32_t *member;
    int32_t *number;              /* [r->n] among the members, -1: none */
    int32_t **near, *n_near;      /* [n] neighbours that are left */
    size_t *near_cap;
    int32_t *mark;                /* [n] scratch: who looked last */
    bool *out, *held;             /* [n] */
    double *log_n, *size;         /* [n] of choices; of the table if it were eliminated now */
    double *taste, *weight;       /* [n] drawn once: how early a vertex is eliminated, how readily held */
    int32_t n_order, *order;      /* members */
    int32_t **scope, *n_scope;    /* [n] members, at elimination */
    struct offer *heap;           /* least size first; those whose size has changed since are passed over */
    size_t n_heap, heap_cap;
    int64_t work;
};

struct offer {
    double size;
    int32_t member;
};

static double draw_unit(struct mpp_pw_random *random)
{
    return ((double)mpp_pw_draw_below(random, 1 << 20) + 0.5) / (1 << 20);
}

static int32_t link_at(const struct mpp_pw_vertex *v, int32_t i)
{
    return i < v->n_before ? v->before[i] : v->after[i - v->n_before];
}

static int32_t far_end(const struct mpp_pw_link *x, int32_t i)
{
    return x->a == i ? x->b : x->a;
}

static bool before(const struct offer *a, const struct offer *b)
{
    return a->size != b->size ? a->size < b->size : a->member < b->member;
}

static void make_offer(struct planner *p, int32_t m)
{
    struct offer x = {p->size[m] + p->taste[m], m};
    p->heap = mpp_arena_grow(p->arena, p->heap, &p->heap_cap, p->n_heap + 1, sizeof *p->heap);
    size_t at = p->n_heap++;
    for (; at > 0 && before(&x, &p->heap[(at - 1) / 2]); at = (at - 1) / 2)
        p->heap[at] = p->heap[(at - 1) / 2];
    p->heap[at] = x;
}

static struct offer take_offer(struct planner *p)
{
    struct offer top = p->heap[0], x = p->heap[--p->n_heap];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < p->n_heap && before(&p->heap[child + 1], &p->heap[child]))
            child++;
        if (child >= p->n_heap || !before(&p->heap[child], &x))
            break;
        p->heap[at] = p->heap[child];
        at = child;
    }
    p->heap[at] = x;
    return top;
}

static void measure(struct planner *p, int32_t m)
{
    double sum = p->log_n[m];
    for (int32_t i = 0; i < p->n_near[m]; i++)
        sum += p->log_n[p->near[m][i]];
    p->size[m] = sum;
}

static void meet(struct planner *p, int32_t m, int32_t u)
{
    p->near[m] = mpp_arena_grow(p->arena, p->near[m], &p->near_cap[m], (size_t)p->n_near[m] + 1, sizeof *p->near[m]);
    p->near[m][p->n_near[m]++] = u;
}

/* M forgets GONE; with WITH, it meets those of them that it does not know. */
static void rewire(struct planner *p, int32_t m, int32_t gone, const int32_t *with, int32_t n_with)
{
    int32_t n = 0, *near = p->near[m];
    for (int32_t i = 0; i < p->n_near[m]; i++)
        if (near[i] != gone) {
            near[n++] = near[i];
            p->mark[near[i]] = m;
        }
    p->work += p->n_near[m] + n_with;
    p->n_near[m] = n;
    for (int32_t i = 0; i < n_with; i++)
        if (with[i] != m && p->mark[with[i]] != m)
            meet(p, m, with[i]);
    for (int32_t i = 0; i < p->n_near[m]; i++)
        p->mark[p->near[m][i]] = -1;
    measure(p, m);
    make_offer(p, m);
}

static void eliminate(struct planner *p, int32_t m)
{
    int32_t n = p->n_near[m];
    for (int32_t i = 0; i < n; i++)
        rewire(p, p->near[m][i], m, p->near[m], n);
    p->out[m] = true;
    p->scope[m] = p->near[m];
    p->n_scope[m] = n;
    p->order[p->n_order++] = m;
}

static void hold(struct planner *p, int32_t m)
{
    for (int32_t i = 0; i < p->n_near[m]; i++)
        rewire(p, p->near[m][i], m, NULL, 0);
    p->out[m] = p->held[m] = true;
}

/* The member that joins most: it is held when every table would be too large. */
static int32_t hub(const struct planner *p, const bool *must)
{
    int32_t best = -1;
    double most = -HUGE_VAL;
    for (int32_t m = 0; m < p->n; m++) {
        double x = (p->size[m] - p->log_n[m]) * p->weight[m] * p->log_n[m];
        x = must != NULL && must[p->member[m]] ? x - MUST_STAY : x;
        if (!p->out[m] && x > most) {
            most = x;
            best = m;
        }
    }
    return best;
}

static void plan(struct planner *p, const bool *must, double limit)
{
    while (p->n_heap > 0) {
        struct offer x = take_offer(p);
        if (p->out[x.member] || x.size != p->size[x.member] + p->taste[x.member])
            continue;
        if (p->size[x.member] > log(limit))
            hold(p, hub(p, must));
        else
            eliminate(p, x.member);
        if (!p->out[x.member])
            make_offer(p, x.member);
    }
}

static void prepare(struct planner *p)
{
    struct mpp_arena *arena = p->arena;
    p->number = mpp_arena_array(arena, p->r->n, int32_t);
    memset(p->number, 0xff, (size_t)p->r->n * sizeof *p->number);
    p->near = mpp_arena_array(arena, p->n, int32_t *);
    p->n_near = mpp_arena_array(arena, p->n, int32_t);
    p->near_cap = mpp_arena_array(arena, p->n, size_t);
    p->mark = mpp_arena_array(arena, p->n, int32_t);
    p->out = mpp_arena_array(arena, p->n, bool);
    p->held = mpp_arena_array(arena, p->n, bool);
    p->log_n = mpp_arena_array(arena, p->n, double);
    p->size = mpp_arena_array(arena, p->n, double);
    p->taste = mpp_arena_array(arena, p->n, double);
    p->weight = mpp_arena_array(arena, p->n, double);
    p->order = mpp_arena_array(arena, p->n, int32_t);
    p->scope = mpp_arena_array(arena, p->n, int32_t *);
    p->n_scope = mpp_arena_array(arena, p->n, int32_t);
    for (int32_t m = 0; m < p->n; m++) {
        p->number[p->member[m]] = m;
        p->log_n[m] = log(p->r->vertex[p->member[m]].n);
    }
    for (int32_t m = 0; m < p->n; m++) {
        const struct mpp_pw_vertex *v = &p->r->vertex[p->member[m]];
        p->mark[m] = -1;
        p->taste[m] = draw_unit(p->random);
        p->weight[m] = draw_unit(p->random);
        for (int32_t j = 0; j < v->n_before + v->n_after; j++) {
            int32_t u = p->number[far_end(&p->r->link[link_at(v, j)], p->member[m])];
            if (u >= 0)
                meet(p, m, u);
        }
    }
    for (int32_t m = 0; m < p->n; m++) {
        measure(p, m);
        make_offer(p, m);
    }
}

/* ---- the tables ---------------------------------------------------------------------------------------------------- */

/* What a table with dimensions PLACE [n], of which the first is the bucket's own, adds to bucket B. */
static void add_factor(struct mpp_pw_buckets *b, struct mpp_pw_bucket *at, const double *table, const int32_t *place, int32_t n)
{
    struct factor *f = &at->factor[at->n_factors++];
    int64_t stride = 1;
    f->table = table;
    f->stride = mpp_arena_array(b->arena, at->n_scope, int64_t);
    f->step = mpp_arena_array(b->arena, at->n_scope, int64_t);
    for (int32_t d = n - 1, s = at->n_scope - 1; d > 0; d--) {
        while (at->scope[s] != place[d])
            s--;
        f->stride[s] = stride;
        stride *= at->width[s];
    }
    f->own = stride;
    f->inner = at->n_scope > 0 ? f->stride[at->n_scope - 1] : 0;
    int64_t back = 0; /* from the start of a row of dimension d's to where it ended */
    for (int32_t d = at->n_scope - 2; d >= 0; d--) {
        f->step[d] = f->stride[d] - back;
        back += (at->width[d] - 1) * f->stride[d];
    }
}

static void add_links(struct mpp_pw_buckets *b, int32_t at)
{
    const struct mpp_pw_vertex *v = &b->r->vertex[b->bucket[at].vertex];
    for (int32_t j = 0; j < v->n_before + v->n_after; j++) {
        const struct mpp_pw_link *x = &b->r->link[link_at(v, j)];
        int32_t place[2] = {at, b->place[far_end(x, b->bucket[at].vertex)]};
        if (place[1] > at)
            add_factor(b, &b->bucket[at], x->a == b->bucket[at].vertex ? x->cost : x->flipped, place, 2);
    }
}

static void sort_places(int32_t *x, int32_t n)
{
    for (int32_t i = 1; i < n; i++)
        for (int32_t j = i; j > 0 && x[j] < x[j - 1]; j--) {
            int32_t swap = x[j];
            x[j] = x[j - 1];
            x[j - 1] = swap;
        }
}

static void build_bucket(struct mpp_pw_buckets *b, const struct planner *p, int32_t at)
{
    struct mpp_pw_bucket *x = &b->bucket[at];
    int32_t m = p->order[at];
    x->vertex = p->member[m];
    x->n = b->r->vertex[x->vertex].n;
    x->scope = mpp_arena_array(b->arena, p->n_scope[m], int32_t);
    x->width = mpp_arena_array(b->arena, p->n_scope[m], int32_t);
    for (int32_t i = 0; i < p->n_scope[m]; i++)
        if (!p->held[p->scope[m][i]])
            x->scope[x->n_scope++] = b->place[p->member[p->scope[m][i]]];
    sort_places(x->scope, x->n_scope);
    x->size = 1;
    for (int32_t i = 0; i < x->n_scope; i++) {
        x->width[i] = b->r->vertex[p->member[p->order[x->scope[i]]]].n;
        x->size *= x->width[i];
    }
    b->entries += x->size * x->n;
}

static void inner_first(struct mpp_pw_bucket *x)
{
    for (int32_t i = 0; i < x->n_factors; i++)
        if (x->factor[i].inner > 0) {
            struct factor swap = x->factor[i];
            x->factor[i] = x->factor[x->n_inner];
            x->factor[x->n_inner++] = swap;
        }
}

static void build(struct mpp_pw_buckets *b, const struct planner *p, struct mpp_pw_pool *pool)
{
    int64_t total = 0;
    int32_t most = 1, *n_factors = mpp_arena_array(b->arena, b->n, int32_t);
    for (int32_t at = 0; at < b->n; at++)
        build_bucket(b, p, at);
    for (int32_t at = 0; at < b->n; at++) {
        struct mpp_pw_bucket *x = &b->bucket[at];
        const struct mpp_pw_vertex *v = &b->r->vertex[x->vertex];
        total += x->size;
        most = x->n > most ? x->n : most;
        if (x->n_scope > 0)
            n_factors[x->scope[0]]++;
        n_factors[at] += v->n_before + v->n_after;
        b->alone[at] = mpp_arena_array(b->arena, x->n, double);
    }
    if (total > pool->cap) {
        mpp_arena_free(pool->arena);
        pool->arena = mpp_arena_scratch(b->r->arena);
        pool->cap = total + total / 2;
        pool->at = mpp_arena_array(pool->arena, pool->cap, double);
    }
    total = 0;
    for (int32_t at = 0; at < b->n; at++) {
        struct mpp_pw_bucket *x = &b->bucket[at];
        x->message = pool->at + total;
        total += x->size;
        if (x->factor == NULL)
            x->factor = mpp_arena_array(b->arena, n_factors[at], struct factor);
        add_links(b, at);
        if (x->n_scope > 0) {
            struct mpp_pw_bucket *to = &b->bucket[x->scope[0]];
            if (to->factor == NULL)
                to->factor = mpp_arena_array(b->arena, n_factors[x->scope[0]], struct factor);
            add_factor(b, to, x->message, x->scope, x->n_scope);
        }
    }
    b->sum = mpp_arena_array(b->arena, most, double);
    for (int32_t at = 0; at < b->n; at++)
        inner_first(&b->bucket[at]);
}

struct mpp_pw_buckets *mpp_pw_buckets_new(const struct mpp_pw_relax *r, const int32_t *member, int32_t n_members, const bool *must,
                                          double limit, struct mpp_pw_pool *pool, struct mpp_pw_random *random)
{
    struct mpp_arena *arena = mpp_arena_scratch(r->arena), *scratch = mpp_arena_scratch(r->arena);
    struct mpp_pw_buckets *b = mpp_arena_array(arena, 1, struct mpp_pw_buckets);
    struct planner p = {.r = r, .random = random, .arena = scratch, .n = n_members, .member = member};
    *b = (struct mpp_pw_buckets){.arena = arena, .r = r};
    prepare(&p);
    plan(&p, must, limit);
    b->planning = p.work + WORK_PER_PLAN;
    b->n = p.n_order;
    b->bucket = mpp_arena_array(arena, b->n, struct mpp_pw_bucket);
    b->alone = mpp_arena_array(arena, b->n, double *);
    b->digit = mpp_arena_array(arena, b->n, int32_t);
    b->place = mpp_arena_array(arena, r->n, int32_t);
    memset(b->place, 0xff, (size_t)r->n * sizeof *b->place);
    for (int32_t at = 0; at < b->n; at++)
        b->place[member[p.order[at]]] = at;
    build(b, &p, pool);
    mpp_arena_free(scratch);
    return b;
}

void mpp_pw_buckets_free(struct mpp_pw_buckets *b)
{
    if (b != NULL)
        mpp_arena_free(b->arena);
}

/* ---- settling ------------------------------------------------------------------------------------------------------- */

static void look_at_held(struct mpp_pw_buckets *b, double *const *priced, const int32_t *choice)
{
    for (int32_t at = 0; at < b->n; at++) {
        int32_t i = b->bucket[at].vertex;
        const struct mpp_pw_vertex *v = &b->r->vertex[i];
        for (int32_t k = 0; k < v->n; k++)
            b->alone[at][k] = v->cost[k] + priced[i][k];
        for (int32_t j = 0; j < v->n_before + v->n_after; j++) {
            const struct mpp_pw_link *x = &b->r->link[link_at(v, j)];
            int32_t y = far_end(x, i);
            if (b->place[y] >= 0)
                continue;
            const double *row = x->a == i ? x->flipped + (int64_t)choice[y] * x->n_a : x->cost + (int64_t)choice[y] * x->n_b;
            for (int32_t k = 0; k < v->n; k++)
                b->alone[at][k] += row[k];
        }
    }
}

static inline double lesser(double a, double b)
{
    return a < b ? a : b;
}

static inline void row_of_one(double *restrict to, double c, const double *restrict p, int32_t n)
{
    for (int32_t j = 0; j < n; j++)
        to[j] = lesser(c + p[j], to[j]);
}

static inline void row_of_two(double *restrict to, double c, const double *restrict p, const double *restrict q, int32_t n)
{
    for (int32_t j = 0; j < n; j++)
        to[j] = lesser(c + p[j] + q[j], to[j]);
}

static inline void row_of_many(double *restrict to, double c, const struct factor *f, int32_t n_factors, int32_t n, double *restrict sum)
{
    const double *restrict p = f[0].row, *restrict q = f[1].row, *restrict o = f[2].row;
    for (int32_t j = 0; j < n; j++)
        sum[j] = c + p[j] + q[j] + o[j];
    for (int32_t i = 3; i < n_factors; i++)
        for (int32_t j = 0; j < n; j++)
            sum[j] += f[i].row[j];
    for (int32_t j = 0; j < n; j++)
        to[j] = lesser(sum[j], to[j]);
}

/* One row of a message: what choice K costs beside the last neighbour's choices. */
static inline void fill_row(struct mpp_pw_bucket *x, double cost, double *to, int32_t n, double *sum)
{
    double c = cost;
    for (int32_t i = x->n_inner; i < x->n_factors; i++)
        c += *x->factor[i].row;
    if (c >= HUGE_VAL)
        return;
    switch (x->n_inner) {
    case 0:
        for (int32_t j = 0; j < n; j++)
            to[j] = lesser(c, to[j]);
        return;
    case 1:
        row_of_one(to, c, x->factor[0].row, n);
        return;
    case 2:
        row_of_two(to, c, x->factor[0].row, x->factor[1].row, n);
        return;
    default:
        row_of_many(to, c, x->factor, x->n_inner, n, sum);
    }
}

/* The message; AT [n_scope] is all zero, before and after. */
static void fill(struct mpp_pw_bucket *x, const double *alone, int32_t *at, double *sum)
{
    int32_t outer = x->n_scope - 1, inner = outer >= 0 ? x->width[outer] : 1;
    for (int64_t i = 0; i < x->size; i++)
        x->message[i] = HUGE_VAL;
    for (int32_t k = 0; k < x->n; k++) {
        double *to = x->message;
        if (alone[k] >= HUGE_VAL)
            continue;
        for (int32_t i = 0; i < x->n_factors; i++)
            x->factor[i].row = x->factor[i].table + k * x->factor[i].own;
        for (;;) {
            fill_row(x, alone[k], to, inner, sum);
            int32_t d = outer - 1;
            while (d >= 0 && ++at[d] == x->width[d])
                at[d--] = 0;
            if (d < 0)
                break;
            to += inner;
            for (int32_t i = 0; i < x->n_factors; i++)
                x->factor[i].row += x->factor[i].step[d];
        }
    }
}

/* The choice of bucket AT beside those of its scope, which are known. */
static int32_t read_back(const struct mpp_pw_buckets *b, int32_t at, const int32_t *choice)
{
    const struct mpp_pw_bucket *x = &b->bucket[at];
    int32_t best = choice[x->vertex];
    double least = HUGE_VAL;
    for (int32_t k = 0; k < x->n; k++) {
        double c = b->alone[at][k];
        for (int32_t i = 0; i < x->n_factors; i++) {
            const double *p = x->factor[i].table + k * x->factor[i].own;
            for (int32_t d = 0; d < x->n_scope; d++)
                p += x->factor[i].stride[d] * choice[b->bucket[x->scope[d]].vertex];
            c += *p;
        }
        if (c < least) {
            least = c;
            best = k;
        }
    }
    return best;
}

void mpp_pw_buckets_settle(struct mpp_pw_buckets *b, double *const *priced, int32_t *choice)
{
    look_at_held(b, priced, choice);
    for (int32_t at = 0; at < b->n; at++)
        fill(&b->bucket[at], b->alone[at], b->digit, b->sum);
    for (int32_t at = b->n - 1; at >= 0; at--)
        choice[b->bucket[at].vertex] = read_back(b, at, choice);
}
