#include "planner/thin.h"

#include <string.h>

enum { RIVALS = 12, PASSES = 2 };  /* a choice is compared with so many of the cheapest of its node */

struct use {                      /* a value that a node makes (consumer -1) or reads */
    int32_t value, consumer;
};

struct thinning {
    struct mpp_arena *arena;
    const struct mpp_solver_problem *p;
    int32_t *n_left, **left;      /* [nodes] choices that are left */
    int32_t *first_use;           /* [nodes + 1] */
    struct use *use;
    int32_t *n_made, **made;      /* [values] forms that are still made */
    int32_t **n_wanted, ***wanted; /* [values][consumers] forms that are still wanted */
    uint8_t *seen;                /* [most forms] scratch */
};

static void note_uses(struct thinning *t)
{
    const struct mpp_solver_problem *p = t->p;
    int32_t n = 0;
    t->first_use = mpp_arena_array(t->arena, p->n_nodes + 1, int32_t);
    for (int32_t v = 0; v < p->n_values; v++) {
        t->first_use[p->values[v].producer + 1]++;
        for (int32_t c = 0; c < p->values[v].n_consumers; c++)
            t->first_use[p->values[v].consumers[c] + 1]++;
        n += 1 + p->values[v].n_consumers;
    }
    for (int32_t i = 0; i < p->n_nodes; i++)
        t->first_use[i + 1] += t->first_use[i];
    t->use = mpp_arena_array(t->arena, n, struct use);
    int32_t *fill = mpp_arena_memdup(t->arena, t->first_use, sizeof *fill * ((size_t)p->n_nodes + 1));
    for (int32_t v = 0; v < p->n_values; v++) {
        t->use[fill[p->values[v].producer]++] = (struct use){v, -1};
        for (int32_t c = 0; c < p->values[v].n_consumers; c++)
            t->use[fill[p->values[v].consumers[c]]++] = (struct use){v, c};
    }
}

/* The distinct forms of the choices of NODE that are left. */
static int32_t distinct(struct thinning *t, int32_t node, const int32_t *form, int32_t *out)
{
    int32_t n = 0;
    for (int32_t k = 0; k < t->n_left[node]; k++) {
        int32_t f = form[t->left[node][k]];
        if (!t->seen[f])
            out[n++] = f;
        t->seen[f] = 1;
    }
    for (int32_t k = 0; k < n; k++)
        t->seen[out[k]] = 0;
    return n;
}

static void note_forms(struct thinning *t)
{
    for (int32_t v = 0; v < t->p->n_values; v++) {
        const struct mpp_solver_value *x = &t->p->values[v];
        t->n_made[v] = distinct(t, x->producer, x->out, t->made[v]);
        for (int32_t c = 0; c < x->n_consumers; c++)
            t->n_wanted[v][c] = distinct(t, x->consumers[c], x->in[c], t->wanted[v][c]);
    }
}

static int64_t copy_cost(const struct mpp_solver_value *v, int32_t from, int32_t to)
{
    return from == to ? 0 : v->convert[from * v->n_forms + to];
}

/* How much dearer copies of value V can get when its maker takes form B for A; FORBIDDEN: without limit. */
static int64_t dearer_made(const struct thinning *t, int32_t v, int32_t a, int32_t b)
{
    const struct mpp_solver_value *x = &t->p->values[v];
    int64_t sum = 0;
    if (a == b)
        return 0;
    for (int32_t c = 0; c < x->n_consumers; c++) {
        int64_t worst = 0;
        for (int32_t k = 0; k < t->n_wanted[v][c]; k++) {
            int32_t form = t->wanted[v][c][k];
            int64_t was = copy_cost(x, a, form), now = copy_cost(x, b, form);
            if (was == MPP_SOLVER_FORBIDDEN)
                continue;
            if (now == MPP_SOLVER_FORBIDDEN)
                return MPP_SOLVER_FORBIDDEN;
            worst = now - was > worst ? now - was : worst;
        }
        sum += worst;
    }
    return sum;
}

/* The same when a reader wants B for A, which others may want too, so that A costs nothing. */
static int64_t dearer_wanted(const struct thinning *t, int32_t v, int32_t a, int32_t b)
{
    const struct mpp_solver_value *x = &t->p->values[v];
    int64_t worst = 0;
    if (a == b)
        return 0;
    for (int32_t k = 0; k < t->n_made[v]; k++) {
        int64_t was = copy_cost(x, t->made[v][k], a), now = copy_cost(x, t->made[v][k], b);
        if (was == MPP_SOLVER_FORBIDDEN)
            continue;
        if (now == MPP_SOLVER_FORBIDDEN)
            return MPP_SOLVER_FORBIDDEN;
        if (x->n_consumers > 1)
            was = 0;
        worst = now - was > worst ? now - was : worst;
    }
    return worst;
}

/* Can choice B of NODE stand for its choice A at no greater cost? */
static bool replaces(const struct thinning *t, int32_t node, int32_t a, int32_t b)
{
    const int64_t *cost = t->p->nodes[node].cost;
    int64_t slack = cost[a] - cost[b];
    for (int32_t u = t->first_use[node]; u < t->first_use[node + 1] && slack >= 0; u++) {
        int32_t v = t->use[u].value, c = t->use[u].consumer;
        const struct mpp_solver_value *x = &t->p->values[v];
        int64_t more = c < 0 ? dearer_made(t, v, x->out[a], x->out[b]) : dearer_wanted(t, v, x->in[c][a], x->in[c][b]);
        if (more > slack)
            return false;
        slack -= more;
    }
    return slack >= 0;
}

static bool thin_node(struct thinning *t, int32_t node)
{
    int32_t *left = t->left[node], n = t->n_left[node], m = 0;
    const int64_t *cost = t->p->nodes[node].cost;
    for (int32_t i = 1; i < n; i++)   /* ascending cost, stable */
        for (int32_t k = i; k > 0 && cost[left[k - 1]] > cost[left[k]]; k--) {
            int32_t x = left[k];
            left[k] = left[k - 1];
            left[k - 1] = x;
        }
    for (int32_t i = 0; i < n; i++) {
        bool replaced = false;
        for (int32_t k = 0; k < m && k < RIVALS && !replaced; k++)
            replaced = replaces(t, node, left[i], left[k]);
        if (!replaced)
            left[m++] = left[i];
    }
    t->n_left[node] = m;
    return m < n;
}

static void begin(struct thinning *t)
{
    const struct mpp_solver_problem *p = t->p;
    int32_t most = 1;
    t->n_left = mpp_arena_array(t->arena, p->n_nodes, int32_t);
    t->left = mpp_arena_array(t->arena, p->n_nodes, int32_t *);
    for (int32_t i = 0; i < p->n_nodes; i++) {
        t->n_left[i] = p->nodes[i].n_choices;
        t->left[i] = mpp_arena_array(t->arena, p->nodes[i].n_choices, int32_t);
        for (int32_t k = 0; k < t->n_left[i]; k++)
            t->left[i][k] = k;
    }
    t->n_made = mpp_arena_array(t->arena, p->n_values, int32_t);
    t->made = mpp_arena_array(t->arena, p->n_values, int32_t *);
    t->n_wanted = mpp_arena_array(t->arena, p->n_values, int32_t *);
    t->wanted = mpp_arena_array(t->arena, p->n_values, int32_t **);
    for (int32_t v = 0; v < p->n_values; v++) {
        const struct mpp_solver_value *x = &p->values[v];
        most = x->n_forms > most ? x->n_forms : most;
        t->made[v] = mpp_arena_array(t->arena, x->n_forms, int32_t);
        t->n_wanted[v] = mpp_arena_array(t->arena, x->n_consumers, int32_t);
        t->wanted[v] = mpp_arena_array(t->arena, x->n_consumers, int32_t *);
        for (int32_t c = 0; c < x->n_consumers; c++)
            t->wanted[v][c] = mpp_arena_array(t->arena, x->n_forms, int32_t);
    }
    t->seen = mpp_arena_array(t->arena, most, uint8_t);
    note_uses(t);
}

static int32_t *gather32(struct thinning *t, int32_t node, const int32_t *x)
{
    int32_t *y = mpp_arena_array(t->arena, t->n_left[node], int32_t);
    for (int32_t k = 0; k < t->n_left[node]; k++)
        y[k] = x[t->left[node][k]];
    return y;
}

static int64_t *gather64(struct thinning *t, int32_t node, const int64_t *x)
{
    int64_t *y = mpp_arena_array(t->arena, t->n_left[node], int64_t);
    for (int32_t k = 0; k < t->n_left[node]; k++)
        y[k] = x[t->left[node][k]];
    return y;
}

static void rebuild(struct thinning *t, struct mpp_thin *out)
{
    const struct mpp_solver_problem *p = t->p;
    struct mpp_solver_node *nodes = mpp_arena_memdup(t->arena, p->nodes, sizeof *nodes * (size_t)p->n_nodes);
    struct mpp_solver_value *values = mpp_arena_array(t->arena, p->n_values, struct mpp_solver_value);
    for (int32_t i = 0; i < p->n_nodes; i++) {
        struct mpp_solver_usage *usages = mpp_arena_array(t->arena, nodes[i].n_usages, struct mpp_solver_usage);
        for (int32_t u = 0; u < nodes[i].n_usages; u++) {
            usages[u] = nodes[i].usages[u];
            usages[u].bytes = gather64(t, i, usages[u].bytes);
        }
        nodes[i].usages = usages;
        nodes[i].cost = gather64(t, i, nodes[i].cost);
        nodes[i].n_choices = t->n_left[i];
        nodes[i].choice_names = NULL;
    }
    for (int32_t v = 0; v < p->n_values; v++) {
        values[v] = p->values[v];
        values[v].out = gather32(t, values[v].producer, values[v].out);
        const int32_t **in = mpp_arena_array(t->arena, values[v].n_consumers, const int32_t *);
        for (int32_t c = 0; c < values[v].n_consumers; c++)
            in[c] = gather32(t, values[v].consumers[c], values[v].in[c]);
        values[v].in = in;
    }
    out->solver = *p;
    out->solver.nodes = nodes;
    out->solver.values = values;
    out->kept = t->left;
}

void mpp_thin_make(struct mpp_arena *arena, const struct mpp_solver_problem *problem, struct mpp_thin *out)
{
    struct thinning t = {.arena = arena, .p = problem};
    begin(&t);
    for (int pass = 0; pass < PASSES; pass++) {
        bool changed = false;
        note_forms(&t);
        for (int32_t i = 0; i < problem->n_nodes; i++)
            changed = thin_node(&t, i) || changed;
        if (!changed)
            break;
    }
    rebuild(&t, out);
}

void mpp_thin_choice(const struct mpp_thin *t, const int32_t *choice, int32_t *out_choice)
{
    for (int32_t i = 0; i < t->solver.n_nodes; i++)
        out_choice[i] = t->kept[i][choice[i]];
}
