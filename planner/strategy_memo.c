/* strategy_memo.c - byte strings to numbers, so that what recurs is worked out once. */
#include <string.h>

#include "planner/stage.h"

struct entry {
    uint64_t hash;
    size_t size;
    const void *key;              /* NULL: free */
    int id;
};

struct mpp_memo {
    struct mpp_arena *arena;
    struct entry *entry;
    size_t cap;                   /* a power of two */
    int n;
};

static uint64_t hash_of(const unsigned char *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

struct mpp_memo *mpp_memo_new(struct mpp_arena *arena)
{
    struct mpp_memo *m = mpp_arena_array(arena, 1, struct mpp_memo);
    m->arena = arena;
    m->cap = 64;
    m->entry = mpp_arena_array(arena, m->cap, struct entry);
    return m;
}

static struct entry *slot_of(struct mpp_memo *m, uint64_t hash, const void *key, size_t size)
{
    size_t i = hash & (m->cap - 1);
    for (;; i = (i + 1) & (m->cap - 1)) {
        struct entry *e = &m->entry[i];
        if (!e->key || (e->hash == hash && e->size == size && memcmp(e->key, key, size) == 0))
            return e;
    }
}

static void grow(struct mpp_memo *m)
{
    struct entry *old = m->entry;
    size_t n = m->cap;
    m->cap *= 2;
    m->entry = mpp_arena_array(m->arena, m->cap, struct entry);
    for (size_t i = 0; i < n; i++)
        if (old[i].key)
            *slot_of(m, old[i].hash, old[i].key, old[i].size) = old[i];
}

int mpp_memo_add(struct mpp_memo *m, const void *key, size_t size, bool *out_new)
{
    uint64_t hash = hash_of(key, size);
    struct entry *e = slot_of(m, hash, key, size);
    *out_new = !e->key;
    if (e->key)
        return e->id;
    *e = (struct entry){hash, size, mpp_arena_memdup(m->arena, key, size), m->n++};
    int id = e->id;
    if ((size_t)m->n * 2 > m->cap)
        grow(m);
    return id;
}

void mpp_key_add(struct mpp_key *key, const void *p, size_t size)
{
    key->bytes = mpp_arena_grow(key->arena, key->bytes, &key->cap, key->size + size + 1, 1);
    memcpy(key->bytes + key->size, p, size);
    key->size += size;
}

void mpp_key_int(struct mpp_key *key, int64_t v)
{
    mpp_key_add(key, &v, sizeof v);
}

void mpp_key_text(struct mpp_key *key, const char *s)
{
    mpp_key_add(key, s ? s : "", s ? strlen(s) + 1 : 1);
}
