/* plan_json_value.c - what plan.json's writers share: JSON that is surely there, and how things are spelled. */
#include "planner/plan_json_value.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "planner/plan.h"
#include "planner/plan_json.h"

static void release(void *json)
{
    json_decref(json);
}

json_t *mpp_json_own(struct mpp_arena *arena, json_t *json)
{
    if (!json)
        mpp_arena_fail(arena, 0);
    mpp_arena_defer(arena, release, json);
    return json;
}

void mpp_json_put(struct mpp_arena *arena, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0)
        mpp_arena_fail(arena, 0);
}

void mpp_json_append(struct mpp_arena *arena, json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0)
        mpp_arena_fail(arena, 0);
}

struct text {
    char *data;
    size_t size, cap;
    bool failed;
};

static int add_text(const char *part, size_t size, void *to)
{
    struct text *t = to;
    if (t->size + size + 1 > t->cap && !t->failed) {
        size_t cap = 2 * t->cap + size + 256;
        char *data = realloc(t->data, cap);
        t->failed = data == NULL;
        t->data = data ? data : t->data;
        t->cap = data ? cap : t->cap;
    }
    if (t->failed)
        return -1;
    memcpy(t->data + t->size, part, size);
    t->data[t->size += size] = '\0';
    return 0;
}

json_t *mpp_json_beside(struct mpp_arena *arena, const struct mpp_beside *b)
{
    return mpp_json_own(arena, json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "workspace", (json_int_t)b->workspace, "kernels",
                                         (json_int_t)b->kernels, "packing", (json_int_t)b->packing, "messages", (json_int_t)b->messages,
                                         "own_bytes", (json_int_t)b->own_bytes, "nccl", (json_int_t)b->nccl, "context",
                                         (json_int_t)b->context, "bytes", (json_int_t)b->bytes));
}

/* (json_dumps of jansson 2.14 may lose a part when memory is out and return the rest.) */
const char *mpp_json_text(struct mpp_arena *arena, const json_t *json, size_t flags)
{
    struct text text = {0};
    int rc = json_dump_callback(json, add_text, &text, JSON_ENCODE_ANY | flags);
    if (rc != 0 || text.failed || !text.data) {
        free(text.data);
        mpp_arena_fail(arena, 0);
    }
    mpp_arena_defer(arena, free, text.data);
    return text.data;
}

/* ---- spelling ---- */

const char *mpp_json_template(struct mpp_arena *arena, const char *name, const char *repeat_name, int index)
{
    if (!repeat_name || index < 0)
        return NULL;
    const char *prefix = mpp_arena_printf(arena, "%s.%d.", repeat_name, index);
    size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 ? mpp_arena_printf(arena, "%s.*.%s", repeat_name, name + n) : NULL;
}

const char **mpp_json_repeats(struct mpp_arena *arena, const struct mpp_graph *g, int *out_n)
{
    int n = 0;
    for (int i = 0; i < g->n_ops; i++)
        n = g->ops[i].repeat >= n ? g->ops[i].repeat + 1 : n;
    const char **name = mpp_arena_array(arena, n, const char *);
    for (int i = 0; i < g->n_ops; i++)
        if (g->ops[i].repeat >= 0 && g->ops[i].repeat_name)
            name[g->ops[i].repeat] = g->ops[i].repeat_name;
    *out_n = n;
    return name;
}

int *mpp_json_first_layers(struct mpp_arena *arena, const struct mpp_graph *g, int n_repeats)
{
    int *first = mpp_arena_array(arena, n_repeats, int);
    for (int r = 0; r < n_repeats; r++)
        first[r] = INT_MAX;
    for (int i = 0; i < g->n_ops; i++) {
        const struct mpp_gop *op = &g->ops[i];
        if (op->repeat >= 0 && op->index < first[op->repeat])
            first[op->repeat] = op->index;
    }
    return first;
}

const char *mpp_json_shifted(struct mpp_arena *arena, const char *name, const char *const *repeat_name, const int *first,
                             int n_repeats, int sign)
{
    for (int r = 0; r < n_repeats; r++) {
        size_t n = repeat_name[r] ? strlen(repeat_name[r]) : 0;
        char *end;
        if (n == 0 || first[r] == 0 || first[r] == INT_MAX || strncmp(name, repeat_name[r], n) != 0 || name[n] != '.')
            continue;
        long layer = strtol(name + n + 1, &end, 10);
        if (end > name + n + 1 && *end == '.' && layer > -100000 && layer < 100000)
            return mpp_arena_printf(arena, "%s.%ld%s", repeat_name[r], layer + sign * (long)first[r], end);
    }
    return name;
}

const char *mpp_json_factor(struct mpp_arena *arena, const struct mpp_rule *rule, int factor)
{
    const char *name = rule->factor[factor].size.name;
    for (int f = 0; name && f < rule->n_factors; f++)
        if (f != factor && rule->factor[f].size.name && strcmp(rule->factor[f].size.name, name) == 0)
            name = NULL;
    if (name && strcmp(name, "partial") != 0 && name[0] != '#')
        return name;
    return mpp_arena_printf(arena, "#%c", rule->factor[factor].letter);
}

const char *mpp_json_dim(struct mpp_arena *arena, const struct mpp_gtensor *t, int dim)
{
    const char *name = t->dims[dim].name;
    for (int d = 0; name && d < t->n_dims; d++)
        if (d != dim && t->dims[d].name && strcmp(t->dims[d].name, name) == 0)
            name = NULL;
    return name && name[0] != '#' ? name : mpp_arena_printf(arena, "#%d", dim);
}

const char *mpp_json_phase(enum mpp_phase phase)
{
    static const char *const names[] = {"prologue", "forward", "backward", "update"};
    return names[phase];
}
