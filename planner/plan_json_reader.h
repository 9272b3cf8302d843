/* plan_json_reader.h - what the readers of plan.json share. Internal to plan_json*.c.
 *
 *     int64_t n = mpp_json_get_number(r, object, "devices", 1, 65536, "the stage");   // or a message, and r->bad
 */
#ifndef MPP_PLAN_JSON_READER_H
#define MPP_PLAN_JSON_READER_H

#include <stdbool.h>
#include <stddef.h>

#include "planner/plan_json.h"
#include "planner/plan_json_value.h"
#include "planner/stage.h"

enum { MPP_JSON_MAX_ERRORS = 20 };

struct reader {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const struct mpp_graph *whole; /* the training step */
    const char *path, *text;
    const char *key;              /* the section that is being read; NULL: none */
    size_t index;                 /* of its record */
    const char *at;               /* where no section is read: the path of what is, as in "stages.0.mesh"; "": the top */
    const char *field;            /* of it, that the next fault is about; "": itself */
    size_t kind;                  /* of the object under "stages" that it stands in */
    bool bad;
    bool chunks;                  /* the stages' graphs are those of their chunks */
    struct mpp_memo *missing;     /* axes that were reported */
    /* the stage that is being read */
    struct mpp_stage *stage;
    const struct mpp_graph *g;
    const char **repeat;          /* names of its repeats, and the first layer of each */
    int n_repeats, *first;
    struct mpp_memo *names;       /* of what is being read: ops or tensors */
    const char **name;            /* [n_names] for hints */
    int *target, n_names;         /* group or tensor of a name */
    int n_unknown;                /* names of the section that are not there */
    bool *seen;                   /* [n_groups] or [n_tensors] */
};

/* Report a fault, with the line of the record that is being read. */
void mpp_json_complain(struct reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A field of O, or a fault that calls O WHERE. Texts live in R's arena ("" where there is none); numbers are at least
 * LEAST and at most MOST (LEAST where there is none); NULL where there is no array. */
const char *mpp_json_get_text(struct reader *r, const json_t *o, const char *key, const char *where);
int64_t mpp_json_get_number(struct reader *r, const json_t *o, const char *key, int64_t least, int64_t most, const char *where);
const json_t *mpp_json_get_array(struct reader *r, const json_t *o, const char *key, const char *where);

/* A misspelt key would be a decision that is not taken. */
void mpp_json_check_keys(struct reader *r, const json_t *o, const char *const *keys, int n, const char *where);

/* plan_json_record.c: the decisions of R's stage from the sections of OBJECT. */
void mpp_json_read_decisions(struct reader *r, const json_t *object);

#endif
