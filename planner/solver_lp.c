/* solver_lp.c - the integer program of solver.h as a CPLEX LP file, for another solver to check.
 *
 *     full       every choice and every copy, as stated
 *     reduced    the alive choices and allowed pairs; what is settled is in the constant, in the costs of the choices
 *                that decide it, and in the limits
 *
 * Nothing is built: costs, rows and memory are three walks over the problem, so that memory does not grow with the file. */
#include <string.h>

#include "ir/outfile.h"
#include "planner/solver_internal.h"

enum { BUFFER = 1 << 16, LINE_TERMS = 12 };

struct lp {
    const struct mpp_solver *s;
    bool reduced, impossible;
    FILE *f;
    char buf[BUFFER];
    size_t n_buf;
    int32_t n_terms;             /* on the present row */
    int32_t n_rows;
    int32_t *n_alive;            /* [n_nodes] */
    int64_t *cost;               /* [all choices] with the copies that they settle */
    int64_t *acc, *acc_before;   /* [all choices] bytes at one time, and at the one before */
    int64_t unit;                /* divides all bytes */
    int64_t constant;
};

/* What a value still leaves open. */
struct view {
    struct mpp_arena *arena;
    const struct mpp_solver_value *v;
    int32_t value, n_open;       /* consumers that may want several forms */
    int32_t made_only;           /* the only form made, -1: several */
    uint8_t *made;               /* [n_forms] */
    uint8_t *certain;            /* [n_forms] wanted whatever is chosen */
    uint8_t **wanted;            /* [n_consumers][n_forms], NULL: settled */
    uint16_t *users;             /* [n_forms * n_forms] open consumers that may want the copy */
};

/* ---- text --------------------------------------------------------------------------------- */

static void flush(struct lp *l)
{
    fwrite(l->buf, 1, l->n_buf, l->f);
    l->n_buf = 0;
}

static void put(struct lp *l, const char *text)
{
    size_t n = strlen(text);
    if (l->n_buf + n > BUFFER)
        flush(l);
    memcpy(l->buf + l->n_buf, text, n);
    l->n_buf += n;
}

static void put_int(struct lp *l, int64_t x)
{
    char digits[24];
    int at = sizeof digits - 1;
    uint64_t u = x < 0 ? -(uint64_t)x : (uint64_t)x;
    digits[at] = 0;
    do
        digits[--at] = (char)('0' + u % 10);
    while (u /= 10);
    if (x < 0)
        digits[--at] = '-';
    put(l, digits + at);
}

/* " + COEF KIND_A_B[_C[_D]]"; indices below 0 are left out. */
static void term(struct lp *l, int64_t coef, const char *kind, int32_t a, int32_t b, int32_t c, int32_t d)
{
    const int32_t index[4] = {a, b, c, d};
    if (l->n_terms > 0 && l->n_terms % LINE_TERMS == 0)
        put(l, "\n ");
    l->n_terms++;
    put(l, coef < 0 ? " - " : " + ");
    if (coef != 1 && coef != -1) {
        put_int(l, coef < 0 ? -coef : coef);
        put(l, " ");
    }
    put(l, kind);
    for (int i = 0; i < 4 && index[i] >= 0; i++) {
        put(l, "_");
        put_int(l, index[i]);
    }
}

static void begin_row(struct lp *l)
{
    put(l, " r_");
    put_int(l, l->n_rows++);
    put(l, ":");
    l->n_terms = 0;
}

static void end_row(struct lp *l, const char *sense, int64_t rhs)
{
    put(l, sense);
    put_int(l, rhs);
    put(l, "\n");
}

/* A name as it may stand in a comment: on one line. */
static void comment(struct lp *l, const char *what, int32_t index, const char *name)
{
    char text[204];
    int n = 0;
    for (; name && *name && n < 200; name++)
        text[n++] = *name >= 32 && *name < 127 ? *name : '?';
    text[n] = 0;
    put(l, what);
    put_int(l, index);
    put(l, ": ");
    put(l, text);
    put(l, "\n");
}

/* ---- views -------------------------------------------------------------------------------- */

static int32_t node_of(const struct mpp_solver_value *v, int32_t slot)
{
    return slot < 0 ? v->producer : v->consumers[slot];
}

static bool alive(const struct lp *l, int32_t node, int32_t k)
{
    return l->s->alive[l->s->choice_first[node] + k];
}

/* Marks the forms in which SLOT may meet VALUE; returns how many, and some form. */
static int32_t forms_of(const struct mpp_solver *s, int32_t value, int32_t slot, uint8_t *mark, int32_t *out_form)
{
    int32_t node = node_of(&s->p->values[value], slot), n = 0;
    for (int32_t k = 0; k < s->p->nodes[node].n_choices; k++) {
        int32_t f = mpp_solver_form(s, value, slot, k);
        if (!s->alive[s->choice_first[node] + k] || mark[f])
            continue;
        mark[f] = 1;
        *out_form = f;
        n++;
    }
    return n;
}

/* May consumer C want form T of what is made in form FROM? */
static bool allowed(const struct mpp_solver *s, int32_t value, int32_t c, int32_t from, int32_t to)
{
    const struct mpp_solver_value *v = &s->p->values[value];
    int64_t at = (int64_t)from * v->n_forms + to;
    const uint8_t *pair = s->pair ? s->pair[s->consumer_first[value] + c] : NULL;
    return (from == to || v->convert[at] < MPP_SOLVER_INF) && (!pair || pair[at / 8] >> at % 8 & 1);
}

/* Does the copy cost anything here, in money or in bytes? */
static bool paid(const struct lp *l, const struct view *w, int32_t from, int32_t to)
{
    struct mpp_solver_span sp = l->s->copy_span[w->value];
    return from != to && !w->certain[to] &&
           (w->v->convert[(int64_t)from * w->v->n_forms + to] > 0 || (sp.lo < sp.hi && w->v->copy_bytes[to] > 0));
}

static struct view view_new(const struct lp *l, int32_t value)
{
    struct view w = {.arena = mpp_arena_scratch(l->s->arena), .v = &l->s->p->values[value], .value = value, .made_only = -1};
    int32_t nf = w.v->n_forms, form = 0;
    w.made = mpp_arena_array(w.arena, nf, uint8_t);
    w.certain = mpp_arena_array(w.arena, nf, uint8_t);
    w.wanted = mpp_arena_array(w.arena, w.v->n_consumers, uint8_t *);
    if (forms_of(l->s, value, -1, w.made, &form) == 1 && l->reduced)
        w.made_only = form;
    for (int32_t c = 0; c < w.v->n_consumers; c++) {
        w.wanted[c] = mpp_arena_array(w.arena, nf, uint8_t);
        if (forms_of(l->s, value, c, w.wanted[c], &form) == 1 && l->reduced) {
            w.wanted[c] = NULL;
            w.certain[form] = 1;
        }
        w.n_open += w.wanted[c] != NULL;
    }
    if (w.n_open == 0)
        return w;
    w.users = mpp_arena_array(w.arena, (int64_t)nf * nf, uint16_t);
    for (int32_t c = 0; c < w.v->n_consumers; c++)
        for (int32_t from = 0; w.wanted[c] && from < nf; from++)
            for (int32_t to = 0; w.made[from] && to < nf; to++)
                if (w.wanted[c][to] && allowed(l->s, value, c, from, to))
                    w.users[from * nf + to]++;
    return w;
}

/* ---- what is settled ---------------------------------------------------------------------- */

/* Visit the copies that one choice decides alone: OUT[choice] += cost, or bytes. */
static void settle(const struct lp *l, const struct view *w, bool bytes, int64_t *out)
{
    const struct mpp_solver_value *v = w->v;
    int32_t nf = v->n_forms;
    for (int32_t k = 0; k < l->s->p->nodes[v->producer].n_choices; k++)
        for (int32_t to = 0; alive(l, v->producer, k) && to < nf; to++)
            if (w->certain[to] && v->out[k] != to)
                out[l->s->choice_first[v->producer] + k] += bytes ? v->copy_bytes[to] : v->convert[v->out[k] * nf + to];
    for (int32_t c = 0; w->made_only >= 0 && c < v->n_consumers; c++)
        for (int32_t k = 0; w->wanted[c] && k < l->s->p->nodes[v->consumers[c]].n_choices; k++) {
            int32_t to = v->in[c][k], at = w->made_only * nf + to;
            if (alive(l, v->consumers[c], k) && paid(l, w, w->made_only, to) && w->users[at] == 1)
                out[l->s->choice_first[v->consumers[c]] + k] += bytes ? v->copy_bytes[to] : v->convert[at];
        }
}

/* The costs of the choices, each node's least moved to the constant. */
static void settle_costs(struct lp *l)
{
    const struct mpp_solver_problem *p = l->s->p;
    for (int32_t i = 0; i < p->n_nodes; i++)
        for (int32_t k = 0; k < p->nodes[i].n_choices; k++)
            if (alive(l, i, k)) {
                l->cost[l->s->choice_first[i] + k] = p->nodes[i].cost[k];
                l->n_alive[i]++;
            }
    for (int32_t v = 0; l->reduced && v < p->n_values; v++) {
        struct view w = view_new(l, v);
        settle(l, &w, false, l->cost);
        mpp_arena_free(w.arena);
    }
    for (int32_t i = 0; i < p->n_nodes; i++) {
        int64_t least = INT64_MAX, *cost = l->cost + l->s->choice_first[i];
        l->impossible = l->impossible || l->n_alive[i] == 0;
        for (int32_t k = 0; k < p->nodes[i].n_choices; k++)
            if (alive(l, i, k) && cost[k] < least)
                least = cost[k];
        for (int32_t k = 0; l->n_alive[i] > 0 && k < p->nodes[i].n_choices; k++)
            cost[k] -= least;
        l->constant += l->n_alive[i] > 0 ? least : 0;
    }
}

/* Is the node a question at all? */
static bool open_node(const struct lp *l, int32_t i)
{
    return l->n_alive[i] > (l->reduced ? 1 : 0);
}

/* ---- columns of a value ------------------------------------------------------------------- */

/* Does anything flow in columns f: several forms may be made? Else the consumers' choices say it all. */
static bool has_flow(const struct view *w)
{
    return w->made_only < 0 && w->n_open > 0;
}

/* A copy that several consumers may share has a column of its own. */
static bool shared(const struct lp *l, const struct view *w, int32_t from, int32_t to)
{
    return w->n_open > 1 && w->made[from] && w->users[from * w->v->n_forms + to] > 1 && paid(l, w, from, to);
}

/* Terms of the paid copies: their costs, or BYTES / UNIT. */
static void copy_terms(struct lp *l, const struct view *w, bool bytes, int64_t unit)
{
    int32_t nf = w->v->n_forms;
    for (int32_t from = 0; w->n_open > 0 && from < nf; from++)
        for (int32_t to = 0; w->made[from] && to < nf; to++) {
            int64_t at = (int64_t)from * nf + to, x = 0;
            if (w->users[at] > 0 && paid(l, w, from, to))
                x = bytes ? w->v->copy_bytes[to] / unit : w->v->convert[at];
            if (x == 0)
                continue;
            if (shared(l, w, from, to))
                term(l, x, "y", w->value, from, to, -1);
            for (int32_t c = 0; has_flow(w) && w->users[at] == 1 && c < w->v->n_consumers; c++)
                if (w->wanted[c] && w->wanted[c][to] && allowed(l->s, w->value, c, from, to))
                    term(l, x, "f", w->value, c, from, to);
        }
}

/* COEF times every x of SLOT's node whose form is F. */
static void x_terms(struct lp *l, const struct view *w, int32_t slot, int32_t f, int64_t coef)
{
    int32_t node = node_of(w->v, slot);
    for (int32_t k = 0; k < l->s->p->nodes[node].n_choices; k++)
        if (alive(l, node, k) && mpp_solver_form(l->s, w->value, slot, k) == f)
            term(l, coef, "x", node, k, -1, -1);
}

/* What consumer C wants comes from what is made. */
static void flow_rows(struct lp *l, const struct view *w, int32_t c)
{
    int32_t nf = w->v->n_forms;
    for (int32_t from = 0; from < nf; from++)
        if (w->made[from]) {
            begin_row(l);
            for (int32_t to = 0; to < nf; to++)
                if (w->wanted[c][to] && allowed(l->s, w->value, c, from, to))
                    term(l, 1, "f", w->value, c, from, to);
            x_terms(l, w, -1, from, -1);
            end_row(l, " = ", 0);
        }
    for (int32_t to = 0; to < nf; to++)
        if (w->wanted[c][to]) {
            begin_row(l);
            for (int32_t from = 0; from < nf; from++)
                if (w->made[from] && allowed(l->s, w->value, c, from, to))
                    term(l, 1, "f", w->value, c, from, to);
            x_terms(l, w, c, to, -1);
            end_row(l, " = ", 0);
        }
}

static void value_rows(struct lp *l, const struct view *w)
{
    int32_t nf = w->v->n_forms;
    for (int32_t c = 0; c < w->v->n_consumers; c++) {
        if (!w->wanted[c])
            continue;
        if (has_flow(w))
            flow_rows(l, w, c);
        for (int32_t from = 0; from < nf; from++)
            for (int32_t to = 0; w->made[from] && to < nf; to++) {
                if (!w->wanted[c][to] || !allowed(l->s, w->value, c, from, to) || !shared(l, w, from, to))
                    continue;
                begin_row(l);
                term(l, 1, "y", w->value, from, to, -1);
                if (has_flow(w))
                    term(l, -1, "f", w->value, c, from, to);
                else
                    x_terms(l, w, c, to, -1);
                end_row(l, " >= ", 0);
            }
    }
}

/* ---- memory ------------------------------------------------------------------------------- */

static bool covers(struct mpp_solver_span sp, int32_t row)
{
    return sp.lo <= row && row < sp.hi;
}

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* What divides all bytes. */
static int64_t find_unit(const struct mpp_solver_problem *p)
{
    int64_t unit = 0;
    for (int32_t i = 0; i < p->n_nodes; i++)
        for (int32_t u = 0; u < p->nodes[i].n_usages; u++)
            for (int32_t k = 0; k < p->nodes[i].n_choices; k++)
                unit = gcd(unit, p->nodes[i].usages[u].bytes[k]);
    for (int32_t v = 0; v < p->n_values; v++)
        for (int32_t t = 0; p->values[v].copy_bytes && t < p->values[v].n_forms; t++)
            unit = gcd(unit, p->values[v].copy_bytes[t]);
    return unit > 0 ? unit : 1;
}

/* The bytes of each choice at ROW, into l->acc. Returns the room: capacity without each node's least, which is taken
 * out of its choices. */
static int64_t gather(struct lp *l, int32_t row)
{
    const struct mpp_solver *s = l->s;
    int64_t room = s->p->capacity_bytes;
    memset(l->acc, 0, sizeof *l->acc * (size_t)s->choice_first[s->p->n_nodes]);
    for (int32_t v = 0; l->reduced && v < s->p->n_values; v++)
        if (covers(s->copy_span[v], row)) {
            struct view w = view_new(l, v);
            settle(l, &w, true, l->acc);
            mpp_arena_free(w.arena);
        }
    for (int32_t i = 0; i < s->p->n_nodes; i++) {
        const struct mpp_solver_node *n = &s->p->nodes[i];
        int64_t least = INT64_MAX, *acc = l->acc + s->choice_first[i];
        for (int32_t u = 0; u < n->n_usages; u++)
            for (int32_t k = 0; covers(s->usage_span[s->usage_first[i] + u], row) && k < n->n_choices; k++)
                acc[k] += n->usages[u].bytes[k];
        for (int32_t k = 0; k < n->n_choices; k++)
            if (alive(l, i, k) && acc[k] < least)
                least = acc[k];
        least = l->reduced && l->n_alive[i] > 0 ? least : 0;
        room -= least;
        for (int32_t k = 0; k < n->n_choices; k++)
            acc[k] = alive(l, i, k) ? acc[k] - least : 0;
    }
    return room;
}

/* COEF times the live bytes at TIME. */
static void live_term(struct lp *l, int64_t coef, int32_t time)
{
    term(l, coef, time < 0 ? "live_tm" : "live_t", -1, -1, -1, -1);
    put_int(l, time < 0 ? -(int64_t)time : time);
}

/* live(row) = live(row before) + what differs; live(row) <= room. */
static void memory_row(struct lp *l, int32_t row)
{
    const struct mpp_solver *s = l->s;
    int64_t *before = l->acc, room, unit = l->unit;
    l->acc = l->acc_before;
    l->acc_before = before;
    room = gather(l, row);
    begin_row(l);
    live_term(l, 1, s->row_time[row]);
    if (row > 0)
        live_term(l, -1, s->row_time[row - 1]);
    for (int32_t i = 0; i < s->p->n_nodes; i++)
        for (int32_t k = s->choice_first[i]; open_node(l, i) && k < s->choice_first[i + 1]; k++)
            if (l->acc[k] != before[k])
                term(l, (before[k] - l->acc[k]) / unit, "x", i, k - s->choice_first[i], -1, -1);
    for (int32_t v = 0; v < s->p->n_values; v++) {
        bool now = covers(s->copy_span[v], row), then = row > 0 && covers(s->copy_span[v], row - 1);
        if (now == then)
            continue;
        struct view w = view_new(l, v);
        copy_terms(l, &w, true, now ? -unit : unit);
        mpp_arena_free(w.arena);
    }
    end_row(l, " = ", 0);
    put(l, s->row_time[row] < 0 ? " mem_tm" : " mem_t");
    put_int(l, s->row_time[row] < 0 ? -(int64_t)s->row_time[row] : s->row_time[row]);
    put(l, ":");
    l->n_terms = 0;
    live_term(l, 1, s->row_time[row]);
    end_row(l, " <= ", room >= 0 ? room / unit : -((-room + unit - 1) / unit));
}

/* ---- the file ----------------------------------------------------------------------------- */

static void write_legend(struct lp *l, const char *title)
{
    const struct mpp_solver_problem *p = l->s->p;
    put(l, title);
    put(l, "\\ x_node_choice; y_value_from_to: a copy that consumers may share; f_value_consumer_from_to: who reads what;\n"
           "\\ live_tTIME: memory in units of ");
    put_int(l, l->unit);
    put(l, " bytes, as much as before and what differs. Costs are picoseconds; each node's least\n"
           "\\ cost is in the constant (the column one, fixed at 1), so that the rest stays well within a solver's tolerance.\n");
    for (int32_t i = 0; i < p->n_nodes; i++)
        if (open_node(l, i))
            comment(l, "\\ node ", i, p->nodes[i].name);
    for (int32_t v = 0; v < p->n_values; v++) {
        struct view w = view_new(l, v);
        if (w.n_open > 0)
            comment(l, "\\ value ", v, p->values[v].name);
        mpp_arena_free(w.arena);
    }
}

static void write_objective(struct lp *l)
{
    const struct mpp_solver_problem *p = l->s->p;
    put(l, "Minimize\n cost:");
    l->n_terms = 0;
    term(l, l->constant, "one", -1, -1, -1, -1);
    for (int32_t i = 0; i < p->n_nodes; i++)
        for (int32_t k = 0; open_node(l, i) && k < p->nodes[i].n_choices; k++)
            if (alive(l, i, k) && l->cost[l->s->choice_first[i] + k] > 0)
                term(l, l->cost[l->s->choice_first[i] + k], "x", i, k, -1, -1);
    for (int32_t v = 0; v < p->n_values; v++) {
        struct view w = view_new(l, v);
        copy_terms(l, &w, false, 1);
        mpp_arena_free(w.arena);
    }
}

static void write_rows(struct lp *l)
{
    const struct mpp_solver_problem *p = l->s->p;
    put(l, "\nSubject To\n");
    put(l, l->impossible ? " impossible: one = 0\n" : " fixed: one = 1\n");
    for (int32_t i = 0; i < p->n_nodes; i++) {
        if (!open_node(l, i))
            continue;
        put(l, " one_");
        put_int(l, i);
        put(l, ":");
        l->n_terms = 0;
        for (int32_t k = 0; k < p->nodes[i].n_choices; k++)
            if (alive(l, i, k))
                term(l, 1, "x", i, k, -1, -1);
        end_row(l, " = ", 1);
    }
    for (int32_t v = 0; v < p->n_values; v++) {
        struct view w = view_new(l, v);
        value_rows(l, &w);
        mpp_arena_free(w.arena);
    }
    for (int32_t r = 0; r < l->s->n_rows; r++)
        memory_row(l, r);
}

enum mpp_status mpp_solver_lp_write(const struct mpp_solver *s, bool reduced, const char *path, const char *title)
{
    struct mpp_arena *a = mpp_arena_scratch(s->arena);
    struct mpp_outfile *file = mpp_outfile_create(a, path);
    if (!file) {
        mpp_arena_free(a);
        return MPP_IO;
    }
    struct lp *l = mpp_arena_array(a, 1, struct lp);
    int32_t n = s->choice_first[s->p->n_nodes];
    l->s = s;
    l->f = mpp_outfile_stream(file);
    l->reduced = reduced;
    l->n_alive = mpp_arena_array(a, s->p->n_nodes, int32_t);
    l->cost = mpp_arena_array(a, n, int64_t);
    l->acc = mpp_arena_array(a, n, int64_t);
    l->acc_before = mpp_arena_array(a, n, int64_t);
    l->unit = find_unit(s->p);
    settle_costs(l);
    write_legend(l, title);
    write_objective(l);
    write_rows(l);
    put(l, "Bounds\n one = 1\n");
    bool any = false;
    for (int32_t i = 0; i < s->p->n_nodes; i++)
        for (int32_t k = 0; open_node(l, i) && k < s->p->nodes[i].n_choices; k++)
            if (alive(l, i, k)) {
                put(l, any ? " " : "Binary\n ");
                l->n_terms = 0;
                put(l, "x_");
                put_int(l, i);
                put(l, "_");
                put_int(l, k);
                put(l, "\n");
                any = true;
            }
    put(l, "End\n");
    flush(l);
    bool done = mpp_outfile_close(file);
    mpp_arena_free(a);
    return done ? MPP_OK : MPP_IO;
}

/* ---- what cannot be ----------------------------------------------------------------------- */

/* Marks the forms of SLOT that some form of the other slot goes with. */
static void partners(const struct mpp_solver *s, int32_t value, int32_t c, const uint8_t *made, const uint8_t *wanted,
                     uint8_t *out_made, uint8_t *out_wanted)
{
    int32_t nf = s->p->values[value].n_forms;
    memset(out_made, 0, (size_t)nf);
    memset(out_wanted, 0, (size_t)nf);
    for (int32_t from = 0; from < nf; from++)
        for (int32_t to = 0; made[from] && to < nf; to++)
            if (wanted[to] && allowed(s, value, c, from, to))
                out_made[from] = out_wanted[to] = 1;
}

/* The choices of SLOT's node in forms that are not marked go; returns how many. */
static int32_t drop_forms(struct mpp_solver *s, int32_t value, int32_t slot, const uint8_t *mark)
{
    int32_t node = node_of(&s->p->values[value], slot), gone = 0;
    for (int32_t k = 0; k < s->p->nodes[node].n_choices; k++) {
        uint8_t *a = &s->alive[s->choice_first[node] + k];
        if (*a && !mark[mpp_solver_form(s, value, slot, k)]) {
            *a = 0;
            gone++;
        }
    }
    return gone;
}

int32_t mpp_solver_drop_lonely(struct mpp_solver *s)
{
    int32_t all = 0, gone = 1;
    while (gone > 0) {
        gone = 0;
        for (int32_t v = 0; v < s->p->n_values; v++) {
            struct mpp_arena *a = mpp_arena_scratch(s->arena);
            int32_t nf = s->p->values[v].n_forms, form;
            uint8_t *mark = mpp_arena_array(a, 4 * (int64_t)nf, uint8_t);
            for (int32_t c = 0; c < s->p->values[v].n_consumers; c++) {
                memset(mark, 0, 2 * (size_t)nf);
                forms_of(s, v, -1, mark, &form);
                forms_of(s, v, c, mark + nf, &form);
                partners(s, v, c, mark, mark + nf, mark + 2 * nf, mark + 3 * nf);
                gone += drop_forms(s, v, -1, mark + 2 * nf) + drop_forms(s, v, c, mark + 3 * nf);
            }
            mpp_arena_free(a);
        }
        all += gone;
    }
    return all;
}
