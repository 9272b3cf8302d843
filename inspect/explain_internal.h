/* explain_internal.h - what explain*.c share; nobody else includes it.
 *
 *     explain.c        the answer: plans of the alternatives
 *     explain_name.c   what a name means
 *     explain_costs.c  what a thing takes in a plan
 *     explain_layer.c  layers and stages
 *     explain_print.c  the answer for people and for machines */
#ifndef MPP_INSPECT_EXPLAIN_INTERNAL_H
#define MPP_INSPECT_EXPLAIN_INTERNAL_H

#include "inspect/account.h"
#include "inspect/inspect.h"
#include "planner/alternatives.h"

/* What a name means. */
enum mpp_subject_kind { MPP_SUBJECT_THING, MPP_SUBJECT_LAYER, MPP_SUBJECT_STAGE };

struct mpp_subject {
    enum mpp_subject_kind kind;
    struct mpp_thing thing;       /* THING; its stage also of a layer and a stage */
    const char *what;             /* "op", "weight", "value", "input", "gradient", "layer", "stage" */
    const char *glob;             /* ops and tensors of that name are meant; of a layer "h.3.*" */
    const char *note;             /* what the reader should know: "it runs inside the kernel of h.3.ln_1"; NULL */
};

/* What a thing takes in a plan, and the plan. */
struct mpp_costs {
    int64_t kernels_ps, copies_ps; /* per step, of the stage that has it: kernels that make or read it; its copies */
    int64_t bytes;                /* of it on a device, as it is made or rests */
    int64_t memory_bytes;         /* of the fullest device in all */
    int64_t step_ps, simulated_ps; /* simulated: event by event, by which plans of stages that are close are chosen */
    int64_t comm_ps, work_ps;     /* of the step: collectives and messages, the rest that is no waiting */
};

struct mpp_option {
    const char *words;            /* "ffn over model (8)" */
    const char *pins;             /* for --fix, beyond what is held: "split:h.3.mlp.c_fc=ffn/0" */
    bool chosen, planned, fits;   /* planned: its total is of a plan; else LEAST_PS is a bound */
    int64_t least_ps;
    const char *why_not;          /* it does not fit */
    struct mpp_costs costs;
    const char *wins;             /* what would have to change for it to win */
};

struct mpp_explain {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const struct mpp_source *source;
    struct mpp_graph *graph;
    struct mpp_cluster *cluster;
    const struct mpp_plan *plan;
    struct mpp_pins held;
    const char *held_pins;        /* for --fix */
    const char *name;
    const char *closer;           /* another plan than the search's own is explained; NULL */
    const char *apart;            /* with what is held the search settles on a worse plan; NULL */
    const char *plan_pins;        /* for --fix: what gives the plan again; NULL: it was read */
    bool from_plan;               /* the plan was read: it may be any */
    struct mpp_subject subject;
    int n_options;
    struct mpp_option *option;    /* the chosen one first, then by total */
    const char *same;             /* of a layer: what comes to the same as the plan; NULL: nothing listed */
    int n_more;                   /* that were not planned, for MORE_PS is the least they take */
    int64_t more_ps;
    int n_rows;                   /* of a layer */
    struct mpp_layer_row *row;
};

struct mpp_layer_row {            /* a thing of a layer, and its runner-up */
    struct mpp_thing thing;
    const char *name, *what, *chosen;
    struct mpp_costs costs;
    struct mpp_option other;      /* words NULL: there is none */
};

/* What E->name means. MPP_INVALID after a message with what is near. */
enum mpp_status mpp_explain_find(struct mpp_explain *e) MPP_CHECKED;

struct mpp_costs mpp_explain_costs(const struct mpp_explain *e, const struct mpp_thing *thing, const struct mpp_plan *plan);

/* How THING is in E's plan, or would be as A; in words. */
const char *mpp_explain_chosen(const struct mpp_explain *e, const struct mpp_thing *thing);
const char *mpp_explain_words(const struct mpp_explain *e, const struct mpp_thing *thing, const struct mpp_alternative *a);

/* Plan with E's held pins and O's; fill in what is learnt. */
void mpp_explain_plan(struct mpp_explain *e, const struct mpp_thing *thing, const struct mpp_pins *pins, struct mpp_option *o);

/* The MOST alternatives of THING that may be best, planned; E->option or, into *OUT, the best other one. */
void mpp_explain_thing(struct mpp_explain *e, const struct mpp_thing *thing, int most);
struct mpp_option mpp_explain_runner_up(struct mpp_explain *e, const struct mpp_thing *thing);

void mpp_explain_layer(struct mpp_explain *e);
void mpp_explain_stage(struct mpp_explain *e);
/* The chosen one first, then by total. */
void mpp_explain_sort(struct mpp_explain *e);

void mpp_explain_print(const struct mpp_explain *e, FILE *out);
void mpp_explain_write(const struct mpp_explain *e, FILE *out);

#endif
