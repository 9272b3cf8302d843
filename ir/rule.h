/* rule.h - how an op's operands index its iteration space; from it come shapes, shardings, FLOPs, loops.
 *
 * A rule instance names factors (iteration dimensions). Each dimension of each operand is a list of factors,
 * outermost first (usually one; none for a dimension of size 1 that broadcasts). A mesh axis may split one factor:
 *   - an operand that has the factor *outermost* in some dimension is sharded there;
 *   - an output that lacks a factor marked sum is partial over the axis;
 *   - everything else is whole.
 *
 * Written form, as in ir/ops.def: "*i v+, v h -> *i h". Marks after a factor's first mention:
 *   +  summed where an output lacks it     ~  may be split, with internal collectives
 *   ^  never split, not worth it anywhere  !  whole in this op, though it may be split elsewhere
 * `*i` any number of dimensions; `(n d)` one dimension of two factors; `1` a dimension of size 1. */
#ifndef MPP_RULE_H
#define MPP_RULE_H

#include <stdbool.h>
#include <stdint.h>

#include "ir/arena.h"
#include "ir/graph.h"

#define MPP_MAX_FACTORS 12
#define MPP_MAX_AXES 3

enum mpp_factor_kind {
    MPP_FACTOR_FREE,              /* may be split at will */
    MPP_FACTOR_SUM,               /* + */
    MPP_FACTOR_INTERNAL,          /* ~ */
    MPP_FACTOR_WHOLE,             /* ! */
    MPP_FACTOR_NEVER,             /* ^ */
};

struct mpp_factor {
    char letter;                  /* for einsum strings and dumps; unique in the rule */
    enum mpp_factor_kind kind;
    struct mpp_size size;
    bool even_only;               /* may be split only into equal parts (outer factor of a composite dimension) */
};

struct mpp_rule_dim {
    int n;
    int8_t factor[3];             /* outermost first */
};

struct mpp_rule_operand {
    int n_dims;
    struct mpp_rule_dim dim[MPP_GRAPH_MAX_DIMS];
};

struct mpp_rule {
    int n_factors;
    struct mpp_factor factor[MPP_MAX_FACTORS];
    int n_in, n_out;
    struct mpp_rule_operand *operand; /* [n_in + n_out]; a left-out input has n_dims -1 */
    bool linear;                  /* jointly linear in its f32 inputs: all partial in, all partial out is legal */
};

/* Does FACTOR stand in operand O, and where: the dimension whose outermost factor it is, or -1. */
int mpp_rule_find(const struct mpp_rule *rule, int operand, int factor);

/* May a mesh axis of size K (the product of all axes on it) split FACTOR? */
bool mpp_rule_can_split(const struct mpp_rule *rule, int factor, int k);

/* The rule as text in ARENA: "i j k+, k l -> i j l"; a left-out operand is "-". */
const char *mpp_rule_to_text(struct mpp_arena *arena, const struct mpp_rule *rule);

/* The factors of GROUP's op number MEMBER as numbers of the group's own factors: OUT_FACTOR [factors of the op's rule]. */
void mpp_group_factors(const struct mpp_graph *g, const struct mpp_group *group, int member, int8_t *out_factor);

/* ---- shardings ---- */

/* How a tensor lies on a logical mesh: per axis a dimension index, or one of these. Unused axes are WHOLE.
 * Several axes on one dimension cut it by nested blocks in axis order (runtime/mpp_rt.h). */
enum { MPP_WHOLE = -1, MPP_PARTIAL = -2 };
struct mpp_sharding {
    int8_t axis[MPP_MAX_AXES];
};

struct mpp_mesh {
    int n_axes;
    int size[MPP_MAX_AXES];       /* 1 on unused axes */
    const char *name[MPP_MAX_AXES]; /* "data", "model", or "a", "b", "c" */
};

/* A strategy of an op or group: per axis the factor it splits, -1 (whole), or MPP_PARTIAL (linear rules only: partial
 * in, partial out). */
struct mpp_split {
    int8_t axis[MPP_MAX_AXES];
};

bool mpp_sharding_equal(struct mpp_sharding a, struct mpp_sharding b);
struct mpp_sharding mpp_sharding_whole(void);

/* Is SPLIT legal for RULE on MESH (factors splittable, at least as large as the product of their axes,
 * even where required, PARTIAL only where linear)? */
bool mpp_split_legal(const struct mpp_rule *rule, const struct mpp_mesh *mesh, struct mpp_split split);

/* The sharding that operand O (inputs, then outputs) has under SPLIT. */
struct mpp_sharding mpp_split_operand(const struct mpp_rule *rule, struct mpp_split split, int operand);

/* Padded local extent of a dimension of extent SIZE that the axes in MASK split: nested ceil. */
int64_t mpp_block_padded(const struct mpp_mesh *mesh, int64_t size, unsigned mask);
/* Valid extent and offset of the block at COORD (per axis). */
int64_t mpp_block_valid(const struct mpp_mesh *mesh, int64_t size, unsigned mask, const int *coord, int64_t *out_offset);

/* The axes that split dimension DIM under S, as a mask. */
unsigned mpp_sharding_mask(struct mpp_sharding s, int dim);
/* Bytes of the padded local array of T under S. */
int64_t mpp_sharding_bytes(const struct mpp_gtensor *t, const struct mpp_mesh *mesh, struct mpp_sharding s);
/* "[batch/data, seq, heads/model, 64]", "partial over model" appended; in ARENA. */
const char *mpp_sharding_text(struct mpp_arena *arena, const struct mpp_gtensor *t, const struct mpp_mesh *mesh,
                              struct mpp_sharding s);

#endif
