/* account.h - where every picosecond of a step goes, in rows that add up to it.
 *
 *     struct mpp_account a;
 *     mpp_account_make(arena, cluster, plan, &a);
 *     for (int i = 0; i < a.n; i++) ... a.row[i].label, a.row[i].ps ...      // sum of ps: plan->objective_ps
 *
 * Of a plan of several stages: the stage that is busy longest, and what it waits for the others. */
#ifndef MPP_INSPECT_ACCOUNT_H
#define MPP_INSPECT_ACCOUNT_H

#include "planner/plan.h"

enum mpp_account_part {
    MPP_ACCOUNT_KERNELS, MPP_ACCOUNT_UPDATE, MPP_ACCOUNT_COMM, MPP_ACCOUNT_LOCAL, MPP_ACCOUNT_RECEIVE, MPP_ACCOUNT_WAIT,
    MPP_ACCOUNT_PARTS
};

struct mpp_account_row {
    enum mpp_account_part part;
    const char *label;            /* "kernels, forward", "all-reduce over model (8)" */
    const char *role, *cause;     /* of collectives: "activation"; "sums over ffn, split over model"; else "" */
    const char *names;            /* of collectives: whose, the first few: "mlp.c_proj, attn.c_proj" */
    int64_t ps, count;            /* of a step */
    double bytes;                 /* of collectives: per device and step */
};

struct mpp_account {
    int n, stage;                 /* stage: whose */
    struct mpp_account_row *row;  /* [n] in ARENA; parts in the order of their enum, each by time */
    int64_t step_ps;              /* = the sum of all rows */
};

/* PLAN is derived. Rows are of kinds of work, collectives also by axes, role and cause. */
void mpp_account_make(struct mpp_arena *arena, const struct mpp_cluster *cluster, const struct mpp_plan *plan,
                      struct mpp_account *out);

/* What all rows of PART take. */
int64_t mpp_account_sum(const struct mpp_account *a, enum mpp_account_part part);

/* "data (8)", "data+model (8)": the axes of MASK that have several devices, and how many these make. */
const char *mpp_account_axes(struct mpp_arena *arena, const struct mpp_mesh *mesh, unsigned mask);

#endif
