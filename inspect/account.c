/* account.c - a stage's timeline, added up by what it is and why it is there. */
#include "inspect/account.h"

#include <stdlib.h>
#include <string.h>

#include "codegen/emit_internal.h"
#include "planner/timeline.h"

enum { SHOWN_NAMES = 3 };

struct making {
    struct mpp_arena *arena;
    const struct mpp_plan *plan;
    const struct mpp_stage *stage;
    struct mpp_account *out;
    size_t cap;
    int *n_names;                 /* [cap] of each row */
    size_t cap_names;
};

const char *mpp_account_axes(struct mpp_arena *arena, const struct mpp_mesh *mesh, unsigned mask)
{
    struct mpp_text s = {.arena = arena};
    int n = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        if ((mask >> a & 1) && mesh->size[a] > 1) {
            mpp_text_add(&s, "%s%s", s.n ? "+" : "", mesh->name[a]);
            n *= mesh->size[a];
        }
    return mpp_arena_printf(arena, "%s (%d)", mpp_text_string(&s), n);
}

int64_t mpp_account_sum(const struct mpp_account *a, enum mpp_account_part part)
{
    int64_t sum = 0;
    for (int i = 0; i < a->n; i++)
        sum += a->row[i].part == part ? a->row[i].ps : 0;
    return sum;
}

/* Where a reason's cause begins: after the name that it is about ("mlp.c_proj sums over ffn, split over model"). */
static const char *cause_of(const char *reason)
{
    static const char *const verbs[] = {" sums over ", " rests ", " needs ", " takes ", " adds up ", " is "};
    const char *best = NULL;
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        const char *at = strstr(reason, verbs[i]);
        best = at && (!best || at < best) ? at : best;
    }
    return best ? best + 1 : reason;
}

static bool same(const struct mpp_account_row *a, const struct mpp_account_row *b)
{
    return a->part == b->part && strcmp(a->label, b->label) == 0 && strcmp(a->role, b->role) == 0 && strcmp(a->cause, b->cause) == 0;
}

static void add_name(struct making *m, int i, const char *name)
{
    struct mpp_account_row *r = &m->out->row[i];
    size_t n = strlen(name);
    if (n == 0)
        return;
    for (const char *at = r->names; (at = strstr(at, name)) != NULL; at += n)
        if ((at == r->names || at[-1] == ' ') && (at[n] == ',' || !at[n]))
            return;
    if (m->n_names[i] >= SHOWN_NAMES) {
        if (m->n_names[i]++ == SHOWN_NAMES)
            r->names = mpp_arena_printf(m->arena, "%s, ...", r->names);
        return;
    }
    m->n_names[i]++;
    r->names = mpp_arena_printf(m->arena, "%s%s%s", r->names, *r->names ? ", " : "", name);
}

static void add(struct making *m, struct mpp_account_row row, const char *name)
{
    struct mpp_account *a = m->out;
    int i = 0;
    while (i < a->n && !same(&a->row[i], &row))
        i++;
    if (i == a->n) {
        a->row = mpp_arena_grow(m->arena, a->row, &m->cap, (size_t)i + 1, sizeof *a->row);
        m->n_names = mpp_arena_grow(m->arena, m->n_names, &m->cap_names, (size_t)i + 1, sizeof *m->n_names);
        m->n_names[i] = 0;
        a->row[a->n++] = (struct mpp_account_row){row.part, row.label, row.role, row.cause, "", 0, 0, 0};
    }
    a->row[i].ps += row.ps;
    a->row[i].count += row.count;
    a->row[i].bytes += row.bytes;
    if (name)
        add_name(m, i, name);
}

/* PS of a step for collective C, which is executed COUNT times. */
static void add_comm(struct making *m, const struct mpp_comm *c, int64_t ps, int64_t count)
{
    const char *reason = c->reason ? c->reason : "", *cause = cause_of(reason);
    bool receive = strcmp(c->role, "receive") == 0;
    add(m, (struct mpp_account_row){
               .part = receive ? MPP_ACCOUNT_RECEIVE : MPP_ACCOUNT_COMM, .role = c->role, .cause = cause, .ps = ps, .count = count,
               .label = receive ? c->kind : mpp_arena_printf(m->arena, "%s over %s", c->kind, mpp_account_axes(m->arena, &m->stage->mesh, c->mask)),
               .bytes = (double)count * (double)c->bytes},
        cause > reason ? mpp_arena_strndup(m->arena, reason, (size_t)(cause - reason - 1)) : "");
}

static void add_comms(struct making *m, const struct mpp_piece *p, int64_t times)
{
    int64_t left = times * p->cost_ps;
    for (int i = 0; i < p->n_comms; i++) {
        const struct mpp_comm *c = &m->stage->collectives[p->comm + i];
        int64_t ps = i + 1 < p->n_comms && times * c->cost_ps < left ? times * c->cost_ps : left;
        left -= ps;
        add_comm(m, c, ps, c->count);
    }
}

static void add_piece(struct making *m, const struct mpp_piece *p)
{
    bool once = p->part == MPP_PART_ONCE || p->part == MPP_PART_UPDATE;
    int64_t times = once ? 1 : m->plan->micro_batches;
    struct mpp_account_row row = {.label = "update", .role = "", .cause = "", .ps = times * p->cost_ps, .count = times};
    if (p->n_comms > 0) {
        add_comms(m, p, times);
        return;
    }
    if (p->kind == MPP_PIECE_STEP) {
        row.part = MPP_ACCOUNT_LOCAL;
        row.label = "cutting local blocks";
    } else if (once) {
        row.part = MPP_ACCOUNT_UPDATE;
    } else {
        row.part = MPP_ACCOUNT_KERNELS;
        row.label = p->part == MPP_PART_BACKWARD ? "kernels, backward" : "kernels, forward";
    }
    if (row.ps > 0)
        add(m, row, NULL);
}

static int by_part_and_time(const void *a, const void *b)
{
    const struct mpp_account_row *x = a, *y = b;
    if (x->part != y->part)
        return x->part < y->part ? -1 : 1;
    if (x->ps != y->ps)
        return x->ps > y->ps ? -1 : 1;
    int order = strcmp(x->label, y->label);
    order = order ? order : strcmp(x->role, y->role);
    return order ? order : strcmp(x->cause, y->cause);
}

static int busiest(const struct mpp_plan *plan)
{
    int most = 0;
    for (int i = 1; i < plan->n_stages; i++)
        if (plan->stages[i].predicted.step_s > plan->stages[most].predicted.step_s)
            most = i;
    return most;
}

void mpp_account_make(struct mpp_arena *arena, const struct mpp_cluster *cluster, const struct mpp_plan *plan,
                      struct mpp_account *out)
{
    int n_pieces;
    *out = (struct mpp_account){.stage = busiest(plan), .step_ps = plan->objective_ps};
    const struct mpp_piece *piece = mpp_plan_timeline(arena, cluster, plan, out->stage, &n_pieces);
    struct making m = {.arena = arena, .plan = plan, .stage = &plan->stages[out->stage], .out = out};
    for (int i = 0; i < n_pieces; i++)
        add_piece(&m, &piece[i]);
    int64_t busy = 0;
    for (int i = 0; i < out->n; i++)
        busy += out->row[i].ps;
    if (out->step_ps != busy)
        add(&m, (struct mpp_account_row){.part = MPP_ACCOUNT_WAIT, .label = "waiting for other stages", .role = "", .cause = "",
                                         .ps = out->step_ps - busy, .count = 1}, NULL);
    if (out->n > 0)
        qsort(out->row, (size_t)out->n, sizeof *out->row, by_part_and_time);
}
