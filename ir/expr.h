/* expr.h - expressions in attributes: "4*hidden", "hidden % heads == 0", "std/sqrt(2*layers)".
 *
 *     struct mpp_eval ev = {.arena = arena, .diag = diag, .env = env, .loc = node->loc, .what = "units"};
 *     int n; struct mpp_size *sizes;
 *     if (!mpp_eval_sizes(&ev, "3, heads, hidden/heads", MPP_SIZES_ANY, &n, &sizes)) return MPP_INVALID;
 *
 * Operators as in C: ?: || && == != < <= > >= + - * / % ! and unary -, with parentheses. Values are integers
 * (64 bits, every operation checked for overflow), floats, bools and strings ('in quotes'). An integer divided
 * by an integer is an integer when it comes out even, else a float. Functions: abs ceil exp floor log log2
 * max min pow round sqrt. Names come from params, dims, block arguments and the repeat's index.
 * A value remembers how it depends on the batch, so that sizes stay symbolic in it.
 * Every function reports its fault to EV->diag, once per text and place, and returns false. */
#ifndef MPP_EXPR_H
#define MPP_EXPR_H

#include <stdbool.h>
#include <stdint.h>

#include "ir/arena.h"
#include "ir/diag.h"
#include "ir/model.h"

#define MPP_EXPR_MAX_CHARS 4096
#define MPP_SIZE_MAX ((int64_t)1 << 40) /* of one dimension */

enum mpp_value_type { MPP_VALUE_INT, MPP_VALUE_FLOAT, MPP_VALUE_BOOL, MPP_VALUE_STRING };

enum mpp_batch_use {
    MPP_BATCH_NONE,   /* the value does not depend on the batch */
    MPP_BATCH_LINEAR, /* it is per_batch times the batch */
    MPP_BATCH_OTHER,  /* it depends on the batch in some other way */
};

struct mpp_value {
    enum mpp_value_type type;
    int64_t i;        /* INT, BOOL */
    double f;         /* FLOAT */
    const char *s;    /* STRING */
    enum mpp_batch_use batch;
    int64_t per_batch;
};

struct mpp_binding {
    const char *name;
    const char *text; /* how a size of just this name is called: the name, or a block argument's own text */
    struct mpp_value value;
};

/* Names in scope; inner ones first. */
struct mpp_env {
    const struct mpp_env *up;
    int n;
    const struct mpp_binding *bind;
};

/* What an evaluation needs, and where its faults are reported. */
struct mpp_eval {
    struct mpp_arena *arena;
    struct mpp_diag *diag;
    const struct mpp_env *env;
    struct mpp_loc loc;
    const char *what; /* the attribute, for messages; NULL: none */
    const char *path; /* call path added to messages as a note; NULL: none */
    bool quiet;       /* faults are counted, but no more said */
    int *faults;      /* counts faults, those too that are not repeated; NULL: not wanted */
};

const struct mpp_binding *mpp_env_find(const struct mpp_env *env, const char *name);

/* All names in scope, in ARENA, for hints. */
const char *const *mpp_env_names(struct mpp_arena *arena, const struct mpp_env *env, int *out_n);

/* Report a fault at EV's place, unless the same line was reported before (a block is expanded many times). */
void mpp_eval_error(const struct mpp_eval *ev, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The value of TEXT; *OUT_TEXT (may be NULL) is its normalised form, without spaces. */
bool mpp_eval_value(const struct mpp_eval *ev, const char *text, struct mpp_value *out, const char **out_text);

/* A comma-separated list of expressions, with the normalised text of each. */
bool mpp_eval_list(const struct mpp_eval *ev, const char *text, int *out_n, struct mpp_value **out_values,
                   const char ***out_texts);

/* TEXT as one type. Integers must lie in [MIN, MAX] and not depend on the batch. */
bool mpp_eval_int(const struct mpp_eval *ev, const char *text, int64_t min, int64_t max, int64_t *out);
bool mpp_eval_float(const struct mpp_eval *ev, const char *text, double *out);
bool mpp_eval_bool(const struct mpp_eval *ev, const char *text, bool *out);
bool mpp_eval_ints(const struct mpp_eval *ev, const char *text, int *out_n, int64_t **out);

/* A string: the value of the string parameter that TEXT names, else TEXT itself. */
const char *mpp_eval_string(const struct mpp_eval *ev, const char *text);

/* A comma-separated list of sizes, 1 to 2^40 each, whose product fits 62 bits. With MPP_SIZES_ANY the literals
 * -1 and 0 are passed on too (Reshape gives them a meaning). */
enum mpp_sizes_kind { MPP_SIZES_POSITIVE, MPP_SIZES_ANY };
bool mpp_eval_sizes(const struct mpp_eval *ev, const char *text, enum mpp_sizes_kind kind, int *out_n,
                    struct mpp_size **out);

/* A call form whose arguments are numbers, "normal(0, std/2)": the same with its arguments evaluated,
 * "normal(0,0.01)"; a bare word stays. */
bool mpp_eval_call(const struct mpp_eval *ev, const char *text, const char **out);

/* Turn VALUE into TYPE (int to float, whole floats to int, 0/1 to bool). */
bool mpp_eval_convert(const struct mpp_eval *ev, const char *text, enum mpp_value_type type,
                      struct mpp_value *value);

/* "int", "float", "bool", "string"; and a value as text. */
const char *mpp_value_type_name(enum mpp_value_type type);
const char *mpp_value_print(struct mpp_arena *arena, const struct mpp_value *value);

/* Is S a name: a letter or _, then letters, digits and _? */
bool mpp_is_identifier(const char *s);

#endif
