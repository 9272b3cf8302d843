/* export.c - a stage's integer program as a file of the intra-operator parallelism contest, and what its nodes stand for. */
#include <string.h>

#include "ir/outfile.h"
#include "planner/pairwise_form.h"
#include "planner/stage.h"
#include "solver/iopddl.h"

/* A node of the file that holds another usage of OF, and takes the same choice. */
struct twin {
    int32_t of, usage;
};

/* The contest's nodes have one usage each: a second one gets a node of its own. */
static struct mpp_pairwise_problem one_usage_each(const struct mpp_pairwise_problem *p, struct mpp_arena *arena,
                                                  struct twin **out_twins)
{
    struct mpp_pairwise_problem q = *p;
    struct twin *twin = NULL;
    size_t cap = 0, node_cap = 0, edge_cap = 0;
    struct mpp_pairwise_node *nodes = mpp_arena_grow(arena, NULL, &node_cap, (size_t)p->n_nodes + 1, sizeof *nodes);
    struct mpp_pairwise_edge *edges = mpp_arena_grow(arena, NULL, &edge_cap, (size_t)p->n_edges + 1, sizeof *edges);
    memcpy(nodes, p->nodes, (size_t)p->n_nodes * sizeof *nodes);
    memcpy(edges, p->edges, (size_t)p->n_edges * sizeof *edges);
    for (int32_t i = 0; i < p->n_nodes; i++)
        for (int32_t u = 1; u < p->nodes[i].n_usages; u++) {
            int32_t n = p->nodes[i].n_choices;
            int64_t *same = mpp_arena_array(arena, (int64_t)n * n, int64_t);
            for (int32_t k = 0; k < n * n; k++)
                same[k] = k % (n + 1) == 0 ? 0 : MPP_PAIRWISE_FORBIDDEN;
            nodes = mpp_arena_grow(arena, nodes, &node_cap, (size_t)q.n_nodes + 1, sizeof *nodes);
            edges = mpp_arena_grow(arena, edges, &edge_cap, (size_t)q.n_edges + 1, sizeof *edges);
            twin = mpp_arena_grow(arena, twin, &cap, (size_t)(q.n_nodes - p->n_nodes) + 1, sizeof *twin);
            twin[q.n_nodes - p->n_nodes] = (struct twin){i, u};
            nodes[i].n_usages = 1;
            edges[q.n_edges++] = (struct mpp_pairwise_edge){i, q.n_nodes, same};
            nodes[q.n_nodes++] = (struct mpp_pairwise_node){n, mpp_arena_array(arena, n, int64_t), 1, &p->nodes[i].usages[u]};
        }
    q.nodes = nodes;
    q.edges = edges;
    *out_twins = twin;
    return q;
}

/* One line per node of the file: its number, what it is, and its choices. */
static void write_names(FILE *f, const struct mpp_pairwise_form *form, const struct twin *twin, int32_t n_nodes)
{
    const struct mpp_solver_problem *p = form->s->p;
    fputs("# node  kind  what: its choices, counted from 0. A row is a time of the step at which memory may bind.\n", f);
    for (int32_t i = 0; i < p->n_nodes; i++) {
        fprintf(f, "%d  node  %s:", i, p->nodes[i].name);
        for (int32_t k = 0; k < p->nodes[i].n_choices; k++)
            fprintf(f, "%s %s", k > 0 ? "," : "", p->nodes[i].choice_names[form->alive[i][k]]);
        fputc('\n', f);
    }
    for (int32_t i = p->n_nodes; i < form->problem.n_nodes; i++) {
        int32_t n = i - p->n_nodes;
        fprintf(f, "%d  copy  of %s for %s: how it is read\n", i, p->values[form->value[n]].name,
                p->nodes[p->values[form->value[n]].consumers[form->consumer[n]]].name);
    }
    for (int32_t i = form->problem.n_nodes; i < n_nodes; i++)
        fprintf(f, "%d  memory  of node %d, its choice: bytes at other times\n", i, twin[i - form->problem.n_nodes].of);
    for (int32_t r = 0; r < form->s->n_rows; r++)
        fprintf(f, "# row %d is time %d\n", r, form->s->row_time[r]);
}

enum mpp_status mpp_stage_export(const struct mpp_stage_problem *p, int64_t capacity_bytes, const char *dir, const char *name)
{
    struct mpp_arena *a = mpp_arena_scratch(p->solver.arena);
    struct mpp_stage_problem named = *p; /* its nodes with names live in A */
    struct mpp_solver *s;
    struct twin *twin;
    enum mpp_status st = MPP_OK;
    mpp_stage_name_choices(a, &named);
    named.solver.capacity_bytes = capacity_bytes;
    MPP_TRY_GOTO(st, done, mpp_solver_setup(&named.solver, NULL, &s));
    mpp_solver_prepare(s);
    struct mpp_pairwise_form *form = mpp_pairwise_form_new(s, a);
    struct mpp_pairwise_problem q = one_usage_each(&form->problem, a, &twin);
    struct mpp_outfile *f = mpp_outfile_create(a, mpp_arena_printf(a, "%s/%s.json", dir, name));
    if (f) {
        mpp_iopddl_write(mpp_outfile_stream(f), name, &q);
        f = mpp_outfile_close(f) ? mpp_outfile_create(a, mpp_arena_printf(a, "%s/%s.txt", dir, name)) : NULL;
    }
    if (f) {
        write_names(mpp_outfile_stream(f), form, twin, q.n_nodes);
        f = mpp_outfile_close(f) ? f : NULL;
    }
    st = f ? MPP_OK : MPP_IO;
    mpp_solver_free(s);
done:
    mpp_arena_free(a);
    return st;
}
