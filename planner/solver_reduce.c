/* solver_reduce.c - what can be ruled out before any search: times that never bind, dominated choices. */
#include <stdlib.h>
#include <string.h>

#include "planner/solver_internal.h"

int32_t mpp_solver_form(const struct mpp_solver *s, int32_t value, int32_t slot, int32_t choice)
{
    const struct mpp_solver_value *v = &s->p->values[value];
    return slot < 0 ? v->out[choice] : v->in[slot][choice];
}

static int cmp_i32(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static bool any_bytes(const int64_t *bytes, int32_t n)
{
    for (int32_t k = 0; bytes && k < n; k++)
        if (bytes[k] > 0)
            return true;
    return false;
}

/* The rows within [first, last]. */
static struct mpp_solver_span span_of(const struct mpp_solver *s, int32_t first, int32_t last, bool any)
{
    struct mpp_solver_span r = {0, 0};
    if (!any || first > last)
        return r;
    int32_t lo = 0, hi = s->n_rows;
    while (lo < hi) {
        int32_t mid = (lo + hi) / 2;
        if (s->row_time[mid] < first)
            lo = mid + 1;
        else
            hi = mid;
    }
    r.lo = lo;
    for (hi = s->n_rows; lo < hi;) {
        int32_t mid = (lo + hi) / 2;
        if (s->row_time[mid] <= last)
            lo = mid + 1;
        else
            hi = mid;
    }
    r.hi = lo;
    return r;
}

static void spans_build(struct mpp_solver *s)
{
    const struct mpp_solver_problem *p = s->p;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const struct mpp_solver_node *n = &p->nodes[i];
        for (int32_t u = 0; u < n->n_usages; u++)
            s->usage_span[s->usage_first[i] + u] =
                span_of(s, n->usages[u].first, n->usages[u].last, any_bytes(n->usages[u].bytes, n->n_choices));
    }
    for (int32_t v = 0; v < p->n_values; v++)
        s->copy_span[v] = span_of(s, p->values[v].copy_first, p->values[v].copy_last,
                                  any_bytes(p->values[v].copy_bytes, p->values[v].n_forms));
}

/* Times whose live set is maximal: ends of intervals with a start since the last such end. */
void mpp_solver_rows_build(struct mpp_solver *s)
{
    const struct mpp_solver_problem *p = s->p;
    size_t cap = (size_t)s->usage_first[p->n_nodes] + (size_t)p->n_values, n = 0;
    int32_t *start = mpp_arena_array(s->arena, cap + 1, int32_t);
    int32_t *end = mpp_arena_array(s->arena, cap + 1, int32_t);
    s->row_time = mpp_arena_array(s->arena, cap + 1, int32_t);
    s->n_rows = 0;
    for (int32_t i = 0; i < p->n_nodes; i++)
        for (int32_t u = 0; u < p->nodes[i].n_usages; u++) {
            const struct mpp_solver_usage *g = &p->nodes[i].usages[u];
            if (g->first <= g->last && any_bytes(g->bytes, p->nodes[i].n_choices)) {
                start[n] = g->first;
                end[n++] = g->last;
            }
        }
    for (int32_t v = 0; v < p->n_values; v++)
        if (p->values[v].copy_first <= p->values[v].copy_last &&
            any_bytes(p->values[v].copy_bytes, p->values[v].n_forms)) {
            start[n] = p->values[v].copy_first;
            end[n++] = p->values[v].copy_last;
        }
    qsort(start, n, sizeof *start, cmp_i32);
    qsort(end, n, sizeof *end, cmp_i32);
    size_t seen = 0, done = 0;
    for (size_t e = 0; e < n; e++) {
        while (seen < n && start[seen] <= end[e])
            seen++;
        if (seen > done) {
            s->row_time[s->n_rows++] = end[e];
            done = seen;
        }
    }
    spans_build(s);
}

/* The most bytes the copies of V can take at once. */
static int64_t copies_max(const struct mpp_solver *s, int32_t value, uint8_t *wanted)
{
    const struct mpp_solver_value *v = &s->p->values[value];
    int64_t distinct = 0, each = 0;
    memset(wanted, 0, (size_t)v->n_forms);
    for (int32_t c = 0; c < v->n_consumers; c++) {
        int32_t node = v->consumers[c];
        int64_t most = 0;
        for (int32_t k = 0; k < s->p->nodes[node].n_choices; k++)
            if (s->alive[s->choice_first[node] + k]) {
                int32_t t = v->in[c][k];
                wanted[t] = 1;
                most = v->copy_bytes[t] > most ? v->copy_bytes[t] : most;
            }
        each += most;
    }
    for (int32_t t = 0; t < v->n_forms; t++)
        distinct += wanted[t] ? v->copy_bytes[t] : 0;
    return distinct < each ? distinct : each;
}

/* Forget the rows that no solution can violate. Returns whether any went. */
int mpp_solver_rows_drop_slack(struct mpp_solver *s)
{
    const struct mpp_solver_problem *p = s->p;
    struct mpp_arena *a = mpp_arena_scratch(s->arena);
    int64_t *diff = mpp_arena_array(a, s->n_rows + 1, int64_t);
    int32_t n_forms = 1;
    for (int32_t v = 0; v < p->n_values; v++)
        n_forms = p->values[v].n_forms > n_forms ? p->values[v].n_forms : n_forms;
    uint8_t *wanted = mpp_arena_array(a, n_forms, uint8_t);
    for (int32_t i = 0; i < p->n_nodes; i++)
        for (int32_t u = 0; u < p->nodes[i].n_usages; u++) {
            struct mpp_solver_span sp = s->usage_span[s->usage_first[i] + u];
            int64_t most = 0;
            for (int32_t k = 0; k < p->nodes[i].n_choices; k++)
                if (s->alive[s->choice_first[i] + k] && p->nodes[i].usages[u].bytes[k] > most)
                    most = p->nodes[i].usages[u].bytes[k];
            diff[sp.lo] += most;
            diff[sp.hi] -= most;
        }
    for (int32_t v = 0; v < p->n_values; v++) {
        struct mpp_solver_span sp = s->copy_span[v];
        if (sp.lo == sp.hi)
            continue;
        int64_t most = copies_max(s, v, wanted);
        diff[sp.lo] += most;
        diff[sp.hi] -= most;
    }
    int64_t sum = 0;
    int32_t kept = 0, n = s->n_rows;
    for (int32_t r = 0; r < n; r++) {
        sum += diff[r];
        if (sum > p->capacity_bytes)
            s->row_time[kept++] = s->row_time[r];
    }
    s->n_rows = kept;
    if (kept != n)
        spans_build(s);
    mpp_arena_free(a);
    return kept != n;
}

int64_t mpp_solver_floor(const struct mpp_solver *s, int32_t *out_row)
{
    const struct mpp_solver_problem *p = s->p;
    struct mpp_arena *a = mpp_arena_scratch(s->arena);
    int64_t *diff = mpp_arena_array(a, s->n_rows + 1, int64_t), sum = 0, most = 0;
    *out_row = 0;
    for (int32_t i = 0; i < p->n_nodes; i++)
        for (int32_t u = 0; u < p->nodes[i].n_usages; u++) {
            struct mpp_solver_span sp = s->usage_span[s->usage_first[i] + u];
            int64_t least = INT64_MAX;
            for (int32_t k = 0; sp.lo < sp.hi && k < p->nodes[i].n_choices; k++)
                if (s->alive[s->choice_first[i] + k] && p->nodes[i].usages[u].bytes[k] < least)
                    least = p->nodes[i].usages[u].bytes[k];
            if (least < INT64_MAX) {
                diff[sp.lo] += least;
                diff[sp.hi] -= least;
            }
        }
    for (int32_t r = 0; r < s->n_rows; r++) {
        sum += diff[r];
        if (sum > most) {
            most = sum;
            *out_row = r;
        }
    }
    mpp_arena_free(a);
    return most;
}

/* The live bytes of CHOICE per row. */
void mpp_solver_row_bytes(const struct mpp_solver *s, const int32_t *choice, int64_t *out_bytes)
{
    const struct mpp_solver_problem *p = s->p;
    memset(out_bytes, 0, sizeof *out_bytes * (size_t)(s->n_rows + 1));
    for (int32_t i = 0; i < p->n_nodes; i++)
        for (int32_t u = 0; u < p->nodes[i].n_usages; u++) {
            struct mpp_solver_span sp = s->usage_span[s->usage_first[i] + u];
            int64_t b = p->nodes[i].usages[u].bytes[choice[i]];
            out_bytes[sp.lo] += b;
            out_bytes[sp.hi] -= b;
        }
    for (int32_t v = 0; v < p->n_values; v++) {
        struct mpp_solver_span sp = s->copy_span[v];
        const struct mpp_solver_value *val = &p->values[v];
        if (sp.lo == sp.hi)
            continue;
        int32_t made = val->out[choice[val->producer]];
        for (int32_t c = 0; c < val->n_consumers; c++) {
            int32_t t = val->in[c][choice[val->consumers[c]]];
            bool seen = t == made;
            for (int32_t d = 0; d < c && !seen; d++)
                seen = val->in[d][choice[val->consumers[d]]] == t;
            if (!seen) {
                out_bytes[sp.lo] += val->copy_bytes[t];
                out_bytes[sp.hi] -= val->copy_bytes[t];
            }
        }
    }
    for (int32_t r = 1; r < s->n_rows; r++)
        out_bytes[r] += out_bytes[r - 1];
}

static bool same_forms(const struct mpp_solver *s, int32_t node, int32_t a, int32_t b)
{
    for (int32_t e = s->inc_first[node]; e < s->inc_first[node + 1]; e++)
        if (mpp_solver_form(s, s->inc[e].value, s->inc[e].slot, a) !=
            mpp_solver_form(s, s->inc[e].value, s->inc[e].slot, b))
            return false;
    return true;
}

static uint64_t forms_hash(const struct mpp_solver *s, int32_t node, int32_t k)
{
    uint64_t h = 14695981039346656037u;
    for (int32_t e = s->inc_first[node]; e < s->inc_first[node + 1]; e++)
        h = (h ^ (uint64_t)mpp_solver_form(s, s->inc[e].value, s->inc[e].slot, k)) * 1099511628211u;
    return h;
}

/* Does choice B cost no more than A in money and, where memory may bind, in bytes? */
static bool no_worse(const struct mpp_solver *s, int32_t node, int32_t b, int32_t a, bool with_memory)
{
    const struct mpp_solver_node *n = &s->p->nodes[node];
    if (n->cost[b] > n->cost[a])
        return false;
    for (int32_t u = 0; with_memory && u < n->n_usages; u++) {
        struct mpp_solver_span sp = s->usage_span[s->usage_first[node] + u];
        if (sp.lo < sp.hi && n->usages[u].bytes[b] > n->usages[u].bytes[a])
            return false;
    }
    return true;
}

/* Rule out choices that another choice of equal forms makes needless. Returns how many went. */
int32_t mpp_solver_dominance(struct mpp_solver *s, bool with_memory)
{
    int32_t gone = 0, most = 1;
    for (int32_t i = 0; i < s->p->n_nodes; i++)
        most = s->p->nodes[i].n_choices > most ? s->p->nodes[i].n_choices : most;
    struct mpp_arena *arena = mpp_arena_scratch(s->arena);
    uint64_t *hash = mpp_arena_array(arena, most, uint64_t);
    for (int32_t i = 0; i < s->p->n_nodes; i++) {
        uint8_t *alive = s->alive + s->choice_first[i];
        int32_t n = s->p->nodes[i].n_choices;
        for (int32_t k = 0; k < n; k++)
            hash[k] = forms_hash(s, i, k);
        for (int32_t a = 0; a < n; a++)
            for (int32_t b = 0; alive[a] && b < n; b++) {
                if (b == a || !alive[b] || hash[a] != hash[b] || !no_worse(s, i, b, a, with_memory) ||
                    !same_forms(s, i, a, b))
                    continue;
                alive[a] = 0;
                gone++;
            }
    }
    mpp_arena_free(arena);
    return gone;
}

struct mpp_solver_classes mpp_solver_classes_build(const struct mpp_solver *s, struct mpp_arena *arena)
{
    struct mpp_solver_classes c;
    int32_t n_nodes = s->p->n_nodes, total = s->choice_first[n_nodes], n = 0;
    c.first = mpp_arena_array(arena, n_nodes + 1, int32_t);
    c.of_choice = mpp_arena_array(arena, total, int32_t);
    c.member = mpp_arena_array(arena, total, int32_t);
    uint64_t *hash = mpp_arena_array(arena, total, uint64_t);
    for (int32_t i = 0; i < n_nodes; i++) {
        c.first[i] = n;
        for (int32_t k = 0; k < s->p->nodes[i].n_choices; k++) {
            int32_t at = s->choice_first[i] + k, m;
            c.of_choice[at] = -1;
            if (!s->alive[at])
                continue;
            uint64_t h = forms_hash(s, i, k);
            for (m = c.first[i]; m < n; m++)
                if (hash[m] == h && same_forms(s, i, c.member[m], k))
                    break;
            if (m == n) {
                hash[n] = h;
                c.member[n++] = k;
            }
            c.of_choice[at] = m - c.first[i];
        }
    }
    c.first[n_nodes] = n;
    return c;
}
