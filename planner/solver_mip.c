/* solver_mip.c - the integer program of solver.h as rows and columns. */
#include <string.h>

#include "planner/solver_internal.h"

/* ---- building ----------------------------------------------------------------------------- */

struct mip_builder {
    const struct mpp_solver *s;
    struct mpp_solver_mip *mip;
    struct mpp_arena *scratch;
    int32_t *x_col;              /* [all choices] column, -1: none */
    uint8_t *made, *wanted;      /* [most forms] */
    struct mpp_solver_term **row_terms; /* per memory row, gathered as columns appear */
    int32_t *row_n;
    size_t *row_cap;
};

static int32_t add_col(struct mip_builder *b, enum mpp_solver_col_kind kind, int32_t a, int32_t bb, int32_t c,
                       int32_t d, int64_t cost)
{
    struct mpp_solver_mip *m = b->mip;
    m->cols = mpp_arena_grow(m->arena, m->cols, &m->col_cap, (size_t)m->n_cols + 1, sizeof *m->cols);
    m->cols[m->n_cols] = (struct mpp_solver_col){kind, a, bb, c, d, cost};
    return m->n_cols++;
}

static void begin_row(struct mip_builder *b, char sense, int64_t rhs, int32_t x, int32_t y, int32_t z)
{
    struct mpp_solver_mip *m = b->mip;
    m->rows = mpp_arena_grow(m->arena, m->rows, &m->row_cap, (size_t)m->n_rows + 1, sizeof *m->rows);
    m->rows[m->n_rows++] = (struct mpp_solver_row){sense, false, rhs, m->n_terms, 0, x, y, z};
}

static void add_term(struct mip_builder *b, int32_t col, int64_t coef)
{
    struct mpp_solver_mip *m = b->mip;
    m->terms = mpp_arena_grow(m->arena, m->terms, &m->term_cap, (size_t)m->n_terms + 1, sizeof *m->terms);
    m->terms[m->n_terms++] = (struct mpp_solver_term){col, coef};
    m->rows[m->n_rows - 1].n++;
}

static void drop_row(struct mip_builder *b)
{
    b->mip->n_rows--;
}

/* COL holds BYTES during SPAN. */
static void add_bytes(struct mip_builder *b, struct mpp_solver_span span, int32_t col, int64_t bytes)
{
    for (int32_t r = span.lo; bytes > 0 && r < span.hi; r++) {
        struct mpp_solver_term *last = b->row_n[r] ? &b->row_terms[r][b->row_n[r] - 1] : NULL;
        if (last && last->col == col) {
            last->coef += bytes;
            continue;
        }
        b->row_terms[r] = mpp_arena_grow(b->scratch, b->row_terms[r], &b->row_cap[r], (size_t)b->row_n[r] + 1,
                                         sizeof **b->row_terms);
        b->row_terms[r][b->row_n[r]++] = (struct mpp_solver_term){col, bytes};
    }
}

static void add_node(struct mip_builder *b, int32_t i)
{
    const struct mpp_solver *s = b->s;
    const struct mpp_solver_node *n = &s->p->nodes[i];
    int64_t least = INT64_MAX;
    for (int32_t k = 0; k < n->n_choices; k++)
        if (s->alive[s->choice_first[i] + k] && n->cost[k] < least)
            least = n->cost[k];
    begin_row(b, 'E', 1, 0, i, 0);
    for (int32_t k = 0; k < n->n_choices; k++) {
        b->x_col[s->choice_first[i] + k] = -1;
        if (!s->alive[s->choice_first[i] + k])
            continue;
        int32_t col = add_col(b, MPP_COL_X, i, k, 0, 0, n->cost[k] - least);
        b->x_col[s->choice_first[i] + k] = col;
        add_term(b, col, 1);
        for (int32_t u = 0; u < n->n_usages; u++)
            add_bytes(b, s->usage_span[s->usage_first[i] + u], col, n->usages[u].bytes[k]);
    }
    if (b->mip->rows[b->mip->n_rows - 1].n == 0) {
        b->mip->impossible = true;
        drop_row(b);
    } else {
        b->mip->constant += least;
    }
}

/* Add COEF times every x of SLOT's node whose form is F to the open row. */
static void add_x_of_form(struct mip_builder *b, int32_t value, int32_t slot, int32_t f, int64_t coef)
{
    const struct mpp_solver_value *v = &b->s->p->values[value];
    int32_t node = slot < 0 ? v->producer : v->consumers[slot], first = b->s->choice_first[node];
    for (int32_t k = 0; k < b->s->p->nodes[node].n_choices; k++)
        if (b->x_col[first + k] >= 0 && mpp_solver_form(b->s, value, slot, k) == f)
            add_term(b, b->x_col[first + k], coef);
}

static void forms_of(struct mip_builder *b, int32_t value, int32_t slot, uint8_t *out)
{
    const struct mpp_solver_value *v = &b->s->p->values[value];
    int32_t node = slot < 0 ? v->producer : v->consumers[slot];
    memset(out, 0, (size_t)v->n_forms);
    for (int32_t k = 0; k < b->s->p->nodes[node].n_choices; k++)
        if (b->s->alive[b->s->choice_first[node] + k])
            out[mpp_solver_form(b->s, value, slot, k)] = 1;
}

/* One consumer's transport of made forms to wanted forms. */
static void add_consumer(struct mip_builder *b, int32_t value, int32_t c, const int32_t *y_col)
{
    const struct mpp_solver_value *v = &b->s->p->values[value];
    int32_t nf = v->n_forms;
    int32_t *f_col = mpp_arena_array(b->scratch, nf * nf, int32_t);
    bool alone = v->n_consumers == 1;
    for (int32_t s = 0; s < nf; s++)
        for (int32_t t = 0; t < nf; t++) {
            f_col[s * nf + t] = -1;
            if (!b->made[s] || !b->wanted[t] || (s != t && v->convert[s * nf + t] >= MPP_SOLVER_INF))
                continue;
            int64_t cost = alone && s != t ? v->convert[s * nf + t] : 0;
            int32_t col = f_col[s * nf + t] = add_col(b, MPP_COL_F, value, c, s, t, cost);
            if (alone && s != t && v->copy_bytes)
                add_bytes(b, b->s->copy_span[value], col, v->copy_bytes[t]);
        }
    for (int32_t s = 0; s < nf; s++)
        if (b->made[s]) {
            begin_row(b, 'E', 0, 1 + c, value, s);
            for (int32_t t = 0; t < nf; t++)
                if (f_col[s * nf + t] >= 0)
                    add_term(b, f_col[s * nf + t], 1);
            add_x_of_form(b, value, -1, s, -1);
        }
    for (int32_t t = 0; t < nf; t++)
        if (b->wanted[t]) {
            begin_row(b, 'E', 0, -1 - c, value, t);
            for (int32_t s = 0; s < nf; s++)
                if (f_col[s * nf + t] >= 0)
                    add_term(b, f_col[s * nf + t], 1);
            add_x_of_form(b, value, c, t, -1);
        }
    for (int32_t e = 0; y_col && e < nf * nf; e++)
        if (y_col[e] >= 0 && f_col[e] >= 0) {
            begin_row(b, 'G', 0, 1 + c, value, nf + e);
            add_term(b, y_col[e], 1);
            add_term(b, f_col[e], -1);
        }
}

static void add_value(struct mip_builder *b, int32_t value)
{
    const struct mpp_solver_value *v = &b->s->p->values[value];
    int32_t nf = v->n_forms, *y_col = NULL;
    forms_of(b, value, -1, b->made);
    if (v->n_consumers > 1) {
        struct mpp_solver_span sp = b->s->copy_span[value];
        uint8_t *any = mpp_arena_array(b->scratch, nf, uint8_t);
        for (int32_t c = 0; c < v->n_consumers; c++) {
            forms_of(b, value, c, b->wanted);
            for (int32_t t = 0; t < nf; t++)
                any[t] |= b->wanted[t];
        }
        y_col = mpp_arena_array(b->scratch, nf * nf, int32_t);
        for (int32_t s = 0; s < nf; s++)
            for (int32_t t = 0; t < nf; t++) {
                int64_t cost = v->convert[s * nf + t], bytes = sp.lo < sp.hi ? v->copy_bytes[t] : 0;
                y_col[s * nf + t] = -1;
                if (s == t || !b->made[s] || !any[t] || cost >= MPP_SOLVER_INF || (cost == 0 && bytes == 0))
                    continue;
                int32_t col = y_col[s * nf + t] = add_col(b, MPP_COL_Y, value, 0, s, t, cost);
                add_bytes(b, sp, col, bytes);
            }
    }
    for (int32_t c = 0; c < v->n_consumers; c++) {
        forms_of(b, value, c, b->wanted);
        add_consumer(b, value, c, y_col);
    }
}

struct mpp_solver_mip *mpp_solver_mip_new(const struct mpp_solver *s)
{
    struct mpp_arena *a = mpp_arena_scratch(s->arena);
    struct mpp_solver_mip *m = mpp_arena_array(a, 1, struct mpp_solver_mip);
    int32_t n_forms = 1;
    for (int32_t v = 0; v < s->p->n_values; v++)
        n_forms = s->p->values[v].n_forms > n_forms ? s->p->values[v].n_forms : n_forms;
    m->arena = a;
    struct mip_builder b = {.s = s, .mip = m, .scratch = mpp_arena_scratch(s->arena)};
    b.x_col = mpp_arena_array(b.scratch, s->choice_first[s->p->n_nodes], int32_t);
    b.made = mpp_arena_array(b.scratch, n_forms, uint8_t);
    b.wanted = mpp_arena_array(b.scratch, n_forms, uint8_t);
    b.row_terms = mpp_arena_array(b.scratch, s->n_rows, struct mpp_solver_term *);
    b.row_n = mpp_arena_array(b.scratch, s->n_rows, int32_t);
    b.row_cap = mpp_arena_array(b.scratch, s->n_rows, size_t);
    add_col(&b, MPP_COL_ONE, 0, 0, 0, 0, 0);
    for (int32_t i = 0; i < s->p->n_nodes; i++)
        add_node(&b, i);
    for (int32_t v = 0; v < s->p->n_values; v++)
        add_value(&b, v);
    for (int32_t r = 0; r < s->n_rows; r++) {
        if (b.row_n[r] == 0)
            continue;
        begin_row(&b, 'L', s->p->capacity_bytes, 0, s->row_time[r], 0);
        m->rows[m->n_rows - 1].memory = true;
        for (int32_t t = 0; t < b.row_n[r]; t++)
            add_term(&b, b.row_terms[r][t].col, b.row_terms[r][t].coef);
    }
    m->cols[0].cost = m->constant;
    mpp_arena_free(b.scratch);
    return m;
}

void mpp_solver_mip_free(struct mpp_solver_mip *mip)
{
    if (mip)
        mpp_arena_free(mip->arena);
}

void mpp_solver_mip_point(const struct mpp_solver *s, const struct mpp_solver_mip *m, const int32_t *choice,
                          double *out_x)
{
    for (int32_t i = 0; i < m->n_cols; i++) {
        const struct mpp_solver_col *c = &m->cols[i];
        bool on = c->kind == MPP_COL_ONE || (c->kind == MPP_COL_X && choice[c->a] == c->b);
        if (c->kind == MPP_COL_F || c->kind == MPP_COL_Y) {
            const struct mpp_solver_value *v = &s->p->values[c->a];
            bool made = v->out[choice[v->producer]] == c->c, wanted = false;
            for (int32_t q = 0; q < v->n_consumers; q++)
                if (c->kind == MPP_COL_Y || q == c->b)
                    wanted |= v->in[q][choice[v->consumers[q]]] == c->d;
            on = made && wanted;
        }
        out_x[i] = on;
    }
}
