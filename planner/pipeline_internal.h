/* pipeline_internal.h - shared by pipeline.c (the search over limits) and pipeline_pass.c (options, dynamic program).
 *
 * Stage counts that share a dynamic program make a family: all of them where sizes are free and what is in flight follows
 * from the number of stages that come after; else each alone. A state is (r, place, l): r stages are to come, the first
 * of them with layer l on and the devices of place on. Layers are counted in units of the chunks of an interleaved
 * schedule, devices in units of the sizes' greatest common divisor. */
#ifndef MPP_PIPELINE_INTERNAL_H
#define MPP_PIPELINE_INTERNAL_H

#include "planner/pipeline.h"

#define MPP_PIPE_NEVER INT64_MAX
enum { MPP_PIPE_BLOCK = 512 };   /* lists */

/* The options of a stage problem, or of all that are alike: t ascending, once descending. */
struct mpp_pipe_list {
    int64_t t_ps, once_ps;        /* of the first */
    int64_t least_once_ps;        /* of the last */
    int64_t bound_ps;             /* plans with one of them take at least that */
    const struct mpp_pipeline_option *option;
    int n;
    int asked;                    /* for exact options, so often */
    bool exact;
};

/* [n_in_flight][n_ranges] -> spans; of the spans that begin with a layer, first HEAD numbers that say which may be of use
 * (from, to before), then for each last layer the number of a list, 0: not asked for. */
struct mpp_pipe_table {
    int n_ranges;
    int32_t **spans;
};

struct mpp_pipe_family {
    int max_stages;
    const bool *wanted;           /* [max_stages + 1] numbers of stages that count */
    bool alone;                   /* only max_stages */
    int n_sizes;
    const int *size;              /* in units */
    int places;                   /* places 0..places-1; alone with one size: 1 */
    int64_t *in_flight;           /* [max_stages + 1] of the first of r stages */
    int *row;                     /* [max_stages + 1] row of TABLE for it */
    struct mpp_pipe_table *table;
    bool windows;                 /* TABLE holds only spans that leave a layer to every other stage */
    int64_t *sum, *longest, *once; /* [states] of what is to come, each the least by itself */
    int64_t *bound;               /* [states] plans through it take at least that; NULL: not worked out */
    int passes;
};

struct mpp_pipe {
    struct mpp_arena *arena, *scratch; /* of the answer; of the run */
    const struct mpp_pipeline_problem *p;
    struct mpp_schedule schedule; /* for its formula: stages do not matter */
    int n_layers, n_devices;      /* in units */
    int layer_unit, device_unit;
    struct mpp_pipe_list **lists; /* in blocks; the first: nothing fits */
    size_t n_lists, cap_blocks;
    int32_t *alike;               /* number of a class -> list; 0: none yet */
    size_t n_alike;
    struct mpp_pipeline_option *pool; /* room for options that are kept */
    size_t pool_left;
    int64_t *sum, *longest, *once; /* [states] of the pass */
    int16_t *last, *size;         /* [states] what the first stage takes */
    size_t n_states;
    int64_t upper_ps;             /* of the best plan whose options are exact, or the problem's */
    struct mpp_pipeline_answer answer;
};

/* A partition, an option for each stage. */
struct mpp_pipe_plan {
    int n_stages;
    struct mpp_pipeline_stage *stage;
    int32_t *list;                /* of each stage */
    int *asked;                   /* [stages] of that list, when the plan was made */
    bool *exact;                  /* [stages] is the option? */
    int64_t sum_ps, longest_ps, once_ps;
};

/* ---- pipeline_pass.c ---- */

/* List NUMBER, from 1 on; room for one more, and its number. */
static inline struct mpp_pipe_list *mpp_pipe_list(const struct mpp_pipe *q, int32_t number)
{
    return &q->lists[(number - 1) / MPP_PIPE_BLOCK][(number - 1) % MPP_PIPE_BLOCK];
}
int32_t mpp_pipe_add_list(struct mpp_pipe *q);

/* A plan's lower bound from figures that bound its own from below. */
int64_t mpp_pipe_bound(const struct mpp_pipe *q, int64_t sum_ps, int64_t longest_ps, int64_t once_ps);

/* Replace LIST's bounds by the exact options of KEY. */
void mpp_pipe_ask_exact(struct mpp_pipe *q, int32_t list, const struct mpp_pipeline_key *key);

/* Ask for what may be part of a plan below upper_ps, and bound the family's plans: their time, longest t and once.
 * False: interrupted. OUT_BOUND_PS NEVER: there is none. */
bool mpp_pipe_explore(struct mpp_pipe *q, struct mpp_pipe_family *f, int64_t *out_bound_ps,
                      int64_t *out_longest_ps, int64_t *out_once_ps);

/* The plan of the least sum whose stages all have t <= T_PS and once <= ONCE_PS, in scratch; *OUT NULL: there is none.
 * False: interrupted. */
bool mpp_pipe_pass(struct mpp_pipe *q, struct mpp_pipe_family *f, int64_t t_ps, int64_t once_ps,
                   struct mpp_pipe_plan **out);

#endif
