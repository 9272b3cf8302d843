/* model_internal.h - shared by the files of the model reader only: model.c (the file and its sections),
 * model_params.c (params, presets, -D), model_expand.c (blocks to items), model_sections.c (the rest). */
#ifndef MPP_MODEL_INTERNAL_H
#define MPP_MODEL_INTERNAL_H

#include <stdbool.h>

#include "ir/expr.h"
#include "ir/model.h"

enum {
    MPP_MAX_ITEMS = 20000,       /* ops after expansion */
    MPP_MAX_STEPS = 100000,      /* elements visited in expansion, so that empty loops end too */
    MPP_MAX_REPEAT_DEPTH = 32,
    MPP_MAX_CALL_DEPTH = 32,
    MPP_MAX_INCLUDE_DEPTH = 8,
    MPP_MAX_TEXT_BYTES = 256 << 20, /* of names, paths and evaluations made in expansion */
    MPP_MAX_FAULTS = 200,        /* expansion gives up after so many */
    MPP_MAX_PARAMS = 1000,       /* dims and params; presets; requirements */
    MPP_MAX_BLOCKS = 1000,
    MPP_MAX_ARGS = 64,           /* of a block */
    MPP_MAX_LIST = 1000,         /* inputs, optimizer groups, datasets, strips, ignores, shards: of each */
    MPP_MAX_NAME = 256,          /* bytes of a name that the user gives */
};

struct mpp_block {
    const char *name;
    const struct mpp_xml *xml;
    bool active;                 /* being expanded: calling it again would not end */
};

struct mpp_reader {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const struct mpp_model_options *options;
    struct mpp_model *model;
    int faults;                  /* reported so far, repeated ones too */
    const struct mpp_xml *root;
    struct mpp_env *globals;     /* params and dims */
    const char *root_dir;        /* real path of the main file's folder, for includes */
    bool incomplete;             /* blocks may be missing because of a fault that has been reported */
    bool values_missing;         /* and so may inputs and named values */
    int n_blocks;
    size_t cap_blocks;
    struct mpp_block *blocks;
    int n_loaded;                /* real paths of the files read so far */
    size_t cap_loaded;
    const char **loaded;
};

/* An evaluation context at NODE: no attribute named, no call path. */
struct mpp_eval mpp_reader_at(struct mpp_reader *r, const struct mpp_xml *node, const struct mpp_env *env);

/* The same for one attribute: its name stands in messages. */
struct mpp_eval mpp_reader_attr(struct mpp_reader *r, const struct mpp_xml *node, const struct mpp_env *env,
                                const char *attr);

/* Check NODE's attributes against a list such as "name* value* role": unknown and missing ones are reported. */
bool mpp_check_attrs(const struct mpp_eval *ev, const struct mpp_xml *node, const char *list);

/* Report that NODE may not stand where it does; LIST names what may: "dim param preset". */
void mpp_unexpected_element(const struct mpp_eval *ev, const struct mpp_xml *node, const char *list);

/* NODE may have at most MOST children called NAME; reports the first beyond. */
bool mpp_check_count(const struct mpp_eval *ev, const struct mpp_xml *node, const char *name, int most);

/* Report every child of NODE, which takes none. */
bool mpp_check_leaf(const struct mpp_eval *ev, const struct mpp_xml *node);

/* VALUE is one of LIST's words ("adamw sgd"): returns that word, else reports (under EV->what) and returns NULL. */
const char *mpp_check_word(const struct mpp_eval *ev, const char *value, const char *list);

/* NAME, a WHAT ("a preset's name"), is shown in reports: at most 256 bytes, no control characters. */
bool mpp_check_shown(const struct mpp_eval *ev, const char *what, const char *name);

/* The words of LIST in ARENA; a trailing * is cut. */
const char **mpp_words(struct mpp_arena *arena, const char *list, int *out_n);

/* A value given for a parameter of TYPE (params, block arguments): strings are taken as they stand. */
bool mpp_typed_value(const struct mpp_eval *ev, const char *text, enum mpp_value_type type, struct mpp_value *out,
                     const char **out_text);

/* The value of TYPE named in a type= attribute; false after a report. */
bool mpp_check_type(const struct mpp_eval *ev, const char *text, enum mpp_value_type *out);

/* <params>: fills globals, model->dims, params, batch, preset. */
enum mpp_status mpp_read_params(struct mpp_reader *r, const struct mpp_xml *params);

/* <inputs>, and the sections after the graph. */
void mpp_read_inputs(struct mpp_reader *r, const struct mpp_xml *inputs);
void mpp_read_training(struct mpp_reader *r, const struct mpp_xml *training);
void mpp_read_data(struct mpp_reader *r, const struct mpp_xml *data);
void mpp_read_weights(struct mpp_reader *r, const struct mpp_xml *weights);
void mpp_read_planning(struct mpp_reader *r, const struct mpp_xml *planning);

/* <graph>: fills model->items and n_repeats, and resolves the loss (LOSS is training's attribute, or NULL). */
void mpp_expand_graph(struct mpp_reader *r, const struct mpp_xml *graph, const struct mpp_xml *training);

#endif
