/* report_overlap.c - what of a stage's collectives goes on beside its kernels.
 *
 * Collectives are priced one after the other with kernels, and so are bounds and gaps. The program begins sums of gradients in
 * the backward pass of the last micro-batch, and gathers of weights before they are needed. Here its passes run in two
 * lanes: kernels, and collectives, which wait for what they read and for each other; kernels wait for collectives that they
 * need. What a lane's kernels wait is exposed, the rest of what was begun is hidden: the same prices, another order. Each
 * micro-batch runs by itself: what the stages of a pipeline wait for each other could hide more.
 *
 * Hosts move messages between machines only: within one, the cores that would are those that compute. */
#include <limits.h>

#include "codegen/report_internal.h"

enum { SUM, GATHER, N_KINDS };

struct lanes {
    const struct report *r;
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

static bool goes_beside(const struct lanes *l, unsigned mask)
{
    return l->r->cluster->kind != MPP_LINK_SHARED || l->env.groups[mask].nodes > 1;
}

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

static void begin(struct lanes *l, const struct mpp_instr *in)
{
    int kind = in->prefetch ? GATHER : SUM;
    int64_t ps = in->step->cost_ps;
    if (goes_beside(l, in->step->mask)) {
        l->messages = (l->kernels > l->messages ? l->kernels : l->messages) + ps;
        l->begun[kind] += ps;
        l->newest = kind;
    } else {
        run_collective(l, ps);
    }
    if (!in->prefetch)
        return;
    l->end = mpp_arena_grow(l->r->arena, l->end, &l->cap, (size_t)l->n + 1, sizeof *l->end);
    l->end[l->n++] = l->messages;
}

static void compute(struct lanes *l, const struct mpp_instr *in)
{
    mpp_id g = in->group;
    if (l->group_ps[g] < 0)
        l->group_ps[g] = mpp_price_group(l->r->g, l->r->cluster, l->r->mesh, &l->r->g->groups[g], in->split, &l->inside_ps[g]);
    l->kernels += l->group_ps[g];
    run_collective(l, l->inside_ps[g]);
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

static const char *part(const struct report *r, double hidden_s, double all_s)
{
    double share = all_s > 0 ? 100 * hidden_s / all_s : 0;
    return mpp_arena_printf(r->arena, "%s of %s (%.0f %%)", mpp_report_seconds(r->arena, hidden_s), mpp_report_seconds(r->arena, all_s), share);
}

void mpp_report_overlap(const struct report *r)
{
    double begun_s[N_KINDS] = {0}, exposed_s[N_KINDS] = {0};
    int64_t n = r->plan->micro_batches;
    if (!r->prog || r->g->unfused)
        return;
    struct lanes l = {.r = r, .prog = r->prog, .group_ps = mpp_arena_array(r->arena, r->g->n_groups, int64_t),
                      .inside_ps = mpp_arena_array(r->arena, r->g->n_groups, int64_t)};
    mpp_reshard_env_init(r->cluster, r->mesh, r->stage->first_device, &l.env);
    for (int i = 0; i < r->g->n_groups; i++)
        l.group_ps[i] = -1;
    run_passes(&l, true, n == 1, 1, begun_s, exposed_s);
    if (n > 2)
        run_passes(&l, false, false, n - 2, begun_s, exposed_s);
    if (n > 1)
        run_passes(&l, false, true, 1, begun_s, exposed_s);
    double sums_s = begun_s[SUM] - exposed_s[SUM], gathers_s = begun_s[GATHER] - exposed_s[GATHER];
    struct mpp_text s = {.arena = r->arena};
    if (begun_s[SUM] > 0)
        mpp_text_add(&s, "hidden behind the backward pass: about %s of gradient sums", part(r, sums_s > 0 ? sums_s : 0, begun_s[SUM]));
    if (begun_s[GATHER] > 0)
        mpp_text_add(&s, "%s about %s of weight gathers", s.n ? "; behind kernels" : "hidden behind kernels:",
                     part(r, gathers_s > 0 ? gathers_s : 0, begun_s[GATHER]));
    if (s.n)
        mpp_report_paragraph(r, 2, mpp_arena_printf(r->arena, "%s (times, bound and gap above count all of them)", mpp_text_string(&s)), true);
}
