/* bench_solver.c - seconds for a synthetic transformer's training step (not a test).
 *
 *     bench_solver [layers [axes [capacity, GB; 0: none [gap]]]]
 *
 * Each node gives every mesh axis one of its factors, or none; forms, copies and bytes follow. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ir/arena.h"
#include "planner/solver.h"

enum { MAX_DIMS = 4, MAX_OPERANDS = 4 };

struct value {
    int n_dims, producer;
    int64_t elements;
    int n_readers, readers[16];
    const char *reader_dims[16], *made_dims;
};

struct bench {
    struct mpp_arena *a;
    struct mpp_solver_node *nodes;
    int32_t n_nodes, n_values, axes, axis_size;
    const char **node_factors;      /* letters that may be split */
    struct value *values;
};

static int form_of(const struct bench *b, const char *dims, const char *factors, int choice, bool out)
{
    int n = (int)strlen(dims), base = n + 2, form = 0, mul = 1, options = (int)strlen(factors) + 1;
    for (int x = 0; x < b->axes; x++, choice /= options, mul *= base) {
        int pick = choice % options, state = 0;
        if (pick) {
            const char *at = strchr(dims, factors[pick - 1]);
            state = at ? (int)(at - dims) + 1 : 0;
            /* lower case marks sums: an output without the factor is partial */
            if (!at && out && factors[pick - 1] >= 'a')
                state = n + 1;
        }
        form += state * mul;
    }
    return form;
}

static int power(int base, int n)
{
    int p = 1;
    while (n-- > 0)
        p *= base;
    return p;
}

/* A node with one result; returns the value. */
static int op(struct bench *b, const char *name, const char *factors, double flops, int n_in, const int *in,
              const char *const *in_dims, const char *out_dims, int64_t out_elements)
{
    int32_t i = b->n_nodes++, options = (int)strlen(factors) + 1, n = power(options, b->axes);
    struct mpp_solver_node *node = &b->nodes[i];
    int64_t *cost = mpp_arena_array(b->a, n, int64_t);
    for (int k = 0; k < n; k++) {
        double f = flops;
        for (int x = 0, c = k; x < b->axes; x++, c /= options)
            f /= c % options ? b->axis_size : 1;
        cost[k] = 2000000 + (int64_t)(f / 150.0);
    }
    *node = (struct mpp_solver_node){.name = name, .n_choices = n, .cost = cost};
    b->node_factors[i] = factors;
    for (int q = 0; q < n_in; q++) {
        struct value *v = &b->values[in[q]];
        v->reader_dims[v->n_readers] = in_dims[q];
        v->readers[v->n_readers++] = i;
    }
    b->values[b->n_values] = (struct value){(int)strlen(out_dims), i, out_elements, 0, {0}, {0}, out_dims};
    return b->n_values++;
}

static int64_t convert_cost(const struct bench *b, int n_dims, int64_t elements, int s, int t)
{
    int base = n_dims + 2;
    double bytes = 2.0 * (double)elements, ps = 0;
    for (int x = 0; x < b->axes; x++, s /= base, t /= base) {
        int from = s % base, to = t % base;
        if (from == to)
            continue;
        double link = x == 0 ? 4 : 20; /* ps per byte */
        if (to == n_dims + 1)
            return MPP_SOLVER_FORBIDDEN;
        if (from == 0)
            continue; /* a slice */
        double f = from == n_dims + 1 ? (to == 0 ? 2.0 : 1.0) : to == 0 ? 1.0 : 0.3;
        ps += 5e6 + f * bytes * link;
    }
    return (int64_t)ps;
}

static void finish(struct bench *b, struct mpp_solver_problem *p)
{
    struct mpp_solver_value *out = mpp_arena_array(b->a, b->n_values, struct mpp_solver_value);
    int32_t n = 0;
    for (int i = 0; i < b->n_values; i++) {
        struct value *v = &b->values[i];
        struct mpp_solver_node *prod = &b->nodes[v->producer];
        int32_t last = v->producer, first = v->producer, nf = power(v->n_dims + 2, b->axes);
        bool weight = strstr(prod->name, "weight") != NULL;
        for (int c = 0; c < v->n_readers; c++)
            last = v->readers[c] > last ? v->readers[c] : last;
        int64_t *bytes = mpp_arena_array(b->a, prod->n_choices, int64_t);
        int32_t *made = mpp_arena_array(b->a, prod->n_choices, int32_t);
        int64_t *form_bytes = mpp_arena_array(b->a, nf, int64_t);
        for (int f = 0; f < nf; f++) {
            form_bytes[f] = 2 * v->elements;
            for (int x = 0, g = f; x < b->axes; x++, g /= v->n_dims + 2)
                if (g % (v->n_dims + 2) && g % (v->n_dims + 2) <= v->n_dims)
                    form_bytes[f] /= b->axis_size;
        }
        for (int k = 0; k < prod->n_choices; k++) {
            made[k] = form_of(b, v->made_dims, b->node_factors[v->producer], k, true);
            bytes[k] = form_bytes[made[k]] * (weight ? 8 : 1);
        }
        struct mpp_solver_usage *u = mpp_arena_array(b->a, 1, struct mpp_solver_usage);
        u[0] = (struct mpp_solver_usage){weight ? 0 : first, weight ? b->n_nodes : last, bytes};
        prod->n_usages = 1;
        prod->usages = u;
        if (v->n_readers == 0)
            continue;
        int64_t *conv = mpp_arena_array(b->a, nf * nf, int64_t);
        for (int s = 0; s < nf; s++)
            for (int t = 0; t < nf; t++)
                conv[s * nf + t] = convert_cost(b, v->n_dims, v->elements, s, t);
        const int32_t **in = mpp_arena_array(b->a, v->n_readers, const int32_t *);
        int32_t *cons = mpp_arena_array(b->a, v->n_readers, int32_t);
        for (int c = 0; c < v->n_readers; c++) {
            int32_t node = cons[c] = v->readers[c], *f = mpp_arena_array(b->a, b->nodes[node].n_choices, int32_t);
            for (int k = 0; k < b->nodes[node].n_choices; k++)
                f[k] = form_of(b, v->reader_dims[c], b->node_factors[node], k, false);
            in[c] = f;
        }
        out[n++] = (struct mpp_solver_value){prod->name, nf, v->producer, made, v->n_readers, cons, in, conv,
                                             form_bytes, cons[0], cons[0]};
    }
    p->n_nodes = b->n_nodes;
    p->nodes = b->nodes;
    p->n_values = n;
    p->values = out;
}

static const double B = 16, S = 1024, H = 4096;

/* y = x w + bias; remembers what backward needs. */
struct linear {
    int x, w, bias;
    const char *k, *n;
    double kk, nn;
};

static const char *str(struct bench *b, const char *x, const char *y, const char *z)
{
    return mpp_arena_printf(b->a, "%s%s%s", x, y, z);
}

static int linear(struct bench *b, struct linear *l, int x, const char *k, const char *n, double kk, double nn)
{
    *l = (struct linear){x, 0, 0, k, n, kk, nn};
    l->w = op(b, "weight", str(b, k, n, ""), 0, 0, NULL, NULL, str(b, k, n, ""), (int64_t)(kk * nn));
    l->bias = op(b, "bias weight", n, 0, 0, NULL, NULL, n, (int64_t)nn);
    int y = op(b, "matmul", str(b, "BS", k, n), 2 * B * S * kk * nn, 2, (int[]){x, l->w},
               (const char *[]){str(b, "BS", k, ""), str(b, k, n, "")}, str(b, "BS", n, ""), (int64_t)(B * S * nn));
    return op(b, "bias", str(b, "BS", n, ""), B * S * nn * 50, 2, (int[]){y, l->bias},
              (const char *[]){str(b, "BS", n, ""), n}, str(b, "BS", n, ""), (int64_t)(B * S * nn));
}

static int linear_back(struct bench *b, const struct linear *l, int dy)
{
    const char *k = l->k, *n = l->n;
    int dw = op(b, "dW", str(b, "bs", k, n), 2 * B * S * l->kk * l->nn, 2, (int[]){l->x, dy},
                (const char *[]){str(b, "bs", k, ""), str(b, "bs", n, "")}, str(b, k, n, ""),
                (int64_t)(l->kk * l->nn));
    int db = op(b, "dbias", str(b, "bs", n, ""), B * S * l->nn * 50, 1, (int[]){dy},
                (const char *[]){str(b, "bs", n, "")}, n, (int64_t)l->nn);
    op(b, "update", str(b, k, n, ""), l->kk * l->nn * 500, 2, (int[]){dw, l->w},
       (const char *[]){str(b, k, n, ""), str(b, k, n, "")}, str(b, k, n, ""), 1);
    op(b, "update bias", n, l->nn * 500, 2, (int[]){db, l->bias}, (const char *[]){n, n}, n, 1);
    return op(b, "dX", str(b, "BS", k, n), 2 * B * S * l->kk * l->nn, 2, (int[]){dy, l->w},
              (const char *[]){str(b, "BS", n, ""), str(b, k, n, "")}, str(b, "BS", k, ""), (int64_t)(B * S * l->kk));
}

static int unary(struct bench *b, const char *name, const char *factors, const char *dims, double width, int n,
                 const int *in)
{
    const char *d[MAX_OPERANDS] = {dims, dims, dims, dims};
    return op(b, name, factors, B * S * width * 100, n, in, d, dims, (int64_t)(B * S * width));
}

struct layer {
    struct linear qkv, proj, fc1, fc2;
    int x, q, attn, mid, act, pre, ln1, ln2;
};

static int forward(struct bench *b, struct layer *l, int x)
{
    l->x = x;
    l->ln1 = unary(b, "ln", "BS", "BSh", H, 1, &x);
    l->q = linear(b, &l->qkv, l->ln1, "h", "n", H, 3 * H);
    l->attn = op(b, "attention", "Bn", 4 * B * S * S * H, 1, &l->q, (const char *[]){"BSn"}, "BSn",
                 (int64_t)(B * S * H));
    int p = linear(b, &l->proj, l->attn, "n", "h", H, H);
    l->mid = unary(b, "add", "BSh", "BSh", H, 2, (int[]){x, p});
    l->ln2 = unary(b, "ln", "BS", "BSh", H, 1, &l->mid);
    l->pre = linear(b, &l->fc1, l->ln2, "h", "f", H, 4 * H);
    l->act = unary(b, "gelu", "BSf", "BSf", 4 * H, 1, &l->pre);
    int y = linear(b, &l->fc2, l->act, "f", "h", 4 * H, H);
    return unary(b, "add", "BSh", "BSh", H, 2, (int[]){l->mid, y});
}

static int backward(struct bench *b, const struct layer *l, int dy)
{
    int da = linear_back(b, &l->fc2, dy);
    int dp = unary(b, "dgelu", "BSf", "BSf", 4 * H, 2, (int[]){da, l->pre});
    int dl = linear_back(b, &l->fc1, dp);
    int dm = unary(b, "dln", "BS", "BSh", H, 2, (int[]){dl, l->mid});
    int dmid = unary(b, "add", "BSh", "BSh", H, 2, (int[]){dm, dy});
    int dat = linear_back(b, &l->proj, dmid);
    int dq = op(b, "dattention", "Bn", 8 * B * S * S * H, 2, (int[]){dat, l->q}, (const char *[]){"BSn", "BSn"}, "BSn",
                (int64_t)(B * S * 3 * H));
    int d1 = linear_back(b, &l->qkv, dq);
    int dx = unary(b, "dln", "BS", "BSh", H, 2, (int[]){d1, l->x});
    return unary(b, "add", "BSh", "BSh", H, 2, (int[]){dx, dmid});
}

int main(int argc, char **argv)
{
    int layers = argc > 1 ? atoi(argv[1]) : 12, axes = argc > 2 ? atoi(argv[2]) : 2;
    double gb = argc > 3 ? atof(argv[3]) : 0, gap = argc > 4 ? atof(argv[4]) : 0;
    struct mpp_arena *a = mpp_arena_new();
    struct bench b = {.a = a, .axes = axes, .axis_size = 4};
    b.nodes = mpp_arena_array(a, 100 * layers + 10, struct mpp_solver_node);
    b.values = mpp_arena_array(a, 100 * layers + 10, struct value);
    b.node_factors = mpp_arena_array(a, 100 * layers + 10, const char *);
    struct layer *l = mpp_arena_array(a, layers, struct layer);
    int x = op(&b, "input", "BSh", 0, 0, NULL, NULL, "BSh", (int64_t)(B * S * H));
    for (int i = 0; i < layers; i++)
        x = forward(&b, &l[i], x);
    for (int i = layers - 1; i >= 0; i--)
        x = backward(&b, &l[i], x);
    struct mpp_solver_problem p = {0};
    finish(&b, &p);
    p.capacity_bytes = gb > 0 ? (int64_t)(gb * 1e9) : INT64_MAX;
    struct mpp_solver_settings set = mpp_solver_defaults();
    struct mpp_solver_info info;
    struct mpp_solver *s;
    set.log = stderr;
    set.gap = gap;
    int32_t *choice = mpp_arena_array(a, p.n_nodes, int32_t);
    struct timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    if (mpp_solver_setup(&p, &set, &s) != MPP_OK)
        return 1;
    enum mpp_status st = mpp_solver_solve(s, choice, &info);
    mpp_solver_free(s);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    printf("%d layers, %d axes: %d nodes, %d values, %d choices: status %d/%d, objective %" PRId64 ", bound %" PRId64
           ", gap %.4f%%, peak %.3f GB, glpk %s, %.3f s\n",
           layers, axes, p.n_nodes, p.n_values, info.choices_full, (int)st, (int)info.status, info.objective,
           info.bound, 100 * info.gap, (double)info.peak_bytes / 1e9, info.glpk_status,
           (double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec));
    mpp_arena_free(a);
    return 0;
}
