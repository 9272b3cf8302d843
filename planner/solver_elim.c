/* solver_elim.c - bucket elimination: the exact optimum under prices, its choices, its min-marginals.
 *
 * Tables are stored once per content and eliminations remembered by what they read, so that layers
 * that repeat cost a look-up each. Messages are normalised (their least entry moves to a constant):
 * along a chain of equal layers they soon repeat. Sums saturate at MPP_SOLVER_INF. */
#include <string.h>

#include "planner/solver_internal.h"

enum { MAX_SCOPE = 64 };

static int64_t sat_add(int64_t a, int64_t b)
{
    int64_t c = a + b;
    return c > MPP_SOLVER_INF ? MPP_SOLVER_INF : c;
}

/* ---- tables of factors -------------------------------------------------------------------- */

/* floor(price * bytes), picoseconds; saturates. */
static int64_t priced(int64_t price, int64_t bytes)
{
    __int128 x = (__int128)price * bytes >> MPP_SOLVER_PRICE_BITS;
    return x > MPP_SOLVER_INF ? MPP_SOLVER_INF : (int64_t)x;
}

static int64_t span_price(const int64_t *sum, struct mpp_solver_span sp)
{
    return sum ? sum[sp.hi] - sum[sp.lo] : 0;
}

int64_t mpp_solver_priced_cost(const struct mpp_solver *s, const int64_t *price_sum, int32_t node, int32_t choice)
{
    const struct mpp_solver_node *n = &s->p->nodes[node];
    int64_t c = n->cost[choice] > MPP_SOLVER_INF ? MPP_SOLVER_INF : s->free_cost ? 0 : n->cost[choice];
    for (int32_t u = 0; price_sum && u < n->n_usages; u++) {
        int64_t pr = span_price(price_sum, s->usage_span[s->usage_first[node] + u]);
        if (pr)
            c = sat_add(c, priced(pr, n->usages[u].bytes[choice]));
    }
    return c;
}

static void unary_table(const struct mpp_solver *s, const struct mpp_solver_plan *p, const int64_t *sum, int32_t node,
                        int64_t *out)
{
    int32_t n = p->classes.first[node + 1] - p->classes.first[node];
    for (int32_t k = 0; k < n; k++)
        out[k] = MPP_SOLVER_INF;
    for (int32_t k = 0; k < s->p->nodes[node].n_choices; k++) {
        int32_t c = p->classes.of_choice[s->choice_first[node] + k];
        if (c < 0)
            continue;
        int64_t cost = mpp_solver_priced_cost(s, sum, node, k);
        out[c] = cost < out[c] ? cost : out[c];
    }
}

static int64_t convert_cost(const struct mpp_solver *s, const struct mpp_solver_value *v, int32_t from, int32_t to,
                            int64_t price)
{
    if (from == to)
        return 0;
    int64_t c = v->convert[(int64_t)from * v->n_forms + to];
    if (c >= MPP_SOLVER_INF)
        return MPP_SOLVER_INF;
    c = s->free_cost ? 0 : c;
    return price ? sat_add(c, priced(price, v->copy_bytes[to])) : c;
}

static int32_t member_form(const struct mpp_solver *s, const struct mpp_solver_plan *p, int32_t value, int32_t slot,
                           int32_t node, int32_t cls)
{
    return mpp_solver_form(s, value, slot, p->classes.member[p->classes.first[node] + cls]);
}

/* The form of scope variable I of F at its K-th class or form. */
static int32_t var_form(const struct mpp_solver *s, const struct mpp_solver_plan *p, const struct mpp_solver_factor *f,
                        int32_t i, int32_t k)
{
    const struct mpp_solver_var *var = &p->vars[f->scope[i]];
    return var->forms ? var->forms[k] : member_form(s, p, f->index, f->slots[i], var->node, k);
}

static void link_table(const struct mpp_solver *s, const struct mpp_solver_plan *p, const struct mpp_solver_factor *f,
                       int64_t *out)
{
    const struct mpp_solver_var *node = &p->vars[f->scope[0]], *form = &p->vars[f->scope[1]];
    for (int32_t k = 0; k < node->size; k++)
        for (int32_t t = 0; t < form->size; t++)
            out[k * form->size + t] =
                member_form(s, p, f->index, f->slot, node->node, k) == form->forms[t] ? 0 : MPP_SOLVER_INF;
}

/* One consumer's share of a copy; its bytes are paid in equal parts, rounded down. */
static int64_t copy_share(const struct mpp_solver *s, const struct mpp_solver_value *v, int32_t from, int32_t to,
                          int64_t price, const int64_t *share)
{
    int64_t c = share[(int64_t)from * v->n_forms + to];
    if (c >= MPP_SOLVER_INF)
        return MPP_SOLVER_INF;
    c = s->free_cost ? 0 : c;
    return price ? sat_add(c, priced(price, v->copy_bytes[to]) / v->n_consumers) : c;
}

/* The cost of the copies among WANTED forms, each counted once. */
static int64_t copies_cost(const struct mpp_solver *s, const struct mpp_solver_value *v, const int32_t *form, int32_t n_slots,
                           int64_t price, const int64_t *share)
{
    int64_t sum = 0;
    for (int32_t c = 1; c < n_slots; c++) {
        bool seen = false;
        for (int32_t d = 1; d < c && !seen; d++)
            seen = form[d] == form[c];
        if (seen)
            continue;
        if (share)
            sum = form[0] == form[c] ? 0 : copy_share(s, v, form[0], form[c], price, share);
        else
            sum = sat_add(sum, convert_cost(s, v, form[0], form[c], price));
    }
    return sum;
}

/* A walk over the forms in which a value is met: [0] made, then wanted. */
struct forms {
    int32_t n_slots, *form, at[MAX_SCOPE], idx[MAX_SCOPE];
};

static struct forms forms_start(const struct mpp_solver *s, const struct mpp_solver_plan *p,
                                const struct mpp_solver_factor *f, struct mpp_arena *scratch)
{
    const struct mpp_solver_value *v = &s->p->values[f->index];
    struct forms w = {.n_slots = 1, .form = mpp_arena_array(scratch, v->n_consumers + 1, int32_t)};
    for (int32_t slot = -1; slot < v->n_consumers; slot++) {
        int32_t where = slot < 0 ? 0 : w.n_slots, node = slot < 0 ? v->producer : v->consumers[slot];
        if (slot >= 0 && f->kind == MPP_FACTOR_SPLIT && slot != f->slot)
            continue;
        w.form[where] = member_form(s, p, f->index, slot, node, 0);
        for (int32_t i = 0; i < f->n_scope; i++)
            if (f->slots[i] == slot) {
                w.at[i] = where;
                w.form[where] = var_form(s, p, f, i, 0);
            }
        w.n_slots += slot >= 0;
    }
    return w;
}

/* The variable at SKIP stays (-1: none does). */
static void forms_next(const struct mpp_solver *s, const struct mpp_solver_plan *p, const struct mpp_solver_factor *f,
                       struct forms *w, int32_t skip)
{
    for (int32_t i = f->n_scope - 1; i >= 0; i--) {
        if (i == skip)
            continue;
        w->idx[i] = w->idx[i] + 1 < p->vars[f->scope[i]].size ? w->idx[i] + 1 : 0;
        w->form[w->at[i]] = var_form(s, p, f, i, w->idx[i]);
        if (w->idx[i])
            break;
    }
}

/* What converts cost under PRICE: [made forms of the producer's classes][forms], rows of other forms are not set. */
static int64_t *convert_rows(const struct mpp_solver *s, const struct mpp_solver_plan *p, const struct mpp_solver_value *v,
                             int64_t price, struct mpp_arena *scratch)
{
    int64_t *row = mpp_arena_array(scratch, (int64_t)v->n_forms * v->n_forms, int64_t);
    bool *known = mpp_arena_array(scratch, v->n_forms, bool);
    for (int32_t k = p->classes.first[v->producer]; k < p->classes.first[v->producer + 1]; k++) {
        int32_t from = v->out[p->classes.member[k]];
        for (int32_t to = 0; to < v->n_forms && !known[from]; to++)
            row[(int64_t)from * v->n_forms + to] = convert_cost(s, v, from, to, price);
        known[from] = true;
    }
    return row;
}

/* One line of a whole value's table: consumer AT goes through the N forms of WANTED, all else is as in FORM. */
static void value_line(const int64_t *from, const int32_t *form, int32_t n_slots, int32_t at, int32_t n, const int32_t *wanted,
                       int64_t stride, int64_t *out)
{
    int64_t base = 0;
    for (int32_t c = 1; c < n_slots; c++) {
        bool seen = c == at;
        for (int32_t d = 1; d < c && !seen; d++)
            seen = d != at && form[d] == form[c];
        base = seen ? base : sat_add(base, from[form[c]]);
    }
    for (int32_t k = 0; k < n; k++)
        out[k * stride] = sat_add(base, from[wanted[k]]);
    for (int32_t k = 0; k < n; k++) /* a copy that another consumer wants too */
        for (int32_t c = 1; c < n_slots; c++)
            if (c != at && form[c] == wanted[k])
                out[k * stride] = base;
}

/* The table of a value, line by line along its last consumer. */
static void whole_value_table(const struct mpp_solver *s, const struct mpp_solver_plan *p, const struct mpp_solver_factor *f,
                              int64_t price, struct mpp_arena *scratch, int64_t *out)
{
    const struct mpp_solver_value *v = &s->p->values[f->index];
    struct forms w = forms_start(s, p, f, scratch);
    const int64_t *row = convert_rows(s, p, v, price, scratch);
    int32_t inner = f->n_scope - 1, size, *wanted;
    int64_t stride = 1;
    if (inner > 0 && f->slots[inner] < 0) {
        stride = p->vars[f->scope[inner]].size;
        inner--;
    }
    size = p->vars[f->scope[inner]].size;
    wanted = mpp_arena_array(scratch, size, int32_t);
    for (int32_t k = 0; k < size; k++)
        wanted[k] = var_form(s, p, f, inner, k);
    for (int64_t e = 0; e < f->size; e += stride * (size - 1))
        for (int64_t j = 0; j < stride; j++, e++, forms_next(s, p, f, &w, inner))
            value_line(row + (int64_t)w.form[0] * v->n_forms, w.form, w.n_slots, w.at[inner], size, wanted, stride, out + e);
}

/* The table of a value, or of one consumer's share of a split value. */
static void value_table(const struct mpp_solver *s, const struct mpp_solver_plan *p, const struct mpp_solver_factor *f,
                        int64_t price, const int64_t *share, struct mpp_arena *scratch, int64_t *out)
{
    if (!share && f->n_scope > 0 && (f->n_scope > 1 || f->slots[0] >= 0)) {
        whole_value_table(s, p, f, price, scratch, out);
        return;
    }
    struct forms w = forms_start(s, p, f, scratch);
    for (int64_t e = 0; e < f->size; e++, forms_next(s, p, f, &w, -1))
        out[e] = copies_cost(s, &s->p->values[f->index], w.form, w.n_slots, price, share);
}

void mpp_solver_copy_bytes(const struct mpp_solver *s, const struct mpp_solver_plan *p,
                           const struct mpp_solver_factor *f, int64_t *out)
{
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    struct forms w = forms_start(s, p, f, scratch);
    for (int64_t e = 0; e < f->size; e++, forms_next(s, p, f, &w, -1)) {
        out[e] = 0;
        for (int32_t c = 1; c < w.n_slots; c++) {
            bool seen = false;
            for (int32_t d = 0; d < c && !seen; d++)
                seen = w.form[d] == w.form[c];
            out[e] += seen ? 0 : s->p->values[f->index].copy_bytes[w.form[c]];
        }
    }
    mpp_arena_free(scratch);
}

/* ---- evaluation --------------------------------------------------------------------------- */

struct run {
    struct mpp_solver *s;
    struct mpp_solver_plan *p;
    struct mpp_solver_eval *ev;
    struct mpp_arena *scratch;
    int64_t *buf, *row;
};

static int32_t table_store(struct mpp_solver_eval *ev, const int64_t *data, int64_t size)
{
    bool fresh;
    int32_t id = mpp_solver_index_add(ev->index, data, sizeof *data * (size_t)size, true, &fresh);
    if (fresh) {
        ev->table = mpp_arena_grow(ev->arena, ev->table, &ev->table_cap, (size_t)id + 1, sizeof *ev->table);
        ev->table[id] = (int64_t *)(uintptr_t)mpp_solver_index_key(ev->index, id);
    }
    return id;
}

static void factor_tables(struct run *r)
{
    struct mpp_solver_plan *p = r->p;
    struct mpp_solver_eval *ev = r->ev;
    struct mpp_solver_index *seen = mpp_solver_index_new(r->scratch);
    size_t cap = 0;
    int32_t *table_of = NULL;
    for (int32_t i = 0; i < p->n_factors; i++) {
        const struct mpp_solver_factor *f = &p->factors[i];
        if (f->kind == MPP_FACTOR_UNARY) {
            unary_table(r->s, p, ev->unary_price, f->index, r->buf);
            ev->factor_table[i] = table_store(ev, r->buf, f->size);
            continue;
        }
        if (f->kind == MPP_FACTOR_SHIFT) {
            int64_t none = 0, *shift = p->shift[f->index];
            ev->factor_table[i] = table_store(ev, shift ? shift : &none, f->size);
            continue;
        }
        int64_t price = f->kind == MPP_FACTOR_LINK ? 0 : span_price(ev->unary_price, r->s->copy_span[f->index]);
        int64_t cells = (int64_t)r->s->p->values[f->index].n_forms * r->s->p->values[f->index].n_forms;
        const int64_t *share = f->kind == MPP_FACTOR_SPLIT ? p->share[f->index] + f->slot * cells : NULL;
        int64_t key[2] = {f->shape, price};
        bool fresh = true;
        int32_t id = share ? 0 : mpp_solver_index_add(seen, key, sizeof key, true, &fresh);
        if (fresh) {
            if (f->kind == MPP_FACTOR_LINK)
                link_table(r->s, p, f, r->buf);
            else
                value_table(r->s, p, f, price, share, r->scratch, r->buf);
            r->s->work += f->size;
            ev->factor_table[i] = table_store(ev, r->buf, f->size);
        }
        if (share)
            continue;
        table_of = mpp_arena_grow(r->scratch, table_of, &cap, (size_t)id + 1, sizeof *table_of);
        if (fresh)
            table_of[id] = ev->factor_table[i];
        ev->factor_table[i] = table_of[id];
    }
}

/* A walk over the entries of a bucket's scope. */
struct cursor {
    const struct mpp_solver_bucket *bk;
    int32_t size[MAX_SCOPE], idx[MAX_SCOPE], n_in, w, k, skip; /* skip: a dimension that stays at 0 */
    const int64_t **ptr;
};

static struct cursor cursor_start(struct run *r, const struct mpp_solver_bucket *bk)
{
    struct cursor c = {.bk = bk, .n_in = bk->n_in, .w = bk->n_scope + 1, .k = r->p->vars[bk->var].size,
                       .skip = -1};
    c.ptr = mpp_arena_array(r->scratch, bk->n_in, const int64_t *);
    for (int32_t i = 0; i < bk->n_scope; i++)
        c.size[i] = r->p->vars[bk->scope[i]].size;
    for (int32_t i = 0; i < bk->n_in; i++) {
        int32_t in = bk->in[i], nf = r->p->n_factors;
        c.ptr[i] = r->ev->table[in < nf ? r->ev->factor_table[in] : r->ev->message_table[in - nf]];
    }
    return c;
}

static inline void cursor_next(struct cursor *c)
{
    for (int32_t j = c->w - 2; j >= 0; j--) {
        if (j == c->skip)
            continue;
        if (++c->idx[j] < c->size[j]) {
            for (int32_t i = 0; i < c->n_in; i++)
                c->ptr[i] += c->bk->stride[i * c->w + j];
            return;
        }
        c->idx[j] = 0;
        for (int32_t i = 0; i < c->n_in; i++)
            c->ptr[i] -= c->bk->stride[i * c->w + j] * (c->size[j] - 1);
    }
}

/* The entry of the message at the cursor. */
static inline int64_t cursor_entry(const struct cursor *c)
{
    int64_t at = 0;
    for (int32_t j = 0; j < c->w - 1; j++)
        at = at * c->size[j] + c->idx[j];
    return at;
}

/* ROW[k] = sum of the inputs at the cursor with the variable at k. */
static inline void cursor_row(const struct cursor *c, int64_t *row)
{
    for (int32_t i = 0; i < c->n_in; i++) {
        const int64_t *p = c->ptr[i];
        int64_t st = c->bk->stride[i * c->w + c->w - 1];
        if (i == 0)
            for (int32_t k = 0; k < c->k; k++)
                row[k] = p[k * st];
        else
            for (int32_t k = 0; k < c->k; k++) {
                int64_t x = row[k] + p[k * st];
                row[k] = x > MPP_SOLVER_INF ? MPP_SOLVER_INF : x;
            }
    }
}

/* Normalise DATA; returns what was taken out. */
static int64_t normalise(int64_t *data, int64_t n)
{
    int64_t least = MPP_SOLVER_INF;
    for (int64_t e = 0; e < n; e++)
        least = data[e] < least ? data[e] : least;
    if (least != 0 && least < MPP_SOLVER_INF)
        for (int64_t e = 0; e < n; e++)
            if (data[e] < MPP_SOLVER_INF)
                data[e] -= least;
    return least;
}

/* The scope position that the fewest inputs depend on. */
static int32_t inner_dim(const struct mpp_solver_bucket *bk)
{
    int32_t w = bk->n_scope + 1, best = -1, fewest = INT32_MAX;
    for (int32_t j = 0; j < bk->n_scope; j++) {
        int32_t n = 0;
        for (int32_t i = 0; i < bk->n_in; i++)
            n += bk->stride[i * w + j] != 0;
        if (n <= fewest) {
            fewest = n;
            best = j;
        }
    }
    return best;
}

/* Sums of so many entries do not overflow. */
enum { SAFE_SUM = 6 };

/* OUT[j] = min(OUT[j], BASE + the N inputs at j), j stepping by STRIDE in OUT. */
static inline void row_min(int64_t *out, int64_t out_stride, int32_t size, int64_t base, int32_t n,
                           const int64_t *const *in, const int64_t *stride)
{
    if (n == 1) {
        const int64_t *a = in[0];
        for (int32_t j = 0; j < size; j++, a += stride[0], out += out_stride) {
            int64_t x = base + *a;
            *out = x < *out ? x : *out;
        }
    } else if (n == 2) {
        const int64_t *a = in[0], *b = in[1];
        for (int32_t j = 0; j < size; j++, a += stride[0], b += stride[1], out += out_stride) {
            int64_t x = base + *a + *b;
            *out = x < *out ? x : *out;
        }
    } else if (n == 3) {
        const int64_t *a = in[0], *b = in[1], *c = in[2];
        for (int32_t j = 0; j < size; j++, a += stride[0], b += stride[1], c += stride[2], out += out_stride) {
            int64_t x = base + *a + *b + *c;
            *out = x < *out ? x : *out;
        }
    } else {
        for (int32_t j = 0; j < size; j++, out += out_stride) {
            int64_t x = base;
            for (int32_t i = 0; i < n; i++)
                x = i < SAFE_SUM ? x + in[i][j * stride[i]] : sat_add(x, in[i][j * stride[i]]);
            *out = x < *out ? x : *out;
        }
    }
}

/* r->buf = the least sum of the inputs over the bucket's variable, per entry of its scope. */
static void minimise(struct run *r, const struct mpp_solver_bucket *bk)
{
    int32_t w = bk->n_scope + 1, inner = inner_dim(bk), n_k = r->p->vars[bk->var].size, n_dep = 0, n_base = 0;
    struct cursor c = cursor_start(r, bk);
    const int64_t **row = mpp_arena_array(r->scratch, bk->n_in, const int64_t *);
    int64_t *row_stride = mpp_arena_array(r->scratch, bk->n_in, int64_t);
    int32_t *dep = mpp_arena_array(r->scratch, bk->n_in, int32_t);
    int32_t *fix = mpp_arena_array(r->scratch, bk->n_in, int32_t);
    int64_t out_stride = 1, at = 0;
    int32_t size = inner < 0 ? 1 : r->p->vars[bk->scope[inner]].size;
    for (int32_t i = 0; i < bk->n_in; i++) {
        bool moves = inner >= 0 && bk->stride[i * w + inner] != 0;
        if (moves)
            row_stride[n_dep] = bk->stride[i * w + inner];
        *(moves ? &dep[n_dep++] : &fix[n_base++]) = i;
    }
    for (int32_t j = inner + 1; inner >= 0 && j < bk->n_scope; j++)
        out_stride *= c.size[j];
    for (int64_t e = 0; e < bk->size; e++)
        r->buf[e] = MPP_SOLVER_INF;
    c.skip = inner;
    for (int64_t e = 0; e < bk->size; e += size) {
        at = cursor_entry(&c);
        for (int32_t k = 0; k < n_k; k++) {
            int64_t base = 0;
            for (int32_t q = 0; q < n_base; q++)
                base = sat_add(base, c.ptr[fix[q]][k * bk->stride[fix[q] * w + bk->n_scope]]);
            if (base >= MPP_SOLVER_INF)
                continue;
            for (int32_t q = 0; q < n_dep; q++)
                row[q] = c.ptr[dep[q]] + k * bk->stride[dep[q] * w + bk->n_scope];
            row_min(r->buf + at, out_stride, size, base, n_dep, row, row_stride);
        }
        cursor_next(&c);
    }
    r->s->work += bk->size * n_k;
}

static void bucket_run(struct run *r, int32_t j)
{
    const struct mpp_solver_bucket *bk = &r->p->buckets[j];
    struct mpp_solver_eval *ev = r->ev;
    int32_t nf = r->p->n_factors;
    int32_t *key = mpp_arena_array(r->scratch, bk->n_in + 1, int32_t);
    key[0] = bk->pattern;
    for (int32_t i = 0; i < bk->n_in; i++)
        key[i + 1] = bk->in[i] < nf ? ev->factor_table[bk->in[i]] : ev->message_table[bk->in[i] - nf];
    bool fresh;
    int32_t id = mpp_solver_index_add(ev->memo, key, sizeof *key * ((size_t)bk->n_in + 1), true, &fresh);
    if (fresh) {
        size_t cap = ev->memo_cap;
        ev->memo_table = mpp_arena_grow(ev->arena, ev->memo_table, &cap, (size_t)id + 1, sizeof *ev->memo_table);
        ev->memo_shift = mpp_arena_grow(ev->arena, ev->memo_shift, &ev->memo_cap, (size_t)id + 1,
                                        sizeof *ev->memo_shift);
        minimise(r, bk);
        ev->memo_shift[id] = normalise(r->buf, bk->size);
        ev->memo_table[id] = table_store(ev, r->buf, bk->size);
    }
    ev->message_table[j] = ev->memo_table[id];
    ev->shift[j] = ev->memo_shift[id];
    ev->value = sat_add(ev->value, ev->shift[j]);
}

/* What no variable decides: nodes of one class, values whose forms are settled. */
static void add_constants(struct run *r)
{
    struct mpp_solver_eval *ev = r->ev;
    for (int32_t i = 0; i < r->s->p->n_nodes; i++)
        if (r->p->node_var[i] < 0) {
            if (r->p->classes.first[i] == r->p->classes.first[i + 1]) {
                ev->value = MPP_SOLVER_INF;
                return;
            }
            unary_table(r->s, r->p, ev->unary_price, i, r->row);
            ev->value = sat_add(ev->value, r->row[0]);
        }
    for (int32_t f = 0; f < r->p->n_factors; f++)
        if (r->p->factors[f].n_scope == 0)
            ev->value = sat_add(ev->value, ev->table[ev->factor_table[f]][0]);
}

struct mpp_solver_eval *mpp_solver_eval_new(struct mpp_solver *s, struct mpp_solver_plan *p, const int64_t *prices)
{
    struct mpp_arena *a = mpp_arena_scratch(s->arena);
    struct mpp_solver_eval *ev = mpp_arena_array(a, 1, struct mpp_solver_eval);
    ev->arena = a;
    ev->index = mpp_solver_index_new(a);
    ev->memo = mpp_solver_index_new(a);
    ev->factor_table = mpp_arena_array(a, p->n_factors, int32_t);
    ev->message_table = mpp_arena_array(a, p->n_buckets, int32_t);
    ev->shift = mpp_arena_array(a, p->n_buckets, int64_t);
    ev->assign = mpp_arena_array(a, p->n_vars, int32_t);
    if (prices) {
        ev->unary_price = mpp_arena_array(a, s->n_rows + 1, int64_t);
        for (int32_t r = 0; r < s->n_rows; r++)
            ev->unary_price[r + 1] = ev->unary_price[r] + prices[r];
    }
    int64_t most = 1;
    int32_t row = 1;
    for (int32_t f = 0; f < p->n_factors; f++)
        most = p->factors[f].size > most ? p->factors[f].size : most;
    for (int32_t j = 0; j < p->n_buckets; j++)
        most = p->buckets[j].size > most ? p->buckets[j].size : most;
    for (int32_t v = 0; v < p->n_vars; v++)
        row = p->vars[v].size > row ? p->vars[v].size : row;
    struct run r = {s, p, ev, mpp_arena_scratch(s->arena), NULL, NULL};
    r.buf = mpp_arena_array(r.scratch, most, int64_t);
    r.row = mpp_arena_array(r.scratch, row, int64_t);
    factor_tables(&r);
    add_constants(&r);
    for (int32_t j = 0; j < p->n_buckets && ev->value < MPP_SOLVER_INF; j++) {
        if (s->set.interrupt && *s->set.interrupt)
            break;
        bucket_run(&r, j);
    }
    mpp_arena_free(r.scratch);
    return ev;
}

void mpp_solver_eval_free(struct mpp_solver_eval *ev)
{
    if (ev)
        mpp_arena_free(ev->arena);
}

/* ---- the solution ------------------------------------------------------------------------- */

/* The inputs of bucket J with its variable at K and its scope as in AT. */
static int64_t inputs_at(const struct mpp_solver_plan *p, const struct mpp_solver_eval *ev, int32_t j, int32_t k,
                         const int32_t *at)
{
    const struct mpp_solver_bucket *bk = &p->buckets[j];
    int32_t w = bk->n_scope + 1, nf = p->n_factors;
    int64_t sum = 0;
    for (int32_t i = 0; i < bk->n_in; i++) {
        int32_t in = bk->in[i];
        int64_t off = k * bk->stride[i * w + bk->n_scope];
        for (int32_t q = 0; q < bk->n_scope; q++)
            off += at[q] * bk->stride[i * w + q];
        sum = sat_add(sum, ev->table[in < nf ? ev->factor_table[in] : ev->message_table[in - nf]][off]);
    }
    return sum;
}

/* All buckets of the variable together. */
static void assign_var(struct mpp_solver_plan *p, struct mpp_solver_eval *ev, int32_t j)
{
    const struct mpp_solver_bucket *bk = &p->buckets[j];
    int32_t best_k = 0;
    int64_t best = INT64_MAX;
    for (int32_t k = 0; k < p->vars[bk->var].size; k++) {
        int64_t sum = 0;
        for (int32_t t = j; t >= 0; t = p->buckets[t].twin) {
            int32_t at[MAX_SCOPE];
            for (int32_t q = 0; q < p->buckets[t].n_scope; q++)
                at[q] = ev->assign[p->buckets[t].scope[q]];
            sum = sat_add(sum, inputs_at(p, ev, t, k, at));
        }
        if (sum < best) {
            best = sum;
            best_k = k;
        }
    }
    ev->assign[bk->var] = best_k;
}

void mpp_solver_eval_choices(struct mpp_solver *s, struct mpp_solver_plan *p, struct mpp_solver_eval *ev,
                             int32_t *out_choice)
{
    for (int32_t j = p->n_buckets - 1; j >= 0; j--)
        if (!p->buckets[j].is_twin)
            assign_var(p, ev, j);
    for (int32_t i = 0; i < s->p->n_nodes; i++) {
        int32_t cls = p->node_var[i] < 0 ? 0 : ev->assign[p->node_var[i]];
        int64_t best = INT64_MAX;
        out_choice[i] = 0;
        for (int32_t k = 0; k < s->p->nodes[i].n_choices; k++) {
            if (p->classes.of_choice[s->choice_first[i] + k] != cls)
                continue;
            int64_t c = mpp_solver_priced_cost(s, ev->unary_price, i, k);
            if (c < best) {
                best = c;
                out_choice[i] = k;
            }
        }
    }
}

void mpp_solver_eval_copies(struct mpp_solver_plan *p, struct mpp_solver_eval *ev, int32_t *out_value)
{
    for (int32_t j = p->n_buckets - 1; j >= 0; j--) {
        const struct mpp_solver_bucket *bk = &p->buckets[j];
        int32_t at[MAX_SCOPE];
        int64_t best = INT64_MAX;
        for (int32_t q = 0; q < bk->n_scope; q++)
            at[q] = out_value[bk->owner[q]];
        for (int32_t k = 0; k < p->vars[bk->var].size; k++) {
            int64_t sum = inputs_at(p, ev, j, k, at);
            if (sum < best) {
                best = sum;
                out_value[j] = k;
            }
        }
    }
}

/* ---- min-marginals ------------------------------------------------------------------------ */

struct down {
    struct run r;
    struct mpp_solver_index *memo;
    int32_t **memo_out, *outside;  /* table numbers per memo: the variable's, then each input's */
    size_t memo_cap;
    int64_t limit;
    int32_t *factor;               /* [n_factors] table numbers, -1: none; NULL: not wanted */
};

/* Is the least total per entry wanted of the input? */
static int64_t down_size(const struct down *d, int32_t in)
{
    const struct mpp_solver_plan *p = d->r.p;
    if (in >= p->n_factors)
        return p->buckets[in - p->n_factors].size;
    enum mpp_solver_factor_kind kind = p->factors[in].kind;
    return d->factor && (kind == MPP_FACTOR_VALUE || kind == MPP_FACTOR_SPLIT) ? p->factors[in].size : 0;
}

/* The least total per entry of each child's message and per value of the variable. */
static void bucket_down(struct down *d, int32_t j, int32_t *ids)
{
    struct run *r = &d->r;
    const struct mpp_solver_bucket *bk = &r->p->buckets[j];
    struct mpp_solver_eval *ev = r->ev;
    int32_t w = bk->n_scope + 1, n_k = r->p->vars[bk->var].size;
    struct mpp_arena *tmp = mpp_arena_scratch(r->s->arena);
    int64_t **out = mpp_arena_array(tmp, bk->n_in + 1, int64_t *);
    int64_t *size = mpp_arena_array(tmp, bk->n_in + 1, int64_t);
    for (int32_t i = 0; i <= bk->n_in; i++) {
        size[i] = i == 0 ? n_k : down_size(d, bk->in[i - 1]);
        out[i] = size[i] ? mpp_arena_array(tmp, size[i], int64_t) : NULL;
        for (int64_t e = 0; e < size[i]; e++)
            out[i][e] = MPP_SOLVER_INF;
    }
    struct cursor c = cursor_start(r, bk);
    const int64_t **base = mpp_arena_array(tmp, bk->n_in, const int64_t *);
    memcpy(base, c.ptr, sizeof *base * (size_t)bk->n_in);
    const int64_t *msg = ev->table[ev->message_table[j]], *outside = ev->table[d->outside[j]];
    for (int64_t e = 0; e < bk->size; e++, cursor_next(&c)) {
        if (msg[e] >= MPP_SOLVER_INF || outside[e] >= MPP_SOLVER_INF || outside[e] > d->limit)
            continue;
        cursor_row(&c, r->row);
        for (int32_t k = 0; k < n_k; k++) {
            if (r->row[k] >= MPP_SOLVER_INF)
                continue;
            int64_t total = sat_add(r->row[k] - msg[e] - ev->shift[j], outside[e]);
            if (total > d->limit)
                continue;
            out[0][k] = total < out[0][k] ? total : out[0][k];
            for (int32_t i = 0; i < bk->n_in; i++) {
                if (!out[i + 1])
                    continue;
                int64_t at = c.ptr[i] - base[i] + k * bk->stride[i * w + bk->n_scope];
                out[i + 1][at] = total < out[i + 1][at] ? total : out[i + 1][at];
            }
        }
    }
    r->s->work += bk->size * n_k;
    for (int32_t i = 0; i <= bk->n_in; i++)
        ids[i] = size[i] ? table_store(ev, out[i], size[i]) : -1;
    mpp_arena_free(tmp);
}

static void down_one(struct down *d, int32_t j, int64_t *out_class)
{
    struct run *r = &d->r;
    const struct mpp_solver_bucket *bk = &r->p->buckets[j];
    int32_t nf = r->p->n_factors;
    int64_t *key = mpp_arena_array(r->scratch, bk->n_in + 2, int64_t);
    key[0] = bk->pattern;
    key[1] = d->outside[j];
    for (int32_t i = 0; i < bk->n_in; i++) {
        bool msg = bk->in[i] >= nf;
        key[i + 2] = (msg ? r->ev->message_table[bk->in[i] - nf] : r->ev->factor_table[bk->in[i]]) * (int64_t)4 + 2 * msg +
                     (down_size(d, bk->in[i]) > 0);
    }
    bool fresh;
    int32_t id = mpp_solver_index_add(d->memo, key, sizeof *key * ((size_t)bk->n_in + 2), true, &fresh);
    if (fresh) {
        d->memo_out = mpp_arena_grow(r->scratch, d->memo_out, &d->memo_cap, (size_t)id + 1, sizeof *d->memo_out);
        d->memo_out[id] = mpp_arena_array(r->scratch, bk->n_in + 1, int32_t);
        bucket_down(d, j, d->memo_out[id]);
    }
    for (int32_t i = 0; i < bk->n_in; i++)
        if (bk->in[i] >= nf)
            d->outside[bk->in[i] - nf] = d->memo_out[id][i + 1];
        else if (d->factor)
            d->factor[bk->in[i]] = d->memo_out[id][i + 1];
    const struct mpp_solver_var *var = &r->p->vars[bk->var];
    const int64_t *least = r->ev->table[d->memo_out[id][0]];
    int64_t *out = var->value < 0 ? out_class + r->p->classes.first[var->node] : NULL;
    for (int32_t k = 0; out && k < var->size; k++)
        out[k] = least[k] > out[k] ? least[k] : out[k];
}

void mpp_solver_eval_marginals(struct mpp_solver *s, struct mpp_solver_plan *p, struct mpp_solver_eval *ev,
                               int64_t limit, int64_t *out_class, int64_t **out_outside, int64_t **out_factor)
{
    int32_t row = 1;
    int64_t zero = 0;
    for (int32_t v = 0; v < p->n_vars; v++)
        row = p->vars[v].size > row ? p->vars[v].size : row;
    struct down d = {.r = {s, p, ev, mpp_arena_scratch(s->arena), NULL, NULL}, .limit = limit};
    d.r.row = mpp_arena_array(d.r.scratch, row, int64_t);
    d.memo = mpp_solver_index_new(d.r.scratch);
    d.outside = mpp_arena_array(d.r.scratch, p->n_buckets, int32_t);
    d.factor = out_factor ? mpp_arena_array(d.r.scratch, p->n_factors, int32_t) : NULL;
    for (int32_t f = 0; out_factor && f < p->n_factors; f++)
        d.factor[f] = -1;
    memset(out_class, 0, sizeof *out_class * (size_t)p->classes.first[s->p->n_nodes]);
    for (int32_t j = p->n_buckets - 1; j >= 0; j--) {
        if (p->buckets[j].parent < 0)
            d.outside[j] = table_store(ev, &zero, 1);
        down_one(&d, j, out_class);
    }
    for (int32_t j = 0; out_outside && j < p->n_buckets; j++)
        out_outside[j] = ev->table[d.outside[j]];
    for (int32_t f = 0; out_factor && f < p->n_factors; f++)
        out_factor[f] = d.factor[f] >= 0 ? ev->table[d.factor[f]] : NULL;
    mpp_arena_free(d.r.scratch);
}

void mpp_solver_factor_pairs(const struct mpp_solver *s, const struct mpp_solver_plan *p, const struct mpp_solver_factor *f,
                             const int64_t *table, int64_t limit, int32_t c, uint8_t *out_bits)
{
    struct mpp_arena *scratch = mpp_arena_scratch(s->arena);
    struct forms w = forms_start(s, p, f, scratch);
    int32_t nf = s->p->values[f->index].n_forms, at = f->kind == MPP_FACTOR_SPLIT ? 1 : c + 1;
    for (int64_t e = 0; e < f->size; e++, forms_next(s, p, f, &w, -1)) {
        int64_t bit = (int64_t)w.form[0] * nf + w.form[at];
        if (table[e] <= limit)
            out_bits[bit / 8] |= (uint8_t)(1 << bit % 8);
    }
    mpp_arena_free(scratch);
}
