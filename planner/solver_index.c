/* solver_index.c - an open-addressing hash of byte strings. */
#include <string.h>

#include "planner/solver_internal.h"

struct entry {
    uint64_t hash;
    const void *key;
    size_t len;
};

struct mpp_solver_index {
    struct mpp_arena *arena;
    size_t n, cap, n_slots;
    struct entry *entry;
    int32_t *slot;       /* entry + 1, 0: free */
};

struct mpp_solver_index *mpp_solver_index_new(struct mpp_arena *arena)
{
    struct mpp_solver_index *ix = mpp_arena_array(arena, 1, struct mpp_solver_index);
    ix->arena = arena;
    ix->n_slots = 64;
    ix->slot = mpp_arena_array(arena, ix->n_slots, int32_t);
    return ix;
}

static uint64_t mix(uint64_t h, const unsigned char *p)
{
    uint64_t w;
    memcpy(&w, p, 8);
    h = (h ^ w) * 0xff51afd7ed558ccdu;
    return h ^ h >> 32;
}

/* Long keys in four lanes, which a processor goes through at once. */
static uint64_t hash_bytes(const void *key, size_t len)
{
    const unsigned char *p = key;
    uint64_t h = 0x9e3779b97f4a7c15u ^ len, w, lane[4] = {h, ~h, h << 1 | 1, h >> 1};
    if (len >= 64) {
        for (; len >= 32; len -= 32, p += 32)
            for (int i = 0; i < 4; i++)
                lane[i] = mix(lane[i], p + 8 * i);
        for (int i = 0; i < 4; i++)
            h = (h ^ lane[i]) * 0xc4ceb9fe1a85ec53u;
    }
    for (; len >= 8; len -= 8, p += 8)
        h = mix(h, p);
    for (w = 0; len; len--)
        w = w << 8 | *p++;
    h = (h ^ w) * 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 33;
}

static void rehash(struct mpp_solver_index *ix)
{
    ix->n_slots *= 2;
    ix->slot = mpp_arena_array(ix->arena, ix->n_slots, int32_t);
    for (size_t e = 0; e < ix->n; e++) {
        size_t i = ix->entry[e].hash & (ix->n_slots - 1);
        while (ix->slot[i])
            i = (i + 1) & (ix->n_slots - 1);
        ix->slot[i] = (int32_t)e + 1;
    }
}

int32_t mpp_solver_index_add(struct mpp_solver_index *ix, const void *key, size_t len, bool copy, bool *out_new)
{
    uint64_t h = hash_bytes(key, len);
    size_t i = h & (ix->n_slots - 1);
    for (; ix->slot[i]; i = (i + 1) & (ix->n_slots - 1)) {
        const struct entry *e = &ix->entry[ix->slot[i] - 1];
        if (e->hash == h && e->len == len && (len == 0 || memcmp(e->key, key, len) == 0)) {
            if (out_new)
                *out_new = false;
            return ix->slot[i] - 1;
        }
    }
    if (ix->n == ix->cap)
        ix->entry = mpp_arena_grow(ix->arena, ix->entry, &ix->cap, ix->n + 1, sizeof *ix->entry);
    ix->entry[ix->n] = (struct entry){h, copy ? mpp_arena_memdup(ix->arena, key, len) : key, len};
    ix->slot[i] = (int32_t)++ix->n;
    if (ix->n * 2 > ix->n_slots)
        rehash(ix);
    if (out_new)
        *out_new = true;
    return (int32_t)ix->n - 1;
}

int32_t mpp_solver_index_count(const struct mpp_solver_index *ix)
{
    return (int32_t)ix->n;
}

const void *mpp_solver_index_key(const struct mpp_solver_index *ix, int32_t id)
{
    return ix->entry[id].key;
}
