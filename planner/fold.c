#include "planner/fold.h"

#include <assert.h>
#include <string.h>

enum { EARLY = 1, LATE = 2 };     /* the two interior layers that are there */

/* A choice that cannot be: more than any step takes, yet sums of it do not overflow. */
static const int64_t IMPOSSIBLE_PS = INT64_C(1) << 54;

struct folding {
    struct mpp_arena *arena;
    const struct mpp_stage_problem *p;
    const struct mpp_fold_run *run;
    int64_t in_flight;
    int *tag;                     /* [nodes] EARLY, LATE; 0: of no interior layer */
    int *place;                   /* [nodes] its number within that layer */
    int32_t *twin;                /* [by place] nodes of the early layer */
    int32_t *to;                  /* [nodes] folded node */
    int first_backward, last_forward, last_time;
    struct mpp_fold *out;
};

/* ---- which node belongs to which layer ---- */

static bool same_bytes(const void *a, const void *b, size_t size)
{
    return a == b || memcmp(a, b, size) == 0;
}

/* Same choices, costs and bytes: mostly built from one class. */
static bool alike(const struct mpp_stage_problem *p, int a, int b)
{
    const struct mpp_solver_node *x = &p->solver.nodes[a], *y = &p->solver.nodes[b];
    const struct mpp_stage_node *v = &p->node[a], *w = &p->node[b];
    size_t n = (size_t)x->n_choices;
    bool same = x->n_choices == y->n_choices && x->n_usages == y->n_usages && v->kind == w->kind && v->n_groups == w->n_groups
                && same_bytes(x->cost, y->cost, n * sizeof *x->cost);
    for (int u = 0; same && u < x->n_usages; u++)
        same = same_bytes(x->usages[u].bytes, y->usages[u].bytes, n * sizeof *x->cost);
    for (int g = 0; same && g < v->n_groups; g++)
        same = same_bytes(v->split[g], w->split[g], n * sizeof *v->split[g]);
    if (same && v->kind != MPP_NODE_GROUPS)
        same = same_bytes(v->rest, w->rest, n * sizeof *v->rest) && same_bytes(v->gather, w->gather, n * sizeof *v->gather);
    return same;
}

static bool tag_nodes(struct folding *f)
{
    const struct mpp_solver_problem *s = &f->p->solver;
    int count[3] = {0};
    int32_t *node[3] = {NULL, mpp_arena_array(f->arena, s->n_nodes, int32_t), mpp_arena_array(f->arena, s->n_nodes, int32_t)};
    for (int i = 0; i < s->n_nodes && f->run->layers > 0; i++) {
        int repeat, index;
        mpp_stage_layer_of(f->p, i, &repeat, &index);
        int l = repeat != f->run->repeat ? 0 : index == f->run->last ? LATE : index == f->run->first ? EARLY : 0;
        if (l == 0)
            continue;
        f->tag[i] = l;
        f->place[i] = count[l];
        node[l][count[l]++] = i;
    }
    if (count[EARLY] != count[LATE])
        return false;
    for (int k = 0; k < count[LATE]; k++)
        if (!alike(f->p, node[EARLY][k], node[LATE][k]))
            return false;
    f->twin = node[EARLY];
    return true;
}

static void number_nodes(struct folding *f)
{
    int n = f->p->solver.n_nodes, m = 0;
    int32_t *by_place = mpp_arena_array(f->arena, n, int32_t);
    f->to = mpp_arena_array(f->arena, n, int32_t);
    f->out->from = mpp_arena_array(f->arena, n, int32_t);
    for (int i = 0; i < n; i++)
        if (f->tag[i] != EARLY) {
            f->out->from[m] = i;
            f->to[i] = m;
            if (f->tag[i])
                by_place[f->place[i]] = m;
            m++;
        }
    for (int i = 0; i < n; i++)
        if (f->tag[i] == EARLY)
            f->to[i] = by_place[f->place[i]];
    f->out->solver.n_nodes = m;
}

/* ---- nodes ---- */

static const int64_t *times(struct folding *f, const int64_t *x, int n, int64_t factor)
{
    if (factor == 1)
        return x;
    int64_t *y = mpp_arena_array(f->arena, n, int64_t);
    for (int k = 0; k < n; k++)
        y[k] = x[k] > IMPOSSIBLE_PS / factor ? IMPOSSIBLE_PS : x[k] * factor;
    return y;
}

static bool is_once(const struct mpp_stage_problem *p, int node)
{
    const struct mpp_stage_node *x = &p->node[node];
    return x->kind != MPP_NODE_GROUPS || p->graph->groups[x->groups[0]].phase == MPP_PHASE_UPDATE;
}

/* The bytes of node I of the problem: what lives all the step counts for every layer, what waits for backward for every
 * layer and every micro-batch in flight; what comes and goes, once per layer that is there. */
static struct mpp_solver_usage *usages_of(struct folding *f, int i, int *out_n)
{
    const struct mpp_solver_node *x = &f->p->solver.nodes[i];
    bool interior = f->tag[i] > 0;
    const struct mpp_solver_node *twin = interior ? &f->p->solver.nodes[f->twin[f->place[i]]] : NULL;
    int64_t layers = interior ? f->run->layers : 1, k = f->in_flight;
    struct mpp_solver_usage *out = mpp_arena_array(f->arena, 3 * x->n_usages, struct mpp_solver_usage);
    int n = 0;
    for (int u = 0; u < x->n_usages; u++) {
        const struct mpp_solver_usage *use = &x->usages[u];
        bool always = use->first == 0 && use->last == f->last_time;
        bool saved = !always && use->first <= f->last_forward && use->last >= f->first_backward;
        if (always) {
            int64_t factor = f->p->node[i].kind == MPP_NODE_INPUT ? layers * k : layers;
            out[n++] = (struct mpp_solver_usage){0, f->last_time, times(f, use->bytes, x->n_choices, factor), use->tag};
            continue;
        }
        out[n++] = *use;
        if (interior)
            out[n++] = (struct mpp_solver_usage){
                twin->usages[u].first, twin->usages[u].last,
                times(f, use->bytes, x->n_choices, saved ? layers - 1 : 1), use->tag};
        if (saved && k > 1)
            out[n++] = (struct mpp_solver_usage){0, f->last_time, times(f, use->bytes, x->n_choices, (k - 1) * layers), use->tag};
    }
    *out_n = n;
    return out;
}

static void make_nodes(struct folding *f)
{
    struct mpp_fold *out = f->out;
    int m = out->solver.n_nodes;
    struct mpp_solver_node *nodes = mpp_arena_array(f->arena, m, struct mpp_solver_node);
    out->node_once = mpp_arena_array(f->arena, m, bool);
    out->layers = mpp_arena_array(f->arena, m, int64_t);
    for (int j = 0; j < m; j++) {
        int i = out->from[j];
        nodes[j] = f->p->solver.nodes[i];
        nodes[j].cost = times(f, nodes[j].cost, nodes[j].n_choices, f->tag[i] ? f->run->layers : 1);
        nodes[j].usages = usages_of(f, i, &nodes[j].n_usages);
        out->node_once[j] = is_once(f->p, i);
        out->layers[j] = f->tag[i] ? f->run->layers : 1;
    }
    out->solver.nodes = nodes;
}

/* ---- values ---- */

/* How many of the stage's values V stands for; 0: another one stands for it. */
static int64_t weight_of(const struct folding *f, const struct mpp_solver_value *v, bool scalar)
{
    int p = f->tag[v->producer];
    bool inside = true, across = false;
    if (p == 0)
        return 1;
    for (int c = 0; c < v->n_consumers; c++) {
        int q = f->tag[v->consumers[c]];
        inside = inside && q == p;
        across = across || (q > 0 && q != p);
    }
    if (inside || scalar)
        return p == LATE ? f->run->layers : 0;
    return across ? f->run->layers - 1 : 1;
}

/* A node that hands a value on to the same node of the next layer: the copy is a cost of its choices. */
static void fold_into_node(struct folding *f, const struct mpp_solver_value *v, mpp_id tensor, int c, int64_t weight)
{
    struct mpp_solver_node *nodes = (struct mpp_solver_node *)f->out->solver.nodes;
    struct mpp_solver_node *x = &nodes[f->to[v->producer]];
    int64_t *cost = mpp_arena_memdup(f->arena, x->cost, sizeof *cost * (size_t)x->n_choices);
    int64_t *bytes = mpp_arena_array(f->arena, x->n_choices, int64_t);
    for (int k = 0; k < x->n_choices; k++) {
        int from = v->out[k], to = v->in[c][k];
        int64_t once = from == to ? 0 : v->convert[from * v->n_forms + to];
        cost[k] = once > IMPOSSIBLE_PS / weight ? IMPOSSIBLE_PS : cost[k] + once * weight;
        bytes[k] = from == to || !v->copy_bytes ? 0 : v->copy_bytes[to];
    }
    struct mpp_solver_usage *usages = mpp_arena_array(f->arena, x->n_usages + 1, struct mpp_solver_usage);
    if (x->n_usages > 0)
        memcpy(usages, x->usages, sizeof *usages * (size_t)x->n_usages);
    usages[x->n_usages++] = (struct mpp_solver_usage){v->copy_first, v->copy_last, bytes, tensor + 1};
    x->usages = usages;
    x->cost = cost;
}

/* V between folded nodes; false where nothing is left of it. */
static bool map_value(struct folding *f, const struct mpp_solver_value *v, mpp_id tensor, int64_t weight, struct mpp_solver_value *out)
{
    int n = v->n_consumers, m = 0;
    int32_t *consumers = mpp_arena_array(f->arena, n, int32_t);
    const int32_t **in = mpp_arena_array(f->arena, n, const int32_t *);
    for (int c = 0; c < n; c++) {
        int32_t to = f->to[v->consumers[c]];
        bool known = false;
        for (int d = 0; d < m; d++)
            known = known || consumers[d] == to;
        if (to == f->to[v->producer])
            fold_into_node(f, v, tensor, c, weight);
        else if (!known) {
            consumers[m] = to;
            in[m++] = v->in[c];
        }
    }
    if (m == 0)
        return false;
    *out = *v;
    out->producer = f->to[v->producer];
    out->n_consumers = m;
    out->consumers = consumers;
    out->in = in;
    if (weight > 1) {
        size_t cells = (size_t)v->n_forms * (size_t)v->n_forms;
        int64_t *convert = mpp_arena_array(f->arena, cells, int64_t);
        for (size_t i = 0; i < cells; i++)
            convert[i] = v->convert[i] > INT64_MAX / 4 / weight ? MPP_SOLVER_FORBIDDEN : v->convert[i] * weight;
        out->convert = convert;
    }
    return true;
}

static void make_values(struct folding *f)
{
    const struct mpp_solver_problem *s = &f->p->solver;
    struct mpp_fold *out = f->out;
    struct mpp_solver_value *values = mpp_arena_array(f->arena, s->n_values, struct mpp_solver_value);
    out->value_once = mpp_arena_array(f->arena, s->n_values, bool);
    int n = 0;
    for (int i = 0; i < s->n_values; i++) {
        int64_t weight = weight_of(f, &s->values[i], f->p->graph->tensors[f->p->value_tensor[i]].n_dims == 0);
        if (weight > 0 && map_value(f, &s->values[i], f->p->value_tensor[i], weight, &values[n])) {
            out->value_once[n] = is_once(f->p, s->values[i].consumers[0]);
            n++;
        }
    }
    out->solver.n_values = n;
    out->solver.values = values;
}

/* ---- the whole ---- */

bool mpp_fold_make(struct mpp_arena *arena, const struct mpp_stage_problem *p, const struct mpp_fold_run *run,
                   int64_t in_flight, struct mpp_fold *out)
{
    const struct mpp_graph *g = p->graph;
    *out = (struct mpp_fold){.p = p};
    struct folding f = {.arena = arena, .p = p, .run = run, .in_flight = in_flight, .out = out,
                        .last_forward = -1, .first_backward = g->n_groups, .last_time = g->n_groups > 0 ? g->n_groups - 1 : 0};
    for (int i = 0; i < g->n_groups; i++) {
        if (g->groups[i].phase <= MPP_PHASE_FORWARD)
            f.last_forward = i;
        if (g->groups[i].phase == MPP_PHASE_BACKWARD && i < f.first_backward)
            f.first_backward = i;
    }
    f.tag = mpp_arena_array(arena, p->solver.n_nodes, int);
    f.place = mpp_arena_array(arena, p->solver.n_nodes, int);
    if (!tag_nodes(&f))
        return false;
    number_nodes(&f);
    make_nodes(&f);
    make_values(&f);
    out->solver.capacity_bytes = p->solver.capacity_bytes;
    out->solver.arena = arena;
    return true;
}

int64_t mpp_fold_copies(const struct mpp_fold *f, int value, const int32_t *choice)
{
    const struct mpp_solver_value *v = &f->solver.values[value];
    int from = v->out[choice[v->producer]];
    int64_t sum = 0;
    for (int c = 0; c < v->n_consumers; c++) {
        int to = v->in[c][choice[v->consumers[c]]];
        bool seen = to == from;
        for (int d = 0; d < c && !seen; d++)
            seen = v->in[d][choice[v->consumers[d]]] == to;
        sum += seen ? 0 : v->convert[from * v->n_forms + to];
    }
    return sum;
}

void mpp_fold_times(const struct mpp_fold *f, const int32_t *choice, int64_t micro_batches, int64_t *out_t_ps,
                    int64_t *out_once_ps)
{
    int64_t all = 0, once = 0;
    for (int i = 0; i < f->solver.n_nodes; i++) {
        int64_t c = f->solver.nodes[i].cost[choice[i]];
        all += c;
        once += f->node_once[i] ? c : 0;
    }
    for (int i = 0; i < f->solver.n_values; i++) {
        int64_t c = mpp_fold_copies(f, i, choice);
        all += c;
        once += f->value_once[i] ? c : 0;
    }
    *out_once_ps = once;
    *out_t_ps = (all - once + micro_batches - 1) / micro_batches;
}

static bool is_forward(const struct mpp_fold *f, int group)
{
    return f->p->graph->groups[group].phase <= MPP_PHASE_FORWARD;
}

/* What forward is of the COST of NODE under CHOICE; a node may hold forward groups and the backward ones that follow them. */
static int64_t forward_part(const struct mpp_fold *f, int node, int32_t choice, int64_t cost)
{
    const struct mpp_stage_problem *p = f->p;
    const struct mpp_stage_node *x = &p->node[f->from[node]];
    double forward = 0, all = 0;
    int n_forward = 0;
    for (int i = 0; i < x->n_groups; i++)
        n_forward += is_forward(f, x->groups[i]);
    if (n_forward == 0 || n_forward == x->n_groups || cost == 0)
        return n_forward ? cost : 0;
    for (int i = 0; i < x->n_groups; i++) {
        int64_t internal, ps = mpp_price_group_in(p->graph, &p->env, &p->graph->groups[x->groups[i]], x->split[i][choice], &internal);
        all += (double)(ps + internal);
        forward += is_forward(f, x->groups[i]) ? (double)(ps + internal) : 0;
    }
    return all > 0 ? (int64_t)((double)cost * (forward / all) + 0.5) : cost;
}

/* The optimiser's kernels, and what brings new values back to where parameters rest. */
static bool is_update(const struct mpp_fold *f, int node, bool copy)
{
    const struct mpp_stage_node *x = &f->p->node[f->from[node]];
    return copy ? x->kind == MPP_NODE_PARAM
                : x->kind == MPP_NODE_GROUPS && f->p->graph->groups[x->groups[0]].phase == MPP_PHASE_UPDATE;
}

struct mpp_stage_time mpp_fold_stage_time(const struct mpp_fold *f, const int32_t *choice, int64_t micro_batches)
{
    struct mpp_stage_time time = {0};
    int64_t t, forward = 0;
    mpp_fold_times(f, choice, micro_batches, &t, &time.once_ps);
    for (int i = 0; i < f->solver.n_nodes; i++) {
        int64_t c = f->solver.nodes[i].cost[choice[i]];
        forward += f->node_once[i] ? 0 : forward_part(f, i, choice[i], c);
        time.update_ps += is_update(f, i, false) ? c : 0;
    }
    for (int i = 0; i < f->solver.n_values; i++) {
        const struct mpp_solver_value *v = &f->solver.values[i];
        int64_t c = mpp_fold_copies(f, i, choice);
        forward += !f->value_once[i] && is_forward(f, v->copy_first) ? c : 0;
        time.update_ps += is_update(f, v->consumers[0], true) ? c : 0;
    }
    time.forward_ps = (forward + micro_batches / 2) / micro_batches;
    time.backward_ps = t - time.forward_ps;
    if (f->p->graph->grad_norm < 0)
        time.update_ps = 0;
    return time;
}

/* ---- back to all layers ---- */

/* The nodes of one layer (REPEAT, INDEX) of P in order; -1, -1: those of no repeat. */
static int list_layer(const struct mpp_stage_problem *p, int repeat, int index, int32_t *out)
{
    int n = 0;
    for (int i = 0; i < p->solver.n_nodes; i++) {
        int r, k;
        mpp_stage_layer_of(p, i, &r, &k);
        if (r == repeat && k == index)
            out[n++] = i;
    }
    return n;
}

struct span_of_repeat {
    int first, last;              /* iterations that P holds */
};

static struct span_of_repeat iterations(const struct mpp_stage_problem *p, int repeat)
{
    struct span_of_repeat s = {INT32_MAX, -1};
    for (int i = 0; i < p->solver.n_nodes; i++) {
        int r, k;
        mpp_stage_layer_of(p, i, &r, &k);
        if (r == repeat) {
            s.first = k < s.first ? k : s.first;
            s.last = k > s.last ? k : s.last;
        }
    }
    return s;
}

bool mpp_fold_expand(const struct mpp_fold *f, const struct mpp_fold_run *run, const int32_t *choice,
                     const struct mpp_stage_problem *real, int32_t *out_choice)
{
    const struct mpp_stage_problem *p = f->p;
    struct mpp_arena *scratch = mpp_arena_scratch(real->solver.arena);
    int32_t *chosen = mpp_arena_array(scratch, p->solver.n_nodes, int32_t); /* by P's nodes */
    int32_t *a = mpp_arena_array(scratch, p->solver.n_nodes, int32_t);
    int32_t *b = mpp_arena_array(scratch, real->solver.n_nodes, int32_t);
    bool *done = mpp_arena_array(scratch, real->solver.n_nodes, bool), ok = true;
    for (int j = 0; j < f->solver.n_nodes; j++)
        chosen[f->from[j]] = choice[j];
    for (int i = 0; i < real->solver.n_nodes && ok; i++) {
        int repeat, index, from;
        if (done[i])
            continue;
        mpp_stage_layer_of(real, i, &repeat, &index);
        from = index;
        if (repeat >= 0) {
            struct span_of_repeat have = iterations(p, repeat), want = iterations(real, repeat);
            from = have.first + (index - want.first);
            if (run->layers > 0 && repeat == run->repeat)
                from = index == want.first && have.first < run->first ? have.first
                       : index == want.last && have.last > run->last ? have.last : run->last;
        }
        int n = list_layer(p, repeat, from, a), m = list_layer(real, repeat, index, b);
        ok = n == m;
        for (int k = 0; k < n && ok; k++) {
            const struct mpp_stage_node *x = &p->node[a[k]], *y = &real->node[b[k]];
            /* a sum of the scalars of many layers has fewer choices than one of a few */
            bool only = y->n_choices == 1 && x->kind == y->kind && x->n_groups == y->n_groups;
            out_choice[b[k]] = only ? 0 : mpp_stage_same_choice(x, chosen[a[k]], y);
            done[b[k]] = true;
            ok = out_choice[b[k]] >= 0;
        }
    }
    mpp_arena_free(scratch);
    return ok;
}
