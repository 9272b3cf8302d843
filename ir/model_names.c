#include "ir/model_names.h"

#include <string.h>

/* FNV-1a over the table's number and the name. */
static uint64_t hash(int table, const char *name)
{
    uint64_t h = (14695981039346656037u ^ (unsigned)table) * 1099511628211u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 1099511628211u;
    return h ^ h >> 29;
}

/* The slot that holds the entry or would take it. */
static struct mpp_model_name *slot_of(const struct mpp_model_names *names, int table, const char *name)
{
    size_t i = hash(table, name) & (names->cap - 1);
    while (names->slot[i].name && (names->slot[i].table != table || strcmp(names->slot[i].name, name) != 0))
        i = (i + 1) & (names->cap - 1);
    return &names->slot[i];
}

struct mpp_model_name *mpp_model_names_find(const struct mpp_model_names *names, int table, const char *name)
{
    if (names->cap == 0)
        return NULL;
    struct mpp_model_name *s = slot_of(names, table, name);
    return s->name ? s : NULL;
}

const char *mpp_model_names_get(const struct mpp_model_names *names, int table, const char *name)
{
    const struct mpp_model_name *s = mpp_model_names_find(names, table, name);
    return s ? s->value : NULL;
}

static void grow(struct mpp_model_names *names)
{
    struct mpp_model_names old = *names;
    names->cap = old.cap ? old.cap * 2 : 256;
    names->slot = mpp_arena_array(names->arena, names->cap, struct mpp_model_name);
    for (size_t i = 0; i < old.cap; i++) {
        if (old.slot[i].name)
            *slot_of(names, old.slot[i].table, old.slot[i].name) = old.slot[i];
    }
}

struct mpp_model_name *mpp_model_names_put(struct mpp_model_names *names, int table, const char *name, const char *value,
                                           int line)
{
    if (names->n * 2 >= names->cap)
        grow(names);
    struct mpp_model_name *s = slot_of(names, table, name);
    names->n += s->name == NULL;
    *s = (struct mpp_model_name){.table = table, .name = name, .value = value, .line = line, .count = s->count};
    return s;
}
