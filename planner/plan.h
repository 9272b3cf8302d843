/* plan.h - the whole decision, and what follows from it.
 *
 *     struct mpp_plan *plan;
 *     enum mpp_status st = mpp_plan_search(arena, diag, graph, cluster, &options, &plan);
 *     MPP_TRY(mpp_plan_derive(arena, graph, cluster, plan));      // copies, collectives, predictions
 *     MPP_TRY(mpp_plan_write_json(diag, graph, cluster, plan, "plan/plan.json"));
 *
 * Decisions are the split of every group and the resting sharding of every parameter and input; the rest
 * (copies, collectives, times) is derived, by the same code for a searched and for a read plan. */
#ifndef MPP_PLAN_H
#define MPP_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "costmodel/costmodel.h"
#include "ir/graph.h"
#include "ir/rule.h"
#include "ir/span.h"
#include "planner/reshard.h"
#include "planner/schedule.h"
#include "planner/solver.h"

#define MPP_PLAN_VERSION "2"

/* A copy of a value into another sharding, made once and shared by all its consumers of a phase. */
struct mpp_copy {
    mpp_id tensor;
    enum mpp_phase phase;         /* of its consumers (a kept copy of a parameter: FORWARD) */
    struct mpp_sharding from, to;
    int n_steps;
    struct mpp_reshard_step steps[MPP_RESHARD_MAX_STEPS];
    int first_group, last_group;  /* made before first_group (its first consumer) runs; last consumer */
    bool once;                    /* once per step instead of per micro-batch (update phase, kept parameters) */
    bool store;                   /* writes a parameter's new value back to its resting sharding (after the update) */
    const char *reason;           /* "c_proj contracts heads, which are split over model" */
};

/* A collective as the report and plan.json list it: of a copy's step, or internal to a group. */
struct mpp_comm {
    const char *kind;             /* "all-reduce", ... */
    unsigned mask;
    int64_t bytes;                /* of the larger side, per device, one execution */
    int64_t count;                /* executions per step */
    int64_t cost_ps;              /* one execution */
    enum mpp_phase phase;
    const char *tensor;           /* name of the value or op it belongs to */
    const char *role;             /* "activation", "gradient", "parameter", "internal" (inside a kernel) */
    const char *reason;
    int repeat, index;            /* layer, -1: none */
};

struct mpp_beside {               /* bytes of a GPU that a stage takes beside its arena, at most; codegen/beside.c */
    int64_t workspace;            /* cuBLASLt's */
    int64_t kernels;              /* sums and rows that kernels keep */
    int64_t packing;              /* of what collectives send and receive */
    int64_t messages;             /* of other stages, packed */
    int64_t own_bytes;            /* of these: what the trainer allocates itself */
    int groups, groups_of_two, pairs; /* NCCL's communicators: of axes (all, and of these those of two ranks), and of messages */
    int64_t nccl, context;        /* their buffers, the driver's context: about */
    int64_t bytes;                /* all of it */
    bool on_gpu;                  /* the cluster's devices are GPUs */
};

struct mpp_memory {               /* bytes per device, padded shards, at the fullest moment; filled by lowering */
    int64_t parameters, gradients, optimizer, activations, inputs, workspace;
    int64_t gaps;                 /* of the arena that nothing fills at that moment: all seven sum to arena_bytes */
    int64_t arena_bytes;          /* allocated */
    int64_t live_bound_bytes;     /* most bytes alive at once: no arena can be smaller */
    struct mpp_beside beside;
};

struct mpp_overlap {              /* seconds per step of a stage that go on beside its kernels; filled by lowering */
    double sums_s, hidden_sums_s; /* of gradients: begun in the backward pass, and what of that no kernel waits for */
    double gathers_s, hidden_gathers_s; /* of parameters, begun before they are needed */
};

struct mpp_prediction {           /* seconds per step; of a stage: what its devices are busy with */
    double step_s, compute_s, activation_comm_s, gradient_comm_s, parameter_comm_s, update_s;
    double receive_s;             /* what comes from other stages */
    double bubble_s;              /* of the plan: step_s less the busy time of its slowest stage */
};

struct mpp_stage {
    int first_device, n_devices;
    int first_layer, last_layer;  /* of the plan's layering */
    enum mpp_recompute recompute;
    int64_t in_flight;            /* micro-batches whose activations are alive at once */
    struct mpp_graph *graph;      /* the stage's part of the training step (ir/span.h); all arrays below refer to it */
    struct mpp_stage_time time;   /* of one micro-batch, and once per step; derived */
    struct mpp_solver_info solver; /* of its own integer program */
    struct mpp_mesh mesh;
    struct mpp_split *split;      /* [graph->n_groups] */
    struct mpp_sharding *resting; /* [graph->n_tensors]: PARAM and INPUT tensors; STATE follows its update op */
    bool *kept;                   /* [graph->n_tensors]: PARAM: gathered once per step instead of per micro-batch and phase */
    /* derived */
    int n_copies;
    struct mpp_copy *copies;      /* ordered by first_group */
    int n_collectives;
    struct mpp_comm *collectives;
    int n_unsplit;                /* contractions that no axis splits, though there are several devices: */
    mpp_id *unsplit;              /* their groups (pinned or proven cheapest), for the report */
    struct mpp_memory memory;
    struct mpp_overlap overlap;
    struct mpp_prediction predicted;
};

struct mpp_runner_up {
    const char *what;             /* "pp 4, 8 x (data 2 x model 4), 32 micro-batches, recompute full" */
    const char *why;              /* "bubble 12 % instead of 4 %"; NULL: nothing sticks out */
    int64_t time_ps;
};

struct mpp_plan {
    const char *version;          /* of the plan format */
    int64_t batch, micro_batches; /* graph->batch == batch / micro_batches when this plan is current */
    const char *schedule;         /* "1F1B"; one stage: "accumulate" */
    struct mpp_schedule pipeline; /* one stage: 1F1B of one stage and one chunk */
    const struct mpp_layering *layering;
    int n_stages;
    struct mpp_stage *stages;     /* in pipeline order */
    int64_t simulated_ps;         /* of a step, event by event; derived */
    struct mpp_prediction predicted; /* of the whole; derived */
    int n_others;                 /* the runners-up, best first */
    struct mpp_runner_up *others;
    struct mpp_solver_info solver; /* of the chosen mesh */
    int64_t objective_ps, bound_ps; /* over all meshes and micro-batch counts searched */
    double gap;
    int64_t overlapped_ps;        /* objective_ps less what is hidden; filled by lowering */
    bool overlap;                 /* --overlap: overlapped_ps is the time that counts */
    int64_t overlap_bound_ps;     /* OVERLAP: no plan searched takes less so; 0: not known */
    const char *stopped;          /* what ended the search, whose best so far this is: "--time-limit"; NULL: it came to its end */
    const char *pins;             /* what --fix said, normalised; "" */
};

/* ---- pins: --fix ---- */
enum mpp_pin_kind {
    MPP_PIN_SHARD,                /* shard:GLOB=dimension/axis: values as made; parameters as they rest and are read */
    MPP_PIN_REST,                 /* rest:GLOB=dimension/axis: parameters and inputs as they rest */
    MPP_PIN_SPLIT,                /* split:GLOB=dimension/axis: ops of that name */
};
struct mpp_pin_tensor {           /* DIMENSION: a name, "#1" (by place; of ops by letter), "whole" or "partial" */
    const char *glob, *dimension, *axis;
    enum mpp_pin_kind kind;
};
#define MPP_PIN_WHOLE "whole"
#define MPP_PIN_PARTIAL "partial"
struct mpp_pins {
    int dp, tp, pp;               /* 0: free */
    int interleave;               /* chunks per stage; 0: free */
    int recompute;                /* enum mpp_recompute; -1: free */
    int schedule;                 /* enum mpp_schedule_kind; -1: free (1F1B and interleaved) */
    struct mpp_mesh mesh;         /* n_axes 0: free */
    int zero;                     /* -1: free; 0-3 */
    int sequence_parallel, vocab_parallel; /* -1: free, 0: off, 1: on */
    int64_t micro_batch;          /* per replica; 0: free */
    int64_t micro_batches;        /* 0: free */
    int n_tensors;
    struct mpp_pin_tensor *tensors;
};
/* Parse the comma-separated TEXT of one --fix into PINS (initialise with mpp_pins_none), with a hint for unknown keys. */
struct mpp_pins mpp_pins_none(void);
enum mpp_status mpp_pins_parse(struct mpp_arena *arena, struct mpp_diag *diag, const char *text,
                               struct mpp_pins *pins) MPP_CHECKED;

/* Why a search should stop; what it has found by then is the plan, marked so. */
enum mpp_interrupt { MPP_INTERRUPT_NONE, MPP_INTERRUPT_USER, MPP_INTERRUPT_TIME };

struct mpp_plan_options {
    struct mpp_pins pins;
    int64_t capacity_bytes;       /* per device; 0: the device's usable memory */
    const char *dump_ilp_dir;     /* NULL: none */
    const char *export_iopddl_dir; /* files of every stage problem that is met; NULL: none */
    FILE *progress;               /* NULL: silent */
    /* The bytes that a device of STAGE of PLAN, which is derived, needs once its memory is laid out: packing, workspaces and
     * padding are not in the programs. Where that is more than capacity the stage is planned again with less room. NULL:
     * the programs' own figures are enough. CONTEXT is room_context. */
    enum mpp_status (*room)(void *context, const struct mpp_plan *plan, int stage, int64_t *out_bytes);
    void *room_context;
    bool whole_room;              /* leave no reserve for what the programs do not count */
    bool quick;                   /* any plan that fits will do: the first one is taken; after as many programs as a whole search
                                   * solves there is taken to be none */
    bool glance;                  /* where little memory is taken only: what it does not find may be there all the same */
    bool overlap;                 /* the plan is to take least with collectives beside kernels (mpp_fit_plan; nothing below it reads this) */
    double hidden;                /* the share of what can go on beside kernels that is not to be paid (struct mpp_stage_site) */
    bool quiet;                   /* nothing fits: MPP_INFEASIBLE without looking for ways out */
    int64_t *least_bytes;         /* nothing fits: what a device needs at least; stays as it is where that is not known. NULL */
    bool *too_small;              /* set to true where parameters and the optimiser's state alone are more than all devices hold. NULL */
    volatile int *interrupt;      /* an enum mpp_interrupt, set at any time; NULL: none */
};

/* Should a search under O stop? And the name of what stopped it: "Ctrl-C" or "--time-limit". */
static inline bool mpp_plan_interrupted(const struct mpp_plan_options *o)
{
    return o->interrupt && *o->interrupt != MPP_INTERRUPT_NONE;
}
static inline const char *mpp_plan_stopped_by(const struct mpp_plan_options *o)
{
    return o->interrupt && *o->interrupt == MPP_INTERRUPT_TIME ? "--time-limit" : "Ctrl-C";
}

/* Find the best plan for GRAPH (after all passes) on the devices of CLUSTER. MPP_INFEASIBLE after a
 * diagnostic that says what overflows, by how much, and suggestions that were verified by planning them. */
enum mpp_status mpp_plan_search(struct mpp_arena *arena, struct mpp_diag *diag, struct mpp_graph *graph,
                                const struct mpp_cluster *cluster, const struct mpp_plan_options *options,
                                struct mpp_plan **out) MPP_CHECKED;

/* The same over stages too. GRAPH: before the pass "fuse"; the stages of the plan have graphs of their own. */
enum mpp_status mpp_plan_pipeline(struct mpp_arena *arena, struct mpp_diag *diag, struct mpp_graph *graph,
                                  const struct mpp_cluster *cluster, const struct mpp_plan_options *options,
                                  struct mpp_plan **out) MPP_CHECKED;

/* Fill the derived parts of PLAN and its schedule's counts; sets the batch of GRAPH and of the stages' graphs to the
 * micro-batch. The graph of a plan's only stage may be NULL: GRAPH is taken. */
enum mpp_status mpp_plan_derive(struct mpp_arena *arena, struct mpp_diag *diag, struct mpp_graph *graph,
                                const struct mpp_cluster *cluster, struct mpp_plan *plan) MPP_CHECKED;

/* "none", "selective", "full" */
const char *mpp_plan_recompute_word(enum mpp_recompute r);
/* The stage whose devices hold most. */
int mpp_plan_fullest(const struct mpp_plan *plan);
/* FLOPs of a step of GRAPH, the whole training step at its micro-batch: those of the model, no recomputation; and those
 * per second of all devices at the precision it runs in. */
double mpp_plan_step_flops(const struct mpp_graph *graph);
double mpp_plan_peak_flops(const struct mpp_graph *graph, const struct mpp_cluster *cluster);

/* The prediction of a derived and lowered PLAN as one JSON object to OUT (docs/plan.md). */
enum mpp_status mpp_plan_predict_json(struct mpp_diag *diag, const struct mpp_graph *graph,
                                      const struct mpp_cluster *cluster, const struct mpp_plan *plan, FILE *out) MPP_CHECKED;

/* The cost in picoseconds of running GROUP once under SPLIT, and of its internal collectives. */
int64_t mpp_price_group(const struct mpp_graph *graph, const struct mpp_cluster *cluster, const struct mpp_mesh *mesh,
                        const struct mpp_group *group, struct mpp_split split, int64_t *out_internal_ps);

/* plan.json (docs/plan.md). Write to PATH; read from PATH and check against GRAPH (decisions only; derive after). */
enum mpp_status mpp_plan_write_json(struct mpp_diag *diag, const struct mpp_graph *graph,
                                    const struct mpp_cluster *cluster, const struct mpp_plan *plan,
                                    const char *path) MPP_CHECKED;
enum mpp_status mpp_plan_read_json(struct mpp_arena *arena, struct mpp_diag *diag, struct mpp_graph *graph,
                                   const struct mpp_cluster *cluster, const char *path,
                                   struct mpp_plan **out) MPP_CHECKED;

#endif
