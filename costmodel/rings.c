/* rings.c - ring packing in a small multigraph, and pairwise exchange over it. */
#include "costmodel/rings.h"

#include <assert.h>
#include <string.h>

#define N_MAX MPP_CLUSTER_MESH_DEVICES
#define MAX_CYCLES 5040                /* (8 - 1)! */
#define WORK_LIMIT 100000              /* cycles tried per search */

struct search {
    int n;
    uint8_t cap[N_MAX][N_MAX];         /* links left, per direction */
    int n_cycles;
    uint8_t (*cycles)[N_MAX];
    int bound, best;
    int64_t work;
};

/* The links among the devices of MASK, renumbered 0 .. k-1. */
static int induced(const uint8_t links[][N_MAX], int n, unsigned mask, uint8_t out[N_MAX][N_MAX])
{
    int id[N_MAX], k = 0;
    for (int i = 0; i < n; i++)
        if (mask >> i & 1)
            id[k++] = i;
    memset(out, 0, N_MAX * N_MAX);
    for (int i = 0; i < k; i++)
        for (int j = 0; j < k; j++)
            if (i != j)
                out[i][j] = links[id[i]][id[j]];
    return k;
}

/* Every ring crosses every cut at least once each way: the smallest cut bounds their number. */
static int smallest_cut(const struct search *s)
{
    int least = INT32_MAX;
    for (unsigned side = 1; side < 1u << (s->n - 1); side++) {
        int cut = 0;
        for (int i = 0; i < s->n; i++)
            for (int j = 0; j < s->n; j++)
                if ((side >> i & 1) && !(side >> j & 1))
                    cut += s->cap[i][j];
        least = cut < least ? cut : least;
    }
    return least;
}

/* Append all Hamiltonian cycles that start with PATH[0 .. DEPTH-1]. */
static void list_cycles(struct search *s, uint8_t *path, int depth, unsigned seen)
{
    if (depth == s->n) {
        if (s->cap[path[depth - 1]][path[0]])
            memcpy(s->cycles[s->n_cycles++], path, N_MAX);
        return;
    }
    for (int v = 0; v < s->n; v++)
        if (!(seen >> v & 1) && s->cap[path[depth - 1]][v]) {
            path[depth] = (uint8_t)v;
            list_cycles(s, path, depth + 1, seen | 1u << v);
        }
}

/* Take one link along a cycle, and along its reverse if BOTH; give_back undoes it. Taking fails
 * without effect where no link is left. */
static int take(struct search *s, const uint8_t *cycle, int both)
{
    for (int i = 0; i < s->n; i++) {
        int a = cycle[i], b = cycle[(i + 1) % s->n];
        if (!s->cap[a][b] || (both && !s->cap[b][a]))
            return 0;
    }
    for (int i = 0; i < s->n; i++) {
        int a = cycle[i], b = cycle[(i + 1) % s->n];
        s->cap[a][b]--;
        if (both)
            s->cap[b][a]--;
    }
    return 1;
}

static void give_back(struct search *s, const uint8_t *cycle, int both)
{
    for (int i = 0; i < s->n; i++) {
        int a = cycle[i], b = cycle[(i + 1) % s->n];
        s->cap[a][b]++;
        if (both)
            s->cap[b][a]++;
    }
}

/* The fewest links that leave one device: no more rings than that can follow. */
static int degree_left(const struct search *s)
{
    int least = INT32_MAX;
    for (int i = 0; i < s->n; i++) {
        int out = 0, in = 0;
        for (int j = 0; j < s->n; j++) {
            out += s->cap[i][j];
            in += s->cap[j][i];
        }
        least = out < least ? out : least;
        least = in < least ? in : least;
    }
    return least;
}

/* Try cycles from index FROM on (a cycle may repeat), TAKEN rings so far. With BOTH each cycle is taken
 * together with its reverse, which halves the depth and on real machines finds the optimum at once. */
static void pack(struct search *s, int from, int taken, int both)
{
    if (taken > s->best)
        s->best = taken;
    if (s->best >= s->bound || taken + degree_left(s) <= s->best)
        return;
    for (int c = from; c < s->n_cycles; c++) {
        if (s->best >= s->bound || --s->work < 0)
            return;
        if (!take(s, s->cycles[c], both))
            continue;
        pack(s, c, taken + 1 + both, both);
        give_back(s, s->cycles[c], both);
    }
}

static int count_rings(const uint8_t links[][N_MAX], int n, unsigned mask, uint8_t (*cycles)[N_MAX])
{
    struct search s = {.cycles = cycles};
    uint8_t path[N_MAX] = {0};
    s.n = induced(links, n, mask, s.cap);
    if (s.n < 2)
        return 0;
    if (s.n == 2)
        return s.cap[0][1];
    s.bound = smallest_cut(&s);
    if (s.bound == 0)
        return 0;
    list_cycles(&s, path, 1, 1);
    for (int both = 1; both >= 0; both--) {
        s.work = WORK_LIMIT;
        pack(&s, 0, 0, both);
    }
    return s.best;
}

int mpp_rings_count(const uint8_t links[][N_MAX], int n, unsigned mask)
{
    static_assert(N_MAX <= 8, "MAX_CYCLES is (N_MAX - 1)!");
    uint8_t cycles[MAX_CYCLES][N_MAX];
    return count_rings(links, n, mask, cycles);
}

static int is_connected(const uint8_t links[][N_MAX], int n, unsigned mask)
{
    unsigned seen = mask & (~mask + 1);
    for (int round = 0; round < n; round++)
        for (int i = 0; i < n; i++)
            if (seen >> i & 1)
                for (int j = 0; j < n; j++)
                    if ((mask >> j & 1) && links[i][j])
                        seen |= 1u << j;
    return seen == mask;
}

/* Pairwise exchange: neighbours swap over their own links; a pair without one goes through the
 * neighbour of both that keeps the busiest link least busy, else over PCIe. Greedy, in order. */
static void price_exchange(const uint8_t links[][N_MAX], int n, unsigned mask, struct mpp_subset_links *out)
{
    double load[N_MAX][N_MAX] = {{0}}, host[N_MAX] = {0}, busiest = 0, host_busiest = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            if (i != j && (mask >> i & 1) && (mask >> j & 1) && links[i][j])
                load[i][j] += 1.0 / links[i][j];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            if (i == j || !(mask >> i & 1) || !(mask >> j & 1) || links[i][j])
                continue;
            int via = -1;
            double least = 0;
            for (int v = 0; v < n; v++) {
                if (!(mask >> v & 1) || !links[i][v] || !links[v][j])
                    continue;
                double a = load[i][v] + 1.0 / links[i][v], b = load[v][j] + 1.0 / links[v][j];
                double worst = a > b ? a : b;
                if (via < 0 || worst < least) {
                    via = v;
                    least = worst;
                }
            }
            if (via < 0) {
                host[i] += 1;
            } else {
                load[i][via] += 1.0 / links[i][via];
                load[via][j] += 1.0 / links[via][j];
            }
        }
    for (int i = 0; i < n; i++) {
        host_busiest = host[i] > host_busiest ? host[i] : host_busiest;
        for (int j = 0; j < n; j++)
            busiest = load[i][j] > busiest ? load[i][j] : busiest;
    }
    out->exchange_links = (float)busiest;
    out->exchange_host = (float)host_busiest;
}

const struct mpp_subset_links *mpp_rings_table(struct mpp_arena *arena, const uint8_t links[][N_MAX], int n)
{
    struct mpp_subset_links *table = mpp_arena_array(arena, 1u << n, struct mpp_subset_links);
    struct mpp_arena *scratch = mpp_arena_scratch(arena);
    uint8_t(*cycles)[N_MAX] = mpp_arena_calloc(scratch, MAX_CYCLES, N_MAX);
    for (unsigned mask = 1; mask < 1u << n; mask++) {
        int rings = count_rings(links, n, mask, cycles);
        table[mask].rings = (uint8_t)(rings > UINT8_MAX ? UINT8_MAX : rings);
        table[mask].connected = (uint8_t)is_connected(links, n, mask);
        price_exchange(links, n, mask, &table[mask]);
    }
    mpp_arena_free(scratch);
    return table;
}
