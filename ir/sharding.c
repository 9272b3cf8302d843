#include <assert.h>
#include <string.h>

#include "ir/rule.h"

bool mpp_sharding_equal(struct mpp_sharding a, struct mpp_sharding b)
{
    return memcmp(a.axis, b.axis, sizeof a.axis) == 0;
}

struct mpp_sharding mpp_sharding_whole(void)
{
    struct mpp_sharding s;
    for (int a = 0; a < MPP_MAX_AXES; a++)
        s.axis[a] = MPP_WHOLE;
    return s;
}

bool mpp_split_legal(const struct mpp_rule *rule, const struct mpp_mesh *mesh, struct mpp_split split)
{
    int64_t parts[MPP_MAX_FACTORS] = {0}; /* 0: not split */
    for (int a = 0; a < MPP_MAX_AXES; a++) {
        int f = split.axis[a];
        if (f == MPP_WHOLE)
            continue;
        if (a >= mesh->n_axes)
            return false;
        if (f == MPP_PARTIAL) {
            if (!rule->linear)
                return false;
            continue;
        }
        if (f < 0 || f >= rule->n_factors)
            return false;
        parts[f] = (parts[f] ? parts[f] : 1) * mesh->size[a];
    }
    for (int f = 0; f < rule->n_factors; f++) {
        if (parts[f] && !mpp_rule_can_split(rule, f, (int)parts[f]))
            return false;
    }
    return true;
}

static bool has_factor(const struct mpp_rule_operand *o, int factor)
{
    for (int d = 0; d < o->n_dims; d++) {
        for (int k = 0; k < o->dim[d].n; k++) {
            if (o->dim[d].factor[k] == factor)
                return true;
        }
    }
    return false;
}

struct mpp_sharding mpp_split_operand(const struct mpp_rule *rule, struct mpp_split split, int operand)
{
    struct mpp_sharding s = mpp_sharding_whole();
    const struct mpp_rule_operand *o = &rule->operand[operand];
    for (int a = 0; a < MPP_MAX_AXES && o->n_dims >= 0; a++) {
        int f = split.axis[a];
        if (f == MPP_PARTIAL) {
            s.axis[a] = MPP_PARTIAL;
        } else if (f >= 0) {
            int dim = mpp_rule_find(rule, operand, f);
            if (dim >= 0)
                s.axis[a] = (int8_t)dim;
            else if (operand >= rule->n_in && rule->factor[f].kind == MPP_FACTOR_SUM && !has_factor(o, f))
                s.axis[a] = MPP_PARTIAL;
        }
    }
    return s;
}

int64_t mpp_block_padded(const struct mpp_mesh *mesh, int64_t size, unsigned mask)
{
    for (int a = 0; a < mesh->n_axes; a++) {
        if (mask >> a & 1)
            size = (size + mesh->size[a] - 1) / mesh->size[a];
    }
    return size;
}

int64_t mpp_block_valid(const struct mpp_mesh *mesh, int64_t size, unsigned mask, const int *coord, int64_t *out_offset)
{
    int64_t padded = size, valid = size, offset = 0;
    for (int a = 0; a < mesh->n_axes; a++) {
        if (!(mask >> a & 1))
            continue;
        padded = (padded + mesh->size[a] - 1) / mesh->size[a];
        int64_t before = coord[a] * padded;
        if (before > valid)
            before = valid;
        offset += before;
        valid -= before;
        if (valid > padded)
            valid = padded;
    }
    if (out_offset)
        *out_offset = offset;
    return valid;
}

unsigned mpp_sharding_mask(struct mpp_sharding s, int dim)
{
    unsigned mask = 0;
    for (int a = 0; a < MPP_MAX_AXES; a++) {
        if (s.axis[a] == dim)
            mask |= 1u << a;
    }
    return mask;
}

int64_t mpp_sharding_bytes(const struct mpp_gtensor *t, const struct mpp_mesh *mesh, struct mpp_sharding s)
{
    int64_t bytes = mpp_dtype_bytes(t->dtype);
    for (int d = 0; d < t->n_dims; d++)
        bytes *= mpp_block_padded(mesh, t->dims[d].size, mpp_sharding_mask(s, d));
    return bytes;
}

static const char *axis_name(const struct mpp_mesh *mesh, int a)
{
    static const char *const fallback[MPP_MAX_AXES] = {"a", "b", "c"};
    return mesh->name[a] ? mesh->name[a] : fallback[a];
}

const char *mpp_sharding_text(struct mpp_arena *arena, const struct mpp_gtensor *t, const struct mpp_mesh *mesh,
                              struct mpp_sharding s)
{
    const char *text = "[";
    for (int d = 0; d < t->n_dims; d++) {
        const char *name = t->dims[d].name;
        text = name ? mpp_arena_printf(arena, "%s%s%s", text, d ? ", " : "", name)
                    : mpp_arena_printf(arena, "%s%s%lld", text, d ? ", " : "", (long long)t->dims[d].size);
        for (int a = 0; a < mesh->n_axes; a++) {
            if (s.axis[a] == d)
                text = mpp_arena_printf(arena, "%s/%s", text, axis_name(mesh, a));
        }
    }
    text = mpp_arena_printf(arena, "%s]", text);
    const char *sep = " partial over ";
    for (int a = 0; a < mesh->n_axes; a++) {
        if (s.axis[a] == MPP_PARTIAL) {
            text = mpp_arena_printf(arena, "%s%s%s", text, sep, axis_name(mesh, a));
            sep = ", ";
        }
    }
    return text;
}
