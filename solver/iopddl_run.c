/* iopddl_run.c - solve a contest problem from a file, telling how it goes. */
#include <stdlib.h>

#include "solver/iopddl.h"

enum { NODES_NAMED = 5, TEXT = 48 };

/* A 128-bit number in decimal, into TEXT. */
static const char *decimal(mpp_i128 x, char text[TEXT])
{
    char *at = text + TEXT - 1;
    bool negative = x < 0;
    *at = '\0';
    do {
        int digit = (int)(x % 10);
        *--at = (char)('0' + (digit < 0 ? -digit : digit));
        x /= 10;
    } while (x != 0);
    if (negative)
        *--at = '-';
    return at;
}

static void print_progress(void *context, const struct mpp_pairwise_info *info)
{
    char best[TEXT], bound[TEXT];
    if (info->status == MPP_PAIRWISE_NO_ANSWER)
        fprintf(context, "%8.2f s  bound %s\n", info->seconds, decimal(info->bound, bound));
    else
        fprintf(context, "%8.2f s  bound %s  best %s  gap %.4f %%\n", info->seconds, decimal(info->bound, bound),
                decimal(info->objective, best), 100 * info->gap);
}

static void print_size(FILE *to, const char *what, const struct mpp_pairwise_size *z)
{
    fprintf(to, "%-10s %d nodes, %d edges, %lld strategies, %lld pairs, %d times\n", what, z->nodes, z->edges,
            (long long)z->choices, (long long)z->pairs, z->times);
}

static void print_result(FILE *to, const struct mpp_pairwise_info *info)
{
    char best[TEXT], bound[TEXT];
    print_size(to, "problem", &info->full);
    print_size(to, "presolved", &info->presolved);
    if (info->glpk_cols > 0)
        fprintf(to, "%-10s %d rows, %d columns\n", "GLPK", info->glpk_rows, info->glpk_cols);
    fprintf(to, "%s: cost %s, bound %s, gap %.6f %%, peak %lld bytes, %.2f s\n",
            info->status == MPP_PAIRWISE_OPTIMAL ? (info->by_glpk ? "optimal within GLPK's tolerance" : "optimal") : info->interrupted ? "interrupted" : "feasible",
            decimal(info->objective, best), decimal(info->bound, bound), 100 * info->gap, (long long)info->peak_bytes,
            info->seconds);
}

/* ---- what stands in the way ---------------------------------------------------------------------------------- */

static int64_t least_bytes(const struct mpp_pairwise_node *node, int32_t time)
{
    int64_t sum = 0;
    for (int32_t u = 0; u < node->n_usages; u++) {
        const struct mpp_pairwise_usage *x = &node->usages[u];
        int64_t least = INT64_MAX;
        for (int32_t k = 0; k < node->n_choices; k++)
            least = x->bytes[k] < least ? x->bytes[k] : least;
        sum += x->begin <= time && time < x->end ? least : 0;
    }
    return sum;
}

struct taker {
    int64_t bytes;
    int32_t node;
};

static int most_first(const void *a, const void *b)
{
    const struct taker *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return (x->node > y->node) - (x->node < y->node);
}

static void explain_time(const char *path, const struct mpp_pairwise_problem *p, int32_t time, struct mpp_arena *arena,
                         struct mpp_diag *diag)
{
    struct taker *taker = mpp_arena_array(arena, p->n_nodes, struct taker);
    int64_t sum = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        int64_t bytes = least_bytes(&p->nodes[i], time);
        sum += bytes;
        if (bytes > 0)
            taker[n++] = (struct taker){bytes, i};
    }
    qsort(taker, (size_t)n, sizeof *taker, most_first);
    if (sum > p->capacity)
        mpp_diag_error(diag, (struct mpp_loc){path, 0}, "infeasible: at time %d the %d live nodes take at least %lld bytes, %lld "
                       "over the limit of %lld", time, n, (long long)sum, (long long)(sum - p->capacity), (long long)p->capacity);
    else
        mpp_diag_error(diag, (struct mpp_loc){path, 0}, "infeasible: at time %d, what forbidden pairs leave takes more than the "
                       "limit of %lld bytes", time, (long long)p->capacity);
    for (int32_t i = 0; i < n && i < NODES_NAMED; i++)
        mpp_diag_note(diag, "node %d: at least %lld bytes", taker[i].node, (long long)taker[i].bytes);
}

static void explain(const char *path, const struct mpp_pairwise_problem *p, const struct mpp_pairwise_info *info,
                    struct mpp_arena *arena, struct mpp_diag *diag)
{
    struct mpp_loc loc = {path, 0};
    if (info->status == MPP_PAIRWISE_NO_ANSWER)
        mpp_diag_error(diag, loc, "no choice within the limit was found in %.1f s; a longer --time-limit may help", info->seconds);
    else if (info->conflict_time >= 0)
        explain_time(path, p, info->conflict_time, arena, diag);
    else if (info->conflict_node >= 0)
        mpp_diag_error(diag, loc, "infeasible: no strategy of node %d goes with its neighbours and the limit", info->conflict_node);
    else
        mpp_diag_error(diag, loc, "infeasible: no choice stays within the limit of %lld bytes at all times", (long long)p->capacity);
}

enum mpp_status mpp_iopddl_solve(const char *path, const struct mpp_pairwise_settings *settings, struct mpp_arena *arena,
                                 struct mpp_diag *diag, FILE *out, FILE *progress)
{
    struct mpp_pairwise_problem *p;
    struct mpp_pairwise_settings set = *settings;
    struct mpp_pairwise_info info;
    struct mpp_pairwise *solver;
    set.progress = progress != NULL ? print_progress : NULL;
    set.context = progress;
    MPP_TRY(mpp_iopddl_read(path, arena, diag, &p));
    int32_t *choice = mpp_arena_array(arena, p->n_nodes, int32_t);
    if (mpp_pairwise_setup(p, &set, arena, &solver) != MPP_OK) {
        mpp_diag_error(diag, (struct mpp_loc){path, 0}, "its largest usages add up to more than 2^62 bytes");
        return MPP_INVALID;
    }
    enum mpp_status st = mpp_pairwise_solve(solver, choice, &info);
    mpp_pairwise_free(solver);
    if (st != MPP_OK) {
        explain(path, p, &info, arena, diag);
        return MPP_INFEASIBLE;
    }
    mpp_iopddl_write_choice(out, choice, p->n_nodes);
    if (progress != NULL)
        print_result(progress, &info);
    return MPP_OK;
}
