/* times.c - memory rows. A row is a time whose bytes must stay within what capacity is left there. */
#include <string.h>

#include "solver/pairwise_internal.h"

static void take_from_capacity(struct mpp_pw_graph *g, const struct mpp_pw_segment *s, int64_t bytes)
{
    for (int32_t t = s->lo; t < s->hi; t++) {
        g->capacity[t] -= bytes;
        if (g->capacity[t] < 0 && !g->infeasible) {
            g->infeasible = true;
            g->conflict_time = g->row_time[t];
        }
    }
}

/* What all choices take is taken whatever is chosen: it moves to the capacity, exactly. */
void mpp_pw_times_normalise(struct mpp_pw_graph *g, int32_t node)
{
    struct mpp_pw_node *v = &g->nodes[node];
    size_t bytes = (size_t)v->n * sizeof(int64_t);
    int32_t n = 0;
    for (int32_t i = 0; i < v->n_segments; i++) {
        struct mpp_pw_segment s = v->segments[i];
        int64_t least = s.bytes[0], most = s.bytes[0];
        for (int32_t k = 1; k < v->n; k++) {
            least = s.bytes[k] < least ? s.bytes[k] : least;
            most = s.bytes[k] > most ? s.bytes[k] : most;
        }
        if (least > 0) {
            take_from_capacity(g, &s, least);
            for (int32_t k = 0; k < v->n; k++)
                s.bytes[k] -= least;
        }
        if (most == least)
            continue;
        struct mpp_pw_segment *before = n > 0 ? &v->segments[n - 1] : NULL;
        if (before != NULL && before->hi == s.lo && memcmp(before->bytes, s.bytes, bytes) == 0)
            before->hi = s.hi;
        else
            v->segments[n++] = s;
    }
    v->n_segments = n;
}

/* ---- which rows are needed -------------------------------------------------------------------------- */

struct rows {
    int64_t *most;                /* [n_rows + 1] differences, then sums: bytes if all nodes take their largest */
    bool *falls, *rises;          /* [n_rows + 1] from row t - 1 to t, some choice's bytes become fewer, more */
    bool *needed;                 /* [n_rows] */
};

static void mark_changes(const struct mpp_pw_node *v, int32_t i, struct rows *r)
{
    const struct mpp_pw_segment *s = &v->segments[i];
    const struct mpp_pw_segment *before = i > 0 && v->segments[i - 1].hi == s->lo ? &v->segments[i - 1] : NULL;
    bool last = i + 1 == v->n_segments || v->segments[i + 1].lo != s->hi;
    for (int32_t k = 0; k < v->n; k++) {
        int64_t was = before != NULL ? before->bytes[k] : 0;
        r->rises[s->lo] |= s->bytes[k] > was;
        r->falls[s->lo] |= s->bytes[k] < was;
    }
    r->falls[s->hi] |= last;
}

static struct rows look_at_rows(const struct mpp_pw_graph *g, struct mpp_arena *scratch)
{
    struct rows r = {
        .most = mpp_arena_array(scratch, g->n_rows + 1, int64_t),
        .falls = mpp_arena_array(scratch, g->n_rows + 1, bool),
        .rises = mpp_arena_array(scratch, g->n_rows + 1, bool),
        .needed = mpp_arena_array(scratch, g->n_rows + 1, bool),
    };
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const struct mpp_pw_node *v = &g->nodes[i];
        for (int32_t s = 0; s < v->n_segments && !v->gone; s++) {
            int64_t most = 0;
            for (int32_t k = 0; k < v->n; k++)
                most = v->segments[s].bytes[k] > most ? v->segments[s].bytes[k] : most;
            r.most[v->segments[s].lo] += most;
            r.most[v->segments[s].hi] -= most;
            mark_changes(v, s, &r);
        }
    }
    return r;
}

/* Give the needed rows new numbers; segments that hold none of them go. */
static void renumber(struct mpp_pw_graph *g, const bool *needed, struct mpp_arena *scratch)
{
    int32_t *number = mpp_arena_array(scratch, g->n_rows + 1, int32_t), n = 0;
    for (int32_t t = 0; t < g->n_rows; t++) {
        number[t] = n;
        if (!needed[t])
            continue;
        g->capacity[n] = g->capacity[t];
        g->row_first[n] = g->row_first[t];
        g->row_time[n++] = g->row_time[t];
    }
    number[g->n_rows] = n;
    g->n_rows = n;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        struct mpp_pw_node *v = &g->nodes[i];
        int32_t kept = 0;
        for (int32_t s = 0; s < v->n_segments && !v->gone; s++) {
            struct mpp_pw_segment x = {number[v->segments[s].lo], number[v->segments[s].hi], v->segments[s].bytes};
            if (x.lo < x.hi)
                v->segments[kept++] = x;
        }
        v->n_segments = v->gone ? 0 : kept;
    }
}

/* A row whose largest bytes fit never binds. Row t is implied by t + 1 when nothing becomes fewer between them and t + 1
 * has no more room: its bytes are at most those of t + 1 for every choice; likewise by t - 1 when nothing becomes more.
 * What implies is needed itself, or implied further on in the same direction. */
bool mpp_pw_times_reduce(struct mpp_pw_graph *g)
{
    struct mpp_arena *scratch = mpp_arena_scratch(g->arena);
    struct rows r = look_at_rows(g, scratch);
    int64_t most = 0;
    int32_t n = g->n_rows, left = 0;
    for (int32_t t = 0; t < n; t++) {
        most += r.most[t];
        r.needed[t] = most > g->capacity[t];
    }
    for (int32_t t = 0; t + 1 < n; t++)
        if (!r.falls[t + 1] && g->capacity[t + 1] <= g->capacity[t])
            r.needed[t] = false;
    for (int32_t t = n - 1; t > 0; t--)
        if (!r.rises[t] && r.needed[t - 1] && g->capacity[t - 1] <= g->capacity[t])
            r.needed[t] = false;
    for (int32_t t = 0; t < n; t++)
        left += r.needed[t];
    if (left < n)
        renumber(g, r.needed, scratch);
    mpp_arena_free(scratch);
    return left < n;
}
