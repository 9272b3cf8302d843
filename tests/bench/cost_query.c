/* cost_query.c - the cost model's answers, one line of microseconds per line of question on standard input:
 *
 *     cluster NAME_OR_FILE DEVICES                  the cluster of the lines that follow
 *     all_reduce N STRIDE BYTES                     also all_gather, reduce_scatter, all_to_all: groups of N devices that
 *                                                   lie STRIDE apart, all groups that fit in N * STRIDE devices at once
 *     send FROM TO SHARERS BYTES
 *     gemm PRECISION BATCH M N K
 *     memory BYTES
 */
#include <stdio.h>
#include <string.h>

#include "costmodel/costmodel.h"

static const char *const collectives[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"};
static const char *const precisions[] = {"f64", "f32", "tf32", "f16", "bf16"};

static int find(const char *const *names, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

/* Seconds, or -1 for a line that is not understood. */
static double answer(const struct mpp_cluster *c, const char *line)
{
    char what[32], name[32];
    long long a[4];
    double bytes;
    struct mpp_groups groups;
    if (sscanf(line, "%31s", what) != 1)
        return -1;
    int collective = find(collectives, 4, what);
    if (collective >= 0 && sscanf(line, "%*s %lld %lld %lf", &a[0], &a[1], &bytes) == 3 && a[0] > 0 && a[1] > 0 &&
        a[0] * a[1] <= c->n_devices) {
        struct mpp_mesh mesh = {.n_axes = 2, .size = {(int)a[0], (int)a[1], 1}};
        mpp_groups_init(c, &mesh, 0, 1, &groups);
        return mpp_cost_collective_s(c, &groups, (enum mpp_collective)collective, bytes);
    }
    if (strcmp(what, "send") == 0 && sscanf(line, "%*s %lld %lld %lld %lf", &a[0], &a[1], &a[2], &bytes) == 4 &&
        a[0] >= 0 && a[1] >= 0 && a[0] < c->n_devices && a[1] < c->n_devices && a[2] > 0)
        return mpp_cost_send_s(c, (int)a[0], (int)a[1], (int)a[2], bytes);
    if (strcmp(what, "gemm") == 0 && sscanf(line, "%*s %31s %lld %lld %lld %lld", name, &a[0], &a[1], &a[2], &a[3]) == 5 &&
        find(precisions, 5, name) >= 0)
        return mpp_cost_product_s(&c->device, (enum mpp_precision)find(precisions, 5, name), a[0], a[1], a[2], a[3]);
    if (strcmp(what, "memory") == 0 && sscanf(line, "%*s %lf", &bytes) == 1)
        return mpp_cost_memory_s(&c->device, bytes);
    return -1;
}

int main(void)
{
    struct mpp_arena *arena = mpp_arena_new();
    struct mpp_diag *diag = mpp_diag_new(stderr);
    struct mpp_cluster *c = NULL;
    char line[512], name[400];
    long long n;
    int status = 0;
    while (status == 0 && fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "cluster %399s %lld", name, &n) == 2) {
            if (mpp_cluster_load(arena, diag, name, n, &c) != MPP_OK)
                status = 2;
            continue;
        }
        double s = c ? answer(c, line) : -1;
        if (s < 0) {
            fprintf(stderr, "error: not understood: %s", line);
            status = 2;
        } else {
            printf("%.6f\n", s * 1e6);
        }
    }
    mpp_diag_free(diag);
    mpp_arena_free(arena);
    return status;
}
