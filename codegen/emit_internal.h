/* emit_internal.h - what the parts of the emitter share: growing texts, names of things in the emitted code.
 *
 *     mpp_emit_line(e, "mpp_gemm(r, %s, %s);", mpp_emit_ptr(e, in), mpp_emit_ptr(e, out));   // wraps, indents
 *
 * Texts are built in memory: each stageN.c first, which finds out which kernels and extents there are, then the others.
 * A struct mpp_emit writes one stage; the kernels are all stages'. */
#ifndef MPP_EMIT_INTERNAL_H
#define MPP_EMIT_INTERNAL_H

#include <stdarg.h>

#include "codegen/program.h"

/* A growing string in an arena. */
struct mpp_text {
    struct mpp_arena *arena;
    char *data;
    size_t n, cap;
};
void mpp_text_add(struct mpp_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *mpp_text_string(struct mpp_text *t); /* never NULL */
const char *mpp_text_format(struct mpp_arena *arena, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
/* A statement or declaration at INDENT, wrapped after commas at 118 columns; a comment wrapped at words. */
void mpp_text_line(struct mpp_text *t, int indent, const char *line);
void mpp_text_comment(struct mpp_text *t, int indent, const char *words);
/* WORDS of a user for a comment: without what would end one, or begin one. */
const char *mpp_text_safe(struct mpp_arena *arena, const char *words);

/* A dimension's block on a rank: a field of `struct plan_dims` in the emitted plan.h. */
struct mpp_emit_dim {
    const char *name;
    int64_t global;
    unsigned mask;
};

/* A function of kernels.c, and of kernels.cu; equal texts are one kernel. */
struct mpp_emit_kernel {
    const char *name, *params, *body;
    const char *cuda;             /* its CUDA kernels, and the function that launches them; @ stands for the name */
    const char *about;
};

struct mpp_emit_kernels {
    size_t cap;
    int n;
    struct mpp_emit_kernel *list;
};

struct mpp_emit {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const struct mpp_graph *whole; /* the whole training step */
    const struct mpp_graph *g;     /* the stage's */
    int index;                     /* of the stage */
    const char *name;              /* "stage0" */
    const struct mpp_cluster *cluster;
    const struct mpp_plan *plan;
    const struct mpp_stage *stage;
    const struct mpp_mesh *mesh;
    const struct mpp_lprog *prog;
    const struct mpp_transfers *transfers;
    const char *const *transfer_name; /* [transfers->n] "H_1_RES2_TO_STAGE1" */
    struct mpp_text stage_text;
    struct mpp_emit_kernels *kernels;
    size_t cap_dims;
    int n_dims;
    struct mpp_emit_dim *dims;
    const char **class_field, **body_name; /* [n_classes] "h", [n_bodies] "h_forward" */
    bool *counts, *used;          /* [n_classes] its structs hold `layer`; [n_buffers] something names it */
    /* the function being written */
    struct mpp_text body;
    int indent;
    int cls;                      /* class of its layer; -1: none */
    const char *last_layer;       /* "&p->h[3]", where its loop ends; NULL: it runs once */
    int ahead;                    /* what is written is for the layer so many further on */
    bool uses_later;              /* it needs `later` */
    bool failed;                  /* a fault was reported */
};

/* ---- emit_text.c: formatting ---- */
const char *mpp_emit_float(struct mpp_arena *arena, double value);          /* "0.5f", "1e-05f" */
const char *mpp_emit_double(struct mpp_arena *arena, double value);         /* the shortest that reads back */
const char *mpp_emit_bytes_text(struct mpp_arena *arena, int64_t bytes);    /* "12.5 MiB" */
const char *mpp_emit_identifier(struct mpp_arena *arena, const char *name); /* other characters become _ */
const char *mpp_emit_quoted(struct mpp_arena *arena, const char *s);        /* a C string literal; NULL -> NULL */

/* The C type of an element; an expression of that type as a float; a float as one. */
const char *mpp_emit_type(enum mpp_dtype dtype);                            /* "float", "int32_t", "mpp_bf16" */
const char *mpp_emit_load(struct mpp_arena *arena, enum mpp_dtype dtype, const char *x);
const char *mpp_emit_store(struct mpp_arena *arena, enum mpp_dtype dtype, const char *x);
bool mpp_emit_is_half(enum mpp_dtype dtype);
/* What the runtime's functions for 16-bit floats add to name and arguments: "_half" and "MPP_TYPE_BF16, ", or nothing. */
const char *mpp_emit_half(enum mpp_dtype dtype);
const char *mpp_emit_type_arg(enum mpp_dtype dtype);
const char *mpp_emit_type_name(enum mpp_dtype dtype);                       /* "MPP_TYPE_F32" */

/* ---- emit_names.c: things of the program as C expressions ---- */
void mpp_emit_line(struct mpp_emit *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void mpp_emit_note(struct mpp_emit *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void mpp_emit_fail(struct mpp_emit *e, mpp_id op, const char *what);

const char *mpp_emit_ptr(struct mpp_emit *e, struct mpp_bufref ref);        /* "t->attn_y", "p->wte", "NULL" */
const struct mpp_buffer *mpp_emit_buffer(const struct mpp_emit *e, struct mpp_bufref ref);
unsigned mpp_emit_axes(const struct mpp_emit *e, struct mpp_split split, int factor);
int64_t mpp_emit_padded(const struct mpp_emit *e, struct mpp_size size, unsigned mask);
bool mpp_emit_uneven(const struct mpp_emit *e, struct mpp_size size, unsigned mask);
const char *mpp_emit_dim(struct mpp_emit *e, struct mpp_size size, unsigned mask);    /* "p->dim.heads_model" */
const char *mpp_emit_valid(struct mpp_emit *e, struct mpp_size size, unsigned mask);  /* "12", "p->dim.x.valid" */
const char *mpp_emit_mask(struct mpp_emit *e, unsigned mask);               /* "GROUP_DATA | GROUP_MODEL", "0" */
const char *mpp_emit_axis_words(struct mpp_emit *e, unsigned mask);         /* "model (4)" */
const char *mpp_emit_shape(struct mpp_emit *e, const struct mpp_buffer *b); /* "[batch 8/2, seq 64]" */
const char *mpp_emit_add(struct mpp_emit *e, enum mpp_write_mode mode);     /* "false", "true", "later" */
const char *mpp_emit_beta(struct mpp_emit *e, enum mpp_write_mode mode);    /* "0.0f", "1.0f", "later ? 1.0f : 0.0f" */
const char *mpp_emit_stream(struct mpp_emit *e, int64_t stream, int64_t step); /* "7 + 3 * t->layer" */
const char *mpp_emit_op_name(struct mpp_emit *e, const struct mpp_gop *op); /* without its layer's prefix */
/* Elements of dimensions FROM .. TO - 1 of B's local array. */
int64_t mpp_emit_span(const struct mpp_buffer *b, int from, int to);
/* Fill class_field, body_name, counts and used. */
void mpp_emit_prepare(struct mpp_emit *e);

/* Make (or find) the kernel; returns its name. */
const char *mpp_emit_kernel(struct mpp_emit *e, const char *base, const char *params, const char *body, const char *cuda,
                            const char *about);
/* The CUDA text of accumulate, and of copy_rows for elements of BYTES (emit_cuda_file.c). */
const char *mpp_emit_accumulate_cuda(struct mpp_emit *e, enum mpp_dtype dtype);
const char *mpp_emit_copy_rows_cuda(struct mpp_emit *e, int bytes);
/* kernels.cu. */
const char *mpp_emit_kernels_cu(struct mpp_emit *e);

/* ---- chunks: the parts of a stage that an interleaved schedule runs in turns; one, else ---- */
const char *mpp_emit_pass_name(struct mpp_emit *e, const char *pass, int chunk); /* "stage0_forward", "stage0_forward_1" */

/* ---- emitters ---- */
void mpp_emit_instr(struct mpp_emit *e, const struct mpp_instr *in);        /* emit_ops.c */
void mpp_emit_einsum(struct mpp_emit *e, const struct mpp_instr *in);       /* emit_einsum.c */
int64_t mpp_emit_einsum_workspace(const struct mpp_graph *g, const struct mpp_mesh *mesh, const struct mpp_group *group,
                                  struct mpp_split split);
/* Where the contraction is one mpp_gemm: the columns of its result, the innermost dimensions as they are stored; else 0. */
int64_t mpp_emit_einsum_columns(const struct mpp_graph *g, const struct mpp_mesh *mesh, const struct mpp_group *group,
                                struct mpp_split split);
void mpp_emit_fused(struct mpp_emit *e, const struct mpp_instr *in);        /* emit_fused.c */
void mpp_emit_step(struct mpp_emit *e, const struct mpp_instr *in);         /* emit_comm.c */
void mpp_emit_await(struct mpp_emit *e, const struct mpp_instr *in);
void mpp_emit_transfer(struct mpp_emit *e, const struct mpp_instr *in);     /* emit_transfer.c */
void mpp_emit_stage(struct mpp_emit *e);                                    /* emit_stage.c */
void mpp_emit_schedule(struct mpp_emit *e);                                 /* emit_schedule.c: stageN_step */
const char *mpp_emit_stage_h(struct mpp_emit *e);                           /* emit_header.c */
const char *mpp_emit_tables_c(struct mpp_emit *e);                          /* emit_tables.c */
const char *mpp_emit_tensors(struct mpp_emit *e, const char **out_inputs, int *out_n_tensors,
                             int *out_n_inputs);                            /* emit_tensors.c */
const char *mpp_emit_plan_h(struct mpp_emit *e);                            /* emit_plan.c; of any stage */
const char *mpp_emit_plan_c(struct mpp_emit *e, struct mpp_lprog *const *progs);
const char *const *mpp_emit_transfer_names(struct mpp_arena *arena, const struct mpp_transfers *transfers); /* emit_transfer.c */
void mpp_emit_transfers_h(struct mpp_emit *e, struct mpp_text *out);
void mpp_emit_transfers_c(struct mpp_emit *e, struct mpp_lprog *const *progs, struct mpp_text *out);
/* emit_makefile.c; DEVICE: the plan's, NULL: no matter which. */
const char *mpp_emit_makefile(struct mpp_arena *arena, const char *sources, const struct mpp_device *device);
const char *mpp_emit_run_sh(struct mpp_emit *e);                             /* emit_launch.c; of any stage */
const char *mpp_emit_run_sbatch(struct mpp_emit *e);
enum mpp_status mpp_emit_runtime(struct mpp_diag *diag, struct mpp_arena *arena, const char *dir) MPP_CHECKED;
enum mpp_status mpp_emit_write(struct mpp_diag *diag, struct mpp_arena *arena, const char *dir, const char *name,
                               const char *text, size_t size) MPP_CHECKED;
/* The same, to be run as a program. */
enum mpp_status mpp_emit_write_script(struct mpp_diag *diag, struct mpp_arena *arena, const char *dir, const char *name,
                                      const char *text) MPP_CHECKED;

#endif
