/* The pass "fuse": maximal groups of elementwise, layout and reduction ops that walk one iteration space.
 *
 * Ops join in execution order: each tries to merge with the groups that make its inputs. Groups stay within one
 * layer and phase, and merging never makes a cycle among groups. At the end ops are rearranged so that each
 * group's are contiguous, in an order that keeps layers and phases contiguous too. */
#include "ir/fuse.h"

#include <assert.h>
#include <string.h>

#include "ir/graph_edit.h"
#include "ir/pass.h"

struct cluster {
    int n;                        /* 0: merged away */
    mpp_id *ops;                  /* ascending */
};

struct fuse {
    struct mpp_graph *g;
    struct mpp_arena *arena;      /* scratch */
    int *uses;                    /* [tensor] operands that read it */
    int *run;                     /* [op] number of its run of ops of one layer and phase */
    int *cluster_of;              /* [op] */
    struct cluster *clusters;     /* [op] */
    int *mark, stamp;             /* [op] clusters visited by the cycle check */
    int *stack;
};

static void prepare(struct fuse *f)
{
    struct mpp_graph *g = f->g;
    f->uses = mpp_fuse_uses(g, f->arena);
    f->run = mpp_arena_array(f->arena, g->n_ops, int);
    f->cluster_of = mpp_arena_array(f->arena, g->n_ops, int);
    f->clusters = mpp_arena_array(f->arena, g->n_ops, struct cluster);
    f->mark = mpp_arena_array(f->arena, g->n_ops, int);
    f->stack = mpp_arena_array(f->arena, g->n_ops, int);
    for (mpp_id i = 0; i < g->n_ops; i++) {
        const struct mpp_gop *op = &g->ops[i], *before = i ? op - 1 : op;
        bool same = op->phase == before->phase && op->repeat == before->repeat && op->index == before->index
                    && op->chunk == before->chunk;
        f->run[i] = i ? f->run[i - 1] + !same : 0;
        f->cluster_of[i] = i;
        f->clusters[i] = (struct cluster){1, mpp_arena_memdup(f->arena, &i, sizeof i)};
    }
}

/* ---- cycles ---- */

static void push_makers(struct fuse *f, int cluster, int *top)
{
    for (int m = 0; m < f->clusters[cluster].n; m++) {
        const struct mpp_gop *op = &f->g->ops[f->clusters[cluster].ops[m]];
        for (int k = 0; k < op->n_in; k++) {
            mpp_id maker = op->in[k] < 0 ? -1 : f->g->tensors[op->in[k]].op;
            int c = maker < 0 ? -1 : f->cluster_of[maker];
            if (c >= 0 && f->mark[c] != f->stamp) {
                f->mark[c] = f->stamp;
                f->stack[(*top)++] = c;
            }
        }
    }
}

static int first_of(const struct fuse *f, int c)
{
    return f->clusters[c].ops[0];
}

/* Would merging A and B put another cluster both after and before them? */
static bool makes_cycle(struct fuse *f, int a, int b)
{
    int run = f->run[first_of(f, a)], top = 0;
    f->stamp++;
    f->mark[a] = f->mark[b] = f->stamp;
    push_makers(f, a, &top);
    push_makers(f, b, &top);
    while (top > 0) {
        int c = f->stack[--top];
        const struct cluster *cluster = &f->clusters[c];
        if (f->run[cluster->ops[0]] < run)
            continue; /* clusters stay within a run, so nothing there comes after A or B */
        for (int m = 0; m < cluster->n; m++) {
            const struct mpp_gop *op = &f->g->ops[cluster->ops[m]];
            for (int k = 0; k < op->n_in; k++) {
                mpp_id maker = op->in[k] < 0 ? -1 : f->g->tensors[op->in[k]].op;
                if (maker >= 0 && (f->cluster_of[maker] == a || f->cluster_of[maker] == b))
                    return true;
            }
        }
        push_makers(f, c, &top);
    }
    return false;
}

/* ---- merging ---- */

static mpp_id *merged_ops(struct fuse *f, int a, int b)
{
    const struct cluster *x = &f->clusters[a], *y = &f->clusters[b];
    mpp_id *ops = mpp_arena_array(f->arena, x->n + y->n, mpp_id);
    int i = 0, j = 0, n = 0;
    while (i < x->n || j < y->n)
        ops[n++] = j == y->n || (i < x->n && x->ops[i] < y->ops[j]) ? x->ops[i++] : y->ops[j++];
    return ops;
}

/* Merge cluster B into A if they fit. */
static bool merge(struct fuse *f, int a, int b)
{
    int n = f->clusters[a].n + f->clusters[b].n;
    if (n > MPP_FUSE_MAX_OPS)
        return false;
    struct mpp_group trial = {.n_ops = n, .ops = merged_ops(f, a, b)};
    if (!mpp_fuse_group(f->g, f->arena, f->uses, &trial) || makes_cycle(f, a, b))
        return false;
    f->clusters[a] = (struct cluster){n, trial.ops};
    for (int m = 0; m < f->clusters[b].n; m++)
        f->cluster_of[f->clusters[b].ops[m]] = a;
    f->clusters[b].n = 0;
    return true;
}

/* The latest makers first: they are the likeliest to be of the same space. */
static void join(struct fuse *f, mpp_id o)
{
    const struct mpp_gop *op = &f->g->ops[o];
    bool tried[MPP_FUSE_MAX_IN] = {false};
    int n = op->n_in < MPP_FUSE_MAX_IN ? op->n_in : MPP_FUSE_MAX_IN;
    for (int round = 0; round < n; round++) {
        int best = -1;
        mpp_id best_maker = -1;
        for (int k = 0; k < n; k++) {
            mpp_id maker = f->g->tensors[op->in[k]].op;
            if (!tried[k] && maker > best_maker) {
                best = k;
                best_maker = maker;
            }
        }
        if (best < 0)
            return;
        tried[best] = true;
        if (f->run[best_maker] == f->run[o] && mpp_fuse_can(&f->g->ops[best_maker]) &&
            f->cluster_of[best_maker] != f->cluster_of[o])
            merge(f, f->cluster_of[best_maker], f->cluster_of[o]);
    }
}

/* ---- order ---- */

struct order {
    int n_waiting;                /* makers not placed yet */
    int n_next;
    size_t cap_next;
    int *next;                    /* clusters that read from this one */
};

static void heap_push(int *heap, int *n, int value)
{
    int i = (*n)++;
    for (; i > 0 && heap[(i - 1) / 2] > value; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = value;
}

static int heap_pop(int *heap, int *n)
{
    int top = heap[0], value = heap[--*n], i = 0;
    for (;;) {
        int child = 2 * i + 1;
        if (child + 1 < *n && heap[child + 1] < heap[child])
            child++;
        if (child >= *n || heap[child] >= value)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = value;
    return top;
}

/* Clusters in topological order, by their first op's place where there is a choice. A run's first ops come
 * before the next run's, so runs stay contiguous. Returns how many there are. */
static int order_clusters(struct fuse *f, int *out)
{
    const struct mpp_graph *g = f->g;
    struct order *nodes = mpp_arena_array(f->arena, g->n_ops, struct order);
    int *at_first = mpp_arena_array(f->arena, g->n_ops, int); /* first op -> cluster */
    int *heap = mpp_arena_array(f->arena, g->n_ops, int), n_heap = 0, n = 0;
    for (mpp_id i = 0; i < g->n_ops; i++) {
        int to = f->cluster_of[i];
        for (int k = 0; k < g->ops[i].n_in; k++) {
            mpp_id maker = g->ops[i].in[k] < 0 ? -1 : g->tensors[g->ops[i].in[k]].op;
            if (maker < 0 || f->cluster_of[maker] == to)
                continue;
            struct order *from = &nodes[f->cluster_of[maker]];
            from->next = mpp_arena_grow(f->arena, from->next, &from->cap_next, (size_t)from->n_next + 1, sizeof(int));
            from->next[from->n_next++] = to;
            nodes[to].n_waiting++;
        }
    }
    for (mpp_id c = 0; c < g->n_ops; c++) {
        if (f->clusters[c].n == 0)
            continue;
        at_first[first_of(f, c)] = c;
        if (nodes[c].n_waiting == 0)
            heap_push(heap, &n_heap, first_of(f, c));
    }
    while (n_heap > 0) {
        int c = at_first[heap_pop(heap, &n_heap)];
        out[n++] = c;
        for (int k = 0; k < nodes[c].n_next; k++) {
            if (--nodes[nodes[c].next[k]].n_waiting == 0)
                heap_push(heap, &n_heap, first_of(f, nodes[c].next[k]));
        }
    }
    return n;
}

static void make_groups(struct fuse *f, const int *order, int n)
{
    struct mpp_graph *g = f->g;
    mpp_id *op_order = mpp_arena_array(g->arena, g->n_ops, mpp_id), placed = 0;
    g->groups = mpp_arena_array(g->arena, n, struct mpp_group);
    for (int i = 0; i < n; i++) {
        const struct cluster *c = &f->clusters[order[i]];
        struct mpp_group *group = &g->groups[i];
        group->n_ops = c->n;
        group->ops = mpp_arena_memdup(g->arena, c->ops, (size_t)c->n * sizeof c->ops[0]);
        mpp_fuse_fill(g, g->arena, f->uses, group);
        memcpy(op_order + placed, c->ops, (size_t)c->n * sizeof c->ops[0]);
        placed += c->n;
    }
    g->n_groups = n;
    assert(placed == g->n_ops);
    mpp_graph_order(g, op_order);
}

enum mpp_status mpp_pass_fuse(struct mpp_pass_ctx *ctx, struct mpp_graph *g)
{
    (void)ctx;
    struct mpp_arena *scratch = mpp_arena_scratch(ctx->arena);
    struct fuse f = {.g = g, .arena = scratch};
    prepare(&f);
    for (mpp_id o = 0; o < g->n_ops && !g->unfused; o++) {
        if (g->ops[o].phase != MPP_PHASE_UPDATE && mpp_fuse_can(&g->ops[o]))
            join(&f, o);
    }
    int *order = mpp_arena_array(scratch, g->n_ops, int);
    int n = order_clusters(&f, order);
    make_groups(&f, order, n);
    mpp_arena_free(scratch);
    return MPP_OK;
}
