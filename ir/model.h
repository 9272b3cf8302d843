/* model.h - the model file, read and expanded: what the user wrote, before any op is known.
 *
 *     struct mpp_model_options opts = { .preset = "gpt2", .n_defines = 1, .defines = (const char *[]){"layers=2"} };
 *     struct mpp_model *m;
 *     MPP_TRY(mpp_model_read(arena, diag, "models/gpt.xml", &opts, &m));
 *     for (int i = 0; i < m->n_items; i++) ... m->items[i].type ...
 *
 * Blocks, calls, repeats, ifs and includes are expanded; wiring is resolved to value names; attributes stay
 * text and are read, typed and checked against an op's own list by mpp_attrs_read. */
#ifndef MPP_MODEL_H
#define MPP_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "ir/arena.h"
#include "ir/diag.h"
#include "ir/status.h"
#include "ir/xml.h"

/* The extent of a dimension: size, or, where per_batch > 0, per_batch times the batch (then size is its value
 * at the global batch). NAME is what the user called it: "hidden", "4*hidden", "3". */
struct mpp_size {
    int64_t size, per_batch;
    const char *name;
};

/* ---- typed attributes ---- */

enum mpp_attr_type { MPP_ATTR_INT, MPP_ATTR_FLOAT, MPP_ATTR_BOOL, MPP_ATTR_STRING, MPP_ATTR_INTS, MPP_ATTR_DIMS };

struct mpp_attr {
    const char *name;
    enum mpp_attr_type type;
    int64_t i;                    /* INT, BOOL */
    double f;                     /* FLOAT */
    const char *s;                /* STRING and enumerations */
    int n;                        /* INTS, DIMS: count */
    const int64_t *ints;
    const struct mpp_size *dims;
};

struct mpp_attrs {
    int n;
    const struct mpp_attr *attr;
};

/* The attribute NAME of ATTRS, or NULL when it was optional and not given. */
const struct mpp_attr *mpp_attrs_find(const struct mpp_attrs *attrs, const char *name);
/* Shorthands; the fallback is returned when the attribute is absent. */
int64_t mpp_attrs_int(const struct mpp_attrs *attrs, const char *name, int64_t fallback);
double mpp_attrs_float(const struct mpp_attrs *attrs, const char *name, double fallback);
const char *mpp_attrs_string(const struct mpp_attrs *attrs, const char *name, const char *fallback);

/* ---- the expanded file ---- */

struct mpp_env;                   /* names in scope where an element stood (params, dims, block arguments, index) */

struct mpp_item {                 /* one op element */
    const char *type;             /* "Linear" */
    const char *name;             /* unique: "h.3.attn.c_attn"; without name= "h.3.mlp.gelu" (numbered if needed) */
    const char *scope;            /* "h.3.attn", "" at the top */
    struct mpp_loc loc;
    const char *path;             /* "in block \"attention\", called as h.3.attn at gpt.xml:58"; NULL at the top */
    bool in_default;              /* no in= was written: IN is the previous op's first output (or nothing) */
    int n_in;
    const char **in;              /* value names: an <input>'s, or an output's of an earlier item; NULL: left out */
    int n_out;
    const char **out;             /* names of the outputs that have one; out[0] is NAME unless out= says otherwise */
    int repeat, index;            /* outermost <repeat> this stands in (0, 1, ...; -1: none), and its iteration */
    const char *repeat_name;      /* "h" */
    const struct mpp_xml *xml;
    const struct mpp_env *env;
};

struct mpp_model_input {
    const char *name;
    struct mpp_loc loc;
    const char *type;             /* "i32", "f32" */
    int n_dims;
    struct mpp_size *dims;
    const char *role;             /* data role: "tokens", "next_tokens", "masked_tokens", "masked_labels", "zeros", "ones", or NULL */
    int64_t limit;                /* ids are below it (vocabulary); 0: unchecked */
};

struct mpp_optimizer_group {
    const char *match;            /* glob over published parameter names */
    double weight_decay;
};

struct mpp_training {
    struct mpp_loc loc;
    const char *loss;             /* value name */
    int64_t micro;                /* samples per micro-batch over all data-parallel shards; 0: auto */
    const char *precision;        /* what is computed in: "f32", "bf16", "f16" (--precision says another) */
    double loss_scale;            /* "f16": fixed; 0: dynamic */
    int64_t loss_scale_every;     /* dynamic: so many good steps in a row double it */
    const char *optimizer;        /* "adamw" or "sgd" */
    double lr, beta1, beta2, epsilon, momentum, weight_decay, weight_decay_1d, clip_norm; /* weight_decay_1d: for
                                   * parameters whose published form has one dimension; NaN: as weight_decay */
    bool nesterov;
    int n_groups;
    struct mpp_optimizer_group *groups; /* first match wins, before weight_decay_1d */
    const char *schedule;         /* "constant", "linear", "cosine" */
    int64_t warmup_steps, total_steps;
    double final_lr;
    int64_t save_every, save_keep;
};

struct mpp_dataset {
    struct mpp_loc loc;
    const char *split, *format, *path; /* format: text, tokens, npy, synthetic */
    int64_t seed;
    double mask_share;
    int64_t mask_id;
};

struct mpp_shard_pin {            /* <shard match="glob" dim="name" axis="name"/> */
    const char *match, *dim, *axis;
    struct mpp_loc loc;
};

struct mpp_model {
    const char *name, *file, *preset; /* preset NULL: none */
    int64_t batch;                /* global batch */
    const char *batch_name;       /* name of the dimension with role="batch" */
    int n_dims;
    struct mpp_size *dims;        /* every <dim>, after presets and -D */
    int n_params;
    const char **param_names, **param_values; /* every <param>, printed */
    int n_inputs;
    struct mpp_model_input *inputs;
    int n_items;
    struct mpp_item *items;       /* in file order, which is a topological order */
    int n_repeats;
    struct mpp_training training;
    int n_datasets;
    struct mpp_dataset *datasets;
    const char *weights_path;     /* <weights>; NULL: none */
    bool weights_optional;        /* it is no fault when the file is missing */
    int n_strip;
    const char **strip_prefixes;
    int n_ignore;
    const char **ignore;          /* globs: tensors of the file that the model does not have */
    int n_shards;
    struct mpp_shard_pin *shards;
};

struct mpp_model_options {
    const char *preset;           /* NULL: none */
    int n_defines;
    const char *const *defines;   /* "name=value" from -D */
    int64_t batch;                /* --batch; 0: as in the file */
    const char *precision;        /* --precision: "f32", "bf16", "f16"; NULL: as in the file */
};

/* Read and expand the model at PATH into ARENA. Every fault found is reported. */
enum mpp_status mpp_model_read(struct mpp_arena *arena, struct mpp_diag *diag, const char *path,
                               const struct mpp_model_options *options, struct mpp_model **out) MPP_CHECKED;

/* Read ITEM's attributes against SPEC, a list in the notation of docs/ops.md:
 * "units:dims*, bias:bool=true, approximate:{none|tanh}=none, axis:int=-1, epsilon:float=1e-5, weight:string".
 * `*` required, `=` default, neither: optional. name, in, out and test are always allowed. An attribute that
 * SPEC does not list, a missing required one, a value of the wrong type: one diagnostic each and MPP_INVALID.
 * Expressions see ITEM's environment; string and enumeration attributes may name a <param type="string">.
 * An attribute of type init (or called init) comes as a string whose arguments are numbers: "normal(0,0.02)". */
enum mpp_status mpp_attrs_read(struct mpp_arena *arena, struct mpp_diag *diag, const struct mpp_item *item,
                               const char *spec, struct mpp_attrs *out) MPP_CHECKED;

/* Does NAME match the glob PATTERN (`*` any run of characters, `?` one)? */
bool mpp_glob(const char *pattern, const char *name);

#endif
