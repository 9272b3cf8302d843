/* emit_fused.h - a fused group on its way to a loop nest (private to emit_fused.c, emit_loops.c, emit_cuda.c and emit_value.c).
 *
 * Every factor of the group is a loop, except the entries of a Split or a stacking Concat, which are unrolled. Loops
 * that all operands walk in step are merged. Outputs of reductions are computed in a nest whose order suits them. */
#ifndef MPP_EMIT_FUSED_H
#define MPP_EMIT_FUSED_H

#include "codegen/emit_internal.h"
#include "ir/op.h"

enum { FUSED_MAX_LOOPS = MPP_MAX_FACTORS };

struct fused_tensor {             /* any tensor of the group, on its border or inside */
    mpp_id id;
    bool known;
    struct mpp_rule_operand map;  /* its dimensions in factors of the group */
    int in, out;                  /* position on the border; -1 */
    mpp_id producer;              /* op of the group; -1: comes from outside */
};

struct fused_loop {
    int n_factors, factor[MPP_MAX_FACTORS]; /* merged, outermost first */
    const char *var, *bound, *size; /* index, number of iterations, stored extent */
    const char *bound_arg, *size_arg; /* what the caller passes */
    bool size_used;               /* the body mentions SIZE, not only BOUND */
};

struct fused_dropout {            /* a Dropout op of the group draws by global element */
    mpp_id op;
    int tensor;
};

struct fused_memo {
    mpp_id tensor;
    int combo;
    const char *name;
};

struct fused_kernel;              /* emit_cuda.c */

struct fused {
    struct mpp_emit *e;
    const struct mpp_instr *instr;
    const struct mpp_group *grp;
    bool valid_only;              /* some output is a reduction: only valid elements are touched */
    int n_tensors;
    struct fused_tensor *tensor;
    int n_loops;
    struct fused_loop loop[FUSED_MAX_LOOPS]; /* outermost first */
    int n_dropouts;
    struct fused_dropout *dropout;
    /* the nest being written */
    struct mpp_text text;
    bool shared;                  /* threads share some loop */
    struct fused_kernel *kernel;  /* the CUDA kernel being written; NULL: a nest for the host */
    int indent, n_vars;
    size_t cap_memo;
    int n_memo;
    struct fused_memo *memo;
};

struct fused_nest {
    struct fused *f;
    bool maps;                    /* writes the outputs that aren't reductions */
    unsigned kept;                /* loops that its reductions keep */
    int n_sums, *sum;             /* outputs */
};

/* ---- emit_fused.c ---- */
/* What the function takes: the C parameters; those that BODY mentions, as a CUDA kernel declares them, or only their names. */
enum fused_list { FUSED_PARAMETERS, FUSED_KERNEL_PARAMETERS, FUSED_NAMES };
const char *mpp_fused_parameters(struct fused *f, enum fused_list form, const char *body);
/* Does WORD stand in TEXT as a word of its own? */
bool mpp_fused_mentions(const char *text, const char *word);

/* ---- emit_value.c ---- */
struct fused_tensor *mpp_fused_find(struct fused *f, mpp_id t);
unsigned mpp_fused_axes(const struct fused *f, int factor);
bool mpp_fused_unrolled(const struct fused *f, int factor);
bool mpp_fused_contains(const struct fused_tensor *t, int factor);
/* Loop of FACTOR, or -1 where it is unrolled. */
int mpp_fused_loop_of(const struct fused *f, int factor);
const char *mpp_fused_in_name(const struct fused *f, int in);
const char *mpp_fused_out_name(const struct fused *f, int out);
/* "i * cols + j": the element of T at the loops' indices and the unrolled entries U [n_factors]. */
const char *mpp_fused_index(struct fused *f, const struct fused_tensor *t, const int *u);
/* The value of T there, as an expression without side effects; declares what it needs in f->text. */
const char *mpp_fused_value(struct fused *f, struct fused_tensor *t, const int *u);
/* The same for an output: not declared where nothing else in the group reads it. */
const char *mpp_fused_result(struct fused *f, struct fused_tensor *t, const int *u);
/* Entries of T's unrolled factors: U holds one of them; false after the last. Start with all zero. */
bool mpp_fused_next(const struct fused *f, const struct fused_tensor *t, int *u);
int mpp_fused_combo(const struct fused *f, const struct fused_tensor *t, const int *u);
bool mpp_fused_is_reduction(const struct fused *f, const struct fused_tensor *t);
void mpp_fused_add(struct fused *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- emit_loops.c ---- */
struct fused_tensor *mpp_fused_output(struct fused *f, int o);
unsigned mpp_fused_loops_of(const struct fused *f, const struct fused_tensor *t); /* bit l: T runs with loop l */
/* Of a reduction: what it adds up, whether it is a maximum, and what a sum is divided by. */
struct fused_tensor *mpp_fused_summand(struct fused *f, const struct fused_tensor *t);
bool mpp_fused_takes_max(const struct fused *f, const struct fused_tensor *t);
double mpp_fused_divisor(const struct fused *f, const struct fused_tensor *t);
const char *mpp_fused_sum_name(struct fused *f, int o, const struct fused_tensor *t, const int *u);
struct fused_nest *mpp_fused_nests(struct fused *f, int *out_n);
/* Sums of N that keep the innermost loop; else they sum it, or N has none. */
bool mpp_fused_sums_columns(const struct fused *f, const struct fused_nest *n);
const char *mpp_fused_loops(struct fused *f);

/* ---- emit_cuda.c ---- */
/* The same as CUDA kernels and the function that launches them; @ stands for its name. After mpp_fused_loops, once the
 * loops' size_used is set. */
const char *mpp_fused_cuda(struct fused *f);
/* An element of an input: declares what is read, returns the expression of its stored type. */
const char *mpp_fused_read(struct fused *f, const struct fused_tensor *t, int combo, const int *u);

#endif
