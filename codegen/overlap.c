/* Collectives are priced one after the other with kernels, and so are objective and bound. The program begins sums of gradients in
 * the backward pass of the last micro-batch, and gathers of weights before they are needed. Here its passes run in two
 * lanes: kernels, and collectives, which wait for what they read and for each other; kernels wait for collectives that they
 * need. What a lane's kernels wait is exposed, the rest of what was begun is hidden: the same prices, another order. Each
 * micro-batch runs by itself: what the stages of a pipeline wait for each other could hide more. What comes from another
 * stage takes no time here, so that nothing counts as hidden behind it. */
#include "codegen/overlap.h"

enum { SUM, GATHER, N_KINDS };

struct lanes {
    struct mpp_arena *arena;      /* scratch */
    const struct mpp_cluster *cluster;
    const struct mpp_stage *stage;
    const struct mpp_lprog *prog;
    struct mpp_reshard_env env;
    int64_t *group_ps;            /* [n_groups] of kernels, and of collectives inside: -1 not asked yet */
    int64_t *inside_ps;
    int64_t kernels, messages;    /* when each lane is free, ps */
    bool first, last;             /* micro-batch */
    int newest;                   /* what the last begun is */
    int64_t begun[N_KINDS], exposed[N_KINDS]; /* ps */
    size_t cap;
    int n;
    int64_t *end;                 /* [n] of the gathers that were begun */
};

static void wait_until(struct lanes *l, int64_t when, int kind)
{
    if (when <= l->kernels)
        return;
    l->exposed[kind] += when - l->kernels;
    l->kernels = when;
}

/* A collective that nothing goes on beside; those that were begun come first. */
static void run_collective(struct lanes *l, int64_t ps)
{
    if (ps <= 0)
        return;
    wait_until(l, l->messages, l->newest);
    l->kernels += ps;
    l->messages = l->kernels;
}

/* Hosts begin what MPI does in one call: a sum of any size, blocks of others that are not too large; gathers of parts that are equal
 * and lie side by side (runtime/core/transport_mpi.c). */
static bool begins_early(const struct lanes *l, const struct mpp_instr *in)
{
    const int64_t call_elements = (int64_t)1 << 28;
    const struct mpp_reshard_step *s = in->step;
    int64_t outer = 1, inner = 1, parts = 1;
    if (!mpp_cost_goes_beside(l->cluster, l->env.groups[s->mask].nodes))
        return false;
    bool gathers = s->kind == MPP_STEP_ALL_GATHER;
    if (l->cluster->kind != MPP_LINK_SHARED || (!gathers && s->kind != MPP_STEP_REDUCE_SCATTER))
        return true;
    const struct mpp_buffer *whole = &l->prog->buffers[gathers ? in->out[0].buffer : in->in[0].buffer];
    int64_t extent = whole->padded[s->dim], block = extent;
    for (int d = 0; d < whole->n_dims; d++) {
        outer *= d < s->dim ? whole->padded[d] : 1;
        inner *= d > s->dim ? whole->padded[d] : 1;
    }
    for (int a = 0; a < l->stage->mesh.n_axes; a++)
        if (s->mask >> a & 1) {
            parts *= l->stage->mesh.size[a];
            block = (block + l->stage->mesh.size[a] - 1) / l->stage->mesh.size[a];
        }
    return gathers ? outer == 1 && block * parts == extent && extent * inner <= call_elements : block * inner <= call_elements;
}

static void begin(struct lanes *l, const struct mpp_instr *in)
{
    int kind = in->prefetch ? GATHER : SUM;
    int64_t ps = in->step->cost_ps;
    if (begins_early(l, in)) {
        l->messages = (l->kernels > l->messages ? l->kernels : l->messages) + ps;
        l->begun[kind] += ps;
        l->newest = kind;
    } else {
        run_collective(l, ps);
    }
    if (!in->prefetch)
        return;
    l->end = mpp_arena_grow(l->arena, l->end, &l->cap, (size_t)l->n + 1, sizeof *l->end);
    l->end[l->n++] = l->messages;
}

static void compute_group(struct lanes *l, mpp_id g, struct mpp_split split)
{
    if (l->group_ps[g] < 0)
        l->group_ps[g] = mpp_price_group(l->stage->graph, l->cluster, &l->stage->mesh, &l->stage->graph->groups[g], split,
                                         &l->inside_ps[g]);
    l->kernels += l->group_ps[g];
    run_collective(l, l->inside_ps[g]);
}

/* An epilogue costs what its group does alone, as the planner counts. */
static void compute(struct lanes *l, const struct mpp_instr *in)
{
    compute_group(l, in->group, in->split);
    if (in->epilogue >= 0)
        compute_group(l, in->epilogue, l->stage->split[in->epilogue]);
}

static void run_instr(struct lanes *l, const struct mpp_instr *in, bool next, bool last_layer)
{
    if ((in->once && !l->first) || (in->begins && !l->last) || (in->ahead && !next))
        return;
    int under_way = last_layer ? in->under_way_last : in->under_way;
    if (in->kind == MPP_INSTR_COMPUTE)
        compute(l, in);
    else if (in->kind == MPP_INSTR_AWAIT && l->n > under_way)
        wait_until(l, l->end[l->n - 1 - under_way], GATHER);
    else if (in->kind == MPP_INSTR_STEP && (in->begins || in->prefetch))
        begin(l, in);
    else if (in->kind == MPP_INSTR_STEP)
        run_collective(l, in->step->cost_ps);
}

static void run_section(struct lanes *l, enum mpp_phase phase)
{
    const struct mpp_section *s = &l->prog->section[phase];
    for (int i = 0; i < s->n_items; i++) {
        if (!s->items[i].loop) {
            run_instr(l, &s->items[i].instr, false, false);
            continue;
        }
        const struct mpp_body *b = &l->prog->bodies[s->items[i].body];
        int count = l->prog->classes[s->items[i].cls].count;
        for (int k = 0; k < count; k++)
            for (int j = 0; j < b->n_instrs; j++)
                run_instr(l, &b->instrs[j], k < count - 1, k == count - 1);
    }
}

/* TIMES micro-batches, each alone. */
static void run_passes(struct lanes *l, bool first, bool last, int64_t times, double *begun_s, double *exposed_s)
{
    l->first = first;
    l->last = last;
    l->kernels = l->messages = 0;
    l->n = 0;
    for (int k = 0; k < N_KINDS; k++)
        l->begun[k] = l->exposed[k] = 0;
    run_section(l, MPP_PHASE_FORWARD);
    run_section(l, MPP_PHASE_BACKWARD);
    wait_until(l, l->messages, SUM);
    for (int k = 0; k < N_KINDS; k++) {
        begun_s[k] += (double)times * 1e-12 * (double)l->begun[k];
        exposed_s[k] += (double)times * 1e-12 * (double)l->exposed[k];
    }
}

static double hidden(double begun_s, double exposed_s)
{
    return begun_s > exposed_s ? begun_s - exposed_s : 0;
}

void mpp_overlap_measure(struct mpp_arena *arena, const struct mpp_cluster *cluster, const struct mpp_plan *plan, int stage,
                         const struct mpp_lprog *prog, struct mpp_overlap *out)
{
    const struct mpp_stage *s = &plan->stages[stage];
    double begun_s[N_KINDS] = {0}, exposed_s[N_KINDS] = {0};
    int64_t n = plan->micro_batches;
    *out = (struct mpp_overlap){0};
    if (s->graph->unfused)
        return;
    struct mpp_arena *scratch = mpp_arena_scratch(arena);
    struct lanes l = {.arena = scratch, .cluster = cluster, .stage = s, .prog = prog,
                      .group_ps = mpp_arena_array(scratch, s->graph->n_groups, int64_t),
                      .inside_ps = mpp_arena_array(scratch, s->graph->n_groups, int64_t)};
    mpp_reshard_env_init(cluster, &s->mesh, s->first_device, &l.env);
    for (int i = 0; i < s->graph->n_groups; i++)
        l.group_ps[i] = -1;
    run_passes(&l, true, n == 1, 1, begun_s, exposed_s);
    if (n > 2)
        run_passes(&l, false, false, n - 2, begun_s, exposed_s);
    if (n > 1)
        run_passes(&l, false, true, 1, begun_s, exposed_s);
    mpp_arena_free(scratch);
    *out = (struct mpp_overlap){begun_s[SUM], hidden(begun_s[SUM], exposed_s[SUM]), begun_s[GATHER], hidden(begun_s[GATHER], exposed_s[GATHER])};
}

/* T less what is hidden of it, of which kernels pay a part. */
static int64_t less(int64_t ps, double hidden_s)
{
    int64_t saved = mpp_cost_ps((1 - MPP_COST_BESIDE) * hidden_s);
    return ps > saved ? ps - saved : 0;
}

void mpp_overlap_time(struct mpp_arena *arena, struct mpp_plan *plan)
{
    struct mpp_arena *scratch = mpp_arena_scratch(arena);
    struct mpp_stage_time *time = mpp_arena_array(scratch, plan->n_stages, struct mpp_stage_time);
    for (int i = 0; i < plan->n_stages; i++) {
        const struct mpp_stage *s = &plan->stages[i];
        double gathers_s = s->overlap.hidden_gathers_s / (double)plan->micro_batches, both = (double)(s->time.forward_ps + s->time.backward_ps);
        double forward = both > 0 ? (double)s->time.forward_ps / both : 0;
        time[i] = s->time;
        time[i].forward_ps = less(s->time.forward_ps, gathers_s * forward);
        time[i].backward_ps = less(s->time.backward_ps, gathers_s * (1 - forward));
        time[i].once_ps = less(s->time.once_ps, s->overlap.hidden_sums_s);
    }
    plan->overlapped_ps = mpp_schedule_time(&plan->pipeline, time);
    mpp_arena_free(scratch);
}
