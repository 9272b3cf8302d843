/* stages_internal.h - what stages*.c share; nobody else includes it.
 *
 *     stages_layers.c  layers that stand for many; spans, ranges of devices, and configs, each made once
 *     stages_solve.c   the integer programs of configs: without a memory limit, and within it
 *     stages_nearest.c what comes nearest to fitting
 *     stages_survey.c  what spans take at least, about
 *     stages_exact.c   all that stages of small models can do
 *     stages.c         the answers to questions about stages; decisions */
#ifndef MPP_STAGES_INTERNAL_H
#define MPP_STAGES_INTERNAL_H

#include <limits.h>

#include "planner/fold.h"
#include "planner/pins.h"
#include "planner/stages.h"

/* Layers of a run that stand for any number: its first and last, if they are like the others, else two between them, too. */
enum { MPP_STAGES_FEW = 2, MPP_STAGES_SEVERAL = 4, MPP_STAGES_ALL = INT_MAX };
enum { MPP_STAGES_BEFORE, MPP_STAGES_ITERATION, MPP_STAGES_AFTER, MPP_STAGES_N_PARTS }; /* of a model with one run of layers */
enum { MPP_STAGES_MAX_MESHES = 64, MPP_STAGES_POOL = 8, MPP_STAGES_PROVEN = 16 };

/* Layers that stand for a span of any length. */
struct mpp_stages_shape {
    int first, last, cut_first, cut_last; /* cut_last < cut_first: nothing is cut */
    struct mpp_fold_run run;
};

/* A shape's graph. */
struct mpp_stages_span {
    struct mpp_stages_shape shape;
    enum mpp_recompute recompute;
    struct mpp_graph *graph;      /* NULL: not made yet */
    bool failed;
};

/* The least cost of a config at one number of folded layers, whatever memory it takes, and what that choice costs at
 * other numbers: base + slope * layers. */
struct mpp_stages_freely {
    bool known, ok;
    double t_base, t_slope, once_base, once_slope;
    int32_t *choice;
};

/* What the parts of a model cost at a place with a mesh, at a number of micro-batches: of one solved program of all kinds
 * of layers. */
struct mpp_stages_survey {
    bool ok;
    bool known;                   /* false: not looked at, or stopped before it was solved */
    double t[MPP_STAGES_N_PARTS], once[MPP_STAGES_N_PARTS];
};

/* A span on a range of devices with a mesh at the present micro-batch. */
struct mpp_stages_config {
    bool ok;                      /* false: the pins rule it out */
    struct mpp_stage_problem *problem;
    struct mpp_stages_freely freely;
    int64_t layer_ps;             /* a step takes so much more with each layer, at least, about */
    int n_pool;                   /* choices found within memory: some number of layers and micro-batches */
    int32_t *pool[MPP_STAGES_POOL];
    int n_proven;                 /* with so many layers and at least so many micro-batches in flight all cost at least: */
    struct {
        int64_t layers, in_flight, least;
    } proven[MPP_STAGES_PROVEN];
};

/* A choice for a config, with so many layers and micro-batches in flight. */
struct mpp_stages_answer {
    int64_t objective, t_ps, once_ps;
    struct mpp_stage_time time;
    const int32_t *choice;        /* [n_nodes] of the fold, of the present round */
    int n_nodes;
};

/* Devices, as far as what is done on them costs: their links are alike wherever they are. */
struct mpp_stages_place {
    int n;
    int n_meshes;
    struct mpp_candidate *mesh;
    struct mpp_stage_book **book; /* [n_meshes] of the present round; NULL: none yet */
};

struct mpp_stages_range {         /* devices, as far as what they receive costs as well */
    int n, first;
    int place;
};

struct mpp_stages_choice {        /* what an option's id stands for */
    int range, mesh;
    enum mpp_recompute recompute;
    struct mpp_stages_shape shape;
    const int32_t *folded;        /* the decision itself, in the fold of the shape */
    int64_t objective, bound;     /* of its program */
    struct mpp_stages_facts facts;
};

struct mpp_stages {
    struct mpp_arena *arena, *round; /* round: of one micro-batch */
    struct mpp_diag *diag;
    const struct mpp_graph *graph;
    const struct mpp_layering *layering;
    const struct mpp_cluster *cluster;
    const struct mpp_plan_options *options;
    volatile int *interrupt;      /* NULL: what is asked is answered; else, once it is set, nothing has options */
    bool both_orders;             /* try meshes a x b and b x a even where links are alike */
    bool even;                    /* stages have equally many devices */
    bool shrunk;                  /* capacity is less than the device's */
    int64_t capacity, upper;      /* upper: a step that takes as long is of no use, so no stage may */
    int folded;                   /* MPP_STAGES_FEW, MPP_STAGES_SEVERAL or MPP_STAGES_ALL */
    bool unlike;                  /* layers that should decide alike cannot */
    int *repeat, *index;          /* [layers] iteration that a layer is; -1: none, or several */
    bool one_run;                 /* the model is one run with layers before and after it: surveys tell what spans cost */
    double *part[MPP_STAGES_N_PARTS]; /* [layers] what a layer holds of each */
    struct mpp_schedule schedule;
    struct mpp_memo *spans, *places, *ranges, *surveys, *keys, *configs;
    size_t cap_span, cap_place, cap_range, cap_survey, cap_config, cap_choice;
    struct mpp_stages_span *span;
    struct mpp_stages_place *place;
    struct mpp_stages_range *range;
    struct mpp_stages_survey *survey;
    struct mpp_stages_config **config;
    struct mpp_stages_choice *choice;
    int n_choices, n_places;
    struct mpp_pipeline_option reply[1];
    int64_t solved, within;
    struct mpp_stages_nearest nearest; /* bytes 0: all fitted */
    int budget;                   /* programs within memory that may still be solved for the present schedule */
    bool gave_up;                 /* that was not enough, or a program was too hard */
    bool memory_bound;            /* some stage would be faster if it had more */
    double share, others_ps;      /* a step takes at least c * share + others, for a stage that takes c */
    int64_t unproven_ps;          /* no step with an option that was given up takes less */
    struct mpp_stages_offers *offers; /* of stages_exact.c, of the present round; NULL: none yet */
};

static inline bool mpp_stages_interrupted(const struct mpp_stages *s)
{
    return s->interrupt && *s->interrupt;
}

struct mpp_stages_question {
    struct mpp_stages_shape shape;
    double part[MPP_STAGES_N_PARTS]; /* what the span holds */
    int range;
    int64_t in_flight;
    struct mpp_pipeline_key stage; /* what was asked */
};

/* A mesh for a question. */
struct mpp_stages_candidate {
    int mesh;
    int64_t t_ps, once_ps, objective; /* the least it takes, about */
};

/* ---- stages_layers.c ---- */

/* Note what every layer is and holds of the model. */
void mpp_stages_note_iterations(struct mpp_stages *s);
void mpp_stages_note_parts(struct mpp_stages *s);
/* The layers FIRST..LAST as few of them that stand for all. */
struct mpp_stages_shape mpp_stages_represent(const struct mpp_stages *s, int first, int last);
/* The numbers of a span and of N devices from FIRST on; and a span on a range with a mesh at the present micro-batch. */
int mpp_stages_find_span(struct mpp_stages *s, struct mpp_stages_shape shape, enum mpp_recompute r);
int mpp_stages_find_range(struct mpp_stages *s, int n, int first);
struct mpp_stages_config *mpp_stages_find_config(struct mpp_stages *s, int span, int range, int mesh);
/* The meshes of a range. */
static inline const struct mpp_stages_place *mpp_stages_place_of(const struct mpp_stages *s, int range)
{
    return &s->place[s->range[range].place];
}
struct mpp_stage_site mpp_stages_site(const struct mpp_stages *s, int first_device);

/* ---- stages_solve.c ---- */

/* The least cost of PROBLEM whatever memory it takes; -1: there is no choice at all. */
int64_t mpp_stages_solve_free(struct mpp_stages *s, struct mpp_solver_problem problem, int32_t *choice,
                              struct mpp_solver_info *info);
/* The least cost of PROBLEM within memory, if it is below UPPER. MPP_LIMIT: it is not, or a limit was reached;
 * INFO->bound is proven. */
enum mpp_status mpp_stages_solve_within(struct mpp_stages *s, const struct mpp_solver_problem *problem, int64_t upper,
                                        int32_t *choice, struct mpp_solver_info *info);
/* The number of folded layers at which a config is looked at: the share of its devices. */
int64_t mpp_stages_typical_layers(const struct mpp_stages *s, const struct mpp_fold_run *run, int range);
/* CONFIG's free optimum. */
const struct mpp_stages_freely *mpp_stages_solve_freely(struct mpp_stages *s, struct mpp_stages_config *c,
                                                        const struct mpp_fold_run *run, int range);
int64_t mpp_stages_at_layers(double base, double slope, int64_t layers);
/* CONFIG with RUN's layers and IN_FLIGHT micro-batches alive. */
struct mpp_stages_case {
    struct mpp_stages_config *config;
    struct mpp_pipeline_key stage;
    enum mpp_recompute recompute;
    int64_t layers, in_flight;
    struct mpp_fold fold;
    bool ok, free_fits;           /* there is some choice; its free optimum fits */
    int64_t least;                /* no choice that fits costs less */
};

/* X, which is zero but for its first fields: the fold in ARENA, whether anything may fit, the free optimum. */
void mpp_stages_look(struct mpp_stages *s, struct mpp_stages_case *x, const struct mpp_fold_run *run, int range,
                     struct mpp_arena *arena);
/* The best choice for X among those that were found for other cases of its config; NULL: none fits. */
const int32_t *mpp_stages_from_pool(const struct mpp_stages *s, const struct mpp_stages_case *x, int64_t *out_objective);
/* A choice for X below UPPER within memory: from the pool if that is good enough, else solved; NULL: none. */
const int32_t *mpp_stages_solve_tight(struct mpp_stages *s, struct mpp_stages_case *x, int64_t upper);
/* CHOICE of X as an answer. */
struct mpp_stages_answer mpp_stages_answer_of(const struct mpp_stages *s, const struct mpp_stages_case *x, const int32_t *choice);

/* ---- stages.c ---- */

/* KEY with the layers as they are; false: nothing answers it. */
bool mpp_stages_ask_whole(struct mpp_stages *s, const struct mpp_pipeline_key *key, struct mpp_stages_question *q);

/* ---- stages_nearest.c ---- */

/* Does X take more than there is, whatever it chooses? Then it is noted if it comes nearest to fitting. */
bool mpp_stages_too_large(struct mpp_stages *s, const struct mpp_stages_case *x, struct mpp_arena *arena);
/* Note that X needs BYTES. */
void mpp_stages_overflows(struct mpp_stages *s, const struct mpp_stages_case *x, int64_t bytes);

/* Gap and status of INFO by its objective and bound. */
void mpp_stages_close(struct mpp_solver_info *info);

/* ---- stages_survey.c ---- */

/* Does the pinned micro-batch of a replica go with the data axis of C? */
bool mpp_stages_batch_agrees(const struct mpp_stages *s, const struct mpp_candidate *c);

enum mpp_recompute mpp_stages_least_recompute(const struct mpp_stages *s);
/* The meshes of Q by what they take at least; OUT has room for MPP_STAGES_MAX_MESHES. */
int mpp_stages_list_candidates(struct mpp_stages *s, const struct mpp_stages_question *q, struct mpp_stages_candidate *out);
#endif
