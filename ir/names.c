#include "ir/names.h"

#include <string.h>

struct entry {
    const char *name;
    mpp_id id;
};

struct mpp_names {
    struct mpp_arena *arena;
    size_t n, cap;                /* cap: a power of two */
    struct entry *entries;
    struct mpp_names *numbers;    /* of names taken before: the last number given, so that it is not searched for again */
};

struct mpp_names *mpp_names_new(struct mpp_arena *arena)
{
    struct mpp_names *names = mpp_arena_array(arena, 1, struct mpp_names);
    names->arena = arena;
    names->cap = 64;
    names->entries = mpp_arena_array(arena, names->cap, struct entry);
    return names;
}

void mpp_names_reserve(struct mpp_names *names, size_t n)
{
    while (names->cap <= 2 * n && names->n == 0)
        names->cap *= 2;
    if (names->n == 0)
        names->entries = mpp_arena_array(names->arena, names->cap, struct entry);
}

/* FNV-1a; returns the entry that holds NAME, or the free one where it belongs. */
static struct entry *find(const struct mpp_names *names, const char *name)
{
    uint64_t hash = 14695981039346656037u;
    for (const char *p = name; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 1099511628211u;
    size_t i = (size_t)(hash ^ hash >> 32) & (names->cap - 1);
    while (names->entries[i].name && strcmp(names->entries[i].name, name) != 0)
        i = (i + 1) & (names->cap - 1);
    return &names->entries[i];
}

static void grow(struct mpp_names *names)
{
    struct entry *old = names->entries;
    size_t n_old = names->cap;
    names->cap *= 2;
    names->entries = mpp_arena_array(names->arena, names->cap, struct entry);
    for (size_t i = 0; i < n_old; i++) {
        if (old[i].name)
            *find(names, old[i].name) = old[i];
    }
}

bool mpp_names_put(struct mpp_names *names, const char *name, mpp_id id)
{
    if (2 * names->n >= names->cap)
        grow(names);
    struct entry *e = find(names, name);
    if (e->name)
        return false;
    *e = (struct entry){name, id};
    names->n++;
    return true;
}

const char *mpp_names_take(struct mpp_names *names, const char *name, mpp_id id)
{
    if (mpp_names_put(names, name, id))
        return name;
    if (!names->numbers)
        names->numbers = mpp_names_new(names->arena);
    (void)mpp_names_put(names->numbers, name, 1);
    struct entry *last = find(names->numbers, name);
    const char *unique;
    do
        unique = mpp_arena_printf(names->arena, "%s_%d", name, ++last->id);
    while (!mpp_names_put(names, unique, id));
    return unique;
}

mpp_id mpp_names_get(const struct mpp_names *names, const char *name, mpp_id fallback)
{
    const struct entry *e = find(names, name);
    return e->name ? e->id : fallback;
}
