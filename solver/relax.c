/* relax.c - the dual bound: sequential reweighted message passing under prices on memory.
 *
 * Costs may move between an edge's table and its ends without changing any sum. A sweep visits the vertices in order; each
 * takes from all its edges what they can give (the least of each row), and deals it out in equal shares to the edges ahead
 * (Kolmogorov, "A new look at reweighted message passing", PAMI 2015). The sum of all least entries never falls; it is
 * the bound. With prices on rows, bytes cost and what capacity is worth is returned at the end (Lagrange). */
#include <math.h>
#include <string.h>

#include "solver/pairwise_internal.h"

static const double MOST_SUM = 0x1p50, MOST_EXACT = 0x1p52;
enum { MOST_BITS = 20 };

/* ---- building ------------------------------------------------------------------------------------------ */

static double scaled(int64_t cost, int bits)
{
    return cost >= MPP_PW_BIG ? HUGE_VAL : ldexp((double)cost, bits);
}

/* The largest scale at which all finite costs together stay below MOST_SUM. */
static int choose_scale(const struct mpp_pw_graph *g)
{
    double sum = 1;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        int64_t most = 0;
        for (int32_t k = 0; k < g->nodes[i].n && !g->nodes[i].gone; k++)
            most = g->nodes[i].cost[k] < MPP_PW_BIG && g->nodes[i].cost[k] > most ? g->nodes[i].cost[k] : most;
        sum += (double)most;
    }
    for (int32_t e = 0; e < g->n_edges; e++) {
        if (g->edges[e].gone)
            continue;
        int64_t most = 0, n = (int64_t)g->nodes[g->edges[e].a].n * g->nodes[g->edges[e].b].n;
        for (int64_t i = 0; i < n; i++)
            most = g->edges[e].cost[i] < MPP_PW_BIG && g->edges[e].cost[i] > most ? g->edges[e].cost[i] : most;
        sum += (double)most;
    }
    int bits = 0;
    while (bits < MOST_BITS && ldexp(sum, bits + 1) < MOST_SUM)
        bits++;
    while (ldexp(sum, bits) >= MOST_SUM)
        bits--;
    return bits;
}

static void build_vertex(struct mpp_pw_relax *r, int32_t node, struct mpp_pw_vertex *v)
{
    const struct mpp_pw_node *from = &r->g->nodes[node];
    *v = (struct mpp_pw_vertex){.node = node, .n = from->n, .n_segments = from->n_segments, .segments = from->segments};
    v->cost = mpp_arena_array(r->arena, v->n, double);
    v->theta = mpp_arena_array(r->arena, v->n, double);
    v->priced = mpp_arena_array(r->arena, v->n, double);
    for (int32_t k = 0; k < v->n; k++)
        v->cost[k] = v->theta[k] = floor(scaled(from->cost[k], r->scale_bits));
}

static void build_link(struct mpp_pw_relax *r, int32_t edge, const int32_t *vertex_of)
{
    const struct mpp_pw_edge *e = &r->g->edges[edge];
    int32_t a = vertex_of[e->a], b = vertex_of[e->b];
    bool swap = a > b;
    struct mpp_pw_link *x = &r->link[r->n_links];
    *x = (struct mpp_pw_link){.a = swap ? b : a, .b = swap ? a : b, .edge = edge};
    x->n_a = r->vertex[x->a].n;
    x->n_b = r->vertex[x->b].n;
    x->cost = mpp_arena_array(r->arena, (int64_t)x->n_a * x->n_b, double);
    x->flipped = mpp_arena_array(r->arena, (int64_t)x->n_a * x->n_b, double);
    x->to_a = mpp_arena_array(r->arena, x->n_a, double);
    x->to_b = mpp_arena_array(r->arena, x->n_b, double);
    for (int32_t k = 0; k < x->n_a; k++)
        for (int32_t l = 0; l < x->n_b; l++) {
            double c = floor(scaled(*mpp_pw_entry(r->g, e, r->vertex[x->a].node, k, l), r->scale_bits));
            x->cost[(int64_t)k * x->n_b + l] = x->flipped[(int64_t)l * x->n_a + k] = c;
        }
    r->vertex[x->a].n_after++;
    r->vertex[x->b].n_before++;
    r->n_links++;
}

static void list_links(struct mpp_pw_relax *r)
{
    for (int32_t i = 0; i < r->n; i++) {
        struct mpp_pw_vertex *v = &r->vertex[i];
        v->before = mpp_arena_array(r->arena, v->n_before, int32_t);
        v->after = mpp_arena_array(r->arena, v->n_after, int32_t);
        v->n_before = v->n_after = 0;
    }
    for (int32_t x = 0; x < r->n_links; x++) {
        struct mpp_pw_vertex *a = &r->vertex[r->link[x].a], *b = &r->vertex[r->link[x].b];
        a->after[a->n_after++] = x;
        b->before[b->n_before++] = x;
    }
}

struct mpp_pw_relax *mpp_pw_relax_new(struct mpp_pw_graph *g, struct mpp_arena *parent)
{
    struct mpp_arena *arena = mpp_arena_scratch(parent);
    struct mpp_pw_relax *r = mpp_arena_array(arena, 1, struct mpp_pw_relax);
    struct mpp_pairwise_size size = mpp_pw_graph_size(g);
    int32_t *vertex_of = mpp_arena_array(arena, g->n_nodes, int32_t), most = 1;
    double least = HUGE_VAL;
    *r = (struct mpp_pw_relax){.arena = arena, .g = g, .n_rows = g->n_rows, .scale_bits = choose_scale(g)};
    r->vertex = mpp_arena_array(arena, size.nodes, struct mpp_pw_vertex);
    r->link = mpp_arena_array(arena, size.edges, struct mpp_pw_link);
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (!g->nodes[i].gone) {
            vertex_of[i] = r->n;
            most = g->nodes[i].n > most ? g->nodes[i].n : most;
            build_vertex(r, i, &r->vertex[r->n++]);
        }
    for (int32_t e = 0; e < g->n_edges; e++)
        if (!g->edges[e].gone)
            build_link(r, e, vertex_of);
    list_links(r);
    r->price = mpp_arena_array(arena, r->n_rows, int64_t);
    r->sum = mpp_arena_array(arena, r->n_rows + 1, int64_t);
    r->usage = mpp_arena_array(arena, r->n_rows + 1, int64_t);
    r->scratch = mpp_arena_array(arena, most, double);
    for (int32_t t = 0; t < r->n_rows; t++)
        least = (double)g->capacity[t] < least ? (double)g->capacity[t] : least;
    r->price_bits = r->n_rows == 0 || least < 2 ? 0 : ilogb(least) > 40 ? 40 : ilogb(least);
    return r;
}

void mpp_pw_relax_free(struct mpp_pw_relax *r)
{
    if (r != NULL)
        mpp_arena_free(r->arena);
}

/* ---- messages -------------------------------------------------------------------------------------------- */

/* One copy per instruction set, the machine's chosen when the program starts. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
#define PER_MACHINE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PER_MACHINE
#endif

/* Move the least of each row of a table to THETA. COST is [n_far][n]; TO and FAR what went to this end and the far one. */
PER_MACHINE static void pull(double *theta, double *to, int32_t n, const double *far, int32_t n_far, const double *cost, double *least)
{
    for (int32_t k = 0; k < n; k++)
        least[k] = HUGE_VAL;
    for (int32_t l = 0; l < n_far; l++) {
        const double *row = cost + (int64_t)l * n, gone = far[l];
        for (int32_t k = 0; k < n; k++) {
            double x = row[k] - gone;
            least[k] = x < least[k] ? x : least[k];
        }
    }
    for (int32_t k = 0; k < n; k++) {
        double m = least[k] - to[k];
        if (m < HUGE_VAL) {
            theta[k] += m;
            to[k] += m;
        } else {
            theta[k] = HUGE_VAL;
        }
    }
}

static void pull_all(struct mpp_pw_relax *r, struct mpp_pw_vertex *v)
{
    for (int32_t i = 0; i < v->n_before; i++) {
        struct mpp_pw_link *x = &r->link[v->before[i]];
        pull(v->theta, x->to_b, v->n, x->to_a, x->n_a, x->cost, r->scratch);
        r->work += (int64_t)x->n_a * x->n_b;
    }
    for (int32_t i = 0; i < v->n_after; i++) {
        struct mpp_pw_link *x = &r->link[v->after[i]];
        pull(v->theta, x->to_a, v->n, x->to_b, x->n_b, x->flipped, r->scratch);
        r->work += (int64_t)x->n_a * x->n_b;
    }
}

/* Deal out what lies at V to its links ahead: equal shares, whole numbers; what does not divide stays. */
static void push(struct mpp_pw_relax *r, struct mpp_pw_vertex *v, bool upward)
{
    int32_t ahead = upward ? v->n_after : v->n_before, behind = upward ? v->n_before : v->n_after;
    double parts = ahead > behind ? ahead : behind;
    if (ahead == 0)
        return;
    for (int32_t k = 0; k < v->n; k++)
        r->scratch[k] = v->theta[k] < HUGE_VAL ? trunc(v->theta[k] / parts) : 0;
    for (int32_t i = 0; i < ahead; i++) {
        double *to = upward ? r->link[v->after[i]].to_a : r->link[v->before[i]].to_b;
        for (int32_t k = 0; k < v->n; k++)
            to[k] -= r->scratch[k];
    }
    for (int32_t k = 0; k < v->n; k++)
        v->theta[k] -= r->scratch[k] * ahead;
}

/* The choice of V that is cheapest beside those of the vertices behind it. */
static int32_t read_choice(const struct mpp_pw_relax *r, const struct mpp_pw_vertex *v, bool upward, const int32_t *choice)
{
    double *cost = r->scratch;
    int32_t best = 0;
    memcpy(cost, v->theta, (size_t)v->n * sizeof *cost);
    for (int32_t i = 0; i < (upward ? v->n_before : v->n_after); i++) {
        const struct mpp_pw_link *x = &r->link[upward ? v->before[i] : v->after[i]];
        int32_t far = choice[upward ? x->a : x->b];
        const double *row = upward ? x->cost + (int64_t)far * x->n_b : x->flipped + (int64_t)far * x->n_a;
        const double *to = upward ? x->to_b : x->to_a;
        for (int32_t k = 0; k < v->n; k++)
            cost[k] += row[k] - to[k];
    }
    for (int32_t k = 1; k < v->n; k++)
        if (cost[k] < cost[best])
            best = k;
    return best;
}

static double least_of(const double *x, int32_t n)
{
    double least = HUGE_VAL;
    for (int32_t k = 0; k < n; k++)
        least = x[k] < least ? x[k] : least;
    return least;
}

double mpp_pw_relax_sweep(struct mpp_pw_relax *r, bool upward, int32_t *choice)
{
    double bound = -r->rent;
    for (int32_t at = 0; at < r->n; at++) {
        int32_t i = upward ? at : r->n - 1 - at;
        struct mpp_pw_vertex *v = &r->vertex[i];
        pull_all(r, v);
        if (choice != NULL)
            choice[i] = read_choice(r, v, upward, choice);
        push(r, v, upward);
    }
    for (int32_t i = 0; i < r->n; i++)
        bound += least_of(r->vertex[i].theta, r->vertex[i].n);
    return bound;
}

/* ---- prices -------------------------------------------------------------------------------------------------- */

static double priced_bytes(const struct mpp_pw_relax *r, const struct mpp_pw_vertex *v, int32_t k)
{
    mpp_i128 sum = 0;
    for (int32_t s = 0; s < v->n_segments; s++) {
        const struct mpp_pw_segment *x = &v->segments[s];
        sum += (mpp_i128)(r->sum[x->hi] - r->sum[x->lo]) * x->bytes[k];
    }
    return (double)(int64_t)(sum >> r->price_bits);
}

/* All rent together stays below MOST_SUM: no choice's priced bytes can be more. */
void mpp_pw_relax_set_prices(struct mpp_pw_relax *r, const int64_t *price)
{
    double rent = 0, shrink = 1;
    for (int32_t t = 0; t < r->n_rows; t++)
        rent += ldexp((double)price[t] * (double)r->g->capacity[t], -r->price_bits);
    if (rent > MOST_SUM / 2)
        shrink = MOST_SUM / 2 / rent;
    mpp_i128 sum = 0;
    for (int32_t t = 0; t < r->n_rows; t++) {
        r->price[t] = shrink < 1 ? (int64_t)((double)price[t] * shrink) : price[t];
        r->sum[t + 1] = r->sum[t] + r->price[t];
        sum += (mpp_i128)r->price[t] * r->g->capacity[t];
    }
    r->rent = (double)(int64_t)((sum >> r->price_bits) + 1);
    for (int32_t i = 0; i < r->n; i++) {
        struct mpp_pw_vertex *v = &r->vertex[i];
        for (int32_t k = 0; k < v->n && v->n_segments > 0; k++) {
            double now = priced_bytes(r, v, k);
            v->theta[k] += now - v->priced[k];
            v->priced[k] = now;
        }
    }
}

/* ---- the bound, exactly ---------------------------------------------------------------------------------------- */

int64_t mpp_pw_relax_bound(const struct mpp_pw_relax *r)
{
    mpp_i128 sum = -(mpp_i128)r->rent;
    for (int32_t i = 0; i < r->n; i++) {
        const struct mpp_pw_vertex *v = &r->vertex[i];
        int64_t least = INT64_MAX;
        for (int32_t k = 0; k < v->n; k++) {
            if (v->cost[k] >= HUGE_VAL)
                continue;
            int64_t x = (int64_t)v->cost[k] + (int64_t)v->priced[k];
            for (int32_t j = 0; j < v->n_before; j++)
                x += (int64_t)r->link[v->before[j]].to_b[k];
            for (int32_t j = 0; j < v->n_after; j++)
                x += (int64_t)r->link[v->after[j]].to_a[k];
            least = x < least ? x : least;
        }
        sum += least;
    }
    for (int32_t i = 0; i < r->n_links; i++) {
        const struct mpp_pw_link *x = &r->link[i];
        int64_t least = INT64_MAX;
        for (int32_t k = 0; k < x->n_a; k++)
            for (int32_t l = 0; l < x->n_b; l++) {
                double c = x->cost[(int64_t)k * x->n_b + l];
                if (c >= HUGE_VAL)
                    continue;
                int64_t y = (int64_t)c - (int64_t)x->to_a[k] - (int64_t)x->to_b[l];
                least = y < least ? y : least;
            }
        sum += least;
    }
    sum = r->scale_bits >= 0 ? (sum + ((mpp_i128)1 << r->scale_bits) - 1) >> r->scale_bits
                             : sum * ((mpp_i128)1 << -r->scale_bits);
    return sum > MPP_PW_INF ? MPP_PW_INF : sum < -MPP_PW_INF ? -MPP_PW_INF : (int64_t)sum;
}

/* ---- reduced costs ------------------------------------------------------------------------------------------------ */

/* The sum of all least entries, kept while costs move: of vertices in theta, of links in least. */
struct fixing {
    struct mpp_pw_relax *r;
    double bound, limit;          /* a choice or pair goes where what it proves exceeds the limit */
    double *least;                /* [n_links] least entry of what the table still holds */
    int64_t n_fixed;
};

static void fix_choices(struct fixing *f, const struct mpp_pw_vertex *v, double least)
{
    struct mpp_pw_node *node = &f->r->g->nodes[v->node];
    for (int32_t k = 0; k < v->n; k++)
        if (node->cost[k] < MPP_PW_BIG && f->bound + v->theta[k] - least > f->limit) {
            node->cost[k] = MPP_PW_INF;
            f->n_fixed++;
        }
}

/* Pairs of V's choices and those of the vertex ahead: three terms of the sum are theirs. */
static void fix_pairs(struct fixing *f, const struct mpp_pw_vertex *v, double least, const struct mpp_pw_link *x)
{
    const struct mpp_pw_vertex *w = &f->r->vertex[x->b];
    struct mpp_pw_graph *g = f->r->g;
    double least_w = least_of(w->theta, w->n);
    for (int32_t k = 0; k < x->n_a; k++)
        for (int32_t l = 0; l < x->n_b; l++) {
            double c = x->cost[(int64_t)k * x->n_b + l];
            if (c >= HUGE_VAL)
                continue;
            double sum = f->bound + (v->theta[k] - least) + (c - x->to_a[k] - x->to_b[l]) + (w->theta[l] - least_w);
            int64_t *entry = mpp_pw_entry(g, &g->edges[x->edge], v->node, k, l);
            if (sum > f->limit && *entry < MPP_PW_BIG) {
                *entry = MPP_PW_INF;
                f->n_fixed++;
            }
        }
}

static void fix_vertex(struct fixing *f, struct mpp_pw_vertex *v)
{
    struct mpp_pw_relax *r = f->r;
    f->bound -= least_of(v->theta, v->n);
    for (int32_t i = 0; i < v->n_before; i++) {
        f->bound -= f->least[v->before[i]];
        f->least[v->before[i]] = 0;
    }
    pull_all(r, v); /* links ahead held 0 at least already; behind they do now */
    double least = least_of(v->theta, v->n);
    f->bound += least;
    fix_choices(f, v, least);
    for (int32_t i = 0; i < v->n_after; i++)
        fix_pairs(f, v, least, &r->link[v->after[i]]);
    push(r, v, true);
    f->bound += least_of(v->theta, v->n) - least;
    double pushed = HUGE_VAL;
    for (int32_t k = 0; k < v->n && v->n_after > 0; k++)
        if (v->theta[k] < HUGE_VAL)
            pushed = r->scratch[k] < pushed ? r->scratch[k] : pushed;
    for (int32_t i = 0; i < v->n_after; i++) {
        f->least[v->after[i]] = pushed;
        f->bound += pushed;
    }
}

static bool stays_exact(const struct mpp_pw_relax *r)
{
    for (int32_t i = 0; i < r->n; i++)
        for (int32_t k = 0; k < r->vertex[i].n; k++)
            if (r->vertex[i].theta[k] < HUGE_VAL && fabs(r->vertex[i].theta[k]) > MOST_EXACT)
                return false;
    return true;
}

int64_t mpp_pw_relax_fix(struct mpp_pw_relax *r, int64_t upper)
{
    struct mpp_arena *scratch = mpp_arena_scratch(r->arena);
    struct fixing f = {.r = r, .least = mpp_arena_array(scratch, r->n_links, double)};
    f.limit = ldexp((double)(upper - 1), r->scale_bits);
    f.bound = mpp_pw_relax_sweep(r, false, NULL); /* after a sweep down every table's least entry is 0 */
    for (int32_t i = 0; i < r->n && stays_exact(r); i++)
        fix_vertex(&f, &r->vertex[i]);
    mpp_arena_free(scratch);
    return f.n_fixed;
}

/* ---- choices -------------------------------------------------------------------------------------------------------- */

int64_t mpp_pw_relax_cost(const struct mpp_pw_relax *r, const int32_t *choice)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < r->n; i++)
        sum = mpp_pw_add(sum, r->g->nodes[r->vertex[i].node].cost[choice[i]]);
    for (int32_t i = 0; i < r->n_links; i++) {
        const struct mpp_pw_link *x = &r->link[i];
        const struct mpp_pw_edge *e = &r->g->edges[x->edge];
        sum = mpp_pw_add(sum, *mpp_pw_entry(r->g, e, r->vertex[x->a].node, choice[x->a], choice[x->b]));
    }
    return sum;
}

int64_t mpp_pw_relax_excess(struct mpp_pw_relax *r, const int32_t *choice)
{
    int64_t most = -INT64_MAX;
    memset(r->usage, 0, (size_t)(r->n_rows + 1) * sizeof *r->usage);
    for (int32_t i = 0; i < r->n; i++)
        for (int32_t s = 0; s < r->vertex[i].n_segments; s++) {
            const struct mpp_pw_segment *x = &r->vertex[i].segments[s];
            r->usage[x->lo] += x->bytes[choice[i]];
            r->usage[x->hi] -= x->bytes[choice[i]];
        }
    for (int32_t t = 0; t < r->n_rows; t++) {
        if (t > 0)
            r->usage[t] += r->usage[t - 1];
        int64_t over = r->usage[t] - r->g->capacity[t];
        most = over > most ? over : most;
    }
    return most;
}
